"""Format numbers as text, everywhere, with as many digits as their interval supports.

Rounding never reverses an order: a bound above its limit is printed above it, however many digits that takes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from calibcli.core.result import Cell, Estimate

NONE = "—"
SIGNIFICANT = 4  # digits of a number without an interval
ALONE = 6  # further decimals of a value that its interval does not get
EXACT = 400  # decimals that distinguish any two doubles of ordinary size
UNITS = {"percent": " %", "ratio": "×"}


class EstimateText(NamedTuple):
    """The texts of an estimate; "" if there is nothing to show."""

    value: str
    interval: str
    null: str


def shown(estimate: Estimate, limit: float | None = None) -> EstimateText:
    """Format value, interval and null level of `estimate` with the same number of decimals.

    The decimals show two significant digits of the interval's half width, or one more if the value would have fewer
    than three digits; without an interval, four digits of the value. Decimals are added until rounding changes no
    comparison: of value and bounds with `limit`, of the value with the quantile of the null level, and of the bounds
    with zero if the question is whether the interval contains it.
    """
    e = estimate
    places = 0 if e.unit == "rows" else _places(e)
    if (digits := e.detail.get("digits")) and e.value:  # the most that are known, however narrow the interval
        places = min(places, int(digits) - 1 - _exponent(e.value, int(digits)))
    ends = [b for b in (e.low, e.high) if b is not None]
    pairs = [] if limit is None else [(b, limit, EXACT) for b in ends]
    if e.better == "zero":
        pairs += [(b, 0.0, places + 3) for b in (e.low, e.high) if b is not None]
    if e.value is not None and e.null_high is not None and e.value != e.null_high:
        pairs.append((e.value, e.null_high, places + 3))
    for number, reference, most in pairs:
        places = _apart(number, reference, places, most)

    decimals = places
    if limit is not None and e.value is not None:
        decimals = _apart(e.value, limit, places, EXACT)
        # a value next to its limit does not lengthen the interval
        places = decimals if decimals - places <= ALONE else places
    value = NONE if e.value is None else place(e.value, decimals) + UNITS.get(e.unit, "")
    if e.value is not None and e.detail.get("exact"):  # a number that is copied
        value = exact(e.value)
    low, high = ("" if end is None else place(end, places) for end in (e.low, e.high))
    interval = f"[{low}, {high}]" if low and high else f"≥ {low}" if low else f"≤ {high}" if high else ""
    return EstimateText(value, interval, _null(e, places))


def place(number: float, places: int) -> str:
    """Format `number` with `places` decimals, or in scientific notation if it would have too many digits; never -0."""
    if number != 0 and (abs(number) >= 1e7 or places > 9):
        exponent = math.floor(math.log10(abs(number)))
        if abs(number) >= 1e7 or exponent < -4:
            return f"{number:.{min(17, max(0, exponent + places))}e}"
        places = min(places, 17 - exponent)
    text = f"{number:.{max(0, min(places, 40))}f}"
    return text.lstrip("-") if float(text) == 0 else text


def number(x: float, significant: int = SIGNIFICANT) -> str:
    """Format `x` with `significant` digits."""
    if x == 0:
        return "0"
    return place(x, significant - 1 - _exponent(x, significant))


def exact(x: float) -> str:
    """Format `x` as the shortest text that reads back as `x`, such as a limit as its author wrote it."""
    text = repr(float(x))
    return text.removesuffix(".0")


def setting(value: Cell) -> str:
    """Format a setting exactly, unless it is a long fraction."""
    if isinstance(value, float) and len(exact(value)) <= 8:
        return exact(value)
    return cell(value)


def cell(value: Cell) -> str:
    """Format one cell of a table."""
    if value is None:
        return NONE
    if isinstance(value, bool):
        return "yes" if value else "no"
    return number(value) if isinstance(value, float) else str(value)


def column(values: Sequence[Cell]) -> list[str]:
    """Format the cells of a column; fractions share a number of decimals that shows two digits of the smallest."""
    sizes = [abs(v) for v in values if isinstance(v, float) and v != 0]
    if not sizes or max(sizes) >= 1e7:
        return [cell(v) for v in values]
    places = max(SIGNIFICANT - 1 - max(-1, _exponent(max(sizes), SIGNIFICANT)), 1 - _exponent(min(sizes), 2))
    if places > 6:  # one small number would fill the column with zeros
        return [cell(v) for v in values]
    return [place(v, max(0, places)) if isinstance(v, float) else cell(v) for v in values]


P_COLUMNS = ("p", "p (Holm)")
LEAST_P = 1e-4  # the digits of smaller p-values are not reliable


def of_table(name: str, values: Sequence[Cell]) -> list[str]:
    """Format the cells of the column `name`; p-values get four decimals and are never 0."""
    if name not in P_COLUMNS:
        return column(values)
    return [cell(v) if not isinstance(v, float) else "< 1e-4" if v < LEAST_P else f"{v:.4f}" for v in values]


def rows_needed(needed: int, n: int | None, groups: int = 0) -> str:
    """Write how many rows decide for somebody who has n: `about 1,200 rows (203 more)`, with the groups of them."""
    more = f" ({needed - n:,} more)" if n and needed > n else ""
    return f"about {needed:,} rows{more}" + (f" in {groups:,} groups" if groups else "")


def level(estimates: Iterable[Estimate]) -> str:
    """Format the level that all intervals of these estimates share, e.g. `95 %`; "" if they differ or there is none.

    For two one-sided bounds it is the level of each bound: `95 % each`, whose interval has 90 %. Where FAIL needs a
    higher level than PASS, both are written.
    """
    levels = {_level(e) for e in estimates if has_interval(e)}
    return levels.pop() if len(levels) == 1 else ""


def _level(e: Estimate) -> str:
    if e.sided == "each" and e.level is not None:
        fails = e.detail.get("fail_level")
        each = percent((1 + e.level) / 2)
        return f"{each} for PASS, {percent(fails)} for FAIL" if isinstance(fails, float) else f"{each} each"
    return percent(e.level) + ("" if e.sided == "two" else " " + e.sided)


def has_interval(e: Estimate) -> bool:
    return e.level is not None and (e.low is not None or e.high is not None)


def percent(share: float | None) -> str:
    """Format 0.95 as `95 %`; levels close to 1 get as many decimals as distinguish them from 100 %."""
    if share is None:
        return ""
    places = 2 if share < 0.999 else 6
    return f"{round(share * 100, places):.8g} %"


def first_few(items: Iterable[object], most: int) -> str:
    """Join the first `most` items as `a, b`, or as `a, b, ...` if there are more."""
    texts = list(map(str, items))
    return ", ".join([*texts[:most], "..."] if len(texts) > most else texts)


def count_text(n: int, noun: str) -> str:
    """Format a count: `1 row`, `997 rows`, `10 classes`."""
    return f"{n:,} {noun}" + ("" if n == 1 else "es" if noun.endswith("s") else "s")


def short(text: str, length: int) -> str:
    """Shorten `text` to one line of at most `length` characters, cut between words."""
    text = " ".join(text.split())
    if len(text) <= length:
        return text
    head = text[: length - 1]
    return (head.rsplit(" ", 1)[0] if " " in head[length // 2 :] else head).rstrip(" ,;:(") + "…"


def _places(e: Estimate) -> int:
    """Choose decimals that show two digits of the half width; one more if the value has fewer than three."""
    ends = [x for x in (e.low, e.high) if x is not None]
    reach = max((abs(x - (e.value if e.value is not None else x)) for x in ends), default=0.0)
    half = (ends[1] - ends[0]) / 2 if len(ends) == 2 else reach
    size = abs(e.value) if e.value else 0.0
    if half <= size * 1e-12:  # no interval, or one of width zero
        return SIGNIFICANT - 1 - _exponent(size, SIGNIFICANT) if size else SIGNIFICANT
    places = 1 - _exponent(half, 2)
    return places + (size > 0 and -_exponent(size, 2) in (places - 1, places, places + 1))


def _exponent(x: float, significant: int) -> int:
    """Return the power of ten of the leading digit of |x| after rounding to `significant` digits."""
    return int(f"{abs(x):.{significant - 1}e}".split("e")[1])


def _apart(x: float, reference: float, places: int, most: int) -> int:
    """Find the fewest decimals >= `places` with which `x`, rounded, compares to `reference` as before.

    Returns `places` if not even `most` decimals are enough.
    """
    for p in range(places, max(places, most) + 1):
        rounded = float(place(x, p))
        if (rounded > reference) == (x > reference) and (rounded < reference) == (x < reference):
            return p
    return places


def _null(e: Estimate, places: int) -> str:
    if e.null is None:
        return ""
    return place(e.null, places) + ("" if e.null_high is None else f" (≤ {place(e.null_high, places)})")
