"""What an attack is, how it is run, and what must hold afterwards.

An attack is a generator function under `@attack(...)`: its docstring tells the idea, it yields one or more files.
Each file becomes a `Case`. A `Watcher` lays it out in a sandbox and hands its commands to `watcher.py`, a process
that forks for each, under limits and with an audit hook; `check` holds the outcome against the verdict:

    REFUSED     depickle.Refused, exit status 1
    MALFORMED   depickle.Malformed, exit status 2
    EITHER      one of the two: the specification leaves open which
    HARMLESS    may be converted, since nothing in it is harmful to this reader; `holds` says what must come out
    HONEST      must be converted: the control from which the lies around it differ

Whatever the verdict: nothing is imported, executed or started, nothing is written but the output, a file that is not
converted leaves nothing behind, one line on standard error says why, and time and memory stay small.
"""

from __future__ import annotations

import json
import os
import re
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from watcher import tree

import assemble
import depickle

REFUSED, MALFORMED, EITHER, HARMLESS, HONEST = "Refused", "Malformed", "Refused or Malformed", "harmless", "honest"
STATUS = {REFUSED: {1}, MALFORMED: {2}, EITHER: {1, 2}, HARMLESS: {0, 1, 2}, HONEST: {0}}
CLASSES = {REFUSED: {"Refused"}, MALFORMED: {"Malformed"}, HONEST: set()}
SECONDS, MEBIBYTES = 1.0, 100.0  # what any hostile file may cost: CPU time, and growth of the process
CONVERT: tuple[tuple[str, ...], ...] = (("convert", "{src}", "--out-dir", "{out}"),)
LOOK: tuple[tuple[str, ...], ...] = (("inspect", "{src}"), ("scan", "{src}"))
TOKEN = "hf_CanaryTokenOfTheAttackTests"

PACKAGE = str(Path(depickle.__file__).parents[1])  # the child tests the same package, installed or not

Content = bytes | Callable[[], bytes]


@dataclass(frozen=True, eq=False)
class Case:
    """One hostile file and what must happen; see `attack` for the fields that come from there."""

    id: str
    content: Content
    message: str = ""
    verdict: str = REFUSED
    line: int = 0
    advisory: str = ""
    idea: str = ""
    file: str = "model.pt"
    commands: tuple[tuple[str, ...], ...] = CONVERT
    looks: tuple[tuple[str, ...], ...] = LOOK
    unclean: bool = False  # `scan` has to say so
    api: bool = True
    holds: Mapping[str, bytes] = field(default_factory=dict)
    setup: Callable[[Path], None] | None = None
    leftovers: frozenset[str] = frozenset()
    seconds: float = SECONDS
    mebibytes: float = MEBIBYTES

    def __str__(self) -> str:
        return self.id


ATTACKS: dict[str, list[Case]] = {}


def case(name: str, content: Content, message: str = "", **fields: Any) -> Case:
    """One file of an attack, with whatever differs from its `@attack` line."""
    return Case(name, content, message, **({"verdict": ""} | fields))


def attack(
    line: int, advisory: str = "", verdict: str = REFUSED, message: str = "", **fields: Any
) -> Callable[..., Any]:
    """Register a generator of cases: `(name, content)` or `(name, content, message)` or a `case()`.

    `line` is that of THREATS.md, `message` a regular expression for the error's text (upper and lower case alike).
    """

    def register(build: Callable[[], Iterator[Any]]) -> Callable[[], Iterator[Any]]:
        cases = ATTACKS.setdefault(build.__module__, [])
        for item in build():
            made = item if isinstance(item, Case) else case(*item)
            cases.append(
                replace(
                    made,
                    id=f"{line:02}-{build.__name__}-{made.id}",
                    verdict=made.verdict or verdict,
                    message=made.message or message,
                    line=line,
                    advisory=advisory,
                    idea=" ".join((build.__doc__ or "").split()),
                    **fields,
                )
            )
        return build

    return register


@dataclass(frozen=True)
class Run:
    """What one command did."""

    argv: tuple[str, ...]
    status: int | None
    error: str
    message: str
    stdout: str
    stderr: str
    events: tuple[str, ...]
    seconds: float
    mebibytes: float
    kept: str = ""

    @property
    def command(self) -> str:
        return self.argv[0]


@dataclass(frozen=True)
class Outcome:
    """All runs of a case, in order, and what was found in its sandbox after each."""

    runs: tuple[Run, ...]
    found: tuple[Mapping[str, str], ...]  # path -> digest, after the run
    before: Mapping[str, str]
    sandbox: Path


def lay_out(item: Case, sandbox: Path) -> Path:
    """Write the case's files; return the source."""
    for name in ("in", "out", "tmp", "cwd", "outside"):
        (sandbox / name).mkdir(parents=True)
    source = sandbox / "in" / item.file
    source.write_bytes(item.content() if callable(item.content) else item.content)
    if item.setup is not None:
        item.setup(sandbox)
    return source


class Watcher:
    """The process that runs cases; a context manager. Cases are laid out in a folder each, and handed over one at a
    time."""

    def __enter__(self) -> Watcher:
        self._folder = tempfile.TemporaryDirectory()
        control = Path(self._folder.name, "control.pt")
        control.write_bytes(assemble.torch_file(assemble.state_dict({"w": assemble.tensor()})))
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("watcher.py")), str(control)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ
            | {"HF_TOKEN": TOKEN, "PYTHONPATH": PACKAGE, "PYTHONDONTWRITEBYTECODE": "1", "COLUMNS": "200"},
        )
        return self

    def __exit__(self, *exc: object) -> None:
        self._process.communicate()
        self._folder.cleanup()

    def run(self, item: Case, sandbox: Path) -> Outcome:
        """Lay a case out below `sandbox` and run its commands."""
        source = lay_out(item, sandbox)
        places = {"src": str(source), "out": str(sandbox / "out"), "dir": str(sandbox)}
        commands = [[part.format(**places) for part in command] for command in (*item.commands, *item.looks)]
        if item.api:
            commands.append(["api", str(source), str(sandbox / "out")])
        before = tree(sandbox)
        job = {"sandbox": str(sandbox), "seconds": item.seconds}
        entries = [self._ask(job | {"command": command, "number": number}) for number, command in enumerate(commands)]
        runs = tuple(Run(**{**entry["run"], "argv": tuple(entry["run"]["argv"])}) for entry in entries)
        return Outcome(runs, tuple(entry["found"] for entry in entries), before, sandbox)

    def _ask(self, job: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(
                f"the watcher ended with status {self._process.wait()}; what it said is on standard error"
            )
        answer: dict[str, Any] = json.loads(line)
        return answer


def problems(item: Case, outcome: Outcome) -> list[str]:
    """Everything that did not happen as it must."""
    found = []
    for done, after in zip(outcome.runs, outcome.found, strict=True):
        complaints = [*_inert(item, done), *_left_alone(item, outcome.before, after, done)]
        if done.argv[0] == "api":
            complaints += _api(item, done)
        elif list(done.argv[:1]) in [list(command[:1]) for command in item.commands]:
            complaints += _command(item, done, outcome.sandbox)
        else:
            complaints += _look(item, done)
        found += [f"{done.command}: {complaint}" for complaint in complaints]
    return found


def check(item: Case, watcher: Watcher, folder: Path) -> None:
    """Run a case and fail with every problem that it shows."""
    found = problems(item, watcher.run(item, folder / "box"))
    assert not found, "\n".join([item.id, item.idea, *found])


def _inert(item: Case, done: Run) -> Iterator[str]:
    for event in done.events:
        yield f"did {event}"
    if "Traceback" in done.stderr:
        yield f"a traceback: {done.stderr.strip().splitlines()[-1]}"
    if TOKEN in done.stdout + done.stderr:
        yield "shows a secret of the environment"
    if any(ord(char) < 32 and char not in "\n\t" for char in done.stderr):
        yield f"control characters on standard error: {done.stderr!r}"
    if done.seconds > item.seconds:
        yield f"took {done.seconds:.2f} s of processor time, {item.seconds} s are allowed"
    if done.mebibytes > item.mebibytes:
        yield f"grew by {done.mebibytes:.0f} MiB, {item.mebibytes:.0f} MiB are allowed"


def _left_alone(item: Case, before: Mapping[str, str], after: Mapping[str, str], done: Run) -> Iterator[str]:
    if done.status == -1:
        return  # killed for what it took: the next run of the tool cleans up, and this one has failed already
    for name in sorted(set(before) | set(after)):
        made_by_success = (
            name.startswith("out" + os.sep) and done.status == 0 and done.command not in {"inspect", "scan"}
        )
        if before.get(name) != after.get(name) and not made_by_success and name not in item.leftovers:
            yield f"left {name} {'changed' if name in before and name in after else 'made or removed'}"


def _explained(item: Case, text: str) -> Iterator[str]:
    if item.verdict not in {HARMLESS, HONEST} and not re.search(item.message, text, re.IGNORECASE):
        yield f"says {text!r}, expected something on {item.message!r}"


def _command(item: Case, done: Run, sandbox: Path) -> Iterator[str]:
    if done.status not in STATUS[item.verdict]:
        yield f"exit status {done.status}, expected {sorted(STATUS[item.verdict])}; {_why(done)}"
    elif done.status == 0:
        yield from _converted(item, done, sandbox)
    else:
        yield from _one_line(done)
        yield from _explained(item, done.stderr.removeprefix("depickle: ").replace(str(sandbox), ""))


def _api(item: Case, done: Run) -> Iterator[str]:
    if item.verdict in {HARMLESS, HONEST} and done.status == 0:
        return
    allowed = CLASSES.get(item.verdict, {"Refused", "Malformed"})
    if done.error not in allowed:
        yield f"raised {done.error or 'nothing'}, expected {sorted(allowed)}; {done.message[:300]!r}"
    elif item.verdict != HARMLESS:
        yield from _explained(item, done.message)


def _why(done: Run) -> str:
    return " ".join(filter(None, (done.error, done.message[:300], done.stderr.strip()[-300:])))


def _look(item: Case, done: Run) -> Iterator[str]:
    if done.status not in {0, 1, 2}:
        yield f"exit status {done.status}; {_why(done)}"
    elif done.command == "scan":
        if item.unclean and done.status != 1:
            yield f"exit status {done.status}, expected 1: {done.stdout.strip()[:300]!r} {_why(done)}"
    elif done.status:
        yield from _one_line(done)


def _one_line(done: Run) -> Iterator[str]:
    """One line says why; after a mismatch, `verify` lists what differs on indented lines below it."""
    lines = [line for line in done.stderr.splitlines() if not (done.command == "verify" and line.startswith("  "))]
    if len(lines) != 1:
        yield f"{len(lines)} lines on standard error: {done.stderr!r}"


def _converted(item: Case, done: Run, sandbox: Path) -> Iterator[str]:
    record = json.loads(done.stdout.strip().splitlines()[-1])
    if record.get("verified_bit_identical") is not True:
        yield f"converted without verification: {record}"
    written = Path(record["dst"].replace(str(sandbox / "out"), done.kept))
    if not written.exists():
        yield f"says that it wrote {record['dst']}, which is not there"
        return
    tensors = read_safetensors(written.read_bytes())
    yield from (f"{name} came out wrong" for name, data in item.holds.items() if tensors.get(name) != data)


def read_safetensors(data: bytes) -> dict[str, bytes]:
    """The tensors of a safetensors file, by a reader of these tests' own."""
    length = struct.unpack_from("<Q", data)[0]
    header = json.loads(data[8 : 8 + length])
    header.pop("__metadata__", None)
    start = 8 + length
    return {n: data[start + e["data_offsets"][0] : start + e["data_offsets"][1]] for n, e in header.items()}
