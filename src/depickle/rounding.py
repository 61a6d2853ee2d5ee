"""Float8 rows with a scale each, rounded again to one for all: the one rule that loses something, never by default.

The new value of a code `q` of a row with the scale `s` is the float8 nearest to `q * s / whole`, ties to even; product
and quotient are rounded to float32, as torch computes `(q.float() * s / whole).to(q.dtype)`. `whole` is the largest of
the scales, so that nothing overflows. Infinities and NaNs keep their codes.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import pairwise
from typing import Final

_FORMS: Final[Mapping[str, tuple[int, int, int]]] = {  # bits of the mantissa, bias, finite codes of one sign
    "float8_e4m3fn": (3, 7, 0x7F),
    "float8_e5m2": (2, 15, 0x7C),
}


@cache
def finite_values(dtype: str) -> tuple[float, ...]:
    """The finite numbers of a float8 that are not negative, in the order of their codes."""
    bits, bias, count = _FORMS[dtype]
    found = []
    for code in range(count):
        exponent, mantissa = divmod(code, 1 << bits)
        lead = 1 << bits if exponent else 0
        found.append((lead + mantissa) * 2.0 ** (max(exponent, 1) - bias - bits))
    return tuple(found)


@cache
def _midpoints(dtype: str) -> tuple[float, ...]:
    values = finite_values(dtype)
    return tuple((low + high) / 2 for low, high in pairwise(values))


def requantize(rows: bytes | bytearray, width: int, scales: Sequence[float], whole: float, dtype: str) -> bytes:
    """Rows of `width` codes, of which the first have these scales, as codes that are all scaled by `whole`."""
    out = bytearray()
    for row, scale in zip(range(0, len(rows), width), scales):
        out += rows[row : row + width].translate(_table(scale, whole, dtype))
    return bytes(out)


def _table(scale: float, whole: float, dtype: str) -> bytes:
    """The new code of each of the 256."""
    values, middles = finite_values(dtype), _midpoints(dtype)
    codes = []
    for value in _singles([item / whole for item in _singles([number * scale for number in values])]):
        code = bisect_left(middles, value)
        codes.append(code + (code < len(middles) and middles[code] == value and code % 2))
    positive = bytes((*codes, *range(len(values), 128)))
    return positive + bytes(code | 128 for code in positive)


def _singles(numbers: Sequence[float]) -> tuple[float, ...]:
    """Rounded to float32."""
    return struct.unpack(f"<{len(numbers)}f", struct.pack(f"<{len(numbers)}f", *numbers))
