"""`calib threshold`: its level against another recursion, its promise in short simulations, what it is carried to."""

from __future__ import annotations

import csv
import importlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.special import betainc, softmax
from scipy.stats import binom

import calibcli
from calibcli.cli.app import main
from calibcli.core.errors import InputError, UsageError
from calibcli.gate.threshold import (
    USEFUL,
    Judged,
    Useful,
    Walk,
    above_negatives,
    chance_of,
    fewest,
    level_of,
    rounded_down,
)

ROOT = Path(__file__).parent.parent
TEST, VALIDATION = (str(ROOT / f"sample_data/{name}.npz") for name in ("test", "validation"))


def passing(rows: list[int], limit: float, level: float) -> float:
    """The chance that any candidate passes, row by row: a dictionary of the numbers of wrong rows."""
    paths, passed, before = {0: 1.0}, 0.0, 0
    for k in rows:
        for _ in range(k - before):
            after: dict[int, float] = {}
            for wrong, chance in paths.items():
                after[wrong] = after.get(wrong, 0.0) + chance * (1 - limit)
                after[wrong + 1] = after.get(wrong + 1, 0.0) + chance * limit
            paths = after
        cut = [wrong for wrong in paths if binom.cdf(wrong, k, limit) <= level]
        passed += sum(paths.pop(wrong) for wrong in cut)
        before = k
    return passed


@pytest.mark.parametrize(
    ("rows", "limit", "alpha"),
    [
        ([60, 70, 90, 130, 200], 0.05, 0.05),
        ([59, 60, 61, 62], 0.05, 0.05),
        ([30, 60], 0.2, 0.01),
        ([9, 20, 40], 0.6, 0.1),
    ],
)
def test_the_level_is_the_largest_at_which_a_flat_score_passes_with_alpha(
    rows: list[int], limit: float, alpha: float
) -> None:
    level = level_of(rows, limit, alpha)
    assert passing(rows, limit, level) <= alpha
    assert passing(rows, limit, level * 1.005) > alpha or level > 0.99 * alpha
    assert level <= alpha


def test_one_candidate_has_the_whole_level_and_many_share_it() -> None:
    assert level_of([100], 0.05, 0.05) == pytest.approx(0.05, rel=1e-3)
    walk = Walk.of(Judged(np.random.default_rng(0).random(5000), np.zeros(5000, bool)), 0.05, 0.05)
    assert 0.05 / len(walk.tau) < 0.0048 < walk.level < 0.0054
    wide = level_of(list(range(200_000, 4_000_000, 200_000)), 0.05, 0.05)  # convolved by Fourier transforms
    assert 0.005 < wide < 0.02


def test_chances_are_those_of_the_binomial_and_between_whole_numbers_of_the_beta() -> None:
    for n, wrong, limit in ((59, 0, 0.05), (200, 3, 0.05), (1000, 20, 0.3)):
        assert chance_of(n, wrong / n, limit) == pytest.approx(binom.cdf(wrong, n, limit), rel=1e-9)
    assert chance_of(70.5, 1.2 / 70.5, 0.05) == pytest.approx(betainc(69.3, 2.2, 0.95), rel=1e-9)
    assert (1 - 0.05) ** fewest(0.05, 0.01) <= 0.01 < (1 - 0.05) ** (fewest(0.05, 0.01) - 1)


def test_thresholds_have_few_digits_and_lie_clear_of_their_rows() -> None:
    rng = np.random.default_rng(1)
    score = np.concatenate([rng.random(2000), 1 - 10 ** rng.uniform(-9, 0, 2000), 10 ** rng.uniform(-5, 0, 500)])
    tau = rounded_down(score)
    assert ((score - tau >= 0.99e-7) | (tau == 0)).all()
    assert (score - tau <= 0.0101 * np.minimum(score, 1 - score) + 2.1e-7).all()
    for one in tau.tolist():
        side = f"{min(one, 1 - one):.9f}".lstrip("0.").rstrip("0")
        assert len(side) <= 3, one
    assert rounded_down(np.array([0.9, 1.0, 0.5])).tolist() == [0.899, 0.9999999, 0.499]
    tied = np.repeat([0.9, 0.8, 0.7], 200)
    assert Walk.of(Judged(tied, np.zeros(600, bool)), 0.05, 0.05).rows.tolist() == [200, 400, 600]


def test_promises_are_kept_and_careless_ways_are_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    bench = importlib.import_module("threshold")
    levels = bench.Levels()
    found = {
        name: bench.cell(bench.plain(bench.POPULATIONS[name]), 1000, 60, 5, levels)
        for name in ("flat, 1.02 of the limit", "sinks to 1.01 of the limit", "calibrated, Beta(4, 1)")
    }
    found["groups"] = bench.cell(bench.DESIGNS["groups of 5, near in score"], 1000, 30, 5, levels)
    found["weights"] = bench.cell(bench.DESIGNS["wrong rows at half the rate"], 1000, 30, 5, levels)
    for name, one in found.items():
        assert not bench.surely(one.broken["calib"], one.runs), name
    flat = found["flat, 1.02 of the limit"]
    assert bench.surely(flat.broken["naive"], flat.runs)
    assert bench.surely(flat.broken["each"], flat.runs)
    assert found["calibrated, Beta(4, 1)"].accepted["calib"] > 0.04


def walk_of(**fields: Any) -> Walk:
    rng = np.random.default_rng(2)
    score = rng.random(1500)
    return Walk.of(Judged(score, rng.random(1500) < 0.03 * (1.5 - score), **fields), 0.05, 0.05)


def same(a: Walk, b: Walk) -> None:
    assert (a.tau == b.tau).all()
    np.testing.assert_allclose(a.effective, b.effective, rtol=1e-9)
    np.testing.assert_allclose(a.seen, b.seen, rtol=1e-9, atol=1e-15)
    assert a.chosen == b.chosen


def test_equal_weights_and_groups_of_one_row_change_nothing() -> None:
    alone = walk_of()
    assert alone.chosen is not None
    same(alone, walk_of(weights=np.full(1500, 3.0)))
    same(alone, walk_of(groups=np.arange(1500)))


def test_counts_are_repeated_rows_and_copies_in_groups_are_not() -> None:
    rng = np.random.default_rng(4)
    score, wrong, times = rng.random(800), rng.random(800) < 0.02, rng.integers(1, 4, 800)
    index = np.repeat(np.arange(800), times)
    counted = Walk.of(Judged(score, wrong, times.astype(float), True), 0.05, 0.05)
    assert counted.effective[-1] == pytest.approx(len(index))
    assert counted.seen[-1] == pytest.approx(wrong[index].mean())
    copies = Walk.of(Judged(np.tile(score, 3), np.tile(wrong, 3), groups=np.tile(np.arange(800), 3)), 0.05, 0.05)
    assert copies.effective[-1] == pytest.approx(800, rel=0.01)
    few = Walk.of(Judged(score, wrong, groups=np.arange(800) % 9), 0.05, 0.05)
    assert len(few.tau) == 0


def test_weights_of_wrong_rows_count() -> None:
    """Wrong rows of weight 2 tell half as much, though few rows have that weight."""
    score = np.random.default_rng(5).random(2000)
    wrong = np.arange(2000) % 50 == 0
    walk = Walk.of(Judged(score, wrong, np.where(wrong, 2.0, 1.0)), 0.05, 0.05)
    assert walk.effective[-1] == pytest.approx(2040 / 2)


@pytest.mark.parametrize("limit", [0.05, 0.2])
def test_a_rate_of_false_positives_is_bounded_by_a_quantile_of_the_negatives(limit: float) -> None:
    score = np.random.default_rng(6).random(400)
    tau = above_negatives(Judged(score, np.ones(400, bool)), limit, 0.05)
    assert tau is not None
    k = max(k for k in range(400) if binom.cdf(k, 400, limit) <= 0.05)
    falling = np.sort(score)[::-1]
    assert falling[k] < tau < falling[k] * 1.01 + 1e-6
    assert (score >= tau).sum() <= k
    few = Judged(score[:50], np.ones(50, bool))
    assert above_negatives(few, 0.05, 0.05) is None
    assert above_negatives(Judged(np.ones(400), np.ones(400, bool)), limit, 0.05) is None
    clustered = above_negatives(
        Judged(np.repeat(score, 3), np.ones(1200, bool), groups=np.arange(1200) // 3), limit, 0.05
    )
    assert clustered == tau


def binary(n: int = 3000, seed: int = 7) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    rng = np.random.default_rng(seed)
    p = rng.beta(0.4, 0.8, n)
    return np.stack([1 - p, p], axis=1), (rng.random(n) < p).astype(int)


def test_a_precision_of_either_class_is_promised_of_rows_accepted_by_its_probability() -> None:
    p, y = binary()
    for at, name in ((1, "spam"), (0, "ham")):
        found = calibcli.threshold(p, y, classes=["ham", "spam"], min_precision={name: 0.9})
        accept = p[:, at] >= found["threshold"].value
        assert found["accepted"].value == pytest.approx(accept.mean())
        assert found["precision"].value == pytest.approx((y[accept] == at).mean())
        assert found["precision"].low == 0.9
        assert found.facts["headline"].startswith(f"Accept at P({name}) >= ")
    fpr = calibcli.threshold(p, y, max_fpr=0.05)
    accept = p[:, 1] >= fpr["threshold"].value
    assert fpr["fpr"].value == pytest.approx(accept[y == 0].mean())
    assert fpr["fpr"].value < 0.05


def test_slices_have_thresholds_of_their_own_at_a_share_of_alpha() -> None:
    p, y = binary()
    site = np.array(list("ABCD"))[np.arange(3000) % 4]
    found = calibcli.threshold(p, y, max_risk=0.1, by={"site": site})
    for name in "AD":
        rows = site == name
        alone = calibcli.threshold(p[rows], y[rows], max_risk=0.1, alpha=0.0125)
        assert found["threshold", f"site={name}"].value == alone["threshold"].value
    wrong = np.where(site == "D", 1 - y, y)
    some = calibcli.threshold(p, wrong, max_risk=0.1, by={"site": site})
    assert some["threshold", "site=D"].value is None
    assert some.exit_code == 0
    assert "Accept nothing in site=D" in some.facts["headline"]


def test_scores_that_go_through_a_calibrator_get_the_threshold_of_its_probabilities(
    tmp_path: Path, capsys: Any
) -> None:
    t, cal, out = (str(tmp_path / name) for name in ("t.json", "cal.safetensors", "out.npz"))
    calibcli.save_scaler(calibcli.fit_scaler(VALIDATION, "labels"), cal)
    assert main(["threshold", TEST, "--max-risk", "0.05", "--with", cal, "--save", t, "-q"]) == 0
    tau = calibcli.Result.from_json(Path(t).read_text())["threshold"].value
    assert tau is not None
    table = str(tmp_path / "out.csv")
    for file in (out, table):
        assert main(["apply", cal, VALIDATION, "--threshold", t, "--save", file, "-q"]) == 0
    written = np.load(out)
    expected = written["probabilities"].max(axis=1) >= tau
    assert 0 < expected.mean() < 1
    assert (written["accept"] == expected).all()
    with open(table) as file:
        assert [row["accept"] for row in csv.DictReader(file)] == [str(one) for one in expected.tolist()]
    capsys.readouterr()
    assert main(["threshold", VALIDATION, "--max-risk", "0.05", "--with", cal]) == 4
    assert "was fitted on" in capsys.readouterr().err
    other = str(tmp_path / "other.safetensors")
    calibcli.save_scaler(calibcli.fit_scaler(VALIDATION, "labels", "vector"), other)
    assert main(["apply", other, VALIDATION, "--threshold", t, "--save", out]) == 4
    assert "another calibrator" in capsys.readouterr().err


def test_scores_that_did_not_go_through_the_map_of_a_threshold_are_refused(tmp_path: Path) -> None:
    names = ("of_map.json", "raw.json", "cal.safetensors", "out.csv", "bare.csv", "w.json")
    t, raw, cal, out, bare, state = (tmp_path / name for name in names)
    calibcli.save_scaler(calibcli.fit_scaler(VALIDATION, "labels"), cal)
    calibcli.threshold(TEST, max_risk=0.05, calibrator=cal).write(t)
    calibcli.threshold(TEST, max_risk=0.05).write(raw)
    with pytest.raises(InputError, match="went through no calibrator") as refused:
        calibcli.apply(cal, VALIDATION, save=out, threshold=raw)
    assert "--max-risk 0.05 --alpha 0.05 --with" in refused.value.fix
    in_memory = calibcli.threshold(TEST, max_risk=0.05, calibrator=calibcli.load_scaler(cal))
    in_memory.write(raw)
    with pytest.raises(InputError, match="another calibrator"):
        calibcli.apply(cal, VALIDATION, save=out, threshold=raw)
    calibcli.apply(cal, VALIDATION, save=out, threshold=t)
    calibcli.apply(cal, VALIDATION, save=bare)
    assert (
        len(calibcli.check(out, threshold=t).checks) == len(calibcli.Watch(state, threshold=t).update(out).checks) == 2
    )
    z, decided = np.load(VALIDATION), [row["accept"] for row in csv.DictReader(out.open())]
    mixed = tmp_path / "mixed.npz"  # the column of the map beside scores that did not go through it
    np.savez(mixed, logits=z["logits"], labels=z["labels"], accept=np.array(decided))
    for rows, why in ((VALIDATION, "nothing shows"), (bare, "nothing shows"), (mixed, "otherwise than 'accept' says")):
        for judge in (
            lambda rows=rows: calibcli.check(rows, threshold=t),
            lambda rows=rows: calibcli.Watch(threshold=t).update(rows),
        ):
            with pytest.raises(InputError, match=why):
                judge()


def test_rows_that_a_threshold_was_found_on_are_told_in_another_file(tmp_path: Path) -> None:
    t, cal, out = tmp_path / "t.json", tmp_path / "cal.safetensors", tmp_path / "out.csv"
    calibcli.save_scaler(calibcli.fit_scaler(VALIDATION, "labels"), cal)
    calibcli.threshold(TEST, max_risk=0.05, calibrator=cal).write(t)
    calibcli.apply(cal, TEST, save=out, threshold=t)
    first, *lines = out.read_text().splitlines()
    shuffled = [lines[i] for i in np.random.default_rng(0).permutation(len(lines))]
    for rows in (lines, shuffled, shuffled[:300]):
        out.write_text("\n".join([first, *rows]) + "\n")
        for judge in (calibcli.check, lambda rows, threshold: calibcli.Watch(threshold=threshold).update(rows)):
            with pytest.raises(InputError, match="vouch for it too well"):
                judge(out, threshold=t)  # type: ignore[operator]


@pytest.mark.parametrize("trees", [10, 30])
def test_other_rows_with_the_same_few_scores_are_judged(trees: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(trees)
    for name in ("found", "new"):
        p = rng.binomial(trees, rng.beta(0.4, 0.4, 600)) / trees
        y = (rng.random(600) < p).astype(int)
        np.savez(tmp_path / f"{name}.npz", probabilities=np.column_stack([1 - p, p]), labels=y)
    t = tmp_path / "t.json"
    calibcli.threshold(tmp_path / "found.npz", max_risk=0.2).write(t)
    assert len(calibcli.check(tmp_path / "new.npz", threshold=t).checks) == 2
    with np.load(tmp_path / "found.npz") as rows:
        order = rng.permutation(600)
        np.savez(tmp_path / "again.npz", **{name: rows[name][order] for name in rows.files})
    with pytest.raises(InputError, match="vouch for it too well"):
        calibcli.check(tmp_path / "again.npz", threshold=t)


def test_a_gate_and_a_watch_take_the_promise(tmp_path: Path, capsys: Any) -> None:
    t, state = str(tmp_path / "t.json"), str(tmp_path / "w.json")
    assert main(["threshold", VALIDATION, "--max-risk", "0.05", "--save", t, "-q"]) == 0
    capsys.readouterr()
    assert main(["check", TEST, "--threshold", t, "--json", "-q"]) in (0, 3)
    checks = json.loads(capsys.readouterr().out)["checks"]
    tau = calibcli.Result.from_json(Path(t).read_text())["threshold"].value
    assert checks[0]["rule"] == f"high_confidence_accuracy:tau={tau} >= 0.95"
    assert checks[1]["rule"].startswith(f"high_confidence_share:tau={tau} >= 0.")
    own = calibcli.check(TEST, min={"high_confidence_share": 0.99}, threshold=t)
    assert [c.rule for c in own.checks][1] == f"high_confidence_share:tau={tau} >= 0.99"
    assert own.checks[1].outcome == "fail"
    assert main(["check", VALIDATION, "--threshold", t]) == 4
    assert "was found on" in capsys.readouterr().err
    assert main(["watch", state, TEST, "--threshold", t, "-q"]) == 0
    assert f"high_confidence_accuracy:tau={tau} >= 0.95" in capsys.readouterr().out
    assert len(calibcli.Watch(threshold=t).update(TEST).checks) == 2


@pytest.mark.parametrize(("name", "event"), [("a", "a"), ("b", "b")])
def test_a_gate_on_a_precision_is_of_the_class_that_is_named(tmp_path: Path, name: str, event: str) -> None:
    found, new, t = (tmp_path / one for one in ("found.npz", "new.npz", "t.json"))
    for path, seed in ((found, 7), (new, 8)):
        p, y = binary(seed=seed)
        np.savez(path, probabilities=p, labels=y, classes=np.array(["a", "b"]))
    calibcli.threshold(found, min_precision=f"{name}=0.85").write(t)
    checked = calibcli.check(new, threshold=t)
    p, y = binary(seed=8)
    at = "ab".index(name)
    accept = p[:, at] >= calibcli.Result.from_json(t.read_text())["threshold"].value
    assert checked.predicted.event == event
    assert checked.checks[0].estimate is not None
    assert checked.checks[0].estimate.value == pytest.approx((y[accept] == at).mean())
    assert checked.verdict != "fail"


def test_thresholds_by_predicted_class_are_applied_and_judged_by_it(tmp_path: Path) -> None:
    t, cal, out = tmp_path / "t.json", tmp_path / "cal.safetensors", tmp_path / "out.npz"
    rows = np.load(VALIDATION)
    q = softmax(rows["logits"].astype(float), axis=1)
    scaler = calibcli.fit_scaler(VALIDATION, "labels", "temperature")
    calibcli.save_scaler(scaler, cal)
    found = calibcli.threshold(TEST, max_risk=0.1, by="class", calibrator=cal)
    found.write(t)
    calibcli.apply(cal, VALIDATION, save=out, threshold=t)
    p, top = scaler.predict_proba(rows["logits"]).max(axis=1), q.argmax(axis=1)
    taus = [found["threshold", f"class={c}"].value for c in range(10)]
    accepted = np.array([taus[c] is not None and one >= taus[c] for one, c in zip(p, top, strict=True)])
    assert None in taus
    assert (np.load(out)["accept"] == accepted).all()
    scopes = {c.scope for c in calibcli.check(out, threshold=t).checks}
    assert scopes == {f"class={c}" for c in range(10) if taus[c] is not None}


def flat(n: int, risk: float, seed: int = 0) -> tuple[Any, Any]:
    """Probabilities (n, 2) of two classes and labels (n,): a share `risk` is wrong, whatever the confidence."""
    rng = np.random.default_rng(seed)
    top = rng.uniform(0.6, 0.999, n)
    return np.stack([1 - top, top], axis=1), (rng.random(n) >= risk).astype(int)


def test_a_useful_threshold_that_keeps_the_promise_is_seldom_denied() -> None:
    """The hardest case: one threshold of use keeps it, just so, and all that accept more rows break it by far."""
    rng, n, limit, alpha = np.random.default_rng(1), 1000, 0.1, 0.05
    score = np.linspace(1, 0, n)
    risk = np.where(np.arange(n) < USEFUL * n, limit, 0.6)
    denied = 0
    for _ in range(400):
        useful = Useful.of(Judged(score, rng.random(n) < risk), limit, alpha, USEFUL * n, n)
        denied += useful.surely_none
    assert denied <= binom.ppf(0.999, 400, alpha)
    always = Useful.of(Judged(score, rng.random(n) < 0.6), limit, alpha, USEFUL * n, n)
    assert always.surely_none


@pytest.mark.regression
def test_few_rows_decide_nothing_and_the_rows_that_they_name_do() -> None:
    p, y = flat(300, 0.04, 2)
    few = calibcli.threshold(p, y, max_risk=0.05)
    check = few.checks[0]
    assert (check.outcome, few.exit_code) == ("inconclusive", 3)
    assert check.n_needed is not None
    assert 300 < check.n_needed < 5_000
    assert f"about {check.n_needed:,} rows ({check.n_needed - 300:,} more) would decide" in few["threshold"].reason
    times = int(np.ceil(check.n_needed / 300))
    more = np.tile(p[:, 1], times) - np.random.default_rng(3).uniform(0, 0.001, 300 * times)  # no copies
    assert calibcli.threshold(np.stack([1 - more, more], 1), np.tile(y, times), max_risk=0.05).exit_code == 0
    broken = calibcli.threshold(*flat(300, 0.4), max_risk=0.05)
    assert (broken.checks[0].outcome, broken.exit_code, broken.checks[0].n_needed) == ("fail", 1, None)
    assert "surely none that accepts at least 5 % of the rows" in broken["threshold"].reason
    assert "takes" not in broken["threshold"].reason


def test_false_positives_fail_only_where_ties_at_one_are_surely_too_many() -> None:
    p, y = flat(400, 0.5)
    few = calibcli.threshold(p, y, max_fpr=0.001)
    assert (few.checks[0].outcome, few.exit_code) == ("inconclusive", 3)
    p[:300] = [0.0, 1.0]
    tied = calibcli.threshold(p, y, max_fpr=0.05)
    assert (tied.checks[0].outcome, tied.exit_code) == ("fail", 1)


def test_where_a_share_is_next_to_the_limit_no_number_of_rows_is_named() -> None:
    score, wrong = np.full(1000, 0.9), np.arange(1000) < 100  # one threshold, which accepts all
    near = Useful.of(Judged(score, wrong), 0.1001, 0.05, 1.0, 1000)
    assert not near.surely_none
    assert near.rows_needed(0.05) is None
    assert Useful.of(Judged(score, wrong), 0.11, 0.05, 1.0, 1000).rows_needed(0.05) == pytest.approx(3_300, rel=0.5)


def test_no_threshold_says_what_it_takes_and_writes_none(tmp_path: Path, capsys: Any) -> None:
    t = tmp_path / "t.json"
    assert main(["threshold", TEST, "--max-risk", "0.001", "--save", str(t)]) == 3
    said = capsys.readouterr()
    needed = fewest(0.001, 0.05)
    assert f"That takes {needed:,} accepted rows without an error" in " ".join(said.out.split())
    assert "no threshold is written" in said.err
    assert not t.exists()


@pytest.mark.parametrize(
    ("argv", "code", "said"),
    [
        ([], 2, "write --max-risk 0.05"),
        (["--max-risk", "0.05", "--max-fpr", "0.1"], 2, "one promise"),
        (["--max-risk", "5"], 2, "less than 1"),
        (["--min-precision", "0.95"], 2, "NAME=SHARE"),
        (["--min-precision", "3=0.95"], 2, "two classes"),
        (["--max-fpr", "0.05"], 2, "--by class"),
        (["--max-risk", "0.05", "--multilabel"], 2, "one label per row"),
        (["--max-risk", "0.05", "--by", "ink", "--by", "class"], 2, "name one column"),
        (["--max-risk", "0.05", "--save", "t.txt"], 2, "use the suffix .json"),
        (["--max-risk", "0.05", "--group", "ink"], 4, "2 groups"),
    ],
)
def test_what_cannot_be_is_refused_with_a_fix(argv: list[str], code: int, said: str, capsys: Any) -> None:
    assert main(["threshold", TEST, *argv]) == code
    assert said in capsys.readouterr().err


def test_rows_that_cannot_vouch_for_others_are_refused(tmp_path: Path) -> None:
    p, y = binary(400)
    z, labels = (np.load(TEST)[name] for name in ("logits", "labels"))
    with pytest.raises(InputError, match="copies"):
        calibcli.threshold(np.tile(z, (3, 1)), np.tile(labels, 3), max_risk=0.1)
    rows = calibcli.from_confidence(np.where(np.arange(400) < 9, np.nan, p[:, 1]), y)
    with pytest.raises(InputError, match="have no answer"):
        calibcli.threshold(rows, max_risk=0.1)
    with pytest.raises(UsageError, match="no class 'x'"):
        calibcli.threshold(p, y, min_precision={"x": 0.9})


def test_files_that_hold_no_threshold_are_refused(tmp_path: Path) -> None:
    other, t = tmp_path / "r.json", tmp_path / "t.json"
    calibcli.measure(TEST, "labels", "accuracy").write(other)
    with pytest.raises(InputError, match="not a threshold"):
        calibcli.check(VALIDATION, threshold=other)
    p, y = binary()
    calibcli.threshold(p, y, max_fpr=0.05).write(t)
    with pytest.raises(UsageError, match="false positives"):
        calibcli.check(VALIDATION, threshold=t)
    damaged = json.loads(t.read_text())
    damaged["facts"]["decision"]["tau"] = {"": 7}
    del damaged["checksum"]
    t.write_text(json.dumps(damaged))
    with pytest.raises(InputError, match=r"decision\.tau"):
        calibcli.check(VALIDATION, threshold=t)


def test_confidences_alone_are_enough() -> None:
    rng = np.random.default_rng(9)
    c = rng.beta(8, 1, 2000)
    found = calibcli.threshold(calibcli.from_confidence(c, rng.random(2000) < c), max_risk=0.08)
    tau = found["threshold"].value
    assert tau is not None
    assert found["accepted"].value == pytest.approx((c >= tau).mean())
    assert [curve.label for curve in found.plots[0].curves][:3] == ["bound", "risk", "limit"]
