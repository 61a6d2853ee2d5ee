"""Puts the builders on the path, and starts the watched process in which attacks run."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
for folder in (HERE, HERE.parent):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

import harness  # noqa: E402 - needs the path


@pytest.fixture(scope="session")
def watcher() -> Iterator[harness.Watcher]:
    """The watched process in which all attacks run."""
    with harness.Watcher() as process:
        yield process
