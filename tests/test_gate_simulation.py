"""A short form of benchmarks/gate.py: the verdicts are wrong as rarely as they claim."""

from __future__ import annotations

import importlib.util
import sys
from functools import partial
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

PATH = Path(__file__).parent.parent / "benchmarks" / "gate.py"
SLACK = 0.05  # three standard errors of a 5 % share over 200 runs


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    spec = importlib.util.spec_from_file_location("benchmark_gate", PATH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["benchmark_gate"] = module
    spec.loader.exec_module(module)
    return module


def test_constant_confidence_exactly(bench: ModuleType) -> None:
    """Summed over the binomial: no simulation error to allow for."""
    for n, confidence, errors in ((200, 0.98, 0.05), (500, 0.995, 0.015), (500, 0.999, 0.01), (1000, 0.99, 0.03)):
        assert max(bench.exact(n, confidence, errors)) <= bench.ALLOWED, (n, confidence, errors)


def test_a_plain_interval_would_pass_saturated_models(bench: ModuleType) -> None:
    """What the score form is for: without it the same case is wrong more than twice as often as allowed."""
    n, confidence, errors = 200, 0.999, 0.015
    from scipy.stats import binom

    wrong = np.arange(n + 1)
    value = np.abs(confidence - (1 - wrong / n))
    square = ((1 - wrong / n) * (1 - confidence) ** 2 + wrong / n * confidence**2) / n
    plain = value + 1.6448536 * np.sqrt(square)
    truth = abs(confidence - (1 - errors))
    assert binom.pmf(wrong, n, errors)[plain <= truth].sum() > 2 * bench.ALLOWED
    assert bench.exact(n, confidence, errors)[0] <= bench.ALLOWED


@pytest.mark.parametrize("model", ["calibrated", "overconfident", "underconfident"])
@pytest.mark.parametrize("shape", ["spread", "saturated"])
def test_spread_and_saturated_confidences(bench: ModuleType, shape: str, model: str) -> None:
    rng = np.random.default_rng(3)
    z = bench.scaled(rng.standard_normal((20_000, 10)), bench.ACCURACY[shape])
    reported = bench.softmax(bench.SHARPEN[model] * z).max(axis=1)
    pool = bench.Pool("pool", reported, bench.softmax(z).max(axis=1))
    false_pass, false_fail = bench.simulated(partial(pool.draw, 500), pool.ece, 200, 1)
    assert max(false_pass, false_fail) <= 0.05 + SLACK
    sizes = 1 + np.arange(50) % 19
    false_pass, false_fail = bench.simulated(partial(pool.draw_groups, sizes, 0.7), pool.ece, 200, 1)
    assert max(false_pass, false_fail) <= 0.05 + SLACK


def test_grouped_rows_need_the_group_column(bench: ModuleType) -> None:
    """The same clustered rows judged as if independent fail a calibrated model far too often."""
    rng = np.random.default_rng(3)
    z = bench.scaled(rng.standard_normal((20_000, 10)), 0.8)
    pool = bench.Pool("pool", bench.softmax(z).max(axis=1), bench.softmax(z).max(axis=1))
    sizes = np.full(40, 20)

    def ungrouped(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        confidence, correct, _ = pool.draw_groups(sizes, 0.9, rng)
        return confidence, correct

    assert bench.simulated(ungrouped, pool.ece, 200, 1)[1] > 0.2


def test_slices_share_the_error(bench: ModuleType) -> None:
    rng = np.random.default_rng(5)
    any_fail = 0
    for _ in range(60):
        confidence = rng.beta(6, 1.2, (10, 300))
        correct = rng.random((10, 300)) < confidence
        any_fail += any(bench.ece_bounds(c, y, family=10).lower > 0 for c, y in zip(confidence, correct, strict=True))
    assert any_fail <= 0.05 * 60 + 5


def test_baseline_gate(bench: ModuleType) -> None:
    """Two calibrated models, one sharper: rarely FAIL. A temperature off by 1.3: nearly always at 2,000 rows."""
    rng = np.random.default_rng(0)
    verdicts = [bench.baseline_gate(*bench.vague_and_sharp(500, 0.76, 10, rng)) for _ in range(60)]
    assert verdicts.count("fail") <= 0.05 * 60 + 5
    off = []
    for _ in range(15):
        z = bench.scaled(rng.standard_normal((2000, 10)), 0.76)
        labels = np.minimum((bench.softmax(z).cumsum(axis=1) < rng.random((2000, 1))).sum(axis=1), 9)
        off.append(bench.baseline_gate(z, 1.3 * z, labels))
    assert off.count("fail") >= 14
