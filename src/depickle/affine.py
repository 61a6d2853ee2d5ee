"""The maps from torchao v1, AffineQuantizedTensor and what wraps it, to today's classes.

Each demands what makes it exact and says what differs where it is not; docs/classes.md tells why. Read from torchao
0.7 to 0.17.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final, Literal, NoReturn

from .attributes import data_of, dtype_json, typed
from .current import Bytes, Lift, block_shape, leaf, lift_mx, reshaped, without
from .dtypes import BY_NAME
from .errors import Malformed, Refused
from .schemas import FLOATING, Json
from .weights import Part, Weight

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
    kwargs = weight.attributes.get("quant_kwargs")
    if not isinstance(inner, Weight) or not isinstance(function, str) or not isinstance(kwargs, dict):
        raise Malformed("LinearActivationQuantizedTensor lacks its weight or its function")
    _only(weight, {"original_weight_tensor"}, {"input_quant_func", "quant_kwargs"})
    if inner.shape != weight.shape:
        raise Malformed(f"the outer weight has shape {list(weight.shape)}, the inner one {list(inner.shape)}")
    if inner.kind == "MXTensor":
        return _dynamic_mx(replace(inner, dtype=weight.dtype), function, kwargs, read)
    if inner.kind != "AffineQuantizedTensor":
        _differs("the quantised weight", inner.kind, "AffineQuantizedTensor or MXTensor")
    return _from_affine(replace(inner, dtype=weight.dtype), read, function, kwargs)


def _static_activation(weight: Weight, read: Bytes) -> Weight:
    raise Refused(
        "has no exact form today: the activation's scale is static, and torchao 0.18's Float8Tensor holds none"
    )


def _inner(weight: Weight, read: Bytes) -> Weight:
    raise Refused(f"{weight.kind} is the inside of an AffineQuantizedTensor and no weight by itself")


def _dynamic_mx(weight: Weight, function: str, kwargs: dict[str, Json], read: Bytes) -> Weight:
    """MX of torchao 0.12, with its activation quantised to the same element type."""
    _need("the activation function", function, _MXFP)
    _need("quant_kwargs['scale']", kwargs.get("scale"), None)
    if set(kwargs) != {"block_size", "activation_dtype", "scale"}:
        _differs("quant_kwargs", sorted(kwargs), "block_size, activation_dtype and scale")
    lifted = lift_mx(weight, read)
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
    return without(lifted, act_quant_kwargs=activation)


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
    _only(weight, {"tensor_impl", "layout_tensor"}, {"block_size", "quant_min", "quant_max", "zero_point_domain"})
    _only(impl, {"int_data", "float8_data", "packed_weight", "scale", "zero_point", "scale_and_zero"}, _IMPL_FIELDS)
    if impl.kind in maps and impl.shape != weight.shape:
        _differs("the inner shape", impl.shape, str(weight.shape))
    if impl.kind not in maps:
        _differs("the layout", impl.kind, "one that torchao 0.18 has a class for")
    return maps[str(impl.kind)](weight, impl, read, function, kwargs)


_IMPL_FIELDS: Final = {"zero_point", "_layout", "transposed"}


def _only(weight: Weight, parts: set[str], fields: set[str]) -> None:
    """Raise Refused for a part or field that no release of torchao gave the class."""
    odd = sorted((set(weight.parts) - parts) | (set(weight.attributes) - fields))
    if odd:
        _differs(f"{weight.kind}'s state", f"with {', '.join(odd)}", "that of torchao 0.7 to 0.17")


def _block(weight: Weight) -> list[int]:
    block = weight.attributes.get("block_size")
    if not isinstance(block, list) or not all(type(item) is int for item in block):
        raise Malformed(f"block size {block} is not a tuple of integers")
    return block


def _to_blocks(part: Part, qdata: Part, block: list[int]) -> Part:
    return reshaped(part, block_shape(qdata.shape, block))


def _limits(weight: Weight) -> tuple[Json, Json]:
    found = weight.attributes.get("quant_min"), weight.attributes.get("quant_max")
    if any(type(limit) not in (int, float, type(None)) for limit in found):
        raise Malformed("quant_min and quant_max are not numbers")
    return found


def _zero(impl: Weight, read: Bytes) -> str | None:
    """None without a zero point, "zero" for one that is all zero, "live" for any other."""
    part = impl.parts.get("zero_point")
    if part is None:
        return None
    if not isinstance(part, Part):
        raise Malformed("a zero point is a plain tensor")
    if part.dtype.safetensors is None or part.view.nbytes > part.view.storage.length:
        _differs("the zero point", f"{part.dtype.name} in an expanded view or a type of its own", "a plain tensor")
    return "live" if any(block.count(0) != len(block) for block in read(part.view)) else "zero"


def _from_plain(weight: Weight, impl: Weight, read: Bytes, function: str | None, kwargs: dict[str, Json]) -> Weight:
    """PlainLayout holds int8 of full range (Int8Tensor) or of a narrower one, one value a byte
    (IntxUnpackedToInt8Tensor)."""
    limits = _limits(weight)
    if limits in _RANGES and _RANGES[limits] != "int8":
        return _to_intx(weight, impl, read, function, kwargs)
    return _to_int8(weight, impl, read, function, kwargs)


def _to_int8(weight: Weight, impl: Weight, read: Bytes, function: str | None, kwargs: dict[str, Json]) -> Weight:
    """Weight-only, or activations per token: symmetric and asymmetric. Scale to block shape; a zero point that is all
    zero is left out."""
    qdata, scale, block = leaf(impl, "int_data"), leaf(impl, "scale"), _block(weight)
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
    limits = _limits(weight)
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
    """One integer a byte with its own scale and zero point per block; activations untouched, or int8 asymmetric per
    token."""
    qdata, scale, block = leaf(impl, "int_data"), leaf(impl, "scale"), _block(weight)
    if function is not None:
        _need("the activation function", function, _INT8_ASYMMETRIC)
        _need("quant_kwargs", kwargs, {})
    _need("the data's dtype", qdata.dtype.name, "int8")
    _need("the outer shape", weight.shape, qdata.shape)
    domain = data_of(weight.attributes.get("zero_point_domain"), "ZeroPointDomain")
    _need("the zero point's domain", domain, "INT", "NONE")
    limits = _limits(weight)
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
        order: Literal["big", "little"] = "big" if part.view.swapped else "little"
        if not part.view.contiguous:
            _differs("the zero point", "a strided view", "contiguous")
        if part.dtype.name not in ("int16", "int32", "int64") or not all(
            _fits(block, width, order) for block in read(part.view)
        ):
            _differs("the zero point", f"{part.dtype.name} and not zero", "all zero, or integers that int8 holds")
        rule = "narrow-to-int8"
    return replace(part, dtype=BY_NAME["int8"], rule=rule)


def _fits(block: bytes | bytearray, width: int, order: Literal["big", "little"]) -> bool:
    """Whether int8 holds every integer of `width` bytes."""
    return all(
        -128 <= int.from_bytes(block[at : at + width], order, signed=True) <= 127 for at in range(0, len(block), width)
    )


def _to_float8(weight: Weight, impl: Weight, read: Bytes, function: str | None, kwargs: dict[str, Json]) -> Weight:
    """Float8Tensor: scale to block shape; activations untouched, or dynamic with the granularity and dtype that v1
    names."""
    qdata, scale, block = leaf(impl, "float8_data"), leaf(impl, "scale"), _block(weight)
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
    """Up to 0.11 (whose float8 weights record quant_max) the activation's scale was at least 2**-23; from 0.12 on
    there was no floor."""
    if weight.attributes.get("quant_max") is None:
        return None
    name = data_of(dtype, "torch.dtype")
    _need("activation_dtype", name, *_FP8_MAX)
    return _FP8_MAX[str(name)] * 2.0**-23


def _to_tile_packed(weight: Weight, impl: Weight, read: Bytes, function: str | None, kwargs: dict[str, Json]) -> Weight:
    raise Refused(
        "has no proved form today: int4 in the tensor-core-tiled layout; the map to Int4TilePackedTo4dTensor cannot be tested without a GPU"
    )


MAPS: Final[Mapping[str, Lift]] = {
    "affine": _affine,
    "linear_activation": _linear_activation,
    "static_activation": _static_activation,
    "inner": _inner,
}
