"""The shelf: what can be asked of a loss around a checkpoint. Each returns estimates with both errors."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

import torch

from calibcli.curvature import figures
from calibcli.curvature import trace as traces
from calibcli.curvature.certificate import Certificate
from calibcli.curvature.density import density as smooth
from calibcli.curvature.density import quadrature
from calibcli.curvature.engine import Engine
from calibcli.curvature.lanczos import Lanczos
from calibcli.result import Cell, Estimate, Plot, Table
from calibcli.spec import Shelf

QUANTITIES = Shelf("curvature quantity")
Bound = Literal["residual", "estimate"]
EVERY = 400  # products after which an eigenvalue that has not converged is reported as it is


@dataclass
class Found:
    """What a quantity gives: estimates (named by the caller), figures, values per parameter tensor, remarks."""

    estimates: list[Estimate]
    plots: list[Plot] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    layers: dict[str, torch.Tensor] = field(default_factory=dict)  # column of the layer table -> (tensors,)
    notes: list[str] = field(default_factory=list)


@QUANTITIES.add(order=0)
def grad_norm(engine: Engine) -> Found:
    """‖∇‖ of the mean loss.

    The interval is over rows (delta method); `noise` is √(tr Σ / N), the norm to expect of a zero gradient.
    """
    if engine.shared.stopped:
        return _nothing()
    g = engine.gradient()
    value = float(g.vector.norm())
    half = engine.shared.half_width(g.se, engine.problem.layout.groups - 1)
    estimate = Estimate(
        name="",
        value=value,
        low=max(0.0, value - half),
        high=value + half,
        se=g.se,
        how="one pass; interval over rows by the delta method",
        detail={"noise": g.noise, "sampling_se": g.se, "estimator_low": value, "estimator_high": value},
    )
    pieces = torch.split(g.vector, engine.problem.sizes)
    return Found([estimate], layers={"gradient norm": torch.stack([p.norm() for p in pieces]).cpu()})


@QUANTITIES.add(order=1)
def trace_ggn(engine: Engine, *, precision: float | None = None, exact: bool = False) -> Found:
    """Tr(G) of the Gauss-Newton matrix, equal to the Fisher matrix for cross-entropy.

    Pairs (row, class) of weight in the loss's Hessian in the logits: the heavy ones exactly, the rest by importance
    sampling until the standard error is `precision` of the value (default: 0.3 of the sampling error). `exact` takes
    every pair.
    """
    if not engine.splits:
        return _nothing(f"the loss does not split, and {engine.problem.classes} classes are too many to split it")
    part = engine.ggn(precision or engine.default_precision, exact)
    if part is None:
        return _nothing()
    estimate = _trace_estimate(engine, part.value, part.se, part.dof, part.sampling, part.how)
    return Found([estimate], layers={"Tr(G)": part.layers, "± Tr(G)": part.layer_se})


@QUANTITIES.add(order=2)
def trace(
    engine: Engine,
    *,
    precision: float | None = None,
    probes: int | None = None,
    exact: bool = False,
    most: int = 512,
) -> Found:
    """Tr(H), as Tr(G) from weighted pairs plus Tr(H - G) by Hutchinson probes where it does not vanish.

    `precision` is the relative standard error to reach (default: 0.3 of the sampling error, or 0.02 where the loss does
    not split into pairs); `probes` fixes the number of probes instead, at most `most` are spent. `exact` takes every
    pair and every diagonal element (small models).
    """
    n, group = engine.problem.layout.n, engine.problem.layout.group
    names = len(engine.problem.tensors)
    precision = precision or (None if engine.splits else 0.02)
    part = engine.ggn((precision or engine.default_precision) / 2, exact) if engine.splits else None
    if engine.splits and part is None:
        return _nothing()
    base = part.value if part else 0.0
    rows = part.rows if part else torch.zeros(n, dtype=torch.float64)
    layers = part.layers if part else torch.zeros(names, dtype=torch.float64)
    if part and not bool(engine.alive.any()):
        how = f"{part.how}; H - G has no diagonal (the logits are linear in each parameter tensor)"
        found = _trace_estimate(engine, base, part.se, part.dof, part.sampling, how)
        return Found([found], layers={"Tr(H)": layers})
    if exact:
        if engine.shared.stopped:
            return _nothing()
        groups, rest = traces.exact_rest(engine.problem, engine.rest, engine.alive)
        value = base + float(rest.sum())
        sampling = traces.sampling_error(rows, groups[:, None], engine.problem.layout.weights, group)
        found = _trace_estimate(engine, value, 0.0, 1, sampling, "every pair and every diagonal element")
        return Found([found], layers={"Tr(H)": layers + rest})
    count = probes or traces.pilot(engine.problem.layout.blocks)
    drawn = engine.probe(count, lambda mean: f"Tr(H) {base + mean.value:.4g} ± {mean.se:.2g}")
    if probes is None and drawn is not None:  # decided once, from the pilot's spread: no looking at the running mean
        pilot = traces.summarise(traces.Probes(drawn.groups[:, :count], drawn.layers[:, :count]), n, group)
        size = abs(base + pilot.value)
        wish = precision * size if precision else max(0.3 * part.sampling if part else 0.0, 1e-3 * size)
        wish = (max(wish**2 - (part.se**2 if part else 0.0), wish**2 / 4)) ** 0.5
        count = int(min(most, max(count, round(count * (pilot.se / max(wish, 1e-300)) ** 2))))
        drawn = engine.probe(count, lambda mean: f"Tr(H) {base + mean.value:.4g} ± {mean.se:.2g}")
    if drawn is None:
        return _nothing()
    mean = traces.summarise(drawn, n, group)
    variance = mean.se**2 + (part.se**2 if part else 0.0)
    dof = variance**2 / max(mean.se**4 / mean.dof + (part.se**4 / part.dof if part else 0.0), 1e-300)
    sampling = traces.sampling_error(rows, drawn.groups, engine.problem.layout.weights, group)
    shared = int(engine.alive.sum())
    m = drawn.groups.shape[1]
    how = f"{part.how} + {m} probes of H - G on {shared} of {names} tensors" if part else f"{m} Hutchinson probes of H"
    found = _trace_estimate(engine, base + mean.value, variance**0.5, dof, sampling, how)
    spread = drawn.layers.std(1) / max(m, 1) ** 0.5 if m > 1 else torch.zeros(names, dtype=torch.float64)
    if part:
        spread = (spread.square() + part.layer_se.square()).sqrt()
    return Found([found], layers={"Tr(H)": layers + drawn.layers.mean(1), "± Tr(H)": spread})


@QUANTITIES.add(order=3)
def density(engine: Engine, *, steps: int = 40, probes: int = 1, sigma: float | None = None) -> Found:
    """Spectral density of H by Lanczos quadrature; the value is the share of eigenvalues below -sigma.

    `steps` products per probe; `sigma` is the width of the Gaussian (default: √1e-5 of the spectrum's range). The
    band is the error of random start vectors, in closed form. The first probe is the run that gives the eigenvalues.
    """
    shared = engine.shared
    run = engine.krylov
    engine.lanczos(lambda r: r.products / steps, steps, _text)
    if not run.steps:
        return _nothing()
    runs = [quadrature(run, steps)]
    for number in range(1, probes):
        other = engine.new_run(1000 * number)
        while not shared.stopped and other.steps < steps and not other.exhausted and other.restarts == 0:
            other.extend()
            shared.progress((number + other.steps / steps) / probes, f"density, probe {number + 1} of {probes}")
        if other.steps:
            runs.append(quadrature(other, steps))
    d = smooth(runs, engine.problem.size, sigma=sigma or 0.0)
    half = shared.half_width(d.negative_se, 1e9)
    estimate = Estimate(
        name="",
        value=d.negative,
        low=max(0.0, d.negative - half),
        high=min(1.0, d.negative + half),
        se=d.negative_se,
        unit="share of eigenvalues",
        how=f"share below -sigma; {len(runs)} × {len(runs[0][0])} Lanczos steps",
        detail={
            "sigma": d.sigma,
            "smallest_node": float(d.nodes.min()),
            "largest_node": float(d.nodes.max()),
            "estimator_low": max(0.0, d.negative - half),
            "estimator_high": min(1.0, d.negative + half),
            "sampling_se": None,
        },
    )
    return Found([estimate], plots=[figures.density(d, shared.half_width(1.0, 1e9))])


@QUANTITIES.add(order=4)
def lambda_max(engine: Engine, *, tol: float = 1e-3, bound: Bound = "residual") -> Found:
    """Largest eigenvalue of H by Lanczos, to a relative error `tol`.

    `bound=residual` stops on the Ritz residual and recomputes it with one true product, which also gives the sampling
    error; an eigenvalue lies within it (rigorous), that it is the largest is overwhelmingly likely but not proved.
    `bound=estimate` stops when residual²/gap and the last step are within it: sooner, and without the true product.
    """
    return _extreme(engine, -1, tol, bound)


@QUANTITIES.add(order=5)
def top(engine: Engine, *, k: int = 5, tol: float = 1e-3, bound: Bound = "residual") -> Found:
    """The k largest eigenvalues of H, each with its own residual (see lambda_max). Equal ones may count once."""
    k = min(k, engine.problem.size)

    def done(run: Lanczos) -> float:
        return min((_done(run, -i, tol, bound) if i <= len(run.basis) else 0.0) for i in range(1, k + 1))

    engine.lanczos(done, EVERY, _text)
    estimates = []
    for i in range(1, min(k, len(engine.krylov.basis)) + 1):
        found = _eigenvalue(engine, -i, tol, bound)
        estimates.append(replace(found, of=f"k={i}"))
    if not estimates:
        return _nothing()
    return Found(estimates, plots=[figures.eigenvalues(estimates)])


@QUANTITIES.add(order=6)
def lambda_min(engine: Engine, *, tol: float = 1e-3, bound: Bound = "residual") -> Found:
    """Smallest (most negative) eigenvalue of H by Lanczos (see lambda_max).

    `tol` is relative to its size, or to a hundredth of the largest eigenvalue's where that is more.
    """
    return _extreme(engine, 0, tol, bound)


def _extreme(engine: Engine, index: int, tol: float, bound: Bound) -> Found:
    engine.lanczos(lambda run: _done(run, index, tol, bound), EVERY, _text)
    if not engine.krylov.basis:
        return _nothing()
    found = _eigenvalue(engine, index, tol, bound)
    vector = engine.krylov.vector(engine.krylov.ritz().coordinates[:, index])
    shares = torch.stack([p.square().sum() for p in torch.split(vector, engine.problem.sizes)]).cpu()
    which = "λmax" if index else "λmin"
    return Found(
        [found], plots=[figures.convergence(engine.krylov, index, which)], layers={f"share of {which} vector": shares}
    )


def _eigenvalue(engine: Engine, index: int, tol: float, bound: Bound) -> Estimate:
    run = engine.krylov
    ritz = run.ritz()
    theta, error = float(ritz.values[index]), float(ritz.residuals[index])
    if bound == "estimate":
        error = ritz.value_error(index)
    certificate = engine.certificate(index) if bound == "residual" else None
    converged = _done(run, index, tol, bound) >= 1 or run.exhausted
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
            detail={
                "residual": float(ritz.residuals[index]),
                "estimator_low": theta - error,
                "estimator_high": theta + error,
                "sampling_se": None,
            },
        )
    return _certified(engine, certificate, run, converged, tol)


def _certified(engine: Engine, c: Certificate, run: Lanczos, converged: bool, tol: float) -> Estimate:
    half = engine.shared.half_width(c.sampling, c.groups - 1)
    shift = max(c.bias, 0.0), max(-c.bias, 0.0)  # sampling raises the top and lowers the bottom
    detail: dict[str, Cell] = {
        "residual": c.residual,
        "estimator_low": c.value - c.residual,
        "estimator_high": c.value + c.residual,
        "sampling_se": c.sampling,
        "sampling_bias": c.bias,
        "products": run.products + 1,
    }
    return Estimate(
        name="",
        value=c.value,
        low=c.value - c.residual - half - shift[0],
        high=c.value + c.residual + half + shift[1],
        se=c.sampling,
        how=f"{run.products} Lanczos products and a true one, which bounds the error by {c.residual:.2g}",
        reason="" if converged else f"not converged to {tol:g} after {run.products} products",
        detail=detail,
    )


def _done(run: Lanczos, index: int, tol: float, bound: Bound) -> float:
    """How far an eigenvalue is from its tolerance, 1 when there (on a logarithmic scale)."""
    ritz = run.ritz()
    scale = max(abs(float(ritz.values[index])), 0.01 * float(ritz.values.abs().max()))
    error = float(ritz.residuals[index])
    if bound == "estimate":  # the gap is an estimate too: the value must have come to rest as well
        column = 0 if index else 2
        moved = abs(run.history[-1][column] - run.history[-2][column]) if len(run.history) > 1 else error
        error = max(ritz.value_error(index), moved if index in (0, -1) else 0.0)
    if len(ritz.values) < 2 and not run.exhausted:
        return 0.0
    if error <= tol * scale or scale == 0.0:
        return 1.0
    return min(0.99, max(0.0, 1.0 - torch.log10(torch.tensor(error / (tol * scale))).item() / 4))


def _text(run: Lanczos) -> str:
    top, error, bottom, _ = run.history[-1]
    return f"λmax {top:.4g} ± {error:.1g}, λmin {bottom:.3g}, {run.products} products"


def _trace_estimate(engine: Engine, value: float, se: float, dof: float, sampling: float, how: str) -> Estimate:
    estimator = engine.shared.half_width(se, dof)
    over_rows = engine.shared.half_width(sampling, engine.problem.layout.groups - 1)
    half = (estimator**2 + over_rows**2) ** 0.5
    return Estimate(
        name="",
        value=value,
        low=value - half,
        high=value + half,
        se=(se**2 + sampling**2) ** 0.5,
        how=how,
        detail={
            "estimator_se": se,
            "estimator_low": value - estimator,
            "estimator_high": value + estimator,
            "sampling_se": sampling,
        },
    )


def _nothing(reason: str = "interrupted before the first result") -> Found:
    return Found([Estimate(name="", value=None, reason=reason)])
