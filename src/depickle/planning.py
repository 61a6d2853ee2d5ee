"""From a checkpoint to the layout of its conversion, before anything is written."""

from __future__ import annotations

import os
from typing import Final

from ._version import __version__
from .checkpoint import Checkpoint
from .errors import Refused
from .layout import Layout
from .options import Options, UsageError, destination
from .outputs.files import Provenance
from .outputs.plans import output_of
from .shards import files_of


def plan(checkpoint: Checkpoint, out_dir: str | os.PathLike[str], options: Options) -> tuple[str, Layout]:
    """The destination's path and the layout of a conversion, without doing it."""
    dst = destination(checkpoint.source.path, out_dir, options)
    return dst, plan_as(os.path.basename(dst), checkpoint, options)


def plan_as(name: str, checkpoint: Checkpoint, options: Options) -> Layout:
    """The layout of a conversion to the file `name`, or to several that are called after it."""
    if options.drop_tied_copies and checkpoint.kind != "text_encoder":
        raise UsageError(f"--drop-tied-copies is for text encoders, {checkpoint.source.name} is a {checkpoint.kind}")
    _check_expansions(checkpoint)
    first, *more = [(file.name, file.length) for file in files_of(checkpoint.source)]
    provenance = Provenance(
        file=first[0],
        bytes=first[1],
        converter=f"depickle {__version__}",
        repo=options.repo,
        revision=options.revision,
        earlier=checkpoint.provenance,
        more=tuple(more),
    )
    return output_of(checkpoint, options).plan(checkpoint, name, provenance, options)


_EXPANSION: Final = 64 * 1024 * 1024  # a bias that was expanded over a batch is far smaller
_GROWTH: Final = 16  # ties and shared views double or triple a real checkpoint


def _check_expansions(checkpoint: Checkpoint) -> None:
    """A view may be larger than its storage, and a storage be named many times; over a limit that is a bomb."""
    total = 0
    for name, weight in checkpoint.weights.items():
        for leaf in weight.leaves().values():
            total += leaf.nbytes
            if leaf.view.nbytes > max(leaf.view.storage.length, _EXPANSION):
                raise Refused(
                    f"expands {leaf.view.storage.length} bytes to {leaf.view.nbytes}, over the limit of {_EXPANSION}",
                    file=checkpoint.source.name,
                    path=name,
                )
    if total > max(_GROWTH * checkpoint.source.length, _EXPANSION):
        raise Refused(
            f"would grow from {checkpoint.source.length} bytes to {total}, over the limit of {_GROWTH} times",
            file=checkpoint.source.name,
        )
