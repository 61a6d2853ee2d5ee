"""Opcodes that make and fill tuples, lists, dicts and sets."""

from __future__ import annotations

from collections.abc import Callable

from ..errors import Malformed
from ..inert import Call, Inert
from .state import Handler, State, Table


def containers(machine: State) -> Table:
    """Tuples, lists, dicts and sets, empty ones and those made from a mark, and what fills them."""
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
        _update(machine, stack[-1], [key, value])
        return pos

    def setitems(pos: int) -> int:
        items = pop_to_mark()
        _update(machine, stack[-1], items)
        return pos

    def additems(pos: int) -> int:
        items = pop_to_mark()
        if type(stack[-1]) is not set:
            raise Malformed(f"ADDITEMS on a {type(stack[-1]).__name__}")
        stack[-1].update(_members(machine, items))
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
        ord("d"): from_mark(lambda items: _dict(machine, items)),
        0x91: from_mark(lambda items: frozenset(_members(machine, items))),
        ord("a"): append,
        ord("e"): appends,
        ord("s"): setitem,
        ord("u"): setitems,
        0x90: additems,
    }


def _members(machine: State, items: list[Inert]) -> list[Inert]:
    for item in items:
        machine.check_key(item)
    return items


def _dict(machine: State, items: list[Inert]) -> dict[Inert, Inert]:
    made: dict[Inert, Inert] = {}
    _update(machine, made, items)
    return made


def _extend(target: Inert, items: list[Inert]) -> None:
    if type(target) is list:
        target.extend(items)
    elif type(target) is Call:
        target.items = target.items if target.items is not None else []
        target.items.extend(items)
    else:
        raise Malformed(f"APPENDS on a {type(target).__name__}")


def _update(machine: State, target: Inert, items: list[Inert]) -> None:
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
            machine.check_key(key)
    before = len(target)
    target.update(zip(keys, items[1::2]))
    if len(target) != before + len(keys):
        raise Malformed(f"a dictionary is given one of its {len(target)} keys twice")
