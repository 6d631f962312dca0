"""Measures of curvature that a rescaling cannot move, the network's own temperature, and the terms of the rows."""

from __future__ import annotations

import copy
import math
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from curvature_models import Focal, dense, flat, setup
from scipy.optimize import minimize_scalar
from scipy.special import logsumexp
from torch import Tensor, nn

from calibcli.core.errors import InputError
from calibcli.gate.sources import CURVATURE
from calibcli.lab.study import experiment
from calibcli.networks.curvature import QUANTITIES, measure, quantities
from calibcli.networks.curvature.engine import Shared
from calibcli.networks.curvature.per_row_gradients import RowNorms
from calibcli.networks.curvature.problem import CurvatureProblem, Tensors
from calibcli.networks.curvature.quantities import freedom, interval
from calibcli.networks.losses import CrossEntropy
from calibcli.scores.likelihood import BetaFit, fit_beta

sys.path.append(str(Path(__file__).parent.parent / "benchmarks"))
from _populations import Covered
from curvature_coverage import data, differing, pools, sampled, train

CE = CrossEntropy()
AFTER = [entry.name for entry in QUANTITIES if entry.name.endswith(" after")]
STILL = ("fisher_rao", "adaptive_trace", "adaptive_lambda")
EXACT = {"trace": ":exact", "adaptive_trace": ":exact", "lambda_max": ":tol=1e-10", "adaptive_lambda": ":tol=1e-10"}


def test_gates_and_studies_know_every_quantity() -> None:
    """Gates name them in text, as they start without PyTorch."""
    assert set(CURVATURE) == {entry.name for entry in QUANTITIES}
    assert set(experiment.CURVATURE) == {*STILL, "trace", "lambda_max", *AFTER}


def spec(name: str) -> str:
    return name + EXACT.get(name.removesuffix(" after"), "")


def known(name: str, model: nn.Module, inputs: Tensor) -> Tensor:
    """Labels with a temperature: three of four are the network's own prediction."""
    with torch.no_grad():
        z = copy.deepcopy(model).eval()(inputs)
    return torch.where(torch.arange(len(z)) % 4 > 0, z.argmax(1), (z.argmax(1) + 1) % 3)


def tempered(model: nn.Module, inputs: Tensor, labels: Tensor) -> nn.Module:
    """The network with the last layer divided by its temperature, found by another search."""
    other = copy.deepcopy(model).eval()
    with torch.no_grad():
        z = other(inputs).numpy()
        own = z[np.arange(len(z)), labels.numpy()]
        found = minimize_scalar(
            lambda u: (logsumexp(math.exp(u) * z, axis=1) - math.exp(u) * own).mean(),
            (-1.0, 1.0),
            options={"xtol": 1e-9},
        )
        for tensor in [m for m in other.modules() if isinstance(m, nn.Linear)][-1].parameters():
            tensor.mul_(math.exp(found.x))
    return other


def truths(model: nn.Module, inputs: Tensor, labels: Tensor, loss: object = CE) -> dict[str, float]:
    h, g, _ = dense(model, inputs, labels, loss)  # type: ignore[arg-type]
    theta = flat([p.detach() for p in model.parameters()])
    relative = theta[:, None] * h * theta
    found = {"trace": h.trace(), "adaptive_trace": relative.trace(), "fisher_rao": theta @ g @ theta}
    found |= {"lambda_max": torch.linalg.eigvalsh(h)[-1], "adaptive_lambda": torch.linalg.eigvalsh(relative)[-1]}
    return {name: float(value) for name, value in found.items()}


@pytest.mark.parametrize(
    ("name", "gamma"),
    [("relu", None), ("cnn", 2.0), ("mlp", 2.0), ("tied", None), ("silu", None), ("attention", None)],
)
@pytest.mark.one_in(6)
def test_after_the_temperature_against_the_explicit_hessian(name: str, gamma: float | None) -> None:
    """The network whose last layer is divided by T; where that layer's outputs are averaged, T can be divided all the
    same, and what needs no last layer is asked for."""
    loss = CE if gamma is None else Focal(gamma)
    model, inputs, _ = setup(name, n=9)
    labels = known(name, model, inputs)
    asked = [one for one in AFTER if name != "attention" or one.removesuffix(" after") in STILL]
    terms: dict[str, np.ndarray] = {}
    result = measure(model, (inputs, labels), *map(spec, asked), loss=loss, terms=terms)
    true = truths(tempered(model, inputs, labels), inputs, labels, loss)
    for one in asked:
        estimate = next(e for e in result.estimates if e.name.partition(":")[0] == one)
        assert estimate.value == pytest.approx(true[one.removesuffix(" after")], rel=1e-6)
        assert estimate.detail["sampling_se"] > 0  # type: ignore[operator]
        (rows,) = (of for key, of in terms.items() if key.partition(":")[0] == one)
        assert rows.shape == (9,)
        assert rows.mean() == pytest.approx(estimate.value, rel=1e-9)


def test_a_temperature_that_no_single_layer_takes_is_refused_before_anything_is_measured() -> None:
    model, inputs, labels = setup("attention", n=8)
    with pytest.raises(
        InputError, match="folded into this model: the logits are not what a linear layer gives"
    ) as refused:
        measure(model, (inputs, labels), "grad_norm", "trace after")
    assert "fisher_rao after" in refused.value.fix


def test_no_temperature_no_number() -> None:
    model, inputs, _ = setup("relu", n=12)
    sure = model(inputs).argmax(1)
    result = measure(model, (inputs, sure), "trace after", "fisher_rao", "fisher_rao after")
    assert result["fisher_rao"].value is not None
    for name in ("trace after", "fisher_rao after"):
        assert result[name].value is None
        assert "no row is wrong" in result[name].reason


def rescaled(name: str, factor: float) -> tuple[nn.Module, nn.Module, Tensor, Tensor]:
    """A network, the same function with a layer times `factor` and the next divided, and rows."""
    model, inputs, _ = setup(name, n=24)
    other = copy.deepcopy(model)
    assert isinstance(other, nn.Sequential)
    first, after = (other[1], other[4]) if name == "cnn" else (other[0], other[2])
    with torch.no_grad():
        for tensor in first.parameters():  # type: ignore[union-attr]
            tensor.mul_(factor)
        after.weight.div_(factor)  # type: ignore[union-attr,operator]
    return model, other, inputs, known(name, model, inputs)


def values(model: nn.Module, inputs: Tensor, labels: Tensor) -> dict[str, float]:
    result = measure(model, (inputs, labels), *(spec(name) for name in (*STILL, "trace", *AFTER)))
    return {e.name.partition(":")[0]: e.value for e in result.estimates}  # type: ignore[misc]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["relu", "cnn"])
def test_what_a_rescaling_and_a_scale_of_the_logits_leave_alone(name: str) -> None:
    """Of a perceptron, and of convolutions with batch norm in eval mode, whose weight and bias are rescaled."""
    model, other, inputs, labels = rescaled(name, 10.0)
    assert torch.allclose(model.eval()(inputs), other.eval()(inputs))
    before, moved = values(model, inputs, labels), values(other, inputs, labels)
    for one in (*STILL, *(f"{one} after" for one in STILL)):
        assert moved[one] == pytest.approx(before[one], rel=1e-5), one
    for one in ("trace", "trace after"):
        assert abs(moved[one] / before[one] - 1) > 0.2, one
    doubled = copy.deepcopy(model)
    with torch.no_grad():
        for tensor in doubled[-1].parameters():  # type: ignore[index]
            tensor.mul_(2)
    scaled = values(doubled, inputs, labels)
    for one in (*STILL, "trace"):
        assert abs(scaled[one] / before[one] - 1) > 0.1, one
    for one in AFTER:
        assert scaled[one] == pytest.approx(before[one], rel=1e-5), one


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_fisher_rao_of_relu_layers_without_biases_is_a_function_of_the_logits(layers: int) -> None:
    torch.manual_seed(0)
    parts = [part for _ in range(layers - 1) for part in (nn.Linear(4, 4, bias=False), nn.ReLU())]
    model = nn.Sequential(*parts, nn.Linear(4, 3, bias=False)).double()
    x, y = torch.randn(20, 4).double(), torch.randint(0, 3, (20,))
    z = model(x).detach()
    p = z.softmax(1)
    variance = (p * z.square()).sum(1) - (p * z).sum(1).square()
    found = measure(model, (x, y), "fisher_rao")["fisher_rao"]
    assert found.value == pytest.approx(layers**2 * float(variance.mean()), rel=1e-12)
    assert found.detail["sampling_se"] == pytest.approx(layers**2 * float(variance.std()) / 20**0.5, rel=1e-9)


@pytest.mark.parametrize("sure", [2.0, 6.0, 12.0])
def test_the_steps_of_the_temperature_against_fits_without_a_row(sure: float) -> None:
    """With a wrong row that is ever surer: they are those of the fits, or a little shorter."""
    rng = np.random.default_rng(0)
    z = rng.normal(size=(60, 3)) * 3
    y = np.where(rng.random(60) < 0.8, z.argmax(1), rng.integers(0, 3, 60))
    z[0], y[0] = (sure, 0.0, 0.0), 1

    def fit(kept: np.ndarray) -> BetaFit:
        return fit_beta(lambda: ((z[kept], y[kept], None),))

    every = np.arange(60)
    whole = fit(every)
    rows = SimpleNamespace(logits=torch.tensor(z), labels=torch.tensor(y), temperature=whole)
    steps = Shared.pull.func(rows).numpy() / 60  # type: ignore[arg-type]
    exact = np.array([math.log(whole.beta / fit(np.delete(every, i)).beta) for i in every])
    assert np.corrcoef(steps, exact)[0, 1] > 0.99
    assert 0.84 < steps.std() / exact.std() < 1.05


@pytest.mark.parametrize("sigma", [0.1, 0.5, 1.0])
def test_freedom_of_heavy_tails(sigma: float) -> None:
    """Against 4,000 samples: degrees of freedom of a variance are twice its squared mean over its variance."""
    rng = np.random.default_rng(0)
    population = np.exp(sigma * rng.normal(size=2_000))
    variances = rng.choice(population, (4_000, 100)).var(axis=1, ddof=1)
    expected = 2 * variances.mean() ** 2 / variances.var()
    assert freedom(torch.tensor(population)) * 100 / 2_000 == pytest.approx(expected, rel=0.1)


def test_freedom_of_light_tails_and_of_equal_terms() -> None:
    for terms in ([0.0, 1.0] * 10, [2.0] * 20):
        assert freedom(torch.tensor(terms)) == pytest.approx(19)
    assert freedom(torch.tensor([1.0])) >= 1


@pytest.mark.regression
@pytest.mark.parametrize("asked", ["trace after:exact", "lambda_max after:tol=1e-10"])
def test_rows_that_are_all_equal_move_a_number_through_the_temperature_alone(asked: str) -> None:
    """Against a jackknife, which leaves out a right row or a wrong one; of a single row there is no error."""
    model, inputs, _ = setup("relu", n=1)
    right, wrong = model(inputs)[0].topk(2).indices.tolist()
    labels = torch.tensor([right] * 24 + [wrong] * 8)

    def error(kept: torch.Tensor) -> tuple[float, float]:
        (found,) = measure(model, (inputs.expand(len(kept), -1), labels[kept]), asked).estimates
        return float(found.value or 0.0), float(found.detail["sampling_se"] or 0.0)

    rows = torch.arange(32)
    without = np.array([error(rows[1:])[0]] * 24 + [error(rows[:-1])[0]] * 8)
    assert error(rows)[1] == pytest.approx((31 * without.var()) ** 0.5, rel=0.2)
    assert error(rows[-1:])[1] == 0


@pytest.mark.regression
def test_a_larger_error_never_brings_the_upper_end_of_an_interval_nearer() -> None:
    ends = [interval(1.0, half, True)[1] for half in np.linspace(0, 20, 200)]
    assert ends == sorted(ends)
    assert ends[-1] == 21


def test_a_number_is_moved_by_the_slope_at_the_temperature(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not by that of a step to one side of it, which is another near a maximum: against steps of a thousandth."""
    model, inputs, _ = setup("relu", n=40)
    labels, asked = known("relu", model, inputs), ("fisher_rao after", "trace after:exact", "lambda_max after")
    errors = []
    for step in (quantities.NUDGE, 1e-3):
        monkeypatch.setattr("calibcli.networks.curvature.engine.NUDGE", step)
        monkeypatch.setattr(quantities, "NUDGE", step)
        errors.append([one.detail["sampling_se"] for one in measure(model, (inputs, labels), *asked).estimates])
    assert errors[0] == pytest.approx(errors[1], rel=0.02)


@pytest.mark.slow
def test_the_error_over_rows_counts_that_they_choose_the_temperature() -> None:
    """Against a jackknife of everything: T and the number without each row in turn."""
    model, inputs, _ = setup("relu", n=40)
    with torch.no_grad():
        model[2].weight.mul_(4)  # type: ignore[index,operator,union-attr]
    labels = known("relu", model, inputs)
    asked = ("fisher_rao after", "trace after:exact", "lambda_max after:tol=1e-10")
    rows = torch.arange(40)
    without = [measure(model, (inputs[rows != i], labels[rows != i]), *asked).estimates for i in range(40)]
    found = measure(model, (inputs, labels), *asked).estimates
    for i, estimate in enumerate(found):
        left = np.array([one[i].value for one in without], np.float64)
        jackknife = math.sqrt(39 / 40 * float(((left - left.mean()) ** 2).sum()))
        assert estimate.detail["sampling_se"] == pytest.approx(jackknife, rel=0.25), estimate.name


@pytest.mark.slow
def test_the_printed_intervals_cover() -> None:
    """The short form of `benchmarks/curvature_coverage.py --part sample`."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3)).double()
    x, y = data(2_000, 4, 0.8)
    train(model, x[1500:], y[1500:], 150)
    for name, one in sampled(model, x[:1500], y[:1500], CE, 100, 40, ("fisher_rao", "adaptive_trace")).items():
        assert one.given == 40
        assert one.surely()[1] >= 0.92, name


@pytest.mark.slow
def test_a_studys_interval_of_a_difference_covers() -> None:
    """The short form of `--part difference`."""
    x, y = data(9_000, 4, 0.8)
    for name, one in differing(pools("ReLU", 4, x[7000:], y[7000:], 1000), 3, 128, 60).items():
        assert one.given == 60
        assert one.surely()[1] >= 0.92, name


@pytest.mark.slow
def test_the_interval_of_the_estimator_covers() -> None:
    """Of a few probes; `--part estimator` has more networks."""
    model, inputs, labels = setup("mlp", n=16)
    true = truths(model, inputs, labels)["adaptive_trace"]
    covered = Covered(30)
    for seed in range(30):
        detail = measure(model, (inputs, labels), "adaptive_trace:probes=6", seed=seed).estimates[0].detail
        covered.add(detail["estimator_low"], detail["estimator_high"], true)  # type: ignore[arg-type]
    assert covered.surely()[1] >= 0.92
    assert min(covered.widths) > 0


# The terms of the rows.


def of_rows(model: nn.Module, inputs: Tensor, labels: Tensor) -> Tensor:
    """(N, P, P) Hessians of each row's loss."""
    return torch.stack([dense(model, inputs[i : i + 1], labels[i : i + 1], CE)[0] for i in range(len(labels))])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["relu", "cnn", "mlp"])
def test_the_terms_of_rows_against_each_rows_hessian(name: str) -> None:
    """Exact where every pair is taken and the logits are linear in each tensor; of λmax everywhere."""
    model, inputs, labels = setup(name, n=10)
    terms: dict[str, np.ndarray] = {}
    result = measure(model, (inputs, labels), *map(spec, ("trace", "lambda_max", *STILL)), terms=terms)
    each = of_rows(model, inputs, labels)
    theta = flat([p.detach() for p in model.parameters()])
    relative = theta[:, None] * each * theta
    for quantity, largest, h in (("trace", "lambda_max", each), ("adaptive_trace", "adaptive_lambda", relative)):
        rows, true = terms[f"{quantity}:exact=true"], h.diagonal(dim1=1, dim2=2).sum(1).numpy()
        assert rows.mean() == pytest.approx(true.mean(), rel=1e-9)
        if name in ("relu", "cnn"):
            np.testing.assert_allclose(rows, true, rtol=1e-9)
        x = torch.linalg.eigh(h.mean(0))[1][:, -1]
        np.testing.assert_allclose(terms[f"{largest}:tol=1e-10"], ((h @ x) @ x).numpy(), rtol=1e-5, atol=1e-9)
    g = dense(model, inputs, labels, CE)[1]
    assert terms["fisher_rao"].mean() == pytest.approx(float(theta @ g @ theta), rel=1e-9)
    assert result["fisher_rao"].value == pytest.approx(terms["fisher_rao"].mean())


@pytest.mark.parametrize("scale", ["number", "table", None])
def test_an_embedding_has_a_rule_in_every_coordinates(scale: str | None) -> None:
    """Positions with the same token share a row of the table, whose coordinates have one scale each."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(4, 3, padding_idx=0), nn.Flatten(), nn.Tanh(), nn.Linear(15, 3)).double()
    tokens = torch.tensor([[1, 1, 2, 0, 3], [3, 3, 3, 1, 0], [2, 0, 0, 2, 1]])
    given = {"device": torch.device("cpu"), "dtype": torch.float64}
    problem = CurvatureProblem(model, Tensors(tokens, torch.tensor([0, 1, 2])), **given)  # type: ignore[arg-type]
    problem.classes = 3
    scales = {"number": torch.tensor(2.0).double(), "table": torch.randn(4, 3).double(), None: None}[scale]
    if scales is not None:
        ones = [torch.ones(()).double()] * (len(problem.tensors) - 1)
        problem = problem.view(1.0, [scales, *ones])
    norms, u = RowNorms(problem), torch.randn(3, 3).double()
    assert bool(norms.by_layer.all())
    assert torch.allclose(norms(torch.arange(3), u), norms._row_by_row(tokens, u), rtol=1e-12)


def test_where_no_rule_carries_derivatives_the_terms_are_those_of_groups() -> None:
    """A recurrent layer has none. The terms of a group are alike, and vary between groups as its rows would."""
    model, inputs, labels = setup("gru", n=64)
    terms: dict[str, np.ndarray] = {}
    found = measure(model, (inputs, labels), "lambda_max", terms=terms)["lambda_max"]
    assert len(np.unique(terms["lambda_max"].round(9))) <= 16
    assert terms["lambda_max"].mean() == pytest.approx(found.value, rel=1e-6)
    assert terms["lambda_max"].std() / 8 == pytest.approx(found.detail["sampling_se"], rel=0.2)


@pytest.mark.slow
def test_terms_change_no_number() -> None:
    model, inputs, labels = setup("mlp", n=16)
    asked = ("trace", "lambda_max", "adaptive_trace", "fisher_rao")
    with_terms, without = (measure(model, (inputs, labels), *asked, terms=t) for t in ({}, None))
    assert [(e.value, e.low, e.high) for e in with_terms.estimates] == [
        (e.value, e.low, e.high) for e in without.estimates
    ]
