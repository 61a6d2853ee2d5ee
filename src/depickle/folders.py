"""A folder of a model as a value: which files are weights and belong together, and what else is there.

Nothing is opened but indexes and the first bytes of what may be weights. A link is followed only to a regular file
within the folder; anything else that is no file and no folder is refused by name. What the results are called is
said here too: `pytorch_model` becomes `model`, as transformers names safetensors; other stems stay.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from .archive import sniff
from .errors import Error, Refused, show
from .header import read_header
from .outputs.names import NAMES
from .ranges import FileSource
from .shards import read_index

_INDEX: Final = re.compile(r"(?P<base>.+)\.(?:bin|safetensors|pth?)\.index(?:\.(?P<variant>[^.]+))?\.json")
_SHARD: Final = re.compile(r"(?P<stem>.+)-(?P<number>[0-9]{5})-of-(?P<count>[0-9]{5})(?P<variant>\.[^.]+)?")
_SUFFIXES: Final = (".bin", ".pt", ".pth")
_RENAMED: Final = {"pytorch_model": "model"}
# What trainers leave beside a model: pickles that hold no weights, which no reader of the weights opens.
_STATES: Final = re.compile(
    r"training_args\.bin|(?:optimizer|scheduler|scaler|random_states|rng_state)\w*\.(?:bin|pth?)"
)
_PICKLES: Final = (".pkl", ".pickle", ".ckpt", ".joblib")
_LEFT_OUT: Final = frozenset({".git", os.path.join(".cache", "huggingface")})


class Group(NamedTuple):
    """Weight files that hold one state dict, relative to the folder; `weight_map` is what their index says."""

    folder: str
    files: tuple[str, ...]
    index_file: str | None
    weight_map: Mapping[str, str] | None
    stem: str  # of the result, with the variant: `model`, `diffusion_pytorch_model.fp16`

    @property
    def target(self) -> str:
        """The name of the result if it is one file, relative to the folder."""
        return os.path.join(self.folder, self.stem + ".safetensors")


class Folder(NamedTuple):
    """What a folder holds: weights to convert, files to carry over, what is left behind, what to say about it."""

    path: str
    groups: tuple[Group, ...]
    carried: tuple[str, ...]
    left_out: tuple[str, ...]
    warnings: tuple[str, ...]


def read_folder(path: str) -> Folder:
    """Look through a folder and its subfolders. Raises Malformed, Refused, OSError."""
    groups: list[Group] = []
    carried: list[str] = []
    left_out: list[str] = []
    warnings: list[str] = []
    for folder, names in walk(path, left_out):
        found = list(_groups(path, folder, names))
        groups += found
        taken = {name for group in found for name in (*group.files, group.index_file)}
        for name in names:
            if name not in taken:
                carried.append(os.path.join(folder, name))
                if _STATES.fullmatch(name) or name.endswith(_PICKLES):
                    warnings.append(f"{show(carried[-1])} is a pickle by its name: it is carried over as it is")
    if not groups:
        raise Refused("is a folder without weights to convert", file=path)
    _check_names(groups, carried)
    return Folder(path, tuple(groups), tuple(carried), tuple(left_out), tuple(warnings))


def real_path(root: str, relative: str) -> str:
    """The file itself, if `relative` is a link to one within `root`. Raises Refused for any other link, and for what is
    no regular file."""
    path = os.path.join(root, relative)
    if os.path.islink(path):
        base, path = os.path.realpath(root), os.path.realpath(path)
        if os.path.commonpath([base, path]) != base:
            raise Refused("is a link out of the folder: put the file itself there (cp -L)", file=relative)
    if not stat.S_ISREG(os.stat(path, follow_symlinks=False).st_mode):
        raise Refused("is neither a regular file nor a folder", file=relative)
    return path


def walk(root: str, left_out: list[str] | None = None) -> Iterator[tuple[str, list[str]]]:
    """Every folder, relative to the root, with the names of its files; what tools keep goes into `left_out`. Raises
    Refused for what is neither a file nor a folder of this one."""
    pending = [""]
    while pending:
        folder = pending.pop(0)
        names: list[str] = []
        with os.scandir(os.path.join(root, folder)) as entries:
            for entry in sorted(entries, key=lambda entry: entry.name):
                relative = os.path.join(folder, entry.name)
                if relative in _LEFT_OUT:
                    if left_out is not None:
                        left_out.append(relative)
                elif entry.is_dir(follow_symlinks=False):
                    pending.append(relative)
                elif entry.is_symlink() and entry.is_dir():
                    raise Refused("is a link to a folder: put the folder itself there", file=relative)
                else:
                    real_path(root, relative)
                    names.append(entry.name)
        yield folder, names


# --- which files belong together ------------------------------------------------------------------------------------


def _groups(root: str, folder: str, names: list[str]) -> Iterator[Group]:
    indexed: set[str] = set()
    for name in names:
        match = _INDEX.fullmatch(name)
        if match is not None:
            weight_map = read_index(real_path(root, os.path.join(folder, name)))
            files = tuple(sorted(set(weight_map.values())))
            indexed.update(files)
            for file in files:
                if file not in names:
                    raise Refused(f"names {show(file)}, which is not there", file=os.path.join(folder, name))
            group = Group(folder, files, name, weight_map, _stem(match["base"], match["variant"]))
            if _is_wanted(root, group):
                yield group
    series: dict[tuple[str, int], dict[int, str]] = {}
    for name in names:
        if name in indexed or not _is_weights(root, folder, name):
            continue
        base = os.path.splitext(name)[0]
        match = _SHARD.fullmatch(base)
        if match is None:
            yield Group(folder, (name,), None, None, _stem(base, None))
        else:
            stem = _stem(match["stem"], (match["variant"] or "")[1:])
            series.setdefault((stem, int(match["count"])), {})[int(match["number"])] = name
    for (stem, count), found in series.items():
        missing = set(range(1, count + 1)) - found.keys()
        if missing or len(found) != count:
            raise Refused(f"shard {min(missing, default=0)} of {count} is not there", file=os.path.join(folder, stem))
        yield Group(folder, tuple(found[number] for number in sorted(found)), None, None, stem)


def _stem(base: str, variant: str | None) -> str:
    first, dot, rest = base.partition(".")
    named = _RENAMED.get(first, first) + dot + rest
    return f"{named}.{variant}" if variant else named


def _is_weights(root: str, folder: str, name: str) -> bool:
    """Whether a file is one that is converted: a torch.save file, or flattened safetensors."""
    if _STATES.fullmatch(name) or not name.endswith((*_SUFFIXES, ".safetensors")):
        return False
    with FileSource(real_path(root, os.path.join(folder, name))) as source:
        try:
            kind = sniff(source)
        except Error:  # some other .bin; it is carried
            return False
        if kind != "safetensors":
            return True
        return NAMES in read_header(source).metadata


def _is_wanted(root: str, group: Group) -> bool:
    return any(_is_weights(root, group.folder, name) for name in group.files)


def _check_names(groups: list[Group], carried: list[str]) -> None:
    """Two state dicts that would get one stem are refused, naming both."""
    taken: dict[str, str] = {}
    for name in carried:
        stem = _stem_of(os.path.basename(name))
        if stem is not None:
            taken.setdefault(os.path.normcase(os.path.join(os.path.dirname(name), stem + ".safetensors")), name)
    for group in groups:
        first = os.path.join(group.folder, group.files[0])
        key = os.path.normcase(group.target)
        if key in taken:
            raise Refused(f"{show(first)} would become {show(group.target)}, as would {show(taken[key])}")
        taken[key] = first


def _stem_of(name: str) -> str | None:
    """The stem of a safetensors file that is carried over, or of the index or the shards of one; None for others."""
    index = _INDEX.fullmatch(name)
    if index is not None:
        return _stem(index["base"], index["variant"])
    base, suffix = os.path.splitext(name)
    if suffix != ".safetensors":
        return None
    shard = _SHARD.fullmatch(base)
    return base if shard is None else _stem(shard["stem"], (shard["variant"] or "")[1:])
