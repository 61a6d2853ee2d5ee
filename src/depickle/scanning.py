"""What a pickle would do if somebody executed it: every global and call in a file, with its place and a verdict.

Takes any pickle, several in a row, a torch.save file or a zip with pickles in it. Nothing is executed; a stream that
breaks off is judged by what it mentioned until then, since a real unpickler would have run that much. Verdicts:
`clean` (every global is one that depickle reads), `dangerous` (one is known to do harm), `unknown` (neither, or the
file could not be read to its end).
"""

from __future__ import annotations

import os
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Final
from urllib.parse import quote

from .archive import open_archive
from .attributes import GETATTR, is_enum_access
from .checkpoint import ACCEPTED
from .collector import paused
from .errors import Error, Malformed, Refused, show
from .harmful import is_harmful
from .inert import Call, Global
from .limits import LIMITS
from .ranges import FileSource
from .schemas import Json
from .vm import Heard, run

_MAX_STREAMS: Final = 1_000  # pickles in a row
_MAX_SCANNED: Final = 16 * 1024 * 1024  # how much of one pickle is looked at; one without tensors in it is short
_MAX_UNPACKED: Final = 256 * 1024 * 1024  # bytes of all members of a zip that depickle does not accept
_PEEK: Final = 4096  # bytes in which a pickle that does not look like one has to show itself
_ZIP: Final = b"PK"
VERDICTS: Final = ("clean", "unknown", "dangerous")


@dataclass(frozen=True, slots=True)
class Mention:
    """One global in one pickle: the record and byte offset where it is named, and the offsets at which it is called."""

    name: str
    verdict: str
    record: str
    offset: int
    calls: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Scan:
    """The answer to `depickle scan` for one file."""

    file: str
    verdict: str
    pickles: int
    mentions: tuple[Mention, ...]
    problems: tuple[str, ...]

    def as_json(self) -> dict[str, Json]:
        """The scan as a JSON object; schema: docs/schemas/scan.v1.json."""
        return {
            "scan": 1,
            "file": self.file,
            "verdict": self.verdict,
            "pickles": self.pickles,
            "globals": [
                {"name": m.name, "verdict": m.verdict, "record": m.record, "offset": m.offset, "calls": list(m.calls)}
                for m in self.mentions
            ],
            "problems": list(self.problems),
        }


def scan(path: str | os.PathLike[str]) -> Scan:
    """Judge one file. Raises OSError if it cannot be read, Malformed if it is empty or no regular file."""
    with paused(), FileSource(path) as source:
        if source.length == 0:
            raise Malformed("is empty", file=source.name)
        problems: list[str] = []
        mentions: list[Mention] = []
        count = 0
        for record, data in _pickles(source, problems):
            found, streams = _judge(record, data, problems)
            mentions += found
            count += streams
        if not count and not problems:
            problems.append("holds no pickle")
        worst = max((VERDICTS.index(m.verdict) for m in mentions), default=0)
        verdict = VERDICTS[max(worst, 1 if problems else 0)]
        return Scan(os.fspath(path), verdict, count, tuple(mentions), tuple(problems))


def _pickles(source: FileSource, problems: list[str]) -> Iterator[tuple[str, bytes]]:
    """The pickles of a file, each with the record that it lies in: of an archive every record that looks like one,
    else the file."""
    if source.read(0, min(2, source.length)) != _ZIP:
        yield from _bare(source, problems)
        return
    try:
        archive = open_archive(source)
    except Error as error:
        problems.append(f"the archive: {error.message}")
        yield from _any_zip(source, problems)
        return
    for record in archive.records:
        head = source.read(record.range.offset, min(_PEEK, record.range.length))
        if record == archive.pickle or _looks_pickled(record.name, head) or _hides(head):
            yield from _sized(
                record.name, record.range.length, problems, lambda n, r=record: source.read(r.range.offset, n)
            )


def _bare(source: FileSource, problems: list[str]) -> Iterator[tuple[str, bytes]]:
    """A file that is no archive: pickles from its first byte on. A pre-1.6 stream has tensor data behind them."""
    length = min(source.length, _MAX_SCANNED)
    try:
        length = open_archive(source).pickle.range.end
    except Error as error:
        if not _looks_pickled("", source.read(0, min(2, source.length))) and not _readable(source.read(0, length)):
            problems.append(error.message)
        if length < source.length:
            problems.append(f"only the first {length} of {source.length} bytes were looked at")
    yield "file", source.read(0, length)


def _any_zip(source: FileSource, problems: list[str]) -> Iterator[tuple[str, bytes]]:
    """A zip that depickle does not accept: what Python's own zip reader finds in it, which is what a scanner would
    see."""
    try:
        with zipfile.ZipFile(source.path) as archive:
            left = _MAX_UNPACKED
            for info in archive.infolist():
                if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                    problems.append(f"{show(info.filename)}: compressed by method {info.compress_type}, not looked at")
                    continue
                try:
                    with archive.open(info) as member:
                        head = member.read(_PEEK)
                        if _looks_pickled(info.filename, head) or _hides(head):
                            left -= min(info.file_size, _MAX_SCANNED)
                            if left < 0:
                                problems.append(f"the archive: has pickles of more than {_MAX_UNPACKED} bytes")
                                return
                            yield from _sized(
                                info.filename,
                                info.file_size,
                                problems,
                                lambda n, m=member, h=head: _take(m, h, n),
                            )
                except (
                    zipfile.BadZipFile,
                    NotImplementedError,
                    RuntimeError,
                    OSError,
                    EOFError,
                    ValueError,
                    zlib.error,
                ) as error:
                    problems.append(f"{show(info.filename)}: {error}")
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, ValueError) as error:
        problems.append(f"the archive: {error}")


def _readable(data: bytes) -> bool:
    """Whether a pickle of a protocol that does not announce itself is there, and whole."""
    try:
        run(data)
    except Error:
        return False
    return True


def _hides(data: bytes) -> bool:
    """Whether data that does not look like a pickle names something harmful when it is run as one."""
    heard = Heard()
    try:
        run(data, 0, LIMITS, heard)
    except Error:
        pass
    spelled = [used for used in heard.globals if " " not in used.name]  # noise makes an extension's number, no name
    return any(is_harmful(used.module, used.name) for used in spelled)


def _take(member: IO[bytes], head: bytes, length: int) -> bytes:
    """Read on to `length` bytes, a mebibyte at a time: zipfile holds what it unpacks several times over."""
    pieces = [head]
    left = length - len(head)
    while left > 0 and (piece := member.read(min(left, 1 << 20))):
        pieces.append(piece)
        left -= len(piece)
    return b"".join(pieces)


def _sized(record: str, length: int, problems: list[str], read: object) -> Iterator[tuple[str, bytes]]:
    if length > _MAX_SCANNED:
        problems.append(f"{show(record)}: {length} bytes are over the limit of {_MAX_SCANNED}")
    yield record, read(min(length, _MAX_SCANNED))  # type: ignore[operator]


def _looks_pickled(name: str, head: bytes) -> bool:
    return name.endswith((".pkl", ".pickle", ".pck", ".joblib")) or (head[:1] == b"\x80" and head[1:2] <= b"\x05")


def _judge(record: str, data: bytes, problems: list[str]) -> tuple[list[Mention], int]:
    """All mentions in the pickles that stand in `data` one after the other, and how many pickles there are."""
    mentions: list[Mention] = []
    at, streams = 0, 0
    while at < len(data) and streams < _MAX_STREAMS:
        heard = Heard()
        try:
            end = run(data, at, LIMITS, heard).end
        except (Malformed, Refused) as error:
            if heard.globals or streams == 0:
                problems.append(f"{show(record)}@{error.offset}: {error.message}")
            elif not streams or any(data[at:]):
                problems.append(f"{show(record)}: {len(data) - at} bytes follow the last pickle")
            end = len(data)
        mentions += _mentions(record, heard)
        streams += 1
        at = end
    if at < len(data):
        problems.append(f"{show(record)}: only the first {streams} pickles were looked at")
    return mentions, streams


def _mentions(record: str, heard: Heard) -> Iterator[Mention]:
    calls: dict[int, list[Call]] = {}
    for call in heard.calls:
        calls.setdefault(id(call.func), []).append(call)
    verdicts: dict[str, str] = {}
    for used in heard.globals:
        made = calls.get(id(used), [])
        if used.full in GETATTR:
            verdict = "clean" if made and all(map(is_enum_access, made)) else "dangerous"
        else:
            verdict = verdicts.get(used.full) or verdicts.setdefault(used.full, _verdict(used))
        yield Mention(used.full, verdict, record, used.offset, tuple(call.offset for call in made))


def _verdict(used: Global) -> str:
    if used.full in ACCEPTED:
        return "clean"
    return "dangerous" if is_harmful(used.module, used.name) else "unknown"


def as_sarif(scans: list[Scan], version: str) -> dict[str, Json]:
    """The findings of several files as one SARIF 2.1.0 log, for code-scanning tools: what is clean is left out."""
    levels = {"unknown": "warning", "dangerous": "error"}
    results: list[Json] = []
    for one in scans:
        for mention in one.mentions:
            if mention.verdict != "clean":
                called = f", called {len(mention.calls)} times" if mention.calls else ""
                text = f"{mention.record}@{mention.offset}: names {show(mention.name)}{called}"
                offset = mention.offset if mention.record == "file" else None
                results.append(_result(one.file, mention.verdict, levels[mention.verdict], text, offset))
        results += [_result(one.file, "unreadable", "warning", show(text), None) for text in one.problems]
    rules: list[Json] = [{"id": name} for name in ("unknown", "dangerous", "unreadable")]
    driver = {"name": "depickle", "version": version, "rules": rules}
    return {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{"tool": {"driver": driver}, "results": results}],
    }


def _result(file: str, rule: str, level: str, text: str, offset: int | None) -> dict[str, Json]:
    """One finding. An offset in a member of an archive is none in the file, and stands in the text alone."""
    place: dict[str, Json] = {"artifactLocation": {"uri": quote(os.fsencode(file.replace(os.sep, "/")))}}
    if offset is not None:
        place["region"] = {"byteOffset": offset}
    return {"ruleId": rule, "level": level, "message": {"text": text}, "locations": [{"physicalLocation": place}]}
