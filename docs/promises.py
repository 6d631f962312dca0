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

Each promise in bold is a sentence that you may hold us to. *Ends* says where it ends, and *Tested* gives the evidence:
skip that line unless you want to check it. Most readers need five of them: [an interval](#numbers) contains the truth,
a [gate, a claim of a watch, and a threshold](#verdicts) are wrong in at most 5 % of samples, and [an
export](#calibrators) gives the calibrator's probabilities. All but the last need rows that are drawn like those that
you ask about.

**How to read a line *Tested*.** It names the script in `benchmarks/`, the day, and the figure. A *cell* is one
simulated setting, a model and a number of rows, whose truth is known; a *run* is one sample drawn from it; a *share* is
how often the answer was wrong. A simulation of finitely many runs is itself uncertain, and some bounds hold only
nearly. So we call a promise of 5 % broken only if a share is *surely* above 6 %, which means that its 99.9 % lower
bound is. A single share may be seen above 6 % by chance, and a single coverage below 92 %. The figures are copied from
the [table of claims](../benchmarks/RESULTS.md), which also has speed and memory, and says how they are taken. Formulas
and proofs are under [statistics](statistics/index.md).
"""


class Promise(NamedTuple):
    """What is promised, the first words of the claim that tests it, and what is not promised."""

    text: str
    claim: str
    limit: str


PROMISES = {
    "Numbers": (
        Promise(
            "An interval of 95 % holds the true value in 95 % of samples: in no measured cell surely in fewer than "
            "92 %, and a one-sided bound in no cell surely in fewer than 93 %.",
            "Every interval and bound covers",
            "Rows are drawn like those that it is about, and independent unless `--group` says which belong "
            "together. The 3 and 2 points allow for bounds that hold only nearly; a cell of 100 samples has shown "
            "91 %, which chance explains.",
        ),
        Promise(
            "A number is read rightly, or the file is refused with a line that settles it.",
            "Honest files are read in any format",
            "Column names are trusted: if a column `label` really holds predictions, this is noticed only if its "
            "values show it.",
        ),
        Promise(
            "Labels in another order than the scores are refused, nearly always from 500 rows or three classes on.",
            "Labels of other rows are told",
            "Two classes and few rows: of 100 rows many pass. A model that knows nothing looks the same; a note "
            "says so.",
        ),
        Promise(
            "The interval of a mean from few labels and a judge is as right as one from the labels alone, and "
            "mostly shorter.",
            "Few labels and many verdicts of a judge",
            "People must have drawn the rows that they labelled at random; means only, no ECE. A bad judge makes it "
            "longer.",
        ),
    ),
    "Verdicts": (
        Promise(
            "A gate says PASS or FAIL wrongly in at most 5 % of samples, even with its limit at the truth.",
            "A gate is wrong in at most 5 %",
            "Weights that let a single row decide: such a rule is NOT RUN "
            "([which](gate-special-cases.md#where-there-is-no-verdict)).",
        ),
        Promise(
            "A PASS on `cutoff_loss` ([what it is](gate-special-cases.md#what-a-decision-may-lose)) bounds what you "
            "lose per row by acting where the stated probability reaches your cutoff, instead of the best other "
            "cutoff.",
            "Gates on `cutoff_loss` and `cutoff_error`",
            "Not against a rule that knows more than the probability, such as the site.",
        ),
        Promise(
            "If rows lack a label or a score, PASS or FAIL is given only if it would stand whatever the missing "
            "values are.",
            "Where rows are missing, the smallest and the largest value",
            "What was dropped before the export is not seen.",
        ),
        Promise(
            "The rows that `calib plan` states reach the verdict as often as it says.",
            "With the rows that `calib plan` states",
            "If the model is as good as was assumed.",
        ),
        Promise(
            "A claim of a watch (a rule is broken, is kept, or has drifted) is ever made and false in at most 5 % "
            "of watches, however often one looks.",
            "A watch that is looked at every night",
            "Two of the claims are alarms, so that one rule has a false one in at most 10 %, two rules in 20 %, "
            "unless they begin with [a smaller α](watch.md#what-it-computes). A small drift takes weeks to be seen. "
            "The test is of 150 nights.",
        ),
        Promise(
            "Above the threshold that `calib threshold` finds, at most the stated share is wrong.",
            "`calib threshold` breaks its promise",
            "In the population that the rows were drawn from. `check` and `watch` say whether it still holds.",
        ),
        Promise(
            "A slice that `calib slices` confirms is chance in at most 5 % of searches.",
            "In a calibrated model `calib slices` finds nothing",
            "It need not find every slice that is wrong.",
        ),
    ),
    "Calibrators": (
        Promise(
            "What is exported gives the calibrator's probabilities, up to the limit that is printed, or is refused.",
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
            "A claim is called true, or reversed, wrongly in about 5 % of studies, but for three kinds that *Ends* "
            "names: in no measured setting surely in more than 6 %.",
            "The interval of a study covers",
            "About the networks, data and sizes of the study, and no others. Among many settings of 200 or 320 "
            "simulated studies the largest share was 7.5 %, which chance explains. Three kinds have settings in which "
            "they mislead more often: [`one_curve`](measured/study-curves.md#a-bend-is-taken-for-a-cause) takes a "
            "bend or a step for a cause (in up to 26 % if the best polynomial misses an arm by one standard error, "
            "and more often the sharper it is; with `miss = 1`, which allows for that, in 1.7 %), phases of training "
            "make plain "
            "[`tracks`](measured/study-measured.md#two-numbers-along-training) hold, and validation rows that move T "
            "unseen make [`depends`](measured/study-drawn.md) find the trace.",
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
            out.append(f"**{one.text}**\n\n- Ends: {one.limit}\n- Tested: {script}, {date}: {figure}.\n")
    return "\n".join(out)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
