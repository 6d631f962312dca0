"""Numbers and notes of `metrics`: ties, objectives, orders of classes, lookups by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from populations import values
from scipy import stats

import calibcli
from calibcli import calibrators, metrics
from calibcli.cli.app import main
from calibcli.core import number_format
from calibcli.core.errors import Exit, UsageError
from calibcli.core.result import Estimate
from calibcli.core.statistics import student_quantile
from calibcli.metrics.diagrams import smooth_curve
from calibcli.metrics.reliability import BinaryOutcomes
from calibcli.metrics.report import ReportOptions, report
from calibcli.scores.from_arrays import of_arrays
from calibcli.scores.predictions import Predictions


def logits(n: int, k: int, seed: int = 0, scale: float = 2.0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(n, k)) * scale
    p = np.exp(z / 1.5) / np.exp(z / 1.5).sum(axis=1, keepdims=True)
    return z, np.minimum((p.cumsum(axis=1) < rng.random((n, 1))).sum(axis=1), k - 1)


@pytest.mark.regression("1.6")
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("k", [2, 4, 100])
def test_ties_are_counted_with_the_accuracies_of_other_rules(
    k: int, dtype: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    z, y = logits(3000, k)
    z = np.round(z).astype(dtype)
    largest = z == z.max(axis=1, keepdims=True)
    tied = int((largest.sum(axis=1) > 1).sum())
    right = largest[np.arange(3000), y]
    low, high = (right & (largest.sum(axis=1) == 1)).mean(), right.mean()
    np.savez(tmp_path / "a.npz", logits=z, labels=y)
    assert main(["metrics", str(tmp_path / "a.npz"), "-m", "accuracy", "--json"]) == 0
    out, err = capsys.readouterr()
    assert f"{tied:,} of 3,000 rows have several largest scores" in err
    assert f"accuracy is {low:.4g} to {high:.4g}" in err
    assert json.loads(out)["estimates"][0]["value"] == pytest.approx((z.argmax(axis=1) == y).mean())


@pytest.mark.regression("1.6")
def test_ties_of_one_column_and_none() -> None:
    p = np.array([0.5] * 4 + [0.9, 0.2, 0.6, 0.1])
    y = np.array([0, 1, 1, 1, 1, 0, 0, 0])
    for scores in (p, np.log(p / (1 - p))):
        [note] = [n for n in of_arrays(scores, y).notes if "several" in n]
        assert "4 of 8 rows" in note
        assert "accuracy is 0.375 to 0.875" in note
    z, y = logits(500, 5)
    assert not [n for n in of_arrays(z, y).notes if "several" in n]


@pytest.mark.regression("1.13")
def test_rows_beyond_memory_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    z, y = logits(5000, 3)
    wanted = metrics.measure(Predictions.of(z, y))
    specs = [e.name for e in wanted if e.name != "temperature_gain"] + [
        "high_confidence_share",
        "entropy_wrong",
        "high_confidence_accuracy",
    ]
    wanted = metrics.measure(Predictions.of(z, y), specs)
    monkeypatch.setattr("calibcli.scores.columns.MANY", 1000)
    for e, w in zip(metrics.measure(Predictions.of(z, y), specs), wanted, strict=True):
        assert e.n == w.n, e.name


@pytest.mark.regression("1.14")
@pytest.mark.parametrize("k", [2, 3, 10])
@pytest.mark.parametrize("objective", ["ece", "adaece"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.one_in(5)
def test_objective_of_a_temperature_is_the_metric(objective: str, k: int, weighted: bool) -> None:
    """Also where probabilities lie on the edges of bins, where a logarithm moves them by an ulp."""
    rng = np.random.default_rng(1)
    p = np.full((300, k), 0.0)
    p[:, 0] = rng.choice([0.6, 0.8, 1 / 3, 2 / 3, 14 / 15], 300)
    p[:, 1:] = ((1 - p[:, 0]) / (k - 1))[:, None]
    w = rng.integers(1, 4, 300).astype(float) if weighted else None
    q = Predictions.of(np.log(p), rng.integers(0, k, 300), weights=w, weight_kind="count" if weighted else "sampling")
    fit = calibrators.fit(f"temperature:objective={objective}", q)
    found = fit.estimates[0]
    at = [values(calibrators.apply(fit.scaler, q), [objective])[objective]]
    assert found.detail["objective"] == pytest.approx(at[0], abs=1e-12)
    grid = np.arange(1, 101) / 10
    every = [
        values(Predictions.of(np.log(p) / t, q.labels, weights=w, weight_kind=q.weight_kind), [objective])[objective]
        for t in grid
    ]
    assert found.detail["objective"] == pytest.approx(min(every), abs=1e-12)


@pytest.mark.regression("1.14")
@pytest.mark.parametrize("k", [2, 3, 5, 10])
def test_objective_puts_a_probability_on_an_edge_where_the_metric_does(k: int) -> None:
    """.8 is an edge: with what lies above it in one bin, its gap of .1 would cancel with theirs of -.1."""
    top = np.repeat([0.8, 0.81], 100)
    p = np.column_stack([top, *[(1 - top) / (k - 1)] * (k - 1)])
    y = np.where(np.concatenate([np.arange(100) < 70, np.arange(100) < 91]), 0, 1)
    turned = np.arange(200) % 2 == 1  # the edge from above, too
    p[turned], y[turned] = p[turned][:, ::-1], k - 1 - y[turned]
    q = Predictions.of(np.log(p), y)
    fit = calibrators.fit("temperature:objective=ece", q)
    each = {t: values(Predictions.of(np.log(p) / t, y), ["ece"])["ece"] for t in np.arange(1, 101) / 10}
    best = min(each, key=lambda t: each[t])
    assert (fit.estimates[0].value, fit.estimates[0].detail["objective"]) == (
        best,
        pytest.approx(each[best], abs=1e-12),
    )
    if k > 2:
        assert each[1.0] == pytest.approx(0.1, abs=1e-9)


@pytest.mark.regression("1.15")
@pytest.mark.parametrize("degrees", [0.3, 0.99, 1, 1.2, 1.49, 1.5, 1.7, 2, 2.3, 2.49, 2.5, 3.3, 7.7, 30.5, 1e3, 1e7])
@pytest.mark.parametrize("level", [0.5, 0.8, 0.9, 0.95, 0.999])
def test_student_for_any_degrees(level: float, degrees: float) -> None:
    assert student_quantile((1 + level) / 2, degrees) == pytest.approx(
        float(stats.t.ppf((1 + level) / 2, degrees)), rel=1e-9
    )


@pytest.mark.regression("1.16")
@pytest.mark.parametrize("n", [600, 50_000])
@pytest.mark.parametrize("weighted", [False, True])
def test_order_of_the_classes_does_not_matter_to_equal_mass_bins(n: int, weighted: bool) -> None:
    rng = np.random.default_rng(0)
    few = np.concatenate([logits(40, 7, 1)[0], np.zeros((1, 7)), [[800.0] + [0.0] * 6], logits(3, 7, 2, 20.0)[0]])
    z = rng.permuted(few[rng.integers(0, len(few), n)], axis=1)  # the same probabilities, summed in other orders
    y = rng.integers(0, 7, n)
    w = rng.random(n) + 0.5 if weighted else None
    specs = ["adaece", "adaece:bins=7", "ece2_debiased"]
    wanted = values(Predictions.of(z, y, weights=w), specs)
    for order in (np.arange(7)[::-1], rng.permutation(7), rng.permutation(7)):
        turned = Predictions.of(z[:, order], np.argsort(order)[y], weights=w, predicted=np.argsort(order)[z.argmax(1)])
        got = values(turned, specs)
        for spec in specs:
            assert got[spec] == pytest.approx(wanted[spec], rel=1e-9, abs=1e-13), spec


def test_ranks_are_those_of_a_sort() -> None:
    rng, n = np.random.default_rng(3), 5_000
    p = np.concatenate([rng.random(n), 1 - rng.random(n) * 1e-12, np.full(n, 0.5), 10.0 ** -rng.uniform(0, 20, n), [0]])
    complement = np.concatenate([1 - p, 10.0 ** -rng.uniform(0, 400, n)])  # with all its digits, down to 0
    p = np.append(p, 1 - complement[-n:])
    hit = rng.random(len(p)) < p
    ranked = BinaryOutcomes(p, complement, hit, None, False, None).ranked
    order = np.lexsort([-complement, p])
    np.testing.assert_allclose(ranked.p, p[order], rtol=1e-15)
    np.testing.assert_allclose(ranked.complement, complement[order], rtol=1e-15, atol=2e-300)
    for value in (0.0, 0.5, 1.0):
        assert ranked.hit[np.isclose(ranked.p, value, 1e-15)].sum() == hit[np.isclose(p, value, 1e-15)].sum()
    np.testing.assert_allclose(ranked.residual.sum(), (p - hit).sum(), rtol=1e-12)


@pytest.mark.regression("1.17")
def test_measure_takes_named_keywords_alone() -> None:
    z, y = logits(200, 3)
    for bad in ({"metrics": ["ece"]}, {"bin": 3}, {"need_labels": False}):
        for function in (calibcli.measure, calibcli.fit_scaler, calibcli.check):
            with pytest.raises(TypeError, match=f"unexpected keyword argument '{next(iter(bad))}'"):
                function(z, y, **bad)
    assert calibcli.from_arrays(z, y, by={"site": y}).slices
    assert calibcli.measure(z, y, "ece", by={"site": y})["ece", "site=1"].n == (y == 1).sum()
    with pytest.raises(TypeError, match="weight"):
        calibcli.from_arrays(z, y, weigths=y)
    with pytest.raises(TypeError, match="read already"):
        calibcli.measure(calibcli.from_arrays(z, y), weights=y)


@pytest.mark.regression("1.17")
def test_measured_numbers_are_found_by_any_spelling() -> None:
    z, y = logits(200, 3)
    found = calibcli.measure(z, y, "ece:bins=15", "adaece:bins=7,method=split", "smece:of=top")
    assert list(found) == ["ece", "adaece:bins=7,method=split", "smece"]
    for spelled in ("ece:bins=15", "ECE", " ece", "ece:edges=right", "ece:of=top", "ece:of=auto"):
        assert found[spelled] is found["ece"]
        assert spelled in found
    assert found["adaece:method=split,bins=7"].name == "adaece:bins=7,method=split"
    for missing in ("ece:bins=30", "nll", "ece:of=positive", "nonsense", "ece:bins=0"):
        assert missing not in found
        with pytest.raises(KeyError, match="but ece, adaece"):
            found[missing]
    two = calibcli.measure(z[:, :2], y % 2, "ece")
    assert two["ece:of=positive"] is two["ece"]
    assert "ece:of=top" not in two


@pytest.mark.regression("1.17")
def test_tensors_with_a_graph() -> None:
    torch = pytest.importorskip("torch")
    z, y = logits(100, 3)
    wanted = calibcli.measure(z, y, "nll")["nll"].value
    given = torch.tensor(z, requires_grad=True) * 1.0
    assert calibcli.measure(given, torch.tensor(y), "nll")["nll"].value == pytest.approx(wanted, rel=1e-12)


@pytest.mark.regression("1.18")
@pytest.mark.parametrize("form", ["two", "one", "logits"])
def test_classes_in_the_wrong_order_are_noted(form: str) -> None:
    rng = np.random.default_rng(0)
    p = rng.beta(2, 2, 500)
    y = (rng.random(500) < p).astype(int)
    for wrong in (False, True):
        q = 1 - p if wrong else p
        scores = {"two": np.stack([1 - q, q], axis=1), "one": q, "logits": np.log(q / (1 - q))}[form]
        notes = [n for n in of_arrays(scores, y, classes="benign,malignant").notes if "wrong order" in n]
        assert len(notes) == wrong
        assert all("malignant" in n for n in notes)


@pytest.mark.regression("1.18")
def test_chance_and_ties_are_no_wrong_order() -> None:
    rng = np.random.default_rng(1)
    noted = 0
    for _ in range(300):
        p = np.round(rng.uniform(0, 1, 60), 1)
        noted += any("wrong order" in n for n in of_arrays(p, rng.integers(0, 2, 60)).notes)
    assert noted <= 3
    assert not [n for n in of_arrays(np.full(50, 0.3), np.arange(50) % 2).notes if "wrong order" in n]
    assert not [n for n in of_arrays(np.linspace(0.1, 0.9, 50), np.ones(50, int)).notes if "wrong order" in n]


@pytest.mark.regression("1.19")
@pytest.mark.parametrize("sigma", [0.004, 0.05, 0.25])
def test_no_curve_where_there_are_no_rows(sigma: float) -> None:
    rng = np.random.default_rng(0)
    p = np.concatenate([rng.uniform(0.1, 0.2, 3000), rng.uniform(0.9, 0.97, 60_000)])
    curve = smooth_curve(BinaryOutcomes(p, 1 - p, rng.random(len(p)) < p, None, False, None), sigma)
    drawn = np.array([x for x, y in zip(curve.x, curve.y, strict=True) if y is not None])
    assert len(drawn)
    assert drawn.min() > 0.09
    assert drawn.max() < 0.98
    assert not ((drawn > 0.21 + sigma) & (drawn < 0.89 - sigma)).any()


@pytest.mark.regression
def test_bandwidth_of_smece_is_the_smallest_one_where_the_error_is_below_it() -> None:
    """It was said to be the error itself, which no bandwidth below .001 has."""
    p = np.repeat(np.arange(1, 20) / 20, 20)
    hit = np.concatenate([np.arange(20) < i for i in range(1, 20)])  # as many hits as every confidence says
    [e] = metrics.measure(of_arrays(p, hit.astype(int)), ["smece"])
    assert e.value is not None
    assert e.value < 1e-3
    assert e.detail["sigma"] == 1e-3
    [e] = metrics.measure(of_arrays(p**2, hit.astype(int)), ["smece"])
    assert e.detail["sigma"] == e.value


@pytest.mark.regression("1.19")
def test_a_number_without_interval_has_four_digits() -> None:
    e = Estimate(name="mce", value=0.6876008, null=0.4938338, null_high=0.6876008)
    assert number_format.shown(e) == ("0.6876", "", "0.4938 (≤ 0.6876)")
    above = Estimate(name="mce", value=0.68764, null=0.4938338, null_high=0.68761)
    assert float(number_format.shown(above).value) > 0.68761


@pytest.mark.regression("1.19")
def test_gain_without_a_value_is_of_all_rows() -> None:
    p = Predictions.of(np.array([[0.0, -np.inf]] * 40), np.arange(40) % 2)
    [e] = metrics.measure(p, ["temperature_gain"])
    assert (e.value, e.n) == (None, 40)


@pytest.mark.regression("1.19")
@pytest.mark.parametrize("k", [2, 10])
def test_an_error_of_one_sign_is_not_called_chance(k: int) -> None:
    z, y = logits(2000, k, scale=6.0)
    found = report(Predictions.of(z, y), ReportOptions(specs=["uce", "oce", "ece", "overconfidence_error"]))
    assert not [n for n in found.notes if "by chance" in n and not n.startswith("ece")]


@pytest.mark.regression("1.19")
def test_notes_name_their_file_and_are_said_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    paths = []
    for seed, name in enumerate(("fit.npz", "test.npz")):
        z, y = logits(400, 2, seed)
        np.savez(tmp_path / name, logits=z[:, 1] - z[:, 0], labels=y)
        paths.append(name)
    assert main(["scale", paths[0], "--test", paths[1], "-m", "nll"]) == 0
    notes = [line for line in capsys.readouterr().err.splitlines() if "one score per row" in line]
    assert notes == ["note: fit.npz, test.npz: one score per row: read as log-odds of class 1"]
    assert main(["compare", paths[0], paths[0], "-m", "nll"]) == Exit.USAGE
    capsys.readouterr()
    z, y = logits(400, 2, 0)
    np.savez(tmp_path / "other.npz", logits=np.round(z), labels=y)
    assert main(["compare", paths[0], "other.npz", "-m", "nll"]) == 0
    err = capsys.readouterr().err
    assert "note: fit.npz: one score per row" in err
    assert "note: other.npz: " in err
    assert err.count("several largest scores") == 1


@pytest.mark.regression("1.19")
def test_unknown_methods_are_listed_as_the_docs_spell_them() -> None:
    with pytest.raises(UsageError) as error:
        calibrators.SCALERS.choose("qqqqqqqq")
    assert "focal-temperature" in error.value.fix
    assert "_" not in error.value.fix
    with pytest.raises(UsageError, match="focal-temperture") as error:
        calibrators.SCALERS.choose("focal-temperture")
    assert error.value.fix == "did you mean 'focal-temperature'?"
    with pytest.raises(UsageError) as error:
        metrics.METRICS.choose("classwise-ec")
    assert error.value.fix == "did you mean 'classwise_ece'?"


@pytest.mark.slow
@pytest.mark.regression("1.21")
def test_heat_map_says_what_it_is_of() -> None:
    z, y = logits(200, 3)
    fit = calibrators.fit("focal-temperature:objective=adaece,grid=komisarenko", Predictions.of(z, y))
    [plot] = fit.plots
    assert plot.title.startswith("adaptive ECE over T and gamma")
    assert plot.zlabel == "adaptive ECE"


@pytest.mark.regression("1.21")
def test_a_line_of_one_point_is_seen() -> None:
    pyplot = pytest.importorskip("matplotlib.pyplot")
    from calibcli.core.figure_data import Curve, Plot
    from calibcli.render.figure import panel

    for y, wanted in (([2.0], 1), ([1.0, 2.0], 0), ([1.0, None, 2.0, 3.0], 1), ([1.0, None, 2.0], 2)):
        curve = Curve(label="λmax", kind="line", x=list(range(len(y))), y=y)
        figure, axes = pyplot.subplots()
        panel.draw_curve(axes, curve, "C0", Plot(name="a", curves=[curve]), (0, 1), False)
        dots = [line for line in axes.lines if line.get_marker() == "o"]
        assert sum(len(line.get_xdata()) for line in dots) == wanted
        pyplot.close(figure)
