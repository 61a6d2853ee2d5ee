"""Which weights go into which file, and what the files are called."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from depickle.options import UsageError, parse_size
from depickle.outputs.splitting import file_names, index_name, index_text, split

SIZES = st.dictionaries(st.text(min_size=1, max_size=6), st.integers(0, 50), min_size=1, max_size=30)


@pytest.mark.property
@given(SIZES, st.integers(1, 60))
def test_split(sizes: dict[str, int], limit: int) -> None:
    """Every name once, in order; no file over the limit unless it holds one weight; none that the next would fit in."""
    groups = split(sizes, limit)
    assert [name for group in groups for name in group] == list(sizes)
    totals = [sum(sizes[name] for name in group) for group in groups]
    assert all(total <= limit or len(group) == 1 for total, group in zip(totals, groups))
    assert all(total + sizes[after[0]] > limit for total, after in zip(totals, groups[1:]))
    assert all(groups)


def test_no_limit() -> None:
    assert split({"a": 10**15, "b": 1}, None) == [["a", "b"]]


@pytest.mark.parametrize(
    ("name", "second", "index"),
    [
        ("model.safetensors", "model-00002-of-00012.safetensors", "model.safetensors.index.json"),
        (
            "diffusion_pytorch_model.fp16.safetensors",
            "diffusion_pytorch_model.fp16-00002-of-00012.safetensors",
            "diffusion_pytorch_model.safetensors.index.fp16.json",
        ),
    ],
)
def test_names(name: str, second: str, index: str) -> None:
    """Those that transformers and diffusers look for."""
    assert file_names(name, 1) == [name]
    assert file_names(name, 12)[1] == second
    assert len(set(file_names(name, 12))) == 12
    assert index_name(name) == index


def test_index() -> None:
    text = index_text({"b.safetensors": ["x", "a"], "a.safetensors": ["ü"]}, 12)
    assert json.loads(text) == {
        "metadata": {"total_size": 12},
        "weight_map": {"a": "b.safetensors", "x": "b.safetensors", "ü": "a.safetensors"},
    }
    assert text.endswith(b"}\n")


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("5GB", 5 * 10**9),
        ("5gb", 5 * 10**9),
        ("1.5 MB", 1_500_000),
        ("2GiB", 2**31),
        ("40B", 40),
        ("7", 7),
        ("3T", 3 * 10**12),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    "text", ["", "GB", "-1GB", "0", "0.1B", "5XB", "5iB", "1e9", "5GBs", "1/2GB", "٣GB", "9" * 400]
)
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(UsageError, match="max-shard-size"):
        parse_size(text)
