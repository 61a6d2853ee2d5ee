"""Load converted folders with the program that they are for, and say what came of it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import accelerate
import huggingface_hub
import models
import torch
from safetensors import safe_open
from torchao.prototype.safetensors.safetensors_support import unflatten_tensor_state_dict

from depickle.torch import load


def loaded(model: str, folder: str) -> torch.nn.Module:
    if model == "llama":
        from transformers import AutoModelForCausalLM

        return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()
    import diffusers

    kind = {"flux": "FluxTransformer2DModel", "zimage": "ZImageTransformer2DModel"}[model]
    return getattr(diffusers, kind).from_pretrained(folder, torch_dtype=torch.bfloat16).eval()


def tensors_of(folder: Path) -> dict[str, list[list[str]]]:
    """The tensors that each library's loader finds in each file."""
    found: dict[str, list[list[str]]] = {"accelerate": [], "huggingface_hub": []}
    for path in sorted(folder.glob("*.safetensors")):
        found["accelerate"].append(sorted(accelerate.utils.modeling.load_state_dict(str(path))))
        found["huggingface_hub"].append(sorted(huggingface_hub.load_state_dict_from_file(path)))
    return found


def file_by_file(folder: Path) -> dict[str, Any]:
    """What vLLM's loader does: each file with its own metadata alone, what is left over kept for the next file."""
    names: list[str] = []
    left: dict[str, torch.Tensor] = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            held = left | {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping
            try:
                whole, left = unflatten_tensor_state_dict(held, file.metadata())
            except ValueError as error:
                return {"error": str(error)}
        names += whole
        assert not left, f"{path.name} leaves {sorted(left)} to the next file"
    return {"names": names}


def loaded_back(folder: Path) -> dict[str, list[str]]:
    """What depickle's own loader makes of the folder, or of its only file."""
    files = list(folder.glob("*.safetensors"))
    return models.values(load(files[0] if len(files) == 1 else folder)["state_dict"])


def main() -> None:
    found = []
    for job in json.load(sys.stdin):
        folder = Path(job["folder"])
        said = models.described(loaded(job["model"], job["folder"]))
        found.append(
            {
                **said,
                "loaders": tensors_of(folder),
                "file by file": file_by_file(folder),
                "depickle": loaded_back(folder),
            }
        )
    print(json.dumps(found))


main()
