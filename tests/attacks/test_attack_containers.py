"""Lines 15, 16, 32, 37 and 38: the old stream of five pickles, and files that are something else than their name
says."""

from __future__ import annotations

import io
import struct
import tarfile
from pathlib import Path

import harness
import pytest
from harness import EITHER, HARMLESS, HONEST, MALFORMED, REFUSED, attack, case

from assemble import (
    FOUR,
    GLOBAL,
    LONG1,
    MAGIC,
    NONE,
    POP,
    PROTO,
    PROTOCOL,
    REDUCE,
    STOP,
    SYS_INFO,
    TUPLE1,
    asm,
    call,
    framed,
    integer,
    legacy_file,
    legacy_storage,
    program,
    state_dict,
    string,
    tensor,
    torch_file,
    value,
)  # fmt: skip

SYSTEM = call("os", "system", "touch canary")
REFERENCE = legacy_storage("0", "FloatStorage", 4)
PICKLE = state_dict({"w": tensor(shape=(4,), reference=REFERENCE)})
HOLDS = {"w": FOUR}


@attack(15, "", HONEST, holds=HOLDS)
def control():
    """The honest stream from which the others differ."""
    yield "legacy", legacy_file(PICKLE)
    yield (
        "two-storages",
        legacy_file(
            state_dict(
                {
                    "v": tensor(shape=(2,), reference=legacy_storage("9", "LongStorage", 2)),
                    "w": tensor(shape=(4,), reference=REFERENCE),
                }
            ),
            [("0", 4, FOUR), ("9", 2, bytes(16))],
        ),
    )


@attack(15, "picklescan: payload in the 2nd to 6th pickle", REFUSED, r"os[. ]system", unclean=True)
def payload_in_each_pickle():
    """A call in one of the five pickles, its result thrown away or in the value's place."""
    hidden = asm(SYSTEM, POP)
    yield "2-hidden", legacy_file(PICKLE, protocol=program(asm(hidden, integer(1001))))
    yield "3-hidden", legacy_file(PICKLE, sys_info=program(asm(hidden, value(SYS_INFO))))
    yield "3-in-it", legacy_file(PICKLE, sys_info=program(value({**SYS_INFO, "x": SYSTEM})))
    yield "4-hidden", legacy_file(program(asm(hidden, value({"w": tensor(shape=(4,), reference=REFERENCE)}))))
    yield "4-in-it", legacy_file(state_dict({"w": tensor(shape=(4,), reference=REFERENCE), "x": SYSTEM}))
    yield "4-itself", legacy_file(program(SYSTEM), [])
    yield "5-hidden", legacy_file(PICKLE, keys=asm(hidden, value(["0"])))
    yield case("2-in-it", legacy_file(PICKLE, protocol=program(SYSTEM)), r"os[. ]system|protocol", verdict=EITHER)
    yield case(
        "3-itself", legacy_file(PICKLE, sys_info=program(SYSTEM)), r"os[. ]system|system info|sys_info", verdict=EITHER
    )
    yield case("5-itself", legacy_file(PICKLE, keys=SYSTEM), r"os[. ]system|keys", verdict=EITHER)
    yield case("5-in-it", legacy_file(PICKLE, keys=["0", SYSTEM]), r"os[. ]system|keys", verdict=EITHER)


@attack(15, "", MALFORMED, "bytes|after|trailing|rest|end")
def payload_behind_the_stream():
    """A sixth pickle, or anything, after the last storage."""
    yield "sixth-pickle", legacy_file(PICKLE, trailing=program(SYSTEM))
    yield "second-stream", legacy_file(PICKLE, trailing=legacy_file(program(SYSTEM), []))
    yield "zip", legacy_file(PICKLE, trailing=torch_file(state_dict({"w": tensor()})))
    yield "one-byte", legacy_file(PICKLE, trailing=b"\0")


@attack(16, "picklescan pytorch_magic_bypass", EITHER)
def magic_number_by_a_call():
    """A first pickle that computes the magic number, or hides a call before it: torch compares the value, scanners the
    bytes."""
    called = program(call("__builtin__", "eval", "0x1950A86A20F9469CFC6C"))
    yield "eval", legacy_file(PICKLE, magic=called)
    yield "int", legacy_file(PICKLE, magic=program(call("builtins", "int", "119547037146038801333356")))
    yield "hidden", legacy_file(PICKLE, magic=program(asm(SYSTEM, POP, LONG1(0x1950A86A20F9469CFC6C))))
    yield "text", legacy_file(PICKLE, magic=program(string("119547037146038801333356")))
    yield "other-number", legacy_file(PICKLE, magic=program(LONG1(0x1950A86A20F9469CFC6D)))
    yield "magic-then-call", asm(PROTO(2), LONG1(0x1950A86A20F9469CFC6C), POP, SYSTEM, STOP)
    yield (
        "magic-as-argument",
        asm(PROTO(2), GLOBAL("os", "system"), LONG1(0x1950A86A20F9469CFC6C), TUPLE1, REDUCE, STOP),
    )


@attack(16, "", HARMLESS, holds=HOLDS)
def magic_number_spelled_otherwise():
    """The right number by another opcode or protocol: the same tensors or a refusal."""
    yield "long4", legacy_file(PICKLE, magic=program(asm(b"\x8b\x0a\0\0\0" + MAGIC[4:14])))
    yield "padded", legacy_file(PICKLE, magic=program(LONG1(MAGIC[4:14] + bytes(20))))
    yield "text", legacy_file(PICKLE, magic=b"L119547037146038801333356L\n.")
    yield "protocol-4", legacy_file(PICKLE, magic=asm(PROTO(4), framed(LONG1(0x1950A86A20F9469CFC6C), STOP)))
    yield "protocol-number-as-long", legacy_file(PICKLE, protocol=program(LONG1(1001)))


@attack(15, "", EITHER)
def streams_that_lie():
    """Wrong protocol, sys_info or keys, counts that differ, storages that overlap by their sizes, cut files."""
    yield "protocol", legacy_file(PICKLE, protocol=program(integer(1000))), "protocol"
    yield "protocol-true", legacy_file(PICKLE, protocol=program(value(True))), "protocol"
    yield "sys-info-empty", legacy_file(PICKLE, sys_info=program(value({}))), "info"
    yield "sys-info-list", legacy_file(PICKLE, sys_info=program(value([]))), "info"
    yield (
        "sys-info-sizes",
        legacy_file(PICKLE, sys_info=program(value({**SYS_INFO, "type_sizes": {"int": 8}}))),
        "info|size",
    )
    yield "keys-missing", legacy_file(PICKLE, keys=[]), "key|storage"
    yield "keys-unknown", legacy_file(PICKLE, keys=["0", "1"]), "key|storage"
    yield "keys-twice", legacy_file(PICKLE, keys=["0", "0"]), "key|storage|twice"
    yield "keys-not-text", legacy_file(PICKLE, keys=[0]), "key|text"
    yield "keys-nested", legacy_file(PICKLE, keys=[["0"]]), "key|text"
    yield "keys-none", legacy_file(PICKLE, keys=NONE), "key|list"
    yield "keys-dict", legacy_file(PICKLE, keys={"0": 1}), "key|list"
    for label, count in (("more", 5), ("less", 3), ("negative", -1), ("minimum", -(2**63)), ("huge", 2**62)):
        yield f"count-{label}", legacy_file(PICKLE, [("0", count, FOUR)]), "count|element|storage"
    yield "data-short", legacy_file(PICKLE, [("0", 4, FOUR[:-1])]), "bytes|ends|truncated|storage"
    yield "data-long", legacy_file(PICKLE, [("0", 4, FOUR + b"\0")]), "bytes|after"
    yield "cut-in-the-pickle", legacy_file(PICKLE)[:120], "STOP|ends|fit|bytes"
    yield "cut-after-the-magic", MAGIC, "STOP|ends|bytes"
    yield "cut-after-the-protocol", MAGIC + PROTOCOL, "STOP|ends|bytes"
    other = legacy_storage("0", "LongStorage", 2)
    yield (
        "two-types",
        legacy_file(
            state_dict({"w": tensor(shape=(4,), reference=REFERENCE), "v": tensor(shape=(2,), reference=other)})
        ),
        "storage|twice|declared",
    )
    view = legacy_storage("0", "FloatStorage", 4, view=("1", 0, 4))
    yield "view-metadata", legacy_file(state_dict({"w": tensor(shape=(4,), reference=view)})), "view"
    yield "five-items", legacy_file(state_dict({"w": tensor()})), "persistent|storage"
    yield (
        "negative-numel",
        legacy_file(state_dict({"w": tensor(shape=(4,), reference=legacy_storage("0", "FloatStorage", -4))})),
        "count|negative|numel",
    )
    yield (
        "bool-numel",
        legacy_file(
            state_dict({"w": tensor(shape=(1,), reference=legacy_storage("0", "FloatStorage", True))}),
            [("0", 1, FOUR[:4])],
        ),
        "",
    )
    yield (
        "evil-class",
        legacy_file(state_dict({"w": tensor(shape=(4,), reference=legacy_storage("0", "system", 4))})),
        "torch.system|class",
    )


def tar(members: dict[str, bytes], link: tuple[str, str] | None = None, form: int = tarfile.USTAR_FORMAT) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form) as archive:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
        if link:
            info = tarfile.TarInfo(link[0])
            info.type, info.linkname = tarfile.SYMTYPE, link[1]
            archive.addfile(info)
    return out.getvalue()


@attack(38, "CVE-2025-32434", REFUSED, "tar")
def tar_files():
    """What torch wrote before 0.1.10: `weights_only=True` ran the code of such a file up to torch 2.5."""
    storages = asm(integer(1), STOP)
    members = {
        "sys_info": program(value(SYS_INFO)),
        "pickle": program(SYSTEM),
        "storages": bytes(program(SYSTEM) + storages),
        "tensors": bytes(program(SYSTEM)),
    }
    yield "legacy", tar(members)
    yield "one-member", tar({"data.pkl": bytes(program(SYSTEM))})
    yield "link", tar({}, link=("storages", "/etc/passwd"))
    yield "dot-dot", tar({"../../canary": b"x"})
    yield "gnu", tar(members, form=tarfile.GNU_FORMAT)
    yield "with-a-zip-behind", tar(members) + torch_file(state_dict({"w": tensor()}))


@attack(38, "", EITHER, "tar|begins|gzip|zero|expected|compress")
def tar_files_in_disguise():
    """An old tar without magic; a compressed one."""
    old = bytearray(tar({"pickle": bytes(program(SYSTEM))}))
    old[257:265] = bytes(8)
    yield "v7", bytes(old)
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        archive.addfile(tarfile.TarInfo("pickle"), io.BytesIO())
    yield "gzip", packed.getvalue()


@attack(32, "CVE-2025-10155, 'nullifAI'", EITHER)
def content_against_extension():
    """A `.pt` or `.bin` that is something else: decided by content, and told."""
    evil = bytes(program(SYSTEM))
    for file in ("model.pt", "pytorch_model.bin", "model.safetensors"):
        yield case(f"raw-pickle-{file}", evil, r"pickle|os[. ]system|safetensors|header", file=file)
    yield case("raw-pickle-without-proto", evil[2:], r"pickle|os[. ]system")
    yield case("raw-pickle-protocol-0", b"cos\nsystem\n(S'touch canary'\ntR.", r"pickle|os[. ]system")
    yield case("raw-pickle-protocol-4", bytes(asm(PROTO(4), framed(SYSTEM, STOP))), r"pickle|os[. ]system")
    yield case("raw-pickle-of-a-state-dict", bytes(state_dict({"w": tensor()})), "pickle|torch")
    yield case("7z", b"7z\xbc\xaf\x27\x1c\0\4" + bytes(40) + evil, "7z|7-zip")
    yield case("rar", b"Rar!\x1a\x07\x01\0" + bytes(40), "rar")
    yield case("gzip", b"\x1f\x8b\x08\0" + bytes(40), "gzip")
    yield case("zstd", b"\x28\xb5\x2f\xfd" + bytes(40), "zstd")
    yield case("xz", b"\xfd7zXZ\0" + bytes(40), "xz")
    yield case("png", b"\x89PNG\r\n\x1a\n" + bytes(40), "png")
    yield case("png-with-a-zip", b"\x89PNG\r\n\x1a\n" + torch_file(state_dict({"w": tensor()})), "png")
    yield case(
        "numpy", b"\x93NUMPY\1\0\x46\0{'descr': '|O', 'fortran_order': False, 'shape': (1,)}".ljust(80) + evil, "numpy"
    )
    yield case("hdf5", b"\x89HDF\r\n\x1a\n" + bytes(40), "hdf5|keras")
    yield case("gguf", b"GGUF\3\0\0\0" + bytes(40), "gguf")
    yield case("onnx", b"\x08\x07\x12\x07pytorch" + bytes(40), "onnx|protocol|begins")
    yield case("html", b"<!DOCTYPE html><html>", "html")
    yield case("json", b'{"weight_map": {"w": "../../etc/passwd"}}', "json")
    yield case("lfs", b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", "lfs")
    yield case("python", b"import os\nos.system('touch canary')\n", "text|begins|python")
    yield case("elf", b"\x7fELF\2\1\1" + bytes(100), "elf|program")
    yield case("empty", b"", "empty|truncated")
    yield case("one-byte", b"\x80", "begins|pickle|ends|short")
    yield case("zeros", bytes(4096), "zero|begins")
    yield case("escape-codes", b"\x1b[2J\x1b]0;owned\x07\r\n" * 4, "begins|text")
    yield case("dill-joblib", b"\x80\x03cjoblib.numpy_pickle\nNumpyArrayWrapper\nq\0.", "pickle|joblib")


def make_folder(sandbox: Path) -> None:
    (sandbox / "in" / "x").unlink()
    (sandbox / "in" / "x").mkdir()


@attack(37, "", EITHER, "folder|directory|regular")
def folders():
    """A distributed checkpoint is a folder; a folder is no file to convert."""
    yield case("folder", b"", file="x", setup=make_folder, api=False)


def grow(sandbox: Path) -> None:
    with (sandbox / "in" / "model.pt").open("r+b") as file:
        file.truncate(2 << 30)


@attack(15, "", EITHER)
def legacy_pickle_far_from_its_end():
    """A broken pickle at the head of a very long stream: the rest of the file is not read to find that out."""
    yield case("bad-opcode", MAGIC + b"\x80\x02\xff" + bytes(100), setup=grow)
    yield case("endless-text", MAGIC + struct.pack("<2sI", b"\x80\x02", 0) + bytes(100), setup=grow)
    yield case(
        "after-the-info", MAGIC + PROTOCOL + program(value(SYS_INFO)) + program(NONE) + program(NONE), setup=grow
    )


@pytest.mark.parametrize("case", harness.ATTACKS[__name__], ids=str)
def test_attack(case, watcher, tmp_path):
    harness.check(case, watcher, tmp_path)
