"""One calibration map for each label of a multi-label problem. Labels with few rows share one map."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from calibcli.calibrators.calibrator import SCALERS, Progress, Scaler
from calibcli.calibrators.fitting import apply, cross_fit, fit
from calibcli.calibrators.report import RankingOptions, scoped, screened
from calibcli.calibrators.store import load, save
from calibcli.core import extensions
from calibcli.core.errors import InputError, UsageError, refusing
from calibcli.core.number_format import first_few
from calibcli.core.result import Cell, Estimate, Result, Table
from calibcli.core.scope import CHANGE, MEAN_OF_LABELS, Scope
from calibcli.core.statistics import normal_quantile, weighted_mean
from calibcli.metrics import Sample
from calibcli.metrics import report as measuring
from calibcli.metrics.paired import differences
from calibcli.scores.columns import columns
from calibcli.scores.data_frames import names_of, refuse_moved_columns
from calibcli.scores.predictions import ArrayScores, Predictions, kind_words

FEWEST = 20
"""A label has a map of its own with this many rows of either kind: ten per parameter (Peduzzi et al. 1996)."""


@dataclass(frozen=True)
class FittedLabel:
    """The map of a label, its rows before and after, and whether the map is shared by labels with few rows."""

    scaler: Scaler
    before: Predictions
    after: Predictions
    shared: bool


def fit_labels(
    parts: Mapping[str, Predictions],
    options: RankingOptions,
    test: Mapping[str, Predictions] | None = None,
    progress: Progress | None = None,
) -> dict[str, FittedLabel]:
    """Fit a map to each label.

    Labels with fewer than `FEWEST` rows that have it, or that have it not, share one map that is fitted to all labels.

    Raises:
        UsageError: there are several methods, or the method is unknown.
        InputError: the rows cannot be fitted, or labels have scores of several kinds.
    """
    methods = options.methods or ("platt",)
    if len(methods) > 1 or methods[0].strip().lower() == "all":
        raise UsageError("--multilabel fits one method to every label", "pass one --method; rank them on one label")
    spec = SCALERS.choose(methods[0]).spec
    kinds = {p.kind: name for name, p in parts.items()}
    if len(kinds) > 1:
        kinds_text = " and ".join(f"{kind_words(kind)} ('{name}')" for kind, name in kinds.items())
        raise InputError(f"labels look like scores of several kinds: {kinds_text}", "pass --kind")
    few = {name for name, p in parts.items() if min(int(p.labels.sum()), int((1 - p.labels).sum())) < FEWEST}
    shared, crossed = None, dict[str, Predictions]()
    if few:
        all_labels = stacked(list(parts.values()))
        shared = fit(spec, all_labels, seed=options.seed, report=False).scaler
        if test is None:
            rows = cross_fit(spec, all_labels, options.folds, options.seed, split_seed=options.split_seed)
            cuts = np.cumsum([p.n for p in parts.values()])[:-1]
            mapped = np.split(rows.logits, cuts)
            crossed = {
                name: dataclasses.replace(p, scores=ArrayScores(z), kind="log_probabilities")
                for (name, p), z in zip(parts.items(), mapped, strict=True)
            }
    fitted = {}
    for name, p in extensions.with_progress([*parts.items()], lambda one: str(one[0]), progress):
        if shared is not None and name in few:
            scaler = shared
        else:
            scaler = fit(spec, p, seed=options.seed, report=False).scaler
        scaler = dataclasses.replace(scaler, metadata={**scaler.metadata, "label": str(name)})
        before = p if test is None else test[name]
        if test is not None:
            after = apply(scaler, before)
        elif name in few:
            after = crossed[name]
        else:
            after = cross_fit(spec, p, options.folds, options.seed, split_seed=options.split_seed)
        fitted[name] = FittedLabel(scaler, before, after, name in few)
    return fitted


def stacked(parts: Sequence[Predictions]) -> Predictions:
    """Stack the rows of all labels in memory; the labels of one row form a group."""
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


def report(fitted: Mapping[str, FittedLabel], options: RankingOptions, source: str) -> Result:
    """Make the result: each label before and after, its map, and the mean change of NLL over labels."""
    before_rows = {name: one.before for name, one in fitted.items()}
    after_rows = {name: one.after for name, one in fitted.items()}
    before_result = scoped(measuring.report_multilabel(before_rows, options.measured), "before", ())
    after_result = scoped(measuring.report_multilabel(after_rows, options.measured), "after", ())
    table, changes, per_row = list[list[Cell]](), list[Estimate](), list[Any]()
    for name, label in fitted.items():
        before, after = (
            Sample.of(columns(r, class_bins=(), threads=options.threads)) for r in (label.before, label.after)
        )
        changed = differences(before, after, level=options.level, where=Scope(parts={"label": str(name)}, phase=CHANGE))
        changes += changed
        nll = changed[0]
        per_row.append(after.columns.nll - before.columns.nll)
        means = [float(np.average(s.columns.nll, weights=label.before.weights)) for s in (before, after)]
        positive = int(label.before.labels.sum())
        kind = "all labels" if label.shared else "its own"
        table.append([name, label.before.n, positive, kind, *means, nll.value, nll.low, nll.high])
    heads = ["label", "rows", "positive", "map of", "nll before", "nll after", "difference", "low", "high"]
    maps = Table(name="maps", columns=heads, rows=table, title="Labels")
    mean = _mean(per_row, fitted, options.level)
    few = [name for name, one in fitted.items() if one.shared]
    notes = [*before_result.notes]
    if few:
        problem = f"{len(few)} of {len(fitted)} labels have fewer than {FEWEST} rows with or without the label"
        notes.append(f"{problem}; they share one map that is fitted to all labels: {first_few(few, 5)}")
    spec = next(iter(fitted.values())).scaler.spec
    facts = {"method": spec, "labels": len(fitted), "maps of their own": len(fitted) - len(few), "after": source}
    result = Result(
        command="scale",
        estimates=[mean, *changes, *before_result.estimates, *after_result.estimates],
        tables=[maps, *before_result.tables, *after_result.tables],
        plots=[*before_result.plots, *after_result.plots],
        notes=notes,
        facts={**facts, "headline": _headline(spec, mean, len(fitted), len(few))},
    )
    return screened(result)


def _mean(per_row: Sequence[Any], fitted: Mapping[str, FittedLabel], level: float) -> Estimate:
    """Estimate the mean change of NLL over labels, with an interval over rows."""
    common: dict[str, Any] = {
        "name": "nll_difference",
        "unit": "nats",
        "better": "lower",
        **Scope(subject=MEAN_OF_LABELS).fields,
    }
    common["tier"] = "all"  # the sentence that the result opens with says it
    common["how"] = "NLL after minus before, mean over labels, paired normal interval over rows"
    if len({len(rows) for rows in per_row}) > 1:
        value = float(np.mean([np.mean(rows) for rows in per_row]))
        return Estimate(**common, value=value, reason="labels have different numbers of rows")
    change = np.mean(per_row, axis=0)
    mean, se = weighted_mean(change, next(iter(fitted.values())).before.weights)
    z = normal_quantile((1 + level) / 2)
    return Estimate(**common, value=mean, low=mean - z * se, high=mean + z * se, se=se, level=level, n=len(change))


def _headline(spec: str, mean: Estimate, labels: int, few: int) -> str:
    shared = f", {few} of them with a shared map" if few else ""
    interval = "" if mean.low is None else f" [{mean.low:+.3g}, {mean.high:+.3g}]"
    return f"{spec} on {labels} labels{shared}: mean NLL over labels changed by {mean.value:+.3g}{interval} nats."


def save_labels(fitted: Mapping[str, FittedLabel], folder: Path) -> None:
    """Write one calibrator for each label, in order: `000-cat.safetensors`, `001-dog.safetensors`, ...

    Raises:
        InputError: the folder cannot be created.
    """
    with refusing(OSError, lambda e: f"cannot make the folder {folder} ({e.strerror})", "name another"):
        folder.mkdir(exist_ok=True)
    for i, (name, label) in enumerate(fitted.items()):
        save(label.scaler, folder / f"{i:03d}-{re.sub(r'[^A-Za-z0-9_.-]+', '_', str(name))[:60]}.safetensors")


def may_save(folder: Path) -> None:
    """Refuse a folder that cannot be created or is not empty, before any work is done.

    Raises:
        UsageError: the folder is refused.
    """
    empty = folder.is_dir() and not any(folder.iterdir())
    if folder.suffix or not folder.parent.is_dir() or (folder.exists() and not empty):
        problem = f"'{folder}' cannot hold the calibrators of labels"
        raise UsageError(problem, "name a new or empty folder, without a suffix")


def load_labels(folder: Path) -> dict[str, Scaler]:
    """Read the calibrators that `save_labels` wrote, by label.

    Raises:
        InputError: the folder is another one.
    """
    paths = sorted(folder.glob("*.safetensors")) if folder.is_dir() else []
    scalers = {str(one.metadata.get("label", "")): one for one in map(load, paths)}
    if not paths or len(scalers) < len(paths) or "" in scalers:
        fix = "pass the folder that calib scale --multilabel --save wrote"
        raise InputError(f"{folder} is not a folder of calibrators of labels", fix)
    return scalers


def check_labels(names: Sequence[str], fitted: Sequence[str]) -> None:
    """Refuse scores whose labels, or their order, differ from those of the fit. Numbers are not compared as names.

    Raises:
        InputError: labels or order differ.
    """
    if [*names] not in ([str(i) for i in range(len(fitted))], [*fitted]):
        problem = f"the labels are {_named(names)}, the calibrators are of {_named(fitted)}"
        raise InputError(problem, "pass the same labels in the same order")


def _named(labels: Sequence[str]) -> str:
    return ", ".join(labels[:4]) + (f", ... ({len(labels)})" if len(labels) > 4 else "")


@dataclass(frozen=True)
class LabelCalibrators(Scaler):
    """The calibrators of all labels as one: scores (n, L) to the logarithm of each label's probability, (n, L).

    Attributes:
        parts: calibrators in the order of the labels.
    """

    parts: tuple[Scaler, ...] = ()

    @classmethod
    def of(cls, scalers: Mapping[str, Scaler]) -> LabelCalibrators:
        parts = tuple(scalers.values())
        metadata = {"kind": parts[0].kind, "columns": len(parts)}
        return cls(parts[0].spec, len(parts), {}, tuple(scalers), metadata, parts)

    @property
    def preserves_accuracy(self) -> bool:
        return False

    def _mapped(self, scores: Any) -> tuple[Any, Any]:
        refuse_moved_columns(names_of(scores), self.classes)
        z = np.asarray(scores)
        if z.ndim != 2 or z.shape[1] != self.k:
            raise InputError(f"scores of shape {z.shape} for {self.k} labels", f"pass an array (n, {self.k})")
        return np.stack([one(z[:, i])[:, 1] for i, one in enumerate(self.parts)], axis=1), z
