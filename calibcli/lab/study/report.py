"""The `Result` of a study: a number for each arm, a verdict on each claim."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from calibcli.core import number_format
from calibcli.core.errors import UsageError
from calibcli.core.result import Cell, Check, Estimate, Outcome, Result, Table
from calibcli.core.scope import Scope
from calibcli.gate.judging import MOST_TIMES
from calibcli.headlines import listed
from calibcli.lab.study import _figures as figures
from calibcli.lab.study import claims, parsing
from calibcli.lab.study._readings import measured
from calibcli.lab.study.claims import LEVEL, ClaimedArms, ClaimVerdict, MeasuredArm, SeedMean
from calibcli.lab.study.experiment import SCREEN, SIZES, Study, StudyClaim, built_in, text_of
from calibcli.lab.study.runs import StudyRun, logged, record, runs, test_rows, verified
from calibcli.metrics.registry import traits

OVERFIT_NLL, OVERFIT_T = 0.05, 1.3  # of cross-entropy: the premise of claims about overfitting
OUTCOMES: dict[claims.Word, Outcome] = {
    "holds": "pass",
    "reversed": "fail",
    "undecided": "inconclusive",
    "not comparable": "not_run",
    "no verdict": "not_run",
    "pass": "pass",
    "fail": "fail",
}
DIGITS, ROUGHLY = 4, 2
"""Digits of a number on a screen: seeds may agree to ten digits, other rows would not; where rows are not counted."""


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

    @property
    def digits(self) -> int:
        """Digits of its numbers on a screen."""
        return DIGITS if self.counted else ROUGHLY

    def could_have_shown(self, decided: int) -> float | None:
        """Return the smallest difference that its seeds and rows show, of so many claims; None if it is about none."""
        if self.verdict.difference is None or not self.claim.entry.traits.difference or self.too_few(decided):
            return None
        return self.verdict.difference.shown(decided)

    def too_few(self, decided: int) -> str:
        """Say that of so many claims its test cannot decide this one first, as it compares too few orders; else ""."""
        if self.verdict.least_p * decided < 1 - LEVEL:
            return ""
        return f"its p is {self.verdict.least_p:.2g} or more, too much for the first of {decided} claims"


def report(study: Study, save: Path, expect: bool = False) -> Result:
    """Report all finished runs; claims about arms with missing runs are undecided.

    Args:
        expect: whether a verdict other than `holds` fails the run.
    """
    source = study.name if study.name in built_in() else ""
    records = [record(save, run) for run in runs(study)]
    with_digests, without = verified(study, save)
    arms_by_network: dict[str, dict[str, dict[str, MeasuredArm]]] = {}
    missing: dict[str, str] = {}
    idle: list[str] = []
    for arch in study.arch:
        arms_by_network[arch], lost, learned_nothing = measured(study, save, arch)
        missing |= {f"{name}, {arch}": why for name, why in lost.items()}
        idle += [
            f"{study.scoped(name, arch)} has learned nothing that is shown: right in {accuracy:.1%} of the test rows, "
            "which the most frequent class alone reaches; its calibration is no merit of the loss"
            for name, accuracy in learned_nothing.items()
        ]
    theirs = {arch: _printed(study, save, arch) for arch in study.arch}
    scoped = [
        (study.scoped(claim.id, arch), claim, arms, claim.printed(theirs[arch]))
        for claim in study.claims
        for arch, arms in arms_by_network.items()
    ]
    verdicts = claims.holm({name: _judged(study, claim, arms) for name, claim, arms, _ in scoped})
    every = [JudgedClaim(name, claim, verdicts[name], _counted(study, claim, arms)) for name, claim, arms, _ in scoped]
    judged = [one for one in every if not one.claim.entry.traits.exact]
    exact = [one for one in every if one.claim.entry.traits.exact]
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
            *_exact(exact),
            *_slopes(study, arms_by_network),
            *(_table(study, arch, arms, theirs[arch]) for arch, arms in arms_by_network.items()),
            *as_printed(study, arms_by_network, theirs),
            *_differs(study, source),
        ],
        plots=[  # a screen has the claims in a table
            dataclasses.replace(plot, tier="all")
            for plot in (
                *figures.strip(
                    study,
                    {one.name: (one.claim, one.verdict) for one in judged},
                    {one.name for one in judged if one.counted},
                    {name: printed for name, *_, printed in scoped},
                ),
                *figures.along(study, arms_by_network),
                *figures.against(study, arms_by_network),
                *figures.epochs(
                    study, lambda arm, arch, seed: logged(save, StudyRun(arm, arch, seed)), arms_by_network
                ),
            )
        ],
        checks=[
            _check(one, expect, claims.count(verdicts))
            for one in (*judged, *(one for one in exact if one.verdict.word != "pass"))
        ],
        notes=[*idle, *_notes(study, missing, judged, without), *_of_runs(records)],
        facts={
            "headline": _headline(study, {one.name: one.verdict for one in judged}),
            **({"checks": _passed(exact)} if exact else {}),
            **_facts(study, records, with_digests),
        },
        screen=SCREEN,
    )


def _facts(study: Study, records: Sequence[Mapping[str, Any]], with_digests: int) -> dict[str, Any]:
    """Return what was studied, what it cost and how to do it again, by the records of its runs."""
    return {
        "study": study.name,
        "question": study.question,
        "paper": study.paper,
        "size": study.size or "as written",
        "seeds": study.seeds,
        "command": command(study),
        "recipe_sha256": digest(study),
        "cost": study.cost,
        "spent": {"hours": sum(float(one.get("seconds", 0)) for one in records) / 3600},
        "cite": study.bibtex,
        "rows": next(filter(None, (test_rows(one)[1] for one in records)), None),
        "files": f"verified: those of {with_digests} runs have the sha256 of their records" if with_digests else "",
        "runs": f"{sum(map(bool, records))} of {len(records)}",
    }


def digest(study: Study) -> str:
    """Hash the recipe of a study as `study.toml` has it, which decides what its verdicts are about."""
    return hashlib.sha256(parsing.written(study).encode()).hexdigest()


def _judged(study: Study, claim: StudyClaim, arms: dict[str, dict[str, MeasuredArm]]) -> ClaimVerdict:
    if study.seeds < 2 and not claim.entry.traits.exact:
        return ClaimVerdict("no verdict", why="one seed: a table, no verdict")
    asked = [arm.name for arm in study.asked(claim)]
    if any(name not in arms for name in asked):
        return ClaimVerdict("undecided", why="runs are missing")
    if claim.premise == "overfit":  # plain cross-entropy fits its training rows and is overconfident on others
        plain = [arms[arm.name] for arm in study.arms if arm.made == "ce" and arm.name in arms]
        fits = all(one["train_nll"].values.mean() < OVERFIT_NLL for one in plain)
        if not (plain and fits and all(one["temperature"].values.mean() > OVERFIT_T for one in plain)):
            why = f"cross-entropy does not overfit here (training NLL < {OVERFIT_NLL}, T > {OVERFIT_T})"
            return ClaimVerdict("not comparable", why=why)
    claimed = _claimed(study, claim, arms)
    verdict, names = claim.judged(claimed), claim.numbers
    second = tuple(map(_debiased, names))
    if second != names and all(name in arms[asked[0]] for name in second) and verdict.word in ("holds", "reversed"):
        verdict = claims.both(verdict, claim.judged(dataclasses.replace(claimed, estimator=_debiased)))
    return verdict


def _claimed(study: Study, claim: StudyClaim, arms: Mapping[str, Mapping[str, MeasuredArm]]) -> ClaimedArms:
    return ClaimedArms(arms, [arm.name for arm in study.asked(claim)], study.levels)


def _debiased(name: str) -> str:
    """Return the other estimator of a binned error, of the same rows and map."""
    first, _, suffix = name.partition(" ")
    second = traits(first).debiased
    return f"{second} {suffix}".strip() if second else name


def _slopes(study: Study, arms_by_network: figures.MeasuredArms) -> list[Table]:
    """Tabulate what each cause does to x and y; a slope where it surely moves both."""
    rows: list[list[Cell]] = []
    keys = ("metric", "against", "causes", "base")
    about = {str([claim.keys.get(key) for key in keys]): claim for claim in study.claims if "causes" in claim.keys}
    for claim, (arch, arms) in itertools.product(about.values(), arms_by_network.items()):
        if study.seeds > 1 and all(arm.name in arms for arm in study.asked(claim)):
            asked = {key: claim.keys.get(key, "") for key in keys}
            for cause, effect in _claimed(study, claim, arms).effects(**asked).items():
                x, y = (SeedMean.of(one) for one in effect)
                still = " or ".join(name for name, one in (("x", x), ("y", y)) if not one.sure())
                slope = f"does not surely move {still}" if still else f"{y.value / x.value:.2g}"
                moves = [f"{one.value:+.2g} ± {one.half():.2g}" for one in (x, y)]
                rows.append(
                    [
                        study.scoped(f"{claim.keys['metric']} against {claim.against}", arch),
                        cause,
                        *moves,
                        slope,
                    ]
                )
    columns = ["of", "cause", "what a step moves x by", "and y by", "y for each unit of x"]
    return [
        Table(name="causes", columns=columns, rows=rows, title=f"What each cause does, {LEVEL:.0%} intervals")
    ] * bool(rows)


def _estimate(name: str, study: Study, arm: str, arch: str, measured: MeasuredArm) -> Estimate:
    mean = SeedMean.of(measured)
    has_error = study.seeds > 1 and bool(np.isfinite(mean.error))
    low, high = mean.interval() if has_error else (None, None)
    lost = "one seed" if study.seeds == 1 else "of a seed, or of a draw of the rows, it has no rows"
    sources = "seeds and rows" if measured.draws is not None else "seeds; these rows alone"
    return Estimate(
        name=name,
        **Scope(subject=study.scoped(arm, arch)).fields,
        value=mean.value if np.isfinite(mean.value) else None,
        low=low,
        high=high,
        level=LEVEL if has_error else None,
        unit=traits(name.removeprefix("train_").split()[0]).unit,
        how=f"mean of {study.seeds} seeds; {sources}",
        reason="" if has_error else lost,
        n=len(measured.values),
        se=mean.error if has_error else None,
        detail={"digits": DIGITS if measured.draws is not None else ROUGHLY},
    )


def _verdicts(study: Study, judged: Sequence[JudgedClaim]) -> Table:
    rows: list[list[Cell]] = []
    decided = claims.count({one.name: one.verdict for one in judged})
    for judgement in judged:
        cells: list[Cell] = ["", "", "", ""]
        if (difference := judgement.verdict.difference) is not None:
            value, *ends = (
                f"{v:.{judgement.digits}g}"
                for v in (difference.value, *difference.interval(), *difference.interval(False))
            )
            interval, alone = (f"[{low}, {high}]" for low, high in (ends[:2], ends[2:]))
            could = judgement.could_have_shown(decided)
            counted = interval if judgement.counted else "rows are not counted"
            cells = [value, counted, alone, "" if could is None else f"{could:.2g}"]
        verdict = judgement.verdict
        p = verdict.p if judgement.counted and verdict.word in claims.JUDGED else ""
        rows.append([judgement.name, judgement.claim.text, verdict.word, *cells, p, _more(judgement, decided)])
    heads = ["claim", "text", "verdict", "value", "seeds and rows", "these rows alone"]
    heads += ["could have shown", "p (Holm)", "would decide"]
    title = f"Claims, {number_format.count_text(study.seeds, 'seed')}, {LEVEL:.0%} intervals"
    return Table(name="claims", columns=heads, rows=rows, title=title)


def _counted(study: Study, claim: StudyClaim, arms: dict[str, dict[str, MeasuredArm]]) -> bool:
    """Whether the error over rows is known for all numbers and arms of a claim."""
    names = {*claim.numbers, claim.against}
    numbers = [
        one[name] for arm in study.asked(claim) for one in [arms.get(arm.name, {})] for name in names if name in one
    ]
    return bool(numbers) and all(number.draws is not None for number in numbers)


def _more(judgement: JudgedClaim, decided: int) -> str:
    verdict = judgement.verdict
    if verdict.word != "undecided":
        return verdict.why
    if too_few := judgement.too_few(decided):
        return too_few
    if verdict.seeds_needed:
        return f"about {verdict.seeds_needed} seeds" + (f" ({verdict.why})" if verdict.why else "")
    if verdict.rows_times and np.isfinite(verdict.rows_times):
        if verdict.rows_times > MOST_TIMES:
            return f"no number of seeds, nor {MOST_TIMES} times the rows: the difference is too small"
        return f"no number of seeds: {verdict.rows_times:.2g} times the rows"
    return verdict.why


def _printed(study: Study, save: Path, arch: str) -> dict[str, Mapping[str, float]]:
    """Return the paper's own numbers by arm, where its network and its test rows are those of the runs."""
    for arm in study.arms:
        if run_record := record(save, StudyRun(arm, arch, 0)):
            return study.paper_numbers(arch, *test_rows(run_record))
    return {}


def _table(
    study: Study, arch: str, arms: Mapping[str, Mapping[str, MeasuredArm]], theirs: Mapping[str, Mapping[str, float]]
) -> Table:
    names = [name for name in study.measured if any(name in metrics for metrics in arms.values())]
    rows: list[list[Cell]] = []
    for arm in study.arms:
        if arm.name in arms:
            values = [arms[arm.name][name].values if name in arms[arm.name] else np.array([]) for name in names]
            spreads = [one.std(ddof=1) if len(one) > 1 else 0.0 for one in values]
            cells = [
                f"{one.mean():.4g} ± {sd:.2g}" if len(one) else "" for one, sd in zip(values, spreads, strict=True)
            ]
            rows.append([arm.name, *cells])
        printed = theirs.get(arm.name, {})
        if any(name in printed for name in names):
            rows.append(
                [f"{arm.name}, printed", *(f"{printed[name]:.4g}" if name in printed else "" for name in names)]
            )
    return Table(name=f"arms {arch}", columns=["arm", *names], rows=rows, title=f"{arch}: mean ± SD over seeds")


def as_printed(
    study: Study,
    measured: Mapping[str, Mapping[str, Mapping[str, MeasuredArm]]],
    theirs: Mapping[str, Mapping[str, Mapping[str, float]]],
) -> list[Table]:
    """Set the measured numbers as a paper does: a table for each metric, the networks below each other.

    A loss has a column for each way in which the metric is printed, such as before and after a temperature, which
    stands in brackets. Numbers are in percent; ours have their intervals, and the paper's are in the line below.

    Args:
        measured, theirs: by network, arm and metric; only metrics that the paper has are shown.
    """
    printed = {name for arms in theirs.values() for numbers in arms.values() for name in numbers}
    tables = []
    for metric in study.metrics:
        names = [name for name in study.measured if name in printed and name.split()[0] == metric]
        cells = [  # the columns of numbers: arms, and the ways in which one of them is printed
            (arm.name, name)
            for arm in study.arms
            for name in names
            if any(name in numbers.get(arm.name, {}) for numbers in theirs.values())
        ]
        rows: list[list[Cell]] = []
        for network, numbers in theirs.items():
            if any(name in numbers.get(arm, {}) for arm, name in cells):
                here = {arm: _in_percent(row) for arm, row in measured[network].items()}
                paper = {arm: {name: (value, "") for name, value in row.items()} for arm, row in numbers.items()}
                for words, of_arms in ((f"{study.seeds} seeds", here), ("printed", paper)):
                    lead = network if of_arms is here else ""
                    rows.append([lead, words, *(_with_temperature(of_arms.get(arm, {}), name) for arm, name in cells)])
        if rows:
            ways = {name: f", {'after' if 'after' in name.split() else 'before'}" * (len(names) > 1) for name in names}
            columns = ["network", "numbers of", *(f"{arm}{ways[name]}" for arm, name in cells)]
            title = f"{metric} in percent, with {LEVEL:.0%} intervals; a temperature is in brackets"
            tables.append(Table(name=f"printed {metric}", columns=columns, rows=rows, title=title, tier="all"))
    return tables


def _in_percent(arms: Mapping[str, MeasuredArm]) -> dict[str, tuple[float, str]]:
    """Return the mean of each metric, and its interval in percent as words, "" of one seed."""
    means = {name: SeedMean.of(one) for name, one in arms.items()}
    bounded = {name: mean.count > 1 and math.isfinite(mean.error) for name, mean in means.items()}
    return {
        name: (mean.value, " [{:.2f}, {:.2f}]".format(*(100 * end for end in mean.interval())) if bounded[name] else "")
        for name, mean in means.items()
    }


def _with_temperature(numbers: Mapping[str, tuple[float, str]], name: str) -> str:
    """Write a number in percent, with its interval and the temperature that it is measured after, if known."""
    if name not in numbers:
        return ""
    value, interval = numbers[name]
    suffix = name.partition(" ")[2]
    temperature = numbers.get(f"temperature {suffix}") if suffix.startswith("after temperature") else None
    return f"{100 * value:.2f}{interval}" + ("" if temperature is None else f" ({temperature[0]:.2f})")


def _differs(study: Study, source: str) -> list[Table]:
    """Tabulate the differences from the paper: options with other values at this size, and the recipe's remarks."""
    rows: list[list[Cell]] = []
    if source and study.size in SIZES[:-1]:  # smaller than the paper's; another size is another experiment of it
        paper = parsing.parse(*text_of(source), size="paper", data="DATA")
        pairs = {"network": (paper.arch, study.arch), "seeds": (paper.seeds, study.seeds)}
        pairs |= {key: (paper.options.get(key), study.options.get(key)) for key in {**paper.options, **study.options}}
        pairs["vectors of words"] = (paper.embeddings or None, study.embeddings or None)
        pairs["training rows"] = ("those of the paper", study.train)
        for key, values in pairs.items():
            if values[0] != values[1]:
                texts = [", ".join(map(str, v)) if isinstance(v, tuple | list) else v for v in values]
                rows.append([key.replace("_", " "), *("default" if v is None else str(v) for v in texts)])
    rows += [["", "", difference] for difference in study.differs]
    columns = ["what", "paper size", "here"]
    return [Table(name="differs", columns=columns, rows=rows, title="What differs from the paper")] if rows else []


def _check(judgement: JudgedClaim, expect: bool, decided: int) -> Check:
    """Return the verdict as a check; a number that is described, and not judged, never fails a run."""
    difference, estimate = judgement.verdict.difference, None
    described = difference is not None and judgement.verdict.word == "no verdict"
    if difference is not None and np.isfinite(difference.error):
        low, high = difference.interval()
        p = f"p {number_format.of_table('p', [judgement.verdict.p])[0]} after Holm's correction"
        errors = "other rows are not counted" if not judgement.counted else "seeds and rows" if described else p
        could = judgement.could_have_shown(decided)
        estimate = Estimate(
            name=str(judgement.claim.keys["metric"]),
            value=difference.value,
            low=low,
            high=high,
            level=LEVEL,
            how=f"{judgement.claim.kind}: {'of these arms' if described else 'what decides'}; {errors}",
            detail={"digits": judgement.digits, **({} if could is None else {"could_have_shown": could})},
        )
    return Check(
        rule=judgement.claim.text,
        estimate=estimate,
        scope=judgement.name,
        outcome=OUTCOMES[judgement.verdict.word],
        message=": ".join(filter(None, (judgement.verdict.word, _more(judgement, decided)))),
        fatal=expect and not described,
    )


def _notes(study: Study, missing: dict[str, str], judged: Sequence[JudgedClaim], unverified: int) -> list[str]:
    notes = [f"{name}: {why}; its claims are not decided" for name, why in missing.items()]
    if unverified:
        which = number_format.count_text(unverified, "run")
        notes.append(f"the files of {which} are not verified: their records are older than digests")
    if study.seeds < 2:
        notes.append("one seed: tables, no verdicts")
    if alone := [one.name for one in judged if one.verdict.difference is not None and not one.counted]:
        notes.append(f"{listed(alone)}: the interval holds for these rows; what others would add is not counted")
    return notes


def _of_runs(records: Sequence[Mapping[str, Any]]) -> list[str]:
    """What was done to the rows before the networks were trained, as the runs recorded it."""
    return list(dict.fromkeys(note for one in records for note in one.get("notes", ())))


def _headline(study: Study, judged: dict[str, ClaimVerdict]) -> str:
    counts = {word: sum(v.word == word for v in judged.values()) for word in OUTCOMES}
    named = {word: listed(key for key, v in judged.items() if v.word == word) for word in OUTCOMES}
    parts = ", ".join(
        f"{n} {'hold' if word == 'holds' and n > 1 else word} ({named[word]})" for word, n in counts.items() if n
    )
    seeds = f"{study.seeds} seeds" if study.seeds > 1 else "one seed"
    return f"{number_format.count_text(len(judged), 'claim')} at {seeds}: {parts or 'none'}."


def _exact(exact: Sequence[JudgedClaim]) -> list[Table]:
    """Tabulate the checks, which are no claims: those that pass are in no count."""
    rows: list[list[Cell]] = [[one.name, one.claim.text, one.verdict.word, one.verdict.why] for one in exact]
    title = f"Checks: {_passed(exact)}"
    return [Table(name="checks", columns=["check", "text", "verdict", "seeds"], rows=rows, title=title)] * bool(rows)


def _passed(exact: Sequence[JudgedClaim]) -> str:
    failed = [one.name for one in exact if one.verdict.word != "pass"]
    return f"{len(exact) - len(failed)} of {len(exact)} pass" + f", not {listed(failed)}" * bool(failed)


GIVEN = ("seeds", "arch", *parsing.MACHINE)
WORDS = ("question", "paper", "bibtex", "cost", "differs", "printed")


def command(study: Study) -> str:
    """Return the command that repeats a study.

    A built-in study is named, with the options that were given in place of its own; else the recipe in its folder is.
    """
    more = ["--trust"] if parsing.named_code(study) else []
    for data in ("", study.train.removesuffix("#train")) if study.name in built_in() else ():
        try:
            shipped = parsing.parse(*text_of(study.name), size=study.size, data=data, trust=True)
        except UsageError:  # this size has no rows of its own
            continue
        if dataclasses.replace(shipped, **{name: getattr(study, name) for name in (*GIVEN, *WORDS)}) == study:
            words = ["calib", "study", study.name, "--size", study.size, *(["--data", data] if data else [])]
            words += [word for arch in study.arch if study.arch != shipped.arch for word in ("--arch", arch)]
            return shlex.join([*words, *(["--seeds", str(study.seeds)] if study.seeds != shipped.seeds else []), *more])
    return shlex.join(["calib", "study", parsing.FILE, *more])
