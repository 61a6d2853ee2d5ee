"""The two values that every archive reader returns: a file as named records, each a range of bytes.

An `Archive` says where things are and never what they mean: which record is the pickle, which record holds the
storage with which key, in which byte order. Everything in it has been checked against the container's own structure
(`archive.zip`, `archive.legacy`); the bytes of the records have not been read, so CRC-32 values are carried for
whoever reads them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..ranges import ByteRange


@dataclass(frozen=True, slots=True)
class Record:
    """Named bytes of the file; `crc32` is what the container says of them, None where it says nothing."""

    name: str
    range: ByteRange
    crc32: int | None


@dataclass(frozen=True, slots=True)
class Archive:
    """A torch.save file as records: `records` is all of them in the order of the file, `storages` those with tensor
    data.

    `kind` is "torch-zip" or "torch-legacy"; `storages` is by torch's key; `notes` is what a reader should hear of.
    """

    kind: str
    pickle: Record
    storages: Mapping[str, Record]
    records: tuple[Record, ...]
    big_endian: bool
    notes: tuple[str, ...]
