"""What is in a file, as one value: container, tag, metadata, weights by class and scheme, sizes, globals, and what
stands in the way.

Reads what a checkpoint reads and no tensor. Weights that have no form today are listed and not refused.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from .opening import open_checkpoint
from .outputs import safetensors
from .outputs.names import reader_warnings
from .schemas import BY_NAME_CURRENT, Json

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True)
class Group:
    """Weights of one class, in one scheme, with the parts' dtypes: how many, how many bytes, and the first one's
    name."""

    classes: str
    scheme: str | None
    dtypes: str
    count: int
    nbytes: int
    example: str


@dataclass(frozen=True, slots=True)
class Inspection:
    """The answer to `depickle inspect`."""

    file: str
    bytes: int
    container: str
    kind: str
    format: str | None
    metadata: Mapping[str, Json]
    tensors: int
    quantized: int
    groups: tuple[Group, ...]
    root_names: tuple[str, ...]
    ties: Mapping[str, str]
    int8_source: str | None
    globals: Mapping[str, int]
    without_form: tuple[str, ...]
    provenance: Json
    normalised: tuple[str, ...]
    warnings: tuple[str, ...]

    def as_json(self) -> dict[str, Json]:
        """The inspection as a JSON object; schema: docs/schemas/inspect.v1.json."""
        made: dict[str, Json] = {"inspect": SCHEMA_VERSION}
        for name in self.__dataclass_fields__:
            value = getattr(self, name)
            if name == "groups":
                value = [{key: getattr(group, key) for key in group.__dataclass_fields__} for group in value]
            made[name] = list(value) if isinstance(value, tuple) else value
        return made


def inspect(path: str | os.PathLike[str], *, key: str | None = None) -> Inspection:
    """Say what a file holds. Raises `Malformed` or `Refused` for a file that cannot be read at all."""
    with open_checkpoint(path, key=key, keep_unsupported=True) as checkpoint:
        counted: Counter[tuple[str, str | None, str]] = Counter()
        nbytes: Counter[tuple[str, str | None, str]] = Counter()
        examples: dict[tuple[str, str | None, str], str] = {}
        for name, weight in checkpoint.weights.items():
            leaves = weight.leaves()
            dtypes = ", ".join(
                f"{part} {leaf.dtype.name}" if part else leaf.dtype.name for part, leaf in leaves.items()
            )
            group = (checkpoint.classes.get(name, "Tensor"), safetensors.scheme_of(weight), dtypes)
            counted[group] += 1
            nbytes[group] += sum(leaf.nbytes for leaf in leaves.values())
            examples.setdefault(group, name)
        without = [name for name, weight in checkpoint.weights.items() if weight.kind not in (None, *BY_NAME_CURRENT)]
        return Inspection(
            file=checkpoint.source.name,
            bytes=checkpoint.source.length,
            container=checkpoint.container,
            kind=checkpoint.kind,
            format=checkpoint.format,
            metadata=checkpoint.metadata,
            tensors=len(checkpoint.weights),
            quantized=checkpoint.quantized,
            groups=tuple(Group(*group, counted[group], nbytes[group], examples[group]) for group in counted),
            root_names=tuple(name for name in checkpoint.weights if "." not in name),
            ties=checkpoint.ties,
            int8_source=safetensors.int8_source(checkpoint),
            globals=Counter(used.full for used in checkpoint.globals),
            without_form=tuple(without),
            provenance=checkpoint.provenance,
            normalised=checkpoint.normalised,
            warnings=(*checkpoint.warnings, *reader_warnings(checkpoint.weights)),
        )
