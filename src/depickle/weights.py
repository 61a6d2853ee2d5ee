"""Inert instances become weights: a class name, its parts as tensor views, its attributes as JSON.

In: the value of one entry of a state dict. Out: a `Weight`, spelled as the file spells it; `lift.py` brings it to
today's class. A plain tensor is a `Weight` without a class and with one part; a class within a class (the v1
families) is a weight within a weight. The form of a wrapper's pickle is that of torch 2.13's `_reduce_ex_internal`:
`_rebuild_from_type_v2(_rebuild_wrapper_subclass, cls, args, state)`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from .attributes import from_inert
from .dtypes import DType
from .errors import Error, Malformed, Refused
from .inert import Call, Global, Inert
from .schemas import BY_CLASS, Json
from .tensors import Storages, TensorView, call_of, describe, dtype_of, integers, is_tensor, read_tensor

WRAPPER: Final = "torch._utils._rebuild_wrapper_subclass"
MAX_DEPTH: Final = 8  # a wrapper in a wrapper; the v1 families nest three
PLAIN: Final = ""  # the name of a plain tensor's only part


@dataclass(frozen=True, slots=True)
class Part:
    """A tensor of the output: a view of source bytes, the named rule that is applied to them, and what comes out.

    `dtype` and `shape` are those of the result; with the rule `copy` they are the view's own.
    """

    view: TensorView
    dtype: DType
    shape: tuple[int, ...]
    rule: str = "copy"

    @property
    def nbytes(self) -> int:
        """Bytes of the result."""
        numel = 1
        for size in self.shape:
            numel *= size
        return numel * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class Weight:
    """One entry of a state dict. `kind` is the class's short name, None for a plain tensor.

    `facts` are what `int8_v1` records of an int8 weight of torchao v1. `dtype` and `shape` are the wrapper's own;
    `origin` is the class's full name in the file, None once the weight is of a class of today.
    `described`: it was read from a header, which has to say what a pickle says by the wrapper.
    """

    kind: str | None
    parts: Mapping[str, Part | Weight]
    attributes: Mapping[str, Json]
    dtype: DType
    shape: tuple[int, ...]
    facts: Mapping[str, Json] | None = field(default=None, compare=False)
    origin: str | None = None
    described: bool = field(default=False, compare=False)

    def leaves(self) -> Mapping[str, Part]:
        """All tensors in the tree, by dotted path of part names."""
        found: dict[str, Part] = {}
        for name, part in self.parts.items():
            if isinstance(part, Part):
                found[name] = part
            else:
                found.update({f"{name}.{inner}": leaf for inner, leaf in part.leaves().items()})
        return found


def plain(view: TensorView) -> Part:
    """The part that is a view as it stands."""
    return Part(view, view.dtype, view.shape)


def read_weight(value: Inert, storages: Storages, notes: list[str], depth: int = 0) -> Weight:
    """Read one entry of a state dict.

    Raises Refused for a class without a schema, a tensor that safetensors cannot hold, and anything that is no tensor
    at all.
    """
    if not is_tensor(value):
        raise Refused(f"is {describe(value)}, not a tensor")
    name, args = call_of(value, "a tensor")
    if name == "torch._tensor._rebuild_from_type_v2" and args and type(args[0]) is Global and args[0].full == WRAPPER:
        if depth > MAX_DEPTH:
            raise Refused(f"nests more than {MAX_DEPTH} tensor subclasses")
        return _wrapper(args, storages, notes, depth)
    view = read_tensor(value, storages, notes)
    return Weight(None, {PLAIN: plain(view)}, {}, view.dtype, view.shape)


def _wrapper(args: tuple[Inert, ...], storages: Storages, notes: list[str], depth: int) -> Weight:
    if len(args) != 4 or type(args[1]) is not Global or type(args[2]) is not tuple or type(args[3]) is not dict:
        raise Malformed("_rebuild_from_type_v2 has the wrong arguments")
    _, cls, inner, state = args
    schema = BY_CLASS.get(cls.full)
    if schema is None:
        known = len({row.name for row in BY_CLASS.values()})
        raise Refused(f"class {cls!r} has no schema ({known} known; see docs/classes.md)", offset=cls.offset)
    if len(inner) != 8 or type(inner[0]) is not Global or inner[0].full != cls.full or inner[4] != 0:
        raise Malformed("_rebuild_wrapper_subclass has the wrong arguments")
    _check_layout(inner[5])
    shape = integers(inner[2], "a shape")
    parts: dict[str, Part | Weight] = {}
    attributes: dict[str, Json] = {}
    for key, item in state.items():
        if type(key) is not str:
            raise Malformed(f"the state of {schema.name} has a key that is no text")
        if key == "_is_param" and item is True:
            continue
        try:
            if is_tensor(item):
                weight = read_weight(item, storages, notes, depth + 1)
                leaf = weight.parts.get(PLAIN) if weight.kind is None else None
                parts[key] = weight if leaf is None else leaf
            else:
                attributes[key] = from_inert(item)
        except Error as error:
            error.path = key if error.path is None else f"{key}.{error.path}"
            raise
    return Weight(schema.name, parts, attributes, dtype_of(inner[1]), shape, origin=cls.full)


def _check_layout(value: Inert) -> None:
    if type(value) is Call and value.name == "torch.serialization._get_layout" and value.args == ("torch.strided",):
        return
    raise Refused(f"has layout {describe(value)}, expected torch.strided")
