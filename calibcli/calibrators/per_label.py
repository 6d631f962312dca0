"""One calibration map for each label of a multi-label problem; labels with few rows share one."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from calibcli.calibrators.calibrator import SCALERS, Progress, Scaler
from calibcli.calibrators.fitting import apply, cross_fit, fit, part
from calibcli.calibrators.report import RankingOptions, scoped, screened
from calibcli.calibrators.store import load, save
from calibcli.core.errors import InputError, UsageError, refusing
from calibcli.core.result import CHANGE, Cell, Estimate, Result, Table
from calibcli.core.statistics import normal_quantile, weighted_mean
from calibcli.metrics import Sample
from calibcli.metrics import report as measuring
from calibcli.metrics.paired import differences
from calibcli.scores.columns import columns
from calibcli.scores.predictions import ArrayScores, Predictions, kind_words

FEWEST = 20
"""Rows of either kind below which a label has no map of its own: ten for each parameter (Peduzzi et al. 1996)."""


@dataclass(frozen=True)
class Label:
    """The map of a label, its rows before and after, and whether the map is of all labels together."""

    scaler: Scaler
    before: Predictions
    after: Predictions
    shared: bool


def fit_labels(
    parts: Mapping[str, Predictions],
    how: RankingOptions,
    test: Mapping[str, Predictions] | None = None,
    progress: Progress | None = None,
) -> dict[str, Label]:
    """Fit each label, and once all together for those with fewer than `FEWEST` rows that have it, or that have not.

    Raises:
        UsageError: several methods, or an unknown one.
        InputError: rows that cannot be fitted; scores of several kinds.
    """
    methods = how.methods or ("platt",)
    if len(methods) > 1 or methods[0].strip().lower() == "all":
        raise UsageError("--multilabel fits one method to every label", "pass one --method; rank them on one label")
    spec = SCALERS.choose(methods[0]).spec
    kinds = {p.kind: name for name, p in parts.items()}
    if len(kinds) > 1:
        found = " and ".join(f"{kind_words(kind)} ('{name}')" for kind, name in kinds.items())
        raise InputError(f"labels look like scores of several kinds: {found}", "pass --kind")
    few = {name for name, p in parts.items() if min(int(p.labels.sum()), int((1 - p.labels).sum())) < FEWEST}
    shared, crossed = None, dict[str, Predictions]()
    if few:
        whole = stacked(list(parts.values()))
        shared = fit(spec, whole, seed=how.seed, report=False).scaler
        if test is None:
            rows = cross_fit(spec, whole, how.folds, how.seed, split_seed=how.split_seed)
            cuts = np.cumsum([p.n for p in parts.values()])[:-1]
            mapped = np.split(rows.logits, cuts)
            crossed = {
                name: dataclasses.replace(p, scores=ArrayScores(z), kind="log_probabilities")
                for (name, p), z in zip(parts.items(), mapped, strict=True)
            }
    made = {}
    for done, (name, p) in enumerate(parts.items()):
        here = part(progress, done, len(parts), str(name))
        one = shared if name in few and shared else fit(spec, p, seed=how.seed, report=False, progress=here).scaler
        scaler = dataclasses.replace(one, metadata={**one.metadata, "label": str(name)})
        before = p if test is None else test[name]
        if test is not None:
            after = apply(scaler, before)
        elif name in few:
            after = crossed[name]
        else:
            after = cross_fit(spec, p, how.folds, how.seed, split_seed=how.split_seed)
        made[name] = Label(scaler, before, after, name in few)
    return made


def stacked(parts: Sequence[Predictions]) -> Predictions:
    """The rows of every label below each other, in memory; those of one row belong together."""
    first = parts[0]
    weights = None if first.weights is None else np.concatenate([np.asarray(p.weights) for p in parts])
    groups = [np.arange(p.n) if p.groups is None else p.groups for p in parts]
    return dataclasses.replace(
        first,
        scores=ArrayScores(np.concatenate([p.logits for p in parts])),
        labels=np.concatenate([p.labels for p in parts]),
        ids=None,
        weights=weights,
        groups=np.concatenate(groups),
        slices={},
    )


def report(made: Mapping[str, Label], how: RankingOptions, source: str) -> Result:
    """Each label before and after, which map it has, and the mean over labels of what its NLL changes."""
    options = measuring.ReportOptions(specs=how.specs, level=how.level, seed=how.seed, threads=how.threads)
    first, second = (
        scoped(measuring.report_multilabel(rows, options), scope, ())
        for scope, rows in (
            ("before", {name: one.before for name, one in made.items()}),
            ("after", {name: one.after for name, one in made.items()}),
        )
    )
    table, changes, per_row = list[list[Cell]](), list[Estimate](), list[Any]()
    for name, one in made.items():
        before, after = (Sample.of(columns(r, class_bins=(), threads=how.threads)) for r in (one.before, one.after))
        changed = differences(before, after, level=how.level, scope=f"label={name} {CHANGE}")
        changes += changed
        nll = changed[0]
        per_row.append(after.columns.nll - before.columns.nll)
        means = [float(np.average(s.columns.nll, weights=one.before.weights)) for s in (before, after)]
        positive = int(one.before.labels.sum())
        kind = "all labels" if one.shared else "its own"
        table.append([name, one.before.n, positive, kind, *means, nll.value, nll.low, nll.high])
    heads = ["label", "rows", "positive", "map of", "nll before", "nll after", "difference", "low", "high"]
    mean = _mean(per_row, made, how.level)
    few = [name for name, one in made.items() if one.shared]
    notes = []
    if few:
        said = ", ".join(few[:5]) + (", ..." if len(few) > 5 else "")
        problem = f"{len(few)} of {len(made)} labels have fewer than {FEWEST} rows of a kind to fit"
        notes = [f"{problem}; one map of all labels serves them: {said}"]
    spec = next(iter(made.values())).scaler.spec
    facts = {"method": spec, "labels": len(made), "maps of their own": len(made) - len(few), "after": source}
    result = Result(
        command="scale",
        estimates=[mean, *changes, *first.estimates, *second.estimates],
        tables=[Table(name="maps", columns=heads, rows=table, title="Labels"), *first.tables, *second.tables],
        plots=[*first.plots, *second.plots],
        notes=[*first.notes, *notes],
        facts={**facts, "headline": _headline(spec, mean, len(made), len(few))},
    )
    return screened(result)


def _mean(per_row: Sequence[Any], made: Mapping[str, Label], level: float) -> Estimate:
    """Mean over labels of the change of the NLL, with an interval over rows."""
    said: dict[str, Any] = {"name": "nll_difference", "scope": "mean of labels", "unit": "nats", "better": "lower"}
    said["tier"] = "all"  # the sentence that the result opens with says it
    said["how"] = "NLL after minus before, mean over labels, paired normal interval over rows"
    if len({len(rows) for rows in per_row}) > 1:
        value = float(np.mean([np.mean(rows) for rows in per_row]))
        return Estimate(**said, value=value, reason="labels have different numbers of rows")
    change = np.mean(per_row, axis=0)
    mean, se = weighted_mean(change, next(iter(made.values())).before.weights)
    z = normal_quantile((1 + level) / 2)
    return Estimate(**said, value=mean, low=mean - z * se, high=mean + z * se, se=se, level=level, n=len(change))


def _headline(spec: str, mean: Estimate, labels: int, few: int) -> str:
    shared = f", {few} of them by one map of all labels" if few else ""
    interval = "" if mean.low is None else f" [{mean.low:+.3g}, {mean.high:+.3g}]"
    return f"{spec} of {labels} labels{shared}: NLL changed by {mean.value:+.3g}{interval} nats in the mean of labels."


def save_labels(made: Mapping[str, Label], folder: Path) -> None:
    """One calibrator for each label, in their order: `000-cat.safetensors`, `001-dog.safetensors`, ...

    Raises:
        InputError: the folder cannot be made.
    """
    with refusing(OSError, lambda e: f"cannot make the folder {folder} ({e.strerror})", "name another"):
        folder.mkdir(exist_ok=True)
    for i, (name, one) in enumerate(made.items()):
        save(one.scaler, folder / f"{i:03d}-{re.sub(r'[^A-Za-z0-9_.-]+', '_', str(name))[:60]}.safetensors")


def may_save(folder: Path) -> None:
    """Refuse, before any work, a folder that cannot be made or has files.

    Raises:
        UsageError: it is so.
    """
    empty = folder.is_dir() and not any(folder.iterdir())
    if folder.suffix or not folder.parent.is_dir() or (folder.exists() and not empty):
        problem = f"'{folder}' cannot hold the calibrators of labels"
        raise UsageError(problem, "name a new or empty folder, without a suffix")


def load_labels(folder: Path) -> dict[str, Scaler]:
    """The calibrators of `save_labels`, by label.

    Raises:
        InputError: it is no such folder.
    """
    paths = sorted(folder.glob("*.safetensors")) if folder.is_dir() else []
    made = {str(one.metadata.get("label", "")): one for one in map(load, paths)}
    if not paths or len(made) < len(paths) or "" in made:
        fix = "pass the folder that calib scale --multilabel --save wrote"
        raise InputError(f"{folder} is not a folder of calibrators of labels", fix)
    return made


def check_labels(names: Sequence[str], made: Sequence[str]) -> None:
    """Refuse scores of other labels than those of the fit, or of labels in another order; numbers are nobody's name.

    Raises:
        InputError: they are.
    """
    if [*names] not in ([str(i) for i in range(len(made))], [*made]):
        problem = f"the labels are {_named(names)}, the calibrators are of {_named(made)}"
        raise InputError(problem, "pass the same labels in the same order")


def _named(labels: Sequence[str]) -> str:
    return ", ".join(labels[:4]) + (f", ... ({len(labels)})" if len(labels) > 4 else "")


@dataclass(frozen=True)
class LabelCalibrators(Scaler):
    """The calibrators of labels as one: a score (n, L) of each label to the logarithm of its probability, (n, L).

    Attributes:
        parts: the calibrator of each label.
    """

    parts: tuple[Scaler, ...] = ()

    @classmethod
    def of(cls, made: Mapping[str, Scaler]) -> LabelCalibrators:
        parts = tuple(made.values())
        about = {"kind": parts[0].kind, "columns": len(parts)}
        return cls(parts[0].spec, len(parts), {}, tuple(made), about, parts)

    @property
    def preserves_accuracy(self) -> bool:
        return False

    def _mapped(self, scores: Any) -> tuple[Any, Any]:
        z = np.asarray(scores)
        if z.ndim != 2 or z.shape[1] != self.k:
            raise InputError(f"scores of shape {z.shape} for {self.k} labels", f"pass an array (n, {self.k})")
        return np.stack([one(z[:, i])[:, 1] for i, one in enumerate(self.parts)], axis=1), z
