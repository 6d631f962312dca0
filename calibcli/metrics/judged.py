"""Means of rows of which people labelled a few, drawn at random, and a judge all: prediction-powered inference.

A judge is often a language model. Its verdicts alone give a biased mean, the labels alone a wide interval. Derivation:
docs/statistics/judged.md.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from calibcli.core.errors import InputError, UsageError
from calibcli.core.number_format import count_text, first_few, percent
from calibcli.core.result import Cell, Estimate, Result, Table
from calibcli.metrics import registry
from calibcli.metrics.intervals import BOUNDLESS, Mask, MeanOf, WeightedMean
from calibcli.metrics.registry import Interval, Sample, Statistic
from calibcli.metrics.report import ReportOptions, chosen, class_names
from calibcli.scores import recorded_outputs
from calibcli.scores.confidence import ABSENT
from calibcli.scores.files.text_tables import NO_VALUE
from calibcli.scores.predictions import Array, Floats, Ints, Predictions
from calibcli.scores.reading_options import fates_of

FEWEST = 20  # labels below which the halves do not tell how far the judge may be trusted
CHOSEN_P = 1e-3  # p-value below which people did not draw the rows that they labelled at random
NO_MEAN = "no mean of rows, so that the verdicts of a judge cannot stand in for labels (accuracy, brier and nll are)"


@dataclass(frozen=True, eq=False)
class JudgedRows:
    """Rows by their labels and by the verdicts of a judge.

    Attributes:
        labelled: the n rows with a label, by their labels.  judged: all rows (N,), by the judge.
        has_label: (N,) which of them have a label.  judge: name of the column with the verdicts.
    """

    labelled: Predictions
    judged: Predictions
    has_label: Mask
    judge: str


def read(path: Any, judge: str, how: Mapping[str, Any], labels: str | None = None, **more: Any) -> JudgedRows:
    """Read a file twice: the rows that have a label, and all rows with the verdicts of the judge in place of labels.

    Args:
        judge: column (N,) of what the labels are: classes, or whether the prediction was right.
        how: options of reading.  labels: column with the labels.  more: as `recorded_outputs.read`.

    Raises:
        InputError: a reading is refused; the rows of both are not the same; people chose the rows that they labelled.
        UsageError: an option that would need weights or parts of the rows.
    """
    for name in ("weights", "by", "tasks", "multilabel", "ids"):
        if how.get(name):
            raise UsageError(f"--judge with --{name}", f"leave --{name} out")
    if str(path) in ("-", "/dev/stdin"):
        raise UsageError("--judge reads the file twice, and stdin is there once", "save it, and name the file")
    if judge in (how.get("correct"), how.get("predicted"), labels, how.get("confidence")):
        raise UsageError(f"--judge {judge} is named by another option, too", "name the column of the judge's verdicts")
    missing = how.get("missing") or "labels=drop"
    by_label = {**how, "missing": missing, "labels": labels, "skipped": judge}
    labelled = recorded_outputs.read(path, **by_label, **more)
    record, column = labelled.record, labelled.record.labels
    stated = {option: value for option, value in record.stated.items() if how.get("missing") or option != "missing"}
    record = dataclasses.replace(
        record, stated={**stated, "judge": judge}, unused=[name for name in record.unused if name != judge]
    )
    labelled = dataclasses.replace(labelled, record=record)
    answers = {"missing": f"answers={fate}"} if (fate := fates_of(how.get("missing")).get("answers")) else {}
    shared = {**how, **dict.fromkeys(("labels", "correct", "predicted", "missing")), **answers}
    if record.predicted:  # beside a prediction and a label, verdicts are classes, or say whether it was right
        as_classes = {**shared, "predicted": record.predicted, "labels": judge, "by": [column, judge]}
        judged = _judged(as_classes, path, judge, more)
    if not (record.predicted and _are_classes(judged.slices[judge], judged.slices[column])):
        verdicts = {"correct" if labelled.top_only else "labels": judge, "by": [column]}
        judged = _judged({**shared, **verdicts}, path, judge, more)
    cells = np.char.strip(np.asarray(judged.slices[column]).astype(str))
    has_label = ~np.isin(np.char.lower(cells), [*(ABSENT if labelled.top_only else NO_VALUE)])
    here = np.flatnonzero(has_label)
    if judged.classes != labelled.classes:
        names = [first_few(class_names(rows), 4) for rows in (labelled, judged)]
        problem = f"labels '{column}' are of {names[0]}, verdicts '{judge}' of {names[1]}"
        raise InputError(problem, "write the classes alike in both columns")
    if len(here) != labelled.n or not _same_scores(judged, here, labelled):
        problem = f"{count_text(labelled.n, 'row')} with a label in '{column}' and {len(here):,} of those in '{judge}'"
        raise InputError(f"{problem} are not the same", "write what has no label in one way, such as an empty cell")
    if not 0 < len(here) < judged.n:
        problem = f"{count_text(len(here), 'row')} of {judged.n:,} have a label in '{column}'"
        raise InputError(
            problem, "leave --judge out, if all have one; else save the labels of some rows, and no others"
        )
    return JudgedRows(labelled, judged, has_label, judge)


def _are_classes(verdicts: Array, labels: Array) -> bool:
    """Return whether verdicts (N,) are classes, by their words: all of them words of the labels (N,)."""
    of_judge, of_people = ({text.strip() for text in np.asarray(column).astype(str)} for column in (verdicts, labels))
    return bool(of_judge & of_people) and not of_judge - of_people - ABSENT


def _judged(how: Mapping[str, Any], path: Any, judge: str, more: Mapping[str, Any]) -> Predictions:
    """Read all rows with the verdicts of the judge; one that has none cannot be left out, as it may be of a kind."""
    try:
        return recorded_outputs.read(path, **how, **more)
    except InputError as error:
        if judge in error.problem and any(word in error.problem for word in ("without a verdict", "have no label")):
            fix = "give every row a verdict: the same one in all that have none keeps the mean right, dropping does not"
            raise InputError(error.problem.replace("have no label", "have no verdict"), fix) from None
        if judge in error.problem and "neither right nor wrong" in error.problem:
            raise InputError(
                error.problem, f"{error.fix}: whether the prediction was right, as the labels say"
            ) from None
        raise


def _same_scores(judged: Predictions, here: Ints, labelled: Predictions) -> bool:
    first = slice(0, 1000)
    return bool(np.array_equal(judged.take(here[first]).logits, labelled.take(np.arange(labelled.n)[first]).logits))


def refuse_chosen_rows(rows: JudgedRows, right: Mask) -> None:
    """Refuse labels of rows that were chosen by what the judge says of them.

    Args:
        right: (N,) whether the judge finds the prediction right.

    Raises:
        InputError: the share that has labels differs between both verdicts (Fisher's exact test).
    """
    from scipy.stats import fisher_exact  # here, as it takes long to import

    table = [
        [int((rows.has_label & verdict).sum()), int((~rows.has_label & verdict).sum())] for verdict in (right, ~right)
    ]
    if fisher_exact(table)[1] >= CHOSEN_P:
        return
    shares = [percent(have / max(1, have + have_not)) for have, have_not in table]
    raise InputError(
        f"people labelled {shares[0]} of the rows that '{rows.judge}' finds right and {shares[1]} of the others: they "
        "did not draw them at random",
        "label rows that are drawn at random: no number of all rows follows from labels that were chosen",
    )


@dataclass(frozen=True, eq=False)
class JudgedMean(Statistic):
    """The prediction-powered mean: mean of x(y) - λ x(f) over labelled rows, plus λ times the mean of x(f) of others.

    x(y) is the value of a row with its label y, x(f) with the verdict f of the judge. λ = cov(x(y), x(f)) /
    ((1 + n/m) var x(f)), in [0, 1], for n labels and m other rows. Each half of the labelled rows takes the λ of the
    other half, so that λ does not depend on the rows that it is applied to (Angelopoulos et al. 2023).

    Attributes:
        labelled: x(y) of the n rows with labels.  judged: x(f) of all rows (N,).  has_label: (N,).
    """

    labelled: MeanOf
    judged: MeanOf
    has_label: Mask

    @cached_property
    def trust(self) -> Floats:
        """λ of each labelled row, (n,)."""
        y, f = self.labelled.rows.values.astype(np.float64), self.judged.values[self.has_label].astype(np.float64)
        groups = self.labelled.rows.groups
        unit = np.arange(len(y)) if groups is None else np.unique(groups, return_inverse=True)[1]
        m, trust = int((~self.has_label).sum()), np.zeros(len(y))
        for half in (0, 1):
            other = unit % 2 != half
            variance = float(np.var(f[other])) if other.any() else 0.0
            if variance > 0:
                covariance = float(np.cov(y[other], f[other], bias=True)[0, 1])
                trust[~other] = np.clip(covariance / ((1 + len(y) / m) * variance), 0, 1)
        return trust

    @cached_property
    def corrected(self) -> WeightedMean:
        """x(y) - λ x(f) of the labelled rows."""
        rows = self.labelled.rows
        return dataclasses.replace(rows, values=rows.values - self.trust * self.judged.values[self.has_label])

    @cached_property
    def others(self) -> WeightedMean:
        """x(f) of the rows without a label."""
        return self.judged.rows.at(~self.has_label)

    @property
    def value(self) -> float:
        return self.corrected.value + float(self.trust.mean()) * self.others.value

    def bias(self, level: float) -> tuple[float, float, float]:
        """Return the mean of x(f) - x(y) over the labelled rows, with its interval: how far the judge is off."""
        rows = self.labelled.rows
        of_labels, of_verdicts = rows.values.astype(np.float64), self.judged.values[self.has_label]
        rows = dataclasses.replace(rows, values=of_verdicts - of_labels)
        low, high = (np.asarray(end, np.float64) for end in self.labelled.range)
        below, above = rows.reaches((1 - level) / 2, low - high, high - low)
        return rows.value, rows.value - below, rows.value + above

    def interval(self, level: float) -> Interval:
        """Return a two-sided interval: both means are independent, so that each end is √(a² + b²) from the value."""
        corrected, others, trust = self.corrected, self.others, float(self.trust.mean())
        if corrected.n < FEWEST:
            return Interval(
                reason=f"{count_text(corrected.n, 'label')}, and a judge needs {FEWEST} beside it", n=corrected.n
            )
        if reason := corrected.lacking or others.lacking:
            return Interval(reason=reason, n=corrected.n)
        least, most = self.labelled.range
        all_least, all_most = (np.broadcast_to(end, self.has_label.shape)[~self.has_label] for end in self.judged.range)
        if not (np.isfinite(most).all() and np.isfinite(all_most).all()):
            return Interval(reason=BOUNDLESS, n=corrected.n)
        tail, value = (1 - level) / 2, self.value
        low, high = least - self.trust * most, most - self.trust * least  # of x(y) - λ x(f), each (n,)
        of_labelled, of_others = corrected.reaches(tail, low, high), others.reaches(tail, all_least, all_most)
        below, above = (math.hypot(a, trust * b) for a, b in zip(of_labelled, of_others, strict=True))
        se = math.hypot(corrected.se, trust * others.se)
        alone = self.labelled.rows
        return Interval(
            low=max(value - below, min(float(np.min(least)), value)),
            high=min(value + above, max(float(np.max(most)), value)),
            level=level,
            how=f"prediction-powered, score form, t{corrected.clustered}",
            n=corrected.n,
            se=se,
            detail={
                "labels": corrected.n,
                "verdicts": len(self.has_label),
                "trust": trust,
                "labels_alone": self.labelled.value,
                "judge_alone": self.judged.value,
                "worth_labels": round(alone.n * (alone.se / se) ** 2) if se > 0 else corrected.n,
            },
        )


def report(rows: JudgedRows, options: ReportOptions) -> Result:
    """Report the means that labels and a judge give together; other metrics have no value, and say why.

    Raises:
        InputError: people chose the rows that they labelled.
        UsageError: an option that needs every label.
    """
    for name in ("per_class", "top_k"):
        if getattr(options, name):
            raise UsageError(f"--judge with --{name.replace('_', '-')}", "leave one of them out")
    choices = chosen(rows.labelled, options, ["default"])
    samples = [
        Sample.of(registry.columns_of(part, choices, options.threads), part, options.seed)
        for part in (rows.labelled, rows.judged)
    ]
    refuse_chosen_rows(rows, samples[1].columns.correct.astype(bool))
    estimates, worth = list[Estimate](), list[list[Cell]]()
    for choice in choices:
        labelled, judged = (choice(sample.acyclic) for sample in samples)
        common: dict[str, Any] = {"name": choice.spec, "unit": choice.traits.unit, "better": choice.traits.better}
        if isinstance(labelled, MeanOf) and labelled.mask is None:
            mean = JudgedMean(labelled, judged, rows.has_label)
            estimates.append(Estimate(**common, value=mean.value, **vars(interval := mean.interval(options.level))))
            if interval.detail:
                alone = mean.labelled.interval(options.level)
                ends = [mean.labelled.value, alone.low, alone.high, *mean.bias(options.level)]
                worth.append([choice.spec, *ends, interval.detail["worth_labels"]])
        elif options.specs is not None:
            estimates.append(Estimate(**common, value=None, reason=NO_MEAN))
    facts = {
        "n": rows.labelled.n,
        "verdicts": rows.judged.n,
        "judge": rows.judge,
        **rows.labelled.problem.facts,
        "level": options.level,
    }
    notes = [note for note in rows.labelled.notes if "have no label: left out" not in note]
    heads = ["metric", "labels alone", "low", "high", "judge - labels", "low", "high", "worth labels"]
    title = (
        f"What '{rows.judge}' adds: labels alone, how far it is off on their {rows.labelled.n:,} rows, what it is worth"
    )
    return Result(
        command="metrics",
        estimates=registry.measured(estimates, rows.labelled.problem),
        tables=[Table(name="judge", columns=heads, rows=worth, title=title)] if worth else [],
        notes=notes,
        facts=facts,
    )
