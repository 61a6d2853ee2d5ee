"""`depickle scan` of any file."""

from __future__ import annotations

import json

from depickle.scanning import as_sarif, scan

from . import whole
from .sources import on_disk


def seed() -> list[bytes]:
    return whole.seed()


def target(data: bytes) -> object:
    with on_disk(whole.unwrap(data)) as path:
        found = scan(path)
        json.dumps(found.as_json())
        return json.dumps(as_sarif([found], "0"))
