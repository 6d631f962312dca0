"""Parts of the curvature engine alone: Lanczos and density on planted spectra, probes, rows, ranks."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from curvature_models import MODELS, Focal, setup
from forks import ended, ranks
from torch import nn

from calibcli.core.result import Result
from calibcli.networks import device
from calibcli.networks.curvature import engine, measure
from calibcli.networks.curvature.loss import Pairs, logit_hessian, read
from calibcli.networks.curvature.memory_plan import Layout
from calibcli.networks.curvature.operator import SecondDerivative, hessian_scalar
from calibcli.networks.curvature.per_row_gradients import RowNorms, outer
from calibcli.networks.curvature.problem import CurvatureProblem, Tensors, normal, signs, twin
from calibcli.networks.curvature.spectrum import Lanczos, Record, Ritz, Sketch, certify, density, quadrature
from calibcli.networks.losses import CrossEntropy


class Planted:
    """A symmetric matrix with a known spectrum."""

    def __init__(self, values: torch.Tensor) -> None:
        self.size = len(values)
        q, _ = torch.linalg.qr(torch.randn(self.size, self.size, dtype=torch.float64))
        self.matrix = q @ torch.diag(values.double()) @ q.T

    def matvec(self, vector: torch.Tensor) -> torch.Tensor:
        return self.matrix @ vector.double()


def run(values: torch.Tensor, steps: int, **kwargs: object) -> Lanczos:
    torch.manual_seed(0)
    lanczos = Lanczos(Planted(values), lambda k: normal(len(values), 0, k), **kwargs)  # type: ignore[arg-type]
    for _ in range(steps):
        lanczos.extend()
    return lanczos


def test_lanczos_finds_the_ends_and_no_ghosts() -> None:
    values = torch.cat([torch.linspace(-1, 1, 196), torch.tensor([5.0, 10.0, 10.5, -4.0])])
    lanczos = run(values, 120)
    found = lanczos.ritz()
    assert torch.allclose(found.values[-3:], torch.tensor([5.0, 10.0, 10.5]).double(), atol=1e-12)
    assert float(found.values[0]) == pytest.approx(-4, abs=1e-12)
    assert float(found.values[-1] - found.values[-2]) == pytest.approx(0.5)  # no copy of a converged value
    x = lanczos.vector(found.coordinates[:, -1])
    matrix = lanczos.operator.matrix  # type: ignore[attr-defined]
    assert float((matrix @ x - 10.5 * x).norm()) < 1e-11


@pytest.mark.slow
def test_products_of_the_run_certify_as_a_true_product_does() -> None:
    model, inputs, labels = setup("cnn", n=64)
    problem = CurvatureProblem(
        model, Tensors(inputs, labels), device=torch.device("cpu"), dtype=torch.float64, batch_size=16
    )
    operator = SecondDerivative(problem, hessian_scalar(CrossEntropy()))
    record = Record(operator, most=30)
    lanczos = Lanczos(record, lambda k: normal(problem.size, 0, k))
    for _ in range(12):
        lanczos.extend()
    ritz = lanczos.ritz()
    chosen = [11, 10, 9, 0]
    found = record.certificate(0, ritz.values[chosen], ritz.coordinates[:, chosen])
    assert found is not None
    true = certify(operator, lanczos.vectors(chosen), ritz.values[chosen])
    assert (found.products, true.products) == (0, 1)
    for name in ("value", "residual", "sampling", "bias"):
        assert getattr(found, name) == pytest.approx(getattr(true, name), rel=1e-9)
        assert getattr(found, name) != pytest.approx(1.01 * getattr(true, name), rel=1e-9)
    for _ in range(25):
        lanczos.extend()
    last = lanczos.ritz()
    assert len(record.images) == 30
    again = record.certificate(0, last.values[-1:], last.coordinates[:, -1:])  # converged within what is remembered
    assert again is not None
    assert again.residual < 1e-9
    assert record.certificate(0, last.values[18:19], last.coordinates[:, 18:19]) is None


def test_a_sketch_keeps_sums_and_norms() -> None:
    torch.manual_seed(0)
    vectors = torch.randn(40, 1003, dtype=torch.float64)
    sketch = Sketch(1003, torch.device("cpu"))
    found = torch.stack([sketch(v) for v in vectors])
    assert torch.allclose(found.sum(0), sketch(vectors.sum(0)))
    ratio = found.square().sum(1) / vectors.square().sum(1)
    assert float(ratio.mean()) == pytest.approx(1, abs=0.1)
    assert float(ratio.std()) < 0.3  # √(2 / 64) = 0.18


def test_batch_norm_as_an_affine_map() -> None:
    model, inputs, labels = setup("cnn", n=9)
    model[5] = nn.BatchNorm2d(4, affine=False).double()
    twin = copy.deepcopy(model).eval()
    problem = CurvatureProblem(model, Tensors(inputs, labels), device=torch.device("cpu"), dtype=torch.float64)
    assert "forward" in vars(problem.model[1])
    assert "forward" not in vars(model[1])
    operator = SecondDerivative(problem, hessian_scalar(CrossEntropy()))
    v = normal(problem.size, 0, 0)
    loss = torch.nn.functional.cross_entropy(twin(inputs), labels)
    gradient = torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, [*twin.parameters()], create_graph=True)])
    true = torch.cat([h.reshape(-1) for h in torch.autograd.grad(gradient, [*twin.parameters()], v)])
    assert torch.allclose(operator.matvec(v), true, rtol=1e-9, atol=1e-12)


def test_error_of_a_ritz_value_in_closed_form() -> None:
    """The square of its residual over its distance to the next, or the residual where the next is nearer than that."""
    values, residuals = torch.tensor([0.0, 1.0, 1.25, 5.0]), torch.tensor([0.5, 0.5, 0.5, 0.5])
    ritz = Ritz(values, residuals, torch.eye(4))
    assert [ritz.value_error(i) for i in range(4)] == pytest.approx([0.25, 0.5, 0.5, 0.25 / 3.75])
    assert ritz.value_error(-1) == ritz.value_error(3)


def test_ritz_residuals_are_true_residuals_also_after_restarts() -> None:
    values = torch.cat([torch.linspace(0, 1, 296), torch.tensor([1.1, 1.2, 1.4, 2.0])])
    for kwargs in ({}, {"capacity": 20, "keep": 4}, {"capacity": 20, "keep": 4, "storage": torch.float32}):
        lanczos = run(values, 45, **kwargs)
        found = lanczos.ritz()
        assert (lanczos.restarts > 0) == bool(kwargs)
        for i in (-1, -2, 0):
            x = lanczos.vector(found.coordinates[:, i]).double()
            matrix = lanczos.operator.matrix  # type: ignore[attr-defined]
            true = float((matrix @ x - (x @ matrix @ x) * x).norm())
            assert float(found.residuals[i]) == pytest.approx(true, rel=0.02, abs=2e-7)
        assert float(found.values[-1]) == pytest.approx(2.0, abs=1e-7)


def test_an_interrupt_during_a_product_leaves_what_was_known() -> None:
    lanczos = run(torch.linspace(-1, 1, 50), 5)
    before, matvec = lanczos.ritz(), lanczos.operator.matvec

    def interrupted(vector: torch.Tensor) -> torch.Tensor:
        raise KeyboardInterrupt

    lanczos.operator.matvec = interrupted  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        lanczos.extend()
    assert torch.equal(lanczos.ritz().values, before.values)
    assert float(lanczos.vector(before.coordinates[:, -1]).norm()) == pytest.approx(1)
    lanczos.operator.matvec = matvec  # type: ignore[method-assign]
    lanczos.extend()
    assert torch.allclose(lanczos.ritz().values, run(torch.linspace(-1, 1, 50), 6).ritz().values)


def test_invariant_subspaces_are_left_and_equal_eigenvalues_counted() -> None:
    lanczos = run(torch.tensor([3.0, 3.0, 1.0, 1.0, 0.0, 0.0, 0.0]), 7)
    assert lanczos.exhausted
    assert torch.allclose(lanczos.ritz().values, torch.tensor([0, 0, 0, 1, 1, 3, 3]).double(), atol=1e-12)
    found = quadrature(lanczos, 80)
    assert len(found.nodes) == 3  # the density reads the first run alone
    assert float(found.weights.sum()) == pytest.approx(1)


@pytest.mark.slow
def test_density_band_has_the_size_of_the_error() -> None:
    torch.manual_seed(0)
    values = torch.randn(400).double()
    operator = Planted(values)
    runs = []
    for k in range(60):
        lanczos = Lanczos(operator, lambda j, k=k: normal(400, 0, k))  # type: ignore[misc]
        for _ in range(40):
            lanczos.extend()
        runs.append(quadrature(lanczos, 40))
    single = [density([r], 400, sigma=0.3) for r in runs]
    at = torch.tensor([-1.0, 0.0, 1.5]).double()
    kernel = torch.exp(-((at[:, None] - values) ** 2) / 0.18) / (0.3 * (2 * torch.pi) ** 0.5)
    true = kernel.mean(1)
    found = torch.stack([d.values[(d.grid[:, None] - at).abs().argmin(0)] for d in single])
    claimed = torch.stack([d.se[(d.grid[:, None] - at).abs().argmin(0)] for d in single]).mean(0)
    assert torch.allclose(found.mean(0), true, rtol=0.03)
    assert torch.allclose(found.std(0), claimed, rtol=0.35)


def test_what_the_steps_leave_open_holds_the_measure() -> None:
    """Of one start vector the measure is known: every cut lies within the bounds, which close as the steps grow."""
    torch.manual_seed(0)
    values = torch.cat([0.02 * torch.randn(280), 3 * torch.rand(20)]).double().sort().values
    start = normal(300, 0, 5)
    operator = Planted(values)
    measure = (torch.linalg.eigh(operator.matrix).eigenvectors.T @ start).square() / start.square().sum()
    lanczos = Lanczos(operator, lambda k: start.clone())
    widths = []
    for steps in (8, 20, 60):
        while lanczos.steps < steps:
            lanczos.extend()
        found = quadrature(lanczos, steps)
        for x in torch.linspace(-0.08, 3.1, 50).tolist():
            low, high = found.below(x)
            true = float(measure[values < x].sum())
            assert low - 1e-9 <= true <= high + 1e-9
            assert low - 1e-9 <= float(found.weights[found.nodes < x].sum()) <= high + 1e-9
        low, high = found.below(-0.01)
        widths.append(high - low)
        d = density([found], 300, sigma=0.02)
        smooth = torch.exp(-((d.grid[:, None] - values) ** 2) / 0.0008) @ measure / (0.02 * (2 * torch.pi) ** 0.5)
        assert bool((d.least <= smooth + 1e-9).all())
        assert bool((smooth <= d.most + 1e-9).all())
    assert widths[0] > 0.2
    assert widths[2] < 0.5 * widths[0]


@pytest.mark.slow
def test_the_negative_share_is_covered_from_few_steps_on() -> None:
    torch.manual_seed(1)
    values = torch.cat([0.02 * torch.randn(500), 3 * torch.rand(20)]).double()
    for steps in (6, 15):
        missed = 0
        for k in range(40):
            lanczos = Lanczos(Planted(values), lambda j, k=k: normal(520, 1, k))  # type: ignore[misc]
            for _ in range(steps):
                lanczos.extend()
            d = density([quadrature(lanczos, steps)], 520)
            low, high = d.interval(1.96)
            missed += not low <= float((values < -d.sigma).double().mean()) <= high
        assert missed <= 4


def test_probes_are_a_function_of_seed_row_and_number() -> None:
    a, later = signs(1000, 1, 2, range(3, 5))
    assert torch.equal(a, signs(1000, 1, 2, range(1, 4))[2])
    assert torch.equal(a[:500], signs(500, 1, 2, range(3, 4))[0])
    assert set(a.tolist()) == {-1, 1}
    assert abs(float(a.double().mean())) < 0.15
    others = [signs(1000, *other, range(3, 4))[0] for other in ((2, 2), (1, 3))]
    for other in (later, *others):
        assert abs(float(torch.dot(a.double(), other.double()))) < 150
    assert torch.equal(normal(10, 1, 0), normal(10, 1, 0))
    assert not torch.equal(normal(10, 1, 0), normal(10, 1, 1))


@pytest.mark.parametrize("n", [1, 7, 256, 300, 1000, 5001])
@pytest.mark.parametrize("world", [1, 2, 3])
@pytest.mark.parametrize("micro", [1, 32, 256])
def test_micro_batches_cover_every_row_once_and_straddle_nothing(n: int, world: int, micro: int) -> None:
    seen: list[int] = []
    for rank in range(world):
        layout = Layout(n, micro, rank, world)
        for rows in layout.batches(min(micro, layout.group)):
            assert rows.start // layout.group == (rows.stop - 1) // layout.group
        for rows in layout.batches():
            assert rows.start // 256 == (rows.stop - 1) // 256
            assert len(rows) <= micro
            seen += rows
    assert seen == list(range(n))
    assert float(layout.weights.sum()) == pytest.approx(1)


@pytest.mark.parametrize("loss", [CrossEntropy(), Focal(0.5), Focal(3.0), Focal(3.0, known=False)])
def test_pairs_are_the_hessian_in_the_logits(loss: CrossEntropy) -> None:
    torch.manual_seed(0)
    z, y = 3 * torch.randn(6, 4).double(), torch.tensor([0, 1, 2, 3, 0, 1])
    pairs = Pairs(loss, z, y)
    rows, columns = torch.arange(6).repeat_interleave(4), torch.arange(4).repeat(6)
    u = pairs.cotangents(rows, columns)
    built = (pairs.weights.reshape(-1, 1, 1) * u[:, :, None] * u[:, None, :]).view(6, 4, 4, 4).sum(1)
    assert torch.allclose(built, logit_hessian(loss, z, y), atol=1e-12)
    assert torch.allclose(pairs.mass.flatten(), (pairs.weights.flatten().abs() * u.square().sum(1)), atol=1e-12)


@pytest.mark.parametrize("name", MODELS)
def test_row_norms_by_layer_by_vmap_and_row_by_row(name: str) -> None:
    model, inputs, labels = setup(name)
    problem = CurvatureProblem(model, Tensors(inputs, labels), device=torch.device("cpu"), dtype=torch.float64)
    problem.classes = 3
    norms = RowNorms(problem)
    rows, u = torch.tensor([3, 0, 5, 3]), torch.randn(4, 3).double()
    first = norms(rows, u)
    assert norms.mapped == (name != "gru")
    assert bool(norms.by_layer.all()) == (name not in ("tied", "gru"))  # used twice; without a rule, nor vmap
    if name == "gru":
        return
    norms.by_vmap, norms.by_layer = torch.ones_like(norms.by_vmap), torch.zeros_like(norms.by_layer)
    assert torch.allclose(first, norms(rows, u), rtol=1e-10)
    norms.by_vmap = torch.zeros_like(norms.by_vmap)
    assert not norms.mapped
    assert torch.allclose(first, norms(rows, u), rtol=1e-10)


def test_both_ways_to_the_norm_of_an_outer_product() -> None:
    torch.manual_seed(0)
    for places, i, o in ((2, 9, 8), (30, 3, 4)):  # by Gram matrices, and directly
        a, d = torch.randn(5, places, i).double(), torch.randn(5, places, o).double()
        assert torch.allclose(outer(a, d), torch.einsum("nlo,nli->noi", d, a).square().sum((1, 2)))


def alone_and_together(work: Callable[[], Result], tmp_path: Path) -> tuple[Result, Result]:
    """What one process finds, and what the first of two does."""

    def write() -> None:
        with device.process_group(torch.device("cpu")):
            (tmp_path / f"{device.rank()}.json").write_text(work().to_json())

    alone = work()
    assert [ended(child) for child in ranks(write)] == [0, 0]
    one, other = (Result.from_json((tmp_path / f"{rank}.json").read_bytes()) for rank in range(2))
    assert one == other
    assert one.facts["ranks"] == 2
    return alone, one


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_two_ranks_equal_one(tmp_path: Path) -> None:
    def work() -> Result:
        model, inputs, labels = setup("silu", n=290)
        specs = ("lambda_max", "top:k=2", "trace:probes=2", "trace_ggn", "density:steps=8", "grad_norm")
        return measure(model, (inputs, labels), *specs, loss=Focal(2.0))

    one, two = alone_and_together(work, tmp_path)
    for a, b in zip(one.estimates, two.estimates, strict=True):
        assert a.value == pytest.approx(b.value, rel=1e-12), a.name
        assert a.low == pytest.approx(b.low, rel=1e-9), a.name
        assert (a.detail.get("estimator_se") or 0) == pytest.approx(b.detail.get("estimator_se") or 0, rel=1e-9)


def test_one_pass_gives_logits_and_what_the_heaviest_pairs_weigh() -> None:
    model, inputs, labels = setup("mlp", n=37)
    problem = CurvatureProblem(
        model, Tensors(inputs, labels), device=torch.device("cpu"), dtype=torch.float64, batch_size=8
    )
    problem.classes = 3
    norms, loss = RowNorms(problem), CrossEntropy()
    logits, known = read(problem, (loss, labels, norms))
    assert torch.equal(logits, read(problem)[0])
    assert bool(read(problem)[1].isnan().all())
    pairs, rows = Pairs(loss, logits, labels), torch.arange(37)
    columns = pairs.mass.argmax(1)
    assert torch.equal(known[:, 0], columns.double())
    assert torch.allclose(known[:, 1:], norms(rows, pairs.cotangents(rows, columns)), rtol=1e-12)
    sure = torch.where(torch.arange(37)[:, None] < 32, 40.0, 1.0) * nn.functional.one_hot(
        labels, 3
    )  # rows of no weight
    model = nn.Sequential(nn.Linear(3, 3, bias=False).double())
    model[0].weight.data = torch.eye(3, dtype=torch.float64)
    problem = CurvatureProblem(model, Tensors(sure.double(), labels), device=torch.device("cpu"), dtype=torch.float64)
    problem.classes = 3
    assert bool(read(problem, (loss, labels, RowNorms(problem)))[1].isnan().all())


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_ranks_with_unequal_memory_take_the_same_products(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def free(where: torch.device) -> int:
        return 4 * 8 * 43 * (10 if device.rank() or device.world() == 1 else 16)

    monkeypatch.setattr(engine, "free_bytes", free)
    model, inputs, labels = setup("mlp", n=64)
    wanted, found = alone_and_together(
        lambda: measure(model, (inputs, labels), "lambda_min:tol=1e-7", "lambda_max"), tmp_path
    )
    assert found.facts["krylov_basis"] == wanted.facts["krylov_basis"]
    for a, b in zip(found.estimates, wanted.estimates, strict=True):
        assert a.value == pytest.approx(b.value, rel=1e-9)
        assert a.detail["products"] == b.detail["products"]


@pytest.mark.regression
def test_a_float64_copy_names_the_tensors_that_move_in_it() -> None:
    """It kept the names and sizes of all, so that a vector was cut in the wrong places."""
    model, x, y = setup("mlp", n=5)
    problem = CurvatureProblem(model, Tensors(x, y), device=torch.device("cpu"), dtype=torch.float32)
    assert list(problem.places) == problem.names
    for moved in ([1, 3], [], [*range(len(problem.tensors))]):
        wide = twin(problem, moved)
        assert wide.names == [problem.names[i] for i in moved] == list(wide.places)
        assert wide.size == sum(t.numel() for t in wide.tensors)
        assert [p.shape for p in wide.split(wide.zero())] == [t.shape for t in wide.tensors]
