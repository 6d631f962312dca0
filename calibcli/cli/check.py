"""`calib check`: a release gate on limits, slices and a baseline."""

from __future__ import annotations

import dataclasses

from calibcli.cli.run import Run, asked, named, takes
from calibcli.gate.request import Request
from calibcli.inputs.opening import Reading

PANEL = "Gate"


@takes
def command(request: Request, run: Run, reading: Reading) -> int:
    """Judge limits on metrics: PASS, FAIL, INCONCLUSIVE or NOT RUN.

    PASS and FAIL are claims about the population that hold with 95 % confidence, not about these rows. Rules come from
    --max, --min and --baseline, else from calib.toml, else from tool.calib in pyproject.toml.

    Exit codes: 0 passed, 1 failed, 3 inconclusive, 5 not run (or no rule), 2 wrong request, 4 input refused.

    Example: calib check test.npz --max ece=0.05 --min accuracy=0.9
    """
    from calibcli.gate import session

    given = list(request.input or ())
    request = dataclasses.replace(
        request, input=given if given[1:] else next(iter(given), None), reading=asked(reading)
    )
    settings = session.asked(request)
    run.claim([*session.named(settings), *given, *named(reading)])
    return run.finish(session.run(request, run.progress("checking"), settings))
