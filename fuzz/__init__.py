"""Fuzzing: any bytes give a value, one of depickle's errors, or OSError; nothing else, in little time and memory.

    python -m fuzz --seconds 60 [target ...]

One module a target. With atheris (PyPI) a run is guided by coverage, without it mutations of the seeds are tried at
random; `--plain` does so anyway. Seeds are the real files of tests/data/fixtures and a few built ones. What breaks the
contract is saved under fuzz/crashes/ and makes the exit status 1; `python -m fuzz TARGET --replay FILE` runs it again.
"""
