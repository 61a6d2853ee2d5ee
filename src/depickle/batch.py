"""The sources of one `convert`, one after the other: what is done with each, and what is shown of it."""

from __future__ import annotations

import errno
import json
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from threading import Lock
from typing import TYPE_CHECKING

from .console import say, tell
from .errors import show

if TYPE_CHECKING:  # a verb loads what it needs
    from .digest import Stop
    from .layout import Layout
    from .options import Options
    from .report import Record
    from .schemas import Json
    from .terminal import Progress


class Report:
    """The file of --report: opened before anything is read; each line is written by one call, so that runs may share
    it."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)

    def append(self, line: str) -> None:
        """Write one line, or raise OSError with the report's name."""
        data = f"{line}\n".encode()
        try:
            if os.write(self._fd, data) != len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            raise OSError(error.errno, error.strerror, self._path) from error

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)


class Batch:
    """What `convert` was told, for all of its sources. `digests` collects what a manifest lists."""

    def __init__(
        self,
        out_dir: str,
        options: Options,
        report: Report | None,
        progress: Progress,
        *,
        as_json: bool = False,
        pretty: bool = False,
        quiet: bool = False,
    ) -> None:
        self.digests: dict[str, str] = {}
        self._out_dir, self._options, self._report, self._progress = out_dir, options, report, progress
        self._json, self._pretty, self._quiet = as_json, pretty, quiet
        self._lock = Lock()

    # --- converting -------------------------------------------------------------------------------------------------

    def convert(self, src: str, stop: Stop) -> None:
        """Convert a file or a folder, and show the records."""
        label = os.path.basename(os.path.normpath(src))
        if os.path.isdir(src):
            self._convert_folder(src, stop)
        elif self._options.max_shard_size is not None:
            from .several import convert_sharded

            progress = self._progress.file(label)
            convert_sharded(src, self._out_dir, self._options, done=self._record, progress=progress, stop=stop)
        else:
            from .conversion import convert_with

            progress = self._progress.file(label)
            self._record(convert_with(src, self._out_dir, self._options, progress=progress, stop=stop))

    def _convert_folder(self, src: str, stop: Stop) -> None:
        from .repository import convert_folder_with
        from .terminal import folder_text

        record = convert_folder_with(
            src, self._out_dir, self._options, done=self._record, progress=self._progress.file, stop=stop
        )
        for name, digest in {**record.carried, **record.written}.items():
            self.digests[os.path.relpath(os.path.join(record.dst, name), self._out_dir)] = digest
        self._show(record.as_json(), folder_text(record.as_json()))
        self._notes(src, record.warnings)

    def _record(self, record: Record) -> None:
        from .terminal import record_text

        self.digests[os.path.relpath(record.dst, self._out_dir)] = record.dst_sha256
        self._show(record.as_json(), record_text(record))
        self._notes(record.src, record.warnings)

    def _show(self, record: Mapping[str, Json], text: str) -> None:
        line = json.dumps(record)
        with self._lock:  # one line at a time, whatever the number of jobs
            try:
                if self._report is not None:
                    self._report.append(line)
            finally:
                say(text if self._pretty or sys.stdout.isatty() else line)

    def _notes(self, src: str, warnings: Sequence[str]) -> None:
        for warning in () if self._quiet else warnings:
            tell(f"depickle: {show(src)}: note: {warning}")

    # --- planning ---------------------------------------------------------------------------------------------------

    def plan(self, src: str, stop: Stop) -> None:  # noqa: ARG002 - as convert has it
        """Show what converting a file or a folder would do."""
        from .opening import open_checkpoint
        from .planning import plan

        if os.path.isdir(src):
            self._plan_folder(src)
            return
        key, keep = self._options.key, self._options.keep_unsupported
        with open_checkpoint(src, key=key, keep_unsupported=keep) as checkpoint:
            dst, layout = plan(checkpoint, self._out_dir, self._options)
            self._plan([src], dst, layout, (0,))

    def _plan_folder(self, src: str) -> None:
        from .repository import plan_folder
        from .shards import starts_of
        from .terminal import folder_text

        with ExitStack() as stack:
            planned = plan_folder(src, self._out_dir, self._options, stack)
            for one in planned.weights:
                sources = [os.path.join(src, one.group.folder, name) for name in one.group.files]
                dst = os.path.join(planned.out, one.group.target)
                self._plan(sources, dst, one.layout, starts_of(one.checkpoint.source))
        say(json.dumps(planned.as_json()) if self._json else folder_text(planned.as_json()))
        self._notes(src, planned.warnings)

    def _plan(self, sources: list[str], dst: str, layout: Layout, starts: Sequence[int]) -> None:
        from .terminal import plan_text

        if not self._json:
            say(plan_text(sources, dst, layout, starts))
            return
        plan: dict[str, Json] = {"plan": 1, "sources": sources, "dst": dst, "files": layout.as_json(starts)}
        if layout.index is not None:
            plan["index"] = layout.index.name
        say(json.dumps(plan))
