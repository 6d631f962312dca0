"""Losses against 50-digit vectors, derivatives, and slow independent formulas."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from focal_inverse import log_phi_inverse
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from calibcli.core.errors import UsageError
from calibcli.networks import losses
from calibcli.networks.losses.focal import AdaFocal, FocalSample, FocalScheduled, adafocal_update, focal_factor, peak_p
from calibcli.networks.losses.penalties import MMCE

torch.set_num_threads(1)
VECTORS = json.loads((Path(__file__).parent / "vectors.json").read_text())
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5}
both = pytest.mark.parametrize("dtype", TOLERANCE, ids=str)

# every loss of the registry, with the options that change its formula
SPECS = [
    "ce",
    "ce:alpha=0.5/2/1/3",
    "label_smoothing",
    "focal:gamma=0.5",
    "focal:gamma=1.5",
    "focal:gamma=3",
    "focal:gamma=2,alpha=0.5/2/1/3",
    "focal:gamma=2,smoothing=0.1",
    "focal:gamma=2,smoothing=0.1,smoothed=py",
    "fls-531",
    "fla-53",
    "fla-532",
    "focal_sample:gammas=auto",
    "brier",
    "dual_focal:gamma=3",
    "inverse_focal:gamma=2",
    "adafocal",
    "proper_focal:gamma=2",
]
_NAMED = {losses.objective(spec).spec.partition(":")[0] for spec in SPECS}
SPECS += [entry.name for entry in losses.LOSSES if entry.name not in _NAMED]


def of(spec: str) -> losses.Loss:
    return losses.objective(spec).loss


def one(record: dict[str, Any], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    return torch.tensor([record["logits"]], dtype=dtype, requires_grad=True), torch.tensor([record["y"]])


def close(got: Tensor, want: Any, dtype: torch.dtype, scale: float = 1.0) -> None:
    want = torch.tensor(want, dtype=torch.float64)
    torch.testing.assert_close(got.detach().double(), want, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype] * 1e-2 * scale)


def hessian(loss: Any, z: Tensor, y: Tensor) -> Tensor:
    return torch.autograd.functional.hessian(lambda t: loss(t.unsqueeze(0), y).sum(), z.detach().squeeze(0))


@both
def test_focal_vectors(dtype: torch.dtype) -> None:
    for r in VECTORS["focal"]:
        z, y = one(r, dtype)
        loss = of(f"focal:gamma={r['gamma']}")
        value = loss(z, y)
        torch.testing.assert_close(float(value.detach()), r["loss"], rtol=TOLERANCE[dtype], atol=1e-37)
        close(torch.autograd.grad(value.sum(), z)[0][0], r["grad"], dtype)
        close(hessian(loss, z, y), r["hess"], dtype)
        with pytest.raises(AssertionError):
            torch.testing.assert_close(float(value.detach()) * 1.01, r["loss"], rtol=TOLERANCE[dtype], atol=0.0)


@both
@pytest.mark.parametrize(
    ("key", "spec"),
    [
        ("focal_label_smoothing", "focal:gamma={gamma},smoothing={eps},alpha={alpha}"),
        ("dual_focal", "dual_focal:gamma={gamma}"),
        ("inverse_focal", "inverse_focal:gamma={abs_gamma}"),
        ("proper_focal", "proper_focal:gamma={gamma}"),
    ],
)
def test_other_vectors(key: str, spec: str, dtype: torch.dtype) -> None:
    for r in VECTORS[key]:
        z, y = one(r, dtype)
        fields = {**r, "alpha": "/".join(map(str, r.get("alpha", [])))}
        value = of(spec.format(**fields))(z, y)
        torch.testing.assert_close(float(value.detach()), r["loss"], rtol=TOLERANCE[dtype], atol=0.0)
        if "grad" in r:
            close(torch.autograd.grad(value.sum(), z)[0][0], r["grad"], dtype)


def test_g_and_its_crossing() -> None:
    for r in VECTORS["g"]:
        assert focal_factor(r["p"], r["gamma"]) == pytest.approx(r["g"], rel=1e-12)
    for r in VECTORS["gamma_star"]:
        assert losses.gamma_star(r["p0"]) == pytest.approx(r["gamma_star"], rel=1e-9, abs=1e-15)
    for r in VECTORS["p0_of_gamma"]:
        assert losses.critical_p(r["gamma"]) == pytest.approx(r["p0"], rel=1e-10)
        assert peak_p(r["gamma"]) == pytest.approx(r["p_peak"], rel=1e-10)
        assert focal_factor(peak_p(r["gamma"]), r["gamma"]) == pytest.approx(r["g_peak"], rel=1e-12)
    for p0 in (0.0, -0.1, 1.2, math.nan):
        with pytest.raises(UsageError):
            losses.gamma_star(p0)


def test_adafocal_update_vectors() -> None:
    for r in VECTORS["adafocal_update"]:
        assert adafocal_update(r["gamma"], r["E"]) == pytest.approx(r["next"], rel=1e-12)


@both
def test_mmce_vectors(dtype: torch.dtype) -> None:
    r = VECTORS["mmce"]
    conf, correct = torch.tensor(r["conf"], dtype=dtype), torch.tensor(r["correct"], dtype=dtype)
    for options, want in (
        ({}, r["mmce_w"]),
        ({"normalisation": "code"}, r["mmce_w_mukhoti_code_double_normalised"]),
        ({"form": "plain"}, r["mmce"]),
    ):
        got = float(MMCE(**options).of_confidence(conf, correct))
        floor = (
            0.0 if options.get("normalisation") == "code" else 1e-10
        )  # the root's guard, which the vectors leave out
        assert got**2 - floor == pytest.approx(want**2, rel=10 * TOLERANCE[dtype])
    assert float(MMCE().of_confidence(conf, torch.ones_like(conf))) == 0


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.one_in(5)
def test_derivatives(spec: str) -> None:
    torch.manual_seed(1)
    z = (3 * torch.randn(6, 4, dtype=torch.float64)).requires_grad_()
    y, loss = torch.tensor([0, 1, 2, 3, 0, 1]), of(spec)
    if isinstance(loss, AdaFocal):  # both branches
        loss.bin_gammas[::2] = -0.7
    assert torch.autograd.gradcheck(lambda t: loss(t, y), z)
    assert torch.autograd.gradgradcheck(lambda t: loss(t, y), z)


def test_mmce_derivatives() -> None:
    torch.manual_seed(2)
    r = torch.rand(7, dtype=torch.float64).requires_grad_()
    correct = torch.tensor([1.0, 0, 1, 1, 0, 0, 1], dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda t: MMCE().of_confidence(t, correct), r)
    assert torch.autograd.gradgradcheck(lambda t: MMCE().of_confidence(t, correct), r)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(
    "spec",
    [s.replace("alpha=0.5/2/1/3", "alpha=0.5/2/1") for s in SPECS if "gamma=" not in s]
    + [
        f"{n}:gamma={g}"
        for n in ("focal", "dual_focal", "inverse_focal", "proper_focal")
        for g in (0, 0.5, 1, 1.5, 2, 3, 5)
    ]
    + [f"focal:gamma={g},smoothing=0.05" for g in (0, 0.5, 1, 1.5, 2, 3, 5)],
)
def test_nothing_overflows(spec: str, dtype: torch.dtype) -> None:
    """Loss, gradient and Hessian-vector product are finite at every margin, in every dtype."""
    loss = of(spec)
    margins = [0, 10, 17, 20, 39, 41, 88, 104, 1e3, 1e4]
    z = torch.tensor([[s * m, 0.0, -1.0] for m in margins for s in (1, -1)], dtype=dtype, requires_grad=True)
    for label in (0, 1, 2):
        value = loss(z, torch.full((len(z),), label)).sum()
        (g,) = torch.autograd.grad(value, z, create_graph=True)
        (hv,) = torch.autograd.grad((g * torch.tensor([1.0, -2.0, 0.5], dtype=dtype)).sum(), z)
        for name, x in (("loss", value), ("gradient", g), ("product", hv)):
            assert torch.isfinite(x).all(), name
        assert (g.detach().abs().amax(1)[torch.tensor([m < 1e3 for m in margins for _ in (0, 1)])] < 100).all()


@pytest.mark.parametrize("gamma", [0.0, 0.5, 1.0, 2.0, 5.0])
def test_saturated_products_keep_their_digits(gamma: float) -> None:
    """float32 Hessian-vector products against float64, at margins where probabilities round to 0 and 1."""
    for m in (-60.0, -30.0, -17.0, 12.0, 20.0, 40.0):
        products = []
        for dtype in (torch.float32, torch.float64):
            x = torch.tensor([[m, 0.0]], dtype=dtype, requires_grad=True)
            (g,) = torch.autograd.grad(of(f"focal:gamma={gamma}")(x, torch.tensor([0])).sum(), x, create_graph=True)
            products.append(torch.autograd.grad(g[0, 0], x)[0].double())
        # a badly wrong row's curvature is itself as small as a rounding error of its gradient
        torch.testing.assert_close(products[0], products[1], rtol=3e-5, atol=1e-36 if m > 0 else 1e-7)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(SPECS), st.floats(-50, 50))
def test_invariances(seed: int, spec: str, shift: float) -> None:
    """Rows may be permuted; a constant may be added to a row's logits."""
    generator = torch.Generator().manual_seed(seed)
    z = 3 * torch.randn(8, 4, dtype=torch.float64, generator=generator)
    y = torch.randint(4, (8,), generator=generator)
    order = torch.randperm(8, generator=generator)
    loss = of(spec)
    torch.testing.assert_close(loss(z, y)[order], loss(z[order], y[order]))
    if spec == "logit_norm":  # what does not change it is their length
        torch.testing.assert_close(loss((1 + abs(shift)) * z, y), loss(z, y), rtol=1e-9, atol=1e-11)
    else:
        torch.testing.assert_close(loss(z + shift, y), loss(z, y), rtol=1e-9, atol=1e-11)


Formula = Callable[[list[float], int], float]


def powered(gamma: Callable[[float], float]) -> Formula:
    """-(1 - p_y)^γ log p_y, γ by p_y."""
    return lambda p, y: -math.pow(1 - p[y], gamma(p[y])) * math.log(p[y])


def smoothed(p: list[float], y: int) -> float:
    """Cross-entropy against 0.9 onehot + 0.1 uniform, of four classes."""
    return -0.9 * math.log(p[y]) - 0.025 * sum(map(math.log, p))


def of_map(p: list[float], y: int) -> float:
    """The focal loss of the probabilities from which the focal map leads to p."""
    q = math.exp(log_phi_inverse(np.log([p]), 2.0)[0, y])
    return -math.pow(1 - q, 2) * math.log(q)


# of one row: its four probabilities and its label
FORMULAS: dict[str, Formula] = {
    "ce": lambda p, y: -math.log(p[y]),
    "ce:alpha=0.5/2/1/3": lambda p, y: -[0.5, 2, 1, 3][y] * math.log(p[y]),
    "label_smoothing:epsilon=0.1": smoothed,
    "focal:gamma=1.5": powered(lambda t: 1.5),
    "focal:gamma=0,smoothing=0.1": smoothed,
    "focal_scheduled:gammas=4/2/1": powered(lambda t: 4),
    "fla-532": powered(lambda t: 5 if t < 0.2 else 3 if t < 0.5 else 2),
    "fla-53": powered(lambda t: 5 if t < 0.2 else 3),
    "brier": lambda p, y: sum((q - (c == y)) ** 2 for c, q in enumerate(p)),
    "dual_focal:gamma=3": lambda p, y: (
        -math.pow(1 - p[y] + max((q for q in p if q < p[y]), default=0.0), 3) * math.log(p[y])
    ),
    "inverse_focal:gamma=2": lambda p, y: -math.pow(1 + p[y], 2) * math.log(p[y]),
    "adafocal": powered(lambda t: 1),
    "proper_focal:gamma=2": of_map,
}


def rows() -> tuple[Tensor, Tensor]:
    torch.manual_seed(3)
    return 2 * torch.randn(20, 4, dtype=torch.float64), torch.randint(4, (20,))


@pytest.mark.parametrize("spec", FORMULAS)
def test_every_loss_against_its_formula(spec: str) -> None:
    z, y = rows()
    want = torch.tensor([FORMULAS[spec](p, k) for p, k in zip(z.softmax(1).tolist(), y.tolist())], dtype=torch.float64)
    torch.testing.assert_close(of(spec)(z, y), want, rtol=1e-9, atol=1e-14)
    with pytest.raises(AssertionError):
        torch.testing.assert_close(1.01 * of(spec)(z, y), want, rtol=1e-9, atol=1e-14)


def test_every_loss_has_a_formula() -> None:
    named = {losses.objective(spec).spec.partition(":")[0] for spec in FORMULAS}
    assert named | {"logit_norm"} == set(losses.LOSSES.entries), "write its formula in FORMULAS: CONTRIBUTING, A loss"


def test_logit_norm_against_its_formula() -> None:
    z, y = rows()
    for tau in (1.0, 0.04):
        want = F.cross_entropy(z / z.norm(dim=1, keepdim=True) / tau, y, reduction="none")
        torch.testing.assert_close(of(f"logit_norm:tau={tau}")(z, y), want, rtol=1e-9, atol=1e-12)
    zero = torch.zeros(1, 3, requires_grad=True)
    (g,) = torch.autograd.grad(of("logit_norm")(zero, torch.tensor([0])).sum(), zero)
    assert torch.isfinite(g).all()


def test_against_torch() -> None:
    z, y = rows()
    torch.testing.assert_close(of("ce")(z, y), F.cross_entropy(z, y, reduction="none"))
    smoothed = F.cross_entropy(z, y, reduction="none", label_smoothing=0.05)
    torch.testing.assert_close(of("label_smoothing")(z, y), smoothed)
    assert torch.equal(of("focal:gamma=0")(z, y), of("ce")(z, y))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert of("focal:gamma=2")(z.bfloat16(), y).dtype == torch.float32


def test_schedule_switches_once_at_rounded_epochs() -> None:
    loss = of("fls-531")
    assert isinstance(loss, FocalScheduled)
    seen = []
    for epoch in range(350):
        loss.start_epoch(epoch, 350)
        seen.append(loss.gamma)
    assert seen == [5.0] * 100 + [3.0] * 150 + [1.0] * 100
    with pytest.raises(UsageError, match="gets no epoch"):
        loss.start_epoch(0, 2)


def test_sample_gammas_at_thresholds() -> None:
    z = torch.tensor([[math.log(0.2 / 0.8), 0.0]], dtype=torch.float64)
    p = torch.sigmoid(z[0, 0])
    for closed, want in (("left", 3.0), ("right", 5.0)):
        loss = FocalSample(thresholds=(float(p),), closed=closed)  # type: ignore[arg-type]
        assert float(loss.gammas(z, torch.tensor([0]))) == want
    auto = FocalSample(gammas="auto", thresholds=(0.2,), p_last=0.25, step=1.0)
    assert auto.steps.tolist() == [5.0, 4.0]


def test_adafocal_moves_by_validation() -> None:
    loss = AdaFocal(bins=2)
    z = torch.tensor([[math.log(3.0), 0.0], [math.log(9.0), 0.0]] * 2, dtype=torch.float64)  # p = .75, .9
    loss.start_epoch(1, 5, (z, torch.tensor([0, 0, 1, 0])))
    want = [adafocal_update(1.0, 0.75 - 0.5), adafocal_update(1.0, 0.9 - 1)]
    torch.testing.assert_close(loss.bin_gammas, torch.tensor(want, dtype=torch.float64))
    torch.testing.assert_close(loss.edges, torch.tensor([0.9], dtype=torch.float64))
    gammas = loss.gammas(z[:2], torch.tensor([0, 0]))
    torch.testing.assert_close(gammas[0], loss.bin_gammas[0])
    with pytest.raises(UsageError, match="validation"):
        loss.start_epoch(1, 5)


@both
@pytest.mark.parametrize("gamma", [0.05, 0.5, 1.0, 3.0, 10.0])
@pytest.mark.parametrize("scale", [0.1, 5.0, 100.0, 1000.0])
def test_inverse_map_round_trip(gamma: float, scale: float, dtype: torch.dtype) -> None:
    from calibcli.networks.losses.focal import log_h, solve

    torch.manual_seed(4)
    z = scale * torch.randn(200, 7, dtype=dtype)
    a = solve(z, gamma)
    torch.testing.assert_close(torch.sigmoid(a).sum(1), torch.ones(200, dtype=dtype))
    torch.testing.assert_close(
        log_h(a, gamma).log_softmax(1),
        z.log_softmax(1),
        rtol=2e-5 if dtype == torch.float32 else 1e-11,
        atol=1e-4 if dtype == torch.float32 else 1e-11,
    )


@pytest.mark.parametrize("gamma", [0.5, 2.0, 5.0])
def test_proper_focal_against_the_numpy_inverse(gamma: float) -> None:
    torch.manual_seed(6)
    z, y = 4 * torch.randn(50, 5, dtype=torch.float64), torch.randint(5, (50,))
    q = torch.from_numpy(log_phi_inverse(z.numpy(), gamma)).exp()[torch.arange(50), y]
    got = of(f"proper_focal:gamma={gamma}")(z, y)
    torch.testing.assert_close(got, -((1 - q) ** gamma) * q.log(), rtol=1e-8, atol=1e-14)


def test_proper_focal_is_proper() -> None:
    """Its expectation under a distribution is least at that distribution."""
    p = torch.tensor([0.6, 0.3, 0.1], dtype=torch.float64)
    z = p.log().requires_grad_()
    expected = sum(p[k] * of("proper_focal:gamma=2")(z.unsqueeze(0), torch.tensor([k])).sum() for k in range(3))
    assert isinstance(expected, Tensor)
    (g,) = torch.autograd.grad(expected, z)
    torch.testing.assert_close(g, torch.zeros(3, dtype=torch.float64), rtol=0, atol=1e-14)


@pytest.mark.parametrize("spec", [s for s in SPECS if losses.final(s).pair_terms(torch.zeros(1)) is not None])
def test_pair_weights_are_the_hessian(spec: str) -> None:
    torch.manual_seed(5)
    z, y = 2 * torch.randn(6, 4, dtype=torch.float64), torch.tensor([0, 1, 2, 3, 0, 1])
    form = losses.final(spec)
    if isinstance(form, AdaFocal):
        form.bin_gammas[::2] = -0.7
    weights = form.pair_weights(z, y)
    assert weights is not None
    u = torch.eye(4, dtype=torch.float64) - z.softmax(1).unsqueeze(1)  # (n, c, k): e_c - p
    got = torch.einsum("nc,nci,ncj->nij", weights, u, u)
    for i in range(6):
        want = hessian(form, z[i : i + 1], y[i : i + 1])
        torch.testing.assert_close(got[i], want, rtol=1e-10, atol=1e-12)


def test_binary_curvature_vectors() -> None:
    for r in VECTORS["focal_binary_curvature"]:
        m = math.log(r["p"]) - math.log1p(-r["p"])
        z, y = torch.tensor([[m, 0.0]], dtype=torch.float64), torch.tensor([0])
        assert float(hessian(of(f"focal:gamma={r['gamma']}"), z, y)[0, 0]) == pytest.approx(r["d2L_dm2"], rel=1e-9)


def test_forms_without_pairs() -> None:
    z, y = torch.randn(3, 4), torch.tensor([0, 1, 2])
    for spec in ("brier", "dual_focal:gamma=2", "focal:gamma=2,smoothing=0.1", "proper_focal:gamma=1"):
        assert losses.final(spec).pair_weights(z, y) is None
    scheduled = losses.final("fls-531")
    assert torch.equal(scheduled(z, y), of("focal:gamma=1")(z, y))


@pytest.mark.parametrize(
    ("spec", "match"),
    [
        ("foccal", "unknown loss"),
        ("focal", "needs gamma"),
        ("focal:gamma=-1", "out of range"),
        ("focal:gamma=nan", "out of range"),
        ("focal:gamma=1,smoothing=2", "out of range"),
        ("ce:alpha=-1/2", "out of range"),
        ("focal_sample:gammas=1/2/3", "1 thresholds for 3 gammas"),
        ("focal_sample:thresholds=1.2", "out of range"),
        ("focal_sample:gammas=3/2/1,thresholds=0.6/0.3", "do not increase"),
        ("trace:weight=1", "is a penalty"),
        ("ce+trace:weight=-1", "out of range"),
        ("ce+trace:weight=1,every=0", "out of range"),
        ("ce+foo", "unknown penalty"),
    ],
)
def test_wrong_specs_say_so(spec: str, match: str) -> None:
    with pytest.raises(UsageError, match=match):
        losses.objective(spec)


def test_alpha_must_fit_the_classes() -> None:
    with pytest.raises(UsageError, match="2 weights and the logits have 3 classes"):
        of("ce:alpha=1/2")(torch.zeros(1, 3), torch.tensor([0]))


def test_dense_inputs_are_flattened() -> None:
    z, y = torch.randn(2, 4, 3, 5), torch.randint(4, (2, 3, 5))
    torch.testing.assert_close(of("ce")(z, y), F.cross_entropy(z, y, reduction="none").flatten(), rtol=1e-5, atol=1e-6)
