"""Line 39: hostile safetensors files, for `convert`, `inspect` and `verify` alike."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path

import harness
import pytest
from harness import EITHER, HARMLESS, HONEST, MALFORMED, REFUSED, attack, case

from assemble import FOUR, safetensors_file, state_dict, tensor, torch_file

TE = "unsloth_prequant_text_encoder_state_dict_v1"
META = {
    "format": "pt",
    "unsloth_format": TE,
    "unsloth_metadata": "{}",
    "tensor_names": '["a.w"]',
    "a.w": '{"_type":"Tensor"}',
}
W = {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}
FILE = "model.safetensors"
BOTH = (("convert", "{src}", "--out-dir", "{out}"), ("verify", "{src}", "{src}"))


def file(header: object, data: bytes = FOUR, **metadata: object) -> bytes:
    """A pre-quant file of a text encoder, with some of its metadata changed."""
    if isinstance(header, dict):
        header = {"__metadata__": {**META, **metadata}, **header}
    return safetensors_file(header, data)


def entry(**changes: object) -> bytes:
    """The honest file but for one tensor's entry."""
    return file({"a.w": W | changes})


def text(raw: str) -> bytes:
    """A header of our own text."""
    return safetensors_file(raw.encode("utf-8", "surrogatepass"), FOUR)


def raw_entry(entry_text: str) -> bytes:
    return text('{"__metadata__":' + json.dumps(META) + ',"a.w":' + entry_text + "}")


@attack(39, "", HONEST, file=FILE)
def control():
    """The honest file from which the others differ."""
    yield case("tagged", file({"a.w": W}), holds={"a.w": FOUR})


@attack(
    39,
    "safetensors' own attacks",
    MALFORMED,
    "header|length|bytes|JSON|limit|safetensors|begins|ends",
    file=FILE,
    commands=BOTH,
)
def headers_that_lie():
    """A header longer than the file or the limit, cut, empty, or no JSON."""
    honest = file({"a.w": W})
    size = struct.unpack_from("<Q", honest)[0]
    for label, length in (
        ("longer", size + 17),
        ("by-one", size + 1 + 16),
        ("100-mb", 100_000_001),
        ("4-gib", 2**32),
        ("most", 2**64 - 1),
        ("negative", 2**63),
    ):
        yield label, struct.pack("<Q", length) + honest[8:]
    yield "shorter", struct.pack("<Q", size - 8) + honest[8:]
    yield "zero", struct.pack("<Q", 0) + honest[8:]
    for cut in (0, 1, 7, 8, 9, 20):
        yield f"cut-at-{cut}", honest[:cut]
    yield "cut-in-the-data", honest[:-1]
    for label, raw in (
        ("empty", b""), ("spaces", b"        "), ("array", b"[]"), ("text", b'"x"'), ("null", b"null"), ("number", b"1"), ("nan", b'{"a":NaN}'), ("infinity", b'{"a":Infinity}'),
        ("trailing-comma", b'{"a":{},}'), ("comment", b"{}//x"), ("two", b"{}{}"), ("leading-space", b" {}"), ("bom", b"\xef\xbb\xbf{}"), ("utf16", "{}".encode("utf-16")), ("bad-utf8", b'{"\xff":{}}'),
        ("single-quotes", b"{'a':1}"), ("nul", b"{}\0\0\0\0\0\0"), ("pickle", b"\x80\x02cos\nsystem\n."), ("unclosed", b'{"a":{'), ("control", b'{"a\nb":1}'),
    ):  # fmt: skip
        yield f"json-{label}", safetensors_file(raw, b"")


@attack(39, "", MALFORMED, "JSON|nest|recursion|header|count|shape|deep|dimensions", file=FILE)
def headers_that_cost():
    """Deep JSON, endless numbers and shapes whose product is a number without end."""
    yield "deep-arrays", text('{"a":' + "[" * 200_000 + "]" * 200_000 + "}")
    yield "deep-objects", text('{"a":' * 100_000 + "1" + "}" * 100_000)
    yield (
        "deep-in-a-shape",
        raw_entry('{"dtype":"F32","shape":' + "[" * 50_000 + "]" * 50_000 + ',"data_offsets":[0,16]}'),
    )
    yield "long-integer", raw_entry('{"dtype":"F32","shape":[' + "9" * 5_000 + '],"data_offsets":[0,16]}')
    yield "long-integer-2", raw_entry('{"dtype":"F32","shape":[' + "9" * 500_000 + '],"data_offsets":[0,16]}')
    yield "product-of-300", entry(shape=[2**62] * 300)
    yield "product-of-1000", entry(shape=[2**62] * 1000)
    yield "product-of-100000", entry(shape=[2**62] * 100_000)
    yield "product-with-zero", entry(shape=[2**62] * 100_000 + [0])
    yield "many-ones", raw_entry('{"dtype":"F32","shape":[4' + ",1" * 300_000 + '],"data_offsets":[0,12]}')


@attack(
    39,
    "",
    MALFORMED,
    "a.w|shape|offset|bytes|hole|overlap|dtype|header|count|JSON|follow|integer",
    file=FILE,
    commands=BOTH,
)
def entries_that_lie():
    """Shapes, offsets and fields that are no counts, or disagree with the data."""
    for label, shape in (
        ("short", [3]),
        ("long", [5]),
        ("negative", [-4]),
        ("bool", [True]),
        ("float", [4.0]),
        ("text", ["4"]),
        ("none", None),
        ("nested", [[4]]),
        ("object", {}),
        ("huge", [2**63]),
        ("overflow", [2**32, 2**32]),
        ("overflow-to-16", [2**62 + 1, 4]),
    ):
        yield f"shape-{label}", entry(shape=shape)
    for label, offsets in (
        ("short", [0, 12]),
        ("long", [0, 20]),
        ("reversed", [16, 0]),
        ("negative", [-16, 0]),
        ("bool", [False, 16]),
        ("float", [0.0, 16.0]),
        ("one", [0]),
        ("three", [0, 16, 16]),
        ("text", "0,16"),
        ("huge", [2**63, 2**63 + 16]),
        ("past-the-end", [16, 32]),
        ("past-u64", [2**64, 2**64 + 16]),
        ("none", None),
    ):
        yield f"offsets-{label}", entry(data_offsets=offsets)
    yield "offsets-with-exponent", raw_entry('{"dtype":"F32","shape":[4],"data_offsets":[0,1.6e1]}')
    yield "minus-zero", raw_entry('{"dtype":"F32","shape":[4],"data_offsets":[-0.0,16]}')
    yield "extra-field", raw_entry('{"dtype":"F32","shape":[4],"data_offsets":[0,16],"x":1}')
    yield "missing-field", raw_entry('{"dtype":"F32","shape":[4]}')
    yield "not-an-object", raw_entry("[4]")
    yield "null", raw_entry("null")


@attack(39, "", EITHER, "dtype|a.w|F4", file=FILE)
def dtypes_that_are_none():
    """Types that safetensors does not have."""
    for label, dtype in (
        ("unknown", "F99"),
        ("empty", ""),
        ("lower", "f32"),
        ("none", None),
        ("list", ["F32"]),
        ("int", 32),
        ("object", {}),
        ("path", "../F32"),
        ("control", "\x1b[2J"),
    ):
        yield label, entry(dtype=dtype)
    yield "f4-odd", file({"a.w": {"dtype": "F4", "shape": [3], "data_offsets": [0, 2]}}, b"\0\0")
    yield "f4-scalar", file({"a.w": {"dtype": "F4", "shape": [], "data_offsets": [0, 1]}}, b"\0")


@attack(39, "", MALFORMED, "duplicate|twice|hole|overlap|follow|bytes|begins", file=FILE, commands=BOTH)
def data_that_is_not_covered():
    """Keys twice, holes, overlaps and bytes that no tensor owns: places to hide another file in."""
    two = {"a.w": W, "a.v": {"dtype": "F32", "shape": [4], "data_offsets": [16, 32]}}
    names = {"tensor_names": '["a.w","a.v"]', "a.v": '{"_type":"Tensor"}'}
    yield "trailing", file({"a.w": W}, FOUR + b"x")
    yield "trailing-pickle", file({"a.w": W}, FOUR + b"\x80\x02cos\nsystem\n.")
    yield "hole-at-the-start", file({"a.w": W | {"data_offsets": [4, 20]}}, b"xxxx" + FOUR)
    yield "hole", file(two | {"a.v": two["a.v"] | {"data_offsets": [20, 36]}}, FOUR + b"xxxx" + FOUR, **names)
    yield "overlap", file(two | {"a.v": two["a.v"] | {"data_offsets": [12, 28]}}, FOUR + FOUR[:12], **names)
    yield "same-bytes", file(two | {"a.v": W}, FOUR, **names)
    yield "no-tensors", file({}, FOUR, tensor_names="[]")
    yield (
        "empty-in-the-middle",
        file({"a.w": W, "a.v": {"dtype": "F32", "shape": [0], "data_offsets": [8, 8]}}, FOUR, **names),
        "",
    )
    yield "key-twice", text('{"a.w":' + json.dumps(W) + ',"a.w":' + json.dumps(W) + "}")
    yield "key-twice-escaped", text('{"a.w":' + json.dumps(W) + ',"a.\\u0077":' + json.dumps(W) + "}")
    yield (
        "metadata-twice",
        text('{"__metadata__":{"format":"pt"},"__metadata__":{"format":"tf"},"a.w":' + json.dumps(W) + "}"),
    )
    yield "metadata-key-twice", text('{"__metadata__":{"format":"pt","format":"tf"},"a.w":' + json.dumps(W) + "}")
    yield "field-twice", raw_entry('{"dtype":"F32","shape":[4],"shape":[2],"data_offsets":[0,16]}')


@attack(39, "", MALFORMED, "metadata|string|JSON|header", file=FILE)
def metadata_that_is_no_text():
    """Metadata of other types than text."""
    for label, item in (("int", 1), ("none", None), ("list", ["x"]), ("object", {"a": "b"}), ("bool", True)):
        yield label, file({"a.w": W}, FOUR, extra=item)
    for label, raw in (("list", "[]"), ("text", '"x"'), ("null", "null"), ("number", "1")):
        yield f"whole-{label}", text('{"__metadata__":' + raw + ',"a.w":' + json.dumps(W) + "}")
    yield "as-a-tensor", text('{"__metadata__":' + json.dumps(W) + "}")


@attack(39, "", EITHER, "", file=FILE)
def description_that_lies():
    """Our own keys, with lists that name what is not there, classes that do not exist, JSON within JSON that is broken
    or deep."""
    for label, names in (
        ("not-json", "["),
        ("object", "{}"),
        ("numbers", "[1]"),
        ("missing-tensor", '["a.w","a.x"]'),
        ("leaves-one-out", "[]"),
        ("twice", '["a.w","a.w"]'),
        ("null", "null"),
        ("deep", "[" * 100_000),
        ("nan", "[NaN]"),
        ("nested", '[["a.w"]]'),
        ("huge", "[" + "1" * 5000 + "]"),
    ):
        yield f"names-{label}", file({"a.w": W}, FOUR, tensor_names=names)
    for label, described in (
        ("not-json", "{"),
        ("list", "[]"),
        ("unknown", '{"_type":"EvilTensor"}'),
        ("dotted", '{"_type":"os.system"}'),
        ("none", "null"),
        ("type-list", '{"_type":["Tensor"]}'),
        ("type-missing", "{}"),
        ("deep", '{"_type":' * 50_000),
        ("quantised", '{"_type":"Int8Tensor","_data":{}}'),
        ("duplicate", '{"_type":"Int8Tensor","_type":"Tensor"}'),
    ):
        yield f"class-{label}", file({"a.w": W}, FOUR, **{"a.w": described})
    for label, tag in (
        ("unknown", "unsloth_prequant_text_encoder_state_dict_v9"),
        ("empty", ""),
        ("control", "\x1b[2J"),
        ("long", "x" * 100_000),
    ):
        yield f"tag-{label}", file({"a.w": W}, FOUR, unsloth_format=tag)
    for label, metadata in (
        ("not-json", "{"),
        ("list", "[]"),
        ("null-is-fine", '"x"'),
        ("nan", '{"a":NaN}'),
        ("duplicate", '{"a":1,"a":2}'),
        ("deep", '{"a":' * 50_000),
        ("huge-number", '{"a":' + "9" * 5000 + "}"),
    ):
        yield f"metadata-{label}", file({"a.w": W}, FOUR, unsloth_metadata=metadata)
    for label, roots in (
        ("not-json", "["),
        ("unknown", '["x"]'),
        ("dotted", '["a.w"]'),
        ("numbers", "[1]"),
        ("object", "{}"),
    ):
        yield f"roots-{label}", file({"a.w": W}, FOUR, unsloth_root_tensors=roots)
    for key in ("depickle_ties", "depickle_order", "depickle_header", "unsloth_source", "unsloth_quant_layout"):
        yield case(
            f"{key}-broken",
            file({"a.w": W}, FOUR, **{key: "{"}),
            verdict=HARMLESS if key in {"unsloth_source", "unsloth_quant_layout"} else EITHER,
        )
        yield case(
            f"{key}-deep",
            file({"a.w": W}, FOUR, **{key: "[" * 100_000}),
            verdict=HARMLESS if key in {"unsloth_source", "unsloth_quant_layout"} else EITHER,
        )
    yield "order-unknown", file({"a.w": W}, FOUR, depickle_order='["x.y"]')
    yield "order-twice", file({"a.w": W}, FOUR, depickle_order='["a.w","a.w"]')
    yield "ties-to-itself", file({"a.w": W}, FOUR, depickle_ties='{"dropped":{"a.w":"a.w"}}')
    yield "ties-to-nothing", file({"a.w": W}, FOUR, depickle_ties='{"dropped":{"a.v":"a.x"}}')
    yield "ties-in-a-ring", file({"a.w": W}, FOUR, depickle_ties='{"dropped":{"a.x":"a.y","a.y":"a.x"}}')
    yield "seal-wrong", file({"a.w": W}, FOUR, depickle_header="0" * 64)
    yield "seal-not-hex", file({"a.w": W}, FOUR, depickle_header="zz")


@attack(39, "", HARMLESS, file=FILE, holds={"a.w": FOUR})
def description_that_says_too_much():
    """More in a plain tensor's description than its class: it means nothing."""
    yield "data", file({"a.w": W}, FOUR, **{"a.w": '{"_type":"Tensor","_data":{"__class__":"x"}}'})


@attack(39, "", HARMLESS, file=FILE)
def names_in_a_safetensors_file():
    """Names that look like paths: text, kept or refused."""
    for name in ("../../tmp/canary.w", "/etc/passwd.w", "a\0.w", "\x1b[2J.w", "a.\u202ew", "__class__.w"):
        described = {"tensor_names": json.dumps([name]), name: '{"_type":"Tensor"}'}
        header = {"__metadata__": {k: v for k, v in META.items() if k != "a.w"} | described, name: W}
        yield case(ascii(name).replace("/", "|"), safetensors_file(header, FOUR), holds={name: FOUR})
    header = text('{"a.\\ud800":' + json.dumps(W) + "}")
    yield case("surrogate", header)


PAIR = (("verify", "{src}", "{dir}/in/other"),)


def beside(data: bytes) -> Callable[[Path], None]:
    """A setup that puts a second file beside the source."""

    def setup(sandbox: Path) -> None:
        (sandbox / "in" / "other").write_bytes(data)

    return setup


@attack(39, "", REFUSED, "", commands=PAIR, looks=(), api=False)
def verification_of_a_hostile_output():
    """`verify` of an honest source against an output that lies: a mismatch or malformed, and neither file is
    touched."""
    source = torch_file(state_dict({"a.w": tensor()}))
    plain = {"__metadata__": {"format": "pt"}, "a.w": W}
    other = struct.pack("<4f", 1.0, 2.0, 3.0, 5.0)
    yield case("other-bytes", source, setup=beside(safetensors_file(plain, other)))
    yield case("other-name", source, setup=beside(safetensors_file({"a.v": W}, FOUR)))
    yield case("other-shape", source, setup=beside(safetensors_file({"a.w": W | {"shape": [2, 2]}}, FOUR)))
    yield case("other-dtype", source, setup=beside(safetensors_file({"a.w": W | {"dtype": "I32"}}, FOUR)))
    yield case(
        "one-more",
        source,
        setup=beside(
            safetensors_file({"a.w": W, "a.v": {"dtype": "U8", "shape": [1], "data_offsets": [16, 17]}}, FOUR + b"x")
        ),
    )
    yield case("none", source, setup=beside(safetensors_file({}, b"")))
    yield case(
        "minus-zero",
        torch_file(state_dict({"a.w": tensor()}), {"0": bytes(16)}),
        setup=beside(safetensors_file(plain, b"\0\0\0\x80" * 4)),
    )
    nan = struct.pack("<4I", *[0x7FC00000] * 4)
    yield case(
        "other-nan",
        torch_file(state_dict({"a.w": tensor()}), {"0": nan}),
        setup=beside(safetensors_file(plain, b"\x01\0\xc0\x7f" * 4)),
    )
    yield case("malformed", source, setup=beside(safetensors_file(plain, FOUR + b"x")), verdict=MALFORMED)
    yield case("deep", source, setup=beside(safetensors_file(b'{"a":' + b"[" * 100_000, b"")), verdict=MALFORMED)
    yield case(
        "a-pickle", source, setup=beside(torch_file(state_dict({"a.w": tensor("0", shape=(2, 2))}))), verdict=EITHER
    )
    yield case("hostile-source", torch_file(b"\x80\x02cos\nsystem\n."), setup=beside(safetensors_file(plain, FOUR)))


@pytest.mark.parametrize("case", harness.ATTACKS[__name__], ids=str)
def test_attack(case, watcher, tmp_path):
    harness.check(case, watcher, tmp_path)


LOADED = [item for item in harness.ATTACKS[__name__] if item.file == FILE]


@pytest.mark.parametrize("case", LOADED, ids=str)
def test_load_back(case, tmp_path):
    """Line 39. `depickle.torch.load` of the same files: an error of ours, or a dict; never another exception."""
    pytest.importorskip("torch", reason="loading back needs torch")
    from depickle import Error
    from depickle.torch import load

    source = harness.lay_out(case, tmp_path / "box")
    try:
        loaded = load(source)
    except Error:
        assert case.verdict != HONEST
    else:
        assert case.verdict in {HARMLESS, HONEST}
        assert set(loaded) == {"format", "metadata", "state_dict"}
