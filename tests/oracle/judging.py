"""What a live object is held to: the truth of the fixture that it comes from.

Both are brought to torchao 0.18's spelling by `expected`, which knows nothing of depickle: the truth as the writer's
torch and torchao saw it, and the object as the reader's did.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import expected as ex
import truth

Json = Any

# --- which files a release can read ----------------------------------------------------------------------------------

_FIRST = {"Float8Tensor", "Int4Tensor", "Int4TilePackedTo4dTensor", "IntxUnpackedToInt8Tensor"}
_SECOND = _FIRST | {"Int8Tensor", "Int4PlainInt32Tensor"}
_ALL = _SECOND | {"MXTensor", "NVFP4Tensor"}
# what each release's own safetensors reader lists; 0.14.1 reads another grammar of names
LISTED = {"0.14.1": set(), "0.15.0": _FIRST, "0.16.0": _SECOND, "0.17.0": _ALL, "0.18.0": _ALL}
_NO_ZERO_POINT = {"0.14.1", "0.15.0", "0.16.0"}


def torchao_reads(release: str, weight: ex.Weight) -> bool:
    """Whether a release's own reader has the class, its parts and its values."""
    text = json.dumps(weight.attributes)
    if weight.kind not in LISTED[release] or "PerGroup" in text:
        return False
    if weight.kind == "Int8Tensor" and release in _NO_ZERO_POINT and "zero_point" in weight.parts:
        return False
    if '"reduce_range": true' in text and release != "0.18.0":
        return False
    return "activation_dtype" not in text or release in {"0.17.0", "0.18.0"}


# --- comparison ------------------------------------------------------------------------------------------------------


@dataclass
class Outcome:
    """One weight under one reader: exact, refused or wrong, and why."""

    status: str
    why: str = ""


def _today(described: Json, part: ex.Part) -> bytes:
    """The bytes of a described tensor as torchao 0.18 holds them."""
    data = base64.b64decode(described["bytes"])
    return ex.UNDO[part.undo](data, len(data))


def _leaves(described: Json) -> list[Json]:
    return [leaf for inner in described["inner"].values() for leaf in (_leaves(inner) if "inner" in inner else [inner])]


def outcome(described: Json, wanted: ex.Weight) -> Outcome:
    """Hold what a reader made against what the truth makes of today."""
    if "error" in described:
        return Outcome("refused", described["error"])
    found = ex.expected(described)
    problems = []
    if found.kind != wanted.kind:
        problems.append(f"class {found.kind}, not {wanted.kind}")
    if found.attributes != wanted.attributes:
        problems.append(f"attributes {found.attributes}, not {wanted.attributes}")
    if list(found.parts) != list(wanted.parts) and not _dropped(found, wanted):
        problems.append(f"parts {list(found.parts)}, not {list(wanted.parts)}")
    by_digest = {leaf["sha256"]: leaf for leaf in ([described] if "inner" not in described else _leaves(described))}
    for name, part in found.parts.items():
        mine = wanted.parts[name]
        if (part.dtype, part.shape) != (mine.dtype, mine.shape):
            problems.append(f"{name} is {part.dtype}{part.shape}, not {mine.dtype}{mine.shape}")
        data = _today(by_digest[part.sha256], part)
        if hashlib.sha256(ex.UNDO[mine.undo](data, mine.length)).hexdigest() != mine.sha256:
            problems.append(f"{name or 'tensor'}: bytes differ")
    return Outcome("wrong", "; ".join(problems)) if problems else Outcome("exact")


def _dropped(found: ex.Weight, wanted: ex.Weight) -> bool:
    """A zero point that is all zero, in a release whose class has none."""
    return set(wanted.parts) - set(found.parts) == {"zero_point"} and wanted.kind == "Int8Tensor"


# --- values ----------------------------------------------------------------------------------------------------------


def written_values(tensor: Json) -> Json | None:
    """The values of a weight as the release that wrote it computed them, if the truth has them."""
    if "dequantized" in tensor:
        return tensor["dequantized"]
    for inner in tensor.get("inner", {}).values():
        if "dequantized" in inner:
            return inner["dequantized"]
    return None


def combines_scales_otherwise(weight: ex.Weight, writer: str, reader: str) -> bool:
    """NVFP4 with a scale of the whole tensor: up to 0.17 the scales were multiplied in bf16, from 0.18 on in fp32."""
    return (
        weight.kind == "NVFP4Tensor"
        and "per_tensor_scale" in weight.parts
        and (writer == "0.18.0") != (reader == "0.18.0")
    )


# --- the matrix ------------------------------------------------------------------------------------------------------

DECLINED = re.compile(r"a class that torchao \S+ does not have|records \w+=.*, which this torchao cannot construct")


@dataclass
class Cell:
    """Files of one class and writer under one reader."""

    counted: Counter[str] = field(default_factory=Counter)
    reasons: set[str] = field(default_factory=set)


def loaded(case: truth.Case, described: Json, name: str, reader: str, written: Json | None) -> Outcome:
    """A weight loaded by `depickle.torch.load`: exact (class, attributes, bytes, values), refused by name, or wrong."""
    wanted = ex.expected(case.truth["tensors"][name])
    found = outcome(described, wanted)
    if found.status == "refused":
        return found if DECLINED.search(found.why) else Outcome("wrong", f"refused otherwise: {found.why}")
    if found.status == "wrong" or written is None or combines_scales_otherwise(wanted, case.release, reader):
        return found
    if described["dequantized"] != written:
        return Outcome("wrong", f"values {described['dequantized']}, the writer's were {written}")
    return found
