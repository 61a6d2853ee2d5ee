"""The stream that torch.save wrote before 1.6: five pickles, then each storage as a count and its bytes.

In: a source that begins with one of `MAGICS`. Out: an `Archive`, or Malformed or Refused. The stream has no
directory: where a pickle ends is known when it has been run, and how long a storage is follows from the persistent
ids of the fourth pickle, so this is the one archive reader that needs the machine. The pickles are magic number,
protocol 1001, sys_info, the object, and the list of storage keys; after it come, in that list's order, an int64
count and the bytes, without padding.

Source: `_legacy_save` and `_legacy_load` in `torch/serialization.py`, `THPStorage_writeFileRaw` in
`torch/csrc/serialization.cpp`, torch 2.13. Counts and elements are little endian on every machine: a big-endian one
swaps them on the way, by element, and torch.load ignores `little_endian`. What is not swapped well (complex,
untyped) is refused if such a machine wrote it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from ..dtypes import BY_STORAGE
from ..errors import Malformed, Refused, located, show
from ..inert import Global, Inert, PersistentId
from ..ranges import ByteRange, Source
from ..vm import LIMITS, Program, run
from .model import Archive, Record

MAGIC_NUMBER: Final = 0x1950A86A20F9469CFC6C
PROTOCOL_VERSION: Final = 1001

_LONG: Final = b"\x8a\x0a" + MAGIC_NUMBER.to_bytes(10, "little") + b"."
# How the stream begins under pickle protocol 0 and 1, 2, 3, 4, 5.
MAGICS: Final = (
    b"L%dL\n." % MAGIC_NUMBER,
    *(bytes([0x80, protocol]) + _LONG for protocol in (2, 3)),
    *(bytes([0x80, protocol, 0x95]) + len(_LONG).to_bytes(8, "little") + _LONG for protocol in (4, 5)),
)

# The pickles of nearly every file fit.
_FIRST_BLOCK: Final = 1024 * 1024
_GROWTH: Final = 4
# All five pickles together; that of a zip may have as much.
MAX_PICKLE_BYTES: Final = LIMITS.pickle_bytes
# Opcodes that state the length of what follows, in so many bytes: FRAME, texts, bytes, LONG4.
_LENGTHS: Final = {code: width for width, codes in ((4, b"XTB\x8b"), (8, b"\x8d\x8e\x96\x95")) for code in codes}
# Any other opcode has all that it may need within this: two lines of text, which the machine limits.
_REACH: Final = 2 * 65_536 + 64

_OBJECT: Final = "object pickle"
_UNTYPED: Final = frozenset({"torch.storage.UntypedStorage", "torch.UntypedStorage"})
_LONG_SIZES: Final = (4, 8)


class _Declared(NamedTuple):
    """What the object pickle says of a storage."""

    kind: str
    numel: int
    itemsize: int


def read_legacy(source: Source) -> Archive:
    """Run the stream's pickles, without making any of what they describe, and find every storage."""
    with located(file=source.name):
        stream = _Stream(source)
        stream.expect("magic number", MAGIC_NUMBER)
        stream.expect("protocol version", PROTOCOL_VERSION)
        little_endian = _check_sys_info(*stream.next("system info"))
        _, program = stream.next(_OBJECT)
        pickle = stream.records[-1]
        declared = _declared(program.persistent_ids)
        keys = _check_keys(*stream.next("storage keys"), declared)
        if not little_endian:
            _check_swapped(declared)
        storages = dict(_place(source, stream.position, keys, declared))
        note = "written on a big-endian machine; the storages of this format are little endian all the same"
        return Archive(
            kind="torch-legacy",
            pickle=pickle,
            storages=storages,
            records=(*stream.records, *storages.values()),
            big_endian=False,
            notes=() if little_endian else (note,),
        )


class _Stream:
    """The pickles at the head of the source, run one after the other; reads no more of it than they need."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._head = source.read(0, min(_FIRST_BLOCK, source.length))
        self.position = 0
        self.records: list[Record] = []

    def next(self, name: str) -> tuple[int, Program]:
        """Run the next pickle; return its offset and what it says."""
        start = self.position
        program = self._run(name)
        if name != _OBJECT and program.globals:
            first = program.globals[0]
            raise Refused(f"the {name} names {first!r}, expected plain values", offset=first.offset)
        self.records.append(Record(name, ByteRange(start, program.end - start), None))
        self.position = program.end
        return start, program

    def expect(self, name: str, number: int) -> None:
        """Run the next pickle, which has to be a number."""
        start, program = self.next(name)
        if type(program.value) is not int or program.value != number:
            raise Malformed(f"the {name} is {_brief(program.value)}, expected {number}", offset=start)

    def _run(self, name: str) -> Program:
        while True:
            try:
                return run(self._head, self.position)
            except Malformed as error:
                need = self._need(self.position if error.offset is None else error.offset)
                if need <= len(self._head):
                    error.message = f"{name}: {error.message}"
                    raise
                if need > MAX_PICKLE_BYTES:
                    message = f"the {name} does not end within {MAX_PICKLE_BYTES} bytes, the limit for the pickles"
                    raise Refused(message, offset=self.position) from error
            length = min(max(need, len(self._head) * _GROWTH), MAX_PICKLE_BYTES, self._source.length)
            self._head = self._source.read(0, length)

    def _need(self, at: int) -> int:
        """Return how many bytes of the source the opcode at `at` may want to see; as many as there are if it cannot
        be helped."""
        width = _LENGTHS.get(self._head[at], 0) if at < len(self._head) else 0
        end = at + 1 + width + int.from_bytes(self._head[at + 1 : at + 1 + width], "little")
        if end > self._source.length:
            return len(self._head)
        return min(max(end, at + _REACH), self._source.length)


def _brief(value: Inert) -> str:
    return str(value) if type(value) in (int, bool, type(None)) else f"a {type(value).__name__}"


def _check_sys_info(offset: int, program: Program) -> bool:
    """Return whether the machine that wrote the file was little endian."""
    info = program.value
    sizes = info.get("type_sizes") if type(info) is dict else None
    if type(sizes) is not dict or type(info.get("little_endian")) is not bool:
        raise Malformed("the system info lacks little_endian or type_sizes", offset=offset)
    if info.get("protocol_version") != PROTOCOL_VERSION:
        found = _brief(info.get("protocol_version"))
        raise Malformed(f"the system info has protocol version {found}, expected {PROTOCOL_VERSION}", offset=offset)
    if sizes.get("short") != 2 or sizes.get("int") != 4 or sizes.get("long") not in _LONG_SIZES:
        found = ", ".join(f"{name} {_brief(sizes.get(name))}" for name in ("short", "int", "long"))
        raise Malformed(f"the system info has the sizes {found}, expected 2, 4, and 4 or 8", offset=offset)
    return info["little_endian"] is True


def _declared(pids: tuple[PersistentId, ...]) -> dict[str, _Declared]:
    """Gather the storages that the object mentions; a module's source code is another kind of persistent id."""
    declared: dict[str, _Declared] = {}
    for reference in pids:
        pid = reference.pid
        if type(pid) is tuple and len(pid) == 4 and pid[0] == "module":
            continue
        key, storage = _read_pid(pid, reference.offset)
        if declared.setdefault(key, storage) != storage:
            first = declared[key]
            both = f"as {first.kind} of {first.numel} and as {storage.kind} of {storage.numel}"
            raise Refused(f"storage {show(key)} is declared twice, {both}", offset=reference.offset)
    return declared


def _read_pid(pid: Inert, offset: int) -> tuple[str, _Declared]:
    if type(pid) is not tuple or len(pid) != 6 or pid[0] != "storage":
        raise Malformed("a persistent id is not ('storage', class, key, location, count, view)", offset=offset)
    _, cls, key, _, numel, view = pid
    if type(cls) is not Global or type(key) is not str or type(numel) is not int or numel < 0:
        raise Malformed("a persistent id needs a class, a key of text and a count that is not negative", offset=offset)
    if view is not None:
        raise Refused(f"storage {show(key)} is a view of another storage: re-save it with a newer torch", offset=offset)
    kind = repr(cls)
    if kind in _UNTYPED:
        return key, _Declared(kind, numel, 1)
    if cls.module != "torch" or cls.name not in BY_STORAGE:
        raise Refused(f"storage {show(key)} is of class {show(kind)}, which torch does not have", offset=offset)
    return key, _Declared(kind, numel, BY_STORAGE[cls.name].itemsize)


def _check_keys(offset: int, program: Program, declared: Mapping[str, _Declared]) -> list[str]:
    """Return the keys in the order of the storages."""
    keys = program.value
    if type(keys) is not list or not all(type(key) is str for key in keys) or len(set(keys)) != len(keys):
        raise Malformed("the storage keys are not a list of different texts", offset=offset)
    for key in keys:
        if key not in declared:
            raise Malformed(f"storage {show(key)} is in the list of keys and not in the object", offset=offset)
    if missing := declared.keys() - set(keys):
        raise Malformed(f"storage {show(min(missing))} is in the object and not in the list of keys", offset=offset)
    return keys


def _check_swapped(declared: Mapping[str, _Declared]) -> None:
    for key, storage in declared.items():
        if storage.kind in _UNTYPED or storage.kind.startswith("torch.Complex"):
            what = f"storage {show(key)} ({storage.kind}) comes from a big-endian machine"
            raise Refused(f"{what}, and this format does not say in which order its bytes are")


def _place(
    source: Source, position: int, keys: list[str], declared: Mapping[str, _Declared]
) -> Iterator[tuple[str, Record]]:
    for key in keys:
        storage = declared[key]
        start, length = position + 8, storage.numel * storage.itemsize
        if start + length > source.length:
            what = f"storage {show(key)} needs {length} bytes after its count"
            raise Malformed(f"{what}, the file ends at {source.length}: truncated?", offset=position)
        count = int.from_bytes(source.read(position, 8), "little", signed=True)
        if count != storage.numel:
            raise Malformed(
                f"storage {show(key)} counts {count} elements, the object declares {storage.numel}", offset=position
            )
        yield key, Record(f"storage {key}", ByteRange(start, length), None)
        position = start + length
    if position != source.length:
        raise Malformed(f"has {source.length - position} bytes after its last storage", offset=position)
