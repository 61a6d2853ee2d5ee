"""torchao's own files: held to the content of the checkpoints that they were made of, and written again in the same
container."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

import depickle
import outside
import truth

FIXTURES = Path(__file__).parent / "data" / "fixtures"
CASES = truth.cases(FIXTURES)
OLD = "0.14.1"


@dataclass(frozen=True)
class Pair:
    """A reference and a checkpoint with the same names."""

    case: truth.Case
    ref: Path

    @property
    def id(self) -> str:
        return f"{self.case.name}-{self.ref.stem.rpartition('ref-')[2]}"


def pairs() -> list[Pair]:
    """Each reference with the checkpoints that it was made of; those of the 0.14 grammar too."""
    found = []
    for case in CASES:
        old = sorted(case.path.parent.glob(f"{case.kind}.ref-{OLD}.safetensors"))
        same = [ref for ref in old if json.loads(outside.read(ref).metadata["tensor_names"]) == case.truth["key_order"]]
        found += [Pair(case, ref) for ref in (*same, *truth.references(case))]
    return found


PAIRS = pairs()
REFS = sorted({pair.ref for pair in PAIRS})


def test_there_are_references() -> None:
    """All references but the one that lost a live field take part."""
    assert len(REFS) == len(list(FIXTURES.glob("*/*.ref-*.safetensors"))) - 1
    assert sum(OLD in ref.name for ref in REFS) == 7


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.id)
def test_reference_verifies_against_its_checkpoint(pair: Pair) -> None:
    """Another writer's file is held to its content, and has it."""
    result = depickle.verify(pair.case.path, pair.ref)
    assert (result.sealed, result.tensors) == (False, len(pair.case.truth["key_order"]))


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.id)
def test_flipped_bit_of_a_reference_does_not_verify(pair: Pair, tmp_path: Path) -> None:
    """One bit of the last tensor's last byte is a mismatch that names a tensor."""
    data = bytearray(pair.ref.read_bytes())
    data[-1] ^= 1
    damaged = tmp_path / pair.ref.name
    damaged.write_bytes(data)
    with pytest.raises(depickle.Mismatch, match=r"differs at byte|class is|attributes differ|parts are"):
        depickle.verify(pair.case.path, damaged)


@pytest.mark.parametrize("ref", REFS, ids=lambda ref: f"{ref.parent.name}/{ref.stem}")
def test_reference_is_written_again(ref: Path, tmp_path: Path) -> None:
    """A conversion of a reference has the same names, entries and tensors, in our container, sealed and on a page."""
    record = depickle.convert(ref, tmp_path)
    made, theirs = outside.read(Path(record.dst)), outside.read(ref)
    assert truth.seal_problems(made) == []
    assert outside.layout_problems(made) == []
    if OLD not in ref.name:
        assert list(truth.reference_problems(theirs, made)) == []
    assert depickle.verify(ref, record.dst).sealed
    assert json.loads(made.metadata["depickle_source"])["file"] == ref.name


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.id)
def test_reference_and_checkpoint_become_the_same_weights(pair: Pair, tmp_path: Path) -> None:
    """Through the reference or from the pickle: the same tensors, byte for byte, and the same entries."""
    ours = outside.read(Path(depickle.convert(pair.case.path, tmp_path / "pickle").dst))
    again = outside.read(Path(depickle.convert(pair.ref, tmp_path / "ref").dst))
    names = {name.removeprefix(truth.ROOT_PREFIX): tensor for name, tensor in ours.tensors.items()}
    assert names == again.tensors
    for name in json.loads(again.metadata.get("tensor_names", "[]")):
        if name in ours.metadata:
            assert ours.metadata[name] == again.metadata[name]


@pytest.mark.parametrize("name", ["0.17.0/int8dyn_default.wrapped", "0.12.0/nvfp4_wo.wrapped", "edge/te_qwen_tied"])
def test_own_output_is_written_again_with_what_it_carries(name: str, tmp_path: Path) -> None:
    """Tag, metadata, int8_v1, ties and order are carried over, and the earlier provenance is kept under `from`."""
    first = depickle.convert(FIXTURES / f"{name}.pt", tmp_path / "first", repo="acme/tiny")
    second = depickle.convert(first.dst, tmp_path / "second")
    one, two = outside.read(Path(first.dst)), outside.read(Path(second.dst))
    assert one.tensors == two.tensors
    assert list(one.metadata) == list(two.metadata)
    differs = [key for key in one.metadata if one.metadata[key] != two.metadata[key]]
    assert differs == ["unsloth_source", "depickle_header"]
    assert json.loads(two.metadata["unsloth_source"])["from"] == json.loads(one.metadata["unsloth_source"])
    assert second.int8_source == first.int8_source
