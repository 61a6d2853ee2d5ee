"""One table of element types: what torch, torch's storage classes and safetensors call each, and its width.

Source: the list in safetensors 0.8.0 (`tensor.rs`), its sort order as `save_file` shows it, and torch 2.13's
`torch.storage` typed storages. A type without a safetensors name can be recognised and refused by name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class DType:
    """An element type: `bits` wide in total, made of components of `component` bytes (for byte order)."""

    name: str  # torch's, without "torch."
    bits: int
    safetensors: str | None = None
    storage: str | None = None  # torch's typed storage class, where there is one
    component: int = 0
    packed: int = 1  # safetensors elements in one torch element: float4_e2m1fn_x2 holds two

    @property
    def itemsize(self) -> int:
        """Bytes of one torch element."""
        return self.bits // 8


def _row(
    name: str, bits: int, safetensors: str | None, storage: str | None = None, component: int = 0, packed: int = 1
) -> DType:
    return DType(name, bits, safetensors, storage, component or max(bits // 8, 1), packed)


# In the order in which safetensors lays tensors out.
DTYPES: Final[tuple[DType, ...]] = (
    _row("uint64", 64, "U64"),
    _row("int64", 64, "I64", "LongStorage"),
    _row("float64", 64, "F64", "DoubleStorage"),
    _row("complex64", 64, "C64", "ComplexFloatStorage", component=4),
    _row("float32", 32, "F32", "FloatStorage"),
    _row("uint32", 32, "U32"),
    _row("int32", 32, "I32", "IntStorage"),
    _row("bfloat16", 16, "BF16", "BFloat16Storage"),
    _row("float16", 16, "F16", "HalfStorage"),
    _row("uint16", 16, "U16"),
    _row("int16", 16, "I16", "ShortStorage"),
    _row("float8_e5m2fnuz", 8, "F8_E5M2FNUZ"),
    _row("float8_e4m3fnuz", 8, "F8_E4M3FNUZ"),
    _row("float8_e8m0fnu", 8, "F8_E8M0"),
    _row("float8_e4m3fn", 8, "F8_E4M3"),
    _row("float8_e5m2", 8, "F8_E5M2"),
    _row("int8", 8, "I8", "CharStorage"),
    _row("uint8", 8, "U8", "ByteStorage"),
    _row("float4_e2m1fn_x2", 8, "F4", packed=2),
    _row("bool", 8, "BOOL", "BoolStorage"),
    # torch saves these; safetensors cannot hold them
    _row("complex128", 128, None, "ComplexDoubleStorage", component=8),
    _row("complex32", 32, None, component=2),
    _row("bits8", 8, None),
    _row("bits16", 16, None),
    _row("bits1x8", 8, None),
    _row("bits2x4", 8, None),
    _row("bits4x2", 8, None),
    _row("qint8", 8, None, "QInt8Storage"),
    _row("quint8", 8, None, "QUInt8Storage"),
    _row("qint32", 32, None, "QInt32Storage"),
    _row("quint4x2", 8, None, "QUInt4x2Storage"),
    _row("quint2x4", 8, None, "QUInt2x4Storage"),
)

MAX_RANK: Final = 64  # dimensions that a torch tensor can have

BY_NAME: Final = {d.name: d for d in DTYPES}
BY_STORAGE: Final = {d.storage: d for d in DTYPES if d.storage}
BY_SAFETENSORS: Final = {d.safetensors: d for d in DTYPES if d.safetensors}
RANK: Final = {d.name: i for i, d in enumerate(DTYPES)}

# Types that only ever appear as a name in an attribute (`target_dtype=torch.int4`), never as a tensor's own.
NAME_ONLY: Final = frozenset(f"{sign}int{bits}" for sign in ("", "u") for bits in range(1, 8))
