"""Find where a model fails, and detect rows of another distribution, from Python."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, Unpack, cast

import numpy as np
import numpy.typing as npt

from calibcli import calibrators, headlines
from calibcli.api.fixing import opened
from calibcli.api.measuring import Scores, given, is_path, spread
from calibcli.calibrators import Fit, Scaler
from calibcli.core.errors import InputError
from calibcli.core.options import exclusive
from calibcli.core.result import Result
from calibcli.gate.baseline import Unpaired, keys, pair
from calibcli.gate.compare import names_of
from calibcli.gate.sources import BY_CLASS
from calibcli.metrics.ood import OodOptions, OodScores, report
from calibcli.scores import recorded_outputs
from calibcli.scores.from_arrays import How
from calibcli.scores.predictions import Predictions, Progress
from calibcli.scores.reading_options import Reading
from calibcli.slices import Search
from calibcli.slices.candidates import others
from calibcli.slices.find import find as search_in

__all__ = ["find_slices", "ood"]


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
    """Find where a model fails: rules of one or two conditions on columns whose rows are worse than chance explains.

    >>> import numpy as np
    >>> hour = np.arange(len(labels)) % 4
    >>> wrong = np.where(hour == 3, 0, labels)  # a quarter of the rows has other labels
    >>> found = calibcli.find_slices(logits, wrong, by={"hour": hour}, min_n=100)
    >>> [rule["by"] for rule in found.facts["rules"]][:1]
    ['hour=3']

    Args:
        scores, labels, how: (N, K) and (N,), as for `measure`; `by` is a mapping of columns (N,), or of a file a list
            of names, `class` for the predicted class; without it all columns that the file has.
        find: `gap`, mean confidence minus accuracy (for two classes, of the positive class), or `error`.
        confirm: `split`: search half of the rows (of the groups), confirm on the other; `all`: every rule on all rows.
        depth: most conditions of a rule; 3 needs sliceline.  min_n: fewest rows of a rule.
        alpha: family-wise error probability of confirming a rule (Holm 1979).
        seed: of the random halves.  progress: called with (fraction, text).

    Returns:
        Up to ten rules as estimates; those confirmed in `facts["rules"]`, the gap that would have been found in
        `facts["would_have_found"]`.

    Raises:
        InputError: rows that are refused, or no column that can be searched.  UsageError: an option that cannot be.
    """
    search = Search(find=find, confirm=confirm, min_n=min_n, depth=depth, alpha=alpha, seed=seed)
    by, file = how.get("by"), is_path(scores)
    more: dict[str, Any] = {key: value for key, value in how.items() if key != "by"}
    with_class = False
    if file:
        path = cast("str | Path | Sequence[str | Path]", scores)
        more |= {} if labels is None else {"labels": labels}
        # without `by`: all columns of the file that are neither scores, labels, verdicts, ids nor weights
        named = [by] if isinstance(by, str) else [*(by or others(path, Reading(**more)))]
        with_class = BY_CLASS in named
        more["by"] = tuple(name for name in named if name != BY_CLASS)
        rows = recorded_outputs.read(path, progress=progress, numbers=True, **more)  # numbers stay numbers, for cuts
        if not by:  # columns that were found by more than their names, as a label by that of the scores
            taken = {rows.record.labels, rows.record.scores, *rows.record.members, rows.record.predicted}
            rows = dataclasses.replace(rows, slices={n: values for n, values in rows.slices.items() if n not in taken})
    else:
        rows = given(find_slices, scores, labels, how, progress)  # predictions, or arrays with `how` to read them
    if with_class and not rows.top_only:
        # any values mark the column as asked for: `search_in` puts the predicted class there, which it computes
        rows = dataclasses.replace(rows, slices={**rows.slices, BY_CLASS: rows.labels})
    result = search_in(rows, search, progress)
    return dataclasses.replace(result, provenance={"inputs": recorded_outputs.provenance(rows), "seed": seed})


@spread
def ood(
    inside: Scores,
    outside: Scores,
    /,
    *,
    against: tuple[Scores, Scores] | None = None,
    calibrator: str | Path | Scaler | Fit | None = None,
    scores_of: Sequence[Literal["confidence", "entropy", "energy", "max_logit"]] = (),
    temperature: float = 1.0,
    level: float = 0.95,
    alpha: float = 0.05,
    threads: int = 1,
    progress: Progress | None = None,
    **how: Unpack[How],
) -> Result:
    """Detect rows outside by confidence (Hendrycks and Gimpel 2017), entropy, energy (Liu et al. 2020) or max_logit.

    >>> sure, unsure = logits[:500], logits[500:] / 3
    >>> found = calibcli.ood(sure, unsure)
    >>> found["auroc", "score=energy"].value > found["auroc", "score=confidence"].value > 0.7
    True
    >>> found["auroc", "energy - confidence"].low > 0
    True

    Args:
        inside, outside: (N, K) and (M, K) scores of one model on its own distribution and on other rows, or files, as
            for `measure`; labels are not needed.
        against: the same of another model on the same rows, paired by id or by position: how much better it is.
        calibrator: of `fit_scaler` or `load_scaler`, or a file of `save_scaler`: confidence and entropy after it,
            against those before.
        scores_of: names of the scores [all that the files allow]; energy and max_logit need logits.
        temperature: T of the energy, T log Σ exp(z / T) (larger inside).
        level: of the intervals.  alpha: family-wise error of the differences that are called real (Holm 1979).
        threads: workers; 0 uses every core.  progress: called with (fraction, text).
        how: how both are read, see `read` and `from_arrays`.

    Returns:
        `found["auroc", "score=entropy"]`, and `aupr_in` (rows inside are to be found), `aupr_out` and `fpr95`, the
        share of rows outside that is kept where 95 % of the rows inside are: between 0 and 1, without a unit.

    Raises:
        InputError: rows that are refused, of different classes, or that do not pair; a score that needs logits.
        UsageError: both `against` and `calibrator`, or an option that cannot be.
    """
    options = OodOptions(
        scores=tuple(cast(Any, name).replace("-", "_") for name in scores_of),
        temperature=temperature,
        level=level,
        alpha=alpha,
        threads=threads or None,
    )

    def read(scores: Scores) -> Predictions:
        """Read all rows together; `how` may not split them by a column or by labels."""
        return given(ood, scores, None, how, progress, need_labels=False, whole=True)

    passed = {"against": against is not None, "with": calibrator is not None}
    exclusive("another model, or a calibrator for this one", **passed)
    first, second, notes = OodScores("raw", read(inside), read(outside)), None, list[str]()
    files = [entry for p in first.files for entry in recorded_outputs.provenance(p)]
    if against is not None:
        second = OodScores("", read(against[0]), read(against[1]))
        files += [entry for p in second.files for entry in recorded_outputs.provenance(p)]
        first, second, notes = _paired(first, second, names_of([inside, against[0]]))
    elif calibrator is not None:
        scaler, file = opened(calibrator)
        within, beyond = (calibrators.apply(scaler, rows) for rows in first.files)
        # mapped: what a calibrator gives is known up to a constant in each row, so energy and max_logit are not defined
        second, files = OodScores("calibrated", within, beyond, mapped=True), [*files, *file]
    result = report([first] if second is None else [first, second], options, progress)
    result = dataclasses.replace(result, notes=[*result.notes, *notes], provenance={"inputs": files, "seed": 0})
    return headlines.headed(result)  # with the sentence that it opens with, in its facts


def _paired(first: OodScores, second: OodScores, names: Sequence[str]) -> tuple[OodScores, OodScores, list[str]]:
    """Pair the rows of two models, in the order of the first; also return notes on how they were paired.

    Raises:
        InputError: the rows cannot be paired.
    """
    sides, notes = [], []
    for a, b in zip(first.files, second.files, strict=True):
        pairing = pair(keys(b), keys(a), (b.source, a.source))
        if isinstance(pairing, Unpaired):
            raise InputError(f"{b.source} and {a.source} do not pair: {pairing.problem}", pairing.fix)
        by_id = a.ids is not None and b.ids is not None
        labelled = bool(a.record.labelled and b.record.labelled)
        notes.append(
            f"{b.source} and {a.source}: rows paired by "
            + ("id" if by_id else "position" + (", their label sequence is the same" if labelled else ""))
        )
        order = np.argsort(pairing.base, kind="stable")
        sides.append((a.take(pairing.base[order]), b.take(pairing.new[order])) if by_id else (a, b))
    (a, b), (c, d) = sides
    return OodScores(names[0], a, c), OodScores(names[1], b, d), notes
