"""Every metric in the registry against a slow oracle written from its definition, one row at a time."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import calibcli
from calibcli import metrics
from calibcli.metrics import METRICS
from calibcli.scores.predictions import Predictions

VECTORS = json.loads((Path(__file__).parent / "vectors.json").read_text())
A, B = VECTORS["metrics_A"], VECTORS["metrics_B_edges"]


class Rows:
    """Probabilities and labels as plain lists, with the top label found by hand."""

    def __init__(self, logits: np.ndarray, labels: np.ndarray, positive: bool = False) -> None:
        self.z, self.y = [[float(v) for v in row] for row in logits], [int(v) for v in labels]
        self.n, self.k = len(self.y), len(self.z[0])
        self.p = []
        for row in self.z:
            e = [math.exp(v - max(row)) for v in row]
            self.p.append([v / math.fsum(e) for v in e])
        top = [row.index(max(row)) for row in self.z]
        self.c = [row[1] if positive else row[t] for row, t in zip(self.p, top)]
        self.a = [float(y == (1 if positive else t)) for y, t in zip(self.y, top)]

    def mean(self, value: Callable[[int], float], keep: Callable[[int], bool] = lambda i: True) -> float:
        kept = [value(i) for i in range(self.n) if keep(i)]
        return math.fsum(kept) / len(kept) if kept else math.nan

    def nll(self, i: int) -> float:
        row = self.z[i]
        return max(row) - row[self.y[i]] + math.log(math.fsum(math.exp(v - max(row)) for v in row))

    def entropy(self, i: int) -> float:
        return -math.fsum(q * math.log(q) for q in self.p[i] if q > 0)


def width_bins(r: Rows, bins: int = 15, edges: str = "right") -> list[list[int]]:
    found: list[list[int]] = [[] for _ in range(bins + 1)]
    for i, c in enumerate(r.c):
        for b in range(bins):
            low, high = b / bins, (b + 1) / bins
            inside = low < c <= high or (b == 0 and c == 0) if edges == "right" else low <= c < high
            if edges == "left" and c == 1 and b == bins - 1:
                inside = True
            if inside:
                found[b].append(i)
        if edges == "torchmetrics" and c == 1:
            found[bins].append(i)
    assert sum(map(len, found)) == r.n
    return [rows for rows in found if rows]


def mass_bins(r: Rows, bins: int = 15) -> list[list[int]]:
    order = sorted(range(r.n), key=lambda i: r.c[i])
    return [[int(i) for i in part] for part in np.array_split(np.array(order), bins) if len(part)]


def gaps(r: Rows, groups: list[list[int]], merge: bool = False) -> list[tuple[float, float, float]]:
    """(share, confidence, accuracy) of each bin."""
    hit = dict(enumerate(r.a))
    if merge:
        for value in set(r.c):
            same = [i for i in range(r.n) if r.c[i] == value]
            hit.update(dict.fromkeys(same, math.fsum(r.a[i] for i in same) / len(same)))
    return [
        (len(g) / r.n, math.fsum(r.c[i] for i in g) / len(g), math.fsum(hit[i] for i in g) / len(g)) for g in groups
    ]


def o_ece(r: Rows, **o: Any) -> float:
    return math.fsum(w * abs(c - a) for w, c, a in gaps(r, width_bins(r, **o)))


def o_adaece(r: Rows, bins: int = 15, method: str = "split-merge") -> float:
    if method == "mukhoti":
        ordered = np.sort(r.c)
        edges = np.interp(np.linspace(0, r.n, bins + 1), np.arange(r.n), ordered)
        parts = [[i for i in range(r.n) if lo < r.c[i] <= hi] for lo, hi in pairwise(edges)]
        return math.fsum(w * abs(c - a) for w, c, a in gaps(r, [g for g in parts if g]))
    return math.fsum(w * abs(c - a) for w, c, a in gaps(r, mass_bins(r, bins), method == "split-merge"))


def o_debiased(r: Rows, bins: int = 15) -> float:
    parts: list[list[int]] = [[] for _ in range(bins)]
    ends = np.cumsum([len(part) for part in mass_bins(r, bins)])
    for value in sorted(set(r.c)):  # ties stay together, where their middle falls
        tied = [i for i in range(r.n) if r.c[i] == value]
        middle = sum(r.c[i] < value for i in range(r.n)) + len(tied) / 2
        parts[int(np.sum(ends[:-1] <= middle))] += tied
    total = 0.0
    for w, c, a in gaps(r, [part for part in parts if part]):
        n = round(w * r.n)
        if n >= 2:
            total += w * ((a - c) ** 2 - a * (1 - a) / (n - 1))
    return total


def o_sweep(r: Rows) -> float:
    best = math.nan
    for bins in range(1, r.n + 1):
        table = gaps(r, mass_bins(r, bins), merge=True)
        if any(later[2] < earlier[2] - 1e-12 for earlier, later in pairwise(table)):
            break
        best = math.fsum(w * abs(c - a) for w, c, a in table)
    return best


def o_classwise(r: Rows, bins: int = 15, edges: str = "right", threshold: float = 0.0, norm: str = "l1") -> float:
    each = []
    for k in range(r.k):
        kept = [i for i in range(r.n) if threshold == 0 or r.p[i][k] > (threshold if threshold > 0 else 1 / r.k)]
        one = Rows.__new__(Rows)
        one.n, one.c, one.a = len(kept), [r.p[i][k] for i in kept], [float(r.y[i] == k) for i in kept]
        table = [(w * one.n / r.n, c, a) for w, c, a in gaps(one, width_bins(one, bins, edges))] if kept else []
        each.append(math.fsum(w * abs(c - a) ** (1 if norm == "l1" else 2) for w, c, a in table))
    mean = math.fsum(each) / r.k
    return mean if norm == "l1" else math.sqrt(mean)


def o_cutoff_error(r: Rows) -> float:
    """Over all intervals between two of the probabilities."""
    levels = sorted(set(r.c))
    gap = {v: math.fsum(c - a for c, a in zip(r.c, r.a) if c == v) / r.n for v in levels}
    return max(abs(math.fsum(gap[v] for v in levels[i:j])) for j in range(len(levels) + 1) for i in range(j))


def o_cutoff_loss(r: Rows) -> float:
    """At each probability as the break-even point, and just above it, over all other cutoffs."""
    worst = 0.0
    for t in set(r.c):
        for acts in (lambda c, t=t: c >= t, lambda c, t=t: c > t):
            stated = math.fsum(a - t for c, a in zip(r.c, r.a) if acts(c))
            best = max(math.fsum(a - t for c, a in zip(r.c, r.a) if c >= s) for s in (*set(r.c), 2.0))
            worst = max(worst, (best - stated) / r.n)
    return worst


def smoothed(r: Rows, sigma: float, points: int = 2500) -> float:
    """Midpoint rule over the reflected kernel, image by image."""
    t = (np.arange(points) + 0.5) / points
    total = np.zeros(points)
    for c, a in zip(r.c, r.a):
        for image in range(-6, 7, 2):
            for sign in (1, -1):
                total += (c - a) * np.exp(-(((t - sign * c + image) / sigma) ** 2) / 2)
    return float(np.abs(total).mean()) / (r.n * sigma * math.sqrt(2 * math.pi))


def o_smece(r: Rows, sigma: float | None = None) -> float:
    if sigma is not None:
        return smoothed(r, sigma)
    low, high = 1e-3, 1.0
    for _ in range(20):
        middle = (low + high) / 2
        low, high = (low, middle) if smoothed(r, middle, 400) < middle else (middle, high)
    return smoothed(r, high)


def o_mmce(r: Rows, scale: float = 0.4, weighted: bool = False, square: bool = False) -> float:
    right = math.fsum(r.a)
    total = 0.0
    for i in range(r.n):
        for j in range(r.n):
            k = math.exp(-abs(r.c[i] - r.c[j]) / scale)
            if not weighted:
                total += (r.c[i] - r.a[i]) * (r.c[j] - r.a[j]) * k / r.n**2
            elif r.a[i] and r.a[j]:
                total += (1 - r.c[i]) * (1 - r.c[j]) * k / right**2
            elif not r.a[i] and not r.a[j]:
                total += r.c[i] * r.c[j] * k / (r.n - right) ** 2
            elif r.a[i]:
                total -= 2 * (1 - r.c[i]) * r.c[j] * k / (right * (r.n - right))
    return total if square else math.sqrt(max(total, 0))


def o_kde(r: Rows) -> float:
    hits = [c for c, a in zip(r.c, r.a) if a]
    h = float(np.std(hits)) * (2 * r.n) ** -0.2
    t = (np.arange(8000) + 0.5) / 8000

    def density(values: list[float]) -> np.ndarray:
        total = np.zeros_like(t)
        for v in values:
            for centre in (v, -v, 2 - v):
                total += 35 / 32 / h * np.maximum(1 - ((t - centre) / h) ** 2, 0) ** 3
        return total / r.n

    f, g = density(r.c), density(hits)
    accuracy = np.minimum(1, np.divide(g, f, out=np.zeros_like(f), where=f > 0))
    return float((np.abs(t - accuracy) * f).mean())


def o_spiegelhalter(r: Rows) -> float:
    top = math.fsum((a - c) * (1 - 2 * c) for c, a in zip(r.c, r.a))
    return top / math.sqrt(math.fsum((1 - 2 * c) ** 2 * c * (1 - c) for c in r.c))


def o_cox(r: Rows) -> np.ndarray:
    from scipy.optimize import minimize

    x = np.array([math.log(c / (1 - c)) for c in r.c])
    a = np.array(r.a)
    found = minimize(
        lambda b: float(np.mean(np.logaddexp(0, b[0] + b[1] * x) - a * (b[0] + b[1] * x))),
        np.zeros(2),
        method="BFGS",
        options={"gtol": 1e-10},
    )
    return np.asarray(found.x)


def o_tail(z: list[float], y: int) -> float:
    margin = z[y] - max(other for k, other in enumerate(z) if k != y)
    return math.exp(-margin) if margin > 0 else 1.0


def o_temperature_gain(r: Rows) -> float:
    from scipy.optimize import minimize_scalar

    z, y = np.array(r.z), np.array(r.y)

    def nll(b: float, rows: np.ndarray) -> np.ndarray:
        s = b * (z[rows] - z[rows].max(axis=1, keepdims=True))
        return np.asarray(np.log(np.exp(s).sum(axis=1)) - s[np.arange(len(s)), y[rows]])

    x = [(i + 0x9E3779B97F4A7C15) % 2**64 for i in range(r.n)]  # SplitMix64, in whole numbers
    x = [(i ^ (i >> 30)) * 0xBF58476D1CE4E5B9 % 2**64 for i in x]
    x = [(i ^ (i >> 27)) * 0x94D049BB133111EB % 2**64 for i in x]
    fold, gain = np.empty(r.n, int), np.empty(r.n)
    one = nll(1.0, np.arange(r.n))
    fold[sorted(range(r.n), key=lambda i: (one[i], y[i]))] = [(i ^ (i >> 31)) % 5 for i in x]  # by NLL
    for f in range(5):
        fit, held = np.flatnonzero(fold != f), np.flatnonzero(fold == f)
        b = minimize_scalar(
            lambda v, rows=fit: float(nll(v, rows).mean()),
            bounds=(1e-3, 50),
            method="bounded",
            options={"xatol": 1e-10},
        ).x
        gain[held] = nll(1.0, held) - nll(b, held)
    return float(gain.mean())


def o_p_value(r: Rows) -> float:
    """Labels drawn anew from the confidences, row by row."""
    rng = np.random.default_rng(1)
    c, groups = np.array(r.c), width_bins(r)
    value, count, draws = o_ece(r), 0, 4000
    for _ in range(draws):
        a = rng.random(r.n) < c
        count += sum(abs(math.fsum(c[g] - a[g])) for g in groups) / r.n >= value - 1e-12
    return (1 + count) / (draws + 1)


def by_outcome(value: str, right: bool) -> Callable[[Rows], float]:
    return lambda r: r.mean(getattr(r, value), lambda i: bool(r.a[i]) == right)


def o_corp(r: Rows, part: str, log: bool = False) -> float:
    """max over starts of the min over ends of means, each tie one entry."""
    said = sorted(set(r.c))
    held = [[r.a[i] for i in range(r.n) if r.c[i] == c] for c in said]
    sums, sizes = np.cumsum([0, *map(math.fsum, held)]), np.cumsum([0, *map(len, held)])
    with np.errstate(divide="ignore", invalid="ignore"):
        mean = (sums[None, 1:] - sums[:-1, None]) / (sizes[None, 1:] - sizes[:-1, None])
    fit = [max(min(mean[a, i:]) for a in range(i + 1)) for i in range(len(said))]

    def score(p: float, hit: float) -> float:
        own = p if hit else 1 - p
        return (-math.log(own) if own else math.inf) if log else (1 - own) ** 2

    base = r.mean(lambda i: r.a[i])
    own, best, rate = (
        r.mean(lambda i, p=p: score(p(i), r.a[i]))  # type: ignore[misc]
        for p in (lambda i: r.c[i], lambda i: fit[said.index(r.c[i])], lambda i: base)
    )
    return {"mcb": own - best, "dsc": rate - best, "unc": rate}[part]


def o_concordance(r: Rows) -> float:
    hits, misses = ([r.c[i] for i in range(r.n) if r.a[i] == a] for a in (1, 0))
    return math.fsum((c > d) + (c == d) / 2 for c in hits for d in misses) / len(hits) / len(misses)


def o_aurc(r: Rows) -> float:
    error = dict(enumerate(r.a))
    for value in set(r.c):  # ties share their errors
        same = [i for i in range(r.n) if r.c[i] == value]
        error.update(dict.fromkeys(same, 1 - math.fsum(r.a[i] for i in same) / len(same)))
    order = sorted(range(r.n), key=lambda i: -r.c[i])
    return math.fsum(math.fsum(error[i] for i in order[:k]) / k for k in range(1, r.n + 1)) / r.n


def both_scores(part: str) -> list[tuple[str, Callable[[Rows], float], float]]:
    name = f"corp_{part}"
    log = (f"{name}:score=log", lambda r: o_corp(r, part, log=True), 1e-10)
    return [(name, lambda r: o_corp(r, part), 1e-10), log]


def o_citl(r: Rows) -> float:
    from scipy.optimize import brentq

    def excess(a: float) -> float:
        return r.mean(lambda i: r.a[i] - (r.c[i] and 1 / (1 + (1 - r.c[i]) / r.c[i] * math.exp(-a))))  # 0 stays 0

    return float(brentq(excess, -60, 60, xtol=1e-14))


def o_distances(r: Rows) -> list[float]:
    """|p - π| by rising size, π on the curve of Cox's regression."""
    a, b = o_cox(r)
    return sorted(abs(c - 1 / (1 + math.exp(-a) * ((1 - c) / c) ** b)) for c in r.c)


def of_event(value: Callable[[float, int], float], keep: Callable[[float, int], bool]) -> Callable[[Rows], float]:
    """Return the mean of a function of P(event) and y over some rows of two classes."""
    return lambda r: r.mean(lambda i: value(r.p[i][1], r.y[i]), lambda i: keep(r.p[i][1], r.y[i]))


TWO = ("auc", "net_benefit", "sensitivity", "ppv")  # metrics of two classes alone
ORACLES: dict[str, list[tuple[str, Callable[[Rows], float], float]]] = {
    "accuracy": [("accuracy", lambda r: r.mean(lambda i: r.a[i]), 1e-12)],
    "nll": [("nll", lambda r: r.mean(r.nll), 1e-12)],
    "brier": [
        (
            "brier",  # halved for two classes
            lambda r: (
                r.mean(lambda i: math.fsum((q - (k == r.y[i])) ** 2 for k, q in enumerate(r.p[i]))) / (1 + (r.k == 2))
            ),
            1e-12,
        )
    ],
    "brier_top": [("brier_top", lambda r: r.mean(lambda i: (r.c[i] - r.a[i]) ** 2), 1e-12)],
    "mean_confidence": [("mean_confidence", lambda r: r.mean(lambda i: r.c[i]), 1e-12)],
    "confidence_gap": [("confidence_gap", lambda r: r.mean(lambda i: r.c[i] - r.a[i]), 1e-10)],
    "entropy": [("entropy", lambda r: r.mean(r.entropy), 1e-12)],
    "entropy_correct": [("entropy_correct", by_outcome("entropy", True), 1e-12)],
    "entropy_wrong": [("entropy_wrong", by_outcome("entropy", False), 1e-12)],
    "nll_correct": [("nll_correct", by_outcome("nll", True), 1e-11)],
    "nll_wrong": [("nll_wrong", by_outcome("nll", False), 1e-12)],
    "high_confidence_share": [
        ("high_confidence_share", lambda r: r.mean(lambda i: r.c[i] >= 0.99), 1e-12),
        ("high_confidence_share:tau=0.7", lambda r: r.mean(lambda i: r.c[i] >= 0.7), 1e-12),
    ],
    "high_confidence_accuracy": [
        ("high_confidence_accuracy", lambda r: r.mean(lambda i: r.a[i], lambda i: r.c[i] >= 0.99), 1e-12),
        ("high_confidence_accuracy:tau=0.7", lambda r: r.mean(lambda i: r.a[i], lambda i: r.c[i] >= 0.7), 1e-12),
    ],
    "ece": [
        ("ece", o_ece, 1e-11),
        ("ece:bins=7,edges=left", lambda r: o_ece(r, bins=7, edges="left"), 1e-11),
        ("ece:bins=4,edges=torchmetrics", lambda r: o_ece(r, bins=4, edges="torchmetrics"), 1e-11),
    ],
    "mce": [("mce", lambda r: max(abs(c - a) for _, c, a in gaps(r, width_bins(r))), 1e-11)],
    "ece_l2": [
        ("ece_l2", lambda r: math.sqrt(math.fsum(w * (c - a) ** 2 for w, c, a in gaps(r, width_bins(r)))), 1e-11)
    ],
    "oce": [("oce", lambda r: math.fsum(w * max(c - a, 0) for w, c, a in gaps(r, width_bins(r))), 1e-11)],
    "uce": [("uce", lambda r: math.fsum(w * max(a - c, 0) for w, c, a in gaps(r, width_bins(r))), 1e-11)],
    "overconfidence_error": [
        (
            "overconfidence_error",
            lambda r: math.fsum(w * c * max(c - a, 0) for w, c, a in gaps(r, width_bins(r))),
            1e-11,
        )
    ],
    "adaece": [
        ("adaece", o_adaece, 1e-11),
        ("adaece:bins=7", lambda r: o_adaece(r, 7), 1e-11),
        ("adaece:method=split", lambda r: o_adaece(r, method="split"), 1e-11),
        ("adaece:method=mukhoti", lambda r: o_adaece(r, method="mukhoti"), 1e-11),
    ],
    "ece2_debiased": [
        ("ece2_debiased", o_debiased, 1e-10),
        ("ece2_debiased:bins=6", lambda r: o_debiased(r, 6), 1e-10),
    ],
    "ece_sweep": [("ece_sweep", o_sweep, 1e-11)],
    "classwise_ece": [
        ("classwise_ece", o_classwise, 1e-11),
        ("classwise_ece:bins=8,edges=left", lambda r: o_classwise(r, 8, "left"), 1e-11),
        ("classwise_ece:threshold=-1", lambda r: o_classwise(r, threshold=-1), 1e-11),
        ("classwise_ece:threshold=0.25", lambda r: o_classwise(r, threshold=0.25), 1e-11),
        ("classwise_ece:norm=l2", lambda r: o_classwise(r, norm="l2"), 1e-11),
    ],
    "smece": [
        ("smece", o_smece, 2e-5),
        ("smece:sigma=0.03", lambda r: o_smece(r, 0.03), 3e-6),
        ("smece:sigma=0.3", lambda r: o_smece(r, 0.3), 1e-6),
    ],
    "kde_ece": [("kde_ece", o_kde, 1e-4)],
    "mmce": [
        ("mmce", o_mmce, 1e-9),
        ("mmce:width=0.1", lambda r: o_mmce(r, 0.1), 1e-9),
        ("mmce:weighted=true", lambda r: o_mmce(r, weighted=True), 1e-9),
        ("mmce:square=true", lambda r: o_mmce(r, square=True), 1e-9),
    ],
    "cutoff_error": [("cutoff_error", o_cutoff_error, 1e-11)],
    "cutoff_loss": [("cutoff_loss", o_cutoff_loss, 1e-11)],
    "spiegelhalter_z": [("spiegelhalter_z", o_spiegelhalter, 1e-11)],
    "calibration_p": [("calibration_p", o_p_value, 0.1)],
    "cox_slope": [("cox_slope", lambda r: float(o_cox(r)[1]), 1e-5)],
    "cox_intercept": [("cox_intercept", lambda r: float(o_cox(r)[0]), 1e-5)],
    "citl": [("citl", o_citl, 1e-8)],
    "ici": [("ici", lambda r: math.fsum(o_distances(r)) / r.n, 1e-4)],
    "e50": [("e50", lambda r: o_distances(r)[math.ceil(0.5 * r.n) - 1], 1e-4)],
    "e90": [("e90", lambda r: o_distances(r)[math.ceil(0.9 * r.n) - 1], 1e-4)],
    "emax": [("emax", lambda r: o_distances(r)[-1], 1e-4)],
    "net_benefit": [
        (spec, of_event(lambda p, y, t=t: (p >= t) * (y - (1 - y) * t / (1 - t)), lambda p, y: True), 1e-12)  # type: ignore[misc]
        for spec, t in (("net_benefit", 0.5), ("net_benefit:at=0.1", 0.1), ("net_benefit:at=0.73", 0.73))
    ],
    "sensitivity": [
        ("sensitivity", of_event(lambda p, y: p >= 0.5, lambda p, y: y == 1), 1e-12),
        ("sensitivity:at=0.9", of_event(lambda p, y: p >= 0.9, lambda p, y: y == 1), 1e-12),
    ],
    "ppv": [
        ("ppv", of_event(lambda p, y: y, lambda p, y: p >= 0.5), 1e-12),
        ("ppv:at=0.2", of_event(lambda p, y: y, lambda p, y: p >= 0.2), 1e-12),
    ],
    "observed_expected": [("observed_expected", lambda r: r.mean(lambda i: r.a[i]) / r.mean(lambda i: r.c[i]), 1e-12)],
    "margin_tail": [("margin_tail", lambda r: r.mean(lambda i: o_tail(r.z[i], r.y[i])), 1e-12)],
    "temperature_gain": [("temperature_gain", o_temperature_gain, 1e-6)],
    **{f"corp_{part}": both_scores(part) for part in ("mcb", "dsc", "unc")},
    "auc": [("auc", lambda r: o_concordance(Rows(np.array(r.z), np.array(r.y), positive=True)), 1e-11)],
    "failure_auroc": [("failure_auroc", o_concordance, 1e-11)],
    "aurc": [("aurc", o_aurc, 1e-11)],
}


def data(seed: int, n: int = 180, k: int = 4, scale: float = 3.0) -> tuple[np.ndarray, np.ndarray]:
    """Overconfident logits, with repeated rows and some saturated ones."""
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(n, k)) * scale
    p = np.exp(z / 1.6) / np.exp(z / 1.6).sum(axis=1, keepdims=True)
    y = (p.cumsum(axis=1) > rng.random((n, 1))).argmax(axis=1)
    z[5:25] = z[5]
    z[30:33] = 0
    z[40:44] = [9.0] + [0.0] * (k - 1)
    return z, y


def value(spec: str, z: np.ndarray, y: np.ndarray, **fields: Any) -> float:
    (estimate,) = metrics.measure(Predictions.of(z, y, **fields), [spec])
    assert estimate.name == spec
    assert estimate.value is not None, estimate.reason
    return estimate.value


def test_every_metric_has_an_oracle() -> None:
    assert set(ORACLES) == {entry.name for entry in METRICS}, "write its oracle in ORACLES: CONTRIBUTING, A metric"


CASES = [(spec, oracle, rtol) for entries in ORACLES.values() for spec, oracle, rtol in entries]


@pytest.mark.parametrize(("spec", "oracle", "rtol"), CASES, ids=[c[0] for c in CASES])
@pytest.mark.one_in(7)
def test_metric_equals_its_oracle(spec: str, oracle: Callable[[Rows], float], rtol: float) -> None:
    seeds = (8,) if spec == "calibration_p" else (0, 3)
    for seed in seeds:
        z, y = data(seed, k=2 if spec.partition(":")[0] in TWO else 4)
        z = z / 1.5 if spec == "calibration_p" else z  # nearly calibrated: a p-value to compare
        wanted = oracle(Rows(z, y))
        got = value(spec, z, y)
        assert got == pytest.approx(wanted, rel=rtol, abs=1e-13)
        if spec != "calibration_p":
            assert got * 1.01 != pytest.approx(wanted, rel=rtol, abs=1e-13), "a 1 % error would pass"


OF_POSITIVE = [
    name
    for name, entry in METRICS.entries.items()
    if "of" in entry.options and entry.options["of"].default == "auto" and name != "calibration_p"
]


@pytest.mark.parametrize("name", OF_POSITIVE)
@pytest.mark.one_in(5)
def test_positive_class_of_two(name: str) -> None:
    z, y = data(1, k=2, scale=2.0)
    z[40:44] = [[3.0, 0.0]]
    _, oracle, rtol = ORACLES[name][0]
    for spec in (name, f"{name}:of=positive"):
        (estimate,) = metrics.measure(Predictions.of(z, y), [spec])
        assert (estimate.name, estimate.value) == (name, pytest.approx(oracle(Rows(z, y, positive=True)), rel=rtol))
    assert value(f"{name}:of=top", z, y) == pytest.approx(oracle(Rows(z, y)), rel=rtol)


def test_calibration_p_is_the_count_of_draws() -> None:
    """With two rows in one bin the binomial is known: p = P(|gap| at least as large)."""
    z = np.log([[0.8, 0.2], [0.8, 0.2]])
    p = value("calibration_p:draws=40000", z, np.array([0, 1]))  # hits 1 of 2: gap .3; 2 hits: gap .2; 0: .8
    assert p == pytest.approx(0.32 + 0.04, rel=0.02)
    assert value("calibration_p:draws=40000", z, np.array([0, 0])) == pytest.approx(1.0, rel=1e-3)


WEIGHTED = [name for name in ORACLES if name not in ("calibration_p", "temperature_gain", "kde_ece")]


@pytest.mark.parametrize("name", WEIGHTED)
def test_counts_are_repetitions(name: str) -> None:
    z, y = data(2, 120, 2 if name in TWO else 4)
    w = np.random.default_rng(0).integers(0, 4, len(y))
    z[w == 0] = 1.0  # rows of weight 0 must not matter
    repeated = value(name, np.repeat(z, w, axis=0), np.repeat(y, w))
    assert value(name, z, y, weights=w.astype(float), weight_kind="count") == pytest.approx(repeated, rel=1e-6)


@pytest.mark.regression("5 the shift")
@pytest.mark.parametrize("name", [n for n in ORACLES if n != "calibration_p"])
def test_row_order_and_shift_do_not_matter(name: str) -> None:
    z, y = data(4, 120, 2 if name in TWO else 4)
    order = np.random.default_rng(0).permutation(len(y))
    shift = np.random.default_rng(1).normal(size=(len(y), 1))
    assert (abs(shift) > 0.1).any()
    assert value(name, (z + shift)[order], y[order]) == pytest.approx(value(name, z, y), rel=1e-9)


@pytest.mark.parametrize("how", ["plain", "weights", "groups"])
@pytest.mark.one_in(3)
def test_row_order_does_not_matter_where_scores_are_tied(how: str) -> None:
    """Neither for values nor for bounds and null levels."""
    rng, z, y = np.random.default_rng(3), *data(5, 400, 2)
    z = np.round(z)
    design = {
        "plain": {},
        "weights": {"weights": rng.exponential(size=len(y))},
        "groups": {"group": np.arange(400) % 40},
    }
    order = rng.permutation(len(y))
    one = calibcli.measure(z, y, *ORACLES, **design[how])
    other = calibcli.measure(z[order], y[order], *ORACLES, **{key: v[order] for key, v in design[how].items()})
    for name in ORACLES:
        for field in ("value", "low", "high", "null", "null_high"):
            a, b = getattr(one[name], field), getattr(other[name], field)
            assert (a is None) == (b is None), (name, field)
            assert a is None or a == pytest.approx(b, rel=1e-6, abs=1e-9), (name, field)


EXPECTED_A = {
    "accuracy": "accuracy",
    "mean_conf": "mean_confidence",
    "nll": "nll",
    "brier_sum": "brier",
    "brier_top": "brier_top",
    "entropy_correct": "entropy_correct",
    "entropy_incorrect": "entropy_wrong",
    "overconf_signed": "confidence_gap",
    "spiegelhalter_z_top": "spiegelhalter_z",
    "classwise10_mean": "classwise_ece:bins=10",
    "classwise15_mean": "classwise_ece",
}
NORMS = {
    "l1": "ece",
    "l2": "ece_l2",
    "max": "mce",
    "oce": "oce",
    "uce": "uce",
    "oe_thulasidasan": "overconfidence_error",
}
EDGES = {
    "right_closed": "right",
    "left_closed_torchmetrics": "torchmetrics",
    "torchmetrics_extra_bin": "torchmetrics",
    "left_closed_last_closed": "left",
}


def vector_cases() -> list[tuple[str, str, float]]:
    expected = A["expected"]
    cases = [("A", spec, expected[key]) for key, spec in EXPECTED_A.items()]
    for bins in (10, 15):
        for key, edges in EDGES.items():
            table = expected.get(f"ew{bins}_{key}", {})
            cases += [("A", f"{NORMS[n]}:bins={bins},edges={edges}", table[n]) for n in NORMS if n in table]
        for key, method in (("array_split", "split"), ("array_split", "split-merge"), ("mukhoti_code", "mukhoti")):
            table = expected[f"em{bins}_{key}"]
            cases.append(("A", f"adaece:bins={bins},method={method}", table["l1"]))
            cases.append(("A", f"ece2_debiased:bins={bins},method={method}", table["l2sq_debiased"]))
    for key, table in B["expected"].items():
        bins, edges = key.split("_", 1)
        cases += [("B", f"{n}:bins={bins[1:]},edges={EDGES[edges]},of=top", table[n]) for n in ("ece", "mce")]
    return cases


@pytest.mark.parametrize(("which", "spec", "wanted"), vector_cases(), ids=lambda v: v if isinstance(v, str) else "")
def test_vectors(which: str, spec: str, wanted: float) -> None:
    source = A if which == "A" else B
    with np.errstate(divide="ignore"):
        predictions = Predictions.of(np.log(source["probs"]), source["labels"])
    (estimate,) = metrics.measure(predictions, [spec])
    assert estimate.value == pytest.approx(wanted, rel=1e-12)
    assert estimate.value * 1.01 != pytest.approx(wanted, rel=1e-12)


def test_vector_smooth() -> None:
    expected = A["expected"]
    z = np.log(A["probs"])
    assert value("smece", z, A["labels"]) == pytest.approx(expected["smece"]["value"], rel=expected["smece"]["rtol"])
    r = Rows(z, A["labels"])
    for sigma, wanted in expected["smece_fixed_sigma"].items():
        got = value(f"smece:sigma={float(sigma):g}", z, A["labels"])
        assert got == pytest.approx(wanted, rel=2e-6)  # those numbers are a quadrature; ours is exact:
        assert got == pytest.approx(smoothed(r, float(sigma), 40_000), rel=2e-8)


def test_vector_mmce() -> None:
    v = VECTORS["mmce"]
    c, a = np.array(v["conf"]), np.array(v["correct"])
    rest = (1 - c) / 2  # three classes, so that the top label is the first whatever its confidence >= 1/3
    z, y = np.log(np.stack([c, rest, rest], axis=1)), np.where(a == 1, 0, 1)
    assert value("mmce:square=true", z, y) == pytest.approx(v["mmce_sq"], rel=1e-12)
    assert value("mmce", z, y) == pytest.approx(v["mmce"], rel=1e-12)
    assert value("mmce:weighted=true,square=true", z, y) == pytest.approx(v["mmce_w_sq"], rel=1e-12)
