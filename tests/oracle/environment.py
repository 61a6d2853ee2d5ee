"""Environments of their own for real torch and torchao: one with torch, and a folder per torchao release.

Made on demand under `$DEPICKLE_CACHE` (default `~/.cache/depickle-tests`) and used again by later runs. Each is made
under a lock, in a place of its own, and gets its mark (or its name) last: one that was left half made is made again.
Packages come from wherever pip is told to find them.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
SRC = HERE.parents[1] / "src"
CHILDREN = HERE / "children"

TORCH = "2.13.0"
PACKAGES = (f"torch=={TORCH}", "numpy", "safetensors==0.8.0")
READERS = ("0.14.1", "0.15.0", "0.16.0", "0.17.0", "0.18.0")


class SetupFailed(Exception):
    """An environment could not be made; the message has what pip said."""


def cache() -> Path:
    """The folder that holds the environments."""
    given = os.environ.get("DEPICKLE_CACHE")
    return Path(given) if given else Path.home() / ".cache" / "depickle-tests"


@contextmanager
def _locked(name: str) -> Iterator[None]:
    cache().mkdir(parents=True, exist_ok=True)
    with (cache() / f"{name}.lock").open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _run(*command: str | os.PathLike[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SetupFailed(f"{' '.join(map(str, command))}\n{(done.stdout + done.stderr)[-3000:]}")


def python() -> Path:
    """The interpreter of the environment that has torch."""
    version = ".".join(map(str, sys.version_info[:2]))
    name = f"torch-{TORCH}-python-{version}"
    home = cache() / name
    mark = home / "complete.json"
    wanted = json.dumps(PACKAGES)
    with _locked(name):
        if not mark.exists() or mark.read_text() != wanted or not (home / "bin" / "python").exists():
            shutil.rmtree(home, ignore_errors=True)
            _run(sys.executable, "-m", "venv", home)
            _run(home / "bin" / "python", "-m", "pip", "install", "-q", "--disable-pip-version-check", *PACKAGES)
            mark.write_text(wanted)
    return home / "bin" / "python"


def torchao(release: str) -> Path:
    """A folder to put first on PYTHONPATH that has this release of torchao and nothing else."""
    interpreter = python()
    home = cache() / f"torchao-{release}"
    with _locked(home.name):
        if not home.exists():
            half = cache() / f"{home.name}.half"
            shutil.rmtree(half, ignore_errors=True)
            options = ("-q", "--disable-pip-version-check", "--no-deps", "--target", half)
            _run(interpreter, "-m", "pip", "install", *options, f"torchao=={release}")
            half.rename(home)
    return home


def run(release: str | None, child: str, job: Any) -> Any:
    """Run one of `children` under a release of torchao (or none): JSON goes in, its last line of JSON comes out."""
    places = [str(SRC), str(CHILDREN)]
    if release is not None:
        places.insert(0, str(torchao(release)))
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("UNSLOTH_", "PYTHON"))}
    environment |= {"PYTHONPATH": os.pathsep.join(places), "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [python(), CHILDREN / f"{child}.py"],
        input=json.dumps(job),
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )
    if done.returncode:
        raise AssertionError(f"{child} under torchao {release} failed:\n{done.stderr[-4000:]}")
    return json.loads(done.stdout.splitlines()[-1])
