"""Turn pickled, pre-quantised PyTorch checkpoints into safetensors without executing anything that they name.

The verbs and the values that they return. Everything is loaded on first use (PEP 562), so that `import depickle`
costs next to nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ._version import __version__

if TYPE_CHECKING:
    from .checkpoint import Checkpoint
    from .conversion import convert
    from .errors import Error, Malformed, Mismatch, Refused
    from .opening import open_checkpoint
    from .options import UsageError
    from .report import Record, Verification
    from .repository import FolderRecord, convert_folder
    from .repository_check import FolderVerification, verify_folder
    from .verification import verify

__all__ = [
    "Checkpoint",
    "Error",
    "FolderRecord",
    "FolderVerification",
    "Malformed",
    "Mismatch",
    "Record",
    "Refused",
    "UsageError",
    "Verification",
    "__version__",
    "convert",
    "convert_folder",
    "open_checkpoint",
    "verify",
    "verify_folder",
]


_HOME = {
    "Checkpoint": "checkpoint",
    "Error": "errors",
    "FolderRecord": "repository",
    "FolderVerification": "repository_check",
    "Malformed": "errors",
    "Mismatch": "errors",
    "Record": "report",
    "Refused": "errors",
    "UsageError": "options",
    "Verification": "report",
    "convert": "conversion",
    "convert_folder": "repository",
    "open_checkpoint": "opening",
    "verify": "verification",
    "verify_folder": "repository_check",
}


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = __import__(f"{__name__}.{_HOME[name]}", fromlist=[name])
    return getattr(module, name)
