"""Write docs/promises.md: what calib promises, how it is tested, and where it ends.

    python docs/promises.py

Scripts, figures and dates come from the table of claims in benchmarks/RESULTS.md, where they are written once.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
PAGE, CLAIMS = ROOT / "docs" / "promises.md", ROOT / "benchmarks" / "RESULTS.md"
LEAD = """# What calib promises

Each promise is a sentence that you may hold us to. Below it stand the script in `benchmarks/` that tests it, its figure
on the day of the measurement, and where the promise ends. The figures are those of the
[table of claims](../benchmarks/RESULTS.md), which also has speed and memory, and says how they are taken. Formulas and
proofs are under [statistics](statistics/index.md).
"""


class Promise(NamedTuple):
    """What is promised, the first words of the claim that tests it, and what is not promised."""

    text: str
    claim: str
    limit: str


PROMISES = {
    "Numbers": (
        Promise(
            "An interval of 95 % holds the true value in at least 92 % of samples, a one-sided bound in at least 93 %.",
            "Every interval and bound covers",
            "Rows are drawn like those that it is about, and independent unless `--group` says which belong together.",
        ),
        Promise(
            "A number is read rightly, or the file is refused with a line that settles it.",
            "Honest files are read in any format",
            "Names that lie are believed: that `label` holds predictions is told only where its values show it.",
        ),
        Promise(
            "Labels in another order than the scores are refused.",
            "Labels of other rows are told",
            "A model that knows nothing looks the same as labels of other rows; a note then says so.",
        ),
        Promise(
            "A mean from few labels and a judge is as right as one from the labels alone, and sharper.",
            "Few labels and many verdicts of a judge",
            "People must have drawn the rows that they labelled at random; means only, no ECE.",
        ),
    ),
    "Verdicts": (
        Promise(
            "A gate says PASS or FAIL wrongly in at most 5 % of samples, even with its limit at the truth.",
            "A gate is wrong in at most 5 %",
            "Not where one row has more than an eighth of the sum of squared weights and n_eff < n / 4 (refused).",
        ),
        Promise(
            "A PASS on `cutoff_loss` bounds what any rising rule could gain over acting by the stated probability.",
            "Gates on `cutoff_loss` and `cutoff_error`",
            "Not for a rule that knows more than the probability, such as the site.",
        ),
        Promise(
            "Rows that were left out cannot have changed a verdict that is given.",
            "Where rows are missing, the smallest and the largest value",
            "Only rows that the file still shows: what was dropped before the export is not seen.",
        ),
        Promise(
            "The rows that `calib plan` states reach the verdict as often as it says.",
            "With the rows that `calib plan` states",
            "If the model is as good as was assumed.",
        ),
        Promise(
            "A watch that is looked at every night gives a false alarm in at most 5 % of years.",
            "A watch that is looked at every night",
            "A drift that is small takes weeks; the table says how many.",
        ),
        Promise(
            "Above the threshold that `calib threshold` finds, at most the stated share is wrong.",
            "`calib threshold` breaks its promise",
            "In the population that the rows were drawn from. `check` and `watch` say whether it still holds.",
        ),
        Promise(
            "Slices that `calib slices` confirms are not chance.",
            "In a calibrated model `calib slices` finds nothing",
            "It need not find all of them.",
        ),
    ),
    "Maps": (
        Promise(
            "What is exported gives the calibrator's probabilities, or is refused.",
            "Every method in every target of `export`",
            "After export the file may be edited; `calib verify` compares it again.",
        ),
        Promise(
            "The intervals of a temperature and of γ contain the true values.",
            "The intervals of T and γ cover",
            "Values that lie outside of the range that is searched are said to be at its end.",
        ),
    ),
    "Curvature": (
        Promise(
            "An eigenvalue lies within its printed residual, and the exact trace in its interval.",
            "An eigenvalue lies within the printed residual, and",
            "Of the rows that are given; the interval for those that they were drawn from is wider, and stands beside.",
        ),
        Promise(
            "Every network that is measured agrees with derivatives by hand, and the others are refused by name.",
            "Every family of torchvision, timm and transformers",
            "Of the families in the list; another one is checked by a test on itself before it is measured.",
        ),
    ),
    "Studies": (
        Promise(
            "A claim is called true or reversed wrongly in at most 6 % of studies.",
            "The interval of a study covers",
            "About the networks, data and sizes of the study, and no others.",
        ),
    ),
}


def claims() -> list[list[str]]:
    """The rows of the table of claims: claim, script, figure, date, ..."""
    lines = CLAIMS.read_text(encoding="utf-8").splitlines()
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines if line.startswith("| ")]


def page() -> str:
    """The text of the page.

    Raises:
        ValueError: a promise names a claim that is not there once.
    """
    rows, out = claims(), [LEAD]
    for section, promises in PROMISES.items():
        out.append(f"## {section}\n")
        for one in promises:
            found = [row for row in rows if row[0].startswith(one.claim)]
            if len(found) != 1:
                raise ValueError(f"{len(found)} claims begin with {one.claim!r}")
            _, script, figure, date, *_ = found[0]
            figure = figure.replace("(../docs/", "(").replace("](results/", "](../benchmarks/results/")
            out.append(f"**{one.text}**\n\n- Tested by {script}, {date}: {figure}.\n- Ends: {one.limit}\n")
    return "\n".join(out)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
