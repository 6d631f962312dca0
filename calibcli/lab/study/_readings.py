"""The metrics of finished runs, also on bootstrap draws of the rows."""

from __future__ import annotations

import dataclasses
import functools
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, get_type_hints

import numpy as np

from calibcli import calibrators
from calibcli.core.errors import InputError, UsageError
from calibcli.lab.study import claims
from calibcli.lab.study.claims import MeasuredArm
from calibcli.lab.study.experiment import TRAIN, Study
from calibcli.lab.study.runs import ROWS, StudyRun, logged, record
from calibcli.metrics.binned import GapNorm
from calibcli.metrics.intervals import MeanOf
from calibcli.metrics.registry import METRICS, Sample, traits
from calibcli.scores.columns import Columns, columns
from calibcli.scores.likelihood import log_softmax
from calibcli.scores.predictions import ArrayScores, Floats, Ints, Predictions
from calibcli.scores.recorded_outputs import read

# Metrics on bootstrap draws of the rows: a metric is a function of sums over rows.

ERROR = "error"  # 1 - accuracy, which is in no registry


@dataclass(frozen=True)
class RowSums:
    """The terms of each row (n, m), and the metric as a function of their means (..., m)."""

    parts: Floats
    metric: Callable[[Floats], Floats]

    @property
    def value(self) -> float:
        return float(self.metric(self.parts.mean(axis=0)))

    def drawn(self, times: Floats) -> Floats:
        """Compute the metric on each draw (B,), from the number of times (B, n) that each row is in it."""
        return self.metric((times @ self.parts.astype(times.dtype)).astype(np.float64) / len(self.parts))


def names() -> list[str]:
    """Return the metrics that a study can take: the error, means over rows, and norms of the gaps of bins."""
    kinds = ((entry.name, get_type_hints(entry.target)["return"]) for entry in METRICS)
    return [ERROR, *(name for name, kind in kinds if issubclass(kind, MeanOf | GapNorm))]


def sums(name: str, columns: Columns, rows: Predictions | None = None) -> RowSums:
    """Write a metric of a study, one of `names`, as sums over rows; bins stay those of the original rows.

    Args:
        rows: the scores, for metrics that read them again.
    """
    if name == ERROR:
        return means(np.asarray(~columns.correct, np.float64))
    choice = METRICS.choose(name)
    statistic = choice(Sample.of(columns, rows))
    if isinstance(statistic, GapNorm):
        return binned(statistic, choice.options)
    values = np.asarray(statistic.values, np.float64)
    if statistic.mask is None:
        return means(values)
    return RowSums(np.stack([statistic.mask, np.where(statistic.mask, values, 0.0)], axis=1).astype(np.float64), _ratio)


def means(rows: Floats) -> RowSums:
    """Write the mean of a number of each row as `RowSums`."""
    return RowSums(np.asarray(rows[:, None], np.float64), lambda mean: np.asarray(mean[..., 0]))  # (..., 1) of draws


def binned(statistic: GapNorm, options: Mapping[str, Any]) -> RowSums:
    """Write the norm of the gaps as sums over rows: for each bin the share of rows, residuals and hits.

    Bins of equal mass hold equal numbers of rows; ties stay in row order, as a draw may hold some of them only.
    """
    view, bins = statistic.view, options["bins"]
    if "edges" in options:  # bins of equal width
        assert statistic.table.index is not None
        index: Ints = statistic.table.index.astype(np.int64)
    else:
        index = np.empty(view.n, np.int64)
        index[view.stable_order] = np.arange(view.n) * bins // view.n
    member = np.eye(bins)[index]
    parts = np.hstack([member, member * view.residual[:, None], member * view.hit[:, None]])

    def norm(means: Floats) -> Floats:
        weight, gap, hit = np.split(means, 3, axis=-1)
        inverse = np.divide(1.0, weight, out=np.zeros_like(weight), where=weight > 0)
        of_bins = {"weight": weight, "weighted_gap": gap, "inverse": inverse, "effective": weight * view.n}
        return statistic.norm(SimpleNamespace(**of_bins, confidence=(hit + gap) * inverse))

    return RowSums(parts, norm)


def draws(n: int, count: int, seed: int = 0) -> Floats:
    """Draw n rows with replacement `count` times: (count, n) numbers of times; single precision is enough."""
    rng = np.random.default_rng(seed)
    return np.stack([np.bincount(rng.integers(n, size=n), minlength=n).astype(np.float32) for _ in range(count)])


def _ratio(means: Floats) -> Floats:
    share, value = means[..., 0], means[..., 1]  # of (..., 2), a mean for each draw
    return np.asarray(np.where(share > 0, value / np.where(share > 0, share, 1), np.nan))


# Metrics of the finished runs of an arm, in each of the ways that its confidence can be read.


class ReadArms(NamedTuple):
    """What the runs of the arms on one network say.

    Attributes:
        measured: every metric of each arm whose runs are all finished.
        lost: why another arm has none.
        idle: the accuracy of each trained arm that is not shown to beat the most frequent class.
    """

    measured: dict[str, dict[str, MeasuredArm]]
    lost: dict[str, str]
    idle: dict[str, float]


def measured(study: Study, save: Path, arch: str) -> ReadArms:
    """Measure every metric of each arm whose runs are all finished."""
    complete: dict[str, dict[str, MeasuredArm]] = {}
    lost: dict[str, str] = {}
    idle: dict[str, float] = {}
    times = None
    # claims about binned errors are judged again by second estimators
    names = dict.fromkeys([*study.metrics, *filter(None, (traits(name).debiased for name in study.metrics))])
    for arm in study.arms:
        records = [record(save, StudyRun(arm, arch, seed)) for seed in range(study.seeds)]
        diverged = [one for one in records if one.get("status") == "diverged"]
        absent = sum(not one for one in records)
        if diverged or absent:
            parts = [f"{len(diverged)} of {study.seeds} diverged" * bool(diverged), f"{absent} not run" * bool(absent)]
            lost[arm.name] = ", ".join(filter(None, parts))
            continue
        values: dict[str, list[float]] = {}
        spread: dict[str, list[Any]] = {}
        accuracy: list[float] = []
        for seed, run_record in enumerate(records):
            folder = save / StudyRun(arm, arch, seed).folder
            pair = [read([folder / f"{part}.npz"], kind="logits") for part in ("validation", "test")]
            if times is None:
                times = draws(pair[1].n, claims.DRAWS)
            log = logged(save, StudyRun(arm, arch, seed)) if study.log and not arm.source else []
            for name, value in _alone(study, folder, run_record, log):
                values.setdefault(name, []).append(value)
            for name, terms in _terms(folder).items():
                same_rows = not study.validation and len(terms) == pair[1].n  # as the metrics are measured on
                spread.setdefault(name, []).append(means(terms).drawn(times if same_rows else _draws(len(terms))))
            for reading in study.readings:
                validation, test = (
                    answers(rows, study.masked) if study.masked and not reading else rows for rows in pair
                )
                fit = calibrators.fit("temperature", validation)
                values.setdefault(f"temperature{reading}", []).append(float(fit["temperature"].value or np.nan))
                mapped = [("", test), (" after", calibrators.apply(fit.scaler, test))]
                for spec in study.scalers:
                    fit = calibrators.fit(spec, validation)
                    mapped.append((f" after {spec}", calibrators.apply(fit.scaler, test)))
                    if spec in study.temperatures:
                        chosen = float(fit["temperature"].value or np.nan)
                        values.setdefault(f"temperature after {spec}{reading}", []).append(chosen)
                for suffix, rows in mapped:
                    table = unrenormalised(rows, study.masked) if reading else columns(rows, class_bins=())
                    if not (suffix or reading):
                        accuracy.append(float(table.correct.mean()))
                    for name in names:
                        summed = sums(name, table, rows)
                        values.setdefault(name + suffix + reading, []).append(summed.value)
                        if traits(name).gaps != "largest":  # on draws of the rows it is larger than on the rows
                            spread.setdefault(name + suffix + reading, []).append(summed.drawn(times))
        most = np.bincount(pair[1].labels).max() / pair[1].n
        if not arm.source and np.mean(accuracy) <= most + 2 * np.sqrt(most * (1 - most) / pair[1].n):
            idle[arm.name] = float(np.mean(accuracy))
        complete[arm.name] = {
            name: MeasuredArm(np.array(v), np.stack(spread[name]) if len(spread.get(name, ())) == len(v) else None)
            for name, v in values.items()
        }
    return ReadArms(complete, lost, idle)


def answers(rows: Predictions, masked: str) -> Predictions:
    """Return the same rows with the softmax over all classes but the masked one.

    Raises:
        UsageError: no class has that name, or rows are labelled with it.
    """
    out = list(rows.classes or ()).index(masked) if masked in (rows.classes or ()) else -1
    if out < 0 or bool((rows.labels == out).any()):
        problem = f"no class is called '{masked}'" if out < 0 else f"rows of class {masked} are to be answered"
        raise UsageError(f"{problem}, which `masked` says is never an answer", "correct `masked` in [data]")
    logits = rows.logits.copy()
    logits[:, out] = -np.inf
    return dataclasses.replace(rows, scores=ArrayScores(logits), predicted=None)


def unrenormalised(rows: Predictions, masked: str) -> Columns:
    """Return columns with a prediction among the other classes, and its confidence from the softmax over all classes.

    That is how the code of Mukhoti et al. (2020) does it. It is no probability of being right, since the share of the
    masked class is lost.

    Raises:
        UsageError: as `answers`.
    """
    of_all, answered = columns(rows, class_bins=()), columns(answers(rows, masked), class_bins=())
    confidence = np.exp(log_softmax(rows.logits))[np.arange(rows.n), answered.predicted]
    predicted, correct = answered.predicted, answered.correct
    numbers = {**of_all.numbers, "confidence": confidence, "rest": 1 - confidence}
    return dataclasses.replace(of_all, numbers=numbers, predicted=predicted, correct=correct)


def _terms(folder: Path) -> dict[str, Floats]:
    """Read the terms of the rows of a run's curvature; a run of an earlier version has none.

    Raises:
        InputError: the file cannot be read.
    """
    try:
        with np.load(folder / ROWS) as arrays:
            return {name: arrays[name] for name in arrays.files}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise InputError(f"{folder / ROWS} cannot be read: {error}", "remove that folder, and train it again") from None


@functools.cache
def _draws(n: int) -> Floats:
    """Draw rows that no metric is measured on, in the same way for every run."""
    return draws(n, claims.DRAWS, seed=1)


def _alone(
    study: Study, folder: Path, run: Mapping[str, Any], lines: Sequence[Mapping[str, Any]]
) -> Iterator[tuple[str, float]]:
    """Yield the numbers of a run that stand in its record and its log.

    Raises:
        InputError: its record lacks a number, which was not kept when it was trained.
    """
    for name in (*TRAIN, *(f"{name} of {loss}" for name in study.curvature for loss in study.losses)):
        if name not in run:
            problem = f"{folder / 'run.json'} lacks '{name}': the run is older than this number"
            raise InputError(problem, "remove that folder, and train it again: calib study without --report-only")
        yield name, claims.number(run[name])
    for name in study.log if lines else ():
        for moment in study.moments:
            line = lines[max(0, -(-moment * len(lines) // 100) - 1)]
            yield claims.at_moment(name, moment), claims.number(line.get(name))
