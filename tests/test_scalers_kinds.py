"""Scalers obey the kind they were fitted on, write what they measured, and say what they make worse."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import calibcli
from calibcli import calibrators, metrics
from calibcli.calibrators.report import RankingOptions, rank
from calibcli.cli.app import main
from calibcli.core.errors import InputError
from calibcli.scores.likelihood import log_softmax
from calibcli.scores.predictions import Predictions

SPECS = [entry.name for entry in calibrators.SCALERS] + ["histogram:of=top"]
KINDS = ("logits", "probabilities", "log_probabilities")


def data(n: int = 240, k: int = 3, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    z = rng.standard_normal((n, k)) * 2
    return 2 * z, (z + rng.gumbel(size=z.shape)).argmax(axis=1)


def as_kind(z: np.ndarray, kind: str) -> np.ndarray:
    log_p = log_softmax(z)
    return {"logits": z, "probabilities": np.exp(log_p), "log_probabilities": log_p}[kind]


# --- a scaler obeys the kind that it was fitted on


@pytest.mark.slow
@pytest.mark.regression("1.1")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("k", [2, 3, 10])
@pytest.mark.parametrize("spec", SPECS)
def test_a_scaler_takes_what_the_fit_took(spec: str, k: int, kind: str) -> None:
    z, y = data(k=k)
    fit = calibcli.fit_scaler(as_kind(z, kind), y, spec)
    found = fit.predict_proba(as_kind(z, kind))
    assert found.shape == (240, k)
    assert found.dtype == np.float64
    np.testing.assert_allclose(found.sum(axis=1), 1, rtol=1e-9)
    np.testing.assert_allclose(np.exp(fit.scaler(as_kind(z, kind))), found)
    np.testing.assert_allclose(found, np.exp(fit.scaler.map(log_softmax(z))), rtol=1e-6, atol=1e-9)


@pytest.mark.slow
@pytest.mark.regression("1.1")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("spec", SPECS)
def test_a_fit_on_one_column_takes_one_column(spec: str, kind: str) -> None:
    z, y = data(k=2)
    column = z[:, 1] - z[:, 0] if kind == "logits" else as_kind(z, kind)[:, 1]
    fit = calibcli.fit_scaler(column, y, spec, kind=kind)
    found = fit.predict_proba(column)
    assert found.shape == (240, 2)
    np.testing.assert_allclose(fit.predict_proba(column[:, None]), found)
    np.testing.assert_allclose(fit.predict_proba(column[:1]), found[:1])
    both = calibcli.fit_scaler(as_kind(z, kind), y, spec, kind=kind).predict_proba(as_kind(z, kind))
    np.testing.assert_allclose(found, both, rtol=1e-6, atol=1e-9)


@pytest.mark.regression("1.1")
def test_what_cannot_be_of_the_kind_is_refused() -> None:
    z, y = data()
    by = {kind: calibcli.fit_scaler(as_kind(z, kind), y).scaler for kind in KINDS}
    assert {scaler.kind for scaler in by.values()} == set(KINDS)
    for kind, other in (
        ("logits", "probabilities"),
        ("probabilities", "logits"),
        ("probabilities", "log_probabilities"),
        ("log_probabilities", "logits"),
        ("log_probabilities", "probabilities"),
    ):
        with pytest.raises(InputError, match=f"fitted on {kind.replace('_', '-')}") as error:
            by[kind](as_kind(z, other))
        assert "pass" in error.value.fix
    for scaler in by.values():
        with pytest.raises(InputError, match="calibrator of 3 classes"):
            scaler.predict_proba(z[:, 0])
        with pytest.raises(InputError, match="NaN"):
            scaler.predict_proba(np.full((2, 3), np.nan))
        assert scaler.predict_proba(np.empty((0, 3))).shape == (0, 3)


@pytest.mark.regression("1.1")
@pytest.mark.parametrize("kind", KINDS)
def test_the_kind_is_saved_with_the_calibrator(kind: str, tmp_path: Path) -> None:
    z, y = data(k=2)
    column = z[:, 1] - z[:, 0] if kind == "logits" else as_kind(z, kind)[:, 1]
    for scores in (as_kind(z, kind), column):
        fit = calibcli.fit_scaler(scores, y, "platt", kind=kind)
        calibcli.save_scaler(fit.scaler, tmp_path / "c.safetensors")
        again = calibcli.load_scaler(tmp_path / "c.safetensors")
        np.testing.assert_array_equal(again.predict_proba(scores), fit.predict_proba(scores))


@pytest.mark.regression("1.1")
def test_tensors_are_arrays() -> None:
    torch = pytest.importorskip("torch")
    z, y = data()
    fit = calibcli.fit_scaler(z, y)
    for tensor in (torch.tensor(z), torch.tensor(z, requires_grad=True)):
        np.testing.assert_array_equal(fit.predict_proba(tensor), fit.predict_proba(z))
    near = fit.predict_proba(torch.tensor(z).bfloat16())
    np.testing.assert_allclose(near, fit.predict_proba(z), atol=0.05)
    half = calibcli.fit_scaler(torch.tensor(as_kind(z, "probabilities")).half().numpy(), y)
    assert half.predict_proba(as_kind(z, "probabilities").astype(np.float16)).shape == (240, 3)


# --- maps of the top label: what is measured is what is written


@st.composite
def hard_scores(draw: Any) -> tuple[np.ndarray, np.ndarray]:
    """Scores with ties and zeros of 2 to 100 classes, and labels that the argmax often misses."""
    k = draw(st.sampled_from([2, 3, 10, 100]))
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    z = np.round(rng.standard_normal((60, k)) * draw(st.sampled_from([0.3, 3.0, 40.0])), draw(st.integers(0, 3)))
    gone = rng.random(z.shape) < draw(st.sampled_from([0.0, 0.3, 0.9]))
    gone[np.arange(60), rng.integers(0, k, 60)] = False
    z[gone] = -np.inf
    y = np.where(rng.random(60) < 0.3, z.argmax(axis=1), [rng.choice(np.flatnonzero(~row)) for row in gone])
    return z.astype(draw(st.sampled_from([np.float32, np.float64]))), y


@pytest.mark.regression("1.2")
@settings(max_examples=60, deadline=None)
@given(hard_scores(), st.sampled_from(["isotonic-top", "histogram:of=top"]), st.sampled_from(["float32", "float64"]))
def test_top_maps_keep_the_argmax_and_sum_to_one(
    tmp_path_factory: pytest.TempPathFactory, case: tuple[np.ndarray, np.ndarray], spec: str, dtype: str
) -> None:
    z, y = case
    p = Predictions.of(z, y)
    scaler = calibrators.fit(spec, p).scaler
    log_p = scaler.map(z)
    assert not np.isnan(log_p).any()
    np.testing.assert_allclose(np.exp(log_p).sum(axis=1), 1, rtol=1e-12)
    np.testing.assert_array_equal(log_p.argmax(axis=1), z.argmax(axis=1))
    path = tmp_path_factory.mktemp("top") / "o.npz"
    assert calibrators.stream(scaler, p, path, dtype=dtype).changed == 0
    with np.load(path) as out:
        written = out["probabilities"]
    np.testing.assert_array_equal(written.argmax(axis=1), z.argmax(axis=1))
    np.testing.assert_allclose(written.sum(axis=1), 1, rtol=1e-6 if dtype == "float64" else 1e-5)
    np.testing.assert_allclose(written, np.exp(log_p), rtol=1e-6, atol=1e-7)


@pytest.mark.regression("1.2")
@pytest.mark.parametrize("k", [2, 10, 100])
@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.one_in(7)
def test_after_is_apply_and_metrics(
    spec: str, k: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The numbers that `scale --test` prints after are those of `apply` and `metrics`, with weights and groups."""
    monkeypatch.chdir(tmp_path)
    z, y = data(360, k)
    spec = f"{spec}:lam=1,mu=1" if spec in ("matrix", "dirichlet") else spec
    kind = {2: "probabilities", 10: "log_probabilities", 100: "logits"}[k]
    scores, w = as_kind(z, kind), np.random.default_rng(0).uniform(0.5, 2, 360)
    for name, rows in (("val", slice(0, 180)), ("test", slice(180, 360))):
        np.savez(f"{name}.npz", scores=scores[rows], labels=y[rows], w=w[rows], g=np.arange(180) // 9)
    how = ["--scores", "scores", "--weights", "w", "--group", "g", "--kind", kind]
    names = [x for m in ("accuracy", "nll", "brier", "ece", "adaece") for x in ("-m", m)]
    arguments = ["scale", "val.npz", "--test", "test.npz", "--method", spec, "--save", "c.safetensors", *how, *names]
    assert main([*arguments, "--json"]) == 0
    after = {e["name"]: e["value"] for e in json.loads(capsys.readouterr().out)["estimates"] if e["scope"] == "after"}
    apply = ["apply", "c.safetensors", "test.npz", "--save", "o.npz", "--dtype", "float64", *how, "-q"]
    apply += ["--as", "logits"] if k == 100 else []
    assert main(apply) == 0
    capsys.readouterr()
    assert main(["metrics", "o.npz", "--weights", "weights", "--group", "group", *names, "--json"]) == 0
    found = {e["name"]: e["value"] for e in json.loads(capsys.readouterr().out)["estimates"] if not e["scope"]}
    assert after.keys() == found.keys()
    for name, value in after.items():
        assert found[name] == pytest.approx(value, rel=1e-7, abs=1e-9), name


@pytest.mark.regression("1.2")
def test_a_probability_too_small_for_the_file_is_not_zero(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    z, y = data(100, 3)
    z[0] = [-2000.0, 0.0, 0.0]
    np.savez("a.npz", logits=z, labels=np.append(0, y[1:]))
    calibrators.save(calibrators.Scaler("temperature", 3, {"beta": np.array(1.0)}), "c.safetensors")
    assert main(["apply", "c.safetensors", "a.npz", "--save", "o.npz"]) == 0
    assert "1 rows hold probabilities too small for float32" in capsys.readouterr().err
    with np.load("o.npz") as out:
        assert out["probabilities"][0, 0] == np.finfo(np.float32).tiny
    assert main(["metrics", "o.npz", "-m", "nll", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["estimates"][0]["value"] > 0


@pytest.mark.regression("1.1")
def test_bins_of_histogram_do_not_depend_on_rounding() -> None:
    z, y = data(600, 10)
    scaler = calibrators.fit("histogram", Predictions.of(z, y)).scaler
    np.testing.assert_allclose(scaler.map(np.log(np.exp(log_softmax(z)))), scaler.map(z), rtol=1e-12)


# --- what a map makes worse


@pytest.mark.regression("1.7")
def test_what_is_worse_is_said_and_never_recommended(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    z, y = data(3000, 20)
    z /= 2  # calibrated already: bins of 1/20 of each class's rows destroy the ranking
    np.savez(tmp_path / "a.npz", logits=z, labels=y)
    base = ["scale", str(tmp_path / "a.npz"), "--json"]
    assert main([*base, "--method", "histogram:bins=3"]) == 0
    out, err = capsys.readouterr()
    found = json.loads(out)
    changed = {e["name"]: e for e in found["estimates"] if e["scope"] == "after minus before"}
    assert set(changed) == {"nll", "ece", "brier", "accuracy"}
    assert changed["accuracy"]["high"] < 0
    for name, e in changed.items():
        values = {p["scope"]: p["value"] for p in found["estimates"] if p["name"] == name}
        assert e["value"] == pytest.approx(values["after"] - values["before"], abs=1e-12)
        assert e["low"] <= e["value"] <= e["high"]
    assert "after is worse than before beyond chance" in err
    assert "accuracy" in next(note for note in found["notes"] if "beyond chance" in note)
    assert main([*base, "--method", "histogram:bins=3", "--method", "temperature"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["facts"]["method"] == "temperature"
    assert found["facts"]["recommended"] != "histogram:bins=3"
    assert any("not recommended" in note for note in found["notes"])


@pytest.mark.regression("1.7")
@pytest.mark.parametrize("k", [2, 3, 20])
def test_no_method_that_makes_worse_is_recommended(k: int) -> None:
    z, y = data(600, k)
    specs = ["temperature", "histogram:bins=2", "isotonic", "platt"]
    found = rank(specs, Predictions.of(z / 2, y), RankingOptions(folds=3))
    bad = {row[1]: row[-1] for row in found.table.rows}
    assert found.recommended == "none" or not bad[found.recommended]
    alone = rank(["histogram:bins=2"], Predictions.of(z / 2, y), RankingOptions(folds=3))
    assert alone.recommended == "none"
    assert alone.best == "histogram:bins=2"
    assert any("no method is recommended" in note for note in alone.notes)


@pytest.mark.regression("1.7")
def test_a_map_that_changes_no_class_has_no_interval_of_width_zero() -> None:
    from calibcli.metrics.paired import differences
    from calibcli.scores.columns import columns

    z, y = data(400, 3)
    one, two = (metrics.Sample.of(columns(Predictions.of(s, y), class_bins=())) for s in (z, z / 2))
    found = {e.name: e for e in differences(one, two)}
    assert (found["accuracy"].value, found["accuracy"].low) == (0, None)
    assert found["accuracy"].reason == "no row changes"
    assert all(e.low is None for e in differences(one, one))
    few = metrics.Sample.of(columns(Predictions.of(z, y, groups=np.arange(400) % 4), class_bins=()))
    more = metrics.Sample.of(columns(Predictions.of(z / 2, y, groups=np.arange(400) % 4), class_bins=()))
    assert all("bounds need 10" in e.reason for e in differences(few, more) if e.name != "accuracy")


@pytest.mark.slow
@pytest.mark.regression("1.7")
@pytest.mark.parametrize("grouped", [False, True])
def test_paired_differences_cover(grouped: bool) -> None:
    from calibcli.metrics.paired import differences
    from calibcli.scores.columns import columns

    def found(n: int, seed: int) -> dict[str, Any]:
        z, y = data(n, 3, seed)
        shift = np.array([0.0, 0.4, 0.0])
        group = np.arange(n) // 5 if grouped and n < 10_000 else None
        rows = [Predictions.of(s, y, groups=group) for s in (z / 1.2, z / 2.2 + shift)]
        one, two = (metrics.Sample.of(columns(p, class_bins=())) for p in rows)
        return {e.name: e for e in differences(one, two)}

    truth = found(200_000, 999)
    inside = dict.fromkeys(truth, 0)
    for seed in range(150):
        for name, e in found(400, seed).items():
            inside[name] += e.low <= truth[name].value <= e.high
    assert all(134 <= count <= 150 for count in inside.values()), inside
