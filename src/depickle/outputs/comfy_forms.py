"""What each weight becomes in a ComfyUI twin, where that is exact; a refusal with its reason where it is not.

In: a weight of today's classes. Out: a `Form`: the layer's marker, and its tensors by suffix (`weight`,
`weight_scale`, ...), each as pieces of the source and of padding in order. Sources: ComfyUI `comfy/quant_ops.py` and
`comfy/ops.py`, comfy-kitchen 0.2.40 `tensor/*.py`; held against comfy-kitchen's own dequantisation in tests. Nothing
here knows a name, a header or a file; bytes are read only where exactness hangs on them (zero points, MX scales).
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from ..attributes import data_of
from ..dtypes import BY_NAME, DType
from ..errors import Refused
from ..layout import Literal
from ..rules import RULES
from ..schemas import Json
from ..tensors import TensorView, contiguous
from ..twin import ROUNDED
from ..weights import Part, Weight
from .files import Piece, Rounded, Tensor

Bytes: TypeAlias = Callable[[TensorView], Iterable[bytes | bytearray]]

FLOAT32: Final = BY_NAME["float32"]
UINT8: Final = BY_NAME["uint8"]
ONE: Final = bytes.fromhex("0000803f")  # 1.0 as little-endian float32
BLOCK_ROWS: Final = 128  # scales lie in blocks of 128 rows by 4 columns
MAX_COLUMNS: Final = 65_536  # scales in a row: 128 rows are held in memory at once; a million columns of nvfp4
_WIDEN: Final[Mapping[str, str]] = {"bfloat16": "widen-bfloat16", "float16": "widen-float16"}
_ODD_SCALES: Final = re.compile(rb"[\x00\xff]")
_LARGEST: Final = 2.0**96  # of a scale: its products with float8 are float32
_FP8: Final[Mapping[str, str]] = {"float8_e4m3fn": "float8_e4m3fn", "float8_e5m2": "float8_e5m2"}

NO_FORM: Final[Mapping[str, str]] = {
    "Int4Tensor": "signed four-bit values with a scale and zero point a group are in none of its formats",
    "Int4PlainInt32Tensor": "the order of its data is that of one device's kernel",
    "Int4TilePackedTo4dTensor": "the order of its data is that of one device's kernel",
    "IntxUnpackedToInt8Tensor": "values of 1 to 7 bits with a scale a group are in none of its formats",
}


@dataclass(frozen=True, slots=True)
class Form:
    """One layer of the twin: the marker's JSON, and the tensors by what follows the layer's name and a dot."""

    marker: Mapping[str, Json]
    tensors: Mapping[str, Tensor]
    weight_rows: int


def form_of(weight: Weight, read: Bytes, *, requantize: bool = False) -> Form:
    """The twin's form of a quantised weight. Raises Refused, with the reason, where there is no exact one; `requantize`
    rounds float8 with a scale a row again."""
    if weight.origin is not None:
        raise Refused(f"is a {weight.kind} kept as it stood, which ComfyUI has no form for")
    kind = str(weight.kind)
    if kind not in _FORMS:
        raise Refused(f"has class {kind}, which ComfyUI has no exact form for: {NO_FORM[kind]}")
    if len(weight.leaves()["qdata"].shape) != 2:
        raise Refused(f"has {len(weight.leaves()['qdata'].shape)} dimensions; ComfyUI's formats are for matrices")
    if requantize and kind == "Float8Tensor" and per_row(weight):
        return _rounded_float8(weight, read)
    return _FORMS[kind](weight, read)


def per_row(weight: Weight) -> bool:
    """Whether a matrix of float8 has one scale a row, and more than one row."""
    rows = weight.leaves()["qdata"].shape[0]
    return rows > 1 and weight.leaves()["scale"].shape == (rows, 1)


def _marked(weight: Weight, name: str, tensors: Mapping[str, Tensor]) -> Form:
    marker: dict[str, Json] = {"format": name}
    if weight.attributes.get("act_quant_kwargs") is None:  # weight only: without this ComfyUI quantises the input too
        marker["full_precision_matrix_mult"] = True
    return Form(marker, tensors, weight.leaves()["qdata"].shape[0])


# --- the formats ----------------------------------------------------------------------------------------------------


def _int8(weight: Weight, read: Bytes) -> Form:
    parts = weight.leaves()
    for name in ("act_pre_scale", "act_quant_scale", "act_quant_zero_point"):
        if name in parts:
            raise Refused(f"has {name}, which int8_tensorwise has no place for")
    if "zero_point" in parts and any(block.count(0) != len(block) for block in read(parts["zero_point"].view)):
        raise Refused("has zero points other than 0; int8_tensorwise is symmetric")
    qdata, scale = parts["qdata"], parts["scale"]
    rows = qdata.shape[0]
    if scale.nbytes != scale.dtype.itemsize and scale.shape != (rows, 1):
        raise Refused(f"has scales of shape {list(scale.shape)}; int8_tensorwise has one a row, or one a tensor")
    shape = () if scale.shape == (1, 1) else (rows, 1)
    return _marked(weight, "int8_tensorwise", {"weight": _whole("qdata", qdata), "weight_scale": _wide(scale, shape)})


def _float8(weight: Weight, read: Bytes) -> Form:
    parts = weight.leaves()
    qdata, scale = parts["qdata"], parts["scale"]
    if qdata.dtype.name not in _FP8:
        raise Refused(f"has data of {qdata.dtype.name}, which ComfyUI does not read")
    if scale.shape != (1, 1):
        per = "one scale a row" if scale.shape == (qdata.shape[0], 1) else f"scales of shape {list(scale.shape)}"
        hint = "; --allow-requantize rounds it again" if per_row(weight) else ""
        raise Refused(f"is float8 with {per}; ComfyUI's own float8 has one scale a tensor{hint}")
    return _marked(weight, _FP8[qdata.dtype.name], {"weight": _whole("qdata", qdata), "weight_scale": _wide(scale, ())})


def _rounded_float8(weight: Weight, read: Bytes) -> Form:
    """The largest of the scales for all rows, and every row rounded to it: not exact, and marked so."""
    qdata, scale = weight.leaves()["qdata"], weight.leaves()["scale"]
    if qdata.dtype.name not in _FP8:
        raise Refused(f"has data of {qdata.dtype.name}, which ComfyUI does not read")
    (wide,) = _wide(scale, scale.shape).pieces
    if not isinstance(wide, Piece) or scale.view.swapped or scale.view.neg:
        raise Refused("has scales of another byte order or sign, which are not rounded again")
    column = b"".join(read(scale.view))
    if wide.part.rule in _WIDEN.values():
        column = bytes(RULES[wide.part.rule](column, scale.view.dtype.itemsize))
    numbers = [number for (number,) in struct.iter_unpack("<f", column)]
    whole = max(numbers)
    if not whole > 0 or not all(0 <= number < _LARGEST for number in numbers):  # rows of zeros have the scale 0
        raise Refused("has scales that are negative, NaN or too large, or none but 0; it is not rounded again")
    codes = Tensor(qdata.dtype, qdata.shape, (Rounded("qdata", qdata, wide, whole),))
    one = Tensor(FLOAT32, (), (Literal("scale", struct.pack("<f", whole)),))
    form = _marked(weight, _FP8[qdata.dtype.name], {"weight": codes, "weight_scale": one})
    return replace(form, marker={**form.marker, ROUNDED: True})


def _mxfp8(weight: Weight, read: Bytes) -> Form:
    parts = weight.leaves()
    qdata, scale = parts["qdata"], parts["scale"]
    if (
        data_of(weight.attributes["elem_dtype"], "torch.dtype") != "float8_e4m3fn"
        or weight.attributes["block_size"] != 32
    ):
        elem = data_of(weight.attributes["elem_dtype"], "torch.dtype") or weight.attributes["elem_dtype"]
        raise Refused(
            f"is MX of {elem} in blocks of {weight.attributes['block_size']}; ComfyUI's mxfp8 is float8_e4m3fn in blocks of 32"
        )
    rows, columns = qdata.shape[0], qdata.shape[1] // 32
    blocked = _blocked(weight, scale, UINT8, rows, columns)
    check_mx_scales(weight, read)
    return _marked(weight, "mxfp8", {"weight": _padded(_whole("qdata", qdata), 32), "weight_scale": blocked})


def _nvfp4(weight: Weight, read: Bytes) -> Form:
    parts = weight.leaves()
    qdata, scale = parts["qdata"], parts["scale"]
    if weight.attributes["block_size"] != 16:
        raise Refused(f"is NVFP4 in blocks of {weight.attributes['block_size']}; ComfyUI's nvfp4 has blocks of 16")
    for name in ("per_tensor_scale", "act_per_tensor_scale"):
        if name in parts and parts[name].nbytes != parts[name].dtype.itemsize:
            raise Refused(f"has {name} of shape {list(parts[name].shape)}; ComfyUI's nvfp4 has one a tensor")
    turned = replace(qdata, rule="copy" if qdata.rule == "nibble-swap" else "nibble-swap")
    tensors = {
        "weight": _padded(Tensor(UINT8, qdata.shape, (Piece("qdata", turned),)), 16),
        "weight_scale": _blocked(weight, scale, scale.dtype, qdata.shape[0], qdata.shape[1] // 8),
        "weight_scale_2": Tensor(FLOAT32, (), (Literal("per_tensor_scale", ONE),)),
    }
    if "per_tensor_scale" in parts:
        tensors["weight_scale_2"] = _wide(parts["per_tensor_scale"], (), "per_tensor_scale")
    if "act_per_tensor_scale" in parts:
        tensors["input_scale"] = _wide(parts["act_per_tensor_scale"], (), "act_per_tensor_scale")
    return _marked(weight, "nvfp4", tensors)


_FORMS: Final[Mapping[str, Callable[[Weight, Bytes], Form]]] = {
    "Int8Tensor": _int8,
    "Float8Tensor": _float8,
    "MXTensor": _mxfp8,
    "NVFP4Tensor": _nvfp4,
}


# --- tensors --------------------------------------------------------------------------------------------------------


def _whole(label: str, part: Part) -> Tensor:
    """A part as it stands."""
    return Tensor(part.dtype, part.shape, (Piece(label, part),))


def _wide(part: Part, shape: tuple[int, ...], label: str = "scale") -> Tensor:
    """A scale as float32 under another shape: ComfyUI computes wrong results with a narrower one."""
    if part.dtype.name == "float32":
        made = replace(part, shape=shape, rule="reshape" if part.shape != shape and part.rule == "copy" else part.rule)
    elif part.dtype.name in _WIDEN and part.rule in ("copy", "reshape"):
        made = replace(part, dtype=FLOAT32, shape=shape, rule=_WIDEN[part.dtype.name])
    else:
        raise Refused(f"has a {label} of {part.dtype.name}, which float32 does not hold exactly")
    return Tensor(FLOAT32, shape, (Piece(label, made),))


def _blocked(weight: Weight, scale: Part, dtype: DType, rows: int, columns: int) -> Tensor:
    """Scales in the order that tensor cores read, [128 * ceil(rows / 128), 4 * ceil(columns / 4)]."""
    if columns > MAX_COLUMNS:
        raise Refused(f"has {columns} scales in a row, over the limit of {MAX_COLUMNS}")
    shape = (-(-rows // BLOCK_ROWS) * BLOCK_ROWS, -(-columns // 4) * 4)
    if weight.attributes.get("is_swizzled_scales") is True:  # torchao stored them in this order already
        rule = "relabel" if scale.dtype is not dtype else "reshape" if scale.rule == "copy" else scale.rule
        return Tensor(dtype, shape, (Piece("scale", replace(scale, dtype=dtype, shape=shape, rule=rule)),))
    view = matrix_of(scale, (rows, columns))
    return Tensor(dtype, shape, (Piece("scale", Part(view, dtype, shape, "block-scales")),))


def matrix_of(part: Part, shape: tuple[int, int]) -> TensorView:
    """A part's view under the part's own shape: some releases stored scales flat."""
    if part.view.shape == shape:
        return part.view
    if not part.view.contiguous:
        raise Refused(f"has scales of shape {list(part.view.shape)} that are not contiguous")
    return contiguous(part.view.dtype, shape, part.view.range)


def _padded(tensor: Tensor, multiple: int) -> Tensor:
    """Rows of zeros up to a multiple, which comfy-kitchen's kernels want; it cuts them off again."""
    rows, columns = tensor.shape
    missing = -rows % multiple
    if not missing * columns:
        return tensor
    zeros = Literal("padding", b"\0", missing * columns)
    return Tensor(tensor.dtype, (rows + missing, columns), (*tensor.pieces, zeros))


def check_mx_scales(weight: Weight, read: Bytes) -> None:
    """Refuse scales that comfy-kitchen reads otherwise than torchao: byte 0 is 2**-127 there and 0 here, which is the
    same only for data that is all zero; byte 255 is NaN there and infinity here."""
    qdata, scale = weight.leaves()["qdata"], weight.leaves()["scale"]
    rows, columns = qdata.shape[0], qdata.shape[1] // 32
    swizzled = weight.attributes.get("is_swizzled_scales") is True
    at = 0
    doubtful: dict[int, list[int]] = {}
    for block in read(scale.view):
        for found in _ODD_SCALES.finditer(block):
            place = at + found.start()
            row, column = _place(place, columns) if swizzled else divmod(place, columns)
            if row < rows and column < columns:
                if block[found.start()]:
                    raise Refused("has an MX scale that is NaN, which comfy-kitchen reads as infinity")
                doubtful.setdefault(row, []).append(column)
        at += len(block)
    for row, odd in doubtful.items():
        line = b"".join(read(_row(qdata.view, row)))
        for column in odd:
            if line[32 * column : 32 * column + 32].translate(None, b"\0\x80"):
                raise Refused("has MX scales of 2**-127 over data that is not zero, which comfy-kitchen reads as 0")


def _place(at: int, columns: int) -> tuple[int, int]:
    """Row and column of the scale at a byte of the tensor cores' order."""
    block, within = divmod(at, 512)
    row, column = divmod(block, -(-columns // 4))
    return row * 128 + within % 16 // 4 * 32 + within // 16, column * 4 + within % 4


def _row(view: TensorView, row: int) -> TensorView:
    return replace(view, shape=(1, view.shape[1]), offset=view.offset + row * view.stride[0])
