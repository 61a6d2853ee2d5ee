"""Lines 36, 40 and 42: paths, links and races around the files, and what the tool never offers."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import harness
import pytest
from harness import CONVERT, EITHER, HARMLESS, MALFORMED, attack, case

import depickle
from assemble import FOUR, call, state_dict, tensor, torch_file

GOOD = torch_file(state_dict({"w": tensor()}))
EVIL = torch_file(state_dict({"w": call("os", "system", "touch canary")}))
OVERWRITE = (("convert", "{src}", "--out-dir", "{out}", "--overwrite"),)
SRC = Path(depickle.__file__).parent


def link(target: str, name: str = "out/model.safetensors") -> Callable[[Path], None]:
    """A setup that makes a symlink, relative to the sandbox."""

    def setup(sandbox: Path) -> None:
        (sandbox / "outside" / "victim").write_bytes(b"precious")
        (sandbox / name).symlink_to(sandbox / target)

    return setup


@attack(40, "", EITHER, "exist|link|symlink|regular|file|folder|director|source", looks=(), api=False)
def destinations_that_are_links():
    """The output's name is taken by a link, a FIFO or a folder: what it leads to is never written."""
    yield case("symlink", GOOD, setup=link("outside/victim"))
    yield case("dangling", GOOD, setup=link("outside/new"))
    yield case("symlink-to-the-source", GOOD, setup=link("in/model.pt"))
    yield case("fifo", GOOD, setup=lambda box: os.mkfifo(box / "out" / "model.safetensors"))
    yield case("folder", GOOD, setup=lambda box: (box / "out" / "model.safetensors").mkdir())


@attack(40, "", HARMLESS, commands=OVERWRITE, looks=(), api=False)
def destinations_that_are_links_with_overwrite():
    """With --overwrite the name may be replaced, and what a link leads to is still not written."""
    yield case("symlink", GOOD, setup=link("outside/victim"), leftovers=frozenset({"out/model.safetensors"}))
    yield case("dangling", GOOD, setup=link("outside/new"), leftovers=frozenset({"out/model.safetensors"}))


@attack(40, "", EITHER, "same|source|itself|exist", looks=(), api=False)
def destination_is_the_source():
    """Output onto its own source, by name, by link and by hard link: refused before anything is read."""
    onto = (("convert", "{src}", "--out-dir", "{dir}/in", "--overwrite"),)
    yield case("by-name", GOOD, file="model.safetensors", commands=onto)
    yield case("by-symlink", GOOD, setup=link("in/model.pt", "in/model.safetensors"), commands=onto)
    yield case(
        "by-hard-link",
        GOOD,
        setup=lambda box: os.link(box / "in/model.pt", box / "in/model.safetensors"),
        commands=onto,
    )


@attack(40, "", EITHER, "folder|regular|file|director|empty|device", looks=(), api=False)
def sources_that_are_no_files():
    """A FIFO that never ends, a device, a folder, a name that is not there."""
    for label, target in (
        ("zero", "/dev/zero"),
        ("full", "/dev/full"),
        ("tty", "/dev/tty"),
        ("mem", "/proc/self/mem"),
        ("stdin", "/dev/stdin"),
        ("folder", "/tmp"),
    ):
        yield case(label, GOOD, commands=(("convert", target, "--out-dir", "{out}"),))
    yield case(
        "fifo",
        GOOD,
        setup=lambda box: os.mkfifo(box / "in" / "pipe"),
        commands=(("convert", "{dir}/in/pipe", "--out-dir", "{out}"),),
    )
    yield case("missing", GOOD, commands=(("convert", "{dir}/in/none.pt", "--out-dir", "{out}"),), message="none.pt")
    yield case(
        "loop",
        GOOD,
        setup=link("in/loop.pt", "in/loop.pt"),
        commands=(("convert", "{dir}/in/loop.pt", "--out-dir", "{out}"),),
        message="loop.pt",
    )


@attack(40, "index.json pointing outside", EITHER, "index|JSON|text|folder", looks=(), api=False)
def indexes_that_point_outside():
    """An index whose weight map leads out of its folder."""
    for label, target in (
        ("dot-dot", "../../outside/victim"),
        ("absolute", "/etc/passwd"),
        ("null", "a\\u0000b"),
        ("home", "~/x"),
    ):
        text = f'{{"metadata": {{}}, "weight_map": {{"w": "{target}"}}}}'.encode()
        yield case(label, text, file="pytorch_model.bin.index.json")
        yield case(f"safetensors-{label}", text, file="model.safetensors.index.json")


@attack(36, "", MALFORMED, "repo|OWNER", looks=(), api=False)
def repositories_that_are_paths():
    """--repo that would leave the output folder: a usage error, before anything is read."""
    for repo in ("../x", "a/..", "../..", "a/../../b", "/etc/x", "a/b/c", "a", "", "a/", "/b", "a\\b/c", "./b", "a/."):
        yield case(ascii(repo).replace("/", "|"), GOOD, commands=((*CONVERT[0], "--repo", repo),))


@attack(36, "", HARMLESS, holds={"w": FOUR}, api=False)
def source_names():
    """Source files with awkward names: each lands in the output folder under its own stem, or is refused."""
    for name in (
        "-rf.pt",
        "--help.pt",
        "a\nb.pt",
        "a\x1b[31mb.pt",
        "\U0001f600.pt",
        ".pt",
        "..pt",
        "a.PT",
        "a b.pt",
        "x" * 240 + ".pt",
        "%s.pt",
        "model.pt.pt",
        "model",
    ):
        yield case(ascii(name)[:24], GOOD, file=name)


@attack(42, "Stanza 1.12 advisory", HARMLESS, commands=OVERWRITE)
def files_that_trigger_a_fallback():
    """A file that `weights_only=True` refuses makes careless loaders try again without: here there is no second way."""
    yield case("evil", EVIL, r"os[. ]system", verdict="Refused")
    yield case("protocol-4", torch_file(b"\x80\x04\x95\xff\0\0\0\0\0\0\0."), "frame", verdict="Malformed")


@pytest.mark.parametrize("case", harness.ATTACKS[__name__], ids=str)
def test_attack(case, watcher, tmp_path):
    harness.check(case, watcher, tmp_path)


def depickle_command(*argv: str, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    """A real `python -m depickle`."""
    command = [sys.executable, "-m", "depickle", *argv]
    env = os.environ | {"PYTHONPATH": harness.PACKAGE}
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder, env=env)


def test_no_way_to_unpickle_is_offered():
    """Line 42. No source file imports pickle or loads with weights_only=False, and no option allows a name."""
    for path in SRC.rglob("*.py"):
        source = path.read_text()
        assert not re.search(
            r"^\s*(import|from)\s+_?(pickle|dill|cloudpickle|joblib|marshal|shelve)\b", source, re.MULTILINE
        ), path
        assert not re.search(r"weights_only\s*=\s*False", source), path
        own = source.replace('__import__(f"{__name__}.', "")  # the package's own modules, from a fixed table
        if path.parent != SRC / "torch":  # the extra finds torchao's classes by the names of its own tables
            assert not re.search(r"\b(__import__|import_module|eval|exec)\s*\(", own), path
    shown = depickle_command("convert", "--help")
    assert shown.returncode == 0, shown.stderr
    assert not re.search(r"unsafe|allow-global|trust-remote|weights.only", shown.stdout, re.IGNORECASE)


def test_command_line_end_to_end(tmp_path):
    """Line 1. The same through a real `python -m depickle`: status 1, one line, nothing written, nothing run."""
    source = tmp_path / "model.pt"
    source.write_bytes(EVIL)
    out = tmp_path / "out"
    done = depickle_command("convert", str(source), "--out-dir", str(out), folder=tmp_path)
    assert done.returncode == 1, done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert "Traceback" not in done.stderr
    assert re.search(r"os[. ]system", done.stderr)
    assert done.stdout == ""
    assert sorted(path.name for path in tmp_path.rglob("*") if path.is_file()) == ["model.pt"]


def test_a_source_swapped_under_the_name_is_not_followed(tmp_path):
    """Line 40. The opened file is what is hashed and converted; a file put in its place while it is read changes
    nothing."""
    source, out = tmp_path / "model.pt", tmp_path / "out"
    body = state_dict({"w": tensor(numel=8 << 20, shape=(8 << 20,))})
    honest, other = torch_file(body, {"0": bytes(32 << 20)}), torch_file(body, {"0": b"\1" * (32 << 20)})
    source.write_bytes(honest)
    replacement = tmp_path / "other.pt"
    replacement.write_bytes(other)
    swap = threading.Timer(0.005, os.replace, (replacement, source))
    swap.start()
    try:
        record = depickle.convert(source, out)
    except depickle.Error:
        assert not list(out.rglob("*"))
    else:
        tensors = harness.read_safetensors(Path(record.dst).read_bytes())
        assert tensors["w"] in (bytes(32 << 20), b"\1" * (32 << 20))
    finally:
        swap.join()


def test_a_source_changed_in_place_is_noticed(tmp_path):
    """Line 40. Bytes that change while they are read: an error, or an output that is wholly the one or the other; never
    a mixture."""
    source, out = tmp_path / "model.pt", tmp_path / "out"
    size = 32 << 20
    body = state_dict({"w": tensor(numel=size // 4, shape=(size // 4,))})
    made = torch_file(body, {"0": bytes(size)})
    at = made.index(bytes(4096))
    for delay in (0.0, 0.005, 0.01, 0.02, 0.04):
        source.write_bytes(made)
        writer = threading.Timer(delay, _scribble, (source, at, size))
        writer.start()
        try:
            record = depickle.convert(source, out, overwrite=True)
        except (depickle.Error, OSError):
            pass
        else:
            tensors = harness.read_safetensors(Path(record.dst).read_bytes())
            assert len(set(tensors["w"])) == 1
        finally:
            writer.join()


def _scribble(path: Path, at: int, size: int) -> None:
    with path.open("r+b") as file:
        for offset in range(0, size, 1 << 20):
            file.seek(at + offset)
            file.write(b"\1" * 4096)
