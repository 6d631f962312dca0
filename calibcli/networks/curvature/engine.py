"""The work that quantities share, done once: logits, one Krylov run, Tr(G), and the probes of H - G."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
from scipy import stats
from torch.nn.functional import cross_entropy

from calibcli.core.errors import InputError
from calibcli.core.memory import trim
from calibcli.networks import device as devices
from calibcli.networks.curvature import trace as traces
from calibcli.networks.curvature.differences import GradientDifferences, gauss_newton
from calibcli.networks.curvature.ggn import GGNTrace, ggn_trace
from calibcli.networks.curvature.loss import MOST_CLASSES, LogitLoss, Pairs, known_weights, parts, read
from calibcli.networks.curvature.operator import (
    Diagonals,
    SecondDerivative,
    forms_along,
    hessian_scalar,
    rest_scalar,
    slope,
)
from calibcli.networks.curvature.per_row_gradients import RowNorms
from calibcli.networks.curvature.problem import PAIRS, CurvatureProblem, Scalar, normal
from calibcli.networks.curvature.saved_state import Pieces
from calibcli.networks.curvature.spectrum import (
    REMEMBERED,
    Certificate,
    Lanczos,
    Record,
    certify,
    least,
    remembered_bytes,
)
from calibcli.networks.deploy.checkpoint_export import last_linear
from calibcli.networks.device import Signals, free_bytes
from calibcli.scores.likelihood import BetaFit, fit_beta
from calibcli.scores.predictions import same_rows

Progress = Callable[[float, str], None]
SHARE = 0.3  # of the sampling error, at which an estimator stops unasked, by `benchmarks/curvature_coverage.py`
ROUND = 64  # probes of a cell between two reports
NEAR = 128 << 20  # bytes of other Ritz vectors that a certificate takes as known directions
CAPACITY = 300  # vectors of a Krylov run before it restarts, at most
TOP, BOTTOM = 10, 4  # Ritz vectors at the ends of the spectrum that a certificate may know: most large ones are above 0
FLAT = 0.02  # of the largest |θ|: to count a Ritz value below it as 0, as a certificate does, moves no gap by more
WORKING = 32  # bytes per parameter, at least, of a product and of the vectors around it, beside the basis
ROUNDING = 8.0  # error of a product in units of the dtype's rounding of ‖H‖: float32 and float64 differed by 3
NUDGE = 0.1  # of ln β: how far it is moved either way to see what a number owes to the temperature


class Shared:
    """Model and data, and all results that do not depend on the loss."""

    def __init__(
        self,
        problem: CurvatureProblem,
        seed: int,
        level: float,
        report: Progress | None,
        signals: Signals | None = None,
        pieces: Pieces | None = None,
    ) -> None:
        self.problem, self.seed, self.level, self.signals = problem, seed, level, signals
        self.pieces = pieces or Pieces()  # of work, that are known from a saved state
        self.progress: Progress = report or (lambda fraction, text: None)
        self.stopped = ""  # the interrupt that arrived (`measure` sets it): no new work, only what is known
        self.notes: list[str] = []
        self.basis = ""  # the memory plan of the Krylov runs, in words
        self.double = True  # whether the model has second derivatives
        self.by_row = False  # whether the terms of rows are wanted beside the numbers
        self.known_quality: dict[str, float] = {}

    def agree(self, done: bool = True) -> bool:
        """Whether every rank says `done`. A signal that came to one of them takes effect in all of them here.

        Raises:
            KeyboardInterrupt: or what else the handler of the first signal raises; the caller then sets `stopped`.
        """
        if self.signals is None:
            return done
        # the minimum over ranks: minus its number, as a rank without a signal has 0
        (all_done, minus_signal) = devices.all_least(self.problem.device, done, -(self.signals.received or 0))
        if minus_signal and not self.stopped:
            self.signals.received = -minus_signal
            self.signals.release()  # raises the signal
        return bool(all_done)

    def asked(self) -> bool:
        """Whether this rank was asked to stop, and the others do not know it yet."""
        return self.signals is not None and self.signals.received is not None

    @cached_property
    def norms(self) -> RowNorms:
        norms = self.problem.guard(lambda: RowNorms(self.problem))
        if not norms.mapped:
            self.notes.append("per-row gradients are taken one row at a time: the model does not run under vmap")
        return norms

    @cached_property
    def logits(self) -> torch.Tensor:
        """Logits (N, K) of all rows, on the CPU and on every rank, in the model's precision (at least float32)."""
        return self.pieces.once("logits", lambda: read(self.problem)[:1])[0]

    def heaviest(self, engine: Engine) -> torch.Tensor | None:
        """Read the logits and, in the same pass, what `read` tells of each row's heaviest pair, (N, 1 + tensors).

        None if the logits were read before.
        """
        if "logits" in vars(self) or engine.problem.beta != 1:
            return None
        self.logits, heaviest_pairs = engine.pieces.once(
            "logits and heaviest pairs", lambda: read(engine.problem, (engine.loss, self.labels, engine.norms))
        )
        return heaviest_pairs

    @cached_property
    def temperature(self) -> BetaFit:
        """The temperature of the smallest NLL of these rows."""
        block = self.logits.numpy(), self.labels.numpy(), None
        return fit_beta(lambda: (block,))

    @cached_property
    def pull(self) -> torch.Tensor:
        """(N,) by how much each row moves ln β of the temperature, times N (the influence function)."""
        sums = []
        for s in parts(*self.logits.shape):
            z = self.logits[s].double() * self.temperature.beta
            p = z.softmax(1)
            mean = (p * z).sum(1)
            label = z.gather(1, self.labels[s, None])[:, 0]
            sums.append(torch.stack([label - mean, (p * (z - mean[:, None]).square()).sum(1)]))
        derivatives = torch.cat(sums, 1)  # the row's score, and its second derivative in ln β
        return derivatives[0] / derivatives[1].mean()

    @cached_property
    def head(self) -> set[str]:
        """Names of the weight and bias of the linear layer that gives the logits.

        Raises:
            InputError: no single layer does.
        """
        two = torch.arange(min(2, self.problem.layout.n))
        inputs, model = self.problem.batch(two)[0], self.problem.model
        instead = (
            "measure a quantity without 'after', or fisher_rao after and adaptive_trace after, which need no layer"
        )
        source = "a temperature cannot be folded into this model"
        name, layer = last_linear(model, lambda: self.problem.forward(model, inputs), source, instead)
        return {f"{name}.{part}".removeprefix(".") for part, _ in layer.named_parameters()}

    @cached_property
    def labels(self) -> torch.Tensor:
        return torch.as_tensor(self.problem.source.labels).long().cpu()

    def quality(self) -> None:
        """Compute mean NLL in nats and accuracy of the rows, in which a wrong preprocessing shows.

        Nothing is computed after an interrupt that came before the logits.
        """
        if self.stopped and "logits" not in vars(self):
            return
        n, k = self.logits.shape
        if n > 1 and bool((self.logits == self.logits[0]).all()):
            self.notes.append(same_rows(n, "logits"))
        sums = [cross_entropy(self.logits[s].double(), self.labels[s], reduction="sum") for s in parts(n, k)]
        accuracy = float((self.logits.argmax(1) == self.labels).double().mean())
        self.known_quality = {"nll": sum(map(float, sums)) / n, "accuracy": accuracy}

    def half_width(self, se: float, dof: float) -> float:
        """Half the two-sided t-interval at the run's level."""
        return float(stats.t.ppf(0.5 + self.level / 2, max(dof, 1))) * se


class Engine:
    """All results for one loss, each computed at most once.

    Args:
        shared: model and data.
        loss: the loss whose mean is differentiated.
        pieces: of its work.
    """

    def __init__(
        self, shared: Shared, loss: LogitLoss, original: Engine | None = None, pieces: Pieces | None = None
    ) -> None:
        self.shared, self.problem, self.loss, self.original = shared, shared.problem, loss, original
        self.pieces = pieces or Pieces()
        self.relative = False  # whether coordinates are relative changes of the parameters
        self.ggn_alone = False  # whether `hessian` is G, and not H
        self.nudged: tuple[Engine, ...] = ()  # of a temperature: the same with a lower and a higher ln β
        self._views: dict[tuple[bool, float], Engine] = {}
        self._gauss_newton: dict[bool, Engine] = {}
        self.named: dict[int, str] = {}  # rows that a note was written of
        self._certificates: dict[int, Certificate] = {}
        self._ggn: dict[tuple[float, bool], GGNTrace] = {}
        self._probes: dict[tuple[int, tuple[int, ...], int, bool], traces.Probes] = {}

    def view(self, *, relative: bool = False, after: bool = False, nudge: float = 0.0) -> Engine:
        """Return the engine of another form of the problem (see `CurvatureProblem.view`).

        A temperature T that is folded into the last layer divides its weights by T, and the logits. In coordinates of
        these weights a step is T times as large in those that the layer has now. Coordinates of relative changes stay
        as they are, wherever T is folded.

        Args:
            relative: whether coordinates are relative changes of the parameters.
            after: whether the temperature of the smallest NLL of these rows is folded in.
            nudge: how much larger its ln β is.

        Raises:
            InputError: no single layer gives the logits, and coordinates are not relative.
        """
        beta = self.shared.temperature.beta * math.exp(nudge) if after else 1.0
        if not relative and not after:
            return self
        if (relative, beta) not in self._views:
            tensors, unit = self.problem.tensors, torch.ones((), dtype=self.problem.dtype, device=self.problem.device)
            if relative:
                scales = [t.detach() for t in tensors]
            else:
                scales = [unit / beta if name in self.shared.head else unit for name in self.problem.names]
            pieces = self.pieces.part(f"{'relative ' * relative}β = {beta!r}")
            view = self._views[relative, beta] = Engine(self.shared, self.loss, self, pieces)
            view.problem, view.relative = self.problem.view(beta, scales), relative
            if after and not nudge:
                view.nudged = tuple(self.view(relative=relative, after=True, nudge=d) for d in (-NUDGE, NUDGE))
        return self._views[relative, beta]

    def gauss_newton(self, differences: bool) -> Engine:
        """Return the engine whose `hessian` is G, by `differences` of logits or, where there are second ones, without.

        Graphs that are kept of others are freed.
        """
        self.drop()
        if differences not in self._gauss_newton:
            pieces = self.pieces.part("G by differences" if differences else "G")
            engine = self._gauss_newton[differences] = Engine(self.shared, self.loss, pieces=pieces)
            engine.hessian = gauss_newton(self.problem, self.loss, self.shared.double, differences)
            engine.ggn_alone = True
        return self._gauss_newton[differences]

    @cached_property
    def logits(self) -> torch.Tensor:
        """(N, K) logits of all rows, of the temperature that is folded in."""
        return self.shared.logits if self.problem.beta == 1 else self.shared.logits * self.problem.beta

    @cached_property
    def norms(self) -> RowNorms:
        if self.original is None:
            return self.shared.norms
        return self.problem.guard(lambda: RowNorms(self.problem))

    @cached_property
    def hessian(self) -> SecondDerivative:
        if self.problem.from_gradients:
            return GradientDifferences(self.problem, self.loss, self.shared.double)
        hessian = SecondDerivative(self.problem, hessian_scalar(self.loss))
        if self.original is not None and self.problem.beta == 1:
            hessian.share(self.original.hessian)
        return hessian

    def drop(self) -> None:
        """Free the kept graphs of all forms of the problem."""
        self.hessian.drop()
        for view in (*self._views.values(), *self._gauss_newton.values()):
            view.drop()

    @cached_property
    def record(self) -> Record:
        """The Hessian, which remembers the products of the run that gives the eigenvalues."""
        return Record(self.hessian, self._storage)

    @cached_property
    def krylov(self) -> Lanczos:
        """The run from start vector 0, whose products are remembered where that costs next to nothing.

        They are then made group by group. Micro-batches that lie within a group are the same work either way, while
        larger ones would be cut; and products by group are never in TF32.
        """
        layout = self.problem.layout
        remember = self._small and layout.micro <= layout.group and not self.problem.tf32
        remember &= self.ggn_alone or not self.problem.from_gradients  # which would seek each step twice
        needed = REMEMBERED * remembered_bytes(self.problem.size, self._storage)
        remember &= needed <= free_bytes(self.problem.device) // 4
        everywhere = all(devices.all_least(self.problem.device, remember))
        return self.new_run(0, operator=self.record if everywhere else self.hessian)

    @property
    def _small(self) -> bool:
        return self.problem.size * 100 * 8 <= 1 << 30

    @property
    def _storage(self) -> torch.dtype:
        """Dtype of Krylov vectors: float32 where products are no more exact, or memory would not suffice."""
        return torch.float64 if self._small and self.problem.dtype == torch.float64 else torch.float32

    def new_run(self, first: int, *, operator: SecondDerivative | Record | None = None) -> Lanczos:
        """Start a Lanczos run from start vector number `first`.

        Its basis is within a quarter of the free memory, or the smallest that a run can do with, and of at most
        `CAPACITY` vectors.

        Raises:
            InputError: the fewest vectors take more memory than is free.
        """
        problem, storage = self.problem, self._storage
        size = problem.size
        # the least of all ranks: those that restart apart would multiply different vectors
        (free,) = devices.all_least(problem.device, free_bytes(problem.device))
        fits = free // 4 // (size * storage.itemsize)
        need = size * (min(least(3), size) * storage.itemsize + WORKING)
        if need > free:
            raise InputError(
                f"a Krylov run in {size:,} parameters takes at least {need / 2**30:.2g} GiB, of {free / 2**30:.2g} that"
                f" are free on {problem.device}",
                "measure fewer parameters (--params 'last_block.*'), or on a machine with more memory",
            )

        def start(k: int) -> torch.Tensor:
            return normal(size, self.shared.seed, first + k).to(problem.device)

        pieces = self.pieces.part(f"Krylov run {first}")
        limits = min(CAPACITY, fits), 6 if fits >= 32 else 3
        capacity, keep = pieces.once("limits", lambda: [torch.tensor(limits)])[0].tolist()
        if isinstance(operator, Record):
            operator.pieces, pieces = pieces, Pieces()
        run = Lanczos(operator or self.hessian, start, capacity=capacity, keep=keep, storage=storage, pieces=pieces)
        gigabytes = run.capacity * size * storage.itemsize / 2**30
        self.shared.basis = f"at most {run.capacity} vectors in {str(storage)[6:]} ({gigabytes:.2g} GiB)"
        return run

    def lanczos(self, done: Callable[[Lanczos], float], limit: int, text: Callable[[Lanczos], str]) -> bool:
        """Extend the Krylov run until `done` (a fraction) reaches 1; whether it did within `limit` products."""
        run = self.krylov
        while run.products == 0 or not self.shared.agree(done(run) >= 1 or run.exhausted):
            if self.shared.stopped or run.products >= limit:
                return False
            self.extend(run)
            self.shared.progress(min(done(run), 0.99), text(run))
        return True

    def extend(self, run: Lanczos) -> None:
        """Make one more product of a run."""

        def room() -> None:
            """Allocate the next basis vector, without the kept graphs if the plan no longer keeps them."""
            if not self.problem.plan.keep:
                self.hessian.drop()
            run.basis.reserve(self.problem.device)

        self.problem.guard(room)  # where memory runs out, again with a smaller plan, which first keeps no graphs
        run.extend()

    def certificate(self, index: int) -> Certificate | None:
        """Certify Ritz vector `index` (negative: from the top) by true products; None after an interrupt.

        Other Ritz vectors at the ends of the spectrum are known directions: what sampling moves along each of them is
        divided by the distance of the two Ritz values, along all others by the Ritz value itself (see `_perturbed`).
        """
        if index not in self._certificates and not self.shared.stopped:
            ritz = self.krylov.ritz()
            m = len(ritz.values)
            nonzero = ritz.values.abs() > FLAT * float(ritz.values.abs().max())
            ends = sorted({*range(max(0, m - TOP), m), *range(min(m, BOTTOM))})
            near = sorted((i for i in ends if i != index % m and nonzero[i]), key=lambda i: abs(i - index % m))
            certificate = None
            if self.krylov.operator is not self.hessian and not self.krylov.restarts:
                chosen = [index % m, *near]
                certificate = self.record.certificate(0, ritz.values[chosen], ritz.coordinates[:, chosen])
            if certificate is None:
                if not self._small:
                    self.hessian.drop()  # memory: products by group have graphs of their own
                    trim()
                chosen = [index % m, *near[: max(1, NEAR // (self._storage.itemsize * self.problem.size))]]
                certificate = self.pieces.once_made(
                    Certificate,
                    f"certificate {self.krylov.products}, {chosen}",
                    lambda: certify(self.hessian, self.krylov.vectors(chosen), ritz.values[chosen]),
                    self.hessian,
                )
            rounding = ROUNDING * torch.finfo(self.problem.dtype).eps * float(ritz.values.abs().max())
            off = rounding + self.product_error(index)
            self._certificates[index] = replace(certificate, residual=certificate.residual + off)
        return self._certificates.get(index)

    def product_error(self, index: int) -> float:
        """Estimate by how much a product with Ritz vector `index` is off, beside rounding (see `Differences.error`)."""
        run, ritz = self.krylov, self.krylov.ritz()
        norm = float(ritz.values.abs().max())
        return self.hessian.error(norm, lambda: run.vector(ritz.coordinates[:, index]).to(self.problem.device))

    @cached_property
    def splits(self) -> bool:
        """Whether Tr(G) can be had from pairs: the loss knows its split (see `Pairs`), or K is small enough for one.

        Of sharded weights it cannot: there are no gradients of single rows.
        """
        if self.problem.classes <= MOST_CLASSES or self.problem.sharded:
            return not self.problem.sharded
        row = torch.zeros(1, self.problem.classes, dtype=torch.float64)  # any logits: only whether it knows is asked
        return known_weights(self.loss, row, self.shared.labels[:1]) is not None

    def ggn(self, target: float, exact: bool = False) -> GGNTrace | None:
        """Estimate Tr(G) to the relative standard error `target`, or finer if it is known; None after an interrupt."""
        done = [g for (t, e), g in self._ggn.items() if e or (t <= target and not exact)]
        if done or self.shared.stopped:
            return done[0] if done else next(iter(self._ggn.values()), None)
        s = self.shared
        s.progress(0.0, "Tr(G)")
        self.hessian.drop()
        pieces = self.pieces.part(f"Tr(G) to {target!r}{', exact' * exact}")
        part = ggn_trace(self.problem, self.norms, *self.pairs, target=target, seed=s.seed, exact=exact, pieces=pieces)
        self._ggn[target, exact] = part
        return part

    @cached_property
    def pairs(self) -> tuple[Pairs, torch.Tensor | None]:
        """The `Pairs` of all rows, and what `read` tells of the heaviest ones, (N, 1 + tensors), if it read them."""
        self.problem.check_outputs_fit(PAIRS)
        heaviest = self.shared.heaviest(self)
        if self.original is not None and self.problem.beta == 1:  # the same logits
            return self.original.pairs[0], heaviest
        return Pairs(self.loss, self.logits, self.shared.labels), heaviest

    @cached_property
    def default_precision(self) -> float:
        """0.3 of Tr(G)'s relative sampling error, std(m) / (mean(m) √N), at least 0.001: known before any product.

        m_n = Σ_c |l_nc| ‖u_nc‖² is the mass of row n. It is proportional to the row's part of Tr(G) if l >= 0 and the
        Jacobians stretch all vectors u alike.
        """
        mass = self.pairs[0].rows
        mean = float(mass.mean())
        return max(SHARE * float(mass.std(unbiased=False)) / mean / len(mass) ** 0.5, 1e-3) if mean > 0 else 1e-3

    @cached_property
    def has_curvature(self) -> torch.Tensor:
        """(tensors,) bool: whether the tensor's diagonal block of H - G does not vanish."""
        if self.original is not None:
            return self.original.has_curvature
        if not self.splits or self.problem.from_gradients:
            return torch.ones(len(self.problem.tensors), dtype=torch.bool)
        return traces.has_curvature(self.problem, self.shared.seed)

    @cached_property
    def convex(self) -> bool:
        """Whether λmax >= 0 is proved: the loss is convex in the logits, and they are linear in the last tensor.

        If all l >= 0 (but for rounding), vᵀA_n v = Σ_c l_nc (u_ncᵀv)² is not negative. The last tensor's block of H is
        then that of G, which is not negative either. For λmax of G the first is enough.
        """
        last = len(self.problem.tensors) - 1
        if self.problem.from_gradients and not self.ggn_alone:
            return False
        if self.problem.classes > MOST_CLASSES or bool((self.pairs[0].weights < -1e-12).any()):
            return False
        return self.ggn_alone or not bool(traces.has_curvature(self.shared.problem, self.shared.seed, [last])[0])

    @property
    def rest(self) -> Scalar:
        """The function that the probes differentiate twice, to H - G, or to H where the loss does not split."""
        return rest_scalar(self.loss) if self.splits else hessian_scalar(self.loss)

    @cached_property
    def prober(self) -> traces.Prober:
        """Draws probes of `rest`; to make H - G, the slopes s_n = ∂loss/∂z_n are held fixed in Σ ⟨s_n, z_n⟩."""
        fixed = slope(self.loss) if self.splits else None
        hessian = None
        if self.problem.from_gradients:
            hessian = GradientDifferences(self.problem, self.loss, fixed=self.splits)
            hessian.at_home(normal(self.problem.size, self.shared.seed, 0).sign())
        plan: dict[str, Any] = {"tensors": self.has_curvature, "seed": self.shared.seed, "hessian": hessian}
        plan["pieces"] = self.pieces
        return traces.Prober(self.problem, self.rest, fixed, **plan)

    @cached_property
    def diagonals(self) -> Diagonals:
        """The exact diagonals of the matrix that is probed."""
        stops = {"asked": self.shared.asked, "agree": self.shared.agree}
        return Diagonals(self.problem, self.rest, self.has_curvature, **stops, pieces=self.pieces)

    def forms_along(self, vector: torch.Tensor, which: str) -> torch.Tensor | None:
        """Differentiate every row's loss twice along a vector (see `forms_along`), `which` by name."""

        def work() -> list[torch.Tensor]:
            forms = forms_along(self.problem, self.loss, vector)
            return [] if forms is None else [forms]

        return next(iter(self.pieces.once(f"forms along {which}", work)), None)

    @property
    def steepness(self) -> torch.Tensor:
        """(N,) squared norm of each row's slope of the loss in its logits, to which its H - G is proportional."""
        if not self.splits:
            return torch.ones(self.problem.layout.n, dtype=torch.float64)
        z, y, gradient = self.logits, self.shared.labels, slope(self.loss)
        return torch.cat([gradient(z[s].double(), y[s]).square().sum(1) for s in parts(*z.shape)])

    def probe(
        self, first: int, count: torch.Tensor | int, base: float, *, cell: int = 0, layers: bool = False
    ) -> traces.Probes | None:
        """Draw `count` (cells,) probes from number `first` on, in rounds; those of the rounds before an interrupt.

        A cell of 0 probes is taken exactly. `layers` asks for each tensor's part. `base` is added to the value that the
        progress shows. `cell` is its number of rows, by default `traces.coarse`.

        None after an interrupt before each cell had two probes, of which a variance follows, or its exact value.
        """
        cell = cell or traces.coarse(self.problem.layout.n)
        count = count + torch.zeros(-(-self.problem.layout.n // cell), dtype=torch.long)
        in_round = min(float(count.double().mean()), ROUND)  # probes of a cell that one call draws
        whole = layers or self.prober.whole(in_round, cell)
        key = first, tuple(count.tolist()), cell, whole
        rounds, n = max(1, -(-int(count.max()) // ROUND)), self.problem.layout.n
        if key not in self._probes and not self.shared.stopped:
            if not bool(count.all()):
                self.shared.progress(0.0, f"Tr(H), the diagonal of {int((count == 0).sum())} cells of rows")
                chosen = count == 0
                self._probes[key] = traces.exactly(self.diagonals(cell, chosen), chosen, cell, whole)
            for r in range(rounds):
                start, stop = (first + count * i // rounds for i in (r, r + 1))
                probes = self.prober(start, stop, cell, whole=whole)
                self._probes[key] = self._probes[key] + probes if key in self._probes else probes
                mean = traces.summarise(self._probes[key], n)
                self.shared.progress((r + 1) / rounds, f"Tr(H) {base + mean.value:.4g} ± {mean.se:.2g}")
                self.shared.agree()
        done = self._probes.get(key)
        # forms[:, 0] (cells,) is the number of probes so far, 1 of a cell that was taken exactly (count 0)
        return done if done is not None and bool((done.forms[:, 0] >= count.clamp(1, 2)).all()) else None
