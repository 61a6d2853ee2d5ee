"""[extra `torch`] The judge that shares no code with the converter: real torch reads the source, the safetensors
package and torchao the result, and the live objects are compared class by class.

`--check-with torch`. The source goes through `torch.load(weights_only=True)`; the result through torchao's own
`unflatten_tensor_state_dict`, or, where the installed release's reader does not know a class or a value, through
`depickle.torch.load`. Compared are names, classes, attributes, every part's dtype, shape and bytes, and the
dequantised values where both sides have them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

import safetensors
import torch

from ..checkpoint import Checkpoint
from ..errors import Mismatch, Refused, located, show
from ..outputs.names import KEPT_PREFIX, METADATA, NAMES, ROOT_PREFIX, ROOTS, TAG, TIES, part_name
from ..statedict import NESTED_KEYS
from .library import Library, quiet
from .live import json_of
from .loading import load
from .native import unflattened
from .sides import Side, is_nothing, plain, record, side_of
from .sources import load_source

_MAX_FINDINGS: Final = 50


class TorchJudge:
    """Compares an output with its source by what torch and torchao make of them. A context manager; holds nothing."""

    def __init__(self) -> None:
        self._library = Library()
        if self._library.version is None:
            raise Refused("--check-with torch needs torchao, which is not installed: pip install 'depickle[torch]'")
        self.name = f"depickle, torch {torch.__version__}, torchao {self._library.version}"

    def __enter__(self) -> TorchJudge:
        return self

    def __exit__(self, *exc: object) -> None:
        pass

    def check(self, checkpoint: Checkpoint, path: str) -> None:
        """Raise Mismatch if the live objects differ, Refused if torch does not read the source."""
        with located(file=checkpoint.source.name), quiet():
            findings: list[str] = []
            with Result(path) as result:
                source = self._source(checkpoint, findings, result)
                for name in {**dict.fromkeys(source), **dict.fromkeys(result.names)}:
                    if name not in source or name not in result.names:
                        where = "the output" if name not in source else "the source"
                        findings.append(f"{show(name)}: is in {where} alone")
                        continue
                    findings += [f"{show(name)}: {text}" for text in _compare(source[name], result, name)]
            if findings:
                raise Mismatch(f"torch sees another state dict: {findings[0]}", findings=findings[:_MAX_FINDINGS])

    def _source(self, checkpoint: Checkpoint, findings: list[str], result: Result) -> Mapping[str, torch.Tensor]:
        if checkpoint.container == "safetensors":
            loaded: dict[str, torch.Tensor] = load(checkpoint.source.path)["state_dict"]
            return loaded
        found = load_source(checkpoint, self._library)
        tag = found.get("format") if isinstance(found, dict) else None
        tag = tag if isinstance(tag, str) and "state_dict" in found else None
        if tag != result.metadata.get(TAG):
            findings.append(f"format: torch loads {tag!r}, the output says {result.metadata.get(TAG)!r}")
        if tag is not None:
            stored = json.loads(result.metadata.get(METADATA, "{}"))
            if json.dumps(json_of(found.get("metadata") or {}, "metadata")) != json.dumps(stored):
                findings.append("metadata: differs")
            tagged: dict[str, torch.Tensor] = found["state_dict"]
            return tagged
        return _state_dict(found, set(checkpoint.weights))


def _state_dict(found: Mapping[str, Any], names: set[str]) -> Mapping[str, torch.Tensor]:
    """The state dict of an untagged file: the top, or the one of the dicts in it that has these names."""
    keys = [key for key in NESTED_KEYS if key in found] + list(found)
    for candidate in (found, *(found[key] for key in keys)):
        if isinstance(candidate, dict) and set(candidate) == names:
            return candidate
    raise Refused("torch finds no state dict with these names in it")


class Result:
    """The output as the safetensors package opens it, its weights as torchao's reader makes them."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._file: Any = safetensors.safe_open(path, framework="pt")

    def __enter__(self) -> Result:
        self._file.__enter__()
        self.metadata: dict[str, str] = self._file.metadata() or {}
        ties = json.loads(self.metadata.get(TIES, "{}"))
        self.dropped: dict[str, str] = ties.get("dropped", {})
        listed = json.loads(self.metadata[NAMES]) if NAMES in self.metadata else list(self._file.keys())
        self.roots = set(json.loads(self.metadata.get(ROOTS, "[]")))
        self.names = {*listed, *self.roots, *self.dropped}
        return self

    def __exit__(self, *exc: object) -> None:
        self._file.__exit__(None, None, None)

    def entry(self, name: str) -> dict[str, Any]:
        """What the header says of a name."""
        found: dict[str, Any] = json.loads(self.metadata[name]) if name in self.metadata else {"_type": "Tensor"}
        return found

    def tensor(self, key: str) -> torch.Tensor:
        """A tensor by its name in the file. Raises Refused if it is not there."""
        try:
            found: torch.Tensor = self._file.get_tensor(key)
        except safetensors.SafetensorError as error:
            raise Refused(f"the safetensors package does not give {show(key)}: {show(str(error))}") from error
        return found

    def live(self, name: str) -> torch.Tensor | None:
        """A weight as torchao's own reader rebuilds it, else as `depickle.torch.load` does; None if this release has
        no place for what the header says of it."""
        entry = self.entry(name)
        if entry["_type"] == "Tensor":
            return self.tensor(ROOT_PREFIX + name if name in self.roots else name)
        parts = {part: self.tensor(part_name(name, part)) for part in entry["_tensor_data_names"]}
        try:
            return unflattened(parts, json.dumps(entry))
        except Refused:
            pass
        try:
            found: torch.Tensor = load(self._path, names=[name])["state_dict"][name]
        except Refused:
            return None
        return found if len(side_of(found).parts) == len(parts) else None  # an inert part may have been left out


def _compare(mine: torch.Tensor, result: Result, name: str) -> list[str]:
    origin = result.dropped.get(name, name)
    entry = result.entry(origin)
    with located(path=show(name)):
        if str(entry["_type"]).startswith(KEPT_PREFIX):
            return _differences(_as_stored(mine), _stored(result, origin, entry, ""))
        theirs = result.live(origin)
        if theirs is None:
            return _differences(side_of(mine), _described(result, origin, entry))
        return _differences(side_of(mine), side_of(theirs)) or _values_differ(mine, theirs)


def _described(result: Result, name: str, entry: Mapping[str, Any]) -> Side:
    """A weight by its entry in the header alone, for one that the installed torchao cannot construct."""
    said = {key: _spelled(item) for key, item in entry["_data"].items()}
    parts = {part: result.tensor(part_name(name, part)) for part in entry["_tensor_data_names"]}
    return Side(str(entry["_type"]), parts, {key: item for key, item in said.items() if not is_nothing(item)})


def _differences(mine: Side, theirs: Side) -> list[str]:
    if mine.kind != theirs.kind:
        return [f"torch has a {mine.kind}, the output a {theirs.kind}"]
    findings = []
    for key in {**mine.attributes, **theirs.attributes}:
        if repr(mine.attributes.get(key)) != repr(theirs.attributes.get(key)) and (
            mine.attributes.get(key) != theirs.attributes.get(key)
        ):
            shown = f"{mine.attributes.get(key)!r}, the output {theirs.attributes.get(key)!r}"
            findings.append(f"{key}: torch has {show(shown)}")
    for part in {**mine.parts, **theirs.parts}:
        if part not in mine.parts or part not in theirs.parts:
            findings.append(f"{part or 'tensor'}: is on one side alone")
        else:
            findings += [f"{part or 'tensor'}: {text}" for text in _tensor(mine.parts[part], theirs.parts[part])]
    return findings


def _tensor(mine: torch.Tensor, theirs: torch.Tensor) -> list[str]:
    if (mine.dtype, mine.shape) != (theirs.dtype, theirs.shape):
        return [f"torch has {mine.dtype}{list(mine.shape)}, the output {theirs.dtype}{list(theirs.shape)}"]
    return [] if torch.equal(_bytes(mine), _bytes(theirs)) else ["differs"]


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)


def _values_differ(mine: Any, theirs: Any) -> list[str]:
    """Compare dequantised values, where both can be had."""
    values = [_values(mine), _values(theirs)]
    if values[0] is None or values[1] is None:
        return []
    found = _tensor(values[0], values[1])
    return [f"dequantised: {text}" for text in found]


def _values(weight: Any) -> torch.Tensor | None:
    weight = getattr(weight, "original_weight_tensor", weight)
    if not hasattr(weight, "__tensor_flatten__"):
        return None
    try:
        values: torch.Tensor = weight.dequantize()
    except (NotImplementedError, AttributeError, RuntimeError, AssertionError, TypeError, ValueError):
        return None  # a stand-in, a class without a formula, or an older spelling in a newer class
    return values


# --- weights that were kept as they stood ---------------------------------------------------------------------------


def _as_stored(value: Any) -> Side:
    """A live weight's state, with the weights within it by dotted path."""
    made = Side(type(value).__name__, {}, {})
    for key, item in vars(value).items():
        if type(item) in {torch.Tensor, torch.nn.Parameter}:
            made.parts[key] = item
        elif isinstance(item, torch.Tensor):
            inner = _as_stored(item)
            made.parts |= {f"{key}.{name}": part for name, part in inner.parts.items()}
            made.attributes |= {f"{key}.{name}": said for name, said in inner.attributes.items()}
        elif key != "_is_param" and not is_nothing(plain(item)):
            made.attributes[key] = plain(item)
    made.attributes |= {"shape": list(value.shape), "dtype": str(value.dtype)}
    return made


def _stored(result: Result, name: str, entry: Mapping[str, Any], path: str) -> Side:
    made = Side(str(entry["_type"]).removeprefix(KEPT_PREFIX), {}, {})
    for key, item in entry["_data"].items():
        if isinstance(item, dict) and str(item.get("_type")).startswith(KEPT_PREFIX):
            inner = _stored(result, name, item, f"{path}{key}.")
            made.parts |= {f"{key}.{part}": tensor for part, tensor in inner.parts.items()}
            made.attributes |= {f"{key}.{said}": value for said, value in inner.attributes.items()}
        elif not is_nothing(_spelled(item)):
            made.attributes[key] = _spelled(item)
    for part in entry["_tensor_data_names"]:
        made.parts[part] = result.tensor(part_name(name, path + part))
    made.attributes |= {"shape": entry["_shape"], "dtype": f"torch.{entry['_dtype']}"}
    return made


def _spelled(value: Any) -> Any:
    """A header's JSON in the form of `plain`."""
    if isinstance(value, list):
        return [_spelled(item) for item in value]
    if not isinstance(value, dict):
        return value
    if set(value) != {"_type", "_data"}:
        return {key: _spelled(item) for key, item in value.items()}
    name, data = value["_type"], value["_data"]
    if name == "torch.dtype":
        return f"torch.{data}"
    if name == "function":
        return data
    if isinstance(data, dict):
        return record(name, {key: _spelled(item) for key, item in data.items()})
    return [name, data]
