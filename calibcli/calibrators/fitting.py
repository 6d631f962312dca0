"""Fit a scaler by its spec, cross-fit it over folds of the rows, apply it, and write calibrated scores."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from calibcli import __version__
from calibcli.calibrators import program
from calibcli.calibrators.calibrator import (
    SCALERS,
    Array,
    Fit,
    FitContext,
    FittedParameters,
    Progress,
    Scaler,
    ScalerTraits,
    keep_first,
    keeps_classes,
)
from calibcli.calibrators.store import PREPARED, shown
from calibcli.core import extensions
from calibcli.core.errors import InputError, UsageError
from calibcli.core.files import atomic, known_suffix
from calibcli.core.number_format import count_text
from calibcli.core.options import CUT
from calibcli.core.registries import Choice
from calibcli.core.result import Estimate
from calibcli.core.statistics import group_places
from calibcli.metrics.intervals import BOUNDLESS, WeightedMean
from calibcli.metrics.paired import MeanDifference, difference_range
from calibcli.scores.columns import MANY, Columns, columns
from calibcli.scores.predictions import (
    WRONG_OR_RIGHT,
    ArrayScores,
    DerivedScores,
    Kind,
    PickedScores,
    Predictions,
    read,
)
from calibcli.scores.reading_options import ROW_OF_POSITION

# Subsets and folds of rows. Scores that lie on disk stay there.

Ints = NDArray[np.int64]
NONE = "none"  # the method that leaves scores as they are
FOLDS = 5  # of cross-fitting: each fit has four fifths of the rows, at five times the cost of one


def fold_of_rows(predictions: Predictions, folds: int, seed: int) -> Ints:
    """Assign each row to a fold, (N,), at random and evenly; rows of one group share a fold."""
    rng = np.random.default_rng(seed)
    if predictions.groups is not None:
        names, group = group_places(predictions.groups)
        return np.asarray((rng.permutation(len(names)) % folds)[group])
    return rng.permutation(predictions.n) % folds


def subset(predictions: Predictions, rows: Ints) -> Predictions:
    """Select rows by increasing indices. Scores in memory are copied; others are read when they are needed."""
    if isinstance(predictions.scores, ArrayScores):
        return predictions.take(rows)
    return predictions.with_rows(rows, PickedScores(predictions.scores, rows))


def sample(predictions: Predictions, rows: int, seed: int = 0) -> Predictions:
    """Draw at most `rows` random rows into memory."""
    if predictions.n <= rows:
        return predictions
    chosen = np.sort(np.random.default_rng(seed).choice(predictions.n, rows, replace=False))
    return predictions.take(chosen)


@dataclass(frozen=True, eq=False)
class FoldedScores(DerivedScores):
    """Scores that map each row by the scaler that was fitted without it."""

    scalers: Sequence[Scaler]
    folds: Ints

    def read(self, start: int, stop: int) -> Array:
        """Return the mapped rows from `start` to `stop`."""
        block, folds = read(self.inner, start, stop), self.folds[start:stop]
        out = np.empty(block.shape)
        for fold, scaler in enumerate(self.scalers):
            rows = folds == fold
            if rows.any():
                out[rows] = scaler.map(block[rows])
        return out


def raw_argmax(predictions: Predictions) -> Ints:
    """Return the predicted class of the raw scores of each row, (N,); the lowest index on ties."""
    if predictions.predicted is not None:
        return predictions.predicted
    return np.concatenate([block.argmax(axis=1) for _, block in predictions.blocks()] or [np.empty(0, np.int64)])


# Fit, cross-fit and apply.

LEAVES_OUT = {"beta", "gamma", "tempered", "plain", "uniform", "mask"}
"""Parameters of the maps that keep a class that was left out (-inf) at probability 0."""
KEPT = ("name", "value", "low", "high", "level", "unit", "n", "how", "reason")
"""Fields of an estimate that are saved with a calibrator."""


READ = (
    "scores",
    "classes",
    "event",
    "kind",
    "confidence",
    "correct",
    "predicted",
    "confidence_scale",
    "out_of",
    "no_header",
    "labels",
)


def _of_scores(stated: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of reading that were about scores, by which other rows of the same form are read."""
    return {name: stated[name] for name in READ if name in stated}


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
    held_out: HeldOutRows | None = None,
) -> Fit:
    """Fit the scaler that `spec` names.

    Args:
        spec: e.g. `temperature`, `focal_temperature:grid=komisarenko`, `matrix:lam=0.1`.
        predictions: labelled scores to fit on.
        seed: of everything random.
        report: False leaves out profiles, figures and comparisons that cost time (cross-fitting does).
        level: confidence level of intervals.
        progress: called with (fraction done, text).
        memory, rows: as in `FitContext`.
        held_out: the rows of each method outside of its fits, for its comparisons (default: 5 folds by `seed`).

    Raises:
        UsageError: the method or an option is unknown.
        InputError: the method cannot be fitted to these data.
    """
    choice = SCALERS.choose(spec)
    if predictions.n == 0:
        raise InputError("no rows to fit on", "pass at least one labelled row")
    _refuse_varying(choice, predictions)
    if predictions.top_only and choice.name not in (fits := applicable(top_only=True)):
        problem = f"{choice.name} needs the scores of every class, not the confidence alone"
        raise InputError(problem, f"choose among {', '.join(fits)} (--method)")
    compared = held_out or HeldOutRows(predictions, seed=seed)
    context = FitContext(
        seed=seed,
        report=report,
        level=level,
        step=extensions.tell,
        memory={} if memory is None else memory,
        rows=rows,
        gain_over=lambda other, step: compared.gain(choice.spec, other, level, step),
    )
    with extensions.reporting(progress):
        extensions.tell(0.0, f"fitting {choice.spec}")
        chosen = choose_cut(choice, predictions, seed)
        fitted = chosen.fit(predictions, context)
        fitted = dataclasses.replace(fitted, notes=[*fitted.notes, *filter(None, [chosen.note])])
        extensions.tell(1.0, f"fitted {choice.spec}")
    if unknown := [name for name in fitted.parameters if name not in {**choice.traits.form, **PREPARED}]:
        raise TypeError(f"{choice.name} returns {', '.join(unknown)}, and its form has {', '.join(choice.traits.form)}")
    classes = None if predictions.classes is None else tuple(map(str, predictions.classes))
    metadata = {
        "n": predictions.n,
        "kind": predictions.kind,
        "columns": predictions.record.columns or predictions.k,
        **({"exchanged": True} if predictions.record.exchanged else {}),
        "source": predictions.source,
        "sha256": predictions.sha256,
        "version": __version__,
        **({"read": columns} if (columns := _of_scores(predictions.record.stated)) else {}),
        "estimates": [{key: getattr(e, key) for key in KEPT} for e in fitted.estimates if e.value is not None],
    }
    # the map repeats what was done to the scores that it was fitted on: probabilities below the number `cut` are raised
    # to it, and scores that lie so far (`mask`) below the largest of their row become -inf
    prepared = {"cut": predictions.record.clip, "mask": predictions.record.mask}
    further = {name: np.array(float(value)) for name, value in prepared.items() if value}
    fitted = dataclasses.replace(fitted, parameters={**further, **fitted.parameters})
    scaler = Scaler(choice.spec, predictions.k, fitted.parameters, classes, metadata)
    # T and γ are estimates already; the order of both maps (`phi_first`), `cut` and `mask` need no table
    if not fitted.parameters.keys() <= {"beta", "gamma", "phi_first", "cut", "mask"}:
        facts, tables = shown(fitted.parameters, scaler.classes, scaler.k)
        fitted = dataclasses.replace(fitted, tables=[*fitted.tables, *tables], facts={**fitted.facts, **facts})
    return Fit(**vars(fitted), scaler=scaler)


# Of scores that are probabilities, 0 has the logarithm -inf. Where it is cut decides a fit on logarithms: each such row
# is a lever. So the cut is chosen by the NLL of held-out rows, is a parameter of the map, and is used wherever it runs.

CHOOSING = 10_000  # most rows by which a cut is chosen
MOST_SCORES = 500_000  # most scores of these rows
GAIN = 1e-9  # nats; a smaller difference is rounding


@dataclass(frozen=True)
class CutScores:
    """A method on scores whose probabilities below `cut` are raised to it (0: none are), with the note that says so."""

    choice: Choice[ScalerTraits]
    cut: float = 0.0
    note: str = ""

    def fit(self, predictions: Predictions, context: FitContext) -> FittedParameters:
        """Fit the method to the raised scores; the cut is one of its parameters."""
        if not self.cut:
            fitted: FittedParameters = self.choice(predictions, context)
            return fitted
        raised = predictions.mapped(lambda z: np.maximum(z, math.log(self.cut)), predictions.predicted)
        fitted = self.choice(raised, context)
        return dataclasses.replace(fitted, parameters={**fitted.parameters, "cut": np.array(self.cut)})

    def nll(self, fit_rows: Predictions, rows: Predictions, seed: int) -> Array:
        """Return the NLL of each of `rows` after a fit to other rows, (n,)."""
        context = FitContext(seed=seed, report=False, rows=np.arange(fit_rows.n))
        log_p = program.apply(self.choice.traits.map, self.fit(fit_rows, context).parameters, rows.logits)
        return np.asarray(-log_p[np.arange(rows.n), rows.labels])

    @property
    def words(self) -> str:
        """Say what the map is of."""
        if self.choice.options.get("on") == "p":
            return "probabilities"
        return f"log-odds cut at p = {self.cut:.2g}" if self.cut else "log-odds"


def candidates(choice: Choice[ScalerTraits], predictions: Predictions) -> list[CutScores]:
    """Return the cuts to choose among, those that differ on these rows, the most robust first.

    They are 1 / (2n), for n rows, and 1e-15 (or what `--clip` says), where a probability is below the latter; and, for
    a method with `on=auto`, the probability in place of its log-odds: of two classes always.
    """
    plain, clip = [CutScores(choice)], predictions.record.clip
    settled = not choice.traits.cuts or choice.options.get("on") == "p"
    if settled or predictions.kind == "logits" or predictions.record.choices_vary:
        return plain
    both = choice.options.get("on") == "auto"
    least = min((float(block.min(initial=0.0)) for _, block in predictions.blocks()), default=0.0)
    exact = least <= math.log(max(clip, CUT)) * (1 - 1e-6)  # 1e-6: of rounding, as of scores in float32
    if not exact and not (both and predictions.k == 2 and predictions.n >= 2 * FOLDS):
        return plain
    w = predictions.weights
    n = predictions.n if w is None or predictions.weight_kind == "sampling" else float(w.sum())
    cuts = [max(cut, clip) for cut in (1 / (2 * max(n, predictions.k)), CUT)]
    found = dict.fromkeys(cut if least < math.log(cut) else 0.0 for cut in cuts)
    on_p = Choice(choice.entry, {**choice.options, "on": "p"})
    return [*(CutScores(choice, cut) for cut in found), *([CutScores(on_p)] if both else [])]


def choose_cut(choice: Choice[ScalerTraits], predictions: Predictions, seed: int) -> CutScores:
    """Return the candidate of the lowest NLL over rows that were held out, in FOLDS folds of at most CHOOSING rows."""
    tried = candidates(choice, predictions)
    if len(tried) == 1:
        return tried[0]
    rows = sample(predictions, min(CHOOSING, max(MOST_SCORES // predictions.k, FOLDS)), seed)
    folds = fold_of_rows(rows, FOLDS, seed)
    if len(np.unique(folds)) < FOLDS or rows.n < 2 * FOLDS:
        return tried[0]
    parts = [(subset(rows, np.flatnonzero(folds != f)), np.flatnonzero(folds == f)) for f in range(FOLDS)]
    weights = np.ones(rows.n) if rows.weights is None else rows.weights
    nll = []
    for one in tried:
        total = sum(float(weights[out] @ one.nll(inside, subset(rows, out), seed)) for inside, out in parts)
        nll.append(total / float(weights.sum()))
    best = next(one for one, value in zip(tried, nll, strict=True) if value <= min(nll) + GAIN)
    others = ", ".join(f"of {one.words} {v:.4g}" for one, v in zip(tried, nll, strict=True) if one is not best)
    text = f"{choice.name} is a map of {best.words}: its NLL in {FOLDS} folds is {min(nll):.4g}, {others}"
    return dataclasses.replace(best, note=text)


def applicable(top_only: bool = False) -> list[str]:
    """Return the names of the methods for the scores of every class, or for confidences alone."""
    return [e.name for e in SCALERS if not top_only or e.traits.of_confidence]


def cross_fit(
    spec: str,
    predictions: Predictions,
    folds: int = FOLDS,
    seed: int = 0,
    progress: Progress | None = None,
    memory: dict[str, Any] | None = None,
    split_seed: int | None = None,
) -> Predictions:
    """Map every row by the scaler that was fitted without its fold: out-of-fold predictions.

    Settings that a method chooses by cross-validation (penalties) are chosen for each fold by the held-out NLL of the
    other folds' rows. They come from one search over all rows, which `fit` may have left in `memory`.
    Methods that preserve accuracy keep the predicted class of the raw logits.

    Args:
        spec, predictions, progress, memory: as in `fit`.
        folds: number of folds.
        seed: of what is random in a fit.
        split_seed: of the folds (default: `seed`).

    Raises:
        UsageError: there are fewer than 2 folds.
        InputError: there are fewer rows, or groups, than folds.
    """
    if folds < 2:
        raise UsageError(f"{folds} fold{'' if folds == 1 else 's'}", "pass 2 folds or more")
    folds_of = fold_of_rows(predictions, folds, seed if split_seed is None else split_seed)
    if len(np.unique(folds_of)) < folds:
        groups = "" if predictions.groups is None else f" in {len(np.unique(predictions.groups))} groups"
        problem = f"{count_text(predictions.n, 'row')}{groups} cannot be split into {folds} folds"
        raise InputError(problem, "pass more rows or groups, or fewer folds")
    memory = {} if memory is None else memory
    choice, scalers = SCALERS.choose(spec), []
    search = choice.traits.search
    searched = not memory and search is not None and search(choice.options)
    for fold in extensions.with_progress(
        range(-searched, folds), lambda fold: f"{spec}: fold {fold + 1} of {folds}", progress
    ):
        if fold < 0:
            fit(spec, predictions, seed=seed, report=False, memory=memory)
            continue
        rows = np.flatnonzero(folds_of != fold)
        fitted = fit(spec, subset(predictions, rows), seed=seed, report=False, memory=memory, rows=rows)
        scalers.append(fitted.scaler)
    return dataclasses.replace(
        predictions,
        scores=FoldedScores(predictions.scores, scalers, folds_of),
        predicted=raw_argmax(predictions) if scalers[0].preserves_accuracy else None,
        kind=_kind(scalers[0], predictions),
    )


class HeldOutRows:
    """Rows mapped by fits that did not see them: every method over the same folds of the rows, each fitted once.

    Args:
        predictions: labelled rows.
        folds, seed, split_seed: as in `cross_fit`.
        threads: workers that measure the rows.
    """

    def __init__(
        self,
        predictions: Predictions,
        folds: int = FOLDS,
        seed: int = 0,
        split_seed: int | None = None,
        threads: int | None = 1,
    ) -> None:
        self.predictions, self.folds, self.seed, self.split_seed = predictions, folds, seed, split_seed
        self.threads = threads
        self.mapped = {NONE: predictions}
        self.nll: dict[str, Array] = {}
        # smallest and largest NLL of each row, (N,) each, over the labels that it might have
        self.ranges: dict[str, tuple[Array, Array]] = {}

    def rows(self, spec: str, progress: Progress | None = None, memory: dict[str, Any] | None = None) -> Predictions:
        """Return all rows, mapped by the method; `none` leaves them as they are.

        Raises:
            UsageError, InputError: as `cross_fit`.
        """
        if spec not in self.mapped:
            self.mapped[spec] = cross_fit(
                spec, self.predictions, self.folds, self.seed, progress, memory, self.split_seed
            )
        return self.mapped[spec]

    def columns(self, spec: str, progress: Progress | None = None) -> Columns:
        """Return the numbers of each row after the method.

        Raises:
            UsageError, InputError: as `cross_fit`.
        """
        self._keep_rows()
        table = columns(self.rows(spec, progress), class_bins=(), threads=self.threads)
        self.nll[spec] = table.nll  # the other numbers of all methods would fill the memory
        self.ranges[spec] = -np.log(table.confidence), np.asarray(table.most)
        return table

    def _keep_rows(self) -> None:
        if self.predictions.n > MANY:
            problem = f"{self.predictions.n:,} rows are more than {MANY:,}, of which no numbers of each row are kept"
            raise InputError(problem, "compare methods on a part of the rows")

    def difference(self, spec: str, other: str, level: float) -> dict[str, Any]:
        """Return the mean NLL of one method minus that of another as `value`, with `low`, `high`, `se` and `level`, or
        the `reason` why there are none. It is the paired difference of metrics before and after (`MeanDifference`),
        over rows, or over groups where there are any.
        """
        for name in (spec, other):
            if name not in self.nll:
                self.columns(name)
        rows, nll, others = self.predictions, self.nll[spec], self.nll[other]
        with np.errstate(invalid="ignore"):
            # equal infinite values do not differ, nor do values that only rounding separates
            alike = np.isclose(nll, others, rtol=1e-12, atol=1e-12)
            values = np.where(alike, 0.0, nll - others)
            mean = WeightedMean(values, rows.weights, rows.weight_kind == "count", rows.groups)
            if not math.isfinite(mean.value):
                return {"value": mean.value, "reason": "the NLL of a row is infinite"}
        if mean.lacking:
            return {"value": mean.value, "reason": mean.lacking}
        # (N,) the least and the most that `spec` minus `other` may be in a row, whatever its label
        low, high = difference_range(before=self.ranges[other], after=self.ranges[spec])
        estimate = MeanDifference(mean=mean, low=low, high=high).paired(level)
        if not estimate.bounded:
            return {"value": estimate.value, "reason": BOUNDLESS}
        return {"value": estimate.value, "low": estimate.low, "high": estimate.high, "se": estimate.se, "level": level}

    def gain(self, spec: str, over: str, level: float, progress: Progress | None = None) -> Estimate:
        """Estimate how many nats a method saves over another one on held-out rows; no value where rows are too few."""
        common: dict[str, Any] = {"name": "gain", "n": self.predictions.n, "unit": "nats"}
        common["how"] = f"NLL of {over} minus that of {spec}, rows held out in {self.folds} folds, paired"
        try:
            self._keep_rows()
            for name in extensions.with_progress((over, spec), report=progress):
                self.rows(name)
            return Estimate(**common, **self.difference(over, spec, level))
        except InputError as error:
            return Estimate(**common, value=None, reason=error.problem)


def apply(scaler: Scaler, predictions: Predictions) -> Predictions:
    """Map rows by the scaler, block by block when they are read.

    Raises:
        InputError: the classes do not match.
    """
    check_classes(scaler, predictions)
    mapped = predictions.mapped(scaler.map, predicted=raw_argmax(predictions) if scaler.preserves_accuracy else None)
    return dataclasses.replace(mapped, kind=_kind(scaler, predictions))


def _refuse_varying(choice: Choice[ScalerTraits], predictions: Predictions) -> None:
    """Refuse a map of each class by itself where rows have different numbers of classes.

    Such a map would give a probability to choices that a question does not have.

    Raises:
        InputError: the questions have different numbers of choices.
    """
    if predictions.record.choices_vary and not keeps_classes(choice):
        fits = [e.name for e in SCALERS if keeps_classes(SCALERS.choose(e.name))]
        theirs = f"the questions of {predictions.source} differ in theirs"
        problem = f"{choice.name} maps every choice by itself, and {theirs}"
        raise InputError(problem, f"choose among {', '.join(fits)} (--method)")


def _kind(scaler: Scaler, predictions: Predictions) -> Kind:
    """Return the kind of the mapped scores.

    A class at -inf was left out of logits, and has probability 0 in log-probabilities. Only maps by T and γ keep it
    left out.
    """
    left_out = predictions.kind == "logits" and scaler.parameters.keys() <= LEAVES_OUT
    return "logits" if left_out else "log_probabilities"


def check_classes(scaler: Scaler, predictions: Predictions) -> None:
    """Refuse predictions whose classes are not those of the calibrator.

    Raises:
        InputError: the classes differ in number, names or order.
    """
    _refuse_varying(scaler.choice, predictions)
    refuse_other_cut(scaler, predictions)
    fix = "fit a calibrator on outputs of this model"
    if predictions.top_only != (scaler.classes == WRONG_OR_RIGHT):
        kinds = ("confidences", "scores of every class")
        a, b = kinds if predictions.top_only else kinds[::-1]
        raise InputError(f"{predictions.source} holds {a}, the calibrator was fitted on {b}", fix)
    if predictions.k != scaler.k:
        problem = f"{predictions.source} has {predictions.k} classes, the calibrator was fitted on {scaler.k}"
        raise InputError(problem, fix)
    names = tuple(map(str, predictions.classes or ()))
    if names and scaler.classes and predictions.k == 2 and names[1] == scaler.classes[1]:  # one column names its event
        return
    same_order(scaler, names, predictions.source)
    if scaler.classes is None or names in ((), scaler.classes):
        return
    odd = next(name for name in (*names, *scaler.classes) if (name in names) != (name in scaler.classes))
    raise InputError(f"the classes differ: '{odd}' is only in {'the data' if odd in names else 'the calibrator'}", fix)


def refuse_other_cut(scaler: Scaler, predictions: Predictions) -> None:
    """Refuse probabilities that were raised to another smallest one than the calibrator raises them to.

    Raises:
        InputError: the two differ, or the scores are logits, which are no logarithms of probabilities.
    """
    clip, cut = predictions.record.clip, float(scaler.parameters.get("cut", 0.0))
    if cut and predictions.kind == "logits":
        problem = f"{predictions.source} holds logits, the calibrator raises probabilities below {cut:g}"
        raise InputError(problem, "pass probabilities as in its fit, or fit a calibrator on logits")
    if clip and clip > cut:  # a smaller one changes nothing
        raises = f"raises them to {cut:g} itself" if cut else "was fitted without, and would not do it where it runs"
        problem = f"--clip raises the probabilities of {predictions.source} to {clip:g}, the calibrator {raises}"
        raise InputError(problem, "leave --clip out" if cut else "leave --clip out, or fit with the same --clip")


def same_order(scaler: Scaler, classes: Sequence[Any], source: str) -> None:
    """Refuse the names of the calibrator's classes in another order.

    Without names, or with entirely other ones, the order is unknown. That is refused only where --event has exchanged
    the two classes of the calibrator.

    Raises:
        InputError: the order is another one, or may be.
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


# Calibrated scores are written block by block, so that memory does not grow with the file.

SUFFIXES = (".npz", ".npy", ".csv")


@dataclass(frozen=True)
class WrittenRows:
    """Counts of rows that changed on the way to a file.

    Attributes:
        changed: rows whose predicted class differs from that of the raw scores.
        raised: rows with a probability below the smallest number of the file's type. That number is written in its
            place, as 0 would make the NLL infinite.
    """

    changed: int
    raised: int


Write = Callable[[NDArray[Any], slice], None]


def stream(
    scaler: Scaler,
    predictions: Predictions,
    path: Path,
    *,
    probabilities: bool = True,
    dtype: str = "float32",
    progress: Progress | None = None,
) -> WrittenRows:
    """Write calibrated scores of every row and, in .npz and .csv, its label and what else belongs to it.

    Where the method keeps predicted classes, so does the file: should rounding to `dtype` make two classes equal, the
    argmax of the raw scores is raised by one unit in the last place.

    Args:
        probabilities: write probabilities; else log-probabilities, under the name `logits`.
        dtype: float32 or float64.

    Raises:
        InputError: the classes do not match.
        UsageError: the path cannot be written, or logits are asked of confidences alone.
    """
    check_classes(scaler, predictions)
    if predictions.top_only and not probabilities:
        raise UsageError("--as logits is for the scores of classes, this is a confidence alone", "leave it out")
    changed, raised, name = 0, 0, "probabilities" if probabilities else "logits"
    least = float(np.finfo(dtype).tiny)
    with _writing(known_suffix(path, SUFFIXES, "scores"), name, predictions, np.dtype(dtype)) as write:
        for start, block in predictions.blocks():
            scores = scaler.map(block)
            if probabilities:
                low = (scores < math.log(least)) & (scores > -np.inf)
                raised += int(low.any(axis=1).sum())
                scores = np.where(low, least, np.exp(scores))
            out = scores.astype(dtype)
            if predictions.top_only:  # both classes are of the one that was predicted
                write(out[:, 1:], slice(start, start + len(block)))
                continue
            raw = block.argmax(axis=1)
            other = keep_first(out, raw) if scaler.preserves_accuracy else np.flatnonzero(out.argmax(axis=1) != raw)
            changed += len(other)
            write(out, slice(start, start + len(block)))
            if progress:
                progress((start + len(block)) / max(predictions.n, 1), "writing")
    return WrittenRows(changed, raised)


def _columns(predictions: Predictions) -> dict[str, NDArray[Any]]:
    """Return the arrays that belong to the rows, by name."""
    labels = predictions.labels if predictions.record.labelled else None
    of_group = ROW_OF_POSITION if predictions.record.group == ROW_OF_POSITION else "group"  # the former is read as such
    arrays: dict[str, NDArray[Any] | None] = {
        "correct" if predictions.top_only else "labels": labels,
        "ids": predictions.ids,
        "weights": predictions.weights,
        of_group: predictions.groups,
        **predictions.slices,
    }
    return {name: np.asarray(value) for name, value in arrays.items() if value is not None}


@contextlib.contextmanager
def _writing(path: Path, name: str, predictions: Predictions, dtype: np.dtype[Any]) -> Iterator[Write]:
    shape: tuple[int, ...] = (predictions.n, predictions.k)
    if predictions.top_only:
        shape, name = (predictions.n,), "confidence"
    columns = _columns(predictions)
    file: IO[Any]
    with contextlib.ExitStack() as stack:
        temporary = stack.enter_context(atomic(path))
        if path.suffix == ".csv":
            values = predictions.record.label_values
            if values is not None and "labels" in columns:  # as they stood in the file
                columns["labels"] = np.asarray(values)[columns["labels"]]
            file = stack.enter_context(temporary.open("w", encoding="utf-8", newline=""))
            prefix = "prob_" if name == "probabilities" else "logit_"
            heads = [name] if predictions.top_only else [prefix + suffix for suffix in _suffixes(predictions)]
            yield _csv(file, heads, columns)
            return
        if predictions.classes is not None and not predictions.top_only:
            columns["classes"] = np.asarray(predictions.classes, dtype=str)
        file = stack.enter_context(array_file(temporary, path.suffix, name, shape, dtype, columns))
        yield lambda block, rows: put(file, block, dtype)


@contextlib.contextmanager
def array_file(
    path: Path, suffix: str, name: str, shape: tuple[int, ...], dtype: np.dtype[Any], beside: Mapping[str, NDArray[Any]]
) -> Iterator[IO[bytes]]:
    """Open an `.npz` (with the arrays `beside`) or `.npy` file for writing the rows of the array `name`."""
    file: IO[bytes]
    with contextlib.ExitStack() as stack:
        if suffix == ".npz":
            archive = stack.enter_context(zipfile.ZipFile(path, "w", allowZip64=True))
            for key, array in beside.items():
                array = array.astype(str) if array.dtype.kind == "O" else array
                with archive.open(f"{key}.npy", "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, array, allow_pickle=False)
            file = stack.enter_context(archive.open(f"{name}.npy", "w", force_zip64=True))
        else:
            file = stack.enter_context(path.open("wb"))
        header: Mapping[str, Any] = {"descr": dtype.newbyteorder("<").str, "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_2_0(file, dict(header))
        yield file


def put(file: IO[bytes], block: NDArray[Any], dtype: np.dtype[Any]) -> None:
    """Append rows of an array to a binary file, little-endian."""
    file.write(np.ascontiguousarray(block, dtype.newbyteorder("<")).tobytes())


def _suffixes(predictions: Predictions) -> list[str]:
    """Return the suffixes of the score columns: names of classes, or indices where names are missing or numeric."""
    names = [str(name) for name in predictions.classes or ()]
    return names if names and not any(name.isdigit() for name in names) else [str(i) for i in range(predictions.k)]


def _csv(file: IO[str], heads: Sequence[str], columns: Mapping[str, NDArray[Any]]) -> Write:
    import csv

    rows = csv.writer(file)
    rows.writerow([*heads, *("label" if c == "labels" else c for c in columns)])

    def write(block: NDArray[Any], where: slice) -> None:
        text = [[np.format_float_positional(v, trim="-") for v in row] for row in block]
        others = [array[where].tolist() for array in columns.values()]
        rows.writerows([*scores, *rest] for scores, *rest in zip(text, *others, strict=True))

    return write
