"""Honest files of random shapes, names, formats and orders of columns: none is refused, and all give the same numbers.

    python benchmarks/honest_files.py [--files 10000] [--seed 0] [--show 5]

One file has scores and labels of one model, as a known name or the classes in their names say: a column or an array for
the classes, in probabilities or logits, or P of one of two. Around them there may be ids, weights, groups, features and
the predicted class. Each is written in three of the formats (csv, tsv, tables with other delimiters, JSON lines, JSON
with columns and data, npz, and parquet where pyarrow is installed), with its columns in another order each time.
Accuracy and ECE must be those that other code computes. Exit 1 if one is refused or gives other numbers.

`tests/test_honest_files.py` is the short form.
"""

from __future__ import annotations

import contextlib
import csv
import importlib.util
import io
import json
import math
import os
import random
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from calibcli.cli.app import main
from calibcli.gate.pins import of_reading

Array = np.ndarray[Any, np.dtype[Any]]
Choose = Callable[[Sequence[Any]], Any]
"""Chooses one of several values: of `random`, or of a test that looks for the smallest example."""
BINS, CLOSE = 15, 1e-6
WORDS = ("ash", "bay", "cliff", "dune", "elm", "fen", "glen", "heath", "inlet", "jetty", "knoll", "loch")
OUTCOMES = (("no", "yes"), ("benign", "malignant"), ("ham", "spam"), ("left", "stayed"))
BY_CLASS = ("{}", "p_{}", "prob_{}", "{}_prob", "{}_score", "proba_{}", "p({})", "score_{}")
BY_NUMBER = ("prob_{}", "p{}", "proba_{}", "{}", "class_{}_prob", "score_{}")
LABELS = ("label", "labels", "y_true", "target", "truth", "gold", "y", "ground_truth")
CALLS = ("predicted", "prediction", "pred", "y_hat", "guess", "winner")
IDS = ("id", "doc_id", "sample_id", "")
DELIMITED = {"csv": ("csv", ","), "tsv": ("tsv", "\t"), "semicolons": ("csv", ";"), "bars": ("csv", "|")}
FORMATS = (*DELIMITED, "jsonl", "lists.jsonl", "json", "npz", *["parquet"] * bool(importlib.util.find_spec("pyarrow")))


@dataclass
class Honest:
    """Scores and labels of a model, and the columns in which they may be written.

    Attributes:
        scores: (N, K), or the one column of P(class 1) as (N, 1).
        names: of the columns of scores.  array: the name of all of them together.
        columns: the others by name: label, prediction, ids, weights, group, features.
        numbered: whether the labels are the numbers of the classes.
        options: the line that it needs, such as `--weights w`.
        expected: accuracy and ECE.
    """

    scores: Array
    names: list[str]
    array: str
    label: str
    columns: dict[str, Array]
    numbered: bool
    options: list[str]
    expected: tuple[float, float]


def honest(choose: Choose, seed: int) -> Honest:
    """Make a file: `choose` decides its shape and its names, the seed its numbers."""
    rng = np.random.default_rng(seed)
    k, n = choose((2, 2, 3, 4, 6, 12)), choose((60, 150, 400))
    spread, sharp = choose((1.0, 1.8, 3.0)), choose((0.5, 1.0, 1.7))
    truth = rng.normal(size=(n, k)) * spread
    y = (truth + rng.gumbel(size=(n, k))).argmax(axis=1)
    z = sharp * truth
    p = np.exp(z - z.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    logits = choose((False, False, True))
    style = choose(("words", "words", "letters", "numbers"))
    words = list(choose(OUTCOMES)) if k == 2 else [str(word) for word in rng.permutation(WORDS)[:k]]
    classes = {"words": words, "letters": list("ABCDEFGHIJKL")[:k], "numbers": [str(i) for i in range(k)]}[style]
    scores = np.round(z, 9) if logits else p  # no two are equal
    if style == "numbers":
        shape = "logit_{}" if logits else choose(BY_NUMBER)
    else:
        shape = "logit_{}" if logits else choose(BY_CLASS)
    names = [shape.format(name) for name in classes]
    if k == 2 and not logits and choose((False, False, True)):
        scores = p[:, 1:]
        names = ["prob" if style == "numbers" else f"prob_{classes[1]}"]
    label = choose(LABELS)
    columns = {label: y if style == "numbers" else np.array(classes)[y]}
    if choose((False, True)):
        columns[choose(CALLS)] = scores.argmax(axis=1) if style == "numbers" else np.array(classes)[p.argmax(axis=1)]
        if len(names) == 1:
            columns.popitem()
    if choose((False, True)):
        columns[choose(IDS)] = np.arange(n) if choose((False, True)) else np.array([f"r{i}" for i in range(n)])
    if choose((False, True)):
        columns["age"] = rng.integers(18, 90, n)
    if choose((False, False, True)):
        columns["site"] = rng.choice(["upper", "lower", "middle"], n)
    if choose((False, False, True)):
        columns["height"] = np.round(rng.normal(170, 9, n), 1)
    options, weights = [], np.ones(n)
    if choose((False, False, True)):
        columns["w"] = weights = np.round(rng.uniform(0.2, 3, n), 3)
        options += ["--weights", "w"]
    if choose((False, False, True)):
        columns["patient"] = rng.integers(0, n // 3, n)
        options += ["--group", "patient"]
    array = "logits" if logits else choose(("probs", "y_prob", "probabilities"))
    return Honest(
        scores, names, array, label, columns, style == "numbers", options, numbers(scores, logits, y, weights)
    )


def numbers(scores: Array, logits: bool, y: Array, weights: Array) -> tuple[float, float]:
    """Return accuracy and ECE in 15 bins (low, high]; of two classes, of P(class 1)."""
    rows, total = scores.tolist(), float(weights.sum())
    right, sums = 0.0, [0.0] * BINS
    for row, label, weight in zip(rows, y.tolist(), weights.tolist(), strict=True):
        if len(row) == 1:
            row = [1 - row[0], row[0]]
        if logits:
            terms = [math.exp(v - max(row)) for v in row]
            row = [term / sum(terms) for term in terms]
        best = row.index(max(row))
        right += weight * (best == label)
        value, hit = (row[1], label) if len(row) == 2 else (row[best] / sum(row), best == label)
        sums[min(max(math.ceil(value * BINS) - 1, 0), BINS - 1)] += weight * (value - hit)
    return right / total, sum(map(abs, sums)) / total


def write(made: Honest, form: str, order: Sequence[int], folder: Path) -> str:
    """Write the file in a format, with its columns in an order, and return its name."""
    columns: dict[str, list[Any]] = {name: made.scores[:, i].tolist() for i, name in enumerate(made.names)}
    columns |= {name: values.tolist() for name, values in made.columns.items()}
    names = list(columns)
    names = [names[i] for i in order]
    suffix, cut = DELIMITED.get(form, (form, ""))
    path = folder / f"rows.{suffix}"
    if cut:
        with path.open("w", newline="") as file:
            rows = csv.writer(file, delimiter=cut, lineterminator="\n")
            rows.writerows([names, *zip(*(columns[name] for name in names), strict=True)])
    elif form == "jsonl":
        lists = zip(*(columns[name] for name in names), strict=True)
        path.write_text("".join(json.dumps(dict(zip(names, row))) + "\n" for row in lists))
    elif form == "lists.jsonl":
        others = [name for name in names if name not in made.names]
        own = [_own(made, row) for row in made.scores.tolist()]
        objects = ({made.array: own[i]} | {name: columns[name][i] for name in others} for i in range(len(own)))
        path.write_text("".join(json.dumps(one) + "\n" for one in objects))
    elif form == "json":
        data = [list(row) for row in zip(*(columns[name] for name in names), strict=True)]
        path.write_text(json.dumps({"columns": names, "data": data}))
    elif form == "parquet":
        import pyarrow
        from pyarrow import parquet

        parquet.write_table(pyarrow.table({name: columns[name] for name in names}), path)
    else:
        arrays = {name or "ids": values for name, values in made.columns.items()}
        scores = made.scores if len(made.names) > 1 else made.scores[:, 0]
        known = {} if made.numbered or len(made.names) == 1 else {"classes": np.array(_classes(made))}
        name = made.array if len(made.names) > 1 else made.names[0]
        np.savez(path, **{name: scores}, **arrays, **known)
    return path.name


def _classes(made: Honest) -> list[str]:
    """Return the classes in the order of the scores, which the names of the columns share a part with."""
    seen = set(made.columns[made.label].tolist())
    labels = sorted(seen | ({*WORDS} | {*"ABCDEFGHIJKL"} if not made.numbered else set()), key=len, reverse=True)
    return [next((label for label in labels if _says(name, label)), name) for name in made.names]


def _says(name: str, label: str) -> bool:
    return any(shape.format(label) == name for shape in (*BY_CLASS, "logit_{}"))


def _own(made: Honest, row: Sequence[float]) -> Any:
    """Return the scores of a row: a list where the labels are numbers, an object where they are names."""
    if len(row) == 1:
        return row[0]
    return list(row) if made.numbered else dict(zip(_classes(made), row, strict=True))


@dataclass
class Done:
    """What `calib metrics` did: its exit code, accuracy and ECE, what it said, the kinds of its remarks, which is their
    text without numbers, and what it would pin but for the order of columns, which decides that of the classes and,
    where no name does, the event.
    """

    code: int
    numbers: tuple[float, float] | None
    said: str
    notes: frozenset[str] = frozenset()
    pins: str = ""


def measured(argv: Sequence[str]) -> Done:
    """Run `calib metrics`."""
    out, said = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(said):
        code = main(["metrics", *argv, "-m", "accuracy", "-m", "ece", "--json"])
    if code:
        return Done(code, None, said.getvalue())
    result = json.loads(out.getvalue())
    found = {e["name"]: e["value"] for e in reversed(result["estimates"])}
    pins = of_reading(result["provenance"]["inputs"][0]["read"])
    del pins["scores"]  # a list in one format, a column for each class in another
    pins["classes"] = sorted(pins.get("classes", ()))
    if pins["classes"] not in [sorted(pair) for pair in OUTCOMES[:1]]:
        pins.pop("event", None)
    if pins.get("ids") == "ids":  # what an array without a name is called in .npz
        del pins["ids"]
    notes = frozenset(re.sub(r"[0-9][0-9.,e-]*", "#", note) for note in result["notes"])
    return Done(code, (found["accuracy"], found["ece"]), said.getvalue(), notes, json.dumps(pins, sort_keys=True))


def wrong(made: Honest, forms: Sequence[str], shuffled: random.Random, folder: Path) -> list[str]:
    """Write the file in some formats, in another order each; return what is refused, or gives other numbers, remarks or
    pins.
    """
    found, first = [], None
    for form in forms:
        order = list(range(len(made.names) + len(made.columns)))
        if form != forms[0]:
            shuffled.shuffle(order)
        if form == "lists.jsonl" and len(made.names) == 1:
            form = "jsonl"
        name = write(made, form, order, folder)
        done = measured([str(folder / name), *made.options])
        named = f"{form}: {[*made.names, *made.columns]} in the order {order}"
        first = first or done
        if done.numbers is None:
            found.append(f"{named}: exit {done.code}, {done.said.strip()}")
        elif max(abs(a - b) for a, b in zip(done.numbers, made.expected, strict=True)) > CLOSE:
            found.append(f"{named}: {done.numbers} for {made.expected}, {done.said.strip()}")
        elif done.notes ^ first.notes:
            found.append(f"{named}: another remark than in {forms[0]}: {sorted(done.notes ^ first.notes)}")
        elif done.pins != first.pins:
            found.append(f"{named}: {done.pins} pinned, {first.pins} in {forms[0]}")
    return found


def everything(files: int, seed: int, show: int) -> int:
    """Print how many files are wrong, in which formats, and some of them."""
    bad, shown = Counter[str](), 0
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for i in range(files):
            drawn = random.Random(f"{seed} {i}")
            made = honest(drawn.choice, i)
            for text in wrong(made, drawn.sample(FORMATS, 3), drawn, Path(folder)):
                bad[text.partition(":")[0]] += 1
                if shown < show:
                    print(f"file {i}: {text}", flush=True)
                    shown += 1
            if (i + 1) % 1000 == 0:
                print(f"{i + 1:6,} files, {bad.total()} wrong", flush=True)
        os.chdir("/")
    print(f"{files:,} files in 3 of {len(FORMATS)} formats each, seed {seed}: {bad.total()} wrong", dict(bad) or "")
    return int(bad.total() > 0)


if __name__ == "__main__":
    from _harness import arguments

    given = arguments(__doc__, files=10_000, seed=0, show=5)
    sys.exit(everything(given.files, given.seed, given.show))
