"""Prove that an output is its source: by the output's own bytes, against the source's.

In: two checkpoints, the second indexed from the output file. Out: findings, none if they are equal. Compared are
the set of names, each weight's class, attributes and parts, each part's dtype and shape, every byte of every part,
tag and metadata, and for a file of our own the header's seal and canonical form. This module never sees a layout or
the writer. Where a part's bytes were changed on the way by a named rule, the rule's inverse, written here a second
time and in another way, leads back from the output's bytes to the source's.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Final, Literal, TypeAlias

from .checkpoint import Checkpoint
from .digest import Cancelled, Progress, Stop
from .errors import show
from .ranges import ByteRange, FileSource
from .tensors import TensorView
from .undo import ROWS, narrow_bfloat16, narrow_float16, unblock
from .weights import Part, Weight

BLOCK: Final = 512 * 1024
TILE: Final = 8 * 1024 * 1024
_MAX_FINDINGS: Final = 50

Pair: TypeAlias = tuple[str, Part, Part]  # label, the source's part, the output's


def compare_described(source: Checkpoint, output: Checkpoint) -> list[str]:
    """Differences in what the two say of themselves: names, classes, attributes, parts, dtypes, shapes, tag,
    metadata."""
    mine, theirs = source.weights.keys(), output.weights.keys()
    findings = [f"{show(name)}: is in the source, not in the output" for name in mine - theirs]
    findings += [f"{show(name)}: is in the output, not in the source" for name in theirs - mine]
    for name, weight in source.weights.items():
        if name in output.weights:
            findings.extend(f"{show(name)}: {text}" for text in _compare_weight(weight, output.weights[name]))
    for alias, origin in output.dropped.items():
        if source.ties.get(alias) != origin:
            findings.append(f"{show(alias)}: was left out as a copy of {show(origin)}, which it is not in the source")
    if output.format is not None or output.provenance is not None:  # another writer's file is held to its content
        if source.format != output.format:
            findings.append(f"format: the source has {source.format!r}, the output {output.format!r}")
        if _text(source.metadata) != _text(output.metadata):
            findings.append("metadata: differs")
        if list(source.weights) != list(output.weights) and not findings:
            findings.append("order of names: differs")
        if output.facts is not None and source.facts != output.facts:
            findings.append("int8_v1: the output records facts that are not the source's")
    return sorted(findings)[:_MAX_FINDINGS]


def _text(value: object) -> str:
    """JSON tells True from 1; Python does not."""
    return json.dumps(value, sort_keys=True)


def _compare_weight(source: Weight, output: Weight) -> list[str]:
    if (source.kind, source.origin) != (output.kind, output.origin):
        return [f"class is {source.kind or 'Tensor'}, the output has {output.kind or 'Tensor'}"]
    findings = []
    if source.origin is not None and (source.dtype, source.shape) != (output.dtype, output.shape):
        findings.append("dtype or shape of the whole weight differs")
    if repr(source.attributes) != repr(output.attributes) and _text(source.attributes) != _text(output.attributes):
        keys = [
            k
            for k in {**source.attributes, **output.attributes}
            if source.attributes.get(k) != output.attributes.get(k)
        ]
        findings.append(f"attributes differ: {', '.join(keys)}")
    findings += [
        text
        for name, part in source.parts.items()
        if isinstance(part, Weight)
        for text in _compare_nested(name, part, output.parts.get(name))
    ]
    mine, theirs = source.leaves(), output.leaves()
    if mine.keys() != theirs.keys():
        return [*findings, f"parts are {', '.join(mine)}, the output has {', '.join(theirs)}"]
    for part, leaf in mine.items():
        if (leaf.dtype, leaf.shape) != (theirs[part].dtype, theirs[part].shape):
            findings.append(
                f"{part or 'tensor'} is {leaf.dtype.name}{list(leaf.shape)}, the output has "
                f"{theirs[part].dtype.name}{list(theirs[part].shape)}"
            )
    return findings


def _compare_nested(name: str, source: Weight, output: object) -> list[str]:
    if not isinstance(output, Weight):
        return [f"{name} is a {source.kind}, the output has none"]
    if (source.dtype, source.shape) != (output.dtype, output.shape):
        return [f"{name} has another dtype or shape"]
    return [f"{name}: {text}" for text in _compare_weight(source, output)]


def pairs(source: Checkpoint, output: Checkpoint) -> list[Pair]:
    """Each part of the source beside its part of the output, in the output's order; ties that were left out with
    their origin's."""
    found = []
    for name, weight in source.weights.items():
        theirs = output.weights[name].leaves()
        found += [(f"{name}.{part}" if part else name, leaf, theirs[part]) for part, leaf in weight.leaves().items()]
    return sorted(found, key=lambda pair: pair[2].view.storage.offset)


def batches(found: Sequence[Pair], count: int = 16) -> list[Sequence[Pair]]:
    """Cut the pairs into about `count` runs of equal bytes, for as many jobs."""
    total = sum(pair[2].nbytes for pair in found)
    cut: list[Sequence[Pair]] = []
    start, size = 0, 0
    for i, pair in enumerate(found):
        size += pair[2].nbytes
        if size * count >= total or i == len(found) - 1:
            cut.append(found[start : i + 1])
            start, size = i + 1, 0
    return cut


class Comparer:
    """Compares pairs of parts, with two reused buffers. One comparer serves one thread."""

    def __init__(
        self, source: FileSource, output: FileSource, *, stop: Stop | None = None, progress: Progress | None = None
    ) -> None:
        self._source, self._output = source, output
        self._stop, self._progress = stop, progress
        self._mine, self._theirs = bytearray(BLOCK), bytearray(BLOCK)

    def findings(self, found: Sequence[Pair]) -> list[str]:
        """Differences in bytes, the first of each part."""
        findings = []
        for label, mine, theirs in found:
            at = self._first_difference(mine, theirs.view.range)
            if at is not None:
                findings.append(
                    f"{show(label)}: differs at byte {at} of {theirs.nbytes} (file byte {theirs.view.range.offset + at})"
                )
        return findings

    def _tick(self, count: int) -> None:
        if self._stop is not None and self._stop.is_set():
            raise Cancelled
        if self._progress is not None:
            self._progress(count)

    def _first_difference(self, mine: Part, where: ByteRange) -> int | None:
        view = mine.view
        changed = view.swapped or view.conj or view.neg or mine.rule in (*_UNDO, *_NARROW, "block-scales")
        if view.contiguous and not changed:
            return self._same(view.range, where)
        if mine.rule == "zero-to-int8":
            return self._zeros(view, where)
        if mine.rule == "narrow-to-int8":
            return self._narrowed(view, where)
        if mine.rule == "block-scales":
            return self._blocked(mine, where)
        if mine.rule in _NARROW:
            return self._widened(mine, where)
        if view.contiguous:
            return self._undone(mine, where)
        return self._scattered(mine, where)

    def _same(self, a: ByteRange, b: ByteRange) -> int | None:
        for at in range(0, b.length, BLOCK):
            count = min(BLOCK, b.length - at)
            mine, theirs = self._mine, self._theirs
            if count < BLOCK:
                mine, theirs = bytearray(count), bytearray(count)
            self._source.readinto(a.offset + at, memoryview(mine))
            self._output.readinto(b.offset + at, memoryview(theirs))
            if mine != theirs:
                return at + _first(mine, theirs)
            self._tick(count)
        return None

    def _zeros(self, view: TensorView, where: ByteRange) -> int | None:
        """Zero points that were cast: nothing but zero bytes on both sides."""
        for side, place in ((self._source, view.range if view.contiguous else view.storage), (self._output, where)):
            for at in range(0, place.length, BLOCK):
                block = side.read(place.offset + at, min(BLOCK, place.length - at))
                if block.count(0) != len(block):
                    return min(at, where.length)
                self._tick(0)
        self._tick(where.length)
        return None

    def _narrowed(self, view: TensorView, where: ByteRange) -> int | None:
        """Integers that were cast: each output byte, sign-extended, is the source's integer. Zero points are small."""
        width = view.dtype.itemsize
        order: Literal["big", "little"] = "big" if view.swapped else "little"
        for at in range(0, where.length, BLOCK):
            count = min(BLOCK, where.length - at)
            block = self._output.read(where.offset + at, count)
            wide = b"".join((byte - 256 if byte > 127 else byte).to_bytes(width, order, signed=True) for byte in block)
            expected = self._source.read(view.range.offset + at * width, count * width)
            if wide != expected:
                return at + _first(wide, expected) // width
            self._tick(count)
        return None

    def _blocked(self, mine: Part, where: ByteRange) -> int | None:
        """Scales in a tensor core's order: 128 rows at a time, back to rows; the padding is zero."""
        rows, width = mine.view.shape
        length = ROWS * 4 * -(-width // 4)
        for at, first in zip(range(0, where.length, length), range(0, rows, ROWS)):
            count = min(ROWS, rows - first)
            block = unblock(self._output.read(where.offset + at, length), count, width)
            if block is None or not self._holds(mine, block, first, count):
                return at
            self._tick(length)
        return None

    def _widened(self, mine: Part, where: ByteRange) -> int | None:
        """Numbers that became float32, back to what they were."""
        view = mine.view
        if not view.shape:
            view = replace(view, shape=(1,), stride=(1,))
        inner = view.numel // max(view.shape[0], 1)
        rows = max(BLOCK // (4 * max(inner, 1)), 1)
        for first in range(0, view.shape[0] if inner else 0, rows):
            count, at = min(rows, view.shape[0] - first), first * inner * 4
            block = _NARROW[mine.rule](self._output.read(where.offset + at, count * inner * 4))
            if block is None or not self._holds(replace(mine, view=view), block, first, count):
                return at
            self._tick(len(block))
        return None

    def _holds(self, mine: Part, block: bytes, first: int, count: int) -> bool:
        """Whether the source's rows from `first` on are the bytes of `block`."""
        view, undone = mine.view, _undo(mine, block)
        if view.contiguous:
            at = view.range.offset + first * (len(block) // count)
            return self._source.read(at, len(block)) == undone
        begin = view.offset + first * view.stride[0]
        return self._differs(mine, undone, (count, *view.shape[1:]), view.stride, begin) is None

    def _undone(self, mine: Part, where: ByteRange) -> int | None:
        place = mine.view.range
        for at in range(0, where.length, BLOCK):
            count = min(BLOCK, where.length - at)
            expected = self._source.read(place.offset + at, count)
            actual = _undo(mine, self._output.read(where.offset + at, count))
            if expected != actual:
                return at + _first(expected, actual)
            self._tick(count)
        return None

    def _scattered(self, mine: Part, where: ByteRange) -> int | None:
        """A view that is not contiguous: each tile of the output, undone, run by run against where its elements lie
        in the storage."""
        return self._slab(mine, where, 0, mine.view.shape, mine.view.stride, mine.view.offset)

    def _slab(
        self, mine: Part, where: ByteRange, at: int, shape: tuple[int, ...], stride: tuple[int, ...], offset: int
    ) -> int | None:
        inner = mine.view.dtype.itemsize
        for size in shape[1:]:
            inner *= size
        rows = max(TILE // inner, 1) if inner else 1
        for first in range(0, shape[0] if inner else 0, rows):
            count = min(rows, shape[0] - first)
            begin = offset + first * stride[0]
            if inner > TILE:
                found = self._slab(mine, where, at + first * inner, shape[1:], stride[1:], begin)
            else:
                found = self._tile(mine, where, at + first * inner, (count, *shape[1:]), stride, begin)
            if found is not None:
                return found
        return None

    def _tile(
        self, mine: Part, where: ByteRange, at: int, shape: tuple[int, ...], stride: tuple[int, ...], offset: int
    ) -> int | None:
        length = mine.view.dtype.itemsize
        for size in shape:
            length *= size
        found = self._differs(mine, _undo(mine, self._output.read(where.offset + at, length)), shape, stride, offset)
        self._tick(length)
        return None if found is None else at + found

    def _differs(
        self, mine: Part, out: bytes, shape: tuple[int, ...], stride: tuple[int, ...], offset: int
    ) -> int | None:
        """The first byte of `out`, undone, that is not the source's at these elements of its storage."""
        width = mine.view.dtype.itemsize
        elements = memoryview(out).cast(_CAST[width])
        steps = [1] * len(shape)
        for i in range(len(shape) - 2, -1, -1):
            steps[i] = steps[i + 1] * shape[i + 1]
        read = self._reader(mine.view, shape, stride, offset)
        along = min((i for i in range(len(shape)) if shape[i] > 1), key=lambda i: stride[i], default=0)
        for index in product(*(range(n) if i != along else (0,) for i, n in enumerate(shape))):
            start = sum(k * s for k, s in zip(index, steps))
            begin = sum(k * s for k, s in zip(index, stride))
            stop = start + (shape[along] - 1) * steps[along] + 1
            if elements[start : stop : steps[along]].tobytes() != read(begin, shape[along], stride[along]):
                return start * width
        return None

    def _reader(
        self, view: TensorView, shape: tuple[int, ...], stride: tuple[int, ...], offset: int
    ) -> Callable[[int, int, int], bytes]:
        """Read `count` elements, `step` apart, from `begin` of the tile: out of memory if the tile's span is small."""
        width = view.dtype.itemsize
        span = 1 + sum((n - 1) * s for n, s in zip(shape, stride))
        base = view.storage.offset + offset * width
        held = self._source.read(base, span * width) if span * width <= 2 * TILE else None

        def read(begin: int, count: int, step: int) -> bytes:
            if step == 0:
                return read(begin, 1, 1) * count
            if held is None and (count - 1) * step * width > TILE and count > 1:  # long steps: half and half
                return read(begin, count // 2, step) + read(begin + count // 2 * step, count - count // 2, step)
            stop = begin + (count - 1) * step + 1
            run = (
                held[begin * width : stop * width]
                if held is not None
                else self._source.read(base + begin * width, (stop - begin) * width)
            )
            return run if step == 1 else memoryview(run).cast(_CAST[width])[::step].tobytes()

        return read


_CAST: Final[dict[int, Literal["B", "H", "I", "Q"]]] = {1: "B", 2: "H", 4: "I", 8: "Q"}


def _first(a: bytes | bytearray, b: bytes | bytearray) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))


# --- the inverse of each rule, on a block of the output -------------------------------------------------------------


def _undo(mine: Part, block: bytes) -> bytes:
    """Lead a block of the output back to what the source must hold, last rule first."""
    view = mine.view
    if mine.rule in _UNDO:
        block = _UNDO[mine.rule](block)
    width = view.dtype.component
    if view.neg:
        block = _xor(block, bytes(width - 1) + b"\x80")
    if view.conj:
        block = _xor(block, bytes(2 * width - 1) + b"\x80")
    if view.swapped:
        turned = bytearray(len(block))
        for i in range(width):
            turned[i::width] = block[width - 1 - i :: width]
        block = bytes(turned)
    return block


def _xor(block: bytes, pattern: bytes) -> bytes:
    mask = int.from_bytes(pattern * (len(block) // len(pattern)), "little")
    return (int.from_bytes(block, "little") ^ mask).to_bytes(len(block), "little")


_TURNED: Final = bytes.fromhex("".join(f"{byte:02x}"[::-1] for byte in range(256)))  # two digits, two nibbles


def _turn_nibbles(block: bytes) -> bytes:
    return block.translate(_TURNED)


_UNDO: Final[Mapping[str, Callable[[bytes], bytes]]] = {
    "nibble-swap": _turn_nibbles,
    "zero-to-int8": bytes,
    "narrow-to-int8": bytes,
}
_NARROW: Final[Mapping[str, Callable[[bytes], bytes | None]]] = {
    "widen-bfloat16": narrow_bfloat16,
    "widen-float16": narrow_float16,
}
