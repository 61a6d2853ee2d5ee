"""[extra `torch`] A live state dict as a checkpoint: the same values that a file is read to, over tensors in memory.

Each storage gets a range of a source that reads out of it, so that planner, writer and verifier do for live tensors
what they do for files, in constant memory.
"""

from __future__ import annotations

import dataclasses
import enum
import math
from collections.abc import Iterator, Mapping
from typing import Any, Final

import torch

from ..attributes import from_json, typed
from ..checkpoint import Checkpoint, check_tag, find_ties, shared_facts
from ..errors import Error, Malformed, Refused, located, show
from ..lift import lift
from ..ranges import ByteRange, FileSource
from ..schemas import BY_CLASS, FUNCTIONS, Json
from ..statedict import TAGS
from ..strided import blocks
from ..tensors import TensorView
from ..weights import PLAIN, Part, Weight, plain
from .library import quiet
from .memory import DTYPE_NAMES

_PLAIN: Final = (torch.Tensor, torch.nn.Parameter)


class LiveSource(FileSource):
    """Storages in memory, one after the other, as if they were a file."""

    def __init__(self, path: str) -> None:
        self.path, self.name, self.length = path, "state_dict", 0
        self._storages: list[tuple[int, torch.Tensor]] = []
        self._known: dict[tuple[str, int, int], ByteRange] = {}

    def add(self, storage: torch.UntypedStorage) -> ByteRange:
        """The range of a storage; the same one for the same memory."""
        key = (str(storage.device), storage.data_ptr(), storage.nbytes())
        if key not in self._known:
            flat = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
            self._storages.append((self.length, flat))
            self._known[key] = ByteRange(self.length, storage.nbytes())
            self.length += storage.nbytes()
        return self._known[key]

    def read(self, offset: int, length: int) -> bytes:
        """Copy bytes out of the storages that hold them."""
        data = bytearray(length)
        self.readinto(offset, memoryview(data))
        return bytes(data)

    def readinto(self, offset: int, buffer: memoryview) -> None:
        """Fill a buffer, from whatever device."""
        if offset < 0 or offset + len(buffer) > self.length:
            raise Malformed(f"needs {len(buffer)} bytes, the storages end at {self.length}", file=self.name)
        for start, flat in self._overlapping(offset, len(buffer)):
            first, last = max(start, offset), min(start + flat.numel(), offset + len(buffer))
            out = torch.frombuffer(buffer[first - offset : last - offset], dtype=torch.uint8)
            out.copy_(flat[first - start : last - start])

    def _overlapping(self, offset: int, length: int) -> Iterator[tuple[int, torch.Tensor]]:
        low, high = 0, len(self._storages)
        while low < high:
            middle = (low + high) // 2
            start, flat = self._storages[middle]
            low, high = (middle + 1, high) if start + flat.numel() <= offset else (low, middle)
        while low < len(self._storages) and self._storages[low][0] < offset + length:
            if self._storages[low][1].numel():
                yield self._storages[low]
            low += 1

    def check_unchanged(self) -> None:
        """Memory has no time of change; the comparison after writing reads it once more."""

    def close(self) -> None:
        """There is nothing to close."""


def live_checkpoint(
    state_dict: Mapping[Any, Any], path: str, tag: str | None, metadata: Mapping[str, Any]
) -> Checkpoint:
    """What a live state dict holds, in today's classes. Raises Refused for what the container cannot hold."""
    if tag is not None and tag not in TAGS:
        raise Refused(f"{tag!r} is a format tag that depickle does not know")
    source = LiveSource(path)
    weights: dict[str, Weight] = {}
    classes: dict[str, str] = {}
    for name, value in state_dict.items():
        if not isinstance(name, str) or not isinstance(value, torch.Tensor):
            raise Refused(f"is a {type(value).__name__}, not a tensor", path=show(str(name)))
        try:
            with located(path=show(name)), quiet():
                found = _weight(source, value)
                weights[name] = lift(found, lambda view: blocks(view.strided, source))
        except Error as error:
            error.file = error.file or source.name
            raise
        if found.kind is not None:
            classes[name] = found.kind
    carried = json_of(dict(metadata), "metadata")
    if not isinstance(carried, dict):
        raise Malformed("metadata is not a dict")
    ties, facts = find_ties(weights), shared_facts(weights)
    checkpoint = Checkpoint(source, "live", tag, carried, weights, ties=ties, facts=facts, classes=classes)
    check_tag(checkpoint)
    return checkpoint


def _weight(source: LiveSource, value: torch.Tensor) -> Weight:
    if type(value) in _PLAIN or isinstance(value, torch.nn.Buffer):
        view = _view(source, value.detach())
        return Weight(None, {PLAIN: plain(view)}, {}, view.dtype, view.shape)
    full = f"{type(value).__module__}.{type(value).__qualname__}"
    schema = BY_CLASS.get(full)
    dtype = DTYPE_NAMES.get(value.dtype)
    if schema is None or dtype is None:
        raise Refused(f"class {full} has no schema")
    parts: dict[str, Part | Weight] = {}
    attributes: dict[str, Json] = {}
    for key, item in vars(value).items():
        if isinstance(item, torch.Tensor):
            inner = _weight(source, item)
            leaf = inner.parts.get(PLAIN) if inner.kind is None else None
            parts[key] = inner if leaf is None else leaf
        elif key != "_is_param":
            attributes[key] = from_json(_spelled(item))
    return Weight(schema.name, parts, attributes, dtype, tuple(value.shape), origin=full)


def _view(source: LiveSource, tensor: torch.Tensor) -> TensorView:
    dtype = DTYPE_NAMES.get(tensor.dtype)
    if dtype is None:
        raise Refused(f"has dtype {tensor.dtype}, which safetensors cannot hold")
    if tensor.layout != torch.strided or tensor.is_nested:
        raise Refused("is sparse or nested: convert it with .to_dense() before saving")
    if tensor.device.type == "meta":
        raise Refused("is a meta tensor, it has no data: save the real weights")
    return TensorView(
        dtype,
        tuple(tensor.shape),
        tuple(tensor.stride()),
        tensor.storage_offset(),
        source.add(tensor.untyped_storage()),
        conj=tensor.is_conj(),
        neg=tensor.is_neg(),
    )


def _spelled(value: Any) -> Json:
    """An attribute in torchao's JSON."""
    if isinstance(value, enum.Enum):
        return typed(type(value).__name__, value.name)
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, torch.dtype):
        return typed("torch.dtype", str(value).removeprefix("torch."))
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return typed(type(value).__name__, {key: _spelled(item) for key, item in value._asdict().items()})
    if isinstance(value, (list, tuple)):
        return [_spelled(item) for item in value]
    if isinstance(value, dict):
        return {str(key): _spelled(item) for key, item in value.items()}
    if dataclasses.is_dataclass(value):
        names = [field.name for field in dataclasses.fields(value)]
        return typed(type(value).__name__, {name: _spelled(getattr(value, name)) for name in names})
    full = f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', '')}"
    if full in FUNCTIONS:
        return typed("function", full.rpartition(".")[2])
    raise Refused(f"holds a {type(value).__name__}, which is no attribute that depickle knows")


def json_of(value: Any, path: str) -> Json:
    """Live metadata as JSON spells it: tuples as lists, dtypes and devices by name, non-finite floats as text."""
    if isinstance(value, Mapping):
        made: dict[str, Json] = {}
        for key, item in value.items():
            name = key if isinstance(key, str) else {None: "null", True: "true", False: "false"}.get(key, str(key))
            if name in made:
                raise Refused(f"has two keys that JSON spells {name!r}", path=path)
            made[str(name)] = json_of(item, f"{path}.{name}")
        return made
    if isinstance(value, (list, tuple)):
        return [json_of(item, f"{path}[{i}]") for i, item in enumerate(value)]
    if isinstance(value, (torch.dtype, torch.device)) or (isinstance(value, float) and not math.isfinite(value)):
        return str(value)
    if isinstance(value, str):
        return str(value)
    if value is None or type(value) in {bool, int, float}:
        return value
    raise Refused(f"is a {type(value).__name__}, which JSON cannot hold", path=path)
