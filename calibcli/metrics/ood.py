"""Detection of rows outside the distribution by a model's scores: AUROC, AUPR, false positives, and differences."""

from __future__ import annotations

import dataclasses
import math
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np

from calibcli.core import extensions
from calibcli.core.errors import InputError, UsageError
from calibcli.core.figure_data import Curve, Plot
from calibcli.core.options import Level, Positive, check_options
from calibcli.core.result import Estimate, Result, Screen, Table
from calibcli.core.scope import WHOLE, Scope
from calibcli.core.statistics import student_quantile
from calibcli.metrics.discrimination import Concordance, TwoSamples, tied, ties, variance
from calibcli.metrics.intervals import share_bounds
from calibcli.metrics.paired import Paired, ranked, shown
from calibcli.metrics.registry import Interval
from calibcli.metrics.reliability import BinaryOutcomes
from calibcli.scores.columns import MANY, columns
from calibcli.scores.predictions import Floats, Ints, Predictions, Progress, kind_words, notes_of

# The statistics besides the AUROC (`discrimination.Concordance`): rows of the distribution are hits, others misses.

KEPT = 0.95  # share of hits that the threshold keeps
SLACK = 1e-12  # rounding of sums of weights


@dataclass(frozen=True, eq=False)
class AveragePrecision(TwoSamples):
    """Average precision: Σ (recall_t - recall_{t-1}) precision_t over falling thresholds.

    The interval is that of the logit (Boyd et al. 2013), with the error from the influence of every row. It reaches at
    least as far as a share of rows that was not drawn may move it: hits below all others, or misses above all.
    """

    @property
    def _above(self) -> tuple[Floats, Floats, Floats]:
        """(T,) hits and misses at or above each tie, and the precision there."""
        hits, misses = (np.cumsum(part[::-1])[::-1] for part in (self.ties.hits, self.ties.misses))
        return hits, misses, precision(hits, misses)

    @cached_property
    def value(self) -> float:
        if min(self._sums) <= 0:
            return math.nan
        return float(self.ties.hits @ self._above[2]) / self._sums[0]

    @property
    def chance(self) -> float:
        """The share of hits, which is the value of a score without information."""
        return self._sums[0] / sum(self._sums)

    @property
    def parts(self) -> tuple[Floats, Floats]:
        t, (all_hits, all_misses), (hits, misses, estimate_of) = self.ties, self._sums, self._above
        share, other = t.hits / all_hits, t.misses / all_misses
        rows = np.maximum(hits + misses, np.finfo(np.float64).tiny)
        of_hit = estimate_of + np.cumsum(share * all_hits * misses / rows / rows)
        of_miss = -np.cumsum(share * all_misses * hits / rows / rows)
        return of_hit - share @ of_hit, of_miss - other @ of_miss

    @cached_property
    def _at_hits(self) -> tuple[Floats, Floats, Floats]:
        """Hits in each tie that has some, hits and misses at or above it: a p-value asks for these many times."""
        here = self.ties.hits > 0
        hits, misses, _ = self._above
        return self.ties.hits[here], hits[here], misses[here]

    def missing(self, tail: float) -> tuple[float, float]:
        """Put as many hits below, or misses above all rows, as may stay undrawn with this chance; or the reverse."""
        (all_hits, all_misses), (here, hits, misses) = self._sums, self._at_hits
        below, above = (min(1.0, -math.log(tail) * side.largest_share) for side in self.sides)
        pushed = misses * (1 - above)
        pushed += hits + all_misses * above
        np.divide(hits, pushed, out=pushed)
        worst = min(self.value + below * (self.chance - self.value), float(here @ pushed) / all_hits)
        return max(self.value - worst, 0.0), (1 - self.value) * max(below, above)

    def interval(self, level: float) -> Interval:
        if self.lacking:
            return Interval(reason=self.lacking)
        m, n = (side.units for side in self.sides)
        value, tail = self.value, (1 - level) / 2
        spread = math.sqrt(variance(self.view, self.influence))
        low = high = value
        if 0 < value < 1:
            odds = value / (1 - value)
            far = math.exp(min(student_quantile(1 - tail, m + n - 2) * spread / (value * (1 - value)), 700.0))
            low, high = odds / far / (1 + odds / far), odds * far / (1 + odds * far)
        below, above = self.missing(tail)
        low, high = min(low, value - below), max(high, value + above)
        how = f"influence of each row, logit, unseen rows{self.clustered}"
        return Interval(low=low, high=high, level=level, se=spread, how=how)


def precision(hits: Floats, misses: Floats) -> Floats:
    """Return the share of hits, 0 where there are no rows."""
    rows = hits + misses
    return np.divide(hits, rows, out=np.zeros_like(rows), where=rows > 0)


@dataclass(frozen=True, eq=False)
class FalsePositives(TwoSamples):
    """FPR at 95 % TPR: the share of misses at the highest threshold that at least 95 % of the hits reach.

    Two things are uncertain: the share of misses at a threshold (Clopper and Pearson's bounds of independent rows) and
    the threshold (those at which the bounds of the share of hits contain 95 %). Their distances from the estimate are
    added as squares (Zou and Donner 2008).
    """

    @cached_property
    def _rates(self) -> tuple[Floats, Floats]:
        """(T,) shares of hits and misses that reach this tie."""
        (all_hits, all_misses), t = self._sums, self.ties
        return np.cumsum(t.hits[::-1])[::-1] / all_hits, np.cumsum(t.misses[::-1])[::-1] / all_misses

    @cached_property
    def tie(self) -> int:
        """Index of the tie at the threshold."""
        return int(np.count_nonzero(self._rates[0] >= KEPT - SLACK)) - 1

    @cached_property
    def value(self) -> float:
        return float(self._rates[1][self.tie]) if min(self._sums) > 0 else math.nan

    def _bounds(self, side: int, tie: int, tail: float) -> tuple[float, float]:
        """Bound the share of hits (side 0) or misses (1) that reach a tie; `lacking` must be empty."""
        reached = self._row_ties[side] >= tie
        bounds = share_bounds(replace(self.sides[side], values=reached), tail)
        assert bounds is not None
        return bounds

    @cached_property
    def _row_ties(self) -> tuple[Floats, Floats]:
        """The tie of each hit, and of each miss."""
        tie = self.row_order(self.ties.tie.astype(np.float64))
        return tie[self.view.hit], tie[~self.view.hit]

    def _last(self, end: int, tail: float) -> int:
        """Return the last tie where the lower (end 0) or upper (1) bound of the share of hits is above 95 %; or -1."""
        ties = range(len(self._rates[0]))
        return bisect_left(ties, True, key=lambda tie: self._bounds(0, tie, tail)[end] <= KEPT) - 1

    def interval(self, level: float) -> Interval:
        if self.lacking:
            return Interval(reason=self.lacking)
        tail, value = (1 - level) / 2, self.value
        bounds, passed = self._bounds(1, self.tie, tail), np.append(self._rates[1], 0.0)
        # a threshold between two ties keeps what reaches the upper one
        most, least = float(passed[self._last(0, tail) + 1]), float(passed[self._last(1, tail)])
        low = value - math.hypot(value - bounds[0], max(value - least, 0.0))
        high = value + math.hypot(bounds[1] - value, max(most - value, 0.0))
        how = "bounds of the share and of the threshold, added as squares"
        return Interval(low=max(low, 0.0), high=min(high, 1.0), level=level, how=how)


# The scores of a model, and the result of `calib ood`, which compares scores and models.

Score = Literal["confidence", "entropy", "energy", "max_logit"]
OF_PROBABILITIES: tuple[Score, ...] = ("confidence", "entropy")
EVERY: tuple[Score, ...] = (*OF_PROBABILITIES, "energy", "max_logit")
AXES = {"entropy": "entropy, nats", "energy": "energy: T log Σ exp(z / T)", "max_logit": "largest logit"}
BINS = 30
SIDES = "inside", "outside"
SHOWN = ("auroc", "fpr95")  # estimates on a screen; the others are shown with -v and in files


@dataclass(frozen=True, kw_only=True)
class OodOptions:
    """Options of `ood`.

    Attributes:
        scores: names, () for all that the files allow.  temperature: of the energy.  level: of intervals.
        alpha: family-wise error of the tests of differences.
        threads: workers, None for every core.
    """

    scores: tuple[str, ...] = ()
    temperature: Positive = 1.0
    level: Level = 0.95
    alpha: float = 0.05
    threads: int | None = 1

    def __post_init__(self) -> None:
        check_options(self)
        if wrong := [name for name in self.scores if name not in EVERY]:
            raise UsageError(f"'{wrong[0]}' is no score", f"choose among {', '.join(EVERY)}")


@dataclass(frozen=True, eq=False)
class OodScores:
    """The outputs of one model on the two files.

    Attributes:
        name: of the model, in differences.  inside, outside: rows of the distribution, and others.
        mapped: whether a calibrator made the probabilities, whose logits then have no level of their own.
    """

    name: str
    inside: Predictions
    outside: Predictions
    mapped: bool = False

    @property
    def files(self) -> tuple[Predictions, Predictions]:
        """Both files."""
        return self.inside, self.outside

    def lacking(self, score: Score) -> str:
        """Return the reason why a score is not defined, or ""."""
        if score == "confidence":
            return ""
        if any(p.top_only for p in self.files):
            return f"{score} needs the scores of every class, not the confidence alone"
        if score == "entropy":
            return ""
        if self.mapped:
            return f"{score} is of the model's logits, which a calibrator replaces by probabilities"
        for p in self.files:
            if p.kind != "logits":
                return f"{score} needs logits, and {p.source} holds {kind_words(p.kind)}"
            if p.record.columns == 1:
                return f"{score} needs a logit of each class, and {p.source} holds one column"
        return ""


@dataclass(frozen=True, eq=False)
class Scored:
    """One score of every row, the rows inside first; larger values mean inside.

    Attributes:
        model: its name, "" for the first.  score: its name.
        shown: scores of each side, in the units that the reader knows.
        view: outcomes by rank of the score, where rows inside are hits.
    """

    model: str
    score: Score
    shown: tuple[Floats, Floats]
    view: BinaryOutcomes

    @property
    def where(self) -> Scope:
        """Scope of the estimates."""
        return Scope(parts={"score": self.score, **({"model": self.model} if self.model else {})})

    @property
    def label(self) -> str:
        """Name in tables and figures."""
        return f"{self.score} of {self.model}" if self.model else self.score

    @cached_property
    def statistics(self) -> dict[str, TwoSamples]:
        """The statistics of this score by name, which share one order of the rows."""
        v = self.view
        turned = dataclasses.replace(v, p=v.complement, complement=v.p, hit=~v.hit)
        turned.set_memoized(ties, v.memoized(ties).turned)
        return {
            "auroc": Concordance(v),
            "aupr_in": AveragePrecision(v),
            "aupr_out": AveragePrecision(turned),
            "fpr95": FalsePositives(v),
        }


def scored(model: OodScores, name: str, options: OodOptions, progress: Progress | None = None) -> Iterator[Scored]:
    """Yield every score of one model.

    Raises:
        InputError: the files have other classes or kinds of weights, or too many rows; or a score of the options is not
            defined.
    """
    inside, outside = model.files
    if inside.k != outside.k or inside.top_only != outside.top_only:
        problem = f"{inside.source} has {inside.k} classes, {outside.source} {outside.k}"
        raise InputError(problem, "pass the scores of one model on both data sets")
    if max(inside.n, outside.n) > MANY:
        raise InputError(f"{max(inside.n, outside.n):,} rows are more than {MANY:,}", "measure a part of them")
    wanted = [score for score in EVERY if score in (options.scores or EVERY)]
    for score in wanted:
        if options.scores and (why := model.lacking(score)):
            raise InputError(why, "leave it out (--score)")
    wanted = [score for score in wanted if not model.lacking(score)]
    common = _joined(inside, outside)
    read = [columns(p, class_bins=(), threads=options.threads, progress=progress) for p in model.files]
    raw = None
    if set(wanted) - {*OF_PROBABILITIES}:
        raw = [levels(p, options.temperature) for p in model.files]
    for score in extensions.with_progress(wanted):
        if score == "confidence":
            shown, complements = [c.confidence for c in read], [c.rest for c in read]
            view = BinaryOutcomes(np.concatenate(shown), np.concatenate(complements), **common)
        elif score == "entropy":
            shown = [c.entropy for c in read]
            view = BinaryOutcomes(np.ones(len(common["hit"])), np.concatenate(shown), **common)
        else:
            assert raw is not None
            shown = [pair[EVERY.index(score) - len(OF_PROBABILITIES)] for pair in raw]
            scores = np.concatenate(shown)
            order = np.argsort(scores)
            view = BinaryOutcomes(scores, np.broadcast_to(1.0, len(scores)), **common)
            rising = scores[order]
            ends = np.flatnonzero(np.concatenate([[True], rising[1:] != rising[:-1], [True]]))
            view.set_memoized(ties, tied(view, order, ends))
        yield Scored(name, score, (shown[0], shown[1]), view)


def levels(predictions: Predictions, temperature: float) -> tuple[Floats, Floats]:
    """Return (N,) T log Σ exp(z / T), the negative energy of Liu et al. (2020), and the largest logit."""
    energy, largest = np.empty(predictions.n), np.empty(predictions.n)
    for start, block in predictions.blocks():
        z = block.astype(np.float64)
        top = z.max(axis=1)
        rows = slice(start, start + len(z))
        largest[rows] = top
        extensions.tell(start / predictions.n, "energies")
        energy[rows] = top + temperature * np.log(np.exp((z - top[:, None]) / temperature).sum(axis=1))
    return energy, largest


def _joined(inside: Predictions, outside: Predictions) -> dict[str, Any]:
    """Concatenate weights and groups of both files; no group lies in both."""
    files = (inside, outside)
    kinds = {p.weight_kind for p in files if p.weights is not None}
    if len(kinds) > 1:
        raise InputError("weights are counts in one file, and not in the other", "pass one kind of weights")
    weights = groups = None
    if kinds:
        weights = np.concatenate([np.ones(p.n) if p.weights is None else p.weights for p in files])
        for p, total in ((inside, weights[: inside.n].sum()), (outside, weights[inside.n :].sum())):
            if not total > 0:
                raise InputError(f"every weight of {p.source} is 0", "leave the weights out")
    if any(p.groups is not None for p in files):
        codes = [np.arange(p.n) if p.groups is None else p.groups for p in files]
        groups = np.concatenate([codes[0], codes[1] + codes[0].max(initial=-1) + 1])
    hit = np.arange(inside.n + outside.n) < inside.n
    return {"hit": hit, "weights": weights, "counts": kinds == {"count"}, "groups": groups}


def report(models: Sequence[OodScores], options: OodOptions | None = None, progress: Progress | None = None) -> Result:
    """Report AUROC, AUPR and FPR at 95 % TPR of every score, with differences between scores and between models.

    Args:
        models: one, or two on the same rows in the same order, of which the second is compared with the first.

    Raises:
        InputError: as `scored`.
    """
    options = options or OodOptions()
    labels, estimates, plots, curves = list[tuple[str, Scope]](), list[Estimate](), list[Plot](), list[Curve]()
    references: dict[str, dict[str, TwoSamples]] = {}
    changes: list[tuple[Estimate, float | None]] = []
    for i, model in enumerate(models):
        for measured in scored(model, model.name if i else "", options, progress):  # each is freed before the next
            estimates += _estimates(measured, options.level)
            labels.append((measured.label, measured.where))
            plots.append(_histogram(measured))
            curves.append(_curve(measured))
            del measured.statistics["fpr95"]
            if i:
                if measured.score in references:
                    where = WHOLE.minus(f"{measured.score}: {measured.model}", models[0].name)
                    changes += _differences(references[measured.score], measured, where, options.level)
            elif len(models) > 1 or not references:
                references[measured.score] = measured.statistics
            else:
                [(first_score, statistics)] = references.items()
                changes += _differences(statistics, measured, WHOLE.minus(measured.score, first_score), options.level)
    table = [shown(changes, options.alpha, "DeLong; ")] if changes else []
    differences = [e for e, _ in changes]
    first = models[0]
    notes = notes_of(*(p for model in models for p in model.files))
    left_out = [f"{name}: {why}" for name in EVERY if not options.scores and (why := models[-1].lacking(name))]
    return Result(
        command="ood",
        estimates=[e if e.name in SHOWN else dataclasses.replace(e, tier="all") for e in (*estimates, *differences)],
        tables=[_table(labels, estimates), *table],
        plots=[*plots, _curves(curves)],
        notes=[*notes, *left_out],
        facts={
            "inside": first.inside.source,
            "outside": first.outside.source,
            "n": first.inside.n,
            "n_outside": first.outside.n,
            **first.inside.problem.facts,
            "level": options.level,
            "alpha": options.alpha,
            **({"temperature": options.temperature} if options.temperature != 1 else {}),
        },
        screen=Screen(pairs="scores", one_page=True),
    )


def _estimates(measured: Scored, level: float) -> Iterator[Estimate]:
    for name, statistic in extensions.with_progress(
        [*measured.statistics.items()], lambda item: f"{item[0]} of {measured.label}"
    ):
        fields = {**vars(statistic.interval(level)), "n": measured.view.n}
        better = "lower" if name == "fpr95" else "higher"
        if isinstance(statistic, FalsePositives):
            ties = statistic.ties
            row = ties.order[np.searchsorted(ties.tie, statistic.tie)]  # the rows that are kept reach its score
            fields["detail"] = {**fields["detail"], "threshold": float(np.concatenate(measured.shown)[row])}
        elif isinstance(statistic, AveragePrecision):
            fields["detail"] = {**fields["detail"], "chance": statistic.chance}
        yield Estimate(name=name, value=statistic.value, better=better, unit="", **measured.where.fields, **fields)


def _differences(
    reference: Mapping[str, TwoSamples], other: Scored, where: Scope, level: float
) -> Iterator[tuple[Estimate, float | None]]:
    """Compare a score with another on the same rows in the statistics that have an influence of every row."""
    for name, after in other.statistics.items():
        change = ranked(reference[name], after, level)
        common: dict[str, Any] = {"name": name, "better": "higher", "n": other.view.n, **where.fields}
        if isinstance(change, Paired):
            yield change.estimate(level, **common, se=change.se), change.p
        else:
            yield Estimate(**common, value=after.value - reference[name].value, reason=change), None


def _table(every: Sequence[tuple[str, Scope]], estimates: Sequence[Estimate]) -> Table:
    """Tabulate the estimates of every score, given by label and scope, and its threshold."""
    names = ["auroc", "aupr_in", "aupr_out", "fpr95"]
    rows: list[list[Any]] = []
    for label, where in every:
        estimate_of = {e.name: e for e in estimates if e.where == where}
        rows.append([label, *(estimate_of[name].value for name in names), estimate_of["fpr95"].detail["threshold"]])
    return Table(name="scores", title="Scores", columns=["score", *names, "threshold"], rows=rows)


def _histogram(measured: Scored) -> Plot:
    """Draw the shares of the rows inside and outside over the score."""
    scores = np.concatenate(measured.shown)
    low, high = (0.0, 1.0) if measured.score == "confidence" else np.quantile(scores, [0.001, 0.999]).tolist()
    high = high if high > low else low + 1.0
    edges = np.linspace(low, high, BINS + 1)
    curves = []
    weights = measured.view.weights
    for name, values, start in zip(SIDES, measured.shown, (0, len(measured.shown[0])), strict=True):
        w = None if weights is None else weights[start : start + len(values)]
        count = np.histogram(np.clip(values, low, high), edges, weights=w)[0].astype(np.float64)
        curves.append(Curve(label=name, kind="steps", x=edges.tolist(), y=count / count.sum(), role=name))
    axis = AXES.get(measured.score, measured.score)
    n = f"{len(measured.shown[0]):,} inside, {len(measured.shown[1]):,} outside"
    return Plot(
        name="histogram_" + "_".join(filter(None, [measured.score, measured.model])),
        title=f"{measured.label}, {n}",
        xlabel=axis,
        ylabel="share of rows",
        curves=curves,
        group="Rows inside and outside",
    )


def _curve(measured: Scored) -> Curve:
    """Draw the ROC curve of a score."""
    t = measured.view.memoized(ties)
    kept, passed = (np.append(0.0, np.cumsum(part[::-1]) / part.sum()) for part in (t.hits, t.misses))
    points = np.unique(np.concatenate([_thinned(kept), _thinned(passed)]))
    return Curve(
        label=measured.label, kind="line", x=passed[points].tolist(), y=kept[points].tolist(), role=measured.label
    )


def _curves(every: Sequence[Curve]) -> Plot:
    """Draw the ROC curves together."""
    return Plot(
        name="roc",
        title="Rows kept, inside and outside",
        xlabel="share kept of the rows outside",
        ylabel="share kept of the rows inside",
        xlim=(0, 1),
        ylim=(0, 1),
        curves=[Curve(label="chance", kind="line", role="ideal", x=[0, 1], y=[0, 1]), *every],
    )


def _thinned(rising: Floats) -> Ints:
    """Return some 100 indices at which rising values are evenly spaced."""
    return np.minimum(np.searchsorted(rising, np.linspace(0, 1, 101)), len(rising) - 1)
