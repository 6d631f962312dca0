"""Studies from Python: arms, seeds and claims, and a verdict on each."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from calibcli import headlines
from calibcli.core.errors import UsageError
from calibcli.core.files import claim, guarding
from calibcli.core.options import exclusive, named
from calibcli.core.result import Cell, Result, Table
from calibcli.lab.study import StudyRequest

if TYPE_CHECKING:
    from calibcli.lab.study.experiment import Study

__all__ = ["study"]

READY = """
import json, signal, sys
signal.signal(signal.SIGINT, signal.SIG_DFL)
import calibcli.lab.study.runs
from calibcli.cli.app import main
line = sys.stdin.read()
sys.exit(main(json.loads(line)) if line else 0)
"""
"""The program of the other processes: it does the slow imports while the first process plans the work."""


@named(StudyRequest)
@guarding()
def study(request: StudyRequest) -> Result:
    """Run an experiment: every arm with every seed, measured on the same rows, and a verdict on each claim.

    Finished runs are kept: the same call continues after an interruption, and any number of processes may work on one
    folder. The result is also written to `result.json` and `report.html` in it.

    >>> study("step-size", dry_run=True).facts["study"]
    'step-size'

    Args:
        what: name of a built-in study, a recipe.toml, or the folder of a study to continue; "" lists the built-in ones.
        save: folder for the runs and the report.
        data: data set instead of the recipe's: PATH with the parts #train, #validation and #test.
        size: small, medium, paper, or another of the recipe; one without a `small` is then taken as written.
        arch: other networks (`calib list architectures`).
        seeds: number of seeds instead of the recipe's; more can be added later.
        jobs: processes, spread over the GPUs.  device: auto, cpu, cuda or cuda:N; "" is the recipe's.
        until: start no run after this many minutes.
        report_only: report on the finished runs without training.
        work_only: train the runs that no other process has taken, without waiting or reporting.
        dry_run: open the data and list the runs, without training.
        trust: allow code that the recipe names.
        expect: let the checks of the result fail where a claim is reversed.
        progress: called with (fraction, text).

    Returns:
        A number for each arm, in the unit of its metric, and a check for each claim.

    Raises:
        UsageError: an option or a recipe that cannot be.  InputError: rows, or a finished run, that are refused.
    """
    if not request.what:
        return headlines.headed(_overview())
    meaning = "a report without training, or training without one"
    exclusive(meaning, report_only=request.report_only, work_only=request.work_only)
    others = [_ready() for _ in range(1, 1 if request.report_only or request.dry_run else request.jobs)]
    from calibcli.lab.study import parsing, runs
    from calibcli.lab.study.report import report

    folder, text, source = recipe(request.what)
    save = folder or (None if request.save is None else Path(request.save))
    study = parsing.parse(text, source, request.size, request.data, request.seeds or 0, request.trust, request.arch)
    if study.computes:
        from calibcli.lab.study import analytic

        return headlines.headed(analytic.computed(study, request.expect))
    if request.dry_run:
        return headlines.headed(_plan(study))
    if save is None:
        raise UsageError("a study needs a folder for its runs", f"pass --save out/{study.name}")
    claim(save, folder=True)
    places = [] if request.report_only else runs.places(request.device or study.device, request.jobs)
    parsing.keep(study, save)
    if places:
        seeds, until = request.seeds, request.until
        more = [*["--seeds", str(seeds)] * bool(seeds), *["--until", str(until)] * bool(until)]
        end = None if until is None else time.monotonic() + 60 * until
        with _at_work(others, places[1:], [str(save), *more, *["--trust"] * request.trust]):
            here = dataclasses.replace(study, device=places[0])
            runs.work(here, save, request.progress or (lambda *_: None), end, wait=not request.work_only)
    if request.work_only:
        return headlines.headed(_so_far(study, save))
    result = headlines.headed(report(study, save, request.expect))
    result.write(save / "result.json")
    if find_spec("jinja2") and find_spec("matplotlib"):
        result.write(save / "report.html")
    return result


def recipe(what: str | Path) -> tuple[Path | None, str, str]:
    """Return the folder of a study that was begun, or None, with the text of the recipe and where it is from."""
    from calibcli.lab.study import experiment, parsing

    kept = Path(what) / parsing.FILE
    if kept.is_file():
        return Path(what), kept.read_text("utf-8"), str(kept)
    return None, *experiment.text_of(str(what))


def _ready() -> subprocess.Popen[str]:
    """Start another process, which waits for its command line, and ends if there is none."""
    argv = [sys.executable, "-P", "-c", READY]  # -P: modules in the working folder do not replace libraries
    return subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)


@contextlib.contextmanager
def _at_work(others: Sequence[subprocess.Popen[str]], places: Sequence[str], argv: Sequence[str]) -> Iterator[None]:
    """Let the other processes work, one on each device and without output; wait for them after the block."""
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

    with tempfile.TemporaryDirectory() as drawn:  # for texts that a study draws
        parts = runs.opened(study, Path(drawn))  # the data sets by role, and the number of classes
    part_rows: list[list[Cell]] = [
        [role, getattr(study, role) or f"held out of {study.train}", len(data), parts.classes]
        for role, data in parts.items()
    ]
    # `made` is the loss of an arm, or what it changes in another one
    rows: list[list[Cell]] = [[one.arm.name, one.arch, one.seed, one.arm.made] for one in runs.runs(study)]
    return Result(
        command="study",
        tables=[
            Table(name="rows", columns=["part", "from", "rows", "classes"], rows=part_rows),
            Table(name="runs", columns=["arm", "network", "seed", "loss"], rows=rows),
        ],
        facts={
            "study": study.name,
            "runs": len(rows),
            "rows": {role: len(data) for role, data in parts.items()},
            **({"cost": study.cost} if study.cost else {}),
        },
        screen=experiment.SCREEN,
    )
