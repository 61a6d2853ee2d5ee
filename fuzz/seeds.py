"""What the mutations start from: small real files, and small built ones with every kind of piece in them."""

from __future__ import annotations

import json
import os
import struct
import sys
import tempfile
from collections.abc import Iterable
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT / "tests") not in sys.path:
    sys.path.insert(0, str(ROOT / "tests"))

import assemble as a
import depickle
from depickle.archive import open_archive
from depickle.ranges import FileSource

_LARGEST = int(os.environ.get("DEPICKLE_FUZZ_LARGEST", "24576"))  # bytes of a seed
FIXTURES = [
    Path(os.environ.get("DEPICKLE_FIXTURES", ROOT / "tests" / "data" / "fixtures")),
    Path("/work/shared/fixtures"),
]


@cache
def real(suffix: str) -> tuple[bytes, ...]:
    """The real files of this suffix that are small enough."""
    folder = next((folder for folder in FIXTURES if folder.is_dir()), None)
    if folder is None:
        return ()
    paths = sorted(folder.glob(f"*/*{suffix}"), key=lambda path: path.stat().st_size)
    return tuple(path.read_bytes() for path in paths if path.stat().st_size <= _LARGEST)


def built() -> Iterable[bytes]:
    """Files from the assembler, in every container."""
    items = {"w": a.tensor(), "q.weight": a.int8_v1("q"), "turned": a.tensor(shape=(2, 2), stride=(1, 2))}
    storages = {"0": a.FOUR} | a.int8_storages("q")
    yield a.torch_file(a.state_dict(items), storages)
    yield a.torch_file(
        a.checkpoint(
            "unsloth_prequant_transformer_state_dict_v1", {"scheme": "int8", "n": [1, 2.5, None, True]}, items
        ),
        storages,
    )
    yield a.torch_file(
        a.checkpoint(
            "unsloth_prequant_text_encoder_state_dict_v1", {}, a.ordered_dict({"a.w": a.tensor(), "a.v": a.tensor()})
        )
    )
    yield a.legacy_file(a.state_dict({"w": a.tensor(reference=a.legacy_storage("0", "FloatStorage", 4))}))
    yield a.safetensors_file(
        {"w": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}, "__metadata__": {"format": "pt"}}, a.FOUR
    )


def files() -> list[bytes]:
    """Whole files of every kind."""
    return [*real(".pt"), *built(), *safetensors()]


def zips() -> list[bytes]:
    return [data for data in (*real(".pt"), *built()) if data.startswith(b"PK")]


def legacies() -> list[bytes]:
    return [data for data in (*real(".pt"), *built()) if data.startswith(b"\x80")]


@cache
def safetensors() -> tuple[bytes, ...]:
    """References of other writers, and what depickle makes of the real files."""
    made = [*real(".safetensors")]
    with tempfile.TemporaryDirectory() as name:
        for number, data in enumerate([*built(), *real(".pt")][::8]):
            source = Path(name) / f"{number}.pt"
            source.write_bytes(data)
            for target in (None, "comfyui"):
                try:
                    record = depickle.convert(source, Path(name) / "out", target=target)
                except depickle.Error:
                    continue
                made.append(Path(record.dst).read_bytes())
    return tuple(data for data in made if len(data) <= _LARGEST)


def pickles() -> list[bytes]:
    """The pickles of the real files, and one with every opcode."""
    found = [
        a.program(
            a.asm(
                *(a.value(part) for part in (1, -1, 2**40, 1.5, "text", b"bytes", [1], (1, 2), {"k": None})), a.TUPLE
            ),
            4,
        )
    ]
    found += [
        a.asm(a.PROTO(4), a.framed(a.MARK, a.string("x"), a.MEMOIZE, a.STACK_GLOBAL, a.STOP)),
        a.program(a.call("os", "system", "true")),
    ]
    for data in zips():
        with tempfile.NamedTemporaryFile() as file:
            file.write(data)
            file.flush()
            with FileSource(file.name) as source:
                try:
                    archive = open_archive(source)
                except depickle.Error:
                    continue
                found.append(source.read(archive.pickle.range.offset, archive.pickle.range.length))
    return found


def wrapped() -> list[bytes]:
    """Pickles with the storages that they refer to, as `whole.py` takes them: storages as JSON lengths, NUL, pickle."""
    made = []
    for data in zips():
        with tempfile.NamedTemporaryFile() as file:
            file.write(data)
            file.flush()
            with FileSource(file.name) as source:
                try:
                    archive = open_archive(source)
                except depickle.Error:
                    continue
                lengths = {key: record.range.length for key, record in archive.storages.items()}
                pickle = source.read(archive.pickle.range.offset, archive.pickle.range.length)
        raw = json.dumps(lengths).encode()
        made.append(struct.pack("<H", len(raw)) + raw + pickle)
    return made
