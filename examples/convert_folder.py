"""Convert every checkpoint of a folder, keep one record a file, and go on after a refusal:
python examples/convert_folder.py FOLDER OUT_DIR RECORDS.jsonl.

What is there already and is what would be written now is proved again and skipped, so the script can be run again.
This is for checkpoints that lie side by side; the folder of one model, with its index and config, is one call:
`depickle.convert_folder`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import depickle

SUFFIXES = {".pt", ".pth", ".bin"}


def main(folder: str, out_dir: str, records: str) -> int:
    """Convert all; return how many were not converted."""
    failed = 0
    with Path(records).open("a", encoding="utf-8") as report:
        for path in sorted(Path(folder).rglob("*")):
            if path.suffix.lower() not in SUFFIXES or not path.is_file():
                continue
            target = Path(out_dir) / path.parent.relative_to(folder)
            try:
                record = depickle.convert(path, target)
            except (depickle.Error, depickle.UsageError, OSError) as error:
                failed += 1
                print(f"{path}: {error}", file=sys.stderr)
                continue
            report.write(json.dumps(record.as_json()) + "\n")
            print(f"{path}: {'there already' if record.skipped else 'converted'}")
    return failed


if __name__ == "__main__":
    sys.exit(1 if main(*sys.argv[1:]) else 0)
