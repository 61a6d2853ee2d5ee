"""What can go wrong, as one tree.

    depickle.Error
    ├── Malformed   the bytes are not what their format says
    ├── Refused     well formed, and declined: a global, a class, a layout, a limit
    └── Mismatch    two things that must be equal are not; carries every finding

Every error knows where: in bytes land `file: record@offset`, in checkpoint land `file: weight.part`.
The place is data (`.file`, `.record`, `.offset`, `.path`); `str()` makes the sentence. Nothing but these, and
`OSError` for the disk, leaves the library on any input.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager


def show(text: str, limit: int = 200) -> str:
    """Make text from a file safe for one line of a terminal: escapes control characters and cuts it."""
    safe = "".join(c if c.isprintable() else c.encode("unicode_escape", "backslashreplace").decode() for c in text)
    return safe if len(safe) <= limit else safe[: limit - 3] + "..."


class Error(Exception):
    """Any defined failure; `str()` gives place, finding and expectation in one line."""

    def __init__(
        self,
        message: str,
        *,
        file: str | None = None,
        record: str | None = None,
        offset: int | None = None,
        path: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.file = file
        self.record = record
        self.offset = offset
        self.path = path

    def __str__(self) -> str:
        places = []
        if self.file is not None:
            places.append(self.file)
        if self.offset is not None:
            places.append(f"{self.record or 'byte'}@{self.offset}")
        elif self.record is not None:
            places.append(self.record)
        if self.path is not None:
            places.append(self.path)
        return show(": ".join([*places, self.message]), 2000)


class Malformed(Error):
    """The bytes are not what their format says they are."""


class Refused(Error):
    """Well formed, but declined; the message says by which rule."""


class Mismatch(Error):
    """Two things that have to be equal differ; `findings` lists every difference found."""

    def __init__(self, message: str, *, findings: Sequence[str] = (), file: str | None = None) -> None:
        super().__init__(message, file=file)
        self.findings = tuple(findings)


@contextmanager
def located(*, file: str | None = None, record: str | None = None, path: str | None = None) -> Iterator[None]:
    """Add a place to any Error that passes and does not know that part of its place yet."""
    try:
        yield
    except Error as error:
        error.file = error.file if error.file is not None else file
        error.record = error.record if error.record is not None else record
        error.path = error.path if error.path is not None else path
        raise
