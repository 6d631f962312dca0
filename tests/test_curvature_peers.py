"""curvlinops as an external oracle, on networks where it is right (BatchNorm and ReLU; it is not through LayerNorm)."""

from __future__ import annotations

import pytest
import torch
from curvature_models import K, relu
from torch import Tensor, nn

from calibcli.networks.curvature import Tensors, measure
from calibcli.networks.curvature.operator import SecondDerivative, hessian_scalar
from calibcli.networks.curvature.problem import CurvatureProblem
from calibcli.networks.losses import CrossEntropy

curvlinops = pytest.importorskip("curvlinops", reason="curvlinops is not installed")


class Residual(nn.Module):
    """Convolutions with BatchNorm, a sum, strides."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(2, 3, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(3)
        self.conv2, self.bn2 = nn.Conv2d(3, 3, 3, padding=1, bias=False), nn.BatchNorm2d(3)
        self.head = nn.Linear(3, K)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.bn1(self.conv1(x)))
        x = torch.relu(x + self.bn2(self.conv2(x)))
        return self.head(x.mean((2, 3)))


def residual() -> nn.Module:
    model = Residual()
    with torch.no_grad():
        for _ in range(3):
            model(torch.randn(32, 2, 6, 6))  # running statistics that are not trivial
    return model


CASES = {"relu": (relu, (4,)), "residual": (residual, (2, 6, 6))}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.one_in(2)
def test_products_traces_and_eigenvalues_agree_with_curvlinops(name: str) -> None:
    torch.manual_seed(0)
    make, shape = CASES[name]
    model = make().double().eval()
    x, y = torch.randn(37, *shape).double(), torch.randint(0, K, (37,))
    params = list(model.parameters())
    batches = list(zip(x.split(16), y.split(16)))  # 16, 16, 5
    h = curvlinops.HessianLinearOperator(model, nn.CrossEntropyLoss(), params, batches)
    g = curvlinops.GGNLinearOperator(model, nn.CrossEntropyLoss(), params, batches)
    eye = torch.eye(h.shape[0], dtype=torch.float64)
    explicit, ggn = h @ eye, g @ eye

    problem = CurvatureProblem(model, Tensors(x, y), device=torch.device("cpu"), dtype=torch.float64, batch_size=8)
    ours = SecondDerivative(problem, hessian_scalar(CrossEntropy()))
    for v in torch.randn(3, ours.size).double():
        assert torch.allclose(ours.matvec(v), h @ v, rtol=1e-9, atol=1e-12)

    spectrum = torch.linalg.eigvalsh(explicit)
    expected = {
        "trace:exact=true": explicit.trace(),
        "trace_ggn:exact=true": ggn.trace(),
        "lambda_max:tol=1e-10": spectrum[-1],
        "lambda_min:tol=1e-10": spectrum[0],
    }
    result = measure(model, (x, y), *expected, batch_size=8)
    for spec, true in expected.items():
        found = result.get(spec).value
        assert found == pytest.approx(float(true), rel=1e-9)
        assert found * 1.01 != pytest.approx(float(true), rel=1e-9)  # type: ignore[operator]
