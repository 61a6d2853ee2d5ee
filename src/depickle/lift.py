"""Weights as a file spells them become weights of today's classes, bit for bit, or are refused with the facts that
stand in the way.

Pure functions from a `Weight` to a `Weight`; what each demands and why it is exact is told in docs/classes.md. The
one thing that is read is whether a zero point is all zero, or fits int8. A map keeps the weight's values and the kind
of activation quantisation; where today's torchao has no counterpart there is no map.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from .affine import MAPS
from .current import SPELLINGS, Bytes, Lift, settle
from .errors import Malformed, Refused
from .schemas import BY_SHORT_NAME, FLOATING
from .weights import PLAIN, Part, Weight

__all__ = ["LIFTS", "Bytes", "lift"]

LIFTS: Final[Mapping[str, Lift]] = {**SPELLINGS, **MAPS}


def lift(weight: Weight, read: Bytes, *, keep: bool = False) -> Weight:
    """Bring a weight to the class that torchao 0.18 has for it.

    Raises Refused where there is none; with `keep`, a class that torchao's safetensors support does not know comes
    back as it is.
    """
    if weight.kind is None:
        return _plain(weight)
    schema = BY_SHORT_NAME[weight.kind]
    if schema.scheme == "unsupported":
        if keep:
            return _as_it_stands(weight)
        raise Refused(
            f"class {weight.kind} has no form in torchao's safetensors (--keep-unsupported stores it for other readers)"
        )
    try:
        lifted = LIFTS[schema.lift](weight, read) if schema.lift else weight
    except Refused:
        if keep and schema.scheme == "v1":
            return _as_it_stands(weight)
        raise
    return settle(lifted)


def _as_it_stands(weight: Weight) -> Weight:
    """A weight that is stored as it stands: the container must hold its parts' dtypes."""
    for name, part in weight.leaves().items():
        if part.dtype.safetensors is None:
            raise Refused(f"part {name} has dtype {part.dtype.name}, which safetensors cannot hold")
    return weight


def _plain(weight: Weight) -> Weight:
    part = weight.parts[PLAIN]
    if not isinstance(part, Part):
        raise Malformed("a plain tensor has one part")
    if part.dtype.safetensors is None:
        raise Refused(f"has dtype {part.dtype.name}, which safetensors cannot hold")
    if part.dtype.packed != 1 and not part.shape:
        raise Refused(f"has dtype {part.dtype.name} and no dimension, which safetensors cannot hold")
    if part.view.neg and part.dtype.name not in (*FLOATING, "complex64"):
        raise Refused(f"has the negative bit set on dtype {part.dtype.name}")
    return weight
