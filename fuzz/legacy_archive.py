"""The reader of the stream before torch 1.6."""

from __future__ import annotations

from depickle.archive.legacy import read_legacy

from . import seeds
from .sources import Memory


def seed() -> list[bytes]:
    return seeds.legacies()


def target(data: bytes) -> object:
    archive = read_legacy(Memory(data))
    assert all(0 <= record.range.offset <= record.range.end <= len(data) for record in archive.records)
    return archive
