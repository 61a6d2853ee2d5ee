"""Bytes with an address: a range of a source, and a source that can be read at an offset.

Nothing here knows a format. A `Source` is opened read-only once and read by position (`pread`), so that several
threads can share it; it remembers size and modification time so that a change under the reader's feet is found out.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from typing import Protocol

from .errors import Malformed, Mismatch


@dataclass(frozen=True, slots=True)
class ByteRange:
    """`length` bytes at `offset` of the source with index `source` (0 unless a conversion has several)."""

    offset: int
    length: int
    source: int = 0

    def __post_init__(self) -> None:
        if self.offset < 0 or self.length < 0:
            raise Malformed(f"a byte range cannot have offset {self.offset} and length {self.length}")

    @property
    def end(self) -> int:
        """The offset after the last byte."""
        return self.offset + self.length


class Source(Protocol):
    """What every stage reads from: bytes at an offset, exactly as many as asked for."""

    @property
    def name(self) -> str:
        """The name that errors show."""

    @property
    def length(self) -> int:
        """Size in bytes."""

    def read(self, offset: int, length: int) -> bytes:
        """Return exactly `length` bytes at `offset`, or raise Malformed (past the end) or OSError."""

    def readinto(self, offset: int, buffer: memoryview) -> None:
        """Fill `buffer` from `offset`, or raise like `read`."""


class FileSource:
    """A regular file, open for reading by position.

    Raises OSError if it cannot be opened, Malformed if it is not a regular file.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        self.name = os.path.basename(self.path) or self.path
        self._fd = os.open(self.path, os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0))
        try:
            status = os.fstat(self._fd)
            if not stat.S_ISREG(status.st_mode):
                raise Malformed("is not a regular file", file=self.path)
        except BaseException:
            os.close(self._fd)
            raise
        self.length = status.st_size
        self._seen = (status.st_size, status.st_mtime_ns, status.st_ctime_ns)

    def __enter__(self) -> FileSource:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; closing twice is fine."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def fileno(self) -> int:
        """The file descriptor."""
        return self._fd

    def read(self, offset: int, length: int) -> bytes:
        """Return exactly `length` bytes at `offset`."""
        if offset < 0 or length < 0 or offset + length > self.length:
            raise Malformed(
                f"needs {length} bytes, the file ends at {self.length}", file=self.name, record="byte", offset=offset
            )
        try:
            data = os.pread(self._fd, length, offset)
        except OSError as error:
            raise OSError(error.errno, error.strerror, self.path) from error
        if len(data) == length:
            return data
        rest = bytearray(length)
        self.readinto(offset, memoryview(rest))
        return bytes(rest)

    def readinto(self, offset: int, buffer: memoryview) -> None:
        """Fill `buffer` from `offset`."""
        done = 0
        while done < len(buffer):
            try:
                count = os.preadv(self._fd, [buffer[done:]], offset + done)
            except OSError as error:  # a call on a descriptor does not know the file's name
                raise OSError(error.errno, error.strerror, self.path) from error
            if count == 0:
                raise Malformed(
                    f"ended at byte {offset + done} while it was read, expected {self.length} bytes", file=self.name
                )
            done += count

    def check_unchanged(self) -> None:
        """Raise Mismatch if the file was written to, cut or replaced in place since it was opened."""
        status = os.fstat(self._fd)
        if (status.st_size, status.st_mtime_ns, status.st_ctime_ns) != self._seen:
            raise Mismatch("changed while it was read", file=self.name)
