"""Hold rows of float8 that were rounded again against their source: each new code must be a nearest one.

Written from the other side than the rule: nothing is rounded to a code here; of each pair of old and new codes in a
row it is asked whether the new one lies within half a step of the exact place, and is even where two do.
"""

from __future__ import annotations

import struct
from array import array
from dataclasses import dataclass
from typing import Final

from .digest import Cancelled, Progress, Stop
from .errors import show
from .ranges import FileSource
from .tensors import TensorView
from .weights import Part

_BLOCK: Final = 512 * 1024
_HALVES: Final = {"float32": "f", "float16": "e"}


@dataclass(frozen=True, slots=True)
class Rounding:
    """A weight of the source (its data and its scales), where its new codes lie in the output, and their scale."""

    label: str
    qdata: Part
    scale: Part
    offset: int
    whole: bytes


def rounding_findings(
    item: Rounding, source: FileSource, output: FileSource, progress: Progress, stop: Stop
) -> list[str]:
    """What is not as it should be of one weight; the first thing is enough."""
    rows, width = item.qdata.shape
    scales = scales_of(item.scale, source)
    (whole,) = struct.unpack("<f", item.whole)
    if whole != max(scales):
        return [f"{show(item.label)}: is scaled by {whole}, the largest of its scales is {max(scales)}"]
    view, count = item.qdata.view, max(_BLOCK // max(width, 1), 1)
    places = _Places(item.qdata.dtype.name)
    for first in range(0, rows, count):
        if stop.is_set():
            raise Cancelled
        some = range(first, min(first + count, rows))
        theirs = output.read(item.offset + first * width, len(some) * width)
        for row in some:
            mine = elements(view, row, source)
            new = theirs[(row - first) * width : (row - first + 1) * width]
            if not all(places.nearest(old, code, scales[row], whole) for old, code in set(zip(mine, new))):
                return [f"{show(item.label)}: row {row} is not rounded to the nearest"]
        progress(len(theirs))
    return []


def elements(view: TensorView, row: int, source: FileSource) -> bytes:
    """One row of a matrix of one-byte elements."""
    width, step = view.shape[1], view.stride[1]
    if width == 0:
        return b""
    begin = view.storage.offset + view.offset + row * view.stride[0]
    return source.read(begin, (width - 1) * step + 1)[:: max(step, 1)] if step else source.read(begin, 1) * width


def scales_of(part: Part, source: FileSource) -> array[float]:
    """A column of scales as float32."""
    view, width = part.view, part.view.dtype.itemsize
    found: array[float] = array("f")
    numel = view.numel
    step = max(view.stride[0], 1) if view.shape else 1
    for row in range(numel):
        raw = source.read(view.storage.offset + (view.offset + row * step) * width, width)
        raw = raw[::-1] if view.swapped else raw
        (number,) = struct.unpack(
            f"<{_HALVES.get(view.dtype.name, 'f')}", raw.rjust(4, b"\0") if view.dtype.name == "bfloat16" else raw
        )
        found.append(-number if view.neg else number)
    return found


class _Places:
    """Where the codes of a float8 lie on the line of numbers."""

    def __init__(self, dtype: str) -> None:
        bits, bias = (3, 7) if dtype == "float8_e4m3fn" else (2, 15)
        self._last = 0x7E if dtype == "float8_e4m3fn" else 0x7B
        self._values = [_value(code, bits, bias) for code in range(128)]

    def nearest(self, old: int, new: int, scale: float, whole: float) -> bool:
        """Whether `new` is what `old` becomes, as float32 computes its place."""
        old_code, code = old & 127, new & 127
        if (old ^ new) & 128 or (old_code > self._last) != (code > self._last):
            return False
        if old_code > self._last:
            return old == new
        (product,) = array("f", (self._values[old_code] * scale,))
        (place,) = array("f", (product / whole,))
        low = (self._values[code - 1] + self._values[code]) / 2 if code else -1.0
        high = (self._values[code] + self._values[code + 1]) / 2 if code < self._last else float("inf")
        return low < place < high or (place in (low, high) and code % 2 == 0)


def _value(code: int, bits: int, bias: int) -> float:
    exponent, mantissa = code >> bits, code & ((1 << bits) - 1)
    fraction = mantissa / (1 << bits)
    return float(fraction * 2.0 ** (1 - bias) if exponent == 0 else (1 + fraction) * 2.0 ** (exponent - bias))
