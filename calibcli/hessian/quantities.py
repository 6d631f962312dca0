"""The shelf: what can be asked of a loss around a checkpoint. Each returns estimates with both errors."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated

import torch

from calibcli.hessian import estimates as say
from calibcli.hessian import figures, tuning
from calibcli.hessian import trace as traces
from calibcli.hessian.density import density as smooth
from calibcli.hessian.density import quadrature
from calibcli.hessian.engine import Engine
from calibcli.hessian.estimates import Bound, closeness, eigenvalue, progress_text, trace_estimate, trace_of_pairs
from calibcli.hessian.ggn import GGNTrace
from calibcli.hessian.lanczos import Lanczos
from calibcli.hessian.operator import mean_gradient
from calibcli.hessian.vectors import norm
from calibcli.plots import Plot
from calibcli.result import Estimate
from calibcli.shelves import Shelf
from calibcli.spec import Positive, Range

DEFAULT = ("lambda_max", "lambda_min", "top", "trace", "trace_ggn", "density", "grad_norm")
"""What is measured when nothing is asked for."""
QUANTITIES = Shelf("curvature quantity", package="calibcli.hessian", first=DEFAULT)

Precision = Annotated[float, Range(1e-12, 1)]
Probes = Annotated[int, Range(1, 1_000_000)]
Steps = Annotated[int, Range(1, 100_000)]
EVERY = 400  # products after which an eigenvalue that has not converged is reported as it is


@dataclass
class Found:
    """What a quantity gives: estimates (named by the caller), figures, values per parameter tensor, remarks."""

    estimates: list[Estimate]
    plots: list[Plot] = field(default_factory=list)
    layers: dict[str, torch.Tensor] = field(default_factory=dict)  # column of the layer table -> (tensors,)
    notes: list[str] = field(default_factory=list)


@QUANTITIES.add(order=0)
def grad_norm(engine: Engine) -> Found:
    """‖∇‖ of the mean loss.

    The interval is over rows (delta method); `noise` is √(tr Σ / N), the norm to expect of a zero gradient.
    In units of the loss (nats for `ce`) per unit of weight. Ours: the delta method on the norm of the mean gradient.

    >>> round(calibcli.curvature(model, None, "grad_norm", device="cpu")["grad_norm"].value, 2)
    0.66
    """
    if engine.shared.stopped:
        return _nothing()
    g = mean_gradient(engine.hessian)
    value = norm(g.vector)
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
    return Found([estimate], layers={"gradient norm": torch.stack([p.norm() for p in pieces]).double().cpu()})


@QUANTITIES.add(order=1, tier="asked")
def trace_ggn(engine: Engine, *, precision: Precision | None = None, exact: bool = False) -> Found:
    """Tr(G) of the Gauss-Newton matrix, equal to the Fisher matrix for cross-entropy.

    Pairs (row, class) of weight in the loss's Hessian in the logits: the heavy ones exactly, the rest by importance
    sampling until the standard error is `precision` of the value (default: 0.3 of the sampling error). `exact` takes
    every pair. In units of the loss (nats for `ce`) per squared unit of weight (Schraudolph 2002; Martens 2020).

    >>> round(calibcli.curvature(model, None, "trace_ggn:exact=true", device="cpu")["trace_ggn"].value, 1)
    73.1
    """
    if not engine.splits:
        return _nothing(f"the loss does not split, and {engine.problem.classes} classes are too many to split it")
    part = engine.ggn(precision or engine.default_precision, exact)
    if part is None:
        return _nothing()
    found = trace_of_pairs(engine, part, part.how)
    layers = {"Tr(G)": part.layers, "± Tr(G)": part.layer_se}
    return Found(
        [found],
        layers=layers,
        notes=[*say.missed(engine, found, precision, "trace_ggn"), *say.dominating(engine, part)],
    )


@QUANTITIES.add(order=2)
def trace(
    engine: Engine,
    *,
    precision: Precision | None = None,
    probes: Probes | None = None,
    exact: bool = False,
    most: Probes = 1024,
) -> Found:
    """Tr(H), as Tr(G) from weighted pairs plus Tr(H - G) by Hutchinson probes where it does not vanish.

    `precision` is the relative standard error to reach (default: 0.3 of the sampling error, or 0.02 where the loss does
    not split into pairs); `probes` fixes the number of probes of a row instead; after a pilot that decides it, at most
    `most` are spent on average. `exact` takes every pair and every diagonal element, as is done unasked where that
    takes fewer products. In units of the loss (nats for `ce`) per squared unit of weight (Hutchinson 1990).

    >>> round(calibcli.curvature(model, None, "trace:exact=true", device="cpu")["trace"].value, 1)
    73.1
    """
    precision = precision or (None if engine.splits else 0.02)
    share = tuning.PAIRS_SHARE if bool(engine.has_curvature.any()) else 0.8
    part = engine.ggn(share * (precision or engine.default_precision), exact) if engine.splits else None
    if engine.splits and part is None:
        return _nothing()
    if part and not bool(engine.has_curvature.any()):
        how = f"{part.how}; H - G has no diagonal (the logits are linear in each parameter tensor)"
        found = trace_of_pairs(engine, part, how)
        notes = [*say.missed(engine, found, precision, "trace"), *say.dominating(engine, part)]
        return Found([found], layers={"Tr(H)": part.layers}, notes=notes)
    base = part.value if part else 0.0
    layout = engine.problem.layout
    elements = int(torch.tensor(engine.problem.sizes)[engine.has_curvature].sum())
    early = traces.pilot(layout.n)
    if exact or (probes is None and early >= elements):
        return _nothing() if engine.shared.stopped else _trace_of_diagonal(engine, part)
    drawn = engine.probe(0, probes or early, base)
    if drawn is None:
        return _nothing()
    if probes is None:
        count, cell = _probes_needed(engine, part, drawn, precision, most, elements)
        if not bool(count.any()):
            return _nothing() if engine.shared.stopped else _trace_of_diagonal(engine, part)
        drawn = engine.probe(early, count, base, cell=cell) or drawn
    mean = traces.summarise(drawn, layout.n, engine.steepness)
    how = f"{drawn.each:.0f} Hutchinson probes of H"
    if part:
        on = f"{int(engine.has_curvature.sum())} of {len(engine.problem.tensors)}"
        how = f"{part.how} + {drawn.each:.0f} probes of H - G on {on} tensors"
    known = drawn.forms[:, 0] < min(2, probes or 2)  # cells that were taken exactly
    if bool(known.any()):
        how += f", and all its diagonal in {int(known.sum())} of {len(known)} cells of rows"
    variance = mean.se**2 + (part.se**2 if part else 0.0)
    dof = variance**2 / max(mean.se**4 / mean.dof + (part.se**4 / part.dof if part else 0.0), 1e-300)
    sums, noise = traces.by_group(drawn, layout)
    found = _trace_over_groups(engine, part, sums, noise, mean.value, how, variance**0.5, dof)
    whole: traces.Probes | None = drawn
    if not drawn.layers.shape[1]:  # the parts of the tensors need whole products, and get a few
        few = max(early, round(drawn.each) // 16)
        apart = {"count": few * ~known, "cell": drawn.cell} if bool(known.any()) else {"count": few}
        whole = engine.probe(0, base=base, layers=True, **apart)
    notes = [*say.missed(engine, found, precision, "trace"), *(say.dominating(engine, part) if part else [])]
    if whole is None:
        return Found([found], notes=notes)
    layers, spread = traces.by_tensor(whole, layout.n)
    if part:
        layers, spread = layers + part.layers, (spread.square() + part.layer_se.square()).sqrt()
    return Found([found], layers={"Tr(H)": layers, "± Tr(H)": spread}, notes=notes)


def _probes_needed(
    engine: Engine, part: GGNTrace | None, pilot: traces.Probes, precision: float | None, most: int, elements: int
) -> tuple[torch.Tensor, int]:
    """(cells,) probes to take after a pilot, 0 where the `elements` of the diagonal are fewer, and the rows of a cell.

    The pilot serves for nothing else: a mean that helped to decide how many there are would be biased.
    """
    layout = engine.problem.layout
    base, se = (part.value, part.se) if part else (0.0, 0.0)
    size = abs(base + traces.summarise(pilot, layout.n).value)
    rows = part.rows if part else torch.zeros(layout.n, dtype=torch.float64)
    sampling = traces.sampling_error(rows, *traces.by_group(pilot, layout), layout)
    wish = precision * size if precision else max(tuning.SHARE * sampling, 1e-3 * size)
    wish = max(wish**2 - se**2, wish**2 / 4) ** 0.5
    told, limits = (pilot, engine.steepness, wish, most), (engine.shared.level, elements)
    count = traces.allocate(*told, pilot.cell, *limits)
    few = bool(count.any()) and float(count.double().mean()) <= tuning.FINE
    if few or engine.prober.whole(tuning.FINE, 1):
        return count, pilot.cell
    return traces.allocate(*told, 1, *limits), 1


def _trace_of_diagonal(engine: Engine, part: GGNTrace | None) -> Found:
    """Every diagonal element of H - G: exact, and cheaper than probes where there are fewer elements than those."""
    layout = engine.problem.layout
    found = engine.diagonals(layout.group)
    sums, rest = found.sum(1), found.sum(0) / layout.n
    how = (f"{part.how} and " if part else "") + "every diagonal element" + (" of H - G" if part else "")
    se, dof = (part.se, part.dof) if part else (0.0, 1)
    trace = _trace_over_groups(engine, part, sums, torch.zeros_like(sums), float(rest.sum()), how, se, dof)
    return Found([trace], layers={"Tr(H)": rest + part.layers if part else rest})


def _trace_over_groups(
    engine: Engine,
    part: GGNTrace | None,
    sums: torch.Tensor,
    noise: torch.Tensor,
    rest: float,
    how: str,
    se: float,
    dof: float,
) -> Estimate:
    """Tr(G) + rest, whose sampling error is that between groups of rows."""
    layout = engine.problem.layout
    rows = part.rows if part else torch.zeros(layout.n, dtype=torch.float64)
    return trace_estimate(
        engine,
        (part.value if part else 0.0) + rest,
        how,
        se=se,
        dof=dof,
        sampling=traces.sampling_error(rows, sums, noise, layout),
        sampling_dof=layout.groups - 1,
        positive=False,
    )


@QUANTITIES.add(order=3, estimate="negative_fraction")
def density(engine: Engine, *, steps: Steps = 40, probes: Probes = 1, sigma: Positive | None = None) -> Found:
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
    estimate = Estimate(
        name="",
        value=d.negative,
        low=low,
        high=high,
        se=d.negative_se,
        unit="share of eigenvalues",
        how=f"share below -sigma; {len(runs)} × {len(runs[0].nodes)} Lanczos steps",
        detail={
            "sigma": d.sigma,
            "smallest_node": float(d.nodes.min()),
            "largest_node": float(d.nodes.max()),
            "quadrature_low": d.negative_least,
            "quadrature_high": d.negative_most,
            "estimator_low": low,
            "estimator_high": high,
            "sampling_se": None,
        },
    )
    return Found([estimate], plots=[figures.density(d, shared.half_width(1.0, 1e9))])


@QUANTITIES.add(order=4, certifies=True)
def lambda_max(engine: Engine, *, tol: Precision = 1e-3, bound: Bound = "residual") -> Found:
    """Largest eigenvalue of H by Lanczos, to a relative error `tol`.

    `bound=residual` stops on the Ritz residual and recomputes it from true products, which also give the sampling
    error; an eigenvalue lies within it (rigorous), that it is the largest is overwhelmingly likely but not proved.
    `bound=estimate` stops when residual²/gap and the last step are within it: sooner, and without a sampling error.
    In units of the loss (nats for `ce`) per squared unit of weight (Lanczos 1950; the residual's bound: Parlett 1980).

    >>> round(calibcli.curvature(model, None, "lambda_max", device="cpu")["lambda_max"].value, 1)
    15.7
    """
    return _extreme(engine, -1, tol, bound)


@QUANTITIES.add(order=5, certifies=True, tier="asked")
def top(engine: Engine, *, k: Steps = 5, tol: Precision = 1e-3, bound: Bound = "residual") -> Found:
    """The k largest eigenvalues of H, each with its own residual (see lambda_max). Equal ones may count once.

    In units of the loss (nats for `ce`) per squared unit of weight (Lanczos 1950; Parlett 1980).

    >>> round(calibcli.curvature(model, None, "top:k=2", device="cpu")["top", "k=2"].value, 1)
    13.1
    """
    k = min(k, engine.problem.size)

    def done(run: Lanczos) -> float:
        return min((closeness(run, -i, tol, bound) if i <= len(run.basis) else 0.0) for i in range(1, k + 1))

    engine.lanczos(done, EVERY, progress_text)
    estimates = []
    for i in range(1, min(k, len(engine.krylov.basis)) + 1):
        found = eigenvalue(engine, -i, tol, bound)
        estimates.append(replace(found, scope=f"k={i}"))
    if not estimates:
        return _nothing()
    return Found(estimates, plots=[figures.eigenvalues(estimates)])


@QUANTITIES.add(order=6, certifies=True)
def lambda_min(engine: Engine, *, tol: Precision = 1e-3, bound: Bound = "residual") -> Found:
    """Smallest (most negative) eigenvalue of H by Lanczos (see lambda_max).

    `tol` is relative to its size, or to a hundredth of the largest eigenvalue's where that is more.
    In units of the loss (nats for `ce`) per squared unit of weight (Lanczos 1950; Parlett 1980).

    >>> round(calibcli.curvature(model, None, "lambda_min", device="cpu")["lambda_min"].value, 2)
    -0.19
    """
    return _extreme(engine, 0, tol, bound)


def _extreme(engine: Engine, index: int, tol: float, bound: Bound) -> Found:
    engine.lanczos(lambda run: closeness(run, index, tol, bound), EVERY, progress_text)
    if not engine.krylov.basis:
        return _nothing()
    found = eigenvalue(engine, index, tol, bound)
    vector = engine.krylov.vector(engine.krylov.ritz().coordinates[:, index])
    shares = torch.stack([p.square().sum() for p in torch.split(vector, engine.problem.sizes)]).double().cpu()
    which = "λmax" if index else "λmin"
    notes = say.dominating_group(engine, engine.certificate(index) if bound == "residual" else None, which)
    layers = {f"share of {which} vector": shares}
    return Found([found], plots=[figures.convergence(engine.krylov, index, which)], layers=layers, notes=notes)


def _nothing(reason: str = "interrupted before the first result") -> Found:
    return Found([Estimate(name="", value=None, reason=reason)])
