"""Whether a number of arms depends on a second one, given a third: permuted residuals of numbers that have errors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.polynomial import chebyshev

from calibcli.scores.predictions import Floats, Ints

DEGREE = 4  # of the polynomial in what is given
SINGULAR, TINY = 1e-12, 1e-300


@dataclass(frozen=True)
class GivenNumbers:
    """P numbers of arms, with errors that they may share; those above 0 in all runs are taken as logarithms.

    The first is given, and so are those between; whether the last depends on the last but one is asked. The last is
    taken as it is: a gap may be near 0, and change its sign on other rows.

    Attributes:
        means: (A, P) over seeds.  draws: (B, A, P) on each draw of the rows, as far as these are known.
        errors: (P, P) covariance of the errors of an arm's means, as far as arms differ in them.  seeds: the part of it
            that seeds make, which was estimated with so many `degrees` of freedom.
        logs: which of the P numbers are logarithms.
    """

    means: Floats
    draws: Floats
    errors: Floats
    seeds: Floats
    degrees: int
    logs: list[bool]

    @classmethod
    def of(cls, values: Floats, draws: Sequence[Floats | None]) -> GivenNumbers:
        """Take the values (P, A, S) of runs, and of each number its draws of the rows (A, S, B), where they are known.

        The seeds' part of the errors is pooled over arms, without what a seed does to all of them. That of the rows is
        the covariance of two seeds, since what is a seed's own is in the first part already.
        """
        above = [
            bool((runs > 0).all() and (of is None or (of > 0).all())) for runs, of in zip(values, draws, strict=True)
        ]
        logs = [*above[:-1], False]
        values = np.log(values, out=values.copy(), where=np.array(logs)[:, None, None])
        _, arms, count = values.shape
        off = values - values.mean(axis=2, keepdims=True)
        off -= off.mean(axis=1, keepdims=True)
        degrees = (arms - 1) * (count - 1)
        seeds = np.einsum("pas,qas->pq", off, off) / (degrees * count)
        errors = seeds.copy()
        means = values.mean(axis=2).T
        known = [i for i, one in enumerate(draws) if one is not None]
        if not known:
            return cls(means, means[None], errors, seeds, degrees, logs)
        drawn = np.stack([np.log(one) if logs[i] else one for i, one in enumerate(draws) if one is not None])
        of_draws = np.repeat(means[None], drawn.shape[3], axis=0)
        of_draws[..., known] = drawn.mean(axis=2).transpose(2, 1, 0)  # (B, A, K)
        off = drawn - drawn.mean(axis=3, keepdims=True)  # (K, A, S, B)
        off -= off.mean(axis=1, keepdims=True)
        mean, size = off.mean(axis=2), (arms - 1) * off.shape[3]  # (K, A, B)
        of_means = np.einsum("pab,qab->pq", mean, mean, optimize=True) / size
        own = np.einsum("pasb,qasb->pq", off, off, optimize=True) / (size * count)
        rows = (count * of_means - own) / (count - 1)
        np.fill_diagonal(rows, np.maximum(0.0, rows.diagonal()))
        errors[np.ix_(known, known)] += rows
        return cls(means, of_draws, errors, seeds, degrees, logs)

    def depends(self, orders: Ints) -> tuple[float, float, float]:
        """Permute what is left of the last number over arms, once what is given is taken out (Freedman and Lane 1983).

        The polynomial of a noisy number leaves a part that any number correlated with it explains. So what is given is
        replaced by what is expected of it, from all that was seen but the last number (regression calibration, Carroll
        et al. 2006): μ + (Σ - E) Σ⁻¹ (seen - μ), with Σ the covariance over arms and E that of the errors. The last
        number may share errors with them: what is expected of its own, e'Σ⁻¹ (seen - μ), is subtracted.

        All arms have the same rows, so what these do is no permutation of arms. The standard deviation of the slope
        over the draws of the rows, to first order, times normal numbers, is added to the slopes of the permutations.
        The error of E is treated alike, as few seeds leave it large. The seeds' part of E is estimated with so many
        `degrees`; its error Δ is a Wishart matrix's, as if all arms had one normal covariance. With b the change of
        what is left of the last number for one unit of each number, what is taken from it for errors changes by
        (seen - μ)' Σ⁻¹ Δ b, with cov(Δ b) = (E b'E b + E b (E b)') / degrees. The number that is asked about has no
        part in b, since it enters as it was seen; and one slope stands for those of the polynomial at all arms.

        Args:
            orders: (M, A) of the arms, the first of them their own.

        Returns:
            p, two-sided; the change of the last number for one unit of the last but one; their partial correlation.
        """
        off, last = self.means[:, :-1] - self.means[:, :-1].mean(axis=0), self.means[:, -1]
        covariance = off.T @ off / (len(off) - 1)
        explained = off @ np.linalg.pinv(covariance, rcond=SINGULAR, hermitian=True)
        last = last - explained @ self.errors[:-1, -1]
        given = (explained @ (covariance - self.errors[:-1, :-1]))[:, :-1]  # but for a constant
        scale = max(float(np.abs(given[:, 0]).max()), TINY)
        design = np.hstack([chebyshev.chebvander(given[:, 0] / scale, DEGREE), given[:, 1:], off[:, -1:]])
        kept, _ = np.linalg.qr(design[:, :-1])  # (A, columns)
        left, z = (one - kept @ (kept.T @ one) for one in (last, off[:, -1]))
        size = float(np.linalg.norm(z)) or 1.0

        coefficients, *_ = np.linalg.lstsq(design, last, rcond=None)
        tangent = chebyshev.chebval(given[:, 0] / scale, chebyshev.chebder(coefficients[: DEGREE + 1])) / scale  # (A,)
        change = np.r_[-tangent.mean(), -coefficients[DEGREE + 1 : -1], 0.0, 1.0]  # (P,): b
        shared = self.seeds @ change
        of_errors = (change @ shared * self.seeds + np.outer(shared, shared))[:-1, :-1] / self.degrees
        weight = (explained - kept @ (kept.T @ explained)).T @ z  # (P - 1,)
        moved = self.draws - self.means  # (B, A, P)
        moved = moved[..., -1] - tangent * moved[..., 0] - moved[..., 1:-1] @ coefficients[DEGREE + 1 :]  # (B, A)

        permuted = left[orders]  # (M, A)
        norms = np.sqrt(np.maximum((permuted**2).sum(axis=1) - ((permuted @ kept) ** 2).sum(axis=1), TINY))
        correlations = permuted @ z / (norms * size)
        spread = np.hypot((moved @ z).std(), np.sqrt(max(0.0, float(weight @ of_errors @ weight))))
        noise = np.random.default_rng(1).standard_normal(len(orders)) * spread / (norms[0] * size)
        noise[0] = 0.0
        p = float((np.abs(correlations + noise) >= abs(correlations[0]) * (1 - 1e-9)).mean())
        return p, float(left @ z) / size**2, float(correlations[0])
