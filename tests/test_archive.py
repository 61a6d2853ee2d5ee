"""Containers: real files against zipfile and their truth, hostile ones against the exact line that refuses them."""

from __future__ import annotations

import os
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import assemble as a
import pytest
from depickle import archive
from depickle.archive import Archive, legacy, open_archive, sniff
from depickle.archive import zip as torch_zip
from depickle.errors import Error, Malformed, Refused
from depickle.ranges import ByteRange, FileSource
from depickle.vm import run

FIXTURES = Path(os.environ.get("DEPICKLE_FIXTURES", Path(__file__).parent / "data" / "fixtures"))
REAL = sorted(FIXTURES.glob("*/*.pt"))
REAL_LEGACY = [path for path in REAL if path.name.startswith("legacy_")]
REAL_ZIP = [path for path in REAL if path not in REAL_LEGACY]

PICKLE = a.state_dict({"w": a.tensor("0", "FloatStorage", 4)})
OBJECT = a.program(a.legacy_storage("0", "FloatStorage", 4))


def name_of(path: Path) -> str:
    return f"{path.parent.name}/{path.name}"


@pytest.fixture
def read(tmp_path: Path) -> Callable[[bytes], Archive]:
    """Write bytes to a file and open it as an archive."""

    def read_bytes(data: bytes) -> Archive:
        path = tmp_path / "m.pt"
        path.write_bytes(data)
        with FileSource(path) as source:
            return open_archive(source)

    return read_bytes


def slice_of(data: bytes, record: archive.Record) -> bytes:
    return data[record.range.offset : record.range.end]


# --- real files -------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(FIXTURES.parent.exists() and not REAL, reason="no fixtures here")
def test_there_are_real_files() -> None:
    assert REAL_ZIP
    assert REAL_LEGACY


@pytest.mark.parametrize("path", REAL_ZIP, ids=name_of)
def test_real_zip_is_what_zipfile_reads(path: Path) -> None:
    with FileSource(path) as source:
        opened = open_archive(source)
    data = path.read_bytes()
    with zipfile.ZipFile(path) as other:
        infos = sorted(other.infolist(), key=lambda info: info.header_offset)
        contents = [(info.filename.partition("/")[2], other.read(info)) for info in infos]
        checksums = [info.CRC for info in infos]
    assert opened.kind == "torch-zip"
    assert [(record.name, slice_of(data, record)) for record in opened.records] == contents
    assert [record.crc32 for record in opened.records] == checksums
    assert opened.pickle in opened.records
    assert {f"data/{key}": record for key, record in opened.storages.items()} == {
        record.name: record for record in opened.records if record.name.startswith("data/")
    }
    assert opened.big_endian is (path.name == "bigendian_record.pt")
    assert opened.notes == ()


@pytest.mark.parametrize("path", REAL_LEGACY, ids=name_of)
def test_real_legacy_stream_is_covered_to_the_last_byte(path: Path) -> None:
    with FileSource(path) as source:
        opened = open_archive(source)
    data = path.read_bytes()
    assert (opened.kind, opened.big_endian, opened.notes) == ("torch-legacy", False, ())
    program = run(slice_of(data, opened.pickle))
    assert program.end == opened.pickle.range.length
    assert {reference.pid[2] for reference in program.persistent_ids} == set(opened.storages)
    assert opened.records[3] is opened.pickle
    position = 0
    for record in opened.records:
        assert record.crc32 is None
        assert record.range.offset == position + (8 if record.name.startswith("storage 9") else 0)
        position = record.range.end
    assert position == len(data)


# --- zips that are fine -----------------------------------------------------------------------------------------------


def python_zip(path: Path, records: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> bytes:
    with zipfile.ZipFile(path, "w", compression) as out:
        for name, data in records.items():
            out.writestr(zipfile.ZipInfo(name), data, compress_type=compression)
    return path.read_bytes()


def test_zip_of_torch(read: Callable[[bytes], Archive]) -> None:
    data = a.torch_file(PICKLE, {"0": a.FOUR, "10": b"", "2": b"xy"}, prefix="größe x")
    opened = read(data)
    assert slice_of(data, opened.pickle) == PICKLE
    assert {key: slice_of(data, record) for key, record in opened.storages.items()} == {"0": a.FOUR, "10": b"", "2": b"xy"}
    assert [record.name for record in opened.records] == list(a.torch_records(b"", {"0": b"", "10": b"", "2": b""}))
    assert all(record.crc32 == zlib.crc32(slice_of(data, record)) for record in opened.records)
    assert opened.storages["0"].range.offset % 64 == 0


def test_zip_of_python_and_of_old_torch(read: Callable[[bytes], Archive], tmp_path: Path) -> None:
    data = python_zip(tmp_path / "x.zip", {"archive/data.pkl": PICKLE, "archive/data/0": a.FOUR})
    opened = read(data)
    assert slice_of(data, opened.storages["0"]) == a.FOUR
    assert opened.notes == ("no byteorder record, read as little endian",)


def test_zip_written_as_a_stream(read: Callable[[bytes], Archive], tmp_path: Path) -> None:
    class Pipe:
        def __init__(self) -> None:
            self.data = b""

        def write(self, data: bytes) -> int:
            self.data += data
            return len(data)

        def flush(self) -> None:
            pass

    pipe = Pipe()
    with zipfile.ZipFile(pipe, "w") as out:  # type: ignore[arg-type]
        out.writestr("archive/data.pkl", PICKLE)
        with out.open("archive/data/0", "w", force_zip64=True) as record:
            record.write(a.FOUR)
        out.writestr("archive/data/1", b"")
    opened = read(pipe.data)
    assert slice_of(pipe.data, opened.storages["0"]) == a.FOUR
    assert opened.storages["1"].range.length == 0


@pytest.mark.parametrize("form", ["<4s3I", "<4sI2Q", "<3I", "<I2Q"])
def test_forms_of_a_descriptor(read: Callable[[bytes], Archive], form: str) -> None:
    fields = (zlib.crc32(a.FOUR), 16, 16)
    descriptor = struct.pack(form, b"PK\7\x08", *fields) if "s" in form else struct.pack(form, *fields)
    data = a.torch_file(PICKLE, {"0": a.Record(a.FOUR, descriptor=descriptor)})
    assert slice_of(data, read(data).storages["0"]) == a.FOUR


def test_zip_without_checksums(read: Callable[[bytes], Archive]) -> None:
    records = a.torch_records(PICKLE, {"0": a.FOUR})
    data = a.zip_file({name: a.Record(item, crc=0) for name, item in records.items() if isinstance(item, bytes)})
    opened = read(data)
    assert {record.crc32 for record in opened.records} == {None}
    assert opened.notes == ("CRC-32 switched off in the source",)


def test_zip_with_records_that_deserve_a_note(read: Callable[[bytes], Archive]) -> None:
    data = a.torch_file(PICKLE, {"0": a.Record(a.FOUR, crc=0)}, change={"extra/b.json": b"{}", "a.txt": b"x"})
    opened = read(data)
    assert opened.notes == (
        "1 records have a CRC-32 of 0 beside others that have one: saved without their data (skip_data)?",
        "records that torch.save does not write: 2, the first is a.txt",
    )
    assert list(opened.storages) == ["0"]


def test_zip_big_endian(read: Callable[[bytes], Archive]) -> None:
    assert read(a.torch_file(PICKLE, change={"byteorder": b"big"})).big_endian is True


def test_zip_without_zip64_records(read: Callable[[bytes], Archive]) -> None:
    assert list(read(a.torch_file(PICKLE, zip64=False)).storages) == ["0"]


def test_zip_in_another_order_of_the_directory(read: Callable[[bytes], Archive]) -> None:
    usual, other = a.torch_file(PICKLE), a.torch_file(PICKLE, directory_order=[6, 5, 4, 3, 2, 1, 0])
    assert usual != other
    assert read(other) == read(usual)


def test_zip_of_many_records(read: Callable[[bytes], Archive]) -> None:
    storages = {str(key): b"" for key in range(66_000)}
    opened = read(a.torch_file(PICKLE, storages, alignment=1))
    assert len(opened.storages) == 66_000
    assert list(opened.storages)[-1] == "65999"


def test_zip_beyond_four_gigabytes(tmp_path: Path) -> None:
    sizes = {"data.pkl": 10, "data/0": 5 * 2**30, "data/1": 7}
    path = tmp_path / "big.pt"
    offsets, directory = {}, b""
    with path.open("wb") as out:
        for name, size in sizes.items():
            raw, header = f"x/{name}".encode(), out.tell()
            out.write(struct.pack("<4s5H3I2H", b"PK\3\4", 45, 0x808, 0, 0, 0, 0, 0, 0, len(raw), 0) + raw)
            offsets[name] = out.tell()
            out.seek(size, os.SEEK_CUR)
            out.write(struct.pack("<4sI2Q", b"PK\7\x08", 5, size, size))
            wide = [number for number in (size, size, header) if number >= 2**32]
            extra = a.zip64_extra(*wide) if wide else b""
            small = [min(number, 2**32 - 1) for number in (size, size, header)]
            fixed = (0, 45, 0x808, 0, 0, 0, 5, small[0], small[1], len(raw), len(extra), 0, 0, 0, 0, small[2])
            directory += struct.pack("<4s6H3I5H2I", b"PK\1\2", *fixed) + raw + extra
        start = out.tell()
        end64 = struct.pack("<4sQ2H2I4Q", b"PK\6\6", 44, 45, 45, 0, 0, 3, 3, len(directory), start)
        locator = struct.pack("<4sIQI", b"PK\6\7", 0, start + len(directory), 1)
        end = struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, 3, 3, len(directory), 2**32 - 1, 0)
        out.write(directory + end64 + locator + end)
    with FileSource(path) as source:
        opened = open_archive(source)
    assert {record.name: record.range for record in opened.records} == {
        name: ByteRange(offsets[name], size) for name, size in sizes.items()
    }


# --- zips that are not ------------------------------------------------------------------------------------------------


def with_record(name: str = "data/0", **fields: object) -> bytes:
    """A torch file in which one record's fields lie."""
    content = {"data/0": a.FOUR, "data.pkl": PICKLE}.get(name, b"abc")
    return a.torch_file(PICKLE, change={name: a.Record(content, **fields)})  # type: ignore[arg-type]


def with_name(name: bytes, **fields: object) -> bytes:
    """A torch file with one record more, of this full name."""
    return a.torch_file(PICKLE, change={"more": a.Record(b"x", name=name, local_name=name, **fields)})  # type: ignore[arg-type]


def deflated() -> bytes:
    stored = zlib.compress(PICKLE, wbits=-15)
    return with_record("data.pkl", method=8, stored=stored)


def cut(data: bytes, length: int) -> bytes:
    return data[:length]


HEADER = a.torch_file(PICKLE).index(b"PK\3\4", 10 + a.torch_file(PICKLE).index(b"byteorder"))
EMPTY_LOCAL = struct.pack("<4s5H3I2H", b"PK\3\4", 0, 0x800, 0, 0, 0, 0, 0, 0, 0, 0)

HOSTILE_ZIPS: dict[str, tuple[bytes, type[Error], str]] = {
}


@pytest.mark.parametrize(("data", "kind", "message"), HOSTILE_ZIPS.values(), ids=HOSTILE_ZIPS)
def test_hostile_zip(read: Callable[[bytes], Archive], data: bytes, kind: type[Error], message: str) -> None:
    with pytest.raises(kind) as caught:
        read(data)
    assert str(caught.value) == f"m.pt: {message}"
