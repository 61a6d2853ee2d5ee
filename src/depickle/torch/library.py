"""[extra `torch`] The torchao that is installed: its classes, records and enumerations by the rows of our tables.

Each is looked for under the modules that its row names, never under a name from a file. What the release does not
have is None; a value that it cannot hold is refused by name.
"""

from __future__ import annotations

import importlib
import inspect
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Final

import torch

from ..attributes import data_of
from ..errors import Refused
from ..schemas import (
    BY_CLASS,
    BY_NAME_CURRENT,
    BY_SHORT_NAME,
    ENUM_BY_NAME,
    FUNCTIONS,
    RECORD_BY_NAME,
    Attribute,
    Enum,
    Json,
    Part,
    Record,
    Schema,
)
from .memory import TORCH_DTYPES

INSTALL: Final = "pip install 'depickle[torch]'"
_OLD_FP4: Final = frozenset({"_scale_e4m3", "_scale_e8m0"})  # only classes up to 0.14 have these fields
_V1_FUNCTION: Final = "_int8_symm_per_token_reduced_range_quant"


@contextmanager
def quiet() -> Iterator[None]:
    """Classes warn that they are deprecated whenever one is made: once per weight."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _module(name: str) -> ModuleType | None:
    """A module of torchao by a name from our tables, if this release has it and it can be imported here."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


@dataclass(frozen=True, slots=True)
class Installed:
    """A weight class as the installed torchao has it: its fields in the order of its constructor."""

    cls: type[torch.Tensor]
    schema: Schema
    fields: tuple[str, ...]
    today: Mapping[str, str]  # what torchao 0.18 calls a field, for those that it has
    defaults: Mapping[str, Any]

    @property
    def old_fp4(self) -> bool:
        """Whether it keeps the even element of a pair in the high half of the byte, as torchao did up to 0.14."""
        return not _OLD_FP4.isdisjoint(self.fields)


class Library:
    """The installed torchao, looked up by the names of our tables, each once."""

    def __init__(self) -> None:
        with quiet():
            found = _module("torchao")
        self.version: str | None = getattr(found, "__version__", "unknown") if found is not None else None
        self._classes: dict[str, Installed | None] = {}
        self._found: dict[tuple[str, str], Any] = {}
        self._values: dict[str, Any] = {}
        self._v1: list[Any] | None = None

    def find(self, row: Schema | Record | Enum) -> Any:
        """The class of a row, None if this release does not have it."""
        key = (type(row).__name__, row.name)
        if key not in self._found:
            with quiet():
                places = (getattr(_module(name), row.name, None) for name in row.modules) if self.version else ()
                wanted = torch.Tensor if isinstance(row, Schema) else object  # 0.18 has shells of v1's classes
                self._found[key] = next(
                    (one for one in places if isinstance(one, type) and issubclass(one, wanted)), None
                )
        return self._found[key]

    def named(self, full: str) -> Any:
        """What the installed torchao has under a full name, if that name is in one of our tables."""
        if full not in BY_CLASS and full not in FUNCTIONS:
            return None
        module, _, name = full.rpartition(".")
        with quiet():
            found = getattr(_module(module), name, None)
        is_class = isinstance(found, type) and issubclass(found, torch.Tensor)
        return found if is_class or full in FUNCTIONS else None

    def installed(self, kind: str) -> Installed | None:
        """A class of today, None if this release does not have it, or has it in a form that we do not know."""
        if kind not in self._classes:
            self._classes[kind] = self._inspect(BY_NAME_CURRENT[kind])
        return self._classes[kind]

    def _inspect(self, schema: Schema) -> Installed | None:
        cls = self.find(schema)
        lists = ("tensor_data_names", "tensor_attribute_names", "optional_tensor_data_names")
        if cls is None or getattr(cls, lists[0], None) is None:
            return None
        fields = [name for one in (*lists, "optional_tensor_attribute_names") for name in getattr(cls, one, None) or ()]
        parameters = list(inspect.signature(cls.__new__).parameters.values())[1:]
        if len(parameters) != len(fields):
            return None
        pairs = zip(fields, parameters)
        defaults = {name: given.default for name, given in pairs if given.default is not inspect.Parameter.empty}
        rows: tuple[Part | Attribute, ...] = (*schema.parts, *schema.attributes)
        today = {field: row.name for field in fields for row in rows if field in {row.name, *row.was}}
        return Installed(cls, schema, tuple(fields), today, defaults)

    def v1_classes(self) -> tuple[Any, ...] | None:
        """What int8 of v1 was made of, where this release still has all of it (up to 0.17): three classes, the layout,
        the domains of zero points, and the function that quantises activations."""
        if self._v1 is None:
            rows = ("LinearActivationQuantizedTensor", "AffineQuantizedTensor", "PlainAQTTensorImpl")
            found = [self.find(BY_SHORT_NAME[name]) for name in rows]
            found += [self.find(RECORD_BY_NAME["PlainLayout"]), self.find(ENUM_BY_NAME["ZeroPointDomain"])]
            with quiet():
                module = _module("torchao.quantization.quant_api") if self.version else None
            self._v1 = [*found, getattr(module, _V1_FUNCTION, None)]
        return None if any(one is None for one in self._v1) else tuple(self._v1)

    def lacking(self, kind: str) -> Refused:
        """The error for a class that is not there."""
        if self.version is None:
            return Refused(f"is a {kind}: rebuilding it needs torchao ({INSTALL}), dequantize=True does not")
        return Refused(f"is a {kind}, a class that torchao {self.version} does not have (dequantize=True needs none)")

    # --- values ------------------------------------------------------------------------------------------------------

    def value(self, value: Json) -> Any:
        """An attribute's JSON as the installed torchao's value."""
        if isinstance(value, list):
            return [self.value(item) for item in value]
        if not isinstance(value, dict):
            return value
        # Equal values are one object, as in the state dicts that torchao makes: they are never changed.
        key = repr(value)
        if key not in self._values:
            self._values[key] = self._typed(str(value.get("_type")), value.get("_data"))
        return self._values[key]

    def _typed(self, name: str, data: Json) -> Any:
        if name == "torch.dtype":
            dtype = TORCH_DTYPES.get(str(data), getattr(torch, str(data), None))
            if not isinstance(dtype, torch.dtype):
                raise cannot("dtype", data)
            return dtype
        if name in ENUM_BY_NAME:
            return self._member(ENUM_BY_NAME[name], str(data))
        if name in RECORD_BY_NAME and isinstance(data, dict):
            return self._record(RECORD_BY_NAME[name], data)
        raise cannot(name, data)

    def _member(self, row: Enum, name: str) -> Any:
        cls = self.find(row)
        before = {new: old for old, new in row.renamed}
        found = getattr(cls, name, None) or getattr(cls, before.get(name, name), None)
        if found is None:
            raise cannot(row.name, name)
        return found

    def _record(self, row: Record, data: Mapping[str, Json]) -> Any:
        cls = self.find(row)
        if cls is None:
            raise cannot(row.name, dict(data))
        known = inspect.signature(cls).parameters
        given: dict[str, Any] = {}
        for name, value in data.items():
            if name in known:
                given[name] = self.value(value)
            elif name == "kernel_preference" and "gemm_kernel_choice" in known:
                given["gemm_kernel_choice"] = self.gemm(data_of(value, "KernelPreference"))
            elif not _is_default(row, name, value):
                raise cannot(name, value)
        return cls(**given)

    def gemm(self, kernel: Json) -> Any:
        """MXGemmKernelChoice of torchao 0.9 to 0.14 for today's kernel preference: emulated, or what the hardware
        has."""
        choice = {"EMULATED": "EMULATED", "AUTO": "CUBLAS"}.get(str(kernel))
        if choice is None:
            raise cannot("kernel_preference", kernel)
        return getattr(self.find(ENUM_BY_NAME["MXGemmKernelChoice"]), choice)


def cannot(name: str, value: object) -> Refused:
    """The error for a field that says something which this release has no place for."""
    shown = value.get("_data", value) if isinstance(value, dict) else value
    return Refused(f"records {name}={shown}, which this torchao cannot construct")


def _is_default(row: Record, name: str, value: Json) -> bool:
    return any(field.name == name and field.default == value for field in row.fields)
