"""What the input was taken for: one record, made where recorded outputs are read, that every package reads.

Each part of it was *stated* by an option, *named* by the file, *seen* in its values, or *assumed* by a convention
(`ASSUMED`). What could be two things is not assumed: it is refused where it is read, with the options that decide it.
"""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from calibcli.core.number_format import count_text
from calibcli.scores.reading_options import ROW_OF_POSITION

Ground = Literal["stated", "named", "seen", "assumed"]
ASSUMED = {
    "classes": "classes by number: label 0 is the first column of scores",
    "event": "the event is the second class",
    "class 1": "one score is that of class 1",
}
"""What is assumed where neither an option nor the file says otherwise, and no value contradicts it."""
MOST_CLASSES = 20  # that a record lists by name; of more it has the number and a digest
SHOWN = 4  # columns or classes that a line names


@dataclass(frozen=True)
class Repeats:
    """Rows that repeat the name of an earlier one.

    Attributes:
        column: that names the rows.  rows: that repeat a name.
        split: whether rows of one name lie in several of the groups that were asked for.
        in_python: whether they are an argument of a function, and no column of a file.
    """

    column: str
    rows: int
    split: bool = False
    in_python: bool = False

    def said(self, n: int) -> str:
        """Say how many of `n` rows repeat a sample."""
        inside = ", in several groups" if self.split else ""
        return f"{self.rows:,} of {n:,} rows repeat a sample (named by '{self.column}'){inside}"

    @property
    def fix(self) -> str:
        option = f"group={self.column}" if self.in_python else f"--group {shlex.quote(self.column)}"
        return f"{option} counts the rows of one name as one"


@dataclass(frozen=True, kw_only=True)
class ReadingRecord:
    """What recorded outputs were taken for.

    >>> record = calibcli.read("sample_data/test.npz").record
    >>> record.scores, record.labels, record.kind, record.columns
    ('logits', 'labels', 'logits', 10)

    Attributes:
        format: of the file.  files: path and sha256 of each.  task: the one that the file names, or "".
        tasks: names of the tasks that were joined.  evaluation: how an evaluation was read.
        scores, labels: names of the arrays.  columns: of the scores in the file; 0 where they come from no file.
        dtype: of the scores.  kind: of the scores, in words.  recognised: the kind that the values alone tell.
        why: the evidence for it.
        clip: what smaller probabilities were raised to, or 0.  mask: the distance of masked logits, or 0.
        folded: the calibrator that is already in the scores, as `calib logits` noted it.
        labelled: whether there are labels; without them all labels are 0.
        unrelated: whether labels look unrelated to the predictions.
        label_values: what the file has for each class, by code; None without labels.
        class_rows: rows by code of the class.
        exchanged: whether two columns were exchanged, so that the event is the second.
        repeated_rows: that equal another row.  copies: of them those that chance does not explain.
        repeats: rows that repeat a sample.  unique: columns that name every row differently.
        left_out: rows that were left out, by cause: `answers`, `classes`, `labels` (`reading_options.CAUSES`),
            `nonfinite`, `ignored` (`--ignore-label`), `unlisted` (a choice that is not listed).
        choices_vary: whether rows differ in their number of choices.
        guess_nll, guess_accuracy: then the mean of what a guess would give; else 0.
        members: the columns of the file that are the scores, where they are several.
        grounds: how it is known what the scores, labels, classes and kind are.
        assumed: keys of `ASSUMED`.  stated: options that were given, with their values.
        predicted: the column of the predicted class, where its equality with the label says what was right.
        ids, group, weights: names of the columns; "" where there are none.
        unused: columns with a value per row that nothing asked for.  rivals: of them those that could be scores too.
    """

    format: str = ""
    files: Sequence[Mapping[str, Any]] = ()
    task: str = ""
    tasks: Sequence[str] = ()
    evaluation: Mapping[str, str] = field(default_factory=dict)
    scores: str = ""
    labels: str = ""
    columns: int = 0
    dtype: str = ""
    kind: str = ""
    recognised: str = ""
    why: str = ""
    clip: float = 0.0
    mask: float = 0.0
    folded: str = ""
    labelled: bool = True
    unrelated: bool = False
    label_values: Sequence[Any] | None = None
    class_rows: Mapping[str, int] = field(default_factory=dict)
    exchanged: bool = False
    repeated_rows: int = 0
    copies: int = 0
    repeats: Repeats | None = None
    unique: Sequence[str] = ()
    left_out: Mapping[str, int] = field(default_factory=dict)
    choices_vary: bool = False
    guess_nll: float = 0.0
    guess_accuracy: float = 0.0
    members: Sequence[str] = ()
    grounds: Mapping[str, Ground] = field(default_factory=dict)
    assumed: Sequence[str] = ()
    stated: Mapping[str, Any] = field(default_factory=dict)
    predicted: str = ""
    ids: str = ""
    group: str = ""
    weights: str = ""
    unused: Sequence[str] = ()
    rivals: Sequence[str] = ()


def class_list(classes: Sequence[str]) -> list[str]:
    """Return the classes; of more than MOST_CLASSES one text, their number and a digest, `1000, sha256:4be1...`."""
    if len(classes) <= MOST_CLASSES:
        return [*classes]
    digest = hashlib.sha256(json.dumps([*classes]).encode()).hexdigest()
    return [f"{len(classes)}, sha256:{digest[:16]}"]


def lines(read: Mapping[str, Any]) -> list[str]:
    """Say in one line, or two, what was read.

    >>> rows = calibcli.read("sample_data/test.npz", by=["ink"])
    >>> print(*lines(rows.described), sep=chr(10))
    read: logits as logits of 0, 1, 2 .. 9 (10 classes); truth: labels; 997 rows, each its own unit
    """
    scores, classes = str(read.get("scores", "")).split(","), [*read.get("classes", ())]
    kind = str(read.get("kind", "")).replace("_", "-")
    class_text = f" of {_short(classes)}" if classes else ""
    class_text += f" ({len(classes):,} classes)" if len(classes) > SHOWN else ""
    event = f" (event: {read['event']})" if read.get("event") else ""
    truth = f"truth: {read['labels']}" if read.get("labels") else "no truth"
    unit = f"in {count_text(read.get('groups', 0), 'group')} by {read['group']}" if read.get("group") else ""
    unit = unit or (f"samples repeated by {read['repeats']}" if read.get("repeats") else "each its own unit")
    weights = f", weights: {read['weights']}" if read.get("weights") else ""
    if read.get("group") == ROW_OF_POSITION:
        unit = f"{count_text(int(read.get('rows', 0)), 'position')} of {count_text(read.get('groups', 0), 'row')}"
        rows = f"{unit}, which belong together{weights}"
    else:
        rows = f"{count_text(int(read.get('rows', 0)), 'row')}, {unit}{weights}"
    out = [f"read: {_short(scores)} as {kind}{class_text}{event}; {truth}; {rows}"]
    rivals = set(read.get("rivals", ()))
    unused = [name + " (could be scores too)" * (name in rivals) for name in read.get("unused", ())]
    left_out = {cause: int(count) for cause, count in read.get("left_out", {}).items() if count}
    total = int(read.get("rows", 0)) + sum(left_out.values())
    more = {
        "not used": _short(unused),
        "left out": f"{_causes(left_out)} of {total:,}" if left_out else "",
        "stated": " ".join(_option(name, value) for name, value in read.get("stated", {}).items()),
        "assumed": "; ".join(ASSUMED[key] for key in read.get("assumed", ()) if key in ASSUMED and key != "classes"),
    }
    further = ". ".join(f"{name}: {text}" for name, text in more.items() if text)
    return [*out, f"      {further}"] if further else out


def _causes(left_out: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} ({cause})" for cause, count in left_out.items())


def _option(name: str, value: Any) -> str:
    flag = f"--{name.replace('_', '-')}"
    return flag if value is True else f"{flag} {shlex.quote(str(value))}"


def _short(names: Sequence[str]) -> str:
    """List names, of many the first and the last."""
    if len(names) <= SHOWN + 1:
        return ", ".join(names)
    return f"{', '.join(names[: SHOWN - 1])} .. {names[-1]}"
