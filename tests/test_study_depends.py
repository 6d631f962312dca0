"""Studies: whether a metric of drawn arms depends on a number, given another one; and one curve without a base arm."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from test_study_curves import refusal

from calibcli.core.errors import UsageError
from calibcli.lab.study import _curve, claims, experiment, parsing
from calibcli.lab.study._given import GivenNumbers
from calibcli.lab.study.claims import MeasuredArm

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
ARMS = 60
RANGES = {
    "gamma": (0.2, 2.0),
    "smoothing": (0.002, 0.04),
    "decay": (0.0005, 0.012),
    "rho": (0.02, 0.3),
    "lr": (0.003, 0.1),
    "batch_size": (8.0, 128.0),
}


def numbers(values: np.ndarray, noise: np.ndarray | float = 0.0) -> list[list[MeasuredArm]]:
    """Three seeds of each arm, from (P, A) values and (P, A, 3) noise."""
    return [[MeasuredArm(row) for row in of] for of in values[..., None] + noise + np.zeros(3)]


@pytest.fixture(autouse=True)
def few_orders(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(claims, "ORDERS", 400)
    claims._orders.cache_clear()
    yield
    claims._orders.cache_clear()


def test_without_errors_it_is_the_test_of_freedman_and_lane() -> None:
    """The residuals of a regression are permuted; each time the t of the number is that of a regression with it."""
    rng = np.random.default_rng(0)
    x, k, z = -np.exp(rng.standard_normal((3, ARMS)))  # not above 0: as they are
    y = x**2 + k + 0.3 * z + rng.standard_normal(ARMS)
    given = GivenNumbers.of(np.stack([x, k, z, y])[..., None] + np.zeros(3), [None] * 4)
    p, slope, correlation = given.depends(claims._orders(ARMS))
    reduced = np.c_[np.vander(x, 5), k]
    left = y - reduced @ np.linalg.lstsq(reduced, y, rcond=None)[0]

    def t(response: np.ndarray) -> tuple[float, float]:
        full = np.c_[reduced, z]
        found = np.linalg.lstsq(full, response, rcond=None)[0]
        variance = ((response - full @ found) ** 2).sum() / (ARMS - 7)
        return float(found[-1]), float(found[-1] / np.sqrt(variance * np.linalg.inv(full.T @ full)[-1, -1]))

    wanted = t(y)
    assert slope == pytest.approx(wanted[0], rel=1e-6)
    assert correlation == pytest.approx(wanted[1] / np.sqrt(wanted[1] ** 2 + ARMS - 7), rel=1e-6)
    every = np.array([abs(t(left[order])[1]) for order in claims._orders(ARMS)])
    assert p == pytest.approx((every >= every[0] * (1 - 1e-9)).mean(), abs=0.003)


def test_logarithms_of_what_is_above_0() -> None:
    rng = np.random.default_rng(1)
    x, z, e = rng.standard_normal((3, ARMS))
    found = claims.depends(numbers(np.stack([np.exp(x), np.exp(z), x - 0.5 * z + 0.01 * e])), "temperature")
    assert found.word == "holds"
    assert found.why.startswith("-0.5 for a unit of ln temperature, partial correlation -1.00")
    below = claims.depends(numbers(np.stack([np.exp(x), z, x - 0.5 * z + 0.01 * e])), "temperature")
    assert below.why.startswith("-0.5 for a unit of temperature")


@pytest.mark.parametrize(("kind", "ignored"), [("noisy", True), ("shared", True), ("rows", True), ("none", False)])
def test_errors_are_no_dependence(kind: str, ignored: bool) -> None:
    """A noisy x, an error that y and z share, or rows that move a slope: who ignores that finds what is not there."""
    found = {"counted": 0, "ignored": 0}
    for study in range(40):
        rng = np.random.default_rng(study)
        x = rng.standard_normal(ARMS)
        z = x + 0.5 * rng.standard_normal(ARMS)
        noise = 0.2 * rng.standard_normal((3, ARMS, 3))
        if kind == "noisy":
            noise[0] = 0.35 * rng.standard_normal((ARMS, 3))
        if kind == "shared":
            noise[1] = 0.5 * rng.standard_normal((ARMS, 3))
            noise[2] = noise[1] + 0.1 * noise[2]
        values = np.stack([x, z, x])[..., None] + noise
        draws: list[np.ndarray | None] = [None] * 3
        if kind == "rows":
            moves = 0.2 * rng.standard_normal(201)[:, None] * (z - x)
            values[2] += moves[0][:, None]
            draws[2] = values[2][..., None] + moves[1:].T[:, None]
        given = GivenNumbers.of(values, draws)
        found["counted"] += given.depends(claims._orders(ARMS))[0] < 0.05
        alone = replace(given, draws=given.means[None], errors=0 * given.errors, seeds=0 * given.seeds)
        found["ignored"] += alone.depends(claims._orders(ARMS))[0] < 0.05
    assert found["counted"] <= 8
    assert (found["ignored"] > 12) == ignored, found


def test_its_other_words() -> None:
    few = numbers(np.random.default_rng(0).standard_normal((3, 19)))
    assert claims.depends(few, "error").word == "no verdict"
    lost = numbers(np.random.default_rng(0).standard_normal((3, ARMS)))
    assert claims.depends(lost, "error").word == "undecided"
    single = [[MeasuredArm(arm.values[:1]) for arm in of] for of in lost]
    assert claims.depends(single, "error").why == "one seed does not tell the errors of these numbers"
    lost[1][3] = MeasuredArm(np.full(3, np.nan))
    assert "lacks" in claims.depends(lost, "error").why
    flat = numbers(np.ones((3, ARMS)))
    assert claims.depends(flat, "error").word == "undecided"


def test_offsets_of_causes_that_have_all_arms_are_one_fewer() -> None:
    """Any of them follows from the others, so that leaving one out changes nothing."""
    rng = np.random.default_rng(2)
    x, y = rng.uniform(1, 2, 12)[:, None] + 0.01 * rng.standard_normal((2, 12, 4))
    points = _curve.Points.of(x, y, None)
    curve = points.curve(2)
    marks = np.stack([np.arange(12) % 3 == k for k in range(3)]) @ curve.leaves
    whole = points.together(curve.slope, marks)
    assert 0 < whole < 1
    assert [points.together(curve.slope, np.delete(marks, k, axis=0)) for k in range(3)] == pytest.approx([whole] * 3)


def test_the_networks_of_the_study_are_those_that_a_seed_draws() -> None:
    rng = np.random.default_rng(0)
    drawn: dict[str, list[float]] = {cause: [] for cause in RANGES}
    for k in rng.integers(6, size=60):
        cause, ends = [*RANGES.items()][k]
        dose = float(np.exp(rng.uniform(*np.log(ends))))
        drawn[cause].append(round(dose) if cause == "batch_size" else float(f"{dose:.3g}"))
    study = parsing.parse(*experiment.text_of("curvature-drawn"), "small")
    assert {axis: [arm.at[axis] for arm in study.ordered(axis)] for axis in study.levels} == {
        cause: sorted(doses) for cause, doses in drawn.items()
    }
    assert [len(study.asked(claim)) for claim in study.claims] == [60] * 5
    assert study.options["stop_nll"] == 0.05


@pytest.mark.parametrize(
    ("old", "new", "match"),
    [
        (", on = ", ", off = ", "no key 'off'"),
        ('on = "temperature"', 'on = "heat"', "'heat' is not measured"),
        ('beside = ["error", "train_nll"]', 'beside = ["eror"]', "'eror' is not measured"),
        ('drawn = "60 ', 'more = "60 ', "no key 'more'"),
        ('causes = ["gamma", ', 'causes = ["delta", ', "two arms are to lie along 'delta'"),
    ],
)
def test_mistakes(old: str, new: str, match: str) -> None:
    text, source = experiment.text_of("curvature-drawn")
    assert old in text
    assert match in refusal(text.replace(old, new, 1), source, "small")


def test_too_few_networks_are_told_before_anything_is_trained() -> None:
    text, source = experiment.text_of("curvature-drawn")
    head, _, rest = text.partition('[[arm]]\nname = "smoothing')
    little = head + rest[rest.index("[measure]") :]
    claim = little.index('[[claim]]\nid = "temperature"')
    with pytest.raises(UsageError, match="claim temperature: fewer than 21 arms are trained"):
        parsing.parse(little[: little.index("[[claim]]")] + little[claim:], source, "small")


@pytest.fixture(scope="module")
def bench() -> Any:
    sys.path.insert(0, str(BENCHMARKS))
    import _measured_drawn

    yield _measured_drawn
    sys.path.remove(str(BENCHMARKS))


@pytest.mark.parametrize(
    ("world", "judge", "most", "least"),
    [
        ("trace alone: falls", "T", 3, 0),
        ("trace alone: falls", "curve", 3, 0),
        ("trace + .005 for an SD of the error", "error", 10, 8),
        ("T alone", "trace", 3, 0),
    ],
)
def test_simulated_studies(bench: ModuleType, world: str, judge: str, most: int, least: int) -> None:
    """The short form of `benchmarks/drawn.py`: 10 studies."""
    rng = np.random.default_rng(5)
    causes = bench.DIGITS.published()[1]
    words = [bench.JUDGES[judge](bench.simulated(bench.WORLDS[world], rng), causes).word for _ in range(10)]
    assert least <= len(words) - words.count("undecided") - words.count("holds") * (judge == "curve") <= most


def test_errors_that_few_seeds_leave_unknown_are_counted(bench: ModuleType) -> None:
    """Two seeds, which move T and the gap together by half of what networks differ in: 40 studies, 19 % before."""
    rng = np.random.default_rng(3)
    studies = [bench.simulated(bench.WORLDS["trace alone: falls"], rng, bench.MEDIUM) for _ in range(40)]
    assert sum(bench.JUDGES["T"](study, {}).word == "holds" for study in studies) <= 4


def test_a_gap_near_0_is_no_logarithm() -> None:
    """All gaps are above 0, and not on all draws of the rows; a draw that lacks the number decides nothing."""
    rng = np.random.default_rng(0)
    x, z = rng.standard_normal((2, ARMS, 1))
    values = np.stack([np.exp(x), np.exp(z), 0.05 + 0.001 * rng.random((ARMS, 1))]) * (
        1 + 1e-4 * rng.random((3, ARMS, 3))
    )
    draws = values[-1][..., None] + 0.05 * rng.standard_normal(200)
    assert (values > 0).all()
    assert (draws < 0).any()
    arms = [[MeasuredArm(one) for one in of] for of in values[:-1]]
    of_gap = [MeasuredArm(one, drawn) for one, drawn in zip(values[-1], draws, strict=True)]
    found = claims.depends([*arms, of_gap], "error")
    assert (found.word, found.p > 0.05) == ("undecided", True)
    assert "for a unit of ln error" in found.why
    of_gap[0] = MeasuredArm(values[-1][0], np.where(draws[0] < 0, np.nan, draws[0]))
    assert claims.depends([*arms, of_gap], "error").why == "a run, or a draw of its rows, lacks one of these numbers"
