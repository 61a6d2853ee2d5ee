"""`depickle.torch.load` under every release: exact, or refused by the name of the class or the field; never wrong."""

from __future__ import annotations

from collections import Counter

import judging
import matrix
import pytest
import readings

import expected as ex


def test_the_matrix_has_no_wrong_cell(taken: readings.Readings) -> None:
    """Writers by class against readers; what docs/compatibility.md shows."""
    cells = matrix.cells(taken)
    wrong = {where: cell.reasons for where, cell in cells.items() if cell.counted["wrong"]}
    assert wrong == {}
    assert sum(cell.counted["exact"] for cell in cells.values()) >= 1500


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
