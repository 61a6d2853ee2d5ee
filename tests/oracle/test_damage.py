"""Damaged converted files of every class, one fault each: `depickle.torch.load` says which, where, in an error of
ours."""

from __future__ import annotations

import re
from typing import Any

import environment
import pytest
import readings

# The fault (the first words of a case), and what is said of it, after the file's name.
NAMED = r"(?P<weight>blk\.0\.\w+(\.\w+)?\.weight): "
SAID = {
    "part gone": ("Malformed", NAMED + r"is listed, but the file holds no tensor blk\.0\.\S+_weight_\w+"),
    "part unlisted": (
        "Malformed",
        rf"({NAMED}\w+ lacks its part \w+|holds 1 tensors that its metadata does not account for, the first \S+)",
    ),
    "part bool": (
        "Refused|Malformed",
        NAMED + r"(part \w+ of \w+ has dtype bool, expected .*|scale has shape \[32, 16\], expected \[32, 384\])",
    ),
    "part bent": (
        "Refused|Malformed",
        NAMED + r"(\w+ has shape \[1, 1, .*|block size .* does not go with data of shape \[1, 1, .*"
        r"|data of shape \[1, 1, .*|torchao 0\.18\.0 does not construct a NVFP4Tensor of it: .*)",
    ),
    "part twice": ("Malformed", NAMED + r"names one of its parts twice"),
    "part unknown": ("Malformed", NAMED + r"is listed, but the file holds no tensor \S+_noise"),
    "field unknown": ("Refused", NAMED + r"\w+ records noise=3, which is no field of it in torchao 0\.18"),
    "field gone": (
        "Malformed",
        NAMED + r"(\w+ lacks its field \w+|block size None is not a positive number|scale has shape .*, expected .*)",
    ),
    "field wrong": (
        "Malformed|Refused",
        NAMED.replace(": ", r"(\.\w+)?: ")
        + r"(\w+ records \w+=.*float7.*, expected \w+|records dtype=float7, which this torchao cannot construct"
        r"|block size .*float7.* is not a positive number|scale has shape .*, expected .*)",
    ),
    "class unknown": ("Refused", NAMED + r"has class 'Float9Tensor', which depickle does not know"),
    "class plain": ("Malformed", NAMED + r"is listed, but the file holds no tensor blk\.0\.\S+"),
    "tensor extra": ("Malformed", r"holds 1 tensors that its metadata does not account for, the first \S*more\S*"),
    "name twice": ("Malformed", r"the header's tensor_names names something twice"),
    "name without entry": ("Malformed", r"more\.weight: the header's more\.weight is not there or is no object"),
    "name unlisted": ("Malformed", r"holds 2 tensors that its metadata does not account for, the first \S+"),
    "names no list": ("Malformed", r"a list of names is no list of texts"),
    "names no JSON": ("Malformed", r"the header's tensor_names is not JSON"),
    "entry no JSON": ("Malformed", NAMED + r"the header's \S+ is not JSON"),
    "entry a list": ("Malformed", NAMED + r"the header's \S+ is not there or is no object"),
    "ranges overlap": ("Malformed", r"\S+: begins at byte \d+ and overlaps the tensor before it \(expected \d+\)"),
    "range empty": ("Malformed", r"\S+: has 23 bytes, its dtype and shape make 24"),
    "range beyond": ("Malformed", r"\S+: has \d+ bytes, its dtype and shape make \d+"),
    "range reversed": ("Malformed", r"num_steps: has a shape or offsets that are no counts"),
    "shape wrong": ("Malformed", r"num_steps: has 8 bytes, its dtype and shape make 16"),
    "shape negative": ("Malformed", r"num_steps: has a shape or offsets that are no counts"),
    "dtype unknown": ("Refused", r"num_steps: has dtype 'F7', which depickle does not know"),
    "data cut": ("Malformed", r"\S+: ends at byte \d+, the file at \d+"),
    "data more": ("Malformed", r"1 bytes follow the last tensor's end at \d+"),
    "header cut in its length": ("Malformed", r"begins with .*, expected a zip .*"),
    "header cut": ("Malformed", r"the header's \d+ bytes reach past the end of the file at \d+"),
    "header short": ("Malformed", r"the header is not JSON: .*"),
    "header no JSON": ("Malformed", r"the header is not JSON: .*"),
    "header huge": ("Malformed", r"begins with .*, expected a zip .*"),
    "key twice": ("Malformed", r"the header is not JSON: duplicate key 'num_steps'"),
    "bit turned": ("Malformed", r"header: its SHA-256 is \w{64}, it says \w{64}"),
}
# What is no fault: a field that has a default, a scale that broadcasts, more dimensions of a stack of matrices.
FINE = re.compile(
    r"\w+: field gone: (mm_config|\w*act\w*_quant\w+|kernel_preference|use_triton_kernel)"
    r"|NVFP4Tensor: field gone: is_swizzled_scales"
    r"|(Int4Tensor: part bent: act_pre_scale|Int8Tensor: part bent: act_quant_scale)"
    r"|(MX|NVFP4)Tensor: part bent: (qdata|scale)"
)


@pytest.fixture(scope="session")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What was said of every damaged file."""
    job = {"folder": str(tmp_path_factory.mktemp("damage")), "fixtures": str(readings.FIXTURES)}
    found: dict[str, Any] = environment.run("0.18.0", "damage", job)
    return found


def fault(case: str) -> str:
    """The row of a case: the longest that begins it."""
    what = case.partition(": ")[2].partition(":")[0]
    return max((row for row in SAID if what.startswith(row)), key=len)


@pytest.mark.parametrize("row", SAID)
def test_damage(damaged: dict[str, Any], row: str) -> None:
    """Each fault of the row, in every class that can have it."""
    cases = {case: said for case, said in damaged.items() if fault(case) == row}
    assert cases
    for case, found in cases.items():
        kind, pattern = SAID[row]
        if FINE.fullmatch(case):
            assert found["kind"] is None, case
            continue
        assert re.fullmatch(kind, str(found["kind"])), (case, found)
        match = re.fullmatch(rf"damaged\.safetensors: {pattern}", found["said"])
        assert match, (case, found)
        assert match.groupdict().get("weight") in (None, found["weight"]), (case, found)


def test_every_class_and_part_was_damaged(damaged: dict[str, Any]) -> None:
    """The child found a file of each class, with every fault that a class can have."""
    kinds = {case.partition(":")[0] for case in damaged} - {"file"}
    assert len(kinds) == 8
    for what in ("part gone", "part unlisted", "part bool", "part bent", "field wrong", "field gone"):
        assert {case.partition(":")[0] for case in damaged if f": {what}: " in case} == kinds, what
    assert len(damaged) > 180
