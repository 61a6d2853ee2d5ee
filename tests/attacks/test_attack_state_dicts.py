"""Lines 21, 22 and 41: what a state dict may say of itself, its names, and values that a reader might well model."""

from __future__ import annotations

import harness
import pytest
from harness import EITHER, HARMLESS, HONEST, REFUSED, attack, case

from assemble import (
    BUILD,
    FOUR,
    GLOBAL,
    MARK,
    NEWOBJ,
    SHORT_BINBYTES,
    SYS_INFO,
    Code,
    asm,
    call,
    checkpoint,
    int8_storages,
    int8_v1,
    new,
    ordered_dict,
    program,
    state_dict,
    string,
    tensor,
    torch_file,
    value,
)  # fmt: skip

V1 = "unsloth_prequant_transformer_state_dict_v1"
V2 = "unsloth_prequant_transformer_state_dict_v2"
V3 = "unsloth_prequant_transformer_state_dict_v3"
TE = "unsloth_prequant_text_encoder_state_dict_v1"
SYSTEM = call("os", "system", "touch canary")
OTHER = bytes(range(16))


def tagged(items: object, metadata: object = None, tag: object = TE, **storages: bytes) -> bytes:
    return torch_file(checkpoint(tag, {} if metadata is None else metadata, items), {"0": FOUR, **storages})


def named(*names: str | Code) -> bytes:
    """A plain state dict with a good tensor and one under each name."""
    return torch_file(
        state_dict({"good.weight": tensor(), **{name: tensor("1") for name in names}}), {"0": FOUR, "1": OTHER}
    )


@attack(22, "", HONEST)
def control():
    """The honest files from which the others differ."""
    yield case(
        "tagged",
        tagged({"a.w": tensor(), "root": tensor("1")}, **{"1": OTHER}),
        holds={"a.w": FOUR, "unsloth_root::root": OTHER},
    )
    yield case(
        "ordered-dict",
        torch_file(program(ordered_dict({"a.w": tensor()}, state={"_metadata": ordered_dict({"": {"version": 1}})}))),
        holds={"a.w": FOUR},
    )
    yield case("nested", torch_file(program(value({"state_dict": {"a.w": tensor()}, "epoch": 3}))), holds={"a.w": FOUR})


@attack(21, "torch weights_only's own list, ao#3077", EITHER)
def values_that_others_model():
    """Callables that some loaders allow, with a payload for an argument or a harmful meaning: data to us, or
    refused."""
    yield (
        "codecs-encode",
        torch_file(state_dict({"w": call("_codecs", "encode", "\xff", "latin1")})),
        r"_codecs[. ]encode",
    )
    dtype = call("numpy", "dtype", "f8", False, True)
    yield (
        "numpy-scalar",
        torch_file(state_dict({"w": call("numpy.core.multiarray", "scalar", dtype, bytes(8))})),
        "numpy",
    )
    yield (
        "numpy-object",
        torch_file(
            state_dict(
                {"w": call("numpy.core.multiarray", "scalar", call("numpy", "dtype", "O"), bytes(program(SYSTEM)))}
            )
        ),
        "numpy",
    )
    yield (
        "numpy-array",
        torch_file(
            state_dict({"w": call("numpy._core.multiarray", "_reconstruct", GLOBAL("numpy", "ndarray"), (0,), b"b")})
        ),
        "numpy",
    )
    yield (
        "defaultdict",
        torch_file(program(call("collections", "defaultdict", GLOBAL("os", "system")))),
        r"defaultdict|os[. ]system",
    )
    yield "counter", torch_file(program(call("collections", "Counter", ["a"]))), "Counter"
    yield (
        "getattr",
        torch_file(state_dict({"w": call("builtins", "getattr", GLOBAL("torch", "Tensor"), "__class__")})),
        "getattr|no tensors",
    )
    yield (
        "getattr-of-evil",
        torch_file(state_dict({"w": call("builtins", "getattr", GLOBAL("os", "path"), "os")})),
        "getattr|os[. ]path",
    )
    kernel = ("torchao.quantization.quantize_.common.kernel_preference", "KernelPreference")
    yield (
        "getattr-of-an-enum",
        torch_file(state_dict({"w": call("builtins", "getattr", GLOBAL(*kernel), "__class__")})),
        "getattr|KernelPreference|no tensors",
    )
    yield "enum-as-weight", torch_file(state_dict({"w": call(*kernel, "auto")})), "KernelPreference|tensor"
    yield (
        "enum-member-unknown",
        torch_file(checkpoint(V1, {"scheme": "x"}, {"a.w": call(*kernel, "__class__")})),
        "KernelPreference|tensor",
    )
    yield (
        "ordered-dict-of-pairs",
        torch_file(program(call("collections", "OrderedDict", [["a", SYSTEM]]))),
        r"os[. ]system",
    )
    yield "ordered-dict-of-evil", torch_file(program(call("collections", "OrderedDict", SYSTEM))), r"os[. ]system"
    yield (
        "ordered-dict-by-newobj",
        torch_file(program(asm(GLOBAL("collections", "OrderedDict"), value((SYSTEM,)), NEWOBJ))),
        r"os[. ]system",
    )
    yield (
        "set-state",
        torch_file(state_dict({"w": new("torch.nn.modules.linear", "Linear", state={"weight": tensor()})})),
        "Linear|module",
    )
    yield "bytes-io", torch_file(state_dict({"w": call("_io", "BytesIO", bytes(program(SYSTEM)))})), "BytesIO"
    yield "random-generator", torch_file(state_dict({"w": call("torch", "Generator")})), "Generator|no tensors"


@attack(22, "", EITHER)
def state_dict_that_is_none():
    """A checkpoint whose `state_dict`, `metadata` or tag is something else."""
    for label, item in (
        ("list", []),
        ("text", "x"),
        ("none", None),
        ("int", 3),
        ("tensor", tensor()),
        ("tuple", ({"a.w": tensor()},)),
        ("bytes", b"x"),
    ):
        yield f"state-dict-{label}", tagged(item), "state_dict"
        if label != "none":
            yield f"metadata-{label}", tagged({"a.w": tensor()}, metadata=item), "metadata"
    yield "missing", torch_file(program(value({"format": TE, "metadata": {}}))), "state_dict"
    for label, tag in (
        ("unknown", "unsloth_prequant_text_encoder_state_dict_v9"),
        ("empty", ""),
        ("int", 1),
        ("list", [TE]),
        ("bytes", TE.encode()),
        ("near", TE + "\n"),
        ("control", "\x1b[31m"),
    ):
        yield f"tag-{label}", tagged({"a.w": tensor()}, tag=tag), "tag|format"
    yield (
        "metadata-int-at-the-top",
        torch_file(program(value({"format": TE, "metadata": 3, "state_dict": {"a.w": tensor()}}))),
        "metadata",
    )
    for label, top in (
        ("list", [tensor()]),
        ("tuple", (tensor(),)),
        ("text", "x"),
        ("none", None),
        ("tensor", tensor()),
        ("int", 3),
        ("empty-list", []),
    ):
        yield f"top-{label}", torch_file(program(value(top))), "state dict|tensor|holds|top"
    yield (
        "v1-with-rotation",
        tagged({"a.w": tensor()}, {"activation_rotation": {"kind": "convrot_hadamard_v1"}}, V1),
        "activation_rotation|v1|declare",
    )
    yield "v1-with-policy", tagged({"a.w": tensor()}, {"nvfp4_policy": {"x": 1}}, V1), "nvfp4_policy|declare"
    yield "v2-without-rotation", tagged({"a.w": tensor()}, {}, V2), "activation_rotation|declare"
    yield "v2-with-null", tagged({"a.w": tensor()}, {"activation_rotation": None}, V2), "activation_rotation|declare"
    yield "v2-with-empty", tagged({"a.w": tensor()}, {"activation_rotation": {}}, V2), "activation_rotation|declare"
    yield "v3-without-policy", tagged({"a.w": tensor()}, {}, V3), "nvfp4_policy|declare"
    yield "weight-a-number", torch_file(state_dict({"a.w": tensor(), "a.b": 3})), "a.b"
    yield "weight-a-dict", torch_file(state_dict({"a.w": tensor(), "a.b": {"c": tensor()}})), "a.b"
    yield "text-encoder-quantised", torch_file(checkpoint(TE, {}, {"a.w": int8_v1()}), int8_storages()), "a.w"


@attack(22, "", EITHER)
def state_of_an_ordered_dict():
    """What torch hangs on a state dict, with something else in it."""
    for label, state in (
        ("evil-metadata", {"_metadata": SYSTEM}),
        ("evil-inside", {"_metadata": ordered_dict({"": {"version": SYSTEM}})}),
        ("class", {"_metadata": ordered_dict(), "__class__": GLOBAL("os", "system")}),
        ("tuple", ({"_metadata": ordered_dict()}, {"x": SYSTEM})),
        ("call", SYSTEM),
    ):
        yield label, torch_file(program(ordered_dict({"a.w": tensor()}, state=state))), r"os[. ]system|state|__class__"
    yield (
        "other-key",
        torch_file(program(ordered_dict({"a.w": tensor()}, state={"__class__": "dict"}))),
        "state|__class__|OrderedDict",
    )
    yield (
        "items",
        torch_file(program(asm(ordered_dict({"a.w": tensor()}), MARK, string("x"), b"e"))),
        "OrderedDict|item|APPEND",
    )


@attack(22, "", HARMLESS)
def state_of_an_ordered_dict_that_is_harmless():
    """`_metadata` of any plain value says nothing about tensors."""
    for label, state in (
        ("none", {"_metadata": None}),
        ("list", {"_metadata": [1]}),
        ("text", {"_metadata": "x"}),
        ("empty", {}),
    ):
        yield case(label, torch_file(program(ordered_dict({"a.w": tensor()}, state=state))), holds={"a.w": FOUR})
    twice = asm(ordered_dict({"a.w": tensor()}, state={"_metadata": None}), value({"_metadata": [1]}), BUILD)
    yield case("twice", torch_file(program(twice)), holds={"a.w": FOUR})


@attack(22, "", HARMLESS)
def names_as_data():
    """Names that look like paths or commands are text: kept to the letter, used for nothing, or refused."""
    for name in (
        "../../../../tmp/canary", "/etc/passwd.x", "a\0b.c", "..", ".", "a..b", ".a", "a.", "~/.ssh/id.rsa", "$(touch canary).w", "C:\\x.y",
        "a\nb.c", "a\x1b[31m.b", "\u202ea.b", "\ufeffa.b", "a.\u0301b", "x" * 5000 + ".y", "a b.c d", "\U0001f600.w", "%s%n.w", "{0}.w",
        "__class__.w", "__dict__", "..%2f.w", "<script>.w", "'; DROP TABLE x;--.w", '"quoted".w', "a\\.b", "\u2028.w",
    ):  # fmt: skip
        yield case(ascii(name)[:30].replace("/", "|"), named(name), holds={"good.weight": FOUR, name: OTHER})
    yield case("empty", named(""))
    yield case(
        "twins",
        named("\u00e9.w", "e\u0301.w", "\uff41.w", "a.w", "\u0430.w"),
        holds={"good.weight": FOUR, "a.w": OTHER},
    )


@attack(22, "", EITHER, "utf|surrogate|unicode|name|argument")
def names_that_are_no_unicode():
    """A lone surrogate, which no header in UTF-8 can hold; broken UTF-8."""
    yield "surrogate", named(string(b"a.\xed\xa0\x80"))
    yield "bad-utf8", named(string(b"a.\xff"))
    yield "overlong", named(string(b"a.\xc0\xae"))
    escaped = asm(b"Va.\\ud800\n")
    yield "surrogate-by-escape", torch_file(state_dict({escaped: tensor()}))
    yield case("metadata-value", tagged({"a.w": tensor()}, {"x": asm(b"V\\udc00\n")}), verdict=HARMLESS)
    yield case("metadata-key", tagged({"a.w": tensor()}, {asm(b"V\\udc00\n"): 1}), verdict=HARMLESS)
    yield "string-opcode", torch_file(state_dict({asm(b"S'\\ud800'\n"): 3})), ""


@attack(22, "", REFUSED, "name|unsloth_root|format|tensor_names|__metadata__|metadata|key|header")
def names_of_the_header():
    """Names that are keys of the output's own header, in a checkpoint with a TAG or without."""
    for name in ("__metadata__", "format", "tensor_names"):
        yield f"plain-{name}", named(name)
    for name in (
        "__metadata__",
        "format",
        "tensor_names",
        "unsloth_format",
        "unsloth_metadata",
        "unsloth_source",
        "unsloth_root_tensors",
        "depickle_order",
        "depickle_header",
        "depickle_ties",
    ):
        yield f"tagged-{name}", tagged({"a.w": tensor(), name: tensor("1")}, **{"1": OTHER})
    yield "root-prefix", tagged({"a.w": tensor(), "unsloth_root::a.b": tensor("1")}, **{"1": OTHER})
    yield "root-prefix-plain", named("unsloth_root::a.b")
    yield (
        "format-beside-weights",
        torch_file(state_dict({"a.w": tensor(), "format": tensor("1")}), {"0": FOUR, "1": OTHER}),
    )


@attack(22, "", REFUSED)
def names_that_collide():
    """A plain tensor under the name that a quantised weight's part will get."""
    parts = {**int8_storages(), "0": FOUR, "1": OTHER}
    for name in ("blk.w._weight_qdata", "blk.w._weight_scale"):
        items = {"blk.w.weight": int8_v1(), name: tensor("1")}
        yield name, torch_file(checkpoint(V1, {"scheme": "int8"}, items), parts), "blk.w"
        yield f"plain-{name}", torch_file(state_dict(items), parts), "blk.w"
    yield (
        "root-and-prefixed",
        tagged({"a.w": tensor(), "x": tensor(), "unsloth_root::x": tensor("1")}, **{"1": OTHER}),
        "unsloth_root|x",
    )
    yield (
        "root-quantised",
        torch_file(checkpoint(V1, {"scheme": "int8"}, {"weight": int8_v1()}), int8_storages()),
        "weight",
    )


@attack(22, "", EITHER)
def metadata_that_json_cannot_hold():
    """Metadata of objects, of keys that become one, of depth without end."""
    for label, item in (
        ("bytes", SHORT_BINBYTES(b"x")),
        ("call", SYSTEM),
        ("global", GLOBAL("os", "path")),
        ("tensor", tensor()),
        ("set", asm(b"\x8f")),
        ("ext", asm(b"\x82\x01")),
        ("reference", asm(string("x"), b"Q")),
        ("dtype-evil", GLOBAL("torch", "system")),
    ):
        yield (
            label,
            tagged({"a.w": tensor()}, {"k": item}),
            "metadata|k|" + (r"os[. ](system|path)" if label in {"call", "global"} else ""),
        )
        yield f"deep-{label}", tagged({"a.w": tensor()}, {"k": [{"x": (item,)}]}), "metadata|k"
    yield "keys-become-one", tagged({"a.w": tensor()}, {"true": 1, True: 2}), "true|key|metadata"
    yield "keys-become-one-int", tagged({"a.w": tensor()}, {"3": 1, 3: 2}), "3|key|metadata"
    yield "keys-become-one-none", tagged({"a.w": tensor()}, {"null": 1, None: 2}), "null|key|metadata"
    yield "tuple-key", tagged({"a.w": tensor()}, {("a",): 1}), "key|tuple|metadata"
    yield "bytes-key", tagged({"a.w": tensor()}, {b"a": 1}), "key|bytes|metadata"
    yield "call-key", tagged({"a.w": tensor()}, {SYSTEM: 1}), r"os[. ]system|key"
    deep = asm(b"]" * 3000, value(1), b"a" * 3000)
    yield "deep", tagged({"a.w": tensor()}, {"k": deep}), "metadata|nest|deep|depth|limit"
    yield (
        "version-evil",
        tagged({"a.w": tensor()}, {"v": asm(GLOBAL("torch.torch_version", "TorchVersion"), value((SYSTEM,)), NEWOBJ)}),
        r"os[. ]system|TorchVersion",
    )
    yield "device-evil", tagged({"a.w": tensor()}, {"d": call("torch", "device", SYSTEM)}), r"os[. ]system|device"
    yield "size-evil", tagged({"a.w": tensor()}, {"d": call("torch", "Size", [SYSTEM])}), r"os[. ]system|Size"


@attack(22, "", HARMLESS)
def metadata_as_data():
    """Metadata that is awkward but plain: numbers without end, control characters, keys of other types."""
    for label, item in (
        ("nan", float("nan")), ("inf", float("-inf")), ("huge-int", 2**1000), ("minus-zero", -0.0), ("control", "\x1b[2J\0"), ("empty-key", {"": 1}),
        ("true-key", {True: 1}), ("none-key", {None: 1}), ("float-key", {1.5: 1}), ("html", "<script>"), ("sys", SYS_INFO), ("json", '{"__metadata__": 1}'),
        ("tag-again", {"format": "x", "tensor_names": "[]"}), ("proto", {"__proto__": {"x": 1}}), ("class", {"__class__": "x"}),
    ):  # fmt: skip
        yield case(label, tagged({"a.w": tensor()}, {"k": item}), holds={"a.w": FOUR})


@attack(41, "HiddenLayer 2024, 'Silent Sabotage'", REFUSED, unclean=True)
def secrets_of_the_host():
    """Whoever converts for others has a token in the environment: nothing reads it, and no message shows it."""
    for module, name, *args in (
        ("os", "getenv", "HF_TOKEN"),
        ("os", "putenv", "HF_TOKEN", "x"),
        ("huggingface_hub", "get_token"),
        ("huggingface_hub", "HfApi"),
        ("builtins", "print", "HF_TOKEN"),
        ("posixpath", "expandvars", "$HF_TOKEN"),
        ("os.path", "expanduser", "~/.cache/huggingface/token"),
        ("pathlib", "Path", "/root/.cache/huggingface/token"),
        ("string", "Template", "$HF_TOKEN"),
    ):
        yield f"{module}.{name}", torch_file(state_dict({"w": call(module, name, *args)})), f"{module}.{name}"
    yield "format-string", torch_file(state_dict({"w": call("os", "{0.__globals__[os].environ}")})), "os"
    yield "in-metadata", tagged({"a.w": tensor()}, {"x": call("os", "getenv", "HF_TOKEN")}), "os.getenv"
    yield "payload-in-a-name", torch_file(state_dict({"$HF_TOKEN": call("os", "getenv", "HF_TOKEN")})), "os.getenv"


@pytest.mark.parametrize("case", harness.ATTACKS[__name__], ids=str)
def test_attack(case, watcher, tmp_path):
    harness.check(case, watcher, tmp_path)
