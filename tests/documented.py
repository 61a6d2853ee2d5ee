"""The refusals that are meant: which files, by pattern, with which line, and why.

`python -m tests.coverage` counts a refusal as documented only if it is here; anything else that is not converted is
wrong. The line has to match in full, after the file's name. docs/classes.md gives the same reasons to users.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fnmatch import fnmatchcase


@dataclass(frozen=True)
class Documented:
    """Files of `releases` (a pattern) named `kind` (a pattern, without the form) are refused with `message` (a regular
    expression)."""

    kind: str
    releases: str
    message: str
    reason: str

    def covers(self, release: str, kind: str, message: str) -> bool:
        return (
            fnmatchcase(kind, self.kind)
            and fnmatchcase(release, self.releases)
            and re.fullmatch(self.message, message) is not None
        )


_WEIGHT = r"blk\.0\.attn\.q\.weight: "
_KEEP = r" has no form in torchao's safetensors \(--keep-unsupported stores it for other readers\)"
_INEXACT = _WEIGHT + "has no exact form today: "


def _no_form(kind: str, name: str, reason: str) -> Documented:
    return Documented(kind, "*", f"{_WEIGHT}class {name}{_KEEP}", reason)


REFUSALS = (
    _no_form("nf4", "NF4Tensor", "torchao's safetensors support does not list it"),
    _no_form("int4_opaque", "Int4OpaqueTensor", "an opaque layout of one CPU kernel"),
    _no_form("int4_preshuffled", "Int4PreshuffledTensor", "an opaque layout of one GPU kernel"),
    _no_form("intx_opaque", "IntxOpaqueTensor", "an opaque layout of one CPU kernel"),
    _no_form("fp8_sparse2x4_direct", "(Sparse2x4CUTLASSFloat8Tensor|Float8Sparse2x4_2DData2DMetadataTensor)", "sparse"),
    Documented(
        "fp8static",
        "0.1[78].0",
        f"{_WEIGHT}class PrototypeFloat8Tensor{_KEEP}",
        "torchao's safetensors support does not list the prototype class",
    ),
    Documented(
        "fp8static",
        "0.*",
        f"{_INEXACT}the activation's scale is static, .*",
        "Float8Tensor of 0.18 has no activation scale to put it in",
    ),
    Documented(
        "int8dyn_wodecode",
        "*",
        f"{_INEXACT}the activation function is _int8_symm_per_token_reduced_range_quant_noop_decode, expected .*",
        "Int8Tensor quantises every activation, this function leaves decoding alone",
    ),
    Documented(
        "int4_cpu_v1",
        "*",
        f"{_INEXACT}the layout is Int4CPUAQTTensorImpl, .*",
        "packed for one CPU kernel, with floating zero points",
    ),
    Documented(
        "uintx[46]", "*", f"{_INEXACT}the layout is UintxAQTTensorImpl, .*", "split into shards of bits; no class today"
    ),
    Documented(
        "int4_plain_v1",
        "0.7.0",
        f"{_INEXACT}the data's dtype is int32, expected int8",
        "int32 data with floating zero points: no class today holds them",
    ),
    Documented("dtype_bits16", "edge", "w: has dtype bits16, which safetensors cannot hold", "no dtype of the format"),
    Documented(
        "dtypes_all",
        "edge",
        r"t\.complex32: has dtype complex32, which safetensors cannot hold",
        "no dtype of the format",
    ),
    Documented("dup_ref", "edge", "c: is a dict, not a tensor", "a dict among the tensors"),
    Documented("nested_list_tuple", "edge", r"data\.pkl@\d+: GLOBAL _codecs\.encode is not accepted", "no state dict"),
    Documented("nested_tensor", "edge", "n: is a nested tensor: .*", "no form in the format"),
    Documented(
        "numpy_inside", "edge", r"data\.pkl@\d+: GLOBAL numpy\S+ is not accepted: a numpy array .*", "numpy inside"
    ),
    Documented("qint8", "edge", r"q: is quantised by torch\.ao .*", "no dtype of the format"),
    Documented("single_tensor", "edge", "holds a single tensor, not a state dict: .*", "no names"),
    Documented("sparse_*", "edge", "s: is a sparse tensor: .*", "no form in the format"),
    Documented("typed_storage", "edge", r"s: is a bare storage \(torch\.FloatStorage\): .*", "no tensor"),
    Documented(
        "whole_module",
        "edge",
        r"data\.pkl@\d+: GLOBAL \S+ is not accepted: a whole module was pickled: .*",
        "no state dict",
    ),
)


def reason(release: str, kind: str, message: str) -> str | None:
    """Why this refusal is meant, None if it is not."""
    return next((row.reason for row in REFUSALS if row.covers(release, kind, message)), None)
