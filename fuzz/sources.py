"""Bytes as a source or as a file, without a disk."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from depickle import Malformed

_FOLDER = "/dev/shm" if os.path.isdir("/dev/shm") else None


class Memory:
    """A `depickle.ranges.Source` over bytes."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.name = "fuzz"
        self.length = len(data)

    def read(self, offset: int, length: int) -> bytes:
        if offset < 0 or length < 0 or offset + length > self.length:
            raise Malformed("past the end", file=self.name, offset=offset)
        return self._data[offset : offset + length]

    def readinto(self, offset: int, buffer: memoryview) -> None:
        buffer[:] = self.read(offset, len(buffer))


@contextmanager
def on_disk(data: bytes, name: str = "fuzz.pt") -> Iterator[Path]:
    """A file with these bytes, in a folder of its own."""
    with tempfile.TemporaryDirectory(dir=_FOLDER, prefix="depickle-fuzz-") as folder:
        path = Path(folder) / name
        path.write_bytes(data)
        yield path
