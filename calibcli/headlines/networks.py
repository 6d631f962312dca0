"""Headlines of `calib curvature`, `logits` and `inspect`."""

from __future__ import annotations

from calibcli.core import number_format
from calibcli.core.result import Estimate, Result
from calibcli.headlines import base, count, first, items, name, named, sentence, sentences, side, upper, value

# `calib curvature`: the value with both its errors, and how it compares under another loss.

FIRST = ("lambda_max", "top", "trace", "trace_ggn", "lambda_min", "negative_fraction", "grad_norm")


@sentence
def curvature(result: Result) -> str:
    losses = [str(one) for one in items(result, "losses")]
    valued = [e for e in result.estimates if "loss" not in e.where.parts and e.value is not None]
    valued.sort(key=lambda e: FIRST.index(base(e.name)) if base(e.name) in FIRST else len(FIRST))
    if not valued:
        why = next((e.reason for e in result.estimates if e.reason), "")
        return sentences(f"No number: {why}" if why else "No number was asked for that has a value")
    main = valued[0]
    stopped = "Interrupted: " if result.facts.get("interrupted") else ""
    of_loss = f" of {losses[0]}" if losses else ""
    text = f"{stopped}{name(main.name)}{of_loss} {value(main)}{_errors(main)}"
    more = next((e for e in valued if base(e.name) == "trace" and e is not main), None)
    bottom = first(result, "lambda_min")
    negative = f"Negative curvature: {named(bottom)}" if bottom is not None and side(bottom) == "below" else ""
    return sentences(text, _against(result, main, losses), negative or (upper(named(more)) if more else ""))


def _errors(e: Estimate) -> str:
    """Describe both errors: that of the estimator on these rows, and the standard error from drawing the rows."""
    low, high, se = (e.detail.get(key) for key in ("estimator_low", "estimator_high", "sampling_se"))
    texts = []
    if isinstance(low, float) and isinstance(high, float) and not e.reason:
        texts.append(f"known to ± {number_format.number((high - low) / 2, 2)} on these rows")
    if isinstance(se, float):
        texts.append(f"± {number_format.number(se, 2)} (standard error) by the choice of the rows")
    if e.reason:
        texts.append(e.reason)
    return ": " + ", ".join(texts) if texts else ""


def _against(result: Result, main: Estimate, losses: list[str]) -> str:
    """Compare with the number under the second loss: larger or smaller if the intervals do not overlap."""
    if len(losses) < 2:
        return ""
    scope = ", ".join(filter(None, [f"loss={losses[1]}", main.scope]))
    valued = [e for e in result.estimates if e.value is not None]
    other = next((e for e in valued if e.name == main.name and e.scope == scope), None)
    if other is None:
        return ""
    here, beyond = _order(_known(other), _known(main)), _order((other.low, other.high), (main.low, main.high))
    text = f"For the same weights under {losses[1]} it is {value(other)}"
    if beyond:
        return f"{text}: {beyond}, and the intervals do not overlap"
    if not (number_format.has_interval(main) and number_format.has_interval(other)):
        return (
            f"{text}: {here} on these rows, without an interval beyond them" if here else f"{text}, without an interval"
        )
    return f"{text}: {here} on these rows, no difference shown beyond them" if here else f"{text}: no difference shown"


def _known(e: Estimate) -> tuple[float | None, float | None]:
    low, high = e.detail.get("estimator_low"), e.detail.get("estimator_high")
    return (low, high) if isinstance(low, float) and isinstance(high, float) else (None, None)


def _order(a: tuple[float | None, float | None], b: tuple[float | None, float | None]) -> str:
    (low, high), (least, most) = a, b
    if low is not None and most is not None and low > most:
        return "larger"
    return "smaller" if high is not None and least is not None and high < least else ""


# `calib logits`: what was written, and its accuracy.


@sentence
def logits(result: Result) -> str:
    rows, classes = count(result, "rows"), count(result, "classes")
    parts = count(result, "positions") if "positions" in result.facts else 0
    accuracy = first(result, "accuracy")
    where = result.artefacts.get("logits", "")
    size = f"{parts:,} × {classes} logits of {rows:,} rows" if parts else f"{rows:,} × {classes} logits"
    written = f"Wrote {size}" + (f" to {where}" if where else "")
    return sentences(f"{written}: {named(accuracy)}" if accuracy else written)


# `calib inspect`: what a file is, and which commands read it.


@sentence
def inspect(result: Result) -> str:
    facts = result.facts
    kind, commands = str(facts.get("what", "")), str(facts.get("used_by", ""))
    if not kind:
        return ""
    if kind == "recorded outputs":
        return sentences(_outputs(result), upper(f"for {commands}") if commands else "")
    text = kind
    spec = facts.get("spec") or facts.get("architecture")
    text += f" ({spec})" if spec else ""
    valued = [e for e in result.estimates[:3] if e.value is not None and not e.unit]
    numbers = ", ".join(f"{name(e.name)} = {value(e)}" for e in valued)
    taken = f"No command takes it{commands[4:]}" if commands.startswith("none") else f"For {commands}"
    return sentences(upper(text) + (f": {numbers}" if numbers else ""), taken if commands else "")


def _outputs(result: Result) -> str:
    facts = result.facts
    rows, kind, classes = facts.get("rows"), facts.get("kind"), facts.get("classes")
    text = number_format.count_text(rows, "row") if isinstance(rows, int) else "rows"
    text += f" of {kind}" if kind else ""
    if isinstance(classes, int):
        text += f" over {number_format.count_text(classes, 'class')}"
    labelled = any(table.name == "labels" for table in result.tables)
    return f"{text}, {'with labels' if labelled else 'without labels'}"
