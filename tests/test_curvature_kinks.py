"""Networks with units exactly at a kink, as fresh ones have: measured with a note; wrong derivatives still refused."""

from __future__ import annotations

import pytest
import torch
from curvature_models import Wrong, dense
from torch import Tensor, nn

from calibcli.core.errors import InputError
from calibcli.networks.curvature import measure, selftest
from calibcli.networks.losses import CrossEntropy


class Cancelling(nn.Module):
    """h² from large numbers that nearly cancel."""

    def forward(self, x: Tensor) -> Tensor:
        return 1e5 * ((1 + 1e-6) * x).square() - 1e5 * x.square()


class Rounded(nn.Module):
    """Its input beside a large number, of which `each` is for every row."""

    def __init__(self, once: float, each: float = 0.0) -> None:
        super().__init__()
        self.once, self.each = once, each

    def forward(self, x: Tensor) -> Tensor:
        large = self.once + self.each * len(x)
        return (x + large) - large


class Faint(nn.Module):
    """Logits whose parameters add a constant, or next to nothing, along the directions of the test."""

    def __init__(self) -> None:
        super().__init__()
        self.bias, self.faint = nn.Parameter(torch.tensor([0.3, -0.2, 0.1])), nn.Parameter(torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.bias + 1e-5 * self.faint


class Layer(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return Wrong.apply(x)  # type: ignore[no-any-return,no-untyped-call]


def fresh(*more: nn.Module) -> nn.Module:
    """A dead layer, then batch norm as it is drawn: its outputs are exactly 0, and so is what the next ReLU gets."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 6), *more, nn.Linear(6, 3),
    )  # fmt: skip
    with torch.no_grad():
        model[0].weight.zero_()
        model[0].bias.fill_(-1.0)
    return model.double()


def test_units_at_a_kink_are_noted_and_not_refused() -> None:
    model, x, y = fresh(), torch.randn(8, 2, 7, 7).double(), torch.arange(8) % 3
    found = measure(model, (x, y), "lambda_max", "grad_norm")
    h, _, gradient = dense(model, x, y, CrossEntropy())
    assert found.get("lambda_max").value == pytest.approx(float(torch.linalg.eigvalsh(h)[-1]), rel=1e-6)
    assert found.get("grad_norm").value == pytest.approx(float(gradient.norm()), rel=1e-9)
    assert sum("kink" in note for note in found.notes) == 1
    assert found.facts["self_test"]["difference"] < 1e-3


def test_a_wrong_derivative_behind_a_kink_is_still_refused() -> None:
    model, x, y = fresh(nn.Tanh(), Layer()), torch.randn(8, 2, 7, 7).double(), torch.arange(8) % 3
    with pytest.raises(InputError, match=r"disagrees with a difference|not symmetric"):
        measure(model, (x, y), "lambda_max")
    _, g, gradient = dense(model, x, y, CrossEntropy())
    found = measure(model, (x, y), "grad_norm", "lambda_max_ggn:tol=1e-8")  # its first derivative is right
    assert found["grad_norm"].value == pytest.approx(float(gradient.norm()), rel=1e-9)
    assert found["lambda_max_ggn"].value == pytest.approx(float(torch.linalg.eigvalsh(g)[-1]), rel=1e-8)


def test_networks_away_from_kinks_have_no_such_note() -> None:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    assert not any("kink" in n for n in measure(model, (torch.randn(8, 4), torch.arange(8) % 3), "grad_norm").notes)


def test_units_that_lie_near_a_kink() -> None:
    """As some of the millions of a large network do: a step that crosses none tells, and nothing is noted."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)).double()
    x, y = torch.randn(4, 4).double(), torch.arange(4) % 3
    with torch.no_grad():
        net[0].bias.copy_(-net[0].weight @ x[0] + 3e-8)
    found = measure(net, (x, y), "grad_norm")
    assert found.facts["self_test"]["difference"] < 1e-3
    assert not any("kink" in note for note in found.notes)


@pytest.mark.regression
def test_rounding_is_told_from_a_wrong_derivative() -> None:
    """A fresh Xception in float32 was said to have a backward pass that cannot be differentiated."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3), Cancelling())
    data = torch.randn(4, 4), torch.arange(4) % 3
    with pytest.raises(InputError, match="products in float32 are rounded to") as caught:
        measure(net, data, "lambda_max")
    assert "--dtype float64" in caught.value.fix
    assert measure(net, data, "lambda_max", dtype=torch.float64)["lambda_max"].value


@pytest.mark.regression
def test_directions_along_which_there_is_no_curvature(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was called not symmetric was rounding of two products that are next to 0 by chance."""
    both = [torch.ones(2, 3), torch.tensor([[1.0, -1, 1], [1, 1, -1]])]
    v, w = ([piece[i] for piece in both] for i in range(2))
    monkeypatch.setattr(selftest, "_directions", lambda problem: [v, w])
    torch.manual_seed(0)
    found = measure(Faint(), (torch.randn(8, 3), torch.arange(8) % 3), "lambda_max")
    assert found.facts["self_test"]["asymmetry"] > selftest.SYMMETRIC
    assert found["lambda_max"].value


@pytest.mark.regression
def test_products_that_float32_rounds_are_noted() -> None:
    """A badly conditioned PNASNet had a Tr(G) 5 % off, with an interval of next to no width and no word."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3), Rounded(3e6))
    data = torch.randn(8, 4), torch.arange(8) % 3
    assert sum("products in float32 are rounded to" in note for note in measure(net, data, "grad_norm").notes) == 1
    assert not any("rounded" in note for note in measure(net, data, "grad_norm", dtype=torch.float64).notes)


@pytest.mark.regression
def test_rounding_is_told_from_rows_that_see_others() -> None:
    """A thin Inception in float32 was said to take something from the other rows."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 3), Rounded(0, 1e5))
    data = torch.randn(8, 4), torch.arange(8) % 3
    with pytest.raises(InputError, match="outputs in float32 are rounded to") as caught:
        measure(net, data, "grad_norm")
    assert "--dtype float64" in caught.value.fix
    assert measure(net, data, "grad_norm", dtype=torch.float64)["grad_norm"].value
