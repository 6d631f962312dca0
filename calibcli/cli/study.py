"""`calib study`: an experiment with arms, seeds and claims, and a verdict on each."""

from __future__ import annotations

import sys

from calibcli.cli.run import CommandRun, takes
from calibcli.core.options import option
from calibcli.lab.study import StudyRequest

PANEL = "Look up"


@takes
def command(
    *,
    request: StudyRequest,
    show: bool = option(False, "Print the recipe, which can be edited and run.", "--print"),
    run: CommandRun,
) -> int:
    """Run an experiment of arms and seeds; a verdict on each claim.

    Without a name, the built-in studies are listed. Finished runs are kept: the same command continues after an
    interruption, and any number of processes may run it on one folder.

    Example: calib study curvature-gamma --save out/gamma
    """
    from calibcli.api import experiments

    if show and request.what:
        sys.stdout = run.stdout
        print(experiments.recipe(request.what)[1], end="")
        return 0
    return run.finish(experiments.study(**{**vars(request), "progress": run.progress("training")}))
