"""The one place that turns numbers into text: as many digits as the interval supports, and never one that lies.

Rounding keeps order: a bound above its limit is printed above it, however many digits that takes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from calibcli.core.result import Cell, Estimate

NONE = "—"
SIGNIFICANT = 4  # digits of a number that has no interval
EXACT = 400  # decimals that tell any two doubles apart
UNITS = {"percent": " %", "ratio": "×"}


class EstimateText(NamedTuple):
    """An estimate as text; "" where there is nothing to show."""

    value: str
    interval: str
    null: str


def shown(estimate: Estimate, limit: float | None = None) -> EstimateText:
    """Value, interval and null level of `estimate` with the same number of decimals.

    Two significant digits of the interval's half width, one more where that leaves fewer than three of the value (four
    of the value without an interval); and more until every number is on the same side as in memory: value and bounds
    of `limit`, value of the null level's quantile, bounds of zero when the question is whether they hold it.
    """
    e = estimate
    places = 0 if e.unit == "rows" else _places(e)
    if (digits := e.detail.get("digits")) and e.value:  # at most so many, however narrow the interval is
        places = min(places, int(digits) - 1 - _exponent(e.value, int(digits)))
    bounds = [b for b in (e.value, e.low, e.high) if b is not None]
    pairs = [] if limit is None else [(b, limit, EXACT) for b in bounds]
    if e.better == "zero":
        pairs += [(b, 0.0, places + 3) for b in (e.low, e.high) if b is not None]
    if e.value is not None and e.null_high is not None and e.value != e.null_high:
        pairs.append((e.value, e.null_high, places + 3))
    for number, reference, most in pairs:
        places = _apart(number, reference, places, most)

    value = NONE if e.value is None else place(e.value, places) + UNITS.get(e.unit, "")
    return EstimateText(value, _interval(e, places), _null(e, places))


def place(number: float, places: int) -> str:
    """`number` rounded to `places` decimals; scientific where that would be a wall of digits; no negative zero."""
    if number != 0 and (abs(number) >= 1e7 or places > 9):
        exponent = math.floor(math.log10(abs(number)))
        if abs(number) >= 1e7 or exponent < -4:
            return f"{number:.{min(17, max(0, exponent + places))}e}"
        places = min(places, 17 - exponent)
    text = f"{number:.{max(0, min(places, 40))}f}"
    return text.lstrip("-") if float(text) == 0 else text


def number(x: float, significant: int = SIGNIFICANT) -> str:
    """`x` alone, to `significant` digits."""
    if x == 0:
        return "0"
    return place(x, significant - 1 - _exponent(x, significant))


def exact(x: float) -> str:
    """The shortest text that reads back as `x`: a limit as its author wrote it."""
    text = repr(float(x))
    return text.removesuffix(".0")


def setting(value: Cell) -> str:
    """A value that somebody set: as it was written, unless that is a long fraction."""
    if isinstance(value, float) and len(exact(value)) <= 8:
        return exact(value)
    return cell(value)


def cell(value: Cell) -> str:
    """A table's cell alone."""
    if value is None:
        return NONE
    if isinstance(value, bool):
        return "yes" if value else "no"
    return number(value) if isinstance(value, float) else str(value)


def column(values: Sequence[Cell]) -> list[str]:
    """The cells of a table's column; its fractions share decimals that show two digits of the smallest."""
    sizes = [abs(v) for v in values if isinstance(v, float) and v != 0]
    if not sizes or max(sizes) >= 1e7:
        return [cell(v) for v in values]
    places = max(SIGNIFICANT - 1 - max(-1, _exponent(max(sizes), SIGNIFICANT)), 1 - _exponent(min(sizes), 2))
    if places > 6:  # a wall of zeros for the sake of one small number
        return [cell(v) for v in values]
    return [place(v, max(0, places)) if isinstance(v, float) else cell(v) for v in values]


P_COLUMNS = ("p", "p (Holm)")
LEAST_P = 1e-4  # below, digits of a p-value say nothing


def of_table(name: str, values: Sequence[Cell]) -> list[str]:
    """The cells of a table's column of that name: p-values at most as exactly as they are known, and never 0."""
    if name not in P_COLUMNS:
        return column(values)
    return [cell(v) if not isinstance(v, float) else "< 1e-4" if v < LEAST_P else f"{v:.4f}" for v in values]


def level(estimates: Iterable[Estimate]) -> str:
    """The level that all intervals of these estimates share, e.g. `95 %`; "" when they differ or there is none.

    Of two one-sided bounds it is that of each: `95 % each` for what is, as an interval, one of 90 %; or, where FAIL
    needs a surer one than PASS, of both.
    """
    found = {_level(e) for e in estimates if has_interval(e)}
    return found.pop() if len(found) == 1 else ""


def _level(e: Estimate) -> str:
    if e.sided == "each" and e.level is not None:
        fails = e.detail.get("fail_level")
        each = percent((1 + e.level) / 2)
        return f"{each} for PASS, {percent(fails)} for FAIL" if isinstance(fails, float) else f"{each} each"
    return percent(e.level) + ("" if e.sided == "two" else " " + e.sided)


def has_interval(e: Estimate) -> bool:
    return e.level is not None and (e.low is not None or e.high is not None)


def percent(share: float | None) -> str:
    """0.95 as `95 %`; of a long fraction as many decimals as tell it from 100 %."""
    if share is None:
        return ""
    places = 2 if share < 0.999 else 6
    return f"{round(share * 100, places):.8g} %"


def short(text: str, length: int) -> str:
    """`text` on one line, cut at a word so that it is at most `length` long."""
    text = " ".join(text.split())
    if len(text) <= length:
        return text
    head = text[: length - 1]
    return (head.rsplit(" ", 1)[0] if " " in head[length // 2 :] else head).rstrip(" ,;:(") + "…"


def _places(e: Estimate) -> int:
    """Decimals that show two significant digits of the half width; one more where the value shows fewer than three."""
    ends = [x for x in (e.low, e.high) if x is not None]
    reach = max((abs(x - (e.value if e.value is not None else x)) for x in ends), default=0.0)
    half = (ends[1] - ends[0]) / 2 if len(ends) == 2 else reach
    size = abs(e.value) if e.value else 0.0
    if half <= size * 1e-12:  # no interval, or one of width zero
        return SIGNIFICANT - 1 - _exponent(size, SIGNIFICANT) if size else SIGNIFICANT
    places = 1 - _exponent(half, 2)
    return places + (size > 0 and -_exponent(size, 2) in (places - 1, places, places + 1))


def _exponent(x: float, significant: int) -> int:
    """Power of ten of the leading digit of |x| once it is rounded to `significant` digits."""
    return int(f"{abs(x):.{significant - 1}e}".split("e")[1])


def _apart(x: float, reference: float, places: int, most: int) -> int:
    """The fewest decimals >= `places` at which `x` rounds to the side of `reference` that it is on (or onto it).

    `places` itself where as many as `most` do not tell them apart.
    """
    for p in range(places, max(places, most) + 1):
        rounded = float(place(x, p))
        if (rounded > reference) == (x > reference) and (rounded < reference) == (x < reference):
            return p
    return places


def _interval(e: Estimate, places: int) -> str:
    low = None if e.low is None else place(e.low, places)
    high = None if e.high is None else place(e.high, places)
    if low is not None and high is not None:
        return f"[{low}, {high}]"
    return f"≥ {low}" if low is not None else f"≤ {high}" if high is not None else ""


def _null(e: Estimate, places: int) -> str:
    if e.null is None:
        return ""
    return place(e.null, places) + ("" if e.null_high is None else f" (≤ {place(e.null_high, places)})")
