"""Results that are hard to draw: nothing, nulls, many, strange names, extreme sizes, broken plots."""

from __future__ import annotations

from calibcli.core.figure_data import Curve, Plot
from calibcli.core.result import Check, Estimate, Result, Table


def odd() -> dict[str, Result]:
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
