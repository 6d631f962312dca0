"""Results to draw: one of everything a renderer may meet, made without any measuring."""

from __future__ import annotations

import math

from calibcli.core.figure_data import Curve, Plot
from calibcli.core.result import Check, Estimate, Result, Table

BINS = 15
EDGES = [i / BINS for i in range(BINS + 1)]
COUNTS = [0, 0, 0, 2, 4, 9, 14, 18, 22, 27, 35, 48, 70, 91, 160]
CONFIDENCE = [None if n == 0 else EDGES[i] + 0.6 / BINS for i, n in enumerate(COUNTS)]
ACCURACY = [None if c is None else round(c - 0.12 * math.sin(3 * c) + 0.03 * math.cos(40 * c), 4) for c in CONFIDENCE]


def reliability(
    name: str = "reliability", title: str = "Reliability of the top label, n = 500", group: str = ""
) -> Plot:
    half = [0.0 if n == 0 else 1.64 * math.sqrt(0.25 * max(c * (1 - c), 0.01) / n) * 2 for n, c in _filled()]
    low = [None if c is None else max(0.0, c - h) for c, h in zip(CONFIDENCE, half)]
    high = [None if c is None else min(1.0, c + h) for c, h in zip(CONFIDENCE, half)]
    widths = [1 / BINS] * BINS
    grid = [0.2 + 0.8 * i / 60 for i in range(61)]
    smooth = [g - 0.10 * math.sin(3 * g) for g in grid]
    return Plot(
        name=name,
        title=title,
        xlabel="confidence",
        ylabel="accuracy",
        xlim=(0, 1),
        ylim=(0, 1),
        group=group,
        curves=[
            Curve(label="accuracy", kind="bars", role="model", x=EDGES[:-1], width=widths, y=ACCURACY),
            Curve(label="gap", kind="bars", role="gap", x=EDGES[:-1], width=widths, base=ACCURACY, y=CONFIDENCE),
            Curve(label="90 % if calibrated", kind="band", role="null", x=EDGES[:-1], width=widths, low=low, high=high),
            Curve(
                label="smoothed, 95 % band",
                kind="line",
                role="smooth",
                x=grid,
                y=smooth,
                low=[s - 0.02 - 0.1 * (1 - g) for s, g in zip(smooth, grid)],
                high=[s + 0.02 + 0.1 * (1 - g) for s, g in zip(smooth, grid)],
            ),
            Curve(label="perfect calibration", kind="line", role="ideal", x=[0, 1], y=[0, 1]),
        ],
    )


def _filled() -> list[tuple[int, float]]:
    return [(n, 0.5 if c is None else c) for n, c in zip(COUNTS, CONFIDENCE)]


def histogram(under: str = "reliability") -> Plot:
    return Plot(
        name=f"{under}:rows",
        under=under,
        xlabel="confidence",
        ylabel="rows",
        curves=[Curve(label="rows", kind="bars", role="count", x=EDGES[:-1], width=[1 / BINS] * BINS, y=COUNTS)],
    )


def heat() -> Plot:
    temperatures = [0.25 * 1.13**i for i in range(28)]
    gammas = [round(-2 + 0.25 * i, 2) for i in range(29)]
    z = [
        [(math.log(t / 1.7) + 0.22 * (g - 0.5)) ** 2 * 0.8 + 0.004 * (g - 0.5) ** 2 for t in temperatures]
        for g in gammas
    ]
    ridge = [1.7 * math.exp(-0.22 * (g - 0.5)) for g in gammas]
    return Plot(
        name="map",
        kind="heat",
        title="Focal temperature: loss above its optimum, n = 500",
        xlabel="temperature T",
        ylabel="focal γ",
        xscale="log",
        x=temperatures,
        y=gammas,
        z=z,
        zlabel="NLL − minimum (nats)",
        zscale="log",
        levels=[1.92 / 500],
        levels_label="within 1.92/n of the optimum",
        curves=[
            Curve(label="ridge: best T for each γ", kind="line", role="ridge", x=ridge, y=gammas),
            Curve(label="optimum", kind="points", role="best", x=[1.7], y=[0.5]),
        ],
    )


def density() -> Plot:
    x = [-0.5 + 0.02 * i for i in range(276)]
    y = [
        math.exp(-((v / 0.05) ** 2)) * 8 + 0.02 * math.exp(-(((v - 4) / 0.08) ** 2)) + 0.3 * math.exp(-abs(v) / 0.6)
        for v in x
    ]
    return Plot(
        name="density",
        title="Spectral density of the Hessian, 2,762 parameters, 500 rows",
        xlabel="eigenvalue",
        ylabel="density",
        yscale="log",
        ylim=(1e-4, 20),
        curves=[
            Curve(
                label="density, 10 probes, ± 2 se",
                kind="line",
                role="model",
                x=x,
                y=[v + 1e-5 for v in y],
                low=[v * 0.7 + 1e-5 for v in y],
                high=[v * 1.4 + 1e-5 for v in y],
            ),
            Curve(label="λmax, λmin", kind="vline", role="best", x=[4.0, -0.31]),
        ],
    )


def layers() -> Plot:
    names = ["conv1", "bn1"] + [f"layer{i}.{j}.conv{k}" for i in (1, 2) for j in (0, 1) for k in (1, 2)] + ["fc"]
    y = [3.2 * 0.8**i + 0.4 * math.sin(i) ** 2 for i in range(len(names))]
    return Plot(
        name="trace by layer",
        title="Hessian trace by layer, 500 rows",
        xlabel="",
        ylabel="trace (nats)",
        labels=names,
        flip=True,
        curves=[
            Curve(
                label="trace ± 2 se",
                kind="bars",
                role="model",
                x=range(len(names)),
                y=y,
                low=[v * 0.9 - 0.05 for v in y],
                high=[v * 1.1 + 0.05 for v in y],
            )
        ],
    )


def training() -> list[Plot]:
    epochs = list(range(1, 31))
    group = "Training, digits, 3 seeds"
    panels = []
    for name, label, start, end in (("nll", "validation NLL (nats)", 2.3, 0.25), ("ece", "validation ECE", 0.3, 0.03)):
        curves = []
        for k, loss in enumerate(("ce", "focal:gamma=3", "dual_focal")):
            y = [end + (start - end) * math.exp(-e / (4 + 2 * k)) + 0.01 * k for e in epochs]
            curves.append(
                Curve(
                    label=loss,
                    kind="line",
                    role=loss,
                    x=epochs,
                    y=y,
                    low=[0.94 * v for v in y],
                    high=[1.06 * v for v in y],
                )
            )
        panels.append(Plot(name=name, title=label, xlabel="epoch", ylabel=label, curves=curves, group=group))
    return panels


def power() -> Plot:
    n = [200 * 1.25**i for i in range(24)]
    passed = [1 / (1 + math.exp(-(math.log(v) - math.log(2500)) * 3)) for v in n]
    return Plot(
        name="power",
        title="Chance to pass ece <= 0.03",
        xlabel="rows n",
        ylabel="probability to PASS",
        xscale="log",
        ylim=(0, 1),
        curves=[
            Curve(label="perfect model", kind="line", role="model", x=n, y=passed),
            Curve(label="T off by 1.1", kind="line", role="off", x=n, y=[0.6 * p for p in passed]),
            Curve(label="target 0.9", kind="hline", role="limit", y=[0.9]),
            Curve(label="n = 5,200", kind="vline", role="best", x=[5200]),
        ],
    )


def forest() -> Plot:
    names = ["ece", "nll", "brier", "accuracy", "a metric with a rather long name:bins=30,norm=l2"]
    y = [-0.013, -0.051, -0.004, 0.002, 0.0]
    return Plot(
        name="differences",
        title="B − A on the same 500 rows, 95 % intervals",
        ylabel="difference (negative: B is better)",
        labels=names,
        flip=True,
        curves=[
            Curve(
                label="B − A",
                kind="points",
                role="model",
                x=range(5),
                y=y,
                low=[v - 0.02 for v in y],
                high=[v + 0.012 for v in y],
            ),
            Curve(label="", kind="hline", role="ideal", y=[0]),
        ],
    )


ECE = Estimate(
    name="ece",
    value=0.06112345,
    low=0.0312,
    high=0.09397,
    level=0.9,
    sided="each",
    better="lower",
    how="plug-in; score upper bound and triangle lower bound, 20,000 draws; each one-sided at 95 %",
    n=500,
    null=0.0199,
    null_high=0.0302,
)


def metrics() -> Result:
    return Result(
        command="metrics",
        estimates=[
            ECE,
            Estimate(
                name="accuracy", value=0.874, low=0.842, high=0.901, level=0.95, better="higher", how="Wilson", n=500
            ),
            Estimate(name="nll", value=0.41234, low=0.3611, high=0.4642, level=0.95, unit="nats", how="normal", n=500),
            Estimate(name="mce", value=0.31, reason="no valid interval: the maximum of noisy bins", n=500),
            Estimate(name="nll_wrong", value=float("inf"), unit="nats", reason="2 rows have probability 0", n=63),
            Estimate(
                name="confidence_gap",
                value=0.0312,
                low=0.0004,
                high=0.0621,
                level=0.95,
                better="zero",
                how="normal",
                n=500,
            ),
        ],
        tables=[
            Table(
                name="classes",
                title="Per class",
                columns=["class", "n", "accuracy", "ece"],
                rows=[["cat", 120, 0.91, 0.0312], ["dog | wolf", 98, 0.87654, 0.1], ["ünï\u4e2d\u6587", 3, None, None]],
            )
        ],
        plots=[reliability(), histogram()],
        notes=["3 rows are duplicates: intervals are too narrow", "class 'ünï' has 3 rows"],
        facts={"kind": "logits", "n": 500, "classes": 10, "nested": {"left": "out"}},
        provenance={"inputs": [{"path": "test.npz", "sha256": "ab"}], "seconds": 0.3},
    )


def scale() -> Result:
    pairs = [("ece", 0.0611, 0.0212, 0.02), ("nll", 0.4123, 0.3511, 0.03), ("brier", 0.211, 0.198, 0.012)]
    estimates = [Estimate(name="temperature", value=1.7321, low=1.61, high=1.87, level=0.95, how="profile likelihood")]
    for name, before, after, half in pairs:
        for scope, value in (("before", before), ("after", after)):
            estimates.append(
                Estimate(
                    name=name,
                    scope=scope,
                    value=value,
                    low=value - half,
                    high=value + half,
                    level=0.95,
                    n=500,
                    better="lower",
                )
            )
    return Result(command="scale", estimates=estimates, plots=[heat()], artefacts={"calibrator": "out/t.safetensors"})


def gate(slices: int = 3) -> Result:
    outcomes = ["pass", "fail", "inconclusive", "not_run"]
    checks = [
        Check(
            rule="ece <= 0.03",
            outcome="pass",
            limit=0.03,
            message="upper bound below the limit",
            estimate=Estimate(
                name="ece",
                value=0.0151,
                low=0.0,
                high=0.029996,
                level=0.9,
                sided="each",
                n=4000,
                null=0.014,
                null_high=0.02,
            ),
        ),
        Check(
            rule="accuracy >= 0.9",
            outcome="fail",
            limit=0.9,
            estimate=Estimate(name="accuracy", value=0.89998, low=0.8, high=0.89999, level=0.9, n=4000),
        ),
    ]
    for i in range(slices):
        outcome = outcomes[i % 4]
        estimate = Estimate(
            name="ece", scope=f"site={i}", value=0.05, low=0.01, high=0.09, level=0.9, sided="each", n=300
        )
        checks.append(
            Check(
                rule="ece <= 0.06",
                outcome=outcome,  # type: ignore[arg-type]
                scope=f"site={i}",
                limit=0.06,
                estimate=None if outcome == "not_run" else estimate,
                message="n = 12 is below min_n = 200" if outcome == "not_run" else "the interval holds the limit",
                n_needed=1234 if outcome == "inconclusive" else None,
                fatal=i != 2,
            )
        )
    return Result(command="check", estimates=[c.estimate for c in checks if c.estimate], checks=checks)


def everything() -> Result:
    """One plot of each sort."""
    classes = [reliability(f"class {k}", f"class {k}, n = {100 + k}", "Reliability per class") for k in range(6)]
    strips = [histogram(f"class {k}") for k in range(6)]
    return Result(
        command="metrics",
        estimates=metrics().estimates,
        plots=[
            reliability(),
            histogram(),
            *classes,
            *strips,
            heat(),
            density(),
            layers(),
            *training(),
            power(),
            forest(),
        ],
    )


def odd() -> dict[str, Result]:
    """Results that are hard to draw: nothing, nulls, many, strange names, extreme sizes, broken plots."""
    empty_plots = [
        Plot(name="no curves"),
        Plot(
            name="nulls", curves=[Curve(label="n", kind=k, x=[0, 1], y=[None, float("nan")]) for k in ("line", "bars")]
        ),  # type: ignore[arg-type]
        Plot(name="no z", kind="heat"),
        Plot(name="null z", kind="heat", x=[1, 2], y=[1], z=[[None, None]]),
        Plot(name="one point", curves=[Curve(label="", kind="points", x=[1], y=[1])]),
        Plot(
            name="log of nothing",
            xscale="log",
            yscale="log",
            curves=[Curve(label="z", kind="line", x=[0, -1], y=[0, -2])],
        ),
        Plot(name="band", curves=[Curve(label="b", kind="band", x=[0, 1], low=[0, None], high=[1, 1])]),
        Plot(name="orphan", under="nothing", curves=[Curve(label="b", kind="bars", x=[0], y=[1], width=[1])]),
        Plot(name="short", curves=[Curve(label="s", kind="line", x=[0, 1, 2], y=[1])]),
        Plot(
            name="all kinds",
            labels=["a", "b"],
            curves=[
                Curve(label=k, kind=k, x=[] if k == "hline" else [0, 1], y=[1, 2], low=[0, 1], high=[2, 3])
                for k in ("line", "band", "bars", "steps", "points", "vline", "hline")
            ],
        ),  # type: ignore[arg-type]
        Plot(
            name="$x_{1 & <b>",
            title="a $ b $ c_{",
            xlabel="$",
            labels=["$a", "b\nc"],
            curves=[Curve(label="$q$ <&>", kind="bars", x=[0, 1], y=[1, 2])],
        ),
    ]
    names = ["ünïcödé 中文 🎯", "a|b`c*d_e<f>", "\x1b[31mred\x1b[0m\nline", "", "x" * 200, "@someone #12", "\udcff"]
    sizes = [0.0, -0.0, 1e-300, 1e300, -1e15, 123456789.0, 5e-324, 1.0, -1e-9, 0.1 + 0.2]
    return {
        "empty": Result(command="metrics"),
        "nulls": Result(
            command="metrics", estimates=[Estimate(name="ece", value=None), Estimate(name="x", value=float("nan"))]
        ),
        "many": Result(
            command="metrics",
            estimates=[
                Estimate(
                    name=f"m{i % 10}",
                    scope=f"class={i // 10}",
                    value=i / 7,
                    low=i / 8,
                    high=i / 6,
                    level=0.95,
                    how="a long story " * 9,
                )
                for i in range(500)
            ],
        ),
        "names": Result(
            command="metrics",
            estimates=[Estimate(name=n, scope=n, value=0.5, how=n, unit=n) for n in names],
            notes=names,
            facts={"kind": names[0]},
            tables=[Table(name=n, columns=names, rows=[names], title=n) for n in names],
            checks=[Check(rule=n, outcome="fail", scope=n, message=n) for n in names],
            artefacts={"x": names[0]},
        ),
        "sizes": Result(
            command="metrics",
            estimates=[
                Estimate(name=f"v{i}", value=v, low=v - abs(v) / 3, high=v + abs(v) / 3, level=0.95)
                for i, v in enumerate(sizes)
            ]
            + [Estimate(name=f"w{i}", value=v) for i, v in enumerate(sizes)]
            + [
                Estimate(name="one", value=1.0, low=0.5, level=0.95, sided="lower"),
                Estimate(name="same", value=1.0, low=1.0, high=1.0, level=0.9),
            ],
            tables=[
                Table(name="t", columns=["a", "b"], rows=[[v, i] for i, v in enumerate(sizes)] + [[None], [True, 1, 2]])
            ],
        ),
        "plots": Result(command="metrics", plots=empty_plots),
    }
