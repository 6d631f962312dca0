"""How rows of two files pair, in every command that pairs them: by id with equal labels, or not at all."""

from __future__ import annotations

import dataclasses
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


NAMES = ["cat", "dog", "fox"]


def named(columns: list[int], rename: dict[str, str] | None = None) -> Predictions:
    """500 rows whose score columns stand in this order, under names that the labels have, too."""
    z, y = rows(3, 500)
    names = [(rename or {}).get(name, name) for name in NAMES]
    place = np.argsort(columns)
    return Predictions.of(z[:, columns], place[y], ids=np.arange(500), classes=[names[i] for i in columns])


@pytest.mark.regression
@pytest.mark.parametrize("with_ids", [True, False])
def test_rows_pair_by_the_names_of_their_classes(with_ids: bool) -> None:
    """Columns in another order are the same rows; labels that are swapped by name are not, whatever their numbers."""
    one, turned = named([0, 1, 2]), named([2, 0, 1])
    swapped = named([0, 1, 2], dict(zip(NAMES, [*NAMES[1:], NAMES[0]], strict=True)))
    if not with_ids:
        one, turned, swapped = (dataclasses.replace(p, ids=None) for p in (one, turned, swapped))
    assert np.array_equal(one.labels, swapped.labels)
    for base in (keys(one), kept(one)):
        salt = getattr(base, "salt", "")
        assert isinstance(pair(keys(turned, salt), base), Pairing)
        assert isinstance(pair(keys(one, salt), base), Pairing)
        found = pair(keys(swapped, salt), base)
        assert isinstance(found, Unpaired), found
        assert "label" in found.problem
    found = pair(kept(turned), kept(one))
    assert isinstance(found, Unpaired)


@pytest.mark.regression
def test_classes_that_only_one_file_names_or_numbers_from_1_keep_their_place() -> None:
    z, y = rows(3, 500)
    plain = of(z, y, np.arange(500))
    for classes in (NAMES, ["1", "2", "3"], ["0", "1", "2"]):
        assert isinstance(pair(keys(dataclasses.replace(plain, classes=classes)), keys(plain)), Pairing)
    from_one, from_zero = (dataclasses.replace(plain, classes=[*names]) for names in ("123", "012"))
    assert isinstance(pair(keys(from_one), keys(from_zero)), Pairing)
    fewer = dataclasses.replace(of(z[:, :2], np.minimum(y, 1), np.arange(500)), classes=NAMES[:2])
    found = pair(keys(fewer), keys(dataclasses.replace(plain, classes=NAMES)))
    assert isinstance(found, Unpaired)


@pytest.mark.regression
def test_rows_that_were_fitted_on_are_found_with_their_columns_in_another_order(tmp_path: Path, capsys: Any) -> None:
    z, y = rows(3, 500)
    for file, order in (("fit.csv", [0, 1, 2]), ("test.csv", [2, 0, 1])):
        with open(tmp_path / file, "w") as out:
            out.write(",".join(f"logit_{NAMES[i]}" for i in order) + ",label\n")
            out.writelines(
                ",".join(map(repr, row[order].tolist())) + f",{NAMES[c]}\n" for row, c in zip(z, y, strict=True)
            )
    line = ["check", str(tmp_path / "test.csv"), "--fitted-on", str(tmp_path / "fit.csv"), "--max", "ece=0.5"]
    assert main(line) == 4
    assert "500 of 500 rows" in capsys.readouterr().err


def recorded(path: Path, right: Any, at: Any, ids: Any = None) -> str:
    """Rows whose prediction is right or wrong; the ids are their places."""
    n = len(right)
    z = np.where(right, 2.0, -2.0)[:, None] * [-0.5, 0.5]
    np.savez(path, logits=z[at], labels=np.ones(n, int)[at], ids=np.arange(n)[at])
    return str(path)


@pytest.mark.regression
@pytest.mark.parametrize("kind", ["npz", "json"])
@pytest.mark.parametrize("lacking", ["new", "base"])
def test_rows_that_one_file_lacks_decide_no_margin(lacking: str, kind: str, tmp_path: Path, capsys: Any) -> None:
    """A model that is worse by .1 where its wrong rows are there; without them it would pass."""
    rng = np.random.default_rng(0)
    old = rng.random(2000) < 0.8
    new = np.where(rng.random(2000) < 0.13, False, old)
    every, easy = np.arange(2000), np.flatnonzero(old == new)
    left_out = np.append(every[:-1], []).astype(int)

    def judged(here: Any, there: Any) -> tuple[int, str]:
        recorded(tmp_path / "base.npz", old, there)
        at = str(tmp_path / f"base.{kind}")
        if kind == "json":
            assert main(["check", str(tmp_path / "base.npz"), "--save-baseline", at, "-q"]) == 0
        path = recorded(tmp_path / "new.npz", new, here)
        code = main(["check", path, "--baseline", at, "--margin", "accuracy=0.02", "-q"])
        return code, " ".join(capsys.readouterr().out.split())

    assert judged(every, every)[0] == 1
    code, said = judged(*((easy, every) if lacking == "new" else (every, easy)))
    assert code == 5
    where = f"in {tmp_path / f'base.{kind}'} alone" if lacking == "new" else "in this input alone"
    assert f"{2000 - len(easy)} rows {where} decide it: 0 on the shared rows, from" in said
    assert judged(easy, easy)[0] == 0  # what the message says: leave them out of both, or add them
    code, said = judged(*((left_out, every) if lacking == "new" else (every, left_out)))
    assert code == 1
    assert "alone, which cannot change that" in said
    code, said = judged(*((easy[:-1], easy) if lacking == "new" else (easy, easy[:-1])))
    assert code == 0
    assert "alone, which cannot change that" in said


@pytest.mark.regression
@pytest.mark.parametrize("metric", ["accuracy", "brier", "nll", "temperature_gain"])
def test_rows_that_are_missing_are_taken_at_their_worst(metric: str) -> None:
    """The bounds over all rows hold whatever those rows are: the true difference lies between best and worst."""
    z, y = rows(3, 1500, seed=3)
    noise = 0.2 * np.random.default_rng(4).normal(size=z.shape)
    new, base = of(1.1 * z, y, np.arange(1500)), of(z + noise, y, np.arange(1500))
    whole = [baseline.rows(p, columns(p), "ab") for p in (new, base)]
    every = pair(*whole)
    assert isinstance(every, Pairing)
    truth = baseline.difference(*whole, every, metric, None, False, None)
    part = new.take(np.arange(100, 1500))
    kept_new = baseline.rows(part, columns(part), "ab")
    pairing = pair(kept_new, whole[1])
    assert isinstance(pairing, Pairing)
    delta = baseline.difference(kept_new, whole[1], pairing, metric, None, False, None)
    assert not isinstance(truth, str)
    assert not isinstance(delta, str)
    rest = baseline.unshared(kept_new, whole[1], pairing, metric, delta, metric != "accuracy")
    assert rest is not None
    assert (rest.here, rest.there) == (0, 100)
    low, high = sorted(one.mean.value for one in (rest.best, rest.worst))
    assert low <= truth.mean.value <= high
    assert low < delta.mean.value < high
    assert baseline.unshared(*whole, every, metric, truth, True) is None


@pytest.mark.regression
def test_a_watch_counts_no_night_whose_baseline_lacks_rows(tmp_path: Path, capsys: Any) -> None:
    right = np.arange(600) % 5 > 0
    base = recorded(tmp_path / "base.npz", right, np.arange(500))
    new = recorded(tmp_path / "new.npz", right, np.arange(600))
    line = ["watch", str(tmp_path / "state.json"), new, "--baseline", base, "--margin", "accuracy=0.05"]
    assert main(line) == 4
    assert "100 of 600 rows are not in the baseline" in capsys.readouterr().err
    recorded(tmp_path / "new.npz", right, np.arange(500))
    assert main(line) == 0


@pytest.mark.regression
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
