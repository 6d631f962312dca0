"""Every curvature quantity against the explicit Hessian in float64; options, state and refusals."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from curvature_models import INPUTS, MODELS, Focal, K, Once, dense, flat, relu, setup
from torch import Tensor, nn

from calibcli.core.errors import InputError, UsageError
from calibcli.core.result import Result
from calibcli.networks.curvature import QUANTITIES, measure
from calibcli.networks.losses import CrossEntropy

CE = CrossEntropy()
ORACLES = {
    "lambda_max": lambda h, g, slope, theta: torch.linalg.eigvalsh(h)[-1],
    "lambda_min": lambda h, g, slope, theta: torch.linalg.eigvalsh(h)[0],
    "top": lambda h, g, slope, theta: torch.linalg.eigvalsh(h)[-1],
    "lambda_max_ggn": lambda h, g, slope, theta: torch.linalg.eigvalsh(g)[-1],
    "top_ggn": lambda h, g, slope, theta: torch.linalg.eigvalsh(g)[-1],
    "trace": lambda h, g, slope, theta: h.trace(),
    "trace_ggn": lambda h, g, slope, theta: g.trace(),
    "grad_norm": lambda h, g, slope, theta: slope.norm(),
    "negative_fraction": lambda h, g, slope, theta: (torch.linalg.eigvalsh(h) < 0).double().mean(),
    "fisher_rao": lambda h, g, slope, theta: theta @ g @ theta,
    "adaptive_trace": lambda h, g, slope, theta: (theta.square() * h.diagonal()).sum(),
    "adaptive_lambda": lambda h, g, slope, theta: torch.linalg.eigvalsh(theta.abs()[:, None] * h * theta.abs())[-1],
}
EXACT = (
    "lambda_max:tol=1e-10",
    "lambda_min:tol=1e-10",
    "top:k=4,tol=1e-10",
    "lambda_max_ggn:tol=1e-10",
    "top_ggn:k=4,tol=1e-10",
    "trace:exact=true",
    "trace_ggn:exact=true",
    "grad_norm",
    "fisher_rao",
    "adaptive_trace:exact=true",
    "adaptive_lambda:tol=1e-10",
)


def agrees(found: float | None, true: Tensor | float, tolerance: float = 1e-9) -> None:
    """Within the tolerance, and 1 % more would not be."""
    assert found is not None
    true = float(true)
    assert abs(found - true) <= tolerance * max(abs(true), 1e-3)
    assert abs(found * 1.01 - true) > tolerance * max(abs(true), 1e-3)


def test_every_registry_entry_has_an_oracle() -> None:
    """Those after a temperature have theirs in `test_curvature_rescaled.py`."""
    names = {"negative_fraction" if e.name == "density" else e.name.removesuffix(" after") for e in QUANTITIES}
    assert names == set(ORACLES)


@pytest.mark.parametrize(
    ("name", "gamma"),
    [(name, gamma) for name in MODELS for gamma in (None, 2.0, 5.0)]
    + [(name, gamma) for name in ("mlp", "cnn") for gamma in (0.5, 1.0, 3.0)],
)
@pytest.mark.one_in(14)
def test_against_the_explicit_hessian(name: str, gamma: float | None) -> None:
    loss = CE if gamma is None else Focal(gamma)
    model, inputs, labels = setup(name, n=9 if gamma in (None, 2.0) else 7)  # few rows for time; ragged
    h, g, slope = dense(model, inputs, labels, loss)
    theta = flat([p.detach() for p in model.parameters()])
    result = measure(model, (inputs, labels), *EXACT, loss=loss, batch_size=8)
    for spec in EXACT:
        quantity = spec.partition(":")[0]
        of = "k=1" if quantity in ("top", "top_ggn") else ""
        agrees(result[spec, of].value, ORACLES[quantity](h, g, slope, theta))
    eigenvalues = torch.linalg.eigvalsh(h)
    for i in range(4):
        agrees(result["top:k=4,tol=1e-10", f"k={i + 1}"].value, eigenvalues[-1 - i])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["relu", "cnn"])
def test_nothing_to_probe_where_the_logits_are_piecewise_linear(name: str) -> None:
    model, inputs, labels = setup(name)
    h, g, _ = dense(model, inputs, labels, CE)
    found = measure(model, (inputs, labels), "trace:precision=1e-9").get("trace:precision=1e-09")
    assert "linear in each parameter tensor" in found.how
    agrees(found.value, h.trace())
    assert torch.allclose(h.trace(), g.trace(), rtol=1e-12)
    assert found.detail["estimator_se"] == 0.0


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mlp", "tied", "attention", "silu", "gru"])
def test_probes_where_it_bends(name: str) -> None:
    model, inputs, labels = setup(name, n=14)
    h, _, _ = dense(model, inputs, labels, CE)
    found = measure(model, (inputs, labels), "trace:probes=60").get("trace:probes=60")
    assert "60 probes of H - G" in found.how
    error = float(found.detail["estimator_se"])  # type: ignore[arg-type]
    assert 0 < error < 0.4 * float(h.trace())
    assert abs(found.value - float(h.trace())) < 4 * error  # type: ignore[operator]


def test_trace_does_not_depend_on_how_the_loss_is_split() -> None:
    model, inputs, labels = setup("mlp")
    known, eigen = (
        measure(model, (inputs, labels), "trace:exact=true", loss=Focal(2.0, known)).estimates[0].value
        for known in (True, False)
    )
    agrees(known, eigen, 1e-12)  # type: ignore[arg-type]


@pytest.mark.slow
def test_plain_hutchinson_for_many_classes_and_an_unknown_split(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("calibcli.networks.curvature.engine.MOST_CLASSES", 2)
    model, inputs, labels = setup("mlp")
    h, _, _ = dense(model, inputs, labels, Focal(1.0))
    result = measure(model, (inputs, labels), "trace:probes=100", "trace_ggn", loss=Focal(1.0, known=False))
    found = result.get("trace:probes=100")
    assert found.how.startswith("100 Hutchinson probes of H; standard error")
    assert abs(found.value - float(h.trace())) < 4 * float(found.detail["estimator_se"])  # type: ignore
    assert result.get("trace_ggn").value is None
    assert "does not split" in result.get("trace_ggn").reason


@pytest.mark.slow
def test_importance_sampled_pairs_are_unbiased(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("calibcli.networks.curvature.ggn.CHEAP", 0)  # else so few classes are all taken
    model, inputs, labels = setup("relu", n=200)
    _, g, _ = dense(model, inputs, labels, CE)
    scores = []
    for seed in range(25):
        found = measure(model, (inputs, labels), "trace_ggn:precision=0.05", seed=seed).estimates[0]
        assert "draws from the rest" in found.how
        error = float(found.detail["estimator_se"])  # type: ignore[arg-type]
        assert 0.01 < error / float(g.trace()) < 0.1
        scores.append((found.value - float(g.trace())) / error)  # type: ignore[operator]
    assert abs(sum(scores) / 25) < 4 / 25**0.5
    assert 0.5 < (sum(s * s for s in scores) / 25) < 2


@pytest.mark.slow
def test_draws_do_not_miss_rows_that_are_light_and_steep(monkeypatch: pytest.MonkeyPatch) -> None:
    """One confident row behind a LayerNorm of hardly varying inputs: a thousandth of the mass, much of the trace."""
    monkeypatch.setattr("calibcli.networks.curvature.ggn.CHEAP", 0)
    torch.manual_seed(0)
    model = nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, K)).double()
    first = nn.Sequential(nn.Linear(4, 4, bias=False), model).double()
    inputs, labels = torch.randn(300, 4).double(), torch.randint(0, K, (300,))
    inputs[:6] *= 0.02
    with torch.no_grad():
        model[0].eps = 1e-12
        model[3].weight *= 3
    _, g, _ = dense(first, inputs, labels, CE)
    covered = 0
    for seed in range(40):
        found = measure(first, (inputs, labels), "trace_ggn:precision=0.1", seed=seed).estimates[0]
        low, high = float(found.detail["estimator_low"]), float(found.detail["estimator_high"])  # type: ignore[arg-type]
        assert low < high
        covered += low <= float(g.trace()) <= high
    assert covered >= 34  # of 38 expected


def test_layers_add_up() -> None:
    model, inputs, labels = setup("mlp")
    h, g, slope = dense(model, inputs, labels, CE)
    result = measure(model, (inputs, labels), "trace:exact=true", "trace_ggn:exact=true", "grad_norm", "lambda_max")
    table = next(t for t in result.tables if t.name == "layers")
    columns = {c: [row[i] for row in table.rows] for i, c in enumerate(table.columns)}
    assert columns["layer"] == ["0", "2"]
    assert columns["parameters"] == [25, 18]
    agrees(columns["Tr(H)"][0], h.diagonal()[:25].sum())  # type: ignore[arg-type]
    agrees(columns["Tr(G)"][1], g.diagonal()[25:].sum())  # type: ignore[arg-type]
    agrees(columns["gradient norm"][0], slope[:25].norm())  # type: ignore[arg-type]
    agrees(sum(columns["share of λmax vector"]), 1.0)  # type: ignore[arg-type]
    assert any(p.name == "layers Tr(H)" and p.labels == ["0", "2"] for p in result.plots)


@pytest.mark.slow
def test_density_integrates_to_one_and_sees_the_negative_share() -> None:
    model, inputs, labels = setup("mlp")
    h, _, _ = dense(model, inputs, labels, CE)
    result = measure(model, (inputs, labels), "density:probes=8,steps=43")
    found = result.get("negative_fraction:steps=43,probes=8")
    assert found.low is not None
    assert found.high is not None
    assert found.low <= float((torch.linalg.eigvalsh(h) < -float(found.detail["sigma"])).double().mean()) <= found.high  # type: ignore
    (curve,) = result.plots[0].curves
    x, y = torch.tensor(curve.x), torch.tensor(curve.y)
    assert float(torch.trapezoid(y, x)) == pytest.approx(1, abs=0.01)


def test_both_errors_are_there() -> None:
    model, inputs, labels = setup("mlp", n=80)
    for e in measure(model, (inputs, labels)).estimates:
        assert e.value is not None
        assert e.low is not None
        assert e.low < e.value < e.high  # type: ignore[operator]
        assert e.how
        assert "sampling_se" in e.detail
        assert e.level == 0.95
        assert e.n == 80


def test_lambda_max_is_bounded_by_its_residual_and_by_the_estimate() -> None:
    model, inputs, labels = setup("silu")
    h, _, _ = dense(model, inputs, labels, CE)
    true = float(torch.linalg.eigvalsh(h)[-1])
    for tol in (0.3, 0.1, 1e-2):
        rigorous = measure(model, (inputs, labels), f"lambda_max:tol={tol}").estimates[0]
        low, high = float(rigorous.detail["estimator_low"]), float(rigorous.detail["estimator_high"])  # type: ignore
        assert low - 1e-12 <= true <= high + 1e-12
    quick = measure(model, (inputs, labels), "lambda_max:tol=0.01,bound=estimate").estimates[0]
    assert quick.value == pytest.approx(true, rel=0.01)
    assert "not a bound" in quick.how
    assert quick.detail["sampling_se"] is None


@pytest.mark.slow
def test_sampling_error_of_lambda_max_is_the_delta_method() -> None:
    model, inputs, labels = setup("mlp", n=64)
    h, _, _ = dense(model, inputs, labels, CE)
    x = torch.linalg.eigh(h)[1][:, -1]
    forms = torch.stack([x @ dense(model, inputs[i : i + 4], labels[i : i + 4], CE)[0] @ x for i in range(0, 64, 4)])
    found = measure(model, (inputs, labels), "lambda_max:tol=1e-10").estimates[0]
    agrees(float(found.se), forms.std() / 4, 1e-8)  # type: ignore[arg-type]


# options


def options(*specs: str, **kwargs: object) -> Result:
    model, inputs, labels = setup("mlp", n=50)
    return measure(model, (inputs, labels), *specs, **kwargs)  # type: ignore[arg-type]


@pytest.mark.slow
def test_batch_size_memory_and_dtype_change_work_not_results() -> None:
    torch.manual_seed(0)
    model, inputs, labels = setup("mlp", n=300)
    results = [
        measure(model, (inputs, labels), "lambda_max", "trace:probes=2", "density:steps=5", batch_size=b, memory=m)  # type: ignore
        for b, m in ((0, "auto"), (256, "high"), (2, "low"), (48, "auto"))
    ]
    for other in results[1:]:
        for a, b in zip(results[0].estimates, other.estimates):
            assert a.value == pytest.approx(b.value, rel=1e-11)
            assert a.low == pytest.approx(b.low, rel=1e-7, abs=1e-9)
    plans = [str(r.facts["memory_plan"]) for r in results]
    assert "256 rows" in plans[1]
    assert "kept" in plans[1]
    assert "of 2 rows" in plans[2]
    assert "one kept at a time" in plans[2]
    assert "of 32 rows" in plans[3]
    single = measure(model, (inputs, labels), "lambda_max", dtype=torch.float32).estimates[0]
    assert single.value == pytest.approx(results[0].estimates[0].value, rel=1e-3)
    assert single.value != results[0].estimates[0].value


def test_params_choose_a_block() -> None:
    model, inputs, labels = setup("mlp")
    h, _, _ = dense(model, inputs, labels, CE)
    found = measure(model, (inputs, labels), "lambda_max:tol=1e-10", params="2.*")
    agrees(found.estimates[0].value, torch.linalg.eigvalsh(h[25:, 25:])[-1])
    assert found.facts["parameters"] == 18
    with pytest.raises(UsageError, match="matches no parameter"):
        measure(model, (inputs, labels), params="layer9*")


def test_train_loss_is_measured_beside() -> None:
    model, inputs, labels = setup("mlp")
    found = measure(model, (inputs, labels), "trace:exact=true", train_loss=Focal(2.0))
    for of, loss in (("", CE), ("loss=focal:gamma=2", Focal(2.0))):
        agrees(found["trace:exact=true", of].value, dense(model, inputs, labels, loss)[0].trace())
    assert found.facts["losses"] == ["ce", "focal:gamma=2"]


@pytest.mark.slow
def test_seed_level_and_probes_have_an_effect() -> None:
    base = options("trace:probes=4").estimates[0]
    assert options("trace:probes=4").estimates[0] == base
    assert options("trace:probes=4", seed=1).estimates[0].value != base.value
    narrow = options("trace:probes=4", level=0.5).estimates[0]
    assert narrow.low > base.low  # type: ignore[operator]
    assert narrow.level == 0.5
    model, inputs, labels = setup("attention", n=36)
    loose, tight = (measure(model, (inputs, labels), f"trace:precision={p}").estimates[0] for p in (0.2, 0.05))
    assert 0 < tight.detail["estimator_se"] < loose.detail["estimator_se"]  # type: ignore[operator]
    assert tight.detail["estimator_se"] < 0.08 * tight.value  # type: ignore[operator]
    assert " 12 probes" in options("trace:precision=0.0001,most=12").estimates[0].how
    assert options("trace:precision=0.0001").estimates[0].detail["estimator_se"] == 0.0  # 43 elements: all of them


def test_density_options() -> None:
    wide = options("density:sigma=0.1")
    assert wide.estimates[0].detail["sigma"] == 0.1
    assert "1 × 7 Lanczos" in options("density:steps=7").estimates[0].how
    assert "3 × 7 Lanczos" in options("density:steps=7,probes=3").estimates[0].how


@pytest.mark.parametrize("spec", ["top:k=0", "trace:probes=-3", "lambda_max:tol=0", "density:steps=0"])
def test_options_must_be_positive(spec: str) -> None:
    with pytest.raises(UsageError, match="is out of range"):
        options(spec)


def test_dict_inputs_and_a_forward_of_ones_own() -> None:
    model, inputs, labels = setup("mlp")
    plain = measure(model, (inputs, labels), "trace:exact=true").estimates[0].value

    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = model

        def forward(self, x: Tensor, scale: Tensor) -> tuple[Tensor, None]:
            return self.inner(x * scale[:, None]), None

    named = {"x": inputs / 2, "scale": torch.full((len(labels),), 2.0).double()}
    agrees(measure(Named(), (named, labels), "trace:exact=true").estimates[0].value, plain)  # type: ignore[arg-type]
    halved = measure(model, (inputs * 2, labels), "trace:exact=true", forward=lambda m, x: m(x / 2))
    agrees(halved.estimates[0].value, plain)  # type: ignore[arg-type]


def test_published_softmax_regression() -> None:
    cases = json.loads((Path(__file__).parent / "vectors.json").read_text())["softmax_regression_hessian"]
    for case in cases:
        model = nn.Linear(2, 3, bias=False).double()
        with torch.no_grad():
            model.weight.copy_(torch.tensor(case["W"], dtype=torch.float64))
        data = torch.tensor(case["X"], dtype=torch.float64), torch.tensor(case["y"])
        loss = Focal(case["gamma"]) if case["gamma"] else CE
        found = measure(model, data, "trace", "lambda_max:tol=1e-12", "grad_norm", loss=loss)
        agrees(found.get("trace").value, case["trace"], 1e-12)
        agrees(found.get("lambda_max:tol=1e-12").value, max(case["eigenvalues"]), 1e-12)
        agrees(found.get("grad_norm").value, flat([torch.tensor(case["grad"])]).norm(), 1e-7)


# state


def test_the_model_and_torch_are_left_as_they_were() -> None:
    model, inputs, labels = setup("cnn")
    model[0].weight.requires_grad_(False)
    model[4].weight.grad = torch.ones_like(model[4].weight)
    model[1].eval()
    before = {k: v.clone() for k, v in model.state_dict().items()}

    def state() -> tuple[object, ...]:
        return (
            [m.training for m in model.modules()],
            [p.requires_grad for p in model.parameters()],
            [p.grad is None or bool((p.grad == 1).all()) for p in model.parameters()],
            torch.random.get_rng_state().tolist(),
            torch.is_grad_enabled(),
            torch.are_deterministic_algorithms_enabled(),
            torch.backends.mha.get_fastpath_enabled(),
            torch.backends.cuda.math_sdp_enabled(),
            torch.backends.cuda.flash_sdp_enabled(),
            torch.backends.cudnn.allow_tf32,
            torch.backends.cuda.matmul.allow_tf32,
        )

    torch.manual_seed(3)
    with torch.no_grad():
        was = state()
        measure(model, (inputs, labels), "lambda_max", "trace")
        assert state() == was
        with pytest.raises(InputError):
            measure(model, (inputs, labels + K), "lambda_max")
        assert state() == was
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())


def test_frozen_parameters_do_not_count() -> None:
    model, inputs, labels = setup("mlp")
    model[0].weight.requires_grad_(False)
    model[0].bias.requires_grad_(False)
    h, _, _ = dense(model, inputs, labels, CE)
    assert len(h) == 18
    agrees(measure(model, (inputs, labels), "trace:exact=true").estimates[0].value, h.trace())


def test_an_interrupt_returns_what_is_known() -> None:
    model, inputs, labels = setup("mlp")

    def interrupt(fraction: float, text: str) -> None:
        if "4 products" in text:
            raise KeyboardInterrupt

    found = measure(model, (inputs, labels), "lambda_max:tol=1e-12", "grad_norm", "trace_ggn", progress=interrupt)
    assert found.facts["interrupted"] == "KeyboardInterrupt"
    assert found.get("trace_ggn").value is not None
    partial = found.get("lambda_max:tol=1e-12")
    assert partial.value is not None
    assert "not converged" in partial.reason
    assert any("interrupted" in note for note in found.notes)
    assert Result.from_json(found.to_json()) == found

    def at_once(fraction: float, text: str) -> None:
        raise KeyboardInterrupt

    empty = measure(model, (inputs, labels), "trace", "density", progress=at_once)
    for name in ("trace", "negative_fraction"):
        assert empty.get(name).reason == "interrupted before the first result"


# refusals


class Detached(Once):
    @staticmethod
    def backward(ctx, g):  # type: ignore[no-untyped-def]
        return 3 * ctx.saved_tensors[0].detach() ** 2 * g


class Wrapped(nn.Module):
    def __init__(self, function: type[torch.autograd.Function]) -> None:
        super().__init__()
        self.inner, self.function = relu().double(), function

    def forward(self, x: Tensor) -> Tensor:
        return self.function.apply(self.inner(x))  # type: ignore[no-any-return]


def refused(model: nn.Module, labels: Tensor | None = None, text: str = "") -> None:
    inputs = INPUTS["mlp"](20).double()
    with pytest.raises(InputError, match=text) as caught:
        measure(model, (inputs, torch.arange(20) % K if labels is None else labels), "lambda_max")
    assert caught.value.fix


def test_refusals() -> None:
    torch.manual_seed(0)
    refused(relu().double(), torch.full((20,), K), "label 3 is beyond the model's 3 outputs")
    refused(relu().double(), torch.full((20,), -1), "label -1 is beyond")
    refused(relu().double(), torch.arange(19), "20 rows of inputs, 19 labels")
    refused(relu().double().requires_grad_(False), text="no trainable parameters")
    refused(Wrapped(Once), text="second derivative")
    refused(Wrapped(Detached), text="disagrees with a difference of gradients")
    broken = relu().double()
    with torch.no_grad():
        broken[0].weight[0, 0] = math.nan
    refused(broken, text=r"parameter '0.weight' is not finite")
    refused(nn.Sequential(relu(), nn.Unflatten(1, (1, K))).double(), text="output has shape")


class Noisy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = relu().double()

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.dropout(self.inner(x), 0.5, training=True)


def test_noise_is_refused() -> None:
    refused(Noisy(), text="change from call to call")


@pytest.mark.slow
def test_memory_backs_off_and_gives_up(monkeypatch: pytest.MonkeyPatch) -> None:
    from calibcli.networks.curvature.problem import CurvatureProblem

    model, inputs, labels = setup("mlp", n=64)
    true = measure(model, (inputs, labels), "lambda_max").estimates[0].value
    plain = CurvatureProblem.gradients
    limit = 8

    def small(self, rows, scalar, graph=True):  # type: ignore[no-untyped-def]
        if len(rows) > limit:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")
        return plain(self, rows, scalar, graph)

    monkeypatch.setattr(CurvatureProblem, "gradients", small)
    found = measure(model, (inputs, labels), "lambda_max", "trace", "grad_norm")
    assert found.get("lambda_max").value == pytest.approx(true, rel=1e-10)
    assert "of 8 rows" in str(found.facts["memory_plan"])
    limit = 0
    with pytest.raises(InputError, match="out of memory"):
        measure(model, (inputs, labels), "lambda_max")


@pytest.mark.slow
def test_no_step_needs_two_rows_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever runs out of memory with two rows is done with one: certificates, tests of curvature, spreads."""
    from calibcli.networks.curvature.problem import CurvatureProblem

    model, inputs, labels = setup("silu", n=6)
    asked = ("lambda_max", "trace:probes=4", "grad_norm")
    true = measure(model, (inputs, labels), *asked)
    plain = CurvatureProblem.gradients
    calls = 0

    def late(self, rows, scalar, graph=True):  # type: ignore[no-untyped-def]
        nonlocal calls
        calls += 1
        if calls > after and len(rows) > 1:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")
        return plain(self, rows, scalar, graph)

    monkeypatch.setattr(CurvatureProblem, "gradients", late)
    after = calls = 0
    measure(model, (inputs, labels), *asked, batch_size=8)
    for after in range(0, min(calls, 40), 3):
        calls = 0
        found = measure(model, (inputs, labels), *asked)
        for a, b in zip(found.estimates, true.estimates, strict=True):
            assert a.value == pytest.approx(b.value, rel=1e-6), (after, a.name)
