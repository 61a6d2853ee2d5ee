"""[extra `torch`] Weights that were stored as they stood (`--keep-unsupported`), as live objects of their own class.

There is no form of today to build them from, so they get what the pickle would have given them: a wrapper of the
class, dtype and shape, and the pickled state as its attributes. Only the class that the file names will do, and only if
the installed release still has it under that name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import torch

from ..errors import Refused
from ..schemas import FUNCTIONS, Json
from ..weights import Weight
from .library import Library
from .memory import TORCH_DTYPES

# Sequences that torchao keeps as something else than a list; JSON does not tell.
_SEQUENCES: Final[Mapping[tuple[str, str], type]] = {
    ("AffineQuantizedTensor", "block_size"): tuple,
    ("UintxTensor", "packed_shape"): torch.Size,
    ("Int4OpaqueTensor", "shape"): torch.Size,
    ("Int4PreshuffledTensor", "shape"): torch.Size,
    ("IntxOpaqueTensor", "shape"): torch.Size,
}


def rebuild(library: Library, weight: Weight, parts: Mapping[str, torch.Tensor], path: str = "") -> torch.Tensor:
    """The live object of a stored weight; `path` leads to it from the outermost. Raises Refused without its class."""
    kind, origin = str(weight.kind), str(weight.origin)
    cls = library.named(origin)
    if cls is None:
        raise Refused(f"is a {origin}, which is not in torchao {library.version or '(not installed)'}")
    state: dict[str, Any] = {}
    for name, part in weight.parts.items():
        inner = f"{path}{name}"
        state[name] = rebuild(library, part, parts, f"{inner}.") if isinstance(part, Weight) else parts[inner]
    for name, value in weight.attributes.items():
        live = _value(library, value)
        state[name] = _SEQUENCES[kind, name](live) if (kind, name) in _SEQUENCES and live is not None else live
    device = next(iter(parts.values())).device
    made: torch.Tensor = torch.Tensor._make_wrapper_subclass(  # noqa: SLF001
        cls, weight.shape, dtype=TORCH_DTYPES[weight.dtype.name], device=device
    )
    made.__dict__.update(state)
    try:
        made.__tensor_flatten__()
    except (AttributeError, KeyError) as error:
        said = f"torchao {library.version} has other fields than the release that wrote it ({error})"
        raise Refused(f"is a {origin}: {said}") from error
    return made


def _value(library: Library, value: Json) -> Any:
    """An attribute; v1's classes also keep functions, and records by name."""
    if isinstance(value, dict) and value.get("_type") == "function":
        found = library.named(next((full for full in FUNCTIONS if full.endswith(f".{value.get('_data')}")), ""))
        if found is None:
            raise Refused(f"needs {value.get('_data')}, which is not in torchao {library.version}")
        return found
    if isinstance(value, dict) and set(value) != {"_type", "_data"}:
        return {key: _value(library, item) for key, item in value.items()}
    return library.value(value)
