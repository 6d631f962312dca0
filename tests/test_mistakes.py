# ruff: noqa: E501 (one mistake per line)
"""Every mistake that people make with recorded outputs: its own message, exit code 4, nothing on stdout."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import calibcli
from calibcli.cli.app import main
from calibcli.core.errors import Exit

RNG = np.random.default_rng(0)
N, K = 400, 12


def softmax(z: np.ndarray) -> np.ndarray:
    e = np.exp(z - z.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def model(n: int = N, k: int = K, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Logits that are right in about 3 of 4 rows, and labels."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, k, n)
    z = rng.normal(size=(n, k))
    z[np.arange(n), y] += 3
    return z.astype(np.float32), y


Z, Y = model()
LARGE = model(4000)
P = softmax(Z.astype(np.float64)).astype(np.float32)


def with_value(a: np.ndarray, row: int, value: float) -> np.ndarray:
    a = a.copy()
    a[row, 1] = value
    return a


MISTAKES: dict[str, tuple[dict[str, Any], list[str], list[str]]] = {
    # name: (arrays, options, what the message must say)
    "row counts differ": ({"logits": Z, "labels": Y[:-7]}, [], ["400 rows of scores", "393 labels"]),
    "transposed": ({"logits": Z.T, "labels": Y}, [], ["transposed", "logits.T"]),
    "bytes of another type": ({"logits": Z.astype(np.float64) * 1e300, "labels": Y}, [], ["cannot be logits", "never filled"]),
    "nan": ({"logits": with_value(Z, 17, np.nan), "labels": Y}, [], ["1 of 400", "NaN", "row 17", "--drop-nonfinite"]),
    "infinite": ({"logits": with_value(Z, 5, np.inf), "labels": Y}, [], ["infinite", "row 5", "float16"]),
    "minus infinite": ({"logits": with_value(Z, 5, -np.inf), "labels": Y}, [], ["infinite", "row 5", "--kind logits"]),
    "sums": ({"probs": P * 0.9, "labels": Y}, [], ["do not sum to 1", "row 0 sums to 0.9", "--kind logits"]),
    "names": ({"logits": Z, "labels": np.array([f"class{i}" for i in Y])}, [], ["are names", "class1", "--classes"]),
    "unknown name": (
        {"logits": Z, "labels": np.array([f"c{i:02}" for i in Y])},
        ["--classes", ",".join(f"c{i:02}" for i in range(11)) + ",x"],
        ["'c11'", "not one of the 12 classes"],
    ),
    "negative": ({"logits": Z, "labels": np.where(np.arange(N) == 30, -100, Y)}, [], ["-100", "row 30", "--ignore-label -100"]),
    "base": ({"logits": Z, "labels": Y + 1}, [], ["from 1 to 12", "--label-base 1"]),
    "base, last class absent": ({"logits": LARGE[0][LARGE[1] < K - 1], "labels": LARGE[1][LARGE[1] < K - 1] + 1}, [], ["0 -> 1", "--label-base 1"]),
    "outside": ({"logits": Z, "labels": np.where(np.arange(N) == 8, 77, Y)}, [], ["label 77", "row 8", "outside 0..11"]),
    "soft": ({"logits": Z, "labels": np.where(np.arange(N)[:, None] == 3, 1 / K, np.eye(K)[Y])}, [], ["soft targets", "row 3"]),
    "soft binary": ({"logits": Z[:, :2], "labels": np.where(np.arange(N) == 9, 0.5, 1.0)}, [], ["row 9 has 0.5", "soft"]),
    "multi-label": ({"probs": P, "labels": (P > 0.2).astype(int)}, [], ["multi-label", "--multilabel"]),
    "top-1 only": ({"probs": P.max(axis=1), "labels": Y}, [], ["only the score of the top class", "(N, K)"]),
    "top-1 only, named": ({"confidence": P.max(axis=1), "labels": Y}, [], ["only the score of the top class"]),
    "class numbers": ({"predictions": Y[:, None], "labels": Y}, [], ["predicted classes"]),
    "two scores": ({"logits": Z, "probs": P, "labels": Y}, [], ["'logits' and 'probs'", "--scores logits"]),
    "two labels": ({"logits": Z, "labels": Y, "y_true": Y}, [], ["'labels' and 'y_true'", "--labels labels"]),
    "no scores": ({"embedding": Z, "labels": Y}, [], ["no scores", "embedding (400, 12) float32", "--scores"]),
    "key says logits": ({"logits": P, "labels": Y}, [], ["says logits", "are probabilities", "--kind probabilities"]),
    "key says probabilities": ({"probs": Z, "labels": Y}, [], ["says probabilities", "are logits", "--kind logits"]),
    "softmax twice": ({"probs": softmax(P), "labels": Y}, [], ["softmax was applied twice", "0.0729", "0.198"]),
    "class order": ({"logits": Z[:, np.roll(np.arange(K), 5)], "labels": Y}, [], ["order the classes differently", "p < 1e-6"]),
    "class swap": ({"logits": LARGE[0][:, [0, 1, 3, 2, *range(4, K)]], "labels": LARGE[1]}, [], ["2 -> 3, 3 -> 2", "p < 1e-6"]),
    "empty rows": ({"probs": np.where(np.arange(4000)[:, None] == 7, 0, softmax(LARGE[0])), "labels": LARGE[1]}, [], ["probability 0", "row 7"]),
    "wrong kind": ({"scores": Z, "labels": Y}, ["--kind", "probabilities"], ["--kind probabilities", "run from"]),
    "no such array": ({"logits": Z, "labels": Y}, ["--scores", "logit"], ["no such array", "did you mean 'logits'"]),
    "weights": ({"logits": Z, "labels": Y, "w": -np.ones(N)}, ["--weights", "w"], ["weight -1", "row 0"]),
    "pixels": ({"logits": np.zeros((4, 5, 3)), "labels": np.zeros(4, int)}, [], ["(4, 5, 3)", "labels of every position"]),
    "objects": ({"logits": np.array([[1, "a"], None], dtype=object), "labels": Y}, [], ["Python objects", "np.savez"]),
    "objects in labels": ({"logits": Z, "labels": np.array([1, None] * 200, dtype=object)}, [], ["Python objects"]),
    "no rows": ({"logits": Z[:0], "labels": Y[:0]}, [], ["empty"]),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_mistake(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arrays, options, words = MISTAKES[name]
    path = tmp_path / "outputs.npz"
    np.savez(path, **arrays)
    code = main(["inspect", str(path), *options])
    out, err = capsys.readouterr()
    assert (code, out) == (Exit.REFUSED, ""), err
    assert err.startswith("error: ")
    assert "\n  fix: " in err
    for word in words:
        assert word in err


def test_each_mistake_has_its_own_message() -> None:
    assert len({tuple(words) for _, _, words in MISTAKES.values()}) == len(MISTAKES)


def test_several_files_need_shards(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [str(tmp_path / f"{i}.npz") for i in range(2)]
    for path in paths:
        np.savez(path, logits=Z, labels=Y)
    assert main(["inspect", *paths]) == Exit.REFUSED
    out, err = capsys.readouterr()
    assert out == ""
    assert "--shards" in err
    assert "calib compare" in err
    assert main(["inspect", *paths, "--shards", "--json"]) == Exit.OK
    assert '"rows": 800' in capsys.readouterr().out


def test_names_in_another_order(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Names translate the labels; their order is then part of the mistake and confirms nothing."""
    names = [f"c{i:02}" for i in range(K)]
    np.savez(tmp_path / "a.npz", logits=Z, labels=np.array(names)[Y])
    assert main(["inspect", str(tmp_path / "a.npz"), "--classes", ",".join(names)]) == Exit.OK
    capsys.readouterr()
    assert main(["inspect", str(tmp_path / "a.npz"), "--classes", ",".join(names[::-1])]) == Exit.REFUSED
    out, err = capsys.readouterr()
    assert out == ""
    assert "score column -> label c11 -> c00" in err


def test_rows_that_were_fitted_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    z, y = model(1000)
    np.savez(tmp_path / "fit.npz", logits=z[:600], labels=y[:600])
    np.savez(tmp_path / "test.npz", logits=z[500:], labels=y[500:])
    assert main(["scale", str(tmp_path / "fit.npz"), "--test", str(tmp_path / "test.npz")]) == Exit.REFUSED
    out, err = capsys.readouterr()
    assert out == ""
    assert "100 of 500 rows" in err
    assert "--folds 5" in err


FILES = {
    "no header": ("0.1,0.9,1\n0.2,0.8,0\n", "a.csv", "no header row"),
    "not a number": ("label,p0,p1\n0,.5,.5\n1,abc,.5\n", "a.csv", "row 1 of column 'p0'"),
    "a column missing": ("p0,p1,p3,y\n.5,.2,.3,1\n", "a.csv", "but not p_2"),
    "cells missing": ("p0,p1,y\n.5,.5,1\n.5,.5\n", "a.csv", "row 1 of"),
    "columns twice": ("p0,p1,y,y\n.5,.5,1,1\n", "a.csv", "two columns 'y'"),
    "no rows": ("p0,p1,y\n", "a.csv", "a header but no rows"),
    "not JSON": ('{"logits": [1, 2], "label": 0}\n{"logits": [1,\n', "a.jsonl", "row 1 of"),
    "not an object": ("[1, 2]\n", "a.jsonl", "a JSON list"),
    "key missing": ('{"logits": [1, 2], "label": 0}\n{"logits": [1, 2]}\n', "a.jsonl", "in row 1"),
    "pickle": ("\x80\x04K\x01.", "a.pkl", "a pickle"),
    "gzip": ("\x1f\x8b\x08", "a.csv.gz", "gzip"),
}


@pytest.mark.parametrize("name", FILES)
def test_mistakes_of_text(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text, file, words = FILES[name]
    (tmp_path / file).write_bytes(text.encode("latin-1"))
    assert main(["inspect", str(tmp_path / file)]) == Exit.REFUSED
    out, err = capsys.readouterr()
    assert out == ""
    assert words in err
    assert "\n  fix: " in err


@pytest.mark.parametrize("name", ["row counts differ", "nan", "softmax twice", "base"])
def test_metrics_reads_like_inspect(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arrays, options, words = MISTAKES[name]
    np.savez(tmp_path / "a.npz", **arrays)
    assert main(["metrics", str(tmp_path / "a.npz"), *options]) == Exit.REFUSED
    out, err = capsys.readouterr()
    assert out == ""
    assert all(word in err for word in words)


ACCEPTED: dict[str, tuple[dict[str, Any], list[str], str]] = {
    # name: (arrays, options, what the note says)
    "weak binary": ({"probs": RNG.uniform(0.3, 0.7, N), "labels": RNG.integers(0, 2, N)}, [], "read as P of class 1"),
    "weak binary (N, 2)": ({"probs": softmax(RNG.normal(size=(N, 2)) * 0.2), "labels": RNG.integers(0, 2, N)}, [], "softmax applied twice?"),
    "log-odds": ({"logits": RNG.normal(size=(N, 1)), "labels": RNG.integers(0, 2, (N, 1))}, [], "log-odds of class 1"),
    "absent class": ({"logits": model(k=20)[0], "labels": np.where(model(k=20)[1] == 7, 8, model(k=20)[1])}, [], ""),
    "ties": ({"logits": np.round(Z), "labels": Y}, [], "several largest scores"),
    "all equal": ({"probs": np.full((N, 12), 1 / 12), "labels": Y}, [], "several largest scores"),
    "one row": ({"logits": Z[:1], "labels": Y[:1]}, [], ""),
    "one-hot": ({"logits": Z, "labels": np.eye(K)[Y]}, [], "one-hot"),
    "squeezed": ({"logits": Z, "labels": Y[:, None]}, [], "read as (400,)"),
    "float labels": ({"logits": Z, "labels": Y.astype(np.float32)}, [], ""),
    "digits as text": ({"logits": Z, "labels": Y.astype(str)}, [], ""),
    "names": ({"logits": Z, "labels": np.array([f"c{i}" for i in Y]), "classes": np.array([f"c{i}" for i in range(K)])}, [], ""),
    "one class preferred": ({"logits": Z + np.eye(K)[3] * 9, "labels": np.where(Y % 3 > 0, 5, Y)}, [], ""),
    "dropped": ({"logits": with_value(Z, 17, np.nan), "labels": Y}, ["--drop-nonfinite"], "1 of 400 rows with NaN or infinite scores dropped"),
    "ignored": ({"logits": Z, "labels": np.where(np.arange(N) < 30, -100, Y)}, ["--ignore-label", "-100"], "30 rows with label -100"),
    "base 1": ({"logits": Z, "labels": Y + 1}, ["--label-base", "1"], ""),
    "large": ({"logits": with_value(Z, 3, 6.1e4), "labels": Y}, [], "float16"),
    "zero probability": ({"probs": np.eye(K)[(Y + (np.arange(N) == 4)) % K], "labels": Y}, [], "--clip"),
    "zero probability, clipped": ({"probs": np.eye(K)[(Y + (np.arange(N) == 4)) % K], "labels": Y}, ["--clip"], "clipped"),
    "repeated": ({"logits": np.concatenate([Z, Z]), "labels": np.concatenate([Y, Y])}, [], "400 of 800 rows repeat"),
    "masked": ({"logits": with_value(Z, 5, -np.inf), "labels": Y}, ["--kind", "logits"], "-inf in 1 row"),
    "really unsure": ({"probs": softmax(P), "labels": Y}, ["--kind", "probabilities"], "softmax applied twice?"),
    "order confirmed": ({"logits": Z[:, ::-1], "labels": Y}, ["--classes", ",".join("abcdefghijkl")], "p < 1e-6"),
}  # fmt: skip


@pytest.mark.parametrize("name", ACCEPTED)
def test_honest_but_odd(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arrays, options, note = ACCEPTED[name]
    path = tmp_path / "outputs.npz"
    np.savez(path, **arrays)
    assert main(["inspect", str(path), *options, "--json"]) == Exit.OK
    _, err = capsys.readouterr()
    assert note in err
    if not note:
        assert err == ""


@pytest.mark.parametrize("columns", [1, 2, 5])
def test_labels_that_are_the_predictions_are_noticed(columns: int) -> None:
    """Not one mistake in many rows; one row that is wrong, or few rows, say nothing of the kind."""
    z = np.random.default_rng(0).normal(size=(300, columns))
    y = z.argmax(axis=1) if columns > 1 else (z[:, 0] > 0).astype(int)

    def noticed(labels: Any, n: int = 300) -> bool:
        rows = calibcli.from_arrays(z[:n] if columns > 1 else z[:n, 0], labels[:n], kind="logits")
        return any("made from the predictions" in note for note in rows.notes)

    assert noticed(y)
    assert not noticed(y, 50)
    assert not noticed(np.where(np.arange(300) == 7, (y + 1) % max(columns, 2), y))


def test_rows_that_all_have_the_same_scores_are_told() -> None:
    """As those of a network that does not see its inputs; one row that differs ends it."""
    z, y = np.tile([[0.2, 0.5, -1.0]], (60, 1)), np.arange(60) % 3

    def told(scores: Any) -> bool:
        return any("all 60 rows have the same scores" in note for note in calibcli.from_arrays(scores, y).notes)

    assert told(z)
    z[7, 1] += 0.1
    assert not told(z)


@pytest.mark.regression
@pytest.mark.parametrize("kind", ["probabilities", "logits", "log_probabilities"])
@pytest.mark.parametrize("columns", [1, 2, 5])
def test_no_event_where_none_is_expected_says_nothing_of_the_labels(kind: str, columns: int) -> None:
    """400 rows of a rare event, .0025 each: none of them with a chance of .37. Of .05 each it would be 1e-9."""
    rng = np.random.default_rng(0)

    def noticed(most: float) -> bool:
        rest = rng.random((400, max(columns, 2) - 1)) * most / max(columns - 1, 1)
        p = rest if columns == 1 else np.concatenate([1 - rest.sum(axis=1, keepdims=True), rest], axis=1)
        z = {"probabilities": p, "log_probabilities": np.log(p), "logits": np.log(p / (1 - p) if columns == 1 else p)}
        rows = calibcli.from_arrays(z[kind][:, 0] if columns == 1 else z[kind], np.zeros(400, np.int64), kind=kind)
        return any("made from the predictions" in note for note in rows.notes)

    assert not noticed(0.005)
    assert noticed(0.1)


@pytest.mark.regression
@pytest.mark.parametrize(
    "text", ["s3cr3t,42\n", "s3cr3t,0.5\nt0ken,0.2\n", "user,s3cr3t,42\nroot,p4ss,7\n", "s3cr3t 42\nx 3\n"]
)
def test_cells_of_a_file_that_is_no_table_of_scores_are_not_printed(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The rules of a pull request may name any file of the machine; its first line is no header."""
    (tmp_path / "k.csv").write_text(text)
    (tmp_path / "a").mkdir()
    rules = 'schema = 1\n[data]\neval = "../k.csv"\n[[gate]]\nmetric = "ece"\nmax = 0.5\n'
    (tmp_path / "a" / "calib.toml").write_text(rules)
    monkeypatch.chdir(tmp_path / "a")
    for line in (["check"], ["metrics", "../k.csv"], ["inspect", "../k.csv"], ["metrics", "../k.csv", "--labels", "x"]):
        assert main(line) == 4
        shown = "".join(capsys.readouterr())
        assert "s3cr3t" not in shown
        assert "fix:" in shown


def test_columns_that_are_numbered_classes_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.csv").write_text("0,1,other\n0.2,0.8,x\n0.7,0.3,y\n")
    assert main(["metrics", str(tmp_path / "a.csv")]) == 4
    assert "other" in capsys.readouterr().err
