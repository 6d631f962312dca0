"""What the input was taken for: one record, made where recorded outputs are read, that every package reads."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


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
