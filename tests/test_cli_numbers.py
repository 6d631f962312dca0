"""Every number of the command line has a range, as every option of a spec has."""

from __future__ import annotations

import importlib
from typing import Any, get_args

import pytest

from calibcli.cli import COMMANDS
from calibcli.cli.app import main
from calibcli.cli.run import Option
from calibcli.core.errors import Exit, UsageError


def numbers() -> list[Any]:
    """Every option of every command whose annotation holds a number."""
    return [
        pytest.param(one, id=f"{name}-{one.name}")
        for name in COMMANDS
        for one in importlib.import_module(f"calibcli.cli.{name}").command.options.values()
        if {int, float} & {one.kind, *get_args(one.kind)}
    ]


def test_commands_are_walked() -> None:
    assert len(numbers()) > 40
    assert {str(p.id).partition("-")[0] for p in numbers()} <= set(COMMANDS)


@pytest.mark.regression("4 option-ranges")
@pytest.mark.parametrize("option", numbers())
def test_outside_its_range_a_number_is_refused_by_name(option: Option) -> None:
    for text in ("nan", "inf", "-inf", "1_0", "9" * 401, "9" * 5000, "-1e300", "1e309", "x", ""):
        with pytest.raises(UsageError) as caught:
            option.parse(text)
        assert caught.value.code == Exit.USAGE
        assert caught.value.problem.startswith("--")
        assert len(caught.value.problem) < 100
        assert any(word in caught.value.fix for word in ("from", "more than", "at least"))


@pytest.mark.regression("4 limits-of-401-digits")
@pytest.mark.parametrize("number", ["9" * 401, "1e400", "nan", "0_05", "0x1", "1e10"])
@pytest.mark.parametrize("command", [["check", "x.npz"], ["plan"]])
@pytest.mark.parametrize("side", ["--max", "--min", "--margin"])
def test_a_limit_is_a_plain_finite_number(
    number: str, command: list[str], side: str, capsys: pytest.CaptureFixture[str]
) -> None:
    more = ["--baseline", "b.json"] if side == "--margin" and command[0] == "check" else []
    assert main([*command, side, f"ece={number}", *more]) == Exit.USAGE
    said = capsys.readouterr().err
    assert f"{side} ece=" in said
    assert "a number from" in said
    assert len(said) < 200
