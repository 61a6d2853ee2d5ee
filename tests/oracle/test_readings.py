"""What every release of torchao made of every converted fixture, each reader in its turn.

First the safetensors package and torchao's own readers, then `depickle.torch.load`, then `--check-with torch`. In one
file, since they share the readings, which take a minute to take: with several workers they belong to one.
"""

from __future__ import annotations

from collections import Counter

import judging
import matrix
import pytest
import readings
from safetensors import safe_open

import expected as ex

TOLD = ("0.16.0", "0.17.0", "0.18.0")  # the releases whose readers must take every file of theirs
UNREADABLE = {"edge/protocol4"}  # torch's own restricted unpickler knows protocol 2 only


# --- the safetensors package and torchao's own readers ---------------------------------------------------------------


def test_the_safetensors_package_opens_every_file(taken: readings.Readings) -> None:
    """The format's own library, not ours."""
    assert len(taken.converted) >= 250
    for path in taken.converted.values():
        with safe_open(path, framework="np") as file:
            assert file.metadata()["format"] == "pt"
            assert all(file.get_slice(name).get_shape() is not None for name in file.keys())  # noqa: SIM118


@pytest.mark.parametrize("reader", TOLD)
def test_metadata_is_accepted(taken: readings.Readings, reader: str) -> None:
    """`is_metadata_torchao` says yes to every file of classes that the release lists, and only to those."""
    asked = 0
    for name, file in taken.by_release[reader].items():
        if "plain" not in file["unflatten"]:
            listed = {weight.kind for weight in taken.weights(name).values()} <= judging.LISTED[reader]
            assert file["unflatten"].get("accepted", False) == listed, name
            asked += listed
    assert asked >= {"0.16.0": 180, "0.17.0": 240, "0.18.0": 240}[reader]


def test_plain_files_stay_plain(taken: readings.Readings) -> None:
    """Untagged files without a quantised weight have none of torchao's keys."""
    for name, file in taken.by_release["0.18.0"].items():
        quantised = any("inner" in tensor for tensor in taken.cases[name].truth["tensors"].values())
        tagged = taken.cases[name].truth.get("format") in readings.truth.TAGS
        assert ("plain" in file["unflatten"]) == (not quantised and not tagged), name


def test_torchao_rebuilds_what_was_written(taken: readings.Readings, release: str) -> None:
    """Class, attributes and inner bytes equal the truth's wherever the release has the class; none is ever wrong."""
    exact = 0
    for name, file in taken.by_release[release].items():
        for key, wanted in taken.weights(name).items():
            found = file["unflatten"]["weights"].get(key, {"error": "not in the result"}) if "." in key else None
            if found is None:
                continue
            outcome = judging.outcome(found, wanted)
            allowed = {"exact"} if judging.torchao_reads(release, wanted) else {"refused"}
            assert outcome.status in allowed, f"{name} {key}: {outcome}"
            exact += outcome.status == "exact"
    assert exact >= {"0.14.1": 0, "0.15.0": 100, "0.16.0": 200, "0.17.0": 350, "0.18.0": 350}[release]


@pytest.mark.parametrize("reader", TOLD)
def test_plain_tensors_come_back_and_only_root_names_are_left(taken: readings.Readings, reader: str) -> None:
    """What a whole-file read leaves over are the names without a dot; the plain tensors it returns are the truth's."""
    for name, file in taken.by_release[reader].items():
        found = file["unflatten"]
        if "left" not in found:
            continue
        tensors = taken.cases[name].truth["tensors"]
        assert [key for key in found["left"] if "." in key.removeprefix(readings.truth.ROOT_PREFIX)] == [], name
        for key, described in found["weights"].items():
            if "inner" not in tensors[key]:
                assert judging.outcome(described, ex.expected(tensors[key])).status == "exact", f"{name} {key}"


def test_values_are_those_of_the_writer(taken: readings.Readings) -> None:
    """Under 0.18 the rebuilt weight dequantises, bit for bit, to what the release that wrote it computed."""
    compared = 0
    for name, file in taken.by_release["0.18.0"].items():
        for key, wanted in taken.weights(name).items():
            written = taken.written(name, key)
            found = file["unflatten"]["weights"].get(key)
            if (
                written is None
                or found is None
                or judging.combines_scales_otherwise(wanted, taken.cases[name].release, "0.18.0")
            ):
                continue
            assert found["dequantized"] == written, f"{name} {key}"
            compared += 1
    assert compared >= 300


def test_every_weight_of_a_class_with_a_formula_has_values_to_compare(taken: readings.Readings) -> None:
    """So that the test above leaves out nothing: only torchao's four-bit integer classes have no formula."""
    for name in taken.cases:
        for key, wanted in taken.weights(name).items():
            assert (taken.written(name, key) is None) == str(wanted.kind).startswith("Int4"), f"{name} {key}"


# --- depickle.torch.load ---------------------------------------------------------------------------------------------


def test_the_matrix_has_no_wrong_cell(taken: readings.Readings) -> None:
    """Writers by class against readers; what docs/compatibility.md shows."""
    cells = matrix.cells(taken)
    wrong = {where: cell.reasons for where, cell in cells.items() if cell.counted["wrong"]}
    assert wrong == {}
    assert sum(cell.counted["exact"] for cell in cells.values()) >= 1500


def test_the_page_shows_this_matrix(taken: readings.Readings) -> None:
    """docs/compatibility.md is what `python -m tests.oracle.matrix` would write now."""
    assert matrix.page(matrix.cells(taken)) == matrix.PAGE.read_text(encoding="utf-8")


def test_only_what_a_release_lacks_is_refused(taken: readings.Readings) -> None:
    """0.17 lacks a live reduce_range, 0.16 asymmetric activations, 0.15 static ones and pre-scales, 0.14 Int8Tensor."""
    refused: dict[str, Counter[str]] = {release: Counter() for release in taken.by_release}
    for (_, _, reader), cell in matrix.cells(taken).items():
        refused[reader].update(cell.reasons)
    assert set(refused["0.18.0"]) == set()
    assert set(refused["0.17.0"]) == {"reduce_range=True"}
    assert set(refused["0.16.0"]) == {"reduce_range=True", "mapping_type=ASYMMETRIC"}
    assert set(refused["0.15.0"]) == {
        "reduce_range=True",
        "mapping_type=ASYMMETRIC",
        "act_quant_scale=a tensor",
        "act_pre_scale=a tensor",
    }
    assert set(refused["0.14.1"]) == {"Int8Tensor", "is_swizzled_scales=True"}


def test_plain_tensors_and_order(taken: readings.Readings, release: str) -> None:
    """Every name in the source's order, plain tensors equal to the truth, whatever the release."""
    for name, file in taken.by_release[release].items():
        case = taken.cases[name]
        assert list(file["load"]["weights"]) == case.truth["key_order"], name
        for key, described in file["load"]["weights"].items():
            if "inner" not in case.truth["tensors"][key]:
                found = judging.outcome(described, ex.expected(case.truth["tensors"][key]))
                assert found.status == "exact", f"{name} {key}: {found}"


@pytest.mark.parametrize("reader", readings.CHECKERS)
def test_a_pickle_loads_like_its_conversion(taken: readings.Readings, reader: str) -> None:
    """The same objects, from either file. But that int8 was torchao v1's is said of tagged files alone."""
    for name, file in taken.by_release[reader].items():
        v1 = any(weight.facts is not None for weight in taken.weights(name).values())
        if reader == "0.18.0" or not v1 or taken.cases[name].truth.get("format") in readings.truth.TAGS:
            assert file["pickle"] == file["load"], name


def test_own_formulas_give_torchaos_bits(taken: readings.Readings) -> None:
    """`dequantize=True` against `dequantize()` of 0.18, for every class that has one."""
    compared = 0
    for name, file in taken.by_release["0.18.0"].items():
        weights = {key: described for key, described in file["load"]["weights"].items() if "inner" in described}
        if "error" in file["formulas"]:
            assert "no formula to dequantize" in file["formulas"]["error"], name
            assert all(described["dequantized"] is None for described in weights.values()), name
            continue
        for key, described in weights.items():
            assert file["formulas"]["weights"][key] == described["dequantized"], f"{name} {key}"
            compared += 1
    assert compared >= 350


# --- --check-with torch ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("checker", readings.CHECKERS)
def test_passes_on_every_conversion(taken: readings.Readings, checker: str) -> None:
    """The record names the judge; what torch itself does not read is refused, and said so."""
    for name, file in taken.by_release[checker].items():
        if name in UNREADABLE:
            assert "torch.load does not read it" in file["check"]["error"]
        else:
            reader = file["check"].get("reader", f"none: {file['check']}")
            assert reader.startswith("depickle, torch 2.13.0"), f"{name}: {reader}"
            assert reader.endswith(f", torchao {checker}"), f"{name}: {reader}"


@pytest.mark.parametrize("checker", readings.CHECKERS)
def test_one_turned_bit_of_a_scale_is_found(taken: readings.Readings, checker: str) -> None:
    """In each scale of each file: the finding names the weight and the part."""
    turned = 0
    for name, file in taken.by_release[checker].items():
        for scale in file["check"].get("turned", ()):
            weight, part = _weight_and_part(taken.weights(name), scale)
            told = [text for text in file["check"]["findings"] if text.startswith(f"{weight}: ") and part in text]
            assert told, f"{name} {scale}: {file['check']['findings']}"
            turned += 1
    assert turned >= 400


def _weight_and_part(weights: dict[str, ex.Weight], key: str) -> tuple[str, str]:
    """Which weight's part a tensor of the file is."""
    for name, weight in weights.items():
        module, _, parameter = name.rpartition(".")
        for part in weight.parts:
            if key == f"{module}._{parameter}_{part}":
                return name, part
    raise AssertionError(f"{key} is no part of a weight")
