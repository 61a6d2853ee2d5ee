"""Checks of `depickle.torch` one by one, under one torchao release or none.

Each function named `check_...` takes a folder and the fixtures' folder. In: `{"folder", "fixtures", "checks"}`. Out:
per check null, or the traceback of its failure.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
import warnings
from pathlib import Path

import describe
import torch

import depickle
import depickle.torch

warnings.simplefilter("ignore")


def converted(folder, fixtures, name, **options):
    return depickle.convert(fixtures / name, folder, **options).dst


def raises(kind, text, call, *args, **options):
    try:
        call(*args, **options)
    except kind as error:
        said = str(error)
    else:
        raise AssertionError(f"no {kind.__name__} with {text!r}")
    assert text in said, said


def rewritten(path, change, data=b""):
    """A copy of a file whose header is changed as other writers' are: without our seal."""
    raw = Path(path).read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + length])
    header["__metadata__"].pop("depickle_header")
    change(header)
    text = json.dumps(header).encode()
    out = Path(path).with_suffix(".changed.safetensors")
    out.write_bytes(len(text).to_bytes(8, "little") + text + raw[8 + length :] + data)
    return out


def same(mine, theirs):
    assert list(mine) == list(theirs)
    for name, tensor in mine.items():
        assert describe.describe(tensor) == describe.describe(theirs[name]), name


INT8 = "0.17.0/int8dyn_default.wrapped.pt"
FP8 = "0.18.0/fp8dyn_perrow_plain.wrapped.pt"
TIED = "edge/te_qwen_tied.pt"


def check_metadata_and_format(folder, fixtures):
    path = converted(folder, fixtures, INT8)
    for source in (path, fixtures / INT8):
        found = depickle.torch.load(source)
        assert found["format"] == "unsloth_prequant_transformer_state_dict_v1"
        assert found["metadata"]["scheme"] == "int8"
        assert found["metadata"]["torch_version"] == "2.13.0+cpu"


def check_names(folder, fixtures):
    path = converted(folder, fixtures, FP8)
    found = depickle.torch.load(path, names=["blk.0.norm.weight", "x_pad_token"])["state_dict"]
    assert list(found) == ["x_pad_token", "blk.0.norm.weight"]
    raises(depickle.Refused, "blk.9: there is no such weight", depickle.torch.load, path, names=["blk.9"])


def check_mapped_memory_is_private(folder, fixtures):
    path = converted(folder, fixtures, FP8)
    before = Path(path).read_bytes()
    weight = depickle.torch.load(path)["state_dict"]["blk.0.norm.weight"]
    assert weight.untyped_storage().nbytes() == weight.nbytes
    weight.fill_(7)
    assert Path(path).read_bytes() == before
    assert not torch.equal(weight, depickle.torch.load(path)["state_dict"]["blk.0.norm.weight"])


def check_read_memory_is_the_same(folder, fixtures):
    views = ("views_shared", "view_partial_storage", "complex_conj_neg", "bigendian_record", "legacy_nonzip_views")
    for name in (FP8, "0.14.1/nvfp4_wo.wrapped.pt", *(f"edge/{view}.pt" for view in views)):
        mapped = depickle.torch.load(fixtures / name)["state_dict"]
        same(mapped, depickle.torch.load(fixtures / name, mmap=False)["state_dict"])
        same(mapped, depickle.torch.load(converted(folder, fixtures, name))["state_dict"])


def check_views_of_one_storage_share_it(folder, fixtures):
    base = torch.arange(24.0)
    torch.save({"a": base[:12].view(3, 4), "b": base[6:18], "c": base.view(4, 6).t()}, folder / "views.pt")
    found = depickle.torch.load(folder / "views.pt")["state_dict"]
    assert len({tensor.untyped_storage().data_ptr() for tensor in found.values()}) == 1
    assert found["c"].stride() == (1, 6)
    found["a"][2, 0] = 99
    assert found["b"][2] == 99
    assert found["c"][2, 1] == 99


def check_ties(folder, fixtures):
    for drop in (False, True):
        path = converted(folder / str(drop), fixtures, TIED, drop_tied_copies=drop)
        record = depickle.torch.load(path)["state_dict"]
        source = torch.load(fixtures / TIED, weights_only=True)["state_dict"]
        assert list(record) == list(source)
        tied = {name: tensor for name, tensor in source.items() if "embed_tokens" in name or "lm_head" in name}
        assert len({id(record[name]) for name in tied}) == 1 < len(tied)
        for name, tensor in source.items():
            assert torch.equal(tensor.view(torch.uint8), record[name].view(torch.uint8)), name


def check_native_reader(folder, fixtures):
    path = converted(folder, fixtures, INT8)
    for text in ("0", "false", "No", "OFF"):
        os.environ["UNSLOTH_PREQUANT_NATIVE_REBUILD"] = text
        for source in (path, fixtures / INT8):
            weight = depickle.torch.load(source)["state_dict"]["blk.0.attn.q.weight"]
            assert type(weight).__name__ == "Int8Tensor", text
    del os.environ["UNSLOTH_PREQUANT_NATIVE_REBUILD"]


def check_outputs_of_int8_v1_are_the_old_ones(folder, fixtures):
    """Where the release still has the class: what the model computes is what the pickle computed, bit for bit."""
    from depickle.torch.library import Library

    if Library().v1_classes() is None:
        return
    with torch.serialization.safe_globals(_globals(fixtures / INT8)):
        old = torch.load(fixtures / INT8, weights_only=True)["state_dict"]
    new = depickle.torch.load(converted(folder, fixtures, INT8))["state_dict"]
    for name in ("blk.0.attn.q.weight", "blk.0.mlp.up.weight"):
        assert type(new[name]) is type(old[name])
        x = torch.randn(5, old[name].shape[1], dtype=torch.bfloat16)
        assert torch.equal(torch.nn.functional.linear(x, old[name]), torch.nn.functional.linear(x, new[name]))


def _globals(path):
    import importlib

    names = torch.serialization.get_unsafe_globals_in_checkpoint(path)
    return [
        (getattr(importlib.import_module(name.rpartition(".")[0]), name.rpartition(".")[2]), name) for name in names
    ]


def check_weights_that_were_kept(folder, fixtures):
    """Classes without a form today, stored on request, are what torch makes of the pickle, where they still exist."""
    from depickle.torch.library import Library
    from depickle.torch.sources import load_source

    library, rebuilt, gone = Library(), 0, 0
    for path in sorted(fixtures.glob("*/*.wrapped.pt")):
        with depickle.open_checkpoint(path, keep_unsupported=True) as checkpoint:
            kept = {name for name, weight in checkpoint.weights.items() if weight.origin is not None}
            if not kept:
                continue
            source = load_source(checkpoint, library)["state_dict"]
            try:
                found = depickle.torch.load(converted(folder / path.parent.name, fixtures, path, keep_unsupported=True))
            except depickle.Refused as error:
                assert "not in torchao" in str(error) or "other fields" in str(error), error  # noqa: PT017
                gone += 1
                continue
        for name in kept:
            mine, theirs = found["state_dict"][name], source[name]
            assert type(mine) is type(theirs), path
            assert vars(mine).keys() == vars(theirs).keys(), path
            same_state(mine, theirs, f"{path} {name}")
        rebuilt += 1
    assert rebuilt >= 4, (rebuilt, gone)


def same_state(mine, theirs, where):
    assert (mine.shape, mine.dtype) == (theirs.shape, theirs.dtype), where
    for key, value in vars(theirs).items():
        found = vars(mine)[key]
        if type(value) is torch.Tensor:
            assert describe.describe(found) == describe.describe(value), f"{where} {key}"
        elif isinstance(value, torch.Tensor):
            same_state(found, value, f"{where} {key}")
        elif type(value).__name__ != "Function":
            assert (type(found), found) == (type(value), value), f"{where} {key}"


def check_damaged_headers(folder, fixtures):
    path = converted(folder, fixtures, FP8)
    key = "blk.0.attn.q._weight_scale"

    def without(header):
        del header[key]

    def listed_twice(header):
        header["__metadata__"]["tensor_names"] = json.dumps(
            [*json.loads(header["__metadata__"]["tensor_names"]), "blk.0.gone"]
        )

    def unknown(header):
        entry = json.loads(header["__metadata__"]["blk.0.attn.q.weight"])
        entry["_data"]["noise"] = 3
        header["__metadata__"]["blk.0.attn.q.weight"] = json.dumps(entry)

    def shape(header):
        header[key]["shape"] = [*header[key]["shape"], 2]

    def overlap(header):
        header[key]["data_offsets"] = [offset - 4 for offset in header[key]["data_offsets"]]

    def forgotten(header):
        names = json.loads(header["__metadata__"]["tensor_names"])
        header["__metadata__"]["tensor_names"] = json.dumps([name for name in names if name != "blk.0.norm.weight"])

    load = depickle.torch.load
    raises(depickle.Malformed, "leaves a hole", load, rewritten(path, without))
    raises(depickle.Malformed, "blk.0.gone", load, rewritten(path, listed_twice))
    raises(depickle.Refused, "noise=3", load, rewritten(path, unknown))
    raises(depickle.Malformed, "its dtype and shape make", load, rewritten(path, shape))
    raises(depickle.Malformed, "overlaps", load, rewritten(path, overlap))
    raises(depickle.Malformed, "does not account for", load, rewritten(path, forgotten))
    raises(depickle.Malformed, "follow the last", load, rewritten(path, dict.copy, b"more"))
    raw = Path(path).read_bytes()
    Path(path).write_bytes(raw[:-1])
    raises(depickle.Malformed, "", load, path)
    Path(path).write_bytes(raw.replace(b"acme/tiny", b"acme/tinY", 1))
    raises(depickle.Malformed, "header", load, path)
    Path(path).write_bytes(raw[:500])
    raises(depickle.Malformed, "reach past the end", load, path)


def check_torchaos_own_files(folder, fixtures):
    """What torchao itself flattened of a fixture, in today's grammar and in 0.14's, loads as the fixture does."""
    compared = 0
    for path in sorted(fixtures.glob("*/*.ref-*.safetensors")):
        kind = path.name.partition(".ref-")[0]
        found = [path.with_name(name) for name in (f"{kind}.pt", f"{kind}.wrapped.pt", f"{kind}.bare.pt")]
        source = next((pt for pt in found if pt.exists()), None)
        if source is None or "reduce_range" in kind:  # 0.17 does not know it
            continue
        mine, theirs = depickle.torch.load(path), depickle.torch.load(source)
        assert mine["format"] is None
        assert mine["state_dict"].keys() == theirs["state_dict"].keys(), path
        same(mine["state_dict"], {name: theirs["state_dict"][name] for name in mine["state_dict"]})
        compared += 1
    assert compared > 100


def shards(folder, path, change=lambda metadata: metadata):
    """A file cut in two, parts of one weight apart, with the whole table in each, as transformers does it."""
    from safetensors import safe_open
    from safetensors.torch import save_file

    folder.mkdir()
    with safe_open(path, framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in sorted(file.keys())}
        metadata = {key: value for key, value in file.metadata().items() if not key.startswith("depickle_")}
    names = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    weight_map = {name: names[i % 2] for i, name in enumerate(tensors)}
    for i, name in enumerate(names):
        save_file({key: tensor for key, tensor in tensors.items() if weight_map[key] == name}, folder / name, metadata)
        if i == 0:
            metadata = change(metadata)
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": weight_map}))
    return index


def check_shards(folder, fixtures):
    load = depickle.torch.load
    for name in ("0.18.0/fp8dyn_perrow.dotted.pt", "0.17.0/mxfp8_direct.bare.pt", "edge/plain_osd.pt"):
        path = converted(folder, fixtures, name)
        index = shards(folder / Path(name).stem, path)
        whole = load(path)["state_dict"]
        for source in (index, index.parent):
            found = load(source)["state_dict"]
            same({key: found[key] for key in whole}, whole)
            assert found.keys() == whole.keys()
        same(load(index, mmap=False)["state_dict"], found)
    text = index.read_text()
    index.write_text(text.replace("model-00002-of", "../model-00002-of"))
    raises(depickle.Refused, "beside it", load, index)
    index.write_text(text.replace("00002.safetensors", "00003.safetensors"))
    raises(OSError, "00003", load, index)
    weight_map = json.loads(text)["weight_map"]
    gone = weight_map.popitem()
    index.write_text(json.dumps({"weight_map": weight_map}))
    raises(depickle.Malformed, "does not account", load, index)
    index.write_text(json.dumps({"weight_map": {**weight_map, gone[0]: gone[1], "more": gone[1]}}))
    raises(depickle.Malformed, "where it is not", load, index)
    path = converted(folder, fixtures, "0.18.0/fp8dyn_perrow.dotted.pt", overwrite=True)
    key = "blk.0.attn.q.weight"
    other = shards(folder / "other", path, lambda metadata: {**metadata, key: metadata[key].replace("AUTO", "TORCH")})
    raises(depickle.Malformed, "what another file does not", load, other)
    raises(depickle.Refused, "expected one", load, folder)


def quantized(names, shape=(16, 32)):
    from torchao.quantization import Float8Tensor

    data = [torch.randn(shape).to(torch.float8_e4m3fn) for _ in names]
    return {
        name: Float8Tensor(qdata, torch.rand(shape[0], 1), block_size=[1, shape[1]], dtype=torch.bfloat16)
        for name, qdata in zip(names, data, strict=True)
    }


def check_names_that_torchao_loses(folder, fixtures):
    state_dict = quantized(["a.w", "a.w_x"]) | {"a._w_more": torch.ones(2), "x": torch.zeros(())}
    path = folder / "lost.safetensors"
    depickle.torch.save(state_dict, path)
    same(depickle.torch.load(path)["state_dict"], state_dict)


def check_save_equals_convert(folder, fixtures):
    for name in (FP8, "0.17.0/mixed_fp8_nvfp4.wrapped.pt", TIED, "0.13.0/mxfp8_cfg.wrapped.pt"):
        found = depickle.torch.load(fixtures / name)
        path = folder / "saved.safetensors"
        record = depickle.torch.save(
            found["state_dict"], path, format=found["format"], metadata=found["metadata"], overwrite=True
        )
        assert record.verified_bit_identical
        again = depickle.torch.load(path)
        same(again["state_dict"], found["state_dict"])
        assert (again["format"], again["metadata"]) == (found["format"], found["metadata"])
        stored = depickle.torch.load(converted(folder, fixtures, name, overwrite=True))
        same(again["state_dict"], stored["state_dict"])


def check_save_refuses(folder, fixtures):
    save, path = depickle.torch.save, folder / "refused.safetensors"
    raises(depickle.Refused, "meta tensor", save, {"a.w": torch.empty(2, device="meta")}, path)
    raises(depickle.Refused, "sparse", save, {"a.w": torch.eye(2).to_sparse()}, path)
    raises(depickle.Refused, "complex128", save, {"a.w": torch.zeros(2, dtype=torch.complex128)}, path)
    raises(depickle.Refused, "not a tensor", save, {"a.w": 3}, path)
    raises(depickle.Refused, "format tag", save, {"a.w": torch.zeros(2)}, path, format="mine")
    raises(depickle.Refused, "metadata.x", save, {"a.w": torch.zeros(2)}, path, metadata={"x": object()})
    raises(
        depickle.Refused, "no schema", save, {"a.w": torch.zeros(2).as_subclass(type("T", (torch.Tensor,), {}))}, path
    )
    raises(ValueError, ".safetensors", save, {"a.w": torch.zeros(2)}, folder / "model.pt")
    assert not path.exists()
    save({"a.w": torch.zeros(2)}, path)
    raises(depickle.Refused, "exists", save, {"a.w": torch.ones(2)}, path)
    assert save({"a.w": torch.zeros(2)}, path).skipped


def check_save_gathers(folder, fixtures):
    """Views, tied tensors, Parameters and lazy bits come back as what they show."""
    base = torch.randn(6, 4, dtype=torch.complex64)
    given = {
        "m.a": base.t()[1:],
        "m.b": base.conj(),
        "m.c": torch.nn.Parameter(base.real[:, ::2]),
        "m.d": base.imag,
        "m.e": base[:0],
    }
    depickle.torch.save(given, folder / "gathered.safetensors")
    found = depickle.torch.load(folder / "gathered.safetensors")["state_dict"]
    for name, tensor in given.items():
        assert torch.equal(found[name], tensor.detach().resolve_conj().resolve_neg()), name


def check_save_names_roots_and_ties(folder, fixtures):
    """With a tag names at the root get their prefix; tied tensors are written as copies and come back as one."""
    from safetensors import safe_open

    tied, tag = torch.randn(4, 4), "unsloth_prequant_transformer_state_dict_v1"
    given = {"pad": torch.ones(3), "a.w": tied, "b.w": tied, "c.w": tied.t(), "z": torch.zeros(())}
    for options, prefix in (({"format": tag, "metadata": {"scheme": "none"}}, "unsloth_root::"), ({}, "")):
        path = folder / f"roots{len(prefix)}.safetensors"
        depickle.torch.save(given, path, **options)
        with safe_open(path, framework="pt") as file:
            assert {f"{prefix}pad", f"{prefix}z", "a.w", "b.w", "c.w"} == set(file.keys())
            assert all(torch.equal(file.get_tensor(name), tied) for name in ("a.w", "b.w"))
        found = depickle.torch.load(path)["state_dict"]
        same(found, given)
        assert found["a.w"] is found["b.w"]


def check_save_is_all_or_nothing(folder, fixtures):
    """A failed proof leaves what was there before, and no other file."""
    from depickle import conversion

    path = folder / "model.safetensors"
    depickle.torch.save({"a.w": torch.zeros(2)}, path)
    before = path.read_bytes()
    honest = conversion.compare_jobs
    conversion.compare_jobs = lambda *_: [lambda _: ["a.w: differs"]]
    try:
        raises(depickle.Mismatch, "a.w: differs", depickle.torch.save, {"a.w": torch.ones(2)}, path, overwrite=True)
        raises(depickle.Mismatch, "a.w: differs", depickle.torch.save, {"a.w": torch.ones(2)}, folder / "n.safetensors")
    finally:
        conversion.compare_jobs = honest
    assert path.read_bytes() == before
    assert [item.name for item in folder.iterdir()] == [path.name]


def check_save_streams(folder, fixtures):
    """Memory does not grow by what is saved."""

    def high():
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024

    given = {"a.w": torch.ones(96, 1024, 1024, dtype=torch.uint8), "b.w": torch.ones(64, 64, 64).transpose(0, 2)}
    depickle.torch.save({"a.w": torch.ones(2)}, folder / "small.safetensors")
    Path("/proc/self/clear_refs").write_text("5")
    before = high()
    depickle.torch.save(given, folder / "large.safetensors")
    assert high() - before < 32


class Model(torch.nn.Module):
    """Quantised, plain, tied, and with a buffer that no file has."""

    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(32, 64, dtype=torch.bfloat16)
        self.inner = torch.nn.Linear(64, 48, dtype=torch.bfloat16)
        self.head = torch.nn.Linear(64, 32, bias=False, dtype=torch.bfloat16)
        self.head.weight = self.embed.weight
        self.register_buffer("steps", torch.tensor(3))
        self.register_buffer("freqs", torch.arange(4.0), persistent=False)


def check_load_into(folder, fixtures):
    model = Model()
    state_dict = model.state_dict() | quantized(["inner.weight"], (48, 64))
    path = folder / "model.safetensors"
    depickle.torch.save(state_dict, path)
    torch.save(state_dict, folder / "model.pt")
    for source in (path, folder / "model.pt"):
        with torch.device("meta"):
            empty = Model()
        raises(depickle.Refused, "freqs is on the meta device", depickle.torch.load_into, empty, source)
        empty.freqs = torch.arange(4.0)
        assert depickle.torch.load_into(empty, source) == ([], [])
        assert empty.head.weight is empty.embed.weight
        same({"w": empty.inner.weight.data}, {"w": state_dict["inner.weight"]})
        assert torch.equal(empty.embed.weight, model.embed.weight)
        assert empty.steps == 3
    more = Model()
    more.more = torch.nn.Linear(2, 2)
    raises(depickle.Refused, "more.weight", depickle.torch.load_into, more, path)
    assert depickle.torch.load_into(more, path, strict=False) == (["more.weight", "more.bias"], [])
    wrong = Model()
    wrong.inner = torch.nn.Linear(3, 3)
    raises(depickle.Refused, "does not fit the model", depickle.torch.load_into, wrong, path)


def check_many_weights(folder, fixtures):
    """Names of which each is a prefix of others, in a time that is theirs and not their square's."""
    import time

    names = [f"blocks.0.w{'x' * (i % 7)}_{i}" for i in range(4000)]
    depickle.torch.save(quantized(names, (4, 8)), folder / "many.safetensors")
    begun = time.process_time()
    found = depickle.torch.load(folder / "many.safetensors")["state_dict"]
    assert list(found) == names
    assert time.process_time() - begun < 10  # about half a second; torchao's own reader needs minutes


# --- without torchao ------------------------------------------------------------------------------------------------


def check_without_torchao(folder, fixtures):
    load = depickle.torch.load
    path = converted(folder, fixtures, FP8)
    for source in (path, fixtures / FP8):
        raises(
            depickle.Refused,
            "blk.0.attn.q.weight: is a Float8Tensor: rebuilding it needs torchao (pip install",
            load,
            source,
        )
        found = load(source, dequantize=True)["state_dict"]
        assert {type(tensor) for tensor in found.values()} == {torch.Tensor}
        assert found["blk.0.attn.q.weight"].dtype == torch.bfloat16
    assert load(converted(folder, fixtures, TIED))["state_dict"]
    raises(
        depickle.Refused,
        "--check-with torch needs torchao",
        depickle.convert,
        fixtures / FP8,
        folder,
        check_with="torch",
    )
    os.environ["UNSLOTH_PREQUANT_NATIVE_REBUILD"] = "0"
    raises(depickle.Refused, "no safetensors reader", load, path)
    del os.environ["UNSLOTH_PREQUANT_NATIVE_REBUILD"]


def run(check, job):
    folder = Path(job["folder"]) / check
    folder.mkdir(parents=True)
    try:
        globals()[check](folder, Path(job["fixtures"]))
    except Exception:  # noqa: BLE001 - reported
        return traceback.format_exc()
    return None


def main():
    job = json.load(sys.stdin)
    print(json.dumps({check: run(check, job) for check in job["checks"]}))


main()
