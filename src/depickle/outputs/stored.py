"""A safetensors file's tensors, put together again to the weights that its metadata describes.

Every tensor is handed out once: what is listed and not there, and what is there and belongs to nobody, is an error.
Reads our own files, torchao's flattened layout (0.15 to 0.18), the older `name:part` grammar of 0.14, and plain
files.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..attributes import from_json
from ..dtypes import BY_NAME
from ..errors import Error, Malformed, Refused, show
from ..header import Header, strict_json
from ..lift import lift
from ..ranges import FileSource
from ..schemas import BY_CLASS, BY_NAME_CURRENT, BY_SHORT_NAME, Json
from ..strided import blocks
from ..tensors import contiguous, integers
from ..weights import MAX_DEPTH, PLAIN, Part, Weight, plain
from .names import KEPT_PREFIX, TIES, part_name


class Stored:
    """The tensors of a file, handed out once each."""

    def __init__(self, header: Header, source: FileSource, keep: bool) -> None:
        self.header = header
        self.taken: set[str] = set()
        self._keep = keep
        self._entries: dict[str, dict[str, Json]] = {}  # by their text: most weights of a model share a few
        self._attributes: dict[str, dict[str, Json]] = {}
        self._forms: dict[tuple[object, ...], Weight] = {}
        self._older = any(key.endswith((":_data", ":qdata")) for key in header.tensors)  # `name:part`, of torchao 0.14
        self._read = lambda view: blocks(view.strided, source)

    def weights(self, names: list[str]) -> dict[str, Weight]:
        """The weights that `tensor_names` lists."""
        found: dict[str, Weight] = {}
        for name in names:
            try:
                found[name] = self.weight(name)
            except Error as error:
                error.path = name if error.path is None else error.path
                raise
        return found

    def take(self, name: str, key: str) -> Part:
        """Hand out one tensor to the weight `name`."""
        entry = self.header.tensors.get(key)
        if entry is None:
            raise Malformed(f"is listed, but the file holds no tensor {show(key)}", path=name)
        if key in self.taken:
            raise Malformed(f"is listed, but {show(key)} belongs to another name already", path=name)
        self.taken.add(key)
        return plain(contiguous(entry.dtype, entry.shape, entry.range))

    def plain(self, name: str, key: str) -> Weight:
        """A plain tensor, stored under `key`."""
        part = self.take(name, key)
        return lift(Weight(None, {PLAIN: part}, {}, part.dtype, part.shape), self._read, keep=self._keep)

    def weight(self, name: str) -> Weight:
        """One weight, by its entry in the metadata."""
        text = self.header.metadata.get(name, "")
        if text not in self._entries:
            self._entries[text] = json_object(self.header.metadata, name, required=True)
        entry = self._entries[text]
        kind = entry.get("_type")
        old = self._older_key(name) if self._older else None
        if kind == "Tensor":
            return self.plain(name, old or name)
        if isinstance(kind, str) and kind.startswith(KEPT_PREFIX):
            return lift(self._unchanged(name, entry, ""), self._read, keep=self._keep)
        schema = BY_SHORT_NAME.get(kind) if isinstance(kind, str) else None
        given = entry.get("_data")
        if schema is None or not isinstance(given, dict) or not isinstance(kind, str):
            raise Refused(f"has class {kind!r}, which depickle does not know", path=name)
        if old is not None:  # it has no list of parts
            keys = {p.name: f"{name}:{p.name}" for p in schema.parts if f"{name}:{p.name}" in self.header.tensors}
        else:
            listed = texts(entry.get("_tensor_data_names"))
            keys = {part: part_name(name, part) for part in listed}
            if len(keys) != len(listed):
                raise Malformed("names one of its parts twice")
        parts = {part: self.take(name, key) for part, key in keys.items()}
        if not parts:
            raise Malformed("has no parts")
        if text not in self._attributes:
            self._attributes[text] = {key: from_json(value) for key, value in given.items()}
        attributes = self._attributes[text]
        first = parts.get("qdata") or next(iter(parts.values()))
        found = Weight(kind, parts, attributes, first.dtype, first.shape, described=True)
        return self._settled(text, found, parts)

    def _older_key(self, name: str) -> str | None:
        return next((key for key in (f"{name}:_data", f"{name}:qdata") if key in self.header.tensors), None)

    def _settled(self, text: str, found: Weight, parts: Mapping[str, Part]) -> Weight:
        """Today's spelling of a weight. Those with one entry and parts of the same dtypes and shapes settle alike: the
        first one's form serves them all, if its parts came out as they were."""
        alike = (text, *((name, part.dtype.name, part.shape) for name, part in parts.items()))
        form = self._forms.get(alike)
        if form is not None:
            again: Mapping[str, Part | Weight] = {name: parts[name] for name in form.parts}
            return Weight(form.kind, again, form.attributes, form.dtype, form.shape, form.facts)
        made = lift(found, self._read, keep=self._keep)
        if found.kind in BY_NAME_CURRENT and all(part is parts.get(name) for name, part in made.parts.items()):
            self._forms[alike] = made
        return made

    def _unchanged(self, name: str, entry: Mapping[str, Json], path: str) -> Weight:
        """A weight that was stored as it stood; `path` leads to it from the outermost one."""
        if path.count(".") > MAX_DEPTH:
            raise Refused(f"nests more than {MAX_DEPTH} tensor subclasses", path=name)
        kind, given, dtype, origin = (entry.get(key) for key in ("_type", "_data", "_dtype", "_class"))
        known = isinstance(origin, str) and isinstance(dtype, str) and origin in BY_CLASS and dtype in BY_NAME
        if not known or not isinstance(given, dict) or kind != KEPT_PREFIX + BY_CLASS[str(origin)].name:
            raise Refused(f"has class {origin!r}, which depickle does not know", path=name)
        parts: dict[str, Part | Weight] = {}
        attributes: dict[str, Json] = {}
        for key, value in given.items():
            if isinstance(value, dict) and str(value.get("_type")).startswith(KEPT_PREFIX):
                parts[key] = self._unchanged(name, value, f"{path}{key}.")
            else:
                attributes[key] = from_json(value)
        for part in texts(entry.get("_tensor_data_names")):
            parts[part] = self.take(name, part_name(name, path + part))
        shape = integers(entry.get("_shape"), "a shape")
        return Weight(BY_CLASS[str(origin)].name, parts, attributes, BY_NAME[str(dtype)], shape, origin=str(origin))


def json_object(meta: Mapping[str, Json], key: str, *, required: bool = False) -> dict[str, Json]:
    """A metadata value that is the JSON of an object; {} where there is none."""
    text = meta.get(key)
    if text is None and not required:
        return {}
    value = text
    if isinstance(text, str):
        try:
            value = strict_json(text)
        except ValueError as error:
            raise Malformed(f"the header's {show(key)} is not JSON") from error
    if not isinstance(value, dict):
        raise Malformed(f"the header's {show(key)} is not there or is no object")
    return value


def json_names(meta: Mapping[str, str], key: str) -> list[str]:
    """A metadata value that is the JSON of a list of names, none of them twice; [] where there is none."""
    if key not in meta:
        return []
    try:
        names = texts(strict_json(meta[key]))
    except ValueError as error:
        raise Malformed(f"the header's {key} is not JSON") from error
    if len(set(names)) != len(names):
        raise Malformed(f"the header's {key} names something twice")
    return names


def texts(value: Json) -> list[str]:
    """A list of texts."""
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise Malformed("a list of names is no list of texts")
    return value


def json_pairs(value: Json) -> dict[str, str]:
    """An object from names to names."""
    if not isinstance(value, dict) or not all(isinstance(item, str) for item in value.values()):
        raise Malformed(f"the header's {TIES} is no object of names")
    return value
