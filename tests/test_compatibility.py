"""docs/compatibility.md: its cells add up, its rows are the real files, and nothing in it is wrong.

That the cells are true is tested in the oracle part, which compares the page with what every release of torchao makes
of the files.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import depickle
import truth

ROOT = Path(__file__).resolve().parent.parent
TEXT = (ROOT / "docs" / "compatibility.md").read_text(encoding="utf-8")
ROWS = [[cell.strip() for cell in line.strip("|").split("|")] for line in TEXT.splitlines() if line.startswith("|")]
READERS, BODY = ROWS[0][2:], ROWS[2:]
COUNT = re.compile(r"(\d+) (exact|refused: \w[\w=, ]*)")


def counts(cell: str) -> Counter[str]:
    """How many weights a cell says are exact and refused; every word of it has to be understood."""
    found: Counter[str] = Counter()
    for piece in cell.split("; "):
        match = COUNT.fullmatch(piece)
        assert match is not None, cell
        found[match[2].partition(":")[0]] += int(match[1])
    return found


def class_of(tensor: Any) -> str:
    """The class as written, with what is inside it."""
    name = str(tensor["class"]).rpartition(".")[2]
    inner = next((item for item in tensor["inner"].values() if "inner" in item), None)
    return name if inner is None else f"{name} > {class_of(inner)}"


def test_columns_are_the_releases_that_matter() -> None:
    assert READERS == ["0.14.1", "0.15.0", "0.16.0", "0.17.0", "0.18.0"]


def test_every_weight_that_converts_is_counted_once_a_column() -> None:
    """The truth of the files and what they are refused for, not the page, say how many there are."""
    wanted: Counter[tuple[str, str]] = Counter()
    for case in truth.cases(ROOT / "tests" / "data" / "fixtures"):
        try:
            depickle.open_checkpoint(case.path).source.close()
        except depickle.Refused:
            continue
        for tensor in case.truth["tensors"].values():
            if "inner" in tensor:
                wanted[class_of(tensor), case.release] += 1
    assert sum(wanted.values()) > 400
    for column in range(len(READERS)):
        assert {(row[0], row[1]): counts(row[2 + column]).total() for row in BODY} == dict(wanted)


def test_totals_add_up_and_nothing_is_wrong() -> None:
    total = sum((counts(cell) for row in BODY for cell in row[2:]), Counter[str]())
    assert f"\n\n{total['exact']} exact, {total['refused']} refused, 0 wrong\n" in TEXT
    assert "WRONG" not in TEXT


def test_the_newest_release_refuses_nothing() -> None:
    assert {word for row in BODY for word in counts(row[-1])} == {"exact"}


def test_the_page_names_the_command_that_writes_it() -> None:
    assert TEXT.count("`python -m tests.oracle.matrix`") == 1
    assert (ROOT / "tests" / "oracle" / "matrix.py").exists()
