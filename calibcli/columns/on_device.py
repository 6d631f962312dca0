"""Scores that lie on a device (a GPU): what the blocked pass needs of them. `calibcli/device_scores.py` implements it
for torch tensors.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import numpy as np

from calibcli import extensions
from calibcli.array_likes import tensor_of
from calibcli.columns.softmax import Block, Piece
from calibcli.predictions import Array, Kind


class DeviceScores(ABC):
    """(N, K) scores whose rows are worked on where they lie; what comes to the host is numbers per row.

    Attributes:
        block: the kind of block that works on what `part` gives.
    """

    block: ClassVar[type[Block]]
    dtype: np.dtype[Any]

    @property
    @abstractmethod
    def shape(self) -> tuple[int, int]: ...

    @property
    @abstractmethod
    def height(self) -> int:
        """Rows worked on together."""

    @abstractmethod
    def part(self, rows: slice, wide: bool = False) -> Any:
        """Rows on the device, in float64 where `wide`, else in the dtype that is read."""

    @abstractmethod
    def piece(self, start: int, stop: int) -> Piece:
        """Rows start..stop for the search for mistakes."""

    @abstractmethod
    def read(self, start: int, stop: int) -> Array:
        """Rows start..stop on the host."""

    @abstractmethod
    def measured(self, kind: Kind, dtype: np.dtype[Any], least: float) -> DeviceScores:
        """These scores as they are measured: logits or log-probabilities, raised to `least` as a probability."""


def on_device(scores: Any) -> DeviceScores | None:
    """A tensor as scores that are worked on where it lies; None for what NumPy reads better."""
    tensor = tensor_of(scores)
    if tensor is None:
        return None
    found: DeviceScores | None = extensions.device_scores(tensor)
    return found
