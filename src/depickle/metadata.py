"""A checkpoint's metadata as JSON, with a list of what JSON spells differently.

What JSON cannot hold is spelled as Python's json and torch would: a tuple as a list, a TorchVersion as its text, a
dtype as `torch.bfloat16`, a key `True` as `"true"`. Anything else is refused by its path. Shared values are walked
each time they are reached, within a budget.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Final

from .dtypes import NAME_ONLY
from .errors import Refused
from .inert import Call, Global, Inert
from .schemas import DTYPE_GLOBALS, Json
from .statedict import as_dict
from .tensors import describe, is_tensor

_DEPTH: Final = 64  # of the metadata; real ones nest three
_NODES: Final = 1_000_000  # values in the metadata, shared ones counted each time they are reached
_TEXT: Final = 64 * 1024 * 1024  # characters in the metadata, shared texts counted each time; a header has to hold them


class Normaliser:
    """Inert metadata to JSON, with a list of what JSON spells differently."""

    def __init__(self) -> None:
        self.changed: list[str] = []
        self._nodes = 0
        self._text = 0

    def mapping(self, value: Mapping[Inert, Inert], path: str = "metadata", depth: int = 0) -> dict[str, Json]:
        """The JSON of a dict, at `path` of the file."""
        made: dict[str, Json] = {}
        for key, item in value.items():
            name = self._key(key, path)
            if name in made:
                raise Refused(f"has two keys that JSON spells {name!r}", path=path)
            made[name] = self._value(item, f"{path}.{name}", depth + 1)
        return made

    def _key(self, key: Inert, path: str) -> str:
        if type(key) is str:
            return key
        if key is None or type(key) in (bool, int, float):
            name = json.dumps(key)
        else:
            raise Refused(f"has {describe(key)} as a key, which JSON cannot hold", path=path)
        self.changed.append(f"{path}: key {key!r} as {name!r}")
        return name

    def _value(self, value: Inert, path: str, depth: int) -> Json:
        self._nodes += 1
        if depth > _DEPTH or self._nodes > _NODES:
            raise Refused(f"nests deeper than {_DEPTH} or has more than {_NODES} values", path=path)
        if type(value) is str:
            self._text += len(value)
            if self._text > _TEXT:
                raise Refused(f"the metadata has more than {_TEXT} characters", path=path)
        if value is None or type(value) in (bool, int, str):
            return value
        if type(value) is float:
            return value if math.isfinite(value) else self._as(str(value), path, "a non-finite float")
        inner = as_dict(value)
        if inner is not None:
            return self.mapping(inner, path, depth)
        if type(value) in (list, tuple):
            if type(value) is tuple:
                self.changed.append(f"{path}: tuple as list")
            return [self._value(item, f"{path}[{i}]", depth + 1) for i, item in enumerate(value)]
        return self._torch_value(value, path, depth)

    def _torch_value(self, value: Inert, path: str, depth: int) -> Json:
        name = value.name if type(value) is Call else value.full if type(value) is Global else ""
        if type(value) is Global and (name in DTYPE_GLOBALS or name.removeprefix("torch.") in NAME_ONLY):
            return self._as(name, path, "a dtype")
        if type(value) is Call and not (value.states or value.items or value.entries or value.kwargs):
            args = value.args
            if name == "torch.torch_version.TorchVersion" and len(args) == 1 and type(args[0]) is str:
                return self._as(args[0], path, "a TorchVersion")
            if name == "torch.device" and args and all(type(arg) in (str, int) for arg in args):
                return self._as(":".join(map(str, args)), path, "a device")
            if name == "torch.Size" and len(args) == 1 and type(args[0]) in (tuple, list):
                self.changed.append(f"{path}: torch.Size as list")
                return [self._value(item, f"{path}[{i}]", depth + 1) for i, item in enumerate(args[0])]
        if is_tensor(value):
            raise Refused("is a tensor, which JSON cannot hold", path=path)
        raise Refused(f"is {describe(value)}, which JSON cannot hold", path=path)

    def _as(self, text: str, path: str, what: str) -> str:
        self.changed.append(f"{path}: {what} as {text!r}")
        return text
