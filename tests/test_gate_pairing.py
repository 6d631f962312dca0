"""How rows of two files pair, in every command that pairs them: by id with equal labels, or not at all."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from calibcli.cli.app import main
from calibcli.gate import baseline
from calibcli.gate.baseline import ENOUGH, Pairing, Unpaired, keys, label_bits, pair
from calibcli.metrics import METRICS, Sample, paired
from calibcli.scores.columns import columns
from calibcli.scores.predictions import Predictions

N = 1200


def rows(k: int = 10, n: int = N, seed: int = 0) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    y = rng.integers(0, k, n)
    return rng.normal(size=(n, k)) + 2.0 * np.eye(k)[y], y


def kept(p: Predictions) -> baseline.BaselineRows:
    """Rows as a result file holds them."""
    packed = json.loads(json.dumps(baseline.rows(p, columns(p)).pack()))
    return baseline.BaselineRows.unpack(packed, "base.json")


def of(z: Any, y: Any, ids: Any) -> Predictions:
    return Predictions.of(z, y, ids=np.asarray(ids))


@pytest.mark.parametrize("changed", [833, 1])
@pytest.mark.parametrize("k", [2, 10])
def test_a_baseline_whose_labels_differ_does_not_pair(changed: int, k: int) -> None:
    z, y = rows(k)
    names = np.arange(N)
    other = y.copy()
    other[:changed] = (other[:changed] + 1) % k
    p, q = of(z, y, names), of(z, other, names)
    for base in (keys(p, "ab"), kept(p)):
        found = pair(keys(q, getattr(base, "salt", "ab")), base)
        assert isinstance(found, Unpaired)
        assert "another label" in found.problem
        order = np.random.default_rng(1).permutation(N)
        again = pair(keys(p.take(order), getattr(base, "salt", "ab")), base)
        assert isinstance(again, Pairing)
        assert np.array_equal(again.base, order)


@pytest.mark.parametrize("share", [0.4, 0.5, 0.9, 0.999])
def test_some_rows_of_a_kept_baseline_compare_their_labels_too(share: float) -> None:
    z, y = rows(n=6000)
    p = of(z, y, np.arange(6000))
    base = kept(p)
    some = np.random.default_rng(2).random(6000) < share
    assert isinstance(pair(keys(p.take(some), base.salt), base), Pairing)
    relabelled = of(z, (y + 1) % 10, np.arange(6000)).take(some)
    found = pair(keys(relabelled, base.salt), base)
    assert isinstance(found, Unpaired)
    assert "another label" in found.problem


def test_too_few_rows_of_a_kept_baseline_are_refused_with_the_way_out() -> None:
    z, y = rows(n=400)
    p = of(z, y, np.arange(400))
    base, few = kept(p), p.take(np.arange(40) * 10)
    found = pair(keys(few, base.salt), base)
    assert isinstance(found, Unpaired)
    assert "too few to compare the labels" in found.problem
    assert "scores file" in found.fix
    assert isinstance(pair(keys(few, "x"), keys(p, "x")), Pairing)  # of the file itself, every label is known


def test_a_result_of_an_earlier_version_pairs_where_all_its_rows_are_there() -> None:
    z, y = rows()
    p = of(z, y, np.arange(N))
    packed = baseline.rows(p, columns(p)).pack()
    del packed["label_bits"]
    base = baseline.BaselineRows.unpack(packed, "base.json")
    assert isinstance(pair(keys(p, base.salt), base), Pairing)
    more = of(*(np.concatenate([a, a[:50]]) for a in (z, y)), np.arange(N + 50))
    assert isinstance(pair(keys(more, base.salt), base), Pairing)
    found = pair(keys(p.take(np.arange(N - 1)), base.salt), base)
    assert isinstance(found, Unpaired)
    assert "earlier version" in found.problem


def test_kept_label_bits_give_no_label_away() -> None:
    """Who knows ids and hash tries all labellings of the rows of a bit: nearly every row keeps both labels."""
    rng = np.random.default_rng(3)
    ids, y = np.sort(rng.integers(0, 2**63, 800).astype(np.uint64)), rng.integers(0, 2, 800)
    bits = label_bits(ids, y)
    assert len(bits) == 200  # a quarter of a bit for each row
    known = right = 0
    for group, bit in enumerate(bits.tolist()):
        four = ids[4 * group : 4 * group + 4]
        fit = [labels for labels in itertools.product((0, 1), repeat=4) if label_bits(four, np.array(labels))[0] == bit]
        assert tuple(y[4 * group : 4 * group + 4]) in fit
        mean = np.mean(fit, axis=0)
        known += int(((mean == 0) | (mean == 1)).sum())
        right += int(((mean > 0.5) == y[4 * group : 4 * group + 4]).sum())
    assert known <= 16
    assert right / 800 < 0.68
    z, y = rows()
    fields = baseline.rows(of(z, y, np.arange(N)), columns(of(z, y, np.arange(N)))).pack()
    assert len(fields["label_bits"]) < N / 16  # a quarter of a bit for each row, in base64


def test_confidences_alone_pair_by_id_and_may_differ_in_what_was_right(tmp_path: Path, capsys: Any) -> None:
    rng = np.random.default_rng(4)
    for name, ids in (("a", True), ("b", True), ("c", False)):
        lines = [",".join(["id"] * ids + ["confidence", "correct"])]
        for i in range(600):
            c = rng.uniform(0.5, 1)
            lines.append(",".join([f"r{i}"] * ids + [f"{c:.6f}", str(int(rng.random() < c))]))
        (tmp_path / f"{name}.csv").write_text("\n".join(lines) + "\n")
    a, b, c = (str(tmp_path / f"{name}.csv") for name in "abc")
    for base in (a, str(tmp_path / "a.json")):
        if base.endswith("json"):
            assert main(["check", a, "--min", "accuracy=0.1", "--keep-rows", "-q", "-o", base]) == 0
        capsys.readouterr()
        main(["check", b, "--baseline", base, "--margin", "accuracy=0.9", "--json"])
        [verdict] = json.loads(capsys.readouterr().out)["checks"]
        assert verdict["outcome"] == "pass"
        main(["check", c, "--baseline", base, "--margin", "accuracy=0.9", "--json"])
        [verdict] = json.loads(capsys.readouterr().out)["checks"]
        assert (verdict["outcome"], "do not pair" in verdict["message"]) == ("not_run", True)


def test_bits_are_as_many_as_decide() -> None:
    assert 2.0**-ENOUGH < 0.001


@pytest.mark.finding
@pytest.mark.parametrize("seed", range(3))
def test_kept_rows_never_bring_the_ends_of_a_difference_nearer(seed: int) -> None:
    """The ranges of rows are kept in float16: ends lie no further inside than those of the scores themselves."""
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(400, 3)) * 3
    y = (z + rng.gumbel(size=z.shape) * 2).argmax(axis=1)
    both = [Predictions.of(one, y) for one in (z, z + 0.5 * rng.normal(size=z.shape))]
    tables = [columns(one) for one in both]
    base, new = (baseline.rows(*one, "ab") for one in zip(both, tables, strict=True))
    kept = baseline.difference(new, base, baseline.pair(new, base), "nll", None, False, None)
    exact = paired.difference(*(Sample.of(t, p) for t, p in zip(tables, both)), METRICS.choose("nll"), 0.9)
    assert isinstance(kept, paired.MeanDifference)
    assert isinstance(exact, paired.Paired)
    low, high = kept.bounds(0.05)
    assert exact.low - 3e-4 < low < exact.low
    assert exact.high < high < exact.high + 3e-4
