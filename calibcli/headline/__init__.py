"""The sentence that a result opens with: one to three of them, made from the Result alone.

A file for each command, found by its name: `say(result) -> str`. A word is chosen by the interval behind it and says no
more than that: "overconfident" where the whole interval of the gap is above zero, "no difference shown" where it holds
zero.
"""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
from functools import cache

from calibcli.result import Result

FACT = "headline"


def of(result: Result) -> str:
    """The sentence of a result; "" of a command that has none.

    >>> of(calibcli.measure(logits, labels, "ece", "confidence_gap")).split(":")[0]
    'Overconfident'
    """
    if result.command not in _commands():
        return ""
    said = importlib.import_module(f"calibcli.headline.{result.command}").say(result)
    return " ".join(str(said).split())


@cache
def _commands() -> set[str]:
    return {m.name for m in pkgutil.iter_modules(__path__)} - {"phrases"}


def headed(result: Result) -> Result:
    """With its sentence among its facts, unless its command wrote its own."""
    if FACT in result.facts or not (said := of(result)):
        return result
    return dataclasses.replace(result, facts={FACT: said, **result.facts})
