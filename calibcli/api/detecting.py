"""Tell rows of the distribution from others, from Python."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, Unpack, cast

import numpy as np

from calibcli import headline, scalers
from calibcli.api.fixing import opened
from calibcli.api.measuring import Scores, given, spread
from calibcli.errors import InputError, UsageError
from calibcli.gate.compare import names_of
from calibcli.gate.pairing import Unpaired, keys, pair
from calibcli.inputs.scores import recorded
from calibcli.inputs.scores.from_arrays import How
from calibcli.metrics.ood import Model, Options, report
from calibcli.predictions import Predictions, Progress
from calibcli.result import Result
from calibcli.scalers import Fit, Scaler

__all__ = ["ood"]


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
    """How well confidence (Hendrycks and Gimpel 2017), entropy, energy (Liu et al. 2020), max_logit tell rows outside.

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
    options = Options(
        scores=tuple(cast(Any, name).replace("-", "_") for name in scores_of),
        temperature=temperature,
        level=level,
        alpha=alpha,
        threads=threads or None,
    )

    def read(scores: Scores) -> Predictions:
        return given(ood, scores, None, how, progress, need_labels=False, whole=True)

    if against is not None and calibrator is not None:
        raise UsageError("--against and --with", "pass one: another model, or a calibrator for this one")
    first, second, notes = Model("raw", read(inside), read(outside)), None, list[str]()
    files = [entry for p in first.files for entry in recorded.provenance(p)]
    if against is not None:
        second = Model("", read(against[0]), read(against[1]))
        files += [entry for p in second.files for entry in recorded.provenance(p)]
        first, second, notes = _paired(first, second, names_of([inside, against[0]]))
    elif calibrator is not None:
        scaler, file = opened(calibrator)
        within, beyond = (scalers.apply(scaler, rows) for rows in first.files)
        second, files = Model("calibrated", within, beyond, mapped=True), [*files, *file]
    result = report([first] if second is None else [first, second], options, progress)
    result = dataclasses.replace(result, notes=[*result.notes, *notes], provenance={"inputs": files, "seed": 0})
    return headline.headed(result)


def _paired(first: Model, second: Model, names: Sequence[str]) -> tuple[Model, Model, list[str]]:
    """Both models on the rows that they share, in the order of the first; and how they were paired.

    Raises:
        InputError: the rows cannot be told to be the same.
    """
    sides, said = [], []
    for a, b in zip(first.files, second.files, strict=True):
        pairing = pair(keys(b), keys(a), (b.source, a.source))
        if isinstance(pairing, Unpaired):
            raise InputError(f"{b.source} and {a.source} do not pair: {pairing.problem}", pairing.fix)
        by_id = a.ids is not None and b.ids is not None
        labelled = bool(a.facts.get("labelled") and b.facts.get("labelled"))
        said.append(
            f"{b.source} and {a.source}: rows paired by "
            + ("id" if by_id else "position" + (", their label sequence is the same" if labelled else ""))
        )
        order = np.argsort(pairing.base, kind="stable")
        sides.append((a.take(pairing.base[order]), b.take(pairing.new[order])) if by_id else (a, b))
    (a, b), (c, d) = sides
    return Model(names[0], a, c), Model(names[1], b, d), said
