"""Who imports whom: the layers, the walls between modules that must not know each other, and what nobody may import."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "depickle"

# A module imports from the layers above its own and from those named before it in its own. A package stands for its
# modules.
LAYERS: tuple[tuple[str, ...], ...] = (
    ("_version", "errors", "limits", "collector", "locks", "targets", "options", "harmful"),
    ("ranges", "dtypes", "inert", "rules", "rounding", "undo", "schemas", "twin"),
    ("opcodes", "vm", "strided", "archive"),
    ("tensors", "attributes", "statedict", "metadata", "weights", "current", "affine", "lift"),
    ("checkpoint", "header", "quantization"),
    ("layout", "outputs"),
    (
        *(
            "digest",
            "writer",
            "carrying",
            "manifest",
            "compare",
            "compare_rounding",
            "compare_twin",
            "parallel",
            "opening",
        ),
        *("shards", "folders", "report"),
    ),
    (
        *(
            "verification",
            "planning",
            "recording",
            "conversion",
            "several",
            "configs",
            "repository",
            "repository_check",
        ),
        *("inspection", "scanning", "mirror"),
    ),
    ("torch",),
    ("terminal", "console", "batch", "cli", "__main__", "__init__"),
)
PLACE = {name: (i, j) for i, layer in enumerate(LAYERS) for j, name in enumerate(layer)}
# Imports upwards, inside functions: an extra that is loaded when it is asked for.
LATE = {("conversion", "torch.judge")}

# Independence that the layers do not say: left must not import right.
WALLS = (
    ("vm", "archive tensors weights checkpoint schemas attributes"),
    ("opcodes", "vm archive tensors weights checkpoint schemas attributes"),
    ("archive.zip", "vm opcodes inert tensors"),
    ("layout", "checkpoint weights schemas tensors dtypes header outputs"),
    ("writer", "checkpoint weights schemas tensors dtypes header outputs compare opening"),
    ("compare", "layout writer rules strided outputs conversion"),
    ("compare_twin", "layout writer rules strided outputs conversion"),
    ("compare_rounding", "layout writer rules rounding strided outputs conversion"),
    ("undo", "rules"),
    ("verification", "layout writer rules strided conversion"),
    ("header", "checkpoint weights schemas outputs layout"),
    ("digest", "checkpoint weights outputs layout"),
    ("statedict", "schemas weights"),
    ("torch", "writer layout compare verification"),
)

PICKLING = {"pickle", "_pickle", "pickletools", "marshal", "shelve", "dill", "cloudpickle", "joblib", "copyreg"}
BANNED = PICKLING | {"importlib", "pkgutil", "runpy", "code", "ctypes", "subprocess", "multiprocessing", "asyncio"}
# The extra finds a torchao class by the module that a table of ours names.
EXTRAS = {"torch": ("torch", "torchao", "safetensors", "importlib"), "terminal": ("rich",), "numpy": ("numpy",)}
CALLS = {"eval", "exec", "compile", "breakpoint", "input"}


def modules() -> dict[str, Path]:
    """Every module by its dotted name below the package."""
    found = {}
    for path in sorted(SOURCE.rglob("*.py")):
        name = ".".join(path.relative_to(SOURCE).with_suffix("").parts)
        found[name.removesuffix(".__init__")] = path
    return found


MODULES = modules()
TREES = {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in MODULES.items()}


def imports(name: str) -> Iterator[str]:
    """What a module imports, anywhere in it: `.x` for the package's own, by dotted name, and others as they are."""
    package = name.split(".") if MODULES[name].name == "__init__.py" and name != "__init__" else name.split(".")[:-1]
    for node in ast.walk(TREES[name]):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield str(node.module)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1]
            for alias in node.names:
                parts = [*base, *(node.module.split(".") if node.module else [])]
                whole = ".".join([*parts, alias.name])
                yield "." + (whole if whole in MODULES else ".".join(parts))


def owner(name: str) -> str:
    """The name that stands for a module in the layers."""
    return name.split(".", maxsplit=1)[0]


def test_there_are_modules() -> None:
    """The package is where the test looks for it."""
    assert {"vm", "checkpoint", "archive.zip", "outputs.safetensors"} <= set(MODULES)


def test_every_module_has_its_place() -> None:
    """Each module is in one layer, and the layers name nothing that is not there."""
    assert {owner(name) for name in MODULES} == set(PLACE)
    assert len(PLACE) == sum(map(len, LAYERS))


@pytest.mark.parametrize("name", MODULES)
def test_imports_go_upwards_only(name: str) -> None:
    """A module imports from layers above its own, or from earlier in its own layer."""
    for target in (target[1:] for target in imports(name) if target.startswith(".")):
        if owner(target) != owner(name) and (name, target) not in LATE and name != "__init__":
            assert PLACE[owner(target)] < PLACE[owner(name)], f"{name} imports {target}"


@pytest.mark.parametrize(("name", "hidden"), WALLS, ids=[name for name, _ in WALLS])
def test_walls_stand(name: str, hidden: str) -> None:
    """Modules whose independence matters do not import each other, directly."""
    for module in (module for module in MODULES if module == name or owner(module) == name):
        for target in (target[1:] for target in imports(module) if target.startswith(".")):
            assert owner(target) not in hidden.split(), f"{module} imports {target}"


@pytest.mark.parametrize("name", MODULES)
def test_only_the_standard_library_and_declared_extras(name: str) -> None:
    """Beside the package's own modules: the standard library, less what could execute a file; extras in their own
    modules alone."""
    allowed = set(EXTRAS.get(owner(name), ()))
    for target in (target.split(".")[0] for target in imports(name) if not target.startswith(".")):
        assert target not in BANNED or target in allowed, f"{name} imports {target}"
        assert target in sys.stdlib_module_names or target in allowed, f"{name} imports {target}"


def test_rich_is_imported_late() -> None:
    """The terminal's library is loaded when there is something to show, not on import."""
    top = [node for node in TREES["terminal"].body if isinstance(node, (ast.Import, ast.ImportFrom))]
    assert not any("rich" in ast.dump(node) for node in top)


@pytest.mark.parametrize("name", MODULES)
def test_nothing_is_executed_or_imported_by_name(name: str) -> None:
    """No eval, exec or compile; `__import__` only in the package's own lazy table."""
    for node in ast.walk(TREES[name]):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id not in CALLS, f"{name} calls {node.func.id}"
            assert node.func.id != "__import__" or name == "__init__", f"{name} calls __import__"


@pytest.mark.parametrize("name", MODULES)
def test_only_the_command_line_prints_and_exits(name: str) -> None:
    """`print` and `sys.exit` are in console.py and __main__.py alone."""
    if name in ("console", "__main__"):
        return
    for node in ast.walk(TREES[name]):
        if isinstance(node, ast.Call):
            assert ast.unparse(node.func) not in ("print", "sys.exit", "exit", "os._exit"), name


@pytest.mark.parametrize("name", MODULES)
def test_input_is_never_asserted(name: str) -> None:
    """No `assert` in the package: it says nothing to a user and is gone with -O; and no bare `except`."""
    for node in ast.walk(TREES[name]):
        assert not isinstance(node, ast.Assert), f"{name}:{node.lineno}"
        assert not (isinstance(node, ast.ExceptHandler) and node.type is None), name


@pytest.mark.parametrize("name", MODULES)
def test_sizes(name: str) -> None:
    """A module has at most 450 lines, a function 60."""
    lines = len(MODULES[name].read_text(encoding="utf-8").splitlines())
    assert lines <= 450 or name in ("schemas", "outputs.prose"), f"{name} has {lines} lines"
    for node in ast.walk(TREES[name]):
        if isinstance(node, ast.FunctionDef) and owner(name) != "opcodes":
            assert (node.end_lineno or 0) - node.lineno < 60, f"{name}.{node.name}"


@pytest.mark.parametrize("name", MODULES)
def test_each_module_says_what_it_is(name: str) -> None:
    """A module opens with a docstring, unless it is empty."""
    if TREES[name].body and name != "__main__":
        assert ast.get_docstring(TREES[name]) or name in ("_version", "outputs")


def test_design_document_shows_these_layers() -> None:
    """The table in docs/design.md names the same modules in the same layers."""
    text = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d+) \| (.*) \|$", text, re.MULTILINE)
    shown = {name for _, cell in rows for name in re.findall(r"`(\w+)`", cell)}
    hidden = {"_version", "__main__", "__init__"}
    assert {owner(name) for name in shown} == set(PLACE) - hidden
    for number, cell in rows:
        for name in re.findall(r"`(\w+)`", cell):
            assert PLACE[owner(name)][0] == int(number), name
