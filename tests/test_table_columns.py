"""Tables whose columns are told by what they hold: families of scores, predictions, one-hot truth, sorted scores."""

from __future__ import annotations

import csv
import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import calibcli
from calibcli.core.errors import CalibError, InputError

N, NAMES = 300, ["cat", "dog", "fox"]
RNG = np.random.default_rng(11)
Z = 2 * RNG.normal(size=(N, 3))
P = np.round(np.exp(1.6 * Z) / np.exp(1.6 * Z).sum(1, keepdims=True), 6)
Y = (Z + RNG.gumbel(size=Z.shape)).argmax(1)
TOP = P.argmax(1)
RIGHT = float(np.mean(TOP == Y))
Q = np.round(1 / (1 + np.exp(1.6 * (Z[:, 0] - Z[:, 1]))), 6)  # of two classes, the second
OTHER = np.round(Q**0.5 / (Q**0.5 + (1 - Q) ** 0.5), 6)
TWO = (RNG.random(N) < 1 / (1 + np.exp(Z[:, 0] - Z[:, 1]))).astype(int)
ANIMALS, GUESSES = np.array(NAMES)[Y], np.array(NAMES)[TOP]


def table(path: Path, header: str, *columns: Any, cut: str = ",") -> Path:
    with path.open("w", newline="") as file:
        rows = csv.writer(file, delimiter=cut, lineterminator="\n")
        rows.writerow(header.split(cut))
        rows.writerows(zip(*(np.asarray(column).tolist() for column in columns), strict=True))
    return path


def numbers(path: Path, labels: str | None = None, **how: Any) -> dict[str, float | None]:
    return {e.name: e.value for e in calibcli.measure(path, labels, "accuracy", "ece", **how).estimates}


def refused(path: Path, **how: Any) -> CalibError:
    with pytest.raises(InputError) as found:
        calibcli.read(path, **how)
    return found.value


def of(scores: np.ndarray, labels: np.ndarray) -> dict[str, float | None]:
    kind = "probabilities"
    return {e.name: e.value for e in calibcli.measure(scores, labels, "accuracy", "ece", kind=kind).estimates}


def options(fix: str) -> list[dict[str, str]]:
    """Return the options of each line that a fix names."""
    lines = fix.replace("; ", " or ").replace(", e.g.", " or ").split(" or ")
    found = []
    for line in lines:
        words = [word.rstrip(",:") for word in shlex.split(line[line.find("--") :])] if "--" in line else []
        found.append({k[2:]: v for k, v in zip(words[::2], words[1::2]) if k.startswith("--")})
    return [one for one in found if one]


# Two families of scores.


@pytest.mark.regression
@pytest.mark.parametrize(
    ("one", "two"),
    [
        ("p0,p1", "cal_p0,cal_p1"),
        ("modelA_p0,modelA_p1", "modelB_p0,modelB_p1"),
        ("p0,p1", "q0,q1"),
        ("prob_0,prob_1", "prob_cal_0,prob_cal_1"),
        ("prob_no,prob_yes", "raw_no,raw_yes"),
        ("no_a,yes_a", "no_b,yes_b"),
        ("prob_0,prob_1", "score_0,score_1"),
    ],
)
@pytest.mark.parametrize("turned", [False, True])
def test_two_families_of_scores_are_refused_with_both_lines(tmp_path: Path, one: str, two: str, turned: bool) -> None:
    blocks = [(one, Q), (two, OTHER)][:: -1 if turned else 1]
    labels = np.array(["no", "yes"])[TWO] if "no" in one else TWO
    columns = [column for _, p in blocks for column in (np.round(1 - p, 6), p)]
    path = table(tmp_path / "a.csv", ",".join([*(names for names, _ in blocks), "label"]), *columns, labels)
    fix = refused(path).fix
    lines = [how["scores"] for how in options(fix)]
    assert len(lines) == 2
    of_q, of_other = (
        numbers(path, scores=next(line for line in lines if names.startswith(line)))["ece"] for names in (one, two)
    )
    assert (of_q, of_other) == pytest.approx((of(Q, TWO)["ece"], of(OTHER, TWO)["ece"]), abs=1e-5)
    assert numbers(path, scores=one)["ece"] == of_q  # also columns that the reader has joined


def test_a_family_of_many_columns_is_chosen_by_what_its_names_share(tmp_path: Path) -> None:
    z = RNG.normal(size=(60, 12))
    p = np.exp(z) / np.exp(z).sum(1, keepdims=True)
    q = np.exp(z / 2) / np.exp(z / 2).sum(1, keepdims=True)
    head = ",".join([*(f"raw_p{i}" for i in range(12)), *(f"cal_p{i}" for i in range(12)), "label"])
    path = table(tmp_path / "a.csv", head, *p.T, *q.T, z.argmax(1))
    assert [how["scores"] for how in options(refused(path).fix)] == ["raw_p", "cal_p"]
    assert calibcli.read(path, scores="cal_p").logits == pytest.approx(np.log(q), abs=1e-9)


@pytest.mark.parametrize("further", ["x0,x1", "sex_0,sex_1", "p_0,p_1"])
def test_columns_that_are_no_other_scores_do_not_stop_a_table(tmp_path: Path, further: str) -> None:
    """Features without that sum, one-hot features, and the same numbers once more."""
    value = {"x0,x1": (Q / 2, Q / 3), "sex_0,sex_1": (Y == 0, Y != 0), "p_0,p_1": (1 - Q, Q)}[further]
    head = f"prob_0,prob_1,{further},label".replace("p_0,p_1", "q_0,q_1")
    path = table(tmp_path / "a.csv", head, np.round(1 - Q, 6), Q, *(np.round(1.0 * v, 6) for v in value), TWO)
    assert numbers(path) == pytest.approx(of(Q, TWO), abs=1e-9)


# A probability of one class beside the predicted class.


@pytest.mark.regression
@pytest.mark.parametrize("cut", [0.5, 0.2])
@pytest.mark.parametrize("names", [("no", "yes"), ("benign", "malignant"), ("1", "0"), ("0", "1")])
@pytest.mark.parametrize("header", ["label,y_pred,pred_prob", "target,pred_label,prediction", "label,pred,confidence"])
def test_a_probability_of_one_class_is_no_confidence(
    tmp_path: Path, header: str, names: tuple[str, str], cut: float
) -> None:
    labels, guesses = (np.array(names)[codes] for codes in (TWO, (cut < Q).astype(int)))
    path = table(tmp_path / "a.csv", header, labels, guesses, Q)
    found = refused(path)
    how = options(found.fix)[-1]
    assert how["event"] == names[1]
    assert numbers(path, **how) == pytest.approx(of(Q, TWO), abs=1e-9)


@pytest.mark.regression
def test_a_probability_of_one_class_beside_a_verdict(tmp_path: Path) -> None:
    path = table(tmp_path / "a.csv", "label,correct,confidence", TWO, ((Q > 0.5) == TWO).astype(int), Q)
    assert "it is the probability of 1" in refused(path).problem
    assert numbers(path, **options(refused(path).fix)[-1]) == pytest.approx(of(Q, TWO), abs=1e-9)


@pytest.mark.parametrize("k", [2, 3])
def test_a_confidence_beside_the_predicted_class_is_read(tmp_path: Path, k: int) -> None:
    """Of three classes it may be below 1/2, and a model that states its confidence may doubt its own answer."""
    names = np.array(NAMES[:k])
    top, y = (TOP, Y) if k == 3 else ((Q > 0.5).astype(int), TWO)
    stated = np.round(RNG.uniform(0.3, 1, N), 2) if k == 2 else P.max(1)
    path = table(tmp_path / "a.csv", "label,predicted,confidence", names[y], names[top], stated)
    assert numbers(path)["accuracy"] == pytest.approx(np.mean(top == y))


def test_the_predicted_class_of_any_name(tmp_path: Path) -> None:
    path = table(tmp_path / "a.csv", "label,score,gold", GUESSES, P.max(1), ANIMALS)
    how = {"confidence": "score", "predicted": "label", "labels": "gold"}
    assert numbers(path, **how)["accuracy"] == RIGHT
    with pytest.raises(CalibError, match="exclude each other"):
        calibcli.read(path, **how, correct="gold")


# Predictions, one-hot truth, sorted scores.


@pytest.mark.regression
@pytest.mark.parametrize(
    ("header", "columns", "k"),
    [
        ("predict,cat,dog,fox,animal", (GUESSES, *P.T, ANIMALS), 3),
        ("animal,guess,cat,dog,fox,age", (ANIMALS, GUESSES, *P.T, np.arange(N)), 3),
        ("animal,cat score,dog score,fox score,guess", (ANIMALS, *P.T, GUESSES), 3),
        ("animal,p=cat,p=dog,p=fox,p=<UNK>,guess", (ANIMALS, *P.T, np.zeros(N), GUESSES), 3),
        ("pred,obs,no,yes,row", (*(np.array(["no", "yes"])[1 * c] for c in (Q > 0.5, TWO)), 1 - Q, Q, np.arange(N)), 2),
        ("guess,no,yes,churn", (np.where(Q > 0.2, "yes", "no"), 1 - Q, Q, np.array(["no", "yes"])[TWO]), 2),
        (".pred_class,.pred_no,.pred_yes,truth", ([], 1 - Q, Q, np.array(["no", "yes"])[TWO]), 2),
    ],
)
def test_the_column_that_follows_from_the_scores_is_the_prediction(
    tmp_path: Path, header: str, columns: Sequence[Any], k: int
) -> None:
    columns = [np.where(Q > 0.5, "yes", "no") if len(column) == 0 else column for column in columns]
    columns = [np.round(c, 6) if np.asarray(c).dtype.kind == "f" else c for c in columns]
    expected = of(P, Y) if k == 3 else of(Q, TWO)
    assert numbers(table(tmp_path / "a.csv", header, *columns)) == pytest.approx(expected, abs=1e-5)


@pytest.mark.regression
def test_a_label_by_name_that_is_the_prediction_is_refused_where_another_could_be(tmp_path: Path) -> None:
    path = table(tmp_path / "a.csv", "p_cat,p_dog,p_fox,class,animal", *P.T, GUESSES, ANIMALS)
    found = refused(path)
    assert [how["labels"] for how in options(found.fix)] == ["animal", "class"]
    assert numbers(path, labels="animal")["accuracy"] == RIGHT
    alone = table(tmp_path / "b.csv", "p_cat,p_dog,p_fox,class", *P.T, GUESSES)
    assert "if it was observed all the same" in refused(alone).fix
    sure = table(tmp_path / "c.csv", "p_cat,p_dog,p_fox,label", *P.T, GUESSES)  # what nothing else can be
    for rows in (calibcli.read(alone, labels="class"), calibcli.read(sure)):
        assert any("every label is the class with the largest score" in note for note in rows.notes)
    beside = table(tmp_path / "d.csv", "p_cat,p_dog,p_fox,label,truth", *P.T, GUESSES, ANIMALS)
    assert "--labels truth" in refused(beside).fix
    assert numbers(beside, labels="truth")["accuracy"] == RIGHT


def test_names_that_say_predicted_are_never_proposed_as_the_truth(tmp_path: Path) -> None:
    p = np.round(RNG.beta(1, 2, N), 4)
    observed = np.where(RNG.random(N) < p, "yes", "no")
    called = np.where(p > 0.5, "Yes", "No")
    path = table(tmp_path / "a.csv", "case,risk_now,seen_label,pred_class", np.arange(N), p, observed, called)
    assert {how.get("labels") for how in options(refused(path).fix)} == {"seen_label"}
    top, second = np.array(["cat", "dog", "fox"])[P.argsort(axis=1)[:, ::-1].T[:2]]
    sure = np.round(P.max(axis=1), 4)
    ranks = table(tmp_path / "b.csv", "Top 1 Predicted Class,Top 1 Confidence,Top 2 Predicted Class", top, sure, second)
    assert "--predicted" not in refused(ranks).fix
    turned = table(tmp_path / "c.csv", "True Label,Predicted Label,Confidence Score", ANIMALS, top, sure)
    (line,) = options(refused(turned).fix)
    assert (line["predicted"], line["labels"]) == ("Predicted Label", "True Label")
    errors = table(tmp_path / "d.csv", "confidence,entropy,error", sure, sure, 1 * (top != ANIMALS))
    assert "--correct error" not in refused(errors).fix


def test_few_labels_of_people_are_still_the_truth_and_players_are_no_classes(tmp_path: Path) -> None:
    top = np.array(["cat", "dog", "fox"])[P.argmax(axis=1)]
    seen = np.where(np.arange(N) % 20 == 0, ANIMALS, "")
    few = table(tmp_path / "a.csv", "sure_of_it,model_says,people_say", np.round(P.max(axis=1), 4), top, seen)
    lines = [(how.get("predicted"), how.get("labels")) for how in options(refused(few).fix)]
    assert ("model_says", "people_say") in lines
    home = RNG.choice(["ann", "bea", "cat", "dot"], N)
    away = np.where(home == "ann", "bea", "ann")
    won = 1 * (RNG.random(N) < 0.5)
    games = table(tmp_path / "b.csv", "home,away,model_prob,home_win", home, away, np.round(P.max(axis=1), 4), won)
    assert "--predicted" not in refused(games).fix


def test_one_column_of_a_one_hot_truth_is_no_label(tmp_path: Path) -> None:
    outcomes = [1 * (i == Y) for i in (0, 2, 1)]
    path = table(tmp_path / "a.csv", "prob1,prob2,draw,prob1_won,draw_won,prob2_won", *P.T, *outcomes)
    with pytest.raises(InputError, match="one column for each class") as found:
        calibcli.read(path, scores="prob1,prob2,draw", labels="prob1_won")
    assert "--labels prob1_won,prob2_won,draw_won" in found.value.fix
    rows = calibcli.read(path, scores="prob1,prob2,draw", labels="prob1_won,prob2_won,draw_won")
    assert rows.labels.tolist() == Y.tolist()


def test_a_share_of_one_class_beside_what_was_right_is_refused(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    p = rng.beta(0.7, 0.7, 600).round(4)
    right = (p > 0.5) == (rng.random(600) < p)
    path = table(tmp_path / "a.csv", "prob,correct", p, 1 * right)
    with pytest.raises(InputError, match="probability of one class"):
        calibcli.read(path, confidence="prob", correct="correct")
    sure = np.maximum(p, 1 - p)
    table(tmp_path / "b.csv", "prob,correct", sure, 1 * right)
    assert calibcli.read(tmp_path / "b.csv", confidence="prob", correct="correct").top_only


@pytest.mark.regression
@pytest.mark.parametrize("header", ["pred_A,pred_B,pred_C,true_A,true_B,true_C", "prob_0,prob_1,prob_2,y_0,y_1,y_2"])
def test_one_hot_columns_are_the_labels(tmp_path: Path, header: str) -> None:
    order = [2, 0, 1]  # of the columns of truth
    names = header.split(",")
    header = ",".join([*names[:3], *(names[3 + i] for i in order)])
    path = table(tmp_path / "a.csv", header, *P.T, *(1 * (i == Y) for i in order))
    found = calibcli.read(path)
    assert any("labels are the one-hot columns" in note for note in found.notes)
    assert numbers(path) == pytest.approx(of(P, Y), abs=1e-9)
    assert numbers(path, scores=",".join(names[:3]), labels=",".join(names[3:])) == numbers(path)


@pytest.mark.regression
def test_one_of_the_one_hot_columns_is_never_proposed(tmp_path: Path) -> None:
    path = table(tmp_path / "a.csv", "a,b,c,is_a,is_b,late", *Z.T, 1 * (Y == 0), 1 * (Y == 1), RNG.integers(0, 2, N))
    assert "--labels" not in refused(path).fix
    shares = table(tmp_path / "b.csv", "u,v,w,is_a,is_b", *P.T, 1 * (Y == 0), 1 * (Y == 1))
    assert "--scores u,v,w" in refused(shares).fix
    assert "--labels" not in refused(shares).fix
    one = calibcli.read(path, scores="a,b,c", labels="is_b", kind="logits")
    assert any("no label is c" in note and "whether it was one class" in note for note in one.notes)
    with pytest.raises(InputError, match="0 and 1 alone, of 3 classes"):
        calibcli.read(path, scores="a,b,c", labels="late", kind="logits")


def test_a_class_that_is_never_observed_is_said() -> None:
    labels = np.where(Y == 2, 1, Y)
    assert any("no label is 2" in note for note in calibcli.from_arrays(Z, labels).notes)
    assert not any("no label" in note for note in calibcli.from_arrays(Z, Y).notes)


@pytest.mark.regression
@pytest.mark.parametrize("known", [True, False])
def test_the_largest_scores_of_each_row_are_not_those_of_classes(tmp_path: Path, known: bool) -> None:
    order = np.argsort(-P, axis=1)
    names = np.array([*NAMES, "gnu"])
    listed = names[order]
    if not known:
        listed[::7, 2] = "gnu"
    header = "label_0,label_1,label_2,prob_0,prob_1,prob_2,target"
    path = table(tmp_path / "a.csv", header, *listed.T, *np.take_along_axis(P, order, 1).T, ANIMALS)
    if known:
        assert numbers(path) == pytest.approx(of(P, Y), abs=1e-9)
    else:
        assert "differ from row to row" in refused(path).problem
    with pytest.raises(InputError, match="fall from the first column to the last"):
        calibcli.from_arrays(np.take_along_axis(P, order, 1), Y)
    ranked = calibcli.from_arrays(np.take_along_axis(P, order, 1), Y, classes=["a", "b", "c"])
    assert any("fall from the first column to the last" in note for note in ranked.notes)


# Fix lines of lists and texts.


def test_log_probabilities_of_tokens_are_not_proposed_as_classes(tmp_path: Path) -> None:
    for lengths in ([2, 11, 5], [4, 4, 4]):
        rows = [{"token_logprobs": [-0.5] * lengths[i % 3], "target": i % 2} for i in range(60)]
        (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        assert "token_logprobs" not in refused(tmp_path / "a.jsonl").fix


# Several labels, some of them not known.


@pytest.mark.regression
@pytest.mark.parametrize("absent", [np.nan, -1])
@pytest.mark.parametrize("dtype", [float, int])
def test_a_label_that_is_not_known_counts_for_the_others(tmp_path: Path, absent: float, dtype: type) -> None:
    if np.isnan(absent) and dtype is int:
        return
    known = RNG.random((N, 3)) < 0.7
    known[:, 2] = True
    truth = (RNG.random((N, 3)) < P).astype(int)
    targets = np.where(known, truth, absent).astype(dtype)
    np.savez(tmp_path / "a.npz", probs=P, labels=targets)
    for found in (
        calibcli.measure(tmp_path / "a.npz", None, "brier", multilabel=True),
        calibcli.measure(P, targets, "brier", multilabel=True),
    ):
        briers = [e for e in found.estimates if e.name == "brier"]
        assert [e.n for e in briers] == known.sum(0).tolist()
        for i, e in enumerate(briers):
            rows = known[:, i]
            assert e.value == pytest.approx(np.mean((P[rows, i] - truth[rows, i]) ** 2))
        told = [note for note in found.notes if "have no label" in note or "has no label" in note]
        assert len(told) == 2


def test_targets_of_minus_one_and_one_may_be_two_classes() -> None:
    with pytest.raises(InputError, match="are these no and yes, or unknown and yes"):
        calibcli.measure(P, np.where(P > 0.5, 1, -1), multilabel=True)
    nothing = np.where(np.arange(3) == 1, np.nan, 1.0 * (RNG.random(P.shape) < P))
    with pytest.raises(InputError, match="no row says whether it has the label '1'"):
        calibcli.measure(P, nothing, multilabel=True)


def test_columns_of_several_labels_are_named_by_comma(tmp_path: Path) -> None:
    truth = (RNG.random((N, 3)) < P).astype(int)
    path = table(tmp_path / "a.csv", "p_cat,p_dog,p_fox,cat,dog,fox", *P.T, *truth.T)
    found = calibcli.measure(path, "cat,dog,fox", "brier", multilabel=True)
    assert [e.value for e in found.estimates if e.name == "brier"] == pytest.approx(((P - truth) ** 2).mean(0).tolist())


@pytest.mark.regression
@pytest.mark.parametrize("form", ["npz", "jsonl", "csv"])
@pytest.mark.parametrize(("one", "two"), [("prob", "cal_prob"), ("probs", "cal_probs"), ("score", "score_new")])
def test_two_arrays_of_probabilities_are_refused_with_both_lines(tmp_path: Path, form: str, one: str, two: str) -> None:
    wide = one == "probs"
    p, q = (np.column_stack([1 - c, c]) if wide else c for c in (Q, OTHER))
    if wide and form == "csv":
        return
    if form == "npz":
        np.savez(path := tmp_path / "a.npz", **{one: p, two: q, "label": TWO})
    elif form == "csv":
        path = table(tmp_path / "a.csv", f"{one},{two},label", p, q, TWO)
    else:
        rows = [{one: a, two: b, "label": int(y)} for a, b, y in zip(p.tolist(), q.tolist(), TWO)]
        (path := tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert [how["scores"] for how in options(refused(path).fix)] == [one, two]
    assert numbers(path, scores=two)["ece"] == pytest.approx(of(OTHER, TWO)["ece"], abs=1e-6)


@pytest.mark.parametrize("name", ["prob_max", "prob_0", "prob_yes", "age_share", "prob copy"])
def test_further_columns_of_one_table_that_are_no_rivals(tmp_path: Path, name: str) -> None:
    value = {"prob_max": np.maximum(Q, 1 - Q), "prob copy": Q}.get(name, np.round(1 - Q, 6))
    path = table(tmp_path / "a.csv", f"prob,{name},label", Q, value, np.array(["no", "yes"])[TWO])
    assert numbers(path) == pytest.approx(of(Q, TWO), abs=1e-6)


# Lines that a copied fix leads to, and dead ends.


def test_the_first_of_the_labels_is_no_header(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", logits=Z)
    classes = ",".join(NAMES)
    for name, header in (("bare.csv", []), ("named.csv", ["label"]), ("cat.csv", ["species"])):
        (tmp_path / name).write_text("\n".join([*header, *ANIMALS, ""]))
        found = calibcli.read(tmp_path / "a.npz", labels=str(tmp_path / name), classes=classes)
        assert found.labels.tolist() == Y.tolist()
        assert any("is a label and no header" in note for note in found.notes) == (not header)
    (tmp_path / "short.csv").write_text("\n".join(["species", *ANIMALS[1:], ""]))
    with pytest.raises(InputError, match=r"300 rows of scores .* but 299 labels"):
        calibcli.read(tmp_path / "a.npz", labels=str(tmp_path / "short.csv"), classes=classes)


@pytest.mark.parametrize("form", ["%.18e", "%.3e", "%d", "%.1f"])
def test_labels_in_scientific_notation_are_whole_numbers(tmp_path: Path, form: str) -> None:
    path = tmp_path / "a.csv"
    columns = [form, "%.18e", "%.18e", "%.18e"]
    np.savetxt(path, np.column_stack([Y, P]), fmt=columns, delimiter=",", header="label,p_0,p_1,p_2", comments="")
    assert numbers(path) == pytest.approx(of(P, Y), abs=1e-9)
    np.savetxt(path, np.column_stack([Y + 0.5, P]), delimiter=",", header="label,p_0,p_1,p_2", comments="")
    assert "not whole numbers" in refused(path).problem


def test_what_stands_in_the_way_has_a_way_out(tmp_path: Path) -> None:
    labels = np.where(np.arange(N) % 30 == 0, "wolf", ANIMALS)
    unknown = refused(table(tmp_path / "a.csv", "label,prob_cat,prob_dog,prob_fox", labels, *P.T))
    assert "'wolf' ('label') is not one of the 3 classes (10 rows, first row 0)" in unknown.problem
    assert "--missing drop" in unknown.fix or "missing='drop'" in unknown.fix
    path = table(tmp_path / "b.csv", "prob,label,age", Q, TWO, RNG.integers(40, 80, N))
    with pytest.raises(InputError, match="no such array") as found:
        calibcli.measure(path, by=["age>=60"])
    assert "calib check --by 'age>=60'" in found.value.fix
    table(tmp_path / "c.csv", "prob,label,age", [], [], [])
    with pytest.raises(InputError, match="has a header but no rows") as found:
        calibcli.read([path, tmp_path / "c.csv"], shards=True)
    assert found.value.fix == f"leave {tmp_path / 'c.csv'} out"
    percent = table(tmp_path / "d.csv", "label,risk %", TWO, np.round(100 * Q, 1))
    assert float(np.exp(calibcli.read(percent).logits[0, 1])) == pytest.approx(round(100 * Q[0], 1) / 100)


def test_a_class_that_no_row_is_labelled_with_may_have_a_bare_name(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    p = rng.dirichlet([1, 1, 1, 1], 80).round(6)
    y = np.array(["ash", "bay", "elm"])[p[:, :3].argmax(axis=1)]
    lines = [
        "ash,site,bay,fen,elm,answer",
        *(f"{a},{i % 3},{b},{d},{c},{t}" for i, ((a, b, c, d), t) in enumerate(zip(p, y))),
    ]
    (tmp_path / "a.csv").write_text("\n".join(lines) + "\n")
    rows = calibcli.read(tmp_path / "a.csv")
    assert list(rows.classes) == ["ash", "bay", "fen", "elm"]


def test_a_margin_beside_its_probability_is_not_the_scores(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    p = rng.beta(1, 1, 300).round(4)
    y = (rng.random(300) < p).astype(int)
    margin = np.log(p / (1 - p)).round(3) * 2
    path = table(tmp_path / "a.csv", "Label,Score,Probability", y, margin, p)
    assert calibcli.read(path).record.scores == "Probability"
    both = table(tmp_path / "b.csv", "Label,Score,Probability", y, (p**2).round(4), p)  # of two models?
    assert {line["scores"] for line in options(refused(both).fix)} == {"Score", "Probability"}
