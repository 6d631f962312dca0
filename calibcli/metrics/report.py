"""Make the result of `calib metrics`: estimates, slices, tables by class and for the top k, diagrams and warnings."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from calibcli import metrics
from calibcli.core import extensions
from calibcli.core.errors import UsageError
from calibcli.core.figure_data import Plot, first_alone
from calibcli.core.number_format import count_text, percent
from calibcli.core.options import BINS, Drawn, check_options
from calibcli.core.problem import EVENT_SHARE, Problem
from calibcli.core.registries import Choice
from calibcli.core.result import Cell, Estimate, Result, Screen, Table
from calibcli.core.scope import MEAN_OF_TASKS, WHOLE, Scope
from calibcli.core.statistics import normal_quantile, one_thread
from calibcli.metrics import registry
from calibcli.metrics.binned import calibrated_cells
from calibcli.metrics.binned_bounds import table_bounds
from calibcli.metrics.corp import Decomposed, Part
from calibcli.metrics.decisions import DecisionCurve
from calibcli.metrics.diagrams import class_panels, decision, reliability, with_curve
from calibcli.metrics.intervals import WeightedMean, share_bounds
from calibcli.metrics.means import brier_parts
from calibcli.metrics.registry import METRICS, MetricTraits, Sample, names_read, needed_class_bins, reads_scores, traits
from calibcli.metrics.reliability import BinaryOutcomes, Bins
from calibcli.scores import left_out
from calibcli.scores.columns import ClassBins, ClassTable, Columns, Edges, GatheredParts, columns, columns_by, rows_by
from calibcli.scores.likelihood import log_softmax
from calibcli.scores.predictions import OUTCOMES, Ints, Predictions, Progress

# Tables of the top k and of every class.


def top_k(sample: Sample, most: int, *, bins: int, edges: Edges, level: float) -> Table:
    """Tabulate accuracy, confidence and ECE of the top 1, ..., `most` classes taken together."""
    ks = list(range(1, most + 1)) if most <= 10 else [1, 2, 3, 5, 10, most]
    rows: list[list[Cell]] = []
    for k, view in top_views(sample, sorted(set(ks))).items():
        accuracy = float(np.sum(view.hit * view.shares))
        hits = WeightedMean(view.hit, view.weights, view.counts, view.groups)
        low, high = share_bounds(hits, (1 - level) / 2) or (None, None)
        b = table_bounds(view, view.width_bins(bins, edges), alpha=1 - level)
        mean = float(np.sum(view.p * view.shares))
        bounds = [None, None] if b.reason else [b.lower, b.upper]
        rows.append([k, accuracy, low, high, mean, b.value, *bounds, b.floor])
    return Table(
        name="top_k",
        title=f"Is the label among the k most probable classes ({percent(level)} interval), and as likely as said",
        columns=["k", "accuracy", "low", "high", "confidence", "ece", "ece low", "ece high", "if calibrated"],
        rows=rows,
    )


def top_views(sample: Sample, ks: Sequence[int]) -> dict[int, BinaryOutcomes]:
    """Return for each k the probability of the top k classes together and whether the label is among them.

    Classes of a larger score rank before the label; of equal scores the lower class is first.
    """
    predictions = sample.predictions
    assert predictions is not None
    rank = np.empty(predictions.n, dtype=np.int64)
    mass = {k: np.empty(predictions.n) for k in ks}
    for start, block in predictions.blocks():
        here = slice(start, start + len(block))
        labels = predictions.labels[here]
        label_score = block[np.arange(len(block)), labels][:, None]
        tied = (block == label_score) & (np.arange(block.shape[1]) < labels[:, None])
        rank[here] = (block > label_score).sum(axis=1) + tied.sum(axis=1)
        p = np.exp(log_softmax(block.astype(np.float64)))
        p.partition(sorted({p.shape[1] - k for k in ks if k < p.shape[1]}), axis=1)
        for k in ks:
            mass[k][here] = np.minimum(p[:, -k:].sum(axis=1), 1.0)
    return {k: sample.outcomes(mass[k], 1 - mass[k], rank < k) for k in ks}


def class_names(predictions: Predictions) -> list[str]:
    """Return the names of the classes, or their numbers."""
    return [str(name) for name in predictions.classes or range(predictions.k)]


def whole(count: float) -> float | int:
    """Convert a count to int where it is a whole number."""
    return int(count) if float(count).is_integer() else float(count)


def class_views(sample: Sample, predictions: Predictions) -> Iterator[BinaryOutcomes]:
    """Yield the outcomes of the probability of each class; none for condensed rows."""
    n, k = predictions.n, predictions.k
    if sample.columns.condensed:
        return
    step = max(1, MOST_HELD // n)
    for first in range(0, k, step):
        probabilities = np.empty((min(step, k - first), n))
        for start, block in predictions.blocks():
            p = np.exp(log_softmax(block.astype(np.float64)))
            probabilities[:, start : start + len(block)] = p[:, first : first + step].T
        for label, p in enumerate(probabilities, first):
            yield sample.outcomes(p, 1 - p, predictions.labels == label)


def per_class(
    sample: Sample,
    shown: ClassBins,
    predictions: Predictions,
    seen: Callable[[int, BinaryOutcomes], None] | None = None,
) -> Table:
    """Tabulate for each class its probability against its frequency, and the rows predicted as it.

    Args:
        seen: called with each class and its outcomes, which are not kept.
    """
    table = sample.columns.classes[shown]
    total, columns = sample.top.total, sample.columns
    w = sample.weights
    each = np.abs(table.sum_p - table.sum_y).sum(axis=1) / total
    null = calibrated_cells(table, sample.top)[2].sum(axis=1) / sample.top.effective
    count, right, confidence = (
        columns.by_predicted
        if columns.by_predicted is not None
        else (
            np.bincount(columns.predicted, values if w is None else w * values, columns.k)
            for values in (np.ones(columns.n), columns.correct, columns.confidence)
        )
    )
    corp: list[list[float | None]] = []
    names = class_names(predictions)
    for label, view in enumerate(class_views(sample, predictions)):
        extensions.tell(label / columns.k, names[label])
        corp.append([Decomposed(view, "brier", part).value for part in PARTS])
        if seen is not None:
            seen(label, view)
    corp = corp or [[None, None]] * columns.k
    labels = table.sum_y.sum(axis=1) if shown.threshold <= 0 else np.bincount(columns.labels, w, columns.k)
    rows: list[list[Cell]] = []
    for i, name in enumerate(names):
        precision = [right[i] / count[i], confidence[i] / count[i]] if count[i] > 0 else [None, None]
        recall = right[i] / labels[i] if labels[i] > 0 else None
        share = [table.sum_p[i].sum() / total, labels[i] / total]
        rows.append([name, whole(labels[i]), *share, each[i], null[i], *corp[i], whole(count[i]), *precision, recall])
    columns_ = ["class", "rows", "mean p", "frequency", "ece", "if calibrated", "mcb", "dsc"]
    return Table(
        name="per_class",
        title="Per class: its probability over all rows, and the rows predicted as it",
        columns=[*columns_, "predicted", "precision", "confidence", "recall"],
        rows=rows,
    )


MOST_HELD = 1 << 25  # probabilities that are held at once: 256 MB
PARTS: tuple[Part, Part] = ("mcb", "dsc")


# Several tasks of one evaluation: the mean of their estimates, in which each task counts the same.

TASK = "task"
MACRO = MEAN_OF_TASKS


def macro(estimates: Sequence[Estimate], tasks: int, level: float) -> list[Estimate]:
    """Average each metric over tasks, with the interval for independent tasks.

    The standard error is sqrt(Σ s²) / T of the errors s of T tasks: their rows are draws, the tasks themselves are not.

    Args:
        estimates: those of every task, which have the same metrics.  tasks: number of tasks.
    """
    out = []
    for name in dict.fromkeys(e.name for e in estimates):
        task_estimates = [e for e in estimates if e.name == name]
        values = [e.value for e in task_estimates if e.value is not None]
        none: dict[str, Any] = dict.fromkeys(("low", "high", "se", "null", "null_high"))
        plain = dataclasses.replace(task_estimates[0], **none, detail={}, how="", **Scope(subject=MACRO).fields)
        if len(values) < tasks:
            out.append(dataclasses.replace(plain, value=None, reason="a task has no value"))
            continue
        mean = math.fsum(values) / tasks
        errors = [e.se for e in task_estimates if e.se is not None]
        how = f"mean over {tasks} tasks, each counted once"
        if len(errors) < tasks or task_estimates[0].sided != "two":
            reason = "no interval of a mean follows from bounds of its parts"
            out.append(dataclasses.replace(plain, value=mean, n=None, how=how, reason=reason, sided="two"))
            continue
        se = math.sqrt(math.fsum(s * s for s in errors)) / tasks
        half = normal_quantile((1 + level) / 2) * se
        how += f"; normal {percent(level)} interval from the standard errors of the tasks"
        bounded = dataclasses.replace(plain, low=mean - half, high=mean + half, level=level, se=se, reason="")
        out.append(dataclasses.replace(bounded, value=mean, n=None, how=how))
    return out


# The result of `calib metrics`.

BRIEF = ("accuracy", "nll", "confidence_gap", "ece")
"""Default metrics of each value of `--by` and each label of `--multilabel`."""
MOST_SLICES = 200
FEW_ROWS = 20_000  # up to which the first screen says where to act, which takes a pass for each threshold
MOST_PANELS = 30
MOST_SLICE_PANELS = 12
SCREEN = Screen(hidden=("level", "why", EVENT_SHARE), one_page=True, badge="calibration")
PER_BIN, PER_MCE_BIN = 50, 30  # rows per bin below which a note warns


@dataclass(frozen=True, kw_only=True)
class ReportOptions:
    """Options of a report.

    Attributes:
        specs: metric specs, or None for the default set.  few: only those of it that a screen shows.
        bins, edges: of metrics whose spec has none, and of the diagram.
        level: confidence level; one-sided bounds hold at this level each.
        per_class: table and diagrams of each class.
        top_k: table of the top 1, ..., k classes (0: none).
        diagram: whether to make the reliability diagram, which needs simulations.
        curve: what pictures draw: CORP's curve, the smooth one, or bars.
        seed: of simulations.  threads: worker threads.
    """

    specs: Sequence[str] | None = None
    few: bool = False
    bins: int | None = None
    edges: Edges | None = None
    level: float = 0.95
    per_class: bool = False
    top_k: int = 0
    diagram: bool = True
    curve: Drawn = "corp"
    seed: int = 0
    threads: int | None = 1

    def __post_init__(self) -> None:
        check_options(self)


@one_thread()
def report(predictions: Predictions, options: ReportOptions | None = None, progress: Progress | None = None) -> Result:
    """Report the metrics, tables, diagrams and warnings of recorded outputs.

    Raises:
        UsageError: unknown metric or option, `top_k` outside 1..K, too many slices.
    """
    options = options or ReportOptions()
    choices = chosen(predictions, options)
    return of_columns(predictions, read(predictions, options, choices, progress), options, choices)


def read(
    predictions: Predictions,
    options: ReportOptions,
    choices: Sequence[Choice[MetricTraits]],
    progress: Progress | None = None,
) -> Columns:
    """Run the blocked pass for the columns and class tables that these options, and their metrics, need.

    Raises:
        UsageError: as `report`.
    """
    k = predictions.k
    if options.curve == "decision" and (k != 2 or predictions.top_only):
        what = "a confidence alone" if predictions.top_only else f"{k} classes"
        raise UsageError(f"--curve decision is for two classes, this is {what}", "leave it out")
    if options.top_k < 0 or options.top_k > k:
        raise UsageError(f"--top-k {options.top_k} of {k} classes", f"pass 1 to {k}")
    if predictions.top_only and (options.per_class or options.top_k):
        what = "--per-class" if options.per_class else "--top-k"
        raise UsageError(f"{what} needs the scores of every class, not the confidence alone", "leave it out")
    wanted = [*needed_class_bins(choices, k), *([_shown(options)] if options.per_class else [])]
    shows_confidence = options.diagram or options.specs is None or options.top_k > 0
    return columns(
        predictions,
        class_bins=list(dict.fromkeys(wanted)),
        names=names_read(choices, shows_confidence),
        threads=options.threads,
        progress=progress,
    )


@one_thread()
def of_columns(
    predictions: Predictions, measured: Columns, options: ReportOptions, choices: Sequence[Choice[MetricTraits]]
) -> Result:
    """Report as `report` does, on columns that were read before.

    Args:
        predictions: the rows; for condensed columns some of them, for metrics that need scores.
        choices: the metrics of the options, see `chosen`.

    Raises:
        UsageError: as `report`; a class table that a metric needs is missing, or `top_k` of condensed rows.
    """
    k, shown = predictions.k, _shown(options)
    lacking = [c for c in choices if not set(needed_class_bins([c], k)) <= measured.classes.keys()]
    if lacking or (options.per_class and shown not in measured.classes):
        what = lacking[0].spec if lacking else f"--per-class with {shown.bins} bins"
        problem = f"{what} needs sums by class that were not kept"
        raise UsageError(problem, "name the metric when the parts are added (-m)")
    if options.top_k and measured.condensed:
        raise UsageError(f"--top-k needs the scores of {measured.condensed:,} rows again", "measure some of them")
    sample = Sample.of(measured, predictions, options.seed)
    estimates = metrics.estimates(sample, choices, level=options.level) + _without_confidence(predictions, options)
    if measured.condensed:
        from calibcli.metrics._histogram_error import stated

        estimates = stated(sample, choices, estimates)
    tables: list[Table] = []
    if any(choice.traits.parts for choice in choices):
        tables.append(brier_parts(sample, shown, predictions.event))
    edges, plots = options.edges or "right", list[Plot]()
    if (options.diagram or options.specs is None) and predictions.top_only != "outcomes":
        event = "" if predictions.top_only else predictions.event
        curve = options.curve if options.diagram else "bars"
        view = sample.view()
        plots += reliability(view, view.width_bins(shown.bins, edges), event=event, curve=curve)
    useful: dict[str, Cell] = {}
    of_event = k == 2 and not predictions.top_only and not measured.condensed
    if options.curve == "decision" or (of_event and options.specs is None and sample.n <= FEW_ROWS):
        worth = DecisionCurve.of(sample, predictions.event, options.level)
        useful = {"better than acting on all or on none": worth.words}
        plots = [decision(worth), *plots] if options.curve == "decision" else plots
    if options.top_k:
        tables.append(top_k(sample, options.top_k, bins=shown.bins, edges=edges, level=options.level))
    if options.per_class:
        drawn = _class_plots(sample, shown, predictions, options.seed) if options.diagram else {}

        def seen(label: int, view: BinaryOutcomes) -> None:
            if options.curve != "bars" and label in drawn:
                drawn[label] = with_curve(drawn[label], view, options.curve)

        tables.append(per_class(sample, shown, predictions, seen))
        plots += drawn.values()
    slices, slice_tables, slice_plots = _slices(predictions, measured, options)
    facts = {**_facts(predictions, sample, options), **useful}
    return Result(
        command="metrics",
        estimates=registry.measured([*estimates, *slices], predictions.problem),
        tables=[*tables, *slice_tables],
        plots=first_alone([*plots, *slice_plots]),
        notes=[*predictions.notes, *warnings(sample, estimates)],
        facts=facts,
        screen=SCREEN,
    )


def _shown(options: ReportOptions) -> ClassBins:
    """Return the bins of the tables and diagrams of classes."""
    return ClassBins(options.bins or BINS, "right" if options.edges in (None, "torchmetrics") else options.edges)


def report_multilabel(
    labels: Mapping[str, Predictions], options: ReportOptions | None = None, progress: Progress | None = None
) -> Result:
    """Report each label of a multi-label problem as a binary one, with a diagram each.

    Raises:
        UsageError: as `report`.
    """
    options = options or ReportOptions()
    if options.curve == "decision":
        raise UsageError("--curve decision is for one event, these are several labels", "measure one label by itself")
    every: list[Estimate] = []
    plots: list[Plot] = []
    rows: list[list[Cell]] = []
    notes: list[str] = []
    for done, (name, predictions) in enumerate(
        extensions.with_progress([*labels.items()], lambda one: one[0], progress)
    ):
        where = Scope(parts={"label": str(name)})
        sample, estimates = _measured(predictions, options, where)
        every += estimates
        rows.append([name, predictions.n, int(predictions.labels.sum()), *(e.value for e in estimates)])
        notes += [note for note in predictions.notes if note not in notes]
        if len(labels) <= MOST_PANELS:
            naming = {"name": f"label_{done}", "about": str(where), "event": predictions.event}
            plots += _small(str(name), "Reliability of each label", sample.view(), options, **naming)
    values = [row[3:] for row in rows]
    means = [None if None in column else float(np.mean(column)) for column in zip(*values, strict=True)]
    rows.append(["mean", None, None, *means])
    first = next(iter(labels.values()))
    names = [choice.spec for choice in chosen(first, options, BRIEF)]
    facts = {"labels": len(labels), "n": first.n, "kind": first.kind, "level": options.level}
    return Result(
        command="metrics",
        estimates=registry.measured(every, Problem.of(facts)),
        tables=[Table(name="labels", columns=["label", "rows", "positive", *names], rows=rows)],
        plots=first_alone(plots),
        notes=notes,
        facts=facts,
        screen=SCREEN,
    )


def _number_of_bins(spec: str) -> int:
    """Return the number of bins of a binned metric."""
    options = METRICS.choose(spec).options
    return int(options["bins"]) + (options.get("edges") == "torchmetrics")


def warnings(sample: Sample, estimates: Sequence[Estimate]) -> list[str]:
    """Warn of numbers that are not to be trusted, and say why."""
    notes = []
    rows = round(sample.top.total) if sample.counts else sample.n
    gaps = {e.name: traits(e.name).gaps for e in estimates}
    sizes = dict.fromkeys(_number_of_bins(name) for name, kind in gaps.items() if kind in ("one_sign", "both_signs"))
    notes += [
        f"{rows} rows over {size} bins are fewer than {PER_BIN} per bin: chance raises binned errors "
        "(compare with the level of a calibrated model; use fewer bins, or smece)"
        for size in sizes
        if rows / size < PER_BIN
    ]
    for name in (name for name, kind in gaps.items() if kind == "largest"):
        table: Bins = METRICS.choose(name)(sample.acyclic).table
        filled = (sample.top.total * table.weight if sample.counts else table.rows)[table.filled]
        if few := int((filled < PER_MCE_BIN).sum()):
            notes.append(f"{name}: {few} of {len(filled)} filled bins have fewer than {PER_MCE_BIN} rows")
    for e in estimates:
        if gaps[e.name] == "both_signs" and None not in (e.value, e.null_high) and e.value <= e.null_high:  # type: ignore[operator]
            notes.append(
                f"{e.name}: {e.value:.4f} is within what a perfectly calibrated model shows by chance "
                f"(95 % below {e.null_high:.4f})"
            )
    # accuracy alone reads no confidences; of two classes .1 and .9 of the event are one confidence of the top label
    if sample.n > 1 and sample.columns.has("confidence") and float(np.ptp(sample.view().p)) < 1e-6:
        notes.append("every confidence is the same: a calibration error near 0 then says nothing about ranking")
    if sample.columns.condensed:
        from calibcli.metrics._histogram_error import ERROR

        notes.append(
            f"{sample.columns.condensed} rows are kept as sums over cells of confidence: exact for means and usual "
            f"bins, otherwise {ERROR} in the details says how far off a number may be"
        )
    if sample.few_carry:
        notes.append(f"{sample.few_carry}; a gate is NOT RUN on such rows")
    if sample.columns.groups is not None:
        groups = len(np.unique(sample.columns.groups))
        notes.append(f"{count_text(groups, 'group')}: intervals take rows of a group as one draw")
    return notes


def chosen(predictions: Predictions, options: ReportOptions, usual: Sequence[str] = ()) -> list[Choice[MetricTraits]]:
    """Return the metrics of the options, else the usual ones, with the bins of the options.

    Raises:
        UsageError: unknown metric or option.
    """
    top_only, defaults = predictions.top_only, {"bins": options.bins, "edges": options.edges}
    of_event = ["confidence_gap:of=top"] if predictions.k == 2 and not (usual or top_only) else []
    usual = [*(usual or (("few",) if options.few else ("default",))), *of_event]
    specs = metrics.known(usual, top_only) if options.specs is None else options.specs
    if top_only == "outcomes":
        specs = [spec for spec in specs if not reads_more(spec, predictions.k)] or specs  # of them alone: refused
    asked, choices = metrics.choose(specs, predictions.k, top_only), []
    if not any(defaults.values()):
        return asked
    for choice in asked:
        given = {o: v for o, v in choice.options.items() if v != choice.entry.options[o].default}
        filled = METRICS.choose(choice.name, **{o: v for o, v in defaults.items() if o not in given})
        choices.append(Choice(filled.entry, {**filled.options, **given}))
    return list({choice.spec: choice for choice in choices}.values())


def reads_more(spec: str, k: int) -> bool:
    """Return whether a metric reads more of a row than whether its prediction was right."""
    return any(choice.traits.reads for choice in metrics.choose([spec], k))


def _without_confidence(predictions: Predictions, options: ReportOptions) -> list[Estimate]:
    """Return the metrics that were asked for and that outcomes alone do not give, without a value."""
    if predictions.top_only != "outcomes" or options.specs is None:
        return []
    specs = [spec for spec in options.specs if reads_more(spec, predictions.k)]
    asked = metrics.choose(specs, predictions.k)
    return [Estimate(name=choice.spec, value=None, n=predictions.n, reason=OUTCOMES[0]) for choice in asked]


def _measured(predictions: Predictions, options: ReportOptions, where: Scope) -> tuple[Sample, list[Estimate]]:
    choices = chosen(predictions, options, BRIEF)
    measured = metrics.columns_of(predictions, choices, options.threads)
    sample = Sample.of(measured, predictions, options.seed)
    return sample, metrics.estimates(sample, choices, level=options.level, where=where)


def _small(title: str, group: str, view: BinaryOutcomes, options: ReportOptions, **naming: Any) -> list[Plot]:
    """Draw a reliability diagram and its strip as one of small multiples."""
    bins = view.width_bins(options.bins or BINS, options.edges or "right")
    panel, strip = reliability(view, bins, curve=options.curve, **naming)
    n = panel.title.rpartition(", n = ")[2]
    return [dataclasses.replace(panel, title=f"{title}, n = {n}", group=group), strip]


def _slices(
    predictions: Predictions, measured: Columns, options: ReportOptions
) -> tuple[list[Estimate], list[Table], list[Plot]]:
    """Measure the rows of each value of each column, and draw those with the most rows."""
    every: list[Estimate] = []
    tables: list[Table] = []
    plots: list[Plot] = []
    choices = chosen(predictions, options, BRIEF) if predictions.slices else []
    for column, values in extensions.with_progress([*predictions.slices.items()], lambda one: one[0]):
        parts = rows_by(values)
        if len(parts) > MOST_SLICES:
            problem = f"'{column}' has {len(parts)} values, more than {MOST_SLICES}"
            raise UsageError(problem, "slice by a coarser column")
        rows: list[list[Cell]] = []
        largest = sorted(parts, key=lambda name: -len(parts[name]))[
            : MOST_SLICE_PANELS if options.diagram and measured.top_only != "outcomes" else 0
        ]
        title = f"Reliability by {column}" + (f" (the {len(largest)} largest)" if len(parts) > len(largest) else "")
        samples = _samples(predictions, measured, [*parts.values()], choices, options)
        for name, sample in zip(extensions.with_progress([*parts]), samples, strict=True):
            where = Scope(parts={column: str(name)})
            estimates = metrics.estimates(sample, choices, level=options.level, where=where)
            every += estimates
            rows.append([str(name), sample.n, *(e.value for e in estimates)])
            if name in largest:
                naming = {"event": predictions.event, "name": f"by_{column}_{name}", "about": str(where)}
                plots += _small(str(name), title, sample.view(), options, **naming)
        if column == TASK and predictions.record.tasks:
            mean = macro([e for e in every if column in e.where.parts], len(parts), options.level)
            pooled = _measured(predictions, options, WHOLE)[1]
            rows.append(["pooled", predictions.n, *(e.value for e in pooled)])
            rows.append([MACRO, None, *(e.value for e in mean)])
            every += mean
        heads = [column, "rows", *(choice.spec for choice in choices)]
        tables.append(Table(name=f"by_{column}", title=f"By {column}", columns=heads, rows=rows))
    return every, tables, plots


def _samples(
    predictions: Predictions,
    measured: Columns,
    parts: Sequence[Ints],
    choices: Sequence[Choice[MetricTraits]],
    options: ReportOptions,
) -> Iterator[Sample]:
    """Yield a sample of each part, with scores where a metric reads them."""
    if any(map(reads_scores, choices)):
        gathered = GatheredParts(predictions, parts)
        for part in map(gathered.take, range(len(parts))):
            yield Sample.of(metrics.columns_of(part, choices, options.threads), part, options.seed)
    else:
        for columns_ in columns_by(predictions, measured, parts, options.threads):
            yield Sample.of(columns_, None, options.seed)


def _class_plots(sample: Sample, shown: ClassBins, predictions: Predictions, seed: int) -> dict[int, Plot]:
    """Draw the classes with the largest error."""
    table, names = sample.columns.classes[shown], class_names(predictions)
    each = np.abs(table.sum_p - table.sum_y).sum(axis=1)
    kept = np.sort(np.argsort(-each, kind="stable")[:MOST_PANELS])
    table = ClassTable(table.count[kept], table.sum_p[kept], table.sum_y[kept])
    panels = class_panels(table, [names[i] for i in kept], shown.bins, seed)
    return dict(zip(kept.tolist(), panels, strict=True))


def _facts(predictions: Predictions, sample: Sample, options: ReportOptions) -> dict[str, Any]:
    facts: dict[str, Any] = {"n": sample.n, **predictions.problem.facts, "level": options.level}
    if predictions.k == 2 and not predictions.top_only and options.specs is None:
        facts[EVENT_SHARE] = float(np.sum(sample.positive.hit * sample.positive.shares))
    if predictions.weights is not None:
        facts |= {"weights": predictions.weight_kind, "n_eff": sample.top.effective}
    if predictions.groups is not None:
        facts["groups"] = predictions.group_count
    if predictions.left is not None:
        facts["left_out"] = left_out.said(predictions.left.counts, predictions.n)
    copies = predictions.record.copies
    if copies and predictions.groups is None and predictions.weight_kind != "count":
        facts["repeated"] = (
            f"{copies:,} of {predictions.n:,} rows are copies of others (the same scores to about 4 digits)"
        )
    if predictions.classes is not None:
        facts["class_names"] = [str(c) for c in predictions.classes]
    if predictions.record.tasks:
        facts["tasks"] = len(predictions.record.tasks)
    why = predictions.record.why
    return facts | ({"why": why} if why else {}) | dict(predictions.record.evaluation)
