"""A pickle machine that builds inert values and never resolves a name.

Bytes go in; out come the value that the pickle describes, made of plain containers, scalars and the classes of `inert.py`, and a
list of every global and every persistent id that it mentions. GLOBAL pushes a `Global`, REDUCE pushes a `Call`: nothing is
imported, called or set as an attribute, so there is nothing that a file could run. What is acceptable is decided afterwards, on
values, by others.

The machine is a table from opcode to handler, and a handler is a closure over one stack, one list of marks and one memo; it gets
the position after its opcode and returns the position of the next. A mark is an object on the stack whose index is noted: whoever
pops it by accident is found out when the mark is looked for, or at STOP. Opcodes as in CPython's Lib/pickle.py, protocols 0 to 5.
Structural faults are Malformed with the offset of their opcode; limits are Refused.
"""

from __future__ import annotations

import gc
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import repeat
from typing import Final, TypeAlias

from .errors import Error, Malformed, Refused, show
from .inert import Call, Extension, Global, Inert, PersistentId

Handler: TypeAlias = Callable[[int], int]
Table: TypeAlias = dict[int, Handler]


@dataclass(frozen=True, slots=True)
class Limits:
    """What one pickle may ask for; a file that asks for more is refused before it gets it."""

    # 100,000 quantised weights take about 20 million opcodes, and are more than any model known.
    opcodes: int = 24_000_000
    # The pickler nests one mark a level of structure; Python's own recursion limit stops it near 1,000.
    marks: int = 1_000
    # The pickler batches by 1,000 items; only one huge tuple could need more.
    stack: int = 2_000_000
    # Opcodes are at least one byte; long names make it four or five on the average.
    pickle_bytes: int = 256 * 1024 * 1024
    # A name or a text in the metadata; a model card fits.
    text_bytes: int = 64 * 1024 * 1024
    # The longest integer in real files is the stream's magic number, ten bytes.
    integer_bytes: int = 512
    # Containers within containers, as far as they show at a checkpoint between opcodes.
    depth: int = 1_000


LIMITS: Final = Limits()


@dataclass(frozen=True, slots=True)
class Program:
    """What one pickle says: its value, where it ends (the offset after STOP), and all that it mentions."""

    value: Inert
    end: int
    globals: tuple[Global, ...]
    persistent_ids: tuple[PersistentId, ...]


class _Mark:
    __slots__ = ()


class _Stop(Exception):
    """STOP was reached; carries the position after it."""


_MARK: Final = _Mark()
_UNSET: Final = object()  # a memo slot that was skipped
_STEPS: Final = 65_536  # opcodes between two looks at the limits
_ATOMS: Final = frozenset({str, int, bool, float, type(None), bytes, Global, Call, PersistentId, Extension})

_u16: Final = struct.Struct("<H").unpack_from
_i32: Final = struct.Struct("<i").unpack_from
_u32: Final = struct.Struct("<I").unpack_from
_u64: Final = struct.Struct("<Q").unpack_from
_f64: Final = struct.Struct(">d").unpack_from


class _Machine:
    """The state that all handlers share."""

    __slots__ = ("data", "frame_end", "globals", "limits", "marks", "memo", "pids", "stack")

    def __init__(self, data: bytes, limits: Limits) -> None:
        self.data = data
        self.limits = limits
        self.stack: list[Inert] = []
        self.marks: list[int] = []
        self.memo: list[Inert] = []
        self.globals: list[Global] = []
        self.pids: list[PersistentId] = []
        self.frame_end = 0

    def piece(self, start: int, length: int, limit: int) -> bytes:
        """Take `length` bytes of the pickle at `start`."""
        if length < 0 or start + length > len(self.data):
            raise Malformed(f"an argument of {length} bytes does not fit into the pickle")
        if length > limit:
            raise Refused(f"an argument of {length} bytes is over the limit of {limit}")
        return self.data[start : start + length]

    def line(self, start: int) -> tuple[str, int]:
        """Take a text argument that ends with a newline."""
        end = self.data.find(b"\n", start, start + 65_536)
        if end < 0:
            raise Malformed("a text argument has no end")
        return self.data[start:end].decode("utf-8"), end + 1

    def pop_to_mark(self) -> list[Inert]:
        """Take everything above the last mark, and the mark."""
        if not self.marks:
            raise Malformed("there is no MARK")
        stack = self.stack
        at = self.marks.pop()
        if at >= len(stack) or stack[at] is not _MARK:
            raise Malformed("an opcode reached below its MARK")
        items = stack[at + 1 :]
        del stack[at:]
        return items


def run(data: bytes, start: int = 0, limits: Limits = LIMITS) -> Program:
    """Read the pickle at `start` of `data`.

    Raises Malformed where the bytes are no pickle, Refused where they ask for more than `limits` allow; both with the offset.
    """
    machine = _Machine(data, limits)
    table: list[Handler] = [_unknown(machine)] * 256
    for group in (_scalars, _texts, _containers, _marks_and_memo, _objects, _framing):
        for code, handler in group(machine).items():
            table[code] = handler
    pos = start
    try:
        with _collector_paused():
            for _ in repeat(None, limits.opcodes // _STEPS + 1):
                for _ in repeat(None, _STEPS):
                    pos = table[data[pos]](pos + 1)
                _check_limits(machine)
        raise Refused(f"is over the limit of {limits.opcodes} opcodes")
    except _Stop as stop:
        return _finish(machine, stop.args[0])
    except Error as error:
        error.offset = pos if error.offset is None else error.offset
        raise
    except (IndexError, struct.error) as error:
        what = "ends before STOP" if pos >= len(data) else f"opcode {data[pos : pos + 1]!r} lacks its operands"
        raise Malformed(what, offset=pos) from error
    except ValueError as error:  # UnicodeDecodeError among them
        raise Malformed(f"opcode {data[pos : pos + 1]!r} has a bad argument: {error}", offset=pos) from error


def _finish(machine: _Machine, end: int) -> Program:
    if machine.marks or len(machine.stack) != 1 or machine.stack[0] is _MARK:
        raise Malformed(f"STOP finds {len(machine.stack)} values on the stack, expected one", offset=end - 1)
    if machine.frame_end > end:
        raise Malformed(f"STOP lies inside a frame that ends at {machine.frame_end}", offset=end - 1)
    return Program(machine.stack[0], end, tuple(machine.globals), tuple(machine.pids))


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Millions of new containers, none of them garbage: the cyclic collector would only walk them again and again."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _check_limits(machine: _Machine) -> None:
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


def _unknown(machine: _Machine) -> Handler:
    def unknown(pos: int) -> int:
        raise Malformed(f"byte {machine.data[pos - 1]:#04x} is no pickle opcode")

    return unknown


def check_key(key: Inert) -> None:
    """Raise Malformed unless `key` can be a dictionary key or a set member here: an atom, or a flat tuple of atoms."""
    if type(key) in _ATOMS or (type(key) is tuple and all(type(item) in _ATOMS for item in key)):
        return
    raise Malformed(f"a {type(key).__name__} cannot be a key")


def _scalars(machine: _Machine) -> Table:
    data, stack, limits = machine.data, machine.stack, machine.limits

    def constant(value: Inert) -> Handler:
        def push(pos: int) -> int:
            stack.append(value)
            return pos

        return push

    def binint(pos: int) -> int:
        stack.append(_i32(data, pos)[0])
        return pos + 4

    def binint1(pos: int) -> int:
        stack.append(data[pos])
        return pos + 1

    def binint2(pos: int) -> int:
        stack.append(_u16(data, pos)[0])
        return pos + 2

    def long1(pos: int) -> int:
        length = data[pos]
        stack.append(int.from_bytes(machine.piece(pos + 1, length, limits.integer_bytes), "little", signed=True))
        return pos + 1 + length

    def long4(pos: int) -> int:
        length = _i32(data, pos)[0]
        stack.append(int.from_bytes(machine.piece(pos + 4, length, limits.integer_bytes), "little", signed=True))
        return pos + 4 + length

    def binfloat(pos: int) -> int:
        stack.append(_f64(data, pos)[0])
        return pos + 8

    def text_int(pos: int) -> int:
        text, end = machine.line(pos)
        stack.append({"00": False, "01": True}[text] if text in ("00", "01") else _integer(text, limits))
        return end

    def text_long(pos: int) -> int:
        text, end = machine.line(pos)
        stack.append(_integer(text.removesuffix("L"), limits))
        return end

    def text_float(pos: int) -> int:
        text, end = machine.line(pos)
        stack.append(float(text))
        return end

    return {
        ord("N"): constant(None),
        0x88: constant(True),
        0x89: constant(False),
        ord("J"): binint,
        ord("K"): binint1,
        ord("M"): binint2,
        0x8A: long1,
        0x8B: long4,
        ord("G"): binfloat,
        ord("I"): text_int,
        ord("L"): text_long,
        ord("F"): text_float,
    }


def _integer(text: str, limits: Limits) -> int:
    if len(text) > limits.integer_bytes:
        raise Refused(f"an integer of {len(text)} digits is over the limit of {limits.integer_bytes}")
    return int(text)


def _texts(machine: _Machine) -> Table:
    data, stack, limit = machine.data, machine.stack, machine.limits.text_bytes

    def sized(unpack: Callable[[bytes, int], tuple[int, ...]], width: int, make: Callable[[bytes], Inert]) -> Handler:
        def push(pos: int) -> int:
            length = unpack(data, pos)[0]
            pos += width
            stack.append(make(machine.piece(pos, length, limit)))
            return pos + length

        return push

    def binunicode(pos: int) -> int:
        end = pos + 4 + _u32(data, pos)[0]
        if end > len(data) or end - pos > limit:
            machine.piece(pos + 4, end - pos - 4, limit)
        stack.append(str(data[pos + 4 : end], "utf-8"))
        return end

    def unicode_line(pos: int) -> int:
        text, end = machine.line(pos)
        stack.append(text.encode("latin-1", "backslashreplace").decode("raw-unicode-escape"))
        return end

    def string_line(pos: int) -> int:
        text, end = machine.line(pos)
        if len(text) < 2 or text[0] != text[-1] or text[0] not in "\"'":
            raise Malformed("a STRING argument is not quoted")
        stack.append(text[1:-1].encode().decode("unicode_escape"))
        return end

    def one(source: bytes, pos: int) -> tuple[int]:
        return (source[pos],)

    utf8 = bytes.decode
    latin1 = lambda raw: raw.decode("latin-1")  # noqa: E731 - Python 2 strings; torch reads them so as well
    return {
        ord("X"): binunicode,
        0x8C: sized(one, 1, utf8),
        0x8D: sized(_u64, 8, utf8),
        ord("C"): sized(one, 1, bytes),
        ord("B"): sized(_u32, 4, bytes),
        0x8E: sized(_u64, 8, bytes),
        0x96: sized(_u64, 8, bytes),
        ord("U"): sized(one, 1, latin1),
        ord("T"): sized(_u32, 4, latin1),
        ord("V"): unicode_line,
        ord("S"): string_line,
    }


def _containers(machine: _Machine) -> Table:
    stack, pop_to_mark = machine.stack, machine.pop_to_mark

    def empty(make: Callable[[], Inert]) -> Handler:
        def push(pos: int) -> int:
            stack.append(make())
            return pos

        return push

    def tuple1(pos: int) -> int:
        stack[-1] = (stack[-1],)
        return pos

    def tuple2(pos: int) -> int:
        last = stack.pop()
        stack[-1] = (stack[-1], last)
        return pos

    def tuple3(pos: int) -> int:
        last = stack.pop()
        middle = stack.pop()
        stack[-1] = (stack[-1], middle, last)
        return pos

    def from_mark(make: Callable[[list[Inert]], Inert]) -> Handler:
        def push(pos: int) -> int:
            stack.append(make(pop_to_mark()))
            return pos

        return push

    def append(pos: int) -> int:
        value = stack.pop()
        _extend(stack[-1], [value])
        return pos

    def appends(pos: int) -> int:
        items = pop_to_mark()
        _extend(stack[-1], items)
        return pos

    def setitem(pos: int) -> int:
        value = stack.pop()
        key = stack.pop()
        _update(stack[-1], [key, value])
        return pos

    def setitems(pos: int) -> int:
        items = pop_to_mark()
        _update(stack[-1], items)
        return pos

    def additems(pos: int) -> int:
        items = pop_to_mark()
        if type(stack[-1]) is not set:
            raise Malformed(f"ADDITEMS on a {type(stack[-1]).__name__}")
        stack[-1].update(_members(items))
        return pos

    return {
        ord(")"): empty(tuple),
        ord("]"): empty(list),
        ord("}"): empty(dict),
        0x8F: empty(set),
        0x85: tuple1,
        0x86: tuple2,
        0x87: tuple3,
        ord("t"): from_mark(tuple),
        ord("l"): from_mark(list),
        ord("d"): from_mark(_dict),
        0x91: from_mark(lambda items: frozenset(_members(items))),
        ord("a"): append,
        ord("e"): appends,
        ord("s"): setitem,
        ord("u"): setitems,
        0x90: additems,
    }


def _members(items: list[Inert]) -> list[Inert]:
    for item in items:
        check_key(item)
    return items


def _dict(items: list[Inert]) -> dict[Inert, Inert]:
    made: dict[Inert, Inert] = {}
    _update(made, items)
    return made


def _extend(target: Inert, items: list[Inert]) -> None:
    if type(target) is list:
        target.extend(items)
    elif type(target) is Call:
        target.items = (target.items or []) + items
    else:
        raise Malformed(f"APPENDS on a {type(target).__name__}")


def _update(target: Inert, items: list[Inert]) -> None:
    if type(target) is Call:
        if target.entries is None:
            target.entries = {}
        target = target.entries
    elif type(target) is not dict:
        raise Malformed(f"SETITEMS on a {type(target).__name__}")
    keys = items[::2]
    if len(items) % 2:
        raise Malformed("SETITEMS has a key without a value")
    for key in keys:
        if type(key) is not str:
            check_key(key)
    before = len(target)
    target.update(zip(keys, items[1::2]))
    if len(target) != before + len(keys):
        raise Malformed(f"a dictionary is given one of its {len(target)} keys twice")


def _marks_and_memo(machine: _Machine) -> Table:
    data, stack, marks, memo = machine.data, machine.stack, machine.marks, machine.memo

    def mark(pos: int) -> int:
        if len(marks) >= machine.limits.marks:
            raise Refused(f"nests more than {machine.limits.marks} marks")
        marks.append(len(stack))
        stack.append(_MARK)
        return pos

    def pop(pos: int) -> int:
        if stack.pop() is _MARK:
            marks.pop()
        return pos

    def pop_mark(pos: int) -> int:
        machine.pop_to_mark()
        return pos

    def put(index: int) -> None:
        if stack[-1] is _MARK:
            raise Malformed("a MARK cannot be memoised")
        if index == len(memo):
            memo.append(stack[-1])
            return
        if index < 0 or index > len(data):
            raise Malformed(f"memo slot {index} cannot exist in a pickle of {len(data)} bytes")
        memo.extend([_UNSET] * (index + 1 - len(memo)))
        memo[index] = stack[-1]

    def get(index: int) -> None:
        if index < 0 or index >= len(memo) or memo[index] is _UNSET:
            raise Malformed(f"memo slot {index} was never written")
        stack.append(memo[index])

    def by_line(act: Callable[[int], None]) -> Handler:
        def handler(pos: int) -> int:
            text, end = machine.line(pos)
            act(_integer(text, machine.limits))
            return end

        return handler

    # The next four are a third of all opcodes of a checkpoint: the usual case is spelled out in place.
    def long_binput(pos: int) -> int:
        index = _u32(data, pos)[0]
        if index == len(memo) and stack[-1] is not _MARK:
            memo.append(stack[-1])
        else:
            put(index)
        return pos + 4

    def long_binget(pos: int) -> int:
        index = _u32(data, pos)[0]
        if index < len(memo) and memo[index] is not _UNSET:
            stack.append(memo[index])
        else:
            get(index)
        return pos + 4

    def binput(pos: int) -> int:
        put(data[pos])
        return pos + 1

    def binget(pos: int) -> int:
        value = memo[data[pos]] if data[pos] < len(memo) else _UNSET
        if value is _UNSET:
            get(data[pos])
        stack.append(value)
        return pos + 1

    def memoize(pos: int) -> int:
        put(len(memo))
        return pos

    def dup(pos: int) -> int:
        if stack[-1] is _MARK:
            raise Malformed("a MARK cannot be duplicated")
        stack.append(stack[-1])
        return pos

    return {
        ord("("): mark,
        ord("0"): pop,
        ord("1"): pop_mark,
        ord("2"): dup,
        ord("q"): binput,
        ord("r"): long_binput,
        ord("p"): by_line(put),
        ord("h"): binget,
        ord("j"): long_binget,
        ord("g"): by_line(get),
        0x94: memoize,
    }


def _objects(machine: _Machine) -> Table:
    data, stack = machine.data, machine.stack

    def name(module: Inert, attribute: Inert, offset: int) -> Global:
        if type(module) is not str or type(attribute) is not str:
            raise Malformed("a global's module and name have to be text")
        made = Global(module, attribute, offset)
        machine.globals.append(made)
        return made

    def global_(pos: int) -> int:
        module, middle = machine.line(pos)
        attribute, end = machine.line(middle)
        stack.append(name(module, attribute, pos - 1))
        return end

    def stack_global(pos: int) -> int:
        attribute = stack.pop()
        stack.append(name(stack.pop(), attribute, pos - 1))
        return pos

    def reduce(pos: int) -> int:
        args = stack.pop()
        if type(args) is not tuple:
            raise Malformed(f"REDUCE with a {type(args).__name__} for arguments")
        stack[-1] = Call("reduce", stack[-1], args, pos - 1)
        return pos

    def newobj(pos: int) -> int:
        args = stack.pop()
        if type(args) is not tuple:
            raise Malformed(f"NEWOBJ with a {type(args).__name__} for arguments")
        stack[-1] = Call("new", stack[-1], args, pos - 1)
        return pos

    def newobj_ex(pos: int) -> int:
        kwargs = stack.pop()
        args = stack.pop()
        if type(args) is not tuple or type(kwargs) is not dict:
            raise Malformed("NEWOBJ_EX needs a tuple and a dict")
        stack[-1] = Call("new", stack[-1], args, pos - 1, kwargs)
        return pos

    def inst(pos: int) -> int:
        module, middle = machine.line(pos)
        attribute, end = machine.line(middle)
        args = tuple(machine.pop_to_mark())
        stack.append(Call("call", name(module, attribute, pos - 1), args, pos - 1))
        return end

    def obj(pos: int) -> int:
        func, *args = machine.pop_to_mark()
        stack.append(Call("call", func, tuple(args), pos - 1))
        return pos

    def build(pos: int) -> int:
        state = stack.pop()
        if type(stack[-1]) is not Call:
            raise Malformed(f"BUILD on a {type(stack[-1]).__name__}")
        stack[-1].states += (state,)
        return pos

    def persistent(pid: Inert, offset: int) -> None:
        made = PersistentId(pid, offset)
        machine.pids.append(made)
        stack.append(made)

    def binpersid(pos: int) -> int:
        persistent(stack.pop(), pos - 1)
        return pos

    def persid(pos: int) -> int:
        text, end = machine.line(pos)
        persistent(text, pos - 1)
        return end

    def extension(unpack: Callable[[bytes, int], tuple[int, ...]], width: int) -> Handler:
        def push(pos: int) -> int:
            stack.append(Extension(unpack(data, pos)[0], pos - 1))
            return pos + width

        return push

    return {
        ord("c"): global_,
        0x93: stack_global,
        ord("R"): reduce,
        0x81: newobj,
        0x92: newobj_ex,
        ord("i"): inst,
        ord("o"): obj,
        ord("b"): build,
        ord("Q"): binpersid,
        ord("P"): persid,
        0x82: extension(lambda source, pos: (source[pos],), 1),
        0x83: extension(_u16, 2),
        0x84: extension(_i32, 4),
    }


def _framing(machine: _Machine) -> Table:
    data = machine.data

    def proto(pos: int) -> int:
        if data[pos] > 5:
            raise Malformed(f"pickle protocol {data[pos]} does not exist, 0 to 5 do")
        return pos + 1

    def frame(pos: int) -> int:
        end = pos + 8 + _u64(data, pos)[0]
        if end > len(data):
            raise Malformed(f"a frame ends at {end}, the pickle at {len(data)}")
        if pos - 1 < machine.frame_end:
            raise Malformed(f"a frame begins inside the one that ends at {machine.frame_end}")
        machine.frame_end = end
        return pos + 8

    def stop(pos: int) -> int:
        raise _Stop(pos)

    def buffer(pos: int) -> int:
        raise Refused("refers to a buffer outside the file (pickle protocol 5, out of band)")

    return {0x80: proto, 0x95: frame, ord("."): stop, 0x97: buffer, 0x98: buffer}
