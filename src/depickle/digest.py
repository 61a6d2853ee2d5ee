"""One pass over a source: its SHA-256 and the CRC-32 of each of its records.

The bytes pass in file order through one small buffer that stays in the processor's cache; each block is hashed and,
where it belongs to a record with a CRC, summed. Nothing is kept. A record whose sum differs from the archive's is
Malformed and named.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable, Iterable
from typing import Final, Protocol

from .archive import Record
from .errors import Malformed
from .ranges import FileSource

BLOCK: Final = 256 * 1024
Progress = Callable[[int], None]


class Stop(Protocol):
    """Something that says whether work shall end: a threading.Event, or `parallel.Linked`."""

    def is_set(self) -> bool:
        """Whether to stop."""


class Cancelled(Exception):
    """Another part of the same job failed first; its error is the one to show."""


def digest_source(
    source: FileSource,
    records: Iterable[Record] = (),
    *,
    hashing: bool = True,
    stop: Stop | None = None,
    progress: Progress | None = None,
) -> str | None:
    """Return the SHA-256 of the whole file (None with `hashing=False`), after checking every record's CRC-32."""
    ordered = sorted((r for r in records if r.crc32 is not None), key=lambda r: r.range.offset)
    sums = _Sums(source.name, ordered)
    digest = hashlib.sha256()
    buffer = memoryview(bytearray(BLOCK))
    at = 0
    while at < source.length:
        if stop is not None and stop.is_set():
            raise Cancelled
        block = buffer[: min(BLOCK, source.length - at)]
        source.readinto(at, block)
        if hashing:
            digest.update(block)
        sums.feed(at, block)
        at += len(block)
        if progress is not None:
            progress(len(block))
    return digest.hexdigest() if hashing else None


class _Sums:
    """CRC-32 of records that lie one after the other, fed with blocks in file order."""

    def __init__(self, file: str, records: list[Record]) -> None:
        self._file = file
        self._records = records
        self._next = 0
        self._crc = 0

    def feed(self, at: int, block: memoryview) -> None:
        end = at + len(block)
        while self._next < len(self._records):
            record = self._records[self._next]
            first, last = max(record.range.offset, at), min(record.range.end, end)
            if first < last:
                self._crc = zlib.crc32(block[first - at : last - at], self._crc)
            if record.range.end > end:
                return
            if self._crc != record.crc32:
                raise Malformed(
                    f"the CRC-32 of its bytes is {self._crc:08x}, the archive says {record.crc32:08x}",
                    file=self._file,
                    record=record.name,
                )
            self._crc = 0
            self._next += 1
