"""How often the claims of `curvature-drawn` are wrong, and find what is there, in simulated worlds; and its slopes.

    python benchmarks/drawn.py --runs 300 --save FILE
    python benchmarks/drawn.py --runs 300 --save FILE --size medium
    calib study curvature-drawn --save out/drawn
    python benchmarks/drawn.py out/drawn

The worlds are those of `_measured_drawn`, with the networks of the page of either size. 2,000 orders of these are
compared, a study has 50,000. With the folder of a study: its slopes by cause, how the numbers of its runs move
together, and p-values without correction for the number of lines. What is done is in FILE, and is not done again.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import _harness  # before NumPy, which it holds to one thread
import numpy as np
from _harness import append, head, lines, row
from _measured_drawn import GAP, JUDGES, NAMES, SIZES, WORLDS, T, X, simulated
from scipy import stats

from calibcli.core.statistics import clopper_pearson
from calibcli.lab.study import _given, claims, parsing
from calibcli.lab.study._readings import _draws, measured
from calibcli.lab.study.experiment import Arm, Study
from calibcli.lab.study.runs import StudyRun

PART = 20  # studies between savings
FALSE, SURE = 0.06, 0.999


def part(world: str, number: int, size: str) -> Counter[str]:
    """Counts of `PART` studies in which a claim is decided."""
    networks = SIZES[size]
    rng = np.random.default_rng([number, [*WORLDS].index(world)])
    counts: Counter[str] = Counter()
    for _ in range(PART):
        study = simulated(WORLDS[world], rng, networks)
        for name, judge in JUDGES.items():
            counts[name] += judge(study, networks.published()[1]).word == ("reversed" if name == "curve" else "holds")
    return counts


def temperatures(study: Study, folder: Path, arm: Arm, fitted: np.ndarray) -> np.ndarray:
    """The temperatures (S, B) of an arm on draws of its validation rows: one step of Newton in ln T from the fit."""
    found = []
    for seed, at in enumerate(fitted):
        with np.load(folder / StudyRun(arm, study.arch[0], seed).folder / "validation.npz") as arrays:
            z, labels = arrays["logits"] / at, arrays["labels"]
        p = np.exp(z - z.max(axis=1, keepdims=True))
        p /= p.sum(axis=1, keepdims=True)
        mean = (p * z).sum(axis=1)
        first = mean - np.take_along_axis(z, labels[:, None], axis=1)[:, 0]
        second = (p * z**2).sum(axis=1) - mean**2 + first
        times = _draws(len(labels)).astype(float)  # (B, n)
        found.append(at * np.exp(times @ first / (times @ second)))
    return np.stack(found)


def answers(folder: Path) -> Iterator[tuple[str, str]]:
    """The slopes of a study by cause, and how its numbers move together."""
    study = parsing.parse((folder / parsing.FILE).read_text("utf-8"), str(folder))
    numbers, *_ = measured(study, folder, study.arch[0])
    names = [arm.name for arm in study.arms]
    values = np.stack([[numbers[name][one].values for name in names] for one in NAMES])  # (5, A, S)
    values[:-1] = np.log(values[:-1])
    x, *_, t, gap = values.mean(axis=2)
    for what, of in (("the trace", x), ("T", t)):
        yield f"Spearman of the gap with {what}", f"{stats.spearmanr(of, gap)[0]:.2f}"
        off = of - of.mean()
        left = gap - np.polyval(np.polyfit(off / np.abs(off).max(), gap, 4), off / np.abs(off).max())
        yield f"spread of the gap, and about a quartic of ln {what}", f"{gap.std():.4f}; {left.std():.4f}"
    for cause in study.levels:
        members = [names.index(name) for name in study.levels[cause]]
        slopes = [stats.linregress(of[members], gap[members]) for of in (t, x)]
        told = [f"{one.slope:+.3f} ± {one.stderr * stats.t.ppf(0.975, len(members) - 2):.3f}" for one in slopes]
        yield f"{cause}, {len(members)} networks: gap for a unit of ln T; of ln trace", "; ".join(told)
    off = values - values.mean(axis=2, keepdims=True)
    off -= off.mean(axis=1, keepdims=True)
    seeds = np.einsum("pas,qas->pq", off, off) / ((len(names) - 1) * (study.seeds - 1))
    for i, name in enumerate(NAMES):
        told = ", ".join(f"{seeds[i, j] / (seeds[i, i] * seeds[j, j]) ** 0.5:+.2f}" for j in range(len(NAMES)))
        yield f"{name}: spread over seeds; correlations with {', '.join(NAMES)}", f"{seeds[i, i] ** 0.5:.3f}; {told}"
    draws = [claims._stacked([numbers[name][one] for name in names]) for one in NAMES]
    raw = np.stack([[numbers[name][one].values for name in names] for one in NAMES])
    draws[3] = np.stack([temperatures(study, folder, arm, raw[3, k]) for k, arm in enumerate(study.arms)])
    for on, order in ((T, [0, 1, 2, 3, 4]), (X, [3, 1, 2, 0, 4])):
        p, slope, _ = _given.GivenNumbers.of(raw[order], [draws[i] for i in order]).depends(claims._orders(len(names)))
        yield (
            f"the gap depends on {on}, with what rows do to T",
            f"{slope:+.3f} for a unit of its logarithm, p = {p:.2g}",
        )
    rows = _given.GivenNumbers.of(raw, draws).errors - seeds / study.seeds
    told = ", ".join(f"{name} {max(0.0, rows[i, i]) ** 0.5:.4f}" for i, name in enumerate(NAMES))
    yield "what rows do to a network beside the others", told

    def curve(causes: Sequence[str], miss: float = 0.0) -> str:
        kept = [name for cause in causes for name in study.levels[cause]]
        members = {cause: [kept.index(name) for name in study.levels[cause]] for cause in causes}
        found = claims.one_curve(*([numbers[name][one] for name in kept] for one in (X, GAP)), members, miss=miss)
        return f"{found.word}, p = {found.p:.2g}: {found.why}"

    for miss in (0.0, 0.5, 1.0, 2.0):
        yield f"one curve of the trace, which may miss each network by {miss:g} SE", curve([*study.levels], miss)
    for left in study.levels:
        yield f"one curve of the trace without {left}", curve([cause for cause in study.levels if cause != left])


def main() -> int:
    given = _harness.arguments(__doc__, "folder", runs=300, save=Path, size=tuple(SIZES))
    if given.folder:
        print(head("asked", "answer"))
        for what, answer in answers(Path(given.folder[0])):
            print(row(what, answer))
        return 0
    claims.ORDERS = 2_000
    kept = {
        (line["world"], line["part"]): Counter(line["counts"])
        for line in lines([given.save] if given.save else [])
        if line["size"] == given.size
    }
    for number in range(-(-given.runs // PART)):
        for world in (one for one in WORLDS if (one, number) not in kept):
            kept[world, number] = part(world, number, given.size)
            append(given.save, {"size": given.size, "world": world, "part": number, "counts": kept[world, number]})
    networks = SIZES[given.size]
    print(f"{networks.page}, {networks.seeds} seeds; what is added to gaps, times {networks.gap:g}\n")
    print(head("truth", "studies", "T given the trace, %", "error", "trace given T", "one curve", "T, errors ignored"))
    wrong = 0
    for world, of in WORLDS.items():
        parts = [counts for key, counts in kept.items() if key[0] == world]
        runs, counts = PART * len(parts), sum(parts, Counter())
        print(row(world, runs, *(f"{100 * counts[name] / runs:.1f}" for name in JUDGES)))
        wrong += sum(clopper_pearson(counts[name], runs, (1 - SURE) / 2)[0] > FALSE for name in of.false)
    print(f"\n{wrong} shares of a false claim surely ({SURE:.1%}) above {FALSE:.0%}")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
