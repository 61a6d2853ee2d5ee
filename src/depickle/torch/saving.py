"""[extra `torch`] The verb that saves: a live state dict straight to the container that `convert` writes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import torch

from ..collector import paused
from ..conversion import write
from ..options import Options, UsageError
from ..report import Record
from .live import live_checkpoint


def save(
    state_dict: Mapping[str, torch.Tensor],
    path: str | os.PathLike[str],
    *,
    format: str | None = None,  # noqa: A002 - the header's own word, and that of `load`
    metadata: Mapping[str, Any] | None = None,
    overwrite: bool = False,
) -> Record:
    """Save a live state dict, torchao's weights and plain tensors, as `convert` would have its pickle: streamed,
    proved, and under its name only then.

    `format` and `metadata` are those of a pre-quantised checkpoint. Returns the record; its `src_sha256` is that of
    the storages, one after the other. Raises Refused, Mismatch, UsageError, OSError.
    """
    target = os.fspath(path)
    if not target.endswith(".safetensors"):
        raise UsageError(f"the path must end in .safetensors, not {os.path.basename(target)!r}")
    with live_checkpoint(state_dict, target, format, metadata or {}) as checkpoint, paused():
        return write(checkpoint, target, os.path.dirname(target) or ".", Options(overwrite=overwrite))
