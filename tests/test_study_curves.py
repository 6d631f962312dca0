"""Studies: one curve through the arms of several causes, checks of identities, and margins that are shares."""

from __future__ import annotations

import dataclasses
import itertools
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from scipy import optimize, stats

from calibcli.core.errors import UsageError
from calibcli.lab.study import _curve, claims, experiment, parsing
from calibcli.lab.study import report as judgement
from calibcli.lab.study.claims import ClaimVerdict, MeasuredArm

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
CAUSES = {"a": [1, 2], "b": [3, 4], "c": [5, 6]}
X = np.array([40.0, 50, 60, 30, 70, 25, 90])
RECIPE = """
[data]
train = "digits#train"
validation = "digits#validation"
test = "digits#test"
[axes]
arch = ["mlp:hidden=8"]
seeds = 3
[[arm]]
name = "CE"
loss = "ce"
at = { gamma = 0, lr = 0.05 }
[[arm]]
name = "FL-{gamma}"
loss = "focal:gamma={gamma}"
gamma = [1, 3]
[[arm]]
name = "lr-{lr}"
loss = "ce"
lr = [0.01, 0.2]
[[arm]]
name = "twice"
from = "CE"
change = "logits:by=2"
[measure]
metrics = ["nll", "ece"]
[[claim]]
id = "curve"
text = "one curve"
one_curve = { metric = "nll", against = "ece", causes = ["gamma", "lr"], base = "CE" }
[[claim]]
id = "near"
text = "near"
preserved = { metric = "nll", a = "FL-1", b = "CE", margin = "20%" }
[[claim]]
id = "same"
text = "same"
check = { metric = "nll after", a = "twice", b = "CE" }
"""


def arms(values: np.ndarray, noise: float, seed: int, seeds: int = 6) -> list[MeasuredArm]:
    rng = np.random.default_rng(seed)
    return [MeasuredArm(value + noise * rng.standard_normal(seeds)) for value in values]


def judged(off: float = 0.0, noise: float = 0.02, margin: float | str = "20%", of_x: float = 0.0) -> ClaimVerdict:
    """A falling curve, off which the arms of b lie."""
    y = 20 / X + off * np.isin(np.arange(7), CAUSES["b"])
    return claims.one_curve(arms(X, of_x, 1), arms(y, noise, 2), CAUSES, margin)


def test_its_words() -> None:
    assert judged().word == "holds"
    found = judged(0.5)
    assert (found.word, found.difference is not None) == ("reversed", True)
    assert found.why.partition(" ")[0] in CAUSES
    assert "also from the nearest curve, of degree " in found.why
    assert judged(0.5, of_x=1.0).word == "reversed"
    assert judged(0.0, 0.2).word == "undecided"
    assert (judged(margin=0.08).word, judged(margin=0.001).word) == ("holds", "undecided")
    y = arms(X, 1.0, 1)
    assert claims.one_curve(y[:4], y[:4], {"a": [1], "b": [2, 3]}).word == "no verdict"
    assert "above 0" in claims.one_curve(arms(X - 50, 1.0, 1), y, CAUSES).why
    assert "above 0" in claims.one_curve(arms(0 * X + 5, 0.0, 1), y, CAUSES).why
    assert "lacks" in claims.one_curve([*y[:6], MeasuredArm(y[6].values * np.nan)], y, CAUSES).why
    assert "not known" in claims.one_curve(arms(X, 0.0, 1), arms(X, 0.0, 1), CAUSES).why
    unknown = [MeasuredArm(one.values, np.full((6, 9), np.nan)) for one in y]
    assert "not known" in claims.one_curve(unknown, unknown, CAUSES).why
    two = claims.one_curve(*([MeasuredArm(one.values[:2]) for one in arms(X, 1.0, k)] for k in (1, 2)), CAUSES)
    assert two.word != "reversed"  # two seeds leave no degrees of freedom for three causes


def test_offsets_are_those_of_a_regression_with_dummies() -> None:
    """Without errors of x: least squares on powers of ln x and the arms of a cause (Frisch and Waugh 1933)."""
    x, y = arms(X, 0.0, 1), arms(20 / X + 0.5 * np.isin(np.arange(7), CAUSES["b"]), 0.02, 2)
    found = claims.one_curve(x, y, CAUSES)
    degree = int(found.why.rpartition(" ")[2])
    powers = np.vander(np.log(X), degree + 1)
    values = np.stack([one.values for one in y])
    marks = {cause: np.isin(np.arange(7), of).astype(float) for cause, of in CAUSES.items()}
    offsets = {cause: np.linalg.pinv(np.c_[powers, d])[-1] for cause, d in marks.items()}
    weights = offsets[found.why.partition(" ")[0]]
    each = values.var(axis=1, ddof=1) / 6
    own = weights**2 * each
    assert found.difference is not None
    assert found.difference.value == pytest.approx(weights @ values.mean(axis=1))
    assert found.difference.seeds == pytest.approx(own.sum())
    assert found.difference.count - 1 == pytest.approx(5 * own.sum() ** 2 / (own**2).sum())
    # all at once: the quadratic form of their covariance, against F
    every = np.stack([*offsets.values()])
    inverse = np.linalg.inv(every * each @ every.T)
    parts = each * np.array([column @ inverse @ column for column in every.T])
    degrees = 5 * parts.sum() ** 2 / (parts**2).sum()
    sums = every @ values.mean(axis=1)
    f = sums @ inverse @ sums * (degrees - 2) / (3 * degrees)
    assert found.p == pytest.approx(stats.f.sf(f, 3, degrees - 2))


def test_the_fit_is_the_least_of_both_errors() -> None:
    """The sum over ξ and the curve of ((u - ξ)/σ)² + ((y - g(ξ))/σ)², minimized at once."""
    rng = np.random.default_rng(3)
    x = np.exp(np.linspace(0, 1, 9))[:, None] * (1 + 0.03 * rng.standard_normal((9, 4)))
    y = np.log(x.mean(axis=1))[:, None] ** 2 + 0.05 * rng.standard_normal((9, 4))
    points = _curve.Points.of(x, y, None)
    of_u, of_y, _ = points.errors

    def off(both: np.ndarray) -> np.ndarray:
        beta, xi = both[:3], both[3:]
        return np.r_[(points.u - xi) / of_u**0.5, (y.mean(axis=1) - np.polyval(beta, xi)) / of_y**0.5]

    best = optimize.least_squares(off, np.r_[0.3, 0.5, 0.2, points.u]).x
    found = points.curve(2)
    assert found.slope == pytest.approx(np.polyval(np.polyder(best[:3]), best[3:]), rel=0.06)
    assert found.leaves @ np.ones(9) == pytest.approx(np.zeros(9), abs=1e-6)  # a constant is part of the curve
    assert found.v == pytest.approx(of_y - 2 * found.slope * points.errors[2] + found.slope**2 * of_u)


def test_what_the_rows_do_to_two_arms_is_what_different_seeds_share() -> None:
    draws = np.random.default_rng(4).standard_normal((3, 4, 50)).cumsum(axis=0)
    wanted = np.zeros((3, 3))
    for i, j in itertools.product(range(3), repeat=2):
        pairs = [np.cov(draws[i, s], draws[j, t], ddof=0)[0, 1] for s, t in itertools.permutations(range(4), 2)]
        wanted[i, j] = np.mean(pairs)
    found = _curve._shared(draws)
    assert found == pytest.approx(np.where(np.eye(3), np.maximum(wanted, 0), wanted))
    assert found.diagonal() == pytest.approx([claims._shared(one) for one in draws])


@pytest.fixture(scope="module")
def bench() -> Any:
    sys.path.insert(0, str(BENCHMARKS))
    import _measured_curves

    yield _measured_curves
    sys.path.remove(str(BENCHMARKS))


@pytest.mark.parametrize(
    ("family", "most", "least"),
    [("digits: saturating", 3, 0), ("medium: c/x, moments", 3, 0), ("medium: as published", 12, 10)],
)
def test_curves_are_rarely_refuted_and_causes_are_found(bench: ModuleType, family: str, most: int, least: int) -> None:
    """The short form of `benchmarks/claims.py --only curves curves-power`: 12 studies of 4 seeds."""
    curved, rng = {**bench.FAMILIES, **bench.POWER}[family], np.random.default_rng(5)
    words = [curved.judge(*bench.measured(curved, 4, 200, rng, run)).word for run in range(12)]
    assert least <= words.count("reversed") <= most
    assert bench.follows(curved, 4) <= 1 or least


def test_sharp_truths_are_missed_by_as_much_as_they_say(bench: ModuleType) -> None:
    for name, curved in bench.SHARP.items():
        assert name.endswith(f"{curved.arms} arms, off by {f'{curved.miss:g}'.removeprefix('0')} SE")
        for seeds in bench.SEEDS:
            assert bench.follows(curved, seeds) == pytest.approx(curved.miss)


def test_a_curve_may_miss_each_arm_if_the_claim_says_so(bench: ModuleType) -> None:
    """Short forms of `benchmarks/claims.py --only allowed allowed-power`."""
    causes = bench.layout("medium", 9).causes
    sharp, rng = bench.ALLOWED["medium: tanh 8t, 9 arms, off by 1 SE"], np.random.default_rng(6)
    sides = [bench.measured(sharp, 5, 200, rng, run) for run in range(40)]
    words = [[claims.one_curve(*one, causes, miss=miss).word for one in sides] for miss in (0.0, 1.0)]
    assert words[0].count("reversed") >= 5  # 25 %
    assert words[1].count("reversed") <= 3  # 2 %
    curved = bench.POWER["medium: as published"]
    x, y = bench.measured(curved, 4, 200, np.random.default_rng(5), 0)
    causes = bench.layout(curved.of, curved.arms).causes
    found = [claims.one_curve(x, y, causes, miss=miss) for miss in (1e-9, 1.0, 2.0, 9.0)]
    assert [one.p for one in found] == sorted(one.p for one in found)
    assert [one.word for one in found] == ["reversed", "reversed", "reversed", "undecided"]
    assert re.search(r"is off by .* ± .*, more than the \S+ that misses of 1 SE make, also", found[1].why)


def test_a_margin_may_be_a_share_of_the_base() -> None:
    rng = np.random.default_rng(0)
    b = 2 + 0.05 * rng.standard_normal(8)
    a = 2.3 + 0.05 * rng.standard_normal(8)
    one, other = MeasuredArm(a), MeasuredArm(b)
    found = claims.preserved(one, other, "20%")
    above = stats.ttest_1samp(a - 1.2 * b, 0, alternative="less").pvalue
    below = stats.ttest_1samp(a - 0.8 * b, 0, alternative="greater").pvalue
    assert (found.word, found.p) == ("holds", pytest.approx(max(above, below)))
    assert found.why == f"larger, by {a.mean() / b.mean() - 1:.0%}"
    assert claims.preserved(other, one, "20%").why.startswith("smaller, by 1")
    assert claims.preserved(one, other, "10%").word == "reversed"
    assert claims.preserved(one.times(-1), other.times(-1), "20%").word == "holds"
    assert "within 12.5%" in claims.preserved(one, other, "12.5%").why
    near = MeasuredArm(a - a.mean() + 0.02 + 0.1 * (b - b.mean())), MeasuredArm(a - a.mean())
    assert claims.preserved(*near, 0.5).why == "larger, by 0.02"  # a share of what may be 0 says nothing
    assert claims.matched(other, {"a and b": (other - other, one - other)}, 0.15, "20%", other).word == "holds"
    assert claims.matched(other, {"a and b": (other - other, one - other)}, 0.15, "10%", other).word == "reversed"


def test_a_check_passes_or_fails_outside_the_headline_and_the_correction() -> None:
    study = parsing.parse(RECIPE, "recipe.toml")
    assert parsing.parse(parsing.written(study), "kept").claims == study.claims
    rng = np.random.default_rng(1)
    measured = {
        arm.name: {name: MeasuredArm(x * (1 + 0.01 * rng.standard_normal(3))) for name in ("nll", "ece", "nll after")}
        for arm, x in zip(study.arms, (1.0, 1.1, 1.3, 0.9, 1.2, 1.0), strict=True)
    }
    by_id = {claim.id: claim for claim in study.claims}

    def words(other: MeasuredArm) -> dict[str, ClaimVerdict]:
        measured["twice"]["nll after"] = other
        return claims.holm({key: judgement._judged(study, claim, measured) for key, claim in by_id.items()})

    after = measured["CE"]["nll after"]
    kept, broken = words(after.times(1 + 1e-9)), words(MeasuredArm(after.values + np.array([0, 0, 0.1])))
    assert (kept["same"].word, broken["same"].word) == ("pass", "fail")
    assert broken["same"].why.startswith("2 of 3 seeds; furthest apart by 0.1")
    assert claims.count(kept) == 2
    passed, failed = (judgement.JudgedClaim("same", by_id["same"], of["same"], False) for of in (kept, broken))
    (table,) = judgement._exact([passed, failed])
    assert (table.title, [row[2] for row in table.rows]) == ("Checks: 1 of 2 pass, not same", ["pass", "fail"])
    check = judgement._check(failed, True, 2)
    assert (check.outcome, check.fatal, check.message.partition(":")[0]) == ("fail", True, "fail")
    single = dataclasses.replace(study, seeds=1)
    assert judgement._judged(single, by_id["same"], measured).word == "fail"  # which needs no error
    assert judgement._judged(single, by_id["near"], measured).word == "no verdict"
    sides = [claims.check(after.times(2), after, side).word for side in ("same", "above", "below")]
    assert sides == ["fail", "pass", "fail"]
    verdict = judgement._judged(study, by_id["curve"], measured)
    assert verdict.word in ("holds", "undecided")
    assert "of degree 1" in verdict.why


def refusal(text: str, source: str = "recipe.toml", *size: str) -> str:
    """What is said of a recipe that is refused, with the fix."""
    with pytest.raises(UsageError) as error:
        parsing.parse(text, source, *size)
    return f"{error.value.problem} {error.value.fix}"


@pytest.mark.parametrize(
    ("old", "new", "match"),
    [
        ('margin = "20%"', 'margin = "0%"', 'margin = 0.005, or a share such as "20%"'),
        ('margin = "20%"', 'margin = "much"', 'margin = 0.005, or a share such as "20%"'),
        ('margin = "20%"', "margin = -1", 'margin = 0.005, or a share such as "20%"'),
        ('b = "CE" }', 'b = "CE", side = "left" }', '"same", "above" or "below"'),
        ("lr = [0.01, 0.2]", "lr = [0.01]", "one_curve takes 5 arms or more, and causes have 4"),
    ],
)
def test_mistakes(old: str, new: str, match: str) -> None:
    assert RECIPE.count(old) >= 1
    assert match in refusal(RECIPE.replace(old, new))


def test_the_causes_table_has_a_slope_where_x_and_y_surely_move() -> None:
    study = parsing.parse(RECIPE, "recipe.toml")
    level = {"CE": (1.0, 1.0), "FL-1": (1.2, 1.0), "FL-3": (1.4, 1.0), "lr-0.01": (0.8, 0.9), "lr-0.2": (1.2, 1.1)}
    rng = np.random.default_rng(0)
    measured = {
        name: {
            "ece": MeasuredArm(x + 0.01 * rng.standard_normal(3)),
            "nll": MeasuredArm(y + 0.01 * rng.standard_normal(3)),
        }
        for name, (x, y) in level.items()
    }
    rows = {row[1]: row[-1] for row in judgement._slopes(study, {study.arch[0]: measured})[0].rows}
    assert rows["gamma"] == "does not surely move y"
    assert float(str(rows["lr"])) == pytest.approx(0.5, abs=0.1)
    assert "side" in experiment.VALUES
