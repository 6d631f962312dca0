"""Pictures: nothing is cut off, no label meets another or a curve, text is readable in a column, one message each."""

from __future__ import annotations

import contextlib
import io
import re
import threading
from collections import Counter
from collections.abc import Iterator
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest
import render_cases as cases

import calibcli
from calibcli import render
from calibcli.cli.app import main
from calibcli.core.figure_data import Curve, Plot
from calibcli.core.result import Result
from calibcli.gate.check import rules_plot
from calibcli.metrics.report import ReportOptions, report
from calibcli.render import figure
from calibcli.render.figure import style
from calibcli.scores.predictions import Predictions

LOOKS = ("screen", "paper")
COLUMN, PAGE = 3.4, 6.9  # inches


def rows(n: int, sharp: float, k: int = 2, seed: int = 0) -> tuple[Any, Any]:
    """Log-odds `sharp` times as large as they should be."""
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(n, k)) * 1.6
    p = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
    return z * sharp, (p.cumsum(axis=1) > rng.random((n, 1))).argmax(axis=1)


def of(z: Any, y: Any, *specs: str, classes: Any = None, slices: Any = None, **options: Any) -> Result:
    more = {"classes": classes} if classes else {}
    predictions = Predictions.of(z, y, **more, slices=slices or {})
    return report(predictions, ReportOptions(specs=specs or ("ece",), **options))


ROOT = Path(__file__).parent.parent
SAMPLE = ROOT / "sample_data"


def stored(name: str) -> Result:
    """A study of the documents."""
    return Result.from_json((ROOT / "docs" / "studies" / f"{name}.json").read_bytes())


def told(line: str) -> Result:
    """What a command finds."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        main([*line.split(), "--json", "-q"])
    return Result.from_json(out.getvalue())


NAMES = ["benign", "malignant (grades II and III)"]
SITES = np.array(["Basel", "Zürich", "Genève and area", "Bern", "St. Gallen", "Ticino"])
MADE = {
    "overconfident": lambda: of(*rows(800, 3, 10)),
    "underconfident": lambda: of(*rows(800, 0.4)),
    "calibrated": lambda: of(*rows(1500, 1)),
    "saturated": lambda: of(*rows(500, 40, 4), "ece:bins=30"),
    "few": lambda: of(*rows(12, 1, 3)),
    "names": lambda: of(*rows(900, 2), classes=NAMES),
    "bars": lambda: of(*rows(800, 2, 3), curve="bars"),
    "smooth": lambda: of(*rows(800, 2, 3), curve="smooth"),
    "no ece": lambda: of(*rows(800, 2, 3), "nll"),
    "sites": lambda: of(*rows(900, 2), slices={"site": SITES[np.arange(900) % 6]}),
    "classes": lambda: of(*rows(700, 2, 7), per_class=True),
    "plan": lambda: told("plan --max ece=0.05 --min accuracy=0.9"),
    "compare": lambda: calibcli.compare(of(*rows(600, 3, 4)), of(*rows(600, 1, 4))),
    "outside": lambda: told(f"ood {SAMPLE / 'test.npz'} {SAMPLE / 'validation.npz'}"),
    **{name: lambda name=name: stored(name) for name in ("focal-map", "fts", "overfit", "step-size")},
    "everything": cases.everything,
    "scale": cases.scale,
}


@cache
def made(name: str) -> Result:
    return MADE[name]()


def texts(drawn: Any) -> Iterator[tuple[str, float, Any]]:
    """Every text that shows: what it says, its size, its box in pixels."""
    from matplotlib.text import Text

    renderer, unseen = drawn.canvas.get_renderer(), _unseen(drawn)
    for found in drawn.findobj(lambda artist: isinstance(artist, Text)):
        if found.get_visible() and found.get_text().strip() and id(found) not in unseen:
            yield found.get_text(), found.get_fontsize(), found.get_window_extent(renderer)


def _unseen(drawn: Any) -> set[int]:
    """Tick labels that are not drawn, such as those beyond the limits of their axis."""
    found = set()
    for axes in [*drawn.axes, *(child for parent in drawn.axes for child in parent.child_axes)]:
        for axis in (axes.xaxis, axes.yaxis):
            shown = {id(tick) for tick in axis._update_ticks()}
            every = [*axis.majorTicks, *axis.minorTicks]
            found |= {id(label) for tick in every if id(tick) not in shown for label in (tick.label1, tick.label2)}
    return found


@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("name", MADE)
@pytest.mark.one_in(21)
def test_no_label_meets_another_or_is_cut_off(name: str, look: str) -> None:
    for title, part in figure.parts(made(name)).items():
        with figure.drawn(part, style.LOOKS[look]) as drawn:
            drawn.draw_without_rendering()
            found = list(texts(drawn))
            assert found
            page = drawn.get_tightbbox(drawn.canvas.get_renderer())
            page = page.transformed(drawn.dpi_scale_trans)
            for said, _, box in found:
                assert page.x0 - 1 <= box.x0 and box.x1 <= page.x1 + 1, said  # noqa: PT018
                assert page.y0 - 1 <= box.y0 and box.y1 <= page.y1 + 1, said  # noqa: PT018
            for (one, _, a), (other, _, b) in combinations(found, 2):
                assert not a.padded(-0.5).overlaps(b.padded(-0.5)), (title, one, other)
                level = abs(a.y0 + a.y1 - b.y0 - b.y1) < a.height
                near = level and max(a.x0, b.x0) - min(a.x1, b.x1) < drawn.dpi / 48
                numbers = re.fullmatch(r"[\d.,-]+ [\d.,-]+", f"{one} {other}")
                assert not (near and numbers), (title, one, other)  # which would be read as one


DIAGRAMS = ("overconfident", "underconfident", "calibrated", "saturated", "few", "names", "bars", "smooth", "sites")


GROUPS = ("plan", "compare", "outside", "fts", "overfit", "focal-map", "step-size")


@pytest.mark.parametrize("name", [*DIAGRAMS, *GROUPS])
@pytest.mark.one_in(5)
def test_a_paper_has_one_column_and_text_of_seven_points(name: str) -> None:
    for part in figure.parts(made(name)).values():
        with figure.drawn(part, style.LOOKS["paper"]) as drawn:
            drawn.draw_without_rendering()
            assert 2.5 < drawn.get_tightbbox().width < COLUMN
            assert min(size for _, size, _ in texts(drawn)) >= 7


def test_before_and_after_are_beside_each_other() -> None:
    before = of(*rows(600, 3, 4))
    plots = []
    for scope in ("before", "after"):
        plots += [_marked(plot, scope) for plot in before.plots]
    with figure.drawn(Result(command="scale", plots=plots), style.LOOKS["paper"]) as drawn:
        drawn.draw_without_rendering()
        left, right = (axes for axes in drawn.axes if axes.get_title(loc="left"))
        assert left.get_position().y0 == right.get_position().y0
        assert COLUMN < drawn.get_tightbbox().width < PAGE


def _marked(plot: Any, scope: str) -> Any:
    from dataclasses import replace

    under = plot.under and f"{plot.under}_{scope}"
    return replace(plot, name=f"{plot.name}_{scope}", under=under, about=None if plot.about is None else scope)


@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("name", DIAGRAMS)
@pytest.mark.one_in(5)
def test_what_is_written_inside_covers_no_curve(name: str, look: str) -> None:
    """By the points of each line; small multiples are as small as they are."""
    plots = [p for p in made(name).plots if not p.group]
    with figure.drawn(
        Result(command="metrics", estimates=made(name).estimates, plots=plots), style.LOOKS[look]
    ) as drawn:
        drawn.draw_without_rendering()
        axes = drawn.axes[0]
        inside = [axes.get_legend(), *axes.texts]
        boxes = [one.get_window_extent() for one in inside if one is not None]
        words = " ".join(said for said, _, _ in texts(drawn))
        assert "ECE" in words
        for line in axes.lines:
            xy = np.asarray(line.get_xydata(), float)
            at = np.linspace(0, len(xy) - 1, 5000)
            dense = np.stack([np.interp(at, np.arange(len(xy)), xy[:, i]) for i in (0, 1)], 1)
            dots = axes.transData.transform(dense)
            for box in boxes:
                assert not (((dots > box.min) & (dots < box.max)).all(axis=1)).any()


@pytest.mark.slow
def test_a_picture_has_one_message() -> None:
    """The curve or the bins, never both; the gap beyond chance only where there is one."""

    def words(name: str) -> set[str]:
        with figure.drawn(made(name)) as drawn:
            return {said for said, _, _ in texts(drawn)}

    assert {"isotonic regression", "gap beyond chance", "if calibrated (90 %)"} <= words("overconfident")
    assert "accuracy" in words("bars")
    assert not {"gap", "smoothed (90 %)"} & words("overconfident")
    assert not {"gap", "isotonic regression"} & words("smooth")
    assert not {"isotonic regression", "smoothed (90 %)"} & words("bars")
    assert f"P({NAMES[1]})" in words("names")
    estimate = made("overconfident")["ece"]
    assert any(said.startswith(f"ECE {estimate.value:.3f}"[:8]) for said in words("overconfident"))
    assert not any("ECE" in said and not said.startswith(("smooth ECE", "binned ECE")) for said in words("smooth"))


@pytest.mark.regression
def test_a_smooth_curve_has_the_number_that_belongs_to_it() -> None:
    """That is the smooth ECE; where it was not measured, the binned one is called so."""
    z, y = rows(900, 2.5)

    def inside(*specs: str) -> str:
        predictions = Predictions.of(z, y)
        asked = ReportOptions(diagram=True, curve="smooth", specs=specs or None)
        result = report(predictions, asked)
        with figure.drawn(result) as drawn:
            (said,) = (said for said, _, _ in texts(drawn) if "ECE" in said)
        name = "smece" if said.startswith("smooth ECE") else "ece"
        assert float(said.split("ECE ")[1].split(" ")[0]) == pytest.approx(result[name].value, abs=6e-4)
        return said.partition(" 0")[0]

    assert inside() == "smooth ECE"
    assert inside("smece", "ece") == "smooth ECE"
    assert inside("ece") == "binned ECE"


@pytest.mark.regression
def test_the_picture_of_a_focal_temperature_has_its_heat_map(tmp_path: Path) -> None:
    """What docs/papers.md and the demo write with one `-o FILE.svg`: both diagrams, and the map of T and gamma."""
    files = [str(SAMPLE / "validation.npz"), "--test", str(SAMPLE / "test.npz")]
    with contextlib.redirect_stdout(io.StringIO()):
        main(["scale", *files, "--method", "focal-temperature", "-q", "-o", str(tmp_path / "s.json")])
    result = Result.from_json((tmp_path / "s.json").read_bytes())
    kept = figure.main(result).plots
    assert [p.kind for p in kept if not p.under] == ["xy", "xy", "heat"]


def test_a_band_over_bars_is_drawn_as_brackets() -> None:
    """An area behind bars that are not opaque would look like a second series of bars."""
    with figure.drawn(made("bars")) as drawn:
        axes = drawn.axes[0]
        opaque = {round(bar.get_alpha() or 1.0, 2) for bar in axes.patches}
        assert opaque == {0.45, 1.0}  # accuracy and the gaps alone
        grey = [c for c in axes.collections if np.allclose(c.get_colors()[0][:3], _rgb(style.ROLES["null"]))]
        assert len(grey) == 3  # whiskers and their two ends


@pytest.mark.slow
def test_the_picture_of_a_gate_shows_its_rules_before_the_diagram(tmp_path: Path) -> None:
    limits: dict[str, Any] = {"max": {"ece": 0.06, "nll": 0.3}, "min": {"accuracy": 0.85}}
    data = np.load(SAMPLE / "test.npz")
    result = calibcli.check(data["logits"], data["labels"], **limits)
    plots = rules_plot(result.checks)
    verdicts = {plot.labels[0]: plot.curves[1].label for plot in plots}
    assert verdicts == {"ece <= 0.06": "INCONCLUSIVE", "nll <= 0.3": "FAIL", "accuracy >= 0.85": "PASS"}
    for check, plot in zip(result.checks, plots, strict=True):
        limit, number = plot.curves
        assert (plot.labels, list(limit.y), list(number.y)) == (
            [check.rule],
            [check.limit],
            [float(check.estimate or 0)],
        )
    path = tmp_path / "check.json"
    argv = [
        "check",
        str(SAMPLE / "test.npz"),
        "--max",
        "ece=0.06",
        "-q",
        "-o",
        str(path),
        "-o",
        str(tmp_path / "c.png"),
    ]
    with contextlib.redirect_stdout(io.StringIO()):
        main(argv)
    drawn = figure.main(Result.from_json(path.read_bytes()))
    assert [p.name for p in drawn.plots] == ["rules", "reliability", "reliability_rows"]


def test_lines_are_told_apart_without_their_hue() -> None:
    """At most three of one pattern in a panel."""
    curves = [Curve(label=f"c{i}", kind="line", x=[0.0, 1.0], y=[0.0, float(i)]) for i in range(9)]
    with figure.drawn(Result(command="ood", plots=[Plot(name="p", curves=curves)])) as drawn:
        lines = drawn.axes[0].lines
        assert len({(line.get_color(), line._unscaled_dash_pattern) for line in lines}) == 9
        counts = Counter(line._unscaled_dash_pattern for line in lines)
        assert max(counts.values()) <= 3


def test_the_gap_beyond_chance_is_what_leaves_the_band() -> None:
    [plot] = [p for p in made("overconfident").plots if not p.under]
    line, band = (next(c for c in plot.curves if c.role == role) for role in ("corp", "corp_null"))
    low = np.interp(line.x, band.x, np.array(band.low, float))
    assert (np.array(line.y, float) < low - 0.02).any()
    with figure.drawn(made("overconfident")) as drawn:
        filled = [c for c in drawn.axes[0].collections if np.allclose(c.get_facecolor()[0][:3], _rgb(style.BEYOND))]
        assert len(filled) == 1
        depth = max(float(np.ptp(path.vertices[:, 1])) for path in filled[0].get_paths())
        assert depth > 0.05


def _rgb(colour: str) -> tuple[float, ...]:
    from matplotlib.colors import to_rgb

    return to_rgb(colour)


@pytest.mark.slow
def test_a_folder_has_a_file_for_each_figure_and_a_picture_the_main_one(tmp_path: Path) -> None:
    result = made("sites")
    render.write(result, tmp_path / "all/")
    assert {p.name for p in (tmp_path / "all").glob("*.png")} == {"reliability.png", "reliability_by_site.png"}
    assert len(figure.main(cases.everything()).plots) < len(cases.everything().plots)
    assert [p.name for p in figure.main(result).plots] == [p.name for p in result.plots]  # slices were asked for
    render.write(result, tmp_path / "a.svg", "paper")
    wide = float((tmp_path / "a.svg").read_text().split('width="')[1].split("pt")[0]) / 72
    assert wide < COLUMN


@pytest.mark.slow
def test_the_command_takes_a_curve_and_a_style(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    z, y = rows(300, 2, 3)
    np.savez(tmp_path / "t.npz", logits=z, labels=y)
    sizes = {}
    for curve in ("corp", "bars", "smooth"):
        for look in LOOKS:
            file = tmp_path / f"{curve}_{look}.svg"
            line = ["metrics", str(tmp_path / "t.npz"), "-q", "--curve", curve, "--style", look, "-o", str(file)]
            assert main(line) == 0
            sizes[curve, look] = file.read_bytes()
    assert len(set(sizes.values())) == 6
    assert main(["metrics", str(tmp_path / "t.npz"), "--curve", "spline"]) == 2
    assert main(["metrics", str(tmp_path / "t.npz"), "--style", "poster"]) == 2
    capsys.readouterr()


def test_latex_is_escaped() -> None:
    from calibcli.render.formats import latex

    assert latex.text(r"a_b & 5 % of {x} ~ \cmd #1 $2^3 ≤ λ") == (
        r"a\_b \& 5\,\% of \{x\} \textasciitilde{} \textbackslash{}cmd \#1 \$2\textasciicircum{}3 $\le$ $\lambda$"
    )
    for name in ("overconfident", "scale", "everything"):
        written = latex.render(made(name))
        assert written.count(r"\begin{tabular}") == written.count(r"\end{tabular}") == written.count(r"\bottomrule") > 0
        rows_ = [line for line in written.splitlines() if line.endswith(r"\\")]
        assert rows_ and not any(line.startswith(("[", "*")) for line in rows_)  # noqa: PT018


@pytest.mark.regression
def test_threads_take_turns_with_the_settings_of_matplotlib() -> None:
    from calibcli.render.figure.style import settings

    before, widths = matplotlib.rcParams["lines.linewidth"], list[float]()

    def other() -> None:
        with settings({"lines.linewidth": 9.0}):
            widths.append(matplotlib.rcParams["lines.linewidth"])

    thread = threading.Thread(target=other)
    with settings({"lines.linewidth": 7.0}):
        thread.start()
        thread.join(0.2)
        assert not widths
        assert matplotlib.rcParams["lines.linewidth"] == 7.0
    thread.join()
    assert (widths, matplotlib.rcParams["lines.linewidth"]) == ([9.0], before)


@pytest.mark.slow
@pytest.mark.regression
def test_threads_leave_the_settings_of_matplotlib_as_they_were(tmp_path: Path) -> None:
    import matplotlib.pyplot as plt

    result = calibcli.measure(*two_classes(), diagram=True)
    before, start = dict(matplotlib.rcParams), threading.Barrier(4)

    def draw(i: int) -> None:
        start.wait()
        for j in range(2):
            result.write(tmp_path / f"{i}{j}.png")
            plt.close(result.plot().figure)

    threads = [threading.Thread(target=draw, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {name for name, value in before.items() if matplotlib.rcParams[name] != value} == set()
    pictures = [path.read_bytes() for path in tmp_path.iterdir()]
    assert len(pictures) == 8
    assert len(set(pictures)) == 1


@pytest.mark.one_in(3)
@pytest.mark.regression
@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("look", ["dark_background", "default", "none"])
def test_ink_is_on_paper_in_every_style(own: bool, look: str) -> None:
    import matplotlib.pyplot as plt
    from matplotlib.colors import to_rgb

    with plt.style.context("dark_background" if look == "none" else look):
        _, axes = plt.subplots(facecolor="black" if look == "none" else None)
        if look == "none":
            axes.set_facecolor("none")
        drawn = calibcli.measure(*two_classes(), diagram=True).plot(axes if own else None)
        assert to_rgb(drawn.get_facecolor()) == (1, 1, 1)
        for text in drawn.get_legend().get_texts():
            assert sum(to_rgb(text.get_color())) < 1
        assert sum(to_rgb(drawn.figure.get_facecolor())) == (3 if not own or look == "default" else 0)
        plt.close("all")
    with plt.style.context("default"):
        _, axes = plt.subplots(facecolor="beige", subplot_kw={"facecolor": "beige"})
        calibcli.measure(*two_classes(), diagram=True).plot(axes)
        assert to_rgb(axes.get_facecolor()) == to_rgb("beige")  # light enough to be read
        plt.close("all")


@pytest.mark.regression
def test_bars_are_called_as_their_axis_is() -> None:
    p, y = two_classes()
    for result in (calibcli.measure(p, y), calibcli.measure(np.column_stack([1 - p, p]), y, per_class=True)):
        for plot in result.plots:
            bars = [c.label for c in plot.curves if c.kind == "bars" and c.role == "model"]
            assert bars in ([], [plot.ylabel])


def two_classes() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    p = rng.beta(0.7, 0.7, 300)
    return p, (rng.random(300) < p).astype(int)
