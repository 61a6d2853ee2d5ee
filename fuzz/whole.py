"""A file through everything but the disk: open, plan, inspect. Half of the cases are pickles that the target itself
puts into a sound torch zip with the storages that they ask for: else the zip's checks would end nearly all of them."""

from __future__ import annotations

import json
import struct

from depickle import open_checkpoint
from depickle.conversion import plan
from depickle.inspection import inspect
from depickle.options import Options

from . import seeds
from .sources import on_disk

_LARGEST = 64 * 1024


def seed() -> list[bytes]:
    return [b"W" + data for data in seeds.wrapped()] + [b"F" + data for data in seeds.files()]


def unwrap(data: bytes) -> bytes:
    """The file that a case stands for."""
    if data[:1] != b"W":
        return data[1:]
    try:
        length = struct.unpack_from("<H", data, 1)[0]
        lengths = json.loads(data[3 : 3 + length])
        storages = {str(key): bytes(min(int(size), _LARGEST)) for key, size in lengths.items() if int(size) >= 0}
    except (ValueError, TypeError, AttributeError, struct.error, RecursionError):
        length, storages = 0, {"0": bytes(16)}
    records = [(name.encode("utf-8", "replace").decode(), body) for name, body in list(storages.items())[:64]]
    return seeds.a.torch_file(data[3 + length :], dict(records))


def target(data: bytes) -> object:
    with on_disk(unwrap(data)) as path:
        with open_checkpoint(path) as checkpoint:
            dst, layout = plan(checkpoint, path.parent / "out", Options())
            json.dumps(layout.as_json())
        return dst, inspect(path).as_json()
