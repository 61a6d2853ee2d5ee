"""Lines 3 to 5, 8 to 12, 14, 15, 17, 19 and 20: streams that scanners and loaders read differently, or cannot read."""

from __future__ import annotations

import harness
import pytest
from harness import EITHER, HARMLESS, MALFORMED, REFUSED, attack, case

from assemble import (
    ADDITEMS,
    APPEND,
    APPENDS,
    BINBYTES8,
    BINGET,
    BINPERSID,
    BINPUT,
    BINUNICODE,
    BINUNICODE8,
    BUILD,
    BYTEARRAY8,
    DICT,
    DUP,
    EMPTY_DICT,
    EMPTY_LIST,
    EMPTY_SET,
    EMPTY_TUPLE,
    EXT1,
    EXT2,
    EXT4,
    FLOAT,
    FRAME,
    FROZENSET,
    GET,
    GLOBAL,
    INST,
    INT,
    LIST,
    LONG,
    LONG1,
    LONG4,
    LONG_BINGET,
    LONG_BINPUT,
    MARK,
    MEMOIZE,
    NEWOBJ,
    NEWOBJ_EX,
    NEXT_BUFFER,
    NONE,
    OBJ,
    PERSID,
    POP,
    POP_MARK,
    PROTO,
    PUT,
    READONLY_BUFFER,
    REDUCE,
    SETITEM,
    SETITEMS,
    SHORT_BINBYTES,
    SHORT_BINUNICODE,
    STACK_GLOBAL,
    STOP,
    STRING,
    TUPLE,
    TUPLE1,
    TUPLE2,
    TUPLE3,
    UNICODE,
    asm,
    call,
    framed,
    integer,
    ordered_dict,
    program,
    state_dict,
    string,
    tensor,
    torch_file,
    value,
)  # fmt: skip

SYSTEM = call("os", "system", "touch canary")
GOOD = value({"w": tensor()})


def file(*body: bytes, protocol: int = 2) -> bytes:
    """A torch file whose pickle is PROTO, the opcodes and STOP."""
    return torch_file(program(asm(*body), protocol))


def weight(*body: bytes) -> bytes:
    """A torch file with a good weight and one made by the opcodes."""
    return torch_file(state_dict({"good": tensor(), "bad": asm(*body)}))


@attack(3, "picklescan's list", EITHER, "text|string|os[. ]system|join")
def computed_names():
    """STACK_GLOBAL whose name a call would compute, so that no text to look for is in the file."""
    joined = call("builtins", "str.join", "", ["sys", "tem"])
    yield "name", weight(string("os"), joined, STACK_GLOBAL, value(("x",)), REDUCE)
    yield "module", weight(joined, string("system"), STACK_GLOBAL, value(("x",)), REDUCE)


@attack(4, "picklescan keyerror-exploit", MALFORMED, "memo")
def missing_memo():
    """STACK_GLOBAL after a GET of a slot that nobody wrote: the scanner dies on a KeyError and lets the file pass."""
    yield "binget", weight(BINGET(9), string("system"), STACK_GLOBAL, value(("x",)), REDUCE)
    yield "get", weight(GET(9), string("system"), STACK_GLOBAL, value(("x",)), REDUCE)
    yield "long_binget", weight(LONG_BINGET(2**32 - 1), string("system"), STACK_GLOBAL)
    yield "after-payload", weight(SYSTEM, POP, BINGET(9))
    yield "skipped-slot", weight(string("os"), LONG_BINPUT(8), POP, BINGET(7), string("system"), STACK_GLOBAL)


@attack(5, "picklescan type-confusion-exploit", MALFORMED, "text|string")
def names_that_are_no_text():
    """STACK_GLOBAL with a number, bytes, a tuple, a global or a call for a name."""
    for label, item in (
        ("int", integer(42)),
        ("none", NONE),
        ("bytes", SHORT_BINBYTES(b"os")),
        ("tuple", value(("os",))),
        ("global", GLOBAL("os", "path")),
        ("call", SYSTEM),
    ):
        yield f"module-{label}", weight(item, string("system"), STACK_GLOBAL)
        yield f"name-{label}", weight(string("os"), item, STACK_GLOBAL)


@attack(8, "fickling GHSA-mxhj-88fx-4pcv", REFUSED, r"os[. ]system", unclean=True)
def hidden_calls():
    """A call whose result is thrown away, so that the value that remains is clean."""
    yield "reduce-pop", file(SYSTEM, POP, GOOD)
    yield "obj-pop", file(MARK, GLOBAL("os", "system"), string("x"), OBJ, POP, GOOD)
    yield "inst-pop", file(MARK, string("x"), INST("os", "system"), POP, GOOD)
    yield "pop-mark", file(MARK, SYSTEM, POP_MARK, GOOD)
    yield "dup-pop", file(SYSTEM, DUP, POP, POP, GOOD)
    yield "memo-pop", file(SYSTEM, BINPUT(0), POP, GOOD)
    yield "newobj-pop", file(GLOBAL("os", "system"), value(("x",)), NEWOBJ, POP, GOOD)
    yield "newobj-ex-pop", file(GLOBAL("os", "system"), value(("x",)), EMPTY_DICT, NEWOBJ_EX, POP, GOOD)
    yield "global-pop", file(GLOBAL("os", "system"), POP, GOOD)
    yield "stack-global-pop", file(string("os"), string("system"), STACK_GLOBAL, POP, GOOD)
    yield "inside-a-popped-list", file(value([1, [SYSTEM]]), POP, GOOD)
    yield "before-good-in-a-dict", weight(SYSTEM, POP, tensor())
    yield "state-of-a-popped-object", file(call("collections", "OrderedDict"), value({"x": SYSTEM}), BUILD, POP, GOOD)


@attack(8, "", EITHER, "bytes|persistent|storage|buffer|extension|tuple|EXT")
def hidden_references():
    """A reference outside the pickle that is thrown away."""
    yield "binpersid", file(string("http://example.invalid"), BINPERSID, POP, GOOD)
    yield "persid", file(PERSID("os.system"), POP, GOOD)
    yield "ext", file(EXT1(1), POP, GOOD)
    yield "buffer", file(NEXT_BUFFER, POP, GOOD, protocol=5)


@attack(9, "picklescan GHSA-6ggj", REFUSED)
def build_into_an_object():
    """BUILD that would set attributes: `__class__`, a method, `__setstate__`, slots, on a tensor, an OrderedDict, a
    config."""
    states = {
        "class": {"__class__": GLOBAL("os", "_wrap_close")},
        "setstate": {"__setstate__": GLOBAL("os", "system")},
        "method": {"dequantize": GLOBAL("os", "system")},
        "reduce": {"__reduce_ex__": GLOBAL("os", "system")},
        "tensor_data_names": {"tensor_data_names": ["x"], "__dict__": {}},
        "slots": (None, {"__class__": GLOBAL("os", "_wrap_close")}),
        "call": SYSTEM,
    }
    for label, state in states.items():
        yield f"tensor-{label}", weight(tensor(), value(state), BUILD), "BUILD|state|attribute|os[. ]"
        yield f"ordered-dict-{label}", file(ordered_dict({"w": tensor()}, state=state)), "BUILD|state|attribute|os[. ]"
    version = asm(GLOBAL("torch.torch_version", "TorchVersion"), value(("2.0",)), NEWOBJ, value({"x": SYSTEM}), BUILD)
    tagged = {
        "format": "unsloth_prequant_text_encoder_state_dict_v1",
        "metadata": {"v": version},
        "state_dict": {"a.w": tensor()},
    }
    yield "torch-version", torch_file(program(value(tagged))), r"TorchVersion|os[. ]system|state"


@attack(9, "", EITHER, "BUILD")
def build_on_plain_data():
    """BUILD on a dict, a list, a string, a global, a storage."""
    for label, target in (
        ("dict", value({"w": tensor()})),
        ("list", value([1])),
        ("string", string("x")),
        ("global", GLOBAL("collections", "OrderedDict")),
        ("none", NONE),
    ):
        yield label, file(target, value({"__class__": "x"}), BUILD)


@attack(10, "CVE-2026-24747", EITHER)
def items_on_the_wrong_type():
    """SETITEM, SETITEMS, APPEND, APPENDS and ADDITEMS on what is no dict, list or set: memory corruption in torch
    before 2.10."""
    for label, target in (
        ("list", EMPTY_LIST),
        ("tuple", EMPTY_TUPLE),
        ("string", string("x")),
        ("set", EMPTY_SET),
        ("none", NONE),
        ("global", GLOBAL("collections", "OrderedDict")),
        ("tensor", tensor()),
    ):
        yield f"setitem-{label}", weight(target, integer(0), integer(1), SETITEM), "SETITEM|item|entr|not a tensor"
        yield (
            f"setitems-{label}",
            weight(target, MARK, integer(0), integer(1), SETITEMS),
            "SETITEM|item|entr|not a tensor",
        )
    for label, target in (
        ("dict", EMPTY_DICT),
        ("tuple", EMPTY_TUPLE),
        ("string", string("x")),
        ("global", GLOBAL("collections", "OrderedDict")),
        ("tensor", tensor()),
        ("ordered-dict", ordered_dict()),
    ):
        yield f"append-{label}", weight(target, integer(1), APPEND), "APPEND|item|not a tensor"
        yield f"appends-{label}", weight(target, MARK, integer(1), APPENDS), "APPEND|item|not a tensor"
    yield "additems-list", weight(EMPTY_LIST, MARK, integer(1), ADDITEMS), "ADDITEMS|item"
    yield "setitems-odd", file(EMPTY_DICT, MARK, string("a"), SETITEMS), "SETITEM|value|odd"
    yield "dict-odd", file(MARK, string("a"), DICT), "DICT|SETITEM|value|odd"


@attack(10, "", EITHER)
def entries_given_to_a_tensor():
    """Items given to a storage reference."""
    reference = asm(value(("storage", GLOBAL("torch", "FloatStorage"), "0", "cpu", 4)), BINPERSID)
    yield (
        "storage",
        file(value({"w": tensor(reference=asm(reference, integer(0), integer(1), SETITEM), shape=(4,))})),
        "SETITEM",
    )


@attack(11, "python/cpython#154848, fickling test_frame_boundary_divergence", MALFORMED, "frame")
def frames_that_lie():
    """FRAME whose length disagrees with its opcodes: C and Python unpicklers, and scanners, then read different
    opcodes."""
    body = asm(GOOD, STOP)
    yield "past-the-end", torch_file(asm(PROTO(4), FRAME(len(body) + 1), body))
    yield "huge", torch_file(asm(PROTO(4), FRAME(2**64 - 1), body))
    yield "half-an-argument", torch_file(asm(PROTO(4), FRAME(10), body))
    yield "one-byte-short-of-a-string", torch_file(asm(PROTO(4), FRAME(6), BINUNICODE("ab"), POP, body))
    yield "nested", torch_file(asm(PROTO(4), framed(framed(GOOD), STOP)))
    yield "overlapping", torch_file(asm(PROTO(4), FRAME(12), FRAME(len(body)), body))
    yield "stop-inside", torch_file(asm(PROTO(4), FRAME(len(body) + 20), body, b"\0" * 20))
    yield "cut", torch_file(asm(PROTO(4), b"\x95\x08\x00\x00")), "operand|frame"
    smuggled = asm(SYSTEM, POP)
    behind = torch_file(asm(PROTO(4), framed(GOOD), smuggled, STOP))
    yield case("payload-after-the-frame", behind, r"os[. ]system", verdict=REFUSED)


@attack(12, "", EITHER, "extension|EXT|registry|computed value")
def extension_registry():
    """EXT1, EXT2, EXT4: a number that the loading process's copyreg would turn into any object."""
    yield "ext1", weight(EXT1(1), value(("x",)), REDUCE)
    yield "ext2", weight(EXT2(300), value(("x",)), REDUCE)
    yield "ext4", weight(EXT4(70000), value(("x",)), REDUCE)
    yield "ext4-negative", weight(EXT4(-1))
    yield "ext1-zero", weight(EXT1(0))
    yield (
        "add-extension",
        weight(call("copyreg", "add_extension", "os", "system", 1), POP, EXT1(1)),
        "extension|EXT|copyreg",
    )


@attack(12, "", EITHER, "persistent|storage|reference|bad")
def persistent_ids():
    """A reference to something outside the pickle that is not a storage."""
    for label, pid in (
        ("string", string("os.system")),
        ("int", integer(7)),
        ("none", NONE),
        ("empty", EMPTY_TUPLE),
        ("other-kind", value(("module", GLOBAL("torch", "FloatStorage"), "0", "cpu", 4))),
        ("url", value(("storage", GLOBAL("torch", "FloatStorage"), "http://example.invalid/0", "cpu", 4))),
        ("short", value(("storage", GLOBAL("torch", "FloatStorage"), "0", "cpu"))),
        ("long", value(("storage", GLOBAL("torch", "FloatStorage"), "0", "cpu", 4, None, 1))),
        ("list", value(["storage", GLOBAL("torch", "FloatStorage"), "0", "cpu", 4])),
        ("call", SYSTEM),
    ):
        expected = r"persistent|storage|reference|os[. ]system|record"
        yield f"weight-{label}", weight(pid, BINPERSID), expected
        yield f"tensor-{label}", file(value({"w": tensor(reference=asm(pid, BINPERSID), shape=(4,))})), expected
    yield "persid-line", weight(PERSID("storage"))
    yield (
        "class-as-string",
        file(
            value(
                {"w": tensor(reference=asm(value(("storage", "FloatStorage", "0", "cpu", 4)), BINPERSID), shape=(4,))}
            )
        ),
    )
    other = asm(value(("storage", GLOBAL("evil", "FloatStorage"), "0", "cpu", 4)), BINPERSID)
    yield "class-of-another-module", file(value({"w": tensor(reference=other, shape=(4,))})), "evil[. ]FloatStorage"


@attack(12, "", REFUSED, "buffer")
def out_of_band_buffers():
    """Protocol 5 buffers, which a loader takes from elsewhere."""
    yield "next", torch_file(program(value({"w": NEXT_BUFFER}), 5))
    yield "readonly", torch_file(program(value({"w": asm(NEXT_BUFFER, READONLY_BUFFER)}), 5))
    yield "readonly-of-a-string", torch_file(program(value({"w": asm(string("x"), READONLY_BUFFER)}), 5))


@attack(14, "arXiv 2508.19774 (EOP), the 'broken pickle' on the Hub", MALFORMED, unclean=True)
def payload_then_garbage():
    """A call, then a broken stream: a loader has run the call before it fails, a scanner fails before it reports."""
    payload = asm(PROTO(2), SYSTEM)
    yield "cut", torch_file(payload), "STOP|ends"
    yield "bad-opcode", torch_file(asm(payload, b"\xff.")), "opcode"
    yield "empty-stack", torch_file(asm(payload, POP, POP, STOP)), "stack|operand"
    yield "cut-argument", torch_file(asm(payload, BINUNICODE("abc", length=1000))), "fit|argument|ends|bytes"
    yield "bad-utf8", torch_file(asm(payload, BINUNICODE(b"\xff\xfe"), STOP)), "utf-8|text|argument"
    yield "two-values-left", torch_file(asm(payload, SYSTEM, STOP)), "stack|values"
    yield "mark-left", torch_file(asm(payload, MARK, STOP)), "stack|values|MARK"
    yield "empty-file", torch_file(b""), "empty|ends|STOP"
    yield "only-stop", torch_file(STOP), "stack|value"


@attack(15, "picklescan multiple pickles", MALFORMED, "after|trailing|rest|end|STOP|more|bytes")
def pickles_behind_the_pickle():
    """A second pickle after the first one's STOP in data.pkl."""
    good = state_dict({"w": tensor()})
    yield "second", torch_file(asm(good, program(SYSTEM)))
    yield "sixth", torch_file(asm(good, *[program(NONE)] * 4, program(SYSTEM)))
    yield "first-clean-second-model", torch_file(asm(program(NONE), good)), ""
    yield "junk", torch_file(asm(good, b"\0" * 100))


@attack(17, "", REFUSED, unclean=True)
def names_that_look_right():
    """The right class under another module, another class of the right module, look-alike letters, spaces and line
    ends."""
    for label, module, name in (
        ("evil-module", "evil", "Int8Tensor"),
        ("prefix", "torchao.quantization2", "Int8Tensor"),
        ("wrong-class", "torchao.quantization", "EvilTensor"),
        ("cyrillic", "t\u043erch._utils", "_rebuild_tensor_v2"),
        ("fullwidth", "torch._utils", "\uff3frebuild_tensor_v2"),
        ("zero-width", "torch._utils", "_rebuild_tensor_v2\u200b"),
        ("soft-hyphen", "torch\u00ad._utils", "_rebuild_tensor_v2"),
        ("trailing-space", "torch._utils", "_rebuild_tensor_v2 "),
        ("leading-space", " torch._utils", "_rebuild_tensor_v2"),
        ("carriage-return", "torch._utils\r", "_rebuild_tensor_v2"),
        ("nul", "torch._utils", "_rebuild_tensor_v2\0"),
        ("upper-case", "torch._utils", "_REBUILD_TENSOR_V2"),
        ("moved", "torch", "_rebuild_tensor_v2"),
        ("empty-module", "", "_rebuild_tensor_v2"),
        ("empty-name", "torch._utils", ""),
        ("both-empty", "", ""),
        ("main", "__main__", "_rebuild_tensor_v2"),
    ):
        reference = asm(value(("storage", GLOBAL("torch", "FloatStorage"), "0", "cpu", 4)), BINPERSID)
        args = (reference, 0, (4,), (1,), False, ordered_dict())
        yield (
            label,
            weight(GLOBAL(module, name), value(args), REDUCE),
            "rebuild_tensor|Int8Tensor|EvilTensor|REBUILD|utils|global",
        )
        stacked = asm(string(module), string(name), STACK_GLOBAL, value(args), REDUCE)
        yield f"stacked-{label}", weight(stacked), "rebuild_tensor|Int8Tensor|EvilTensor|REBUILD|utils|global"
    yield (
        "newline",
        weight(string("torch._utils"), string("_rebuild_tensor_v2\nsystem"), STACK_GLOBAL, EMPTY_TUPLE, REDUCE),
        "rebuild",
    )
    yield (
        "escape-codes",
        weight(string("os"), string("\x1b[2J\x1b]0;owned\x07system"), STACK_GLOBAL, EMPTY_TUPLE, REDUCE),
        "os",
    )


@attack(19, "", MALFORMED, "argument|fit|bytes|length|ends|negative")
def lengths_that_lie():
    """Lengths beyond the file or below zero: memory for nothing, or a jump backwards."""
    yield "binunicode", weight(BINUNICODE("x", length=2**32 - 1))
    yield "binunicode8", weight(BINUNICODE8("x", length=2**63))
    yield "binunicode8-minus-one", weight(BINUNICODE8("x", length=2**64 - 1))
    yield "binbytes8", weight(BINBYTES8(b"x", length=2**62))
    yield "bytearray8", weight(BYTEARRAY8(b"x", length=2**62))
    yield "bytearray8-minus-one", weight(BYTEARRAY8(b"x", length=2**64 - 1))
    yield "long1", torch_file(asm(PROTO(2), LONG1(b"\1", length=255)))
    yield "long4", weight(LONG4(b"\1", length=2**31 - 1))
    yield "long4-negative", weight(LONG4(b"\1", length=-1))
    yield "long4-most-negative", weight(LONG4(b"\1", length=-(2**31)))
    yield "short-string", torch_file(asm(PROTO(2), SHORT_BINUNICODE("x", length=255)))
    yield "global-without-end", torch_file(asm(PROTO(2), b"cos")), "end|ends|text"
    yield "int-without-end", torch_file(asm(PROTO(0), b"I12")), "end|ends|text"
    yield "just-past-the-end", torch_file(asm(PROTO(2), BINUNICODE("abc", length=4)))


@attack(19, "", EITHER, "memo|slot|index|integer|literal|argument")
def memo_indexes_that_lie():
    """PUT and GET far outside, below zero, or not numbers: memory for slots that nobody needs."""
    yield "long-binput-huge", weight(string("x"), LONG_BINPUT(2**32 - 1))
    yield "put-huge", weight(string("x"), PUT(2**63))
    yield "put-negative", weight(string("x"), PUT(-1))
    yield "put-text", weight(string("x"), PUT("abc"))
    yield "put-empty", weight(string("x"), PUT(""))
    yield "get-negative", weight(string("x"), BINPUT(0), POP, GET(-1))
    yield "get-float", weight(string("x"), BINPUT(0), POP, GET("0.0"))
    yield "put-digits", weight(string("x"), PUT("9" * 5000))
    yield "put-on-an-empty-stack", torch_file(asm(PROTO(2), BINPUT(0))), "operand|stack"
    yield "put-on-a-mark", torch_file(asm(PROTO(2), MARK, BINPUT(0))), "MARK"
    yield "memoize-on-a-mark", torch_file(asm(PROTO(4), MARK, MEMOIZE)), "MARK"


@attack(19, "", EITHER)
def integers_without_end():
    """Integers that cost square time to read or to print."""
    yield "long4", weight(LONG4(b"\x7f" * 1_000_000)), "integer|limit|argument|bytes|LONG"
    yield "text-long", weight(LONG("9" * 60_000 + "L")), "integer|digits|limit"
    yield "text-int", weight(INT("9" * 5_000)), "integer|digits|limit"
    huge = 2 ** (8 * 500)
    yield "shape", file(value({"w": tensor(shape=(huge,), stride=(1,))})), "shape|elements|storage|view|bytes"
    yield "stride", file(value({"w": tensor(shape=(2,), stride=(huge,))})), "stride|storage|view|bytes"
    yield "offset", file(value({"w": tensor(shape=(2,), stride=(1,), offset=huge)})), "offset|storage|view|bytes"
    yield "numel", file(value({"w": tensor(numel=huge, shape=(4,))})), "storage|record|bytes|elements"


@attack(20, "", EITHER)
def old_and_new_opcodes():
    """Protocol 0 text opcodes and those of protocols 4 and 5 in a hostile stream; arguments that Python's parsers take
    and C's do not."""
    yield "protocol-0", torch_file(asm(MARK, STRING("'touch canary'"), INST("os", "system"), STOP)), r"os[. ]system"
    names = asm(STRING(r"'o\x73'"), UNICODE(r"s\u0079stem"), STACK_GLOBAL)
    yield "escaped-names", weight(names, MARK, UNICODE("touch canary"), TUPLE, REDUCE), r"os[. ]system"
    yield "string-unquoted", weight(STRING("os")), "quot|STRING"
    yield "string-half-quoted", weight(STRING("'os")), "quot|STRING"
    yield "string-bad-escape", weight(STRING(r"'\x4'")), "escape|argument|STRING"
    yield "unicode-bad-escape", weight(UNICODE(r"\u12")), "escape|argument|UNICODE"
    yield "int-text", weight(INT("abc")), "integer|argument|int"
    yield "float-text", weight(FLOAT("abc")), "float|argument"
    yield "float-shape", file(value({"w": tensor(shape=(FLOAT("inf"),), stride=(1,))})), "shape|integer|float|inf"
    yield "bool-shape", file(value({"w": tensor(numel=4, shape=(True,), stride=(1,))})), ""
    yield "protocol-6", torch_file(asm(PROTO(6), GOOD, STOP)), "protocol"
    yield "protocol-255", torch_file(asm(PROTO(255), GOOD, STOP)), "protocol"
    yield "frozenset-key", file(EMPTY_DICT, MARK, integer(1), FROZENSET, tensor(), SETITEM), "key|frozenset"
    yield "list-opcode", file(MARK, SYSTEM, LIST), r"os[. ]system|list"


@attack(20, "", HARMLESS, holds={"w": b"\0\0\x80?\0\0\0@\0\0@@\0\0\x80@"})
def odd_but_honest():
    """Streams that no torch writes and that mean a plain state dict all the same: same tensor or a refusal, never
    another."""
    yield "protocol-0", torch_file(asm(MARK, UNICODE("w"), tensor(), DICT, STOP))
    yield "protocol-4", torch_file(asm(PROTO(4), framed(GOOD, STOP)))
    yield "two-protos", torch_file(asm(PROTO(2), PROTO(2), GOOD, STOP))
    yield "late-proto", torch_file(asm(GOOD, PROTO(2), STOP))
    yield "pops", file(string("decoy"), POP, MARK, string("x"), POP_MARK, GOOD, DUP, POP)
    yield "int-true", torch_file(asm(value({"w": tensor(requires_grad=INT("01"))}), STOP))
    yield "long-ints", file(value({"w": tensor(shape=(LONG(4),), stride=(LONG("1"),))}))
    yield "stack-global", torch_file(program(value({"w": tensor()}), 4))
    yield "list-for-a-shape", file(value({"w": tensor(shape=asm(EMPTY_LIST, integer(4), APPEND), stride=(1,))}))
    args = (
        asm(value(("storage", GLOBAL("torch", "FloatStorage"), "0", "cpu", 4)), BINPERSID),
        0,
        (4,),
        (1,),
        False,
        ordered_dict(),
    )
    yield "name-split-elsewhere", file(value({"w": call("torch", "_utils._rebuild_tensor_v2", *args)}))
    yield case("empty-frames", torch_file(asm(PROTO(4), FRAME(0), FRAME(0), framed(GOOD), STOP)))


@attack(18, "", EITHER, "key|unhashable|list|dict")
def keys_that_are_no_keys():
    """Keys that cannot be hashed, or that are not names."""
    for label, key in (("list", EMPTY_LIST), ("dict", EMPTY_DICT), ("set", EMPTY_SET), ("tuple-of-list", value(([],)))):
        yield label, file(EMPTY_DICT, key, tensor(), SETITEM)
        yield f"set-{label}", file(EMPTY_SET, MARK, key, ADDITEMS)
    yield "int-name", torch_file(state_dict({1: tensor()})), "name|key|1|str"
    yield "none-name", torch_file(state_dict({None: tensor()})), "name|key|None"
    yield "bytes-name", torch_file(state_dict({b"w": tensor()})), "name|key|bytes"
    yield "tuple-name", torch_file(state_dict({("w",): tensor()})), "name|key|tuple"


@attack(18, "", EITHER, "twice|duplicate|again|key")
def keys_given_twice():
    """The same key twice: whoever reads the first sees another model than whoever reads the last."""
    twice = asm(string("w"), tensor(), string("w"), tensor("0", shape=(2, 2)))
    yield "setitems", file(EMPTY_DICT, MARK, twice, SETITEMS)
    yield "setitem", file(EMPTY_DICT, string("w"), tensor(), SETITEM, string("w"), tensor(), SETITEM)
    yield "dict", file(MARK, twice, DICT)
    yield "ordered-dict", file(ordered_dict(), MARK, twice, SETITEMS)
    yield "payload-under-it", file(EMPTY_DICT, MARK, string("w"), SYSTEM, string("w"), tensor(), SETITEMS), ""
    yield "true-and-one", file(EMPTY_DICT, MARK, integer(1), NONE, value(True), NONE, SETITEMS)


@attack(14, "", MALFORMED, "stack|operand|MARK|below|mark")
def marks_out_of_place():
    """Opcodes that reach under a MARK, or find none."""
    yield "tuple-without-mark", file(integer(1), TUPLE)
    yield "setitems-without-mark", file(EMPTY_DICT, SETITEMS)
    yield "pop-mark-without-mark", file(POP_MARK, NONE)
    yield "tuple1-of-mark", file(MARK, TUPLE1)
    yield "tuple2-over-mark", file(NONE, MARK, TUPLE2)
    yield "tuple3-over-mark", file(NONE, MARK, NONE, TUPLE3)
    yield "reduce-of-mark", file(MARK, EMPTY_TUPLE, REDUCE)
    yield "append-of-mark", file(EMPTY_LIST, MARK, APPEND)
    yield "setitem-of-mark", file(EMPTY_DICT, NONE, MARK, SETITEM)
    yield "dup-of-mark", file(MARK, DUP)
    yield "build-of-mark", file(call("collections", "OrderedDict"), MARK, BUILD)
    yield "binpersid-of-mark", file(MARK, BINPERSID)
    yield "swallowed-mark-then-pops", file(MARK, MARK, TUPLE1, POP, POP, NONE)
    yield "obj-of-nothing", file(MARK, OBJ), "stack|operand|MARK|OBJ|b'o'"


@pytest.mark.parametrize("case", harness.ATTACKS[__name__], ids=str)
def test_attack(case, watcher, tmp_path):
    harness.check(case, watcher, tmp_path)
