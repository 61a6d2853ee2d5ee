"""The closed table of what may happen to bytes on their way, besides being copied.

Each rule is a small pure function over a block of whole elements, so that a tensor of any size passes in constant
memory. `width` is the width of a component in bytes (of one float of a complex number), or of a row where a rule
takes rows. A conversion names its rules in the plan and in the record; the verifier has a check of its own for each
(`compare.py`, `undo.py`) and never calls these functions.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Final, TypeAlias

Block: TypeAlias = "bytes | bytearray | memoryview"

_TYPECODES: Final = {array(code).itemsize: code for code in "BHIQ"}
_SWAPPED_NIBBLES: Final = bytes((value >> 4) | ((value & 15) << 4) for value in range(256))
_SIGN_FLIPPED: Final = bytes(value ^ 0x80 for value in range(256))
_BLOCK_ROWS: Final = 128  # of scales, as tensor cores read them: 128 rows by 4 columns
_BLOCK_WORDS: Final = 128  # of four scales each, in one such block


@dataclass(frozen=True, slots=True)
class Step:
    """A named rule with its parameter."""

    rule: str
    width: int = 1


def byte_swap(block: Block, width: int) -> bytes:
    """Big-endian components to little-endian ones."""
    values = array(_TYPECODES[width])
    values.frombytes(block)
    values.byteswap()
    return values.tobytes()


def nibble_swap(block: Block, width: int) -> Block:
    """The two four-bit halves of every byte change places: torchao packed fp4 the other way round up to 0.14."""
    return (bytes(block) if isinstance(block, memoryview) else block).translate(_SWAPPED_NIBBLES)


def negate(block: Block, width: int) -> bytes:
    """Resolve torch's lazy negative bit: the sign of every component turns."""
    out = bytearray(block)
    out[width - 1 :: width] = out[width - 1 :: width].translate(_SIGN_FLIPPED)
    return bytes(out)


def conjugate(block: Block, width: int) -> bytes:
    """Resolve torch's lazy conjugate bit: the sign of every imaginary component turns."""
    out = bytearray(block)
    out[2 * width - 1 :: 2 * width] = out[2 * width - 1 :: 2 * width].translate(_SIGN_FLIPPED)
    return bytes(out)


def zero_to_int8(block: Block, width: int) -> bytes:
    """An all-zero tensor of another type, as int8; that it is all zero was read before it was planned."""
    return bytes(len(block) // width)


def narrow_to_int8(block: Block, width: int) -> bytes:
    """Little-endian integers that int8 holds (as was read before it was planned), as int8: their lowest bytes."""
    return bytes(block[::width])


def widen_bfloat16(block: Block, width: int) -> bytes:
    """Little-endian bfloat16 as float32: the upper halves of the same numbers."""
    out = bytearray(2 * len(block))
    out[2::4], out[3::4] = block[::2], block[1::2]
    return bytes(out)


def widen_float16(block: Block, width: int) -> bytes:
    """Little-endian float16 as float32, exactly; a NaN keeps its bits."""
    halves = array("H", bytes(block))
    if sys.byteorder == "big":
        halves.byteswap()
    singles = array(_TYPECODES[4], map(_singles().__getitem__, halves))
    if sys.byteorder == "big":
        singles.byteswap()
    return singles.tobytes()


@cache
def _singles() -> list[int]:
    """The bits of the float32 that equals each float16: rebias the exponent, normalise what is subnormal."""
    positive = []
    for half in range(0x8000):
        exponent, mantissa = half >> 10, half & 0x3FF
        if exponent == 0 and mantissa:
            shift = 11 - mantissa.bit_length()
            exponent, mantissa = 1 - shift, mantissa << shift & 0x3FF
        elif exponent == 0:
            exponent = -112
        elif exponent == 31:
            exponent = 143
        positive.append((exponent + 112) << 23 | mantissa << 13)
    return positive + [single | 0x80000000 for single in positive]


def block_scales(block: Block, width: int) -> bytes:
    """Rows of `width` one-byte scales as tensor cores read them: in blocks of 128 rows by 4 columns, each stored as
    32 x 4 x 4, what is beyond the last row and column zero. Takes whole blocks of rows, but for the last.

    The layout is cuBLAS's "1D block scaling factors layout", torchao's and comfy-kitchen's `to_blocked`.
    """
    columns = -(-width // 4)
    out = bytearray()
    for first in range(0, len(block), _BLOCK_ROWS * width):
        rows = bytes(block[first : first + _BLOCK_ROWS * width])
        tiles = bytearray(4 * _BLOCK_WORDS * columns)
        words = memoryview(tiles).cast("I")
        for row in range(len(rows) // width):
            line = rows[row * width : (row + 1) * width].ljust(4 * columns, b"\0")
            words[row % 32 * 4 + row // 32 :: _BLOCK_WORDS] = memoryview(line).cast("I")
        out += tiles
    return bytes(out)


def same(block: Block, width: int) -> Block:
    """The same bytes under another shape or dtype."""
    return block


RULES: Final[dict[str, Callable[[Block, int], Block]]] = {
    "reshape": same,
    "relabel": same,
    "byte-swap": byte_swap,
    "conjugate": conjugate,
    "negate": negate,
    "nibble-swap": nibble_swap,
    "zero-to-int8": zero_to_int8,
    "narrow-to-int8": narrow_to_int8,
    "widen-bfloat16": widen_bfloat16,
    "widen-float16": widen_float16,
    "block-scales": block_scales,
}
GATHER: Final = "gather"  # listed beside the rules in plans and records: the view was not contiguous


def unit(steps: tuple[Step, ...]) -> int:
    """How many bytes a block must be a multiple of (but for the last) for these rules."""
    return max((_BLOCK_ROWS * step.width for step in steps if step.rule == "block-scales"), default=1)


def apply(steps: tuple[Step, ...], block: Block) -> Block:
    """Run a block of whole elements through the rules, in order."""
    for step in steps:
        block = RULES[step.rule](block, step.width)
    return block
