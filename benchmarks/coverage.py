"""How often each printed interval holds the truth: calibrated, overconfident and saturated models, n = 500 and 5,000.

    python benchmarks/coverage.py [--confidence] [--replications 1000] [--rows 500 5000]
                                  [--models NAME ...] [--metrics SPEC ...]
                                  [--save FILE.json --write docs/measured/coverage.md]

`--confidence`: the same of files that hold how sure each prediction was and whether it was right, and no other score.
The truth is that of a population of 100,000 rows whose label probabilities are known, so that noise of its labels does
not enter. Two-sided intervals must hold 92 to 98 % of the time at 95 %; one-sided bounds at least 93 %, and be no wider
than 2.5 times the best bound: z times the standard deviation of the same statistic with the true signs of the gaps.
Widths are medians over replications; two-sided ones in standard deviations of the estimator (3.92 with known variance).
Runs are added to those in FILE, and --write puts the table of all of them between the marks of a page, beside the rows
of other metrics that are there.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import _harness  # before NumPy, which it holds to one thread
import numpy as np
from _gate_truth import gain
from _harness import between, head, row
from _populations import Population as Rows
from _populations import drawn, softmax, values

from calibcli import from_confidence, metrics
from calibcli.metrics.binned import class_bins
from calibcli.metrics.corp import pool
from calibcli.metrics.registry import Sample, known
from calibcli.metrics.reliability import BinaryOutcomes
from calibcli.scores.columns import Columns, columns
from calibcli.scores.predictions import Floats, Predictions

K = 10
POPULATION = 100_000
MODELS = {"calibrated": (5.0, 1.0), "overconfident": (4.0, 1.6), "saturated": (8.0, 3.0)}
"""Spread of the true logits, and what they are multiplied by in the report."""
CONFIDENCES = ("calibrated confidence", "overconfident confidence", "stated confidence")
"""A confidence in (0, 1); the same, too sure; and one of the few numbers that people and language models say, 1 too."""
SAID = {0.5: 0.1, 0.6: 0.1, 0.7: 0.15, 0.8: 0.2, 0.9: 0.2, 0.95: 0.15, 1.0: 0.1}  # how often each is said
TWO_SIDED = [
    "accuracy", "nll", "brier", "brier_top", "mean_confidence", "confidence_gap", "entropy", "entropy_correct",
    "entropy_wrong", "nll_correct", "nll_wrong", "high_confidence_share", "high_confidence_accuracy",
    "temperature_gain", "cox_slope", "cox_intercept", "failure_auroc", "aurc", "corp_unc", "corp_unc:score=log",
    "observed_expected",
]  # fmt: skip
ONE_SIDED = [
    "ece", "adaece", "ece_l2", "oce", "uce", "overconfidence_error", "classwise_ece", "smece", "mmce",
    "ece2_debiased", "corp_mcb", "corp_mcb:score=log", "corp_dsc", "corp_dsc:score=log",
]  # fmt: skip
EVERY = TWO_SIDED + ONE_SIDED
MARKS = {False: "coverage", True: "coverage of confidences"}
SCORE, SIGNS = "score form", "below: triangle inequality; above: true signs"
METHOD = {
    **dict.fromkeys(TWO_SIDED, SCORE),
    **dict.fromkeys(("accuracy", "high_confidence_share", "high_confidence_accuracy"), "Clopper-Pearson"),
    **dict.fromkeys(ONE_SIDED, SIGNS),
    "ece2_debiased": "below: smallest size not refuted; above: score form of the square",
    "temperature_gain": "divergence over the 1/T not refuted",
    "cox_slope": "profile likelihood, outcomes not seen",
    "cox_intercept": "sandwich, outcomes not seen",
    "adaece": "below: triangle inequality, or signs that change once; above: true signs",
    "ece_l2": "below: smallest size not refuted; above: true signs",
    "classwise_ece": "above: true signs",
    "failure_auroc": "score form of DeLong's variance",
    "aurc": "score form of influences",
    "observed_expected": "score form of y - θ p (Fieller)",
    **dict.fromkeys(("corp_unc", "corp_unc:score=log"), "Clopper-Pearson, of the base rate"),
    **dict.fromkeys(
        [f"corp_{part}{score}" for part in ("mcb", "dsc") for score in ("", ":score=log")],
        "below: cross-fitting; above: best recalibration",
    ),
}
Z95 = 1.6448536269514722
TINY, BINS = 1e-300, 15
LEAST = 1e-9  # labels that are less likely add nothing to a truth
SLACK = 1e-7  # of truths, which are sums over millions of rows and an optimum


@dataclass
class Population:
    """Rows with known label probabilities."""

    logits: Floats
    true: Floats  # (N, K)
    columns: Columns
    q: Floats  # probability that the top label is right

    @classmethod
    def of(cls, model: str, seed: int = 1) -> Population:
        spread, sharpen = MODELS[model]
        rng = np.random.default_rng(seed)
        z = rng.normal(size=(POPULATION, K)) * spread
        true = softmax(z)
        z *= sharpen
        table = columns(Predictions.of(z, z.argmax(axis=1)), class_bins=[class_bins(K)])
        return cls(z, true, table, true[np.arange(len(z)), table.predicted])

    def draw(self, n: int, rng: np.random.Generator) -> Predictions:
        rows = rng.integers(0, len(self.logits), n)
        return Predictions.of(self.logits[rows], drawn(self.true[rows], rng))

    def everyone(self, times: float = 1.0, kind: str = "sampling") -> Predictions:
        """Every row with every label that it may have, which weighs as much as it is likely."""
        weights = (self.true * times).ravel()
        rows, labels = np.divmod(np.flatnonzero(weights > LEAST * times), K)
        weights = weights[weights > LEAST * times]
        return Predictions.of(self.logits[rows], labels, weights=weights, weight_kind=kind)

    def truths(self, specs: Sequence[str]) -> dict[str, float]:
        """Population value of these metrics over all labels that may be; of the debiased square without its noise."""
        found = values(self.everyone(), [s for s in specs if s not in ("temperature_gain", "ece2_debiased")])
        if "ece2_debiased" in specs:
            found |= values(self.everyone(1e6, "count"), ["ece2_debiased"])
        if "temperature_gain" in specs:
            all_rows = self.everyone()
            found["temperature_gain"] = gain(Rows(all_rows.logits, all_rows.labels, weights=all_rows.weights))
        return found

    def gain_of_rows(self, part: str, log: bool) -> tuple[Floats, Floats]:
        """Expectation and variance over its label of what each row, by confidence, adds to a part of its score."""
        order = np.argsort(self.columns.confidence)
        q = self.q[order]
        best = pool(np.ones(len(q)), q).spread(len(q))
        said = self.columns.confidence[order], self.columns.rest[order]
        rate = np.full(len(q), q.mean())

        def score(p: Floats, rest: Floats) -> list[Floats]:
            """If right, and if wrong."""
            return [-np.log(np.maximum(own, TINY)) if log else (1 - own) ** 2 for own in (p, rest)]

        own, other = score(*(said if part == "mcb" else (rate, 1 - rate))), score(best, 1 - best)
        right, wrong = ((a - b if part != "unc" else a) for a, b in zip(own, other, strict=True))
        return q * right + (1 - q) * wrong, q * (1 - q) * (right - wrong) ** 2

    def view(self) -> BinaryOutcomes:
        return Sample.of(self.columns).top

    def bins(self, name: str) -> Any:
        """(N,) of equal mass for `adaece`, else of equal width."""
        c = self.columns.confidence
        if name != "adaece":
            return of_width(c)
        rank = np.empty(len(c), dtype=int)
        rank[self.view().order] = np.arange(len(c))
        return np.minimum(rank * BINS // len(c), BINS - 1)


@dataclass
class Confidences(Population):
    """Rows of which a confidence and the probability that the prediction is right are known."""

    @classmethod
    def of(cls, model: str, seed: int = 1) -> Confidences:
        rng = np.random.default_rng(seed)
        if model == "stated confidence":
            c = rng.choice(list(SAID), POPULATION, p=list(SAID.values()))
        else:
            c = rng.beta(3.0, 1.0, POPULATION)
        log_odds = np.log(c) - np.log(np.maximum(1 - c, 1e-3))
        q = c if model == "calibrated confidence" else 1 / (1 + np.exp(-0.6 * log_odds))
        with np.errstate(divide="ignore"):
            z = np.log(np.stack([1 - c, c], axis=1))
        return cls(z, np.stack([1 - q, q], axis=1), columns(from_confidence(c, np.ones(len(c)))), q)

    def draw(self, n: int, rng: np.random.Generator) -> Predictions:
        rows = rng.integers(0, len(self.q), n)
        return from_confidence(self.columns.confidence[rows], rng.random(n) < self.q[rows])

    def everyone(self, times: float = 1.0, kind: str = "sampling") -> Predictions:
        c, hit = np.tile(self.columns.confidence, 2), np.arange(2 * len(self.q)) < len(self.q)
        weights = times * np.concatenate([self.q, 1 - self.q])
        weights = np.round(weights) if kind == "count" else weights
        some = weights > LEAST * times
        return from_confidence(c[some], hit[some], weights=weights[some], weight_kind=kind)


def of_width(p: Floats) -> Any:
    """The bin of equal width of each probability, which may be in its upper edge."""
    return np.clip(np.ceil(p * BINS) - 1, 0, BINS - 1).astype(int)


def signed_deviation(population: Population, name: str) -> float:
    """√Var of one row's part of the statistic s·d, s the true signs: the best bound is z times this over √n."""
    c, q = population.columns.confidence, population.q
    if name.startswith("corp_"):
        mean, variance = population.gain_of_rows(name[5:8], name.endswith("log"))
        return math.sqrt(float(mean.var() + variance.mean()))
    if name == "classwise_ece":
        p = softmax(population.logits)
        y, cell, part = drawn(population.true, np.random.default_rng(0)), of_width(p), np.zeros(len(c))
        for k in range(K):
            d = np.bincount(cell[:, k], p[:, k] - population.true[:, k], BINS)
            part += _signs(d)[cell[:, k]] * (p[:, k] - (y == k))
        return float(part.std()) / K
    index = population.bins(name)
    d, share = np.bincount(index, c - q, BINS) / len(c), np.bincount(index, minlength=BINS) / len(c)
    weight = _signs(d)
    if name == "oce":
        weight = np.where(_signs(d) > 0, 1.0, 0.0)
    elif name == "uce":
        weight = np.where(_signs(d) < 0, -1.0, 0.0)
    elif name == "overconfidence_error":
        mean = np.bincount(index, c, BINS) / np.maximum(share * len(c), 1)
        weight = np.where(_signs(d) > 0, mean, 0.0)
    elif name == "ece_l2":
        u = d / np.sqrt(np.maximum(share, 1e-12)) if population_is_off(d) else _signs(d) * np.sqrt(share)
        weight = u / np.linalg.norm(u) / np.sqrt(np.maximum(share, 1e-12))
    elif name in ("smece", "mmce"):
        weight = np.full(BINS, math.copysign(1.0, d.sum())) if population_is_off(d) else _signs(d)
        if name == "mmce":  # <u, φ(c)> with u the direction of the mean embedding
            centre = (np.arange(BINS) + 0.5) / BINS
            kernel = np.exp(-np.abs(centre[:, None] - centre) / 0.4)
            direction = d if population_is_off(d) else share
            weight = kernel @ direction / math.sqrt(direction @ kernel @ direction)
    w = weight[index]
    mean = float((w * (c - q)).mean())
    return math.sqrt(float((w**2 * (q * (c - 1) ** 2 + (1 - q) * c**2)).mean()) - mean**2)


def population_is_off(d: Floats) -> bool:
    """Whether the gaps are more than rounding."""
    return float(np.abs(d).sum()) > 1e-6


def _signs(d: Floats) -> Floats:
    """Signs of the gaps; alternating where there are none, as any signs are then the truth."""
    if population_is_off(d):
        return np.where(d >= 0, 1.0, -1.0)
    return np.where(np.arange(len(d)) % 2 == 0, 1.0, -1.0)


def simulate(model: str, n: int, replications: int, specs: list[str], seed: int = 0) -> dict[str, dict[str, float]]:
    """Coverage and width of each metric's interval: {metric: {given, low, high, both, ratio, ...}}."""
    population = (Confidences if model in CONFIDENCES else Population).of(model)
    truths = population.truths(specs)
    seen: dict[str, list[tuple[float, float, float]]] = {spec: [] for spec in specs}
    rng = np.random.default_rng([seed, n])
    for _replication in range(replications):
        for e in metrics.measure(population.draw(n, rng), specs, seed=0):
            if e.value is not None:
                seen[e.name].append(tuple(math.nan if end is None else end for end in (e.value, e.low, e.high)))
    return {spec: _summary(population, spec, n, ends, truths.get(spec, math.nan)) for spec, ends in seen.items()}


def _summary(population: Population, spec: str, n: int, ends: list[Any], truth: float) -> dict[str, float]:
    """Of (value, low, high), nan where there is no such end; nan where no replication has it."""
    value, low, high = np.array(ends).reshape(-1, 3).T
    given = ~(np.isnan(low) & np.isnan(high))
    low_holds, high_holds = (~(low > truth + SLACK))[given], (~(high < truth - SLACK))[given]
    below, above = (_median(reach) for reach in (value - low, high - value))
    out = {
        "given": given.sum() / max(len(value), 1),
        "truth": truth,
        "mean": _mean(value),
        "sd": float(np.std(value)) if len(value) else math.nan,
        "low": _mean(low_holds) if math.isfinite(below) else math.nan,
        "high": _mean(high_holds) if math.isfinite(above) else math.nan,
        "both": _mean(low_holds & high_holds),
        "width": float(np.nansum([below, above])),
    }
    out["width_sd"] = out["width"] / out["sd"] if out["sd"] > 0 else math.nan
    if spec in ONE_SIDED:
        best = Z95 * signed_deviation(population, spec) / math.sqrt(n)
        if best > 1e-9:  # else the statistic is 0 whatever the labels, but for rounding
            out |= {"low_ratio": below / best, "high_ratio": above / best}
    return out


def _mean(x: Floats) -> float:
    return float(x.mean()) if len(x) else math.nan


def _median(x: Floats) -> float:
    return float(np.nanmedian(x)) if np.isfinite(x).any() else math.nan


def _span(values: Iterable[float], form: str) -> str:
    finite = [value for value in values if math.isfinite(value)]
    return f"{min(finite):{form}}–{max(finite):{form}}" if finite else ""


def table(found: dict[str, dict[str, dict[str, float]]]) -> str:
    """Markdown: metric, method, sidedness, coverage per model and n, and widths."""
    titles = (run.replace(" ", "<br>", 1) for run in found)
    lines = [head("metric", "interval", "sided", *titles, "width / sd", "/ best bound")]
    for spec in (spec for spec in EVERY if any(spec in of for of in found.values())):
        sided = "two" if spec in TWO_SIDED else "upper" if spec == "classwise_ece" else "each"
        given, cells = [], []
        for one in (of.get(spec, {}) for of in found.values()):
            ends = (
                [one[end] for end in (["both"] if spec in TWO_SIDED else ["low", "high"])] if one.get("given") else []
            )
            cells.append(" / ".join(f"{100 * end:.1f}" for end in ends if math.isfinite(end)) or "none")
            given += [one] if ends else []
        ratios = [one.get(end, math.nan) for end in ("low_ratio", "high_ratio") for one in given]
        spans = _span((one["width_sd"] for one in given), ".1f"), _span(ratios, ".2f")
        lines.append(row(f"`{spec}`", METHOD[spec], sided, *cells, *spans))
    return "\n".join(lines)


def beside(old: str, new: str) -> str:
    """The new table, with the rows of the old one that it has not."""
    rows = {line.split("|")[1].strip(" `"): line for text in (old, new) for line in text.strip().splitlines()}
    return "\n".join(rows[name] for name in ("metric", "---", *EVERY) if name in rows)


def main() -> None:
    given = _harness.arguments(
        __doc__,
        replications=1000,
        rows=[500, 5000],
        confidence=False,
        models=[str],
        metrics=[str],
        save=Path,
        write=Path,
    )
    found = json.loads(given.save.read_text()) if given.save and given.save.exists() else {}
    usable = known([spec.partition(":")[0] for spec in EVERY], given.confidence)
    every = [spec for spec in EVERY if spec.partition(":")[0] in usable]
    for model in given.models or (CONFIDENCES if given.confidence else MODELS):
        for n in given.rows if given.replications else ():
            began = time.time()
            run = simulate(model, n, given.replications, given.metrics or every)
            found.setdefault(f"{model} {n}", {}).update(run)
            print(f"{model}, n = {n}: {time.time() - began:.0f} s", flush=True)
            for spec, one in run.items():
                print(f"  {spec:22}", " ".join(f"{k} {v:.4g}" for k, v in one.items()), flush=True)
            if given.save:
                given.save.write_text(json.dumps(found))
    if given.write:
        mark = MARKS[given.confidence]
        between(given.write, f"<!-- {mark} -->", f"<!-- /{mark} -->", lambda old: beside(old, table(found)))


if __name__ == "__main__":
    main()
