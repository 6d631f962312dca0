"""What the rows of a file mean: labels, verdicts, choices, weights, ties; numbers in digits."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from calibcli.cli.app import main
from calibcli.core.errors import Exit, InputError, UsageError
from calibcli.networks import dataset
from calibcli.scores import recorded_outputs
from calibcli.scores.from_arrays import of_arrays
from calibcli.scores.input_mistakes import refuse_overlap
from calibcli.scores.predictions import Predictions

RNG = np.random.default_rng(4)
Z = RNG.normal(size=(300, 4)).astype(np.float32)
Y = RNG.integers(0, 4, 300)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def lines(name: str, rows: list[dict[str, Any]]) -> str:
    Path(name).write_text("\n".join(map(json.dumps, rows)))
    return name


def question(i: int, scores: list[float], target: Any, choices: list[Any], **more: Any) -> dict[str, Any]:
    asked = {f"gen_args_{k}": {"arg_0": context, "arg_1": text} for k, (context, text) in enumerate(choices)}
    resps = [[str(score), "False"] for score in scores]
    return {"doc_id": i, "target": target, "arguments": asked, "filtered_resps": resps, "filter": "none", **more}


@pytest.mark.regression("1.9")
@pytest.mark.parametrize("acc", [True, False])
def test_winogrande_takes_its_labels_from_acc_or_is_refused_by_name(acc: bool) -> None:
    rows = [
        question(i, [-1.0 - i % 3, -2.0], "was big.", [("The cat", " was big."), ("The dog", " was big.")])
        | ({"acc": float(i % 3 == 0)} if acc else {})
        for i in range(20)
    ]
    if acc:  # the first choice is the better one in every third row, the other one else: so it is never right
        wanted = [int(not (-1.0 - i % 3 > -2.0) if i % 3 == 0 else -1.0 - i % 3 >= -2.0) for i in range(20)]
        assert recorded_outputs.read(lines("a.jsonl", rows)).labels.tolist() == wanted
        return
    with pytest.raises(InputError, match="winogrande") as caught:
        recorded_outputs.read(lines("a.jsonl", rows))
    assert "label" in caught.value.fix


@pytest.mark.regression("1.9")
@pytest.mark.parametrize("how", ["key", "metrics", "texts"])
def test_mutual_information_is_known_and_read_as_its_first_half(how: str) -> None:
    choices = [("Q: 2+2? A:", f" {c}") for c in "abcd"] + [("", f" {c}") for c in "abcd"]
    more: dict[str, Any] = {"key": {"acc_mutual_info": None}, "metrics": {"metrics": ["acc", "acc_mutual_info"]}}
    scores = RNG.normal(size=(9, 8))
    rows = [question(i, scores[i].tolist(), "2", choices, **more.get(how, {})) for i in range(9)]
    np.testing.assert_array_equal(recorded_outputs.read(lines("a.jsonl", rows)).logits, scores[:, :4])
    pmi = recorded_outputs.read(lines("a.jsonl", rows), lm_norm="pmi")
    np.testing.assert_allclose(pmi.logits, scores[:, :4] - scores[:, 4:])
    if how != "texts":  # it says that it has two halves, but they are of other choices
        odd = [question(i, scores[i].tolist(), "2", [*choices[:7], ("", " z")], **more[how]) for i in range(9)]
        with pytest.raises(InputError, match=r"8 log-likelihoods are not of 4 choices") as caught:
            recorded_outputs.read(lines("a.jsonl", odd))
        assert "first half" in caught.value.fix


@pytest.mark.regression("1.9")
def test_labels_agree_with_the_harness() -> None:
    """One target that was changed contradicts `acc`; digits that name texts instead of places are read as texts."""
    texts = [("Q", f" {digit}") for digit in (2, 3, 0, 1)]
    scores = RNG.normal(size=(200, 4))
    place = RNG.integers(0, 4, 200)
    acc = (scores.argmax(axis=1) == place).astype(float)
    rows = [question(i, scores[i].tolist(), str(place[i]), texts, acc=acc[i]) for i in range(200)]
    np.testing.assert_array_equal(recorded_outputs.read(lines("a.jsonl", rows)).labels, place)
    wrong = int(np.flatnonzero(acc == 1)[0])
    rows[wrong]["target"] = str((place[wrong] + 1) % 4)
    with pytest.raises(InputError, match=rf"row {wrong} .*has acc 1, but its target reads"):
        recorded_outputs.read(lines("a.jsonl", rows))
    named = [question(i, scores[i].tolist(), texts[place[i]][1].strip(), texts, acc=acc[i]) for i in range(200)]
    np.testing.assert_array_equal(recorded_outputs.read(lines("a.jsonl", named)).labels, place)


@pytest.mark.regression("1.9")
def test_a_target_beyond_the_choices_of_its_row() -> None:
    rows = [question(0, [-1, -2, -3, -4], "3", []), question(1, [-1, -2], "3", [])]
    with pytest.raises(InputError, match="'3' is not one of 2 choices"):
        recorded_outputs.read(lines("a.jsonl", rows))


@pytest.mark.regression("1.10")
@pytest.mark.parametrize("suffix", ["npz", "csv", "jsonl"])
@pytest.mark.parametrize(("score", "verdict"), [("confidence", "correct"), ("conf", "is_correct"), ("msp", "hit")])
def test_confidences_with_verdicts_are_not_scores_of_a_class(
    suffix: str, score: str, verdict: str, capsys: Any
) -> None:
    c = RNG.uniform(0.3, 1, 200).round(3)
    right = (RNG.random(200) < c).astype(int)
    if suffix == "npz":
        np.savez("a.npz", **{score: c, verdict: right})
    elif suffix == "csv":
        Path("a.csv").write_text(f"{score},{verdict}\n" + "\n".join(f"{a},{b}" for a, b in zip(c, right)))
    else:
        lines("a.jsonl", [{score: a, verdict: b} for a, b in zip(c.tolist(), right.tolist())])
    name = f"a.{suffix}"
    assert main(["metrics", name, "-m", "accuracy", "--json", "-q"]) == Exit.OK
    assert json.loads(capsys.readouterr().out)["estimates"][0]["value"] == right.mean()
    for way in (["--scores", score, "--labels", verdict], ["--scores", score, "--labels", verdict, "--kind", "probs"]):
        for command in ("metrics", "inspect"):
            assert main([command, name, *way, "-q"]) == Exit.REFUSED
            assert "predicted class" in capsys.readouterr().err


@pytest.mark.regression("1.10")
def test_verdicts_as_labels_of_one_score_are_refused() -> None:
    p, y = RNG.random(50), RNG.integers(0, 2, 50)
    np.savez("a.npz", prob=p, correct=y)
    with pytest.raises(InputError, match="whether a prediction was right"):
        recorded_outputs.read("a.npz", labels="correct")
    np.save("correct.npy", y)
    np.savez("b.npz", prob=p)
    with pytest.raises(InputError, match="whether a prediction was right"):
        recorded_outputs.read("b.npz", labels="correct.npy")
    np.savez("c.npz", probs=np.eye(4)[Y] * 0.6 + 0.1, correct=Y)  # the correct class: fine
    assert recorded_outputs.read("c.npz", labels="correct").k == 4
    np.savez("d.npz", prob=p, label=y)
    assert recorded_outputs.read("d.npz").k == 2


@pytest.mark.regression("4 ragged JSONL row")
@pytest.mark.parametrize(("odd", "more"), [(0, 1), (7, 1), (99, -1), (50, 3)])
@pytest.mark.parametrize("key", ["logits", "probs"])
def test_one_ragged_row_is_named(odd: int, more: int, key: str) -> None:
    rows = [{key: [1 / 3, 1 / 3, 1 / 3], "label": i % 3} for i in range(100)]
    rows[odd][key] = [1 / (3 + more)] * (3 + more)
    rows[odd]["label"] = 0
    with pytest.raises(InputError, match=rf"row {odd} .*has {3 + more} numbers in '{key}', 99 of 100 rows have 3"):
        recorded_outputs.read(lines("a.jsonl", rows))


@pytest.mark.regression("4 ragged JSONL row")
def test_rows_of_choices_that_differ_say_so() -> None:
    rows = [{"probs": [1 / k] * k, "label": 0} for k in (2, 3, 4, 5)]
    found = recorded_outputs.read(lines("a.jsonl", rows))
    assert "2 to 5 numbers per row in 'probs': the others have probability 0" in found.notes


@pytest.mark.regression("4 1_0 is read as 10")
@pytest.mark.parametrize("cell", ["1_0", "0.1_5", "1_0e1", "1e1_0"])
def test_numbers_are_digits_in_files(cell: str, capsys: Any) -> None:
    rows = "\n".join("0.5,0.25,0.25,1,2.0" for _ in range(20))
    for at, name in enumerate(["logit_0", "logit_1", "logit_2", "label", "w"]):
        row = ["0.5", "0.25", "0.25", "1", "2.0"]
        row[at] = cell
        Path("a.csv").write_text("logit_0,logit_1,logit_2,label,w\n" + rows + "\n" + ",".join(row))
        assert main(["metrics", "a.csv", "--weights", "w", "-q"]) == Exit.REFUSED, name
    Path("d.csv").write_text(f"a,b,label\n1,2,0\n{cell},3,1\n")
    with pytest.raises(InputError, match="not a number"):
        dataset.load("d.csv")
    Path("d.csv").write_text(f"a,b,label\n1,2,0\n1,3,{cell}\n")
    assert dataset.load("d.csv").classes is not None  # a name, no number
    with pytest.raises(InputError):
        recorded_outputs.read(
            lines("a.jsonl", [question(0, [-1, -2], "0", []) | {"filtered_resps": [[cell, 0], ["2", 0]]}])
        )
    with pytest.raises(InputError):
        recorded_outputs.read(lines("b.jsonl", [{"logits": [1, cell], "label": 0}]))
    np.save("a.npy", Z)
    Path("y.csv").write_text(f"label\n{cell}\n" + "1\n" * 299)
    with pytest.raises(InputError):
        recorded_outputs.read("a.npy", labels="y.csv")


@pytest.mark.regression("4 1_0 is read as 10")
@pytest.mark.parametrize("value", [True, "1", None, [1], {"a": 1}])
@pytest.mark.parametrize("at", [0, 2])
def test_scores_in_json_are_numbers(value: Any, at: int) -> None:
    row: list[Any] = [1.0, 2.0, 3.0]
    row[at] = value
    with pytest.raises(InputError):
        recorded_outputs.read(lines("a.jsonl", [{"logits": [1, 2, 3], "label": 0}, {"logits": row, "label": 1}]))


@pytest.mark.regression("4 1_0 is read as 10")
@pytest.mark.parametrize(
    "arguments",
    [
        ["--label-base", "1_0"],
        ["--ignore-label", "1_00"],
        ["--max", "ece=0.0_5"],
        ["--bins", "1_5"],
        ["--alpha", "0.0_5"],
    ],
)
def test_numbers_are_digits_in_options(arguments: list[str], capsys: Any) -> None:
    np.savez("a.npz", logits=Z, labels=Y)
    assert main(["check", "a.npz", "--max", "ece=0.9", *arguments]) == Exit.USAGE
    capsys.readouterr()
    from calibcli.networks.checkpoint.factory import _option
    from calibcli.networks.dataset.rows import numbers

    assert _option("depth=1_0", "x") == ("depth", "1_0")
    for text in ("0.5,0_5", "nan", "inf,1", "1e999"):
        with pytest.raises(UsageError, match="--mean"):
            numbers(text, "mean")


@pytest.mark.regression("4 huge --label-base")
@pytest.mark.parametrize("value", [10**18, 10**30, -(10**25), 10**400])
def test_huge_labels(value: int, capsys: Any) -> None:
    np.savez("a.npz", logits=Z, labels=Y)
    for option in ("--label-base", "--ignore-label"):
        assert main(["metrics", "a.npz", f"{option}={value}"]) == Exit.USAGE
        assert "Error" not in capsys.readouterr().err
    with pytest.raises(UsageError, match="--label-base"):
        of_arrays(Z, Y, label_base=value)
    Path("a.csv").write_text(f"logit_0,logit_1,label\n1,2,{value}\n1,2,0\n")
    with pytest.raises(InputError):
        recorded_outputs.read("a.csv")


@pytest.mark.regression("4 boolean labels")
@pytest.mark.parametrize("k", [2, 3, 4, 100])
def test_boolean_labels_are_of_two_classes(k: int) -> None:
    z, y = RNG.normal(size=(50, k)), RNG.random(50) < 0.5
    np.savez("a.npz", logits=z, labels=y)
    if k == 2:
        np.testing.assert_array_equal(recorded_outputs.read("a.npz").labels, y.astype(int))
        return
    for labels in (y, y[:, None]):
        np.savez("a.npz", logits=z, labels=labels)
        with pytest.raises(InputError, match=f"true or false, there are {k} classes"):
            recorded_outputs.read("a.npz")
        with pytest.raises(InputError, match="true or false"):
            of_arrays(z, labels)
    hot = np.eye(k, dtype=bool)[RNG.integers(0, k, 50)]
    assert of_arrays(z, hot).k == k


@pytest.mark.regression("4 weights 1e308")
@pytest.mark.parametrize("w", [1e308, 1e200, 1e101, 1e-101, 5e-324])
@pytest.mark.parametrize("kind", ["sampling", "count"])
@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_weights_whose_squares_are_no_numbers(w: float, kind: str) -> None:
    weights = np.ones(300)
    weights[7] = w
    with pytest.raises(InputError, match=r"weights 'weights'|not a count"):
        of_arrays(Z, Y, weights=weights, weight_kind=kind)
    with pytest.raises(InputError):
        of_arrays(Z, Y, weights=np.full(300, w), weight_kind=kind)


@pytest.mark.regression("4 weights 1e308")
def test_weights_of_any_sensible_scale() -> None:
    weights = RNG.uniform(0.5, 2, 300)
    weights[:3] = 0
    for scale in (1e-90, 1.0, 1e90):
        assert of_arrays(Z, Y, weights=weights * scale).weights is not None
    with pytest.raises(InputError, match=r"count 3e\+16"):
        of_arrays(Z, Y, weights=np.full(300, 1e14), weight_kind="count")


def rounded(n: int, seed: int, certain: float, decimals: int = 2) -> Predictions:
    """A saturated model whose probabilities were written with two decimals: many rows tie."""
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(n, 3)) * 2
    z[rng.random(n) < certain] *= 100
    p = np.exp(z - z.max(axis=1, keepdims=True))
    p = (p / p.sum(axis=1, keepdims=True)).round(decimals)
    p[np.arange(n), p.argmax(axis=1)] += 1 - p.sum(axis=1)
    return of_arrays(p, rng.integers(0, 3, n))


@pytest.mark.regression("1.20")
@pytest.mark.parametrize("n", [300, 1000, 5000])
@pytest.mark.parametrize("certain", [0.0, 0.7])
@pytest.mark.one_in(5)
def test_random_splits_of_tied_rows_are_not_refused(n: int, certain: float) -> None:
    """Nor is anything said of them but by chance."""
    noted, tried = 0, 0
    for seed in range(60 if n < 5000 else 20):
        both = rounded(2 * n, seed, certain)
        order = np.random.default_rng(seed).permutation(2 * n)
        mask = np.zeros(2 * n, bool)
        mask[order[:n]] = True
        text = refuse_overlap(both.take(mask), both.take(~mask))
        tried += 1
        noted += text != ""
    assert noted <= 0.1 * tried


@pytest.mark.regression("1.20")
@pytest.mark.parametrize("certain", [0.0, 0.7])
def test_rows_that_were_fitted_on_are_refused_among_ties(certain: float) -> None:
    both = rounded(4000, 3, certain)
    fit, test = np.arange(4000) < 2000, np.arange(4000) >= 1000
    with pytest.raises(InputError, match="are expected by chance") as caught:
        refuse_overlap(both.take(fit), both.take(test))
    share, chance = map(float, re.findall(r"([\d.]+)%", caught.value.problem))
    assert share > chance + 1


@pytest.mark.regression("1.20")
def test_certain_rows_tell_nothing() -> None:
    one_hot = np.eye(5)[RNG.integers(0, 5, 2000)]
    a, b = of_arrays(one_hot[:1000], one_hot[:1000].argmax(1)), of_arrays(one_hot[1000:], one_hot[1000:].argmax(1))
    assert refuse_overlap(a, b) == ""
    sure = RNG.normal(size=(2000, 5)) * 50  # certain, but every row its own
    p, y = of_arrays(sure, sure.argmax(1)), sure.argmax(1)
    with pytest.raises(InputError, match=r"100\.0%"):
        refuse_overlap(p, of_arrays(sure[:500], y[:500]))
