"""A result as a value: what it says of itself, and how its numbers are found."""

from __future__ import annotations

import pytest
from test_findings_metrics_numbers import logits

import calibcli
from calibcli.core.errors import Exit, GateFailed
from calibcli.core.result import Check, Estimate, Result


@pytest.mark.finding("1.12")
def test_a_result_is_neither_true_nor_false() -> None:
    z, y = logits(800, 3)
    good = calibcli.check(z, y, max={"nll": 5.0})
    bad = calibcli.check(z, y, max={"nll": 0.1, "ece": 0.99})
    for result in (good, bad):
        with pytest.raises(TypeError, match="raise_if_failed"):
            bool(result)
        with pytest.raises(TypeError, match="passed"):
            assert result
    assert (good.verdict, good.exit_code, good.passed) == ("pass", 0, True)
    assert good.raise_if_failed() is good
    assert (bad.verdict, bad.exit_code, bad.passed) == ("fail", 1, False)
    with pytest.raises(GateFailed, match=r"FAIL nll <= 0\.1") as error:
        bad.raise_if_failed()
    assert error.value.code == Exit.FAIL
    few = calibcli.check(z[:50], y[:50], max={"nll": 5.0})
    assert (few.verdict, few.exit_code, few.passed) == ("not_run", 5, False)
    with pytest.raises(ValueError, match="judges nothing"):
        _ = Result(command="metrics").passed
    assert Result(command="metrics").verdict is None


@pytest.mark.finding("1.12")
def test_exit_code_is_of_the_checks_that_count() -> None:
    def of(*checks: tuple[str, bool]) -> Result:
        made = [Check(rule="ece <= 1", outcome=o, fatal=fatal) for o, fatal in checks]  # type: ignore[arg-type]
        return Result(command="check", checks=made)

    assert of(("pass", True), ("inconclusive", False)).exit_code == 0
    assert of(("pass", True), ("inconclusive", False)).passed
    assert of(("pass", True), ("inconclusive", False)).verdict == "inconclusive"
    assert of(("inconclusive", True), ("not_run", True)).exit_code == 5
    assert of(("fail", True), ("not_run", True)).exit_code == 1
    assert of(("inconclusive", True)).exit_code == 3


@pytest.mark.finding("1.21")
def test_result_is_asked_by_name_or_any_spelling() -> None:
    def of(*names: str) -> Result:
        return Result(command="metrics", estimates=[Estimate(name=n, value=float(i)) for i, n in enumerate(names)])

    assert of("lambda_max:tol=0.01")["lambda_max"].value == 0
    assert of("lambda_max:tol=0.01")["lambda-max"].value == 0
    assert of("ece", "ece:bins=30")["ece:bins=15"].value == 0
    assert of("ece", "ece:bins=30")["ece:edges=right,bins=30"].value == 1
    for result, name in ((of("ece"), "ece:bins=30"), (of("a:b=1", "a:b=2"), "a"), (of("ece"), "nll"), (of(), "ece")):
        with pytest.raises(KeyError, match=f"no estimate '{name}'"):
            result[name]
