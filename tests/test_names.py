"""Files as people name them: read as they are, or refused with the option that reads them. None is read wrongly."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import calibcli
from calibcli.cli.app import main
from calibcli.core.errors import InputError

N = 60
RNG = np.random.default_rng(0)
P = RNG.uniform(0.01, 0.99, N).round(4)
Y = (RNG.uniform(size=N) < P).astype(int)
THREE = RNG.dirichlet([1, 1, 1], N).round(6)
CLASS = np.array([RNG.choice(3, p=p / p.sum()) for p in THREE])
TWO = np.column_stack([1 - P, P]).round(4)
TUMOUR, ANIMAL, LETTER = np.array(["benign", "malignant"]), np.array(["cat", "dog", "owl"]), np.array(list("ABC"))
LOG = np.log(THREE + 1e-9).round(6)


def table(heads: str, *columns: Any, sep: str = ",") -> str:
    rows = ([heads.replace(",", sep)] if heads else []) + [
        sep.join(map(str, row)) for row in zip(*columns, strict=True)
    ]
    return "\n".join(rows) + "\n"


def lines(row: Callable[[int], dict[str, Any]]) -> str:
    return "".join(json.dumps(row(i)) + "\n" for i in range(N))


READ = {
    "p_malignant,malignant": table("p_malignant,malignant", P, Y),
    "y_true,p_malignant": table("y_true,p_malignant", TUMOUR[Y], P),
    "y_true,p_malignant, numbers": table("y_true,p_malignant", Y, P),
    "y,p": table("y,p", Y, P),
    "y,p_hat": table("y,p_hat", Y, P),
    "y_true,y_prob": table("y_true,y_prob", Y, P),
    "y_test,y_proba": table("y_test,y_proba", Y, P),
    "label,prob": table("label,prob", Y, P),
    "score,truth": table("score,truth", P, Y),
    "prob,true": table("pred,true,prob", (P > 0.5).astype(int), Y, P),
    "prob, booleans": table("prob,label", P, Y.astype(bool)),
    "prob, yes and no": table("prob,label", P, np.where(Y, "yes", "no")),
    "prob, Positive": table("prob,label", P, np.where(Y, "Positive", "Negative")),
    "percent": table("label,prob", Y, [f"{100 * p:.2f}%" for p in P]),
    "index,y,p": table(",y,p", range(N), Y, P),
    "id,label,logit": table("id,label,logit", range(N), Y, np.log(P / (1 - P)).round(5)),
    "semicolons": table("label,prob_0,prob_1", Y, *TWO.T, sep=";"),
    "tabs": table("label,prob_0,prob_1", Y, *TWO.T, sep="\t"),
    "benign,malignant": table("benign,malignant,label", *TWO.T, TUMOUR[Y]),
    "p_benign,p_malignant,y": table("p_benign,p_malignant,y", *TWO.T, Y),
    "p_benign,p_malignant,diagnosis": table("p_benign,p_malignant,diagnosis", *TWO.T, TUMOUR[Y]),
    "proba_0,proba_1,target": table("proba_0,proba_1,target", *TWO.T, Y),
    "classes,y_true": table("cat,dog,owl,y_true", *THREE.T, ANIMAL[CLASS]),
    "classes,true_label, mixed order": table("owl,true_label,cat,dog", THREE[:, 2], ANIMAL[CLASS], *THREE[:, :2].T),
    "prob_cat": table("prob_cat,prob_dog,prob_owl,label", *THREE.T, ANIMAL[CLASS]),
    "cat_prob": table("cat_prob,dog_prob,owl_prob,label", *THREE.T, ANIMAL[CLASS]),
    "cat_prob, class unseen": table("cat_prob,dog_prob,owl_prob,gnu_prob,label", *THREE.T, [0.0] * N, ANIMAL[CLASS]),
    "p(cat)": table("p(cat),p(dog),p(owl),gold", *THREE.T, ANIMAL[CLASS]),
    "score_cat": table("label,score_cat,score_dog,score_owl", ANIMAL[CLASS], *LOG.T),
    "A,B,C,answer": table("A,B,C,answer", *THREE.T, LETTER[CLASS]),
    "p_A,gold": table("p_A,p_B,p_C,gold", *THREE.T, LETTER[CLASS]),
    "logprob_A,answer": table("logprob_A,logprob_B,logprob_C,answer", *LOG.T, LETTER[CLASS]),
    "0,1,2,label": table("0,1,2,label", *THREE.T, CLASS),
    "pandas index,label,0,1,2": table("Unnamed: 0,label,0,1,2", range(N), CLASS, *THREE.T),
    "class_0": table("class_0,class_1,class_2,label", *THREE.T, CLASS),
    "class_0_prob": table("class_0_prob,class_1_prob,class_2_prob,label", *THREE.T, CLASS),
    "JSON object of log-probabilities": lines(
        lambda i: {"logprobs": dict(zip("ABC", LOG[i].tolist())), "answer": "ABC"[CLASS[i]]}
    ),
    "JSON list, letters": lines(lambda i: {"probs": THREE[i].tolist(), "answer": "ABC"[CLASS[i]]}),
    "JSON object by class": lines(
        lambda i: {"probabilities": dict(zip(ANIMAL.tolist(), THREE[i].tolist())), "label": str(ANIMAL[CLASS[i]])}
    ),
    "JSON of a pipeline": lines(
        lambda i: {
            "scores": [{"label": str(ANIMAL[k]), "score": THREE[i, k]} for k in np.argsort(-THREE[i])],
            "label": str(ANIMAL[CLASS[i]]),
        }
    ),
}
NO_HEADER = {
    "no header, y first": table("", Y, P),
    "no header, label last": table("", *THREE.T, CLASS),
    "no header, names last": table("", *TWO.T, Y),
}
REFUSED = {
    "target,prediction": table("target,prediction", Y, P),
    "unknown names": table("site,alpha,beta,gamma,what", ["x", "y"] * (N // 2), *THREE.T, CLASS),
    "benign,malignant, numbers": table("benign,malignant,label", *TWO.T, Y),
    "spaces": table("Predicted probability,Outcome", P, Y),
    "actual,predicted_prob": table("actual,predicted_prob", Y, P),
}


def nll(read: calibcli.Predictions) -> float:
    return float(calibcli.measure(read, "nll")["nll"].value or 0)


def right(read: calibcli.Predictions) -> bool:
    """Whether the scores are of the labels' classes: any other order has another NLL."""
    two = -np.log(np.where(Y, P, 1 - P)).mean()
    three = -np.log(THREE[np.arange(N), CLASS] / THREE.sum(axis=1)).mean()
    return abs(nll(read) - (two if read.k == 2 else three)) < 1e-4


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def written(text: str) -> str:
    name = "a.jsonl" if text.startswith("{") else "a.tsv" if "\t" in text else "a.csv"
    Path(name).write_text(text)
    return name


@pytest.mark.parametrize("name", READ)
def test_read_with_no_option(name: str) -> None:
    assert right(calibcli.read(written(READ[name])))


@pytest.mark.parametrize("name", NO_HEADER)
def test_without_a_header(name: str) -> None:
    file = written(NO_HEADER[name])
    with pytest.raises(InputError, match="--no-header"):
        calibcli.read(file)
    assert right(calibcli.read(file, no_header=True))


@pytest.mark.parametrize("name", REFUSED)
def test_refused_with_the_option_that_reads_it(name: str) -> None:
    file = written(REFUSED[name])
    with pytest.raises(InputError, match="it holds") as refusal:
        calibcli.read(file)
    options = shlex.split(re.search(r"(?:such as|choose them:) (--.*?);", refusal.value.fix)[1])  # type: ignore[index]
    assert main(["metrics", file, *options, "-q"]) == 0
    given = dict(zip(options[::2], options[1::2], strict=True))
    assert right(calibcli.read(file, scores=given["--scores"], labels=given["--labels"]))


@pytest.mark.parametrize(("scores", "labels"), [("arr_0", "arr_1"), ("softmax", "gts"), ("hidden", "what")])
def test_arrays_of_any_name(scores: str, labels: str) -> None:
    np.savez("a.npz", **{scores: THREE, labels: CLASS})
    if scores == "softmax":
        assert right(calibcli.read("a.npz"))
        return
    with pytest.raises(InputError) as refusal:
        calibcli.read("a.npz")
    assert f"--scores {scores} --labels {labels}" in refusal.value.fix
    assert right(calibcli.read("a.npz", scores=scores, labels=labels))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (table("x0,x1,x2,label", *THREE.T, CLASS), "no scores"),  # features, for all that the names say
        (table("truth,actual,prob", Y, 1 - Y, P), "could each be the labels"),
    ],
)
def test_what_could_be_two_things_is_refused(text: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        calibcli.read(written(text))


def test_scores_by_comma_are_classes_in_that_order() -> None:
    file = written(table("p cat,q cat,p dog,q dog,label", THREE[:, 0], LOG[:, 0], THREE[:, 1], LOG[:, 1], CLASS % 2))
    read = calibcli.read(file, scores="q dog,q cat", kind="logits")
    assert read.classes == ["dog", "cat"]
    assert np.array_equal(read.logits, LOG[:, [1, 0]])
    for wrong, said in (("q dog,q dog", "twice"), ("q dog,q owl", "no such array")):
        with pytest.raises(InputError, match=said):
            calibcli.read(file, scores=wrong)


def test_a_pipeline_names_the_same_classes_in_every_row() -> None:
    rows = [{"scores": {"a": 0.5, "b": 0.5}, "label": "a"}, {"scores": {"a": 0.5, "c": 0.5}, "label": "a"}]
    with pytest.raises(InputError, match=r"row 1 of .* does not name the classes of row 0"):
        calibcli.read(written("".join(json.dumps(row) + "\n" for row in rows)))


SECRETS = {
    "settings": "DB_PASSWORD=hunter2\nAPI_KEY=hunter3\n",
    "key": "-----BEGIN PRIVATE KEY-----\nhunter2==\n-----END PRIVATE KEY-----\n",
    "yaml": "password: hunter2\nkey: hunter3\n",
    "users": "root:x:hunter2:0:root:/root\ndaemon:x:1:1:daemon:/usr/sbin\n",
    "names": "user,hunter2\nb,hunter3\n",
    "table": "user,password,n\nb,hunter2,1\nc,hunter3,2\n",
    "numbers": "12345,0.5,0.25\n1,2,3\n",
}


@pytest.mark.parametrize("name", SECRETS)
@pytest.mark.parametrize("key", ["eval", "fitted_on", "labels"])
def test_a_file_that_holds_no_scores_is_not_quoted(key: str, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A pull request may name any file of the runner in calib.toml: the log shows names and shapes, and no value."""
    Path("secret").write_text(SECRETS[name])
    np.savez("t.npz", probs=THREE, labels=CLASS)
    lines = {"eval": "t.npz", key: "secret"}
    data = "".join(f'{option} = "{path}"\n' for option, path in lines.items())
    Path("calib.toml").write_text(f'[data]\n{data}[[gate]]\nmetric = "ece"\nlimit = 0.5\n')
    assert main(["check", "--format", "github"]) == 4
    printed = "".join(capsys.readouterr())
    assert not any(value in printed for value in ("hunter", "12345"))
    assert "fix: " in printed
