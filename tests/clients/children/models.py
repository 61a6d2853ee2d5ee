"""Small random models, and what is looked at in them: each weight's dequantised values, and what comes out."""

from __future__ import annotations

import hashlib
from typing import Any

import torch


def llama() -> torch.nn.Module:
    """Two layers, the head untied."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=96,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=False,
    )
    return LlamaForCausalLM._from_config(config, dtype=torch.bfloat16).eval()  # the rotary buffers stay float32


def flux() -> torch.nn.Module:
    """A transformer of diffusers with one block of each kind."""
    from diffusers import FluxTransformer2DModel

    torch.manual_seed(0)
    model = FluxTransformer2DModel(
        patch_size=1,
        in_channels=16,
        num_layers=1,
        num_single_layers=1,
        attention_head_dim=16,
        num_attention_heads=4,
        joint_attention_dim=32,
        pooled_projection_dim=32,
        axes_dims_rope=(4, 4, 8),
    )
    return model.to(torch.bfloat16).eval()


def zimage() -> torch.nn.Module:
    """A transformer of diffusers that has parameters at its root (`x_pad_token`)."""
    from diffusers import ZImageTransformer2DModel

    torch.manual_seed(0)
    model = ZImageTransformer2DModel(
        in_channels=4,
        dim=64,
        n_layers=1,
        n_refiner_layers=1,
        n_heads=4,
        n_kv_heads=4,
        cap_feat_dim=32,
        axes_dims=[4, 6, 6],
        axes_lens=[64, 32, 32],
    )
    torch.nn.init.normal_(model.x_pad_token)
    torch.nn.init.normal_(model.cap_pad_token)
    return model.to(torch.bfloat16).eval()


def output(model: torch.nn.Module) -> torch.Tensor:
    """What the model makes of one fixed input."""
    torch.manual_seed(1)
    with torch.no_grad():
        if type(model).__name__ == "LlamaForCausalLM":
            return model(torch.arange(1, 33).reshape(2, 16)).logits
        if type(model).__name__ == "ZImageTransformer2DModel":
            picture, caption = torch.randn(4, 1, 8, 8).bfloat16(), torch.randn(7, 32).bfloat16()
            return torch.stack(model([picture], torch.tensor([0.5]).bfloat16(), [caption]).sample)
        return model(
            hidden_states=torch.randn(1, 16, 16, dtype=torch.bfloat16),
            encoder_hidden_states=torch.randn(1, 8, 32, dtype=torch.bfloat16),
            pooled_projections=torch.randn(1, 32, dtype=torch.bfloat16),
            timestep=torch.tensor([0.5], dtype=torch.bfloat16),
            img_ids=torch.zeros(16, 3, dtype=torch.bfloat16),
            txt_ids=torch.zeros(8, 3, dtype=torch.bfloat16),
        ).sample


def values(tensors: dict[str, torch.Tensor]) -> dict[str, list[str]]:
    """Class, dtype and digest of the dequantised values of each tensor."""
    found = {}
    for name, tensor in tensors.items():
        inner = getattr(tensor, "original_weight_tensor", tensor)  # torchao's wrapper of version 1 has no dequantize
        plain = inner if type(inner) in (torch.Tensor, torch.nn.Parameter) else inner.dequantize()
        data = plain.detach().contiguous().view(torch.uint8).numpy().tobytes()
        found[name] = [type(tensor).__name__, str(plain.dtype), hashlib.sha256(data).hexdigest()]
    return found


def described(model: torch.nn.Module) -> dict[str, Any]:
    """The values of each weight, and the output's."""
    return {"weights": values(model.state_dict()), "output": output(model).float().flatten().tolist()}
