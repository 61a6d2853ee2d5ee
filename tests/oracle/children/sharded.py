"""Checkpoints in several files: those that transformers and diffusers write of quantised models, and depickle's own.

In: `{"folder": ..., "checks": [...]}`. Out: per check null, or the traceback of its failure.
"""

from __future__ import annotations

import json
import logging
import sys
import traceback
import warnings
from pathlib import Path

import describe
import torch

warnings.simplefilter("ignore")
logging.disable(logging.WARNING)

from accelerate import init_empty_weights  # noqa: E402
from torchao.quantization import Float8WeightOnlyConfig, Int8DynamicActivationInt8WeightConfig, quantize_  # noqa: E402
from transformers import LlamaConfig, LlamaForCausalLM  # noqa: E402
from transformers import TorchAoConfig as TransformersConfig  # noqa: E402

import depickle  # noqa: E402
import depickle.cli  # noqa: E402
import depickle.torch  # noqa: E402

SIZES = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "vocab_size": 96}
CONFIG = LlamaConfig(**SIZES, num_attention_heads=4, num_key_value_heads=2, tie_word_embeddings=False)


def same(mine, theirs):
    assert set(mine) == set(theirs)
    for name, tensor in mine.items():
        assert describe.describe(tensor) == describe.describe(theirs[name].detach()), name


def files(folder):
    return sorted(folder.glob("*.safetensors"))


def check_transformers(folder):
    """What `save_pretrained` writes of a model that transformers quantised."""
    LlamaForCausalLM(CONFIG).to(torch.bfloat16).save_pretrained(folder / "dense")
    config = TransformersConfig(quant_type=Int8DynamicActivationInt8WeightConfig())
    model = LlamaForCausalLM.from_pretrained(folder / "dense", dtype=torch.bfloat16, quantization_config=config)
    model.save_pretrained(folder / "out", max_shard_size="100KB")
    assert len(files(folder / "out")) >= 3
    for path in (folder / "out", folder / "out" / "model.safetensors.index.json"):
        found = depickle.torch.load(path)["state_dict"]
        same(found, model.state_dict())
    assert "Int8Tensor" in {type(tensor).__name__ for tensor in found.values()}
    with init_empty_weights():
        mine = LlamaForCausalLM(CONFIG).eval()
    assert depickle.torch.load_into(mine, folder / "out") == ([], [])
    tokens = torch.arange(12).reshape(1, 12)
    with torch.no_grad():
        assert torch.equal(mine(tokens).logits, model.eval()(tokens).logits)


def check_diffusers(folder):
    """The same of diffusers, with names at the root."""
    from diffusers import TorchAoConfig, ZImageTransformer2DModel

    sizes = {"dim": 96, "n_layers": 2, "n_refiner_layers": 1, "n_heads": 4, "n_kv_heads": 4, "cap_feat_dim": 64}
    dense = ZImageTransformer2DModel(**sizes, in_channels=4, axes_dims=[8, 8, 8], axes_lens=[64, 32, 32])
    for parameter in dense._parameters.values():
        torch.nn.init.normal_(parameter)
    dense.to(torch.bfloat16).save_pretrained(folder / "dense")
    config = TorchAoConfig(Float8WeightOnlyConfig())
    model = ZImageTransformer2DModel.from_pretrained(
        folder / "dense", torch_dtype=torch.bfloat16, quantization_config=config
    )
    model.save_pretrained(folder / "out", max_shard_size="200KB")
    assert len(files(folder / "out")) >= 3
    found = depickle.torch.load(folder / "out")["state_dict"]
    same(found, model.state_dict())
    assert {"x_pad_token", "cap_pad_token"} < set(found)
    assert "Float8Tensor" in {type(tensor).__name__ for tensor in found.values()}


def check_our_own(folder):
    """Pickled shards, converted as a folder to several files again: the same names, objects, order and ties."""
    model = LlamaForCausalLM(CONFIG).to(torch.bfloat16)
    quantize_(model, Float8WeightOnlyConfig(), lambda module, name: "mlp" in name and hasattr(module, "weight"))
    state_dict = model.state_dict()
    source = folder / "source"
    source.mkdir()
    names, weight_map = list(state_dict), {}
    for number in (1, 2):
        file = f"pytorch_model-0000{number}-of-00002.bin"
        part = names[(number - 1) * 10 : number * 10 if number == 1 else None]
        torch.save({name: state_dict[name] for name in part}, source / file)
        weight_map |= dict.fromkeys(part, file)
    index = {"metadata": {"total_size": 1}, "weight_map": weight_map}
    (source / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    (source / "config.json").write_text(CONFIG.to_json_string())
    options = ["--out-dir", str(folder / "made"), "--max-shard-size", "150KB", "--quiet"]
    assert depickle.cli.main(["convert", str(source), *options]) == 0
    made = next(path.parent for path in sorted((folder / "made").rglob("*.safetensors.index.json")))
    assert len(files(made)) >= 3
    same(depickle.torch.load(made)["state_dict"], state_dict)
    one = files(made)[1]
    raw = one.read_bytes()
    one.write_bytes(raw[:60] + bytes([raw[60] ^ 1]) + raw[61:])
    try:
        depickle.torch.load(made)
    except depickle.Malformed as error:
        assert one.name in str(error), error  # noqa: PT017
    else:
        raise AssertionError("a turned bit in a header was not seen")


def check_tagged(folder):
    """A pre-quantised checkpoint is one file: cut by somebody, it is refused, and says so."""
    from safetensors import safe_open
    from safetensors.torch import save_file

    tag = "unsloth_prequant_transformer_state_dict_v1"
    given = {"a.b.weight": torch.ones(2, 2), "a.c.weight": torch.ones(2)}
    record = depickle.torch.save(given, folder / "whole.safetensors", format=tag)
    with safe_open(record.dst, framework="pt") as file:
        metadata = file.metadata()
    for number, (name, tensor) in enumerate(given.items(), 1):
        save_file({name: tensor}, folder / f"cut-{number}.safetensors", metadata)
    index = folder / "cut.safetensors.index.json"
    weight_map = {name: f"cut-{number}.safetensors" for number, name in enumerate(given, 1)}
    index.write_text(json.dumps({"weight_map": weight_map}))
    try:
        depickle.torch.load(index)
    except depickle.Error as error:
        said = str(error)
    assert "unsloth_format" in said or "header" in said, said


def run(check, folder):
    place = Path(folder) / check
    place.mkdir(parents=True)
    try:
        globals()[check](place)
    except Exception:  # noqa: BLE001 - reported
        return traceback.format_exc()
    return None


def main():
    job = json.load(sys.stdin)
    print(json.dumps({check: run(check, job["folder"]) for check in job["checks"]}))


main()
