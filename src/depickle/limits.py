"""What one file may ask of depickle: one frozen value, each number with its reason."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Limits:
    """What one pickle may ask for; a file that asks for more is refused before it gets it."""

    # 100,000 quantised weights take about 20 million opcodes, and are more than any model known.
    opcodes: int = 24_000_000
    # The pickler nests one mark a level of structure; Python's own recursion limit stops it near 1,000.
    marks: int = 1_000
    # The pickler batches by 1,000 items; only one huge tuple could need more.
    stack: int = 2_000_000
    # Opcodes are at least one byte; long names make it four or five on the average.
    pickle_bytes: int = 256 * 1024 * 1024
    # A name or a text in the metadata; a model card fits.
    text_bytes: int = 64 * 1024 * 1024
    # The longest integer in real files is the stream's magic number, ten bytes.
    integer_bytes: int = 512
    # Keys whose hashes a file can choose: large integers, floats, tuples. Real metadata has a handful.
    odd_keys: int = 1_000
    # Containers within containers, as far as they show at a checkpoint between opcodes.
    depth: int = 1_000


LIMITS: Final = Limits()
