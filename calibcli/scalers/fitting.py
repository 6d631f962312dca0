"""Fit a scaler by its spec, cross-fit it, and apply it to predictions."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibcli import __version__
from calibcli.errors import InputError, UsageError
from calibcli.predictions import VERDICTS, Kind, Predictions
from calibcli.scalers.parameters import shown
from calibcli.scalers.scaler import SCALERS, Fit, Job, Progress, Scaler, keeps_classes
from calibcli.scalers.subsets import FoldedScores, Ints, fold_of_rows, raw_argmax, subset
from calibcli.shelves import Choice

LEAVES_OUT = {"beta", "gamma", "tempered", "plain", "uniform"}
"""Parameters of maps that give nothing to a class that was left out (-inf)."""
KEPT = ("name", "value", "low", "high", "level", "unit", "n", "how", "reason")
"""What a calibrator's file says of an estimate."""


def fit(
    spec: str,
    predictions: Predictions,
    *,
    seed: int = 0,
    report: bool = True,
    level: float = 0.95,
    progress: Progress | None = None,
    memory: dict[str, Any] | None = None,
    rows: NDArray[Any] | None = None,
) -> Fit:
    """Fit the scaler that `spec` names.

    Args:
        spec: e.g. `temperature`, `focal_temperature:grid=komisarenko`, `matrix:lam=0.1`.
        predictions: labelled scores to fit on.
        seed: of everything random.
        report: False leaves out profiles, figures and comparisons that cost time (cross-fitting does).
        level: confidence level of intervals.
        progress: called with (fraction done, text).
        memory, rows: as in `Job`.

    Raises:
        UsageError: unknown method or option.
        InputError: data that the method cannot be fitted to.
    """
    choice = SCALERS.choose(spec)
    if predictions.n == 0:
        raise InputError("no rows to fit on", "pass at least one labelled row")
    if choice.traits.get("binary") and predictions.k != 2:
        raise InputError(f"'{choice.name}' is for 2 classes, these are {predictions.k}", "use temperature or vector")
    _refuse_varying(choice, predictions)
    if predictions.top_only and choice.name not in (fits := applicable(2, top_only=True)):
        problem = f"{choice.name} needs the scores of every class, not the confidence alone"
        raise InputError(problem, f"choose among {', '.join(fits)} (--method)")
    step = progress or (lambda fraction, text: None)
    step(0.0, f"fitting {choice.spec}")
    done = choice(predictions, Job(seed, report, level, step, {} if memory is None else memory, rows))
    classes = None if predictions.classes is None else tuple(map(str, predictions.classes))
    about = {
        "n": predictions.n,
        "kind": predictions.kind,
        "columns": int(predictions.facts.get("columns", predictions.k)),
        **({"exchanged": True} if predictions.facts.get("exchanged") else {}),
        "source": predictions.source,
        "sha256": predictions.sha256,
        "version": __version__,
        "estimates": [{key: getattr(e, key) for key in KEPT} for e in done.estimates if e.value is not None],
    }
    scaler = Scaler(choice.spec, predictions.k, done.parameters, classes, about)
    step(1.0, f"fitted {choice.spec}")
    if not done.parameters.keys() <= {"beta", "gamma", "phi_first"}:  # T and gamma are estimates
        facts, tables = shown(done.parameters, scaler.classes, scaler.k)
        done = dataclasses.replace(done, tables=[*done.tables, *tables], facts={**done.facts, **facts})
    return Fit(**vars(done), scaler=scaler)


def applicable(k: int, top_only: bool = False) -> list[str]:
    """Names of the methods for k classes, or for confidences alone."""
    unfit = {"of_confidence"} if top_only else set()
    return [e.name for e in SCALERS if unfit <= e.traits.keys() and (k == 2 or not e.traits.get("binary"))]


def cross_fit(
    spec: str,
    predictions: Predictions,
    folds: int = 5,
    seed: int = 0,
    progress: Progress | None = None,
    memory: dict[str, Any] | None = None,
    split_seed: int | None = None,
) -> Predictions:
    """Out-of-fold predictions: every row mapped by the scaler that was fitted without its fold.

    Settings that a method chooses by cross-validation (penalties) are chosen for each fold by the held-out NLL of the
    other folds' rows, from one search over all rows: that of `memory`, where `fit` has left it there.
    Accuracy-preserving methods keep the predicted class of the raw logits. `split_seed` is of the folds (default:
    `seed`), `seed` of what is random in a fit.

    Raises:
        UsageError: fewer than 2 folds.
        InputError: fewer rows than folds.
    """
    folds_of = _fold_of_rows(predictions, folds, seed if split_seed is None else split_seed)
    memory = {} if memory is None else memory
    choice, first = SCALERS.choose(spec), 0
    if not memory and choice.traits.get("search", lambda options: False)(choice.options):
        first = 1
        fit(spec, predictions, seed=seed, report=False, progress=part(progress, 0, folds + 1, spec), memory=memory)
    scalers = []
    for fold in range(folds):
        rows = np.flatnonzero(folds_of != fold)
        here = part(progress, first + fold, first + folds, f"{spec}: fold {fold + 1} of {folds}")
        done = fit(spec, subset(predictions, rows), seed=seed, report=False, progress=here, memory=memory, rows=rows)
        scalers.append(done.scaler)
    return dataclasses.replace(
        predictions,
        scores=FoldedScores(predictions.scores, scalers, folds_of),
        predicted=raw_argmax(predictions) if scalers[0].preserves_accuracy else None,
        kind=_kind(scalers[0], predictions),
    )


def apply(scaler: Scaler, predictions: Predictions) -> Predictions:
    """The same rows through the scaler, block by block when they are read.

    Raises:
        InputError: the classes do not match.
    """
    check_classes(scaler, predictions)
    mapped = predictions.mapped(scaler.map, predicted=raw_argmax(predictions) if scaler.preserves_accuracy else None)
    return dataclasses.replace(mapped, kind=_kind(scaler, predictions))


def _refuse_varying(choice: Choice, predictions: Predictions) -> None:
    """Refuse a map of each class by itself where rows have different numbers of classes.

    Raises:
        InputError: questions with different numbers of choices: those that one has not would get a probability.
    """
    if predictions.facts.get("choices_vary") and not keeps_classes(choice):
        fits = [e.name for e in SCALERS if keeps_classes(SCALERS.choose(e.name))]
        problem = (
            f"{choice.name} maps every choice by itself, and the questions of {predictions.source} differ in theirs"
        )
        raise InputError(problem, f"choose among {', '.join(fits)} (--method)")


def _kind(scaler: Scaler, predictions: Predictions) -> Kind:
    """What mapped scores are. T and γ leave out what was left out (-inf); others make a claim of a probability of 0."""
    left_out = predictions.kind == "logits" and scaler.parameters.keys() <= LEAVES_OUT
    return "logits" if left_out else "log_probabilities"


def check_classes(scaler: Scaler, predictions: Predictions) -> None:
    """Refuse predictions whose classes are not those of the calibrator.

    Raises:
        InputError: another number of classes, other names, or the same names in another order.
    """
    _refuse_varying(scaler.choice, predictions)
    fix = "fit a calibrator on outputs of this model"
    if predictions.top_only != (scaler.classes == VERDICTS):
        of = ("confidences", "scores of every class")
        a, b = of if predictions.top_only else of[::-1]
        raise InputError(f"{predictions.source} holds {a}, the calibrator was fitted on {b}", fix)
    if predictions.k != scaler.k:
        problem = f"{predictions.source} has {predictions.k} classes, the calibrator was fitted on {scaler.k}"
        raise InputError(problem, fix)
    if predictions.classes is None:
        same_order(scaler, (), predictions.source)
    if scaler.classes is None or predictions.classes is None:
        return
    names = tuple(map(str, predictions.classes))
    if names == scaler.classes or (predictions.k == 2 and names[1] == scaler.classes[1]):  # one column names its event
        return
    same_order(scaler, names, predictions.source)
    odd = next(name for name in (*names, *scaler.classes) if (name in names) != (name in scaler.classes))
    raise InputError(f"the classes differ: '{odd}' is only in {'the data' if odd in names else 'the calibrator'}", fix)


def same_order(scaler: Scaler, classes: Sequence[Any], source: str) -> None:
    """Refuse the names of the calibrator's classes in another order; no names, and others, say nothing, unless --event
    changed the order of the calibrator's own.

    Raises:
        InputError: they are.
    """
    names = [str(c) for c in classes]
    if scaler.classes is None or names == [*scaler.classes]:
        return
    if sorted(names) != sorted(scaler.classes):
        if scaler.metadata.get("exchanged"):
            event = scaler.classes[1]
            raise InputError(
                f"the calibrator was fitted with --event {event}, which made it the second of the two classes, and "
                f"nothing says whether {source} has it second",
                f"fit it without --event, which a map does not need; or read scores with --event {event}",
            )
        return
    where = next(i for i, (a, b) in enumerate(zip(names, scaler.classes, strict=True)) if a != b)
    raise InputError(
        f"the classes are in another order: class {where} is '{names[where]}' in {source} and "
        f"'{scaler.classes[where]}' in the calibrator",
        "reorder the columns, or fit a calibrator on outputs of this model",
    )


def part(progress: Progress | None, done: int, of: int, what: str = "") -> Progress | None:
    """The progress of one of several equal parts, `done` of which are behind."""
    if progress is None:
        return None
    return lambda fraction, text: progress((done + min(fraction, 1.0)) / (of + 1e-9), what or text)


def _fold_of_rows(predictions: Predictions, folds: int, seed: int) -> Ints:
    if folds < 2:
        raise UsageError(f"{folds} fold{'' if folds == 1 else 's'}", "pass 2 folds or more")
    result = fold_of_rows(predictions, folds, seed)
    if len(np.unique(result)) < folds:
        what = f"{predictions.n} rows"
        if predictions.groups is not None:
            what += f" in {len(np.unique(predictions.groups))} groups"
        raise InputError(f"{what} cannot be split into {folds} folds", "pass more rows or groups, or fewer folds")
    return result
