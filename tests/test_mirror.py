"""The mirror: which file is opened, in honest layouts and in hostile ones; its listing; its proof."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import depickle
from depickle import mirror
from depickle.cli import main

FIXTURES = Path(__file__).parent / "data" / "fixtures"
SOURCE = FIXTURES / "0.17.0" / "int8dyn_default.wrapped.pt"
OTHER = FIXTURES / "0.14.1" / "nvfp4_wo.wrapped.pt"
REPO = "acme/tiny"
Say = Callable[..., tuple[int, str, str]]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A root with one pair: acme/tiny/model.pt and what became of it."""
    folder = tmp_path / "root" / REPO
    folder.mkdir(parents=True)
    shutil.copy(SOURCE, folder / "model.pt")
    depickle.convert(folder / "model.pt", folder)
    return tmp_path / "root"


@pytest.fixture
def folder(root: Path) -> Path:
    """Where the pair lies."""
    return root / REPO


@pytest.fixture
def say(root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Say:
    """Run a mirror command over the root: status, output, errors."""
    monkeypatch.setattr("signal.signal", lambda *_: None)
    monkeypatch.setenv(mirror.VARIABLE, str(root))

    def run(*words: str) -> tuple[int, str, str]:
        status = main(["mirror", *words])
        return (status, *capsys.readouterr())

    return run


def found(root: Path, file: str = "model.pt", repo: str = REPO) -> str | None:
    """What one root answers, relative to it."""
    path = mirror.resolve(repo, file, roots=[str(root)]).path
    return path and os.path.relpath(path, root)


def problems(root: Path, file: str = "model.pt", repo: str = REPO) -> list[str | None]:
    """What was said of each place that was looked at."""
    return [one.problem for one in mirror.resolve(repo, file, roots=[str(root)]).tries]


# --- the environment ------------------------------------------------------------------------------------------------


def test_roots_are_separated_like_path_expanded_and_blank_ones_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")
    text = os.pathsep.join(["", "~/mirror", "  ", "/srv/a b", "~", ""])
    assert mirror.configured_roots({mirror.VARIABLE: text}) == ["/home/somebody/mirror", "/srv/a b", "/home/somebody"]
    assert mirror.configured_roots({}) == []


def test_roots_come_from_the_environment_unless_given(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(mirror.VARIABLE, str(root))
    assert mirror.resolve(REPO, "model.pt").path == str(root / REPO / "model.safetensors")
    assert [entry.file for entry in mirror.entries()] == ["model.pt"]
    assert mirror.resolve(REPO, "model.pt", roots=[]).tries == ()


# --- which file -----------------------------------------------------------------------------------------------------


def test_the_converted_file_comes_first(root: Path, folder: Path) -> None:
    assert found(root) == "acme/tiny/model.safetensors"
    (folder / "model.safetensors").unlink()
    assert found(root) == "acme/tiny/model.pt"
    (folder / "model.pt").unlink()
    assert found(root) is None
    assert problems(root) == [mirror.ABSENT, mirror.ABSENT]


def test_the_pickle_need_not_be_there(root: Path, folder: Path) -> None:
    (folder / "model.pt").unlink()
    assert found(root) == "acme/tiny/model.safetensors"


@pytest.mark.parametrize("name", ["model.pth", "MODEL.PT", "deep/er/model.pt"])
def test_names_of_pickles(name: str, root: Path, folder: Path) -> None:
    target = folder / (os.path.splitext(name)[0] + ".safetensors")
    target.parent.mkdir(parents=True, exist_ok=True)
    (folder / "model.safetensors").rename(target)
    assert found(root, name) == os.path.relpath(target, root)


@pytest.mark.parametrize("name", ["model.bin", "model", "model.pt.txt", ".pt"])
def test_no_sibling_of_other_names(name: str, root: Path, folder: Path) -> None:
    (folder / ".safetensors").write_bytes((folder / "model.safetensors").read_bytes())
    assert problems(root, name) == [mirror.ABSENT]
    (folder / name).write_bytes(b"anything")
    assert found(root, name) == f"acme/tiny/{name}"


def test_asked_for_the_converted_file_itself(root: Path) -> None:
    assert found(root, "model.safetensors") == "acme/tiny/model.safetensors"


def test_each_root_is_asked_for_both_before_the_next(root: Path, folder: Path, tmp_path: Path) -> None:
    second = tmp_path / "second"
    shutil.copytree(root, second)
    (folder / "model.safetensors").unlink()
    answer = mirror.resolve(REPO, "model.pt", roots=[str(tmp_path / "none"), str(root), str(second)])
    assert answer.path == str(folder / "model.pt")
    assert [one.problem for one in answer.tries] == ["is not a folder", mirror.ABSENT, None]
    (folder / "model.pt").unlink()
    answer = mirror.resolve(REPO, "model.pt", roots=[str(root), str(second)])
    assert answer.path == str(second / REPO / "model.safetensors")


def damaged(data: bytes) -> Iterator[bytes]:
    """The converted file cut short, with a bit turned in its header, as a pickle, empty."""
    yield data[:100]
    yield data[:40] + bytes([data[40] ^ 1]) + data[41:]
    yield SOURCE.read_bytes()
    yield b""


@pytest.mark.parametrize("which", range(4))
def test_a_converted_file_that_cannot_be_read_is_passed_over(which: int, root: Path, folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(list(damaged(path.read_bytes()))[which])
    assert found(root) == "acme/tiny/model.pt"
    assert str(problems(root)[0]).startswith("cannot be read: ")


# --- hostile layouts ------------------------------------------------------------------------------------------------

NAMES = ["", ".", "..", "a\\b", "a\0b", "\ud800"]


@pytest.mark.parametrize("part", NAMES, ids=ascii)
def test_names_that_lead_elsewhere(part: str, root: Path) -> None:
    for repo, file in (
        (f"{part}/tiny", "model.pt"),
        (f"acme/{part}", "model.pt"),
        (REPO, part),
        (REPO, f"{part}/model.pt"),
        (REPO, f"deep/{part}/model.pt"),
    ):
        answer = mirror.resolve(repo, file, roots=[str(root)])
        assert answer.path is None, (repo, file)
        assert [one.problem for one in answer.tries] == [f"{part!r} is no name in a mirror"]


def test_names_that_would_be_found_without_the_check(root: Path, folder: Path) -> None:
    (folder / "a\\b.pt").write_bytes(b"")
    assert found(root, "a\\b.pt") is None
    assert (folder / "../tiny/./model.pt").exists()
    assert found(root, "../tiny/model.pt") is None
    assert found(root, "./model.pt") is None
    assert found(root, "/model.pt") is None
    assert found(root, str(folder / "model.pt")) is None


@pytest.mark.parametrize("repo", ["acme", "acme/tiny/more", ""])
def test_a_repository_has_an_owner_and_a_name(repo: str, root: Path) -> None:
    assert found(root, repo=repo) is None
    (problem,) = problems(root, repo=repo)
    assert problem in ("'' is no name in a mirror", f"{repo!r} is not OWNER/NAME")


def test_a_link_that_leaves_the_root(root: Path, folder: Path, tmp_path: Path) -> None:
    for name in ("model.safetensors", "model.pt"):
        (folder / name).rename(tmp_path / name)
        (folder / name).symlink_to(tmp_path / name)
        assert found(root) == ("acme/tiny/model.pt" if name == "model.safetensors" else None)
        assert problems(root)[0] == f"leads out of the root, to {tmp_path / 'model.safetensors'}"
    assert problems(root)[1] == f"leads out of the root, to {tmp_path / 'model.pt'}"


def test_a_link_that_stays_in_the_root(root: Path, folder: Path) -> None:
    (root / "blobs").mkdir()
    (folder / "model.safetensors").rename(root / "blobs" / "0f")
    (folder / "model.safetensors").symlink_to("../../blobs/0f")
    assert found(root) == "acme/tiny/model.safetensors"


def test_folders_that_are_links(root: Path, folder: Path, tmp_path: Path) -> None:
    (root / "acme" / "alias").symlink_to(folder, target_is_directory=True)
    assert found(root, repo="acme/alias") == "acme/alias/model.safetensors"
    shutil.copytree(folder, tmp_path / "outside")
    (root / "acme" / "out").symlink_to(tmp_path / "outside", target_is_directory=True)
    assert found(root, repo="acme/out") is None
    (folder / "up").symlink_to("../../..", target_is_directory=True)
    assert found(root, "up/outside/model.pt") is None


def test_a_root_that_is_a_link_is_a_root(root: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(root, target_is_directory=True)
    assert found(tmp_path / "link") == "acme/tiny/model.safetensors"


def test_a_root_whose_name_begins_another(root: Path, folder: Path, tmp_path: Path) -> None:
    """`root` does not hold `root-2`."""
    shutil.copytree(root, tmp_path / "root-2")
    (folder / "x.pt").symlink_to(tmp_path / "root-2" / REPO / "model.pt")
    assert found(root, "x.pt") is None


ODD: dict[str, tuple[Callable[[Path], None], str]] = {
    "fifo": (os.mkfifo, "cannot be read: is not a regular file"),
    "folder": (lambda path: path.mkdir(), "cannot be read: is not a regular file"),
    "loop": (lambda path: path.symlink_to(path.name), "Too many levels of symbolic links"),
    "dangling": (lambda path: path.symlink_to("nowhere"), "is a link to nothing"),
}


@pytest.mark.parametrize("kind", ODD)
@pytest.mark.parametrize("name", ["model.pt", "model.safetensors"])
def test_what_is_no_file(kind: str, name: str, root: Path, folder: Path) -> None:
    """A pipe is not waited for, and none of them is a hit."""
    make, problem = ODD[kind]
    other = "model.pt" if name == "model.safetensors" else "model.safetensors"
    (folder / name).unlink()
    make(folder / name)
    assert found(root) == f"acme/tiny/{other}"
    (folder / other).unlink()
    assert found(root) is None
    assert set(problems(root)) == {problem, mirror.ABSENT}


@contextmanager
def nobody() -> Iterator[None]:
    """Be a user who owns nothing, if we are root."""
    before = os.geteuid()
    if before == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(before)


@pytest.fixture
def shown(root: Path) -> Iterator[Path]:
    """A copy of the root into which everybody may look: pytest's own folders are their owner's alone."""
    with tempfile.TemporaryDirectory() as place:
        Path(place).chmod(0o755)
        yield Path(shutil.copytree(root, Path(place) / "root"))


def test_what_may_not_be_read(shown: Path) -> None:
    (shown / REPO / "model.safetensors").chmod(0)
    with nobody():
        assert found(shown) == "acme/tiny/model.pt"
        assert problems(shown)[0] == "Permission denied"
    (shown / REPO / "model.pt").chmod(0)
    with nobody():
        assert found(shown) is None


def test_a_name_that_the_disk_cannot_hold(root: Path) -> None:
    assert problems(root, f"{'x' * 300}.pt") == ["File name too long", "File name too long"]


# --- listing --------------------------------------------------------------------------------------------------------


def listed(*roots: Path) -> list[tuple[str, str, bool, bool]]:
    return [
        (entry.repo, entry.file, entry.pickle is not None, entry.converted is not None)
        for entry in mirror.entries(roots=[str(root) for root in roots])
    ]


def test_entries(root: Path, folder: Path) -> None:
    (folder / "deep").mkdir()
    for name in ("alone.pth", "deep/new.safetensors", "config.json", "model.bin"):
        (folder / name).write_bytes(b"x")
    (root / "stray.pt").write_bytes(b"x")
    (root / "acme" / "stray.pt").write_bytes(b"x")
    assert listed(root) == [
        (REPO, "alone.pth", True, False),
        (REPO, "model.pt", True, True),
        (REPO, "deep/new.safetensors", False, True),
    ]
    assert len(listed(root, root)) == 6


def test_listing_ends_where_links_go_round(root: Path, folder: Path, tmp_path: Path) -> None:
    for i in range(12):  # each leads to all: as many paths as orders of twelve
        (folder / str(i)).mkdir()
    for i in range(12):
        for j in range(12):
            (folder / str(i) / f"to{j}").symlink_to(folder / str(j), target_is_directory=True)
    (folder / "up").symlink_to("..", target_is_directory=True)
    shutil.copytree(folder, tmp_path / "outside", symlinks=True)
    (folder / "out").symlink_to(tmp_path / "outside", target_is_directory=True)
    assert listed(root) == [(REPO, "model.pt", True, True)]


def test_a_folder_that_cannot_be_read_does_not_hide_the_others(shown: Path) -> None:
    hidden = shown / "acme" / "hidden"
    hidden.mkdir(mode=0)
    with nobody():
        found = mirror.entries(roots=[str(shown)])
        assert next(found).file == "model.pt"
        with pytest.raises(PermissionError):
            next(found)


def test_an_entry_tells_what_its_root_opens(root: Path, folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"no header")
    (entry,) = mirror.entries(roots=[str(root)])
    told = entry.as_json()
    assert told["opens"] == told["pickle"] == str(folder / "model.pt")
    (problem,) = told["problems"]  # type: ignore[misc]
    assert problem.startswith(f"{folder / 'model.safetensors'}: cannot be read: ")


# --- proof ----------------------------------------------------------------------------------------------------------


def only(root: Path) -> mirror.Entry:
    (entry,) = mirror.entries(roots=[str(root)])
    return entry


def test_verify(root: Path) -> None:
    ticks: list[tuple[int, int]] = []
    proved = mirror.verify(only(root), progress=lambda done, total: ticks.append((done, total)))
    again = depickle.verify(root / REPO / "model.pt", root / REPO / "model.safetensors")
    assert {**proved.as_json(), "seconds": 0} == {**again.as_json(), "seconds": 0}
    assert ticks


def test_a_pair_of_another_pickle(root: Path, folder: Path) -> None:
    shutil.copy(OTHER, folder / "model.pt")
    with pytest.raises(depickle.Mismatch, match=r"was not made from model\.pt: provenance: records bytes"):
        mirror.verify(only(root))


def test_a_pair_of_another_name(root: Path, folder: Path) -> None:
    (folder / "model.pt").rename(folder / "renamed.pt")
    (folder / "model.safetensors").rename(folder / "renamed.safetensors")
    with pytest.raises(depickle.Mismatch, match=r"records file model\.pt, beside it is renamed\.pt"):
        mirror.verify(only(root))


@pytest.mark.parametrize("name", ["model.pt", "model.safetensors"])
def test_a_turned_bit(name: str, root: Path, folder: Path) -> None:
    data = bytearray((folder / name).read_bytes())
    data[data.index(b"\x80", 6000) if name == "model.pt" else -1] ^= 1
    (folder / name).write_bytes(data)
    with pytest.raises(depickle.Error):
        mirror.verify(only(root))


def test_a_pair_by_a_writer_that_records_nothing(root: Path, folder: Path) -> None:
    """It is held to its content."""
    save = pytest.importorskip("safetensors.numpy").save_file
    numpy = pytest.importorskip("numpy")
    source = FIXTURES / "edge" / "many_tensors.pt"
    shutil.copy(source, folder / "model.pt")
    with depickle.open_checkpoint(source) as checkpoint:
        tensors = {
            name: numpy.frombuffer(
                checkpoint.source.read(part.view.range.offset, part.view.range.length), numpy.float32
            ).reshape(part.shape)
            for name, weight in checkpoint.weights.items()
            for part in weight.leaves().values()
        }
    save(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    assert mirror.verify(only(root)).sealed is False
    tensors[next(iter(tensors))] = tensors[next(iter(tensors))] + 1
    save(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(depickle.Mismatch):
        mirror.verify(only(root))


def test_a_pair_that_leads_out_is_not_read(root: Path, folder: Path, tmp_path: Path) -> None:
    (folder / "model.pt").rename(tmp_path / "model.pt")
    (folder / "model.pt").symlink_to(tmp_path / "model.pt")
    with pytest.raises(depickle.Refused, match="leads out of the root"):
        mirror.verify(only(root))


def test_what_is_no_pair(root: Path, folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    with pytest.raises(depickle.Refused, match="is not a pair"):
        mirror.verify(only(root))


# --- the command line -----------------------------------------------------------------------------------------------


def test_resolve_prints_the_path_alone(say: Say, folder: Path) -> None:
    assert say("resolve", REPO, "model.pt") == (0, f"{folder / 'model.safetensors'}\n", "")


def test_resolve_tells_what_it_passed_over(say: Say, folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"no header")
    status, out, err = say("resolve", REPO, "model.pt")
    assert (status, out) == (0, f"{folder / 'model.pt'}\n")
    assert err.startswith(f"depickle: note: {folder / 'model.safetensors'}: cannot be read: ")


def test_resolve_says_why_there_is_none(say: Say, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(mirror.VARIABLE, f"{root}{os.pathsep}{tmp_path / 'gone'}")
    status, out, err = say("resolve", REPO, "other.pt")
    assert (status, out) == (1, "")
    assert err.splitlines() == [
        "depickle: acme/tiny: no root has other.pt",
        f"  {root / REPO / 'other.safetensors'}: is not there",
        f"  {root / REPO / 'other.pt'}: is not there",
        f"  {tmp_path / 'gone'}: is not a folder",
    ]
    monkeypatch.delenv(mirror.VARIABLE)
    status, out, err = say("resolve", REPO, "model.pt")
    assert (status, out) == (1, "")
    assert err.endswith(f"  {mirror.VARIABLE} names no root\n")


def test_list(say: Say, root: Path, folder: Path) -> None:
    assert say("list") == (0, f"acme/tiny model.pt in {root}: opens converted\n", "")
    (folder / "model.safetensors").unlink()
    assert say("list")[1] == f"acme/tiny model.pt in {root}: opens pickle\n"
    (line,) = say("list", "--json")[1].splitlines()
    assert json.loads(line) == only(root).as_json()


def test_list_of_a_root_that_is_gone(say: Say, root: Path) -> None:
    shutil.rmtree(root)
    status, out, err = say("list")
    assert (status, out) == (2, "")
    assert "No such file or directory" in err


def test_verify_prints_a_line_a_pair_and_the_worst_status(say: Say, root: Path, folder: Path) -> None:
    second = root / "acme" / "second"
    shutil.copytree(folder, second)
    shutil.copytree(folder, root / "acme" / "alone")
    (root / "acme" / "alone" / "model.safetensors").unlink()
    status, out, err = say("verify", "--quiet")
    assert (status, err) == (0, "")
    assert [json.loads(line)["src"] for line in out.splitlines()] == [
        str(second / "model.pt"),
        str(folder / "model.pt"),
    ]
    shutil.copy(OTHER, second / "model.pt")
    status, out, err = say("verify", "--quiet")
    assert (status, len(out.splitlines())) == (1, 1)
    assert err.splitlines()[0].startswith(f"depickle: {second / 'model.safetensors'}: was not made from model.pt")
    (folder / "model.safetensors").write_bytes(b"")
    assert say("verify", "--quiet")[0] == 2
