"""Run `calib check`: read the inputs, merge options with the configuration, and judge every gate on them."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from calibcli.core import extensions
from calibcli.core.errors import InputError, UsageError
from calibcli.core.figure_data import RULES, Plot
from calibcli.core.files import reading as note_inputs
from calibcli.core.number_format import count_text, number
from calibcli.core.result import VERDICTS, WORST_FIRST, Check, Estimate, Result, Screen, Table
from calibcli.core.scope import TO_BASELINE, Scope
from calibcli.core.statistics import effective_rows
from calibcli.gate import baseline, config, decision, judging, pins
from calibcli.gate.baseline import BaselineRows, Missing, Unpaired, hashes, pair
from calibcli.gate.config import Config, Data, Gate, parsed
from calibcli.gate.decision import Decision
from calibcli.gate.judging import LimitRule, SupportedClaim, judge, resolved
from calibcli.gate.options import Request
from calibcli.gate.sources import BY_CLASS, RecordedOutputs, Results, Source, ece_estimate, otherwise, recorded_reading
from calibcli.metrics.intervals import BOUNDLESS, average
from calibcli.metrics.paired import MeanDifference
from calibcli.metrics.registry import traits
from calibcli.scores import array_names, left_out, recorded_outputs
from calibcli.scores.columns import columns
from calibcli.scores.files.arrays import FileContents
from calibcli.scores.files.source import Source as InputFile
from calibcli.scores.other_files import is_result
from calibcli.scores.predictions import Predictions, Progress
from calibcli.scores.reading_options import Reading

# Judge every gate of a configuration on one input.

MOST_SLICES = 1000
MOST_RULES = 1000
BaselineLookup = Callable[[str], tuple[BaselineRows, BaselineRows] | str]
"""Path of a baseline -> (rows of the input with ids hashed like the baseline's, rows of the baseline), or why not."""


def check(
    source: Source, config: Config, rows: BaselineLookup | None = None, progress: Progress | None = None
) -> Result:
    """Judge every gate.

    Args:
        source: scores or an earlier result.
        config: the gates, and the options of their bounds.
        rows: looks up the rows of a baseline; needed by gates that have one.

    Raises:
        UsageError: a gate without a meaning (an unknown metric, or one without a direction).
    """
    checks: list[Check] = []
    notes: dict[str, None] = {}
    # all rules are read first: a mistake in the last one costs no work
    rules = [resolved(gate, source.better(gate), source.k) for gate in config.gates]
    for rule in extensions.with_progress(rules, lambda rule: rule.gate.metric, progress):
        if source.refusal:
            checks.append(rule.check("not_run", source.refusal))
            continue
        if rule.gate.baseline:
            checks.append(_against_baseline(rule, config.alpha, source, rows))
            continue
        choice = source.judged(rule.gate)
        kind = judging.kind(choice)  # how a binned metric is binned, which a note under its gate repeats; else ""
        judged = [dataclasses.replace(one, kind=kind) for one in _within_limit(rule, config.alpha, source)]
        checks += judged
        notes |= {judging.blind_spot(rule.gate.name, kind): None} if kind else {}
        if all(one.outcome == "pass" for one in judged) and (said := judging.promise(rule, choice, source.k)):
            notes[said] = None
    if not checks:
        none = "no gate is configured: write --max ece=0.05, or gates in calib.toml"
        checks.append(Check(rule="(none)", outcome="not_run", message=none))
    return Result(
        command="check",
        estimates=judged_estimates(checks),
        checks=checks,
        tables=_tables(source, config),
        notes=[*notes],
        screen=Screen(one_page=True, badge="calibration"),
    )


def judged_estimates(checks: Sequence[Check]) -> list[Estimate]:
    """Return the numbers that checks judged, each once."""
    return list({(e.name, e.where): e for check in checks if (e := check.estimate) is not None}.values())


def _within_limit(rule: LimitRule, alpha: float, source: Source) -> list[Check]:
    """Judge a rule on every part that it names; FAIL shares alpha between the parts that have enough rows."""
    gate = rule.gate
    parts = source.slices(gate)
    if isinstance(parts, str):
        return [rule.check("not_run", parts)]
    if len(parts) > MOST_SLICES:
        problem = f"{gate.at}'{gate.by}' has {len(parts)} values, more than {MOST_SLICES}"
        raise UsageError(problem, "choose a coarser column")
    missing = [value for value in gate.values if gate.by and value not in parts]
    checks = [rule.check("not_run", "this slice is missing", scope=f"{gate.by}={value}") for value in missing]
    sizes = {name: source.rows(part, gate) for name, part in parts.items()}
    family = sum(n is None or n >= gate.min_n for n in sizes.values())
    rows = source if isinstance(source, RecordedOutputs) and source.predictions.left is not None else None
    gone = [] if rows is None else rows.left_alone(gate)
    checks += [rule.check("not_run", "every row of it was left out", scope=f"{gate.by}={name}") for name in gone]
    for name in extensions.with_progress([*parts], lambda name: f"{gate.metric} {name}"):
        part, n = parts[name], sizes[name]
        few = f"{count_text(n, 'row')}, fewer than min_n = {gate.min_n}" if n is not None and n < gate.min_n else ""
        claim = few or source.claim(rule, part, alpha, family)
        judged = _judged(rule, claim, where := source.where(gate, name, part))
        left = None if rows is None else rows.left(gate, name)
        if rows is not None and left is not None and left.counts and judged.outcome != "not_run":
            cases = rows.cases(rule, part, left, alpha, family)
            judged = _at_both_ends(rule, judged, claim, cases, where, left.counts, part.n)
        checks.append(judged)
    return checks


def _at_both_ends(
    rule: LimitRule,
    without: Check,
    claim: SupportedClaim | str,
    cases: Sequence[SupportedClaim] | str,
    where: Scope,
    counts: Mapping[str, int],
    n: int,
) -> Check:
    """Return a verdict that holds at the smallest and at the largest value of a number that left out rows allow; else
    NOT RUN.

    Args:
        without: the verdict of the other `n` rows, by the `claim`.  counts: of the rows that were left out, by cause.
    """
    gone, fix = left_out.said(counts, n), _decide(counts)
    if isinstance(cases, str):
        return rule.check("not_run", f"{gone}, and {cases}; {fix}", scope=str(where))
    low, high = [judge(case, rule.side, rule.limit) for case in cases]
    span = [case.estimate.value or 0.0 for case in cases]
    opposite = low.outcome == "fail" and span[0] < 0 < span[1]  # beyond either side of 0: it may be 0
    ends = [number(value) for value in span]
    if low.outcome == high.outcome != "not_run" and not opposite:
        supported = claim if without.outcome == low.outcome else cases[rule.side == "max"]
        stands = f"{gone}, which cannot change that ({ends[0]} to {ends[1]} with them)"
        return _judged(rule, supported, where, stands)
    value = number(without.estimate.value or 0.0) if without.estimate is not None else "none"
    with_them = f"{ends[0]} to {ends[1]} with them"
    if rule.gate.name == "accuracy":
        wrong = low.outcome != without.outcome
        with_them = f"{ends[not wrong]} if all of them were {'wrong' if wrong else 'right'}"
    why = f"{gone} and decide it: {rule.gate.metric} {value} without them, {with_them}"
    return rule.check("not_run", f"{why}; {fix}", scope=str(where))


def _decide(counts: Mapping[str, int]) -> str:
    """Say what would decide about rows that were left out."""
    first = {"answers": "run them again", "labels": "give them labels", "classes": "save scores of that class"}
    return f"{first[next(iter(counts))]}, or {left_out.options(counts)}"


def _judged(rule: LimitRule, claim: SupportedClaim | str, where: Scope, *messages: str) -> Check:
    """Judge a claim; NOT RUN where there is a reason in its place."""
    scope, excused = str(where), rule.gate.on_not_run == "warn"
    if isinstance(claim, str):
        return rule.check("not_run", claim, excused, scope=scope)
    verdict = judge(claim, rule.side, rule.limit)
    message = "; ".join(filter(None, [verdict.message, *messages]))
    estimate = dataclasses.replace(verdict.estimate, **where.fields)
    excused = excused and verdict.outcome == "not_run"
    return rule.check(verdict.outcome, message, excused, scope=scope, estimate=estimate, n_needed=verdict.n_needed)


def _against_baseline(rule: LimitRule, alpha: float, source: Source, rows: BaselineLookup | None) -> Check:
    """Judge the mean difference to the baseline on the same rows against the margin."""
    gate = rule.gate
    lookup = rows(gate.baseline) if rows is not None else "this input has no rows"
    if isinstance(lookup, str):
        return rule.check("not_run", lookup, gate.missing == "warn" and isinstance(lookup, Missing))
    new, base = lookup
    left = source.predictions.left if isinstance(source, RecordedOutputs) else None
    if left is not None:
        gone = left_out.said(left.counts, new.n)
        return rule.check("not_run", f"{gone}, and pair with no row of the baseline; {_decide(left.counts)}")
    pairing = pair(new, base)
    if isinstance(pairing, Unpaired):
        return rule.check("not_run", str(pairing))
    n = len(pairing.new)
    if n < gate.min_n:
        few = f"{count_text(n, 'shared row')}, fewer than min_n = {gate.min_n}"
        return rule.check("not_run", few, gate.on_not_run == "warn")
    weights, are_counts, groups = source.design
    delta = baseline.difference(new, base, pairing, gate.metric, weights, are_counts, groups)
    if isinstance(delta, str):
        return rule.check("not_run", delta)
    same = "the same predictions on all of them" if baseline.identical(new, base, pairing) else ""
    claim = _difference_claim(rule, alpha, delta, n)
    # rows of one file alone may decide: `best` and `worst` give them the values with the smallest and the largest loss
    # that any row of the model that lacks them could have
    unshared = baseline.unshared(new, base, pairing, gate.metric, delta, lower=rule.side == "max")
    if unshared is None:
        return _judged(rule, claim, TO_BASELINE, pairing.how, same)
    cases = [_difference_claim(rule, alpha, one, one.mean.n) for one in (unshared.best, unshared.worst)]
    outcomes = {judge(one, rule.side, rule.limit).outcome for one in (claim, *cases)}
    counts = [(unshared.there, f"in {gate.baseline} alone"), (unshared.here, "in this input alone")]
    alone = " and ".join(f"{count_text(count, 'row')} {where}" for count, where in counts if count)
    if len(outcomes) == 1 or judge(claim, rule.side, rule.limit).outcome == "inconclusive":
        decide = f"{alone}, which cannot change that" if len(outcomes) == 1 else alone
        return _judged(rule, claim, TO_BASELINE, pairing.how, same, decide)
    shown = [number(one.estimate.value or 0.0) for one in (claim, *cases)]
    why = f"{alone} decide it: {shown[0]} on the shared rows, from {shown[1]} to {shown[2]} on all of them"
    return rule.check("not_run", f"{why}; pass the same rows in both files (leave these out of both, or add them)")


def _difference_claim(rule: LimitRule, alpha: float, delta: MeanDifference, n: int) -> SupportedClaim:
    """Return the mean difference to a baseline with its bounds."""
    gate = rule.gate
    low, high = delta.bounds(alpha)
    # an infinite upper bound has a reason that says what helps; an infinite lower one becomes none in `Estimate`
    ends: dict[str, Any] = {"high": high} if math.isfinite(high) else {"reason": BOUNDLESS}
    estimate = Estimate(
        name=gate.metric,
        value=delta.mean.value,
        low=low,
        **ends,
        level=1 - 2 * alpha,
        sided="each",
        unit="nats" if traits(gate.metric).unit == "nats" else "",
        better="higher" if rule.side == "min" else "lower",
        how=f"mean of differences on the same rows, score form with unseen rows{delta.mean.clustered}",
        n=n,
        se=delta.mean.se,
    )
    return SupportedClaim(estimate=estimate, low=estimate.low, high=estimate.high)


def rules_plot(checks: Sequence[Check]) -> list[Plot]:
    """Draw value, bounds and limit of every rule that has them, the worst verdict first where they are many.

    Rules with the same metric, unit and limit share an axis.
    """
    from calibcli.gate.compare import MOST, Row, forest, grouped  # imported here, as few checks are drawn

    drawn = [(c, c.estimate, c.limit) for c in checks if c.estimate is not None and c.limit is not None]
    if len(drawn) > MOST:
        drawn.sort(key=lambda one: WORST_FIRST.index(one[0].outcome))
    roles = {"pass": "good", "fail": "bad"}
    within = {"<=": "left of the limit: within", ">=": "right of the limit: within"}
    rows = [
        Row(
            label=f"{c.rule}, {c.scope}" if c.scope else c.rule,
            estimate=e,
            quantity=metric.strip("|"),
            marks=(-limit, limit) if metric.startswith("|") else (limit,),
            axis="between the limits: within" if metric.startswith("|") else within[sign],
            verdict=VERDICTS[c.outcome],
            role=roles.get(c.outcome, "undecided"),
        )
        for c, e, limit in drawn
        for metric, sign, _ in [c.rule.rsplit(" ", 2)]
    ]
    panels = grouped(forest(rows, name=RULES, line="limit", role="limit"), "Rules")
    return [dataclasses.replace(plot, tier="all") for plot in panels]


def _tables(source: Source, config: Config) -> list[Table]:
    """Tabulate ECE and accuracy of every slice of the columns in `[data] slices` that no gate judges."""
    judged = {gate.by for gate in config.gates if traits(gate.name).table_bounds}
    if not isinstance(source, RecordedOutputs) or source.predictions.top_only == "outcomes":
        return []
    tables = []
    for name in config.slices:
        gate = Gate(metric="ece", by=name)
        if name in judged or isinstance(parts := source.slices(gate), str):
            continue
        rows: list[Sequence[Any]] = []
        for value, part in parts.items():
            with closing(part):
                e = ece_estimate(source.bounds(source.judged(gate), part, config.alpha), "ece")
                accuracy = average(part.columns.correct, part.columns.weights)
            rows.append([value, part.n, accuracy, e.value, e.low, e.high, e.null])
        columns = [name, "n", "accuracy", "ece", "lower", "upper", "if calibrated"]
        tables.append(Table(name=f"by_{name}", title=f"By {name}", columns=columns, rows=rows))
    return tables


# Read the inputs of a gate: scores or an earlier result, and the baseline to compare with.


def open_source(scores: Any, config: AskedConfig, reading: Mapping[str, Any], own: Mapping[str, Any] = {}) -> Source:
    """Open the input of the gates: Python objects, or else `eval`: a scores file or the JSON of any command.

    Args:
        scores: predictions, a result, several files, or the name of a file, which `config.eval` has too.
        reading: options of `scores.recorded_outputs.read`.  own: of them those of the command line.

    Raises:
        InputError: the input is refused.
    """
    if isinstance(scores, Predictions):
        return RecordedOutputs(scores, config)
    if isinstance(scores, Result):
        return Results(scores, "result", config=config)
    if not isinstance(scores, list) and is_result(config.eval):
        result, entry = read_result(config.eval)
        return Results(result, config.eval, files=[entry], config=config)
    paths = scores if isinstance(scores, list) else config.eval
    columns = [*config.slices, *columns_wanted(config)]
    return RecordedOutputs(read_scores(paths, {**reading, "judged": True}, columns, config.pins, own), config)


def columns_wanted(config: AskedConfig) -> list[str]:
    """Return the columns that gates slice by, or name in conditions, or that a threshold needs."""
    named = [gate.by for gate in config.gates if gate.by]
    named += [condition.column for text in named for condition in parsed(text)]
    named += [] if config.decision is None else config.decision.evidence
    return [name for name in named if name != BY_CLASS]


def read_result(path: str | Path) -> tuple[Result, dict[str, str]]:
    """Read a result from a JSON file; return it with path and sha256 of the bytes read.

    Raises:
        InputError: the file cannot be read, or is no result.
    """
    source = InputFile(path)
    return Result.from_json(source.read(), str(path)), source.entry()


def read_scores(
    path: recorded_outputs.Paths,
    reading: Mapping[str, Any],
    by: Sequence[str] = (),
    pinned: Mapping[str, Any] = {},
    own: Mapping[str, Any] = {},
) -> Predictions:
    """Read recorded outputs with those of the columns `by` that the file has, held to what is pinned: see `held_to`."""
    options = Reading(**{**reading, "by": ()})
    sources = recorded_outputs.open_all(path, options)
    contents = recorded_outputs.load_all(sources, options)
    return held_to(pinned, contents, sources, reading, array_names.columns_there(contents[0], by), own)


def held_to(
    pinned: Mapping[str, Any],
    contents: Sequence[FileContents],
    sources: Sequence[InputFile],
    reading: Mapping[str, Any],
    by: Sequence[str],
    own: Mapping[str, Any],
) -> Predictions:
    """Read recorded outputs as is pinned, or else as if nothing was, so that the source of the gates can say in what
    they differ.

    Args:
        pinned: keys of `[data]`, see `pins`.  reading: options, with those of the settings.
        own: those of the command line alone.

    Raises:
        InputError: the input is refused either way; that of the first.
    """
    hints = {key: pinned[key] for key in pins.AGAIN if key in pinned and not reading.get(key)}
    if len(hints.get("classes", ())) == 1:  # a number and a digest
        del hints["classes"]
    loose = {**reading, **{key: own.get(key) for key in pinned if key in reading}}
    if os.path.isfile(pinned.get("labels", "")):  # a file of its own, not part of what the input was taken for
        loose["labels"] = pinned["labels"]
    first_read, refused = None, None
    for options in (reading, {**reading, **hints}, loose) if pinned else (reading,):
        try:
            rows = recorded_outputs.predictions(contents, sources, Reading(**{**options, "by": tuple(by)}))
        except InputError as error:
            refused = refused or error
            continue
        if not pins.differences(pinned, rows.described):
            return rows
        first_read = first_read or rows
    if first_read is None:
        assert refused is not None
        raise refused
    return first_read


def read_pinned(path: str | Path, own: Mapping[str, Any], config_path: str | Path) -> Predictions:
    """Read recorded outputs as a configuration pins.

    Raises:
        InputError: they are refused, or read otherwise.
    """
    settings = config.load(Path(config_path))
    rows = read_scores(path, reading(own, settings), (), settings.pins, own)
    if problem := otherwise(settings, rows.described):
        raise InputError(f"{path}: {problem}", f"mend the export, or calib init {path} --update")
    return rows


def check_overlap(
    fit: str, predictions: Predictions, reading: Mapping[str, Any], hints: Mapping[str, Any]
) -> tuple[str, list[dict[str, Any]]]:
    """Compare the rows with those that the calibrator was fitted on.

    Args:
        hints: what the configuration says of kind, classes and event.

    Returns:
        A note on rows that are in `fit` too, or ""; and path and sha256 of what was read.

    Raises:
        InputError: more than 1 % of the rows are; or `fit` has other classes.
    """
    from calibcli.scores.input_mistakes import refuse_overlap  # imported here, as few checks pass --fitted-on

    fitted = read_scores(fit, {**reading, "weights": None, "group": None, "ids": None}, (), hints)
    if fitted.k != predictions.k:
        problem = f"{fitted.source}, which was fitted on, has {fitted.k} classes, {predictions.source} {predictions.k}"
        raise InputError(problem, "pass outputs of the same model (--fitted-on)")
    return refuse_overlap(fitted, predictions, way_out=""), recorded_outputs.provenance(fitted)


@dataclass(eq=False)
class Baselines:
    """Look up the rows of the input and of a baseline; each is read once."""

    source: Source
    reading: Mapping[str, Any]
    files: list[dict[str, Any]] = field(default_factory=list)
    by_path: dict[str, BaselineRows | str] = field(default_factory=dict)

    def __call__(self, path: str) -> tuple[BaselineRows, BaselineRows] | str:
        """Return the rows of the input, ids hashed with the baseline's salt, and of the baseline, or why not."""
        if path not in self.by_path:
            self.by_path[path] = self._read(path)
        base = self.by_path[path]
        if isinstance(base, str):
            return base
        if self.own is None:
            return "the input is a result without rows; pass the scores, or write it with --keep-rows"
        if isinstance(self.source, RecordedOutputs) and self.source.predictions.ids is not None:
            ids = hashes(self.source.predictions.ids, base.salt)
            return dataclasses.replace(self.own, salt=base.salt, ids=ids), base
        return self.own, base

    @cached_property
    def own(self) -> BaselineRows | None:
        """Rows of the input; None for a result that was written without them."""
        if isinstance(self.source, RecordedOutputs):
            predictions, table = self.source.predictions, self.source.whole.columns
            # where no gate reads the NLL, the pass for the gates left it out
            table = table if table.has("nll") else columns(predictions, class_bins=())
            return baseline.rows(predictions, table)
        return kept_rows(self.source.result, self.source.source)

    def _read(self, path: str) -> BaselineRows | str:
        if not os.path.exists(path):
            return Missing(f"no baseline at {path}")
        if is_result(path):
            result, entry = read_result(path)
            self.files.append(entry)
            kept = kept_rows(result, path)
            if kept is None:
                return f"{path} holds no rows; write it with --keep-rows"
            return self._read_otherwise(result, path) or kept
        predictions = read_scores(
            path, {**self.reading, "weights": None, "group": None, "judged": True}, (), self.source.config.hints
        )
        self.files += recorded_outputs.provenance(predictions)
        return baseline.rows(predictions, columns(predictions, class_bins=()))

    def _read_otherwise(self, result: Result, path: str) -> str:
        """Say that a baseline was read for other classes, or another event, than the input; "" where it was not."""
        theirs, read = recorded_reading(result), recorded_reading(self.source)
        if theirs is None or read is None:
            return ""
        then = {name: value for name, value in pins.of_reading(theirs).items() if name in ("classes", "event")}
        differences = pins.differences(then, read)
        return (
            f"{path} was measured on another reading ({'; '.join(differences)}): write the baseline again"
            if differences
            else ""
        )


def kept_rows(result: Result, source: str) -> BaselineRows | None:
    """Return the rows that a result was written with, or None."""
    packed = result.facts.get("rows")
    return BaselineRows.unpack(packed, source) if isinstance(packed, dict) else None


# One run of `calib check`: merge the options with the configuration, read the input and judge the gates.


FROM_FILE = {f.name for f in dataclasses.fields(Reading)} & {f.name for f in dataclasses.fields(Data)}
"""Options of reading that the configuration sets where the request does not."""


@dataclass(frozen=True, kw_only=True)
class AskedConfig(Config):
    """The settings of one check: those of the files, with what was asked for in their place.

    Attributes:
        decision: the threshold whose promise is among the gates.
    """

    decision: Decision | None = None


def asked(request: Request) -> AskedConfig:
    """Load the configuration and apply the request, which takes precedence.

    Raises:
        UsageError: either of them is wrong, or no input is named.
    """
    by = request.reading.get("by")
    settings = AskedConfig(**vars(config.load(request.config, rules=False))).over(
        eval=str(request.input) if isinstance(request.input, str | Path) else None,
        slices=tuple(by) if by else None,
        **{name: getattr(request, name) for name in ("fitted_on", "alpha", "bins", "bounds", "seed")},
    )
    if not settings.eval and request.input is None:
        raise UsageError("no input", 'name a file with scores, or set eval = "FILE" under [data] of calib.toml')
    if request.threshold:
        decided, entry = decision.load(request.threshold)
        settings = settings.over(event=decided.name or None, files=(*settings.files, entry), decision=decided)
    gates = tuple(_gates(request, settings, settings.decision))
    if len(gates) > MOST_RULES:
        problem = f"{len(gates):,} rules are more than {MOST_RULES:,}"
        raise UsageError(problem, 'write each rule once; by = "COLUMN" judges one for every value of a column')
    return dataclasses.replace(settings, gates=gates)


def _gates(request: Request, settings: Config, decided: Decision | None) -> list[Gate]:
    """Return the gates of the command line and of a threshold, or those of the file when there are none.

    A baseline without a margin asks that the model is no worse than it in `temperature_gain`: what a temperature would
    save, the part of the NLL that calibration can mend.
    """
    rules = [("max", text) for text in request.max] + [("min", text) for text in request.min]
    gates = [config.limit_rule(text, side, scope=request.scope) for side, text in rules]
    by = tuple(request.reading.get("by") or ())
    gates += [dataclasses.replace(gate, by=name) for name in by for gate in gates]
    gates = gates if decided is None else decided.gates(gates)
    if by and not gates:
        raise UsageError("--by without --max or --min", 'name a rule, or write by = "..." in the gates of the file')
    if request.margin and not request.baseline:
        raise UsageError("--margin without --baseline", "add --baseline result.json")
    gates += [config.limit_rule(text, "margin", baseline=request.baseline) for text in request.margin]
    if not gates and request.baseline and any(g.baseline for g in settings.gates):
        gates = [dataclasses.replace(g, baseline=request.baseline) if g.baseline else g for g in settings.gates]
    elif request.baseline and not request.margin:
        gates.append(Gate(metric="temperature_gain", baseline=request.baseline, margin=0.0))
    asked_for = {"min_n": request.min_n, "on_inconclusive": request.on_inconclusive}
    changed: dict[str, Any] = {key: value for key, value in asked_for.items() if value is not None}
    return [dataclasses.replace(gate, **changed) for gate in (gates or settings.gates)]


def run(
    request: Request, progress: Progress | None = None, settings: AskedConfig | None = None, diagram: bool = False
) -> Result:
    """Read the input and judge every gate. The provenance holds path and sha256 of each file, as it was read.

    Args:
        settings: result of `asked(request)`, where the caller has it already.
        diagram: add plots of the rules and, for scores, the reliability diagram.
    """
    settings = settings or asked(request)
    note_inputs(*settings.named(), pipes=True)
    options = reading(request.reading, settings)
    source = open_source(request.input, settings, options, request.reading)
    if isinstance(source, Results):
        _refuse_settings_of_scores(request)
    baselines = Baselines(source, options)
    result = check(source, settings, baselines, progress)
    plots = rules_plot(result.checks) if diagram else []
    facts: dict[str, Any] = {"config": ", ".join(settings.sources), "alpha": settings.alpha}
    notes, files = [*result.notes], [*source.files]
    if isinstance(source, RecordedOutputs):
        plots += source.diagram() if diagram else []
        p = source.predictions
        if settings.decision is not None:
            settings.decision.refuse_rows(source.files, p, request.threshold)
        notes += [*source.unjudged(), *p.notes]
        facts |= {"n": p.n, **p.problem.facts}
        if p.weights is not None and p.weight_kind == "sampling":
            facts["n_eff"] = round(effective_rows(p.weights), 1)
        if p.groups is not None:
            facts["groups"] = p.group_count
        if settings.fitted_on:
            overlap, read = check_overlap(settings.fitted_on, p, options, settings.hints)
            notes += [overlap] if overlap else []
            files += read
    if request.keep_rows:
        if baselines.own is None:
            raise UsageError("--keep-rows needs scores, this input is a result", "pass the scores file")
        facts["rows"] = baselines.own.pack()
    provenance = {"inputs": [*files, *baselines.files, *settings.files], "seed": settings.seed}
    return dataclasses.replace(result, plots=plots, notes=notes, facts=facts, provenance=provenance)


def _refuse_settings_of_scores(request: Request) -> None:
    """Refuse options of computing and reading on a stored result, on which they have no effect.

    Raises:
        UsageError: such an option was given.
    """
    given = {"bins": request.bins, "bounds": request.bounds, "fitted_on": request.fitted_on}
    given |= {key: value for key, value in request.reading.items() if key != "by"}
    for key, value in given.items():
        if value is not None and not (isinstance(value, bool | tuple | str) and not value):
            problem = f"--{key.replace('_', '-')} has no effect on a stored result"
            raise UsageError(problem, "leave it out, or pass the scores")


def reading(options: Mapping[str, Any], settings: Config) -> dict[str, Any]:
    """Merge options of `scores.recorded_outputs.read`: the command line's, else the configuration's."""
    merged = {key: value for key, value in options.items() if key not in ("by", "multilabel")}
    if options.get("multilabel"):
        raise UsageError("a gate takes one label per row", "check every label of a multi-label problem on its own")
    for key in FROM_FILE.difference(pins.AGAIN):
        value = getattr(settings, key)
        if value and not merged.get(key):
            merged[key] = list(value) if isinstance(value, tuple) else value
    return merged
