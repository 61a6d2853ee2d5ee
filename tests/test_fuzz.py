"""Each target of fuzz/ for a moment, without a guide; DEPICKLE_FUZZ_SECONDS=10 in CI, minutes and hours by hand."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import depickle

ROOT = Path(__file__).resolve().parents[1]
SECONDS = os.environ.get("DEPICKLE_FUZZ_SECONDS", "0.5")
TARGETS = ["machine", "zip_archive", "legacy_archive", "safetensors_file", "whole", "conversion", "scanning"]

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="limits and timers of POSIX")


def run(*arguments):
    environment = os.environ | {"PYTHONPATH": str(Path(depickle.__file__).parents[1])}
    if float(SECONDS) < 5:
        environment["DEPICKLE_FUZZ_LARGEST"] = "3000"  # few seeds: to open all of them takes longer than that
    command = [sys.executable, "-W", "error", "-m", "fuzz", *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=300)


@pytest.mark.parametrize("target", TARGETS)
def test_nothing_but_values_and_errors(target):
    done = run(target, "--plain", "--seconds", SECONDS)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " 0 kinds of findings" in done.stdout
    assert f"{target}: " in done.stdout


def test_every_target_is_here():
    done = run("--help")
    assert all(target in done.stdout for target in TARGETS)
    modules = {path.stem for path in (ROOT / "fuzz").glob("*.py") if "def target(" in path.read_text()}
    assert modules == set(TARGETS)


def test_a_finding_is_found(tmp_path):
    """The contract itself: what it must notice, it notices."""
    script = """
import sys, time
from fuzz import contract
from depickle import Malformed
def bad(data): raise KeyError("x")
def slow(data):
    while True: pass
def deep(data): return deep(data)
def large(data): return bytearray(1 << 33)
def fine(data): raise Malformed("no")
contract.SECONDS = 0.2
contract.limit_memory()
for target in (bad, slow, deep, large, fine):
    print(contract.run(target, b""))
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)
    lines = done.stdout.splitlines()
    assert [line.split(":")[0] for line in lines] == ["KeyError", "TooSlow", "RecursionError", "MemoryError", "None"], (
        done
    )
