"""Strided bytes: where the elements of a view lie, and gathering them in constant memory.

A `Strided` is geometry only: a storage's range, the width of an element, shape and strides in elements. `blocks`
yields its elements in row-major order, a tile at a time: a tile whose elements lie close together is read with one
call and rearranged in memory; otherwise each run along the smallest stride is read by itself. Memory is bounded by
`TILE`, whatever the view.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Final, Literal

from .ranges import ByteRange, Source

TILE: Final = 8 * 1024 * 1024  # bytes of output gathered at once: long enough runs for a transposed matrix
_DENSE: Final = 4  # a tile is read whole if it covers at least a quarter of its span
_FORMATS: Final[dict[int, Literal["B", "H", "I", "Q"]]] = {1: "B", 2: "H", 4: "I", 8: "Q"}


@dataclass(frozen=True, slots=True)
class Strided:
    """`shape` elements of `itemsize` bytes each, from element `offset` of `storage` on, `stride` elements apart."""

    storage: ByteRange
    itemsize: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int

    @property
    def length(self) -> int:
        """Bytes when laid out contiguously."""
        total = self.itemsize
        for size in self.shape:
            total *= size
        return total


def dims(view: Strided) -> list[tuple[int, int]]:
    """(size, stride) of each dimension that matters: ones dropped, neighbours that step alike merged."""
    merged: list[tuple[int, int]] = []
    for size, stride in zip(view.shape, view.stride):
        if size == 1:
            continue
        if merged and merged[-1][1] == size * stride:
            merged[-1] = (merged[-1][0] * size, stride)
        else:
            merged.append((size, stride))
    return merged


def tiles(view: Strided, limit: int) -> Iterator[tuple[int, list[tuple[int, int]]]]:
    """Cut a view into row-major tiles of at most `limit` bytes: (element offset of the first, dimensions)."""
    if view.length == 0:
        return
    outer = dims(view)
    inner: list[tuple[int, int]] = []
    room = max(limit // view.itemsize, 1)
    while outer and outer[-1][0] <= room:
        room //= outer[-1][0]
        inner.insert(0, outer.pop())
    if not outer:
        yield view.offset, inner
        return
    size, stride = outer.pop()
    for index in product(*(range(n) for n, _ in outer)):
        base = view.offset + sum(i * s for i, (_, s) in zip(index, outer))
        for start in range(0, size, room):
            yield base + start * stride, [(min(room, size - start), stride), *inner]


def blocks(view: Strided, source: Source, limit: int = TILE) -> Iterator[bytearray]:
    """Yield the elements' bytes in row-major order, in pieces of at most `limit` bytes."""
    for first, tile in tiles(view, limit):
        count, span = 1, 1
        for size, stride in tile:
            count *= size
            span += (size - 1) * stride
        out = bytearray(count * view.itemsize)
        if tile == [(count, 1)]:
            source.readinto(view.storage.offset + first * view.itemsize, memoryview(out))
        elif span <= count * _DENSE:
            memory = source.read(view.storage.offset + first * view.itemsize, span * view.itemsize)
            _place(memory, tile, _row_major(tile), out, 0, view.itemsize)
        else:
            _by_runs(view, source, first, tile, out, limit)
        yield out


def _row_major(tile: list[tuple[int, int]]) -> list[int]:
    """The steps, in elements, of each dimension in the tile as it is laid out."""
    steps: list[int] = []
    step = 1
    for size, _ in reversed(tile):
        steps.insert(0, step)
        step *= size
    return steps


def _by_runs(
    view: Strided, source: Source, first: int, tile: list[tuple[int, int]], out: bytearray, limit: int
) -> None:
    """Read each run along the dimension of the smallest stride by itself."""
    steps = _row_major(tile)
    along = min(range(len(tile)), key=lambda i: tile[i][1])
    size, stride = tile[along]
    others = [i for i in range(len(tile)) if i != along]
    piece = max(limit // max(stride * view.itemsize, 1), 1)  # elements that are read with one call
    for index in product(*(range(tile[i][0]) for i in others)):
        at = first + sum(k * tile[i][1] for k, i in zip(index, others))
        to = sum(k * steps[i] for k, i in zip(index, others))
        for start in range(0, size, piece):
            count = min(piece, size - start)
            offset = view.storage.offset + (at + start * stride) * view.itemsize
            run = source.read(offset, ((count - 1) * stride + 1) * view.itemsize)
            _place(run, [(count, stride)], [steps[along]], out, to + start * steps[along], view.itemsize)


def _place(
    memory: bytes, tile: list[tuple[int, int]], steps: list[int], out: bytearray, to: int, itemsize: int
) -> None:
    """Put the elements of `memory` (strides of `tile`) into `out` (strides `steps`, from element `to`)."""
    if not tile:
        out[to * itemsize : (to + 1) * itemsize] = memory[:itemsize]
        return
    source, target = memoryview(memory).cast(_FORMATS[itemsize]), memoryview(out).cast(_FORMATS[itemsize])
    along = max(range(len(tile)), key=lambda i: tile[i][0])
    size, stride = tile[along]
    step = steps[along]
    others = [i for i in range(len(tile)) if i != along]
    for index in product(*(range(tile[i][0]) for i in others)):
        at = sum(k * tile[i][1] for k, i in zip(index, others))
        start = to + sum(k * steps[i] for k, i in zip(index, others))
        stop = start + (size - 1) * step + 1
        if stride:
            target[start:stop:step] = source[at : at + (size - 1) * stride + 1 : stride]
        else:
            target[start:stop:step] = memoryview(source[at : at + 1].tobytes() * size).cast(_FORMATS[itemsize])
