"""The kind of scores at the edges of its definition, and the same verdict however the rows are cut into pieces."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calibcli import predictions
from calibcli.inputs.files.arrays import Memory
from calibcli.inputs.scores.mistakes import Impossible, Spot
from calibcli.inputs.scores.scan import Scan, Unit, scan

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


@settings(max_examples=80, derandomize=True, database=None, deadline=None)
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
    assert (parts.kind, parts.repeated.count) == (whole.kind, whole.repeated.count)
    assert (parts.n, parts.low, parts.high) == (whole.n, whole.low, whole.high)
    assert parts.nonfinite == whole.nonfinite
    if whole.kind == "probabilities":
        assert (parts.ties, parts.impossible) == (whole.ties, whole.impossible)
        for field in dataclasses.fields(Unit):
            if field.name not in ("squashed", "spread"):
                value = getattr(whole.unit, field.name)
                same = value if isinstance(value, Spot) else pytest.approx(value, nan_ok=True)
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
    assert found.impossible == Impossible(2, 7)
    with np.errstate(divide="ignore"):
        found = look(np.log(p))
    assert (found.impossible, found.kind) == (Impossible(2, 7), "log_probabilities")
