"""Inert calls become tensor views: which bytes of which storage, under which shape and stride.

In: the values that the machine built for `torch._utils._rebuild_tensor_v2` and its kin, and the archive's storages.
Out: `TensorView`s, each of which has proved on construction that its farthest element lies inside its storage.
Forms as torch 2.13 writes them (`torch/_tensor.py` `_reduce_ex_internal`, `torch/_utils.py`); what it can save and
safetensors cannot hold (sparse, nested, meta, quantised by torch itself) is refused by what it is. No byte of
tensor data is read here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from .dtypes import BY_NAME, BY_STORAGE, MAX_RANK, DType
from .errors import Malformed, Refused
from .inert import Call, Global, Inert, PersistentId
from .ranges import ByteRange
from .strided import Strided

# torch counts elements in int64
_MAX_NUMEL: Final = 2**63 - 1
_DEPTH: Final = 4  # a Parameter with attributes around a tensor; real ones nest two

_OTHER_TENSORS: Final = {
    "_rebuild_sparse_tensor": "a sparse tensor: convert it with .to_dense() before saving",
    "_rebuild_sparse_csr_tensor": "a sparse tensor: convert it with .to_dense() before saving",
    "_rebuild_nested_tensor": "a nested tensor: save its parts as tensors of their own",
    "_rebuild_meta_tensor_no_storage": "a meta tensor, it has no data: save the real weights",
    "_rebuild_qtensor": "quantised by torch.ao (qint8, ...), which safetensors cannot hold: save its int_repr(), scale and zero point",
    "_rebuild_device_tensor_from_numpy": "a device tensor saved as a numpy array: move it to the CPU before saving",
    "_rebuild_device_tensor_from_cpu_tensor": "a device tensor saved through another: move it to the CPU before saving",
    "_rebuild_xla_tensor": "an XLA tensor: move it to the CPU before saving",
}
OTHER_TENSORS: Final = frozenset(f"torch._utils.{name}" for name in _OTHER_TENSORS)
REBUILD: Final = frozenset(
    {
        "torch._utils._rebuild_tensor",
        "torch._utils._rebuild_tensor_v2",
        "torch._utils._rebuild_tensor_v3",
        "torch._utils._rebuild_parameter",
        "torch._utils._rebuild_parameter_with_state",
        "torch._tensor._rebuild_from_type",
        "torch._tensor._rebuild_from_type_v2",
    }
)
_PLAIN_TYPES: Final = frozenset({"torch.Tensor", "torch.nn.parameter.Parameter", "torch.nn.parameter.Buffer"})
STORAGE_CLASSES: Final = frozenset(
    {f"torch.{name}" for name in BY_STORAGE} | {"torch.storage.UntypedStorage", "torch.UntypedStorage"}
)


@dataclass(frozen=True, slots=True)
class TensorView:
    """A strided view of a storage.

    `shape` and `stride` count elements, `offset` elements from the start of `storage`, which is a range of bytes of
    the file. `swapped`: the storage is big endian. `conj`, `neg`: torch's lazy bits, to be resolved while reading.
    """

    dtype: DType
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    storage: ByteRange
    swapped: bool = False
    conj: bool = False
    neg: bool = False

    def __post_init__(self) -> None:
        numel, last, largest = 1, self.offset, 0
        sound = len(self.shape) == len(self.stride) and self.offset >= 0
        for size, step in zip(self.shape, self.stride):
            sound = sound and size >= 0 and step >= 0
            largest = max(largest, size)
            numel *= size
            last += (size - 1) * step
        if not sound:
            raise Malformed(f"shape {self.shape}, stride {self.stride} and offset {self.offset} make no view")
        if max(numel, largest) > _MAX_NUMEL:
            raise Malformed(f"shape {self.shape} has more elements than torch can count")
        if numel and (last + 1) * self.dtype.itemsize > self.storage.length:
            raise Malformed(
                f"needs {(last + 1) * self.dtype.itemsize} bytes of its storage, which has {self.storage.length}"
            )

    @property
    def numel(self) -> int:
        """How many elements the view shows."""
        numel = 1
        for size in self.shape:
            numel *= size
        return numel

    @property
    def nbytes(self) -> int:
        """Bytes of the view when laid out contiguously."""
        return self.numel * self.dtype.itemsize

    @property
    def contiguous(self) -> bool:
        """Whether the elements lie in the storage one after the other in row-major order."""
        step = 1
        for size, stride in zip(reversed(self.shape), reversed(self.stride)):
            if size != 1 and stride != step:
                return self.numel == 0
            step *= size
        return True

    @property
    def strided(self) -> Strided:
        """The geometry alone."""
        return Strided(self.storage, self.dtype.itemsize, self.shape, self.stride, self.offset)

    @property
    def range(self) -> ByteRange:
        """The bytes of a contiguous view."""
        return ByteRange(self.storage.offset + self.offset * self.dtype.itemsize, self.nbytes, self.storage.source)


def contiguous(dtype: DType, shape: tuple[int, ...], where: ByteRange) -> TensorView:
    """The row-major view of a range that holds just this tensor."""
    stride: list[int] = []
    step = 1
    for size in reversed(shape):
        stride.insert(0, step)
        step *= max(size, 1)
    return TensorView(dtype, shape, tuple(stride), 0, where)


@dataclass(frozen=True, slots=True)
class Storages:
    """The storages of an archive by torch's key, with the class that each was declared under (filled on first use)."""

    ranges: Mapping[str, ByteRange]
    big_endian: bool
    declared: dict[str, str]


def is_tensor(value: Inert) -> bool:
    """Whether a value is a call that rebuilds some tensor or tensor subclass."""
    if type(value) is not Call or type(value.func) is not Global:
        return False
    name = value.func.full
    return name in REBUILD or name in OTHER_TENSORS


def read_tensor(value: Inert, storages: Storages, notes: list[str], depth: int = 0) -> TensorView:
    """Read a plain tensor or Parameter. Attributes that Python hung on it go into `notes`, since no container carries
    them."""
    name, args = call_of(value, "a tensor")
    if depth > _DEPTH:
        raise Refused(f"wraps a tensor more than {_DEPTH} times")
    if name in ("torch._utils._rebuild_tensor_v2", "torch._utils._rebuild_tensor_v3", "torch._utils._rebuild_tensor"):
        return _strided(name, args, storages)
    if name in ("torch._utils._rebuild_parameter", "torch._utils._rebuild_parameter_with_state"):
        if len(args) != (4 if name.endswith("_with_state") else 3):
            raise Malformed(f"{name} has {len(args)} arguments")
        _check_hooks(args[2])
        if name.endswith("_with_state"):
            _note_state(args[3], notes)
        return read_tensor(args[0], storages, notes, depth + 1)
    if name in ("torch._tensor._rebuild_from_type_v2", "torch._tensor._rebuild_from_type"):
        return _from_type(args, storages, notes, depth)
    short = name.rpartition(".")[2]
    raise Refused(f"is {_OTHER_TENSORS[short]}" if short in _OTHER_TENSORS else f"{name}(...) is not a tensor")


def call_of(value: Inert, wanted: str) -> tuple[str, tuple[Inert, ...]]:
    """Return the full name and the arguments of a bare REDUCE call, or refuse the value as not being `wanted`."""
    if type(value) is not Call:
        raise Refused(f"is {describe(value)}, not {wanted}")
    if type(value.func) is not Global or value.kind != "reduce" or value.states or value.items or value.entries:
        raise Refused(f"is {describe(value)}, not {wanted}")
    return value.func.full, value.args


def describe(value: Inert) -> str:
    """Say what an inert value is, in the words of whoever saved it."""
    if type(value) is Call:
        return f"{value.func!r}(...)" if type(value.func) is Global else "a call of a computed value"
    if type(value) is Global:
        return f"the global {value!r}"
    if type(value) is PersistentId:
        pid = value.pid
        named = type(pid) is tuple and len(pid) > 1 and type(pid[1]) is Global
        return f"a bare storage ({pid[1]!r}): save tensors, not storages" if named else "a persistent id"
    return {"NoneType": "None", "dict": "a dict", "list": "a list", "tuple": "a tuple"}.get(
        type(value).__name__, f"a value of type {type(value).__name__}"
    )


def integers(value: Inert, what: str) -> tuple[int, ...]:
    """Read a tuple of integers, or torch.Size of one."""
    if type(value) is Call and value.name == "torch.Size" and len(value.args) == 1:
        value = value.args[0]
    if type(value) not in (tuple, list) or not all(type(item) is int for item in value):
        raise Malformed(f"{what} is not a tuple of integers")
    if len(value) > MAX_RANK:
        raise Malformed(f"{what} has {len(value)} dimensions, torch has {MAX_RANK} at the most")
    return tuple(value)


def dtype_of(value: Inert) -> DType:
    """Read a global such as torch.bfloat16 as a row of the dtype table."""
    if type(value) is Global and value.module == "torch" and value.name in BY_NAME:
        return BY_NAME[value.name]
    raise Refused(f"{describe(value)} is not a dtype that depickle knows")


def _strided(name: str, args: tuple[Inert, ...], storages: Storages) -> TensorView:
    version3 = name.endswith("_v3")
    if (
        not (4 if name.endswith("_tensor") else 6 + version3)
        <= len(args)
        <= (4 if name.endswith("_tensor") else 7 + version3)
    ):
        raise Malformed(f"{name} has {len(args)} arguments")
    storage, dtype = _storage(args[0], storages)
    if len(args) > 5:
        _check_hooks(args[5])
    if version3:
        dtype = dtype_of(args[6])
    if dtype is None:
        raise Malformed(f"{name} over an untyped storage has no dtype")
    bits = args[6 + version3] if len(args) > 6 + version3 else None
    if bits is not None and (type(bits) is not dict or not set(bits) <= {"conj", "neg"}):
        raise Refused(f"has tensor metadata {describe(bits)} that depickle does not know")
    if type(args[1]) is not int:
        raise Malformed("a storage offset is not an integer")
    return TensorView(
        dtype,
        integers(args[2], "a shape"),
        integers(args[3], "a stride"),
        args[1],
        storage,
        swapped=storages.big_endian and dtype.component > 1,
        conj=bool(bits and bits.get("conj") is True),
        neg=bool(bits and bits.get("neg") is True),
    )


def check_persistent_id(value: PersistentId) -> None:
    """Raise unless a persistent id, used or thrown away, is one of a storage."""
    pid = value.pid
    if (
        type(pid) is not tuple
        or len(pid) not in (5, 6)
        or pid[0] != "storage"
        or (len(pid) == 6 and pid[5] is not None)
    ):
        raise Malformed("a persistent id is not ('storage', class, key, location, count)", offset=value.offset)
    _, cls, key, location, count = pid[:5]
    if type(cls) is not Global or type(key) is not str or type(location) is not str or type(count) is not int:
        raise Malformed("a persistent id's parts are not a class, two texts and a number", offset=value.offset)
    if cls.full not in STORAGE_CLASSES:
        raise Refused(f"storage class {cls.full} is not accepted", offset=cls.offset)


def _storage(value: Inert, storages: Storages) -> tuple[ByteRange, DType | None]:
    """Find a storage's bytes; its dtype too, where its class says it."""
    if type(value) is not PersistentId:
        raise Malformed(f"a tensor's storage is {describe(value)}, expected a persistent id")
    check_persistent_id(value)
    _, cls, key, _, count = value.pid[:5]
    if key not in storages.ranges:
        raise Malformed(f"storage {key!r} is not in the file", offset=value.offset)
    if storages.declared.setdefault(key, cls.name) != cls.name:
        raise Malformed(
            f"storage {key!r} is declared as {storages.declared[key]} and as {cls.name}", offset=value.offset
        )
    dtype = BY_STORAGE.get(cls.name)
    found = storages.ranges[key]
    if count * (dtype.itemsize if dtype else 1) != found.length:
        raise Malformed(
            f"storage {key!r} is declared with {count} elements of {cls.name}, its record has {found.length} bytes",
            offset=value.offset,
        )
    return found, dtype


def _from_type(args: tuple[Inert, ...], storages: Storages, notes: list[str], depth: int) -> TensorView:
    """`_rebuild_from_type_v2(func, type, args, state)` for types that are plain tensors but carry Python attributes."""
    if len(args) != 4 or type(args[0]) is not Global or type(args[1]) is not Global or type(args[2]) is not tuple:
        raise Malformed("_rebuild_from_type_v2 has the wrong arguments")
    if args[1].full not in _PLAIN_TYPES:
        raise Refused(f"class {args[1]!r} has no schema")
    _note_state(args[3], notes)
    return read_tensor(Call("reduce", args[0], args[2], args[0].offset), storages, notes, depth + 1)


def _note_state(state: Inert, notes: list[str]) -> None:
    if type(state) is tuple and len(state) == 2:  # (__dict__, slots)
        state = {**(state[0] or {}), **(state[1] or {})} if all(type(s) in (dict, type(None)) for s in state) else state
    if type(state) is not dict:
        raise Malformed("a tensor's state is not a dict")
    notes.extend(f"attribute {key!r} is not carried" for key in state)


def _check_hooks(value: Inert) -> None:
    """Backward hooks: an empty OrderedDict in every file that torch writes; anything else would be code to call."""
    if value is None or (
        type(value) is Call
        and value.name == "collections.OrderedDict"
        and value.args in ((), ([],))
        and not (value.states or value.items or value.entries)
    ):
        return
    raise Refused(f"has backward hooks ({describe(value)}), which are code")
