"""Classes that a large negative number leaves out: read as -inf by every metric, map, gate and export."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import calibcli
from calibcli.calibrators import SCALERS
from calibcli.cli.app import main
from calibcli.scores.predictions import Predictions
from calibcli.ship.target import TARGETS

SMALLEST = {
    "float16": float(np.finfo(np.float16).min),
    "bfloat16": -3.3895313892515355e38,
    "float32": float(np.finfo(np.float32).min),
}
VALUES = [-1e3, -1e4, -1e9, *SMALLEST.values()]
OPTIONS = {"matrix": ":lam=0.1,mu=0.1", "dirichlet": ":lam=0.1,mu=0.1"}
SPECS = [entry.name + OPTIONS.get(entry.name, "") for entry in SCALERS]
METRICS = ("default", "temperature_gain", "corp_mcb", "smooth_ece", "entropy_gap")


def rows(k: int, n: int = 400, seed: int = 0) -> tuple[Any, Any, Any]:
    """Scores, labels, and for each row a class that is not its label."""
    rng = np.random.default_rng((seed, k))
    z = rng.standard_normal((n, k)) * 3
    y = (z / 1.7 + rng.gumbel(size=z.shape)).argmax(1)
    return z, y, (y + 1 + rng.integers(0, k - 1, n)) % k


def masked(z: Any, out: Any, value: float, share: float, one_class: bool, added: bool = False) -> Any:
    """Put a value into a share of the rows, in one class or another each row, where that is not the label."""
    z, k = z.copy(), z.shape[1]
    at = np.flatnonzero((np.arange(len(z)) * 0.6180339887) % 1 < share)
    if one_class:
        free = at[out[at] % k == out[at][0]]
        z[free, out[free]] = value
    else:
        z[at, out[at]] = value + (z[at, out[at]] if added else 0)
    return z


def agree(finite: Any, infinite: Any, y: Any) -> None:
    one = calibcli.from_arrays(finite, y)
    assert any("masks" in note for note in one.notes)
    two = calibcli.from_arrays(infinite, y, kind="logits")
    np.testing.assert_array_equal(one.logits, two.logits)
    assert one.kind == two.kind


CELLS = [*itertools.product((2, 3, 5, 20, 100), VALUES, (0.01, 0.5, 0.9), (True, False))]


@pytest.mark.regression("maps 2")
@pytest.mark.parametrize(("k", "value", "share", "one_class"), CELLS)
def test_they_are_read_as_classes_that_were_left_out(k: int, value: float, share: float, one_class: bool) -> None:
    """All that follows reads these scores, so all metrics, gates and fits are those of the file with -inf."""
    z, y, out = rows(k)
    agree(masked(z, out, value, share, one_class), masked(z, out, -np.inf, share, one_class), y)


@pytest.mark.regression("maps 2")
@pytest.mark.parametrize("value", [-1e3, -65504.0, SMALLEST["float32"]])
@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.one_in(4)
def test_every_map_is_that_of_the_file_with_infinities(spec: str, value: float) -> None:
    """Its parameters, and what it gives for the same rows with numbers, one by one too."""
    for k in (2, 5):
        z, y, out = rows(k)
        finite, infinite = (masked(z, out, low, 0.6, False) for low in (value, -np.inf))
        one, two = calibcli.fit_scaler(finite, y, spec), calibcli.fit_scaler(infinite, y, spec, kind="logits")
        for name, wanted in two.parameters.items():
            np.testing.assert_allclose(one.parameters[name], wanted, rtol=1e-9, atol=1e-9, err_msg=name)
        np.testing.assert_allclose(one.predict_proba(finite), two.predict_proba(infinite), rtol=0, atol=1e-9)
        np.testing.assert_allclose(one.predict_proba(finite[:1]), one.predict_proba(finite)[:1], rtol=0, atol=1e-12)


@pytest.mark.regression("maps 2")
@pytest.mark.parametrize("value", VALUES)
@pytest.mark.one_in(3)
def test_every_metric_is_that_of_the_file_with_infinities(value: float) -> None:
    z, y, out = rows(5)
    finite, infinite = (masked(z, out, low, 0.5, True) for low in (value, -np.inf))
    one, two = calibcli.measure(finite, y, "all"), calibcli.measure(infinite, y, "all", kind="logits")
    assert list(one) == list(two)
    for name, wanted in two.items():
        for end in ("value", "low", "high"):
            got, due = getattr(one[name], end), getattr(wanted, end)
            assert got == due or got == pytest.approx(due, rel=1e-9, abs=1e-9), (name, end)


@pytest.mark.regression("maps 2")
def test_a_gate_on_the_gain_of_a_temperature_is_not_moved(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    z, y, out = rows(5, 2000)
    np.savez(tmp_path / "r.npz", logits=masked(z, out, -65504.0, 0.5, True), labels=y)
    assert main(["check", str(tmp_path / "r.npz"), "--max", "temperature_gain=0.01", "-q"]) == 1
    assert "FAIL" in capsys.readouterr().out


def test_masks_that_are_added_to_the_logits_are_found() -> None:
    z, y, out = rows(6)
    agree(masked(z, out, -1e4, 0.5, False, added=True), masked(z, out, -np.inf, 0.5, False), y)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_masks_of_every_precision(dtype: Any) -> None:
    z, y, out = rows(4)
    z = z.astype(dtype)
    agree(masked(z, out, float(np.finfo(dtype).min), 0.3, False), masked(z, out, -np.inf, 0.3, False), y)


def test_a_file_says_what_was_taken_for_a_mask(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    z, y, out = rows(5)
    np.savez(tmp_path / "r.npz", logits=masked(z, out, -1e9, 0.5, False), labels=y)
    assert main(["metrics", str(tmp_path / "r.npz")]) == 0
    said = " ".join(capsys.readouterr().err.split())
    assert "199 rows of 400 have scores of -1e+09" in said
    assert "taken for masks" in said


def honest() -> dict[str, tuple[Any, Any]]:
    """Scores with a wide spread that are no masks."""
    rng = np.random.default_rng(0)
    z, y, _ = rows(5, 1000)
    wrong = np.where(rng.random(1000) < 0.1, (y + 1) % 5, y)
    sure = np.eye(5)[wrong]
    apart = z.copy()
    apart[:500] = np.where(np.eye(5)[y[:500]] > 0, 0, -rng.uniform(1400, 1500, (500, 5)))
    apart[500:] *= 20
    heavy = rng.standard_t(1.5, (1000, 5)) * 20
    heavy[np.arange(1000), y] += 40
    return {
        "±100": (np.where(sure > 0, 100.0, -100.0) + z, y),
        "±300": (np.where(sure > 0, 300.0, -300.0) + z, y),
        "±3000": (np.where(sure > 0, 3000.0, -3000.0) + z, y),
        "one-hot 1000": (1000 * sure, y),
        "one-hot -1000": (1000 * sure - 1000, y),
        "one-hot without errors": (5000 * np.eye(5)[y], y),
        "two groups of rows": (apart, y),
        "distances": (-(z**2) * 300, y),
        "times 1000": (z * 1000, y),
        "heavy tails": (heavy, y),
        "heavy tails, wide": (heavy * 100, y),
        "sums of log-likelihoods": (-rng.gamma(3, 60, (1000, 5)), y),
        "offsets of rows": (z + rng.normal(0, 1e5, (1000, 1)), y),
    }


@pytest.mark.parametrize("name", honest())
def test_honest_scores_are_no_masks(name: str) -> None:
    z, y = honest()[name]
    found = calibcli.from_arrays(z, y, kind="logits")
    np.testing.assert_array_equal(found.logits, z)
    assert "mask" not in calibcli.fit_scaler(found).scaler.parameters


@pytest.mark.regression("maps 2")
def test_what_is_no_mask_is_said() -> None:
    """Of two classes, one of them left out in every row: nothing tells it from a model that is always certain."""
    z, y, out = rows(2)
    notes = calibcli.from_arrays(masked(z, out, -1e9, 1.1, False), y).notes
    assert any("400 rows of 400" in note and "always certain" in note for note in notes)


def test_scores_on_a_device_are_masked_there() -> None:
    torch = pytest.importorskip("torch")
    from calibcli.networks.device_scores import TensorScores
    from calibcli.scores import _masks as masks

    z, y, out = rows(4)
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        tensor = torch.tensor(masked(z, out, -6e4, 0.5, False), dtype=dtype)
        scores = TensorScores(tensor, np.dtype(np.float32))
        found = masks.find(scores, y)
        assert found is not None
        assert found.found
        there = masks.left_out(scores, found).read(0, len(y))
        np.testing.assert_array_equal(np.isneginf(there), tensor.double().numpy() < -5e4)


@pytest.mark.regression("maps 2")
def test_labels_among_the_lowest_scores_keep_them_from_being_masks() -> None:
    """An honest model that is far off in some rows; a wrong label or two are no reason."""
    z, y, out = rows(5, 1000)
    low = masked(z, out, -5000.0, 0.3, False)
    low[:40, :] = z[:40]
    low[np.arange(40), y[:40]] = -5000.0
    found = calibcli.from_arrays(low, y)
    assert any("40 labels among them: they are not taken for masks" in note for note in found.notes)
    np.testing.assert_array_equal(found.logits, low)
    low[np.arange(40), y[:40]] = z[np.arange(40), y[:40]]
    low[0, y[0]] = -5000.0
    notes = calibcli.from_arrays(low, y).notes
    assert any("taken for masks" in note and "not taken" not in note for note in notes)
    assert any("label probability 0" in note and "--clip is for probabilities" in note for note in notes)


@pytest.mark.regression("maps 2")
@pytest.mark.parametrize(
    "spec", ["temperature", "focal_temperature", "ensemble_temperature", "temperature:objective=brier"]
)
def test_no_temperature_is_worse_than_none(spec: str) -> None:
    """Also where low scores are no masks, because labels have some of them."""
    z, y, out = rows(5, 1000)
    low = masked(z, out, -1e9, 0.9, False)
    low[:100] = z[:100]
    low[np.arange(50), y[:50]] = -30.0
    kept = Predictions.of(low, y)  # as they are
    nll = {1: 0.0}
    for at, p in ((1, np.exp(low - low.max(1, keepdims=True))), (0, calibcli.fit_scaler(kept, spec=spec).scaler)):
        p = p / p.sum(1, keepdims=True) if at else p.predict_proba(low)
        with np.errstate(divide="ignore"):
            nll[at] = float(-np.log(p[np.arange(1000), y]).mean())
    assert nll[0] <= nll[1] * (1 + 1e-9)


@pytest.mark.regression("maps 2")
@pytest.mark.parametrize("low", [-1e4, -1e9, -1e30])
def test_low_scores_do_not_end_the_search_for_a_temperature(low: float) -> None:
    """Of rows as they are, where nothing has recognised masks, in most rows."""
    z, y, out = rows(5, 1000)
    finite, infinite = (
        calibcli.fit_scaler(Predictions.of(masked(z, out, end, 0.9, False), y)) for end in (low, -np.inf)
    )
    assert finite["temperature"].value == pytest.approx(infinite["temperature"].value, rel=1e-7)


@pytest.mark.parametrize(
    "target",
    [
        pytest.param(t.name, marks=pytest.mark.extra if t.name == "onnx" else ())
        for t in TARGETS
        if t.traits.data != "inputs" and t.name != "card"
    ],
)
@pytest.mark.one_in(3)
def test_exports_leave_the_same_classes_out(target: str, tmp_path: Path) -> None:
    z, y, out = rows(4)
    finite = masked(z, out, -1e3, 0.5, True).astype(np.float32)
    scaler = calibcli.fit_scaler(finite, y, "temperature" if target == "vllm" else "vector").scaler
    path = tmp_path / f"c{TARGETS.entries[target].traits.suffixes[0]}"
    assert calibcli.export(scaler, target, save=path, data=finite)["max_dp"].value <= 1e-6
    if target == "json":
        space: dict[str, Any] = {}
        exec(path.with_suffix(".py").read_text(), space)
        for row in finite[:40].astype(float):
            assert space["calibrate"](row.tolist()) == pytest.approx(scaler.predict_proba(row[None])[0], abs=1e-12)
