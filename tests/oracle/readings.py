"""Convert all fixtures, and have every release of torchao read the results: the slow part, done once for tests and
matrix alike."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import environment
import judging

import depickle
import expected as ex
import truth

FIXTURES = Path(os.environ.get("DEPICKLE_FIXTURES", environment.HERE.parent / "data" / "fixtures"))
CHECKERS = ("0.17.0", "0.18.0")  # where `--check-with torch` has to pass
# Writers of microscaled weights whose truth has no values.
OLD_VALUES = ("0.7.0", "0.9.0", "0.11.0", "0.12.0", "0.13.0", "0.14.1")


@dataclass(frozen=True)
class Readings:
    """`by_release[release][case name]` is what the child `reader` made of a file; `cases` are the converted ones."""

    cases: dict[str, truth.Case]
    converted: dict[str, Path]
    by_release: dict[str, Any]
    old_values: dict[str, Any]

    def weights(self, name: str) -> dict[str, ex.Weight]:
        """What the truth of a case makes of today, for its quantised weights."""
        tensors = self.cases[name].truth["tensors"]
        return {key: ex.expected(tensor) for key, tensor in tensors.items() if "inner" in tensor}

    def written(self, name: str, key: str) -> Any:
        """The values that the writer of a weight computed, None where it has no formula."""
        found = judging.written_values(self.cases[name].truth["tensors"][key])
        return found if found is not None else self.old_values.get(name, {}).get(key)


def convert(folder: Path) -> tuple[dict[str, truth.Case], dict[str, Path]]:
    """Convert every fixture that has a form today."""
    cases, converted = {}, {}
    for case in truth.cases(FIXTURES):
        try:
            record = depickle.convert(case.path, folder / case.release)
        except depickle.Refused:
            continue
        cases[case.name], converted[case.name] = case, Path(record.dst)
    return cases, converted


def take(folder: Path) -> Readings:
    """Convert and read everything."""
    environment.python()
    cases, converted = convert(folder / "converted")
    files = [{"name": name, "src": str(cases[name].path), "dst": str(dst)} for name, dst in converted.items()]

    def read(release: str) -> Any:
        place = folder / f"check-{release}"
        for i in range(len(files)):
            (place / str(i)).mkdir(parents=True)
        job = {"files": files, "check": release in CHECKERS, "folder": str(place)}
        return environment.run(release, "reader", job)["files"]

    def write(release: str) -> Any:
        mine = {name: str(case.path) for name, case in cases.items() if case.release == release and _microscaled(case)}
        return environment.run(release, "writer", {"files": mine}) if mine else {}

    with ThreadPoolExecutor(os.cpu_count() or 2) as pool:
        by_release = dict(zip(environment.READERS, pool.map(read, environment.READERS), strict=True))
        old_values = {name: found for part in pool.map(write, OLD_VALUES) for name, found in part.items()}
    return Readings(cases, converted, by_release, old_values)


def _microscaled(case: truth.Case) -> bool:
    return any("MXTensor" in str(tensor) or "NVFP4" in str(tensor) for tensor in case.truth["tensors"].values())
