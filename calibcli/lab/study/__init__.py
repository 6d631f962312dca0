"""Experiments: a recipe of arms, seeds and claims, its runs, and a verdict on each claim."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from pathlib import Path

from calibcli.core.options import Jobs, Rows, Seeds, argument, check_options, in_tuples, option


@dataclass(frozen=True)
class StudyRequest:
    """The options of `calib study`, and of `calibcli.study`."""

    what: str | Path = argument("Name of a study, a recipe.toml, or the folder of a study to continue.", "", kind=str)
    _: KW_ONLY
    save: str | Path | None = option(None, "Folder for the runs and the report.", kind=Path, writes="folder")
    data: str = option("", "Data set instead of the recipe's: PATH with the parts #train, #validation and #test.")
    size: str = option("small", "Size of the study: small, medium, paper, or another of its recipe.")
    arch: tuple[str, ...] = option((), "Another network (calib list architectures). Repeatable.")
    seeds: Seeds | None = option(None, "Number of seeds instead of the recipe's; more can be added later.")
    jobs: Jobs = option(1, "Number of processes, spread over the GPUs; other machines may work on the same folder.")
    device: str = option("", "Device instead of the recipe's: auto, cpu, cuda or cuda:N.")
    until: Rows | None = option(None, "Start no run after this many minutes; run the same command again to continue.")
    report_only: bool = option(False, "Report on the finished runs without training.")
    work_only: bool = option(False, "Train the runs that no other process has taken, without waiting or reporting.")
    dry_run: bool = option(False, "Open the data and list the runs, without training.")
    trust: bool = option(False, "Allow code that the recipe names: module:factory of a network, loss or data set.")
    expect: bool = option(False, "Exit with 1 if a claim is reversed, with 3 if one is undecided.")
    progress: Callable[[float, str], None] | None = None

    def __post_init__(self) -> None:
        check_options(self)
        in_tuples(self)
