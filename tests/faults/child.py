"""depickle in a process of its own: started, waited for, and what it left behind."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import depickle

PACKAGE = str(Path(depickle.__file__).parents[1])  # the child runs the same package, installed or not
PATIENCE = 60.0
T = TypeVar("T")
# Compiled once and not by every child, whatever the environment of the tests says.
_CACHE = os.path.join(tempfile.gettempdir(), f"depickle-faults-{os.getuid()}-{sys.implementation.cache_tag}")


def some(everything: Iterable[T], *chosen: T) -> list[T]:
    """All cases with DEPICKLE_THOROUGH in the environment, else the chosen ones: a child costs a fifth of a second."""
    cases = list(everything)
    assert set(chosen) <= set(cases)
    return cases if os.environ.get("DEPICKLE_THOROUGH") else list(chosen)


@dataclass(frozen=True)
class Done:
    """How a run ended. `status` is -N after signal N, as subprocess has it."""

    status: int
    stdout: str
    stderr: str
    seconds: float

    @property
    def record(self) -> dict[str, Any]:
        return json.loads(self.stdout)


def command(*arguments: str | os.PathLike[str]) -> list[str]:
    return [sys.executable, "-m", "depickle", *map(os.fspath, arguments)]


def start(
    *arguments: str | os.PathLike[str], env: Mapping[str, str] | None = None, **options: Any
) -> subprocess.Popen[str]:
    """Start depickle, its output in pipes."""
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    mine = {"PYTHONPATH": PACKAGE, "PYTHONPYCACHEPREFIX": _CACHE, "PYTHONDONTWRITEBYTECODE": "", "PYTHONUNBUFFERED": ""}
    environment = os.environ | mine | dict(env or {})
    return subprocess.Popen(command(*arguments), text=True, env=environment, **(pipes | options))


def finish(process: subprocess.Popen[str], since: float | None = None) -> Done:
    """Wait for a child; the time counts from `since`."""
    begun = time.monotonic() if since is None else since
    try:
        stdout, stderr = process.communicate(timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise
    return Done(process.returncode, stdout or "", stderr or "", time.monotonic() - begun)


def run(*arguments: str | os.PathLike[str], **options: Any) -> Done:
    """Run depickle to its end."""
    return finish(start(*arguments, **options))


def convert(source: str | os.PathLike[str], out: str | os.PathLike[str], *more: str, **options: Any) -> Done:
    """Run `depickle convert`."""
    return run("convert", source, "--out-dir", out, *more, **options)


def digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() if sys.version_info >= (3, 11) else _digest(file)


def _digest(file: Any) -> str:
    found = hashlib.sha256()
    while block := file.read(1024 * 1024):
        found.update(block)
    return found.hexdigest()


def check_failed(done: Done, *statuses: int, says: str = "", folder: Path | None = None) -> None:
    """One line that says it, no traceback, the status, and nothing in the folder."""
    assert done.status in statuses, done
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1, done
    assert lines[0].startswith("depickle: "), done
    assert says in lines[0], done
    assert not done.stdout, done
    if folder is not None:
        assert os.listdir(folder) == []


def until(true: Callable[[], bool], seconds: float = 20.0) -> None:
    """Wait until something holds."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.002)


@dataclass(frozen=True)
class Hold:
    """A place at which the shim stops a child until it is let go."""

    folder: Path

    @classmethod
    def at(cls, folder: Path) -> Hold:
        folder.mkdir(parents=True, exist_ok=True)
        return cls(folder)

    @property
    def rule(self) -> str:
        return f"hold={self.folder}"

    def wait(self) -> None:
        until((self.folder / "reached").exists)

    def release(self) -> None:
        (self.folder / "go").touch()


@contextlib.contextmanager
def ended(process: subprocess.Popen[str]) -> Iterator[subprocess.Popen[str]]:
    """Whatever the test does, its child does not outlive it."""
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def no_privileges() -> None:
    """For preexec_fn: permissions bind the child even if it is root's (capabilities 1 to 3 override them)."""
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    for capability in (1, 2, 3) if os.geteuid() == 0 else ():
        if prctl(24, capability, 0, 0, 0) != 0:  # PR_CAPBSET_DROP
            raise OSError(ctypes.get_errno(), "cannot drop a capability")


def file_size_limit(nbytes: int) -> Callable[[], None]:
    """For preexec_fn: no file of the child grows over `nbytes`."""
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, nbytes))
