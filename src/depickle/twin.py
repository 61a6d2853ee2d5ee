"""What the header of a ComfyUI twin says of the file beside its tensors, as a value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from .schemas import Json

MARKER: Final = "comfy_quant"  # the tensor `<layer>.comfy_quant` says how the layer's weight is quantised
ROUNDED: Final = "depickle_requantized"  # in a marker: the weight was rounded again, on request


@dataclass(frozen=True, slots=True)
class Twin:
    """`layers`: each quantised layer's marker. `names`: for each tensor that is named otherwise than in the source, the
    source's names, several if they were put together. `format` and `metadata` are those of the source."""

    layers: Mapping[str, Mapping[str, Json]]
    names: Mapping[str, tuple[str, ...]]
    format: str | None
    metadata: Mapping[str, Json]

    @property
    def rounded(self) -> tuple[str, ...]:
        """The layers that were rounded again on request, and so are not what the source holds."""
        return tuple(layer for layer, marker in self.layers.items() if marker.get(ROUNDED) is True)
