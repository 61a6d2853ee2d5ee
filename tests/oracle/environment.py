"""Environments of their own for real torch and torchao: one with torch, and a folder per torchao release.

Made on demand under `$DEPICKLE_CACHE` (default `~/.cache/depickle-tests`) and used again by later runs. Each is made
under a lock, in a place of its own, and gets its mark (or its name) last: one that was left half made is made again.
Packages come from wherever pip is told to find them.
"""

from __future__ import annotations

import fcntl
import hashlib
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
# The programs that read what we write, with all that they need beside PACKAGES.
CLIENTS = (
    *(
        "transformers==5.24.0",
        "diffusers==0.42.1",
        "accelerate==1.15.0",
        "huggingface_hub==2.4.0",
        "tokenizers==0.23.3",
    ),
    *("annotated-doc==0.0.7", "annotated-types==0.8.0", "anyio==4.16.0", "certifi==2026.10.19.post1"),
    *("charset-normalizer==3.5.3", "click==8.5.1", "h11==0.16.0", "hf-xet==1.8.0", "httpcore2==2.16.2"),
    *("httpx2==2.16.2", "idna==3.20", "importlib_metadata==10.2.0", "lazy-importer==0.1.0", "markdown-it-py==4.3.0"),
    *("mdurl==0.1.2", "packaging==26.4", "pillow==13.0.0", "psutil==7.2.2", "pydantic==2.14.4"),
    *("pydantic_core==2.50.5", "Pygments==2.21.0", "PyYAML==6.0.4", "regex==2026.11.19", "requests==2.34.2"),
    *("rich==15.0.0", "shellingham==1.5.4", "tqdm==4.70.1", "truststore==0.10.5", "typer==0.29.2"),
    *("typing-inspection==0.4.5", "urllib3==2.8.0", "zipp==4.1.2"),
)
# ComfyUI's arithmetic, with the one package that it imports beside torch.
KITCHEN = ("comfy-kitchen==0.2.40", "packaging==26.4")
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
    return _folder(f"torchao-{release}", f"torchao=={release}")


def clients() -> Path:
    """A folder to put on PYTHONPATH that has transformers, diffusers, accelerate and huggingface_hub."""
    return _folder(f"clients-{hashlib.sha256(repr(CLIENTS).encode()).hexdigest()[:12]}", *CLIENTS)


def kitchen() -> Path:
    """A folder to put on PYTHONPATH that has comfy-kitchen."""
    return _folder("-".join(KITCHEN).replace("==", "-"), *KITCHEN)


def _folder(name: str, *packages: str) -> Path:
    """A folder that has these packages, and not what they depend on."""
    interpreter = python()
    home = cache() / name
    with _locked(name):
        if not home.exists():
            half = cache() / f"{name}.half"
            shutil.rmtree(half, ignore_errors=True)
            options = ("-q", "--disable-pip-version-check", "--no-deps", "--target", half)
            _run(interpreter, "-m", "pip", "install", *options, *packages)
            half.rename(home)
    return home


def run(
    release: str | None, child: Path | str, job: Any, *, with_clients: bool = False, with_kitchen: bool = False
) -> Any:
    """Run a script (a path, or the name of one of `children`) under a release of torchao, or none: JSON goes in, its
    last line of JSON comes out."""
    script = child if isinstance(child, Path) else CHILDREN / f"{child}.py"
    places = [str(SRC), str(CHILDREN)]
    if with_clients:
        places.insert(0, str(clients()))
    if with_kitchen:
        places.insert(0, str(kitchen()))
    if release is not None:
        places.insert(0, str(torchao(release)))
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("UNSLOTH_", "PYTHON"))}
    environment |= {
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_VERBOSITY": "error",
        "PYTHONPATH": os.pathsep.join(places),
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(
        [python(), script],
        input=json.dumps(job),
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )
    if done.returncode:
        raise AssertionError(f"{script.stem} under torchao {release} failed:\n{done.stderr[-4000:]}")
    return json.loads(done.stdout.splitlines()[-1])
