"""scan: what it calls clean, unknown and dangerous, where it says that something stands, and what it cannot miss."""

from __future__ import annotations

import ast
import bz2
import json
import os
import sys
import time
import zipfile
import zlib
from dataclasses import replace
from pathlib import Path

import pytest

import assemble as a
from depickle import Malformed, cli, harmful, scanning
from depickle.scanning import VERDICTS, scan

HERE = Path(__file__).parent
FIXTURES = next(
    (
        folder
        for folder in (
            Path(os.environ.get("DEPICKLE_FIXTURES", HERE / "data" / "fixtures")),
            Path("/work/shared/fixtures"),
        )
        if folder.is_dir()
    ),
    HERE,
)
REAL = sorted([*FIXTURES.glob("*/*.pt"), *FIXTURES.glob("*/*.safetensors")])
ENUM = ("torchao.quantization.quant_primitives", "ZeroPointDomain")
EVIL = a.call("os", "system", "true")


def gadgets() -> dict[str, object]:
    """The names in attacks/gadgets.py, read and not imported: it may lie on no path here."""
    tree = ast.parse((HERE / "attacks" / "gadgets.py").read_text())
    found: dict[str, object] = {}
    for node in tree.body:
        target = (
            node.target
            if isinstance(node, ast.AnnAssign)
            else node.targets[0]
            if isinstance(node, ast.Assign)
            else None
        )
        if isinstance(target, ast.Name):
            try:
                found[target.id] = ast.literal_eval(node.value)
            except ValueError:
                continue
    return found


LISTS = gadgets()
ALL = sorted(
    {(module, name) for _, module, name in LISTS["PICKLESCAN_TESTS"]}
    | {pair for key in ("SCANNER_LISTS", "FICKLING_LISTS", "ELSEWHERE") for pair in LISTS[key]}
)
# They only make data; what is done with it has to name something else. Reported as unknown.
DATA = {
    ("__builtin__", "dict"),
    ("_codecs", "encode"),
    ("copyreg", "_reconstructor"),
    ("numpy.core.multiarray", "scalar"),
}


@pytest.fixture
def judge(tmp_path):
    """Scan these bytes."""

    def of(data, name="model.pkl"):
        path = tmp_path / name
        path.write_bytes(data)
        return scan(path)

    return of


@pytest.fixture
def command(tmp_path, capsys):
    """`depickle scan` of these files: status, standard output, standard error."""

    def of(files, *options):
        paths = []
        for name, data in files.items():
            paths.append(str(tmp_path / name))
            if data is not None:
                Path(paths[-1]).write_bytes(data)
        status = cli.main(["scan", *options, *paths])
        return (status, *capsys.readouterr())

    return of


def only(found):
    """The one mention of a scan."""
    (mention,) = found.mentions
    return mention


# --- verdicts -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("module", "name"), ALL)
def test_gadgets_are_dangerous(judge, module, name):
    found = judge(a.program(a.call(module, name, "x")))
    assert only(found).name == f"{module}.{name}"
    assert found.verdict == ("unknown" if (module, name) in DATA else "dangerous")


GONE = {
    "_aix_support",
    "_osx_support",
    "aifc",
    "asynchat",
    "asyncore",
    "audioop",
    "binhex",
    "cgi",
    "cgitb",
    "chunk",
    "crypt",
    "distutils",
    "idlelib",
    "imghdr",
    "imp",
    "lib2to3",
    "mailcap",
    "msilib",
    "nis",
    "nntplib",
    "ossaudiodev",
    "pipes",
    "smtpd",
    "sndhdr",
    "spwd",
    "sunau",
    "telnetlib",
    "turtledemo",
    "uu",
    "xdrlib",
}


def test_the_verdict_does_not_depend_on_the_python_that_scans(monkeypatch):
    """Later ones have lost modules that earlier ones have, and some systems never had them all."""
    monkeypatch.setattr(sys, "stdlib_module_names", frozenset(sys.stdlib_module_names - GONE))
    listed = [(module, name) for module, name in ALL if (module, name) not in DATA]
    listed += [(module, "anything") for module in sorted(GONE)]
    assert [pair for pair in listed if not harmful.is_harmful(*pair)] == []


@pytest.mark.parametrize("path", REAL, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_real_files_are_not_dangerous(path):
    found = scan(path)
    if path.name.startswith("evil"):
        assert found.verdict == "dangerous"
    elif path.suffix == ".safetensors":
        assert found.verdict != "dangerous"
        assert not found.mentions
    else:
        assert not [mention.name for mention in found.mentions if mention.verdict == "dangerous"]


def test_there_are_real_files():
    assert len(REAL) > 100 or not (HERE / "data").exists()


def test_a_checkpoint_is_clean(judge):
    found = judge(
        a.torch_file(a.state_dict({"w": a.tensor(), "q.weight": a.int8_v1()}), a.int8_storages() | {"0": a.FOUR})
    )
    assert (found.verdict, found.pickles, found.problems) == ("clean", 1, ())
    assert {mention.verdict for mention in found.mentions} == {"clean"}


@pytest.mark.parametrize("name", ["legacy.pt", "legacy.bin"])
def test_a_legacy_checkpoint_is_clean(judge, name):
    items = a.state_dict({"w": a.tensor(reference=a.legacy_storage("0", "FloatStorage", 4))})
    found = judge(a.legacy_file(items), name)
    assert (found.verdict, found.pickles, found.problems) == ("clean", 4, ())


PLAIN = {
    "protocol 0": b"(lp0\nI1\naI2\na.",
    "protocol 0 dict": b"(dp0\nVa\nI1\ns.",
    "protocol 1": b"]q\x00(K\x01K\x02e.",
    "protocol 2": b"\x80\x02]q\x00.",
    "protocol 4": b"\x80\x04\x95\x02\x00\x00\x00\x00\x00\x00\x00]\x94.",
    "protocol 5": b"\x80\x05N.",
    "number": b"I1\n.",
}


@pytest.mark.parametrize("kind", PLAIN)
def test_plain_data_is_clean(judge, kind):
    """Any pickle, by whatever protocol."""
    found = judge(PLAIN[kind])
    assert (found.verdict, found.pickles, found.mentions, found.problems) == ("clean", 1, (), ())


@pytest.mark.parametrize(
    "data", [b"\x89PNG\r\n\x1a\n1234", b"hello, world", b"\0" * 64, bytes(range(256)), b"PK\5\6" + bytes(18)]
)
def test_no_pickle_is_unknown(judge, data):
    found = judge(data)
    assert (found.verdict, found.mentions) == ("unknown", ())
    assert found.problems


def test_unknown_is_neither(judge):
    found = judge(a.program(a.call("my.package", "Thing")))
    assert (found.verdict, only(found).verdict) == ("unknown", "unknown")


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("collections", "deque"),
        ("builtins", "set"),
        ("datetime", "datetime"),
        ("pathlib", "PosixPath"),
        ("numpy", "dtype"),
        ("numpy.core.multiarray", "_reconstruct"),
        ("torch.optim.adam", "Adam"),
    ],
)
def test_data_of_others_is_no_alarm(judge, module, name):
    assert judge(a.program(a.call(module, name))).verdict == "unknown"


LOOKALIKES = [
    ("оs", "system"),  # a Cyrillic o  # noqa: RUF001
    ("os ", "system"),
    ("torch._utils", "_rebuild_tensor_v2 "),
    ("torchao.evil", "Int8Tensor"),
    ("evil", "Int8Tensor"),
    ("torch", "_utils._rebuild_tensor_v2.__globals__"),
    ("", "system"),
    ("collections", "OrderedDict.fromkeys"),
    ("torch", "serialization.os.system"),
]


@pytest.mark.parametrize(("module", "name"), LOOKALIKES)
def test_lookalikes_are_not_clean(judge, module, name):
    assert judge(a.program(a.asm(a.string(module), a.string(name), a.STACK_GLOBAL), 4)).verdict != "clean"


@pytest.mark.parametrize(
    "name",
    [
        "os.system",
        "posix.system",
        "subprocess.Popen",
        "builtins.eval",
        "__builtin__.exec",
        "os.path.os.system",
        "sys.modules",
    ],
)
def test_by_every_opcode(judge, name):
    """Whatever brings it there."""
    module, _, last = name.rpartition(".")
    forms = {
        "GLOBAL, not called": a.program(a.GLOBAL(module, last)),
        "REDUCE": a.program(a.call(module, last, "x")),
        "INST": a.program(a.asm(a.MARK, a.string("x"), a.INST(module, last)), 0),
        "OBJ": a.program(a.asm(a.MARK, a.GLOBAL(module, last), a.string("x"), a.OBJ)),
        "NEWOBJ": a.program(a.new(module, last, "x")),
        "NEWOBJ_EX": a.program(a.asm(a.GLOBAL(module, last), a.value(("x",)), a.EMPTY_DICT, a.NEWOBJ_EX), 4),
        "STACK_GLOBAL": a.program(
            a.asm(a.string(module), a.string(last), a.STACK_GLOBAL, a.value(("x",)), a.REDUCE), 4
        ),
        "from the memo": a.program(
            a.asm(
                a.string(module),
                a.BINPUT(0),
                a.POP,
                a.BINGET(0),
                a.string(last),
                a.STACK_GLOBAL,
                a.EMPTY_TUPLE,
                a.REDUCE,
            ),
            4,
        ),
        "thrown away": a.program(a.asm(a.call(module, last, "x"), a.POP, a.NONE)),
        "behind a mark": a.program(a.asm(a.MARK, a.call(module, last, "x"), a.POP_MARK, a.NONE)),
        "as a key": a.program(a.asm(a.EMPTY_DICT, a.GLOBAL(module, last), a.NONE, a.SETITEM)),
        "as an argument": a.program(a.call("torch._utils", "_rebuild_tensor_v2", a.GLOBAL(module, last))),
        "as a state": a.program(a.ordered_dict(state=a.GLOBAL(module, last))),
        "as a storage": a.program(a.asm(a.GLOBAL(module, last), a.BINPERSID)),
        "framed": a.asm(a.PROTO(4), a.framed(a.GLOBAL(module, last), a.STOP)),
    }
    assert {form: judge(data).verdict for form, data in forms.items()} == dict.fromkeys(forms, "dangerous")


def test_extensions_are_not_clean(judge):
    """A number in a registry of whoever loads the file can be anything."""
    for code in (a.EXT1(1), a.EXT2(300), a.EXT4(70000)):
        assert judge(a.program(a.asm(code, a.EMPTY_TUPLE, a.REDUCE))).verdict != "clean"


# --- getattr --------------------------------------------------------------------------------------------------------


def access(owner, *members, module="builtins"):
    code = owner
    for member in members:
        code = a.asm(a.GLOBAL(module, "getattr"), a.value((a.Code(code), member)), a.REDUCE)
    return a.program(code)


@pytest.mark.parametrize("module", ["builtins", "__builtin__"])
def test_a_member_of_an_enum_is_clean(judge, module):
    found = judge(access(a.GLOBAL(*ENUM), "INT", module=module))
    assert found.verdict == "clean"
    assert [mention.name for mention in found.mentions] == [f"{module}.getattr", ".".join(ENUM)]


@pytest.mark.parametrize(
    ("owner", "members"),
    [
        (a.GLOBAL("os", "system"), ["__call__"]),
        (a.GLOBAL("builtins", "object"), ["__subclasses__"]),
        (a.GLOBAL(*ENUM), ["INT", "__class__"]),
        (a.GLOBAL(*ENUM), ["__class__"]),
        (a.GLOBAL(*ENUM), ["mro"]),
        (a.GLOBAL(*ENUM), ["NONE_SUCH"]),
        (a.GLOBAL("torch", "device"), ["index"]),
        (a.string("text"), ["format"]),
    ],
)
def test_any_other_attribute_is_dangerous(judge, owner, members):
    assert judge(access(owner, *members)).verdict == "dangerous"


@pytest.mark.parametrize("text", ["os", "sys"])
def test_getattr_of_a_module_is_dangerous(judge, text):
    found = judge(access(a.call("importlib", "import_module", text), "system"))
    assert {mention.name: mention.verdict for mention in found.mentions} == {
        "builtins.getattr": "dangerous",
        "importlib.import_module": "dangerous",
    }


def test_one_bad_access_is_enough(judge):
    good = a.asm(a.GLOBAL("builtins", "getattr"), a.BINPUT(1), a.value((a.GLOBAL(*ENUM), "INT")), a.REDUCE)
    bad = a.asm(a.BINGET(1), a.value((a.GLOBAL("torch", "device"), "type")), a.REDUCE)
    assert judge(a.program(a.asm(good, a.POP, bad))).verdict == "dangerous"


def test_getattr_that_is_not_called_is_dangerous(judge):
    assert judge(a.program(a.GLOBAL("builtins", "getattr"))).verdict == "dangerous"


# --- broken, several, hidden ----------------------------------------------------------------------------------------

BROKEN = {
    "cut off": b"",
    "no opcode": b"\xff",
    "operand missing": a.BINUNICODE("x", 100),
    "empty stack": a.asm(a.POP, a.POP, a.POP, a.POP),
    "memo missing": a.BINGET(77),
    "no mark": a.TUPLE,
    "proto 9": a.PROTO(9),
    "huge": a.BINBYTES8(b"", 2**60),
}


@pytest.mark.parametrize("how", BROKEN)
@pytest.mark.parametrize("container", ["bare", "zip"])
def test_a_payload_before_a_broken_stream(judge, how, container):
    """A real unpickler runs what stands before the error."""
    data = a.asm(a.PROTO(2), EVIL, BROKEN[how])
    found = judge(data if container == "bare" else a.torch_file(data))
    assert found.verdict == "dangerous"
    assert found.problems
    assert only(found).calls


def test_a_broken_stream_without_a_payload_is_unknown(judge):
    found = judge(a.asm(a.PROTO(2), a.EMPTY_DICT, b"\xff"))
    assert found.verdict == "unknown"
    assert "@3" in found.problems[0]


@pytest.mark.parametrize("number", [1, 2, 5, 6, 999])
def test_several_pickles_in_a_row(judge, number):
    """The payload is the last."""
    found = judge(a.program(a.NONE) * number + a.program(EVIL))
    assert (found.verdict, found.pickles, found.problems) == ("dangerous", number + 1, ())
    assert only(found).offset == 4 * number + 2


@pytest.mark.parametrize("number", [1000, 5000])
def test_more_pickles_than_anybody_reads(judge, number):
    """What is not looked at is not clean."""
    found = judge(a.program(a.NONE) * number + a.program(EVIL))
    assert found.verdict != "clean"


def test_clean_pickles_in_a_row(judge):
    assert judge(a.program(a.NONE) * 3).verdict == "clean"
    assert judge(a.program(a.NONE) * 3).pickles == 3


def test_bytes_behind_the_last_pickle(judge):
    found = judge(a.program(a.NONE) + b"garbage")
    assert found.verdict == "unknown"
    assert judge(a.program(a.NONE) + bytes(64)).verdict == "clean"


def test_a_payload_behind_the_limit(judge, monkeypatch):
    """What is not looked at is not clean."""
    monkeypatch.setattr(scanning, "_MAX_SCANNED", 4)
    for data in (a.program(a.NONE) + a.program(EVIL), a.torch_file(a.program(a.NONE) + a.program(EVIL))):
        found = judge(data)
        assert found.verdict != "clean"
        assert found.problems


def test_every_pickle_of_a_legacy_file(judge):
    clean = [a.MAGIC, a.PROTOCOL, a.program(a.value(a.SYS_INFO)), a.state_dict({"w": a.NONE}), a.program(a.EMPTY_LIST)]
    for number in range(5):
        pickles = [*clean]
        pickles[number] = a.program(a.asm(EVIL, a.POP, pickles[number][2:-1]))
        assert judge(b"".join(pickles)).verdict == "dangerous", number


def test_a_magic_number_that_is_computed(judge):
    """picklescan's `pytorch_magic_bypass`."""
    magic = a.program(a.call("builtins", "eval", "0x1950A86A20F9469CFC6C"))
    assert judge(a.legacy_file(a.state_dict({}), magic=magic)).verdict == "dangerous"


MEMBERS = [
    "data/evil.pkl",
    "data/0",
    "constants.pkl",
    "evil",
    "evil.dat",
    "code/x.py",
    ".data/x",
    "version",
    "a.joblib",
    "x.bin",
]


@pytest.mark.parametrize("name", MEMBERS)
@pytest.mark.parametrize("protocol", [2, 4])
def test_a_payload_in_another_member(judge, name, protocol):
    data = a.torch_file(a.state_dict({"w": a.tensor()}), change={name: a.program(EVIL, protocol)})
    assert judge(data, "model.pt").verdict == "dangerous"


@pytest.mark.parametrize("name", ["data/evil.pkl", "evil", "evil.dat"])
@pytest.mark.parametrize("form", ["protocol 0", "none first", "protocol 1"])
def test_a_payload_without_a_protocol_in_another_member(judge, name, form):
    """Nothing says that a pickle begins with PROTO."""
    data = {
        "protocol 0": b"cos\nsystem\n(S'true'\ntR.",
        "none first": b"N0cos\nsystem\n(S'true'\ntR.",
        "protocol 1": a.asm(a.GLOBAL("os", "system"), a.MARK, a.BINSTRING("true"), a.TUPLE, a.REDUCE, a.STOP),
    }[form]
    assert judge(a.torch_file(a.state_dict({"w": a.tensor()}), change={name: data}), "model.pt").verdict == "dangerous"


@pytest.mark.parametrize(
    "options",
    [
        {"before": b"MZ" + bytes(60)},
        {"trailing": b"trailing"},
        {"comment": b"comment"},
        {"zip64": False},
        {"change": {"data.pkl": a.Record(a.program(EVIL), flags=0x809)}},
        {"change": {"data.pkl": a.Record(a.program(EVIL), crc=1)}},
        {"change": {"data.pkl": a.Record(a.program(EVIL), local_name=b"archive/other.txt")}},
        {"change": {"data.pkl": a.Record(a.program(EVIL), name=b"archive/data.txt")}},
        {"change": {"data.pkl": None, "other.pkl": a.program(EVIL)}},
        {"prefix": ""},
    ],
    ids=str,
)
def test_a_zip_that_is_no_checkpoint(judge, options):
    """Where Python's reader refuses too the verdict is at least not clean."""
    found = judge(a.torch_file(a.program(EVIL), **options), "model.pt")
    assert found.verdict != "clean"


@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_compressed_members(judge, tmp_path, method):
    with zipfile.ZipFile(tmp_path / "model.zip", "w", method) as archive:
        archive.writestr("archive/data.pkl", a.program(EVIL))
        archive.writestr("archive/readme", b"nothing")
    found = scan(tmp_path / "model.zip")
    assert found.verdict == ("dangerous" if method == zipfile.ZIP_DEFLATED else "unknown")
    assert found.problems


@pytest.mark.parametrize("method", [8, 12, 14, 9, 93, 99])
def test_compressed_nonsense(judge, method):
    """A member that cannot be unpacked is a problem and no crash."""
    record = a.Record(a.program(EVIL), method=method, stored=b"\x07nonsense\xff" * 5)
    found = judge(a.torch_file(b"", change={"data.pkl": record}), "model.pt")
    assert found.verdict == "unknown"
    assert found.problems


def test_damage_in_the_middle_of_a_compressed_member(judge):
    packed = zlib.compress(a.program(EVIL) + bytes(range(256)) * 300)[2:-4]
    for at in range(5, len(packed), 37):
        record = a.Record(a.program(EVIL), method=8, stored=packed[:at] + bytes([packed[at] ^ 0x55]) + packed[at + 1 :])
        assert judge(a.torch_file(b"", change={"data.pkl": record}), "model.pt").verdict in VERDICTS


def test_damage_in_the_middle_of_a_bz2_member(judge):
    packed = bytearray(bz2.compress(a.program(EVIL) * 50))
    packed[len(packed) // 2] ^= 0x55
    record = a.Record(a.program(EVIL) * 50, method=12, stored=bytes(packed))
    assert judge(a.torch_file(b"", change={"data.pkl": record}), "model.pt").verdict in VERDICTS


def test_an_encrypted_member(judge):
    record = a.Record(a.program(EVIL), flags=0x1)
    assert judge(a.torch_file(b"", change={"data.pkl": record}), "model.pt").verdict != "clean"


def test_a_bomb(judge):
    """Many entries that share one compressed member of many megabytes."""
    size = 80_000_000
    packed = zlib.compress(b"\x80\x02" + bytes(size - 2), 9)[2:-4]
    crc = zlib.crc32(b"\x80\x02" + bytes(size - 2))
    first = a.Record(
        b"",
        method=8,
        stored=packed,
        crc=crc,
        usize=size,
        flags=0,
        local_csize=len(packed),
        local_usize=size,
        local_crc=crc,
        descriptor=b"",
    )
    more = a.Record(
        b"", method=8, stored=packed, crc=crc, usize=size, csize=len(packed), flags=0, offset="data.pkl", local=False
    )
    entries = [("data.pkl", first), *[("data.pkl", replace(more)) for _ in range(20)]]
    begun = time.process_time()
    found = judge(a.zip_file(entries), "model.pt")
    assert found.verdict != "clean"
    assert time.process_time() - begun < 5


def test_a_zip_in_a_zip(judge):
    inner = a.torch_file(a.program(EVIL))
    assert judge(a.zip_file({"model.pt": inner}, prefix="bundle"), "bundle.zip").verdict != "clean"


@pytest.mark.parametrize("magic", [b"PK\7\x08", b"PK"])
def test_almost_a_zip(judge, magic):
    assert judge(magic + a.torch_file(a.program(EVIL))[4:]).verdict != "clean"


def test_safetensors_is_no_pickle(judge):
    found = judge(
        a.safetensors_file({"w": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}, a.FOUR), "model.safetensors"
    )
    assert found.verdict != "dangerous"
    assert not found.mentions


def test_a_pickle_that_pretends_to_be_safetensors(judge):
    """Read as a pickle this is dangerous: `Q` in front of what looks like the length of a header."""
    data = a.asm(a.PROTO(2), EVIL, a.STOP)
    assert judge(data + bytes(16), "model.safetensors").verdict == "dangerous"


# --- places ---------------------------------------------------------------------------------------------------------


def test_offsets_of_names_and_calls(judge):
    body = a.asm(a.NONE, a.POP, a.GLOBAL("os", "system"), a.BINPUT(0), a.POP)
    calls = a.asm(a.BINGET(0), a.value(("a",)), a.REDUCE, a.POP, a.BINGET(0), a.value(("b",)), a.REDUCE)
    data = a.program(a.asm(body, calls))
    mention = only(judge(data))
    assert mention.offset == data.index(b"cos\n")
    first = data.index(b"R")
    assert mention.calls == (first, data.index(b"R", first + 1))
    assert mention.record == "file"


def test_the_record_is_named(judge):
    found = judge(a.torch_file(a.state_dict({"w": a.tensor()}), change={"data/x.pkl": a.program(EVIL)}), "m.pt")
    (mention,) = [mention for mention in found.mentions if mention.verdict == "dangerous"]
    assert mention.record.endswith("data/x.pkl")
    assert mention.offset == 2


def test_two_uses_of_one_name_are_two_mentions(judge):
    found = judge(a.program(a.asm(EVIL, a.POP, EVIL)))
    assert [mention.offset for mention in found.mentions] == [2, 2 + len(EVIL) + 1]
    assert [len(mention.calls) for mention in found.mentions] == [1, 1]


# --- output ---------------------------------------------------------------------------------------------------------

CLEAN, UNKNOWN, DANGEROUS = a.program(a.NONE), a.program(a.call("mine", "Thing")), a.program(EVIL)


@pytest.mark.parametrize(
    ("files", "options", "status"),
    [
        ({"a": CLEAN}, [], 0),
        ({"a": UNKNOWN}, [], 1),
        ({"a": DANGEROUS}, [], 1),
        ({"a": UNKNOWN}, ["--allow-unknown"], 0),
        ({"a": DANGEROUS}, ["--allow-unknown"], 1),
        ({"a": b"no pickle at all"}, ["--allow-unknown"], 0),
        ({"a": CLEAN, "b": UNKNOWN, "c": CLEAN}, [], 1),
        ({"a": DANGEROUS, "b": CLEAN}, ["--allow-unknown"], 1),
        ({"a": None}, [], 2),
        ({"a": b""}, [], 2),
        ({"a": None, "b": DANGEROUS}, [], 2),
        ({"a": CLEAN, "b": None}, ["--allow-unknown"], 2),
    ],
)
@pytest.mark.parametrize("form", [[], ["--json"], ["--sarif"]], ids=["text", "json", "sarif"])
def test_exit_status(command, files, options, status, form):
    assert command(files, *options, *form)[0] == status


def test_text(command):
    status, stdout, stderr = command({"bad.pkl": DANGEROUS, "good.pkl": CLEAN})
    assert (status, stderr) == (1, "")
    assert "bad.pkl: dangerous" in stdout
    assert "good.pkl: clean" in stdout
    assert "os.system" in stdout


def test_text_is_safe_for_a_terminal(command):
    hostile = a.program(a.asm(a.string("a\x1b[2J\nb"), a.string("c\r\u202e"), a.STACK_GLOBAL), 4)
    _, stdout, stderr = command(
        {"x\x1b[31m\n.pkl": hostile, "z.pt": a.torch_file(CLEAN, change={"\x1b[2J.pkl": DANGEROUS})}
    )
    assert not [char for char in stdout + stderr if not char.isprintable() and char != "\n"]


def test_json(command):
    status, stdout, stderr = command({"bad.pkl": DANGEROUS, "good.pkl": CLEAN, "odd.pkl": b"?"}, "--json")
    assert (status, stderr) == (1, "")
    found = [json.loads(line) for line in stdout.splitlines()]
    assert [one["verdict"] for one in found] == ["dangerous", "clean", "unknown"]
    assert all(set(one) == {"scan", "file", "verdict", "pickles", "globals", "problems"} for one in found)
    assert all(one["scan"] == 1 for one in found)
    assert found[0]["globals"] == [
        {"name": "os.system", "verdict": "dangerous", "record": "file", "offset": 2, "calls": [DANGEROUS.index(b"R")]}
    ]
    assert found[2]["problems"]


def sarif_of(text):
    log = json.loads(text)
    check_sarif(log)
    return log["runs"][0]["results"]


def check_sarif(log):
    """What SARIF 2.1.0 (section 3) demands of those parts of it that are used here."""
    assert log["version"] == "2.1.0"
    assert log["$schema"].startswith("https://")
    assert set(log) <= {"$schema", "version", "runs"}
    (run,) = log["runs"]
    driver = run["tool"]["driver"]
    assert driver["name"]
    rules = [rule["id"] for rule in driver["rules"]]
    assert len(set(rules)) == len(rules)
    for result in run["results"]:
        assert result["ruleId"] in rules
        assert result["level"] in {"none", "note", "warning", "error"}
        assert isinstance(result["message"]["text"], str)
        assert result["message"]["text"]
        for location in result["locations"]:
            place = location["physicalLocation"]
            check_uri(place["artifactLocation"]["uri"])
            assert type(place.get("region", {}).get("byteOffset", 0)) is int
            assert place.get("region", {}).get("byteOffset", 0) >= 0


def check_uri(uri):
    """A URI reference of RFC 3986: nothing else than its characters, percent signs with two digits behind."""
    allowed = set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~:/?#[]@!$&'()*+,;=%")
    assert set(uri) <= allowed, uri
    parts = uri.split("%")[1:]
    assert all(len(part) >= 2 and set(part[:2]) <= set("0123456789abcdefABCDEF") for part in parts), uri


def test_sarif(command):
    status, stdout, stderr = command(
        {"bad.pkl": DANGEROUS, "good.pkl": CLEAN, "odd.pkl": UNKNOWN, "no.pkl": b"?"}, "--sarif"
    )
    assert (status, stderr) == (1, "")
    results = sarif_of(stdout)
    kinds = [(result["ruleId"], result["level"]) for result in results]
    assert kinds[:2] == [("dangerous", "error"), ("unknown", "warning")]
    assert set(kinds[2:]) == {("unreadable", "warning")}
    assert "os.system" in results[0]["message"]["text"]
    assert results[0]["locations"][0]["physicalLocation"]["region"] == {"byteOffset": 2}


def test_sarif_of_nothing(command):
    assert sarif_of(command({"good.pkl": CLEAN}, "--sarif")[1]) == []


def test_sarif_with_a_missing_file(command):
    status, stdout, stderr = command({"missing.pkl": None, "bad.pkl": DANGEROUS}, "--sarif")
    assert status == 2
    assert len(sarif_of(stdout)) == 1
    assert "missing.pkl" in stderr


@pytest.mark.parametrize(
    "name", ["a b.pkl", "100%.pkl", "é模型🧂.pkl", "a#b?c.pkl", "a\nb.pkl", os.fsdecode(b"\xff.pkl"), "c:d.pkl"]
)
def test_sarif_uris(command, name):
    (result,) = sarif_of(command({name: DANGEROUS}, "--sarif")[1])
    uri = result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]
    assert "#" not in uri
    assert "?" not in uri


def test_sarif_offsets_are_those_of_the_file(command, tmp_path):
    """A region belongs to the artifact: an offset in a member is no offset in the zip."""
    data = a.torch_file(DANGEROUS)
    (result,) = sarif_of(command({"model.pt": data}, "--sarif")[1])
    region = result["locations"][0]["physicalLocation"].get("region")
    assert region is None or region["byteOffset"] == data.index(DANGEROUS) + 2


def test_raises_for_what_is_no_file(tmp_path):
    with pytest.raises(OSError, match="No such file"):
        scan(tmp_path / "missing")
    with pytest.raises(Malformed, match="not a regular file"):
        scan(tmp_path)
    (tmp_path / "empty").touch()
    with pytest.raises(Malformed, match="empty"):
        scan(tmp_path / "empty")


def test_nothing_is_imported(tmp_path):
    """Not a module that a pickle names."""
    path = tmp_path / "x.pkl"
    path.write_bytes(a.program(a.asm(a.call("this", "x"), a.POP, a.call("antigravity", "y"))))
    before = set(sys.modules)
    assert scan(path).verdict == "dangerous"
    assert not {"this", "antigravity"} & (set(sys.modules) - before)


def test_a_pickle_of_many_names(judge):
    """One line for each use, and in a time that fits."""
    body = a.asm(*[a.asm(a.GLOBAL("m", f"n{i}"), a.POP) for i in range(20_000)], a.NONE)
    begun = time.process_time()
    assert len(judge(a.program(body)).mentions) == 20_000
    assert time.process_time() - begun < 10


def test_long_names(judge):
    found = judge(a.program(a.asm(a.string("m" * 1_000_000), a.string("n"), a.STACK_GLOBAL), 4))
    assert found.verdict != "clean"


def test_every_verdict_is_known():
    assert VERDICTS == ("clean", "unknown", "dangerous")
