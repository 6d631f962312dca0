"""The temperature that minimises the NLL: the convex problem in β = 1/T, by a safeguarded third-order Newton iteration.

F(β) = mean[logsumexp(β z) - β z_y] is convex in β (a log-sum-exp of a linear map); in T it is unimodal but not convex.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calibcli.core.statistics import quantile, top_of, weighted_mean
from calibcli.scores.likelihood import moments
from calibcli.scores.likelihood.moments import Array, Block, Source, SumsAtBeta

Status = Literal["ok", "separable", "anti_informative", "constant", "bound"]

SMALL = 1 << 19  # logits: below, every pass is in float64
ENOUGH = 2.5e-9  # relative standard error of β at which a sampled correction is trusted: four of them are 1e-8
ROUGH = 0.015  # the same, wider, because the expansion around the last pass is checked afterwards
SETTLED = 1e-4  # |Δ ln β| after which the (third-order) step just made is accurate to rounding


@dataclass(frozen=True)
class BetaFit:
    """A fitted inverse temperature.

    Attributes:
        beta: 1/T; 0 when anti-informative, the cap when separable, the end that it is at when at the bound, 1 when
            constant.
        status: `ok`; `separable` (no row is wrong: the NLL falls for ever as T -> 0); `anti_informative` (F'(0) >= 0:
            the best β is not positive, T is infinite); `constant` (every row is constant: T does not matter);
            `bound` (the optimum lies beyond the cap or below 1e-6 / scale). The cap is 1e3 / scale, or 1e3 / margin
            where that is more: few scores far below all others do not bring it down.
        passes: full passes over the rows, rounded up (sub-sampled warm starts count in proportion).
        hessian: F''(β), nats per row.
        se: sandwich standard error of β, sqrt(Σ w² ψ²) / (Σ w F''), ψ = E z - z_y; None unless `ok`.
        n: rows.
        scale: median over rows of the standard deviation of the logits.
        margin: median over rows of the distance of the two largest.
    """

    beta: float
    status: Status
    passes: int
    hessian: float
    se: float | None
    n: int
    scale: float
    margin: float

    @property
    def temperature(self) -> float:
        return 1 / self.beta if self.beta else math.inf

    @property
    def usable(self) -> float:
        """β to apply: the optimum, 0 where the scores mislead, and 1 (leave alone) where no optimum exists.

        At the bound it is the end of the range where that is better than 1, as the NLL is convex: not a cap below 1.
        """
        better = self.status == "bound" and (self.beta >= 1 or self.beta * min(self.scale, self.margin) < 1)
        return self.beta if better or self.status in ("ok", "anti_informative") else 1.0


def fit_beta(
    logits: ArrayLike | Source,
    labels: ArrayLike | None = None,
    weights: ArrayLike | None = None,
    *,
    start: float | None = None,
) -> BetaFit:
    """Minimise the mean NLL of softmax(β z) over β > 0.

    Few scores are solved in float64. With many scores in few rows, float32 passes come near the optimum and
    float64 passes decide. With many rows, β starts from samples of the rows, and full passes with float32 exponentials
    follow; their rounding and the fourth-order remainder are measured against float64 on a random sample and removed.
    Where four standard errors of that correction exceed 1e-8 of β, a float64 pass decides. The relative error of β is
    below 1e-8.

    Args:
        logits: (N, K), or a function that returns a fresh iterable of blocks (logits, labels, weights or None).
        labels: (N,) integers in [0, K).
        weights: (N,) non-negative, or None.
        start: a β to start from.

    Raises:
        InputError: a true label has logit -inf.
    """
    arrays = None if callable(logits) else _arrays(logits, labels, weights)
    source: Source = cast(Source, logits) if arrays is None else lambda: (arrays,)
    return _Run(source, *_sample(source), arrays).fit(start)


def cross_fit_beta(
    logits: ArrayLike, labels: ArrayLike, folds: ArrayLike, weights: ArrayLike | None = None
) -> tuple[Array, list[BetaFit], BetaFit]:
    """Estimate what a re-fitted temperature would save on rows that it has not seen, by cross-fitting.

    Args:
        logits: (N, K).
        labels: (N,).
        folds: (N,) fold of each row, 0..F-1.
        weights: (N,) or None.

    Returns:
        gains: (N,) nll(z_i) - nll(z_i / T fitted without the fold of i), nats; the fit of each fold; and of all rows.
        Where many scores are in few rows, the folds' fits are of float32 exponentials, whose rounding is measured
        against float64 on some rows and removed: β has a relative error below 1e-6.
    """
    block = _arrays(logits, labels, weights)
    z, y, _ = block
    folds = np.asarray(folds)
    quick = (in_float32(z), y, block[2]) if z.size > SMALL else block
    every = _Run.of(quick)
    whole = every.fit(None, rounding=0.0)
    start = every.last if np.float64 in every.each else whole.beta
    rounding = _rounding(block, quick, whole.beta) if z.size > SMALL and whole.status == "ok" else 0.0
    fits = []
    for fold in range(int(folds.max()) + 1):
        rows = np.flatnonzero(folds != fold)
        run = _Run.of(_take(quick, rows), whole.scale)
        if whole.status != "ok":
            fits.append(run.fit(None, rounding))
            continue
        if every.complete:  # the first pass of all folds is at one β: it is made once
            run.known = start, partial(every.known_at, start, rows)
        fits.append(run.fit(start, rounding))
    betas = np.array([fit.usable for fit in fits])
    before, after = _nll_rows(z, y, [1.0, betas[folds]])
    return before - after, fits, whole


def in_float32(logits: NDArray[Any]) -> NDArray[Any]:
    """Return logits for float32 passes: float64 logits lose their row maximum first, which would cost digits."""
    if logits.dtype == np.float32:
        return logits
    with np.errstate(over="ignore"):
        return np.asarray((logits - top_of(logits)[:, None]).astype(np.float32))


def _rounding(block: Block, quick: Block, beta: float) -> float:
    """Return the systematic error of float32 exponentials: the mean over some rows of F'(β) in float64 minus F'(β) in
    float32.
    """
    some = np.arange(0, len(block[0]), max(1, len(block[0]) // 20))
    (z, y, w), (z32, _, _) = _take(block, some), _take(quick, some)
    difference = moments.expectation(z, y)(beta) - moments.series(z32, y, beta)[0]
    return float(np.average(difference, weights=w)) if w is None or w.any() else 0.0


def nll_rows(logits: ArrayLike, labels: ArrayLike, beta: float | Array = 1.0) -> Array:
    """Return -ln softmax(β z)_y of each row.

    Args:
        logits: (N, K).
        labels: (N,).
        beta: one number, or (N,).

    Returns:
        (N,) float64, nats.
    """
    return np.asarray(_nll_rows(*_arrays(logits, labels, None)[:2], [beta])[0])


def _nll_rows(z: NDArray[Any], y: NDArray[Any], betas: list[float | Array]) -> Array:
    """Return (B, N) `nll_rows` at each of B betas, in one pass."""
    result = np.empty((len(betas), len(z)))
    start = 0
    for part, labels_part, _ in moments.chunks((z, y, None)):
        rows = slice(start, start + len(part))
        start = rows.stop
        shifted, label_score, axis = moments.shift(part, labels_part, np.float64)
        for i, beta in enumerate(betas):
            slope = np.broadcast_to(np.asarray(beta, np.float64), (len(z),))[rows]
            with np.errstate(invalid="ignore"):  # 0 · -inf: a class with probability zero keeps it
                scaled = shifted * (slope if axis == 0 else slope[:, None])
                scaled[np.isnan(scaled)] = -np.inf
                result[i, rows] = np.log(np.exp(scaled, out=scaled).sum(axis=axis)) - slope * label_score
    return result


def _arrays(logits: Any, labels: Any, weights: Any) -> Block:
    z = np.asarray(logits)
    return (
        z if z.dtype.kind == "f" else z.astype(np.float64),
        np.asarray(labels),
        None if weights is None else np.asarray(weights, np.float64),
    )


def _sample(source: Source) -> tuple[int, Block]:
    """Return the number of rows, and rows drawn evenly over the data (all of them when there are few)."""
    blocks = source()
    if isinstance(blocks, tuple) and len(blocks) == 1:  # arrays in memory: no pass is needed
        n, count = len(blocks[0][0]), max(2000, SMALL // blocks[0][0].shape[1])
        if n <= 2 * count:
            return n, blocks[0]
        places = np.arange(count) + np.random.default_rng(0).random(count)  # one of each equal range
        drawn = (places * (n / count)).astype(np.int64)
        return n, _take(blocks[0], np.minimum(drawn, n - 1))
    kept: list[Block] = []
    n, stride, rng = 0, 1, np.random.default_rng(0)
    for block in blocks:
        limit = max(2000, SMALL // block[0].shape[1])
        kept.append(_take(block, np.flatnonzero(rng.random(len(block[0])) * stride < 1)))
        n += len(block[0])
        while sum(len(b[0]) for b in kept) > 2 * limit:
            stride *= 2
            kept = [_take(b, np.flatnonzero(rng.random(len(b[0])) < 0.5)) for b in kept]
    weights = None if kept[0][2] is None else np.concatenate([b[2] for b in kept if b[2] is not None])
    return n, (np.concatenate([b[0] for b in kept]), np.concatenate([b[1] for b in kept]), weights)


def _take(block: Block, rows: NDArray[Any]) -> Block:
    z, y, w = block
    return z[rows], y[rows], None if w is None else w[rows]


class _Run:
    """The passes of one fit over the rows."""

    def __init__(self, source: Source, n: int, sample: Block, arrays: Block | None, scale: float | None = None) -> None:
        self.source, self.n, self.sample, self.arrays = source, n, sample, arrays
        self.passes = 0.0 if arrays is not None else 1.0
        self.scale, self.margin = scale or spread(sample[0]), margin(sample[0])
        self.complete = len(sample[0]) == n
        self.last, self.each = 0.0, dict[Any, list[Array]]()
        self.known: tuple[float, Callable[[Any], list[Array]]] | None = None
        self.cap = max(1e3 / min(self.scale, self.margin), 1e-290)
        self.floor = max(1e-6 / self.scale, 1e-300)

    @classmethod
    def of(cls, block: Block, scale: float | None = None) -> _Run:
        """Prepare a fit on arrays in memory."""
        return cls(lambda: (block,), *_sample(lambda: (block,)), block, scale)

    def fit(self, start: float | None, rounding: float | None = None) -> BetaFit:
        """Find β. With many scores in few rows, float32 passes decide if `rounding` has their error of F'."""
        beta = start or 1 / self.scale
        if self.complete:
            z, y, _ = self.sample
            if z.dtype == np.float32 and z.size > SMALL:  # where float32 passes are faster than float64 passes
                near = self._descend(lambda b: self._pass(b, np.float32), beta)
                if near.status == "anti_informative":
                    return near  # which F'(0) alone decides
                if near.status == "ok":
                    wrong = np.any(z[np.arange(self.n), y] < top_of(z))  # else only float64 tells: separable
                    if rounding is not None and wrong and near.hessian > 0:
                        return dataclasses.replace(near, beta=near.beta - rounding / near.hessian)
                    beta = near.beta
            elif start is None and z.size > SMALL:
                beta = self._in_float32(beta)
            return self._descend(lambda b: self._pass(b, np.float64), beta)
        if start is None:
            beta = self._warm(beta)
        rough = self._descend(lambda b: self._pass(b, np.float32), beta, settled=ROUGH)
        if rough.status != "ok":
            return rough
        return self._refine(self._sums, self.last)

    def _pass(self, beta: float, dtype: Any) -> SumsAtBeta:
        self.passes += 1
        if self.complete:
            here = self.known and self.known[0] == beta
            self.each = {
                dtype: self.known[1](dtype) if self.known and here else moments.each_row(self.sample, beta, dtype)
            }
            self._sums = SumsAtBeta()
            moments.add(self._sums, self.sample[2], self.each[dtype])
        else:
            self._sums = moments.evaluate(self.source, beta, dtype)
        self.last = beta
        return self._sums

    def known_at(self, beta: float, rows: NDArray[Any], dtype: Any) -> list[Array]:
        """Return the numbers of each of these rows, taken from the last pass or from a new one over all rows."""
        if beta != self.last:
            self.last, self.each = beta, {}
        if dtype not in self.each:
            self.each[dtype] = moments.each_row(self.sample, beta, dtype)
        return [numbers[rows] for numbers in self.each[dtype]]

    def _in_float32(self, beta: float) -> float:
        """Return β near the optimum of many float64 scores, from passes over a float32 copy."""
        z, y, w = self.sample
        run = _Run.of((in_float32(z), y, w), self.scale)
        near = run._descend(lambda b: run._pass(b, np.float32), beta)
        self.passes += run.passes
        return near.beta if near.status == "ok" else beta

    def _warm(self, beta: float) -> float:
        """Return β from two parts of the rows: a solution on the first, one step on the other."""
        count = len(self.sample[0])
        eighth = _take(self.sample, np.arange(0, count, 8))
        level = _Run(lambda: (eighth,), len(eighth[0]), eighth, eighth, self.scale)
        fit = level._descend(lambda b: level._pass(b, np.float32), beta, settled=0.1)
        self.passes += level.passes * len(eighth[0]) / self.n
        if fit.status != "ok":
            return beta
        part: tuple[Block, ...] = (self.sample,)
        if self.arrays is not None and self.n > 16 * count:
            part = tuple(b for i, b in enumerate(moments.chunks(self.arrays, 1 << 17)) if i % 16 == 8)
        beta = _step(moments.evaluate(lambda: part, fit.beta, np.float32).means(), fit.beta)
        self.passes += sum(len(b[0]) for b in part) / self.n
        return min(max(beta, 10 * self.floor), self.cap / 10)

    def _refine(self, sums: SumsAtBeta, at: float) -> BetaFit:
        """Remove the error of float32 and of the truncated expansion, as measured in float64 on the sample."""
        for _ in range(2):
            beta = _root(sums.means(), at)
            error, se = self._difference(at, beta)
            slope, curvature = shifted(sums.means(), beta - at)
            if se <= ENOUGH * beta * curvature:
                beta -= (slope + error) / curvature
                return self._done(beta, sums, curvature)
            if abs(beta - at) < 1e-5 * beta:
                break
            at, sums = beta, self._pass(beta, np.float32)
        return self._descend(lambda b: self._pass(b, np.float64), _root(sums.means(), at))

    def _difference(self, at: float, beta: float) -> tuple[float, float]:
        """Return the mean over the sample of float64 F'_i(β) minus the float32 expansion about `at`, and its standard
        error.
        """
        differences, weights = [], []
        for z, y, w in moments.chunks(self.sample):
            differences.append(moments.expectation(z, y)(beta) - shifted(moments.series(z, y, at)[:4], beta - at)[0])
            weights.append(np.ones(len(y)) if w is None else w)
        return weighted_mean(np.concatenate(differences), np.concatenate(weights))

    def _descend(self, pass_at: Callable[[float], SumsAtBeta], beta: float, settled: float = SETTLED) -> BetaFit:
        """Take third-order steps in ln β inside a bracket, until a step is within `settled`."""
        low, high = 0.0, math.inf
        beta = first = min(max(beta, self.floor), self.cap)
        falls: bool | None = None  # whether F falls at β = 0: else it rises everywhere, as it is convex
        while True:
            sums = pass_at(beta)
            if sums.excess <= 0:
                constant = all(bool(np.all(b[0] == b[0][:, :1])) for b in self.source())
                return self._done(1.0 if constant else self.cap, sums, 0.0, "constant" if constant else "separable")
            slope, curvature = sums.means()[:2]
            low, high = (beta, high) if slope < 0 else (low, beta)
            if falls is None and low == 0 and beta < first / 4:
                falls = self._slope_at_zero() < 0
            if low == 0 and falls is False:
                return self._done(0.0, sums, curvature, "anti_informative")
            following = _step(sums.means(), beta)
            if abs(math.log(following / beta)) <= settled or slope == 0:
                return self._done(following, sums, shifted(sums.means(), following - beta)[1])
            if not low < following < high:
                following = math.sqrt(low * high) if low > 0 and high < math.inf else (8 * low or high / 8)
            if high <= self.floor or low >= self.cap:
                return self._done(beta, sums, curvature, "bound")
            if high < math.inf and high - low <= 1e-15 * high:
                return self._done(beta, sums, curvature)
            beta = min(max(following, self.floor), self.cap)

    def _slope_at_zero(self) -> float:
        """Return F'(0): the mean over rows of the mean logit minus that of the label, without logits of -inf."""
        total = weight = 0.0
        for z, y, w in moments.weighted(self.source):
            z, label_score, axis = moments.shift(z, y, np.float64)
            finite = np.isfinite(z)
            mean = np.where(finite, z, 0).sum(axis=axis) / finite.sum(axis=axis)
            total, weight = total + float(w @ (mean - label_score)), weight + float(w.sum())
        self.passes += 1
        return total / weight

    def _done(self, beta: float, sums: SumsAtBeta, hessian: float, status: Status = "ok") -> BetaFit:
        hessian = float(hessian)
        se = math.sqrt(sums.psi2) / (sums.weight * hessian) if status == "ok" and hessian > 0 else None
        return BetaFit(float(beta), status, math.ceil(self.passes), hessian, se, self.n, self.scale, self.margin)


def spread(logits: NDArray[Any]) -> float:
    """Return the median, over some rows, of the standard deviation of a row's finite logits; 1 if every row is
    constant.
    """
    count = min(500, max(20, SMALL // logits.shape[1]))
    z = np.asarray(logits[:: max(1, len(logits) // count)][:count], np.float64)
    finite = np.isfinite(z)
    spread = z.std(axis=1) if finite.all() else np.nanstd(np.where(finite, z, np.nan), axis=1)
    spread = spread[spread > 0]
    return quantile(spread, 0.5) if len(spread) else 1.0


def margin(logits: NDArray[Any]) -> float:
    """Return the median, over some rows, of the distance of the two largest logits where they differ; 1 if they never
    do.
    """
    count = min(500, max(20, SMALL // logits.shape[1]))
    z = np.asarray(logits[:: max(1, len(logits) // count)][:count], np.float64)
    second, first = np.partition(z, -2, axis=1)[:, -2:].T
    with np.errstate(invalid="ignore"):
        apart = first - second
    apart = apart[(apart > 0) & np.isfinite(apart)]
    return quantile(apart, 0.5) if len(apart) else 1.0


def _step(f: Array, beta: float) -> float:
    """Take Halley's step for F' = 0 in ln β, at most a factor of 8."""
    if not f[1] > 0:
        return beta * (8.0 if f[0] < 0 else 0.125)
    newton = -f[0] / (beta * f[1])
    bend = 1 + newton * (1 + beta * f[2] / f[1]) / 2
    step = newton / bend if bend > 0.3 else math.copysign(2.0, newton)
    return float(beta * math.exp(min(max(step, -2.08), 2.08)))


def shifted(f: Any, delta: float) -> tuple[Any, Any]:
    """Expand F' and F'' at β + δ from F' and its three derivatives at β (numbers or (N,)), to the order that these
    allow.
    """
    f1, f2, f3, f4 = f
    return f1 + delta * (f2 + delta * (f3 / 2 + delta * f4 / 6)), f2 + delta * (f3 + delta * f4 / 2)


def _root(f: Array, beta: float) -> float:
    """Return the root of the cubic expansion of F' about β, or Halley's step where the expansion does not reach."""
    delta = _step(f, beta) - beta
    if abs(delta) > 0.1 * beta:
        return beta + delta
    for _ in range(5):
        slope, curvature = shifted(f, delta)
        delta -= slope / curvature
    return float(beta + delta)
