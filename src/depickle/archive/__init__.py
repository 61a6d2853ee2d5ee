"""A file becomes named records, each a range of bytes; what they mean is for others to say.

`open_archive` looks at a file's first bytes and hands it to the reader for its container, `archive.zip` or
`archive.legacy`; the name of the file plays no part. A file that is neither is refused by what it is (Refused for
another known format, Malformed for what is no format at all), in one line that says what to do where there is
something to do. `sniff` does the looking alone and knows safetensors too, which has a reader elsewhere.

The tables below are read from the top. Magic numbers: the formats' own specifications; file(1) has most of them.
"""

from __future__ import annotations

import re
from codecs import getincrementaldecoder
from collections.abc import Callable, Mapping
from typing import Final

from ..errors import Error, Malformed, Refused
from ..ranges import Source
from .legacy import MAGICS, read_legacy
from .model import Archive, Record
from .zip import read_zip

__all__ = ["READERS", "Archive", "Record", "open_archive", "sniff"]

READERS: Final[Mapping[str, Callable[[Source], Archive]]] = {
    "torch-legacy": read_legacy,
    "torch-zip": read_zip,
}

_HEAD_BYTES: Final = 512  # tar has its magic at 257
# A safetensors header is far shorter; JSON text in place of the length makes a number far larger.
_MAX_HEADER_LENGTH: Final = 2**32

_MAGICS: Final = (
    *((0, magic, "torch-legacy") for magic in MAGICS),
    (0, b"PK\3\4", "torch-zip"),
)
# offset, bytes, what the file is
_FORMATS: Final = (
    (0, b"PK\5\6", "a zip archive without records, not a torch.save file"),
    (0, b"PK\7\x08", "a zip archive in several parts: join them first"),
    (0, b"7z\xbc\xaf\x27\x1c", "a 7z archive: unpack it first"),
    (0, b"Rar!\x1a\x07", "a RAR archive: unpack it first"),
    (257, b"ustar", "a tar archive: unpack a bundle first; what torch before 0.1.10 wrote has to be saved again"),
    (0, b"\x1f\x8b", "compressed with gzip: decompress it first"),
    (0, b"BZh", "compressed with bzip2: decompress it first"),
    (0, b"\xfd7zXZ\0", "compressed with xz: decompress it first"),
    (0, b"\x28\xb5\x2f\xfd", "compressed with zstd: decompress it first"),
    (0, b"\x04\x22\x4d\x18", "compressed with lz4: decompress it first"),
    (0, b"GGUF", "a GGUF file: its tensors are quantised for llama.cpp and have no torchao form"),
    (0, b"\x89HDF\r\n\x1a\n", "an HDF5 file (Keras .h5 or other)"),
    (0, b"\x93NUMPY", "a numpy .npy file: its array is no torch tensor"),
    (4, b"ET1", "an ExecuTorch program (.pte): convert the checkpoint that it was made from"),
    (4, b"TFL3", "a TensorFlow Lite model"),
    (0, b"\x89PNG\r\n\x1a\n", "a PNG image"),
    (0, b"\xff\xd8\xff", "a JPEG image"),
    (0, b"GIF8", "a GIF image"),
    (0, b"RIFF", "a RIFF file (an image, sound or film)"),
    (0, b"%PDF", "a PDF document"),
    (0, b"\x7fELF", "a program (ELF)"),
)
# a pattern at the beginning, what the file is
_FORMS: Final = (
    (rb"version https://git-lfs", "a Git LFS pointer: fetch the file that it stands for with git lfs pull"),
    (rb"(?i)\s*<(?:!doctype\s+html|html|head|body)\b", "an HTML page: a login or error page in place of the file?"),
    (rb"\s*<\?xml", "an XML text: a server's error message in place of the file?"),
    (rb"\s*\{\s*(?:\"|\})|\s*\[\s*[\[{\"\d\]-]", "JSON text: an index, a configuration or a server's error message"),
    (rb"\x80[\x02-\x05]", "a bare pickle, not a torch.save file"),
    (rb"\(?[ci][\w.]+\n[\w.]+\n|\([dl]p\d|[\]}]q\0", "a bare pickle (protocol 0 or 1), not a torch.save file"),
    (rb"\x08[\x01-\x20]\x12", "a protocol buffer, an ONNX model by its look"),
)


def open_archive(source: Source) -> Archive:
    """Read which records a torch.save file has, or learn in one line what the file is instead."""
    kind = sniff(source)
    if kind not in READERS:
        raise Refused(f"is a {kind} file, not a torch.save file", file=source.name)
    return READERS[kind](source)


def sniff(source: Source) -> str:
    """Return "torch-zip", "torch-legacy" or "safetensors" by a file's first bytes; refuse any other by what it is."""
    head = source.read(0, min(_HEAD_BYTES, source.length))
    for offset, magic, kind in _MAGICS:
        if head.startswith(magic, offset):
            return kind
    if head[8:9] == b"{" and int.from_bytes(head[:8], "little") < _MAX_HEADER_LENGTH:
        return "safetensors"
    raise _stranger(source, head)


def _stranger(source: Source, head: bytes) -> Error:
    if not head:
        return Malformed("is empty", file=source.name)
    for offset, magic, what in _FORMATS:
        if head.startswith(magic, offset):
            return Refused(f"is {what}", file=source.name)
    for form, what in _FORMS:
        if re.match(form, head.removeprefix(b"\xef\xbb\xbf")):
            return Refused(f"is {what}", file=source.name)
    if not any(head):
        return Malformed(f"begins with {len(head)} zero bytes: an unfinished download?", file=source.name)
    if text := _text(head):
        return Refused(f"is a text that begins {text[:60]!r}", file=source.name)
    expected = "expected a zip (50 4b 03 04) or a pickle stream (80 02 8a 0a)"
    return Malformed(f"begins with {head[:8].hex(' ')}, {expected}", file=source.name)


def _text(head: bytes) -> str:
    """Return the head if it is readable text, "" if not."""
    try:
        text = getincrementaldecoder("utf-8")().decode(head)  # the last character may be cut
    except UnicodeDecodeError:
        return ""
    return text.strip() if all(c.isprintable() or c.isspace() for c in text) else ""
