"""Make the benchmark's inputs with torch and torchao 0.17: checkpoints of random bytes in realistic shapes."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch
from torchao.dtypes.affine_quantized_tensor import AffineQuantizedTensor
from torchao.dtypes.uintx.plain_layout import PlainAQTTensorImpl
from torchao.dtypes.utils import PlainLayout
from torchao.float8.inference import Float8MMConfig
from torchao.quantization import Float8Tensor, PerRow
from torchao.quantization.linear_activation_quantized_tensor import LinearActivationQuantizedTensor
from torchao.quantization.quant_api import _int8_symm_per_token_reduced_range_quant
from torchao.quantization.quant_primitives import ZeroPointDomain
from torchao.quantization.quantize_.workflows.float8.float8_tensor import QuantizeTensorToFloat8Kwargs

RANDOM = np.random.default_rng(7)
DENOISER, TEXT_ENCODER = "unsloth_prequant_transformer_state_dict_v1", "unsloth_prequant_text_encoder_state_dict_v1"


def noise(*shape: int) -> torch.Tensor:
    """Random bytes; float8 stays finite with bit 3 of each half cleared."""
    count = int(np.prod(shape))
    return torch.from_numpy(np.frombuffer(RANDOM.bytes(count), np.uint8) & 0x77).reshape(shape)


def bf16(*shape: int) -> torch.Tensor:
    """Random bfloat16 of any value."""
    return noise(*shape[:-1], shape[-1] * 2).view(torch.bfloat16)


def int8_v1(rows: int, columns: int) -> torch.Tensor:
    """int8 with dynamic activations, as torchao up to 0.17 quantises it."""
    impl = PlainAQTTensorImpl(noise(rows, columns).view(torch.int8), bf16(rows), None, PlainLayout())
    shape = torch.Size((rows, columns))
    weight = AffineQuantizedTensor(
        impl, (1, columns), shape, zero_point_domain=ZeroPointDomain.NONE, dtype=torch.bfloat16
    )
    return LinearActivationQuantizedTensor(weight, _int8_symm_per_token_reduced_range_quant, {})


def float8(rows: int, columns: int) -> torch.Tensor:
    """float8 per row with dynamic activations."""
    return Float8Tensor(
        noise(rows, columns).view(torch.float8_e4m3fn),
        torch.rand(rows, 1) + 1e-3,
        block_size=[1, columns],
        mm_config=Float8MMConfig(use_fast_accum=True),
        act_quant_kwargs=QuantizeTensorToFloat8Kwargs(granularity=PerRow(), hp_value_lb=1e-12),
        dtype=torch.bfloat16,
    )


def denoiser(weight: object, gigabytes: float) -> dict[str, torch.Tensor]:
    """Blocks of six projections, with biases and norms, up to the size."""
    made: dict[str, torch.Tensor] = {"pos_embed": bf16(64, 3072)}
    for block in range(round(gigabytes * 1e9 / 113e6)):
        place = f"transformer_blocks.{block}."
        for name in ("attn.to_q", "attn.to_k", "attn.to_v", "attn.to_out.0"):
            made[f"{place}{name}.weight"] = weight(3072, 3072)  # type: ignore[operator]
            made[f"{place}{name}.bias"] = bf16(3072)
        made[f"{place}ff.net.0.proj.weight"] = weight(12288, 3072)  # type: ignore[operator]
        made[f"{place}ff.net.2.weight"] = weight(3072, 12288)  # type: ignore[operator]
        made[f"{place}attn.norm_q.weight"] = bf16(128)
    return made


def text_encoder(gigabytes: float) -> dict[str, torch.Tensor]:
    """Plain float8 projections, and a head tied to the embedding."""
    embedding = bf16(151936, 2048)
    made = {"model.embed_tokens.weight": embedding, "lm_head.weight": embedding}
    for layer in range(round((gigabytes * 1e9 - 622e6) / 84e6)):
        for name in ("q", "k", "v", "o", "gate"):
            made[f"model.layers.{layer}.{name}_proj.weight"] = noise(4096, 4096).view(torch.float8_e4m3fn)
    return made


def main(folder: Path) -> None:
    """Make what is not there yet."""
    kinds = {
        "int8-1g.pt": (DENOISER, "int8", lambda: denoiser(int8_v1, 1)),
        "int8-2g.pt": (DENOISER, "int8", lambda: denoiser(int8_v1, 2)),
        "int8-4g.pt": (DENOISER, "int8", lambda: denoiser(int8_v1, 4)),
        "fp8-4g.pt": (DENOISER, "fp8", lambda: denoiser(float8, 4)),
        "te-4g.pt": (TEXT_ENCODER, "fp8", lambda: text_encoder(4)),
        **{
            f"many-{count}.pt": (
                DENOISER,
                "int8",
                lambda count=count: {f"blocks.{i // 8}.l{i % 8}.weight": int8_v1(64, 64) for i in range(count)},
            )
            for count in (1_000, 10_000, 20_000, 100_000)
        },
        "transposed-1g.pt": (None, "", lambda: {"a.w": bf16(16384, 32768).t()}),
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, (tag, scheme, make) in kinds.items():
        path = folder / name
        if not path.exists():
            value = make()
            content = {"format": tag, "metadata": {"scheme": scheme}, "state_dict": value} if tag else value
            torch.save(content, path.with_suffix(".half"))
            path.with_suffix(".half").rename(path)
            print(path, path.stat().st_size, flush=True)


main(Path(sys.argv[1]))
