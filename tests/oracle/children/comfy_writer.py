"""Weights of every class that has a ComfyUI twin, in the shapes and kinds that the fixtures lack, written by the
torchao that runs this.

In: `{"folder"}`. Out: the paths of the files, by name.
"""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path

import torch
from torchao.prototype.mx_formats.mx_tensor import MXTensor
from torchao.prototype.mx_formats.nvfp4_tensor import NVFP4Tensor
from torchao.quantization import Float8Tensor, Int8Tensor
from torchao.quantization.granularity import PerRow, PerTensor

warnings.simplefilter("ignore")
SHAPES = {"aligned": (256, 512), "tiles": (128, 64), "odd": (130, 96), "small": (17, 32)}


def weight(name, dtype=torch.bfloat16):
    torch.manual_seed(len(name))
    return torch.randn(SHAPES[name]).to(dtype) * torch.linspace(0.01, 3, SHAPES[name][0]).unsqueeze(1).to(dtype)


def int8(name, granularity, dtype, scale=None):
    found = Int8Tensor.from_hp(weight(name, dtype), granularity)
    if scale is not None:
        found.scale = found.scale.to(scale)
    return found


def float8(name, dtype, granularity=None):
    return Float8Tensor.from_hp(weight(name), float8_dtype=dtype, granularity=granularity or PerTensor())


def mx(name, swizzled):
    return MXTensor.to_mx(weight(name), torch.float8_e4m3fn, 32, is_swizzled_scales=swizzled)


def zero_blocks():
    """Blocks of zeros: torchao gives them the scale 2**-127, which ComfyUI reads as 0."""
    dense = weight("odd")
    dense[3] = 0
    dense[40, 32:64] = -0.0
    return MXTensor.to_mx(dense, torch.float8_e4m3fn, 32)


def nvfp4(name, swizzled, scaled, act=None):
    dense = weight(name)
    scale = dense.abs().max().float() / (448 * 6) if scaled else None
    return NVFP4Tensor.to_nvfp4(dense, per_tensor_scale=scale, act_per_tensor_scale=act, is_swizzled_scales=swizzled)


def files():
    yield (
        "int8",
        {
            f"{name}.{kind}.weight": int8(name, granularity, dtype)
            for name in SHAPES
            for kind, granularity in (("row", PerRow()), ("tensor", PerTensor()))
            for dtype in (torch.bfloat16,)
        }
        | {
            "half.weight": int8("odd", PerRow(), torch.float16),
            "single.weight": int8("odd", PerRow(), torch.float32),
            "wide.weight": int8("odd", PerRow(), torch.bfloat16, torch.float32),
            "narrow.weight": int8("odd", PerTensor(), torch.float16, torch.float16),
        },
    )
    yield (
        "float8",
        {
            f"{name}.{str(dtype)[13:]}.weight": float8(name, dtype)
            for name in SHAPES
            for dtype in (torch.float8_e4m3fn, torch.float8_e5m2)
        },
    )
    yield (
        "rows",
        {
            f"{name}.{str(dtype)[13:]}.weight": float8(name, dtype, PerRow())
            for name in SHAPES
            for dtype in (torch.float8_e4m3fn, torch.float8_e5m2)
        },
    )
    yield (
        "mxfp8",
        {
            f"{name}.{'swizzled' if swizzled else 'flat'}.weight": mx(name, swizzled)
            for name in SHAPES
            for swizzled in (False, True)
        }
        | {"zeros.weight": zero_blocks()},
    )
    yield (
        "nvfp4",
        {
            f"{name}.{'swizzled' if swizzled else 'flat'}.{'scaled' if scaled else 'bare'}.weight": nvfp4(
                name, swizzled, scaled
            )
            for name in SHAPES
            for swizzled in (False, True)
            for scaled in (False, True)
        }
        | {"static.weight": nvfp4("aligned", True, True, torch.tensor(0.0123))},
    )


folder = Path(json.load(sys.stdin)["folder"])
made = {}
for kind, weights in files():
    made[kind] = str(folder / f"made_{kind}.pt")
    torch.save(weights, made[kind])
print(json.dumps(made))
