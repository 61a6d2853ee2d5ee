"""Weights as a file spells them become weights of today's classes, bit for bit, or are refused with the facts that stand in the way.

Pure functions from a `Weight` to a `Weight`; what each demands and why it is exact is told in docs/classes.md. The one thing that is read is
whether a zero point is all zero. A map keeps the weight's values and the kind of activation quantisation; where today's torchao has no
counterpart there is no map. `settle` is what all classes go through at the end: names of torchao 0.18, fields in order, parts that agree with the
block size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Final, NoReturn

from .attributes import data_of, dtype_json, fields_json, kernel_of, typed
from .dtypes import BY_NAME
from .errors import Malformed, Refused
from .schemas import BY_SHORT_NAME, FLOATING, Json, Schema
from .tensors import TensorView
from .weights import PLAIN, Part, Weight

Bytes = Callable[[TensorView], Iterable[bytes | bytearray]]
Lift = Callable[[Weight, Bytes], Weight]

_INT8_SYMMETRIC: Final = "_int8_symm_per_token_reduced_range_quant"
_INT8_ASYMMETRIC: Final = "_int8_asymm_per_token_quant"
_FP8: Final = "_input_activation_quant_func_fp8"
_MXFP: Final = "_input_activation_quant_func_mxfp"
_FP8_MAX: Final[Mapping[str, float]] = {
    "float8_e4m3fn": 448.0,
    "float8_e5m2": 57344.0,
    "float8_e4m3fnuz": 240.0,
    "float8_e5m2fnuz": 57344.0,
}
_PER_ROW: Final = typed("PerRow", {"dim": -1})
# The integer types whose whole range a v1 weight's quant_min and quant_max name.
_RANGES: Final = {(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1): f"int{bits}" for bits in range(1, 9)}


def lift(weight: Weight, read: Bytes, *, keep: bool = False) -> Weight:
    """Bring a weight to the class that torchao 0.18 has for it.

    Raises Refused where there is none; with `keep`, a class that torchao's safetensors support does not know comes back as it is.
    """
    if weight.kind is None:
        return _plain(weight)
    schema = BY_SHORT_NAME[weight.kind]
    if schema.scheme == "unsupported":
        if keep:
            return weight
        raise Refused(f"class {weight.kind} has no form in torchao's safetensors (--keep-unsupported stores it for other readers)")
    try:
        lifted = LIFTS[schema.lift](weight, read) if schema.lift else weight
    except Refused:
        if keep and schema.scheme == "v1":
            return weight
        raise
    return settle(lifted, read)


def _plain(weight: Weight) -> Weight:
    part = weight.parts[PLAIN]
    if not isinstance(part, Part):
        raise Malformed("a plain tensor has one part")
    if part.dtype.safetensors is None:
        raise Refused(f"has dtype {part.dtype.name}, which safetensors cannot hold")
    if part.dtype.packed != 1 and not part.shape:
        raise Refused(f"has dtype {part.dtype.name} and no dimension, which safetensors cannot hold")
    if part.view.neg and part.dtype.name not in (*FLOATING, "complex64"):
        raise Refused(f"has the negative bit set on dtype {part.dtype.name}")
    return weight


def settle(weight: Weight, read: Bytes) -> Weight:
    """Today's spelling of a weight of a current class: parts and fields by name and in order, checked against each other."""
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
        if field.outer is not None:
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
        raise Refused(f"part {name} of {schema.name} has dtype {part.dtype.name}, expected {' or '.join(sorted(dtypes))}")
    if part.dtype.safetensors is None:
        raise Refused(f"part {name} has dtype {part.dtype.name}, which safetensors cannot hold")
    return part


# --- checks: parts against block size, after torchao 0.18's constructors and dequantize --------------------------------------------


def _check_blocks(weight: Weight) -> None:
    """One scale (and zero point) per block: `scale.shape[i] * block_size[i]` is `qdata.shape[i]`."""
    qdata, block = _leaf(weight, "qdata"), weight.attributes["block_size"]
    if not isinstance(block, list) or len(block) != len(qdata.shape):
        raise Malformed(f"block size {block} does not go with data of shape {list(qdata.shape)}")
    expected = block_shape(qdata.shape, block)
    for name in ("scale", "zero_point"):
        part = weight.parts.get(name)
        if isinstance(part, Part) and part.shape != expected:
            raise Malformed(f"{name} has shape {list(part.shape)}, block size {block} of {list(qdata.shape)} makes {list(expected)}")
    if weight.shape != qdata.shape:
        raise Malformed(f"the weight has shape {list(weight.shape)}, its data {list(qdata.shape)}")


def block_shape(shape: tuple[int, ...], block: list[int]) -> tuple[int, ...]:
    """How many blocks there are along each dimension."""
    if any(size == 0 or length % size for length, size in zip(shape, block)):
        raise Malformed(f"block size {block} does not divide shape {list(shape)}")
    return tuple(length // size for length, size in zip(shape, block))


def _check_halved(weight: Weight) -> None:
    """Two four-bit values a byte along the last dimension."""
    qdata, shape = _leaf(weight, "qdata"), weight.attributes["shape"]
    if not isinstance(shape, list) or list(qdata.shape) != [*shape[:-1], shape[-1] // 2]:
        raise Malformed(f"data of shape {list(qdata.shape)} does not hold a weight of shape {shape} in four bits")


def _check_microscaled(weight: Weight) -> None:
    """One scale per block of the last dimension, flat or in blocks of 128 by 4 (`is_swizzled_scales`)."""
    qdata, scale = _leaf(weight, "qdata"), _leaf(weight, "scale")
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
    "halved": _check_halved,
    "microscaled": _check_microscaled,
}


# --- current classes, older spellings ------------------------------------------------------------------------------------------------


def _leaf(weight: Weight, name: str) -> Part:
    part = weight.parts.get(name)
    if not isinstance(part, Part):
        raise Malformed(f"{weight.kind} lacks its part {name}")
    return part


def _without(weight: Weight, *names: str, **changed: Json) -> Weight:
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
    return _without(weight, "hp_value_lb", "hp_value_ub")


def _int8(weight: Weight, read: Bytes) -> Weight:
    """0.15 gave a scale per group a dimension of its own for the group, [N, groups, 1]: the same bytes in block shape."""
    qdata, scale, block = _leaf(weight, "qdata"), _leaf(weight, "scale"), weight.attributes.get("block_size")
    if isinstance(block, list) and len(block) == len(qdata.shape) and len(scale.shape) == len(qdata.shape) + 1:
        expected = block_shape(qdata.shape, block)
        if scale.shape == (*expected, 1):
            return replace(weight, parts={**weight.parts, "scale": reshaped(scale, expected)})
    return weight


def _intx(weight: Weight, read: Bytes) -> Weight:
    """The activation's kind as the text that quantize_ stores: torchao's own reader knows no enum member there."""
    member = data_of(weight.attributes.get("activation_quantization"), "IntxUnpackedToInt8TensorActivationQuantization")
    return weight if member is None else _without(weight, activation_quantization=str(member).lower())


def _intx_unpacked(weight: Weight, read: Bytes) -> Weight:
    """0.13's IntxUnpackedTensor is IntxUnpackedToInt8Tensor without activation quantisation, under its first name."""
    return replace(_without(weight, activation_quantization=None), kind="IntxUnpackedToInt8Tensor")


def _microscaled(weight: Weight, old: bool) -> Weight:
    """Up to 0.14 the two fp4 values of a byte lay the other way round, and scales were flat; the bits are otherwise today's."""
    data, scale = ("qdata" if "qdata" in weight.parts else "_data"), next((n for n in weight.parts if "scale" in n and "tensor" not in n), "scale")
    parts = dict(weight.parts)
    qdata, scales = _leaf(weight, data), _leaf(weight, scale)
    if old and packed_fp4(weight):
        qdata = parts[data] = replace(qdata, rule="nibble-swap")
    block = weight.attributes.get("block_size", weight.attributes.get("_block_size"))
    if not isinstance(block, int) or block <= 0 or not qdata.shape:
        raise Malformed(f"block size {block} is not a positive number")
    if weight.kind == "MXTensor" and scales.dtype.name == "uint8":  # 0.7 and 0.9
        scales = replace(scales, dtype=BY_NAME["float8_e8m0fnu"], rule="relabel")
    parts[scale] = reshaped(scales, scale_shape(weight, qdata, block))
    return replace(weight, parts=parts)


def _mx(weight: Weight, read: Bytes) -> Weight:
    if weight.attributes.get("_elem_dtype") == "fp4_e2m1":  # up to 0.11; the texts for fp6 are today's
        weight = _without(weight, _elem_dtype=dtype_json("float4_e2m1fn_x2"))
    attributes = weight.attributes
    elem = attributes.get("elem_dtype", attributes.get("_elem_dtype"))
    if attributes.get("_pack_fp6", False) is not False and isinstance(elem, str):
        raise Refused("has no exact form today: MXTensor records _pack_fp6=True, a storage of fp6 that torchao dropped in 0.15")
    weight = _microscaled(weight, old="_scale_e8m0" in weight.parts)
    kernel = attributes.get("kernel_preference")
    if kernel is None:
        kernel = kernel_of(attributes.get("_gemm_kernel_choice", typed("MXGemmKernelChoice", "EMULATED")))
    retired = ("_gemm_kernel_choice", "_pack_fp6", "_use_fp4_custom_triton_dequant_kernel")
    return _without(weight, *retired, kernel_preference=kernel)


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
    return _without(weight, "mm_config", act_quant_kwargs=activation if mode == "DYNAMIC" else None)


# --- torchao v1: AffineQuantizedTensor and what wraps it ---------------------------------------------------------------------------------


def _differs(what: str, found: object, expected: object) -> NoReturn:
    raise Refused(f"has no exact form today: {what} is {found}, expected {expected}")


def _need(what: str, found: object, *expected: object) -> None:
    for one in expected:
        if found == one and type(found) is type(one):
            return
    _differs(what, found, " or ".join(map(str, expected)))


def _affine(weight: Weight, read: Bytes) -> Weight:
    """AffineQuantizedTensor by itself: weight-only."""
    return _from_affine(weight, read, None, {})


def _linear_activation(weight: Weight, read: Bytes) -> Weight:
    """LinearActivationQuantizedTensor: a weight, and a function that quantises the activation."""
    inner = weight.parts.get("original_weight_tensor")
    function = data_of(weight.attributes.get("input_quant_func"), "function")
    kwargs = weight.attributes.get("quant_kwargs") or {}
    if not isinstance(inner, Weight) or not isinstance(function, str) or not isinstance(kwargs, dict):
        raise Malformed("LinearActivationQuantizedTensor lacks its weight or its function")
    if inner.shape != weight.shape:
        raise Malformed(f"the outer weight has shape {list(weight.shape)}, the inner one {list(inner.shape)}")
    if inner.kind == "MXTensor":
        return _dynamic_mx(replace(inner, dtype=weight.dtype), function, kwargs, read)
    if inner.kind != "AffineQuantizedTensor":
        _differs("the quantised weight", inner.kind, "AffineQuantizedTensor or MXTensor")
    return _from_affine(replace(inner, dtype=weight.dtype), read, function, kwargs)


def _static_activation(weight: Weight, read: Bytes) -> Weight:
    raise Refused("has no exact form today: the activation's scale is static, and torchao 0.18's Float8Tensor holds none")


def _inner(weight: Weight, read: Bytes) -> Weight:
    raise Refused(f"{weight.kind} is the inside of an AffineQuantizedTensor and no weight by itself")


def _dynamic_mx(weight: Weight, function: str, kwargs: dict[str, Json], read: Bytes) -> Weight:
    """torchao 0.12: MX with its activation quantised to the same element type."""
    _need("the activation function", function, _MXFP)
    _need("quant_kwargs['scale']", kwargs.get("scale"), None)
    if set(kwargs) != {"block_size", "activation_dtype", "scale"}:
        _differs("quant_kwargs", sorted(kwargs), "block_size, activation_dtype and scale")
    lifted = _mx(weight, read)
    activation = typed(
        "QuantizeTensorToMXKwargs",
        {
            "elem_dtype": kwargs["activation_dtype"],
            "block_size": kwargs["block_size"],
            "scaling_mode": typed("ScaleCalculationMode", "FLOOR"),
            "kernel_preference": lifted.attributes["kernel_preference"],
            "is_swizzled_scales": False,
        },
    )
    return _without(lifted, act_quant_kwargs=activation)


def _from_affine(weight: Weight, read: Bytes, function: str | None, kwargs: dict[str, Json]) -> Weight:
    impl = weight.parts.get("tensor_impl", weight.parts.get("layout_tensor"))
    if not isinstance(impl, Weight):
        raise Malformed("AffineQuantizedTensor lacks its tensor_impl")
    maps: Mapping[str, Callable[[Weight, Weight, Bytes, str | None, dict[str, Json]], Weight]] = {
        "PlainAQTTensorImpl": _from_plain,
        "QDQTensorImpl": _to_intx,
        "Float8AQTTensorImpl": _to_float8,
        "TensorCoreTiledAQTTensorImpl": _to_tile_packed,
    }
    odd = set(weight.attributes) - {"block_size", "quant_min", "quant_max", "zero_point_domain"}
    odd |= set(impl.attributes) - {"zero_point", "_layout", "transposed"}
    if odd:
        _differs("the fields", ", ".join(sorted(odd)), "none beside those of torchao 0.7 to 0.17")
    if impl.kind not in maps:
        _differs("the layout", impl.kind, "one that torchao 0.18 has a class for")
    return maps[str(impl.kind)](weight, impl, read, function, kwargs)


def _block(weight: Weight) -> list[int]:
    block = weight.attributes.get("block_size")
    if not isinstance(block, list) or not all(type(item) is int for item in block):
        raise Malformed(f"block size {block} is not a tuple of integers")
    return block


def _to_blocks(part: Part, qdata: Part, block: list[int]) -> Part:
    return reshaped(part, block_shape(qdata.shape, block))


def _zero(impl: Weight, read: Bytes) -> str | None:
    """None without a zero point, "zero" for one that is all zero, "live" for any other."""
    part = impl.parts.get("zero_point")
    if part is None:
        return None
    if not isinstance(part, Part):
        raise Malformed("a zero point is a plain tensor")
    return "live" if any(block.count(0) != len(block) for block in read(part.view)) else "zero"


def _from_plain(weight: Weight, impl: Weight, read: Bytes, function: str | None, kwargs: dict[str, Json]) -> Weight:
    """PlainLayout holds int8 of full range (Int8Tensor) or of a narrower one, one value a byte (IntxUnpackedToInt8Tensor)."""
    limits = weight.attributes.get("quant_min"), weight.attributes.get("quant_max")
    if limits in _RANGES and _RANGES[limits] != "int8":
        return _to_intx(weight, impl, read, function, kwargs)
    return _to_int8(weight, impl, read, function, kwargs)


def _to_int8(weight: Weight, impl: Weight, read: Bytes, function: str | None, kwargs: dict[str, Json]) -> Weight:
    """Weight-only, or activations per token: symmetric and asymmetric. Scale to block shape; a zero point that is all zero is left out."""
    qdata, scale, block = _leaf(impl, "int_data"), _leaf(impl, "scale"), _block(weight)
    _need("the data's dtype", qdata.dtype.name, "int8")
    _need("the number of dimensions", len(qdata.shape), 2)
    _need("the outer shape", weight.shape, qdata.shape)
    layout = data_of(impl.attributes.get("_layout", typed("PlainLayout", {})), "PlainLayout")
    _need("the layout", layout, {})
    if function is not None:
        if function not in (_INT8_SYMMETRIC, _INT8_ASYMMETRIC):
            _differs("the activation function", function, f"{_INT8_SYMMETRIC} or {_INT8_ASYMMETRIC}")
        _need("quant_kwargs", kwargs, {})
        _need("the block size", block, [1, qdata.shape[1]])
        _need("the scale's shape", scale.shape, (qdata.shape[0],), (qdata.shape[0], 1))
    if scale.dtype.name not in FLOATING:
        _differs("the scale's dtype", scale.dtype.name, "a floating one")
    domain = data_of(weight.attributes.get("zero_point_domain"), "ZeroPointDomain")
    _need("the zero point's domain", domain, "NONE", "INT")
    zero = _zero(impl, read)
    _need("the zero point", zero, None, "zero")
    limits = (weight.attributes.get("quant_min"), weight.attributes.get("quant_max"))
    _need("quant_min and quant_max", limits, (None, None), (-128, 127))
    activation = None
    if function is not None:
        mapping = "SYMMETRIC" if function == _INT8_SYMMETRIC else "ASYMMETRIC"
        activation = typed(
            "QuantizeTensorToInt8Kwargs", {"granularity": _PER_ROW, "mapping_type": typed("MappingType", mapping)}
        )
    facts: dict[str, Json] = {
        "act_quant": function,
        "quant_kwargs": kwargs,
        "zero_point": zero,
        "zero_point_domain": domain,
        "quant_min": limits[0],
        "quant_max": limits[1],
        "scale_shape": "out" if scale.shape == (qdata.shape[0],) else list(scale.shape),
        "layout": "PlainLayout",
    }
    return Weight(
        "Int8Tensor",
        {"qdata": qdata, "scale": _to_blocks(scale, qdata, block)},
        {"act_quant_kwargs": activation, "block_size": block},
        weight.dtype,
        weight.shape,
        facts if function == _INT8_SYMMETRIC else None,
    )


def _to_intx(weight: Weight, impl: Weight, read: Bytes, function: str | None, kwargs: dict[str, Json]) -> Weight:
    """One integer a byte with its own scale and zero point per block; activations untouched, or int8 asymmetric per token."""
    qdata, scale, block = _leaf(impl, "int_data"), _leaf(impl, "scale"), _block(weight)
    if function is not None:
        _need("the activation function", function, _INT8_ASYMMETRIC)
        _need("quant_kwargs", kwargs, {})
    _need("the data's dtype", qdata.dtype.name, "int8")
    _need("the outer shape", weight.shape, qdata.shape)
    domain = data_of(weight.attributes.get("zero_point_domain"), "ZeroPointDomain")
    _need("the zero point's domain", domain, "INT", "NONE")
    limits = (weight.attributes.get("quant_min"), weight.attributes.get("quant_max"))
    target = "int8" if limits == (None, None) else _RANGES.get(limits)
    if target is None:
        _differs("quant_min and quant_max", limits, "the range of an integer type of 1 to 8 bits")
    zero_point = _integer_zero_point(impl, read)
    return Weight(
        "IntxUnpackedToInt8Tensor",
        {
            "qdata": qdata,
            "scale": _to_blocks(scale, qdata, block),
            "zero_point": _to_blocks(zero_point, qdata, block),
        },
        {
            "target_dtype": dtype_json(target),
            "block_size": block,
            "activation_quantization": None if function is None else "int8_asym_per_token",
        },
        weight.dtype,
        weight.shape,
    )


def _integer_zero_point(impl: Weight, read: Bytes) -> Part:
    """The zero point as int8: as it is, or cast from another type if all of it is zero, or an integer that fits."""
    part = impl.parts.get("zero_point")
    if not isinstance(part, Part):
        _differs("the zero point", "absent", "a tensor, which IntxUnpackedToInt8Tensor cannot do without")
    if part.dtype.name == "int8":
        return part
    rule = "zero-to-int8"
    if _zero(impl, read) == "live":
        width = part.dtype.itemsize
        if part.dtype.name not in ("int16", "int32", "int64") or not all(_fits(block, width) for block in read(part.view)):
            _differs("the zero point", f"{part.dtype.name} and not zero", "all zero, or integers that int8 holds")
        rule = "narrow-to-int8"
    return replace(part, dtype=BY_NAME["int8"], rule=rule)


def _fits(block: bytes | bytearray, width: int) -> bool:
    """Whether every little-endian integer of `width` bytes is the sign extension of its lowest byte."""
    return all(
        int.from_bytes(block[at : at + width], "little", signed=True) == (block[at] ^ 0x80) - 0x80
        for at in range(0, len(block), width)
    )


def _to_float8(weight: Weight, impl: Weight, read: Bytes, function: str | None, kwargs: dict[str, Json]) -> Weight:
    """Float8Tensor: scale to block shape; activations untouched, or dynamic with the granularity and dtype that v1 names."""
    qdata, scale, block = _leaf(impl, "float8_data"), _leaf(impl, "scale"), _block(weight)
    _need("transposed", impl.attributes.get("transposed"), False)
    _need("the outer shape", weight.shape, qdata.shape)
    layout = data_of(impl.attributes.get("_layout"), "Float8Layout")
    if not isinstance(layout, dict):
        _differs("the layout", impl.attributes.get("_layout"), "Float8Layout")
    domain = data_of(weight.attributes.get("zero_point_domain"), "ZeroPointDomain")
    _need("the zero point's domain", domain, None, "NONE", "INT", "FLOAT")  # float8 has no zero point, whatever it says
    activation = None
    if function is not None:
        _need("the activation function", function, _FP8)
        if set(kwargs) != {"activation_granularity", "activation_dtype"}:
            _differs("quant_kwargs", sorted(kwargs), "activation_granularity and activation_dtype")
        granularity = kwargs["activation_granularity"]
        _need("activation_granularity", granularity, _PER_ROW, typed("PerTensor", {}))
        activation = typed(
            "QuantizeTensorToFloat8Kwargs",
            {
                "float8_dtype": kwargs["activation_dtype"],
                "granularity": granularity,
                "mm_config": None,
                "hp_value_lb": _floor(weight, kwargs["activation_dtype"]),
                "hp_value_ub": None,
                "kernel_preference": typed("KernelPreference", "AUTO"),
            },
        )
    return Weight(
        "Float8Tensor",
        {"qdata": qdata, "scale": _to_blocks(scale, qdata, block)},
        {"block_size": block, "mm_config": layout.get("mm_config"), "act_quant_kwargs": activation},
        weight.dtype,
        weight.shape,
    )


def _floor(weight: Weight, dtype: Json) -> Json:
    """Up to 0.11 (whose float8 weights record quant_max) the activation's scale was at least 2**-23; from 0.12 on there was no floor."""
    if weight.attributes.get("quant_max") is None:
        return None
    name = data_of(dtype, "torch.dtype")
    _need("activation_dtype", name, *_FP8_MAX)
    return _FP8_MAX[str(name)] * 2.0**-23


def _to_tile_packed(weight: Weight, impl: Weight, read: Bytes, function: str | None, kwargs: dict[str, Json]) -> Weight:
    raise Refused(
        "has no proved form today: int4 in the tensor-core-tiled layout; the map to Int4TilePackedTo4dTensor cannot be tested without a GPU"
    )


LIFTS: Final[Mapping[str, Lift]] = {
    "float8": _float8,
    "int8": _int8,
    "intx": _intx,
    "intx_unpacked": _intx_unpacked,
    "mx": _mx,
    "nvfp4": _nvfp4,
    "affine": _affine,
    "linear_activation": _linear_activation,
    "static_activation": _static_activation,
    "inner": _inner,
}
