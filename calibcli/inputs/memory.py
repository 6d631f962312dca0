"""Recorded outputs that are already arrays: the same checks as for files."""

from __future__ import annotations

import hashlib
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from calibcli.device import array
from calibcli.inputs.arrays import Contents, Memory
from calibcli.inputs.logits import Reading, predictions
from calibcli.inputs.source import Source
from calibcli.predictions import Predictions


class _Arrays:
    """Stands where a file would."""

    name = stem = path = "arrays"

    def __init__(self, *arrays: npt.NDArray[Any]) -> None:
        self.arrays = arrays

    def sha256(self, _stop: object = None) -> str:
        digest = hashlib.sha256()
        for one in self.arrays:
            digest.update(np.ascontiguousarray(one).tobytes())
        return digest.hexdigest()


def of_arrays(scores: npt.ArrayLike, labels: npt.ArrayLike, **how: Any) -> Predictions:
    """Check arrays as `inputs.logits.read` checks files.

    Args:
        scores: (N, K) logits, probabilities or log-probabilities (recognised; `kind=` overrides), or for two classes
            (N,) or (N, 1) probabilities or log-odds of class 1. Any array-like, torch tensors on any device included.
        labels: (N,) integers in [0, K), or (N, K) one-hot.
        how: `kind, classes, label_base, ignore_label, drop_nonfinite, clip, weight_kind` as for `read`; `weights`,
            `ids`, `group` and the columns of `by` are arrays (N,): `by={"site": sites}`.

    Raises:
        InputError: what is wrong with the arrays, and what to pass.
        UsageError: an option that is not one.
    """
    arrays = {"scores": array(scores), "labels": array(labels)}
    extra = {name: array(how[name]) for name in ("weights", "ids", "group") if how.get(name) is not None}
    slices = {str(name): array(column) for name, column in (how.pop("by", None) or {}).items()}
    how.update({name: name for name in extra})
    contents = Contents(
        format="arrays",
        arrays={name: Memory(array) for name, array in {**slices, **arrays, **extra}.items()},
        scores="scores",
        labels="labels",
    )
    source = cast(Source, _Arrays(*arrays.values()))
    return predictions([contents], [source], Reading(**how, by=tuple(slices)))
