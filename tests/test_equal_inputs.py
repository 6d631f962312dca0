"""Inputs that say the same give the same numbers, by every metric: repeated rows and their counts, equal weights, and
groups of one row each."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import calibcli
import calibcli.scores.likelihood
from calibcli.core.result import Estimate

FOLDED = ("temperature_gain", "corp_mcb", "corp_dsc")
"""Which fold a row is in depends on where it stands."""


def rows(n: int, k: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng([n, k])
    z = 1.5 * rng.standard_normal((n, k))
    return 1.3 * z, (z + rng.gumbel(size=z.shape)).argmax(axis=1)


def every(z: np.ndarray, y: np.ndarray, **how: Any) -> dict[str, Estimate]:
    return {e.name: e for e in calibcli.measure(z, y, "all", **how).estimates}


def same(a: dict[str, Estimate], b: dict[str, Estimate], leave_out: tuple[str, ...] = ()) -> None:
    assert a.keys() == b.keys()
    for name in a.keys() - {*leave_out}:
        for part in ("value", "low", "high", "null", "null_high"):
            one, other = getattr(a[name], part), getattr(b[name], part)
            known = None if other is None else pytest.approx(other, abs=1e-6, rel=2e-6)
            assert one == known, (name, part)


@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize(("n", "k"), [(3, 2), (10, 3), (300, 2)])
def test_counts_are_repeated_rows(n: int, k: int) -> None:
    z, y = rows(n, k)
    times = np.arange(n) % 3 + (n == 3)
    counted = every(z, y, weights=times.astype(float), weight_kind="count")
    same(counted, every(np.repeat(z, times, axis=0), np.repeat(y, times)), FOLDED)


@pytest.mark.parametrize("how", [{"weights": np.full(30, 2.5)}, {"group": np.arange(30)[::-1]}])
def test_weights_and_groups_that_tell_nothing(how: dict[str, Any]) -> None:
    z, y = rows(30, 3)
    same(every(z, y, **how), every(z, y), FOLDED[:1])


def test_ece_sweep_where_no_miss_is_above_a_hit() -> None:
    """One row in a bin then, which is found at once: of 200,000 rows one by one it took hours."""
    n = 200_000
    p = np.linspace(0.001, 0.999, n)
    found = calibcli.measure(p, p > 0.3, "ece_sweep")["ece_sweep"].value
    assert found == pytest.approx(np.abs(p - (p > 0.3)).mean(), abs=1e-12)


def test_ece_sweep_by_its_definition() -> None:
    rng = np.random.default_rng(2)
    for _ in range(30):
        n = int(rng.integers(2, 60))
        p = np.sort(rng.random(n))
        y = rng.random(n) < np.clip(4 * p - 1, 0, 1)
        best, bins = abs(float(np.mean(p - y))), 2
        while bins <= n:
            parts = np.array_split(np.arange(n), bins)
            accuracy = [float(y[part].mean()) for part in parts]
            if any(b < a for a, b in itertools.pairwise(accuracy)):
                break
            best, bins = sum(abs(float((p - y)[part].sum())) for part in parts) / n, bins + 1
        assert calibcli.measure(p, y, "ece_sweep")["ece_sweep"].value == pytest.approx(best, abs=1e-12)
