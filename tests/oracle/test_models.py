"""Real models of transformers and diffusers, quantised by real torchao: what they compute from the pickle, and from
what `load_into` makes of its conversion."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import environment
import pytest

MODELS = ("llama", "t5", "zimage")
# What each release quantises on the CPU, and what of torchao's it then writes.
INTX = {"intx dynamic": "IntxUnpackedToInt8Tensor", "intx weight only": "IntxUnpackedToInt8Tensor"}
FLOAT8 = {"fp8 dynamic v2": "Float8Tensor", "fp8 weight only v2": "Float8Tensor", "mxfp8 emulated": "MXTensor"}
INT8 = {"int8 dynamic v2": "Int8Tensor", "int8 weight only v2": "Int8Tensor"}
INT8_V1 = {"int8 dynamic": "LinearActivationQuantizedTensor", "int8 weight only": "AffineQuantizedTensor"}
FLOAT8_V1 = {"fp8 dynamic v1": "LinearActivationQuantizedTensor", "fp8 weight only v1": "AffineQuantizedTensor"}
INT4_V1 = {"int8 dynamic int4": "LinearActivationQuantizedTensor"}
NVFP4 = {"nvfp4 weight only": "NVFP4Tensor"}
WRITTEN: dict[str, dict[str, str]] = {
    "0.14.1": {**INT8_V1, **INT4_V1, **FLOAT8_V1, **FLOAT8, **INTX},
    "0.16.0": {**INT8_V1, **INT4_V1, **INT8, **FLOAT8, **INTX, **NVFP4},
    "0.17.0": {**INT8_V1, **INT8, **FLOAT8, **INTX, **NVFP4},
    "0.18.0": {**INT8, **FLOAT8, **INTX, **NVFP4},
}
# What is not equal bit for bit, and why: the class of today is another one than the pickle's.
CLOSE = {"int8 dynamic int4": 0.05}  # today's class quantises activations by its own arithmetic
REFUSED = {("0.14.1", "int8 weight only"): r"is a Int8Tensor, a class that torchao 0\.14\.1 does not have"}

CASES = [(release, recipe, model) for release, made in WRITTEN.items() for recipe in made for model in MODELS]


SHARDED = ("check_transformers", "check_diffusers", "check_our_own", "check_tagged")
PAGE = ("0.17.0", "0.18.0")  # where int8 is still v1's, and where it is not


@pytest.fixture(scope="session")
def children(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[tuple[str, str], Future[Any]]]:
    """Every child of this file by name and release, two at a time: what it prints."""
    root, place = environment.HERE.parents[1], tmp_path_factory.mktemp("models")
    jobs: dict[tuple[str, str], Any] = {}
    for release, made in WRITTEN.items():
        jobs["models", release] = {"recipes": list(made)}
    jobs["sharded", "0.18.0"] = {"checks": SHARDED}
    for release in PAGE:
        jobs["page", release] = {"page": str(root / "docs" / "loading.md")}

    def run(child: str, release: str, job: Any) -> Any:
        folder = place / f"{child}-{release}"
        shutil.copytree(root / "examples", folder / "examples")
        return environment.run(release, child, {"folder": str(folder), **job}, with_clients=True)

    environment.clients()
    with ThreadPoolExecutor(2) as pool:
        yield {key: pool.submit(run, *key, job) for key, job in jobs.items()}


@pytest.mark.parametrize(("release", "recipe", "model"), CASES)
def test_outputs(children: dict[tuple[str, str], Future[Any]], release: str, recipe: str, model: str) -> None:
    """Equal, bit for bit, wherever the release has the class that is rebuilt and that class is the pickle's."""
    found = children["models", release].result()[model][recipe]
    assert found["written"] == [WRITTEN[release][recipe]]
    if (release, recipe) in REFUSED:
        assert found["outcome"] == "refused"
        assert re.match(REFUSED[release, recipe], found["why"])
    elif recipe in CLOSE:
        assert found["outcome"] == "close"
        assert found["difference"] < CLOSE[recipe]
    else:
        assert found["outcome"] == "equal", found


@pytest.mark.parametrize("check", SHARDED)
def test_sharded(children: dict[tuple[str, str], Future[Any]], check: str) -> None:
    """Files of transformers, of diffusers and of depickle with their index; one function of the child."""
    trace = children["sharded", "0.18.0"].result()[check]
    assert trace is None, trace


@pytest.mark.parametrize("release", PAGE)
def test_the_page_about_loading_runs(children: dict[tuple[str, str], Future[Any]], release: str) -> None:
    """Every block of docs/loading.md."""
    assert children["page", release].result() == 6
