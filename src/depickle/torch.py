"""[extra `torch`] Load a checkpoint, converted or not, as live torch and torchao objects.

Works from the same index of a file as the converter and the verifier, for pickles and for safetensors alike: nothing
is unpickled, torchao's own deserialiser is not used (unless told so), and every name is accounted for. Tensors are
views of the mapped file.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

try:
    import torch
except ImportError as error:
    raise ImportError("depickle.torch needs torch: pip install 'depickle[torch]'") from error

from .checkpoint import Checkpoint
from .collector import paused
from .conversion import write
from .errors import Error, Malformed, Refused, located, show
from .opening import open_checkpoint
from .options import Options, UsageError
from .outputs.safetensors import int8_source, weight_json
from .report import Record
from .schemas import BY_NAME_CURRENT
from .torch_classes import Library, quiet
from .torch_dequantize import dequantize as dequantized
from .torch_kept import rebuild
from .torch_live import live_checkpoint
from .torch_shards import index_in, open_shards
from .torch_tensors import Memory
from .weights import PLAIN, Weight

__all__ = ["load", "load_into", "save"]

NATIVE: Final = "UNSLOTH_PREQUANT_NATIVE_REBUILD"
_OFF: Final = frozenset({"0", "false", "no", "off"})

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
    with paused(), _open(path) as checkpoint, located(file=checkpoint.source.name):
        if checkpoint.damage:
            raise Malformed(checkpoint.damage[0])
        memory = Memory(checkpoint.source, mapped=mmap, device=torch.device(device))
        build = _dequantize if dequantize else _builder(checkpoint, Library())
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


def _open(path: str | os.PathLike[str]) -> Checkpoint:
    shards = index_in(path)
    return open_checkpoint(path, keep_unsupported=True) if shards is None else open_shards(shards)


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
            error.path = error.path if error.path is not None else show(name)
            raise
    return made


def _dequantize(weight: Weight, parts: Mapping[str, torch.Tensor]) -> torch.Tensor:
    return dequantized(str(weight.kind), parts, weight.attributes)


def _builder(checkpoint: Checkpoint, library: Library) -> Build:
    """Who rebuilds the weights of this checkpoint: today's classes, v1's for int8 that is v1's, or torchao itself."""
    if os.environ.get(NATIVE, "").strip().lower() in _OFF:
        return native
    v1 = int8_source(checkpoint) is not None and library.v1_classes() is not None

    def build(weight: Weight, parts: Mapping[str, torch.Tensor]) -> torch.Tensor:
        kind = str(weight.kind)
        if weight.origin is not None:
            return rebuild(library, weight, parts)
        if v1 and kind == "Int8Tensor":
            return library.build_v1(weight, parts)
        if library.find(BY_NAME_CURRENT[kind]) is not None and library.installed(kind) is None:
            return native(weight, parts)
        return library.build(weight, parts)

    return build


def native(weight: Weight, parts: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Let torchao's own reader rebuild one weight."""
    return unflattened(parts, json.dumps(weight_json(weight)))


def unflattened(parts: Mapping[str, torch.Tensor], entry: str) -> torch.Tensor:
    """Give torchao's own reader the parts and the header's entry of one weight, by itself: so no other name can stand
    in its way, and many take no longer than their number. Raises Refused where it does not rebuild it."""
    try:
        from torchao.prototype.safetensors.safetensors_support import unflatten_tensor_state_dict
    except ImportError as error:
        raise Refused("the torchao that is installed has no safetensors reader") from error
    tensors = {f"m._w_{name}": tensor for name, tensor in parts.items()}
    try:
        found, left = unflatten_tensor_state_dict(tensors, {"tensor_names": '["m.w"]', "m.w": entry})
    except (ValueError, TypeError, AttributeError, KeyError, AssertionError, NotImplementedError) as error:
        raise Refused(f"torchao's own reader does not rebuild it: {show(str(error))}") from error
    if left or "m.w" not in found:
        raise Refused(f"torchao's own reader does not account for {', '.join(left) or 'the weight'}")
    rebuilt: torch.Tensor = found["m.w"]
    return rebuilt
