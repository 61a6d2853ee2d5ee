"""Twins through comfy-kitchen, the way ComfyUI's loader builds its layers, beside what torchao makes of their sources.

In: `{"pairs": [[source, twin], ...]}`. Out: per source the names of its quantised weights, and what is not equal.
Nothing here is depickle's. `comfy/ops.py` `_load_quantized_module`: the marker names the format, the parameters are
`weight`, `weight_scale`, for nvfp4 `weight_scale_2`, viewed or cast as the format says.
"""

from __future__ import annotations

import json
import sys
import warnings

import torch
import writer
from comfy_kitchen.tensor import QuantizedTensor, get_layout_class
from safetensors import safe_open

warnings.simplefilter("ignore")
LAYOUTS = {
    "int8_tensorwise": ("TensorWiseINT8Layout", torch.int8),
    "float8_e4m3fn": ("TensorCoreFP8Layout", torch.float8_e4m3fn),
    "float8_e5m2": ("TensorCoreFP8Layout", torch.float8_e5m2),
    "mxfp8": ("TensorCoreMXFP8Layout", torch.float8_e4m3fn),
    "nvfp4": ("TensorCoreNVFP4Layout", torch.uint8),
}
DIRECT = {"int8_tensorwise", "mxfp8"}  # these compute in float32 whatever is asked for


def layer(tensors, name, marker, shape, dtype):
    """The quantised weight of one layer, of `shape` and `dtype` for its users."""
    layout, storage = LAYOUTS[marker["format"]]
    weight, scale = tensors[f"{name}.weight"], tensors[f"{name}.weight_scale"]
    assert weight.dtype == storage, (weight.dtype, storage)
    given = {"orig_dtype": dtype, "orig_shape": tuple(shape)}
    if marker["format"] == "mxfp8":
        given["scale"] = scale.view(torch.float8_e8m0fnu)
    elif marker["format"] == "nvfp4":
        given |= {"scale": tensors[f"{name}.weight_scale_2"], "block_scale": scale.view(torch.float8_e4m3fn)}
    else:
        given["scale"] = scale
    kind = get_layout_class(layout)
    if hasattr(kind, "get_storage_shape"):  # what the kernels want, padding included
        assert tuple(weight.shape) == kind.get_storage_shape(tuple(shape)), (name, weight.shape, shape)
    return QuantizedTensor(weight, layout, kind.Params(**given))


def same(mine, theirs):
    mine, theirs = mine.contiguous(), theirs.contiguous()
    return (mine.dtype, mine.shape) == (theirs.dtype, theirs.shape) and torch.equal(
        mine.reshape(-1).view(torch.uint8), theirs.reshape(-1).view(torch.uint8)
    )


def dense(weight):
    """torchao's own values, of its own dtype. Up to 0.17 it rounded the scales of nvfp4 to the weight's dtype first,
    unless that was float32; today's does not."""
    weight = getattr(weight, "original_weight_tensor", weight)
    if type(weight).__name__ == "NVFP4Tensor":
        dtype = weight.dtype
        setattr(weight, "_orig_dtype" if hasattr(weight, "_orig_dtype") else "orig_dtype", torch.float32)
        return weight.to_dtype(dtype) if hasattr(weight, "to_dtype") else weight.dequantize(dtype)
    return weight.to_dtype(weight.dtype) if hasattr(weight, "to_dtype") else weight.dequantize()


def load(path):
    with writer.allow(path):
        loaded = torch.load(path, weights_only=True)
    return loaded.get("state_dict", loaded)


def compare(source, twin):
    found = {"quantised": [], "unequal": [], "formats": []}
    with safe_open(twin, "pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no dict
        table = json.loads(file.metadata().get("_quantization_metadata", '{"layers": {}}'))["layers"]
    weights = load(source)
    expected = set()
    for name, weight in weights.items():
        if type(weight) in (torch.Tensor, torch.nn.Parameter):
            expected.add(name)
            if not same(weight.detach(), tensors[name]):
                found["unequal"].append(name)
            continue
        layer_name = name.removesuffix(".weight")
        marker = json.loads(bytes(tensors[f"{layer_name}.comfy_quant"].tolist()))
        assert marker == table[layer_name], name
        expected |= {key for key in tensors if key.rpartition(".")[0] == layer_name and key != f"{layer_name}.bias"}
        theirs = dense(weight)
        for dtype in [torch.float32] + [theirs.dtype] * (marker["format"] in DIRECT):
            mine = layer(tensors, layer_name, marker, weight.shape, dtype).dequantize().to(theirs.dtype)
            if not same(mine, theirs):
                found["unequal"].append(f"{name} through {dtype}")
        found["quantised"].append(name)
        found["formats"].append(marker["format"])
    found["unequal"] += sorted(set(tensors) ^ expected)
    return found


def rounded(source, twin):
    """Per weight of float8 with a scale a row: whether its codes and their one scale are what torch makes of it."""
    found = {}
    with safe_open(twin, "pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no dict
    for name, weight in load(source).items():
        if type(weight).__name__ == "Float8Tensor":
            whole = weight.scale.float().max()
            codes = (weight.qdata.float() * weight.scale.float() / whole).to(weight.qdata.dtype)
            marker = json.loads(bytes(tensors[f"{name.removesuffix('.weight')}.comfy_quant"].tolist()))
            found[name] = (
                same(tensors[name], codes)
                and same(tensors[f"{name}_scale"], whole)
                and marker["depickle_requantized"] is True
                and layer(tensors, name.removesuffix(".weight"), marker, weight.shape, torch.float32) is not None
            )
    return found


def static_input(twin):
    """ComfyUI's `input_scale` is torchao's `act_per_tensor_scale`: the same activations come out of both."""
    import comfy_kitchen
    from torchao.prototype.mx_formats.nvfp4_tensor import NVFP4Tensor

    with safe_open(twin, "pt") as file:
        scale = file.get_tensor("static.input_scale")
    activation = torch.randn(128, 64, dtype=torch.bfloat16)
    theirs = NVFP4Tensor.to_nvfp4(activation, per_tensor_scale=scale, is_swizzled_scales=True)
    qdata, blocks = comfy_kitchen.quantize_nvfp4(activation, scale)
    swapped = (theirs.qdata << 4) | (theirs.qdata >> 4)
    return same(qdata, swapped) and same(blocks.reshape(-1), theirs.scale.reshape(-1))


if __name__ == "__main__":
    job = json.load(sys.stdin)
    result = {source: compare(source, twin) for source, twin in job["pairs"]}
    if "static" in job:
        result["static"] = static_input(job["static"])
        result["rounded"] = {source: rounded(source, twin) for source, twin in job["rounded"]}
    print(json.dumps(result))
