"""The `Result` of a study: a number for each arm, a verdict on each claim."""

from __future__ import annotations

import dataclasses
import hashlib
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from calibcli.core import number_format
from calibcli.core.errors import UsageError
from calibcli.core.result import Cell, Check, Estimate, Outcome, Result, Table
from calibcli.headlines import listed
from calibcli.lab.study import claims, parsing
from calibcli.lab.study.claims import LEVEL, ClaimVerdict, MeasuredArm, SeedMean
from calibcli.lab.study.experiment import SCREEN, Study, StudyClaim, built_in, text_of
from calibcli.lab.study.readings import measured
from calibcli.lab.study.runs import StudyRun, logged, record, runs
from calibcli.metrics.shelf import traits

OVERFIT_NLL, OVERFIT_T = 0.05, 1.3  # of cross-entropy: the premise of claims about overfitting
OUTCOMES: dict[claims.Word, Outcome] = {
    "holds": "pass",
    "reversed": "fail",
    "undecided": "inconclusive",
    "not comparable": "not_run",
    "no verdict": "not_run",
}
DIGITS = {"digits": 4}
"""Digits of a number on a screen: seeds may agree to ten digits, other rows would not."""
UNITS = {"nll": "nats", "nll after": "nats", "train_nll": "nats"}


def report(study: Study, save: Path, expect: bool = False) -> Result:
    """Report all finished runs; claims about arms with missing runs have no verdict.

    Args:
        expect: whether a verdict other than `holds` fails the run.
    """
    source = study.name if study.name in built_in() else ""
    arms_by_network: dict[str, dict[str, dict[str, MeasuredArm]]] = {}
    missing: dict[str, str] = {}
    for arch in study.arch:
        arms_by_network[arch], lost = measured(study, save, arch)
        missing |= {f"{name}, {arch}": why for name, why in lost.items()}
    judged: dict[str, ClaimVerdict] = {}
    for claim in study.claims:
        for arch, arms in arms_by_network.items():
            judged[_scoped(study, claim.id, arch)] = _judged(study, claim, arms)
    judged = claims.holm(judged, LEVEL)
    estimates = [
        _estimate(name, study, arm, arch, one)
        for arch, arms in arms_by_network.items()
        for arm, metrics in arms.items()
        for name, one in metrics.items()
    ]
    return Result(
        command="study",
        estimates=estimates,
        tables=[
            _verdicts(study, arms_by_network, judged),
            *(_table(study, arch, arms) for arch, arms in arms_by_network.items()),
            *_differs(study, source),
        ],
        plots=[  # a screen has the claims in a table
            dataclasses.replace(plot, tier="all")
            for plot in (
                *claims.strip(
                    study,
                    {
                        _scoped(study, c.id, a): (c, judged[_scoped(study, c.id, a)])
                        for c in study.claims
                        for a in arms_by_network
                    },
                ),
                *claims.along(study, arms_by_network),
                *claims.against(study, arms_by_network),
                *claims.epochs(study, lambda arm, arch, seed: logged(save, StudyRun(arm, arch, seed)), arms_by_network),
            )
        ],
        checks=[
            _check(claim, study, arch, judged, expect, _counted(claim, arms_by_network[arch]))
            for claim in study.claims
            for arch in study.arch
        ],
        notes=_notes(study, missing),
        facts={
            "headline": _headline(study, judged),
            "study": study.name,
            "question": study.question,
            "paper": study.paper,
            "size": study.size or "as written",
            "seeds": study.seeds,
            "command": command(study),
            "recipe_sha256": hashlib.sha256(parsing.written(study).encode()).hexdigest(),
            "cost": study.cost,
            "spent": {"hours": sum(float(record(save, run).get("seconds", 0)) for run in runs(study)) / 3600},
            "cite": study.bibtex,
            "runs": f"{sum(bool(record(save, run)) for run in runs(study))} of {len(runs(study))}",
        },
        screen=SCREEN,
    )


def _judged(study: Study, claim: StudyClaim, arms: dict[str, dict[str, MeasuredArm]]) -> ClaimVerdict:
    keys = claim.keys
    if study.seeds < 2:
        return ClaimVerdict("no verdict", why="one seed: a table, no verdict")
    along = claims.ordered(study, str(keys["along"])) if "along" in keys else []
    asked = [str(keys[k]) for k in ("a", "b") if k in keys] or [arm.name for arm in along]
    if any(name not in arms for name in asked):
        return ClaimVerdict("undecided", why="runs are missing")
    if claim.premise == "overfit" and not _overfits(study, arms):
        why = f"cross-entropy does not overfit here (training NLL < {OVERFIT_NLL}, T > {OVERFIT_T})"
        return ClaimVerdict("not comparable", why=why)
    names = [str(keys[key]) for key in ("metric", "than") if key in keys]
    verdict = _one(claim, names, asked, arms)
    second = [_debiased(name) for name in names]
    if second != names and all(name in arms[asked[0]] for name in second) and verdict.word in ("holds", "reversed"):
        verdict = claims.both(verdict, _one(claim, second, asked, arms))
    return verdict


def _debiased(name: str) -> str:
    """Return the other estimator of a binned error, of the same rows and map."""
    first, _, rest = name.partition(" ")
    second = traits(first).get("debiased")
    return f"{second} {rest}".strip() if second else name


def _overfits(study: Study, arms: dict[str, dict[str, MeasuredArm]]) -> bool:
    """Whether each arm of plain cross-entropy fits its training rows perfectly and is overconfident on others."""
    plain = [arms[arm.name] for arm in study.arms if arm.loss == "ce" and arm.name in arms]
    return bool(plain) and all(
        one["train_nll"].values.mean() < OVERFIT_NLL and one["temperature"].values.mean() > OVERFIT_T for one in plain
    )


def _one(
    claim: StudyClaim, metrics: Sequence[str], asked: Sequence[str], arms: dict[str, dict[str, MeasuredArm]]
) -> ClaimVerdict:
    keys = claim.keys
    if claim.kind == "crosses":
        a, b = (arms[name] for name in asked)
        first, last = (f"{metrics[0]} at {keys[key]}%" for key in ("first", "last"))
        return claims.crosses(a[first] - b[first], a[last] - b[last], LEVEL)
    if claim.kind == "less":
        return claims.less(arms[asked[0]][metrics[0]], arms[asked[1]][metrics[-1]], LEVEL)
    measured = [arms[name][metrics[0]] for name in asked]
    if claim.kind == "preserved":
        return claims.preserved(measured[0], measured[1], float(keys.get("margin", 0.005)), LEVEL)
    if claim.kind == "decreasing":
        return claims.decreasing(measured, LEVEL)
    if claim.kind == "interior_minimum":
        return claims.interior_minimum(measured, LEVEL)
    if claim.kind == "slope":
        against = [arms[name][str(keys["against"])] for name in asked]
        return claims.slope(against, measured, -1 if str(keys.get("sign", "+")).startswith("-") else 1, LEVEL)
    return claims.close_to(measured[0], float(keys["low"]), float(keys["high"]), LEVEL)


def _scoped(study: Study, name: str, arch: str) -> str:
    return f"{name}, {arch}" if len(study.arch) > 1 else name


def _estimate(name: str, study: Study, arm: str, arch: str, measured: MeasuredArm) -> Estimate:
    mean = SeedMean.of(measured)
    half = mean.half(LEVEL) if study.seeds > 1 and np.isfinite(mean.error) else None
    lost = "one seed" if study.seeds == 1 else "of a seed, or of a draw of the rows, it has no rows"
    both = "seeds and rows" if measured.draws is not None else "seeds; these rows alone"
    return Estimate(
        name=name,
        scope=_scoped(study, arm, arch),
        value=mean.value if np.isfinite(mean.value) else None,
        low=None if half is None else mean.value - half,
        high=None if half is None else mean.value + half,
        level=None if half is None else LEVEL,
        unit=UNITS.get(name, ""),
        how=f"mean of {study.seeds} seeds; {both}",
        reason="" if half is not None else lost,
        n=len(measured.values),
        se=None if half is None else mean.error,
        detail=DIGITS,
    )


def _verdicts(
    study: Study, arms_by_network: dict[str, dict[str, dict[str, MeasuredArm]]], judged: dict[str, ClaimVerdict]
) -> Table:
    rows: list[list[Cell]] = []
    for claim in study.claims:
        for arch in arms_by_network:
            verdict = judged[_scoped(study, claim.id, arch)]
            difference = verdict.about
            counted = _counted(claim, arms_by_network[arch])
            cells: list[Cell] = ["", "", ""]
            if difference is not None:
                both, alone = difference.half(LEVEL), difference.half(LEVEL, rows=False)
                cells = [
                    f"{difference.value:.4g}",
                    f"[{difference.value - both:.4g}, {difference.value + both:.4g}]"
                    if counted
                    else "rows are not counted",
                    f"[{difference.value - alone:.4g}, {difference.value + alone:.4g}]",
                ]
            more = _more(verdict)
            p = verdict.p if counted else ""
            rows.append([_scoped(study, claim.id, arch), claim.text, verdict.word, *cells, p, more])
    heads = ["claim", "text", "verdict", "value", "seeds and rows", "these rows alone", "p (Holm)", "would decide"]
    return Table(name="claims", columns=heads, rows=rows, title=f"Claims, {study.seeds} seeds, {LEVEL:.0%} intervals")


def _counted(claim: StudyClaim, arms: dict[str, dict[str, MeasuredArm]]) -> bool:
    """Whether the error over rows is known for the metrics of a claim; a p-value without it would be too small."""
    names = [str(claim.keys[key]) for key in ("metric", "than", "against") if key in claim.keys]
    of = next(iter(arms.values()), {})
    return all(name in of and of[name].draws is not None for name in names)


def _more(verdict: ClaimVerdict) -> str:
    if verdict.word != "undecided":
        return verdict.why
    if verdict.seeds_needed:
        return f"about {verdict.seeds_needed} seeds" + (f" ({verdict.why})" if verdict.why else "")
    if verdict.rows_times and np.isfinite(verdict.rows_times):
        return f"no number of seeds: {verdict.rows_times:.2g} times the rows"
    return verdict.why


def _table(study: Study, arch: str, arms: dict[str, dict[str, MeasuredArm]]) -> Table:
    names = [name for name in study.measured if any(name in metrics for metrics in arms.values())]
    rows: list[list[Cell]] = []
    for arm in study.arms:
        if arm.name in arms:
            of = arms[arm.name]
            rows.append([arm.name, *(f"{of[name].values.mean():.4g} ± {_spread(of[name]):.2g}" for name in names)])
        if any(name in arm.printed for name in names):
            printed = (f"{arm.printed[name]:.4g}" if name in arm.printed else "" for name in names)
            rows.append([f"{arm.name}, printed", *printed])
    return Table(name=f"arms {arch}", columns=["arm", *names], rows=rows, title=f"{arch}: mean ± SD over seeds")


def _differs(study: Study, source: str) -> list[Table]:
    """Tabulate the differences from the paper: options with other values at this size, and the recipe's remarks."""
    rows: list[list[Cell]] = []
    if source and study.size not in ("", "paper"):
        paper = parsing.parse(*text_of(source), size="paper", data="DATA")
        pairs = {"network": (paper.arch, study.arch), "seeds": (paper.seeds, study.seeds)}
        pairs |= {key: (paper.options.get(key), study.options.get(key)) for key in {**paper.options, **study.options}}
        pairs["vectors of words"] = (paper.embeddings or None, study.embeddings or None)
        pairs["training rows"] = ("those of the paper", study.train)
        for key, (in_paper, here) in pairs.items():
            if in_paper != here:
                rows.append(
                    [key.replace("_", " "), *("default" if v is None else _listed(v) for v in (in_paper, here))]
                )
    rows += [["", "", difference] for difference in study.differs]
    columns = ["what", "paper size", "here"]
    return [Table(name="differs", columns=columns, rows=rows, title="What differs from the paper")] if rows else []


def _listed(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, tuple | list) else str(value)


def _spread(arm: MeasuredArm) -> float:
    return float(arm.values.std(ddof=1)) if len(arm.values) > 1 else 0.0


def _check(
    claim: StudyClaim, study: Study, arch: str, judged: dict[str, ClaimVerdict], expect: bool, counted: bool
) -> Check:
    verdict = judged[_scoped(study, claim.id, arch)]
    message = ": ".join(filter(None, (verdict.word, _more(verdict))))
    difference, estimate = verdict.about, None
    if difference is not None and np.isfinite(difference.error):
        half = difference.half(LEVEL)
        p = f"p {number_format.of_table('p', [verdict.p])[0]} after Holm's correction"
        estimate = Estimate(
            name=str(claim.keys["metric"]),
            value=difference.value,
            low=difference.value - half,
            high=difference.value + half,
            level=LEVEL,
            how=f"{claim.kind}: what decides; {p if counted else 'other rows are not counted'}",
            detail=DIGITS,
        )
    return Check(
        rule=claim.text,
        estimate=estimate,
        scope=_scoped(study, claim.id, arch),
        outcome=OUTCOMES[verdict.word],
        message=message,
        fatal=expect,
    )


def _notes(study: Study, missing: dict[str, str]) -> list[str]:
    notes = [f"{name}: {why}; its claims have no verdict" for name, why in missing.items()]
    if study.seeds < 2:
        notes.append("one seed: tables, no verdicts")
    if (study.curvature or study.log) and study.claims:
        notes.append(
            "of the log, curvature and temperature intervals hold for these rows; what others would add is not counted"
        )
    return notes


def _headline(study: Study, judged: dict[str, ClaimVerdict]) -> str:
    counts = {word: sum(v.word == word for v in judged.values()) for word in OUTCOMES}
    named = {word: listed(key for key, v in judged.items() if v.word == word) for word in OUTCOMES}
    parts = ", ".join(
        f"{n} {'hold' if word == 'holds' and n > 1 else word} ({named[word]})" for word, n in counts.items() if n
    )
    seeds = f"{study.seeds} seeds" if study.seeds > 1 else "one seed"
    return f"{len(judged)} claim{'s' * (len(judged) != 1)} at {seeds}: {parts or 'none'}."


GIVEN = ("seeds", "arch", *parsing.MACHINE)
WORDS = ("question", "paper", "bibtex", "cost", "differs")


def command(study: Study) -> str:
    """Return the command that repeats a study.

    A built-in study is named, with the options that were given in place of its own; else the recipe in its folder is.
    """
    more = ["--trust"] if parsing.named_code(study) else []
    for data in ("", study.train.removesuffix("#train")) if study.name in built_in() else ():
        try:
            own = parsing.parse(*text_of(study.name), size=study.size, data=data, trust=True)
        except UsageError:  # this size has no rows of its own
            continue
        if dataclasses.replace(own, **{name: getattr(study, name) for name in (*GIVEN, *WORDS)}) == study:
            words = ["calib", "study", study.name, "--size", study.size, *(["--data", data] if data else [])]
            words += [word for arch in study.arch if study.arch != own.arch for word in ("--arch", arch)]
            return shlex.join([*words, *(["--seeds", str(study.seeds)] if study.seeds != own.seeds else []), *more])
    return shlex.join(["calib", "study", parsing.FILE, *more])
