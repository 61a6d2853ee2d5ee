"""The targets by name."""

from __future__ import annotations

from typing import Protocol

from . import conversion, legacy_archive, machine, safetensors_file, scanning, whole, zip_archive
from .contract import Target


class Module(Protocol):
    """What each target's module has."""

    target: Target

    def seed(self) -> list[bytes]:
        """Cases to start from."""


TARGETS = {
    module.__name__.rpartition(".")[2]: module
    for module in (machine, zip_archive, legacy_archive, safetensors_file, whole, conversion, scanning)
}


def load(name: str) -> Module:
    """The module of a target."""
    return TARGETS[name]
