"""The pickle machine: each opcode, against the real pickle module on plain data, its limits, and where its errors
point."""

from __future__ import annotations

import gc
import pickle
import pickletools
import struct
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import assemble as a
from depickle.errors import Error, Malformed, Refused
from depickle.inert import Call, Extension, Global, PersistentId
from depickle.opcodes import GROUPS, State
from depickle.vm import LIMITS, Heard, run

G = a.GLOBAL("os", "system")
BIG = 2**70


def plain(value: Any) -> Any:
    """An inert value as plain tuples, so that it can be compared: every field but the offsets."""
    if type(value) is Global:
        return ("global", value.module, value.name)
    if type(value) is PersistentId:
        return ("pid", plain(value.pid))
    if type(value) is Extension:
        return ("ext", value.code)
    if type(value) is Call:
        rest = (value.kwargs, list(value.states), value.items, value.entries)
        return ("call", value.kind, plain(value.func), *map(plain, (value.args, *rest)))
    if type(value) in (list, tuple):
        return type(value)(map(plain, value))
    if type(value) is dict:
        return {plain(key): plain(item) for key, item in value.items()}
    return value


def made(
    kind: str, args: Any = (), kwargs: Any = None, states: Any = (), items: Any = None, entries: Any = None
) -> Any:
    """What `plain` shows of a call of os.system."""
    return ("call", kind, ("global", "os", "system"), args, kwargs, list(states), items, entries)


# opcodes, and the value that they leave behind
ROWS: list[tuple[str, bytes, Any]] = [
    ("MARK", a.asm(a.MARK, a.TUPLE), ()),
    ("STOP", a.NONE, None),
    ("POP", a.asm(a.BININT1(1), a.BININT1(2), a.POP), 1),
    ("POP mark", a.asm(a.BININT1(1), a.MARK, a.POP), 1),
    ("POP_MARK", a.asm(a.BININT1(1), a.MARK, a.NONE, a.NONE, a.POP_MARK), 1),
    ("DUP", a.asm(a.BININT1(7), a.DUP, a.TUPLE2), (7, 7)),
    ("NONE", a.NONE, None),
    ("NEWTRUE", a.NEWTRUE, True),
    ("NEWFALSE", a.NEWFALSE, False),
    ("INT", a.INT("-12"), -12),
    ("INT true", a.INT("01"), True),
    ("INT false", a.INT("00"), False),
    ("LONG", a.LONG(BIG), BIG),
    ("LONG without L", a.LONG("-5"), -5),
    ("FLOAT", a.FLOAT("-0.0"), -0.0),
    ("FLOAT nan", a.asm(a.FLOAT("1e400"), a.FLOAT("-inf"), a.TUPLE2), (float("inf"), float("-inf"))),
    ("BININT", a.BININT(-(2**31)), -(2**31)),
    ("BININT1", a.BININT1(255), 255),
    ("BININT2", a.BININT2(65535), 65535),
    ("LONG1", a.LONG1(-BIG), -BIG),
    ("LONG1 empty", a.LONG1(b""), 0),
    ("LONG1 sign", a.LONG1(b"\xff"), -1),
    ("LONG4", a.LONG4(BIG), BIG),
    ("BINFLOAT", a.BINFLOAT(-2.5), -2.5),
    ("STRING", a.STRING("'a\\n\\x41\\''"), "a\nA'"),
    ("STRING double", a.STRING('"b"'), "b"),
    ("UNICODE", a.UNICODE(b"a\\u00e4\\u000a\xe4\xc3\xa4"), "aä\näÃ¤"),
    ("SHORT_BINSTRING", a.SHORT_BINSTRING(b"a\xe4"), "aä"),
    ("BINSTRING", a.BINSTRING(b"a\xe4"), "aä"),
    ("SHORT_BINUNICODE", a.SHORT_BINUNICODE("ä"), "ä"),
    ("BINUNICODE", a.BINUNICODE("\U0001f600"), "\U0001f600"),
    ("BINUNICODE8", a.BINUNICODE8("x"), "x"),
    ("SHORT_BINBYTES", a.SHORT_BINBYTES(b"\0\xff"), b"\0\xff"),
    ("BINBYTES", a.BINBYTES(b"b"), b"b"),
    ("BINBYTES8", a.BINBYTES8(b"b"), b"b"),
    ("BYTEARRAY8", a.BYTEARRAY8(b"b"), b"b"),
    ("EMPTY_TUPLE", a.EMPTY_TUPLE, ()),
    ("TUPLE1", a.asm(a.NONE, a.TUPLE1), (None,)),
    ("TUPLE2", a.asm(a.BININT1(1), a.BININT1(2), a.TUPLE2), (1, 2)),
    ("TUPLE3", a.asm(a.BININT1(1), a.BININT1(2), a.BININT1(3), a.TUPLE3), (1, 2, 3)),
    ("TUPLE", a.asm(a.MARK, *map(a.BININT1, range(4)), a.TUPLE), (0, 1, 2, 3)),
    ("EMPTY_LIST", a.EMPTY_LIST, []),
    ("LIST", a.asm(a.MARK, a.BININT1(1), a.LIST), [1]),
    ("APPEND", a.asm(a.EMPTY_LIST, a.BININT1(1), a.APPEND, a.BININT1(2), a.APPEND), [1, 2]),
    ("APPENDS", a.asm(a.EMPTY_LIST, a.MARK, a.BININT1(1), a.BININT1(2), a.APPENDS), [1, 2]),
    ("EMPTY_DICT", a.EMPTY_DICT, {}),
    ("DICT", a.asm(a.MARK, a.string("k"), a.BININT1(1), a.DICT), {"k": 1}),
    ("SETITEM", a.asm(a.EMPTY_DICT, a.string("k"), a.BININT1(1), a.SETITEM), {"k": 1}),
    (
        "SETITEMS",
        a.asm(a.EMPTY_DICT, a.MARK, a.string("k"), a.BININT1(1), a.BININT1(3), a.NONE, a.SETITEMS),
        {"k": 1, 3: None},
    ),
    ("EMPTY_SET", a.EMPTY_SET, set()),
    ("ADDITEMS", a.asm(a.EMPTY_SET, a.MARK, a.BININT1(1), a.BININT1(1), a.ADDITEMS), {1}),
    ("FROZENSET", a.asm(a.MARK, a.BININT1(1), a.FROZENSET), frozenset({1})),
    ("PUT", a.asm(a.BININT1(5), a.PUT(0), a.POP, a.GET(0)), 5),
    ("GET", a.asm(a.BININT1(5), a.PUT(3), a.GET("3"), a.TUPLE2), (5, 5)),
    ("BINPUT", a.asm(a.BININT1(5), a.BINPUT(0), a.BINGET(0), a.TUPLE2), (5, 5)),
    (
        "BINGET",
        a.asm(a.BININT1(5), a.BINPUT(2), a.BININT1(6), a.BINPUT(2), a.TUPLE2, a.BINGET(2), a.TUPLE2),
        ((5, 6), 6),
    ),
    ("LONG_BINPUT", a.asm(a.BININT1(5), a.LONG_BINPUT(9), a.BINGET(9), a.TUPLE2), (5, 5)),
    ("LONG_BINGET", a.asm(a.BININT1(5), a.LONG_BINPUT(0), a.LONG_BINGET(0), a.TUPLE2), (5, 5)),
    ("MEMOIZE", a.asm(a.BININT1(5), a.MEMOIZE, a.BININT1(6), a.MEMOIZE, a.BINGET(0), a.TUPLE3), (5, 6, 5)),
    ("GLOBAL", G, ("global", "os", "system")),
    ("GLOBAL dotted", a.GLOBAL("a.b", "C.d"), ("global", "a.b", "C.d")),
    ("STACK_GLOBAL", a.asm(a.string("os"), a.string("system"), a.STACK_GLOBAL), ("global", "os", "system")),
    ("REDUCE", a.asm(G, a.value(("x",)), a.REDUCE), made("reduce", ("x",))),
    ("NEWOBJ", a.asm(G, a.EMPTY_TUPLE, a.NEWOBJ), made("new")),
    ("NEWOBJ_EX", a.asm(G, a.value((1,)), a.value({"k": 2}), a.NEWOBJ_EX), made("new", (1,), {"k": 2})),
    ("INST", a.asm(a.MARK, a.BININT1(1), a.INST("os", "system")), made("call", (1,))),
    ("OBJ", a.asm(a.MARK, G, a.BININT1(1), a.OBJ), made("call", (1,))),
    ("BUILD", a.asm(G, a.EMPTY_TUPLE, a.NEWOBJ, a.value({"s": 1}), a.BUILD), made("new", states=[{"s": 1}])),
    (
        "BUILD twice",
        a.asm(G, a.EMPTY_TUPLE, a.NEWOBJ, a.value(1), a.BUILD, a.value(2), a.BUILD),
        made("new", states=[1, 2]),
    ),
    (
        "APPENDS on a call",
        a.asm(G, a.EMPTY_TUPLE, a.REDUCE, a.MARK, a.value(1), a.APPENDS, a.value(2), a.APPEND),
        made("reduce", items=[1, 2]),
    ),
    (
        "SETITEM on a call",
        a.asm(G, a.EMPTY_TUPLE, a.REDUCE, a.value(1), a.value(2), a.SETITEM),
        made("reduce", entries={1: 2}),
    ),
    ("PERSID", a.PERSID("abc"), ("pid", "abc")),
    ("BINPERSID", a.asm(a.value(("storage", 1)), a.BINPERSID), ("pid", ("storage", 1))),
    ("EXT1", a.EXT1(7), ("ext", 7)),
    ("EXT2", a.EXT2(700), ("ext", 700)),
    ("EXT4", a.EXT4(-7), ("ext", -7)),
    ("PROTO", a.asm(a.PROTO(5), a.NONE), None),
    ("FRAME", a.PROTO(4) + a.framed(a.NONE, a.STOP), None),
]


def names_of(code: bytes) -> set[str]:
    """The opcodes in a pickle, by pickletools' names."""
    return {opcode.name for opcode, _, _ in pickletools.genops(code)}


def test_table_is_that_of_pickletools() -> None:
    """The machine knows each opcode that exists, once, and no other."""
    codes = [code for group in GROUPS for code in group(State(b"", LIMITS))]
    assert len(codes) == len(set(codes))
    assert {chr(code) for code in codes} == set(pickletools.code2op)


def test_rows_show_every_opcode() -> None:
    """Each opcode is in a row below, but for the two that are always refused."""
    shown = set().union(*(names_of(body + a.STOP) for _, body, _ in ROWS))
    assert shown | {"NEXT_BUFFER", "READONLY_BUFFER"} == {opcode.name for opcode in pickletools.opcodes}


@pytest.mark.parametrize(("body", "value"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS])
def test_opcode(body: bytes, value: Any) -> None:
    """The opcodes leave this value, of this type, and the machine says where the pickle ends."""
    data = body if body.endswith(a.STOP) and b"\x95" in body else body + a.STOP
    program = run(data + b"more")
    assert plain(program.value) == value
    assert repr(plain(program.value)) == repr(value)
    assert program.end == len(data)


def test_run_starts_where_it_is_told() -> None:
    """Offsets are those of the whole data, wherever the pickle begins."""
    data = b"12345" + a.asm(G, a.STOP) + b"rest"
    program = run(data, 5)
    assert (program.end, program.globals[0].offset) == (len(data) - 4, 5)
    with pytest.raises(Malformed) as raised:
        run(b"12345" + a.REDUCE, 5)
    assert raised.value.offset == 5


def test_everything_mentioned_is_listed_with_its_offset() -> None:
    """Globals and persistent ids are listed in order, thrown away or not, each use with its own offset."""
    body = a.asm(
        G,
        a.POP,
        a.GLOBAL("b", "c"),
        a.POP,
        a.string("os"),
        a.string("system"),
        a.STACK_GLOBAL,
        a.POP,
        a.PERSID("p"),
        a.STOP,
    )
    program = run(body)
    assert [(used.full, body[used.offset : used.offset + 1]) for used in program.globals] == [
        ("os.system", b"c"),
        ("b.c", b"c"),
        ("os.system", a.STACK_GLOBAL),
    ]
    assert [(used.pid, body[used.offset : used.offset + 1]) for used in program.persistent_ids] == [("p", b"P")]


def test_heard_keeps_what_came_before_an_error() -> None:
    """Whoever listens has the globals and calls up to the error."""
    heard = Heard()
    with pytest.raises(Malformed):
        run(a.asm(G, a.EMPTY_TUPLE, a.REDUCE, b"\xff"), heard=heard)
    assert [used.full for used in heard.globals] == ["os.system"]
    assert [call.name for call in heard.calls] == ["os.system"]


def test_shared_values_stay_shared() -> None:
    """The memo gives the same object, and a value may hold itself."""
    item = [1]
    shared = run(pickle.dumps([item, item])).value
    assert shared[0] is shared[1]
    own: list[Any] = []
    own.append(own)
    value = run(pickle.dumps(own)).value
    assert value[0] is value


# --- errors ---------------------------------------------------------------------------------------------------------

CALL = a.asm(G, a.EMPTY_TUPLE, a.REDUCE)
# opcodes, the offset of the one at fault, what the message says
FAULTS: list[tuple[str, bytes, int, str]] = [
    ("nothing", b"", 0, "ends before STOP"),
    ("no STOP", a.NONE, 1, "ends before STOP"),
    ("unknown byte", b"\xff.", 0, "0xff is no pickle opcode"),
    ("unknown later", a.asm(a.NONE, b"\x00"), 1, "0x00 is no pickle opcode"),
    ("two values", a.asm(a.NONE, a.NONE, a.STOP), 2, "STOP finds 2 values"),
    ("no value", a.STOP, 0, "STOP finds 0 values"),
    ("a mark left", a.asm(a.MARK, a.STOP), 1, "STOP finds 1 values"),
    ("a mark below", a.asm(a.MARK, a.NONE, a.STOP), 2, "STOP finds 2 values"),
    ("POP of nothing", a.asm(a.POP, a.NONE, a.STOP), 0, "lacks its operands"),
    ("no mark", a.asm(a.NONE, a.TUPLE, a.STOP), 1, "there is no MARK"),
    ("below its mark", a.asm(a.NONE, a.MARK, a.POP, a.TUPLE, a.STOP), 3, "no MARK"),
    ("through a mark", a.asm(a.EMPTY_LIST, a.MARK, a.APPEND, a.LIST, a.STOP), 3, "below its MARK"),
    ("DUP of a mark", a.asm(a.MARK, a.DUP, a.STOP), 1, "cannot be duplicated"),
    ("memo of a mark", a.asm(a.MARK, a.MEMOIZE, a.STOP), 1, "cannot be memoised"),
    ("memo of nothing", a.asm(a.BINPUT(0), a.STOP), 0, "lacks its operands"),
    ("GET of nothing", a.asm(a.BINGET(3), a.STOP), 0, "memo slot 3 was never written"),
    ("GET of a gap", a.asm(a.NONE, a.BINPUT(2), a.BINGET(1), a.STOP), 3, "memo slot 1 was never written"),
    ("LONG_BINGET", a.asm(a.LONG_BINGET(2**31), a.STOP), 0, "was never written"),
    ("GET of minus one", a.asm(a.NONE, a.BINPUT(0), a.GET(-1), a.STOP), 3, "memo slot -1 was never written"),
    ("PUT of minus one", a.asm(a.NONE, a.PUT(-1), a.STOP), 1, "cannot exist"),
    ("PUT far away", a.asm(a.NONE, a.LONG_BINPUT(2**31), a.STOP), 1, "cannot exist in a pickle of"),
    ("GET of words", a.asm(a.GET("x"), a.STOP), 0, "bad argument"),
    ("APPEND to None", a.asm(a.NONE, a.NONE, a.APPEND, a.STOP), 2, "APPENDS on a NoneType"),
    ("APPENDS to a dict", a.asm(a.EMPTY_DICT, a.MARK, a.NONE, a.APPENDS, a.STOP), 3, "APPENDS on a dict"),
    ("APPENDS to a global", a.asm(G, a.MARK, a.NONE, a.APPENDS, a.STOP), len(G) + 2, "APPENDS on a Global"),
    ("SETITEM of a list", a.asm(a.EMPTY_LIST, a.NONE, a.NONE, a.SETITEM, a.STOP), 3, "SETITEMS on a list"),
    ("odd SETITEMS", a.asm(a.EMPTY_DICT, a.MARK, a.NONE, a.SETITEMS, a.STOP), 3, "key without a value"),
    ("odd DICT", a.asm(a.MARK, a.NONE, a.DICT, a.STOP), 2, "key without a value"),
    ("list as key", a.asm(a.EMPTY_DICT, a.EMPTY_LIST, a.NONE, a.SETITEM, a.STOP), 3, "a list cannot be a key"),
    (
        "tuple of a list as key",
        a.asm(a.EMPTY_DICT, a.value(([],)), a.NONE, a.SETITEM, a.STOP),
        4,
        "a tuple cannot be a key",
    ),
    ("key twice", a.asm(a.EMPTY_DICT, a.MARK, *[a.string("k"), a.NONE] * 2, a.SETITEMS, a.STOP), 16, "keys twice"),
    ("key again", a.asm(a.value({"k": 1}), a.string("k"), a.NONE, a.SETITEM, a.STOP), 18, "keys twice"),
    (
        "one and True as keys",
        a.asm(a.EMPTY_DICT, a.value(1), a.NONE, a.SETITEM, a.NEWTRUE, a.NONE, a.SETITEM),
        7,
        "keys twice",
    ),
    ("ADDITEMS on a list", a.asm(a.EMPTY_LIST, a.MARK, a.ADDITEMS, a.STOP), 2, "ADDITEMS on a list"),
    ("list in a set", a.asm(a.EMPTY_SET, a.MARK, a.EMPTY_LIST, a.ADDITEMS, a.STOP), 3, "cannot be a key"),
    ("dict in a frozenset", a.asm(a.MARK, a.EMPTY_DICT, a.FROZENSET, a.STOP), 2, "cannot be a key"),
    ("REDUCE with a list", a.asm(G, a.EMPTY_LIST, a.REDUCE, a.STOP), len(G) + 1, "REDUCE with a list"),
    ("NEWOBJ with None", a.asm(G, a.NONE, a.NEWOBJ, a.STOP), len(G) + 1, "NEWOBJ with a NoneType"),
    ("NEWOBJ_EX", a.asm(G, a.EMPTY_TUPLE, a.NONE, a.NEWOBJ_EX, a.STOP), len(G) + 2, "needs a tuple and a dict"),
    ("BUILD on None", a.asm(a.NONE, a.NONE, a.BUILD, a.STOP), 2, "BUILD on a NoneType"),
    ("BUILD on a global", a.asm(G, a.NONE, a.BUILD, a.STOP), len(G) + 1, "BUILD on a Global"),
    ("BUILD on a list", a.asm(a.EMPTY_LIST, a.NONE, a.BUILD, a.STOP), 2, "BUILD on a list"),
    ("OBJ without a class", a.asm(a.MARK, a.OBJ, a.STOP), 1, "OBJ has no class to call"),
    ("STACK_GLOBAL of numbers", a.asm(a.NONE, a.NONE, a.STACK_GLOBAL, a.STOP), 2, "have to be text"),
    ("STACK_GLOBAL of bytes", a.asm(a.value(b"os"), a.value(b"system"), a.STACK_GLOBAL), 18, "have to be text"),
    ("GLOBAL without a name", b"cos\n", 0, "has no end"),
    ("GLOBAL not UTF-8", a.asm(a.GLOBAL(b"\xff", b"x"), a.STOP), 0, "bad argument"),
    ("PROTO 6", a.asm(a.PROTO(6), a.NONE, a.STOP), 0, "protocol 6 does not exist"),
    ("FRAME too long", a.asm(a.FRAME(100), a.NONE, a.STOP), 0, "a frame ends at 109, the pickle at 11"),
    ("FRAME huge", a.asm(a.FRAME(2**64 - 1), a.NONE, a.STOP), 0, "a frame ends at"),
    (
        "FRAME in a frame",
        a.asm(a.PROTO(4), a.FRAME(11), a.FRAME(1), a.NONE, a.STOP),
        11,
        "inside the one that ends at 22",
    ),
    ("FRAME without protocol 4", a.asm(a.FRAME(2), a.NONE, a.STOP), 0, "does not begin with protocol 4 or 5"),
    ("opcode over the end of a frame", a.asm(a.PROTO(4), a.FRAME(1), a.BININT2(7), a.STOP), 11, "reaches over the end"),
    ("STOP in a frame", a.asm(a.PROTO(4), a.FRAME(3), a.NONE, a.STOP, a.NONE), 12, "inside a frame that ends at 14"),
    ("cut BININT", a.BININT(1)[:3], 0, "lacks its operands"),
    ("cut BININT1", b"K", 0, "lacks its operands"),
    ("cut BINFLOAT", a.BINFLOAT(1.0)[:8], 0, "lacks its operands"),
    ("cut LONG1", a.LONG1(b"\1", 2), 0, "2 bytes does not fit"),
    ("negative LONG4", a.LONG4(b"", -1), 0, "-1 bytes does not fit"),
    ("cut BINUNICODE", a.BINUNICODE("ab", 3), 0, "3 bytes does not fit"),
    ("huge BINUNICODE8", a.BINUNICODE8("ab", 2**63), 0, "does not fit"),
    ("huge BINBYTES", a.BINBYTES(b"ab", 2**32 - 1), 0, "does not fit"),
    ("not UTF-8", a.asm(a.BINUNICODE(b"\xff"), a.STOP), 0, "bad argument"),
    ("lone surrogate", a.asm(a.BINUNICODE("\ud800"), a.STOP), 0, "bad argument"),
    ("INT of words", a.asm(a.INT("x"), a.STOP), 0, "bad argument"),
    ("FLOAT of words", a.asm(a.FLOAT("x"), a.STOP), 0, "bad argument"),
    ("STRING unquoted", a.asm(a.STRING("x"), a.STOP), 0, "not quoted"),
    ("STRING one quote", a.asm(a.STRING("'"), a.STOP), 0, "not quoted"),
    ("STRING bad escape", a.asm(a.STRING("'\\x'"), a.STOP), 0, "bad argument"),
    ("line without end", b"I" + b"1" * 10, 0, "has no end"),
]


@pytest.mark.parametrize(("code", "offset", "message"), [row[1:] for row in FAULTS], ids=[row[0] for row in FAULTS])
def test_fault_is_malformed_at_its_opcode(code: bytes, offset: int, message: str) -> None:
    """A structural fault is Malformed, points to its opcode, and says what was found."""
    with pytest.raises(Malformed) as raised:
        run(code)
    assert (raised.value.offset, message in raised.value.message) == (offset, True), str(raised.value)


@pytest.mark.parametrize(
    "code", [a.NEXT_BUFFER, a.asm(a.NONE, a.READONLY_BUFFER)], ids=["NEXT_BUFFER", "READONLY_BUFFER"]
)
def test_buffers_out_of_band_are_refused(code: bytes) -> None:
    """What lies outside the file cannot be read."""
    with pytest.raises(Refused, match="buffer outside the file") as raised:
        run(code + a.STOP)
    assert raised.value.offset == len(code) - 1


# --- limits ---------------------------------------------------------------------------------------------------------


def nested(depth: int, one: bytes = a.TUPLE1) -> bytes:
    """A value in `depth` containers, lying on the stack for long enough that the machine looks at it."""
    return a.asm(a.NONE, one * depth, *[a.DUP + a.POP] * 70_000, a.STOP)


LIMITED: list[tuple[str, dict[str, int], bytes, str]] = [
    ("opcodes", {"opcodes": 100}, a.asm(a.NONE, *[a.NONE + a.POP] * 100_000, a.STOP), "limit of 100 opcodes"),
    ("marks", {"marks": 5}, a.asm(*[a.MARK] * 6, *[a.TUPLE] * 6, a.STOP), "nests more than 5 marks"),
    ("stack", {"stack": 50}, a.asm(a.MARK, *[a.NONE] * 70_000, a.TUPLE, a.STOP), "more than 50 values on the stack"),
    ("text", {"text_bytes": 4}, a.asm(a.BINUNICODE("abcde"), a.STOP), "5 bytes is over the limit of 4"),
    ("bytes", {"text_bytes": 4}, a.asm(a.BINBYTES(b"abcde"), a.STOP), "5 bytes is over the limit of 4"),
    ("bytearray", {"text_bytes": 4}, a.asm(a.BYTEARRAY8(b"abcde"), a.STOP), "5 bytes is over the limit of 4"),
    ("LONG1", {"integer_bytes": 4}, a.asm(a.LONG1(b"abcde"), a.STOP), "5 bytes is over the limit of 4"),
    ("LONG4", {"integer_bytes": 4}, a.asm(a.LONG4(b"abcde"), a.STOP), "5 bytes is over the limit of 4"),
    ("LONG", {"integer_bytes": 4}, a.asm(a.LONG("12345"), a.STOP), "5 digits is over the limit of 4"),
    ("INT", {"integer_bytes": 4}, a.asm(a.INT("12345"), a.STOP), "5 digits is over the limit of 4"),
    ("depth", {"depth": 50}, nested(60), "nests more than 50 containers"),
]


@pytest.mark.parametrize(
    ("given_limits", "code", "message"), [row[1:] for row in LIMITED], ids=[row[0] for row in LIMITED]
)
def test_limit_is_refused(given_limits: dict[str, int], code: bytes, message: str) -> None:
    """A pickle that asks for more is Refused with the limit in the message; the default admits it."""
    with pytest.raises(Refused, match=message) as raised:
        run(code, 0, replace(LIMITS, **given_limits))
    assert raised.value.offset is not None
    assert run(code).end == len(code)


def test_deep_nesting_never_overflows() -> None:
    """A million containers in each other, of every kind, end in an error or a value and not in a RecursionError."""
    for one in (a.TUPLE1, a.asm(a.DUP, a.TUPLE2)):
        with pytest.raises(Refused, match="nests more than"):
            run(nested(1_000_000, one))


def test_twenty_million_opcodes_are_admitted() -> None:
    """The defaults let the largest known models through: their opcode count, by the limit and not by running them."""
    assert LIMITS.opcodes >= 20_000_000


def test_collector_is_as_it_was() -> None:
    """The garbage collector is paused while the machine runs, and on again afterwards, after an error too."""
    for code in (a.asm(a.NONE, a.STOP), b"\xff"):
        assert gc.isenabled()
        try:
            run(code)
        except Error:
            pass
        assert gc.isenabled()


# --- against the real module ----------------------------------------------------------------------------------------

NUMBERS = st.one_of(st.none(), st.booleans(), st.integers(), st.integers(-(2**600), 2**600), st.floats(), st.text())
KEYS = st.one_of(st.text(), st.integers(), st.none(), st.tuples(st.text(), st.integers()))


def data(protocol: int) -> st.SearchStrategy[Any]:
    """Plain data that a protocol writes without naming a global."""
    atoms = NUMBERS if protocol < 3 else st.one_of(NUMBERS, st.binary())
    keys = KEYS if protocol < 3 else st.one_of(KEYS, st.binary())
    if protocol >= 4:
        atoms = st.one_of(atoms, st.sets(keys, max_size=3), st.frozensets(keys, max_size=3))
    return st.recursive(
        atoms,
        lambda inner: st.one_of(
            st.lists(inner),
            st.dictionaries(keys, inner),
            st.tuples(inner),
            st.tuples(inner, inner),
            st.tuples(*[inner] * 4),
        ),
        max_leaves=30,
    )


def spelled(value: Any) -> Any:
    """A value in which nan equals nan, -0.0 is not 0.0, and 1 is not True."""
    if isinstance(value, float):
        return ("float", struct.pack(">d", value))
    if isinstance(value, (list, tuple)):
        return (type(value).__name__, [spelled(item) for item in value])
    if isinstance(value, dict):
        return ("dict", [(spelled(key), spelled(item)) for key, item in value.items()])
    if isinstance(value, (set, frozenset)):
        return (type(value).__name__, sorted(map(repr, map(spelled, value))))
    return (type(value).__name__, value)


@pytest.mark.property
@pytest.mark.parametrize("protocol", range(6))
def test_plain_data_is_what_pickle_reads(protocol: int) -> None:
    """What the real module writes in any protocol, the machine reads as the real module does."""

    @settings(deadline=None)
    @given(data(protocol), st.booleans())
    def check(value: Any, slow: bool) -> None:
        written = pickle._dumps(value, protocol) if slow else pickle.dumps(value, protocol)  # type: ignore[attr-defined]
        program = run(written)
        assert spelled(program.value) == spelled(pickle.loads(written))
        assert (program.end, program.globals, program.persistent_ids) == (len(written), (), ())

    check()


@pytest.mark.property
@given(data(4), st.data())
def test_any_prefix_is_malformed(value: Any, drawn: st.DataObject) -> None:
    """A pickle that was cut is Malformed, at an offset within it."""
    written = pickle.dumps(value, 4)
    cut = drawn.draw(st.integers(0, len(written) - 1))
    with pytest.raises(Malformed) as raised:
        run(written[:cut])
    assert raised.value.offset is not None
    assert 0 <= raised.value.offset <= cut


@pytest.mark.property
@settings(max_examples=500)
@given(
    st.one_of(
        st.binary(max_size=60),
        st.lists(st.sampled_from([body for _, body, _ in ROWS]), max_size=12).map(lambda parts: b"".join(parts) + b"."),
        st.tuples(data(4), st.integers(0, 10_000), st.integers(1, 255)).map(
            lambda drawn: flipped(pickle.dumps(drawn[0], 4), drawn[1], drawn[2])
        ),
    )
)
def test_any_bytes_give_a_value_or_an_error(code: bytes) -> None:
    """Random bytes, random opcodes and damaged pickles end in a Program or in an Error with an offset, and in nothing
    else."""
    offset = outcome(code)
    assert offset is not None
    assert 0 <= offset <= len(code)


def outcome(code: bytes) -> int | None:
    """Where a pickle ends, or the offset of its error."""
    try:
        return run(code).end
    except Error as error:
        return error.offset


def flipped(code: bytes, at: int, mask: int) -> bytes:
    """One byte changed."""
    at %= len(code)
    return code[:at] + bytes([code[at] ^ mask]) + code[at + 1 :]


@pytest.mark.property
@given(st.sampled_from([body for name, body, _ in ROWS if "FRAME" not in name]))
def test_globals_are_never_resolved(body: bytes) -> None:
    """Whatever opcodes run, os.system stays a name: nothing that the machine returns is callable."""
    value = run(body + a.STOP).value
    assert not callable(value)
