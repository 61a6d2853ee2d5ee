"""[extra `torch`] What a live weight says, in one form for every release: class, parts and attributes as torchao 0.18
would hold them.

For the judge in `judge`, which compares a source's live objects with an output's. Written from docs/classes.md
a second time, on live objects and torch operations; it shares no code with the converter's maps. Attributes that say
nothing (None, False, a row's last dimension) are left out on both sides.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Mapping
from types import FunctionType
from typing import Any, Final

import torch

from ..errors import Refused, show
from .sources import Fields, Function, Member

_RENAMED: Final = {"_data": "qdata", "_scale_e8m0": "scale", "_scale_e4m3": "scale"}
_LAST: Final = {("PerRow", "dim"): -1, ("PerToken", "dim"): -1}
_INTS: Final = {2**bits: f"int{bits}" for bits in range(1, 9)}


@dataclasses.dataclass(slots=True)
class Side:
    """One weight of one of the two sides."""

    kind: str
    parts: dict[str, torch.Tensor]
    attributes: dict[str, Any]


def side_of(value: torch.Tensor) -> Side:
    """The form of today of a live weight, or of a plain tensor. Raises Refused for a state that no release writes."""
    try:
        return _side(value)
    except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError, ZeroDivisionError) as error:
        raise Refused(f"has a state that the check does not know: {show(str(error))}") from error


def _side(value: torch.Tensor) -> Side:
    name = type(value).__name__
    if not _is_wrapper(value):
        return Side("Tensor", {"": value}, {})
    if name in _WRAPPERS:
        return _WRAPPERS[name](value)
    state = {key: item for key, item in vars(value).items() if key != "_is_param"}
    parts = {key: item for key, item in state.items() if isinstance(item, torch.Tensor)}
    attributes = {key: plain(item) for key, item in state.items() if key not in parts and not is_nothing(item)}
    made = Side(
        name,
        {_RENAMED.get(key, key.lstrip("_")): part for key, part in parts.items()},
        {key.lstrip("_"): item for key, item in attributes.items()},
    )
    if name in _SPELLINGS:
        _SPELLINGS[name](made, value)
    made.attributes = {key: item for key, item in made.attributes.items() if not is_nothing(item)}
    return made


def _is_wrapper(value: torch.Tensor) -> bool:
    return any(isinstance(item, torch.Tensor) for item in vars(value).values()) if hasattr(value, "__dict__") else False


def is_nothing(value: Any) -> bool:
    """Whether an attribute says nothing."""
    return value is None or value is False


def plain(value: Any) -> Any:
    """An attribute as plain Python: enumerations by name, records by class and what their fields say."""
    if value is None or (isinstance(value, (bool, int, float, str)) and not isinstance(value, enum.Enum)):
        return value
    if isinstance(value, torch.dtype):
        return str(value)
    if isinstance(value, (enum.Enum, Member)):
        return _member(type(value).__name__, value.name)
    if isinstance(value, (Function, FunctionType)):
        return value.name if isinstance(value, Function) else value.__name__
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return record(type(value).__name__, value._asdict())
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if dataclasses.is_dataclass(value) or isinstance(value, Fields):
        names = [f.name for f in dataclasses.fields(value)] if dataclasses.is_dataclass(value) else []
        return record(type(value).__name__, {**{n: getattr(value, n, None) for n in names}, **vars(value)})
    raise Refused(f"holds a {type(value).__name__}, which the check does not know")


def _member(owner: str, name: str) -> Any:
    if owner == "MXGemmKernelChoice":
        return ["KernelPreference", "EMULATED" if name == "EMULATED" else "AUTO"]
    return [owner, "MSLK" if (owner, name) == ("KernelPreference", "FBGEMM") else name]


def record(name: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """A record by its class and what its fields say."""
    said = {key: plain(item) for key, item in fields.items()}
    if "gemm_kernel_choice" in said:
        said["kernel_preference"] = said.pop("gemm_kernel_choice")
    kept = {key: item for key, item in said.items() if not is_nothing(item) and _LAST.get((name, key)) != item}
    return {"class": name, **kept}


# --- classes of today, as older releases spelled them ---------------------------------------------------------------


def _float8(made: Side, value: torch.Tensor) -> None:
    made.attributes["dtype"] = str(value.dtype)
    for name in ("hp_value_lb", "hp_value_ub"):
        made.attributes.pop(name, None)


def _integer(made: Side, value: torch.Tensor) -> None:
    made.attributes["dtype"] = str(value.dtype)
    grid = [size // step for size, step in zip(made.parts["qdata"].shape, made.attributes["block_size"])]
    made.parts["scale"] = made.parts["scale"].reshape(grid)


def _int4(made: Side, value: torch.Tensor) -> None:
    made.attributes["shape"] = list(made.attributes.get("shape") or value.shape)
    if made.attributes.get("activation_dtype") == "torch.bfloat16":
        del made.attributes["activation_dtype"]


def _microscaled(made: Side, value: torch.Tensor) -> None:
    old = any(name in vars(value) for name in ("_scale_e8m0", "_scale_e4m3"))
    said, qdata, scale = made.attributes, made.parts["qdata"], made.parts["scale"]
    fp4 = made.kind == "NVFP4Tensor" or said["elem_dtype"] in {"torch.float4_e2m1fn_x2", "fp4_e2m1"}
    if old and fp4:
        made.parts["qdata"] = torch.bitwise_or(qdata << 4, qdata >> 4)
    rows, columns = qdata.shape[-2], qdata.shape[-1] * (2 if fp4 else 1) // said["block_size"]
    if said.get("is_swizzled_scales"):
        rows, columns = 32 * ((rows + 127) // 128), 16 * ((columns + 3) // 4)
    made.parts["scale"] = scale.reshape(*qdata.shape[:-2], rows, columns)


def _mx(made: Side, value: torch.Tensor) -> None:
    said = made.attributes
    for name in ("use_fp4_custom_triton_dequant_kernel", "pack_fp6"):
        said.pop(name, None)
    emulated = ["KernelPreference", "EMULATED"]
    said["kernel_preference"] = said.pop("gemm_kernel_choice", said.get("kernel_preference")) or emulated
    if said["elem_dtype"] == "fp4_e2m1":
        said["elem_dtype"] = "torch.float4_e2m1fn_x2"
    made.parts["scale"] = made.parts["scale"].view(torch.float8_e8m0fnu)
    _microscaled(made, value)


def _nvfp4(made: Side, value: torch.Tensor) -> None:
    said = made.attributes
    if said.pop("mm_config", None) == ["NVFP4MMConfig", "DYNAMIC"]:
        fields = {"block_size": said["block_size"], "is_swizzled_scales": True}
        said["act_quant_kwargs"] = record(
            "QuantizeTensorToNVFP4Kwargs", {**fields, "use_triton_kernel": said.get("use_triton_kernel")}
        )
    for name, part in made.parts.items():
        if name.endswith("per_tensor_scale") and part.numel() == 1 and part.ndim == 1:
            made.parts[name] = part.reshape(())
    _microscaled(made, value)


_SPELLINGS: Final[Mapping[str, Callable[[Side, torch.Tensor], None]]] = {
    "Float8Tensor": _float8,
    "Int8Tensor": _integer,
    "IntxUnpackedToInt8Tensor": _integer,
    "Int4Tensor": _int4,
    "Int4PlainInt32Tensor": _int4,
    "Int4TilePackedTo4dTensor": _int4,
    "MXTensor": _mx,
    "NVFP4Tensor": _nvfp4,
}


# --- torchao v1 -----------------------------------------------------------------------------------------------------


def _activated(value: Any) -> Side:
    """LinearActivationQuantizedTensor: the weight, and what its activation function is called today."""
    made = _side(value.original_weight_tensor)
    function, kwargs = plain(value.input_quant_func), plain(getattr(value, "quant_kwargs", {}))
    if "dtype" in made.attributes:
        made.attributes["dtype"] = str(value.dtype)
    said: dict[str, Any]
    if made.kind == "Int8Tensor":
        mapping = "SYMMETRIC" if "_symm_" in function else "ASYMMETRIC"
        said = {"granularity": record("PerRow", {}), "mapping_type": ["MappingType", mapping]}
        made.attributes["act_quant_kwargs"] = {"class": "QuantizeTensorToInt8Kwargs", **said}
    elif made.kind == "IntxUnpackedToInt8Tensor":
        made.attributes["activation_quantization"] = "int8_asym_per_token"
    elif made.kind == "Float8Tensor":
        said = {"float8_dtype": kwargs["activation_dtype"], "granularity": kwargs["activation_granularity"]}
        if value.original_weight_tensor.quant_max is not None:  # up to 0.11 a scale was at least 2**-23
            said["hp_value_lb"] = torch.finfo(value.quant_kwargs["activation_dtype"]).max * 2.0**-23
        said["kernel_preference"] = ["KernelPreference", "AUTO"]
        made.attributes["act_quant_kwargs"] = {"class": "QuantizeTensorToFloat8Kwargs", **said}
    elif made.kind == "MXTensor":
        said = {"elem_dtype": kwargs["activation_dtype"], "block_size": kwargs["block_size"]}
        said["scaling_mode"] = ["ScaleCalculationMode", "FLOOR"]
        said["kernel_preference"] = made.attributes["kernel_preference"]
        made.attributes["act_quant_kwargs"] = {"class": "QuantizeTensorToMXKwargs", **said}
    return made


def _affine(value: Any) -> Side:
    """AffineQuantizedTensor: what its inside is today."""
    impl = value.tensor_impl
    block = list(value.block_size)
    said: dict[str, Any] = {"block_size": block, "dtype": str(value.dtype)}
    if type(impl).__name__ == "Float8AQTTensorImpl":
        config = plain(vars(impl)["_layout"].mm_config)
        said |= {"mm_config": config, "kernel_preference": ["KernelPreference", "AUTO"]}
        parts = {"qdata": impl.float8_data, "scale": _gridded(impl.scale, impl.float8_data, block)}
        return Side("Float8Tensor", parts, {key: item for key, item in said.items() if not is_nothing(item)})
    if type(impl).__name__ not in {"PlainAQTTensorImpl", "QDQTensorImpl"}:
        raise Refused(f"is an AffineQuantizedTensor of {type(impl).__name__}, which the check does not know")
    data = impl.int_data
    parts = {"qdata": data, "scale": _gridded(impl.scale, data, block)}
    narrow = value.quant_min is not None and (value.quant_min, value.quant_max) != (-128, 127)
    if type(impl).__name__ == "PlainAQTTensorImpl" and not narrow:
        if impl.zero_point is not None and bool(impl.zero_point.any()):
            raise Refused("has a zero point that is not zero, which the check does not know")
        return Side("Int8Tensor", parts, said)
    zero = impl.zero_point.to(torch.int8)
    if not torch.equal(zero.to(impl.zero_point.dtype), impl.zero_point):
        raise Refused("has a zero point that int8 does not hold, which the check does not know")
    parts["zero_point"] = _gridded(zero, data, block)
    said["target_dtype"] = "torch." + _INTS[int(value.quant_max - value.quant_min) + 1 if narrow else 256]
    return Side("IntxUnpackedToInt8Tensor", parts, said)


def _gridded(part: torch.Tensor, data: torch.Tensor, block: list[int]) -> torch.Tensor:
    return part.reshape([size // step for size, step in zip(data.shape, block)])


def _first_name(value: Any) -> Side:
    """0.13's IntxUnpackedTensor."""
    block = list(value.block_size)
    parts = {"qdata": value.qdata, "scale": _gridded(value.scale, value.qdata, block)}
    parts["zero_point"] = _gridded(value.zero_point, value.qdata, block)
    said = {"block_size": block, "dtype": str(value.dtype), "target_dtype": str(value.target_dtype)}
    return Side("IntxUnpackedToInt8Tensor", parts, said)


_WRAPPERS: Final[Mapping[str, Callable[[Any], Side]]] = {
    "LinearActivationQuantizedTensor": _activated,
    "AffineQuantizedTensor": _affine,
    "IntxUnpackedTensor": _first_name,
}
