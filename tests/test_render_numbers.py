"""Numbers as text: digits from the interval, order kept against a limit, nothing invented."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibcli.core import number_format
from calibcli.core.result import Estimate

finite = st.floats(allow_nan=False, allow_infinity=False, width=64)
usual = st.floats(min_value=-100, max_value=100)


@pytest.mark.parametrize(
    ("value", "low", "high", "texts"),
    [
        (0.06112345, 0.0312, 0.09397, ("0.0611", "[0.0312, 0.0940]")),
        (0.00611, 0.0, 0.02181, ("0.0061", "[0.0000, 0.0218]")),
        (1.73214, 1.61, 1.87, ("1.73", "[1.61, 1.87]")),
        (1234.5, 1200.0, 1300.0, ("1234", "[1200, 1300]")),
        (0.874, None, None, ("0.8740", "")),
        (0.5, 0.25, None, ("0.500", "≥ 0.250")),
        (0.5, None, 0.7512, ("0.500", "≤ 0.751")),
        (None, None, None, ("—", "")),
        (1e-12, 0.9e-12, 1.1e-12, ("1.00e-12", "[9.0e-13, 1.10e-12]")),
        (2.5e9, 2.4e9, 2.6e9, ("2.50e+09", "[2.40e+09, 2.60e+09]")),
        (-0.00001, -0.02, 0.02, ("0.000", "[-0.020, 0.020]")),
    ],
)
def test_digits_come_from_the_interval(
    value: float | None, low: float | None, high: float | None, texts: tuple[str, str]
) -> None:
    found = number_format.shown(Estimate(name="x", value=value, low=low, high=high, level=0.95))
    assert (found.value, found.interval) == texts


def test_units() -> None:
    assert number_format.shown(Estimate(name="x", value=4.1, unit="percent")).value == "4.100 %"
    assert number_format.shown(Estimate(name="x", value=1.5, unit="ratio")).value == "1.500×"
    assert number_format.shown(Estimate(name="x", value=1.5, unit="nats")).value == "1.500"


@pytest.mark.regression("maps 4")
def test_a_value_next_to_its_limit_does_not_lengthen_its_interval() -> None:
    found = number_format.shown(Estimate(name="x", value=9e-18, low=-0.3167465434, high=0.2, level=0.95), 0.0)
    assert found.value == "9e-18"
    assert len(found.interval) < 20


@given(value=usual, width=st.floats(min_value=1e-9, max_value=10), limit=usual)
def test_a_number_never_contradicts_its_verdict(value: float, width: float, limit: float) -> None:
    e = Estimate(name="x", value=value, low=value - width, high=value + width, level=0.9)
    shown = number_format.shown(e, limit)
    low, high = (float(t) for t in shown.interval.strip("[]").split(","))
    for text, exact in ((shown.value, e.value), (low, e.low), (high, e.high)):
        assert exact is not None
        assert (float(text) > limit) == (exact > limit)
        assert (float(text) < limit) == (exact < limit)
    assert float(number_format.exact(limit)) == limit


@pytest.mark.parametrize("high", [0.0300001, 0.03 + 1e-15, 0.0299999999])
def test_a_bound_next_to_its_limit(high: float) -> None:
    e = Estimate(name="ece", value=0.02, low=0.01, high=high, level=0.9)
    shown = float(number_format.shown(e, 0.03).interval.strip("[]").split(",")[1])
    assert (shown > 0.03, shown < 0.03) == (high > 0.03, high < 0.03)
    assert number_format.shown(e).interval == "[0.0100, 0.0300]"


def test_an_interval_that_excludes_zero_shows_it() -> None:
    e = Estimate(name="confidence_gap", value=0.03, low=0.0004, high=0.06, level=0.95, better="zero")
    assert number_format.shown(e).interval == "[0.0004, 0.0600]"


def test_a_value_above_the_null_level_shows_it() -> None:
    e = Estimate(name="ece", value=0.03004, low=0.01, high=0.05, level=0.9, null=0.02, null_high=0.03)
    assert number_format.shown(e) == ("0.03004", "[0.01000, 0.05000]", "0.02000 (≤ 0.03000)")


@given(st.floats(min_value=-1e307, max_value=1e307))
def test_any_number_reads_back_to_its_digits(x: float) -> None:
    assert float(number_format.number(x)) == pytest.approx(x, rel=6e-4, abs=1e-300)
    assert float(number_format.exact(x)) == x
    assert number_format.number(x) != "-0"


@given(st.lists(st.one_of(st.none(), st.integers(), finite, st.text(max_size=5), st.booleans()), max_size=8))
def test_any_column(values: list[float | int | str | None]) -> None:
    texts = number_format.column(values)
    assert len(texts) == len(values)
    assert all(t == number_format.NONE for t, v in zip(texts, values) if v is None)


def test_column_shares_decimals() -> None:
    assert number_format.column([0.5, 0.12345, None, 3]) == ["0.5000", "0.1235", "—", "3"]
    assert number_format.column([12.5, 0.25]) == ["12.50", "0.25"]
    assert number_format.column([0.0632, -0.000144]) == ["0.06320", "-0.00014"]
    assert number_format.column([12500.0, 3.5]) == ["12500.0", "3.5"]
    assert number_format.column([1e-9, 1.0]) == ["1.000e-09", "1.000"]


def test_settings_stay_as_they_were_written() -> None:
    values = [0.05, 1e-8, 3.0, 0.1 + 0.2, 15, "nll", True]
    assert [number_format.setting(v) for v in values] == ["0.05", "1e-08", "3", "0.3000", "15", "nll", "yes"]


def test_levels() -> None:
    two = Estimate(name="a", value=1, low=0, high=2, level=0.95)
    each = Estimate(name="b", value=1, low=0, high=2, level=0.9, sided="each")
    assert number_format.level([two, Estimate(name="c", value=1)]) == "95 %"
    assert number_format.level([each]) == "95 % each"
    assert number_format.level([two, each]) == ""
    assert number_format.percent(0.999) == "99.9 %"


@given(st.text(), st.integers(4, 40))
def test_short(text: str, length: int) -> None:
    found = number_format.short(text, length)
    assert len(found) <= length
    assert "\n" not in found
    if len(" ".join(text.split())) <= length:
        assert found == " ".join(text.split())
