"""A safetensors file of ours as a value: tensors get their places, metadata its spelling, the head its seal.

Whatever a container puts into the metadata and calls its tensors, this is how it becomes an `OutFile`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from ..dtypes import DType
from ..errors import Refused
from ..header import MAX_HEADER, encode, entry_json, length_prefix, sort_key
from ..layout import Copy, Head, Literal, OutFile, Rescale, Segment, SourceDigest, Transform
from ..rules import Step
from ..schemas import Json
from ..tensors import TensorView
from ..weights import Part
from .names import SEAL

ALIGNMENT: Final = 4096  # a page: the data can be mapped and read directly


@dataclass(frozen=True, slots=True)
class Provenance:
    """Where a file came from, as its header says it: no path, no date. `more` are names and sizes of further sources;
    `earlier` is the provenance of a source that was converted before. `int8_source` is said here of a plain state
    dict, which has no `unsloth_quant_layout` to say it."""

    file: str
    bytes: int
    converter: str
    repo: str | None = None
    revision: str | None = None
    earlier: Json = None
    more: tuple[tuple[str, int], ...] = ()
    int8_source: str | None = None

    def pieces(self) -> tuple[str, ...]:
        """The JSON text, cut where the 64 digits of each source's SHA-256 go, which a plan does not know yet."""
        if not self.more:
            return self.around_digest()
        files = [
            (json.dumps({"file": name})[:-1] + ', "sha256": "', '", ' + json.dumps({"bytes": size})[1:])
            for name, size in ((self.file, self.bytes), *self.more)
        ]
        between = [f"{files[i][1]}, {files[i + 1][0]}" for i in range(len(files) - 1)]
        return '{"files": [' + files[0][0], *between, f"{files[-1][1]}], " + json.dumps(self._rest())[1:]

    def around_digest(self) -> tuple[str, str]:
        """The JSON text before and after the digest of the only source."""
        tail = json.dumps({"bytes": self.bytes, **self._rest()})[1:]
        return json.dumps({"file": self.file})[:-1] + ', "sha256": "', '", ' + tail

    def _rest(self) -> dict[str, Json]:
        rest: dict[str, Json] = {}
        rest.update(
            {key: value for key, value in (("repo", self.repo), ("revision", self.revision)) if value is not None}
        )
        rest["converter"] = self.converter
        if self.int8_source is not None:
            rest["int8_source"] = self.int8_source
        if self.earlier is not None:
            rest["from"] = self.earlier
        return rest


@dataclass(frozen=True, slots=True)
class Piece:
    """The bytes of one part of a weight, with a label for people."""

    label: str
    part: Part


@dataclass(frozen=True, slots=True)
class Rounded:
    """The bytes of a matrix of float8 with a scale a row, rounded again to the one scale `whole`."""

    label: str
    part: Part
    scales: Piece
    whole: float


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor of a file: what it is, and the pieces that make it up, in order."""

    dtype: DType
    shape: tuple[int, ...]
    pieces: tuple[Piece | Rounded | Literal, ...]


def out_file(name: str, metadata: Mapping[str, str | Provenance], flat: Mapping[str, tuple[str, Part]]) -> OutFile:
    """One file of which every tensor is one part of a weight."""
    whole = {key: Tensor(part.dtype, part.shape, (Piece(label, part),)) for key, (label, part) in flat.items()}
    return pieced_file(name, metadata, whole)


def pieced_file(name: str, metadata: Mapping[str, str | Provenance], tensors: Mapping[str, Tensor]) -> OutFile:
    """One file: its tensors in the format's order, and the header that describes them."""
    at = 0
    entries: dict[str, Json] = {}
    segments: list[Segment] = []
    for key, tensor in sorted(tensors.items(), key=lambda item: sort_key(item[0], item[1].dtype)):
        own = [_segment(piece) for piece in tensor.pieces]
        length = sum(segment.length for segment in own)
        entries[key] = entry_json(tensor.dtype, tensor.shape, at, length)
        segments += [segment for segment in own if segment.length]
        at += length
    return OutFile(name, head(metadata, entries), tuple(segments))


# --- data -----------------------------------------------------------------------------------------------------------


def steps_of(view: TensorView) -> tuple[Step, ...]:
    """What a view needs before its elements are those that torch would show: byte order, then the lazy bits."""
    if not (view.swapped or view.conj or view.neg):
        return ()
    steps = []
    if view.swapped:
        steps.append(Step("byte-swap", view.dtype.component))
    if view.conj:
        steps.append(Step("conjugate", view.dtype.component))
    if view.neg:
        steps.append(Step("negate", view.dtype.component))
    return tuple(steps)


def _segment(piece: Piece | Rounded | Literal) -> Segment:
    if isinstance(piece, Literal):
        return piece
    if isinstance(piece, Rounded):
        part = piece.part
        return Rescale(piece.label, part.view.strided, _taken(piece.scales), part.dtype.name, piece.whole)
    return _taken(piece)


def _taken(piece: Piece) -> Copy | Transform:
    """How the bytes of a part come to be: copied, or a view run through rules."""
    label, part = piece.label, piece.part
    view = part.view
    steps = steps_of(view)
    same = part.rule in ("copy", "reshape", "relabel")
    if view.contiguous and not steps and same:
        return Copy(label, view.range, part.rule)
    if part.rule != "copy":
        width = view.shape[1] if part.rule == "block-scales" else view.dtype.itemsize
        steps = (*steps, Step(part.rule, width))
    return Transform(label, view.strided, steps, part.nbytes, not view.contiguous)


# --- header ---------------------------------------------------------------------------------------------------------


def head(metadata: Mapping[str, str | Provenance], entries: Mapping[str, Json]) -> Head:
    """Spell the header, seal it, and pad it so that the data starts on a page."""
    text: list[bytes | SourceDigest] = [b'{"__metadata__":']
    for at, (key, value) in enumerate(metadata.items()):
        text.append((b"," if at else b"{") + encode(key) + b":")
        if isinstance(value, Provenance):
            first, *others = value.pieces()
            text.append(encode(first)[:-1])
            for i, piece in enumerate(others):
                text += [SourceDigest(i), encode(piece)[1:-1]]
            text.append(b'"')
        else:
            text.append(encode(value))
    seal = (f',"{SEAL}":"'.encode(), b'"')
    tail = b"}" + (b"," if entries else b"") + encode(entries)[1:]
    length = sum(64 if isinstance(piece, SourceDigest) else len(piece) for piece in (*text, *seal, tail)) + 64
    padding = -(8 + length) % ALIGNMENT
    if length + padding > MAX_HEADER:
        raise Refused(
            f"the header would have {length + padding} bytes, the format allows {MAX_HEADER}: shard it (several smaller files)"
        )
    return Head(length_prefix(length + padding), tuple(text), seal, tail + b" " * padding)
