"""Intervals of T, optima that are optima, and calibrators that are damaged."""

from __future__ import annotations

import dataclasses
import json
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file
from scipy.optimize import minimize

import calibcli
from calibcli import calibrators
from calibcli.calibrators.affine import SETTLED, Regression, Shape, _woodbury, centred, log_p
from calibcli.calibrators.program import NumPy
from calibcli.cli.app import main
from calibcli.core.errors import InputError
from calibcli.scores.likelihood import log_phi, log_softmax
from calibcli.scores.predictions import Predictions

SPECS = [entry.name for entry in calibrators.SCALERS] + ["histogram:of=top"]
REPO = Path(__file__).parent.parent
sys.path.insert(0, str(REPO / "benchmarks"))


def predictions(n: int = 300, k: int = 3, seed: int = 0, **fields: Any) -> Predictions:
    rng = np.random.default_rng(seed)
    z = rng.standard_normal((n, k)) * 2
    return Predictions.of(1.6 * z, (z + rng.gumbel(size=z.shape)).argmax(axis=1), **fields)


# --- intervals of T

GROUPED_FOCAL = [1.8343391323794358, 1.0401799203553794]
"""T and gamma of the population of `scale_coverage.truth("plain", 30, 1.0)`, which takes seconds."""


@pytest.mark.slow
@pytest.mark.regression("2.7")
@pytest.mark.parametrize(
    ("spec", "groups"),
    [*(("temperature", groups) for groups in (0, 30, 100)), ("focal_temperature", 0), ("focal_temperature", 30)],
)
def test_intervals_of_t_cover(spec: str, groups: int) -> None:
    """A short form of benchmarks/scale_coverage.py, which has every cell."""
    from scale_coverage import cell, truth

    focal = spec != "temperature"
    runs = 16 if focal else 200
    truths = GROUPED_FOCAL if focal and groups else truth("plain", groups, float(focal))
    for covered in cell("plain", 200, groups, float(focal), runs, truths):
        assert covered.given > 0.3 * runs
        assert covered.share >= (0.8 if focal else 0.885)


@pytest.mark.regression("2.7")
@pytest.mark.parametrize("spec", ["temperature", "focal_temperature"])
def test_few_groups_have_no_interval_and_say_why(spec: str) -> None:
    p = predictions(300, groups=np.minimum(np.arange(300) // 100, 1))
    estimate = calibrators.fit(spec, p).estimates[0]
    assert estimate.value is not None
    assert (estimate.low, estimate.high) == (None, None)
    assert "effective groups" in estimate.reason


@pytest.mark.regression("2.7")
def test_groups_widen_the_interval_and_counts_are_rows() -> None:
    p = predictions(300)
    tripled = [np.repeat(a, 3, axis=0) for a in (p.logits, p.labels, np.arange(300))]
    free = calibrators.fit("temperature", Predictions.of(tripled[0], tripled[1])).estimates[0]
    grouped = calibrators.fit("temperature", Predictions.of(tripled[0], tripled[1], groups=tripled[2])).estimates[0]
    alone = calibrators.fit("temperature", p).estimates[0]
    counted = Predictions.of(p.logits, p.labels, weights=np.full(300, 3.0), weight_kind="count")
    count = calibrators.fit("temperature", counted).estimates[0]
    assert free.se is not None
    assert grouped.se == pytest.approx(alone.se, rel=1e-9)
    assert grouped.se == pytest.approx(free.se * 3**0.5, rel=0.02)
    assert count.se == pytest.approx(free.se, rel=1e-9)


def test_groups_and_counts_in_the_intervals_of_gamma_and_its_gain() -> None:
    """Every row three times: as groups or as counts it is known what that is worth."""
    p = draw_focal(300)
    again = [np.repeat(a, 3, axis=0) for a in (p.logits, p.labels, np.arange(300))]
    thrice = {
        "alone": p,
        "grouped": Predictions.of(again[0], again[1], groups=again[2]),
        "counted": Predictions.of(p.logits, p.labels, weights=np.full(300, 3.0), weight_kind="count"),
    }
    gamma = {name: calibrators.fit("focal", data).estimates[0] for name, data in thrice.items()}
    assert gamma["alone"].se is not None
    assert gamma["grouped"].se == pytest.approx(gamma["alone"].se, rel=1e-6)
    assert gamma["counted"].se == pytest.approx(gamma["alone"].se / 3**0.5, rel=0.01)
    few = Predictions.of(p.logits, p.labels, groups=np.arange(300) // 60)
    for spec, name in (("focal", "gamma"), ("focal_temperature", "focal_gain")):
        estimate = next(e for e in calibrators.fit(spec, few).estimates if e.name == name)
        assert estimate.value is not None
        assert (estimate.low, estimate.high) == (None, None)
        assert "5 groups" in estimate.reason


def draw_focal(n: int) -> Predictions:
    rng = np.random.default_rng(3)
    z = rng.standard_normal((n, 4)) * 2
    return Predictions.of(z, (log_phi(z, 1.0) + rng.gumbel(size=z.shape)).argmax(axis=1))


@pytest.mark.slow
@pytest.mark.regression("2.7")
@pytest.mark.parametrize("seed", [0, 7, 9])
def test_gamma_at_its_bound_leaves_an_interval_of_t_or_a_reason(seed: int) -> None:
    from scale_coverage import draw

    t, g = calibrators.fit(
        "focal_temperature", draw(1000, 0, "plain", 1.0, np.random.default_rng([seed, 1000, 0]))
    ).estimates[:2]
    assert g.reason.startswith("bound")
    assert (t.low is None) == bool(t.reason)
    if t.low is not None and t.high is not None:
        assert t.low < t.value < t.high  # type: ignore[operator]
        assert t.high / t.low > 1.05


def test_the_interval_of_t_holds_that_of_a_gamma_at_its_bound() -> None:
    """The true T is 1.6 and the true gamma 5, the end of its range: the profile alone covers T in 91 % of samples."""
    rng = np.random.default_rng([10, 500])
    z = rng.standard_normal((500, 3)) * 2
    p = Predictions.of(1.6 * z, (log_phi(z, 5.0) + rng.gumbel(size=z.shape)).argmax(axis=1))
    t, g = calibrators.fit("focal_temperature", p).estimates[:2]
    at_bound = calibrators.fit("focal_temperature:gamma=5", p).estimates[0]
    assert g.high == 5
    assert t.low is not None
    assert t.high is not None
    assert t.low <= at_bound.low * (1 + 1e-6)  # type: ignore[operator]
    assert t.high >= at_bound.high * (1 - 1e-6)  # type: ignore[operator]
    assert t.low < 1.6 < t.high


@pytest.mark.slow
def test_the_interval_of_t_ends_above_zero_where_rows_are_wrong() -> None:
    """As T falls the NLL of wrong rows grows without end: the least is not sought beyond the range of gamma."""
    from scale_coverage import draw

    fits = [
        calibrators.fit("focal_temperature", draw(200, 30, "plain", 1.0, np.random.default_rng([seed, 200, 30])))
        for seed in range(8)
    ]
    lows = [fit.estimates[0].low for fit in fits if not fit.estimates[0].reason]
    assert len(lows) >= 4
    assert all(low is not None and low > 0.01 for low in lows), lows


@pytest.mark.slow
@pytest.mark.regression("4 focal_temperature well determined")
@pytest.mark.parametrize("gamma", [0.12, 0.62])
def test_the_optimum_is_among_the_points_of_the_profile(gamma: float) -> None:
    """So many rows that the set of gamma lies between two points of the grid."""
    rng = np.random.default_rng(0)
    z = rng.standard_normal((20_000, 4)) * 2
    y = (log_phi(z / 0.8, gamma) + rng.gumbel(size=z.shape)).argmax(axis=1)
    fit = calibrators.fit("focal_temperature", Predictions.of(z, y))
    found = next(e for e in fit.estimates if e.name == "gamma")
    assert found.low is not None
    assert found.high is not None
    assert found.low <= found.value <= found.high  # type: ignore[operator]
    assert found.high - found.low < 0.4


@pytest.mark.slow
@pytest.mark.regression("4 focal_temperature well determined")
def test_acceptable_is_never_empty() -> None:
    """Count weights make 100 rows as good as 10⁹: nothing but the optimum is acceptable."""
    p = predictions(400)
    heavy = Predictions.of(p.logits, p.labels, weights=np.full(400, 1e7), weight_kind="count")
    for data in (p, heavy):
        surface_fit = calibrators.fit("focal_temperature", data)
        assert next(e for e in surface_fit.estimates if e.name == "gamma").low is not None


# --- optima


def penalised(shape: Shape, x: np.ndarray, p: Predictions, theta: np.ndarray, lam: float, mu: float) -> np.ndarray:
    """Gradient of the mean NLL plus penalty, written out."""
    w = np.ones(p.n) if p.weights is None else p.weights
    q = np.exp(log_softmax(shape.scores(theta, x)))
    q[np.arange(p.n), p.labels] -= 1
    g = shape.pull(q * (w / w.sum())[:, None], x)
    k = shape.k
    if shape.kind == "full":
        off = theta[: k * k].reshape(k, k) * (1 - np.eye(k))
        g[: k * k] += (2 * lam / (k * (k - 1)) * off).ravel()
        g[: k * k] += (2e-6 / k * (theta[: k * k].reshape(k, k) - 1) * np.eye(k)).ravel()
    else:
        g[: shape.weights] += 2e-6 / k * (theta[: shape.weights] - 1)
    g[shape.weights :] += 2 * mu / k * theta[shape.weights :]
    return g


@pytest.mark.regression("1.22")
@pytest.mark.parametrize("kind", ["full", "diagonal", "scalar"])
@pytest.mark.parametrize(("k", "lam"), [(2, 0.1), (3, 1e-3), (10, 1e-2), (30, 10.0), (100, 100.0)])
@pytest.mark.one_in(5)
def test_the_gradient_at_the_optimum_is_as_small_as_stated(kind: str, k: int, lam: float) -> None:
    from scale import realistic

    z, y = realistic(k, 800)
    p = Predictions.of(z, y, weights=np.random.default_rng(0).uniform(0, 2, 800))
    for x in (x_of(NumPy(k), p.logits.astype(np.float64)) for x_of in (log_p, centred)):
        shape = Shape(kind, k)
        regression = Regression(shape, x, p.labels, p.weights)
        theta = regression.minimise(lam, lam)
        size = np.abs(penalised(shape, x, p, theta, lam, lam)).max()
        assert size <= SETTLED
        assert size == pytest.approx(regression.gradient, abs=1e-10)


@pytest.mark.regression("1.22")
def test_separable_classes_without_a_penalty_have_an_optimum() -> None:
    z = np.random.default_rng(0).standard_normal((60, 3)) * 3
    assert not calibrators.fit("vector", Predictions.of(z, z.argmax(axis=1))).notes


@pytest.mark.regression("1.22")
@pytest.mark.slow
def test_all_methods_on_realistic_rows_are_quick(tmp_path: Path) -> None:
    """A fifth of the rows of benchmarks/scale.py --commands, in a process of its own."""
    from scale import realistic

    z, y = realistic(10, 1000)
    np.savez(tmp_path / "a.npz", logits=z, labels=y)
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    run = [sys.executable, "-m", "calibcli", "scale", str(tmp_path / "a.npz"), "--method", "all", "-q", "--json"]
    subprocess.run(run, check=True, stdout=subprocess.DEVNULL, cwd=REPO)
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before < 10


@pytest.mark.regression("1.22")
def test_progress_moves_while_penalties_are_searched() -> None:
    seen: list[float] = []
    calibrators.fit("matrix", predictions(200), progress=lambda fraction, text: seen.append(fraction))
    assert len(set(seen)) > 6
    assert seen == sorted(seen)
    assert seen[-1] == 1
    seen.clear()
    calibrators.cross_fit("matrix", predictions(200), progress=lambda fraction, text: seen.append(fraction))
    assert len(set(seen)) > 20
    assert seen == sorted(seen)


def test_products_with_inverse_blocks_of_many_classes_are_those_of_the_dense_ones() -> None:
    rng = np.random.default_rng(0)
    k = 6
    blocks, ridge = rng.uniform(0.5, 1, (k, 4, k + 1)).astype(np.float32), rng.uniform(0, 1, (k, k + 1))
    g = rng.standard_normal(k * k + k)
    mean = (blocks[:, 0].sum(1) + (blocks[:, 1:] ** 2).sum((1, 2))) / (k + 1)
    v = np.column_stack([g[: k * k].reshape(k, k), g[k * k :]])
    dense = [
        np.linalg.solve(b[1:].T @ b[1:] + np.diag(b[0] + r + 1e-5 * m + 1e-9), u)
        for b, r, m, u in zip(blocks, ridge, mean, v, strict=True)
    ]
    expected = np.append(np.array(dense)[:, :k], np.array(dense)[:, k])
    np.testing.assert_allclose(_woodbury(blocks, ridge)(g), expected, rtol=2e-4, atol=1e-4)


@pytest.mark.parametrize("k", [2, 6])
def test_the_nll_of_vector_scaling_is_that_of_another_optimiser(k: int) -> None:
    from scale import realistic

    z, y = realistic(k, 400)
    x, rows, shape = centred(NumPy(k), z.astype(np.float64)), np.arange(400), Shape("diagonal", k)
    ridge = shape.penalty(0.0, 0.0)

    def loss(theta: np.ndarray) -> tuple[float, np.ndarray]:
        log_q = log_softmax(shape.scores(theta, x))
        residual = np.exp(log_q)
        residual[rows, y] -= 1
        away = theta - shape.start()
        return float(ridge @ away**2 / 2 - log_q[rows, y].mean()), shape.pull(residual / 400, x) + ridge * away

    options = {"maxiter": 3000, "maxfun": 9000, "ftol": 0, "gtol": 1e-10, "maxcor": 50}
    least = minimize(loss, shape.start(), jac=True, method="L-BFGS-B", options=options).fun
    assert loss(Regression(shape, x, y, None).minimise(0.0, 0.0))[0] <= least + 1e-7


def test_full_matrices_of_very_many_classes_are_refused() -> None:
    z = np.zeros((502, 501))
    with pytest.raises(InputError, match="251,001 weights") as refused:
        calibrators.fit("matrix", Predictions.of(z, np.arange(502) % 501))
    assert "vector" in refused.value.fix


# --- calibrators are shown, and checked


@pytest.mark.slow
@pytest.mark.regression("1.19")
@pytest.mark.parametrize("k", [2, 3, 30])
@pytest.mark.parametrize("spec", SPECS)
def test_parameters_are_printed_and_inspected(
    spec: str, k: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    p = predictions(300, k)
    np.savez(tmp_path / "a.npz", logits=p.logits, labels=p.labels)
    path = str(tmp_path / "c.safetensors")
    assert main(["scale", str(tmp_path / "a.npz"), "--method", spec, "-m", "nll", "--save", path, "--json"]) == 0
    scaled = json.loads(capsys.readouterr().out)
    assert main(["inspect", path, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    numbers = load_file(path)
    if "beta" in numbers:
        assert shown["facts"]["T"] == pytest.approx(1 / float(numbers["beta"]))
        fitted = [e for e in scaled["estimates"] if e["name"] in ("temperature", "gamma") and not e["scope"]]
        kept = {e["name"]: e for e in shown["estimates"]}
        for e in fitted:
            assert (kept[e["name"]]["value"], kept[e["name"]]["low"]) == (e["value"], e["low"])
        return
    for result in (scaled, shown):
        tables = {t["name"]: t for t in result["tables"]}
        assert "parameters" in tables or "curve" in tables or set(result["facts"]) & numbers.keys()
        if "parameters" in tables:
            assert len(tables["parameters"]["rows"]) == min(k, 20)
    assert shown["facts"]["spec"] == scaled["facts"]["method"]
    assert shown["facts"]["takes"].startswith("logits")


def damaged(path: Path, about: dict[str, Any], tensors: dict[str, np.ndarray]) -> int:
    save_file(tensors, path, metadata={"calib": json.dumps(about)})
    codes = {main(["inspect", str(path), "-q", "--json"])}
    codes.add(main(["apply", str(path), str(path.parent / "a.npz"), "--save", str(path.parent / "o.npz"), "-q"]))
    assert len(codes) == 1, codes
    return codes.pop()


def header(k: int = 3, **changed: Any) -> dict[str, Any]:
    fit = {"n": 300, "kind": "logits", "columns": k, "source": "a.npz", "sha256": "", "version": "0"}
    return {
        "schema": 1,
        "what": "calibrator",
        "spec": "temperature",
        "k": k,
        "classes": None,
        "preserves_accuracy": True,
        "fit": fit,
        **changed,
    }


ONE = {"beta": np.array(0.5)}


@pytest.mark.regression("4 calibrator-metadata files")
@pytest.mark.parametrize(
    ("changed", "tensors"),
    [
        ({"spec": [1]}, ONE),
        ({"spec": "temperatur"}, ONE),
        ({"k": 1e9}, ONE),
        ({"k": 10**9}, ONE),
        ({"k": True}, ONE),
        ({"k": -3}, ONE),
        ({"schema": "1"}, ONE),
        ({"classes": [str(i) for i in range(9)]}, ONE),
        ({"classes": ["a", "a", "b"]}, ONE),
        ({"classes": {"a": 1}}, ONE),
        ({"fit": []}, ONE),
        ({"fit": {"kind": "odds"}}, ONE),
        ({"fit": {"kind": ["logits"]}}, ONE),
        ({"fit": {"columns": 7}}, ONE),
        ({"fit": {"estimates": [1]}}, ONE),
        ({"fit": {"estimates": [{"name": "temperature"}]}}, ONE),
        ({}, {"beta": np.array(-0.5)}),
        ({}, {"beta": np.array(np.nan)}),
        ({}, {"beta": np.ones(2)}),
        ({}, {"beta": np.array(1), "extra": np.array(1)}),
        ({}, {"gamma": np.array(1.0)}),
        ({}, {"beta": np.ones((1,) * 20)}),
        ({"spec": "matrix"}, {"weight": np.eye(2), "bias": np.zeros(3)}),
        ({"spec": "vector"}, {"weight": np.ones(3), "bias": np.zeros(4)}),
        ({"spec": "beta"}, {"a": -np.ones(3), "b": np.ones(3), "c": np.zeros(3)}),
        ({"spec": "isotonic"}, {"x": np.arange(3) / 3, "y": np.full(3, 0.5), "knots": np.array([1, 1, 2])}),
        ({"spec": "isotonic"}, {"x": np.ones(3), "y": np.full(3, 0.5), "knots": np.array([3])}),
        ({"spec": "isotonic"}, {"x": np.ones(3), "y": np.full(3, 1.0), "knots": np.array([1, 1, 1])}),
        (
            {"spec": "isotonic_top"},
            {"x": np.array([0.5, 0.2]), "y": np.full(2, 0.5), "knots": np.array([2]), "top": np.array(1.0)},
        ),
    ],
)
def test_damaged_calibrators_are_refused(
    changed: dict[str, Any], tensors: dict[str, np.ndarray], tmp_path: Path
) -> None:
    p = predictions()
    np.savez(tmp_path / "a.npz", logits=p.logits, labels=p.labels)
    path = tmp_path / "c.safetensors"
    assert damaged(path, header(), ONE) == 0
    assert damaged(path, header(**changed), tensors) == 4


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**12), 10**12) | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=4,
)


@pytest.mark.regression("4 calibrator-metadata files")
@pytest.mark.parametrize("spec", ["temperature", "focal_temperature", "platt", "matrix:lam=1,mu=1", "isotonic-top"])
@settings(max_examples=50, deadline=None)
@given(
    key=st.sampled_from(["schema", "what", "spec", "k", "classes", "fit", "kind", "columns", "estimates"]), value=JSON
)
@pytest.mark.one_in(9)
def test_edited_calibrators_end_in_0_or_4(
    tmp_path_factory: pytest.TempPathFactory, spec: str, key: str, value: Any
) -> None:
    folder = tmp_path_factory.mktemp("edited")
    p = predictions(60)
    np.savez(folder / "a.npz", logits=p.logits, labels=p.labels)
    scaler = calibrators.fit(spec, p, report=False).scaler
    about = header(spec=scaler.spec)
    (about if key in about else about["fit"])[key] = value
    assert damaged(folder / "c.safetensors", about, dict(scaler.parameters)) in (0, 4)


@pytest.mark.regression("4 calibrator-metadata files")
@pytest.mark.parametrize("spec", SPECS)
@settings(max_examples=30, deadline=None)
@given(
    edit=st.sampled_from(["nan", "inf", "negative", "huge", "short", "deep", "gone", "whole", "half"]),
    at=st.integers(0, 9),
)
@pytest.mark.one_in(21)
def test_edited_parameters_end_in_0_or_4(
    tmp_path_factory: pytest.TempPathFactory, spec: str, edit: str, at: int
) -> None:
    folder = tmp_path_factory.mktemp("edited")
    p = predictions(60)
    np.savez(folder / "a.npz", logits=p.logits, labels=p.labels)
    scaler = calibrators.fit(f"{spec}:lam=1,mu=1" if spec in ("matrix", "dirichlet") else spec, p, report=False).scaler
    tensors = dict(scaler.parameters)
    name = sorted(tensors)[at % len(tensors)]
    value = np.array(tensors[name], np.float64)
    edits: dict[str, Any] = {
        "nan": lambda: value * np.nan,
        "inf": lambda: value + np.inf,
        "negative": lambda: -value - 1,
        "huge": lambda: value * 1e300,
        "short": lambda: value.ravel()[:-1],
        "deep": lambda: value[None],
        "whole": lambda: value.astype(np.int64),
        "half": lambda: value.astype(np.float16),
    }
    if edit == "gone":
        del tensors[name]
    else:
        with np.errstate(all="ignore"):
            tensors[name] = np.ascontiguousarray(edits[edit]())
    assert damaged(folder / "c.safetensors", header(spec=scaler.spec), tensors) in (0, 4)


@pytest.mark.regression
def test_parameters_of_other_names_than_the_form_are_refused_where_they_are_fitted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else the map is saved, and cannot be read again."""
    from calibcli.calibrators.calibrator import SCALERS, Form

    with pytest.raises(TypeError, match="letters k, c and n, not 'q'"):
        Form("q")
    entry = SCALERS.entries["vector"]
    renamed = dataclasses.replace(entry.traits, form={"weigt": Form("k"), "bias": Form("k")})
    monkeypatch.setitem(SCALERS.entries, "vector", dataclasses.replace(entry, traits=renamed))
    rng = np.random.default_rng(0)
    with pytest.raises(TypeError, match="and its form has weigt, bias"):
        calibcli.fit_scaler(rng.normal(size=(200, 3)), rng.integers(0, 3, 200), "vector")
