"""How often each printed interval holds the truth: calibrated, overconfident and saturated models, n = 500 and 5,000.

    python benchmarks/coverage.py [--confidence] [--replications 1000] [--rows 500 5000]
                                  [--save FILE.json --write docs/metrics.md]

`--confidence`: the same of files that hold how sure each prediction was and whether it was right, and no other score.
The truth is that of a population of 400,000 rows whose label probabilities are known, so that noise of its labels does
not enter. Two-sided intervals must hold 92 to 98 % of the time at 95 %; one-sided bounds at least 93 %, and be no wider
than 2.5 times the oracle's: z times the standard deviation of the same statistic with the true signs of the gaps.
Widths are medians over replications; two-sided ones in standard deviations of the estimator (an oracle's is 3.92).
"""

from __future__ import annotations

import argparse
import json
import math
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from calibcli import from_confidence, metrics
from calibcli.metrics.binned import class_bins, l1, l2, over, over_by_confidence, under
from calibcli.metrics.corp import pool
from calibcli.metrics.shelf import BinaryOutcomes, Sample, known
from calibcli.metrics.smooth_ece import Smoothed, laplace_form
from calibcli.scores.columns import Columns, columns
from calibcli.scores.predictions import Floats, Predictions

K = 10
POPULATION = 400_000
MODELS = {"calibrated": (5.0, 1.0), "overconfident": (4.0, 1.6), "saturated": (8.0, 3.0)}
"""Spread of the true logits, and what they are multiplied by in the report."""
CONFIDENCES = ("calibrated confidence", "overconfident confidence", "stated confidence")
"""A confidence in (0, 1); the same, too sure; and one of the few numbers that people and language models say, 1 too."""
SAID = {0.5: 0.1, 0.6: 0.1, 0.7: 0.15, 0.8: 0.2, 0.9: 0.2, 0.95: 0.15, 1.0: 0.1}  # how often each is said
TWO_SIDED = [
    *(
        "accuracy",
        "nll",
        "brier",
        "brier_top",
        "mean_confidence",
        "confidence_gap",
        "entropy",
        "entropy_correct",
        "entropy_wrong",
    ),
    *(
        "nll_correct",
        "nll_wrong",
        "high_confidence_share",
        "high_confidence_accuracy",
        "temperature_gain",
        "cox_slope",
        "cox_intercept",
        "failure_auroc",
        "aurc",
        "corp_unc",
        "corp_unc:score=log",
        "observed_expected",
    ),
]
ONE_SIDED = [
    "ece",
    "adaece",
    "ece_l2",
    "oce",
    "uce",
    "overconfidence_error",
    "classwise_ece",
    "smece",
    "mmce",
    "ece2_debiased",
    "corp_mcb",
    "corp_mcb:score=log",
    "corp_dsc",
    "corp_dsc:score=log",
]
MARKS = {False: ("<!-- coverage -->", "<!-- /coverage -->")}
MARKS[True] = ("<!-- coverage of confidences -->", "<!-- /coverage of confidences -->")
SCORE, SIGNS = "score form", "true signs above, triangle inequality below"
METHOD = {
    **dict.fromkeys(TWO_SIDED, SCORE),
    **dict.fromkeys(("accuracy", "high_confidence_share", "high_confidence_accuracy"), "Clopper-Pearson"),
    **dict.fromkeys(ONE_SIDED, SIGNS),
    "ece2_debiased": "score form of the square above, smallest size not refuted below",
    "temperature_gain": "divergence over the 1/T not refuted",
    "cox_slope": "profile likelihood, outcomes not seen",
    "cox_intercept": "sandwich, outcomes not seen",
    "adaece": SIGNS + ", or signs that change once",
    "ece_l2": "true signs above, smallest size not refuted below",
    "classwise_ece": "true signs",
    "failure_auroc": "score form of DeLong's variance",
    "aurc": "score form of influences",
    "observed_expected": "score form of y - θ p (Fieller)",
    **dict.fromkeys(("corp_unc", "corp_unc:score=log"), "Clopper-Pearson, of the base rate"),
    **dict.fromkeys(
        [f"corp_{part}{score}" for part in ("mcb", "dsc") for score in ("", ":score=log")],
        "best recalibration above, cross-fitting below",
    ),
}
Z95 = 1.6448536269514722
TINY = 1e-300


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
        true = np.exp(z - z.max(axis=1, keepdims=True))
        true /= true.sum(axis=1, keepdims=True)
        z *= sharpen
        table = columns(Predictions.of(z, z.argmax(axis=1)), class_bins=[class_bins(K)])
        return cls(z, true, table, true[np.arange(len(z)), table.predicted])

    def draw(self, n: int, rng: np.random.Generator) -> Predictions:
        rows = rng.integers(0, len(self.logits), n)
        y = (self.true[rows].cumsum(axis=1) > rng.random((n, 1))).argmax(axis=1)
        return Predictions.of(self.logits[rows], y)

    def truths(self) -> dict[str, float]:
        """Population value of every metric, over the labels' own probabilities."""
        c, q = self.columns.confidence, self.q
        log_p = self.logits - self.logits.max(axis=1, keepdims=True)
        log_p -= np.log(np.exp(log_p).sum(axis=1, keepdims=True))
        p = np.exp(log_p)
        nll = -(self.true * log_p).sum(axis=1)
        rows = np.arange(len(c))
        top_nll = -log_p[rows, self.columns.predicted]
        found = {
            "accuracy": q.mean(),
            "nll": nll.mean(),
            "brier": ((p**2).sum(axis=1) + 1 - 2 * (p * self.true).sum(axis=1)).mean(),
            "brier_top": (c**2 + q * (1 - 2 * c)).mean(),
            "mean_confidence": c.mean(),
            "confidence_gap": (c - q).mean(),
            "observed_expected": q.mean() / c.mean(),
            "entropy": self.columns.entropy.mean(),
            "entropy_correct": (q * self.columns.entropy).sum() / q.sum(),
            "entropy_wrong": ((1 - q) * self.columns.entropy).sum() / (1 - q).sum(),
            "nll_correct": (q * top_nll).sum() / q.sum(),
            "nll_wrong": (nll - q * top_nll).sum() / (1 - q).sum(),
            "high_confidence_share": (c >= 0.99).mean(),
            "high_confidence_accuracy": q[c >= 0.99].mean(),
        }
        view, r = self.view(), (c - q) / len(c)
        width, mass = view.width_bins(15, "right"), view.mass_bins(15, "split-merge")
        d = np.bincount(np.minimum(np.ceil(c * 15) - 1, 14).astype(int), r, 15)
        for name, norm in (("ece", l1), ("ece_l2", l2), ("oce", over), ("uce", under)):
            found[name] = float(norm(width, d))
        found["overconfidence_error"] = float(over_by_confidence(width, d))
        rank = np.empty(len(c), dtype=int)
        rank[view.order] = np.arange(len(c))
        by_mass = np.bincount(np.minimum(rank * 15 // len(c), 14), r, 15)
        found["adaece"] = float(l1(mass, by_mass))
        found["ece2_debiased"] = float((by_mass**2 / mass.weight).sum())
        cell = np.minimum(np.ceil(p * 15) - 1, 14).clip(0).astype(int)
        columns_ = range(p.shape[1])
        gaps = [np.abs(np.bincount(cell[:, k], p[:, k] - self.true[:, k], 15)).sum() for k in columns_]
        found["classwise_ece"] = float(np.mean(gaps)) / len(c)
        found["smece"] = Smoothed(c, r).fixed_point[0]
        found["mmce"] = math.sqrt(laplace_form(c[view.order], r[view.order], 0.4))
        found["cox_slope"], found["cox_intercept"] = self._cox()
        q_up = q[np.argsort(c / np.maximum(self.columns.rest, TINY))]
        found["failure_auroc"] = float(q_up @ (np.cumsum(1 - q_up) - (1 - q_up) / 2)) / (q.sum() * (1 - q).sum())
        found["aurc"] = float(np.mean(np.cumsum((1 - q_up)[::-1]) / np.arange(1, len(q) + 1)))
        for log in (False, True):
            for part in ("mcb", "dsc", "unc"):
                found[f"corp_{part}{':score=log' if log else ''}"] = float(self.gain_of_rows(part, log)[0].mean())
        return {name: float(value) for name, value in found.items()}

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

    def _cox(self) -> tuple[float, float]:
        rest = np.maximum(self.columns.rest, np.finfo(np.float64).tiny)
        x = np.stack([np.ones(len(self.q)), np.log(self.columns.confidence) - np.log(rest)])
        beta = np.array([0.0, 0.5])
        for _ in range(50):
            p = 0.5 * (1 + np.tanh(beta @ x / 2))
            step = np.linalg.solve((x * (p * (1 - p))) @ x.T, x @ (p - self.q))
            beta -= step
        return float(beta[1]), float(beta[0])

    def gain(self, rows: int = 40_000) -> tuple[Floats, Floats]:
        """Population NLL as a function of β, on a grid."""
        grid = np.linspace(0.1, 3, 146)
        z, true = self.logits[:rows], self.true[:rows]
        d = z - z.max(axis=1, keepdims=True)
        value = [float((np.log(np.exp(b * d).sum(axis=1)) - b * (true * d).sum(axis=1)).mean()) for b in grid]
        return grid, np.array(value)


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

    def truths(self) -> dict[str, float]:
        with np.errstate(invalid="ignore"):  # 0 log 0, of metrics that are not of a confidence
            found = super().truths()
        said, value = np.unique(self.columns.confidence, return_inverse=True)
        if len(said) == len(SAID):  # each is more than a fifteenth of the rows: a bin of its own, as ties stay whole
            gap = np.bincount(value, self.columns.confidence - self.q) / len(value)
            found["ece2_debiased"] = float((gap**2 / (np.bincount(value) / len(value))).sum())
        return found

    def _cox(self) -> tuple[float, float]:
        whole = (self.columns.confidence < 1).all()  # else there is no interval to hold it
        return super()._cox() if whole else (math.nan, math.nan)


@dataclass
class Tally:
    """Hits and widths of one metric."""

    given: int = 0
    low: int = 0  # times the truth is at or above the lower end
    high: int = 0
    both: int = 0
    below: list[float] = field(default_factory=list)
    above: list[float] = field(default_factory=list)
    values: list[float] = field(default_factory=list)


def signed_deviation(population: Population, name: str) -> float:
    """√Var of one row's part of the statistic s·d, s the true signs: the oracle's bound is z times this over √n."""
    c, q = population.columns.confidence, population.q
    view = population.view()
    if name.startswith("corp_"):
        mean, variance = population.gain_of_rows(name[5:8], name.endswith("log"))
        return math.sqrt(float(mean.var() + variance.mean()))
    if name == "classwise_ece":
        p = np.exp(population.logits - population.logits.max(axis=1, keepdims=True))
        p /= p.sum(axis=1, keepdims=True)
        cell = np.minimum(np.ceil(p * 15) - 1, 14).clip(0).astype(int)
        rng = np.random.default_rng(0)
        y = (population.true.cumsum(axis=1) > rng.random((len(c), 1))).argmax(axis=1)
        part = np.zeros(len(c))
        for k in range(K):
            d = np.bincount(cell[:, k], p[:, k] - population.true[:, k], 15)
            part += _signs(d)[cell[:, k]] * (p[:, k] - (y == k))
        return float(part.std()) / K
    if name == "adaece":
        rank = np.empty(len(c), dtype=int)
        rank[view.order] = np.arange(len(c))
        index = np.minimum(rank * 15 // len(c), 14)
    else:
        index = np.minimum(np.ceil(c * 15) - 1, 14).astype(int)
    d = np.bincount(index, c - q, 15) / len(c)
    share = np.bincount(index, minlength=15) / len(c)
    weight = _signs(d)
    if name == "oce":
        weight = np.where(_signs(d) > 0, 1.0, 0.0)
    elif name == "uce":
        weight = np.where(_signs(d) < 0, -1.0, 0.0)
    elif name == "overconfidence_error":
        mean = np.bincount(index, c, 15) / np.maximum(share * len(c), 1)
        weight = np.where(_signs(d) > 0, mean, 0.0)
    elif name == "ece_l2":
        u = d / np.sqrt(np.maximum(share, 1e-12)) if population_is_off(d) else _signs(d) * np.sqrt(share)
        weight = u / np.linalg.norm(u) / np.sqrt(np.maximum(share, 1e-12))
    elif name in ("smece", "mmce"):
        weight = np.full(15, math.copysign(1.0, d.sum())) if population_is_off(d) else _signs(d)
        if name == "mmce":  # <u, φ(c)> with u the direction of the mean embedding
            centre = (np.arange(15) + 0.5) / 15
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
    truths = population.truths()
    if "temperature_gain" in specs:
        grid, nll = population.gain()
        at = int(np.clip(nll.argmin(), 1, len(grid) - 2))
        a, b, c = np.polyfit(grid[at - 1 : at + 2], nll[at - 1 : at + 2], 2)
        truths["temperature_gain"] = max(float(np.interp(1.0, grid, nll)) - float(c - b * b / (4 * a)), 0.0)
    tally = {spec: Tally() for spec in specs}
    rng = np.random.default_rng([seed, n])
    for _replication in range(replications):
        sample = population.draw(n, rng)
        for e in metrics.measure(sample, specs, seed=0):
            if e.value is None:
                continue
            t = tally[e.name]
            truth = truths.get(e.name, math.nan)
            t.values.append(e.value)
            if e.low is None and e.high is None:
                continue
            t.given += 1
            slack = 1e-7  # of the grid that the gain is from
            low_holds = e.low is None or e.low <= truth + slack
            high_holds = e.high is None or truth <= e.high + slack
            t.low += low_holds
            t.high += high_holds
            t.both += low_holds and high_holds
            if e.low is not None:
                t.below.append(e.value - e.low)
            if e.high is not None:
                t.above.append(e.high - e.value)
    return {spec: _summary(population, spec, n, t, truths.get(spec, math.nan)) for spec, t in tally.items()}


def _summary(population: Population, spec: str, n: int, t: Tally, truth: float) -> dict[str, float]:
    nothing = math.nan
    given = max(t.given, 1)
    sd = float(np.std(t.values)) if t.values else nothing
    out = {
        "given": t.given / max(len(t.values), 1),
        "truth": truth,
        "mean": float(np.mean(t.values)) if t.values else nothing,
        "sd": sd,
        "low": t.low / given if t.below else nothing,
        "high": t.high / given if t.above else nothing,
        "both": t.both / given,
        "width": (float(np.median(t.below)) if t.below else 0.0) + (float(np.median(t.above)) if t.above else 0.0),
    }
    out["width_sd"] = out["width"] / sd if sd > 0 else nothing
    if spec in ONE_SIDED:
        oracle = Z95 * signed_deviation(population, spec) / math.sqrt(n)
        if oracle > 1e-9:  # else the statistic is 0 whatever the labels, but for rounding
            out["low_ratio"] = float(np.median(t.below)) / oracle if t.below else nothing
            out["high_ratio"] = float(np.median(t.above)) / oracle if t.above else nothing
    return out


def table(found: dict[str, dict[str, dict[str, float]]]) -> str:
    """Markdown: metric, method, sidedness, coverage per model and n, and widths."""
    runs = list(found)
    heads = ["metric", "interval", "sided", *(run.replace(" ", "<br>", 1) for run in runs), "width / sd", "/ oracle"]
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    for spec in TWO_SIDED + ONE_SIDED:
        if not any(spec in found[run] for run in runs):
            continue
        sided = "two" if spec in TWO_SIDED else "upper" if spec == "classwise_ece" else "each"
        cells = []
        for run in runs:
            row = found[run].get(spec, {})
            if not row.get("given"):
                cells.append("none")
            elif spec in TWO_SIDED:
                cells.append(f"{100 * row['both']:.1f}")
            else:
                ends = [row[end] for end in ("low", "high") if math.isfinite(row[end])]
                cells.append(" / ".join(f"{100 * end:.1f}" for end in ends))
        given = [found[run][spec] for run in runs if found[run][spec]["given"]]
        widths = [row["width_sd"] for row in given if math.isfinite(row["width_sd"])]
        ratios = [found[run][spec].get(end, math.nan) for end in ("low_ratio", "high_ratio") for run in runs]
        ratios = [ratio for ratio in ratios if math.isfinite(ratio)]
        span = f"{min(widths):.1f}–{max(widths):.1f}" if widths else ""
        oracle = f"{min(ratios):.2f}–{max(ratios):.2f}" if ratios else ""
        lines.append(f"| `{spec}` | {METHOD[spec]} | {sided} | " + " | ".join(cells) + f" | {span} | {oracle} |")
    return "\n".join(lines)


def beside(old: str, new: str) -> str:
    """The new table, with the rows of the old one that it has not."""
    rows = {line.split("|")[1].strip(" `"): line for text in (old, new) for line in text.strip().splitlines()}
    return "\n".join(rows[name] for name in ("metric", "---", *TWO_SIDED, *ONE_SIDED) if name in rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n")[0])
    parser.add_argument("--replications", type=int, default=1000)
    parser.add_argument("--rows", type=int, nargs="+", default=[500, 5000])
    parser.add_argument("--confidence", action="store_true", help="of files with a confidence and a verdict")
    parser.add_argument("--models", nargs="+", help="default: all")
    parser.add_argument("--metrics", nargs="+", help="default: all")
    parser.add_argument("--save", type=Path, help="JSON to add these runs to")
    parser.add_argument(
        "--write",
        type=Path,
        help="put the table of all runs in --save between the markers of this file, beside rows of other metrics",
    )
    args = parser.parse_args()
    found = json.loads(args.save.read_text()) if args.save and args.save.exists() else {}
    usable = known([spec.partition(":")[0] for spec in TWO_SIDED + ONE_SIDED], args.confidence)
    every = [spec for spec in TWO_SIDED + ONE_SIDED if spec.partition(":")[0] in usable]
    for model in args.models or (CONFIDENCES if args.confidence else MODELS):
        for n in args.rows if args.replications else ():
            began = time.time()
            run = simulate(model, n, args.replications, args.metrics or every)
            found.setdefault(f"{model} {n}", {}).update(run)
            print(f"{model}, n = {n}: {time.time() - began:.0f} s", flush=True)
            for spec, row in run.items():
                print(f"  {spec:22}", " ".join(f"{k} {v:.4g}" for k, v in row.items()), flush=True)
            if args.save:
                args.save.write_text(json.dumps(found))
    if args.write:
        start, end = MARKS[args.confidence]
        before, _, rest = args.write.read_text().partition(start)
        old, _, after = rest.partition(end)
        args.write.write_text(before + start + "\n" + beside(old, table(found)) + "\n" + end + after)


if __name__ == "__main__":
    main()
