"""Probes of H - G: carried forward, by whole products, against the explicit matrix; shared out over cells of rows."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from curvature_models import K, dense, setup
from torch import Tensor, nn
from torch.nn import functional as F

from calibcli.networks.curvature import Tensors, measure, quantities
from calibcli.networks.curvature import trace as traces
from calibcli.networks.curvature.engine import Engine, Shared
from calibcli.networks.curvature.memory_plan import Layout
from calibcli.networks.curvature.problem import CurvatureProblem, second_order, signs
from calibcli.networks.curvature.selftest import check
from calibcli.networks.derivatives.jets import Bend, Jets
from calibcli.networks.derivatives.rules import Lost
from calibcli.networks.losses import CrossEntropy

CE = CrossEntropy()


def prober(model: nn.Module, inputs: Tensor, labels: Tensor) -> tuple[CurvatureProblem, traces.Prober]:
    problem = CurvatureProblem(model, Tensors(inputs, labels), device=torch.device("cpu"), dtype=torch.float64)
    with second_order(problem.device):
        check(problem, CE)
        found = Engine(Shared(problem, 3, 0.95, None), CE).prober
        assert found.forward in (True, False)  # decided here
        return problem, found


@pytest.mark.parametrize("name", ["mlp", "tied", "attention", "silu", "gru"])
@pytest.mark.one_in(5)
def test_forms_are_those_of_the_explicit_matrix(name: str) -> None:
    model, inputs, labels = setup(name, n=33)
    problem, probe = prober(model, inputs, labels)
    assert probe.forward == (name != "gru")  # a recurrent layer is one operation without a rule
    count, n = 3, problem.layout.n
    assert traces.coarse(n) == 2
    on = torch.cat([torch.full((size,), float(b)) for size, b in zip(problem.sizes, probe.tensors)]).double()
    for cell in (1, 2):
        none = torch.zeros(-(-n // cell), dtype=torch.long)
        with second_order(problem.device):
            found = {layers: probe(none, none + count, cell, whole=layers) for layers in (True, False)}
        for index in (0, 16):  # of two rows, the last has one
            start, stop = index * cell, min((index + 1) * cell, n)
            h, g, _ = dense(model, inputs[start:stop], labels[start:stop], CE)
            r = (h - g) * (stop - start)
            vectors = signs(problem.size, 3, start, range(count)) * on
            forms = torch.stack([v @ r @ v for v in vectors])
            want = torch.stack([torch.tensor(float(count)), forms.sum(), forms.square().sum()])
            for layers in (True, False):
                torch.testing.assert_close(found[layers].forms[index], want, rtol=1e-9, atol=1e-12)
            pieces = [torch.stack([p.sum() for p in torch.split(v * (r @ v), problem.sizes)]) for v in vectors]
            parts = torch.stack(pieces)
            torch.testing.assert_close(found[True].layers[index, :, 1], parts.sum(0), rtol=1e-9, atol=1e-12)
            torch.testing.assert_close(found[True].layers[index, :, 2], parts.square().sum(0), rtol=1e-9, atol=1e-12)
    assert found[False].layers.shape[1] == (0 if probe.forward else len(problem.names))


@pytest.mark.parametrize("name", ["mlp", "attention", "silu"])
@pytest.mark.one_in(3)
def test_both_ways_give_one_trace(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, inputs, labels = setup(name, n=12)
    h, _, _ = dense(model, inputs, labels, CE)
    found = []
    for worth in (0, 1 << 60):
        monkeypatch.setattr(traces, "WORTH", worth)
        found.append(measure(model, (inputs, labels), "trace:probes=9"))
    one, other = (f.get("trace:probes=9") for f in found)
    assert one.value == pytest.approx(other.value, rel=1e-10)
    assert one.detail["estimator_se"] == pytest.approx(other.detail["estimator_se"], rel=1e-8)
    # each row its own probes
    monkeypatch.setattr(traces, "WORTH", 0)
    monkeypatch.setattr(quantities, "FINE", 1)
    fine = measure(model, (inputs, labels), "trace:precision=0.05,most=30").estimates[0]
    error = float(fine.detail["estimator_se"])  # type: ignore[arg-type]
    assert 0 < error < 0.2 * float(h.trace())
    assert abs(fine.value - float(h.trace())) < 4 * error  # type: ignore[operator]


ODD = [("no rule", False), ("unseen", False), ("into", False), ("parts", False), ("data", True)]


class Unseen(torch.autograd.Function):
    """x², outside of what a mode sees."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return 2 * ctx.saved_tensors[0] * g


class Odd(nn.Module):
    """An operation that is not followed, of several sorts."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.first, self.head, self.kind = nn.Linear(4, 5), nn.Linear(5, K), kind

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        if self.kind == "no rule":
            y = y + torch.logcumsumexp(y, 1)
        if self.kind == "unseen":
            y = Unseen.apply(y)
        if self.kind == "into":
            y = y.tanh() + 1
            y.mul_(2.0)
        if self.kind == "parts":
            z = torch.zeros_like(x.expand(len(x), 4)).repeat(1, 2)[:, :5]
            z[:, :3] = y[:, :3].tanh()
            y = z
        if self.kind == "data":
            y = y.tanh() if bool(y.sum() > -1e9) else y
        return self.head(y)


@pytest.mark.one_in(3)
@pytest.mark.parametrize(("kind", "served"), ODD)
def test_what_is_not_followed_goes_by_whole_products(kind: str, served: bool) -> None:
    _, inputs, labels = setup("mlp")
    torch.manual_seed(1)
    model = Odd(kind).double()
    assert prober(model, inputs, labels)[1].forward == served
    h, _, _ = dense(model, inputs, labels, CE)
    found = measure(model, (inputs, labels), "trace:probes=16").estimates[0]
    assert abs(found.value - float(h.trace())) < 4 * float(found.detail["estimator_se"])  # type: ignore


class Written(nn.Module):
    """Writing in place, embeddings, tied and broadcast weights, masks, functions with keywords, several outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.norm = nn.Embedding(6, 8), nn.LayerNorm(8)
        self.qkv, self.out, self.act = nn.Linear(8, 24), nn.Linear(8, 8), nn.ReLU(inplace=True)
        self.scale, self.shift = nn.Parameter(torch.rand(8) + 1), nn.Parameter(torch.rand(8))
        self.head = nn.Linear(8, K)

    def forward(self, tokens: Tensor, causal: bool = True) -> Tensor:
        x = self.embed(tokens)
        q, k, v = self.qkv(self.norm(x)).chunk(3, dim=-1)
        mask = torch.zeros(4, 4, dtype=x.dtype).masked_fill(torch.ones(4, 4).triu(2).bool(), -2.0)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
        b = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=0.3)
        y = self.act(self.out(a + b)) + x
        y += F.softmax(x, dim=-1) * F.silu(x)
        y = torch.addcmul(self.shift, y, self.scale) @ self.embed.weight.t()
        y = torch.cat([y, F.gelu(y, approximate="tanh"), y.square()[..., :2]], -1)
        return self.head(y.unflatten(-1, (2, -1))[:, :, 0].repeat(1, 1, 2)[..., :8]).mean(1)


def test_bends_through_what_models_do() -> None:
    torch.manual_seed(0)
    model, tokens = Written().double().eval(), torch.randint(0, 6, (5, 4))
    parameters, slope = list(model.parameters()), torch.randn(5, K).double()
    bend = Bend(lambda: model(tokens), parameters, lambda z: slope)
    vectors = [torch.randn(3, *p.shape).double() for p in parameters]
    gradients = torch.autograd.grad((model(tokens) * slope).sum(), parameters, create_graph=True)
    want = []
    for i in range(3):
        v = [d[i] for d in vectors]
        live = [(g, d) for g, d in zip(gradients, v) if g.requires_grad]
        products = torch.autograd.grad(
            [g for g, _ in live], parameters, [d for _, d in live], retain_graph=True, materialize_grads=True
        )
        want.append(sum((a * b).sum() for a, b in zip(v, products)))
    torch.testing.assert_close(bend.forms(vectors), torch.stack(want), rtol=1e-10, atol=1e-10)  # type: ignore
    jets = Jets(parameters, [[d[i] for d in vectors] for i in range(3)])
    with jets:
        z = model(tokens)
    found = jets.of(z)
    assert found is not None, jets.lost
    both = torch.stack([(slope * second).sum() for _, second in found])
    torch.testing.assert_close(both, torch.stack(want), rtol=1e-10, atol=1e-10)  # type: ignore
    with pytest.raises(Lost, match="cumprod"):
        Bend(lambda: model(tokens).cumprod(1), parameters, lambda z: slope).forms(vectors)


def test_probes_are_shared_out_by_spread() -> None:
    cells, n, pilot = 40, 320, 2000
    stream = torch.Generator().manual_seed(0)
    spread = torch.linspace(1, 20, cells).double()
    x = spread * torch.randn(pilot, cells, generator=stream).double() + 5
    forms = torch.stack([torch.full((cells,), float(pilot)).double(), x.sum(0), x.square().sum(0)], 1)
    found, rows, se = traces.Probes(forms, torch.zeros(cells, 0, 3), 8), torch.ones(n).double(), 0.01
    count = traces.allocate(found, rows, se, most=10**6, cell=8)
    assert float(((spread**2 / count).sum()).sqrt() / n) == pytest.approx(se, rel=0.03)
    ratio = count.double() / spread
    assert float(ratio.max() / ratio.min()) < 1.2
    assert float(traces.allocate(found, rows, se, most=7, cell=8).double().mean()) == pytest.approx(7, abs=0.5)
    assert traces.allocate(found, rows, 1e9, most=7, cell=8).tolist() == [2] * cells
    # two probes say little of a cell: its share leans to the guess
    few = dataclasses.replace(found, forms=forms * 2 / pilot)
    for guess in (rows, torch.arange(n).double()):
        near = traces.allocate(few, guess, se, most=10**6, cell=8).double().square()
        by_cell = guess.view(cells, 8).sum(1)
        share = (spread.square() / spread.square().sum() + 4 * by_cell / by_cell.sum()) / 5
        assert torch.allclose(near / near.sum(), share, rtol=0.05, atol=1e-4)
    # rows share the variance of their cell by the guess
    each = traces.allocate(found, 1.0 + torch.arange(n).double() % 2, se, most=10**6, cell=1).double()
    assert torch.allclose(each[1::2] / each[::2], torch.tensor(2.0).double().sqrt(), rtol=0.1)
    assert torch.allclose(each.view(cells, 8).mean(1) / each.mean(), spread / spread.mean(), rtol=0.2)


@pytest.mark.slow
def test_standard_errors_of_probes_are_those_of_repeated_runs() -> None:
    """Of the mean, of every tensor's part, and over groups, from runs that differ in their seeds alone."""
    model, inputs, labels = setup("mlp", n=64)
    problem = CurvatureProblem(model, Tensors(inputs, labels), device=torch.device("cpu"), dtype=torch.float64)
    means, parts, claimed, layer_claimed = [], [], [], []
    h, g, _ = dense(model, inputs, labels, CE)
    with second_order(problem.device):
        check(problem, CE)
        engine = Engine(Shared(problem, 0, 0.95, None), CE)
        none = torch.zeros(16, dtype=torch.long)
        count = 2 + torch.arange(16) % 3
        for seed in range(60):
            engine.prober.seed = seed
            found = engine.prober(none, count, 4, whole=True)
            mean = traces.summarise(found, problem.layout.n)
            layers, se = traces.by_tensor(found, problem.layout.n)
            means.append(mean.value)
            claimed.append(mean.se)
            parts.append(layers)
            layer_claimed.append(se)
    exact = torch.split((h - g).diagonal(), problem.sizes)
    spread = torch.tensor(means).std()
    assert float(torch.tensor(claimed).square().mean().sqrt() / spread) == pytest.approx(1, abs=0.3)
    assert abs(sum(means) / 60 - float(sum(e.sum() for e in exact))) < 4 * float(spread) / 60**0.5
    layer_spread = torch.stack(parts).std(0)
    bends = layer_spread > 1e-12
    ratio = torch.stack(layer_claimed).square().mean(0).sqrt()[bends] / layer_spread[bends]
    assert float((ratio - 1).abs().max()) < 0.4
    off = (torch.stack(parts).mean(0) - torch.stack([e.sum() for e in exact])).abs()
    assert bool((off <= 4.5 * layer_spread / 60**0.5 + 1e-12).all())


def test_error_of_a_mean_from_groups_in_closed_form() -> None:
    """Groups of equal size without noise of probes: the standard error of the mean of their sums, G / (G - 1)."""
    layout, stream = Layout(640, 256, 0, 1), torch.Generator().manual_seed(1)
    rows, own = torch.randn(640, generator=stream).double(), torch.randn(20, generator=stream).double()
    found = traces.sampling_error(rows, own, torch.zeros(20).double(), layout)
    sums = rows.reshape(20, 32).sum(1) + own
    assert found == pytest.approx(float(sums.std(correction=1)) * 20**0.5 / 640, rel=1e-12)


def test_the_noise_of_probes_is_taken_out_of_the_spread_of_groups() -> None:
    layout, stream = Layout(640, 256, 0, 1), torch.Generator().manual_seed(0)
    assert (layout.group, layout.groups) == (32, 20)
    rows = torch.randn(640, generator=stream).double()
    own = torch.randn(layout.groups, generator=stream).double() * 6  # vᵀM_n v summed over a group, without noise
    truth = traces.sampling_error(rows, own, torch.zeros(layout.groups).double(), layout)
    noise = torch.linspace(1, 60, layout.groups).double()
    found = [
        traces.sampling_error(rows, own + noise.sqrt() * torch.randn(layout.groups, generator=stream), noise, layout)
        for _ in range(400)
    ]
    raw = [
        traces.sampling_error(
            rows, own + noise.sqrt() * torch.randn(layout.groups, generator=stream), 0 * noise, layout
        )
        for _ in range(400)
    ]
    assert (sum(f * f for f in found) / 400) == pytest.approx(truth**2, rel=0.06)
    assert (sum(f * f for f in raw) / 400) > 1.3 * truth**2


@pytest.mark.slow
def test_an_interrupt_leaves_the_rounds_before_it() -> None:
    model, inputs, labels = setup("attention", n=16)
    texts: list[str] = []

    def interrupt(fraction: float, text: str) -> None:
        texts.append(text)
        if sum(t.startswith("Tr(H)") for t in texts) == 2:
            raise KeyboardInterrupt

    found = measure(model, (inputs, labels), "trace:probes=200", progress=interrupt)
    assert found.facts["interrupted"] == "KeyboardInterrupt"
    assert "100 probes of H - G" in found.estimates[0].how
    h, _, _ = dense(model, inputs, labels, CE)
    error = float(found.estimates[0].detail["estimator_se"])  # type: ignore[arg-type]
    assert abs(found.estimates[0].value - float(h.trace())) < 4 * error  # type: ignore[operator]
