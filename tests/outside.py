"""A safetensors file read without depickle: header, metadata, and every tensor's bytes.

The header is parsed here in a few lines; the tensors come from the `safetensors` package where it is installed, so
that the package's own validation has its say, and from the offsets otherwise.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# torch's name of each dtype of the format, in the order in which safetensors 0.8.0 lays tensors out
DTYPES = {
    "U64": "uint64",
    "I64": "int64",
    "F64": "float64",
    "C64": "complex64",
    "F32": "float32",
    "U32": "uint32",
    "I32": "int32",
    "BF16": "bfloat16",
    "F16": "float16",
    "U16": "uint16",
    "I16": "int16",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E8M0": "float8_e8m0fnu",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "I8": "int8",
    "U8": "uint8",
    "F4": "float4_e2m1fn_x2",
    "BOOL": "bool",
}
RANK = {name: at for at, name in enumerate(DTYPES)}


@dataclass(frozen=True)
class Tensor:
    """A tensor as the file has it; `dtype` and `shape` as torch would say them."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes


@dataclass(frozen=True)
class File:
    """A whole file; `raw` is the header's text with its padding."""

    metadata: dict[str, str]
    entries: dict[str, Any]
    tensors: dict[str, Tensor]
    raw: bytes

    @property
    def data_start(self) -> int:
        return 8 + len(self.raw)


def read(path: Path) -> File:
    """Read a file of any writer."""
    blob = path.read_bytes()
    (length,) = struct.unpack("<Q", blob[:8])
    raw = blob[8 : 8 + length]
    entries = json.loads(raw)
    metadata = entries.pop("__metadata__", {})
    data = _from_package(blob) or {
        name: blob[8 + length + item["data_offsets"][0] : 8 + length + item["data_offsets"][1]]
        for name, item in entries.items()
    }
    tensors = {name: Tensor(DTYPES[item["dtype"]], _shape(item), data[name]) for name, item in entries.items()}
    return File(metadata, entries, tensors, raw)


def _from_package(blob: bytes) -> dict[str, bytes]:
    try:
        from safetensors import deserialize
    except ImportError:
        return {}
    return {name: bytes(item["data"]) for name, item in deserialize(blob)}


def _shape(item: Any) -> tuple[int, ...]:
    shape = tuple(item["shape"])
    return (*shape[:-1], shape[-1] // 2) if item["dtype"] == "F4" else shape


def layout_problems(file: File) -> list[str]:
    """What is not as SPEC section 4 has it: page alignment, the order of tensors, no hole."""
    problems = []
    if file.data_start % 4096:
        problems.append(f"the data starts at {file.data_start}, not on a page")
    if list(file.entries) != sorted(file.entries, key=lambda name: (RANK[file.entries[name]["dtype"]], name.encode())):
        problems.append("the tensors are not in the order of the safetensors package")
    at = 0
    for name, item in file.entries.items():
        if item["data_offsets"][0] != at:
            problems.append(f"{name} begins at {item['data_offsets'][0]}, expected {at}")
        at = item["data_offsets"][1]
    return problems
