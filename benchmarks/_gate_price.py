"""The price of the bounds: how often a model at half the limit passes, and how far the bounds lie from the estimate.

Two trees of code judge the same draws of the ordinary populations, each in processes of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from _gate_cells import Cell, Trial, made, trial_of, verdicts_alone
from _gate_truth import COMPARED, NO_BOUND, can_be_asked
from _harness import child, environment, head, row
from _populations import MADE, pairs

from calibcli.gate.config import Gate
from calibcli.metrics import METRICS

N = 1000
SKIPPED = ("5 neighbours, zeros",)  # whose mean NLL is infinite
DEAR = ("smece", "mmce")  # asked of every fourth draw
BASELINES = (("calibrated", "1 %"), ("overconfident", "class"), ("saturated", ".2 %"), ("saturated", "sharper"))
Priced = dict[str, dict[str, list[float]]]
"""By cell and rule: shares of PASS and NOT RUN, mean reach of the bound (nan where there was none)."""


def roomy(name: str, gate: Gate) -> Gate:
    """The rule whose limit is twice the truth; of a share that is better high, twice the errors."""
    metric, side = name.split()
    if side == "margin":
        return replace(gate, margin=gate.margin + abs(gate.margin))
    if side == "zero":
        return replace(gate, limit=2 * gate.limit)
    if side == "max":
        return replace(gate, max=gate.max + abs(gate.max))
    better = METRICS.entries[metric.partition(":")[0]].traits.better
    share = better == "higher" and metric != "corp_dsc"
    return replace(gate, min=2 * gate.min - 1 if share else gate.min - abs(gate.min) / 2)


def priced(runs: int, metrics: Sequence[str] | None) -> Priced:
    """What this process's code says of every ordinary cell."""
    found = {}
    for name, (_, classes) in MADE.items():
        for k in [k for k in classes if k in (2, 3, 20)][:2] if name not in SKIPPED else ():
            cell = Cell("rows", name, k, N)
            found[cell.key] = one(trial_of(cell, made(name, k), metrics), runs)
    for model, damage in BASELINES if metrics is None or set(metrics) & set(COMPARED) else ():
        cell = Cell("baseline", f"{model}, {damage}", 3, N)
        found[cell.key] = one(trial_of(cell, pairs(model, damage, 3, np.random.default_rng(cell.seed))), runs)
    return found


@verdicts_alone
def one(trial: Trial, runs: int) -> dict[str, list[float]]:
    """One cell: shares of PASS and NOT RUN and the mean reach of each rule."""
    wide = {name: roomy(name, gate) for name, gate in trial.rules.items() if name.split()[0] not in NO_BOUND}
    trial.rules = {name: gate for name, gate in wide.items() if can_be_asked(gate, trial.cell.k)}
    rng, seen = np.random.default_rng(trial.cell.seed), {name: [] for name in trial.rules}
    for run in range(runs):
        wanted = [name for name in seen if run % 4 == 0 or name.split()[0] not in DEAR]
        for name, check in zip(wanted, trial.checks(wanted, rng), strict=True):
            e, reach = check.estimate, 0.0
            if e is not None and e.value is not None:
                end = e.low if name.endswith(" min") else e.high
                reach = abs(end - e.value) if end is not None else np.nan
            seen[name].append((check.outcome == "pass", check.outcome == "not_run", reach))
    trial.close()
    return {name: np.mean(draws, axis=0).tolist() for name, draws in seen.items()}


def compared(old: Path, new: Path, runs: int, metrics: Sequence[str] | None) -> int:
    """Print by metric what changed from one tree to the other, the ten cells that lost most last."""
    before, after = (child(priced, runs, metrics, env=environment(tree.resolve())) for tree in (old, new))
    rows = []
    for key, rules in before.items():
        for rule, b in rules.items():
            if (a := after[key].get(rule)) is not None:
                ratio = a[2] / b[2] if b[2] > 0 else np.nan
                rows.append((rule if rule.endswith(" margin") else rule.split()[0], key, *b[:2], *a[:2], ratio))
    print(
        head("metric", "PASS before", "after", "most lost in a cell", "reach: mean", "largest", "NOT RUN before, after")
    )
    for metric in sorted({r[0] for r in rows}):
        passed, silent, passes, silence, ratios = np.array([r[2:] for r in rows if r[0] == metric]).T
        ratios = ratios[np.isfinite(ratios)] if np.isfinite(ratios).any() else np.array([np.nan])
        shares = f"{passed.mean():.1%}", f"{passes.mean():.1%}", f"{(passed - passes).max():.1%}"
        not_run = f"{silent.mean():.1%}, {silence.mean():.1%}"
        print(row(metric, *shares, f"{ratios.mean():.3f}", f"{ratios.max():.3f}", not_run))
    print()
    for metric, key, passed, silent, passes, silence, ratio in sorted(rows, key=lambda r: r[4] - r[2])[:10]:
        print(f"{metric} ({key}): PASS {passed:.1%} -> {passes:.1%}, ", end="")
        print(f"reach x {ratio:.2f}, NOT RUN {silent:.1%} -> {silence:.1%}")
    return 0
