"""What curvature asks of the device: kernels, synchronisations and copies, counted against a plain double backward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pretend
import pytest
import torch
from both import CUDA
from torch.nn import functional as F

from calibcli.networks.architectures import build
from calibcli.networks.curvature import Tensors
from calibcli.networks.curvature.engine import Engine, Shared
from calibcli.networks.curvature.loss import independent
from calibcli.networks.curvature.operator import mean_gradient
from calibcli.networks.curvature.problem import CurvatureProblem, second_order
from calibcli.networks.curvature.selftest import check
from calibcli.networks.losses import CrossEntropy

pytestmark = pytest.mark.pretended
N = 256
RESNET, VIT = "resnet:depth=20,classes=10", "vit:classes=10,image=8,patch=4,dim=16,depth=2,heads=2"


def rows(n: int = N) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(n, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    return x.to(CUDA), (torch.arange(n) % 10).to(CUDA)


def plain(spec: str) -> int:
    """Kernels of one product by a double backward of the whole batch, its graph kept."""
    model, (x, y) = build(spec).to(CUDA).eval(), rows()
    weights = list(model.parameters())
    gradients = torch.autograd.grad(F.cross_entropy(model(x), y), weights, create_graph=True)
    v = [torch.ones_like(w) for w in weights]
    return kernels(lambda: torch.autograd.grad(gradients, weights, v))


def engine(spec: str = RESNET, n: int = N, **options: Any) -> Engine:
    torch.manual_seed(0)
    problem = CurvatureProblem(build(spec), Tensors(*rows(n)), device=CUDA, dtype=torch.float32, **options)
    with second_order(CUDA):
        check(problem, CrossEntropy())
    return Engine(Shared(problem, 0, 0.95, None), CrossEntropy())


def kernels(work: Callable[[], Any]) -> int:
    pretend.reset()
    work()
    return pretend.kernels()


@pytest.fixture(scope="module")
def unit() -> int:
    return plain(RESNET)


@pytest.fixture(scope="module")
def found() -> Engine:
    made = engine()
    with second_order(CUDA):
        for _ in range(3):
            made.krylov.extend()
    return made


def test_a_kept_product_is_no_more_than_a_plain_one(unit: int, found: Engine) -> None:
    """One micro-batch of all rows, whose graph is not built again."""
    v, seen = torch.ones(found.problem.size, device=CUDA), []
    for _ in range(3):
        assert kernels(lambda: found.hessian.matvec(v)) <= unit
        assert (pretend.syncs(), pretend.copies()) == (1, 0)
        seen.append(pretend.counts())
    assert seen[0] == seen[1] == seen[2]


def test_a_step_of_lanczos_waits_six_times(unit: int, found: Engine) -> None:
    assert kernels(found.krylov.extend) <= unit
    assert pretend.syncs() <= 6


def test_a_product_without_memory(unit: int) -> None:
    low = engine(memory="low")
    assert not low.problem.plan.keep
    v = torch.ones(low.problem.size, device=CUDA)
    with second_order(CUDA):
        assert kernels(lambda: low.hessian.matvec(v)) <= 1.5 * unit


def test_groups_are_not_launched_one_by_one(unit: int, found: Engine) -> None:
    """Sixteen groups, in certificates, the first of which is the trial of `vmap`, and in the gradient's noise."""
    with second_order(CUDA):
        assert kernels(lambda: found.certificate(-1)) <= 2.7 * unit
        assert found.hessian.groups.mapped
        assert kernels(lambda: found.certificate(0)) <= 2 * unit
        assert kernels(lambda: mean_gradient(found.hessian)) <= unit
        assert pretend.syncs() <= 2


@pytest.mark.parametrize("rows", [0, 64, 16])
def test_traces_wait_twice_a_micro_batch(unit: int, rows: int) -> None:
    """In the pass for logits and heaviest pairs, and in those for pairs and draws."""
    made = engine(batch_size=rows)
    forward, passes = made.problem.forward, 0

    def counted(model: Any, inputs: Any) -> torch.Tensor:
        nonlocal passes
        passes += 1
        return forward(model, inputs)

    with second_order(CUDA):
        made.shared.norms, made.shared.labels  # noqa: B018
        made.problem.forward = counted  # type: ignore[method-assign]
        assert kernels(lambda: made.ggn(0.01)) <= 3 * unit * passes
        assert passes >= 2 + N // (rows or N)
        assert pretend.syncs() <= 2 * passes


def test_which_tensors_bend(unit: int, found: Engine) -> None:
    with second_order(CUDA):
        assert kernels(lambda: found.has_curvature) <= 2 * unit
        assert not found.has_curvature.any()


def test_the_self_test(unit: int) -> None:
    """And whether rows depend on each other."""
    problem = CurvatureProblem(build(RESNET), Tensors(*rows()), device=CUDA, dtype=torch.float32)
    with second_order(CUDA):
        assert kernels(lambda: check(problem, CrossEntropy())) <= 3 * unit
        assert pretend.syncs() <= 13
        assert kernels(lambda: independent(problem)) <= 0.5 * unit
        assert pretend.syncs() == 1


def test_probes_of_all_cells_together() -> None:
    """A probe of each of 32 cells, and 64 of each, 512 at once."""
    vit, unit = engine(VIT), plain(VIT)
    with second_order(CUDA):
        vit.prober.forward  # noqa: B018
        assert kernels(lambda: vit.probe(0, 1, 0.0)) <= 2 * unit
        assert kernels(lambda: vit.probe(1, 64, 0.0)) <= 6 * unit


@pytest.mark.parametrize(("n", "micro"), [(40, 64), (256, 256), (5000, 4096)])
def test_micro_batches_hold_what_memory_takes(n: int, micro: int) -> None:
    assert engine("mlp:inputs=192,hidden=4,classes=10", n).problem.layout.micro == micro
