"""Verdicts of a study on simulated runs: coverage of the intervals, and how often a verdict is false.

    python benchmarks/claims.py [--runs 400] [--rows 1000 10000] [--only KIND ...] [--short] [--save FILE]

20 seeds train each arm, of which the first 3, 5, 10 or all are judged; all are measured on the same n rows. A row is
right with a chance of its own, by luck that the runs share in part; a seed moves its arm's confidence and adds noise
row by row. The truth is an integral for `error` and `nll`, else the mean over thousands of seeds and draws of rows: at
this n for `ece`, whose bias the arms may not share, and of 20,000 rows for the debiased one. Verdicts are counted where
they are false: of arms that are alike, or at the very border of what the claim says, where a false one is likeliest
(`close_to` on runs of its own, at both `borders`). Claims about arms whose x is measured too (along it, of drawn arms,
about causes) are judged on those of `_measured_arms`: `measured` counts false verdicts, `power` true ones. `one_curve`
is judged on the arms of `_measured_curves` (`curves`, `curves-power`; of --rows 300 they have the errors of published
studies; `sharp` has functions of x that no polynomial follows: what is surely above 6 % there is in bold, and not
counted; `allowed` has them again, where the claim allows for that, and `allowed-power` what that costs), `tracks` on
the logs of `_measured_tracks` (`tracks`, `tracks-power`; they have no rows). What is done is in FILE, and is not done
again. --short takes seconds: 500 rows, 20 runs, two families.
"""

from __future__ import annotations

import functools
import itertools
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import _harness  # before NumPy, which it holds to one thread
import _measured_arms
import _measured_curves
import _measured_tracks
import numpy as np
from _harness import append, head, lines, row

from calibcli.core.statistics import clopper_pearson
from calibcli.lab.study import claims
from calibcli.lab.study._readings import RowSums, binned, draws, means
from calibcli.lab.study.claims import DRAWS, ClaimVerdict, MeasuredArm, SeedMean
from calibcli.metrics import METRICS as REGISTRY
from calibcli.metrics.reliability import BinaryOutcomes

METRICS = ("error", "nll", "ece", "ece2_debiased")
SEEDS = (3, 5, 10, 20)
PART = 20  # runs between savings
LOW, HIGH, FALSE, SURE = 0.92, 0.98, 0.06, 0.999


class Arm(NamedTuple):
    """Factor on the log-odds, its spread over seeds (log), noise of a row's log-odds, and error added to every row."""

    factor: float
    spread: float = 0.05
    noise: float = 0.3
    worse: float = 0.0


FAMILIES: dict[str, tuple[Arm, ...]] = {
    "alike, calibrated": (Arm(1.0),) * 3,
    "alike, overconfident": (Arm(1.6),) * 3,
    "alike, seeds differ much": (Arm(1.3, 0.3),) * 3,
    "alike, no noise of a row": (Arm(1.3, 0.05, 0.0),) * 3,
    "over; more so": (Arm(1.4), Arm(1.7)),
    "calibrated; overconfident": (Arm(1.0), Arm(1.5)),
    "one point worse": (Arm(1.0), Arm(1.0, worse=0.01)),
    "falls, then flat": (Arm(1.8), Arm(1.3), Arm(1.3)),
}
Found = dict[str, MeasuredArm]


def measured(
    arms: Sequence[Arm], seeds: int, n: int, rng: np.random.Generator, times: Any, metrics: tuple[str, ...] = METRICS
) -> list[Found]:
    """The metrics of each arm."""
    odds = rng.normal(2.0, 1.5, n)
    chance, shared = 1 / (1 + np.exp(-odds)), rng.random(n)
    found = []
    for arm in arms:
        values: dict[str, list[float]] = {name: [] for name in metrics}
        spread: dict[str, list[np.ndarray]] = {name: [] for name in metrics}
        for _ in range(seeds):
            own = odds + arm.noise * rng.standard_normal(n)
            luck = np.where(rng.random(n) < 0.7, shared, rng.random(n))
            hit = luck < (1 - arm.worse) * chance
            factor = arm.factor * np.exp(arm.spread * rng.standard_normal())
            p = np.clip(1 / (1 + np.exp(-factor * own)), 1e-9, 1 - 1e-9)
            for name, summed in sums(p, hit, metrics).items():
                values[name].append(summed.value)
                if times is not None:
                    spread[name].append(summed.drawn(times))
        found.append({m: MeasuredArm(np.array(values[m]), np.stack(spread[m]) if spread[m] else None) for m in metrics})
    return found


def sums(p: np.ndarray, hit: np.ndarray, metrics: tuple[str, ...]) -> dict[str, RowSums]:
    view = BinaryOutcomes(p, 1 - p, hit, None, False, None, values_only=True)
    rows = {"error": 1.0 - hit, "nll": -np.log(np.where(hit, p, 1 - p))}
    sample = SimpleNamespace(view=lambda of: view)  # all that a binned metric asks of a sample
    of_bins = {name: REGISTRY.choose(name) for name in metrics if name not in rows}
    return {
        name: means(rows[name]) if name in rows else binned(of_bins[name](sample), of_bins[name].options)
        for name in metrics
    }


@functools.cache
def truth(arm: Arm, n: int) -> dict[str, float]:
    """The mean of each metric; arms with the same one have the same stream, so that of alike arms it is the same."""
    rng = np.random.default_rng([1, n])

    def mean(rows: int, times: int) -> dict[str, float]:
        many = [measured((arm,), 10, rows, rng, None)[0] for _ in range(times)]
        return {name: float(np.mean([one[name].values for one in many])) for name in METRICS}

    own, large = mean(n, 400_000 // n), mean(20_000, 30)
    return {"ece": own["ece"], "ece2_debiased": large["ece2_debiased"], **integrals(arm)}


def integrals(arm: Arm) -> dict[str, float]:
    """The means of `error` and `nll` over rows, noise and seeds, by Gauss's quadrature."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(40)
    odds, noise, seed = np.meshgrid(nodes, nodes, nodes, indexing="ij")
    weight = np.einsum("i,j,k->ijk", weights, weights, weights) / weights.sum() ** 3
    right = (1 - arm.worse) / (1 + np.exp(-2.0 - 1.5 * odds))
    score = arm.factor * np.exp(arm.spread * seed) * (2.0 + 1.5 * odds + arm.noise * noise)
    nll = right * np.logaddexp(0, -score) + (1 - right) * np.logaddexp(0, score)
    return {"error": float((weight * (1 - right)).sum()), "nll": float((weight * nll).sum())}


def judged(
    family: str, found: list[Found], wanted: list[dict[str, float]]
) -> dict[str, tuple[ClaimVerdict, bool, bool]]:
    """Claims, and whether each is false where it holds and where it is reversed."""
    a, b, last = found[0], found[1], found[-1]

    def twice(judge: Callable[[list[MeasuredArm]], ClaimVerdict], *arms: Found) -> ClaimVerdict:
        return claims.both(*(judge([arm[name] for arm in arms]) for name in ("ece", "ece2_debiased")))

    made = {}
    if family.startswith("alike"):
        verdicts = {
            "less": twice(lambda arms: claims.less(*arms), b, a),
            "less, one estimator": claims.less(a["nll"], b["nll"]),
            "decreasing": twice(claims.decreasing, a, b, last),
            "interior_minimum": twice(claims.interior_minimum, a, b, last),
            "crosses": claims.crosses(a["nll"] - b["nll"], b["nll"] - last["nll"]),
        }
        made = {name: (verdict, True, True) for name, verdict in verdicts.items()}
    if family == "falls, then flat":
        nll = [arm["nll"] for arm in found]
        made["decreasing"] = (claims.decreasing(nll), True, False)
        made["interior_minimum"] = (claims.interior_minimum(nll[::-1]), True, False)
        made["crosses"] = (claims.crosses(b["nll"] - a["nll"], b["nll"] - last["nll"]), True, False)
    margin = wanted[1]["error"] - wanted[0]["error"]
    if margin > 0:
        kept = claims.preserved(b["error"], a["error"], margin)
        made["preserved, from outside"], made["preserved, from inside"] = (kept, True, False), (kept, False, True)
    return made


def part(family: str, n: int, number: int) -> Counter[str]:
    """Counts of `PART` runs: of intervals that cover, with and without the rows, and of false verdicts."""
    arms = FAMILIES[family]
    wanted = [truth(arm, n) for arm in arms]
    rng = np.random.default_rng([number, n, [*FAMILIES].index(family)])
    counts: Counter[str] = Counter()
    for run in range(PART):
        whole = measured(arms, max(SEEDS), n, rng, draws(n, DRAWS, PART * number + run))
        for seeds in SEEDS:
            found = [{m: MeasuredArm(v.values[:seeds], v.draws[:seeds]) for m, v in one.items()} for one in whole]
            for name in METRICS:
                mean = SeedMean.of(found[1][name] - found[0][name])
                off = abs(mean.value - (wanted[1][name] - wanted[0][name]))
                counts[f"{seeds} {name} covered"] += bool(off <= mean.half(0.95))
                counts[f"{seeds} {name} alone"] += bool(off <= mean.half(0.95, rows=False))
            for name, (verdict, holds, turned) in judged(family, found, wanted).items():
                counts[f"{seeds} {name} false"] += (holds and verdict.word == "holds") or (
                    turned and verdict.word == "reversed"
                )
    return counts


def borders(family: str, n: int, number: int) -> Counter[str]:
    """Counts of `PART` runs of the first arm: `close_to` is false where the mean is at a border, whatever is sure."""
    arm = FAMILIES[family][0]
    true, counts = integrals(arm)["nll"], Counter[str]()
    rng = np.random.default_rng([2, number, n, [*FAMILIES].index(family)])
    for run in range(PART):
        whole = measured((arm,), max(SEEDS), n, rng, draws(n, DRAWS, PART * number + run), ("nll",))[0]["nll"]
        for seeds in SEEDS:
            found = MeasuredArm(whole.values[:seeds], whole.draws[:seeds])
            for name, low, high in (("low", true, 10 * true), ("high", 0.0, true)):
                word = claims.close_to(found, low, high).word
                counts[f"{seeds} close_to, from outside, {name} false"] += word == "holds"
                counts[f"{seeds} close_to, from inside, {name} false"] += word == "reversed"
    return counts


def on_measured(
    families: dict[str, Any], measure: Any, few: Sequence[int], anew: bool = False
) -> Callable[..., Counter[str]]:
    """A function that counts the verdicts of `PART` runs of one of these families, at so few seeds.

    The fewer seeds are the first of the many, or are measured `anew`, if the truth depends on their number.
    """

    def counted(family: str, n: int, number: int) -> Counter[str]:
        simulated, counts = families[family], Counter[str]()
        rng = np.random.default_rng([3, number, n, [*families].index(family)])
        for run in range(PART):
            for seeds in few:
                if anew or seeds == few[0]:
                    x, y = measure(simulated, seeds if anew else max(few), n, rng, PART * number + run)
                first = [[MeasuredArm(one.values[:seeds], one.draws[:seeds]) for one in side] for side in (x, y)]
                counts[f"{seeds} {simulated.judge(*first).word}"] += 1
        return counts

    return counted


OF_CURVES: dict[str, dict[str, Any]] = {
    "curves": _measured_curves.FAMILIES,
    "curves-power": _measured_curves.POWER,
    "sharp": _measured_curves.SHARP,
    "allowed": _measured_curves.ALLOWED,
    "allowed-power": _measured_curves.ALLOWED_POWER,
}
KINDS = {
    "runs": part,
    "borders": borders,
    "measured": on_measured(_measured_arms.FAMILIES, _measured_arms.measured, SEEDS),
    "power": on_measured(_measured_arms.POWER, _measured_arms.measured, SEEDS),
    **{
        kind: on_measured(
            families, _measured_curves.measured, _measured_curves.SEEDS, anew=kind in ("sharp", "allowed")
        )
        for kind, families in OF_CURVES.items()
    },
    "tracks": on_measured(_measured_tracks.FAMILIES, _measured_tracks.measured, SEEDS),
    "tracks-power": on_measured(_measured_tracks.POWER, _measured_tracks.measured, SEEDS),
}
OF: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("runs", "borders"), FAMILIES),
    **{"measured": _measured_arms.FAMILIES, "power": _measured_arms.POWER},
    **OF_CURVES,
    **{"tracks": _measured_tracks.FAMILIES, "tracks-power": _measured_tracks.POWER},
}
COLUMNS = {kind: _measured_curves.SEEDS if kind in OF_CURVES else SEEDS for kind in KINDS}
SAID = ("measured", "tracks")  # kinds of which false verdicts are counted beside those without one
Done = dict[str, tuple[Counter[str], int]]  # by kind: what was counted, of how many runs


def shown(family: str, n: int, seeds: int, done: Done) -> tuple[str, int]:
    """A line of the table, and how many of its numbers are surely out of bounds."""
    wrong, cells, told = 0, [], []
    counts, runs = done.get("runs", (Counter(), 0))
    for name in METRICS if runs else ():
        covered = counts[f"{seeds} {name} covered"]
        low, high = clopper_pearson(covered, runs, (1 - SURE) / 2)
        wrong += high < LOW or low > HIGH
        cells.append(f"{100 * covered / runs:.1f} ({100 * counts[f'{seeds} {name} alone'] / runs:.1f})")
    for counts, runs in done.values():
        for key in sorted(counts):
            if key.startswith(f"{seeds} ") and key.endswith(" false"):
                wrong += clopper_pearson(counts[key], runs, (1 - SURE) / 2)[0] > FALSE
                told.append(f"{key.removeprefix(f'{seeds} ').removesuffix(' false')} {100 * counts[key] / runs:.1f}")
    return row(family, f"{n:,}", seeds, *cells, "; ".join(told)), wrong


def verdicts(kind: str, family: str, counts: Counter[str], runs: int) -> tuple[list[str], int]:
    """Cells of the table of measured arms, one for each number of seeds, and how many are surely out of bounds.

    Of `measured` and `tracks` the share of false verdicts, in brackets that without one; of `power` what holds, and is
    reversed.
    """
    wrong, cells = 0, []
    for seeds in COLUMNS[kind]:
        holds, turned, without = (counts[f"{seeds} {word}"] for word in ("holds", "reversed", "no verdict"))
        simulated = OF[kind][family]
        false = holds * simulated.holds + turned * simulated.turned
        if kind == "curves" and simulated.turned and _measured_curves.follows(simulated, seeds) > 1:
            cells.append(f"({turned} of {runs})")  # the truth is no such curve
            continue
        surely = clopper_pearson(false, runs, (1 - SURE) / 2)[0] > FALSE
        if kind == "sharp":  # which it is not either, so that these are no errors of the test
            cells.append(f"**{false}**" if surely else f"{false}")
            continue
        wrong += surely
        if kind in ("curves", "allowed"):
            cells.append(f"{false} of {runs}")
            continue
        shares = [100 * one / runs for one in ((false, without) if kind in SAID else (holds, turned))]
        cells.append(f"{shares[0]:.1f} ({shares[1]:.0f})" if kind in SAID else f"{shares[0]:.0f}, {shares[1]:.0f}")
    return cells, wrong


def main() -> int:
    given = _harness.arguments(__doc__, runs=400, rows=[1000, 10_000], only=[*KINDS], short=False, save=Path)
    rows, runs = ([500], PART) if given.short else (given.rows, given.runs)
    of = {kind: [*names][: 2 if given.short else None] for kind, names in OF.items()}
    kept: dict[tuple[str, str, int, int], Counter[str]] = {}
    for line in lines([given.save] if given.save else []):
        kept[line["kind"], line["family"], line["rows"], line["part"]] = Counter(line["counts"])
    for n in rows:  # every family by turns, so that a run that is stopped has some of each
        for number, kind in itertools.product(range(-(-runs // PART)), given.only):
            for family in (one for one in of[kind] if (kind, one, n, number) not in kept):
                counts = kept[kind, family, n, number] = KINDS[kind](family, n, number)
                append(given.save, {"kind": kind, "family": family, "rows": n, "part": number, "counts": counts})
    wrong, least = 0, dict.fromkeys(given.only, runs)
    done: dict[tuple[str, str, int], tuple[Counter[str], int]] = {}
    for kind, n in itertools.product(given.only, rows):
        for family in of[kind]:
            parts = [counts for key, counts in kept.items() if key[:3] == (kind, family, n)]
            done[kind, family, n] = sum(parts, Counter()), PART * len(parts)
            least[kind] = min(least[kind], PART * len(parts))
    both = [kind for kind in ("runs", "borders") if kind in given.only]
    if both:
        print(head("arms", "rows", "seeds", *(f"{m} covered" for m in METRICS), "false verdicts, %"))
    for family, n, seeds in itertools.product(of["runs"], rows, SEEDS) if both else ():
        text, out = shown(family, n, seeds, {kind: done[kind, family, n] for kind in both})
        wrong += out
        print(text)
    said = {
        **dict.fromkeys(SAID, "false % (no verdict %)"),
        "curves": "false",
        "sharp": f"reversed, of {least.get('sharp')}",
        "allowed": "false",
    }
    beside = {
        "curves": ["off a curve by, SE of 10 seeds"],
        **{kind: ["off a curve by, SE", "ranges over, SE"] for kind in ("sharp", "allowed")},
    }
    for kind in (one for one in given.only if one not in ("runs", "borders")):
        what = said.get(kind, "holds, reversed %")
        columns = [*beside.get(kind, []), *(f"{seeds} seeds: {what}" for seeds in COLUMNS[kind])]
        print("\n" + head("claim: arms", "rows", *columns))
        for family, n in itertools.product(of[kind], rows):
            cells, out = verdicts(kind, family, *done[kind, family, n])
            wrong += out
            of_it = (_measured_curves.follows, _measured_curves.spans)[: len(beside.get(kind, []))]
            print(row(family, f"{n:,}", *(f"{one(OF[kind][family], 10):.2f}" for one in of_it), *cells))
    told = ", ".join(f"{runs} {kind}" for kind, runs in least.items())
    bounds = f"outside {LOW:.0%} to {HIGH:.0%} or above {FALSE:.0%}"
    print(f"\n{told} a line or more; {wrong} numbers surely ({SURE:.1%}) {bounds};\n{time.process_time():.0f} CPU s")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
