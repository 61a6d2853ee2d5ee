"""Several sources in one call: what is refused before anything is read, and what comes out of many at a time."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from depickle.cli import main

EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "tiny-int8-v1.pt"


def copies(folder: Path, count: int) -> list[str]:
    """The example under several names."""
    folder.mkdir()
    made = [folder / f"model-{i}.pt" for i in range(count)]
    for path in made:
        shutil.copy(EXAMPLE, path)
    return [str(path) for path in made]


def test_a_destination_is_no_source_of_the_batch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One source's result must not replace another source, even under another name and with --overwrite."""
    (tmp_path / "out").mkdir()
    source = tmp_path / "b.pt"
    shutil.copy(EXAMPLE, source)
    victim = tmp_path / "out" / "b.safetensors"
    victim.write_bytes(b"precious")
    link = tmp_path / "c.safetensors"
    link.symlink_to(victim)
    status = main(["convert", str(source), str(link), "--out-dir", str(tmp_path / "out"), "--overwrite"])
    assert status == 2
    assert "is the source" in capsys.readouterr().err
    assert victim.read_bytes() == b"precious"


@pytest.mark.parametrize("jobs", [1, 4])
def test_every_record_is_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str], jobs: int) -> None:
    """However many run at a time, stdout and the report hold one JSON line per file."""
    sources = copies(tmp_path / "in", 12)
    report = tmp_path / "report.jsonl"
    arguments = ["--out-dir", str(tmp_path / "out"), "--jobs", str(jobs), "--report", str(report), "--quiet"]
    assert main(["convert", *sources, *arguments]) == 0
    for text in (capsys.readouterr().out, report.read_text(encoding="utf-8")):
        assert sorted(json.loads(line)["src"] for line in text.splitlines()) == sorted(sources)


def test_the_manifest_is_what_sha256sum_reads(tmp_path: Path) -> None:
    """The manifest has a line per result, keeps those of earlier runs, and the digests are true."""
    import hashlib

    first, second = copies(tmp_path / "in", 2)
    out = tmp_path / "out"
    for source in (first, second):
        assert main(["convert", source, "--out-dir", str(out), "--manifest", "--quiet"]) == 0
    lines = (out / "SHA256SUMS").read_text(encoding="utf-8").splitlines()
    assert [line.split("  ")[1] for line in lines] == ["model-0.safetensors", "model-1.safetensors"]
    for line in lines:
        digest, name = line.split("  ")
        assert hashlib.sha256((out / name).read_bytes()).hexdigest() == digest
