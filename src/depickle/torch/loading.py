"""[extra `torch`] The verbs that load: a checkpoint, converted or not, as live torch and torchao objects.

Tensors are views of the mapped file. Who makes a weight of them is decided once a checkpoint: today's classes, those
of torchao v1 for int8 that is v1's, torchao's own reader, or formulas that need no torchao.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from ..checkpoint import Checkpoint
from ..collector import paused
from ..errors import Error, Malformed, Refused, located, show
from ..outputs.safetensors import int8_source
from ..schemas import BY_NAME_CURRENT
from ..shards import open_any
from ..weights import PLAIN, Weight
from .building import Builder
from .formulas import dequantize as dequantized
from .kept import rebuild
from .library import Library, quiet
from .memory import Memory
from .native import is_wanted, native

Build = Callable[[Weight, Mapping[str, torch.Tensor]], torch.Tensor]


def load(
    path: str | os.PathLike[str],
    *,
    device: str | torch.device = "cpu",
    mmap: bool = True,
    dequantize: bool = False,
    names: Iterable[str] | None = None,
) -> dict[str, Any]:
    """Load a checkpoint: `{"format", "metadata", "state_dict"}`, the state dict's keys in the source's order.

    `path` is a pickle, a safetensors file, or the index of several of these (or the folder that holds it).
    Quantised weights come back as the installed torchao's classes, or with `dequantize` as plain tensors, for which
    no torchao is needed. `names` limits what is loaded. Tied weights are one tensor. Raises Malformed, Refused,
    OSError.
    """
    with paused():  # until nothing is left but the result: the index is several times as many objects
        return _load(path, torch.device(device), mmap, dequantize, names)


def _load(
    path: str | os.PathLike[str], device: torch.device, mapped: bool, plain: bool, names: Iterable[str] | None
) -> dict[str, Any]:
    with open_any(path) as checkpoint, located(file=checkpoint.source.name):
        if checkpoint.damage:
            raise Malformed(checkpoint.damage[0])
        memory = Memory(checkpoint.source, mapped=mapped, device=device)
        build = _dequantize if plain else _chosen(checkpoint, Library())
        with quiet():
            state_dict = _state_dict(checkpoint, memory, build, names)
        checkpoint.source.check_unchanged()
        return {"format": checkpoint.format, "metadata": dict(checkpoint.metadata), "state_dict": state_dict}


def load_into(
    model: torch.nn.Module,
    path: str | os.PathLike[str],
    *,
    strict: bool = True,
    assign: bool = True,
) -> tuple[list[str], list[str]]:
    """Load a checkpoint into a model; return the names that the file lacks and those that the model lacks.

    With `assign` (the default) the model's parameters are replaced: it may be on the meta device, and nothing is
    copied. Tied weights become one parameter. With `strict` both lists must be empty, and nothing of the model may be
    left on the meta device: a buffer that is in no file has to be made before. Raises Refused, and what `load` raises.
    """
    state_dict = load(path)["state_dict"]
    made: dict[int, torch.nn.Parameter] = {}
    for name, tensor in state_dict.items():
        if assign and (type(tensor) is not torch.Tensor or tensor.is_floating_point()):
            frozen = made.setdefault(id(tensor), torch.nn.Parameter(tensor, requires_grad=False))
            state_dict[name] = frozen
    buffers = dict(model.named_buffers(remove_duplicate=False))
    given = {name: tensor.data if name in buffers else tensor for name, tensor in state_dict.items()}
    file = os.path.basename(os.fspath(path))
    try:
        lacking, unknown = model.load_state_dict(given, strict=False, assign=assign)
    except (RuntimeError, NotImplementedError) as error:
        raise Refused(f"does not fit the model: {show(str(error), 500)}", file=file) from error
    if strict and (lacking or unknown):
        said = (
            f"the model does not account for {len(unknown)} names of the file, the file not for {len(lacking)} of its"
        )
        raise Refused(f"{said}: {', '.join(show(name, 80) for name in [*unknown, *lacking][:8])}", file=file)
    left = [name for name, tensor in (*model.named_parameters(), *model.named_buffers()) if tensor.is_meta]
    if strict and left:
        raise Refused(f"{show(left[0])} is on the meta device and not in the file ({len(left)} such)", file=file)
    return list(lacking), list(unknown)


def _state_dict(
    checkpoint: Checkpoint, memory: Memory, build: Build, names: Iterable[str] | None
) -> dict[str, torch.Tensor]:
    wanted = dict.fromkeys(checkpoint.weights if names is None else names)
    for name in wanted:
        if name not in checkpoint.weights:
            raise Refused("there is no such weight", path=show(name))
    made: dict[str, torch.Tensor] = {}
    for name, weight in checkpoint.weights.items():
        if name not in wanted:
            continue
        origin = checkpoint.ties.get(name)
        if origin in made:
            made[name] = made[origin]
            continue
        try:
            parts = {key: memory.tensor(part) for key, part in weight.leaves().items()}
            made[name] = parts[PLAIN] if weight.kind is None else build(weight, parts)
        except Error as error:
            error.path = show(name) if error.path is None else f"{show(name)}.{error.path}"
            raise
    return made


def _dequantize(weight: Weight, parts: Mapping[str, torch.Tensor]) -> torch.Tensor:
    return dequantized(str(weight.kind), parts, weight.attributes)


def _chosen(checkpoint: Checkpoint, library: Library) -> Build:
    """Who rebuilds the weights of this checkpoint: today's classes, v1's for int8 that is v1's, or torchao itself."""
    if is_wanted():
        return native
    v1 = int8_source(checkpoint) is not None and library.v1_classes() is not None
    builder = Builder(library)

    def build(weight: Weight, parts: Mapping[str, torch.Tensor]) -> torch.Tensor:
        kind = str(weight.kind)
        if weight.origin is not None:
            return rebuild(library, weight, parts)
        if v1 and kind == "Int8Tensor":
            return builder.build_v1(weight, parts)
        if library.find(BY_NAME_CURRENT[kind]) is not None and library.installed(kind) is None:
            return native(weight, parts)
        return builder.build(weight, parts)

    return build
