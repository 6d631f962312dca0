"""Details of LightEval (Fourrier et al. 2023), a parquet file of a task: rows of `doc`, `metric` and `model_response`.

`doc.choices` are the continuations, `doc.gold_index` the right one, `model_response.logprobs` the log-likelihoods, and
`metric.acc` says whether the largest is the right one's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from calibcli.core.errors import InputError
from calibcli.scores.files.arrays import FileContents, column_of
from calibcli.scores.files.evals import answers
from calibcli.scores.files.evals.lm_eval import NORMS
from calibcli.scores.files.source import Source

FORMAT = "parquet, LightEval details"
COLUMNS = frozenset({"doc", "metric", "model_response"})


def contents(rows: Iterable[Mapping[str, Any]], source: Source) -> FileContents:
    """Read the log-likelihoods of the choices as logits, by `--lm-norm`, and check them against `metric.acc`.

    Raises:
        InputError: several right choices, rows without scores of every choice, a verdict that contradicts.
    """
    norm, questions, task = source.options.lm_norm or "sum", answers.Questions(), source.stem
    plain: list[list[float]] = []
    verdicts: list[Any] = []
    rows = iter(rows)  # one pass: below, those that are left are taken from it
    for number, row in enumerate(rows):
        here = f"row {number} of {source.name}"
        doc, metric, answer = (row.get(key) for key in ("doc", "metric", "model_response"))
        if not (isinstance(doc, Mapping) and isinstance(answer, Mapping)):
            raise InputError(f"{here} has no doc or model_response", "write the details again")
        metric = metric if isinstance(metric, Mapping) else {}
        further = {"doc": doc, "metric": metric}
        choices, logprobs = doc.get("choices"), answer.get("logprobs")
        if not isinstance(logprobs, list) or not isinstance(choices, list) or not 2 <= len(logprobs) <= answers.CHOICES:
            if number:
                raise InputError(f"{here} holds no log-probability per choice", "pass a task that scores every choice")
            why = f"the rows of {source.name} (LightEval) hold no log-probability per choice: a generative task?"
            columns = answers.NestedColumns()
            for other in (further, *rows):
                columns.add({key: other.get(key) for key in ("doc", "metric")})
            # values inside `doc` and `metric` became columns, such as `metric.acc`, which may say what was right
            right = [name for name in columns.texts if name.startswith("metric.")]
            fix = "only tasks that score every choice have them"
            return answers.contents_without_scores(FORMAT, columns, why, fix, correct=right)
        plain.append(_numbers(logprobs, len(choices), here))
        scores = _normalised(plain[-1], [str(c) for c in choices], answer, norm, here)
        questions.keep(scores, _gold(doc.get("gold_index"), len(choices), here), doc.get("id", number), further)
        verdicts.append(metric.get("acc"))
        task = str(doc.get("task_name") or task)
    if not plain:
        raise InputError(f"{source.name} has no rows", "is the file truncated?")
    summary = f"details of LightEval: {len(plain):,} questions, as logits the {NORMS[norm]}"
    labels = np.array(questions.labels)
    answers.check_verdicts(answers.padded(plain, source.name), labels, verdicts, "metric.acc", source.name)
    return questions.contents(
        FORMAT,
        source,
        ("logprobs", "gold_index", "id"),  # names of the scores, the labels and the ids, which follow in this order
        *(answers.padded(questions.scores, source.name), labels, column_of(questions.ids)),
        ragged=frozenset({"logprobs"}),
        notes=[summary, *answers.note_on_lengths(questions.scores)],
        facts={"scores are": NORMS[norm]},
        task=task,
        used=frozenset({"lm_norm"}),
    )


def _numbers(logprobs: list[Any], choices: int, here: str) -> list[float]:
    if len(logprobs) != choices or not all(isinstance(v, int | float) for v in logprobs):
        problem = f"{here} has {choices} choices and {len(logprobs)} log-probabilities, or one that is not a number"
        raise InputError(problem, "write the details again")
    return [float(v) for v in logprobs]


def _normalised(plain: list[float], choices: list[str], answer: Mapping[str, Any], norm: str, here: str) -> list[float]:
    if norm == "sum":
        return plain
    if norm == "pmi":
        free = answer.get("unconditioned_logprobs")
        if not isinstance(free, list):
            raise InputError(f"{here} has no unconditioned_logprobs, which --lm-norm pmi needs", "pass --lm-norm sum")
        return [a - b for a, b in zip(plain, _numbers(free, len(plain), here))]
    lengths = [len(c) if norm == "char" else len(c.encode("utf-8", "replace")) for c in choices]
    if not all(lengths):
        problem = f"{here} has an empty choice, and --lm-norm {norm} divides by its length"
        raise InputError(problem, "pass --lm-norm sum")
    return [value / length for value, length in zip(plain, lengths)]


def _gold(gold: Any, choices: int, here: str) -> int:
    """Return the index of the right choice.

    Raises:
        InputError: none, several, or one that there is not.
    """
    if isinstance(gold, list):
        if len(gold) != 1:
            raise InputError(f"{here} has {len(gold)} right choices", "calibration needs one: use a task that has one")
        gold = gold[0]
    if isinstance(gold, bool) or not isinstance(gold, int) or not 0 <= gold < choices:
        problem = f"{here}: gold_index {str(gold)[:20]} is not one of {choices} choices"
        raise InputError(problem, "write the details again")
    return gold
