"""`--check-with torch`: passes on honest conversions, fails when one bit of one scale is turned."""

from __future__ import annotations

import pytest
import readings

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
def test_one_turned_bit_of_a_scale_is_a_mismatch(taken: readings.Readings, checker: str) -> None:
    """In each weight of each file by itself."""
    flips = {
        f"{name} {scale}": verdict
        for name, file in taken.by_release[checker].items()
        for scale, verdict in file["check"].get("flips", {}).items()
    }
    assert len(flips) >= 400
    assert {where: verdict for where, verdict in flips.items() if verdict != "mismatch"} == {}
