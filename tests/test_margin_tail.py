"""The tail of the margins: what it bounds in each row, its reading of files, and that it is a metric of studies."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import calibcli
from calibcli.core.errors import InputError, UsageError
from calibcli.lab.study import _readings as readings
from calibcli.metrics.margin_tail import tails
from calibcli.scores.columns import columns
from calibcli.scores.predictions import Predictions

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("k", [2, 3, 10])
def test_what_it_bounds_in_each_row(k: int) -> None:
    """t/2 <= 1 - p_y <= (K - 1) t; (K - 1) t bounds the gap of the row, and twice that 1 - Σ p²."""
    z, y = RNG.normal(0, 3, (400, k)), RNG.integers(0, k, 400)
    p = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
    t, lost = tails(Predictions.of(z, y)), 1 - p[np.arange(400), y]
    wrong = p.argmax(axis=1) != y
    assert (t[wrong] == 1).all()
    assert (t[~wrong] < 1).all()
    assert (t / 2 <= lost + 1e-12).all()
    assert (lost <= (k - 1) * t + 1e-12).all()
    assert (abs(p.max(axis=1) - ~wrong) <= (k - 1) * t + 1e-12).all()
    assert (1 - (p**2).sum(axis=1) <= 2 * (k - 1) * t + 1e-12).all()
    found = calibcli.measure(z, y, "margin_tail", "ece")
    assert found["ece"].value <= (k - 1) * found["margin_tail"].value


def test_masked_classes_and_ties() -> None:
    z = np.array([[2.0, -np.inf, 1.0], [-np.inf, 3.0, 0.0], [1.0, 1.0, 0.0], [-np.inf, 5.0, -np.inf]])
    assert tails(Predictions.of(z, np.array([0, 0, 1, 1]))) == pytest.approx([np.exp(-1), 1.0, 1.0, 0.0])


def test_of_probabilities_of_files_and_of_slices(tmp_path: Path) -> None:
    z, y = RNG.normal(0, 2, (300, 4)), RNG.integers(0, 4, 300)
    p = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
    site, weight = RNG.integers(0, 2, 300), RNG.integers(1, 4, 300)
    np.savez(tmp_path / "a.npz", probs=p, labels=y, site=site, w=weight)
    read = calibcli.read(tmp_path / "a.npz", weights="w", weight_kind="count", by="site")
    found = calibcli.measure(read, "margin_tail")
    t = tails(Predictions.of(z, y))
    assert found["margin_tail"].value == pytest.approx(np.average(t, weights=weight))
    for one in (0, 1):
        mine = np.average(t[site == one], weights=weight[site == one])
        assert found["margin_tail", f"site={one}"].value == pytest.approx(mine)


def test_confidences_alone_have_no_margin() -> None:
    with pytest.raises((UsageError, InputError), match="margin_tail"):
        calibcli.measure(calibcli.from_confidence(np.full(9, 0.8), np.arange(9) % 2), "margin_tail")


def test_a_study_draws_its_rows() -> None:
    z, y = RNG.normal(0, 2, (50, 3)), RNG.integers(0, 3, 50)
    rows = Predictions.of(z, y)
    summed = readings.sums("margin_tail", columns(rows, class_bins=()), rows)
    times = readings.draws(50, 20)
    assert "margin_tail" in readings.names()
    assert summed.value == pytest.approx(tails(rows).mean())
    assert summed.drawn(times) == pytest.approx(times @ tails(rows) / 50, rel=1e-5)


def test_a_histogram_of_the_rows_has_no_margin(tmp_path: Path) -> None:
    """Neither in the command that writes a part nor where parts are merged."""
    rows = calibcli.from_arrays(RNG.normal(0, 2, (50, 3)), RNG.integers(0, 3, 50))
    part = calibcli.Accumulator("margin_tail", "accuracy")
    part.update(rows)
    found = part.result()
    assert found["accuracy"].value is not None
    assert found["margin_tail"].value is None
    assert "scores" in found["margin_tail"].reason
