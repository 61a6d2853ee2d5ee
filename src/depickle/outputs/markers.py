"""A twin's header and markers, read back: what it says of its layers, and whether it says the same everywhere.

In: a file's header and the file. Out: a `Twin`, or None for any other file. Other writers' files for ComfyUI are no
twins: they have no word of where their tensors came from, and are read as the plain tensors that they are.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from ..errors import Malformed, show
from ..header import Header, strict_json
from ..ranges import FileSource
from ..schemas import Json
from ..twin import MARKER, Twin
from .names import LAYERS, TWIN
from .stored import json_object, texts

_MARKER_BYTES = 4096


def read_twin(header: Header, source: FileSource) -> Twin | None:
    """What a twin says. Raises Malformed where table and markers disagree, or its own key is not what it should be."""
    if TWIN not in header.metadata:
        return None
    said = json_object(header.metadata, TWIN)
    if set(said) != {"target", "format", "metadata", "names"} or said["target"] != "comfyui":
        raise Malformed(f"the header's {TWIN} is not what depickle writes")
    form, metadata, names = said["format"], said["metadata"], said["names"]
    if not (form is None or isinstance(form, str)) or not isinstance(metadata, dict) or not isinstance(names, dict):
        raise Malformed(f"the header's {TWIN} is not what depickle writes")
    layers = _table(header)
    markers = {
        name.removesuffix(f".{MARKER}"): _marker(name, header, source)
        for name in header.tensors
        if name.endswith(f".{MARKER}")
    }
    odd = next((name for name in {**layers, **markers} if _text(layers.get(name)) != _text(markers.get(name))), None)
    if odd is not None:
        raise Malformed(f"{LAYERS} and the markers disagree about {show(odd)}")
    return Twin(layers, {new: tuple(texts(olds)) for new, olds in names.items()}, form, metadata)


def _table(header: Header) -> dict[str, Mapping[str, Json]]:
    if LAYERS not in header.metadata:
        return {}
    table = json_object(header.metadata, LAYERS)
    layers = table.get("layers")
    if set(table) != {"format_version", "layers"} or table["format_version"] != "1.0" or not isinstance(layers, dict):
        raise Malformed(f"the header's {LAYERS} is no table of version 1.0")
    if not all(isinstance(marker, dict) for marker in layers.values()):
        raise Malformed(f"the header's {LAYERS} has a layer that is no object")
    return layers


def _marker(name: str, header: Header, source: FileSource) -> Mapping[str, Json]:
    entry = header.tensors[name]
    if entry.dtype.name != "uint8" or len(entry.shape) != 1 or entry.range.length > _MARKER_BYTES:
        raise Malformed(f"is a marker, but no text of {_MARKER_BYTES} bytes at the most", path=name)
    try:
        marker = strict_json(source.read(entry.range.offset, entry.range.length).decode())
    except ValueError as error:
        raise Malformed("is a marker, but not JSON", path=name) from error
    if not isinstance(marker, dict):
        raise Malformed("is a marker, but no JSON object", path=name)
    return marker


def _text(value: object) -> str:
    """JSON tells True from 1; Python does not."""
    return json.dumps(value, sort_keys=True)
