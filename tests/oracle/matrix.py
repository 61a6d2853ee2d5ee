"""`python -m tests.oracle.matrix`: who reads whose files, as a table in markdown for docs/compatibility.md.

Rows are classes and the releases that wrote them, columns the releases that read the converted file with
`depickle.torch.load`.
"""

from __future__ import annotations

import re
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
for folder in (HERE, HERE.parent):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

import environment  # noqa: E402 - needs the path
import judging  # noqa: E402
import readings  # noqa: E402

_LACKS = re.compile(r"is a (\w+), a class that torchao|records (\w+=.*?), which")


def _class(tensor: dict) -> str:
    """The class as written, with what is inside it for torchao v1."""
    name = tensor["class"].rpartition(".")[2]
    inner = next((item for item in tensor["inner"].values() if "inner" in item), None)
    return name if inner is None else f"{name} > {_class(inner)}"


def cells(taken: readings.Readings) -> dict[tuple[str, str, str], judging.Cell]:
    """Weights counted by (class, writer, reader)."""
    found: dict[tuple[str, str, str], judging.Cell] = {}
    for name, case in taken.cases.items():
        for key in taken.weights(name):
            for reader, files in taken.by_release.items():
                outcome = judging.loaded(
                    case, files[name]["load"]["weights"][key], key, reader, taken.written(name, key)
                )
                cell = found.setdefault((_class(case.truth["tensors"][key]), case.release, reader), judging.Cell())
                cell.counted[outcome.status] += 1
                if outcome.status != "exact":
                    lacks = _LACKS.search(outcome.why)
                    cell.reasons.add((lacks[1] or lacks[2]) if lacks else f"{name} {key}: {outcome.why}")
    return found


def _order(release: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", release)) or (99,)


def table(found: dict[tuple[str, str, str], judging.Cell]) -> str:
    """The matrix in markdown, with its totals."""
    lines = [
        f"| class, as written | by | {' | '.join(environment.READERS)} |",
        "|---|---|" + "---|" * len(environment.READERS),
    ]
    rows = sorted({(cls, writer) for cls, writer, _ in found}, key=lambda row: (row[0], _order(row[1])))
    for cls, writer in rows:
        shown = [_cell(found[cls, writer, reader]) for reader in environment.READERS]
        lines.append(f"| {cls} | {writer} | {' | '.join(shown)} |")
    return "\n".join([*lines, "", totals(found)])


def _cell(cell: judging.Cell) -> str:
    said = [f"{cell.counted['exact']} exact"] if cell.counted["exact"] else []
    if cell.counted["refused"]:
        said.append(f"{cell.counted['refused']} refused: {', '.join(sorted(cell.reasons))}")
    if cell.counted["wrong"]:
        said.append(f"**{cell.counted['wrong']} WRONG**")
    return "; ".join(said)


def totals(found: dict[tuple[str, str, str], judging.Cell]) -> str:
    """One line: how many weights are exact, refused by name, wrong."""
    counted = {status: sum(cell.counted[status] for cell in found.values()) for status in ("exact", "refused", "wrong")}
    return ", ".join(f"{count} {status}" for status, count in counted.items())


def main() -> int:
    """Print the table; the exit status tells whether anything is wrong."""
    with tempfile.TemporaryDirectory() as folder:
        found = cells(readings.take(Path(folder)))
    print(table(found))
    return any(cell.counted["wrong"] for cell in found.values())


if __name__ == "__main__":
    sys.exit(main())
