"""What `unsloth_quant_layout` says of each scheme: how a person rebuilds every weight from its plain tensors without
torchao.

`M` is the module's name, `P` the parameter's (usually `weight`); N and K are the weight's rows and columns. Checked
against torchao 0.18.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_NIBBLES: Final = "element 2j in the low four bits of byte j, element 2j+1 in the high four"
_E2M1: Final = "a code is sign bit then e2m1: magnitudes 0, 0.5, 1, 1.5, 2, 3, 4, 6"
_BLOCKED: Final = (
    "where is_swizzled_scales is true the scales lie in blocks of 128 rows by 4 columns, zero padded, each block stored as 32 x 4 x 4: the "
    "scale of row r, column c of a block is at byte (r % 32) * 16 + (r // 32) * 4 + c of its 512, blocks in row-major order"
)

SCHEMES: Final[Mapping[str, Mapping[str, str]]] = {
    "int8": {
        "tensors": "M._P_qdata int8 [N, K]; M._P_scale floating, one per block of block_size (per row: [N, 1]); where present "
        "M._P_zero_point, one per block; M._P_act_pre_scale [K]; M._P_act_quant_scale and M._P_act_quant_zero_point for static activation",
        "dequant": "w = (qdata - zero_point) * scale, zero_point 0 where there is none, the product in float32, then cast to dtype; "
        "scale and zero_point repeated over their block",
        "activation": "act_quant_kwargs null: none (weight only). Else the input is quantised to int8 at run time, per row (PerRow) or per "
        "tensor, symmetric or asymmetric as mapping_type says; with act_quant_scale, by that scale. act_pre_scale multiplies the input first",
    },
    "fp8": {
        "tensors": "M._P_qdata float8 [N, K]; M._P_scale floating, one per block of block_size (per row: [N, 1]; per tensor: [1, 1])",
        "dequant": "w = qdata as float32 * scale as float32, scale repeated over its block, then cast to dtype",
        "activation": "act_quant_kwargs null: none (weight only). Else the input is quantised to float8_dtype at run time with the "
        "granularity named there; hp_value_lb, where not null, is a floor under its largest magnitude, hp_value_ub a cap",
    },
    "mxfp8": {
        "tensors": "M._P_qdata float8 [N, K]; M._P_scale float8_e8m0fnu, one per 32 elements of a row",
        "dequant": f"w = qdata * 2 ** (scale byte - 127), then cast to orig_dtype; scale byte 255 is NaN; {_BLOCKED}",
        "activation": "act_quant_kwargs null: none. Else the input is quantised to MX with the element type and block size named there",
    },
    "mxfp6": {
        "tensors": "M._P_qdata uint8 [N, K], one code a byte in the low six bits (elem_dtype fp6_e3m2 or fp6_e2m3: sign, exponent, mantissa); "
        "M._P_scale float8_e8m0fnu, one per 32 elements of a row",
        "dequant": f"w = value of the code * 2 ** (scale byte - 127), then cast to orig_dtype; {_BLOCKED}",
        "activation": "act_quant_kwargs null: none. Else the input is quantised to MX with the element type and block size named there",
    },
    "mxfp4": {
        "tensors": f"M._P_qdata uint8 [N, K/2], two codes a byte: {_NIBBLES}; M._P_scale float8_e8m0fnu, one per 32 elements of a row",
        "dequant": f"{_E2M1}; w = value of the code * 2 ** (scale byte - 127), then cast to orig_dtype; {_BLOCKED}",
        "activation": "act_quant_kwargs null: none. Else the input is quantised to MX with the element type and block size named there",
    },
    "nvfp4": {
        "tensors": f"M._P_qdata uint8 [N, K/2], two codes a byte: {_NIBBLES}; M._P_scale float8_e4m3fn, one per 16 elements of a row; where "
        "present M._P_per_tensor_scale float32 [] and M._P_act_per_tensor_scale",
        "dequant": f"{_E2M1}; w = value of the code * (scale as float32 * per_tensor_scale), 1 where there is none, then cast to orig_dtype; "
        f"{_BLOCKED}",
        "activation": "act_quant_kwargs null: none (weight only). Else the input is quantised to NVFP4 at run time, with a per-tensor scale "
        "from act_per_tensor_scale or, if use_dynamic_per_tensor_scale, from the input",
    },
    "int4": {
        "tensors": "Int4Tensor: M._P_qdata [N, K/2] bytes of two signed four-bit values, element 2j low; M._P_scale and M._P_zero_point "
        "[K/group, N]. Int4PlainInt32Tensor: M._P_qdata int32 [N, K/8]. Int4TilePackedTo4dTensor: M._P_qdata int32 in the tiled order of "
        "aten's _convert_weight_to_int4pack, M._P_scale_and_zero [K/group, N, 2]. group = block_size[1]; M._P_act_pre_scale [K] where present",
        "dequant": "Int4Tensor: w = q * scale + zero_point. Int4PlainInt32Tensor and Int4TilePackedTo4dTensor: as aten's int4 kernels of "
        "their device define it: they have no plain formula",
        "activation": "none, unless activation_dtype names float8: then the input is quantised to it per row at run time",
    },
    "intx": {
        "tensors": "M._P_qdata int8 [N, K], values in the range of target_dtype; M._P_scale floating and M._P_zero_point, one per block of "
        "block_size",
        "dequant": "w = (qdata - zero_point) * scale, scale and zero_point repeated over their block, then cast to dtype",
        "activation": "activation_quantization null: none (weight only); int8_asym_per_token: the input is quantised to int8, asymmetric, one "
        "scale and zero point a token, at run time",
    },
}
