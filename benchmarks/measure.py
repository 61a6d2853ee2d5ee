"""Run whole commands in turns, and keep what the system says of them: seconds, peak memory, bytes read and written."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

# Runs the command line in this process and leaves what the kernel counted of its reads and writes.
COUNTED = """
import sys
from depickle.cli import main
status = main(sys.argv[2:])
open(sys.argv[1], "w").write(open("/proc/self/io").read())
raise SystemExit(status)
"""


@dataclass(frozen=True)
class Run:
    """One finished command: seconds, MiB, and bytes that passed through its reads and writes (0 where not counted)."""

    wall: float
    cpu: float
    peak: float
    read: int = 0
    written: int = 0


@dataclass
class Case:
    """A command with its floor, run in turns A B A B; `before` makes each run start alike."""

    name: str
    command: list[str]
    floor: list[str] | None = None
    target: float | None = None  # of the ratio of wall times, command to floor
    before: list[Path] = field(default_factory=list)  # files that are removed first
    runs: int = 5
    io: Path | None = None
    environment: dict[str, str] = field(default_factory=dict)


def once(command: list[str], environment: dict[str, str], io: Path | None = None) -> Run:
    """Run a command to its end. Raises RuntimeError if it fails."""
    started = time.perf_counter()
    child = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env={**os.environ, **environment}
    )
    errors = child.stderr.read() if child.stderr else b""
    _, status, usage = os.wait4(child.pid, 0)
    wall = time.perf_counter() - started
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise RuntimeError(f"{command[:6]} ended with {child.returncode}: {errors[-500:]!r}")
    counted = dict(line.split(": ") for line in io.read_text().splitlines()) if io else {}
    return Run(
        wall,
        usage.ru_utime + usage.ru_stime,
        usage.ru_maxrss / 1024,
        int(counted.get("rchar", 0)),
        int(counted.get("wchar", 0)),
    )


def in_turns(case: Case) -> tuple[list[Run], list[Run]]:
    """The command's runs and its floor's, alternating; one of each first that does not count."""
    mine: list[Run] = []
    floors: list[Run] = []
    for turn in range(case.runs + 1):
        for path in case.before:
            path.unlink(missing_ok=True)
        run = once(case.command, case.environment, case.io)
        floor = once(case.floor, case.environment) if case.floor else None
        if turn:
            mine.append(run)
            floors += [floor] if floor else []
    return mine, floors


def spread(values: list[float]) -> str:
    """`median (min-max)`."""
    return f"{statistics.median(values):.2f} ({min(values):.2f}-{max(values):.2f})"


def row(case: Case, mine: list[Run], floors: list[Run]) -> dict[str, object]:
    """One line of the table."""
    ratios = [a.wall / b.wall for a, b in zip(mine, floors)]
    return {
        "what": case.name,
        "wall s": spread([run.wall for run in mine]),
        "cpu s": f"{statistics.median(run.cpu for run in mine):.2f}",
        "floor s": spread([run.wall for run in floors]) if floors else "",
        "ratio": f"{statistics.median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})" if ratios else "",
        "target": f"<= {case.target}" if case.target else "",
        "peak MiB": f"{max(run.peak for run in mine):.0f}",
        "floor peak MiB": f"{max(run.peak for run in floors):.0f}" if floors else "",
        "read, written": f"{mine[-1].read}, {mine[-1].written}" if case.io else "",
    }


def python(code: str, *arguments: str) -> list[str]:
    """A bare Python process that runs `code`."""
    return [sys.executable, "-c", code, *arguments]
