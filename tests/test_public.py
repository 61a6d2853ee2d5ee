"""What the package promises: its names, that importing it is light, and that no file is ever executed by what it
loads."""

from __future__ import annotations

import inspect
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import depickle

FIXTURES = Path(__file__).parent / "data" / "fixtures"
FORBIDDEN = ("torch", "numpy", "pickle", "_pickle", "pickletools")
SOURCES = (
    FIXTURES / "0.17.0" / "int8dyn_default.wrapped.pt",
    FIXTURES / "0.14.1" / "nvfp4_wo.wrapped.pt",
    FIXTURES / "edge" / "legacy_nonzip_views.pt",
    FIXTURES / "edge" / "numpy_inside.pt",
)


def test_all_is_sorted_and_equals_the_public_names() -> None:
    """`__all__` lists every public name that the package resolves, in order, and each of them is there."""
    public = {name for name in (*depickle._HOME, "__version__") if name == "__version__" or not name.startswith("_")}
    assert depickle.__all__ == sorted(depickle.__all__)
    assert set(depickle.__all__) == public
    for name in depickle.__all__:
        assert getattr(depickle, name) is not None


def test_type_checkers_see_the_same_names() -> None:
    """The imports under TYPE_CHECKING are those of the lazy table."""
    text = inspect.getsource(depickle)
    for name, module in depickle._HOME.items():
        assert any(line.strip().startswith(f"from .{module} import") and name in line for line in text.splitlines()), (
            name
        )


def test_unknown_name_is_an_attribute_error() -> None:
    """A misspelt name fails as with any module."""
    with pytest.raises(AttributeError, match="no attribute 'convrt'"):
        _ = depickle.convrt  # type: ignore[attr-defined]


def test_public_names_have_docstrings() -> None:
    """Every public value says what it is for."""
    for name in depickle.__all__:
        if name != "__version__":
            assert inspect.getdoc(getattr(depickle, name)), name


def test_options_are_keyword_only_after_the_paths() -> None:
    """The verbs take two paths by position and everything else by name."""
    for verb, paths in ((depickle.convert, 2), (depickle.verify, 2), (depickle.open_checkpoint, 1)):
        kinds = [parameter.kind for parameter in inspect.signature(verb).parameters.values()]
        assert kinds[:paths] == [inspect.Parameter.POSITIONAL_OR_KEYWORD] * paths
        assert set(kinds[paths:]) <= {inspect.Parameter.KEYWORD_ONLY}


def python(code: str, *args: object, flags: tuple[str, ...] = ()) -> str:
    """Run a program in a fresh interpreter; return what it prints."""
    command = [sys.executable, *flags, "-c", code, *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def loaded(code: str, *args: object) -> set[str]:
    """The modules that a program has loaded at its end."""
    return set(
        json.loads(
            python(f"{code}\nimport json, sys\nprint()\nprint(json.dumps(list(sys.modules)))", *args).splitlines()[-1]
        )
    )


def test_import_loads_nothing_heavy() -> None:
    """`import depickle` loads one module of its own besides itself, and neither dataclasses nor hashlib."""
    new = loaded("import depickle") - loaded("")
    assert {name for name in new if name.startswith("depickle")} == {"depickle", "depickle._version"}
    assert not {"dataclasses", "hashlib", "argparse", "rich", *FORBIDDEN} & new


@pytest.mark.parametrize("command", ["convert", "dry run", "inspect", "mirror", "scan", "verify"])
def test_commands_never_load_pickle_torch_or_numpy(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A whole run of each command, over files that convert and one with numpy inside, leaves them out of
    `sys.modules`."""
    folder = tmp_path / "root" / "acme" / "tiny"
    folder.mkdir(parents=True)
    shutil.copy(SOURCES[0], folder / "model.pt")
    depickle.convert(folder / "model.pt", folder)
    monkeypatch.setenv("UNSLOTH_DIFFUSION_PREQUANT_MIRROR", str(tmp_path / "root"))
    out = ["--out-dir", str(tmp_path)]
    words = {
        "convert": [["convert", *map(str, SOURCES), *out, "--report", str(tmp_path / "r"), "--pretty"]],
        "dry run": [["convert", *map(str, SOURCES), *out, "--dry-run"]],
        "inspect": [["inspect", str(path)] for path in SOURCES],
        "mirror": [["mirror", "resolve", "acme/tiny", "model.pt"], ["mirror", "list"], ["mirror", "verify"]],
        "scan": [["scan", *map(str, SOURCES)]],
        "verify": [
            ["convert", str(SOURCES[0]), *out],
            ["verify", str(SOURCES[0]), str(tmp_path / f"{SOURCES[0].stem}.safetensors")],
        ],
    }[command]
    code = "import json, sys\nfrom depickle.cli import main\nfor words in json.loads(sys.argv[1]): main(words)"
    assert not set(FORBIDDEN) & loaded(code, json.dumps(words))


def test_api_runs_where_pickle_cannot_be_imported(tmp_path: Path) -> None:
    """A conversion works in an interpreter in which importing pickle, torch or numpy is an error."""
    code = (
        "import sys\n"
        f"for name in {FORBIDDEN!r}: sys.modules[name] = None\n"
        "import depickle\n"
        "print(depickle.convert(sys.argv[1], sys.argv[2]).verified_bit_identical)"
    )
    assert python(code, SOURCES[0], tmp_path) == "True\n"


def test_no_warning_under_dev_mode(tmp_path: Path) -> None:
    """No file is left open and nothing deprecated is used: development mode with errors for warnings."""
    code = "import sys, depickle\nprint(depickle.convert(sys.argv[1], sys.argv[2]).tensors)"
    assert python(code, SOURCES[0], tmp_path, flags=("-X", "dev", "-W", "error")) == "7\n"


def test_import_time(capsys: pytest.CaptureFixture[str]) -> None:
    """How long `import depickle` takes over bare Python, printed and not judged."""
    code = "import time\nstart = time.perf_counter()\nimport depickle\nprint(time.perf_counter() - start)"
    best = min(float(python(code)) for _ in range(5))
    with capsys.disabled():
        print(f" import depickle: {best * 1000:.2f} ms", end="")


def test_package_is_typed() -> None:
    """The marker for type checkers is beside the code."""
    assert (Path(depickle.__file__).parent / "py.typed").exists()
    assert os.path.basename(os.path.dirname(depickle.__file__)) == "depickle"
