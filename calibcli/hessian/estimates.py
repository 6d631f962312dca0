"""Numbers into estimates: the interval over the population, and beside it what the estimator leaves open."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import torch

from calibcli.hessian import tuning
from calibcli.hessian.certificate import Certificate
from calibcli.hessian.engine import Engine
from calibcli.hessian.ggn import GGNTrace
from calibcli.hessian.lanczos import Lanczos, Ritz
from calibcli.result import Cell, Estimate

Bound = Literal["residual", "estimate"]
DOMINATES = 0.5  # share of a number from which one row, or one group, is named
FEWEST = 6  # products before an eigenvalue may count as found: a start vector may favour its neighbour
FOUR, STANDS_OUT, SURE = 4, 4.0, 0.05  # so few where it is so many times the others, its residual so small a part of it


def interval(value: float, half: float, positive: bool) -> tuple[float, float]:
    """value ± half; for a quantity that is positive on every row, symmetric in its logarithm.

    Curvature sits in few rows, so its sampling distribution is skewed: on the logarithmic scale the interval covers
    from the smallest samples on. Half widths beyond twice the value are past that approximation.
    """
    if positive and 0 < half <= 2 * value:
        return value * math.exp(-half / value), value * math.exp(half / value)
    return value - half, value + half


def errors(value: float, half: float, sampling: float | None) -> dict[str, Cell]:
    """What every estimate says of itself: value ± half for this data, and the standard error over rows."""
    return {"estimator_low": value - half, "estimator_high": value + half, "sampling_se": sampling}


def eigenvalue(engine: Engine, index: int, tol: float, bound: Bound) -> Estimate:
    run = engine.krylov
    ritz = run.ritz()
    theta, error = float(ritz.values[index]), float(ritz.residuals[index])
    if bound == "estimate":
        error = ritz.value_error(index)
    certificate = engine.certificate(index) if bound == "residual" else None
    converged = closeness(run, index, tol, bound) >= 1 or run.exhausted
    if certificate is None:
        return Estimate(
            name="",
            value=theta,
            low=theta - error,
            high=theta + error,
            level=None,
            how=f"{run.products} Lanczos products; "
            + ("residual²/gap, not a bound" if bound == "estimate" else "Ritz residual"),
            reason="" if converged else f"not converged to {tol:g} after {run.products} products",
            detail={"residual": float(ritz.residuals[index]), "products": run.products, **errors(theta, error, None)},
        )
    return _certified(engine, certificate, run, converged, tol)


def _certified(engine: Engine, c: Certificate, run: Lanczos, converged: bool, tol: float) -> Estimate:
    half = engine.shared.half_width(c.sampling, c.groups - 1)
    low, high = interval(c.value, half, c.value > 0)
    if c.value > 0:  # sampling raises the top, relative to itself
        low *= max(0.0, 1 - max(c.bias, 0.0) / c.value)
    else:
        high += max(-c.bias, 0.0)
    low -= c.residual
    if low < 0 < c.value and engine.convex:
        low = 0.0
    detail: dict[str, Cell] = {
        "residual": c.residual,
        **errors(c.value, c.residual, c.sampling),
        "sampling_bias": c.bias,
        "products": run.products + c.products,
    }
    reason = "" if converged else f"not converged to {tol:g} after {run.products} products"
    if engine.problem.tf32 and c.residual > tol * max(abs(c.value), 0.01 * float(run.ritz().values.abs().max())):
        reason = reason or f"products in TF32 leave more than {tol:g} of it: take them in float32"
    products = f"{run.products} Lanczos products" + (" and a true one" if c.products else "")
    return Estimate(
        name="",
        value=c.value,
        low=low,
        high=high + c.residual,
        se=c.sampling,
        how=f"{products}, which bound the error by {c.residual:.2g}",
        reason=reason,
        detail=detail,
    )


def dominating(engine: Engine, part: GGNTrace) -> list[str]:
    """A note where one row holds most of Tr(G), the same for every quantity that says so."""
    size = part.rows.abs()
    share = float(size.max() / size.sum().clamp(min=1e-300))
    if share <= DOMINATES or len(size) < 8:
        return []
    row = int(size.argmax())
    text = f"row {row} (counted from 0) holds {share:.0%} of Tr(G): only more rows make the trace tell of others"
    return [engine.named.setdefault(row, text)]


def dominating_group(engine: Engine, certificate: Certificate | None, name: str) -> list[str]:
    """A note where one group of rows holds most of an eigenvalue."""
    layout = engine.problem.layout
    if certificate is None or certificate.share <= DOMINATES or layout.groups < 8:
        return []
    first = certificate.group * layout.group
    last = min(first + layout.group, layout.n) - 1
    rows, hold = (f"row {first}", "holds") if first == last else (f"rows {first} to {last}", "hold")
    share = f"{certificate.share:.0%} of {name}"
    return [f"{rows} (counted from 0) {hold} {share}: only more rows make it tell of others"]


def closeness(run: Lanczos, index: int, tol: float, bound: Bound) -> float:
    """How far an eigenvalue is from its tolerance, 1 when there (on a logarithmic scale)."""
    ritz = run.ritz()
    scale = max(abs(float(ritz.values[index])), 0.01 * float(ritz.values.abs().max()))
    error = float(ritz.residuals[index])
    if bound == "estimate":  # the gap is an estimate too: the value must have come to rest as well
        column = 0 if index else 2
        to_come = remaining([h[column] for h in run.history[-3:]]) if index in (0, -1) else 0.0
        error = max(ritz.value_error(index), to_come)
    if run.products < (FOUR if stands_out(ritz, index) else FEWEST) and not run.exhausted:
        return 0.0
    if error <= tol * scale or scale == 0.0:
        return 1.0
    return min(0.99, max(0.0, 1.0 - math.log10(error / (tol * scale)) / 4))


def stands_out(ritz: Ritz, index: int) -> bool:
    """Whether an extreme Ritz value is far beyond all others, and nearly an eigenvalue: a larger one, whose part in the
    vector grows faster, would show in either unless the start vector had next to none of it."""
    size = ritz.values.abs()
    others = torch.cat([size[:index], size[index + 1 :]]) if index != -1 else size[:-1]
    theta = float(size[index])
    return theta >= STANDS_OUT * max(others.tolist(), default=0.0) and float(ritz.residuals[index]) <= SURE * theta


def remaining(values: Sequence[float]) -> float:
    """How far the last three of a sequence still are from its limit, if what is left shrinks by the same factor at
    every step; infinite where there are fewer."""
    if len(values) < 3:
        return math.inf
    before, last = abs(values[1] - values[0]), abs(values[2] - values[1])
    return 0.0 if last == 0 else last * last / (before - last) if last < before else math.inf


def progress_text(run: Lanczos) -> str:
    top, error, bottom, _ = run.history[-1]
    return f"λmax {top:.4g} ± {error:.1g}, λmin {bottom:.3g}, {run.products} products"


def trace_estimate(
    engine: Engine,
    value: float,
    how: str,
    *,
    se: float,
    dof: float,
    sampling: float,
    sampling_dof: int,
    positive: bool,
) -> Estimate:
    """A trace with the standard errors of its estimator (`se`, `dof`) and of its rows; `positive` on every row?"""
    estimator = engine.shared.half_width(se, dof)
    over_rows = engine.shared.half_width(sampling, sampling_dof)
    low, high = interval(value, math.hypot(estimator, over_rows), positive)
    return Estimate(
        name="",
        value=value,
        low=low,
        high=high,
        se=math.hypot(se, sampling),
        how=how,
        detail={"estimator_se": se, **errors(value, estimator, sampling)},
    )


def trace_of_pairs(engine: Engine, part: GGNTrace, how: str) -> Estimate:
    """Tr(G), whose rows have traces of their own."""
    return trace_estimate(
        engine,
        part.value,
        how,
        se=part.se,
        dof=part.dof,
        sampling=part.sampling,
        sampling_dof=len(part.rows) - 1,
        positive=bool((part.rows >= 0).all()),
    )


def missed(engine: Engine, found: Estimate, precision: float | None, name: str) -> list[str]:
    """A note where the interval is wider than the precision that was asked for makes it."""
    if precision is None or not found.value or engine.shared.stopped:
        return []
    half = (float(found.detail["estimator_high"]) - float(found.detail["estimator_low"])) / 2  # type: ignore[arg-type]
    reached = half / engine.shared.half_width(1.0, 1e9) / abs(found.value)
    if reached <= tuning.MISSED * precision:
        return []
    return [f"{name}: its interval is that of a relative standard error of {reached:.2g}, not of {precision:.2g}"]
