"""The fields of a weight class that are no tensors, in one canonical JSON form.

A pickle spells them as inert calls, a file's header as torchao's JSON (`{"_type": ..., "_data": ...}`). Both are
read to the same form, so that a weight from either can be compared: enum members by today's name, records with all
their fields in declared order, missing fields filled with what they mean, inert ones (a default that older releases
do not know) left out. Source: torchao 0.18 `safetensors_utils.py` for the JSON, the tables in `schemas.py` for the
rest.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Final

from .dtypes import BY_NAME, NAME_ONLY
from .errors import Malformed, Refused
from .inert import Call, Global, Inert
from .schemas import (
    ENUM_BY_CLASS,
    ENUM_BY_NAME,
    FUNCTIONS,
    RECORD_BY_CLASS,
    RECORD_BY_NAME,
    REQUIRED,
    Attribute,
    Enum,
    Json,
    Record,
)
from .tensors import describe

GETATTR: Final = frozenset({"builtins.getattr", "__builtin__.getattr"})
_NODES: Final = 10_000  # a block size, and kwargs of a dozen fields
_DEPTH: Final = 8  # a record in a record in a list; real ones nest three


def typed(name: str, data: Json) -> dict[str, Json]:
    """The JSON of a value that has a class of its own."""
    return {"_type": name, "_data": data}


def dtype_json(name: str) -> dict[str, Json]:
    """The JSON of a torch dtype."""
    return typed("torch.dtype", name)


def data_of(value: Json, name: str) -> Json:
    """The data of a typed value if it is of class `name`, else None."""
    return value.get("_data") if isinstance(value, dict) and value.get("_type") == name else None


# --- from a pickle --------------------------------------------------------------------------------------------------


def from_inert(value: Inert, depth: int = 0) -> Json:
    """Read one attribute as the machine left it. Raises Refused for what no attribute of a known class holds."""
    if depth > _DEPTH:
        raise Refused(f"an attribute nests more than {_DEPTH} values")
    if value is None or type(value) in (bool, int, str):
        return value
    if type(value) is float:
        return _finite(value)
    if depth == 0:
        _check_size(value)
    if type(value) in (list, tuple):
        return [from_inert(item, depth + 1) for item in value]
    if type(value) is dict:
        return {_text(key): from_inert(item, depth + 1) for key, item in value.items()}
    if type(value) is Global:
        return _from_global(value)
    if type(value) is Call and type(value.func) is Global and not value.items and not value.entries:
        return _from_call(value, depth)
    raise Refused(f"{describe(value)} is no attribute that depickle knows")


def _check_size(value: Inert) -> None:
    """Raise Refused for an attribute of very many values, shared ones counted each time they are reached."""
    waiting, count = [value], 0
    while waiting:
        item = waiting.pop()
        count += 1
        if count + len(waiting) > _NODES:
            raise Refused(f"an attribute has more than {_NODES} values")
        if type(item) in (list, tuple):
            waiting.extend(item)
        elif type(item) is dict:
            waiting.extend(item.values())
        elif type(item) is Call:
            waiting.extend((*item.args, *item.states))


def _finite(value: float) -> float:
    if not math.isfinite(value):
        raise Refused(f"{value} cannot be written as JSON")
    return value


def _text(key: Inert) -> str:
    if type(key) is not str:
        raise Refused(f"{describe(key)} as a key of an attribute")
    return key


def _from_global(value: Global) -> Json:
    full = value.full
    if value.module == "torch" and (value.name in BY_NAME or value.name in NAME_ONLY):
        return dtype_json(value.name)
    if full in FUNCTIONS:
        return typed("function", value.name)
    raise Refused(f"the global {full} is no attribute that depickle knows", offset=value.offset)


def _from_call(value: Call, depth: int) -> Json:
    full = value.name
    if full in ("torch.Size", "torch.device") and value.kind == "reduce" and len(value.args) == 1 and not value.states:
        return from_inert(value.args[0], depth + 1)
    if full in ENUM_BY_CLASS and len(value.args) == 1 and not value.states:
        return _member(ENUM_BY_CLASS[full], value.args[0])
    if is_enum_access(value) and not value.states:
        owner, member = value.args
        return _named_member(ENUM_BY_CLASS[owner.full], member)
    if full in RECORD_BY_CLASS:
        return _from_record(RECORD_BY_CLASS[full], value, depth)
    raise Refused(f"{full}(...) is no attribute that depickle knows", offset=value.offset)


def is_enum_access(call: Call) -> bool:
    """Whether a call is getattr(enum, "MEMBER") of an enumeration in the tables, the way some Pythons pickle a
    member."""
    if call.name not in GETATTR or call.kind != "reduce" or len(call.args) != 2:
        return False
    owner, member = call.args
    if type(owner) is not Global or owner.full not in ENUM_BY_CLASS or type(member) is not str:
        return False
    return member in [name for name, _ in ENUM_BY_CLASS[owner.full].members]


def _member(row: Enum, wanted: Inert) -> Json:
    for name, member in row.members:
        if member == wanted and type(member) is type(wanted):
            return _named_member(row, name)
    raise Refused(
        f"{row.name} has no member {describe(wanted) if not isinstance(wanted, (str, int)) else repr(wanted)}"
    )


def _named_member(row: Enum, name: Json) -> Json:
    if name not in [member for member, _ in row.members]:
        raise Refused(f"{row.name} has no member {name!r}")
    return typed(row.name, dict(row.renamed).get(str(name), name))


def _from_record(row: Record, value: Call, depth: int) -> Json:
    state = value.states[0] if value.states else {}
    if len(value.states) > 1 or type(state) is not dict or value.kwargs or len(value.args) > len(row.fields):
        raise Refused(f"{row.name} is built in a way that depickle does not know", offset=value.offset)
    given = {field.name: item for field, item in zip(row.fields, value.args)}
    given.update(state)
    return record_json(row, {_text(key): from_inert(item, depth + 1) for key, item in given.items()})


# --- from a header --------------------------------------------------------------------------------------------------


def from_json(value: Json, depth: int = 0) -> Json:
    """Read one attribute as a header spells it, to the same canonical form."""
    if depth > _DEPTH:
        raise Refused(f"an attribute nests more than {_DEPTH} values")
    if isinstance(value, list):
        return [from_json(item, depth + 1) for item in value]
    if not isinstance(value, dict):
        return value
    if set(value) != {"_type", "_data"}:
        return {key: from_json(item, depth + 1) for key, item in value.items()}
    name, data = value["_type"], value["_data"]
    if not isinstance(name, str):
        raise Refused("an attribute's class is no name")
    if name in ENUM_BY_NAME:
        return _named_member(ENUM_BY_NAME[name], data)
    if name in RECORD_BY_NAME and isinstance(data, dict):
        return record_json(RECORD_BY_NAME[name], {key: from_json(item, depth + 1) for key, item in data.items()})
    if name in ("torch.dtype", "function") and isinstance(data, str):
        return typed(str(name), data)
    raise Refused(f"{name!r} is no class of attribute that depickle knows")


# --- both -----------------------------------------------------------------------------------------------------------


def record_json(row: Record, given: Mapping[str, Json]) -> Json:
    """Put a record's fields into their order, fill in the missing ones, leave out the inert ones."""
    if row.lift is not None:
        given = RECORD_LIFTS[row.lift](given)
    return typed(row.name, fields_json(row.name, row.fields, given))


def fields_json(owner: str, fields: tuple[Attribute, ...], given: Mapping[str, Json]) -> dict[str, Json]:
    """The canonical form of a set of fields. Raises Refused for a field too many, a field too few, or a value of the
    wrong kind."""
    rest = dict(given)
    made: dict[str, Json] = {}
    for field in fields:
        named = [name for name in (field.name, *field.was) if name in rest]
        if len(named) > 1:
            raise Refused(f"{owner} records {' and '.join(named)}, two names of one field")
        value = rest.pop(named[0]) if named else field.default
        if value == REQUIRED:
            raise Malformed(f"{owner} lacks its field {field.name}")
        if field.inert and value in (field.default, None):
            continue
        if not (value is None and field.default is None) and not KINDS[field.kind](value):
            raise Malformed(f"{owner} records {field.name}={value!r}, expected {field.kind}")
        made[field.name] = value
    if rest:
        name, value = next(iter(rest.items()))
        raise Refused(f"{owner} records {name}={value!r}, which is no field of it in torchao 0.18")
    return made


def _mx_kwargs(given: Mapping[str, Json]) -> Mapping[str, Json]:
    """0.13 and 0.14 spelled the kernel as `gemm_kernel_choice`, and had `pack_fp6`, which chose a storage of fp6 that
    0.15 dropped."""
    lifted = {key: value for key, value in given.items() if key not in ("gemm_kernel_choice", "pack_fp6")}
    if "gemm_kernel_choice" in given:
        lifted["kernel_preference"] = kernel_of(given["gemm_kernel_choice"])
    if given.get("pack_fp6", False) is not False:
        raise Refused("records pack_fp6=True, a storage of fp6 that torchao dropped in 0.15")
    return lifted


def kernel_of(choice: Json) -> Json:
    """Today's kernel preference for the MX gemm choice of torchao <= 0.14: emulated, or whatever the hardware has."""
    return typed("KernelPreference", "EMULATED" if data_of(choice, "MXGemmKernelChoice") == "EMULATED" else "AUTO")


def _is_ints(value: Json) -> bool:
    return isinstance(value, list) and all(type(item) is int and item >= 0 for item in value)


RECORD_LIFTS: Final[dict[str, Callable[[Mapping[str, Json]], Mapping[str, Json]]]] = {"mx_kwargs": _mx_kwargs}
KINDS: Final[dict[str, Callable[[Json], bool]]] = {
    "ints": _is_ints,
    "int": lambda value: type(value) is int,
    "bool": lambda value: type(value) is bool,
    "number": lambda value: type(value) in (int, float),
    "dtype": lambda value: data_of(value, "torch.dtype") in (*BY_NAME, *NAME_ONLY),
    "value": lambda _: True,
}
