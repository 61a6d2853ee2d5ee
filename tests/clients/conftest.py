"""The tests with real clients belong to one worker, like the oracle's, whose environments they use."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
for folder in (HERE.parent, HERE.parent / "oracle"):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """They share what was written and read once."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.oracle)
            item.add_marker(pytest.mark.xdist_group("clients"))
