"""Second derivatives carried forward: against three reverse passes, finite differences and written-out formulas."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from calibcli.core.errors import UsageError
from calibcli.networks import checkpoint, losses
from calibcli.networks.derivatives import normalisation
from calibcli.networks.derivatives.jets import Jets
from calibcli.networks.derivatives.normalisation import JetNorm
from calibcli.networks.derivatives.rules import SMOOTH
from calibcli.networks.losses.penalties import hessian_trace, moving, second_derivative, signs

torch.set_num_threads(1)

Function = Callable[..., Any]


class Odd(nn.Module):
    """What networks do besides: writing in place, dropout, pooling, other norms, several outputs, scalars."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn = nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8)
        self.group, self.instance = nn.GroupNorm(2, 8), nn.InstanceNorm2d(8, affine=True)
        self.plain, self.fixed = nn.BatchNorm2d(8, affine=False), nn.BatchNorm2d(8)
        self.layer, self.act, self.drop = nn.LayerNorm(8), nn.ReLU(inplace=True), nn.Dropout(0.2)
        self.scale, self.linear = nn.Parameter(torch.tensor(1.3)), nn.Linear(8, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.act(self.bn(self.conv(x)))
        y = F.gelu(self.group(x))
        y += self.fixed.eval()(self.instance(x)) * self.scale
        a, b = self.plain(F.max_pool2d(y, 2)).chunk(2, 1)
        z = torch.cat([a.tanh(), 1 - b / 2], 1).mean((2, 3))
        logits = self.linear(self.drop(self.layer(z)))
        assert isinstance(logits, Tensor)
        return logits


def network(arch: str) -> tuple[nn.Module, Tensor, Tensor]:
    torch.manual_seed(0)
    model = (Odd() if arch == "odd" else checkpoint.build(arch)).double().train()
    for p in model.parameters():
        if p.ndim == 1:
            p.data += 0.2 * torch.randn_like(p)
    x = torch.randn(8, 3, 32, 32, dtype=torch.float64)
    x = x if arch.startswith(("vit", "resnet18")) else x[:, :, ::4, ::4]
    return model, x.flatten(1) if arch.startswith("mlp") else x, torch.arange(8) % 10


ARCHITECTURES = [
    *("mlp:inputs=192", "cnn", "resnet:depth=8", "resnet:depth=8,shortcut=B", "vit:depth=1,dim=24", "odd"),
    *("resnet18:width=0.125", "wide_resnet:depth=10,widen=1"),
]


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.one_in(5)
def test_jets_are_three_reverse_passes(arch: str) -> None:
    model, x, y = network(arch)
    parameters, generator = moving(model), torch.Generator().manual_seed(1)
    jets = Jets(parameters, signs(parameters, 2, generator))
    with jets:
        z = model(x)
    found = jets.of(z)
    assert found is not None, jets.lost
    got = torch.stack([second_derivative(z, y, *jet) for jet in found]).mean()
    want = hessian_trace(z, y, parameters, jets.directions)
    torch.testing.assert_close(got, want, rtol=1e-8, atol=1e-10)
    slopes = (torch.autograd.grad(v, parameters, retain_graph=True, materialize_grads=True) for v in (got, want))
    for p, a, b in zip(parameters, *slopes):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-8 * float(b.abs().max() + 1), msg=f"shape {p.shape}")


def penalty(model: nn.Module, x: Tensor, y: Tensor, spec: str) -> Tensor:
    objective, generator = losses.objective(spec), torch.Generator().manual_seed(3)
    torch.manual_seed(5)
    with objective.around(model, 0, generator):
        z = model(x)
    return objective(losses.Batch(model, z, y, 0, generator))


@pytest.mark.one_in(3)
@pytest.mark.parametrize("kind", ["hessian", "ggn"])
@pytest.mark.parametrize("arch", ["mlp:inputs=192", "cnn", "resnet:depth=8", "vit:depth=1,dim=24", "odd"])
def test_gradient_against_finite_differences(arch: str, kind: str) -> None:
    model, x, y = network(arch)
    spec = f"ce+trace:weight=0.1,kind={kind}"
    penalty(model, x, y, spec).backward()
    generator, h = torch.Generator().manual_seed(4), 1e-7
    toward = [torch.randn(p.shape, generator=generator, dtype=p.dtype) for p in model.parameters()]
    slope = sum(float((p.grad * v).sum()) for p, v in zip(model.parameters(), toward) if p.grad is not None)
    ends = []
    for sign in (1, -1):
        moved = copy.deepcopy(model)
        with torch.no_grad():
            for p, v in zip(moved.parameters(), toward):
                p.add_(v, alpha=sign * h)
        ends.append(float(penalty(moved, x, y, spec).detach()))
    assert (ends[0] - ends[1]) / (2 * h) == pytest.approx(slope, rel=1e-4)


class Cube(torch.autograd.Function):
    """x³, unknown to everyone."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return 3 * g * x**2


class Hidden(nn.Module):
    def __init__(self, known: bool) -> None:
        super().__init__()
        self.conv, self.bn, self.linear = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Linear(4, 10)
        self.cube: Function = (lambda x: x**3) if known else Cube.apply

    def forward(self, x: Tensor) -> Tensor:
        out = self.linear(self.cube(self.bn(self.conv(x))).mean((2, 3)))
        assert isinstance(out, Tensor)
        return out


def test_lost_jets_give_the_same_penalty() -> None:
    """A function that hides what it does is noticed, and differentiated in reverse."""
    found = []
    for known in (True, False):
        torch.manual_seed(0)
        model = Hidden(known).double()
        x, y = torch.randn(5, 3, 6, 6, dtype=torch.float64), torch.arange(5)
        parameters = moving(model)
        jets = Jets(parameters, signs(parameters, 1, torch.Generator()))
        with jets:
            assert (jets.of(model(x)) is not None) == known
        assert known or "history" in jets.lost
        model.zero_grad()
        penalty(model, x, y, "ce+trace:weight=0.1").backward()
        found.append(torch.cat([p.grad.flatten() for p in parameters if p.grad is not None]))
    torch.testing.assert_close(*found, rtol=1e-9, atol=1e-12)


def test_detached_values_do_not_move() -> None:
    torch.manual_seed(0)
    layer = nn.Linear(3, 2)
    jets = Jets(moving(layer), signs(moving(layer), 1, torch.Generator()))
    with jets:
        y = layer(torch.randn(4, 3))
        with torch.no_grad():
            fixed = y * 2
        assert jets.of(y) is not None
        assert jets.of(y.detach()) is None
        assert jets.of(y + fixed) is not None
    assert not jets.lost


def test_writing_into_a_value_is_noticed() -> None:
    for write in (lambda h: h.view(-1).add_(1.0), lambda h: h[:, :1].mul_(2.0)):
        layer = nn.Linear(3, 2)
        jets = Jets(moving(layer), signs(moving(layer), 1, torch.Generator()))
        with jets:
            h = layer(torch.randn(4, 3))
            write(h)
            y = h * 2
        assert jets.of(y) is None
        assert jets.lost


def test_a_wrong_third_derivative_is_refused() -> None:
    """PyTorch's norms have one, so that the model must run within `around`."""
    for norm in (nn.BatchNorm1d(4), nn.LayerNorm(4), nn.GroupNorm(2, 4)):
        model = nn.Sequential(nn.Linear(3, 4), norm, nn.Linear(4, 2))
        x, y = torch.randn(5, 3), torch.tensor([0, 1, 0, 1, 1])
        batch = losses.Batch(model, model(x), y, 0, torch.Generator())
        with pytest.raises(UsageError, match="wrong gradient"):
            losses.objective("ce+trace:weight=1")(batch)
        losses.objective("ce+trace:weight=1,kind=ggn")(batch)
        penalty(model, x, y, "ce+trace:weight=1")
    model[1] = nn.BatchNorm1d(4).eval()
    losses.objective("ce+trace:weight=1")(losses.Batch(model, model(x), y, 0, torch.Generator()))


def test_jet_norm_against_the_formula() -> None:
    torch.manual_seed(0)
    x, x1, x2 = (torch.randn(5, 3, 4, dtype=torch.float64, requires_grad=True) for _ in range(3))
    w = torch.randn(3, dtype=torch.float64, requires_grad=True)
    w1, b1 = torch.randn(2, 3, dtype=torch.float64)

    def curve(t: Tensor) -> Tensor:
        y = normalisation.standardised(x + t * x1 + t * t / 2 * x2, (0, 2), 0.1)[0]
        return y * (w + t * w1).view(1, 3, 1) + (t * b1).view(1, 3, 1)

    def slope(f: Function) -> Function:
        return lambda t: torch.func.jvp(f, (t,), (torch.ones_like(t),))[1]

    zero = torch.zeros((), dtype=torch.float64)
    want = slope(curve)(zero), slope(slope(curve))(zero)
    centre, rate = x.mean((0, 2)).detach(), (x.var((0, 2), correction=0) + 0.1).rsqrt().detach()
    got = JetNorm.apply(x, x1, x2, w, w1, b1, centre, rate)  # type: ignore[no-untyped-call]
    for a, b in zip(got, want):
        torch.testing.assert_close(a, b)
        g = torch.randn_like(a)
        for p, q in zip(
            torch.autograd.grad(a, (x, x1, x2, w), g, retain_graph=True),
            torch.autograd.grad(b, (x, x1, x2, w), g, retain_graph=True, materialize_grads=True),
        ):
            torch.testing.assert_close(p, q)


def unary() -> list[Function]:
    """Smooth functions of one tensor."""
    x, found = torch.rand(2, 4, 4), []
    for f in SMOOTH:
        for call in (f, lambda v, f=f: f(v, 1), lambda v, f=f: f(v, 2)):  # softmax over a dimension, pooling by two
            try:
                if not isinstance(call(x), Tensor):
                    continue
            except (TypeError, RuntimeError, ValueError):
                continue
            found.append(call)
            break
    return found


@pytest.mark.filterwarnings("ignore:Implicit dimension")
def test_smooth_functions_carry_jets_and_their_gradients() -> None:
    functions = unary()
    assert len(functions) > 30
    for call in functions:
        torch.manual_seed(0)
        p = nn.Parameter(torch.rand(2, 4, 4, dtype=torch.float64) + 0.2)
        v = torch.randn_like(p).detach()
        jets = Jets([p], [[v]])
        with jets:
            y = call(p * p)
        found = jets.of(y)
        assert found is not None, jets.lost
        weights = torch.randn_like(y).detach()
        assert found[0][1] is not None
        got = (found[0][1] * weights).sum()
        first = torch.autograd.grad((call(p * p) * weights).sum(), p, create_graph=True)[0]
        second = torch.autograd.grad((first * v).sum(), p, create_graph=True)[0] if first.requires_grad else 0 * first
        want = (second * v).sum()
        torch.testing.assert_close(got, want)
        slopes = []
        for t in (got, want):
            slope = torch.autograd.grad(t, p, allow_unused=True)[0] if t.requires_grad else None
            slopes.append(torch.zeros_like(p) if slope is None else slope)
        torch.testing.assert_close(*slopes)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_norms_are_those_of_pytorch(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x = torch.randn(4, 6, 5, 5).to(dtype).requires_grad_()
    w, b = torch.randn(2, 6).to(dtype)
    calls: list[tuple[Function, tuple[Any, ...]]] = [
        (F.batch_norm, (torch.zeros(6, dtype=dtype), torch.ones(6, dtype=dtype), w, b, True, 0.1, 1e-5)),
        (F.batch_norm, (None, None, None, None, True)),
        (F.layer_norm, ((5, 5),)),
        (F.group_norm, (3, w, b, 1e-3)),
        (F.instance_norm, (None, None, w, b)),
        (F.instance_norm, (torch.zeros(6, dtype=dtype), torch.ones(6, dtype=dtype), w, b)),
    ]
    calls += [(F.rms_norm, ((5,), w[:5]))] if hasattr(F, "rms_norm") else []
    tolerance = {"rtol": 0.05, "atol": 0.2} if dtype == torch.bfloat16 else {}
    for function, options in calls:
        ours, theirs = copy.deepcopy(options), copy.deepcopy(options)
        got, want = normalisation.EXACT[function](x, *ours), function(x, *theirs)
        assert got.dtype == want.dtype
        torch.testing.assert_close(got, want, **tolerance)
        for a, b in zip(ours, theirs):
            if isinstance(a, Tensor):
                torch.testing.assert_close(a, b, **tolerance)  # the running statistics
        g = torch.randn_like(want)
        slopes = [torch.autograd.grad(y, x, g, retain_graph=True)[0] for y in (got, want)]
        torch.testing.assert_close(*slopes, **tolerance)
        if function in (F.layer_norm, F.group_norm):
            with torch.autocast("cpu", torch.bfloat16):
                assert normalisation.EXACT[function](x, *ours).dtype == function(x, *theirs).dtype


def test_norms_are_right_at_the_third_derivative() -> None:
    torch.manual_seed(0)
    x = torch.randn(3, 4, 2, dtype=torch.float64, requires_grad=True)
    w, b = torch.randn(2, 4, dtype=torch.float64)
    v = torch.randn_like(x)

    def second(norm: Function) -> Function:
        def of(x: Tensor) -> Tensor:
            (g,) = torch.autograd.grad(norm(x).pow(3).sum(), x, create_graph=True)
            (h,) = torch.autograd.grad((g * v).sum(), x, create_graph=True)
            return h

        return of

    for norm in (
        lambda x: normalisation.batch_norm(x, None, None, w, b, True),
        lambda x: normalisation.layer_norm(x, (2,), w[:2], b[:2], 0.1),
        lambda x: normalisation.group_norm(x, 2, w, b),
    ):
        assert torch.autograd.gradcheck(second(norm), (x,))
