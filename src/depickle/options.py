"""What `convert` may be told, what of it makes no sense, and where a source goes."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from .targets import COMFYUI, TARGETS, UNSLOTH

_SUFFIXES: Final = (".pt", ".pth", ".bin", ".safetensors")
_HEX: Final = re.compile(r"[0-9a-fA-F]{64}")


class UsageError(ValueError):
    """The call itself makes no sense: options that contradict each other, or are not what they should be."""


@dataclass(frozen=True, slots=True)
class Options:
    """What `convert` may be told; see docs/cli.md for each."""

    repo: str | None = None
    revision: str | None = None
    sha256: str | None = None
    trust_sha256: str | None = None
    drop_tied_copies: bool = False
    overwrite: bool = False
    key: str | None = None
    keep_unsupported: bool = False
    check_with: str | None = None
    target: str | None = None
    max_shard_size: int | None = None
    key_prefix: str | None = None
    rename: str | None = None
    allow_requantize: bool = False

    def __post_init__(self) -> None:
        if self.repo is not None:
            parts = self.repo.split("/")
            if len(parts) != 2 or any(part in ("", ".", "..") or "\\" in part or "\0" in part for part in parts):
                raise UsageError(f"--repo takes OWNER/NAME, not {self.repo!r}")
        for option, value in (("--sha256", self.sha256), ("--trust-sha256", self.trust_sha256)):
            if value is not None and not _HEX.fullmatch(value):
                raise UsageError(f"{option} takes 64 hexadecimal digits, not {value!r}")
        if self.sha256 is not None and self.trust_sha256 is not None:
            raise UsageError("--sha256 checks the digest and --trust-sha256 does not: give one of them")
        if self.check_with not in (None, "torch"):
            raise UsageError(f"--check-with takes torch, not {self.check_with!r}")
        if self.target is not None and self.target not in TARGETS:
            raise UsageError(f"--target takes {', '.join(TARGETS)}, not {self.target!r}")
        if self.max_shard_size is not None and self.max_shard_size < 1:
            raise UsageError(f"--max-shard-size takes a size such as 5GB, not {self.max_shard_size}")
        self._check_twin()

    def _check_twin(self) -> None:
        if self.target != COMFYUI and (self.allow_requantize or (self.key_prefix, self.rename) != (None, None)):
            raise UsageError("--key-prefix, --rename and --allow-requantize go with --target comfyui")
        if self.target == COMFYUI and self.check_with is not None:
            raise UsageError("--check-with torch does not go with --target comfyui: torchao does not read the twin")
        if self.target == COMFYUI and self.max_shard_size is not None:
            raise UsageError("--max-shard-size does not go with --target comfyui: ComfyUI reads one file")
        if self.target == COMFYUI and self.drop_tied_copies:
            raise UsageError("--drop-tied-copies does not go with --target comfyui: ComfyUI knows no ties")
        if self.target == COMFYUI and self.max_shard_size is not None:
            raise UsageError("--max-shard-size does not go with --target comfyui: ComfyUI reads one file")


_SIZE: Final = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,9})?) *([KMGT]?)(i?)B?", re.IGNORECASE)


def parse_size(text: str) -> int:
    """A number of bytes: `5GB`, `500MB`, `2GiB`, `1000000`. Raises UsageError."""
    match = _SIZE.fullmatch(text.strip())
    size = 0
    if match is not None and (match[2] or not match[3]):
        size = int(float(match[1]) * (1024 if match[3] else 1000) ** " KMGT".index(match[2].upper() or " "))
    if size < 1:
        raise UsageError(f"--max-shard-size takes a size such as 5GB, not {text!r}")
    return size


def destination(src: str | os.PathLike[str], out_dir: str | os.PathLike[str], options: Options) -> str:
    """Where `src` goes: DIR[/OWNER/NAME]/STEM.safetensors, STEM being the name less a known suffix; the target says
    what follows the stem. A folder becomes DIR[/OWNER/NAME] itself."""
    parts = options.repo.split("/") if options.repo else ()
    if os.path.isdir(src):
        return os.path.join(os.fspath(out_dir), *parts)
    name = os.path.basename(os.path.normpath(os.fspath(src)))
    stem, suffix = os.path.splitext(name)
    stem = stem if suffix.lower() in _SUFFIXES and stem else name
    return os.path.join(os.fspath(out_dir), *parts, stem + TARGETS[options.target or UNSLOTH].suffix)


def check_batch(sources: Iterable[str], out_dir: str, options: Options, report: str | None = None) -> None:
    """Raise UsageError for what can be seen to be wrong before anything is read."""
    listed = list(sources)
    if not os.fspath(out_dir):
        raise UsageError("--out-dir is empty")
    if len(listed) > 1 and (options.sha256 or options.trust_sha256):
        raise UsageError("--sha256 and --trust-sha256 go with one source")
    taken: dict[str, str] = {}
    for src in listed:
        dst = destination(src, out_dir, options)
        place = os.path.join(os.path.realpath(os.path.dirname(dst) or "."), os.path.normcase(os.path.basename(dst)))
        if place in taken:
            raise UsageError(f"{taken[place]} and {src} would both become {dst}")
        taken[place] = src
        for other in listed:
            _check_not_source(other, dst)
        if report is not None and (_same(report, src) or os.path.realpath(report) == os.path.realpath(dst)):
            raise UsageError(f"the report {report} would be written into {src if _same(report, src) else dst}")


def _same(one: str | os.PathLike[str], other: str | os.PathLike[str]) -> bool:
    return os.path.exists(one) and os.path.exists(other) and os.path.samefile(one, other)


def _check_not_source(src: str | os.PathLike[str], dst: str) -> None:
    if _same(src, dst):
        raise UsageError(f"the destination {dst} is the source {os.fspath(src)} itself")
