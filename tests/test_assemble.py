"""The builders are right: opcodes against pickletools, values against pickle, zips against zipfile and real files."""

from __future__ import annotations

import inspect
import io
import math
import pickle
import pickletools
import struct
import zipfile
from pathlib import Path

import pytest

import assemble as a

FIXTURES = Path(__file__).resolve().parents[2] / "shared" / "fixtures"

# One use of each opcode that takes an argument, and what pickletools must read as its argument.
WITH_ARGUMENT = {
    "PROTO": (a.PROTO(4), 4),
    "FRAME": (a.FRAME(7), 7),
    "GLOBAL": (a.GLOBAL("os", "system"), "os system"),
    "INST": (a.INST("os", "system"), "os system"),
    "EXT1": (a.EXT1(255), 255),
    "EXT2": (a.EXT2(65535), 65535),
    "EXT4": (a.EXT4(2**31 - 1), 2**31 - 1),
    "PERSID": (a.PERSID("abc"), "abc"),
    "INT": (a.INT("01"), True),
    "LONG": (a.LONG(7), 7),
    "FLOAT": (a.FLOAT("1.5"), 1.5),
    "STRING": (a.STRING(r"'o\x73'"), "os"),
    "UNICODE": (a.UNICODE(r"\u0041"), "A"),
    "BININT": (a.BININT(-1), -1),
    "BININT1": (a.BININT1(255), 255),
    "BININT2": (a.BININT2(65535), 65535),
    "LONG1": (a.LONG1(-(2**70)), -(2**70)),
    "LONG4": (a.LONG4(2**2100), 2**2100),
    "BINFLOAT": (a.BINFLOAT(-0.5), -0.5),
    "SHORT_BINSTRING": (a.SHORT_BINSTRING("ab"), "ab"),
    "BINSTRING": (a.BINSTRING("ab"), "ab"),
    "SHORT_BINUNICODE": (a.SHORT_BINUNICODE("é"), "é"),
    "BINUNICODE": (a.BINUNICODE("é"), "é"),
    "BINUNICODE8": (a.BINUNICODE8("é"), "é"),
    "SHORT_BINBYTES": (a.SHORT_BINBYTES(b"ab"), b"ab"),
    "BINBYTES": (a.BINBYTES(b"ab"), b"ab"),
    "BINBYTES8": (a.BINBYTES8(b"ab"), b"ab"),
    "BYTEARRAY8": (a.BYTEARRAY8(b"ab"), bytearray(b"ab")),
    "PUT": (a.PUT(300), 300),
    "BINPUT": (a.BINPUT(3), 3),
    "LONG_BINPUT": (a.LONG_BINPUT(300), 300),
    "GET": (a.GET(300), 300),
    "BINGET": (a.BINGET(3), 3),
    "LONG_BINGET": (a.LONG_BINGET(300), 300),
}
CONSTANT = {
    name: code for name, code in vars(a).items() if name.isupper() and isinstance(code, a.Code) and len(code) == 1
}


def test_every_opcode_has_a_name_here():
    assert {op.name for op in pickletools.opcodes} == set(WITH_ARGUMENT) | set(CONSTANT)
    functions = {name for name, item in vars(a).items() if inspect.isfunction(item) and name.isupper()}
    assert functions == set(WITH_ARGUMENT)


@pytest.mark.parametrize("name", sorted(CONSTANT))
def test_opcode_without_argument(name):
    opcode, argument, _ = next(pickletools.genops(CONSTANT[name]))
    assert (opcode.name, argument) == (name, None)


@pytest.mark.parametrize("name", sorted(WITH_ARGUMENT))
def test_opcode_with_argument(name):
    code, expected = WITH_ARGUMENT[name]
    operations = list(pickletools.genops(a.asm(code, a.STOP)))
    assert [(opcode.name, argument) for opcode, argument, _ in operations] == [(name, expected), ("STOP", None)]


def test_a_length_can_lie():
    assert a.BINUNICODE("ab", length=9) == b"X\x09\0\0\0ab"
    assert a.LONG4(b"", length=-1) == b"\x8b\xff\xff\xff\xff"


@pytest.mark.parametrize(
    "number", [0, 1, -1, 255, 256, 65535, 65536, -(2**31), 2**31 - 1, 2**31, -(2**31) - 1, 2**2100]
)
def test_integer_is_the_picklers_choice(number):
    theirs = pickle.dumps(number, protocol=2)
    assert a.program(a.integer(number)) == theirs


@pytest.mark.parametrize(
    "item",
    [None, True, [], {}, (), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4), {"a": [1, "é", b"\0", 2.5, {}]}, [[[]]], "\ud800"],
    ids=ascii,
)
def test_value_round_trips(item):
    assert pickle.loads(a.program(a.value(item))) == item  # our own bytes


def test_value_passes_opcodes_through_and_rejects_the_rest():
    assert pickle.loads(a.program(a.value({"a": a.BININT1(5)}))) == {"a": 5}
    with pytest.raises(TypeError, match="cannot write a set"):
        a.value({1})


def test_framed_tells_the_truth():
    assert pickle.loads(a.asm(a.PROTO(4), a.framed(a.integer(5), a.STOP))) == 5


def test_calls_build_objects():
    made = pickle.loads(a.program(a.ordered_dict({"a": 1})))
    assert type(made).__name__ == "OrderedDict"
    assert dict(made) == {"a": 1}
    assert pickle.loads(a.program(a.new("fractions", "Fraction", 1, 2))).denominator == 2


class References(pickle.Unpickler):
    """Reads a pickle whose globals stay names and whose calls stay tuples."""

    def find_class(self, module, name):
        return lambda *args: (f"{module}.{name}", *args)

    def persistent_load(self, pid):
        return (pid[0], *pid[2:])


def test_tensor_is_torchs_form():
    made = References(io.BytesIO(a.program(a.tensor("7", "FloatStorage", 6, (2, 3), offset=1)))).load()
    hooks = ("collections.OrderedDict",)
    assert made == ("torch._utils._rebuild_tensor_v2", ("storage", "7", "cpu", 6), 1, (2, 3), (3, 1), False, hooks)


@pytest.mark.parametrize(("shape", "stride"), [((), ()), ((5,), (1,)), ((2, 3, 4), (12, 4, 1)), ((2, 0, 3), (3, 3, 1))])
def test_row_major(shape, stride):
    assert a.row_major(shape) == stride


def test_zip_is_read_by_zipfile():
    made = a.torch_file(a.state_dict({"w": a.tensor()}))
    with zipfile.ZipFile(io.BytesIO(made)) as archive:
        assert archive.testzip() is None
        assert archive.namelist()[0] == "archive/data.pkl"
        assert archive.read("archive/data/0") == struct.pack("<4f", 1, 2, 3, 4)
        assert {info.compress_type for info in archive.infolist()} == {0}


def test_records_are_aligned_through_the_local_extra_field():
    made = a.zip_file({"x": b"1", "data/0": b"2" * 100, "empty": b""}, alignment=4096)
    with zipfile.ZipFile(io.BytesIO(made)) as archive:
        for info in archive.infolist():
            name, extra = struct.unpack_from("<2H", made, info.header_offset + 26)
            assert (info.header_offset + 30 + name + extra) % 4096 == 0


def test_every_field_of_a_zip_entry_can_lie():
    lies = {"flags": 1, "method": 8, "crc": 2, "csize": 3, "usize": 4, "attributes": 5, "made_by": 6, "needed": 7}
    locals_ = {"local_flags": 9, "local_method": 10, "local_crc": 11, "local_csize": 12, "local_usize": 13}
    record = a.Record(b"data", **lies, **locals_, descriptor_crc=14, descriptor_csize=15, descriptor_usize=16)
    made = a.zip_file({"x": record}, alignment=1)
    central = made.index(b"PK\1\2")
    read = struct.unpack_from("<6H3I5H2I", made, central + 4)
    assert (*read[:4], *read[6:9], read[14]) == (6, 7, 1, 8, 2, 3, 4, 5)
    assert struct.unpack_from("<4s5H3I", made, 0)[1:] == (7, 9, 10, 0, 0, 11, 12, 13)
    assert struct.unpack_from("<3I", made, made.index(b"PK\7\x08") + 4) == (14, 15, 16)


def test_an_entry_can_point_at_another_record():
    made = a.zip_file([("a", b"AAAA"), ("b", a.Record(b"AAAA", local=False, offset="a"))])
    with zipfile.ZipFile(io.BytesIO(made)) as archive:
        assert [info.header_offset for info in archive.infolist()] == [0, 0]


@pytest.mark.parametrize(
    "options", [{"before": b"junk", "shift": 0}, {"trailing": b""}, {"comment": b"hello"}, {"zip64": False}], ids=str
)
def test_zip_options_still_make_a_zip(options):
    with zipfile.ZipFile(io.BytesIO(a.zip_file({"x": b"1"}, **options))) as archive:
        assert archive.read("archive/x") == b"1"


def test_end_records_can_lie():
    made = a.zip_file({"x": b"1"}, eocd={"entries": 7}, eocd64={"offset": 99}, locator={"offset": 5})
    assert struct.unpack_from("<4H", made, made.index(b"PK\5\6") + 4) == (0, 0, 7, 7)
    assert struct.unpack_from("<Q", made, made.index(b"PK\6\6") + 48) == (99,)
    assert struct.unpack_from("<IQI", made, made.index(b"PK\6\7") + 4) == (0, 5, 1)


def test_changed_records():
    made = a.torch_file(b"x", change={"byteorder": None, "data/0": b"", "extra": b"e"})
    with zipfile.ZipFile(io.BytesIO(made)) as archive:
        names = archive.namelist()
    assert "archive/byteorder" not in names
    assert names[-1] == "archive/extra"


def fixture(name):
    path = FIXTURES / name
    if not path.exists():
        pytest.skip(f"no fixture {name} here")
    return path.read_bytes()


@pytest.mark.parametrize("name", ["edge/saved_to_bytesio.pt", "edge/zero_size.pt", "0.17.0/int8dyn_default.wrapped.pt"])
def test_zip_file_writes_what_torch_writes(name):
    real = fixture(name)
    with zipfile.ZipFile(io.BytesIO(real)) as archive:
        prefix = archive.namelist()[0].split("/")[0]
        records = {entry.split("/", 1)[1]: archive.read(entry) for entry in archive.namelist()}
    assert a.zip_file(records, prefix=prefix) == real


def test_legacy_file_writes_what_torch_writes():
    real = fixture("edge/legacy_nonzip_views.pt")
    assert real.startswith(a.MAGIC + a.PROTOCOL)
    stream = io.BytesIO(real)
    loaded, ends = [], [0]
    for _ in range(5):
        loaded.append(References(stream).load())
        ends.append(stream.tell())
    numel = struct.unpack_from("<q", real, ends[5])[0]
    info, pickled = real[ends[2] : ends[3]], real[ends[3] : ends[4]]
    made = a.legacy_file(pickled, [(loaded[4][0], numel, real[ends[5] + 8 :])], sys_info=info)
    assert loaded[2] == a.SYS_INFO
    assert made[: ends[4]] == real[: ends[4]]
    assert made.endswith(real[ends[5] :])


def test_safetensors_file():
    made = a.safetensors_file({"w": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}, a.FOUR)
    assert struct.unpack_from("<Q", made)[0] % 8 == 0
    assert made.endswith(a.FOUR)
    assert a.safetensors_file(b"{}", length=99) == b"\x63\0\0\0\0\0\0\0{}"
    safetensors = pytest.importorskip("safetensors")
    assert dict(safetensors.deserialize(made))["w"]["shape"] == [4]


def load(data):
    torch = pytest.importorskip("torch", reason="the oracle needs torch")
    return torch.load(io.BytesIO(data), weights_only=True)


def test_torch_reads_what_is_built():
    plain = a.state_dict({"w": a.tensor("0", "FloatStorage", 4, (2, 2)), "s": a.tensor("1", "LongStorage", 1, ())})
    loaded = load(a.torch_file(plain, {"0": a.FOUR, "1": struct.pack("<q", 7)}))
    assert loaded["w"].tolist() == [[1.0, 2.0], [3.0, 4.0]]
    assert loaded["s"].item() == 7


def test_torch_reads_a_built_legacy_stream():
    reference = a.legacy_storage("0", "FloatStorage", 4)
    loaded = load(a.legacy_file(a.state_dict({"w": a.tensor(shape=(4,), reference=reference)})))
    assert loaded["w"].tolist() == [1.0, 2.0, 3.0, 4.0]


def test_torch_reads_an_untyped_storage():
    loaded = load(a.torch_file(a.state_dict({"w": a.tensor3("0", "float8_e4m3fn", 4, (4,))}), {"0": b"\x38" * 4}))
    assert [float(item) for item in loaded["w"]] == [1.0] * 4
    assert math.prod(loaded["w"].shape) == 4
