"""What a safetensors file says of its weights, held to account: `outputs.stored` and `outputs.safetensors.index`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import depickle
from assemble import safetensors_file

INT8: dict[str, Any] = {
    "_type": "Int8Tensor",
    "_data": {"act_quant_kwargs": None, "block_size": [1, 4], "dtype": {"_type": "torch.dtype", "_data": "bfloat16"}},
    "_tensor_data_names": ["qdata", "scale"],
}


def file(tmp_path: Path, entry: dict[str, Any], **metadata: str) -> Path:
    """A file with one int8 weight, `a.w`, of two rows."""
    header = {
        "__metadata__": {"format": "pt", "tensor_names": '["a.w"]', "a.w": json.dumps(entry), **metadata},
        "a._w_scale": {"dtype": "F32", "shape": [2, 1], "data_offsets": [0, 8]},
        "a._w_qdata": {"dtype": "I8", "shape": [2, 4], "data_offsets": [8, 16]},
    }
    path = tmp_path / "source.safetensors"
    path.write_bytes(safetensors_file(header, bytes(16)))
    return path


def changed(**data: Any) -> dict[str, Any]:
    """The entry with some fields of `_data` set, or taken away by `...`."""
    fields = {**INT8["_data"], **data}
    return {**INT8, "_data": {key: value for key, value in fields.items() if value is not ...}}


def test_a_sound_file_is_written_again(tmp_path: Path) -> None:
    """The file that the others are lies about is read and proved."""
    record = depickle.convert(file(tmp_path, INT8), tmp_path / "out")
    assert (record.quantized, record.int8_source) == (1, None)


@pytest.mark.parametrize(
    ("entry", "kind", "message"),
    [
        (changed(dtype=...), depickle.Malformed, "lacks its field dtype"),
        (changed(block_size=...), depickle.Malformed, "lacks its field block_size"),
        (changed(block_size=["a", 2]), depickle.Malformed, "block_size"),
        (changed(block_size=[1, 3]), depickle.Malformed, "does not divide"),
        (changed(block_size=[1, 2]), depickle.Malformed, "scale has shape"),
        (changed(more=1), depickle.Refused, "records more=1"),
        (changed(act_quant_kwargs={"_type": [], "_data": {}}), depickle.Refused, "class is no name"),
        (changed(act_quant_kwargs={"_type": "Evil", "_data": {}}), depickle.Refused, "'Evil' is no class"),
        ({**INT8, "_tensor_data_names": ["qdata"]}, depickle.Malformed, "lacks its part scale"),
        ({**INT8, "_tensor_data_names": ["qdata", "scale", "more"]}, depickle.Malformed, "holds no tensor"),
        ({**INT8, "_type": "Int9Tensor"}, depickle.Refused, "'Int9Tensor'"),
    ],
)
def test_a_lie_in_the_entry(tmp_path: Path, entry: dict[str, Any], kind: type[Exception], message: str) -> None:
    """What the entry leaves out, adds or misstates is an error that says so, and nothing is written."""
    with pytest.raises(kind, match=message.replace("(", r"\(")):
        depickle.convert(file(tmp_path, entry), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_facts_need_int8_weights(tmp_path: Path) -> None:
    """The facts of torchao v1's int8 cannot stand in a file without an int8 weight."""
    layout = {"version": 1, "weights": {}, "int8_source": "torchao_v1", "int8_v1": {"act_quant": "x"}}
    header = {
        "__metadata__": {"format": "pt", "unsloth_quant_layout": json.dumps(layout)},
        "a.w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]},
    }
    path = tmp_path / "source.safetensors"
    path.write_bytes(safetensors_file(header, bytes(4)))
    with pytest.raises(depickle.Refused, match="holds no int8 weight"):
        depickle.convert(path, tmp_path / "out")
