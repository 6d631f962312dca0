"""Recorded outputs that are already arrays: the same checks as for files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict, Unpack, cast

import numpy as np
import numpy.typing as npt

from calibcli.device import array
from calibcli.errors import InputError, check_keywords, refusing
from calibcli.inputs.files.arrays import Contents, Memory
from calibcli.inputs.files.source import Source
from calibcli.inputs.opening import Reading
from calibcli.inputs.scores.recorded import predictions
from calibcli.predictions import Predictions

OF_FILES = ("scores", "shards", "multilabel")


class _Arrays:
    """Stands where a file would; has no digest, which would take longer than what is measured."""

    name = stem = path = "arrays"


class How(TypedDict, total=False):
    """What may be said of recorded outputs, as keywords: the fields of `Reading`.

    Of a file, `weights`, `ids` and `group` are names in it and `by` is a list of names; of arrays they are arrays (N,),
    and `by` is a mapping of them: `by={"site": sites}`.
    """

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
    by: Mapping[str, npt.ArrayLike] | Sequence[str] | None
    scores: str | None
    shards: bool
    multilabel: bool


def of_arrays(scores: npt.ArrayLike, /, labels: npt.ArrayLike | None, **how: Unpack[How]) -> Predictions:
    """Check arrays as `inputs.scores.recorded.read` checks files.

    >>> rows = calibcli.from_arrays([[2.0, 0.0], [0.0, 1.0]], [0, 1], ids=["a", "b"])
    >>> rows.n, rows.k, rows.kind
    (2, 2, 'logits')

    Args:
        scores: (N, K) logits, probabilities or log-probabilities (recognised; `kind=` overrides), or for two classes
            (N,) or (N, 1) probabilities or log-odds of class 1. Any array-like, torch tensors on any device included.
        labels: (N,) integers in [0, K), or (N, K) one-hot; None where there are none.
        how: as `How` says, of arrays.

    Raises:
        InputError: what is wrong with the arrays, and what to pass.
        TypeError: a keyword that is not one of these.
    """
    check_keywords(how, [key for key in How.__annotations__ if key not in OF_FILES], "from_arrays")
    options: dict[str, Any] = dict(how)
    arrays = {"scores": plain(scores, "scores")}
    if labels is not None:
        arrays["labels"] = plain(labels, "labels")
    extra = {key: plain(options[key], key) for key in ("weights", "ids", "group") if options.get(key) is not None}
    by = options.pop("by", None) or {}
    if not isinstance(by, Mapping):
        raise TypeError(f"by is {type(by).__name__}: of arrays it is a mapping of them, by={{'site': sites}}")
    slices = {str(name): plain(column, f"by['{name}']") for name, column in by.items()}
    options.update({name: name for name in extra})
    contents = Contents(
        format="arrays",
        arrays={name: Memory(one) for name, one in {**slices, **arrays, **extra}.items()},
        scores="scores",
        labels="labels" if labels is not None else "",
    )
    source = cast(Source, _Arrays())
    reading = Reading(**options, by=tuple(slices), need_labels=labels is not None)
    return predictions([contents], [source], reading)


def plain(values: Any, name: str) -> npt.NDArray[Any]:
    """Values as an array.

    Raises:
        InputError: a path, masked or complex values, rows of different lengths, or scores that are not numbers.
    """
    if isinstance(values, str | Path):
        raise InputError(f"{name} are a text, '{str(values)[:60]}', not an array", "of a file: calibcli.read(path)")
    if isinstance(values, np.ma.MaskedArray) and bool(np.ma.getmaskarray(values).any()):
        masked = int(np.ma.getmaskarray(values).sum())
        raise InputError(f"{masked} of the {name} are masked", "leave those rows out, or fill them in")
    errors = (ValueError, TypeError)
    with refusing(errors, lambda error: f"{name} are not an array ({str(error)[:100]})", "pass rows of one length"):
        found: npt.NDArray[Any] = array(values)
    if found.dtype.kind == "c":
        raise InputError(f"{name} are complex numbers", "pass their real part")
    if name == "scores" and found.dtype.kind not in "fiub":
        raise InputError(f"scores are {found.dtype}, not numbers", "pass logits or probabilities as float32 or float64")
    return found
