"""The safetensors container: torchao's flattened layout with our keys, and the plain one. `plan` writes it, `index`
reads it.

Normative text: docs/format.md. Names are built from the tree of a weight and never parsed back by prefix. `plan`
takes a checkpoint to a `Layout`; `index` takes a file to the state dict that it describes and holds every tensor in
it to account. They share the dtype table and the spelling of JSON, nothing else; tests hold both against the
safetensors package and torchao's own reader.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

from ..checkpoint import Checkpoint, check_tag
from ..dtypes import DType
from ..errors import Malformed, Refused, located, show
from ..header import Header, encode, entry_json, read_header
from ..layout import Layout, Text
from ..options import Options
from ..ranges import FileSource
from ..schemas import BY_SHORT_NAME, Json
from ..statedict import TAGS
from ..targets import HF, UNSLOTH
from ..weights import PLAIN, Part, Weight
from .files import ALIGNMENT, Provenance, out_file
from .markers import read_twin
from .names import (
    FORMAT,
    HEADER_KEYS,
    KEPT_PREFIX,
    LAYERS,
    METADATA,
    NAMES,
    ORDER,
    PLAIN_SOURCE,
    QUANT,
    ROOT_PREFIX,
    ROOTS,
    SEAL,
    TAG,
    TAGGED_SOURCE,
    TIES,
    TWIN,
    flat_names,
)
from .prose import SCHEMES
from .splitting import file_names, index_name, index_text, split
from .stored import Stored, json_names, json_object, json_pairs

# What readers compare to the letter before they rebuild torchao v1's class (docs/format.md).
FACTS: Final[Mapping[str, Json]] = {
    "act_quant": "_int8_symm_per_token_reduced_range_quant",
    "quant_kwargs": {},
    "zero_point": None,
    "zero_point_domain": "NONE",
    "quant_min": None,
    "quant_max": None,
    "scale_shape": "out",
    "layout": "PlainLayout",
}

_TWIN_NOTE: Final = (
    "the source is a ComfyUI twin: its tensors and markers are carried as they are, the tag and metadata of its own "
    "source are not"
)


def plan(checkpoint: Checkpoint, name: str, provenance: Provenance, options: Options) -> Layout:
    """Plan the file `name`, or several and their index: every part of every weight gets its place. Raises Refused for
    what the layout cannot name.

    Root names of a checkpoint with a tag get a prefix, unless the target is `hf`.
    """
    if checkpoint.format is None and options.target == UNSLOTH:
        raise Refused("has no format tag, which this target's readers look for: leave --target out, or say hf")
    prefixed = checkpoint.format is not None and options.target != HF
    dropped = droppable_ties(checkpoint) if options.drop_tied_copies else dict(checkpoint.dropped)
    kept = {key: weight for key, weight in checkpoint.weights.items() if key not in dropped}
    flat, owners = _flatten(kept, ROOT_PREFIX if prefixed else "")
    if checkpoint.format is None:
        provenance = replace(provenance, int8_source=int8_source(checkpoint))
    metadata = _metadata(checkpoint, kept, dropped, provenance, prefixed=prefixed)
    sizes = {key: sum(part.nbytes for part in weight.leaves().values()) for key, weight in kept.items()}
    groups = split(sizes, options.max_shard_size)
    if len(groups) == 1:
        return Layout((out_file(name, metadata, flat),))
    if checkpoint.format is not None:
        raise Refused("has a format tag: its readers look for one file, so --max-shard-size does not go with it")
    names = file_names(name, len(groups))
    keys = [[key for owner in group for key in owners[owner]] for group in groups]
    files = tuple(out_file(shard, metadata, {key: flat[key] for key in held}) for shard, held in zip(names, keys))
    text = index_text(dict(zip(names, keys)), sum(sizes.values()))
    return Layout(files, Text(index_name(name), text))


def serves(checkpoint: Checkpoint, options: Options) -> tuple[str, ...]:
    """The targets whose file this is: both, if there is a tag, and no root name that has a prefix or has none."""
    if any(weight.origin is not None for weight in checkpoint.weights.values()):
        return ()
    if checkpoint.format is None:
        return (HF,)
    if any("." not in name for name in checkpoint.weights):
        return (options.target or UNSLOTH,)
    return (UNSLOTH, HF)


def droppable_ties(checkpoint: Checkpoint) -> dict[str, str]:
    """The ties that --drop-tied-copies leaves out: every alias but a head, since whether a head is tied is the
    model's to say."""
    return {alias: source for alias, source in checkpoint.ties.items() if not alias.endswith("lm_head.weight")}


# --- names ----------------------------------------------------------------------------------------------------------


def _flatten(kept: Mapping[str, Weight], prefix: str) -> tuple[dict[str, tuple[str, Part]], dict[str, list[str]]]:
    """The file's tensors (label and part by name), and which of them belong to each weight."""
    flat: dict[str, tuple[str, Part]] = {}
    taken: dict[str, str] = {}
    owners: dict[str, list[str]] = {}
    for name, weight in kept.items():
        owners[name] = []
        for key, label, part in _parts(name, weight, prefix):
            if key in taken:
                raise Refused(f"{show(name)} and {show(taken[key])} would both be stored as {show(key)}")
            taken[key] = name
            owners[name].append(key)
            flat[key] = (label, part)
    return flat, owners


def _parts(name: str, weight: Weight, prefix: str) -> Iterator[tuple[str, str, Part]]:
    root = "." not in name
    if name.startswith(ROOT_PREFIX):
        raise Refused(
            f"the name {show(name)} and the prefix of root names, {ROOT_PREFIX}, would be confused", path=name
        )
    if "\0" in name:
        raise Refused("has a NUL in its name", path=name)
    if root and name in HEADER_KEYS:
        raise Refused(f"a tensor is named {name!r}, which is the header key {name!r}", path=name)
    if weight.kind is None:
        part = weight.parts[PLAIN]
        yield (prefix + name if root else name), name, part  # type: ignore[misc]
        return
    if root:
        raise Refused(
            f"is a quantised weight ({weight.kind}) without a module, which the layout cannot name", path=name
        )
    leaves = weight.leaves()
    for inner, key in flat_names(name, weight).items():
        yield key, f"{name}.{inner}", leaves[inner]


# --- header ---------------------------------------------------------------------------------------------------------


def _metadata(
    checkpoint: Checkpoint,
    kept: Mapping[str, Weight],
    dropped: Mapping[str, str],
    provenance: Provenance,
    *,
    prefixed: bool,
) -> dict[str, str | Provenance]:
    """The header's `__metadata__` in its one fixed order, the provenance still as a value."""
    tagged = checkpoint.format is not None
    made: dict[str, str | Provenance] = {FORMAT: "pt"}
    if tagged:
        made[TAG] = str(checkpoint.format)
        made[METADATA] = json.dumps(checkpoint.metadata)
        if checkpoint.kind == "transformer":
            made[QUANT] = json.dumps(quant_layout(checkpoint))
    made[TAGGED_SOURCE if tagged else PLAIN_SOURCE] = provenance
    roots = [name for name in kept if "." not in name] if prefixed else []
    listed = [name for name in kept if not prefixed or "." in name]
    order = list(checkpoint.weights)
    if tagged or checkpoint.quantized:
        made[NAMES] = json.dumps(listed)
        made.update({name: json.dumps(weight_json(kept[name])) for name in listed})
    if roots:
        made[ROOTS] = json.dumps(roots)
    if order != listed or NAMES not in made:
        made[ORDER] = json.dumps(order)
    copied = {alias: source for alias, source in checkpoint.ties.items() if alias not in dropped}
    if copied or dropped:
        made[TIES] = json.dumps(
            {key: value for key, value in (("dropped", dict(dropped)), ("copied", copied)) if value}
        )
    return made


def weight_json(weight: Weight) -> dict[str, Json]:
    """The entry of one name: torchao's JSON of the class, its attributes and the names of its parts.

    A weight that was kept as it stood has a `_type` that no other reader takes for its own, and what rebuilding its
    class needs: the class's full name, its outer dtype and shape, and weights within it as values of `_data`.
    """
    if weight.kind is None:
        return {"_type": "Tensor"}
    own = [name for name, part in weight.parts.items() if isinstance(part, Part)]
    if weight.origin is None:
        return {"_type": weight.kind, "_data": dict(weight.attributes), "_tensor_data_names": own}
    nested = {name: weight_json(part) for name, part in weight.parts.items() if isinstance(part, Weight)}
    return {
        "_type": KEPT_PREFIX + weight.kind,
        "_class": weight.origin,
        "_dtype": weight.dtype.name,
        "_shape": list(weight.shape),
        "_data": {**weight.attributes, **nested},
        "_tensor_data_names": own,
    }


def scheme_of(weight: Weight) -> str | None:
    """The scheme under which `unsloth_quant_layout` and people know a weight; None for a plain tensor."""
    if weight.kind is None:
        return None
    scheme = BY_SHORT_NAME[weight.kind].scheme
    if scheme != "mx":
        return scheme
    elem = weight.attributes["elem_dtype"]
    name = elem.get("_data") if isinstance(elem, dict) else elem
    return "mxfp" + str(name).removeprefix("float").removeprefix("fp")[:1]


def quant_layout(checkpoint: Checkpoint) -> dict[str, Json]:
    """`unsloth_quant_layout`: prose per scheme that occurs, and the facts of torchao v1's int8 where they are true of
    all of it."""
    found = {scheme_of(weight) for weight in checkpoint.weights.values()}
    made: dict[str, Json] = {"version": 1, "weights": {name: SCHEMES[name] for name in SCHEMES if name in found}}
    if int8_source(checkpoint) is not None:
        made["int8_source"] = "torchao_v1"
        made["int8_v1"] = FACTS
    return made


def int8_source(checkpoint: Checkpoint) -> str | None:
    """`torchao_v1` if every int8 weight came from torchao v1 and every one's facts equal FACTS to the letter."""
    return "torchao_v1" if checkpoint.facts == FACTS else None


def dtype_counts(weights: Mapping[str, Weight]) -> dict[str, int]:
    """Bytes by dtype of all parts."""
    counted: dict[str, int] = {}
    for weight in weights.values():
        for part in weight.leaves().values():
            dtype: DType = part.dtype
            counted[dtype.name] = counted.get(dtype.name, 0) + part.nbytes
    return counted


# --- reading --------------------------------------------------------------------------------------------------------


def index(source: FileSource, *, keep_unsupported: bool = False, form: bool = True) -> Checkpoint:
    """Read the state dict that a safetensors file describes, ours or another writer's, in today's classes.

    A header of ours is held against its own digest and, with `form`, to its form to the byte. Raises Malformed where
    the metadata and the tensors do not account for each other, Refused for a class without a schema.
    """
    with located(file=source.name):
        header = read_header(source)
        return described(header, source, seal_findings(header, form=form), keep_unsupported=keep_unsupported)


def described(
    header: Header, source: FileSource, damage: list[str], *, keep_unsupported: bool, whole: bool = True
) -> Checkpoint:
    """The checkpoint that a header describes, the tensors being ranges of `source`; `whole`: it is all of the state
    dict that the metadata speaks of. Raises Malformed, Refused."""
    meta = header.metadata
    tag = meta.get(TAG)
    if tag is not None and tag not in TAGS:
        raise Refused(f"has the format tag {tag!r}, which depickle does not know")
    stored = Stored(header, source, keep_unsupported)
    listed = json_names(meta, NAMES) if NAMES in meta else []
    roots = json_names(meta, ROOTS)
    weights = stored.weights(listed)
    weights.update({name: stored.plain(name, ROOT_PREFIX + name) for name in roots})
    if NAMES not in meta:
        weights.update({name: stored.plain(name, name) for name in header.tensors if name not in stored.taken})
    left = [name for name in header.tensors if name not in stored.taken]
    if left:
        raise Malformed(f"holds {len(left)} tensors that its metadata does not account for, the first {show(left[0])}")
    ties = json_object(meta, TIES)
    dropped, copied = json_pairs(ties.get("dropped", {})), json_pairs(ties.get("copied", {}))
    for alias, origin in (*dropped.items(), *copied.items()):
        if origin not in weights or (alias in weights) != (alias in copied):
            raise Malformed(f"{TIES} says that {show(alias)} is {show(origin)}, which does not agree with the names")
    weights.update({alias: weights[origin] for alias, origin in dropped.items()})
    twin = read_twin(header, source)
    checkpoint = Checkpoint(
        source,
        "safetensors",
        tag,
        json_object(meta, METADATA),
        _in_order(weights, json_names(meta, ORDER) if ORDER in meta else list(weights)),
        ties={**copied, **dropped},
        dropped=dropped,
        facts=_facts(meta),
        classes={name: str(weight.kind) for name, weight in weights.items() if weight.kind is not None},
        provenance=json_object(meta, TAGGED_SOURCE if tag is not None else PLAIN_SOURCE) or None,
        sealed=SEAL in meta,
        damage=tuple(damage),
        warnings=(_TWIN_NOTE,) if twin is not None else (),
        twin=twin,
    )
    check_tag(checkpoint)
    if whole and checkpoint.facts is not None and not any(w.kind == "Int8Tensor" for w in weights.values()):
        raise Refused("records int8_v1, but holds no int8 weight")
    return checkpoint


def _facts(meta: Mapping[str, str]) -> Mapping[str, Json] | None:
    """The facts of torchao v1's int8: written out where there is a tag, else named in the provenance."""
    if TAG not in meta and json_object(meta, PLAIN_SOURCE).get("int8_source") == "torchao_v1":
        return FACTS
    return json_object(json_object(meta, QUANT), "int8_v1") or None


def _in_order(weights: Mapping[str, Weight], order: list[str]) -> dict[str, Weight]:
    if len(order) != len(weights) or set(order) != set(weights):
        odd = next(iter(set(order) ^ set(weights)), "a name that stands twice")
        raise Malformed(f"{ORDER} and the names disagree about {show(odd)}")
    return {name: weights[name] for name in order}


def _unsealed_findings(header: Header) -> list[str]:
    """A file that names depickle as its converter, but has a key of its own in place of the seal, was damaged there."""
    meta = header.metadata
    source = meta.get(TAGGED_SOURCE, meta.get(PLAIN_SOURCE, ""))
    if '"converter": "depickle ' not in source:
        return []
    known = {*HEADER_KEYS, LAYERS, TWIN, *json_names(meta, NAMES)}
    return [f"header: has a key {show(key)}, which is none of ours" for key in meta if key not in known]


def seal_findings(header: Header, *, form: bool = True) -> list[str]:
    """What is wrong with the header of a file of our own: its digest, which any changed byte breaks, or with `form`
    also its form to the byte, which a proof demands. Empty for other writers' files."""
    claimed = header.metadata.get(SEAL)
    if claimed is None:
        return _unsealed_findings(header)
    entry = f',"{SEAL}":"{claimed}"'.encode()
    actual = hashlib.sha256(header.raw.replace(entry, b"", 1)).hexdigest()
    findings = [] if actual == claimed else [f"header: its SHA-256 is {actual}, it says {show(claimed, 80)}"]
    return findings + _form_findings(header) if form else findings


def _form_findings(header: Header) -> list[str]:
    body: dict[str, Json] = {"__metadata__": dict(header.metadata)}
    for name, item in header.tensors.items():
        body[name] = entry_json(item.dtype, item.shape, item.range.offset - header.data_start, item.range.length)
    text = encode(body)
    canonical = text + b" " * (-(8 + len(text)) % ALIGNMENT)
    if canonical == header.raw:
        return []
    at = next(
        (i for i, (a, b) in enumerate(zip(canonical, header.raw)) if a != b), min(len(canonical), len(header.raw))
    )
    return [f"header: is not in canonical form from byte {8 + at} on"]
