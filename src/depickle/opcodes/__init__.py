"""One handler for each pickle opcode, in groups: tables of closures over the state of one run.

A handler gets the position after its opcode and returns the position of the next. Opcodes as in CPython's
Lib/pickle.py, protocols 0 to 5; a test holds the tables against `pickletools`.
"""

from __future__ import annotations

from typing import Final

from .containers import containers
from .memo import marks, memory
from .objects import framing, objects, state_and_references
from .state import MARK, Handler, Heard, State, Stop
from .values import scalars, texts

__all__ = ["GROUPS", "MARK", "Handler", "Heard", "State", "Stop"]

GROUPS: Final = (scalars, texts, containers, marks, memory, objects, state_and_references, framing)
