"""What readers of a ComfyUI twin should know beside its exact weights: activations, and programs stricter than ComfyUI.

Sources: ComfyUI `comfy/ops.py` and `comfy/quant_ops.py`, SGLang 0.5.23 `quantization_utils.py` as read in November
2026; see docs/comfyui.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from ..attributes import data_of
from ..checkpoint import Checkpoint
from ..errors import show
from ..options import Options
from ..schemas import Json
from ..twin import MARKER
from ..weights import PLAIN, Weight
from .comfy_forms import per_row

_FAMILY: Final[Mapping[str, str]] = {
    "Int8Tensor": "int8",
    "Float8Tensor": "float8",
    "MXTensor": "mxfp8",
    "NVFP4Tensor": "nvfp4",
}
_MIXES: Final = (frozenset({"int8"}), frozenset({"nvfp4", "int8"}), frozenset({"float8"}), frozenset({"mxfp8"}))
_NEED_MARKER: Final = frozenset({"float8_e4m3fn", "int8", "uint8"})


def notes(checkpoint: Checkpoint, options: Options) -> list[str]:
    """The record's warnings: one line a kind of thing, with the first name of each."""
    found = _rounded(checkpoint) if options.allow_requantize else []
    return found + [text for kind in (_activations, _mixes, _unmarked, _unaligned) for text in kind(checkpoint)]


def activation(checkpoint: Checkpoint) -> str:
    """`identical` where no activation is quantised; else that ComfyUI does it, and `notes` say where in another way."""
    dynamic = any(weight.attributes.get("act_quant_kwargs") is not None for weight in checkpoint.weights.values())
    return "ComfyUI's own arithmetic" if dynamic else "identical"


def _own_way(weight: Weight) -> str | None:
    """How ComfyUI quantises this weight's input otherwise than the source; None if it does not, or does alike."""
    given = weight.attributes.get("act_quant_kwargs")
    return None if weight.kind is None or given is None else _WAYS[weight.kind](weight, given)


def _int8_way(weight: Weight, given: Json) -> str | None:
    kwargs = data_of(given, "QuantizeTensorToInt8Kwargs")
    asked = kwargs if isinstance(kwargs, dict) else {}
    alike = data_of(asked.get("granularity"), "PerRow") is not None
    alike = alike and data_of(asked.get("mapping_type"), "MappingType") == "SYMMETRIC"
    if alike and asked.get("reduce_range") is not True:
        return None
    return "int8, symmetric per row over the whole range of int8, the source otherwise"


def _float8_way(weight: Weight, given: Json) -> str | None:
    return "float8 with the scale 1 (values over 448 are cut), the source scales them by their largest"


def _mx_way(weight: Weight, given: Json) -> str | None:
    return None


def _nvfp4_way(weight: Weight, given: Json) -> str | None:
    kwargs = data_of(given, "QuantizeTensorToNVFP4Kwargs")
    dynamic = isinstance(kwargs, dict) and kwargs.get("use_dynamic_per_tensor_scale") is True
    if dynamic or "act_per_tensor_scale" in weight.parts:
        return None
    return "NVFP4 with a scale from their largest, the source without one"


_WAYS: Final[Mapping[str, Callable[[Weight, Json], str | None]]] = {
    "Int8Tensor": _int8_way,
    "Float8Tensor": _float8_way,
    "MXTensor": _mx_way,
    "NVFP4Tensor": _nvfp4_way,
}


def _activations(checkpoint: Checkpoint) -> list[str]:
    found: dict[str, list[str]] = {}
    for name, weight in checkpoint.weights.items():
        way = _own_way(weight)
        if way is not None:
            found.setdefault(way, []).append(name)
    return [
        f"ComfyUI quantises the input of {len(names)} weights, the first {show(names[0])}, to {way}"
        for way, names in found.items()
    ]


def _rounded(checkpoint: Checkpoint) -> list[str]:
    names = [name for name, weight in checkpoint.weights.items() if weight.kind == "Float8Tensor" and per_row(weight)]
    if not names:
        return []
    return [
        f"{len(names)} weights, the first {show(names[0])}, were rounded again to one scale a tensor: not exact, and marked so"
    ]


def _mixes(checkpoint: Checkpoint) -> list[str]:
    families = {_FAMILY[str(weight.kind)] for weight in checkpoint.weights.values() if weight.kind is not None}
    if not families or any(families <= mix for mix in _MIXES):
        return []
    return [f"SGLang's diffusion runtime does not take {', '.join(sorted(families))} in one file; ComfyUI does"]


def _unmarked(checkpoint: Checkpoint) -> list[str]:
    bare = [
        name
        for name, weight in checkpoint.weights.items()
        if weight.kind is None
        and name.endswith(".weight")
        and weight.leaves()[PLAIN].dtype.name in _NEED_MARKER
        and f"{name.removesuffix('weight')}{MARKER}" not in checkpoint.weights
    ]
    if not bare:
        return []
    return [
        f"SGLang's diffusion runtime wants a marker beside every weight of one byte; {len(bare)} have none, the first {show(bare[0])}"
    ]


def _unaligned(checkpoint: Checkpoint) -> list[str]:
    odd = [
        name
        for name, weight in checkpoint.weights.items()
        if weight.kind == "NVFP4Tensor"
        and (weight.leaves()["qdata"].shape[0] % 128 or weight.leaves()["qdata"].shape[1] % 32)
    ]
    if not odd:
        return []
    return [
        f"SGLang's diffusion runtime wants nvfp4 of 128 rows and 64 columns a step; {len(odd)} are not, the first {show(odd[0])}"
    ]
