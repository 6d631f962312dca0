"""Data sets from the user's own code: what `module:function` returns."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import DataLoader, IterableDataset

from calibcli.array_likes import array
from calibcli.errors import InputError, refusing
from calibcli.inputs.code import FAILURES
from calibcli.inputs.dataset.keys import Asked, Found, pick
from calibcli.inputs.files.arrays import Memory
from calibcli.inputs.opening import Rows
from calibcli.predictions import Named


@dataclass(frozen=True)
class Items:
    """One input of a map-style data set, by its name where inputs have names."""

    data: Any
    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    def read(self, start: int, stop: int) -> NDArray[Any]:
        return np.stack([array(_field(self.name, self.data[row])) for row in range(start, stop)])


def read(made: Any, source: str, said: Rows) -> Found:
    """Rows of a map-style `torch.utils.data.Dataset` of (inputs, label) pairs, of (inputs, labels) arrays, or of a
    dict of arrays. Inputs that are a dict go to the model by name.

    Raises:
        InputError: anything else.
    """
    if isinstance(made, DataLoader):
        made = made.dataset
    pair = isinstance(made, tuple | list) and len(made) == 2 and not isinstance(made[0], tuple | list)
    if pair and isinstance(made[0], Mapping):
        inputs: dict[str, Named] = {str(k): Memory(array(v)) for k, v in made[0].items()}
        found = Found(inputs, array(made[1]), "", integral=True)
    elif pair or isinstance(made, Mapping):
        made = {"inputs": made[0], "labels": made[1]} if pair else made
        arrays: dict[str, Named] = {str(k): Memory(array(v)) for k, v in made.items()}
        found = pick(arrays, Asked(source, inputs=said.inputs, labels=said.labels))
    elif isinstance(made, IterableDataset) or not (hasattr(made, "__getitem__") and hasattr(made, "__len__")):
        fix = "return a Dataset with __len__ and __getitem__, or (inputs, labels) arrays"
        raise InputError(f"{source} returned {type(made).__name__}", fix)
    elif not len(made):
        raise InputError(f"{source} returned no rows", "return at least one")
    else:
        found = _items(made, source)
    found.sha256 = hashlib.sha256(np.ascontiguousarray(found.labels).tobytes()).hexdigest()
    found.notes.append("the fingerprint is that of the labels")
    return found


def _items(made: Any, source: str) -> Found:
    first = made[0]
    if not isinstance(first, tuple | list) or len(first) != 2:
        raise InputError(f"{source}: rows are {type(first).__name__}, not pairs", "return (inputs, label) for each row")
    known = next((v for n in ("targets", "labels") if (v := getattr(made, n, None)) is not None), None)
    if known is None or len(known) != len(made):
        fix = "pass (inputs, labels) as two arrays, or one pair for each row"
        with refusing(FAILURES, lambda e: f"{source}: the label of a row is no whole number ({str(e)[:80]})", fix):
            known = [int(made[i][1]) for i in range(len(made))]
    inputs: dict[str, Named] = {}
    for name in first[0] if isinstance(first[0], Mapping) else [""]:
        example = array(_field(name, first))
        inputs[name] = Items(made, name, (len(made), *example.shape), example.dtype)
    return Found(inputs, array(known), "", integral=True)


def _field(name: str, row: Any) -> Any:
    return row[0][name] if name else row[0]
