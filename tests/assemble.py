"""Build pickles, torch files and safetensors files by hand, byte by byte, lies included.

Three parts. *Opcodes*: one name per pickle opcode of protocols 0 to 5, spelled as in `pickletools`; those without an
argument are constants, the others functions. `asm(PROTO(2), GLOBAL("os", "system"), ..., STOP)` joins them. *Values*:
`value()` writes plain Python data as opcodes and passes opcodes through, so that a hostile piece sits in a readable
dict; `tensor()`, `wrapper()`, `state_dict()` and `checkpoint()` write what torch writes. *Files*: `zip_file()`,
`torch_file()`, `legacy_file()` and `safetensors_file()` write containers; every field of a zip entry can be given a
value that is not true.

Nothing here imports pickle or depickle: the bytes are the format's, not those of the code under test.
"""

# ruff: noqa: N802 - opcodes keep the names that pickletools gives them

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


class Code(bytes):
    """Opcodes; told apart from `bytes`, which `value()` writes as a bytes object."""


def asm(*parts: bytes) -> Code:
    """Join opcodes."""
    return Code(b"".join(parts))


def _text(text: str | bytes) -> bytes:
    return text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")


def _line(code: bytes, *texts: str | bytes) -> Code:
    return Code(code + b"".join(_text(text) + b"\n" for text in texts))


def _sized(code: bytes, form: str, data: str | bytes, length: int | None) -> Code:
    raw = _text(data)
    return Code(code + struct.pack(form, len(raw) if length is None else length) + raw)


# --- opcodes without an argument --------------------------------------------------------------------------------------

MARK = Code(b"(")
STOP = Code(b".")
POP = Code(b"0")
POP_MARK = Code(b"1")
DUP = Code(b"2")
NONE = Code(b"N")
NEWTRUE = Code(b"\x88")
NEWFALSE = Code(b"\x89")
EMPTY_TUPLE = Code(b")")
EMPTY_LIST = Code(b"]")
EMPTY_DICT = Code(b"}")
EMPTY_SET = Code(b"\x8f")
TUPLE = Code(b"t")
TUPLE1 = Code(b"\x85")
TUPLE2 = Code(b"\x86")
TUPLE3 = Code(b"\x87")
LIST = Code(b"l")
DICT = Code(b"d")
FROZENSET = Code(b"\x91")
APPEND = Code(b"a")
APPENDS = Code(b"e")
SETITEM = Code(b"s")
SETITEMS = Code(b"u")
ADDITEMS = Code(b"\x90")
MEMOIZE = Code(b"\x94")
STACK_GLOBAL = Code(b"\x93")
REDUCE = Code(b"R")
BUILD = Code(b"b")
OBJ = Code(b"o")
NEWOBJ = Code(b"\x81")
NEWOBJ_EX = Code(b"\x92")
BINPERSID = Code(b"Q")
NEXT_BUFFER = Code(b"\x97")
READONLY_BUFFER = Code(b"\x98")


# --- opcodes with an argument -----------------------------------------------------------------------------------------
# Text arguments are written as they are given; `length` states a length that is not the data's.


def PROTO(version: int) -> Code:
    return Code(b"\x80" + bytes([version]))


def FRAME(length: int) -> Code:
    return Code(b"\x95" + struct.pack("<Q", length))


def framed(*parts: bytes) -> Code:
    """A FRAME that tells the truth about its content."""
    body = asm(*parts)
    return asm(FRAME(len(body)), body)


def GLOBAL(module: str | bytes, name: str | bytes) -> Code:
    return _line(b"c", module, name)


def INST(module: str | bytes, name: str | bytes) -> Code:
    return _line(b"i", module, name)


def EXT1(code: int) -> Code:
    return Code(b"\x82" + struct.pack("<B", code))


def EXT2(code: int) -> Code:
    return Code(b"\x83" + struct.pack("<H", code))


def EXT4(code: int) -> Code:
    return Code(b"\x84" + struct.pack("<i", code))


def PERSID(text: str | bytes) -> Code:
    return _line(b"P", text)


def INT(text: str | int) -> Code:
    return _line(b"I", str(text))


def LONG(text: str | int) -> Code:
    return _line(b"L", text if isinstance(text, str) else f"{text}L")


def FLOAT(text: str | float) -> Code:
    return _line(b"F", str(text))


def STRING(quoted: str | bytes) -> Code:
    """The argument with its quotes and escapes: `STRING("'os'")`."""
    return _line(b"S", quoted)


def UNICODE(text: str | bytes) -> Code:
    return _line(b"V", text)


def BININT(number: int) -> Code:
    return Code(b"J" + struct.pack("<i", number))


def BININT1(number: int) -> Code:
    return Code(b"K" + struct.pack("<B", number))


def BININT2(number: int) -> Code:
    return Code(b"M" + struct.pack("<H", number))


def _twos_complement(number: int) -> bytes:
    return number.to_bytes((number.bit_length() + 8) // 8, "little", signed=True) if number else b""


def LONG1(number: int | bytes, length: int | None = None) -> Code:
    raw = number if isinstance(number, bytes) else _twos_complement(number)
    return _sized(b"\x8a", "<B", raw, length)


def LONG4(number: int | bytes, length: int | None = None) -> Code:
    raw = number if isinstance(number, bytes) else _twos_complement(number)
    return _sized(b"\x8b", "<i", raw, length)


def BINFLOAT(number: float) -> Code:
    return Code(b"G" + struct.pack(">d", number))


def SHORT_BINSTRING(data: str | bytes, length: int | None = None) -> Code:
    return _sized(b"U", "<B", data, length)


def BINSTRING(data: str | bytes, length: int | None = None) -> Code:
    return _sized(b"T", "<i", data, length)


def SHORT_BINUNICODE(text: str | bytes, length: int | None = None) -> Code:
    return _sized(b"\x8c", "<B", text, length)


def BINUNICODE(text: str | bytes, length: int | None = None) -> Code:
    return _sized(b"X", "<I", text, length)


def BINUNICODE8(text: str | bytes, length: int | None = None) -> Code:
    return _sized(b"\x8d", "<Q", text, length)


def SHORT_BINBYTES(data: bytes, length: int | None = None) -> Code:
    return _sized(b"C", "<B", data, length)


def BINBYTES(data: bytes, length: int | None = None) -> Code:
    return _sized(b"B", "<I", data, length)


def BINBYTES8(data: bytes, length: int | None = None) -> Code:
    return _sized(b"\x8e", "<Q", data, length)


def BYTEARRAY8(data: bytes, length: int | None = None) -> Code:
    return _sized(b"\x96", "<Q", data, length)


def PUT(index: str | int) -> Code:
    return _line(b"p", str(index))


def BINPUT(index: int) -> Code:
    return Code(b"q" + struct.pack("<B", index))


def LONG_BINPUT(index: int) -> Code:
    return Code(b"r" + struct.pack("<I", index))


def GET(index: str | int) -> Code:
    return _line(b"g", str(index))


def BINGET(index: int) -> Code:
    return Code(b"h" + struct.pack("<B", index))


def LONG_BINGET(index: int) -> Code:
    return Code(b"j" + struct.pack("<I", index))


# --- values -----------------------------------------------------------------------------------------------------------


def string(text: str | bytes) -> Code:
    """Text as torch.save writes it."""
    return BINUNICODE(text)


def integer(number: int) -> Code:
    """An integer in the shortest opcode of protocol 2, as the pickler chooses it."""
    if 0 <= number <= 0xFF:
        return BININT1(number)
    if 0 <= number <= 0xFFFF:
        return BININT2(number)
    if -(2**31) <= number < 2**31:
        return BININT(number)
    raw = _twos_complement(number)
    return LONG1(raw) if len(raw) < 256 else LONG4(raw)


def value(item: Any) -> Code:
    """Plain Python data as opcodes; `Code` inside it is passed through as it is."""
    for kind, write in _WRITERS:
        if isinstance(item, kind):
            return write(item)
    raise TypeError(f"cannot write a {type(item).__name__}")


def _dict(item: Mapping[Any, Any]) -> Code:
    pairs = [value(part) for pair in item.items() for part in pair]
    return asm(EMPTY_DICT, MARK, *pairs, SETITEMS) if pairs else EMPTY_DICT


def _list(item: Sequence[Any]) -> Code:
    return asm(EMPTY_LIST, MARK, *map(value, item), APPENDS) if item else EMPTY_LIST


def _tuple(item: tuple[Any, ...]) -> Code:
    parts = [value(part) for part in item]
    if len(parts) > 3:
        return asm(MARK, *parts, TUPLE)
    return asm(*parts, (EMPTY_TUPLE, TUPLE1, TUPLE2, TUPLE3)[len(parts)])


_WRITERS: tuple[tuple[Any, Any], ...] = (
    (Code, lambda item: item),
    (type(None), lambda _: NONE),
    (bool, lambda item: NEWTRUE if item else NEWFALSE),
    (int, integer),
    (float, BINFLOAT),
    (str, string),
    (bytes, BINBYTES),
    (dict, _dict),
    (list, _list),
    (tuple, _tuple),
)


def call(module: str, name: str, *args: Any) -> Code:
    """`module.name(*args)` by GLOBAL and REDUCE."""
    return asm(GLOBAL(module, name), value(args), REDUCE)


def new(module: str, name: str, *args: Any, state: Any = None) -> Code:
    """An object by NEWOBJ, with a BUILD if there is a state."""
    made = asm(GLOBAL(module, name), value(args), NEWOBJ)
    return made if state is None else asm(made, value(state), BUILD)


def ordered_dict(items: Mapping[Any, Any] | None = None, *, state: Any = None) -> Code:
    """A collections.OrderedDict as Module.state_dict() is pickled."""
    made = call("collections", "OrderedDict")
    if items:
        made = asm(made, MARK, *(value(part) for pair in items.items() for part in pair), SETITEMS)
    return made if state is None else asm(made, value(state), BUILD)


ITEMSIZE = {"FloatStorage": 4, "BFloat16Storage": 2, "LongStorage": 8, "CharStorage": 1, "ByteStorage": 1}


def storage(key: Any = "0", kind: str = "FloatStorage", numel: Any = 4, *, location: Any = "cpu") -> Code:
    """A reference to a storage; `numel` counts elements."""
    module = "torch.storage" if kind == "UntypedStorage" else "torch"
    return asm(value(("storage", GLOBAL(module, kind), key, location, numel)), BINPERSID)


def row_major(shape: Sequence[int]) -> tuple[int, ...]:
    """The stride of a contiguous tensor."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def tensor(
    key: Any = "0",
    kind: str = "FloatStorage",
    numel: Any = 4,
    shape: Any = None,
    stride: Any = None,
    offset: Any = 0,
    *,
    location: Any = "cpu",
    requires_grad: Any = False,
    hooks: Any = None,
    extra: tuple[Any, ...] = (),
    reference: Code | None = None,
) -> Code:
    """A tensor as `torch._utils._rebuild_tensor_v2(storage, offset, shape, stride, requires_grad, hooks)`."""
    shape = (numel,) if shape is None else shape
    stride = row_major(shape) if stride is None else stride
    hooks = ordered_dict() if hooks is None else hooks
    reference = storage(key, kind, numel, location=location) if reference is None else reference
    args = (reference, offset, shape, stride, requires_grad, hooks, *extra)
    return call("torch._utils", "_rebuild_tensor_v2", *args)


def tensor3(key: Any, dtype: str, nbytes: int, shape: Any, stride: Any = None, offset: Any = 0) -> Code:
    """A tensor of a type without a storage class: `_rebuild_tensor_v3` over an UntypedStorage, counted in bytes."""
    stride = row_major(shape) if stride is None else stride
    args = (storage(key, "UntypedStorage", nbytes), offset, shape, stride, False, ordered_dict())
    return call("torch._utils", "_rebuild_tensor_v3", *args, GLOBAL("torch", dtype))


STRIDED = call("torch.serialization", "_get_layout", "torch.strided")
CPU = call("torch", "device", "cpu")


def wrapper(
    cls: tuple[str, str],
    dtype: str,
    shape: Any,
    state: Any,
    *,
    stride: Any = None,
    offset: Any = 0,
    layout: Any = STRIDED,
    device: Any = CPU,
    requires_grad: Any = False,
    outer: tuple[str, str] | None = None,
) -> Code:
    """A tensor subclass as torch pickles it; `outer` names another class outside than inside."""
    stride = row_major(shape) if stride is None else stride
    args = (GLOBAL(*cls), GLOBAL("torch", dtype), shape, stride, offset, layout, device, requires_grad)
    func = GLOBAL("torch._utils", "_rebuild_wrapper_subclass")
    return call("torch._tensor", "_rebuild_from_type_v2", func, GLOBAL(*(outer or cls)), args, state)


LAQT = ("torchao.quantization.linear_activation_quantized_tensor", "LinearActivationQuantizedTensor")
AQT = ("torchao.dtypes.affine_quantized_tensor", "AffineQuantizedTensor")
PLAIN_IMPL = ("torchao.dtypes.uintx.plain_layout", "PlainAQTTensorImpl")
INT8_ACTIVATION = ("torchao.quantization.quant_api", "_int8_symm_per_token_reduced_range_quant")


def int8_v1(
    key: str = "w",
    rows: int = 2,
    cols: int = 4,
    *,
    impl: Mapping[str, Any] | None = None,
    aqt: Mapping[str, Any] | None = None,
    laqt: Mapping[str, Any] | None = None,
    outer: Mapping[str, Any] | None = None,
    aqt_outer: Mapping[str, Any] | None = None,
    impl_outer: Mapping[str, Any] | None = None,
) -> Code:
    """torchao's first int8 weight, over storages `KEY.d` and `KEY.s`; each mapping changes a level's fields."""
    shape = (rows, cols)
    impl_state = {
        "int_data": tensor(f"{key}.d", "CharStorage", rows * cols, shape),
        "scale": tensor(f"{key}.s", "BFloat16Storage", rows),
        "zero_point": None,
        "_layout": new("torchao.dtypes.utils", "PlainLayout"),
    } | dict(impl or {})
    aqt_state = {
        "tensor_impl": wrapper(PLAIN_IMPL, "int8", **({"shape": shape} | dict(impl_outer or {})), state=impl_state),
        "block_size": (1, cols),
        "quant_min": None,
        "quant_max": None,
        "zero_point_domain": call("torchao.quantization.quant_primitives", "ZeroPointDomain", 3),
    } | dict(aqt or {})
    laqt_state = {
        "original_weight_tensor": wrapper(
            AQT, "bfloat16", **({"shape": shape} | dict(aqt_outer or {})), state=aqt_state
        ),
        "input_quant_func": GLOBAL(*INT8_ACTIVATION),
        "quant_kwargs": {},
    } | dict(laqt or {})
    return wrapper(LAQT, "bfloat16", **({"shape": shape} | dict(outer or {})), state=laqt_state)


def int8_storages(key: str = "w", rows: int = 2, cols: int = 4) -> dict[str, bytes]:
    """The storages that `int8_v1` refers to."""
    return {f"{key}.d": bytes(range(rows * cols)), f"{key}.s": b"\x80\x3f" * rows}


def program(body: bytes, protocol: int = 2) -> Code:
    """A whole pickle."""
    return asm(PROTO(protocol), body, STOP)


def state_dict(items: Mapping[Any, Any]) -> Code:
    """A whole pickle of a plain state dict."""
    return program(value(dict(items)))


def checkpoint(tag: Any, metadata: Any, items: Any) -> Code:
    """A whole pickle of a checkpoint with a TAG."""
    return program(value({"format": tag, "metadata": metadata, "state_dict": items}))


# --- zip --------------------------------------------------------------------------------------------------------------


@dataclass
class Record:
    """One zip entry. None means the truth, as torch writes it; anything else is written instead.

    Fields without a prefix are the central directory's; `local_*` are the local header's, `descriptor_*` the data
    descriptor's. `local=False` leaves out everything but the directory entry, and `offset` may name the record whose
    local header the entry points to.
    """

    data: bytes = b""
    name: bytes | None = None
    flags: int | None = None
    method: int = 0
    crc: int | None = None
    csize: int | None = None
    usize: int | None = None
    offset: int | str | None = None
    extra: bytes = b""
    comment: bytes = b""
    attributes: int = 0
    made_by: int = 0
    needed: int = 0
    disk: int = 0
    central: bool = True
    local: bool = True
    stored: bytes | None = None  # what lies in the file; `data` is what it would unpack to
    local_name: bytes | None = None
    local_flags: int | None = None
    local_method: int | None = None
    local_crc: int = 0
    local_csize: int = 0
    local_usize: int = 0
    local_extra: bytes | None = None
    descriptor: bytes | None = None
    descriptor_crc: int | None = None
    descriptor_csize: int | None = None
    descriptor_usize: int | None = None
    gap: bytes = b""  # bytes before the local header that belong to no record

    def body(self) -> bytes:
        return self.data if self.stored is None else self.stored


def _first(*candidates: Any) -> Any:
    return next(item for item in candidates if item is not None)


def zip64_extra(*numbers: int) -> bytes:
    """The zip64 extra field: the 64-bit values for those fields that hold a sentinel, in the format's order."""
    return struct.pack("<HH", 1, 8 * len(numbers)) + struct.pack(f"<{len(numbers)}Q", *numbers)


@dataclass
class _Zip:
    alignment: int
    out: bytearray = field(default_factory=bytearray)
    headers: dict[str, int] = field(default_factory=dict)

    def local(self, full: bytes, label: str, record: Record) -> None:
        self.out += record.gap
        self.headers.setdefault(label, len(self.out))
        body = record.body()
        flags = _first(record.local_flags, record.flags, 0x808 if body else 0x800)
        method = _first(record.local_method, record.method)
        name = _first(record.local_name, full)
        extra = self._padding(len(name)) if record.local_extra is None else record.local_extra
        sizes = (record.local_crc, record.local_csize, record.local_usize, len(name), len(extra))
        self.out += struct.pack("<4s5H3I2H", b"PK\3\4", record.needed, flags, method, 0, 0, *sizes)
        self.out += name + extra + body
        if body or record.descriptor is not None:
            self.out += self._descriptor(record)

    def _padding(self, name_length: int) -> bytes:
        length = -(len(self.out) + 30 + name_length + 4) % self.alignment
        return struct.pack("<2sH", b"FB", length) + b"Z" * length

    @staticmethod
    def _descriptor(record: Record) -> bytes:
        if record.descriptor is not None:
            return record.descriptor
        crc = _first(record.descriptor_crc, record.crc, zlib.crc32(record.data))
        csize = _first(record.descriptor_csize, record.csize, len(record.body()))
        usize = _first(record.descriptor_usize, record.usize, len(record.data))
        return struct.pack("<4s3I", b"PK\7\x08", crc, csize, usize)

    def entry(self, full: bytes, label: str, record: Record) -> bytes:
        name = _first(record.name, full)
        flags = _first(record.flags, 0x808 if record.body() else 0x800)
        crc = _first(record.crc, zlib.crc32(record.data))
        csize = _first(record.csize, len(record.body()))
        usize = _first(record.usize, len(record.data))
        offset = _first(record.offset, label)
        offset = self.headers[offset] if isinstance(offset, str) else offset
        fixed = (record.made_by, record.needed, flags, record.method, 0, 0, crc, csize, usize)
        lengths = (len(name), len(record.extra), len(record.comment), record.disk, 0)
        head = struct.pack("<4s6H3I5H2I", b"PK\1\2", *fixed, *lengths, record.attributes, offset)
        return head + name + record.extra + record.comment


def zip_file(
    records: Mapping[str, bytes | Record] | Iterable[tuple[str, bytes | Record]],
    *,
    prefix: str = "archive",
    alignment: int = 64,
    before: bytes = b"",
    between: bytes = b"",
    comment: bytes = b"",
    trailing: bytes = b"",
    zip64: bool = True,
    directory_order: Sequence[int] | None = None,
    shift: int = 0,
    eocd: Mapping[str, int] | None = None,
    eocd64: Mapping[str, int] | None = None,
    locator: Mapping[str, int] | None = None,
) -> bytes:
    """A zip as torch writes it: stored, aligned through the local extra field, data descriptors, both end records.

    `before` is put before the first record and `between` before the directory; `shift` is added to every offset that
    is written; `directory_order` lists the entries in another order; the last three replace fields of the end records.
    """
    pairs = list(records.items() if isinstance(records, Mapping) else records)
    made = [(name, item if isinstance(item, Record) else Record(item)) for name, item in pairs]
    full = [f"{prefix}/{name}".encode() if prefix else name.encode() for name, _ in made]
    archive = _Zip(alignment, bytearray(before))
    for path, (label, record) in zip(full, made, strict=True):
        if record.local:
            archive.local(path, label, record)
    archive.out += between
    start = len(archive.out)
    order = range(len(made)) if directory_order is None else directory_order
    chosen = [(full[i], *made[i]) for i in order if made[i][1].central]
    for path, label, record in chosen:
        entry = bytearray(archive.entry(path, label, record))
        if shift and not isinstance(record.offset, int):
            struct.pack_into("<I", entry, 42, struct.unpack_from("<I", entry, 42)[0] + shift)
        archive.out += entry
    truth = {"entries": len(chosen), "size": len(archive.out) - start, "offset": start + shift}
    if zip64:
        archive.out += _end_records64(len(archive.out) + shift, truth, eocd64 or {}, locator or {})
    archive.out += _end_record(truth | dict(eocd or {}), comment)
    return bytes(archive.out) + trailing


def _end_records64(at: int, truth: Mapping[str, int], eocd64: Mapping[str, int], locator: Mapping[str, int]) -> bytes:
    end = {"length": 44, "made": 0x31E, "needed": 45, "disk": 0, "directory_disk": 0} | truth | dict(eocd64)
    here = end.get("here", end["entries"])
    pointer = {"disk": 0, "offset": at, "disks": 1} | dict(locator)
    return struct.pack(
        "<4sQ2H2I4Q",
        b"PK\6\6",
        *(end[key] for key in ("length", "made", "needed", "disk", "directory_disk")),
        here,
        *(end[key] for key in ("entries", "size", "offset")),
    ) + struct.pack("<4sIQI", b"PK\6\7", pointer["disk"], pointer["offset"], pointer["disks"])


def _end_record(end: Mapping[str, int], comment: bytes) -> bytes:
    here, total = end.get("here", end["entries"]), end["entries"]
    disks = (end.get("disk", 0), end.get("directory_disk", 0))
    counts = (min(here, 0xFFFF), min(total, 0xFFFF))
    length = end.get("comment", len(comment))
    return struct.pack("<4s4H2IH", b"PK\5\6", *disks, *counts, end["size"], end["offset"], length) + comment


def torch_records(pickle: bytes, storages: Mapping[str, bytes | Record]) -> dict[str, bytes | Record]:
    """The records of torch.save in torch's order; replace, add or delete entries to lie."""
    return {
        "data.pkl": pickle,
        ".format_version": b"1",
        ".storage_alignment": b"64",
        "byteorder": b"little",
        **{f"data/{key}": data for key, data in storages.items()},
        "version": b"3\n",
        ".data/serialization_id": b"0197786035336920144308557059488058202784",
    }


FOUR = struct.pack("<4f", 1.0, 2.0, 3.0, 4.0)


def torch_file(
    pickle: bytes,
    storages: Mapping[str, bytes | Record] | None = None,
    *,
    change: Mapping[str, bytes | Record | None] | None = None,
    **options: Any,
) -> bytes:
    """A torch zip around a pickle; `change` replaces or adds records, and drops those that it gives as None."""
    records = torch_records(pickle, {"0": FOUR} if storages is None else storages)
    for name, record in (change or {}).items():
        if record is None:
            records.pop(name, None)
        else:
            records[name] = record
    return zip_file(records, **options)


# --- the other containers ---------------------------------------------------------------------------------------------

MAGIC = program(LONG1(0x1950A86A20F9469CFC6C))
PROTOCOL = program(integer(1001))
SYS_INFO = {"protocol_version": 1001, "little_endian": True, "type_sizes": {"short": 2, "int": 4, "long": 4}}


def legacy_storage(key: Any, kind: str, numel: Any, *, view: Any = None, location: Any = "cpu") -> Code:
    """A storage reference of the stream before torch 1.6: six items."""
    return asm(value(("storage", GLOBAL("torch", kind), key, location, numel, view)), BINPERSID)


def legacy_file(
    pickle: bytes,
    storages: Sequence[tuple[str, int, bytes]] = (("0", 4, FOUR),),
    *,
    magic: bytes = MAGIC,
    protocol: bytes = PROTOCOL,
    sys_info: bytes | None = None,
    keys: Any = None,
    trailing: bytes = b"",
) -> bytes:
    """The stream before torch 1.6: five pickles, then each storage as its element count and its bytes."""
    listed = program(value([key for key, _, _ in storages] if keys is None else keys))
    info = program(value(SYS_INFO)) if sys_info is None else sys_info
    bodies = b"".join(struct.pack("<q", numel) + data for _, numel, data in storages)
    return magic + protocol + info + pickle + listed + bodies + trailing


def safetensors_file(header: Mapping[str, Any] | bytes, data: bytes = b"", *, length: int | None = None) -> bytes:
    """A safetensors file from a header (JSON, or raw bytes) and the data section; `length` lies about the header's."""
    raw = header if isinstance(header, bytes) else json.dumps(header, separators=(",", ":")).encode()
    if not isinstance(header, bytes):
        raw += b" " * (-len(raw) % 8)
    return struct.pack("<Q", len(raw) if length is None else length) + raw + data
