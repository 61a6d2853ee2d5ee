"""The record of one conversion, and of one verification: frozen values that turn into JSON. Schemas: docs/schemas/."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields

from .schemas import Json


@dataclass(frozen=True, slots=True)
class Record:
    """What happened to one file; the fields of the contract first, in its order.

    Sizes are in bytes, digests SHA-256 in hexadecimal, `seconds` wall time. `serves`: every --target that this very
    file would be made for. `sources`: name, size and digest of each, where a file was made from several; `src` and
    `src_bytes` are then those of all of them together.
    """

    src: str
    dst: str
    kind: str
    format: str | None
    scheme: str | None
    tensors: int
    quantized: int
    int8_source: str | None
    reader: str
    src_bytes: int
    src_sha256: str | None
    dst_bytes: int
    dst_sha256: str
    seconds: float
    verified_bit_identical: bool
    tied_copies_dropped: Mapping[str, str]
    skipped: bool
    src_sha256_checked: bool
    rules: Mapping[str, int]
    activation: str
    serves: tuple[str, ...]
    normalised: tuple[str, ...]
    warnings: tuple[str, ...]
    sources: tuple[Mapping[str, Json], ...] = ()

    def as_json(self) -> dict[str, Json]:
        """The record as a JSON object, keys in the order of the contract."""
        made: dict[str, Json] = {}
        for item in fields(self):
            value = getattr(self, item.name)
            made[item.name] = (
                list(value) if isinstance(value, tuple) else dict(value) if isinstance(value, Mapping) else value
            )
        for optional in ("skipped", "sources"):
            if not made[optional]:
                del made[optional]
        return made


@dataclass(frozen=True, slots=True)
class Verification:
    """A pair that was found equal: both digests, and how much was compared. It is not bit for bit where weights of the
    output are marked as rounded again on request; they are then what rounding makes of the source's."""

    src: str
    dst: str
    src_sha256: str
    dst_sha256: str | None
    tensors: int
    parts: int
    bytes_compared: int
    sealed: bool
    seconds: float
    dst_files: Mapping[str, str] = field(default_factory=dict)
    verified_bit_identical: bool = True

    def as_json(self) -> dict[str, Json]:
        """The verification as a JSON object."""
        names = [item.name for item in fields(self)]
        made = {name: getattr(self, name) for name in ("verified_bit_identical", *names[:-1])}
        if not self.dst_files:
            del made["dst_files"]
        return made
