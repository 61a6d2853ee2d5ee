"""Lines 18, 19, 24, 25 and 35: small files that ask for much, each answered within 1 s and 100 MiB."""

from __future__ import annotations

import zlib
from collections.abc import Callable

import harness
import pytest
from harness import EITHER, HARMLESS, MALFORMED, REFUSED, attack, case

from assemble import (
    ADDITEMS,
    APPEND,
    BINGET,
    BINPUT,
    BUILD,
    DUP,
    EMPTY_DICT,
    EMPTY_LIST,
    EMPTY_SET,
    EMPTY_TUPLE,
    FROZENSET,
    GLOBAL,
    LONG1,
    LONG_BINGET,
    MARK,
    NONE,
    POP,
    REDUCE,
    SETITEM,
    SETITEMS,
    TUPLE,
    TUPLE1,
    TUPLE2,
    Code,
    Record,
    asm,
    call,
    checkpoint,
    integer,
    legacy_file,
    legacy_storage,
    program,
    safetensors_file,
    state_dict,
    string,
    tensor,
    torch_file,
    torch_records,
    value,
    zip64_extra,
    zip_file,
)  # fmt: skip

TE = "unsloth_prequant_text_encoder_state_dict_v1"
_CALL_OF_0 = asm(GLOBAL("collections", "OrderedDict"), BINGET(0), REDUCE)
ZERO_HASH = 2**61 - 1  # every multiple of it hashes to 0 in CPython


def file(*body: bytes) -> bytes:
    return torch_file(program(asm(*body)))


def inside(*body: bytes) -> dict[str, bytes]:
    """The same value in the places where a reader would walk it."""
    item = asm(*body)
    return {
        "top": torch_file(program(item)),
        "weight": torch_file(state_dict({"good": tensor(), "bad": item})),
        "metadata": torch_file(checkpoint(TE, {"x": item}, {"a.w": tensor()})),
        "shape": torch_file(state_dict({"w": tensor(shape=item, stride=(1,))})),
        "hooks": torch_file(state_dict({"w": tensor(hooks=item)})),
        "legacy": legacy_file(program(item)),
    }


@attack(18, "fickling's expansion analysis ('billion laughs')", EITHER)
def billion_laughs():
    """A value that refers twice to the one before it, a hundred deep: 2**100 leaves in 300 bytes."""
    yield from inside(EMPTY_TUPLE, *[asm(DUP, TUPLE2)] * 100).items()
    lists = asm(value(["x"]), *[asm(BINPUT(0), POP, EMPTY_LIST, MARK, BINGET(0), BINGET(0), b"e")] * 100)
    yield from ((f"list-{label}", data) for label, data in inside(lists).items())
    dicts = asm(
        value({"x": 1}),
        *[asm(BINPUT(0), POP, EMPTY_DICT, string("a"), BINGET(0), b"s", string("b"), BINGET(0), b"s")] * 100,
    )
    yield from ((f"dict-{label}", data) for label, data in inside(dicts).items())
    yield case(
        "calls", torch_file(state_dict({"w": asm(EMPTY_TUPLE, *[asm(DUP, TUPLE2, BINPUT(0), POP, _CALL_OF_0)] * 100)}))
    )
    keys = asm(EMPTY_TUPLE, *[asm(DUP, TUPLE2)] * 100)
    yield case("key", file(EMPTY_DICT, keys, NONE, SETITEM))
    yield case("member", file(EMPTY_SET, MARK, keys, ADDITEMS))
    yield case("frozenset", file(MARK, keys, FROZENSET))


@attack(18, "", EITHER)
def deep_nesting():
    """Tens of thousands of containers, each within the last: whatever walks it by recursion dies of the stack."""
    for depth in (900, 20_000, 60_000):
        yield from ((f"tuples-{depth}-{label}", data) for label, data in inside(NONE, TUPLE1 * depth).items())
    marks = asm(MARK * 20_000, TUPLE * 20_000)
    yield from ((f"marks-{label}", data) for label, data in inside(marks).items())
    lists = asm(EMPTY_LIST * 30_000, APPEND * 29_999)
    yield from ((f"lists-{label}", data) for label, data in inside(lists).items())
    dicts = asm(asm(EMPTY_DICT, string("a")) * 20_000, NONE, SETITEM * 20_000)
    yield from ((f"dicts-{label}", data) for label, data in inside(dicts).items())
    first = asm(NONE, asm(integer(0), TUPLE2) * 30_000)
    yield from ((f"first-items-{label}", data) for label, data in inside(first).items())
    calls = asm(EMPTY_TUPLE, asm(BINPUT(0), POP, _CALL_OF_0, TUPLE1) * 10_000)
    yield from ((f"calls-{label}", data) for label, data in inside(calls).items())
    states = asm(
        call("collections", "OrderedDict"),
        asm(BINPUT(0), POP, call("collections", "OrderedDict"), BINGET(0), BUILD) * 5_000,
    )
    yield from ((f"states-{label}", data) for label, data in inside(states).items())
    called = asm(call("collections", "OrderedDict"), asm(EMPTY_TUPLE, REDUCE) * 20_000)
    yield from ((f"call-of-call-{label}", data) for label, data in inside(called).items())
    parameters = asm(
        tensor(),
        asm(BINPUT(0), POP, GLOBAL("torch._utils", "_rebuild_parameter"), BINGET(0), NONE, NONE, b"\x87R") * 5_000,
    )
    yield case("parameters-of-parameters", torch_file(state_dict({"w": parameters})))
    yield case("hash-of-a-deep-key", file(EMPTY_DICT, NONE, TUPLE1 * 50_000, NONE, SETITEM))
    yield case("nested-state-dicts", file(asm(EMPTY_DICT, string("state_dict")) * 10_000, NONE, SETITEM * 10_000))


@attack(18, "", EITHER)
def self_reference():
    """Containers that hold themselves."""
    holder = {
        "list": asm(EMPTY_LIST, BINPUT(0), BINGET(0), APPEND),
        "dict": asm(EMPTY_DICT, BINPUT(0), string("self"), BINGET(0), SETITEM),
        "tuple": asm(EMPTY_LIST, BINPUT(0), BINGET(0), TUPLE1, APPEND),
        "state": asm(call("collections", "OrderedDict"), BINPUT(0), BINGET(0), BUILD),
        "entries": asm(call("collections", "OrderedDict"), BINPUT(0), string("self"), BINGET(0), SETITEM),
        "items": asm(call("collections", "OrderedDict"), BINPUT(0), BINGET(0), APPEND),
        "state-dict": asm(EMPTY_DICT, BINPUT(0), string("state_dict"), BINGET(0), SETITEM),
        "through-a-call": asm(
            EMPTY_LIST, BINPUT(0), GLOBAL("collections", "OrderedDict"), BINGET(0), TUPLE1, REDUCE, APPEND
        ),
    }
    for label, item in holder.items():
        yield from ((f"{label}-{place}", data) for place, data in inside(item).items())


def colliding(write: Callable[[Code], Code], count: int = 50_000) -> bytes:
    return b"".join(write(value(ZERO_HASH * i)) for i in range(count))


@attack(18, "CVE-2012-1150 (the idea)", EITHER)
def colliding_hashes():
    """Keys that all hash to one number: every new one is compared with all before it."""
    yield "dict", lambda: file(EMPTY_DICT, MARK, colliding(lambda key: asm(key, NONE)), SETITEMS)
    yield "one-at-a-time", lambda: file(EMPTY_DICT, colliding(lambda key: asm(key, NONE, SETITEM)))
    yield "set", lambda: file(EMPTY_SET, MARK, colliding(asm), ADDITEMS)
    yield "frozenset", lambda: file(MARK, colliding(asm), FROZENSET)
    yield "tuples", lambda: file(EMPTY_DICT, MARK, colliding(lambda key: asm(key, TUPLE1, NONE)), SETITEMS)
    entries = lambda: asm(EMPTY_DICT, MARK, colliding(lambda key: asm(key, NONE)), SETITEMS)  # noqa: E731
    yield "metadata", lambda: torch_file(checkpoint(TE, entries(), {"a.w": tensor()}))


@attack(18, "", EITHER)
def quadratic_growth():
    """Many small steps of which each might copy all that was there before."""
    ordered = call("collections", "OrderedDict")
    yield "appends-to-an-object", file(ordered, asm(NONE, APPEND) * 200_000)
    yield "builds-on-an-object", file(ordered, asm(NONE, BUILD) * 100_000)
    yield "items-of-an-object", file(ordered, *(asm(integer(i), NONE, SETITEM) for i in range(100_000)))
    yield "reduces", file(GLOBAL("collections", "OrderedDict"), asm(EMPTY_TUPLE, REDUCE) * 100_000)
    yield "tuples-of-all", file(MARK, asm(NONE) * 100_000, TUPLE, asm(DUP, POP) * 100_000)
    yield "globals", file(asm(GLOBAL("a", "b"), POP) * 50_000, EMPTY_DICT), "a[. ]b"
    yield "persistent-ids", file(asm(NONE, b"Q", POP) * 100_000, EMPTY_DICT), ""


@attack(24, "", EITHER)
def dimensions_without_end():
    """Shapes of very many or very large dimensions, which cost a long product or a long message."""
    for label, item, rank in (
        ("huge", integer(2**62), 100_000),
        ("ones", integer(1), 100_000),
        ("twos", integer(2), 60_000),
    ):
        shape = asm(item, BINPUT(0), POP, MARK, BINGET(0) * rank, TUPLE)
        yield label, torch_file(state_dict({"w": tensor(shape=shape, stride=shape)}))
        yield (
            f"{label}-zero-stride",
            torch_file(state_dict({"w": tensor(shape=shape, stride=asm(MARK, asm(integer(0)) * rank, TUPLE))})),
        )
    zeros = asm(MARK, asm(integer(0)) * 100_000, TUPLE)
    yield "zeros", torch_file(state_dict({"w": tensor(shape=zeros, stride=zeros)}))


@attack(24, "", EITHER, "stride|expan|limit|times|bytes|large|elements|times")
def one_byte_is_terabytes():
    """Stride 0: one element of storage shown as 2**40 of them, to be written out."""
    for label, shape in (
        ("flat", (2**40,)),
        ("square", (2**20, 2**20)),
        ("most", (2**62,)),
        ("overflow", (2**40, 2**40)),
    ):
        yield label, torch_file(state_dict({"w": tensor(shape=shape, stride=(0,) * len(shape))}))
    yield "ten-gib", torch_file(state_dict({"w": tensor(shape=(10 * 2**28,), stride=(0,))}))
    names = {f"w{i}": tensor(shape=(2**24,), stride=(0,)) for i in range(2000)}
    yield "many-of-16-mib", torch_file(state_dict(names))
    tagged = {f"a.w{i}": tensor(shape=(2**40,), stride=(0,)) for i in range(3)}
    yield "tagged", torch_file(checkpoint(TE, {}, tagged))


@attack(25, "", REFUSED, "copies|tied|expan|limit|times|names|larger")
def one_storage_many_names():
    """A megabyte under ten thousand names: each is a copy in the output, 10 GB of it."""
    shared = asm(tensor(numel=2**18, shape=(2**18,)), BINPUT(0), POP)
    entries = [asm(string(f"a.w{i}"), BINGET(0)) for i in range(10_000)]
    data = {"0": bytes(2**20)}
    body = asm(shared, EMPTY_DICT, MARK, *entries, SETITEMS)
    yield "plain", torch_file(program(body), data)
    yield "tagged", torch_file(checkpoint(TE, {}, body), data)
    windows = {f"a.w{i}": tensor(numel=2**18, shape=(2**17,), offset=i) for i in range(4_000)}
    yield "overlapping-windows", torch_file(state_dict(windows), data)


def seventy_thousand_records() -> bytes:
    storages = {"0": b"\0" * 16, **{f"{i}": b"" for i in range(1, 70_000)}}
    return zip_file(torch_records(state_dict({"w": tensor()}), storages), alignment=1)


@attack(18, "", HARMLESS)
def many_small_things():
    """Very many names, entries or records, each honest: time and memory stay in proportion."""
    names = [asm(string(f"a.w{i}"), BINGET(0)) for i in range(20_000)]
    shared = asm(tensor(), BINPUT(0), POP, EMPTY_DICT, MARK, *names, SETITEMS)
    yield case("names", torch_file(program(shared)), seconds=10.0, mebibytes=200.0)
    yield case("records", seventy_thousand_records, seconds=10.0, mebibytes=200.0)
    yield case("long-name", lambda: torch_file(state_dict({"n" * (1 << 20): tensor()})), seconds=2.0)
    card = {"card": "x" * (8 << 20)}
    yield case(
        "long-metadata", lambda: torch_file(checkpoint(TE, card, {"a.w": tensor()})), seconds=5.0, mebibytes=300.0
    )


def deflated(data: bytes) -> Record:
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    return Record(data, stored=packer.compress(data) + packer.flush(), method=8)


@attack(35, "", EITHER, "compress|deflate|method|stored")
def compressed_records():
    """A deflated record of zeros, 1 : 1000: torch never compresses."""
    one = state_dict({"w": tensor()})
    large = state_dict({"w": tensor(numel=16 << 20, shape=(16 << 20,))})
    yield "storage", lambda: torch_file(large, {"0": deflated(bytes(64 << 20))})
    yield "pickle", lambda: torch_file(b"", change={"data.pkl": deflated(bytes(64 << 20))})
    yield "honest-pickle", torch_file(b"", change={"data.pkl": deflated(one)})
    for method in (1, 9, 12, 14, 93, 99):
        yield f"method-{method}", torch_file(one, {"0": Record(b"\0" * 16, method=method)})


@attack(35, "D. Fifield, 'A better zip bomb'", MALFORMED, "overlap|bytes|record|storage")
def one_record_many_entries():
    """Ten thousand directory entries for the same megabyte, as in a zip bomb without nesting."""
    names = {f"w{i}": tensor(str(i), numel=2**18, shape=(2**18,)) for i in range(2000)}
    storages = {"0": bytes(2**20)} | {
        f"{i}": Record(bytes(2**20), local=False, offset="data/0") for i in range(1, 2000)
    }
    yield "same-header", lambda: torch_file(state_dict(names), storages)


@attack(19, "", EITHER)
def sizes_beyond_the_file():
    """Containers that announce more than there is: nothing is allocated for it."""
    yield "safetensors-header", safetensors_file(b"{}", length=2**63 - 1), "header|length|begins"
    yield "safetensors-header-100mb", safetensors_file(b"{}", length=99_999_999), "header|length|bytes|ends"
    yield (
        "legacy-count",
        legacy_file(
            state_dict({"w": tensor(shape=(4,), reference=legacy_storage("0", "FloatStorage", 2**60))}),
            [("0", 2**60, b"")],
        ),
        "",
    )
    yield (
        "zip-usize",
        torch_file(state_dict({"w": tensor()}), {"0": Record(b"\0" * 16, usize=2**32 - 2, csize=2**32 - 2)}),
        "bytes|size|record|ends|overlap",
    )
    huge = Record(b"\0" * 16, usize=2**32 - 1, csize=2**32 - 1, extra=zip64_extra(2**62, 2**62))
    yield "zip64-usize", torch_file(state_dict({"w": tensor()}), {"0": huge}), "bytes|size|record|ends|overlap"
    yield "entries", torch_file(state_dict({"w": tensor()}), eocd64={"entries": 2**63}), "end record"
    yield "directory-size", torch_file(state_dict({"w": tensor()}), eocd64={"size": 2**62}), "end record"


@attack(15, "", EITHER)
def pickles_without_end():
    """A bare file of a hundred thousand pickles in a row, or a zip of thousands of them, for whoever scans them all."""
    yield "in-a-row", bytes(program(NONE)) * 100_000
    yield "in-a-row-growing", bytes(program(value([1] * 1000))) * 1_000
    yield "in-a-zip", lambda: zip_file({f"{i}.pkl": bytes(program(NONE)) for i in range(5_000)}, prefix="")
    yield (
        "deflated",
        lambda: zip_file({f"{i}.pkl": deflated(bytes(program(string("x" * (16 << 20))))) for i in range(8)}, prefix=""),
    )


@attack(18, "", REFUSED, "limit|opcodes|marks|stack|nests|integer|depth")
def over_a_limit_of_the_machine():
    """More marks, depth or digits than any checkpoint needs."""
    yield "marks", file(MARK * 100_000)
    yield "integer", file(LONG1(b"\x7f" * 255), POP, b"\x8b\x00\x10\x00\x00" + b"\x7f" * 4096, POP, NONE)


@attack(18, "", EITHER)
def memo_of_everything():
    """The memo holds all values ever made, and the stack many of the same."""
    yield "gets", file(string("x" * 1000), BINPUT(0), POP, MARK, BINGET(0) * 500_000, TUPLE)
    yield "puts", file(string("x"), *(b"r" + i.to_bytes(4, "little") for i in range(300_000)))
    yield "long-gets", file(value({"w": 1}), BINPUT(0), POP, MARK, LONG_BINGET(0) * 300_000, TUPLE)


@pytest.mark.parametrize("case", harness.ATTACKS[__name__], ids=str)
def test_attack(case, watcher, tmp_path):
    harness.check(case, watcher, tmp_path)
