"""Every fixture against its truth; and that the comparison notices when either of them is damaged."""

from __future__ import annotations

import copy
import dataclasses
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest

import coverage_table
import documented
import expected as ex
import outside
import truth

OWN = Path(__file__).parent / "data" / "fixtures"
FIXTURES = Path(os.environ.get("DEPICKLE_FIXTURES", OWN))
CASES = {case.name: case for case in truth.cases(FIXTURES)}
INT8 = "0.17.0/int8dyn_default.wrapped"
FP4 = "0.14.1/nvfp4_wo.wrapped"
INTX = "0.12.0/int8dyn_int4.wrapped"
TIED = "edge/te_qwen_tied"
EXAMPLES = (INT8, FP4, INTX, TIED)


def test_there_are_fixtures() -> None:
    """An empty folder would pass every test below."""
    assert len(CASES) >= 300


@pytest.mark.parametrize("name", CASES)
def test_fixture_equals_its_truth_or_is_refused_as_documented(name: str, tmp_path: Path) -> None:
    """A conversion equals the truth in every fact and byte, or its refusal is a documented one."""
    verdict = truth.judge(CASES[name], tmp_path)
    assert verdict.status != "wrong", "\n".join(verdict.details)


def test_most_references_are_compared() -> None:
    """Each reference in today's grammar was made of some fixture's names, so that none is skipped in silence."""
    used = {path for case in CASES.values() for path in truth.references(case)}
    old = set(FIXTURES.glob("*/*.ref-0.14.1.safetensors"))
    assert len(set(FIXTURES.glob("*/*.ref-*.safetensors")) - used - old) == 1  # the one in truth._LOST


def test_each_documented_refusal_happens(tmp_path: Path) -> None:
    """A row that no fixture needs would let a new refusal through."""
    for row in documented.REFUSALS:
        named = [
            case
            for case in CASES.values()
            if fnmatchcase(case.kind, row.kind) and fnmatchcase(case.release, row.releases)
        ]
        assert any(row.covers(case.release, case.kind, _message(case, tmp_path)) for case in named), row


def _message(case: truth.Case, folder: Path) -> str:
    import depickle

    with pytest.raises(depickle.Error) as raised:
        depickle.convert(case.path, folder)
    return str(raised.value).removeprefix(f"{case.path.name}: ")


# --- damage: whatever is changed, in the output or in the truth, has to be noticed ----------------------------------


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, outside.File]:
    """The outputs of a few fixtures, as read from outside."""
    import depickle

    folder = tmp_path_factory.mktemp("converted")
    return {name: outside.read(Path(depickle.convert(CASES[name].path, folder / name).dst)) for name in EXAMPLES}


def flip(data: bytes) -> bytes:
    """One bit turned, in the middle."""
    at = len(data) // 2
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


@pytest.mark.parametrize("name", EXAMPLES)
def test_undamaged_output_has_no_problem(name: str, converted: dict[str, outside.File]) -> None:
    """The comparison that the damage below is measured with finds nothing at first."""
    assert truth.compare(CASES[name], converted[name]) == []


@pytest.mark.parametrize("name", EXAMPLES)
def test_one_bit_of_any_tensor_is_noticed(name: str, converted: dict[str, outside.File]) -> None:
    """A bit turned in any tensor of the output makes a problem that names it."""
    file = converted[name]
    for key, tensor in file.tensors.items():
        bad = {**file.tensors, key: dataclasses.replace(tensor, data=flip(tensor.data))}
        assert any(key in text for text in truth.compare(CASES[name], dataclasses.replace(file, tensors=bad))), key


@pytest.mark.parametrize("name", EXAMPLES)
def test_missing_extra_and_mistyped_tensors_are_noticed(name: str, converted: dict[str, outside.File]) -> None:
    """A tensor left out, one too many, another dtype or shape: each makes a problem."""
    file = converted[name]
    for key, tensor in file.tensors.items():
        for bad in (
            {other: item for other, item in file.tensors.items() if other != key},
            {**file.tensors, key + "x": tensor},
            {**file.tensors, key: dataclasses.replace(tensor, dtype="bits8")},
            {**file.tensors, key: dataclasses.replace(tensor, shape=(*tensor.shape, 1))},
        ):
            assert truth.compare(CASES[name], dataclasses.replace(file, tensors=bad)), key


@pytest.mark.parametrize("name", EXAMPLES)
def test_damaged_header_values_are_noticed(name: str, converted: dict[str, outside.File]) -> None:
    """Each metadata key left out, renamed, or with another value makes a problem; provenance and seal are looked at
    elsewhere."""
    file = converted[name]
    for key, value in file.metadata.items():
        rest = {other: text for other, text in file.metadata.items() if other != key}
        for bad in (rest, {**rest, key: value}, {**rest, key + "x": value}):
            if list(bad) != list(file.metadata):
                assert truth.compare(CASES[name], dataclasses.replace(file, metadata=bad)), key
    for key in file.metadata.keys() - {"unsloth_source", "depickle_header"}:
        for text in _altered(file.metadata[key]):
            bad = {**file.metadata, key: text}
            assert truth.compare(CASES[name], dataclasses.replace(file, metadata=bad)), (key, text)


def _altered(text: str) -> list[str]:
    """JSON with one scalar changed, for every scalar in it but prose, and lists turned round."""
    if not text.startswith(("{", "[")):
        return [text + "x"]
    made: list[str] = []

    def walk(root: Any, value: Any) -> None:
        pairs = value.items() if isinstance(value, dict) else enumerate(value)
        for key, item in list(pairs):
            if isinstance(item, (dict, list)):
                walk(root, item)
            elif key not in ("tensors", "dequant", "activation"):
                value[key] = "other" if item != "other" else None
                made.append(json.dumps(root))
                value[key] = item
        if isinstance(value, list) and len(value) > 1 and value != value[::-1]:
            value.reverse()
            made.append(json.dumps(root))
            value.reverse()

    parsed = json.loads(text)
    walk(parsed, parsed)
    return made


def test_a_header_byte_breaks_the_seal(converted: dict[str, outside.File]) -> None:
    """A byte changed in the provenance is seen by the digest of the header."""
    file = converted[INT8]
    at = file.raw.index(b"acme")
    bad = dataclasses.replace(file, raw=file.raw[:at] + b"acne" + file.raw[at + 4 :])
    assert truth.seal_problems(bad)


def leaves(tensor: Any) -> list[Any]:
    """The plain tensors inside an entry of the truth."""
    return [leaf for item in tensor["inner"].values() for leaf in leaves(item)] if "inner" in tensor else [tensor]


@pytest.mark.parametrize("name", EXAMPLES)
@pytest.mark.parametrize(
    ("field", "value"),
    [("sha256", "0" * 64), ("dtype", "torch.int16"), ("shape", [3, 5, 7])],
    ids=lambda value: str(value)[:8],
)
def test_damaged_truth_is_noticed(name: str, field: str, value: object, converted: dict[str, outside.File]) -> None:
    """Another digest, dtype or shape of any inner tensor in the truth makes a problem (or no form at all)."""
    case = CASES[name]
    for key in case.truth["key_order"]:
        for i in range(len(leaves(case.truth["tensors"][key]))):
            other = copy.deepcopy(case.truth)
            leaf = leaves(other["tensors"][key])[i]
            if field == "dtype" and ex.is_zero(leaf):
                continue  # a zero point that was cast: what it was before is not in the output
            leaf[field] = value
            assert noticed(case, other, converted[name]), (key, i)


def noticed(case: truth.Case, other: Any, file: outside.File) -> bool:
    """Whether the comparison with another truth finds something."""
    try:
        return bool(truth.compare(dataclasses.replace(case, truth=other), file))
    except (ex.NoForm, ValueError, AssertionError):
        return True


def _reorder(value: Any) -> None:
    value["key_order"].reverse()


def _rename(value: Any) -> None:
    value["tensors"]["other.name"] = value["tensors"].pop(value["key_order"][1])
    value["key_order"][1] = "other.name"


def _retag(value: Any) -> None:
    value["format"] = None


def _forget(value: Any) -> None:
    value["metadata"]["dict"].pop("scheme")


@pytest.mark.parametrize("change", [_reorder, _rename, _retag, _forget])
@pytest.mark.parametrize("name", EXAMPLES)
def test_other_names_tag_or_metadata_are_noticed(
    name: str, change: Callable[[Any], None], converted: dict[str, outside.File]
) -> None:
    """Names in another order, another name, no tag, other metadata: each makes a problem."""
    other = copy.deepcopy(CASES[name].truth)
    change(other)
    assert noticed(CASES[name], other, converted[name])


def test_lost_tie_is_noticed(converted: dict[str, outside.File]) -> None:
    """A tie that the truth has and the output does not record makes a problem."""
    other = copy.deepcopy(CASES[TIED].truth)
    other["shared_storage"] = []
    assert noticed(CASES[TIED], other, converted[TIED])


def test_unsound_record_is_noticed(tmp_path: Path) -> None:
    """Each field of the record is held against the truth and the file."""
    import depickle

    record = depickle.convert(CASES[INT8].path, tmp_path).as_json()
    assert truth.record_problems(CASES[INT8], record) == []
    for key in (
        "kind",
        "format",
        "scheme",
        "tensors",
        "quantized",
        "int8_source",
        "src_sha256",
        "dst_sha256",
        "dst_bytes",
    ):
        assert truth.record_problems(CASES[INT8], record | {key: "other"}), key


def test_undocumented_refusal_and_needless_conversion_are_wrong(tmp_path: Path) -> None:
    """A refusal with another message is wrong, and so is a conversion of what has no form."""
    case = CASES["0.17.0/nf4.bare"]
    assert truth._refusal(case, "blk.0.attn.q.weight: some other line").status == "wrong"
    assert truth._refusal(CASES[INT8], _message(case, tmp_path)).status == "wrong"
    other = copy.deepcopy(CASES[INT8].truth)
    other["tensors"]["blk.0.attn.q.weight"]["context"][0]["callable"] = "torchao.quantization.quant_api._other"
    assert truth.judge(dataclasses.replace(CASES[INT8], truth=other), tmp_path).status == "wrong"


# --- the command ----------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of fixtures with one file that converts and one that is refused."""
    for case in (CASES[INT8], CASES["0.17.0/nf4.bare"]):
        target = tmp_path / "fixtures" / case.release
        target.mkdir(parents=True, exist_ok=True)
        for path in (case.path, case.path.with_name(case.path.name + ".truth.json")):
            shutil.copy(path, target)
    return tmp_path / "fixtures"


def run(*args: object) -> subprocess.CompletedProcess[str]:
    """`python -m tests.coverage`, from the project's root."""
    root = Path(__file__).resolve().parent.parent
    command = [sys.executable, "-m", "tests.coverage", *map(str, args)]
    return subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)


def test_command_prints_table_and_totals(folder: Path) -> None:
    """A sound folder gives a table, a line of totals, and status 0."""
    done = run(folder)
    lines = done.stdout.splitlines()
    assert (done.returncode, done.stderr) == (0, "")
    assert lines[0].split() == ["class", "kind", "0.17.0"]
    assert lines[1].split() == ["LinearActivationQuantizedTensor", "int8dyn_default", "ok"]
    assert lines[2].split() == ["NF4Tensor", "nf4", "ref"]
    assert lines[3] == "2 files: 1 converted, 1 refused as documented, 0 wrong"


def test_command_fails_for_a_wrong_file(folder: Path) -> None:
    """A damaged source makes its cell WRONG, shows what is wrong, and gives status 1."""
    path = next(folder.glob("*/int8dyn_default.wrapped.pt.truth.json"))
    damaged = json.loads(path.read_text())
    leaves(damaged["tensors"]["blk.0.attn.q.weight"])[0]["sha256"] = "0" * 64
    path.write_text(json.dumps(damaged))
    done = run(folder)
    assert done.returncode == 1
    assert (
        "WRONG 0.17.0/int8dyn_default: blk.0.attn.q._weight_qdata: its bytes are not those of the truth" in done.stdout
    )
    assert done.stdout.endswith("2 files: 0 converted, 1 refused as documented, 1 wrong\n")


def test_command_fails_without_fixtures(tmp_path: Path) -> None:
    """A folder with nothing in it is not a success."""
    assert run(tmp_path).returncode == 1


def test_table_orders_releases_by_number() -> None:
    """0.9.0 stands before 0.10.0, other folders last, and several files of a cell are counted."""
    made = [truth.Verdict(release, "k", ("C",), "converted") for release in ("0.10.0", "0.9.0", "edge", "0.9.0")]
    lines = coverage_table.table(made).splitlines()
    assert lines[0].split() == ["class", "kind", "0.9.0", "0.10.0", "edge"]
    assert lines[1].split() == ["C", "k", "ok2", "ok", "ok"]
