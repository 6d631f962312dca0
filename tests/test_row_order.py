"""Labels that belong to other rows than their scores are told; honest files, and models that know nothing, are not."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from benchmark_scripts import script
from scipy import stats

import calibcli
from calibcli.core.errors import InputError
from calibcli.scores import _row_order as row_order

N = 600
RNG = np.random.default_rng(3)
Z = 2 * RNG.normal(size=(N, 3))
Y = (Z + RNG.gumbel(size=Z.shape)).argmax(1)
TEXTS = np.argsort(np.arange(N).astype(str), kind="stable")


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    return script("misread_rows")


@pytest.mark.regression
@pytest.mark.parametrize("shift", [1, -1, 2, 7, -10])
@pytest.mark.parametrize("k", [2, 3])
def test_shifted_labels_are_refused_with_the_shift(shift: int, k: int) -> None:
    scores, labels = (Z[:, 1] - Z[:, 0], (Y == 1).astype(int)) if k == 2 else (Z, Y)
    way = f"shifted {'down' if shift > 0 else 'up'} by {abs(shift)} row"
    with pytest.raises(InputError, match=f"unrelated to the scores .* {way}") as found:
        calibcli.measure(scores, np.roll(labels, -shift), kind="logits")
    assert "the same order" in found.value.fix


@pytest.mark.regression
@pytest.mark.parametrize(
    ("labels", "words"),
    [
        (Y[::-1], "from the last to the first they fit"),
        (Y[TEXTS], "sorted as numbers they fit"),
        (Y[np.argsort(TEXTS)], "as texts .* they fit"),
        (np.sort(Y), "the labels are sorted by class"),
        (np.sort(Y)[::-1], "the labels are sorted by class"),
    ],
)
def test_labels_in_a_known_other_order_are_refused(labels: np.ndarray, words: str) -> None:
    with pytest.raises(InputError, match=words):
        calibcli.measure(Z, labels)


@pytest.mark.regression
def test_shuffled_labels_are_no_overconfidence(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", logits=Z, labels=RNG.permutation(Y))
    found = calibcli.measure(tmp_path / "a.npz")
    assert found.facts["headline"].startswith("Labels and predictions are unrelated")
    assert "verconfident" not in found.facts["headline"]
    assert "temperature would save" not in found.facts["headline"]
    assert found.notes[0].startswith("the labels 'labels' are unrelated to the predictions: accuracy 0.3")
    honest = calibcli.measure(Z, Y)
    assert not any("unrelated" in note for note in honest.notes)
    assert "unrelated" not in honest.facts


def test_sorted_rows_and_repeated_predictions_are_honest() -> None:
    order = np.argsort(Y, kind="stable")
    for z, y in ((Z[order], Y[order]), (np.tile([1.0, 2.0, 3.0], (N, 1)), np.sort(Y)), (0.2 * Z, RNG.permutation(Y))):
        assert not any("unrelated" in note for note in calibcli.from_arrays(z, y).notes)


def test_rows_that_resemble_their_neighbours_do_not_look_shifted() -> None:
    """Labels and predictions of one season, a quarter of its period apart, fit better at every further shift."""
    t = np.arange(N)
    z = np.column_stack([4 * np.sin(t / 9), np.zeros(N)])
    y = (np.cos(t / 9) < 0).astype(int)
    assert calibcli.from_arrays(z, y).n == N


def test_the_moments_of_agreement_are_those_of_labels_dealt_at_random() -> None:
    p, y = Z[:80].argmax(1), Y[:80]
    drawn = [float(np.mean(p == RNG.permutation(y))) for _ in range(4000)]
    found = row_order.agreement(p, None, y, 3)
    assert found.chance == pytest.approx(np.mean(drawn), abs=4 * np.std(drawn) / 63)
    assert found.spread == pytest.approx(np.std(drawn), rel=0.05)
    assert found.z == pytest.approx((np.mean(p == y) - found.chance) / found.spread)


@pytest.mark.parametrize("mean", [0.5, 3.0, 40.0])
def test_the_tail_of_few_matches_is_no_shorter_than_it_is(mean: float) -> None:
    for k in (mean + 1, mean + 4, mean + 20):
        assert row_order._log_tail(k - mean, mean) >= stats.poisson.logsf(np.ceil(k) - 1, mean)


def test_a_short_run_keeps_every_promise(bench: ModuleType) -> None:
    lines, kept = bench.run(12, 48, 5, sizes=(500,), classes=(2, 3))
    assert kept, "\n".join(lines)
