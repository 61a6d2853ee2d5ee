"""What a conversion has to make of a file, worked out from its truth and from nothing of depickle's.

In: the truth of a fixture, what real torch and the torchao that wrote it saw (classes, contexts, sha256 of every inner
tensor). Out: for every name today's class, its attributes and parts in torchao 0.18's order, and how the bytes of each
part go back to those whose digest the truth has. Written from SPEC section 4 and FORMATS sections 5, 6 and 10, by
hand, a second time: nothing here may import depickle.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

Json = Any


@dataclass(frozen=True)
class Part:
    """A tensor of the output; `undo` leads its bytes back to those of which the truth has the digest `sha256`."""

    dtype: str
    shape: tuple[int, ...]
    sha256: str
    undo: str = "same"
    length: int = 0  # of the source's bytes, for parts that were cast


@dataclass(frozen=True)
class Weight:
    """One name of the output. `kind` is None for a plain tensor, whose one part is named ``."""

    kind: str | None
    parts: dict[str, Part]
    attributes: dict[str, Json] = field(default_factory=dict)
    facts: dict[str, Json] | None = None  # of int8 from torchao v1


class NoForm(Exception):
    """The truth describes something that has no exact form today."""


# --- bytes ----------------------------------------------------------------------------------------------------------


def _same(data: bytes, length: int) -> bytes:
    return data


def _swap(data: bytes, length: int) -> bytes:
    return bytes(((byte & 15) << 4) | (byte >> 4) for byte in data)


def _zeros(data: bytes, length: int) -> bytes:
    return bytes(length) if not any(data) else b"not zero"


UNDO: dict[str, Callable[[bytes, int], bytes]] = {"same": _same, "nibbles": _swap, "zeros": _zeros}


def is_zero(tensor: Json) -> bool:
    """Whether the truth's tensor has nothing but zero bytes, told by its digest."""
    return bool(tensor["sha256"] == hashlib.sha256(bytes(tensor["nbytes"])).hexdigest())


def plain_part(tensor: Json) -> Part:
    """A tensor as it stands."""
    return Part(
        tensor["dtype"].removeprefix("torch."), tuple(tensor["shape"]), tensor["sha256"], length=tensor["nbytes"]
    )


def reshaped(part: Part, shape: tuple[int, ...]) -> Part:
    """The same elements under another shape."""
    assert math.prod(part.shape) == math.prod(shape), f"{part.shape} cannot become {shape}"
    return replace(part, shape=shape)


# --- attributes -----------------------------------------------------------------------------------------------------


def short(name: str) -> str:
    return name.rpartition(".")[2]


def typed(name: str, data: Json) -> Json:
    return {"_type": name, "_data": data}


def dtype(name: str) -> Json:
    return typed("torch.dtype", name)


RENAMED = {("KernelPreference", "FBGEMM"): "MSLK"}
# (field, what a file of a release without it means); a field that is inert when it has that value is left out.
RECORDS: dict[str, list[tuple[str, Json]]] = {
    "PerRow": [("dim", -1)],
    "PerTensor": [],
    "Float8MMConfig": [("emulate", False), ("use_fast_accum", False), ("pad_inner_dim", False)],
    "QuantizeTensorToFloat8Kwargs": [
        ("float8_dtype", dtype("float8_e4m3fn")),
        ("granularity", typed("PerRow", {"dim": -1})),
        ("mm_config", None),
        ("hp_value_lb", None),
        ("hp_value_ub", None),
        ("kernel_preference", typed("KernelPreference", "AUTO")),
    ],
    "QuantizeTensorToInt8Kwargs": [
        ("granularity", ...),
        ("mapping_type", typed("MappingType", "SYMMETRIC")),
        ("reduce_range", False),
    ],
    "QuantizeTensorToMXKwargs": [
        ("elem_dtype", ...),
        ("block_size", 32),
        ("scaling_mode", typed("ScaleCalculationMode", "FLOOR")),
        ("kernel_preference", typed("KernelPreference", "EMULATED")),
        ("is_swizzled_scales", False),
    ],
    "QuantizeTensorToNVFP4Kwargs": [
        ("block_size", 16),
        ("is_swizzled_scales", False),
        ("use_triton_kernel", False),
        ("use_dynamic_per_tensor_scale", False),
    ],
}
INERT = {("QuantizeTensorToInt8Kwargs", "reduce_range"): (False, None), ("Int8Tensor", "reduce_range"): (False, None)}


def attribute(value: Json) -> Json:
    """A value of the truth's context in torchao's JSON, with today's fields and names."""
    if isinstance(value, list):
        return [attribute(item) for item in value]
    if not isinstance(value, dict):
        return value
    for key, read in _READERS.items():
        if key in value:
            return read(value)
    raise AssertionError(f"the truth has a value of a new kind: {value}")


def _enum(value: Json) -> Json:
    name = short(value["enum"])
    return typed(name, RENAMED.get((name, value["name"]), value["name"]))


def _record(value: Json) -> Json:
    name = short(value.get("dataclass") or value["namedtuple"])
    given = {key: attribute(item) for key, item in value["fields"].items()}
    if name == "QuantizeTensorToMXKwargs" and "gemm_kernel_choice" in given:
        assert not given.pop("pack_fp6")
        given["kernel_preference"] = kernel(given.pop("gemm_kernel_choice"))
    return typed(name, fields(name, RECORDS[name], given))


_READERS: dict[str, Callable[[Json], Json]] = {
    "dtype": lambda value: dtype(value["dtype"].removeprefix("torch.")),
    "enum": _enum,
    "dataclass": _record,
    "namedtuple": _record,
    "tuple": lambda value: attribute(value["tuple"]),
    "torch.Size": lambda value: attribute(value["torch.Size"]),
    "float": lambda value: float(value["float"]),
    "callable": lambda value: short(value["callable"]),
    "dict": lambda value: {key: attribute(item) for key, item in value["dict"].items()},
}


def fields(owner: str, rows: list[tuple[str, Json]], given: dict[str, Json]) -> dict[str, Json]:
    """The fields in order, the missing ones filled in, the inert ones left out."""
    extra = set(given) - {name for name, _ in rows}
    assert not extra, f"{owner} has fields that are not today's: {extra}"
    made = {}
    for name, default in rows:
        value = given.get(name, default)
        assert value is not ..., f"{owner} lacks {name}"
        if (owner, name) not in INERT or value not in INERT[owner, name]:
            made[name] = value
    return made


def kernel(choice: Json) -> Json:
    """MXGemmKernelChoice of up to 0.14 as today's KernelPreference."""
    return typed("KernelPreference", "EMULATED" if choice is None or choice["_data"] == "EMULATED" else "AUTO")


# --- classes of today -----------------------------------------------------------------------------------------------

# attributes (with what a file without them means) and parts, optional ones first, as torchao 0.18 writes them
CLASSES: dict[str, tuple[list[tuple[str, Json]], list[str]]] = {
    "Float8Tensor": (
        [
            ("block_size", ...),
            ("mm_config", None),
            ("act_quant_kwargs", None),
            ("kernel_preference", typed("KernelPreference", "AUTO")),
            ("dtype", ...),
        ],
        ["qdata", "scale"],
    ),
    "Int8Tensor": (
        [("act_quant_kwargs", None), ("reduce_range", False), ("block_size", ...), ("dtype", ...)],
        ["zero_point", "act_quant_scale", "act_quant_zero_point", "act_pre_scale", "qdata", "scale"],
    ),
    "Int4Tensor": (
        [("activation_dtype", None), ("block_size", ...), ("shape", ...)],
        ["act_pre_scale", "qdata", "scale", "zero_point"],
    ),
    "Int4PlainInt32Tensor": ([("block_size", ...), ("shape", ...)], ["act_pre_scale", "qdata", "scale", "zero_point"]),
    "Int4TilePackedTo4dTensor": ([("block_size", ...), ("shape", ...)], ["act_pre_scale", "qdata", "scale_and_zero"]),
    "IntxUnpackedToInt8Tensor": (
        [("target_dtype", ...), ("block_size", ...), ("dtype", ...), ("activation_quantization", None)],
        ["qdata", "scale", "zero_point"],
    ),
    "MXTensor": (
        [
            ("elem_dtype", ...),
            ("block_size", ...),
            ("orig_dtype", ...),
            ("kernel_preference", typed("KernelPreference", "EMULATED")),
            ("act_quant_kwargs", None),
            ("is_swizzled_scales", False),
        ],
        ["qdata", "scale"],
    ),
    "NVFP4Tensor": (
        [
            ("is_swizzled_scales", False),
            ("use_triton_kernel", False),
            ("act_quant_kwargs", None),
            ("block_size", ...),
            ("orig_dtype", ...),
        ],
        ["per_tensor_scale", "act_per_tensor_scale", "qdata", "scale"],
    ),
}
_PART_NAMES = {"_data": "qdata", "_scale_e8m0": "scale", "_scale_e4m3": "scale"}


def expected(tensor: Json) -> Weight:
    """What becomes of one entry of the truth's `tensors`. Raises NoForm where the maps of FORMATS section 10 have
    none."""
    if "inner" not in tensor:
        return Weight(None, {"": plain_part(tensor)})
    name = short(tensor["class"])
    if name in CLASSES:
        return _today(name, tensor)
    if name in _V1:
        return _V1[name](tensor)
    raise NoForm(f"class {name}")


def _today(name: str, tensor: Json) -> Weight:
    given = _given(name, tensor)
    parts = {_PART_NAMES.get(key, key.lstrip("_")): plain_part(item) for key, item in tensor["inner"].items()}
    settle = {"MXTensor": _mx, "NVFP4Tensor": _nvfp4, "Float8Tensor": _float8, "Int4Tensor": _int4, "Int8Tensor": _int8}
    if name in settle:
        given, parts = settle[name](tensor, given, parts)
    return weight(name, given, parts)


def _given(name: str, tensor: Json) -> dict[str, Json]:
    """The fields of the object: from the context, or for 0.13's lists of values from its `__dict__`; dtype and shape
    from the wrapper."""
    rows, names = CLASSES[name]
    context = attribute(tensor["context"])
    held = attribute({"dict": tensor.get("instance_dict_not_in_context", {})})
    found = {"dtype": dtype(tensor["dtype"].removeprefix("torch.")), "shape": tensor["shape"]}
    given = {key: value for key, value in found.items() if key in dict(rows)}
    for key, value in {**held, **(context if isinstance(context, dict) else {})}.items():
        bare = key.lstrip("_")
        if not (value is None and bare in names) and bare != "is_param":
            given[bare] = value
    return given


def weight(name: str, given: dict[str, Json], parts: dict[str, Part], facts: Json = None) -> Weight:
    """A weight of a class of today, everything in its order."""
    rows, names = CLASSES[name]
    assert set(parts) <= set(names), f"{name} has parts {sorted(parts)}"
    attributes = fields(name, rows, given)
    if name == "Int4Tensor" and attributes["activation_dtype"] is None:
        del attributes["activation_dtype"]
    return Weight(name, {part: parts[part] for part in names if part in parts}, attributes, facts)


Settled = tuple[dict[str, Json], dict[str, Part]]


def _float8(tensor: Json, given: dict[str, Json], parts: dict[str, Part]) -> Settled:
    """0.13 kept the bounds that chose the weight's scale."""
    return {key: value for key, value in given.items() if key not in ("hp_value_lb", "hp_value_ub")}, parts


def _int4(tensor: Json, given: dict[str, Json], parts: dict[str, Part]) -> Settled:
    """bfloat16 is what every release did before the field came with 0.17."""
    return {
        key: value for key, value in given.items() if (key, value) != ("activation_dtype", dtype("bfloat16"))
    }, parts


def _int8(tensor: Json, given: dict[str, Json], parts: dict[str, Part]) -> Settled:
    """0.15's groups had a dimension of their own."""
    rows, cols = parts["qdata"].shape
    blocks = (rows // given["block_size"][0], cols // given["block_size"][1])
    return given, {**parts, "scale": reshaped(parts["scale"], blocks)}


def _swizzled(rows: int, columns: int) -> tuple[int, int]:
    return math.ceil(rows / 128) * 32, math.ceil(columns / 4) * 16


def _old_fp4(tensor: Json) -> bool:
    """Up to 0.14.1 the scale was called after its dtype, and the even element was in the high nibble."""
    return any(key in tensor["inner"] for key in ("_scale_e8m0", "_scale_e4m3"))


def _scaled(given: dict[str, Json], parts: dict[str, Part], fp4: bool, old: bool) -> dict[str, Part]:
    rows, columns = parts["qdata"].shape
    blocks = columns * (2 if fp4 else 1) // given["block_size"]
    shape = _swizzled(rows, blocks) if given.get("is_swizzled_scales") else (rows, blocks)
    made = {**parts, "scale": reshaped(parts["scale"], shape)}
    if fp4 and old:
        made["qdata"] = replace(parts["qdata"], undo="nibbles")
    return made


def _mx(tensor: Json, given: dict[str, Json], parts: dict[str, Part]) -> Settled:
    choice = given.pop("gemm_kernel_choice", None)
    given.pop("use_fp4_custom_triton_dequant_kernel", None)
    assert not given.pop("pack_fp6", False)
    if "kernel_preference" not in given:
        given["kernel_preference"] = kernel(choice)
    parts = _scaled(given, parts, given["elem_dtype"] == dtype("float4_e2m1fn_x2"), _old_fp4(tensor))
    return given, {**parts, "scale": replace(parts["scale"], dtype="float8_e8m0fnu")}


def _nvfp4(tensor: Json, given: dict[str, Json], parts: dict[str, Part]) -> Settled:
    mode = given.pop("mm_config", None)
    if mode == typed("NVFP4MMConfig", "DYNAMIC"):
        data = {"block_size": given["block_size"], "is_swizzled_scales": True}  # what 0.12's linear asked for
        data |= {"use_triton_kernel": given["use_triton_kernel"], "use_dynamic_per_tensor_scale": False}
        given["act_quant_kwargs"] = typed("QuantizeTensorToNVFP4Kwargs", data)
    return given, _scaled(given, parts, True, _old_fp4(tensor))


# --- torchao v1 -----------------------------------------------------------------------------------------------------

FP8_MAX = {"float8_e4m3fn": 448.0, "float8_e5m2": 57344.0}
_SYMMETRIC = "_int8_symm_per_token_reduced_range_quant"
_ASYMMETRIC = "_int8_asymm_per_token_quant"


def _activated(tensor: Json) -> Weight:
    """LinearActivationQuantizedTensor over a weight."""
    function, kwargs = (attribute(item) for item in tensor["context"])
    inner = dict(tensor["inner"]["original_weight_tensor"])
    if short(inner["class"]) == "MXTensor":
        return _activated_mx(inner, function, kwargs)
    return _affine(inner, function, kwargs)


def _activated_mx(inner: Json, function: str, kwargs: Json) -> Weight:
    assert function == "_input_activation_quant_func_mxfp"
    made = _today("MXTensor", inner)
    data = {"elem_dtype": kwargs["activation_dtype"], "block_size": kwargs["block_size"]}
    data |= {"scaling_mode": typed("ScaleCalculationMode", "FLOOR")}
    data |= {"kernel_preference": made.attributes["kernel_preference"], "is_swizzled_scales": False}
    return replace(made, attributes=made.attributes | {"act_quant_kwargs": typed("QuantizeTensorToMXKwargs", data)})


def _affine(tensor: Json, function: str | None = None, kwargs: Json = None) -> Weight:
    """AffineQuantizedTensor: the layout's class says what is inside."""
    names = ("block_size", "shape", "quant_min", "quant_max", "domain", "dtype")
    outer = dict(zip(names, attribute(tensor["context"]), strict=True))
    impl = tensor["inner"]["tensor_impl"]
    name = short(impl["class"])
    maps = {"PlainAQTTensorImpl": _plain_layout, "QDQTensorImpl": _intx, "Float8AQTTensorImpl": _fp8_layout}
    if name not in maps:
        raise NoForm(f"layout {name}")
    return maps[name](outer, impl, function, kwargs or {})


def _blocks(shape: list[int], block: list[int]) -> tuple[int, ...]:
    return tuple(size // step for size, step in zip(shape, block, strict=True))


def _plain_layout(outer: Json, impl: Json, function: str | None, kwargs: Json) -> Weight:
    narrow = outer["quant_min"] is not None and (outer["quant_min"], outer["quant_max"]) != (-128, 127)
    data = impl["inner"]["int_data"]
    if data["dtype"] != "torch.int8":
        raise NoForm(f"data of {data['dtype']}")
    if narrow:
        return _intx(outer, impl, function, kwargs)
    if function not in (None, _SYMMETRIC, _ASYMMETRIC):
        raise NoForm(f"activation function {function}")
    zero = impl["inner"].get("zero_point")
    if outer["domain"]["_data"] == "FLOAT" or (zero is not None and not is_zero(zero)):
        raise NoForm("live zero point")
    return _int8_v1(outer, impl, function, kwargs)


def _int8_v1(outer: Json, impl: Json, function: str | None, kwargs: Json) -> Weight:
    data, scale = impl["inner"]["int_data"], impl["inner"]["scale"]
    mapping = typed("MappingType", "SYMMETRIC" if function == _SYMMETRIC else "ASYMMETRIC")
    activation = typed(
        "QuantizeTensorToInt8Kwargs", {"granularity": typed("PerRow", {"dim": -1}), "mapping_type": mapping}
    )
    given = {
        "act_quant_kwargs": activation if function else None,
        "block_size": outer["block_size"],
        "dtype": outer["dtype"],
    }
    shape = _blocks(data["shape"], outer["block_size"])
    parts = {"qdata": plain_part(data), "scale": reshaped(plain_part(scale), shape)}
    facts = {
        "act_quant": function,
        "quant_kwargs": kwargs,
        "zero_point": "zero" if "zero_point" in impl["inner"] else None,
        "zero_point_domain": outer["domain"]["_data"],
        "quant_min": outer["quant_min"],
        "quant_max": outer["quant_max"],
        "scale_shape": "out" if scale["shape"] == [data["shape"][0]] else scale["shape"],
        "layout": short(impl["context"][0]["dataclass"]),
    }
    return weight("Int8Tensor", given, parts, facts if function == _SYMMETRIC else None)


def _intx(outer: Json, impl: Json, function: str | None, kwargs: Json) -> Weight:
    if function not in (None, _ASYMMETRIC):
        raise NoForm(f"activation function {function}")
    data, scale, zero = (impl["inner"][key] for key in ("int_data", "scale", "zero_point"))
    shape = _blocks(data["shape"], outer["block_size"])
    point = reshaped(plain_part(zero), shape)
    if point.dtype != "int8":
        if not is_zero(zero):
            raise NoForm("floating zero point")
        point = replace(point, dtype="int8", undo="zeros")
    bits = (outer["quant_max"] - outer["quant_min"] + 1).bit_length() - 1
    assert outer["quant_min"] == -(2 ** (bits - 1))
    given = {
        "target_dtype": dtype(f"int{bits}"),
        "block_size": outer["block_size"],
        "dtype": outer["dtype"],
        "activation_quantization": "int8_asym_per_token" if function else None,
    }
    parts = {"qdata": plain_part(data), "scale": reshaped(plain_part(scale), shape), "zero_point": point}
    return weight("IntxUnpackedToInt8Tensor", given, parts)


def _fp8_layout(outer: Json, impl: Json, function: str | None, kwargs: Json) -> Weight:
    transposed, layout = impl["context"]
    assert transposed is False
    data, scale = impl["inner"]["float8_data"], impl["inner"]["scale"]
    activation = None
    if function is not None:
        assert function == "_input_activation_quant_func_fp8"
        given = {"float8_dtype": kwargs["activation_dtype"], "granularity": kwargs["activation_granularity"]}
        if outer["quant_max"] is not None:  # up to 0.11 the scale was at least float32's eps, 2**-23
            given["hp_value_lb"] = FP8_MAX[kwargs["activation_dtype"]["_data"]] * 2.0**-23
        name = "QuantizeTensorToFloat8Kwargs"
        activation = typed(name, fields(name, RECORDS[name], given))
    given = {
        "block_size": outer["block_size"],
        "mm_config": attribute(layout["fields"]["mm_config"]),
        "act_quant_kwargs": activation,
        "dtype": outer["dtype"],
    }
    shape = _blocks(data["shape"], outer["block_size"])
    return weight("Float8Tensor", given, {"qdata": plain_part(data), "scale": reshaped(plain_part(scale), shape)})


def _static(tensor: Json) -> Weight:
    raise NoForm("static activation scale")


_V1: dict[str, Callable[[Json], Weight]] = {
    "LinearActivationQuantizedTensor": _activated,
    "AffineQuantizedTensor": _affine,
    "WeightTensorWithLinearActivationQuantizationMetadata": _static,
}
FACTS = {
    "act_quant": "_int8_symm_per_token_reduced_range_quant",
    "quant_kwargs": {},
    "zero_point": None,
    "zero_point_domain": "NONE",
    "quant_min": None,
    "quant_max": None,
    "scale_shape": "out",
    "layout": "PlainLayout",
}
