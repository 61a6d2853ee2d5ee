"""Today's classes in today's spelling: names, order and agreement of parts and fields, and what older releases wrote
of the same classes.

`settle` is what every weight goes through at the end. Shapes are checked as torchao 0.18's constructors and
dequantize need them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Final, TypeAlias

from .attributes import data_of, dtype_json, fields_json, kernel_of, typed
from .dtypes import BY_NAME
from .errors import Malformed, Refused
from .schemas import BY_SHORT_NAME, Json, Schema
from .tensors import TensorView
from .weights import Part, Weight

Bytes: TypeAlias = Callable[[TensorView], Iterable[bytes | bytearray]]
Lift: TypeAlias = Callable[[Weight, Bytes], Weight]


def settle(weight: Weight) -> Weight:
    """Today's spelling of a weight of a current class: parts and fields by name and in order, checked against each
    other."""
    schema = BY_SHORT_NAME[str(weight.kind)]
    rest: dict[str, Part | Weight] = dict(weight.parts)
    given = {**weight.attributes}
    parts: dict[str, Part] = {}
    for row in schema.parts:
        names = [name for name in (row.name, *row.was) if name in rest]
        if not names:
            if not row.optional:
                raise Malformed(f"{schema.name} lacks its part {row.name}")
        else:
            parts[row.name] = _part(schema, row.name, rest.pop(names[0]), row.dtypes)
        for name in (row.name, *row.was):  # an absent part stands in the state as None
            if name in given and given[name] is None:
                del given[name]
    if rest:
        raise Refused(f"{schema.name} has a part {next(iter(rest))}, which is no part of it in torchao 0.18")
    outer: dict[str, Json] = {"dtype": dtype_json(weight.dtype.name), "shape": list(weight.shape)}
    for field in schema.attributes:
        if field.outer is not None and not weight.described:
            given.setdefault(field.name, outer[field.outer])
    attributes = fields_json(schema.name, schema.attributes, given)
    settled = Weight(schema.name, parts, attributes, weight.dtype, weight.shape, weight.facts)
    if schema.check is not None:
        CHECKS[schema.check](settled)
    return settled


def _part(schema: Schema, name: str, part: Part | Weight, dtypes: frozenset[str]) -> Part:
    if isinstance(part, Weight):
        raise Refused(f"part {name} of {schema.name} is itself a {part.kind}")
    if dtypes and part.dtype.name not in dtypes:
        raise Refused(
            f"part {name} of {schema.name} has dtype {part.dtype.name}, expected {' or '.join(sorted(dtypes))}"
        )
    if part.dtype.safetensors is None:
        raise Refused(f"part {name} has dtype {part.dtype.name}, which safetensors cannot hold")
    return part


# --- checks: parts against block size, after torchao 0.18's constructors and dequantize -----------------------------


def _check_blocks(weight: Weight) -> None:
    """One scale (and zero point) per block: `scale.shape[i] * block_size[i]` is `qdata.shape[i]`."""
    qdata, block = leaf(weight, "qdata"), weight.attributes["block_size"]
    if not isinstance(block, list) or len(block) != len(qdata.shape):
        raise Malformed(f"block size {block} does not go with data of shape {list(qdata.shape)}")
    _check_scales(weight, block_shape(qdata.shape, block), block, list(qdata.shape))
    if weight.shape != qdata.shape:
        raise Malformed(f"the weight has shape {list(weight.shape)}, its data {list(qdata.shape)}")


def block_shape(shape: tuple[int, ...], block: list[int]) -> tuple[int, ...]:
    """How many blocks there are along each dimension."""
    if not all(type(size) is int for size in block):
        raise Malformed(f"block size {block} is not a tuple of integers")
    if any(size == 0 or length % size for length, size in zip(shape, block)):
        raise Malformed(f"block size {block} does not divide shape {list(shape)}")
    return tuple(length // size for length, size in zip(shape, block))


def _check_packed(per_element: int) -> Callable[[Weight], None]:
    """Several four-bit values in each element of the data, along the last dimension; the scale and zero point of a
    row's groups stand in a column."""

    def check(weight: Weight) -> None:
        qdata, shape, block = leaf(weight, "qdata"), weight.attributes["shape"], weight.attributes["block_size"]
        if not isinstance(shape, list) or len(shape) < 2 or not isinstance(block, list) or len(block) != len(shape):
            raise Malformed(f"block size {block} does not go with a weight of shape {shape}")
        if list(qdata.shape) != [*shape[:-1], shape[-1] // per_element]:
            raise Malformed(f"data of shape {list(qdata.shape)} does not hold a weight of shape {shape} in four bits")
        *rest, rows, groups = block_shape(tuple(shape), block)
        _check_scales(weight, (*rest, groups, rows), block, shape)

    return check


def _check_scales(weight: Weight, expected: tuple[int, ...], block: Json, shape: list[int]) -> None:
    for name in ("scale", "zero_point"):
        part = weight.parts.get(name)
        if isinstance(part, Part) and part.shape != expected:
            raise Malformed(
                f"{name} has shape {list(part.shape)}, block size {block} of {shape} makes {list(expected)}"
            )


def _check_tiles(weight: Weight) -> None:
    """Tiles of the data in four dimensions; scale and zero point side by side."""
    qdata, scales = leaf(weight, "qdata"), leaf(weight, "scale_and_zero")
    if len(qdata.shape) != 4:
        raise Malformed(f"data of shape {list(qdata.shape)} is not packed into tiles, which have four dimensions")
    if len(scales.shape) != 3 or scales.shape[-1] != 2:
        raise Malformed(f"scale_and_zero has shape {list(scales.shape)}, expected [groups, rows, 2]")


def _check_microscaled(weight: Weight) -> None:
    """One scale per block of the last dimension, flat or in blocks of 128 by 4 (`is_swizzled_scales`)."""
    qdata, scale = leaf(weight, "qdata"), leaf(weight, "scale")
    block = weight.attributes["block_size"]
    if not isinstance(block, int) or block <= 0 or not qdata.shape:
        raise Malformed(f"block size {block} is not a positive number")
    expected = scale_shape(weight, qdata, block)
    if scale.shape != expected:
        raise Malformed(f"scale has shape {list(scale.shape)}, expected {list(expected)}")


def scale_shape(weight: Weight, qdata: Part, block: int) -> tuple[int, ...]:
    """The shape of the scales of an MX or NVFP4 weight in torchao 0.18."""
    columns = qdata.shape[-1] * (2 if packed_fp4(weight) else 1)
    if columns % block:
        raise Malformed(f"{columns} columns are no whole number of blocks of {block}")
    if weight.attributes.get("is_swizzled_scales", weight.attributes.get("_is_swizzled_scales")) is True:
        rows = -(-qdata.shape[-2] // 128) if len(qdata.shape) > 1 else 1
        return (*qdata.shape[:-2], rows * 32, -(-(columns // block) // 4) * 16)
    return (*qdata.shape[:-1], columns // block)


def packed_fp4(weight: Weight) -> bool:
    """Whether two values share a byte."""
    elem = weight.attributes.get("elem_dtype", weight.attributes.get("_elem_dtype"))
    return weight.kind == "NVFP4Tensor" or data_of(elem, "torch.dtype") == "float4_e2m1fn_x2"


CHECKS: Final[Mapping[str, Callable[[Weight], None]]] = {
    "blocks": _check_blocks,
    "four bits in a byte": _check_packed(2),
    "four bits in an int32": _check_packed(8),
    "tiles": _check_tiles,
    "microscaled": _check_microscaled,
}


# --- current classes, older spellings -------------------------------------------------------------------------------


def leaf(weight: Weight, name: str) -> Part:
    """A part that the class cannot be without."""
    part = weight.parts.get(name)
    if not isinstance(part, Part):
        raise Malformed(f"{weight.kind} lacks its part {name}")
    return part


def without(weight: Weight, *names: str, **changed: Json) -> Weight:
    """The weight with some attributes taken away and some set."""
    return replace(weight, attributes={**{k: v for k, v in weight.attributes.items() if k not in names}, **changed})


def reshaped(part: Part, shape: tuple[int, ...]) -> Part:
    """The same bytes under another shape."""
    if part.shape == shape:
        return part
    if part.nbytes != replace(part, shape=shape).nbytes:
        raise Malformed(f"a part of shape {list(part.shape)} cannot be given shape {list(shape)}")
    return replace(part, shape=shape, rule="reshape" if part.rule == "copy" else part.rule)


def _float8(weight: Weight, read: Bytes) -> Weight:
    """0.13 kept the bounds that had chosen the weight's own scale; nothing reads them afterwards."""
    return without(weight, "hp_value_lb", "hp_value_ub")


def _int8(weight: Weight, read: Bytes) -> Weight:
    """0.15 gave a scale per group a dimension of its own for the group, [N, groups, 1]: the same bytes in block
    shape."""
    qdata, scale, block = leaf(weight, "qdata"), leaf(weight, "scale"), weight.attributes.get("block_size")
    if isinstance(block, list) and len(block) == len(qdata.shape) and len(scale.shape) == len(qdata.shape) + 1:
        expected = block_shape(qdata.shape, block)
        if scale.shape == (*expected, 1):
            return replace(weight, parts={**weight.parts, "scale": reshaped(scale, expected)})
    return weight


def _intx(weight: Weight, read: Bytes) -> Weight:
    """The activation's kind as the text that quantize_ stores: torchao's own reader knows no enum member there."""
    member = data_of(weight.attributes.get("activation_quantization"), "IntxUnpackedToInt8TensorActivationQuantization")
    return weight if member is None else without(weight, activation_quantization=str(member).lower())


def _intx_unpacked(weight: Weight, read: Bytes) -> Weight:
    """0.13's IntxUnpackedTensor is IntxUnpackedToInt8Tensor without activation quantisation, under its first name."""
    return replace(without(weight, activation_quantization=None), kind="IntxUnpackedToInt8Tensor")


def _microscaled(weight: Weight, old: bool) -> Weight:
    """Up to 0.14 the two fp4 values of a byte lay the other way round, and scales were flat; the bits are otherwise
    today's."""
    data, scale = (
        ("_data" if "_data" in weight.parts else "qdata"),
        next((n for n in weight.parts if "scale" in n and "tensor" not in n), "scale"),
    )
    parts = dict(weight.parts)
    qdata, scales = leaf(weight, data), leaf(weight, scale)
    if old and packed_fp4(weight):
        qdata = parts[data] = replace(qdata, rule="nibble-swap")
    block = weight.attributes.get("block_size", weight.attributes.get("_block_size"))
    if not isinstance(block, int) or block <= 0 or not qdata.shape:
        raise Malformed(f"block size {block} is not a positive number")
    if weight.kind == "MXTensor" and scales.dtype.name == "uint8":  # 0.7 and 0.9
        scales = replace(scales, dtype=BY_NAME["float8_e8m0fnu"], rule="relabel")
    expected = scale_shape(weight, qdata, block)
    if scales.nbytes != replace(scales, shape=expected).nbytes:
        raise Malformed(f"scale has shape {list(scales.shape)}, expected {list(expected)}")
    parts[scale] = reshaped(scales, expected)
    return replace(weight, parts=parts)


def lift_mx(weight: Weight, read: Bytes) -> Weight:
    """MXTensor of 0.7 to 0.15: element type, kernel and scales under their names of today."""
    if weight.attributes.get("_elem_dtype") == "fp4_e2m1":  # up to 0.11; the texts for fp6 are today's
        weight = without(weight, _elem_dtype=dtype_json("float4_e2m1fn_x2"))
    attributes = weight.attributes
    elem = attributes.get("elem_dtype", attributes.get("_elem_dtype"))
    if attributes.get("_pack_fp6", False) is not False and isinstance(elem, str):
        raise Refused(
            "has no exact form today: MXTensor records _pack_fp6=True, a storage of fp6 that torchao dropped in 0.15"
        )
    weight = _microscaled(weight, old="_scale_e8m0" in weight.parts)
    kernel = attributes.get("kernel_preference")
    if kernel is None:
        kernel = kernel_of(attributes.get("_gemm_kernel_choice", typed("MXGemmKernelChoice", "EMULATED")))
    retired = ("_gemm_kernel_choice", "_pack_fp6", "_use_fp4_custom_triton_dequant_kernel")
    return without(weight, *retired, kernel_preference=kernel)


def _nvfp4(weight: Weight, read: Bytes) -> Weight:
    weight = _microscaled(weight, old="_scale_e4m3" in weight.parts)
    parts = dict(weight.parts)
    for name, part in parts.items():  # 0.18 wants a scale of the whole tensor without a dimension
        if name.endswith("per_tensor_scale") and isinstance(part, Part) and part.shape == (1,):
            parts[name] = reshaped(part, ())
    weight = replace(weight, parts=parts)
    mode = data_of(weight.attributes.get("mm_config"), "NVFP4MMConfig")
    if mode is None:
        return weight
    activation = typed(  # 0.12: DYNAMIC quantised the input with swizzled scales and without a per-tensor scale
        "QuantizeTensorToNVFP4Kwargs",
        {
            "block_size": weight.attributes.get("_block_size", 16),
            "is_swizzled_scales": True,
            "use_triton_kernel": weight.attributes.get("use_triton_kernel", False),
            "use_dynamic_per_tensor_scale": False,
        },
    )
    return without(weight, "mm_config", act_quant_kwargs=activation if mode == "DYNAMIC" else None)


SPELLINGS: Final[Mapping[str, Lift]] = {
    "float8": _float8,
    "int8": _int8,
    "intx": _intx,
    "intx_unpacked": _intx_unpacked,
    "mx": lift_mx,
    "nvfp4": _nvfp4,
}
