"""Every fixture converted once, and read once under each release of torchao; the tests look at what came of it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).resolve().parent
for folder in (HERE, HERE.parent):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

import readings  # noqa: E402 - needs the path


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All of them share the readings, so that with several workers they belong to one."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.oracle)
            item.add_marker(pytest.mark.xdist_group("oracle"))


@pytest.fixture(scope="session")
def taken(tmp_path_factory: pytest.TempPathFactory) -> readings.Readings:
    """What every release made of every converted fixture."""
    return readings.take(tmp_path_factory.mktemp("oracle"))


@pytest.fixture(params=readings.environment.READERS)
def release(request: pytest.FixtureRequest) -> Any:
    """A release of torchao that reads."""
    return request.param
