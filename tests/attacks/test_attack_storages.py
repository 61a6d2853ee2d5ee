"""Lines 23 to 27: storages and tensors that lie about size, stride, type and what belongs together."""

from __future__ import annotations

import harness
import pytest
from harness import EITHER, HARMLESS, HONEST, MALFORMED, REFUSED, attack, case

from assemble import (
    AQT,
    BINGET,
    BINPUT,
    CPU,
    FOUR,
    GLOBAL,
    LAQT,
    NONE,
    PLAIN_IMPL,
    POP,
    Record,
    asm,
    call,
    checkpoint,
    int8_storages,
    int8_v1,
    new,
    ordered_dict,
    program,
    state_dict,
    storage,
    string,
    tensor,
    tensor3,
    torch_file,
    value,
    wrapper,
)  # fmt: skip

V1 = "unsloth_prequant_transformer_state_dict_v1"
TE = "unsloth_prequant_text_encoder_state_dict_v1"


def one(body: bytes, data: bytes | Record = FOUR) -> bytes:
    """A file with one weight over one storage."""
    return torch_file(state_dict({"w": body}), {"0": data})


def quantised(body: bytes, storages: dict[str, bytes] | None = None, tag: str = V1) -> bytes:
    """A denoiser with one quantised weight."""
    data = int8_storages("w") if storages is None else storages
    return torch_file(checkpoint(tag, {"scheme": "int8"}, {"blk.w.weight": body}), data)


@attack(23, "", HONEST)
def control():
    """The honest files from which the others differ."""
    yield case("plain", one(tensor()), holds={"w": FOUR})
    yield case(
        "int8-v1",
        quantised(int8_v1()),
        holds={"blk.w._weight_qdata": bytes(range(8)), "blk.w._weight_scale": b"\x80\x3f" * 2},
    )
    yield case("untyped", torch_file(state_dict({"w": tensor3("0", "float8_e4m3fn", 16, (4, 4))})), holds={"w": FOUR})
    yield case("scalar", one(tensor(numel=4, shape=(), stride=())), holds={"w": FOUR[:4]})
    yield case("view", one(tensor(shape=(2,), offset=1)), holds={"w": FOUR[4:12]})
    yield case(
        "transposed",
        one(tensor(shape=(2, 2), stride=(1, 2))),
        holds={"w": FOUR[:4] + FOUR[8:12] + FOUR[4:8] + FOUR[12:]},
    )
    yield case("empty", torch_file(state_dict({"w": tensor(numel=0, shape=(0, 3))}), {"0": b""}), holds={"w": b""})


@attack(23, "CVE-2026-24747", MALFORMED, "bytes|elements|numel|storage|record")
def numel_that_lies():
    """A storage declared with more or fewer elements than its record has: torch read past the end of the buffer."""
    for label, numel in (
        ("more", 5),
        ("much-more", 2**40),
        ("most", 2**62),
        ("over", 2**64),
        ("fewer", 3),
        ("none", 0),
    ):
        yield label, one(tensor(numel=numel, shape=(1,)))
    yield "more-shape-inside", one(tensor(numel=5, shape=(4,)))
    yield "negative", one(tensor(numel=-4, shape=(1,)))
    yield "negative-shape-too", one(tensor(numel=-4, shape=(-4,), stride=(1,)))
    yield "minus-one-times-itemsize", one(tensor(numel=2**62 + 4, shape=(4,)))
    yield "record-too-short", one(tensor(), FOUR[:-1])
    yield "record-too-long", one(tensor(), FOUR + b"\0")
    yield "record-empty", one(tensor(), b"")
    yield "odd-bytes", one(tensor(kind="LongStorage", numel=2, shape=(2,)), FOUR[:-1])
    yield "untyped-more", torch_file(state_dict({"w": tensor3("0", "float8_e4m3fn", 17, (4, 4))}))
    yield "untyped-fewer", torch_file(state_dict({"w": tensor3("0", "float8_e4m3fn", 8, (8,))}))
    yield "missing-record", one(tensor("1"))


@attack(23, "", EITHER, "numel|integer|count|bytes|number|storage|elements|int|persistent id")
def numel_that_is_no_number():
    """A float, a bool, text, None, a tuple for the number of elements."""
    for label, numel in (
        ("float", 4.0),
        ("text", "4"),
        ("none", None),
        ("tuple", (4,)),
        ("list", [4]),
        ("bytes", b"4"),
    ):
        yield label, one(tensor(numel=numel, shape=(4,)))
    yield case("true", one(tensor(numel=True, shape=(1,)), FOUR[:4]), verdict=HARMLESS)


@attack(23, "zip slip by storage key", EITHER, "storage|record|key|name|text|persistent id")
def keys_that_are_paths():
    """Storage keys that lead out of `data/`, or are no text."""
    for key in (
        "../data.pkl",
        "/etc/passwd",
        "..",
        ".",
        "",
        "0/",
        "0\0",
        "./0",
        " 0",
        "0 ",
        "00",
        "+0",
        "\u0660",
        "0\n",
        "..\\0",
    ):
        yield ascii(key), one(tensor(key))
    for key in (0, 0.0, None, True, ("0",), b"0", ["0"]):
        yield f"type-{key!r}", one(tensor(key))


@attack(24, "", MALFORMED, "view|stride|shape|offset|bytes|storage|dimension|elements")
def views_that_leave_their_storage():
    """Offset, stride and shape that reach past the end, or before the start."""
    for label, shape, stride, offset in (
        ("offset", (4,), (1,), 1),
        ("offset-huge", (1,), (1,), 2**62),
        ("offset-negative", (1,), (1,), -1),
        ("stride", (2,), (4,), 0),
        ("stride-huge", (2,), (2**62,), 0),
        ("stride-negative", (4,), (-1,), 3),
        ("stride-minus-huge", (2,), (-(2**62),), 0),
        ("shape", (5,), (1,), 0),
        ("shape-negative", (-4,), (1,), 0),
        ("both-negative", (-2, -2), (2, 1), 0),
        ("rank", (2, 2), (1,), 0),
        ("rank-other", (4,), (1, 1), 0),
        ("no-stride", (4,), (), 0),
        ("overflow", (2**32, 2**32), (1, 1), 0),
        ("overflow-64", (2**33, 2**33), (0, 0), 0),
        ("wraps-to-zero", (2**63, 2), (0, 0), 0),
        ("offset-of-empty-negative", (0,), (1,), -5),
        ("empty-but-huge", (0, 2**63), (1, 1), 0),
    ):
        yield label, one(tensor(shape=shape, stride=stride, offset=offset))


@attack(24, "", EITHER)
def views_of_other_kinds():
    """Shapes, strides and offsets that are no tuples of integers."""
    for label, shape in (
        ("list", [4]),
        ("text", "4"),
        ("float", (4.0,)),
        ("none", NONE),
        ("dict", {}),
        ("int", 4),
        ("nested", ((4,),)),
    ):
        yield case(
            f"shape-{label}",
            one(tensor(shape=shape, stride=(1,))),
            "shape|tuple|int|stride|size",
            verdict=HARMLESS if label == "list" else "",
        )
        yield case(
            f"stride-{label}",
            one(tensor(shape=(4,), stride=shape)),
            "stride|tuple|int|shape",
            verdict=HARMLESS if label == "list" else "",
        )
    for label, offset in (("float", 0.0), ("text", "0"), ("none", None), ("tuple", (0,))):
        yield f"offset-{label}", one(tensor(shape=(4,), offset=offset)), "offset|int"
    yield case(
        "size-call", one(tensor(shape=call("torch", "Size", (4,)), stride=(1,))), verdict=HARMLESS, holds={"w": FOUR}
    )
    yield (
        "size-of-evil",
        one(tensor(shape=call("torch", "Size", call("os", "system", "x")), stride=(1,))),
        r"os[. ]system",
    )
    yield (
        "arguments-few",
        torch_file(state_dict({"w": call("torch._utils", "_rebuild_tensor_v2", storage())})),
        "argument",
    )
    yield "arguments-none", torch_file(state_dict({"w": call("torch._utils", "_rebuild_tensor_v2")})), "argument"
    yield "arguments-many", one(tensor(extra=(None, None, None))), "argument|metadata"
    yield "metadata", one(tensor(extra=({"conj": call("os", "system", "x")},))), r"os[. ]system|metadata"
    yield "metadata-unknown", one(tensor(extra=({"evil": True},))), "metadata|evil|argument"
    yield "storage-is-text", one(tensor(reference=string("0"), shape=(4,))), "storage"
    yield "storage-is-none", one(tensor(reference=value(None), shape=(4,))), "storage"
    yield "storage-is-a-tensor", one(tensor(reference=tensor(), shape=(4,))), "storage"
    yield "storage-by-reduce", one(tensor(reference=call("torch", "FloatStorage", 4), shape=(4,))), "storage"


@attack(25, "", EITHER, "storage|declared|twice|type|class|dtype|length|numel|bytes")
def one_key_two_declarations():
    """One storage declared with two types or lengths: two tensors read one buffer as different things."""
    yield "types", torch_file(state_dict({"w": tensor(), "v": tensor("0", "LongStorage", 2)}))
    yield "same-width", torch_file(state_dict({"w": tensor(), "v": tensor("0", "IntStorage", 4)}))
    yield "lengths", torch_file(state_dict({"w": tensor(), "v": tensor("0", "FloatStorage", 3)}))
    yield "typed-and-untyped", torch_file(state_dict({"w": tensor(), "v": tensor3("0", "float8_e4m3fn", 16, (16,))}))


@attack(25, "", HARMLESS)
def one_storage_two_names():
    """Ties, views and overlapping windows: each name gets its own bytes."""
    shared = asm(tensor(), BINPUT(0), POP)
    yield case(
        "tie",
        torch_file(program(asm(shared, value({"a": asm(BINGET(0)), "b": asm(BINGET(0))})))),
        holds={"a": FOUR, "b": FOUR},
    )
    yield case("tie-by-value", torch_file(state_dict({"a": tensor(), "b": tensor()})), holds={"a": FOUR, "b": FOUR})
    yield case(
        "overlap",
        torch_file(state_dict({"a": tensor(shape=(3,)), "b": tensor(shape=(3,), offset=1)})),
        holds={"a": FOUR[:12], "b": FOUR[4:]},
    )
    both = {"w.d": bytes(range(8)), "w.s": b"\x80\x3f" * 2}
    twice = checkpoint(V1, {"scheme": "int8"}, {"a.weight": int8_v1(), "b.weight": int8_v1()})
    yield case(
        "quantised-tie",
        torch_file(twice, both),
        holds={"a._weight_qdata": bytes(range(8)), "b._weight_qdata": bytes(range(8))},
    )
    alias = int8_v1(impl={"scale": tensor("w.d", "CharStorage", 8, (2,))})
    yield case("scale-aliases-data", quantised(alias, {"w.d": bytes(range(8))}))


def changed(**levels: object) -> bytes:
    return quantised(int8_v1(**levels))


@attack(26, "", EITHER)
def wrappers_that_disagree_with_their_parts():
    """A quantised weight whose own shape, type or block size is not that of its parts."""
    data = tensor("w.d", "CharStorage", 8, (2, 4))
    yield "outer-shape", changed(outer={"shape": (4, 2)}), "shape"
    yield "outer-shape-huge", changed(outer={"shape": (2**40, 2**40)}), "shape|size|elements"
    yield "outer-shape-negative", changed(outer={"shape": (-2, -4)}), "shape|size|negative"
    yield "outer-rank", changed(outer={"shape": (8,)}), "shape|dim"
    yield "outer-offset", changed(outer={"offset": 1}), "offset|arguments"
    yield "aqt-shape", changed(aqt_outer={"shape": (4, 2)}), "shape"
    yield "impl-shape", changed(impl_outer={"shape": (4, 2)}), "shape"
    yield "impl-shape-huge", changed(impl_outer={"shape": (2**40, 2**40)}), "shape"
    yield "data-shape", changed(impl={"int_data": tensor("w.d", "CharStorage", 8, (4, 2))}), "shape|int_data"
    yield "data-rank", changed(impl={"int_data": tensor("w.d", "CharStorage", 8, (8,))}), "shape|dim|int_data"
    yield (
        "data-type",
        quantised(int8_v1(impl={"int_data": tensor("w.d", "ByteStorage", 8, (2, 4))})),
        "int8|uint8|dtype|type",
    )
    yield "data-missing", changed(impl={"int_data": None}), "int_data"
    yield "data-a-number", changed(impl={"int_data": 7}), "int_data"
    yield (
        "data-a-weight",
        changed(impl={"int_data": wrapper(PLAIN_IMPL, "int8", (2, 4), {"int_data": data})}),
        "int_data|PlainAQT",
    )
    yield (
        "scale-count",
        quantised(int8_v1(impl={"scale": tensor("w.s", "BFloat16Storage", 3)}), {**int8_storages(), "w.s": bytes(6)}),
        "scale",
    )
    yield "scale-type", quantised(int8_v1(impl={"scale": tensor("w.s", "ShortStorage", 2)})), "scale"
    yield "scale-of-rank-3", quantised(int8_v1(impl={"scale": tensor("w.s", "BFloat16Storage", 2, (1, 2, 1))})), "scale"
    yield "scale-missing", changed(impl={"scale": None}), "scale"
    yield (
        "zero-point-live",
        quantised(
            int8_v1(impl={"zero_point": tensor("w.z", "LongStorage", 2)}), {**int8_storages(), "w.z": b"\1" * 16}
        ),
        "zero",
    )
    for label, block in (
        ("halves", (1, 2)),
        ("rows", (2, 4)),
        ("zero", (1, 0)),
        ("rank", (1, 4, 1)),
        ("negative", (1, -4)),
        ("text", "x"),
        ("huge", (1, 2**70)),
    ):
        yield f"block-{label}", changed(aqt={"block_size": block}), "block"
    yield "quant-min", changed(aqt={"quant_min": -8, "quant_max": 7}), "quant_m|exact"
    yield (
        "domain-float",
        changed(aqt={"zero_point_domain": call("torchao.quantization.quant_primitives", "ZeroPointDomain", 2)}),
        "domain|FLOAT",
    )
    yield (
        "domain-unknown",
        changed(aqt={"zero_point_domain": call("torchao.quantization.quant_primitives", "ZeroPointDomain", 9)}),
        "domain|ZeroPointDomain",
    )
    yield "domain-text", changed(aqt={"zero_point_domain": "NONE"}), "domain"


@attack(26, "", EITHER)
def wrappers_that_are_something_else():
    """Unknown layouts, devices and states in a quantised weight, and calls in place of its functions."""
    yield "activation-evil", changed(laqt={"input_quant_func": GLOBAL("os", "system")}), r"os[. ]system"
    yield (
        "activation-unknown",
        changed(laqt={"input_quant_func": GLOBAL("torchao.quantization.quant_api", "quantize_")}),
        "quantize_",
    )
    yield (
        "activation-call",
        changed(laqt={"input_quant_func": call("functools", "partial", GLOBAL("os", "system"))}),
        "functools|os",
    )
    yield "kwargs", changed(laqt={"quant_kwargs": {"x": call("os", "system", "x")}}), r"os[. ]system"
    yield "kwargs-plain", changed(laqt={"quant_kwargs": {"scale": 1}}), "kwargs|scale"
    yield "layout-unknown", changed(impl={"_layout": new("torchao.dtypes.utils", "EvilLayout")}), "EvilLayout"
    yield "layout-other", changed(impl={"_layout": new("torchao.dtypes.uintx.q_dq_layout", "QDQLayout")}), "layout"
    yield (
        "layout-with-state",
        changed(impl={"_layout": new("torchao.dtypes.utils", "PlainLayout", state={"__class__": "x"})}),
        "layout|state|__class__",
    )
    yield (
        "layout-with-arguments",
        changed(impl={"_layout": new("torchao.dtypes.utils", "PlainLayout", 1)}),
        "layout|argument",
    )
    yield "extra-field", changed(impl={"dequantize": GLOBAL("torch", "int8")}), "dequantize|field|attribute|state"
    yield (
        "extra-class",
        changed(aqt={"__class__": GLOBAL("torchao.quantization", "Int8Tensor")}),
        "__class__|field|attribute|state",
    )
    yield "extra-names", changed(laqt={"tensor_data_names": ["x"]}), "tensor_data_names|field|attribute|state"
    yield (
        "sparse",
        quantised(int8_v1(outer={"layout": call("torch.serialization", "_get_layout", "torch.sparse_coo")})),
        "layout|sparse",
    )
    yield (
        "layout-evil",
        quantised(int8_v1(outer={"layout": call("torch.serialization", "_get_layout", "os.system")})),
        "layout",
    )
    yield "layout-text", quantised(int8_v1(outer={"layout": "torch.strided"})), "layout"
    yield "device-evil", quantised(int8_v1(outer={"device": call("os", "system", "x")})), r"os[. ]system|device"
    yield (
        "another-class-outside",
        quantised(int8_v1(outer={"outer": AQT})),
        "class|AffineQuantizedTensor|LinearActivation",
    )
    yield "state-not-a-dict", quantised(wrapper(LAQT, "bfloat16", (2, 4), [1])), "state|dict|list|arguments"
    yield "state-none", quantised(wrapper(LAQT, "bfloat16", (2, 4), None)), "state|dict|None|arguments"
    yield (
        "state-pair",
        quantised(wrapper(LAQT, "bfloat16", (2, 4), ({}, {"__class__": 1}))),
        "state|dict|tuple|slots|arguments",
    )
    yield "state-empty", quantised(wrapper(LAQT, "bfloat16", (2, 4), {})), "original_weight_tensor|lacks|missing"
    yield "dtype-evil", quantised(wrapper(LAQT, "system", (2, 4), {})), "system"
    yield (
        "itself-inside",
        quantised(int8_v1(laqt={"original_weight_tensor": int8_v1()})),
        "LinearActivation|original_weight_tensor",
    )
    rebuild = call("torch._tensor", "_rebuild_from_type_v2", GLOBAL("os", "system"), GLOBAL(*LAQT), ("x",), {})
    yield "other-function", quantised(rebuild), r"os[. ]system"
    rebuild = call(
        "torch._tensor",
        "_rebuild_from_type_v2",
        GLOBAL("builtins", "getattr"),
        GLOBAL("torch", "Tensor"),
        ("x", "y"),
        {},
    )
    yield "getattr-as-function", quantised(rebuild), "getattr"
    plain = (storage("w.d", "CharStorage", 8), 0, (8,), (1,), False, ordered_dict())
    rebuild = call(
        "torch._tensor",
        "_rebuild_from_type_v2",
        GLOBAL("torch._utils", "_rebuild_tensor_v2"),
        GLOBAL("evil", "Tensor"),
        plain,
        {},
    )
    yield "plain-of-an-evil-class", quantised(rebuild), "evil[. ]Tensor"
    rebuild = call(
        "torch._tensor",
        "_rebuild_from_type_v2",
        GLOBAL("torch._utils", "_rebuild_tensor_v2"),
        GLOBAL("torch", "Tensor"),
        plain,
        {"__class__": GLOBAL("evil", "X")},
    )
    yield "plain-with-evil-state", quantised(rebuild), "evil[. ]X"


@attack(26, "", HARMLESS, holds={"blk.w._weight_qdata": bytes(range(8)), "blk.w._weight_scale": b"\x80\x3f" * 2})
def wrappers_that_say_odd_things():
    """What a wrapper says beside its parts and that changes no value: device, stride, zero points that are all zero."""
    yield "device-meta", quantised(int8_v1(outer={"device": call("torch", "device", "meta")}))
    yield "device-cuda-99", quantised(int8_v1(outer={"device": call("torch", "device", "cuda:99")}))
    yield "stride", changed(outer={"stride": (1, 2)})
    zeros = {**int8_storages(), "w.z": bytes(24)}
    yield "zero-point-shape", quantised(int8_v1(impl={"zero_point": tensor("w.z", "LongStorage", 3)}), zeros)
    asymmetric = GLOBAL("torchao.quantization.quant_api", "_int8_asymm_per_token_quant")
    yield "another-activation", changed(laqt={"input_quant_func": asymmetric})


@attack(26, "", HARMLESS)
def devices_and_flags():
    """Devices and flags that say nothing about the bytes."""
    for location in ("cuda:0", "cuda:99", "mps", "xpu:3", "", "cuda:\0", "../../x", "cpu\n", "meta"):
        yield case(f"location-{location!a}", one(tensor(location=location)), holds={"w": FOUR})
    yield case("requires-grad", one(tensor(requires_grad=True)), holds={"w": FOUR})
    yield case("location-none", one(tensor(location=None)))
    yield case("location-call", one(tensor(location=CPU)))
    yield case("hooks", one(tensor(hooks=ordered_dict({1: GLOBAL("torch", "Tensor")}))))


@attack(26, "", REFUSED)
def tensors_of_other_kinds():
    """Sparse, nested, meta and quantised tensors, and dtypes that safetensors does not have."""
    sparse = (GLOBAL("torch", "sparse_coo"), (tensor(), tensor(), (4,)))
    yield "sparse", one(call("torch._utils", "_rebuild_sparse_tensor", *sparse)), "sparse"
    yield (
        "meta",
        one(call("torch._utils", "_rebuild_meta_tensor_no_storage", GLOBAL("torch", "float32"), (4,), (1,), False)),
        "meta",
    )
    yield (
        "nested",
        one(call("torch._utils", "_rebuild_nested_tensor", tensor(), tensor(), tensor(), tensor())),
        "nested",
    )
    quant = (GLOBAL("torch", "per_tensor_affine"), 1.0, 0)
    yield (
        "qint8",
        torch_file(
            state_dict(
                {
                    "w": call(
                        "torch._utils",
                        "_rebuild_qtensor",
                        storage("0", "QInt8Storage", 16),
                        0,
                        (16,),
                        (1,),
                        quant,
                        False,
                        ordered_dict(),
                    )
                }
            )
        ),
        "qint|quant",
    )
    yield "complex128", one(tensor(kind="ComplexDoubleStorage", numel=1, shape=(1,))), "complex128|ComplexDouble"
    yield "bits", torch_file(state_dict({"w": tensor3("0", "bits16", 16, (8,))})), "bits16"
    yield "typed-storage", one(call("torch.storage", "TypedStorage", storage())), "TypedStorage|not|no tensors"
    yield "bare-storage", one(storage()), "storage|not"


@attack(27, "", HARMLESS, holds={"w": b"".join(FOUR[i : i + 4][::-1] for i in range(0, 16, 4))})
def big_endian():
    """An honest big-endian file: swapped by element, or refused, but never read as it lies."""
    yield "big", torch_file(state_dict({"w": tensor()}), change={"byteorder": b"big"})


@pytest.mark.parametrize("case", harness.ATTACKS[__name__], ids=str)
def test_attack(case, watcher, tmp_path):
    harness.check(case, watcher, tmp_path)
