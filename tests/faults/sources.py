"""Checkpoints of any size, without torch: a denoiser with plain and quantised weights, one of them to be gathered."""

from __future__ import annotations

import random
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # `python -m tests.faults.kills` has no conftest

import assemble as a

TAG = "unsloth_prequant_transformer_state_dict_v1"
_PIECE = 4 * 1024 * 1024


def parts(nbytes: int, seed: int = 1) -> tuple[bytes, dict[str, bytes]]:
    """The pickle and the storages of a checkpoint with about `nbytes` of tensors beside its small ones."""
    noise = random.Random(seed)
    items = {
        "blk.0.attn.q.weight": a.int8_v1("q", 16, 64),
        "blk.0.turned.weight": a.tensor("t", "FloatStorage", 4096, (64, 64), (1, 64)),
        "blk.0.norm.weight": a.tensor("n", "BFloat16Storage", 64, (64,)),
        "x_pad_token": a.tensor("x", "FloatStorage", 16, (1, 16)),
    }
    storages = {
        "q.d": noise.randbytes(16 * 64),
        "q.s": b"\x80\x3f" * 16,
        "t": noise.randbytes(4 * 4096),
        "n": noise.randbytes(2 * 64),
        "x": noise.randbytes(4 * 16),
    }
    for number in range(-(-nbytes // _PIECE)):
        count = min(_PIECE, nbytes - number * _PIECE)
        items[f"blk.{number}.mlp.weight"] = a.tensor(f"m{number}", "ByteStorage", count, (count,))
        storages[f"m{number}"] = noise.randbytes(count)
    return a.checkpoint(TAG, {"scheme": "int8", "seed": seed}, items), storages


def write(path: Path, nbytes: int, seed: int = 1) -> Path:
    """Write a source of about `nbytes`; another seed makes another content of the same size."""
    path.write_bytes(a.torch_file(*parts(nbytes, seed)))
    return path
