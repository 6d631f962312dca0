"""The temperature that minimises the NLL: the convex problem in β = 1/T, by a safeguarded third-order Newton iteration.

F(β) = mean[logsumexp(β z) - β z_y] is convex in β (a log-sum-exp of a linear map); in T it is unimodal but not convex.
One pass over the rows gives F' to F'''' at one β (`moments`), as sums over rows in a `SumsAtBeta`, whose `means()` are
these four numbers. The question of this file is how few passes are enough, and how many of them may be in float32:

    rows                            passes
    few scores                      float64 alone, from β = 1 / (spread of the logits)
    many scores in few rows         float32 to near the optimum, then one or two in float64
    many rows                       first some of the rows; then float32; the error of float32, measured on some rows,
                                    is removed, or float64 follows where that is not precise enough

Why an optimum exists, and the step: docs/statistics/temperature.md.
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
SAMPLED = 2000  # rows of a sample at least; it has SMALL logits if these are more
ENOUGH = 2.5e-9  # relative standard error of β at which a sampled correction is trusted: four of them are 1e-8
SETTLED = 1e-4  # |Δ ln β| of a step after which it is accurate to rounding: it is of third order, its error about 1e-12
ROUGH = 0.015  # the same where the expansion around the last pass is checked afterwards on a sample (`_refine`)
FIRST = 0.1  # the same of the first part of a sample, as a step on other rows follows
CAP, FLOOR = 1e3, 1e-6  # range of β, over the spread of the logits
LEAST_CAP, LEAST_FLOOR = 1e-290, 1e-300  # of scores so large that the range would vanish
FACTOR = 8.0  # by which a step changes β at most
LONGEST = 2.08  # that step in ln β
BENT = 0.3  # where the denominator of Halley's step is below it, the expansion says only the direction of the optimum
TURNED = 2.0  # the step in ln β that is made then


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
        Where many scores are in few rows, these fits are of float32 exponentials. The rounding of the folds' fits is
        measured against float64 on some rows and removed. β then has a relative error below 1e-6, or a few 1e-6 where
        all float32 logits share an offset of 50 times their spread. That is far less than a fold changes β.
    """
    block = _arrays(logits, labels, weights)
    z, y, _ = block
    folds = np.asarray(folds)
    narrow = (in_float32(z), y, block[2]) if z.size > SMALL else block
    whole_run = _Run.of(narrow)
    # with a rounding, here 0 as it is not known yet, float32 passes decide where many scores are in few rows
    whole = whole_run.fit(None, rounding=0.0)
    # Folds start at the last float64 pass over all rows: its numbers of each row are kept, so their first pass costs
    # nothing. After float32 passes one more over all rows, at the optimum, is cheap for all folds together.
    start = whole_run.last if np.float64 in whole_run.row_numbers else whole.beta
    rounding = _rounding(block, narrow, whole.beta) if z.size > SMALL and whole.status == "ok" else 0.0
    fits = []
    for fold in range(int(folds.max()) + 1):
        rows = np.flatnonzero(folds != fold)
        run = _Run.of(_take(narrow, rows), whole.scale)
        if whole.status != "ok":
            fits.append(run.fit(None, rounding))
            continue
        if whole_run.complete:
            run.shared_pass = start, partial(whole_run.numbers_of, start, rows)
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


def _rounding(block: Block, narrow: Block, beta: float) -> float:
    """Return the systematic error of float32 exponentials: the mean over some rows of F_i'(β) in float64 minus that in
    float32, F_i' = E z - z_y.

    Sums over many classes in float32 are off to one side. That is what twenty rows show; they add noise of their own,
    as what differs from row to row averages out over all rows but not over twenty. It is some 1e-7 of β.
    """
    some = np.arange(0, len(block[0]), max(1, len(block[0]) // 20))
    z, y, w = _take(block, some)
    z32 = _take(narrow, some)[0]
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
    """Return (B, N) `nll_rows` at each of B betas, in one pass: ln Σ_k exp(β (z_k - max z)) - β (z_y - max z)."""
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
    """Return logits (N, K) as floats, labels (N,), and weights (N,) in float64 or None."""
    z = np.asarray(logits)
    return (
        z if z.dtype.kind == "f" else z.astype(np.float64),
        np.asarray(labels),
        None if weights is None else np.asarray(weights, np.float64),
    )


def _sample(source: Source) -> tuple[int, Block]:
    """Return the number of rows, and rows drawn evenly over the data (all of them when there are few).

    Of arrays in memory one row is drawn from each of `count` equal ranges. Of blocks that are read one after the other
    each row is kept with the probability 1 / stride; where too many are kept, half of them are dropped and the stride
    is doubled, so that each row of the data is as likely to be kept as any other.
    """
    blocks = source()
    if isinstance(blocks, tuple) and len(blocks) == 1:  # arrays in memory: no pass is needed
        n, count = len(blocks[0][0]), max(SAMPLED, SMALL // blocks[0][0].shape[1])
        if n <= 2 * count:
            return n, blocks[0]
        places = np.arange(count) + np.random.default_rng(0).random(count)  # one of each equal range
        drawn = (places * (n / count)).astype(np.int64)
        return n, _take(blocks[0], np.minimum(drawn, n - 1))
    kept: list[Block] = []
    n, stride, rng = 0, 1, np.random.default_rng(0)
    for block in blocks:
        limit = max(SAMPLED, SMALL // block[0].shape[1])
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
    """The passes of one fit over the rows.

    Attributes:
        source: yields all n rows block by block.  arrays: all rows, if they are in memory.
        sample: the rows of `_sample`.  complete: whether these are all rows.
        passes: so far; drawing the sample of blocks that are read was one.
        scale, margin: as in `BetaFit`.  floor, cap: the range of β.
        last: β of the last pass.
        row_numbers: of a complete sample: the five arrays (n,) of `moments.each_row` at `last`, by the dtype of the
            pass.
        shared_pass: a β, and a function that returns the five arrays at this β for a dtype without a pass over these
            rows; or None.
    """

    def __init__(self, source: Source, n: int, sample: Block, arrays: Block | None, scale: float | None = None) -> None:
        self.source, self.n, self.sample, self.arrays = source, n, sample, arrays
        self.passes = 0.0 if arrays is not None else 1.0
        self.scale, self.margin = scale or spread(sample[0]), margin(sample[0])
        self.complete = len(sample[0]) == n
        self.last, self.row_numbers = 0.0, dict[Any, list[Array]]()
        self.shared_pass: tuple[float, Callable[[Any], list[Array]]] | None = None
        self.cap = max(CAP / min(self.scale, self.margin), LEAST_CAP)
        self.floor = max(FLOOR / self.scale, LEAST_FLOOR)

    @classmethod
    def of(cls, block: Block, scale: float | None = None) -> _Run:
        """Prepare a fit on arrays in memory."""
        return cls(lambda: (block,), *_sample(lambda: (block,)), block, scale)

    def fit(self, start: float | None, rounding: float | None = None) -> BetaFit:
        """Find β from `start`, or from 1 / scale.

        Args:
            rounding: the error of F' by float32 exponentials. If it is given, float32 passes decide where many scores
                are in few rows, and β is corrected by one Newton step: -rounding / F''.
        """
        beta = start or 1 / self.scale
        if not self.complete:
            return self._fit_many_rows(self._warm(beta) if start is None else beta)
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

    def _fit_many_rows(self, beta: float) -> BetaFit:
        """Descend by float32 passes until the expansion about the last one may reach the optimum, then refine it."""
        rough = self._descend(lambda b: self._pass(b, np.float32), beta, settled=ROUGH)
        return self._refine(self._sums, self.last) if rough.status == "ok" else rough

    def _pass(self, beta: float, dtype: Any) -> SumsAtBeta:
        """Return the sums over all rows at this β, and keep them; of a complete sample also the numbers of each row."""
        self.passes += 1
        if not self.complete:
            self._sums = moments.evaluate(self.source, beta, dtype)
        else:
            if self.shared_pass and self.shared_pass[0] == beta:
                numbers = self.shared_pass[1](dtype)
            else:
                numbers = moments.each_row(self.sample, beta, dtype)
            self.row_numbers = {dtype: numbers}
            self._sums = SumsAtBeta()
            moments.add(self._sums, self.sample[2], numbers)
        self.last = beta
        return self._sums

    def numbers_of(self, beta: float, rows: NDArray[Any], dtype: Any) -> list[Array]:
        """Return the five arrays at β of these rows, (rows,) each, from the last pass or a new one over all rows."""
        if beta != self.last:
            self.last, self.row_numbers = beta, {}
        if dtype not in self.row_numbers:
            self.row_numbers[dtype] = moments.each_row(self.sample, beta, dtype)
        return [numbers[rows] for numbers in self.row_numbers[dtype]]

    def _in_float32(self, beta: float) -> float:
        """Return β near the optimum of many float64 scores, from passes over a float32 copy."""
        z, y, w = self.sample
        run = _Run.of((in_float32(z), y, w), self.scale)
        near = run._descend(lambda b: run._pass(b, np.float32), beta)
        self.passes += run.passes
        return near.beta if near.status == "ok" else beta

    def _warm(self, beta: float) -> float:
        """Return β from two parts of the rows: a solution on the first, one step on the second, larger one.

        The first is an eighth of the sample. The second is the sample, or where it is less than a sixteenth of the rows
        in memory, every sixteenth stretch of these. It need not be more: a step of third order from the solution on the
        first part is nearly the solution on the second, and the passes over all rows that follow correct both. β stays
        a factor of ten inside its range: that of all rows may be at a bound, but a part of them cannot tell.
        """
        count = len(self.sample[0])
        eighth = _take(self.sample, np.arange(0, count, 8))
        first = _Run(lambda: (eighth,), len(eighth[0]), eighth, eighth, self.scale)
        fit = first._descend(lambda b: first._pass(b, np.float32), beta, settled=FIRST)
        self.passes += first.passes * len(eighth[0]) / self.n
        if fit.status != "ok":
            return beta
        second: tuple[Block, ...] = (self.sample,)
        if self.arrays is not None and self.n > 16 * count:
            second = tuple(b for i, b in enumerate(moments.chunks(self.arrays, 1 << 17)) if i % 16 == 8)
        beta = _step(moments.evaluate(lambda: second, fit.beta, np.float32).means(), fit.beta)
        self.passes += sum(len(b[0]) for b in second) / self.n
        return min(max(beta, 10 * self.floor), self.cap / 10)

    def _refine(self, sums: SumsAtBeta, center: float) -> BetaFit:
        """Solve F' = 0 by the expansion of F' about the last float32 pass, less its error as measured on the sample.

        With P(β) the expansion of third order, F' = P + e, where e is the rounding of float32 and the remainder of the
        expansion. e is the mean of e_i, which is computed for the rows of the sample alone. Its standard error over F''
        is that of β. If it is small enough, β is the root of P less (P + e) / F''. If not, another float32 pass at the
        root makes the remainder smaller; where the root is near the last pass already, e is rounding, and float64
        passes decide.
        """
        for _ in range(2):
            beta = _root(sums.means(), center)
            error, se = self._difference(center, beta)
            slope, curvature = shifted(sums.means(), beta - center)
            if se <= ENOUGH * beta * curvature:
                beta -= (slope + error) / curvature
                return self._done(beta, sums, curvature)
            if abs(beta - center) < 1e-5 * beta:
                break
            center, sums = beta, self._pass(beta, np.float32)
        return self._descend(lambda b: self._pass(b, np.float64), _root(sums.means(), center))

    def _difference(self, center: float, beta: float) -> tuple[float, float]:
        """Return the mean over the sample of e_i, float64 F_i'(β) minus the float32 expansion about `center`, and its
        standard error.
        """
        differences, weights = [], []
        for z, y, w in moments.chunks(self.sample):
            expanded = shifted(moments.series(z, y, center)[:4], beta - center)[0]  # (n,)
            differences.append(moments.expectation(z, y)(beta) - expanded)
            weights.append(np.ones(len(y)) if w is None else w)
        return weighted_mean(np.concatenate(differences), np.concatenate(weights))

    def _descend(self, pass_at: Callable[[float], SumsAtBeta], beta: float, settled: float = SETTLED) -> BetaFit:
        """Take third-order steps in ln β until one is within `settled`, inside the bracket low < β̂ < high.

        F is convex, so F' < 0 puts β below the optimum, and F' >= 0 above. A step out of the bracket is replaced by its
        geometric mean, or by a factor of 8 while one end is open. The search ends without an optimum where
        - no row is wrong (Σ w (max z - z_y) is 0): F falls for ever, or is constant if all logits of each row are
          equal;
        - no β with F' < 0 is known well below the start, and F'(0) >= 0: F rises everywhere;
        - an end of the range of β is reached.
        """
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
                following = math.sqrt(low * high) if low > 0 and high < math.inf else (FACTOR * low or high / FACTOR)
            if high <= self.floor or low >= self.cap:
                return self._done(beta, sums, curvature, "bound")
            if high < math.inf and high - low <= 1e-15 * high:  # no float64 lies between
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
        """Return the fit with its sandwich standard error sqrt(Σ w² ψ²) / (Σ w F''), from the sums of the last pass."""
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
    """Take Halley's step for g(u) = F'(e^u) = 0 in u = ln β, at most a factor of 8 in β.

    With g' = β F'' and g'' = β F'' + β² F''', Newton's step is ν = -g / g' and Halley's is ν / (1 + ν g'' / (2 g')),
    with g'' / g' = 1 + β F''' / F''. Its error is of the third order in the step.

    Args:
        f: F' to F'''' at β.
    """
    f1, f2, f3, _ = f
    if not f2 > 0:
        return beta * (FACTOR if f1 < 0 else 1 / FACTOR)
    newton = -f1 / (beta * f2)
    denominator = 1 + newton * (1 + beta * f3 / f2) / 2
    step = newton / denominator if denominator > BENT else math.copysign(TURNED, newton)
    return float(beta * math.exp(min(max(step, -LONGEST), LONGEST)))


def shifted(f: Any, delta: float) -> tuple[Any, Any]:
    """Return F' and F'' at β + δ by the Taylor series from F' to F'''' at β (numbers or (N,)):

    F' + δ F'' + δ² F''' / 2 + δ³ F'''' / 6, and its derivative F'' + δ F''' + δ² F'''' / 2.
    """
    f1, f2, f3, f4 = f
    return f1 + delta * (f2 + delta * (f3 / 2 + delta * f4 / 6)), f2 + delta * (f3 + delta * f4 / 2)


def _root(f: Array, beta: float) -> float:
    """Return the root of the cubic expansion of F' about β by Newton steps from Halley's, or that where it is long."""
    delta = _step(f, beta) - beta
    if abs(delta) > 0.1 * beta:  # too far for the expansion
        return beta + delta
    for _ in range(5):
        slope, curvature = shifted(f, delta)
        delta -= slope / curvature
    return float(beta + delta)
