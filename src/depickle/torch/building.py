"""[extra `torch`] Weights of torchao 0.18's spelling as live objects of the classes that are installed.

Each is given what its own lists of parts and attributes ask for, in the order of its constructor. Releases differ by
field: a renamed one is mapped, one that the release does not have is dropped if it says nothing and refused by name
and value if it says something. Alike weights, of which a model has thousands, are worked out once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch

from ..attributes import data_of
from ..errors import Malformed, Refused, located, show
from ..schemas import Json
from ..weights import Weight
from .library import Installed, Library, cannot

_TUPLES: Final = frozenset({("IntxUnpackedToInt8Tensor", "block_size")})  # everybody else keeps lists

Parts = Mapping[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class Argument:
    """What a field of a constructor gets: the part of that name, or else a value that alike weights have in common."""

    part: str | None
    value: Any = None
    swapped: bool = False

    def of(self, parts: Parts) -> Any:
        """The argument for a weight with these parts; a list is its own, whoever may change it."""
        if self.part is not None:
            return swap_nibbles(parts[self.part]) if self.swapped else parts[self.part]
        return list(self.value) if type(self.value) is list else self.value


@dataclass(frozen=True, slots=True)
class Form:
    """How alike weights are built; `left` are parts that the class has no place for, and that must say nothing."""

    cls: type[torch.Tensor]
    arguments: tuple[Argument, ...]
    left: tuple[str, ...]


class Builder:
    """Makes weights of what a file says of them."""

    def __init__(self, library: Library) -> None:
        self._library = library
        self._forms: dict[tuple[str, tuple[str, ...], str], Form] = {}

    def build(self, weight: Weight, parts: Parts) -> torch.Tensor:
        """The live object of a weight of a class of today. Raises Refused where this release cannot construct it."""
        kind = str(weight.kind)
        key = kind, tuple(parts), repr(weight.attributes)
        form = self._forms.get(key)
        if form is None:
            form = self._forms[key] = self._form(weight, parts)
        for name in form.left:
            if name != "zero_point" or bool(parts[name].view(torch.uint8).any()):
                raise cannot(name, "a tensor")
        try:
            return form.cls(*[argument.of(parts) for argument in form.arguments])
        except (AssertionError, AttributeError, NotImplementedError, RuntimeError, TypeError, ValueError) as error:
            said = f"torchao {self._library.version} does not construct a {kind} of it: {show(str(error))}"
            raise Refused(said) from error

    def _form(self, weight: Weight, parts: Parts) -> Form:
        kind = str(weight.kind)
        found = self._library.installed(kind)
        if found is None:
            raise self._library.lacking(kind)
        if kind == "Int8Tensor" and "zero_point" not in found.fields:
            _check_symmetric(weight.attributes)
        given: dict[str, Json] = {**weight.attributes}
        left = dict.fromkeys(parts)
        arguments = [self._argument(found, field, given, left) for field in found.fields]
        for name, value in given.items():
            if value is not None and value is not False:
                raise cannot(name, value)
        return Form(found.cls, tuple(arguments), tuple(left))

    def _argument(self, found: Installed, field: str, given: dict[str, Json], left: dict[str, None]) -> Argument:
        """Take one field of the installed class out of what the weight has."""
        name = found.today.get(field)
        if name in left:
            del left[name]
            return Argument(name, swapped=name == "qdata" and found.old_fp4 and _is_fp4(given))
        if name in given:
            with located(path=name):
                return Argument(None, self._value(found, name, given.pop(name)))
        if field == "_gemm_kernel_choice":
            return Argument(None, self._library.gemm(data_of(given.pop("kernel_preference"), "KernelPreference")))
        if field == "_pack_fp6":
            return Argument(None, value=False)
        if field in found.defaults:
            return Argument(None, found.defaults[field])
        if field.lstrip("_") in {part.name for part in found.schema.parts if part.optional}:
            return Argument(None)
        lacks = f"lacks {field}, which {found.cls.__name__} of torchao {self._library.version} needs"
        raise Malformed(lacks)

    def _value(self, found: Installed, name: str, value: Json) -> Any:
        live = self._library.value(value)
        if name == "shape":
            return torch.Size(live)
        return tuple(live) if (found.schema.name, name) in _TUPLES else live

    def build_v1(self, weight: Weight, parts: Parts) -> torch.Tensor:
        """The class that torchao v1 made of an int8 weight with dynamic activations, by the facts of `int8_v1`."""
        classes = self._library.v1_classes()
        if classes is None:
            raise self._library.lacking("LinearActivationQuantizedTensor")
        outer, affine, inner, layout, domain, function = classes
        qdata, scale = parts["qdata"], parts["scale"]
        impl = inner(qdata, scale.reshape(qdata.shape[0]), None, layout())
        dtype = self._library.value(weight.attributes["dtype"])
        block = tuple(self._library.value(weight.attributes["block_size"]))
        made = affine(impl, block, qdata.shape, zero_point_domain=domain.NONE, dtype=dtype)
        built: torch.Tensor = outer(made, function, {})
        return built


def _check_symmetric(attributes: Mapping[str, Json]) -> None:
    """0.15 and 0.16 take an asymmetric activation and compute garbage: they have no zero points."""
    kwargs = data_of(attributes.get("act_quant_kwargs"), "QuantizeTensorToInt8Kwargs")
    if isinstance(kwargs, dict) and data_of(kwargs.get("mapping_type"), "MappingType") == "ASYMMETRIC":
        raise cannot("mapping_type", "ASYMMETRIC")


def _is_fp4(attributes: Mapping[str, Json]) -> bool:
    """Whether two values share a byte: NVFP4, which has no element type, and MX with that of fp4."""
    return "elem_dtype" not in attributes or data_of(attributes["elem_dtype"], "torch.dtype") == "float4_e2m1fn_x2"


def swap_nibbles(tensor: torch.Tensor) -> torch.Tensor:
    """The two halves of every byte change places."""
    return (tensor << 4) | (tensor >> 4)
