"""Execute one file of a layout: stream its segments to disk, and let it appear under its name only when it is proved.

Knows no format: it copies ranges, runs views through named rules, and fills in the head when the digests are known.
Small segments are gathered into one buffer before they are written, so that ten thousand small tensors do not cost
ten thousand writes.

A `Pending` file lives in the destination's folder under a name of its own and holds a lock on itself; whatever ends
the process, the next run finds the litter by its name and removes what it can lock. Publishing is fsync of the
file, an atomic link or rename, fsync of the folder.
"""

from __future__ import annotations

import errno
import os
import secrets
import sys
from array import array
from collections.abc import Iterator
from typing import Final, Protocol

from .digest import Cancelled, Progress, Stop
from .errors import Malformed, Refused
from .layout import Literal, OutFile, Rescale, Segment, Transform
from .locks import try_lock
from .ranges import Source
from .rounding import requantize
from .rules import apply, unit
from .strided import TILE, blocks

BLOCK: Final = 512 * 1024  # half an L2 cache: written, and hashed while it is still there
_PREFIX: Final = ".depickle-"
_SUFFIX: Final = ".part"


class Hash(Protocol):
    """What hashlib returns."""

    def update(self, data: bytes | memoryview) -> None:
        """Take in the next bytes."""


class Pending:
    """A file that is not there yet: written under a temporary name, published at the end or removed."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.folder = os.path.dirname(path) or "."
        self.temporary = ""
        self._fd = -1

    def __enter__(self) -> Pending:
        sweep(self.folder)
        try:
            while self._fd < 0:
                self._create()
        except BaseException:  # a signal, at any moment: the name is known before the file is there
            self.discard()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self.discard()

    def fileno(self) -> int:
        """The temporary file's descriptor."""
        return self._fd

    def write(self, offset: int, data: bytes | memoryview) -> None:
        """Write all of `data` at `offset`."""
        view = memoryview(data)
        while view:
            try:
                count = os.pwrite(self._fd, view, offset)
            except OSError as error:
                raise OSError(error.errno, error.strerror, self.path) from error
            view, offset = view[count:], offset + count

    def sync(self) -> None:
        """Bring everything to the disk."""
        try:
            os.fsync(self._fd)
        except OSError as error:
            raise OSError(error.errno, error.strerror, self.path) from error

    def _create(self) -> None:
        """Create the file under a new name, and lock it; leave it to the loop if another run's sweep came between."""
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
        self.temporary = os.path.join(self.folder, f"{_PREFIX}{secrets.token_hex(8)}{_SUFFIX}")
        self._fd = os.open(self.temporary, flags, 0o666)  # less the umask, like any new file
        if not (try_lock(self._fd, otherwise=True) and os.path.lexists(self.temporary)):
            self.discard()

    def publish(self, *, overwrite: bool) -> None:
        """Give the file its name. Raises FileExistsError if something has it by now and `overwrite` is not set."""
        if overwrite:
            os.replace(self.temporary, self.path)
        else:
            try:
                os.link(self.temporary, self.path)
            except OSError as error:
                if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK):
                    raise
                if os.path.lexists(self.path):  # a file system without hard links
                    raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), self.path) from error
                os.rename(self.temporary, self.path)
        self.discard()
        _sync_folder(self.folder)

    def discard(self) -> None:
        """Remove the temporary name, if it is still there, and let go of the lock."""
        if self.temporary:
            try:
                os.unlink(self.temporary)
            except OSError:  # it has its other name already, never came to be, or the next run removes it
                pass
            self.temporary = ""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def sweep(folder: str) -> None:
    """Remove what killed runs left behind: temporary files that nobody holds. What cannot be seen is left alone."""
    try:
        names = os.listdir(folder)
    except OSError:
        return
    for name in names:
        if not (name.startswith(_PREFIX) and name.endswith(_SUFFIX)):
            continue
        path = os.path.join(folder, name)
        try:
            fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            continue
        try:
            if try_lock(fd, otherwise=False):
                os.unlink(path)
        except OSError:
            pass
        finally:
            os.close(fd)


def _sync_folder(folder: str) -> None:
    if not hasattr(os, "O_DIRECTORY"):
        return
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some file systems do not sync folders
            raise
    finally:
        os.close(fd)


def check_space(file: OutFile, folder: str) -> None:
    """Raise OSError (no space) up front if the disk cannot hold the file."""
    if not hasattr(os, "statvfs"):
        return
    status = os.statvfs(folder)
    free = status.f_bavail * status.f_frsize
    if file.length > free:
        raise OSError(errno.ENOSPC, f"needs {file.length} bytes, {free} are free", folder)


def write_head(file: OutFile, out: Pending, digests: tuple[str, ...]) -> bytes:
    """Write the head with the sources' digests in it, and return it."""
    head = file.head.render(digests)
    out.write(0, head)
    return head


def write_data(
    file: OutFile,
    sources: tuple[Source, ...],
    out: Pending,
    *,
    digest: Hash | None = None,
    stop: Stop | None = None,
    progress: Progress | None = None,
) -> None:
    """Write all segments, in order, behind the head; `digest` is fed with them as they pass."""
    at = file.data_start
    for block in _pieces(file.segments, sources):
        if stop is not None and stop.is_set():
            raise Cancelled
        out.write(at, block)
        if digest is not None:
            digest.update(block)
        at += len(block)
        if progress is not None:
            progress(len(block))
    if at != file.length:
        raise Malformed(f"{at} bytes were written where {file.length} were planned", file=file.name)


def _pieces(segments: tuple[Segment, ...], sources: tuple[Source, ...]) -> Iterator[memoryview]:
    """The bytes of the segments in blocks of up to BLOCK bytes, small segments together. A block is valid until the
    next is asked for."""
    buffer = memoryview(bytearray(BLOCK))
    filled = 0
    for segment in segments:
        if isinstance(segment, Transform):
            if filled:
                yield buffer[:filled]
                filled = 0
            whole, size = unit(segment.steps), TILE if segment.gathered else BLOCK
            limit = max(size - size % whole, whole)
            for block in blocks(segment.view, sources[segment.view.storage.source], limit):
                yield memoryview(apply(segment.steps, block))
            continue
        if isinstance(segment, Rescale):
            if filled:
                yield buffer[:filled]
                filled = 0
            yield from _rescaled(segment, sources)
            continue
        if isinstance(segment, Literal):
            for text in _repeated(segment):
                if filled + len(text) > BLOCK:
                    yield buffer[:filled]
                    filled = 0
                buffer[filled : filled + len(text)] = text
                filled += len(text)
            continue
        source, at, end = sources[segment.range.source], segment.range.offset, segment.range.end
        while at < end:
            count = min(BLOCK - filled, end - at)
            source.readinto(at, buffer[filled : filled + count])
            filled, at = filled + count, at + count
            if filled == BLOCK:
                yield buffer
                filled = 0
    if filled:
        yield buffer[:filled]


def _rescaled(segment: Rescale, sources: tuple[Source, ...]) -> Iterator[memoryview]:
    """Rows of float8, each by its scale; the scales of one weight are held, its rows are not."""
    scales = array("f", b"".join(map(bytes, _pieces((segment.scales,), sources))))
    if sys.byteorder == "big":
        scales.byteswap()
    width = segment.view.shape[1]
    row = 0
    for block in blocks(segment.view, sources[segment.view.storage.source], max(BLOCK - BLOCK % width, width)):
        count = len(block) // width
        yield memoryview(requantize(block, width, scales[row : row + count], segment.whole, segment.dtype))
        row += count


def _repeated(literal: Literal) -> Iterator[memoryview]:
    """A literal in blocks of BLOCK bytes at the most."""
    at_once = BLOCK // len(literal.data)
    block = memoryview(literal.data * min(at_once, literal.times))
    for done in range(0, literal.times, at_once):
        yield block[: len(literal.data) * min(at_once, literal.times - done)]


def make_folders(folder: str) -> list[str]:
    """Create a folder and its parents; return those that were not there, deepest first. If it fails it leaves none."""
    missing: list[str] = []
    at = folder
    while at and not os.path.isdir(at):
        missing.insert(0, at)
        at = os.path.dirname(at)
    made: list[str] = []
    for place in missing:
        try:
            os.mkdir(place)
        except FileExistsError:
            if not os.path.isdir(place):
                remove_folders(made)
                raise
        except BaseException:
            remove_folders(made)
            raise
        else:
            made.insert(0, place)
    return made


def remove_folders(made: list[str]) -> None:
    """Remove folders that were made, deepest first, as far as nothing is in them."""
    for folder in made:
        try:
            os.rmdir(folder)
        except OSError:
            return


def check_destination(path: str) -> None:
    """Raise Refused for a destination that cannot become a file: a folder, a FIFO, a device, a link. Raise OSError for
    a name that the disk does not take."""
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return
    if os.path.islink(path):
        raise Refused("is a symbolic link; depickle does not write through it", file=path)
    if os.path.lexists(path) and not os.path.isfile(path):
        raise Refused("exists and is not a regular file", file=path)
