"""The inverses of the rules that change how many bytes there are: from a block of the output to what its source holds.

Written a second time and in another way than the rules. Each returns None where the output's bytes are none that the
rule could have made: a widened number with more bits than the narrow one had, padding that is not zero.
"""

from __future__ import annotations

import struct
from array import array
from typing import Final

ROWS: Final = 128  # of scales in one block of a tensor core's order
_WORD: Final = next(code for code in "IL" if array(code).itemsize == 4)


def narrow_bfloat16(block: bytes) -> bytes | None:
    """float32 back to bfloat16: the lower halves are zero, the upper ones the numbers."""
    if block[0::4].strip(b"\0") or block[1::4].strip(b"\0"):
        return None
    out = bytearray(len(block) // 2)
    out[0::2], out[1::2] = block[2::4], block[3::4]
    return bytes(out)


def narrow_float16(block: bytes) -> bytes | None:
    """float32 back to float16; None if one of them is no float16."""
    halves = []
    for (single,) in struct.iter_unpack("<I", block):
        half = _half(single & 0x7FFFFFFF)
        if half is None:
            return None
        halves.append(half | single >> 31 << 15)
    return struct.pack(f"<{len(halves)}H", *halves)


def _half(single: int) -> int | None:
    """The bits of the float16 that equals a positive float32."""
    if single == 0:
        return 0
    exponent, mantissa = divmod(single, 1 << 23)
    if exponent == 255:
        half, lost = 0x7C00 | mantissa >> 13, mantissa % (1 << 13)
    elif exponent >= 113:
        half, lost = single - (112 << 23) >> 13, mantissa % (1 << 13)
        if half >= 0x7C00:
            return None
    elif exponent >= 103:
        half, lost = divmod(mantissa | 1 << 23, 1 << (126 - exponent))
    else:
        return None
    return None if lost else half


def unblock(tiles: bytes, rows: int, width: int) -> bytes | None:
    """Blocks of 128 rows by 4 columns, each 32 x 4 x 4, beside each other: back to `rows` rows of `width` scales."""
    fours = array(_WORD, tiles)  # a row's four scales in each block
    found = bytearray()
    for row in range(ROWS):
        line = fours[4 * (row % 32) + row // 32 :: ROWS].tobytes()
        padding = line[width:] if row < rows else line
        if padding.count(0) != len(padding):
            return None
        if row < rows:
            found += line[:width]
    return bytes(found)
