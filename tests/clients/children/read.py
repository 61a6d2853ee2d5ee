"""Load converted folders with the program that they are for, and say what came of it."""

from __future__ import annotations

import json
import sys
from typing import Any

import models
import torch


def loaded(model: str, folder: str) -> torch.nn.Module:
    if model == "llama":
        from transformers import AutoModelForCausalLM

        return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()
    from diffusers import FluxTransformer2DModel

    return FluxTransformer2DModel.from_pretrained(folder, torch_dtype=torch.bfloat16).eval()


def main() -> None:
    jobs: list[dict[str, Any]] = json.load(sys.stdin)
    print(json.dumps([models.described(loaded(job["model"], job["folder"])) for job in jobs]))


main()
