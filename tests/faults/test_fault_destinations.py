"""Destinations that are something else already, that two runs want at once, and names that nobody would choose."""

from __future__ import annotations

import json
import os
import shutil

import pytest
import sources
from child import Hold, check_failed, convert, digest, ended, finish, run, some, start, until

import depickle

NAME = "model.safetensors"

PLANTED = {
    "link to a file": lambda path, target: (target.write_bytes(b"precious"), path.symlink_to(target)),
    "link to nothing": lambda path, target: path.symlink_to(target),
    "link to a folder": lambda path, target: (target.mkdir(), path.symlink_to(target)),
    "link to itself": lambda path, _: path.symlink_to(path),
    "link to /dev/null": lambda path, _: path.symlink_to("/dev/null"),
    "fifo": lambda path, _: os.mkfifo(path),
    "folder": lambda path, _: path.mkdir(),
    "full folder": lambda path, _: (path.mkdir(), (path / "file").touch()),
}


@pytest.mark.parametrize("more", some([(), ("--overwrite",)], ("--overwrite",)), ids=" ".join)
@pytest.mark.parametrize("kind", some(PLANTED, "link to a file", "link to nothing", "fifo", "folder"))
def test_a_destination_that_is_no_file(small, out, tmp_path, kind, more):
    target = tmp_path / "target"
    PLANTED[kind](out / NAME, target)
    before = [(path, path.lstat().st_ino, path.lstat().st_mode) for path in sorted(out.rglob("*"))]
    done = convert(small, out, *more)
    check_failed(done, 1, says=NAME)
    assert [(path, path.lstat().st_ino, path.lstat().st_mode) for path in sorted(out.rglob("*"))] == before
    assert target.exists() == (kind in {"link to a file", "link to a folder"})
    assert not target.is_file() or target.read_bytes() == b"precious"


def test_the_link_comes_while_it_is_written(small, out, tmp_path, shim):
    """Planted between the check and the publishing: it is not written through, and not taken for the result."""
    target, hold = tmp_path / "target", Hold.at(tmp_path / "hold")
    target.write_bytes(b"precious")
    with ended(start("convert", small, "--out-dir", out, env=shim(LINK=hold.rule))) as process:
        hold.wait()
        (out / NAME).symlink_to(target)
        hold.release()
        check_failed(finish(process), 1, 2, says=NAME)
    assert target.read_bytes() == b"precious"
    assert (out / NAME).is_symlink()
    assert os.listdir(out) == [NAME]


@pytest.mark.parametrize("path", some(["/dev/null", "/dev/full", "/proc/self/fd"], "/dev/null"))
def test_an_output_folder_that_is_none(small, path):
    check_failed(convert(small, path), 2)


def test_an_output_folder_that_is_a_file(small, tmp_path):
    file = tmp_path / "file"
    file.write_bytes(b"precious")
    check_failed(convert(small, file), 2, says="file")
    check_failed(convert(small, file / "deeper"), 2, says="file")
    assert file.read_bytes() == b"precious"


def test_an_output_folder_through_a_link(small, out, tmp_path, right):
    (tmp_path / "link").symlink_to(out)
    assert convert(small, tmp_path / "link").status == 0
    assert digest(out / NAME) == right(small)


def test_the_folder_goes_while_it_is_written(small, out, tmp_path, shim):
    hold = Hold.at(tmp_path / "hold")
    with ended(start("convert", small, "--out-dir", out, env=shim(FSYNC=hold.rule))) as process:
        hold.wait()
        shutil.rmtree(out)
        hold.release()
        check_failed(finish(process), 1, 2)
    assert not out.exists()


# --- two at once ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("more", some([(), ("--overwrite",)], ()), ids=" ".join)
def test_two_at_once(big, out, right, more):
    processes = [start("convert", big, "--out-dir", out / "made", *more) for _ in range(2)]
    results = [finish(process) for process in processes]
    assert [done.status for done in results] == [0, 0], results
    assert {done.record["dst_sha256"] for done in results} == {right(big)}
    assert os.listdir(out / "made") == [NAME]
    assert digest(out / "made" / NAME) == right(big)


@pytest.mark.parametrize("more", [[], ["--overwrite"]], ids=["new", "overwrite"])
@pytest.mark.parametrize("same", [True, False], ids=["same source", "two sources"])
def test_both_finish_together(small, out, right, shim, tmp_path, more, same):
    """Both stand before the publishing when they are let go."""
    other = tmp_path / "other" / "model.pt"
    other.parent.mkdir()
    shutil.copy(small, other) if same else sources.write(other, 0, seed=2)
    holds = [Hold.at(tmp_path / f"hold{i}") for i in range(2)]
    call = "RENAME" if more else "LINK"
    processes = [
        start("convert", source, "--out-dir", out, *more, env=shim(**{call: hold.rule}))
        for source, hold in zip([small, other], holds)
    ]
    for hold in holds:
        hold.wait()
    for hold in holds:
        hold.release()
    results = [finish(process) for process in processes]
    assert os.listdir(out) == [NAME]
    if same or more:
        assert [done.status for done in results] == [0, 0], results
        assert {done.record["dst_sha256"] for done in results} == {right(small), right(other)}
        assert same is False or sorted(done.record.get("skipped", False) for done in results) == [False, not more]
    else:
        assert sorted(done.status for done in results) == [0, 1], results
        check_failed(max(results, key=lambda done: done.status), 1, says="exists and is not what this conversion makes")
    assert digest(out / NAME) in {right(small), right(other)}


def test_without_hard_links_somebody_comes_first(small, out, right, shim, tmp_path):
    """A file that is there when the name is to be given is not replaced. Between that look and the rename that stands
    in for the link lies a moment in which it would be: whatever happens then, one of the two is there, and whole."""
    hold = Hold.at(tmp_path / "hold")
    with ended(start("convert", small, "--out-dir", out, env=shim(LINK=f"errno=1,{hold.rule}"))) as process:
        hold.wait()
        (out / NAME).write_bytes(b"precious")
        hold.release()
        check_failed(finish(process), 1, says=NAME)
    assert (os.listdir(out), (out / NAME).read_bytes()) == ([NAME], b"precious")
    (out / NAME).unlink()
    hold = Hold.at(tmp_path / "another")
    with ended(start("convert", small, "--out-dir", out, env=shim(LINK="errno=1", RENAME=hold.rule))) as process:
        hold.wait()
        (out / NAME).write_bytes(b"precious")
        hold.release()
        assert finish(process).status == 0
    assert os.listdir(out) == [NAME]
    assert digest(out / NAME) == right(small)


def test_one_fails_while_the_other_uses_its_folder(small, out, shim, tmp_path):
    """A run that fails takes the folders that it made with it; another may be about to use them."""
    hold = Hold.at(tmp_path / "hold")
    broken = tmp_path / "broken.pt"
    shutil.copy(small, broken)
    first = start("convert", broken, "--out-dir", out / "made", env=shim(WRITE=f"match=.part,errno=28,{hold.rule}"))
    with ended(first):
        hold.wait()
        with ended(start("convert", small, "--out-dir", out / "made", env=shim(FSYNC="delay=300000"))) as second:
            until(lambda: len(os.listdir(out / "made")) > 1)
            hold.release()
            assert finish(first).status == 2
            assert finish(second).status == 0
    assert os.listdir(out / "made") == [NAME]


# --- names ----------------------------------------------------------------------------------------------------------

NAMES = {
    "newline": "mo\ndel.pt",
    "escape": "mo\x1b[31mdel.pt",
    "emoji": "🧂🥒.pt",
    "right to left": "\u202etp.ledom.pt",
    "dash": "-model.pt",
    "spaces": "  .pt",
    "percent": "100%s{}.pt",
    "quotes": "a\"b'c\\d.pt",
    "combining": "e\u0301.pt",
    "two hundred": "x" * 200 + ".pt",
    "longest": "x" * 243 + ".pt",
    "suffix alone": ".pt",
    "no suffix": "model",
    "latin-1": os.fsdecode(b"mod\xe8le.pt"),
    "half a character": os.fsdecode(b"\xf0\x9f.pt"),
    "surrogate in utf-8": os.fsdecode(b"\xed\xa0\x80.pt"),
}


def stem(name):
    base, suffix = os.path.splitext(name)
    return base if suffix == ".pt" else name


@pytest.mark.parametrize("kind", some(NAMES, "escape", "dash", "latin-1"))
def test_names(small, out, tmp_path, kind):
    name = NAMES[kind]
    source = tmp_path / name
    shutil.copy(small, source)
    done = run("convert", "--out-dir", out, "--", source)
    assert "Traceback" not in done.stderr, done
    if done.status == 0:
        assert os.listdir(out) == [f"{stem(name)}.safetensors"]
        assert len(done.stdout.splitlines()) == 1
        assert done.record["dst"] == str(out / f"{stem(name)}.safetensors")
        depickle.verify(source, out / f"{stem(name)}.safetensors")
    else:  # a name that JSON in UTF-8 cannot hold is refused, up front and by name
        assert not name.isprintable()
        check_failed(done, 1, 2, folder=out)


@pytest.mark.parametrize("locale", some(["C", "C.UTF-8"], "C"))
@pytest.mark.parametrize("options", some([(), ("--json",), ("--sarif",)], (), ("--json",)), ids=" ".join)
def test_names_are_shown(small, tmp_path, locale, options):
    sources_ = [tmp_path / name for name in NAMES.values()]
    for source in sources_:
        shutil.copy(small, source)
    env = {"LC_ALL": locale, "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = run("scan", *options, "--", *sources_, env=env)
    assert done.status == 0, done
    assert not done.stderr
    assert not any(ord(char) < 32 and char != "\n" for char in done.stdout)
    if options == ("--json",):
        shown = [os.fsencode(json.loads(line)["file"]) for line in done.stdout.splitlines()]
        assert shown == list(map(os.fsencode, sources_))


def test_a_name_that_gets_too_long(small, out, tmp_path, shim):
    """255 bytes as a .pt are more as a .safetensors: to be said before the work and not after it."""
    source, log = tmp_path / ("x" * 252 + ".pt"), tmp_path / "log"
    shutil.copy(small, source)
    done = convert(source, out, env=shim(LOG=log))
    check_failed(done, 1, 2, says="File name too long", folder=out)
    assert ".part" not in (log.read_text() if log.exists() else "")


def test_a_folder_with_every_kind_of_name(small, out, tmp_path):
    """In one run, and the report holds a line for each."""
    names = [name for kind, name in NAMES.items() if name.isprintable()]
    for name in names:
        shutil.copy(small, tmp_path / name)
    report = tmp_path / "report.jsonl"
    done = run("convert", "--report", report, "--out-dir", out, "--", *[tmp_path / name for name in names])
    assert done.status == 0, done
    assert len(os.listdir(out)) == len(names)
    assert [json.loads(line)["src"] for line in report.read_text().splitlines()] == [str(tmp_path / n) for n in names]


def test_the_real_reader_reads_what_has_a_strange_name(small, out, tmp_path):
    safetensors = pytest.importorskip("safetensors")
    pytest.importorskip("numpy")
    source = tmp_path / NAMES["emoji"]
    shutil.copy(small, source)
    assert convert(source, out).status == 0
    with safetensors.safe_open(out / f"{stem(source.name)}.safetensors", "np") as file:
        assert len(list(file.keys())) == 5
        assert json.loads(file.metadata()["unsloth_source"])["file"] == source.name
