"""Parts of the rows, measured apart and merged, say what all rows say together."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import pickle
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import evals_written as written
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import calibcli
from calibcli import Accumulator
from calibcli.cli.app import main
from calibcli.core.errors import Exit, InputError, UsageError
from calibcli.core.registries import Choice, Entry
from calibcli.core.result import Estimate
from calibcli.metrics import METRICS
from calibcli.metrics import _histogram_error as histogram_error
from calibcli.metrics.intervals import MeanOf
from calibcli.metrics.partial_states import TELLING
from calibcli.metrics.registry import NO_TRAITS, Sample
from calibcli.scores import histogram
from calibcli.scores.columns import columns
from calibcli.scores.histogram import CELLS, PLACES, HistogramCells, place_of
from calibcli.scores.predictions import Predictions

EXACT = (
    *("accuracy", "nll", "brier", "brier_top", "mean_confidence", "confidence_gap", "classwise_ece"),
    *("entropy", "entropy_correct", "entropy_wrong", "nll_correct", "nll_wrong"),
    *("ece", "oce", "uce", "ece_l2", "mce", "overconfidence_error", "ece:bins=20", "ece:bins=100"),
    *("ece:edges=left", "ece:edges=torchmetrics", "mce:edges=left", "ece:of=top"),
    *(
        "observed_expected",
        "corp_unc",
        "high_confidence_share",
        "high_confidence_accuracy",
        "high_confidence_share:tau=0.8",
    ),
)
BOUNDED = (
    *("adaece", "adaece:bins=40", "adaece:method=split", "adaece:method=whole", "ece2_debiased"),
    *(
        "failure_auroc",
        "aurc",
        "corp_mcb",
        "corp_dsc",
        "corp_dsc:score=log",
        "cutoff_error",
        "cutoff_loss",
        "ece2_debiased:method=split-merge",
        "smece",
        "smece:sigma=0.05",
        "kde_ece",
        "mmce",
        "mmce:weighted=true",
    ),
    *("mmce:square=true", "spiegelhalter_z", "cox_slope", "cox_intercept", "ece:bins=11", "ece:bins=1000"),
    *("oce:bins=37", "uce:bins=37", "ece_l2:bins=37", "mce:bins=37", "overconfidence_error:bins=37"),
    *("high_confidence_share:tau=0.987654", "high_confidence_accuracy:tau=0.987654"),
)
UNKNOWN = (
    "ece_sweep",
    "corp_mcb:score=log",
    "smece:variant=relplot",
    "calibration_p:bins=17",
    "calibration_p:statistic=mmce",
)
KINDS = ("usual", "saturated", "overconfident", "edges", "constant", "rare")


def rows(kind: str, n: int, k: int, seed: int) -> tuple[Any, Any]:
    """Scores (n, k) and labels that come from them, or from half of them."""
    rng = np.random.default_rng([seed, k])
    if kind == "edges":  # probabilities on edges of bins, many of them the same
        p = np.full((n, k), 0.0)
        p[:, 0] = rng.choice([0.5, 0.6, 0.8, 0.9, 0.99, 1 / 3, 14 / 15, 1.0], n)
        p[:, 1:] = ((1 - p[:, 0]) / (k - 1))[:, None]
        z = np.log(np.maximum(p, 1e-15))
    elif kind == "rare":
        z = np.zeros((n, k))
        z[:, 0] = rng.normal(9, 1.5, n)
    else:
        z = rng.normal(0, {"usual": 2, "saturated": 30, "overconfident": 4, "constant": 0}[kind], (n, k))
        z[:, 0] += kind == "constant"
    q = z / 2 if kind == "overconfident" else z
    p = np.exp(q - q.max(axis=1, keepdims=True))
    y = (p.cumsum(axis=1) >= rng.random((n, 1)) * p.sum(axis=1, keepdims=True)).argmax(axis=1)
    return z, y


@st.composite
def splits(draw: st.DrawFn, n: int) -> list[list[int]]:
    """Rows in any order, cut into parts of at least TELLING rows or fewer."""
    order = np.random.default_rng(draw(st.integers(0, 99))).permutation(n)
    cuts = sorted(draw(st.lists(st.integers(1, n - 1), max_size=6)))
    return [part.tolist() for part in np.split(order, cuts) if len(part)]


def nested(parts: Sequence[Accumulator], draw: Callable[[int], int]) -> Accumulator:
    """Merged two at a time, in any order."""
    left = list(parts)
    while len(left) > 1:
        a = left.pop(draw(len(left)))
        b = left.pop(draw(len(left)))
        left.append(pickle.loads(pickle.dumps(a)).merge(b))
    return left[0]


def agree(found: Any, wanted: Any, specs: Sequence[str]) -> None:
    for spec in specs:
        got, want = found[spec], wanted[spec]
        if want.value is None:
            assert got.value is None, spec
            continue
        error = got.detail.get(histogram_error.ERROR, 0.0)
        assert error == 0 or spec not in EXACT, spec
        assert got.value is not None, (spec, got.reason)
        assert abs(got.value - want.value) <= max(error, 1e-12 * max(1, abs(want.value))), (spec, error)
        assert got.n == want.n, spec


@given(st.data())
@settings(max_examples=12, deadline=None)
def test_merged_parts_are_the_file(data: st.DataObject) -> None:
    kind, k = data.draw(st.sampled_from(KINDS)), data.draw(st.sampled_from((2, 3, 10)))
    n = data.draw(st.integers(2, 600))
    z, y = rows(kind, n, k, data.draw(st.integers(0, 99)))
    specs = [s for s in (*EXACT, *BOUNDED) if s not in UNKNOWN]
    wanted = calibcli.measure(z, y, *specs, kind="logits")
    parts = [Accumulator(kind="logits").update(z[i], y[i], part=str(i)) for i in data.draw(splits(n))]
    found = nested(parts, lambda size: data.draw(st.integers(0, size - 1))).result(*specs)
    agree(found, wanted, specs)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("k", [2, 10])
def test_merged_parts_are_the_file_where_both_are_large(kind: str, k: int) -> None:
    """Beyond 4,096 rows smooth errors spread them over cells of their own."""
    z, y = rows(kind, 5000, k, 5)
    wanted = calibcli.measure(z, y, *EXACT, *BOUNDED, kind="logits")
    parts = [Accumulator(kind="logits").update(z[i::7], y[i::7], part=str(i)) for i in range(7)]
    agree(parts[3].merge(*parts[:3], *parts[4:]).result(*EXACT, *BOUNDED), wanted, (*EXACT, *BOUNDED))


@pytest.mark.parametrize("k", [2, 3])
def test_few_rows_have_ranks_and_blocks(k: int) -> None:
    """Few of sixty rows share a cell: what depends on their order is then as good as exact."""
    z, y = rows("usual", 60, k, 1)
    specs = ("aurc", "corp_mcb", "corp_dsc", "corp_mcb:score=log", "corp_dsc:score=log")
    found = Accumulator(kind="logits").update(z[:30], y[:30]).merge(Accumulator(kind="logits").update(z[30:], y[30:]))
    result = found.result(*specs)
    agree(result, calibcli.measure(z, y, *specs, kind="logits"), specs)
    assert all(result[spec].detail.get(histogram_error.ERROR, 0.0) < 1e-3 for spec in specs)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["usual", "saturated"])
def test_a_thousand_classes(kind: str) -> None:
    z, y = rows(kind, 1500, 1000, 1)
    wanted = calibcli.measure(z, y, *EXACT, *BOUNDED)
    parts = [Accumulator().update(z[i::4], y[i::4]) for i in range(4)]
    agree(parts[1].merge(parts[3], parts[0].merge(parts[2])).result(*EXACT, *BOUNDED), wanted, (*EXACT, *BOUNDED))


def test_every_metric_is_exact_bounded_or_without_a_value() -> None:
    """A metric that nothing is said of has no value, rather than one of unknown error."""
    z, y = rows("overconfident", 2000, 3, 0)
    found = Accumulator().update(z, y).result("all", *UNKNOWN)
    shown = {e.name for e in found.estimates} & set(METRICS.entries)
    assert len(shown) > 30
    for spec in shown:
        assert (found[spec].value is not None) == (spec not in UNKNOWN), f"{spec}: condensed=, or a line in UNKNOWN"
    for spec in UNKNOWN:
        assert found[spec].value is None
        assert "do not tell it" in found[spec].reason


MEANS = {
    "square": (lambda c: c.confidence**2, True),
    "right": (lambda c: c.correct, True),
    "nll": (lambda c: 3 * c.nll - c.brier**2, True),
    "within a cell": (lambda c: c.confidence >= 0.99 + 0.3 / CELLS, False),
    "product": (lambda c: c.confidence * c.nll, False),
    "other product": (lambda c: c.brier * c.entropy, False),
    "odds": (lambda c: np.log(c.confidence / c.rest), False),
    "class": (lambda c: c.predicted == 0, False),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MEANS)
def test_a_mean_is_exact_where_it_does_not_matter_where_in_its_cell_a_row_lies(name: str) -> None:
    """A metric that says nothing of merging: known by construction, or not at all."""
    values, exact = MEANS[name]
    z, y = rows("overconfident", 60_000, 3, 2)
    state = Accumulator(kind="logits").update(z[:30_000], y[:30_000]).update(z[30_000:], y[30_000:])._state
    assert state is not None
    merged = Sample.of(state.measured()[0])
    whole = Sample.of(columns(Predictions.of(z, y), class_bins=()))
    choice = Choice(Entry("mean", lambda sample: MeanOf(sample, np.asarray(values(sample.columns))), NO_TRAITS), {})
    [e] = histogram_error.stated(merged, [choice], [Estimate(name="mean", value=float(choice(merged)))])
    assert (e.value is not None) == exact
    if e.value is not None:
        assert e.value == pytest.approx(float(choice(whole)), rel=1e-12)


def test_the_most_that_condensing_changes_in_closed_form() -> None:
    """A row that crosses an edge takes its s|r| from one bin to another; a smoothed error bends with its kernel."""

    def most(metric: str, value: float = 0.5, **options: Any) -> float | None:
        bound: histogram_error.Bound = METRICS.entries[metric].traits.condensed
        return bound(cast(histogram_error.PlacedRows, cut), options, value)

    edges = np.array([0.01, 0.02, 0.0]), np.array([0.05, 0.03, 0.0])
    few = SimpleNamespace(n=100)
    cut = SimpleNamespace(cut_by_width=lambda bins: edges, variance=1e-4, sample=few, view=few)
    for metric in ("ece", "oce", "uce"):
        assert most(metric, bins=4) == pytest.approx(2 * 0.03)
    assert most("overconfidence_error", bins=4) == pytest.approx(2 * 0.03 + 4 * 0.08)
    assert most("ece_l2", bins=4) == pytest.approx((4 * 0.03 + 2 * 0.08) ** 0.5)
    bend, slope = 4 / math.sqrt(2 * math.pi * math.e), math.sqrt(2 / math.pi)  # ∫|K''| and ∫|K'| of the normal density
    for sigma in (0.1, 0.5):
        expected = 1e-4 * (2 * slope / sigma + bend / sigma**2)
        assert most("smece", variant="exact", sigma=sigma) == pytest.approx(expected, rel=1e-3)
    assert most("smece", variant="grid", sigma=0.1) is None


def test_bounds_of_merged_rows_are_those_of_the_file() -> None:
    """Intervals as well, but for what they take from quantiles of rows."""
    z, y = rows("overconfident", 4000, 5, 2)
    specs = ("accuracy", "brier", "brier_top", "mean_confidence", "confidence_gap", "ece", "ece_l2", "smece", "mmce")
    wanted = calibcli.measure(z, y, *specs, "nll")
    found = Accumulator().update(z[:1500], y[:1500]).update(z[1500:], y[1500:]).result(*specs, "nll")
    for spec in specs:
        assert found[spec].low == pytest.approx(wanted[spec].low, rel=1e-6), spec
        assert found[spec].high == pytest.approx(wanted[spec].high, rel=1e-6), spec
    assert found["nll"].low == pytest.approx(wanted["nll"].low, rel=1e-9)
    assert found["nll"].high == pytest.approx(wanted["nll"].high, rel=1e-3)


def ends_by(at: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The least and the largest of the values in each place."""
    order = np.argsort(at, kind="stable")
    starts = np.flatnonzero(np.diff(at[order], prepend=-1))
    return np.minimum.reduceat(values[order], starts), np.maximum.reduceat(values[order], starts)


def test_cells_do_not_cross_edges() -> None:
    """Every row lies in a place that no edge of a usual number of bins divides; an edge is a place of its own."""
    rng = np.random.default_rng(0)
    rest = np.concatenate([rng.random(20_000) / 2, 10 ** rng.uniform(-40, -1, 20_000), np.arange(1, 30) / 30])
    confidence = 1 - rest
    at = place_of(confidence, rest)
    assert 0 <= at.min() <= at.max() < PLACES
    order = np.argsort(-rest, kind="stable")
    inside = at[order][at[order] < PLACES // 2]
    assert (np.diff(inside) >= 0).all()  # places rise with the confidence
    for bins in (10, 15, 20, 100):
        for edges in ("left", "right"):
            least, most = ends_by(at, histogram.bin_index(confidence, bins, edges))
            assert (least == most).all()
    least, most = ends_by(at[np.isin(at, at[rest < 2.0**-12])], rest[np.isin(at, at[rest < 2.0**-12])])
    assert (most <= least * 2 ** (1 / histogram.STEPS) * (1 + 1e-9)).all()
    assert CELLS % 15 == CELLS % 20 == CELLS % 100 == 0


def test_rows_of_a_cell_stay_in_it() -> None:
    """However skewed: two rows with the mean and the variance of all, within the interval."""
    rest = np.r_[np.full(1000, 0.5 - 0.4 / CELLS), 0.5 - 0.999 / CELLS]
    c = 1 - rest
    out = dict.fromkeys(histogram.NAMES, c) | {"rest": rest}
    cells = HistogramCells(3)
    cells.add(out, np.zeros(1001, np.int64), np.zeros(1001, np.int64))
    made = cells.columns()
    w, x = made["weights"], made["numbers"]["confidence"]
    assert len(x) == 2
    assert w @ x == pytest.approx(c.sum(), rel=1e-13)
    assert w @ x**2 == pytest.approx((c**2).sum(), rel=1e-13)
    assert 0.5 <= x.min() < x.max() <= 0.5 + 1 / CELLS


def test_the_sample_is_the_same_in_any_order_and_every_row_is_as_likely() -> None:
    n, k = 60_000, 100  # of which 5,000 are kept
    z = np.zeros((n, k), np.float32)
    z[:, 0] = np.arange(n)
    y = np.zeros(n, np.int64)
    parts = [
        Accumulator(kind="logits").update(z[s], y[s]) for s in np.array_split(np.arange(n), [1000, 20_000, 50_000])
    ]
    one = pickle.loads(pickle.dumps(parts[0])).merge(parts[1], parts[2], parts[3])
    two = parts[3].merge(parts[1], parts[0].merge(parts[2]))
    kept = [a._state.kept for a in (one, two)]  # type: ignore[union-attr]
    np.testing.assert_array_equal(kept[0].scores, kept[1].scores)  # type: ignore[union-attr]
    at = kept[0].scores[:, 0]  # type: ignore[union-attr]
    assert len(np.unique(at)) == len(at) == 5000
    found = np.histogram(at, 12, (0, n))[0]
    assert np.abs(found - 5000 / 12).max() < 5 * np.sqrt(5000 / 12)  # a uniform draw, five standard deviations


def test_what_a_temperature_would_gain_is_within_its_interval() -> None:
    z, y = rows("overconfident", 40_000, 60, 3)
    z = z.astype(np.float32)
    wanted = calibcli.measure(z, y, "temperature_gain")["temperature_gain"]
    parts = [Accumulator().update(z[i::5], y[i::5]) for i in range(5)]
    found = parts[0].merge(*parts[1:]).result("temperature_gain")["temperature_gain"]
    assert found.n == wanted.n == 8333
    assert "8333 of 40000 rows" in found.how
    assert found.low <= wanted.value <= found.high  # type: ignore[operator]
    assert abs(found.value - wanted.value) < 5 * np.hypot(found.se, wanted.se)  # type: ignore[arg-type, operator]


def test_the_same_part_twice_is_refused() -> None:
    z, y = rows("usual", 3 * TELLING, 4, 0)
    a, b = Accumulator().update(z[:200], y[:200]), Accumulator().update(z[200:], y[200:]).update(z[:200], y[:200])
    with pytest.raises(InputError, match="200 rows are those of a part that is there already"):
        a.merge(b)
    assert a.rows == 200
    with pytest.raises(InputError, match="there already"):
        a.update(z[:200], y[:200])
    assert a.rows == 200
    assert a.result("accuracy")["accuracy"].n == 200
    a.update(z[200:], y[200:], part="eight").update(z[:200], y[:200], part="nine")  # a name is what tells them
    with pytest.raises(InputError, match="there already"):
        a.merge(Accumulator().update(z[:100], y[:100], part="nine"))


def test_few_rows_may_be_alike_by_chance() -> None:
    found = Accumulator("accuracy", kind="logits")
    for _ in range(5):
        found.update([[1.0, 0.0]], [0])
    assert found.result()["accuracy"].n == 5


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"group": ["a", "b"] * 60}, "groups cannot be merged"),
        ({"weights": [1.0, 2.0] * 60}, "weights cannot be merged"),
        ({"by": {"site": ["a", "b"] * 60}}, "slices by 'site' cannot be merged"),
    ],
)
def test_what_cannot_be_merged_is_refused_with_what_would_work(more: dict[str, Any], said: str) -> None:
    z, y = rows("usual", 120, 3, 0)
    whole = calibcli.from_arrays(z, y, **more)
    found = Accumulator()
    with pytest.raises(InputError, match=said) as error:
        found.update(whole)
    assert "--shards" in error.value.fix or "of each value" in error.value.fix
    assert found.rows == 0


def test_parts_of_another_problem_are_refused() -> None:
    z, y = rows("usual", 300, 3, 0)
    p = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
    mine = Accumulator().update(z, y)
    for other, said in [
        (Accumulator().update(z[:, :2], y % 2), "number of classes 2, those before it 3"),
        (Accumulator().update(p, y), "kind probabilities, those before it logits"),
        (Accumulator(classes="a,b,c").update(z[::-1], y[::-1]), "classes a, b, c, those before it None"),
        (Accumulator("classwise_ece:bins=9").update(z[::-1], y[::-1]), "class tables"),
    ]:
        with pytest.raises(InputError, match=said):
            mine.merge(other)
    with pytest.raises(InputError, match="number of classes"):
        mine.update(calibcli.from_confidence([0.5] * 120, [1, 0] * 60))
    assert mine.rows == 300


def test_sums_by_class_are_those_that_were_asked_for() -> None:
    z, y = rows("usual", 400, 3, 0)
    with pytest.raises(UsageError, match="classwise_ece:bins=7 needs sums by class"):
        Accumulator().update(z, y).result("classwise_ece:bins=7")
    with pytest.raises(UsageError, match="--per-class with 9 bins"):
        Accumulator().update(z, y).result("ece", bins=9, per_class=True)
    spec = "classwise_ece:bins=7"
    assert Accumulator(spec).update(z, y).result()[spec].value == pytest.approx(
        calibcli.measure(z, y, spec)[spec].value, abs=1e-15
    )


@pytest.mark.parametrize("k", [2, 5])
def test_the_table_of_classes_is_that_of_the_file(k: int) -> None:
    z, y = rows("overconfident", 2000, k, 0)
    wanted = calibcli.measure(z, y, per_class=True).tables
    found = Accumulator().update(z[:700], y[:700]).update(z[700:], y[700:]).result(per_class=True).tables
    for one, two in zip(found, wanted, strict=True):
        assert one.name == two.name
        for row, want in zip(one.rows, two.rows, strict=True):
            kept = [
                i for i, head in enumerate(two.columns) if head not in ("mcb", "dsc")
            ]  # of the scores of each class
            for i in kept:
                assert row[i] == (want[i] if isinstance(want[i], str) else pytest.approx(want[i], abs=1e-12))


def test_confidences_are_merged() -> None:
    rng = np.random.default_rng(0)
    c = np.round(rng.random(800), 1)
    right = rng.random(800) < c
    specs = ("accuracy", "ece", "ece:edges=left", "brier_top", "confidence_gap", "adaece", "smece", "oce", "mmce")
    wanted = calibcli.measure(calibcli.from_confidence(c, right), *specs)
    found = Accumulator(*specs)
    for i in range(3):
        found.update(calibcli.from_confidence(c[i::3], right[i::3]))
    agree(found.result(), wanted, specs)
    with pytest.raises(UsageError, match="needs the probabilities of every class"):
        found.result("nll")


@pytest.mark.parametrize("masked", [False, True])
def test_infinite_losses_and_masked_classes(masked: bool) -> None:
    z, y = rows("usual", 600, 4, 1)
    z[::7, 3] = -np.inf
    y[::7] = np.where((y[::7] == 3) & masked, 0, y[::7])
    y[7] = 0 if masked else 3
    wanted = calibcli.measure(z, y, kind="logits")
    found = Accumulator(kind="logits").update(z[:300], y[:300]).update(z[300:], y[300:]).result()
    for spec in ("accuracy", "nll", "brier", "ece"):
        got, want = found[spec], wanted[spec]
        assert (got.value is None) == (want.value is None), spec
        assert got.value is None or got.value == pytest.approx(want.value, rel=1e-12)
        assert got.reason == want.reason, spec


def test_tensors_are_added_where_they_lie() -> None:
    z, y = rows("overconfident", 500, 6, 0)
    plain = Accumulator().update(z.astype(np.float32), y).result("ece", "nll")
    for dtype in (torch.float32, torch.float64):
        found = Accumulator()
        for part in (slice(0, 120), slice(120, 500)):
            found.update(torch.from_numpy(z[part]).to(dtype), torch.from_numpy(y[part]))
        assert found.result("nll")["nll"].value == pytest.approx(plain["nll"].value, rel=1e-6)


def test_an_empty_accumulator_adds_nothing() -> None:
    z, y = rows("usual", 200, 3, 0)
    empty = Accumulator()
    with pytest.raises(UsageError, match="no rows were added"):
        empty.result()
    with pytest.raises(UsageError, match="no rows were added"):
        empty.save("x.npz")
    found = empty.merge(Accumulator(), pickle.loads(pickle.dumps(Accumulator())), Accumulator().update(z, y))
    assert found.rows == 200
    assert found.merge(Accumulator()).rows == 200


@pytest.mark.slow
def test_a_state_does_not_grow_with_the_rows() -> None:
    """Counted, not timed: the cells and rows of ten times as many rows are at most those that there can be."""
    found = Accumulator(kind="logits")
    sizes = []
    for i in range(6):
        z, y = rows("usual", 20_000, 100, i)
        found.update(z.astype(np.float32), y)
        sizes.append(len(pickle.dumps(found)))
    assert found.rows == 120_000
    assert len(found._state.kept.labels) == 5000  # type: ignore[union-attr]
    assert sizes[-1] < 2 * sizes[0]


@pytest.fixture(scope="module")
def made_states(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("states")
    z, y = rows("overconfident", 600, 4, 0)
    for i in range(3):
        np.savez(folder / f"part-{i}.npz", logits=z[i::3], labels=y[i::3])
        line = ["metrics", str(folder / f"part-{i}.npz"), "--partial", str(folder / f"state-{i}.npz"), "-q"]
        assert main(line) == 0
    return folder


@pytest.fixture
def states(made_states: Path, tmp_path: Path) -> list[Path]:
    """Copy three parts and their states into the test's own folder, where it may change them."""
    shutil.copytree(made_states, tmp_path, dirs_exist_ok=True)
    return [tmp_path / f"state-{i}.npz" for i in range(3)]


@pytest.mark.parametrize("given", ["folder", "files", "python"])
@pytest.mark.one_in(3)
def test_tasks_are_not_parts(given: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Evaluations of two tasks are added up only where that is said."""
    folder = tmp_path / "evals"
    folder.mkdir()
    for name, rows in (("a-1", 120), ("a-2", 130), ("b-1", 110)):
        header = {**written.HEADER, "eval": {"task": name[0]}}
        samples = written.inspect_samples(written.questions(rows, False, seed=rows))
        (folder / f"{name}.eval").write_bytes(written.eval_log(samples, header=header))
    paths, state = sorted(map(str, folder.glob("*.eval"))), str(tmp_path / "state.npz")
    if given == "python":
        kept = Accumulator().update(paths[0])
        with pytest.raises(InputError, match="files of 2 tasks: a, b"):
            kept.update(folder)
        assert kept.rows == 120
        assert kept.update(paths[1]).update(paths[2], shards=True).rows == 360
        return
    named = [str(folder)] if given == "folder" else paths
    assert main(["metrics", *named, "--partial", state, "-q"]) == Exit.REFUSED
    assert "files of 2 tasks: a, b" in capsys.readouterr().err
    assert not Path(state).exists()
    assert main(["metrics", *named, "--partial", state, "-q", "--shards"]) == Exit.OK
    assert Accumulator.load(state).rows == 360


@pytest.mark.regression
def test_the_array_of_scores_is_named_for_a_part_too(tmp_path: Path) -> None:
    np.savez(tmp_path / "part.npz", first=np.eye(4)[:, :2] * 3, second=np.eye(4)[:, :2], labels=[0, 1, 0, 0])
    options = ["--scores", "first", "--partial", str(tmp_path / "state.npz"), "-q"]
    assert main(["metrics", str(tmp_path / "part.npz"), *options]) == Exit.OK
    assert Accumulator.load(tmp_path / "state.npz").rows == 4


def test_the_command_line_merges(states: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    wanted = calibcli.measure([tmp_path / f"part-{i}.npz" for i in range(3)], shards=True)  # type: ignore[list-item]
    for line in (
        [*map(str, states)],
        [str(tmp_path / "state-*.npz")],
        [str(states[0]), str(states[2]), str(states[1]), "--save", str(tmp_path / "all.npz")],
        [str(tmp_path / "all.npz")],
    ):
        assert main(["merge", *line, "--json", "-q"]) == 0
        found = calibcli.Result.from_json(capsys.readouterr().out)
        assert found.command == "merge"
        assert found["ece"].value == pytest.approx(wanted["ece"].value, abs=1e-12)
        assert found.facts["n"] == 600
        assert "600 rows" in found.facts["headline"]
    assert {Path(f["path"]).name for f in found.provenance["parts"]} == {f"part-{i}.npz" for i in range(3)}
    assert main(["merge", str(states[0]), str(tmp_path / "all.npz")]) == Exit.REFUSED
    assert "there already" in capsys.readouterr().err
    assert main(["metrics", str(states[0])]) == Exit.REFUSED
    assert "it goes to: merge" in capsys.readouterr().err
    assert main(["merge", str(tmp_path / "part-0.npz")]) == Exit.REFUSED
    assert "is no state" in capsys.readouterr().err


def test_a_gate_reads_what_was_merged(states: list[Path], tmp_path: Path) -> None:
    assert main(["merge", *map(str, states), "-q", "-o", str(tmp_path / "merged.json")]) == 0
    assert main(["check", str(tmp_path / "merged.json"), "--max", "ece=0.9", "-q"]) == 0
    assert main(["check", str(tmp_path / "merged.json"), "--max", "ece=0.001", "-q"]) == Exit.FAIL


def damaged(path: Path, change: Callable[[dict[str, Any], dict[str, Any]], None]) -> Path:
    """The state with its header or its arrays changed."""
    with np.load(path) as file:
        arrays = dict(file)
    header = json.loads(arrays["calib_state"].tobytes())
    change(header, arrays)
    if "calib_state" in arrays:
        arrays["calib_state"] = np.frombuffer(json.dumps(header).encode(), np.uint8)
    np.savez(path, **arrays)
    return path


CHANGES: dict[str, tuple[Callable[[dict[str, Any], dict[str, Any]], Any], str]] = {
    "schema": (lambda h, a: h.update(schema=99), "schema is 99, not 1"),
    "rows": (lambda h, a: h.update(rows=5), "parts have more rows"),
    "more rows": (lambda h, a: h.update(rows=500), "adds up to 200, not to its 500"),
    "negative": (lambda h, a: h.update(rows=-1), "rows is -1"),
    "k": (lambda h, a: h["problem_of"].update(k=1), "k is 1"),
    "kind": (lambda h, a: h["problem_of"].update(kind="odds"), "kind is 'odds'"),
    "other k": (lambda h, a: h["problem_of"].update(k=7), "'predicted' is float64 of shape"),
    "huge k": (lambda h, a: h["problem_of"].update(k=10**12), "'predicted' is float64 of shape"),
    "classes": (lambda h, a: h["problem_of"].update(classes=["a"]), "1 class names for 4"),
    "bins": (lambda h, a: h["tables"][0].update(bins=0), "bins that cannot be"),
    "text": (lambda h, a: h.update(parts="no"), "parts is 'no'"),
    "no cells": (lambda h, a: a.pop("cells"), "'cells'|'count'"),
    "nan": (lambda h, a: a["sums"].fill(np.nan), "'sums' holds NaN"),
    "infinite": (lambda h, a: a["sums"].fill(np.inf), "'sums' holds what is not a finite number"),
    "one number": (lambda h, a: a.update(cells=np.array(7)), "'cells' is missing"),
    "order": (lambda h, a: a.update(cells=a["cells"][::-1]), "'cells' are not in order"),
    "beyond": (lambda h, a: a.update(cells=a["cells"] + 10**9), "'cells' are not in order"),
    "counts": (lambda h, a: a.update(count=-a["count"]), "'count' holds"),
    "before": (lambda h, a: a.update(cells=a["cells"] - 10**9), "'cells' holds numbers below 0"),
    "labels": (lambda h, a: a.update(kept_labels=a["kept_labels"] + 9), "'kept_labels'"),
    "shape": (lambda h, a: a.update(kept_rows=a["kept_rows"][:, :2]), "'kept_rows'"),
    "hashes": (lambda h, a: a.update(kept_hashes=a["kept_hashes"][::-1]), "'kept_hashes'"),
    "table": (lambda h, a: a.pop("table_0"), "'table_0' is missing"),
    "sums of losses": (lambda h, a: a.update(sums=-a["sums"]), "its checksum does not fit"),
    "files": (lambda h, a: h.update(notes=["all is well"]), "its checksum does not fit"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_damaged_state_is_refused(name: str, states: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    change, said = CHANGES[name]
    path = damaged(states[0], change)
    with pytest.raises(InputError, match=said):
        Accumulator.load(path)
    assert main(["merge", str(path)]) == Exit.REFUSED
    assert capsys.readouterr().err.count("\n  fix: ") == 1


@pytest.mark.slow
@given(st.integers(0, 10**6), st.integers(0, 255))
@settings(max_examples=60, deadline=None)
def test_bytes_changed_at_random_are_refused_or_read(at: int, byte: int) -> None:
    z, y = rows("usual", 150, 3, 0)
    raw = bytearray(_state(z, y))
    raw[at % len(raw)] = byte
    path = _temporary(bytes(raw))
    with contextlib.suppress(calibcli.CalibError):
        Accumulator.load(path).result("ece")
    path.unlink()


def _state(z: Any, y: Any) -> bytes:
    held = _temporary(b"")
    Accumulator().update(z, y).save(held)
    data = held.read_bytes()
    held.unlink()
    return data


def _temporary(data: bytes) -> Path:
    import tempfile

    with tempfile.NamedTemporaryFile(suffix=".npz", delete=False) as file:
        file.write(data)
    return Path(file.name)


def test_nothing_is_written_over_an_input(states: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    before = states[0].read_bytes()
    assert main(["merge", *map(str, states), "--save", str(states[0])]) == Exit.USAGE
    assert "would replace the input" in capsys.readouterr().err
    part = states[0].with_name("part-0.npz")
    assert main(["metrics", str(part), "--partial", str(part)]) == Exit.USAGE
    assert states[0].read_bytes() == before
    assert main(["metrics", str(part), "--partial", str(part.with_suffix(".txt"))]) == Exit.USAGE
    assert "suffix" in capsys.readouterr().err


def test_wrong_uses_say_what_to_do() -> None:
    z, y = rows("usual", 200, 3, 0)
    with pytest.raises(TypeError, match="unexpected keyword argument 'kidn': did you mean 'kind'"):
        Accumulator(kidn="logits")
    with pytest.raises(TypeError, match="labels are missing"):
        Accumulator().update(z)
    with pytest.raises(TypeError, match="takes no labels"):
        Accumulator().update(Predictions.of(z, y), y)
    with pytest.raises(UsageError, match="unknown metric 'eec'"):
        Accumulator("eec").update(z, y)
    assert dataclasses.is_dataclass(Accumulator().update(z, y).result("ece"))
