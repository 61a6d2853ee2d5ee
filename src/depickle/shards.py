"""A checkpoint in several safetensors files with an index, as transformers and diffusers write it.

The files lie one after the other in one source. Each header's metadata is a part of the whole's, or all of it: what
two of them say of one name must be the same. The index must account for every tensor, and every tensor for it.
"""

from __future__ import annotations

import json
import os
from bisect import bisect_right
from collections.abc import Mapping
from typing import Any, Final

from .checkpoint import Checkpoint
from .errors import Malformed, Refused, located, show
from .header import Entry, Header, read_header
from .opening import open_checkpoint
from .outputs.names import NAMES, TAG
from .outputs.stored import Stored, json_names
from .ranges import ByteRange, FileSource

SUFFIX: Final = ".safetensors.index.json"
_MAX_INDEX: Final = 100_000_000  # a header's own limit
_MAX_FILES: Final = 10_000


class Shards(FileSource):
    """Several files as one source, each at an offset."""

    def __init__(self, path: str, names: list[str]) -> None:
        self.path, self.name, self.length = path, os.path.basename(path), 0
        self.files: list[tuple[int, FileSource]] = []
        try:
            for name in names:
                file = FileSource(os.path.join(os.path.dirname(path), name))
                self.files.append((self.length, file))
                self.length += file.length
        except BaseException:
            self.close()
            raise

    def place(self, offset: int) -> tuple[int, FileSource]:
        """The file that an offset lies in, and where it begins."""
        return self.files[bisect_right(self.files, offset, key=lambda place: place[0]) - 1]

    def read(self, offset: int, length: int) -> bytes:
        """Bytes of one of the files."""
        start, file = self.place(offset)
        return file.read(offset - start, length)

    def readinto(self, offset: int, buffer: memoryview) -> None:
        """Bytes of one of the files, into a buffer."""
        start, file = self.place(offset)
        file.readinto(offset - start, buffer)

    def check_unchanged(self) -> None:
        """Each of the files."""
        for _, file in self.files:
            file.check_unchanged()

    def close(self) -> None:
        """Close all files."""
        for _, file in self.files:
            file.close()


def open_any(path: str | os.PathLike[str]) -> Checkpoint:
    """Read what a checkpoint holds: one file, or several by their index or its folder; unsupported classes are kept.
    Raises Malformed, Refused, OSError."""
    shards = index_in(path)
    return open_checkpoint(path, keep_unsupported=True) if shards is None else open_shards(shards)


def index_in(path: str | os.PathLike[str]) -> str | None:
    """The index that a path means: itself, or the only one in a folder; None for any other path."""
    text = os.fspath(path)
    if text.endswith(SUFFIX):
        return text
    if not os.path.isdir(text):
        return None
    found = sorted(name for name in os.listdir(text) if name.endswith(SUFFIX))
    if len(found) != 1:
        raise Refused(f"is a folder with {len(found)} files named *{SUFFIX}, expected one", file=text)
    return os.path.join(text, found[0])


def open_shards(path: str) -> Checkpoint:
    """Read what an index and its files hold, without reading their tensors. Raises Malformed, Refused, OSError."""
    with located(file=os.path.basename(path)):
        weight_map = _weight_map(path)
        source = Shards(path, sorted(set(weight_map.values())))
        try:
            header = _merged(source, weight_map)
            return _checkpoint(source, header)
        except BaseException:
            source.close()
            raise


def _weight_map(path: str) -> dict[str, str]:
    with FileSource(path) as file:
        if file.length > _MAX_INDEX:
            raise Refused(f"the index has {file.length} bytes, over the limit of {_MAX_INDEX}")
        text = file.read(0, file.length)
    try:
        found: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Malformed("the index is not JSON") from error
    weight_map = found.get("weight_map") if isinstance(found, dict) else None
    if not isinstance(weight_map, dict) or not all(isinstance(name, str) for name in weight_map.values()):
        raise Malformed("the index has no weight_map of names")
    for name in weight_map.values():
        if name in {"", ".", ".."} or any(mark in name for mark in "/\\\0") or not name.endswith(".safetensors"):
            raise Refused(f"the index names {show(name)}, expected a .safetensors file beside it")
    if len(set(weight_map.values())) > _MAX_FILES:
        raise Refused(f"the index names more than {_MAX_FILES} files")
    return weight_map


def _merged(source: Shards, weight_map: Mapping[str, str]) -> Header:
    metadata: dict[str, str] = {}
    names: dict[str, None] = {}
    tensors: dict[str, Entry] = {}
    for start, file in source.files:
        header = read_header(file)
        names.update(dict.fromkeys(json_names(header.metadata, NAMES)))
        for key, value in header.metadata.items():
            if key != NAMES and metadata.setdefault(key, value) != value:
                raise Malformed(f"says of {show(key)} what another file of the index does not", file=file.name)
        for name, entry in header.tensors.items():
            if weight_map.get(name) != file.name:
                raise Malformed(f"holds {show(name)}, for which the index does not account", file=file.name)
            tensors[name] = Entry(entry.dtype, entry.shape, ByteRange(start + entry.range.offset, entry.range.length))
    for name, place in weight_map.items():
        if name not in tensors:
            raise Malformed(f"the index says that {show(name)} is in {show(place)}, where it is not")
    if names:
        metadata[NAMES] = json.dumps(list(names))
    return Header(metadata, tensors, b"")


def _checkpoint(source: Shards, header: Header) -> Checkpoint:
    if TAG in header.metadata:
        raise Refused(f"has the key {TAG}: a pre-quantised checkpoint of one file was cut into several")
    stored = Stored(header, source, keep=True)
    weights = stored.weights(json_names(header.metadata, NAMES))
    if NAMES not in header.metadata:
        weights = {name: stored.plain(name, name) for name in header.tensors}
    left = [name for name in header.tensors if name not in stored.taken]
    if left:
        raise Malformed(f"holds {len(left)} tensors that its metadata does not account for, the first {show(left[0])}")
    classes = {name: str(weight.kind) for name, weight in weights.items() if weight.kind is not None}
    return Checkpoint(source, "safetensors", None, {}, weights, classes=classes)
