"""What a twin's tensors are called: the table of --rename, and --key-prefix.

In: the names of a checkpoint. Out: for each name of the twin the names that it is made of, one or, where the table
puts weights together by rows, several. Every rule must find something, and no two names may become one: a table that
does not fit its checkpoint is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from ..errors import Refused, show
from ..header import strict_json
from ..options import UsageError

_MAX_TABLE: Final = 16 * 1024 * 1024  # bytes; a line for each of 100,000 names fits


@dataclass(frozen=True, slots=True)
class Renaming:
    """`rename`: old to new, an old name that ends with a dot being a prefix; `concat`: new to the old names whose rows
    follow each other. A `*` in an old name stands for one step between dots, and for the same in the new one."""

    prefix: str
    rename: Mapping[str, str]
    concat: Mapping[str, tuple[str, ...]]

    def resolve(self, names: Iterable[str]) -> dict[str, tuple[str, ...]]:
        """Each name of the twin with the names of its sources, in the order of the first of them."""
        order = {name: at for at, name in enumerate(names)}
        made = self._joined(order)
        taken = {old for olds in made.values() for old in olds}
        used: set[str] = set()
        for name in order:
            if name not in taken:
                _put(made, self.prefix + self._renamed(name, used), (name,))
        unused = next((old for old in self.rename if old not in used), None)
        if unused is not None:
            raise Refused(f"the table of --rename names {show(unused)}, which is nothing in the checkpoint")
        return dict(sorted(made.items(), key=lambda item: order[item[1][0]]))

    def _joined(self, order: Mapping[str, int]) -> dict[str, tuple[str, ...]]:
        made: dict[str, tuple[str, ...]] = {}
        taken: set[str] = set()
        for new, olds in self.concat.items():
            steps = [found for name in order if (found := _match(olds[0], name)) is not None]
            if not steps:
                raise Refused(f"the table of --rename names {show(olds[0])}, which is nothing in the checkpoint")
            for found in steps:
                parts = tuple(_fill(old, found) for old in olds)
                for part in parts:
                    if part not in order or part in taken:
                        what = "is used twice" if part in taken else "is nothing in the checkpoint"
                        raise Refused(f"the table of --rename puts {show(part)} into {show(new)}, which {what}")
                    taken.add(part)
                _put(made, self.prefix + _fill(new, found), parts)
        return made

    def _renamed(self, name: str, used: set[str]) -> str:
        if name in self.rename and not name.endswith("."):
            used.add(name)
            return self.rename[name]
        for old, new in self.rename.items():
            found = _match(old, name) if "*" in old else None
            if found is not None:
                used.add(old)
                return _fill(new, found)
        prefixes = [old for old in self.rename if old.endswith(".") and name.startswith(old)]
        if not prefixes:
            return name
        longest = max(prefixes, key=len)
        used.update(prefixes)
        return self.rename[longest] + name[len(longest) :]


def _put(made: dict[str, tuple[str, ...]], new: str, olds: tuple[str, ...]) -> None:
    if new in made:
        raise Refused(f"{show(made[new][0])} and {show(olds[0])} would both be called {show(new)}")
    made[new] = olds


def _match(pattern: str, name: str) -> tuple[str, ...] | None:
    """What the stars of a pattern stand for in a name; None if it is not of that pattern."""
    if "*" not in pattern:
        return () if pattern == name else None
    found = re.fullmatch("([^.]+)".join(map(re.escape, pattern.split("*"))), name)
    return found.groups() if found else None


def _fill(pattern: str, steps: tuple[str, ...]) -> str:
    pieces = pattern.split("*")
    return pieces[0] + "".join(step + piece for step, piece in zip(steps, pieces[1:]))


def read_renaming(path: str | None, prefix: str | None) -> Renaming:
    """The table in the JSON file at `path`: `{"rename": {old: new}, "concat": {new: [old, ...]}}`, each optional.

    Raises UsageError for a file that is no such table, OSError.
    """
    if path is None:
        return Renaming(prefix or "", {}, {})
    with open(path, "rb") as file:
        text = file.read(_MAX_TABLE + 1)
    try:
        table = strict_json(text.decode()) if len(text) <= _MAX_TABLE else None
    except ValueError as error:
        raise UsageError(f"--rename {path} is not JSON: {show(str(error))}") from error
    if not isinstance(table, dict) or not set(table) <= {"rename", "concat"}:
        raise UsageError(f'--rename {path} is no object with "rename" and "concat"')
    rename, concat = table.get("rename", {}), table.get("concat", {})
    if not isinstance(rename, dict) or not isinstance(concat, dict):
        raise UsageError(f"--rename {path}: rename and concat are objects")
    for old, new in rename.items():
        _check_rule(path, new, [old])
    for new, olds in concat.items():
        if not isinstance(olds, list) or len(olds) < 2:
            raise UsageError(f"--rename {path}: {show(new)} is put together from a list of two names or more")
        _check_rule(path, new, olds)
    return Renaming(prefix or "", rename, {new: tuple(olds) for new, olds in concat.items()})


def _check_rule(path: str, new: object, olds: list[object]) -> None:
    if not isinstance(new, str) or not all(isinstance(old, str) and old for old in olds):
        raise UsageError(f"--rename {path}: names are texts")
    if any(isinstance(old, str) and old.count("*") != new.count("*") for old in olds):
        raise UsageError(f"--rename {path}: {show(new)} has not as many * as {show(str(olds[0]))}")
    if any(isinstance(old, str) and old.endswith(".") and "*" in old for old in olds):
        raise UsageError(f"--rename {path}: a prefix has no *")
    if any("*" in step and step != "*" for old in olds for step in str(old).split(".")):
        raise UsageError(f"--rename {path}: a * stands for a whole step between dots")
