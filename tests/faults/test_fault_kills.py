"""kill -9: the destination is absent or complete, and the next run leaves nothing else behind."""

from __future__ import annotations

import os
import shutil
import signal

import kills
import pytest
import sources
from child import convert, digest, ended, finish, start

import depickle

NAME = "model.safetensors"
COUNT = int(os.environ.get("DEPICKLE_KILLS", "8"))


def test_killed_at_random_moments(tmp_path):
    source = sources.write(tmp_path / "model.pt", 16 * 1024 * 1024)
    seen, wrong = kills.kill_often(source, tmp_path, COUNT, seed=os.getpid())
    assert not wrong
    assert sum(seen.values()) == COUNT


def _changes(shim, tmp_path, source, out, *more):
    """The calls by which a run that nobody disturbs changes something, in their order."""
    log = tmp_path / "log"
    assert convert(source, out, *more, env=shim(LOG=log)).status == 0
    return [line.split(" ", 1)[0] for line in log.read_text().splitlines()]


@pytest.mark.parametrize("replacing", [False, True], ids=["new", "overwrite"])
def test_killed_before_every_call_that_changes_something(tmp_path, small, right, shim, replacing):
    """Not at random: each of its calls in turn is the one that is not made any more."""
    more = ["--overwrite"] if replacing else []
    old = tmp_path / "old" / NAME
    if replacing:
        depickle.convert(small, old.parent, revision="0" * 40)
    folder = tmp_path / "first"
    _prepare(folder, old, replacing)
    calls = _changes(shim, tmp_path, small, folder / "out", *more)
    assert {"create", "flock", "write", "fsync", "unlink"} <= set(calls)
    whole = {right(small), digest(old)} if replacing else {right(small)}
    for number, call in enumerate(calls):
        folder = tmp_path / str(number)
        _prepare(folder, old, replacing)
        out = folder / "out"
        killed = convert(small, out, *more, env=shim(KILL=number))
        where = f"{number} {call}"
        if call == "write" and killed.status != -signal.SIGKILL:
            assert calls.index("unlink") < number, where  # a line of output: the other way out of the process
            continue
        assert killed.status == -signal.SIGKILL, where
        assert (digest(out / NAME) in whole) if (out / NAME).exists() else not replacing, where
        depickle.convert(small, out, overwrite=replacing)
        assert os.listdir(out) == [NAME], (where, os.listdir(out))
        assert digest(out / NAME) == right(small), where


def _prepare(folder, old, replacing):
    folder.mkdir()
    if replacing:
        (folder / "out").mkdir()
        shutil.copy(old, folder / "out" / NAME)


def test_a_living_run_is_not_swept(tmp_path, small, right, out, shim):
    """The next run removes what nobody holds; what a living one writes to is held."""
    (out / ".depickle-0123456789abcdef.part").write_bytes(b"litter of a run that was killed")
    with ended(start("convert", small, "--out-dir", out, env=shim(FSYNC="delay=700000"))) as slow:
        while not any(path.stat().st_size for path in out.glob(".depickle-*") if "0123" not in path.name):
            assert slow.poll() is None
        other = small.with_name("other.pt")
        shutil.copy(small, other)
        assert convert(other, out).status == 0
        assert finish(slow).status == 0
    assert sorted(os.listdir(out)) == [NAME, "other.safetensors"]
    assert digest(out / NAME) == right(small)


@pytest.mark.parametrize("end", ["skipped", "refused"])
def test_litter_goes_also_if_nothing_is_written(tmp_path, small, out, end):
    depickle.convert(small, out, revision="1" * 40 if end == "refused" else None)
    os.link(out / NAME, out / ".depickle-0123456789abcdef.part")  # killed between the two names
    done = convert(small, out)
    assert done.status == (1 if end == "refused" else 0), done
    assert os.listdir(out) == [NAME]


def test_others_files_are_not_litter(small, out):
    kept = [".depickle-notes", "x.part", ".part", "model.depickle-1.part"]
    for name in kept:
        (out / name).touch()
    assert convert(small, out).status == 0
    assert sorted(os.listdir(out)) == sorted([*kept, NAME])


def test_the_command(tmp_path):
    """`python -m tests.faults.kills` as the docs name it."""
    import subprocess
    import sys
    from pathlib import Path

    command = [sys.executable, "-m", "tests.faults.kills", "--size", "64K", "--kills", "2", "--folder", tmp_path]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done
    assert done.stdout.splitlines()[-1].startswith("2 kills, 0 wrong")
