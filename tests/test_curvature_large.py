"""Large models and few rows: what is tested, how rows are cut, how sums are kept; and when a run may stop early."""

from __future__ import annotations

import weakref
from typing import Any

import pytest
import torch
from test_curvature import Detached, Wrapped
from test_curvature_parts import Planted
from torch import Tensor, nn

from calibcli.core.errors import InputError
from calibcli.networks.curvature import Tensors, engine, measure, selftest
from calibcli.networks.curvature.operator import FEW, SecondDerivative, Total, hessian_scalar, inner
from calibcli.networks.curvature.problem import CurvatureProblem, normal
from calibcli.networks.curvature.quantities import closeness
from calibcli.networks.curvature.spectrum import Lanczos, certify, remembered_bytes
from calibcli.networks.losses import CrossEntropy


def problem(model: nn.Module, n: int, width: int, **kwargs: Any) -> CurvatureProblem:
    torch.manual_seed(0)
    x, y = torch.randn(n, width), torch.arange(n) % 3
    dtype = next(model.parameters()).dtype
    return CurvatureProblem(model, Tensors(x, y), device=torch.device("cpu"), dtype=dtype, **kwargs)


def test_a_large_model_is_tested_in_its_smaller_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selftest, "LARGEST", 60)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 40), nn.Tanh(), nn.Linear(40, 5), nn.Tanh(), nn.Linear(5, 3))
    one = problem(model, 8, 4)
    assert selftest._moved(one) == [3, 4, 5]  # 5, 15 and 3 elements: with 40 more they would be 63
    found = selftest.check(one, CrossEntropy())
    assert found.difference is not None
    assert found.difference < 1e-3
    assert found.asymmetry < 1e-5
    with pytest.raises(InputError, match="disagrees with a difference"):
        measure(Wrapped(Detached), (torch.randn(20, 4).double(), torch.arange(20) % 3), "lambda_max")


def test_the_self_test_makes_few_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """On four rows: the outputs, one graph, two products, and two gradients in float64; the plan takes none."""
    rows: list[int] = []
    plain = CurvatureProblem.outputs
    monkeypatch.setattr(CurvatureProblem, "outputs", lambda self, x: (rows.append(len(x)), plain(self, x))[1])
    products: list[int] = []
    second = selftest.second
    monkeypatch.setattr(selftest, "second", lambda *args: (products.append(1), second(*args))[1])
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    selftest.check(problem(model, 64, 4), CrossEntropy())
    assert (rows, len(products)) == ([4] * 4, 2)


def test_few_rows_of_a_large_model_are_one_micro_batch() -> None:
    """A row's graph is far smaller than the weights: a micro-batch of the size of its graph alone would be a row."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 256), nn.Tanh(), *(nn.Linear(256, 256) for _ in range(3)), nn.Linear(256, 3))
    one = problem(model, 16, 4)
    one.graph_bytes = 16 << 20  # as of a picture
    one.choose_plan(by_group=False)
    assert one.layout.micro == 8
    one = problem(model, 16, 4)
    one.size, one.graph_bytes = 25_000_000, 45 << 20
    one.choose_plan()
    assert (one.layout.micro, one.plan.keep) == (16, True)
    assert "micro-batches of 16 rows" in one.plan_text
    low = problem(model, 16, 4, memory="low")
    low.size, low.graph_bytes = 25_000_000, 45 << 20
    low.choose_plan()
    assert (low.layout.micro, low.plan.keep) == (2, False)


def test_a_small_model_takes_more_rows_at_once_on_a_cpu() -> None:
    """While their graph stays in the cache: cut at 256 rows, its products would take up to twice the time."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 20), nn.Tanh(), nn.Linear(20, 3))
    rows = []
    for n, graph_bytes, by_group in (
        (960, 1 << 10, True),
        (960, 1 << 14, True),
        (960, 1 << 16, True),
        (5000, 1 << 10, False),
        (5000, 1 << 10, True),  # groups of 256 rows, whose products are remembered
    ):
        one = problem(model, n, 4)
        one.graph_bytes = graph_bytes
        one.choose_plan(by_group)
        rows.append(one.layout.micro)
    assert rows == [1024, 512, 256, 4096, 256]
    at_once, cut = (problem(model, 960, 4, batch_size=size) for size in (0, 256))
    selftest.check(at_once, CrossEntropy())
    assert [len(list(one.layout.batches())) for one in (at_once, cut)] == [1, 4]
    v = normal(at_once.size, 0, 0)
    one, four = (SecondDerivative(p, hessian_scalar(CrossEntropy())).matvec(v) for p in (at_once, cut))
    assert float((one - four).norm() / four.norm()) < 1e-6


def test_products_are_remembered_where_memory_has_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forty products, each with its vector, take a quarter of the free memory at most."""
    torch.manual_seed(0)
    one = problem(nn.Linear(4, 3), 32, 4, batch_size=2)
    needed = 4 * engine.REMEMBERED * remembered_bytes(one.size, torch.float32)
    for free, remembers in ((needed, True), (needed - 1, False)):
        monkeypatch.setattr(engine, "free_bytes", lambda device, free=free: free)
        whole = engine.Engine(engine.Shared(one, 0, 0.95, None), CrossEntropy())
        assert (whole.krylov.operator is whole.record) == remembers


def test_sums_of_few_micro_batches_stay_narrow_and_of_many_are_wide() -> None:
    one = problem(nn.Linear(4, 3), 8, 4)
    parts = [[torch.full((3, 4), 0.1 + i), torch.full((3,), 1e-3)] for i in range(FEW + 1)]
    for count in (0, 1, FEW, FEW + 1):
        total = Total(one)
        for part in parts[:count]:
            total.add(part)
        found = total.value()
        assert found.dtype == (torch.float32 if 0 < count <= FEW else torch.float64)
        true = sum((torch.cat([p.reshape(-1) for p in part]).double() for part in parts[:count]), torch.zeros(15))
        assert torch.allclose(found.double(), true.double(), rtol=1e-6)


def test_inner_products_are_summed_in_float64() -> None:
    torch.manual_seed(0)
    a, b = torch.rand(300_001), torch.rand(300_001)
    assert inner(a, b) == pytest.approx(float(torch.dot(a.double(), b.double())), rel=1e-13)
    assert inner(a, b.double()) == inner(a, b)


@pytest.mark.parametrize("batch", [1, 4, 16])
def test_products_in_float32_do_not_depend_on_micro_batches(batch: int) -> None:
    """Narrow sums (one to eight micro-batches) and wide ones (sixteen) agree to rounding."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 20), nn.Tanh(), nn.Linear(20, 3))
    v = normal(sum(p.numel() for p in model.parameters()), 0, 0)
    true = SecondDerivative(problem(model.double(), 16, 4), hessian_scalar(CrossEntropy())).matvec(v)
    found = SecondDerivative(problem(model.float(), 16, 4, batch_size=batch), hessian_scalar(CrossEntropy())).matvec(v)
    assert float((found - true).norm() / true.norm()) < 1e-6


def stops(values: Tensor, tol: float) -> int:
    torch.manual_seed(0)
    run = Lanczos(Planted(values), lambda k: normal(len(values), 0, k))
    while run.products == 0 or closeness(run, -1, tol, "residual") < 1:
        run.extend()
    return run.products


def test_an_eigenvalue_that_stands_out_takes_four_products() -> None:
    bulk = torch.linspace(-1, 1, 199)
    assert stops(torch.cat([bulk, torch.tensor([400.0])]), 1e-3) == 4
    assert stops(torch.cat([bulk, torch.tensor([400.0, 150.0])]), 1e-3) >= 6  # not by so much
    assert stops(torch.cat([bulk, torch.tensor([1.2])]), 0.3) >= 6  # a loose tolerance does not make it stand out


def test_groups_hold_one_graph_and_one_product_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loop lets go of its last value only after the next is made: of 16 groups that would be two of each."""
    made: dict[str, list[weakref.ref[Tensor]]] = {"gradients": [], "product": []}
    most = dict.fromkeys(made, 0)

    def watched(name: str) -> Any:
        plain = getattr(CurvatureProblem, name)

        def noted(*args: Any, **kwargs: Any) -> list[Tensor]:
            most[name] = max(most[name], sum(one() is not None for one in made[name]))
            found: list[Tensor] = plain(*args, **kwargs)
            made[name].append(weakref.ref(found[0]))
            return found

        return noted

    for name in made:
        monkeypatch.setattr(CurvatureProblem, name, watched(name))
    one = problem(nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)), 32, 4, memory="low")
    hessian = SecondDerivative(one, hessian_scalar(CrossEntropy()))
    vectors = normal(hessian.size, 0, 0).float()[None]
    certify(hessian, vectors, torch.ones(1))
    assert len(made["product"]) == 16
    assert most == {"gradients": 0, "product": 0}


def test_the_self_test_holds_one_wide_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the model; directions and products stay in its precision."""
    seen: list[list[Tensor]] = []
    plain = selftest._Along.disagreement

    def noted(self: Any, exact: list[Tensor], *args: Any) -> float:
        seen.extend([self.v, exact])
        return plain(self, exact, *args)

    monkeypatch.setattr(selftest._Along, "disagreement", noted)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    one = problem(model, 16, 4)
    before = [t.clone() for t in one.tensors]
    selftest.check(one, CrossEntropy())
    assert {t.dtype for pieces in seen for t in pieces} == {torch.float32}
    assert all(torch.equal(a, b) for a, b in zip(before, one.tensors))
    wide = problem(model.double(), 16, 4)
    before = [t.clone() for t in wide.tensors]
    selftest.check(wide, CrossEntropy())
    assert all(torch.equal(a, b) for a, b in zip(before, wide.tensors))
