"""`--clip`: the cut belongs to the map, so what is measured is what is saved, applied and exported."""

from __future__ import annotations

import itertools
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import calibcli
from calibcli.calibrators import SCALERS, Scaler
from calibcli.cli.app import main
from calibcli.cli.metrics import command as metrics
from calibcli.cli.typed import with_values
from calibcli.core.errors import InputError, UsageError
from calibcli.ship.target import TARGETS

OPTIONS = {"matrix": ":lam=0.1,mu=0.1", "dirichlet": ":lam=0.1,mu=0.1"}
SPECS = [*(entry.name + OPTIONS.get(entry.name, "") for entry in SCALERS), "platt:on=p"]
ALONE = [entry for entry in TARGETS if entry.traits.data != "inputs" and entry.name not in ("card", "vllm")]
"""Targets that hold a map of probabilities: a card holds none, and vLLM's pooler works on logits."""
EXTRA = {"onnx": pytest.mark.extra, "pt2": pytest.mark.extra}  # which needs a package; which takes seconds
CUTS = {2: 0.05, 3: 0.05, 10: 0.02}


def votes(n: int, k: int, seed: int, trees: int = 10) -> tuple[Any, Any]:
    """Shares of ten votes, many of them 0, with labels that occur there too."""
    rng = np.random.default_rng(seed)
    p = rng.dirichlet(np.full(k, 0.5), n)
    labels = np.array([rng.choice(k, p=0.85 * row + 0.15 / k) for row in p])
    return np.array([rng.multinomial(trees, row) for row in p]) / trees, labels


def saved(path: Path, k: int, seed: int, n: int = 400) -> tuple[Any, Any]:
    p, labels = votes(n, k, seed)
    np.savez(path, probabilities=p, labels=labels)
    return p, labels


def nll_and_ece(p: Any, labels: Any) -> tuple[float, float]:
    found = calibcli.measure(p, labels, "nll", "ece", kind="probabilities")
    return found["nll"].value, found["ece"].value


def without(p: Any, labels: Any) -> tuple[Any, Any]:
    """Return the rows that can be measured without a cut: those whose label has no probability of 0."""
    keep = p[np.arange(len(p)), labels] > 0
    return p[keep], labels[keep]


@pytest.mark.regression("maps 1")
@pytest.mark.parametrize("clip", [True, False])
@pytest.mark.parametrize(("spec", "k"), [*itertools.product(SPECS, (2, 3, 10))])
@pytest.mark.one_in(9)
def test_what_is_measured_is_what_is_saved_and_applied(spec: str, k: int, clip: bool, tmp_path: Path) -> None:
    """NLL and ECE of `scale --test`, of `apply` of the file, and of `predict_proba` are the same numbers."""
    for name, seed in (("fit", 1), ("test", 2)):
        p, labels = votes(400, k, seed)
        p, labels = (p, labels) if clip else without(p, labels)
        np.savez(tmp_path / f"{name}.npz", probabilities=p, labels=labels)
    how: dict[str, Any] = {"clip": CUTS[k]} if clip else {}
    path = tmp_path / "c.safetensors"
    found = calibcli.scale(
        tmp_path / "fit.npz", None, spec, test=tmp_path / "test.npz", metrics=["nll", "ece"], save=path, **how
    )
    printed = found["nll", "after"].value, found["ece", "after"].value
    assert np.isfinite(printed).all()
    scaler = calibcli.load_scaler(path)
    cut = float(scaler.parameters.get("cut", 0))
    chosen = SCALERS.choose(spec).traits.cuts and "of_p" not in scaler.parameters  # of p, 0 is a number
    n = len(np.load(tmp_path / "fit.npz")["labels"])
    assert cut in ((CUTS[k],) if clip else (1 / (2 * n), 1e-15) if chosen else (0,))
    np.testing.assert_allclose(nll_and_ece(scaler.predict_proba(p), labels), printed, rtol=0, atol=1e-12)
    calibcli.apply(path, tmp_path / "test.npz", save=tmp_path / "o.npz", dtype="float64")
    np.testing.assert_allclose(nll_and_ece(np.load(tmp_path / "o.npz")["probabilities"], labels), printed, atol=1e-12)


def cells() -> list[Any]:
    """Every map, number of classes and target; those that are dear are `extra`, and of JSON every map at one K."""
    out = []
    for i, (spec, k) in enumerate(itertools.product(SPECS, (2, 3, 10))):
        for target in ALONE:
            mark = EXTRA.get(target.name) or (() if target.name != "json" or i % 3 == 0 else pytest.mark.extra)
            out.append(pytest.param(spec, k, target.name, marks=mark))
    return out


@pytest.mark.regression("maps 1")
@pytest.mark.parametrize(("spec", "k", "target"), cells())
@pytest.mark.one_in(5)
def test_every_export_is_the_map_with_its_cut(spec: str, k: int, target: str, tmp_path: Path) -> None:
    """The same probabilities as the map on rows with zeros; another cut is refused."""
    rows = calibcli.from_arrays(*votes(300, k, 1), kind="probabilities", clip=CUTS[k])
    scaler = calibcli.fit_scaler(rows, spec=spec).scaler
    p, labels = votes(300, k, 2)
    path = tmp_path / f"c{TARGETS.entries[target].traits.suffixes[0]}"
    found = calibcli.export(scaler, target, save=path, data=p, kind="probabilities")
    assert found["max_dp"].value <= (1e-12 if target == "json" else 1e-6)
    assert calibcli.verify(path, scaler, p, kind="probabilities", trust=True).verdict == "pass"
    other = Scaler(spec, k, {**scaler.parameters, "cut": np.array(CUTS[k] / 4)}, None, scaler.metadata)
    if np.allclose(other.predict_proba(p), scaler.predict_proba(p), rtol=0, atol=1e-6):
        assert spec in ("isotonic", "isotonic_top", "histogram", "top_label"), "steps alone may hide a cut"
    else:
        assert calibcli.verify(path, other, p, kind="probabilities", trust=True).verdict == "fail"
        whole = np.full((10, k), 1 / k)  # rows without zeros, which show no difference
        with pytest.raises(InputError, match="smaller probabilities"):
            calibcli.verify(path, other, whole, kind="probabilities", trust=True)
    raised = calibcli.from_arrays(p, labels, kind="probabilities", clip=CUTS[k])
    assert calibcli.verify(path, scaler, raised, trust=True).verdict == "pass"


@pytest.mark.one_in(3)
@pytest.mark.regression("maps 1")
@pytest.mark.parametrize("kind", ["probabilities", "log_probabilities"])
@pytest.mark.parametrize("spec", ["temperature", "platt", "isotonic"])
def test_one_column_is_cut_at_both_ends(spec: str, kind: str, tmp_path: Path) -> None:
    p, labels = votes(600, 2, 3)
    scores = p[:, 1] if kind == "probabilities" else np.log(np.maximum(p[:, 1], 1e-12))
    two = calibcli.fit_scaler(p, labels, spec, kind="probabilities", clip=0.05)
    one = calibcli.fit_scaler(scores, labels, spec, kind=kind, clip=0.05)
    np.testing.assert_allclose(one.predict_proba(scores), two.predict_proba(p), atol=1e-12)
    save = tmp_path / "c.json"
    assert calibcli.export(one, "json", save=save, data=scores, kind=kind)["max_dp"].value <= 1e-12
    raised = calibcli.from_arrays(scores, labels, kind=kind, clip=0.05)
    assert calibcli.verify(save, one, raised).verdict == "pass"


@pytest.mark.regression("maps 1")
def test_a_calibrator_around_a_forest_keeps_its_cut() -> None:
    from sklearn.ensemble import RandomForestClassifier

    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 4))
    y = (x[:, 0] + rng.normal(size=300) > 0).astype(int)
    model = calibcli.Calibrator(RandomForestClassifier(10, random_state=0), "platt").fit(x, y)
    p = model.estimator_.predict_proba(x)
    assert (p == 0).any()
    np.testing.assert_allclose(model.fit_.scaler.predict_proba(p), model.predict_proba(x), atol=1e-12)


def test_labels_have_their_cut(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    p = rng.binomial(10, rng.beta(0.5, 0.5, (300, 3))) / 10
    targets = (rng.random((300, 3)) < 0.1 + 0.8 * p).astype(int)
    np.savez(tmp_path / "r.npz", probabilities=p, labels=targets)
    how: dict[str, Any] = {"multilabel": True, "kind": "probabilities"}
    calibcli.scale(tmp_path / "r.npz", None, "platt", save=tmp_path / "maps", clip=0.05, **how)
    calibcli.apply(tmp_path / "maps", tmp_path / "r.npz", save=tmp_path / "o.npz", dtype="float64", **how)
    got = np.load(tmp_path / "o.npz")["probabilities"]
    for i in range(3):
        alone = calibcli.fit_scaler(p[:, i], targets[:, i], "platt", kind="probabilities", clip=0.05)
        np.testing.assert_allclose(got[:, i], alone.predict_proba(p[:, i])[:, 1], atol=1e-12)


def test_another_cut_than_the_calibrators_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved(tmp_path / "fit.npz", 2, 1)
    for name, clip in (("with", ["--clip", "0.05"]), ("plain", [])):
        lines = ["scale", str(tmp_path / "fit.npz"), "--method", "isotonic", *clip, "-q"]
        assert main([*lines, "--save", str(tmp_path / f"{name}.safetensors")]) == 0
    apply = [str(tmp_path / "fit.npz"), "--save", str(tmp_path / "o.npz")]
    assert main(["apply", str(tmp_path / "with.safetensors"), *apply, "--clip", "0.1"]) == 4
    assert "leave --clip out" in capsys.readouterr().err
    assert main(["apply", str(tmp_path / "with.safetensors"), *apply, "--clip", "0.05"]) == 0
    assert main(["apply", str(tmp_path / "plain.safetensors"), *apply, "--clip"]) == 4
    assert "was fitted without" in capsys.readouterr().err
    z = np.random.default_rng(0).normal(size=(50, 2)) * 3
    with pytest.raises(InputError, match="holds logits"):
        calibcli.apply(tmp_path / "with.safetensors", z, save=tmp_path / "o.npz", kind="logits")


def test_a_number_after_it_is_its_value() -> None:
    for given, wanted in [
        (["--clip"], ["--clip=1e-15"]),
        (["--clip", "a.csv"], ["--clip=1e-15", "a.csv"]),
        (["a.csv", "--clip", "-q"], ["a.csv", "--clip=1e-15", "-q"]),
        (["--clip", "0.0005", "a.csv"], ["--clip=0.0005", "a.csv"]),
        (["--clip=0.01"], ["--clip=0.01"]),
        (["--", "--clip"], ["--", "--clip"]),
    ]:
        assert with_values(given, metrics.options) == wanted


@pytest.mark.parametrize("form", [["--clip"], ["--clip", "0.0005"], ["--clip=0.0005"]])
def test_the_option_stands_anywhere(form: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved(tmp_path / "r.npz", 3, 1)
    file = str(tmp_path / "r.npz")
    values = []
    for line in ([file, *form], [*form, file], [*form, file, "--bins", "10"]):
        assert main(["metrics", *line, "-m", "nll", "--json"]) == 0
        values.append(json.loads(capsys.readouterr().out)["estimates"][0]["value"])
    cut = 0.0005 if len(form) > 1 or "=" in form[0] else 1e-15
    assert values == [pytest.approx(calibcli.measure(file, None, "nll", clip=cut)["nll"].value)] * 3


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (["--clip", "0.6"], "out of range"),
        (["--clip", "-1"], "out of range"),
        (["--clip=x"], "not a number"),
        (["--clip", "0.4"], "not below 1/3"),
        (["--clip", "0.1", "--clip", "0.2"], "more than once"),
    ],
)
def test_values_that_cannot_be(line: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved(tmp_path / "r.npz", 3, 1)
    assert main(["metrics", str(tmp_path / "r.npz"), *line]) == 2
    assert says in capsys.readouterr().err


@pytest.mark.regression("maps 1")
@pytest.mark.parametrize(
    ("step", "half"), [(0.1, "0.05"), (0.2, "0.1"), (0.001, "0.0005"), (1 / 7, "0.07143"), (1e-4, "5e-05")]
)
def test_half_of_the_rounding_step_is_proposed(
    step: float, half: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The line that is proposed works when it is copied."""
    rng = np.random.default_rng(0)
    p = np.round(rng.beta(0.02, 0.4, 2000) / step) * step
    y = (rng.random(2000) < 0.05 + 0.9 * p).astype(int)
    np.savez(tmp_path / "r.npz", probabilities=np.column_stack([1 - p, p]), labels=y)
    assert main(["metrics", str(tmp_path / "r.npz")]) == 0
    assert f"--clip {half} (half of {step:.4g}, the step of these scores)" in " ".join(capsys.readouterr().err.split())
    assert main(["metrics", str(tmp_path / "r.npz"), "--clip", half, "-m", "nll"]) == 0
    assert f"clipped to {float(half):.4g}\n" in capsys.readouterr().err


def test_scores_that_are_not_rounded_have_no_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(0)
    p = rng.beta(0.5, 0.5, 500)
    p[:20] = 0
    np.savez(tmp_path / "r.npz", probabilities=np.column_stack([1 - p, p]), labels=np.ones(500, int))
    assert main(["metrics", str(tmp_path / "r.npz")]) == 0
    assert "--clip makes it finite" in " ".join(capsys.readouterr().err.split())


def test_logits_have_no_probabilities_to_raise() -> None:
    z = np.random.default_rng(0).normal(size=(60, 3)) * 4
    rows = calibcli.from_arrays(z, np.arange(60) % 3, clip=0.01)
    assert any("--clip" in note and "changes nothing" in note for note in rows.notes)
    assert "cut" not in calibcli.fit_scaler(rows).scaler.parameters


def test_true_is_the_smallest_cut() -> None:
    p, labels = votes(100, 2, 1)
    assert calibcli.from_arrays(p, labels, clip=True).record.clip == 1e-15
    assert calibcli.from_arrays(p, labels, clip=False).record.clip == 0
    with pytest.raises(UsageError, match="out of range"):
        calibcli.from_arrays(p, labels, clip=0.9)


def test_a_program_has_the_cut(tmp_path: Path) -> None:
    """The functions beside the JSON give what the map gives on a probability of 0."""
    rows = calibcli.from_arrays(*votes(300, 3, 1), kind="probabilities", clip=0.05)
    scaler = calibcli.fit_scaler(rows).scaler
    calibcli.export(scaler, "json", save=tmp_path / "c.json", data=votes(100, 3, 2)[0], kind="probabilities")
    space: dict[str, Any] = {}
    exec((tmp_path / "c.py").read_text(), space)
    assert space["calibrate"]([0.0, 0.2, 0.8]) == pytest.approx(scaler.predict_proba([[0.0, 0.2, 0.8]])[0], abs=1e-12)
    assert (tmp_path / "c.js").exists() == (shutil.which("node") is not None)
