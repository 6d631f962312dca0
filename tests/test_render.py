"""Every format: golden text, options that have an effect, odd results, any encoding and width."""

from __future__ import annotations

import csv as csv_module
import dataclasses
import io
import json
import os
import sys
import xml.etree.ElementTree
from pathlib import Path

import pytest
import render_cases as cases

from calibcli import render
from calibcli.core import number_format
from calibcli.core.figure_data import Curve, Plot
from calibcli.core.result import Estimate, Result, Table
from calibcli.render import terminal
from calibcli.render.formats import csv, markdown, table
from calibcli.render.table_contents import Detail

GOLDEN = Path(__file__).parent / "golden"
TEXTS = {
    "metrics.txt": lambda: table.render(cases.metrics()),
    "metrics.ascii.txt": lambda: table.render(cases.metrics(), "ascii"),
    "scale.txt": lambda: table.render(cases.scale()),
    "check.txt": lambda: table.render(cases.gate(6)),
    "metrics.md": lambda: markdown.render(cases.metrics()),
    "check.md": lambda: markdown.render(cases.gate(6)),
    "metrics.csv": lambda: csv.render(cases.metrics()),
    "check.csv": lambda: csv.render(cases.gate(6)),
    "plots.txt": lambda: "\n".join(
        line
        for plot in [cases.density(), cases.layers(), *cases.training(), cases.power(), cases.forest(), cases.heat()]
        for line in [*table.diagram(plot, None, 80), ""]
    ),
}


@pytest.mark.parametrize("name", TEXTS)
def test_golden(name: str) -> None:
    """CALIB_GOLDEN=write writes the files again; read the difference before committing it."""
    found, path = TEXTS[name](), GOLDEN / name
    if os.environ.get("CALIB_GOLDEN") == "write":
        path.write_bytes(found.encode())
    assert found == path.read_bytes().decode()


@pytest.mark.parametrize("name", ["table", "json", "markdown", "csv"])
@pytest.mark.parametrize("case", [*cases.odd(), "metrics", "scale", "gate", "everything"])
def test_every_text_format_takes_every_result(case: str, name: str) -> None:
    result = cases.odd()[case] if case in cases.odd() else getattr(cases, case)()
    text = render.text(result, name)
    assert text == render.text(result, name)
    assert text.endswith("\n")
    if name == "table":
        assert "\x1b" not in text
        assert all(line == line.rstrip() for line in text.splitlines())
    if name == "json":
        json.loads(text)


def test_tables_say_what_the_json_says() -> None:
    result = cases.metrics()
    text = table.render(result)
    for estimate in result.estimates:
        assert f"\n{estimate.name} " in text
    assert "no valid interval: the maximum of noisy bins" in text
    assert "2 rows have probability 0" in text
    for note in result.notes:
        assert f"note: {note}" in text


def test_off_a_terminal_nothing_is_wrapped_or_cut() -> None:
    name = "metric" * 40
    wide = Result(
        command="x",
        estimates=[Estimate(name=name, value=1)],
        tables=[Table(name="t", columns=["a"], rows=[["b" * 500]])],
    )
    lines = table.render(wide).splitlines()
    assert any(line.startswith(name + " ") for line in lines)
    assert "b" * 500 in lines
    many = cases.odd()["many"]
    assert sum(" class=" in line for line in table.render(many).splitlines()) == len(many.estimates)


def test_groups_of_slices_stand_apart() -> None:
    estimates = [Estimate(name=n, scope=scope, value=0.5) for n in ("ece", "nll") for scope in ("site=A", "site=B")]
    lines = table.render(Result(command="x", estimates=estimates)).splitlines()
    rows = [line.split()[:2] for line in lines[4:]]
    assert rows == [["ece", "site=A"], ["nll", "site=A"], [], ["ece", "site=B"], ["nll", "site=B"]]


def test_before_and_after_share_a_row() -> None:
    row = next(line for line in table.render(cases.scale()).splitlines() if line.startswith("ece"))
    assert row.split() == ["ece", "0.0611", "[0.0411,", "0.0811]", "0.0212", "[0.0012,", "0.0412]", "lower"]


def test_before_and_after_of_several_things() -> None:
    estimates = [
        Estimate(name=name, scope=f"{loss} {phase}", value=value)
        for loss in ("ce", "focal")
        for phase, value in (("before", 0.5), ("after", 0.25))
        for name in ("nll", "ece")
    ]
    text = table.render(
        Result(command="fit", estimates=[*estimates, Estimate(name="ece", scope="before the flood", value=1)])
    )
    rows = [line.split() for line in text.splitlines()[4:9]]
    assert rows == [
        ["nll", "ce", "0.5000", "0.2500"],
        ["ece", "ce", "0.5000", "0.2500"],
        [],
        ["nll", "focal", "0.5000", "0.2500"],
        ["ece", "focal", "0.5000", "0.2500"],
    ]
    assert "before the flood" in text


def test_names_cannot_draw_on_a_terminal() -> None:
    result = cases.odd()["names"]
    for name in ("table", "markdown"):
        text = render.text(result, name)
        assert "\x1b" not in text
        assert "red" in text


def test_columns_align_for_wide_letters() -> None:
    sheet = table.render(
        Result(command="x", estimates=[Estimate(name=n, value=0.5) for n in ("中文", "abcd", "e\u0301bcd")])
    )
    assert len({terminal.width(line) for line in sheet.splitlines()[3:]}) == 1


def test_facts_take_a_line_or_a_line_each() -> None:
    few = table.render(Result(command="x", facts={"n": 3, "kind_of": "logits", "none": None, "deep": [1]}))
    assert few.splitlines()[1] == "n: 3 · kind of: logits"
    many = table.render(Result(command="x", facts={f"fact{i}": "long " * i for i in range(1, 12)}))
    assert many.splitlines()[1:3] == ["  fact1   long", "  fact2   long long"]


# reliability diagram in the terminal


@pytest.mark.parametrize("width", [40, 60, 80, 100, 132])
def test_diagrams_keep_to_the_width(width: int) -> None:
    for plot in cases.everything().plots:
        if not plot.under and width >= 60:
            for line in table.diagram(plot, None, width)[1:]:
                assert terminal.width(line) <= width, plot.name


def test_reliability_rows() -> None:
    lines = table.diagram(cases.reliability(), cases.histogram(), 80)
    row = next(line for line in lines if line.startswith("0.67–0.73"))
    assert row.split()[:6] == ["0.67–0.73", "35", "▂", "0.574", "0.707", "+0.132*"]
    bar = row.split(" ", 9)[-1]
    assert bar.count("█") == pytest.approx(0.5745 * 38, abs=1)
    assert bar.count("█") + bar.count("░") == pytest.approx(0.7067 * 38, abs=1)
    assert lines[2].split() == ["0.00–0.20", "0"]  # empty bins in one row
    assert lines[-1] == "* accuracy outside the band: 90 % if calibrated"


def test_many_bins_are_merged_by_their_rows() -> None:
    left, width = [i / 90 for i in range(90)], [1 / 90] * 90
    accuracy = [0.2] * 90
    plot = Plot(
        name="r",
        curves=[
            Curve(label="", kind="bars", role="model", x=left, width=width, y=accuracy),
            Curve(label="", kind="bars", role="gap", x=left, width=width, base=accuracy, y=[0.9, *[0.3] * 89]),
        ],
    )
    counts = Plot(
        name="c", curves=[Curve(label="", kind="bars", role="count", x=left, width=width, y=[10, 1, 1] + [1] * 87)]
    )
    lines = table.diagram(plot, counts, 80)
    assert len(lines) == 2 + 30 + 1 + 1
    assert "each bar joins 3 of the 90 bins" in " ".join(lines[-2:])
    assert lines[2].split()[1:5] == ["12", "█", "0.200", "0.800"]  # (10 * 0.9 + 2 * 0.3) / 12


# CSV


def test_csv_is_rfc_4180_and_exact() -> None:
    result = cases.metrics()
    text = csv.render(result)
    assert text.count("\r\n") == len(result.estimates) + 1
    rows = list(csv_module.DictReader(io.StringIO(text)))
    assert [float(r["value"]) if r["value"] else None for r in rows] == [e.value for e in result.estimates]
    assert [r["how"] for r in rows] == [e.how for e in result.estimates]
    odd = list(csv_module.DictReader(io.StringIO(csv.render(cases.odd()["names"]), newline="")))
    assert [r["name"] for r in odd if not r["rule"]][2] == "\x1b[31mred\x1b[0m\nline"


def test_csv_of_a_gate_has_the_verdicts() -> None:
    rows = list(csv_module.DictReader(io.StringIO(csv.render(cases.gate(4)))))
    assert [r["verdict"] for r in rows] == ["pass", "fail", "pass", "fail", "inconclusive", "not_run"]
    assert rows[-1]["reason"] == "n = 12 is below min_n = 200"


# Markdown


def _cells(line: str) -> list[str]:
    """Cells of a GitHub table row: a pipe ends a cell unless a backslash precedes it."""
    cells, cell, escaped = [], "", False
    for c in line:
        if c == "|" and not escaped:
            cells.append(cell)
            cell = ""
        else:
            cell += c
        escaped = c == "\\" and not escaped
    return cells[1:]


@pytest.mark.parametrize("case", ["names", "sizes", "many"])
def test_markdown_tables_are_rectangular(case: str) -> None:
    text = markdown.render(cases.odd()[case])
    width = 0
    for line in text.splitlines():
        if line.startswith("|"):
            width = width or len(_cells(line))
            assert len(_cells(line)) == width, line
        else:
            width = 0


@pytest.mark.slow
def test_markdown_fits_and_says_what_it_cut() -> None:
    full = markdown.render(cases.odd()["many"], limit=10**9)
    assert len(full.encode()) > 30_000
    for limit in (60_000, 20_000, 3_000, 600):
        cut = markdown.render(cases.odd()["many"], limit)
        assert len(cut.encode()) <= limit
        assert ("cut" in cut) == (limit < len(full.encode()))
    assert len(markdown.render(cases.gate(2000)).encode()) <= 60_000
    huge = Result(command="x", notes=["ä" * 100_000])
    assert len(markdown.render(huge).encode()) <= 60_000


def test_markdown_does_not_call_people_or_run_html() -> None:
    text = markdown.render(Result(command="x", notes=["@someone <script> *a* _b_ | `c`"]))
    assert "@someone" not in text
    assert "\\<script>" in text
    assert "\\*a\\* \\_b\\_ \\| \\`c\\`" in text


# pictures


@pytest.mark.slow
@pytest.mark.parametrize("format", ["png", "svg", "pdf"])
def test_pictures_are_byte_identical(format: str) -> None:
    from calibcli.render import figure

    result = Result(command="x", plots=[cases.reliability(), cases.histogram(), cases.heat()])
    first = figure.render(result, format)
    assert first == figure.render(result, format)
    assert first.startswith({"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}[format])
    assert b"2026" not in first or format == "png"


def test_svg_has_the_data_and_the_words() -> None:
    from calibcli.render import figure

    svg = figure.render(Result(command="x", plots=[cases.forest(), cases.density()]), "svg").decode()
    root = xml.etree.ElementTree.fromstring(svg)
    words = " ".join("".join(t.itertext()) for t in root.iter("{http://www.w3.org/2000/svg}text"))
    for word in ("brier", "difference (negative: B is better)", "eigenvalue", "density, 10 probes, ± 2 se"):
        assert word in words


def test_settings_of_the_user_change_nothing(tmp_path: Path) -> None:
    import matplotlib

    from calibcli.render import figure

    result = Result(command="x", plots=[cases.forest()])
    plain = figure.render(result, "svg")
    with matplotlib.rc_context({"axes.facecolor": "red", "font.size": 20, "svg.fonttype": "path"}):
        assert figure.render(result, "svg") == plain
        assert matplotlib.rcParams["font.size"] == 20


@pytest.mark.parametrize("case", ["empty", "names", "plots", "sizes"])
@pytest.mark.one_in(3)
def test_pictures_of_odd_results(case: str) -> None:
    from calibcli.render import figure

    assert len(figure.render(cases.odd()[case], "png")) > 500


def test_gaps_within_the_band_are_drawn_faintly() -> None:
    from calibcli.render.figure import panel as marks

    plot = cases.reliability()
    gap = next(c for c in plot.curves if c.role == "gap")
    loud = [i for i, (n, usual) in enumerate(zip(cases.COUNTS, marks.by_chance(plot, gap))) if n and not usual]
    assert loud == [10, 12]  # the bins that the terminal marks with a star
    assert marks.by_chance(cases.layers(), cases.layers().curves[0]) is None


def test_curves_of_one_role_are_told_apart() -> None:
    from calibcli.render import figure

    def colours(roles: list[str]) -> set[str]:
        curves = [Curve(label=r + str(i), kind="line", role=r, x=[0, 1], y=[i, i]) for i, r in enumerate(roles)]
        svg = figure.render(Result(command="x", plots=[Plot(name="p", curves=curves)]), "svg").decode()
        return {c for c in figure.style.PALETTE if c.lower() in svg}

    assert len(colours(["model", "model", "model"])) == 3
    assert len(colours(["", "", "x"])) == 3
    assert len(colours(["model", "after"])) == 1  # both stand for the thing itself


def test_panels_share_rows_and_say_things_once() -> None:
    from calibcli.render import figure

    def words(*plots: Plot) -> tuple[list[str], float]:
        root = xml.etree.ElementTree.fromstring(figure.render(Result(command="x", plots=plots), "svg"))
        found = ["".join(t.itertext()) for t in root.iter("{http://www.w3.org/2000/svg}text")]
        return found, float(root.attrib["height"].removesuffix("pt"))

    def panel(i: int, label: str, group: str = "") -> Plot:
        curve = Curve(label=label, kind="line", x=[1, 2], y=[1, 2])
        return Plot(name=f"p{i}", title=f"Title {i}", ylabel="Ritz value", curves=[curve], group=group)

    found, one = words(panel(1, "Ritz value ± residual"))
    assert found.count("Ritz value ± residual") == 1  # the axis, and no legend
    assert "Ritz value" not in found
    assert words(panel(1, "Ritz"))[0].count("Ritz") == 0
    assert "other" in words(panel(1, "other"))[0]
    assert words(*(panel(i, "Ritz") for i in range(2)))[1] == pytest.approx(one, rel=0.01)
    assert words(*(panel(i, "Ritz") for i in range(4)))[1] < 2.6 * one
    long = "a title that is much longer than the panel of a group is wide"
    found, _ = words(*(dataclasses.replace(panel(i, "Ritz", "G"), title=long) for i in range(3)))
    assert long not in found
    assert any(w.startswith("a title that is much") for w in found)
    assert figure._wrapped("inverse_focal:gamma=2+trace:weight=0.01,kind=ggn") == (
        "inverse_focal:gamma=2+\ntrace:weight=0.01,kind=ggn"
    )


@pytest.mark.slow
def test_everything_can_be_drawn() -> None:
    from calibcli.render import figure

    svg = figure.render(cases.everything(), "svg")
    assert len(svg) < 1_000_000
    root = xml.etree.ElementTree.fromstring(svg)
    words = " ".join("".join(t.itertext()) for t in root.iter("{http://www.w3.org/2000/svg}text"))
    for plot in cases.everything().plots:
        if not plot.under:
            assert plot.title in words


# encodings and terminals


def test_json_escapes_are_the_same_text() -> None:
    text = '{"a": "é 中 🎯"}'
    assert terminal.escape(text).isascii()
    assert json.loads(terminal.escape(text)) == json.loads(text)


class Terminal(io.StringIO):
    encoding = "utf-8"  # type: ignore[assignment]

    def isatty(self) -> bool:
        return True


def shown(
    monkeypatch: pytest.MonkeyPatch,
    result: Result,
    columns: int = 100,
    encoding: str = "utf-8",
    detail: Detail = "few",
    **env: str,
) -> str:
    out = Terminal()
    monkeypatch.setattr(Terminal, "encoding", encoding)
    monkeypatch.setattr(sys, "stdout", out)
    for name in ("NO_COLOR", "FORCE_COLOR", "CLICOLOR_FORCE", "TERM", "COLORTERM"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"TERM": "xterm-256color", "COLUMNS": str(columns), **env}.items():
        monkeypatch.setenv(name, value)
    render.show(result, "table", detail)
    return out.getvalue()


def test_terminal_has_colour_and_respects_no_color(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "\x1b[" in shown(monkeypatch, cases.gate())
    plain = shown(monkeypatch, cases.gate(), NO_COLOR="1")
    assert "\x1b[3" not in plain
    assert "FAIL: 2 fail, 1 inconclusive, 2 pass" in plain
    assert shown(monkeypatch, cases.gate(), TERM="dumb") == table.plain(cases.gate())


def test_a_pipe_has_colour_where_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Terminal, "isatty", lambda self: False)
    assert shown(monkeypatch, cases.gate()) == table.plain(cases.gate())
    assert "\x1b[3" in shown(monkeypatch, cases.gate(), FORCE_COLOR="1")
    assert "\x1b[3" in shown(monkeypatch, cases.gate(), CLICOLOR_FORCE="1")
    assert "\x1b[3" not in shown(monkeypatch, cases.gate(), CLICOLOR_FORCE="0")


@pytest.mark.parametrize("columns", [64, 80, 100, 132, 200])
def test_terminal_keeps_to_its_width(monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    text = shown(monkeypatch, cases.metrics(), columns, detail="all", NO_COLOR="1")
    assert max(map(terminal.width, text.splitlines())) <= columns
    assert ("not shown at this width" in text) == (columns <= 80)


@pytest.mark.parametrize("columns", [20, 40, 60, 80, 100])
def test_no_width_cuts_a_number_or_a_reason(monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    for result in (cases.metrics(), cases.gate(6)):
        words = " ".join(shown(monkeypatch, result, columns, detail="all", NO_COLOR="1").split())
        judged = [(c.estimate, c.limit) for c in result.checks if c.estimate]
        for estimate, limit in judged or [(e, None) for e in result.estimates]:
            found = number_format.shown(estimate, limit)
            assert f" {found.value} " in words
            assert found.interval in words
    words = " ".join(shown(monkeypatch, cases.metrics(), columns, detail="all", NO_COLOR="1").split())
    for word in ["no", "valid", "interval:", "the", "maximum", "of", "noisy", "bins"]:
        assert word in words


def test_terminal_of_ascii_only(monkeypatch: pytest.MonkeyPatch) -> None:
    text = shown(monkeypatch, cases.metrics(), encoding="ascii")
    assert text.isascii()
    assert "# accuracy" in text


@pytest.mark.parametrize("case", list(cases.odd()))
def test_terminal_takes_every_result(monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    assert shown(monkeypatch, cases.odd()[case])


def test_the_diagram_of_one_class_does_not_speak_of_accuracy() -> None:
    plot = dataclasses.replace(cases.reliability(), xlabel="P(y = 1)", ylabel="share of y = 1")
    lines = table.diagram(plot, cases.histogram(), 80)
    assert lines[1].split()[:4] == ["bin", "rows", "share", "mean"]
    assert not [line for line in lines[1:] if "accuracy" in line or "confidence" in line]


def test_rules_wrap_between_words() -> None:
    assert terminal.wrap("accuracy >= 0.99", 13) == ["accuracy >=", "0.99"]
    assert terminal.wrap("|gap| <= 0.001", 13) == ["|gap| <=", "0.001"]
    assert terminal.wrap("ece:of=positive <= 0.02", 12) == ["ece:", "of=positive", "<= 0.02"]
    assert terminal.wrap("if calibrated (95 %)", 14) == ["if calibrated", "(95 %)"]
    assert terminal.wrap("abcdefghij", 4) == ["abcd", "efgh", "ij"]
