"""The ComfyUI twin: what each weight becomes, to the byte; names, refusals, the dry run, and twins that lie.

Sources are assembled here; what the twin must hold is worked out here again, slowly. comfy-kitchen's own word is in
`oracle/test_kitchen.py`.
"""

from __future__ import annotations

import hashlib
import json
import random
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import assemble as a
import depickle
import outside
from depickle import rules, undo, writer
from depickle.cli import main

V1 = "unsloth_prequant_transformer_state_dict_v1"
V2 = "unsloth_prequant_transformer_state_dict_v2"
CONVROT = "unsloth_prequant_text_encoder_int8_convrot_v1"
FIXTURES = Path(__file__).resolve().parent / "data" / "fixtures"
ALLOWED = {*("F64", "F32", "F16", "BF16", "I64", "I32", "I16", "I8", "U8", "BOOL", "F8_E4M3", "F8_E5M2", "C64")} | {
    *("U64", "U32", "U16")
}
KIND = {"float32": ("FloatStorage", 4), "bfloat16": ("BFloat16Storage", 2), "float16": ("HalfStorage", 2)}
KIND |= {"float64": ("DoubleStorage", 8), "int8": ("CharStorage", 1), "uint8": ("ByteStorage", 1)}


@dataclass
class Source:
    """A state dict with its storages, of random bytes unless they are given."""

    items: dict[str, Any] = field(default_factory=dict)
    data: dict[str, bytes] = field(default_factory=dict)
    chance: random.Random = field(default_factory=lambda: random.Random(7))

    def tensor(self, key: str, dtype: str, shape: tuple[int, ...], data: bytes | None = None) -> Any:
        """A tensor over a storage of its own."""
        kind, width = KIND.get(dtype, (None, 1))
        numel = 1
        for size in shape:
            numel *= size
        self.data[key] = self.chance.randbytes(numel * width) if data is None else data
        return a.tensor3(key, dtype, numel, shape) if kind is None else a.tensor(key, kind, numel, shape)

    def plain(self, name: str, dtype: str, shape: tuple[int, ...], data: bytes | None = None) -> None:
        self.items[name] = self.tensor(name, dtype, shape, data)

    def weight(self, name: str, kind: str, shape: tuple[int, ...], state: dict[str, Any]) -> None:
        module = "torchao.prototype.mx_formats"
        places = {"MXTensor": f"{module}.mx_tensor", "NVFP4Tensor": f"{module}.nvfp4_tensor"}
        self.items[name] = a.wrapper((places.get(kind, "torchao.quantization"), kind), "bfloat16", shape, state)

    def int8(self, name: str, rows: int, cols: int, *, scale: str = "float32", per: str = "row", **state: Any) -> None:
        count = {"row": (rows, 1), "tensor": (1, 1), "group": (rows, cols // 2)}[per]
        numbers = struct.pack(f"<{count[0] * count[1]}e", *(i / 8 for i in range(count[0] * count[1])))
        known = {
            "qdata": self.tensor(f"{name}.q", "int8", (rows, cols)),
            "block_size": [rows // count[0], cols // count[1]],
        }
        known["scale"] = self.tensor(f"{name}.s", scale, count, numbers if scale == "float16" else None)
        self.weight(name, "Int8Tensor", (rows, cols), known | {"act_quant_kwargs": None, "zero_point": None} | state)

    def float8(
        self,
        name: str,
        rows: int,
        cols: int,
        dtype: str = "float8_e4m3fn",
        *,
        per: str = "tensor",
        scale: str = "float32",
    ) -> None:
        count = {"tensor": (1, 1), "row": (rows, 1)}[per]
        state = {"qdata": self.tensor(f"{name}.q", dtype, (rows, cols)), "block_size": [rows // count[0], cols]}
        state["scale"] = self.tensor(f"{name}.s", scale, count)
        self.weight(name, "Float8Tensor", (rows, cols), state | {"mm_config": None, "act_quant_kwargs": None})

    def mx(self, name: str, rows: int, cols: int, *, scale: bytes | None = None, qdata: bytes | None = None) -> None:
        scale = bytes(self.chance.randrange(1, 255) for _ in range(rows * cols // 32)) if scale is None else scale
        state = {
            "qdata": self.tensor(f"{name}.q", "float8_e4m3fn", (rows, cols), qdata),
            "scale": self.tensor(f"{name}.s", "float8_e8m0fnu", (rows, cols // 32), scale),
            "elem_dtype": a.GLOBAL("torch", "float8_e4m3fn"),
            "block_size": 32,
            "orig_dtype": a.GLOBAL("torch", "bfloat16"),
            "kernel_preference": a.call(
                "torchao.quantization.quantize_.common.kernel_preference", "KernelPreference", "auto"
            ),
            "act_quant_kwargs": None,
            "is_swizzled_scales": False,
        }
        self.weight(name, "MXTensor", (rows, cols), state)

    def nvfp4(self, name: str, rows: int, cols: int, *, scale: bytes | None = None, act: bytes | None = None) -> None:
        state = {
            "qdata": self.tensor(f"{name}.q", "uint8", (rows, cols // 2)),
            "scale": self.tensor(f"{name}.s", "float8_e4m3fn", (rows, cols // 16)),
            "per_tensor_scale": None if scale is None else self.tensor(f"{name}.p", "float32", (), scale),
            "act_per_tensor_scale": None if act is None else self.tensor(f"{name}.a", "float32", (), act),
            "block_size": 16,
            "orig_dtype": a.GLOBAL("torch", "bfloat16"),
            "is_swizzled_scales": False,
            "use_triton_kernel": False,
            "act_quant_kwargs": None,
        }
        self.weight(name, "NVFP4Tensor", (rows, cols), state)

    def write(self, path: Path, tag: str | None = None, metadata: Any = None) -> Path:
        body = a.state_dict(self.items) if tag is None else a.checkpoint(tag, metadata or {}, self.items)
        path.write_bytes(a.torch_file(body, self.data))
        return path


def blocked(scales: bytes, rows: int, cols: int) -> bytes:
    """Scales in the order of tensor cores, one by one."""
    across = -(-cols // 4)
    out = bytearray(-(-rows // 128) * across * 512)
    for row in range(rows):
        for col in range(cols):
            block = (row // 128) * across + col // 4
            out[block * 512 + (row % 32) * 16 + (row % 128) // 32 * 4 + col % 4] = scales[row * cols + col]
    return bytes(out)


def swapped(data: bytes) -> bytes:
    """The nibbles of each byte the other way round."""
    return bytes((byte & 15) << 4 | byte >> 4 for byte in data)


@pytest.fixture
def twin(tmp_path: Path) -> Callable[..., outside.File]:
    """Convert a source, and read its twin without depickle."""

    def make(source: Source, tag: str | None = None, metadata: Any = None, **options: Any) -> outside.File:
        path = source.write(tmp_path / "m.pt", tag, metadata)
        record = depickle.convert(path, tmp_path / "out", target="comfyui", overwrite=True, **options)
        assert record.dst == str(tmp_path / "out" / "m-ComfyUI.safetensors")
        assert depickle.verify(path, record.dst).sealed
        found = outside.read(Path(record.dst))
        assert outside.layout_problems(found) == []
        return found

    return make


def shown(file: outside.File) -> dict[str, tuple[str, tuple[int, ...]]]:
    return {name: (tensor.dtype, tensor.shape) for name, tensor in file.tensors.items()}


def marker(file: outside.File, layer: str) -> Any:
    return json.loads(file.tensors[f"{layer}.comfy_quant"].data)


# --- what each weight becomes ---------------------------------------------------------------------------------------


def test_int8_per_row(twin: Any) -> None:
    """Data as it is; the scale as float32, whatever it was."""
    source = Source()
    for dtype in ("float32", "bfloat16", "float16"):
        source.int8(f"m.{dtype}.weight", 5, 8, scale=dtype)
    file = twin(source)
    for dtype, code in (("float32", "f"), ("float16", "e")):
        scale = file.tensors[f"m.{dtype}.weight_scale"]
        assert (scale.dtype, scale.shape) == ("float32", (5, 1))
        wide = struct.pack("<5f", *struct.unpack(f"<5{code}", source.data[f"m.{dtype}.weight.s"]))
        assert scale.data == (source.data[f"m.{dtype}.weight.s"] if code == "f" else wide)
        assert file.tensors[f"m.{dtype}.weight"].data == source.data[f"m.{dtype}.weight.q"]
    halves = source.data["m.bfloat16.weight.s"]
    assert file.tensors["m.bfloat16.weight_scale"].data == b"".join(
        b"\0\0" + halves[i : i + 2] for i in range(0, 10, 2)
    )
    assert marker(file, "m.float32") == {"format": "int8_tensorwise", "full_precision_matrix_mult": True}


def test_int8_per_tensor_and_zero_points(twin: Any) -> None:
    """One scale is a scalar; zero points that are all zero are left out."""
    source = Source()
    source.int8("m.weight", 6, 4, per="tensor", zero_point=source.tensor("z", "int8", (1, 1), b"\0"))
    file = twin(source)
    assert shown(file) == {
        "m.weight_scale": ("float32", ()),
        "m.weight": ("int8", (6, 4)),
        "m.comfy_quant": ("uint8", (len(file.tensors["m.comfy_quant"].data),)),
    }


def test_dynamic_activations_leave_the_flag_out(twin: Any) -> None:
    """v1's dynamic int8: ComfyUI quantises the input too, so nothing tells it not to."""
    source = Source({"m.weight": a.int8_v1()}, a.int8_storages())
    file = twin(source, V1, {"scheme": "int8"})
    assert marker(file, "m") == {"format": "int8_tensorwise"}
    assert file.tensors["m.weight_scale"].data == b"\0\0\x80\x3f" * 2


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
def test_float8(dtype: str, twin: Any) -> None:
    """One scale a tensor becomes a scalar."""
    source = Source()
    source.float8("m.weight", 5, 8, dtype)
    file = twin(source)
    assert marker(file, "m")["format"] == dtype
    assert (shown(file)["m.weight_scale"], shown(file)["m.weight"]) == (("float32", ()), (dtype, (5, 8)))
    assert file.tensors["m.weight_scale"].data == source.data["m.weight.s"]


@pytest.mark.parametrize(("rows", "cols"), [(128, 128), (256, 256), (130, 160), (1, 32), (40, 96)])
def test_mxfp8(rows: int, cols: int, twin: Any) -> None:
    """Scales in blocks, as bytes; rows of zeros up to a multiple of 32."""
    source = Source()
    source.mx("m.weight", rows, cols)
    file = twin(source)
    padded, across = -(-rows // 32) * 32, -(-cols // 128) * 4
    assert shown(file)["m.weight"] == ("float8_e4m3fn", (padded, cols))
    assert shown(file)["m.weight_scale"] == ("uint8", (-(-rows // 128) * 128, across))
    assert file.tensors["m.weight"].data == source.data["m.weight.q"] + bytes((padded - rows) * cols)
    assert file.tensors["m.weight_scale"].data == blocked(source.data["m.weight.s"], rows, cols // 32)


def test_nvfp4_of_torchao_0_14_keeps_its_nibbles(twin: Any) -> None:
    """It had them as ComfyUI has: the same bytes, though today's torchao wants them the other way round."""
    source = Source()
    source.nvfp4("m.weight", 16, 32)
    old = source.items["m.weight"].replace(*(a.value(name) for name in ("scale", "_scale_e4m3")))
    for name, was in (("qdata", "_data"), ("per_tensor_scale", "_per_tensor_scale"), ("block_size", "_block_size")):
        old = old.replace(a.value(name), a.value(was))
    source.items["m.weight"] = a.Code(old)
    assert twin(source).tensors["m.weight"].data == source.data["m.weight.q"]


@pytest.mark.parametrize("scale", [None, struct.pack("<f", 0.375)])
@pytest.mark.parametrize(("rows", "cols"), [(128, 64), (48, 48), (17, 32)])
def test_nvfp4(rows: int, cols: int, scale: bytes | None, twin: Any) -> None:
    """Nibbles change places, scales lie in blocks, a missing scale of the tensor is 1."""
    source = Source()
    source.nvfp4("m.weight", rows, cols, scale=scale, act=scale)
    file = twin(source)
    padded, across = -(-rows // 16) * 16, -(-cols // 64) * 4
    assert shown(file)["m.weight"] == ("uint8", (padded, cols // 2))
    assert shown(file)["m.weight_scale"] == ("float8_e4m3fn", (-(-rows // 128) * 128, across))
    assert file.tensors["m.weight"].data == swapped(source.data["m.weight.q"]) + bytes((padded - rows) * cols // 2)
    assert file.tensors["m.weight_scale"].data == blocked(source.data["m.weight.s"], rows, cols // 16)
    assert (shown(file)["m.weight_scale_2"], file.tensors["m.weight_scale_2"].data) == (
        ("float32", ()),
        struct.pack("<f", 1) if scale is None else scale,
    )
    assert ("m.input_scale" in file.tensors) == (scale is not None)


def test_header(twin: Any) -> None:
    """`format`, the table of markers, where it came from; no key of torchao's, tag and metadata in our own."""
    source = Source()
    source.int8("m.weight", 2, 4)
    source.plain("m.bias", "bfloat16", (2,))
    source.plain("pad", "float32", (3,))
    file = twin(source, V1, {"scheme": "int8", "n": 1})
    assert list(file.metadata) == [
        *("format", "_quantization_metadata", "depickle_twin", "depickle_source", "depickle_header")
    ]
    assert file.metadata["format"] == "pt"
    layers = {"m": {"format": "int8_tensorwise", "full_precision_matrix_mult": True}}
    assert json.loads(file.metadata["_quantization_metadata"]) == {"format_version": "1.0", "layers": layers}
    assert json.loads(file.metadata["depickle_twin"]) == {
        "target": "comfyui",
        "format": V1,
        "metadata": {"scheme": "int8", "n": 1},
        "names": {},
    }
    assert file.tensors["pad"].data == source.data["pad"]


def test_plain_checkpoints_have_no_table(twin: Any) -> None:
    """Without a quantised layer the twin is an ordinary file."""
    source = Source()
    source.plain("a.b", "float32", (3,))
    assert "_quantization_metadata" not in twin(source).metadata


def test_markers_of_the_source_pass_through(twin: Any) -> None:
    """A text encoder that holds ComfyUI's layers already: every tensor as it is, and the table says it too."""
    source = Source()
    text = b'{"format": "int8_tensorwise", "convrot": true, "convrot_groupsize": 256}'
    source.plain("m.weight", "int8", (2, 4))
    source.plain("m.weight_scale", "float32", (2, 1))
    source.plain("m.comfy_quant", "uint8", (len(text),), text)
    file = twin(source, CONVROT, key_prefix="te.")
    assert {name: tensor.data for name, tensor in file.tensors.items()} == {
        f"te.{name}": data for name, data in source.data.items()
    }
    assert json.loads(file.metadata["_quantization_metadata"])["layers"] == {"te.m": json.loads(text)}


def test_a_twin_is_a_source_like_any_other(twin: Any, tmp_path: Path) -> None:
    """Its tensors and markers as they are, for ComfyUI again or for others; the record says what is not carried."""
    source = Source()
    source.int8("m.weight", 2, 4)
    first = twin(source, V1, {"scheme": "int8"})
    path = tmp_path / "out" / "m-ComfyUI.safetensors"
    for target in ("comfyui", "hf"):
        record = depickle.convert(path, tmp_path / target, target=target)
        again = outside.read(Path(record.dst))
        assert again.tensors == first.tensors
        assert ("_quantization_metadata" in again.metadata) == (target == "comfyui")
        assert "tag and metadata" in record.warnings[0]
        assert depickle.verify(path, record.dst).sealed


def test_scales_pass_in_whole_blocks(twin: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """However small the pieces are that the writer takes, blocks of scales are not torn."""
    monkeypatch.setattr(writer, "BLOCK", 1000)
    source = Source()
    source.mx("m.weight", 700, 160)
    assert twin(source).tensors["m.weight_scale"].data == blocked(source.data["m.weight.s"], 700, 5)


def test_views_that_are_not_contiguous(twin: Any) -> None:
    """A transposed scale and a transposed plain tensor: their elements, in order."""
    source = Source()
    source.mx("m.weight", 256, 128)
    state = a.tensor3("m.weight.s", "float8_e8m0fnu", 256 * 4, (256, 4), (1, 256))
    columns = source.data["m.weight.s"]
    source.data["m.weight.s"] = columns
    source.items["m.weight"] = a.Code(
        source.items["m.weight"].replace(a.tensor3("m.weight.s", "float8_e8m0fnu", 256 * 4, (256, 4)), state)
    )
    rows = bytes(columns[c * 256 + r] for r in range(256) for c in range(4))
    assert twin(source).tensors["m.weight_scale"].data == blocked(rows, 256, 4)


# --- ComfyUI's loader, and stricter readers, over the twins of real files -------------------------------------------


def real_twins(folder: Path) -> dict[str, outside.File]:
    found = {}
    for path in sorted(FIXTURES.glob("0.1[78].0/*.pt")):
        try:
            record = depickle.convert(path, folder / path.parent.name, target="comfyui")
        except depickle.Refused:
            continue
        found[f"{path.parent.name}/{path.name}"] = outside.read(Path(record.dst))
    return found


COMPANIONS = {
    "int8_tensorwise": {"weight": "I8", "weight_scale": "F32"},
    "float8_e4m3fn": {"weight": "F8_E4M3", "weight_scale": "F32"},
    "mxfp8": {"weight": "F8_E4M3", "weight_scale": "U8"},
    "nvfp4": {"weight": "U8", "weight_scale": "F8_E4M3", "weight_scale_2": "F32"},
}


def test_real_twins_keep_the_rules_of_their_readers(tmp_path: Path) -> None:
    """ComfyUI: known dtypes, markers of one dimension, storage of the format's dtype, scalars without a dimension.
    Unsloth Studio: matrices, nothing undeclared beside them. SGLang: a marker beside every weight of one byte."""
    twins = real_twins(tmp_path)
    assert len(twins) > 15
    for name, file in twins.items():
        assert file.metadata["format"] == "pt", name
        assert {entry["dtype"] for entry in file.entries.values()} <= ALLOWED, name
        table = json.loads(file.metadata.get("_quantization_metadata", '{"layers": {}}'))["layers"]
        marked = {key.removesuffix(".comfy_quant"): key for key in file.entries if key.endswith(".comfy_quant")}
        assert table == {layer: json.loads(file.tensors[key].data) for layer, key in marked.items()}
        for layer, said in table.items():
            own = {k.rpartition(".")[2]: file.entries[k] for k in file.entries if k.rpartition(".")[0] == layer}
            own = {part: entry for part, entry in own.items() if part not in ("comfy_quant", "bias", "input_scale")}
            assert {part: entry["dtype"] for part, entry in own.items()} == COMPANIONS[said["format"]], name
            rows, cols = own["weight"]["shape"]
            wanted = {
                "int8_tensorwise": [[], [rows, 1]],
                "float8_e4m3fn": [[]],
                "mxfp8": [[-(-rows // 128) * 128, -(-cols // 128) * 4]],
                "nvfp4": [[-(-rows // 128) * 128, -(-cols // 32) * 4]],
            }
            assert own["weight_scale"]["shape"] in wanted[said["format"]]
            assert own.get("weight_scale_2", {"shape": []})["shape"] == []
            assert set(said) <= {"format", "full_precision_matrix_mult"}
        for key, entry in file.entries.items():
            if key.endswith(".weight") and entry["dtype"] in ("F8_E4M3", "I8", "U8"):
                assert key.removesuffix(".weight") in table, f"{name}: {key}"


# --- names ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def table(tmp_path: Path) -> Callable[[Any], str]:
    """A file for --rename."""

    def write(content: Any) -> str:
        path = tmp_path / "table.json"
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return str(path)

    return write


def test_names_are_changed_as_the_table_says(twin: Any, table: Any) -> None:
    """Whole names, a star a step, the longest prefix, then the prefix of all."""
    source = Source()
    source.int8("t.blk.0.attn.weight", 2, 4)
    for name in ("t.blk.0.norm.scale", "t.blk.1.norm.scale", "t.head.bias", "rest"):
        source.plain(name, "float32", (2,))
    rules = {"t.": "x.", "t.blk.": "b.", "t.blk.*.norm.scale": "n.*.g", "t.blk.1.norm.scale": "one"}
    file = twin(source, rename=table({"rename": rules}), key_prefix="p.")
    assert set(file.tensors) == {
        *("p.b.0.attn.weight", "p.b.0.attn.weight_scale", "p.b.0.attn.comfy_quant"),
        *("p.n.0.g", "p.one", "p.x.head.bias", "p.rest"),
    }
    assert json.loads(file.metadata["depickle_twin"])["names"]["p.one"] == ["t.blk.1.norm.scale"]


QKV = {"concat": {"b.*.qkv.weight": ["b.*.q.weight", "b.*.k.weight", "b.*.v.weight"]}}


def test_rows_are_put_together(twin: Any, table: Any) -> None:
    """int8 by rows always; nvfp4 and mxfp8 in whole blocks; plain tensors."""
    source = Source()
    for part, rows in (("q", 3), ("k", 2), ("v", 1)):
        source.int8(f"b.0.{part}.weight", max(rows, 2), 4, scale="bfloat16")
        source.nvfp4(f"b.1.{part}.weight", 128 * rows if part != "v" else 40, 64, scale=b"\0\0\0\x3f")
        source.mx(f"b.2.{part}.weight", 128 * rows if part != "v" else 40, 64)
        source.plain(f"b.3.{part}.weight", "float32", (rows, 2))
        source.float8(f"b.4.{part}.weight", rows, 4)
    for part in "kv":
        source.data[f"b.4.{part}.weight.s"] = source.data["b.4.q.weight.s"]
    file = twin(source, rename=table(QKV))

    def joined(at: int, part: str) -> bytes:
        return b"".join(source.data[f"b.{at}.{name}.weight{part}"] for name in "qkv")

    assert shown(file)["b.0.qkv.weight"] == ("int8", (7, 4))
    assert file.tensors["b.0.qkv.weight"].data == joined(0, ".q")
    assert shown(file)["b.0.qkv.weight_scale"] == ("float32", (7, 1))
    assert file.tensors["b.1.qkv.weight"].data == swapped(joined(1, ".q")) + bytes(8 * 32)
    assert file.tensors["b.1.qkv.weight_scale"].data == blocked(joined(1, ".s"), 128 * 5 + 40, 4)
    assert file.tensors["b.1.qkv.weight_scale_2"].data == b"\0\0\0\x3f"
    assert file.tensors["b.2.qkv.weight_scale"].data == blocked(joined(2, ".s"), 128 * 5 + 40, 2)
    assert file.tensors["b.3.qkv.weight"].data == joined(3, "")
    assert file.tensors["b.4.qkv.weight_scale"].data == source.data["b.4.q.weight.s"]


def differing(kind: str) -> Source:
    """Three weights that do not go together."""
    source = Source()
    for at, part in enumerate("qkv"):
        name = f"b.0.{part}.weight"
        if kind == "scale":
            source.float8(name, 2, 4)
        elif kind == "scale of the tensor":
            source.nvfp4(name, 128, 64, scale=struct.pack("<f", at))
        elif kind == "rows":
            source.mx(name, 96, 64)
        elif kind == "width":
            source.plain(name, "float32", (2, 2 + at))
        elif kind == "dtype":
            source.plain(name, ("float32", "float16", "float32")[at], (2, 2))
        elif kind == "class":
            (source.int8 if at else source.float8)(name, 2, 4)
        elif kind == "plain":
            source.int8(name, 2, 4) if at else source.plain(name, "float32", (2, 4))
        elif kind == "columns":
            source.int8(name, 2, 4 + 2 * at)
    return source


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("scale", "weights that have another weight_scale"),
        ("scale of the tensor", "weights that have another weight_scale_2"),
        ("rows", "has not a multiple of 128 rows"),
        ("width", "tensors of another dtype or width"),
        ("dtype", "tensors of another dtype or width"),
        ("class", "weights of another format"),
        ("plain", "weights of another kind"),
        ("columns", "tensors of another dtype or width"),
    ],
)
def test_rows_that_do_not_go_together_are_refused(kind: str, message: str, twin: Any, table: Any) -> None:
    """Only what is exact is put together."""
    with pytest.raises(depickle.Refused, match=message) as error:
        twin(differing(kind), rename=table(QKV))
    assert "b.0.q.weight" in str(error.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"rename": {"gone": "x"}}, "names gone, which is nothing"),
        ({"rename": {"gone.": "x."}}, "names gone., which is nothing"),
        ({"rename": {"a.b": "a.c"}}, "a.b and a.c would both be called a.c"),
        ({"concat": {"n": ["a.b", "gone"]}}, "puts gone into n, which is nothing"),
        ({"concat": {"n": ["a.b", "a.b"]}}, "puts a.b into n, which is used twice"),
        ({"concat": {"n": ["gone", "a.b"]}}, "names gone, which is nothing"),
        ({"rename": {"a.b": "__metadata__"}}, "would be stored as __metadata__"),
        ({"rename": {"m.weight": "m.w"}}, "would be called m.w; ComfyUI reads quantised weights only as LAYER.weight"),
        ({"rename": {"m.weight": "weight"}}, "ComfyUI reads quantised weights only as LAYER.weight"),
        ({"rename": {"a.b": "m.weight_scale"}}, "would be stored as m.weight_scale, which is taken"),
    ],
)
def test_tables_that_do_not_fit_are_refused(content: Any, message: str, twin: Any, table: Any) -> None:
    """A rule that finds nothing, two names that become one, names that ComfyUI does not read."""
    source = Source()
    source.plain("a.b", "float32", (2,))
    source.plain("a.c", "float32", (2,))
    source.int8("m.weight", 2, 4)
    with pytest.raises(depickle.Refused, match=message):
        twin(source, rename=table(content))


@pytest.mark.parametrize(
    "content",
    [
        *("{", "[]", '{"names": {}}', '{"rename": [], "concat": {}}', '{"rename": {"a": "b", "a": "c"}}'),
        *('{"rename": {"a": 1}}', '{"rename": {"": "b"}}', '{"rename": {"a.*": "b"}}', '{"rename": {"a.*.": "b.*."}}'),
        '{"rename": {"a.b**": "c.**"}}',
        *('{"concat": {"a": ["b"]}}', '{"concat": {"a": "bc"}}', '{"concat": {"a": ["b", 1]}}'),
    ],
)
def test_tables_that_are_none_are_usage_errors(content: str, tmp_path: Path, table: Any, capsys: Any) -> None:
    """One line, status 2, nothing written."""
    source = Source()
    source.plain("a.b", "float32", (2,))
    path = str(source.write(tmp_path / "m.pt"))
    out = str(tmp_path / "out")
    assert main(["convert", path, "--out-dir", out, "--target", "comfyui", "--rename", table(content)]) == 2
    assert capsys.readouterr().err.startswith("depickle: --rename ")
    assert not Path(out).exists()


@pytest.mark.parametrize(
    "options",
    [
        ("--key-prefix", "x."),
        ("--rename", "t.json"),
        ("--allow-requantize",),
        ("--target", "comfyui", "--check-with", "torch"),
        ("--target", "comfyui", "--drop-tied-copies"),
    ],
)
def test_options_that_do_not_go_together(options: tuple[str, ...], tmp_path: Path, capsys: Any) -> None:
    """Renaming is for the twin alone; torchao does not read it; it knows no ties."""
    assert main(["convert", "m.pt", "--out-dir", str(tmp_path), *options]) == 2
    assert "comfyui" in capsys.readouterr().err


# --- refusals -------------------------------------------------------------------------------------------------------


def refused(kind: str) -> Source:
    """A source with one weight that has no exact twin."""
    source = Source()
    made = {
        "float8 per row": lambda: source.float8("m.weight", 4, 8, per="row"),
        "float8 fnuz": lambda: source.float8("m.weight", 4, 8, "float8_e4m3fnuz"),
        "groups": lambda: source.int8("m.weight", 4, 8, per="group"),
        "float64 scale": lambda: source.int8("m.weight", 4, 8, scale="float64"),
        "pre-scale": lambda: source.int8("m.weight", 4, 8, act_pre_scale=source.tensor("p", "float32", (8,))),
        "zero point": lambda: source.int8("m.weight", 2, 4, zero_point=source.tensor("z", "int8", (2, 1), b"\0\x01")),
        "no module": lambda: source.int8("weight", 2, 4),
        "parameter": lambda: source.int8("m.in_proj", 2, 4),
        "MX NaN": lambda: source.mx("m.weight", 2, 32, scale=b"\x7f\xff"),
        "MX tiny": lambda: source.mx("m.weight", 2, 32, scale=b"\x7f\0", qdata=bytes(63) + b"\x01"),
        "e8m0": lambda: source.plain("m.weight", "float8_e8m0fnu", (4,)),
        "marker": lambda: source.plain("m.comfy_quant", "uint8", (2,), b"[]"),
        "marker dtype": lambda: source.plain("m.comfy_quant", "int8", (2,), b"{}"),
        "marker text": lambda: source.plain("m.comfy_quant", "uint8", (2,), b"{x"),
        "marker size": lambda: source.plain("m.comfy_quant", "uint8", (5000,), b"{}".ljust(5000)),
    }
    made[kind]()
    return source


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("float8 per row", "m.weight: is float8 with one scale a row"),
        ("float8 fnuz", "m.weight: has data of float8_e4m3fnuz"),
        ("groups", r"m.weight: has scales of shape \[4, 4\]"),
        ("float64 scale", "m.weight: has a scale of float64"),
        ("pre-scale", "m.weight: has act_pre_scale"),
        ("zero point", "m.weight: has zero points other than 0"),
        ("no module", "weight: would be called weight"),
        ("parameter", "m.in_proj: would be called m.in_proj"),
        ("MX NaN", "m.weight: has an MX scale that is NaN"),
        ("MX tiny", r"m.weight: has MX scales of 2\*\*-127 over data that is not zero"),
        ("e8m0", "m.weight: has dtype float8_e8m0fnu, which ComfyUI does not read"),
        ("marker", "m.comfy_quant: is named like a marker"),
        ("marker dtype", "m.comfy_quant: is named like a marker"),
        ("marker text", "m.comfy_quant: is named like a marker"),
        ("marker size", "m.comfy_quant: is named like a marker"),
    ],
)
def test_what_is_not_exact_is_refused_by_name(kind: str, message: str, twin: Any) -> None:
    """With the reason, before anything is written."""
    with pytest.raises(depickle.Error, match=message):
        twin(refused(kind))


def test_mx_zero_blocks_are_fine(twin: Any) -> None:
    """2**-127 over nothing but zeros is zero to both."""
    source = Source()
    source.mx("m.weight", 2, 64, scale=b"\x7f\0\0\x70", qdata=bytes(32) + b"\0\x80" * 16 + b"\x80" * 32 + bytes(32))
    assert twin(source).tensors["m.weight"].data[:128] == source.data["m.weight.q"]


def test_rotated_weights_are_refused(twin: Any) -> None:
    """A checkpoint in another basis would compute something else."""
    source = Source({"m.weight": a.int8_v1()}, a.int8_storages())
    with pytest.raises(depickle.Refused, match="rotated basis"):
        twin(source, V2, {"activation_rotation": "convrot_hadamard_v1"})


def test_kept_weights_are_refused(tmp_path: Path) -> None:
    """What only depickle reads has no twin."""
    with pytest.raises(depickle.Refused, match="kept as it stood"):
        depickle.convert(FIXTURES / "0.17.0" / "nf4.bare.pt", tmp_path, target="comfyui", keep_unsupported=True)


# --- the record and the plan ----------------------------------------------------------------------------------------


def test_the_record_says_what_readers_should_know(tmp_path: Path) -> None:
    """Mixed formats, bare weights of one byte, odd shapes; and whose arithmetic activations have."""
    source = Source()
    source.float8("f.weight", 2, 4)
    source.int8("i.weight", 2, 4)
    source.nvfp4("n.weight", 40, 32)
    source.plain("p.weight", "int8", (2, 4))
    record = depickle.convert(source.write(tmp_path / "m.pt"), tmp_path / "out", target="comfyui")
    assert (record.serves, record.activation) == (("comfyui",), "identical")
    text = "\n".join(record.warnings)
    assert "does not take float8, int8, nvfp4 in one file" in text
    assert "1 have none, the first p.weight" in text
    assert "1 are not, the first n.weight" in text
    dynamic = Source({"m.weight": a.int8_v1()}, a.int8_storages()).write(tmp_path / "d.pt")
    record = depickle.convert(dynamic, tmp_path / "out", target="comfyui")
    assert (record.activation, record.warnings) == ("ComfyUI's own arithmetic", ())


def test_the_dry_run_shows_where_every_byte_is_from(tmp_path: Path, capsys: Any) -> None:
    """Segments follow each other from the head to the end; what is copied or literal is what the file then has."""
    source = Source()
    source.mx("m.weight", 40, 96)
    source.nvfp4("n.weight", 17, 32)
    source.int8("i.weight", 3, 4, scale="bfloat16")
    path = source.write(tmp_path / "m.pt")
    options = ["convert", str(path), "--out-dir", str(tmp_path), "--target", "comfyui"]
    assert main([*options, "--dry-run", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert main([*options, "--dry-run"]) == 0
    assert "literal" in capsys.readouterr().out
    assert main(options) == 0
    data, made = path.read_bytes(), Path(plan["dst"]).read_bytes()
    (file,) = plan["files"]
    at = file["head"]
    literal = 0
    for segment in file["segments"]:
        assert segment["at"] == at
        found = made[at : at + segment["length"]]
        if "literal" in segment:
            assert found == bytes.fromhex(segment["literal"]) * segment["times"]
            literal += 1
        elif "view" not in segment:
            _, offset, length = segment["from"]
            assert found == data[offset : offset + length]
        at += segment["length"]
    assert at == len(made) == file["length"]
    assert literal == 6  # three markers, two paddings, one scale of 1
    assert file["rules"] == {"block-scales": 2, "nibble-swap": 1, "widen-bfloat16": 1}


# --- twins that lie -------------------------------------------------------------------------------------------------


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    """A source with one weight of each kind, and its twin."""
    source = Source()
    source.int8("i.weight", 3, 4, scale="bfloat16", zero_point=source.tensor("z", "int8", (3, 1), bytes(3)))
    source.float8("f.weight", 2, 4)
    source.mx("m.weight", 5, 32)
    source.nvfp4("n.weight", 3, 16)
    source.plain("p.bias", "float32", (2,))
    source.plain("q.bias", "float32", (2,))
    path = source.write(tmp_path / "m.pt")
    record = depickle.convert(path, tmp_path / "out", target="comfyui", key_prefix="x.")
    return path, Path(record.dst)


def fails(source: Path, blob: bytes, twin: Path) -> str:
    """What verify says of a changed twin."""
    changed = twin.with_name("changed.safetensors")
    changed.write_bytes(blob)
    with pytest.raises(depickle.Error) as error:
        depickle.verify(source, changed)
    return str(error.value)


def test_any_byte_that_is_turned_is_found(pair: tuple[Path, Path]) -> None:
    """Every byte of the data that is not zero, markers included; of zeros, most of them padding, every 17th; of the
    header every 41st."""
    source, twin = pair
    blob = twin.read_bytes()
    start = 8 + struct.unpack("<Q", blob[:8])[0]
    zeros = [at for at in range(start, len(blob)) if not blob[at]]
    for at in [*range(0, start, 41), *sorted({*range(start, len(blob))} - {*zeros}), *zeros[::17]]:
        assert fails(source, blob[:at] + bytes([blob[at] ^ 1]) + blob[at + 1 :], twin)


def resealed(blob: bytes, change: Callable[[dict[str, Any], dict[str, bytes]], None]) -> bytes:
    """The twin with its header and tensors changed, and everything about its form put right again."""
    length = struct.unpack("<Q", blob[:8])[0]
    header = json.loads(blob[8 : 8 + length])
    meta = header.pop("__metadata__")
    data = {k: blob[8 + length + v["data_offsets"][0] : 8 + length + v["data_offsets"][1]] for k, v in header.items()}
    parsed = {key: json.loads(text) if key not in ("format", "depickle_header") else text for key, text in meta.items()}
    parsed["entries"] = header
    change(parsed, data)
    entries, at = {}, 0
    for key in sorted(data, key=lambda key: (outside.RANK[header[key]["dtype"]], key.encode())):
        entries[key] = {**header[key], "data_offsets": [at, at + len(data[key])]}
        at += len(data[key])
    del parsed["entries"], parsed["depickle_header"]
    spelled = {key: value if key == "format" else json.dumps(value) for key, value in parsed.items()}

    def text(seal: dict[str, str]) -> bytes:
        body = {"__metadata__": spelled | seal, **entries}
        return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()

    padding = b" " * (-(8 + len(text({"depickle_header": "0" * 64}))) % 4096)
    seal = hashlib.sha256(text({}) + padding).hexdigest()
    raw = text({"depickle_header": seal}) + padding
    return struct.pack("<Q", len(raw)) + raw + b"".join(data[key] for key in entries)


def remark(layer: str, **said: Any) -> Callable[..., None]:
    """Say something else of a layer, in the table and beside it."""

    def change(meta: dict[str, Any], data: dict[str, bytes]) -> None:
        marker = meta["_quantization_metadata"]["layers"][layer]
        marker.update({key: value for key, value in said.items() if value is not None})
        for key in [key for key, value in said.items() if value is None]:
            del marker[key]
        data[f"{layer}.comfy_quant"] = json.dumps(marker, separators=(",", ":")).encode()
        meta["entries"][f"{layer}.comfy_quant"]["shape"] = [len(data[f"{layer}.comfy_quant"])]

    return change


def truth(meta: Any, data: Any) -> None:
    pass


def spaced(meta: Any, data: Any) -> None:
    data["x.i.comfy_quant"] += b" "
    meta["entries"]["x.i.comfy_quant"]["shape"][0] += 1


def crossed(meta: Any, data: Any) -> None:
    names = meta["depickle_twin"]["names"]
    names["x.p.bias"], names["x.q.bias"] = names["x.q.bias"], names["x.p.bias"]


def twice(meta: Any, data: Any) -> None:
    meta["depickle_twin"]["names"]["x.q.bias"] = ["p.bias"]


def missing(meta: Any, data: Any) -> None:
    del data["x.q.bias"], meta["entries"]["x.q.bias"]


def nowhere(meta: Any, data: Any) -> None:
    meta["depickle_twin"]["names"]["x.z"] = ["p.bias"]


def of_nothing(meta: Any, data: Any) -> None:
    meta["depickle_twin"]["names"]["x.q.bias"] = []


def extra(meta: Any, data: Any) -> None:
    data["x.i.input_scale"] = b"\0\0\x80\x3f"
    meta["entries"]["x.i.input_scale"] = {"dtype": "F32", "shape": []}


def unscaled(meta: Any, data: Any) -> None:
    del data["x.n.weight_scale_2"], meta["entries"]["x.n.weight_scale_2"]


def narrower(meta: Any, data: Any) -> None:
    meta["entries"]["x.m.weight"]["shape"] = [64, 16]


def flat(meta: Any, data: Any) -> None:
    meta["entries"]["x.i.weight_scale"]["shape"] = [3]


def bent(meta: Any, data: Any) -> None:
    meta["entries"]["x.p.bias"]["dtype"] = "I32"


def unmarked(meta: Any, data: Any) -> None:
    del meta["_quantization_metadata"]["layers"]["x.i"]


def unlisted(meta: Any, data: Any) -> None:
    del data["x.i.comfy_quant"], meta["entries"]["x.i.comfy_quant"]


def bare(meta: Any, data: Any) -> None:
    unmarked(meta, data)
    unlisted(meta, data)


def relabelled(meta: Any, data: Any) -> None:
    meta["depickle_twin"]["format"] = V1


def reworded(meta: Any, data: Any) -> None:
    meta["depickle_twin"]["metadata"] = {"scheme": "fp8"}


def elsewhere(meta: Any, data: Any) -> None:
    meta["depickle_twin"]["target"] = "other"


def versioned(meta: Any, data: Any) -> None:
    meta["_quantization_metadata"]["format_version"] = "2.0"


def foreign(meta: Any, data: Any) -> None:
    meta["depickle_source"]["sha256"] = "0" * 64


LIES: dict[str, tuple[Callable[..., None], str]] = {
    "spelling": (spaced, "marker is not spelled"),
    "another format": (remark("x.f", format="float8_e5m2"), "expected|has data of"),
    "no format": (remark("x.f", format="nvfp5"), "has no known format"),
    "the format of another class": (remark("x.f", format="mxfp8"), "is a Float8Tensor"),
    "no full precision": (remark("x.i", full_precision_matrix_mult=None), "quantises its input otherwise"),
    "one for true": (remark("x.i", full_precision_matrix_mult=1), "quantises its input otherwise"),
    "more than known": (remark("x.i", convrot=True), "quantises its input otherwise"),
    "names crossed": (crossed, "differs at byte"),
    "a name twice": (twice, "q.bias: is not exactly once"),
    "a tensor gone": (missing, "has none|is not exactly once"),
    "a name of nothing": (nowhere, "x.z: the twin says where it is from, and has none"),
    "made of nothing": (of_nothing, "none in the source"),
    "a tensor more": (extra, "x.i.input_scale"),
    "a scale gone": (unscaled, "x.n.weight_scale_2"),
    "another shape": (narrower, "x.m.weight"),
    "a flat scale": (flat, "x.i.weight_scale"),
    "another dtype": (bent, "x.p.bias"),
    "not in the table": (unmarked, "disagree about x.i"),
    "not beside the weight": (unlisted, "disagree about x.i"),
    "no marker at all": (bare, "i.weight|x.i"),
    "another tag": (relabelled, "format or metadata"),
    "other metadata": (reworded, "format or metadata"),
    "another target": (elsewhere, "depickle_twin is not what depickle writes"),
    "another version": (versioned, "no table of version 1.0"),
    "no source": (lambda meta, _: meta.update(depickle_source={}), "does not say which source"),
    "another source": (foreign, "provenance: records sha256"),
}


@pytest.mark.parametrize("lie", LIES)
def test_twins_that_lie_are_found_out(lie: str, pair: tuple[Path, Path]) -> None:
    """In perfect form, with a seal that fits: what is said is held against the source."""
    source, twin = pair
    blob = twin.read_bytes()
    assert resealed(blob, truth) == blob
    change, message = LIES[lie]
    said = fails(source, resealed(blob, change), twin)
    assert any(piece in said for piece in message.split("|")), said


def test_another_source_is_found_out(pair: tuple[Path, Path], tmp_path: Path) -> None:
    """A zero point that is not zero cannot have been left out."""
    _, twin = pair
    changed = Source()
    changed.int8("i.weight", 3, 4, scale="bfloat16", zero_point=changed.tensor("z", "int8", (3, 1), b"\0\1\0"))
    changed.float8("f.weight", 2, 4)
    changed.mx("m.weight", 5, 32)
    changed.nvfp4("n.weight", 3, 16)
    changed.plain("p.bias", "float32", (2,))
    changed.plain("q.bias", "float32", (2,))
    path = changed.write(tmp_path / "other.pt")
    with pytest.raises(depickle.Mismatch) as error:
        depickle.verify(path, twin)
    assert any("i.weight.zero_point: differs" in text for text in error.value.findings)


# --- rounding again -------------------------------------------------------------------------------------------------

ROUNDED = {"format": "float8_e4m3fn", "full_precision_matrix_mult": True, "depickle_requantized": True}


def rows_of_float8(scales: tuple[float, ...], dtype: str = "float8_e4m3fn", scale: str = "float32") -> Source:
    """Every finite code in each row."""
    source = Source()
    source.float8("m.weight", len(scales), 256, dtype, per="row", scale=scale)
    count = 0x7F if dtype == "float8_e4m3fn" else 0x7C
    source.data["m.weight.q"] = bytes(i % count | i & 128 for i in range(256)) * len(scales)
    wide = struct.pack(f"<{len(scales)}f", *scales)
    narrow = b"".join(wide[i + 2 : i + 4] for i in range(0, len(wide), 4))
    source.data["m.weight.s"] = {"float32": wide, "bfloat16": narrow}[scale]
    return source


@pytest.mark.parametrize("scale", ["float32", "bfloat16"])
def test_rows_of_float8_are_rounded_on_request(scale: str, twin: Any) -> None:
    """The largest scale for all; its row as it was, halves move by one exponent, a row of scale 0 is zero."""
    source = rows_of_float8((0.25, 0.5, 0.0), scale=scale)
    with pytest.raises(depickle.Refused, match="--allow-requantize rounds it again"):
        twin(source)
    file = twin(source, allow_requantize=True)
    codes, data = source.data["m.weight.q"], file.tensors["m.weight"].data
    assert file.tensors["m.weight_scale"].data == struct.pack("<f", 0.5)
    assert data[256:512] == codes[256:512]
    assert data[512:] == bytes(code & 128 for code in codes[512:])
    for old, new in zip(codes[:256], data[:256]):
        if old & 127 >= 16:  # above twice the smallest normal number
            assert new == old - 8
    assert marker(file, "m") == ROUNDED


def test_what_was_rounded_is_said_everywhere(tmp_path: Path, capsys: Any) -> None:
    """In the record, the marker, the table, the plan, and by verify."""
    path = rows_of_float8((0.25, 0.3)).write(tmp_path / "m.pt")
    options = ["convert", str(path), "--out-dir", str(tmp_path), "--target", "comfyui", "--allow-requantize"]
    assert main([*options, "--dry-run", "--json"]) == 0
    (file,) = json.loads(capsys.readouterr().out)["files"]
    assert file["segments"][1]["rules"] == ["requantize"]
    assert file["segments"][1]["whole"] == struct.unpack("<f", struct.pack("<f", 0.3))[0]
    assert main([*options, "--pretty"]) == 0
    said = capsys.readouterr()
    assert "verified as it was rounded again" in said.out
    assert "1 weights, the first m.weight, were rounded again to one scale a tensor: not exact" in said.err
    assert main(options) == 0
    record = json.loads(capsys.readouterr().out)
    assert (record["verified_bit_identical"], record["rules"]) == (False, {"requantize": 1})
    assert main(["verify", str(path), record["dst"]]) == 0
    assert json.loads(capsys.readouterr().out)["verified_bit_identical"] is False
    assert json.loads(outside.read(Path(record["dst"])).metadata["_quantization_metadata"])["layers"] == {"m": ROUNDED}


@pytest.mark.parametrize("scales", [(0.0, 0.0), (float("nan"), 1.0), (-1.0, 1.0), (float("inf"), 1.0)])
def test_scales_that_nothing_can_be_rounded_to(scales: tuple[float, ...], twin: Any) -> None:
    """Refused, also on request."""
    with pytest.raises(depickle.Refused, match="has scales that are negative, NaN or too large, or none"):
        twin(rows_of_float8(scales), allow_requantize=True)


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
def test_another_rounding_is_found_out(dtype: str, tmp_path: Path) -> None:
    """Any code turned into its neighbour, another sign, another scale, the mark gone."""
    source = rows_of_float8((0.017, 0.3), dtype).write(tmp_path / "m.pt")
    record = depickle.convert(source, tmp_path / "out", target="comfyui", allow_requantize=True)
    made = Path(record.dst)
    blob = made.read_bytes()
    start = 8 + struct.unpack("<Q", blob[:8])[0]
    for at in [*range(start, start + 4), *range(start + 4, start + 516, 3)]:
        for bit in (1, 128):
            changed = blob[:at] + bytes([blob[at] ^ bit]) + blob[at + 1 :]
            said = fails(source, changed, made)
            assert "not rounded to the nearest" in said or "the largest of its scales" in said, at
    assert "has scales of shape [2, 1]" in fails(source, resealed(blob, remark("m", depickle_requantized=None)), made)
    assert "another" in fails(source, resealed(blob, reshaped), made)


@pytest.mark.parametrize("whole", [0.0, float("inf"), float("nan"), 1e38, -0.5])
def test_scales_of_nothing_are_found_out(whole: float, tmp_path: Path) -> None:
    """A twin that says it was rounded to the scale that its source then has: no crash, and no."""
    twin = rows_of_float8((0.25, 0.5)).write(tmp_path / "m.pt")
    record = depickle.convert(twin, tmp_path / "out", target="comfyui", allow_requantize=True)
    blob = Path(record.dst).read_bytes().replace(struct.pack("<f", 0.5), struct.pack("<f", whole), 1)
    source = rows_of_float8((whole, whole)).write(tmp_path / "other.pt")
    assert "the largest of its scales" in fails(source, blob, Path(record.dst))


def reshaped(meta: Any, data: Any) -> None:
    meta["entries"]["m.weight"]["shape"] = [4, 128]


# --- rules and their inverses ---------------------------------------------------------------------------------------


def test_every_half_is_widened_and_back() -> None:
    """All float16 and bfloat16, against struct where it says something, and back to the bit."""
    every = struct.pack("<65536H", *range(65536))
    singles = rules.widen_float16(every, 2)
    for half, single in zip(struct.iter_unpack("<e", every), struct.iter_unpack("<f", singles)):
        assert half == single or half[0] != half[0]
    assert undo.narrow_float16(singles) == every
    assert undo.narrow_bfloat16(rules.widen_bfloat16(every, 2)) == every
    assert rules.widen_bfloat16(b"\x80\x3f", 2) == struct.pack("<f", 1)


@pytest.mark.parametrize(
    "single", [0x3F801000, 0x00000001, 0x47800000, 0x32FFFFFF, 0x33800001, 0x7F800001, 0x7FC00001, 0x38000001]
)
def test_what_is_no_half_is_not_narrowed(single: int) -> None:
    """More bits than float16 has, too large, too small, a NaN with a longer payload."""
    assert undo.narrow_float16(struct.pack("<I", single)) is None
    assert undo.narrow_float16(struct.pack("<I", single | 0x80000000)) is None
    assert undo.narrow_bfloat16(struct.pack("<I", single | 1)) is None


@pytest.mark.parametrize(("rows", "width"), [(128, 4), (128, 8), (1, 1), (100, 5), (127, 3)])
def test_scales_are_blocked_and_back(rows: int, width: int) -> None:
    """The rule against the slow one, its inverse against both; padding that is not zero is none of its output."""
    scales = random.Random(rows).randbytes(rows * width).replace(b"\0", b"\1")
    tiles = rules.block_scales(scales, width)
    assert tiles == blocked(scales, rows, width)
    assert undo.unblock(tiles, rows, width) == scales
    for at in [at for at, byte in enumerate(tiles) if byte == 0][::7]:
        assert undo.unblock(tiles[:at] + b"\1" + tiles[at + 1 :], rows, width) is None
