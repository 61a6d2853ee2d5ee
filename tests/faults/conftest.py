"""Puts the builders on the path, and makes what the tests of faults share: sources, the shim, small disks."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
for folder in (HERE, HERE.parent):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

import sources  # noqa: E402 - needs the path
from child import convert, digest  # noqa: E402

MIB = 1024 * 1024


def pytest_collection_modifyitems(items):
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.faults)


@pytest.fixture(scope="session")
def small(tmp_path_factory):
    """A source of a few kilobytes, with every kind of segment in it."""
    return sources.write(tmp_path_factory.mktemp("small") / "model.pt", 0)


@pytest.fixture(scope="session")
def big(tmp_path_factory):
    """A source that takes a moment."""
    return sources.write(tmp_path_factory.mktemp("big") / "model.pt", 24 * MIB)


@pytest.fixture(scope="session")
def right(tmp_path_factory):
    """The SHA-256 of what a source has to become, by a run that nobody disturbs."""
    known: dict[Path, str] = {}

    def of(source: Path) -> str:
        if source not in known:
            out = tmp_path_factory.mktemp("right")
            done = convert(source, out)
            assert done.status == 0, done
            known[source] = digest(out / "model.safetensors")
        return known[source]

    return of


@pytest.fixture
def out(tmp_path):
    """An empty folder for the output."""
    folder = tmp_path / "out"
    folder.mkdir()
    return folder


@pytest.fixture(scope="session")
def shim(tmp_path_factory):
    """Environment for a child whose file calls go through shim.c; called with the variables' values."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None or not sys.platform.startswith("linux"):
        pytest.skip("needs Linux and a C compiler for the LD_PRELOAD shim")
    library = tmp_path_factory.mktemp("shim") / "shim.so"
    command = [compiler, "-D_LARGEFILE64_SOURCE", "-shared", "-fPIC", "-O1", "-o", library, HERE / "shim.c", "-ldl"]
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    if made.returncode != 0:
        pytest.skip(f"the LD_PRELOAD shim does not compile here: {made.stderr.splitlines()[:1]}")

    def environment(**variables: object) -> dict[str, str]:
        return {"LD_PRELOAD": str(library)} | {f"SHIM_{key}": str(value) for key, value in variables.items()}

    return environment


@pytest.fixture
def tmpfs(tmp_path):
    """Mounts a file system of so many bytes; skips where that is not permitted."""
    mounted: list[Path] = []

    def mount(size: int) -> Path:
        folder = tmp_path / f"disk{len(mounted)}"
        folder.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "none", folder]
        made = subprocess.run(command, capture_output=True, text=True, check=False) if shutil.which("mount") else None
        if made is None or made.returncode != 0:
            pytest.skip(f"cannot mount a tmpfs: {made.stderr.strip() if made else 'there is no mount'}")
        mounted.append(folder)
        return folder

    yield mount
    for folder in mounted:
        subprocess.run(["umount", "-l", folder], check=True)
