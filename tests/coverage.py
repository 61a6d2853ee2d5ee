"""`python -m tests.coverage [FOLDER]`: convert every fixture, hold each result against its truth, print a table.

One row a class and kind, one column a release: `ok` converted and equal to the truth, `ref` refused for a documented
reason, `WRONG` otherwise; below it what is wrong, and the totals. Exit status 1 if anything is wrong or if there was
nothing to convert. Needs neither torch nor numpy.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "src")]

import truth  # noqa: E402 - needs the path
from coverage_table import table, totals  # noqa: E402


def run(folder: Path) -> list[truth.Verdict]:
    """Judge every fixture of a folder."""
    with tempfile.TemporaryDirectory() as made:
        return [truth.judge(case, Path(made) / case.release) for case in truth.cases(folder)]


def main(argv: Sequence[str]) -> int:
    """Print the table; return the exit status."""
    verdicts = run(Path(argv[0]) if argv else HERE / "data" / "fixtures")
    if not verdicts:
        print("there are no fixtures here", file=sys.stderr)
        return 1
    print(table(verdicts))
    for verdict in verdicts:
        for detail in verdict.details if verdict.status == "wrong" else ():
            print(f"WRONG {verdict.release}/{verdict.kind}: {detail}")
    print(totals(verdicts))
    return int(any(verdict.status == "wrong" for verdict in verdicts))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
