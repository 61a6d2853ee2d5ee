"""Print what became of every attack: `python tests/attacks/table.py [--cases] [--write-readme]`.

One row an attack (or, with --cases, one a file): line of the threat list, advisory, idea, how many files, by which
rule they were turned down, the most processor time and memory that one of them took. `--write-readme` puts the table
into README.md. Exit status 1 if anything did not go as it must.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import re
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import harness  # noqa: E402 - needs the path

README = HERE / "README.md"
BEGIN, END = "<!-- table: begin, by table.py -->\n", "<!-- table: end -->\n"
HEAD = (
    "| # | attack | idea | advisory | files | verdict | most time | most memory |\n|---|---|---|---|---|---|---|---|\n"
)


def load() -> list[harness.Case]:
    """Every case of every module here, in the order of the threat list."""
    for path in sorted(HERE.glob("test_attack_*.py")):
        importlib.import_module(path.stem)
    return sorted(itertools.chain(*harness.ATTACKS.values()), key=lambda item: (item.line, item.id.split("-")[1]))


def attacks(cases: Sequence[harness.Case]) -> dict[tuple[int, str, str], list[harness.Case]]:
    """The cases by attack."""
    grouped: dict[tuple[int, str, str], list[harness.Case]] = {}
    for item in cases:
        grouped.setdefault((item.line, item.id.split("-")[1], item.idea), []).append(item)
    return grouped


def verdict_of(outcome: harness.Outcome) -> str:
    """What became of a file, from the API where it was asked, else from the first command's exit status."""
    done = next((run for run in outcome.runs if run.command == "api"), outcome.runs[0])
    if done.error:
        return done.error
    return {0: "converted", 1: "Refused", 2: "Malformed"}.get(done.status or 0, f"status {done.status}")


def row(key: tuple[int, str, str], cases: Sequence[harness.Case], outcomes: dict[str, harness.Outcome]) -> str:
    """One line of the table."""
    line, name, idea = key
    advisories = ", ".join(dict.fromkeys(item.advisory for item in cases if item.advisory))
    runs = [run for item in cases for run in outcomes[item.id].runs]
    counted: dict[str, int] = {}
    for item in cases:
        verdict = verdict_of(outcomes[item.id])
        counted[verdict] = counted.get(verdict, 0) + 1
    verdicts = ", ".join(
        f"{verdict} {count}" if len(counted) > 1 else verdict for verdict, count in sorted(counted.items())
    )
    most = f"{max(run.seconds for run in runs):.2f} s | {max(max(run.mebibytes, 0) for run in runs):.0f} MiB"
    return f"| {line} | {name} | {idea.replace('|', '/')} | {advisories} | {len(cases)} | {verdicts} | {most} |"


def lines(cases: Sequence[harness.Case], outcomes: dict[str, harness.Outcome], *, each: bool) -> Iterator[str]:
    for key, group in attacks(cases).items():
        if each:
            yield from (row((key[0], item.id[3:], item.idea), [item], outcomes) for item in group)
        else:
            yield row(key, group, outcomes)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cases", action="store_true", help="one row a file")
    parser.add_argument("--write-readme", action="store_true", help="put the table into README.md")
    options = parser.parse_args()
    cases = load()
    with tempfile.TemporaryDirectory() as folder, harness.Watcher() as watcher:
        outcomes = {item.id: watcher.run(item, Path(folder, str(number))) for number, item in enumerate(cases)}
        failed = [f"{item.id}: {problem}" for item in cases for problem in harness.problems(item, outcomes[item.id])]
    table = HEAD + "\n".join(lines(cases, outcomes, each=options.cases)) + "\n"
    bad = {line.split(": ")[0] for line in failed}
    summary = f"{len(cases)} files, {len(attacks(cases))} attacks; {len(bad)} files went otherwise than they must"
    if options.write_readme:
        text = README.read_text()
        README.write_text(
            re.sub(re.escape(BEGIN) + ".*" + re.escape(END), lambda _: BEGIN + table + END, text, flags=re.DOTALL)
        )
    else:
        print(table)
    print(summary)
    print("\n".join(failed), file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
