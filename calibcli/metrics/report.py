"""What `calib metrics` says: estimates, slices, tables per class and for the top k, diagrams, and warnings."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from calibcli import metrics
from calibcli.columns import ClassBins, ClassTable, Columns, Edges, columns
from calibcli.columns.parts import Gathered, columns_by, rows_by
from calibcli.errors import UsageError
from calibcli.metrics import first_screen
from calibcli.metrics.diagrams import class_panels, reliability, with_curve
from calibcli.metrics.proper import brier_parts
from calibcli.metrics.reliability import Bins
from calibcli.metrics.sample import METRICS, BinaryOutcomes, Sample, names_read, needed_class_bins, reads_scores, traits
from calibcli.metrics.tasks_mean import MACRO, TASK, macro
from calibcli.numerics import one_thread
from calibcli.plots import Plot, first_alone
from calibcli.predictions import Ints, Predictions, Progress
from calibcli.result import Cell, Estimate, Result, Screen, Table
from calibcli.shelves import Choice
from calibcli.spec import Drawn, check_options

BRIEF = ("accuracy", "nll", "confidence_gap", "ece")
"""What is measured for each value of `--by` and each label of `--multilabel` when nothing is asked for."""
MOST_SLICES = 200
MOST_PANELS = 30
MOST_SLICE_PANELS = 12
SCREEN = Screen(hidden=("level", "why"), one_page=True, badge="calibration")
PER_BIN, PER_MCE_BIN = 50, 30  # rows below which a warning is due


@dataclass(frozen=True, kw_only=True)
class Options:
    """How to report.

    Attributes:
        specs: metric specs, or None for the default set.  few: of that what a screen shows.
        bins, edges: of metrics whose spec does not say, and of the diagram.
        level: confidence level; one-sided bounds hold at this level each.
        per_class: table and diagrams of each class.
        top_k: table of the top 1, ..., k classes (0: none).
        diagram: the reliability diagram, which a simulation is behind.
        curve: what its picture draws.
        seed, threads: of what is simulated; worker threads.
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
def report(predictions: Predictions, options: Options | None = None, progress: Progress | None = None) -> Result:
    """Everything about recorded outputs, as a Result.

    Raises:
        UsageError: unknown metric or option, `top_k` outside 1..K, too many slices.
    """
    options = options or Options()
    return of_columns(predictions, read(predictions, options, progress), options)


def read(predictions: Predictions, options: Options, progress: Progress | None = None) -> Columns:
    """The blocked pass, with what these options need of it.

    Raises:
        UsageError: as `report`.
    """
    k = predictions.k
    if options.top_k < 0 or options.top_k > k:
        raise UsageError(f"--top-k {options.top_k} of {k} classes", f"pass 1 to {k}")
    if predictions.top_only and (options.per_class or options.top_k):
        what = "--per-class" if options.per_class else "--top-k"
        raise UsageError(f"{what} needs the scores of every class, not the confidence alone", "leave it out")
    choices = _choices(predictions, options)
    wanted = [*needed_class_bins(choices, k), *([_shown(options)] if options.per_class else [])]
    how: dict[str, Any] = {"names": names_read(choices), "threads": options.threads, "progress": progress}
    return columns(predictions, class_bins=list(dict.fromkeys(wanted)), **how)


@one_thread()
def of_columns(predictions: Predictions, measured: Columns, options: Options) -> Result:
    """As `report`, of columns that are there already.

    Args:
        predictions: the rows, or of condensed columns some of them, for what needs scores.

    Raises:
        UsageError: as `report`; a class table that a metric needs was not filled, or `top_k` of condensed rows.
    """
    k, choices = predictions.k, _choices(predictions, options)
    shown = _shown(options)
    lacking = [c for c in choices if not set(needed_class_bins([c], k)) <= measured.classes.keys()]
    if lacking or (options.per_class and shown not in measured.classes):
        what = lacking[0].spec if lacking else f"--per-class with {shown.bins} bins"
        raise UsageError(
            f"{what} needs sums by class that were not kept", "name the metric when the parts are added (-m)"
        )
    if options.top_k and measured.condensed:
        raise UsageError(f"--top-k needs the scores of {measured.condensed:,} rows again", "measure some of them")
    sample = Sample.of(measured, predictions, options.seed)
    estimates = metrics.estimates(sample, choices, level=options.level)
    if measured.condensed:
        from calibcli.metrics.lossy import stated

        estimates = stated(sample, choices, estimates)
    tables: list[Table] = []
    if any(choice.traits.get("parts") for choice in choices):
        tables.append(brier_parts(sample, shown, predictions.event))
    view = sample.view()
    bins = view.width_bins(shown.bins, options.edges or "right")
    plots: list[Plot] = []
    if options.diagram or options.specs is None:
        event = "" if predictions.top_only else predictions.event
        plots += reliability(
            view, bins, seed=options.seed, event=event, curve=options.curve if options.diagram else "bars"
        )
    if options.top_k:
        from calibcli.metrics.tables import top_k

        edges = options.edges or "right"
        tables.append(top_k(sample, options.top_k, bins=shown.bins, edges=edges, level=options.level))
    if options.per_class:
        from calibcli.metrics.tables import per_class

        drawn = _class_plots(sample, shown, predictions, options.seed) if options.diagram else {}

        def seen(label: int, view: BinaryOutcomes) -> None:
            if options.curve != "bars" and label in drawn:
                drawn[label] = with_curve(drawn[label], view, options.curve)

        tables.append(per_class(sample, shown, predictions, seen))
        plots += drawn.values()
    slices, slice_tables, slice_plots = _slices(predictions, measured, options)
    result = Result(
        command="metrics",
        estimates=[*estimates, *slices],
        tables=[*tables, *slice_tables],
        plots=first_alone([*plots, *slice_plots]),
        notes=[*predictions.notes, *warnings(sample, estimates, bins)],
        facts=_facts(predictions, sample, options),
        screen=SCREEN,
    )
    return first_screen.measured(result)


def _shown(options: Options) -> ClassBins:
    """How the tables and diagrams of classes are binned."""
    return ClassBins(options.bins or 15, "right" if options.edges in (None, "torchmetrics") else options.edges)


def report_multilabel(
    labels: Mapping[str, Predictions], options: Options | None = None, progress: Progress | None = None
) -> Result:
    """Each label of a multi-label problem as a binary one, and a diagram each.

    Raises:
        UsageError: as `report`.
    """
    options = options or Options()
    found: list[Estimate] = []
    plots: list[Plot] = []
    rows: list[list[Cell]] = []
    notes: list[str] = []
    for done, (name, predictions) in enumerate(labels.items()):
        sample, estimates = _measured(predictions, options, f"label={name}")
        found += estimates
        rows.append([name, predictions.n, int(predictions.labels.sum()), *(e.value for e in estimates)])
        notes += [note for note in predictions.notes if note not in notes]
        if len(labels) <= MOST_PANELS:
            how = {"name": f"label_{done}", "about": f"label={name}", "event": predictions.event}
            plots += _small(str(name), "Reliability of each label", sample.view(), options, **how)
        if progress:
            progress((done + 1) / len(labels), str(name))
    values = [row[3:] for row in rows]
    means = [None if None in column else float(np.mean(column)) for column in zip(*values, strict=True)]
    rows.append(["mean", None, None, *means])
    first = next(iter(labels.values()))
    names = [choice.spec for choice in _choices(first, options, BRIEF)]
    result = Result(
        command="metrics",
        estimates=found,
        tables=[Table(name="labels", columns=["label", "rows", "positive", *names], rows=rows)],
        plots=first_alone(plots),
        notes=notes,
        facts={"labels": len(labels), "n": first.n, "kind": first.kind, "level": options.level},
        screen=SCREEN,
    )
    return first_screen.measured(result)


def warnings(sample: Sample, estimates: Sequence[Estimate], bins: Bins) -> list[str]:
    """Where a number is not to be trusted, and why."""
    notes = []
    rows = round(sample.top.total) if sample.counts else sample.n
    if any(traits(e.name).get("raised") for e in estimates) and rows / len(bins.rows) < PER_BIN:
        notes.append(
            f"{rows} rows over {len(bins.rows)} bins are fewer than {PER_BIN} per bin: chance raises binned errors "
            "(compare with the level of a calibrated model; use fewer bins, or smece)"
        )
    filled = sample.top.total * bins.weight if sample.counts else bins.rows
    few = int((filled[bins.filled] < PER_MCE_BIN).sum())
    for name in dict.fromkeys(e.name.partition(":")[0] for e in estimates if traits(e.name).get("largest_gap")):
        if few:
            notes.append(f"{name}: {few} of {int(bins.filled.sum())} filled bins have fewer than {PER_MCE_BIN} rows")
    for e in estimates:
        if traits(e.name).get("two_sided") and None not in (e.value, e.null_high) and e.value <= e.null_high:  # type: ignore[operator]
            notes.append(
                f"{e.name}: {e.value:.4f} is within what a perfectly calibrated model shows by chance "
                f"(95 % below {e.null_high:.4f})"
            )
    if sample.n > 1 and float(np.ptp(sample.columns.confidence)) < 1e-6:
        notes.append("every confidence is the same: a calibration error near 0 then says nothing about ranking")
    if sample.columns.condensed:
        from calibcli.metrics.lossy import ERROR

        notes.append(
            f"{sample.columns.condensed} rows are kept as sums over cells of confidence: exact for means and usual "
            f"bins, otherwise {ERROR} in the details says how far off a number may be"
        )
    if sample.columns.groups is not None:
        groups = len(np.unique(sample.columns.groups))
        notes.append(f"{groups} group{'s' * (groups != 1)}: intervals take rows of a group as one draw")
    return notes


def _choices(predictions: Predictions, options: Options, usual: Sequence[str] = ()) -> list[Choice]:
    """The metrics that are asked for, else the usual ones, with the bins of the options."""
    found, top_only = [], predictions.top_only
    usual = usual or (("few",) if options.few else ("default",))
    specs = metrics.known(usual, top_only) if options.specs is None else options.specs
    for choice in metrics.choose(specs, predictions.k, top_only):
        defaults = {"bins": options.bins, "edges": options.edges}
        given = {o: v for o, v in choice.options.items() if v != choice.entry.options[o].default}
        filled = METRICS.choose(choice.name, **{o: v for o, v in defaults.items() if o not in given})
        found.append(Choice(filled.entry, {**filled.options, **given}))
    return list({choice.spec: choice for choice in found}.values())


def _measured(predictions: Predictions, options: Options, scope: str) -> tuple[Sample, list[Estimate]]:
    choices = _choices(predictions, options, BRIEF)
    measured = metrics.columns_of(predictions, choices, options.threads)
    sample = Sample.of(measured, predictions, options.seed)
    return sample, metrics.estimates(sample, choices, level=options.level, scope=scope)


def _small(title: str, group: str, view: BinaryOutcomes, options: Options, **how: Any) -> list[Plot]:
    """A reliability diagram and its strip, as one of small multiples."""
    bins = view.width_bins(options.bins or 15, options.edges or "right")
    panel, strip = reliability(view, bins, seed=options.seed, curve=options.curve, **how)
    n = panel.title.rpartition(", n = ")[2]
    return [dataclasses.replace(panel, title=f"{title}, n = {n}", group=group), strip]


def _slices(
    predictions: Predictions, measured: Columns, options: Options
) -> tuple[list[Estimate], list[Table], list[Plot]]:
    """Each value of each column, as if its rows were a file of their own; diagrams of those with the most rows."""
    found: list[Estimate] = []
    tables: list[Table] = []
    plots: list[Plot] = []
    choices = _choices(predictions, options, BRIEF)
    for column, values in predictions.slices.items():
        parts = rows_by(values)
        if len(parts) > MOST_SLICES:
            problem = f"'{column}' has {len(parts)} values, more than {MOST_SLICES}"
            raise UsageError(problem, "slice by a coarser column")
        rows: list[list[Cell]] = []
        largest = sorted(parts, key=lambda name: -len(parts[name]))[: MOST_SLICE_PANELS if options.diagram else 0]
        title = f"Reliability by {column}" + (f" (the {len(largest)} largest)" if len(parts) > len(largest) else "")
        for name, sample in zip(
            parts, _samples(predictions, measured, [*parts.values()], choices, options), strict=True
        ):
            scope = f"{column}={name}"
            estimates = metrics.estimates(sample, choices, level=options.level, scope=scope)
            found += estimates
            rows.append([str(name), sample.n, *(e.value for e in estimates)])
            if name in largest:
                how = {"event": predictions.event, "name": f"by_{column}_{name}", "about": scope}
                plots += _small(str(name), title, sample.view(), options, **how)
        if column == TASK and "tasks" in predictions.facts:
            mean = macro([e for e in found if e.scope.startswith(f"{column}=")], len(parts), options.level)
            pooled = _measured(predictions, options, "")[1]
            rows.append(["pooled", predictions.n, *(e.value for e in pooled)])
            rows.append([MACRO, None, *(e.value for e in mean)])
            found += mean
        heads = [column, "rows", *(choice.spec for choice in choices)]
        tables.append(Table(name=f"by_{column}", title=f"By {column}", columns=heads, rows=rows))
    return found, tables, plots


def _samples(
    predictions: Predictions, measured: Columns, parts: Sequence[Ints], choices: Sequence[Choice], options: Options
) -> Iterator[Sample]:
    """A sample of each part, one after the other; with scores where a metric reads them."""
    if any(map(reads_scores, choices)):
        gathered = Gathered(predictions, parts)
        for part in map(gathered.take, range(len(parts))):
            yield Sample.of(metrics.columns_of(part, choices, options.threads), part, options.seed)
    else:
        for columns_ in columns_by(predictions, measured, parts, options.threads):
            yield Sample.of(columns_, None, options.seed)


def _class_plots(sample: Sample, shown: ClassBins, predictions: Predictions, seed: int) -> dict[int, Plot]:
    from calibcli.metrics.tables import class_names

    table, names = sample.columns.classes[shown], class_names(predictions)
    each = np.abs(table.sum_p - table.sum_y).sum(axis=1)
    kept = np.sort(np.argsort(-each, kind="stable")[:MOST_PANELS])  # those with the largest error
    table = ClassTable(table.count[kept], table.sum_p[kept], table.sum_y[kept])
    panels = class_panels(table, [names[i] for i in kept], shown.bins, seed)
    return dict(zip(kept.tolist(), panels, strict=True))


def _facts(predictions: Predictions, sample: Sample, options: Options) -> dict[str, Any]:
    facts: dict[str, Any] = {"n": sample.n, **predictions.problem, "level": options.level}
    if predictions.weights is not None:
        facts |= {"weights": predictions.weight_kind, "n_eff": sample.top.effective}
    if predictions.groups is not None:
        facts["groups"] = len(np.unique(predictions.groups))
    if predictions.classes is not None:
        facts["class_names"] = [str(c) for c in predictions.classes]
    if "tasks" in predictions.facts:
        facts["tasks"] = len(predictions.facts["tasks"])
    why = predictions.facts.get("why")
    return facts | ({"why": why} if why else {}) | dict(predictions.facts.get("evaluation", {}))
