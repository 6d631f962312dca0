"""Two processes of which one is interrupted, dies, or no longer answers."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path

import pytest
import torch
from curvature_models import setup
from forks import ended, ranks

from calibcli.core.errors import CalibError
from calibcli.networks import device
from calibcli.networks.curvature import measure
from calibcli.networks.curvature.engine import Shared

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


LONG = "lambda_max:tol=1e-12", "density:steps=30,probes=2"


def two(folder: Path, name: str, what: tuple[str, ...] = LONG, element: int = 0) -> list[tuple[int, str, str]]:
    """(exit code, stdout, stderr) of rank 0, then of rank 1, which is sent the signal `name` after six products, or
    before that element of a diagonal."""
    calls = 0

    def progress(fraction: float = 0.0, text: str = "") -> None:
        nonlocal calls
        calls += 1
        if calls == (element or 6) and device.rank() == 1:
            os.kill(os.getpid(), getattr(signal, name))

    def asked(shared: Shared) -> bool:
        progress()
        return before(shared)

    def work() -> None:
        device.WAIT = timedelta(seconds=4 if name == "SIGSTOP" else 8)
        if element:
            Shared.asked = asked  # type: ignore[method-assign]
        said, failed = (folder / f"{kind}{device.rank()}" for kind in ("said", "failed"))
        with failed.open("w") as sys.stderr:
            try:
                with device.process_group(torch.device("cpu")):
                    model, inputs, labels = setup("silu", n=40)
                    found = measure(model, (inputs, labels), *what, progress=None if element else progress)
            except CalibError as error:
                print(f"error: {error}", file=sys.stderr)
                raise
        said.write_text(json.dumps([found.facts["interrupted"], calls, [e.value for e in found.estimates]]))

    before = Shared.asked
    children = ranks(work)
    codes = [ended(children[0])]
    if name == "SIGSTOP":
        os.kill(children[1], signal.SIGKILL)
    codes.append(ended(children[1]))
    told = [
        [path.read_text() if (path := folder / f"{kind}{rank}").exists() else "" for kind in ("said", "failed")]
        for rank in range(2)
    ]
    return [(code, said, failed) for code, (said, failed) in zip(codes, told, strict=True)]


def test_an_interrupt_of_one_stops_both_with_the_same_numbers(tmp_path: Path) -> None:
    (code, one, err), (other_code, other, _) = two(tmp_path, "SIGINT")
    assert (code, other_code) == (0, 0), err
    assert one == other
    kind, calls, values = json.loads(one)
    assert kind == "KeyboardInterrupt"
    assert calls < 20
    assert values[0] > 0


def test_an_interrupt_ends_a_diagonal_between_two_elements(tmp_path: Path) -> None:
    """Of the rank that has it: it waits for the other's elements, and both end with what was known before."""
    (code, one, err), (other_code, other, _) = two(tmp_path, "SIGINT", ("trace_ggn", "trace:exact=true"), element=50)
    assert (code, other_code) == (0, 0), err
    (kind, _, values), (other_kind, calls, other_values) = json.loads(one), json.loads(other)
    assert (kind, calls) == (other_kind, 50) == ("KeyboardInterrupt", 50)
    assert values == other_values
    assert values[0] > 0
    assert values[1] is None


@pytest.mark.parametrize("name", ["SIGKILL", "SIGSTOP"])
@pytest.mark.one_in(2)
def test_one_that_is_gone_ends_the_other_with_one_error(tmp_path: Path, name: str) -> None:
    """At once, or after the time that is waited for an answer (30 minutes, here 4 seconds)."""
    began = time.monotonic()
    (code, out, err), _ = two(tmp_path, name)
    assert (code, out) == (1, "")
    assert "rank 0 waited in vain for another process of this launch" in err
    assert "Traceback" not in err
    assert time.monotonic() - began < 200
