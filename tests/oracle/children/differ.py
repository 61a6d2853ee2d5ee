"""Mutated checkpoints through `torch.load(weights_only=True)` and depickle: where both load, they load the same.

In: `{"files", "count", "seed", "folder"}`. Out: how often which of the two declined, and every difference and every
error that is not depickle's own.
"""

from __future__ import annotations

import json
import random
import sys
import warnings
import zipfile
from collections import Counter
from pathlib import Path

import torch

import depickle
import depickle.torch
from depickle.torch.judge import _differences, _state_dict
from depickle.torch.library import Library
from depickle.torch.live import json_of
from depickle.torch.sides import side_of
from depickle.torch.sources import load_source

warnings.simplefilter("ignore")


def records(path):
    with zipfile.ZipFile(path) as archive:
        return {info.filename: archive.read(info) for info in archive.infolist()}


def write(path, found):
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in found.items():
            archive.writestr(name, data)


def mutate(data, dice):
    """One to three small changes of a pickle: a byte, a bit, a stretch cut, doubled, or copied over another."""
    data = bytearray(data)
    for _ in range(dice.choice((1, 1, 1, 2, 3))):
        at, length = dice.randrange(len(data)), dice.choice((1, 1, 2, 4, 12))
        kind = dice.randrange(6)
        if kind == 0:
            data[at] = dice.randrange(256)
        elif kind == 1:
            data[at] ^= 1 << dice.randrange(8)
        elif kind == 2:
            del data[at : at + length]
        elif kind == 3:
            data[at:at] = data[at : at + length]
        elif kind == 4:
            other = dice.randrange(len(data))
            data[at : at + length] = data[other : other + length]
        else:
            data[at] = (data[at] + dice.choice((-1, 1))) % 256
    return bytes(data)


def by_depickle(path):
    try:
        return depickle.torch.load(path), None
    except depickle.Error as error:
        return None, error


def by_torch(path, library):
    try:
        try:
            with depickle.open_checkpoint(path) as checkpoint:
                return load_source(checkpoint, library), None
        except depickle.Error as error:
            if "torch.load does not read it" in str(error):
                return None, error
        with torch.serialization.safe_globals([torch.torch_version.TorchVersion]):
            return torch.load(path, weights_only=True), None
    except Exception as error:  # noqa: BLE001 - whatever torch raises
        return None, error


def differences(mine, theirs):
    tagged = isinstance(theirs, dict) and isinstance(theirs.get("format"), str) and "state_dict" in theirs
    said = (theirs["format"], json_of(theirs.get("metadata") or {}, "")) if tagged else (None, {})
    if said != (mine["format"], mine["metadata"]):
        return ["format or metadata"]
    theirs = _state_dict(theirs, set(mine["state_dict"])) if mine["format"] is None else theirs["state_dict"]
    if list(mine["state_dict"]) != list(theirs):
        return ["names"]
    found = []
    for name, tensor in theirs.items():
        found += [f"{name}: {text}" for text in _differences(side_of(tensor), side_of(mine["state_dict"][name]))]
    return found


def main():
    job = json.load(sys.stdin)
    library, dice = Library(), random.Random(job["seed"])
    counted, different, foreign, alone = Counter(), [], [], []
    path = Path(job["folder"]) / "mutated.pt"
    for source in job["files"]:
        honest = records(source)
        pickle_name = next(name for name in honest if name.endswith("data.pkl"))
        for i in range(job["count"]):
            write(path, {**honest, pickle_name: mutate(honest[pickle_name], dice)})
            try:
                mine, error = by_depickle(path)
                theirs, complaint = by_torch(path, library)
                if mine is not None and theirs is not None:
                    counted["both"] += 1
                    different += [f"{source} {i}: {text}" for text in differences(mine, theirs)]
                elif mine is None and theirs is None:
                    counted["neither"] += 1
                elif mine is None:
                    counted[f"torch alone: {type(error).__name__}"] += 1
                else:
                    alone.append(str(complaint))
            except Exception as error:  # noqa: BLE001 - that is the finding
                foreign.append(f"{source} {i}: {type(error).__name__}: {error}")
    print(json.dumps({"counted": counted, "different": different[:20], "foreign": foreign[:20], "alone": alone}))


main()
