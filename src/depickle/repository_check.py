"""Prove that a folder of results is what its source folder holds: every weight, every other file, every config.

The result is read by its own bytes: through its index where it has one. What belongs there follows from the source
folder alone, so that a file too few and one too many are found as well.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

from .checkpoint import Checkpoint
from .collector import paused
from .configs import configs_of
from .digest import digest_source
from .errors import located, show
from .folders import Group, read_folder, real_path, walk
from .manifest import NAME
from .outputs.splitting import index_name
from .parallel import run_all
from .ranges import FileSource
from .repository import open_group
from .schemas import Json
from .shards import files_of, open_result
from .verification import compare_jobs, described_findings, digest_jobs, provenance_findings, raise_if


@dataclass(frozen=True, slots=True)
class FolderVerification:
    """Two folders that were found equal, and how much was compared; schema: docs/schemas/verify-folder.v1.json."""

    src: str
    dst: str
    files: int
    carried: int
    configs: int
    tensors: int
    bytes_compared: int
    sealed: bool
    seconds: float

    def as_json(self) -> dict[str, Json]:
        """The verification as a JSON object."""
        return {
            "verified_bit_identical": True,
            **{name: getattr(self, name) for name in self.__dataclass_fields__},
        }


def verify_folder(
    src: str | os.PathLike[str],
    dst: str | os.PathLike[str],
    *,
    progress: Callable[[int, int], None] | None = None,
) -> FolderVerification:
    """Prove that folder `dst` is what folder `src` holds. Raises Mismatch with every finding; never touches a file."""
    with paused(), ExitStack() as stack:
        return _Check(os.fspath(src), os.fspath(dst), stack, progress).run()


class _Check:
    """One verification: what was found, and what was counted."""

    def __init__(self, src: str, dst: str, stack: ExitStack, progress: Callable[[int, int], None] | None) -> None:
        self.src, self.dst, self.folder = src, dst, read_folder(src)
        self.findings: list[str] = []
        self.expected: set[str] = set()
        self._stack, self._progress = stack, progress
        self._done = self._total = 0
        self._compared = 0

    def run(self) -> FolderVerification:
        began = time.monotonic()
        pairs = [(group, *self._open(group)) for group in self.folder.groups]
        self._total = sum(source.source.length + output.source.length for _, source, output in pairs if output)
        for group, source, output in pairs:
            if output is not None:
                self._weights(group, source, output)
        configs, _ = configs_of(self.folder, [(group, source) for group, source, _ in pairs])
        for name in self.folder.carried:
            self._carried(name, configs[name].data if name in configs else None)
        self._others()
        raise_if(self.findings, self.dst)
        outputs = [output for _, _, output in pairs if output is not None]
        return FolderVerification(
            src=self.src,
            dst=self.dst,
            files=sum(len(files_of(output.source)) for output in outputs),
            carried=len(self.folder.carried) - len(configs),
            configs=len(configs),
            tensors=sum(len(output.weights) for output in outputs),
            bytes_compared=self._compared,
            sealed=all(output.sealed for output in outputs),
            seconds=round(time.monotonic() - began, 3),
        )

    def _tick(self, count: int) -> None:
        self._done += count
        if self._progress is not None:
            self._progress(min(self._done, self._total), self._total)

    def _open(self, group: Group) -> tuple[Checkpoint, Checkpoint | None]:
        """The source's weights, and the result's: by their index, or in one file."""
        source = self._stack.enter_context(open_group(self.src, group, keep_unsupported=True))
        index = os.path.join(group.folder, index_name(os.path.basename(group.target)))
        found = [name for name in (index, group.target) if os.path.lexists(os.path.join(self.dst, name))]
        if len(found) != 1:
            said = "is not there" if not found else f"is there beside {show(index)}"
            self.findings.append(f"{show(group.target)}: {said}")
            self.expected.update(found)
            return source, None
        self.expected.add(found[0])
        path = os.path.join(self.dst, found[0])
        with located(file=found[0]):
            output = self._stack.enter_context(open_result(path))
        files = [os.path.join(group.folder, file.name) for file in files_of(output.source)]
        self.expected.update(files)
        return source, output

    def _weights(self, group: Group, source: Checkpoint, output: Checkpoint) -> None:
        findings = described_findings(source, output)
        if not findings:
            digests = run_all(digest_jobs(source, self._tick))
            findings += provenance_findings(source, output, [str(digest) for digest in digests])
            for found in run_all(compare_jobs(source, output, self._tick)):
                findings += found
            self._compared += output.source.length
        self.findings += [f"{show(group.target)}: {text}" for text in findings]
        source.source.check_unchanged()
        output.source.check_unchanged()

    def _carried(self, name: str, data: bytes | None) -> None:
        """A file that was carried over, or a config that has to hold `data`."""
        self.expected.add(name)
        path = os.path.join(self.dst, name)
        if not os.path.isfile(path) or os.path.islink(path):
            self.findings.append(f"{show(name)}: is not there")
            return
        with FileSource(path) as there:
            if data is not None:
                same = there.read(0, there.length) == data
            else:
                with FileSource(real_path(self.src, name)) as source:
                    same = source.length == there.length and digest_source(source) == digest_source(there)
        if not same:
            self.findings.append(f"{show(name)}: differs")

    def _others(self) -> None:
        """What lies there and is no part of the result; a manifest and what tools keep may."""
        for folder, names in walk(self.dst):
            for name in names:
                relative = os.path.join(folder, name)
                if relative not in self.expected and relative != NAME:
                    self.findings.append(f"{show(relative)}: is no part of the result")
