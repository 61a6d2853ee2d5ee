"""`depickle.torch` beyond the matrix: memory, ties, damaged files, models, saving; and what is said without torch."""

from __future__ import annotations

import ast
import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import environment
import pytest
import readings

_TREE = ast.parse((environment.CHILDREN / "loader.py").read_text())
CHECKS = [node.name for node in _TREE.body if isinstance(node, ast.FunctionDef) and node.name.startswith("check_")]
WITHOUT = "check_without_torchao"
RELEASES = ("0.17.0", "0.18.0")


@pytest.fixture(scope="session")
def checked(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str | None, str], str | None]:
    """Every check under 0.17 and 0.18, and the one that needs no torchao without it: null, or the traceback."""
    found: dict[tuple[str | None, str], Any] = {}
    for release in (*RELEASES, None):
        checks = [name for name in CHECKS if (name == WITHOUT) == (release is None)]
        folder = tmp_path_factory.mktemp("loader")
        job = {"folder": str(folder), "fixtures": str(readings.FIXTURES), "checks": checks}
        found |= {(release, name): trace for name, trace in environment.run(release, "loader", job).items()}
    return found


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("check", [name for name in CHECKS if name != WITHOUT])
def test_loader(checked: dict[tuple[str | None, str], str | None], check: str, release: str) -> None:
    """One function of the child."""
    trace = checked[release, check]
    assert trace is None, trace


def test_without_torchao(checked: dict[tuple[str | None, str], str | None]) -> None:
    """Values by our own formulas, plain files, and errors that say what to install."""
    trace = checked[None, WITHOUT]
    assert trace is None, trace


@pytest.mark.skipif(importlib.util.find_spec("torch") is not None, reason="torch is installed here")
def test_without_torch(tmp_path: Path) -> None:
    """The command says what to install; nothing is written; the module's own import says the same."""
    source = readings.FIXTURES / "0.17.0" / "int8dyn_default.wrapped.pt"
    command = [sys.executable, "-m", "depickle", "convert", source, "--out-dir", tmp_path, "--check-with", "torch"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "--check-with torch needs torch, which is not installed: pip install 'depickle[torch]'" in done.stderr
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ImportError, match=r"pip install 'depickle\[torch\]'"):
        importlib.import_module("depickle.torch")
