"""Measure depickle against its floors: `python benchmarks/run.py [--folder DIR] [--only WORD] [--runs N]`.

Makes its inputs (about 20 GB; torch and torchao come into the tests' own cache), runs every line in turns with its
floor, prints one table of medians with minimum and maximum, and writes a JSON file with the machine's facts to
benchmarks/results/.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parent / "src")]

import floors  # noqa: E402 - found by the line above
from measure import COUNTED, Case, in_turns, python, row  # noqa: E402
from tests.oracle import environment  # noqa: E402


def convert(source: Path, out: Path, *options: str) -> list[str]:
    """A whole conversion as a process."""
    return python(COUNTED, str(out / "io"), "convert", str(source), "--out-dir", str(out), "--quiet", *options)


def large(folder: Path, out: Path, runs: int) -> Iterator[Case]:
    """The lines about files of gigabytes."""
    for name in ("int8-1g", "int8-2g", "int8-4g", "fp8-4g", "te-4g"):
        source, made = folder / f"{name}.pt", out / f"{name}.safetensors"
        with source.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        hashed = python(floors.HASH, str(source))
        io = out / "io"
        yield Case(f"{name}, digest known", convert(source, out, "--sha256", digest), hashed, 1.8, [made], runs, io)
        yield Case(f"{name}, digest unknown", convert(source, out), hashed, 2.5, [made], runs, io)
        if name == "int8-4g":
            kernel = python(floors.KERNEL, str(source), str(out / "kernel"))
            both = [made, out / "kernel"]
            yield Case(
                f"{name}, against a bare kernel", convert(source, out, "--sha256", digest), kernel, 1.15, both, runs, io
            )
            verify = [sys.executable, "-m", "depickle", "verify", "--quiet", str(source), str(made)]
            yield Case(f"{name}, verify", verify, hashed, 1.7, [], runs)
            script = [str(environment.python()), "-c", floors.SCRIPT, str(source), str(out / "script.safetensors")]
            place = {"PYTHONPATH": os.pathsep.join([str(environment.torchao("0.17.0")), str(HERE.parent / "src")])}
            yield Case(
                f"{name}, against torch + torchao",
                convert(source, out),
                script,
                None,
                [made, out / "script.safetensors"],
                runs,
                io,
                place,
            )
        made.unlink(missing_ok=True)


def small(folder: Path, out: Path, runs: int) -> Iterator[Case]:
    """The lines about many tensors, tiny files, start-up and views."""
    for count in (1_000, 10_000, 20_000, 100_000):
        source = folder / f"many-{count}.pt"
        unpickle = python(floors.UNPICKLE, str(source))
        target = 2.2 if count == 20_000 else None
        yield Case(
            f"{count} weights of 64 x 64",
            convert(source, out),
            unpickle,
            target,
            [out / f"many-{count}.safetensors"],
            runs,
        )
    tiny = HERE.parent / "examples" / "tiny-int8-v1.pt"
    yield Case(
        "tiny file (target 0.2 s)",
        convert(tiny, out),
        python(floors.NOTHING),
        None,
        [out / "tiny-int8-v1.safetensors"],
        runs,
    )
    yield Case(
        "import depickle (target 80 ms over nothing)", python(floors.IMPORT), python(floors.NOTHING), None, [], runs
    )
    source = folder / "transposed-1g.pt"
    yield Case(
        "transposed 1 GB (target 100 MB/s)",
        convert(source, out),
        python(floors.HASH, str(source)),
        None,
        [out / "transposed-1g.safetensors"],
        runs,
    )


def main() -> None:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=environment.cache() / "benchmark")
    parser.add_argument("--only", default="")
    parser.add_argument("--runs", type=int, default=5)
    args = parser.parse_args()
    os.environ["PYTHONPATH"] = str(HERE.parent / "src")
    place = os.pathsep.join([str(environment.torchao("0.17.0")), str(HERE)])
    maker = [str(environment.python()), str(HERE / "inputs.py"), str(args.folder)]
    subprocess.run(maker, check=True, env={**os.environ, "PYTHONPATH": place})
    out = args.folder / "out"
    out.mkdir(exist_ok=True)
    rows = []
    for case in (
        case for lines in (small, large) for case in lines(args.folder, out, args.runs) if args.only in case.name
    ):
        rows.append(row(case, *in_turns(case)))
        if len(rows) == 1:
            print("| " + " | ".join(rows[0]) + " |\n|" + "---|" * len(rows[0]))
        print("| " + " | ".join(map(str, rows[-1].values())) + " |", flush=True)
    facts = {
        "python": sys.version,
        "platform": platform.platform(),
        "cores": os.cpu_count(),
        "time": time.strftime("%F %T"),
    }
    processors = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    facts["cpu"] = next((line.split(": ")[1] for line in processors if "model name" in line), "")
    result = HERE / "results" / f"{time.strftime('%Y%m%d-%H%M%S')}.json"
    result.parent.mkdir(exist_ok=True)
    result.write_text(json.dumps({"machine": facts, "rows": rows}, indent=1) + "\n")
    print(result)


main()
