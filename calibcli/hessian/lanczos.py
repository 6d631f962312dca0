"""One Krylov run for λmax, the top k, λmin and the density: Lanczos, fully reorthogonalised, restarted when full.

The projected matrix T = VᵀHV is kept dense, which makes a thick restart (Wu and Simon 2000) one line: the basis becomes
the wanted Ritz vectors and the residual, T their Ritz values; the coupling comes back with the next product.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from calibcli.hessian.operator import Operator
from calibcli.hessian.vectors import inner, norm


@dataclass(frozen=True)
class Ritz:
    """Ritz values θ (m,) ascending, their residual norms (m,), coordinates (m, m) in the basis, and the run's state."""

    values: torch.Tensor
    residuals: torch.Tensor
    coordinates: torch.Tensor

    def value_error(self, index: int) -> float:
        """min(r, r²/gap): the usual estimate of |θ - λ|; a bound only if the gap is that of the spectrum."""
        r = float(self.residuals[index])
        others = torch.cat([self.values[:index], self.values[index + 1 :]]) if index != -1 else self.values[:-1]
        gap = float((others - self.values[index]).abs().min()) if len(others) else 0.0
        return min(r, r * r / gap) if gap > 0 else r


class Basis:
    """Vectors as rows of a few matrices, so that a projection runs at the speed of memory.

    Args:
        size: of a vector.
        storage: dtype of the rows.
    """

    def __init__(self, size: int, storage: torch.dtype) -> None:
        self.size, self.storage = size, storage
        self.rows = max(1, min(16, (1 << 26) // size))  # per matrix
        self.matrices: list[torch.Tensor] = []
        self.count = 0

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, i: int) -> torch.Tensor:
        """(size,) row i, in the storage's dtype."""
        return self.matrices[i // self.rows][i % self.rows]

    def reserve(self, device: torch.device) -> None:
        """Memory for one more."""
        if self.count == self.rows * len(self.matrices):
            self.matrices.append(torch.empty(self.rows, self.size, dtype=self.storage, device=device))

    def append(self, vector: torch.Tensor) -> None:
        self.reserve(vector.device)
        self[self.count].copy_(vector)
        self.count += 1

    def dot(self, w: torch.Tensor) -> torch.Tensor:
        """(..., count) float64 inner products with w (..., size)."""
        w = w.to(self.storage)
        return torch.cat([w @ matrix.T for matrix in self._filled()], -1).double()

    def combine(self, coefficients: torch.Tensor) -> torch.Tensor:
        """(size,) or (r, size) Σ_i c_i row_i for coefficients (count,) or (r, count), in the storage's dtype."""
        c = coefficients.to(self.matrices[0])
        total = c.new_zeros(*c.shape[:-1], self.size)
        for i, matrix in enumerate(self._filled()):
            part = c[..., i * self.rows :][..., : len(matrix)]
            total = total.addmm_(part, matrix) if c.ndim > 1 else total.addmv_(matrix.T, part)
        return total

    def _filled(self) -> Iterator[torch.Tensor]:
        for i, matrix in enumerate(self.matrices):
            yield matrix[: self.count - i * self.rows]


def least(keep: int) -> int:
    """Vectors that a run needs which keeps so many at each end of the spectrum."""
    return 2 * keep + 4


class Lanczos:
    """A Krylov run that can be continued.

    Args:
        operator: `size` and `matvec`.
        start: k -> (size,) float64 random start vector number k; the first is the run's, the next ones continue it
            when it has found an invariant subspace.
        capacity: most basis vectors in memory; the run restarts when they are used.
        keep: Ritz vectors that survive a restart at each end of the spectrum.
        storage: dtype of the basis (coefficients are float64, products what the operator gives).

    Attributes:
        products: matvecs so far.
        steps: length of the first, unrestarted run (its T is what the density reads).
    """

    def __init__(
        self,
        operator: Operator,
        start: Callable[[int], torch.Tensor],
        *,
        capacity: int = 200,
        keep: int = 6,
        storage: torch.dtype = torch.float64,
    ) -> None:
        self.operator, self.start, self.storage = operator, start, storage
        self.capacity = min(max(capacity, least(keep)), operator.size)
        self.keep = keep
        self.basis = Basis(operator.size, storage)
        self.t = torch.zeros(0, 0, dtype=torch.float64)  # projected matrix of the vectors already multiplied
        self.beta = 0.0  # norm of the current residual
        self.next: torch.Tensor | None = None  # its direction
        self.products = self.starts = self.restarts = 0
        self.alphas: list[float] = []
        self.betas: list[float] = []  # of the first run, for the density
        self._open = True  # whether the first run still goes on
        self._ritz: Ritz | None = None  # of the current basis
        self.history: list[tuple[float, float, float, float]] = []  # top value and residual, bottom value and residual

    @property
    def steps(self) -> int:
        return len(self.alphas)

    @property
    def exhausted(self) -> bool:
        """Whether the basis spans everything, so that Ritz values are eigenvalues."""
        return len(self.basis) == self.operator.size

    def extend(self) -> None:
        """One more product."""
        if len(self.basis) == self.capacity < self.operator.size:
            self._restart()
        v = self._next_vector()
        w = self.operator.matvec(v)
        self.basis.append(v)  # after an interrupt the run is as it was
        self.products += 1
        m = len(self.basis)
        h = torch.zeros(m, dtype=torch.float64)
        for i in range(max(0, m - 2), m):  # what is large first, so that one pass over the basis is mostly enough
            u = self.basis[i]
            h[i] = inner(u, w)
            w.add_(u, alpha=-float(h[i]))
        h += (more := self._orthogonalise(w))
        if float(more.norm()) > 1e-3 * norm(w):
            h += self._orthogonalise(w)
        t = torch.zeros(m, m, dtype=torch.float64)
        t[:-1, :-1] = self.t
        t[:, -1] = t[-1] = h
        self.t = t
        beta = norm(w)
        if self._open:
            self.alphas.append(float(h[-1]))
            self.betas.append(beta)
        if m == self.operator.size or beta <= 1e-13 * float(torch.linalg.norm(t)):
            self.beta, self.next, self._open = 0.0, None, False  # an invariant subspace: exact
        else:
            self.beta, self.next = beta, w.div_(beta).to(self.storage)
        self._ritz = None
        ritz = self.ritz()
        self.history.append(
            tuple(float(x) for i in (-1, 0) for x in (ritz.values[i], ritz.residuals[i]))  # type: ignore[arg-type]
        )

    def ritz(self) -> Ritz:
        """Ritz values and residuals of the current basis."""
        if self._ritz is None:
            values, coordinates = torch.linalg.eigh(self.t)
            self._ritz = Ritz(values, (self.beta * coordinates[-1]).abs(), coordinates)
        return self._ritz

    def vector(self, coordinates: torch.Tensor) -> torch.Tensor:
        """(size,) combination of the basis, normalised, in the storage's dtype."""
        total = self.basis.combine(coordinates)
        return total.div_(norm(total))

    def vectors(self, chosen: list[int]) -> torch.Tensor:
        """(r, size) these Ritz vectors, in the storage's dtype."""
        return self.basis.combine(self.ritz().coordinates[:, chosen].T)

    def _orthogonalise(self, w: torch.Tensor) -> torch.Tensor:
        """Project the basis out of w, in place (classical Gram-Schmidt); the coefficients."""
        h = self.basis.dot(w)
        w -= self.basis.combine(h)
        return h.cpu()

    def _next_vector(self) -> torch.Tensor:
        while self.next is None:
            v = self.start(self.starts)
            self.starts += 1
            v /= v.norm()
            if len(self.basis):
                self._orthogonalise(v)
                self._orthogonalise(v)
            norm = float(v.norm())
            if norm > 1e-10:
                self.next = v.div_(norm).to(self.storage)
        return self.next

    def _restart(self) -> None:
        ritz = self.ritz()
        m = len(self.basis)
        keep = sorted({*range(self.keep), *range(m - self.keep, m)})
        basis = Basis(self.operator.size, self.storage)
        for i in keep:
            basis.append(self.vector(ritz.coordinates[:, i]))
        self.basis = basis
        self.t = torch.diag(ritz.values[keep])
        self.restarts += 1
        self._open = False
