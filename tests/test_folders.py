"""Whole folders: shards in and out, their indexes, configs, everything else that lies there, and the proof."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import assemble as a
import depickle
import outside
from depickle.cli import main

SCHEMAS = Path(__file__).resolve().parent.parent / "docs" / "schemas"
W = a.tensor("0", "FloatStorage", 4)
INT8_CONFIG = {
    "_type": "Int8DynamicActivationInt8WeightConfig",
    "_version": 2,
    "_data": {
        "act_mapping_type": {"_type": "MappingType", "_data": "SYMMETRIC"},
        "granularity": {"_type": "PerRow", "_version": 1, "_data": {"dim": -1}},
    },
}


class Run:
    """What a command line printed, and its status."""

    def __init__(self, status: int, out: str, err: str) -> None:
        self.status, self.err = status, err
        self.lines = [json.loads(line) for line in out.splitlines()] if out.startswith("{") else []

    def check(self, *schemas: str) -> Run:
        """It went well, the last line of JSON is what the last schema says, and each before it what the first says."""
        assert self.status == 0, self.err
        assert self.lines
        for line in self.lines:
            name = schemas[-1] if line is self.lines[-1] else schemas[0]
            schema = json.loads((SCHEMAS / f"{name}.v1.json").read_text())
            jsonschema.Draft202012Validator(schema).validate(line)
            assert set(line) <= set(schema["properties"])
        return self


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Callable[..., Run]:
    """Run a command line in this process."""

    def run(*args: object) -> Run:
        try:
            status = main([str(arg) for arg in args])
        except SystemExit as stop:
            status = int(str(stop.code))
        got = capsys.readouterr()
        return Run(status, got.out, got.err)

    return run


def pickled(path: Path, items: Mapping[str, Any]) -> None:
    """A torch file; `q` stands for an int8 weight of 2 x 4 and `Q` for one of 4 x 8, each with bytes of its own."""
    storages, made = {"0": a.FOUR}, {}
    for i, (name, item) in enumerate(items.items()):
        rows, cols = (2, 4) if item == "q" else (4, 8)
        key = f"{path.stem[-14:]}{i}"
        made[name] = a.int8_v1(key, rows, cols) if item in ("q", "Q") else item
        if item in ("q", "Q"):
            storages |= {
                f"{key}.d": hashlib.sha256(name.encode()).digest()[: rows * cols],
                f"{key}.s": b"\x80\x3f" * rows,
            }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(a.torch_file(a.state_dict(made), storages))


SHARDS = (
    {"model.embed.weight": W, "model.0.q.weight": "q", "model.0.norm.weight": W},
    {"model.1.q.weight": "Q", "model.1.k.weight": "q"},
    {"model.1.norm.weight": W, "head.weight": W},
)
NAMES = [name for shard in SHARDS for name in shard]
QUANTIZED = {"model.0.q.weight", "model.1.q.weight", "model.1.k.weight"}


def shard_name(number: int, count: int = 3, stem: str = "pytorch_model", suffix: str = ".bin") -> str:
    return f"{stem}-{number:05d}-of-{count:05d}{suffix}"


def write_index(folder: Path, name: str, weight_map: Mapping[str, str]) -> None:
    (folder / name).write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": dict(weight_map)}))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A transformers folder of three shards, an index, a config of old, and other files."""
    folder = tmp_path / "model"
    weight_map = {}
    for i, items in enumerate(SHARDS, 1):
        pickled(folder / shard_name(i), items)
        weight_map |= dict.fromkeys(items, shard_name(i))
    write_index(folder, "pytorch_model.bin.index.json", weight_map)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "rms_norm_eps": 1e-06,
        "quantization_config": {
            "quant_method": "torchao",
            "quant_type": "int8_dynamic_activation_int8_weight",
            "quant_type_kwargs": {},
            "modules_to_not_convert": ["head"],
        },
        "vocab_size": 4,
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_bytes(b"{\r\n}\xff")
    (folder / "onnx").mkdir()
    (folder / "onnx" / "weights.bin").write_bytes(bytes(range(256)))
    (folder / "empty.txt").write_bytes(b"")
    return folder


def content(folder: Path) -> dict[str, bytes]:
    """Every file below a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


# --- what comes out -------------------------------------------------------------------------------------------------


def test_a_folder(model: Path, cli: Callable[..., Run], tmp_path: Path) -> None:
    """Three shards without a limit become one file; other files are byte for byte what they were; the config is
    today's; records, report and manifest say it; and the result verifies."""
    out = tmp_path / "out"
    run = cli("convert", model, "--out-dir", out, "--report", tmp_path / "report", "--manifest")
    run.check("record", "repository")
    record, last = run.lines
    assert set(content(out)) == {
        *("SHA256SUMS", "config.json", "empty.txt", "model.safetensors", "onnx/weights.bin", "tokenizer.json"),
    }
    for name in ("tokenizer.json", "onnx/weights.bin", "empty.txt"):
        assert (out / name).read_bytes() == (model / name).read_bytes()
        assert last["carried"][name] == hashlib.sha256((model / name).read_bytes()).hexdigest()
    assert [source["file"] for source in record["sources"]] == [shard_name(i) for i in (1, 2, 3)]
    for source in record["sources"]:
        assert source["sha256"] == hashlib.sha256((model / source["file"]).read_bytes()).hexdigest()
    assert (record["src_sha256"], record["tensors"], record["quantized"]) == (None, 7, 3)
    assert record["dst_sha256"] == hashlib.sha256((out / "model.safetensors").read_bytes()).hexdigest()
    assert [json.loads(line) for line in (tmp_path / "report").read_text().splitlines()] == run.lines
    sums = dict(reversed(line.split("  ")) for line in (out / "SHA256SUMS").read_text().splitlines())
    assert sums == {
        name: hashlib.sha256(data).hexdigest() for name, data in content(out).items() if name != "SHA256SUMS"
    }
    check = cli("verify", model, out).check("verify-folder").lines[0]
    assert (check["files"], check["carried"], check["configs"], check["tensors"]) == (1, 3, 1, 7)


def test_config_changes_in_one_place(model: Path, cli: Callable[..., Run], tmp_path: Path) -> None:
    """The scheme is said as torchao 0.18 reads it; every other key of the config stays, in its order."""
    cli("convert", model, "--out-dir", tmp_path / "out").check("record", "repository")
    old, new = (json.loads((folder / "config.json").read_text()) for folder in (model, tmp_path / "out"))
    assert new["quantization_config"] == {
        "quant_method": "torchao",
        "modules_to_not_convert": ["head"],
        "quant_type": {"default": INT8_CONFIG},
    }
    assert list(new) == list(old)
    assert {key: new[key] for key in new if key != "quantization_config"} == {
        key: old[key] for key in old if key != "quantization_config"
    }


def test_a_config_of_today_is_carried_over(model: Path, cli: Callable[..., Run], tmp_path: Path) -> None:
    """What torchao 0.18 reads is not touched, to the byte."""
    text = json.dumps(
        {"quantization_config": {"quant_method": "torchao", "quant_type": {"default": INT8_CONFIG}}}, indent=7
    )
    (model / "config.json").write_text(text)
    run = cli("convert", model, "--out-dir", tmp_path / "out").check("record", "repository")
    assert (tmp_path / "out" / "config.json").read_text() == text
    assert "config.json" in run.lines[-1]["carried"]


def test_a_config_that_says_nothing_is_noted(model: Path, cli: Callable[..., Run], tmp_path: Path) -> None:
    """Quantised weights without a quantization_config: clients would not find them."""
    (model / "config.json").write_text("{}")
    run = cli("convert", model, "--out-dir", tmp_path / "out").check("record", "repository")
    assert any("quantization_config" in text for text in run.lines[-1]["warnings"])
    assert "quantization_config" in run.err


def test_a_config_speaks_of_the_model_itself(model: Path, cli: Callable[..., Run], tmp_path: Path) -> None:
    """Not of a variant or of another checkpoint that lies beside it with the same names."""
    pickled(model / "pytorch_model.fp16.bin", {name: W for shard in SHARDS for name in shard})
    pickled(model / "another.pt", {"model.0.q.weight": W})
    run = cli("convert", model, "--out-dir", tmp_path / "out").check("record", "repository")
    assert run.lines[-1]["configs"]["config.json"]["after"]["quant_type"] == {"default": INT8_CONFIG}


def test_shards_of_a_limit(model: Path, cli: Callable[..., Run], tmp_path: Path) -> None:
    """--max-shard-size: files of that size at the most, a larger weight alone; each with the whole table of names,
    parts together; an index of real sizes that accounts for every tensor."""
    out = tmp_path / "out"
    run = cli("convert", model, "--out-dir", out, "--max-shard-size", "40B").check("record", "repository")
    names = [Path(record["dst"]).name for record in run.lines[:-1]]
    assert names == [shard_name(i, len(names), "model", ".safetensors") for i in range(1, len(names) + 1)]
    index = json.loads((out / "model.safetensors.index.json").read_text())
    files = {name: outside.read(out / name) for name in names}
    tensors = {key: (name, tensor) for name, file in files.items() for key, tensor in file.tensors.items()}
    assert {key: name for key, (name, _) in tensors.items()} == index["weight_map"]
    assert sum(map(len, (file.tensors for file in files.values()))) == len(tensors)
    assert index["metadata"]["total_size"] == sum(len(tensor.data) for _, tensor in tensors.values())
    for name, record in zip(names, run.lines):
        file = files[name]
        assert not outside.layout_problems(file)
        size = sum(len(tensor.data) for tensor in file.tensors.values())
        assert size <= 40 or record["tensors"] == 1, name
        assert json.loads(file.metadata["tensor_names"]) == NAMES
        assert file.metadata["format"] == "pt"
        for weight in NAMES:
            entry = json.loads(file.metadata[weight])
            assert (entry["_type"] == "Int8Tensor") == (weight in QUANTIZED)
    for weight in QUANTIZED:
        stem = weight.replace(".weight", "._weight_")
        assert len({name for key, (name, _) in tensors.items() if key.startswith(stem)}) == 1
        held = tensors[stem + "qdata"][1]
        assert held.data == hashlib.sha256(weight.encode()).digest()[: len(held.data)]
    assert cli("verify", model, out).check("verify-folder").lines[0]["files"] == len(names)


def test_each_shard_suffices_by_itself(model: Path, cli: Callable[..., Run], tmp_path: Path) -> None:
    """vLLM takes a file's own metadata: every tensor of a file belongs to a name in it, all parts of a weight are
    there, no name is at the root, and no other key is taken for a part."""
    out = tmp_path / "out"
    cli("convert", model, "--out-dir", out, "--max-shard-size", "40B").check("record", "repository")
    shards = sorted(out.glob("*.safetensors"))
    assert len(shards) > 1
    for path in shards:
        file = outside.read(path)
        left = set(file.tensors)
        for name in json.loads(file.metadata["tensor_names"]):
            module, _, parameter = name.rpartition(".")
            assert module
            entry = json.loads(file.metadata[name])
            parts = {f"{module}._{parameter}_{part}" for part in entry.get("_tensor_data_names", [])} or {name}
            assert parts <= set(file.tensors) or not parts & set(file.tensors)
            if entry["_type"] != "Tensor":
                prefix = f"{module}._{parameter}_"
                assert {key for key in (*file.tensors, *file.metadata) if key.startswith(prefix)} <= parts
            left -= parts
        assert not left


def test_shards_without_an_index(model: Path, cli: Callable[..., Run], tmp_path: Path) -> None:
    """The conventional names suffice."""
    with_index = cli("convert", model, "--out-dir", tmp_path / "a").check("record", "repository")
    (model / "pytorch_model.bin.index.json").unlink()
    without = cli("convert", model, "--out-dir", tmp_path / "b").check("record", "repository")
    assert content(tmp_path / "a") == content(tmp_path / "b")
    assert with_index.lines[0]["dst_sha256"] == without.lines[0]["dst_sha256"]


def test_one_file_to_shards(cli: Callable[..., Run], tmp_path: Path) -> None:
    """--max-shard-size for a single file; without need there is one file and no index."""
    pickled(tmp_path / "m.bin", {name: item for shard in SHARDS for name, item in shard.items()})
    run = cli("convert", tmp_path / "m.bin", "--out-dir", tmp_path / "out", "--max-shard-size", "64B").check("record")
    assert len(run.lines) > 1
    assert run.lines[0]["src_sha256"] == hashlib.sha256((tmp_path / "m.bin").read_bytes()).hexdigest()
    index = tmp_path / "out" / "m.safetensors.index.json"
    check = cli("verify", tmp_path / "m.bin", index).check("verification").lines[0]
    assert check["dst_files"] == {Path(record["dst"]).name: record["dst_sha256"] for record in run.lines}
    flip(Path(run.lines[1]["dst"]), -1)
    assert "differs at byte" in cli("verify", tmp_path / "m.bin", index).err
    cli("convert", tmp_path / "m.bin", "--out-dir", tmp_path / "one", "--max-shard-size", "1MB").check("record")
    assert set(content(tmp_path / "one")) == {"m.safetensors"}


def test_a_pipeline(cli: Callable[..., Run], tmp_path: Path) -> None:
    """Every model of a diffusers pipeline, each in its folder; a variant keeps its mark; safetensors that are not
    flattened stay as they are."""
    folder = tmp_path / "pipe"
    pickled(folder / "transformer" / "diffusion_pytorch_model.bin", {"m.weight": "q"})
    pickled(folder / "text_encoder" / "pytorch_model.fp16.bin", {"a.weight": W})
    for i in (1, 2):
        name = shard_name(i, 2, "diffusion_pytorch_model", ".fp16.bin")
        pickled(folder / "unet" / name, {f"u{i}.weight": "q", f"u{i}.bias": W})
    header = {"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}
    (folder / "vae").mkdir()
    plain = folder / "vae" / "diffusion_pytorch_model.safetensors"
    plain.write_bytes(a.safetensors_file(header, struct.pack("<f", 1)))
    (folder / "model_index.json").write_text('{"_class_name": "Pipe"}')
    run = cli("convert", folder, "--out-dir", tmp_path / "out", "--max-shard-size", "20B")
    run.check("record", "repository")
    assert set(content(tmp_path / "out")) == {
        "model_index.json",
        "text_encoder/model.fp16.safetensors",
        "transformer/diffusion_pytorch_model.safetensors",
        *(f"unet/diffusion_pytorch_model.fp16-0000{i}-of-00004.safetensors" for i in range(1, 5)),
        "unet/diffusion_pytorch_model.safetensors.index.fp16.json",
        "vae/diffusion_pytorch_model.safetensors",
    }
    assert (tmp_path / "out" / "vae" / plain.name).read_bytes() == plain.read_bytes()
    cli("verify", folder, tmp_path / "out").check("verify-folder")


def test_checkpoints_with_a_tag_keep_their_container(cli: Callable[..., Run], tmp_path: Path) -> None:
    """A folder may hold Unsloth's pickles: each becomes what it would become by itself."""
    content_of = a.checkpoint("unsloth_prequant_transformer_state_dict_v1", {}, {"pad": W, "m.weight": a.int8_v1()})
    (tmp_path / "repo").mkdir()
    source = tmp_path / "repo" / "Model-INT8.pt"
    source.write_bytes(a.torch_file(content_of, a.int8_storages() | {"0": a.FOUR}))
    cli("convert", tmp_path / "repo", "--out-dir", tmp_path / "out").check("record", "repository")
    cli("convert", source, "--out-dir", tmp_path / "alone").check("record")
    assert content(tmp_path / "out") == content(tmp_path / "alone")


def test_from_python(model: Path, tmp_path: Path) -> None:
    """The same by two functions; the record has those of the files."""
    record = depickle.convert_folder(model, tmp_path / "out", repo="acme/tiny", max_shard_size=40)
    assert record.dst == str(tmp_path / "out" / "acme" / "tiny")
    assert [Path(file.dst).name for file in record.files] == record.weights["pytorch_model.bin.index.json"][:-1]
    found = outside.read(Path(record.files[0].dst))
    assert json.loads(found.metadata["depickle_source"])["repo"] == "acme/tiny"
    assert depickle.verify_folder(model, record.dst).files == len(record.files)
    (tmp_path / "out" / "acme" / "tiny" / "tokenizer.json").write_text("")
    with pytest.raises(depickle.Mismatch, match="tokenizer"):
        depickle.verify_folder(model, record.dst)


# --- safetensors in -------------------------------------------------------------------------------------------------


def flattened(path: Path, metadata: Mapping[str, str], tensors: Mapping[str, tuple[str, list[int], bytes]]) -> None:
    at, header = 0, {"__metadata__": dict(metadata)}
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(a.safetensors_file(header, b"".join(data for _, _, data in tensors.values())))


ENTRY = {
    "_type": "Int8Tensor",
    "_data": {
        "act_quant_kwargs": None,
        "block_size": [1, 4],
        "dtype": {"_type": "torch.dtype", "_data": "bfloat16"},
    },
    "_tensor_data_names": ["qdata", "scale"],
}
FLOAT8 = {
    "_type": "Float8Tensor",
    "_data": {
        "block_size": [1, 4],
        "mm_config": None,
        "act_quant_kwargs": None,
        "kernel_preference": {"_type": "KernelPreference", "_data": "AUTO"},
        "dtype": {"_type": "torch.dtype", "_data": "bfloat16"},
    },
}
FLAT_NAMES = ["a.q.weight", "a.norm.weight", "b.q.weight"]


def two_shards(folder: Path, first: Mapping[str, str], second: Mapping[str, str]) -> None:
    """Two flattened shards, each with a weight of its own, and more metadata."""
    data, scale = ("I8", [2, 4], bytes(range(8))), ("F32", [2, 1], struct.pack("<2f", 1, 2))
    for i, more in enumerate((first, second), 1):
        metadata = {"format": "pt", "tensor_names": json.dumps(["a.weight", "b.weight"])}
        metadata |= dict.fromkeys(("a.weight", "b.weight"), json.dumps(ENTRY)) | dict(more)
        name = "ab"[i - 1]
        tensors = {f"{name}._weight_qdata": data, f"{name}._weight_scale": scale}
        flattened(folder / shard_name(i, 2, "model", ".safetensors"), metadata, tensors)


def test_headers_that_disagree(cli: Callable[..., Run], tmp_path: Path) -> None:
    """Of a weight two files must say the same; of their own affairs they may say what they like."""
    two_shards(tmp_path / "in", {"note": "first"}, {"note": "second"})
    cli("convert", tmp_path / "in", "--out-dir", tmp_path / "out").check("record", "repository")
    other = json.dumps({**ENTRY, "_data": {**ENTRY["_data"], "block_size": [2, 4]}})
    two_shards(tmp_path / "in", {}, {"a.weight": other})
    refused(cli, tmp_path / "in", "a.weight", shard_name(2, 2, "model", ".safetensors"), status=2)
    two_shards(tmp_path / "in", {}, {"format": "mlx"})
    refused(cli, tmp_path / "in", "format", status=2)


@pytest.mark.parametrize("whole", [True, False], ids=["whole table in each", "own names in each"])
def test_flattened_shards_with_a_weight_split(whole: bool, cli: Callable[..., Run], tmp_path: Path) -> None:
    """Three safetensors shards, one weight's parts in two of them: read right, written together."""
    folder, one = tmp_path / "in", ("I8", [2, 4], bytes(range(8)))
    two = ("I8", [2, 4], bytes(range(8, 16)))
    scale, norm = ("F32", [2, 1], struct.pack("<2f", 1, 2)), ("F32", [1], struct.pack("<f", 3))
    held = (
        {"a.q._weight_qdata": one},
        {"a.q._weight_scale": scale, "a.norm.weight": norm},
        {"b.q._weight_qdata": two, "b.q._weight_scale": scale},
    )
    lists = [FLAT_NAMES] * 3 if whole else [["a.q.weight"], ["a.q.weight", "a.norm.weight"], ["b.q.weight"]]
    weight_map = {}
    for i, (tensors, names) in enumerate(zip(held, lists), 1):
        metadata = {"format": "pt", "tensor_names": json.dumps(names)}
        metadata |= {n: json.dumps({"_type": "Tensor"} if "norm" in n else ENTRY) for n in names}
        flattened(folder / shard_name(i, 3, "model", ".safetensors"), metadata, tensors)
        weight_map |= dict.fromkeys(tensors, shard_name(i, 3, "model", ".safetensors"))
    write_index(folder, "model.safetensors.index.json", weight_map)
    cli("convert", folder, "--out-dir", tmp_path / "out", "--max-shard-size", "20B").check("record", "repository")
    index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())["weight_map"]
    assert index["a.q._weight_qdata"] == index["a.q._weight_scale"] != index["b.q._weight_qdata"]
    found = {k: t for path in (tmp_path / "out").glob("*.safetensors") for k, t in outside.read(path).tensors.items()}
    expected = {key: data for tensors in held for key, (_, _, data) in tensors.items()}
    assert {key: tensor.data for key, tensor in found.items()} == expected
    cli("verify", folder, tmp_path / "out").check("verify-folder")


def test_the_grammar_of_torchao_0_14(cli: Callable[..., Run], tmp_path: Path) -> None:
    """`name:part`, the parts in two shards, without an index."""
    folder = tmp_path / "in"
    data, scale = ("F8_E4M3", [2, 4], bytes(range(8))), ("F32", [2, 1], struct.pack("<2f", 1, 2))
    norm = ("F32", [1], struct.pack("<f", 3))
    metadata = {"format": "pt", "tensor_names": json.dumps(["a.q.weight", "a.norm.weight"])}
    metadata |= {"a.q.weight": json.dumps(FLOAT8), "a.norm.weight": json.dumps({"_type": "Tensor"})}
    flattened(folder / shard_name(1, 2, "model", ".safetensors"), metadata, {"a.q.weight:qdata": data})
    rest = {"a.q.weight:scale": scale, "a.norm.weight:_data": norm}
    flattened(folder / shard_name(2, 2, "model", ".safetensors"), metadata, rest)
    cli("convert", folder, "--out-dir", tmp_path / "out").check("record", "repository")
    file = outside.read(tmp_path / "out" / "model.safetensors")
    assert {key: tensor.data for key, tensor in file.tensors.items()} == {
        "a.q._weight_qdata": data[2],
        "a.q._weight_scale": scale[2],
        "a.norm.weight": norm[2],
    }
    assert json.loads(file.metadata["a.q.weight"])["_tensor_data_names"] == ["qdata", "scale"]


# --- what is refused ------------------------------------------------------------------------------------------------


def refused(cli: Callable[..., Run], model: Path, *words: str, status: int = 1) -> None:
    """The folder is refused in one line that says these words, and nothing is written."""
    out = model.parent / "refused-out"
    run = cli("convert", model, "--out-dir", out)
    assert (run.status, run.lines) == (status, []), run.err
    assert run.err.count("\n") == 1
    for word in words:
        assert word in run.err
    assert not out.exists() or not content(out)


def edit_index(model: Path, change: Callable[[dict[str, str]], Any]) -> None:
    path = model / "pytorch_model.bin.index.json"
    index = json.loads(path.read_text())
    change(index["weight_map"])
    path.write_text(json.dumps(index))


@pytest.mark.parametrize("place", ["../x.bin", "/x.bin", "sub/x.bin", "..", "", "x.exe", "a\\b.bin"])
def test_an_index_that_points_elsewhere(place: str, model: Path, cli: Callable[..., Run]) -> None:
    (model.parent / "x.bin").write_bytes((model / shard_name(1)).read_bytes())
    edit_index(model, lambda names: names.update({"head.weight": place}))
    refused(cli, model, "index.json", "beside it")


def test_a_shard_that_is_missing(model: Path, cli: Callable[..., Run]) -> None:
    """With an index and without."""
    (model / shard_name(2)).unlink()
    refused(cli, model, shard_name(2), "not there")
    (model / "pytorch_model.bin.index.json").unlink()
    refused(cli, model, "shard 2 of 3", "not there")


def test_a_name_in_two_shards(model: Path, cli: Callable[..., Run]) -> None:
    pickled(model / shard_name(3), {**SHARDS[2], "model.0.norm.weight": W})
    (model / "pytorch_model.bin.index.json").unlink()
    refused(cli, model, "model.0.norm.weight", shard_name(1), shard_name(3))


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (lambda names: names.pop("head.weight"), "head.weight"),
        (lambda names: names.update({"more.weight": shard_name(1)}), "more.weight"),
        (lambda names: names.update({"head.weight": shard_name(1)}), "head.weight"),
    ],
    ids=["too few", "too many", "in another shard"],
)
def test_an_index_that_does_not_account(change: Any, word: str, model: Path, cli: Callable[..., Run]) -> None:
    edit_index(model, change)
    refused(cli, model, word, "index", status=2)


def test_a_shard_beside_the_index(model: Path, cli: Callable[..., Run]) -> None:
    """A shard that the index does not name would be dropped, or carried as a pickle."""
    pickled(model / "pytorch_model.bin", {"more.weight": W})
    refused(cli, model, "pytorch_model.bin", "model.safetensors")


def test_a_name_that_is_taken(model: Path, cli: Callable[..., Run]) -> None:
    """A pickle and a safetensors file of one stem: which of them is the model?"""
    header = {"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}
    (model / "model.safetensors").write_bytes(a.safetensors_file(header, struct.pack("<f", 1)))
    refused(cli, model, shard_name(1), "model.safetensors")


def test_shards_of_a_name_that_is_taken(model: Path, cli: Callable[..., Run]) -> None:
    """Plain safetensors shards and their index count as the model too."""
    header = {"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}
    other = shard_name(1, 1, "model", ".safetensors")
    (model / other).write_bytes(a.safetensors_file(header, struct.pack("<f", 1)))
    refused(cli, model, shard_name(1), other)
    write_index(model, "model.safetensors.index.json", {"w": other})
    refused(cli, model, shard_name(1), "model")


def test_links(model: Path, cli: Callable[..., Run], tmp_path: Path) -> None:
    """A link to a file within the folder is a copy of it; a link out of it, or to a folder, is refused by name."""
    (model / "alias.json").symlink_to("tokenizer.json")
    cli("convert", model, "--out-dir", tmp_path / "out").check("record", "repository")
    assert not (tmp_path / "out" / "alias.json").is_symlink()
    assert (tmp_path / "out" / "alias.json").read_bytes() == (model / "tokenizer.json").read_bytes()
    (tmp_path / "secret").write_text("secret")
    for target in ("../secret", str(tmp_path / "secret"), "."):
        (model / "alias.json").unlink()
        (model / "alias.json").symlink_to(target)
        refused(cli, model, "alias.json", "link")
    (model / "alias.json").unlink()
    os.rename(model / shard_name(1), tmp_path / shard_name(1))
    (model / shard_name(1)).symlink_to(tmp_path / shard_name(1))
    refused(cli, model, shard_name(1), "link")


@pytest.mark.parametrize(
    "text",
    ['{"quantization_config": ' + "[" * 100_000, '{"a": ' + '{"a":' * 900 + "1" + "}" * 901, "[1]", "nonsense", ""],
    ids=["too deep", "deep", "a list", "no JSON", "empty"],
)
def test_a_config_that_is_none(text: str, model: Path, cli: Callable[..., Run]) -> None:
    """Never a traceback; what can be read is taken."""
    (model / "config.json").write_text(text)
    run = cli("convert", model, "--out-dir", model.parent / "out")
    assert run.status == 2 or text.startswith('{"a"')
    assert "config.json" in run.err


@pytest.mark.parametrize(
    "text",
    [
        '{"weight_map": ' + "[" * 100_000,
        '{"weight_map": {}}',
        '{"weight_map": {"a": 1}}',
        "[]",
        '{"weight_map": {"a": "b.bin", "a": "c.bin"}}',
    ],
    ids=["too deep", "empty", "numbers", "a list", "a name twice"],
)
def test_an_index_that_is_none(text: str, model: Path, cli: Callable[..., Run]) -> None:
    (model / "pytorch_model.bin.index.json").write_text(text)
    refused(cli, model, "index", status=2)


def test_what_is_no_file(model: Path, cli: Callable[..., Run]) -> None:
    os.mkfifo(model / "pipe")
    refused(cli, model, "pipe")


def test_pickles_of_a_trainer_are_carried_and_noted(model: Path, cli: Callable[..., Run], tmp_path: Path) -> None:
    for name in ("training_args.bin", "old.ckpt"):
        (model / name).write_bytes(b"PK\3\4 anything")
    run = cli("convert", model, "--out-dir", tmp_path / "out").check("record", "repository")
    for name in ("training_args.bin", "old.ckpt"):
        assert name in run.lines[-1]["carried"]
        assert any(name in text for text in run.lines[-1]["warnings"])
        assert name in run.err


def test_what_tools_keep_is_left_out_and_said(model: Path, cli: Callable[..., Run], tmp_path: Path) -> None:
    for place in (".git/objects", ".cache/huggingface/download"):
        (model / place).mkdir(parents=True)
        (model / place / "x").write_text("x")
    run = cli("convert", model, "--out-dir", tmp_path / "out").check("record", "repository")
    assert run.lines[-1]["left_out"] == [".git", ".cache/huggingface"]
    assert not any(name.startswith(".") for name in content(tmp_path / "out"))
    cli("verify", model, tmp_path / "out").check("verify-folder")


def test_a_tag_in_a_shard(model: Path, cli: Callable[..., Run]) -> None:
    tagged = a.checkpoint("unsloth_prequant_transformer_state_dict_v1", {}, {"model.1.q.weight": a.int8_v1()})
    (model / shard_name(2)).write_bytes(a.torch_file(tagged, a.int8_storages()))
    refused(cli, model, shard_name(2), "tag")


def test_a_weight_that_cannot_be_converted(model: Path, cli: Callable[..., Run]) -> None:
    """Nothing is written, of the other models of the folder neither."""
    (model / "evil").mkdir()
    (model / "evil" / "pytorch_model.bin").write_bytes(a.torch_file(a.program(a.call("os", "system", "x"))))
    refused(cli, model, "pytorch_model.bin", "os.system")


@pytest.mark.parametrize(
    "options",
    [
        ("--sha256", "0" * 64),
        ("--trust-sha256", "0" * 64),
        ("--key", "x"),
        ("--check-with", "torch"),
        ("--drop-tied-copies",),
        ("--target", "comfyui"),
        ("--max-shard-size", "nonsense"),
        ("--max-shard-size", "0GB"),
    ],
    ids=lambda options: " ".join(options)[:24],
)
def test_options_that_do_not_go_with_a_folder(options: tuple[str, ...], model: Path, cli: Callable[..., Run]) -> None:
    run = cli("convert", model, "--out-dir", model.parent / "out", *options)
    assert (run.status, run.lines) == (2, [])
    assert options[0] in run.err
    assert not (model.parent / "out").exists()


def test_verify_takes_no_key_of_a_folder(model: Path, cli: Callable[..., Run]) -> None:
    run = cli("verify", model, model, "--key", "x")
    assert run.status == 2
    assert "--key" in run.err


@pytest.mark.parametrize("place", ["model/out", "model", "."])
def test_folders_that_lie_in_each_other(place: str, model: Path, cli: Callable[..., Run], tmp_path: Path) -> None:
    before = content(model)
    run = cli("convert", model, "--out-dir", tmp_path / place)
    assert (run.status, content(model)) == (2, before)


def test_two_folders_of_one_destination(model: Path, cli: Callable[..., Run], tmp_path: Path) -> None:
    shutil.copytree(model, tmp_path / "other")
    run = cli("convert", model, tmp_path / "other", "--out-dir", tmp_path / "out")
    assert (run.status, run.lines) == (2, [])


# --- again ----------------------------------------------------------------------------------------------------------


def test_a_second_run_finds_everything_done(model: Path, cli: Callable[..., Run], tmp_path: Path) -> None:
    out = tmp_path / "out"
    cli("convert", model, "--out-dir", out, "--max-shard-size", "40B")
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*")}
    run = cli("convert", model, "--out-dir", out, "--max-shard-size", "40B").check("record", "repository")
    assert all(record["skipped"] for record in run.lines[:-1])
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*")} == before


def test_a_run_that_was_broken_off_goes_on(model: Path, cli: Callable[..., Run], tmp_path: Path) -> None:
    out = tmp_path / "out"
    cli("convert", model, "--out-dir", out, "--max-shard-size", "40B")
    whole = content(out)
    second = sorted(out.glob("*.safetensors"))[1]
    for path in (second, out / "model.safetensors.index.json", out / "config.json", out / "empty.txt"):
        path.unlink()
    run = cli("convert", model, "--out-dir", out, "--max-shard-size", "40B").check("record", "repository")
    assert [Path(record["dst"]).name for record in run.lines[:-1] if not record.get("skipped")] == [second.name]
    assert content(out) == whole


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_another_file_at_the_destination(name: str, model: Path, cli: Callable[..., Run], tmp_path: Path) -> None:
    """Refused, unless --overwrite."""
    out = tmp_path / "out"
    out.mkdir()
    (out / name).write_text("mine")
    run = cli("convert", model, "--out-dir", out)
    assert run.status == 1
    assert name in run.err
    assert (out / name).read_text() == "mine"
    cli("convert", model, "--out-dir", out, "--overwrite").check("record", "repository")
    cli("verify", model, out).check("verify-folder")


@pytest.mark.parametrize(
    "name", ["model-00001-of-00002.safetensors", "pytorch_model.bin", "model.safetensors.index.json"]
)
def test_what_a_reader_would_take_for_the_result(
    name: str, model: Path, cli: Callable[..., Run], tmp_path: Path
) -> None:
    """Weights and indexes at the destination that are no part of the result are refused, by name."""
    out = tmp_path / "out"
    out.mkdir()
    (out / name).write_text("stale")
    run = cli("convert", model, "--out-dir", out, "--overwrite")
    assert run.status == 1
    assert name in run.err
    assert set(content(out)) == {name}


def test_the_index_comes_after_its_files(model: Path, cli: Callable[..., Run], tmp_path: Path) -> None:
    """A source whose CRC is wrong: no file, no index, no config."""
    data = bytearray((model / shard_name(3)).read_bytes())
    data[data.index(a.FOUR)] ^= 1
    (model / shard_name(3)).write_bytes(data)
    run = cli("convert", model, "--out-dir", tmp_path / "out", "--max-shard-size", "40B")
    assert run.status == 2
    assert "CRC" in run.err
    assert content(tmp_path / "out") == {}


# --- dry run and verify ---------------------------------------------------------------------------------------------


def test_dry_run(model: Path, cli: Callable[..., Run], tmp_path: Path) -> None:
    """The plan names each source by number; its bytes are those; nothing is written."""
    words = ("convert", model, "--out-dir", tmp_path / "out", "--dry-run", "--json", "--max-shard-size", "40B")
    plan, last = cli(*words).check("plan", "repository").lines
    assert [Path(source).name for source in plan["sources"]] == [shard_name(i) for i in (1, 2, 3)]
    assert plan["index"] == "model.safetensors.index.json"
    assert not (tmp_path / "out").exists()
    cli("convert", model, "--out-dir", tmp_path / "out", "--max-shard-size", "40B")
    copied = set()
    for file in plan["files"]:
        made = (tmp_path / "out" / file["file"]).read_bytes()
        for segment in file["segments"]:
            number, offset, length = segment["from"]
            assert (
                made[segment["at"] : segment["at"] + length]
                == Path(plan["sources"][number]).read_bytes()[offset:][:length]
            )
            copied.add(number)
    assert copied == {0, 1, 2}
    assert set(last["configs"]) == {"config.json"}
    assert cli("convert", model, "--out-dir", tmp_path / "other", "--dry-run").status == 0


@pytest.mark.parametrize(
    ("damage", "word"),
    [
        (lambda out: (out / "tokenizer.json").write_bytes(b"{}"), "tokenizer.json: differs"),
        (lambda out: (out / "empty.txt").unlink(), "empty.txt: is not there"),
        (lambda out: (out / "more.txt").write_bytes(b""), "more.txt: is no part"),
        (lambda out: (out / "config.json").write_bytes(b"{}"), "config.json: differs"),
        (lambda out: (out / "model.safetensors.index.json").unlink(), "model.safetensors: is not there"),
        (lambda out: flip(sorted(out.glob("*.safetensors"))[1], -1), "differs at byte"),
        (lambda out: flip(sorted(out.glob("*.safetensors"))[1], 200), "model-00002"),
        (lambda out: sorted(out.glob("*.safetensors"))[1].unlink(), "model-00002"),
    ],
    ids=["carried", "missing", "more", "config", "no index", "data", "header", "no shard"],
)
def test_verify_finds(damage: Any, word: str, model: Path, cli: Callable[..., Run], tmp_path: Path) -> None:
    out = tmp_path / "out"
    cli("convert", model, "--out-dir", out, "--max-shard-size", "40B").check("record", "repository")
    damage(out)
    run = cli("verify", model, out)
    assert run.status in (1, 2)
    assert run.lines == []
    assert word in run.err


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def test_verify_finds_another_source(model: Path, cli: Callable[..., Run], tmp_path: Path) -> None:
    """A source of the same weights and other bytes is not the one that the result records."""
    cli("convert", model, "--out-dir", tmp_path / "out").check("record", "repository")
    pickled(model / shard_name(3), dict(reversed(SHARDS[2].items())))
    run = cli("verify", model, tmp_path / "out")
    assert run.status == 1
