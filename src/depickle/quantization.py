"""`quantization_config` of a transformers or diffusers config, in the form that today's torchao reads.

Old configs name the scheme by a string, or by a config of version 1 with layouts that torchao 0.18 no longer has. What
a config says today follows from the weights themselves, once they are of today's classes: this module reads it off
them, and leaves a config alone that torchao 0.18 reads. Only fields that say something are written, so that torchao
from 0.15 on reads the result. Sources: torchao 0.18 `core/config.py` and `quantization/quant_api.py`; transformers
5.24 and diffusers 0.42, `TorchAoConfig.from_dict`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from .attributes import data_of
from .errors import show
from .schemas import Json
from .weights import Weight

KEY: Final = "quantization_config"


class Rewritten(NamedTuple):
    """What became of a `quantization_config`: the new one, None where the old stands; what a reader should know."""

    config: dict[str, Json] | None
    warnings: tuple[str, ...] = ()


# What torchao 0.18 takes: each config's fields, in version 2. Others are left as they are.
_READABLE: Final[Mapping[str, frozenset[str]]] = {
    name: frozenset(fields.split())
    for name, fields in {
        "Int8WeightOnlyConfig": "group_size granularity set_inductor_config",
        "Int8DynamicActivationInt8WeightConfig": """
            act_mapping_type weight_only_decode granularity set_inductor_config reduce_range""",
        "Float8WeightOnlyConfig": "weight_dtype set_inductor_config granularity",
        "Float8DynamicActivationFloat8WeightConfig": """
            activation_dtype weight_dtype granularity packing_format mm_config activation_value_lb activation_value_ub
            kernel_preference set_inductor_config alg_id""",
        "Int4WeightOnlyConfig": """
            group_size set_inductor_config int4_packing_format int4_choose_qparams_algorithm int4_tile_packed_ntile""",
        "IntxWeightOnlyConfig": """
            weight_dtype granularity mapping_type scale_dtype intx_packing_format intx_choose_qparams_algorithm""",
        "Int8DynamicActivationIntxWeightConfig": """
            weight_dtype weight_granularity weight_mapping_type weight_scale_dtype act_mapping_type
            intx_packing_format intx_choose_qparams_algorithm""",
    }.items()
}
# What torchao 0.18 has no more, under any version.
_GONE: Final = frozenset(
    {
        "FPXWeightOnlyConfig",
        "GemliteUIntXWeightOnlyConfig",
        "Int4DynamicActivationInt4WeightConfig",
        "Int8DynamicActivationInt4WeightConfig",
        "MXFPInferenceConfig",
        "NVFP4InferenceConfig",
        "UIntXWeightOnlyConfig",
    }
)
_PER_NAME: Final = ("fqn_to_config", "module_fqn_to_config")


def rewrite(old: Json, weights: Mapping[str, Weight]) -> Rewritten:
    """Bring a `quantization_config` to today's form, by the weights that it speaks of."""
    quantized = {name: weight for name, weight in weights.items() if weight.kind is not None}
    if not isinstance(old, dict) or old.get("quant_method") != "torchao":
        said = "says nothing of torchao" if isinstance(old, dict) else "is not there"
        missing = (
            f"{KEY} {said}, so transformers and diffusers will not look for the {len(quantized)} quantised weights"
        )
        return Rewritten(None, (missing,) if quantized else ())
    quant_type = old.get("quant_type")
    declared = quant_type.get("default") if isinstance(quant_type, dict) else quant_type
    if _is_readable(declared):
        return Rewritten(None)
    made = _today(declared, quantized)
    if made is None:
        what = ", ".join(sorted({str(weight.kind) for weight in quantized.values()})) or "no quantised weight"
        return Rewritten(None, (f"{KEY} is left as it is: {_name(declared)} has no form today that says {what}",))
    new = {key: value for key, value in old.items() if key not in ("quant_type", "quant_type_kwargs")}
    if "include_embedding" in new:
        new["include_input_output_embeddings"] = new.pop("include_embedding")
    return Rewritten({**new, "quant_type": {"default": made}})


def _name(declared: Json) -> str:
    return show(str(declared.get("_type") if isinstance(declared, dict) else declared), 80)


def _is_readable(declared: Json) -> bool:
    """Whether torchao 0.18 takes a config as it stands, as far as the tables know."""
    entries = _entries(declared)
    if entries is not None:
        return all(value is None or (_entries(value) is None and _is_readable(value)) for value in entries[1].values())
    if not isinstance(declared, dict) or not isinstance(declared.get("_data"), dict):
        return False
    kind = declared.get("_type")
    if kind in _GONE:
        return False
    fields = _READABLE.get(str(kind))
    return fields is None or (declared.get("_version", 1) == 2 and declared["_data"].keys() <= fields)


def _entries(declared: Json) -> tuple[str, dict[str, Json]] | None:
    """The field that has a config for each name, and what is in it; None for a config that is for all."""
    data = declared.get("_data") if isinstance(declared, dict) else None
    for field in _PER_NAME:
        entries = data.get(field) if isinstance(data, dict) else None
        if isinstance(entries, dict):
            return field, entries
    return None


def _today(declared: Json, weights: Mapping[str, Weight]) -> dict[str, Json] | None:
    """The config of today that the weights have, None if no one config says it."""
    entries = _entries(declared)
    if entries is None or not isinstance(declared, dict):
        return _common(weights)
    made = _per_name(entries[1], weights)
    return None if made is None else {**declared, "_data": {entries[0]: made}}


def _common(weights: Mapping[str, Weight]) -> dict[str, Json] | None:
    """The config that all of these weights have."""
    found = [_of(weight) for weight in weights.values()]
    return found[0] if found and all(other == found[0] for other in found) else None


def _per_name(entries: Mapping[str, Json], weights: Mapping[str, Weight]) -> dict[str, Json] | None:
    """A config per module: each by the weights that it is for. A pattern (`re:`) is not run: it is a stranger's."""
    if any(name.startswith("re:") for name in entries):
        return None
    made: dict[str, Json] = {}
    for name, inner in entries.items():
        if inner is None or (_entries(inner) is None and _is_readable(inner)):
            made[name] = inner
            continue
        mine = {of: weight for of, weight in weights.items() if _entry_of(of, entries) == name}
        made[name] = _common(mine)
        if made[name] is None:
            return None
    return made


def _entry_of(name: str, entries: Mapping[str, Json]) -> str:
    """Which entry a weight falls under: its own name's, its module's, or the default."""
    return next((exact for exact in (name, name.rpartition(".")[0]) if exact in entries), "_default")


# --- a weight's own config ------------------------------------------------------------------------------------------


def _of(weight: Weight) -> dict[str, Json] | None:
    """The config that makes weights like this one; None if there is none."""
    maker = _MAKERS.get(str(weight.kind))
    return None if maker is None or weight.origin is not None else maker(weight)


def _config(name: str, data: dict[str, Json], version: int = 2) -> dict[str, Json]:
    return {"_type": name, "_version": version, "_data": data}


def _record(name: str, **data: Json) -> dict[str, Json]:
    return {"_type": name, "_version": 1, "_data": data}


def _granularity(weight: Weight) -> dict[str, Json] | None:
    """Per row or per tensor, by the block that shares a scale; None for any other."""
    block, shape = weight.attributes.get("block_size"), list(weight.leaves()["qdata"].shape)
    if block == shape:
        return _record("PerTensor")
    return _record("PerRow", dim=-1) if block == [1, *shape[1:]] else None


def _group(weight: Weight) -> int | None:
    """The length of a group along the last dimension, one row high."""
    block = weight.attributes.get("block_size")
    size = block[-1] if isinstance(block, list) and block and all(side == 1 for side in block[:-1]) else None
    return size if isinstance(size, int) else None


def _spelled(value: Json) -> Json:
    """A granularity or another record of an attribute, as configs spell it: with a version."""
    if isinstance(value, dict) and isinstance(value.get("_data"), dict):
        return {"_type": value["_type"], "_version": 1, "_data": value["_data"]}
    return value


def _int8(weight: Weight) -> dict[str, Json] | None:
    granularity, kwargs = _granularity(weight), weight.attributes.get("act_quant_kwargs")
    if granularity is None or "act_quant_scale" in weight.parts:
        return None
    if kwargs is None:
        return _config("Int8WeightOnlyConfig", {"granularity": granularity})
    data = data_of(kwargs, "QuantizeTensorToInt8Kwargs")
    if not isinstance(data, dict):
        return None
    mapping = data.get("mapping_type", {"_type": "MappingType", "_data": "SYMMETRIC"})
    made: dict[str, Json] = {"act_mapping_type": mapping, "granularity": granularity}
    if data.get("reduce_range"):
        made["reduce_range"] = True
    return _config("Int8DynamicActivationInt8WeightConfig", made)


def _float8(weight: Weight) -> dict[str, Json] | None:
    granularity, kwargs = _granularity(weight), weight.attributes.get("act_quant_kwargs")
    if granularity is None:
        return None
    part = weight.leaves()["qdata"]
    dtype: Json = {"_type": "torch.dtype", "_data": part.dtype.name}
    if kwargs is None:
        per_row = data_of(granularity, "PerRow") is not None  # the default; torchao before 0.18 knows no other
        made: dict[str, Json] = (
            {"weight_dtype": dtype} if per_row else {"weight_dtype": dtype, "granularity": granularity}
        )
        return _config("Float8WeightOnlyConfig", made)
    data = data_of(kwargs, "QuantizeTensorToFloat8Kwargs")
    if not isinstance(data, dict):
        return None
    made = {
        "activation_dtype": data.get("float8_dtype", {"_type": "torch.dtype", "_data": "float8_e4m3fn"}),
        "weight_dtype": dtype,
        "granularity": [_spelled(data.get("granularity", _record("PerRow", dim=-1))), granularity],
    }
    optional = {
        "mm_config": _spelled(weight.attributes.get("mm_config")),
        "activation_value_lb": data.get("hp_value_lb"),
        "activation_value_ub": data.get("hp_value_ub"),
    }
    made |= {field: value for field, value in optional.items() if value is not None}
    preference = weight.attributes.get("kernel_preference")
    if preference is not None and data_of(preference, "KernelPreference") != "AUTO":
        made["kernel_preference"] = preference
    return _config("Float8DynamicActivationFloat8WeightConfig", made)


def _int4(packing: str) -> Callable[[Weight], dict[str, Json] | None]:
    def make(weight: Weight) -> dict[str, Json] | None:
        size = _group(weight)
        if size is None or data_of(weight.attributes.get("activation_dtype"), "torch.dtype") not in (None, "bfloat16"):
            return None
        form: Json = {"_type": "Int4PackingFormat", "_data": packing}
        return _config("Int4WeightOnlyConfig", {"group_size": size, "int4_packing_format": form})

    return make


def _intx(weight: Weight) -> dict[str, Json] | None:
    size, target = _group(weight), weight.attributes.get("target_dtype")
    if size is None:
        return None
    whole = size == weight.leaves()["qdata"].shape[-1]
    granularity = _record("PerAxis", axis=0) if whole else _record("PerGroup", group_size=size)
    if weight.attributes.get("activation_quantization") is None:
        return _config("IntxWeightOnlyConfig", {"weight_dtype": target, "granularity": granularity})
    return _config("Int8DynamicActivationIntxWeightConfig", {"weight_dtype": target, "weight_granularity": granularity})


def _mx(weight: Weight) -> dict[str, Json] | None:
    data = data_of(weight.attributes.get("act_quant_kwargs"), "QuantizeTensorToMXKwargs")
    dtype = weight.attributes.get("elem_dtype")
    if not isinstance(data, dict) or not isinstance(dtype, dict):
        return None
    made: dict[str, Json] = {
        "block_size": weight.attributes.get("block_size", 32),
        "activation_dtype": data.get("elem_dtype", {"_type": "torch.dtype", "_data": "float8_e4m3fn"}),
        "weight_dtype": dtype,
    }
    return _config("MXDynamicActivationMXWeightConfig", made, 1)


def _nvfp4(weight: Weight) -> dict[str, Json] | None:
    made: dict[str, Json] = {"use_dynamic_per_tensor_scale": "per_tensor_scale" in weight.parts}
    if weight.attributes.get("act_quant_kwargs") is None:
        return _config("NVFP4WeightOnlyConfig", made, 1)
    made["use_triton_kernel"] = weight.attributes.get("use_triton_kernel", False)
    return _config("NVFP4DynamicActivationNVFP4WeightConfig", made, 1)


_MAKERS: Final[Mapping[str, Callable[[Weight], dict[str, Json] | None]]] = {
    "Float8Tensor": _float8,
    "Int4PlainInt32Tensor": _int4("PLAIN_INT32"),
    "Int4Tensor": _int4("PLAIN"),
    "Int4TilePackedTo4dTensor": _int4("TILE_PACKED_TO_4D"),
    "Int8Tensor": _int8,
    "IntxUnpackedToInt8Tensor": _intx,
    "MXTensor": _mx,
    "NVFP4Tensor": _nvfp4,
}
