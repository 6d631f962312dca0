"""`calib plan`: rows that a gate needs to reach its verdict, from a pilot or from stated assumptions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np

from calibcli import numbers
from calibcli.columns import columns
from calibcli.errors import InputError, UsageError
from calibcli.gate import baseline, limits
from calibcli.gate.config import MIN_N, Gate
from calibcli.gate.pairing import Pairing
from calibcli.gate.plan import EcePopulation, Power, dearest, mean_power, rows_for, synthetic_logits
from calibcli.gate.request import Assumptions
from calibcli.gate.verdict import Side, rule
from calibcli.links import fit_beta, nll_rows
from calibcli.metrics import Sample, choose, columns_of, estimates
from calibcli.metrics.intervals import End, MeanOf, Rows, Statistic
from calibcli.plots import Curve, Plot
from calibcli.predictions import Predictions
from calibcli.result import Estimate, Result, Table

POWERS = (0.5, 0.8, 0.9, 0.95)
POINTS = 40

PILOTS, QUICK = 25, 500  # other pilots that are tried, and the draws of their chances
NINTH = 1.2815515655446004  # normal quantile of .9
CROSS_FITTED = 1.14  # the temperatures that gains are measured with are fitted too: more rows needed, by simulation


@dataclass(frozen=True, kw_only=True)
class Need:
    """A gate's chances as a function of n.

    Attributes:
        metric, side, limit: of the rule.  truth, assumed: the population's value, and what else is taken for granted.
        chance: of PASS and of FAIL.  others: what other pilots of the same size would have said of it.
        independent: rows were taken to be.

    Raises:
        UsageError: the truth is the limit.
    """

    metric: str
    side: Side
    limit: float
    truth: float
    assumed: str
    chance: Power
    others: Sequence[Power] = ()
    independent: bool = False

    def __post_init__(self) -> None:
        if (abs(self.truth) if self.side == "zero" else self.truth) == self.limit:
            problem = f"{self.rule}: the truth assumed is the limit itself, which no number of rows decides"
            raise UsageError(problem, "pass --truth")

    @property
    def rule(self) -> str:
        return rule(self.metric, self.side, self.limit)

    @property
    def verdict(self) -> Literal["PASS", "FAIL"]:
        """The one that is true."""
        good = {"max": self.truth < self.limit, "min": self.truth > self.limit, "zero": abs(self.truth) < self.limit}
        return "PASS" if good[self.side] else "FAIL"

    def rows(self, power: float, chance: Power | None = None) -> int | None:
        """The fewest rows that reach this verdict with this chance; None beyond 10⁹."""
        at, which = chance or self.chance, 0 if self.verdict == "PASS" else 1
        return rows_for(lambda n: at(n)[which], power)


def plan(gates: Sequence[Gate], a: Assumptions) -> Result:
    """Rows for every gate, with the chance of each verdict as a curve over n.

    Raises:
        UsageError: a gate that cannot be planned, or a truth that is the limit itself.
    """
    if a.logit_factor == 1:
        problem = f"--logit-factor {a.logit_factor:g} makes no difference"
        raise UsageError(problem, "pass a factor on the logits such as 1.3")
    if a.pilot is not None and a.pilot.n < 2:
        raise InputError("a pilot of 1 row has no spread", "pass a pilot of more rows, or none")
    needs = [_need(gate, a) for gate in gates]
    found = [_rows(need, a) for need in needs]
    rows = [[need.rule, need.verdict, need.truth, *map(need.rows, POWERS)] for need in needs]
    heads = ["rule", "verdict", "truth", *(f"{p:.0%}" for p in POWERS)]
    title = "Rows by the chance of the verdict that is true"
    table = Table(name="power", title=title, columns=heads, rows=rows)
    facts: dict[str, Any] = {"alpha": a.alpha, "power": a.power, "slices": a.slices, "min_n": MIN_N}
    if a.pilot is not None:
        facts |= a.pilot.event_fact
    plots = [_plot(need, estimate, a) for need, estimate in zip(needs, found, strict=True)]
    return Result(
        command="plan", estimates=found, tables=[table], plots=plots, notes=_notes(needs, found, a), facts=facts
    )


def _notes(needs: Sequence[Need], found: Sequence[Estimate], a: Assumptions) -> list[str]:
    notes = [
        f"{e.scope}: {e.value:.0f} rows would do, but a gate runs from {MIN_N} rows (min_n)"
        for e in found
        if e.value is not None and e.value < MIN_N
    ]
    grouped = a.pilot is not None and a.pilot.groups is not None
    if grouped and any(need.independent for need in needs):
        notes.append("rows are planned as independent for ece and baselines: rows that belong together must be more")
    return notes


def _rows(need: Need, a: Assumptions) -> Estimate:
    """The planned rows; with a pilot the 90 % quantile over the pilots that could have been drawn, and the 10 % one.

    At the rows that the pilot's own value gives, half of all pilots promise too much.
    """
    own = need.rows(a.power)
    how = f"{need.verdict} with a chance of {numbers.percent(a.power)}; {need.assumed}"
    common: dict[str, Any] = {"name": "n", "scope": need.rule, "unit": "rows"}
    if not need.others:
        if own is None:
            return Estimate(value=None, reason="more than 10⁹ rows", how=how, **common)
        return Estimate(value=own, how=how, detail={"truth": need.truth}, **common)
    every = sorted([own or math.inf, *(need.rows(a.power, chance) or math.inf for chance in need.others)])
    low, high = (every[round(share * (len(every) - 1))] for share in (0.1, 0.9))
    detail: dict[str, Any] = {"truth": need.truth, "rows_at_truth": own}
    assert a.pilot is not None
    if math.isinf(high):
        reason = f"pilots of {a.pilot.n:,} rows do not tell this rule's verdict: pass --truth, or a larger pilot"
        ends: dict[str, Any] = {} if math.isinf(low) else {"low": low, "level": 0.9, "sided": "lower"}
        return Estimate(value=None, reason=reason, how=how, detail=detail, **ends, **common)
    how += f"; pilots of {a.pilot.n:,} rows say {low:,} to {high:,} in 8 of 10 cases: the most of these is planned"
    return Estimate(value=high, low=low, high=high, level=0.8, how=how, detail=detail, **common)


def _need(gate: Gate, a: Assumptions) -> Need:
    k = a.pilot.k if a.pilot is not None else a.n_classes
    if gate.baseline:
        limits.resolved(gate, "", k)
        return _against_baseline(gate, a)
    choice = choose([gate.metric], k, a.pilot is not None and a.pilot.top_only)[0]
    asked = limits.resolved(gate, str(choice.traits.get("better", "")), k)
    side, limit = asked.side, asked.limit
    values = limits.possible(choice.spec, k)
    if a.truth is not None and not values.low <= a.truth <= values.high:
        raise UsageError(
            f"--truth {a.truth:g} is out of range: {choice.name} is {values}", f"pass a value that is {values}"
        )
    if choice.traits.get("table_bounds"):
        return _ece(choice.options, choice.spec, limit, a)
    pilot = _rows_of(a)
    sample = Sample.of(columns_of(pilot, [choice]), pilot, a.seed)
    [e] = estimates(sample, [choice], level=0.9)
    if e.value is None or e.n is None or (e.se is None and not choice.traits.get("binary")):
        raise UsageError(f"{gate.metric} cannot be planned", "plan one of: accuracy, ece, nll, brier, temperature_gain")
    truth = e.value if a.truth is None else a.truth
    sd = (e.se or 0.0) * math.sqrt(e.n)
    at_limit = sd
    if choice.traits.get("binary"):  # an exact interval takes the spread that the limit implies
        sd, at_limit = math.sqrt(truth * (1 - truth)), math.sqrt(max(limit * (1 - limit), 0.0))
    how: dict[str, Any] = {"side": side, "at_limit": at_limit, "alpha": a.alpha, "family": a.slices}
    how |= _steps(choice(sample), truth)
    own = (e.se or 0.0) if a.pilot is not None and a.truth is None else 0.0
    chance, *others = (mean_power(truth + z * own, sd, limit, **how) for z in ((0, -NINTH, NINTH) if own else (0,)))
    source = "the pilot's spread" if a.pilot is not None else f"a calibrated synthetic model of {a.n_classes} classes"
    said = f"{source}, true {choice.spec} {truth:.4g}"
    return Need(metric=choice.spec, side=side, limit=limit, truth=truth, assumed=said, chance=chance, others=others)


def _ece(options: Any, spec: str, limit: float, a: Assumptions) -> Need:
    how = {"bins": options["bins"], "edges": options["edges"]}
    if a.pilot is None:
        event = a.n_classes == 2 and options["of"] == "auto"
        population = EcePopulation.assumed(a.accuracy, a.truth or 0.0, event=event, **how)
        said = f"confidences spread around {a.accuracy:g}, each too high by {a.truth or 0.0:g}"
        pilots: list[EcePopulation] = []
    else:
        view = Sample.of(columns(a.pilot, class_bins=())).view(options["of"])
        population = EcePopulation.of(view, view.width_bins(**how), a.truth)
        if a.truth is None and population.ece == 0:
            problem = (
                f"the pilot's {a.pilot.n:,} rows show no {spec} beyond what is noise, which may hide any small one"
            )
            raise UsageError(problem, "pass --truth with the value to plan for (0: a calibrated model), or more rows")
        said = f"confidences of the pilot, true ECE {population.ece:.4g}"
        said += " (its own, less what is noise)" if a.truth is None else ""
        pilots = population.pilots(1 / view.effective, a.truth, PILOTS, a.seed)
    power = partial(EcePopulation.power, limit=limit, alpha=a.alpha, family=a.slices, seed=a.seed)
    truth = population.ece if a.truth is None else a.truth
    others = [power(pilot, draws=QUICK) for pilot in pilots]
    how = {"chance": power(population), "others": others, "independent": True}
    return Need(metric=spec, side="max", limit=limit, truth=truth, assumed=said, **how)


def _against_baseline(gate: Gate, a: Assumptions) -> Need:
    """A new model whose logits are `logit_factor` times those of a calibrated baseline."""
    choice = choose([gate.metric], a.n_classes if a.pilot is None else a.pilot.k)[0]
    gain = bool(choice.traits.get("refitted"))
    if choice.traits.get("binary"):
        raise UsageError("a factor on the logits changes no accuracy", "plan temperature_gain, nll or brier")
    pilot = _rows_of(a)
    z, y = pilot.logits, pilot.labels
    beta = fit_beta(z, y, pilot.weights).beta if a.pilot is not None else 1.0
    factors = (beta, beta * a.logit_factor)
    models = [Predictions.of(z * f, y) for f in factors]
    tables = [columns(model, class_bins=()) for model in models]
    # the re-fitted temperatures make both models the same, so that gains differ by the NLL
    first, second = (
        nll_rows(z, y, f) if gain else choice(Sample.of(t)).values for t, f in zip(tables, factors, strict=True)
    )
    delta = second - first
    truth, sd = float(delta.mean()), float(delta.std(ddof=1))
    margin = gate.margin or 0.0
    every = np.arange(len(y))
    old, new = (baseline.rows(*both) for both in zip(models, tables, strict=True))
    low, high = baseline.reach(new, old, Pairing(new=every, base=every, how=""), gate.metric)
    rows = Rows(delta, None, False, None)
    lost, cost = (baseline.FITTED * old.cost * len(y), CROSS_FITTED) if gain else (0.0, 1.0)
    how: dict[str, Any] = {"side": "max", "alpha": a.alpha, "family": a.slices, "lost": lost}
    if gain:
        dear = np.sort(old.most.astype(np.float64))
        how["moved"] = lambda n: baseline.moved(dearest(dear, n) / n, old.curvature)

    def chance_of(truth: float) -> Power:
        of_mean = mean_power(truth, sd, margin, **(how | _steps_of(rows, truth, low, high)))
        return lambda n: of_mean(n / cost)

    own = sd / math.sqrt(len(delta)) if a.pilot is not None else 0.0
    chance, *others = (chance_of(truth + z * own) for z in ((0, -NINTH, NINTH) if own else (0,)))
    source = "the pilot's re-scaled logits" if a.pilot is not None else f"a synthetic model of accuracy {a.accuracy:g}"
    said = f"logits {a.logit_factor:g} times those of a calibrated baseline ({source}), difference {truth:.4g}"
    name = f"{gate.metric} - baseline"
    how = {"chance": chance, "others": others, "independent": True}
    return Need(metric=name, side="max", limit=margin, truth=truth, assumed=said, **how)


def _steps(statistic: Statistic, truth: float) -> dict[str, tuple[float, End]]:
    """`above` and `below` of `mean_power`; none for exact bounds."""
    if not isinstance(statistic, MeanOf) or statistic.share:
        return {}
    return _steps_of(statistic.rows, truth, *statistic.range)


def _steps_of(rows: Rows, truth: float, low: End, high: End) -> dict[str, tuple[float, End]]:
    """The same of these rows, each of which may have anything from `low` to `high`."""
    skew = rows.skew * rows.effective
    up, down = (np.maximum(np.sort(far), 0.0) if np.ndim(far) else far for far in (high - truth, truth - low))
    return {"above": (max(skew, 0.0), up), "below": (max(-skew, 0.0), down)}


def _rows_of(a: Assumptions) -> Predictions:
    """The pilot, or a synthetic model."""
    return a.pilot if a.pilot is not None else Predictions.of(*synthetic_logits(a.accuracy, a.n_classes, seed=a.seed))


def _plot(need: Need, estimate: Estimate, a: Assumptions) -> Plot:
    middle = estimate.value or 1e5
    grid = np.unique(np.geomspace(max(10, middle / 10), middle * 5, POINTS).round()).tolist()
    chances = [need.chance(n) for n in grid]
    curves = [
        Curve(label="PASS", kind="line", role="model", x=grid, y=[p for p, _ in chances]),
        Curve(label="FAIL", kind="line", role="gap", x=grid, y=[f for _, f in chances]),
        Curve(label="INCONCLUSIVE", kind="line", role="null", x=grid, y=[1 - p - f for p, f in chances]),
        Curve(label=numbers.percent(a.power), kind="hline", role="ideal", y=[a.power]),
    ]
    if estimate.value is not None:
        curves.append(Curve(label="planned n", kind="vline", role="best", x=[estimate.value]))
    return Plot(
        name="power",
        title=f"{need.rule}, truth {need.truth:.4g}" + (f": n = {estimate.value:.0f}" if estimate.value else ""),
        xlabel="rows n",
        ylabel="chance of the verdict",
        xscale="log",
        ylim=(0.0, 1.0),
        curves=curves,
        group="Chance of each verdict",
    )
