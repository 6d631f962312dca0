"""Judge, compare, watch and report, from Python."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Unpack, cast

import numpy.typing as npt

from calibcli import headlines
from calibcli.api.measuring import Scores, given, is_path, measure, spread
from calibcli.core import extensions
from calibcli.core.errors import InputError, UsageError
from calibcli.core.files import atomic, target
from calibcli.core.number_format import count_text
from calibcli.core.python_errors import in_python
from calibcli.core.result import CLAIM_VERDICTS, Cell, Estimate, Result, Table, by_report, decisive, results_of
from calibcli.core.scope import CHANGE
from calibcli.gate import check as session
from calibcli.gate import config as config_file
from calibcli.gate.check import read_result
from calibcli.gate.config import load as rules_of
from calibcli.gate.options import Assumptions, Promise, Request
from calibcli.gate.sources import BY_CLASS
from calibcli.headlines import FACT, headed, listed
from calibcli.scores import recorded_outputs
from calibcli.scores.from_arrays import How, as_array
from calibcli.scores.other_files import is_result
from calibcli.scores.predictions import Predictions, Progress
from calibcli.watch import late
from calibcli.watch.late import Labels
from calibcli.watch.session import Terms, WatchSession
from calibcli.watch.state_file import load, locked

if TYPE_CHECKING:
    from calibcli.calibrators import Fit, Scaler

__all__ = ["Limits", "Watch", "check", "compare", "init", "plan", "report", "rules", "threshold"]

Limits = Mapping[str, float] | tuple[str, ...]
"""Limits by metric, or as the command line and a configuration write them, `("ece=0.05",)`."""


@spread
def check(
    scores: Scores | Result | None = None,
    /,
    labels: npt.ArrayLike | None = None,
    *,
    max: Limits | None = None,
    min: Limits | None = None,
    baseline: str | Path | None = None,
    margin: Limits | None = None,
    scope: str = "",
    min_n: int | None = None,
    on_inconclusive: Literal["fail", "warn"] | None = None,
    alpha: float | None = None,
    bins: int | None = None,
    bounds: Literal["sharp", "score"] | None = None,
    config: str | Path | None = None,
    fitted_on: str | Path | None = None,
    threshold: str | Path | None = None,
    keep_rows: bool = False,
    judge: bool = True,
    diagram: bool = False,
    seed: int | None = None,
    progress: Progress | None = None,
    **how: Unpack[How],
) -> Result:
    """Judge limits on metrics, as a release gate: PASS, FAIL or INCONCLUSIVE for each, in `result.checks`.

    The result as a whole has `.passed`, `.verdict`, `.exit_code` and `.raise_if_failed()`. Numbers and their bounds
    are those of the metrics, in their units (`calib list metrics`).

    >>> [c.outcome for c in check([[9.0, 0.0]] * 400, [0] * 400, max={"ece": 0.5}, min={"accuracy": 0.9}).checks]
    ['pass', 'pass']

    Args:
        scores, labels, how: as for `measure`, or a result and its .json; None leaves the input to `config`.
        max, min: limits by metric: `max={"ece": 0.05}`. With `by`, of every slice as well.
        baseline: scores, or an earlier result with kept rows.  margin: largest allowed loss against it, by metric.
        scope: judge the numbers of a result with this scope, such as `before` or `after`.
        min_n: fewest rows; a rule with fewer is NOT RUN [200].  on_inconclusive: `fail` or `warn` [fail].
        alpha: error probability of each bound [0.05].  bins: of binned metrics [15].  bounds: of ece [sharp].
        config: a calib.toml; arguments override its rules and settings.
        fitted_on: the scores that the calibrator was fitted on; they must not share rows with the input.
        threshold: file of `calib threshold --save`, whose promise is judged on these rows.
        keep_rows: keep per-row values in the result, as a later baseline.  judge: False applies no rules.
        diagram: add the rules, and for scores the reliability diagram, to `plots`.
        seed: random seed.  progress: called with (fraction, text).

    Raises:
        InputError: an input is refused.  UsageError: a rule is invalid.
    """
    request = Request(
        max=rules(max),
        min=rules(min),
        baseline=file_of(baseline),
        margin=rules(margin),
        scope=scope,
        min_n=min_n,
        on_inconclusive=on_inconclusive,
        alpha=alpha,
        bins=bins,
        bounds=bounds,
        config=None if config is None else Path(config),
        fitted_on=None if fitted_on is None else str(fitted_on),
        threshold=None if threshold is None else str(threshold),
        keep_rows=keep_rows,
        seed=seed,
    )
    if scores is None or isinstance(scores, Result) or is_path(scores):
        reading: dict[str, Any] = {**how, **({} if labels is None else {"labels": labels})}
        reading |= {"by": (how["by"],)} if isinstance(how.get("by"), str) else {}
    else:
        scores = given(check, scores, labels, how, progress)
        reading = {"by": tuple(scores.slices)}
    request = dataclasses.replace(request, input=scores, reading=reading)
    settings = session.asked(request)
    if not judge:
        settings = dataclasses.replace(settings, gates=())
    result = session.run(request, progress, settings, diagram)
    return headlines.headed(result if judge else dataclasses.replace(result, checks=[]))


@spread
def compare(
    first: Scores | Result,
    *others: Scores | Result,
    metrics: Sequence[str] | None = None,
    alpha: float = 0.05,
    names: Sequence[str] | None = None,
    config: str | Path | None = None,
    **how: Unpack[How],
) -> Result:
    """Compare models: differences of every metric to the first one, with intervals, and which of them are real.

    >>> a = [[2.0, 0.0], [0.0, 1.0], [3.0, 0.0], [0.0, 1.0]]
    >>> from calibcli.scores.from_arrays import of_arrays
    >>> one, two = (of_arrays([[f * v for v in row] for row in a], [0, 1, 1, 1]) for f in (1, 2))
    >>> found = compare(one, two, metrics=["accuracy"], names=["small", "large"])
    >>> found["accuracy", "large - small"].value
    0.0

    Args:
        first, others: `Predictions` or files of the same rows by each model, of scores as for `measure`, paired by id,
            or by position where the labels are the same; or results (or their .json), compared as independent.
        metrics: specs instead of the default set.  alpha: family-wise error of what is called real (Holm 1979).
        names: of the models; their file names by default.
        config: a calib.toml whose `[data]` says how every file is read; one that is read otherwise is refused.
        how: how files are read, see `read`.

    Returns:
        The differences as estimates `found["nll", "b - a"]`, in the unit of each metric.

    Raises:
        InputError: the rows are not the same.  UsageError: fewer than two models, or scores and results.
        TypeError: a model that is none of these.
    """
    from calibcli.gate import compare as comparing  # here, as a check starts without it

    inputs = [first, *others]
    named = list(names or comparing.names_of(inputs))
    if len(named) != len(inputs):
        raise UsageError(f"{len(inputs)} models, {len(named)} names", "name each model")
    there = [i for i in inputs if not isinstance(i, str | Path) or os.path.exists(i)]  # others are refused when read
    kinds = {isinstance(i, Result) or (isinstance(i, str | Path) and is_result(i)) for i in there}
    if kinds == {True}:
        if metrics or config or any(value for value in how.values()):
            problem = "results are compared as they are: metrics and how files are read were chosen when they were made"
            raise UsageError(problem, "leave these options out, or pass the scores")
        stored = [(i, {}) if isinstance(i, Result) else read_result(i) for i in inputs]  # type: ignore[arg-type]
        files = [entry for _, entry in stored if entry]
        result = comparing.results([one for one, _ in stored], named, alpha)
        return headlines.headed(result, provenance={"inputs": files, "seed": 0})
    if len(kinds) > 1:
        raise UsageError("scores and results cannot be compared with each other", "pass all scores, or all results")
    if not all(isinstance(one, Predictions) or is_path(one) for one in inputs):
        raise TypeError("a model to compare is its predictions or a file: calibcli.from_arrays(scores, labels) of each")
    if all(isinstance(one, Predictions) for one in inputs):
        given(compare, cast(Predictions, first), None, how)  # refuses what is said of files where there are none

    def read(file: Any) -> Predictions:
        if config is not None:
            return session.read_pinned(file, how, config)
        alone: How = {**how}
        return given(compare, file, alone.pop("labels", None), alone, whole=True)  # type: ignore[typeddict-item]

    models = [one if isinstance(one, Predictions) else read(one) for one in inputs]
    files = [entry for predictions in models for entry in recorded_outputs.provenance(predictions)]
    chosen = [metrics] if isinstance(metrics, str) else list(metrics or ())
    result = comparing.scores(models, named, chosen or None, alpha)
    return headlines.headed(result, provenance={"inputs": files, "seed": 0})


@spread
def plan(
    *,
    max: Limits | None = None,
    min: Limits | None = None,
    margin: Limits | None = None,
    pilot: Scores | None = None,
    labels: npt.ArrayLike | None = None,
    truth: float | None = None,
    accuracy: float = 0.87,
    n_classes: int = 10,
    logit_factor: float = 1.3,
    slices: int = 1,
    power: float = 0.8,
    alpha: float = 0.05,
    seed: int = 0,
    progress: Progress | None = None,
    **how: Unpack[How],
) -> Result:
    """Compute how many rows a gate needs to PASS a good model, or to FAIL a bad one, with a given probability.

    Ours: the chance of each verdict over n, with the bounds of `check` (`calib list metrics` has their sources).

    >>> found = plan(max={"ece": 0.02}, min={"accuracy": 0.85})
    >>> [e.scope for e in found.estimates], found["n", "accuracy >= 0.85"].value > 1000
    (['ece <= 0.02', 'accuracy >= 0.85'], True)

    Args:
        max, min, margin: limits by metric, as for `check`; without any, those of calib.toml.
        pilot, labels, how: scores (N, K) and labels (N,) of a pilot, as for `measure`; without, a synthetic model.
        truth: value of the metric in the population, in its units; the pilot's own; without one, 0 for ece.
        accuracy, n_classes: of the synthetic model.  logit_factor: with `margin`, factor on the new model's logits.
        slices: that are judged together.  power: chance of the verdict that is true.  alpha: error probability of
            each bound.  seed: of what is simulated.  progress: called with (fraction, text).

    Returns:
        The rows of each rule as estimates `found["n", "ece <= 0.02"]`, their curves in `plots`.

    Raises:
        InputError: a pilot that is refused.
        UsageError: a rule that cannot be planned, or a truth that is the limit itself.
    """
    from calibcli.gate import plan as planning  # here, as a check starts without it

    assumed = Assumptions(
        truth=truth,
        accuracy=accuracy,
        n_classes=n_classes,
        logit_factor=logit_factor,
        slices=slices,
        power=power,
        alpha=alpha,
        seed=seed,
    )
    gates = [config_file.limit_rule(text, "max") for text in rules(max)]
    gates += [config_file.limit_rule(text, "min") for text in rules(min)]
    gates += [config_file.limit_rule(text, "margin", baseline="plan") for text in rules(margin)]
    settings = None
    if not gates:
        settings = config_file.load()
        alike = {(gate.metric, gate.limit, gate.max, gate.min, gate.margin): gate for gate in settings.gates}
        gates = list(alike.values())
        if alpha == Assumptions().alpha:  # an alpha of one's own goes before that of the file
            assumed = dataclasses.replace(assumed, alpha=settings.alpha)
    if not gates:
        raise UsageError("no gate to plan", "write --max ece=0.02, or gates in calib.toml")
    rows = None if pilot is None else given(plan, pilot, labels, how, progress, whole=True)
    planned = planning.plan(gates, dataclasses.replace(assumed, pilot=rows))
    if slices == 1 and settings and any(gate.by for gate in settings.gates):
        note = "rules with `by` are planned as if of all rows: --slices N plans the rows of each of N slices"
        planned = dataclasses.replace(planned, notes=[*planned.notes, note])
    inputs = [*([] if rows is None else recorded_outputs.provenance(rows)), *(settings.files if settings else ())]
    return headlines.headed(planned, provenance={"inputs": inputs, "seed": seed})


@spread
def threshold(
    scores: Scores,
    /,
    labels: npt.ArrayLike | None = None,
    *,
    max_risk: float | None = None,
    min_precision: Mapping[str, float] | str | None = None,
    max_fpr: float | None = None,
    alpha: float = 0.05,
    calibrator: str | Path | Scaler | Fit | None = None,
    progress: Progress | None = None,
    **how: Unpack[How],
) -> Result:
    """Find the confidence from which on predictions may be used without a person.

    At most `max_risk` of the accepted rows are wrong in the population, except with probability alpha. Ours: one level
    for all candidates, exact where confidence tells nothing.

    >>> found = calibcli.threshold(logits, labels, max_risk=0.1)
    >>> round(found["accepted"].value, 2), found["risk"].value < 0.1
    (0.97, True)

    Args:
        scores, labels, how: (N, K) and (N,), as for `measure`, of rows that no calibrator was fitted on. With `by`, one
            column, or `class` for the predicted class, each value has a threshold, at alpha over their number.
        max_risk: largest share of accepted rows that may be wrong.
        min_precision: of two classes, `{"spam": 0.95}`: accept by P(spam); smallest share of accepted rows that are it.
        max_fpr: of two classes: accept by P(event); largest share of the other class that may be accepted.
        alpha: chance that the promise is broken.
        calibrator: of `fit_scaler` or `load_scaler`, or a file of `save_scaler`, that the scores go through first.
        progress: called with (fraction, text).

    Returns:
        The estimates `threshold`, `accepted` (the share of rows, with an interval) and `risk` (or `precision`, `fpr`),
        between 0 and 1. What `write("t.json")` writes, `apply`, `check` and `Watch` take as `threshold`.

    Raises:
        InputError: rows that are refused.  UsageError: none or several promises, or one for other rows.
    """
    from calibcli import calibrators  # here, as a check starts without it
    from calibcli.api.fixing import opened
    from calibcli.gate import threshold as thresholds

    if isinstance(min_precision, Mapping):
        min_precision = ",".join(f"{name}={share}" for name, share in min_precision.items())
    promise = Promise(max_risk=max_risk, min_precision=min_precision, max_fpr=max_fpr, alpha=alpha)
    if how.get("multilabel"):
        raise UsageError("threshold takes one label per row", "find one for each label, as a binary problem")
    named: Any = how.get("by")
    by = [named] if isinstance(named, str) else [*named] if isinstance(named, list | tuple | Mapping) else []
    if is_path(scores) and BY_CLASS in by:
        how["by"] = [name for name in by if name != BY_CLASS]
    rows = given(threshold, scores, labels, how, progress)
    columns = list(dict.fromkeys([*rows.slices, *by]))
    if len(columns) > 1:
        raise UsageError(f"thresholds by {' and by '.join(columns)}", "name one column: --by COLUMN")
    digest, files = "", list[dict[str, Any]]()
    if calibrator is not None:
        scaler, files = opened(calibrator)
        digest = files[0]["sha256"] if files else "in memory"
        if rows.sha256 and scaler.metadata.get("sha256") == rows.sha256:
            problem = f"the calibrator was fitted on {rows.source}, whose rows look better through it than others"
            raise InputError(problem, "pass rows that it was not fitted on")
        rows = calibrators.apply(scaler, rows).held()
    result = thresholds.report(rows, promise, "".join(columns), digest)
    return headed(result, provenance={"inputs": [*files, *recorded_outputs.provenance(rows)], "seed": 0})


@spread
def init(
    file: str | Path,
    /,
    labels: str | Path | None = None,
    *,
    metrics: Sequence[str] = ("ece", "accuracy"),
    baseline: str | Path | None = None,
    save: str | Path = "calib.toml",
    update: bool = False,
    workflow: str | Path | None = None,
    progress: Progress | None = None,
    **how: Unpack[How],
) -> Result:
    """Write a calib.toml for a file: how it was read, pinned, and rules at the bounds of today's numbers.

    `check` and `watch` hold to the reading: where a later file is read otherwise, no rule is judged. Ours: what a
    reading consists of. Limits are in the units of their metrics (`calib list metrics`).

    >>> found = calibcli.init("sample_data/test.npz", save=folder / "calib.toml")
    >>> [line for line in (folder / "calib.toml").read_text().splitlines() if line.startswith("scores")]
    ['scores = "logits"']
    >>> calibcli.check(config=folder / "calib.toml").verdict
    'pass'

    Args:
        file: scores with labels, as `check` takes them.  labels: their key, or a file of their own.
        metrics: that rules are proposed for.
        baseline: scores, or a result, of an earlier model: limits lie at the bounds of its numbers instead.
        save: the configuration.  update: replace only `[data]` of one that is there, and keep its rules.
        workflow: a file for a workflow of GitHub that runs the gate.
        progress: called with (fraction, text).  how: how the file is read, see `read`.

    Returns:
        The proposed rules as a table, with their numbers.

    Raises:
        InputError: the file is refused.  UsageError: a configuration or a workflow is there already.
    """
    from calibcli.gate import pins, proposal  # here, as a check starts without it

    configuration = target(Path(save))
    old = configuration.read_text(encoding="utf-8") if configuration.is_file() else ""
    if old and not update:
        fix = f"replace how the file is read in it, and keep its rules: --update; or write another: --save {save}.new"
        raise UsageError(f"{save} is there already", fix)
    if workflow is not None and Path(workflow).exists():
        raise UsageError(f"{workflow} is there already", f"move it away, or write another: --workflow {workflow}.new")
    rows = given(init, file, labels, how, progress, whole=True)
    measured = measure(rows, None, *metrics)
    entries = recorded_outputs.provenance(rows)
    read, path = entries[0]["read"], proposal.relative(str(file), configuration.parent)
    earlier: Sequence[Estimate] | None = None
    if baseline is not None and is_result(baseline):
        earlier_result, entry = read_result(baseline)
        earlier = [e for e in earlier_result.estimates if e.name in metrics and not e.scope]
        entries = [*entries, entry]
    elif baseline is not None:
        earlier_rows = given(init, baseline, labels, how, progress, whole=True)
        earlier = measure(earlier_rows, None, *metrics).estimates
        entries = [*entries, *recorded_outputs.provenance(earlier_rows)]
    proposed = proposal.rules(measured.estimates, earlier)
    if earlier is not None and not proposed:
        problem = f"{baseline} has no {' or '.join(metrics)} with an interval"
        raise UsageError(problem, "pass its scores, or a result of calib metrics or check on them")
    doubts = proposal.doubts(*((measured.estimates, "this model") if earlier is None else (earlier, "the baseline")))
    notes = [*rows.notes, *doubts]
    if old:
        before = config_file.of_text(old, configuration)
        changes = pins.differences(before.pins, read)
        notes += [f"[data] of {save}: {'; '.join(changes) or 'no pin differs'}"]
        text = proposal.updated(old, read, path, str(save))
    else:
        text = proposal.text(read, path, proposed, doubts)
    files = {"configuration": configuration, **({} if workflow is None else {"workflow": target(Path(workflow))})}
    texts = {"configuration": text, "workflow": proposal.workflow(path)}
    for role, written in files.items():
        with atomic(written) as temporary:
            temporary.write_text(texts[role], encoding="utf-8")
    table = Table(
        name="rules",
        columns=["metric", "side", "limit", "today"],
        rows=[[*rule] for rule in proposed],
        title="Rules that are proposed: choose limits of your own"
        if not old
        else "Rules of today's numbers, not written",
    )
    result = Result(
        command="init",
        estimates=measured.estimates,
        tables=[table],
        notes=notes,
        facts={"n": rows.n, **rows.problem.facts, **({} if baseline is None else {"limits of": Path(baseline).name})},
        artefacts={role: str(written) for role, written in files.items()},
        provenance={"inputs": entries, "seed": 0},
    )
    return headed(result)


def rules(limits: Any) -> tuple[str, ...]:
    """Write limits as the command line has them."""
    if isinstance(limits, tuple):
        return limits
    if not isinstance(limits, Mapping | None):
        raise TypeError(f"limits are {type(limits).__name__}: pass numbers by metric, max={{'ece': 0.05}}")
    return tuple(f"{metric}={value}" for metric, value in (limits or {}).items())


def file_of(baseline: Any) -> str:
    """Return the path of a baseline; "" if there is none."""
    if baseline is not None and not isinstance(baseline, str | Path):
        kind = type(baseline).__name__
        raise TypeError(f"a baseline is {kind}: pass the file of its scores, or of an earlier result")
    return str(baseline or "")


# Watch a model night by night.


class Watch:
    """A gate that can be evaluated every night: the probability that any evaluation is wrong is at most alpha.

    Each claim is a bet whose wealth is an e-process (Ville 1939; Waudby-Smith and Ramdas 2024).

    >>> watch = calibcli.Watch(min={"accuracy": 0.85})
    >>> watch.update(logits, labels, night="2026-11-22").verdict
    'pass'

    Args:
        path: of the state, a .json file that need not exist yet; None keeps the state in memory.
        max, min, margin: limits by metric, `max={"ece": 0.03}`, fixed when the state is created; `margin` is the
            largest allowed loss against a baseline. They may be left out if the state exists.
        alpha: error probability of each claim, over all evaluations [0.05].  per_year: of a false drift alarm, in one
            year and in all years together [0.05].
        nll_cap: cap on the loss of a row, in nats [10].  bins: of ece [15].
        config: a calib.toml with the rules.  threshold: file of `calib threshold --save`, whose promise is watched.
        name: of the model; rows of another model are refused.
        labelled: share of its rows that have labels from which on a night counts, the others at the worst case [1].
        most_waiting: nights that may wait for labels; with more a check that these come is NOT RUN [30].
        restart: start a new state, and keep the existing one beside it.

    Raises:
        InputError: the file is not a state, or was changed by something else.
    """

    @in_python
    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        max: Limits | None = None,
        min: Limits | None = None,
        margin: Limits | None = None,
        alpha: float | None = None,
        per_year: float | None = None,
        nll_cap: float | None = None,
        bins: int | None = None,
        config: str | Path | None = None,
        threshold: str | Path | None = None,
        name: str = "",
        labelled: float = 1.0,
        most_waiting: int = 30,
        restart: bool = False,
    ) -> None:
        request = Request(
            max=rules(max),
            min=rules(min),
            margin=rules(margin),
            threshold=None if threshold is None else str(threshold),
            alpha=alpha,
            bins=bins,
            config=None if config is None else Path(config),
        )
        rules_of(request.config)  # what it names is no place for an output, also where these rules go before its own
        terms = Terms(
            rules=request, per_year=per_year, nll_cap=nll_cap, model=name, labelled=labelled, most_waiting=most_waiting
        )
        self._keeper = WatchSession(path, terms, restart)
        self._path = path

    def __repr__(self) -> str:
        return f"Watch({'in memory' if self._path is None else repr(os.fspath(self._path))})"

    @in_python
    @spread
    def update(
        self,
        scores: Scores,
        /,
        labels: npt.ArrayLike | None = None,
        *,
        night: str | datetime.date = "",
        baseline: str | Path | None = None,
        **how: Unpack[How],
    ) -> Result:
        """Count the rows of a night, write the state, and say what it knows now.

        >>> watch = calibcli.Watch(max={"ece": 0.2})
        >>> watch.update(logits, labels, night="2026-11-22").facts["n"]
        997

        Args:
            scores, labels, how: (N, K) and (N,), as for `measure`. With `by`, every slice is watched too. Several files
                are of the nights that their names say. Rows without a label (None, NaN), or all rows if there are no
                `labels`, wait for it by their `ids`; so do the nights after theirs. Of files, `labels` may also name
                files with labels by id.
            night: date of the rows, `2026-11-22`, as text or a date; that in the name of the file, or today, in UTC.
            baseline: scores of another model on the same rows, with `margin`.

        Raises:
            InputError: rows that are refused, of another model, or in the state with other scores: none is counted.
            UsageError: a rule without a meaning, or others than those of the state.
        """
        more: dict[str, Any] = {**how, **({} if labels is None else {"labels": labels})}
        more |= {"by": (how["by"],)} if isinstance(how.get("by"), str) else {}
        date = night if isinstance(night, str) else str(night)[:10]
        known: Labels | None = None
        if is_path(scores):
            known = late.labels_of(labels, how) if isinstance(labels, str | Path) else None
            named = [scores] if isinstance(scores, str | Path) else list(cast(Any, scores))
            parts: list[tuple[str, Any]] = late.nights_of(named, date, recorded_outputs.reading_of(how), known)
        else:
            values = None if labels is None or isinstance(scores, Predictions) else as_array(labels, "labels")
            if values is not None and late.gaps(values):
                labels = None
            parts = [(date, given(Watch.update, scores, labels, how, need_labels=labels is not None))]
            if values is not None and labels is None and parts[0][1].ids is not None:
                known = Labels.of("labels", parts[0][1].ids, values, None)
            more = {"by": tuple(parts[0][1].slices)} if parts[0][1].slices else {}

        def count(keeper: WatchSession) -> None:
            for day, part in extensions.with_progress(
                parts, lambda one: one[1].name if isinstance(one[1], Path) else ""
            ):
                keeper.update(part, day, file_of(baseline), known)
            if known is not None:
                keeper.label(known)

        return self._kept(count, more)

    @in_python
    def labels_for(
        self,
        rows: npt.ArrayLike | str | Path,
        /,
        labels: npt.ArrayLike | None = None,
        *,
        ids: str | None = None,
        label_base: int | None = None,
        ignore_label: int | None = None,
    ) -> Result:
        """Give rows that wait their labels, in any order, and count the nights that are complete; write the state.

        >>> watch = calibcli.Watch(min={"accuracy": 0.85})
        >>> watch.update(logits, ids=list(range(997)), night="2026-11-22").facts["waiting"]
        [{'night': '2026-11-22', 'rows': 997, 'labelled': 0}]
        >>> watch.labels_for(list(range(997)), labels).facts["n"]
        997

        Args:
            rows, labels: ids of any rows (M,), and their labels (M,); or a file, folder or pattern of files with both.
            ids: name of the ids in a file.  label_base: what the first class is called.
            ignore_label: what stands for a label that has not come.

        Raises:
            InputError: a label of no class, or a row with another one already: none of them is used.
            UsageError: there is no state yet, or there are no labels by id.
        """
        how: dict[str, Any] = {"ids": ids, "label_base": label_base, "ignore_label": ignore_label}
        by_id = late.labels_of(rows, how) if is_path(rows) else None
        if not is_path(rows) and labels is not None:
            by_id = Labels.of("labels", as_array(rows, "ids"), as_array(labels, "labels"), ignore_label)
        if by_id is None:
            problem = f"no labels by id in {rows!s}" if is_path(rows) else "ids without labels"
            raise UsageError(problem, "pass ids and labels, or a file that is there and has both (--ids KEY)")
        return self._kept(lambda keeper: keeper.label(by_id), how)

    def merge(self, other: Watch | str | os.PathLike[str]) -> Result:
        """Add the rows of another part, or machine, that was begun with the same rules; write the state.

        >>> one, two = (calibcli.Watch(min={"accuracy": 0.85}) for _ in range(2))
        >>> a, b = one.update(logits[:500], labels[:500]), two.update(logits[500:], labels[500:])
        >>> one.merge(two).facts["n"]
        997

        Args:
            other: a watch, or the file of its state.

        Raises:
            InputError: it has other rules, or rows that are in this one too.
        """
        state = other._keeper.state if isinstance(other, Watch) else load(other)
        if state is None:
            return self.result()
        name = other._keeper.name if isinstance(other, Watch) else str(other)
        return self._kept(lambda keeper: keeper.merge(state, name), {})

    def result(self) -> Result:
        """Return the result of the state: a check for each rule and slice, its evidence, the nights, and their plot.

        >>> watch = calibcli.Watch(min={"accuracy": 0.85})
        >>> watch.update(logits, labels).verdict == watch.result().verdict
        True

        Raises:
            UsageError: there is no state yet.
        """
        return self._keeper.result()

    def _kept(self, change: Callable[[WatchSession], None], reading: dict[str, Any]) -> Result:
        """Read the state from its file again, change it, write it, and return the result."""
        path = self._keeper.path
        with contextlib.nullcontext() if path is None else locked(path):
            self._keeper.read_again()
            self._keeper.notes, self._keeper.files = [], []
            self._keeper.terms = dataclasses.replace(self._keeper.terms, reading=reading)
            before = self._keeper.state
            try:
                change(self._keeper)
            except BaseException:  # of several files all are counted, or none
                self._keeper.state = before
                raise
            self._keeper.keep()
        return self.result()


# Combine several results in one report.

COMPARED = ("metrics", "scale", "curvature", "fit")
"""Commands whose results a report compares."""


def report(*results: Result | str | Path, names: Sequence[str] | None = None) -> Result:
    """Combine results of any commands: `report(a, b).write("report.html")` writes a page of all of them.

    Results of the same command are also compared, as independent, each number in its unit. Ours: what is compared.

    >>> found = [calibcli.measure(logits, labels, "ece"), calibcli.check(logits, labels, max={"ece": 0.1})]
    >>> [row[:3] for row in report(*found, names=["test", "gate"]).tables[0].rows]
    [['test', 'metrics', ''], ['gate', 'check', 'pass']]

    Args:
        results: results, or their .json files; a report stands for the results in it.
        names: one for each; by default that of its file.

    Returns:
        A table of the results, with each of them whole in `facts["results"]`.

    Raises:
        InputError: a file that is not a result.  UsageError: none, or another number of names.
    """
    if not results:
        raise UsageError("no result to report", "name one or more .json files that calib wrote")
    each = extensions.with_progress(results, lambda one: "" if isinstance(one, Result) else str(one))
    read = [(one, {}) if isinstance(one, Result) else read_result(one) for one in each]
    named = list(names or _names(results))
    if len(named) != len(results):
        raise UsageError(f"{len(results)} results, {len(named)} names", "name each result")
    pairs = [
        pair
        for name, (one, _) in zip(named, read, strict=True)
        for pair in results_of(one, name)  # but for what a report found by comparing
        if pair[1] is one or not by_report(pair[1])
    ]
    compared, notes = _compared(pairs)
    judged = [one for _, one in pairs if one.deciding]
    judged.sort(key=lambda one: one.words is CLAIM_VERDICTS)  # claims fail nothing: gates come first
    first = decisive(one.deciding for one in judged if one.deciding and one.words is judged[0].words)
    rows: list[list[Cell]] = [
        [name, one.command, one.verdict_word, str(one.facts.get(FACT) or "")] for name, one in pairs
    ]
    return Result(
        command="report",
        tables=[
            Table(name="results", title="Results", columns=["result", "command", "verdict", "in short"], rows=rows)
        ],
        notes=notes,
        facts={
            FACT: _headline(pairs),
            **(
                {"verdict": CLAIM_VERDICTS[first[0]] if judged[0].words is CLAIM_VERDICTS else first[0]}
                if first
                else {}
            ),
            "results": [{"name": name, "result": json.loads(one.to_json())} for name, one in [*pairs, *compared]],
        },
        provenance={"inputs": [entry for _, entry in read if entry]},
    )


def _headline(results: Sequence[tuple[str, Result]]) -> str:
    judged = [(name, one) for name, one in results if one.verdict]
    count = count_text(len(results), "result")
    if not judged:
        names = listed((f"{one.command} of {name}" for name, one in results), 5)
        return f"{count}: {names}. No gate is among them, so there is no verdict."
    failed = [f"{name} ({one.verdict_word.replace('_', ' ')})" for name, one in judged if one.verdict != "pass"]
    some = ", ".join(failed[:5]) + (f" and {len(failed) - 5} more" if len(failed) > 5 else "")
    passed = "every one passes" if len(judged) > 1 else "it passes"
    return f"{count}, {len(judged)} with a verdict: {f'not passed: {some}' if failed else passed}."


def _names(results: Sequence[Any]) -> list[str]:
    """Name results by their file, without shared folders; a result without a file by its command and number."""
    texts = [str(r) if not isinstance(r, Result) else f"{r.command} {i}" for i, r in enumerate(results, 1)]
    stems = [text.rsplit("/", 1)[-1].removesuffix(".json") for text in texts]
    if len(set(stems)) == len(stems):
        return stems
    shared = os.path.commonpath(list(map(os.path.dirname, texts))) if len({t[:1] == "/" for t in texts}) == 1 else ""
    return [text.removeprefix(f"{shared}/").removesuffix(".json") for text in texts]


def _compared(results: Sequence[tuple[str, Result]]) -> tuple[list[tuple[str, Result]], list[str]]:
    """Compare the results of each command; also return notes on those that cannot be compared."""
    from calibcli.gate import compare as comparing

    comparisons, notes = [], []
    for command in COMPARED:
        same = [(name, _fixed(one)) for name, one in results if one.command == command]
        if len(same) < 2:
            continue
        try:
            comparison = comparing.results([one for _, one in same], [name for name, _ in same])
        except InputError as error:
            notes.append(f"results of {command} are not compared: {error.problem}")
            continue
        comparisons.append((f"Comparison of {command}", headed(comparison)))
    return comparisons, notes


def _fixed(result: Result) -> Result:
    """Drop the numbers before calibration from a result of `scale`: results of `metrics` compare these."""
    left = [e for e in result.estimates if e.scope not in ("before", CHANGE)]
    return dataclasses.replace(result, estimates=left) if result.command == "scale" else result
