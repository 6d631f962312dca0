"""Evaluations of language models: the labels and scores of each harness, and its own verdicts held against them."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import evals_written as written
import numpy as np
import pytest
from evals_written import LETTERS, Question

import calibcli
from calibcli.cli.app import main
from calibcli.core.errors import Exit, InputError
from calibcli.scores.predictions import Predictions

ASKED = written.questions()
EVEN = written.questions(ragged=False)


def save(path: Path, content: bytes | list[dict[str, Any]]) -> Path:
    path.write_bytes(content if isinstance(content, bytes) else written.lines(content))
    return path


def scored(found: Predictions, wanted: list[list[float]], tolerance: float = 1e-12) -> None:
    """The scores of each row up to a constant, and nothing for choices that a question has not."""
    for i, row in enumerate(wanted):
        z = found.logits[i].astype(float)
        assert (z[len(row) :] == -np.inf).all()
        np.testing.assert_allclose(z[: len(row)] - z[0], np.array(row) - row[0], atol=tolerance)


def labelled(found: Predictions, asked: list[Question]) -> None:
    assert found.labels.tolist() == [q.right for q in asked]


@pytest.mark.parametrize("target", ["index", "text", "letter"])
def test_lm_eval(tmp_path: Path, target: str) -> None:
    found = calibcli.read(save(tmp_path / "a.jsonl", written.lm_eval(ASKED, target=target)))
    labelled(found, ASKED)
    scored(found, [q.scores for q in ASKED])
    assert found.record.evaluation["scores are"].endswith("(--lm-norm sum)")
    assert any("3 to 5 choices" in note for note in found.notes)


@pytest.mark.parametrize("delimiter", [" ", "", "\n"])
@pytest.mark.parametrize("norm", ["char", "byte", "pmi"])
def test_the_normalisations_are_those_of_the_harness(tmp_path: Path, norm: str, delimiter: str) -> None:
    """Lengths without the delimiter; what stands before the text in every choice is one."""
    free = lambda i, k: -1.0 - (7 * i + k) % 11  # noqa: E731
    rows = written.lm_eval(ASKED, delimiter, free=free if norm == "pmi" else None)
    found = calibcli.read(save(tmp_path / "a.jsonl", rows), lm_norm=norm)
    own: dict[str, Callable[[int, Question], list[float]]] = {
        "char": lambda i, q: [s / len(t) for s, t in zip(q.scores, q.texts)],
        "byte": lambda i, q: [s / len(t.encode()) for s, t in zip(q.scores, q.texts)],
        "pmi": lambda i, q: [s - free(i, k) for k, s in enumerate(q.scores)],
    }
    scored(found, [own[norm](i, q) for i, q in enumerate(ASKED)])
    labelled(found, ASKED)
    assert f"--lm-norm {norm}" in found.record.evaluation["scores are"]


def test_choices_that_begin_with_a_space_of_their_own(tmp_path: Path) -> None:
    """Without a delimiter the space counts: the verdict of acc_norm tells."""
    asked = [Question(q.scores, [f" {t}" for t in q.texts], q.right) for q in ASKED]
    found = calibcli.read(save(tmp_path / "a.jsonl", written.lm_eval(asked, "")), lm_norm="char")
    scored(found, [[s / len(t) for s, t in zip(q.scores, q.texts)] for q in asked])


def test_mutual_information_is_read_as_its_first_half(tmp_path: Path) -> None:
    found = calibcli.read(save(tmp_path / "a.jsonl", written.lm_eval(ASKED, free=lambda i, k: -float(k))))
    scored(found, [q.scores for q in ASKED])
    rows = written.lm_eval(ASKED)
    with pytest.raises(InputError, match="without the question"):
        calibcli.read(save(tmp_path / "b.jsonl", rows), lm_norm="pmi")


def test_winogrande_takes_its_labels_from_the_verdicts(tmp_path: Path) -> None:
    rows, labels = written.winogrande()
    found = calibcli.read(save(tmp_path / "a.jsonl", rows))
    assert found.labels.tolist() == labels
    assert any("label follows from acc" in note for note in found.notes)
    for row in rows:
        del row["acc"]
    with pytest.raises(InputError, match="does not say which of two choices is right"):
        calibcli.read(save(tmp_path / "b.jsonl", rows))
    for row in rows:  # four contexts, one continuation
        row["arguments"] = {f"gen_args_{j}": {"arg_0": str(j), "arg_1": " was big."} for j in range(4)}
        row["filtered_resps"] = [[str(-j), "False"] for j in range(4)]
        row["acc"] = 1.0
    with pytest.raises(InputError, match="every choice continues with the target"):
        calibcli.read(save(tmp_path / "c.jsonl", rows))


@pytest.mark.parametrize("order", [("no", "yes"), ("yes", "no")])
def test_a_truth_value_is_the_number_that_the_harness_takes_it_for(tmp_path: Path, order: tuple[str, str]) -> None:
    rows = []
    for i in range(40):
        scores, right = [-float(i % 7), -float(i % 5) - 0.5], i % 2
        rows += written.lm_eval([Question(scores, list(order), right)])
        rows[-1] |= {"target": str(bool(right)), "doc_id": i}
    assert calibcli.read(save(tmp_path / "a.jsonl", rows)).labels.tolist() == [i % 2 for i in range(40)]


def test_a_number_that_is_the_text_of_another_choice(tmp_path: Path) -> None:
    """Choices 1 to 4, targets as texts: read as numbers they contradict the verdicts, read as texts they agree."""
    asked = [Question(q.scores, list("1234"), q.right) for q in EVEN]
    found = calibcli.read(save(tmp_path / "a.jsonl", written.lm_eval(asked, target="text")))
    labelled(found, asked)
    assert any("texts of choices" in note for note in found.notes)
    labelled(calibcli.read(save(tmp_path / "b.jsonl", written.lm_eval(asked))), asked)


def test_a_share_of_right_choices_is_refused(tmp_path: Path) -> None:
    rows = written.lm_eval(ASKED)
    rows[3]["acc"] = 0.37
    with pytest.raises(InputError, match=r"row 3 of .* has acc 0.37, a share: several choices are right"):
        calibcli.read(save(tmp_path / "a.jsonl", rows))
    rows = written.lm_eval(ASKED)
    rows[0]["target"] = "[0, 2]"
    with pytest.raises(InputError, match="several right choices"):
        calibcli.read(save(tmp_path / "b.jsonl", rows))


def test_a_task_that_reports_acc_norm_alone_says_so(tmp_path: Path) -> None:
    rows = written.lm_eval(ASKED)
    for row in rows:
        row["metrics"] = ["acc_norm"]
        del row["acc"], row["acc_bytes"]
    path = save(tmp_path / "a.jsonl", rows)
    assert any("acc_norm alone" in note for note in calibcli.read(path).notes)
    assert not any("acc_norm alone" in note for note in calibcli.read(path, lm_norm="sum").notes)
    rows[5]["acc_norm"] = 1 - rows[5]["acc_norm"]
    with pytest.raises(InputError, match=r"row 5 of .* has acc_norm"):  # also where another normalisation is read
        calibcli.read(save(tmp_path / "b.jsonl", rows))


def in_eval(rows: list[dict[str, Any]]) -> bytes:
    return written.eval_log(rows)


TAMPERED: dict[str, tuple[str, Callable[[], list[dict[str, Any]]], Callable[[Any], bytes], Callable[[Any], None]]] = {
    "lm-eval target": ("a.jsonl", lambda: written.lm_eval(ASKED), written.lines, lambda r: _move(r)),
    "lm-eval acc": ("a.jsonl", lambda: written.lm_eval(ASKED), written.lines, lambda r: r.update(acc=1 - r["acc"])),
    "lm-eval score": ("a.jsonl", lambda: written.lm_eval(ASKED), written.lines, lambda r: _raise(r)),
    "mutual information": ("a.jsonl", lambda: written.lm_eval(ASKED, free=lambda i, k: -float(k)), written.lines,
                           lambda r: r.update(acc_mutual_info=1 - r["acc_mutual_info"])),
    "inspect target": ("a.eval", lambda: written.inspect_samples(ASKED), in_eval, lambda r: _retarget(r)),
    "inspect score": ("a.eval", lambda: written.inspect_samples(ASKED), in_eval, lambda r: _flip(r)),
    "inspect json": ("a.json", lambda: written.inspect_samples(ASKED), written.json_log, lambda r: _flip(r)),
}  # fmt: skip


def _move(row: dict[str, Any]) -> None:
    """To a choice that makes the verdict wrong; from one wrong choice to another does not show."""
    scores = [float(answer[0]) for answer in row["filtered_resps"]]
    best = scores.index(max(scores))
    row["target"] = str(best if not row["acc"] else (best + 1) % len(scores))


def _raise(row: dict[str, Any]) -> None:
    answers, right = row["filtered_resps"], int(row["target"])
    answers[(right + 1) % len(answers) if row["acc"] else right][0] = "5.0"


def _flip(sample: dict[str, Any]) -> None:
    one = sample["scores"]["choice"]
    one["value"] = {"C": "I", "I": "C"}[one["value"]]


def _retarget(sample: dict[str, Any]) -> None:
    """So that the verdict no longer holds."""
    answer = sample["scores"]["choice"]["answer"]
    sample["target"] = answer if sample["target"] != answer else "B" if answer == "A" else "A"


@pytest.mark.parametrize("what", TAMPERED)
@pytest.mark.parametrize("row", [0, 17, len(ASKED) - 1])
def test_one_changed_row_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str], what: str, row: int) -> None:
    name, make, pack, change = TAMPERED[what]
    rows = make()
    path = save(tmp_path / name, pack(rows))
    assert main(["metrics", str(path), "-m", "accuracy", "-q"]) == Exit.OK
    change(rows[row])
    capsys.readouterr()
    assert main(["metrics", str(save(path, pack(rows))), "-m", "accuracy", "-q"]) == Exit.REFUSED
    out, err = capsys.readouterr()
    assert out == ""
    assert f"row {row} of" in err or f"('q{row}')" in err


def test_ties_may_be_either(tmp_path: Path) -> None:
    """Scores within 1e-6 are in either order; those beyond are not."""
    for gap, refused in ((5e-7, False), (5e-6, True)):
        rows = written.lm_eval([Question([-1.0, -1.0 + gap, -9.0], ["a", "b", "c"], 0)] * 8)
        for row in rows:
            row |= {"acc": 1.0, "acc_norm": 1.0, "acc_bytes": 1.0}
        path = save(tmp_path / "a.jsonl", rows)
        if refused:
            with pytest.raises(InputError, match="row 0 of"):
                calibcli.read(path)
        else:
            assert calibcli.read(path).labels.tolist() == [0] * 8


def test_values_inside_a_question_are_slices_and_groups(tmp_path: Path) -> None:
    path = save(tmp_path / "a.jsonl", written.lm_eval(ASKED))
    found = calibcli.read(path, by=["doc.subject", "doc.meta.level"], group="doc.subject")
    assert found.slices["doc.subject"].tolist() == [written.SUBJECTS[i % 3] for i in range(len(ASKED))]
    assert found.slices["doc.meta.level"].tolist() == [str(i % 2) for i in range(len(ASKED))]
    assert found.groups is not None
    assert len(set(found.groups.tolist())) == 3
    with pytest.raises(InputError, match="no such array"):
        calibcli.read(path, by=["doc.question"])  # too long for a slice
    plain = [{"logits": q.scores, "label": q.right, "meta": {"site": {"x": i % 2}}} for i, q in enumerate(EVEN)]
    found = calibcli.read(save(tmp_path / "b.jsonl", plain), by=["meta.site.x"])
    assert found.slices["meta.site.x"].tolist() == [str(i % 2) for i in range(len(EVEN))]
    with pytest.raises(InputError, match="no such array"):
        calibcli.read(tmp_path / "b.jsonl", by=["meta.site.y"])


def test_generated_answers_name_the_way_of_confidences(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"doc_id": i, "target": "4", "filtered_resps": ["4"], "exact_match": 1.0} for i in range(5)]
    assert main(["metrics", str(save(tmp_path / "a.jsonl", rows))]) == Exit.REFUSED
    assert "--confidence KEY --correct KEY" in capsys.readouterr().err
    for row in rows:
        row["doc"] = {"stated_confidence": 0.7}
    assert main(["inspect", str(save(tmp_path / "b.jsonl", rows))]) == Exit.REFUSED
    assert "--confidence doc.stated_confidence --correct exact_match" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("a.eval", lambda samples: written.eval_log(samples)),
        ("stored.eval", lambda samples: written.eval_log(samples, 0)),
        ("a.json", lambda samples: written.json_log(samples)),
        ("no_suffix", lambda samples: written.eval_log(samples)),
        ("other.txt", lambda samples: written.json_log(samples)),
    ],
)
def test_inspect(tmp_path: Path, name: str, make: Callable[[Any], bytes]) -> None:
    found = calibcli.read(save(tmp_path / name, make(written.inspect_samples(ASKED))), by=["metadata.subject"])
    labelled(found, ASKED)
    scored(found, [[s / 5 for s in q.scores] for q in ASKED], 1e-6)
    assert found.ids is not None
    assert found.ids.tolist() == [f"q{i}" for i in range(len(ASKED))]
    assert found.slices["metadata.subject"][1] == written.SUBJECTS[1]
    assert found.classes == list(LETTERS)
    assert float(found.record.evaluation["mass on the choices"]) == pytest.approx(0.97, abs=1e-4)


def test_correct_is_not_the_third_choice(tmp_path: Path) -> None:
    """Every answer is A and right, scored "C"."""
    samples = written.inspect_samples([Question([-1.0, -2.0, -3.0], ["x", "y", "z"], 0)] * 5)
    for i, sample in enumerate(samples):
        sample["id"] = f"q{i}"
    assert calibcli.read(save(tmp_path / "a.eval", written.eval_log(samples))).labels.tolist() == [0] * 5


def test_epochs_are_draws_of_one_id(tmp_path: Path) -> None:
    found = calibcli.read(save(tmp_path / "a.eval", written.eval_log(written.inspect_samples(ASKED[:20], epochs=3))))
    assert found.n == 60
    assert found.groups is not None
    assert len(set(found.groups.tolist())) == 20
    assert found.ids is not None
    assert len(set(found.ids.tolist())) == 60
    assert any("3 epochs of 20 ids" in note for note in found.notes)


def test_answers_that_were_drawn_are_told_from_changed_numbers(tmp_path: Path) -> None:
    """Answers less probable than another are noted where draws explain them, and refused where they do not."""
    flat = [Question([-1.0, -1.1, -1.2, -1.3], list("wxyz"), i % 4) for i in range(40)]
    samples = written.inspect_samples(flat)
    for i, sample in enumerate(samples):
        given = LETTERS[i % 4]
        sample["output"]["choices"][0]["logprobs"]["content"][-1] = written.token(given, written.distribution(flat[i]))
        sample["scores"]["choice"] = {"value": "C", "answer": given}
    found = calibcli.read(save(tmp_path / "a.eval", written.eval_log(samples)))
    assert any("answers were drawn: 30 of 40" in note for note in found.notes)
    cold = {**written.HEADER, "plan": {"config": {"temperature": 0}}}
    with pytest.raises(InputError, match=r"row 1 of .* although the temperature is 0"):
        calibcli.read(save(tmp_path / "b.eval", written.eval_log(samples, header=cold)))
    sure = [Question([-1.0, -60.0, -60.0, -60.0], list("wxyz"), 0) for _ in range(40)]
    samples = written.inspect_samples(sure)
    for sample, q in zip(samples[:5], sure):
        sample["output"]["choices"][0]["logprobs"]["content"][-1] = written.token("B", written.distribution(q))
        sample["scores"]["choice"] = {"value": "I", "answer": "B"}
    with pytest.raises(InputError, match=r"row 0 of .* are expected if answers were drawn"):
        calibcli.read(save(tmp_path / "c.eval", written.eval_log(samples)))


def test_shuffled_letters_are_refused(tmp_path: Path) -> None:
    """Inspect puts the letters of answers back, not those of tokens."""
    samples = written.inspect_samples(ASKED)
    samples[4]["scores"]["choice"]["answer"] = "B" if samples[4]["scores"]["choice"]["answer"] == "A" else "A"
    samples[4]["output"]["choices"][0]["logprobs"]["content"][-1]["top_logprobs"] = []
    with pytest.raises(InputError, match=r"sample 4 \('q4'\).*shuffled"):
        calibcli.read(save(tmp_path / "a.eval", written.eval_log(samples)))


def test_a_stated_confidence_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    samples = written.inspect_samples(ASKED)
    for sample in samples:
        del sample["output"]["choices"][0]["logprobs"]
        sample["scores"] = {"verb": {"value": "C", "answer": "4", "metadata": {"confidence": 0.6}}}
    assert main(["metrics", str(save(tmp_path / "a.eval", written.eval_log(samples)))]) == Exit.REFUSED
    assert "--confidence scores.verb.metadata.confidence --correct scores.verb.value" in capsys.readouterr().err


@pytest.mark.parametrize("make", [written.chats, written.completions])
def test_chats(tmp_path: Path, make: Callable[[Any], list[dict[str, Any]]]) -> None:
    path = save(tmp_path / "a.jsonl", make(EVEN))
    found = calibcli.read(path, choices="A,B,C,D")
    labelled(found, EVEN)
    scored(found, [[s / 5 for s in q.scores] for q in EVEN], 1e-6)
    own = save(tmp_path / "own.jsonl", [row | {"logprobs": 0.5} for row in make(EVEN)])  # a key of the user's own
    np.testing.assert_array_equal(calibcli.read(own, choices="A,B,C,D").logits, found.logits)
    assert found.record.evaluation["mass on the choices"] == "0.9700"
    assert found.record.evaluation["rows with a censored choice"] == "0.0000"
    with pytest.raises(InputError, match="does not say which of them are the choices") as error:
        calibcli.read(path)
    assert "--choices A,B,C,D" in error.value.fix


def test_a_batch_has_its_labels_elsewhere(tmp_path: Path) -> None:
    path = save(tmp_path / "batch.jsonl", written.chats(EVEN, batch=True))
    (tmp_path / "y.csv").write_text("label\n" + "".join(f"{LETTERS[q.right]}\n" for q in EVEN))
    found = calibcli.read(path, choices=list("ABCD"), labels=str(tmp_path / "y.csv"))
    labelled(found, EVEN)
    assert found.ids is not None
    assert found.ids[3] == "r3"
    with pytest.raises(InputError, match="no labels"):
        calibcli.read(path, choices="A,B,C,D")


def test_a_choice_that_is_not_listed_is_an_upper_bound(tmp_path: Path) -> None:
    """In one row of a hundred; two are refused."""
    many = written.questions(200, ragged=False)
    rows = written.chats(many)

    def lose(i: int) -> int:
        top = rows[i]["choices"][0]["logprobs"]["content"][0]["top_logprobs"]
        worst = min(range(4), key=lambda k: many[i].scores[k])
        kept = [one for one in top if one["token"].strip() != LETTERS[worst]]
        rows[i]["choices"][0]["logprobs"]["content"][0]["top_logprobs"] = kept
        return worst

    lost = [lose(i) for i in (3, 9)]
    found = calibcli.read(save(tmp_path / "a.jsonl", rows), choices="A,B,C,D")
    kept = [v for t, v in written.distribution(many[3]).items() if t.strip() != LETTERS[lost[0]]]
    z = found.logits[3] - found.logits[3].max()
    whole = {letter: math.log(math.exp(a) + math.exp(b)) for letter, a, b in _pairs(many[3])}
    assert z[lost[0]] == pytest.approx(min(kept) - max(v for k, v in whole.items() if k != LETTERS[lost[0]]), abs=1e-6)
    assert found.record.evaluation["rows with a censored choice"] == "0.0100"
    assert any("an upper bound" in note for note in found.notes)
    lose(50)
    path = save(tmp_path / "b.jsonl", rows)
    with pytest.raises(InputError, match=r"3 of 200 rows .*first: row 3") as error:
        calibcli.read(path, choices="A,B,C,D")
    assert "--unlisted bound" in error.value.fix
    bound = calibcli.read(path, choices="A,B,C,D", unlisted="bound")
    assert bound.n == 200
    assert any("3 of 200 rows" in note and "an upper bound" in note for note in bound.notes)
    np.testing.assert_allclose(bound.logits[[3, 9]], found.logits[[3, 9]])
    left = calibcli.read(path, choices="A,B,C,D", unlisted="drop")
    assert any("3 of 200 rows" in note and "left out" in note for note in left.notes)
    np.testing.assert_allclose(left.logits, np.delete(bound.logits, [3, 9, 50], axis=0))
    assert left.labels.tolist() == np.delete(bound.labels, [3, 9, 50]).tolist()
    for row in rows:
        row["choices"][0]["logprobs"]["content"][0]["top_logprobs"] = []
    path = save(tmp_path / "c.jsonl", rows)
    with pytest.raises(InputError, match=r"every row of .*c.jsonl lacks a choice"):
        calibcli.read(path, choices="A,B,C,D", unlisted="drop")
    np.savez(tmp_path / "d.npz", logits=bound.logits, labels=bound.labels)
    with pytest.raises(InputError, match="--unlisted is for log-probabilities of tokens"):
        calibcli.read(tmp_path / "d.npz", unlisted="drop")


def test_an_inspect_log_with_unlisted_choices(tmp_path: Path) -> None:
    samples = written.inspect_samples(written.questions(60, ragged=False))
    for i in (4, 9):
        content = samples[i]["output"]["choices"][0]["logprobs"]["content"][-1]
        content["top_logprobs"] = [one for one in content["top_logprobs"] if one["token"] == content["token"]]
    (tmp_path / "log.json").write_bytes(written.json_log(samples))
    with pytest.raises(InputError, match="2 of 60 rows"):
        calibcli.read(tmp_path / "log.json")
    assert calibcli.read(tmp_path / "log.json", unlisted="bound").n == 60
    assert calibcli.read(tmp_path / "log.json", unlisted="drop").n == 58


def test_a_guess_has_as_many_choices_as_its_row(tmp_path: Path) -> None:
    """Of three to five choices a guess has an NLL of 1.34, not ln 5 = 1.61, and is right in .26 of the rows."""
    rng = np.random.default_rng(0)
    rows = [{"logits": (2 * rng.normal(size=3 + i % 3)).tolist(), "label": int(rng.integers(0, 3))} for i in range(900)]
    path = save(tmp_path / "varied.jsonl", rows)
    even = (math.log(3) + math.log(4) + math.log(5)) / 3
    found = calibcli.measure(path)
    assert found.facts["guess_nll"] == pytest.approx(even)
    assert found.facts["guess_accuracy"] == pytest.approx((1 / 3 + 1 / 4 + 1 / 5) / 3)
    assert f"worse than that of a guess ({even:.3g})" in found.facts["headline"]
    (tmp_path / "three.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows[::3]))
    tasks = calibcli.read([path, tmp_path / "three.jsonl"], tasks=True)
    assert tasks.record.guess_nll == pytest.approx((900 * even + 300 * math.log(3)) / 1200)


def _pairs(q: Question) -> list[tuple[str, float, float]]:
    among = written.distribution(q)
    return [(letter, among[letter], among[f" {letter}"]) for letter in LETTERS[: len(q.scores)]]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda row: row["choices"][0].update(logprobs=None), "named none of the choices"),
        (lambda row: row["choices"].append(row["choices"][0]), "2 answers"),
        (lambda row: row["choices"][0]["logprobs"]["content"][0].update(logprob=0.5), "cannot be read"),
        (lambda row: row["choices"][0]["logprobs"]["content"][0].update(logprob=-9.5), "cannot be read"),
        (lambda row: row["choices"][0]["logprobs"]["content"][0].update(logprob="x"), "cannot be read"),
        (lambda row: row["choices"][0]["logprobs"].update(content=[3]), "cannot be read"),
        (lambda row: row.pop("target"), "has no 'target'"),
        (lambda row: row.pop("choices"), "holds no response"),
    ],
)
def test_odd_answers_are_refused_by_row(tmp_path: Path, change: Callable[[Any], Any], words: str) -> None:
    rows = written.chats(EVEN)
    change(rows[7])
    with pytest.raises(InputError, match=words):
        calibcli.read(save(tmp_path / "a.jsonl", rows), choices="A,B,C,D")


def test_requests_that_failed_are_counted(tmp_path: Path) -> None:
    rows = written.chats(EVEN, batch=True)
    rows[2] |= {"response": {"status_code": 500, "body": {}}, "error": {"code": "server"}}
    np.save(tmp_path / "y.npy", np.array([q.right for i, q in enumerate(EVEN) if i != 2]))
    found = calibcli.read(save(tmp_path / "a.jsonl", rows), choices="A,B,C,D", labels=str(tmp_path / "y.npy"))
    labelled(found, [q for i, q in enumerate(EVEN) if i != 2])
    assert "1 requests failed: left out" in found.notes


@pytest.mark.parametrize(("flag", "value"), [("lm_norm", "char"), ("choices", "A,B,C,D")])
def test_what_has_no_effect_is_refused(tmp_path: Path, flag: str, value: str) -> None:
    other = written.chats(EVEN) if flag == "lm_norm" else written.lm_eval(ASKED)
    for name, content in (("a.json", written.table(EVEN)), ("a.jsonl", written.lines(other))):
        path = save(tmp_path / name, content)
        how = {flag: value} | ({"choices": "A,B,C,D"} if name == "a.jsonl" and flag == "lm_norm" else {})
        with pytest.raises(InputError, match=f"--{flag.replace('_', '-')} is for"):
            calibcli.read(path, **how)


@pytest.mark.parametrize("choices", ["A", "A,A", "A,,B"])
def test_choices_are_different_ones(tmp_path: Path, capsys: pytest.CaptureFixture[str], choices: str) -> None:
    path = save(tmp_path / "a.jsonl", written.chats(EVEN))
    assert main(["metrics", str(path), "--choices", choices]) == Exit.USAGE
    assert "--choices A,B,C,D" in capsys.readouterr().err


def test_tables_of_trackers(tmp_path: Path) -> None:
    for name in ("a.table.json", "a.txt"):
        found = calibcli.read(save(tmp_path / name, written.table(EVEN)), by=["subject"])
        labelled(found, EVEN)
        scored(found, [q.scores for q in EVEN])
        assert found.slices["subject"][2] == written.SUBJECTS[2]
    rows = [[q.scores, q.right, q.texts, None] for q in EVEN]
    about = {"columns": ["logits", "label", "texts", "empty"], "index": list(range(len(rows))), "data": rows}
    found = calibcli.read(save(tmp_path / "b.json", json.dumps(about, indent=1).encode()))
    scored(found, [q.scores for q in EVEN])
    for broken, words in (
        ({"columns": ["a"], "data": [[1], [1, 2]]}, "row 1 of"),
        ({"columns": ["a"], "data": []}, "no lists"),
    ):
        with pytest.raises(InputError, match=words):
            calibcli.read(save(tmp_path / "c.json", json.dumps(broken).encode()))


def test_tasks_in_one_call(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Pooled numbers are those of all rows, the mean counts every task once; tasks differ in their choices."""
    own = {"samples_arc_2026-11-22T10-00-00.1.jsonl": written.lines(written.lm_eval(ASKED)),
           "mcq.eval": written.eval_log(written.inspect_samples(EVEN[:20])),
           "wino.jsonl": written.lines(written.winogrande()[0])}  # fmt: skip
    paths = [save(tmp_path / name, content) for name, content in own.items()]
    names = ["arc", "mcq", "wino"]
    alone = [calibcli.measure(path, None, "accuracy", "nll", "ece") for path in paths]
    result = calibcli.measure(paths, None, "accuracy", "nll", "ece", tasks=True)
    sizes = [len(ASKED), 20, 40]
    for metric in ("accuracy", "nll"):
        values = [one[metric].value for one in alone]
        for name, value in zip(names, values):
            assert result[metric, f"task={name}"].value == pytest.approx(value, rel=1e-9)
        pooled = sum(v * n for v, n in zip(values, sizes)) / sum(sizes)
        assert result[metric].value == pytest.approx(pooled, rel=1e-9)
        mean = result[metric, "mean of tasks"]
        assert mean.value == pytest.approx(np.mean(values), rel=1e-9)
        errors = [one[metric].se for one in alone]
        assert mean.se == pytest.approx(math.sqrt(sum(s * s for s in errors)) / 3, rel=1e-9)
        assert mean.low < mean.value < mean.high
    mean = result["ece", "mean of tasks"]
    assert (mean.low, mean.high) == (None, None)
    assert mean.reason
    [table] = [table for table in result.tables if table.name == "by_task"]
    assert [row[0] for row in table.rows] == [*names, "pooled", "mean of tasks"]
    assert table.rows[3][1:4] == [sum(sizes), result["accuracy"].value, result["nll"].value]
    assert main(["metrics", *map(str, paths)]) == Exit.REFUSED
    assert "--tasks" in capsys.readouterr().err
    assert main(["check", *map(str, paths[:1]), "--tasks", "--max", "ece=0.99", "-q"]) in (0, 3, 5)
    found = calibcli.read(paths, tasks=True)
    assert found.k == 5
    assert found.ids is not None
    assert found.ids[0] == "arc/0"
    assert found.ids[len(ASKED)] == "mcq/q0"


def test_tasks_have_groups_of_their_own(tmp_path: Path) -> None:
    """The draws of `q0` in one task are no draws of `q0` in another, and a row without a group is one."""
    first = save(tmp_path / "a.eval", written.eval_log(written.inspect_samples(EVEN[:10], epochs=2)))
    second = save(tmp_path / "b.eval", written.eval_log(written.inspect_samples(EVEN[:10], epochs=2)))
    third = save(tmp_path / "c.jsonl", written.lm_eval(EVEN))
    found = calibcli.read([first, second, third], tasks=True)
    assert found.groups is not None
    assert len(set(found.groups.tolist())) == 10 + 10 + len(EVEN)
    assert sorted(set(found.slices["task"].tolist())) == ["c", "mcq (0)", "mcq (1)"]


# Which token is the answer; samples without one.


def said(questions: list[Question], before: str, after: str, again: str = "") -> list[dict[str, Any]]:
    """Chats in which the answer stands between two texts, and what is said `again` with near certainty."""
    rows = []
    for q in questions:
        letter = LETTERS[q.best]
        sure = {letter: -1e-4, "The": -9.3}
        sure |= {other: -12.0 for other in LETTERS[:4] if other != letter}
        tokens = [written.token(before, {before: 0.0})] * bool(before)
        tokens += [written.token(letter, written.distribution(q)), written.token(after, {after: 0.0})]
        if again:
            repeated = letter if again == "same" else again
            top = sure if again == "same" else {again: -0.01, **{c: -8.0 for c in LETTERS[:4] if c != again}}
            tokens.append(written.token(repeated, top))
        choice = {"message": {"content": "".join(t["token"] for t in tokens)}, "logprobs": {"content": tokens}}
        rows.append({"object": "chat.completion", "choices": [choice], "target": LETTERS[q.right]})
    return rows


@pytest.mark.regression
@pytest.mark.parametrize("again", ["same", "A"])
def test_the_token_that_is_the_answer_is_asked_for_where_two_differ(tmp_path: Path, again: str) -> None:
    """`B. Note that A is a common distractor` and `B. So the answer is B`."""
    plain, longer = said(EVEN, "Answer: ", "."), said(EVEN, "Answer: ", ". So it is ", again)
    right = calibcli.read(save(tmp_path / "plain.jsonl", plain), choices="A,B,C,D")
    mixed = [longer[i] if i % 2 else plain[i] for i in range(len(EVEN))]
    path = save(tmp_path / "mixed.jsonl", mixed)
    with pytest.raises(InputError, match="several tokens name a choice") as found:
        calibcli.read(path, choices="A,B,C,D")
    assert "--answer-token first" in found.value.fix
    assert "--answer-token last" in found.value.fix
    first = calibcli.read(path, choices="A,B,C,D", answer_token="first")
    np.testing.assert_allclose(first.logits, right.logits)
    last = calibcli.read(path, choices="A,B,C,D", answer_token="last")
    assert np.abs(last.logits - right.logits).max() > 1
    assert any("several tokens name a choice: the last is read" in note for note in last.notes)


def test_one_row_of_a_hundred_with_two_answers_is_said(tmp_path: Path) -> None:
    many = written.questions(200, ragged=False)
    rows = said(many, "", ".")
    rows[7] = said(many, "", ". Not ", "A")[7]
    found = calibcli.read(save(tmp_path / "a.jsonl", rows), choices="A,B,C,D")
    assert any("in 1 of 200 rows several tokens" in note for note in found.notes)
    np.savez(tmp_path / "b.npz", logits=found.logits, labels=found.labels)
    with pytest.raises(InputError, match="--answer-token is for"):
        calibcli.read(tmp_path / "b.npz", answer_token="first")


def test_the_answer_that_a_harness_asks_for_needs_no_option(tmp_path: Path) -> None:
    """Reasoning that weighs a choice before `ANSWER: B`, in a log of Inspect."""
    asked = written.questions(60, ragged=False)
    samples = written.inspect_samples(asked)
    for sample, q in zip(samples, asked, strict=True):
        letter = LETTERS[q.best]
        thought = [written.token(letter, {letter: -0.7, "It": -0.8, **dict.fromkeys(set("ABCD") - {letter}, -9.0)})]
        sample["output"]["choices"][0]["logprobs"]["content"][:0] = [*thought, written.token(" seems", {" seems": 0.0})]
    plain = calibcli.read(save(tmp_path / "a.json", written.json_log(written.inspect_samples(asked))))
    np.testing.assert_allclose(calibcli.read(save(tmp_path / "b.json", written.json_log(samples))).logits, plain.logits)


@pytest.mark.parametrize("form", ["{}.", "({}", "**{}**", "{}:"])
def test_a_letter_that_is_joined_with_marks_is_the_letter(tmp_path: Path, form: str) -> None:
    rows, marked = written.chats(EVEN), written.chats(EVEN)
    for row in marked:
        one = row["choices"][0]["logprobs"]["content"][0]
        one["token"] = form.format(one["token"])
        for top in one["top_logprobs"]:
            top["token"] = form.format(top["token"]) if top["token"].strip() in LETTERS else top["token"]
    one, two = (
        calibcli.read(save(tmp_path / name, each), choices="A,B,C,D")
        for name, each in (("a.jsonl", rows), ("b.jsonl", marked))
    )
    np.testing.assert_allclose(one.logits, two.logits)


def test_a_small_letter_is_an_answer_only_alone(tmp_path: Path) -> None:
    rows = said(EVEN, "", "")
    for row in rows:
        for one in row["choices"][0]["logprobs"]["content"]:
            one["token"] = one["token"].lower()
            one["top_logprobs"] = [{**top, "token": top["token"].lower()} for top in one["top_logprobs"]]
    found = calibcli.read(save(tmp_path / "a.jsonl", rows), choices="A,B,C,D")
    labelled(found, EVEN)
    spoken = [{**row} for row in rows]
    for row in spoken:
        content = row["choices"][0]["logprobs"]["content"]
        content.append(written.token(" good question", {" good question": 0.0}))
    with pytest.raises(InputError, match="named none of the choices"):
        calibcli.read(save(tmp_path / "b.jsonl", spoken), choices="A,B,C,D")


@pytest.mark.regression
@pytest.mark.parametrize("form", ["inspect", "batch", "confidence"])
def test_a_gate_does_not_pass_over_samples_without_an_answer(tmp_path: Path, form: str) -> None:
    asked = written.questions(300, ragged=False)
    lost = [i for i, q in enumerate(asked) if q.best != q.right][::2]
    how: dict[str, Any] = {}
    if form == "inspect":
        samples = written.inspect_samples(asked)
        for i in lost:
            samples[i] |= {"output": {"choices": []}, "scores": {}, "error": {"message": "timeout"}}
        path = save(tmp_path / "a.log", written.json_log(samples))
    elif form == "batch":
        rows = written.chats(asked, batch=True)
        for i in lost:
            rows[i] |= {"response": None, "error": {"code": "timeout"}}
        for i, q in enumerate(asked):
            rows[i]["target"] = LETTERS[q.right]
        path, how = save(tmp_path / "a.jsonl", rows), {"choices": "A,B,C,D"}
    else:
        rows = [["" if i in lost else 0.9, int(q.best == q.right)] for i, q in enumerate(asked)]
        path = tmp_path / "a.csv"
        path.write_text("\n".join(["confidence,correct", *(f"{c},{y}" for c, y in rows), ""]))
    [check] = calibcli.check(path, min={"accuracy": 0.5}, **how).checks
    assert check.outcome == "pass", "also where all of them were wrong"
    assert f"{len(lost):,} of 300 samples have no answer, which cannot change that" in check.message
    limit = sum(q.best == q.right for q in asked) / 300 - 0.02
    [check] = calibcli.check(path, min={"accuracy": limit}, **how).checks
    assert check.outcome == "not_run"
    assert f"{len(lost):,} of 300 samples have no answer and decide it" in check.message
    assert "--missing drop, or --missing wrong" in check.message
    assert calibcli.check(path, min={"accuracy": limit}, missing="drop", **how).checks[0].outcome == "pass"
    (tmp_path / "calib.toml").write_text(
        f'[data]\neval = "{path}"\nmissing = "drop"\n[[gate]]\nmetric = "accuracy"\nmin = {limit}\n'
    )
    assert calibcli.check(config=tmp_path / "calib.toml", **how).checks[0].outcome == "pass"


@pytest.mark.regression
def test_choices_of_lm_eval_that_begin_with_a_blank_of_their_own(tmp_path: Path) -> None:
    """Then their lengths count it, in characters and in bytes, as both verdicts show."""
    asked = [Question(q.scores, [f" {text}" for text in q.texts], q.right) for q in written.questions(200)]
    rows = written.lm_eval(asked, "")
    found = calibcli.read(save(tmp_path / "a.jsonl", rows), lm_norm="byte")
    scored(found, [[s / len(t.encode()) for s, t in zip(q.scores, q.texts)] for q in asked])
