"""`python -m tests.oracle.matrix` writes docs/compatibility.md: who reads whose files.

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

PAGE = HERE.parents[1] / "docs" / "compatibility.md"
_BEFORE = """\
<!-- Written by python -m tests.oracle.matrix; do not edit. -->

# Compatibility

What `depickle.torch.load` makes of a converted file, by the release of torchao that wrote the pickle (rows) and the one
that is installed where the file is loaded (columns). Counted are the weights of the real files in tests/data, each
loaded under each release, with torch {torch}.

- *exact*: same class, attributes and bytes as the writer's, in the spelling of the reader's release, and, where the class
  can be dequantised, the writer's values. A class of torchao v1 counts as the class that it is mapped to
  ([classes.md](classes.md)); its dynamic int8 is rebuilt as v1's own class where the release still has it. NVFP4 with a scale
  of the whole tensor is not held to the writer's values across 0.18, which combines the scales in float32 and not in bfloat16.
- *refused*: an error that names the weight and what the release lacks: the class, or a field and its value that would be
  lost. `dequantize=True` loads those too, without torchao ([loading.md](loading.md)).
- *wrong*: anything else. The tests fail if there is one.

"""
_AFTER = """
`python -m tests.oracle.matrix` rewrites this page; the tests compare it with what they find.
"""
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


def page(found: dict[tuple[str, str, str], judging.Cell]) -> str:
    """docs/compatibility.md."""
    return f"{_BEFORE.format(torch=environment.TORCH)}{table(found)}\n{_AFTER}"


def main() -> int:
    """Write the page; the exit status tells whether anything is wrong."""
    with tempfile.TemporaryDirectory() as folder:
        found = cells(readings.take(Path(folder)))
    PAGE.write_text(page(found), encoding="utf-8")
    print(f"{PAGE.name}: {totals(found)}")
    return any(cell.counted["wrong"] for cell in found.values())


if __name__ == "__main__":
    sys.exit(main())
