"""Opcodes that name, call and set state, none of which happens here; and the frame of a pickle, from PROTO to STOP."""

from __future__ import annotations

from typing import Final

from ..errors import Malformed, Refused
from ..inert import Call, Extension, Global, Inert, PersistentId
from .state import Handler, State, Stop, Table, Unpack, i32, u8, u16, u64

_MAX_STATES: Final = 4  # a real object is given its state once


def objects(machine: State) -> Table:
    """Globals and calls: all of it inert."""
    stack, calls = machine.stack, machine.calls

    def call(kind: str, func: Inert, args: tuple[Inert, ...], offset: int, kwargs: Inert = None) -> Call:
        made = Call(kind, func, args, offset, kwargs)
        if calls is not None:
            calls.append(made)
        return made

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
        stack[-1] = call("reduce", stack[-1], args, pos - 1)
        return pos

    def newobj(pos: int) -> int:
        args = stack.pop()
        if type(args) is not tuple:
            raise Malformed(f"NEWOBJ with a {type(args).__name__} for arguments")
        stack[-1] = call("new", stack[-1], args, pos - 1)
        return pos

    def newobj_ex(pos: int) -> int:
        kwargs = stack.pop()
        args = stack.pop()
        if type(args) is not tuple or type(kwargs) is not dict:
            raise Malformed("NEWOBJ_EX needs a tuple and a dict")
        stack[-1] = call("new", stack[-1], args, pos - 1, kwargs)
        return pos

    def inst(pos: int) -> int:
        module, middle = machine.line(pos)
        attribute, end = machine.line(middle)
        args = tuple(machine.pop_to_mark())
        stack.append(call("call", name(module, attribute, pos - 1), args, pos - 1))
        return end

    def obj(pos: int) -> int:
        items = machine.pop_to_mark()
        if not items:
            raise Malformed("OBJ has no class to call")
        func, *args = items
        stack.append(call("call", func, tuple(args), pos - 1))
        return pos

    return {
        ord("c"): global_,
        0x93: stack_global,
        ord("R"): reduce,
        0x81: newobj,
        0x92: newobj_ex,
        ord("i"): inst,
        ord("o"): obj,
    }


def state_and_references(machine: State) -> Table:
    """BUILD, persistent ids, and the numbers of copyreg's registry."""
    data, stack = machine.data, machine.stack

    def build(pos: int) -> int:
        state = stack.pop()
        if type(stack[-1]) is not Call:
            raise Malformed(f"BUILD on a {type(stack[-1]).__name__}")
        if len(stack[-1].states) == _MAX_STATES:
            raise Refused(f"BUILD sets a state more than {_MAX_STATES} times")
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

    def extension(unpack: Unpack, width: int) -> Handler:
        def push(pos: int) -> int:
            made = Extension(unpack(data, pos)[0], pos - 1)
            machine.globals.append(Global("copyreg", f"extension {made.code}", pos - 1))
            stack.append(made)
            return pos + width

        return push

    return {
        ord("b"): build,
        ord("Q"): binpersid,
        ord("P"): persid,
        0x82: extension(u8, 1),
        0x83: extension(u16, 2),
        0x84: extension(i32, 4),
    }


def framing(machine: State) -> Table:
    """PROTO, FRAME, STOP, and the buffers of protocol 5."""
    data = machine.data

    def proto(pos: int) -> int:
        if data[pos] > 5:
            raise Malformed(f"pickle protocol {data[pos]} does not exist, 0 to 5 do")
        return pos + 1

    def frame(pos: int) -> int:
        end = pos + 8 + u64(data, pos)[0]
        if end > len(data):
            raise Malformed(f"a frame ends at {end}, the pickle at {len(data)}")
        if not machine.framed:
            raise Malformed("a frame in a pickle that does not begin with protocol 4 or 5")
        if pos - 1 < machine.frame_end:
            raise Malformed(f"a frame begins inside the one that ends at {machine.frame_end}")
        machine.frame_end = end
        return pos + 8

    def stop(pos: int) -> int:
        raise Stop(pos)

    def buffer(pos: int) -> int:
        raise Refused("refers to a buffer outside the file (pickle protocol 5, out of band)")

    return {0x80: proto, 0x95: frame, ord("."): stop, 0x97: buffer, 0x98: buffer}
