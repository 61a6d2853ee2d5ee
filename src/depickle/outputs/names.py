"""The strings of the container: header keys, the prefix of root names, and what a weight's parts are called.

Names of parts are built from a weight and never parsed back. Source: torchao 0.15 to 0.18, `prototype/safetensors`;
docs/format.md.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from typing import Final

from ..attributes import data_of
from ..errors import show
from ..weights import Weight

ROOT_PREFIX: Final = "unsloth_root::"
KEPT_PREFIX: Final = "depickle/"  # before the type of a weight that no other reader can rebuild

FORMAT, TAG, METADATA, QUANT = "format", "unsloth_format", "unsloth_metadata", "unsloth_quant_layout"
TAGGED_SOURCE, PLAIN_SOURCE = "unsloth_source", "depickle_source"
NAMES, ROOTS, ORDER, TIES, SEAL = (
    "tensor_names",
    "unsloth_root_tensors",
    "depickle_order",
    "depickle_ties",
    "depickle_header",
)
# A ComfyUI twin has two keys of its own: the markers again, as ComfyUI reads them, and what the source was.
LAYERS, TWIN = "_quantization_metadata", "depickle_twin"
HEADER_KEYS: Final = frozenset(
    {"__metadata__", FORMAT, TAG, METADATA, QUANT, TAGGED_SOURCE, PLAIN_SOURCE, NAMES, ROOTS, ORDER, TIES, SEAL}
)


def part_name(name: str, part: str) -> str:
    """The file's tensor name of one part: `M.P` and `qdata` make `M._P_qdata`."""
    module, _, parameter = name.rpartition(".")
    return f"{module}._{parameter}_{part.replace('.', '_')}"


def flat_names(name: str, weight: Weight) -> dict[str, str]:
    """The file's tensor name of each part of a quantised weight."""
    return {part: part_name(name, part) for part in weight.leaves()}


def lost_names(weights: Mapping[str, Weight]) -> list[str]:
    """Warn of names that torchao's own reader loses without a word: it collects the parts of a weight by prefix."""
    flat: list[tuple[str, str]] = []
    for name, weight in weights.items():
        keys = [name] if weight.kind is None else [name, *flat_names(name, weight).values()]
        flat.extend((key, name) for key in keys)
    flat.sort()
    warnings = []
    for name, weight in weights.items():
        if weight.kind is None or "." not in name:
            continue
        prefix = part_name(name, "")
        at = bisect_left(flat, (prefix, ""))
        while at < len(flat) and flat[at][0].startswith(prefix):
            if flat[at][1] != name:
                warnings.append(
                    f"{show(name)}: torchao's reader (and transformers, diffusers and vLLM, which use it) loses this weight, "
                    f"since {show(flat[at][1])} begins like its parts; depickle reads it"
                )
                break
            at += 1
    return warnings


def kept_warnings(weights: Mapping[str, Weight]) -> list[str]:
    """Warn of weights that only depickle can rebuild from the file."""
    kept = [name for name, weight in weights.items() if weight.origin is not None]
    if not kept:
        return []
    return [
        f"{len(kept)} weights are stored in a form of depickle's own that no other reader rebuilds, the first {show(kept[0])}"
    ]


def reader_warnings(weights: Mapping[str, Weight]) -> list[str]:
    """What readers of a converted file should know: weights that some of them lose or misread."""
    warnings = lost_names(weights)
    asymmetric = [name for name, weight in weights.items() if _needs_zero_point(weight)]
    if asymmetric:
        warnings.append(
            f"{len(asymmetric)} int8 weights quantise their activations asymmetrically, the first {show(asymmetric[0])}: "
            "torchao 0.17 and 0.18 do so, 0.16 takes the file and computes wrong results"
        )
    return warnings


def _needs_zero_point(weight: Weight) -> bool:
    kwargs = data_of(weight.attributes.get("act_quant_kwargs"), "QuantizeTensorToInt8Kwargs")
    asymmetric = isinstance(kwargs, dict) and data_of(kwargs.get("mapping_type"), "MappingType") == "ASYMMETRIC"
    return asymmetric and "zero_point" not in weight.parts
