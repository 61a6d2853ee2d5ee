"""A local mirror of published checkpoints: what a studio opens when it is asked for a file of a repository.

`UNSLOTH_DIFFUSION_PREQUANT_MIRROR` names the roots, separated as in PATH, each laid out as ROOT/OWNER/NAME/FILE, where
FILE may lie in folders. Each root in turn is asked; for a pickle, first for the converted file beside it. A name that
could lead elsewhere, and a link that does, is no hit. No file is executed, changed or fetched.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from .errors import Error, Malformed, Mismatch, Refused
from .opening import open_output
from .ranges import FileSource
from .report import Verification
from .schemas import Json
from .verification import verify as verify_pair

__all__ = ["ABSENT", "VARIABLE", "Entry", "Resolution", "Try", "configured_roots", "entries", "resolve", "verify"]

VARIABLE: Final = "UNSLOTH_DIFFUSION_PREQUANT_MIRROR"
ABSENT: Final = "is not there"
_PICKLES: Final = (".pt", ".pth")
_CONVERTED: Final = ".safetensors"


@dataclass(frozen=True, slots=True)
class Try:
    """One place that was looked at, and why it is no hit; `problem` is None for a hit."""

    path: str
    problem: str | None


@dataclass(frozen=True, slots=True)
class Resolution:
    """The answer to a request: the places that were looked at, in order. Nothing follows a hit."""

    tries: tuple[Try, ...]

    @property
    def path(self) -> str | None:
        """The file that a studio would open, None if it finds none."""
        last = self.tries[-1] if self.tries else None
        return last.path if last is not None and last.problem is None else None

    @property
    def notes(self) -> tuple[str, ...]:
        """What is wrong with places where something is and that are no hit all the same."""
        return tuple(f"{one.path}: {one.problem}" for one in self.tries if one.problem not in (None, ABSENT))


@dataclass(frozen=True, slots=True)
class Entry:
    """One file of a root as it would be asked for: a pickle, the converted file beside it, or both."""

    root: str
    repo: str
    file: str
    pickle: str | None
    converted: str | None

    def answer(self) -> Resolution:
        """What its root alone would answer."""
        return resolve(self.repo, self.file, roots=[self.root])

    def as_json(self) -> dict[str, Json]:
        """The entry as a JSON object, with its root's answer in `opens` and `problems`."""
        answer = self.answer()
        made: dict[str, Json] = {"mirror": 1, "root": self.root, "repo": self.repo, "file": self.file}
        made |= {"pickle": self.pickle, "converted": self.converted, "opens": answer.path}
        return made | {"problems": list(answer.notes)}


def configured_roots(environment: Mapping[str, str] = os.environ) -> list[str]:
    """The roots that the environment names: `~` is expanded, blank ones are skipped."""
    return [os.path.expanduser(root) for root in environment.get(VARIABLE, "").split(os.pathsep) if root.strip()]


# --- one file -------------------------------------------------------------------------------------------------------


def resolve(repo: str, file: str, *, roots: Iterable[str] | None = None) -> Resolution:
    """What a studio opens for `file` of `repo` (OWNER/NAME): the first hit, root by root. Raises nothing.

    Asked for a `.pt` or `.pth`, a root's converted `.safetensors` beside it comes first, if it can be read here.
    `roots` are by default those of the environment.
    """
    names = [*repo.split("/"), *file.split("/")]
    wrong = next((name for name in names if not _is_name(name)), None)
    if wrong is not None or repo.count("/") != 1:
        problem = f"{wrong!r} is no name in a mirror" if wrong is not None else f"{repo!r} is not OWNER/NAME"
        return Resolution((Try(f"{repo}/{file}", problem),))
    tries: list[Try] = []
    for root in configured_roots() if roots is None else roots:
        for place in _tries(root, os.path.join(*names)):
            tries.append(place)
            if place.problem is None:
                return Resolution(tuple(tries))
    return Resolution(tuple(tries))


def _is_name(part: str) -> bool:
    """Whether a part of a name stays where it is put, on every system."""
    if part in ("", ".", "..") or "\\" in part or "\0" in part:
        return False
    try:
        os.fsencode(part)
    except UnicodeEncodeError:
        return False
    return True


def _tries(root: str, name: str) -> Iterator[Try]:
    """The places of one root, each looked at only if the one before was no hit."""
    if not os.path.isdir(root):
        yield Try(root, "is not a folder")
        return
    sibling = _converted_name(name)
    if sibling is not None:
        path = os.path.join(root, sibling)
        yield Try(path, _problem(root, path, _read_converted))
    path = os.path.join(root, name)
    yield Try(path, _problem(root, path, _read_any))


def _converted_name(name: str) -> str | None:
    """The converted sibling of a pickle's name; None for what is no pickle by its name."""
    stem, suffix = os.path.splitext(name)
    return stem + _CONVERTED if suffix.lower() in _PICKLES else None


def _problem(root: str, path: str, read: Callable[[str], None]) -> str | None:
    """Why a path is no hit, None if it is one."""
    outside = _outside(root, path)
    if outside is not None:
        return outside
    try:
        read(path)
    except FileNotFoundError:
        return ABSENT if not os.path.lexists(path) else "is a link to nothing"
    except OSError as error:
        return str(error.strerror or error)
    except Error as error:
        return f"cannot be read: {error.message}"
    return None


def _outside(root: str, path: str) -> str | None:
    home, real = os.path.realpath(root), os.path.realpath(path)
    try:
        inside = os.path.commonpath([home, real]) == home
    except ValueError:  # two drives
        inside = False
    return None if inside else f"leads out of the root, to {real}"


def _read_converted(path: str) -> None:
    """Read the header, and hold it against its own digest."""
    with open_output(path) as found:
        if found.damage:
            raise Malformed(found.damage[0])


def _read_any(path: str) -> None:
    """Open a regular file, and no more: what is in a pickle is for its reader to judge."""
    FileSource(path).close()


# --- all files ------------------------------------------------------------------------------------------------------


def entries(*, roots: Iterable[str] | None = None) -> Iterator[Entry]:
    """Every pickle and converted file of the roots, root by root, by name. A folder that is reached twice, by a link,
    is shown once. Raises OSError for a folder that cannot be read, after all others."""
    for root in configured_roots() if roots is None else roots:
        failed: list[OSError] = []
        for folder, files in _folders(root, failed.append):
            parts = os.path.relpath(folder, root).split(os.sep)
            if len(parts) >= 2:
                yield from _entries(root, parts, files)
        if failed:
            raise failed[0]


def _folders(root: str, failed: Callable[[OSError], None]) -> Iterator[tuple[str, list[str]]]:
    seen: set[tuple[int, int]] = set()
    for folder, folders, files in os.walk(root, onerror=failed, followlinks=True):
        folders[:] = [name for name in sorted(folders) if _is_new(root, os.path.join(folder, name), seen)]
        yield folder, sorted(files)


def _is_new(root: str, folder: str, seen: set[tuple[int, int]]) -> bool:
    try:
        status = os.stat(folder)
    except OSError:
        return False
    key = status.st_dev, status.st_ino
    if key in seen or not stat.S_ISDIR(status.st_mode) or _outside(root, folder) is not None:
        return False
    seen.add(key)
    return True


def _entries(root: str, parts: list[str], files: list[str]) -> Iterator[Entry]:
    """The entries of one folder of a repository."""
    repo, within = "/".join(parts[:2]), parts[2:]
    present = set(files)
    paired = {_converted_name(name) for name in files}
    for name in files:
        sibling = _converted_name(name)
        path, file = os.path.join(root, *parts, name), "/".join([*within, name])
        if sibling is not None:
            beside = os.path.join(root, *parts, sibling) if sibling in present else None
            yield Entry(root, repo, file, path, beside)
        elif os.path.splitext(name)[1].lower() == _CONVERTED and name not in paired:
            yield Entry(root, repo, file, None, path)


def verify(entry: Entry, *, progress: Callable[[int, int], None] | None = None) -> Verification:
    """Prove a pair of the mirror: the converted file says that it came from this pickle, and holds what it holds.

    Raises Refused for what is no pair or leads out of the root, Mismatch with every finding, and what `verify` raises.
    """
    if entry.pickle is None or entry.converted is None:
        raise Refused("is not a pair of a pickle and a converted file", file=entry.file)
    for path in (entry.pickle, entry.converted):
        outside = _outside(entry.root, path)
        if outside is not None:
            raise Refused(outside, file=path)
    with open_output(entry.converted) as output, FileSource(entry.pickle) as source:
        claimed = output.provenance if isinstance(output.provenance, dict) else {}
        facts: dict[str, Json] = {"file": source.name, "bytes": source.length}
    findings = [
        f"provenance: records {key} {claimed[key]}, beside it is {fact}"
        for key, fact in facts.items()
        if key in claimed and claimed[key] != fact
    ]
    if findings:
        raise Mismatch(f"was not made from {source.name}: {findings[0]}", findings=findings, file=entry.converted)
    return verify_pair(entry.pickle, entry.converted, progress=progress)
