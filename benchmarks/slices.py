"""False and true findings of `calib slices`, its time and its memory.

    python benchmarks/slices.py [--runs 1000] [--large]

Eight columns of four values: 480 rules of one or two conditions. Calibrated models, saturated ones, and ones that are
overconfident in every row, n of 2,000 and 10,000; beside it Welch's t with Bonferroni's correction on all rows, as any
tool with a p-value would use it, which is wrong here. Planted: rows of one rule are overconfident. `--large`: a million
rows of 30 columns, and 100,000 rows of 1,000 columns of numbers.
"""

from __future__ import annotations

import json
import sys
import tempfile
from typing import Any

import numpy as np
from _harness import CALIB, arguments, head, row, run
from scipy import stats

from calibcli.core.statistics import clopper_pearson
from calibcli.scores.predictions import Predictions
from calibcli.slices import Search
from calibcli.slices.candidates import Evidence, columns_of, ranked
from calibcli.slices.find import find

COLUMNS, VALUES, LEAST = 8, 4, 100
ALLOWED = 0.06
EVERYWHERE = 0.06  # the gap of a model that is too sure in every row
PLANTED = "c0=1 & c1=2"


def rows(
    n: int, rng: np.random.Generator, gap: float = 0.0, kind: str = "spread", columns: int = COLUMNS
) -> Predictions:
    """A model that is calibrated, or too sure everywhere, but for the planted rule."""
    about: dict[str, Any] = {f"c{j}": rng.integers(0, VALUES, n).astype("<U1") for j in range(columns)}
    c = rng.beta(4, 1.2, n) / 2 + 0.5 if kind != "saturated" else 1 - 10.0 ** rng.uniform(-6, -1.5, n)
    inside = (about["c0"] == "1") & (about["c1"] == "2")
    shared = EVERYWHERE if kind == "too sure everywhere" else 0.0
    hit = rng.random(n) < np.clip(c - shared - gap * inside, 0, 1)
    return Predictions.of(np.log(np.stack([1 - c, c], 1)), hit.astype(int), kind="probabilities", slices=about)


def welch(p: Predictions) -> int:
    """Rules that differ from the other rows by Welch's t, with Bonferroni's correction."""
    columns, _ = columns_of(p.slices, np.ones(p.n, bool), LEAST)
    r, at = np.exp(p.logits[:, 1]) - p.labels, np.arange(p.n)
    found, count = ranked(columns, Evidence(r, np.ones(p.n)), at, LEAST, 2)
    inside = [r[rule.holds(columns, at)] for rule in found[:60]]
    return sum(bool(one.std() == 0 or stats.ttest_1samp(one, 0.0).pvalue < 0.05 / count) for one in inside)


def false_findings(runs: int) -> bool:
    """Family-wise, of calibrated models; whether all are as rare as they claim."""
    few = max(20, runs // 4)
    print(
        head(f"any false finding, {runs} runs ({few})", "split", *(f"{how} ({few})" for how in ("all", "error", "t")))
    )
    good = True
    for kind in ("spread", "saturated", "too sure everywhere"):
        for n in (2_000, 10_000):
            counts = np.zeros(4, int)
            for seed in range(runs):
                p = rows(n, np.random.default_rng([seed, n]), kind=kind)
                for i, asked in enumerate(({}, {"confirm": "all"}, {"find": "error"})):
                    if i == 0 or seed < few:
                        counts[i] += find(p, Search(seed=seed, min_n=LEAST, **asked)).facts["confirmed"] > 0  # type: ignore[arg-type]
                if seed < few:
                    counts[3] += welch(p) > 0
            of = (runs, few, few, few)
            good &= all(clopper_pearson(int(c), m, 0.001)[0] <= 0.05 for c, m in zip(counts[:3], of))
            good &= runs < 1000 or counts[0] <= ALLOWED * runs
            shares = [f"{100 * c / m:.1f} %" for c, m in zip(counts, of, strict=True)]
            print(row(f"{kind}, n = {n:,}", *shares), flush=True)
    return good


def power(runs: int) -> None:
    print("\n" + head("planted", "confirmed, split", "confirmed, all", "ranked first", "would have been found"))
    for n, gap in ((10_000, 0.10), (5_000, 0.15), (10_000, 0.07)):
        counts, stated = np.zeros(3), 0.0
        for seed in range(runs):
            p = rows(n, np.random.default_rng([seed, n, 1]), gap)
            one, every = (find(p, Search(seed=seed, min_n=LEAST, confirm=c)) for c in ("split", "all"))  # type: ignore[arg-type]
            counts += [
                any(rule["by"] == PLANTED for rule in one.facts["rules"]),
                any(rule["by"] == PLANTED for rule in every.facts["rules"]),
                bool(one.estimates) and one.estimates[0].scope == PLANTED,
            ]
            stated = one.facts["would_have_found"]
        shares = (f"{100 * c / runs:.0f} %" for c in counts)
        print(row(f"gap {gap:.2f} in 1/16 of the rows, n = {n:,}", *shares, f"{stated:.3f}"), flush=True)


def large(n: int, categories: int, numbers: int, most: float) -> bool:
    """A table from a file, in a process of its own, in `most` CPU seconds and 2 GB."""
    rng = np.random.default_rng(0)
    p = rows(n, rng, 0.03, columns=categories)
    about = {**p.slices, **{f"x{j}": rng.standard_normal(n) for j in range(numbers)}}
    with tempfile.TemporaryDirectory() as folder:
        np.savez(f"{folder}/rows.npz", log_probs=p.logits.astype(np.float32), labels=p.labels, **about)  # type: ignore[arg-type]
        seconds, peak, text = run([*CALIB, "slices", f"{folder}/rows.npz", "--json", "-q"])
    facts = json.loads(text)["facts"]
    table = f"{n:,} rows, {categories + numbers} columns, {facts['candidates']:,} rules"
    print(f"{table}: {seconds:.0f} CPU s, {peak / 1024:.2f} GB")
    print(facts["headline"])
    return peak < 2048 and seconds < most


if __name__ == "__main__":
    given = arguments(__doc__, runs=1000, large=False)
    if given.large:
        sys.exit(not all([large(1_000_000, 20, 10, 60), large(100_000, 2, 1_000, 180)]))
    good = false_findings(given.runs)
    power(max(10, given.runs // 10))
    sys.exit(not good)
