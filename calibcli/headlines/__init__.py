"""The headline of a result: one to three sentences, made from the Result alone.

The headline of a command is written by the function of that name, registered by the decorator `sentence`. Its words
depend on intervals: "overconfident" if the whole interval of the gap is above zero, "no difference shown" if the
interval of a difference contains zero.
"""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

from calibcli.core import number_format
from calibcli.core.result import Estimate, Result

if TYPE_CHECKING:
    from calibcli.metrics.registry import MetricTraits

FACT = "headline"
Sentence = Callable[[Result], str]
SENTENCES: dict[str, Sentence] = {}


def of(result: Result) -> str:
    """Write the headline of a result; "" for a command without one.

    >>> of(calibcli.measure(logits, labels, "ece", "confidence_gap")).split(":")[0]
    'Overconfident'
    """
    write = _sentences().get(result.command)
    return "" if write is None else " ".join(write(result).split())


def sentence(function: Sentence) -> Sentence:
    """Register a function, as a decorator, to write the headline of the command with its name."""
    SENTENCES[function.__name__] = function
    return function


@cache
def _sentences() -> dict[str, Sentence]:
    """Import the files of this folder, when a headline is first needed, and return the registered functions."""
    for file in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{file.name}")
    return SENTENCES


def headed(result: Result, **fields: Any) -> Result:
    """Add the headline to the facts of a result, unless its command wrote one, and set further fields."""
    if FACT not in result.facts and (text := of(result)):
        fields["facts"] = {FACT: text, **result.facts}
    return dataclasses.replace(result, **fields) if fields else result


# Numbers in words, and what their intervals show.

Side = Literal["above", "below", "open"]
OTHERS = {
    **{"lambda_max": "λmax", "lambda_min": "λmin", "temperature": "T", "lambda_max after": "λmax after"},
    **{"adaptive_lambda": "adaptive λmax", "adaptive_lambda after": "adaptive λmax after"},
    **{"lambda_max_ggn": "Gauss-Newton λmax"},
}
"""Names of numbers that are not in the registry of metrics."""
MOST = 3  # items that a sentence lists before it counts the others
USUAL = "95 %"  # level of intervals, which sentences do not repeat


def base(spec: str) -> str:
    """Return the name without options: `ece` for `ece:bins=30`."""
    return spec.partition(":")[0]


def traits(spec: str) -> MetricTraits:
    """Return the traits of a metric from its registry entry."""
    from calibcli.metrics import registry  # loads NumPy, which `calib --help` must not wait for

    return registry.traits(spec)


def name(spec: str) -> str:
    """Name a metric for a sentence: `ECE`, `ECE (bins=30)`, `mean confidence`."""
    metric, _, options = spec.partition(":")
    label = OTHERS.get(metric) or traits(metric).label or metric.replace("_", " ")
    return f"{label} ({options.replace(',', ', ')})" if options else label


def first(result: Result, name: str, scope: str = "") -> Estimate | None:
    """Return the first estimate of a metric, with any options, that has a value; or None."""
    return next((e for e in _valued(result, scope) if base(e.name) == name), None)


def error(result: Result, scope: str = "") -> Estimate | None:
    """Return the most important calibration error that has a value; or None."""
    errors = [e for e in _valued(result, scope) if traits(e.name).error]
    return min(errors, key=lambda e: traits(e.name).error, default=None)


def _valued(result: Result, scope: str) -> Iterator[Estimate]:
    return (e for e in result.by_scope.get(scope, ()) if e.value is not None)


def side(e: Estimate | None, reference: float = 0.0) -> Side:
    """Return on which side of a number the whole interval lies; "open" if it contains the number or is missing."""
    if e is None or e.value is None or not number_format.has_interval(e):
        return "open"
    if e.low is not None and e.low > reference:
        return "above"
    return "below" if e.high is not None and e.high < reference else "open"


def value(e: Estimate) -> str:
    """Format `0.198 [0.115, 0.451] nats`; with three digits if there is no interval.

    A level other than 95 % of the interval is added: `0.06 [0.04, 0.08] (95 % each end)`.
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
    """Format `0.464 → 0.268`, with the digits that the intervals support, or three if one is missing.

    A calibration error above the 95 % quantile of a calibrated model is called "still above chance".
    """
    more = ", still above chance" if beyond_chance(after) else ""
    if number_format.has_interval(before) and number_format.has_interval(after):
        return " → ".join(number_format.shown(e).value for e in (before, after)) + more
    return " → ".join(number_format.number(e.value or 0.0, 3) for e in (before, after)) + more


def beyond_chance(error: Estimate) -> bool:
    """Whether an error exceeds the 95 % quantile of a calibrated model."""
    return error.null_high is not None and error.value is not None and error.value > error.null_high


def named(e: Estimate) -> str:
    """Format a number with its name: `ECE 0.0646 [0.0459, 0.0801]`."""
    return f"{name(e.name)} {value(e)}"


def listed(items: Iterable[str], most: int = MOST) -> str:
    """Join items as `a, b and c`, or `a, b, c and 4 more`."""
    shown = list(items)
    if len(shown) > most:
        shown = [*shown[:most], f"{len(shown) - most} more"]
    return " and ".join(filter(None, [", ".join(shown[:-1]), shown[-1]])) if shown else ""


def count(result: Result, *keys: str) -> int:
    """Return the first of these facts that is a whole number, else 0."""
    values = (result.facts.get(key) for key in keys)
    return next((n for n in values if isinstance(n, int) and not isinstance(n, bool)), 0)


def items(result: Result, key: str) -> list[Any]:
    """Return a fact that is a list, else an empty list."""
    fact = result.facts.get(key)
    return list(fact) if isinstance(fact, list | tuple) else []


def upper(text: str) -> str:
    """Capitalise the first letter."""
    return text[:1].upper() + text[1:]


def sentences(*parts: str) -> str:
    """Join parts that are not empty, each with a full stop."""
    return " ".join(f"{part}." for part in parts if part)


def numbers_alone(result: Result) -> str:
    """Format the first numbers without comment, or say why there are none."""
    valued = [e for e in result.estimates if e.value is not None]
    if valued:
        return "; ".join(f"{named(e)}{f' ({e.scope})' if e.scope else ''}" for e in valued[:MOST])
    missing = next((e for e in result.estimates if e.reason), None)
    return "" if missing is None else f"{name(missing.name)} has no value: {missing.reason}"
