"""Find where a model fails, from Python."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, Unpack, cast

import numpy.typing as npt

from calibcli.api.measuring import Scores, given, is_path, spread
from calibcli.gate.sources import BY_CLASS
from calibcli.inputs.opening import Reading
from calibcli.inputs.scores import recorded
from calibcli.inputs.scores.from_arrays import How
from calibcli.inputs.scores.metadata import others
from calibcli.predictions import Progress
from calibcli.result import Result
from calibcli.slices import Search
from calibcli.slices.find import find as search_in

__all__ = ["find_slices"]


@spread
def find_slices(
    scores: Scores,
    /,
    labels: npt.ArrayLike | None = None,
    *,
    find: Literal["gap", "error"] = "gap",
    confirm: Literal["split", "all"] = "split",
    depth: int = 2,
    min_n: int = 200,
    alpha: float = 0.05,
    seed: int = 0,
    progress: Progress | None = None,
    **how: Unpack[How],
) -> Result:
    """Rules on the columns of the rows, of one or two conditions, whose rows show more than chance.

    >>> import numpy as np
    >>> hour = np.arange(len(labels)) % 4
    >>> wrong = np.where(hour == 3, 0, labels)  # a quarter of the rows has other labels
    >>> found = calibcli.find_slices(logits, wrong, by={"hour": hour}, min_n=100)
    >>> [rule["by"] for rule in found.facts["rules"]][:1]
    ['hour=3']

    Args:
        scores, labels, how: (N, K) and (N,), as for `measure`; `by` is a mapping of columns (N,), or of a file a list
            of names, `class` for the predicted class; without it all columns that the file has.
        find: `gap`, mean confidence less accuracy (of two classes of the event), or `error`.
        confirm: `split`: search half of the rows (of the groups), confirm on the other; `all`: every rule on all rows.
        depth: conditions of a rule; 3 needs sliceline.  min_n: rows of a rule.
        alpha: family-wise error probability of the rules that are confirmed (Holm 1979).
        seed: of the halves.  progress: called with (fraction, text).

    Returns:
        Up to ten rules as estimates; those confirmed in `facts["rules"]`, the gap that would have been found in
        `facts["would_have_found"]`.

    Raises:
        InputError: rows that are refused, or no column that can be searched.  UsageError: an option that cannot be.
    """
    asked: dict[str, Any] = {"depth": depth, "alpha": alpha, "seed": seed}
    search = Search(find=find, confirm=confirm, min_n=min_n, **asked)
    by, file = how.get("by"), is_path(scores)
    more: dict[str, Any] = {key: value for key, value in how.items() if key != "by"}
    with_class = False
    if file:
        path = cast("str | Path | Sequence[str | Path]", scores)
        more |= {} if labels is None else {"labels": labels}
        named = [by] if isinstance(by, str) else [*(by or others(path, Reading(**more)))]
        with_class = BY_CLASS in named
        more["by"] = tuple(name for name in named if name != BY_CLASS)
        rows = recorded.read(path, progress=progress, numbers=True, **more)
    else:
        rows = given(find_slices, scores, labels, how, progress)
    if with_class and not rows.top_only:
        rows = dataclasses.replace(rows, slices={**rows.slices, BY_CLASS: rows.labels})  # the predicted one follows
    result = search_in(rows, search, progress)
    return dataclasses.replace(result, provenance={"inputs": recorded.provenance(rows), "seed": seed})
