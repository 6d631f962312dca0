"""Samples of a log of Inspect (UK AI Security Institute 2024), of multiple-choice tasks with log-probabilities.

A sample has `choices`, `target` (the letter of the right one), `output.choices[0].logprobs`, and `scores.NAME.value`,
where "C" is "correct" and not the third choice. An epoch is one more draw of each id.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from calibcli.core.errors import InputError
from calibcli.scores.files.arrays import FileContents, column_of
from calibcli.scores.files.evals import answers
from calibcli.scores.files.evals.chats import ChoiceScores, tokens_of
from calibcli.scores.files.source import Source

GRADES = {"C": 1, "I": 0, "N": 0}  # correct, incorrect, no answer; a partial one ("P") is neither


@dataclass
class LogSamples(answers.Questions):
    """The samples of a log as they are read."""

    letters: ChoiceScores = field(default_factory=ChoiceScores)
    every: answers.NestedColumns = field(default_factory=answers.NestedColumns)
    epochs: list[int] = field(default_factory=list)
    failed: int = 0

    def add(self, sample: Mapping[str, Any], number: int, source: Source) -> None:
        """Add a sample.

        Raises:
            InputError: a sample that is none, has no single right choice, or an answer that its own score contradicts.
        """
        name = str(sample.get("id", number))[:1000]
        here = f"sample {number} ('{name[:40]}') of {source.name}"
        kept = ("id", "epoch", "target", "metadata", "scores")
        further = {key: value for key in kept if (value := sample.get(key)) is not None}
        tokens = tokens_of(_first(sample).get("logprobs"), here)
        if sample.get("error") and not (sample.get("scores") and tokens):  # one may be scored although it failed
            self.failed += 1
            return
        if not self.scores:
            self.every.add(further)
        if not tokens:
            self.letters.silent += 1
            return
        texts = sample.get("choices")
        count = len(texts) if isinstance(texts, list) else 0
        if not (2 <= count <= len(answers.LETTERED)) and not source.options.choices:
            problem = f"{here} has log-probabilities but {count or 'no'} choices"
            raise InputError(problem, "pass the answers: --choices A,B,C,D")
        choices = source.options.choices or tuple(answers.LETTERED[:count])
        label = _label(sample.get("target"), choices, here)
        score, answer, verdict = _score(sample.get("scores"))
        silent = self.letters.silent
        answered = self.letters.add(tokens, choices, answer if answer in choices else "")
        if answered is None:
            if answer in choices and self.letters.silent > silent:
                raise InputError(
                    f"{here} was read as {answer!r}, which is none of the tokens that the model generated: the choices "
                    "were shuffled, and letters put back afterwards",
                    "run the task without shuffle, or shuffle the data set (shuffle_choices), which the log records",
                )
            return
        given = answered[1]
        if given and verdict is not None and (choices.index(given) == label) != bool(verdict):
            value = str(_at(sample, "scores", score, "value"))[:20]
            raise InputError(
                f"{here} has score {score} = {value!r}, but the model answered {given!r} "
                f"(log-probability {answered[0][choices.index(given)]:.6g}) and its target is {choices[label]!r} "
                f"({answered[0][label]:.6g})",
                "was the log changed? Else save the log-probabilities as logits and the index of the target as label",
            )
        self.keep(answered[0], label, name, further)
        epoch = sample.get("epoch", 1)
        self.epochs.append(epoch if isinstance(epoch, int) else 1)


def contents(form: str, header: Mapping[str, Any], samples: Iterable[Any], source: Source) -> FileContents:
    """Read the scores of the choices as logits, and check each sample against its own score.

    Raises:
        InputError: see `LogSamples.add`; samples without log-probabilities, more than 1 % without an answer.
    """
    log, number = LogSamples(letters=ChoiceScores(source.options.unlisted, source.options.answer_token)), 0
    for number, sample in enumerate(samples, start=1):
        if not isinstance(sample, Mapping):
            raise InputError(f"sample {number - 1} of {source.name} is not an object", "write the log again")
        log.add(sample, number - 1, source)
    task = _text(header, "eval", "task") or source.stem
    notes = []
    if (status := _text(header, "status")) not in ("success", ""):
        notes.append(f"the evaluation ended with status '{status}': {number:,} samples were logged")
    if log.failed:
        notes.append(f"{log.failed:,} samples failed: left out (--missing says what they count as)")
    if not (log.scores or log.letters.censored):
        why = f"the {number:,} samples of {source.name} (Inspect, task '{task}') hold no log-probabilities of choices"
        why += f" ({'; '.join(notes)})" if notes else ""
        fix = "run a multiple-choice task with --logprobs --top-logprobs 20"
        right = [name for name in log.every.texts if name.startswith("scores.") and name.endswith(".value")]
        return answers.contents_without_scores(form, log.every, why, fix, notes, right)
    summary = f"log of Inspect, task '{task}': {len(log.ids):,} samples, log-probabilities of the choices as logits"
    notes = [summary, *notes, *log.letters.notes(source.name, _temperature(header) != 0)]
    drawn = len(set(log.ids)) < len(log.ids)
    ids = [f"{name}/{epoch}" for name, epoch in zip(log.ids, log.epochs)] if drawn else log.ids
    if drawn:
        notes.append(f"{max(log.epochs)} epochs of {len(set(log.ids)):,} ids: the answers to one id form a group")
    most = max(map(len, log.scores))
    log.columns.texts["id"] = log.ids
    return log.contents(
        form,
        source,
        ("logprobs", "target", "sample"),
        *(answers.padded(log.scores, source.name), np.array(log.labels), column_of(ids)),
        classes={"logprobs": source.options.choices or tuple(answers.LETTERED[:most])},
        ragged=frozenset({"logprobs"}),
        groups="id" if drawn else "",
        notes=[*notes, *answers.note_on_lengths(log.scores)],
        facts=log.letters.facts,
        task=task,
        used=frozenset({"choices", "unlisted", "answer_token"}),
        left_out=log.letters.left_out(log.failed),
    )


def _first(sample: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the first choice of the output, or {}."""
    choices = _at(sample, "output", "choices")
    return choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], Mapping) else {}


def _label(target: Any, choices: Sequence[str], here: str) -> int:
    """Return the index of the right choice.

    Raises:
        InputError: no choice, or several.
    """
    if isinstance(target, list):
        if len(target) != 1:
            raise InputError(f"{here} has {len(target)} targets", "calibration needs one right choice")
        target = target[0]
    text = str(target).strip()
    if text not in choices:
        problem = f"{here}: target {text[:30]!r} is not one of {', '.join(choices)}"
        raise InputError(problem, "calibration needs the letter of the right choice")
    return list(choices).index(text)


def _score(scores: Any) -> tuple[str, str, int | None]:
    """Return name, answer and verdict of the scorer `choice`, else of the first scorer. The verdict is 1, 0, or None
    for a score of another kind.
    """
    if not isinstance(scores, Mapping) or not scores:
        return "", "", None
    name = "choice" if "choice" in scores else next(iter(scores))
    score = scores[name]
    if not isinstance(score, Mapping):
        return str(name), "", None
    value, answer = score.get("value"), score.get("answer")
    verdict = GRADES.get(value) if isinstance(value, str) else None
    if isinstance(value, int | float) and value in (0, 1):
        verdict = int(value)
    return str(name), answer.strip() if isinstance(answer, str) else "", verdict


def _at(header: Any, *path: str) -> Any:
    for key in path:
        header = header.get(key) if isinstance(header, Mapping) else None
    return header


def _text(header: Mapping[str, Any], *path: str) -> str:
    text = _at(header, *path)
    return text[:200] if isinstance(text, str) else ""


def _temperature(header: Mapping[str, Any]) -> float | None:
    """Return the temperature at which the answers were drawn, where the log has it."""
    for path in (("plan", "config"), ("eval", "model_generate_config")):
        value = _at(header, *path, "temperature")
        if isinstance(value, int | float):
            return float(value)
    return None
