"""The price of the bounds: how often a model at half the limit passes, and how far the bounds lie from the estimate.

Two trees of code judge the same draws of the ordinary populations, each in processes of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from unittest.mock import patch

import numpy as np
from _gate_cells import Cell, Trial, made, trial_of
from _gate_truth import COMPARED, NO_BOUND, can_be_asked
from _populations import MADE, pairs

from calibcli.gate import sources
from calibcli.gate.config import Gate
from calibcli.metrics import METRICS
from calibcli.metrics.corp import SimulationCells

N = 1000
RUNS = 60
SKIPPED = ("5 neighbours, zeros",)  # whose mean NLL is infinite
DEAR = ("smece", "mmce")  # asked of every fourth draw
BASELINES = (("calibrated", "1 %"), ("overconfident", "class"), ("saturated", ".2 %"), ("saturated", "sharper"))
Priced = dict[str, dict[str, list[float]]]
"""By cell and rule: draws, PASS, NOT RUN, mean reach of the bound (nan where there was none)."""


def roomy(name: str, gate: Gate) -> Gate:
    """The rule whose limit is twice the truth; of a share that is better high, twice the errors."""
    metric, side = name.split()
    better = METRICS.entries[metric.partition(":")[0]].traits.get("better", "")
    if side == "margin":
        assert gate.margin is not None
        return Gate(metric=gate.metric, baseline=gate.baseline, margin=gate.margin + abs(gate.margin))
    if side == "zero":
        return Gate(metric=metric, limit=2 * (gate.limit or 0.0))
    if side == "max":
        assert gate.max is not None
        return Gate(metric=metric, max=gate.max + abs(gate.max))
    assert gate.min is not None
    share = better == "higher" and metric != "corp_dsc"
    return Gate(metric=metric, min=2 * gate.min - 1 if share else gate.min - abs(gate.min) / 2)


def priced(runs: int, metrics: Sequence[str] | None) -> Priced:
    """What this process's code says of every ordinary cell."""
    found = {}
    for name, (_, classes) in MADE.items():
        if name in SKIPPED:
            continue
        for k in [k for k in classes if k in (2, 3, 20)][:2]:
            cell = Cell("rows", name, k, N)
            found[cell.key] = one(trial_of(cell, made(name, k), metrics), runs)
    for model, damage in BASELINES if metrics is None or set(metrics) & set(COMPARED) else ():
        cell = Cell("baseline", f"{model}, {damage}", 3, N)
        found[cell.key] = one(trial_of(cell, pairs(model, damage, 3, np.random.default_rng(cell.seed))), runs)
    return found


@patch.object(sources, "to_decide", lambda *_, **__: None)
@patch.object(SimulationCells, "miscalibration", lambda *_: np.zeros(1))
def one(trial: Trial, runs: int) -> dict[str, list[float]]:
    """One cell: draws, PASS, NOT RUN and the mean reach of each rule."""
    wide = {name: roomy(name, gate) for name, gate in trial.rules.items() if name.split()[0] not in NO_BOUND}
    trial.rules = {name: gate for name, gate in wide.items() if can_be_asked(gate, trial.cell.k)}
    rng, counts = np.random.default_rng(trial.cell.seed), {name: [0.0] * 4 for name in trial.rules}
    for run in range(runs):
        wanted = [name for name in counts if run % 4 == 0 or name.split()[0] not in DEAR]
        for name, check in zip(wanted, trial.checks(wanted, rng), strict=True):
            count, e = counts[name], check.estimate
            count[0] += 1
            count[1] += check.outcome == "pass"
            count[2] += check.outcome == "not_run"
            if e is not None and e.value is not None:
                end = e.low if name.endswith(" min") else e.high
                count[3] += abs(end - e.value) if end is not None else np.nan
    trial.close()
    return {name: [*count[:3], count[3] / count[0]] for name, count in counts.items()}


def compared(old: Path, new: Path, runs: int, metrics: Sequence[str] | None) -> int:
    """Print by metric what changed from one tree to the other, the ten cells that lost most last."""
    before, after = (asked(tree, runs, metrics) for tree in (old, new))
    rows = []
    for key, rules in before.items():
        for rule, b in rules.items():
            if (a := after[key].get(rule)) is not None:
                ratio = a[3] / b[3] if b[3] > 0 else np.nan
                rows.append((named(rule), key, b[1] / b[0], a[1] / a[0], b[2] / b[0], a[2] / a[0], ratio))
    print("| metric | PASS before | after | most lost in a cell | reach: mean | largest | NOT RUN before | after |")
    print("|---|---|---|---|---|---|---|---|")
    for metric in sorted({r[0] for r in rows}):
        mine = [r for r in rows if r[0] == metric]
        ratios = [r[6] for r in mine if np.isfinite(r[6])] or [np.nan]
        print(
            f"| {metric} | {np.mean([r[2] for r in mine]):.1%} | {np.mean([r[3] for r in mine]):.1%} "
            f"| {max(r[2] - r[3] for r in mine):.1%} | {np.mean(ratios):.3f} | {max(ratios):.3f} "
            f"| {np.mean([r[4] for r in mine]):.1%} | {np.mean([r[5] for r in mine]):.1%} |"
        )
    print()
    for r in sorted(rows, key=lambda r: r[3] - r[2])[:10]:
        print(f"{r[0]} ({r[1]}): PASS {r[2]:.1%} -> {r[3]:.1%}, reach x {r[6]:.2f}, NOT RUN {r[4]:.1%} -> {r[5]:.1%}")
    return 0


def named(rule: str) -> str:
    return rule if rule.endswith(" margin") else rule.split()[0]


def asked(tree: Path, runs: int, metrics: Sequence[str] | None) -> Priced:
    """The prices by the code of a tree, in a process that imports it instead of an installed package."""
    command = [sys.executable, str(Path(__file__).with_name("gate.py")), "--priced", "--runs", str(runs)]
    command += [part for metric in metrics or () for part in ("--metric", metric)]
    done = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": str(tree.resolve())}, stdout=subprocess.PIPE, check=True, text=True
    )
    found: Priced = json.loads(done.stdout)
    return found
