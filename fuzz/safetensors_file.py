"""The reader of safetensors files: the header, and the state dict that it describes."""

from __future__ import annotations

from depickle.header import read_header
from depickle.opening import open_output

from . import seeds
from .sources import Memory, on_disk


def seed() -> list[bytes]:
    return list(seeds.safetensors())


def target(data: bytes) -> object:
    header = read_header(Memory(data))
    assert sum(entry.range.length for entry in header.tensors.values()) + header.data_start == len(data)
    with on_disk(data, "fuzz.safetensors") as path, open_output(path) as output:
        return list(output.weights)
