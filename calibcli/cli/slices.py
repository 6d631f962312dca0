"""`calib slices`: where a model fails."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from calibcli.cli.run import Run, asked, named, takes
from calibcli.inputs.opening import Reading
from calibcli.spec import Alpha, Depth, Rows, Seed, argument, option

PANEL = "Inspect"


@takes
def command(
    *,
    files: tuple[Path, ...] = argument("Scores with labels and columns; - is stdin."),
    find: Literal["gap", "error"] = option("gap", "gap (miscalibration), or error (more errors than elsewhere)."),
    confirm: Literal["split", "all"] = option(
        "split", "split: search one half, confirm on the other; all: every rule on all rows."
    ),
    depth: Depth = option(2, "Conditions of a rule; 3 needs sliceline."),
    min_n: Rows = option(200, "Rows of a rule at the least."),
    alpha: Alpha = option(0.05, "Family-wise error probability of the rules that are confirmed."),
    seed: Seed = option(0, "Seed of the halves."),
    run: Run,
    reading: Reading,
) -> int:
    """Find the rules on the columns, of one or two conditions, whose rows show more than chance: where a model fails.

    Columns are those of --by, else all that the file has beside scores, labels, ids and weights. Groups (--group) stay
    together. -o rules.toml writes what was confirmed as gates, to be judged on new data, never on these rows.

    Example: calib slices test.npz --by ink -o rules.toml
    """
    from calibcli.api.finding import find_slices

    run.claim([*files, *named(reading)])
    found = find_slices(
        files,
        find=find,
        confirm=confirm,
        depth=depth,
        min_n=min_n,
        alpha=alpha,
        seed=seed,
        progress=run.progress("searching"),
        **asked(reading),
    )
    return run.finish(found)
