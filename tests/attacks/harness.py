"""What an attack is, how it is run, and what must hold afterwards.

An attack is a generator function under `@attack(...)`: its docstring tells the idea, it yields one or more files. Each file
becomes a `Case`. `run` lays every case out in a sandbox of its own and hands all of them to `watcher.py`, one process that
forks for each command, under limits and with an audit hook; `check` then holds the outcome against the verdict:

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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import assemble
import depickle
from watcher import tree

REFUSED, MALFORMED, EITHER, HARMLESS, HONEST = "Refused", "Malformed", "Refused or Malformed", "harmless", "honest"
STATUS = {REFUSED: {1}, MALFORMED: {2}, EITHER: {1, 2}, HARMLESS: {0, 1, 2}, HONEST: {0}}
CLASSES = {REFUSED: {"Refused"}, MALFORMED: {"Malformed"}, HONEST: set()}
SECONDS, MEBIBYTES = 1.0, 100.0  # what any hostile file may cost: CPU time, and growth of the process
CONVERT: tuple[tuple[str, ...], ...] = (("convert", "{src}", "--out-dir", "{out}"),)
INSPECT: tuple[tuple[str, ...], ...] = (("inspect", "{src}"),)
TOKEN = "hf_CanaryTokenOfTheAttackTests"  # noqa: S105 - in the environment of the child; nothing may show it

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
    looks: tuple[tuple[str, ...], ...] = INSPECT
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


def attack(line: int, advisory: str = "", verdict: str = REFUSED, message: str = "", **fields: Any) -> Callable[..., Any]:
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


def run(cases: Sequence[Case], folder: Path) -> dict[str, Outcome]:
    """Run every case in one watcher process."""
    jobs, sandboxes = [], {}
    for number, item in enumerate(cases):
        sandbox = folder / f"{number:04}"
        source = lay_out(item, sandbox)
        places = {"src": str(source), "out": str(sandbox / "out"), "dir": str(sandbox)}
        commands = [[part.format(**places) for part in command] for command in (*item.commands, *item.looks)]
        if item.api:
            commands.append(["api", str(source), str(sandbox / "out")])
        sandboxes[item.id] = (sandbox, tree(sandbox))
        jobs.append({"id": item.id, "sandbox": str(sandbox), "commands": commands})
    control = folder / "control.pt"
    control.write_bytes(assemble.torch_file(assemble.state_dict({"w": assemble.tensor()})))
    results = watch(jobs, control)
    return {
        name: Outcome(
            tuple(Run(**{**entry["run"], "argv": tuple(entry["run"]["argv"])}) for entry in results[name]),
            tuple(entry["found"] for entry in results[name]),
            before,
            sandbox,
        )
        for name, (sandbox, before) in sandboxes.items()
    }


def watch(jobs: list[dict[str, Any]], control: Path) -> dict[str, list[dict[str, Any]]]:
    """Hand the jobs to a watcher process and read what it saw."""
    script = Path(__file__).with_name("watcher.py")
    made = subprocess.run(
        [sys.executable, str(script), str(control)],
        input=json.dumps(jobs),
        capture_output=True,
        text=True,
        env=os.environ | {"HF_TOKEN": TOKEN, "PYTHONPATH": PACKAGE, "PYTHONDONTWRITEBYTECODE": "1", "COLUMNS": "200"},
        check=False,
    )
    if made.returncode != 0:
        raise RuntimeError(f"the watcher failed:\n{made.stderr}")
    return {entry["id"]: entry["results"] for entry in map(json.loads, made.stdout.splitlines())}


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
            complaints += _look(done)
        found += [f"{done.command}: {complaint}" for complaint in complaints]
    return found


def check(item: Case, outcomes: Mapping[str, Outcome]) -> None:
    """Fail with every problem of a case."""
    found = problems(item, outcomes[item.id])
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
    for name in sorted(set(before) | set(after)):
        made_by_success = name.startswith("out" + os.sep) and done.status == 0 and done.command != "inspect"
        if before.get(name) != after.get(name) and not made_by_success and name not in item.leftovers:
            yield f"left {name} {'changed' if name in before and name in after else 'made or removed'}"


def _explained(item: Case, text: str) -> Iterator[str]:
    if item.verdict not in {HARMLESS, HONEST} and not re.search(item.message, text, re.IGNORECASE):
        yield f"says {text!r}, expected something on {item.message!r}"


def _command(item: Case, done: Run, sandbox: Path) -> Iterator[str]:
    if done.status not in STATUS[item.verdict]:
        yield f"exit status {done.status}, expected {sorted(STATUS[item.verdict])}; {done.stderr.strip()[-300:]!r}"
    elif done.status == 0:
        yield from _converted(item, done, sandbox)
    else:
        if len(done.stderr.strip().splitlines()) != 1:
            yield f"{len(done.stderr.strip().splitlines())} lines on standard error: {done.stderr!r}"
        yield from _explained(item, done.stderr.removeprefix("depickle: ").replace(str(sandbox), ""))


def _api(item: Case, done: Run) -> Iterator[str]:
    if item.verdict in {HARMLESS, HONEST} and done.status == 0:
        return
    allowed = CLASSES.get(item.verdict, {"Refused", "Malformed"})
    if done.error not in allowed:
        yield f"raised {done.error or 'nothing'}, expected {sorted(allowed)}; {done.message[:300]!r}"
    elif item.verdict != HARMLESS:
        yield from _explained(item, done.message)


def _look(done: Run) -> Iterator[str]:
    if done.status not in {0, 1, 2}:
        yield f"exit status {done.status}; {done.stderr.strip()[-300:]!r}"
    if done.status in {1, 2} and len(done.stderr.strip().splitlines()) != 1:
        yield f"{len(done.stderr.strip().splitlines())} lines on standard error: {done.stderr!r}"


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
