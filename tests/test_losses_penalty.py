"""Penalties and the objective they join: traces against dense matrices, reductions against PyTorch."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from calibcli.networks import losses
from calibcli.networks.losses.penalties import MMCE, Trace, ggn_trace, hessian_trace, signs

torch.set_num_threads(1)


def setting(seed: int = 0) -> tuple[nn.Sequential, Tensor, Tensor]:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3)).double()
    return model, torch.randn(5, 3, dtype=torch.float64), torch.randint(3, (5,))


def batch(model: nn.Module, x: Tensor, y: Tensor, step: int = 0) -> losses.Batch:
    return losses.Batch(model, model(x), y, step, torch.Generator().manual_seed(step))


def dense_trace(model: nn.Module, x: Tensor, y: Tensor, ggn: bool) -> Tensor:
    """The trace from every entry of the diagonal, by autograd, differentiable."""
    parameters = dict(model.named_parameters())

    def forward(*values: Tensor) -> Tensor:
        logits = torch.func.functional_call(model, dict(zip(parameters, values)), (x,))
        assert isinstance(logits, Tensor)
        return logits

    values = tuple(parameters.values())
    if not ggn:
        blocks = torch.autograd.functional.hessian(
            lambda *v: F.cross_entropy(forward(*v), y), values, create_graph=True
        )
        return torch.stack(
            [b[i].flatten(0, v.ndim - 1).flatten(1).diagonal().sum() for i, (b, v) in enumerate(zip(blocks, values))]
        ).sum()
    z = forward(*values)
    p = z.softmax(1)
    total = torch.zeros((), dtype=torch.float64)
    jacobians = torch.autograd.functional.jacobian(forward, values, create_graph=True)
    for j in jacobians:
        j = j.flatten(2)  # (n, k, entries)
        a = torch.diag_embed(p) - p.unsqueeze(2) * p.unsqueeze(1)
        total = total + torch.einsum("nke,nkl,nle->", j, a, j) / len(x)
    return total


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["hessian", "ggn"])
def test_trace_and_its_gradient_are_unbiased(kind: str) -> None:
    model, x, y = setting()
    parameters = list(model.parameters())
    want = dense_trace(model, x, y, kind == "ggn")
    gradient = torch.cat([g.flatten() for g in torch.autograd.grad(want, parameters)])
    generator, values, slopes = torch.Generator().manual_seed(7), [], []
    for _ in range(600):
        if kind == "ggn":
            got = ggn_trace(model(x), y, parameters, 1, generator)
        else:
            got = hessian_trace(model(x), y, parameters, signs(parameters, 1, generator))
        values.append(float(got.detach()))
        g = torch.autograd.grad(got, parameters, materialize_grads=True)
        slopes.append(torch.cat([v.flatten() for v in g]))
    spread = torch.tensor(values, dtype=torch.float64)
    error = float(spread.std() / len(values) ** 0.5)
    assert abs(float(spread.mean()) - float(want.detach())) < 4 * error
    assert error < 0.05 * float(want.detach())
    stacked = torch.stack(slopes)
    scores = (stacked.mean(0) - gradient) / (stacked.std(0) / len(values) ** 0.5 + 1e-12)
    assert float(scores.abs().max()) < 5


def test_mmce_against_loops() -> None:
    model, x, y = setting()
    y[0] = model(x[:1]).argmax()  # one row right at least, and one wrong
    y[1] = (model(x[1:2]).argmax() + 1) % 3
    p, top = model(x).softmax(1).max(1)
    r, a = p.tolist(), (top == y).tolist()
    n = {True: sum(a), False: len(a) - sum(a)}
    total = 0.0
    for i in range(len(a)):
        for j in range(len(a)):
            total += (a[i] - r[i]) * (a[j] - r[j]) * math.exp(-abs(r[i] - r[j]) / 0.4) / (n[a[i]] * n[a[j]])
    got = float(MMCE(weight=3.0)(batch(model, x, y)).detach())
    assert got == pytest.approx(3 * math.sqrt(total + 1e-10), rel=1e-12)


def test_zero_weight_is_the_plain_loss_and_relu_is_never_negative() -> None:
    model, x, y = setting()
    plain = losses.objective("ce")(batch(model, x, y))
    assert torch.equal(losses.objective("ce+trace:weight=0")(batch(model, x, y)), plain)
    for seed in range(20):
        penalty = Trace(weight=1.0, kind="relu")
        assert float(penalty(batch(*setting(seed), step=seed)).detach()) >= 0


def test_every_applies_n_times_as_strong() -> None:
    model, x, y = setting()
    every, each = losses.objective("ce+trace:weight=0.1,every=3"), losses.objective("ce+trace:weight=0.3")
    plain = losses.objective("ce")
    for step in range(6):
        want = (plain if step % 3 else each)(batch(model, x, y, step))
        torch.testing.assert_close(every(batch(model, x, y, step)), want)


def test_reductions() -> None:
    model, x, y = setting()
    z = model(x)
    alpha = torch.tensor([0.5, 2, 1], dtype=torch.float64)
    b = losses.Batch(model, z, y, 0, torch.Generator())
    torch.testing.assert_close(losses.objective("ce:alpha=0.5/2/1")(b), F.cross_entropy(z, y, alpha))
    torch.testing.assert_close(losses.objective("ce")(b, "sum"), F.cross_entropy(z, y, reduction="sum"))
    mean, total = (losses.objective("mmce")(b, r) for r in ("mean", "sum"))  # type: ignore[arg-type]
    torch.testing.assert_close(mean * len(x), total)


def test_canonical_specs() -> None:
    for spec, want in (
        ("FLA-53", "focal_sample"),
        ("mmce", "ce+mmce"),
        ("focal:gamma=3 + trace:weight=0.010,kind=ggn", "focal:gamma=3+trace:weight=0.01,kind=ggn"),
    ):
        assert losses.objective(spec).spec == want
    assert losses.objective("ce", ["mmce:weight=4"]).spec == "ce+mmce:weight=4"


def test_frozen_parameters_are_left_out() -> None:
    model, x, y = setting()
    model[0].weight.requires_grad_(False)
    objective = losses.objective("ce+trace:weight=1")
    objective(batch(model, x, y)).backward()
    assert model[0].weight.grad is None
    assert model[0].bias.grad is not None


def by_hand(name: str, z: list[list[float]], y: list[int], **options: float) -> float:
    """A penalty of the logits alone, term by term."""
    n, k = len(z), len(z[0])
    if name == "mdca":
        p = [[math.exp(a) / sum(map(math.exp, row)) for a in row] for row in z]
        return sum(abs(sum(row[c] for row in p) / n - y.count(c) / n) for c in range(k)) / k
    total = 0.0
    for row, label in zip(z, y, strict=True):
        if name == "entropy":
            p = [math.exp(a) / sum(map(math.exp, row)) for a in row]
            total += sum(a * math.log(a) for a in p)
        elif name == "mbls":
            beyond = [max(0.0, max(row) - a - options["margin"]) for a in row]
            total += sum(beyond) / (k if options.get("mean", True) else 1)
        else:
            rest = [c for c in range(k) if c != label]
            total += sum(math.log1p(math.exp(row[c] - row[label])) for c in rest) / (k - 1)
            pairs = [math.log1p(math.exp(row[b] - row[a])) for a in rest for b in rest if a != b]
            total += options["exclusion"] * sum(pairs) / ((k - 1) * (k - 2)) if pairs else 0.0
    return total / n


@pytest.mark.parametrize(
    ("spec", "name", "options"),
    [
        ("mbls:margin=1", "mbls", {"margin": 1}),
        ("mbls:margin=0.5,over=sum", "mbls", {"margin": 0.5, "mean": False}),
        ("mdca", "mdca", {}),
        ("entropy", "entropy", {}),
        ("cpc", "cpc", {"exclusion": 1}),
        ("cpc:exclusion=0.3", "cpc", {"exclusion": 0.3}),
        ("cpc:exclusion=0", "cpc", {"exclusion": 0}),
    ],
)
@pytest.mark.parametrize("k", [2, 3, 5])
def test_penalties_of_the_logits(spec: str, name: str, options: dict[str, float], k: int) -> None:
    torch.manual_seed(k)
    z, y = (2 * torch.randn(7, k, dtype=torch.float64)).requires_grad_(), torch.randint(k, (7,))
    penalty: losses.Penalty = losses.PENALTIES.choose(spec)()

    def value(logits: Tensor) -> Tensor:
        return penalty.value(losses.Batch(nn.Identity(), logits, y, 0, torch.Generator()))

    want = by_hand(name, z.tolist(), y.tolist(), **options)
    assert float(value(z).detach()) == pytest.approx(want, rel=1e-12)
    assert float(1.01 * value(z).detach()) != pytest.approx(want, rel=1e-12) or want == 0
    assert torch.autograd.gradcheck(value, z)
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        far = torch.tensor([[s * m] + [0.0] * (k - 1) for m in (0, 40, 1e4) for s in (1, -1)], dtype=dtype)
        far.requires_grad_()
        labels = torch.zeros(len(far), dtype=torch.int64)
        found = penalty.value(losses.Batch(nn.Identity(), far, labels, 0, torch.Generator()))
        (g,) = torch.autograd.grad(found, far)
        assert found.dtype == torch.float32
        assert torch.isfinite(found)
        assert torch.isfinite(g).all()


def test_every_penalty_has_an_oracle() -> None:
    assert set(losses.PENALTIES.entries) == {"mmce", "trace", "mbls", "mdca", "cpc", "entropy"}, (
        "of the registry, without one"
    )
