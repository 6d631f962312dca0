"""The report of the gate benchmark: the worst cell of each metric, and whether any is surely above its limit."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from scipy.stats import beta

ALLOWED = 0.06
SURE = 0.999
AGAIN = 2000
MOST_ABOVE = 0.01
START, END = "<!-- gate -->", "<!-- /gate -->"


@dataclass(frozen=True)
class Found:
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
        if not self.runs:
            return self.share
        wrong = round(self.share * self.runs)
        return float(beta.ppf(1 - SURE, wrong, self.runs - wrong + 1)) if wrong else 0.0


def lines(folder: Path) -> Iterator[dict[str, object]]:
    """Everything written so far; a line that was cut off is left out."""
    for path in sorted(folder.glob("*.jsonl")):
        for line in path.read_text().splitlines():
            try:
                yield json.loads(line)
            except json.JSONDecodeError:
                continue


def found(folder: Path) -> list[Found]:
    """Each cell's shares: of the longer run where there was one."""
    best: dict[tuple[str, str], list[float]] = {}
    for line in lines(folder):
        for rule, counts in line["counts"].items():  # type: ignore[attr-defined]
            key = (str(line["key"]), rule)
            if key not in best or counts[0] > best[key][0]:
                best[key] = counts
    return shares(best)


def shares(counted: dict[tuple[str, str], list[float]]) -> list[Found]:
    """Both kinds of wrong verdicts, by cell and rule."""
    out = []
    for (cell, rule), (runs, passed, failed, not_run) in counted.items():
        scale = runs or 1
        for verdict, count in (("PASS", passed), ("FAIL", failed)):
            out.append(Found(cell, rule, verdict, int(runs), count / scale, not_run / scale))
    return out


def offending(everything: list[Found]) -> list[Found]:
    """Cells that are surely worse than allowed, worst first."""
    return sorted((f for f in everything if f.lowest > ALLOWED), key=lambda f: -f.lowest)


def above(everything: list[Found]) -> list[Found]:
    """Cells above what is allowed in the long run, sure or not."""
    return [f for f in everything if (f.runs == 0 or f.runs >= AGAIN) and f.share > ALLOWED]


def judged(everything: list[Found]) -> list[Found]:
    return [f for f in everything if f.not_run < 1]


def named(rule: str) -> str:
    """`nll` of `nll max`; rules against a baseline apart."""
    metric, side = rule.split()
    return f"{metric}, to a baseline" if side == "margin" else metric


def table(everything: list[Found]) -> str:
    """The worst cell of each metric and verdict, as markdown."""
    rows = ["| metric | cells | NOT RUN | worst false PASS | worst false FAIL |", "|---|---|---|---|---|"]
    for metric in sorted({named(f.rule) for f in everything}):
        mine = [f for f in everything if named(f.rule) == metric]
        kept = judged(mine)
        count = len({f.cell for f in mine})
        if not kept:
            rows.append(f"| {metric} | {count} | always | | |")
            continue
        worst = [max((f for f in kept if f.verdict == v), key=lambda f: (f.lowest, f.share)) for v in ("PASS", "FAIL")]
        silent = sum(f.not_run for f in mine) / len(mine)
        rows.append(f"| {metric} | {count} | {silent:.1%} | " + " | ".join(map(shown, worst)) + " |")
    return "\n".join(rows)


def write(folder: Path, path: Path) -> None:
    """Put the table between the markers of a file."""
    before, _, rest = path.read_text().partition(START)
    path.write_text(before + START + "\n" + table(found(folder)) + "\n" + END + rest.partition(END)[2])


def shown(f: Found) -> str:
    if f.share == 0:
        return "0"
    runs = f"{f.runs:,} runs, at least {f.lowest:.3f}" if f.runs else "exact"
    return f"{f.share:.3f} ({f.cell}; {runs})"


def report(folder: Path) -> int:
    """Print the table and what is wrong; 1 if anything is."""
    everything = found(folder)
    if not everything:
        print(f"nothing in {folder}")
        return 1
    print(table(everything))
    kept = judged(everything)
    bad, high = offending(kept), above(kept)
    share = len(high) / max(len(kept), 1)
    print(f"\n{len(kept) // 2} cells judged, {(len(everything) - len(kept)) // 2} NOT RUN throughout")
    print(f"{len(bad)} shares surely above {ALLOWED:.0%} (99.9 % lower Clopper-Pearson bound)")
    print(f"{len(high)} of {len(kept)} shares ({share:.2%}) above {ALLOWED:.0%} in {AGAIN:,} runs or exactly")
    for f in bad:
        print(f"  {f.rule}: false {f.verdict} {shown(f)}")
    return int(bool(bad) or share > MOST_ABOVE)


def matrix(folder: Path, least: float = 0.05) -> str:
    """Rule by population: the false PASS and false FAIL above `least`, in per cent by n."""
    everything = [f for f in judged(found(folder)) if f.share > least]
    out = []
    for rule in sorted({f.rule for f in everything}):
        out.append(f"\n### {rule}\n\n| population | false PASS | false FAIL |\n|---|---|---|")
        mine: dict[str, dict[str, list[str]]] = {}
        for f in everything:
            if f.rule == rule:
                name, _, n = f.cell.rpartition(", n=")
                mark = "" if f.runs else " exact"
                text = f"n={n}: {100 * f.share:.1f}{mark}" + (" **sure**" if f.lowest > ALLOWED else "")
                mine.setdefault(name, {"PASS": [], "FAIL": []})[f.verdict].append(text)
        out += [f"| {name} | {'; '.join(v['PASS'])} | {'; '.join(v['FAIL'])} |" for name, v in sorted(mine.items())]
    return "\n".join(out)
