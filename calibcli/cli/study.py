"""`calib study`: an experiment with arms, seeds and claims, and a verdict on each."""

from __future__ import annotations

import sys
from pathlib import Path

from calibcli.cli.run import CommandRun, takes
from calibcli.core.options import Jobs, Rows, Seeds, argument, option

PANEL = "Train"


@takes
def command(
    *,
    what: str = argument("Name of a study, a recipe.toml, or the folder of a study to continue.", default=""),
    save: Path | None = option(None, "Folder for the runs and the report.", writes="folder"),
    data: str = option("", "Data set instead of the recipe's: PATH with the parts #train, #validation and #test."),
    size: str = option("small", "Size of a built-in study: small, medium or paper."),
    arch: tuple[str, ...] = option((), "Another network (calib list architectures). Repeatable.", kind=tuple[str, ...]),
    seeds: Seeds | None = option(None, "Number of seeds instead of the recipe's; more can be added later."),
    jobs: Jobs = option(1, "Number of processes, spread over the GPUs; other machines may work on the same folder."),
    device: str = option("", "Device instead of the recipe's: auto, cpu, cuda or cuda:N."),
    until: Rows | None = option(None, "Start no run after this many minutes; run the same command again to continue."),
    report_only: bool = option(False, "Report on the finished runs without training."),
    work_only: bool = option(False, "Train the runs that no other process has taken, without waiting or reporting."),
    dry_run: bool = option(False, "List the runs without training."),
    show: bool = option(False, "Print the recipe, which can be edited and run.", "--print"),
    trust: bool = option(False, "Allow code that the recipe names: module:factory of a network, loss or data set."),
    expect: bool = option(False, "Exit with 1 if a claim is reversed, with 3 if one is undecided."),
    run: CommandRun,
) -> int:
    """Run an experiment: every arm with every seed, measured on the same rows, and a verdict on each claim.

    Without a name, the built-in studies are listed. Finished runs are kept: the same command continues after an
    interruption, and any number of processes may run it on one folder.

    Example: calib study curvature-gamma --save out/gamma
    """
    from calibcli.api import experiments

    if show and what:
        sys.stdout = run.stdout
        print(experiments.recipe(what)[1], end="")
        return 0
    result = experiments.study(
        what,
        save=save,
        data=data,
        size=size,
        arch=arch,
        seeds=seeds,
        jobs=jobs,
        device=device,
        until=until,
        report_only=report_only,
        work_only=work_only,
        dry_run=dry_run,
        trust=trust,
        expect=expect,
        progress=run.progress("training"),
    )
    return run.finish(result)
