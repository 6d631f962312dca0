"""What a study found, as a `Result`: a number for each arm, a verdict on each claim."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from calibcli import scalers
from calibcli.api.measuring import read
from calibcli.columns import columns
from calibcli.headline import listed
from calibcli.plots import Curve, Plot
from calibcli.result import Cell, Check, Estimate, Outcome, Result, Table
from calibcli.study import claims
from calibcli.study.claims import Mean, Measured, Verdict
from calibcli.study.experiment import Arm, Claim, Study
from calibcli.study.redraws import draws, sums
from calibcli.study.work import Run, record, runs

LEVEL = 0.95
OVERFIT_NLL, OVERFIT_T = 0.05, 1.3  # of cross-entropy: the premise of claims about overfitting
OUTCOMES: dict[claims.Word, Outcome] = {
    "holds": "pass",
    "reversed": "fail",
    "undecided": "inconclusive",
    "not comparable": "not_run",
    "no verdict": "not_run",
}
UNITS = {"nll": "nats", "nll after": "nats", "train_nll": "nats"}


def report(study: Study, save: Path, expect: bool = False) -> Result:
    """Everything that the finished runs say; arms with runs missing have no verdict.

    Args:
        expect: whether a verdict other than `holds` fails the run.
    """
    found: dict[str, dict[str, dict[str, Measured]]] = {}
    missing: dict[str, str] = {}
    for arch in study.arch:
        found[arch], lost = _measured(study, save, arch)
        missing |= {f"{name}, {arch}": why for name, why in lost.items()}
    judged: dict[str, Verdict] = {}
    for claim in study.claims:
        for arch, arms in found.items():
            judged[_scoped(study, claim.id, arch)] = _judged(study, claim, arms)
    judged = claims.holm(judged, LEVEL)
    estimates = [
        _estimate(name, study, arm, arch, one)
        for arch, arms in found.items()
        for arm, metrics in arms.items()
        for name, one in metrics.items()
    ]
    return Result(
        command="study",
        estimates=estimates,
        tables=[_verdicts(study, found, judged), *(_table(study, arch, arms) for arch, arms in found.items())],
        plots=[*_strip(study, judged), *_along(study, found)],
        checks=[_check(claim, study, arch, judged, expect) for claim in study.claims for arch in study.arch],
        notes=_notes(study, missing),
        facts={
            "headline": _headline(study, judged),
            "study": study.name,
            "question": study.question,
            "paper": study.paper,
            "size": study.size or "as written",
            "seeds": study.seeds,
            "runs": f"{sum(bool(record(save, run)) for run in runs(study))} of {len(runs(study))}",
        },
    )


def _measured(study: Study, save: Path, arch: str) -> tuple[dict[str, dict[str, Measured]], dict[str, str]]:
    """Every metric of each arm with all of its runs, and why another has none."""
    complete: dict[str, dict[str, Measured]] = {}
    lost: dict[str, str] = {}
    times = None
    for arm in study.arms:
        records = [record(save, Run(arm, arch, seed)) for seed in range(study.seeds)]
        diverged = [one for one in records if one.get("status") == "diverged"]
        absent = sum(not one for one in records)
        if diverged or absent:
            parts = [f"{len(diverged)} of {study.seeds} diverged"] * bool(diverged) + [f"{absent} not run"] * bool(
                absent
            )
            lost[arm.name] = ", ".join(parts)
            continue
        values: dict[str, list[float]] = {}
        spread: dict[str, list[Any]] = {}
        for seed, one in enumerate(records):
            folder = save / Run(arm, arch, seed).folder
            validation, test = (read(folder / f"{part}.npz") for part in ("validation", "test"))
            if times is None:
                times = draws(test.n, claims.DRAWS)
            fit = scalers.fit("temperature", validation)
            values.setdefault("temperature", []).append(float(fit["temperature"].value or np.nan))
            values.setdefault("train_nll", []).append(float(one["train_nll"]))
            for name in study.curvature:
                for loss in study.losses:
                    values.setdefault(f"{name} of {loss}", []).append(float(one[f"{name} of {loss}"]))
            for suffix, rows in (("", test), (" after", scalers.apply(fit.scaler, test))):
                made = columns(rows, class_bins=())
                for name in {**dict.fromkeys(study.metrics), **_second(study)}:
                    summed = sums(name, made)
                    values.setdefault(name + suffix, []).append(summed.value)
                    spread.setdefault(name + suffix, []).append(summed.drawn(times))
        complete[arm.name] = {
            name: Measured(np.array(of), np.stack(spread[name]) if name in spread else None)
            for name, of in values.items()
        }
    return complete, lost


def _second(study: Study) -> dict[str, None]:
    """The estimator by which a claim about a binned error is judged again."""
    return {"ece2_debiased": None} if {"ece", "adaece"} & {*study.metrics} else {}


def _judged(study: Study, claim: Claim, arms: dict[str, dict[str, Measured]]) -> Verdict:
    keys = claim.keys
    if study.seeds < 2:
        return Verdict("no verdict", why="one seed: a table, no verdict")
    along = _ordered(study, str(keys["along"])) if "along" in keys else []
    asked = [str(keys[k]) for k in ("a", "b") if k in keys] or [arm.name for arm in along]
    if any(name not in arms for name in asked):
        return Verdict("undecided", why="runs are missing")
    if claim.premise == "overfit" and not _overfits(study, arms):
        why = f"cross-entropy does not overfit here (training NLL < {OVERFIT_NLL}, T > {OVERFIT_T})"
        return Verdict("not comparable", why=why)
    name = str(keys["metric"])
    made = _one(claim, name, asked, arms)
    if name.partition(" ")[0] in ("ece", "adaece") and made.word in ("holds", "reversed"):
        second = "ece2_debiased" + name.partition("ece")[2].removeprefix("ece")
        made = claims.both(made, _one(claim, second, asked, arms))
    return made


def _overfits(study: Study, arms: dict[str, dict[str, Measured]]) -> bool:
    """Whether each arm of plain cross-entropy knows its training rows by heart and is overconfident on others."""
    plain = [arms[arm.name] for arm in study.arms if arm.loss == "ce" and arm.name in arms]
    return bool(plain) and all(
        one["train_nll"].values.mean() < OVERFIT_NLL and one["temperature"].values.mean() > OVERFIT_T for one in plain
    )


def _one(claim: Claim, metric: str, asked: Sequence[str], arms: dict[str, dict[str, Measured]]) -> Verdict:
    keys, found = claim.keys, [arms[name][metric] for name in asked]
    if claim.kind == "less":
        return claims.less(found[0], found[1], LEVEL)
    if claim.kind == "preserved":
        return claims.preserved(found[0], found[1], float(keys.get("margin", 0.005)), LEVEL)
    if claim.kind == "decreasing":
        return claims.decreasing(found, LEVEL)
    if claim.kind == "interior_minimum":
        return claims.interior_minimum(found, LEVEL)
    if claim.kind == "slope":
        against = [arms[name][str(keys["against"])] for name in asked]
        return claims.slope(against, found, -1 if str(keys.get("sign", "+")).startswith("-") else 1, LEVEL)
    return claims.close_to(found[0], float(keys["low"]), float(keys["high"]), LEVEL)


def _ordered(study: Study, axis: str) -> list[Arm]:
    return sorted((arm for arm in study.arms if axis in arm.at), key=lambda arm: arm.at[axis])


def _scoped(study: Study, name: str, arch: str) -> str:
    return f"{name}, {arch}" if len(study.arch) > 1 else name


def _estimate(name: str, study: Study, arm: str, arch: str, found: Measured) -> Estimate:
    mean = Mean.of(found)
    half = mean.half(LEVEL) if study.seeds > 1 else None
    both = "seeds and rows" if found.draws is not None else "seeds; these rows alone"
    return Estimate(
        name=name,
        scope=_scoped(study, arm, arch),
        value=mean.value,
        low=None if half is None else mean.value - half,
        high=None if half is None else mean.value + half,
        level=None if half is None else LEVEL,
        unit=UNITS.get(name, ""),
        how=f"mean of {study.seeds} seeds; {both}",
        reason="" if half is not None else "one seed",
        n=len(found.values),
        se=None if half is None else mean.error,
    )


def _verdicts(study: Study, found: dict[str, dict[str, dict[str, Measured]]], judged: dict[str, Verdict]) -> Table:
    rows: list[list[Cell]] = []
    for claim in study.claims:
        for arch in found:
            verdict = judged[_scoped(study, claim.id, arch)]
            about = verdict.about
            cells: list[Cell] = ["", "", ""]
            if about is not None:
                both, alone = about.half(LEVEL), about.half(LEVEL, rows=False)
                cells = [
                    f"{about.value:.4g}",
                    f"[{about.value - both:.4g}, {about.value + both:.4g}]",
                    f"[{about.value - alone:.4g}, {about.value + alone:.4g}]",
                ]
            more = _more(verdict)
            rows.append([_scoped(study, claim.id, arch), claim.text, verdict.word, *cells, f"{verdict.p:.2g}", more])
    heads = ["claim", "text", "verdict", "value", "seeds and rows", "these rows alone", "p (Holm)", "would decide"]
    return Table(name="claims", columns=heads, rows=rows, title=f"Claims, {study.seeds} seeds, {LEVEL:.0%} intervals")


def _more(verdict: Verdict) -> str:
    if verdict.word != "undecided":
        return verdict.why
    if verdict.seeds_needed:
        return f"about {verdict.seeds_needed} seeds" + (f" ({verdict.why})" if verdict.why else "")
    if verdict.rows_times and np.isfinite(verdict.rows_times):
        return f"no number of seeds: {verdict.rows_times:.2g} times the rows"
    return verdict.why


def _table(study: Study, arch: str, arms: dict[str, dict[str, Measured]]) -> Table:
    names = [name for name in study.measured if any(name in found for found in arms.values())]
    rows = [
        [arm, *(f"{found[name].values.mean():.4g} ± {_spread(found[name]):.2g}" for name in names)]
        for arm, found in arms.items()
    ]
    return Table(name=f"arms {arch}", columns=["arm", *names], rows=rows, title=f"{arch}: mean ± SD over seeds")


def _spread(found: Measured) -> float:
    return float(found.values.std(ddof=1)) if len(found.values) > 1 else 0.0


def _strip(study: Study, judged: dict[str, Verdict]) -> list[Plot]:
    """Each claim's difference in units of its own interval, so that claims about different metrics share an axis."""
    kept = [(name, v) for name, v in judged.items() if v.about is not None and v.about.error > 0]
    if not kept:
        return []
    value = [v.about.value / v.about.half(LEVEL) for _, v in kept if v.about]
    alone = [v.about.half(LEVEL, rows=False) / v.about.half(LEVEL) for _, v in kept if v.about]
    x = [float(i) for i in range(len(kept))]
    curves = [
        Curve(label="none", kind="hline", role="ideal", y=[0.0]),
        Curve(
            label="seeds and rows",
            kind="points",
            x=x,
            y=value,
            low=[v - 1 for v in value],
            high=[v + 1 for v in value],
            role="model",
        ),
        Curve(
            label="these rows alone",
            kind="points",
            x=x,
            y=value,
            low=[v - a for v, a in zip(value, alone, strict=True)],
            high=[v + a for v, a in zip(value, alone, strict=True)],
            role="after",
        ),
    ]
    labels = [f"{name}: {v.word}" for name, v in kept]
    title = f"Differences that decide the claims, {study.seeds} seeds"
    return [
        Plot(
            name="claims", title=title, ylabel="in half widths of the interval", labels=labels, flip=True, curves=curves
        )
    ]


def _along(study: Study, found: dict[str, dict[str, dict[str, Measured]]]) -> list[Plot]:
    """Metrics of claims along their axis."""
    asked = {(str(c.keys["metric"]), str(c.keys["along"])): None for c in study.claims if "along" in c.keys}
    plots = []
    for metric, axis in asked:
        for arch, arms in found.items():
            levels = [arm for arm in _ordered(study, axis) if arm.name in arms]
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


def _check(claim: Claim, study: Study, arch: str, judged: dict[str, Verdict], expect: bool) -> Check:
    verdict = judged[_scoped(study, claim.id, arch)]
    message = f"{verdict.word}" + (f": {_more(verdict)}" if _more(verdict) else "")
    about, found = verdict.about, None
    if about is not None and np.isfinite(about.error):
        half = about.half(LEVEL)
        found = Estimate(
            name=str(claim.keys["metric"]),
            value=about.value,
            low=about.value - half,
            high=about.value + half,
            level=LEVEL,
            how=f"{claim.kind}: what decides; p {verdict.p:.2g} after Holm's correction",
        )
    return Check(
        rule=claim.text,
        estimate=found,
        scope=_scoped(study, claim.id, arch),
        outcome=OUTCOMES[verdict.word],
        message=message,
        fatal=expect,
    )


def _notes(study: Study, missing: dict[str, str]) -> list[str]:
    notes = [f"{name}: {why}; its claims have no verdict" for name, why in missing.items()]
    if study.seeds < 2:
        notes.append("one seed: tables, no verdicts")
    if study.curvature and study.claims:
        notes.append("curvature: intervals hold for these validation rows; what other rows would add is not counted")
    return notes


def _headline(study: Study, judged: dict[str, Verdict]) -> str:
    counts = {word: sum(v.word == word for v in judged.values()) for word in OUTCOMES}
    named = {word: listed(key for key, v in judged.items() if v.word == word) for word in OUTCOMES}
    told = ", ".join(
        f"{n} {'hold' if word == 'holds' and n > 1 else word} ({named[word]})" for word, n in counts.items() if n
    )
    seeds = f"{study.seeds} seeds" if study.seeds > 1 else "one seed"
    return f"{len(judged)} claim{'s' * (len(judged) != 1)} at {seeds}: {told or 'none'}."
