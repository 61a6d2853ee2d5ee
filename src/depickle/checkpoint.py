"""A file becomes a checkpoint: its tag, its metadata as JSON, its weights in today's classes, and what has to be said
about it.

The one place where archive, machine, tensors and weights meet. What a file names is judged here, on inert values:
every global that is not in the tables is refused with its offset, wherever it stands and whatever was done with it.
Reading a checkpoint reads its pickle and, for some v1 weights, small
zero points; no other tensor byte.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from .archive import Archive, Record, open_archive
from .attributes import GETATTR, is_enum_access
from .dtypes import NAME_ONLY
from .errors import Error, Malformed, Refused, located, show
from .harmful import is_harmful
from .inert import Global
from .lift import Bytes, lift
from .metadata import Normaliser
from .ranges import FileSource
from .schemas import BY_CLASS, DTYPE_GLOBALS, ENUM_BY_CLASS, FUNCTIONS, RECORD_BY_CLASS, Json
from .statedict import TAGS, TRANSFORMER_V1, TRANSFORMER_V2, TRANSFORMER_V3, Root, find_root
from .strided import blocks
from .tensors import OTHER_TENSORS, REBUILD, STORAGE_CLASSES, Storages, TensorView, check_persistent_id
from .twin import Twin
from .vm import LIMITS, Heard, Limits, Program, run
from .weights import WRAPPER, Weight, read_weight

# What the metadata of each denoiser tag must declare, of these two; the others it must not.
_DECLARES: Final[Mapping[str, frozenset[str]]] = {
    TRANSFORMER_V1: frozenset(),
    TRANSFORMER_V2: frozenset({"activation_rotation"}),
    TRANSFORMER_V3: frozenset({"nvfp4_policy"}),
}
ACCEPTED: Final = frozenset(
    {
        "collections.OrderedDict",
        "torch.Size",
        "torch.Tensor",
        "torch.device",
        "torch.nn.parameter.Parameter",
        "torch.serialization._get_layout",
        "torch.torch_version.TorchVersion",
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


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What a file holds, as values.

    `weights` are in the source's order. `ties` maps an alias to the name whose bytes it shares; a source that left an
    alias out has it in `dropped`. `sealed`: a safetensors file with our header digest, `damage`: what is wrong with
    that header. `facts` are those of `int8_v1` if they are true of every int8 weight. `classes` are the names under
    which the file knew the weights' classes. `normalised` lists what JSON spells differently, `warnings` what a
    reader of the result should know. `twin` is what a ComfyUI twin says of itself, whose weights are the plain tensors
    of its file.
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
    twin: Twin | None = None

    @property
    def kind(self) -> str:
        """`transformer`, `text_encoder` or `state_dict`."""
        return TAGS[self.format] if self.format is not None else "state_dict"

    @property
    def activation(self) -> str:
        """`identical`, or `same kind, torchao's own arithmetic` where a v1 class's activation quantisation is done by
        today's class."""
        changed = any(
            "LinearActivationQuantizedTensor" in chain and "Float8AQT" not in chain for chain in self.classes.values()
        )
        return "same kind, torchao's own arithmetic" if changed else "identical"

    @property
    def quantized(self) -> int:
        """How many weights are of a quantised class."""
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
            accessors = _accessors(source, archive, program)
            _check_globals(program, accessors, only_foreign=True)
            for used in program.persistent_ids:
                check_persistent_id(used)
        root = find_root(program.value, key)
        storages = Storages({name: r.range for name, r in archive.storages.items()}, archive.big_endian, {})
        normaliser = Normaliser()
        metadata = normaliser.mapping(root.metadata)
        notes = [*archive.notes, *root.notes]
        classes: dict[str, str] = {}
        weights = _read_weights(root, storages, notes, classes, _zero_reader(source), keep_unsupported)
        with located(record=archive.pickle.name.rpartition("/")[2]):
            _check_globals(program, accessors, only_foreign=False)
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
            raise Refused(
                f"the pickle has {archive.pickle.range.length} bytes, over the limit of {limits.pickle_bytes}"
            )
        data = source.read(archive.pickle.range.offset, archive.pickle.range.length)
        program = run(data, 0, limits)
        if program.end != len(data):
            raise Malformed(f"{len(data) - program.end} bytes follow STOP", offset=program.end)
    return program


def _accessors(source: FileSource, archive: Archive, program: Program) -> frozenset[str]:
    """getattr, if the file names it and every one of its calls, used or thrown away, reads a member of an enum that
    is in the tables."""
    named = frozenset(used.full for used in program.globals) & GETATTR
    if not named:
        return named
    heard = Heard()
    run(source.read(archive.pickle.range.offset, archive.pickle.range.length), 0, LIMITS, heard)
    calls = [call for call in heard.calls if call.name in GETATTR]
    return named if calls and all(map(is_enum_access, calls)) else frozenset()


def _hint(unknown: list[Global]) -> str:
    """What the file is by the look of its globals, and what to do."""
    hints = [text for used in unknown for prefix, text in _HINTS if (used.module + ".").startswith(prefix + ".")]
    return f": {hints[0]}" if hints else ""


def _check_globals(program: Program, accessors: frozenset[str], *, only_foreign: bool) -> None:
    """Refuse the first global that is in no table. The first pass leaves torch's own to the walk, which knows the
    weight's name."""
    unknown = [used for used in program.globals if used.full not in ACCEPTED and used.full not in accessors]
    for used in unknown:
        if only_foreign and used.module.split(".")[0] in ("torch", "torchao"):
            continue
        hint = "" if is_harmful(used.module, used.name) else _hint(unknown)
        raise Refused(f"GLOBAL {show(used.full)} is not accepted{hint}", offset=used.offset)


# --- weights --------------------------------------------------------------------------------------------------------


def _read_weights(
    root: Root, storages: Storages, notes: list[str], classes: dict[str, str], read: Bytes, keep: bool
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
    """Map each name that has the same class, attributes and bytes (storage, offset, shape, stride, dtype) as an
    earlier one to that one.

    If a head (`lm_head.weight`) comes first it is the source like any other. Empty tensors never tie.
    """
    by_place: dict[tuple[TensorView, str | None], list[str]] = {}
    ties: dict[str, str] = {}
    for name, weight in weights.items():
        leaves = weight.leaves()
        found = next((leaf for leaf in leaves.values() if leaf.nbytes), None)
        if found is None:
            continue
        rivals = by_place.setdefault((found.view, weight.kind), [])
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

    Raises Refused where some int8 weights have facts and others have not: a reader could not tell which class to
    rebuild.
    """
    int8 = {name: weight for name, weight in weights.items() if weight.kind == "Int8Tensor"}
    known = [weight.facts for weight in int8.values() if weight.facts is not None]
    if known and len(known) != len(int8):
        other = next(name for name, weight in int8.items() if weight.facts is None)
        raise Refused(
            f"{len(known)} of {len(int8)} int8 weights come from torchao v1's dynamic int8, {show(other)} does not"
        )
    return known[0] if known and all(facts == known[0] for facts in known) else None


def check_tag(checkpoint: Checkpoint) -> None:
    """Raise Refused unless tag, metadata and weights agree."""
    tag = checkpoint.format
    if tag is not None and tag in _DECLARES:
        declared = {name for name in ("activation_rotation", "nvfp4_policy") if checkpoint.metadata.get(name)}
        if declared != _DECLARES[tag]:
            wanted = " and ".join(sorted(_DECLARES[tag])) or "neither activation_rotation nor nvfp4_policy"
            found = " and ".join(sorted(declared)) or "neither"
            raise Refused(f"the tag {tag} goes with metadata that declares {wanted}; it declares {found}")
    if tag is not None and TAGS[tag] == "text_encoder":
        for name, weight in checkpoint.weights.items():
            if weight.kind is not None:
                raise Refused(f"is a {weight.kind}: a text encoder holds plain tensors only", path=name)
