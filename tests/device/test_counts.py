"""What a kept Hessian product asks of the device: kernels, synchronisations and copies, counted."""

from __future__ import annotations

import pretend
import pytest
import torch
from both import CUDA, images, network
from torch.nn import functional as F

from calibcli.hessian import Tensors
from calibcli.hessian.engine import Engine, Shared
from calibcli.hessian.operator import SecondDerivative
from calibcli.hessian.problem import Problem
from calibcli.hessian.selftest import check
from calibcli.hessian.settings import second_order
from calibcli.losses import CrossEntropy

pytestmark = pytest.mark.pretended
N = 256


@pytest.fixture(scope="module")
def plain() -> int:
    """Kernels of one product by a double backward of the whole batch, its graph kept."""
    model, (x, y) = network().to(CUDA), images(N)
    loss = F.cross_entropy(model(x.to(CUDA)), y.to(CUDA))
    weights = list(model.parameters())
    gradients = torch.autograd.grad(loss, weights, create_graph=True)
    v = [torch.ones_like(w) for w in weights]
    pretend.reset()
    torch.autograd.grad(gradients, weights, v, retain_graph=True)
    return pretend.kernels()


def kept(memory: str = "auto") -> SecondDerivative:
    x, y = images(N)
    with second_order(CUDA):
        problem = Problem(network(), Tensors(x.to(CUDA), y.to(CUDA)), device=CUDA, dtype=torch.float32, memory=memory)
        check(problem, CrossEntropy())
        hessian = Engine(Shared(problem, 0, 0.95, None), CrossEntropy()).hessian
    assert isinstance(hessian, SecondDerivative)
    hessian.matvec(torch.ones(hessian.size, device=CUDA))
    return hessian


def test_a_kept_product(plain: int) -> None:
    hessian = kept()
    v = torch.ones(hessian.size, device=CUDA)
    pretend.reset()
    hessian.matvec(v)
    assert (pretend.syncs(), pretend.copies()) == (1, 0)
    assert pretend.kernels() <= 1.3 * plain


def test_a_product_is_the_same_work_each_time() -> None:
    """Nothing is built again."""
    hessian = kept()
    v = torch.ones(hessian.size, device=CUDA)
    seen = []
    for _ in range(3):
        pretend.reset()
        hessian.matvec(v)
        seen.append(pretend.counts())
    assert seen[0] == seen[1] == seen[2]
