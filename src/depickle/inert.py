"""What the pickle machine may build: plain Python containers and scalars, and these four inert values.

None of them is ever resolved, called or imported. They carry the byte offset of the opcode that made them, so that
a refusal can say where. They are plain slotted classes and not frozen dataclasses, since a large checkpoint makes a
million of them.
"""

from __future__ import annotations

from typing import Any, TypeAlias

# a scalar, a text, bytes, a container, or one of the classes below
Inert: TypeAlias = Any


class Global:
    """A name that the file mentions: `module` and `name` as written, `full` joined by a dot; never looked up."""

    __slots__ = ("full", "module", "name", "offset")

    def __init__(self, module: str, name: str, offset: int) -> None:
        self.module = module
        self.name = name
        self.full = f"{module}.{name}"
        self.offset = offset

    def __repr__(self) -> str:
        return self.full


class Call:
    """`func(*args)` as the file asks for it (REDUCE, INST, OBJ, NEWOBJ, NEWOBJ_EX), not made.

    `state` is what BUILD would have set (None: there was no BUILD; several BUILDs are kept as a list in `states`);
    `items` and `entries` are what APPENDS and SETITEMS would have added.
    """

    __slots__ = ("args", "entries", "func", "items", "kind", "kwargs", "offset", "states")

    def __init__(self, kind: str, func: Inert, args: Inert, offset: int, kwargs: Inert = None) -> None:
        self.kind = kind
        self.func = func
        self.args = args
        self.kwargs = kwargs
        self.offset = offset
        self.states: tuple[Inert, ...] = ()
        self.items: list[Inert] | None = None
        self.entries: dict[Inert, Inert] | None = None

    @property
    def name(self) -> str:
        """The full name of what would be called; empty if that is not a plain global."""
        return self.func.full if type(self.func) is Global else ""


class PersistentId:
    """A reference to something outside the pickle: for torch, a storage. `pid` is what the file says of it."""

    __slots__ = ("offset", "pid")

    def __init__(self, pid: Inert, offset: int) -> None:
        self.pid = pid
        self.offset = offset


class Extension:
    """An EXT opcode: a number in a registry of the process that would load the file."""

    __slots__ = ("code", "offset")

    def __init__(self, code: int, offset: int) -> None:
        self.code = code
        self.offset = offset
