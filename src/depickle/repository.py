"""A whole folder of a model: its weights are converted, its configs say today's words, everything else is carried over.

All of it is planned before anything is written: what would be refused is refused then. The weights come first, each
file proved as it is written, then their index, then the other files, byte for byte and proved by digest; configs come
last, so that a folder that is not whole does not load.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final, NamedTuple

from .carrying import carry, publish_text
from .checkpoint import Checkpoint
from .collector import paused
from .configs import Config, configs_of
from .conversion import write_planned
from .digest import Stop
from .errors import Malformed, Refused, located, show
from .folders import Folder, Group, read_folder, real_path
from .layout import Layout
from .opening import open_checkpoint
from .options import Options, UsageError
from .planning import plan_as
from .report import Record
from .schemas import Json
from .several import SeveralFiles
from .shards import Shards, open_files
from .targets import COMFYUI
from .writer import make_folders, remove_folders

_BLOCK: Final = 1024 * 1024
_WEIGHTS: Final = (".safetensors", ".bin", ".index.json")
ProgressOf = Callable[[str], Callable[[int, int], None]]


class Planned(NamedTuple):
    """One state dict of the folder, open, and the files that it becomes."""

    group: Group
    checkpoint: Checkpoint
    layout: Layout


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that the conversion of a folder will do. `carried` are files that stay as they are, `configs` those
    that change, by path relative to the folder."""

    folder: Folder
    out: str
    weights: tuple[Planned, ...]
    carried: tuple[str, ...]
    configs: Mapping[str, Config]
    warnings: tuple[str, ...]

    def outputs(self) -> list[str]:
        """Every file that will be there, relative to the folder."""
        made = [os.path.join(one.group.folder, name) for one in self.weights for name in names_of(one.layout)]
        return [*made, *self.carried, *self.configs]

    def as_json(self) -> dict[str, Json]:
        """What will happen beside the weights; schema: docs/schemas/repository.v1.json."""
        return {
            "repository": 1,
            "src": self.folder.path,
            "dst": self.out,
            "weights": weights_json(self.weights),
            "carried": list(self.carried),
            "configs": {name: {"before": c.before, "after": c.after} for name, c in self.configs.items()},
            "left_out": list(self.folder.left_out),
            "warnings": list(self.warnings),
        }


@dataclass(frozen=True, slots=True)
class FolderRecord:
    """What happened to one folder, beside the records of its weight files; schema: docs/schemas/repository.v1.json."""

    src: str
    dst: str
    weights: Mapping[str, Json]
    written: Mapping[str, str]
    carried: Mapping[str, str]
    configs: Mapping[str, Mapping[str, Json]]
    left_out: tuple[str, ...]
    warnings: tuple[str, ...]
    seconds: float
    files: tuple[Record, ...]

    def as_json(self) -> dict[str, Json]:
        """The record as a JSON object; those of the files are shown by themselves."""
        made: dict[str, Json] = {"repository": 1}
        for name in self.__dataclass_fields__:
            value = getattr(self, name)
            if name != "files":
                made[name] = list(value) if isinstance(value, tuple) else value
        return made


def weights_json(weights: Sequence[Planned]) -> dict[str, Json]:
    """What becomes of the weights: each index, or file without one, and the files that are made of it."""
    made: dict[str, Json] = {}
    for group, _, layout in weights:
        source = os.path.join(group.folder, group.index_file or group.files[0])
        made[source] = [os.path.join(group.folder, name) for name in names_of(layout)]
    return made


def names_of(layout: Layout) -> list[str]:
    """The names of a layout's files, their index last."""
    return [file.name for file in layout.files] + ([layout.index.name] if layout.index else [])


def destination_of(out_dir: str, options: Options) -> str:
    """Where a folder goes: DIR[/OWNER/NAME] itself."""
    return os.path.join(out_dir, *(options.repo.split("/") if options.repo else ()))


# --- planning -------------------------------------------------------------------------------------------------------


def plan_folder(src: str, out_dir: str, options: Options, stack: ExitStack) -> Plan:
    """Plan the conversion of a folder; what it opens is closed by `stack`. Raises UsageError, Malformed, Refused,
    OSError."""
    for option, value in (
        ("--sha256", options.sha256),
        ("--trust-sha256", options.trust_sha256),
        ("--key", options.key),
        ("--check-with", options.check_with),
        ("--drop-tied-copies", options.drop_tied_copies),
    ):
        if value:
            raise UsageError(f"{option} goes with a file, and {src} is a folder")
    if options.target == COMFYUI:
        raise UsageError(f"--target comfyui makes one file of one: give it the file of the weights, {src} is a folder")
    out = destination_of(out_dir, options)
    _check_apart(src, out)
    folder = read_folder(src)
    weights: list[Planned] = []
    for group in folder.groups:
        checkpoint = stack.enter_context(open_group(src, group, keep_unsupported=options.keep_unsupported))
        with located(file=group.files[0]):
            weights.append(Planned(group, checkpoint, plan_as(os.path.basename(group.target), checkpoint, options)))
    configs, warnings = configs_of(folder, [(one.group, one.checkpoint) for one in weights])
    carried = tuple(name for name in folder.carried if name not in configs)
    made = Plan(folder, out, tuple(weights), carried, configs, (*folder.warnings, *warnings))
    _check_outputs(made)
    return made


def open_group(root: str, group: Group, *, keep_unsupported: bool) -> Checkpoint:
    """Open the files of one state dict."""
    paths = [real_path(root, os.path.join(group.folder, name)) for name in group.files]
    if len(paths) == 1 and group.weight_map is None:
        return open_checkpoint(paths[0], keep_unsupported=keep_unsupported)
    place = os.path.join(root, group.folder, group.index_file or group.files[0])
    found = open_files(place, group.files, group.weight_map, keep_unsupported=keep_unsupported)
    if found.damage:
        found.source.close()
        raise Malformed(found.damage[0], file=os.path.basename(place))
    return found


def _check_apart(src: str, out: str) -> None:
    one, other = os.path.realpath(src), os.path.realpath(out)
    if os.path.commonpath([one, other]) in (one, other):
        raise UsageError(f"{src} and the folder of the results, {out}, lie one in the other")


def _check_outputs(planned: Plan) -> None:
    """No two files of one name, and nothing at the destination that a reader would take for part of the result."""
    names: set[str] = set()
    for name in planned.outputs():
        if os.path.normcase(name) in names:
            raise Refused(f"two files would become {show(name)}", file=planned.folder.path)
        names.add(os.path.normcase(name))
    for one in planned.weights:
        place = os.path.join(planned.out, one.group.folder)
        for name in sorted(os.listdir(place)) if os.path.isdir(place) else ():
            relative = os.path.join(one.group.folder, name)
            if name.endswith(_WEIGHTS) and os.path.normcase(relative) not in names:
                raise Refused("is at the destination and no part of this result: readers would take it", file=relative)


# --- doing ----------------------------------------------------------------------------------------------------------


def convert_folder(
    src: str | os.PathLike[str],
    out_dir: str | os.PathLike[str],
    *,
    repo: str | None = None,
    revision: str | None = None,
    overwrite: bool = False,
    keep_unsupported: bool = False,
    target: str | None = None,
    max_shard_size: int | None = None,
    progress: ProgressOf | None = None,
    stop: Stop | None = None,
) -> FolderRecord:
    """Convert the folder of a model: its weights, their indexes and configs; carry over everything else.

    The record has those of the weight files in `files`. Raises UsageError, Malformed, Refused, Mismatch or OSError.
    What was refused was refused before anything was written; after any other failure what is proved stays, and the
    next run goes on from there. `progress` is asked, with a file's name, for what takes the reports of its conversion.
    """
    options = Options(
        repo=repo,
        revision=revision,
        overwrite=overwrite,
        keep_unsupported=keep_unsupported,
        target=target,
        max_shard_size=max_shard_size,
    )
    return convert_folder_with(os.fspath(src), os.fspath(out_dir), options, progress=progress, stop=stop)


def convert_folder_with(
    src: str,
    out_dir: str,
    options: Options,
    *,
    done: Callable[[Record], None] | None = None,
    progress: ProgressOf | None = None,
    stop: Stop | None = None,
) -> FolderRecord:
    """Convert a folder, the options as a value; `done` is called with each file's record once the file is there."""
    began = time.monotonic()
    files: list[Record] = []
    made: list[str] = []

    def take(record: Record) -> None:
        files.append(record)
        if done is not None:
            done(record)

    with paused(), ExitStack() as stack:
        planned = plan_folder(src, out_dir, options, stack)
        try:
            for one in planned.weights:
                made[:0] = make_folders(os.path.join(planned.out, one.group.folder))
                _convert_group(planned, one, options, take, progress, stop)
            carried = {}
            for name in planned.carried:
                path = os.path.join(planned.out, name)
                made[:0] = make_folders(os.path.dirname(path))
                file = real_path(planned.folder.path, name)
                carried[name] = carry(file, path, overwrite=options.overwrite, stop=stop)
            for name, config in planned.configs.items():
                publish_text(os.path.join(planned.out, name), config.data, overwrite=options.overwrite)
        except BaseException:
            remove_folders(made)
            raise
    return FolderRecord(
        src=src,
        dst=planned.out,
        weights=weights_json(planned.weights),
        written=_texts(planned),
        carried=carried,
        configs={name: {"before": c.before, "after": c.after} for name, c in planned.configs.items()},
        left_out=planned.folder.left_out,
        warnings=planned.warnings,
        seconds=round(time.monotonic() - began, 3),
        files=tuple(files),
    )


def _texts(planned: Plan) -> dict[str, str]:
    """The digests of what was written beside weights: indexes and configs."""
    texts = {name: config.data for name, config in planned.configs.items()}
    for group, _, layout in planned.weights:
        if layout.index is not None:
            texts[os.path.join(group.folder, layout.index.name)] = layout.index.data
    return {name: hashlib.sha256(data).hexdigest() for name, data in texts.items()}


def _convert_group(
    planned: Plan,
    one: Planned,
    options: Options,
    done: Callable[[Record], None],
    progress: ProgressOf | None,
    stop: Stop | None,
) -> None:
    place = os.path.join(planned.out, one.group.folder)
    src = os.path.join(planned.folder.path, one.group.folder, one.group.index_file or one.group.files[0])
    report = None if progress is None else progress(os.path.basename(one.group.target))
    if len(one.layout.files) == 1 and not isinstance(one.checkpoint.source, Shards):
        dst = os.path.join(place, one.layout.files[0].name)
        done(write_planned(one.checkpoint, src, dst, one.layout.files[0], options, progress=report, stop=stop))
    else:
        SeveralFiles(one.checkpoint, src, place, one.layout, options, report).run(stop, done)
