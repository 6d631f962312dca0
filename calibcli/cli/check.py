"""`calib check`: a release gate on limits, slices and a baseline."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from calibcli.cli.run import CommandRun, given_options, takes
from calibcli.core.errors import UsageError
from calibcli.core.options import option
from calibcli.gate.options import Request
from calibcli.scores.reading_options import Reading

PANEL = "Gate"


@takes
def command(
    *,
    request: Request,
    save_baseline: Path | None = option(
        None, "Write the rows to this file, as a later --baseline.", metavar="FILE", writes="file"
    ),
    run: CommandRun,
    reading: Reading,
) -> int:
    """Judge limits on metrics: PASS, FAIL, INCONCLUSIVE or NOT RUN.

    PASS and FAIL are claims about the population that hold with 95 % confidence, not about these rows. Rules come from
    --max, --min and --baseline, else from calib.toml, else from tool.calib in pyproject.toml.

    Exit codes: 0 passed, 1 failed, 3 inconclusive, 5 not run (or no rule), 2 wrong request, 4 input refused.

    --save-baseline FILE.json writes what --baseline reads later, unless a rule fails; the rules of calib.toml are not
    used then, so that without --max, --min and --baseline nothing is judged.

    Example: calib check test.npz --max ece=0.05 --min accuracy=0.9
    """
    from calibcli.api.gating import check

    if save_baseline is not None and save_baseline.suffix != ".json":
        raise UsageError(f"a baseline is not written as '{save_baseline.name}'", "use the suffix .json")
    options = {name: value for name, value in vars(request).items() if name not in ("input", "reading")}
    if save_baseline is not None:
        ruled = bool(request.max or request.min or request.baseline or request.threshold)
        options |= {"keep_rows": True, "judge": ruled}
    files = list(request.input or ())
    scores = files if files[1:] else next(iter(files), None)
    progress = run.progress("checking")
    result = check(scores, diagram=bool(run.output), progress=progress, **options, **given_options(reading))
    if save_baseline is not None:
        result = run.keep(result, save_baseline, "baseline", "the check did not pass")
        facts = {key: value for key, value in result.facts.items() if key != "rows" or request.keep_rows}
        result = dataclasses.replace(result, facts=facts)
    return run.finish(result)
