"""A conversion from several files, or to several: each output is written, proved and published by itself, and the
index comes last.

The sources are hashed first, so every head is known before its file is begun. A file is proved by its own bytes; that
the files together hold every name is proved when all are there, through the index, before it gets its name. What a
run that was broken off has published is proved again by the next one, and not written again.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from .checkpoint import Checkpoint
from .collector import paused
from .conversion import write
from .digest import Stop, digest_source
from .errors import Malformed, Mismatch, Refused
from .layout import Layout, OutFile, Text
from .opening import open_checkpoint
from .options import Options, UsageError
from .parallel import run_all
from .planning import plan
from .ranges import FileSource
from .recording import Outcome, record_of
from .report import Record
from .shards import open_files, open_part, read_index
from .verification import compare_jobs, described_findings, digest_jobs, raise_if
from .writer import Pending, check_destination, check_space, make_folders, remove_folders, write_data, write_head

Progress = Callable[[int, int], None]


class SeveralFiles:
    """One conversion whose source or output is more than one file. `src` is what records call the source."""

    def __init__(
        self, checkpoint: Checkpoint, src: str, folder: str, layout: Layout, options: Options, progress: Progress | None
    ) -> None:
        self.checkpoint, self.src, self.folder = checkpoint, src, folder
        self.layout, self.options = layout, options
        self._progress = progress
        self._done = 0
        self._total = checkpoint.source.length + 3 * sum(file.length for file in layout.files)

    def run(self, stop: Stop | None, done: Callable[[Record], None]) -> None:
        """Convert, calling `done` with the record of each file that is there."""
        began = time.monotonic()
        digests = self._digests(stop)
        held: list[str] = []
        for file in self.layout.files:
            outcome, part = self._one(file, digests, stop)
            held += part.weights
            path = os.path.join(self.folder, file.name)
            done(record_of(part, self.src, path, file, self.options, outcome, time.monotonic() - began))
            began = time.monotonic()
        missing = self.checkpoint.weights.keys() - held
        if missing or len(held) != len(self.checkpoint.weights):
            raise Mismatch(f"{len(missing)} names of the source are in no file, {len(held)} names in all")
        self.checkpoint.source.check_unchanged()
        if self.layout.index is not None:
            self._publish_index(self.layout.index)

    def _tick(self, count: int) -> None:
        if self._progress is not None:
            self._done += count
            self._progress(min(self._done, self._total), self._total)

    def _digests(self, stop: Stop | None) -> tuple[str, ...]:
        """Each source's SHA-256, its records' CRCs checked."""
        return tuple(str(digest) for digest in run_all(digest_jobs(self.checkpoint, self._tick), outer=stop))

    def _one(self, file: OutFile, digests: tuple[str, ...], stop: Stop | None) -> tuple[Outcome, Checkpoint]:
        path = os.path.join(self.folder, file.name)
        check_destination(path)
        if os.path.exists(path):
            found = self._existing(file, path, digests, stop)
            if found is not None:
                return found
        check_space(file, self.folder)
        with Pending(path) as out:
            digest = hashlib.sha256()
            digest.update(write_head(file, out, digests))
            sources = (self.checkpoint.source,)
            write_data(file, sources, out, digest=digest, stop=stop, progress=self._tick)
            part = self._prove(out.temporary, file.name, stop)
            out.sync()
            out.publish(overwrite=self.options.overwrite)
        return self._outcome(digest.hexdigest(), digests, skipped=False), part

    def _outcome(self, dst_sha256: str, digests: tuple[str, ...], *, skipped: bool) -> Outcome:
        only = digests[0] if len(digests) == 1 else None
        return Outcome(only, dst_sha256, skipped, "depickle", digests if only is None else ())

    def _existing(
        self, file: OutFile, path: str, digests: tuple[str, ...], stop: Stop | None
    ) -> tuple[Outcome, Checkpoint] | None:
        """A file that is there already: proved again if it is the one planned, None if it is to be replaced."""
        with FileSource(path) as output:
            head = output.read(0, min(file.data_start, output.length))
            if head == file.head.render(digests):
                try:
                    part = self._prove(path, file.name, stop)
                    dst_sha256 = str(digest_source(output, stop=stop, progress=self._tick))
                    return self._outcome(dst_sha256, digests, skipped=True), part
                except (Malformed, Mismatch):
                    if not self.options.overwrite:
                        raise
        if self.options.overwrite:
            return None
        raise Refused("exists and is not what this conversion makes; --overwrite replaces it", file=path)

    def _prove(self, path: str, name: str, stop: Stop | None) -> Checkpoint:
        """Compare the file at `path` with the source by the file's own bytes; return the source as far as it is in
        that file."""
        with open_part(path) as output:
            mine = _restricted(self.checkpoint, output)
            raise_if(described_findings(mine, output), name)
            found = run_all(compare_jobs(mine, output, self._tick), outer=stop)
            raise_if([text for findings in found for text in findings], name)
            output.source.check_unchanged()
        return mine

    def _publish_index(self, index: Text) -> None:
        """Prove that the files hold every name, as the index says, and give it its name."""
        path = os.path.join(self.folder, index.name)
        check_destination(path)
        with Pending(path) as out:
            out.write(0, index.data)
            out.sync()
            weight_map = read_index(out.temporary)
            with open_files(path, sorted(set(weight_map.values())), weight_map) as output:
                raise_if(described_findings(self.checkpoint, output), index.name)
            if os.path.exists(path) and _content(path) == index.data:
                return
            out.publish(overwrite=self.options.overwrite)


def _content(path: str) -> bytes:
    with FileSource(path) as file:
        return file.read(0, file.length)


def _restricted(checkpoint: Checkpoint, output: Checkpoint) -> Checkpoint:
    """What of a checkpoint a file of the output says that it holds."""
    weights = {name: weight for name, weight in checkpoint.weights.items() if name in output.weights}
    ties: Mapping[str, str] = {
        alias: origin for alias, origin in checkpoint.ties.items() if alias in weights and origin in weights
    }
    return replace(checkpoint, weights=weights, ties=ties)


def convert_sharded(
    src: str,
    out_dir: str,
    options: Options,
    *,
    done: Callable[[Record], None],
    progress: Progress | None = None,
    stop: Stop | None = None,
) -> None:
    """Convert one file, to several if --max-shard-size makes it so; `done` is called with the record of each."""
    with paused(), open_checkpoint(src, key=options.key, keep_unsupported=options.keep_unsupported) as checkpoint:
        dst, layout = plan(checkpoint, out_dir, options)
        if layout.index is None:
            done(write(checkpoint, src, out_dir, options, progress=progress, stop=stop))
            return
        if options.check_with is not None or options.sha256 is not None or options.trust_sha256 is not None:
            raise UsageError("--sha256, --trust-sha256 and --check-with go with a result of one file")
        folder = os.path.dirname(dst) or "."
        made = make_folders(folder)
        try:
            SeveralFiles(checkpoint, src, folder, layout, options, progress).run(stop, done)
        except BaseException:
            remove_folders(made)
            raise
