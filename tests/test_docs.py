"""The documentation is true: pages are up to date, commands print what they show, JSON agrees with its schemas.

Commands are blocks fenced as `console`; `...` stands for any text within a line, and alone for any lines. They run in
a folder that holds the examples and a hostile file. Python blocks are run too, where a page is listed for that.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import inspect
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import jsonschema
import pytest

from assemble import BINUNICODE, EMPTY_DICT, GLOBAL, PROTO, REDUCE, SETITEM, STOP, TUPLE1, asm, torch_file
from depickle import affine, attributes, current, header, lift, limits, schemas, weights
from depickle.cli import _parser, main

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
FIXTURES = ROOT / "tests" / "data" / "fixtures"
PAGES = sorted([*DOCS.rglob("*.md"), *ROOT.glob("*.md")])
SHOWN = [ROOT / "README.md", *(path for path in PAGES if path.parent == DOCS)]

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT / "src")}


def _ids(path: Path) -> str:
    return str(path.relative_to(ROOT))


def _run(*command: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command],
        cwd=cwd,
        env=ENVIRONMENT,
        text=True,
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def _blocks(path: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", path.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


@pytest.fixture
def desk(tmp_path: Path) -> Path:
    """A folder with what the pages' commands name."""
    (tmp_path / "examples").mkdir()
    for path in (ROOT / "examples").iterdir():
        if path.is_file():
            shutil.copy(path, tmp_path / "examples")
    name = "layers.0.linear.weight"
    attack = asm(PROTO(2), EMPTY_DICT, BINUNICODE(name), GLOBAL("posix", "system"), BINUNICODE("id"), TUPLE1, REDUCE)
    (tmp_path / "evil.pt").write_bytes(torch_file(asm(attack, SETITEM, STOP)))
    shutil.copy(tmp_path / "examples" / "tiny-int8-v1.pt", tmp_path / "model.pt")
    return tmp_path


# --- generated pages ------------------------------------------------------------------------------------------------


def test_generated_pages_are_up_to_date(tmp_path: Path) -> None:
    done = _run(str(DOCS / "generate.py"), "--check", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "")


def _generator() -> dict[str, object]:
    space: dict[str, object] = {"__name__": "generate", "__file__": str(DOCS / "generate.py")}
    source = (DOCS / "generate.py").read_text(encoding="utf-8")
    before = list(sys.path)
    with contextlib.suppress(ImportError):
        exec(compile(source, "generate.py", "exec"), space)
    sys.path[:] = before
    return space


def test_every_map_has_its_reasons() -> None:
    space = _generator()
    told = {*space["WAYS"], *space["MAPS"]}  # type: ignore[misc]
    functions = {
        name
        for module in (affine, current, lift)
        for name, function in vars(module).items()
        if inspect.isfunction(function)
        and function.__module__ == module.__name__
        and function.__annotations__.get("return") == "Weight"
    }
    plain = {"settle", "without", "lift", "_plain", "_as_it_stands"}  # these map nothing
    assert told == functions - plain
    assert {function.__name__ for function in lift.LIFTS.values()} <= told
    assert set(space["RECORD_MAPS"]) == set(attributes.RECORD_LIFTS)  # type: ignore[call-overload]


def test_every_row_stands_in_classes_md() -> None:
    text = (DOCS / "classes.md").read_text(encoding="utf-8")
    for row in (*schemas.SCHEMAS, *schemas.ENUMS, *schemas.RECORDS):
        assert row.name in text
        assert all(f"`{module}`" in text for module in row.modules)


def _commands(parser: argparse.ArgumentParser, above: str = "") -> Iterator[tuple[str, argparse.ArgumentParser]]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, sub in action.choices.items():
                yield from list(_commands(sub, f"{above}{name} ")) or [(f"{above}{name}", sub)]


def test_every_command_and_option_stands_in_cli_md() -> None:
    text = (DOCS / "cli.md").read_text(encoding="utf-8")
    commands = dict(_commands(_parser()))
    assert {"convert", "scan"} < set(commands)
    for name, parser in commands.items():
        section = text.partition(f"## depickle {name}\n")[2].partition("\n## ")[0]
        assert section, name
        for action in parser._actions:
            for option in action.option_strings:
                assert f"`{option}" in section or option in ("-h", "--help")


# --- links and commands ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", PAGES, ids=_ids)
def test_relative_links_lead_somewhere(path: Path) -> None:
    text = re.sub(r"^```.*?^```$", "", path.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        file, _, anchor = target.partition("#")
        found = (path.parent / file).resolve() if file else path
        assert found.exists(), f"{path.name}: {target}"
        if anchor:
            titles = re.findall(r"^#+ (.*)$", found.read_text(encoding="utf-8"), re.MULTILINE)
            assert anchor in [re.sub(r"[^\w\- ]", "", title).lower().replace(" ", "-") for title in titles], target


def _matches(expected: str, actual: str) -> bool:
    lines = [
        r"(?:.*\n)*?" if line.strip() == "..." else re.escape(line).replace(r"\.\.\.", ".*") + r"\n"
        for line in expected.splitlines()
    ]
    return re.fullmatch("".join(lines), actual) is not None


def _sessions(block: str) -> Iterator[tuple[str, str]]:
    for piece in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        command, _, output = piece.partition("\n")
        yield command, output


@pytest.mark.parametrize("path", [page for page in SHOWN if _blocks(page, "console")], ids=_ids)
def test_commands_print_what_the_page_shows(path: Path, desk: Path) -> None:
    status = 0
    for block in _blocks(path, "console"):
        for command, expected in _sessions(block):
            if command == "echo $?":
                actual = f"{status}\n"
            else:
                program, *arguments = shlex.split(command)
                assert program == "depickle"
                done = _run("-m", "depickle", *arguments, cwd=desk)
                status, actual = done.returncode, done.stdout
            assert _matches(expected, actual), f"$ {command}\n{actual}"


def test_the_matcher_tells_apart() -> None:
    assert _matches("a ... c\n...\nz\n", "a b c\n1\n2\nz\n")
    assert not _matches("a\n", "b\n")
    assert not _matches("a\n", "a\nb\n")


@pytest.mark.parametrize("name", ["quickstart.md", "format.md"])
def test_python_blocks_run(name: str, desk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _run("-m", "depickle", "convert", "examples/tiny-int8-v1.pt", "--out-dir", "out", cwd=desk)
    monkeypatch.chdir(desk)
    for block in _blocks(DOCS / name, "python"):
        exec(compile(block, name, "exec"), {})


# --- the format -----------------------------------------------------------------------------------------------------


def test_the_example_header_is_real(desk: Path) -> None:
    _run("-m", "depickle", "convert", "examples/tiny-int8-v1.pt", "--out-dir", "out", cwd=desk)
    data = (desk / "out" / "tiny-int8-v1.safetensors").read_bytes()
    actual = data[8 : 8 + int.from_bytes(data[:8], "little")].decode().rstrip()
    (block,) = _blocks(DOCS / "format.md", "header")
    pattern = ".*?".join(re.escape(piece) for piece in block.replace("\n", "").split("..."))
    assert re.fullmatch(pattern, actual)


def test_header_keys_stand_in_format_md_in_their_order(desk: Path) -> None:
    from depickle.outputs import names, safetensors
    from depickle.outputs.prose import SCHEMES

    text = (DOCS / "format.md").read_text(encoding="utf-8")
    table = text.partition("## Header keys")[2].partition("\n\nNo key")[0]
    told = re.findall(r"`([a-z_0-9]+)`", "".join(line.split("|")[1] for line in table.splitlines() if "|" in line))
    assert set(told) == names.HEADER_KEYS - {"__metadata__"}
    _run("-m", "depickle", "convert", "examples/tiny-int8-v1.pt", "--out-dir", "out", cwd=desk)
    with (desk / "out" / "tiny-int8-v1.safetensors").open("rb") as file:
        made = json.loads(file.read(int.from_bytes(file.read(8), "little")))["__metadata__"]
    assert [key for key in told if key in made] == [key for key in made if key in names.HEADER_KEYS]
    assert all(f"`{name}`" in text for name in SCHEMES)
    assert [json.loads(block) for block in _blocks(DOCS / "format.md", "json")] == [safetensors.FACTS]
    order = re.search(r"ordered by dtype \((.*?)\)", text, re.DOTALL)
    assert order is not None
    by_rank = sorted(header.RANK, key=lambda name: header.RANK[name])
    listed = {row.name: row.safetensors for row in header.BY_SAFETENSORS.values()}
    assert re.split(r",\s+", order[1]) == [listed[n] for n in by_rank if n in listed]


# --- JSON -----------------------------------------------------------------------------------------------------------

SCHEMAS = sorted((DOCS / "schemas").glob("*.json"))
SOURCES = (
    "0.7.0/int8dyn_default.wrapped.pt",
    "0.12.0/mxfp4_cfg.bare.pt",
    "0.15.0/int8dyn_int4.wrapped.pt",
    "edge/complex_conj_neg.pt",
    "edge/te_t5_tied.pt",
    "edge/legacy_nonzip_views.pt",
    "edge/many_tensors.pt",
)


def _valid(name: str, text: str) -> None:
    schema = json.loads((DOCS / "schemas" / f"{name}.v1.json").read_text(encoding="utf-8"))
    value = json.loads(text)
    jsonschema.Draft202012Validator(schema).validate(value)
    assert set(value) <= set(schema["properties"]), "a field that the schema does not tell of"


@pytest.mark.parametrize("path", SCHEMAS, ids=_ids)
def test_schemas_are_schemas(path: Path) -> None:
    schema = json.loads(path.read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator.check_schema(schema)
    changed = {**dict.fromkeys(schema["required"]), "more": 1}
    assert list(jsonschema.Draft202012Validator(schema).iter_errors(changed)), "accepts nulls everywhere"


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Run the command line here; return what it prints."""
    monkeypatch.setattr("signal.signal", lambda *_: None)

    def run(*arguments: str) -> str:
        main(arguments)
        return capsys.readouterr().out

    return run


@pytest.mark.parametrize("source", SOURCES)
def test_output_agrees_with_the_schemas(source: str, say: Callable[..., str], tmp_path: Path) -> None:
    path = str(FIXTURES / source)
    convert = ["convert", path, "--out-dir", str(tmp_path)] + (["--drop-tied-copies"] if "/te_" in source else [])
    _valid("plan", say(*convert, "--dry-run", "--json"))
    record = say(*convert)
    _valid("record", record)
    again = say(*convert)
    _valid("record", again)
    assert json.loads(again)["skipped"] is True
    dst = json.loads(record)["dst"]
    _valid("verification", say("verify", path, dst))
    for file in (path, dst):
        _valid("inspect", say("inspect", "--json", file))
    _valid("scan", say("scan", "--json", path))


def test_a_dangerous_scan_agrees_with_its_schema(desk: Path, say: Callable[..., str]) -> None:
    _valid("scan", say("scan", "--json", str(desk / "evil.pt")))


def test_a_mirror_agrees_with_its_schema(desk: Path, say: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    folder = desk / "root" / "acme" / "tiny"
    folder.mkdir(parents=True)
    shutil.copy(desk / "model.pt", folder)
    (folder / "model.safetensors").write_bytes(b"no header")
    monkeypatch.setenv("UNSLOTH_DIFFUSION_PREQUANT_MIRROR", str(desk / "root"))
    _valid("mirror", say("mirror", "list", "--json"))


# --- errors and limits ----------------------------------------------------------------------------------------------


def _texts() -> list[str]:
    """Every text in the source, formatted ones with NUL for what is filled in."""
    found = []
    for path in sorted((ROOT / "src").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                found.append("".join(str(p.value) if isinstance(p, ast.Constant) else "\0" for p in node.values))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
    return found


def test_messages_are_those_of_the_code() -> None:
    texts = _texts()
    rows = re.findall(r"^\| (`.*?`) \|", (DOCS / "errors.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert len(rows) > 40
    for row in rows:
        for message in re.findall(r"`(.*?)`", row):
            pieces = [piece.strip(" ,()") for piece in message.split("...") if piece.strip(" ,()")]
            assert pieces, message
            assert all(any(piece in text for text in texts) for piece in pieces), message


def test_limits_are_those_of_the_code() -> None:
    rows = re.findall(
        r"^\| `([\w.]+)` \| ([\d,]+) \|", (DOCS / "security.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    for name, value in rows:
        module, _, constant = name.rpartition(".")
        found = limits.LIMITS if module == "limits.Limits" else sys.modules.get(f"depickle.{module}")
        if found is None:
            exec(f"import depickle.{module}")
            found = sys.modules[f"depickle.{module}"]
        assert getattr(found, constant) == int(value.replace(",", "")), name
    told = {name for name, _ in rows}
    assert {f"limits.Limits.{name}" for name in limits.Limits.__dataclass_fields__} <= told


# --- the recipe for a class -----------------------------------------------------------------------------------------


def test_the_recipe_adds_a_class(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import depickle
    from depickle import checkpoint

    space: dict[str, object] = {}
    blocks = _blocks(DOCS / "adding-a-class.md", "python")
    assert len(blocks) == 2
    for block in blocks:
        exec(compile(block, "adding-a-class.md", "exec"), space)
    row, path = space["row"], tmp_path / "six.pt"
    assert isinstance(row, schemas.Schema)
    path.write_bytes(space["source"])  # type: ignore[arg-type]
    with pytest.raises(depickle.Refused, match=r"class torchao\.quantization\.Int6Tensor has no schema"):
        depickle.convert(path, tmp_path)
    full = f"{row.modules[0]}.{row.name}"
    monkeypatch.setitem(weights.BY_CLASS, full, row)
    monkeypatch.setitem(schemas.BY_SHORT_NAME, row.name, row)
    monkeypatch.setitem(schemas.BY_NAME_CURRENT, row.name, row)
    monkeypatch.setattr(checkpoint, "ACCEPTED", checkpoint.ACCEPTED | {full})
    record = depickle.convert(path, tmp_path)
    with Path(record.dst).open("rb") as file:
        made = json.loads(file.read(int.from_bytes(file.read(8), "little")))["__metadata__"]
    assert json.loads(made["blk.q.weight"]) == space["expected"]
    assert depickle.verify(path, record.dst).parts == 2


# --- examples -------------------------------------------------------------------------------------------------------


def test_convert_one(desk: Path) -> None:
    done = _run("examples/convert_one.py", "model.pt", "out", cwd=desk)
    assert done.returncode == 0
    assert done.stdout.split()[0] == os.path.join("out", "model.safetensors")


def test_inspect_before_use(desk: Path) -> None:
    done = _run("examples/inspect_before_use.py", "model.pt", "out", cwd=desk)
    assert done.returncode == 0
    assert "2 x LinearActivationQuantizedTensor > AffineQuantizedTensor" in done.stdout
    assert (desk / "out" / "model.safetensors").exists()
    refused = _run("examples/inspect_before_use.py", "evil.pt", "out", cwd=desk)
    assert (refused.returncode, refused.stdout) == (
        1,
        "not used: evil.pt: data.pkl@30: GLOBAL posix.system is not accepted\n",
    )


def test_convert_folder(desk: Path) -> None:
    folder = desk / "in"
    (folder / "a").mkdir(parents=True)
    for name in ("a/model.pt", "evil.pt"):
        shutil.copy(desk / Path(name).name, folder / name)
    (folder / "notes.txt").write_text("no checkpoint", encoding="utf-8")
    first = _run("examples/convert_folder.py", "in", "out", "records.jsonl", cwd=desk)
    assert first.returncode == 1
    assert "evil.pt: evil.pt: data.pkl@30" in first.stdout
    assert (desk / "out" / "a" / "model.safetensors").exists()
    (folder / "evil.pt").unlink()
    again = _run("examples/convert_folder.py", "in", "out", "records.jsonl", cwd=desk)
    assert again.returncode == 0
    assert again.stdout == f"{os.path.join('in', 'a', 'model.pt')}: there already\n"
    lines = (desk / "records.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line).get("skipped", False) for line in lines] == [False, True]
