"""A run that coverage guides: `python -m fuzz.guided TARGET [libFuzzer options]`. Needs atheris.

libFuzzer owns the process: it ends with it. A finding is written under crashes/ by the contract, then raised.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path


def main() -> None:
    """Fuzz one target until libFuzzer's options say that it is enough; a finding ends the run."""
    import atheris

    name, *options = sys.argv[1:]
    with atheris.instrument_imports(include=["depickle"]):
        from . import contract, targets

        module = targets.load(name)
    corpus = Path(tempfile.mkdtemp(prefix=f"depickle-fuzz-{name}-"))
    for number, data in enumerate(module.seed()):
        (corpus / f"seed{number:04}").write_bytes(data)
    crashes = contract.CRASHES / name
    crashes.mkdir(parents=True, exist_ok=True)

    def one(data: bytes) -> None:
        finding = contract.run(module.target, data)
        if finding is not None:
            print(f"FINDING {name} {contract.save(name, data)}: {finding}", file=sys.stderr, flush=True)
            raise RuntimeError(finding)

    fixed = [
        f"-artifact_prefix={crashes}/",
        "-max_len=65536",
        "-rss_limit_mb=2048",
        "-timeout=20",
        "-print_final_stats=1",
    ]
    atheris.Setup([sys.argv[0], *fixed, *options, str(corpus)], one)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
