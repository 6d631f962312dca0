"""Convolution and batch norm made for second derivatives, against PyTorch's and finite differences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from calibcli.networks import checkpoint, losses
from calibcli.networks.derivatives.double_backward import Twice, batch_norm, conv2d

torch.set_num_threads(1)


def tensors(*shapes: tuple[int, ...]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(s, generator=generator, dtype=torch.float64).requires_grad_() for s in shapes]


NORMS = [((5, 3, 4, 2), 1e-5), ((5, 3, 4, 2), 0.5), ((7, 3), 1e-2), ((4, 3, 6), 1e-2)]


@pytest.mark.slow
@pytest.mark.parametrize(("shape", "eps"), NORMS)
def test_batch_norm_to_the_second_derivative(shape: tuple[int, ...], eps: float) -> None:
    x, w, b = tensors(shape, (3,), (3,))

    def norm(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return batch_norm(2 * x + 3, None, None, w, b, True, 0.1, eps)

    assert torch.autograd.gradcheck(norm, (x, w, b))
    assert torch.autograd.gradgradcheck(norm, (x, w, b))


CONVOLUTIONS: list[dict[str, Any]] = [
    {},
    {"stride": 2, "padding": 1},
    {"padding": (1, 0), "dilation": (1, 2)},
    {"groups": 2, "stride": (1, 2)},
]


@pytest.mark.slow
@pytest.mark.parametrize("options", CONVOLUTIONS)
@pytest.mark.parametrize("biased", [True, False])
def test_convolution_to_the_second_derivative(options: dict[str, Any], biased: bool) -> None:
    x, w, b = tensors((2, 4, 4, 5), (4, 4 // options.get("groups", 1), 3, 2), (4,))
    inputs = (x, w, b) if biased else (x, w)

    def convolve(*values: Tensor) -> Tensor:
        return conv2d(*values, **options)

    torch.testing.assert_close(convolve(*inputs), F.conv2d(*inputs, **options))
    assert torch.autograd.gradcheck(convolve, inputs)
    assert torch.autograd.gradgradcheck(convolve, inputs)


@pytest.mark.parametrize("frozen", ["x", "w", "b", "xb", "wb", "xw"])
def test_convolution_with_some_inputs_fixed(frozen: str) -> None:
    values = dict(zip("xwb", tensors((2, 3, 5, 5), (4, 3, 3, 3), (4,))))
    for name in frozen:
        values[name].requires_grad_(False)
    free = [v for v in values.values() if v.requires_grad]

    def second(convolve: Callable[..., Tensor]) -> tuple[Tensor, ...]:
        y = convolve(*values.values(), 1, 1)
        g = torch.autograd.grad(y.sin().sum(), free, create_graph=True)
        return torch.autograd.grad(sum(v.pow(3).sum() for v in g), free)  # type: ignore[arg-type]

    for got, want in zip(second(conv2d), second(F.conv2d)):
        torch.testing.assert_close(got, want)


def penalised(model: nn.Module, x: Tensor, y: Tensor, twice: bool) -> tuple[list[Tensor], list[Tensor]]:
    objective = losses.objective("focal:gamma=2+trace:weight=0.1,kind=ggn")
    model.zero_grad()
    if twice:
        with objective.around(model, 0, torch.Generator()):
            z = model(x)
    else:
        z = model(x)
    objective(losses.Batch(model, z, y, 0, torch.Generator().manual_seed(3))).backward()
    return [p.grad for p in model.parameters() if p.grad is not None], [b.clone() for b in model.buffers()]


@pytest.mark.parametrize("arch", ["resnet:depth=8", "resnet:depth=8,shortcut=B", "cnn", "mlp:inputs=192"])
def test_a_penalised_step_is_that_of_pytorch(arch: str) -> None:
    torch.manual_seed(0)
    model = checkpoint.build(arch).double().train()
    x = torch.randn(6, 3, 8, 8, dtype=torch.float64)
    x = x.flatten(1) if arch.startswith("mlp") else x
    y = torch.arange(6) % 10
    before = {k: v.clone() for k, v in model.state_dict().items()}
    want = penalised(model, x, y, False)
    model.load_state_dict(before)
    got = penalised(model, x, y, True)
    for a, b in zip([*got[0], *got[1]], [*want[0], *want[1]], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)


def test_only_a_due_gauss_newton_penalty_asks_for_it() -> None:
    def asks(spec: str, step: int = 0) -> bool:
        with losses.objective(spec).around(nn.Linear(2, 2), step, torch.Generator()):
            return any(isinstance(mode, Twice) for mode in torch.overrides._get_current_function_mode_stack())

    assert asks("ce+trace:weight=1,kind=ggn,every=2")
    assert not asks("ce+trace:weight=1,kind=ggn,every=2", 1)
    assert not asks("ce+mmce")
    assert not asks("ce+trace:weight=1,kind=ggn+trace:weight=1")


def test_a_third_derivative_is_refused_rather_than_wrong() -> None:
    x, w = tensors((2, 3, 4, 4), (3, 3, 3, 3))
    g = torch.autograd.grad(conv2d(x, w).pow(3).sum(), w, create_graph=True)[0]
    h = torch.autograd.grad(g.square().sum(), w, create_graph=True)[0]
    with pytest.raises(RuntimeError, match="once_differentiable"):
        h.sum().backward()
