"""Numbers with rows that were left out, at the smallest and the largest value that these rows allow."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from calibcli.core.registries import Choice
from calibcli.metrics.binned import GapNorm
from calibcli.metrics.binned_bounds import Bounds, Method, table_bounds
from calibcli.metrics.intervals import MeanOf
from calibcli.metrics.registry import MetricTraits, Sample, columns_of, reads_scores
from calibcli.scores.columns import Columns
from calibcli.scores.predictions import Array, Floats, Ints, LeftOut, Predictions


def unlimited(choice: Choice[MetricTraits], sample: Sample, left: LeftOut) -> str:
    """Say why the rows that were left out have no smallest and largest value, or ""."""
    columns, rows = sample.columns, left.rows
    statistic = choice(sample)
    if columns.condensed:
        return f"{choice.name} of so many rows cannot be counted with and without them"
    if left.lost and columns.weights is not None and left.weights is None:
        return "their weights are not known"
    weights = [one for one in (left.weights, None if rows is None else rows.weights) if one is not None and len(one)]
    if columns.weights is None and any(np.ptp(one) for one in weights):  # those of the others are equal
        return "their weights differ from those of the others"
    if left.lost and columns.groups is not None and left.groups is None:
        return "their groups are not known"
    if choice.traits.table_bounds:
        return ""
    if not isinstance(statistic, MeanOf):
        return f"{choice.name} has no smallest and largest value that is known"
    every_class = {*choice.traits.reads} & {"nll", "most", "brier"} or reads_scores(choice)
    if every_class and columns.k > 2 and (left.causes == "classes").any():
        return f"{choice.name} is not defined for a class that the model does not know"
    if left.lost and statistic.mask is not None:
        return f"without scores they may or may not be among the rows that {choice.name} is of"
    if left.lost and not np.isfinite(_ends(choice, sample)).all():
        return f"without scores {choice.name} has no largest value"
    if rows is not None and statistic.mask is not None:
        mask, other_mask = (np.asarray(mean.mask) for mean in _of_both_labels(choice, rows))
        if not np.array_equal(mask, other_mask):
            return f"whether they are among the rows that {choice.name} is of depends on their labels"
    return ""


def means(choice: Choice[MetricTraits], sample: Sample, left: LeftOut) -> list[MeanOf]:
    """Return a mean over rows with the smallest, and with the largest value of each row that was left out."""
    statistic = choice(sample)
    assert isinstance(statistic, MeanOf)
    others = [] if left.rows is None else _of_both_labels(choice, left.rows)
    ends = [(end, np.broadcast_to(end, statistic.values.shape)) for end in statistic.range]
    least, most = _ends(choice, sample) if left.lost else (0.0, 0.0)
    lost = [np.full(left.lost, value) for value in (least, most)]
    values = np.array([other.values for other in others] or np.empty((1, 0)), np.float64)  # (2, n), or (1, 0) of none
    extremes = [values.min(axis=0), values.max(axis=0)]
    whole = _with_rows(sample, left)
    masks = None if statistic.mask is None else [statistic.mask, *(np.asarray(other.mask) for other in others[:1])]
    limits: list[Any] = []
    for i, (end, each) in enumerate(ends):
        reach = [np.broadcast_to(other.range[i], other.values.shape) for other in others]
        side = [(np.minimum, np.maximum)[i].reduce(reach)] if reach else []
        limits.append(np.concatenate([each, *side, lost[i]]) if isinstance(end, np.ndarray) else end)
    return [
        dataclasses.replace(
            statistic,
            sample=whole,
            values=np.concatenate([statistic.values.astype(np.float64), extremes[i], lost[i]]),
            mask=None if masks is None else np.concatenate(masks),
            ends=(limits[0], limits[1]),
        )
        for i in range(2)
    ]


def error_bounds(
    choice: Choice[MetricTraits], sample: Sample, left: LeftOut, *, alpha: float, family: int, method: Method
) -> list[Bounds]:
    """Return the smallest and the largest binned error with its bounds.

    Rows with scores have the labels that make |Σp - Σy| of their bin smallest, and largest. A row without scores, or of
    its own weight, moves the error by at most its share: (n ECE ± m) / (n + m).
    """
    statistic = choice(sample)
    assert isinstance(statistic, GapNorm)
    view, table, total = statistic.view, statistic.table, statistic.view.total
    tables = [(view, table)] * 2
    apart = float(left.lost if left.weights is None else left.weights.sum())
    if left.rows is not None and (left.rows.weights is not None or view.weights is not None):
        apart += float(left.rows.n if left.rows.weights is None else left.rows.weights.sum())
    elif left.rows is not None:
        other = choice(_sample(choice, left.rows)).view
        bins = other.width_bins(choice.options["bins"], choice.options["edges"]).index
        tables = []
        for hit in _extreme_hits(np.asarray(table.weighted_gap) * total, other.p, np.asarray(bins)):
            groups = None if view.groups is None else np.append(view.groups, np.asarray(other.groups))
            p, complement = np.append(view.p, other.p), np.append(view.complement, other.complement)
            merged = dataclasses.replace(view, p=p, complement=complement, hit=np.append(view.hit, hit), groups=groups)
            tables.append((merged, merged.width_bins(choice.options["bins"], choice.options["edges"])))
    bounds = [table_bounds(*one, alpha=alpha, family=family, method=method) for one in tables]
    return [_moved(one, pair[0].total, sign * apart) for one, pair, sign in zip(bounds, tables, (-1, 1))]


def _moved(bounds: Bounds, total: float, by: float) -> Bounds:
    """Return the bounds of an error of rows of that `total` weight and others, which move it by `by`, their weight."""
    if by == 0:
        return bounds
    whole = total + abs(by)
    value, lower, upper = (
        min(1.0, max(0.0, (total * one + by) / whole)) for one in (bounds.value, bounds.lower, bounds.upper)
    )
    return dataclasses.replace(bounds, value=value, lower=lower, upper=upper, n=bounds.n + math.ceil(abs(by)))


def _extreme_hits(gaps: Floats, p: Floats, bins: Ints) -> list[Array]:
    """Return the outcomes (m,) of rows in bins (m,) that make the sum of |gap| smallest, and largest.

    Args:
        gaps: (B,) Σp - Σy of the other rows.  p: (m,).
    """
    rows = np.bincount(bins, minlength=len(gaps))
    most = gaps + np.bincount(bins, p, len(gaps))  # where none of them happened
    right = np.clip(np.rint(most), 0, rows).astype(np.int64)
    none = np.abs(most) >= np.abs(most - rows)
    order = np.argsort(bins, kind="stable")
    place = np.empty(len(bins), np.int64)  # of each row among those of its bin
    place[order] = np.arange(len(bins)) - np.repeat(np.cumsum(rows) - rows, rows)
    return [place < right[bins], ~none[bins]]


def _ends(choice: Choice[MetricTraits], sample: Sample) -> tuple[float, float]:
    """Return the smallest and the largest value of a row of which nothing is known."""
    has, mean = choice.traits, choice(sample)
    assert isinstance(mean, MeanOf)
    low, high = mean.range
    values = has.narrowed(sample.columns.k, choice.options) if has.narrowed else has.values
    return (
        values.low if isinstance(low, np.ndarray) else float(low),
        values.high if isinstance(high, np.ndarray) else float(high),
    )


def _of_both_labels(choice: Choice[MetricTraits], rows: Predictions) -> Sequence[MeanOf]:
    """Return the metric of rows with the label that is most probable, and with the one that is least."""
    if rows.top_only:
        labels = [np.ones(rows.n, np.int64), np.zeros(rows.n, np.int64)]
    else:
        z = np.concatenate([block for _, block in rows.blocks()])  # (n, K)
        offered = z if not (rows.record.choices_vary or rows.record.mask) else np.where(np.isneginf(z), np.inf, z)
        top, least = z.argmax(axis=1), offered.argmin(axis=1)
        labels = [top, np.where(least == top, (top + 1) % rows.k, least)]
    return [choice(_sample(choice, dataclasses.replace(rows, labels=one))) for one in labels]


def _sample(choice: Choice[MetricTraits], rows: Predictions) -> Sample:
    return Sample.of(columns_of(rows, [choice]), rows)


def _with_rows(sample: Sample, left: LeftOut) -> Sample:
    """Return the weights and groups of all rows, with those that were left out last."""

    def column(name: str) -> Any:
        parts = [getattr(sample.columns, name), *([] if left.rows is None else [getattr(left.rows, name)])]
        parts += [getattr(left, name)] if left.lost else []
        return None if parts[0] is None else np.concatenate(parts)

    n = sample.columns.n + (0 if left.rows is None else left.rows.n) + left.lost
    zeros, sample_columns = np.zeros(n, np.int64), sample.columns
    columns = Columns(
        numbers={},
        correct=zeros > 0,
        predicted=zeros,
        labels=zeros,
        k=sample_columns.k,
        weights=column("weights"),
        weight_kind=sample_columns.weight_kind,
        groups=column("groups"),
    )
    return Sample.of(columns, None, sample.seed)
