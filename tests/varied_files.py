"""Tables of recorded outputs, varied from a seed, and the numbers that are right for each line of options.

A column may be renamed, dropped, doubled or moved; labels are words, numbers or letters; there are 2, 3 or 10 classes.
A number is right if it is that of the scores and labels from which the file was made, as the line states them. Where
neither names nor values tell the order of the classes, what a line states about it is taken at its word.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from layouts import Floats, Ints, Numbers, model, of_confidence, of_event, of_top, off_edges, softmax

WORDS = ["amber", "birch", "coral", "delta", "ember", "frost", "grove", "haze", "iris", "jade", "kelp", "lilac"]
BY_CLASS = ["{}", "p_{}", "prob_{}", "{}_prob", "proba_{}", "score[{}]", "P({})", "Pr.{}", "x={}", "y: {} share"]
BY_NUMBER = ["prob_{}", "p{}", "score_{}", "proba_{}", "class_{}", "{}", "out_{}"]
TRUTHS = ["label", "target", "y_true", "truth", "actual", "gold", "class", "resposta", "wahr", "churned", "seen as"]
CALLS = ["predicted", "y_pred", "pred", "prediction", "yhat", "guess", "call", "resultado"]
SHARES = ["prob", "score", "p", "probability", "risk", "fitted", "chance", "Model Risk"]
SURES = ["confidence", "conf", "max_prob", "score", "certainty", "sure"]
STRANGE = ["wert", "col7", "feld", "valor", "q", "Column 3"]
LABELS = ["words", "words", "numbers", "letters", "from one", "with a point"]
FORMS = ["csv", "csv", "tsv", ";", "jsonl", "json"]
CHANGES = ["nothing", "renamed", "dropped", "doubled", "moved", "moved", "blanked", "headless"]


@dataclass
class Column:
    """A column; its `role` is truth, call, verdict, id, other, sure (of the top class), or share: P of a class.

    Attributes:
        family: of a share, the model that it is of.
        of: of a share, the number of its class; of one among sorted shares, its rank.
        told: whether its name tells what it is.  strange: whether it was renamed.
    """

    name: str
    values: Any
    role: str
    family: str = ""
    of: int = -1
    told: bool = True
    strange: bool = False


@dataclass
class Case:
    """A file, with what it was made from."""

    name: str
    form: str
    k: int
    classes: list[str]
    y: Ints
    columns: list[Column]
    probabilities: Mapping[str, Floats]
    style: str
    blank: Ints = field(default_factory=lambda: np.zeros(0, int))
    header: bool = True

    def named(self, role: str) -> list[Column]:
        return [column for column in self.columns if column.role == role]

    def write(self, folder: Path) -> str:
        """Write the file and return its name."""
        suffix = {";": "csv"}.get(self.form, self.form)
        path = folder / f"rows.{suffix}"
        names = [column.name for column in self.columns]
        rows = [list(row) for row in zip(*(np.asarray(c.values).tolist() for c in self.columns), strict=True)]
        if self.form == "jsonl":
            path.write_text("".join(json.dumps(dict(zip(names, row))) + "\n" for row in rows))
        elif self.form == "json":
            path.write_text(json.dumps({"columns": names, "data": rows}))
        else:
            with path.open("w", newline="") as file:
                cut = {"tsv": "\t", ";": ";"}.get(self.form, ",")
                table = csv.writer(file, delimiter=cut, lineterminator="\n")
                table.writerows([names, *rows] if self.header else rows)
        return path.name

    # What is right.

    def right(self, line: Sequence[str]) -> list[Numbers]:
        """Return the numbers that are right for a line of options."""
        stated = options(line)
        rows = np.setdiff1d(np.arange(len(self.y)), self.blank)
        if len(self.blank) and stated.get("--missing") != "drop" and "--ignore-label" not in stated:
            return []
        if not self.header and "--no-header" not in stated:
            return []
        if "--multilabel" in stated:
            return []
        if "--confidence" in stated or "--correct" in stated:
            return self._of_confidence(stated, rows)
        labels, wanted = stated.get("--labels"), stated.get("--scores")
        if not labels and not wanted and self.named("sure") and self.named("verdict"):
            return [self._sure(rows)]
        roles = {c.name: c.role for c in self.columns}
        if roles.get(labels or "") == "verdict" and roles.get(wanted or "") == "sure" and not self.named("call"):
            hit = (self.probabilities["a"].argmax(1) == self.y).astype(int)  # nothing tells it from labels 0 and 1
            return [self._sure(rows), of_event(self.probabilities["a"].max(1)[rows], hit[rows])]
        if not (self._is_truth(labels) if labels else self.named("truth")):
            return []
        if "--label-base" in stated and (stated["--label-base"] == "1") != (self.style == "from one"):
            return []
        if wanted is None:
            return self._as_it_is(stated, rows)
        if found := [c for c in self.columns if c.name == wanted]:
            return self._of_one(found[0], stated, rows)
        if "," in wanted:
            own = [next((c for c in self.columns if c.name == name.strip()), None) for name in wanted.split(",")]
            return self._of_family([c for c in own if c is not None], stated, rows) if None not in own else []
        alike = [f for f in self.families() if all(wanted.lower() in c.name.lower() for c in self.families()[f])]
        return [one for f in alike for one in self._of_family(self.families()[f], stated, rows)]

    def families(self) -> dict[str, list[Column]]:
        """The families that have a column for each class, in the order of the file."""
        out: dict[str, list[Column]] = {}
        for column in self.named("share"):
            members = out.setdefault(column.family, [])
            if column.of not in [one.of for one in members]:
                members.append(column)
        return {family: members for family, members in out.items() if len(members) == self.k}

    def _is_truth(self, labels: str) -> bool:
        """Whether `--labels` names a column of the truth."""
        return any(c.name.lower() == labels.lower() for c in self.named("truth"))

    def _as_it_is(self, stated: Mapping[str, str], rows: Ints) -> list[Numbers]:
        """What is right where no line says which columns are scores."""
        whole = self.families()
        if len(whole) > 1:  # one of them may have names that share nothing
            whole = {family: members for family, members in whole.items() if not any(c.strange for c in members)}
            if len(whole) != 1:
                return []
        if whole:
            return self._of_family(next(iter(whole.values())), stated, rows)
        if self.named("ranked"):
            listed = all({c.of for c in self.named(role)} == set(range(self.k)) for role in ("listed", "ranked"))
            return [self._true("a", rows)] if listed else []
        if self.named("sure"):
            return [self._sure(rows)] if self.named("call") and self.named("truth") else []
        shares = self.named("share")
        if self.k == 2 and len({(c.family, c.of) for c in shares}) == 1:
            return self._of_one(shares[0], stated, rows)
        return []

    def _of_family(self, columns: Sequence[Column], stated: Mapping[str, str], rows: Ints) -> list[Numbers]:
        """What is right of columns that stand for the classes, by their names or in their order."""
        if {c.role for c in columns} != {"share"} or len({c.family for c in columns}) > 1:
            return []
        if sorted(c.of for c in columns) != list(range(self.k)):
            return []
        if stated.get("--kind", "probabilities") not in ("probabilities", "auto"):
            return []
        family = columns[0].family
        found = [self._true(family, rows)]
        if all(c.told for c in columns) or self.named("call"):
            return found
        order = stated["--classes"].split(",") if "--classes" in stated else sorted(self.classes, key=_key)
        if "--classes" not in stated and self.style == "words":
            return found
        if sorted(order) == sorted(self.classes):  # the first column is of the first class that the line names
            at = np.array([self.classes.index(name) for name in order])
            p = self.probabilities[family][:, [c.of for c in columns]]
            found.append(self._numbers(p, np.argsort(at)[self.y], rows))
        return found

    def _of_one(self, column: Column, stated: Mapping[str, str], rows: Ints) -> list[Numbers]:
        """What is right of one column that is P of a class."""
        if column.role != "share" or self.k != 2 or stated.get("--kind", "probabilities") != "probabilities":
            return []
        p = self.probabilities[column.family][:, column.of]
        event = stated.get("--event", "")
        own = [of_event(p[rows], (self.y == column.of)[rows].astype(int))]
        told = column.told and not column.name.isdecimal()
        sure = told or bool(self.named("call"))
        if event in self.classes:
            if (
                self.classes.index(event) == column.of or column.told
            ):  # of a name that tells, the other class is measured
                return own
            return [] if sure else [of_event(p[rows], (self.y != column.of)[rows].astype(int))]
        if sure or self.style == "words":
            return own
        return [*own, of_event(p[rows], self.y[rows])]

    def _of_confidence(self, stated: Mapping[str, str], rows: Ints) -> list[Numbers]:
        column = next((c for c in self.columns if c.name == stated.get("--confidence")), None)
        by_name = {c.name: c.role for c in self.columns}
        if column is None or column.role != "sure":
            return []
        if "--correct" in stated:
            return [self._sure(rows)] if by_name.get(stated["--correct"]) == "verdict" else []
        if self.named("verdict"):
            own = by_name.get(stated.get("--labels", ""), "verdict") == "verdict" and "--predicted" not in stated
            return [self._sure(rows)] if own else []
        pair = {by_name.get(stated.get(option, ""), option) for option in ("--predicted", "--labels")}
        # which of two columns of classes is the prediction makes no difference to how often they agree
        fits = [{"call", "truth"}, {"call", "--labels"}, {"--predicted", "truth"}, {"--predicted", "--labels"}]
        whole = bool(self.named("call") and self.named("truth"))
        return [self._sure(rows)] if whole and pair in fits else []

    def _true(self, family: str, rows: Ints) -> Numbers:
        return self._numbers(self.probabilities[family], self.y, rows)

    def _numbers(self, p: Floats, y: Ints, rows: Ints) -> Numbers:
        return of_event(p[rows, 1], y[rows]) if self.k == 2 else of_top(p[rows], y[rows])

    def _sure(self, rows: Ints) -> Numbers:
        p = self.probabilities["a"][rows]
        return of_confidence(p.max(1), (p.argmax(1) == self.y[rows]).astype(int))


def options(line: Sequence[str]) -> dict[str, str]:
    """The options of a line, with "" for one that stands alone."""
    out, i = {}, 0
    while i < len(line):
        alone = i + 1 == len(line) or line[i + 1].startswith("--")
        if line[i].startswith("--"):
            out[line[i]] = "" if alone else line[i + 1]
        i += 1
    return out


def _key(name: str) -> tuple[float, str]:
    return (float(name), "") if name.replace(".", "").isdecimal() else (0.0, name)


# Making.


def case(seed: int) -> Case:
    """Return the case of a seed."""
    rng = np.random.default_rng([2026, seed])
    k = int(rng.choice([2, 2, 3, 3, 10]))
    style = str(rng.choice(LABELS))
    classes = _classes(rng, k, style)
    p, y = model(rng, k, 300)
    if k == 2:
        p[:, 1] = off_edges(p[:, 1], 6)
        p[:, 0] = np.round(1 - p[:, 1], 6)
    shape = str(rng.choice(["family"] * 4 + ["one share", "sure", "verdict", "sorted"]))
    shape = "family" if (shape == "one share" and k != 2) or (shape == "sorted" and k == 2) else shape
    q = softmax(np.log(p) / 1.8).round(6)
    if k == 2:
        q[:, 1] = off_edges(q[:, 1], 6)
        q[:, 0] = np.round(1 - q[:, 1], 6)
    truth = Column(str(rng.choice(TRUTHS)), _cells(classes, y, style), "truth")
    call = Column(str(rng.choice(CALLS)), _cells(classes, p.argmax(1), style), "call")
    columns, called = _scores(rng, shape, p, q, classes, style)
    columns += [] if shape == "verdict" else [truth]
    columns += [call] if shape == "sure" or (called and shape != "verdict") else []
    columns += [Column("verdict" if rng.random() < 0.3 else "correct", 1 * (p.argmax(1) == y), "verdict")] * (
        shape == "verdict"
    )
    if rng.random() < 0.5:
        columns.insert(0, Column(str(rng.choice(["id", "rowIndex", "", "doc_id"])), np.arange(300), "id"))
    if rng.random() < 0.4:
        columns.append(Column("age", rng.integers(20, 80, 300), "other"))
    if rng.random() < 0.3:
        columns.append(Column("site", rng.choice(["river", "wood", "hill"], 300), "other"))
    form = str(rng.choice(FORMS))
    made = Case(f"{seed}", form, k, classes, y, columns, {"a": p, "b": q}, style)
    changes = [str(change) for change in rng.choice(CHANGES, int(rng.integers(1, 3)), replace=False)]
    for change in changes:
        _change(made, change, rng)
    names = [column.name for column in made.columns]
    for i, column in enumerate(made.columns):  # one name each, as in any table
        if column.name in names[:i]:
            column.name = f"{column.name}.{i}"
    made.name = f"{seed}-{shape}-{k}-{style}-{'-'.join(changes)}".replace(" ", "_")
    return made


def _classes(rng: np.random.Generator, k: int, style: str) -> list[str]:
    if style == "words":
        return [str(word) for word in rng.permutation(WORDS)[:k]]
    if style == "letters":
        return list("ABCDEFGHIJ")[:k]
    return [str(i + (style == "from one")) for i in range(k)]


def _cells(classes: Sequence[str], y: Ints, style: str) -> Any:
    return np.array([f"{name}.0" if style == "with a point" else name for name in classes])[y]


def _scores(
    rng: np.random.Generator, shape: str, p: Floats, q: Floats, classes: Sequence[str], style: str
) -> tuple[list[Column], bool]:
    """Return the columns of scores, and whether the predicted class stands beside them."""
    k, called = len(classes), bool(rng.random() < 0.45)
    if shape in ("sure", "verdict"):
        return [Column(str(rng.choice(SURES)), p.max(1), "sure")], called
    if shape == "one share":
        of = int(rng.random() < 0.8)
        by_class = style == "words" and rng.random() < 0.4
        name = f"prob_{classes[of]}" if by_class else str(rng.choice(SHARES))
        return [Column(name, p[:, of], "share", "a", of, told=by_class)], called
    if shape == "sorted":
        order = np.argsort(-p, axis=1)
        ranked = np.take_along_axis(p, order, 1)
        names, shares = [("label_{}", "prob_{}"), ("top{}", "p{}"), ("class_{}", "share_{}")][int(rng.integers(3))]
        first = int(rng.integers(2))
        listed = [
            Column(names.format(i + first), _cells(classes, order[:, i], style), "listed", of=i) for i in range(k)
        ]
        return [*listed, *(Column(shares.format(i + first), ranked[:, i], "ranked", of=i) for i in range(k))], called
    by_class = style in ("words", "letters") and rng.random() < 0.7
    out = _family(rng, "a", p, classes, style, by_class, "")
    if rng.random() < 0.2:
        out += _family(rng, "b", q, classes, style, by_class, str(rng.choice(["cal_", "new_", "B"])))
    return out, called


def _family(
    rng: np.random.Generator, family: str, p: Floats, classes: Sequence[str], style: str, by_class: bool, before: str
) -> list[Column]:
    shape = before + str(rng.choice(BY_CLASS if by_class else BY_NUMBER))
    first = int(not by_class and (style == "from one" or (style == "words" and rng.random() < 0.5)))
    told = by_class or style in ("numbers", "with a point", "from one")
    words = classes if by_class else [str(i + first) for i in range(len(classes))]
    return [Column(shape.format(w), p[:, i], "share", family, i, told) for i, w in enumerate(words)]


def _change(case: Case, change: str, rng: np.random.Generator) -> None:
    columns = case.columns
    at = int(rng.integers(len(columns)))
    if change == "renamed":
        columns[at].name, columns[at].told, columns[at].strange = str(rng.choice(STRANGE)), False, True
    elif change == "dropped" and len(columns) > 2:
        del columns[at]
    elif change == "doubled":
        one = columns[at]
        name = str(rng.choice([f"{one.name}_copy", f"{one.name}.1", "again"]))
        columns.insert(
            int(rng.integers(len(columns) + 1)), Column(name, one.values, one.role, one.family, one.of, False)
        )
    elif change == "moved":
        columns[:] = [columns[i] for i in rng.permutation(len(columns))]
    elif change == "blanked" and case.named("truth") and case.header:
        case.blank = np.sort(rng.choice(300, 9, replace=False))
        word = str(rng.choice(["", "NA", "NaN", "None", "?"]))
        for column in case.named("truth"):
            column.values = np.where(np.isin(np.arange(300), case.blank), word, np.asarray(column.values).astype("U9"))
    elif change == "headless" and case.form in ("csv", "tsv", ";"):
        case.header = False
        for i, column in enumerate(columns):
            column.name, column.told = str(i), False


# Verdicts of people on some rows, and of a judge on all; or yes and no as the answers themselves.


PEOPLE, JUDGES = ["human", "annotator", "checked", "gold"], ["gpt", "llm_judge", "grader", "claude says"]
SAID = [("yes", "no"), ("True", "False"), ("1", "0"), ("correct", "incorrect"), ("pass", "fail"), ("Yes", "No")]


@dataclass
class Judged:
    """A file with a confidence and two columns of the same two words; `gold` and `pred` are answers, not verdicts.

    Attributes:
        people, judge: names of the columns.  answers: whether these hold predicted and observed answers.
        some: (N,) rows that people looked at.
    """

    text: str
    people: str
    judge: str
    answers: bool
    confidence: Floats
    right_by_people: Ints
    right_by_judge: Ints
    some: Any

    def right(self, line: Sequence[str]) -> list[Numbers]:
        """Return the numbers that are right for a line of options."""
        stated = options(line)
        rows = np.flatnonzero(self.some)
        if self.answers:
            named = {stated.get("--predicted"), stated.get("--labels")} == {self.people, self.judge}
            found = self.right_by_people if named and (self.some.all() or stated.get("--missing") == "drop") else None
        elif stated.get("--correct") == self.people:
            if stated.get("--judge") == self.judge:
                return [(self._together(), None)] if not self.some.all() else []
            if not self.some.all() and stated.get("--missing") != "drop":
                return []
            found = self.right_by_people
        else:  # of two judges who saw every row, nothing tells which one is right
            found = self.right_by_judge if self.some.all() and stated.get("--correct") == self.judge else None
        return [] if found is None else [of_confidence(self.confidence[rows], found[rows])]

    def _together(self) -> float:
        """The prediction-powered accuracy, by halves."""
        y, f, rest = self.right_by_people[self.some], self.right_by_judge[self.some], self.right_by_judge[~self.some]
        half, n, m = np.arange(len(y)) % 2, len(y), len(rest)
        trust = np.zeros(n)
        for one in (0, 1):
            at = half != one
            slope = np.cov(y[at], f[at], bias=True)[0, 1] / f[at].var() if f[at].var() else 0.0
            trust[~at] = np.clip(slope / (1 + n / m), 0, 1)
        return float((y - trust * f).mean() + trust.mean() * rest.mean())


def judged(seed: int) -> Judged:
    """Return a file of a seed."""
    rng = np.random.default_rng([7, seed])
    n, answers, whole = 900, seed % 3 == 2, seed % 4 == 3
    words = SAID[0] if answers else SAID[seed % len(SAID)]
    confidence = rng.uniform(0.5, 1, n).round(4)
    right = (rng.random(n) < confidence - 0.05).astype(int)
    by_judge = np.where(rng.random(n) < 0.9, right, 1 - right)
    some = np.ones(n, bool) if whole else np.isin(np.arange(n), rng.permutation(n)[:400])
    people, judge = str(rng.choice(PEOPLE)), str(rng.choice(JUDGES))
    if answers:  # the predicted answer, yes as often as no, and the observed one
        people, judge = "observed answer", "said"
        said = rng.integers(0, 2, n)
        cells = {judge: said, people: np.where(right, said, 1 - said)}
    else:
        cells = {judge: by_judge, people: right}
    out: dict[str, Any] = {"question": [f"q{i}" for i in range(n)], "sure": confidence}
    out |= {name: np.array([words[1], words[0]])[cells[name]] for name in rng.permutation([*cells]).tolist()}
    out[people] = np.where(some, out[people], "")
    rows = [",".join(out), *(",".join(map(str, row)) for row in zip(*out.values(), strict=True))]
    return Judged("\n".join(rows) + "\n", people, judge, answers, confidence, right, by_judge, some)
