"""Read evaluations from the responses of a server with log-probabilities, as the OpenAI API and vLLM write them."""

from __future__ import annotations

import itertools
import math
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from calibcli.core.errors import InputError, refusing
from calibcli.core.options import real
from calibcli.scores.files.arrays import FileContents, column_of
from calibcli.scores.files.evals.answers import NestedColumns, Questions, contents_without_scores
from calibcli.scores.files.roles import LABELS
from calibcli.scores.files.source import Source

# The choices of a model, read from the log-probabilities of the tokens that it generated and of their alternatives.
#
# `" A"` and `"A"` are one choice, whose probabilities add up. A choice that is not among the alternatives is less
# probable than each of them: it gets the smallest listed log-probability as its upper bound, or its row is left out.
# Such rows are called censored. If they are more than 1 % of all, the user must decide between the two (`--unlisted`).

MOST = 0.01  # share of rows with a choice that is not listed, or without an answer
MASS = 0.9  # a lower mean probability of all choices together is noted
OTHER = 0.01  # difference of probabilities from which two tokens of a row are not the same answer
MARKS = "().:;,*[]\"'`"  # what a tokeniser may join with a letter: `(A`, `B.`
ANSWERED = re.compile(r"answer\s*:?\W*$", re.IGNORECASE)  # what stands before the answer that a harness asks for
NEAR = 1e-3  # two spellings of one log-probability differ by less: servers round
BLANK = " \t\r\n\u0120\u2581"  # the last two begin words in the vocabularies of byte-pair and sentence-piece tokenisers
FLOOR = -9999.0  # what servers write for minus infinity


@dataclass(frozen=True)
class Token:
    """A generated token, and the log-probabilities of all listed alternatives by text, itself included."""

    text: str
    among: Mapping[str, float]


@dataclass
class ChoiceScores:
    """Collects the scores of the choices in each row, and counts what the notes for the user need.

    Attributes:
        unlisted: treatment of rows with a choice that is not listed, `bound` or `drop`; "" if the user did not choose.
        which: of several tokens that name a choice, `first` or `last`; "" if the user did not choose.
        twofold: rows in which the first and the last of them differ, as texts or in their probabilities.
        silent: rows in which the model named no choice.  censored: rows with a choice that is not listed.
        mass: of all choices, one number per row.
        unlike: rows whose answer is not the most probable choice, with its score and the best; `unlikely` the number
            that is expected of draws, `spread` its variance.
    """

    unlisted: str = ""
    which: str = ""
    rows: int = 0
    silent: int = 0
    twofold: list[int] = field(default_factory=list)
    censored: list[int] = field(default_factory=list)
    mass: list[float] = field(default_factory=list)
    unlike: list[tuple[int, str, float, float]] = field(default_factory=list)
    unlikely: float = 0.0
    spread: float = 0.0

    def add(self, tokens: Sequence[Token], choices: Sequence[str], answer: str = "") -> tuple[list[float], str] | None:
        """Return the log-probabilities of the choices where the model answered, and the choice that it generated ("":
        none).

        Args:
            tokens: all that were generated.  answer: the choice that the harness read, where it tells.

        Returns:
            None where the model named no choice, and where the row is to be left out.
        """
        row, self.rows = self.rows, self.rows + 1
        wanted, choice_of = [answer] if answer else choices, _bare
        positions = [i for i, token in enumerate(tokens) if _bare(token.text) in wanted]
        if not positions and tokens:  # `(A`, `B.`, or `a` where nothing else was said
            choice_of = partial(_marked, choices=choices, alone=not _bare("".join(t.text for t in tokens[1:])))
            positions = [i for i, token in enumerate(tokens) if choice_of(token.text) in wanted]
        if not positions and tokens and not answer:
            positions = [0] if any(choice_of(text) in choices for text in tokens[0].among) else []
        if not positions:
            self.silent += 1
            return None
        token = tokens[positions[0] if self.which == "first" else positions[-1]]
        asked = answer and ANSWERED.search("".join(t.text for t in tokens[: positions[-1]]))
        if (
            len(positions) > 1
            and not asked
            and _differ(tokens[positions[0]], tokens[positions[-1]], choices, choice_of)
        ):
            self.twofold.append(row)
        parts: dict[str, list[float]] = {choice: [] for choice in choices}
        for text, value in token.among.items():
            if choice_of(text) in parts:
                parts[choice_of(text)].append(value)
        bound = min(token.among.values())
        scores = [_sum(values) if values else bound for values in parts.values()]
        if not all(parts.values()):
            self.censored.append(row)
            if self.unlisted == "drop":
                return None
        mass = min(1.0, sum(math.exp(_sum(values)) for values in parts.values() if values))
        self.mass.append(mass)
        given = choice_of(token.text)
        best = max(scores)
        if mass > 0:
            other = 1 - min(1.0, math.exp(best) / mass)
            self.unlikely += other
            self.spread += other * (1 - other)
        if given in parts and (given_score := scores[list(parts).index(given)]) < best - NEAR:
            self.unlike.append((row, given, given_score, best))
        return scores, given if given in parts else ""

    def left_out(self, failed: int) -> dict[str, int]:
        """Return how many samples are no rows, by cause; `failed` of them were never read."""
        return {"answers": failed + self.silent, "unlisted": len(self.censored) * (self.unlisted == "drop")}

    def notes(self, where: str, drawn: bool = True) -> list[str]:
        """Return the notes on all rows.

        Args:
            drawn: answers may have been drawn.

        Raises:
            InputError: more than 1 % of the rows are silent, or censored without a choice of `--unlisted`; all rows are
                left out; or answers are less probable than draws are.
        """
        rows, silent, notes = self.rows, self.silent, list[str]()
        if silent > MOST * rows:
            problem = f"in {silent:,} of {rows:,} rows of {where} the model named none of the choices"
            raise InputError(f"{problem}, or gave no log-probability of one", "do --choices list its answers?")
        if len(self.twofold) > MOST * rows and not self.which:
            raise InputError(
                f"in {len(self.twofold):,} of {rows:,} rows of {where} several tokens name a choice, and the first and "
                f"the last differ (first: row {self.twofold[0]})",
                "say which of them is the answer: --answer-token first, or --answer-token last",
            )
        if self.twofold:
            which = f"the {self.which or 'last'} is read"
            notes.append(f"in {len(self.twofold):,} of {rows:,} rows several tokens name a choice: {which}")
        if len(self.censored) > MOST * rows and not self.unlisted:
            raise InputError(
                f"in {len(self.censored):,} of {rows:,} rows of {where} ({len(self.censored) / rows:.1%}) a choice is "
                f"not among the alternatives listed (first: row {self.censored[0]}): its probability is not known",
                "--unlisted bound gives it the least log-probability listed; --unlisted drop leaves out these rows, in "
                "which the model was sure; better, ask for more alternatives (top_logprobs=20)",
            )
        if self.unlisted == "drop" and len(self.censored) + silent == rows:
            problem = f"every row of {where} lacks a choice among the alternatives: --unlisted drop leaves none"
            raise InputError(problem, "--unlisted bound, or ask for more alternatives (top_logprobs=20)")
        if silent:
            notes.append(f"{silent:,} of {rows:,} rows left out: the model named none of the choices")
        if self.censored:
            bound = "it gets the smallest listed log-probability, an upper bound"
            fate = "these rows are left out" if self.unlisted == "drop" else bound
            notes.append(f"in {len(self.censored):,} of {rows:,} rows a choice is not among the alternatives: {fate}")
        mean = self.mean_mass
        notes.append(f"the choices together have probability {mean:.3f} on average, before they are normalised to one")
        if mean < MASS:
            notes.append("the model often gave most of its probability to tokens other than the choices")
        count, most = len(self.unlike), self.unlikely + 5 * math.sqrt(self.spread) + 1
        if count and (not drawn or count > most):
            row, given, given_score, best = self.unlike[0]
            expected = f"{self.unlikely:.1f} are expected if answers were drawn"
            why = expected if drawn else "although the temperature is 0"
            raise InputError(
                f"row {row} of {where} was answered {given!r} (log-probability {given_score:.6g}), another has "
                f"{best:.6g}: so in {count:,} of {rows:,} rows, {why}",
                "were the log-probabilities changed?",
            )
        if count:
            notes.append(
                f"answers were drawn: {count:,} of {rows:,} are not the most probable choice, which is the prediction"
            )
        return notes

    @property
    def mean_mass(self) -> float:
        return sum(self.mass) / max(len(self.mass), 1)

    @property
    def facts(self) -> dict[str, str]:
        share = len(self.censored) / max(self.rows, 1)
        return {
            "scores are": "log-probabilities of the tokens that name a choice, with and without a space added up",
            "mass on the choices": f"{self.mean_mass:.4f}",
            "rows with a censored choice": f"{share:.4f}",
        }


def _bare(text: str) -> str:
    return text.strip(BLANK)


def _marked(text: str, choices: Sequence[str], alone: bool) -> str:
    """Return the choice that a token names with marks around it or, if it stands alone, in the other case; else the
    token.
    """
    bare = text.strip(BLANK + MARKS)
    same = [choice for choice in choices if choice.casefold() == bare.casefold()] if alone else []
    return bare if bare in choices or len(same) != 1 else same[0]


def _differ(a: Token, b: Token, choices: Sequence[str], choice_of: Callable[[str], str]) -> bool:
    """Return whether two tokens give the choices different probabilities, normalised to one."""
    distributions = []
    for token in (a, b):
        p = dict.fromkeys(choices, 0.0)
        for text, value in token.among.items():
            if choice_of(text) in p:
                p[choice_of(text)] += math.exp(value)
        distributions.append({choice: v / (sum(p.values()) or 1.0) for choice, v in p.items()})
    return any(abs(distributions[0][choice] - distributions[1][choice]) > OTHER for choice in choices)


def _sum(values: Sequence[float]) -> float:
    best = max(values)
    return best if best == -math.inf else best + math.log(sum(math.exp(v - best) for v in values))


def tokens_of(logprobs: Any, here: str) -> list[Token]:
    """Return the tokens of a `logprobs` object of a chat (`content` with `top_logprobs`) or of a completion (`tokens`,
    `token_logprobs`, `top_logprobs`); [] where there are none.

    Raises:
        InputError: numbers that are none, above 0, or different for one token.
    """
    if not isinstance(logprobs, Mapping):
        return []
    errors = (TypeError, ValueError, KeyError, AttributeError, OverflowError)
    problem = f"{here}: its log-probabilities cannot be read"
    with refusing(errors, lambda error: f"{problem} ({str(error)[:60]})", "was the file changed?"):
        if isinstance(logprobs.get("content"), list):
            return [_chat(token) for token in logprobs["content"]]
        if isinstance(logprobs.get("tokens"), list):
            tops = logprobs.get("top_logprobs") or [{}] * len(logprobs["tokens"])
            triples = zip(logprobs["tokens"], logprobs["token_logprobs"], tops, strict=True)
            return [_token(text, value, dict(top or {}).items()) for text, value, top in triples]
    return []


def _chat(token: Any) -> Token:
    pairs = [(one["token"], one["logprob"]) for one in token.get("top_logprobs") or []]
    return _token(token["token"], token["logprob"], pairs)


def _token(text: Any, value: Any, pairs: Any) -> Token:
    """Return a token with the log-probabilities of its alternatives.

    Raises:
        ValueError: a number that is none, above 0, or different for one token.
    """
    among: dict[str, float] = {}
    for name, number in [*pairs, (text, value)]:
        if isinstance(number, str):
            number = real(number)
        if number is None:  # of the first token of an echoed prompt
            continue
        logprob = -math.inf if number <= FLOOR else float(number)
        if not isinstance(name, str) or logprob != logprob or logprob > NEAR:
            raise ValueError(f"{str(name)[:20]!r}: {number}")
        if name == text and abs(among.get(name, logprob) - logprob) > NEAR:
            raise ValueError(f"{name[:20]!r} has {among[name]:.6g} and {logprob:.6g}")
        among.setdefault(name, min(logprob, 0.0))
    return Token(str(text), among or {str(text): -math.inf})


# Responses of a server: chats, completions and batches, as the APIs of OpenAI and vLLM write them.
#
# Each line is a response with `choices[0].logprobs`, or holds one, such as `response.body` of a batch beside
# `custom_id`. The label is a further key of the line (`target`), or lies in a file of its own.


EXPANSION = 3  # bytes of memory for each byte of text: only the numbers and short texts of a row are kept
FORMAT = "jsonl, chat log-probabilities"
HOLDERS = ("response", "body", "completion", "output", "result")
COMPARED, PROPOSED = 1000, 26  # rows whose alternatives are compared, and choices that are proposed
FAILED = 400  # the lowest HTTP status of an error


def matches(row: Mapping[str, Any]) -> bool:
    """Return whether a row is a response of a server, or holds one."""
    return bool(_response(row)) or ("custom_id" in row and "response" in row)


def read(source: Source, first: Mapping[str, Any], rows: Iterator[dict[str, Any]]) -> FileContents:
    """Read the log-probabilities of `--choices` as logits, from the token where the model named one of them.

    Raises:
        InputError: without --choices; too many rows lack a choice; several answers in a row.
    """
    choices = source.options.choices
    letters = ChoiceScores(source.options.unlisted, source.options.answer_token)
    questions, every = Questions(), NestedColumns()
    label = next((k for k in first if k in LABELS and isinstance(first[k], str | int)), "")
    failed, seen = 0, False
    for number, row in enumerate(itertools.chain([first], rows)):
        here = f"row {number} of {source.name}"
        answer = _response(row)
        if not answer:
            if not _failed(row):
                raise InputError(f"{here} holds no response with choices", "write one response per line")
            failed += 1
            continue
        if len(answer["choices"]) != 1:
            raise InputError(f"{here} holds {len(answer['choices'])} answers", "ask for one (n=1)")
        tokens = tokens_of(answer["choices"][0].get("logprobs"), here)
        seen |= bool(tokens)
        if not choices and tokens:
            problem = f"{source.name} holds log-probabilities of tokens, and does not say which of them are the choices"
            raise InputError(problem, f"pass the answers: {_proposed([row, *itertools.islice(rows, COMPARED)], label)}")
        further = {k: v for k, v in row.items() if k not in (*HOLDERS, "choices", "usage", label)}
        if not seen:
            every.add(further)
        answered = letters.add(tokens, choices)
        if answered is None:
            continue
        if label and label not in row:
            raise InputError(f"{here} has no '{label}'", "write the same keys in every row")
        name = row.get("custom_id", row.get("id", number))
        questions.keep(answered[0], str(row.get(label, "")).strip(), name, further)
    if not seen:
        why = f"the responses in {source.name} hold no log-probabilities"
        return contents_without_scores(FORMAT, every, why, "ask for them: logprobs=true, top_logprobs=20")
    notes = [f"{failed:,} requests failed: left out"] if failed else []
    return questions.contents(
        FORMAT,
        source,
        ("logprobs", label, "ids"),
        *(np.array(questions.scores), column_of(questions.labels), column_of(questions.ids)),
        classes={"logprobs": choices},
        notes=[*notes, *letters.notes(source.name)],
        facts=letters.facts,
        used=frozenset({"choices", "unlisted", "answer_token"}),
        left_out=letters.left_out(failed),
    )


def _proposed(rows: Sequence[Mapping[str, Any]], label: str) -> str:
    """Return the line that names the choices: the few texts that every row lists, or else the labels."""
    listed = [
        {name.strip() for token in tokens for name in token.among}
        for row in rows
        if (answer := _response(row)) and (tokens := tokens_of(answer["choices"][0].get("logprobs"), ""))
    ]
    common = sorted(set.intersection(*listed) - {""}) if listed else []
    labels = sorted({str(row.get(label, "")).strip() for row in rows} - {""})
    names = (
        labels
        if labels and {*labels} <= set.union(set(), *listed) and not {*labels} <= {*common[:PROPOSED]}
        else common
    )
    fit = 1 < len(names) <= PROPOSED and not any("," in name for name in names)
    line = f"--choices {shlex.quote(','.join(names))}" if fit else "--choices A,B,C,D"
    return line if label else f"{line} --labels FILE"


def _response(row: Any, depth: int = 3) -> Mapping[str, Any]:
    """Return the object whose `choices` hold a message or a text, or {}."""
    if not isinstance(row, Mapping) or depth == 0:
        return {}
    choices = row.get("choices")
    first = choices[0] if isinstance(choices, list) and choices else None
    if isinstance(first, Mapping) and ("message" in first or "text" in first):
        return row
    return next((inner for key in HOLDERS if (inner := _response(row.get(key), depth - 1))), {})


def _failed(row: Mapping[str, Any]) -> bool:
    """Return whether a request of a batch got no answer."""
    response = row.get("response")
    if row.get("error") or ("custom_id" in row and not response):
        return True
    status = response.get("status_code") if isinstance(response, Mapping) else None
    return isinstance(status, int) and status >= FAILED
