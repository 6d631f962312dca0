"""The registry of curvature quantities: each returns estimates with both errors, and its figures."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

import torch

from calibcli.calibrators.temperature import REASONS
from calibcli.core.figure_data import Curve, Plot, Tier
from calibcli.core.options import Positive, Range
from calibcli.core.registries import Registry, Traits
from calibcli.core.result import Cell, Estimate
from calibcli.core.scope import Scope
from calibcli.networks.curvature import trace as traces
from calibcli.networks.curvature.engine import NUDGE, SHARE, Engine
from calibcli.networks.curvature.ggn import GGNTrace
from calibcli.networks.curvature.loss import parts
from calibcli.networks.curvature.operator import Gradient, curvature_along, mean_gradient, norm, slopes_along
from calibcli.networks.curvature.spectrum import Certificate, Density, Lanczos, Ritz, quadrature
from calibcli.networks.curvature.spectrum import density as smooth

# Estimates: the interval over the population, and beside it the error of the estimator on this data.

Bound = Literal["residual", "estimate"]
Error = tuple[float, float]  # standard error, degrees of freedom
FINE = 64  # probes of a cell from which every row has its own: what they then save outweighs the smaller batches
MISSED = 1.2  # times the precision asked for, from which it counts as missed
PAIRS_SHARE = 0.25  # of the error allowed to Tr(G) where there is a rest to probe, by far the dearer part
ENOUGH = 1e-2  # of a trace: the standard error at which probes stop unasked, even where that of the rows is smaller
DOMINATES = 0.5  # share of a number from which one row, or one group, is named
FEWEST = 6  # products before an eigenvalue may count as found: a start vector may favour its neighbour
FEWEST_OUTSTANDING = 4  # the same for an eigenvalue that stands out: STANDS_OUT times the others, with a residual of
STANDS_OUT, SURE = 4.0, 0.05  # at most SURE of it
TRACE, TRACE_OF_RELATIVE = "Tr(H)", "Tr(|θ| H |θ|)"  # columns of the table per layer
ROUGH = 0.05  # of an eigenvalue: a bound from which differences of the logits are said to be rough
MISFIT = 1e-2  # relative difference from a certificate up to which the terms of rows are those of its eigenvalue


def interval(value: float, half: float, positive: bool) -> tuple[float, float]:
    """Compute value ± half; for a quantity that is positive on every row, symmetric in its logarithm.

    Curvature sits in few rows, so its sampling distribution is skewed: on the logarithmic scale the interval covers
    from the smallest samples on. Half widths beyond twice the value are past that approximation, but never reach less.
    """
    if positive and 0 < half <= 2 * value:
        return value * math.exp(-half / value), value * math.exp(half / value)
    return value - half, max(value + half, value * math.exp(2) if positive and half else value)


def errors(value: float, half: float, sampling: float | None) -> dict[str, Cell]:
    """Return the details of every estimate: value ± half for this data, and the standard error over rows."""
    return {"estimator_low": value - half, "estimator_high": value + half, "sampling_se": sampling}


Terms = Callable[[Engine], torch.Tensor | None]
"""(N,) terms of the rows, whose mean is the estimate; None where they are not known."""


def over_rows(engine: Engine, se: float, terms: torch.Tensor, again: Terms) -> tuple[float, torch.Tensor]:
    """Add to a standard error over rows, and to the terms, what the rows do through the temperature that they choose.

    To first order a row moves the number by its term and by d/dlnβ times how far it moves ln β. The derivative is that
    of the mean of the terms `again`, with a lower and a higher ln β.
    """
    nudged = () if engine.shared.stopped else map(again, engine.nudged)
    means = [float(one.mean()) for one in nudged if one is not None]
    if len(means) < 2:
        return se, terms
    moved = _spread(terms, se) + (means[1] - means[0]) / (2 * NUDGE) * engine.shared.pull
    return float(moved.std(correction=min(len(moved) - 1, 1))) / len(moved) ** 0.5, moved  # 0 of a single row


def freedom(terms: torch.Tensor) -> float:
    """Compute 2N / (κ - 3 + 2N / (N - 1)), κ >= 3: the degrees of freedom of the variance of terms with kurtosis κ.

    Where a few rows hold most of the curvature, a sample says little about the spread of its mean: with the N - 1 of
    normal terms, intervals of heavy tails cover too seldom (Satterthwaite 1946, with the variance of a variance).
    """
    n, squares = len(terms), (terms - terms.mean()).square()
    kurtosis = float((squares / squares.mean()).square().mean())  # NaN where all terms are equal
    return 2 * n / (max(3.0, kurtosis) - 3 + 2 * n / max(n - 1, 1))


def eigenvalue(engine: Engine, index: int, tol: float, bound: Bound) -> tuple[Estimate, torch.Tensor | None]:
    """Make the estimate of an eigenvalue, and the terms of the rows where they are wanted."""
    run = engine.krylov
    ritz = run.ritz()
    theta, error = float(ritz.values[index]), float(ritz.residuals[index])
    if bound == "estimate":
        error = ritz.value_error(index) + engine.product_error(index)
    certificate = engine.certificate(index) if bound == "residual" else None
    converged = closeness(run, index, tol, bound) >= 1 or run.exhausted
    reason = "" if converged else f"not converged to {tol:g} after {run.products} products"
    if certificate is not None:
        terms = None
        if engine.shared.by_row or engine.nudged:
            x, layout = run.vector(ritz.coordinates[:, index]), engine.problem.layout
            which = f"Ritz vector {index} of {run.products}"
            terms = None if engine.hessian.how or engine.ggn_alone else engine.forms_along(x, which)
            if terms is None or abs(float(terms.mean()) - certificate.value) > MISFIT * abs(certificate.value):
                terms = traces.by_row(certificate.parts * layout.n, layout.group, layout.n)
            sampling, terms = over_rows(engine, certificate.sampling, terms, lambda other: other.forms_along(x, which))
            certificate = replace(certificate, sampling=sampling)
        return _certified(engine, certificate, run, reason, tol), terms
    detail = {"residual": float(ritz.residuals[index]), "products": run.products, **errors(theta, error, None)}
    error_kind = "residual²/gap, not a bound" if bound == "estimate" else "Ritz residual"
    how = f"{run.products} Lanczos products{engine.hessian.how}; {error_kind}"
    low, high = theta - error, theta + error
    return Estimate(name="", value=theta, low=low, high=high, how=how, reason=reason, detail=detail), None


def _certified(engine: Engine, c: Certificate, run: Lanczos, reason: str, tol: float) -> Estimate:
    half = engine.shared.half_width(c.sampling, c.groups - 1)
    low, high = interval(c.value, half, c.value > 0)
    if c.value > 0:  # sampling raises the top, relative to itself
        low *= max(0.0, 1 - max(c.bias, 0.0) / c.value)
    else:
        high += max(-c.bias, 0.0)
    low -= c.residual
    if low < 0 < c.value and engine.convex:
        low = 0.0
    detail = {"residual": c.residual, **errors(c.value, c.residual, c.sampling)}
    detail |= {"sampling_bias": c.bias, "products": run.products + c.products}
    if engine.problem.tf32 and c.residual > tol * max(abs(c.value), 0.01 * float(run.ritz().values.abs().max())):
        reason = reason or f"products in TF32 leave a relative error above {tol:g}: leave TF32 out"
    if engine.hessian.how and c.residual > ROUGH * abs(c.value):
        reason = (
            reason or "differences are rough: the model rounds, or has kinks that are not known (try --dtype float64)"
        )
    products = f"{run.products} Lanczos products" + (" and a true one" if c.products else "")
    how, high = f"{products}{engine.hessian.how}, which bound the error by {c.residual:.2g}", high + c.residual
    return Estimate(name="", value=c.value, low=low, high=high, se=c.sampling, how=how, reason=reason, detail=detail)


def dominating(engine: Engine, part: GGNTrace) -> list[str]:
    """Write a note where one row holds most of Tr(G), the same for every quantity."""
    size = part.rows.abs()
    share = float(size.max() / size.sum().clamp(min=1e-300))
    if share <= DOMINATES or len(size) < 8:
        return []
    row = int(size.argmax())
    text = (
        f"row {row} (counted from 0) holds {share:.0%} of Tr(G): measure more rows, as the trace says little of others"
    )
    return [engine.named.setdefault(row, text)]


def dominating_group(engine: Engine, certificate: Certificate | None, name: str) -> list[str]:
    """Write a note where one group of rows holds most of an eigenvalue."""
    layout = engine.problem.layout
    if certificate is None or certificate.share <= DOMINATES or layout.groups < 8:
        return []
    first = certificate.group * layout.group
    last = min(first + layout.group, layout.n) - 1
    rows, hold = (f"row {first}", "holds") if first == last else (f"rows {first} to {last}", "hold")
    share = f"{certificate.share:.0%} of {name}"
    return [f"{rows} (counted from 0) {hold} {share}: measure more rows, as it says little of others"]


def closeness(run: Lanczos, index: int, tol: float, bound: Bound) -> float:
    """Measure how close an eigenvalue is to its tolerance, 1 when it is there (on a logarithmic scale)."""
    ritz = run.ritz()
    scale = max(abs(float(ritz.values[index])), 0.01 * float(ritz.values.abs().max()))
    error = float(ritz.residuals[index])
    if bound == "estimate":  # the gap is an estimate too: the value must have come to rest as well
        column = 0 if index else 2
        to_come = remaining([h[column] for h in run.history[-3:]]) if index in (0, -1) else 0.0
        error = max(ritz.value_error(index), to_come)
    if run.products < (FEWEST_OUTSTANDING if stands_out(ritz, index) else FEWEST) and not run.exhausted:
        return 0.0
    if error <= tol * scale or scale == 0.0:
        return 1.0
    return min(0.99, max(0.0, 1.0 - math.log10(error / (tol * scale)) / 4))


def stands_out(ritz: Ritz, index: int) -> bool:
    """Whether an extreme Ritz value is far beyond all others, and nearly an eigenvalue.

    A larger eigenvalue, whose part in the vector grows faster, would show in either of them unless the start vector had
    next to none of it.
    """
    size = ritz.values.abs()
    others = torch.cat([size[:index], size[index + 1 :]]) if index != -1 else size[:-1]
    theta = float(size[index])
    return theta >= STANDS_OUT * max(others.tolist(), default=0.0) and float(ritz.residuals[index]) <= SURE * theta


def remaining(values: Sequence[float]) -> float:
    """Estimate how far a sequence is from its limit, if the distance shrinks by the same factor at every step.

    The last three values are given; the distance is infinite where there are fewer.
    """
    if len(values) < 3:
        return math.inf
    before, last = abs(values[1] - values[0]), abs(values[2] - values[1])
    return 0.0 if last == 0 else last * last / (before - last) if last < before else math.inf


def progress_text(run: Lanczos) -> str:
    top, error, bottom, _ = run.history[-1]
    return f"λmax {top:.4g} ± {error:.1g}, λmin {bottom:.3g}, {run.products} products"


def trace_estimate(
    engine: Engine, value: float, how: str, estimator: Error, sample: Error, positive: bool = False
) -> Estimate:
    """Make the estimate of a trace from the errors of its estimator and of its rows.

    `positive` says that the trace of every row is positive.

    Raises:
        InputError: it is not finite.
    """
    if not math.isfinite(value):
        raise engine.hessian.not_finite("the trace")
    (se, _), (sampling, _) = estimator, sample
    half, half_of_rows = (engine.shared.half_width(*error) for error in (estimator, sample))
    low, high = interval(value, math.hypot(half, half_of_rows), positive)
    low = max(low, 0.0) if positive else low
    detail = {"estimator_se": se, **errors(value, half, sampling)}
    return Estimate(name="", value=value, low=low, high=high, se=math.hypot(se, sampling), how=how, detail=detail)


def trace_of_pairs(engine: Engine, part: GGNTrace, how: str, again: Terms) -> tuple[Estimate, torch.Tensor]:
    """Make the estimate of Tr(G), whose rows have traces of their own, and return these with it."""
    sampling, terms = over_rows(engine, part.sampling, _spread(part.rows, part.sampling), again)
    sample, positive = (sampling, freedom(terms)), bool((part.rows >= 0).all())
    return trace_estimate(engine, part.value, how, (part.se, part.dof), sample, positive), terms


def _spread(terms: torch.Tensor, se: float) -> torch.Tensor:
    """Stretch terms of rows (N,) about their mean so that they vary as a standard error of the mean says."""
    own_se = float(terms.std()) / len(terms) ** 0.5 if len(terms) > 1 else 0.0
    return terms.mean() + (terms - terms.mean()) * (se / own_se if own_se > 0 else 1.0)


def told(estimate: Estimate, precision: float | None) -> Estimate:
    """Add to `how` what came of the precision that was asked for: a standard error, and the interval's half width."""
    if precision is None or not estimate.value:
        return estimate
    low, high, se = (float(estimate.detail[key] or 0.0) for key in ("estimator_low", "estimator_high", "estimator_se"))
    size = abs(estimate.value)
    reached = f"standard error {se / size:.2g} of the value, asked for {precision:.2g}"
    return replace(
        estimate, how=f"{estimate.how}; {reached}; interval on these rows ± {(high - low) / 2 / size:.2g} of it"
    )


def missed(engine: Engine, estimate: Estimate, precision: float | None, name: str) -> list[str]:
    """Write a note where the interval is wider than that of the precision that was asked for."""
    if precision is None or not estimate.value or engine.shared.stopped:
        return []
    half = (float(estimate.detail["estimator_high"]) - float(estimate.detail["estimator_low"])) / 2  # type: ignore[arg-type]
    reached = half / engine.shared.half_width(1.0, 1e9) / abs(estimate.value)
    if reached <= MISSED * precision:
        return []
    return [f"{name}: its interval is that of a relative standard error of {reached:.2g}, not of {precision:.2g}"]


# Figures: the density with its band, eigenvalues, convergence of a Ritz value, bars per layer.

DENSITY = "density"
"""Name of the figure that a screen shows rather than another."""


def density_figure(d: Density, quantile: float) -> Plot:
    """Draw the density over λ on a logarithmic scale, with the band of the random start vectors and of the steps."""
    floor = 1e-8 * float(d.values.max())
    half = quantile * d.se
    y, low, high = (v.clamp(min=floor).tolist() for v in (d.values, d.least - half, d.most + half))
    curve = _curve("density", "line", y, low, high, d.grid.tolist())
    title = f"Spectral density, smoothed with σ = {d.sigma:.3g}"
    return Plot(name=DENSITY, title=title, xlabel="eigenvalue λ", ylabel="density", yscale="log", curves=[curve])


def eigenvalues(estimates: Sequence[Estimate], of: str = "") -> Plot:
    """Draw the largest eigenvalues with their intervals."""
    y, low, high = ([getattr(e, part) for e in estimates] for part in ("value", "low", "high"))
    curve = _curve("eigenvalue", "points", y, low, high)
    return Plot(name=f"top{of}", title=f"Largest eigenvalues{of}", xlabel="rank", ylabel="eigenvalue λ", curves=[curve])


def convergence(run: Lanczos, index: int, which: str) -> Plot:
    """Draw a Ritz value and its residual bound after every product."""
    column = 0 if index else 2
    history = [row[column : column + 2] for row in run.history]
    curve = _curve("Ritz value ± residual", "line", *zip(*((v, v - e, v + e) for v, e in history)))
    axes: dict[str, Any] = {"xlabel": "Hessian-vector products", "ylabel": "Ritz value"}
    return Plot(name=f"convergence {which}", title=f"Convergence of {which}", tier="all", curves=[curve], **axes)


def layers(names: Sequence[str], values: Mapping[str, torch.Tensor]) -> list[Plot]:
    """Draw one bar chart per column, a bar per layer."""
    plots = []
    for column, series in values.items():
        if column.startswith("±"):
            continue
        half = values.get(f"± {column}")
        low, high = (None if half is None else (series + sign * half).tolist() for sign in (-1.96, 1.96))
        curve = _curve(column, "bars", series.tolist(), low, high, range(len(names)))
        named: dict[str, Any] = {"name": f"layers {column}", "title": f"{column} per layer", "ylabel": column}
        plots.append(Plot(**named, tier="all", labels=list(names), flip=True, group="Layers", curves=[curve]))
    return plots


def _curve(label: str, kind: Any, y: Any, low: Any = None, high: Any = None, x: Any = None) -> Curve:
    """Make a curve with its band, over 1, 2, 3, ... where no abscissae are given."""
    x = [float(i) for i in (range(1, len(y) + 1) if x is None else x)]
    return Curve(label=label, kind=kind, role="model", x=x, y=y, low=low, high=high)


# The registry of quantities.

DEFAULT = ("lambda_max", "lambda_min", "top", "trace", "trace_ggn", "density", "grad_norm")
"""What is measured when nothing is asked for."""


@dataclass(frozen=True, kw_only=True)
class QuantityTraits(Traits):
    """What a quantity says of itself."""

    order: int
    """Its place in the order of measuring, which lets quantities share most work; see `place`."""
    tier: Tier = "few"
    """Whether a screen shows it first, as of all estimates."""
    estimate: str = ""
    """The name that the result gives its estimate; "" is its own."""
    certifies: bool = False
    """It certifies an eigenvalue, for which the self-test measures each group of parameters."""
    by_row: bool = False
    """It is a mean of terms of the rows, whose error over rows a study counts."""
    first_order: bool = False
    """It needs first derivatives of the model alone."""
    from_gradients: bool = False
    """It can be had where products are differences of gradients."""
    sharded: bool = False
    """It can be had of weights that are sharded over processes."""
    folds: bool = False
    """It folds a temperature into the last layer, which is looked for, or refused, before anything is measured."""


QUANTITIES = Registry("curvature quantity", QuantityTraits, package="calibcli.networks.curvature", first=DEFAULT)

Precision = Annotated[float, Range(1e-12, 1)]
Probes = Annotated[int, Range(1, 1_000_000)]
Steps = Annotated[int, Range(1, 100_000)]
EVERY = 400  # products after which an eigenvalue that has not converged is reported as it is


@dataclass
class QuantityEstimates:
    """The estimates of a quantity (named by the caller), its figures, values per parameter tensor, and notes."""

    estimates: list[Estimate]
    plots: list[Plot] = field(default_factory=list)
    layers: dict[str, torch.Tensor] = field(default_factory=dict)  # column of the layer table -> (tensors,)
    notes: list[str] = field(default_factory=list)
    terms: torch.Tensor | None = None  # (N,) of the rows: their mean is the estimate, their spread its error over rows


def _no_terms(engine: Engine) -> None:
    """Leave the terms of rows out (see `Terms`)."""


Measure = Callable[..., QuantityEstimates]


def _and_after(
    example: str,
    *,
    order: int,
    tier: Tier = "few",
    certifies: bool = False,
    relative: bool = False,
    from_gradients: bool = True,
) -> Callable[[Measure], Measure]:
    """Put a quantity in the registry twice, as it is and after the network's own temperature, as a decorator.

    Args:
        example: what the second one is of the sample model.
        order, certifies: traits of both.  tier: of the first; the second is shown where it is asked for.
        relative: whether its coordinates are relative changes of the parameters.  from_gradients: trait of the first.
    """

    def put(target: Measure) -> Measure:
        name = target.__name__

        @functools.wraps(target)
        def plain(engine: Engine, **options: Any) -> QuantityEstimates:
            return target(engine.view(relative=relative), **options)

        @functools.wraps(target)
        def after(engine: Engine, **options: Any) -> QuantityEstimates:
            if engine.shared.stopped and "logits" not in vars(engine.shared):
                return _nothing()
            fit = engine.shared.temperature
            if fit.status != "ok":
                return _nothing(f"no temperature: {REASONS[fit.status]}")
            engine.drop()
            measured = target(engine.view(relative=relative, after=True), **options)
            how, detail = f"at T = {fit.temperature:.4g}", {"temperature": fit.temperature}
            estimates = [replace(e, how=f"{how}: {e.how}", detail={**e.detail, **detail}) for e in measured.estimates]
            return replace(measured, estimates=estimates, layers={}, plots=[])

        lines = (target.__doc__ or "").partition("\n\n")[0]
        after.__doc__ = f"""{lines[:-1] if lines.endswith(".") else lines}, after the network's own temperature.

    The temperature T has the smallest NLL of these rows, as `calib scale` fits it, and divides the last layer first;
    the error over rows counts that they choose T. Coordinates of `adaptive` measures and `fisher_rao` are the same
    wherever T is folded, and need no last layer. Options are those of `{name}`.
    In units of the loss (nats for `ce`), and of the weights as `{name}` is.
    Ours: {name} of the network that Guo et al. (2017) would use.

    >>> round(calibcli.curvature(model, None, "{name} after", device="cpu")["{name} after"].value, 2)
    {example}
    """
        here: dict[str, Any] = {"from_gradients": from_gradients, "sharded": from_gradients and not relative}
        QUANTITIES.add(order=order, tier=tier, certifies=certifies, by_row=True, **here)(plain)
        later = QUANTITIES.add(
            f"{name} after", order=order, tier="asked", certifies=certifies, by_row=True, folds=not relative
        )
        later(after)
        return target

    return put


@QUANTITIES.add(order=0, first_order=True, from_gradients=True, sharded=True)
def grad_norm(engine: Engine) -> QuantityEstimates:
    """‖∇‖ of the mean loss.

    The interval is over rows (delta method); `noise` is √(tr Σ / N), the norm to expect of a zero gradient.
    In units of the loss (nats for `ce`) per unit of weight. Ours: the delta method on the norm of the mean gradient.

    >>> round(calibcli.curvature(model, None, "grad_norm", device="cpu")["grad_norm"].value, 2)
    0.66
    """
    if engine.shared.stopped:
        return _nothing()
    g = engine.pieces.once_made(Gradient, "gradient", lambda: mean_gradient(engine.hessian))
    value = norm(g.vector)
    half = engine.shared.half_width(g.se, engine.problem.layout.groups - 1)
    detail, how = {"noise": g.noise, **errors(value, 0.0, g.se)}, "one pass; interval over rows by the delta method"
    low, high = max(0.0, value - half), value + half
    estimate = Estimate(name="", value=value, low=low, high=high, se=g.se, how=how, detail=detail)
    norms = torch.stack([p.norm() for p in torch.split(g.vector, engine.problem.sizes)])
    return QuantityEstimates([estimate], layers={"gradient norm": norms.double().cpu()})


@QUANTITIES.add(order=1, tier="asked", first_order=True, from_gradients=True)
def trace_ggn(engine: Engine, *, precision: Precision | None = None, exact: bool = False) -> QuantityEstimates:
    """Tr(G) of the Gauss-Newton matrix, equal to the Fisher matrix for cross-entropy.

    Pairs (row, class) of weight in the loss's Hessian in the logits: the heavy ones exactly, the rest by importance
    sampling until the standard error is `precision` of the value (default: 0.3 of the sampling error), which makes the
    half width of a 95 % interval about twice that. `exact` takes every pair.
    In units of the loss (nats for `ce`) per squared unit of weight (Schraudolph 2002; Martens 2020).

    >>> round(calibcli.curvature(model, None, "trace_ggn:exact=true", device="cpu")["trace_ggn"].value, 1)
    73.1
    """
    if not engine.splits:
        return _nothing(f"the loss does not split, and {engine.problem.classes} classes are too many to split it")
    part = engine.ggn(precision or engine.default_precision, exact)
    if part is None:
        return _nothing()
    estimate, _ = trace_of_pairs(engine, part, part.how, _no_terms)
    notes = [*missed(engine, estimate, precision, "trace_ggn"), *dominating(engine, part)]
    layers = {"Tr(G)": part.layers, "± Tr(G)": part.layer_se}
    return QuantityEstimates([told(estimate, precision)], layers=layers, notes=notes)


@_and_after("116.21", order=1)
def trace(
    engine: Engine,
    *,
    precision: Precision | None = None,
    probes: Probes | None = None,
    exact: bool = False,
    most: Probes = 1024,
) -> QuantityEstimates:
    """Tr(H), as Tr(G) from weighted pairs plus Tr(H - G) by Hutchinson probes where it does not vanish.

    `precision` is the relative standard error to reach, about half the half width of a 95 % interval (default: 0.3 of
    the sampling error, or 0.02 where the loss does not split into pairs); `probes` fixes the number of probes of a row
    instead; after a pilot that decides it, at most `most` are spent on average. `exact` takes every pair and every
    diagonal element, as is done unasked where that takes fewer products. In units of the loss (nats for `ce`) per
    squared unit of weight (Hutchinson 1990).

    >>> round(calibcli.curvature(model, None, "trace:exact=true", device="cpu")["trace"].value, 1)
    73.1
    """
    options: dict[str, Any] = {"precision": precision, "probes": probes, "exact": exact, "most": most}

    def again(other: Engine) -> torch.Tensor | None:
        estimates: QuantityEstimates = trace(other, **options)
        return estimates.terms

    name, column = ("adaptive_trace", TRACE_OF_RELATIVE) if engine.relative else ("trace", TRACE)
    precision = precision or (None if engine.splits else 0.02)
    share = PAIRS_SHARE if bool(engine.has_curvature.any()) else 0.8
    part = engine.ggn(share * (precision or engine.default_precision), exact) if engine.splits else None
    if engine.splits and part is None:
        return _nothing()
    if part and not bool(engine.has_curvature.any()):
        how = f"{part.how}; H - G has no diagonal (the logits are linear in each parameter tensor)"
        estimate, terms = trace_of_pairs(engine, part, how, again)
        notes = [*missed(engine, estimate, precision, name), *dominating(engine, part)]
        return QuantityEstimates([told(estimate, precision)], layers={column: part.layers}, notes=notes, terms=terms)
    base = part.value if part else 0.0
    layout = engine.problem.layout
    elements = int(torch.tensor(engine.problem.sizes)[engine.has_curvature].sum())
    elements = 1 << 62 if engine.problem.from_gradients else elements  # whose diagonal there is none of
    early = traces.pilot(layout.n)
    if exact or (probes is None and early >= elements):
        return _nothing() if engine.shared.stopped else _trace_of_diagonal(engine, part, again)
    drawn = engine.probe(0, probes or early, base)
    if drawn is None:
        return _nothing()
    if probes is None:
        count, cell = _probes_needed(engine, part, drawn, precision, most, elements)
        if not bool(count.any()):
            return _nothing() if engine.shared.stopped else _trace_of_diagonal(engine, part, again)
        drawn = engine.probe(early, count, base, cell=cell) or drawn
    mean = traces.summarise(drawn, layout.n, engine.steepness)
    how = f"{drawn.each:.0f} Hutchinson probes of H"
    if part:
        on = f"{int(engine.has_curvature.sum())} of {len(engine.problem.tensors)}"
        how = f"{part.how} + {drawn.each:.0f} probes of H - G on {on} tensors"
    is_exact = drawn.forms[:, 0] < min(2, probes or 2)  # cells that were taken exactly
    if bool(is_exact.any()):
        how += f", and all its diagonal in {int(is_exact.sum())} of {len(is_exact)} cells of rows"
    variance = mean.se**2 + (part.se**2 if part else 0.0)
    dof = variance**2 / max(mean.se**4 / mean.dof + (part.se**4 / part.dof if part else 0.0), 1e-300)
    groups = traces.by_group(drawn, layout)
    cells = traces.moments(drawn.forms)[0], drawn.cell
    estimate, terms = _trace_over_groups(engine, part, groups, cells, how, (variance**0.5, dof), again)
    whole: traces.Probes | None = drawn
    if not drawn.layers.shape[1]:  # the parts of the tensors need whole products, and get a few
        few = max(early, round(drawn.each) // 16)
        apart = {"count": few * ~is_exact, "cell": drawn.cell} if bool(is_exact.any()) else {"count": few}
        whole = engine.probe(0, base=base, layers=True, **apart)
    notes = [*missed(engine, estimate, precision, name), *(dominating(engine, part) if part else [])]
    estimate = told(estimate, precision)
    if whole is None:
        return QuantityEstimates([estimate], notes=notes, terms=terms)
    layers, spread = traces.by_tensor(whole, layout.n)
    if part:
        layers, spread = layers + part.layers, (spread.square() + part.layer_se.square()).sqrt()
    return QuantityEstimates([estimate], layers={column: layers, f"± {column}": spread}, notes=notes, terms=terms)


def _probes_needed(
    engine: Engine, part: GGNTrace | None, pilot: traces.Probes, precision: float | None, most: int, elements: int
) -> tuple[torch.Tensor, int]:
    """Choose the number of probes (cells,) to take after a pilot, and the rows of a cell.

    The number is 0 for a cell whose diagonal has fewer `elements`. The pilot serves for nothing else: a mean that
    helped to decide how many probes there are would be biased.
    """
    layout = engine.problem.layout
    base, se = (part.value, part.se) if part else (0.0, 0.0)
    size = abs(base + traces.summarise(pilot, layout.n).value)
    rows = part.rows if part else torch.zeros(layout.n, dtype=torch.float64)
    sampling = traces.sampling_error(rows, *traces.by_group(pilot, layout), layout)
    wish = precision * size if precision else max(SHARE * sampling, ENOUGH * size)
    wish = max(wish**2 - se**2, wish**2 / 4) ** 0.5
    inputs, limits = (pilot, engine.steepness, wish, most), (engine.shared.level, elements)
    count = traces.allocate(*inputs, pilot.cell, *limits)
    few = bool(count.any()) and float(count.double().mean()) <= FINE
    if few or engine.prober.whole(FINE, 1):
        return count, pilot.cell
    return traces.allocate(*inputs, 1, *limits), 1


def _trace_of_diagonal(engine: Engine, part: GGNTrace | None, again: Terms) -> QuantityEstimates:
    """Compute every diagonal element of H - G: exact, and cheaper than probes where there are fewer elements."""
    layout, column = engine.problem.layout, TRACE_OF_RELATIVE if engine.relative else TRACE
    diagonals = engine.diagonals(layout.group)
    sums, per_layer = diagonals.sum(1), diagonals.sum(0) / layout.n
    how = (f"{part.how} and " if part else "") + "every diagonal element" + (" of H - G" if part else "")
    se, dof = (part.se, part.dof) if part else (0.0, 1)
    groups = sums, torch.zeros_like(sums)
    estimate, terms = _trace_over_groups(engine, part, groups, (sums, layout.group), how, (se, dof), again)
    return QuantityEstimates([estimate], layers={column: per_layer + part.layers if part else per_layer}, terms=terms)


def _trace_over_groups(
    engine: Engine,
    part: GGNTrace | None,
    groups: tuple[torch.Tensor, torch.Tensor],
    cells: tuple[torch.Tensor, int],
    how: str,
    error: Error,
    again: Terms,
) -> tuple[Estimate, torch.Tensor]:
    """Make the estimate of Tr(G) + rest, and the terms of the rows.

    The sampling error is that between groups of rows: their sums and noise. `cells` are sums of the rest over cells of
    so many rows.
    """
    layout = engine.problem.layout
    rows = part.rows if part else torch.zeros(layout.n, dtype=torch.float64)
    se = traces.sampling_error(rows, *groups, layout)
    sampling, terms = over_rows(engine, se, _spread(rows + traces.by_row(*cells, layout.n), se), again)
    value = (part.value if part else 0.0) + float(cells[0].sum()) / layout.n
    return trace_estimate(engine, value, how, error, (sampling, min(layout.groups - 1, freedom(terms)))), terms


@QUANTITIES.add(order=3, estimate="negative_fraction", from_gradients=True, sharded=True)
def density(
    engine: Engine, *, steps: Steps = 40, probes: Probes = 1, sigma: Positive | None = None
) -> QuantityEstimates:
    """Spectral density of H by Lanczos quadrature; estimates `negative_fraction`, the share of eigenvalues
    below -sigma.

    `steps` products per probe; `sigma` is the width of the Gaussian (default: √1e-5 of the spectrum's range). The
    interval holds the error of random start vectors, in closed form, and what so few steps leave open. The first probe
    is the run that gives the eigenvalues.
    In units of the loss (nats for `ce`) per squared unit of weight (Lin et al. 2016; Ghorbani et al. 2019).

    >>> round(calibcli.curvature(model, None, "density:steps=10", device="cpu")["negative_fraction"].value, 2)
    0.1
    """
    shared = engine.shared
    run = engine.krylov
    engine.lanczos(lambda r: r.products / steps, steps, progress_text)
    if not run.steps:
        return _nothing()
    runs = [quadrature(run, steps)]
    for number in range(1, probes):
        other = engine.new_run(1000 * number)
        while not shared.stopped and other.steps < steps and not other.exhausted and other.restarts == 0:
            engine.extend(other)
            shared.agree()
            shared.progress((number + other.steps / steps) / probes, f"density, probe {number + 1} of {probes}")
        if other.steps:
            runs.append(quadrature(other, steps))
    d = smooth(runs, engine.problem.size, sigma=sigma or 0.0)
    low, high = d.interval(shared.half_width(1.0, 1e9))
    how, unit = f"share below -sigma; {len(runs)} × {len(runs[0].nodes)} Lanczos steps", "share of eigenvalues"
    smallest, largest = float(d.nodes.min()), float(d.nodes.max())
    detail: dict[str, Cell] = {"sigma": d.sigma, "smallest_node": smallest, "largest_node": largest}
    detail |= {"quadrature_low": d.negative_least, "quadrature_high": d.negative_most}
    detail |= {"estimator_low": low, "estimator_high": high, "sampling_se": None}
    se = math.sqrt(d.spread * max(0.0, d.negative * (1 - d.negative)))  # of the start vectors
    estimate = Estimate(name="", value=d.negative, low=low, high=high, se=se, unit=unit, how=how, detail=detail)
    return QuantityEstimates([estimate], plots=[density_figure(d, shared.half_width(1.0, 1e9))])


@_and_after("22.5", order=4, certifies=True)
def lambda_max(engine: Engine, *, tol: Precision = 1e-3, bound: Bound = "residual") -> QuantityEstimates:
    """Largest eigenvalue of H by Lanczos, to a relative error `tol`.

    `bound=residual` stops on the Ritz residual and recomputes it from true products, which also give the sampling
    error; an eigenvalue lies within it (rigorous), that it is the largest is overwhelmingly likely but not proved.
    `bound=estimate` stops when residual²/gap and the last step are within it: sooner, and without a sampling error.
    In units of the loss (nats for `ce`) per squared unit of weight (Lanczos 1950; the residual's bound: Parlett 1980).

    >>> round(calibcli.curvature(model, None, "lambda_max", device="cpu")["lambda_max"].value, 1)
    15.7
    """
    return _extreme(engine, -1, tol, bound)


@QUANTITIES.add(order=5, certifies=True, tier="asked", from_gradients=True, sharded=True)
def top(engine: Engine, *, k: Steps = 5, tol: Precision = 1e-3, bound: Bound = "residual") -> QuantityEstimates:
    """The k largest eigenvalues of H, each with its own residual (see lambda_max). Equal ones may count once.

    In units of the loss (nats for `ce`) per squared unit of weight (Lanczos 1950; Parlett 1980).

    >>> round(calibcli.curvature(model, None, "top:k=2", device="cpu")["top", "k=2"].value, 1)
    13.1
    """
    return _largest(engine, k, tol, bound)


def _largest(engine: Engine, k: int, tol: float, bound: Bound) -> QuantityEstimates:
    k = min(k, engine.problem.size)

    def done(run: Lanczos) -> float:
        return min((closeness(run, -i, tol, bound) if i <= len(run.basis) else 0.0) for i in range(1, k + 1))

    engine.lanczos(done, EVERY, progress_text)
    estimates = []
    for i in range(1, min(k, len(engine.krylov.basis)) + 1):
        estimate, _ = eigenvalue(engine, -i, tol, bound)
        estimates.append(replace(estimate, **Scope(parts={"k": str(i)}).fields))
    if not estimates:
        return _nothing()
    return QuantityEstimates(estimates, plots=[eigenvalues(estimates, " of G" if engine.ggn_alone else "")])


@QUANTITIES.add(order=6, certifies=True, from_gradients=True, sharded=True)
def lambda_min(engine: Engine, *, tol: Precision = 1e-3, bound: Bound = "residual") -> QuantityEstimates:
    """Smallest (most negative) eigenvalue of H by Lanczos (see lambda_max).

    `tol` is relative to its size, or to a hundredth of the largest eigenvalue's where that is more.
    In units of the loss (nats for `ce`) per squared unit of weight (Lanczos 1950; Parlett 1980).

    >>> round(calibcli.curvature(model, None, "lambda_min", device="cpu")["lambda_min"].value, 2)
    -0.19
    """
    return _extreme(engine, 0, tol, bound)


def _extreme(engine: Engine, index: int, tol: float, bound: Bound) -> QuantityEstimates:
    engine.lanczos(lambda run: closeness(run, index, tol, bound), EVERY, progress_text)
    if not engine.krylov.basis:
        return _nothing()
    estimate, terms = eigenvalue(engine, index, tol, bound)
    vector = engine.krylov.vector(engine.krylov.ritz().coordinates[:, index])
    shares = torch.stack([p.square().sum() for p in torch.split(vector, engine.problem.sizes)]).double().cpu()
    which = ("adaptive " if engine.relative else "") + ("λmax" if index else "λmin") + " of G" * engine.ggn_alone
    notes = dominating_group(engine, engine.certificate(index) if bound == "residual" else None, which)
    layers = {f"share of {which} vector": shares}
    plots = [convergence(engine.krylov, index, which)]
    return QuantityEstimates([estimate], plots=plots, layers=layers, notes=notes, terms=terms)


By = Literal["auto", "differences"]


@QUANTITIES.add(order=9, certifies=True, tier="asked", first_order=True, from_gradients=True)
def lambda_max_ggn(
    engine: Engine, *, tol: Precision = 1e-3, bound: Bound = "residual", by: By = "auto"
) -> QuantityEstimates:
    """Largest eigenvalue of G by Lanczos (see lambda_max), also of models without second derivatives.

    G = (1/N) Σ JᵀAJ, equal to the Fisher matrix for cross-entropy, is H without the second derivatives of the logits.
    `by=auto` takes double backward where the model has it, and else, as always with `by=differences`, Jv by differences
    of the logits, whose error is counted in the residual; `differences.py` has the formula.
    In units of the loss (nats for `ce`) per squared unit of weight (Schraudolph 2002; Martens 2020; Richardson 1911).

    >>> round(calibcli.curvature(model, None, "lambda_max_ggn", device="cpu")["lambda_max_ggn"].value, 1)
    15.7
    """
    return _extreme(engine.gauss_newton(by == "differences"), -1, tol, bound)


@QUANTITIES.add(order=10, certifies=True, tier="asked", first_order=True, from_gradients=True)
def top_ggn(
    engine: Engine, *, k: Steps = 5, tol: Precision = 1e-3, bound: Bound = "residual", by: By = "auto"
) -> QuantityEstimates:
    """The k largest eigenvalues of G, each with its own residual (see lambda_max_ggn). Equal ones may count once.

    In units of the loss (nats for `ce`) per squared unit of weight (Schraudolph 2002; Martens 2020; Richardson 1911).

    >>> round(calibcli.curvature(model, None, "top_ggn:k=2", device="cpu")["top_ggn", "k=2"].value, 1)
    13.1
    """
    return _largest(engine.gauss_newton(by == "differences"), k, tol, bound)


@_and_after("3.63", order=7, tier="asked", relative=True, from_gradients=False)
def fisher_rao(engine: Engine) -> QuantityEstimates:
    """θᵀGθ, the Fisher-Rao norm of the weights: the mean over rows of the variance of (Jθ)_c, c drawn from p.

    One derivative Jθ of all logits along the weights themselves, exact. No rescaling of layers that leaves the function
    as it is moves it, as Jθ stays: of L ReLU layers without biases Jθ = L z, and it is L² times the mean variance of
    the logits, a function of the predictions alone. Of a loss other than cross-entropy G is that loss's.
    In units of the loss (nats for `ce`). Liang et al. (2019), without their constant.

    >>> round(calibcli.curvature(model, None, "fisher_rao", device="cpu")["fisher_rao"].value, 2)
    0.7
    """
    if engine.shared.stopped:
        return _nothing()
    y, ones = engine.shared.labels, torch.ones(engine.problem.size)
    (slopes,) = engine.pieces.once("slopes along the weights", lambda: [slopes_along(engine.problem, ones)])

    def along(other: Engine) -> torch.Tensor:
        more = other.problem.beta / engine.problem.beta
        z, part_of_rows = other.logits, parts(*slopes.shape)
        return torch.cat([curvature_along(engine.loss, z[s].double(), y[s], slopes[s] * more) for s in part_of_rows])

    terms = along(engine)
    value, se = float(terms.mean()), float(terms.std()) / len(terms) ** 0.5 if len(terms) > 1 else 0.0
    se, counted = over_rows(engine, se, terms, along)
    how = "one derivative of all logits along the weights, exact"
    estimate = trace_estimate(engine, value, how, (0.0, 1), (se, freedom(counted)), bool((terms >= 0).all()))
    return QuantityEstimates([estimate], terms=counted)


@_and_after("2.94", order=8, tier="asked", relative=True)
def adaptive_trace(
    engine: Engine,
    *,
    precision: Precision | None = None,
    probes: Probes | None = None,
    exact: bool = False,
    most: Probes = 1024,
) -> QuantityEstimates:
    """Σ_j θ_j² H_jj, the trace of |θ| H |θ|, which is the Hessian in relative changes of the weights.

    Independent relative noise of standard deviation σ on every weight costs ½ σ² times it. A rescaling of units or
    layers that leaves the function as it is does not move it. Estimated, and with the options, as `trace` is.
    In units of the loss (nats for `ce`). Kwon et al. (2021); Andriushchenko et al. (2023).

    >>> round(calibcli.curvature(model, None, "adaptive_trace:exact=true", device="cpu").estimates[0].value, 2)
    6.54
    """
    estimates: QuantityEstimates = trace(engine, precision=precision, probes=probes, exact=exact, most=most)
    return estimates


@_and_after("0.54", order=9, tier="asked", certifies=True, relative=True)
def adaptive_lambda(engine: Engine, *, tol: Precision = 1e-3, bound: Bound = "residual") -> QuantityEstimates:
    """Largest eigenvalue of |θ| H |θ|, the Hessian in relative changes of the weights (see lambda_max).

    The largest rise of the loss within a relative change of the weights of length ρ is about ½ ρ² times it. A rescaling
    of units or layers that leaves the function as it is does not move it.
    In units of the loss (nats for `ce`). Kwon et al. (2021); Andriushchenko et al. (2023).

    >>> round(calibcli.curvature(model, None, "adaptive_lambda", device="cpu")["adaptive_lambda"].value, 2)
    1.34
    """
    estimates: QuantityEstimates = lambda_max(engine, tol=tol, bound=bound)
    return estimates


def _nothing(reason: str = "interrupted before the first result") -> QuantityEstimates:
    return QuantityEstimates([Estimate(name="", value=None, reason=reason)])
