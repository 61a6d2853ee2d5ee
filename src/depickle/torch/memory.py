"""[extra `torch`] The parts of a checkpoint as torch tensors over the file's own bytes.

A storage becomes one torch storage: the file's pages, mapped copy-on-write (what is written to such a tensor stays in
this process), or a copy of its bytes. Views keep shape and stride, so nothing is copied; only what a rule must change
on the way (byte order, nibbles, lazy bits) and what lies unaligned in the file is gathered into memory of its own.
"""

from __future__ import annotations

import mmap
from typing import Final

import torch

from ..dtypes import BY_NAME, DTYPES, DType
from ..errors import Refused
from ..outputs.files import steps_of
from ..ranges import ByteRange, FileSource
from ..rules import Step, apply
from ..shards import Shards
from ..strided import blocks
from ..tensors import TensorView
from ..weights import Part

_EXPANSION: Final = 64 * 1024 * 1024  # as the converter's: over it, a view larger than its storage is a bomb
_GROWTH: Final = 16  # what is gathered into memory, as against the file
_SAME: Final = frozenset({"copy", "reshape", "relabel"})
TORCH_DTYPES: Final[dict[str, torch.dtype]] = {d.name: getattr(torch, d.name) for d in DTYPES if hasattr(torch, d.name)}
DTYPE_NAMES: Final[dict[torch.dtype, DType]] = {found: BY_NAME[name] for name, found in TORCH_DTYPES.items()}


class Memory:
    """A file's storages as torch storages, each made once."""

    def __init__(self, source: FileSource, *, mapped: bool, device: torch.device) -> None:
        self._source = source
        self._device = device
        self._mapped = mapped
        self._known: dict[tuple[int, int], torch.Tensor] = {}  # by offset and length: some tensor over that storage
        self._maps: dict[int, mmap.mmap] = {}
        self._room = max(_GROWTH * source.length, _EXPANSION)

    def tensor(self, part: Part) -> torch.Tensor:
        """The tensor of one part. Raises Refused for a dtype that this torch has not, and for an expanded view."""
        view = part.view
        dtype, stored = TORCH_DTYPES.get(part.dtype.name), TORCH_DTYPES.get(view.dtype.name)
        if dtype is None or stored is None:
            raise Refused(f"has dtype {part.dtype.name}, which torch {torch.__version__} does not have")
        where, nbytes = view.storage, view.nbytes
        key = where.offset, where.length
        if nbytes > where.length and nbytes > _EXPANSION:
            raise Refused(f"expands {where.length} bytes to {nbytes}, over the limit of {_EXPANSION}")
        steps = steps_of(view) if part.rule in _SAME else (*steps_of(view), Step(part.rule, view.dtype.itemsize))
        other = stored != dtype or part.shape != view.shape
        if not nbytes:
            made = torch.empty(part.shape, dtype=dtype)
        elif steps or where.offset % view.dtype.component or (other and not view.contiguous):
            made = self._gathered(view, steps).view(dtype).reshape(part.shape)
        elif nbytes == where.length and view.contiguous and key not in self._known:
            made = self._known[key] = self._row(where, dtype).resize_(part.shape)  # a view would keep its base
        else:
            base = self._known.get(key)
            if base is None:
                base = self._known[key] = self._row(where, torch.uint8)
            made = torch.empty(0, dtype=stored).set_(base.untyped_storage(), view.offset, view.shape, view.stride)
            if other:
                made = made.view(dtype).view(part.shape)
        return made if self._device.type == "cpu" else made.to(self._device)

    def _row(self, where: ByteRange, dtype: torch.dtype) -> torch.Tensor:
        """All of a storage as one row."""
        count = where.length // dtype.itemsize
        if self._mapped:
            start, file = self._source.place(where.offset) if isinstance(self._source, Shards) else (0, self._source)
            if start not in self._maps:
                self._maps[start] = mmap.mmap(file.fileno(), file.length, access=mmap.ACCESS_COPY)
            return torch.frombuffer(self._maps[start], dtype=dtype, count=count, offset=where.offset - start)
        data = bytearray(where.length)
        self._source.readinto(where.offset, memoryview(data))
        return torch.frombuffer(data, dtype=dtype, count=count)

    def _gathered(self, view: TensorView, steps: tuple[Step, ...]) -> torch.Tensor:
        self._room -= view.nbytes
        if self._room < 0:
            raise Refused(f"the file's {self._source.length} bytes would grow over the limit of {_GROWTH} times")
        data = bytearray()
        for block in blocks(view.strided, self._source):
            data += apply(steps, block)
        return torch.frombuffer(data, dtype=torch.uint8)
