"""The figures of a study: the differences that decide its claims, metrics along an axis, the log by epoch."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np

from calibcli.core import number_format
from calibcli.core.figure_data import Curve, Plot
from calibcli.lab.study import claims
from calibcli.lab.study.claims import ClaimVerdict, MeasuredArm, SeedMean
from calibcli.lab.study.experiment import OF_TRAINING, POINTS, Arm, Study, StudyClaim

MeasuredArms = Mapping[str, Mapping[str, Mapping[str, MeasuredArm]]]  # by network, arm and metric


def strip(
    study: Study,
    judged: Mapping[str, tuple[StudyClaim, ClaimVerdict]],
    counted: Collection[str],
    printed: Mapping[str, float | None],
) -> list[Plot]:
    """Draw each claim's difference with both error bars and the paper's own value; a panel for each metric.

    Args:
        counted: the names of claims whose error over rows is known; the others have the bar of these rows alone.
        printed: the paper's own difference by name of the claim, where it has one.
    """
    kinds: dict[str, list[tuple[str, StudyClaim, ClaimVerdict, SeedMean]]] = {}
    for name, (claim, verdict) in judged.items():
        if verdict.difference is not None and verdict.word != "no verdict" and np.isfinite(verdict.difference.error):
            kind = f"difference of {str(claim.keys['metric']).partition(' ')[0]}"
            if claim.against and claim.entry.traits.moments:
                kind = f"correlation of {claim.keys['metric']} and {claim.against}"
            kinds.setdefault(kind, []).append((name, claim, verdict, verdict.difference))
    return [_forest(study, kind, entries, counted, printed) for kind, entries in kinds.items()]


def _forest(
    study: Study,
    kind: str,
    entries: list[tuple[str, StudyClaim, ClaimVerdict, SeedMean]],
    counted: Collection[str],
    printed: Mapping[str, float | None],
) -> Plot:
    x = [float(i) for i in range(len(entries))]

    def bars(label: str, role: str, rows: bool) -> Curve:
        at = [(float(i), mean) for i, (name, *_, mean) in enumerate(entries) if name in counted or not rows]
        ends = [mean.interval(rows) for _, mean in at]
        x, y = [i for i, _ in at], [mean.value for _, mean in at]
        low, high = ([end[side] for end in ends] for side in (0, 1))
        return Curve(label=label, kind="points", role=role, x=x, y=y, low=low, high=high)

    paper_values = [printed.get(name) for name, *_ in entries]
    curves = [
        Curve(label="", kind="hline", role="ideal", y=[0.0]),
        *[bar for bar in [bars("seeds and rows", "model", True)] if bar.x],
        bars("these rows alone", "before", False),
    ]
    if any(one is not None for one in paper_values):
        curves.append(Curve(label="the paper", kind="points", role="printed", x=x, y=paper_values))
    return Plot(
        name=f"claims {kind.removeprefix('difference of ')}",
        title=kind.removeprefix("difference of "),
        group=f"Differences that decide the claims, {number_format.count_text(study.seeds, 'seed')}",
        ylabel=kind,
        labels=[f"{name}: {_verdict_text(verdict)}" for name, _, verdict, _ in entries],
        flip=True,
        curves=curves,
    )


def _verdict_text(verdict: ClaimVerdict) -> str:
    """Return the verdict and the number of seeds that would decide it."""
    if verdict.word == "undecided" and verdict.seeds_needed:
        return f"undecided, {verdict.seeds_needed} seeds would"
    return verdict.word


def along(study: Study, measured: MeasuredArms) -> list[Plot]:
    """Draw the metrics of claims along their axis."""
    ladders = [claim for claim in study.claims if claim.along and not study.is_measured(claim.along)]
    plots = []
    for metric, axis in dict.fromkeys((str(claim.keys["metric"]), claim.along) for claim in ladders):
        for arch, arms in measured.items():
            levels = [arm for arm in study.ordered(axis) if arm.name in arms]
            means = [SeedMean.of(arms[arm.name][metric]) for arm in levels]
            curve = Curve(
                label="mean over seeds",
                kind="points",
                x=[arm.at[axis] for arm in levels],
                y=[mean.value for mean in means],
                low=[mean.interval()[0] for mean in means],
                high=[mean.interval()[1] for mean in means],
                role="model",
            )
            name = study.scoped(f"{metric} along {axis}", arch)
            plots.append(Plot(name=name, title=name, xlabel=axis, ylabel=metric, curves=[curve]))
    return plots


def against(study: Study, measured: MeasuredArms) -> list[Plot]:
    """Draw each arm as a point with both error bars, for claims about one metric against another.

    The arms of a cause have one colour, and a line joins them to the base in the order of the dose.
    """
    plots = []
    shown: dict[tuple[str, str], dict[str, list[str]]] = {}
    for claim in (one for one in study.claims if study.is_measured(one.against)):
        if claim.entry.traits.moments:  # of the log, which has figures of its own
            continue
        causes = {str(cause): [arm.name for arm in study.ordered(str(cause))] for cause in claim.keys.get("causes", ())}
        arms_by_role = causes or {arm.name: [arm.name] for arm in study.asked(claim)}
        shown.setdefault((claim.against, str(claim.keys["metric"])), {}).update(arms_by_role)
    for names, arms_by_role in shown.items():
        for arch, arms in measured.items():
            curves = []
            causal = {name for role, levels in arms_by_role.items() if role not in levels for name in levels}
            for role, levels in ((role, levels) for role, levels in arms_by_role.items() if role not in causal):
                present = [name for name in levels if name in arms]
                x, y = ([SeedMean.of(arms[name][metric]) for name in present] for metric in names)
                low, high = zip(*(one.interval() for one in y), strict=True) if present else ((), ())
                means = {"x": [one.value for one in x], "y": [one.value for one in y]}
                curves.append(Curve(label=role, kind="points", role=role, **means, low=low, high=high))
                curves += [
                    Curve(label="", kind="line", role=role, x=of_x.interval(), y=[of_y.value, of_y.value])
                    for of_x, of_y in zip(x, y, strict=True)
                ]
                if len(present) > 1:
                    curves.append(Curve(label="", kind="line", role=role, **means))
            title = study.scoped(f"{names[1]} against {names[0]}", arch)
            plots.append(Plot(name=title, title=title, xlabel=names[0], ylabel=names[1], curves=curves))
    return plots


def epochs(study: Study, log: Callable[[Arm, str, int], list[dict[str, Any]]], measured: MeasuredArms) -> list[Plot]:
    """Draw the log of each arm, mean over seeds."""
    plots = []
    for arch, arms in measured.items() if study.log else ():
        arms_by_name = {arm.name: arm for arm in study.arms if arm.name in arms and not arm.source}
        runs = {name: [log(arm, arch, seed) for seed in range(study.seeds)] for name, arm in arms_by_name.items()}
        for name in study.log:
            curves = []
            for arm, lines in runs.items():
                length = min(map(len, lines))
                each = np.array([[claims.number(line.get(name)) for line in one[:length]] for one in lines])
                known = np.flatnonzero(np.isfinite(each).any(axis=0))  # epochs in which it was measured
                indices = known[np.unique(np.linspace(0, len(known) - 1, min(len(known), POINTS)).round().astype(int))]
                x = [float(i + 1) for i in indices]
                curves.append(Curve(label=arm, kind="line", role=arm, x=x, y=each.mean(axis=0)[indices]))
            rows = "" if name in OF_TRAINING else " of validation rows"
            title = study.scoped(f"{name}{rows}", arch)
            plots.append(Plot(name=f"log {name} {arch}", title=title, xlabel="epoch", ylabel=name, curves=curves))
    return plots
