"""Prove that a ComfyUI twin is its source: by the twin's own header, markers and bytes, against the source's.

In: the source's checkpoint, and the twin indexed from its file: plain tensors, and what its header says of them
(`Twin`). Out: findings, and the pairs of source part and output bytes that `compare.Comparer` leads back byte by
byte. Which tensors a format has, of which dtype and shape, and which source it can have come from, is written here
from the format's side; this module never sees a layout, the writer, or the code that plans twins.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from .attributes import data_of
from .checkpoint import Checkpoint
from .compare import Pair
from .compare_rounding import Rounding
from .dtypes import BY_NAME
from .errors import show
from .ranges import ByteRange
from .schemas import Json
from .tensors import TensorView, contiguous
from .twin import MARKER, ROUNDED, Twin
from .weights import PLAIN, Part, Weight

_BYTE: Final = BY_NAME["uint8"]
_ONE: Final = b"\x00\x00\x80\x3f"


@dataclass(frozen=True, slots=True)
class Format:
    """What a marker's format promises: the class it comes from, the dtypes of data and scales, the rows that data is
    padded to, and the columns of data and of the weight that share one scale (0: a scale a row, or one)."""

    kind: str
    data: str
    scale: str
    rows: int = 1
    per_scale: int = 0


FORMATS: Final[Mapping[str, Format]] = {
    "int8_tensorwise": Format("Int8Tensor", "int8", "float32"),
    "float8_e4m3fn": Format("Float8Tensor", "float8_e4m3fn", "float32"),
    "float8_e5m2": Format("Float8Tensor", "float8_e5m2", "float32"),
    "mxfp8": Format("MXTensor", "float8_e4m3fn", "uint8", 32, 32),
    "nvfp4": Format("NVFP4Tensor", "uint8", "float8_e4m3fn", 16, 8),
}


class TwinComparison:
    """Everything that has to be found out about one twin: `findings` before its tensors are read, then `pairs`, and
    `rounded`, the weights that were rounded again on request."""

    def __init__(self, source: Checkpoint, output: Checkpoint, twin: Twin) -> None:
        self.findings: list[str] = []
        self.pairs: list[Pair] = []
        self.rounded: list[Rounding] = []
        self._source, self._output, self._twin = source, output, twin
        self._used: list[str] = []
        self._left = dict(output.weights)
        if not isinstance(output.provenance, dict) or not {"sha256", "files"} & output.provenance.keys():
            self.findings.append("provenance: the twin does not say which source it is of")
        if (twin.format, json.dumps(twin.metadata, sort_keys=True)) != (
            source.format,
            json.dumps(source.metadata, sort_keys=True),
        ):
            self.findings.append("format or metadata: the twin records another than the source has")
        for layer, marker in twin.layers.items():
            if any(name not in source.weights for name in self._origins(f"{layer}.{MARKER}")):
                self._layer(layer, marker)
        for name in list(self._left):
            self._plain(name)
        self.findings += [
            f"{show(name)}: the twin says where it is from, and has none"
            for name in set(twin.names) - set(output.weights)
        ]
        mine = list(source.weights)
        if sorted(self._used) != sorted(mine):
            odd = sorted(set(self._used) ^ set(mine)) or sorted(n for n in mine if self._used.count(n) > 1)
            self.findings += [f"{show(name)}: is not exactly once in the twin" for name in odd]
        self.pairs.sort(key=lambda pair: pair[2].view.range.offset)

    def _origins(self, name: str) -> tuple[str, ...]:
        return self._twin.names.get(name, (name,))

    def _take(self, layer: str, suffix: str) -> Part | None:
        weight = self._left.pop(f"{layer}.{suffix}", None)
        return weight.leaves()[PLAIN] if weight is not None else None

    def _sources(self, name: str) -> list[tuple[str, Weight]]:
        origins = self._origins(name)
        self._used += origins
        self.findings += [
            f"{show(o)}: is in the twin, not in the source" for o in origins if o not in self._source.weights
        ]
        return [(origin, self._source.weights[origin]) for origin in origins if origin in self._source.weights]

    # --- plain tensors ----------------------------------------------------------------------------------------------

    def _plain(self, name: str) -> None:
        theirs = self._left[name].leaves()[PLAIN]
        sources = self._sources(name)
        leaves = [(origin, weight.leaves().get(PLAIN)) for origin, weight in sources]
        rows = [(origin, leaf) for origin, leaf in leaves if leaf is not None]
        if not rows or len(rows) < len(leaves):
            self.findings.append(f"{show(name)}: is a plain tensor in the twin, and none in the source")
            return
        shapes = [part.shape for _, part in rows]
        whole = shapes[0] if len(rows) == 1 else (sum(s[0] if s else 0 for s in shapes), *shapes[0][1:])
        same = all((part.dtype, part.shape[1:]) == (theirs.dtype, whole[1:]) for _, part in rows)
        if not same or theirs.shape != whole:
            self.findings.append(f"{show(name)}: is {theirs.dtype.name}{list(theirs.shape)}, the source has another")
        else:
            self._cut(rows, theirs)

    def _cut(self, mine: Sequence[tuple[str, Part]], theirs: Part) -> None:
        at = theirs.view.range.offset
        for label, part in mine:
            self.pairs.append((label, part, _bytes(at, part.nbytes)))
            at += part.nbytes

    # --- layers -----------------------------------------------------------------------------------------------------

    def _layer(self, layer: str, marker: Mapping[str, Json]) -> None:
        known = FORMATS.get(str(marker.get("format")))
        sources = self._sources(f"{layer}.weight")
        data, scale, text = (self._take(layer, suffix) for suffix in ("weight", "weight_scale", MARKER))
        if known is None or data is None or scale is None or text is None or not sources:
            self.findings.append(f"{show(layer)}: has no known format, or lacks its weight or scale")
            return
        where = text.view.range
        if self._output.source.read(where.offset, where.length) != json.dumps(marker, separators=(",", ":")).encode():
            self.findings.append(f"{show(layer)}: its marker is not spelled as depickle spells it")
        for origin, weight in sources:
            self.findings += [f"{show(origin)}: {text}" for text in _misfits(weight, known, marker)]
        if not self.findings:
            if marker.get(ROUNDED) is True:
                self._rounded(layer, known, sources, data, scale)
                return
            self._weights(layer, known, sources, data)
            self._scales(layer, known, sources, scale)
            self._scalars(layer, known, sources)

    def _rounded(self, layer: str, known: Format, sources: list[tuple[str, Weight]], data: Part, scale: Part) -> None:
        """Float8 with a scale a row, rounded again to one: held to its source by `compare_rounding`."""
        parts = [(name, weight.leaves()["qdata"], weight.leaves()["scale"]) for name, weight in sources]
        rows, columns = sum(qdata.shape[0] for _, qdata, _ in parts), parts[0][1].shape[1]
        fits = all(qdata.shape[1] == columns for _, qdata, _ in parts)
        if not fits or (data.dtype.name, data.shape) != (known.data, (rows, columns)):
            self.findings.append(
                f"{show(layer)}.weight: is {data.dtype.name}{list(data.shape)}, the source has another"
            )
        elif (scale.dtype.name, scale.shape) != ("float32", ()):
            self.findings.append(f"{show(layer)}.weight_scale: is no scalar of float32")
        else:
            whole = self._output.source.read(scale.view.range.offset, 4)
            at = data.view.range.offset
            for name, qdata, scales in parts:
                self.rounded.append(Rounding(name, qdata, scales, at, whole))
                at += qdata.nbytes

    def _weights(self, layer: str, known: Format, sources: list[tuple[str, Weight]], theirs: Part) -> None:
        parts = [(f"{name}.qdata", weight.leaves()["qdata"]) for name, weight in sources]
        rows = sum(part.shape[0] for _, part in parts)
        columns = parts[0][1].shape[1]
        shape = (-(-rows // known.rows) * known.rows, columns)
        if (theirs.dtype.name, theirs.shape) != (known.data, shape) or any(p.shape[1] != columns for _, p in parts):
            self.findings.append(
                f"{show(layer)}.weight: is {theirs.dtype.name}{list(theirs.shape)}, expected {list(shape)}"
            )
            return
        if known.kind == "NVFP4Tensor":  # torchao's pairs lie the other way round, and 0.14's the other way again
            parts = [(n, replace(p, rule="copy" if p.rule == "nibble-swap" else "nibble-swap")) for n, p in parts]
        self._cut(parts, theirs)
        padding = theirs.nbytes - rows * columns
        if padding:
            self.pairs.append(_zeros(f"{layer}.weight", theirs.view.range.end - padding, padding))

    def _scales(self, layer: str, known: Format, sources: list[tuple[str, Weight]], theirs: Part) -> None:
        parts = [(f"{name}.scale", weight, weight.leaves()["scale"]) for name, weight in sources]
        shapes = [_scale_shape(known, weight) for _, weight, _ in parts]
        joined = (sum(s[0] for s in shapes), shapes[0][1]) if all(shapes) else ()
        if (theirs.dtype.name, theirs.shape) != (known.scale, joined) or len({s[1:] for s in shapes}) != 1:
            self.findings.append(
                f"{show(layer)}.weight_scale: is {theirs.dtype.name}{list(theirs.shape)}, expected {list(joined)}"
            )
        elif not known.per_scale:
            self._floats([(name, part) for name, _, part in parts], theirs, once=not joined)
        elif any(weight.leaves()["qdata"].shape[0] % 128 for _, weight, _ in parts[:-1]):
            self.findings.append(f"{show(layer)}.weight_scale: is put together from blocks that are not whole")
        else:
            self._cut([(name, _blocked(weight, part, s)) for (name, weight, part), s in zip(parts, shapes)], theirs)
        for name, weight in sources:
            zero = weight.leaves().get("zero_point")
            if zero is not None:  # left out of the twin, since nothing of it is anything but zero
                self.pairs.append((f"{name}.zero_point", replace(zero, rule="zero-to-int8"), _bytes(0, 0)))

    def _scalars(self, layer: str, known: Format, sources: list[tuple[str, Weight]]) -> None:
        """The scalars of nvfp4: each source's is the twin's one."""
        for suffix, part in (("weight_scale_2", "per_tensor_scale"), ("input_scale", "act_per_tensor_scale")):
            mine = [(f"{name}.{part}", weight.leaves()[part]) for name, weight in sources if part in weight.leaves()]
            theirs = self._take(layer, suffix) if known.kind == "NVFP4Tensor" else None
            if theirs is None and not mine and (suffix, known.kind) != ("weight_scale_2", "NVFP4Tensor"):
                continue
            if (
                theirs is None
                or (theirs.dtype.name, theirs.shape) != ("float32", ())
                or len(mine) not in (0, len(sources))
            ):
                self.findings.append(f"{show(layer)}.{suffix}: is not there, or not as the source has it")
            elif mine:
                self._floats(mine, theirs, once=True)
            elif self._output.source.read(theirs.view.range.offset, 4) != _ONE:
                self.findings.append(f"{show(layer)}.{suffix}: is not 1, which the source means by having none")

    def _floats(self, mine: Sequence[tuple[str, Part]], theirs: Part, *, once: bool) -> None:
        """Scales that became float32: one after the other, or each the twin's only one."""
        at = theirs.view.range.offset
        for label, part in mine:
            rule = part.rule if part.dtype.name == "float32" else f"widen-{part.dtype.name}"
            length = part.nbytes // part.dtype.itemsize * 4
            self.pairs.append((label, replace(part, rule=rule), _bytes(at, length)))
            at += 0 if once else length


def _misfits(weight: Weight, known: Format, marker: Mapping[str, Json]) -> Iterator[str]:
    """Why a source's weight cannot have become a layer of this format."""
    leaves = weight.leaves()
    if (weight.kind, weight.origin) != (known.kind, None):
        yield f"is a {weight.kind or 'plain tensor'}, its twin's format is one of {known.kind}"
        return
    weight_only = weight.attributes.get("act_quant_kwargs") is None
    rounded = {ROUNDED} if known.kind == "Float8Tensor" and marker.get(ROUNDED) is True else set()
    if (marker.get("full_precision_matrix_mult") is True) != weight_only or set(marker) - rounded - {
        "format",
        "full_precision_matrix_mult",
    }:
        yield "quantises its input otherwise than its twin's marker says"
    allowed = {"qdata", "scale", "zero_point"} if known.kind == "Int8Tensor" else {"qdata", "scale"}
    if known.kind == "NVFP4Tensor":
        allowed |= {"per_tensor_scale", "act_per_tensor_scale"}
    if not set(leaves) <= allowed:
        yield f"has parts that its twin's format has no place for: {', '.join(sorted(set(leaves) - allowed))}"
    if len(leaves["qdata"].shape) != 2 or leaves["qdata"].dtype.name != known.data:
        yield f"has data of {leaves['qdata'].dtype.name}{list(leaves['qdata'].shape)}"
    elem = data_of(weight.attributes.get("elem_dtype"), "torch.dtype")
    if known.kind == "MXTensor" and (elem, weight.attributes["block_size"]) != ("float8_e4m3fn", 32):
        yield "is MX of another element or block"
    if known.kind == "NVFP4Tensor" and weight.attributes["block_size"] != 16:
        yield "is NVFP4 in other blocks"
    per_row = {(leaves["qdata"].shape[0], 1)}
    allowed_scales = per_row if rounded else {(1, 1)} | (per_row if known.kind == "Int8Tensor" else set())
    if not known.per_scale and leaves["scale"].shape not in allowed_scales:
        yield f"has scales of shape {list(leaves['scale'].shape)}"


def _scale_shape(known: Format, weight: Weight) -> tuple[int, ...]:
    """The shape of the twin's scales of one weight."""
    leaves = weight.leaves()
    rows, columns = leaves["qdata"].shape
    if known.per_scale:
        return (-(-rows // 128) * 128, -(-(columns // known.per_scale) // 4) * 4)
    return () if leaves["scale"].shape == (1, 1) else (rows, 1)


def _blocked(weight: Weight, scale: Part, shape: tuple[int, ...]) -> Part:
    """The scales as they lie in the twin: torchao's swizzled ones as they are, others put into blocks."""
    if weight.attributes.get("is_swizzled_scales") is True:
        return replace(scale, shape=shape, rule="reshape")
    view = scale.view
    if view.shape != scale.shape and view.contiguous:
        view = contiguous(view.dtype, scale.shape, view.range)
    return Part(view, _BYTE, shape, "block-scales")


def _bytes(offset: int, length: int) -> Part:
    """So many bytes of the output."""
    view = contiguous(_BYTE, (length,), ByteRange(offset, length))
    return Part(view, _BYTE, (length,))


def _zeros(label: str, offset: int, length: int) -> Pair:
    """Bytes of the output that nothing of the source is in, and that are zero."""
    nothing = TensorView(_BYTE, (0,), (1,), 0, ByteRange(0, 0))
    return f"{label} padding", Part(nothing, _BYTE, (length,), "zero-to-int8"), _bytes(offset, length)
