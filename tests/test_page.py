"""The page of a result: one file, nothing that runs or loads, every field, readable by all, and never large."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import re
from functools import cache
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import pytest
import render_cases as cases
from pages import Page

import calibcli
from calibcli import render
from calibcli.api.gating import report
from calibcli.cli.app import main
from calibcli.core.figure_data import Curve, Plot
from calibcli.core.result import Check, Estimate, Result, Table
from calibcli.render.page import MOST

ROOT = Path(__file__).parent.parent
SAMPLES = ROOT / "sample_data"
HOSTILE = "<img src=x onerror=alert(1)>"
CASES = {
    "metrics": cases.metrics,
    "scale": cases.scale,
    "gate": cases.gate,
    "everything": cases.everything,
    **{f"odd {name}": lambda name=name: cases.odd()[name] for name in cases.odd()},
}
TAGS = """html head meta title style body main section h1 h2 h3 p b small a div figure figcaption details summary
    table caption thead tbody tr th td dl dt dd ul li svg defs path use text tspan g rect clippath pattern"""
ATTRIBUTES = """lang charset name content http-equiv class id role tabindex aria-label aria-labelledby href scope
    aria-describedby viewbox width height d x y style transform clip-path patternunits shape-rendering"""


def page(result: Result) -> str:
    return render.text(result, "html")


@cache
def page_of(name: str) -> str:
    return page(CASES[name]())


@pytest.fixture(scope="module")
def found() -> dict[str, Result]:
    """One result of each command that a model has."""
    made = {}
    for name, argv in {
        "metrics": ["metrics", SAMPLES / "test.npz"],
        "scale": ["scale", SAMPLES / "validation.npz", "--test", SAMPLES / "test.npz"],
        "check": ["check", SAMPLES / "test.npz", "--max", "ece=0.2", "--max", "nll=0.3"],
        "curvature": ["curvature", SAMPLES / "model.safetensors", "--device", "cpu"],
    }.items():
        with contextlib.redirect_stdout(io.StringIO()) as out:
            main([*map(str, argv), "--json", "-q"])
        made[name] = Result.from_json(out.getvalue())
    return made


@pytest.mark.parametrize("name", CASES)
@pytest.mark.one_in(7)
def test_nothing_runs_and_nothing_is_loaded(name: str) -> None:
    """Only these elements and attributes; references go to the page itself; and no two things have one id."""
    source = page_of(name)
    tree = Page(source)
    assert {node.tag for node in tree.all()} - {""} <= set(TAGS.split())
    assert {key for node in tree.all() for key in node.attributes} <= set(ATTRIBUTES.split())
    ids = [node.attributes["id"] for node in tree.all() if "id" in node.attributes]
    assert len(ids) == len(set(ids))
    for node in tree.all():
        for key, value in node.attributes.items():
            pointed = re.findall(r"url\(#([^)]*)\)", value)
            if key in ("aria-labelledby", "aria-describedby"):
                pointed += value.split()
            if key == "href":
                assert value.startswith("#")
                pointed.append(value[1:])
            assert set(pointed) <= set(ids), (node.tag, key, value)
    style = tree.all("style")[0].text
    assert "url(" not in style
    assert "@import" not in style
    [policy] = [m.attributes["content"] for m in tree.all("meta") if "http-equiv" in m.attributes]
    assert policy == "default-src 'none'; style-src 'unsafe-inline'"


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", CASES)
def test_every_table_and_figure_can_be_read_out(name: str) -> None:
    tree = Page(page_of(name))
    ids = {node.attributes.get("id"): node for node in tree.all()}
    for table in tree.all("table"):
        assert table.all("caption") or name.startswith("odd")
        heads = table.all("th")
        assert heads
        assert all(th.attributes.get("scope") in ("col", "row") for th in heads)
        assert all(row.children[0].tag == "th" for row in table.all("tbody")[0].all("tr"))
    for figure in tree.all("figure"):
        [svg] = figure.all("svg")
        assert svg.attributes["role"] == "img"
        assert ids[svg.attributes["aria-labelledby"]].text.strip() or name.startswith("odd")
        assert ids[svg.attributes["aria-describedby"]].text.strip()
    for region in (node for node in tree.all("div") if "scroll" in node.attributes["class"].split()):
        assert region.attributes["tabindex"] == "0"
        assert region.attributes["aria-label"].strip() or name.startswith("odd")


@pytest.mark.slow
def test_a_figure_in_words_has_its_numbers() -> None:
    tree = Page(page(Result(command="x", plots=[cases.reliability(), cases.histogram(), cases.layers(), cases.heat()])))
    first, layers, heat = (figure.all("p")[0].text for figure in tree.all("figure"))
    lowest, highest = min(filter(None, cases.ACCURACY)), max(filter(None, cases.ACCURACY))
    assert f"accuracy over confidence: accuracy from {lowest:.4g} at 0.2000 to {highest:.4g} at 0.9333" in first
    assert "3.200 at conv1" in layers
    lowest = min(v for row in cases.heat().z for v in row if v is not None)
    assert f"from {lowest:.4g}"[:11] in heat
    cells = [cell.text.strip() for cell in tree.all("figure")[0].all("td")]
    assert f"{cases.ACCURACY[-1]:.4f}" in cells
    assert "160" in cells
    assert {"conv1", "fc"} <= {head.text.strip() for head in tree.all("figure")[1].all("th")}


@pytest.mark.slow
def test_the_same_result_is_the_same_page(tmp_path: Path) -> None:
    for result in (cases.gate(), *[*cases.odd().values()][::8]):
        text = result.to_json().encode("utf-8", "backslashreplace")
        assert page(Result.from_json(text)) == page(Result.from_json(text))
    result = cases.gate()
    assert page(report(result)) == page(result)
    assert page(report(report(result, result))) == page(report(result, result))
    made = page(cases.everything())
    assert made == page(cases.everything())


def test_names_are_text_and_nothing_else() -> None:
    """A class, file, layer, slice or metric called as an element is shown as it is called."""
    curve = Curve(label=HOSTILE, kind="bars", role=HOSTILE, x=[0, 1], y=[1, 2])
    result = Result(
        command="metrics",
        estimates=[
            Estimate(name=HOSTILE, scope=f"class={HOSTILE}", value=1.0, how=HOSTILE, unit=HOSTILE, reason=HOSTILE)
        ],
        tables=[Table(name=HOSTILE, columns=[HOSTILE], rows=[[HOSTILE]])],
        plots=[Plot(name=HOSTILE, title=HOSTILE, xlabel=HOSTILE, labels=[HOSTILE, '"><script>'], curves=[curve])],
        checks=[Check(rule=HOSTILE, outcome="fail", message=HOSTILE, scope=HOSTILE, file=HOSTILE)],
        notes=[HOSTILE],
        facts={HOSTILE: HOSTILE, "headline": HOSTILE, "nested": {HOSTILE: [HOSTILE]}},
        artefacts={HOSTILE: HOSTILE},
        provenance={"inputs": [{"path": HOSTILE}], HOSTILE: HOSTILE},
    )
    for source in (page(result), page(report(result, result, names=[HOSTILE, "'\"--></style>"]))):
        tree = Page(source)
        assert not {node.tag for node in tree.all()} & {"img", "script"}
        assert not [key for node in tree.all() for key in node.attributes if key.startswith("on")]
        assert tree.text.count(HOSTILE) > 20
        assert len(tree.all("style")) == 1


def distinct(kind: Any, counter: list[int]) -> Any:
    """A value of an annotation that is found nowhere else."""
    origin, args = get_origin(kind), get_args(kind)
    counter[0] += 1
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        hints = get_type_hints(kind)
        return kind(**{f.name: distinct(hints[f.name], counter) for f in dataclasses.fields(kind)})
    if origin is not None and str(origin) == "typing.Literal":
        return args[-1]
    if args and type(None) in args:
        return distinct(next(a for a in args if a is not type(None)), counter)
    if (origin is not None and issubclass(origin, dict)) or str(kind).startswith("collections.abc.Mapping"):
        return {f"key{counter[0]}": f"word{counter[0]}"}
    if str(kind).startswith("collections.abc.Sequence"):
        return [distinct(args[0], counter)]
    if kind is bool:
        return False
    if kind is int:
        return 70_000 + counter[0]
    if kind is float:
        return 0.1234 + counter[0] / 1e5
    return f"word{counter[0]}"


def leaves(value: Any) -> list[Any]:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {f.name: getattr(value, f.name) for f in dataclasses.fields(value) if "screen" not in f.metadata}
    if isinstance(value, dict):
        return [leaf for one in value.values() for leaf in leaves(one)]
    return [leaf for one in value for leaf in leaves(one)] if isinstance(value, list) else [value]


def test_every_field_is_shown() -> None:
    """Of estimates, checks and the result itself: a new field that no page shows fails here."""
    result: Result = dataclasses.replace(distinct(Result, [0]), plots=[], command="metrics")
    estimate = dataclasses.replace(result.estimates[0], how="a word that is long " * 4, reason="why " * 30)
    result = dataclasses.replace(result, estimates=[estimate])
    shown = Page(page(result)).text
    unseen = {False, *get_args(get_type_hints(Check)["outcome"])}
    for leaf in leaves(result):
        if isinstance(leaf, float):
            assert f"{leaf:.4f}"[:5] in shown, leaf
        elif leaf not in unseen:
            assert " ".join(str(leaf).split()) in shown, leaf
    assert "NOT RUN" in shown


def test_every_field_of_a_figure_is_shown() -> None:
    plot: Plot = dataclasses.replace(distinct(Plot, [0]), kind="xy", under="", xlim=(0.25, 7.75), ylim=(0.3, 9.5))
    plot = dataclasses.replace(plot, texts=[])
    curve = dataclasses.replace(plot.curves[0], kind="points", x=[3.25], y=[4.125], low=[4.0625], high=[4.25])
    shown = Page(page(Result(command="metrics", plots=[dataclasses.replace(plot, curves=[curve], labels=[])]))).text
    for field in dataclasses.fields(Plot):
        if field.name not in ("kind", "curves", "labels", "texts", "flip", "under", "x", "y", "z", "levels", "tier"):
            value = getattr(plot, field.name)
            assert str(value if isinstance(value, str) else ", ".join(f"{v:g}" for v in value)) in shown, field.name
    for text in (curve.label, curve.role, "points", "4.125", "4.25"):
        assert text in shown


def test_the_verdict_is_a_word() -> None:
    for outcome, word in (("pass", "PASS"), ("fail", "FAIL"), ("inconclusive", "INCONCLUSIVE"), ("not_run", "NOT RUN")):
        result = Result(command="check", checks=[Check(rule="ece <= 0.1", outcome=outcome)])  # type: ignore[arg-type]
        tree = Page(page(result))
        assert tree.all("p")[0].text == f"{word}: 1 {word.lower()}"
        assert tree.all("title")[0].text == f"calib check: {word}"
        [row] = tree.all("table")[0].all("tbody")[0].all("tr")
        assert row.text.startswith(word)


@pytest.mark.slow
def test_what_is_large_is_cut_and_said() -> None:
    """A thousand classes, with a figure and a row of each; and a result of nothing but long texts."""
    rows = [[f"class {i} " * 8, i, 1 / (i + 1)] for i in range(1000)]
    plots = [cases.reliability(f"class_{i}", f"class {i}", group="Reliability of each class") for i in range(1000)]
    many = Result(
        command="metrics",
        estimates=[Estimate(name="ece", value=0.1, scope=f"class={i}", how="x" * 400) for i in range(1000)],
        tables=[Table(name="classes", columns=["class", "rows", "ece"], rows=rows)],
        plots=plots,
        facts={"rows": {"packed": "A" * 3_000_000}},
    )
    source = page(many)
    assert len(source.encode()) <= MOST
    text = Page(source).text
    assert re.search(r"\(\d+ of 1000 rows; all are in the JSON\)", text)
    assert "988 more panels are not drawn" in text
    assert "3,000,000 characters in the JSON" in text
    long = Result(
        command="x",
        notes=["n" * 99_999] * 99,
        tables=[Table(name="t" * 99_999, columns=["c"], rows=[["v" * 99_999]])] * 99,
    )
    assert len(page(long).encode()) <= MOST


def test_a_fine_heat_map_is_drawn_without_a_picture_in_it() -> None:
    """Which a policy without images would leave out."""
    n = 90
    z = [[float(i * j) for j in range(n)] for i in range(n)]
    plot = Plot(name="map", kind="heat", x=range(n), y=range(n), z=z, zlabel="z")
    source = page(Result(command="x", plots=[plot]))
    assert "<image" not in source
    assert len(source) < 200_000


@pytest.mark.slow
def test_five_models_fit_in_a_page(found: dict[str, Result]) -> None:
    several = report(
        *[r for _ in range(5) for r in found.values()], names=[f"m{i}/{n}" for i in range(5) for n in found]
    )
    source = page(several)
    assert len(source.encode()) < MOST
    tree = Page(source)
    assert tree.all("h1")[0].text == "Report of 20 results"
    assert tree.all("p")[0].text.startswith("Shortened to stay below 600 kB")  # the fields and the smallest figures
    assert tree.all("p")[1].text == "FAIL: 5 fail"
    assert len(tree.all("section")) == 23  # with the comparisons of metrics, scale and curvature
    assert len(tree.all("figure")) >= 33  # before and after, the spectrum, ...: two of each that has them
    assert all(figure.all("table") for figure in tree.all("figure"))
    text = tree.text
    for name in ("accuracy", "temperature", "lambda_max", "m4/curvature - m0/curvature", "Provenance"):
        assert name in text


@pytest.mark.docs  # ten seconds
def test_hundreds_of_results_stay_below_the_limit(found: dict[str, Result]) -> None:
    source = page(report(*[found["check"]] * 700, names=[f"run {i}" for i in range(700)]))
    assert len(source.encode()) <= MOST
    assert "the first 350 of 700 results" in source or "Shortened" in source


@pytest.mark.slow
def test_pages_of_real_results_are_small(found: dict[str, Result]) -> None:
    for name, most in {"metrics": 40_000, "scale": 70_000, "check": 15_000, "curvature": 70_000}.items():
        assert len(page(found[name])) < most, name


class TestReport:
    def test_json_and_page_say_the_same(self, found: dict[str, Result], tmp_path: Path) -> None:
        files = []
        for name in ("metrics", "check"):
            files.append(tmp_path / f"{name}.json")
            files[-1].write_text(found[name].to_json())
        both = tmp_path / "both.json"
        assert main(["report", *map(str, files), "-q", "-o", str(both), "-o", str(tmp_path / "a.html")]) == 0
        assert main(["report", str(both), "-q", "-o", str(tmp_path / "b.html")]) == 0
        assert (tmp_path / "a.html").read_bytes() == (tmp_path / "b.html").read_bytes()
        assert [i["path"] for i in json.loads(both.read_text())["provenance"]["inputs"]] == [str(f) for f in files]

    def test_what_is_no_result_is_refused(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        wrong = tmp_path / "wrong.json"
        for text in ("{", "[]", '{"command": "metrics", "schema": 99}'):
            wrong.write_text(text)
            assert main(["report", str(wrong), "-q"]) == 4
        inside = {"command": "report", "schema": 3, "facts": {"results": [{"name": "a", "result": {"command": 3}}]}}
        wrong.write_text(json.dumps(inside))
        assert main(["report", str(wrong), "-q"]) == 4
        assert "error: " in capsys.readouterr().err
        assert main(["report", str(tmp_path / "none.json"), "-q"]) == 4

    def test_the_exit_code_is_no_verdict(self, found: dict[str, Result], tmp_path: Path) -> None:
        file = tmp_path / "check.json"
        file.write_text(found["check"].to_json())
        assert found["check"].verdict == "fail"
        assert main(["report", str(file), "-q"]) == 0

    def test_results_of_different_events_are_not_compared(self) -> None:
        a, b = (
            Result(command="metrics", estimates=[Estimate(name="ece", value=0.1, n=9)], facts={"event": event})
            for event in ("cat", "dog")
        )
        found = report(a, b)
        assert len(found.facts["results"]) == 2
        assert found.notes == ["results of metrics are not compared: metrics 1 is about cat, metrics 2 about dog"]

    def test_sentences_are_shown(self) -> None:
        said = [Result(command="x", facts={"headline": text}) for text in ("One.", "Two. Three.")]
        found = report(*said)
        assert [row[3] for row in found.tables[0].rows] == ["One.", "Two. Three."]
        tree = Page(page(found))
        assert [p.text for p in tree.all("p") if p.attributes.get("class") == "said"] == ["One.", "Two. Three."]

    def test_files_of_one_name_are_told_apart(self, found: dict[str, Result], tmp_path: Path) -> None:
        for folder in "ab":
            (tmp_path / folder).mkdir()
            (tmp_path / folder / "check.json").write_text(found["check"].to_json())
        made = report(tmp_path / "a" / "check.json", tmp_path / "b" / "check.json")
        assert [row[0] for row in made.tables[0].rows] == ["a/check", "b/check"]
        assert [one["name"] for one in made.facts["results"]] == ["a/check", "b/check"]

    def test_names(self, found: dict[str, Result]) -> None:
        with pytest.raises(calibcli.CalibError, match="2 results, 1 names"):
            report(found["check"], found["metrics"], names=["a"])
        with pytest.raises(calibcli.CalibError, match="no result"):
            report()
