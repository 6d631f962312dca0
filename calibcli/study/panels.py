"""The figures of a study: the differences that decide its claims, metrics along an axis, the log by epoch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from calibcli.plots import Curve, Plot
from calibcli.study.claims import Mean, Measured, Verdict
from calibcli.study.experiment import Arm, Claim, Study

LEVEL = 0.95
POINTS = 100  # of the curve of a log
Found = Mapping[str, Mapping[str, Mapping[str, Measured]]]  # by network, arm and metric


def strip(study: Study, judged: Mapping[str, tuple[Claim, Verdict]]) -> list[Plot]:
    """Each claim's difference with both of its bars and the paper's own value; a panel for each kind of number."""
    kinds: dict[str, list[tuple[str, Claim, Verdict, Mean]]] = {}
    for name, (claim, verdict) in judged.items():
        if verdict.about is not None and np.isfinite(verdict.about.error):
            kind = str(claim.keys["metric"]).partition(" ")[0]
            kinds.setdefault(kind, []).append((name, claim, verdict, verdict.about))
    return [_forest(study, kind, found) for kind, found in kinds.items()]


def _forest(study: Study, kind: str, found: list[tuple[str, Claim, Verdict, Mean]]) -> Plot:
    x = [float(i) for i in range(len(found))]
    value = [about.value for *_, about in found]

    def bars(label: str, role: str, rows: bool) -> Curve:
        half = [about.half(LEVEL, rows) for *_, about in found]
        low, high = ([v + side * h for v, h in zip(value, half, strict=True)] for side in (-1, 1))
        return Curve(label=label, kind="points", role=role, x=x, y=value, low=low, high=high)

    own = [printed(study, claim) for _, claim, *_ in found]
    curves = [
        Curve(label="", kind="hline", role="ideal", y=[0.0]),
        bars("seeds and rows", "model", True),
        bars("these rows alone", "before", False),
    ]
    if any(one is not None for one in own):
        curves.append(Curve(label="the paper", kind="points", role="printed", x=x, y=own))
    return Plot(
        name=f"claims {kind}",
        title=kind,
        group=f"Differences that decide the claims, {study.seeds} seeds",
        ylabel=f"difference of {kind}",
        labels=[f"{name}: {told(verdict)}" for name, _, verdict, _ in found],
        flip=True,
        curves=curves,
    )


def told(verdict: Verdict) -> str:
    """The verdict, and what would decide it."""
    if verdict.word == "undecided" and verdict.seeds_needed:
        return f"undecided, {verdict.seeds_needed} seeds would"
    return verdict.word


def printed(study: Study, claim: Claim) -> float | None:
    """The paper's own difference, where its numbers are in the recipe."""
    arms = {arm.name: arm.printed for arm in study.arms}
    metric = str(claim.keys["metric"])
    if claim.kind not in ("less", "preserved", "close_to"):
        return None
    first = arms[str(claim.keys["a"])].get(metric)
    if claim.kind == "close_to" or first is None:
        return first
    second = arms[str(claim.keys["b"])].get(str(claim.keys.get("than", metric)))
    return None if second is None else first - second


def ordered(study: Study, axis: str) -> list[Arm]:
    """The arms on an axis, in its order."""
    return sorted((arm for arm in study.arms if axis in arm.at), key=lambda arm: arm.at[axis])


def along(study: Study, found: Found) -> list[Plot]:
    """Metrics of claims along their axis."""
    asked = {(str(c.keys["metric"]), str(c.keys["along"])): None for c in study.claims if "along" in c.keys}
    plots = []
    for metric, axis in asked:
        for arch, arms in found.items():
            levels = [arm for arm in ordered(study, axis) if arm.name in arms]
            means = [Mean.of(arms[arm.name][metric]) for arm in levels]
            half = [mean.half(LEVEL) if study.seeds > 1 else 0.0 for mean in means]
            curve = Curve(
                label="mean over seeds",
                kind="points",
                x=[arm.at[axis] for arm in levels],
                y=[mean.value for mean in means],
                low=[mean.value - h for mean, h in zip(means, half, strict=True)],
                high=[mean.value + h for mean, h in zip(means, half, strict=True)],
                role="model",
            )
            name = f"{metric} along {axis}" + (f", {arch}" if len(found) > 1 else "")
            plots.append(Plot(name=name, title=name, xlabel=axis, ylabel=metric, curves=[curve]))
    return plots


def against(study: Study, found: Found) -> list[Plot]:
    """Each arm as a point with both of its bars, for claims about the slope of one metric against another."""
    plots = []
    for claim in (one for one in study.claims if one.kind == "slope"):
        names = [str(claim.keys[key]) for key in ("against", "metric")]
        for arch, arms in found.items():
            curves = []
            for name in (arm.name for arm in ordered(study, str(claim.keys["along"])) if arm.name in arms):
                x, y = (Mean.of(arms[name][metric]) for metric in names)
                wide, high = (mean.half(LEVEL) if study.seeds > 1 else 0.0 for mean in (x, y))
                bars = {"low": [y.value - high], "high": [y.value + high]}
                curves.append(Curve(label=name, kind="points", role=name, x=[x.value], y=[y.value], **bars))
                across = [x.value - wide, x.value + wide]
                curves.append(Curve(label="", kind="line", role=name, x=across, y=[y.value, y.value]))
            title = f"{names[1]} against {names[0]}" + (f", {arch}" if len(found) > 1 else "")
            plots.append(Plot(name=title, title=title, xlabel=names[0], ylabel=names[1], curves=curves))
    return plots


def epochs(study: Study, log: Callable[[Arm, str, int], list[dict[str, Any]]], found: Found) -> list[Plot]:
    """The log of each arm, mean over seeds."""
    plots = []
    for arch, arms in found.items() if study.log else ():
        of = {arm.name: arm for arm in study.arms if arm.name in arms}
        runs = {name: [log(arm, arch, seed) for seed in range(study.seeds)] for name, arm in of.items()}
        for name in study.log:
            curves = []
            for arm, lines in runs.items():
                length = min(map(len, lines))
                each = np.array([[number(line.get(name)) for line in one[:length]] for one in lines])
                at = np.unique(np.linspace(0, length - 1, min(length, POINTS)).round().astype(int))
                x = [float(i + 1) for i in at]
                curves.append(Curve(label=arm, kind="line", x=x, y=each.mean(axis=0)[at]))
            title = f"{name} of validation rows" + (f", {arch}" if len(found) > 1 else "")
            plots.append(Plot(name=f"log {name} {arch}", title=title, xlabel="epoch", ylabel=name, curves=curves))
    return plots


def number(found: Any) -> float:
    """Of a line of the log; nan where it has none."""
    return float(found) if isinstance(found, int | float) else np.nan
