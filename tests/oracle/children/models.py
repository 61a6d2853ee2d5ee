"""Under one torchao release: real models, quantised and saved as pickles; what they compute from the pickle, and from
what `depickle.torch.load_into` makes of its conversion.

In: `{"folder": ..., "recipes": [...]}`. Out: by model and recipe `{"outcome", "written", ...}`: `equal` (outputs, bit
for bit), `close` (and by how much they differ, relative to the largest), or `refused` (and the words).
"""

from __future__ import annotations

import importlib
import json
import logging
import sys
import warnings
from pathlib import Path

import torch

warnings.simplefilter("ignore")
logging.disable(logging.WARNING)

from accelerate import init_empty_weights  # noqa: E402

import depickle  # noqa: E402
import depickle.torch  # noqa: E402

TRANSFORMER = "unsloth_prequant_transformer_state_dict_v1"


# --- models: how each is made, what it is given, what it gives ------------------------------------------------------


def llama():
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "vocab_size": 96}
    config = LlamaConfig(**sizes, num_attention_heads=4, num_key_value_heads=2, tie_word_embeddings=True)
    return LlamaForCausalLM(config)


def t5():
    from transformers import T5Config, T5EncoderModel

    return T5EncoderModel(T5Config(d_model=128, d_kv=32, d_ff=256, num_layers=2, num_heads=4, vocab_size=96))


def zimage():
    from diffusers import ZImageTransformer2DModel

    sizes = {"dim": 96, "n_layers": 2, "n_refiner_layers": 1, "n_heads": 4, "n_kv_heads": 4, "cap_feat_dim": 64}
    return ZImageTransformer2DModel(**sizes, in_channels=4, axes_dims=[8, 8, 8], axes_lens=[64, 32, 32])


def tokens(model):
    return (model(torch.arange(24).reshape(2, 12) * 5 % 96)[0],)


def picture(model):
    torch.manual_seed(5)
    noise, words = torch.randn(4, 1, 8, 8).bfloat16(), torch.randn(10, 64).bfloat16()
    return tuple(model([noise], torch.tensor([0.4]).bfloat16(), [words], return_dict=False)[0])


MODELS = {"llama": (llama, tokens, None), "t5": (t5, tokens, None), "zimage": (zimage, picture, TRANSFORMER)}
# Linear layers that are quantised: those of the blocks.
BLOCKS = ("layers.", "block.", "refiner.")


# --- recipes: configurations of quantize_, by names of ours ---------------------------------------------------------


def named(place, name, **options):
    return getattr(importlib.import_module(f"torchao.{place}"), name)(**options)


def config(name, **options):
    return lambda: named("quantization", name, **options)


def per_row(**options):
    """Float8 of weights and activations, each row with its own scale."""
    rows = named("quantization", "PerRow")
    return lambda: named("quantization", "Float8DynamicActivationFloat8WeightConfig", granularity=rows, **options)


def emulated_mx():
    """What MX computes without its hardware, by its older and its newer name."""
    try:
        kernel = importlib.import_module("torchao.quantization.quantize_.common").KernelPreference.EMULATED
        return named("prototype.mx_formats", "MXDynamicActivationMXWeightConfig", kernel_preference=kernel)
    except AttributeError:
        kernel = importlib.import_module("torchao.prototype.mx_formats").MXGemmKernelChoice.EMULATED
        return named("prototype.mx_formats", "MXFPInferenceConfig", gemm_kernel_choice=kernel)


RECIPES = {
    "int8 dynamic": config("Int8DynamicActivationInt8WeightConfig"),
    "int8 dynamic v1": config("Int8DynamicActivationInt8WeightConfig", version=1),
    "int8 dynamic v2": config("Int8DynamicActivationInt8WeightConfig", version=2),
    "int8 weight only": config("Int8WeightOnlyConfig"),
    "int8 weight only v1": config("Int8WeightOnlyConfig", version=1),
    "int8 weight only v2": config("Int8WeightOnlyConfig", version=2),
    "int8 dynamic int4": config("Int8DynamicActivationInt4WeightConfig"),
    "fp8 dynamic v1": per_row(version=1),
    "fp8 dynamic v2": per_row(version=2),
    "fp8 weight only v1": config("Float8WeightOnlyConfig", version=1),
    "fp8 weight only v2": config("Float8WeightOnlyConfig", version=2),
    "intx dynamic": config("Int8DynamicActivationIntxWeightConfig", version=2),
    "intx weight only": config("IntxWeightOnlyConfig", version=2),
    "mxfp8 emulated": emulated_mx,
    "nvfp4 weight only": lambda: named("prototype.mx_formats", "NVFP4WeightOnlyConfig"),
}


def quantise(model, recipe):
    """Quantise the layers of the blocks. float8 asks for hardware, although the CPU computes the same."""
    from torchao.quantization import quantize_

    for place in ("quantization.quant_api", "float8.inference"):
        importlib.import_module(f"torchao.{place}").is_MI300 = lambda: True

    def wanted(module, name):
        return isinstance(module, torch.nn.Linear) and any(block in f"{name}." for block in BLOCKS)

    quantize_(model, RECIPES[recipe](), filter_fn=wanted)


# --- one model ------------------------------------------------------------------------------------------------------


def empty(make):
    """A model of meta parameters; what its constructor computes (rotary frequencies) is real."""
    with init_empty_weights():
        return make().to(torch.bfloat16).eval()


def unpickled(path, make):
    """The model that loads the pickle, with torch's own reader and the release that wrote it."""
    found = []
    for name in torch.serialization.get_unsafe_globals_in_checkpoint(path):
        module, _, member = name.rpartition(".")
        assert module.split(".")[0] in ("torch", "torchao"), name
        found.append((getattr(importlib.import_module(module), member), name))
    with torch.serialization.safe_globals(found):
        loaded = torch.load(path, weights_only=True)
    model = empty(make)
    model.load_state_dict(loaded.get("state_dict", loaded), assign=True)
    return model


def differ(mine, theirs):
    """The largest difference, relative to the largest value; 0 only for equal bits."""
    if all(torch.equal(a.view(torch.uint8), b.view(torch.uint8)) for a, b in zip(mine, theirs, strict=True)):
        return 0.0
    pairs = [(a.float(), b.float()) for a, b in zip(mine, theirs, strict=True)]
    return max(float((a - b).abs().max() / b.abs().max()) for a, b in pairs)


def compute(folder, name, recipe):
    make, forward, tag = MODELS[name]
    torch.manual_seed(3)
    model = make().to(torch.bfloat16).eval()
    for parameter in model._parameters.values():  # at the root: diffusers leaves them as the memory was
        torch.nn.init.normal_(parameter)
    quantise(model, recipe)
    state_dict = model.state_dict()
    classes = sorted({type(value).__name__ for value in state_dict.values()} - {"Tensor"})
    path = folder / f"{name} {recipe}.pt"
    scheme = recipe.partition(" ")[0]
    content = state_dict if tag is None else {"format": tag, "metadata": {"scheme": scheme}, "state_dict": state_dict}
    torch.save(content, path)
    theirs = forward(unpickled(path, make))
    assert all(value.isfinite().all() for value in theirs)
    mine = empty(make)
    try:
        depickle.torch.load_into(mine, depickle.convert(path, folder).dst)
    except depickle.Refused as error:
        return {"outcome": "refused", "why": error.message, "written": classes}
    found = differ(forward(mine), theirs)
    return {"outcome": "close" if found else "equal", "difference": found, "written": classes}


def main():
    job = json.load(sys.stdin)
    torch.set_grad_enabled(False)
    folder = Path(job["folder"])
    print(json.dumps({name: {recipe: compute(folder, name, recipe) for recipe in job["recipes"]} for name in MODELS}))


main()
