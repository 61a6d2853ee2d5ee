"""A conversion as a pure value: which bytes of the output come from where.

An output file is a head (literal text with holes for digests that are not known yet) and then segments without a
gap: a `Copy` of a range of the source, a `Transform` of a strided view by named rules, a `Literal` that comes from no
source, or a `Rescale` that was asked for. The dry run prints it, the writer executes it, tests compare it. Nothing
here knows a format or reads a byte.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from .ranges import ByteRange
from .rules import GATHER, Step
from .strided import Strided

REQUANTIZE: Final = "requantize"  # listed beside the rules in plans and records: what came out is not what was there
UNKNOWN_DIGEST: Final = "0" * 64


@dataclass(frozen=True, slots=True)
class SourceDigest:
    """64 hexadecimal digits, the SHA-256 of a source, to be filled in when it is known."""

    source: int = 0


@dataclass(frozen=True, slots=True)
class Head:
    """The beginning of a file: `prefix`, then `text`, the seal, and `tail`.

    The seal is `seal[0]`, the SHA-256 (hexadecimal) of text and tail, `seal[1]`; so a head vouches for itself.
    """

    prefix: bytes
    text: tuple[bytes | SourceDigest, ...]
    seal: tuple[bytes, bytes]
    tail: bytes

    @property
    def length(self) -> int:
        """Bytes of the head; the digests' lengths are known, so it is."""
        return len(self.render(()))

    def digest_offset(self, source: int = 0) -> int:
        """Where in the head the digest of `source` stands."""
        at = len(self.prefix)
        for piece in self.text:
            if isinstance(piece, SourceDigest):
                if piece.source == source:
                    return at
                at += len(UNKNOWN_DIGEST)
            else:
                at += len(piece)
        raise ValueError(f"the head holds no digest of source {source}")

    def render(self, digests: tuple[str, ...]) -> bytes:
        """The bytes, with the sources' digests filled in (zeros for those that are not given)."""
        known = dict(enumerate(digests))
        text = b"".join(
            known.get(piece.source, UNKNOWN_DIGEST).encode() if isinstance(piece, SourceDigest) else piece
            for piece in self.text
        )
        digest = hashlib.sha256(text + self.tail).hexdigest().encode()
        return self.prefix + text + self.seal[0] + digest + self.seal[1] + self.tail


@dataclass(frozen=True, slots=True)
class Copy:
    """The bytes of `range`, as they are, for `tensor` (named for people: `weight.part`).

    `rule` says if they come out under another shape or dtype.
    """

    tensor: str
    range: ByteRange
    rule: str = "copy"

    @property
    def length(self) -> int:
        """Bytes that come out."""
        return self.range.length

    @property
    def rules(self) -> tuple[str, ...]:
        """The named rules that are applied, none if the bytes are merely copied."""
        return () if self.rule == "copy" else (self.rule,)


@dataclass(frozen=True, slots=True)
class Transform:
    """The elements of `view` in row-major order, run through `steps`; `length` bytes come out."""

    tensor: str
    view: Strided
    steps: tuple[Step, ...]
    length: int
    gathered: bool

    @property
    def rules(self) -> tuple[str, ...]:
        """The named rules that are applied, none if the bytes are merely copied."""
        return ((GATHER,) if self.gathered else ()) + tuple(step.rule for step in self.steps)


@dataclass(frozen=True, slots=True)
class Literal:
    """`data`, `times` over: bytes that come from no source, such as padding. `data` is short (a few KiB)."""

    tensor: str
    data: bytes
    times: int = 1

    @property
    def length(self) -> int:
        """Bytes that come out."""
        return len(self.data) * self.times

    @property
    def rules(self) -> tuple[str, ...]:
        """None: nothing is done to a source's bytes."""
        return ()


@dataclass(frozen=True, slots=True)
class Rescale:
    """The rows of `view`, float8 of `dtype` with one of `scales` (float32) each, rounded again to the scale `whole`."""

    tensor: str
    view: Strided
    scales: Copy | Transform
    dtype: str
    whole: float

    @property
    def length(self) -> int:
        """Bytes that come out."""
        return self.view.length

    @property
    def rules(self) -> tuple[str, ...]:
        """The one rule that loses something."""
        return (REQUANTIZE,)


Segment: TypeAlias = "Copy | Transform | Literal | Rescale"


@dataclass(frozen=True, slots=True)
class OutFile:
    """One file of the output: its name, its head, and its segments in order."""

    name: str
    head: Head
    segments: tuple[Segment, ...]

    @property
    def data_start(self) -> int:
        """The offset of the first segment."""
        return self.head.length

    @property
    def length(self) -> int:
        """Bytes of the whole file."""
        return self.data_start + sum(segment.length for segment in self.segments)

    @property
    def rules(self) -> dict[str, int]:
        """How many tensors each rule is applied to; empty if every byte is copied."""
        counted: dict[str, int] = {}
        for segment in self.segments:
            for rule in segment.rules:
                counted[rule] = counted.get(rule, 0) + 1
        return counted


@dataclass(frozen=True, slots=True)
class Text:
    """A small file that comes last, written out: the index of the others."""

    name: str
    data: bytes


@dataclass(frozen=True, slots=True)
class Layout:
    """All files of one conversion, and their index if they are several."""

    files: tuple[OutFile, ...]
    index: Text | None = None

    def as_json(self, starts: Sequence[int] = (0,)) -> list[dict[str, object]]:
        """The dry run: per file the segments as [source, offset, length] triples, as views with their rules, or as
        literal bytes in hexadecimal.

        `starts` says where each of several files begins that lie one after the other in the source.
        """
        return [
            {
                "file": file.name,
                "length": file.length,
                "head": file.data_start,
                "rules": file.rules,
                "segments": _placed(file, starts),
            }
            for file in self.files
        ]


def _place(where: ByteRange, starts: Sequence[int]) -> list[int]:
    number = bisect_right(starts, where.offset) - 1
    return [number, where.offset - starts[number], where.length]


def _placed(file: OutFile, starts: Sequence[int]) -> list[dict[str, object]]:
    at = file.data_start
    placed: list[dict[str, object]] = []
    for segment in file.segments:
        entry: dict[str, object] = {"tensor": segment.tensor, "at": at, "length": segment.length}
        if isinstance(segment, Copy):
            entry["from"] = _place(segment.range, starts)
        elif isinstance(segment, Literal):
            entry["literal"], entry["times"] = segment.data.hex(), segment.times
        else:
            view = segment.view
            entry["from"] = _place(view.storage, starts)
            if isinstance(segment, Rescale):
                scales = segment.scales.range if isinstance(segment.scales, Copy) else segment.scales.view.storage
                entry["scales"], entry["whole"] = _place(scales, starts), segment.whole
            entry["view"] = {
                "itemsize": view.itemsize,
                "offset": view.offset,
                "shape": list(view.shape),
                "stride": list(view.stride),
            }
        if segment.rules:
            entry["rules"] = list(segment.rules)
        placed.append(entry)
        at += segment.length
    return placed
