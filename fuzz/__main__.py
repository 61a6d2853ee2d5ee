"""`python -m fuzz`: run targets one after the other, each in a process of its own under limits."""

from __future__ import annotations

import argparse
import importlib.util
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from . import contract
from .mutation import Mutator
from .targets import TARGETS, load

ROOT = Path(__file__).resolve().parents[1]


def plain(name: str, seconds: float, seed: int) -> int:
    """Try mutations for so long, in this process; return how many kinds of findings there were."""
    module = load(name)
    seeds = module.seed()
    contract.limit_memory()
    findings: dict[str, int] = {}
    outcomes: Counter[str] = Counter()
    begun = time.monotonic()
    mutator = Mutator(seeds, seed)
    cases = iter(seeds)
    count = 0
    while time.monotonic() - begun < seconds:
        data = next(cases, b"") if count % 4 == 0 else mutator.next()
        finding = contract.run(_counted(module.target, outcomes), data)
        count += 1
        if finding is not None:
            if contract.kind(finding) not in findings:
                print(f"FINDING {name} {contract.save(name, data)}: {finding}", flush=True)
            findings[contract.kind(finding)] = findings.get(contract.kind(finding), 0) + 1
    taken = time.monotonic() - begun
    told = ", ".join(f"{number} {kind}" for kind, number in outcomes.most_common())
    print(
        f"{name}: {count} cases in {taken:.0f} s from {len(seeds)} seeds ({told}); {len(findings)} kinds of findings",
        flush=True,
    )
    return len(findings)


def _counted(target: contract.Target, outcomes: Counter[str]) -> contract.Target:
    def run(data: bytes) -> object:
        try:
            value = target(data)
        except BaseException as error:
            outcomes[type(error).__name__] += 1
            raise
        outcomes["values"] += 1
        return value

    return run


def replay(name: str, path: str) -> int:
    """Run one saved case with its traceback."""
    contract.limit_memory()
    finding = contract.run(load(name).target, Path(path).read_bytes())
    print(finding or "kept the contract")
    return 1 if finding else 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m fuzz", description="Fuzz depickle.")
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"which of {', '.join(TARGETS)} (default: all)")
    parser.add_argument("--seconds", type=float, default=60, help="for each target")
    parser.add_argument("--seed", type=int, default=None, help="of the mutations")
    parser.add_argument("--plain", action="store_true", help="mutations at random, also if atheris is there")
    parser.add_argument("--replay", metavar="FILE", help="run one case of one target")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    unknown = set(args.targets) - set(TARGETS)
    if unknown or (args.replay and len(args.targets) != 1):
        parser.error(f"no such target: {', '.join(sorted(unknown))}" if unknown else "--replay goes with one target")
    if args.replay:
        return replay(args.targets[0], args.replay)
    seed = random.randrange(2**32) if args.seed is None else args.seed
    if args.here:
        return 1 if plain(args.targets[0], args.seconds, seed) else 0
    guided = not args.plain and importlib.util.find_spec("atheris") is not None
    bad = 0
    for name in args.targets or TARGETS:
        command = [sys.executable, "-m", "fuzz", name, "--here", "--seconds", str(args.seconds), "--seed", str(seed)]
        if guided:
            command = [
                sys.executable,
                "-m",
                "fuzz.guided",
                name,
                f"-max_total_time={args.seconds:.0f}",
                f"-seed={seed % 2**31}",
            ]
        done = subprocess.run(command, cwd=ROOT, check=False)
        if done.returncode != 0:
            print(f"{name}: exit status {done.returncode} (seed {seed})", flush=True)
            bad += 1
    return 1 if bad else 0


if __name__ == "__main__":
    raise SystemExit(main())
