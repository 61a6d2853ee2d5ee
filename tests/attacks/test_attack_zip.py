"""Lines 27 to 31 and 34 to 37: zips that torch, zipfile, scanners and people read differently, each lie alone."""

from __future__ import annotations

import struct
import zlib

import harness
import pytest
from harness import EITHER, HARMLESS, HONEST, MALFORMED, REFUSED, attack, case

from assemble import (
    FOUR,
    NONE,
    POP,
    Record,
    asm,
    call,
    checkpoint,
    program,
    state_dict,
    string,
    tensor,
    torch_file,
    torch_records,
    zip64_extra,
    zip_file,
)  # fmt: skip

PICKLE = state_dict({"w": tensor()})
EVIL = program(call("os", "system", "touch canary"))
HOLDS = {"w": FOUR}
OTHER = struct.pack("<4f", 9.0, 9.0, 9.0, 9.0)


def with_storage(record: Record, **options: object) -> bytes:
    """An honest file but for the record of its one storage."""
    return torch_file(PICKLE, {"0": record}, **options)


def with_pickle(record: Record) -> bytes:
    """An honest file but for the record of its pickle."""
    return torch_file(b"", change={"data.pkl": record})


@attack(27, "", HARMLESS, holds=HOLDS)
def control():
    """The honest file that all others here differ from by one lie: it must convert, or the lies prove nothing."""
    yield case("honest", torch_file(PICKLE), verdict=HONEST)
    yield case(
        "aligned-to-4096", torch_file(PICKLE, alignment=4096, change={".storage_alignment": b"4096"}), verdict=HONEST
    )
    yield case(
        "only-what-old-torch-wrote", zip_file({"data.pkl": PICKLE, "version": b"3\n", "data/0": FOUR}), verdict=HONEST
    )
    switched_off = {name: Record(data, crc=0) for name, data in torch_records(PICKLE, {"0": FOUR}).items()}
    yield case("crc-switched-off", zip_file(switched_off), verdict=HONEST)


@attack(27, "", EITHER, "byteorder|byte order|endian")
def byte_orders():
    """A byte order that is neither little nor big."""
    for text in (b"middle", b"", b"LITTLE", b"little ", b"big\0", b"\xff\xfe", b"little" * 1000, b"bi"):
        yield ascii(text[:12]), torch_file(PICKLE, change={"byteorder": text})


@attack(27, "torch issue: offsets computed by _get_offset", HARMLESS, holds=HOLDS)
def alignments_that_lie():
    """`.storage_alignment` says one thing and the local headers another: a reader that computes offsets reads other
    bytes."""
    for text in (b"1", b"4096", b"63", b"0", b"-64", b"abc", b"", b"9" * 100, b"64.0", b"18446744073709551616"):
        yield ascii(text[:12]), torch_file(PICKLE, change={".storage_alignment": text})
    yield "unaligned", torch_file(PICKLE, alignment=1)
    yield "none", torch_file(PICKLE, change={".storage_alignment": None})


@attack(27, "", HARMLESS, holds=HOLDS)
def versions_that_lie():
    """`version` and `.format_version` that no torch writes, and serialization ids of any kind: never another tensor."""
    for text in (b"", b"0\n", b"-1\n", b"4\n", b"999999999\n", b"3", b"three\n", b"3\n" * 1000):
        yield f"version-{text[:12]!a}", torch_file(PICKLE, change={"version": text})
        yield f"format-{text[:12]!a}", torch_file(PICKLE, change={".format_version": text})
    yield "id-empty", torch_file(PICKLE, change={".data/serialization_id": b""})
    yield "id-binary", torch_file(PICKLE, change={".data/serialization_id": bytes(range(256))})


@attack(28, "CVE-2025-1945, GHSA-w8jq-xcqf-f792", REFUSED, "flag|encrypt")
def flag_bits():
    """Encryption and patch bits in the flags: zipfile, and so a scanner, gives up on the record, torch reads it."""
    for bit in (0x1, 0x20, 0x40, 0x2000):
        yield f"pickle-{bit:#x}", with_pickle(Record(PICKLE, flags=0x808 | bit))
        yield f"storage-{bit:#x}", with_storage(Record(FOUR, flags=0x808 | bit))
    for bit in (0x1, 0x20, 0x40):
        yield f"evil-{bit:#x}", with_pickle(Record(EVIL, flags=0x808 | bit))
        yield case(
            f"local-only-{bit:#x}",
            with_storage(Record(FOUR, local_flags=0x808 | bit)),
            "flag|local|encrypt|disagree",
            verdict=EITHER,
        )


@attack(29, "CVE-2025-1944, GHSA-7q5r-7gvp-wc82", MALFORMED, "name|local|header")
def names_that_differ():
    """Directory and local header name the record differently: zipfile raises an error, torch takes the directory's."""
    yield "pickle", with_pickle(Record(PICKLE, local_name=b"archive/data.txt"))
    yield "pickle-in-the-directory", with_pickle(Record(EVIL, local_name=b"archive/data.pk1"))
    yield "storage", with_storage(Record(FOUR, local_name=b"archive/data/1"))
    yield (
        "swapped",
        torch_file(
            state_dict({"w": tensor("0"), "v": tensor("1")}),
            {"0": Record(FOUR, local_name=b"archive/data/1"), "1": Record(OTHER, local_name=b"archive/data/0")},
        ),
    )
    yield "case", with_pickle(Record(PICKLE, local_name=b"archive/DATA.pkl"))
    yield "shorter", with_storage(Record(FOUR, local_name=b"archive/data/"))
    yield "empty", with_storage(Record(FOUR, local_name=b""))
    yield "longer", with_storage(Record(FOUR, local_name=b"archive/data/0\0.txt"))


@attack(30, "CVE-2025-10156", MALFORMED, "CRC")
def wrong_crc():
    """A CRC-32 that is not the data's: the scanner stops on it, torch reads on."""
    yield "pickle", with_pickle(Record(PICKLE, crc=1))
    yield "storage", with_storage(Record(FOUR, crc=1))
    yield "storage-flipped", with_storage(Record(OTHER, crc=zlib.crc32(FOUR)))
    yield "small-record", torch_file(PICKLE, change={"version": Record(b"3\n", crc=1)})
    yield "unreferenced", torch_file(PICKLE, {"0": FOUR, "1": Record(FOUR, crc=1)})


@attack(30, "", MALFORMED, "CRC|descriptor|local|disagree")
def crc_in_one_place():
    """A CRC-32 that differs between directory, local header and descriptor, or is switched off for one record only."""
    yield "descriptor", with_storage(Record(FOUR, descriptor_crc=1))
    yield "local", with_storage(Record(FOUR, local_crc=1))
    yield "zero-for-one", with_storage(Record(FOUR, crc=0))
    yield case("zero-for-the-pickle", with_pickle(Record(EVIL, crc=0)), r"CRC|os[. ]system", verdict=EITHER)
    yield case("evil-with-a-bad-crc", with_pickle(Record(EVIL, crc=1)), r"CRC|os[. ]system", verdict=EITHER)


@attack(31, "CVE-2025-1889, GHSA-769v-p64c-89pr, modelaudit #1043, #1098", HARMLESS, holds=HOLDS, unclean=True)
def hidden_pickles():
    """A second pickle that a loader's own code would read, under a name that scanners skip: never read, never in the
    output."""
    for name in (
        "payload.pkl",
        "data/payload",
        "data/1",
        "extra/data.pkl",
        "weights.txt",
        "data.pkl.bak",
        "code.bin",
        "data/0.pkl",
    ):
        yield name.replace("/", "-"), torch_file(PICKLE, change={name: EVIL})


@attack(31, "", HARMLESS)
def pickles_as_storages():
    """A storage whose bytes are a pickle: they are numbers, and come out as they are."""
    code = bytes(EVIL).ljust(64, b"\0")
    body = state_dict({"w": tensor(kind="ByteStorage", numel=64)})
    yield case("pickle", torch_file(body, {"0": code}), holds={"w": code}, verdict=HONEST)
    inner = torch_file(EVIL)
    body = state_dict({"w": tensor(kind="ByteStorage", numel=len(inner))})
    yield case("zip", torch_file(body, {"0": inner}), holds={"w": inner}, verdict=HONEST)


@attack(31, "", EITHER, "data.pkl|pickle|record")
def pickle_elsewhere():
    """No data.pkl where torch writes it; scanners go by the extension of names, torch by this name."""
    yield "renamed", torch_file(b"", change={"data.pkl": None, "model.pkl": PICKLE})
    yield "no-extension", torch_file(b"", change={"data.pkl": None, "data": PICKLE})
    yield "deeper", torch_file(b"", change={"data.pkl": None, "a/b/data.pkl": PICKLE})
    yield "at-the-top", zip_file({"data.pkl": PICKLE, "data/0": FOUR}, prefix="")
    yield "two-levels-of-prefix", torch_file(PICKLE, prefix="a/b")
    yield "none", zip_file({"data/0": FOUR, "version": b"3\n"})
    yield "empty-zip", zip_file({}, zip64=False), "zip archive without records"
    yield "upper-case", torch_file(b"", change={"data.pkl": None, "DATA.PKL": PICKLE})


@attack(34, "candle reads all", EITHER, "twice|duplicate|folders|same|case|overlap|differ")
def duplicates():
    """A name twice, two folders with a data.pkl each, names that differ in case: readers choose differently."""
    honest = list(torch_records(PICKLE, {"0": FOUR}).items())
    yield "pickle-first", zip_file([("data.pkl", EVIL), *honest])
    yield "pickle-last", zip_file([*honest, ("data.pkl", EVIL)])
    yield "storage", zip_file([*honest, ("data/0", OTHER)])
    yield "same-bytes", zip_file([*honest, ("data/0", FOUR)])
    yield "small-record", zip_file([*honest, ("byteorder", b"big")])
    yield "same-local-header", zip_file([*honest, ("data/0", Record(FOUR, local=False, offset="data/0"))])
    other = [(f"../other/{name}", data) for name, data in torch_records(EVIL, {"0": OTHER}).items()]
    two = [(f"a/{name}", data) for name, data in honest] + [
        (name.replace("../other", "b"), data) for name, data in other
    ]
    yield "two-folders", zip_file(two, prefix="")
    yield "two-folders-evil-first", zip_file(two[::-1], prefix="")
    yield "case-twin-pickle", torch_file(PICKLE, change={"Data.pkl": EVIL})
    yield "case-twin-storage", torch_file(PICKLE, change={"DATA/0": OTHER})
    yield "case-twin-byteorder", torch_file(PICKLE, change={"ByteOrder": b"big"})


@attack(34, "", HARMLESS, holds=HOLDS)
def orders():
    """Records or directory entries in another order: the same tensors, whatever comes first."""
    count = len(torch_records(PICKLE, {"0": FOUR}))
    yield "directory-reversed", torch_file(PICKLE, directory_order=range(count - 1, -1, -1))
    yield "records-reversed", zip_file(list(torch_records(PICKLE, {"0": FOUR}).items())[::-1])
    yield "no-zip64", torch_file(PICKLE, zip64=False)


@attack(35, "zip quines, D. Fifield", MALFORMED, "overlap|bytes|record|header|directory|begin|local|expected|twice|gap")
def overlaps():
    """Records that share bytes, lie in the directory, or point to a local header inside another record's data."""
    inner = zip_file({"data/1": OTHER}, prefix="archive", zip64=False, alignment=1)
    two = state_dict({"w": tensor("0"), "v": tensor("1")})
    yield "same-header", torch_file(two, {"0": FOUR, "1": Record(FOUR, local=False, offset="data/0")})
    yield "longer-than-its-place", torch_file(PICKLE, {"0": Record(FOUR, csize=160, usize=160)})
    nested = state_dict({"w": tensor("0", "ByteStorage", len(inner)), "v": tensor("1")})
    file = torch_file(nested, {"0": inner, "1": Record(OTHER, local=False, offset=0)})
    at = file.index(inner)
    yield "inside-a-storage", torch_file(nested, {"0": inner, "1": Record(OTHER, local=False, offset=at)})
    yield case(
        "in-the-directory",
        with_storage(Record(FOUR, local=False, offset=len(torch_file(PICKLE)) - 200)),
        verdict=EITHER,
    )
    yield case("past-the-end", with_storage(Record(FOUR, offset=2**31)), verdict=EITHER)
    yield case("at-the-end", with_storage(Record(FOUR, offset=len(torch_file(PICKLE)) - 10)), verdict=EITHER)
    yield "off-by-one", with_storage(Record(FOUR, offset=1))
    yield "sentinel-offset", with_storage(Record(FOUR, offset=2**32 - 1)), "zip64|offset|header"
    yield case(
        "zip64-offset-huge", with_storage(Record(FOUR, offset=2**32 - 1, extra=zip64_extra(2**63))), verdict=EITHER
    )


@attack(35, "", EITHER, "bytes|gap|record|belong|junk|header|expected")
def bytes_between_records():
    """Bytes that no record owns, where a second archive or a payload can hide."""
    yield "before-a-record", torch_file(PICKLE, {"0": Record(FOUR, gap=bytes(EVIL))})
    yield "before-the-directory", torch_file(PICKLE, between=bytes(EVIL))
    yield "unlisted-record", torch_file(PICKLE, {"0": FOUR, "1": Record(bytes(EVIL), central=False)})


@attack(35, "", HARMLESS, holds=HOLDS)
def fields_that_nobody_reads():
    """A payload in the local extra field that torch pads with; a descriptor in its 64-bit form: the data is the
    same."""
    yield "extra-field", with_storage(Record(FOUR, local_extra=struct.pack("<2sH", b"XX", 60) + bytes(EVIL).ljust(60)))
    yield (
        "padding-not-z",
        with_storage(Record(FOUR, local_extra=struct.pack("<2sH", b"FB", 60) + bytes(EVIL).ljust(60))),
    )
    descriptor = b"PK\7\x08" + struct.pack("<IQQ", zlib.crc32(FOUR), 16, 16)
    yield "descriptor-64-bit", with_storage(Record(FOUR, descriptor=descriptor))


@attack(35, "", MALFORMED, "size|bytes|descriptor|zip64|stored|local|disagree|record|ends|extra|overlap")
def sizes_that_disagree():
    """Sizes that differ between directory, local header, descriptor and zip64 field, or sentinels without one."""
    yield "csize-usize", with_storage(Record(FOUR, csize=16, usize=12))
    yield "too-long", with_storage(Record(FOUR, csize=17, usize=17))
    yield "too-short", with_storage(Record(FOUR, csize=15, usize=15))
    yield "descriptor", with_storage(Record(FOUR, descriptor_csize=12, descriptor_usize=12))
    yield "descriptor-usize", with_storage(Record(FOUR, descriptor_usize=2**32 - 1))
    yield "descriptor-signature", with_storage(Record(FOUR, descriptor=b"PK\7\7" + bytes(12)))
    yield "descriptor-none", with_storage(Record(FOUR, descriptor=b""))
    lying = b"PK\7\x08" + struct.pack("<IQQ", zlib.crc32(FOUR), 16, 17)
    yield "descriptor-64-bit-lies", with_storage(Record(FOUR, descriptor=lying))
    yield "local", with_storage(Record(FOUR, local_csize=12, local_usize=12))
    yield "local-flags-say-otherwise", with_storage(Record(FOUR, local_flags=0x800))
    yield "sentinel-without-field", with_storage(Record(FOUR, csize=2**32 - 1, usize=2**32 - 1))
    yield "sentinel-half-a-field", with_storage(Record(FOUR, csize=2**32 - 1, usize=2**32 - 1, extra=zip64_extra(16)))
    yield (
        "field-of-another-size",
        with_storage(Record(FOUR, csize=2**32 - 1, usize=2**32 - 1, extra=zip64_extra(12, 12))),
    )
    yield (
        "field-twice",
        with_storage(Record(FOUR, csize=2**32 - 1, usize=2**32 - 1, extra=zip64_extra(16, 16) + zip64_extra(12, 12))),
    )
    yield "field-cut", with_storage(Record(FOUR, usize=2**32 - 1, extra=b"\1\0\x10\0\0"))
    yield "field-length-lies", with_storage(Record(FOUR, extra=b"\1\0\xff\xff" + bytes(8)))
    yield (
        "minus-one",
        with_storage(Record(FOUR, csize=2**32 - 1, usize=2**32 - 1, extra=zip64_extra(2**64 - 1, 2**64 - 1))),
    )
    yield "zip64-for-a-small-file", with_storage(Record(FOUR, extra=zip64_extra(12, 12))), "zip64|extra|size|bytes"


@attack(
    35,
    "",
    EITHER,
    "end record|directory|zip64|locator|comment|bytes|disk|entries|after|before|offset|torch|polyglot|PK|begin",
)
def end_records_that_lie():
    """End records that disagree with the directory or with each other, comments, and bytes in front or behind."""
    yield "count-high", torch_file(PICKLE, eocd={"entries": 20})
    yield "count-low", torch_file(PICKLE, eocd={"entries": 3}, eocd64={"entries": 3})
    yield "count-low-plain-only", torch_file(PICKLE, zip64=False, eocd={"entries": 3})
    yield "counts-differ", torch_file(PICKLE, eocd={"entries": 3})
    yield "here-differs", torch_file(PICKLE, eocd={"here": 3})
    yield "directory-offset", torch_file(PICKLE, eocd={"offset": 0}, eocd64={"offset": 0})
    yield "directory-offset-plain", torch_file(PICKLE, eocd={"offset": 0})
    yield "directory-offset-64", torch_file(PICKLE, eocd64={"offset": 0})
    yield "directory-offset-huge", torch_file(PICKLE, eocd64={"offset": 2**63})
    yield "directory-size", torch_file(PICKLE, eocd={"size": 10}, eocd64={"size": 10})
    yield "locator", torch_file(PICKLE, locator={"offset": 0})
    yield "locator-past-the-end", torch_file(PICKLE, locator={"offset": 2**62})
    yield "locator-disks", torch_file(PICKLE, locator={"disks": 2})
    yield "end64-length", torch_file(PICKLE, eocd64={"length": 0})
    yield "end64-length-huge", torch_file(PICKLE, eocd64={"length": 2**64 - 1})
    yield "end64-disk", torch_file(PICKLE, eocd64={"disk": 7})
    yield "disk", torch_file(PICKLE, eocd={"disk": 1})
    yield (
        "sentinels-without-zip64",
        torch_file(PICKLE, zip64=False, eocd={"entries": 0xFFFF, "offset": 2**32 - 1, "size": 2**32 - 1}),
    )
    yield "comment", torch_file(PICKLE, comment=b"hello")
    yield "comment-with-an-end-record", torch_file(PICKLE, comment=b"PK\5\6" + bytes(18))
    yield "comment-length-lies", torch_file(PICKLE, eocd={"comment": 100})
    yield "trailing", torch_file(PICKLE, trailing=b"\0" * 100)
    yield "trailing-pickle", torch_file(PICKLE, trailing=bytes(EVIL))
    yield "trailing-zip", torch_file(PICKLE, trailing=torch_file(EVIL))
    yield "trailing-zip-shifted", torch_file(PICKLE) + torch_file(EVIL, before=b"", shift=len(torch_file(PICKLE)))
    yield "cut", torch_file(PICKLE)[:-10]
    yield "cut-in-half", torch_file(PICKLE)[: len(torch_file(PICKLE)) // 2]
    yield "only-an-end-record", b"PK\5\6" + bytes(18), "zip archive without records"
    yield "only-a-local-header", b"PK\3\4" + bytes(26)
    yield "entry-comment", torch_file(PICKLE, {"0": Record(FOUR, comment=b"x")})
    yield "entry-on-another-disk", torch_file(PICKLE, {"0": Record(FOUR, disk=1)})


@attack(
    35,
    "CVE-2025-10155 (the idea), polyglots",
    EITHER,
    "pickle|zip|begin|protocol|directory|record|program|image|document|text|zero",
)
def not_at_the_start():
    """A zip behind something else: torch looks at the first four bytes, zipfile at the end of the file."""
    for label, before in (
        ("pickle", bytes(EVIL)),
        ("legacy-magic", b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19."),
        ("png", b"\x89PNG\r\n\x1a\n" + bytes(100)),
        ("pdf", b"%PDF-1.7\n"),
        ("script", b"#!/bin/sh\ntouch canary\n"),
        ("zeros", bytes(512)),
    ):
        yield f"{label}-shifted", torch_file(PICKLE, before=before)
        yield f"{label}-unshifted", before + torch_file(PICKLE)
    yield "zip-before-a-zip", torch_file(PICKLE, before=torch_file(EVIL))
    yield "elf-in-front", torch_file(PICKLE, before=b"\x7fELF" + bytes(60))


@attack(36, "zip slip", REFUSED, "name|path|outside|plain|link|folder|special|ASCII|UTF-8")
def names_that_are_paths():
    """Record names that would leave a folder if they were unpacked, and entries that are links or folders."""
    for label, name in (
        ("dot-dot", b"archive/../../../tmp/canary"),
        ("absolute", b"/tmp/canary"),
        ("backslash", b"archive\\data\\1"),
        ("drive", b"C:\\canary"),
        ("nul", b"archive/data/1\0.txt"),
        ("dot", b"archive/./data/1"),
        ("double-slash", b"archive//data/1"),
        ("folder", b"archive/data/"),
        ("empty", b""),
        ("latin1", b"archive/data/\xe9"),
        ("overlong-utf8", b"archive/data/\xc0\xae\xc0\xae"),
    ):
        yield label, torch_file(PICKLE, change={"extra": Record(b"x", name=name, local_name=name)})
    yield case(
        "nul-in-the-pickles-name",
        with_pickle(Record(PICKLE, name=b"archive/data.pkl\0x", local_name=b"archive/data.pkl\0x")),
        "name|data.pkl",
    )
    for label, mode in (("symlink", 0o120777), ("folder", 0o040755), ("device", 0o020666), ("fifo", 0o010644)):
        yield f"mode-{label}", torch_file(PICKLE, {"0": Record(FOUR, attributes=mode << 16, made_by=0x314)})
    yield "dos-folder", torch_file(PICKLE, {"0": Record(FOUR, attributes=0x10)})


@attack(36, "", HARMLESS, holds=HOLDS)
def prefixes():
    """The top folder has any name: it is never used for anything."""
    for prefix in ("a" * 200, "mod\u00e8le", "\u202egp.ledom", "-rf", "con", "a b", "\U0001f600"):
        yield ascii(prefix[:8]), torch_file(PICKLE, prefix=prefix)


@attack(36, "", EITHER, "folder|name|path|data.pkl|plain")
def prefixes_that_are_paths():
    """A top folder that leads elsewhere."""
    for prefix in ("..", ".", "/etc", "a/../b", "a\\b", "\0", "~/x/y"):
        yield ascii(prefix), torch_file(PICKLE, prefix=prefix)


@attack(37, "", REFUSED)
def other_kinds_of_torch_zip():
    """TorchScript, torch.package, torch.export, .mar and other zips: each is told by its name."""
    yield (
        "torchscript",
        torch_file(PICKLE, change={"constants.pkl": program(NONE), "code/__torch__.py": b"x"}),
        "TorchScript",
    )
    yield (
        "torchscript-evil",
        torch_file(EVIL, change={"constants.pkl": program(NONE), "code/__torch__.py": b"x"}),
        "TorchScript",
    )
    yield "bytecode", torch_file(PICKLE, change={"bytecode.pkl": program(NONE)}), "TorchScript"
    yield (
        "package",
        torch_file(PICKLE, change={".data/extern_modules": b"os", ".data/python_version": b"3.11"}),
        "package",
    )
    yield "export", zip_file({"archive_format": b"pt2", "models/model.json": b"{}", "version": b"0"}), "export|pt2"
    yield (
        "old-export",
        zip_file({"serialized_exported_program.json": b"{}", "version": b"5.1"}, prefix=""),
        "export|pt2",
    )
    yield "mar", zip_file({"MAR-INF/MANIFEST.json": b"{}", "model.pt": PICKLE}, prefix=""), "mar|TorchServe"
    yield "npz", zip_file({"w.npy": b"\x93NUMPY"}, prefix=""), "npz|numpy"
    yield "keras", zip_file({"config.json": b"{}", "model.weights.h5": b"\x89HDF"}, prefix=""), "keras|h5"
    yield "wheel", zip_file({"a.dist-info/RECORD": b"", "a/__init__.py": b""}, prefix=""), "wheel|dist-info|not a torch"
    yield "zip-of-checkpoints", zip_file({"model.pt": torch_file(PICKLE)}, prefix=""), "unpack|zip"
    yield "zip-of-a-raw-pickle", zip_file({"payload.pkl": EVIL}, prefix=""), "data.pkl|not a torch"


@attack(28, "picklescan", EITHER)
def evil_behind_each_lie():
    """A payload in an archive that is also broken: nothing of it runs, whichever is noticed first."""
    popped = program(asm(call("os", "system", "touch canary"), POP, string("x")))
    yield "trailing", torch_file(popped, trailing=b"junk")
    yield "names", with_pickle(Record(popped, local_name=b"archive/readme.txt"))
    yield "prefix", torch_file(popped, before=b"junk")
    yield (
        "tagged",
        torch_file(checkpoint("unsloth_prequant_transformer_state_dict_v1", {"x": call("os", "system", "x")}, {})),
    )


@pytest.mark.parametrize("case", harness.ATTACKS[__name__], ids=str)
def test_attack(case, watcher, tmp_path):
    harness.check(case, watcher, tmp_path)
