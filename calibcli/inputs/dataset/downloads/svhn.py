"""Street View House Numbers, cropped digits (Netzer et al. 2011): `train_32x32.mat` and its like."""

from __future__ import annotations

import io
import zlib
from dataclasses import replace

import numpy as np

from calibcli.errors import InputError, refusing
from calibcli.inputs.dataset.downloads.members import Members
from calibcli.inputs.dataset.keys import Found
from calibcli.inputs.files.pytorch_archive import UNREADABLE
from calibcli.inputs.files.source import refuse_large

ENDING = "_32x32.mat"
SPLITS = ("train", "extra", "test")


def splits(there: Members) -> list[str]:
    """Those whose file lies there; of a single file, its own."""
    if there.kind == "file":
        return [name for name in SPLITS if there.path.name == name + ENDING]
    return [name for name in SPLITS if name + ENDING in there.paths]


def read(there: Members, split: str) -> Found:
    """The digits of a split, (N, 32, 32, 3) bytes. The file calls the digit 0 class 10; here it is class 0.

    Raises:
        InputError: no such split, or a file without X and y of the published shapes.
    """
    from scipy.io import loadmat
    from scipy.io.matlab import MatReadError

    name = there.split(split, splits(there))
    file = name + ENDING
    data = there.read([file])
    where = f"{file} of {there.path}" if there.kind != "file" else str(there.path)
    refuse_large(3 * len(data[file]), f"{where} takes {3 * len(data[file]) / 1e9:.3g} GB when decoded")
    errors = (*UNREADABLE, zlib.error, MatReadError)
    with refusing(errors, lambda error: f"{where} is no MATLAB file ({str(error)[:80]})", "download it again"):
        found = loadmat(io.BytesIO(data[file]), variable_names=("X", "y"))
    x, y = found.get("X"), found.get("y")
    if x is None or y is None or x.dtype != np.uint8 or x.ndim != 4 or x.shape[2] != 3 or y.size != x.shape[3]:
        raise InputError(f"{where} does not hold X (32, 32, 3, N) and y (N, 1)", "download it again")
    labels = y.reshape(-1).astype(np.int64)
    note = f"SVHN, {name}: {len(labels):,} digits; class 10 of the file is the digit 0"
    made = there.found(name, data, [file], x.transpose(3, 0, 1, 2), np.where(labels == 10, 0, labels), note)
    return replace(made, classes=[str(digit) for digit in range(10)])
