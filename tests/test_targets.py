"""Whom an output is made for: what each --target puts into the file, what the record says of it, and the tables."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import assemble as a
import outside
from depickle.cli import main
from depickle.outputs.plans import OUTPUTS
from depickle.targets import TARGETS

V1 = "unsloth_prequant_transformer_state_dict_v1"
ENCODER = "unsloth_prequant_text_encoder_state_dict_v1"
W = a.tensor("0", "FloatStorage", 4)


@pytest.fixture
def convert(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    """Convert a checkpoint with these weights; the status, the record if there is one, and standard error."""

    def run(tag: str | None, items: dict[str, Any], *options: str) -> tuple[int, dict[str, Any], str]:
        source = tmp_path / "m.pt"
        content = a.state_dict(items) if tag is None else a.checkpoint(tag, {"scheme": "int8"}, items)
        source.write_bytes(a.torch_file(content, a.int8_storages() | {"0": a.FOUR}))
        status = main(["convert", str(source), "--out-dir", str(tmp_path / "out"), "--overwrite", *options])
        got = capsys.readouterr()
        return status, json.loads(got.out) if got.out else {}, got.err

    return run


def test_every_target_has_a_container() -> None:
    """The two tables name the same targets."""
    assert list(OUTPUTS) == list(TARGETS)


@pytest.mark.parametrize("tag", [V1, ENCODER])
def test_hf_keeps_root_names_bare(tag: str, convert: Any) -> None:
    """With a tag, the target hf stores and lists root names under their own, and keeps tag and metadata."""
    items = {"pad": W, "m.weight": a.int8_v1() if tag == V1 else W}
    status, record, error = convert(tag, items, "--target", "hf")
    assert (status, record.get("serves")) == (0, ["hf"]), error
    file = outside.read(Path(record["dst"]))
    assert "pad" in file.tensors
    assert json.loads(file.metadata["tensor_names"]) == ["pad", "m.weight"]
    assert json.loads(file.metadata["pad"]) == {"_type": "Tensor"}
    assert "unsloth_root_tensors" not in file.metadata
    assert (file.metadata["unsloth_format"], json.loads(file.metadata["unsloth_metadata"])) == (tag, {"scheme": "int8"})
    assert not any("." in key for key in file.metadata if key != "m.weight")


@pytest.mark.parametrize(
    ("tag", "items", "expected"),
    [
        (V1, {"m.weight": "q"}, ["unsloth", "hf"]),
        (V1, {"pad": W, "m.weight": "q"}, ["unsloth"]),
        (None, {"pad": W, "m.weight": "q"}, ["hf"]),
        (None, {"pad": W}, ["hf"]),
    ],
)
def test_a_file_says_whom_it_serves(tag: str | None, items: Any, expected: list[str], convert: Any) -> None:
    """Without --target: a file that would be the same for two targets names both, and it is the same."""
    items = {name: a.int8_v1() if item == "q" else item for name, item in items.items()}
    status, record, error = convert(tag, items)
    assert (status, record.get("serves")) == (0, expected), error
    found = Path(record["dst"]).read_bytes()
    for target in expected:
        _, named, _ = convert(tag, items, "--target", target)
        assert named["serves"] == expected
        assert named["skipped"]
        assert Path(named["dst"]).read_bytes() == found


def test_unsloth_needs_a_tag(convert: Any) -> None:
    """A plain state dict has no tag to write."""
    status, record, error = convert(None, {"m.weight": a.int8_v1()}, "--target", "unsloth")
    assert (status, record) == (1, {})
    assert "no format tag" in error


def test_other_targets_are_usage_errors(convert: Any) -> None:
    """--target takes a name of the table."""
    with pytest.raises(SystemExit) as stop:
        convert(None, {"a.w": W}, "--target", "gguf")
    assert stop.value.code == 2
