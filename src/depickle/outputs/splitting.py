"""One state dict in several files: which weights go together, what the files are called, and their index.

In order, a new file when the next weight would not fit; a weight over the limit has a file of its own. All parts of a
weight stay together. Names and index are those of transformers and diffusers.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Final

INDEX: Final = ".index.json"  # after the name that the file would have by itself


def split(sizes: Mapping[str, int], limit: int | None) -> list[list[str]]:
    """Put names into groups of at most `limit` bytes, in their order; one group if there is no limit."""
    groups: list[list[str]] = [[]]
    filled = 0
    for name, size in sizes.items():
        if limit is not None and groups[-1] and filled + size > limit:
            groups.append([])
            filled = 0
        groups[-1].append(name)
        filled += size
    return groups


def file_names(name: str, count: int) -> list[str]:
    """`model.safetensors` is one file; two are `model-00001-of-00002.safetensors` and so on."""
    if count == 1:
        return [name]
    stem, suffix = os.path.splitext(name)
    return [f"{stem}-{i:05d}-of-{count:05d}{suffix}" for i in range(1, count + 1)]


def index_name(name: str) -> str:
    """`model.safetensors.index.json`, and `model.safetensors.index.fp16.json` of a variant `model.fp16.safetensors`."""
    stem, suffix = os.path.splitext(name)
    base, dot, variant = stem.partition(".")
    return f"{base}{suffix}.index.{variant}.json" if dot else name + INDEX


def index_text(files: Mapping[str, Sequence[str]], total: int) -> bytes:
    """The index of `files` (their tensors by file name), which hold `total` bytes of tensors."""
    weight_map = {tensor: name for name, tensors in files.items() for tensor in tensors}
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    return json.dumps(index, indent=2, sort_keys=True, ensure_ascii=False).encode() + b"\n"
