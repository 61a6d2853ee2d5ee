"""`--check-with torch`: passes on honest conversions, fails when one bit of one scale is turned."""

from __future__ import annotations

import pytest
import readings

import expected as ex

UNREADABLE = {"edge/protocol4"}  # torch's own restricted unpickler knows protocol 2 only


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
