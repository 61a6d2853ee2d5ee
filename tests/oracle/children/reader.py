"""Under one torchao release: read converted files with the safetensors package, with torchao's own reader and with
depickle, and judge them.

In: `{"files": [{"name", "src", "dst"}], "check": bool, "folder": ...}`. Out: per file and reader what each weight
became.
"""

from __future__ import annotations

import json
import sys
import warnings

import describe
import torch

warnings.simplefilter("ignore")

from safetensors import safe_open  # noqa: E402

import depickle  # noqa: E402
import depickle.torch  # noqa: E402


def weight(made):
    described = describe.describe(made)
    if "inner" in described:
        described["dequantized"] = describe.values(made)
    return described


def attempt(read):
    """What a reader made of one weight, or the words with which it declined."""
    try:
        return read()
    except Exception as error:  # noqa: BLE001 - any of them is a refusal to record
        return {"error": f"{type(error).__name__}: {getattr(error, 'message', error)}"}


def unflatten(path):
    """torchao's own reader over the whole file, as its users call it; names without a dot apart."""
    from torchao.prototype.safetensors.safetensors_support import unflatten_tensor_state_dict
    from torchao.prototype.safetensors.safetensors_utils import is_metadata_torchao

    with safe_open(path, framework="pt") as file:
        metadata = file.metadata()
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    if "tensor_names" not in metadata:
        return {"plain": True, "tensors": sorted(tensors)}
    accepted = bool(is_metadata_torchao(metadata))
    names = [name for name in json.loads(metadata["tensor_names"]) if "." in name]
    whole = attempt(lambda: _whole(unflatten_tensor_state_dict, tensors, metadata, names))
    if "error" not in whole:
        return {"accepted": accepted, **whole}
    weights = {}
    for name in names:  # one that this release does not take stops the whole file: ask for each by itself
        found = attempt(lambda name=name: _whole(unflatten_tensor_state_dict, tensors, metadata, [name]))
        weights[name] = found["weights"].get(name, {"error": "not in the result"}) if "weights" in found else found
    return {"accepted": accepted, "error": whole["error"], "weights": weights}


def _whole(unflatten_tensor_state_dict, tensors, metadata, names):
    found, left = unflatten_tensor_state_dict(tensors, {**metadata, "tensor_names": json.dumps(names)})
    return {"weights": {name: weight(made) for name, made in found.items()}, "left": sorted(left)}


def load(path, **options):
    """depickle's loader, whole; if it declines, weight by weight."""
    try:
        found = depickle.torch.load(path, **options)["state_dict"]
    except depickle.Error as error:
        with depickle.open_checkpoint(path) as checkpoint:
            names = list(checkpoint.weights)
        found = {
            name: attempt(lambda name=name: depickle.torch.load(path, names=[name], **options)["state_dict"][name])
            for name in names
        }
        return {
            "error": error.message,
            "weights": {name: made if isinstance(made, dict) else weight(made) for name, made in found.items()},
        }
    return {"weights": {name: weight(made) for name, made in found.items()}}


def formulas(path):
    """depickle's own dequantisation beside the installed class's."""
    try:
        plain = depickle.torch.load(path, dequantize=True)["state_dict"]
    except depickle.Error as error:
        return {"error": str(error)}
    return {"weights": {name: describe.digest(tensor) for name, tensor in plain.items()}}


def check(judge, file, folder):
    """`--check-with torch`: on an honest conversion, and on one in which a bit of every weight's scale is turned."""
    try:
        record = depickle.convert(file["src"], folder, check_with="torch")
    except depickle.Error as error:
        return {"error": f"{type(error).__name__}: {error}"}
    with safe_open(record.dst, framework="pt") as opened:
        scales = [name for name in opened.keys() if name.endswith("_scale")]  # noqa: SIM118
    if not scales:
        return {"reader": record.reader, "turned": [], "findings": []}
    for name in scales:
        turn_a_bit(record.dst, name)
    with depickle.open_checkpoint(file["src"]) as checkpoint:
        try:
            judge.check(checkpoint, record.dst)
        except depickle.Mismatch as error:
            return {"reader": record.reader, "turned": scales, "findings": error.findings}
    return {"reader": record.reader, "turned": scales, "findings": []}


def turn_a_bit(path, name):
    """Turn the lowest bit of a byte in the middle of a tensor."""
    with open(path, "r+b") as file:
        length = int.from_bytes(file.read(8), "little")
        begin, end = json.loads(file.read(length))[name]["data_offsets"]
        at = 8 + length + (begin + end) // 2
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1]))


def main():
    job = json.load(sys.stdin)
    out = {"torch": torch.__version__, "files": {}}
    judge = None
    if job["check"]:
        from depickle.torch.judge import TorchJudge

        judge = TorchJudge()
    for i, file in enumerate(job["files"]):
        found = {"unflatten": attempt(lambda: unflatten(file["dst"])), "load": load(file["dst"])}  # noqa: B023
        if job["check"]:
            found["pickle"] = load(file["src"])
            found["formulas"] = formulas(file["dst"])
            found["check"] = check(judge, file, f"{job['folder']}/{i}")
        out["files"][file["name"]] = found
    print(json.dumps(out))


main()
