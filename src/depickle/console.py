"""The two streams of the command line: results to stdout, everything else to stderr, and what a failure is worth.

All printing of depickle is here. Streams may be closed or full: whoever started us without one gets a stand-in, and a
result that nobody takes is an error of its own.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable
from typing import Final, NoReturn

from .errors import Error, Malformed, Mismatch, show

DONE: Final = 0
DECLINED: Final = 1
FAILED: Final = 2


class Unheard(Exception):
    """Standard output takes nothing more; the cause is an OSError."""


def open_streams() -> None:
    """Give a stream to whoever started us without one, so that no file of ours gets its number; text that a stream
    cannot spell is escaped."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    sys.stdout = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115 - for the life of the process
    sys.stderr = sys.stderr or open(2, "w", closefd=False)  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def say(text: str) -> None:
    """Print a result. Raises Unheard if nobody takes it; then nothing stays in a buffer to fail at the end."""
    try:
        print(text, flush=True)
    except OSError as error:
        _unheard(error)


def flush() -> None:
    """Pass on what is buffered. Raises Unheard if nobody takes it."""
    try:
        sys.stdout.flush()
    except OSError as error:
        _unheard(error)


def _unheard(error: OSError) -> NoReturn:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    error.filename = "standard output"
    raise Unheard from error


def tell(text: str) -> None:
    """Print a line to stderr; if nobody hears it, the exit status tells."""
    try:
        print(text, file=sys.stderr, flush=True)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())


def attempt(act: Callable[[], None]) -> int:
    """Run one piece of work; turn every defined failure into a line and a status."""
    from .options import UsageError  # late: --version and --help do without dataclasses

    try:
        act()
    except (Error, UsageError, OSError, MemoryError) as error:
        return complain(error)
    return DONE


def complain(error: BaseException | None) -> int:
    """One line on stderr, with further findings of a mismatch below it; return the exit status."""
    text = str(error)
    if isinstance(error, OSError):
        text = ": ".join(show(str(part)) for part in (error.filename, error.strerror or error) if part is not None)
    elif isinstance(error, MemoryError):
        text = "out of memory"
    tell(f"depickle: {show(text, 2000)}")
    if isinstance(error, Mismatch):
        for finding in error.findings[1:]:
            tell(f"  {show(finding, 2000)}")
    return DECLINED if isinstance(error, Error) and not isinstance(error, Malformed) else FAILED
