"""Methods compared on rows outside of their fits: one interval for one difference, and which method is recommended."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import calibcli
from calibcli.calibrators import report
from calibcli.scores.predictions import Predictions


def _ranked(z: Any, y: Any, *methods: str) -> Any:
    return report.rank(methods, Predictions.of(z, y), report.RankingOptions())


@pytest.mark.regression("maps 3")
def test_one_difference_has_one_interval() -> None:
    """The row `none` of the ranking is the change of the NLL with its sign turned: all rows, the same folds."""
    rng = np.random.default_rng(0)
    z = rng.normal(size=(400, 4)) * 4
    y = (z / 2 + rng.gumbel(size=z.shape)).argmax(1)
    found = calibcli.scale(z, y, "temperature", "vector")
    change, none = found["nll", "after minus before"], found["nll_difference", "method=none"]
    assert (none.value, none.low, none.high) == pytest.approx((-change.value, -change.high, -change.low), rel=1e-9)


@pytest.mark.regression("maps 3")
def test_the_simplest_of_those_that_cannot_be_told_apart() -> None:
    """The truth is a temperature: whichever map has the lowest NLL by chance, it is what is recommended and saved."""
    higher = 0
    for seed in range(4):
        rng = np.random.default_rng(seed)
        z = rng.normal(size=(300, 3)) * 4
        y = (z / 2 + rng.gumbel(size=z.shape)).argmax(1)
        ranking = _ranked(z, y, "temperature", "vector", "platt", "bcts")
        assert ranking.best == ranking.recommended == "temperature"
        first = ranking.table.rows[0][1]
        higher += first != "temperature"
        if first != "temperature":
            assert f"{first} has the lowest NLL; temperature is not shown to be worse" in " ".join(ranking.notes)
    assert higher > 0


@pytest.mark.regression("maps 3")
def test_a_map_that_is_better_in_accuracy_is_told_apart() -> None:
    rng = np.random.default_rng(0)
    z = rng.normal(size=(800, 3)) * 3
    y = (z + np.array([2.5, 0, -2.5]) + rng.gumbel(size=z.shape)).argmax(1)
    assert _ranked(z, y, "temperature", "vector").recommended == "vector"


@pytest.mark.regression("maps 3")
def test_no_method_at_the_end_of_its_range_is_recommended() -> None:
    rng = np.random.default_rng(0)
    z = rng.normal(size=(500, 3)) * 30
    y = (z / 25 + rng.gumbel(size=z.shape)).argmax(1)
    ranking = _ranked(z, y, "focal")
    assert ranking.recommended == "none"
    assert any("at the end of its range: focal" in note for note in ranking.notes)
    assert _ranked(z, y, "focal", "platt").recommended == "platt"
