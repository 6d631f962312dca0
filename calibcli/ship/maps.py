"""Every calibration map once more, as a program over few operations, which each runtime then does in its own way.

NumPy's maps (`scalers`) are what the exports are held against, so nothing here is shared with them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from calibcli.errors import UsageError
from calibcli.scalers import Labels, Scaler
from calibcli.ship.comparison import Inexact

Array = NDArray[Any]
T = TypeVar("T")
FAR = 1e30  # stands for infinity in differences
STEEP = ("isotonic", "isotonic_top", "histogram", "top_label", "focal", "focal_temperature")
"""Maps with jumps, steep knots or 1 - p: float32 is off by up to .07, so their programs work in float64."""


def exact_enough(scaler: Scaler, write: Callable[[bool], T]) -> T:
    """What `write(wide)` gives in float32, or in float64 where float32 is known or found to be too far off.

    Raises:
        Inexact: float64 is too far off as well.
    """
    if scaler.choice.name not in STEEP:
        with contextlib.suppress(Inexact):
            return write(False)
    return write(True)


class Ops(Protocol):
    """What a runtime can do with its values, which also know + - * / @ and comparisons.

    Reductions are over the last axis, which stays as one column.
    """

    eps: float  # rounding of what comes out
    classes: int

    def const(self, array: Any, whole: bool = False) -> Any: ...
    def exp(self, x: Any) -> Any: ...
    def log(self, x: Any) -> Any: ...
    def abs(self, x: Any) -> Any: ...
    def least(self, x: Any, y: Any) -> Any: ...
    def most(self, x: Any, y: Any) -> Any: ...
    def where(self, condition: Any, x: Any, y: Any) -> Any: ...
    def max(self, x: Any) -> Any: ...
    def sum(self, x: Any) -> Any: ...
    def argmax(self, x: Any) -> Any: ...
    def same(self, i: Any, j: Any) -> Any:
        """Whether two indices are equal."""

    def number(self, condition: Any) -> Any:
        """Truth values as 0 and 1."""

    def index(self, x: Any) -> Any:
        """Whole numbers as indices."""

    def take(self, table: Any, index: Any) -> Any:
        """The entries of a vector."""

    def column(self, x: Any, k: int) -> Any:
        """(n, 1) of (n, K)."""

    def deep(self, x: Any) -> Any:
        """(n, K, 1) of (n, K)."""

    def flat(self, x: Any) -> Any:
        """(n, K) of (n, K, 1)."""

    def join(self, *columns: Any) -> Any:
        """Columns beside each other."""


def calibrated(o: Ops, scaler: Scaler, scores: Any) -> Any:
    """Log-probabilities, up to a constant in each row, of scores (n, columns) as the scaler is called with."""
    return mapped(o, scaler, as_logits(o, scaler, scores))


def log_probabilities(o: Ops, scaler: Scaler, scores: Any) -> Any:
    """(n, K) of scores (n, columns); of the calibrators of labels (n, L), each of its own column."""
    if isinstance(scaler, Labels):
        two = (normalised(o, calibrated(o, one, o.column(scores, i))) for i, one in enumerate(scaler.parts))
        return o.join(*(o.column(z, 1) for z in two))
    return normalised(o, calibrated(o, scaler, scores))


def classes(scaler: Scaler) -> int:
    """K of the maps in it: of labels 2, whether a row has one."""
    return 2 if isinstance(scaler, Labels) else scaler.k


def as_logits(o: Ops, scaler: Scaler, scores: Any) -> Any:
    """(n, K) logits or log-probabilities of what the calibrator takes."""
    if scaler.columns == 1:
        zero = scores * o.const(0.0)
        if scaler.kind == "logits":
            return o.join(zero, scores)
        p = o.exp(scores) if scaler.kind == "log_probabilities" else scores
        return o.join(log1p(o, zero - p), o.log(p))
    return o.log(o.most(scores, o.const(0.0))) if scaler.kind == "probabilities" else scores


def mapped(o: Ops, scaler: Scaler, z: Any) -> Any:
    """The map on (n, K) logits or log-probabilities.

    Raises:
        UsageError: the method has no program.
    """
    if scaler.choice.name not in PROGRAMS:
        raise UsageError(f"'{scaler.choice.name}' cannot be exported", "write calibrated scores with calib apply")
    return PROGRAMS[scaler.choice.name](o, scaler.parameters, z)


def nothing(o: Ops) -> Any:
    """Minus infinity, which no constant is: readers take one among the weights for a damaged file."""
    return o.log(o.const(0.0))


def normalised(o: Ops, z: Any) -> Any:
    """Log-softmax."""
    d = z - o.max(z)
    return d - o.log(o.sum(o.exp(d)))


def log1p(o: Ops, x: Any) -> Any:
    """ln(1 + x), with what rounding took from 1 + x put back (Kahan)."""
    one = o.const(1.0)
    u = one + x
    return o.log(u) - ((u - one) - x) / o.most(u, o.const(1e-30))


def temperature(o: Ops, p: Any, z: Any) -> Any:
    beta = float(p["beta"])
    if beta == 0:  # classes of probability 0 stay
        return o.where(z < o.const(-FAR), nothing(o), o.const(0.0))
    return z if beta == 1 else z * o.const(beta)


def affine(o: Ops, p: Any, z: Any) -> Any:
    k = len(p["bias"])
    if "log_probabilities" in p:
        x = o.most(normalised(o, z), o.const(-1e3))
    else:
        finite = o.most(z, o.max(z) - o.const(1e3))
        x = finite - o.sum(finite) / o.const(float(k))
    return linear(o, p, x)


def linear(o: Ops, p: Any, x: Any) -> Any:
    weight = p["weight"]
    return (x @ o.const(weight.T) if weight.ndim == 2 else x * o.const(weight)) + o.const(p["bias"])


def structured(o: Ops, p: Any, z: Any) -> Any:
    even = float(p["even"])
    q = o.exp(normalised(o, temperature(o, p, z))) * o.const(1 - even) + o.const(even / o.classes)
    return linear(o, p, o.log(q))


def ensemble(o: Ops, p: Any, z: Any) -> Any:
    left = o.number(o.const(-FAR) < z)
    parts = o.exp(normalised(o, temperature(o, p, z))), o.exp(normalised(o, z)), left / o.sum(left)
    tempered, plain, uniform = (o.const(float(p[name])) for name in ("tempered", "plain", "uniform"))
    return o.log(parts[0] * tempered + parts[1] * plain + parts[2] * uniform)


def both(o: Ops, z: Any) -> tuple[Any, Any]:
    """ln p and ln(1 - p) of every class; neither loses digits where p is near 0 or 1."""
    d = z - o.max(z)
    top = is_top(o, z)
    others = o.where(top, nothing(o), d)
    second = o.most(o.max(others), o.const(-FAR))
    log_rest = second + o.log(o.sum(o.exp(others - second)))
    total = log1p(o, o.exp(log_rest))
    log_p = d - total
    few = log1p(o, o.const(0.0) - o.least(o.exp(log_p), o.const(0.75)))  # only the top class can exceed 1/2
    return log_p, o.where(top, log_rest - total, few)


def is_top(o: Ops, z: Any) -> Any:
    """(n, K) whether this is the first of the largest."""
    return o.same(o.const(np.arange(o.classes), whole=True), o.argmax(z))


def log_sigmoid(o: Ops, m: Any) -> Any:
    zero = o.const(0.0)
    return o.least(m, zero) - log1p(o, o.exp(zero - o.abs(m)))


def joined(o: Ops, score: Any, k: int) -> Any:
    """Scores of all classes from log-odds of the second of two, or of each."""
    return o.join(score * o.const(-0.5), score * o.const(0.5)) if k == 2 else log_sigmoid(o, score)


def platt(o: Ops, p: Any, z: Any) -> Any:
    m, k = odds(o, z), o.classes
    return joined(o, (o.column(m, 1) if k == 2 else m) * o.const(p["slope"]) + o.const(p["bias"]), k)


def odds(o: Ops, z: Any) -> Any:
    log_p, log_rest = both(o, z)
    return o.most(o.least(log_p - log_rest, o.const(700.0)), o.const(-700.0))


def beta(o: Ops, p: Any, z: Any) -> Any:
    k = o.classes
    log_p, log_rest = (o.most(x, o.const(-700.0)) for x in both(o, z))
    if k == 2:
        log_p, log_rest = o.column(log_p, 1), o.column(log_rest, 1)
    return joined(o, log_p * o.const(p["a"]) - log_rest * o.const(p["b"]) + o.const(p["c"]), k)


def focal(o: Ops, p: Any, z: Any) -> Any:
    gamma = float(p["gamma"])
    if float(p["beta"]) == 0:
        return temperature(o, p, z)
    if p.get("phi_first", np.array(0)):
        return temperature(o, p, normalised(o, log_h(o, z, gamma)))
    return log_h(o, temperature(o, p, z), gamma)


def log_h(o: Ops, z: Any, gamma: float) -> Any:
    """ln h = L - γ M - ln(1 + γ s) with L = ln q, M = ln(1 - q), s = -q ln q / (1 - q); γ = 0 changes nothing."""
    if gamma == 0:
        return z
    log_q, log_rest = both(o, z)
    log_rest = o.most(log_rest, o.const(-FAR))
    x, q, one = o.exp(log_rest), o.exp(log_q), o.const(1.0)
    some = q > o.const(0.0)
    if gamma > 0:
        near = one + x * (o.const(1 / 2) + x * (o.const(1 / 3) + x * (o.const(1 / 4) + x * o.const(1 / 5))))
        ratio = o.where(x < o.const(1e-3), near, (o.const(0.0) - log_q) / o.most(x, o.const(1e-300)))
        slope = log1p(o, o.const(gamma) * o.where(some, q * ratio, o.const(0.0)))
    else:
        series = x * o.const(0.0)
        for n in range(8, 0, -1):
            series = x * (o.const(1 / (n * (n + 1))) + series)
        direct = one + o.where(some, q * log_q / o.most(x, o.const(1e-300)), o.const(0.0))
        factor = o.const(1 + gamma) - o.const(gamma) * o.where(x < o.const(1e-2), series, direct)
        slope = o.where(factor > o.const(0.0), o.log(factor), log_rest - o.const(np.log(2.0)))
    return log_q - o.const(gamma) * log_rest - slope


def curves(o: Ops, p: Any, z: Any, steps: bool = False) -> Any:
    x = odds(o, z) if "log_odds" in p else o.exp(both(o, z)[0])
    if "top" in p:
        return share(o, z, read(o, p, o.max(x), steps))
    if o.classes == 2:
        one = read(o, p, o.column(x, 1), steps)
        return o.log(o.join(o.const(1.0) - one, one))
    return o.log(read(o, p, x, steps))


def top_label(o: Ops, p: Any, z: Any) -> Any:
    x = odds(o, z) if "log_odds" in p else o.exp(both(o, z)[0])
    found = read(o, p, x, "linear" not in p)
    return share(o, z, o.sum(o.where(is_top(o, z), found, o.const(0.0))))


def read(o: Ops, p: Any, x: Any, steps: bool) -> Any:
    """Each column of x through its curve: linear between knots, constant beyond them; or steps between edges."""
    cuts = np.cumsum(p["knots"].astype(np.int64))[:-1]
    xs, ys = np.split(p["x"], cuts), np.split(p["y"], cuts)
    knots, count = max(map(len, xs)), len(xs)

    def table(rows: list[Array], fill: float) -> Array:
        return np.stack([np.concatenate([row, np.full(knots - len(row), fill)]) for row in rows])

    x = o.most(x, o.const(np.array([row[0] for row in xs])))
    deep, edges = o.deep(x), o.const(table(xs, FAR))
    below = o.flat(o.sum(o.number(edges < deep if steps else edges <= deep))) - o.const(1.0)
    start = o.const(np.arange(count, dtype=np.float64) * knots)
    at = o.index(o.most(below, o.const(0.0)) + start)
    y = o.take(o.const(table(ys, 0.0).ravel()), at)
    if steps:
        return y
    slopes = [np.append(np.diff(b) / np.diff(a), 0.0) for a, b in zip(xs, ys, strict=True)]
    left = o.take(o.const(table(xs, 0.0).ravel()), at)
    return y + o.take(o.const(table(slopes, 0.0).ravel()), at) * (x - left)


def share(o: Ops, z: Any, mapped: Any) -> Any:
    """The top probability becomes `mapped`; the others keep their proportions, and none of them passes the top."""
    top, log_p, gone = is_top(o, z), both(o, z)[0], nothing(o)
    rest = o.where(top, gone, log_p)
    alone = o.max(rest) < o.const(-FAR)  # nothing is left to others: what the map leaves them is shared evenly
    rest = o.where(alone, o.where(top, gone, o.const(0.0)), rest)
    others = normalised(o, rest)
    r = o.exp(o.max(others))
    mapped_top = o.most(mapped, r / (o.const(1.0) + r))
    others = others + log1p(o, o.const(0.0) - mapped_top)
    # just above the highest of the others, so that rounding of what comes out does not make it the first of two
    least = o.max(others) + o.const(8 * o.eps)
    return o.where(top, o.most(o.log(mapped_top), least), others)


PROGRAMS: dict[str, Any] = {
    "temperature": temperature,
    **dict.fromkeys(("vector", "bcts", "matrix", "dirichlet"), affine),
    "platt": platt,
    "beta": beta,
    **dict.fromkeys(("focal", "focal_temperature"), focal),
    **dict.fromkeys(("isotonic", "isotonic_top"), curves),
    "histogram": lambda o, p, z: curves(o, p, z, steps=True),
    **dict.fromkeys(("sms", "svs"), structured),
    "ensemble_temperature": ensemble,
    "top_label": top_label,
}
