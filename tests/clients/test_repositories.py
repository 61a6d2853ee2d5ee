"""Real clients load converted folders: every weight's values are the writer's, bit for bit, and so is what the models
compute, where today's class is the writer's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import environment
import pytest

from depickle.cli import main
from depickle.errors import Error
from depickle.opening import open_checkpoint
from depickle.quantization import rewrite

CHILDREN = Path(__file__).resolve().parent / "children"
FIXTURES = Path(__file__).resolve().parents[1] / "data" / "fixtures"
INT8, FLOAT8 = "Int8DynamicActivationInt8WeightConfig", "Float8DynamicActivationFloat8WeightConfig"
LLAMA = {"model": "llama", "stem": "pytorch_model"}
FLUX = {"model": "flux", "stem": "diffusion_pytorch_model"}

# What is written under which release; `split` is the limit of the result's shards; `equal`: outputs bit for bit.
CASES: dict[str, dict[str, Any]] = {
    "llama int8 v1": {
        **LLAMA,
        "release": "0.14.1",
        "config": INT8,
        "declared": "int8_dynamic_activation_int8_weight",
        "shards": 3,
        "split": "60KB",
        "equal": False,
    },
    "llama float8 of 0.14": {**LLAMA, "release": "0.14.1", "config": FLOAT8, "shards": 2, "equal": True},
    "llama int8 of 0.18": {**LLAMA, "release": "0.18.0", "config": INT8, "shards": 2, "split": "40KB", "equal": True},
    "flux int8 v1": {
        **FLUX,
        "release": "0.14.1",
        "config": "Int8WeightOnlyConfig",
        "declared": "int8wo",
        "shards": 2,
        "split": "100KB",
        "equal": True,
    },
    "flux float8 of 0.14": {**FLUX, "release": "0.14.1", "config": FLOAT8, "shards": 1, "equal": True},
    "flux int8 of 0.18": {**FLUX, "release": "0.18.0", "config": "Int8WeightOnlyConfig", "shards": 1, "equal": True},
}

# Parameters at the root, in a checkpoint with a tag: made for these clients by --target hf.
CASES["zimage int8 with a tag"] = {
    "model": "zimage",
    "stem": "diffusion_pytorch_model",
    "tag": "unsloth_prequant_transformer_state_dict_v1",
    "target": "hf",
    "release": "0.18.0",
    "config": "Int8WeightOnlyConfig",
    "equal": True,
}


class Case:
    """One model: what the writer said of it, its converted folder, and what the client said of that."""

    def __init__(self, name: str, written: Any, out: Path) -> None:
        self.name, self.written, self.out = name, written, out
        self.read: Any = None


@pytest.fixture(scope="session")
def cases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Case]:
    """Every case written, converted and read: one process for each release that writes, one that reads."""
    base = tmp_path_factory.mktemp("repositories")
    made = {}
    for release in ("0.14.1", "0.18.0"):
        jobs = {name: case | {"folder": str(base / name)} for name, case in CASES.items() if case["release"] == release}
        said = environment.run(release, CHILDREN / "write.py", list(jobs.values()), with_clients=True)
        for (name, job), written in zip(jobs.items(), said):
            out = base / f"{name} converted"
            more = ["--max-shard-size", job["split"]] if "split" in job else []
            more += ["--target", job["target"]] if "target" in job else []
            assert main(["convert", job["folder"], "--out-dir", str(out), "--quiet", *more]) == 0
            made[name] = Case(name, written, out)
    jobs = [{"model": CASES[name]["model"], "folder": str(case.out)} for name, case in made.items()]
    said = environment.run("0.18.0", CHILDREN / "read.py", jobs, with_clients=True)
    for case, read in zip(made.values(), said):
        case.read = read
    return made


@pytest.fixture(params=CASES)
def case(cases: dict[str, Case], request: pytest.FixtureRequest) -> Case:
    return cases[request.param]


def test_every_weight_has_the_writers_values(case: Case) -> None:
    """Each name, its dtype and its dequantised values, bit for bit; quantised weights are of today's class."""
    written, read = case.written["weights"], case.read["weights"]
    assert list(written) == list(read)
    for name, (kind, dtype, digest) in written.items():
        assert read[name][1:] == [dtype, digest], name
        today = {"LinearActivationQuantizedTensor": "Int8Tensor", "AffineQuantizedTensor": "Int8Tensor"}.get(kind, kind)
        assert read[name][0].replace("Parameter", "Tensor") == today.replace("Parameter", "Tensor"), name
    assert sum(row[0] in ("Int8Tensor", "Float8Tensor") for row in read.values()) >= 14


def test_the_models_compute_what_they_computed(case: Case, record_property: Any) -> None:
    """Bit for bit, or as close as two ways of rounding an activation are (int8 of torchao v1)."""
    pairs = list(zip(case.written["output"], case.read["output"]))
    largest = max(abs(value) for value, _ in pairs)
    difference = max(abs(one - other) for one, other in pairs)
    record_property("difference", f"{difference} of {largest}")
    assert len(case.written["output"]) == len(case.read["output"]) > 200
    assert largest > 0.1
    if CASES[case.name]["equal"]:
        assert difference == 0
    else:
        assert difference <= 0.02 * largest, f"{difference} of {largest}"


def test_other_loaders_open_every_file(case: Case) -> None:
    """accelerate and huggingface_hub read each file, and together all tensors of the index."""
    for found in case.read["loaders"].values():
        names = sorted(name for file in found for name in file)
        index = next(case.out.glob("*.index.json"), None)
        if index is not None:
            assert len(found) > 1
            assert names == sorted(json.loads(index.read_text())["weight_map"])
        assert len(names) > len(case.written["weights"])


def test_each_file_suffices_by_itself(case: Case) -> None:
    """torchao's reader, given one file and that file's own metadata, as vLLM gives it, leaves nothing over. It fails on
    a name at the root."""
    if "tag" in CASES[case.name]:
        assert "not enough values to unpack" in case.read["file by file"]["error"]
        return
    assert sorted(case.read["file by file"]["names"]) == sorted(case.written["weights"])


def test_depickle_loads_them_back(case: Case) -> None:
    """The same values, and the same classes as the client's."""
    assert case.read["depickle"].keys() == case.written["weights"].keys()
    for name, (kind, *value) in case.read["depickle"].items():
        assert value == case.written["weights"][name][1:], name
        assert kind.replace("Parameter", "Tensor") == case.read["weights"][name][0].replace("Parameter", "Tensor")


@pytest.mark.parametrize("release", ["0.15.0", "0.18.0"])
def test_torchao_reads_every_config(release: str) -> None:
    """The config that is read off a fixture's weights is one that torchao takes, and each field means there what it
    says here."""
    configs: dict[str, Any] = {}
    for path in sorted(FIXTURES.glob("*/*.wrapped.pt")):
        try:
            with open_checkpoint(path) as checkpoint:
                found = rewrite({"quant_method": "torchao", "quant_type": "old"}, checkpoint.weights)
        except Error:
            continue
        if found.config is not None:
            configs[f"{path.parent.name}/{path.name}"] = found.config["quant_type"]["default"]  # type: ignore[index]
    assert len(configs) > 100
    if release == "0.15.0":
        configs = {name: config for name, config in configs.items() if "reduce_range" not in config["_data"]}
    said = environment.run(release, CHILDREN / "configs.py", list(configs.values()))
    for (name, config), read in zip(configs.items(), said):
        assert isinstance(read, dict), f"{name}: {read}"
        assert (read["_type"], read["_version"]) == (config["_type"], config["_version"]), name
        for key, value in config["_data"].items():
            assert read["_data"][key] == value, f"{name}: {key}"
