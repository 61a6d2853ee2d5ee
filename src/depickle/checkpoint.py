"""A file becomes a checkpoint: its tag, its metadata as JSON, its weights in today's classes, and what has to be said about it.

The one place where archive, machine, tensors and weights meet. What a file names is judged here, on inert values: every global that is not in
the tables is refused with its offset, wherever it stands and whatever was done with it. `SPEC` of the tags: FORMATS in docs/format.md.
Reading a checkpoint reads its pickle and, for some v1 weights, small zero points; no other tensor byte.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from .archive import Archive, Record, open_archive
from .dtypes import NAME_ONLY
from .errors import Error, Malformed, Refused, located, show
from .inert import Call, Global, Inert, PersistentId
from .lift import Bytes, lift
from .ranges import FileSource
from .schemas import BY_CLASS, DTYPE_GLOBALS, ENUM_BY_CLASS, FUNCTIONS, RECORD_BY_CLASS, Json
from .strided import blocks
from .tensors import OTHER_TENSORS, REBUILD, STORAGE_CLASSES, Storages, TensorView, describe, is_tensor
from .vm import LIMITS, Limits, Program, run
from .weights import WRAPPER, Weight, read_weight

TRANSFORMER_V1: Final = "unsloth_prequant_transformer_state_dict_v1"
TRANSFORMER_V2: Final = "unsloth_prequant_transformer_state_dict_v2"
TRANSFORMER_V3: Final = "unsloth_prequant_transformer_state_dict_v3"
TAGS: Final[Mapping[str, str]] = {
    TRANSFORMER_V1: "transformer",
    TRANSFORMER_V2: "transformer",
    TRANSFORMER_V3: "transformer",
    "unsloth_prequant_text_encoder_state_dict_v1": "text_encoder",
    "unsloth_prequant_text_encoder_int8_convrot_v1": "text_encoder",
}
# What the metadata of each denoiser tag must declare, of these two; the others it must not.
_DECLARES: Final[Mapping[str, frozenset[str]]] = {
    TRANSFORMER_V1: frozenset(),
    TRANSFORMER_V2: frozenset({"activation_rotation"}),
    TRANSFORMER_V3: frozenset({"nvfp4_policy"}),
}
NESTED_KEYS: Final = ("state_dict", "model", "module", "model_state_dict")

ACCEPTED: Final = frozenset(
    {
        "collections.OrderedDict",
        "torch.Size",
        "torch.Tensor",
        "torch.device",
        "torch.nn.parameter.Parameter",
        "torch.serialization._get_layout",
        "torch.torch_version.TorchVersion",
        "builtins.getattr",  # an enum member by name, on some Pythons: read as data
        "__builtin__.getattr",
        WRAPPER,
    }
    | REBUILD
    | OTHER_TENSORS
    | STORAGE_CLASSES
    | DTYPE_GLOBALS
    | {f"torch.{name}" for name in NAME_ONLY}
    | set(BY_CLASS)
    | set(ENUM_BY_CLASS)
    | set(RECORD_BY_CLASS)
    | FUNCTIONS
)
_HINTS: Final = (
    ("numpy", "a numpy array or scalar is inside: save it as a torch tensor or a Python number"),
    ("torch.nn.modules", "a whole module was pickled: save its state_dict() instead"),
    ("__torch__", "a TorchScript module: save its state_dict() instead"),
    ("torch.jit", "a TorchScript module: save its state_dict() instead"),
    ("torch.optim", "an optimizer was pickled: save its state_dict() instead"),
)
_DEPTH: Final = 64  # of the metadata; real ones nest three
_NODES: Final = 1_000_000  # values in the metadata, shared ones counted each time they are reached


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What a file holds, as values.

    `weights` are in the source's order. `ties` maps an alias to the name whose bytes it shares; a source that left an alias out has it in
    `dropped`. `sealed`: a safetensors file with our header digest, `damage`: what is wrong with that header. `facts` are those of `int8_v1` if they are true of every int8 weight. `classes` are the names under which the file knew the
    weights' classes. `normalised` lists what JSON spells differently, `warnings` what a reader of the result should know.
    """

    source: FileSource
    container: str
    format: str | None
    metadata: Mapping[str, Json]
    weights: Mapping[str, Weight]
    records: tuple[Record, ...] = ()
    ties: Mapping[str, str] = field(default_factory=dict)
    dropped: Mapping[str, str] = field(default_factory=dict)
    facts: Mapping[str, Json] | None = None
    classes: Mapping[str, str] = field(default_factory=dict)
    globals: tuple[Global, ...] = ()
    provenance: Json = None
    sealed: bool = False
    damage: tuple[str, ...] = ()
    normalised: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        """`transformer`, `text_encoder` or `state_dict`."""
        return TAGS[self.format] if self.format is not None else "state_dict"

    @property
    def activation(self) -> str:
        """`identical`, or `same kind, torchao's own arithmetic` where a v1 class's activation quantisation is done by today's class."""
        changed = any(
            "LinearActivationQuantizedTensor" in chain and "Float8AQT" not in chain for chain in self.classes.values()
        )
        return "same kind, torchao's own arithmetic" if changed else "identical"

    @property
    def quantized(self) -> int:
        return sum(weight.kind is not None for weight in self.weights.values())

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(self, *exc: object) -> None:
        self.source.close()


def read_checkpoint(
    source: FileSource, *, key: str | None = None, keep_unsupported: bool = False, limits: Limits = LIMITS
) -> Checkpoint:
    """Read a torch.save file. Raises Malformed or Refused; `key` names the state dict in a nested file."""
    with located(file=source.name):
        archive = open_archive(source)
        program = _program(source, archive, limits)
        with located(record=archive.pickle.name.rpartition("/")[2]):
            _check_globals(program, only_foreign=True)
        root = _find_root(program.value, key)
        storages = Storages({name: r.range for name, r in archive.storages.items()}, archive.big_endian, {})
        normaliser = _Normaliser()
        metadata = normaliser.mapping(root.metadata)
        notes = [*archive.notes, *root.notes]
        classes: dict[str, str] = {}
        weights = _read_weights(root, storages, notes, classes, _zero_reader(source), keep_unsupported)
        with located(record=archive.pickle.name.rpartition("/")[2]):
            _check_globals(program, only_foreign=False)
        checkpoint = Checkpoint(
            source,
            archive.kind,
            root.tag,
            metadata,
            weights,
            archive.records,
            ties=find_ties(weights),
            facts=shared_facts(weights),
            classes=classes,
            globals=program.globals,
            normalised=tuple(normaliser.changed),
            warnings=tuple(notes),
        )
        check_tag(checkpoint)
        return checkpoint


def _program(source: FileSource, archive: Archive, limits: Limits) -> Program:
    where = archive.pickle.name.rpartition("/")[2]
    with located(record=where):
        if archive.pickle.range.length > limits.pickle_bytes:
            raise Refused(f"the pickle has {archive.pickle.range.length} bytes, over the limit of {limits.pickle_bytes}")
        data = source.read(archive.pickle.range.offset, archive.pickle.range.length)
        program = run(data, 0, limits)
        if program.end != len(data):
            raise Malformed(f"{len(data) - program.end} bytes follow STOP", offset=program.end)
    return program


def _check_globals(program: Program, *, only_foreign: bool) -> None:
    """Refuse the first global that is in no table. The first pass leaves torch's own to the walk, which knows the weight's name."""
    unknown = [used for used in program.globals if used.full not in ACCEPTED]
    hints = [text for used in unknown for prefix, text in _HINTS if (used.module + ".").startswith(prefix + ".")]
    for used in unknown:
        if only_foreign and used.module.split(".")[0] in ("torch", "torchao"):
            continue
        hint = f": {hints[0]}" if hints else ""
        raise Refused(f"GLOBAL {show(used.full)} is not accepted{hint}", offset=used.offset)


# --- which part of the file is the state dict ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Root:
    tag: str | None
    metadata: Mapping[Inert, Inert]
    state_dict: dict[Inert, Inert]
    notes: tuple[str, ...]


def _as_dict(value: Inert, notes: list[str] | None = None) -> dict[Inert, Inert] | None:
    """A dict, or an OrderedDict as state_dict() makes them; None for anything else."""
    if type(value) is dict:
        return value
    if type(value) is not Call or value.name != "collections.OrderedDict" or value.kwargs or value.items:
        return None
    if any(type(state) is not dict or set(state) - {"_metadata"} for state in value.states):
        return None
    if value.states and notes is not None:
        notes.append("the state dict's _metadata (module versions) is not carried")
    if value.args in ((), ([],)):
        return value.entries or {}
    pairs = value.args[0] if len(value.args) == 1 and type(value.args[0]) is list else [None]
    if all(type(pair) in (list, tuple) and len(pair) == 2 and type(pair[0]) is str for pair in pairs):
        return {**dict(pairs), **(value.entries or {})}
    return None


def _find_root(value: Inert, key: str | None) -> _Root:
    top = _as_dict(value)
    if top is None:
        if is_tensor(value):
            raise Refused("holds a single tensor, not a state dict: save a dict that names it")
        raise Refused(f"holds {describe(value)}, not a state dict")
    tag = top.get("format")
    if tag is not None and not is_tensor(tag) and key is None:
        return _tagged(top, tag)
    notes: list[str] = []
    if key is not None:
        state_dict = _as_dict(top.get(key), notes)
        if state_dict is None:
            raise Refused(f"has no state dict under {key!r}; it has {_names(top)}")
    else:
        key, state_dict = _untagged(top, value, notes)
    if key is not None:
        beside = [name for name in top if name != key]
        if beside:
            notes.append(f"beside the state dict {key!r}, not carried: {', '.join(show(str(n), 40) for n in beside[:20])}")
    return _Root(None, {}, state_dict, tuple(notes))


def _names(top: Mapping[Inert, Inert]) -> str:
    return ", ".join(repr(name) if type(name) is str else str(type(name).__name__) for name in list(top)[:8]) or "nothing"


def _tagged(top: Mapping[Inert, Inert], tag: Inert) -> _Root:
    if type(tag) is not str or tag not in TAGS:
        shown = repr(tag) if type(tag) in (str, int, float, bool) else describe(tag)
        raise Refused(f"has the format tag {shown}, which depickle does not know")
    if "state_dict" not in top:
        raise Malformed(f"has the format tag {tag!r} but no state_dict")
    notes: list[str] = []
    state_dict = _as_dict(top["state_dict"], notes)
    if state_dict is None:
        raise Malformed(f"state_dict is {describe(top['state_dict'])}, expected a dict")
    metadata = {} if top.get("metadata") is None else _as_dict(top["metadata"])
    if metadata is None:
        raise Malformed(f"metadata is {describe(top['metadata'])}, expected a dict")
    beside = [name for name in top if name not in ("format", "metadata", "state_dict")]
    if beside:
        notes.append(f"beside the state dict, not carried: {', '.join(show(str(name), 40) for name in beside[:20])}")
    return _Root(tag, metadata, state_dict, tuple(notes))


def _untagged(top: dict[Inert, Inert], value: Inert, notes: list[str]) -> tuple[str | None, dict[Inert, Inert]]:
    if any(is_tensor(item) for item in top.values()):
        _as_dict(value, notes)
        return None, top
    found = [name for name in NESTED_KEYS if any(is_tensor(item) for item in (_as_dict(top.get(name)) or {}).values())]
    if len(found) > 1:
        raise Refused(f"has state dicts under {' and '.join(map(repr, found))}: choose one with --key")
    if found:
        return found[0], _as_dict(top[found[0]], notes) or {}
    for name, item in top.items():
        if type(item) is PersistentId:
            raise Refused(f"is {describe(item)}", path=show(str(name)))
    raise Refused(f"has no tensors at the top, nor under {', '.join(NESTED_KEYS)}; it has {_names(top)}: name it with --key")


# --- weights -----------------------------------------------------------------------------------------------------------------


def _read_weights(
    root: _Root, storages: Storages, notes: list[str], classes: dict[str, str], read: Bytes, keep: bool
) -> dict[str, Weight]:
    weights: dict[str, Weight] = {}
    for name in list(root.state_dict):
        value = root.state_dict.pop(name)  # its inert form is several times the weight's size: let it go at once
        if type(name) is not str:
            raise Refused(f"the state dict has a key of type {type(name).__name__}, expected text")
        own: list[str] = []
        try:
            found = read_weight(value, storages, own)
            weights[name] = lift(found, read, keep=keep)
        except Error as error:
            error.path = name if error.path is None else f"{name}.{error.path}"
            raise
        if found.kind is not None:
            classes[name] = _class_chain(found)
        notes.extend(f"{show(name)}: {note}" for note in own)
    if not weights:
        raise Refused("the state dict is empty")
    return weights


def _class_chain(weight: Weight) -> str:
    """`LinearActivationQuantizedTensor > AffineQuantizedTensor > PlainAQTTensorImpl`."""
    inner = next((part for part in weight.parts.values() if isinstance(part, Weight)), None)
    return str(weight.kind) if inner is None else f"{weight.kind} > {_class_chain(inner)}"


def _zero_reader(source: FileSource) -> Bytes:
    def read(view: TensorView) -> Iterator[bytes | bytearray]:
        yield from blocks(view.strided, source)

    return read


def find_ties(weights: Mapping[str, Weight]) -> dict[str, str]:
    """Map each name that has the same class, attributes and bytes (storage, offset, shape, stride, dtype) as an earlier one to that one.

    If a head (`lm_head.weight`) comes first it is the source like any other. Empty tensors never tie.
    """
    by_place: dict[tuple[int, int], list[str]] = {}
    ties: dict[str, str] = {}
    for name, weight in weights.items():
        leaves = weight.leaves()
        found = next((leaf for leaf in leaves.values() if leaf.nbytes), None)
        if found is None:
            continue
        rivals = by_place.setdefault((found.view.storage.offset, found.view.offset), [])
        for rival in rivals:
            other = weights[rival]
            if (weight.kind, weight.attributes, leaves) == (other.kind, other.attributes, other.leaves()):
                ties[name] = rival
                break
        else:
            rivals.append(name)
    return ties


def shared_facts(weights: Mapping[str, Weight]) -> Mapping[str, Json] | None:
    """The facts of int8 from torchao v1, if every int8 weight has them and they are the same.

    Raises Refused where some int8 weights have facts and others have not: a reader could not tell which class to rebuild.
    """
    int8 = {name: weight for name, weight in weights.items() if weight.kind == "Int8Tensor"}
    known = [weight.facts for weight in int8.values() if weight.facts is not None]
    if known and len(known) != len(int8):
        other = next(name for name, weight in int8.items() if weight.facts is None)
        raise Refused(f"{len(known)} of {len(int8)} int8 weights come from torchao v1's dynamic int8, {show(other)} does not")
    return known[0] if known and all(facts == known[0] for facts in known) else None


def check_tag(checkpoint: Checkpoint) -> None:
    """Raise Refused unless tag, metadata and weights agree."""
    tag = checkpoint.format
    if tag in _DECLARES:
        declared = {name for name in ("activation_rotation", "nvfp4_policy") if checkpoint.metadata.get(name)}
        if declared != _DECLARES[tag]:
            wanted = " and ".join(sorted(_DECLARES[tag])) or "neither activation_rotation nor nvfp4_policy"
            found = " and ".join(sorted(declared)) or "neither"
            raise Refused(f"the tag {tag} goes with metadata that declares {wanted}; it declares {found}")
    if tag is not None and TAGS[tag] == "text_encoder":
        for name, weight in checkpoint.weights.items():
            if weight.kind is not None:
                raise Refused(f"is a {weight.kind}: a text encoder holds plain tensors only", path=name)


# --- metadata ----------------------------------------------------------------------------------------------------------------


class _Normaliser:
    """Inert metadata to JSON, with a list of what JSON spells differently."""

    def __init__(self) -> None:
        self.changed: list[str] = []
        self._nodes = 0

    def mapping(self, value: Mapping[Inert, Inert], path: str = "metadata", depth: int = 0) -> dict[str, Json]:
        made: dict[str, Json] = {}
        for key, item in value.items():
            name = self._key(key, path)
            if name in made:
                raise Refused(f"has two keys that JSON spells {name!r}", path=path)
            made[name] = self._value(item, f"{path}.{name}", depth + 1)
        return made

    def _key(self, key: Inert, path: str) -> str:
        if type(key) is str:
            return key
        if key is None or type(key) in (bool, int, float):
            name = json.dumps(key)
        else:
            raise Refused(f"has {describe(key)} as a key, which JSON cannot hold", path=path)
        self.changed.append(f"{path}: key {key!r} as {name!r}")
        return name

    def _value(self, value: Inert, path: str, depth: int) -> Json:
        self._nodes += 1
        if depth > _DEPTH or self._nodes > _NODES:
            raise Refused(f"nests deeper than {_DEPTH} or has more than {_NODES} values", path=path)
        if value is None or type(value) in (bool, int, str):
            return value  # type: ignore[no-any-return]
        if type(value) is float:
            return value if math.isfinite(value) else self._as(str(value), path, "a non-finite float")
        inner = _as_dict(value)
        if inner is not None:
            return self.mapping(inner, path, depth)
        if type(value) in (list, tuple):
            if type(value) is tuple:
                self.changed.append(f"{path}: tuple as list")
            return [self._value(item, f"{path}[{i}]", depth + 1) for i, item in enumerate(value)]
        return self._torch_value(value, path, depth)

    def _torch_value(self, value: Inert, path: str, depth: int) -> Json:
        name = value.name if type(value) is Call else value.full if type(value) is Global else ""
        if type(value) is Global and (name in DTYPE_GLOBALS or name.removeprefix("torch.") in NAME_ONLY):
            return self._as(name, path, "a dtype")
        if type(value) is Call and not (value.states or value.items or value.entries or value.kwargs):
            args = value.args
            if name == "torch.torch_version.TorchVersion" and len(args) == 1 and type(args[0]) is str:
                return self._as(args[0], path, "a TorchVersion")
            if name == "torch.device" and args and all(type(arg) in (str, int) for arg in args):
                return self._as(":".join(map(str, args)), path, "a device")
            if name == "torch.Size" and len(args) == 1 and type(args[0]) in (tuple, list):
                self.changed.append(f"{path}: torch.Size as list")
                return [self._value(item, f"{path}[{i}]", depth + 1) for i, item in enumerate(args[0])]
        if is_tensor(value):
            raise Refused("is a tensor, which JSON cannot hold", path=path)
        raise Refused(f"is {describe(value)}, which JSON cannot hold", path=path)

    def _as(self, text: str, path: str, what: str) -> str:
        self.changed.append(f"{path}: {what} as {text!r}")
        return text
