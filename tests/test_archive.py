"""Containers: real files against zipfile and their truth, hostile ones against the exact line that refuses them."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import pickle
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest

import assemble as a
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

Read: TypeAlias = Callable[[bytes], Archive]
Case: TypeAlias = tuple[bytes, type[Error], str]

PICKLE = a.state_dict({"w": a.tensor("0", "FloatStorage", 4)})
OBJECT = a.program(a.legacy_storage("0", "FloatStorage", 4))
HIDDEN = a.asm(a.GLOBAL("os", "system"), a.POP)
STORAGES = (("7", "Byte", 5), ("9", "Half", 2), ("10", "Float", 0))


def floats(*rest: Any) -> tuple[Any, ...]:
    """The persistent id of a float storage, from its key on."""
    return ("storage", a.GLOBAL("torch", "FloatStorage"), *rest)


def objects(*pids: Any) -> bytes:
    """The pickle of a list of persistent ids."""
    return a.program(a.value([a.asm(a.value(pid), a.BINPERSID) for pid in pids]))


def info(**changes: Any) -> bytes:
    """The system info of a legacy stream, with changes."""
    return a.program(a.value(a.SYS_INFO | changes))


def big_endian(kind: str, numel: int) -> bytes:
    """A legacy stream of a big-endian machine with one storage of this class."""
    pid = ("storage", a.GLOBAL(*kind.rsplit(".", 1)), "0", "cpu", numel, None)
    return a.legacy_file(objects(pid), [("0", numel, a.FOUR)], sys_info=info(little_endian=False))


def tar() -> bytes:
    """A tar archive with the members of torch's oldest format."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as made:
        for name in ("sys_info", "pickle", "storages", "tensors"):
            made.addfile(tarfile.TarInfo(name), io.BytesIO())
    return out.getvalue()


class Memory:
    """Bytes as a source, for the tests that open thousands of them."""

    name = "m.pt"

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.length = len(data)

    def read(self, offset: int, length: int) -> bytes:
        assert 0 <= offset <= offset + length <= self.length
        return self._data[offset : offset + length]

    def readinto(self, offset: int, buffer: memoryview) -> None:
        buffer[:] = self.read(offset, len(buffer))


class Counting(FileSource):
    """A file that remembers how far it was read at the most."""

    most = 0

    def read(self, offset: int, length: int) -> bytes:
        """Note how much is wanted, and read it."""
        self.most = max(self.most, length)
        return super().read(offset, length)


FLOATS = floats("0", "cpu", 4, None)


def name_of(path: Path) -> str:
    return f"{path.parent.name}/{path.name}"


@pytest.fixture
def read(tmp_path: Path) -> Read:
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


@pytest.mark.skipif(not FIXTURES.exists(), reason="the fixtures are not here")
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


def test_zip_of_torch(read: Read) -> None:
    data = a.torch_file(PICKLE, {"0": a.FOUR, "10": b"", "2": b"xy"}, prefix="größe x")
    opened = read(data)
    assert slice_of(data, opened.pickle) == PICKLE
    assert {key: slice_of(data, record) for key, record in opened.storages.items()} == {
        "0": a.FOUR,
        "10": b"",
        "2": b"xy",
    }
    assert [record.name for record in opened.records] == list(a.torch_records(b"", {"0": b"", "10": b"", "2": b""}))
    assert all(record.crc32 == zlib.crc32(slice_of(data, record)) for record in opened.records)
    assert opened.storages["0"].range.offset % 64 == 0


def test_zip_of_python_and_of_old_torch(read: Read, tmp_path: Path) -> None:
    data = python_zip(tmp_path / "x.zip", {"archive/data.pkl": PICKLE, "archive/data/0": a.FOUR})
    opened = read(data)
    assert slice_of(data, opened.storages["0"]) == a.FOUR
    assert opened.notes == ("no byteorder record, read as little endian",)


def test_zip_written_as_a_stream(read: Read) -> None:
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


@pytest.mark.parametrize("signature", [b"PK\7\x08", b""])
@pytest.mark.parametrize(("form", "extra"), [("<3I", b""), ("<I2Q", a.zip64_extra(16, 0))])
def test_forms_of_a_descriptor(read: Read, signature: bytes, form: str, extra: bytes) -> None:
    descriptor = signature + struct.pack(form, zlib.crc32(a.FOUR), 16, 16)
    data = a.torch_file(PICKLE, {"0": a.Record(a.FOUR, descriptor=descriptor, local_extra=extra)})
    assert slice_of(data, read(data).storages["0"]) == a.FOUR


def test_zip_without_checksums(read: Read) -> None:
    records = a.torch_records(PICKLE, {"0": a.FOUR})
    data = a.zip_file({name: a.Record(item, crc=0) for name, item in records.items() if isinstance(item, bytes)})
    opened = read(data)
    assert {record.crc32 for record in opened.records} == {None}
    assert opened.notes == ("CRC-32 switched off in the source",)


def test_zip_with_records_that_deserve_a_note(read: Read) -> None:
    data = a.torch_file(PICKLE, {"0": a.Record(a.FOUR, crc=0)}, change={"extra/b.json": b"{}", "a.txt": b"x"})
    opened = read(data)
    assert opened.notes == (
        "CRC-32 is 0 for 1 of 9 records: saved without their data (skip_data)?",
        "records that torch.save does not write: 2, the first is a.txt",
    )
    assert list(opened.storages) == ["0"]


def test_zip_big_endian(read: Read) -> None:
    assert read(a.torch_file(PICKLE, change={"byteorder": b"big"})).big_endian is True


def test_zip_without_zip64_records(read: Read) -> None:
    assert list(read(a.torch_file(PICKLE, zip64=False)).storages) == ["0"]


def test_zip_in_another_order_of_the_directory(read: Read) -> None:
    usual, other = a.torch_file(PICKLE), a.torch_file(PICKLE, directory_order=[6, 5, 4, 3, 2, 1, 0])
    assert usual != other
    assert read(other) == read(usual)


def test_zip_of_many_records(read: Read) -> None:
    storages = {str(key): b"" for key in range(66_000)}
    opened = read(a.torch_file(PICKLE, storages, alignment=1))
    assert len(opened.storages) == 66_000
    assert list(opened.storages)[-1] == "65999"


def write_wide_zip(path: Path, local_extra: bytes) -> dict[str, ByteRange]:
    """Write a sparse zip with a record of 5 GiB and one behind it, as torch does."""
    ranges, directory = {}, b""
    with path.open("wb") as out:
        for name, size in (("data.pkl", 10), ("data/0", 5 * 2**30), ("data/1", 7)):
            raw, header = f"x/{name}".encode(), out.tell()
            wide = [number for number in (size, size, header) if number >= 2**32]
            local = local_extra if wide else b""
            out.write(
                struct.pack("<4s5H3I2H", b"PK\3\4", 45, 0x808, 0, 0, 0, 0, 0, 0, len(raw), len(local)) + raw + local
            )
            ranges[name] = ByteRange(out.tell(), size)
            out.seek(size, os.SEEK_CUR)
            out.write(struct.pack("<4sI2Q" if wide else "<4s3I", b"PK\7\x08", 5, size, size))
            extra = a.zip64_extra(*wide) if wide else b""
            small = [min(number, 2**32 - 1) for number in (size, size, header)]
            fixed = (0, 45, 0x808, 0, 0, 0, 5, small[0], small[1], len(raw), len(extra), 0, 0, 0, 0, small[2])
            directory += struct.pack("<4s6H3I5H2I", b"PK\1\2", *fixed) + raw + extra
        start = out.tell()
        end64 = struct.pack("<4sQ2H2I4Q", b"PK\6\6", 44, 45, 45, 0, 0, 3, 3, len(directory), start)
        locator = struct.pack("<4sIQI", b"PK\6\7", 0, start + len(directory), 1)
        end = struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, 3, 3, len(directory), 2**32 - 1, 0)
        out.write(directory + end64 + locator + end)
    return ranges


def test_zip_beyond_four_gigabytes(tmp_path: Path) -> None:
    path = tmp_path / "big.pt"
    ranges = write_wide_zip(path, local_extra=a.zip64_extra(0))
    with FileSource(path) as source:
        opened = open_archive(source)
    assert {record.name: record.range for record in opened.records} == ranges


# --- zips that are not ------------------------------------------------------------------------------------------------


def lie(name: str = "data/0", **fields: Any) -> bytes:
    """A torch file in which some fields of one record are not true."""
    content = {"data/0": a.FOUR, "data.pkl": PICKLE}[name]
    return a.torch_file(PICKLE, change={name: a.Record(content, **fields)})


def with_name(name: bytes, **fields: Any) -> bytes:
    """A torch file with one record more, of this full name."""
    return a.torch_file(PICKLE, change={"more": a.Record(b"x", name=name, local_name=name, **fields)})


def deflated() -> bytes:
    return lie("data.pkl", method=8, stored=zlib.compress(PICKLE))


def cut_directory() -> bytes:
    """A torch file whose directory ends with the first bytes of an eighth entry."""
    data = a.torch_file(PICKLE, zip64=False, eocd={"entries": 8, "size": 467})
    return data[:-22] + b"PK\1\2" + data[-22:]


HONEST = a.torch_file(PICKLE)

# fmt: off
HOSTILE_ZIPS: dict[str, Case] = {
    "cut in the middle": (HONEST[:600],
        Malformed, "byte@600: is a zip that ends before its central directory: truncated?"),
    "cut by one": (HONEST[:-1],
        Malformed, "byte@1576: is a zip that ends before its central directory: truncated?"),
    "one header": (HONEST[:4],
        Malformed, "byte@4: is a zip that ends before its central directory: truncated?"),
    "comment": (a.torch_file(PICKLE, comment=b"hello"),
        Refused, "byte@1577: has 5 bytes after its zip end record, torch.save writes none"),
    "trailing": (a.torch_file(PICKLE, trailing=b"\x00" * 7),
        Refused, "byte@1577: has 7 bytes after its zip end record, torch.save writes none"),
    "comment that hides": (a.torch_file(PICKLE, comment=b"x" * 5, eocd={"comment": 0}),
        Refused, "byte@1577: has 5 bytes after its zip end record, torch.save writes none"),
    "announced comment": (a.torch_file(PICKLE, eocd={"comment": 9}),
        Malformed, "byte@1555: the zip end record announces a comment of 9 bytes, the file ends without"),
    "two disks": (a.torch_file(PICKLE, eocd={"disk": 1}),
        Malformed, "byte@1555: the zip end record speaks of several disks"),
    "directory disk": (a.torch_file(PICKLE, eocd={"directory_disk": 1}),
        Malformed, "byte@1555: the zip end record speaks of several disks"),
    "count here": (a.torch_file(PICKLE, eocd={"here": 3}),
        Malformed, "byte@1555: the zip end record speaks of several disks"),
    "too few entries": (a.torch_file(PICKLE, eocd={"entries": 6}, eocd64={"entries": 6}),
        Malformed, "byte@1403: the zip directory has 76 bytes after its 6 entries"),
    "too many entries": (a.torch_file(PICKLE, eocd={"entries": 8}, eocd64={"entries": 8}),
        Malformed, "byte@1479: there is no zip directory entry where one has to be"),
    "count disagrees": (a.torch_file(PICKLE, eocd={"entries": 6}),
        Malformed, "byte@1479: the zip end record says 6 where the zip64 end record says 7"),
    "offset disagrees": (a.torch_file(PICKLE, eocd={"offset": 6}),
        Malformed, "byte@1479: the zip end record says 6 where the zip64 end record says 1016"),
    "size disagrees": (a.torch_file(PICKLE, eocd={"size": 6}),
        Malformed, "byte@1479: the zip end record says 6 where the zip64 end record says 463"),
    "directory moved": (a.torch_file(PICKLE, eocd={"offset": 6}, eocd64={"offset": 6}),
        Malformed, "byte@1555: the zip directory is said to end at 469, expected 1479"),
    "zip64 disk": (a.torch_file(PICKLE, eocd64={"disk": 1}),
        Malformed, "byte@1479: the zip64 end record has an extension or speaks of several disks"),
    "zip64 ext": (a.torch_file(PICKLE, eocd64={"length": 45}),
        Malformed, "byte@1479: the zip64 end record has an extension or speaks of several disks"),
    "zip64 here": (a.torch_file(PICKLE, eocd64={"here": 45}),
        Malformed, "byte@1479: the zip64 end record has an extension or speaks of several disks"),
    "locator": (a.torch_file(PICKLE, locator={"offset": 45}),
        Malformed, "byte@1535: the zip64 locator points to 45 on disk 0 of 1, expected 1479 on 0 of 1"),
    "locator disks": (a.torch_file(PICKLE, locator={"disks": 2}),
        Malformed, "byte@1535: the zip64 locator points to 1479 on disk 0 of 2, expected 1479 on 0 of 1"),
    "in front": (a.torch_file(PICKLE, before=b"PK\x03\x04" + b"\x00" * 60),
        Refused, "byte@64: record archive/data.pkl comes after 64 bytes that belong to no record"),
    "in front, shifted": (a.torch_file(PICKLE, before=b"PK\x03\x04" + b"\x00" * 60, shift=-64),
        Malformed, "byte@1599: the zip64 locator points to 1479 on disk 0 of 1, expected 1543 on 0 of 1"),
    "before the directory": (a.torch_file(PICKLE, between=b"hello"),
        Refused, "byte@1016: has 5 bytes before its zip directory that belong to no record"),
    "gap": (lie(gap=b"z" * 9),
        Refused, "byte@607: record archive/data/0 comes after 9 bytes that belong to no record"),
    "local name": (lie(local_name=b"archive/data/1"),
        Malformed, "byte@598: record archive/data/0 has another name in its local header, b'archive/data/1'"),
    "local name longer": (lie(local_name=b"archive/data/00"),
        Malformed, "byte@598: record archive/data/0 has another name in its local header, b'archive/data/00'"),
    "local flags": (lie(local_flags=2048),
        Malformed, ("byte@598: record archive/data/0 has flags 0x0800 and method 0 in its local header, "
            "0x0808 and 0 in the directory")),
    "local method": (lie(local_method=8),
        Malformed, ("byte@598: record archive/data/0 has flags 0x0808 and method 8 in its local header, "
            "0x0808 and 0 in the directory")),
    "local crc": (lie(local_crc=5),
        Malformed, "byte@598: record archive/data/0 has CRC-32 5 in its local header, 2342982740 in the directory"),
    "local size": (lie(local_usize=5),
        Malformed, "byte@598: record archive/data/0 has size 5 in its local header, 16 in the directory"),
    "local csize": (lie(local_csize=5),
        Malformed, "byte@598: record archive/data/0 has size 5 in its local header, 16 in the directory"),
    "unstreamed zeros": (lie(flags=2048, descriptor=b""),
        Malformed, "byte@598: record archive/data/0 has CRC-32 0 in its local header, 2342982740 in the directory"),
    "local zip64 lies": (lie(local_usize=4294967295, local_csize=4294967295, local_extra=a.zip64_extra(17, 16)),
        Malformed, "byte@598: record archive/data/0 has size 17 in its local header, 16 in the directory"),
    "local zip64 lacks": (lie(local_usize=4294967295, local_csize=4294967295, local_extra=b""),
        Malformed, "byte@598: record archive/data/0 has no zip64 field, expected 16 bytes"),
    "descriptor crc": (lie(descriptor_crc=5),
        Malformed, "byte@720: record archive/data/0 has a data descriptor that disagrees with the directory"),
    "descriptor size": (lie(descriptor_usize=5),
        Malformed, "byte@720: record archive/data/0 has a data descriptor that disagrees with the directory"),
    "no descriptor": (lie(descriptor=b""),
        Malformed, "byte@720: record archive/data/0 has a data descriptor that disagrees with the directory"),
    "no descriptor at the end": (a.torch_file(PICKLE, change={"z": a.Record(b"x", descriptor=b"")}),
        Malformed, "byte@1089: record archive/z has a data descriptor that disagrees with the directory"),
    "crc": (lie(crc=77, descriptor_crc=zlib.crc32(a.FOUR)),
        Malformed, "byte@720: record archive/data/0 has a data descriptor that disagrees with the directory"),
    "encrypted": (lie(flags=2057),
        Refused, "byte@598: record archive/data/0 is encrypted: decrypt it first"),
    "strong": (lie(flags=2120),
        Refused, "byte@598: record archive/data/0 has the zip flags 0x0848, expected bits 3 and 11 at most"),
    "patched": (lie(flags=2088),
        Refused, "byte@598: record archive/data/0 has the zip flags 0x0828, expected bits 3 and 11 at most"),
    "level": (lie(flags=2058),
        Refused, "byte@598: record archive/data/0 has the zip flags 0x080a, expected bits 3 and 11 at most"),
    "masked": (lie(flags=2056 | 8192),
        Refused, "byte@598: record archive/data/0 has the zip flags 0x2808, expected bits 3 and 11 at most"),
    "deflated": (deflated(),
        Refused, ("byte@0: record archive/data.pkl is compressed (deflate), torch.save never compresses: "
            "re-save it, or repack it with zip -0 -D")),
    "method 77": (lie(method=77),
        Refused, ("byte@598: record archive/data/0 is compressed (method 77), torch.save never compresses: "
            "re-save it, or repack it with zip -0 -D")),
    "two sizes": (lie(csize=15),
        Malformed, "byte@598: record archive/data/0 is stored in 15 bytes and has 16"),
    "longer": (lie(csize=1 << 20, usize=1 << 20),
        Malformed, "byte@598: record archive/data/0 ends at 1049280, past the start of the zip directory at 1016"),
    "shorter": (lie(csize=15, usize=15),
        Malformed, "byte@719: record archive/data/0 has a data descriptor that disagrees with the directory"),
    "symlink": (lie(attributes=41471 << 16),
        Refused, "byte@598: record archive/data/0 is a symbolic link, expected a plain file"),
    "folder mode": (lie(attributes=16895 << 16),
        Refused, "byte@598: record archive/data/0 is a folder or a special file, expected a plain file"),
    "fifo": (lie(attributes=4607 << 16),
        Refused, "byte@598: record archive/data/0 is a folder or a special file, expected a plain file"),
    "dos folder": (lie(attributes=16),
        Refused, "byte@598: record archive/data/0 is a folder or a special file, expected a plain file"),
    "entry comment": (lie(comment=b"x"),
        Malformed, "byte@1282: a zip directory entry has a comment or another disk, torch writes neither"),
    "entry disk": (lie(disk=1),
        Malformed, "byte@1282: a zip directory entry has a comment or another disk, torch writes neither"),
    "offset outside": (lie(offset=1 << 30),
        Refused, "byte@736: record archive/version comes after 138 bytes that belong to no record"),
    "offset in the directory": (lie(offset=len(HONEST) - 200),
        Refused, "byte@736: record archive/version comes after 138 bytes that belong to no record"),
    "same offset": (lie(offset="data.pkl"),
        Malformed, "byte@0: record archive/data/0 overlaps the record before it, which ends at 215"),
    "offset inside": (lie(offset=10),
        Malformed, "byte@10: record archive/data/0 overlaps the record before it, which ends at 215"),
    "no room for a local header": (a.torch_file(PICKLE, change={"z": a.Record(b"x", local=False, offset=1016)}),
        Malformed, "byte@1016: record archive/z has its local header past the start of the zip directory at 1016"),
    "cut directory": (cut_directory(),
        Malformed, "byte@1479: a zip directory entry is cut off"),
    "no local": (a.torch_file(PICKLE, change={"z": a.Record(b"xyz", local=False, offset=5)}),
        Malformed, "byte@5: record archive/z overlaps the record before it, which ends at 215"),
    "zip64 without": (lie(csize=4294967295, usize=4294967295),
        Malformed, "byte@1282: record archive/data/0 has no zip64 field, expected 16 bytes"),
    "zip64 needless": (lie(extra=a.zip64_extra(16, 16)),
        Malformed, "byte@1282: record archive/data/0 has a zip64 field of 16 bytes, expected 0 bytes"),
    "zip64 short": (lie(csize=4294967295, usize=4294967295, extra=a.zip64_extra(16)),
        Malformed, "byte@1282: record archive/data/0 has a zip64 field of 8 bytes, expected 16 bytes"),
    "zip64 lies": (lie(csize=4294967295, usize=4294967295, extra=a.zip64_extra(1 << 40, 1 << 40)),
        Malformed, ("byte@598: record archive/data/0 ends at 1099511628480, past the start of the zip "
            "directory at 1016")),
    "zip64 twice": (lie(csize=4294967295, usize=4294967295, extra=a.zip64_extra(16, 16) * 2),
        Malformed, ("byte@1282: record archive/data/0 has an extra field 0x0001 that is cut off, repeated or "
            "a second name")),
    "unicode path": (lie(extra=struct.pack("<HHBI", 28789, 8, 1, 5) + b"xyz"),
        Malformed, ("byte@1282: record archive/data/0 has an extra field 0x7075 that is cut off, repeated or "
            "a second name")),
    "extra cut": (lie(extra=b"UT\x05\x00xy"),
        Malformed, ("byte@1282: record archive/data/0 has an extra field 0x5455 that is cut off, repeated or "
            "a second name")),
    "name NUL": (with_name(b"archive/a\x00b"),
        Refused, "byte@1016: the record name 'archive/a\\x00b' is not the plain path of a file"),
    "backslash": (with_name(b"archive\\a"),
        Refused, "byte@1016: the record name 'archive\\\\a' is not the plain path of a file"),
    "absolute": (with_name(b"/archive/a"),
        Refused, "byte@1016: the record name '/archive/a' is not the plain path of a file"),
    "dotdot": (with_name(b"archive/../a"),
        Refused, "byte@1016: the record name 'archive/../a' is not the plain path of a file"),
    "dot": (with_name(b"archive/./a"),
        Refused, "byte@1016: the record name 'archive/./a' is not the plain path of a file"),
    "empty part": (with_name(b"archive//a"),
        Refused, "byte@1016: the record name 'archive//a' is not the plain path of a file"),
    "empty": (with_name(b""),
        Refused, "byte@1016: the record name '' is not the plain path of a file"),
    "folder": (with_name(b"archive/a/"),
        Refused, "byte@1016: the record name 'archive/a/' is not the plain path of a file"),
    "drive": (with_name(b"C:/a"),
        Refused, "byte@1016: the record name 'C:/a' is not the plain path of a file"),
    "utf8": (with_name(b"archive/\xff"),
        Refused, "byte@1568: the record name b'archive/\\xff' is not UTF-8"),
    "ascii": (with_name("archive/é".encode(), flags=8),
        Refused, "byte@1568: the record name b'archive/\\xc3\\xa9' is not ASCII, as its flags say"),
    "outside": (with_name(b"other/a"),
        Refused, "byte@1016: record other/a lies outside archive/, the folder of data.pkl"),
    "top": (with_name(b"a"),
        Refused, "byte@1016: record a lies outside archive/, the folder of data.pkl"),
    "twice": (with_name(b"archive/data/0"),
        Refused, "byte@1016: record archive/data/0 is there twice"),
    "case": (with_name(b"archive/DATA/0"),
        Refused, "byte@1016: record archive/DATA/0 differs from archive/data/0 in case only"),
    "prefix case": (with_name(b"ARCHIVE/x"),
        Refused, "byte@1016: record ARCHIVE/x lies outside archive/, the folder of data.pkl"),
    "second pickle": (with_name(b"archive/data/x.pkl"),
        Refused, "byte@1016: record archive/data/x.pkl is a second pickle, torch.save writes data.pkl alone"),
    "second pickle 2": (with_name(b"archive/EVIL.PKL"),
        Refused, "byte@1016: record archive/EVIL.PKL is a second pickle, torch.save writes data.pkl alone"),
    "x.pickle": (with_name(b"archive/x.pickle"),
        Refused, "byte@1016: record archive/x.pickle is a second pickle, torch.save writes data.pkl alone"),
    "two folders": (with_name(b"other/data.pkl"),
        Refused, "has a data.pkl in 2 folders, archive and other, expected one"),
    "no data.pkl": (a.torch_file(PICKLE, change={"data.pkl": None}),
        Refused, ("is a zip without FOLDER/data.pkl, so not a torch.save file: it has "
            "archive/.format_version, archive/.storage_alignment, archive/byteorder, ...")),
    "only nested": (a.zip_file({"b/data.pkl": PICKLE}, prefix="a"),
        Refused, "is a zip without FOLDER/data.pkl, so not a torch.save file: it has a/b/data.pkl"),
    "data.pkl at top": (a.zip_file({"data.pkl": PICKLE}, prefix=""),
        Refused, "is a zip without FOLDER/data.pkl, so not a torch.save file: it has data.pkl"),
    "torchscript": (with_name(b"archive/constants.pkl"),
        Refused, "is a TorchScript archive: save the module's state_dict() instead (it has archive/constants.pkl)"),
    "torchscript code": (with_name(b"archive/code/__torch__.py"),
        Refused, ("is a TorchScript archive: save the module's state_dict() instead (it has "
            "archive/code/__torch__.py)")),
    "package": (with_name(b"archive/.data/extern_modules"),
        Refused, "is a torch.package archive: save a state dict instead (it has archive/.data/extern_modules)"),
    "pt2": (with_name(b"archive/archive_format"),
        Refused, ("is a torch.export archive (.pt2): save the model's state_dict() instead (it has "
            "archive/archive_format)")),
    "old pt2": (a.zip_file({"serialized_exported_program.json": b"{}"}, prefix=""),
        Refused, ("is a torch.export archive (.pt2): save the model's state_dict() instead (it has "
            "serialized_exported_program.json)")),
    "mar": (a.zip_file({"model.pt": b"", "MAR-INF/MANIFEST.json": b"{}"}, prefix=""),
        Refused, ("is a TorchServe archive (.mar): unpack it and convert the checkpoint inside (it has "
            "MAR-INF/MANIFEST.json)")),
    "npz": (a.zip_file({"w.npy": b"x"}, prefix=""),
        Refused, "is a numpy .npz file: its arrays are no torch tensors (it has w.npy)"),
    "keras": (a.zip_file({"metadata.json": b"", "config.json": b"x", "model.weights.h5": b"x"}, prefix=""),
        Refused, "is a Keras model (.keras) (it has model.weights.h5)"),
    "docx": (a.zip_file({"[Content_Types].xml": b""}, prefix=""),
        Refused, "is an office document (it has [Content_Types].xml)"),
    "jar": (a.zip_file({"META-INF/MANIFEST.MF": b""}, prefix=""),
        Refused, "is a Java archive (it has META-INF/MANIFEST.MF)"),
    "wheel": (a.zip_file({"torch/x.py": b"x", "torch-1.dist-info/METADATA": b""}, prefix=""),
        Refused, "is a Python wheel (it has torch-1.dist-info/METADATA)"),
    "zip around": (a.zip_file({"model/readme": b"", "model/a.safetensors": b"x"}, prefix=""),
        Refused, "is a zip around model files: unpack it first (it has model/a.safetensors)"),
    "other zip": (a.zip_file({"a.txt": b"x"}, prefix=""),
        Refused, "is a zip without FOLDER/data.pkl, so not a torch.save file: it has a.txt"),
    "byteorder": (a.torch_file(PICKLE, change={"byteorder": b"middle"}),
        Malformed, "byte@576: record byteorder holds b'middle' (6 bytes), expected little or big"),
    "byteorder nl": (a.torch_file(PICKLE, change={"byteorder": b"little\n"}),
        Malformed, "byte@576: record byteorder holds b'little\\n' (7 bytes), expected little or big"),
    "byteorder empty": (a.torch_file(PICKLE, change={"byteorder": b""}),
        Malformed, "byte@576: record byteorder holds b'' (0 bytes), expected little or big"),
    "format": (a.torch_file(PICKLE, change={".format_version": b"2"}),
        Malformed, "byte@320: record .format_version holds b'2' (1 bytes), expected 1"),
    "alignment": (a.torch_file(PICKLE, change={".storage_alignment": b"-64"}),
        Malformed, "byte@448: record .storage_alignment holds b'-64' (3 bytes), expected a positive decimal number"),
    "alignment0": (a.torch_file(PICKLE, change={".storage_alignment": b"0"}),
        Malformed, "byte@448: record .storage_alignment holds b'0' (1 bytes), expected a positive decimal number"),
    "version 0": (a.torch_file(PICKLE, change={"version": b"0\n"}),
        Malformed, "byte@832: record version holds b'0\\n' (2 bytes), expected a number from 1 to 10"),
    "version 11": (a.torch_file(PICKLE, change={"version": b"11\n"}),
        Malformed, "byte@832: record version holds b'11\\n' (3 bytes), expected a number from 1 to 10"),
    "version long": (a.torch_file(PICKLE, change={"version": b"3" * 50}),
        Malformed, ("byte@832: record version holds b'33333333333333333333333333333333' (50 bytes), expected "
            "a number from 1 to 10")),
}
# fmt: on


@pytest.mark.parametrize(("data", "kind", "message"), HOSTILE_ZIPS.values(), ids=HOSTILE_ZIPS)
def test_hostile_zip(read: Read, data: bytes, kind: type[Error], message: str) -> None:
    with pytest.raises(kind) as caught:
        read(data)
    assert str(caught.value) == f"m.pt: {message}"


def test_wide_record_needs_a_wide_descriptor(tmp_path: Path) -> None:
    path = tmp_path / "m.pt"
    write_wide_zip(path, local_extra=b"")
    with FileSource(path) as source, pytest.raises(Malformed) as caught:
        open_archive(source)
    assert str(caught.value) == (
        "m.pt: byte@66: record x/data/0 has 5368709120 bytes and no zip64 field in its local header"
    )


@pytest.mark.parametrize(
    ("limit", "value", "message"),
    [
        ("MAX_RECORDS", 6, "has 7 records, over the limit of 6"),
        ("MAX_DIRECTORY_BYTES", 462, "has a zip directory of 463 bytes, over the limit of 462"),
    ],
)
def test_limits_of_a_zip(read: Read, monkeypatch: pytest.MonkeyPatch, limit: str, value: int, message: str) -> None:
    monkeypatch.setattr(torch_zip, limit, value + 1)
    read(HONEST)
    monkeypatch.setattr(torch_zip, limit, value)
    with pytest.raises(Refused) as caught:
        read(HONEST)
    assert str(caught.value) == f"m.pt: {message}"


@pytest.mark.parametrize("data", [HONEST, a.legacy_file(OBJECT)], ids=["zip", "legacy"])
def test_no_cut_file_opens(data: bytes) -> None:
    for length in range(len(data)):
        with pytest.raises(Error):
            open_archive(Memory(data[:length]))


@pytest.mark.parametrize("data", [HONEST, a.legacy_file(OBJECT)], ids=["zip", "legacy"])
def test_a_changed_byte_gives_an_archive_or_an_error(data: bytes) -> None:
    for at in range(len(data)):
        for mask in (0x01, 0xFF):
            changed = bytearray(data)
            changed[at] ^= mask
            try:
                records = open_archive(Memory(bytes(changed))).records
            except Error:
                continue
            assert all(record.range.end <= len(data) for record in records)


# --- the stream before 1.6 --------------------------------------------------------------------------------------------


def test_magic_numbers_are_those_of_every_protocol() -> None:
    assert set(legacy.MAGICS) == {pickle.dumps(legacy.MAGIC_NUMBER, protocol) for protocol in range(6)}


@pytest.mark.parametrize("protocol", [1, 2, 3, 4, 5])
def test_legacy_in_every_protocol(read: Read, protocol: int) -> None:
    numbers = (pickle.dumps(legacy.MAGIC_NUMBER, protocol), pickle.dumps(1001, protocol))
    info, keys = pickle.dumps(a.SYS_INFO, protocol), pickle.dumps(["0"], protocol)
    data = b"".join((*numbers, info, OBJECT, keys, struct.pack("<q", 4), a.FOUR))
    opened = read(data)
    assert opened.kind == "torch-legacy"
    assert slice_of(data, opened.pickle) == OBJECT
    assert slice_of(data, opened.storages["0"]) == a.FOUR
    names = ["magic number", "protocol version", "system info", "object pickle", "storage keys", "storage 0"]
    assert [record.name for record in opened.records] == names


def test_legacy_order_is_that_of_the_keys(read: Read) -> None:
    pids = [("storage", a.GLOBAL("torch", f"{kind}Storage"), key, "cpu", numel, None) for key, kind, numel in STORAGES]
    data = a.legacy_file(objects(*pids, pids[0]), [("10", 0, b""), ("7", 5, b"12345"), ("9", 2, b"abcd")])
    opened = read(data)
    assert {key: slice_of(data, record) for key, record in opened.storages.items()} == {
        "10": b"",
        "7": b"12345",
        "9": b"abcd",
    }
    assert list(opened.storages) == ["10", "7", "9"]


def test_legacy_untyped_storage_counts_bytes(read: Read) -> None:
    pid = ("storage", a.GLOBAL("torch.storage", "UntypedStorage"), "0", "cpu", 16, None)
    data = a.legacy_file(objects(pid), [("0", 16, a.FOUR)])
    assert slice_of(data, read(data).storages["0"]) == a.FOUR


def test_legacy_of_a_big_endian_machine_is_little_endian(read: Read) -> None:
    opened = read(a.legacy_file(OBJECT, sys_info=info(little_endian=False)))
    assert opened.big_endian is False
    assert opened.notes == (
        "written on a big-endian machine; the storages of this format are little endian all the same",
    )


def test_legacy_with_the_source_of_a_module(read: Read) -> None:
    module = ("module", a.GLOBAL("m", "Net"), "net.py", "class Net: ...")
    assert list(read(a.legacy_file(objects(module, FLOATS))).storages) == ["0"]


@pytest.mark.parametrize("block", [1, 50, 1024])
def test_legacy_reads_its_head_in_growing_blocks(read: Read, monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    monkeypatch.setattr(legacy, "_FIRST_BLOCK", block)
    text = "x" * 700_000
    body = a.program(a.value([text, a.asm(a.value(FLOATS), a.BINPERSID)]))
    data = a.legacy_file(body)
    opened = read(data)
    assert slice_of(data, opened.pickle) == body


def test_legacy_pickle_over_the_limit(read: Read, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(legacy, "_FIRST_BLOCK", 128)
    monkeypatch.setattr(legacy, "MAX_PICKLE_BYTES", 200_000)
    body = a.program(a.value(["x" * 100_000] * 3))
    with pytest.raises(Refused) as caught:
        read(a.legacy_file(body, []))
    message = "m.pt: byte@121: the object pickle does not end within 200000 bytes, the limit for the pickles"
    assert str(caught.value) == message


def test_legacy_fault_is_found_without_the_rest_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "m.pt"
    path.write_bytes(a.MAGIC + b"\x80\x02\xff")
    os.truncate(path, 2**31)
    with Counting(path) as source, pytest.raises(Malformed) as caught:
        open_archive(source)
    assert str(caught.value) == "m.pt: byte@17: protocol version: byte 0xff is no pickle opcode"
    assert source.most < 2**21


# fmt: off
HOSTILE_STREAMS: dict[str, Case] = {
    "magic alone": (a.MAGIC,
        Malformed, "byte@15: protocol version: ends before STOP"),
    "protocol": (a.legacy_file(OBJECT, protocol=a.program(a.integer(1002))),
        Malformed, "byte@15: the protocol version is 1002, expected 1001"),
    "protocol text": (a.legacy_file(OBJECT, protocol=a.program(a.value("1001"))),
        Malformed, "byte@15: the protocol version is a str, expected 1001"),
    "protocol bool": (a.legacy_file(OBJECT, protocol=a.program(a.NEWTRUE)),
        Malformed, "byte@15: the protocol version is True, expected 1001"),
    "magic by reduce": (a.legacy_file(OBJECT, magic=a.MAGIC[:-1] + a.asm(a.POP, a.NONE, a.STOP)),
        Refused, "is a bare pickle, not a torch.save file"),
    "info list": (a.legacy_file(OBJECT, sys_info=a.program(a.EMPTY_LIST)),
        Malformed, "byte@21: the system info lacks little_endian or type_sizes"),
    "info endian": (a.legacy_file(OBJECT, sys_info=info(little_endian=1)),
        Malformed, "byte@21: the system info lacks little_endian or type_sizes"),
    "info sizes none": (a.legacy_file(OBJECT, sys_info=info(type_sizes=None)),
        Malformed, "byte@21: the system info lacks little_endian or type_sizes"),
    "info protocol": (a.legacy_file(OBJECT, sys_info=info(protocol_version=None)),
        Malformed, "byte@21: the system info has protocol version None, expected 1001"),
    "globals in the protocol": (a.legacy_file(OBJECT, protocol=a.program(HIDDEN + a.integer(1001))),
        Refused, "byte@17: the protocol version names os.system, expected plain values"),
    "globals in the keys": (a.legacy_file(OBJECT, keys=["0", a.GLOBAL("os", "system")]),
        Refused, "byte@186: the storage keys names os.system, expected plain values"),
    "info sizes": (a.legacy_file(OBJECT, sys_info=info(type_sizes={"short": 2, "int": 4, "long": "x"})),
        Malformed, "byte@21: the system info has the sizes short 2, int 4, long a str, expected 2, 4, and 4 or 8"),
    "object cut": (a.legacy_file(OBJECT)[:-60],
        Malformed, "byte@136: object pickle: a text argument has no end"),
    "opcode": (a.legacy_file(a.program(b"\xff")),
        Malformed, "byte@123: object pickle: byte 0xff is no pickle opcode"),
    "pid text": (a.legacy_file(objects("0")),
        Malformed, "byte@131: a persistent id is not ('storage', class, key, location, count, view)"),
    "pid five": (a.legacy_file(objects(floats("0", "cpu", 4))),
        Malformed, "byte@175: a persistent id is not ('storage', class, key, location, count, view)"),
    "pid other": (a.legacy_file(objects(("x", *floats("0", "cpu", 4, None)[1:]))),
        Malformed, "byte@170: a persistent id is not ('storage', class, key, location, count, view)"),
    "pid key": (a.legacy_file(objects(floats(0, "cpu", 4, None))),
        Malformed, "byte@172: a persistent id needs a class, a key of text and a count that is not negative"),
    "pid class": (a.legacy_file(objects(("storage", "x", "0", "cpu", 4, None))),
        Malformed, "byte@162: a persistent id needs a class, a key of text and a count that is not negative"),
    "pid count": (a.legacy_file(objects(floats("0", "cpu", -4, None))),
        Malformed, "byte@179: a persistent id needs a class, a key of text and a count that is not negative"),
    "pid count bool": (a.legacy_file(objects(floats("0", "cpu", True, None))),
        Malformed, "byte@175: a persistent id needs a class, a key of text and a count that is not negative"),
    "view": (a.legacy_file(objects(floats("0", "cpu", 4, ("1", 0, 4)))),
        Refused, "byte@186: storage 0 is a view of another storage: re-save it with a newer torch"),
    "class": (a.legacy_file(objects(("storage", a.GLOBAL("torch", "EvilStorage"), "0", "cpu", 4, None))),
        Refused, "byte@175: storage 0 is of class torch.EvilStorage, which torch does not have"),
    "class module": (a.legacy_file(objects(("storage", a.GLOBAL("evil", "FloatStorage"), "0", "cpu", 4, None))),
        Refused, "byte@175: storage 0 is of class evil.FloatStorage, which torch does not have"),
    "declared twice": (a.legacy_file(objects(floats("0", "cpu", 4, None), floats("0", "cpu", 5, None))),
        Refused, "byte@228: storage 0 is declared twice, as torch.FloatStorage of 4 and as torch.FloatStorage of 5"),
    "keys tuple": (a.legacy_file(OBJECT, keys=("0",)),
        Malformed, "byte@176: the storage keys are not a list of different texts"),
    "keys int": (a.legacy_file(OBJECT, keys=[0]),
        Malformed, "byte@176: the storage keys are not a list of different texts"),
    "keys twice": (a.legacy_file(OBJECT, keys=["0", "0"]),
        Malformed, "byte@176: the storage keys are not a list of different texts"),
    "key unknown": (a.legacy_file(OBJECT, keys=["0", "1"]),
        Malformed, "byte@176: storage 1 is in the list of keys and not in the object"),
    "key missing": (a.legacy_file(OBJECT, keys=[]),
        Malformed, "byte@176: storage 0 is in the object and not in the list of keys"),
    "count": (a.legacy_file(OBJECT, [("0", 5, a.FOUR + b"1234")]),
        Malformed, "byte@188: storage 0 counts 5 elements, the object declares 4"),
    "negative": (a.legacy_file(OBJECT, [("0", -1, a.FOUR)]),
        Malformed, "byte@188: storage 0 counts -1 elements, the object declares 4"),
    "bytes for elements": (a.legacy_file(OBJECT, [("0", 16, a.FOUR)]),
        Malformed, "byte@188: storage 0 counts 16 elements, the object declares 4"),
    "cut": (a.legacy_file(OBJECT)[:-1],
        Malformed, "byte@188: storage 0 needs 16 bytes after its count, the file ends at 211: truncated?"),
    "no data": (a.legacy_file(OBJECT)[:-20],
        Malformed, "byte@188: storage 0 needs 16 bytes after its count, the file ends at 192: truncated?"),
    "trailing": (a.legacy_file(OBJECT, trailing=b"12345"),
        Malformed, "byte@212: has 5 bytes after its last storage"),
    "huge": (a.legacy_file(objects(floats("0", "cpu", 1 << 62, None)), [("0", 1 << 62, a.FOUR)]),
        Malformed, ("byte@199: storage 0 needs 18446744073709551616 bytes after its count, the file ends at "
            "223: truncated?")),
    "complex of a big-endian machine": (big_endian("torch.ComplexFloatStorage", 2),
        Refused, ("storage 0 (torch.ComplexFloatStorage) comes from a big-endian machine, and this format "
            "does not say in which order its bytes are")),
    "untyped of a big-endian machine": (big_endian("torch.storage.UntypedStorage", 16),
        Refused, ("storage 0 (torch.storage.UntypedStorage) comes from a big-endian machine, and this "
            "format does not say in which order its bytes are")),
}
# fmt: on


@pytest.mark.parametrize(("data", "kind", "message"), HOSTILE_STREAMS.values(), ids=HOSTILE_STREAMS)
def test_hostile_stream(read: Read, data: bytes, kind: type[Error], message: str) -> None:
    with pytest.raises(kind) as caught:
        read(data)
    assert str(caught.value) == f"m.pt: {message}"


# --- files that are something else ------------------------------------------------------------------------------------

# fmt: off
STRANGERS: dict[str, Case] = {
    "empty": (b"",
        Malformed, "is empty"),
    "html": (b"\n<!DOCTYPE html>\n<html>",
        Refused, "is an HTML page: a login or error page in place of the file?"),
    "html 2": (b"<HTML><head>",
        Refused, "is an HTML page: a login or error page in place of the file?"),
    "xml": (b"<?xml version='1.0'?><Error/>",
        Refused, "is an XML text: a server's error message in place of the file?"),
    "lfs": (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n",
        Refused, "is a Git LFS pointer: fetch the file that it stands for with git lfs pull"),
    "json": (b'{\n  "metadata": {}}',
        Refused, "is JSON text: an index, a configuration or a server's error message"),
    "json bom": (b'\xef\xbb\xbf{"a":1}',
        Refused, "is JSON text: an index, a configuration or a server's error message"),
    "json list": (b'[{"a": 1}]',
        Refused, "is JSON text: an index, a configuration or a server's error message"),
    "json empty": (b"{}",
        Refused, "is JSON text: an index, a configuration or a server's error message"),
    "text": (b"Entry not found",
        Refused, "is a text that begins 'Entry not found'"),
    "text2": ("Zugriff verweigert: größe\n".encode(),
        Refused, "is a text that begins 'Zugriff verweigert: größe'"),
    "spaces": (b"   \n",
        Malformed, "begins with 20 20 20 0a, expected a zip (50 4b 03 04) or a pickle stream (80 02 8a 0a)"),
    "p2": (pickle.dumps({"a": 1}, 2),
        Refused, "is a bare pickle, not a torch.save file"),
    "p5": (pickle.dumps({"a": 1}, 5),
        Refused, "is a bare pickle, not a torch.save file"),
    "p0": (pickle.dumps({"a": 1}, 0),
        Refused, "is a bare pickle (protocol 0 or 1), not a torch.save file"),
    "p1": (pickle.dumps({"a": 1}, 1),
        Refused, "is a bare pickle (protocol 0 or 1), not a torch.save file"),
    "os": (b"cos\nsystem\n(S'id'\ntR.",
        Refused, "is a bare pickle (protocol 0 or 1), not a torch.save file"),
    "mark os": (b"(cos\nsystem\nS'id'\no.",
        Refused, "is a bare pickle (protocol 0 or 1), not a torch.save file"),
    "inst": (b"(S'id'\nios\nsystem\n.",
        Refused, "is a text that begins \"(S'id'\\nios\\nsystem\\n.\""),
    "gz": (gzip.compress(b"x"),
        Refused, "is compressed with gzip: decompress it first"),
    "bz2": (bz2.compress(b"x"),
        Refused, "is compressed with bzip2: decompress it first"),
    "xz": (lzma.compress(b"x"),
        Refused, "is compressed with xz: decompress it first"),
    "zstd": (b"(\xb5/\xfd123",
        Refused, "is compressed with zstd: decompress it first"),
    "lz4": (b'\x04"M\x18xx',
        Refused, "is compressed with lz4: decompress it first"),
    "7z": (b"7z\xbc\xaf'\x1c\x00\x04",
        Refused, "is a 7z archive: unpack it first"),
    "rar": (b"Rar!\x1a\x07\x01\x00",
        Refused, "is a RAR archive: unpack it first"),
    "tar": (tar(),
        Refused, "is a tar archive: unpack a bundle first; what torch before 0.1.10 wrote has to be saved again"),
    "png": (b"\x89PNG\r\n\x1a\n",
        Refused, "is a PNG image"),
    "jpg": (b"\xff\xd8\xff\xe0",
        Refused, "is a JPEG image"),
    "gif": (b"GIF89a",
        Refused, "is a GIF image"),
    "riff": (b"RIFF\x00\x00\x00\x00WEBP",
        Refused, "is a RIFF file (an image, sound or film)"),
    "pdf": (b"%PDF-1.4",
        Refused, "is a PDF document"),
    "elf": (b"\x7fELF\x02",
        Refused, "is a program (ELF)"),
    "gguf": (b"GGUF\x03\x00\x00\x00",
        Refused, "is a GGUF file: its tensors are quantised for llama.cpp and have no torchao form"),
    "h5": (b"\x89HDF\r\n\x1a\n",
        Refused, "is an HDF5 file (Keras .h5 or other)"),
    "npy": (b"\x93NUMPY\x01\x00",
        Refused, "is a numpy .npy file: its array is no torch tensor"),
    "pte": (b"\x1c\x00\x00\x00ET12",
        Refused, "is an ExecuTorch program (.pte): convert the checkpoint that it was made from"),
    "tfl": (b"\x1c\x00\x00\x00TFL3",
        Refused, "is a TensorFlow Lite model"),
    "onnx": (b"\x08\x07\x12\x07pytorch",
        Refused, "is a protocol buffer, an ONNX model by its look"),
    "zeros": (bytes(1000),
        Malformed, "begins with 512 zero bytes: an unfinished download?"),
    "empty zip": (b"PK\x05\x06" + bytes(18),
        Refused, "is a zip archive without records, not a torch.save file"),
    "spanned": (b"PK\x07\x08PK\x03\x04",
        Refused, "is a zip archive in several parts: join them first"),
    "unknown": (b"\x01\x02\x03\xff\xfe\xfd\xfc\xfb\xfa",
        Malformed, ("begins with 01 02 03 ff fe fd fc fb, expected a zip (50 4b 03 04) or a pickle stream "
            "(80 02 8a 0a)")),
    "short": (b"\x80",
        Malformed, "begins with 80, expected a zip (50 4b 03 04) or a pickle stream (80 02 8a 0a)"),
    "safetensors": (a.safetensors_file({}),
        Refused, "is a safetensors file, not a torch.save file"),
    "polyglot": (b"\x89PNG\r\n\x1a\n" + HONEST,
        Refused, "is a PNG image"),
}
# fmt: on


@pytest.mark.parametrize(("data", "kind", "message"), STRANGERS.values(), ids=STRANGERS)
def test_stranger(read: Read, data: bytes, kind: type[Error], message: str) -> None:
    with pytest.raises(kind) as caught:
        read(data)
    assert str(caught.value) == f"m.pt: {message}"


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (HONEST, "torch-zip"),
        (a.legacy_file(OBJECT), "torch-legacy"),
        (a.safetensors_file({}), "safetensors"),
        (a.safetensors_file({}, length=200_000_000), "safetensors"),
    ],
)
def test_sniff(tmp_path: Path, data: bytes, kind: str) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(data)
    with FileSource(path) as source:
        assert sniff(source) == kind


def test_every_reader_is_in_the_table() -> None:
    modules = {path.stem for path in Path(archive.__file__).parent.glob("*.py")} - {"__init__", "model"}
    assert {f"torch-{name}" for name in modules} == set(archive.READERS)
