"""Verdicts from bounds, levels of stored intervals, paired means, baselines."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

import calibcli
from calibcli.cli.app import main
from calibcli.core.errors import InputError, UsageError
from calibcli.core.number_format import level
from calibcli.core.result import Estimate
from calibcli.gate import baseline
from calibcli.gate.baseline import Pairing, pair
from calibcli.gate.judging import SupportedClaim, at_level, claim, judge, rows_by_scaling, rule
from calibcli.metrics import paired
from calibcli.metrics.intervals import WeightedMean
from calibcli.metrics.temperature_gain import folds_of
from calibcli.scores.columns import columns
from calibcli.scores.predictions import Predictions


def estimate(value: float | None, low: float | None, high: float | None, **fields: Any) -> Estimate:
    return Estimate(name="m", value=value, low=low, high=high, **{"level": 0.9, "sided": "each", "n": 100, **fields})


@pytest.mark.regression
def test_a_number_of_rows_that_nobody_collects_is_no_advice() -> None:
    """More than 100 times the rows, and more than 100,000: then words say that the value is too close to its limit."""

    def judged(value: float, n: int) -> Any:
        e = estimate(value, 0.3, 0.5, n=n)
        return judge(SupportedClaim(estimate=e, low=e.low, high=e.high), "max", 0.4)

    assert judged(0.38, 1_000).n_needed == 36_000
    hopeless = judged(0.399, 1_000)
    assert hopeless.n_needed is None
    assert "even 100,000 rows would not do if the value stays" in hopeless.message
    assert judged(0.385, 100_000).n_needed is not None  # of more rows more are in reach


def test_bounds_say_at_which_level_each_of_them_holds() -> None:
    """Slices share α in what FAIL needs; PASS needs none of that."""
    from calibcli.core import number_format
    from calibcli.core.result import Check
    from calibcli.render.terminal import sentence

    e = estimate(0.4, 0.3, 0.5)
    alone, shared = (
        SupportedClaim(estimate=e, low=0.3, high=0.5, error=0.05),
        SupportedClaim(estimate=e, low=0.25, high=0.55, error=0.01),
    )
    assert number_format.level([judge(alone, "max", 0.6).estimate]) == "95 % each"
    for side, limit, bounds in (("max", 0.6, (0.25, 0.5)), ("max", 0.2, (0.25, 0.5)), ("min", 0.2, (0.3, 0.55))):
        shown = judge(shared, side, limit).estimate
        assert (shown.low, shown.high) == bounds
        assert number_format.level([shown]) == "95 % for PASS, 99 % for FAIL"
        check = Check(rule="r", outcome="fail", estimate=shown, limit=limit)
        assert "(95 % for PASS, 99 % for FAIL)" in sentence(check)
    assert number_format.level([judge(shared, "zero", 0.6).estimate]) == "95 % each"  # PASS: both bounds are its own
    failed = judge(shared, "zero", 0.2).estimate
    assert (failed.low, failed.high, number_format.level([failed])) == (0.25, 0.55, "99 % each")


@pytest.mark.parametrize(
    ("side", "limit", "outcome"),
    [
        ("max", 0.5, "pass"),
        ("max", 0.4999, "inconclusive"),
        ("max", 0.3, "inconclusive"),
        ("max", 0.2999, "fail"),
        ("min", 0.3, "pass"),
        ("min", 0.3001, "inconclusive"),
        ("min", 0.5, "inconclusive"),
        ("min", 0.5001, "fail"),
        ("zero", 0.5, "pass"),
        ("zero", 0.45, "inconclusive"),
        ("zero", 0.29, "fail"),
    ],
)
def test_verdict(side: Any, limit: float, outcome: str) -> None:
    e = estimate(0.4, 0.3, 0.5)
    assert judge(SupportedClaim(estimate=e, low=0.3, high=0.5), side, limit).outcome == outcome


def test_fail_needs_the_bound_shared_by_the_family() -> None:
    e = estimate(0.4, 0.3, 0.5)
    assert judge(SupportedClaim(estimate=e, low=0.25, high=0.55), "max", 0.28).outcome == "inconclusive"
    verdict = judge(SupportedClaim(estimate=e, low=0.25, high=0.55), "max", 0.2)
    assert (verdict.outcome, verdict.estimate.low, verdict.estimate.high) == ("fail", 0.25, 0.5)
    verdict = judge(SupportedClaim(estimate=e, low=0.25, high=0.55), "min", 0.6)
    assert (verdict.outcome, verdict.estimate.low, verdict.estimate.high) == ("fail", 0.3, 0.55)


@pytest.mark.parametrize("side", ["max", "min", "zero"])
def test_no_bound_never_passes(side: Any) -> None:
    for e in (estimate(None, None, None, reason="why"), estimate(0.1, None, None, reason="why")):
        verdict = judge(SupportedClaim(estimate=e, low=None, high=None), side, 0.1)
        assert (verdict.outcome, verdict.message) == ("not_run", "why")


def test_rows_that_would_decide() -> None:
    e = estimate(0.4, 0.3, 0.5)
    assert rows_by_scaling(e, "max", 0.45) == 400
    assert rows_by_scaling(e, "max", 0.35) == 400
    assert rows_by_scaling(e, "max", 0.4) is None
    assert judge(SupportedClaim(estimate=e, low=0.3, high=0.5), "max", 0.4).message.startswith("too close")


def test_rule_text() -> None:
    assert rule("ece", "max", 0.03) == "ece <= 0.03"
    assert rule("accuracy", "min", 1.0) == "accuracy >= 1"
    assert rule("confidence_gap", "zero", 0.01) == "|confidence_gap| <= 0.01"


def test_levels() -> None:
    two = Estimate(name="m", value=1.0, low=0.0, high=2.0, level=0.95)
    assert at_level(two, 0.05) == (0.0, 2.0)  # each side is already surer than asked
    low, high = at_level(two, 0.025 / 10, widen=True)
    assert low == pytest.approx(1 - 2.807033768 / 1.959963985)
    assert high == pytest.approx(1 + 2.807033768 / 1.959963985)
    upper = Estimate(name="m", value=1.0, high=2.0, level=0.95, sided="upper")
    assert at_level(two, 0.025 / 10) == (None, None)
    assert at_level(two, 0.02) == (None, None)  # however little surer is asked for
    assert at_level(upper, 0.05) == (None, 2.0)
    assert at_level(Estimate(name="m", value=1.0), 0.05) == (None, None)


def test_a_stored_interval_keeps_its_level() -> None:
    """Two sides of 95 % are bounds of 97.5 % each, whatever was asked for."""
    two = Estimate(name="m", value=1.0, low=0.0, high=2.0, level=0.95)
    for alpha in (0.025, 0.05, 0.1):
        found = claim(two, alpha, two, alpha)
        assert level([found.estimate]) == "97.5 % each"
        assert level([judge(found, "max", 3.0).estimate]) == "97.5 % each"
    upper = Estimate(name="m", value=1.0, high=2.0, level=0.99, sided="upper")
    assert level([claim(upper, 0.05, upper, 0.05).estimate]) == "99 % each"
    far = dataclasses.replace(two, low=-1.0, high=3.0, level=0.98)
    assert level([judge(claim(two, 0.05, far, 0.01), "max", 5.0).estimate]) == "97.5 % for PASS, 99 % for FAIL"


def test_mean_against_definitions() -> None:
    x = np.random.default_rng(0).normal(1, 2, 50)
    m = WeightedMean(x, None, False, None)
    assert (m.value, m.se) == pytest.approx((x.mean(), x.std(ddof=1) / math.sqrt(50)))
    times = np.random.default_rng(1).integers(1, 4, 50)
    counted, repeated = (
        WeightedMean(x, times.astype(float), True, None),
        WeightedMean(np.repeat(x, times), None, False, None),
    )
    assert (counted.value, counted.se, counted.units) == pytest.approx((repeated.value, repeated.se, repeated.units))
    grouped = WeightedMean(np.repeat(x, 5), None, False, np.repeat(np.arange(50), 5))
    assert (grouped.value, grouped.se, grouped.units) == pytest.approx((m.value, m.se, 50))
    assert grouped.bounds(0.05, -9, 9) == pytest.approx(m.bounds(0.05, -9, 9))
    t, d = stats.t.ppf(0.95, 49), x - x.mean()
    at_once = max(t * t, -math.log(stats.norm.sf(t)))
    for sign, end, far in ((-1, 0, m.value + 9), (1, 1, 9 - m.value)):
        a = at_once * max(sign * (d**3).sum() / (d**2).sum(), 0) / 50  # h² = t² se² + a h
        drawn = (a + math.sqrt(a * a + 4 * (t * m.se) ** 2)) / 2
        not_drawn = math.cbrt((t * m.se) ** 3 + (at_once * far / 50) ** 3)
        assert sign * (m.bounds(0.05, -9, 9)[end] - m.value) == pytest.approx(max(drawn, not_drawn))
    low, high = WeightedMean(np.zeros(100), None, False, None).bounds(0.05, -1, 1)
    assert high == -low > 1.6448536**2 / 100  # no difference seen is not no difference


def test_p_value_and_holm() -> None:
    x = np.array([1.0, -1.0] * 50) + 0.2
    rows = WeightedMean(x, None, False, None)
    cube = (1 / 99) ** 1.5
    z = math.cbrt(2 * 0.2**3 / (cube + math.sqrt(cube**2 + 4 * (0.2 * 2.2 / 100) ** 3)))
    assert rows.p_value(-2, 2) == pytest.approx(2 * stats.t.sf(z, 99))
    sure = WeightedMean(x + 0.3, None, False, None)
    assert (p := sure.p_value(-2, 2)) / 2 < 0.03
    assert sure.bounds(p / 2, -2, 2)[0] == pytest.approx(0, abs=1e-4)  # at half of it the bound is 0
    assert paired.holm([0.01, 0.04, 0.03, 0.005]).tolist() == pytest.approx([0.03, 0.06, 0.06, 0.02])


def predictions(n: int = 300, ids: bool = True, seed: int = 0) -> Predictions:
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(n, 3)) * 2
    y = (np.exp(z).cumsum(1) / np.exp(z).sum(1, keepdims=True) < rng.random((n, 1))).sum(1)
    return Predictions.of(z, y, ids=np.array([f"row{i}" for i in range(n)]) if ids else None)


def test_rows_survive_a_file() -> None:
    p = predictions()
    rows = baseline.rows(p, columns(p))
    again = baseline.BaselineRows.unpack(rows.pack(), "x")
    for key in ("nll", "brier", "gain", "correct", "ids", "least", "most", "beta"):
        assert np.array_equal(getattr(again, key), getattr(rows, key)), key
    assert (again.n, again.salt, again.digest) == (rows.n, rows.salt, rows.digest)
    other = baseline.rows(p, columns(p))
    assert not np.array_equal(other.ids, rows.ids)  # type: ignore[arg-type]
    assert sum(len(v) for v in rows.pack().values() if isinstance(v, str)) < 36 * p.n


@pytest.mark.parametrize("damage", ["n", "nll", "ids", "correct", "salt"])
def test_damaged_rows_are_refused(damage: str) -> None:
    packed = baseline.rows(predictions(), columns(predictions())).pack()
    del packed[damage]
    with pytest.raises(InputError, match=r"facts\.rows"):
        baseline.BaselineRows.unpack(packed, "base.json")
    if damage in ("nll", "ids", "correct"):
        for bad in ("!!", "AAAA", packed["nll" if damage == "ids" else "ids"]):
            with pytest.raises(InputError, match=r"damaged|facts\.rows"):
                baseline.BaselineRows.unpack({**packed, damage: bad}, "base.json")


def test_gain_is_cross_fitted_by_id() -> None:
    p = predictions()
    from calibcli.scores.likelihood import fit_beta, nll_rows

    fold = folds_of(p)
    assert set(fold.tolist()) == set(range(5))
    shuffled = p.take(np.arange(p.n)[::-1])
    assert np.array_equal(folds_of(shuffled), fold[::-1])
    i = 7
    train = fold != fold[i]
    beta = fit_beta(p.logits[train], p.labels[train]).beta
    one = p.take(np.array([i]))
    expected = nll_rows(one.logits, one.labels) - nll_rows(one.logits, one.labels, beta)
    assert baseline.rows(p, columns(p)).gain[i] == pytest.approx(expected[0], rel=1e-5)


def test_pairing() -> None:
    p = predictions()
    base = baseline.rows(p, columns(p))
    order = np.random.default_rng(3).permutation(p.n)[:200]
    part = p.take(order)
    new = baseline.rows(part, columns(part), base.salt)
    found = pair(new, base)
    assert isinstance(found, Pairing)
    assert np.array_equal(order[found.new], found.base)
    assert "200 in both" in found.how
    assert "no row" in str(pair(baseline.rows(part, columns(part)), base))

    q = predictions(ids=False)
    plain = baseline.rows(q, columns(q))
    position = pair(plain, base)
    assert isinstance(position, Pairing)
    assert "by position" in position.how
    other = predictions(ids=False, seed=1)
    assert "label sequences differ" in str(pair(baseline.rows(other, columns(other)), base))
    fewer = predictions(n=200, ids=False)
    assert "numbers differ" in str(pair(baseline.rows(fewer, columns(fewer)), base))
    double = Predictions.of(p.logits, p.labels, ids=np.array(["a"] * p.n))
    assert "not unique" in str(pair(baseline.rows(double, columns(double), base.salt), base))


def test_too_many_rows_to_keep(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(baseline, "CAP", 100)
    with pytest.raises(UsageError, match="more than --keep-rows keeps"):
        baseline.rows(predictions(), columns(predictions())).pack()


@pytest.mark.parametrize(("limit", "outcome"), [(0.03, "pass"), (0.015, "inconclusive"), (0.001, "inconclusive")])
def test_a_bound_from_above_alone_can_pass_but_not_fail(limit: float, outcome: str) -> None:
    e = Estimate(name="classwise_ece", value=0.014, high=0.02, level=0.95, sided="upper", n=500)
    verdict = judge(SupportedClaim(estimate=e, low=None, high=0.02), "max", limit)
    assert verdict.outcome == outcome
    assert judge(SupportedClaim(estimate=e, low=None, high=0.02), "min", limit).outcome == "not_run"


def test_few_groups_are_not_run_with_the_value_and_what_would_help() -> None:
    p = predictions()
    for sizes in (np.arange(p.n) % 5, np.minimum(np.arange(p.n) // 3, 40)):
        found = calibcli.check(p.logits, p.labels, group=sizes, max={"ece": 0.05, "nll": 5.0}).checks
        assert [check.outcome for check in found] == ["not_run"] * 2
        assert all(check.estimate is not None and check.estimate.value is not None for check in found)
        assert all("bounds need 10: draw more of them" in check.message for check in found)


def test_a_slope_that_few_rows_decide_is_not_judged() -> None:
    """`metrics` shows its interval, which covers; but one sure wrong row more or less turns a verdict."""
    rng = np.random.default_rng(0)
    z = np.stack([np.zeros(300), 1.7 + 0.3 * rng.normal(size=300)], axis=1)
    z[:6, 1] = 25
    y = (rng.random(300) < 0.85).astype(int)
    y[:6] = [1, 1, 0, 1, 1, 1]
    shown = calibcli.measure(z, y, "cox_slope")["cox_slope"]
    assert shown.low is not None
    assert shown.high is not None
    [verdict] = calibcli.check(z, y, min={"cox_slope": 0.9}).checks
    assert verdict.outcome == "not_run"
    assert "rows decide it" in verdict.message


def test_rows_that_would_decide_are_counted_in_groups(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """More rows of the same groups decide nothing."""
    rng = np.random.default_rng(1)
    z = 2 * rng.normal(size=(600, 3))
    y = np.array([rng.choice(3, p=p / p.sum()) for p in np.exp(z)])
    np.savez(tmp_path / "rows.npz", logits=z, labels=y, site=np.arange(600) % 12)
    for limit in ("ece=0.1", "nll=0.7"):
        main(["check", str(tmp_path / "rows.npz"), "--max", limit, "--group", "site", "--json"])
        [check] = json.loads(capsys.readouterr().out)["checks"]
        assert check["outcome"] == "inconclusive"
        rows = check["n_needed"]
        assert f"about {rows} rows, in {math.ceil(rows * 12 / 600)} groups, would decide" in check["message"]
