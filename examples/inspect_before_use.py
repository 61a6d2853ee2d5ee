"""Decide by what a checkpoint holds whether to convert it: python examples/inspect_before_use.py MODEL.pt OUT_DIR.

Opening reads the pickle and no tensor, and executes nothing: a file that names anything foreign is refused there.
"""

from __future__ import annotations

import sys
from collections import Counter

import depickle


def look(path: str) -> bool:
    """Print what the file holds; say whether it is one that this script wants."""
    with depickle.open_checkpoint(path) as checkpoint:
        classes = Counter(checkpoint.classes.get(name, "Tensor") for name in checkpoint.weights)
        print(f"{path}: {checkpoint.kind}, scheme {checkpoint.metadata.get('scheme')}")
        for name, count in classes.most_common():
            print(f"  {count} x {name}")
        for warning in checkpoint.warnings:
            print(f"  note: {warning}")
        return checkpoint.quantized > 0


def main(path: str, out_dir: str) -> int:
    """Look, then convert; return the exit status."""
    try:
        if not look(path):
            print("nothing quantised here, left alone")
            return 0
        print(depickle.convert(path, out_dir).dst)
    except depickle.Error as error:
        print(f"not used: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
