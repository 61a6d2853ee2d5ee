"""A pickle machine that builds inert values and never resolves a name.

Bytes go in; out come the value that the pickle describes, made of plain containers, scalars and the classes of
`inert.py`, and a list of every global and every persistent id that it mentions. GLOBAL pushes a `Global`, REDUCE
pushes a `Call`: nothing is imported, called or set as an attribute, so there is nothing that a file could run. What
is acceptable is decided afterwards, on values, by others.

The machine is a loop over a table from opcode to handler; the handlers are in `opcodes`. Structural faults are
Malformed with the offset of their opcode; what is over a limit is Refused.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from itertools import repeat
from typing import Final

from .collector import paused
from .errors import Error, Malformed, Refused
from .inert import Global, Inert, PersistentId
from .limits import LIMITS, Limits
from .opcodes import GROUPS, MARK, Handler, Heard, State, Stop

__all__ = ["LIMITS", "Heard", "Limits", "Program", "run"]

_STEPS: Final = 65_536  # opcodes between two looks at the limits


@dataclass(frozen=True, slots=True)
class Program:
    """What one pickle says: its value, where it ends (the offset after STOP), and all that it mentions."""

    value: Inert
    end: int
    globals: tuple[Global, ...]
    persistent_ids: tuple[PersistentId, ...]


def run(data: bytes, start: int = 0, limits: Limits = LIMITS, heard: Heard | None = None) -> Program:
    """Read the pickle at `start` of `data`.

    Raises Malformed where the bytes are no pickle, Refused where they ask for more than `limits` allow; both with the
    offset. `heard` collects what is mentioned on the way, up to the error if there is one.
    """
    machine = State(data, limits, heard)
    table: list[Handler] = [_unknown(machine)] * 256
    for group in GROUPS:
        for code, handler in group(machine).items():
            table[code] = handler
    machine.framed = data[start : start + 1] == b"\x80" and data[start + 1 : start + 2] >= b"\x04"
    pos = start
    try:
        with paused():
            for _ in repeat(None, limits.opcodes // _STEPS + 1):
                for _ in repeat(None, 0 if machine.framed else _STEPS):
                    pos = table[data[pos]](pos + 1)
                for _ in repeat(None, _STEPS if machine.framed else 0):
                    began, pos = pos, table[data[pos]](pos + 1)
                    if began < machine.frame_end < pos:
                        what = f"an opcode reaches over the end of its frame at {machine.frame_end}"
                        raise Malformed(what, offset=began)
                _check_limits(machine)
        raise Refused(f"is over the limit of {limits.opcodes} opcodes")
    except Stop as stop:
        return _finish(machine, stop.args[0])
    except Error as error:
        error.offset = pos if error.offset is None else error.offset
        raise
    except (IndexError, struct.error) as error:
        what = "ends before STOP" if pos >= len(data) else f"opcode {data[pos : pos + 1]!r} lacks its operands"
        raise Malformed(what, offset=pos) from error
    except ValueError as error:  # UnicodeDecodeError among them
        raise Malformed(f"opcode {data[pos : pos + 1]!r} has a bad argument: {error}", offset=pos) from error


def _finish(machine: State, end: int) -> Program:
    if machine.marks or len(machine.stack) != 1 or machine.stack[0] is MARK:
        raise Malformed(f"STOP finds {len(machine.stack)} values on the stack, expected one", offset=end - 1)
    if machine.frame_end > end:
        raise Malformed(f"STOP lies inside a frame that ends at {machine.frame_end}", offset=end - 1)
    return Program(machine.stack[0], end, tuple(machine.globals), tuple(machine.pids))


def _check_limits(machine: State) -> None:
    if len(machine.stack) > machine.limits.stack:
        raise Refused(f"has more than {machine.limits.stack} values on the stack")
    value = machine.stack[-1] if machine.stack else None
    for _ in range(machine.limits.depth):
        if isinstance(value, (list, tuple)) and value:
            value = value[-1]
        elif isinstance(value, dict) and value:
            value = next(reversed(value.values()))
        else:
            return
    raise Refused(f"nests more than {machine.limits.depth} containers")


def _unknown(machine: State) -> Handler:
    def unknown(pos: int) -> int:
        raise Malformed(f"byte {machine.data[pos - 1]:#04x} is no pickle opcode")

    return unknown
