"""[extra `torch`] The parts of a checkpoint as torch tensors over the file's own bytes.

A storage becomes one torch storage: the file's pages, mapped copy-on-write (what is written to such a tensor stays in
this process), or a copy of its bytes. Views keep shape and stride, so nothing is copied; only what a rule must change
on the way (byte order, nibbles, lazy bits) and what lies unaligned in the file is gathered into memory of its own.
"""

from __future__ import annotations

import mmap
from typing import Final

import torch

from .dtypes import BY_NAME, DTYPES, DType
from .errors import Refused
from .outputs.safetensors import steps_of
from .ranges import ByteRange, FileSource
from .rules import Step, apply
from .strided import blocks
from .weights import Part

_EXPANSION: Final = 64 * 1024 * 1024
_SAME: Final = frozenset({"copy", "reshape", "relabel"})
TORCH_DTYPES: Final[dict[str, torch.dtype]] = {d.name: getattr(torch, d.name) for d in DTYPES if hasattr(torch, d.name)}
DTYPE_NAMES: Final[dict[torch.dtype, DType]] = {found: BY_NAME[name] for name, found in TORCH_DTYPES.items()}


class Memory:
    """A file's storages as torch storages, each made once."""

    def __init__(self, source: FileSource, *, mapped: bool, device: torch.device) -> None:
        self._source = source
        self._device = device
        self._storages: dict[ByteRange, torch.UntypedStorage] = {}
        self._map = mmap.mmap(source.fileno(), source.length, access=mmap.ACCESS_COPY) if mapped else None

    def tensor(self, part: Part) -> torch.Tensor:
        """The tensor of one part. Raises Refused for a dtype that this torch has not."""
        dtype = TORCH_DTYPES.get(part.dtype.name)
        stored = TORCH_DTYPES.get(part.view.dtype.name)
        if dtype is None or stored is None:
            raise Refused(f"has dtype {part.dtype.name}, which torch {torch.__version__} does not have")
        steps = steps_of(part.view) if part.rule in _SAME else (*steps_of(part.view), _step(part))
        unaligned = part.view.storage.offset % part.view.dtype.component
        if not part.nbytes:
            made = torch.empty(part.shape, dtype=dtype)
        elif steps or unaligned:
            made = self._gathered(part, steps).view(dtype).reshape(part.shape)
        else:
            view = part.view
            storage = self._storage(view.storage)
            made = torch.empty(0, dtype=stored).set_(storage, view.offset, view.shape, view.stride)
            if stored != dtype:
                made = made.contiguous().view(dtype)
            if part.shape != view.shape:
                made = made.reshape(part.shape)
        return made if self._device.type == "cpu" else made.to(self._device)

    def _storage(self, where: ByteRange) -> torch.UntypedStorage:
        if where not in self._storages:
            if self._map is not None:
                flat = torch.frombuffer(self._map, dtype=torch.uint8, count=where.length, offset=where.offset)
            else:
                data = bytearray(where.length)
                self._source.readinto(where.offset, memoryview(data))
                flat = torch.frombuffer(data, dtype=torch.uint8)
            self._storages[where] = flat.untyped_storage()
        return self._storages[where]

    def _gathered(self, part: Part, steps: tuple[Step, ...]) -> torch.Tensor:
        view = part.view
        if view.nbytes > max(view.storage.length, _EXPANSION):
            raise Refused(f"expands {view.storage.length} bytes to {view.nbytes}, over the limit of {_EXPANSION}")
        data = bytearray()
        for block in blocks(view.strided, self._source):
            data += apply(steps, block)
        return torch.frombuffer(data, dtype=torch.uint8)


def _step(part: Part) -> Step:
    return Step(part.rule, part.view.dtype.itemsize)
