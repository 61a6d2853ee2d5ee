"""Kill conversions at random moments and look at what is left.

    python -m tests.faults.kills --size 1G --kills 200

After each kill: the destination is absent or complete (with `--overwrite`, which every second round uses: the old file
or the new one, complete). After the run that follows and ends: the destination, and nothing else. Prints one line of
figures; exit status 1 if anything was wrong.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import sources
from child import PATIENCE, convert, digest, ended, start

import depickle

NAME = "model.safetensors"
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def kill_often(
    source: Path, folder: Path, kills: int, *, seed: int = 0, say: Callable[[str], None] = lambda _: None
) -> tuple[Counter[str], list[str]]:
    """Kill `kills` runs; return what was found after each, and what was wrong."""
    noise = random.Random(seed)
    right, old, seconds = _prepare(source, folder)
    seen: Counter[str] = Counter()
    wrong: list[str] = []
    out = folder / "out"
    for number in range(kills):
        replacing = number % 2 == 1
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir()
        if replacing:
            shutil.copy(old, out / NAME)
        found = _kill_one(source, out, noise.uniform(0.0, 1.05 * seconds), replacing)
        state = _state(out / NAME, {digest(old): "old", right: "complete"})
        litter = len([name for name in os.listdir(out) if name != NAME])
        seen[f"{found}, {state}, {litter} litter"] += 1
        if state not in ({"old", "complete"} if replacing else {"absent", "complete"}):
            wrong.append(f"kill {number}: the destination is {state}")
        depickle.convert(source, out, overwrite=replacing)  # the next run
        left = sorted(os.listdir(out))
        if left != [NAME] or digest(out / NAME) != right:
            wrong.append(f"kill {number}: after the next run there is {left}")
        say(f"{number + 1} of {kills}: {found}, {state}, {litter} litter; {len(wrong)} wrong")
    return seen, wrong


def _prepare(source: Path, folder: Path) -> tuple[str, Path, float]:
    """The right result, another complete file in its place, and the time of a run."""
    first = folder / "first"
    begun = time.monotonic()
    done = convert(source, first, "--quiet")
    seconds = time.monotonic() - begun
    assert done.status == 0, done
    other = convert(source, folder / "old", "--quiet", "--revision", "0" * 40)
    assert other.status == 0, other
    right = digest(first / NAME)
    shutil.rmtree(first)
    return right, folder / "old" / NAME, seconds


def _kill_one(source: Path, out: Path, delay: float, replacing: bool) -> str:
    more = ["--overwrite"] if replacing else []
    with ended(start("convert", source, "--out-dir", out, "--quiet", *more)) as process:
        end = time.monotonic() + delay
        while time.monotonic() < end and process.poll() is None:
            time.sleep(0.001)
        if process.poll() is not None:
            return "ended"
        process.kill()
        process.wait(PATIENCE)
        return "killed"


def _state(path: Path, known: dict[str, str]) -> str:
    return known.get(digest(path), "WRONG") if path.exists() else "absent"


def _size(text: str) -> int:
    unit = text[-1:].upper()
    return int(text[:-1]) * _UNITS[unit] if unit in _UNITS else int(text)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.kills", description="Kill conversions at random.")
    parser.add_argument("--size", default="1G", help="size of the source, with K, M or G")
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--folder", default=None, help="where the files go (default: the system's temporary folder)")
    args = parser.parse_args()
    seed = random.randrange(2**32) if args.seed is None else args.seed
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="depickle-kills-", dir=args.folder) as name:
        folder = Path(name)
        source = sources.write(folder / "model.pt", _size(args.size))
        print(f"source of {source.stat().st_size} bytes, seed {seed}", flush=True)
        seen, wrong = kill_often(source, folder, args.kills, seed=seed, say=lambda text: print(text, flush=True))
    for text, count in sorted(seen.items()):
        print(f"{count:>5}  {text}")
    for text in wrong:
        print(f"WRONG  {text}")
    print(f"{args.kills} kills, {len(wrong)} wrong, {time.monotonic() - begun:.0f} s")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
