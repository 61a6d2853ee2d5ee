"""Files that are not converted: copied byte for byte and proved by digest, or written out; published like the rest."""

from __future__ import annotations

import hashlib
import os
from typing import Final

from .digest import Cancelled, Stop, digest_source
from .errors import Mismatch, Refused
from .ranges import FileSource
from .writer import Pending, check_destination

_BLOCK: Final = 1024 * 1024


def carry(src: str, path: str, *, overwrite: bool, stop: Stop | None) -> str:
    """Copy the file `src` to `path`, prove it by its digest, and return that. A copy that is there already stays.

    Raises Refused if something else is there and `overwrite` is not set.
    """
    check_destination(path)
    with FileSource(src) as source:
        if os.path.exists(path):
            wanted = str(digest_source(source, stop=stop))
            with FileSource(path) as there:
                if digest_source(there, stop=stop) == wanted:
                    return wanted
            _check_replaceable(path, overwrite)
        digest = hashlib.sha256()
        with Pending(path) as out:
            for at in range(0, source.length, _BLOCK):
                if stop is not None and stop.is_set():
                    raise Cancelled
                block = source.read(at, min(_BLOCK, source.length - at))
                digest.update(block)
                out.write(at, block)
            out.sync()
            with FileSource(out.temporary) as copy:
                if digest_source(copy, stop=stop) != digest.hexdigest():
                    raise Mismatch("is not what was written", file=path)
            source.check_unchanged()
            out.publish(overwrite=overwrite)
    return digest.hexdigest()


def publish_text(path: str, data: bytes, *, overwrite: bool) -> None:
    """Write a small file, unless it is there already as it should be. Raises Refused like `carry`."""
    check_destination(path)
    if os.path.exists(path):
        with FileSource(path) as there:
            if there.read(0, there.length) == data:
                return
        _check_replaceable(path, overwrite)
    with Pending(path) as out:
        out.write(0, data)
        out.sync()
        out.publish(overwrite=overwrite)


def _check_replaceable(path: str, overwrite: bool) -> None:
    if not overwrite:
        raise Refused("exists and is another file; --overwrite replaces it", file=path)
