"""The report of the gate benchmark: the worst cell of each metric, and whether any is surely above its limit."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from _harness import between, head, lines, row

from calibcli.core.statistics import clopper_pearson

ALLOWED, SURE, MOST_ABOVE = 0.06, 0.999, 0.01
AGAIN = 2000  # runs of a second look
MARKS = "<!-- gate -->", "<!-- /gate -->"
OLDER = ("temperature_gain", "corp_", "cox_", "auc", "failure_auroc")  # their bounds changed after most cells ran


class Found(NamedTuple):
    """Wrong verdicts of one kind in one cell; `runs` is 0 where the share is exact."""

    cell: str
    rule: str
    verdict: str
    runs: int
    share: float
    not_run: float

    @property
    def lowest(self) -> float:
        """What the true share is surely above."""
        return clopper_pearson(round(self.share * self.runs), self.runs, 1 - SURE)[0] if self.runs else self.share

    @property
    def metric(self) -> str:
        """`nll` of the rule `nll max`; rules against a baseline apart."""
        metric, side = self.rule.split()
        return f"{metric}, to a baseline" if side == "margin" else metric

    def __str__(self) -> str:
        if self.share == 0:
            return "0"
        runs = f"{self.runs:,} runs, at least {self.lowest:.3f}" if self.runs else "exact"
        return f"{self.share:.3f} ({self.cell}; {runs})"


def found(folder: Path) -> list[Found]:
    """Each cell's shares: of the longer run where there was one."""
    best: dict[tuple[str, str], list[float]] = {}
    for line in lines(sorted(folder.glob("*.jsonl"))):
        for rule, counts in line["counts"].items():
            key = (line["key"], rule)
            if key not in best or counts[0] > best[key][0]:
                best[key] = counts
    return shares(best)


def shares(counted: dict[tuple[str, str], list[float]]) -> list[Found]:
    """Both kinds of wrong verdicts, by cell and rule."""
    return [
        Found(cell, rule, verdict, int(runs), count / (runs or 1), not_run / (runs or 1))
        for (cell, rule), (runs, passed, failed, not_run) in counted.items()
        for verdict, count in (("PASS", passed), ("FAIL", failed))
    ]


def judged(everything: list[Found]) -> list[Found]:
    return [f for f in everything if f.not_run < 1]


def offending(everything: list[Found]) -> list[Found]:
    """Cells that are judged and surely worse than allowed, worst first."""
    return sorted((f for f in judged(everything) if f.lowest > ALLOWED), key=lambda f: -f.lowest)


def table(everything: list[Found], again: set[tuple[str, str]]) -> str:
    """The worst cell of each metric and verdict, as Markdown; `again` are the cells and rules with newer bounds."""
    rows = [head("metric", "cells (again)", "NOT RUN", "worst false PASS", "worst false FAIL")]
    for metric in sorted({f.metric for f in everything}):
        mine = [f for f in everything if f.metric == metric]
        kept, newer = judged(mine), len({f.cell for f in mine if (f.cell, f.rule) in again})
        count = f"{len({f.cell for f in mine})}" + f" ({newer})" * (newer > 0)
        metric += " †" * metric.startswith(OLDER)
        if not kept:
            rows.append(f"| {metric} | {count} | always | | |")
            continue
        worst = [max((f for f in kept if f.verdict == v), key=lambda f: (f.lowest, f.share)) for v in ("PASS", "FAIL")]
        rows.append(row(metric, count, f"{sum(f.not_run for f in mine) / len(mine):.1%}", *worst))
    return "\n".join(rows)


def report(folder: Path, path: Path | None) -> int:
    """Print the table, or put it between the marks of a file, and say what is wrong; 1 if anything is."""
    everything = found(folder)
    if not everything:
        print(f"nothing in {folder}")
        return 1
    newer = lines([folder / "again.jsonl"])
    text = table(everything, {(line["key"], rule) for line in newer for rule in line["counts"]})
    print(text)
    if path:
        between(path, *MARKS, lambda _: text)
    kept, bad = judged(everything), offending(everything)
    high = [f for f in kept if (f.runs == 0 or f.runs >= AGAIN) and f.share > ALLOWED]
    share = len(high) / max(len(kept), 1)
    print(f"\n{len(kept) // 2} cells judged, {(len(everything) - len(kept)) // 2} NOT RUN throughout")
    print(f"{len(bad)} shares surely above {ALLOWED:.0%} (99.9 % lower Clopper-Pearson bound)")
    print(f"{len(high)} of {len(kept)} shares ({share:.2%}) above {ALLOWED:.0%} in {AGAIN:,} runs or exactly")
    for f in bad:
        print(f"  {f.rule}: false {f.verdict} {f}")
    return int(bool(bad) or share > MOST_ABOVE)
