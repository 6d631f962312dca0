"""The data set itself: labels in memory, inputs read and preprocessed batch by batch."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from calibcli.errors import InputError, nearest
from calibcli.inputs.dataset.preprocess import Preprocess
from calibcli.predictions import Named, gather

Inputs = Tensor | dict[str, Tensor]
Index = NDArray[np.int64]


@dataclass(frozen=True)
class Dataset:
    """Rows of inputs with labels.

    Attributes:
        inputs: stored arrays by name; one named "" is passed to the model by position, others by name.
        labels: (N,) int64.  ids: (N,) strings or integers, or None.  classes: names, or None.
        preprocess: applied to the first input, unless it holds tokens.
        source: what was asked for.  sha256: of the file (of a folder: of its listing).
        notes: what was recognised, one sentence each.
        rows: indices into the stored arrays, (N,).  integral: integers stay integers (tokens, masks).
        words: what tokens stand for, where that is known.
        prepared: what a library makes of the rows before the model gets them, for a result; {}: `preprocess` says it.
    """

    inputs: Mapping[str, Named]
    labels: Index
    preprocess: Preprocess
    source: str
    sha256: str
    rows: Index
    ids: NDArray[Any] | None = None
    classes: list[str] | None = None
    notes: list[str] = field(default_factory=list)
    integral: bool = False
    words: Sequence[str] = ()
    prepared: Mapping[str, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one row as the model gets it (of the first input, where there are several)."""
        if not len(self):
            return ()
        inputs, _ = self.batch([0])
        return tuple((inputs if isinstance(inputs, Tensor) else next(iter(inputs.values()))).shape[1:])

    def batch(
        self,
        rows: Sequence[int] | NDArray[Any] | slice,
        *,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> tuple[Inputs, Tensor]:
        """Rows of this data set, preprocessed, on a device.

        Returns:
            inputs: a tensor, or tensors by name; bytes and floats in `dtype`, tokens int64, masks as stored.
            labels: (n,) int64.
        """
        index = np.arange(len(self))[rows] if isinstance(rows, slice) else np.asarray(rows, np.int64)
        stored = self.rows[index]
        labels = torch.from_numpy(self.labels[index]).to(device)
        tensors = {
            name: self._tensor(gather(array, stored), number == 0, device, dtype)
            for number, (name, array) in enumerate(self.inputs.items())
        }
        return tensors.get("", tensors), labels

    def _tensor(self, array: NDArray[Any], first: bool, device: torch.device | str, dtype: torch.dtype) -> Tensor:
        kind = array.dtype.kind
        if kind == "b" or (self.integral and kind in "ui" and array.dtype != np.uint8):
            return torch.from_numpy(array if kind == "b" else array.astype(np.int64)).to(device)
        if kind in "ui" and array.dtype != np.uint8:
            array = array.astype(np.float64)
        # bytes travel to the device as bytes
        found = torch.from_numpy(array.astype(array.dtype.newbyteorder("="), copy=False)).to(device)
        if not first and kind in "ui":
            return found.long()
        return self.preprocess(found.to(dtype)) if first else found.to(dtype)

    def select(self, rows: Sequence[int] | NDArray[Any] | slice) -> Dataset:
        """The data set of these rows, in this order."""
        index = np.arange(len(self))[rows] if isinstance(rows, slice) else np.asarray(rows, np.int64)
        ids = None if self.ids is None else self.ids[index]
        return replace(self, labels=self.labels[index], rows=self.rows[index], ids=ids, notes=list(self.notes))


def tight(inputs: Inputs) -> Inputs:
    """Named tokens without the columns that no row's mask lets through, at either end: what those hold is not seen."""
    mask = inputs.get("attention_mask") if isinstance(inputs, dict) else None
    if isinstance(inputs, Tensor) or mask is None or mask.ndim != 2:
        return inputs
    used = (mask != 0).any(0).nonzero()
    if not len(used):
        return inputs
    columns = slice(int(used[0]), int(used[-1]) + 1)
    return {name: t[:, columns] if t.shape == mask.shape else t for name, t in inputs.items()}


def in_order(data: Dataset, classes: Sequence[str] | None) -> Dataset:
    """The data set with its labels numbered as in `classes`, where both name their classes; the names are taken over.

    Names are the same in any case of their letters where that tells the classes apart. Numbers that are nobody's name
    are those of the classes; so are `LABEL_0`, ..., with which Hugging Face's models number theirs.

    Raises:
        InputError: a class of the data set is not among them.
    """
    numbers = _numbers(data.classes or (), classes)
    if numbers is not None and numbers != list(range(len(numbers))):
        note = f"names of classes, such as '{(data.classes or [''])[-1]}', are their numbers"
        made = replace(data, labels=np.array(numbers, np.int64)[data.labels], classes=None, notes=[*data.notes, note])
        return in_order(made, classes)
    if numbers is not None:
        data = replace(data, classes=None)
    if classes is None or list(classes) == data.classes:
        return data
    if data.classes is None:
        return replace(data, classes=list(classes))
    known = {name: i for i, name in enumerate(classes)}
    if not set(data.classes) <= set(known):
        folded = {name.strip().casefold(): i for i, name in enumerate(classes)}
        if len(folded) == len(classes) == len(known):
            known = {n: folded[n.strip().casefold()] for n in data.classes if n.strip().casefold() in folded}
    unknown = [name for name in data.classes if name not in known]
    if unknown:
        problem = f"{data.source} has the class '{unknown[0]}', which the model does not know"
        near = nearest(unknown[0], classes)
        fix = f"did you mean '{near}'?" if near else f"the model's are {', '.join(classes[:8])}"[:200]
        raise InputError(problem, f"{fix}; name the classes so, or by their numbers")
    order = np.array([known[name] for name in data.classes], np.int64)
    note = "classes were put in the order of the checkpoint, by name"
    return replace(data, labels=order[data.labels], classes=list(classes), notes=[*data.notes, note])


def _numbers(names: Sequence[str], classes: Sequence[str] | None) -> list[int] | None:
    """The numbers that names of classes are, None where they are names. In a folder of folders that are numbers, the
    order is that of the alphabet, as torchvision has it, unless the model says what its classes are called."""
    found = [re.fullmatch(r"(LABEL_)?(\d{1,9})", name) for name in names]
    if not found or not all(found) or (classes is not None and set(names) & set(classes)):
        return None
    numbers = [int(one[2]) for one in found if one]
    labelled = all(one[1] for one in found if one)
    if len(set(numbers)) < len(numbers) or (max(numbers) >= len(classes) if classes is not None else not labelled):
        return None
    return numbers
