"""Sources that change while they are read, and sources that are no files: status 1 or 2, nothing published."""

from __future__ import annotations

import os
import shutil
import socket

import pytest
import sources
from child import Hold, check_failed, convert, digest, ended, finish, no_privileges, run, some, start

import depickle

NAME = "model.safetensors"
MIB = 1024 * 1024


def overwrite(at):
    def act(path):
        with path.open("r+b") as file:
            file.seek(at)
            byte = file.read(1)
            file.seek(at)
            file.write(bytes([byte[0] ^ 0xFF]))

    return act


def overwrite_and_restore_time(path):
    before = path.stat()
    overwrite(2 * MIB)(path)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def change_and_change_back(path):
    overwrite(7 * MIB)(path)
    overwrite(7 * MIB)(path)


def append(path):
    with path.open("ab") as file:
        file.write(b"x")


def replace(path):
    other = path.with_name("other")
    sources.write(other, 8 * MIB, seed=2)
    os.replace(other, path)


CHANGES = {
    "a byte that was read": overwrite(2 * MIB),
    "a byte to come": overwrite(7 * MIB),
    "there and back": change_and_change_back,
    "with its old time": overwrite_and_restore_time,
    "appended to": append,
    "cut to nothing": lambda path: os.truncate(path, 0),
    "cut in the data": lambda path: os.truncate(path, 6 * MIB),
    "its directory cut off": lambda path: os.truncate(path, path.stat().st_size - 10),
    "replaced": replace,
    "removed": lambda path: path.unlink(),
}


_CASES = [(change, phase) for change in CHANGES for phase in ("first pass", "second pass")]
_CHOSEN = [
    *((change, "first pass") for change in ("a byte that was read", "a byte to come", "with its old time", "replaced")),
    *((change, "second pass") for change in ("there and back", "cut in the data", "removed")),
]


@pytest.fixture
def mine(tmp_path):
    """A source that the test may change."""
    (tmp_path / "in").mkdir()
    return sources.write(tmp_path / "in" / "model.pt", 8 * MIB)


@pytest.mark.parametrize(("change", "phase"), some(_CASES, *_CHOSEN))
def test_changed_while_it_is_read(mine, out, shim, tmp_path, change, phase):
    hold = Hold.at(tmp_path / "hold")
    rule = f"READ=match=model.pt,after={4 * MIB}" if phase == "first pass" else f"READ=match=.part,after={4 * MIB}"
    call, rule = rule.split("=", 1)
    env = shim(**{call: f"{rule},{hold.rule}"})
    with ended(start("convert", mine, "--out-dir", out, env=env)) as process:
        hold.wait()
        CHANGES[change](mine)
        hold.release()
        done = finish(process)
    check_failed(done, 1, 2, says="model.", folder=out)


def test_changed_while_it_is_verified(mine, out, shim, tmp_path):
    depickle.convert(mine, out)
    hold = Hold.at(tmp_path / "hold")
    env = shim(READ=f"match=model.pt,after={4 * MIB},{hold.rule}")
    with ended(start("verify", mine, out / NAME, env=env)) as process:
        hold.wait()
        change_and_change_back(mine)
        hold.release()
        check_failed(finish(process), 1, 2, says="model.pt")


@pytest.mark.parametrize("change", ["a byte to come", "cut in the data", "appended to"])
def test_the_output_changes_while_it_is_proved(mine, out, shim, tmp_path, change):
    """Somebody else writes to the temporary file."""
    hold = Hold.at(tmp_path / "hold")
    env = shim(READ=f"match=.part,after={4 * MIB},{hold.rule}")
    with ended(start("convert", mine, "--out-dir", out, env=env)) as process:
        hold.wait()
        CHANGES[change](next(out.glob(".depickle-*.part")))
        hold.release()
        check_failed(finish(process), 1, 2, folder=out)


def test_changed_while_an_existing_result_is_looked_at(mine, out, shim, tmp_path):
    """The way that skips must not say that it verified what it did not."""
    depickle.convert(mine, out)
    before = digest(out / NAME)
    hold = Hold.at(tmp_path / "hold")
    env = shim(READ=f"match=model.pt,after={4 * MIB},{hold.rule}")
    with ended(start("convert", mine, "--out-dir", out, env=env)) as process:
        hold.wait()
        overwrite(2 * MIB)(mine)
        hold.release()
        check_failed(finish(process), 1, 2)
    assert digest(out / NAME) == before


# --- no files -------------------------------------------------------------------------------------------------------


SYSTEM = ("/dev/zero", "/dev/null", "/dev/stdin", "/proc/self/mem", "/proc/version", "/")


def make_socket(path):
    at = os.getcwd()
    os.chdir(path.parent)  # the name of a socket is short
    try:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(path.name)
    finally:
        os.chdir(at)


KINDS = {
    "fifo": (os.mkfifo, {2}, "is not a regular file"),
    "socket": (make_socket, {2}, ""),
    "folder": (os.mkdir, {1, 2}, ""),
    "missing": (lambda _: None, {2}, "No such file or directory"),
    "empty": (lambda path: path.touch(), {2}, "is empty"),
    "link to nothing": (lambda path: path.symlink_to("nothing"), {2}, "No such file or directory"),
    "link to itself": (lambda path: path.symlink_to(path), {2}, "symbolic links"),
    "link to /dev/zero": (lambda path: path.symlink_to("/dev/zero"), {2}, "is not a regular file"),
    "link to /dev/null": (lambda path: path.symlink_to("/dev/null"), {2}, "is not a regular file"),
    "one byte": (lambda path: path.write_bytes(b"P"), {1, 2}, ""),
}


@pytest.mark.parametrize("verb", some(["convert", "inspect", "scan", "verify"], "convert"))
@pytest.mark.parametrize("kind", some(KINDS, "fifo", "folder", "missing", "empty", "link to /dev/zero"))
def test_what_is_no_checkpoint(tmp_path, out, verb, kind):
    make, statuses, says = KINDS[kind]
    source = tmp_path / "model.pt"
    make(source)
    more = {"convert": ["--out-dir", out], "verify": [source]}.get(verb, [])
    done = run(verb, source, *more)
    if verb == "scan" and kind == "one byte":
        assert done.status == 1, done
        return
    check_failed(done, *statuses, says=says, folder=out)
    assert done.seconds < 10
    assert "model.pt" in done.stderr


@pytest.mark.parametrize("path", some(SYSTEM, "/proc/self/mem"))
@pytest.mark.parametrize("verb", some(["convert", "scan"], "convert"))
def test_what_the_system_has(out, verb, path):
    done = run(verb, path, *(["--out-dir", out] if verb == "convert" else []))
    check_failed(done, 1, 2, folder=out)


def test_a_source_that_may_not_be_read(small, tmp_path):
    source = tmp_path / "model.pt"
    shutil.copy(small, source)
    source.chmod(0o000)
    (tmp_path / "out").mkdir()
    (tmp_path / "out").chmod(0o777)
    done = convert(source, tmp_path / "out", preexec_fn=no_privileges)
    check_failed(done, 2, says="Permission denied", folder=tmp_path / "out")
    assert "model.pt" in done.stderr


def test_a_link_to_a_source_is_a_source(small, out, tmp_path):
    link = tmp_path / "link.pt"
    link.symlink_to(small)
    assert convert(link, out).status == 0
    assert os.listdir(out) == ["link.safetensors"]


def test_one_bad_source_does_not_stop_the_others(small, out, tmp_path):
    missing, empty = tmp_path / "missing.pt", tmp_path / "empty.pt"
    empty.touch()
    done = run("convert", missing, small, empty, "--out-dir", out)
    assert done.status == 2
    assert len(done.stderr.splitlines()) == 2
    assert os.listdir(out) == [NAME]
