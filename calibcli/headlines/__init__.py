"""The sentence that a result opens with: one to three of them, made from the Result alone.

The sentence of a command is a function of the command's name, registered by the decorator `sentence`. Its words depend
on the interval behind them: "overconfident" where the whole interval of the gap is above zero, "no difference shown"
where it holds zero.
"""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from typing import Any, Literal

from calibcli.core import number_format
from calibcli.core.result import Estimate, Result

FACT = "headline"
Sentence = Callable[[Result], str]
SENTENCES: dict[str, Sentence] = {}


def of(result: Result) -> str:
    """The sentence of a result; "" of a command that has none.

    >>> of(calibcli.measure(logits, labels, "ece", "confidence_gap")).split(":")[0]
    'Overconfident'
    """
    write = _sentences().get(result.command)
    return "" if write is None else " ".join(write(result).split())


def sentence(function: Sentence) -> Sentence:
    """Decorator: the function writes the sentence of the command that has its name."""
    SENTENCES[function.__name__] = function
    return function


@cache
def _sentences() -> dict[str, Sentence]:
    """Those of the files of this folder, which are imported when a sentence is first asked for."""
    for file in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{file.name}")
    return SENTENCES


def headed(result: Result) -> Result:
    """With its sentence among its facts, unless its command wrote its own."""
    if FACT in result.facts or not (text := of(result)):
        return result
    return dataclasses.replace(result, facts={FACT: text, **result.facts})


# numbers and their claims in words

Side = Literal["above", "below", "open"]
OTHERS = {"lambda_max": "λmax", "lambda_min": "λmin", "temperature": "T"}
"""Names of numbers that are on no shelf of metrics."""
MOST = 3  # things that are named one by one
USUAL = "95 %"  # level of an interval of which no sentence says it


def base(spec: str) -> str:
    """`ece` of `ece:bins=30`."""
    return spec.partition(":")[0]


def traits(spec: str) -> Mapping[str, Any]:
    """What the shelf says of a metric: loaded with NumPy, so where a sentence is written, not for `calib --help`."""
    from calibcli.metrics import shelf

    return shelf.traits(spec)


def name(spec: str) -> str:
    """`ECE`, `ECE (bins=30)`, `mean confidence`."""
    own, _, options = spec.partition(":")
    label = OTHERS.get(own) or traits(own).get("label", own.replace("_", " "))
    return f"{label} ({options.replace(',', ', ')})" if options else label


def first(result: Result, name: str, scope: str = "") -> Estimate | None:
    """The first estimate of a metric, with whatever options, that has a value."""
    return next((e for e in _valued(result, scope) if base(e.name) == name), None)


def error(result: Result, scope: str = "") -> Estimate | None:
    """The calibration error to speak of, where several were measured."""
    errors = [e for e in _valued(result, scope) if "error" in traits(e.name)]
    return min(errors, key=lambda e: traits(e.name)["error"], default=None)


def _valued(result: Result, scope: str) -> Iterator[Estimate]:
    return (e for e in result.estimates if e.scope == scope and e.value is not None)


def side(e: Estimate | None, of: float = 0.0) -> Side:
    """Where the whole interval lies: above a number, below it, or on no one side of it (or there is none)."""
    if e is None or e.value is None or not number_format.has_interval(e):
        return "open"
    if e.low is not None and e.low > of:
        return "above"
    return "below" if e.high is not None and e.high < of else "open"


def value(e: Estimate) -> str:
    """`0.198 [0.115, 0.451] nats`; with any level but 95 % of the whole: `0.06 [0.04, 0.08] (95 % each end)`.

    To three digits where there is no interval.
    """
    unit = f" {e.unit}" if e.unit == "nats" else ""
    if not number_format.has_interval(e):
        return (number_format.number(e.value, 3) if e.value is not None else number_format.NONE) + unit
    shown = number_format.shown(e)
    if e.low is None or e.high is None:
        bound = shown.interval.replace("≤", "at most").replace("≥", "at least")
        return f"{shown.value} ({bound}, {number_format.percent(e.level)}){unit}"
    level_text = number_format.level([e])
    level = "" if level_text == USUAL else f" ({level_text} end)" if level_text.endswith("each") else f" ({level_text})"
    return f"{shown.value} {shown.interval}{level}{unit}"


def moved(before: Estimate, after: Estimate) -> str:
    """`0.464 → 0.268`, each as exactly as its interval says, or both to three digits where one has none.

    A calibration error that a calibrated model would not show in 95 % of cases is said to be beyond chance.
    """
    more = ", beyond chance" if beyond_chance(after) else ""
    if number_format.has_interval(before) and number_format.has_interval(after):
        return " → ".join(number_format.shown(e).value for e in (before, after)) + more
    return " → ".join(number_format.number(e.value or 0.0, 3) for e in (before, after)) + more


def beyond_chance(error: Estimate) -> bool:
    """Whether it is more than chance gives a calibrated model in 95 % of cases."""
    return error.null_high is not None and error.value is not None and error.value > error.null_high


def named(e: Estimate) -> str:
    """`ECE 0.0646 [0.0459, 0.0801]`."""
    return f"{name(e.name)} {value(e)}"


def listed(items: Iterable[str], most: int = MOST) -> str:
    """`a, b and c`; of more, how many more there are."""
    shown = list(items)
    if len(shown) > most:
        shown = [*shown[:most], f"{len(shown) - most} more"]
    return " and ".join(filter(None, [", ".join(shown[:-1]), shown[-1]])) if shown else ""


def counted(n: int, noun: str) -> str:
    """`1 row`, `997 rows`."""
    return f"{n:,} {noun}" + ("" if n == 1 else "s")


def count(result: Result, *keys: str) -> int:
    """The first of these facts that is a whole number, else 0."""
    values = (result.facts.get(key) for key in keys)
    return next((n for n in values if isinstance(n, int) and not isinstance(n, bool)), 0)


def items(result: Result, key: str) -> list[Any]:
    """A fact that is a list, else an empty one."""
    fact = result.facts.get(key)
    return list(fact) if isinstance(fact, list | tuple) else []


def upper(text: str) -> str:
    """With a large first letter."""
    return text[:1].upper() + text[1:]


def told(*parts: str) -> str:
    """Sentences from parts, each with a full stop."""
    return " ".join(f"{part}." for part in parts if part)


def numbers_alone(result: Result) -> str:
    """The first numbers, without a word about them; or why there are none."""
    valued = [e for e in result.estimates if e.value is not None]
    if valued:
        return "; ".join(f"{named(e)}{f' ({e.scope})' if e.scope else ''}" for e in valued[:MOST])
    lacking = next((e for e in result.estimates if e.reason), None)
    return "" if lacking is None else f"{name(lacking.name)} has no value: {lacking.reason}"
