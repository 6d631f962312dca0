"""`calib slices`: conditions, search, confirmation; what chance explains is not found, what is planted is."""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmark_scripts import script
from scipy import stats

import calibcli
from calibcli.cli.app import main
from calibcli.core.errors import CalibError, InputError, UsageError
from calibcli.gate.config import Condition, parsed, rows_of, text_of
from calibcli.metrics import Sample
from calibcli.scores.columns import columns
from calibcli.scores.predictions import Predictions
from calibcli.scores.reading_options import Reading
from calibcli.slices import Search, candidates
from calibcli.slices._confirmation import chance, fisher, halves
from calibcli.slices.candidates import Evidence, columns_of, ranked
from calibcli.slices.find import _measured, find

ROOT = Path(__file__).parent.parent
RNG = np.random.default_rng(0)
BEGINNING = RNG.bit_generator.state


@pytest.fixture(autouse=True)
def _own_numbers() -> None:
    """Give every test the same numbers, whichever ran before: one draw in twenty has a slice that is not there."""
    RNG.bit_generator.state = BEGINNING


@pytest.fixture(scope="module")
def bench() -> Any:
    return script("slices")


# conditions


@pytest.mark.parametrize(
    "conditions",
    [
        [Condition("site", "=", "A")],
        [Condition("age", "<=", "30"), Condition("age", ">", "-1.5")],
        [Condition("heart rate", "<=", "60"), Condition("a&b", "=", 'x = "y" & z'), Condition("c", "=", "")],
        [Condition("path", "=", "C:\\new")],
    ],
)
def test_a_rule_is_read_as_it_was_written(conditions: list[Condition]) -> None:
    assert parsed(text_of(conditions)) == conditions


@pytest.mark.parametrize("text", ["site", "site=", "=A", "site=A &", "site=A & b", "a<>b", "a!b", 'a="b', "a=b c", ""])
def test_what_is_no_rule(text: str) -> None:
    assert parsed(text) == []


@pytest.mark.regression
def test_every_comparison_with_a_number() -> None:
    age = {"age": np.array(["20", "30", "NA", "40"])}
    for text, held in {
        "age>=30": [0, 1, 0, 1],
        "age<30": [1, 0, 0, 0],
        "age <= 30": [1, 1, 0, 0],
        "age>30": [0, 0, 0, 1],
        "age==30": [0, 1, 0, 0],
        'age=""': [0, 0, 1, 0],
    }.items():
        np.testing.assert_array_equal(rows_of(parsed(text), age), np.array(held, bool), text)


@pytest.mark.one_in(3)
@pytest.mark.regression
@pytest.mark.parametrize("empty", ["", "NA", "nan", "None", "null", "n/a", "<NA>", "?", "several"])
def test_rows_without_a_number_are_a_slice_and_no_rule_leaves_them_out_in_silence(
    empty: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    n, many = 6000, ["", "NA", "NaN", "None", "n/a", "null"]
    bmi, missing, p = RNG.normal(27, 5, n), RNG.random(n) < 0.145, RNG.uniform(0.05, 0.95, n)
    y = (RNG.random(n) < np.where(missing, np.clip(p - 0.316, 0, 1), p)).astype(int)
    of = [many[i % 6] if empty == "several" else empty for i in range(n)]
    rows = "".join(f"{p[i]:.5f},{y[i]},{of[i] if missing[i] else f'{bmi[i]:.1f}'}\n" for i in range(n))
    (tmp_path / "rows.csv").write_text(f"p,label,bmi\n{rows}")
    path = str(tmp_path / "rows.csv")
    rules = calibcli.find_slices(path, by=["bmi"]).facts["rules"]
    assert [rule["by"] for rule in rules] == ['bmi=""']
    capsys.readouterr()
    line = ["check", path, "--max", "ece=0.1"]
    for by, said in (
        (["bmi<=25", "bmi>25"], f"{missing.sum()} rows without a value of 'bmi' in none of the rules on it"),
        (["bmi<=25"], f"{missing.sum()} rows without a value of 'bmi'"),
        (["bmi<=25", "bmi>25", 'bmi=""'], ""),
        (["bmi<=25", "bmi>26", 'bmi=""'], "rows in none of the rules on 'bmi<=25', 'bmi>26', 'bmi=\"\"'"),
    ):
        options = [word for one in by for word in ("--by", one)]
        code = main([*line, *options])
        err = capsys.readouterr().err
        assert said in err
        assert ("rows in none" in err or "without a value" in err) == bool(said)
        assert (code == 1) == (len(by) == 3)  # those without a value fail


@pytest.mark.regression
def test_what_is_no_condition_says_which_there_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.savez(tmp_path / "f.npz", probs=np.full((300, 2), 0.5), labels=np.arange(300) % 2, age=np.arange(300.0))
    for by in ("age!=60", "age<>60", "age=>60"):
        assert main(["check", str(tmp_path / "f.npz"), "--max", "ece=0.4", "--by", by]) != 0
        assert "COLUMN<=NUMBER, <, >=, >" in capsys.readouterr().out, by


@pytest.mark.regression
def test_few_numbers_and_none_are_categories(bench: Any) -> None:
    """Every spelling of no value is the same category; of floats every NaN is."""
    searched = np.ones(900, bool)
    texts = np.array(["1", "2", "NA", "", "None", "2"] * 150)
    floats = np.array([1.0, 2.0, np.nan] * 300)
    for values, size in ((texts, 450), (floats, 300)):
        [column], notes = columns_of({"x": values}, searched, 100)
        assert not notes
        rules = {text_of(literal): int(column.holds(i, searched).sum()) for i, literal in enumerate(column.literals)}
        assert rules['x=""'] == size
        assert len(rules) == 3
    [column], _ = columns_of({"x": np.r_[np.full(500, 7.0), np.full(400, np.nan)]}, searched, 100)
    assert any(text_of(literal) == 'x=""' for literal in column.literals)


def test_rows_of_conditions() -> None:
    columns = {"age": np.array(["10", "20", "30", "nan", ""]), "site": np.array(list("ABABA"))}
    assert rows_of(parsed("age<=20"), columns).tolist() == [True, True, False, False, False]  # type: ignore[union-attr]
    assert rows_of(parsed("age>10 & site=A"), columns).tolist() == [False, False, True, False, False]  # type: ignore[union-attr]
    assert rows_of(parsed("other=1"), columns) == "other"
    with pytest.raises(UsageError, match="asks for numbers"):
        rows_of(parsed("site<=1"), columns)


def test_the_gate_judges_rules(tmp_path: Path) -> None:
    """The slice of a rule is judged as one; its columns are read; a missing one is NOT RUN."""
    test = ROOT / "sample_data" / "test.npz"
    whole = calibcli.check(test, min={"accuracy": 0.5}, by=["ink=light"])
    assert [c.scope for c in whole.checks] == ["", "ink=light"]
    split = calibcli.check(test, min={"accuracy": 0.5}, by=["ink"])
    assert whole["accuracy", "ink=light"].value == split["accuracy", "ink=light"].value
    found = calibcli.check(test, min={"accuracy": 0.5}, by=["ink=light & class=3"])
    assert found.checks[1].outcome == "not_run"
    assert "fewer than min_n" in found.checks[1].message
    assert calibcli.check(test, min={"accuracy": 0.5}, by=["colour=1"]).checks[1].outcome == "not_run"


# search


@pytest.mark.regression
def test_what_a_rule_adds_does_not_depend_on_the_scale_of_weights() -> None:
    """All rows are off by a little, those of one rule by more, and most of another rule's rows are the same ones."""
    rng = np.random.default_rng(0)
    value, rows = rng.normal(0.1, 0.3, 4000), np.arange(4000)
    value[:900] += 0.5
    value[900:1100] += 0.25
    added = []
    for scale in (0.2, 1.0, 5.0):
        weight = np.full(4000, scale)
        evidence = Evidence(weight * value, weight**2 * 0.09, weight=weight).over(rows)
        assert candidates._gap(evidence, rows)[0] == pytest.approx(candidates._shared(evidence))
        remaining = evidence.over(rows[900:])
        added.append(candidates._adds_evidence(evidence, remaining, rows[:1100], rows[900:1100]))
    assert len({*added}) == 1


@pytest.mark.regression
@pytest.mark.parametrize("what", ["gap", "error"])
def test_the_mean_of_a_rule_is_divided_by_its_weights(what: Any) -> None:
    """Rules are shortened and left out by these means: those of heavy rows were too large when errors were searched."""
    rng = np.random.default_rng(0)
    z, labels, weights = rng.normal(size=(400, 3)), rng.integers(0, 3, 400), rng.uniform(0.2, 5, 400)
    predictions = calibcli.from_arrays(z, labels, weights=weights)
    measured, evidence = _measured(Sample.of(columns(predictions)), Search(find=what))
    heavy = np.flatnonzero(weights > 3)
    mean = np.average(measured.rows.values, weights=weights) if what == "error" else 0.0
    expected = np.average(measured.rows.values[heavy] - mean, weights=weights[heavy])
    assert candidates._gap(evidence, heavy)[0] == pytest.approx(expected)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["gap", "error", "weights", "beyond float32"])
def test_every_rule_of_one_or_two_conditions_is_ranked(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against a loop over all pairs of conditions on other columns; in blocks of columns and pieces of rows."""
    most = 60
    for name, value in (("MOST", most), ("WIDE", 9), ("PIECE", 700)):
        monkeypatch.setattr(candidates, name, value)
    n = 3000
    given = {"a": RNG.integers(0, 3, n).astype(str), "b": RNG.integers(0, 2, n), "x": RNG.standard_normal(n)}
    given |= {
        "y": np.where(RNG.random(n) < 0.1, np.nan, given["x"] + RNG.standard_normal(n)),
        "c": RNG.integers(0, 9, n),
    }
    columns, _ = columns_of(given, np.ones(n, bool), 50)
    weight = {"weights": RNG.uniform(0.5, 3, n), "beyond float32": RNG.uniform(0.5, 3, n) * 1e45}.get(kind)
    w = np.ones(n) if weight is None else weight
    evidence = Evidence(w * RNG.standard_normal(n), w * w * RNG.uniform(0.5, 1, n), kind != "error", weight)
    evidence = evidence.over(np.arange(n)) if weight is not None else evidence
    found, count = ranked(columns, evidence, np.arange(n), 50, 2)
    expected = {}
    every = [(i, j) for i, column in enumerate(columns) for j in range(len(column.literals))]
    for size in (1, 2):
        for chosen in itertools.combinations(every, size):
            if len({i for i, _ in chosen}) < size:
                continue
            conditions = [c for i, j in chosen for c in columns[i].literals[j]]
            held = rows_of(conditions, given)
            assert not isinstance(held, str)
            if 50 <= held.sum() <= n - 50:
                mass, value, variance = (
                    [part[h].sum() for h in (held, ~held)] for part in (w, evidence.value, evidence.variance)
                )
                z = value[0] / math.sqrt(variance[0])
                further = value[0] / mass[0] - value[1] / mass[1]
                further /= math.sqrt(variance[0] / mass[0] ** 2 + variance[1] / mass[1] ** 2)
                least = min(abs(z), abs(further)) * (z * further > 0)
                expected[text_of(conditions)] = z if kind == "error" else abs(z) if kind == "gap" else least
    assert count == len(expected)
    shown = {text_of(rule.conditions(columns)): rule.z for rule in found}
    assert shown == pytest.approx({text: expected[text] for text in shown}, rel=1e-10)
    assert [rule.z for rule in found] == pytest.approx(sorted(expected.values(), reverse=True)[:most], rel=1e-10)


def test_memory_does_not_grow_with_the_pairs_of_columns() -> None:
    """Copies of one column: every rule ties, and most of 24,000 are dropped on the way."""
    n = 400
    x = RNG.integers(0, 3, n)
    columns, _ = columns_of({f"c{i}": x for i in range(130)}, np.ones(n, bool), 20)
    found, count = ranked(columns, Evidence(RNG.standard_normal(n), np.ones(n)), np.arange(n), 20, 2)
    assert (len(found), count) == (candidates.MOST, 3 * 130 + 3 * 130 * 129 // 2)


def test_numbers_are_cut_at_quantiles_of_the_half_that_is_searched() -> None:
    x = np.arange(1000.0)
    searched = x < 500
    [column], _ = columns_of({"x": x}, searched, 10)
    cuts = {float(c.value) for literal in column.literals for c in literal}
    assert cuts == {99.0, 199.0, 299.0, 399.0}
    for i, literal in enumerate(column.literals):
        held = rows_of(literal, {"x": x})
        assert np.array_equal(held, column.holds(i, slice(None)))


def test_columns_that_cannot_be_searched_are_said() -> None:
    n = 2000
    given = {"id": np.arange(n).astype(str), "one": np.full(n, "a"), "code": np.array([f"u{i}" for i in range(n)])}
    columns, notes = columns_of({**given, "empty": np.full(n, np.nan)}, np.ones(n, bool), 100)
    assert [column.name for column in columns] == ["id"]  # which are numbers
    assert any("'code' is left out: it has 2,000 values" in note for note in notes)
    assert any("'one' is left out: it has 1 value," in note for note in notes)
    with pytest.raises(InputError, match="no column can be searched"):
        find(_rows(n, {"one": given["one"]}), Search())


def _rows(n: int, about: dict[str, Any], wrong: Any = None, **more: Any) -> Any:
    rng = np.random.default_rng(n)
    c = rng.uniform(0.6, 0.99, n)
    hit = rng.random(n) < np.clip(c - (0 if wrong is None else wrong), 0, 1)
    z = np.log(np.stack([1 - c, c], 1))
    return calibcli.from_arrays(z, hit.astype(int), kind="log_probabilities", by=about, **more)


def test_halves_are_halves_and_groups_stay_together() -> None:
    assert halves(101, None, 0).sum() == 50
    groups = np.repeat(np.arange(40), 25)
    chosen = halves(1000, groups, 3).reshape(40, 25)
    assert (chosen.all(axis=1) | ~chosen.any(axis=1)).all()
    assert chosen[:, 0].sum() == 20
    assert not np.array_equal(halves(101, None, 0), halves(101, None, 1))


# confirmation


@pytest.mark.parametrize("kind", ["spread", "saturated", "constant"])
def test_chance_is_that_of_independent_rows(kind: str) -> None:
    """Against the convolution of all rows, in the tails to a few percent of the p-value."""
    p = {
        "spread": RNG.beta(4, 1.2, 150),
        "saturated": 1 - 10 ** RNG.uniform(-5, -1.5, 200),
        "constant": np.full(99, 0.9),
    }
    exact = np.array([1.0])
    for one in p[kind]:
        exact = np.convolve(exact, [1 - one, one])
    for hits in range(len(p[kind]) + 1):
        expected = min(1.0, 2 * min(exact[hits:].sum(), exact[: hits + 1].sum()))
        if expected > 1e-12:
            assert chance(p[kind], hits) == pytest.approx(expected, rel=0.06), hits


def test_chance_at_its_ends() -> None:
    assert chance(np.array([1.0, 1.0, 0.5]), 1) == 0.0  # which those probabilities rule out
    assert chance(np.array([1.0, 0.5, 0.5]), 2) == pytest.approx(1.0)
    p = RNG.uniform(0.2, 0.9, 60)
    w = RNG.integers(1, 4, 60)
    assert chance(p, 70, w.astype(float)) == pytest.approx(chance(np.repeat(p, w), 70))


def test_fishers_exact_test() -> None:
    for hits, n, marked, total in ((12, 100, 60, 1000), (0, 10, 5, 50), (5, 5, 5, 50), (40, 300, 41, 3000)):
        assert fisher(hits, n, marked, total) == pytest.approx(stats.hypergeom.sf(hits - 1, total, marked, n), rel=1e-8)


@pytest.mark.slow
@pytest.mark.parametrize("confirm", ["split", "all"])
@pytest.mark.parametrize("kind", ["spread", "saturated"])
def test_a_calibrated_model_has_no_slices(bench: Any, kind: str, confirm: str) -> None:
    """16 models, 480 rules each; of 5 % wrong 6 or more come with probability .0001."""
    wrong = 0
    for seed in range(16):
        p = bench.rows(2000, np.random.default_rng([seed, 77]), kind=kind)
        wrong += find(p, Search(seed=seed, min_n=100, confirm=confirm)).facts["confirmed"] > 0  # type: ignore[arg-type]
    assert wrong < 6


@pytest.mark.slow
def test_welch_s_t_fails_the_same_test(bench: Any) -> None:
    """Bonferroni's correction does not help where the standard error is too short."""
    wrong = sum(
        bench.welch(bench.rows(2000, np.random.default_rng([seed, 77]), kind="saturated")) > 0 for seed in range(20)
    )
    assert wrong > 10


@pytest.mark.slow
def test_what_is_planted_is_found(bench: Any) -> None:
    confirmed = first = 0
    for seed in range(8):
        p = bench.rows(10_000, np.random.default_rng([seed, 5]), 0.14)
        found = find(p, Search(seed=seed, min_n=100))
        confirmed += any(rule["by"] == bench.PLANTED for rule in found.facts["rules"])
        first += found.estimates[0].scope == bench.PLANTED
        assert "c0=1 & c1=2" in found.facts["headline"] or not found.facts["rules"]
    assert confirmed >= 7
    assert first >= 7


def test_a_rule_is_as_short_as_it_can_be_and_said_once() -> None:
    """All of site B is too sure: no pair with site B, and nothing that only overlaps it."""
    n, rng = 8000, np.random.default_rng(3)
    about = {"site": rng.choice(list("ABC"), n), "ward": rng.choice(list("xyz"), n), "age": rng.uniform(20, 90, n)}
    found = find(_rows(n, about, 0.15 * (about["site"] == "B")), Search())
    assert [rule["by"] for rule in found.facts["rules"]] == ["site=B"]
    old = about["age"] > 76
    found = find(_rows(n, about, 0.2 * old), Search())
    assert len(found.facts["rules"]) == 1
    [rule] = found.facts["rules"]
    assert rule["by"].startswith("age>7")


def test_more_errors_than_elsewhere() -> None:
    n = 6000
    about = {"site": RNG.choice(list("ABC"), n), "ward": RNG.choice(list("xyz"), n)}
    found = find(_rows(n, about, 0.2 * (about["site"] == "B")), Search(find="error"))
    assert [rule["by"] for rule in found.facts["rules"]][:1] == ["site=B"]
    assert find(_rows(n, about), Search(find="error", seed=1)).facts["confirmed"] == 0


@pytest.mark.parametrize("search", [Search(), Search(find="error", confirm="all")])
def test_a_column_that_was_made_from_the_labels_is_named(search: Search) -> None:
    n = 4000
    site = RNG.choice(list("ABC"), n)
    p = _rows(n, {"site": site}, 0.25 * (site == "B"))
    right = p.logits.argmax(axis=1) == p.labels
    for leak in (np.where(right, "ok", "failed"), right + RNG.normal(0, 0.01, n)):
        given = dataclasses.replace(p, slices={"site": site, "leak": leak})
        assert any(re.search("'leak'.* was made from the labels", note) for note in find(given, search).notes)
    found = find(p, search)
    assert not any("made from the labels" in note for note in found.notes)
    assert ("not searched" in found.plots[0].title) == (search.confirm == "split")


def test_a_label_that_was_found_by_the_name_of_the_scores_is_no_column_to_search(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    p, age = rng.uniform(size=600), rng.integers(20, 80, 600)
    rows = [f"{one:.4f},{int(one > u)},{a}" for one, u, a in zip(p, rng.uniform(size=600), age, strict=True)]
    (tmp_path / "rows.csv").write_text("\n".join(["p_sick,sick,age", *rows]))
    found = calibcli.find_slices(tmp_path / "rows.csv")
    assert found.facts["columns"] == 1
    assert found.facts["confirmed"] == 0
    (tmp_path / "rows.csv").write_text("\n".join(["p_sick,sick", *(row.rpartition(",")[0] for row in rows)]))
    with pytest.raises(calibcli.CalibError, match="no column to search"):
        calibcli.find_slices(tmp_path / "rows.csv")


def _too_sure(n: int, rng: np.random.Generator, gap: Any = 0.0) -> Predictions:
    """A gap of .06 in every row, and more where it is given; eight columns that have nothing to do with it."""
    about = {f"c{j}": rng.integers(0, 4, n).astype("<U1") for j in range(8)}
    more = gap * ((about["c0"] == "1") & (about["c1"] == "2"))
    c = rng.uniform(0.6, 1.0, n)
    hit = rng.random(n) < c - 0.06 - more
    return calibcli.from_confidence(c, hit, by=about)


@pytest.mark.slow
def test_a_model_that_is_too_sure_everywhere_has_no_slices() -> None:
    """Of 12 models with a family-wise error of 5 % three or more have one with probability 2 %."""
    wrong = 0
    for seed in range(12):
        found = find(_too_sure(4000, np.random.default_rng([seed, 4])), Search(seed=seed, min_n=100))
        wrong += found.facts["confirmed"] > 0
        if not found.facts["confirmed"]:
            assert found.facts["headline"].startswith("Everywhere alike: confidence gap +0.0")
            assert "no slice differs" in found.facts["headline"]
    assert wrong <= 2
    found = find(_too_sure(10_000, np.random.default_rng(1), 0.2), Search(min_n=100))
    assert [rule["by"] for rule in found.facts["rules"]] == ["c0=1 & c1=2"]
    assert "more than the other rows" in found.facts["headline"]


@pytest.mark.parametrize("k", [2, 4])
def test_a_column_that_is_mostly_the_label_is_named(k: int) -> None:
    """97 % of its values are the label; a feature that the model knows, and noise, are not named."""
    n, rng = 4000, np.random.default_rng(k)
    z = rng.standard_normal((n, k)) * 2
    y = (z + rng.gumbel(size=z.shape)).argmax(axis=1)
    copied = np.where(rng.random(n) < 0.97, y, rng.integers(0, k, n)).astype(str)
    about = {"copied": copied, "feature": z[:, 0], "best": z.argmax(1).astype(str), "noise": rng.choice(list("AB"), n)}
    notes = find(calibcli.from_arrays(z, y, by=about), Search()).notes
    named = [note for note in notes if "made from the labels" in note]
    assert len(named) == 1
    assert named[0].startswith("'copied' alone predicts the label of 9")


def test_rows_that_stronger_rules_hold_are_counted() -> None:
    """The second of two rules that overlap is measured on the rows that the first leaves."""
    n, rng = 8000, np.random.default_rng(0)
    age = rng.uniform(20, 90, n)
    found = find(_rows(n, {"age": age}, 0.2 * (age > 76) + 0.15 * (age > 48)), Search())
    [table] = found.tables
    left = [(row[table.columns.index("n")], row[table.columns.index("of")]) for row in table.rows]
    assert left[0][0] == left[0][1]
    assert any(n < every for n, every in left)
    assert any("no rule above it selects" in note for note in found.notes)


def test_groups_that_fail_together_are_no_slice() -> None:
    """Sites differ by chance: each patient has an error of its own, and their rows belong together."""
    groups = np.repeat(np.arange(120), 25)
    own = np.random.default_rng(9).normal(0, 0.25, 120)[groups]
    site = np.array(list("AB"))[groups % 2]
    shown = {}
    for name, more in (("together", {"group": groups}), ("apart", {})):
        p = _rows(3000, {"site": site}, own, **more)
        result = find(p, Search(min_n=100))
        shown[name] = [e.detail["p_value"] for e in result.estimates]
    assert min(shown["together"]) > min(shown["apart"])


def test_nothing_found_says_what_would_have_been() -> None:
    n = 4000
    found = find(_rows(n, {"site": RNG.choice(list("ABC"), n)}), Search())
    assert found.facts["headline"].startswith("No slice found; a gap of 0.")
    assert 0.05 < found.facts["would_have_found"] < 0.4


@pytest.mark.parametrize("kind", ["three classes", "counts", "confidence"])
def test_all_kinds_of_rows(kind: str) -> None:
    n = 3000
    rng = np.random.default_rng(2)
    site = rng.choice(list("ABC"), n)
    c = rng.uniform(0.6, 0.99, n)
    hit = rng.random(n) < c - 0.3 * (site == "B")
    if kind == "confidence":
        rows = calibcli.from_confidence(c, hit, by={"site": site})
    else:
        q = np.stack([c, (1 - c) * 0.6, (1 - c) * 0.4], 1)
        more = {"weights": rng.integers(1, 3, n), "weight_kind": "count"} if kind == "counts" else {}
        rows = calibcli.from_arrays(q, np.where(hit, 0, 1), by={"site": site}, **more)
    found = calibcli.find_slices(rows)
    assert found.facts["rules"][0]["by"] == "site=B"
    assert found["confidence_gap", "site=B"].value == pytest.approx(0.3, abs=0.06)


# the command


def test_columns_of_a_file_and_rules_for_the_gate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    n = 4000
    site, age = RNG.choice(["north", "south wing"], n), RNG.uniform(20, 90, n)
    p = _rows(n, {"site": site}, 0.2 * ((site == "south wing") & (age > 60)))
    path = tmp_path / "rows.npz"
    np.savez(path, log_probs=p.logits, labels=p.labels, site=site, age=age, ids=np.arange(n))
    line = ["slices", str(path), "-o", str(tmp_path / "rules.toml"), "-o", str(tmp_path / "out.png"), "--json"]
    assert main(line) == 0
    assert '"columns": 2' in capsys.readouterr().out
    gates = tomllib.loads((tmp_path / "rules.toml").read_text())["gate"]
    assert gates[0]["metric"] == "confidence_gap"
    assert 'site="south wing"' in gates[0]["by"]
    assert "age>" in gates[0]["by"]
    assert main(["check", str(path), "--config", str(tmp_path / "rules.toml"), "-q"]) == 1
    said = capsys.readouterr().out
    assert "FAIL" in said
    assert "south wing" in said
    assert main(["slices", str(ROOT / "sample_data" / "test.npz"), "--by", "class", "--min-n", "100", "-q"]) == 0
    assert main(["slices", str(path), "--by", "nothing", "-q"]) == 4
    bare = tmp_path / "bare.npz"
    np.savez(bare, log_probs=p.logits, labels=p.labels)
    assert main(["slices", str(bare), "-q"]) == 2
    assert "no column to search" in capsys.readouterr().err


@pytest.mark.regression
def test_columns_of_classes_are_not_searched_where_a_part_has_labels_of_one(tmp_path: Path) -> None:
    for part, labels in (("a", ["cat"] * 40), ("b", ["cat", "dog"] * 20)):
        rows = "".join(f"{0.5 + i / 100},{0.5 - i / 100},s{i % 2},{label}\n" for i, label in enumerate(labels))
        (tmp_path / f"{part}.csv").write_text("cat,dog,site,label\n" + rows)
    assert candidates.others(tmp_path / "*.csv", Reading()) == ["site"]


def test_options_that_cannot_be() -> None:
    p = _rows(1000, {"site": RNG.choice(list("AB"), 1000)})
    for more in ({"depth": 4}, {"find": "other"}, {"confirm": "none"}, {"alpha": 2}):
        with pytest.raises(CalibError):
            calibcli.find_slices(p, **more)
    with pytest.raises(UsageError, match="too few"):
        calibcli.find_slices(p.take(np.arange(150)))


def test_three_conditions_without_sliceline_say_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sliceline.slicefinder", None)
    with pytest.raises(UsageError, match="sliceline") as error:
        calibcli.find_slices(_rows(1000, {"site": RNG.choice(list("AB"), 1000)}), depth=3)
    assert "pip install" in error.value.fix


@pytest.mark.extra
def test_three_conditions_by_sliceline() -> None:
    pytest.importorskip("sliceline")
    n = 20_000
    about = {f"c{j}": RNG.integers(0, 3, n).astype(str) for j in range(4)}
    inside = (about["c0"] == "1") & (about["c1"] == "1") & (about["c2"] == "1")
    found = calibcli.find_slices(_rows(n, about, 0.25 * inside), depth=3)
    assert found.facts["rules"][0]["by"] == "c0=1 & c1=1 & c2=1"


@pytest.mark.docs
def test_the_page_is_true() -> None:
    import doctest

    page = (ROOT / "docs" / "slices.md").read_text(encoding="utf-8").replace("```", "")
    example = doctest.DocTestParser().get_doctest(page, {"calibcli": calibcli, "np": np}, "slices.md", None, None)
    assert doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(example).failed == 0
