"""kill -9 and a full disk while a folder is converted: what has its name is whole, the index and the configs come after
what they speak of, and the next run makes the rest."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal

import pytest
from child import check_failed, convert

import assemble as a
import depickle

LIMIT = 40
CONFIG = {"quantization_config": {"quant_method": "torchao", "quant_type": "int8_dynamic_activation_int8_weight"}}


@pytest.fixture
def model(tmp_path):
    """Two pickled shards with an index, a config that changes, and a file that does not."""
    folder = tmp_path / "model"
    folder.mkdir()
    places = {}
    for number in (1, 2):
        file = f"pytorch_model-{number:05d}-of-00002.bin"
        key = f"w{number}"
        items = {f"m.{number}.weight": a.int8_v1(key), f"m.{number}.bias": a.tensor("0", "FloatStorage", 4)}
        (folder / file).write_bytes(a.torch_file(a.state_dict(items), a.int8_storages(key) | {"0": a.FOUR}))
        places |= dict.fromkeys(items, file)
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "tokenizer.json").write_text("{}")
    return folder


def content(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()} if folder.exists() else {}


@pytest.fixture
def right(model, tmp_path):
    """What the result has to be."""
    depickle.convert_folder(model, tmp_path / "right", max_shard_size=LIMIT)
    made = content(tmp_path / "right")
    assert len(made) == 5
    return made


def test_killed_before_every_call_that_changes_something(tmp_path, model, right, shim):
    log = tmp_path / "log"
    assert convert(model, tmp_path / "first", "--max-shard-size", str(LIMIT)).status == 0  # compiles what it imports
    assert convert(model, tmp_path / "whole", "--max-shard-size", str(LIMIT), env=shim(LOG=log)).status == 0
    calls = [line.split(" ", 1)[0] for line in log.read_text().splitlines()]
    assert calls.count("fsync") >= 5
    step = 1 if os.environ.get("DEPICKLE_THOROUGH") else 5
    for number in range(os.getpid() % step, len(calls), step):
        out = tmp_path / str(number)
        killed = convert(model, out, "--max-shard-size", str(LIMIT), env=shim(KILL=number))
        where = f"{number} {calls[number]}"
        assert killed.status == -signal.SIGKILL or calls[number] == "write", where
        left = {name: data for name, data in content(out).items() if not name.startswith(".depickle-")}
        assert left.items() <= right.items(), where
        if "model.safetensors.index.json" in left:
            assert {name for name in right if name.startswith("model-")} <= left.keys(), where
        if "config.json" in left:
            assert left == right, where
        record = depickle.convert_folder(model, out, max_shard_size=LIMIT)
        assert content(out) == right, where
        assert sum(file.skipped for file in record.files) == len([name for name in left if name.startswith("model-")])
        shutil.rmtree(out)


@pytest.mark.parametrize("number", [1, 3, 5])
def test_a_disk_that_is_full(tmp_path, model, right, shim, number):
    """The first or a later file cannot be brought to the disk: one line; what was proved stays, without an index."""
    out = tmp_path / "out"
    done = convert(
        model,
        out,
        "--max-shard-size",
        str(LIMIT),
        "--quiet",
        env=shim(FSYNC=f"after={number - 1},errno={errno.ENOSPC}"),
    )
    if number == 1:
        check_failed(done, 2)
        assert content(out) == {}
    else:
        assert done.status == 2
        assert content(out).items() < right.items()
        assert "config.json" not in content(out)
    depickle.convert_folder(model, out, max_shard_size=LIMIT)
    assert content(out) == right
