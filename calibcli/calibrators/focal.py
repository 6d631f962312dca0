"""Focal temperature scaling, φ_γ(softmax(z / T)), and the map φ_γ alone (Komisarenko & Kull 2024)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Any, Literal

import numpy as np

from calibcli.calibrators import _focal_likelihood as focal_likelihood
from calibcli.calibrators import temperature
from calibcli.calibrators._focal_likelihood import HIGH, LOW, Information, Point, Surface
from calibcli.calibrators.calibrator import SCALERS, Array, FitContext, FittedParameters, Parameters, Progress
from calibcli.calibrators.fitting import sample
from calibcli.calibrators.program import Operations
from calibcli.calibrators.store import temperature as temperature_form
from calibcli.calibrators.temperature import GRIDS, block_source, degenerate, facts, scaled, tempered, units_of
from calibcli.core.errors import UsageError
from calibcli.core.figure_data import Curve, Plot
from calibcli.core.options import BINS, Count, Range
from calibcli.core.result import Estimate
from calibcli.core.statistics import root, student_quantile
from calibcli.metrics.intervals import WeightedMean
from calibcli.scores.likelihood import BetaFit, fit_beta, log_phi, nll_rows
from calibcli.scores.likelihood.focal_map import log_h
from calibcli.scores.predictions import Predictions

Order = Literal["T-phi", "phi-T"]
GAMMAS = (-1.0, -0.75, -0.5, -0.25, 0.0, 0.25, 0.5, 0.75, 1.0, 3.0, 5.0)  # Komisarenko & Kull 2024
FEW, FEW_ROWS = 100_000, 1000  # logits (rows times classes) that a search begins with, and fewest rows: the heat map's
PASSES = {True: 160, False: 40}  # over all rows, about, in a fit with a report and in one without
ROUGH = 1e-4  # distance from the best ln β of a γ at which the NLL there is known, by its second derivative
OWN = 0.75  # of the progress of a fit with a report; the rest is the comparison on held-out rows
MINIMISES = f"minimises NLL over T > 0, gamma in [{LOW:g}, {HIGH:g}]"
ENDS = {"gamma": (LOW, HIGH)}
CONFINED = f"both ends would be those of gamma's range, {LOW:g} to {HIGH:g}, which these groups do not narrow"


def focal_tempered(o: Operations, parameters: Parameters, z: Any) -> Any:
    """Compute φ_γ(softmax(z / T)), or with `phi_first` softmax(ln φ_γ(softmax z) / T)."""
    gamma = float(parameters["gamma"])
    if float(parameters["beta"]) == 0:
        return scaled(o, parameters, z)
    if parameters.get("phi_first", np.array(0)):
        return scaled(o, parameters, focal_scores(o, gamma, z))
    return o.normalised(focal_scores(o, gamma, tempered(o, parameters, z)))


def focal_scores(o: Operations, gamma: float, z: Any) -> Any:
    """Compute scores whose softmax is φ_γ(softmax z); γ = 0 changes nothing."""
    return log_h(o, gamma, *o.log_both(z)) if gamma else z


@SCALERS.add(preserves_accuracy=True, map=focal_tempered, form=temperature_form(gamma=True), steep=True, ends=ENDS)
def focal_temperature(
    predictions: Predictions,
    context: FitContext,
    *,
    objective: Literal["nll", "ece", "adaece", "brier"] = "nll",
    grid: Literal["komisarenko"] | None = None,
    order: Order = "T-phi",
    gamma: Annotated[float, Range(GAMMAS[0], HIGH)] | None = None,
    bins: Count = BINS,
) -> FittedParameters:
    """Focal temperature scaling: φ_γ(softmax(z / T)), keeps every predicted class (Komisarenko & Kull 2024).

    `objective=nll` optimises T and γ in [-0.5, 5] continuously; `grid=komisarenko` takes the first best of their
    T = 0.05..5 x 11 values of γ, as the other objectives always do. `order=phi-T` is softmax(ln φ_γ(softmax z) / T).
    With `gamma` T alone is fitted.

    >>> fit = calibcli.fit_scaler(logits, labels, "focal_temperature")
    >>> round(fit["temperature"].value, 2), round(fit["gamma"].value, 2)
    (3.32, 0.43)
    """
    plain = fit_beta(block_source(predictions))
    if plain.status != "ok":
        fitted = degenerate(plain)
        reason = f"{plain.status}: not identified" if gamma is None else ""
        gamma_estimate = Estimate(name="gamma", value=gamma, reason=reason, n=predictions.n)
        parameters = {**fitted.parameters, "gamma": np.array(gamma or 0.0)}
        return replace(fitted, parameters=parameters, estimates=[*fitted.estimates, gamma_estimate])
    if order == "phi-T":
        return _phi_first(predictions, objective, grid, gamma)
    if grid is not None or objective != "nll":
        return _by_grid(predictions, context, objective, bins, GAMMAS if gamma is None else (gamma,))
    if gamma is not None:
        return _of_gamma(predictions, context, plain, gamma)
    return _continuous(predictions, context, plain)


@SCALERS.add(preserves_accuracy=True, map=focal_tempered, form=temperature_form(gamma=True), steep=True, ends=ENDS)
def focal(predictions: Predictions, context: FitContext) -> FittedParameters:
    """The focal calibration map alone, φ_γ(softmax z): γ in [-0.5, 5] by NLL, T = 1 (Komisarenko & Kull 2024).

    >>> calibcli.fit_scaler(logits, labels, "focal")["gamma"].value
    -0.5
    """
    surface = _surface(predictions, context, 40)
    values = surface.values(0.0, list(focal_likelihood.GRID))
    best = int(np.argmin(values))
    low, high = focal_likelihood.GRID[max(best - 1, 0)], focal_likelihood.GRID[min(best + 1, len(values) - 1)]
    gamma = root(lambda g: surface.gradient(0.0, g)[2], float(low), float(high), 1e-10)
    nll = surface.values(0.0, [gamma])[0]
    se, width, lacking = _sandwich(surface, predictions, Point(gamma, 0.0, nll, 0.0, 0.0), 1, context.level)
    reason = _bound(gamma) or lacking
    ends: dict[str, float] = {} if reason else {"low": gamma - width, "high": gamma + width, "se": se}
    how = f"minimises NLL over [{LOW:g}, {HIGH:g}] at T = 1; interval: sandwich variance"
    estimate = Estimate(name="gamma", value=gamma, **ends, level=context.level, n=predictions.n, how=how, reason=reason)  # type: ignore[arg-type]
    notes = [f"focal: gamma = {gamma:g} is at the end of its range [{LOW:g}, {HIGH:g}]"] if _bound(gamma) else []
    return FittedParameters({"beta": np.array(1.0), "gamma": np.array(gamma)}, [estimate], notes, facts={"nll": nll})


def _of_gamma(predictions: Predictions, context: FitContext, plain: BetaFit, gamma: float) -> FittedParameters:
    """Fit T by NLL at a given γ, with an interval symmetric in ln T."""
    surface = _surface(predictions, context, 20)
    point = surface.best(gamma, math.log(plain.beta))
    how = f"minimises NLL over T > 0 at gamma = {gamma:g}; interval: sandwich variance of ln T"
    t, ends = point.temperature, dict[str, Any]()
    se, width, lacking = _sandwich(surface, predictions, point, 0, context.level)
    if not lacking:
        ends = {"low": t * math.exp(-width), "high": t * math.exp(width), "se": t * se}
    estimate = Estimate(
        name="temperature", value=t, **ends, level=context.level, n=predictions.n, how=how, reason=lacking
    )
    parameters: Parameters = {"beta": np.array(math.exp(point.u)), "gamma": np.array(gamma)}
    fixed = Estimate(name="gamma", value=gamma, n=predictions.n, how="as given", reason="it is given")
    return FittedParameters(parameters, [estimate, fixed], facts={**facts(plain), "nll": point.nll})


def _sandwich(surface: Surface, rows: Predictions, point: Point, which: int, level: float) -> tuple[float, float, str]:
    """Return the standard error of ln β (0) or γ (1) with the other fixed, the half-width, and why there is none."""
    h = surface.hessian(point)[which, which]
    score = _rows(surface.scores(point.u, point.gamma)[:, which], rows)
    se = score.se / h if h > 0 else math.nan
    width = student_quantile((1 + level) / 2, score.units - 1) * se
    return se, width, score.lacking or ("" if math.isfinite(width) and width < 100 else "the NLL has no curvature here")


def _rows(values: Array, predictions: Predictions) -> WeightedMean:
    """Take values (N,) as a mean over rows, with their weights and groups."""
    return WeightedMean(values, predictions.weights, predictions.weight_kind == "count", predictions.groups)


def _bound(gamma: float) -> str:
    return f"bound: gamma is at the end of the range [{LOW:g}, {HIGH:g}]" if gamma in (LOW, HIGH) else ""


def _surface(rows: Predictions, context: FitContext, passes: int, fraction: float = 1.0) -> Surface:
    """Return the NLL of all rows, which reports progress as if there were so many passes, up to `fraction`."""
    done, whole = 0, passes * rows.n * rows.k

    def step(logits: int) -> None:
        nonlocal done
        done += logits
        context.step(0.98 * fraction * min(done / whole, 1.0), "T and gamma")

    return Surface.of(rows, step)


def _continuous(predictions: Predictions, context: FitContext, plain: BetaFit) -> FittedParameters:
    """Fit (T, γ) by NLL, and look at the ridge around the optimum.

    A few random rows say where to begin; the optimum, the profile and all intervals are those of all rows.
    """
    surface = _surface(predictions, context, PASSES[context.report], OWN if context.report else 1.0)
    few = sample(predictions, max(FEW_ROWS, FEW // predictions.k), context.seed)
    of_few = surface if few is predictions else Surface.of(few, surface.step)
    gammas, start = focal_likelihood.GRID if context.report else focal_likelihood.STARTS, math.log(plain.beta)
    if few is predictions:
        points = first = surface.profile(gammas, start)
        best = surface.optimum(points, tie=1e-9)
    else:
        first = of_few.profile(gammas, start, ROUGH)
        points = surface.profile(gammas, start, ROUGH, first)  # few rows may lack a valley that all rows have
        begin = [point for _, point, _ in focal_likelihood.valleys(points)]
        best = focal_likelihood.lowest([surface.descend(point, of_few) for point in begin], tie=1e-9)
    parameters: Parameters = {"beta": np.array(math.exp(best.u)), "gamma": np.array(best.gamma)}
    if not context.report:
        return FittedParameters(parameters)
    ridge = shown = _Ridge.of(predictions, surface, points, best, context.level)
    estimates = [ridge.temperature(), ridge.gamma()]
    if few is not predictions:
        shown = _Ridge.of(few, of_few, first, of_few.optimum(first, tie=1e-9), context.level)
    plots = [
        focal_likelihood.profile(ridge.points, best, ridge.limit, predictions.n),
        focal_likelihood.heat(shown.surface, shown.points, shown.best, shown.limit, predictions.n),
    ]
    gain = replace(context.gain_over("temperature", _later(context.step)), name="focal_gain")
    saves = gain.low is not None and gain.low > 0
    chosen = "focal_temperature" if saves else "temperature"
    details = {**facts(plain), "plain T": plain.temperature, "recommended": chosen}
    notes = ridge.notes() if saves else [*ridge.notes(), _no_gain(gain)]
    return FittedParameters(parameters, [*estimates, gain], notes, plots, facts=details)


def _later(step: Progress) -> Progress:
    return lambda fraction, text: step(OWN + (1 - OWN) * min(fraction, 0.99), f"held-out rows: {text}")


def _no_gain(gain: Estimate) -> str:
    """Say that the gain of γ on held-out rows is not shown."""
    start = "plain temperature is recommended: on held-out rows gamma"
    if gain.value is None:
        return f"{start} was not tried: {gain.reason}"
    if gain.high is None:
        return f"{start} saves {gain.value:.2g} nats, without an interval: {gain.reason}"
    margin = f" ± {gain.high - gain.value:.2g}"
    if gain.high < 0:
        return f"{start} costs {-gain.value:.2g}{margin} nats"
    return f"{start} saves {gain.value:.2g}{margin} nats, which is not distinguishable from zero"


@dataclass(frozen=True, eq=False)
class _Ridge:
    """The NLL over T and γ around its optimum, on which the intervals of both stand.

    Attributes:
        rows, surface: the rows and their NLL.  points: the best T of each γ, the optimum among them.
        best: the optimum.  information: what the rows know of T.
    """

    rows: Predictions
    surface: Surface
    points: Sequence[Point]
    best: Point
    information: Information

    @classmethod
    def of(cls, rows: Predictions, surface: Surface, points: Sequence[Point], best: Point, level: float) -> _Ridge:
        """Add the optimum to the points of a profile."""
        information = Information.of(rows, math.exp(best.u), level)
        return cls(rows, surface, sorted([*points, best], key=lambda p: p.gamma), best, information)

    @cached_property
    def spread(self) -> focal_likelihood.Spread:
        return focal_likelihood.spread_at(self.surface, self.best, lambda values: units_of(self.rows, values))

    @property
    def correlation(self) -> float:
        c = self.spread.covariance
        return float(-c[0, 1] / math.sqrt(c[0, 0] * c[1, 1]))  # of T, so the sign of ln β turns

    @property
    def rise(self) -> float:
        """By how much the NLL may rise inside the confidence set of γ."""
        return self.information.rise(self.spread, 1)

    @property
    def limit(self) -> float:
        """The largest NLL inside the confidence set of γ."""
        return min(p.nll for p in self.points) + self.rise

    @cached_property
    def sets(self) -> list[tuple[float, float]]:
        """The confidence set of γ, as intervals."""
        return focal_likelihood.acceptable(self.surface, self.points, self.limit)

    def temperature(self) -> Estimate:
        """Estimate T by profile likelihood over γ, with the limit widened to the sandwich variance of ln T."""
        information, at_bounds = self.information, self._ends_at_bounds()
        low, high, reason = None, None, information.lacking
        if not reason and not math.isfinite(self.spread.covariance[0, 0]):
            reason = "the NLL is flat along the ridge of T and gamma"
        elif not reason:
            rise = information.rise(self.spread, 0)
            width = math.sqrt(2 * rise * self.spread.inverse[0, 0])  # were the NLL a parabola
            first, last = focal_likelihood.reach(self.surface, self.best, rise, width)
            first, last = min(first, *at_bounds, first), max(last, *at_bounds, last)
            low, high = math.exp(-last), math.exp(-first)  # 0, or infinite, where the NLL stays low
            if information.what == "groups" and focal_likelihood.confined(self.surface, (first, last)):
                low, high, reason = None, None, CONFINED
            elif not math.isfinite(high):
                low, high, reason = low or None, None, "the NLL does not rise far enough along the ridge of T and gamma"
        return Estimate(
            name="temperature",
            value=self.best.temperature,
            low=low,
            high=high,
            level=None if low is None else information.level,
            n=self.rows.n,
            how=f"{MINIMISES}; interval: profile likelihood over gamma, widened to the variance of ln T over "
            f"{information.what}, Student's t{', and T given gamma at the end of its range' * bool(at_bounds)}",
            reason=reason,
            detail={"correlation with gamma": self.correlation, f"effective {information.what}": information.units},
        )

    def _ends_at_bounds(self) -> list[float]:
        """Return the ends of ln β with γ at a bound of its range, for each bound that the confidence set of γ includes.

        The interval of T covers them, too. Where the true γ is at a bound and the fitted one is not, twice the rise of
        the NLL at the true T is partly a χ² with two degrees of freedom (Self & Liang 1987), and the profile's limit,
        for one degree, is too low. With γ fixed there is one degree.
        """
        ends = []
        for bound, point, end in ((LOW, self.points[0], self.sets[0][0]), (HIGH, self.points[-1], self.sets[-1][1])):
            if end == bound:
                _, width, lacking = _sandwich(self.surface, self.rows, point, 0, self.information.level)
                ends += [] if lacking else [point.u - width, point.u + width]
        return ends

    def gamma(self) -> Estimate:
        """Estimate γ with its confidence set, from end to end."""
        information, gamma, sets, n = self.information, self.best.gamma, self.sets, self.rows.n
        ends = {"low": min(sets[0][0], gamma), "high": max(sets[-1][1], gamma), "level": information.level}
        return Estimate(
            name="gamma",
            value=gamma,
            **({} if information.lacking else ends),  # type: ignore[arg-type]
            n=n,
            how=f"{MINIMISES}; set: profile NLL within {self.rise * n:.3g}/n of the best, widened to the variance of "
            f"gamma over {information.what}",
            reason=information.lacking or _bound(gamma),
            detail={
                "correlation with T": self.correlation,
                "pieces": "; ".join(f"{a:.3g} to {b:.3g}" for a, b in sets),
            },
        )

    def notes(self) -> list[str]:
        """Write what the reader must know of T and γ together."""
        gamma, sets = self.best.gamma, self.sets
        gamma_range = f"gamma from {sets[0][0]:.2f} to {sets[-1][1]:.2f} fits as well as the best"
        notes = [f"{gamma_range} (NLL within {self.rise * self.rows.n:.3g}/n): T and gamma trade off"]
        if gamma in (LOW, HIGH):
            notes.append(f"gamma = {gamma:g} is at the end of its range [{LOW:g}, {HIGH:g}]")
        return notes


def _phi_first(predictions: Predictions, objective: str, grid: str | None, given: float | None) -> FittedParameters:
    """Fit softmax(ln φ_γ(softmax z) / T): an exact fit of the temperature for each γ of a fine grid."""
    if objective != "nll" or grid:
        raise UsageError("order=phi-T is fitted by NLL only", "drop objective= and grid=")
    gammas = np.arange(-10, 101) / 20 if given is None else np.array([given])
    rows = sample(predictions, max(2000, FEW // predictions.k))
    fits, values = [], []
    for gamma in gammas:
        z = log_phi(rows.logits, float(gamma))
        fits.append(fit_beta(z, rows.labels, rows.weights))
        values.append(float(np.average(nll_rows(z, rows.labels, fits[-1].usable), weights=rows.weights)))
    best = int(np.argmin(values))
    search = "in steps of 0.05" if given is None else "as given"
    how = f"minimises NLL, gamma {search}, phi before temperature{_of(rows, predictions)}"
    reason, gamma = "no interval is computed for this order", float(gammas[best])
    fitted = {"beta": fits[best].usable, "gamma": gamma, "phi_first": 1.0}
    estimates = _without_intervals(fits[best].temperature, gamma, rows.n, how, reason)
    return FittedParameters({name: np.array(value) for name, value in fitted.items()}, estimates)


def _without_intervals(t: float, gamma: float, n: int, how: str, reason: str) -> list[Estimate]:
    parameters = (("temperature", t), ("gamma", gamma))
    return [Estimate(name=name, value=value, n=n, how=how, reason=reason) for name, value in parameters]


def _by_grid(
    predictions: Predictions, context: FitContext, objective: str, bins: int, gammas: Sequence[float]
) -> FittedParameters:
    """Search the published grid of T x γ for the first minimum, in the order T, then γ."""
    error = temperature.BinnedObjective(predictions, objective, bins)
    temperatures = GRIDS["komisarenko"]
    surface = _surface(predictions, context, len(temperatures))
    table = np.empty((len(temperatures), len(gammas)))
    for row, t in enumerate(temperatures.tolist()):
        points = surface.rows(-math.log(t), gammas, gradient=False)
        if objective == "nll":
            table[row] = [surface.mean(point.nll) for point in points]
        elif objective == "brier":
            table[row] = [surface.mean(1 - 2 * np.exp(-point.nll) + point.square) for point in points]
        else:
            table[row] = [error(point.confidence) for point in points]
    i, j = divmod(int(table.argmin()), len(gammas))
    label = temperature.LABELS[objective]
    how = f"first smallest {label} of {table.size} points of the komisarenko grid"
    best = float(temperatures[i])
    estimates = _without_intervals(best, gammas[j], predictions.n, how, "a grid point has no interval")
    notes = []
    if i in (0, len(temperatures) - 1) or (len(gammas) > 1 and j in (0, len(gammas) - 1)):
        notes.append(f"the best point, T = {best:g} and gamma = {gammas[j]:g}, is on the edge of the grid")
    plot = Plot(
        name="t_gamma_grid",
        title=f"{label} over T and gamma, n = {predictions.n:,}",
        kind="heat",
        xlabel="gamma",
        ylabel="temperature T",
        x=list(gammas),
        y=list(temperatures),
        z=table.tolist(),
        zlabel=label,
        curves=[Curve(label="best", kind="points", role="best", x=[gammas[j]], y=[best])],
    )
    parameters: Parameters = {"beta": np.array(1 / temperatures[i]), "gamma": np.array(gammas[j])}
    return FittedParameters(parameters, estimates, notes, [plot] if len(gammas) > 1 else [])


def _of(rows: Predictions, whole: Predictions) -> str:
    return f"; on {rows.n:,} random rows of {whole.n:,}" if rows.n < whole.n else ""
