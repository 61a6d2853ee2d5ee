r"""The stored zip that torch.save writes since 1.6: a central directory and local headers become named byte ranges.

In: a source that begins with PK\3\4. Out: an `Archive`, or Malformed (the structure contradicts itself or the file)
or Refused (another kind of zip, or a form that torch never writes and that readers are known to disagree on:
compression, comments, bytes between records, names that differ only in case). Offsets are those of the file; a zip in
front of or behind something else has other offsets and is not accepted, since torch looks at the first bytes of a file
and others at the last.

Format: PKWARE APPNOTE 6.3.10, sections 4.3 to 4.5; what torch does with it: `caffe2/serialize/inline_container.cc`,
torch 2.13. torch leaves sizes and CRC-32 out of local headers (flag bit 3) and aligns data by a local extra field, so
that the offset of a record's data is known from its local header alone. Record bytes are neither read nor checked
here, but for four tiny texts.
"""

from __future__ import annotations

import re
import stat
from collections.abc import Iterator, Sequence
from struct import Struct, pack
from typing import Final, NamedTuple

from ..errors import Error, Malformed, Refused, located, show
from ..ranges import ByteRange, Source
from .model import Archive, Record

# structure -> (signature, fields after it)
_LAYOUTS: Final = {
    # needed, flags, method, time, date, crc, csize, usize, name length, extra length
    "local header": (b"PK\3\4", Struct("<5H3I2H")),
    # made by, needed, flags, method, time, date, crc, csize, usize, three lengths, disk, two attributes, header offset
    "directory entry": (b"PK\1\2", Struct("<6H3I5H2I")),
    # disk, directory's disk, entries on this disk, entries, directory's length, directory's offset, comment length
    "end record": (b"PK\5\6", Struct("<4H2IH")),
    # disk of the zip64 end record, its offset, number of disks
    "zip64 locator": (b"PK\6\7", Struct("<IQI")),
    # record's length, made by, needed, disk, directory's disk, entries on this disk, entries, length, offset
    "zip64 end record": (b"PK\6\6", Struct("<Q2H2I4Q")),
}
_END, _LOCATOR, _END64 = (4 + _LAYOUTS[name][1].size for name in ("end record", "zip64 locator", "zip64 end record"))
_LOCAL: Final = 4 + _LAYOUTS["local header"][1].size
_DESCRIPTOR: Final = b"PK\7\x08"
_U16: Final = 0xFFFF  # sentinels: the number is in the zip64 structure
_U32: Final = 0xFFFFFFFF
_ZIP64_FIELD: Final = 0x0001
_UNICODE_PATH_FIELD: Final = 0x7075  # a second name, which some readers prefer

# The largest checkpoints known have some 100,000 tensors of several parts each.
MAX_RECORDS: Final = 1_000_000
# A million entries with names of 200 bytes; it is held in memory at once.
MAX_DIRECTORY_BYTES: Final = 256 * 1024 * 1024
# One page: more would be read in vain where records are large.
_WINDOW: Final = 4096

_ENCRYPTED: Final = 1 << 0
_STREAMED: Final = 1 << 3  # sizes and CRC-32 follow the data, in a descriptor
_UTF8: Final = 1 << 11
_METHODS: Final = {8: "deflate", 9: "deflate64", 12: "bzip2", 14: "LZMA", 93: "zstd", 95: "xz"}

_KEY: Final = re.compile(r"data/([^/]+)")
_CLEAN_NAME: Final = re.compile(r"(?!/|[A-Za-z]:/)(?:(?:^|/)(?!\.{1,2}(?:/|$))[^/\\\0]+)+")
# Kinds of zip that torch itself writes beside torch.save's, known by a record's name; they may have a data.pkl too.
_RELATIVES: Final = (
    (r"[^/]+/(?:(?:constants|bytecode)\.pkl|code/.*)", "a TorchScript archive: save the module's state_dict() instead"),
    (r"[^/]+/\.data/(?:extern_modules|python_version)", "a torch.package archive: save a state dict instead"),
    (
        r"(?:[^/]+/)?(?:archive_format|serialized_exported_program\.json|models/[^/]+\.json|data/aotinductor/.*)",
        "a torch.export archive (.pt2): save the model's state_dict() instead",
    ),
)
_STRANGERS: Final = (
    (r"MAR-INF/.*", "a TorchServe archive (.mar): unpack it and convert the checkpoint inside"),
    (r"model\.weights\.h5", "a Keras model (.keras)"),
    (r"[^/]+\.npy", "a numpy .npz file: its arrays are no torch tensors"),
    (r"\[Content_Types\]\.xml", "an office document"),
    (r"META-INF/.*", "a Java archive"),
    (r"[^/]+\.dist-info/.*", "a Python wheel"),
    (r".*\.(?:pt|pth|bin|ckpt|safetensors|gguf|onnx)", "a zip around model files: unpack it first"),
)
# The records that say how to read the others: what they may hold, and that in words.
_TEXTS: Final = {
    "byteorder": (re.compile(rb"little|big"), "little or big"),
    ".format_version": (re.compile(rb"1\n?"), "1"),
    ".storage_alignment": (re.compile(rb"[1-9][0-9]{0,9}\n?"), "a positive decimal number"),
    # torch 2.13 reads 1 to 10 (`caffe2/serialize/versions.h`); torch.save writes 3
    "version": (re.compile(rb"(?:[1-9]|10)\n?"), "a number from 1 to 10"),
}
_MAX_TEXT: Final = 32
_KNOWN: Final = frozenset({*_TEXTS, "data.pkl", ".data/serialization_id"})


class _Entry(NamedTuple):
    """What the central directory says of a record (a NamedTuple: there may be a million)."""

    name: str
    raw: bytes
    flags: int
    method: int
    crc: int
    stored: int
    length: int
    attributes: int
    header: int


class _Bounds(NamedTuple):
    """Where the central directory lies, and how many entries it has."""

    offset: int
    length: int
    entries: int


def read_zip(source: Source) -> Archive:
    """Read the directory and every local header of a torch zip; costs two small reads a record."""
    with located(file=source.name):
        bounds = _find_directory(source)
        entries = list(_read_directory(source.read(bounds.offset, bounds.length), bounds))
        prefix = _find_prefix([entry.name for entry in entries])
        _check_names(entries, prefix)
        for entry in entries:
            _check_form(entry)
        entries.sort(key=lambda entry: entry.header)
        starts = _place(source, entries, bounds.offset)
        return _archive(source, entries, starts, prefix)


def _parse(what: str, data: bytes, at: int, offset: int) -> tuple[int, ...]:
    """Unpack the structure at `at` of `data`, which lies at `offset` of the file."""
    signature, layout = _LAYOUTS[what]
    if data[at : at + 4] != signature:
        raise Malformed(f"there is no zip {what} where one has to be", offset=offset)
    if at + 4 + layout.size > len(data):
        raise Malformed(f"a zip {what} is cut off", offset=offset)
    return layout.unpack_from(data, at + 4)


def _bad(kind: type[Error], entry: _Entry, message: str) -> Error:
    return kind(f"record {show(entry.name)} {message}", offset=entry.header)


# --- the end records ------------------------------------------------------------------------------------------------


def _find_directory(source: Source) -> _Bounds:
    end = source.length - _END
    tail_start = max(0, end - _LOCATOR - _END64)
    tail = source.read(tail_start, source.length - tail_start)
    if end < 0 or tail[end - tail_start :][:4] != _LAYOUTS["end record"][0]:
        raise _no_end(source)
    disk, directory_disk, here, count, length, offset, comment = _parse("end record", tail, end - tail_start, end)
    if comment:
        raise Malformed(f"the zip end record announces a comment of {comment} bytes, the file ends without", offset=end)
    if disk or directory_disk or here != count:
        raise Malformed("the zip end record speaks of several disks", offset=end)
    bounds, stop = _Bounds(offset, length, count), end
    if tail[end - _LOCATOR - tail_start :][:4] == _LAYOUTS["zip64 locator"][0] and end >= _LOCATOR + _END64:
        bounds, stop = _zip64_bounds(tail, tail_start, end - _LOCATOR, bounds)
    if bounds.entries > MAX_RECORDS:
        raise Refused(f"has {bounds.entries} records, over the limit of {MAX_RECORDS}")
    if bounds.length > MAX_DIRECTORY_BYTES:
        raise Refused(f"has a zip directory of {bounds.length} bytes, over the limit of {MAX_DIRECTORY_BYTES}")
    if bounds.offset + bounds.length != stop:
        raise Malformed(
            f"the zip directory is said to end at {bounds.offset + bounds.length}, expected {stop}", offset=end
        )
    return bounds


def _zip64_bounds(tail: bytes, tail_start: int, at: int, plain: _Bounds) -> tuple[_Bounds, int]:
    disk, offset, disks = _parse("zip64 locator", tail, at - tail_start, at)
    if offset != at - _END64 or disk or disks != 1:
        where = f"{offset} on disk {disk} of {disks}"
        raise Malformed(f"the zip64 locator points to {where}, expected {at - _END64} on 0 of 1", offset=at)
    fields = _parse("zip64 end record", tail, offset - tail_start, offset)
    length, _, _, disk, directory_disk, here, *numbers = fields
    if length != _END64 - 12 or disk or directory_disk or here != numbers[0]:
        raise Malformed("the zip64 end record has an extension or speaks of several disks", offset=offset)
    bounds = _Bounds(offset=numbers[2], length=numbers[1], entries=numbers[0])
    for found, true, sentinel in zip(plain, bounds, (_U32, _U32, _U16), strict=True):
        if found not in (true, sentinel):
            raise Malformed(f"the zip end record says {found} where the zip64 end record says {true}", offset=offset)
    return bounds, offset


def _no_end(source: Source) -> Error:
    length = min(source.length, _END + _U16)
    tail = source.read(source.length - length, length)
    at = tail.rfind(_LAYOUTS["end record"][0])
    if at < 0 or at + _END > length:
        return Malformed("is a zip that ends before its central directory: truncated?", offset=source.length)
    offset = source.length - length + at + _END
    return Refused(f"has {length - at - _END} bytes after its zip end record, torch.save writes none", offset=offset)


# --- the central directory ------------------------------------------------------------------------------------------


def _read_directory(data: bytes, bounds: _Bounds) -> Iterator[_Entry]:
    at = 0
    fixed = 4 + _LAYOUTS["directory entry"][1].size
    for _ in range(bounds.entries):
        offset = bounds.offset + at
        fields = _parse("directory entry", data, at, offset)
        _, _, flags, method, _, _, crc, stored, length, named, extra, comment, disk, _, attributes, header = fields
        raw = data[at + fixed : at + fixed + named]
        at += fixed + named + extra + comment
        if at > len(data):
            raise Malformed("a zip directory entry reaches past the directory", offset=offset)
        if comment or disk:
            raise Malformed("a zip directory entry has a comment or another disk, torch writes neither", offset=offset)
        name = _decode(raw, flags, offset)
        if extra or _U32 in (stored, length, header):
            field = _extra_fields(data[at - extra : at], name, offset).get(_ZIP64_FIELD)
            length, stored, header = _zip64_numbers(field, (length, stored, header), name, offset)
        yield _Entry(name, raw, flags, method, crc, stored, length, attributes, header)
    if at != len(data):
        raise Malformed(
            f"the zip directory has {len(data) - at} bytes after its {bounds.entries} entries",
            offset=bounds.offset + at,
        )


def _decode(raw: bytes, flags: int, offset: int) -> str:
    try:
        return raw.decode("utf-8" if flags & _UTF8 else "ascii")
    except UnicodeDecodeError as error:
        expected = "UTF-8" if flags & _UTF8 else "ASCII, as its flags say"
        raise Refused(f"the record name {show(repr(raw))} is not {expected}", offset=offset) from error


def _zip64_numbers(field: bytes | None, numbers: Sequence[int], name: str, offset: int) -> list[int]:
    """Replace the sentinels among `numbers` (in the format's order) by the numbers of the zip64 field, all of them."""
    missing = sum(number == _U32 for number in numbers)
    if len(field or b"") != 8 * missing:
        found = "no zip64 field" if field is None else f"a zip64 field of {len(field)} bytes"
        raise Malformed(f"record {show(name)} has {found}, expected {8 * missing} bytes", offset=offset)
    wide = iter(Struct(f"<{missing}Q").unpack(field or b""))
    return [next(wide) if number == _U32 else number for number in numbers]


def _extra_fields(extra: bytes, name: str, offset: int) -> dict[int, bytes]:
    fields: dict[int, bytes] = {}
    at = 0
    while at < len(extra):
        tag, length = int.from_bytes(extra[at : at + 2], "little"), int.from_bytes(extra[at + 2 : at + 4], "little")
        if at + 4 + length > len(extra) or tag in fields or tag == _UNICODE_PATH_FIELD:
            what = f"an extra field {tag:#06x} that is cut off, repeated or a second name"
            raise Malformed(f"record {show(name)} has {what}", offset=offset)
        fields[tag] = extra[at + 4 : at + 4 + length]
        at += 4 + length
    return fields


# --- names and forms ------------------------------------------------------------------------------------------------


def _find_prefix(names: Sequence[str]) -> str:
    """Return the one folder that holds data.pkl, or refuse the zip by what it is instead."""
    _recognise(names, _RELATIVES)
    tops = sorted({name[:-9] for name in names if name.endswith("/data.pkl") and name.find("/") == len(name) - 9 > 0})
    if len(tops) == 1:
        return f"{tops[0]}/"
    if tops:
        raise Refused(f"has a data.pkl in {len(tops)} folders, {show(tops[0])} and {show(tops[1])}, expected one")
    _recognise(names, _STRANGERS)
    some = ", ".join(show(name, 60) for name in names[:3]) + (", ..." if names[3:] else "")
    raise Refused(f"is a zip without FOLDER/data.pkl, so not a torch.save file: it has {some or 'no records'}")


def _recognise(names: Sequence[str], kinds: Sequence[tuple[str, str]]) -> None:
    pattern = re.compile("|".join(f"({form})" for form, _ in kinds), re.DOTALL)
    found: dict[int, str] = {}
    for name in names:
        match = pattern.fullmatch(name)
        if match and match.lastindex:
            found.setdefault(match.lastindex - 1, name)
    if found:
        kind, name = min(found.items())
        raise Refused(f"is {kinds[kind][1]} (it has {show(name)})")


def _check_names(entries: Sequence[_Entry], prefix: str) -> None:
    seen: dict[str, str] = {}
    for entry in entries:
        name = entry.name
        if not _CLEAN_NAME.fullmatch(name):
            raise Refused(f"the record name {show(repr(name))} is not the plain path of a file", offset=entry.header)
        if not name.startswith(prefix):
            raise _bad(Refused, entry, f"lies outside {show(prefix)}, the folder of data.pkl")
        twin = seen.setdefault(name.casefold(), name)
        if twin is not name:
            what = "is there twice" if twin == name else f"differs from {show(twin)} in case only"
            raise _bad(Refused, entry, what)
        if name.lower().endswith((".pkl", ".pickle")) and name != f"{prefix}data.pkl":
            raise _bad(Refused, entry, "is a second pickle, torch.save writes data.pkl alone")


def _check_form(entry: _Entry) -> None:
    """Refuse an entry that is not a plain stored file."""
    if entry.flags & _ENCRYPTED:
        raise _bad(Refused, entry, "is encrypted: decrypt it first")
    if entry.method:
        method = _METHODS.get(entry.method, f"method {entry.method}")
        what = f"is compressed ({method}), torch.save never compresses: re-save it, or repack it with zip -0 -D"
        raise _bad(Refused, entry, what)
    if entry.flags & ~(_STREAMED | _UTF8):
        raise _bad(Refused, entry, f"has the zip flags {entry.flags:#06x}, expected bits 3 and 11 at most")
    if entry.stored != entry.length:
        raise _bad(Malformed, entry, f"is stored in {entry.stored} bytes and has {entry.length}")
    kind = stat.S_IFMT(entry.attributes >> 16)
    if kind not in (0, stat.S_IFREG) or entry.attributes & 0x10:
        what = "a symbolic link" if kind == stat.S_IFLNK else "a folder or a special file"
        raise _bad(Refused, entry, f"is {what}, expected a plain file")


# --- local headers --------------------------------------------------------------------------------------------------


class _Window:
    """Serves small reads that lie close together, a descriptor and the header after it, from one read of the source."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._offset = 0
        self._data = b""

    def read(self, offset: int, length: int) -> bytes:
        at = offset - self._offset
        if at < 0 or at + length > len(self._data):
            self._offset, at = offset, 0
            self._data = self._source.read(offset, min(max(length, _WINDOW), self._source.length - offset))
        return self._data[at : at + length]


def _place(source: Source, entries: Sequence[_Entry], stop: int) -> list[int]:
    """Return where each record's data begins; the records, in the order of the file, have to fill it up to `stop`."""
    window = _Window(source)
    starts = []
    position = 0
    for entry in entries:
        if entry.header < position:
            raise _bad(Malformed, entry, f"overlaps the record before it, which ends at {position}")
        if entry.header > position:
            raise _bad(Refused, entry, f"comes after {entry.header - position} bytes that belong to no record")
        start, wide = _read_local(window, entry, stop)
        starts.append(start)
        position = start + entry.length
        if position > stop:
            raise _bad(Malformed, entry, f"ends at {position}, past the start of the zip directory at {stop}")
        if entry.flags & _STREAMED:
            position += _read_descriptor(window, entry, position, stop, wide=wide)
    if position != stop:
        raise Refused(f"has {stop - position} bytes before its zip directory that belong to no record", offset=position)
    return starts


def _read_local(window: _Window, entry: _Entry, stop: int) -> tuple[int, bool]:
    """Compare a local header with its directory entry; return where the data begins and whether there is a zip64
    field."""
    length = _LOCAL + len(entry.raw)
    if entry.header + length > stop:
        raise _bad(Malformed, entry, f"has its local header past the start of the zip directory at {stop}")
    data = window.read(entry.header, length)
    _, flags, method, _, _, crc, stored, unpacked, named, extra = _parse("local header", data, 0, entry.header)
    if named != len(entry.raw) or data[_LOCAL:] != entry.raw:
        other = window.read(entry.header + _LOCAL, min(named, stop - entry.header - _LOCAL))
        raise _bad(Malformed, entry, f"has another name in its local header, {show(repr(other))}")
    if (flags, method) != (entry.flags, entry.method):
        what = f"has flags {flags:#06x} and method {method} in its local header"
        raise _bad(Malformed, entry, f"{what}, {entry.flags:#06x} and 0 in the directory")
    start = entry.header + length + extra
    if start > stop:
        raise _bad(Malformed, entry, f"begins at {start}, past the start of the zip directory at {stop}")
    fields = _extra_fields(window.read(start - extra, extra), entry.name, entry.header) if extra else {}
    if _U32 in (stored, unpacked):
        unpacked, stored = _zip64_numbers(fields.get(_ZIP64_FIELD), (unpacked, stored), entry.name, entry.header)
    numbers = (("CRC-32", crc, entry.crc), ("size", stored, entry.length), ("size", unpacked, entry.length))
    for what, found, true in numbers:
        if found != true and (found or not flags & _STREAMED):
            raise _bad(Malformed, entry, f"has {what} {found} in its local header, {true} in the directory")
    return start, _ZIP64_FIELD in fields


def _read_descriptor(window: _Window, entry: _Entry, offset: int, stop: int, *, wide: bool) -> int:
    """Compare the descriptor behind a record's data with the directory; return its length.

    Its sizes have 8 bytes if the local header has a zip64 field (APPNOTE 4.3.9.2, and so do miniz and zipfile).
    """
    if entry.length > _U32 and not wide:
        raise _bad(Malformed, entry, f"has {entry.length} bytes and no zip64 field in its local header")
    plain = pack("<I2Q" if wide else "<3I", entry.crc, entry.length, entry.length)
    data = window.read(offset, min(len(_DESCRIPTOR) + len(plain), stop - offset))
    for form in (_DESCRIPTOR + plain, plain):
        if data.startswith(form):
            return len(form)
    raise Malformed(f"record {show(entry.name)} has a data descriptor that disagrees with the directory", offset=offset)


# --- what torch puts into it ----------------------------------------------------------------------------------------


def _archive(source: Source, entries: Sequence[_Entry], starts: Sequence[int], prefix: str) -> Archive:
    checked = any(entry.crc for entry in entries)
    records = tuple(
        Record(entry.name[len(prefix) :], ByteRange(start, entry.length), entry.crc if checked else None)
        for entry, start in zip(entries, starts, strict=True)
    )
    by_name = {record.name: record for record in records}
    texts = {name: _read_text(source, by_name[name]) for name in _TEXTS if name in by_name}
    storages = {match[1]: record for record in records if (match := _KEY.fullmatch(record.name))}
    return Archive(
        kind="torch-zip",
        pickle=by_name["data.pkl"],
        storages=storages,
        records=records,
        big_endian=texts.get("byteorder") == b"big",
        notes=tuple(_notes(records, len(storages), checked)),
    )


def _read_text(source: Source, record: Record) -> bytes:
    pattern, expected = _TEXTS[record.name]
    text = source.read(record.range.offset, min(record.range.length, _MAX_TEXT))
    if record.range.length > _MAX_TEXT or not pattern.fullmatch(text):
        found = f"{text!r} ({record.range.length} bytes)"
        raise Malformed(f"record {record.name} holds {found}, expected {expected}", offset=record.range.offset)
    return text


def _notes(records: Sequence[Record], storages: int, checked: bool) -> Iterator[str]:
    names = {record.name for record in records}
    if "byteorder" not in names:
        yield "no byteorder record, read as little endian"
    if not checked:
        yield "CRC-32 switched off in the source"
    elif blank := sum(record.crc32 == 0 and record.range.length > 0 for record in records):
        yield f"CRC-32 is 0 for {blank} of {len(records)} records: saved without their data (skip_data)?"
    if len(names) > storages + len(names & _KNOWN):
        others = sorted(name for name in names - _KNOWN if not _KEY.fullmatch(name))
        yield f"records that torch.save does not write: {len(others)}, the first is {show(others[0])}"
