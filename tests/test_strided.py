"""Views of every kind against ten naive lines: gathering, the verifier's own way back, and whole conversions."""

from __future__ import annotations

import math
import tempfile
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import assemble as a
import depickle
import outside
from depickle import compare
from depickle.dtypes import BY_NAME
from depickle.outputs.files import steps_of
from depickle.ranges import ByteRange, FileSource
from depickle.rules import apply
from depickle.strided import Strided, blocks, dims
from depickle.tensors import TensorView, contiguous
from depickle.weights import Part, plain

pytestmark = pytest.mark.property
PREFIX = 3  # bytes before the storage: nothing may depend on alignment
RELAXED = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def naive(storage: bytes, itemsize: int, shape: tuple[int, ...], stride: tuple[int, ...], offset: int) -> bytes:
    """The reference: every element by itself, in row-major order."""
    made = bytearray()
    for index in product(*map(range, shape)):
        at = (offset + sum(i * step for i, step in zip(index, stride, strict=True))) * itemsize
        made += storage[at : at + itemsize]
    return bytes(made)


class Memory:
    """A source in memory that remembers the largest read."""

    name = "memory"

    def __init__(self, data: bytes) -> None:
        self.data, self.length, self.largest = data, len(data), 0

    def read(self, offset: int, length: int) -> bytes:
        """Exactly the bytes asked for, which have to be there."""
        assert 0 <= offset <= offset + length <= self.length
        self.largest = max(self.largest, length)
        return self.data[offset : offset + length]

    def readinto(self, offset: int, buffer: memoryview) -> None:
        """The same, into a buffer."""
        buffer[:] = self.read(offset, len(buffer))


@dataclass(frozen=True)
class Geometry:
    """A view that fits its storage, and the storage."""

    itemsize: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    storage: bytes

    @property
    def wanted(self) -> bytes:
        """What the view shows."""
        return naive(self.storage, self.itemsize, self.shape, self.stride, self.offset)

    @property
    def view(self) -> Strided:
        """The view over a storage that does not begin at the file's first byte."""
        return Strided(ByteRange(PREFIX, len(self.storage)), self.itemsize, self.shape, self.stride, self.offset)

    @property
    def file(self) -> bytes:
        """The storage in a file."""
        return b"\xee" * PREFIX + self.storage


@st.composite
def geometries(draw: st.DrawFn, itemsizes: tuple[int, ...] = (1, 2, 4, 8), sides: int = 6) -> Geometry:
    """Shapes of up to four dimensions, empty ones too, with any strides: overlapping, expanded, permuted, far apart."""
    itemsize = draw(st.sampled_from(itemsizes))
    shape = tuple(draw(st.lists(st.integers(0, sides), max_size=4)))
    kinds = st.one_of(st.integers(0, 9), st.sampled_from([0, 1, 40]))
    stride = tuple(draw(kinds) for _ in shape)
    if draw(st.booleans()):  # a permuted contiguous tensor, the usual case
        order = draw(st.permutations(range(len(shape))))
        steps = a.row_major([shape[i] for i in order])
        stride = tuple(steps[order.index(i)] for i in range(len(shape)))
    offset = draw(st.integers(0, 5))
    last = offset + sum((size - 1) * step for size, step in zip(shape, stride, strict=True)) if math.prod(shape) else 0
    length = (last + 1 + draw(st.integers(0, 3))) * itemsize
    storage = draw(st.randoms(use_true_random=False)).randbytes(length)
    return Geometry(itemsize, shape, stride, offset, storage)


# --- gathering ------------------------------------------------------------------------------------------------------


@given(geometries(), st.integers(1, 200))
def test_blocks_are_what_the_naive_gather_gives(geometry: Geometry, limit: int) -> None:
    """The blocks joined are the view's elements in order; each is whole elements within the limit, and none is
    empty."""
    source = Memory(geometry.file)
    made = [bytes(block) for block in blocks(geometry.view, source, limit)]
    assert b"".join(made) == geometry.wanted
    assert all(
        0 < len(block) <= max(limit, geometry.itemsize) and len(block) % geometry.itemsize == 0 for block in made
    )
    assert geometry.view.length == len(geometry.wanted)


@given(geometries(sides=12), st.integers(8, 64))
def test_gathering_holds_little_at_once(geometry: Geometry, limit: int) -> None:
    """No single read is much larger than the limit, however far apart the elements lie: memory is bounded by the
    tile."""
    source = Memory(geometry.file)
    for _ in blocks(geometry.view, source, limit):
        pass
    assert source.largest <= 8 * limit


@given(geometries())
def test_merged_dimensions_show_the_same_elements(geometry: Geometry) -> None:
    """Dropping ones and merging neighbours that step alike changes no element."""
    assume(math.prod(geometry.shape))
    merged = dims(geometry.view)
    shape, stride = tuple(size for size, _ in merged), tuple(step for _, step in merged)
    assert naive(geometry.storage, geometry.itemsize, shape, stride, geometry.offset) == geometry.wanted
    assert 1 not in shape


# --- the rules and their way back -----------------------------------------------------------------------------------

DTYPES = ("float32", "bfloat16", "float64", "complex64", "float16", "int16", "uint8")


def resolved(data: bytes, dtype: str, *, swapped: bool, conj: bool, neg: bool) -> bytes:
    """The reference for byte order and the lazy bits, a component at a time."""
    width = BY_NAME[dtype].component
    made = bytearray()
    for i in range(0, len(data), width):
        component = bytearray(reversed(data[i : i + width]) if swapped else data[i : i + width])
        if neg:
            component[-1] ^= 0x80
        if conj and (i // width) % 2:
            component[-1] ^= 0x80
        made += component
    return bytes(made)


@st.composite
def views(draw: st.DrawFn) -> tuple[TensorView, bytes, bytes]:
    """A view with byte order and lazy bits, the file it lies in, and what it shows."""
    dtype = draw(st.sampled_from(DTYPES))
    geometry = draw(geometries(itemsizes=(BY_NAME[dtype].itemsize,)))
    swapped = draw(st.booleans()) and BY_NAME[dtype].component > 1
    conj = draw(st.booleans()) and dtype == "complex64"
    neg = draw(st.booleans()) and dtype not in ("int16", "uint8")
    storage = ByteRange(PREFIX, len(geometry.storage))
    view = TensorView(BY_NAME[dtype], geometry.shape, geometry.stride, geometry.offset, storage, swapped, conj, neg)
    return view, geometry.file, resolved(geometry.wanted, dtype, swapped=swapped, conj=conj, neg=neg)


@given(views(), st.integers(8, 100))
def test_rules_resolve_byte_order_and_lazy_bits(made: tuple[TensorView, bytes, bytes], limit: int) -> None:
    """Gathered blocks run through the steps that the planner gives them are what torch shows."""
    view, file, wanted = made
    gathered = blocks(view.strided, Memory(file), limit)
    assert b"".join(bytes(apply(steps_of(view), block)) for block in gathered) == wanted


def compared(view: TensorView, file: bytes, output: bytes, tile: int, rule: str = "copy") -> list[str]:
    """The verifier's findings about an output that should hold a view, with small tiles."""
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        patch.setattr(compare, "TILE", tile)
        patch.setattr(compare, "BLOCK", 8 * (tile // 8 + 1))
        (Path(folder) / "a").write_bytes(file)
        (Path(folder) / "b").write_bytes(b"\xdd" * 5 + output + b"\xcc")
        mine = replace(plain(view), rule=rule)
        theirs: Part = plain(contiguous(view.dtype, view.shape, ByteRange(5, len(output))))
        with FileSource(Path(folder) / "a") as source, FileSource(Path(folder) / "b") as made:
            return compare.Comparer(source, made).findings([("w", mine, theirs)])


@RELAXED
@given(views(), st.integers(8, 100))
def test_comparison_accepts_what_the_view_shows(made: tuple[TensorView, bytes, bytes], tile: int) -> None:
    """The verifier, by its own inverse rules, finds nothing in an output with the view's elements."""
    view, file, wanted = made
    assert compared(view, file, wanted, tile) == []


@RELAXED
@given(views(), st.integers(8, 100), st.data())
def test_comparison_sees_any_flipped_bit(made: tuple[TensorView, bytes, bytes], tile: int, data: st.DataObject) -> None:
    """One bit turned anywhere in the output is found, at the element that differs or before it in the same run."""
    view, file, wanted = made
    assume(wanted)
    at = data.draw(st.integers(0, len(wanted) - 1))
    bit = 1 << data.draw(st.integers(0, 7))
    bad = wanted[:at] + bytes([wanted[at] ^ bit]) + wanted[at + 1 :]
    (finding,) = compared(view, file, bad, tile)
    assert finding.startswith("w: differs at byte ")
    assert int(finding.split()[4]) // view.dtype.itemsize <= at // view.dtype.itemsize


@RELAXED
@given(geometries(itemsizes=(1,)), st.integers(8, 64))
def test_nibbles_are_turned_back(geometry: Geometry, tile: int) -> None:
    """fp4 of torchao up to 0.14.1, in any view: its bytes with the halves exchanged pass, and as they are do not."""
    storage = ByteRange(PREFIX, len(geometry.storage))
    view = TensorView(BY_NAME["uint8"], geometry.shape, geometry.stride, geometry.offset, storage)
    turned = bytes((byte >> 4) | ((byte & 15) << 4) for byte in geometry.wanted)
    assert compared(view, geometry.file, turned, tile, "nibble-swap") == []
    assert (turned == geometry.wanted) == (compared(view, geometry.file, geometry.wanted, tile, "nibble-swap") == [])


@pytest.mark.parametrize("side", ["source", "output"])
def test_zero_cast_is_checked_on_both_sides(side: str) -> None:
    """A cast zero point has nothing but zeros before and after."""
    view = TensorView(BY_NAME["int64"], (6,), (1,), 0, ByteRange(PREFIX, 48))
    file, output = b"\xee" * PREFIX + bytes(48), bytes(6)
    part = plain(view)
    assert compared_cast(part, file, output) == []
    if side == "source":
        file = file[:-1] + b"\1"
    else:
        output = output[:-1] + b"\1"
    assert len(compared_cast(part, file, output)) == 1


def compared_cast(part: Part, file: bytes, output: bytes) -> list[str]:
    """The findings about a zero point that was cast to int8."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "a").write_bytes(file)
        (Path(folder) / "b").write_bytes(output)
        mine = replace(part, dtype=BY_NAME["int8"], rule="zero-to-int8")
        theirs = plain(contiguous(BY_NAME["int8"], part.shape, ByteRange(0, len(output))))
        with FileSource(Path(folder) / "a") as source, FileSource(Path(folder) / "b") as made:
            return compare.Comparer(source, made).findings([("w", mine, theirs)])


@RELAXED
@given(geometries(sides=10), st.integers(16, 64))
def test_comparison_holds_little_at_once(geometry: Geometry, tile: int) -> None:
    """The verifier's reads are bounded by its tile too, whatever the view."""
    name = {1: "uint8", 2: "int16", 4: "int32", 8: "int64"}[geometry.itemsize]
    view = TensorView(
        BY_NAME[name], geometry.shape, geometry.stride, geometry.offset, ByteRange(PREFIX, len(geometry.storage))
    )
    assume(not view.contiguous)
    source, output = Memory(geometry.file), Memory(geometry.wanted)
    theirs = plain(contiguous(view.dtype, view.shape, ByteRange(0, len(geometry.wanted))))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compare, "TILE", tile)
        judge = compare.Comparer(source, output)  # type: ignore[arg-type]
        assert judge.findings([("w", plain(view), theirs)]) == []
    assert source.largest <= 8 * tile


# --- whole conversions ----------------------------------------------------------------------------------------------

KINDS = {
    "FloatStorage": "float32",
    "DoubleStorage": "float64",
    "ComplexFloatStorage": "complex64",
    "BFloat16Storage": "bfloat16",
}


@st.composite
def files(draw: st.DrawFn) -> tuple[bytes, dict[str, bytes]]:
    """A torch file with a few views over one storage in either byte order, and what each of them shows."""
    kind = draw(st.sampled_from(sorted(KINDS)))
    dtype = BY_NAME[KINDS[kind]]
    big = draw(st.booleans())
    made = draw(st.lists(geometries(itemsizes=(dtype.itemsize,)), min_size=1, max_size=3))
    storage = max((geometry.storage for geometry in made), key=len)
    items: dict[str, Any] = {}
    shown = {}
    for i, geometry in enumerate(made):
        bits = {"conj": True} if draw(st.booleans()) and kind == "ComplexFloatStorage" else {}
        bits |= {"neg": True} if draw(st.booleans()) else {}
        shape, stride, offset = geometry.shape, geometry.stride, geometry.offset
        numel = len(storage) // dtype.itemsize
        items[f"m.{i}"] = a.tensor("0", kind, numel, shape, stride, offset, extra=(bits,) if bits else ())
        data = naive(storage, dtype.itemsize, shape, stride, offset)
        shown[f"m.{i}"] = resolved(data, dtype.name, swapped=big, conj="conj" in bits, neg="neg" in bits)
    change = {"byteorder": b"big" if big else b"little"}
    return a.torch_file(a.state_dict(items), {"0": storage}, change=change), shown


@settings(deadline=None, max_examples=60)
@given(files())
def test_conversion_of_views_is_what_torch_shows(made: tuple[bytes, dict[str, bytes]]) -> None:
    """Views of one storage, big or little endian, with lazy bits: the output, read from outside, has the elements that
    torch shows."""
    data, shown = made
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "m.pt"
        path.write_bytes(data)
        record = depickle.convert(path, Path(folder) / "out")
        found = outside.read(Path(record.dst)).tensors
    assert {name: tensor.data for name, tensor in found.items()} == shown


def test_expansion_over_the_limit_is_refused(tmp_path: Path) -> None:
    """A view of stride 0 that is larger than its storage and over the limit is a bomb; a small one is converted."""
    path = tmp_path / "m.pt"
    for side, fits in ((1024, True), (2**20, False)):
        path.write_bytes(a.torch_file(a.state_dict({"m.w": a.tensor("0", "FloatStorage", 4, (side, 2**5), (0, 0))})))
        if fits:
            assert depickle.convert(path, tmp_path / "out").dst_bytes > side * 2**5 * 4
        else:
            with pytest.raises(depickle.Refused, match=r"m\.w: expands 16 bytes"):
                depickle.convert(path, tmp_path / "out", overwrite=True)


@pytest.mark.parametrize(
    ("shape", "stride", "offset", "message"),
    [
        ((5,), (1,), 0, "needs 20 bytes of its storage, which has 16"),
        ((2, 2), (1, 3), 0, "needs 20 bytes"),
        ((1,), (1,), 4, "needs 20 bytes"),
        ((2,), (-1,), 1, "make no view"),
        ((-1,), (1,), 0, "make no view"),
        ((2,), (1, 1), 0, "make no view"),
        ((2,), (1,), -1, "make no view"),
        ((2**62, 4), (0, 0), 0, "more elements than torch can count"),
        ((0, 2**70), (0, 0), 0, "more elements than torch can count"),
    ],
)
def test_view_outside_its_storage_is_malformed(
    shape: Any, stride: Any, offset: int, message: str, tmp_path: Path
) -> None:
    """A view whose farthest element lies outside its storage cannot be made, and the error names the weight."""
    path = tmp_path / "m.pt"
    path.write_bytes(a.torch_file(a.state_dict({"m.w": a.tensor("0", "FloatStorage", 4, shape, stride, offset)})))
    with pytest.raises(depickle.Malformed, match=rf"m\.w: .*{message}"):
        depickle.convert(path, tmp_path / "out")
