"""A checkpoint in several files, as transformers and diffusers write it, with an index or without.

The files lie one after the other in one source. They are pickles, each with weights of its own, or safetensors, where
the parts of a weight may lie in several. Of safetensors each header's metadata is a part of the whole's, or all of it:
what two of them say of one name must be the same. An index must account for every name, and every name for it.
"""

from __future__ import annotations

import json
import os
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from .archive import Record, sniff
from .checkpoint import Checkpoint, find_ties, read_checkpoint, shared_facts
from .collector import paused
from .errors import Malformed, Refused, located, show
from .header import Entry, Header, read_header, strict_json
from .opening import open_checkpoint, open_output
from .outputs.names import HEADER_KEYS, KEPT_PREFIX, NAMES, ORDER, SEAL, TAG, TIES, part_name
from .outputs.safetensors import described, seal_findings
from .outputs.stored import json_names, json_object, texts
from .ranges import ByteRange, FileSource
from .schemas import Json
from .weights import Part, Weight

SUFFIX: Final = ".safetensors.index.json"
_MAX_INDEX: Final = 100_000_000  # a header's own limit
_MAX_FILES: Final = 10_000
_SUFFIXES: Final = (".safetensors", ".bin", ".pt", ".pth")


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

    def records(self, number: int, records: Iterable[Record]) -> list[Record]:
        """Those of the whole's records that lie in file `number`, as places in it."""
        start, file = self.files[number]
        return [
            Record(record.name, ByteRange(record.range.offset - start, record.range.length), record.crc32)
            for record in records
            if start <= record.range.offset < start + file.length
        ]

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


def files_of(source: FileSource) -> list[FileSource]:
    """The files that a source is made of."""
    return [file for _, file in source.files] if isinstance(source, Shards) else [source]


def starts_of(source: FileSource) -> list[int]:
    """Where each of the files begins in the source."""
    return [start for start, _ in source.files] if isinstance(source, Shards) else [0]


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
    weight_map = read_index(path)
    return open_files(path, sorted(set(weight_map.values())), weight_map)


def open_result(path: str | os.PathLike[str]) -> Checkpoint:
    """Index a safetensors file, or the files of an index, by whatever writer. Raises Malformed, Refused, OSError."""
    text = os.fspath(path)
    return open_shards(text) if text.endswith(".json") else open_output(text)


def open_files(
    path: str, names: Sequence[str], weight_map: Mapping[str, str] | None = None, *, keep_unsupported: bool = True
) -> Checkpoint:
    """Read what several files hold together. They lie beside `path`, the name that errors show.

    `weight_map` is what their index says, if there is one. Raises Malformed, Refused, OSError.
    """
    with located(file=os.path.basename(path)), paused():
        source = Shards(path, list(names))
        try:
            kinds = {sniff(file) == "safetensors" for _, file in source.files}
            if len(kinds) > 1:
                raise Refused("some of the files are pickles, others safetensors")
            if kinds == {True}:
                return _flattened(source, weight_map, keep_unsupported)
            return _pickled(source, weight_map, keep_unsupported)
        except BaseException:
            source.close()
            raise


def read_index(path: str) -> dict[str, str]:
    """The file of every name, as an index says it. Raises Malformed for what is no index, Refused for a file that is
    not beside it."""
    with FileSource(path) as file:
        if file.length > _MAX_INDEX:
            raise Refused(f"the index has {file.length} bytes, over the limit of {_MAX_INDEX}", file=file.name)
        text = file.read(0, file.length)
    with located(file=file.name):
        try:
            found: Any = strict_json(text.decode("utf-8"))
        except ValueError as error:
            raise Malformed(f"the index is not JSON: {show(str(error), 80)}") from error
        weight_map = found.get("weight_map") if isinstance(found, dict) else None
        if not isinstance(weight_map, dict) or not all(isinstance(name, str) for name in weight_map.values()):
            raise Malformed("the index has no weight_map of names")
        if not weight_map:
            raise Malformed("the index names no tensor")
        for name in set(weight_map.values()):
            if name in {"", ".", ".."} or any(mark in name for mark in "/\\\0") or not name.endswith(_SUFFIXES):
                raise Refused(f"the index names {show(name)}, expected a file of weights beside it")
        if len(set(weight_map.values())) > _MAX_FILES:
            raise Refused(f"the index names more than {_MAX_FILES} files")
        return weight_map


# --- safetensors ----------------------------------------------------------------------------------------------------


def _flattened(source: Shards, weight_map: Mapping[str, str] | None, keep: bool) -> Checkpoint:
    metadata: dict[str, str] = {}
    names: dict[str, None] = {}
    tensors: dict[str, Entry] = {}
    damage: list[str] = []
    owner: dict[str, str] = {}
    for start, file in source.files:
        header = read_header(file)
        damage += [f"{file.name}: {finding}" for finding in seal_findings(header)]
        names.update(dict.fromkeys(json_names(header.metadata, NAMES)))
        for key, value in header.metadata.items():
            same = key in (NAMES, SEAL) or metadata.setdefault(key, value) == value
            if not same and (key in names or key in HEADER_KEYS):
                raise Malformed(f"says of {show(key)} what another file does not", file=file.name)
            if key == SEAL:
                metadata[key] = value
        for name, entry in header.tensors.items():
            _claim(name, file.name, owner, weight_map)
            tensors[name] = Entry(entry.dtype, entry.shape, ByteRange(start + entry.range.offset, entry.range.length))
    _check_index(owner, weight_map)
    if names:
        metadata[NAMES] = json.dumps(list(names))
    if TAG in metadata:
        raise Refused(f"has the key {TAG}: a pre-quantised checkpoint of one file was cut into several")
    return described(Header(metadata, tensors, b""), source, damage, keep_unsupported=keep)


def _claim(name: str, file: str, owner: dict[str, str], weight_map: Mapping[str, str] | None) -> None:
    """A name belongs to one file, the one that the index says."""
    if name in owner:
        raise Refused(f"{show(name)} is in {show(owner[name])} and in {show(file)}")
    if weight_map is not None and weight_map.get(name) != file:
        raise Malformed(f"holds {show(name)}, for which the index does not account", file=file)
    owner[name] = file


def _check_index(owner: Mapping[str, str], weight_map: Mapping[str, str] | None) -> None:
    for name, place in (weight_map or {}).items():
        if name not in owner:
            raise Malformed(f"the index says that {show(name)} is in {show(place)}, where it is not")


def open_part(path: str) -> Checkpoint:
    """Read one safetensors file of several by itself: of the names that it lists, those that it holds."""
    source = FileSource(path)
    try:
        with located(file=source.name), paused():
            header = read_header(source)
            metadata = {key: value for key, value in header.metadata.items() if key != TIES}
            for key in (NAMES, ORDER):
                if key in metadata:
                    held = [name for name in json_names(metadata, key) if _holds(header, name)]
                    metadata[key] = json.dumps(held)
            here = Header(metadata, header.tensors, header.raw)
            return described(here, source, seal_findings(header), keep_unsupported=True, whole=False)
    except BaseException:
        source.close()
        raise


def _holds(header: Header, name: str) -> bool:
    """Whether a file holds any tensor of a weight that it lists."""
    entry = json_object(header.metadata, name)
    return name in header.tensors or any(part_name(name, part) in header.tensors for part in _part_paths(entry))


def _part_paths(entry: Mapping[str, Json], path: str = "") -> Iterable[str]:
    """The dotted paths of a weight's parts, and of weights within it."""
    yield from (path + part for part in texts(entry.get("_tensor_data_names", [])))
    data = entry.get("_data")
    for key, value in data.items() if isinstance(data, dict) else ():
        if isinstance(value, dict) and str(value.get("_type")).startswith(KEPT_PREFIX):
            yield from _part_paths(value, f"{path}{key}.")


# --- pickles --------------------------------------------------------------------------------------------------------


def _pickled(source: Shards, weight_map: Mapping[str, str] | None, keep: bool) -> Checkpoint:
    weights: dict[str, Weight] = {}
    classes: dict[str, str] = {}
    owner: dict[str, str] = {}
    found: list[Checkpoint] = []
    records: list[Record] = []
    for start, file in source.files:
        shard = read_checkpoint(file, keep_unsupported=keep)
        if shard.format is not None:
            raise Refused("has a format tag: a pre-quantised checkpoint is one file", file=file.name)
        for name, weight in shard.weights.items():
            _claim(name, file.name, owner, weight_map)
            weights[name] = _moved(weight, start)
        classes.update(shard.classes)
        records += [replace(record, range=_shifted(record.range, start)) for record in shard.records]
        found.append(shard)
    _check_index(owner, weight_map)
    return Checkpoint(
        source,
        found[0].container,
        None,
        {},
        weights,
        tuple(records),
        ties=find_ties(weights),
        facts=shared_facts(weights),
        classes=classes,
        globals=tuple(used for shard in found for used in shard.globals),
        normalised=tuple(f"{shard.source.name}: {text}" for shard in found for text in shard.normalised),
        warnings=tuple(f"{show(shard.source.name)}: {text}" for shard in found for text in shard.warnings),
    )


def _shifted(place: ByteRange, by: int) -> ByteRange:
    return ByteRange(place.offset + by, place.length)


def _moved(weight: Weight, by: int) -> Weight:
    """The same weight, its file lying `by` bytes further on."""
    parts: dict[str, Part | Weight] = {}
    for name, part in weight.parts.items():
        if isinstance(part, Weight):
            parts[name] = _moved(part, by)
        else:
            parts[name] = replace(part, view=replace(part.view, storage=_shifted(part.view.storage, by)))
    return replace(weight, parts=parts)
