"""Measure `depickle.torch.load` against the safetensors package: `python benchmarks/loading.py FILE.pt ... [--runs N]`.

Each pickle, of int8 weights, is converted once. Then processes in turns, the other's and ours, load the result under
torchao 0.18: the other with `safetensors.torch.load_file` and torchao's constructors, ours with `depickle.torch.load`.
Told are the seconds of the call alone and of the call with a byte of every page read, the ratio of the latter, how much
memory the call took at its peak (no page of the data is read by then), and what is held in the end beside the pages.
torch and torchao come into the tests' own cache.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parent / "src")]

from measure import spread  # noqa: E402 - found by the line above
from tests.oracle import environment  # noqa: E402

import depickle  # noqa: E402

# Both import all that they use and load one weight, before the clock starts.
PROGRAM = """
import json, sys, time, warnings
warnings.simplefilter("ignore")
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torchao.quantization import Int8Tensor, PerRow
from torchao.quantization.quantize_.workflows.int8.int8_tensor import QuantizeTensorToInt8Kwargs
import depickle.torch

def theirs(path):
    tensors = load_file(path)
    with safe_open(path, "pt") as file:
        metadata = file.metadata()
    made, kwargs = {}, QuantizeTensorToInt8Kwargs(granularity=PerRow())
    for name in json.loads(metadata["tensor_names"]):
        entry = json.loads(metadata[name])
        if entry["_type"] == "Tensor":
            made[name] = tensors[name]
        else:
            module, _, last = name.rpartition(".")
            parts = [tensors[f"{module}._{last}_{part}"] for part in ("qdata", "scale")]
            made[name] = Int8Tensor(*parts, entry["_data"]["block_size"], torch.bfloat16, act_quant_kwargs=kwargs)
    return made

def ours(path):
    return depickle.torch.load(path)["state_dict"]

def status(key):
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(key)) / 1024

who, path, first = sys.argv[1:]
depickle.torch.load(path, names=[first])
open("/proc/self/clear_refs", "w").write("5")  # the high-water mark begins anew
before, held = status("VmHWM"), status("RssAnon")
started = time.perf_counter()
state_dict = globals()[who](path)
called = time.perf_counter() - started
grown = status("VmHWM") - before
for tensor in state_dict.values():
    parts = [tensor.qdata, tensor.scale] if isinstance(tensor, Int8Tensor) else [tensor]
    for part in parts:
        part.reshape(-1).view(torch.uint8)[::4096].sum()
read = time.perf_counter() - started
print(json.dumps({"called": called, "read": read, "grown": grown, "held": status("RssAnon") - held, "n": len(state_dict)}))
"""


def once(who: str, path: str, first: str) -> dict[str, float]:
    """One process that loads the file, ours or theirs."""
    places = os.pathsep.join([str(environment.torchao("0.18.0")), str(HERE.parent / "src")])
    command = [str(environment.python()), "-c", PROGRAM, who, path, first]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": places}, check=True, capture_output=True, text=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def row(source: Path, runs: int, folder: str) -> list[str]:
    """One file's line of the table."""
    path = depickle.convert(source, folder).dst
    with depickle.open_checkpoint(path) as checkpoint:
        first = next(name for name, weight in checkpoint.weights.items() if weight.kind is not None)
    pairs = [(once("theirs", path, first), once("ours", path, first)) for _ in range(runs + 1)][1:]
    os.unlink(path)
    ratios = [mine["read"] / other["read"] for other, mine in pairs]
    cells = [f"{source.name}, {pairs[0][1]['n']:.0f} names"]
    for key in ("called", "read"):
        cells += [spread([mine[key] for _, mine in pairs]), spread([other[key] for other, _ in pairs])]
    cells.append(f"{statistics.median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})")
    return [*cells, *(f"{max(mine[key] for _, mine in pairs):.0f}" for key in ("grown", "held"))]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sources", nargs="+", type=Path, metavar="FILE.pt")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--folder", help="where results of conversions lie for a while")
    args = parser.parse_args()
    head = ["file", "call s", "safetensors s", "call and read s", "safetensors s", "ratio (target <= 1.2)"]
    head += ["peak MiB of the call", "MiB held beside the pages"]
    print("| " + " | ".join(head) + " |\n|" + "---|" * len(head))
    for source in args.sources:
        with tempfile.TemporaryDirectory(dir=args.folder) as folder:
            print("| " + " | ".join(row(source, args.runs, folder)) + " |", flush=True)


main()
