"""Verdicts as a table: a row per class and kind, a column per release. A module of its own, since pytest-cov owns the
name `coverage`."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

import truth

MARKS = {"converted": "ok", "refused": "ref", "wrong": "WRONG"}


def column_order(release: str) -> tuple[int, ...]:
    """Releases by number, other folders behind them."""
    return tuple(map(int, release.split("."))) if release[0].isdigit() else (1000,)


def table(verdicts: Sequence[truth.Verdict]) -> str:
    """The verdicts as text: a row per class and kind, a column per release, a number where there are several files."""
    cells: dict[tuple[str, str], dict[str, Counter[str]]] = defaultdict(lambda: defaultdict(Counter))
    for verdict in verdicts:
        cells[" + ".join(verdict.classes), verdict.kind][verdict.release][verdict.status] += 1
    releases = sorted({verdict.release for verdict in verdicts}, key=column_order)
    rows = [["class", "kind", *releases]]
    for (classes, kind), found in sorted(cells.items()):
        rows.append([classes, kind, *(_cell(found.get(release, Counter())) for release in releases)])
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join(
        "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def _cell(counted: Counter[str]) -> str:
    return "/".join(f"{MARKS[status]}{'' if count == 1 else count}" for status, count in sorted(counted.items()))


def totals(verdicts: Sequence[truth.Verdict]) -> str:
    """How many of each, in one line."""
    counted = Counter(verdict.status for verdict in verdicts)
    return f"{len(verdicts)} files: {counted['converted']} converted, {counted['refused']} refused as documented, {counted['wrong']} wrong"
