"""Polynomials through arms with errors on both axes, and weighted sums of arms with these errors."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.polynomial import chebyshev

from calibcli.core.statistics import beta_tails
from calibcli.scores.predictions import Floats

STARTS = 5  # of a fit: the arms themselves, and four draws of their errors
STEPS, WHOLE = 40, 10  # of a fit; after the first ones a step is halved, which ends an oscillation
OUTSIDE = 1.2  # beyond which no polynomial is evaluated, as one of a high degree explodes there
SETTLED, SINGULAR = 1e-9, 1e-12


@dataclass(frozen=True)
class FittedCurve:
    """A curve, with what a test of it needs.

    Attributes:
        slope: (A,) of its tangent at each arm.  v: (A,) variance of each arm's residual, with the error of u in it.
        leaves: M = W - WB (B'WB)⁺ B'W (A, A), W = 1/v: My are the residuals over v, and the curve itself is nothing.
    """

    slope: Floats
    v: Floats
    leaves: Floats


@dataclass(frozen=True)
class Points:
    """Arms as points with errors on both axes; u is ln x, moved and scaled to [-1, 1].

    Attributes:
        x, y: (A, S) of each seed; x is the distance from the mean of its arm, in units of u.
        u: (A,) of means.
        rows: (2A, 2A) covariances of the means of all x and all y that come from the rows.
    """

    x: Floats
    y: Floats
    u: Floats
    rows: Floats

    @classmethod
    def of(cls, x: Floats, y: Floats, draws: Floats | None) -> Points:
        """Take the x and y (A, S) of arms, all x above 0, and of all x and then all y their draws (2A, S, B)."""
        arms, mean = len(x), x.mean(axis=1)
        log = np.log(mean)
        half = np.ptp(log) / 2
        scale = np.concatenate([1 / (half * mean), np.ones(arms)])  # of the error of u, to first order
        rows = np.zeros((2 * arms, 2 * arms)) if draws is None else _shared(draws) * np.outer(scale, scale)
        return cls((x - mean[:, None]) * scale[:arms, None], y, (log - log.min()) / half - 1, rows)

    @property
    def errors(self) -> Floats:
        """Variances of u and of y and their covariance, (3, A), as far as arms differ in them.

        The part of the seeds is pooled over arms. What the rows do to all arms alike moves the whole curve, and is left
        out.
        """
        arms, count = self.y.shape
        off = np.stack([self.x, self.y - self.y.mean(axis=1, keepdims=True)])  # (2, A, S)
        seeds = np.einsum("pas,qas->pq", off, off) / (arms * (count - 1) * count)
        rows = self.rows.reshape(2, arms, 2, arms)
        rows = rows - rows.mean(axis=1, keepdims=True)
        rows = np.einsum("paqa->pqa", rows - rows.mean(axis=3, keepdims=True))  # (2, 2, A)
        return np.stack([rows[p, q] + seeds[p, q] for p, q in ((0, 0), (1, 1), (0, 1))])

    def combined(self, of_u: Floats, of_y: Floats) -> tuple[float, float, float, float]:
        """Return Σ of_y y, and what seeds and rows add to the variance of Σ of_u u + of_y y.

        The seeds of an arm count as independent of those of the others. The last number is one more than the degrees of
        freedom of their variance (Satterthwaite 1946).
        """
        own, weights = self._own(of_u, of_y), np.concatenate([of_u, of_y])
        rows = max(0.0, float(weights @ self.rows @ weights))
        return float(of_y @ self.y.mean(axis=1)), float(own.sum()), rows, 1 + self._degrees(own)

    def together(self, slope: Floats, weights: Floats) -> float:
        """Compute p of the hypothesis that all K sums of residuals with these weights (K, A) are 0 in truth.

        T = e'C⁻¹e of the sums e and their covariance C is scaled as Hotelling's (1931), with the degrees of freedom
        that the seeds have in the mean of T (Satterthwaite 1946). p is 1 where the seeds are too few to tell.
        """
        both = np.hstack([-weights * slope, weights])  # (K, 2A)
        each = self._own(-slope, np.ones_like(slope))
        own, vectors = np.linalg.eigh(weights * each @ weights.T + both @ self.rows @ both.T)
        count = int((own > SINGULAR * own[-1]).sum())  # less than K where all arms have a cause: the sums add up to 0
        inverse = vectors[:, -count:] / own[-count:] @ vectors[:, -count:].T
        sums = weights @ self.y.mean(axis=1)
        degrees = self._degrees(each * np.einsum("ka,kl,la->a", weights, inverse, weights))
        left = degrees - count + 1
        if not left > 0:
            return 1.0
        f = max(0.0, float(sums @ inverse @ sums)) / degrees  # over which T is count / left times F(count, left)
        return beta_tails(1 / (1 + f), f / (1 + f), left / 2, count / 2)[0]

    def _own(self, of_u: Floats, of_y: Floats) -> Floats:
        """Compute what the seeds of each arm add to the variance of a sum, (A,)."""
        return np.asarray((of_u[:, None] * self.x + of_y[:, None] * self.y).var(axis=1, ddof=1) / self.y.shape[1])

    def _degrees(self, own: Floats) -> float:
        return float(own.sum() ** 2 / max((own**2).sum(), 1e-300) * (self.y.shape[1] - 1))

    def curve(self, degree: int) -> FittedCurve:
        """Fit a polynomial y = g(u).

        It minimizes Σ r²/v with the effective variance v = σ_y² - 2 g' σ_uy + g'² σ_u² (York 1966; Orear 1982). Each u
        moves along its error to the place ξ where the curve is nearest, and the curve is replaced by its tangent there,
        g(ξ) + g'(ξ) (u - ξ) = Bβ. The sum may have several minima: the least of `STARTS` starts is taken.
        """
        y, (of_u, of_y, of_both) = self.y.mean(axis=1), self.errors

        def across(slope: Floats) -> Floats:
            return np.asarray(of_y - 2 * slope * of_both + slope**2 * of_u)

        noise = np.random.default_rng(0).standard_normal((STARTS - 1, len(y)))
        xi = np.vstack([self.u, self.u + np.sqrt(of_u) * noise])  # (K, A), a row for each start
        derivative = chebyshev.chebder(np.eye(degree + 1))  # (degree, degree + 1)
        slope, least, best = np.zeros_like(xi), np.inf, None
        for step in range(STEPS):
            at = np.clip(xi, -OUTSIDE, OUTSIDE)
            change = chebyshev.chebvander(at, degree - 1) @ derivative  # (K, A, degree + 1)
            basis = chebyshev.chebvander(at, degree) + change * (self.u - xi)[..., None]
            weighted = basis / across(slope)[..., None]
            beta = _inverse(weighted, basis) @ (weighted.swapaxes(1, 2) @ y)[..., None]  # (K, degree + 1, 1)
            slope, residual = (change @ beta)[..., 0], y - (basis @ beta)[..., 0]
            v = across(slope)
            sums = (residual**2 / v).sum(axis=1)
            first = sums.argmin()
            if sums[first] < least or best is None:
                least, best = sums[first], (slope[first], v[first], basis[first])
            moved = self.u - (of_both - slope * of_u) / v * residual - xi
            xi = xi + (1.0 if step < WHOLE else 0.5) * moved
            if np.abs(moved).max() < SETTLED:
                break
        assert best is not None
        found, v, basis = best
        weighted = basis / v[:, None]
        return FittedCurve(found, v, np.diag(1 / v) - weighted @ _inverse(weighted, basis) @ weighted.T)


def _inverse(weighted: Floats, basis: Floats) -> Floats:
    """Compute (B'WB)⁺ of (..., A, m), where arms may lie too close together to tell all m columns apart."""
    return np.asarray(np.linalg.pinv(weighted.swapaxes(-1, -2) @ basis, rcond=SINGULAR, hermitian=True))


def _shared(draws: Floats) -> Floats:
    """Compute the mean covariances (N, N) of different seeds from (N, S, B) draws of the rows; of one seed its own."""
    count = draws.shape[1]
    off = draws - draws.mean(axis=2, keepdims=True)
    of_means = off.mean(axis=1) @ off.mean(axis=1).T / draws.shape[2]
    if count == 1:
        return np.asarray(of_means)
    own = np.einsum("isb,jsb->ij", off, off, optimize=True) / (count * draws.shape[2])
    shared = (count * of_means - own) / (count - 1)
    np.fill_diagonal(shared, np.maximum(0.0, shared.diagonal()))
    return np.asarray(shared)
