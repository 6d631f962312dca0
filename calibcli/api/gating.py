"""Judge and compare, from Python."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Unpack, cast

import numpy.typing as npt

from calibcli import headline
from calibcli.api.measuring import Scores, given, is_path, spread
from calibcli.errors import UsageError
from calibcli.gate import config as config_file
from calibcli.gate import session
from calibcli.gate.input_files import read_result
from calibcli.gate.request import Assumptions, Request
from calibcli.inputs.scores import recorded
from calibcli.inputs.scores.from_arrays import How
from calibcli.predictions import Predictions, Progress
from calibcli.result import Result

__all__ = ["Limits", "check", "compare", "plan", "rules"]

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
    keep_rows: bool = False,
    judge: bool = True,
    diagram: bool = False,
    seed: int | None = None,
    progress: Progress | None = None,
    **how: Unpack[How],
) -> Result:
    """The release gate: PASS, FAIL or INCONCLUSIVE for each limit, in `result.checks`.

    The result as a whole: `.passed`, `.verdict`, `.exit_code` and `.raise_if_failed()`. Numbers and their
    bounds are those of the metrics, in their units (`calib list metrics`).

    >>> [c.outcome for c in check([[9.0, 0.0]] * 400, [0] * 400, max={"ece": 0.5}, min={"accuracy": 0.9}).checks]
    ['pass', 'pass']

    Args:
        scores, labels, how: as for `measure`, or a result and its .json; None leaves the input to `config`.
        max, min: limits by metric: `max={"ece": 0.05}`. With `by`, of every slice as well.
        baseline: earlier result (with kept rows) or scores.  margin: loss against it allowed, by metric.
        scope: of a result, the numbers of: `before`, `after`, ...
        min_n: rows below which a gate is NOT RUN [200].  on_inconclusive: `fail` or `warn` [fail].
        alpha: error probability of each bound [0.05].  bins: of binned metrics [15].  bounds: of ece [sharp].
        config: a calib.toml; its rules and settings hold where nothing is said here.
        fitted_on: what the calibrator was fitted on: must not overlap the input.
        keep_rows: keep per-row values in the result, as a later baseline.  judge: False applies no rule at all.
        diagram: give the rules, and of scores the reliability diagram, in `plots`.
        seed: of what is random.  progress: called with (fraction, text).

    Raises:
        InputError: an input that is refused.  UsageError: a rule without a meaning.
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
    return headline.headed(result if judge else dataclasses.replace(result, checks=[]))


@spread
def compare(
    first: Scores | Result,
    *others: Scores | Result,
    metrics: Sequence[str] | None = None,
    alpha: float = 0.05,
    names: Sequence[str] | None = None,
    **how: Unpack[How],
) -> Result:
    """Differences of every metric to the first model, with intervals, and which of them are real.

    >>> a = [[2.0, 0.0], [0.0, 1.0], [3.0, 0.0], [0.0, 1.0]]
    >>> from calibcli.inputs.scores.from_arrays import of_arrays
    >>> one, two = (of_arrays([[f * v for v in row] for row in a], [0, 1, 1, 1]) for f in (1, 2))
    >>> found = compare(one, two, metrics=["accuracy"], names=["small", "large"])
    >>> found["accuracy", "large - small"].value
    0.0

    Args:
        first, others: `Predictions` or files of the same rows by each model, of scores as for `measure`, paired by id,
            or by position where the labels are the same; or results (or their .json), compared as independent.
        metrics: specs instead of the default set.  alpha: family-wise error of what is called real (Holm 1979).
        names: of the models; their file names by default.
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
    kinds = {isinstance(i, Result) or (isinstance(i, str | Path) and Path(i).suffix == ".json") for i in inputs}
    if kinds == {True}:
        if metrics or any(value for value in how.values()):
            problem = "results are compared as they are: metrics and how files are read were chosen when they were made"
            raise UsageError(problem, "leave these options out, or pass the scores")
        read = [(i, {}) if isinstance(i, Result) else read_result(i) for i in inputs]  # type: ignore[arg-type]
        files = [entry for _, entry in read if entry]
        result = comparing.results([one for one, _ in read], named, alpha)
        return dataclasses.replace(headline.headed(result), provenance={"inputs": files, "seed": 0})
    if len(kinds) > 1:
        raise UsageError("scores and results cannot be compared with each other", "pass all scores, or all results")
    if not all(isinstance(one, Predictions) or is_path(one) for one in inputs):
        raise TypeError("a model to compare is its predictions or a file: calibcli.from_arrays(scores, labels) of each")
    if all(isinstance(one, Predictions) for one in inputs):
        given(compare, cast(Predictions, first), None, how)  # refuses what is said of files where there are none
    found = [one if isinstance(one, Predictions) else given(compare, one, None, how, whole=True) for one in inputs]  # type: ignore[arg-type]
    files = [entry for predictions in found for entry in recorded.provenance(predictions)]
    chosen = [metrics] if isinstance(metrics, str) else list(metrics or ())
    result = comparing.scores(found, named, chosen or None, alpha)
    return dataclasses.replace(headline.headed(result), provenance={"inputs": files, "seed": 0})


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
    """Say how many rows a gate needs to PASS a good model, or to FAIL a bad one, with a stated chance.

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
    from calibcli.gate import planning  # here, as a check starts without it

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
    inputs = [*([] if rows is None else recorded.provenance(rows)), *(settings.files if settings else ())]
    return dataclasses.replace(headline.headed(planned), provenance={"inputs": inputs, "seed": seed})


def rules(limits: Any) -> tuple[str, ...]:
    """Limits as the command line writes them."""
    if isinstance(limits, tuple):
        return limits
    if not isinstance(limits, Mapping | None):
        raise TypeError(f"limits are {type(limits).__name__}: pass numbers by metric, max={{'ece': 0.05}}")
    return tuple(f"{metric}={value}" for metric, value in (limits or {}).items())


def file_of(baseline: Any) -> str:
    """The path of a baseline; "" where there is none."""
    if baseline is not None and not isinstance(baseline, str | Path):
        raise TypeError(
            f"a baseline is {type(baseline).__name__}: pass the file of its scores, or of an earlier result"
        )
    return str(baseline or "")
