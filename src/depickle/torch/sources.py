"""[extra `torch`] A pickle as real torch sees it: `torch.load(weights_only=True)`, allowed only what the file names.

Classes that the installed torchao has are loaded as such. For those that it has no longer, and for functions, stand-ins
are registered under the names in the file: they hold the pickled state and do nothing. depickle has read the file
before, and accepted it; torch's own restricted unpickler judges it a second time.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import torch

from ..checkpoint import Checkpoint
from ..errors import Refused, show
from ..schemas import BY_CLASS, ENUM_BY_CLASS, FUNCTIONS, RECORD_BY_CLASS, Enum
from .library import Library, quiet

_VERSION: Final = "torch.torch_version.TorchVersion"


class StandIn(torch.Tensor):
    """A weight of a class that is not installed: its pickled state as attributes."""

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Wrapper subclasses need one; a stand-in can do nothing."""
        raise NotImplementedError(f"{func} on the stand-in for {cls.__name__}")


class Fields:
    """A record of a class that is not installed."""


class Function:
    """A function that the file names: its name, never called."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self) -> None:
        """Only callables may be registered with torch."""
        raise Refused(f"{self.name} is a name here")


class Member:
    """A member of an enumeration that the installed torchao does not have."""

    def __init__(self, name: str) -> None:
        self.name = name


class Members:
    """What an enumeration's values are looked up by: the installed one, else our table."""

    def __init__(self, row: Enum, cls: Callable[[object], enum.Enum] | None) -> None:
        self._row, self._cls = row, cls

    def __call__(self, value: object) -> Any:
        """The member of a value."""
        if self._cls is not None:
            try:
                return self._cls(value)
            except ValueError:
                pass
        for name, known in self._row.members:
            if known == value:
                return typed_member(self._row.name, name)
        raise Refused(f"{self._row.name} has no member {value!r}")


def typed_member(owner: str, name: str) -> Member:
    """A member whose class has the enumeration's name."""
    made: Member = type(owner, (Member,), {})(name)
    return made


def load_source(checkpoint: Checkpoint, library: Library) -> Any:
    """Load a pickle with the real torch. Raises Refused if torch does not take it."""
    allowed = [(stand_in, name) for name, stand_in in _allowed(checkpoint, library).items()]
    try:
        with _just(allowed), quiet():
            return torch.load(
                checkpoint.source.path, map_location="cpu", weights_only=True, mmap=checkpoint.container == "torch-zip"
            )
    except Refused:
        raise
    except Exception as error:  # whatever torch raises, it means that it cannot be a judge of this file
        reason = str(error).rpartition("WeightsUnpickler error: ")[2].strip().partition("\n")[0]
        raise Refused(f"torch.load does not read it, so torch cannot check it: {show(reason, 300)}") from error


@contextmanager
def _just(allowed: list[Any]) -> Iterator[None]:
    """Let torch's unpickler know these globals and no others: torchao registers its own classes when it is imported."""
    before = torch.serialization.get_safe_globals()
    torch.serialization.clear_safe_globals()
    torch.serialization.add_safe_globals(allowed)
    try:
        yield
    finally:
        torch.serialization.clear_safe_globals()
        torch.serialization.add_safe_globals(before)


def _allowed(checkpoint: Checkpoint, library: Library) -> Mapping[str, Any]:
    found: dict[str, Any] = {}
    for used in checkpoint.globals:
        name = used.full
        if name in BY_CLASS:
            row = BY_CLASS[name]
            found.setdefault(name, library.find(row) or type(row.name, (StandIn,), {}))
        elif name in RECORD_BY_CLASS:
            record = RECORD_BY_CLASS[name]
            found.setdefault(name, library.find(record) or type(record.name, (Fields,), {}))
        elif name in ENUM_BY_CLASS:
            found.setdefault(name, Members(ENUM_BY_CLASS[name], library.find(ENUM_BY_CLASS[name])))
        elif name in FUNCTIONS:
            found.setdefault(name, Function(used.name))
        elif name == _VERSION:
            found[name] = torch.torch_version.TorchVersion
    return found
