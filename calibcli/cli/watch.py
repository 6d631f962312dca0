"""`calib watch`: a gate that may be looked at every night."""

from __future__ import annotations

from pathlib import Path

from calibcli.cli.run import CommandRun, given_options, takes
from calibcli.core.options import Alpha, Count, Nats, PerYear, Rows, Share, argument, option
from calibcli.gate.options import ACCEPT, LIMIT, MAX, MIN
from calibcli.scores.reading_options import Reading

PANEL = "Gate"


@takes
def command(
    *,
    state: Path = argument("State of the watch, a .json file; created if it does not exist.", writes="file"),
    new: tuple[Path, ...] = argument(
        "New rows: scores with labels, or with --labels FILE; a file per night, named by its date. Or states of other "
        "machines.",
        (),
    ),
    max: tuple[str, ...] = option((), MAX, metavar=LIMIT),
    min: tuple[str, ...] = option((), MIN, metavar=LIMIT),
    baseline: str | None = option(None, "Scores of another model on the same new rows.", metavar="FILE"),
    margin: tuple[str, ...] = option(
        (), "Largest allowed loss against the baseline, such as accuracy=0.01 (calib list metrics).", metavar=LIMIT
    ),
    night: str = option(
        "", "Date of the rows, such as 2026-11-22 (default: that in the name of the file, or today, in UTC)."
    ),
    alpha: Alpha | None = option(None, "Error probability of each claim, over all evaluations (default: 0.05)."),
    per_year: PerYear | None = option(
        None, "Probability of a false drift alarm, in one year and in all years together (default: 0.05)."
    ),
    labelled: Share = option(
        1.0, "Share of its rows that must have labels for a night to count; the others count at the worst case."
    ),
    most_waiting: Rows = option(30, "Nights that may wait for labels; with more the watch is NOT RUN (exit 5)."),
    nll_cap: Nats | None = option(None, "For nll: cap on the loss of a row, in nats (default: 10)."),
    bins: Count | None = option(None, "Number of bins of ece (default: 15)."),
    name: str = option("", "Name of the model; rows of another model are refused."),
    config: Path | None = option(None, "Configuration to read instead of calib.toml or tool.calib in pyproject.toml."),
    threshold: str | None = option(None, ACCEPT, metavar="FILE"),
    restart: bool = option(False, "Start a new state; the existing one is kept beside it."),
    run: CommandRun,
    reading: Reading,
) -> int:
    """Add the rows of a night; report whether a rule is broken.

    It can be evaluated every night without end: the probability that any evaluation is wrong is at most alpha. The
    rules are those of `calib check`, fixed when the state is created. Without NEW, the state is shown. A file of 0 rows
    only adds a night to the list. Labels may come later, in files of their own (--labels FILE, by id): a night counts
    when all of its rows have them.

    Exit codes: 0 no alarm, 1 alarm, 5 labels do not come (--most-waiting), 2 wrong request, 4 input refused (nothing
    of it is counted).

    Example: calib watch state.json tonight.npz --max ece=0.05 --min accuracy=0.88
    """
    from calibcli.api.gating import Watch

    watch = Watch(
        state,
        max=max,
        min=min,
        margin=margin,
        alpha=alpha,
        per_year=per_year,
        nll_cap=nll_cap,
        bins=bins,
        config=config,
        threshold=threshold,
        name=name,
        labelled=labelled,
        most_waiting=most_waiting,
        restart=restart,
    )
    run.progress("counting")
    if not new and reading.labels:
        named = {name: getattr(reading, name) for name in ("ids", "label_base", "ignore_label")}
        return run.finish(watch.labels_for(Path(reading.labels), **named))
    if not new:
        return run.finish(watch.result())
    return run.finish(watch.update(new, night=night, baseline=baseline, **given_options(reading)))
