"""Whom an output is made for: what `--target` may say, and what the output is called. `outputs.plans` plans it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple


class Target(NamedTuple):
    """One value of --target: who reads the output, and what follows the stem of its name."""

    about: str
    suffix: str = ".safetensors"


UNSLOTH, HF, COMFYUI = "unsloth", "hf", "comfyui"
TARGETS: Final[Mapping[str, Target]] = {
    UNSLOTH: Target("Unsloth's pre-quantised container; the default for a checkpoint with a format tag"),
    HF: Target("transformers, diffusers and vLLM: every tensor under its own name; the default for a state dict"),
    COMFYUI: Target("ComfyUI's own quantised layers, where that is exact", suffix="-ComfyUI.safetensors"),
}
