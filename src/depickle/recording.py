"""From what a conversion did to its record."""

from __future__ import annotations

from dataclasses import dataclass

from .checkpoint import Checkpoint
from .layout import REQUANTIZE, OutFile
from .options import Options
from .outputs import safetensors
from .outputs.plans import output_of
from .report import Record
from .schemas import Json
from .shards import files_of


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of writing one file. `src_sha256` is None if there were several sources; then `digests` has theirs."""

    src_sha256: str | None
    dst_sha256: str
    skipped: bool
    reader: str
    digests: tuple[str, ...] = ()


def record_of(
    checkpoint: Checkpoint, src: str, dst: str, file: OutFile, options: Options, outcome: Outcome, seconds: float
) -> Record:
    """The record of one file: what `checkpoint` holds, or the part of it that is in this file, went to `dst`."""
    output = output_of(checkpoint, options)
    scheme = checkpoint.metadata.get("scheme")
    dropped = safetensors.droppable_ties(checkpoint) if options.drop_tied_copies else dict(checkpoint.dropped)
    sources: list[dict[str, Json]] = [
        {"file": source.name, "bytes": source.length, "sha256": digest}
        for source, digest in zip(files_of(checkpoint.source), outcome.digests)
    ]
    return Record(
        src=src,
        dst=dst,
        kind=checkpoint.kind,
        format=checkpoint.format,
        scheme=scheme if isinstance(scheme, str) else None,
        tensors=len(checkpoint.weights),
        quantized=checkpoint.quantized,
        int8_source=safetensors.int8_source(checkpoint),
        reader=outcome.reader,
        src_bytes=checkpoint.source.length,
        src_sha256=outcome.src_sha256,
        dst_bytes=file.length,
        dst_sha256=outcome.dst_sha256,
        seconds=round(seconds, 3),
        verified_bit_identical=REQUANTIZE not in file.rules,
        tied_copies_dropped=dropped,
        skipped=outcome.skipped,
        src_sha256_checked=options.trust_sha256 is None,
        rules=file.rules,
        activation=output.activation(checkpoint),
        serves=output.serves(checkpoint, options),
        normalised=checkpoint.normalised,
        sources=tuple(sources),
        warnings=(*checkpoint.warnings, *output.notes(checkpoint, options)),
    )
