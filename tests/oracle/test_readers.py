"""The safetensors package and torchao's own readers take what depickle writes, and make of it what the writer had."""

from __future__ import annotations

import judging
import pytest
import readings
from safetensors import safe_open

import expected as ex

TOLD = ("0.16.0", "0.17.0", "0.18.0")  # the releases whose readers must take every file of theirs


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
