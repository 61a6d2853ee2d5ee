"""The table of output containers: which functions plan a checkpoint's files for a target, and say whom else they serve.

A container is a module of this package with such functions, its line here, and its line in `targets.TARGETS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from ..checkpoint import Checkpoint
from ..layout import Layout
from ..options import Options
from ..targets import COMFYUI, HF, UNSLOTH
from . import comfy_notes, comfyui, safetensors
from .files import Provenance
from .names import kept_warnings, reader_warnings


class Output(NamedTuple):
    """One container.

    `plan` takes the checkpoint, the name of its file and where it came from; it raises Refused for what the container
    cannot say, UsageError for options that make no sense with it. `serves` names every target that the same file
    would be made for, `notes` says what its readers should
    know, `activation` how they quantise activations, compared with the source.
    """

    plan: Callable[[Checkpoint, str, Provenance, Options], Layout]
    serves: Callable[[Checkpoint, Options], tuple[str, ...]]
    notes: Callable[[Checkpoint, Options], list[str]]
    activation: Callable[[Checkpoint], str]


def _torchao_notes(checkpoint: Checkpoint, options: Options) -> list[str]:
    return [*reader_warnings(checkpoint.weights), *kept_warnings(checkpoint.weights)]


def _torchao_activation(checkpoint: Checkpoint) -> str:
    return checkpoint.activation


OUTPUTS: Final[Mapping[str, Output]] = {
    UNSLOTH: Output(safetensors.plan, safetensors.serves, _torchao_notes, _torchao_activation),
    HF: Output(safetensors.plan, safetensors.serves, _torchao_notes, _torchao_activation),
    COMFYUI: Output(comfyui.plan, comfyui.serves, comfy_notes.notes, comfy_notes.activation),
}


def output_of(checkpoint: Checkpoint, options: Options) -> Output:
    """The container that was asked for, or the one that goes with the checkpoint."""
    return OUTPUTS[options.target or (HF if checkpoint.format is None else UNSLOTH)]
