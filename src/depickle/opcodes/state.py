"""The state of one run of the machine, which all handlers share: one stack, one list of marks, one memo.

A mark is an object on the stack whose index is noted: whoever pops it by accident is found out when the mark is
looked for, or at STOP.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final, TypeAlias

from ..errors import Malformed, Refused
from ..inert import Call, Extension, Global, Inert, PersistentId
from ..limits import Limits

Handler: TypeAlias = Callable[[int], int]
Table: TypeAlias = dict[int, Handler]
Unpack: TypeAlias = Callable[[bytes, int], tuple[int, ...]]


class Mark:
    """What MARK puts on the stack; there is one, and nothing else is it."""

    __slots__ = ()


class Stop(Exception):
    """STOP was reached; carries the position after it."""


MARK: Final = Mark()
UNSET: Final = object()  # a memo slot that was skipped
_PRIME: Final = 2**61 - 1  # the modulus of Python's hash of a number
_SAFE_KEYS: Final = frozenset({str, bool, type(None), bytes, Global, Call, PersistentId, Extension})
ATOMS: Final = frozenset({str, int, bool, float, type(None), bytes, Global, Call, PersistentId, Extension})

u16: Final = struct.Struct("<H").unpack_from
i32: Final = struct.Struct("<i").unpack_from
u32: Final = struct.Struct("<I").unpack_from
u64: Final = struct.Struct("<Q").unpack_from
f64: Final = struct.Struct(">d").unpack_from


class Heard:
    """What a run has mentioned so far; whoever passes one in still has it when the run ends in an error."""

    __slots__ = ("calls", "globals")

    def __init__(self) -> None:
        self.globals: list[Global] = []
        self.calls: list[Call] = []


class State:
    """The state that all handlers share."""

    __slots__ = (
        "calls",
        "data",
        "frame_end",
        "framed",
        "globals",
        "limits",
        "marks",
        "memo",
        "odd_keys",
        "pids",
        "stack",
    )

    def __init__(self, data: bytes, limits: Limits, heard: Heard | None = None) -> None:
        self.data = data
        self.limits = limits
        self.stack: list[Inert] = []
        self.marks: list[int] = []
        self.memo: list[Inert] = []
        self.globals: list[Global] = [] if heard is None else heard.globals
        self.calls: list[Call] | None = None if heard is None else heard.calls
        self.pids: list[PersistentId] = []
        self.frame_end = 0
        self.framed = False  # begins with protocol 4 or 5
        self.odd_keys = 0

    def piece(self, start: int, length: int, limit: int) -> bytes:
        """Take `length` bytes of the pickle at `start`."""
        if length < 0 or start + length > len(self.data):
            raise Malformed(f"an argument of {length} bytes does not fit into the pickle")
        if length > limit:
            raise Refused(f"an argument of {length} bytes is over the limit of {limit}")
        return self.data[start : start + length]

    def raw_line(self, start: int) -> tuple[bytes, int]:
        """Take an argument that ends with a newline."""
        end = self.data.find(b"\n", start, start + 65_536)
        if end < 0:
            raise Malformed("a text argument has no end")
        return self.data[start:end], end + 1

    def line(self, start: int) -> tuple[str, int]:
        """Take a text argument that ends with a newline."""
        raw, end = self.raw_line(start)
        return raw.decode("utf-8"), end

    def check_key(self, key: Inert) -> None:
        """Raise unless `key` can be a dictionary key or a set member here: an atom, or a flat tuple of atoms.

        Texts and bytes hash by a secret, integers below 2**61 by themselves. What else there is could be chosen to
        fall into one place of the table, so there may be only a few of it.
        """
        if type(key) in _SAFE_KEYS or (type(key) is int and -_PRIME < key < _PRIME):
            return
        if type(key) in (list, dict, set) or (type(key) is tuple and any(type(k) in (list, dict, set) for k in key)):
            raise Malformed(f"a {type(key).__name__} cannot be a key")
        if type(key) not in (int, float) and not (type(key) is tuple and all(type(item) in ATOMS for item in key)):
            raise Refused(f"a nested {type(key).__name__} as a key is not accepted")
        self.odd_keys += 1
        if self.odd_keys > self.limits.odd_keys:
            raise Refused(f"has more than {self.limits.odd_keys} keys that are large numbers, floats or tuples")

    def pop_to_mark(self) -> list[Inert]:
        """Take everything above the last mark, and the mark."""
        if not self.marks:
            raise Malformed("there is no MARK")
        stack = self.stack
        at = self.marks.pop()
        if at >= len(stack) or stack[at] is not MARK:
            raise Malformed("an opcode reached below its MARK")
        items = stack[at + 1 :]
        del stack[at:]
        return items


def integer(text: str, limits: Limits) -> int:
    """Read an integer that is written out, if it is not too long."""
    if len(text) > limits.integer_bytes:
        raise Refused(f"an integer of {len(text)} digits is over the limit of {limits.integer_bytes}")
    return int(text)


def u8(data: bytes, pos: int) -> tuple[int]:
    """One byte, in the shape of the other readers."""
    return (data[pos],)
