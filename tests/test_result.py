"""A Result round-trips through JSON, and JSON never holds inf or nan."""

from __future__ import annotations

import json

import numpy as np
import pytest

from calibcli.errors import InputError
from calibcli.plots import Curve, Plot
from calibcli.result import SCHEMA, Check, Estimate, Result, Table


def full() -> Result:
    ece = Estimate(
        name="ece", value=np.float64(0.05), low=0.01, high=0.09, level=0.9, sided="each", detail={"n_eff": 7}
    )
    return Result(
        command="metrics",
        estimates=[ece, Estimate(name="nll", value=float("inf"))],
        tables=[Table(name="bins", columns=["bin", "n"], rows=[[1, np.int64(4)], [2, float("nan")]])],
        plots=[
            Plot(name="r", curves=[Curve(label="m", kind="line", x=np.arange(3.0), y=[0.1, None, 0.3])], xlim=(0, 1))
        ],
        checks=[Check(rule="ece <= 0.1", outcome="pass", estimate=ece, limit=0.1)],
        notes=["a note"],
        facts={"n": np.int64(3), "shape": (3, 2)},
        provenance={"seconds": 0.1},
    )


def test_round_trip() -> None:
    result = full()
    again = Result.from_json(result.to_json())
    assert again == result
    assert again.to_json() == result.to_json()


def test_infinite_is_null_with_a_reason() -> None:
    data = json.loads(full().to_json(), parse_constant=lambda s: pytest.fail(f"JSON holds {s}"))
    assert data["schema"] == SCHEMA
    assert data["estimates"][1]["value"] is None
    assert data["estimates"][1]["reason"] == "value is infinite"


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", '{"command": 1}', '{"command": "x", "schema": 99}', "[" * 100_000]
)
def test_refuses_what_is_not_a_result(text: str) -> None:
    with pytest.raises(InputError):
        Result.from_json(text)


def test_get_names_what_is_missing() -> None:
    assert full()["ece"].high == 0.09
    with pytest.raises(KeyError, match="no estimate 'brier'"):
        full()["brier"]
