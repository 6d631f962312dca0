"""Samples of lm-evaluation-harness (Gao et al. 2021), of tasks that score every choice.

A question has `filtered_resps` [[log-likelihood, is_greedy], ...] (numbers or text), `arguments` with the context and
the continuation of each choice, `target`, and a verdict per metric: `acc` compares the log-likelihoods, `acc_norm`
these divided by the number of characters of the choice, `acc_bytes` by its bytes, and `acc_mutual_info` less those of
the choice without the question, which then follow the others.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from calibcli.core.errors import InputError
from calibcli.core.options import real, whole
from calibcli.scores.files.arrays import FileContents, column_of
from calibcli.scores.files.evals import answers
from calibcli.scores.files.source import Source
from calibcli.scores.predictions import Array, Ints

EXPANSION = 3  # bytes of memory for each byte of text: only the numbers and short texts of a row are kept
FORMAT = "jsonl, lm-eval samples"
METRICS = {"sum": "acc", "char": "acc_norm", "byte": "acc_bytes", "pmi": "acc_mutual_info"}
NORMS = {
    "sum": "log-likelihood of the choice (--lm-norm sum)",
    "char": "log-likelihood of the choice / its characters (--lm-norm char)",
    "byte": "log-likelihood of the choice / its bytes in UTF-8 (--lm-norm byte)",
    "pmi": "log-likelihood of the choice less that without the question (--lm-norm pmi)",
}
GENERATED = "filtered_resps holds no [log-likelihood, is_greedy] per choice: a generation task?"
UNCLEAR = -(2**31)
SAVE = "save the log-likelihoods as logits and the index of the right choice as label"
OWN = ("doc_id", "target", "arguments", "resps", "filtered_resps", "filter", "metrics")
OWN_ENDS = "_hash"


def matches(row: Mapping[str, Any]) -> bool:
    """Return whether a row belongs to a samples file."""
    return "filtered_resps" in row or "resps" in row


@dataclass
class TaskSamples(answers.Questions):
    """The questions read so far: scores of the choices, lengths of their texts, targets, verdicts.

    Attributes:
        scores: log-likelihoods.  free: those without the question, where they were asked for.
        chars, bytes: lengths of the continuations.  lead: whitespace that all of them begin with (None: none seen).
        labels: index of the target, UNCLEAR where it does not tell.  others: of the choice whose text is a number in
            `target`.
        verdicts: by metric.
    """

    free: list[list[float]] = field(default_factory=list)
    chars: list[list[int]] = field(default_factory=list)
    bytes: list[list[int]] = field(default_factory=list)
    lead: str | None = None
    others: list[int] = field(default_factory=list)
    verdicts: dict[str, list[Any]] = field(default_factory=lambda: {metric: [] for metric in METRICS.values()})

    def add(self, row: Mapping[str, Any], scores: list[float], here: str) -> None:
        texts = _continuations(row.get("arguments"), len(scores))
        if _twice(row, texts, len(scores), here):
            half = len(scores) // 2
            self.free.append(scores[half:])
            scores, texts = scores[:half], texts[:half]
        label, other = _target(row, texts, len(scores), here)
        further = {k: v for k, v in row.items() if k not in OWN and not k.endswith(OWN_ENDS)}
        self.keep(scores, label, row.get("doc_id", len(self.ids)), further)
        self.chars.append([len(text) for text in texts])
        self.bytes.append([len(text.encode("utf-8", "replace")) for text in texts])
        for text in texts:
            if self.lead is None or not text.startswith(self.lead):
                lead = text[: len(text) - len(text.lstrip())]
                self.lead = lead if self.lead is None else os.path.commonprefix([self.lead, lead])  # noqa: RUF071
        self.others.append(other)
        for metric, values in self.verdicts.items():
            value = row.get(metric)
            values.append(value if isinstance(value, int | float) else None)

    def table(self, norm: str, without: bool = True) -> Array | None:
        """Return (N, K) scores in a normalisation, or None if the file lacks what the normalisation needs.

        Args:
            norm: of METRICS.  without: leave what all continuations begin with out of their length.
        """
        table = answers.padded(self.scores, "the samples")
        if norm == "sum":
            return table
        if norm == "pmi":
            return (
                table - answers.filled(self.free, table.shape[1], 0.0) if len(self.free) == len(self.scores) else None
            )
        lengths = self.chars if norm == "char" else self.bytes
        if any(len(row) != len(scores) for row, scores in zip(lengths, self.scores)):
            return None
        lead = len(self.lead or "") if without else 0
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(
                table == -np.inf, table, table / (answers.filled(lengths, table.shape[1], lead + 1.0) - lead)
            )


def read(source: Source, first: Mapping[str, Any], rows: Iterator[dict[str, Any]]) -> FileContents:
    """Read the scores of the choices as logits, by `--lm-norm`, and check them against the harness's verdicts.

    Raises:
        InputError: no scores of every choice, or targets that are unclear or contradict a verdict.
    """
    task, filters, metrics = TaskSamples(), Counter[str](), set[str]()
    for row in itertools.chain([first], rows):
        name = str(row.get("filter", "none"))
        filters[name] += 1
        if name != next(iter(filters)):
            continue
        here = f"row {len(task.scores)} of {source.name}"
        likelihoods = _likelihoods(row)
        if not likelihoods and task.scores:
            raise InputError(f"{here}: {GENERATED}", "only multiple-choice tasks score every choice")
        if not likelihoods:
            return _generated(row, rows, here)
        task.add(row, likelihoods, here)
        if isinstance(row.get("metrics"), list):
            metrics.update(m for m in row["metrics"] if isinstance(m, str))
    norm = source.options.lm_norm or "sum"
    answers.padded(task.scores, source.name)
    labels, notes = _judged(task, source)
    table = task.table(norm, task.lead is not None)
    if table is None:
        why = "log-likelihoods without the question (acc_mutual_info)" if norm == "pmi" else "the texts of the choices"
        raise InputError(f"--lm-norm {norm} needs {why}, which {source.name} lacks", "pass --lm-norm sum")
    notes = [f"samples of lm-eval: {len(task.scores):,} questions, as logits the {NORMS[norm]}", *notes]
    has = metrics | {metric for metric, values in task.verdicts.items() if any(v is not None for v in values)}
    if not source.options.lm_norm and "acc_norm" in has and "acc" not in has:
        notes.append("the task reports acc_norm alone, which divides by the characters of the choice: --lm-norm char")
    if len(filters) > 1:
        kept, *others = filters
        notes.append(f"rows of filter '{kept}' read, those of {', '.join(others)} left out")
    return task.contents(
        FORMAT,
        source,
        ("filtered_resps", "target", "doc_id"),
        *(table, labels, column_of(task.ids)),
        ragged=frozenset({"filtered_resps"}),
        notes=[*notes, *answers.note_on_lengths(task.scores)],
        facts={"scores are": NORMS[norm]},
        task=task_of(source.stem),
        used=frozenset({"lm_norm"}),
    )


def task_of(stem: str) -> str:
    """Return the task in a file name such as `samples_TASK_2026-11-22T10-00-00.123`."""
    name = stem.removeprefix("samples_")
    head, _, tail = name.rpartition("_")
    return head if head and tail[:2].isdigit() and "T" in tail else name


def _judged(task: TaskSamples, source: Source) -> tuple[Ints, list[str]]:
    """Return (N,) labels and notes. Where targets of two choices do not tell, the label follows from the verdict; all
    labels are checked against every verdict.

    Raises:
        InputError: unclear ones without a verdict; a verdict that contradicts.
    """
    notes, used = [], {metric: norm for norm, metric in METRICS.items() if set(task.verdicts[metric]) != {None}}
    tables = {metric: table for metric, norm in used.items() if (table := task.table(norm)) is not None}
    labels = np.array(task.labels)
    unclear = np.flatnonzero(labels == UNCLEAR)
    if len(unclear):
        by = next((m for m in tables if all(task.verdicts[m][i] in (0, 1) for i in unclear)), None)
        if by is None:
            problem = f"row {unclear[0]} of {source.name}: its target does not say which of two choices is right"
            raise InputError(f"{problem} (as in winogrande), and neither does acc", SAVE)
        best = np.nan_to_num(tables[by][unclear, :2], nan=-np.inf).argmax(axis=1)
        right = np.array([task.verdicts[by][i] == 1 for i in unclear])
        labels[unclear] = np.where(right, best, 1 - best)
        notes.append(
            f"in {len(unclear):,} rows the target does not say which choice is right: their label follows from {by}"
        )
    others = np.where(np.array(task.others) == UNCLEAR, labels, task.others)
    if (others != labels).any() and not _right(task, tables, labels, source) and _right(task, tables, others, source):
        labels = others
        notes.append(
            "targets are read as the texts of choices, not as their numbers, as only then they agree with the verdicts"
        )
    try:
        for metric, table in tables.items():
            answers.check_verdicts(table, labels, task.verdicts[metric], metric, source.name)
    except InputError:
        whole = {metric: task.table(used[metric], without=False) for metric in tables}
        complete = {metric: table for metric, table in whole.items() if table is not None}
        if not (task.lead and {"acc_norm", "acc_bytes"} & set(tables)) or not _right(task, complete, labels, source):
            raise
        task.lead = None  # the choices themselves begin so
    return labels, notes


def _right(task: TaskSamples, tables: Mapping[str, Array], labels: Ints, source: Source) -> bool:
    """Return whether the labels agree with every verdict."""
    try:
        for metric, table in tables.items():
            answers.check_verdicts(table, labels, task.verdicts[metric], metric, source.name)
    except InputError:
        return False
    return True


def _generated(first: Mapping[str, Any], rows: Iterator[dict[str, Any]], here: str) -> FileContents:
    """Return what a generation task recorded beside its answers."""
    columns = answers.NestedColumns()
    for row in itertools.chain([first], rows):
        columns.add({k: v for k, v in row.items() if k not in OWN[2:] and not k.endswith(OWN_ENDS)})
    fix = "only multiple-choice tasks score every choice; a confidence beside a verdict: --confidence KEY --correct KEY"
    verdicts = ("acc", "exact_match", "correct")
    return answers.contents_without_scores(FORMAT, columns, f"{here}: {GENERATED}", fix, correct=verdicts)


def _likelihoods(row: Mapping[str, Any]) -> list[float]:
    """Return the log-likelihood of every choice, or [] for a row that does not score its choices."""
    responses = row.get("filtered_resps", row.get("resps"))
    try:
        if not isinstance(responses, list) or not 2 <= len(responses) <= answers.CHOICES:
            raise TypeError
        values = []
        for choice in responses:
            while isinstance(choice, list) and len(choice) == 1:  # resps nest one level more
                choice = choice[0]
            if not isinstance(choice, list):
                raise TypeError
            values.append(real(choice[0]) if isinstance(choice[0], str) else float(choice[0]))
    except (TypeError, ValueError, IndexError, OverflowError):
        return []
    return values


def _twice(row: Mapping[str, Any], texts: list[str], choices: int, here: str) -> bool:
    """Return whether a row has every choice twice, with the question and without it.

    Raises:
        InputError: it should, by its metrics, but the halves have other texts.
    """
    half, metrics = choices // 2, row.get("metrics")
    stripped = [text.strip() for text in texts]
    same = len(texts) == choices == 2 * half and stripped[:half] == stripped[half:]
    asked = "acc_mutual_info" in row or (isinstance(metrics, list) and "acc_mutual_info" in metrics)
    if asked and not same:
        raise InputError(
            f"{here} reports acc_mutual_info, but its {choices} log-likelihoods are not of {half} choices with the "
            "question and without it",
            "run the task without acc_mutual_info, or save the first half of each row as logits",
        )
    return asked or (same and len(set(stripped)) == half > 1)


def _target(row: Mapping[str, Any], texts: list[str], choices: int, here: str) -> tuple[int, int]:
    """Return the index of the right choice, from a number, a letter, a truth value, or the text of a choice, UNCLEAR
    for two choices that the target does not tell apart; and, if the target is a number, the index of the choice with
    that text.

    Raises:
        InputError: several right ones, none, or more than two that the target does not tell apart.
    """
    target = row.get("target")
    if isinstance(target, list) and len(target) == 1:
        target = target[0]
    if isinstance(target, bool):
        return int(target), UNCLEAR
    text = str(target).strip()
    names = [name.strip() for name in texts]
    if len(names) == choices and names.count(text) > 1:
        if choices == 2:
            return UNCLEAR, UNCLEAR
        raise InputError(
            f"{here}: every choice continues with the target {text[:30]!r} and the context differs (as in "
            "winogrande), so that target does not say which choice is right",
            SAVE,
        )
    by_text = names.index(text) if text in names and len(names) == choices else UNCLEAR
    with contextlib.suppress(ValueError):
        if -(2**31) < (index := whole(text)) < choices:  # negative: for --ignore-label
            return index, by_text
    if by_text != UNCLEAR:
        return by_text, UNCLEAR
    if len(text) == 1 and 0 <= ord(text.upper()) - ord("A") < choices:
        return ord(text.upper()) - ord("A"), UNCLEAR
    if choices == 2 and text in ("True", "False", "true", "false"):
        return int(text.lower() == "true"), UNCLEAR
    if isinstance(target, list) or (text.startswith("[") and text.endswith("]")):
        problem = f"{here}: target {text[:30]!r} holds several right choices"
        raise InputError(problem, "use a task with one right choice")
    raise InputError(f"{here}: target {text[:30]!r} is not one of {choices} choices", "pass a multiple-choice task")


def _continuations(arguments: Any, choices: int) -> list[str]:
    """Return the texts of the choices from `arguments`: [[context, choice], ...] or {"gen_args_0": {"arg_0":,
    "arg_1":}, ...}.
    """
    if isinstance(arguments, Mapping):
        texts = [a.get("arg_1") for a in arguments.values() if isinstance(a, Mapping)]
    elif isinstance(arguments, list):
        texts = [a[1] if isinstance(a, list) and len(a) > 1 else None for a in arguments]
    else:
        texts = []
    return [str(text) for text in texts] if len(texts) == choices else []
