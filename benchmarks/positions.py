"""Positions of sequences and pictures: do intervals cover where the positions of a row are correlated, and what do
groups and large vocabularies cost.

    python benchmarks/positions.py [--part coverage allowance cost] [--replications 1000] [--rows 40 200]

`coverage`: populations of 20,000 rows whose label probabilities are known. In `sequence` the labels of neighbouring
tokens are drawn alike, and in each row the model is more or less sure than it should be; in `picture` blocks of 4 x 4
pixels share their draw too; in `uneven` rows have 1 to 32 counted positions, and long ones are harder. Data sets are
rows drawn at random, passed as (N, T, C) or (N, C, H, W) with -100 for positions that are not counted. `no interval`:
rows are so few, or so uneven, that none is given. `positions alone`: every position counts as a row of its own. The
last column says which cells are surely below 92 %, or, of a mean, above 98 % (99.9 % bounds of Clopper and Pearson).

`allowance`: the same means by other intervals, on the same samples, and on populations (`..., rare`) of which two rows
are expected in a sample of n whose every position has the label that the model takes for least likely. `ends that
miss`: the largest share of samples that one end misses, which is to be 2.5 %, over the means. `as it is` allows for
rows that were not drawn at the cost of the dearest row with its worst labels; `dearest drawn` at what the dearest row
cost; `score form` for rows drawn too seldom alone; `bootstrap-t` takes 500 resamples of rows; `least`: the shortest
distance h by which any interval from mean - h to mean + h misses in no more than 2.5 %, whatever number of rows at that
cost was not drawn (of rows that were, it is the score form too). `length`: the median, over that of `as it is`.

`cost`: CPU seconds of the default metrics of 1,000,000 positions in 4,000 rows, in order and shuffled, over those
without rows; and the memory of measuring 4,000 positions of 50,000 words in a file, over the size of the file.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import _harness  # before NumPy, which it holds to one thread
import numpy as np
from scipy.special import softmax
from scipy.stats import beta, norm

import calibcli
from calibcli.core.statistics import skewed_reach, student_quantile, unseen_reach
from calibcli.metrics import Sample, choose, columns_of
from calibcli.metrics.intervals import WeightedMean
from calibcli.scores.columns import bin_index

POPULATION, K = 20_000, 5
KINDS = ("sequence", "picture", "uneven")
MEANS = ("accuracy", "nll", "brier", "mean_confidence", "confidence_gap")
BINNED = "ece"
Arrays = Any


class Population:
    """Rows with logits (R, T, K) of a model, probabilities (R, T, K) of their labels, and which count (R, T)."""

    def __init__(self, kind: str, seed: int = 0, broken: float = 0.0) -> None:
        rng = np.random.default_rng(seed)
        self.kind, self.t = kind, 64 if kind == "picture" else 32
        shape = (POPULATION, self.t, K)
        own = rng.normal(size=(POPULATION, 1, K)) + 1.5 * rng.normal(size=shape)  # what a row is about, and a position
        sharp = np.exp(0.4 * rng.normal(size=(POPULATION, 1, 1)))  # how sure a model should be, which it does not know
        length = np.full(POPULATION, self.t)
        if kind == "uneven":
            length = np.minimum(1 + rng.geometric(0.12, POPULATION), self.t)
            sharp = sharp / (0.5 + length[:, None, None] / 16)
        self.counted = np.arange(self.t) < length[:, None]
        self.z, self.p = own.astype(np.float32), softmax(own * sharp, axis=-1)
        rows = slice(round(broken * POPULATION))
        self.p[rows] = self.z[rows].argmin(-1)[..., None] == np.arange(K)  # (rows, T, K)

    def draws(self, n: int, rng: np.random.Generator) -> Arrays:
        """Uniform numbers (n, T), each alike with its neighbours."""
        if self.kind == "picture":  # (n, 8, 8) of blocks 4 x 4
            common = rng.normal(size=(n, 2, 2)).repeat(4, axis=1).repeat(4, axis=2).reshape(n, self.t)
            return norm.cdf(np.sqrt(0.6) * common + np.sqrt(0.4) * rng.normal(size=(n, self.t)))
        steps = rng.normal(size=(n, self.t))
        for t in range(1, self.t):
            steps[:, t] = 0.8 * steps[:, t - 1] + 0.6 * steps[:, t]
        return norm.cdf(steps)

    def truth(self) -> dict[str, float]:
        """The numbers of the population, by the probabilities of its labels."""
        z, p = self.z[self.counted].astype(np.float64), self.p[self.counted]  # (M, K)
        q = softmax(z, axis=1)
        top, at = q.max(1), q.argmax(1)
        right = p[np.arange(len(p)), at]
        bins = bin_index(top, 15, "right")
        gaps = np.bincount(bins, right - top)
        brier = (p * ((q**2).sum(1, keepdims=True) - 2 * q + 1)).sum()
        return {
            "accuracy": right.mean(),
            "nll": -(p * np.log(q)).sum() / len(p),
            "brier": brier / len(p),
            "mean_confidence": top.mean(),
            "confidence_gap": (top - right).mean(),
            BINNED: np.abs(gaps).sum() / len(p),
        }

    def sample(self, n: int, rng: np.random.Generator) -> tuple[Arrays, Arrays]:
        """Logits and labels of n rows."""
        rows = rng.integers(POPULATION, size=n)
        labels = (self.draws(n, rng)[..., None] > self.p[rows].cumsum(-1)[..., :-1]).sum(-1)  # (n, T)
        labels[~self.counted[rows]] = -100
        z = self.z[rows]
        if self.kind == "picture":
            return np.moveaxis(z.reshape(n, 8, 8, K), -1, 1), labels.reshape(n, 8, 8)
        return z, labels


def covered(kind: str, n: int, replications: int, seed: int = 0) -> dict[str, tuple[int, int, int]]:
    """Count, of each number, intervals over rows that hold the truth, all of them, and those over positions alone."""
    population, rng = Population(kind), np.random.default_rng(seed)
    truth = population.truth()
    held = {name: np.zeros(3, int) for name in truth}
    for _ in range(replications):
        z, y = population.sample(n, rng)
        flat = (np.moveaxis(z, 1, -1) if kind == "picture" else z)[y >= 0], y[y >= 0]
        rows, alone = calibcli.measure(z, y, *MEANS, BINNED), calibcli.measure(*flat, *MEANS, BINNED)
        for name, value in truth.items():
            low, high = rows[name].low, rows[name].high
            given = low is not None and high is not None
            inside = alone[name].low <= value <= alone[name].high
            held[name] += (given and low <= value <= high, given, inside)
    return {name: tuple(counts.tolist()) for name, counts in held.items()}


def fails(name: str, k: int, n: int) -> str:
    """Say where k of n are surely outside: below 92 %, or, of a mean, above 98 %."""
    low = beta.ppf(0.001, k, n - k + 1) if k else 0.0
    high = beta.ppf(0.999, k + 1, n - k) if k < n else 1.0
    return "surely below 92 %" if high < 0.92 else "surely above 98 %" if name in MEANS and low > 0.98 else ""


def coverage(sizes: list[int], replications: int) -> None:
    print("| population | rows | number | holds | no interval | positions alone | |")
    print("|---|---|---|---|---|---|---|")
    for kind in KINDS:
        for n in sizes:
            for name, (k, given, alone) in covered(kind, n, replications).items():
                shares = f"{k / max(given, 1):.1%} | {1 - given / replications:.1%} | {alone / replications:.1%}"
                print(f"| {kind} | {n} | `{name}` | {shares} | {fails(name, k, given)} |", flush=True)


ALPHA, RARE, RESAMPLES = 0.025, 2.0, 500
EXPECTED = np.linspace(0, -np.log(ALPHA), 400)[:-1]  # rows of a kind that are expected in a sample, and may be absent
BEYOND = norm.isf(ALPHA * np.exp(EXPECTED))  # deviations that the others may then miss by
RARE_KINDS = ("sequence", "uneven")


def reaches(rows: WeightedMean, down: float, up: float, rng: np.random.Generator) -> dict[str, tuple[float, float]]:
    """How far below and above the mean each interval reaches; `down`, `up`: the most that a row not drawn moves it."""
    t, spread, skew = student_quantile(1 - ALPHA, rows.units - 1), rows.se**2, rows.skew
    assert rows.groups is not None
    sums, sizes = np.bincount(rows.groups, rows.values), np.bincount(rows.groups)
    here = sizes > 0
    sums, sizes = sums[here], sizes[here]
    drawn = rng.integers(len(sums), size=(RESAMPLES, len(sums)))
    means = sums[drawn].sum(1) / sizes[drawn].sum(1)  # (RESAMPLES,)
    residuals = sums[drawn] - means[:, None] * sizes[drawn]
    studentised = (means - rows.value) * sizes[drawn].sum(1) / np.sqrt((residuals**2).sum(1))
    low, high = np.quantile(studentised, [ALPHA, 1 - ALPHA])
    dearest = sizes / sizes.sum() * (sums / sizes - rows.value)
    scores = [skewed_reach(t, spread, side) if side > 0 else t * rows.se for side in (-skew, skew)]
    least = [float((EXPECTED * d + BEYOND * rows.se).max()) * t / norm.isf(ALPHA) for d in (down, up)]
    sides = (max(-skew, 0.0), max(-dearest.min(), 0.0)), (max(skew, 0.0), max(dearest.max(), 0.0))
    return {
        "as it is": rows.bound_distances(ALPHA, down, up),
        "least": (max(scores[0], least[0]), max(scores[1], least[1])),
        "dearest drawn": tuple(unseen_reach(t, spread, *side) for side in sides),  # type: ignore[dict-item]
        "score form": (scores[0], scores[1]),
        "Student": (t * rows.se, t * rows.se),
        "bootstrap-t": (high * rows.se, -low * rows.se),
    }


def missed(kind: str, n: int, replications: int, rare: bool) -> dict[str, dict[str, Arrays]]:
    """Of each interval and mean: samples it was given in, missed from above, missed from below; and its lengths."""
    population, rng = Population(kind, broken=RARE / n if rare else 0.0), np.random.default_rng(n)
    truth, choices = population.truth(), dict(zip(MEANS, choose(MEANS, K), strict=True))
    counts: dict[str, dict[str, Arrays]] = {}
    for _ in range(replications):
        rows = calibcli.from_arrays(*population.sample(n, rng))
        sample = Sample.of(columns_of(rows, [*choices.values()]), rows)
        for name, choice in choices.items():
            statistic: Any = choice(sample)
            mean = statistic.rows
            if mean.lacking:
                continue
            low, high = statistic.range
            moves = mean.largest_contribution(mean.value - low), mean.largest_contribution(high - mean.value)
            for how, (below, above) in reaches(mean, *moves, rng).items():
                off = truth[name] - mean.value
                counts.setdefault(how, {}).setdefault(name, []).append((off < -below, off > above, below + above))
    return {how: {name: np.array(found) for name, found in of.items()} for how, of in counts.items()}


def allowance(sizes: list[int], replications: int) -> None:
    print("| population | rows | interval | holds, of the means | surely above 98 % | ends that miss | length |")
    print("|---|---|---|---|---|---|---|")
    for kind, rare in [*((kind, False) for kind in KINDS), *((kind, True) for kind in RARE_KINDS)]:
        for n in sizes:
            found = missed(kind, n, replications, rare)
            for how, of in found.items():
                held = {name: int((~one[:, :2].astype(bool).any(1)).sum()) for name, one in of.items()}
                shares = [held[name] / len(one) for name, one in of.items()]
                high = sum(fails(name, held[name], len(one)).endswith("98 %") for name, one in of.items())
                end = max(float(one[:, :2].mean(0).max()) for one in of.values())
                lengths = [np.median(one[:, 2] / found["as it is"][name][:, 2]) for name, one in of.items()]
                cells = f"{kind}{', rare' * rare} | {n} | {how} | {min(shares):.1%} to {max(shares):.1%} | {high} of 5"
                print(f"| {cells} | {end:.1%} | {min(lengths):.2f} to {max(lengths):.2f} |", flush=True)


def cost() -> None:
    rng = np.random.default_rng(0)
    z = 2 * rng.normal(size=(1_000_000, 5)).astype(np.float32)
    y = (z + rng.gumbel(size=z.shape)).argmax(1)
    group = np.repeat(np.arange(4_000), 250)
    made = {"without": {}, "in order": {"group": group}, "shuffled": {"group": rng.permutation(group)}}
    rows = {name: calibcli.from_arrays(z, y, **how) for name, how in made.items()}
    seconds: dict[str, list[float]] = {name: [] for name in rows}
    for _ in range(5):
        for name, one in rows.items():
            start = time.process_time()
            calibcli.measure(one)
            seconds[name].append(time.process_time() - start)
    for name in ("in order", "shuffled"):
        ratios = np.array(seconds[name]) / np.array(seconds["without"])
        print(
            f"default metrics of 1,000,000 positions in 4,000 rows, {name}: {np.median(ratios):.2f} times those without"
        )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "words.npy"
        file = np.lib.format.open_memmap(path, "w+", np.float32, (40, 100, 50_000))
        for i in range(40):
            file[i] = rng.normal(size=(100, 50_000))
        del file, z, y, rows
        np.save(path.with_suffix(".labels.npy"), np.where(rng.random((40, 100)) < 0.2, -100, 7))
        lines = {
            "words": f"calibcli.measure({str(path)!r}, None, 'accuracy', 'nll')",
            "few rows": "calibcli.measure([[1., 0.], [0., 1.]], [0, 1], 'accuracy', 'nll')",
        }
        status = (
            "print(open('/proc/self/status').read().partition('VmHWM:')[2].split()[0])"  # kB, of this process alone
        )
        used = {
            name: int(_harness.run([sys.executable, "-c", f"import calibcli; {line}; {status}"]).text) / 1024
            for name, line in lines.items()
        }
        size = path.stat().st_size / 2**20
        share = (used["words"] - used["few rows"]) / size
        print(f"4,000 positions of 50,000 words in a file of {size:,.0f} MB: {share:.2f} of its size in memory")


def main() -> None:
    options = _harness.arguments(__doc__, part=["coverage", "allowance", "cost"], replications=1000, rows=[40, 200])
    print(_harness.machine())
    if "coverage" in options.part:
        coverage(options.rows, options.replications)
    if "allowance" in options.part:
        allowance(options.rows, options.replications)
    if "cost" in options.part:
        cost()


if __name__ == "__main__":
    main()
