"""Prove that an output holds what its source holds, within a conversion or on a pair made earlier.

Differences are looked for in the order of their price: the header's seal and form, what the two files say of
themselves, every byte. The bytes are compared on two threads while the files are hashed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from .archive import Record
from .checkpoint import Checkpoint
from .collector import paused
from .compare import Comparer, Pair, batches, compare_described, pairs
from .compare_rounding import rounding_findings
from .compare_twin import TwinComparison
from .digest import Progress, Stop, digest_source
from .errors import Mismatch
from .opening import open_checkpoint
from .parallel import run_all
from .ranges import FileSource
from .report import Verification
from .shards import Shards, files_of, open_result


def described_findings(source: Checkpoint, output: Checkpoint) -> list[str]:
    """What differs before any tensor byte is read."""
    if output.twin is not None:
        return [*output.damage, *TwinComparison(source, output, output.twin).findings]
    return [*output.damage, *compare_described(source, output)]


def compare_jobs(source: Checkpoint, output: Checkpoint, progress: Progress) -> list[Callable[[Stop], list[str]]]:
    """The byte comparison, cut into jobs for `run_all`; each returns its findings."""
    twin = None if output.twin is None else TwinComparison(source, output, output.twin)
    found = pairs(source, output) if twin is None else twin.pairs
    rounded = [] if twin is None else twin.rounded
    return [
        *(partial(_compare, source.source, output.source, batch, progress) for batch in batches(found)),
        *(partial(rounding_findings, item, source.source, output.source, progress) for item in rounded),
    ]


def _compare(
    source: FileSource, output: FileSource, batch: Sequence[Pair], progress: Progress, stop: Stop
) -> list[str]:
    return Comparer(source, output, stop=stop, progress=progress).findings(batch)


def raise_if(findings: Sequence[str], file: str) -> None:
    """Raise Mismatch with all findings, if there are any."""
    if findings:
        more = f" (and {len(findings) - 1} more)" if len(findings) > 1 else ""
        raise Mismatch(f"is not what its source holds: {findings[0]}{more}", findings=findings, file=file)


def verify(
    src: str | os.PathLike[str],
    dst: str | os.PathLike[str],
    *,
    key: str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Verification:
    """Prove again that `dst`, a file or the index of several, is what `src` holds. Raises `Mismatch` with every
    finding; never touches a file."""
    started = time.monotonic()
    with paused(), open_checkpoint(src, key=key, keep_unsupported=True) as checkpoint, open_result(dst) as index:
        total = checkpoint.source.length + 2 * index.source.length
        done = 0

        def tick(count: int) -> None:
            nonlocal done
            done += count
            if progress is not None:
                progress(min(done, total), total)

        raise_if(described_findings(checkpoint, index), index.source.name)
        files = [file.name for file in files_of(index.source)]
        jobs: list[Callable[[Stop], object]] = [*digest_jobs(checkpoint, tick), *digest_jobs(index, tick)]
        src_sha256, *rest = run_all([*jobs, *compare_jobs(checkpoint, index, tick)])
        digests, results = dict(zip(files, map(str, rest))), rest[len(files) :]
        findings = [text for result in results for text in result]  # type: ignore[attr-defined]
        findings += provenance_findings(checkpoint, index, [str(src_sha256)])
        raise_if(findings, index.source.name)
        checkpoint.source.check_unchanged()
        index.source.check_unchanged()
        return Verification(
            src=os.fspath(src),
            dst=os.fspath(dst),
            src_sha256=str(src_sha256),
            dst_sha256=next(iter(digests.values())) if len(files) == 1 else None,
            tensors=len(checkpoint.weights),
            parts=sum(len(weight.leaves()) for weight in checkpoint.weights.values()),
            bytes_compared=sum(part.nbytes for weight in index.weights.values() for part in weight.leaves().values()),
            sealed=index.sealed,
            seconds=round(time.monotonic() - started, 3),
            dst_files=digests if len(files) > 1 else {},
            verified_bit_identical=index.twin is None or not index.twin.rounded,
        )


def digest_jobs(checkpoint: Checkpoint, progress: Progress) -> list[Callable[[Stop], str | None]]:
    """For each of the source's files, a job that checks its records' CRCs and returns its SHA-256."""
    source = checkpoint.source
    jobs: list[Callable[[Stop], str | None]] = []
    for number, file in enumerate(files_of(source)):
        records = source.records(number, checkpoint.records) if isinstance(source, Shards) else checkpoint.records
        jobs.append(partial(_digest, file, records, progress))
    return jobs


def _digest(file: FileSource, records: Iterable[Record], progress: Progress, stop: Stop) -> str | None:
    return digest_source(file, records, stop=stop, progress=progress)


def provenance_findings(checkpoint: Checkpoint, index: Checkpoint, digests: Sequence[str]) -> list[str]:
    """Whether the output says that it came from other files than these."""
    claimed = index.provenance if isinstance(index.provenance, dict) else {}
    listed = claimed.get("files", [claimed])
    sources = files_of(checkpoint.source)
    if not isinstance(listed, list) or (claimed and len(listed) != len(sources)):
        return [f"provenance: does not record the {len(sources)} files of the source"]
    findings = []
    for entry, source, sha256 in zip(listed, sources, digests):
        facts = {"sha256": sha256, "bytes": source.length}
        said = entry if isinstance(entry, dict) else {}
        findings += [
            f"provenance: records {key} {said[key]}, the source has {actual}"
            for key, actual in facts.items()
            if key in said and said[key] != actual
        ]
    return findings
