"""What people see: progress while something takes long, and records, plans and inspections as text.

rich is imported here and nowhere else, and only once there is something to show on a terminal.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from threading import Lock
from typing import TYPE_CHECKING, Any, Final

from .errors import show

if TYPE_CHECKING:  # only the values that a verb has made are shown; their modules are loaded by then
    from .inspection import Inspection
    from .layout import Layout
    from .mirror import Entry
    from .report import Record
    from .scanning import Scan

_PATIENCE: Final = 1.0  # seconds before progress appears
_SHOWN: Final = 200  # globals of a kind in a scan that a person reads
_EVERY: Final = 0.1  # seconds between two updates


class Progress:
    """Progress on stderr, a line a file: bytes done of bytes to do, rate, time left.

    Nothing where stderr is no terminal, with `quiet`, or for work that is done within a second.
    """

    def __init__(self, *, quiet: bool) -> None:
        self._silent = quiet or not sys.stderr.isatty()
        self._started = time.monotonic()
        self._lock = Lock()
        self._bar: Any = None

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *exc: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def file(self, label: str) -> Callable[[int, int], None]:
        """What takes the reports of one file's conversion, from any thread."""
        shown, task = self._started, None

        def report(done: int, total: int) -> None:
            nonlocal shown, task
            now = time.monotonic()
            if self._silent or now - self._started < _PATIENCE or (now - shown < _EVERY and done < total):
                return
            with self._lock:
                shown = now
                if self._bar is None:
                    self._bar = _bar()
                    self._bar.start()
                if task is None:
                    task = self._bar.add_task(show(label, 40), total=total)
                self._bar.update(task, completed=done, visible=done < total)

        return report


def _bar() -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn, TransferSpeedColumn
    from rich.progress import Progress as Bar

    return Bar(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )


def size_text(nbytes: int) -> str:
    """A size for people: `4.1 GB`."""
    value = float(nbytes)
    for unit in ("bytes", "kB", "MB", "GB"):
        if value < 1000 or unit == "GB":
            return f"{value:.0f} {unit}" if unit == "bytes" else f"{value:.1f} {unit}"
        value /= 1000
    raise AssertionError


def record_text(record: Record) -> str:
    """One conversion, for a person."""
    done = "already there" if record.skipped else "converted"
    exact = "bit for bit" if record.verified_bit_identical else "as it was rounded again"
    lines = [
        f"{show(record.src)} -> {show(record.dst)}",
        f"  {done} and verified {exact} in {record.seconds} s (read back by {record.reader})",
        f"  {record.kind}, {record.tensors} tensors, {record.quantized} quantised"
        + (f", scheme {show(record.scheme)}" if record.scheme else "")
        + (f", int8 of {record.int8_source}" if record.int8_source else ""),
        f"  source  sha256 {record.src_sha256} ({size_text(record.src_bytes)})"
        + ("" if record.src_sha256_checked else " NOT CHECKED"),
        f"  result  sha256 {record.dst_sha256} ({size_text(record.dst_bytes)})",
    ]
    lines.append(f"  serves  {', '.join(record.serves) or 'no reader but depickle'}")
    if record.rules:
        lines.append("  rules   " + ", ".join(f"{name} ({count} tensors)" for name, count in record.rules.items()))
    lines += [f"  dropped {show(alias)} (is {show(origin)})" for alias, origin in record.tied_copies_dropped.items()]
    return "\n".join(lines)


def folder_text(planned: dict[str, Any]) -> str:
    """A folder's plan or record, for a person."""
    lines = [f"{show(planned['src'])} -> {show(planned['dst'])}"]
    for source, made in planned["weights"].items():
        lines.append(f"  weights {show(source)} -> {', '.join(map(show, made))}")
    for name, change in planned["configs"].items():
        after = json.dumps(change["after"]["quant_type"])
        lines.append(f"  config  {show(name)}: quant_type is {show(after, 400)}")
    lines += [f"  carried {show(name)}" for name in planned["carried"]]
    lines += [f"  left    {show(name)}" for name in planned["left_out"]]
    return "\n".join(lines)


def plan_text(sources: Sequence[str], dst: str, layout: Layout, starts: Sequence[int] = (0,)) -> str:
    """A plan, one line a segment; a number before an offset says which of several sources it is in."""
    lines = [f"{', '.join(map(show, sources))} -> {show(dst)}"]
    for file in layout.as_json(starts):
        if len(layout.files) > 1:
            lines.append(f"  {show(str(file['file']))}")
        lines.append(
            f"  {file['length']} bytes, data from byte {file['head']}, rules {file['rules'] or 'none: every byte is copied'}"
        )
        for segment in file["segments"]:  # type: ignore[attr-defined]
            if "literal" in segment:
                origin = f"{'literal':>14}  {segment['literal'][:8] + '...' * (len(segment['literal']) > 8):<12}"
            else:
                number, offset, length = segment["from"]
                place = f"{offset:>14}" if len(sources) == 1 else f"{number}:{offset:<12}"
                origin = f"{place} +{length:<12}"
            rules = f" [{', '.join(segment['rules'])}]" if "rules" in segment else ""
            lines.append(f"  {segment['at']:>14} +{segment['length']:<12} <- {origin} {show(segment['tensor'])}{rules}")
    return "\n".join(lines)


def inspection_text(found: Inspection) -> str:
    """What is in a file, for a person."""
    lines = [
        f"{show(found.file)}: {found.container}, {size_text(found.bytes)}",
        f"  kind      {found.kind}" + (f" ({found.format})" if found.format else ""),
        f"  tensors   {found.tensors}, {found.quantized} quantised"
        + (f", {len(found.root_names)} at the root" if found.root_names else "")
        + (f", {len(found.ties)} tied" if found.ties else ""),
    ]
    lines += [f"  metadata  {show(key)} = {show(str(value), 100)}" for key, value in found.metadata.items()]
    for group in found.groups:
        scheme = f" [{group.scheme}]" if group.scheme else ""
        lines.append(
            f"  weights   {group.count:>6} x {group.classes}{scheme}: {group.dtypes}, {size_text(group.nbytes)}, e.g. {show(group.example)}"
        )
    if found.int8_source:
        lines.append(f"  int8      from {found.int8_source}")
    lines += [
        f"  global    {show(name)}" + (f" ({count} times)" if count > 1 else "")
        for name, count in found.globals.items()
    ]
    lines += [f"  no form   {show(name)} would be refused (see docs/classes.md)" for name in found.without_form[:20]]
    lines += [f"  JSON      {show(text)}" for text in found.normalised]
    lines += [f"  note      {show(text, 400)}" for text in found.warnings]
    if found.provenance:
        lines.append(f"  from      {show(str(found.provenance), 400)}")
    return "\n".join(lines)


def scan_text(found: Scan) -> str:
    """A scan, worst first, for a person."""
    lines = [f"{show(found.file)}: {found.verdict} ({found.pickles} pickles, {len(found.mentions)} globals)"]
    for verdict in ("dangerous", "unknown", "clean"):
        mentions = [mention for mention in found.mentions if mention.verdict == verdict]
        for mention in mentions[:_SHOWN]:
            called = f", called at {', '.join(map(str, mention.calls[:5]))}" if mention.calls else ""
            lines.append(f"  {verdict:<9} {show(mention.name)} at {show(mention.record)}@{mention.offset}{called}")
        if len(mentions) > _SHOWN:
            lines.append(f"  {verdict:<9} and {len(mentions) - _SHOWN} more (all of them with --json)")
    return "\n".join([*lines, *(f"  problem   {show(text, 400)}" for text in found.problems)])


def entry_text(entry: Entry) -> str:
    """A file of a mirror, and what a studio opens for it, for a person."""
    answer = entry.answer()
    opens = "nothing" if answer.path is None else "converted" if answer.path == entry.converted else "pickle"
    lines = [f"{show(entry.repo)} {show(entry.file)} in {show(entry.root)}: opens {opens}"]
    return "\n".join([*lines, *(f"  problem   {show(note, 400)}" for note in answer.notes)])
