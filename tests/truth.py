"""A converted file held against its truth, fact by fact; nothing of depickle's but the call that converts.

`judge` converts one fixture and returns a `Verdict`: converted (equal to the truth in every respect), refused (for a
reason that `documented.py` has) or wrong, with what differs.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import documented
import expected as ex
import outside

ROOT_PREFIX = "unsloth_root::"
TAGS = {
    "unsloth_prequant_transformer_state_dict_v1": "transformer",
    "unsloth_prequant_text_encoder_state_dict_v1": "text_encoder",
}
SCHEMES = {
    "Float8Tensor": "fp8",
    "Int8Tensor": "int8",
    "NVFP4Tensor": "nvfp4",
    "IntxUnpackedToInt8Tensor": "intx",
    "Int4Tensor": "int4",
    "Int4PlainInt32Tensor": "int4",
    "Int4TilePackedTo4dTensor": "int4",
}
_SEAL = re.compile(rb',"depickle_header":"([0-9a-f]{64})"')


@dataclass(frozen=True)
class Verdict:
    """What became of one file: `status` is converted, refused or wrong; `details` say why or what differs."""

    release: str
    kind: str
    classes: tuple[str, ...]
    status: str
    details: tuple[str, ...] = ()


@dataclass(frozen=True)
class Case:
    """A fixture and what is known of it."""

    path: Path
    truth: Any

    @property
    def release(self) -> str:
        return self.path.parent.name

    @property
    def kind(self) -> str:
        return str(self.truth["kind"])

    @property
    def name(self) -> str:
        return f"{self.release}/{self.path.name.removesuffix('.pt')}"

    @property
    def classes(self) -> tuple[str, ...]:
        """The outermost classes of the quantised weights, `Tensor` where there are none."""
        tensors = self.truth.get("tensors", {}).values()
        return tuple(sorted({ex.short(item["class"]) for item in tensors if "inner" in item})) or ("Tensor",)


def cases(folder: Path) -> list[Case]:
    """Every .pt of a folder of fixtures that has a truth; AssertionError for one that has none."""
    found = []
    for path in sorted(folder.glob("*/*.pt")):
        truth = path.with_name(path.name + ".truth.json")
        assert truth.exists(), f"{path} has no truth"
        found.append(Case(path, json.loads(truth.read_text())))
    return found


def judge(case: Case, out_dir: Path) -> Verdict:
    """Convert one fixture into `out_dir` and hold the result against its truth."""
    import depickle

    try:
        record = depickle.convert(case.path, out_dir)
    except depickle.Error as error:
        message = str(error).removeprefix(f"{case.path.name}: ")
        return _refusal(case, message)
    try:
        problems = compare(case, outside.read(Path(record.dst))) + record_problems(case, record.as_json())
    except ex.NoForm as why:
        problems = [f"was converted, but has no exact form: {why}"]
    return Verdict(case.release, case.kind, case.classes, "wrong" if problems else "converted", tuple(problems))


def _refusal(case: Case, message: str) -> Verdict:
    reason = documented.reason(case.release, case.kind, message)
    status = "wrong" if reason is None else "refused"
    return Verdict(
        case.release, case.kind, case.classes, status, (f"refused: {message}" if reason is None else reason,)
    )


# --- the file -------------------------------------------------------------------------------------------------------


def compare(case: Case, file: outside.File) -> list[str]:
    """Every difference between an output and the truth. Raises NoForm if there should be no output at all."""
    truth = case.truth
    weights = {name: ex.expected(truth["tensors"][name]) for name in truth["key_order"]}
    wanted = header(truth, weights)
    problems = outside.layout_problems(file)
    problems += list(_header_problems(wanted, file.metadata))
    problems += list(_tensor_problems(flat(truth, weights), file.tensors))
    problems += seal_problems(file)
    for path in references(case):
        problems += [f"{path.name}: {text}" for text in reference_problems(outside.read(path), file)]
    return problems


def references(case: Case) -> list[Path]:
    """The references in today's grammar that were made of this very state dict: the forms of a kind differ in their
    names."""
    stem = case.path.stem if case.path.stem.endswith(".dotted") else case.kind
    found = []
    for path in sorted(case.path.parent.glob(f"{stem}.ref-*.safetensors")):
        names = json.loads(outside.read(path).metadata["tensor_names"])
        if names == case.truth["key_order"] and (case.name, path.name) not in _LOST and "ref-0.14.1" not in path.name:
            found.append(path)
    return found


# 0.17 drops a live reduce_range without a word (FORMATS section 6)
_LOST = {("0.18.0/int8dyn_v2_reduce_range.wrapped", "int8dyn_v2_reduce_range.ref-0.17.0.safetensors")}


def flat(truth: Any, weights: dict[str, ex.Weight]) -> dict[str, ex.Part]:
    """The output's tensor names and what each has to hold."""
    made = {}
    for name, weight in weights.items():
        module, _, parameter = name.rpartition(".")
        for part, wanted in weight.parts.items():
            plain = ROOT_PREFIX + name if "." not in name and truth.get("format") in TAGS else name
            made[f"{module}._{parameter}_{part}" if part else plain] = wanted
    return made


def header(truth: Any, weights: dict[str, ex.Weight]) -> dict[str, Any]:
    """The metadata that the output has to have, in order; the seal is left open, JSON texts are parsed."""
    tag = truth["format"] if truth.get("format") in TAGS else None
    order = truth["key_order"]
    made: dict[str, Any] = {"format": "pt"}
    if tag is not None:
        made |= {"unsloth_format": tag, "unsloth_metadata": metadata(truth["metadata"])}
        if TAGS[tag] == "transformer":
            made["unsloth_quant_layout"] = layout(weights)
    made["unsloth_source" if tag else "depickle_source"] = ...
    listed = [name for name in order if tag is None or "." in name]
    if tag is not None or any(weight.kind for weight in weights.values()):
        made["tensor_names"] = listed
        made |= {name: entry(weights[name]) for name in listed}
    if tag is not None and len(listed) < len(order):
        made["unsloth_root_tensors"] = [name for name in order if "." not in name]
    if "tensor_names" not in made or listed != order:
        made["depickle_order"] = order
    tied = ties(truth)
    if tied:
        made["depickle_ties"] = {"copied": tied}
    return made | {"depickle_header": ...}


def entry(weight: ex.Weight) -> Any:
    """The JSON of one name."""
    if weight.kind is None:
        return {"_type": "Tensor"}
    return {"_type": weight.kind, "_data": weight.attributes, "_tensor_data_names": list(weight.parts)}


def layout(weights: dict[str, ex.Weight]) -> Any:
    """`unsloth_quant_layout` less its prose: the schemes, and torchao v1's facts where they are true of every int8
    weight."""
    made: dict[str, Any] = {"version": 1, "weights": {scheme(w) for w in weights.values() if w.kind is not None}}
    int8 = [w for w in weights.values() if w.kind == "Int8Tensor"]
    if int8 and all(w.facts == ex.FACTS for w in int8):
        made |= {"int8_source": "torchao_v1", "int8_v1": ex.FACTS}
    return made


def scheme(weight: ex.Weight) -> str:
    """The scheme of a quantised weight."""
    if weight.kind != "MXTensor":
        return SCHEMES[str(weight.kind)]
    element = weight.attributes["elem_dtype"]
    bits = re.sub(r"^(float|fp)", "", element if isinstance(element, str) else element["_data"])[0]
    return f"mxfp{bits}"


def metadata(value: Any) -> Any:
    """The truth's metadata as JSON: what JSON lacks spelled as SPEC section 3 has it."""
    if isinstance(value, list):
        return [metadata(item) for item in value]
    if not isinstance(value, dict):
        return value
    if "str_subclass" in value:
        return value["value"]
    if "tuple" in value:
        return metadata(value["tuple"])
    if "float" in value:
        return float(value["float"])
    assert set(value) == {"dict"}, f"the truth's metadata has a new kind of value: {value}"
    return {key: metadata(item) for key, item in value["dict"].items()}


def ties(truth: Any) -> dict[str, str]:
    """alias -> source for plain names that share storage, offset, shape, stride and dtype (no fixture ties quantised
    ones, `M.P::part`)."""
    found: dict[str, str] = {}
    for group in truth["shared_storage"]:
        first: dict[Any, str] = {}
        for name in (name for name in group if "::" not in name):
            tensor = truth["tensors"][name]
            fields = ("class", "storage_offset", "shape", "stride", "dtype", "is_conj", "is_neg")
            key = str([tensor.get(field) for field in fields]).replace("torch.nn.parameter.Parameter", "torch.Tensor")
            if tensor["nbytes"] and first.setdefault(key, name) != name:
                found[name] = first[key]
    return found


def _header_problems(wanted: dict[str, Any], found: dict[str, str]) -> Iterator[str]:
    if list(wanted) != list(found):
        yield f"the header has the keys {list(found)}, expected {list(wanted)}"
    for key in wanted.keys() & found.keys():
        if wanted[key] is ...:
            continue
        value = found[key] if isinstance(wanted[key], str) else json.loads(found[key])
        if key == "unsloth_quant_layout":
            value = _less_prose(value)
        elif not isinstance(value, str) and found[key] != json.dumps(value):
            yield f"{key}: is not spelled as json.dumps does"
        if value != wanted[key] or (key != "unsloth_quant_layout" and json.dumps(value) != json.dumps(wanted[key])):
            yield f"{key}: is {value}, expected {wanted[key]}"


def _less_prose(value: Any) -> Any:
    for name, texts in value["weights"].items():
        if set(texts) != {"tensors", "dequant", "activation"} or not all(
            isinstance(t, str) and t for t in texts.values()
        ):
            return f"{name} lacks its prose"
    return value | {"weights": set(value["weights"])}


def _tensor_problems(wanted: dict[str, ex.Part], found: dict[str, outside.Tensor]) -> Iterator[str]:
    for name in wanted.keys() ^ found.keys():
        yield f"{name}: is {'missing' if name in wanted else 'not in the truth'}"
    for name in wanted.keys() & found.keys():
        part, tensor = wanted[name], found[name]
        if (part.dtype, part.shape) != (tensor.dtype, tensor.shape):
            yield f"{name}: is {tensor.dtype}{tensor.shape}, expected {part.dtype}{part.shape}"
        elif hashlib.sha256(ex.UNDO[part.undo](tensor.data, part.length)).hexdigest() != part.sha256:
            yield f"{name}: its bytes are not those of the truth"


def seal_problems(file: outside.File) -> list[str]:
    """Whether the header's digest is that of the header without it."""
    found = _SEAL.findall(file.raw)
    if len(found) != 1:
        return [f"the header has {len(found)} seals"]
    actual = hashlib.sha256(_SEAL.sub(b"", file.raw)).hexdigest()
    return [] if actual == found[0].decode() else [f"the header's SHA-256 is {actual}, its seal {found[0].decode()}"]


# --- torchao's own reference ----------------------------------------------------------------------------------------


def reference_problems(ref: outside.File, file: outside.File) -> Iterator[str]:
    """Differences from the file that torchao itself wrote of the same state dict."""
    for name in json.loads(ref.metadata["tensor_names"]):
        theirs = json.loads(ref.metadata[name])
        plain = theirs["_type"] == "Tensor"
        if plain and name not in file.metadata:  # a root name, or a file without quantised weights
            continue
        ours = json.loads(file.metadata.get(name, "null"))
        if canonical(ours) != canonical(theirs):
            yield f"{name}: the entry is {ours}, torchao's {theirs}"
    for name, tensor in ref.tensors.items():
        mine = file.tensors.get(name) or file.tensors.get(ROOT_PREFIX + name)
        if mine is None or (mine.dtype, mine.data) != (tensor.dtype, tensor.data) or squeezed(mine) != squeezed(tensor):
            yield f"{name}: is {mine and (mine.dtype, mine.shape)}, torchao's {tensor.dtype, tensor.shape}, or its bytes differ"
    if len(ref.tensors) != len(file.tensors):
        yield f"has {len(file.tensors)} tensors, torchao's {len(ref.tensors)}"


def squeezed(tensor: outside.Tensor) -> tuple[int, ...]:
    """The shape less a last dimension of one behind two others: how 0.15 wrote the scales of groups."""
    return tensor.shape[:-1] if len(tensor.shape) == 3 and tensor.shape[-1] == 1 else tensor.shape


def canonical(value: Any) -> str:
    """An entry less the fields that are left out for older readers' sake; what is left has to be equal, order
    included."""
    data = dict(value.get("_data") or {}) if isinstance(value, dict) else {}
    if data.get("reduce_range", 0) in (False, None):
        data.pop("reduce_range", None)
    if data.get("activation_dtype", 0) in (None, ex.dtype("bfloat16")):
        data.pop("activation_dtype", None)
    kwargs = data.get("act_quant_kwargs")
    if isinstance(kwargs, dict) and kwargs["_data"].get("reduce_range", 0) is False:
        data["act_quant_kwargs"] = kwargs | {"_data": {k: v for k, v in kwargs["_data"].items() if k != "reduce_range"}}
    return json.dumps(value | {"_data": data} if isinstance(value, dict) else value)


# --- the record -----------------------------------------------------------------------------------------------------


def record_problems(case: Case, record: dict[str, Any]) -> list[str]:
    """What the record says that is not so."""
    truth = case.truth
    tag = truth["format"] if truth.get("format") in TAGS else None
    weights = {name: ex.expected(truth["tensors"][name]) for name in truth["key_order"]}
    output = Path(record["dst"]).read_bytes()
    wanted = {
        "src": str(case.path),
        "kind": TAGS[tag] if tag else "state_dict",
        "format": tag,
        "scheme": metadata(truth["metadata"]).get("scheme") if tag else None,
        "tensors": len(weights),
        "quantized": sum(weight.kind is not None for weight in weights.values()),
        "int8_source": layout(weights).get("int8_source"),
        "reader": "depickle",
        "src_bytes": truth["file_bytes"],
        "src_sha256": truth["file_sha256"],
        "dst_bytes": len(output),
        "dst_sha256": hashlib.sha256(output).hexdigest(),
        "verified_bit_identical": True,
        "tied_copies_dropped": {},
    }
    return [
        f"record: {key} is {record.get(key)!r}, expected {value!r}"
        for key, value in wanted.items()
        if record.get(key) != value
    ]
