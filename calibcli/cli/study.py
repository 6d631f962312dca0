"""`calib study`: an experiment with arms, seeds and claims, and a verdict on each."""

from __future__ import annotations

import contextlib
import dataclasses
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from calibcli.cli.run import CommandRun, takes
from calibcli.core.errors import UsageError
from calibcli.core.files import atomic
from calibcli.core.options import Jobs, Rows, Seeds, argument, option
from calibcli.core.result import Cell, Result, Table

if TYPE_CHECKING:
    from calibcli.lab.study.experiment import Study

PANEL = "Train"
READY = """
import json, signal, sys
signal.signal(signal.SIGINT, signal.SIG_DFL)
import calibcli.lab.study.runs
from calibcli.cli.app import main
line = sys.stdin.read()
sys.exit(main(json.loads(line)) if line else 0)
"""
"""The program of the other processes: it does the slow imports while the first process plans the work."""


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
    if not what:
        return run.finish(_overview())
    others = [_ready() for _ in range(1, 1 if report_only or dry_run or show else jobs)]
    from calibcli.lab.study import experiment, parsing, runs
    from calibcli.lab.study.report import report

    if (Path(what) / parsing.FILE).is_file():
        save = Path(what)
        text, source = (save / parsing.FILE).read_text("utf-8"), str(save / parsing.FILE)
        study = parsing.parse(text, source, data=data, seeds=seeds or 0, trust=trust, arch=arch)
    else:
        text, source = experiment.text_of(what)
        of = size if source in experiment.built_in() else ""
        study = parsing.parse(text, source, of, data, seeds or 0, trust, arch)
    if show:
        sys.stdout = run.stdout
        print(text, end="")
        return 0
    if study.computes:
        from calibcli.lab.study import analytic

        return run.finish(analytic.computed(study))
    if dry_run:
        return run.finish(_plan(study))
    if save is None:
        raise UsageError("a study needs a folder for its runs", f"pass --save out/{study.name}")
    if report_only and work_only:
        raise UsageError("nothing is left to do", "pass --report-only or --work-only")
    places = [] if report_only else runs.places(device or study.device, jobs)
    parsing.keep(study, save)
    if places:
        more = [*["--seeds", str(seeds)] * bool(seeds), *["--until", str(until)] * bool(until), *["--trust"] * trust]
        end = None if until is None else time.monotonic() + 60 * until
        with _at_work(others, places[1:], [str(save), *more]):
            here = dataclasses.replace(study, device=places[0])
            runs.work(here, save, run.progress(study.name), end, wait=not work_only)
    if work_only:
        return run.finish(_so_far(study, save))
    result = report(study, save, expect)
    _write(result, save, run)
    return run.finish(result)


def _ready() -> subprocess.Popen[str]:
    """Start another process, which waits for its command line, and ends if there is none."""
    argv = [sys.executable, "-P", "-c", READY]  # -P: modules in the working folder do not replace libraries
    return subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)


@contextlib.contextmanager
def _at_work(others: Sequence[subprocess.Popen[str]], places: Sequence[str], argv: Sequence[str]) -> Iterator[None]:
    """Let the other processes work, one on each device and without output; wait for them after the block."""
    import json

    try:
        for other, place in zip(others, places, strict=True):
            assert other.stdin
            with contextlib.suppress(BrokenPipeError), other.stdin as line:  # a process that ended early is not needed
                json.dump(["study", *argv, "--device", place, "--work-only", "-q"], line)
        yield
    except BaseException:
        for other in others:
            other.terminate()
        raise
    for other in others:
        other.wait()


def _write(result: Result, save: Path, run: CommandRun) -> None:
    """Write the report as JSON, and as a page if the libraries for it are installed."""
    with atomic(save / "result.json") as temporary:
        temporary.write_text(result.to_json() + "\n", "utf-8")
    if find_spec("jinja2") and find_spec("matplotlib"):
        from calibcli.render import page

        with atomic(save / "report.html") as temporary:
            temporary.write_text(page.page(run.stamped(result)), "utf-8", "backslashreplace")


def _so_far(study: Study, save: Path) -> Result:
    from calibcli.lab.study import runs
    from calibcli.lab.study.experiment import SCREEN

    every = runs.runs(study)
    done = f"{sum(bool(runs.record(save, one)) for one in every)} of {len(every)}"
    return Result(
        command="study", facts={"headline": f"{done} runs are done.", "study": study.name, "runs": done}, screen=SCREEN
    )


def _overview() -> Result:
    from calibcli.lab.study import experiment, parsing

    rows: list[list[Cell]] = []
    for name in experiment.built_in():
        study = parsing.parse(*experiment.text_of(name), size="small")
        rows.append([name, study.question, study.paper, len(study.arms), study.seeds, len(study.claims)])
    columns = ["study", "question", "paper", "arms", "seeds", "claims"]
    return Result(command="study", tables=[Table(name="studies", columns=columns, rows=rows)])


def _plan(study: Study) -> Result:
    from calibcli.lab.study import experiment, runs

    rows: list[list[Cell]] = [[one.arm.name, one.arch, one.seed, one.arm.loss] for one in runs.runs(study)]
    return Result(
        command="study",
        tables=[Table(name="runs", columns=["arm", "network", "seed", "loss"], rows=rows)],
        facts={"study": study.name, "runs": len(rows), **({"cost": study.cost} if study.cost else {})},
        screen=experiment.SCREEN,
    )
