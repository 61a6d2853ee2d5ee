"""Damaged converted files of every class of today, one fault each, and what `depickle.torch.load` says of them.

In: `{"folder", "fixtures"}`. Out: per case `{"kind": the error's class or null, "said": its text, "weight": the name
that was damaged}`. Files are taken apart and put together by what the format says, not by depickle.
"""
# ruff: noqa: ARG005 - the changes of a table share a signature

from __future__ import annotations

import copy
import json
import sys
import warnings
from pathlib import Path

import depickle
import depickle.torch

warnings.simplefilter("ignore")

CLASSES = (
    *("Float8Tensor", "Int8Tensor", "Int4Tensor", "Int4PlainInt32Tensor", "Int4TilePackedTo4dTensor"),
    *("IntxUnpackedToInt8Tensor", "MXTensor", "NVFP4Tensor"),
)
NUMBER = {"_type": "torch.dtype", "_data": "float7"}  # no value that any field can have


class File:
    """A safetensors file in pieces: metadata, and per tensor dtype, shape and bytes."""

    def __init__(self, path):
        raw = Path(path).read_bytes()
        length = int.from_bytes(raw[:8], "little")
        header = json.loads(raw[8 : 8 + length])
        self.metadata = header.pop("__metadata__")
        self.metadata.pop("depickle_header")
        data = raw[8 + length :]
        self.tensors = {
            name: [item["dtype"], item["shape"], data[slice(*item["data_offsets"])]] for name, item in header.items()
        }

    def header(self):
        header, at = {"__metadata__": self.metadata}, 0
        for name, (dtype, shape, data) in self.tensors.items():
            header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
            at += len(data)
        return header

    def data(self):
        return b"".join(data for _, _, data in self.tensors.values())


def joined(header, data):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def of_each_class(fixtures, folder):
    """For every class a converted file, and the name of a weight of it with as many parts as there are."""
    found = {}
    for path in sorted(fixtures.glob("0.1[78].0/*.pt")):
        with depickle.open_checkpoint(path, keep_unsupported=True) as checkpoint:
            for name, weight in checkpoint.weights.items():
                best = found.get(weight.kind)
                if weight.kind in CLASSES and (best is None or len(weight.parts) > best[2]):
                    found[weight.kind] = (path, name, len(weight.parts))
    assert set(found) == set(CLASSES)
    return {kind: (depickle.convert(path, folder / kind).dst, name) for kind, (path, name, _) in found.items()}


def class_cases(kind, path, name):
    """One fault of a weight each: (what, the file's bytes)."""
    whole = File(path)
    entry = json.loads(whole.metadata[name])
    module, _, last = name.rpartition(".")

    def changed(change):
        file, said = copy.deepcopy(whole), copy.deepcopy(entry)
        change(file, said)
        file.metadata[name] = json.dumps(said)
        return joined(file.header(), file.data())

    def without_field(field):
        return changed(lambda file, said: said["_data"].pop(field))

    def with_field(field, value):
        return changed(lambda file, said: said["_data"].update({field: value}))

    for part in entry["_tensor_data_names"]:
        key = f"{module}._{last}_{part}"
        _, shape, data = whole.tensors[key]
        yield f"part gone: {part}", changed(lambda file, said, key=key: file.tensors.pop(key))
        yield f"part unlisted: {part}", changed(lambda file, said, part=part: said["_tensor_data_names"].remove(part))
        wrong = ["BOOL", [len(data)], data]
        yield f"part bool: {part}", changed(lambda file, said, key=key, w=wrong: file.tensors.update({key: w}))
        bent = [whole.tensors[key][0], [1, 1, *shape], data]
        yield f"part bent: {part}", changed(lambda file, said, key=key, b=bent: file.tensors.update({key: b}))
    yield "part twice", changed(lambda file, said: said["_tensor_data_names"].append("qdata"))
    yield "part unknown", changed(lambda file, said: said["_tensor_data_names"].append("noise"))
    yield "field unknown", with_field("noise", 3)
    for field in entry["_data"]:
        yield f"field gone: {field}", without_field(field)
        yield f"field wrong: {field}", with_field(field, NUMBER)
    yield "class unknown", changed(lambda file, said: said.update({"_type": "Float9Tensor"}))
    yield "class plain", changed(lambda file, said: said.update({"_type": "Tensor"}))


def file_cases(path, name):
    """Faults of the file as a whole."""
    whole = File(path)
    header, data = whole.header(), whole.data()
    names = json.loads(whole.metadata["tensor_names"])
    first, second = list(whole.tensors)[:2]

    def metadata(**changes):
        return joined({**header, "__metadata__": {**whole.metadata, **changes}}, data)

    def offsets(key, by):
        begin, end = header[key]["data_offsets"]
        return joined({**header, key: {**header[key], "data_offsets": [begin + by[0], end + by[1]]}}, data)

    extra = copy.deepcopy(whole)
    extra.tensors["more.weight"] = ["U8", [3], b"abc"]
    yield "tensor extra", joined(extra.header(), extra.data())
    extra.tensors = {**whole.tensors, f"{name.replace('.weight', '._weight')}_more": ["U8", [3], b"abc"]}
    yield "tensor extra like a part", joined(extra.header(), extra.data())
    yield "name twice", metadata(tensor_names=json.dumps([*names, names[0]]))
    yield "name without entry", metadata(tensor_names=json.dumps([*names, "more.weight"]))
    yield "name unlisted", metadata(tensor_names=json.dumps([item for item in names if item != name]))
    yield "names no list", metadata(tensor_names="7")
    yield "names no JSON", metadata(tensor_names="[")
    yield "entry no JSON", metadata(**{name: "{"})
    yield "entry a list", metadata(**{name: "[]"})
    yield "ranges overlap", offsets(second, (-1, -1))
    yield "range empty", offsets(second, (1, 0))
    yield "range beyond", offsets(list(whole.tensors)[-1], (0, len(data)))
    yield "range reversed", offsets(first, (len(data), 0))
    yield "shape wrong", joined({**header, first: {**header[first], "shape": [*header[first]["shape"], 2]}}, data)
    yield "shape negative", joined({**header, first: {**header[first], "shape": [-1]}}, data)
    yield "dtype unknown", joined({**header, first: {**header[first], "dtype": "F7"}}, data)
    yield "data cut", joined(header, data[:-1])
    yield "data more", joined(header, data + b"x")
    text = json.dumps(header).encode()
    yield "header cut in its length", joined(text, data)[:5]
    yield "header cut", joined(text, data)[: 8 + len(text) // 2]
    yield "header short", len(text[:-9]).to_bytes(8, "little") + text[:-9] + data
    yield "header no JSON", joined(b"{" + text, data)
    yield "header huge", (2**63).to_bytes(8, "little") + text + data
    yield "key twice", joined(text[:-1] + b',"' + first.encode() + b'":{}}', data)
    sealed = Path(path).read_bytes()
    turned = sealed.index(b'"format"') + 3
    yield "bit turned", sealed[:turned] + bytes([sealed[turned] ^ 1]) + sealed[turned + 1 :]


def outcome(data, path, name):
    path.write_bytes(data)
    try:
        depickle.torch.load(path)
    except depickle.Error as error:
        return {"kind": type(error).__name__, "said": str(error), "weight": name}
    except Exception as error:  # noqa: BLE001 - what must not be, told as it is
        return {"kind": f"not ours: {type(error).__name__}", "said": str(error), "weight": name}
    return {"kind": None, "said": "", "weight": name}


def main():
    job = json.load(sys.stdin)
    folder = Path(job["folder"])
    made = of_each_class(Path(job["fixtures"]), folder)
    out = {}
    for kind, (path, name) in made.items():
        assert (
            outcome(joined(File(path).header(), File(path).data()), folder / "whole.safetensors", name)["kind"] is None
        )
        for what, data in class_cases(kind, path, name):
            out[f"{kind}: {what}"] = outcome(data, folder / "damaged.safetensors", name)
    path, name = made["Float8Tensor"]
    for what, data in file_cases(path, name):
        out[f"file: {what}"] = outcome(data, folder / "damaged.safetensors", name)
    print(json.dumps(out))


main()
