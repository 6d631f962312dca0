"""No label enters the trace of cross-entropy of a piecewise linear network; labels enter those of others."""

from __future__ import annotations

import pytest
import torch
from curvature_models import Focal, K, dense, setup
from torch import Tensor, nn

from calibcli.networks.architectures import build
from calibcli.networks.curvature import measure
from calibcli.networks.losses import CrossEntropy

CE = CrossEntropy()


class Joined(nn.Module):
    """A residual connection around two layers and the concatenation of two branches, each weight used once."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down, self.head = nn.Linear(4, 6), nn.Linear(6, 4), nn.Linear(8, K)

    def forward(self, x: Tensor) -> Tensor:
        inner = x + self.down(nn.functional.leaky_relu(self.up(x)))
        return self.head(torch.cat([inner, inner.clamp(-1, 1)], 1))


def network(name: str) -> tuple[nn.Module, Tensor, Tensor]:
    """In float64, on 7 rows."""
    if name in ("relu", "cnn", "tied", "attention", "silu"):
        return setup(name, n=7)
    torch.manual_seed(1)
    images = torch.randn(7, 3, 8, 8)
    made = {
        "joined": (Joined, images[:, 0, 0, :4]),
        "gelu": (lambda: nn.Sequential(nn.Linear(4, 6), nn.GELU(), nn.Linear(6, K)), images[:, 0, 0, :4]),
        "layer norm": (lambda: nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6), nn.Linear(6, K)), images[:, 0, 0, :4]),
    }
    model, inputs = made[name][0](), made[name][1]
    return model.double(), inputs.double(), torch.randint(0, K, (7,))


def built(spec: str) -> tuple[nn.Module, Tensor, Tensor]:
    """An architecture of calib, after a pass in train mode, so that batch norm has statistics of its own."""
    torch.manual_seed(2)
    model, images = build(spec).double(), torch.randn(4, 3, 8, 8).double()
    model(images)
    return model, images, torch.arange(4) % K


def measured(model: nn.Module, inputs: Tensor, labels: Tensor, *asked: str, loss: object = CE) -> list[float | None]:
    return [one.value for one in measure(model, (inputs, labels), *asked, loss=loss).estimates]  # type: ignore[arg-type]


def moved(labels: Tensor) -> Tensor:
    """The same labels in another order."""
    order = labels[torch.arange(len(labels)).roll(1)]
    assert not torch.equal(order, labels)
    return order


PIECEWISE = ["relu", "cnn", "joined", "mlp:inputs=192,hidden=5/4,classes=3", "cnn:widths=3/4,classes=3"]
PIECEWISE += ["resnet:depth=8,classes=3"]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", PIECEWISE)
def test_no_label_enters_the_trace_of_a_piecewise_linear_network(name: str) -> None:
    """To the last digit, exact and by drawn pairs; λmax moves. The explicit Hessian says the same to rounding."""
    model, inputs, labels = built(name) if ":" in name else network(name)
    asked = ("trace:exact=true", "trace", "fisher_rao", "lambda_max:tol=1e-10")
    exact, drawn, norm, largest = measured(model, inputs, labels, *asked)
    assert exact is not None
    assert exact > 0
    again = measured(model, inputs, moved(labels), *asked)
    assert again[:2] == [exact, drawn]
    assert again[2] == pytest.approx(norm, rel=1e-9)  # θᵀGθ, whose rounding depends on the labels
    assert again[3] != pytest.approx(largest, rel=1e-3)
    if name in ("relu", "joined"):
        assert float(dense(model, inputs, moved(labels), CE)[0].trace()) == pytest.approx(exact, rel=1e-9)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", ["gelu", "layer norm", "attention", "silu", "tied"])
def test_labels_enter_the_trace_of_other_networks(name: str) -> None:
    """Of H, by a part of H - G; that of G has no label in any network."""
    model, inputs, labels = network(name)
    whole, part = measured(model, inputs, labels, "trace:exact=true", "trace_ggn:exact=true")
    again = measured(model, inputs, moved(labels), "trace:exact=true", "trace_ggn:exact=true")
    assert again[0] != pytest.approx(whole, rel=1e-3)
    assert again[1] == part


def test_labels_enter_the_trace_of_a_focal_loss() -> None:
    model, inputs, labels = network("relu")
    (whole,) = measured(model, inputs, labels, "trace:exact=true", loss=Focal(2.0))
    (again,) = measured(model, inputs, moved(labels), "trace:exact=true", loss=Focal(2.0))
    assert again != pytest.approx(whole, rel=1e-3)
