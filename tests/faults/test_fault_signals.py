"""SIGINT and SIGTERM during a conversion: prompt, clean, status 130 and 143."""

from __future__ import annotations

import os
import random
import signal
import time

import pytest
from child import Hold, digest, ended, finish, some, start, until

import depickle

NAME = "model.safetensors"
MIB = 1024 * 1024
STATUS = {signal.SIGINT: 130, signal.SIGTERM: 143}
PROMPT = 2.0
SIGNALS = pytest.mark.parametrize("number", STATUS, ids=lambda number: number.name)
PLACES = {
    "opening": "READ=match=model.pt,after=1000",
    "first pass, reading": f"READ=match=model.pt,after={10 * MIB}",
    "first pass, writing": f"WRITE=match=.part,after={10 * MIB}",
    "second pass": f"READ=match=.part,after={10 * MIB}",
    "before the name": "LINK=",
    "before the temporary name goes": "UNLINK=match=.part",
}

_CASES = [(place, list(STATUS)[(turn + i) % 2]) for turn in range(2) for i, place in enumerate(PLACES)]


def check_stopped(done, number, folder):
    assert done.status == STATUS[number], done
    assert done.seconds < PROMPT, done
    assert not done.stderr, done
    assert not done.stdout, done
    assert os.listdir(folder) in ([], [NAME])  # never a temporary file


@pytest.mark.parametrize(("place", "number"), some(_CASES, *_CASES[: len(PLACES)]), ids=str)
def test_at_each_phase(big, out, right, shim, tmp_path, number, place):
    call, rule = PLACES[place].split("=", 1)
    hold = Hold.at(tmp_path / "hold")
    env = shim(**{call: ",".join(filter(None, [rule, hold.rule]))})
    with ended(start("convert", big, "--out-dir", out / "made", env=env)) as process:
        hold.wait()
        process.send_signal(number)
        time.sleep(0.05)
        hold.release()
        done = finish(process)
    if (out / "made" / NAME).exists():  # it came too late to stop the publishing
        assert "name" in place
        assert digest(out / "made" / NAME) == right(big)
        assert os.listdir(out / "made") == [NAME]
        assert (done.status, done.stderr) in {(STATUS[number], ""), (0, "")}, done
    else:
        check_stopped(done, number, out)


@SIGNALS
def test_at_random_moments(big, out, right, number):
    noise = random.Random(number)
    for _ in range(2):
        with ended(start("convert", big, "--out-dir", out)) as process:
            until(lambda: bool(os.listdir(out)) or process.poll() is not None)
            time.sleep(noise.uniform(0, 0.3))
            process.send_signal(number)
            done = finish(process)
        if done.stdout:  # too late: it was done, and perhaps on its way out of Python
            assert done.record["dst_sha256"] == right(big)
            assert done.status in {0, STATUS[number], -number}
        else:
            check_stopped(done, number, out)
        for path in out.iterdir():
            assert digest(path) == right(big)
            path.unlink()


@SIGNALS
def test_while_the_disk_takes_its_time(small, out, shim, tmp_path, number):
    """fsync of a large file takes long on a slow disk; nobody waits for the disk to be told that he may go."""
    log = tmp_path / "log"
    with ended(start("convert", small, "--out-dir", out, env=shim(FSYNC="delay=6000000", LOG=log))) as process:
        until(lambda: log.exists() and "fsync" in log.read_text())
        process.send_signal(number)
        done = finish(process)
    check_stopped(done, number, out)


def test_an_impatient_user(big, out, shim):
    """Several ^C in a row."""
    env = shim(READ="match=model.pt,delay=4000")
    with ended(start("convert", big, "--out-dir", out, env=env)) as process:
        until(lambda: bool(os.listdir(out)))
        for _ in range(4):
            process.send_signal(signal.SIGINT)
            time.sleep(0.003)
        done = finish(process)
    assert done.status in {130, -signal.SIGINT}, done  # the last may come when Python is on its way out
    assert done.seconds < PROMPT
    assert not done.stderr, done
    assert os.listdir(out) == []


@SIGNALS
def test_the_others_are_not_begun(small, big, out, shim, number):
    """The first of two is done and stays, the second is stopped."""
    first = small.with_name("first.pt")
    first.write_bytes(small.read_bytes())
    env = shim(READ="match=/big,delay=3000")
    with ended(start("convert", first, big, "--out-dir", out, env=env)) as process:
        until(lambda: (out / "first.safetensors").exists() and any(out.glob(".depickle-*")))
        process.send_signal(number)
        done = finish(process)
    assert done.status == STATUS[number], done
    assert done.seconds < PROMPT
    assert os.listdir(out) == ["first.safetensors"]
    assert done.record["dst"].endswith("first.safetensors")
    assert not done.stderr


@SIGNALS
def test_verify_and_scan_stop_too(big, out, shim, number):
    depickle.convert(big, out)
    slow = shim(READ="match=model,delay=3000,short=65536")
    for arguments in (("verify", big, out / NAME),):
        with ended(start(*arguments, env=slow)) as process:
            time.sleep(0.6)
            process.send_signal(number)
            done = finish(process)
        assert done.status == STATUS[number], done
        assert done.seconds < PROMPT
        assert not done.stderr
    assert os.listdir(out) == [NAME]


@SIGNALS
def test_before_anything_began(small, out, number):
    """While Python starts there is nobody to catch it, but nothing to clean up either: the shell shows the same."""
    noise = random.Random(number)
    for _ in range(3):
        with ended(start("convert", small, "--out-dir", out)) as process:
            time.sleep(noise.uniform(0.0, 0.08))
            process.send_signal(number)
            done = finish(process)
        assert done.status in {0, 1, STATUS[number], -number}, done  # 1: Python's own start, broken off
        assert all(name == NAME for name in os.listdir(out)), os.listdir(out)
