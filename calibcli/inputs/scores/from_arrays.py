"""Recorded outputs that are already arrays: the same checks as for files."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from typing import Any, TypedDict, Unpack, cast

import numpy as np
import numpy.typing as npt

from calibcli.device import array
from calibcli.errors import did_you_mean
from calibcli.inputs.files.arrays import Contents, Memory
from calibcli.inputs.files.source import Source
from calibcli.inputs.scores.logits import Reading, predictions
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


class Arrays(TypedDict, total=False):
    """What may be said of arrays, as keywords; see `of_arrays`."""

    kind: str | None
    classes: Sequence[str] | str | None
    event: str | None
    label_base: int | None
    ignore_label: int | None
    drop_nonfinite: bool
    clip: bool
    weights: npt.ArrayLike | None
    weight_kind: str
    ids: npt.ArrayLike | None
    group: npt.ArrayLike | None


class Sliced(Arrays, total=False):
    """`Arrays`, and columns that tell parts of the rows."""

    by: Mapping[str, npt.ArrayLike] | None


def known(how: Mapping[str, Any], keywords: Collection[str], function: str) -> None:
    """Refuse keywords that a function does not take.

    Raises:
        TypeError: there is one; says the nearest that it takes.
    """
    for name in how:
        if name not in keywords:
            near = did_you_mean(name, sorted(keywords))
            raise TypeError(f"{function}() got an unexpected keyword argument '{name}': {near}")


def of_arrays(scores: npt.ArrayLike, labels: npt.ArrayLike, **how: Unpack[Sliced]) -> Predictions:
    """Check arrays as `inputs.scores.logits.read` checks files.

    Args:
        scores: (N, K) logits, probabilities or log-probabilities (recognised; `kind=` overrides), or for two classes
            (N,) or (N, 1) probabilities or log-odds of class 1. Any array-like, torch tensors on any device included.
        labels: (N,) integers in [0, K), or (N, K) one-hot.
        how: `kind classes event label_base ignore_label drop_nonfinite clip weight_kind` as for `read`; `weights`,
            `ids`, `group` and the columns of `by` are arrays (N,): `by={"site": sites}`.

    Raises:
        InputError: what is wrong with the arrays, and what to pass.
        TypeError: a keyword that is not one of these.
    """
    known(how, Sliced.__annotations__, "from_arrays")
    given: dict[str, Any] = dict(how)
    arrays = {"scores": array(scores), "labels": array(labels)}
    extra = {name: array(given[name]) for name in ("weights", "ids", "group") if given.get(name) is not None}
    slices = {str(name): array(column) for name, column in (given.pop("by", None) or {}).items()}
    given.update({name: name for name in extra})
    contents = Contents(
        format="arrays",
        arrays={name: Memory(one) for name, one in {**slices, **arrays, **extra}.items()},
        scores="scores",
        labels="labels",
    )
    source = cast(Source, _Arrays(*arrays.values()))
    return predictions([contents], [source], Reading(**given, by=tuple(slices)))
