"""The `Result` of a study: a number for each arm, a verdict on each claim."""

from __future__ import annotations

import dataclasses
import hashlib
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

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


@dataclass(frozen=True)
class JudgedClaim:
    """A claim on one network with its verdict.

    Attributes:
        name: of the claim, with the network where there are several.
        counted: whether the error over rows is known for its metrics; a p-value without it would be too small.
    """

    name: str
    claim: StudyClaim
    verdict: ClaimVerdict
    counted: bool


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
    scoped = [
        (claims.scoped(study, claim.id, arch), claim, arms)
        for claim in study.claims
        for arch, arms in arms_by_network.items()
    ]
    verdicts = claims.holm({name: _judged(study, claim, arms) for name, claim, arms in scoped})
    judged = [JudgedClaim(name, claim, verdicts[name], _counted(claim, arms)) for name, claim, arms in scoped]
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
            _verdicts(study, judged),
            *(_table(study, arch, arms) for arch, arms in arms_by_network.items()),
            *_differs(study, source),
        ],
        plots=[  # a screen has the claims in a table
            dataclasses.replace(plot, tier="all")
            for plot in (
                *claims.strip(study, {one.name: (one.claim, one.verdict) for one in judged}),
                *claims.along(study, arms_by_network),
                *claims.against(study, arms_by_network),
                *claims.epochs(study, lambda arm, arch, seed: logged(save, StudyRun(arm, arch, seed)), arms_by_network),
            )
        ],
        checks=[_check(one, expect) for one in judged],
        notes=_notes(study, missing),
        facts={
            "headline": _headline(study, verdicts),
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
    if claim.premise == "overfit":  # plain cross-entropy fits its training rows and is overconfident on others
        plain = [arms[arm.name] for arm in study.arms if arm.loss == "ce" and arm.name in arms]
        fits = all(one["train_nll"].values.mean() < OVERFIT_NLL for one in plain)
        if not (plain and fits and all(one["temperature"].values.mean() > OVERFIT_T for one in plain)):
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


def _one(
    claim: StudyClaim, metrics: Sequence[str], asked: Sequence[str], arms: dict[str, dict[str, MeasuredArm]]
) -> ClaimVerdict:
    keys = claim.keys
    if claim.kind == "crosses":
        a, b = (arms[name] for name in asked)
        first, last = (f"{metrics[0]} at {keys[key]}%" for key in ("first", "last"))
        return claims.crosses(a[first] - b[first], a[last] - b[last])
    if claim.kind == "less":
        return claims.less(arms[asked[0]][metrics[0]], arms[asked[1]][metrics[-1]])
    measured = [arms[name][metrics[0]] for name in asked]
    if claim.kind == "preserved":
        return claims.preserved(measured[0], measured[1], float(keys.get("margin", 0.005)))
    if claim.kind == "decreasing":
        return claims.decreasing(measured)
    if claim.kind == "interior_minimum":
        return claims.interior_minimum(measured)
    if claim.kind == "slope":
        against = [arms[name][str(keys["against"])] for name in asked]
        return claims.slope(against, measured, -1 if str(keys.get("sign", "+")).startswith("-") else 1)
    return claims.close_to(measured[0], float(keys["low"]), float(keys["high"]))


def _estimate(name: str, study: Study, arm: str, arch: str, measured: MeasuredArm) -> Estimate:
    mean = SeedMean.of(measured)
    known = study.seeds > 1 and bool(np.isfinite(mean.error))
    low, high = mean.interval() if known else (None, None)
    lost = "one seed" if study.seeds == 1 else "of a seed, or of a draw of the rows, it has no rows"
    both = "seeds and rows" if measured.draws is not None else "seeds; these rows alone"
    return Estimate(
        name=name,
        scope=claims.scoped(study, arm, arch),
        value=mean.value if np.isfinite(mean.value) else None,
        low=low,
        high=high,
        level=LEVEL if known else None,
        unit=UNITS.get(name, ""),
        how=f"mean of {study.seeds} seeds; {both}",
        reason="" if known else lost,
        n=len(measured.values),
        se=mean.error if known else None,
        detail=DIGITS,
    )


def _verdicts(study: Study, judged: Sequence[JudgedClaim]) -> Table:
    rows: list[list[Cell]] = []
    for one in judged:
        cells: list[Cell] = ["", "", ""]
        if (difference := one.verdict.about) is not None:
            both, alone = ("[{:.4g}, {:.4g}]".format(*difference.interval(rows)) for rows in (True, False))
            cells = [f"{difference.value:.4g}", both if one.counted else "rows are not counted", alone]
        p = one.verdict.p if one.counted else ""
        rows.append([one.name, one.claim.text, one.verdict.word, *cells, p, _more(one.verdict)])
    heads = ["claim", "text", "verdict", "value", "seeds and rows", "these rows alone", "p (Holm)", "would decide"]
    return Table(name="claims", columns=heads, rows=rows, title=f"Claims, {study.seeds} seeds, {LEVEL:.0%} intervals")


def _counted(claim: StudyClaim, arms: dict[str, dict[str, MeasuredArm]]) -> bool:
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
            values = [arms[arm.name][name].values for name in names]
            spreads = [one.std(ddof=1) if len(one) > 1 else 0.0 for one in values]
            cells = [f"{one.mean():.4g} ± {sd:.2g}" for one, sd in zip(values, spreads, strict=True)]
            rows.append([arm.name, *cells])
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
        for key, both in pairs.items():
            if both[0] != both[1]:
                texts = [", ".join(map(str, v)) if isinstance(v, tuple | list) else v for v in both]
                rows.append([key.replace("_", " "), *("default" if v is None else str(v) for v in texts)])
    rows += [["", "", difference] for difference in study.differs]
    columns = ["what", "paper size", "here"]
    return [Table(name="differs", columns=columns, rows=rows, title="What differs from the paper")] if rows else []


def _check(one: JudgedClaim, expect: bool) -> Check:
    difference, estimate = one.verdict.about, None
    if difference is not None and np.isfinite(difference.error):
        low, high = difference.interval()
        p = f"p {number_format.of_table('p', [one.verdict.p])[0]} after Holm's correction"
        estimate = Estimate(
            name=str(one.claim.keys["metric"]),
            value=difference.value,
            low=low,
            high=high,
            level=LEVEL,
            how=f"{one.claim.kind}: what decides; {p if one.counted else 'other rows are not counted'}",
            detail=DIGITS,
        )
    return Check(
        rule=one.claim.text,
        estimate=estimate,
        scope=one.name,
        outcome=OUTCOMES[one.verdict.word],
        message=": ".join(filter(None, (one.verdict.word, _more(one.verdict)))),
        fatal=expect,
    )


def _notes(study: Study, missing: dict[str, str]) -> list[str]:
    notes = [f"{name}: {why}; its claims have no verdict" for name, why in missing.items()]
    if study.seeds < 2:
        notes.append("one seed: tables, no verdicts")
    if (study.curvature or study.log) and study.claims:
        notes.append(
            "of the log, of the temperature, and of curvature without rows.npz, intervals hold for these rows; what"
            " others would add is not counted"
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
