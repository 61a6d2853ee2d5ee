"""THE table of weight classes: one row per torchao tensor subclass, and the values that may stand in their attributes.

Pure data, to be checked against torchao side by side. A row lists a class's parts (inner tensors) and attributes in
the order in which torchao 0.18's `flatten_tensor_state_dict` writes them (optional ones first), under 0.18's names,
with the names that earlier releases pickled (`was`). `modules` are the places that pickles name it by. How a row is
applied is in `weights.py`; the rules named in `lift` (a class of an older release to one of today's) are functions
of `lift.py`.

Sources: torchao 0.7.0 to 0.18.0, `tensor_data_names`, `tensor_attribute_names`, their optional kin, and real files
of each.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from .dtypes import BY_NAME

Json = object  # None, bool, int, float, str, list or dict of these: what json.loads gives


@dataclass(frozen=True, slots=True)
class Part:
    """An inner tensor: its name, the safe dtypes it may have (empty: any), and whether a weight may lack it."""

    name: str
    dtypes: frozenset[str] = frozenset()
    optional: bool = False
    was: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Attribute:
    """A field of the class that is no tensor.

    `default` is what a file without it means (REQUIRED: it must be there); `outer` takes it from the wrapper (`dtype`
    or `shape`) instead of the state. `inert` fields are left out of a file when they have their default, since older
    releases do not know them.
    """

    name: str
    kind: str  # a name of `attributes.KINDS`
    default: Json = "required"
    was: tuple[str, ...] = ()
    outer: str | None = None
    inert: bool = False


@dataclass(frozen=True, slots=True)
class Schema:
    """One weight class. `flattened`: torchao's own safetensors support knows it, from that release on."""

    name: str
    modules: tuple[str, ...]
    seen: str  # releases whose files were read
    scheme: str
    parts: tuple[Part, ...] = ()
    attributes: tuple[Attribute, ...] = ()
    flattened: str | None = None
    lift: str | None = None
    check: str | None = None


@dataclass(frozen=True, slots=True)
class Enum:
    """An enumeration: pickles hold a member's value (or its name, through getattr), files its name."""

    name: str
    modules: tuple[str, ...]
    members: tuple[tuple[str, str | int], ...]
    renamed: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Record:
    """A dataclass or NamedTuple that serves as an attribute: its fields in order, with their defaults."""

    name: str
    modules: tuple[str, ...]
    fields: tuple[Attribute, ...] = ()
    lift: str | None = None


REQUIRED: Final = "required"
FLOATING: Final = frozenset({"float32", "bfloat16", "float16", "float64"})
_FP8: Final = frozenset({"float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"})
_ZEROS: Final = FLOATING | {"int8", "uint8", "int16", "int32", "int64"}  # a zero point's dtypes
_I8: Final = frozenset({"int8"})
_U8: Final = frozenset({"uint8"})
_WORKFLOWS: Final = "torchao.quantization.quantize_.workflows"
_MX: Final = "torchao.prototype.mx_formats"

ENUMS: Final[tuple[Enum, ...]] = (
    Enum(
        "KernelPreference",
        ("torchao.quantization.quantize_.common.kernel_preference",),
        (
            ("AUTO", "auto"),
            ("TORCH", "torch"),
            ("MSLK", "mslk"),
            ("EMULATED", "emulated"),
            ("TRITON", "triton"),
            ("FBGEMM", "fbgemm"),
        ),
        renamed=(("FBGEMM", "MSLK"),),  # 0.16
    ),
    Enum(
        "MappingType",
        ("torchao.quantization.quant_primitives",),
        (("SYMMETRIC", 1), ("SYMMETRIC_NO_CLIPPING_ERR", 2), ("ASYMMETRIC", 3)),
    ),
    Enum(
        "ScaleCalculationMode",
        (f"{_MX}.config", f"{_MX}.mx_tensor"),
        (("FLOOR", "floor"), ("RCEIL", "rceil"), ("CEIL", "ceil"), ("EVEN", "even")),
    ),
    Enum("ZeroPointDomain", ("torchao.quantization.quant_primitives",), (("INT", 1), ("FLOAT", 2), ("NONE", 3))),
    Enum(
        "MXGemmKernelChoice",
        (f"{_MX}.config",),
        (("EMULATED", "emulated"), ("CUTLASS", "cutlass"), ("CUBLAS", "cublas")),
    ),
    Enum(
        "IntxUnpackedToInt8TensorActivationQuantization",
        (f"{_WORKFLOWS}.intx.intx_unpacked_to_int8_tensor",),
        (("INT8_ASYM_PER_TOKEN", "int8_asym_per_token"),),
    ),
    Enum("NVFP4MMConfig", (f"{_MX}.nvfp4_tensor",), (("DYNAMIC", "dynamic"), ("WEIGHT_ONLY", "weight_only"))),
    Enum(
        "IntxPackingFormat",
        (f"{_WORKFLOWS}.intx.intx_packing_format",),
        (
            ("UNPACKED_TO_INT8", "unpacked_to_int8"),
            ("OPAQUE_ATEN_KLEIDIAI", "opaque_aten_kleidiai"),
            ("OPAQUE_TORCHAO_AUTO", "opaque_torchao_auto"),
            ("OPAQUE_TORCHAO_KLEIDIAI", "opaque_torchao_kleidiai"),
            ("OPAQUE_TORCHAO_LOWBIT", "opaque_torchao_lowbit"),
        ),
    ),
)

RECORDS: Final[tuple[Record, ...]] = (
    Record("PerRow", ("torchao.quantization.granularity",), (Attribute("dim", "int", -1),)),
    Record("PerTensor", ("torchao.quantization.granularity",)),
    Record("PerGroup", ("torchao.quantization.granularity",), (Attribute("group_size", "int"),)),
    Record("PerBlock", ("torchao.quantization.granularity",), (Attribute("block_size", "ints"),)),
    Record("PerAxis", ("torchao.quantization.granularity",), (Attribute("axis", "int"),)),
    Record("PerToken", ("torchao.quantization.granularity",), (Attribute("dim", "int", -1),)),
    Record(
        "Float8MMConfig",
        ("torchao.float8.inference",),
        (
            Attribute("emulate", "bool", False),
            Attribute("use_fast_accum", "bool", False),
            Attribute("pad_inner_dim", "bool", False),
        ),
    ),
    Record(
        "QuantizeTensorToFloat8Kwargs",
        (f"{_WORKFLOWS}.float8.float8_tensor", "torchao.quantization"),
        (
            Attribute("float8_dtype", "dtype", {"_type": "torch.dtype", "_data": "float8_e4m3fn"}),
            Attribute("granularity", "value", {"_type": "PerRow", "_data": {"dim": -1}}),
            Attribute("mm_config", "value", None),
            Attribute("hp_value_lb", "number", None),
            Attribute("hp_value_ub", "number", None),
            Attribute("kernel_preference", "value", {"_type": "KernelPreference", "_data": "AUTO"}),
        ),
    ),
    Record(
        "QuantizeTensorToInt8Kwargs",
        (f"{_WORKFLOWS}.int8.int8_tensor", "torchao.quantization"),
        (
            Attribute("granularity", "value"),
            Attribute("mapping_type", "value", {"_type": "MappingType", "_data": "SYMMETRIC"}),
            Attribute("reduce_range", "bool", False, inert=True),  # 0.18
        ),
    ),
    Record(
        "QuantizeTensorToMXKwargs",
        (f"{_MX}.mx_tensor",),
        (
            Attribute("elem_dtype", "value", {"_type": "torch.dtype", "_data": "float8_e4m3fn"}),
            Attribute("block_size", "int", 32),
            Attribute("scaling_mode", "value", {"_type": "ScaleCalculationMode", "_data": "FLOOR"}),
            Attribute("kernel_preference", "value", {"_type": "KernelPreference", "_data": "EMULATED"}),
            Attribute("is_swizzled_scales", "bool", False),
        ),
        lift="mx_kwargs",
    ),
    Record(
        "QuantizeTensorToNVFP4Kwargs",
        (f"{_MX}.nvfp4_tensor",),
        (
            Attribute("block_size", "int", 16),
            Attribute("is_swizzled_scales", "bool", False),
            Attribute("use_triton_kernel", "bool", False),
            Attribute("use_dynamic_per_tensor_scale", "bool", False),
        ),
    ),
    # layouts of the AffineQuantizedTensor family
    Record("PlainLayout", ("torchao.dtypes.utils", "torchao.dtypes.affine_quantized_tensor")),
    Record("QDQLayout", ("torchao.dtypes.uintx.q_dq_layout",)),
    Record("Int4CPULayout", ("torchao.dtypes.uintx.int4_cpu_layout", "torchao.dtypes.uintx.tensor_core_tiled_layout")),
    Record(
        "TensorCoreTiledLayout",
        ("torchao.dtypes.uintx.tensor_core_tiled_layout", "torchao.dtypes.affine_quantized_tensor"),
        (Attribute("inner_k_tiles", "int", 8),),
    ),
    Record(
        "Float8Layout",
        ("torchao.dtypes.floatx.float8_layout", "torchao.dtypes.floatx"),
        (Attribute("mm_config", "value", None),),
    ),
    Record(
        "UintxLayout",
        ("torchao.dtypes.uintx.uintx_layout", "torchao.prototype.dtypes.uintx.uintx_layout"),
        (Attribute("dtype", "dtype"), Attribute("pack_dim", "int", -1)),
    ),
)

# Functions that v1 files name for the quantisation of activations. They are names here, compared and never called.
FUNCTIONS: Final = frozenset(
    {
        *(
            f"torchao.quantization.quant_api.{name}"
            for name in (
                "_int8_symm_per_token_reduced_range_quant",
                "_int8_symm_per_token_reduced_range_quant_noop_decode",
                "_int8_symm_per_token_reduced_range_quant_cutlass",
                "_int8_symm_per_token_quant",
                "_int8_asymm_per_token_quant",
                "_uint8_asymm_per_token_quant",
                "_int8_symm_cutlass_quant",
                "_int4_symm_cutlass_quant",
                "_input_activation_quant_func_fp8",
                "_float8_cutlass_quant",
            )
        ),
        f"{_MX}.mx_subclass._input_activation_quant_func_mxfp",
    }
)

_BLOCK: Final = Attribute("block_size", "ints")
_DTYPE: Final = Attribute("dtype", "dtype", outer="dtype")
_SHAPE: Final = Attribute("shape", "ints", outer="shape")
_TORCHAO: Final = "torchao.quantization"

CURRENT: Final[tuple[Schema, ...]] = (
    Schema(
        "Float8Tensor",
        (_TORCHAO, f"{_WORKFLOWS}.float8.float8_tensor", f"{_WORKFLOWS}"),
        seen="0.13 to 0.18",
        scheme="fp8",
        flattened="0.14",
        parts=(Part("qdata", _FP8), Part("scale", FLOATING)),
        attributes=(
            Attribute("block_size", "ints"),
            Attribute("mm_config", "value", None),
            Attribute("act_quant_kwargs", "value", None),
            Attribute("kernel_preference", "value", {"_type": "KernelPreference", "_data": "AUTO"}),
            _DTYPE,
        ),
        check="blocks",
        lift="float8",
    ),
    Schema(
        "Int8Tensor",
        (_TORCHAO, f"{_WORKFLOWS}.int8.int8_tensor", f"{_WORKFLOWS}"),
        seen="0.15 to 0.18",
        scheme="int8",
        flattened="0.16",
        parts=(
            Part("zero_point", _ZEROS, optional=True),
            Part("act_quant_scale", FLOATING, optional=True),
            Part("act_quant_zero_point", _ZEROS, optional=True),
            Part("act_pre_scale", FLOATING, optional=True),
            Part("qdata", _I8),
            Part("scale", FLOATING),
        ),
        attributes=(
            Attribute("act_quant_kwargs", "value", None),
            Attribute("reduce_range", "bool", False, inert=True),  # 0.18
            _BLOCK,
            _DTYPE,
        ),
        check="blocks",
        lift="int8",
    ),
    Schema(
        "Int4Tensor",
        (_TORCHAO, f"{_WORKFLOWS}.int4.int4_tensor", f"{_WORKFLOWS}"),
        seen="0.13 to 0.18",
        scheme="int4",
        flattened="0.14",
        parts=(
            Part("act_pre_scale", FLOATING, optional=True),
            Part("qdata", _I8 | _U8),
            Part("scale", FLOATING | _FP8),
            Part("zero_point", _ZEROS),
        ),
        # activation_dtype: 0.17; bfloat16 is what every older release does
        attributes=(
            Attribute("activation_dtype", "dtype", {"_type": "torch.dtype", "_data": "bfloat16"}, inert=True),
            _BLOCK,
            _SHAPE,
        ),
        check="four bits in a byte",
    ),
    Schema(
        "Int4PlainInt32Tensor",
        (_TORCHAO, f"{_WORKFLOWS}.int4.int4_plain_int32_tensor", f"{_WORKFLOWS}"),
        seen="0.14 to 0.18",
        scheme="int4",
        flattened="0.16",
        parts=(
            Part("act_pre_scale", FLOATING, optional=True),
            Part("qdata", frozenset({"int32"})),
            Part("scale", FLOATING),
            Part("zero_point", _ZEROS),
        ),
        attributes=(_BLOCK, _SHAPE),
        check="four bits in an int32",
    ),
    Schema(
        "Int4TilePackedTo4dTensor",
        (_TORCHAO, f"{_WORKFLOWS}.int4.int4_tile_packed_to_4d_tensor", f"{_WORKFLOWS}"),
        seen="0.14 to 0.18",
        scheme="int4",
        flattened="0.14",
        parts=(
            Part("act_pre_scale", FLOATING, optional=True),
            Part("qdata", frozenset({"int32"})),
            Part("scale_and_zero", FLOATING),
        ),
        attributes=(_BLOCK, _SHAPE),
        check="tiles",
    ),
    Schema(
        "IntxUnpackedToInt8Tensor",
        (_TORCHAO, f"{_WORKFLOWS}.intx.intx_unpacked_to_int8_tensor", f"{_WORKFLOWS}"),
        seen="0.14 to 0.18",
        scheme="intx",
        flattened="0.14",
        parts=(Part("qdata", _I8), Part("scale", FLOATING), Part("zero_point", _ZEROS)),
        attributes=(
            Attribute("target_dtype", "dtype"),
            _BLOCK,
            _DTYPE,
            Attribute("activation_quantization", "value", None),
        ),
        check="blocks",
        lift="intx",
    ),
    Schema(
        "MXTensor",
        (f"{_MX}.mx_tensor",),
        seen="0.7 to 0.18",
        scheme="mx",
        flattened="0.17",
        parts=(
            Part("qdata", _FP8 | _U8, was=("_data",)),
            Part("scale", frozenset({"float8_e8m0fnu"}), was=("_scale_e8m0",)),
        ),
        attributes=(
            Attribute("elem_dtype", "value", was=("_elem_dtype",)),
            Attribute("block_size", "int", was=("_block_size",)),
            Attribute("orig_dtype", "dtype", was=("_orig_dtype",)),
            Attribute("kernel_preference", "value"),
            Attribute("act_quant_kwargs", "value", None),
            Attribute("is_swizzled_scales", "bool", False, was=("_is_swizzled_scales",)),
        ),
        check="microscaled",
        lift="mx",
    ),
    Schema(
        "NVFP4Tensor",
        (f"{_MX}.nvfp4_tensor",),
        seen="0.12 to 0.18",
        scheme="nvfp4",
        flattened="0.17",
        parts=(
            Part("per_tensor_scale", FLOATING, optional=True, was=("_per_tensor_scale",)),
            Part("act_per_tensor_scale", FLOATING, optional=True, was=("_act_per_tensor_scale",)),
            Part("qdata", _U8, was=("_data",)),
            Part("scale", frozenset({"float8_e4m3fn"}), was=("_scale_e4m3",)),
        ),
        attributes=(
            Attribute("is_swizzled_scales", "bool", False, was=("_is_swizzled_scales",)),
            Attribute("use_triton_kernel", "bool", False),
            Attribute("act_quant_kwargs", "value", None),
            Attribute("block_size", "int", was=("_block_size",)),
            Attribute("orig_dtype", "dtype", was=("_orig_dtype",)),
        ),
        check="microscaled",
        lift="nvfp4",
    ),
)

# Classes that today's torchao has no longer; `lift` maps a weight to a class above or says why there is none.
V1: Final[tuple[Schema, ...]] = (
    Schema(
        "LinearActivationQuantizedTensor",
        ("torchao.quantization.linear_activation_quantized_tensor", "torchao.quantization"),
        seen="0.7 to 0.17",
        scheme="v1",
        lift="linear_activation",
    ),
    Schema(
        "AffineQuantizedTensor",
        ("torchao.dtypes.affine_quantized_tensor", "torchao.dtypes"),
        seen="0.7 to 0.17",
        scheme="v1",
        lift="affine",
    ),
    Schema(
        "WeightTensorWithLinearActivationQuantizationMetadata",
        ("torchao.quantization.weight_tensor_linear_activation_quantization", "torchao.quantization"),
        seen="0.7 to 0.14",
        scheme="v1",
        lift="static_activation",
    ),
    Schema(
        "IntxUnpackedTensor",
        (_TORCHAO, f"{_WORKFLOWS}.intx.intx_unpacked_tensor"),
        seen="none (read in 0.13)",
        scheme="v1",
        lift="intx_unpacked",
    ),
    *(
        Schema(name, modules, seen=seen, scheme="v1", lift="inner")
        for name, modules, seen in (
            (
                "PlainAQTTensorImpl",
                ("torchao.dtypes.uintx.plain_layout", "torchao.dtypes.affine_quantized_tensor"),
                "0.7 to 0.17",
            ),
            ("Float8AQTTensorImpl", ("torchao.dtypes.floatx.float8_layout",), "0.7 to 0.15"),
            ("QDQTensorImpl", ("torchao.dtypes.uintx.q_dq_layout",), "0.11 to 0.15"),
            (
                "TensorCoreTiledAQTTensorImpl",
                ("torchao.dtypes.uintx.tensor_core_tiled_layout",),
                "none (read in 0.7 to 0.16)",
            ),
            (
                "Int4CPUAQTTensorImpl",
                ("torchao.dtypes.uintx.int4_cpu_layout", "torchao.dtypes.uintx.tensor_core_tiled_layout"),
                "0.7 to 0.15",
            ),
            (
                "UintxAQTTensorImpl",
                ("torchao.dtypes.uintx.uintx_layout", "torchao.prototype.dtypes.uintx.uintx_layout"),
                "0.7 to 0.16",
            ),
        )
    ),
)

# Classes that no safetensors reader of torchao knows: refused by name, or kept as they are on request.
UNSUPPORTED: Final[tuple[Schema, ...]] = tuple(
    Schema(name, modules, seen=seen, scheme="unsupported")
    for name, modules, seen in (
        ("NF4Tensor", ("torchao.dtypes.nf4tensor", "torchao.dtypes", f"{_WORKFLOWS}.nf4.nf4_tensor"), "0.7 to 0.18"),
        (
            "UintxTensor",
            ("torchao.dtypes.uintx.uintx_layout", "torchao.prototype.dtypes.uintx.uintx_layout"),
            "0.7 to 0.16",
        ),
        ("Int4PreshuffledTensor", (_TORCHAO, f"{_WORKFLOWS}.int4.int4_preshuffled_tensor"), "0.14 to 0.18"),
        (
            "Int4OpaqueTensor",
            (
                _TORCHAO,
                "torchao.prototype.int4_opaque_tensor",
                "torchao.prototype.quantization.int4",
                f"{_WORKFLOWS}.int4.int4_opaque_tensor",
            ),
            "0.14 to 0.18",
        ),
        (
            "Int4MarlinSparseTensor",
            (_TORCHAO, f"{_WORKFLOWS}.int4.int4_marlin_sparse_tensor"),
            "none (read in 0.13 to 0.15)",
        ),
        ("Float8OpaqueTensor", ("torchao.prototype.float8_opaque_tensor",), "none (read in 0.15 to 0.18)"),
        (
            "Float8Sparse2x4_1DData1DMetadataTensor",
            (f"{_WORKFLOWS}.float8.float8_sparse_2x4_1d_data_1d_metadata_tensor",),
            "none (read in 0.18)",
        ),
        (
            "UIntxBitPackedTensor",
            ("torchao.prototype.quantization.uintx.uintx_bit_packed_tensor",),
            "none (read in 0.17 and 0.18)",
        ),
        (
            "WeightTensorWithLinearActivationScaleMetadata",
            ("torchao.quantization.linear_activation_scale", _TORCHAO),
            "none (read in 0.7 to 0.17)",
        ),
        ("IntxOpaqueTensor", (_TORCHAO, f"{_WORKFLOWS}.intx.intx_opaque_tensor"), "0.15 to 0.17"),
        ("Sparse2x4CUTLASSFloat8Tensor", (f"{_WORKFLOWS}.float8.sparse_2x4_cutlass_float8_tensor",), "0.16"),
        (
            "Float8Sparse2x4_2DData2DMetadataTensor",
            (f"{_WORKFLOWS}.float8.float8_sparse_2x4_2d_data_2d_metadata_tensor",),
            "0.18",
        ),
        (
            "PrototypeFloat8Tensor",
            (_TORCHAO, "torchao.prototype.quantization.float8_static_quant.prototype_float8_tensor"),
            "0.17 to 0.18",
        ),
    )
)

SCHEMAS: Final = (*CURRENT, *V1, *UNSUPPORTED)
BY_CLASS: Final = {f"{module}.{row.name}": row for row in SCHEMAS for module in row.modules}
BY_NAME_CURRENT: Final = {row.name: row for row in CURRENT}
BY_SHORT_NAME: Final = {row.name: row for row in SCHEMAS}
ENUM_BY_CLASS: Final = {f"{module}.{row.name}": row for row in ENUMS for module in row.modules}
ENUM_BY_NAME: Final = {row.name: row for row in ENUMS}
RECORD_BY_CLASS: Final = {f"{module}.{row.name}": row for row in RECORDS for module in row.modules}
RECORD_BY_NAME: Final = {row.name: row for row in RECORDS}
DTYPE_GLOBALS: Final = frozenset(f"torch.{name}" for name in BY_NAME)
