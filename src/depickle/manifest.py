"""A digest manifest beside a batch: SHA256SUMS, as `sha256sum -c` reads it, ready to be signed.

One line a file: 64 hexadecimal digits, two spaces, the path relative to the manifest; a path with a backslash or a
line break is escaped, and its line begins with a backslash, as coreutils does. Lines of files that a run did not make
stay; the file is replaced in one step.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Final

from .errors import Malformed
from .writer import Pending

NAME: Final = "SHA256SUMS"
_LINE: Final = re.compile(r"(\\?)([0-9a-f]{64}) [ *](.+)")
_ESCAPES: Final = {"\\": "\\\\", "\n": "\\n", "\r": "\\r"}


def read(path: str | os.PathLike[str]) -> dict[str, str]:
    """The manifest's digests by path. Raises Malformed for a line that is none of its kind."""
    try:
        with open(path, encoding="utf-8", errors="surrogateescape", newline="\n") as file:
            text = file.read()
    except FileNotFoundError:
        return {}
    found: dict[str, str] = {}
    for number, line in enumerate(text.removesuffix("\n").split("\n") if text else [], 1):
        match = _LINE.fullmatch(line)
        if match is None:
            raise Malformed(f"line {number} is not a SHA-256 and a path", file=os.fspath(path))
        found[_unescape(match[3]) if match[1] else match[3]] = match[2]
    return found


def update(folder: str | os.PathLike[str], digests: Mapping[str, str]) -> str:
    """Put `digests` (by path relative to `folder`) into the folder's manifest; return its path."""
    path = os.path.join(folder, NAME)
    merged = {**read(path), **{name.replace(os.sep, "/"): digest for name, digest in digests.items()}}
    text = "".join(_line(name, merged[name]) for name in sorted(merged))
    with Pending(path) as out:
        out.write(0, text.encode("utf-8", "surrogateescape"))
        out.sync()
        out.publish(overwrite=True)
    return path


def _line(name: str, digest: str) -> str:
    escaped = "".join(_ESCAPES.get(char, char) for char in name)
    mark = "\\" if escaped != name else ""
    return f"{mark}{digest}  {escaped}\n"


def _unescape(name: str) -> str:
    return re.sub(r"\\([\\nr])", lambda match: {"\\": "\\", "n": "\n", "r": "\r"}[match[1]], name)
