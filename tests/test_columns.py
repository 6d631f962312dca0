"""The blocked pass against the definitions written out."""

from __future__ import annotations

import numpy as np
import pytest
from populations import values

import calibcli
from calibcli.scores.columns import SMALL, ClassBins, bin_index, columns
from calibcli.scores.from_arrays import checked
from calibcli.scores.histogram import CONFIDENCE, NAMES
from calibcli.scores.predictions import MappedScores, Predictions


def direct(z: np.ndarray, y: np.ndarray) -> dict[str, np.ndarray]:
    z = z.astype(np.longdouble)
    d = z - z.max(axis=1, keepdims=True)
    p = np.exp(d) / np.exp(d).sum(axis=1, keepdims=True)
    rows = np.arange(len(y))
    log_p = np.log(np.where(p > 0, p, 1))
    return {
        "confidence": p.max(axis=1),
        "rest": np.sort(p, axis=1)[:, :-1].sum(axis=1),
        "nll": -(d[rows, y] - np.log(np.exp(d).sum(axis=1))),
        "brier": ((p - np.eye(z.shape[1])[y]) ** 2).sum(axis=1) / (2 if z.shape[1] == 2 else 1),
        "entropy": -(p * log_p).sum(axis=1),
        "predicted": z.argmax(axis=1),
    }


def sample(n: int, k: int, scale: float = 3.0, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    z = rng.standard_normal((n, k)) * scale
    return z, np.where(rng.random(n) < 0.7, z.argmax(axis=1), rng.integers(0, k, n))


@pytest.mark.parametrize(("n", "k"), [(1, 2), (7, 3), (500, 2), (400, 10), (300, 40), (100, 1000)])
@pytest.mark.parametrize("scale", [0.1, 3.0, 60.0])
@pytest.mark.parametrize("shift", [0.0, 1e4, -1e3])
def test_rows_follow_their_definitions(n: int, k: int, scale: float, shift: float) -> None:
    z, y = sample(n, k, scale)
    z = np.round(z * 2**20) / 2**20 + shift  # exact in float64, so that the shift costs nothing
    got = columns(Predictions.of(z, y))
    for name, want in direct(z, y).items():
        np.testing.assert_allclose(getattr(got, name), want.astype(float), rtol=1e-12, atol=1e-17, err_msg=name)


@pytest.mark.parametrize("k", [2, 10, 100])
def test_bulk_float32_rows_are_accurate_to_float32(k: int, monkeypatch: pytest.MonkeyPatch) -> None:
    z, y = sample(3000, k, 4.0)
    z = z.astype(np.float32)
    monkeypatch.setattr("calibcli.scores.columns.SMALL", 0)
    got = columns(Predictions.of(z, y))
    for name, want in direct(z, y).items():
        np.testing.assert_allclose(getattr(got, name), want.astype(float), rtol=3e-6, err_msg=name)


def test_rows_with_large_scores_leave_those_after_them_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("calibcli.scores.softmax.PIECE", 4 * 4 * 40)  # four rows at once
    z, y = sample(40, 40)
    z[[5, 17, 18, 39]] *= 500
    got = columns(Predictions.of(z, y))
    for name, want in direct(z, y).items():
        np.testing.assert_allclose(getattr(got, name), want.astype(float), rtol=1e-12, atol=1e-17, err_msg=name)


@pytest.mark.parametrize("k", [3, 40])
def test_columns_that_are_not_asked_for_stay_empty_and_change_no_other(k: int) -> None:
    z, y = sample(200, k)
    z[0, 1 - y[0]] = -np.inf
    whole = columns(Predictions.of(z, y))
    for names in ((), CONFIDENCE, NAMES[:-1]):
        got = columns(Predictions.of(z, y), names=names)
        for name in NAMES:
            if name in names or (not names and name in CONFIDENCE):  # class tables need these two
                np.testing.assert_array_equal(getattr(got, name), getattr(whole, name))
                continue
            assert not got.has(name)
            with pytest.raises(LookupError, match=f"column {name} was not computed: the traits of the metric must say"):
                getattr(got, name)
    got = columns(Predictions.of(z, y), names=(), class_bins=())
    assert got.n == whole.n
    assert not got.numbers
    np.testing.assert_array_equal(got.predicted, whole.predicted)


def class_sums(p: np.ndarray, y: np.ndarray, how: ClassBins, w: np.ndarray) -> np.ndarray:
    n, k = p.shape
    sums = np.zeros((3, k, how.bins + (how.edges == "torchmetrics")))
    for i in range(n):
        for j in range(k):
            if p[i, j] > how.threshold or how.threshold == 0:
                b = bin_index(p[i, j : j + 1], how.bins, how.edges)[0]
                sums[:, j, b] += w[i] * np.array([1, p[i, j], y[i] == j])
    return sums


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(
    "how",
    [ClassBins(), ClassBins(4, "left"), ClassBins(5, "torchmetrics"), ClassBins(15, "right", 0.02), ClassBins(1)],
    ids=str,
)
@pytest.mark.parametrize("k", [2, 5, 30])
def test_class_tables_follow_their_definition(k: int, how: ClassBins, weighted: bool) -> None:
    z, y = sample(200, k)
    z[0, 0] = 800.0  # probability exactly one
    w = np.random.default_rng(1).random(200) if weighted else np.ones(200)
    got = columns(Predictions.of(z, y, weights=w if weighted else None), class_bins=[how]).classes[how]
    e = np.exp(z - z.max(axis=1, keepdims=True))
    want = class_sums(e / e.sum(axis=1, keepdims=True), y, how, w)
    np.testing.assert_allclose([got.count, got.sum_p, got.sum_y], want, rtol=1e-10, atol=1e-12)


def test_zero_probabilities_are_allowed() -> None:
    got = columns(Predictions.of([[0.0, -np.inf, 0.0], [-np.inf, 1.0, -np.inf], [0.0, -np.inf, 0.0]], [0, 1, 1]))
    np.testing.assert_allclose(got.confidence, [0.5, 1, 0.5])
    np.testing.assert_allclose(got.entropy, [np.log(2), 0, np.log(2)])
    np.testing.assert_allclose(got.nll, [np.log(2), 0, np.inf])
    np.testing.assert_allclose(got.brier, [0.5, 0, 1.5])


def test_ties_go_to_the_lowest_index_and_predicted_overrides() -> None:
    z = [[1.0, 1.0, 0.0], [0.0, 2.0, 2.0]]
    assert columns(Predictions.of(z, [0, 1])).predicted.tolist() == [0, 1]
    got = columns(Predictions.of(z, [0, 1], predicted=np.array([1, 1])))
    assert got.correct.tolist() == [False, True]


@pytest.mark.parametrize("threads", [1, 2, 3, None])
def test_result_does_not_depend_on_threads_or_chunks(threads: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    z, y = sample(5000, 12)
    monkeypatch.setattr("calibcli.scores.predictions.CHUNK_BYTES", 1 << 14)
    one, many = columns(Predictions.of(z, y)), columns(Predictions.of(z, y), threads=threads)
    for name in ("confidence", "nll", "brier", "entropy"):
        assert np.array_equal(getattr(one, name), getattr(many, name))
    for how, table in one.classes.items():
        assert np.array_equal(table.sum_p, many.classes[how].sum_p)


def test_mapped_and_taken_predictions() -> None:
    z, y = sample(100, 4)
    whole = Predictions.of(z, y, slices={"site": np.array(list("ab") * 50)})
    half = whole.mapped(lambda block: block / 2)
    assert isinstance(half.scores, MappedScores)
    np.testing.assert_array_equal(half.logits, z / 2)
    rows = np.array([5, 99, 3])
    for source in (whole, half):
        part = source.take(rows)
        np.testing.assert_array_equal(part.logits, source.logits[rows])
        np.testing.assert_array_equal(part.labels, y[rows])
        assert part.slices["site"].tolist() == ["b", "b", "b"]
    np.testing.assert_array_equal(columns(whole).take(rows).nll, columns(whole.take(rows)).nll)


@pytest.mark.parametrize("k", [2, 6])
def test_condensed_columns_keep_sums_and_squares_of_every_bin(k: int, monkeypatch: pytest.MonkeyPatch) -> None:
    z, y = sample(4000, k)
    whole = columns(Predictions.of(z, y))
    monkeypatch.setattr("calibcli.scores.columns.MANY", 10)
    monkeypatch.setattr("calibcli.scores.predictions.CHUNK_BYTES", 1 << 14)
    few = columns(Predictions.of(z, y))
    assert few.condensed == few.weights.sum() == 4000
    for bins in (1, 10, 15, 20):
        for name in ("confidence", "nll", "brier", "entropy", "correct"):
            for power in (1, 2):
                want = np.bincount(bin_index(whole.confidence, bins), getattr(whole, name) ** power, bins)
                got = np.bincount(
                    bin_index(few.confidence, bins), few.weights * getattr(few, name).astype(float) ** power, bins
                )
                np.testing.assert_allclose(got, want, rtol=1e-7 if name == "confidence" else 1e-9, err_msg=name)
    if k == 2:
        np.testing.assert_allclose((few.weights * few.positive).sum(), whole.positive.sum())
        np.testing.assert_allclose((few.weights * few.labels).sum(), whole.labels.sum())
    np.testing.assert_allclose(few.classes[ClassBins()].sum_p, whole.classes[ClassBins()].sum_p)


@pytest.mark.slow
@pytest.mark.parametrize("k", [20, 100])
def test_votes_lie_on_the_edges_of_bins_in_single_precision_too(k: int) -> None:
    """A label's probability beyond an edge and the class's before it would double their gap."""
    rng = np.random.default_rng(0)
    n = SMALL // k + 1000
    votes = np.stack([np.bincount(v, minlength=k) for v in rng.integers(0, k, (n, 5)) * (rng.random((n, 5)) < 0.6)])
    p = np.maximum(votes / 5, 1e-15)
    y = (p.cumsum(axis=1) > rng.random((n, 1))).argmax(axis=1)
    logs = np.log(p)
    single, double = (columns(Predictions.of(z, y, kind="probabilities")) for z in (logs.astype(np.float32), logs))
    for name in ("count", "sum_p", "sum_y"):
        one, two = (getattr(c.classes[ClassBins()], name) for c in (single, double))
        assert np.abs(one - two).max() < 1e-2 * (name == "sum_p") + 1e-9
    ece = [values(Predictions.of(z, y), ["ece"])["ece"] for z in (logs.astype(np.float32), logs)]
    assert ece[0] == pytest.approx(ece[1], abs=1e-6)


@pytest.mark.parametrize("shift", [0.0, 1e3, -1e3])
def test_the_largest_score_is_looked_for_once(shift: float, monkeypatch: pytest.MonkeyPatch) -> None:
    z, y = sample(200, 50)
    z, searches, argmax = z.astype(np.float32) + np.float32(shift), [], np.argmax
    monkeypatch.setattr(np, "argmax", lambda *args, **how: searches.append(1) or argmax(*args, **how))
    once, private = columns(checked(z, y, {"kind": "logits"})), len(searches)
    public = calibcli.from_arrays(z, y, kind="logits")
    twice = columns(public)
    assert private == 0 < len(searches)
    for name in ("confidence", "nll", "most", "entropy", "predicted"):
        assert np.array_equal(getattr(once, name), getattr(twice, name)), name
    d = z.astype(np.float64) - z.max(axis=1, keepdims=True)
    assert np.allclose(once.most, np.log(np.exp(d).sum(axis=1)) - d.min(axis=1), rtol=1e-12)
    z[:, 7] = 2e3  # whoever owns the memory may change it
    assert (columns(public).predicted == 7).all()
