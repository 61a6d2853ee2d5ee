"""Opcodes that only move values: marks, the memo, POP and DUP."""

from __future__ import annotations

from collections.abc import Callable

from ..errors import Malformed, Refused
from .state import MARK, UNSET, Handler, State, Table, integer, u32


def marks(machine: State) -> Table:
    """MARK, POP, POP_MARK and DUP."""
    stack, marks = machine.stack, machine.marks

    def mark(pos: int) -> int:
        if len(marks) >= machine.limits.marks:
            raise Refused(f"nests more than {machine.limits.marks} marks")
        marks.append(len(stack))
        stack.append(MARK)
        return pos

    def pop(pos: int) -> int:
        if stack.pop() is MARK:
            marks.pop()
        return pos

    def pop_mark(pos: int) -> int:
        machine.pop_to_mark()
        return pos

    def dup(pos: int) -> int:
        if stack[-1] is MARK:
            raise Malformed("a MARK cannot be duplicated")
        stack.append(stack[-1])
        return pos

    return {ord("("): mark, ord("0"): pop, ord("1"): pop_mark, ord("2"): dup}


def memory(machine: State) -> Table:
    """The memo: PUT, GET and their kin."""
    data, stack, memo = machine.data, machine.stack, machine.memo

    def put(index: int) -> None:
        if stack[-1] is MARK:
            raise Malformed("a MARK cannot be memoised")
        if index == len(memo):
            memo.append(stack[-1])
            return
        if index < 0 or index > len(data):
            raise Malformed(f"memo slot {index} cannot exist in a pickle of {len(data)} bytes")
        memo.extend([UNSET] * (index + 1 - len(memo)))
        memo[index] = stack[-1]

    def get(index: int) -> None:
        if index < 0 or index >= len(memo) or memo[index] is UNSET:
            raise Malformed(f"memo slot {index} was never written")
        stack.append(memo[index])

    def by_line(act: Callable[[int], None]) -> Handler:
        def handler(pos: int) -> int:
            text, end = machine.line(pos)
            act(integer(text, machine.limits))
            return end

        return handler

    # The next four are a third of all opcodes of a checkpoint: the usual case is spelled out in place.
    def long_binput(pos: int) -> int:
        index = u32(data, pos)[0]
        if index == len(memo) and stack[-1] is not MARK:
            memo.append(stack[-1])
        else:
            put(index)
        return pos + 4

    def long_binget(pos: int) -> int:
        index = u32(data, pos)[0]
        if index < len(memo) and memo[index] is not UNSET:
            stack.append(memo[index])
        else:
            get(index)
        return pos + 4

    def binput(pos: int) -> int:
        put(data[pos])
        return pos + 1

    def binget(pos: int) -> int:
        value = memo[data[pos]] if data[pos] < len(memo) else UNSET
        if value is UNSET:
            get(data[pos])
        stack.append(value)
        return pos + 1

    def memoize(pos: int) -> int:
        put(len(memo))
        return pos

    return {
        ord("q"): binput,
        ord("r"): long_binput,
        ord("p"): by_line(put),
        ord("h"): binget,
        ord("j"): long_binget,
        ord("g"): by_line(get),
        0x94: memoize,
    }
