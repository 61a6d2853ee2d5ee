"""The safetensors file format, and nothing of what anybody writes into it.

`read_header` takes a source to a `Header`: its metadata, and each tensor as a range of the file. Rules as in
safetensors 0.8.0 (`tensor.rs`, `read_metadata` and `validate`): an 8-byte little-endian length, JSON that starts
with `{` and may end in spaces, string to string metadata, offsets that start at 0, leave no hole, overlap nowhere
and end with the file, no key twice, and sizes that agree with dtype and shape. Every breach is Malformed and names
the tensor; a dtype that this library does not know is Refused.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from .dtypes import BY_SAFETENSORS, MAX_RANK, RANK, DType
from .errors import Malformed, Refused, show
from .ranges import ByteRange, Source

MAX_HEADER: Final = 100_000_000  # the format's own limit
_LENGTH: Final = struct.Struct("<Q")
_KEYS: Final = frozenset({"dtype", "shape", "data_offsets"})


@dataclass(frozen=True, slots=True)
class Entry:
    """One tensor of the file: its dtype, its shape in torch's elements, its bytes as a range of the file."""

    dtype: DType
    shape: tuple[int, ...]
    range: ByteRange


@dataclass(frozen=True, slots=True)
class Header:
    """What a safetensors file says of itself. `raw` is the header's JSON with its padding, as it stands in the file."""

    metadata: Mapping[str, str]
    tensors: Mapping[str, Entry]
    raw: bytes

    @property
    def data_start(self) -> int:
        """The offset of the first tensor byte."""
        return _LENGTH.size + len(self.raw)


def read_header(source: Source) -> Header:
    """Parse and validate a file's header. Raises Malformed or Refused, with the tensor's name where there is one."""
    raw = _raw(source)
    try:
        parsed = strict_json(raw.decode("utf-8"))
    except ValueError as error:
        raise Malformed(f"the header is not JSON: {show(str(error))}", file=source.name) from error
    if not isinstance(parsed, dict):
        raise Malformed("the header is not a JSON object", file=source.name)
    metadata = parsed.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise Malformed("__metadata__ is not an object of strings", file=source.name)
    for text in (*parsed, *metadata, *metadata.values()):
        _check_text(text, source)
    start = _LENGTH.size + len(raw)
    tensors = {name: _entry(name, value, start, source) for name, value in parsed.items()}
    _check_cover(tensors, start, source)
    return Header(metadata, tensors, raw)


def _raw(source: Source) -> bytes:
    if source.length < _LENGTH.size:
        raise Malformed(f"has {source.length} bytes, a safetensors file has at least {_LENGTH.size}", file=source.name)
    length = _LENGTH.unpack(source.read(0, _LENGTH.size))[0]
    if length > MAX_HEADER:
        raise Malformed(f"the header's length {length} is over the format's limit of {MAX_HEADER}", file=source.name)
    if length > source.length - _LENGTH.size:
        raise Malformed(
            f"the header's {length} bytes reach past the end of the file at {source.length}", file=source.name
        )
    raw = source.read(_LENGTH.size, length)
    if not raw.startswith(b"{"):
        raise Malformed("the header does not begin with {", file=source.name)
    return raw


def strict_json(text: str) -> Any:
    """Parse JSON without a key twice, without NaN, and not nested beyond reason. Raises ValueError."""
    try:
        return json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def _check_text(text: str, source: Source) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise Malformed(f"the header has {show(repr(text[:80]))}, half a character in it", file=source.name) from error


def _unique(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"duplicate key {twice!r}")
    return made


def _no_constant(name: str) -> object:
    raise ValueError(f"{name} is no JSON")


def _entry(name: str, value: object, start: int, source: Source) -> Entry:
    if not isinstance(value, dict) or value.keys() != _KEYS:
        raise Malformed("is not {dtype, shape, data_offsets}", file=source.name, path=name)
    dtype = BY_SAFETENSORS.get(value["dtype"]) if isinstance(value["dtype"], str) else None
    if dtype is None:
        raise Refused(f"has dtype {value['dtype']!r}, which depickle does not know", file=source.name, path=name)
    shape, offsets = _counts(value["shape"]), _counts(value["data_offsets"])
    if shape is None or offsets is None or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise Malformed("has a shape or offsets that are no counts", file=source.name, path=name)
    if dtype.packed != 1:
        if not shape or shape[-1] % dtype.packed:
            raise Malformed(f"has shape {list(shape)}, {dtype.safetensors} comes in pairs", file=source.name, path=name)
        shape = (*shape[:-1], shape[-1] // dtype.packed)
    if len(shape) > MAX_RANK:
        raise Malformed(f"has {len(shape)} dimensions, torch has {MAX_RANK} at the most", file=source.name, path=name)
    nbytes = dtype.itemsize
    for size in shape:
        nbytes = min(nbytes * size, 2**64)  # beyond any file, and short enough to be shown
    begin, end = offsets
    if nbytes != end - begin:
        raise Malformed(f"has {end - begin} bytes, its dtype and shape make {nbytes}", file=source.name, path=name)
    if start + end > source.length:
        raise Malformed(f"ends at byte {start + end}, the file at {source.length}", file=source.name, path=name)
    return Entry(dtype, shape, ByteRange(start + begin, nbytes))


def _counts(value: object) -> tuple[int, ...] | None:
    if not isinstance(value, list):
        return None
    for item in value:
        if type(item) is not int or not 0 <= item < 2**63:
            return None
    return tuple(value)


def _check_cover(tensors: Mapping[str, Entry], start: int, source: Source) -> None:
    """Offsets begin at 0, follow each other without hole or overlap, and end with the file."""
    at = start
    for name, entry in sorted(tensors.items(), key=lambda item: (item[1].range.offset, item[1].range.end)):
        if entry.range.offset != at:
            what = "overlaps the tensor before it" if entry.range.offset < at else "leaves a hole before it"
            raise Malformed(
                f"begins at byte {entry.range.offset} and {what} (expected {at})", file=source.name, path=name
            )
        at = entry.range.end
    if at != source.length:
        raise Malformed(f"{source.length - at} bytes follow the last tensor's end at {at}", file=source.name)


def sort_key(name: str, dtype: DType) -> tuple[int, bytes]:
    """Where safetensors puts a tensor: by its dtype order, then by name."""
    return RANK[dtype.name], name.encode()


def entry_json(dtype: DType, shape: Sequence[int], begin: int, nbytes: int) -> dict[str, object]:
    """A tensor's entry in a header; the shape in the format's elements (F4 counts values, torch counts pairs)."""
    shown = list(shape)
    if dtype.packed != 1:
        shown[-1] *= dtype.packed
    return {"dtype": dtype.safetensors, "shape": shown, "data_offsets": [begin, begin + nbytes]}


def encode(value: object) -> bytes:
    """The one spelling of JSON that our headers use: compact, UTF-8."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8")


def length_prefix(length: int) -> bytes:
    """The eight bytes in front of a header."""
    return _LENGTH.pack(length)
