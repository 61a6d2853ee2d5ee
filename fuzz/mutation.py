"""Mutations of bytes, without a guide: what atheris does better, for where it is not."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Sequence

_OPCODES = b"(.0123456789FGIJKLMNPQRSTUVXabcdeghijlopqrstu})]\x80\x81\x82\x83\x84\x85\x86\x87\x88\x89\x8a\x8b\x8c\x8d\x8e\x8f\x90\x91\x92\x93\x94\x95\x96\x97\x98"
_NUMBERS = (
    0,
    1,
    2,
    7,
    8,
    64,
    127,
    128,
    255,
    256,
    1000,
    4096,
    65535,
    65536,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**32,
    2**63 - 1,
    2**63,
    2**64 - 1,
)
_TOKENS = (
    *(
        b"cos\nsystem\n",
        b"cbuiltins\ngetattr\n",
        b"ctorch\nFloatStorage\n",
        b"ctorch._utils\n_rebuild_tensor_v2\n",
        b"\x80\x02",
        b"R",
        b"\x85R",
    ),
    *(
        b"X\x07\0\0\0storageq",
        b"ccollections\nOrderedDict\n",
        b"PK\3\4",
        b"PK\1\2",
        b"PK\5\6",
        b"PK\6\6",
        b"PK\6\7",
        b"PK\7\x08",
        b"data.pkl",
    ),
    *(
        b"\xff\xff\xff\xff",
        b"\xff" * 8,
        b"__metadata__",
        b'"dtype"',
        b'"shape":[',
        b'"data_offsets":[0,0]',
        b"null",
        b"1e999",
        b"[" * 200,
    ),
    *(
        b"{" * 50,
        b'"\\ud800"',
        b"\xed\xa0\x80",
        b"-1",
        b"true",
        b"tensor_names",
        b"unsloth_format",
        b"depickle_ties",
        b'"_type"',
        b'"_data"',
    ),
)


class Mutator:
    """Takes a seed through a few changes."""

    def __init__(self, seeds: Sequence[bytes], seed: int) -> None:
        self._seeds = list(seeds)
        self._random = random.Random(seed)
        self._kinds: tuple[Callable[[bytearray], None], ...] = (
            self._flip, self._byte, self._opcode, self._number, self._token, self._cut, self._repeat, self._move, self._splice, self._digits,
        )  # fmt: skip

    def next(self) -> bytes:
        """The next case."""
        data = bytearray(self._random.choice(self._seeds))
        for _ in range(self._random.choice((1, 1, 1, 2, 2, 3, 5, 10))):
            if data:
                self._random.choice(self._kinds)(data)
        return bytes(data[: 256 * 1024])

    def keep(self, data: bytes) -> None:
        """A case that went further than others becomes a seed."""
        if len(self._seeds) < 5000:
            self._seeds.append(data)

    def _at(self, data: bytearray) -> int:
        return self._random.randrange(len(data))

    def _span(self, data: bytearray) -> tuple[int, int]:
        at = self._at(data)
        return at, min(len(data), at + self._random.choice((1, 1, 2, 4, 8, 16, 64, 512, 4096)))

    def _flip(self, data: bytearray) -> None:
        data[self._at(data)] ^= 1 << self._random.randrange(8)

    def _byte(self, data: bytearray) -> None:
        data[self._at(data)] = self._random.randrange(256)

    def _opcode(self, data: bytearray) -> None:
        data[self._at(data)] = self._random.choice(_OPCODES)

    def _number(self, data: bytearray) -> None:
        form = self._random.choice(("<B", "<H", "<I", "<Q", ">I", ">d"))
        number = self._random.choice(_NUMBERS)
        raw = (
            struct.pack(form, float(number))
            if form == ">d"
            else struct.pack(form, number % (1 << (8 * struct.calcsize(form))))
        )
        at = self._at(data)
        data[at : at + len(raw)] = raw

    def _token(self, data: bytearray) -> None:
        at = self._at(data)
        token = self._random.choice(_TOKENS)
        data[at : at + self._random.choice((0, len(token)))] = token

    def _cut(self, data: bytearray) -> None:
        start, end = self._span(data)
        del data[start : len(data) if self._random.random() < 0.1 else end]

    def _repeat(self, data: bytearray) -> None:
        start, end = self._span(data)
        data[start:start] = data[start:end] * self._random.choice((1, 1, 2, 10, 200))

    def _move(self, data: bytearray) -> None:
        start, end = self._span(data)
        piece = data[start:end]
        del data[start:end]
        at = self._random.randrange(len(data) + 1)
        data[at:at] = piece

    def _splice(self, data: bytearray) -> None:
        other = self._random.choice(self._seeds)
        if other:
            start = self._random.randrange(len(other))
            at = self._at(data)
            data[at : at + self._random.choice((0, 16))] = other[
                start : start + self._random.choice((4, 16, 64, 1024, len(other)))
            ]

    def _digits(self, data: bytearray) -> None:
        """A number in text becomes another: JSON, and the pickles of protocol 0."""
        places = [i for i, byte in enumerate(data[:20000]) if 48 <= byte <= 57]
        if places:
            at = self._random.choice(places)
            end = at
            while end < len(data) and 48 <= data[end] <= 57:
                end += 1
            data[at:end] = str(self._random.choice((*_NUMBERS, -1, 10**30))).encode()
