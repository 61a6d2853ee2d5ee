"""[extra `torch`] Values of quantised weights, by formulas of our own that need no torchao.

Each gives the bits that `dequantize()` of torchao 0.18 gives on the same tensors: the same operations in the same
dtypes, in the same order. torchao has no such formula for its four-bit integer classes; they are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import torch

from ..attributes import data_of
from ..errors import Malformed, Refused
from ..schemas import Json
from .memory import TORCH_DTYPES

Parts = Mapping[str, torch.Tensor]
Attributes = Mapping[str, Json]

_FP4: Final = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_FP6: Final = {"fp6_e2m3": (2, 3), "fp6_e3m2": (3, 2)}  # exponent bits, mantissa bits


def dequantize(kind: str, parts: Parts, attributes: Attributes) -> torch.Tensor:
    """The values of a weight of a class of today, in the dtype that it stands for. Raises Refused without a formula."""
    if kind not in FORMULAS:
        raise Refused(f"is a {kind}, for which torchao has no formula to dequantize by")
    return FORMULAS[kind](parts, attributes)


def _dtype(attributes: Attributes, name: str) -> torch.dtype:
    return TORCH_DTYPES[str(data_of(attributes[name], "torch.dtype"))]


def _integer(parts: Parts, attributes: Attributes) -> torch.Tensor:
    """(q - zero point) * scale, each block with its own; int8 and intx."""
    out = _dtype(attributes, "dtype")
    qdata, scale, zero_point = parts["qdata"], parts["scale"], parts.get("zero_point")
    blocked: list[int] = []
    grid: list[int] = []
    for size, block in zip(qdata.shape, attributes["block_size"]):  # type: ignore[call-overload]
        blocked += [size // block, block]
        grid += [size // block, 1]
    values = qdata.reshape(blocked).to(out)
    if zero_point is not None:
        values = values - zero_point.reshape(grid).to(out)
    return (values * scale.reshape(grid)).reshape(qdata.shape).to(out)


def _float8(parts: Parts, attributes: Attributes) -> torch.Tensor:
    """float8 * scale in float32; a scale that does not broadcast is repeated over its block."""
    qdata, scale = parts["qdata"], parts["scale"]
    if scale.numel() != 1 and not all(a in {b, 1} for a, b in zip(scale.shape, qdata.shape)):
        for dim, (size, count) in enumerate(zip(qdata.shape, tuple(scale.shape))):
            scale = scale.repeat_interleave(size // count, dim=dim)
    return (qdata.to(torch.float32) * scale).to(_dtype(attributes, "dtype"))


def _halves(qdata: torch.Tensor) -> torch.Tensor:
    """Two fp4 values a byte, the even one in the low half, as float32."""
    table = torch.tensor([*_FP4, *(-value for value in _FP4)], dtype=torch.float32, device=qdata.device)
    codes = torch.stack([qdata & 15, qdata >> 4], dim=-1).to(torch.int32)
    return table[codes].reshape(*qdata.shape[:-1], qdata.shape[-1] * 2)


def _fp6_table(exponent_bits: int, mantissa_bits: int) -> list[float]:
    """The 64 values of a six-bit float without infinities: sign, exponent, mantissa."""
    bias, ones = 2 ** (exponent_bits - 1) - 1, 2**mantissa_bits
    values = []
    for code in range(32):
        exponent, mantissa = divmod(code, ones)
        values.append((mantissa + ones * (exponent > 0)) / ones * 2.0 ** (max(exponent, 1) - bias))
    return [*values, *(-value for value in values)]


def _sixes(qdata: torch.Tensor, elem: str) -> torch.Tensor:
    table = torch.tensor(_fp6_table(*_FP6[elem]), dtype=torch.float32, device=qdata.device)
    return table[qdata.to(torch.int32)]


def _unblocked(scale: torch.Tensor, shape: tuple[int, ...], block: int) -> torch.Tensor:
    """Scales out of the order of the hardware: tiles of 128 rows by 4, each stored as 32 by 4 by 4."""
    rows, columns = 1, shape[-1] // block
    for size in shape[:-1]:
        rows *= size
    down, across = -(-rows // 128), -(-columns // 4)
    tiles = scale.reshape(down, across, 32, 4, 4).permute(0, 3, 2, 1, 4)
    return tiles.reshape(down * 128, across * 4)[:rows, :columns].reshape(*shape[:-1], columns)


def _microscaled(parts: Parts, attributes: Attributes) -> torch.Tensor:
    """MX: value * 2**(scale - 127), both in the dtype of the result."""
    out, elem = _dtype(attributes, "orig_dtype"), attributes["elem_dtype"]
    qdata, scale, block = parts["qdata"], parts["scale"], attributes["block_size"]
    if isinstance(elem, str):
        values = _sixes(qdata, elem).to(out)
    elif data_of(elem, "torch.dtype") == "float4_e2m1fn_x2":
        values = _halves(qdata).to(out)
    else:
        values = qdata.to(out)
    if not isinstance(block, int):
        raise Malformed(f"block size {block} is not a number")
    exponents = scale.view(torch.uint8)
    if attributes["is_swizzled_scales"]:
        exponents = _unblocked(exponents, tuple(values.shape), block)
    shifted = exponents.to(torch.int16) - 127
    powers = torch.pow(torch.full_like(shifted, 2.0, dtype=torch.float32), shifted)
    powers = torch.where(exponents != 255, powers, float("nan"))
    return (values.reshape(-1, block) * powers.reshape(-1, 1).to(out)).reshape(values.shape)


def _nvfp4(parts: Parts, attributes: Attributes) -> torch.Tensor:
    """Value * (scale of the tensor * scale of the block), all in float32, rounded once."""
    values, scale, block = _halves(parts["qdata"]), parts["scale"], attributes["block_size"]
    if not isinstance(block, int):
        raise Malformed(f"block size {block} is not a number")
    if attributes["is_swizzled_scales"]:
        scale = _unblocked(scale.view(torch.uint8), tuple(values.shape), block).view(torch.float8_e4m3fn)
    factors = scale.to(torch.float32)
    if "per_tensor_scale" in parts:
        factors = parts["per_tensor_scale"] * factors
    shape = values.shape
    scaled = values.reshape(*shape[:-1], shape[-1] // block, block) * factors.unsqueeze(-1).to(torch.float32)
    return scaled.reshape(shape).to(_dtype(attributes, "orig_dtype"))


FORMULAS: Final[dict[str, Callable[[Parts, Attributes], torch.Tensor]]] = {
    "Int8Tensor": _integer,
    "IntxUnpackedToInt8Tensor": _integer,
    "Float8Tensor": _float8,
    "MXTensor": _microscaled,
    "NVFP4Tensor": _nvfp4,
}
