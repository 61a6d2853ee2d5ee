"""The reader of torch's zip container: records lie inside the file, apart from each other."""

from __future__ import annotations

from itertools import pairwise

from depickle.archive.zip import read_zip

from . import seeds
from .sources import Memory


def seed() -> list[bytes]:
    return seeds.zips()


def target(data: bytes) -> object:
    archive = read_zip(Memory(data))
    ranges = sorted((record.range.offset, record.range.end) for record in archive.records)
    assert all(0 <= start <= end <= len(data) for start, end in ranges)
    assert all(first[1] <= second[0] for first, second in pairwise(ranges))
    return archive
