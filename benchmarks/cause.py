"""What a referee would ask of `curvature-cause`: `one_curve` on other arms, seeds and numbers of a finished folder.

    calib study curvature-cause --save out/cause
    python benchmarks/cause.py out/cause
    python benchmarks/cause.py                # from the means and errors of the pages, at some correlations of rows

Each line has a p-value without correction for the number of lines: they describe how far the verdict depends on a
choice, and are no claims of the study.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import _harness
import _measured_curves
import numpy as np
from _harness import head, row
from scipy import stats

from calibcli.lab.study import _curve, claims, parsing
from calibcli.lab.study._readings import measured
from calibcli.lab.study.claims import MeasuredArm, SeedMean
from calibcli.lab.study.experiment import Study

Numbers = dict[str, dict[str, MeasuredArm]]
X, Y = "trace of ce", "confidence_gap"
MISSES = (0.5, 1.0, 2.0, 3.0)
LOSSES, PATHS = ("gamma", "smoothing"), ("decay", "rho", "weight", "lr", "batch_size")


def asked(
    study: Study, numbers: Numbers, x: str, y: str, causes: Sequence[str], seeds: slice = slice(None), miss: float = 0
) -> str:
    """The verdict on the arms of these causes and the base."""
    names = ["CE", *(name for cause in causes for name in study.levels[cause] if name != "CE")]
    sides = [[cut(numbers[name][metric], seeds) for name in names] for metric in (x, y)]
    members = {cause: [names.index(n) for n in study.levels[cause] if n != "CE"] for cause in causes}
    found = claims.one_curve(*sides, members, miss=miss)
    return f"{found.word}, p = {found.p:.2g}: {found.why}"


def cut(arm: MeasuredArm, seeds: slice) -> MeasuredArm:
    return MeasuredArm(arm.values[seeds], None if arm.draws is None else arm.draws[seeds])


def confidence(numbers: dict[str, MeasuredArm]) -> MeasuredArm:
    """Mean confidence: the gap and the accuracy."""
    return numbers[Y] - numbers["error"]


def lines(study: Study, numbers: Numbers) -> Iterator[tuple[str, str]]:
    """What is asked, and the answer."""
    causes = [cause for cause in study.levels if len(study.levels[cause]) > 1]
    names = list(dict.fromkeys(name for cause in causes for name in study.levels[cause]))
    half = study.seeds // 2
    yield "all arms", asked(study, numbers, X, Y, causes)
    yield f"seeds 1 to {half}", asked(study, numbers, X, Y, causes, slice(half))
    yield f"seeds {half + 1} to {study.seeds}", asked(study, numbers, X, Y, causes, slice(half, None))
    for miss in MISSES:
        yield f"the curve may miss each arm by {miss:g} SE", asked(study, numbers, X, Y, causes, miss=miss)
    for left in causes:
        yield f"without {left}", asked(study, numbers, X, Y, [cause for cause in causes if cause != left])
    yield "without both losses", asked(study, numbers, X, Y, PATHS)
    yield "without losses and decay", asked(study, numbers, X, Y, PATHS[1:])
    for y in ("confidence", "error", "ece", "nll", "temperature"):
        yield f"{y} in place of the gap", asked(study, numbers, X, y, causes)
    for x in ("trace after of ce", "fisher_rao of ce", "fisher_rao after of ce"):
        yield f"{x} in place of the trace", asked(study, numbers, x, Y, causes)
    for x in (X, "trace after of ce", "fisher_rao of ce", "fisher_rao after of ce"):
        means = [[float(numbers[name][metric].values.mean()) for name in names] for metric in (x, Y)]
        moved = [
            cause
            for cause in causes
            if SeedMean.of(
                claims.contrast([numbers[n][x] for n in study.levels[cause]], study.levels[cause].index("CE"))
            ).sure()
        ]
        yield (
            f"{x}: Spearman with the gap over arms; causes that surely move it",
            f"{stats.spearmanr(*means)[0]:.2f}; {len(moved)} of {len(causes)}",
        )
    of_x, of_y = ([numbers[name][metric] for name in names] for metric in (X, Y))
    values = [np.stack([one.values for one in side]) for side in (of_x, of_y)]
    points = _curve.Points.of(*values, np.stack([one.draws for one in (*of_x, *of_y)]))
    size = np.sqrt(points.rows.diagonal())
    rows = (points.rows / np.outer(size, size)).reshape(2, len(names), 2, len(names))
    seeds = np.corrcoef(np.concatenate(values)).reshape(2, len(names), 2, len(names))
    pairs = np.triu_indices(len(names), 1)
    for side, metric in enumerate((X, Y)):
        told = [float(np.mean(of[side, :, side][pairs])) for of in (rows, seeds)]
        yield f"{metric}: mean correlation of two arms, by rows; by seeds", f"{told[0]:.2f}; {told[1]:.2f}"
    for arm in ("FL-3", "smoothing 0.05", "decay 0.008", "SAM 0.2", "trace 0.005", "lr 0.1", "batch 100"):
        judged = [claims.preserved(numbers[arm]["ece after"], numbers["CE"]["ece after"], m) for m in ("20%", "50%")]
        yield (
            f"{arm}: ECE after its temperature within 20 %; within 50 % of cross-entropy's",
            "; ".join(f"{one.word}, p = {one.p:.2g}" for one in judged),
        )


def main() -> int:
    given = _harness.arguments(__doc__, "folder")
    if not given.folder:
        told = [f"p, of a miss of {miss:g} SE" for miss in MISSES]
        print(head("page", "correlation of what a row does to two arms", "answer", *told))
        for (of, page), rows in itertools.product(_measured_curves.PUBLISHED.items(), (0.0, 0.5, 0.8, 0.9)):
            x, y = _measured_curves.printed(of, rows, _measured_curves.full(of))
            found, *more = (
                claims.one_curve(x, y, _measured_curves.layout(of, 15).causes, miss=miss) for miss in (0.0, *MISSES)
            )
            answer = f"{found.word}, p = {found.p:.2g}: {found.why}"
            print(row(page, rows, answer, *(f"{one.p:.2g}" for one in more)))
        return 0
    folder = Path(given.folder[0])
    study = parsing.parse((folder / parsing.FILE).read_text("utf-8"), str(folder))
    numbers, *_ = measured(study, folder, study.arch[0])
    for one in numbers.values():
        one["confidence"] = confidence(one)
    print(head("asked", "answer"))
    for what, answer in lines(study, numbers):
        print(row(what, answer))
    return 0


if __name__ == "__main__":
    sys.exit(main())
