"""The pickle machine: any bytes, from any offset."""

from __future__ import annotations

from depickle.vm import run

from . import seeds


def seed() -> list[bytes]:
    return seeds.pickles()


def target(data: bytes) -> object:
    program = run(data)
    assert program.end <= len(data)
    assert all(used.offset < program.end for used in program.globals)
    return program
