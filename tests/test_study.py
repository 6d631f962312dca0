"""Studies: verdicts against independent tests, recipes with mistakes, runs that were killed or shared."""

from __future__ import annotations

import copy
import dataclasses
import functools
import io
import itertools
import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

import calibcli
from calibcli import calibrators, render
from calibcli.api import experiments
from calibcli.cli.app import main
from calibcli.core.errors import InputError, UsageError, WriteError
from calibcli.core.result import Check, Result
from calibcli.lab.study import _figures as figures
from calibcli.lab.study import _readings as readings
from calibcli.lab.study import analytic, claims, experiment, parsing
from calibcli.lab.study import report as judgement
from calibcli.lab.study import runs as work
from calibcli.lab.study._readings import draws, means, sums
from calibcli.lab.study.claims import ClaimVerdict, MeasuredArm, SeedMean
from calibcli.lab.study.report import report
from calibcli.lab.training._one_model import train_numbers
from calibcli.lab.training.batches import Loader
from calibcli.lab.training.recipes import CHANGES
from calibcli.metrics import METRICS
from calibcli.networks.architectures import build
from calibcli.networks.dataset import synthetic
from calibcli.networks.dataset.loading import load
from calibcli.scores.columns import columns
from calibcli.scores.likelihood import log_phi, log_softmax

ROOT = Path(__file__).parent.parent
SIZES = experiment.SIZES
LITTLE = """
[study]
name = "little"
[data]
train = "digits#train"
validation = "digits#validation"
test = "digits#test"
[axes]
arch = ["mlp:hidden=8"]
seeds = 2
[train]
epochs = 2
batch-size = 50
[[arm]]
name = "CE"
loss = "ce"
at = { gamma = 0 }
[[arm]]
name = "FL-{gamma}"
loss = "focal:gamma={gamma}"
gamma = [1, 3]
[measure]
metrics = ["error", "nll", "ece"]
curvature = ["lambda_max"]
[[claim]]
id = "nll"
text = "FL-3 has a lower NLL"
less = { metric = "nll", a = "FL-3", b = "CE" }
[[claim]]
id = "own"
text = "curvature falls with gamma"
decreasing = { metric = "lambda_max of ce", along = "gamma" }
"""


PRINTED = '[[printed]]\nnetwork = "mlp:hidden=8"\ndata = "digits"\narm = "CE"\n'
FALLS = 'decreasing = { metric = "lambda_max of ce", along = "gamma" }'
ALIKE = 'alike = { metric = "nll", against = "ece", causes = ["gamma", "margin"], base = "CE" }'


def arm(*values: float) -> MeasuredArm:
    return MeasuredArm(np.array(values))


# verdicts -------------------------------------------------------------------------------------------------------------


def test_without_rows_it_is_the_paired_t_test() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.normal(0, 1, 7), rng.normal(0.7, 1, 7)
    found = SeedMean.of(arm(*a) - arm(*b))
    wanted = stats.ttest_rel(a, b)
    assert found.p() == pytest.approx(wanted.pvalue, rel=1e-9)
    low, high = wanted.confidence_interval(0.9)
    assert (found.value - found.half(0.9), found.value + found.half(0.9)) == pytest.approx((low, high), rel=1e-9)


def test_what_is_not_known_of_one_draw_or_run_decides_nothing() -> None:
    values, draws_of_rows = np.array([1.0, 1.1, 0.9]), np.random.default_rng(0).normal(1, 0.01, (3, 50))
    draws_of_rows[1, 7] = np.nan  # no row of that draw is one that the metric is about
    for unknown in (MeasuredArm(values, draws_of_rows), arm(1.0, np.nan, 0.9)):
        mean = SeedMean.of(unknown)
        assert (mean.p(), mean.sure()) == (1.0, 0)
        assert claims.less(unknown, MeasuredArm(np.array([9.0, 9.1, 8.9]), np.full((3, 50), 9.0))).word == "undecided"
    levels = [arm(float(i), i + 0.1, i + 0.2) for i in range(6)]
    assert claims.slope(levels, levels, 1, drawn=True).word == "holds"
    assert claims.slope(levels, [*levels[:5], arm(5.0, np.nan, 5.1)], 1, drawn=True).word == "undecided"


def test_rows_are_counted_where_every_arm_of_a_claim_knows_them() -> None:
    study = parsing.parse(LITTLE, "little.toml")
    [claim] = (one for one in study.claims if one.id == "nll")
    known, alone = MeasuredArm(np.ones(2), np.ones((2, 5))), arm(1.0, 1.0)
    assert judgement._counted(study, claim, {"CE": {"nll": known}, "FL-3": {"nll": known}})
    assert not judgement._counted(study, claim, {"CE": {"nll": known}, "FL-3": {"nll": alone}})


def test_a_binned_error_of_the_log_may_cross() -> None:
    crossing = 'crosses = { metric = "ece", a = "CE", b = "FL-3", first = 50, last = 100 }'
    text = LITTLE.replace(FALLS, crossing).replace("[measure]", '[measure]\nlog = ["ece"]\nmoments = [50, 100]')
    study = parsing.parse(text, "little.toml")
    [claim] = (one for one in study.claims if one.kind == "crosses")
    assert claim.numbers == ("ece at 50%", "ece at 100%")
    first, last = claim.numbers
    arms = {"CE": {first: arm(0.0, 0.001), last: arm(2.0, 2.001)}}
    arms["FL-3"] = {name: arm(1.0, 1.0) for name in claim.numbers}
    assert judgement._judged(study, claim, arms).word == "holds"
    assert not judgement._counted(study, claim, arms)


def test_two_one_sided_tests() -> None:
    d = np.array([0.001, 0.004, -0.002, 0.003, 0.0])
    zero = arm(*np.zeros(5))
    tails = [stats.ttest_1samp(d, 0.005, alternative="less"), stats.ttest_1samp(d, -0.005, alternative="greater")]
    verdict = claims.preserved(arm(*d), zero, 0.005)
    assert (verdict.word, verdict.p) == ("holds", pytest.approx(max(t.pvalue for t in tails), rel=1e-9))
    assert claims.preserved(arm(*d), zero, 0.002).word == "undecided"
    for off in (0.05, -0.05):
        assert claims.preserved(arm(*(d + off)), zero, 0.005).word == "reversed"


def test_rows_widen_and_decide_what_is_needed() -> None:
    rows = np.random.default_rng(1).normal(0, 0.5, 400)
    same = np.tile(rows, (3, 1))  # what the rows do is the same for every seed
    one, two = MeasuredArm(np.array([1.0, 1.1, 0.9]), same), MeasuredArm(np.zeros(3), np.zeros((3, 400)))
    found = SeedMean.of(one - two)
    assert found.rows == pytest.approx(rows.var())
    student, normal = stats.t.ppf(0.975, 2), stats.norm.ppf(0.975)
    assert found.half(0.95) ** 2 == pytest.approx(student**2 * found.seeds + normal**2 * found.rows, rel=1e-9)
    assert found.half(0.95, rows=False) == pytest.approx(SeedMean.of(MeasuredArm(one.values)).half(0.95))
    for level in (0.5, 0.9, 0.999):  # p is that of the interval that just reaches
        assert found.p(found.value + found.half(level)) == pytest.approx(1 - level, rel=1e-6)
    assert claims.less(two, MeasuredArm(one.values + 1, same)).word == "holds"
    loud = MeasuredArm(np.array([1.0, 1.1, 0.9]), 4 * same)
    undecided = claims.less(two, loud)
    assert (undecided.word, undecided.seeds_needed) == ("undecided", None)
    assert undecided.rows_times == pytest.approx(16 * rows.var() * 1.959964**2, rel=0.01)
    own = np.random.default_rng(2).normal(
        0, 0.5, (3, 4000)
    )  # what the rows do to each seed by itself is in the seeds' part
    assert SeedMean.of(MeasuredArm(one.values, own)).rows < 0.1 * own.var() / 3
    few = claims.less(arm(0.0, 0.9, -0.4), arm(1.0, 0.8, 0.4))
    assert few.word == "undecided"
    assert few.seeds_needed is not None
    assert 4 <= few.seeds_needed < 100


def test_steps_that_fall() -> None:
    falls = [arm(3.0, 3.1, 2.9), arm(2.0, 2.1, 2.0), arm(1.0, 1.1, 0.9)]
    assert claims.decreasing(falls).word == "holds"
    assert claims.decreasing(falls[::-1]).word == "reversed"
    assert claims.decreasing([*falls, arm(1.0, 0.9, 1.1)]).word == "undecided"
    worst = max(stats.ttest_rel(a.values, b.values).pvalue for a, b in itertools.pairwise(falls))
    assert claims.decreasing(falls).p == pytest.approx(worst, rel=1e-9)


def test_an_order_that_reverses() -> None:
    low, high = arm(-1.0, -1.1, -0.9), arm(2.0, 2.2, 1.9)
    assert claims.crosses(low, high).word == "holds"
    assert claims.crosses(high, low).word == "reversed"
    assert claims.crosses(low, low).word == "reversed"
    assert claims.crosses(low, arm(2.0, -2.0, 0.5)).word == "undecided"
    wanted = max(stats.ttest_1samp(one.values, 0).pvalue for one in (low, high))
    assert claims.crosses(low, high).p == pytest.approx(wanted, rel=1e-9)


def test_a_least_in_between() -> None:
    high, low, mid = arm(3.0, 3.2, 3.1), arm(1.0, 1.1, 1.05), arm(2.0, 2.1, 2.2)
    assert claims.interior_minimum([high, low, mid]).word == "holds"
    assert claims.interior_minimum([low, mid, high]).word == "reversed"
    assert claims.interior_minimum([low, high]).word == "no verdict"
    for seeds in (6, 60):
        noise = np.random.default_rng(2).normal(0, 1, (5, seeds))
        assert claims.interior_minimum([arm(*row) for row in noise]).word == "undecided"


def test_a_least_in_between_on_a_measured_axis() -> None:
    near, far = np.array([0.1, -0.1, 0.05, -0.05, 0.0]), np.array([-0.2, 0.1, 0.1, 0.2, -0.2])
    x = [arm(*(level + shift)) for level, shift in ((1.0, near), (9.0, far), (5.0, near), (1.05, far), (5.2, far))]

    def on(*levels: float) -> ClaimVerdict:
        noise = np.array([0.01, -0.02, 0.02, 0.0, -0.01])
        return claims.interior_minimum_along(x, [arm(*(v + noise * i)) for i, v in enumerate(levels)])

    assert on(3.0, 3.0, 1.0, 2.9, 2.0).word == "holds"
    assert on(3.0, 3.0, 1.0, 0.9, 2.0).word == "undecided"  # 1.05 is not told from 1: it belongs to that end
    assert on(1.0, 3.0, 2.0, 1.1, 2.0).word == "reversed"
    found = on(3.0, 2.0, 1.0, 2.9, 1.5)  # the least of two, by the end whose p is largest
    y = [arm(*(v + np.array([0.01, -0.02, 0.02, 0.0, -0.01]) * i)) for i, v in enumerate((3.0, 2.0, 1.0, 2.9, 1.5))]
    wanted = max(stats.ttest_rel(y[2].values, y[end].values).pvalue for end in (0, 1, 3))
    assert found.p == pytest.approx(wanted, rel=1e-9)
    assert (
        claims.interior_minimum_along(x[:2], y[:2]).word,
        claims.interior_minimum_along([x[0]] * 3, y[:3]).word,
    ) == (
        "no verdict",
        "no verdict",
    )
    assert claims._least(ClaimVerdict("holds", 0.02), 4).p == pytest.approx(0.04)
    assert claims._least(ClaimVerdict("holds", 0.02), 6).word == "undecided"


def test_steps_between_groups_on_a_measured_axis() -> None:
    rng = np.random.default_rng(0)
    x = [MeasuredArm(level + 0.1 * rng.standard_normal(6)) for level in (5.0, 1.0, 1.02, 9.0)]
    y = [MeasuredArm(level + 0.1 * rng.standard_normal(6)) for level in (2.0, 3.0, 3.4, 1.0)]
    found = claims.decreasing_along(x, y)
    pairs = ((1, 0), (2, 0), (0, 3))  # 1 and 2 are not told apart
    wanted = max(stats.ttest_rel(y[a].values, y[b].values).pvalue for a, b in pairs)
    assert (found.word, found.p) == ("holds", pytest.approx(wanted, rel=1e-9))
    assert claims.decreasing_along([MeasuredArm(-one.values) for one in x], y).word == "reversed"
    assert claims.decreasing_along(x, [y[0], y[1], y[3], y[3]]).word == "undecided"
    assert claims.decreasing_along(x[1:3], y[1:3]).why == "the axis separates none"


def test_a_slope_over_drawn_arms_is_a_permutation_of_arms() -> None:
    rng = np.random.default_rng(4)
    u, v = 2.0 * np.arange(5)[:, None] + rng.standard_normal((2, 5, 3))

    def association(order: tuple[int, ...]) -> float:  # of x of the first and third seed and y of the second
        return stats.pearsonr(u[:, [0, 2]].mean(axis=1), v[list(order), 1]).statistic

    every = np.abs([association(order) for order in itertools.permutations(range(5))])
    x, y = ([MeasuredArm(row) for row in side] for side in (u, v))
    found = claims.slope(x, y, 1, drawn=True)
    assert found.p == pytest.approx(np.mean(every >= every[0] - 1e-9))
    assert (found.word, claims.slope(x, y, -1, drawn=True).word) == ("holds", "reversed")
    described = claims.slope(x, y, 1)
    assert (described.word, described.p) == ("no verdict", 1.0)
    assert described.difference is not None
    slopes = [stats.linregress(u[:, s], v[:, s]).slope for s in range(3)]
    assert described.difference.value == pytest.approx(np.mean(slopes))
    assert claims.slope(x[:4], y[:4], 1, drawn=True).word == "no verdict"
    many = [MeasuredArm(np.array([i, i + 0.1, i - 0.1])) for i in range(claims.EXACT + 1)]
    assert claims.slope(many, many, 1, drawn=True).p < 1e-3


def test_unrelated_drawn_arms_are_rarely_associated() -> None:
    """Even where what a seed does to x and y of one run is the same."""
    rng, false = np.random.default_rng(0), 0
    for _ in range(600):
        noise, (x, y) = rng.standard_normal((6, 3)), rng.standard_normal((2, 6, 1))
        false += claims._permuted(x + noise, y + noise)[1] < 0.05
    assert false / 600 < 0.075


def _causes(rng: np.random.Generator, seeds: int, slopes: tuple[float, ...], noise: float) -> dict[str, claims.Cause]:
    moves = (8.0, -30.0, 12.0, 50.0)
    return {
        str(i): (
            MeasuredArm(moves[i] + noise * rng.standard_normal(seeds)),
            MeasuredArm(slope * moves[i] + noise * rng.standard_normal(seeds)),
        )
        for i, slope in enumerate(slopes)
    }


def test_causes_that_act_alike() -> None:
    rng = np.random.default_rng(1)
    assert claims.alike(_causes(rng, 5, (1.0, 1.1, 1.0), 0.3)).word == "holds"
    assert claims.alike(_causes(rng, 5, (-1.0, -1.1, -1.0), 0.3)).word == "holds"
    assert claims.alike(_causes(rng, 5, (1.0, 1.1, 3.0), 0.3)).word == "reversed"
    assert claims.alike(_causes(rng, 5, (1.0, -1.0), 0.3)).why.startswith("the slopes of 0 and 1 differ")
    assert claims.alike(_causes(rng, 5, (1.0, 1.0, 1.0), 8.0)).word == "undecided"
    still = {
        **_causes(rng, 5, (1.0, 1.0), 0.3),
        "still": (arm(0.1, -0.1, 0.05, 0.0, -0.1), arm(9.0, 9.1, 9.2, 9.0, 8.9)),
    }
    assert claims.alike(still).word == "reversed"  # it moves y, and not x
    false = sum(claims.alike(_causes(rng, 4, (1.0,) * 4, 4.0)).word == "reversed" for _ in range(400))
    assert false / 400 < 0.08
    # the jackknife of a product of means, by leaving out one seed after the other
    one, two = _causes(rng, 4, (1.0, 2.0), 1.0).values()
    numbers = np.stack([part.values for part in (*one, *two)])

    def crossed(of: np.ndarray) -> float:
        return float(of[1].mean() * of[2].mean() - of[3].mean() * of[0].mean())

    wanted = [4 * crossed(numbers) - 3 * crossed(np.delete(numbers, s, axis=1)) for s in range(4)]
    both = [MeasuredArm(part.values, np.tile(part.values[:, None], 7)) for part in (*one, *two)]
    found = claims._crossed((both[0], both[1]), (both[2], both[3]), 1.0)
    assert found.values == pytest.approx(wanted)
    assert found.draws == pytest.approx(np.tile(np.array(wanted)[:, None], 7))


def test_a_contrast_is_linear_in_the_rank_of_the_dose() -> None:
    levels = [arm(*row) for row in np.random.default_rng(0).standard_normal((4, 3))]
    found = claims.contrast(levels, base=1)
    wanted = [stats.linregress([-1, 0, 1, 2], [level.values[s] for level in levels]).slope for s in range(3)]
    assert found.values == pytest.approx(wanted)


def test_arms_with_the_same_curvature() -> None:
    base, little = arm(50.0, 50.5, 49.5), np.array([0.1, -0.1, 0.0])

    def judged(*pairs: tuple[float, float]) -> ClaimVerdict:
        of = {str(i): (arm(*(x + little)), arm(*(y + 0.01 * little))) for i, (x, y) in enumerate(pairs)}
        return claims.matched(base, of, within=0.15, margin=0.01)

    assert judged((1.0, 0.002), (-7.0, 0.0)).word == "holds"
    assert judged((1.0, 0.002), (-7.0, 0.03)).word == "reversed"
    assert judged((1.0, 0.002), (-8.0, 0.03)).word == "holds"  # that pair is not near
    assert judged((1.0, 0.0095)).word == "undecided"
    assert judged((20.0, 0.0), (-8.0, 0.0)).why == "no pair is shown to be within 15%"
    one = judged((1.0, 0.03))
    assert one.difference is not None
    assert one.p == pytest.approx(
        max(one.difference.p(0.01), claims._one_sided(SeedMean.of(arm(*(1 + little)) - base.times(0.15)), 0, -1))
    )


def test_what_could_have_been_shown_is_shown_in_four_of_five() -> None:
    rng, studies = np.random.default_rng(0), 2000
    for seeds, rows in ((5, 0.0), (5, 1.0), (10, 0.3)):
        true = SeedMean(0.0, 1.0, rows, seeds)  # variances of the mean
        value = true.shown() + rng.standard_normal(studies) * (1 + rows) ** 0.5
        spread = rng.chisquare(seeds - 1, studies) / (seeds - 1)
        found = [SeedMean(v, s, rows, seeds).sure() for v, s in zip(value, spread, strict=True)]
        assert np.mean(np.array(found) == 1) == pytest.approx(0.8, abs=0.035)
        assert true.shown(4) > true.shown()


def test_closeness() -> None:
    assert claims.close_to(arm(1.0, 1.02, 0.98, 1.01, 0.99), 0.9, 1.1).word == "holds"
    assert claims.close_to(arm(2.0, 2.02, 1.98), 0.9, 1.1).word == "reversed"
    assert claims.close_to(arm(1.0, 1.2, 0.7), 0.9, 1.1).word == "undecided"
    near = [
        1.04,
        1.0,
        1.02,
        1.0,
        1.01,
    ]
    found, wanted = claims.close_to(arm(*near), 0.98, 1.2), stats.ttest_1samp(near, 0.98).pvalue
    assert (found.word, found.p) == ("undecided", pytest.approx(25 * wanted))
    assert wanted < 0.02


def test_a_mean_of_seeds_that_lie_askew_is_rarely_on_a_wrong_side() -> None:
    values = np.random.default_rng(0).standard_normal((2000, 4)) ** 2
    found = [claims.close_to(arm(*row), 1.0, 9.0).word for row in values]
    assert found.count("reversed") / len(found) < 0.06
    t = stats.ttest_1samp(values, 1.0, axis=1)
    assert np.mean((t.pvalue < 0.05) & (t.statistic < 0)) > 0.15


def test_what_is_known_of_a_kind_of_claim_stands_on_its_entry() -> None:
    """Its keys have values to write, its statistic has the name of the kind, and simulations judge it."""
    simulated = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "benchmarks").glob("_measured_*.py"))
    simulated += (ROOT / "benchmarks" / "claims.py").read_text(encoding="utf-8")
    for entry in claims.KINDS:
        assert entry.options.keys() <= experiment.VALUES.keys(), entry.name
        assert set(entry.traits.moments) <= entry.options.keys()
        assert callable(getattr(claims, entry.name))
        assert entry.traits.exact or f"claims.{entry.name}" in simulated


def test_holm_and_two_estimators() -> None:
    found = {"a": ClaimVerdict("holds", 0.01), "b": ClaimVerdict("reversed", 0.02), "c": ClaimVerdict("undecided", 0.5)}
    kept = claims.holm(found)
    assert {k: (v.word, v.p) for k, v in kept.items()} == {
        "a": ("holds", 0.03),
        "b": ("reversed", 0.04),
        "c": ("undecided", 0.5),
    }
    assert claims.holm({**found, "d": ClaimVerdict("holds", 0.04)})["d"].word == "undecided"
    further = claims.holm({**found, "d": ClaimVerdict("undecided", 0.3), "e": ClaimVerdict("undecided", 0.001)})
    assert (further["a"].p, further["b"].word, further["b"].p) == (0.05, "undecided", 0.08)  # "e" makes neither milder
    assert [further[key].p for key in "cde"] == [0.6, 0.6, 0.005]  # and the others are corrected, too
    assert claims.both(ClaimVerdict("holds", 0.01), ClaimVerdict("undecided", 0.3)).word == "undecided"
    assert claims.both(ClaimVerdict("holds", 0.01), ClaimVerdict("holds", 0.03)).p == 0.03


@pytest.mark.slow
@pytest.mark.parametrize(("seeds", "share"), [(3, 1.5), (5, 2.0)])
def test_intervals_cover_and_few_arms_that_are_alike_are_told_apart(seeds: int, share: float) -> None:
    """The short form of benchmarks/claims.py: the seeds' error is `share` times that of the rows, which all runs share.

    Two other intervals cover too little, Satterthwaite's and that of these rows alone: it would be noticed.
    """
    rng, n, studies = np.random.default_rng(seeds), 100, 1000
    own = share * np.sqrt(seeds / n) * rng.standard_normal((studies, 2, seeds))
    covered = dict.fromkeys(("interval", "Satterthwaite", "these rows alone"), 0)
    false, many = 0, [draws(n, 100, seed) for seed in range(20)]
    for number in range(studies):
        times = many[number % 20]
        rows = rng.standard_normal(n)  # what they add to one arm and not to the other, in every run of it
        a, b = (
            MeasuredArm(np.array([one.value for one in runs]), np.stack([one.drawn(times) for one in runs]))
            for runs in ([means(rows * side + one) for one in ones] for side, ones in enumerate(own[number] / 2**0.5))
        )
        found = SeedMean.of(a - b)
        total = found.seeds + found.rows
        half = {
            "interval": found.half(0.95),
            "Satterthwaite": stats.t.ppf(0.975, (seeds - 1) * (total / found.seeds) ** 2) * total**0.5,
            "these rows alone": found.half(0.95, rows=False),
        }
        for name, reach in half.items():
            covered[name] += bool(abs(found.value) <= reach)
        false += claims.less(a, b).word != "undecided"
    shares = {name: count / studies for name, count in covered.items()}
    assert false == studies - covered["interval"]  # the verdict is that of the interval
    assert shares["interval"] > 0.945, shares
    assert shares["interval"] < 0.985, shares
    assert max(shares["Satterthwaite"], shares["these rows alone"]) < 0.945, shares


# metrics on draws of the rows -----------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("k", [2, 4])
def test_sums_are_the_metrics_and_draws_are_weights(k: int) -> None:
    rng = np.random.default_rng(k)
    logits = rng.normal(0, 2, (300, k))
    labels = np.array([rng.choice(k, p=np.exp(z) / np.exp(z).sum()) for z in logits / 1.5])
    specs = {"error": "accuracy", "ece2_debiased": "ece2_debiased"}
    rows = calibcli.from_arrays(logits, labels)
    made = columns(rows, class_bins=())
    times = draws(300, 3)
    for name in readings.names():
        if k > 2 and name != readings.ERROR and METRICS.entries[name].traits.two_classes:
            continue
        spec = specs.get(name, name)
        flip = (lambda v: 1 - v) if name == "error" else (lambda v: v)
        value = calibcli.measure(logits, labels, spec)[spec].value
        wanted = np.nan if value is None else flip(value)  # none where no row is so sure
        assert sums(name, made, rows).value == pytest.approx(wanted, rel=1e-10, abs=1e-13, nan_ok=True), name
        if name in ("adaece", "ece2_debiased"):  # the edges of equal mass move with the draw
            continue
        for drawn, weight in zip(sums(name, made, rows).drawn(times), times, strict=True):
            again = calibcli.measure(logits, labels, spec, weights=weight, weight_kind="count")[spec].value
            assert drawn == pytest.approx(np.nan if again is None else flip(again), rel=1e-5, nan_ok=True), name


# recipes --------------------------------------------------------------------------------------------------------------


def test_the_studies_that_come_along_are_well_formed() -> None:
    assert len(experiment.built_in()) >= 9
    for name in experiment.built_in():
        text, source = experiment.text_of(name)
        small, medium, paper = (parsing.parse(text, source, size, "x.npz" * (size != "small")) for size in SIZES)
        assert small.question.endswith("?")
        assert all(one.paper and one.bibtex and one.cost and one.differs for one in (small, medium, paper))
        assert vars(parsing.parse(parsing.written(small), "kept")) == vars(small)
        if small.computes:
            assert small.computes in analytic.COMPUTED
            continue
        assert small.claims
        assert small.seeds >= 3
        assert len({one.cost for one in (small, medium, paper)}) == 3
        assert (paper.train, paper.test) == ("x.npz#train", "x.npz#test")
        assert bool(paper.split) != bool(paper.validation)
        if paper.split:
            with pytest.raises(UsageError, match="names no train"):
                parsing.parse(text, source)


@pytest.mark.parametrize(
    ("old", "new", "match"),
    [
        ("[axes]", "[axis]", r"little.toml:8: the study has no key 'axis'"),
        ("epochs = 2", "epoch = 2", r"little.toml:12: \[train\] has no key 'epoch'"),
        ("epochs = 2", "epochs = 0", r"little.toml:12: epochs = 0 in \[train\]"),
        ("seeds = 2", "seeds = 2\nseeds = 3", "is not TOML"),
        ('name = "little"', 'name = "little"\ncomputes = "x"', "nothing is computed by the name 'x'"),
        ("gamma = [1, 3]", "", "no values for {gamma}"),
        ('name = "FL-{gamma}"', 'name = "FL"', "two arms are called 'FL'"),
        ('loss = "ce"', 'loss = "cee"', "unknown loss"),
        ('b = "CE"', 'b = "Ce"', "claim nll: no arm 'Ce'"),
        ('metric = "nll"', 'metric = "brier"', "'brier' is not measured"),
        ('along = "gamma"', 'along = "width"', "no arms lie along 'width'"),
        ("less =", "fewer =", "needs id, text and one of"),
        ('"ece"]', '"ecee"]', "has no metric 'ecee'"),
        ('["lambda_max"]', '["lambda"]', "has no quantity 'lambda'"),
        ('test = "digits#test"', "", "names no test rows"),
        ("[study]", "schema = 9\n[study]", "has schema 9"),
        (', b = "CE" }', " }", "claim nll lacks b"),
        ("epochs = 2", "device = 0", r"little.toml:12: device = 0"),
        ("seeds = 2", 'seeds = "two"', r'little.toml:10: seeds = "two" in \[axes\]'),
        ("seeds = 2", "seeds = 2.5", "seeds = 2.5"),
        ('["mlp:hidden=8"]', '"mlp:hidden=8"', r'little.toml:9: arch = "mlp:hidden=8"'),
        ('["mlp:hidden=8"]', '["mlp:hidden=8", "mpl"]', "unknown architecture 'mpl'"),
        ('["mlp:hidden=8"]', '["mlp:hiden=8"]', "has no option 'hiden'"),
        ('["error", "nll", "ece"]', '"ece"', 'metrics = "ece"'),
        ("[measure]", "[measure]\nmoments = [0, 150]", r"moments = \[0, 150\] in \[measure\]"),
        ('train = "digits#train"', "train = 3", "little.toml:5: train = 3"),
        ('test = "digits#test"', 'test = "digits#test"\nsplit = "random"', 'split = "random"'),
        ('loss = "ce"', 'loss = "ce"\nlr = "x"', r'lr = "x" in \[\[arm\]\]'),
        ("[measure]", f"{PRINTED}numbers = {{ eec = 1 }}\n[measure]", "'eec' is printed, and is not measured"),
        ("[measure]", f"{PRINTED}numbers = 3\n[measure]", "numbers = 3"),
        ("[measure]", f"{PRINTED}[measure]", r"\[\[printed\]\] lacks numbers"),
        ("[measure]", f"{PRINTED.replace('CE', 'C')}numbers = {{ ece = 1 }}\n[measure]", "no arm 'C'"),
        ("[study]", '[study]\nprinted = "mukhoti.csv"', "did you mean 'mukhoti2020.csv'"),
        ("gamma = [1, 3]", "gamma = []", "no values for {gamma}"),
        ("at = { gamma = 0 }", 'at = { gamma = "x" }', "at = "),
        ('name = "CE"', "name = 3", r"little.toml:15: name = 3 in \[\[arm\]\]"),
        ('id = "own"', 'id = "nll"', "two claims are called 'nll'"),
        ("less = {", 'preserved = { margin = "x",', 'margin = "x"'),
        (
            'less = { metric = "nll", a = "FL-3", b = "CE" }',
            'close_to = { metric = "nll", a = "CE", low = 1, high = 0 }',
            "low is not below high",
        ),
        ("gamma = [1, 3]\n", "gamma = [3]\n", "fewer than 3 arms lie along"),
        (
            FALLS,
            'slope = { metric = "nll", against = "ece", along = "gamma", drawn = "g" }',
            "own: fewer than 6 arms lie",
        ),
        (FALLS, 'slope = { metric = "nll", against = "ece", along = "ece" }', "no arms lie along 'ece'"),
        (FALLS, ALIKE.replace("margin", "smoothing"), "'CE' and a dose of 'smoothing' are to lie along 'smoothing'"),
        (FALLS, ALIKE.replace('"CE"', '"FL-1"'), "'FL-1' and a dose of 'margin' are to lie along 'margin'"),
        (FALLS, ALIKE.replace('"gamma", ', ""), "it takes two causes or more, each once"),
        (FALLS, ALIKE.replace("alike", "matched").replace("}", ", within = 1.5 }"), "write within = 0.15"),
        (FALLS, ALIKE.replace("}", ", factor = 0.5 }"), "write factor = 2.0"),
        (FALLS, ALIKE.replace('"ece"', '"eec"'), "'eec' is not measured"),
        ("[study]", "[size]\nsmall = 3\n[study]", r"\[size.small\] is not a table"),
    ],
)
def test_mistakes_are_told_before_anything_is_trained(old: str, new: str, match: str) -> None:
    assert old in LITTLE
    text = LITTLE.replace("decreasing", "interior_minimum") if "fewer than 3" in match else LITTLE
    with pytest.raises(UsageError, match=match):
        parsing.parse(text.replace(old, new, 1), "little.toml")


CAUSES = LITTLE.replace("at = { gamma = 0 }", "at = { gamma = 0, lr = 0.05 }").replace("seeds = 2", "seeds = 4")
CAUSES = CAUSES.replace("[measure]", '[[arm]]\nname = "lr-{lr}"\nloss = "ce"\nlr = [0.01, 0.2]\n[measure]').replace(
    FALLS, 'alike = { metric = "nll", against = "lambda_max of ce", causes = ["gamma", "lr"], base = "CE" }'
)
CLAIM = '[[claim]]\nid = "{}"\ntext = "{}"\n{} = {{ metric = "nll", {} }}\n'


def test_causes_measured_axes_and_descriptions_in_a_recipe() -> None:
    """Arms of the axes of a recipe: the base arm has rank 0, wherever it lies; a description is no verdict."""
    of = 'against = "lambda_max of ce", causes = ["gamma", "lr"], base = "CE"'
    text = CAUSES + CLAIM.format("same", "same", "matched", of + ", margin = 0.02")
    text += CLAIM.format("middle", "least", "interior_minimum", 'along = "lambda_max of ce"')
    text += CLAIM.format("line", "slope", "slope", 'against = "lambda_max of ce", along = "gamma"')
    study = parsing.parse(text, "causes.toml")
    assert parsing.parse(parsing.written(study), "kept").claims == study.claims
    noise = np.random.default_rng(0).standard_normal((5, 2, 4))
    levels = {"CE": (50, 0.3), "FL-1": (54, 0.2), "FL-3": (58, 0.1), "lr-0.01": (58.1, 0.34), "lr-0.2": (42, 0.26)}
    arms = {
        name: {"lambda_max of ce": MeasuredArm(x + 0.2 * u), "nll": MeasuredArm(y + 0.004 * v)}
        for (name, (x, y)), (u, v) in zip(levels.items(), noise, strict=True)
    }
    by_id = {claim.id: claim for claim in study.claims}
    found = {key: judgement._judged(study, claim, arms) for key, claim in by_id.items()}
    assert {key: verdict.word for key, verdict in found.items()} == {
        "nll": "holds",
        "own": "reversed",
        "same": "reversed",
        "middle": "undecided",
        "line": "no verdict",
    }
    causes = judgement._claimed(study, by_id["own"], arms).effects("nll", "lambda_max of ce", ["gamma", "lr"], "CE")
    wanted = (arms["lr-0.2"]["nll"].values - arms["lr-0.01"]["nll"].values) / 2  # CE lies between them
    assert causes["lr"][1].values == pytest.approx(wanted)
    assert found["same"].why.startswith("FL-3 and lr-0.01 differ")
    table = judgement._slopes(study, {study.arch[0]: arms})[0]
    assert [row[1] for row in table.rows] == ["gamma", "lr"]
    assert float(str(table.rows[0][-1])) == pytest.approx(-0.1 / 4, rel=0.1)
    plots = figures.against(study, {study.arch[0]: arms})
    assert [plot.xlabel for plot in plots] == ["lambda_max of ce"]
    assert {curve.label for curve in plots[0].curves} == {"gamma", "lr", ""}  # of every arm, once
    for expect in (False, True):
        judged = [judgement.JudgedClaim(key, claim, found[key], False) for key, claim in by_id.items()]
        checks = {one.name: judgement._check(one, expect, 4) for one in judged}
        assert [check.fatal for check in checks.values()] == [expect] * 4 + [False]
        assert "nobody drew" in checks["line"].message


def test_gate_words_only_where_a_study_may_fail(tmp_path: Path) -> None:
    check = Check(rule="a < b", outcome="fail", message="reversed", fatal=False)
    claimed = Result(command="study", checks=[check], facts={"question": "Is a below b?"})
    expected = dataclasses.replace(claimed, checks=[dataclasses.replace(check, fatal=True)])
    for name in ("table", "markdown", "latex", "html", "junit", "github"):
        assert "FAIL" not in render.text(claimed, name)
        assert "warns" not in render.text(claimed, name)
    assert "FAIL: 1 fail" in render.text(expected, "table")
    assert (claimed.verdict_word, expected.verdict_word) == ("reversed", "fail")
    both = calibcli.report(claimed, expected, names=["claim", "gate"])
    assert [row[2] for row in both.tables[0].rows] == ["reversed", "fail"]
    assert both.facts["verdict"] == "fail"
    alone = calibcli.report(claimed, claimed, names=["one", "other"])
    assert "<title>Report of 2 results: reversed</title>" in render.text(alone, "html")
    assert (alone.facts["verdict"], "fail" in str(alone.facts["headline"])) == ("reversed", False)


def test_what_a_study_was_given_is_in_the_command_that_makes_it_again() -> None:
    def told(name: str, size: str, **given: Any) -> str:
        return judgement.command(parsing.parse(*experiment.text_of(name), size, trust=True, **given))

    assert told("step-size", "small") == "calib study step-size --size small"
    assert told("step-size", "small", data="my.npz") == "calib study step-size --size small --data my.npz"
    text = told("step-size", "medium", data="a b.npz", seeds=2, arch=["resnet:depth=8", "net:build"])
    assert text.startswith(
        "calib study step-size --size medium --data 'a b.npz' --arch resnet:depth=8 --arch net:build"
    )
    assert text.endswith("--seeds 2 --trust")
    kept = "calib study study.toml"  # which the folder has; where that lies is no part of the result
    assert judgement.command(parsing.parse(LITTLE, "little.toml")) == kept
    other = parsing.parse(*experiment.text_of("focal-losses"), "paper", "c.tar.gz", arch=("densenet",))
    assert "focal-losses --size paper --data c.tar.gz --arch densenet" in judgement.command(other)
    edited = experiment.text_of("step-size")[0].replace("lr = 0.05", "lr = 0.06")  # of the medium size
    assert judgement.command(parsing.parse(edited, "x", "small")) == "calib study step-size --size small"
    assert judgement.command(parsing.parse(edited, "x", "medium", "x.npz")) == kept


def test_an_arm_for_each_value_of_an_option_and_metrics_that_are_added_later(tmp_path: Path) -> None:
    text = LITTLE.replace('name = "FL-{gamma}"', 'name = "FL-{gamma} {optimizer} {lr}"').replace(
        "gamma = [1, 3]", 'gamma = [3]\nlr = [0.1, 0.01]\noptimizer = ["sgd", "adam"]'
    )
    study = parsing.parse(text.replace("FL-3", "FL-3 adam 0.01").replace("[CE", "CE"), "grid.toml")
    assert [arm.name for arm in study.arms] == ["CE", *(f"FL-3 {o} {r}" for r in (0.1, 0.01) for o in ("sgd", "adam"))]
    assert study.arms[-1].options == {"lr": 0.01, "optimizer": "adam"}
    assert study.arms[-1].at == {"gamma": 3, "lr": 0.01}
    parsing.keep(study, tmp_path)
    parsing.keep(dataclasses.replace(study, metrics=(*study.metrics, "mce")), tmp_path)  # of files that are there
    with pytest.raises(UsageError, match=r"curvature .* there, .\"trace\". here"):
        parsing.keep(dataclasses.replace(study, curvature=("trace",)), tmp_path)


@pytest.mark.parametrize(
    ("asked", "line"),
    [
        ("mce after", 'metrics = ["error", "nll", "ece", "mce"]'),
        ("trace of ce", 'curvature = ["trace"]'),
        ("trace of train", 'curvature = ["trace"] and losses = ["ce", "train"]'),
        ("ece after vector", 'scalers = ["vector"]'),
        ("trace at 20%", 'log = ["trace"] and moments = [20]'),
    ],
)
def test_a_number_that_is_not_measured_is_refused_with_the_lines_that_measure_it(asked: str, line: str) -> None:
    """And these lines, written as told, are enough; a number that nothing measures leads to its neighbour."""
    text = re.sub(r"(?s)\n\[measure\].*", f'\n[[claim]]\nid = "x"\ntext = "x"\nless = {{ metric = "{asked}", ', LITTLE)
    text += 'a = "FL-3", b = "CE" }\n[measure]\n'
    with pytest.raises(UsageError, match="is not measured") as refused:
        parsing.parse(text, "x.toml")
    assert refused.value.fix == f"write {line} in [measure]"
    assert asked in parsing.parse(text + "\n".join(line.split(" and ")), "x.toml").measured
    with pytest.raises(UsageError) as refused:
        parsing.parse(text.replace(asked, "eec"), "x.toml")
    assert refused.value.fix == "did you mean 'ece'?"
    with pytest.raises(UsageError) as refused:
        parsing.parse(text.replace(asked, "ece at 101%"), "x.toml")
    assert "at 101%" not in refused.value.fix


WIDE = (
    LITTLE.replace("gamma = [1, 3]", "gamma = [3]")
    .replace('name = "little"', 'name = "little"\ndiffers = ["it is little"]')
    .replace(
        "[measure]",
        f'{PRINTED}numbers = {{ nll = 0.4, "nll after" = 0.3 }}\n'
        f"{PRINTED.replace('CE', 'FL-3')}numbers = {{ nll = 0.1 }}\n[measure]",
    )
    .replace("epochs = 2", "epochs = 4")
    .replace('"nll", "ece"]', '"nll", "ece", "mce", "high_confidence_accuracy"]')
    .replace(
        'curvature = ["lambda_max"]',
        """scalers = ["focal"]
log = ["nll", "last_weight_norm"]
moments = [25, 100]
""",
    )
    .partition('[[claim]]\nid = "own"')[0]
    + """
[[claim]]
id = "falls"
text = "the NLL of validation rows falls"
less = { metric = "nll at 100%", a = "CE", b = "CE", than = "nll at 25%" }
[[claim]]
id = "maps"
text = "the further map is better"
less = { metric = "ece after focal", a = "CE", b = "CE", than = "ece after" }
[[claim]]
id = "norms"
text = "norms cross"
crosses = { metric = "last_weight_norm", a = "CE", b = "FL-3", first = 25, last = 100 }
[[claim]]
id = "slope"
text = "the NLL rises with how sure it is of its training rows"
slope = { metric = "nll", against = "train_confidence_gap", along = "gamma" }
"""
)


def test_the_folder_of_an_older_version_is_read() -> None:
    """Every arm of its recipe has `printed`, which tables have now."""
    text = LITTLE.replace('name = "CE"\n', 'name = "CE"\nprinted = { }\n')
    assert parsing.parse(text, "out/study.toml") == parsing.parse(LITTLE, "out/study.toml")
    with pytest.raises(UsageError, match="no key 'printed'"):
        parsing.parse(text, "mine.toml")


@pytest.mark.parametrize("line", ["size = 3", "printed = 3", "arm = 3", "claim = 3"])
def test_what_is_no_table_is_refused(line: str) -> None:
    text = re.sub(r"(?s)\[\[arm\]\].*?(?=\[measure)", "", LITTLE) if line.startswith("arm") else LITTLE
    text = text[: text.index("[[claim]]")] if line.startswith("claim") else text
    with pytest.raises(UsageError):
        parsing.parse(f"{line}\n{text}", "mine.toml")


@pytest.mark.parametrize("text", ["", '{"epoch": 1', "\xff"])
def test_a_log_that_cannot_be_read_is_refused(text: str, tmp_path: Path) -> None:
    run = work.runs(parsing.parse(LITTLE, "little.toml"))[0]
    (tmp_path / run.folder).mkdir(parents=True)
    (tmp_path / run.folder / "log.jsonl").write_bytes(text.encode("latin-1"))
    with pytest.raises(InputError, match=r"log\.jsonl"):
        work.logged(tmp_path, run)


def test_braces_stand_for_values_in_every_text_of_an_arm() -> None:
    decays = 'optimizer = "sgd:weight_decay={decay}"\ndecay = [0.1, 1]\n'
    arms = LITTLE.replace('name = "FL-{gamma}"', f'{decays}name = "FL-{{gamma}} {{decay}}"')
    text = arms.replace('"FL-3"', '"FL-3 1"')  # in a claim
    found = {
        arm.name: (arm.options.get("optimizer"), arm.at.get("decay")) for arm in parsing.parse(text, "l.toml").arms
    }
    assert found["FL-1 0.1"] == ("sgd:weight_decay=0.1", 0.1)
    assert found["FL-3 1"] == ("sgd:weight_decay=1", 1)
    with pytest.raises(UsageError, match=r"no values for {decay}"):
        parsing.parse(text.replace("decay = [0.1, 1]\n", ""), "l.toml")
    with pytest.raises(UsageError, match="weight_decay"):
        parsing.parse(text.replace("[0.1, 1]", "[0.1, -1]"), "l.toml")


def test_the_causes_of_curvature_have_two_doses_each_beside_one_base() -> None:
    study = parsing.parse(*experiment.text_of("curvature-cause"), size="small")
    asked = [claim for claim in study.claims if "causes" in claim.keys]
    assert asked[0].kind == "one_curve"
    assert all(claim.keys["causes"] == asked[0].keys["causes"] for claim in asked)
    doses = {cause: [arm.name for arm in study.ordered(cause)] for cause in asked[0].keys["causes"]}
    assert len(doses) == 7
    assert all(len(names) == 3 and "CE" in names for names in doses.values())
    assert {name for names in doses.values() for name in names} == {arm.name for arm in study.arms if not arm.source}
    assert doses["lr"][1] == doses["batch_size"][1] == "CE"  # these two go both ways
    [rate] = (arm for arm in study.arms if arm.name == "lr 0.1")
    assert rate.options == {"lr": 0.1}


@pytest.mark.regression
@pytest.mark.parametrize("network", ["ResNet-50 wide", "mlp:hidden=999"])
def test_printed_numbers_of_another_network_are_left_out(network: str) -> None:
    """Also of one that is built by nobody here."""
    table = PRINTED.replace("mlp:hidden=8", network)
    study = parsing.parse(LITTLE.replace("[measure]", f"{table}numbers = {{ ece = 1 }}\n[measure]"), "mine.toml")
    assert not study.printed


@pytest.mark.slow
def test_logs_maps_and_printed_numbers(tmp_path: Path) -> None:
    study = parsing.parse(WIDE, "wide.toml")
    parsing.keep(study, tmp_path)
    work.work(study, tmp_path, lambda fraction, text: None)
    found = report(study, tmp_path)
    for seed, line in ((seed, line) for seed in (0, 1) for line in (0, 3)):
        log = work.logged(tmp_path, work.StudyRun(study.arms[0], study.arch[0], seed))
        assert len(log) == 4
        assert log[line]["epoch"] == line + 1
    logs = [work.logged(tmp_path, work.StudyRun(study.arms[0], study.arch[0], seed)) for seed in (0, 1)]
    assert found["nll at 25%", "CE"].value == pytest.approx(np.mean([log[0]["nll"] for log in logs]))
    assert found["nll at 100%", "CE"].value == pytest.approx(np.mean([log[3]["nll"] for log in logs]))
    after = []
    for seed in (0, 1):
        folder = tmp_path / work.StudyRun(study.arms[0], study.arch[0], seed).folder
        fit = calibrators.fit("focal", calibcli.read(folder / "validation.npz"))
        mapped = calibrators.apply(fit.scaler, calibcli.read(folder / "test.npz"))
        after.append(-np.mean(log_softmax(mapped.logits)[np.arange(mapped.n), mapped.labels]))
    assert found["nll after focal", "CE"].value == pytest.approx(np.mean(after), rel=1e-6)
    gaps = {check.scope: check.estimate for check in found.checks}
    assert gaps["falls"] is not None
    wanted = np.mean([log[3]["nll"] - log[0]["nll"] for log in logs])
    assert gaps["falls"].value == pytest.approx(wanted)
    units = [
        found[name, "CE"].unit for name in ("nll after focal", "train_nll", "nll at 25%", "ece", "mce after", "error")
    ]
    assert units == ["nats", "nats", "nats", "probability", "probability", ""]
    nobody = found["high_confidence_accuracy", "CE"]  # is so sure after four epochs
    assert nobody.value is None
    assert "no rows" in nobody.reason
    assert Result.from_json(found.to_json().encode()).facts == found.facts
    assert found["mce", "CE"].how.endswith("these rows alone")
    paper = study.paper_numbers(study.arch[0], "", 997)
    assert study.claims[0].printed(paper) == pytest.approx(0.1 - 0.4)
    diamond = next(c for plot in found.plots for c in plot.curves if c.role == "printed")
    assert diamond.y[0] == pytest.approx(-0.3)
    tables = {table.name: table for table in found.tables}
    assert any(row[0] == "CE, printed" and "0.4" in row for row in tables["arms mlp:hidden=8"].rows)
    assert ["", "", "it is little"] in tables["differs"].rows
    from calibcli.render import page

    text = page.page(found)
    assert "CE, printed" in text
    assert text.count("<svg") == 5  # claims, a metric along an axis and against another, two numbers of the log
    logged = {p.title: {c.label: c.role for c in p.curves} for p in found.plots if p.name.startswith("log ")}
    assert list(logged) == ["nll of validation rows", "last_weight_norm"]
    assert all(label == role for roles in logged.values() for label, role in roles.items())  # one colour in all panels
    points = {c.label: c for p in found.plots if p.name == "nll against train_confidence_gap" for c in p.curves}
    model = tmp_path / work.StudyRun(study.arms[0], study.arch[0], 0).folder / "model.safetensors"
    assert (
        main(["logits", str(model), "--data", f"{work.sample('digits')}#train", "--save", str(tmp_path / "t.npz")]) == 0
    )
    rows = calibcli.read(tmp_path / "t.npz")
    sure = np.exp(log_softmax(rows.logits)).max(axis=1).mean() - (rows.logits.argmax(axis=1) == rows.labels).mean()
    first = work.record(tmp_path, work.StudyRun(study.arms[0], study.arch[0], 0))["train_confidence_gap"]
    assert first == pytest.approx(sure, abs=1e-6)
    assert points["CE"].x[0] == pytest.approx(found["train_confidence_gap", "CE"].value)


@pytest.mark.slow
def test_shapes_are_those_of_the_loss_itself() -> None:
    """The curvature of the focal loss by automatic differentiation, and the numbers that follow."""
    import torch

    from calibcli.networks import losses

    for gamma in (0.5, 1.0, 3.0):
        for p in (0.01, 0.3, 0.6, 0.9):
            margin = torch.tensor(np.log(p / (1 - p)), dtype=torch.float64, requires_grad=True)
            logits = torch.stack([margin, torch.zeros_like(margin)])[None]
            value = losses.final(f"focal:gamma={gamma}")(logits, torch.tensor([0])).sum()
            (first,) = torch.autograd.grad(value, margin, create_graph=True)
            (second,) = torch.autograd.grad(first, margin)
            ratio = analytic.curvature_ratio(np.array([p]), gamma)[0]
            assert ratio == pytest.approx(float(second) / (p * (1 - p)), rel=1e-9)
    study = parsing.parse(*experiment.text_of("focal-map"), size="small")
    found = analytic.computed(study)
    assert [check.outcome for check in found.checks] == ["pass", "fail"]
    assert found.exit_code == 0
    assert analytic.computed(study, expect=True).exit_code == 1
    assert found.tables[0].rows[1][1] == "0.7744"  # what the map of gamma = 1 takes to .9
    assert (
        "2 hold, 2 reversed" in analytic.computed(dataclasses.replace(study, computes="focal-shape")).facts["headline"]
    )


@pytest.mark.slow
@pytest.mark.regression
def test_the_focal_map_lowers_the_top_from_so_many_classes_on() -> None:
    """By brute force near even probabilities, where a small lead of the top class shrinks or grows."""
    fewest = {1e-6: 5, 0.5: 7, 1.0: 8, 2.0: 10, 3.0: 12}
    for gamma, first in fewest.items():
        lowers = {}
        for k in range(2, 16):
            z = np.zeros((40, k))
            z[:, 0] = 1e-3
            z[:, 1:] = -1e-3 * np.random.default_rng(k).random((40, k - 1))
            before, after = (log_phi(z, g).max(axis=1) for g in (0.0, gamma))
            assert len({*(after < before).tolist()}) == 1
            lowers[k] = bool((after < before).all())
        assert [k for k, one in lowers.items() if one] == [*range(first, 16)], gamma
        assert analytic.fewest_classes(gamma) == first
    found = analytic.computed(parsing.parse(*experiment.text_of("focal-map"), size="small"))
    page = (Path(__file__).parents[1] / "docs" / "studies" / "focal-map.md").read_text(encoding="utf-8")
    assert "from 5 (gamma near 0), 7 (gamma = 0.5), 8 (gamma = 1), 10 (gamma = 2), 12" in found.checks[1].message
    assert "from 5 classes on as γ → 0, from 7 at γ = .5, 8 at γ = 1, 10 at γ = 2 and 12 at γ = 3" in page


def test_what_is_asked_on_the_command_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    from calibcli.__main__ import main

    def calib(*argv: str) -> tuple[int, str]:
        code = main(["study", *argv])
        said = capsys.readouterr()
        return code, said.out + said.err

    assert "curvature-gamma" in calib("--json")[1]
    code, said = calib("curvature-gama")
    assert code == 2
    assert "did you mean 'curvature-gamma'" in said
    assert calib("step-size")[0] == 2
    assert "40" in calib("step-size", "--dry-run", "--format", "json")[1]
    (tmp_path / "mine.toml").write_text(calib("step-size", "--print")[1])
    mine = str(tmp_path / "mine.toml")  # as the documents begin a study of one's own
    assert "40" in calib(mine, "--dry-run", "--format", "json")[1]
    assert "mine.toml has no size 'tiny'" in calib(mine, "--size", "tiny", "--dry-run")[1]
    assert "names no train" in calib(mine, "--size", "medium", "--dry-run")[1]
    (tmp_path / "mine.toml").write_text(LITTLE)
    assert parsing.parse(*experiment.text_of(mine), "small") == parsing.parse(LITTLE, mine)
    assert "leave --size out" in calib(mine, "--size", "medium", "--dry-run")[1]
    weights = tmp_path / "model.pt"
    weights.touch()
    for argv in [(str(weights),), ("step-size", "--arch", str(weights), "--dry-run")]:
        code, said = calib(*argv)
        assert code == 2
        assert "a study trains every network from fresh weights" in " ".join(said.split())


@pytest.mark.slow
def test_the_plans_of_the_documents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Eight GPUs and a Slurm array, by a dry run of the same line."""
    published_layouts(tmp_path)
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "docs" / "study-runs.md").read_text(encoding="utf-8")
    line, runs, hours = re.findall(r"(calib study .* --dry-run) +# runs: (\d+); of ([\d.]+) GPU hours each", text)[0]
    assert main([*shlex.split(line)[1:], "--json"]) == 0
    planned = json.loads(capsys.readouterr().out)["facts"]
    assert (planned["runs"], f"of {hours} GPU hours each" in planned["cost"]) == (int(runs), True)
    (machine,) = re.findall(rf"{line.removesuffix(' --dry-run')} .*--jobs (\d+)\n", text)
    (told,) = re.findall(r"With eight GPUs in one machine and a process for each, this takes (\d+) hours", text)
    assert int(machine) == 8
    assert int(told) == round(int(runs) * float(hours) / 8)
    (tasks,) = re.findall(r"--array=0-(\d+)\n", text)
    (limit,) = re.findall(r"--time=(\d+):00:00", text)
    (until,) = re.findall(r"--work-only --until (\d+) -q\n", text)
    assert int(tasks) + 1 <= int(runs)
    assert int(until) + 60 * float(hours) < 60 * int(limit)  # the last run that began ends
    for more in (["--jobs", machine], ["--work-only", "--until", until, "-q"]):
        assert main([*shlex.split(line)[1:], *more, "--save", "nowhere"]) == 0
        assert not Path("nowhere").exists()
    trained = calibcli.train("mlp:hidden=2", "cifar-10-python.tar.gz", epochs=1, device="cpu").facts
    assert (trained["data"], trained["rows"]["test"]) == ("CIFAR-10", 50)  # by which a report finds printed numbers


def test_the_digits_are_those_that_travel_with_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a clone beside the package, in a wheel inside it."""
    from calibcli.core import files

    assert work.sample("digits") == ROOT / "sample_data" / "digits.npz"
    (tmp_path / "sample_data").mkdir()
    (tmp_path / "sample_data" / "digits.npz").touch()
    monkeypatch.setattr(files, "__file__", str(tmp_path / "core" / "files.py"))
    assert work.sample("digits") == tmp_path / "sample_data" / "digits.npz"


# runs -----------------------------------------------------------------------------------------------------------------


def calib(folder: Path, *argv: str) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    line = [sys.executable, "-m", "calibcli", "study", *argv, "-q", "--json"]
    return subprocess.Popen(line, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def outcome(process: subprocess.Popen[bytes]) -> dict[str, Any]:
    out, err = process.communicate(timeout=300)
    assert (process.returncode, err.decode()) == (0, "")
    found: dict[str, Any] = json.loads(out)
    for name in ("provenance", "checksum"):
        found.pop(name)
    found["facts"].pop("spent")
    return found


@pytest.mark.slow
def test_killed_and_shared_runs_end_as_one(tmp_path: Path) -> None:
    """Killed at several moments, then gone on with by two workers at once: what one undisturbed run finds."""
    text = LITTLE.replace("gamma = [1, 3]", "gamma = [3]")
    study = parsing.parse(text, "little.toml")
    parsing.keep(study, tmp_path / "whole")
    work.work(study, tmp_path / "whole", lambda fraction, text: None)
    wanted = report(study, tmp_path / "whole")
    assert wanted.facts["runs"] == "4 of 4"
    parsing.keep(study, tmp_path / "other")
    started = calib(tmp_path, "other")
    until = time.monotonic() + 240
    while time.monotonic() < until and not list((tmp_path / "other").rglob("state.pt")):
        time.sleep(0.01)
    started.kill()
    started.wait()
    assert list((tmp_path / "other").rglob("run.lock"))  # it died with a run in its hands
    both = [calib(tmp_path, "other"), calib(tmp_path, "other", "--jobs", "2")]
    for found in map(outcome, both):
        kept = json.loads(wanted.to_json())
        for name in ("provenance", "checksum"):  # which know when and for how long it ran
            kept.pop(name)
        kept["facts"].pop("spent")
        assert found == kept
    assert not list((tmp_path / "other").rglob("run.lock"))
    for path in (tmp_path / "whole").rglob("test.npz"):
        assert path.read_bytes() == (tmp_path / "other" / path.relative_to(tmp_path / "whole")).read_bytes()
    other = parsing.parse(text, "l.toml", arch=("mlp:hidden=4", "linear"))
    assert other.arch == ("mlp:hidden=4", "linear")
    with pytest.raises(UsageError, match=r"arch .*hidden=4.* here"):
        parsing.keep(other, tmp_path / "other")
    with pytest.raises(UsageError, match="epochs 2 there, 3 here"):
        parsing.keep(parsing.parse(text.replace("epochs = 2", "epochs = 3"), "l.toml"), tmp_path / "other")
    warm = text.replace("epochs = 2", "epochs = 2\nwarmup = 0.1")  # and an arm that has none
    parsing.keep(parsing.parse(warm.replace('loss = "ce"', 'loss = "ce"\nwarmup = 0.0'), "l.toml"), tmp_path / "warm")
    with pytest.raises(UsageError, match=r'arm CE .*"warmup" = 0.0.* there, .* here'):
        parsing.keep(parsing.parse(warm, "l.toml"), tmp_path / "warm")
    more = parsing.parse(text, "little.toml", seeds=3)
    parsing.keep(more, tmp_path / "other")  # further seeds are no other study
    assert len(work.runs(more)) == 6


CHANGED = """
[[arm]]
name = "CE rescaled"
from = "CE"
change = "rescale:by=4"
[[arm]]
name = "CE times {by}"
from = "CE"
change = "logits:by={by}"
by = [2]
[[arm]]
name = "CE permuted"
from = "CE"
change = "labels:permute"
"""


def test_arms_that_change_the_networks_of_another_are_added_to_a_finished_study(tmp_path: Path) -> None:
    """Measured as others are, and made of the weights that the folder has; of three changes one moves nothing, and one
    the labels alone."""
    text = re.sub(r'(?s)\[\[arm\]\]\nname = "FL.*', "[measure]\n", LITTLE.replace("epochs = 2", "epochs = 1"))
    text = text.replace("seeds = 2", "seeds = 1") + 'curvature = ["trace", "fisher_rao", "fisher_rao after"]\n'
    first = parsing.parse(text, "little.toml")
    parsing.keep(first, tmp_path)
    work.work(first, tmp_path, lambda fraction, words: None)
    study = parsing.parse(text.replace("[measure]", f"{CHANGED}[measure]"), "little.toml")
    assert parsing.parse(parsing.written(study), "kept") == study
    assert [arm.made for arm in study.arms[1:]] == ["rescale:by=4 of CE", "logits:by=2 of CE", "labels:permute of CE"]
    assert (study.arms[2].at, study.arms[2].loss) == ({"by": 2}, "ce")
    axis = dataclasses.replace(parsing.parse(LITTLE, "little.toml").claims[1], keys={"along": "nll"})
    assert study.asked(axis) == list(first.arms)  # all that are trained
    with pytest.raises(UsageError, match=r"arm CE .* there, none here"):
        parsing.keep(dataclasses.replace(study, arms=study.arms[1:]), tmp_path)
    parsing.keep(study, tmp_path)
    plain, rescaled, scaled, permuted = (work.StudyRun(arm, study.arch[0], 0) for arm in study.arms)
    weights = tmp_path / plain.folder / "model.safetensors"
    weights.rename(tmp_path / "away")
    with pytest.raises(InputError, match=r"model.safetensors is missing: CE rescaled, .* is made of it"):
        work.work(study, tmp_path, lambda fraction, words: None)
    (tmp_path / "away").rename(weights)
    work.work(study, tmp_path, lambda fraction, words: None)
    before, same, twice, other = (work.record(tmp_path, run) for run in (plain, rescaled, scaled, permuted))
    read = [calibcli.read(tmp_path / run.folder / "test.npz") for run in (plain, rescaled, scaled, permuted)]
    z = [rows.logits for rows in read]
    assert (z[1].tobytes(), z[2].tobytes()) == (z[0].tobytes(), (2 * z[0]).tobytes())
    assert z[3].tobytes() == z[0].tobytes()
    assert (read[3].labels != read[0].labels).any()
    assert sorted(read[3].labels) == sorted(read[0].labels)
    assert other["trace of ce"] == before["trace of ce"]
    assert other["fisher_rao of ce"] == pytest.approx(before["fisher_rao of ce"], rel=1e-9)
    for name in ("train_nll", "fisher_rao after of ce"):
        assert other[name] != pytest.approx(before[name], rel=0.01), name
    assert same["trace of ce"] > 1.1 * before["trace of ce"]
    for name in ("fisher_rao of ce", "fisher_rao after of ce", "train_nll", "train_confidence_gap"):
        assert same[name] == pytest.approx(before[name], rel=1e-5), name
    assert twice["fisher_rao after of ce"] == pytest.approx(before["fisher_rao after of ce"], rel=1e-4)
    assert abs(twice["fisher_rao of ce"] / before["fisher_rao of ce"] - 1) > 0.1
    assert [(one["rows"], one["data"]) for one in (same, twice)] == [(before["rows"], before["data"])] * 2
    assert [one["is"].get("change") for one in (same, other, before)] == ["rescale:by=4", "labels:permute=true", None]


def test_a_network_that_diverged_is_not_changed(tmp_path: Path) -> None:
    text = (
        LITTLE.partition("[[claim]]")[0].replace("[measure]", f"{CHANGED}[measure]").replace("seeds = 2", "seeds = 1")
    )
    study = parsing.parse(text, "little.toml")
    for run in work.runs(study)[:3]:
        (tmp_path / run.folder).mkdir(parents=True)
        content = {"is": work.content(study, run), "status": "diverged", "why": "the loss became nan"}
        (tmp_path / run.folder / "run.json").write_text(json.dumps(content))
    work.work(study, tmp_path, lambda fraction, words: None)
    for run in work.runs(study)[3:]:
        changed = work.record(tmp_path, run)
        assert (changed["status"], changed["why"]) == ("diverged", "the loss became nan")


@pytest.mark.parametrize(
    ("old", "new", "match"),
    [
        ('from = "CE"', 'from = "C"', "changes 'C', which is no arm that is trained"),
        ('from = "CE"', 'from = "CE times 2"', "which is no arm that is trained"),
        ('from = "CE"', 'from = "CE"\nlr = 0.1', "has no key 'lr'"),
        ('change = "rescale:by=4"', "", "an arm needs a name and a loss, or from and change"),
        ("rescale:by=4", "rescal:by=4", "unknown change of a network 'rescal'"),
        ("rescale:by=4", "rescale:by=-4", "by="),
        ("labels:permute", "labels", "write labels:permute=..."),
        (
            "[measure]",
            '[[claim]]\nid = "l"\ntext = "t"\nless = { metric = "nll at 100%", a = "CE rescaled", b = "CE" }\n'
            '[measure]\nlog = ["nll"]\nmoments = [100]',
            "claim l: arm CE rescaled is not trained, and has no log",
        ),
    ],
)
def test_mistakes_in_arms_that_change_another(old: str, new: str, match: str) -> None:
    text = LITTLE.replace("[measure]", f"{CHANGED}[measure]")
    with pytest.raises(UsageError, match=match):
        parsing.parse(text.replace(old, new, 1), "little.toml")


@pytest.mark.parametrize(
    ("spec", "first", "after"),
    [
        ("mlp:inputs=108,hidden=6/5", "hidden.0.0", "hidden.1.0"),
        ("cnn:widths=4/6", "features.0.1", "features.1.0"),
        ("resnet:depth=8", "layer1.0.bn1", "layer1.0.conv2"),
    ],
)
def test_the_first_two_layers_that_can_be_rescaled_against_each_other(spec: str, first: str, after: str) -> None:
    torch.manual_seed(0)
    model = build(spec).double()
    model(torch.randn(16, 3, 6, 6).double())  # statistics of batch norm
    x, before = torch.randn(8, 3, 6, 6).double(), dict(copy.deepcopy(model.eval()).named_parameters())
    logits = model(x).detach()
    with torch.no_grad():
        CHANGES.choose("rescale:by=3")(model, lambda: model(x))
    assert torch.allclose(model(x), logits, rtol=1e-9)
    moved = {
        name: (p / before[name]).nanmean().item() for name, p in model.named_parameters() if (p != before[name]).any()
    }
    assert moved.pop(f"{after}.weight") == pytest.approx(1 / 3)
    assert moved
    assert all(name.startswith(f"{first}.") and by == pytest.approx(3) for name, by in moved.items())


def test_a_network_whose_layers_do_not_scale_is_refused() -> None:
    model = build("mlp:inputs=4,hidden=6/5,activation=tanh").eval()
    x, before = torch.randn(8, 4), copy.deepcopy(model.state_dict())
    with torch.no_grad(), pytest.raises(InputError, match="no layer of this network can be rescaled"):
        CHANGES.choose("rescale:by=4")(model, lambda: model(x))
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


@pytest.mark.slow
def test_texts_are_drawn_into_the_folder_of_a_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The small size of `text`, made smaller still; of the paper's the words have vectors of their own."""
    monkeypatch.setitem(work.DRAWN, "drawn-posts", functools.partial(synthetic.newsgroups, posts=150))
    whole = parsing.parse(*experiment.text_of("text"), "small", seeds=2)
    named = {"CE", "FLA-53"}
    study = dataclasses.replace(
        whole,
        arch=("text_cnn:vocabulary=500,width=4,filters=4,stride=5",),
        options={**whole.options, "epochs": 1, "batch_size": 64},
        arms=tuple(one for one in whole.arms if one.name in named),
        claims=tuple(one for one in whole.claims if set(map(str, one.keys.values())) >= named),
    )
    parsing.keep(study, tmp_path / "a")
    work.work(study, tmp_path / "a", lambda fraction, text: None)
    found = report(study, tmp_path / "a")  # of networks that know so little that logits may lie in [0, 1]
    assert found.facts["runs"] == "4 of 4"
    assert [check.scope for check in found.checks] == ["T1-CE", "T1-after", "T3", "T10"]
    drawn = {path.name: path.read_bytes() for path in (tmp_path / "a" / "drawn-posts").glob("*/*")}
    again = synthetic.newsgroups(tmp_path / "again", posts=150)
    assert drawn == {path.name: path.read_bytes() for path in again.glob("*/*")}
    assert not list((tmp_path / "a").glob("tmp*"))
    for part, count in (("train", 453), ("validation", 27), ("test", 120)):
        rows = load(work.rows(study, part, tmp_path / "a"))
        assert len(rows.labels) == count
        assert len(rows.words or "") < 500
    paper = parsing.parse(*experiment.text_of("text"), "paper", "20_newsgroups.tar.gz")
    assert (paper.embeddings, paper.validation) == ("glove.6B.100d.txt", "20_newsgroups.tar.gz#validation")
    glove = dataclasses.replace(study, embeddings="glove.6B.100d.txt")
    with pytest.raises(UsageError, match=r"embeddings .* there, .glove.6B.100d.txt. here"):
        parsing.keep(glove, tmp_path / "a")
    with pytest.raises(UsageError, match="embeddings None there"):
        work.work(glove, tmp_path / "a", lambda fraction, text: None)
    with pytest.raises(InputError, match="glove"):
        work.work(glove, tmp_path / "b", lambda fraction, text: None)
    table = next(one for one in report(whole, tmp_path / "c").tables if one.name == "differs")
    assert ["vectors of words", "glove.6B.100d.txt", "default"] in table.rows


def test_the_numbers_of_the_paper_stand_beside_their_own_network_and_data_alone(tmp_path: Path) -> None:
    """ResNet-50's are not shown for another network, other rows, or a part of the rows."""
    text, name = experiment.text_of("focal-losses")
    nets = ["resnet50:init=default", "densenet", "resnet50"]
    study = parsing.parse(text, name, "paper", "cifar-10-python.tar.gz", arch=nets)
    theirs = study.paper_numbers(nets[0], "CIFAR-10", 10_000)
    grid = "temperature:objective=ece,grid=mukhoti"
    assert (theirs["CE"]["ece"], theirs["CE"][f"ece after {grid}"], theirs["CE"][f"temperature after {grid}"]) == (
        0.0435,
        0.0135,
        2.5,
    )
    assert study.paper_numbers(nets[0], "CIFAR-100", 10_000)["FLA-53"]["error"] == 0.2322
    assert study.paper_numbers("densenet", "CIFAR-10", 10_000)["CE"]["ece"] == 0.0452
    assert not study.paper_numbers("resnet50", "CIFAR-10", 10_000)  # which draws other first weights
    assert not study.paper_numbers(nets[0], "CIFAR-10", 1000)
    assert not study.paper_numbers(nets[0], "", 10_000)
    assert not parsing.parse(text, name, "small").printed
    written = LITTLE.replace(
        "[measure]", f"{PRINTED}numbers = {{ ece = 0.04 }}\n[measure]"
    )  # by hand, spelled otherwise
    hidden = parsing.parse(written.replace('["mlp:hidden=8"]', '["mlp:activation=relu,hidden=8"]'), "little.toml")
    assert hidden.paper_numbers("mlp:activation=relu,hidden=8", "digits", 997) == {"CE": {"ece": 0.04}}
    assert not parsing.parse(written.replace('["mlp:hidden=8"]', '["mlp:hidden=9"]'), "little.toml").printed
    table = experiment.table_of("mukhoti2020.csv")
    metrics = [metric for one in table for metric in one.numbers]
    assert (len(table), len(metrics)) == (100, 1124)  # distinct cells of Tables 1 to 13
    for study_name in ("focal-tables", "text", "sentiment"):  # which has all arms, and all metrics
        data = {"focal-tables": "CIFAR-100", "text": "20 Newsgroups", "sentiment": "Stanford Sentiment Treebank"}
        of = parsing.parse(*experiment.text_of(study_name), "paper", "x")
        rows = [one for one in table if one.data == data[study_name] and one.network in of.arch]
        kept = [one for one in of.printed if one.data == data[study_name]]
        assert [one.numbers for one in kept] == [one.numbers for one in rows if one.arm in {a.name for a in of.arms}]


def test_the_tables_are_set_as_the_paper_sets_them(tmp_path: Path) -> None:
    """Ours with intervals above theirs, before and after a temperature, as LaTeX too."""
    grid = "temperature:objective=ece,grid=mukhoti"
    study = dataclasses.replace(
        parsing.parse(LITTLE, "little.toml"), arch=("a net", "other"), metrics=("nll", "ece"), scalers=(grid,)
    )
    theirs = {
        "a net": {"CE": {"ece": 0.0435, f"ece after {grid}": 0.0135, f"temperature after {grid}": 2.5}},
        "other": {},
    }
    found = {
        net: {
            arm.name: {
                name: MeasuredArm(np.array([0.04, 0.05, 0.06]), np.zeros((3, 4)))
                for name in ("nll", "ece", f"ece after {grid}", f"temperature after {grid}")
            }
            for arm in study.arms
        }
        for net in study.arch
    }
    (table,) = judgement.as_printed(study, found, theirs)
    half = stats.t.ppf(0.975, 2) / np.sqrt(3)
    ours = f"5.00 [{5 - half:.2f}, {5 + half:.2f}]"
    assert table.columns == ["network", "numbers of", "CE, before", "CE, after"]
    assert table.rows == [["a net", "2 seeds", ours, f"{ours} (0.05)"], ["", "printed", "4.35", "1.35 (2.50)"]]
    tex = render.text(Result(command="study", tables=[table]), "latex")
    assert r" & printed & 4.35 & 1.35 (2.50) \\" in tex
    assert judgement.as_printed(study, found, {"a net": {}, "other": {}}) == []


@pytest.mark.slow
def test_what_was_judged_is_verified(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without weights and without data, and not where a file was changed or taken away."""
    text = LITTLE.partition('[[claim]]\nid = "own"')[0].replace(
        'curvature = ["lambda_max"]', 'log = ["nll"]\nmoments = [100]'
    )
    rows = np.load(work.sample("digits"))
    np.savez(tmp_path / "digits.npz", **rows)
    (tmp_path / "study.toml").write_text(text.replace('"digits#', f'"{tmp_path}/digits.npz#'))
    line = ["study", str(tmp_path / "study.toml"), "--save", str(tmp_path / "out"), "-q", "--json"]
    assert main(line) == 0
    first = json.loads(capsys.readouterr().out)
    for gone in (*tmp_path.rglob("model.safetensors"), *tmp_path.rglob("steps.jsonl"), tmp_path / "digits.npz"):
        gone.unlink()
    again = ["study", str(tmp_path / "out"), "--report-only", "-q", "--json"]
    assert main(again) == 0
    second = json.loads(capsys.readouterr().out)
    assert second["estimates"] == first["estimates"]
    assert second["facts"]["files"].startswith("verified: those of 6 runs")
    run = tmp_path / "out" / "runs" / "CE"
    for name in ("test.npz", "validation.npz", "log.jsonl"):
        (path,) = run.glob(f"*/seed-1/{name}")
        kept = path.read_bytes()
        if name == "log.jsonl":
            path.write_bytes(kept.replace(b"1", b"2", 1))
        else:
            arrays = dict(np.load(path))
            np.savez(path, **{**arrays, "logits": arrays["logits"] * np.float32(0.6)})
        assert main(again) == 4
        assert f"seed-1/{name} was changed after its run was finished" in " ".join(capsys.readouterr().err.split())
        path.unlink()
        assert main(again) == 4
        assert f"seed-1/{name} is missing" in " ".join(capsys.readouterr().err.split())
        path.write_bytes(kept)
    (path,) = run.glob("*/seed-1/run.json")
    old = json.loads(path.read_text())
    del old["sha256"]
    path.write_text(json.dumps(old))
    assert main(again) == 0
    notes = json.loads(capsys.readouterr().out)["notes"]
    assert any("the files of 1 run are not verified" in note for note in notes)


def test_the_published_folder_is_judged_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without data and weights, with the sentence of the document; it is small."""
    folder = ROOT / "docs" / "studies" / "posts"
    files = [path for path in folder.rglob("*") if path.is_file() and path.name not in ("result.json", "report.html")]
    names = {"run.json", "log.jsonl", "validation.npz", "test.npz", "study.toml"}
    assert {path.name for path in files} == names
    assert sum(path.stat().st_size for path in files) < 300_000
    shutil.copytree(folder, tmp_path / "posts")
    assert main(["study", str(tmp_path / "posts"), "--report-only", "-q", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)["facts"]
    assert facts["files"] == "verified: those of 6 runs have the sha256 of their records"
    text = (ROOT / "docs" / "study-runs.md").read_text(encoding="utf-8")
    assert f"calib study docs/studies/posts --report-only      # {facts['headline']}" in text


def test_claims_about_arms_that_are_not_complete_are_undecided(tmp_path: Path) -> None:
    study = parsing.parse(LITTLE, "little.toml")
    first = work.runs(study)[0]
    (tmp_path / first.folder).mkdir(parents=True)
    what = work.content(study, first)
    (tmp_path / first.folder / "run.json").write_text(json.dumps({"is": what, "status": "diverged", "why": "x"}))
    found = report(study, tmp_path)
    assert [check.outcome for check in found.checks] == ["inconclusive"] * 2
    assert any(
        "CE" in note and "1 of 2 diverged, 1 not run; its claims are not decided" in note for note in found.notes
    )
    assert work.done(tmp_path, first, what)
    with pytest.raises(UsageError, match="holds another run: seed 0 there, 5 here"):
        work.done(tmp_path, first, {**what, "seed": 5})


@pytest.mark.regression
def test_an_arm_is_trained_with_all_digits_of_its_place_on_the_axis() -> None:
    arms = parsing.parse(LITTLE.replace("gamma = [1, 3]", "gamma = [1.23456789, 3.0, 1e-5]"), "l.toml").arms[-3:]
    assert [arm.loss for arm in arms] == [f"focal:gamma={text}" for text in ("1.23456789", "3", "1e-05")]
    assert arms[0].at["gamma"] == 1.23456789


@pytest.mark.regression
@pytest.mark.parametrize("k", [2, 3])
def test_numbers_of_training_rows_are_the_metrics_of_those_names(k: int) -> None:
    """With two classes the gap is that of the event, as on the test rows that a claim compares it with."""
    z, y = torch.randn(300, k), torch.arange(300) % k
    numbers = train_numbers(torch.nn.Identity(), Loader.holding(z, y), 32)
    found = calibcli.measure(z.numpy(), y.numpy(), "nll", "accuracy", "confidence_gap", kind="logits")
    assert numbers["nll"] == pytest.approx(found["nll"].value, rel=1e-6)
    assert numbers["error"] == pytest.approx(1 - found["accuracy"].value)
    assert numbers["confidence_gap"] == pytest.approx(found["confidence_gap"].value, rel=1e-6)


def test_a_record_that_is_older_than_a_metric_says_so(tmp_path: Path) -> None:
    study = parsing.parse(LITTLE, "little.toml")
    with pytest.raises(InputError, match=r"run.json lacks 'train_confidence_gap'") as found:
        dict(readings._alone(study, tmp_path, {"train_nll": 0.5}, []))
    assert "train it again" in found.value.fix


def test_a_dead_workers_claim_is_taken(tmp_path: Path) -> None:
    with work.claimed(tmp_path) as free:
        assert free
        with work.claimed(tmp_path) as again:
            assert not again
    (tmp_path / "run.lock").write_text(json.dumps({"host": "elsewhere", "pid": 1}))
    with work.claimed(tmp_path) as free:
        assert not free
    old = time.time() - 2 * work.STALE
    os.utime(tmp_path / "run.lock", (old, old))
    with work.claimed(tmp_path) as free:
        assert free
    assert not (tmp_path / "run.lock").exists()


def test_a_worker_that_slept_keeps_its_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A living process on this machine is alive, however old its last sign; one of another machine is not."""
    lock, old = tmp_path / "run.lock", time.time() - 10 * work.STALE
    monkeypatch.setattr(work, "BEAT", 1e6)
    with work.claimed(tmp_path) as free:
        assert free
        os.utime(lock, (old, old))
        with work.claimed(tmp_path) as again:
            assert not again
        assert lock.exists()
        other = json.dumps({"host": "elsewhere", "pid": 1})
        lock.write_text(other)  # another machine took it over
    assert lock.read_text() == other  # only one's own lock is taken away
    born = work._born(os.getpid())
    if born:  # the number of a process that is gone was given to another one
        lock.write_text(json.dumps({"host": socket.gethostname(), "pid": os.getpid(), "born": f"{int(born) - 1}"}))
        with work.claimed(tmp_path) as free:
            assert free


OWN = """
import torch

class Halved(torch.nn.Module):
    def forward(self, logits, labels):
        return torch.nn.functional.cross_entropy(logits, labels, reduction="none") / 2

class Mean(torch.nn.Module):
    def forward(self, logits, labels):
        return torch.nn.functional.cross_entropy(logits, labels)

def net():
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))

class Two(torch.nn.Module):
    def forward(self, logits, labels):
        margin = logits.gather(1, labels[:, None]) - logits.gather(1, 1 - labels[:, None])
        return (1 - margin[:, 0]).clamp(min=0) ** 2

def Weighted():
    return torch.nn.CrossEntropyLoss(weight=torch.arange(1.0, 11.0), reduction="none")

class Broken(torch.nn.Module):
    def forward(self, logits, labels):
        raise ValueError("never")
"""


def test_a_loss_of_ones_own_is_named_by_whoever_runs_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from calibcli.networks import losses

    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    Path("own_losses.py").write_text(OWN)
    text = LITTLE.replace('loss = "ce"', 'loss = "own_losses:Halved"', 1)
    with pytest.raises(UsageError, match="names code to run: own_losses:Halved"):
        parsing.parse(text, "own.toml")
    with pytest.raises(UsageError, match="unknown loss"):  # that a file names it is not enough anywhere
        losses.objective("own_losses:Halved")
    study = parsing.parse(text, "own.toml", trust=True)
    made = losses.objective("own_losses:Halved+mmce:weight=3")
    assert made.spec == "own_losses:Halved+mmce:weight=3"
    logits, labels = torch.randn(7, 4), torch.arange(7) % 4
    wanted = torch.nn.functional.cross_entropy(logits, labels, reduction="none") / 2
    assert torch.allclose(losses.objective(study.arms[0].loss).loss(logits, labels), wanted)
    alone = LITTLE.replace("mlp:hidden=8", "own_losses:net").replace("seeds = 2", "seeds = 1")
    one = parsing.parse(alone, "own.toml", trust=True)
    one = dataclasses.replace(one, arms=one.arms[:1])
    work.work(one, tmp_path / "own", lambda fraction, text: None)  # its checkpoint names no architecture
    assert work.record(tmp_path / "own", work.runs(one)[0])["lambda_max of ce"] > 0
    for name in ("Two", "Weighted"):  # of their own number of classes
        assert parsing.parse(text.replace("Halved", name), "own.toml", trust=True).arms[0].loss == f"own_losses:{name}"
    with pytest.raises(InputError, match=r"fails \(ValueError: never"):
        parsing.parse(text.replace("Halved", "Broken"), "own.toml", trust=True)
    with pytest.raises(InputError, match=r"gives \(\) for 3 rows"):
        parsing.parse(text.replace("Halved", "Mean"), "own.toml", trust=True)
    with pytest.raises(UsageError, match="has no 'Halve'"):
        parsing.parse(text.replace("Halved", "Halve"), "own.toml", trust=True)
    with pytest.raises(UsageError, match=r"names code to run: torch.nn:Linear"):
        parsing.parse(LITTLE.replace("mlp:hidden=8", "torch.nn:Linear,in_features=64,out_features=10"), "own.toml")


@pytest.mark.slow
def test_the_reports_show_their_numbers() -> None:
    """`python docs/studies.py` writes the tables of docs/studies/ from the results beside them."""
    from importlib.util import module_from_spec, spec_from_file_location

    made = spec_from_file_location("studies", ROOT / "docs" / "studies.py")
    assert made
    assert made.loader
    studies = sys.modules["studies"] = module_from_spec(made)
    made.loader.exec_module(studies)
    papers = (ROOT / "docs" / "papers.md").read_text(encoding="utf-8")
    assert studies.papers() == papers, "run `python docs/studies.py papers`"
    assert "| CE | 17.52 → 3.42 (2.1) | 4.35 → 1.35 (2.5) |" in papers  # as Table 1 prints it
    pages = sorted((ROOT / "docs" / "studies").glob("*.md"))
    assert len(pages) >= 5
    for page in pages:
        text = page.read_text(encoding="utf-8")
        assert studies.written(page) == text, "run `python docs/studies.py`"
        facts = studies.result(page.stem).facts  # a page is of one study, and of one of its sizes where it says so
        assert facts["study"] in experiment.built_in()
        assert page.stem in (facts["study"], f"{facts['study']}-{facts.get('size', '')}")
        assert f"{page.stem}.svg" in text
    now = analytic.computed(parsing.parse(*experiment.text_of("focal-shape"), size="small"))
    then = Result.from_json((ROOT / "docs" / "studies" / "focal-shape.json").read_bytes())
    assert (then.tables, then.checks) == (now.tables, now.checks)


def test_the_page_of_results_quotes_the_reports() -> None:
    linked = (ROOT / "docs" / "study-results.md").read_text(encoding="utf-8")
    text = " ".join(re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", linked).split())
    quoted: dict[str, list[Any]] = {
        "focal-losses-medium": ["by .14, .05 and .04", "T1-CE", "T1-Brier", "T1-MMCE"],
        "step-size-medium": ["larger than with the mean, by .03 for cross-entropy and by .06 for", "CE", "FL-3"],
    }
    for name, (said, *claimed) in quoted.items():
        checks = {c.scope: c for c in Result.from_json((ROOT / f"docs/studies/{name}.json").read_bytes()).checks}
        values = [checks[scope].estimate for scope in claimed]
        assert said in text
        assert [f"{-one.value:.2f}"[1:] for one in values if one and one.value] == re.findall(r"\.\d\d", said)
        assert {checks[scope].outcome for scope in claimed} == {"pass"}


def test_a_run_that_diverges_is_told_and_the_others_go_on(tmp_path: Path) -> None:
    text = LITTLE.replace("gamma = [1, 3]", "gamma = [3]\nlr = 1e9").replace("seeds = 2", "seeds = 1")
    study = parsing.parse(
        text.replace('curvature = ["lambda_max"]', "").partition('[[claim]]\nid = "own"')[0], "l.toml"
    )
    work.work(study, tmp_path, lambda fraction, text: None)
    states = {run.arm.name: work.record(tmp_path, run)["status"] for run in work.runs(study)}
    assert states == {"CE": "finished", "FL-3": "diverged"}
    found = report(study, tmp_path)
    assert any("FL-3" in note and "1 of 1 diverged" in note for note in found.notes)


def test_an_arm_that_learned_nothing_is_named_and_what_was_done_to_the_inputs(tmp_path: Path) -> None:
    text = LITTLE.replace("gamma = [1, 3]", "gamma = [3]\nlr = 1e-9").replace("epochs = 2", "epochs = 4\nlr = 0.1")
    study = parsing.parse(
        text.replace('curvature = ["lambda_max"]', "").partition('[[claim]]\nid = "own"')[0], "l.toml"
    )
    work.work(study, tmp_path, lambda fraction, text: None)
    notes = report(study, tmp_path).notes
    assert [note.partition(":")[0] for note in notes if "learned nothing" in note] == [
        "FL-3 has learned nothing that is shown"
    ]
    assert "inputs are standardised with the mean and spread of the training rows" in notes


def test_a_missing_gpu_is_told_before_anything_is_trained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "cuda.toml").write_text(LITTLE.replace("epochs = 2", 'epochs = 2\ndevice = "cuda:99"'))
    line = ["study", str(tmp_path / "cuda.toml"), "--save", str(tmp_path / "out"), "-q"]
    assert main(line) == 2
    assert "no device 'cuda:99': this machine has" in (said := capsys.readouterr().err)
    assert "pass --device cpu" in said
    assert not (tmp_path / "out").exists()
    assert main([*line, "--dry-run"]) == 0  # on a machine without one a study can still be planned
    assert main([*line, "--device", "cpu", "--seeds", "1"]) == 0
    kept = parsing.parse((tmp_path / "out" / parsing.FILE).read_text(), "kept")
    assert kept.device == "cuda:99"  # where it runs now is no part of the recipe


def test_workers_take_one_gpu_after_the_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "little.toml").write_text(LITTLE)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert work.places("auto", 3) == work.places("cuda", 3) == ["cuda:0", "cuda:1", "cuda:0"]
    assert (work.places("cuda:1", 2), work.places("cpu", 2)) == (["cuda:1"] * 2, ["cpu"] * 2)
    said: list[io.StringIO] = []

    class Other:
        def __init__(self, *_: Any, **__: Any) -> None:
            self.stdin = io.StringIO()
            self.stdin.close = lambda: said.append(self.stdin)  # type: ignore[method-assign]

        def wait(self) -> None: ...

    here: list[str] = []
    monkeypatch.setattr(subprocess, "Popen", Other)
    monkeypatch.setattr(work, "work", lambda study, *_, **__: here.append(study.device))
    save = str(tmp_path / "out")
    assert main(["study", str(tmp_path / "little.toml"), "--save", save, "--jobs", "3", "--until", "9", "-q"]) == 0
    assert here == ["cuda:0"]
    lines = [json.loads(one.getvalue()) for one in said]
    same = ["--work-only", "-q"]  # the report is written once
    assert lines == [["study", save, "--until", "9", "--device", f"cuda:{i}", *same] for i in (1, 0)]


@pytest.mark.slow
@pytest.mark.regression
def test_a_worker_runs_no_module_of_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "signal.py").write_text("open('ran', 'w')\n", "utf-8")
    monkeypatch.chdir(tmp_path)
    other = experiments._ready()
    other.communicate("")  # nothing to do
    assert other.returncode == 0
    assert not (tmp_path / "ran").exists()


def test_a_worker_waits_for_nobody_and_writes_no_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = LITTLE.replace("seeds = 2", "seeds = 1").replace('curvature = ["lambda_max"]', "")
    text = text.partition('[[claim]]\nid = "own"')[0]
    (tmp_path / "little.toml").write_text(text)
    save = tmp_path / "out"
    line = ["study", str(tmp_path / "little.toml"), "--save", str(save), "--work-only", "-q", "--json"]
    study = parsing.parse(text, "little.toml")
    parsing.keep(study, save)
    first = save / work.runs(study)[0].folder
    with work.claimed(first):  # another worker is at it
        assert main(line) == 0
    assert json.loads(capsys.readouterr().out)["facts"]["headline"] == "2 of 3 runs are done."
    assert not (first / "run.json").exists()
    assert not (save / "result.json").exists()
    assert main(line) == 0
    assert json.loads(capsys.readouterr().out)["facts"]["runs"] == "3 of 3"
    assert main([*line, "--report-only"]) == 2


def test_a_full_disk_ends_the_study_and_the_same_command_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = parsing.parse(LITTLE, "little.toml")
    run = work.runs(study)[0]
    done = []

    def full(*_: Any, **__: Any) -> None:
        done.append(1)
        raise WriteError("no space left", "make room")

    monkeypatch.setattr(work, "run_all", full)
    with pytest.raises(WriteError, match="no space"):
        work.work(study, tmp_path, lambda fraction, text: None)
    assert done == [1]
    assert not work.record(tmp_path, run)
    assert not list(tmp_path.rglob("run.lock"))


def test_a_folder_runs_no_code_that_its_own_recipe_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The recipe that is run names no code, or is trusted; what the folder holds is compared with it, and no more."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    Path("planted_losses.py").write_text(OWN + "\nopen('ran', 'w')\n")
    save = tmp_path / "save"
    save.mkdir()
    planted = LITTLE.replace('loss = "ce"', 'loss = "planted_losses:Halved"', 1)
    (save / "study.toml").write_text(planted)
    Path("good.toml").write_text(LITTLE)
    for trust in ([], ["--trust"]):
        assert main(["study", "good.toml", "--save", str(save), "--report-only", "-q", *trust]) == 2
        assert not Path("ran").exists()
        assert (save / "study.toml").read_text() == planted


@pytest.mark.parametrize("more", [[], ["--work-only"], ["--report-only"]])
def test_a_folder_of_other_files_is_refused_before_anything_runs(
    more: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A folder of a study may begin empty, and is gone on with; a folder of anything else stays as it is."""
    trained: list[Path] = []
    monkeypatch.setattr(work, "work", lambda study, save, *_, **__: trained.append(save))
    (tmp_path / "little.toml").write_text(LITTLE)
    foreign, own = tmp_path / "foreign", tmp_path / "own"
    (foreign / "runs").mkdir(parents=True)
    own.mkdir()
    (own / ".study.toml.abcdefgh.toml").touch()  # of another process, which writes the recipe now
    written = {"result.json": b"{}", "report.html": b"mine", "runs/notes.txt": b"\x00\xff"}
    for name, content in written.items():
        (foreign / name).write_bytes(content)
    line = ["study", str(tmp_path / "little.toml"), "-q", *more, "--save"]
    assert main([*line, str(foreign)]) == 2
    assert "it is not the folder of a study" in capsys.readouterr().err
    assert {str(p.relative_to(foreign)): p.read_bytes() for p in foreign.rglob("*") if p.is_file()} == written
    assert not trained
    for _ in range(2):
        parsing.keep(parsing.parse(LITTLE, "little.toml"), own)
        (own / "runs").mkdir(exist_ok=True)


def test_numbers_of_a_study_have_four_digits_and_no_p_without_other_rows() -> None:
    study = parsing.parse(LITTLE, "little.toml")
    value = SeedMean(0.33792684073, 1e-20, 0.0, 5)
    found = {"nll": ClaimVerdict("reversed", 2.5e-27, value), "own": ClaimVerdict("holds", 0.03, value)}
    measured = MeasuredArm(np.array([0.1, 0.2, 0.3]))
    drawn = MeasuredArm(measured.values, np.ones((3, 4)))
    arms = {arm.name: {"nll": drawn, "lambda_max of ce": measured} for arm in study.arms}
    judged = [judgement.JudgedClaim(c.id, c, found[c.id], judgement._counted(study, c, arms)) for c in study.claims]
    table = judgement._verdicts(study, judged)
    assert [row[table.columns.index("p (Holm)")] for row in table.rows] == [2.5e-27, ""]
    checks = [judgement._check(one, False, 2) for one in judged]
    assert [" p " in check.estimate.how for check in checks if check.estimate] == [True, False]
    result = Result(command="study", checks=checks, tables=[table], facts={"question": study.question})
    for name in ("table", "markdown", "junit", "github"):
        text = render.text(result, name)
        assert "0.3379" in text
        assert "0.33792" not in text
        assert "e-27" not in text
        assert "reversed" in text
        assert not any(word in text for word in ("FAIL", "INCONCLUSIVE", "PASS", "warns"))


@pytest.mark.parametrize(("outcome", "word"), [("fail", "reversed"), ("inconclusive", "undecided")])
def test_a_claim_fails_nothing(outcome: Any, word: str) -> None:
    check = Check(rule="a < b", outcome=outcome, message=word, fatal=False)
    result = Result(command="study", checks=[check], facts={"question": "Is a below b?"})
    text = render.text(result, "table")
    assert word in text
    assert "warns" not in text
    assert outcome.upper() not in text


def published_layouts(folder: Path) -> None:
    """Small archives in the layouts of all data sets that docs/papers.md names, and vectors of words."""
    from downloads_written import cifar10, cifar100, pictures, tar, tiny_imagenet

    x, held_out = pictures(1_050), np.random.RandomState(1).permutation(1_000)[:100]
    for k, files in ((10, cifar10), (100, cifar100)):
        labels = np.arange(1_050) % k
        labels[held_out] = np.arange(100) % k  # each class is among those that are held out
        tar(str(folder / f"cifar-{k}-python.tar.gz"), files(x, labels, train=1_000))
    posts = synthetic.newsgroups(folder / "20_newsgroups", posts=100)
    tar(
        str(folder / "20_newsgroups.tar.gz"),
        {str(p.relative_to(folder)): p.read_bytes() for p in sorted(posts.rglob("*")) if p.is_file()},
    )
    trees = synthetic.sentiment(folder / "trees", train=30, dev=20, test=20)
    with zipfile.ZipFile(folder / "trainDevTestTrees_PTB.zip", "w") as archive:
        for path in sorted(trees.iterdir()):
            archive.write(path, f"trees/{path.name}")
    with zipfile.ZipFile(folder / "tiny-imagenet-200.zip", "w") as archive:
        for name, data in tiny_imagenet(each=2).items():
            archive.writestr(name, data)
    for name, width in (("glove.6B.100d.txt", 100), ("glove.840B.300d.txt", 300)):
        (folder / name).write_text("".join(f"{word} {' '.join(['0.5'] * width)}\n" for word in ("w1", "word1")))


@pytest.mark.slow
def test_the_lines_of_the_papers_find_their_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each line of docs/papers.md by a dry run, on archives of the true layouts; a part that is not there is told."""
    published_layouts(tmp_path)
    monkeypatch.chdir(tmp_path)
    for drawn in ("uniform_", "normal_"):  # weights, which nothing here reads
        monkeypatch.setattr(torch.Tensor, drawn, lambda tensor, *_, **__: tensor)
    text = (ROOT / "docs" / "papers.md").read_text(encoding="utf-8")
    lines = [shlex.split(line) for line in re.findall(r"(?m)^ +(calib study \S+ --size .*)$", text)]
    assert {line[2] for line in lines} >= {"focal-losses", "fts", "text", "sentiment", "curvature-gamma"}
    assert {line[line.index("--data") + 1] for line in lines} <= {path.name for path in tmp_path.iterdir()}
    for line in lines:
        assert main([*line[1:], "--dry-run", "--json"]) == 0, line
        facts = json.loads(capsys.readouterr().out)["facts"]
        size, data = line[line.index("--size") + 1], line[line.index("--data") + 1]
        study = parsing.parse(*experiment.text_of(line[2]), size, data)
        assert facts["runs"] == len(study.arms) * study.seeds * max(1, line.count("--arch"))
        assert set(facts["rows"]) == {"train", "validation", "test"}
    tiny = parsing.parse(*experiment.text_of("fts"), "tiny-imagenet", "tiny-imagenet-200.zip")
    assert (tiny.options["epochs"], tiny.options["batch_size"], tiny.options["schedule"]) == (
        100,
        64,
        "step:at=0.4/0.6",
    )
    parts = work.opened(tiny, tmp_path)
    assert parts.validation is not None
    assert parts.test is not None
    assert {*parts.validation.ids}.isdisjoint(parts.test.ids)
    assert sorted(parts.validation.labels) == sorted(parts.test.labels) == [0, 1, 2]
    whole = ["study", "fts", "--size", "paper", "--data", "tiny-imagenet-200.zip", "--dry-run"]
    assert main(whole) == 4
    assert "has no split 'test'" in capsys.readouterr().err
    (tmp_path / "glove.6B.100d.txt").unlink()
    assert main(["study", "text", "--size", "paper", "--data", "20_newsgroups.tar.gz", "--dry-run"]) == 4
    assert "glove.6B.100d.txt" in capsys.readouterr().err


# rows of curvature ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_verdicts_on_curvature_count_the_rows_it_was_measured_on(tmp_path: Path) -> None:
    text = LITTLE.replace('["lambda_max"]', '["lambda_max", "trace", "trace after", "fisher_rao"]')
    text = text.replace("lambda_max of ce", "trace after of ce").replace("gamma = [1, 3]", "gamma = [3]")
    study = parsing.parse(text, "rows.toml")
    work.work(study, tmp_path, lambda fraction, text: None)
    names = {f"{name} of ce" for name in study.curvature}
    terms = {}
    for run in work.runs(study):
        with np.load(tmp_path / run.folder / "rows.npz") as arrays:
            terms[run.arm.name, run.seed] = {name: arrays[name] for name in arrays.files}
        saved = work.record(tmp_path, run)
        for name, of_rows in terms[run.arm.name, run.seed].items():
            assert (of_rows.dtype, of_rows.shape) == (np.float64, (600,))
            assert of_rows.mean() == pytest.approx(saved[name], rel=1e-3)
    assert all(set(one) == names for one in terms.values())
    arms, lost, _ = readings.measured(study, tmp_path, "mlp:hidden=8")
    assert not lost
    for name in names:
        a, b = arms["FL-3"][name], arms["CE"][name]
        assert a.draws is not None
        assert a.draws.shape == (2, claims.DRAWS)
        each = np.stack([terms["FL-3", seed][name] - terms["CE", seed][name] for seed in (0, 1)])
        shared = float(np.cov(each)[0, 1]) / 600  # what the rows do alike in both seeds
        assert SeedMean.of(a - b).rows == pytest.approx(max(shared, 0.0), rel=0.5, abs=1e-9 + 0.2 * each.var() / 600)
    (tmp_path / work.runs(study)[0].folder / "rows.npz").unlink()  # as a run of an earlier version
    arms, *_ = readings.measured(study, tmp_path, "mlp:hidden=8")
    assert arms["CE"]["trace of ce"].draws is None
    assert arms["FL-3"]["trace of ce"].draws is not None
    (tmp_path / work.runs(study)[1].folder / "rows.npz").write_bytes(b"no zip")
    with pytest.raises(InputError, match=r"rows\.npz cannot be read"):
        readings.measured(study, tmp_path, "mlp:hidden=8")


def test_draws_of_curvature_are_those_of_the_metrics_where_the_rows_are_the_same(tmp_path: Path) -> None:
    """A split holds rows out of the training rows: curvature is then of the test rows, as the metrics are."""
    text = LITTLE.replace('validation = "digits#validation"', 'split = "stratified"').replace("seeds = 2", "seeds = 1")
    study = parsing.parse(text.replace('["lambda_max"]', '["lambda_max", "trace"]'), "split.toml")
    study = dataclasses.replace(study, arms=study.arms[:1])
    work.work(study, tmp_path, lambda fraction, text: None)
    folder = tmp_path / work.runs(study)[0].folder
    with np.load(folder / "rows.npz") as arrays:
        terms = arrays["trace of ce"]
    found, *_ = readings.measured(study, tmp_path, "mlp:hidden=8")
    drawn = means(terms).drawn(draws(len(terms), claims.DRAWS))
    np.testing.assert_allclose(found["CE"]["trace of ce"].draws, drawn[None], rtol=1e-6)
