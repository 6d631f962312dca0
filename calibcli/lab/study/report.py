"""What a study found, as a `Result`: a number for each arm, a verdict on each claim."""

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
"""Of a number on a screen: seeds that agree to ten digits say nothing of what other rows would give."""
UNITS = {"nll": "nats", "nll after": "nats", "train_nll": "nats"}


def report(study: Study, save: Path, expect: bool = False) -> Result:
    """Everything that the finished runs say; arms with runs missing have no verdict.

    Args:
        expect: whether a verdict other than `holds` fails the run.
    """
    source = study.name if study.name in built_in() else ""
    found: dict[str, dict[str, dict[str, MeasuredArm]]] = {}
    missing: dict[str, str] = {}
    for arch in study.arch:
        found[arch], lost = measured(study, save, arch)
        missing |= {f"{name}, {arch}": why for name, why in lost.items()}
    judged: dict[str, ClaimVerdict] = {}
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
        tables=[
            _verdicts(study, found, judged),
            *(_table(study, arch, arms) for arch, arms in found.items()),
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
                        for a in found
                    },
                ),
                *claims.along(study, found),
                *claims.against(study, found),
                *claims.epochs(study, lambda arm, arch, seed: logged(save, StudyRun(arm, arch, seed)), found),
            )
        ],
        checks=[
            _check(claim, study, arch, judged, expect, _counted(claim, found[arch]))
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
    made = _one(claim, names, asked, arms)
    second = [_debiased(name) for name in names]
    if second != names and all(name in arms[asked[0]] for name in second) and made.word in ("holds", "reversed"):
        made = claims.both(made, _one(claim, second, asked, arms))
    return made


def _debiased(name: str) -> str:
    """The other estimator of a binned error, of the same rows and map."""
    first, _, rest = name.partition(" ")
    second = traits(first).get("debiased")
    return f"{second} {rest}".strip() if second else name


def _overfits(study: Study, arms: dict[str, dict[str, MeasuredArm]]) -> bool:
    """Whether each arm of plain cross-entropy knows its training rows by heart and is overconfident on others."""
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
    found = [arms[name][metrics[0]] for name in asked]
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


def _scoped(study: Study, name: str, arch: str) -> str:
    return f"{name}, {arch}" if len(study.arch) > 1 else name


def _estimate(name: str, study: Study, arm: str, arch: str, found: MeasuredArm) -> Estimate:
    mean = SeedMean.of(found)
    half = mean.half(LEVEL) if study.seeds > 1 and np.isfinite(mean.error) else None
    lost = "one seed" if study.seeds == 1 else "of a seed, or of a draw of the rows, it has no rows"
    both = "seeds and rows" if found.draws is not None else "seeds; these rows alone"
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
        n=len(found.values),
        se=None if half is None else mean.error,
        detail=DIGITS,
    )


def _verdicts(
    study: Study, found: dict[str, dict[str, dict[str, MeasuredArm]]], judged: dict[str, ClaimVerdict]
) -> Table:
    rows: list[list[Cell]] = []
    for claim in study.claims:
        for arch in found:
            verdict = judged[_scoped(study, claim.id, arch)]
            about = verdict.about
            counted = _counted(claim, found[arch])
            cells: list[Cell] = ["", "", ""]
            if about is not None:
                both, alone = about.half(LEVEL), about.half(LEVEL, rows=False)
                cells = [
                    f"{about.value:.4g}",
                    f"[{about.value - both:.4g}, {about.value + both:.4g}]" if counted else "rows are not counted",
                    f"[{about.value - alone:.4g}, {about.value + alone:.4g}]",
                ]
            more = _more(verdict)
            p = verdict.p if counted else ""
            rows.append([_scoped(study, claim.id, arch), claim.text, verdict.word, *cells, p, more])
    heads = ["claim", "text", "verdict", "value", "seeds and rows", "these rows alone", "p (Holm)", "would decide"]
    return Table(name="claims", columns=heads, rows=rows, title=f"Claims, {study.seeds} seeds, {LEVEL:.0%} intervals")


def _counted(claim: StudyClaim, arms: dict[str, dict[str, MeasuredArm]]) -> bool:
    """Whether what other rows would add is known of the metrics of a claim; a p-value without says too much."""
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
    names = [name for name in study.measured if any(name in found for found in arms.values())]
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
    """What is not as in the paper: keys whose value is another one at this size, and what the recipe says."""
    rows: list[list[Cell]] = []
    if source and study.size not in ("", "paper"):
        paper = parsing.parse(*text_of(source), size="paper", data="DATA")
        pairs = {"network": (paper.arch, study.arch), "seeds": (paper.seeds, study.seeds)}
        pairs |= {key: (paper.options.get(key), study.options.get(key)) for key in {**paper.options, **study.options}}
        pairs["vectors of words"] = (paper.embeddings or None, study.embeddings or None)
        pairs["training rows"] = ("those of the paper", study.train)
        for key, (there, here) in pairs.items():
            if there != here:
                rows.append([key.replace("_", " "), *("default" if v is None else _listed(v) for v in (there, here))])
    rows += [["", "", said] for said in study.differs]
    columns = ["what", "paper size", "here"]
    return [Table(name="differs", columns=columns, rows=rows, title="What differs from the paper")] if rows else []


def _listed(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, tuple | list) else str(value)


def _spread(found: MeasuredArm) -> float:
    return float(found.values.std(ddof=1)) if len(found.values) > 1 else 0.0


def _check(
    claim: StudyClaim, study: Study, arch: str, judged: dict[str, ClaimVerdict], expect: bool, counted: bool
) -> Check:
    verdict = judged[_scoped(study, claim.id, arch)]
    message = ": ".join(filter(None, (verdict.word, _more(verdict))))
    about, found = verdict.about, None
    if about is not None and np.isfinite(about.error):
        half = about.half(LEVEL)
        p = f"p {number_format.of_table('p', [verdict.p])[0]} after Holm's correction"
        found = Estimate(
            name=str(claim.keys["metric"]),
            value=about.value,
            low=about.value - half,
            high=about.value + half,
            level=LEVEL,
            how=f"{claim.kind}: what decides; {p if counted else 'other rows are not counted'}",
            detail=DIGITS,
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
    if (study.curvature or study.log) and study.claims:
        notes.append(
            "of the log, curvature and temperature intervals hold for these rows; what others would add is not counted"
        )
    return notes


def _headline(study: Study, judged: dict[str, ClaimVerdict]) -> str:
    counts = {word: sum(v.word == word for v in judged.values()) for word in OUTCOMES}
    named = {word: listed(key for key, v in judged.items() if v.word == word) for word in OUTCOMES}
    told = ", ".join(
        f"{n} {'hold' if word == 'holds' and n > 1 else word} ({named[word]})" for word, n in counts.items() if n
    )
    seeds = f"{study.seeds} seeds" if study.seeds > 1 else "one seed"
    return f"{len(judged)} claim{'s' * (len(judged) != 1)} at {seeds}: {told or 'none'}."


GIVEN = ("seeds", "arch", *parsing.MACHINE)
WORDS = ("question", "paper", "bibtex", "cost", "differs")


def command(study: Study) -> str:
    """What makes a study again: of one that comes along, with what it was given in place of its own; else of the recipe
    that its folder has.
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
