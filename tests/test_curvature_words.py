"""Many classes: pairs in blocks of rows, drawn by row and within the row; room that is stated; one prediction a row."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from calibcli.core.errors import InputError
from calibcli.networks.curvature import ggn, loss, measure, problem
from calibcli.networks.curvature.ggn import _Rest, largest
from calibcli.networks.curvature.loss import Pairs
from calibcli.networks.losses import CrossEntropy, final

N, K = 40, 300


def head() -> tuple[nn.Module, Tensor, Tensor]:
    torch.manual_seed(0)
    model = nn.Linear(6, K)
    with torch.no_grad():
        model.weight.mul_(6)
    return model, torch.randn(N, 6), torch.arange(N) % K


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (loss, ggn):
        monkeypatch.setattr(module, "PART", 1000)


@pytest.mark.slow
def test_trace_in_blocks_of_rows_covers_the_closed_form(small_parts: None) -> None:
    model, x, y = head()
    with torch.no_grad():
        p = model(x).double().softmax(1)
    true = float(((1 - p.square().sum(1)) * (1 + x.double().square().sum(1))).mean())
    hits = []
    for seed in range(6):
        found = measure(model, (x, y), "trace_ggn:precision=0.01", seed=seed)
        (e,) = found.estimates
        hits.append(float(e.detail["estimator_low"]) <= true <= float(e.detail["estimator_high"]))  # type: ignore[arg-type]
        assert e.value == pytest.approx(true, rel=0.05)
        assert "draws" in e.how
    assert sum(hits) >= 4
    assert found.facts["nll"] == pytest.approx(float(nn.functional.cross_entropy(model(x), y).detach()), rel=1e-6)


class Sizes(TorchDispatchMode):
    """Bytes of every tensor that an operation makes."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[int, str]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        self.seen += [(t.nbytes, str(func)) for t in (made if isinstance(made, tuple | list) else [made]) if _is(t)]
        return made


def _is(made: Any) -> bool:
    return isinstance(made, Tensor)


def test_nothing_is_larger_than_the_outputs(small_parts: None) -> None:
    """No wide copy of rows x classes is made."""
    model, x, y = head()
    with Sizes() as sizes:
        (e,) = measure(model, (x, y), "trace_ggn:precision=0.01", batch_size=8).estimates
    assert "draws" in e.how
    assert max(sizes.seen)[0] <= 4 * N * K, max(sizes.seen)


def test_a_draw_makes_no_copy_of_its_row() -> None:
    weight = torch.rand(8, 250)
    with Sizes() as sizes:
        _Rest(weight, torch.zeros(1)).draw(np.random.default_rng(0), 5000)
    assert sum(size for size, _ in sizes.seen) < 8 * 5000 + 4 * weight.nbytes


@pytest.mark.parametrize("spec", ["ce", "focal:gamma=2"])
def test_pairs_in_blocks_are_those_of_all_rows(small_parts: None, spec: str) -> None:
    model, x, y = head()
    z, one = model(x).detach(), final(spec)
    found = Pairs(one, z, y)
    assert (found.weights.dtype, found.vectors) == (torch.float32, None)
    wide = one.pair_weights(z.double(), y)
    assert wide is not None
    assert torch.allclose(found.weights.double(), wide, rtol=1e-6, atol=1e-9)
    u = torch.eye(K).double()[None] - z.double().softmax(1)[:, None]
    assert torch.allclose(found.mass.double(), wide.abs() * u.square().sum(2), rtol=1e-5, atol=1e-9)
    assert torch.allclose(found.cotangents(torch.arange(N), torch.arange(N)), u[torch.arange(N), torch.arange(N)])


def test_draws_follow_their_weights_and_the_largest_are_found(small_parts: None) -> None:
    torch.manual_seed(0)
    weight = torch.rand(8, 250).square()
    weight[:, ::3] = 0
    rest = _Rest(weight, torch.zeros(1))
    drawn = rest.draw(np.random.default_rng(0), 200_000)
    share = torch.bincount(drawn, minlength=weight.numel()).double() / len(drawn)
    expected = weight.flatten().double() / weight.sum()
    assert float((share - expected).abs().max()) < 5 * float((expected.max() / len(drawn)) ** 0.5)
    assert float(share[expected == 0].sum()) == 0
    index, values = largest(weight.flatten(), 1500)
    assert torch.equal(values, weight.flatten().sort(descending=True).values[:1500])
    assert torch.equal(weight.flatten()[index], values)


def test_the_plan_states_the_outputs_and_too_many_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x, y = head()
    plain = problem.free_bytes
    need = N * K * 4
    assert "outputs" not in str(measure(model, (x, y), "grad_norm").facts["memory_plan"])
    monkeypatch.setattr(problem.CurvatureProblem, "check_room", lambda self, graphs: None)  # of a product
    monkeypatch.setattr(problem, "free_bytes", lambda device: 4 * need)
    with pytest.raises(InputError, match=r"40 rows of 300 classes take") as caught:
        measure(model, (x, y), "trace_ggn")
    assert "at most 32 rows (--subset)" in caught.value.fix
    monkeypatch.setattr(problem, "free_bytes", plain)
    monkeypatch.setattr(problem.CurvatureProblem, "outputs_bytes", property(lambda self: 1 << 30))
    assert "1 GiB of outputs (for traces 4 times that)" in str(measure(model, (x, y), "grad_norm").facts["memory_plan"])


class Positions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(7, 4), nn.Linear(4, 7)

    def forward(self, tokens: Tensor) -> Tensor:
        out: Tensor = self.head(self.embed(tokens))
        return out


class Last(Positions):
    def forward(self, tokens: Tensor) -> Tensor:
        return super().forward(tokens)[:, -1]


def test_every_position_of_a_sequence_is_refused_and_the_last_is_a_row() -> None:
    torch.manual_seed(0)
    x, y = torch.randint(0, 7, (12, 5)), torch.arange(12) % 7
    with pytest.raises(InputError, match=r"\(4, 5, 7\) for 4 rows") as caught:
        measure(Positions(), (x, y), "trace_ggn")
    assert "logits[:, -1]" in caught.value.fix
    assert measure(Last(), (x, y), "trace_ggn", loss=CrossEntropy()).estimates[0].value is not None
