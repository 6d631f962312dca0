"""Studies that need no training: properties of the focal loss and of its map as functions."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

import numpy as np

from calibcli.core.figure_data import Curve, Plot
from calibcli.core.result import Cell, Check, Result, Table
from calibcli.lab.study.experiment import SCREEN, Study
from calibcli.networks.losses.focal import critical_p, focal_factor, peak_p
from calibcli.scores.likelihood import log_phi, log_softmax
from calibcli.scores.predictions import Floats

GAMMAS = (0.5, 1.0, 2.0, 3.0, 5.0)
LIMITS = (1e-9, 0.5, 1.0, 2.0, 3.0)  # γ whose fewest classes are said
GRID = np.linspace(0.0005, 0.9995, 1999)  # probabilities

DRAWN = np.round(GRID[9::20], 4)  # points of the curves


def computed(study: Study, expect: bool = False) -> Result:
    """Return the result of a study that computes something by name.

    Args:
        expect: whether a claim that is reversed fails the run.
    """
    plots, tables, checks = COMPUTED[study.computes]()
    checks = [dataclasses.replace(check, fatal=expect) for check in checks]
    holding, reversed_ = (sum(check.outcome == one for check in checks) for one in ("pass", "fail"))
    headline = f"{len(checks)} claims, computed: {holding} hold{'s' * (holding == 1)}, {reversed_} reversed."
    facts = {"headline": headline, "study": study.name, "question": study.question, "paper": study.paper}
    facts |= {"command": f"calib study {study.name}", "cost": study.cost, "cite": study.bibtex}
    notes = ["computed on a grid, without training: no seeds, no rows, and so no intervals", *study.differs]
    plots = [dataclasses.replace(plot, tier="all") for plot in plots]
    return Result(command="study", plots=plots, tables=tables, checks=checks, facts=facts, notes=notes, screen=SCREEN)


Parts = tuple[list[Plot], list[Table], list[Check]]


def curvature_ratio(p: Floats, gamma: float) -> Floats:
    """FL'' / CE'' in the log-odds of the true class, `g - (1 - p) g'`, with g the ratio of the gradients."""
    log, complement = np.log(p), 1 - p
    slope = gamma * complement ** (gamma - 2) * (-2 * complement - complement * log + (gamma - 1) * p * log)
    return np.asarray(_factor(p, gamma) - complement * slope)


def focal_shape() -> Parts:
    """Compare gradient and curvature of the focal loss with those of cross-entropy, over the true class's p."""
    rows: list[list[Cell]] = []
    for gamma in (0.0, *GAMMAS):
        factor, ratio = _factor(GRID, gamma), curvature_ratio(GRID, gamma)
        above, below = GRID[ratio > 1 + 1e-9], GRID[ratio < 0]
        rows.append(
            [
                gamma,
                f"{critical_p(gamma):.3f}" if gamma else "",
                f"{factor.max():.3f}",
                f"{above.min():.3f} to {above.max():.3f}" if gamma else "",
                f"{ratio.max():.2f}",
                f"{below.max():.3f}" if gamma else "",
                f"{(factor * (1 - GRID)).max():.3f}",
            ]
        )
    heads = ["gamma", "g <= 1 from p", "largest g", "FL'' > CE'' for p", "largest FL''/CE''", "FL'' < 0 below p"]
    table = Table(name="shape", columns=[*heads, "largest slope"], rows=rows, title="The focal loss in the log-odds")
    slack, steepest = _entropy_slack(), [float(row[-1] or 0) for row in rows]
    checks = [
        _check("a larger gamma makes the curvature smaller at every p (Kimura and Naganuma, Equations 27 and 28)",
               not any(row[3] for row in rows), f"for gamma = 1 it is larger for p of {rows[2][3]}, up to "
               f"{rows[2][4]} times; for 5 up to {rows[-1][4]}"),
        _check("where p is near 1 the curvature vanishes (Equations 30 to 32)",
               bool(curvature_ratio(GRID[-1:], 1)[0] < 0.01), f"FL''/CE'' at p = {GRID[-1]} is "
               f"{curvature_ratio(GRID[-1:], 1)[0]:.2g} for gamma = 1, {curvature_ratio(GRID[-1:], 3)[0]:.2g} for 3"),
        _check("the Lipschitz constant of the loss in the log-odds falls with gamma (Equation 29)",
               bool((np.diff(steepest) < 0).all()), f"it grows: {', '.join(f'{s:g}' for s in steepest)}"),
        _check("focal loss is at least cross-entropy less gamma times the entropy (Mukhoti et al., Section 4)",
               slack > -1e-12, f"the least slack on the grid and on 20,000 random targets is {slack:.2g}"),
    ]  # fmt: skip
    plots = [
        _lines("g", "Gradient over cross-entropy's", _factor),
        _lines("ratio", "Curvature over cross-entropy's", curvature_ratio),
    ]
    return plots, [table], checks


def focal_map() -> Parts:
    """Examine the focal calibration map: the temperatures that bound it, and where it lowers the top probability."""
    odds = np.linspace(0.001, 40, 4000)
    binary: list[list[Cell]] = []
    many: list[list[Cell]] = []
    classes = (2, 3, 4, 10, 100)
    lowered: dict[int, list[float]] = {k: [] for k in classes}
    rng = np.random.default_rng(0)
    drawn = {k: np.log(rng.dirichlet(np.ones(k), 5000)) for k in classes}
    for gamma in GAMMAS:
        mapped = log_phi(np.stack([odds, np.zeros_like(odds)], axis=1), gamma)
        beta = (mapped[:, 0] - mapped[:, 1]) / odds
        for k, logits in drawn.items():
            top = log_phi(logits, gamma).max(axis=1)
            lowered[k].append(float((top < logits.max(axis=1) - 1e-12).mean()))
        inverse = np.interp(np.log(9.0), beta * odds, odds)
        at_nine = 1 / (1 + np.exp(-inverse))
        ranges = (_temperatures(drawn[k], gamma) for k in (3, 4, 10))
        many.append([gamma, *(f"{temperatures.min():.3f} to {temperatures.max():.3f}" for temperatures in ranges)])
        binary.append([gamma, f"{at_nine:.4f}", f"{1 / (1 + gamma):.4f}", f"{1 / beta.min():.4f}", f"{beta.max():.4f}"])
    between = all(float(str(row[4])) <= 1 + float(str(row[0])) for row in binary)
    fewest = next(k for k in classes if max(lowered[k]) > 0)
    tables = [
        Table(name="binary", columns=["gamma", "q of .9", "least T", "largest T", "largest 1/T"], rows=binary,
              title="Two classes: what is mapped to .9, and the temperatures that the map lies between"),
        Table(name="temperatures", columns=["gamma", *(f"K = {k}" for k in (3, 4, 10))], rows=many,
              title="Temperatures with the same top probability, at 5,000 points of the simplex, drawn evenly"),
        Table(name="lowered", columns=["gamma", *(f"K = {k}" for k in classes)],
              rows=[[g, *(f"{lowered[k][i]:.2%}" for k in classes)] for i, g in enumerate(GAMMAS)],
              title="Share of 5,000 points of the simplex, drawn evenly, whose top probability the map lowers"),
    ]  # fmt: skip
    checks = [
        _check("for two classes the map lies between two temperatures (Komisarenko and Kull)", between,
               f"1/T is at most 1 + gamma; for gamma = 1 T is in ({binary[1][2]}, {binary[1][3]}]"),
        _check("for more classes too it raises the top probability for every gamma > 0",
               not any(map(any, lowered.values())), f"with {fewest} classes it lowers that of "
               f"{max(lowered[fewest]):.2%} of points, with 100 of up to {max(lowered[100]):.0%}; near even "
               f"probabilities it lowers it from {_listed(LIMITS)} classes on"),
    ]  # fmt: skip
    pair = np.log(np.stack([DRAWN, 1 - DRAWN], axis=1))
    curves = [
        Curve(label=f"γ = {g:g}", kind="line", x=list(DRAWN), y=list(np.exp(log_phi(pair, g)[:, 0]))) for g in GAMMAS
    ]
    curves.append(Curve(label="", kind="line", role="ideal", x=[0, 1], y=[0, 1]))
    share = [Curve(label=f"K = {k}", kind="line", x=list(GAMMAS), y=lowered[k]) for k in classes]
    plots = [
        Plot(name="map", title="Two classes", xlabel="softmax", ylabel="after the map",
             xlim=(0, 1), ylim=(0, 1), curves=curves, group="The focal map"),
        Plot(name="lowered", title="Lowers the top probability", xlabel="γ", ylabel="share of points",
             curves=share, group="The focal map"),
    ]  # fmt: skip
    return plots, tables, checks


def fewest_classes(gamma: float) -> int:
    """Return the fewest classes with which the focal map lowers the top probability near even probabilities, γ > 0.

    φ is proportional to q / g(q), so ln φ of a class moves by 1 - q g'(q) / g(q) times what its ln q moves by: by less
    where g still rises at q = 1/K, which is where 1/K < `peak_p(γ)`.
    """
    return math.floor(1 / peak_p(gamma)) + 1


def _listed(gammas: Sequence[float]) -> str:
    return ", ".join(f"{fewest_classes(g)} (gamma {f'= {g:g}' if g > 0.01 else 'near 0'})" for g in gammas)


COMPUTED: dict[str, Callable[[], Parts]] = {"focal-shape": focal_shape, "focal-map": focal_map}


def _factor(p: Floats, gamma: float) -> Floats:
    return np.array([focal_factor(float(one), gamma) for one in p])


def _temperatures(logits: Floats, gamma: float) -> Floats:
    """Find the temperatures (N,) that give the map's top probability, by bisection in their logarithm."""
    wanted = log_phi(logits, gamma).max(axis=1)
    low, high = np.full(len(logits), -5.0), np.full(len(logits), 5.0)
    for _ in range(40):
        middle = (low + high) / 2
        above = log_softmax(logits / np.exp(middle)[:, None]).max(axis=1) > wanted
        low, high = np.where(above, middle, low), np.where(above, high, middle)
    temperatures: Floats = np.exp(low)
    return temperatures


def _lines(name: str, title: str, function: Callable[[Floats, float], Floats]) -> Plot:
    curves = [Curve(label=f"γ = {g:g}", kind="line", x=list(DRAWN), y=list(function(DRAWN, g))) for g in GAMMAS]
    curves.append(Curve(label="", kind="hline", role="ideal", y=[1.0]))
    return Plot(
        name=name, title=title, xlabel="p of the true class", ylabel="ratio", curves=curves, group="The focal loss"
    )


def _entropy_slack() -> float:
    """Compute the least of FL - CE + γ H(q) over targets t, where FL sums t (1 - q)^γ (-log q) over classes."""
    rng, least = np.random.default_rng(0), np.inf
    # hard labels of two classes on the grid, where the bound is tightest, and random soft ones
    targets = [(np.tile([1.0, 0.0], (len(GRID), 1)), np.stack([GRID, 1 - GRID], axis=1))]
    targets += [(rng.dirichlet(np.ones(k), 5000), rng.dirichlet(np.full(k, 0.5), 5000)) for k in (2, 3, 5, 7)]
    for t, q in targets:
        log = np.log(q)
        entropy = -(q * log).sum(axis=1)
        for gamma in GAMMAS:
            focal = -(t * (1 - q) ** gamma * log).sum(axis=1)
            least = min(least, float((focal + (t * log).sum(axis=1) + gamma * entropy).min()))
    return least


def _check(rule: str, holds: bool, message: str) -> Check:
    word = "holds" if holds else "reversed"
    return Check(rule=rule, outcome="pass" if holds else "fail", message=f"{word}: {message}")
