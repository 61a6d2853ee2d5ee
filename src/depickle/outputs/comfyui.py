"""The ComfyUI twin of a checkpoint: the same weights as ComfyUI's own quantised layers, exact or refused.

A quantised weight `L.weight` becomes `L.weight`, `L.weight_scale` and what else its format has, and a marker
`L.comfy_quant`; the header holds the markers once more under `_quantization_metadata`. Plain tensors keep their bytes.
Normative text: docs/comfyui.md. `plan` takes a checkpoint to a `Layout`; `markers.py` reads a twin back and shares
the spelling of JSON and the names of header keys with it, nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

from ..checkpoint import Checkpoint
from ..errors import Malformed, Refused, located, show
from ..header import encode, strict_json
from ..layout import Layout, Literal
from ..options import Options
from ..schemas import Json
from ..strided import blocks
from ..targets import COMFYUI
from ..tensors import TensorView
from ..twin import MARKER
from ..weights import PLAIN, Part, Weight
from .comfy_forms import UINT8, Bytes, Form, form_of
from .comfy_names import read_renaming
from .files import Piece, Provenance, Rounded, Tensor, pieced_file
from .names import FORMAT, LAYERS, PLAIN_SOURCE, TWIN

# What ComfyUI's loader of mapped files knows; it has no name for the others.
DTYPES: Final = frozenset(
    {
        *("float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool"),
        *("float8_e4m3fn", "float8_e5m2", "complex64", "uint64", "uint32", "uint16"),
    }
)
_MARKER_BYTES: Final = 4096  # a marker that a source brings along; ComfyUI's own have some 60
_WHOLE: Final = ("weight", "weight_scale")  # what is put together by rows; a scale without rows must be the same


def plan(checkpoint: Checkpoint, name: str, provenance: Provenance, options: Options) -> Layout:
    """Plan the twin `name`. Raises Refused, with the weight's name and the reason, for what has no exact form."""
    if checkpoint.metadata.get("activation_rotation"):
        raise Refused("holds weights in a rotated basis (activation_rotation); ComfyUI would need to rotate alike")

    def read(view: TensorView) -> Iterator[bytes | bytearray]:
        yield from blocks(view.strided, checkpoint.source)

    names = read_renaming(options.rename, options.key_prefix).resolve(checkpoint.weights)
    tensors: dict[str, Tensor] = {}
    layers: dict[str, Json] = {}
    for new, olds in names.items():
        with located(path=olds[0]):
            weights = {old: checkpoint.weights[old] for old in olds}
            made, marker = _named(new, weights, read, requantize=options.allow_requantize)
            for key, tensor in made.items():
                if key in tensors or key == "__metadata__" or "\0" in key:
                    raise Refused(f"would be stored as {show(key)}, which is taken or no name")
                tensors[key] = tensor
            if marker is not None:
                layers[new.rpartition(".")[0]] = marker
    twin = {
        "target": COMFYUI,
        "format": checkpoint.format,
        "metadata": checkpoint.metadata,
        "names": {new: list(olds) for new, olds in names.items() if olds != (new,)},
    }
    metadata: dict[str, str | Provenance] = {FORMAT: "pt"}
    if layers:
        metadata[LAYERS] = json.dumps({"format_version": "1.0", "layers": layers})
    return Layout((pieced_file(name, metadata | {TWIN: json.dumps(twin), PLAIN_SOURCE: provenance}, tensors),))


def serves(checkpoint: Checkpoint, options: Options) -> tuple[str, ...]:
    """ComfyUI, and those who read its files."""
    return (COMFYUI,)


# --- one name of the twin -------------------------------------------------------------------------------------------


def _named(new: str, weights: Mapping[str, Weight], read: Bytes, *, requantize: bool) -> tuple[dict[str, Tensor], Json]:
    """The tensors of one name by their keys, and its layer's marker if there is one."""
    plain = [weight.kind is None for weight in weights.values()]
    if all(plain):
        tensor = _joined_rows([_plain(old, weight) for old, weight in weights.items()])
        marked = new.endswith(f".{MARKER}") and len(weights) == 1
        return {new: tensor}, _marker_of(tensor, read) if marked else None
    if any(plain):
        raise Refused("is to be put together with weights of another kind")
    layer, _, parameter = new.rpartition(".")
    if parameter != "weight" or not layer:
        raise Refused(f"would be called {show(new)}; ComfyUI reads quantised weights only as LAYER.weight")
    forms = []
    for old, weight in weights.items():
        with located(path=old):
            forms.append(_labelled(old, form_of(weight, read, requantize=requantize)))
    form = _joined(forms, read)
    text = Literal(f"{layer}.{MARKER}", encode(form.marker))
    marker = Tensor(UINT8, (text.length,), (text,))
    return {f"{layer}.{suffix}": tensor for suffix, tensor in form.tensors.items()} | {text.tensor: marker}, form.marker


def _plain(name: str, weight: Weight) -> Tensor:
    part = weight.leaves()[PLAIN]
    if part.dtype.name not in DTYPES:
        raise Refused(f"has dtype {part.dtype.name}, which ComfyUI does not read")
    return Tensor(part.dtype, part.shape, (Piece(name, part),))


def _marker_of(tensor: Tensor, read: Bytes) -> Json:
    """The marker that a source brings along: a text encoder of Unsloth's with int8 layers, a file of ComfyUI's own."""
    part = next(piece.part for piece in tensor.pieces if isinstance(piece, Piece))
    if tensor.dtype is not UINT8 or len(tensor.shape) != 1 or part.nbytes > _MARKER_BYTES:
        raise Refused(f"is named like a marker of ComfyUI's, but is no text of {_MARKER_BYTES} bytes at the most")
    try:
        marker: Json = strict_json(b"".join(read(part.view)).decode())
    except ValueError as error:
        raise Malformed("is named like a marker of ComfyUI's, but is not JSON") from error
    if not isinstance(marker, dict):
        raise Malformed("is named like a marker of ComfyUI's, but is no JSON object")
    return marker


def _labelled(name: str, form: Form) -> Form:
    """The form with every piece labelled by the weight's name."""

    def label(piece: Piece | Rounded | Literal) -> Piece | Rounded | Literal:
        if isinstance(piece, Literal):
            return replace(piece, tensor=f"{name}.{piece.tensor}")
        return replace(piece, label=f"{name}.{piece.label}")

    tensors = {
        suffix: replace(tensor, pieces=tuple(map(label, tensor.pieces))) for suffix, tensor in form.tensors.items()
    }
    return replace(form, tensors=tensors)


# --- weights put together -------------------------------------------------------------------------------------------


def _joined(forms: list[Form], read: Bytes) -> Form:
    """Several weights as one, row after row. Raises Refused where that would not be exact."""
    first = forms[0]
    if any((form.marker, form.tensors.keys()) != (first.marker, first.tensors.keys()) for form in forms):
        raise Refused("is to be put together with weights of another format")
    if first.marker["format"] in ("mxfp8", "nvfp4") and any(form.weight_rows % 128 for form in forms[:-1]):
        raise Refused("is to be put together, but has not a multiple of 128 rows, in which its scales are stored")
    tensors = {}
    for suffix in first.tensors:
        several = [form.tensors[suffix] for form in forms]
        if suffix in _WHOLE and several[0].shape:
            tensors[suffix] = _joined_rows(several)
        elif len({_scalar(tensor, read) for tensor in several}) == 1 and not any(tensor.shape for tensor in several):
            tensors[suffix] = several[0]
        else:
            raise Refused(f"is to be put together with weights that have another {suffix}")
    return Form(first.marker, tensors, sum(form.weight_rows for form in forms))


def _joined_rows(several: list[Tensor]) -> Tensor:
    first = several[0]
    if len(several) == 1:
        return first
    if any(not t.shape or (t.dtype, t.shape[1:]) != (first.dtype, first.shape[1:]) for t in several):
        raise Refused("is to be put together with tensors of another dtype or width")
    rows = sum(tensor.shape[0] for tensor in several)
    return Tensor(first.dtype, (rows, *first.shape[1:]), tuple(piece for t in several for piece in t.pieces))


def _scalar(tensor: Tensor, read: Bytes) -> tuple[str, bytes]:
    """What a scalar's float32 is made of: the source's dtype and bytes."""
    (piece,) = tensor.pieces
    if isinstance(piece, Literal):
        return "float32", piece.data
    part: Part = piece.part
    return part.view.dtype.name, b"".join(read(part.view))
