"""The contract, and a run of one input under it.

A target is a function of bytes. It may return anything and raise `depickle.Error`, `UsageError` or `OSError`. Anything
else is a finding: another exception (RecursionError and MemoryError among them), more than `SECONDS` of processor
time, or the end of the process; the limit of memory is the process's own.
"""

from __future__ import annotations

import hashlib
import resource
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import depickle

SECONDS = 2.0
MEBIBYTES = 1024
CRASHES = Path(__file__).resolve().parent / "crashes"
ALLOWED = (depickle.Error, depickle.UsageError, OSError)

Target = Callable[[bytes], object]


class TooSlow(BaseException):
    """A case took more than its time."""


def limit_memory(mebibytes: int = MEBIBYTES) -> None:
    """What the process may have beyond what it has now."""
    used = (
        int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize() if sys.platform == "linux" else 0
    )
    limit = used + mebibytes * 1024 * 1024
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def _too_slow(number: int, frame: object) -> None:
    raise TooSlow(f"more than {SECONDS} s of processor time")


def run(target: Target, data: bytes) -> str | None:
    """Run one case; return the finding, if it is one."""
    signal.signal(signal.SIGPROF, _too_slow)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        target(data)
    except ALLOWED as error:
        str(error)
    except (Exception, TooSlow) as error:
        signal.setitimer(signal.ITIMER_PROF, 0)
        return _brief(error)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    return None


def _brief(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    where = [f"{Path(frame.filename).name}:{frame.lineno} {frame.name}" for frame in frames[-3:]]
    return f"{type(error).__name__}: {str(error)[:200]!r} at {' < '.join(reversed(where))}"


def kind(finding: str) -> str:
    """What makes two findings the same: the exception and the innermost place."""
    name, _, rest = finding.partition(":")
    return f"{name} {rest.rpartition(' at ')[2].split(' < ')[0]}"


def save(name: str, data: bytes) -> Path:
    """Keep the bytes of a finding."""
    folder = CRASHES / name
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / hashlib.sha256(data).hexdigest()[:16]
    path.write_bytes(data)
    return path
