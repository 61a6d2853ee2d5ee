"""Write docs/cli.md from the command line's parser and docs/classes.md from the tables of classes and maps.

`python docs/generate.py` writes both, `--check` only says whether they are as they should be. What no table knows, the
notes on options and the reasons of maps, is data here, keyed by option and by the name of the function; a missing or
superfluous key is an error.
"""
# ruff: noqa: SLF001 - argparse has no other way to say what it holds

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

HERE: Final = Path(__file__).resolve().parent
if (HERE.parent / "src").is_dir():
    sys.path.insert(0, str(HERE.parent / "src"))

from depickle import schemas  # noqa: E402 - after the path
from depickle.cli import _parser  # noqa: E402
from depickle.current import CHECKS  # noqa: E402
from depickle.lift import LIFTS  # noqa: E402

# --- the command line -----------------------------------------------------------------------------------------------

EXIT: Final = (
    ("0", "Everything that was asked for is done."),
    ("1", "Declined: a source was refused, a digest or a verification did not match, or `scan` found something."),
    ("2", "Usage, input or output, or malformed input: the bytes are not what their format says."),
    ("130", "Interrupted (SIGINT, Ctrl-C)."),
    ("143", "Terminated (SIGTERM)."),
)

INTRO: Final = """\
Results go to standard output, everything else to standard error. Nothing is ever uploaded or downloaded, and no source
is written to. `python -m depickle` is the same program."""

AFTER_EXIT: Final = """\
With several sources one failure does not stop the others; the worst status wins (2 over 1 over 0). An error is one line,
`depickle: FILE: PLACE: what was found`; [errors.md](errors.md) lists them. A mismatch prints its further findings below."""

# What a command does beside its help.
COMMANDS: Final[Mapping[str, str]] = {
    "convert": """\
Each SRC becomes `DIR/STEM.safetensors`, with `--repo` `DIR/OWNER/NAME/STEM.safetensors`. STEM is the file's name less
`.pt`, `.pth`, `.bin` or `.safetensors` in any case; any other name is kept whole. A SRC that is
a model's folder becomes DIR (or `DIR/OWNER/NAME`) itself, with everything that is in it ([repositories.md](repositories.md)).

The output is written under a temporary name in the destination's folder, opened again, compared with the source by its
own bytes, brought to the disk, and only then given its name. On any failure, interrupt or refusal no file is left, nor a
folder that the run made.

An existing destination that is what would be written now, to the byte of its header, and whose data passes verification,
is left as it is; the record says `"skipped": true`. Any other is refused unless `--overwrite` is given.

Refused before anything is read: two SRC with one destination, a destination that is its own source, `--sha256` or
`--trust-sha256` with several SRC.

Standard output carries one record per file, one JSON object a line ([schema](schemas/record.v1.json)); on a terminal, or
with `--pretty`, text. Work of more than a second shows its progress on standard error if that is a terminal.""",
    "verify": """\
Compares the set of names, each weight's class and attributes, each part's dtype and shape, and every byte; where a named
rule was applied, through the rule's inverse. For a file of depickle's own also the tag, the metadata, the order of names,
the header's digest and form, and whether the source's size and SHA-256 are those recorded. Neither file is touched.
Prints one JSON object ([schema](schemas/verification.v1.json)).""",
    "inspect": """\
Container, tag, metadata, weights by class and dtypes, ties, every global that the pickle names, and what a conversion
would note or refuse. Reads the pickle (or the header) and, for some v1 weights, small zero points; no other tensor.""",
    "scan": """\
Lists every global that the pickles of a file name, with its place and its calls, and a verdict: `clean` (each is one that
depickle reads), `dangerous` (one is known to do harm), `unknown` (neither, or the file cannot be read to its end). A pickle
that breaks off is judged by what it named until then. The exit status is 1 unless every file is clean.

A verdict is a report and no promise: what `convert` accepts is decided by what it knows to read, never by this.""",
    "mirror resolve": """\
`UNSLOTH_DIFFUSION_PREQUANT_MIRROR` holds one or more roots, separated as in PATH, each laid out as `ROOT/OWNER/NAME/FILE`;
`~` is expanded, blank roots are skipped. Asked for a `.pt` or `.pth`, each root in turn is asked for the `.safetensors` file
beside it, if its header can be read here, and then for the pickle itself.

A name with a part that is empty, `.`, `..` or holds a backslash, a file that is not a regular one, and one that a link leads
out of its root to, are no hit. The status is 1 if there is none; every place that was looked at then stands on standard
error with its reason, and so does a converted file that was passed over.""",
    "mirror list": """\
One line per file, root by root: the repository, the file as it would be asked for, and what that root alone would open. A
folder that is reached twice, by a link, is shown once.""",
    "mirror verify": """\
For every pickle with a converted file beside it: the name, size and SHA-256 that the converted file records must be the
pickle's, and the pair must pass `verify`. Prints one JSON object per pair ([schema](schemas/verification.v1.json)); a pair
that fails has its line on standard error, and the worst status is the exit status.""",
}

# What an option does beside its help.
OPTIONS: Final[Mapping[str, Mapping[str, str]]] = {
    "convert": {
        "sources": "What each is, is decided by its content, never by its name. A `.safetensors` source (torchao's, "
        "transformers', torchao 0.14's `name:part` grammar, depickle's own) is written again with the same proof; its "
        "provenance is kept inside the new one, under `from`. A folder is converted with all that is in it, to DIR[/OWNER/NAME] "
        "itself: [repositories.md](repositories.md).",
        "--out-dir": "Made if it is not there.",
        "--repo": "A part that is empty, `.`, `..` or holds a separator or a backslash is a usage error.",
        "--revision": "Recorded as given.",
        "--sha256": "64 hexadecimal digits. Checked while the data is copied, before anything is published.",
        "--trust-sha256": "For a source whose digest was checked a moment ago. The record then has `src_sha256_checked` false. "
        "CRCs of the archive are checked all the same. `verify` hashes the source and finds a digest that was not its own.",
        "--manifest": "One line per result, its path relative to DIR. Lines of other files stay; the file is replaced in one "
        "step after the last conversion, also when some sources were refused.",
        "--report": "The file is opened before the first conversion and gets each record as soon as it is made.",
        "--drop-tied-copies": "Two names tie if they share storage, offset, shape, stride and dtype. By default each is "
        "written as a copy of its own. With this option the later one is left out and recorded; depickle's loader fills it "
        "in again, a studio from the model's own tie, and an older studio refuses the file. A name that ends in "
        "`lm_head.weight` is always written. With a denoiser or a plain state dict this is a usage error.",
        "--overwrite": "The new file replaces the old one in one step, after it passed verification.",
        "--key": "Needed where the state dict is not at the top nor under `state_dict`, `model`, `module` or "
        "`model_state_dict`, or where two of those hold tensors. The file's TAG, if any, is then not looked at.",
        "--keep-unsupported": "Also for v1 weights without an exact map. Every part and attribute is stored, under a type "
        "that begins with `depickle/`, so that no other reader takes the weight for one that it knows "
        "([format.md](format.md)).",
        "--max-shard-size": "A number of bytes with KB, MB, GB or KiB, MiB, GiB, counted over tensors as transformers and "
        "diffusers do. The files are called `STEM-00001-of-0000N.safetensors`, with `STEM.safetensors.index.json` beside them, "
        "which is written last. Parts of a weight stay together. A checkpoint with a format tag is one file always.",
        "--target": "`unsloth` is the container of Unsloth's pre-quantised checkpoints: root names (without a dot) get a "
        "prefix. `hf` stores and lists them under their own name, as transformers and diffusers want it; tag and metadata "
        "stay. A file that is the same for both says so in the record's `serves`. `comfyui` makes `STEM-ComfyUI.safetensors`: "
        "ComfyUI's own quantised layers, or a refusal by name ([comfyui.md](comfyui.md)).",
        "--allow-requantize": "Without it such a weight is refused. The marker, the record (`verified_bit_identical` false, a "
        "warning) and `verify` say that the twin is not exact; the rounding itself is proved ([comfyui.md](comfyui.md)).",
        "--key-prefix": "For example `model.diffusion_model.`. Put on after `--rename`.",
        "--rename": 'JSON: `{"rename": {OLD: NEW}, "concat": {NEW: [OLD, ...]}}`; see [comfyui.md](comfyui.md).',
        "--check-with": "Needs the extra `torch`. Both files are loaded with the installed torch and torchao and compared "
        "class by class, before the output gets its name; the record's `reader` names the releases.",
        "--dry-run": "Nothing is written, and no tensor is read but where the plan hangs on it: zero points, and with "
        "`--target comfyui` MX scales.",
        "--json": "[Schema](schemas/plan.v1.json). Without `--dry-run` a usage error: records are JSON already.",
        "--pretty": "",
        "--jobs": "Each uses two threads. Records come as the conversions end, not in the order of the sources.",
        "--quiet": "Errors are still printed, and records too.",
    },
    "verify": {
        "src": "",
        "dst": "May be another writer's file: it is then held to its content, not to its form. Of a folder every file is "
        "held to account ([schema](schemas/verify-folder.v1.json)).",
        "--key": "",
        "--quiet": "",
    },
    "inspect": {"file": "", "--key": "", "--json": "[Schema](schemas/inspect.v1.json)."},
    "scan": {
        "files": "",
        "--json": "[Schema](schemas/scan.v1.json).",
        "--sarif": "For tools that show code-scanning results; what is clean is left out.",
        "--allow-unknown": "",
    },
    "mirror resolve": {"repo": "", "file": ""},
    "mirror list": {"--json": "[Schema](schemas/mirror.v1.json)."},
    "mirror verify": {"--quiet": ""},
}

# --- maps -----------------------------------------------------------------------------------------------------------


class Map(NamedTuple):
    """Why one map is exact: from what to what, on which condition, by which rules, and what a matmul shows."""

    title: str
    source: str
    target: str
    condition: str
    rules: str
    exact: str
    matmul: str


class NoMap(NamedTuple):
    """A map that there is not, and why."""

    title: str
    reason: str


# The functions that find the map, in a sentence each.
WAYS: Final[Mapping[str, str]] = {
    "_linear_activation": "`LinearActivationQuantizedTensor`: its weight's map, told which function quantises the activation. "
    "The outer dtype is the weight's; outer and inner shape must agree.",
    "_affine": "`AffineQuantizedTensor` by itself: its layout's map, weight-only.",
    "_from_affine": "The layout decides: `PlainAQTTensorImpl`, `QDQTensorImpl`, `Float8AQTTensorImpl`, "
    "`TensorCoreTiledAQTTensorImpl`. Any other layout, and any field that no release of 0.7 to 0.17 has, is refused.",
    "_from_plain": "`PlainAQTTensorImpl`: to Int8Tensor if `quant_min` and `quant_max` are absent or those of int8, to "
    "IntxUnpackedToInt8Tensor if they are those of a narrower integer type.",
    "_inner": "A layout's tensor without its `AffineQuantizedTensor` is no weight: refused.",
    "_microscaled": "What MXTensor and NVFP4Tensor have in common: order of nibbles, shape and dtype of scales.",
}

MAPS: Final[Mapping[str, Map | NoMap]] = {
    "_to_int8": Map(
        "v1 int8",
        "AffineQuantizedTensor over PlainAQTTensorImpl (0.7 to 0.17), by itself or in LinearActivationQuantizedTensor with "
        "`_int8_symm_per_token_reduced_range_quant` or `_int8_asymm_per_token_quant`",
        "Int8Tensor; activation kwargs null, or PerRow with SYMMETRIC or ASYMMETRIC",
        "int8 data of two dimensions and the outer shape; PlainLayout; a floating scale, one per block; domain NONE or INT; "
        "no zero point, or an all-zero one; `quant_min`/`quant_max` null or -128/127. With an activation function also: no "
        "`quant_kwargs`, block size `[1, K]`, one scale per row.",
        "`reshape` of the scale (`[N]` to `[N, 1]`). An all-zero zero point is left out: subtracting it changes nothing.",
        "Data and scale keep their bits and dtypes, and dequantised values are equal bit for bit: symmetric in 0.7 to 0.12, "
        "0.16 and 0.17; asymmetric in 0.10 and 0.16; weight-only, rows and groups, in 0.7 to 0.16.",
        "Weight-only: equal. Symmetric: another constant (Int8Tensor divides by 127.5 and uses -128..127, v1 by 127 and "
        "uses -127..127); 566 of 768 outputs differ, by 0.55 % of the largest at the most; on other inputs 70 to 80 %, by "
        "up to 0.9 %. Asymmetric: 444 to 464 of 768 differ, by up to 0.17 %; on other inputs by up to 0.5 %.",
    ),
    "_to_intx": Map(
        "v1 intx",
        "AffineQuantizedTensor over QDQTensorImpl (0.11 to 0.15), or over PlainAQTTensorImpl with a range narrower than int8 "
        "(0.7 to 0.17), by itself or with `_int8_asymm_per_token_quant`",
        "IntxUnpackedToInt8Tensor; activation null or `int8_asym_per_token`",
        "int8 data of the outer shape; domain INT or NONE; a zero point that is int8, or all zero, or of int16 to int64 with "
        "values that int8 holds; `quant_min`/`quant_max` null or the whole range of int1 to int8.",
        "`reshape` of scale and zero point to block shape; `zero-to-int8` or `narrow-to-int8` of a zero point of another type.",
        "Data, scale and the zero point's values are the same, and dequantised values are equal bit for bit: with asymmetric "
        "activations in 0.8 to 0.16; weight-only in 0.11 and 0.13; with live zero points in 0.7 to 0.17.",
        "Weight-only: equal. With activations: 527 to 541 of 768 outputs differ, by up to 0.64 % of the largest; on other "
        "inputs by up to 1 %.",
    ),
    "_to_float8": Map(
        "v1 float8",
        "AffineQuantizedTensor over Float8AQTTensorImpl (0.7 to 0.15), by itself or with `_input_activation_quant_func_fp8`",
        "Float8Tensor; activation kwargs null, or PerRow or PerTensor with the dtype that v1 names; `kernel_preference` AUTO",
        "`transposed` false; Float8Layout; the outer shape; `quant_kwargs` exactly granularity and dtype. The zero point's "
        "domain differs by writer and means nothing here.",
        "`reshape` of the scale (0.7 to 0.11: `[N]` to `[N, 1]`, `[]` to `[1, 1]`). A bfloat16 scale (weight-only, 0.7 to "
        "0.11) stays bfloat16. `mm_config` is the layout's.",
        "Data and scale keep their bits; dequantised values are equal bit for bit in 0.7 to 0.15, per row, per tensor and "
        "weight-only. The activation's floor: 0.7 to 0.11 keep the activation's scale at `2**-23` or more, which is "
        "`hp_value_lb` = largest float8 value times `2**-23` (5.340576171875e-05 for e4m3, 0.0068359375 for e5m2), and that "
        "is what is written; 0.12 to 0.15 have no floor: null. Who wrote a file shows in `quant_max`, which 0.12 and later "
        "leave null.",
        "Equal on a CPU in every release tried (0.7 to 0.15), tiny and all-zero rows included. Without the "
        "floor an all-zero row of 0.7 to 0.11 would come out as NaN. On a GPU, AUTO may choose another kernel.",
    ),
    "_dynamic_mx": Map(
        "MX of 0.12 with activations",
        "LinearActivationQuantizedTensor over MXTensor with `_input_activation_quant_func_mxfp`",
        "MXTensor with QuantizeTensorToMXKwargs",
        "`quant_kwargs` exactly `block_size`, `activation_dtype` and `scale`, the last null.",
        "As for MXTensor.",
        "As for MXTensor. The scaling mode was FLOOR and the kernel the weight's; both are written so.",
        "Equal with the EMULATED kernel, fp8 and fp4.",
    ),
    "_to_tile_packed": NoMap(
        "v1 int4, tensor-core-tiled",
        "AffineQuantizedTensor over TensorCoreTiledAQTTensorImpl (0.7 to 0.17). By reading, Int4TilePackedTo4dTensor has the "
        "same packing; it has no CPU kernel, so nothing could be compared, and what is not proved is not converted.",
    ),
    "_static_activation": NoMap(
        "v1 with a static activation scale",
        "WeightTensorWithLinearActivationQuantizationMetadata. Float8Tensor of 0.18 has no activation scale; "
        "PrototypeFloat8Tensor, which has one, is not in torchao's safetensors list.",
    ),
    "_float8": Map(
        "Float8Tensor of 0.13",
        "Float8Tensor with `hp_value_lb` and `hp_value_ub` of its own",
        "Float8Tensor",
        "none",
        "none; the two fields are left out",
        "They had chosen the weight's own scale; nothing computes with them afterwards. Those of the activation are in "
        "`act_quant_kwargs` and stay.",
        "not compared",
    ),
    "_int8": Map(
        "Int8Tensor of 0.15, per group",
        "Int8Tensor with a scale of shape `[N, groups, 1]`",
        "Int8Tensor with a scale of shape `[N, groups]`",
        "none",
        "`reshape`",
        "The same bytes in the shape that goes with the block size.",
        "not compared",
    ),
    "_intx": Map(
        "IntxUnpackedToInt8Tensor, activation as a member",
        "IntxUnpackedToInt8Tensor whose `activation_quantization` is an enumeration member",
        "the same with the text that `quantize_` stores",
        "none",
        "none",
        "Member and text mean the same; no release's safetensors reader builds the member.",
        "not compared",
    ),
    "_intx_unpacked": Map(
        "IntxUnpackedTensor of 0.13",
        "IntxUnpackedTensor",
        "IntxUnpackedToInt8Tensor, activation null",
        "none",
        "none",
        "By reading the first name of the same class; no file of it was seen.",
        "not compared",
    ),
    "lift_mx": Map(
        "MXTensor of 0.7 to 0.15",
        "MXTensor in an earlier spelling",
        "MXTensor",
        "fp6 is not packed (`_pack_fp6` false)",
        "`nibble-swap` of fp4 data up to 0.14.1; `reshape` of a flat scale (up to 0.11) to `[N, K/32]`; `relabel` of a uint8 "
        "scale (0.7 to 0.9) as float8_e8m0fnu",
        "torchao put the even fp4 element into the high half of a byte up to 0.14.1, and into the low half since: unswapped, "
        "nine of ten values would be wrong and nothing would complain. Scales are the same bytes. Dequantised values are "
        "equal bit for bit in 0.7, 0.9 and 0.11 to 0.15. The kernel is EMULATED where it was, or where there was no such "
        "field, and AUTO for CUBLAS and CUTLASS.",
        "Equal with the EMULATED kernel in 0.12 to 0.14.1, fp8 and fp4. A weight without activation kwargs has no linear in "
        "0.13 to 0.18.",
    ),
    "_nvfp4": Map(
        "NVFP4Tensor of 0.12 to 0.15",
        "NVFP4Tensor in an earlier spelling",
        "NVFP4Tensor",
        "none",
        "`nibble-swap` up to 0.14.1; `reshape` of a flat swizzled scale (0.12, 0.13) to two dimensions and of a `[1]` "
        "per-tensor scale to `[]`",
        "As for fp4 of MXTensor: equal bit for bit without a per-tensor scale in 0.12 and 0.14.1. 0.12's DYNAMIC mode becomes "
        "activation kwargs with swizzled scales and no per-tensor scale, its WEIGHT_ONLY null. With a per-tensor scale 0.18 "
        "combines the two scales in float32, 0.17 and older in bfloat16, so that the same bytes dequantise differently in "
        "the two (518 of 4,096 values of one weight), whoever converted them.",
        "not compared",
    ),
}

RECORD_MAPS: Final[Mapping[str, str]] = {
    "mx_kwargs": "`gemm_kernel_choice` (0.13, 0.14) becomes `kernel_preference`; `pack_fp6` false is left out, true is refused.",
}

CHECK_PROSE: Final[Mapping[str, str]] = {
    "blocks": "`scale` (and `zero_point`) has one element per block: its shape is the data's divided by `block_size`.",
    "four bits in a byte": "`qdata` has half as many columns as `shape`: two values a byte; `scale` and `zero_point` have a "
    "row per group and a column per row of the weight.",
    "four bits in an int32": "`qdata` has an eighth as many columns as `shape`: eight values an int32; `scale` and "
    "`zero_point` have a row per group and a column per row of the weight.",
    "tiles": "`qdata` has four dimensions, `scale_and_zero` three, the last of two.",
    "microscaled": "`scale` has one element per block of the last dimension, or `[32 ceil(N/128), 16 ceil(C/4)]` for C blocks a "
    "row where `is_swizzled_scales` is true.",
}

# Why a class cannot be written in torchao's layout.
UNSUPPORTED: Final[Mapping[str, str]] = {
    "NF4Tensor": "not in torchao's list",
    "UintxTensor": "split into shards of bits, no class of today's list",
    "Int4PreshuffledTensor": "order of bytes of one GPU kernel, not in torchao's list",
    "Int4OpaqueTensor": "packed for one CPU kernel, not in torchao's list",
    "Int4MarlinSparseTensor": "sparse, gone since 0.16",
    "Float8OpaqueTensor": "packed for one CPU kernel, not in torchao's list",
    "Float8Sparse2x4_1DData1DMetadataTensor": "sparse, not in torchao's list",
    "UIntxBitPackedTensor": "packed for one GPU kernel, not in torchao's list",
    "WeightTensorWithLinearActivationScaleMetadata": "divides the input by its scale; Int8Tensor multiplies, and a reciprocal rounds",
    "IntxOpaqueTensor": "packed for one CPU kernel, not in torchao's list",
    "Sparse2x4CUTLASSFloat8Tensor": "sparse, not in torchao's list",
    "Float8Sparse2x4_2DData2DMetadataTensor": "sparse, not in torchao's list",
    "PrototypeFloat8Tensor": "a prototype with static activation scales, not in torchao's list",
}

CLASSES: Final = """\
Which weight classes of torchao depickle reads, what becomes of them, and why that is exact. *Exact* means that the
weight's values are the same bit for bit and that activations are quantised in the same kind of way; it does not mean that
a matmul gives the same last bits, and where that was measured it says so. Figures: torch 2.13 on a CPU, the object of the
writing release beside that of torchao 0.18 made from the same tensors."""

ORDER: Final = """\
torchao 0.14 wrote an older grammar of names (`name:part`), which depickle reads and does not write. Parts and attributes
stand in the order in which they are written."""

KEPT: Final = """\
torchao's safetensors support does not list them, so no client would rebuild them. They are refused by name before any
work; `--keep-unsupported` stores them as they are, for depickle alone."""

REFUSED: Final = (
    (
        "`_int8_symm_per_token_reduced_range_quant_noop_decode`",
        "leaves the activations of single tokens alone; Int8Tensor quantises all",
    ),
    ("`_int8_symm_per_token_quant` over int4 or QDQ", "IntxUnpackedToInt8Tensor knows asymmetric activations only"),
    ("`_uint8_asymm_per_token_quant`, the CUTLASS functions", "no class of today quantises so"),
    ("zero point domain FLOAT", "values are `(q - middle) * scale + zero`, which neither Int8Tensor nor Intx computes"),
    (
        "int8 of full range with a live zero point",
        "Int8Tensor's linear in 0.17 and 0.18 ignores the zero point, though dequantize uses it: 58 % wrong",
    ),
    ("a zero point that is neither integer nor all zero", "not mapped"),
    ("QDQ without a zero point", "not mapped: IntxUnpackedToInt8Tensor must have one"),
    ("int32 data", "not mapped"),
    ("`quant_min`/`quant_max` that are no integer type's range (-127..127)", "no `target_dtype` says so"),
    ("float8 with `transposed` true", "not mapped"),
    ("fp6 with `_pack_fp6` true", "a storage that torchao dropped in 0.15"),
)

NOTES: Final = """\
- **int8 with asymmetric activations and torchao 0.16.** 0.16 reads such an Int8Tensor without an error and computes with
  relative errors of 93 %, since it corrects nothing for the activation's zero point; 0.17 and 0.18 are right to 0.5 %. The
  record and `inspect` warn. 0.15 does not list Int8Tensor.
- **The same v1 class is exact.** Where the installed torchao still has the v1 classes (0.17 and older), depickle's loader
  rebuilds those from a file with `int8_source` ([format.md](format.md)), and outputs are equal too.
- **Which torchao reads a file.** The release in the table of the class, or a later one, if it has the parts: 0.16 knows no
  `zero_point` of Int8Tensor, and only 0.18 knows `reduce_range`. Fields with their default that an older release does not
  know are left out, so that the same file is read by all.
- **Renamed enumeration member.** `FBGEMM` (0.13 to 0.15) is written as `MSLK`, which 0.15 does not know."""

# --- rendering ------------------------------------------------------------------------------------------------------

MARK: Final = "<!-- Written by docs/generate.py: change it there. -->"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _table(head: tuple[str, ...], rows: Iterator[tuple[str, ...]] | list[tuple[str, ...]]) -> list[str]:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return [*lines, *("| " + " | ".join(map(_cell, row)) + " |" for row in rows), ""]


def _same_keys(what: str, prose: Mapping[str, object], wanted: set[str]) -> None:
    missing, odd = wanted - set(prose), set(prose) - wanted
    if missing or odd:
        raise SystemExit(f"{what}: no prose for {sorted(missing)}, nothing for the prose of {sorted(odd)}")


def _commands(parser: argparse.ArgumentParser, above: str = "") -> Iterator[tuple[str, str, argparse.ArgumentParser]]:
    """Every command with its help and its parser; those of a command that has commands itself in place of it."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            helps = {choice.dest: str(choice.help) for choice in action._choices_actions}
            for name, sub in action.choices.items():
                below = list(_commands(sub, f"{above}{name} "))
                yield from below or [(f"{above}{name}", helps[name], sub)]


def _own_actions(parser: argparse.ArgumentParser) -> dict[str, argparse.Action]:
    return {
        action.option_strings[-1] if action.option_strings else action.dest: action
        for action in parser._actions
        if not isinstance(action, (argparse._HelpAction, argparse._VersionAction, argparse._SubParsersAction))
    }


def _spelled(key: str, action: argparse.Action) -> str:
    if not action.option_strings:
        return f"{action.metavar} [{action.metavar} ...]" if action.nargs == "+" else str(action.metavar)
    return key if action.nargs == 0 else f"{key} {action.metavar}"


def _usage(name: str, actions: Mapping[str, argparse.Action]) -> str:
    needed = [_spelled(key, a) for key, a in actions.items() if not a.option_strings or a.required]
    optional = any(a.option_strings and not a.required for a in actions.values())
    return " ".join(["depickle", name, *needed, *(["[OPTIONS]"] if optional else [])])


def cli_page() -> str:
    """docs/cli.md."""
    parser = _parser()
    commands = list(_commands(parser))
    _same_keys("commands", COMMANDS, {name for name, _, _ in commands})
    lines = [MARK, "", "# Command line", "", str(parser.description), "", INTRO, "", "```", "depickle --version"]
    lines += [_usage(name, _own_actions(sub)) for name, _, sub in commands]
    lines += ["depickle COMMAND --help", "```", "", "## Exit status", "", *_table(("status", "meaning"), list(EXIT))]
    lines += [AFTER_EXIT, ""]
    for name, said, sub in commands:
        actions = _own_actions(sub)
        _same_keys(f"options of {name}", OPTIONS[name], set(actions))
        lines += [f"## depickle {name}", "", said[0].upper() + said[1:] + ".", "", COMMANDS[name], ""]
        rows = [
            (f"`{_spelled(key, action)}`", ". ".join(filter(None, (str(action.help), OPTIONS[name][key]))))
            for key, action in actions.items()
        ]
        lines += _table(("argument", "meaning"), rows)
    return "\n".join(lines)


def _json(value: object) -> str:
    """A default, short: a typed value by its type and data."""
    if isinstance(value, dict) and set(value) == {"_type", "_data"}:
        data = value["_data"]
        if isinstance(data, str):
            return f"{value['_type']}.{data}" if value["_type"] != "torch.dtype" else f"torch.{data}"
        return f"{value['_type']}({', '.join(f'{k}={_json(v)}' for k, v in data.items())})"
    return json.dumps(value)


def _default(field: schemas.Attribute) -> str:
    if field.outer is not None:
        return f"the wrapper's {field.outer}"
    if field.default == schemas.REQUIRED:
        return "required"
    return f"`{_json(field.default)}`" + (", left out when so" if field.inert else "")


def _was(row: schemas.Part | schemas.Attribute) -> str:
    return ", ".join(f"`{name}`" for name in row.was)


def _modules(modules: tuple[str, ...]) -> str:
    return ", ".join(f"`{module}`" for module in modules)


def _class(row: schemas.Schema) -> Iterator[str]:
    yield from (f"### {row.name}", "", f"Scheme `{row.scheme}`. Seen in files of torchao {row.seen}.")
    yield from (
        f"torchao's safetensors reader lists it from {row.flattened} on. Pickles name it in {_modules(row.modules)}.",
        "",
    )
    parts = [
        (
            f"`{part.name}`",
            ", ".join(sorted(part.dtypes)) or "any",
            "optional" if part.optional else "required",
            _was(part),
        )
        for part in row.parts
    ]
    yield from _table(("part", "dtypes", "presence", "earlier names"), parts)
    fields = [(f"`{field.name}`", field.kind, _default(field), _was(field)) for field in row.attributes]
    yield from _table(("attribute", "kind", "default", "earlier names"), fields)
    if row.check is not None:
        yield from (f"Checked: {CHECK_PROSE[row.check]}", "")


def _maps() -> Iterator[str]:
    used = {function.__name__ for function in LIFTS.values()}
    if not used <= set(MAPS) | set(WAYS):
        raise SystemExit(f"maps: no prose for {sorted(used - set(MAPS) - set(WAYS))}")
    for name, text in WAYS.items():
        yield f"- `{name}`: {text}"
    yield ""
    for name, one in MAPS.items():
        yield from (f"### {one.title}", "")
        if isinstance(one, NoMap):
            yield from (f"Refused (`{name}`). {one.reason}", "")
            continue
        labels = ("From", "To", "Condition", "Rules", "Why exact", "Matmul")
        yield from (f"- {label}: {text}" for label, text in zip(labels, one[1:], strict=True))
        yield from (f"- Code: `{name}`", "")


def classes_page() -> str:
    """docs/classes.md."""
    _same_keys("checks", CHECK_PROSE, set(CHECKS))
    _same_keys("unsupported classes", UNSUPPORTED, {row.name for row in schemas.UNSUPPORTED})
    _same_keys("maps of records", RECORD_MAPS, {row.lift for row in schemas.RECORDS if row.lift is not None})
    lines = [MARK, "", "# Classes and maps", ""]
    lines += [CLASSES, ""]
    overview = [
        (f"[{row.name}](#{row.name.lower()})", row.scheme, row.seen, str(row.flattened)) for row in schemas.CURRENT
    ]
    lines += ["## Classes of today", ""]
    lines += _table(("class", "scheme", "seen in files of", "in torchao's safetensors list from"), overview)
    lines += [ORDER, ""]
    for row in schemas.CURRENT:
        lines += _class(row)
    lines += ["## Classes of torchao v1 and earlier names", ""]
    rows = [(row.name, row.seen, _modules(row.modules), f"`{LIFTS[str(row.lift)].__name__}`") for row in schemas.V1]
    lines += _table(("class", "seen in files of", "modules", "map"), rows)
    lines += ["## Maps", "", "How a weight finds its map:", "", *_maps()]
    lines += [f"Of records (`{name}`): {text}" for name, text in RECORD_MAPS.items()]
    lines += ["", "### Refused for what they hold", "", *_table(("fact", "why"), list(REFUSED))]
    lines += ["## What to know of readers", "", NOTES, "", "## Classes without a form", ""]
    lines += [KEPT, ""]
    kept = [(row.name, row.seen, _modules(row.modules), UNSUPPORTED[row.name]) for row in schemas.UNSUPPORTED]
    lines += _table(("class", "seen in files of", "modules", "why"), kept)
    lines += [
        "Any other class of torchao, and any class of anybody else, has no row and is refused by its full name.",
        "",
    ]
    lines += [
        "## Values in attributes",
        "",
        "Enumerations: files of ours hold the member's name, pickles its value.",
        "",
    ]
    enums = [
        (
            row.name,
            ", ".join(f"{name}={value!r}" for name, value in row.members),
            ", ".join(f"{old} is written {new}" for old, new in row.renamed),
            _modules(row.modules),
        )
        for row in schemas.ENUMS
    ]
    lines += _table(("enumeration", "members", "renamed", "modules"), enums)
    records = [
        (
            row.name,
            ", ".join(f"`{field.name}` ({field.kind}, {_default(field)})" for field in row.fields) or "none",
            _modules(row.modules),
        )
        for row in schemas.RECORDS
    ]
    lines += ["Records: all fields are written, in this order.", "", *_table(("record", "fields", "modules"), records)]
    names = ", ".join(f"`{name}`" for name in sorted(schemas.FUNCTIONS))
    lines += [f"Functions that v1 files name for activations, compared and never called: {names}.", ""]
    return "\n".join(lines)


PAGES: Final = {"cli.md": cli_page, "classes.md": classes_page}


def main() -> int:
    """Write the pages, or with --check compare them; return the exit status."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--check", action="store_true", help="write nothing; exit with 1 if a page is out of date")
    check = arguments.parse_args().check
    stale = 0
    for name, make in PAGES.items():
        path, text = HERE / name, make()
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        stale += 1
        if check:
            print(f"docs/{name} is out of date: run python docs/generate.py", file=sys.stderr)
        else:
            path.write_text(text, encoding="utf-8")
            print(f"docs/{name} written")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
