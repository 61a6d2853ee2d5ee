"""Opcodes that push one value: constants, numbers, texts, bytes."""

from __future__ import annotations

from collections.abc import Callable

from ..errors import Malformed
from ..inert import Inert
from .state import Handler, State, Table, Unpack, f64, i32, integer, u8, u16, u32, u64


def scalars(machine: State) -> Table:
    """None, booleans, integers and floats, binary and as text."""
    data, stack, limits = machine.data, machine.stack, machine.limits

    def constant(value: Inert) -> Handler:
        def push(pos: int) -> int:
            stack.append(value)
            return pos

        return push

    def binint(pos: int) -> int:
        stack.append(i32(data, pos)[0])
        return pos + 4

    def binint1(pos: int) -> int:
        stack.append(data[pos])
        return pos + 1

    def binint2(pos: int) -> int:
        stack.append(u16(data, pos)[0])
        return pos + 2

    def long1(pos: int) -> int:
        length: int = data[pos]
        stack.append(int.from_bytes(machine.piece(pos + 1, length, limits.integer_bytes), "little", signed=True))
        return pos + 1 + length

    def long4(pos: int) -> int:
        length: int = i32(data, pos)[0]
        stack.append(int.from_bytes(machine.piece(pos + 4, length, limits.integer_bytes), "little", signed=True))
        return pos + 4 + length

    def binfloat(pos: int) -> int:
        stack.append(f64(data, pos)[0])
        return pos + 8

    def text_int(pos: int) -> int:
        text, end = machine.line(pos)
        stack.append({"00": False, "01": True}[text] if text in ("00", "01") else integer(text, limits))
        return end

    def text_long(pos: int) -> int:
        text, end = machine.line(pos)
        stack.append(integer(text.removesuffix("L"), limits))
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


def texts(machine: State) -> Table:
    """Texts and bytes, by length or by line."""
    data, stack, limit = machine.data, machine.stack, machine.limits.text_bytes

    def sized(unpack: Unpack, width: int, make: Callable[[bytes], Inert]) -> Handler:
        def push(pos: int) -> int:
            length: int = unpack(data, pos)[0]
            pos += width
            stack.append(make(machine.piece(pos, length, limit)))
            return pos + length

        return push

    def binunicode(pos: int) -> int:
        end: int = pos + 4 + u32(data, pos)[0]
        if end > len(data) or end - pos > limit:
            machine.piece(pos + 4, end - pos - 4, limit)
        stack.append(str(data[pos + 4 : end], "utf-8"))
        return end

    def unicode_line(pos: int) -> int:
        raw, end = machine.raw_line(pos)
        stack.append(_whole(raw.decode("raw-unicode-escape")))
        return end

    def string_line(pos: int) -> int:
        raw, end = machine.raw_line(pos)
        if len(raw) < 2 or raw[:1] != raw[-1:] or raw[:1] not in (b"'", b'"'):
            raise Malformed("a STRING argument is not quoted")
        stack.append(_whole(raw[1:-1].decode("unicode_escape")))
        return end

    utf8 = bytes.decode
    latin1 = lambda raw: raw.decode("latin-1")  # noqa: E731 - Python 2 strings; torch reads them so as well
    return {
        ord("X"): binunicode,
        0x8C: sized(u8, 1, utf8),
        0x8D: sized(u64, 8, utf8),
        ord("C"): sized(u8, 1, bytes),
        ord("B"): sized(u32, 4, bytes),
        0x8E: sized(u64, 8, bytes),
        0x96: sized(u64, 8, bytes),
        ord("U"): sized(u8, 1, latin1),
        ord("T"): sized(u32, 4, latin1),
        ord("V"): unicode_line,
        ord("S"): string_line,
    }


def _whole(text: str) -> str:
    """Escapes can spell half a character (a lone surrogate), which no file can hold as UTF-8."""
    text.encode("utf-8")
    return text
