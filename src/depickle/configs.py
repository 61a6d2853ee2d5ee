"""The configs of a folder: which of them have to say something else once the weights beside them are converted."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from .checkpoint import Checkpoint
from .errors import Malformed, Refused, located, show
from .folders import Folder, Group, real_path
from .quantization import KEY, rewrite
from .ranges import FileSource
from .schemas import Json
from .weights import Weight

_CONFIG: Final = "config.json"
_STEMS: Final = ("model", "diffusion_pytorch_model")  # what from_pretrained of transformers and diffusers looks for
_MAX_CONFIG: Final = 10_000_000


class Config(NamedTuple):
    """A config that changes: its new bytes, and what its `quantization_config` was and is."""

    data: bytes
    before: Json
    after: Json


def configs_of(folder: Folder, weights: Sequence[tuple[Group, Checkpoint]]) -> tuple[dict[str, Config], list[str]]:
    """The configs beside weights that have to change, and what should be known of all of them."""
    configs: dict[str, Config] = {}
    warnings: list[str] = []
    for place in dict.fromkeys(group.folder for group, _ in weights):
        name = os.path.join(place, _CONFIG)
        if name not in folder.carried:
            continue
        with located(file=name):
            config = _read_config(real_path(folder.path, name))
            found = rewrite(config.get(KEY), _loaded(place, weights))
        warnings += [f"{show(name)}: {text}" for text in found.warnings]
        if found.config is not None:
            new = {key: found.config if key == KEY else value for key, value in config.items()}
            with located(file=name):
                data = _spelled(new)
            configs[name] = Config(data, config[KEY], found.config)
    return configs, warnings


def _loaded(place: str, weights: Sequence[tuple[Group, Checkpoint]]) -> Mapping[str, Weight]:
    """The weights that a reader of the config loads: those of the stem that it looks for, a variant's if need be."""
    found = [one for one in weights if one[0].folder == place and one[0].stem.partition(".")[0] in _STEMS]
    return min(found, key=lambda one: one[0].stem)[1].weights if found else {}


def _read_config(path: str) -> dict[str, Any]:
    with FileSource(path) as file:
        if file.length > _MAX_CONFIG:
            raise Refused(f"has {file.length} bytes, over the limit of {_MAX_CONFIG}")
        text = file.read(0, file.length)
    try:
        config = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Malformed(f"is not JSON: {show(str(error), 80)}") from error
    if not isinstance(config, dict):
        raise Malformed("is no JSON object")
    return config


def _spelled(config: dict[str, Any]) -> bytes:
    """The text of a config, as transformers spells it but in the old one's order."""
    try:
        return json.dumps(config, indent=2, ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n"
    except RecursionError as error:
        raise Malformed("is nested too deeply") from error
