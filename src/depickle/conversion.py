"""The verb `convert`: paths and options in, a record out; nothing is printed.

A conversion runs in two phases on two threads. First the source is hashed (and its records' CRCs summed) while the
data is copied; then the output, opened again from its path, is compared with the source while it is hashed and
brought to the disk. If the source's digest is known beforehand, the head is written first and the output is hashed
as it passes. The file gets its name last.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable
from functools import partial
from typing import Protocol

from .checkpoint import Checkpoint
from .collector import paused
from .digest import Stop, digest_source
from .errors import Malformed, Mismatch, Refused
from .layout import OutFile
from .opening import open_checkpoint, open_output
from .options import Options, UsageError, check_batch
from .parallel import Linked, run_all
from .planning import plan
from .ranges import FileSource
from .recording import Outcome, record_of
from .report import Record
from .verification import compare_jobs, described_findings, raise_if
from .writer import (
    Pending,
    check_destination,
    check_space,
    make_folders,
    remove_folders,
    sweep,
    write_data,
    write_head,
)


def convert(
    src: str | os.PathLike[str],
    out_dir: str | os.PathLike[str],
    *,
    repo: str | None = None,
    revision: str | None = None,
    sha256: str | None = None,
    trust_sha256: str | None = None,
    drop_tied_copies: bool = False,
    overwrite: bool = False,
    key: str | None = None,
    keep_unsupported: bool = False,
    check_with: str | None = None,
    target: str | None = None,
    key_prefix: str | None = None,
    rename: str | None = None,
    allow_requantize: bool = False,
    progress: Callable[[int, int], None] | None = None,
    stop: Stop | None = None,
) -> Record:
    """Convert one checkpoint to safetensors, prove the result, and return the record.

    Raises `UsageError`, `Malformed`, `Refused`, `Mismatch` or `OSError`; then nothing is left at the destination.
    `progress` is called with bytes done and bytes to do, from several threads; once `stop.is_set()`, the conversion
    ends with `Cancelled`.
    """
    options = Options(
        repo,
        revision,
        sha256,
        trust_sha256,
        drop_tied_copies,
        overwrite,
        key,
        keep_unsupported,
        check_with,
        target,
        key_prefix=key_prefix,
        rename=rename,
        allow_requantize=allow_requantize,
    )
    check_batch([os.fspath(src)], os.fspath(out_dir), options)
    return convert_with(src, out_dir, options, progress=progress, stop=stop)


def convert_with(
    src: str | os.PathLike[str],
    out_dir: str | os.PathLike[str],
    options: Options,
    *,
    progress: Callable[[int, int], None] | None = None,
    stop: Stop | None = None,
) -> Record:
    """Convert one checkpoint, the options as a value that was checked together with the whole batch."""
    started = time.monotonic()
    with paused(), open_checkpoint(src, key=options.key, keep_unsupported=options.keep_unsupported) as checkpoint:
        return write(checkpoint, os.fspath(src), out_dir, options, progress=progress, stop=stop, started=started)


def write(
    checkpoint: Checkpoint,
    src: str,
    out_dir: str | os.PathLike[str],
    options: Options,
    *,
    progress: Callable[[int, int], None] | None = None,
    stop: Stop | None = None,
    started: float | None = None,
) -> Record:
    """Convert a checkpoint that is open: plan, write, prove, publish. `src` is what the record calls the source."""
    began = time.monotonic() if started is None else started
    dst, layout = plan(checkpoint, out_dir, options)
    if layout.index is not None:
        raise UsageError(f"{os.path.basename(dst)} would be {len(layout.files)} files, which goes with a folder alone")
    return write_planned(checkpoint, src, dst, layout.files[0], options, progress=progress, stop=stop, started=began)


def write_planned(
    checkpoint: Checkpoint,
    src: str,
    dst: str,
    file: OutFile,
    options: Options,
    *,
    progress: Callable[[int, int], None] | None = None,
    stop: Stop | None = None,
    started: float | None = None,
) -> Record:
    """Write one planned file to `dst`, prove and publish it."""
    began = time.monotonic() if started is None else started
    with _judge(options) as judge:
        outcome = _Conversion(checkpoint, dst, file, options, judge, progress, stop).run()
    return record_of(checkpoint, src, dst, file, options, outcome, time.monotonic() - began)


class Judge(Protocol):
    """Somebody else who reads the output back and compares it with the source."""

    name: str

    def __enter__(self) -> Judge: ...

    def __exit__(self, *exc: object) -> None: ...

    def check(self, checkpoint: Checkpoint, path: str) -> None:
        """Raise Mismatch if the file at `path` is not what the checkpoint's source holds."""


class _NoJudge:
    """Nobody but depickle reads the output back."""

    name = "depickle"

    def __enter__(self) -> _NoJudge:
        return self

    def __exit__(self, *exc: object) -> None:
        pass

    def check(self, checkpoint: Checkpoint, path: str) -> None:
        pass


def _judge(options: Options) -> Judge:
    if options.check_with is None:
        return _NoJudge()
    try:
        from .torch.judge import TorchJudge  # the extra; it alone imports torch
    except ModuleNotFoundError as error:
        missing = f"--check-with torch needs {error.name}, which is not installed: pip install 'depickle[torch]'"
        raise Refused(missing) from error
    judge: Judge = TorchJudge()
    return judge


class _Conversion:
    """One conversion in its phases. Owns nothing but its arguments and the progress counter."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        dst: str,
        file: OutFile,
        options: Options,
        judge: Judge,
        progress: Callable[[int, int], None] | None,
        outer: Stop | None,
    ) -> None:
        self.checkpoint, self.dst, self.file, self.options, self.judge = checkpoint, dst, file, options, judge
        self.known = options.sha256 or options.trust_sha256
        self._progress, self._outer = progress, outer
        self._done = 0
        self._total = checkpoint.source.length + 3 * file.length

    def run(self) -> Outcome:
        check_destination(self.dst)
        sweep(os.path.dirname(self.dst) or ".")
        if os.path.exists(self.dst):
            outcome = self._existing()
            if outcome is not None:
                return outcome
        made = make_folders(os.path.dirname(self.dst) or ".")
        try:
            check_destination(self.dst)
            check_space(self.file, os.path.dirname(self.dst) or ".")
            with Pending(self.dst) as out:
                src_sha256, dst_sha256 = self._write(out)
                try:
                    out.publish(overwrite=self.options.overwrite)
                except FileExistsError:
                    outcome = self._existing()
                    if outcome is None:
                        raise
                    return outcome
        except BaseException:
            remove_folders(made)
            raise
        return Outcome(src_sha256, dst_sha256, skipped=False, reader=self.judge.name)

    def _tick(self, count: int) -> None:
        if self._progress is not None:
            self._done += count
            self._progress(min(self._done, self._total), self._total)

    def _digest_source(self, stop: Stop) -> str | None:
        """Hash the source and check its CRCs; compare the digest with the one that was expected."""
        trusted = self.options.trust_sha256
        found = digest_source(
            self.checkpoint.source, self.checkpoint.records, hashing=trusted is None, stop=stop, progress=self._tick
        )
        expected = self.options.sha256
        if found is not None and expected is not None and found != expected.lower():
            raise Mismatch(f"has the SHA-256 {found}, expected {expected.lower()}", file=self.checkpoint.source.name)
        return found if trusted is None else trusted.lower()

    def _write(self, out: Pending) -> tuple[str, str]:
        """Both phases: data and source digest, then the head, the comparison, the output's digest and the disk."""
        early = hashlib.sha256() if self.known else None
        sources = (self.checkpoint.source,)
        if early is not None and self.known is not None:
            early.update(write_head(self.file, out, (self.known.lower(),)))
        write = partial(write_data, self.file, sources, out, digest=early, progress=self._tick)
        src_sha256, _ = run_all([self._digest_source, lambda stop: write(stop=stop)], outer=self._outer)
        if early is None:
            write_head(self.file, out, (str(src_sha256),))
        dst_sha256 = self._prove(out.temporary, early.hexdigest() if early else None, out.sync)
        self.checkpoint.source.check_unchanged()
        return str(src_sha256), dst_sha256

    def _prove(self, path: str, known: str | None, sync: Callable[[], None] | None = None) -> str:
        """Compare the file at `path` with the source by the file's own bytes; return its SHA-256."""
        with open_output(path) as output:
            raise_if(described_findings(self.checkpoint, output), self.file.name)
            compare = compare_jobs(self.checkpoint, output, self._tick)
            jobs: list[Callable[[Stop], object]] = [*compare]
            if known is None:
                jobs.insert(0, lambda stop: digest_source(output.source, stop=stop, progress=self._tick))
            if sync is not None:
                jobs.append(lambda _: sync())
            results = run_all(jobs, outer=self._outer)
            first = 0 if known else 1
            raise_if([text for found in results[first : first + len(compare)] for text in found], self.file.name)  # type: ignore[attr-defined]
            self.judge.check(self.checkpoint, path)
            output.source.check_unchanged()
            return known or str(results[0])

    def _existing(self) -> Outcome | None:
        """Skip an existing destination that is the one planned; None if it is to be replaced; Refused if it is
        another."""
        with FileSource(self.dst) as output:
            head = output.read(0, min(self.file.data_start, output.length))
        if len(head) == self.file.data_start and self._same_but_digest(head):
            src_sha256 = self._digest_source(Linked(self._outer))
            if head == self.file.head.render((str(src_sha256),)):
                try:
                    dst_sha256 = self._prove(self.dst, None)
                    self.checkpoint.source.check_unchanged()
                    return Outcome(src_sha256, dst_sha256, skipped=True, reader=self.judge.name)
                except (Malformed, Mismatch):
                    if not self.options.overwrite:
                        raise
        if self.options.overwrite:
            return None
        raise Refused("exists and is not what this conversion makes; --overwrite replaces it", file=self.dst)

    def _same_but_digest(self, head: bytes) -> bool:
        """Whether the head would be the one planned if the source's digest were the one that it records."""
        at = self.file.head.digest_offset()
        return self.file.head.render((head[at : at + 64].decode("latin-1"),)) == head
