"""Open a file, whatever its container: the one place that looks at what it is and calls the reader for it."""

from __future__ import annotations

import os

from .archive import sniff
from .checkpoint import Checkpoint, read_checkpoint
from .collector import paused
from .errors import Malformed, Refused, located
from .outputs import safetensors
from .ranges import FileSource


def open_checkpoint(
    path: str | os.PathLike[str], *, key: str | None = None, keep_unsupported: bool = False
) -> Checkpoint:
    """Read what a checkpoint holds (a torch.save file or a safetensors file) without reading its tensors.

    `key` names the state dict in a nested file. The result is a context manager: it holds the file open. Raises
    `Malformed`, `Refused`, `OSError`.
    """
    if os.path.isdir(path):
        raise Refused("is a folder; give the files in it", file=os.fspath(path))
    source = FileSource(path)
    try:
        with located(file=source.name), paused():
            if sniff(source) == "safetensors":
                found = safetensors.index(source, keep_unsupported=keep_unsupported, form=False)
                if found.damage:
                    raise Malformed(found.damage[0])
                return found
            return read_checkpoint(source, key=key, keep_unsupported=keep_unsupported)
    except BaseException:
        source.close()
        raise


def open_output(path: str | os.PathLike[str]) -> Checkpoint:
    """Index a safetensors file, by whatever writer. Raises Malformed if it is none."""
    source = FileSource(path)
    try:
        with located(file=source.name), paused():
            kind = sniff(source)
            if kind != "safetensors":
                raise Malformed(f"is a {kind} file, expected safetensors (verify takes SRC, then DST)")
            return safetensors.index(source, keep_unsupported=True)
    except BaseException:
        source.close()
        raise
