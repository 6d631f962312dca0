"""CORP, AUC, AURC: against oracles from the definitions, one pair of rows at a time, and scikit-learn's."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import binom
from sklearn.isotonic import IsotonicRegression
from sklearn.metrics import roc_auc_score

import calibcli
from calibcli import metrics
from calibcli.cli.app import main
from calibcli.core.errors import UsageError
from calibcli.core.result import Estimate
from calibcli.metrics.corp import CELLS, Decomposed, Isotonic, pool
from calibcli.metrics.paired import Paired, difference, differences
from calibcli.metrics.registry import METRICS, Sample
from calibcli.metrics.reliability import BinaryOutcomes
from calibcli.scores.columns import columns
from calibcli.scores.predictions import Predictions

PARTS = ("corp_mcb", "corp_dsc", "corp_unc")


def data(seed: int, n: int = 300, k: int = 2, sharp: float = 1.6, digits: int | None = None) -> Predictions:
    """Overconfident by `sharp`; with few digits, many ties."""
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(n, k)) * 2.5
    p = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
    y = (p.cumsum(axis=1) > rng.random((n, 1))).argmax(axis=1)
    z = z * sharp
    return Predictions.of(z if digits is None else np.round(z, digits), y)


def more(p: Predictions, **fields: Any) -> Predictions:
    return Predictions.of(p.scores.read(0, p.n), p.labels, **fields)


def event(p: Predictions, of: str = "positive") -> tuple[np.ndarray, np.ndarray]:
    """Probability and outcome, of the event or of the top label."""
    z = p.scores.read(0, p.n)
    q = np.exp(z - z.max(axis=1, keepdims=True))
    q /= q.sum(axis=1, keepdims=True)
    return (q[:, 1], p.labels == 1) if of == "positive" else (q.max(axis=1), q.argmax(axis=1) == p.labels)


def one(p: Predictions, spec: str, **how: Any) -> Estimate:
    (found,) = metrics.measure(p, [spec], **how)
    return found


def min_max(p: np.ndarray, y: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Isotonic regression by its formula: max over starts a <= i of the min over ends b >= i of the mean of a..b."""
    values = np.unique(p)
    weight = [float(w[p == v].sum()) for v in values]
    hits = [float(w[p == v] @ y[p == v]) for v in values]
    n = len(values)
    mean = [[sum(hits[a : b + 1]) / sum(weight[a : b + 1]) if a <= b else 0 for b in range(n)] for a in range(n)]
    fit = [max(min(mean[a][i:]) for a in range(i + 1)) for i in range(n)]
    return np.array(fit)[np.searchsorted(values, p)]


def parts(p: np.ndarray, y: np.ndarray, fit: np.ndarray, w: np.ndarray, log: bool) -> tuple[float, float, float]:
    def score(q: Any) -> float:
        own = np.where(y, q, 1 - q)
        return float(np.average(-np.log(own) if log else (1 - own) ** 2, weights=w))

    rate = np.full(len(p), np.average(y, weights=w))
    return score(p) - score(fit), score(rate) - score(fit), score(rate)


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("of", ["positive", "top"])
@pytest.mark.parametrize("weighted", [False, True])
def test_corp_is_the_formula_of_isotonic_regression(log: bool, of: str, weighted: bool) -> None:
    p = data(3, 90, digits=1)
    w = np.random.default_rng(0).uniform(0.2, 3, p.n) if weighted else np.ones(p.n)
    p = more(p, weights=w) if weighted else p
    c, y = event(p, of)
    fits = {"own": min_max(np.round(c, 12), y, w)}
    fits["scikit-learn"] = IsotonicRegression().fit(np.round(c, 12), y.astype(float), w).predict(np.round(c, 12))
    options = f":of={of}" + (",score=log" if log else "")
    found = [one(p, name + options).value for name in PARTS]
    for fit in fits.values():
        assert found == pytest.approx(parts(c, y, fit, w, log), abs=1e-10)
    view = Sample.of(columns(p)).view(of)  # type: ignore[arg-type]
    assert view.memoized(Isotonic.of).fitted == pytest.approx(fits["own"], abs=1e-10)


@pytest.mark.parametrize("k", [2, 7])
def test_parts_add_up_to_the_score(k: int) -> None:
    p = data(1, 500, k)
    mcb, dsc, unc = (one(p, name).value for name in PARTS)
    assert mcb - dsc + unc == pytest.approx(one(p, "brier" if k == 2 else "brier_top").value, abs=1e-12)  # type: ignore[operator]
    if k == 2:
        mcb, dsc, unc = (one(p, f"{name}:score=log").value for name in PARTS)
        assert mcb - dsc + unc == pytest.approx(one(p, "nll").value, abs=1e-12)  # type: ignore[operator]


def test_pooling_at_once_one_by_one_and_beside_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(5)
    weight, hits = rng.uniform(0.1, 2, 400), rng.random(400) * np.linspace(0.2, 1.5, 400)
    at_once = pool(weight, hits)
    assert at_once.spread(400) == pytest.approx(
        IsotonicRegression().fit(np.arange(400), hits / weight, weight).predict(np.arange(400))
    )
    both = pool(np.tile(weight, 2), np.tile(hits, 2), np.arange(800) % 400 == 0)
    assert both.spread(800) == pytest.approx(np.tile(at_once.spread(400), 2))
    monkeypatch.setattr("calibcli.metrics.corp.ROUNDS", 1)
    assert pool(weight, hits).start.tolist() == at_once.start.tolist()
    again = pool(np.tile(weight, 2), np.tile(hits, 2), np.arange(800) % 400 == 0)
    assert again.start.tolist() == both.start.tolist()
    late = np.append(np.arange(300.0) / 300, -1e4)  # one pair a round, until all are one block
    assert pool(np.ones(301), late).start.tolist() == [0]


@pytest.mark.parametrize("n", [200, 5000])
@pytest.mark.parametrize("score", ["brier", "log"])
def test_null_level_is_what_calibrated_labels_give(n: int, score: str) -> None:
    """Simulated from runs of rows, against drawing every row; there are more rows than runs in the second case."""
    assert (n > CELLS) == (n == 5000)
    p = data(2, n)
    e = one(p, f"corp_mcb:score={score}")
    c, _ = event(p)
    rng = np.random.default_rng(9)
    draws = []
    for _ in range(40):
        y = rng.random(n) < c
        fit = IsotonicRegression().fit_transform(c, y.astype(float))
        draws.append(parts(c, y, fit, np.ones(n), False)[0] if score == "brier" else log_part(c, y, fit))
    error = 5 * np.std(draws) / math.sqrt(40)
    assert e.null == pytest.approx(np.mean(draws), abs=error)
    assert np.mean(draws) < e.null_high < max(draws) + error  # type: ignore[operator]


def log_part(c: np.ndarray, y: np.ndarray, fit: np.ndarray) -> float:
    own, best = np.where(y, c, 1 - c), np.where(y, fit, 1 - fit)
    return float(np.mean(np.log(best) - np.log(own)))


def pairs(c: np.ndarray, y: np.ndarray, w: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
    """AUC and DeLong's components, pair by pair."""
    above = (c[y][:, None] > c[~y]) + 0.5 * (c[y][:, None] == c[~y])
    v10, v01 = above @ w[~y] / w[~y].sum(), w[y] @ above / w[y].sum()
    return float(w[y] @ v10 / w[y].sum()), v10, v01


@pytest.mark.parametrize("spec", ["auc", "failure_auroc"])
@pytest.mark.parametrize("digits", [None, 0])
def test_auc_and_its_error_are_delongs(spec: str, digits: int | None) -> None:
    p = data(4, 200, digits=digits)
    c, y = event(p, "positive" if spec == "auc" else "top")
    c = np.round(c, 12)
    value, v10, v01 = pairs(c, y, np.ones(p.n))
    e = one(p, spec)
    assert e.value == pytest.approx(value, abs=1e-12)
    assert e.value == pytest.approx(roc_auc_score(y, c), abs=1e-10)
    assert e.se == pytest.approx(math.sqrt(v10.var(ddof=1) / len(v10) + v01.var(ddof=1) / len(v01)), rel=1e-10)


@pytest.mark.parametrize("expected", [0.5, 1.8, 2.5, 4])
def test_the_bounds_of_an_auc_that_few_rows_lower_are_those_of_a_count(expected: float) -> None:
    """Rows are ranked right but for a few of either outcome, which are ranked last: their number is binomial."""
    n, most = 500, 18
    share = expected / (2 * n)
    chance, truth, beyond = binom.pmf(np.arange(most), n, share), (1 - share) ** 2, [0.0, 0.0]
    y = np.repeat([1, 0], n)
    for a in range(most):
        for b in range(a, most):
            weight = chance[a] * chance[b] * (1 if a == b else 2)
            if weight < 1e-5:
                continue
            p = np.concatenate([np.full(n - a, 0.9), np.full(a, 0.001), np.full(n - b, 0.1), np.full(b, 0.999)])
            e = one(Predictions.of(np.stack([1 - p, p], axis=1), y, kind="probs"), "auc", level=0.9)
            assert e.low is not None
            assert e.high is not None
            beyond[0] += weight * (e.high < truth)
            beyond[1] += weight * (e.low > truth)
    assert max(beyond) <= 0.05  # 9 to 11 % with the score form alone


def test_auc_with_weights_and_counts() -> None:
    p = data(4, 200, digits=0)
    c, y = event(p)
    w = np.random.default_rng(1).integers(0, 4, p.n).astype(float)
    e = one(more(p, weights=w), "auc")
    assert e.value == pytest.approx(roc_auc_score(y, np.round(c, 12), sample_weight=w), abs=1e-10)
    rows = np.repeat(np.arange(p.n), w.astype(int))
    for spec in ("auc", "failure_auroc", "aurc", *PARTS):
        repeated, counted = one(p.take(rows), spec), one(more(p, weights=w, weight_kind="count"), spec)
        assert counted.value == pytest.approx(repeated.value, rel=1e-9)
        assert counted.high == pytest.approx(repeated.high, rel=1e-9)
        if spec not in ("corp_mcb", "corp_dsc"):  # their folds hold rows, which are others
            assert counted.low == pytest.approx(repeated.low, rel=1e-9)


def test_groups_are_one_draw() -> None:
    """Each row three times in a group of its own: the intervals are about those of the rows once, not a √3 shorter."""
    p = data(6, 400)
    rows = np.repeat(np.arange(p.n), 3)
    grouped = Predictions.of(p.scores.read(0, p.n)[rows], p.labels[rows], groups=rows)
    for spec in ("auc", "failure_auroc", "aurc", *PARTS):
        single, three = one(p, spec), one(grouped, spec)
        assert three.value == pytest.approx(single.value, rel=2e-2)
        wide = [e.high - e.low for e in (single, three)]  # type: ignore[operator]
        assert 0.9 * wide[0] < wide[1] < 1.6 * wide[0], spec
    few = Predictions.of(p.scores.read(0, p.n), p.labels, groups=np.arange(p.n) % 6)
    for spec in ("auc", "failure_auroc", "aurc", *PARTS):
        e = one(few, spec)
        assert e.low is None
        assert e.value is not None
        assert "bounds need 10" in e.reason


def test_obuchowski_by_pairs() -> None:
    p = data(8, 240, digits=1)
    c, y = event(p)
    groups = np.arange(p.n) // 4
    value, v10, v01 = pairs(np.round(c, 12), y, np.ones(p.n))
    part = np.zeros(p.n)
    part[y], part[~y] = (v10 - value) / y.sum(), (v01 - value) / (~y).sum()
    sums = np.bincount(groups, part)
    assert one(more(p, groups=groups), "auc").se == pytest.approx(math.sqrt(sums @ sums * 60 / 59), rel=1e-10)


def aurc(c: np.ndarray, wrong: np.ndarray) -> float:
    """Each coverage in turn; of ties the mean of many orders."""
    found = []
    for seed in range(400 if len(np.unique(c)) < len(c) else 1):
        mixed = np.random.default_rng(seed).permutation(len(c))
        order = mixed[np.argsort(-c[mixed], kind="stable")]
        found.append(np.mean(np.cumsum(wrong[order]) / np.arange(1, len(c) + 1)))
    return float(np.mean(found))


def test_aurc_by_coverages() -> None:
    p = data(2, 150, 5)
    c, y = event(p, "top")
    assert one(p, "aurc").value == pytest.approx(aurc(c, ~y), abs=1e-12)
    p = data(2, 60, 3, digits=0)
    c, y = event(p, "top")
    assert one(p, "aurc").value == pytest.approx(aurc(np.round(c, 12), ~y), rel=0.02)


@pytest.mark.slow
def test_errors_of_aurc_are_the_jackknifes() -> None:
    p = data(2, 400, 5)
    left = [one(p.take(np.delete(np.arange(p.n), i)), "aurc").value for i in range(p.n)]
    jackknife = math.sqrt((p.n - 1) ** 2 / p.n * np.var(left, ddof=1))  # type: ignore[arg-type]
    assert one(p, "aurc").se == pytest.approx(jackknife, rel=0.05)


def pairwise(p: Predictions, q: Predictions, spec: str) -> Paired | str | None:
    choice = METRICS.choose(spec)
    return difference(Sample.of(columns(p)), Sample.of(columns(q)), choice, 0.95)


def test_paired_differences_are_delongs_test() -> None:
    p = data(4, 300)
    z = p.scores.read(0, p.n)
    q = Predictions.of(z + np.random.default_rng(0).normal(size=z.shape) * 1.5, p.labels)
    (c, y), (d, _) = event(p), event(q)
    a, a10, a01 = pairs(c, y, np.ones(p.n))
    b, b10, b01 = pairs(d, y, np.ones(p.n))
    found = pairwise(p, q, "auc")
    assert isinstance(found, Paired)
    variance = np.var(b10 - a10, ddof=1) / len(a10) + np.var(b01 - a01, ddof=1) / len(a01)
    assert (found.value, found.se) == pytest.approx((b - a, math.sqrt(variance)), rel=1e-9)
    assert found.low < found.value < found.high
    assert isinstance(pairwise(p, q, "failure_auroc"), Paired)
    assert isinstance(pairwise(p, q, "aurc"), Paired)
    assert pairwise(p, Predictions.of(z / 3, p.labels), "auc") == "no row changes"  # a temperature changes no rank


@pytest.mark.parametrize("spec", ["auc", "failure_auroc"])
def test_nothing_misranked_is_not_certain(spec: str) -> None:
    z = np.array([[0.0, x] for x in np.linspace(-8, 8, 60)])
    y = (z[:, 1] > 0).astype(int)
    if spec == "failure_auroc":
        y[25:35] = 1 - y[25:35]  # the least confident are wrong, and only they
    e = one(Predictions.of(z, y), spec)
    assert e.value == 1
    assert e.high == 1
    assert 0.6 < e.low < 0.93  # type: ignore[operator]


def test_what_is_refused_by_name() -> None:
    many, two = data(0, 100, 4), data(0, 100)
    with pytest.raises(UsageError, match="auc is for two classes, these are 4"):
        one(many, "auc")
    names = {e.name for e in metrics.measure(many, ["all"])}
    assert "auc" not in names
    assert "failure_auroc" in names
    c, right = event(two, "top")
    sure = Predictions.of(np.log(np.stack([1 - c, c], axis=1)), right.astype(int), top_only=True)
    with pytest.raises(UsageError, match="auc needs the probabilities of every class"):
        one(sure, "auc")
    for spec in ("failure_auroc", "aurc", *PARTS, "corp_mcb:score=log"):
        top = spec if spec in ("failure_auroc", "aurc") else f"{spec}{',' if ':' in spec else ':'}of=top"
        assert one(sure, spec).value == pytest.approx(one(two, top).value, abs=1e-9)
    alone = Predictions.of(np.array([[0.0, 1.0], [0.0, 2.0]]), np.array([1, 1]))
    assert "nothing to rank" in one(alone, "auc").reason
    assert "of one outcome, and bounds need 10" in one(data(0, 15), "auc").reason


def test_impossible_labels() -> None:
    z = np.array([[0.0, -np.inf], *[[0.0, x] for x in np.linspace(-3, 3, 40)]])
    p = Predictions.of(z, np.array([1, *[0, 1] * 20]), kind="probabilities")
    e = one(p, "corp_mcb:score=log")
    assert e.value is None
    assert "probability 0" in e.reason
    assert one(p, "corp_mcb").high is not None
    assert one(p, "corp_dsc:score=log").high is not None


@pytest.mark.parametrize(
    "spec", ["auc", "failure_auroc", "aurc", "corp_mcb", "corp_dsc", "corp_unc", "corp_mcb:score=log"]
)
def test_hostile_rows_have_a_number_or_a_reason(spec: str) -> None:
    """One row, one outcome, one probability, every row the same, every confidence 1."""
    for z, y in (
        (np.zeros((1, 2)), [1]),
        (np.zeros((30, 2)), [0, 1] * 15),
        (np.zeros((30, 2)), [1] * 30),
        (np.tile([0.0, 800.0], (30, 1)), [1] * 29 + [0]),
        (np.tile([0.0, 40.0], (30, 1)), [1] * 29 + [0]),
    ):
        e = one(Predictions.of(np.array(z), np.array(y)), spec)
        assert e.value is not None or e.reason
        assert (e.low is not None and e.high is not None) or e.reason
        assert not e.problem()


def test_differences_of_a_scaler_are_as_before() -> None:
    p = data(1)
    q = Predictions.of(p.scores.read(0, p.n) / 1.5, p.labels)
    assert [e.name for e in differences(Sample.of(columns(p)), Sample.of(columns(q)))] == [
        "nll",
        "ece",
        "brier",
        "accuracy",
    ]


def test_each_class_has_its_parts() -> None:
    from calibcli.metrics.report import ReportOptions, report

    p = data(3, 400, 4)
    w = np.random.default_rng(0).uniform(0.5, 2, p.n)
    found = report(more(p, weights=w), ReportOptions(specs=["accuracy"], per_class=True, diagram=False))
    [table] = [t for t in found.tables if t.name == "per_class"]
    z = p.scores.read(0, p.n)
    q = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
    for k, row in enumerate(table.rows):
        two = Predictions.of(np.log(np.stack([1 - q[:, k], q[:, k]], axis=1)), (p.labels == k).astype(int), weights=w)
        wanted = [one(two, name).value for name in PARTS[:2]]
        assert [row[table.columns.index(part)] for part in ("mcb", "dsc")] == pytest.approx(wanted, rel=1e-9)


def test_gates_on_rows_slices_and_stored_results(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    p = data(0, 4000)
    site = np.where(np.arange(p.n) % 2, "a", "b")
    file, stored = str(tmp_path / "t.npz"), str(tmp_path / "r.json")
    np.savez(file, logits=p.scores.read(0, p.n), labels=p.labels, site=site)
    mcb, auc = (one(p, spec) for spec in ("corp_mcb", "auc"))
    passes = ["--max", f"corp_mcb={2 * mcb.high}", "--min", f"auc={auc.low - 0.05}"]  # type: ignore[operator]
    fails = ["--max", f"corp_mcb={mcb.low / 2}", "--min", f"auc={(auc.high + 1) / 2}"]  # type: ignore[operator]
    specs = [part for name in ("corp_mcb", "auc", "aurc", "failure_auroc") for part in ("-m", name)]
    assert main(["metrics", file, *specs, "-o", stored, "-q"]) == 0
    for source in (file, stored):
        assert main(["check", source, *passes, "-q"]) == 0
        assert main(["check", source, *fails, "-q"]) == 1
    assert main(["check", file, *passes, "--by", "site", "-q"]) == 0
    assert main(["metrics", file, *specs, "--by", "site", "-q"]) == 0
    capsys.readouterr()
    assert main(["check", file, "--baseline", file, "--margin", "auc=0.01"]) == 2
    assert "auc is not compared with a baseline row by row" in capsys.readouterr().err
    z = np.random.default_rng(0).normal(size=(300, 3))
    np.savez(file, logits=z, labels=z.argmax(axis=1))
    assert main(["check", file, "--min", "auc=0.9"]) == 2
    assert "auc is for two classes, these are 3" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("rate", [0.5, 0.53])
def test_uncertainty_of_a_rate_near_one_half(rate: float) -> None:
    """Exactly, over the binomial: too high a rate and too low a one both make the score too small."""
    n, true = 60, rate * (1 - rate)
    below = above = 0.0
    for k in range(n + 1):
        if (chance := float(binom.pmf(k, n, rate))) > 1e-4:
            p = Predictions.of(np.tile([0.4, 0.6], (n, 1)), np.arange(n) < k, kind="probabilities")
            bounds = one(p, "corp_unc", level=0.9)
            assert bounds.low is not None
            assert bounds.high is not None
            assert bounds.low <= float(bounds) <= bounds.high
            below, above = below + chance * (bounds.high < true), above + chance * (bounds.low > true)
    assert 0.01 < max(below, above) <= 0.05


def test_upper_bound_of_aurc_with_few_errors() -> None:
    """Errors at random, where the dear ones are easily not seen: 4 errors are expected, or 10."""
    rng, n = np.random.default_rng(4), 200
    scores = np.stack([np.linspace(0.4, 0.01, n), np.linspace(0.6, 0.99, n)], axis=1)
    for rate, runs in ((0.02, 150), (0.05, 150)):
        high = [
            one(Predictions.of(scores, rng.random(n) >= rate, kind="probabilities"), "aurc", level=0.9).high
            for _ in range(runs)
        ]
        assert sum(h is not None and h < rate for h in high) <= 0.05 * runs


@pytest.mark.parametrize(("said", "errors"), [(0.99, 0.001), (0.98, 0.005), (0.999, 0.01)])
@pytest.mark.parametrize("score", ["brier", "log"])
def test_upper_bound_of_miscalibration_near_calibration(said: float, errors: float, score: str) -> None:
    """Of constant scores, exactly: where rows look calibrated by chance, neither gain nor its variance is seen."""
    n, right = 500, 1 - errors
    true = (said - right) ** 2
    if score == "log":
        true = right * math.log(right / said) + errors * math.log(errors / (1 - said))
    wrong = 0.0
    for k in range(20):
        hit = np.arange(n) >= k
        view = BinaryOutcomes(np.full(n, said), np.full(n, 1 - said), hit, None, False, None)
        high = Decomposed(view, score, "mcb").interval(0.95).high  # type: ignore[arg-type]
        assert high is not None
        wrong += float(binom.pmf(k, n, errors)) * (high < true)
    assert wrong <= 0.05


def test_rows_without_weight_count_for_nothing() -> None:
    """Not even where their label had probability 0."""
    p, y = np.array([[1.0, 0.0], [0.6, 0.4], [0.3, 0.7]] * 20), np.array([0, 1, 1] * 20)
    w, wrong = np.ones(60), np.where(np.arange(60) == 0, 1, y)
    w[0], w[1] = 0.0, 2.0
    with np.errstate(divide="ignore"):
        z = np.log(p)
    for kind in ("sampling", "count"):
        for spec in ("nll", "corp_mcb:score=log", "brier", "ece"):
            with_it = Predictions.of(z, wrong, weights=w, weight_kind=kind)
            without = Predictions.of(z[1:], y[1:], weights=w[1:], weight_kind=kind)
            assert one(with_it, spec).value == pytest.approx(one(without, spec).value, abs=1e-12)


def test_recalibration_by_other_rows_is_never_sure() -> None:
    """Ten misses below ten hits: each fold leaves eight of either, whose ends lie half a row within."""
    p = np.linspace(0.05, 0.95, 20)
    view = BinaryOutcomes(p, 1 - p, np.arange(20) >= 10, None, False, None, seed=0)
    fitted = Isotonic.of(view).left_out
    assert (fitted.min(), fitted.max()) == pytest.approx((0.5 / 9, 1 - 0.5 / 9))


@pytest.mark.parametrize("kind", [None, "count"])
def test_what_ranks_alone_tell_does_not_depend_on_the_scale_of_logits(kind: Any) -> None:
    """Ties are told by odds everywhere: at 40 times the logits most probabilities are within 1e-12 of 0 or 1."""
    rng = np.random.default_rng(0)
    z = rng.standard_normal(900) * 3
    y = (rng.random(900) < 1 / (1 + np.exp(-z))).astype(int)
    more: dict[str, Any] = {"weights": np.ones(900), "weight_kind": kind} if kind else {}
    names = "corp_dsc", "corp_dsc:score=log", "auc", "aurc"
    found = [
        [e.value for e in calibcli.measure(np.stack([0 * z, s * z], 1), y, *names, **more).estimates] for s in (1, 40)
    ]
    assert found[1] == pytest.approx(found[0], rel=1e-9)
