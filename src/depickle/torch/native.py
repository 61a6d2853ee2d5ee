"""[extra `torch`] torchao's own safetensors reader, for layouts that we do not model and for who asks for it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Final

import torch

from ..errors import Refused, show
from ..outputs.safetensors import weight_json
from ..weights import Weight

VARIABLE: Final = "UNSLOTH_PREQUANT_NATIVE_REBUILD"
_OFF: Final = frozenset({"0", "false", "no", "off"})


def is_wanted() -> bool:
    """Whether the environment says that torchao's reader is to rebuild everything."""
    return os.environ.get(VARIABLE, "").strip().lower() in _OFF


def native(weight: Weight, parts: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Let torchao's own reader rebuild one weight."""
    return unflattened(parts, json.dumps(weight_json(weight)))


def unflattened(parts: Mapping[str, torch.Tensor], entry: str) -> torch.Tensor:
    """Give torchao's own reader the parts and the header's entry of one weight, by itself: so no other name can stand
    in its way, and many take no longer than their number. Raises Refused where it does not rebuild it."""
    try:
        from torchao.prototype.safetensors.safetensors_support import unflatten_tensor_state_dict
    except ImportError as error:
        raise Refused("the torchao that is installed has no safetensors reader") from error
    tensors = {f"m._w_{name}": tensor for name, tensor in parts.items()}
    try:
        found, left = unflatten_tensor_state_dict(tensors, {"tensor_names": '["m.w"]', "m.w": entry})
    except (ValueError, TypeError, AttributeError, KeyError, AssertionError, NotImplementedError) as error:
        raise Refused(f"torchao's own reader does not rebuild it: {show(str(error))}") from error
    if left or "m.w" not in found:
        raise Refused(f"torchao's own reader does not account for {', '.join(left) or 'the weight'}")
    rebuilt: torch.Tensor = found["m.w"]
    return rebuilt
