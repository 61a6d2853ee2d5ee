"""Under the release that wrote them: the values of microscaled weights, which the truth files of up to 0.14 lack.

In: `{"files": {name: path}}`. Out: per file and weight the digest of its values. Loads with `weights_only` and the
classes of torchao that the file names; the fixtures' own digests were checked before.
"""

from __future__ import annotations

import importlib
import json
import sys
import types
import warnings

import describe
import torch

warnings.simplefilter("ignore")


def stub():
    """0.12 imports two functions, and never calls them, from a module that torch 2.13 has no longer."""
    name = "torch._inductor.kernel.flex_attention"
    try:
        importlib.import_module(name)
    except ImportError:
        sys.modules[name] = types.ModuleType(name)
        sys.modules[name].construct_strides = sys.modules[name].maybe_realize = None


def allow(path):
    """Let torch.load know the classes of torch and torchao that a file names."""
    found = []
    for name in torch.serialization.get_unsafe_globals_in_checkpoint(path):
        module, _, member = name.rpartition(".")
        assert module.split(".")[0] in ("torch", "torchao"), name
        found.append((getattr(importlib.import_module(module), member), name))
    return torch.serialization.safe_globals(found)


def values(path):
    with allow(path):
        loaded = torch.load(path, weights_only=True)
    state_dict = loaded.get("state_dict", loaded)
    found = {name: getattr(weight, "original_weight_tensor", weight) for name, weight in state_dict.items()}
    return {
        name: describe.digest(weight.to_dtype(weight.dtype))
        for name, weight in found.items()
        if hasattr(weight, "to_dtype")
    }


if __name__ == "__main__":
    stub()
    job = json.load(sys.stdin)
    print(json.dumps({name: values(path) for name, path in job["files"].items()}))
