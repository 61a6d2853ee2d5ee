"""Hold rows of float8 that were rounded again against their source: each new code must be the nearest one.

Written a second time and in another way than the rule (`rounding.py`): old and new values are walked along together,
from middle to middle, where the rule looks each one up.
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
_LARGEST: Final = 2.0**96  # of a scale; its products with float8 are finite
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
    largest = max(scales, default=0.0)
    if whole != largest or not 0 < whole < _LARGEST:
        return [f"{show(item.label)}: is scaled by {whole}, the largest of its scales is {largest}"]
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
            if mine.translate(places.codes(scales[row], whole)) != new:
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
        bits, bias, last = (3, 7, 0x7E) if dtype == "float8_e4m3fn" else (2, 15, 0x7B)
        self._values = [_value(code, bits, bias) for code in range(last + 1)]
        self._middles = [low + (high - low) / 2 for low, high in zip(self._values, self._values[1:])]
        self._middles.append(float("inf"))

    def codes(self, scale: float, whole: float) -> bytes:
        """What each of the 256 codes becomes: a walk along old and new values together, for both grow."""
        products = array("f", [value * scale for value in self._values])
        made = bytearray(range(256))  # what is no number stays
        new = 0
        for old, place in enumerate(array("f", [product / whole for product in products])):
            while place > self._middles[new] or (place == self._middles[new] and new % 2):
                new += 1
            made[old], made[old + 128] = new, new + 128
        return bytes(made)


def _value(code: int, bits: int, bias: int) -> float:
    exponent, mantissa = code >> bits, code & ((1 << bits) - 1)
    fraction = mantissa / (1 << bits)
    return float(fraction * 2.0 ** (1 - bias) if exponent == 0 else (1 + fraction) * 2.0 ** (exponent - bias))
