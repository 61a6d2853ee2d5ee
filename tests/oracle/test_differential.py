"""Thousands of mutated pickles through real torch and through depickle: where both load one, they load the same."""

from __future__ import annotations

import re
from typing import Any

import environment
import pytest
import readings

FILES = (
    "0.17.0/int8dyn_default.wrapped.pt",
    "0.18.0/fp8dyn_perrow_plain.wrapped.pt",
    "0.17.0/mixed_fp8_nvfp4.wrapped.pt",
    "edge/te_qwen_tied.pt",
)
COUNT = 500
# What depickle does not judge: where a tensor was, whether it had gradients, the strides of a wrapper; and
# and opcodes that torch's unpickler has not.
HARMLESS = re.compile(
    r"device|Unsupported operand|require gradients|requires grad|recognized function \('cpu',\)|'strides' must be"
)


@pytest.fixture(scope="module")
def differ(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What became of the mutations."""
    files = [str(readings.FIXTURES / name) for name in FILES]
    job = {"files": files, "count": COUNT, "seed": 20261201, "folder": str(tmp_path_factory.mktemp("differ"))}
    return environment.run("0.17.0", "differ", job)


def test_both_load_the_same(differ: Any) -> None:
    """Names, order, classes, attributes, bytes, format and metadata."""
    assert differ["different"] == []
    assert differ["counted"]["both"] >= 100  # else the mutations would say nothing


def test_errors_are_our_own(differ: Any) -> None:
    """No mutation gets anything but a defined error out of depickle."""
    assert differ["foreign"] == []


def test_what_depickle_alone_loads_is_known(differ: Any) -> None:
    """Nothing that torch declines for a reason that concerns the values."""
    assert [reason for reason in differ["alone"] if not HARMLESS.search(reason)] == []
    assert len(differ["alone"]) < COUNT * len(FILES) / 100
