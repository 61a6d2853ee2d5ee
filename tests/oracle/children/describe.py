"""A live torch or torchao object in the form of the fixtures' truth files, with the bytes themselves beside each
digest."""

from __future__ import annotations

import base64
import dataclasses
import enum
import hashlib

import torch


def data_of(tensor):
    flat = tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
    return bytes(flat.view(torch.uint8).tolist())


def digest(tensor):
    return {
        "dtype": str(tensor.dtype),
        "shape": list(tensor.shape),
        "sha256": hashlib.sha256(data_of(tensor)).hexdigest(),
    }


def full_name(cls):
    return f"{cls.__module__}.{cls.__qualname__}"


def describe(value):
    """One tensor: a plain one with its bytes, a wrapper with its class, context and inner tensors."""
    if type(value) in (torch.Tensor, torch.nn.Parameter):
        data = data_of(value)
        return {**digest(value), "nbytes": len(data), "bytes": base64.b64encode(data).decode()}
    names, context = value.__tensor_flatten__()
    return {
        "class": full_name(type(value)),
        "dtype": str(value.dtype),
        "shape": list(value.shape),
        "inner": {name: describe(getattr(value, name)) for name in names},
        "context": spell(context),
    }


def spell(value):
    """An attribute as the truth files spell it."""
    if isinstance(value, enum.Enum):
        return {"enum": full_name(type(value)), "name": value.name, "value": value.value}
    if isinstance(value, torch.dtype):
        return {"dtype": str(value)}
    if isinstance(value, torch.Size):
        return {"torch.Size": list(value)}
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return {
            "namedtuple": full_name(type(value)),
            "fields": {key: spell(item) for key, item in value._asdict().items()},
        }
    if isinstance(value, tuple):
        return {"tuple": [spell(item) for item in value]}
    if isinstance(value, list):
        return [spell(item) for item in value]
    if isinstance(value, dict):
        return {"dict": {key: spell(item) for key, item in value.items()}}
    if dataclasses.is_dataclass(value):
        names = [field.name for field in dataclasses.fields(value)]
        return {"dataclass": full_name(type(value)), "fields": {name: spell(getattr(value, name)) for name in names}}
    if callable(value):
        return {"callable": f"{value.__module__}.{value.__qualname__}"}
    assert value is None or isinstance(value, (bool, int, float, str)), type(value)
    return value


def values(weight):
    """The digest of a weight's dequantised values, None for a class without them."""
    weight = getattr(weight, "original_weight_tensor", weight)
    try:
        if any(name in vars(weight) for name in ("_scale_e8m0", "_scale_e4m3")):  # up to 0.14
            return digest(weight.to_dtype(weight.dtype))
        return digest(weight.dequantize())
    except NotImplementedError:
        return None
