"""Which part of a pickled value is the state dict, and under which tag.

A checkpoint with a TAG is `{"format": TAG, "metadata": {...}, "state_dict": {...}}`; without one it is a dict of
tensors, or a dict that holds such a dict under a known name, or under the one that the caller gives. Nothing beside
it is dropped without a note.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from .errors import Malformed, Refused, show
from .inert import Call, Inert, PersistentId
from .tensors import describe, is_tensor

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
NESTED_KEYS: Final = ("state_dict", "model", "module", "model_state_dict")


@dataclass(frozen=True, slots=True)
class Root:
    """What was found: the tag, the metadata and the state dict, still inert, and notes on what lies beside."""

    tag: str | None
    metadata: Mapping[Inert, Inert]
    state_dict: dict[Inert, Inert]
    notes: tuple[str, ...]


def as_dict(value: Inert, notes: list[str] | None = None) -> dict[Inert, Inert] | None:
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
    pairs: list[Inert] = value.args[0] if len(value.args) == 1 and type(value.args[0]) is list else [None]
    if all(type(pair) in (list, tuple) and len(pair) == 2 and type(pair[0]) is str for pair in pairs):
        return {**{pair[0]: pair[1] for pair in pairs}, **(value.entries or {})}
    return None


def find_root(value: Inert, key: str | None) -> Root:
    """Find the state dict. Raises Refused for what is none, Malformed for a TAG without one."""
    top = as_dict(value)
    if top is None:
        if is_tensor(value):
            raise Refused("holds a single tensor, not a state dict: save a dict that names it")
        raise Refused(f"holds {describe(value)}, not a state dict")
    tag = top.get("format")
    if tag is not None and not is_tensor(tag):
        if key not in (None, "state_dict"):
            raise Refused(
                f"has the format tag {describe(tag) if type(tag) is not str else repr(tag)}: its state dict is not {key!r}"
            )
        return _tagged(top, tag)
    notes: list[str] = []
    if key is not None:
        state_dict = as_dict(top.get(key), notes)
        if state_dict is None:
            raise Refused(f"has no state dict under {key!r}; it has {_names(top)}")
    else:
        key, state_dict = _untagged(top, value, notes)
    if key is not None:
        beside = [name for name in top if name != key]
        if beside:
            notes.append(
                f"beside the state dict {key!r}, not carried: {', '.join(show(str(n), 40) for n in beside[:20])}"
            )
    return Root(None, {}, state_dict, tuple(notes))


def _names(top: Mapping[Inert, Inert]) -> str:
    return (
        ", ".join(repr(name) if type(name) is str else str(type(name).__name__) for name in list(top)[:8]) or "nothing"
    )


def _tagged(top: Mapping[Inert, Inert], tag: Inert) -> Root:
    if type(tag) is not str or tag not in TAGS:
        shown = repr(tag) if type(tag) in (str, int, float, bool) else describe(tag)
        raise Refused(f"has the format tag {shown}, which depickle does not know")
    if "state_dict" not in top:
        raise Malformed(f"has the format tag {tag!r} but no state_dict")
    notes: list[str] = []
    state_dict = as_dict(top["state_dict"], notes)
    if state_dict is None:
        raise Malformed(f"state_dict is {describe(top['state_dict'])}, expected a dict")
    metadata = {} if top.get("metadata") is None else as_dict(top["metadata"])
    if metadata is None:
        raise Malformed(f"metadata is {describe(top['metadata'])}, expected a dict")
    beside = [name for name in top if name not in ("format", "metadata", "state_dict")]
    if beside:
        notes.append(f"beside the state dict, not carried: {', '.join(show(str(name), 40) for name in beside[:20])}")
    return Root(tag, metadata, state_dict, tuple(notes))


def _untagged(top: dict[Inert, Inert], value: Inert, notes: list[str]) -> tuple[str | None, dict[Inert, Inert]]:
    if any(is_tensor(item) for item in top.values()):
        as_dict(value, notes)
        return None, top
    found = [name for name in NESTED_KEYS if any(is_tensor(item) for item in (as_dict(top.get(name)) or {}).values())]
    if len(found) > 1:
        raise Refused(f"has state dicts under {' and '.join(map(repr, found))}: choose one with --key")
    if found:
        return found[0], as_dict(top[found[0]], notes) or {}
    for name, item in top.items():
        if type(item) is PersistentId:
            raise Refused(f"is {describe(item)}", path=show(str(name)))
    raise Refused(
        f"has no tensors at the top, nor under {', '.join(NESTED_KEYS)}; it has {_names(top)}: name it with --key"
    )
