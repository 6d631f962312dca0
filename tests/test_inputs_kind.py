"""The kind of scores at the edges of its definition, and the same verdict however the rows are cut into pieces."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import calibcli
from calibcli.core.errors import InputError
from calibcli.scores import predictions
from calibcli.scores._score_kind import RowCount, Scan, UnitSums
from calibcli.scores.files.arrays import Memory
from calibcli.scores.input_mistakes import RepeatedRows, TiedScores, ZeroProbabilityLabels, scan

RNG = np.random.default_rng(4)
Z = RNG.normal(size=(3000, 6)) * 2
P = np.exp(Z) / np.exp(Z).sum(axis=1, keepdims=True)
Y = RNG.integers(0, 6, 3000)
SOME = np.where(Z < -3, 0, P)
with np.errstate(divide="ignore"):
    MASKED = np.log(SOME / SOME.sum(axis=1, keepdims=True))
COUNTERS = ("bad", "predicted", "compared", "marks", "positive", "unnormalised", "squashed", "spread")


def look(scores: np.ndarray, **how: int) -> Scan:
    return scan(Memory(scores), Y[: len(scores)], **how)


def changed(rows: int, value: np.ndarray | float) -> np.ndarray:
    p = P.copy()
    p[:rows] = value
    return p


@pytest.mark.parametrize(
    ("scores", "kind"),
    [
        (P, "probabilities"),
        (P * (1 + 9e-5), "probabilities"),
        (P * (1 + 2e-4), None),
        (changed(3, P[:3] * 2), "probabilities"),  # 1 row in 1,000 may be off
        (changed(4, P[:4] * 2), "logits"),  # one of them is beyond 1, so not all lie in [0, 1]
        (changed(4, P[:4] * 0.5), None),
        (changed(3, -7.0), "probabilities"),
        (changed(4, -7.0), "logits"),
        (P - 2e-7, "probabilities"),
        (Z, "logits"),
        (np.log(P), "log_probabilities"),
        (np.log(P) + 9e-4 * (np.log(P) < -1e-3), "log_probabilities"),
        (np.log(P) - 2e-3, "logits"),
        (MASKED, "log_probabilities"),
        (P.astype(np.float16), "probabilities"),
        (P.astype(np.float16).astype(np.float32), "probabilities"),
        ((P.astype(np.float32).view(np.uint32) & 0xFFFF0000).view(np.float32), "probabilities"),  # bfloat16
    ],
)  # fmt: skip
def test_edges(scores: np.ndarray, kind: str | None) -> None:
    assert look(scores).kind == kind


@pytest.mark.parametrize("decimals", [1, 2, 3, 4])
def test_rounded_text_sums_to_one_within_its_digits(decimals: int) -> None:
    rounded = np.round(P, decimals)
    assert look(rounded, decimals=decimals).kind == "probabilities"
    if decimals < 4:
        assert look(rounded).kind is None


@settings(max_examples=40, derandomize=True, database=None, deadline=None)
@given(st.integers(1, 400), st.sampled_from(["p", "z", "log"]), st.lists(st.integers(0, 999), max_size=6), st.data())
def test_pieces_do_not_matter(rows: int, what: str, where: list[int], data: st.DataObject) -> None:
    scores = {"p": P, "z": Z, "log": np.log(P)}[what][:1000].copy()
    for i in where:
        scores[i, i % 6] = data.draw(st.sampled_from([np.nan, np.inf, -np.inf, 0.0, 3.0, -1.0]))
    whole = look(scores)
    before = predictions.CHUNK_BYTES
    predictions.CHUNK_BYTES = rows * 6 * 8
    try:
        parts = look(scores)
    finally:
        predictions.CHUNK_BYTES = before
    assert (parts.kind, parts[RepeatedRows].count) == (whole.kind, whole[RepeatedRows].count)
    assert (parts.n, parts.low, parts.high) == (whole.n, whole.low, whole.high)
    assert parts.nonfinite == whole.nonfinite
    if whole.kind == "probabilities":
        assert (parts[TiedScores], parts[ZeroProbabilityLabels]) == (whole[TiedScores], whole[ZeroProbabilityLabels])
        for field in dataclasses.fields(UnitSums):
            value = getattr(whole.unit, field.name)
            same = value if isinstance(value, RowCount) else pytest.approx(value, nan_ok=True)
            assert getattr(parts.unit, field.name) == same, field.name
    bad = ~np.isfinite(scores)
    assert whole.nonfinite.nan.count == np.isnan(scores).any(axis=1).sum()
    finite = scores[~(np.isnan(scores) | (scores == np.inf)).any(axis=1)]
    assert (whole.low, whole.high) == (finite[np.isfinite(finite)].min(), finite[np.isfinite(finite)].max())
    assert whole.finite == 1000 - (np.isnan(scores) | (scores == np.inf)).any(axis=1).sum() or bad.all(axis=1).any()


def test_zero_probability_of_the_label() -> None:
    p = P.copy()
    for i in (7, 90):
        p[i, Y[i]] = 0
        p[i] /= p[i].sum()
    found = look(p)
    assert found[ZeroProbabilityLabels] == ZeroProbabilityLabels(2, 7)
    with np.errstate(divide="ignore"):
        found = look(np.log(p))
    assert (found[ZeroProbabilityLabels], found.kind) == (ZeroProbabilityLabels(2, 7), "log_probabilities")


SIGMOIDS = 1 / (1 + np.exp(-Z[:400, :3]))
ROUNDED = np.round(0.9 * P[:400] + 0.1 / 6, 2)
THREE = Y[:400] % 3
FORCED: dict[str, Callable[..., Any]] = {
    "from_arrays": calibcli.from_arrays,
    "measure": lambda p, y, **how: calibcli.measure(p, y, "ece", **how),
    "check": lambda p, y, **how: calibcli.check(p, y, max={"ece": 0.25}, **how),
    "fit_scaler": calibcli.fit_scaler,
    "find_slices": lambda p, y, **how: calibcli.find_slices(p, y, by={"site": y % 2}, **how),
    "compare": lambda p, y, **how: calibcli.compare(*[calibcli.from_arrays(p, y, **how)] * 2, metrics=["nll"]),
}


@pytest.mark.parametrize("call", FORCED.values(), ids=FORCED.keys())
def test_what_the_user_calls_probabilities_sums_to_one_as_rounded_numbers_do(call: Callable[..., Any]) -> None:
    """Three sigmoids a row, divided by their sum, have an ECE of less than half of theirs."""
    with pytest.raises(InputError, match=r"do not sum to 1: row 0 sums to .*rounding by no more than 0\.02"):
        call(SIGMOIDS, THREE, kind="probabilities")
    with pytest.raises(InputError, match="exponentials of rows of 'scores' do not sum to 1"):
        call(np.log(SIGMOIDS), THREE, kind="log_probabilities")
    off = np.abs(ROUNDED.sum(axis=1) - 1).max()
    notes = call(ROUNDED, Y[:400], kind="probabilities").notes
    said = f"rows do not sum to 1 (largest deviation {off:.2g}): each is divided by its sum"
    assert any(note.endswith(said) for note in notes)


def test_a_forced_kind_of_a_file(tmp_path: Any) -> None:
    np.savez(tmp_path / "three.npz", probs=SIGMOIDS, labels=THREE)
    with pytest.raises(InputError, match="row 0 sums to"):
        calibcli.read(tmp_path / "three.npz", kind="probabilities")


@pytest.mark.parametrize("k", [3, 30, 3000])
def test_a_refusal_names_a_kind_that_is_then_taken(k: int) -> None:
    """Whether `--kind probabilities` is offered, and whether it is taken, is one bound."""
    p = RNG.dirichlet(np.ones(k), 40)
    y = RNG.integers(0, k, 40)
    for off in (0.015, 0.03, 0.12, 0.3):
        with pytest.raises(InputError, match="do not sum to 1") as error:
            calibcli.from_arrays(p * (1 - off), y)
        if "rounded probabilities: kind='probabilities'" in error.value.fix:
            calibcli.from_arrays(p * (1 - off), y, kind="probabilities")
        else:
            with pytest.raises(InputError, match="rounding by no more than"):
                calibcli.from_arrays(p * (1 - off), y, kind="probabilities")


def test_a_few_rows_that_miss_a_sum_of_one_are_told() -> None:
    notes = calibcli.from_arrays(changed(3, P[:3] * 0.5), Y).notes
    assert "3 of 3,000 rows do not sum to 1 (largest deviation 0.5): each is divided by its sum" in notes
    assert not any("sum to 1" in note for note in calibcli.from_arrays(P, Y).notes)
