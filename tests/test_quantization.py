"""`quantization_config` as today's torchao reads it: what is left alone, what is read off the weights, what stays."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from depickle.opening import open_checkpoint
from depickle.quantization import rewrite
from depickle.weights import Weight

FIXTURES = Path(__file__).parent / "data" / "fixtures"
PER_ROW = {"_type": "PerRow", "_version": 1, "_data": {"dim": -1}}
E4M3 = {"_type": "torch.dtype", "_data": "float8_e4m3fn"}


def weights(name: str) -> Mapping[str, Weight]:
    with open_checkpoint(FIXTURES / f"{name}.wrapped.pt") as checkpoint:
        return checkpoint.weights


INT8 = weights("0.14.1/int8wo_default")
DYNAMIC = weights("0.17.0/int8dyn_default")
FLOAT8 = weights("0.14.1/fp8dyn_perrow")
MIXED = weights("0.14.1/mixed_fp8_nvfp4")
GROUPS = weights("0.11.0/int8wo_group32")


def config(kind: str, version: int | None = None, **data: Any) -> dict[str, Any]:
    made: dict[str, Any] = {"_type": kind, "_data": data}
    return made if version is None else {**made, "_version": version}


def declared(quant_type: Any, **more: Any) -> dict[str, Any]:
    return {"quant_method": "torchao", "quant_type": quant_type, **more}


INT8_TODAY = config("Int8WeightOnlyConfig", 2, granularity=PER_ROW)
V1 = config("Int8WeightOnlyConfig", 1, group_size=None, set_inductor_config=True)
LAYOUT = config("Int8DynamicActivationInt8WeightConfig", 1, layout=config("PlainLayout", 1))
INTX_014 = config("IntxWeightOnlyConfig", 2, layout=config("QDQLayout", 1))


@pytest.mark.parametrize(
    "quant_type",
    [
        "int8_weight_only",
        "int8wo",
        {"default": V1},
        {"default": {**V1, "_version": None}},
        {"default": {key: value for key, value in V1.items() if key != "_version"}},
        {"default": LAYOUT},
        {"default": INTX_014},
        {"default": config("UIntXWeightOnlyConfig", 1)},
        {"default": "int8"},
        {"default": None},
        {},
        None,
        ["int8"],
    ],
    ids=repr,
)
def test_what_torchao_has_no_more_is_read_off_the_weights(quant_type: Any) -> None:
    """Strings, version 1, layouts, configs that are gone, and what is no config at all."""
    found = rewrite(declared(quant_type, quant_type_kwargs={"a": 1}, modules_to_not_convert=["x"]), INT8)
    assert found == (declared({"default": INT8_TODAY}, modules_to_not_convert=["x"]), ())


@pytest.mark.parametrize(
    "inner",
    [
        INT8_TODAY,
        config("Int8DynamicActivationInt8WeightConfig", 2, reduce_range=False),
        config("Float8WeightOnlyConfig", 2, weight_dtype=E4M3),
        config("SomeConfigOfTomorrow", 7, anything=1),
        config("FqnToConfig", 1, fqn_to_config={"a": INT8_TODAY, "b": None, "re:.*": INT8_TODAY}),
    ],
    ids=lambda inner: inner["_type"],
)
def test_what_torchao_reads_is_left_alone(inner: Any) -> None:
    """Also if nothing here knows it."""
    assert rewrite(declared({"default": inner}), INT8) == (None, ())


def test_activations_come_with_the_weights() -> None:
    """Dynamic int8 and float8 say so, with granularity and arithmetic of the weights."""
    found = rewrite(declared("int8_dynamic_activation_int8_weight"), DYNAMIC).config
    mapping = {"_type": "MappingType", "_data": "SYMMETRIC"}
    wanted = config("Int8DynamicActivationInt8WeightConfig", 2, act_mapping_type=mapping, granularity=PER_ROW)
    assert found == declared({"default": wanted})
    found = rewrite(declared("float8_dynamic"), FLOAT8).config
    assert found is not None
    made = found["quant_type"]["default"]  # type: ignore[index]
    assert made["_type"] == "Float8DynamicActivationFloat8WeightConfig"
    assert made["_data"]["granularity"] == [PER_ROW, PER_ROW]
    assert (made["_data"]["activation_dtype"], made["_data"]["weight_dtype"]) == (E4M3, E4M3)


@pytest.mark.parametrize("field", ["fqn_to_config", "module_fqn_to_config"])
def test_a_config_per_module(field: str) -> None:
    """Each entry by the weights that it is for; null and what torchao reads stay."""
    names = [name for name, weight in {**INT8, **FLOAT8}.items() if weight.kind is not None]
    assert len(names) >= 2
    held = {"a.weight": INT8[names[0]], "b.weight": FLOAT8[names[1]], "c.weight": INT8[names[0]]}
    entries = {"a": V1, "b.weight": config("Float8WeightOnlyConfig", 1), "skip": None, "_default": V1}
    found = rewrite(declared({"default": config("ModuleFqnToConfig", 1, **{field: entries})}), held).config
    assert found is not None
    made = found["quant_type"]["default"]  # type: ignore[index]
    assert (made["_type"], list(made["_data"])) == ("ModuleFqnToConfig", [field])
    assert made["_data"][field]["a"] == made["_data"][field]["_default"] == INT8_TODAY
    assert made["_data"][field]["b.weight"]["_type"] == "Float8DynamicActivationFloat8WeightConfig"
    assert made["_data"][field]["skip"] is None


NESTED = config("FqnToConfig", 1, fqn_to_config={"a": config("FqnToConfig", 1, fqn_to_config={"b": V1})})


@pytest.mark.parametrize(
    ("quant_type", "held"),
    [
        ("mixed", MIXED),
        ("int8wo", GROUPS),
        ("int8wo", {}),
        ({"default": config("FqnToConfig", 1, fqn_to_config={"re:(a+)+b": V1})}, INT8),
        ({"default": config("FqnToConfig", 1, fqn_to_config={"elsewhere": V1})}, INT8),
        ({"default": NESTED}, INT8),
    ],
    ids=["two kinds", "groups", "no weights", "a pattern", "weights that are not there", "nested"],
)
def test_what_no_config_says_stays_and_is_noted(quant_type: Any, held: Any) -> None:
    """The old config stands, with a warning that names it."""
    found = rewrite(declared(quant_type), held)
    assert found.config is None
    assert len(found.warnings) == 1
    assert "left as it is" in found.warnings[0]


@pytest.mark.parametrize("old", [None, {}, {"quant_method": "bitsandbytes"}, [], "x", 1])
def test_configs_of_others(old: Any) -> None:
    """Not torchao's: not touched, and noted if there are quantised weights that nobody would look for."""
    assert rewrite(old, INT8).config is None
    assert "2 quantised weights" in rewrite(old, INT8).warnings[0]
    assert rewrite(old, {}) == (None, ())


def test_the_embeddings_key_gets_its_present_name() -> None:
    """transformers renamed it."""
    found = rewrite(declared("int8wo", include_embedding=True), INT8).config
    assert found == declared({"default": INT8_TODAY}, include_input_output_embeddings=True)
