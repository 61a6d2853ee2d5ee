"""The ComfyUI twin through comfy-kitchen, ComfyUI's own arithmetic: its dequantised weights are torchao's, bit for bit.

Every fixture of the releases that read becomes a twin or is refused for the reason in the table; so do files that
torchao 0.18 writes here, of the shapes and kinds that the fixtures lack. For some releases, the torchao that wrote a
file and comfy-kitchen then look at source and twin in one process, without depickle.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import environment
import pytest
import readings

import depickle

WRITER = environment.READERS[-1]
JUDGES = ("0.14.1", "0.17.0", WRITER)  # the first and the last with v1's int8, and today's
MADE: dict[str, set[str] | str] = {
    "int8": {"int8_tensorwise"},
    "float8": {"float8_e4m3fn", "float8_e5m2"},
    "mxfp8": {"mxfp8"},
    "nvfp4": {"nvfp4"},
    "rows": "one scale a row",
}
ROW, NARROW, DEVICE = "one scale a row; ComfyUI's own float8", "values of 1 to 7 bits", "that of one device's kernel"
NEVER = "has no form in torchao's safetensors"
# The beginning of a fixture's name: the formats of its twin, or a piece of the refusal. The longest that fits counts.
EXPECTED: dict[str, set[str] | str] = {
    "codebook4": set(),
    "fp8_block_direct": "is float8 with scales of shape [3, 2]",
    "fp8_e5m2_direct": ROW,
    "fp8_sparse2x4_direct": NEVER,
    "fp8dyn": ROW,
    "fp8dyn_pertensor": {"float8_e4m3fn"},
    "fp8static": "static",
    "fp8wo": ROW,
    "fp8wo_pergroup": "is float8 with scales of shape [48, 2]",
    "int4_opaque": NEVER,
    "int4_plain_int32": DEVICE,
    "int4_preshuffled": NEVER,
    "int4_tensor": "signed four-bit values",
    "int4_tile4d": DEVICE,
    "int8dyn": {"int8_tensorwise"},
    "int8dyn_int4": NARROW,
    "int8dyn_intx": NARROW,
    "int8static": "has act_quant_scale",
    "int8tensor_prescale": "has act_pre_scale",
    "int8wo": {"int8_tensorwise"},
    "int8wo_v2_pergroup": "has scales of shape [48, 2]; int8_tensorwise has one a row, or one a tensor",
    "intx_opaque": NEVER,
    "intx_wo": NARROW,
    "mixed_fp8_nvfp4": ROW,
    "mxfp4": "is MX of float4_e2m1fn_x2",
    "mxfp6": "is MX of fp6_e3m2",
    "mxfp8": {"mxfp8"},
    "mxfp8_e5m2": "is MX of float8_e5m2",
    "nf4": NEVER,
    "nvfp4": {"nvfp4"},
    "uintx": "the layout is UintxAQTTensorImpl",
}


def expected(name: str) -> set[str] | str:
    """What becomes of a source."""
    folder, _, kind = name.partition("/")
    return MADE[kind] if folder == "made" else EXPECTED[max((k for k in EXPECTED if kind.startswith(k)), key=len)]


def convert(source: Path, folder: Path, **options: Any) -> str | depickle.Error:
    """The twin's path, or why there is none."""
    try:
        return depickle.convert(source, folder, target="comfyui", **options).dst
    except depickle.Error as error:
        return error


@pytest.fixture(scope="session")
def cooked(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Per source what comfy-kitchen and torchao found of its twin (its path, if they did not look), or the refusal."""
    folder = tmp_path_factory.mktemp("twins")
    made = environment.run(WRITER, "comfy_writer", {"folder": str(folder)})
    found: dict[str, Any] = {}
    for release in environment.READERS:
        sources = {f"{release}/{path.name}": path for path in sorted((readings.FIXTURES / release).glob("*.pt"))}
        if release == WRITER:
            sources |= {f"made/{kind}": Path(path) for kind, path in made.items()}
        assert sources
        results = {name: convert(path, folder / release) for name, path in sources.items()}
        found |= results
        if release not in JUDGES:
            continue
        twins = {name: [str(sources[name]), path] for name, path in results.items() if isinstance(path, str)}
        job: dict[str, Any] = {"pairs": list(twins.values())}
        if release == WRITER:
            job["static"] = results["made/nvfp4"]
            rows = [made["rows"], *(str(p) for n, p in sources.items() if "/fp8dyn_perrow" in n or "/fp8_e5m2" in n)]
            again = [convert(Path(path), folder / "again", allow_requantize=True) for path in rows]
            job["rounded"] = list(zip(rows, map(str, again)))
        seen = environment.run(release, "comfy_reader", job, with_kitchen=True)
        found |= {name: seen[source] for name, (source, _) in twins.items()}
        if release == WRITER:
            found |= {"static": seen["static"], "rounded": seen["rounded"]}
    return found


def test_dequantised_weights_are_torchaos(cooked: dict[str, Any]) -> None:
    """Every weight of every twin, plain ones included, and no tensor in it that is part of none."""
    twins = {name: found for name, found in cooked.items() if "/" in name and isinstance(found, dict)}
    assert {name: found["unequal"] for name, found in twins.items() if found["unequal"]} == {}
    assert sum(len(found["quantised"]) for found in twins.values()) > 100


def test_every_source_becomes_what_the_table_says(cooked: dict[str, Any]) -> None:
    """Accepted with the format, or refused with the weight's name and the reason: no fixture is left out."""
    for name, found in cooked.items():
        if "/" not in name:
            continue
        wanted = expected(name)
        if isinstance(found, str):
            assert not isinstance(wanted, str), name
        elif isinstance(found, depickle.Error):
            assert isinstance(found, depickle.Refused), name
            assert isinstance(wanted, str), f"{name}: {found}"
            assert wanted in str(found), name
            assert ".weight: " in str(found)
        else:
            assert set(found["formats"]) == wanted, name


def test_static_activation_scales_mean_the_same(cooked: dict[str, Any]) -> None:
    """`input_scale` quantises an activation in comfy-kitchen to what torchao makes of it."""
    assert cooked["static"] is True


def test_what_is_rounded_again_is_what_torch_rounds(cooked: dict[str, Any]) -> None:
    """--allow-requantize: codes, scale and mark of every weight of float8 with a scale a row, of both kinds."""
    assert len(cooked["rounded"]) == 8
    for found in cooked["rounded"].values():
        assert found
        assert all(found.values()), found
