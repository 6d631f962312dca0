"""Traces where few rows hold nearly everything: two classes, light and steep rows, one cell of all the spread."""

from __future__ import annotations

import copy
import re
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from curvature_models import dense, setup
from scipy import stats
from torch import Tensor, nn

import calibcli
from calibcli.networks.curvature import Tensors, engine, measure, quantities
from calibcli.networks.curvature import trace as traces
from calibcli.networks.curvature.engine import Engine, Shared
from calibcli.networks.curvature.ggn import _PairTrace, ggn_trace
from calibcli.networks.curvature.loss import Pairs, logit_hessian
from calibcli.networks.curvature.problem import CurvatureProblem, second_order
from calibcli.networks.curvature.selftest import check
from calibcli.networks.losses import CrossEntropy, final


class Steep(nn.Module):
    """LayerNorm of an input that hardly varies: rows near 0 are steep, and all but a few are predicted surely."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(4, 6), nn.LayerNorm(6)
        self.second, self.head = nn.Linear(6, 6), nn.Linear(6, classes)
        with torch.no_grad():
            self.first.bias.copy_(torch.linspace(-0.001, 0.001, 6))
            self.head.weight.mul_(40)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(torch.relu(self.second(self.norm(self.first(x)))))
        return out


def steep(classes: int, n: int = 512) -> tuple[nn.Module, Tensor, Tensor]:
    torch.manual_seed(0)
    model, x = Steep(classes).double(), torch.randn(n, 4).double()
    x[:40] *= 1e-2
    x[5] *= 1e-1
    return model, x, torch.arange(n) % classes


@pytest.mark.parametrize("loss", ["ce", "focal:gamma=2", "brier"])
def test_two_classes_need_one_pair_a_row(loss: str) -> None:
    torch.manual_seed(0)
    z, y, found = 3 * torch.randn(6, 2).double(), torch.tensor([0, 1, 1, 0, 1, 0]), final(loss)
    pairs = Pairs(found, z, y)
    u = torch.stack([pairs.cotangents(torch.arange(6), torch.full((6,), c)) for c in range(pairs.mass.shape[1])], 2)
    a = (u * pairs.weights[:, None, :]) @ u.transpose(1, 2)
    torch.testing.assert_close(a, logit_hessian(found, z, y), rtol=1e-9, atol=1e-12)
    assert torch.allclose(pairs.mass.sum(1), pairs.weights.abs().mul(u.square().sum(1)).sum(1))


def covered(model: nn.Module, x: Tensor, y: Tensor, truth: float, seeds: int) -> tuple[int, list[float]]:
    """How many intervals of Tr(G) hold the truth, and half their widths."""
    inside, halves = 0, []
    for seed in range(seeds):
        (e,) = measure(model, (x, y), "trace_ggn", seed=seed).estimates
        low, high = float(e.detail["estimator_low"]), float(e.detail["estimator_high"])  # type: ignore[arg-type]
        inside += low - 1e-9 * truth <= truth <= high + 1e-9 * truth
        halves.append((high - low) / 2)
    return inside, halves


def test_rows_that_were_not_looked_at_enter_the_error() -> None:
    model, x, y = steep(5)
    truth = measure(model, (x, y), "trace_ggn:exact").estimates[0].value
    assert truth is not None
    inside, halves = covered(model, x, y, truth, 8)
    assert inside >= 6
    assert min(halves) > 1e-6 * truth
    assert max(halves) < 0.2 * truth


@pytest.mark.slow
@pytest.mark.parametrize("classes", [2, 3])
def test_few_classes_are_all_taken(classes: int) -> None:
    """All pairs cost no more than a product; the draws missed one of 3 % of Tr(G) in every fourth run."""
    model, x, y = steep(classes, 128)
    truth = float(dense(model, x, y, CrossEntropy())[1].trace())
    inside, halves = covered(model, x, y, truth, 1)
    assert (inside, halves) == (1, [0.0])


@pytest.mark.slow
@pytest.mark.parametrize("often", [0.01, 0.03])
def test_pairs_steeper_than_the_first_of_their_row_are_covered(often: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """So often a pair is as steep as any row, whatever the first of its row says: few draws seldom meet such a one."""
    stream = torch.Generator().manual_seed(0)
    z, y = 2 * torch.randn(300, 6, generator=stream).double(), torch.arange(300) % 6
    pairs = Pairs(CrossEntropy(), z, y)
    steepness = torch.randn(300, 1, generator=stream).double().mul(0.7).exp().expand(300, 6)
    steepness = torch.where(torch.rand(300, 6, generator=stream) < often, steepness.max(), steepness)
    norms = (steepness * pairs.mass / pairs.weights).flatten()[:, None]
    truth = float((steepness * pairs.mass).sum()) / 300
    monkeypatch.setattr(_PairTrace, "norms_of", lambda self, wanted: norms[wanted])
    inside = 0
    for seed in range(100):
        found = ggn_trace(SimpleNamespace(tensors=[None]), None, pairs, None, target=0.02, seed=seed)  # type: ignore[arg-type]
        assert found.taken + found.drawn < 1200
        inside += abs(found.value - truth) <= float(stats.t.ppf(0.975, found.dof)) * found.se
    assert inside >= 90


@pytest.mark.parametrize("wish", [0.1, 1.0, 3.0])
def test_probes_are_planned_for_the_interval(wish: float) -> None:
    """One cell of 32 holds the variance: two probes of it would do for the standard error, with a factor of 12.7."""
    spread = torch.full((32,), 0.01, dtype=torch.float64)
    spread[3] = 256.0  # of a probe of the cell
    pilot = traces.Probes(
        torch.stack([torch.full((32,), 8.0), torch.zeros(32), 7 * spread**2], 1).double(), torch.zeros(32, 0, 3), 8
    )
    rows = torch.where(torch.arange(256) // 8 == 3, 1.0, 1e-9).double()
    count = traces.allocate(pilot, rows, wish, 1024, 8)
    variance = spread.square() / count / 256**2
    dof = float(variance.sum() ** 2 / (variance.square() / (count - 1)).sum())
    half = float(stats.t.ppf(0.975, dof) * variance.sum().sqrt())
    assert half < 1.15 * 1.96 * wish  # the guess counts for a little in the spread
    assert count[3] >= traces.HEAVY  # that two agree by chance is likely, that eight do is not
    assert int(count.sum() - count[3]) == 2 * 31  # the others get no more for it


def test_a_spread_from_few_probes_leans_to_the_guess() -> None:
    """Half of the cells hold everything by the guess, and their two probes happened to agree."""
    forms = torch.tensor([[2.0, 2.0, 2.0], [2.0, 0.0, 8.0]]).double().repeat(8, 1)  # variances of a probe 0 and 8
    probes = traces.Probes(forms, torch.zeros(16, 0, 3), 4)
    guess = (torch.arange(64) // 4 % 2 == 0).double()
    plain, leaning = traces.summarise(probes, 64), traces.summarise(probes, 64, guess)
    assert leaning.value == plain.value
    assert plain.se == pytest.approx((8 * 8 / 2) ** 0.5 / 64)
    assert leaning.se == pytest.approx(plain.se)  # shared out otherwise: as much in all
    assert leaning.dof != plain.dof
    few = traces.Probes(forms * torch.tensor([2.0, 1.0]).repeat(8)[:, None], torch.zeros(16, 0, 3), 4)
    assert traces.summarise(few, 64, guess).se < plain.se  # cells of four probes are to hold most of it
    assert traces.summarise(few, 64, 1 - guess).se == pytest.approx(plain.se)


@pytest.mark.slow
def test_one_row_that_holds_the_rest_is_covered() -> None:
    """Two probes of the one cell that counts told a spread of next to nothing, or took a Student factor of 12.7."""
    torch.manual_seed(1)
    model, x = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 3)).double(), torch.randn(64, 4).double()
    y = between(model, x, 40)
    h, _, _ = dense(model, x, y, CrossEntropy())
    errors, halves = [], []
    for seed in range(18):
        (e,) = measure(model, (x, y), "trace:precision=0.05", seed=seed).estimates
        low, high = float(e.detail["estimator_low"]), float(e.detail["estimator_high"])  # type: ignore[arg-type]
        halves.append((high - low) / 2)
        errors.append(abs(float(e.value) - float(h.trace())))  # type: ignore[arg-type]
    assert sum(error > half for error, half in zip(errors, halves)) <= 4
    assert max(halves) < 0.07 * float(h.trace())


@pytest.mark.slow
@pytest.mark.parametrize("fine", [False, True])
def test_a_cell_is_taken_exactly_where_that_takes_fewer_products(fine: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """More probes of the one cell that counts were planned than H - G has diagonal elements, which leave no error."""
    torch.manual_seed(1)
    model, x = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 3)).double(), torch.randn(64, 4).double()
    y, elements = between(model, x, 40), 4 * 8 + 8  # of the first layer, the one that bends
    if fine:  # every row has its own probes
        monkeypatch.setattr(quantities, "FINE", 0)
        monkeypatch.setattr(traces, "WORTH", 0)
    plans: list[tuple[Tensor, Tensor]] = []
    drawn: list[Tensor] = []
    plan, draw = traces.allocate, traces.Prober.__call__

    def planned(*given: Any) -> Tensor:
        assert given[-1] == elements
        plans.append((plan(*given[:-1]), plan(*given)))
        return plans[-1][1]

    def drawing(self: traces.Prober, first: Tensor, last: Tensor, cell: int, *, whole: bool) -> traces.Probes:
        drawn.append(last - first)
        return draw(self, first, last, cell, whole=whole)

    monkeypatch.setattr(traces, "allocate", planned)
    monkeypatch.setattr(traces.Prober, "__call__", drawing)
    found = measure(model, (x, y), "trace:precision=0.005")
    (e,), (before, count) = found.estimates, plans[-1]
    known = count == 0
    assert 1 <= int(known.sum()) <= 2
    assert torch.equal(known, before > elements)
    spent = sum(d for d in drawn[1:] if len(d) == len(count))  # after the pilot
    assert isinstance(spent, Tensor)
    assert int(spent[known].sum()) == 0
    assert int(count.sum()) + elements * int(known.sum()) < int(before.sum())
    h, _, _ = dense(model, x, y, CrossEntropy())
    error, size = float(e.detail["estimator_se"]), float(h.trace())  # type: ignore[arg-type]
    assert abs(float(e.value or 0) - size) < 4 * error < 4 * 1.5 * 0.005 * size
    assert f"{int(known.sum())} of {len(known)} cells" in e.how
    layers = {row[0]: (float(row[2]), float(row[3])) for row in found.tables[-1].rows}  # type: ignore[arg-type]
    (first, se), truth = layers["0"], float(h.diagonal()[:elements].sum())
    assert abs(first - truth) < 4 * se < 0.2 * truth


@pytest.mark.parametrize("name", ["mlp", "tied", "attention"])
@pytest.mark.one_in(3)
def test_exact_cells_are_those_of_the_explicit_matrix(name: str) -> None:
    model, x, y = setup(name)
    problem = CurvatureProblem(model, Tensors(x, y), device=torch.device("cpu"), dtype=torch.float64)
    with second_order(problem.device):
        check(problem, CrossEntropy())
        diagonals = Engine(Shared(problem, 0, 0.95, None), CrossEntropy()).diagonals
        one, every = torch.arange(19) == 18, torch.ones(19, dtype=torch.bool)  # the last has one row of 37
        some, all_of_them = (traces.exactly(diagonals(2, cells), cells, 2, True) for cells in (one, every))
        bare = traces.exactly(diagonals(2, one), one, 2, False)
    for rows, value in ((slice(36, 37), some), (slice(0, 37), all_of_them)):
        h, g, _ = dense(model, x[rows], y[rows], CrossEntropy())
        parts = torch.stack([d.sum() for d in torch.split((h - g).diagonal(), problem.sizes)]) * len(x[rows]) / 37
        layers, se = traces.by_tensor(value, 37)
        torch.testing.assert_close(layers, parts, rtol=1e-9, atol=1e-12)
        assert float(se.max()) == 0
        mean = traces.summarise(value, 37, torch.arange(37).double())
        assert (mean.value, mean.se) == (pytest.approx(float(parts.sum()), rel=1e-9), 0)
    assert int(some.forms[:18].count_nonzero()) == int(some.layers[:18].count_nonzero()) == 0
    assert torch.equal(bare.forms, some.forms)
    assert bare.layers.shape[1] == 0


@pytest.mark.slow
def test_a_precision_that_was_missed_is_said() -> None:
    model, x, y = setup("attention", n=24)
    notes = measure(model, (x, y), "trace:precision=0.0001,most=3").notes
    assert any(n.startswith("trace: its interval is that of a relative standard error of 0.") for n in notes)
    assert not any(
        "relative standard error" in n for n in measure(model, (x, y), "trace:precision=0.5", "trace_ggn").notes
    )


def one_row(n: int = 64) -> tuple[nn.Module, Tensor, Tensor]:
    """All rows but row 14, which lies between two classes, are predicted surely."""
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)).double(), torch.randn(n, 4).double()
    return model, x, between(model, x, 200)


def between(model: nn.Sequential, x: Tensor, sure: float) -> Tensor:
    """Labels as predicted, after every row was made sure but row 14, which was put between two classes, in place."""
    with torch.no_grad():
        model[2].weight.mul_(sure)  # type: ignore[operator,union-attr]
        classes = model(x).argmax(1)
        low, high = x[0], x[int((classes != classes[0]).nonzero()[0])]
        for _ in range(60):
            x[14] = (low + high) / 2
            low, high = (x[14].clone(), high) if model(x[14:15]).argmax() == classes[0] else (low, x[14].clone())
        return model(x).argmax(1)


def test_a_dominating_row_is_named_and_no_interval_goes_below_what_is_proved() -> None:
    model, x, y = one_row()
    found = measure(model, (x, y), "trace", "trace_ggn", "lambda_max")
    assert sum(n.startswith("row 14 (counted from 0) holds") and "Tr(G)" in n for n in found.notes) == 1
    assert sum("rows 12 to 15 (counted from 0) hold" in n and "λmax" in n for n in found.notes) == 1
    largest = found.get("lambda_max")
    assert largest.low is not None
    assert largest.value is not None
    assert 0 <= largest.low < largest.value
    torch.manual_seed(0)
    model, x, y = setup("mlp", n=64)
    assert not any("counted from 0" in n for n in measure(model, (x, y), "trace", "lambda_max").notes)


def test_nll_and_accuracy_of_the_rows_are_facts() -> None:
    model, x, y = setup("mlp", n=30)
    facts = measure(model, (x, y), "lambda_max").facts
    with torch.no_grad():
        z = model(x)
    assert facts["nll"] == pytest.approx(float(nn.functional.cross_entropy(z, y)), rel=1e-9)
    assert facts["accuracy"] == pytest.approx(float((z.argmax(1) == y).double().mean()))


def test_the_same_function_in_other_weights_has_another_curvature() -> None:
    """What docs/curvature.md says it is not: a property of the predictions. Bias and weights into a ReLU times 4."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    x, y = torch.randn(64, 4), torch.arange(64) % 3
    other = copy.deepcopy(model)
    with torch.no_grad():
        other[0].weight.mul_(4)
        other[0].bias.mul_(4)
        other[2].weight.div_(4)
    torch.testing.assert_close(other(x), model(x), rtol=0, atol=0)
    before, after = (measure(one, (x, y), "trace:exact=true")["trace"].value for one in (model, other))
    assert before is not None
    assert after is not None
    assert after > 2 * before


@pytest.mark.parametrize(("heavy", "copied"), [(1.0, True), (300.0, True), (1.0, False)])
def test_all_pairs_in_float32_are_known_to_their_rounding(
    heavy: float, copied: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where one row holds nearly everything, and where there is no room for a float64 copy."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(20, 32), nn.Tanh(), nn.LayerNorm(32), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 6)
    )
    x, y = torch.randn(60, 20), torch.arange(60) % 6
    x[7] *= heavy
    if not copied:
        monkeypatch.setattr("calibcli.networks.curvature.ggn.has_twin", lambda problem: False)
    narrow, wide = (
        calibcli.curvature(model, (x, y), "trace_ggn:exact", device="cpu", dtype=dtype)
        for dtype in ("float32", "float64")
    )
    found, truth = narrow.estimates[0], wide.estimates[0].value
    low, high = float(found.detail["estimator_low"]), float(found.detail["estimator_high"])  # type: ignore[arg-type]
    assert truth is not None
    assert low <= truth <= high
    assert 0 < high - low < 1e-4 * truth
    assert wide.estimates[0].detail["estimator_se"] == 0.0


@pytest.mark.regression
def test_one_number_is_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a piecewise linear network Tr(H) is Tr(G): one estimate in any order, the finest that is asked for."""
    targets: list[tuple[float, bool]] = []
    plain = engine.ggn_trace

    def counted(*args: Any, target: float, exact: bool, **options: Any) -> Any:
        targets.append((target, exact))
        return plain(*args, target=target, exact=exact, **options)

    monkeypatch.setattr(engine, "ggn_trace", counted)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 10)).double()
    x, y = torch.randn(300, 4).double(), torch.arange(300) % 10
    for specs in (
        ("trace", "trace_ggn"),
        ("trace_ggn", "trace"),
        ("trace:precision=0.05", "trace_ggn:precision=0.01"),
        ("trace_ggn:exact=true", "trace:precision=0.05"),
    ):
        targets.clear()
        a, b = measure(model, (x, y), *specs).estimates
        assert len(targets) == 1
        assert (a.value, a.low, a.high) == (b.value, b.low, b.high)


def test_how_says_what_a_precision_came_to() -> None:
    """The standard error that was asked for, and the half width of the interval, which is about twice that."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 10)).double()
    x, y = torch.randn(300, 4).double(), torch.arange(300) % 10
    for spec in ("trace:precision=0.05", "trace_ggn:precision=0.05"):
        (e,) = measure(model, (x, y), spec).estimates
        said = re.search(
            r"standard error (\S+) of the value, asked for 0.05; interval on these rows ± (\S+) of it", e.how
        )
        assert said is not None
        assert float(said[1]) == pytest.approx(e.detail["estimator_se"] / e.value, rel=0.1)
        assert float(said[2]) == pytest.approx((e.detail["estimator_high"] - e.value) / e.value, rel=0.1)
    assert "asked" not in measure(model, (x, y), "trace").estimates[0].how


@pytest.mark.slow
def test_probes_that_stop_at_a_hundredth_cover(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the rows say next to nothing against it, probes stop at 1 % of the trace: the interval still covers."""
    monkeypatch.setattr(quantities, "SHARE", 0.0)
    monkeypatch.setattr(engine, "SHARE", 0.0)
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(10, 10), nn.LayerNorm(10), nn.SiLU(), nn.Linear(10, 4)).double()
    x, y = torch.randn(24, 10).double(), torch.arange(24) % 4
    optimizer = torch.optim.Adam(model.parameters(), 2e-2)
    for _ in range(30):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    true = float(dense(model, x, y, CrossEntropy())[0].trace())
    problem = CurvatureProblem(model, Tensors(x, y), device=torch.device("cpu"), dtype=torch.float64)
    problem.classes, hits, errors = 4, 0, []
    for seed in range(100):
        (e,) = quantities.trace(Engine(Shared(problem, seed, 0.95, None), CrossEntropy())).estimates
        hits += float(e.detail["estimator_low"]) <= true <= float(e.detail["estimator_high"])
        errors.append(float(e.detail["estimator_se"]) / true)
    assert hits >= 0.92 * len(errors)
    assert 2e-3 < sum(errors) / len(errors) < 2e-2
