"""The closed table of what may happen to bytes on their way, besides being copied.

Each rule is a small pure function over a block of whole elements, so that a tensor of any size passes in constant
memory. `width` is the width of a component in bytes (of one float of a complex number). A conversion names its
rules in the plan and in the record; the verifier has a check of its own for each (`compare.py`) and never calls
these functions.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

Block: TypeAlias = "bytes | bytearray | memoryview"

_TYPECODES: Final = {array(code).itemsize: code for code in "BHIQ"}
_SWAPPED_NIBBLES: Final = bytes((value >> 4) | ((value & 15) << 4) for value in range(256))
_SIGN_FLIPPED: Final = bytes(value ^ 0x80 for value in range(256))


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


def nibble_swap(block: Block, width: int) -> bytes:
    """The two four-bit halves of every byte change places: torchao packed fp4 the other way round up to 0.14."""
    return bytes(block).translate(_SWAPPED_NIBBLES)


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
}
GATHER: Final = "gather"  # listed beside the rules in plans and records: the view was not contiguous


def apply(steps: tuple[Step, ...], block: Block) -> Block:
    """Run a block of whole elements through the rules, in order."""
    for step in steps:
        block = RULES[step.rule](block, step.width)
    return block
