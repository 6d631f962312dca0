"""Where results go: files by suffix, a folder, stdout of any encoding; the same bytes for the same result."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import headline_cases
import pytest
import render_cases as cases
from PIL import Image

from calibcli import render
from calibcli.api import catalogue
from calibcli.cli.run import CommandRun
from calibcli.core.errors import UsageError
from calibcli.core.result import Estimate, Result, Table
from calibcli.render.formats import latex

HERE = Path(__file__).parent
SUFFIXES = (".txt", ".json", ".md", ".csv", ".tex", ".png", ".svg", ".pdf", ".html")


def test_files_by_suffix_and_folder(tmp_path: Path) -> None:
    result = cases.metrics()
    for suffix in SUFFIXES:
        render.write(result, tmp_path / f"a{suffix}")
        assert (tmp_path / f"a{suffix}").stat().st_size > 300
    render.write(result, tmp_path / "all/")
    names = {p.name for p in (tmp_path / "all").iterdir()}
    assert names >= {
        "result.json",
        "summary.md",
        "estimates.csv",
        "bins.csv",
        "classes.csv",
        "reliability.png",
        "report.html",
    }
    bins = (tmp_path / "all" / "bins.csv").read_text().splitlines()
    assert bins[0] == "diagram,left,right,rows,accuracy,confidence,calibrated_low,calibrated_high"
    assert [int(row.split(",")[3]) for row in bins[1:]] == cases.COUNTS
    assert bins[1].endswith(",0,,,,")  # an empty bin
    render.write(cases.odd()["names"], tmp_path / "odd")  # names that are no file names stay in the folder
    assert all(p.parent == tmp_path / "odd" for p in (tmp_path / "odd").iterdir())
    render.write(cases.odd()["names"], tmp_path / "odd.json")
    assert Result.from_json((tmp_path / "odd.json").read_bytes()) == cases.odd()["names"]


SHOW = (
    "import sys; sys.path.insert(0, 'tests'); import render_cases as c; from calibcli import render\n"
    "for name in sys.argv[1:]:\n"
    "    print('----', name, flush=True)\n"
    "    for r in (c.metrics(), *c.odd().values()): render.show(r, name)\n"
    "heavy = {'matplotlib', 'torch', 'rich'} & set(sys.modules)\n"
    "assert not heavy, heavy"
)


HOSTILE = r"50% of a_b & c#d {x} $y$ ^~ \end{tabular} [z] <λ²|"
TEX = [
    *headline_cases.situations().values(),
    *(one() for one in (cases.metrics, cases.scale, cases.gate, cases.everything)),
]
TEX.append(
    Result(
        command="metrics",
        facts={"headline": HOSTILE},
        notes=[HOSTILE],
        estimates=[Estimate(name=HOSTILE, scope=HOSTILE, value=0.5, unit=HOSTILE)],
        tables=[Table(name="t", title=HOSTILE, columns=[HOSTILE, "b"], rows=[[HOSTILE, 1], [None, HOSTILE]])],
    )
)


@pytest.mark.parametrize("result", TEX, ids=range(len(TEX)))
def test_tex_is_what_latex_reads(result: Result) -> None:
    """Only commands that are known, braces and dollars in pairs, as many cells in a row as columns."""
    body = "\n".join(line for line in render.text(result, "latex").splitlines() if not line.startswith("%"))
    known = (
        r"begin|end|toprule|midrule|bottomrule|addlinespace|relax|text\w+|le|ge|times|pm|to|alpha|beta|gamma|lambda|mu"
    )
    assert not re.sub(rf"\\(?:(?:{known}|sigma|Delta|Sigma)\b|[&%$#_{{}},\\])", "", body).count("\\")
    plain = re.sub(r"\\[&%$#_{}]", "", body)
    for part in re.findall(r"\\begin\{tabular\}\{([lr]+)\}(.*?)\\end\{tabular\}", plain, re.S):
        rows = part[1].split("\\\\")[:-1]
        assert rows
        assert {row.count("&") for row in rows} == {len(part[0]) - 1}
        assert not re.search(r"[%#~_]", part[1])
        assert part[1].count("$") % 2 == 0
        assert part[1].count("{") == part[1].count("}")
        assert not re.search(r"\^(?!\d\$)", part[1])


@pytest.mark.slow
def test_pictures_hold_the_sentence_in_their_metadata(tmp_path: Path) -> None:
    said = "Overconfident: ECE 0.0646 [0.0459, 0.0801]. λ ≤ 3 \udcff"
    result = dataclasses.replace(cases.metrics(), facts={"headline": said})
    written = {suffix: tmp_path / f"a{suffix}" for suffix in (".png", ".svg", ".pdf")}
    for path in written.values():
        render.write(result, path)
    with Image.open(written[".png"]) as image:
        assert image.info["Description"] == said.replace("\udcff", "\ufffd")
    svg = ET.parse(written[".svg"]).getroot()
    assert any((e.text or "").startswith("Overconfident: ECE") for e in svg.iter() if e.tag.endswith("description"))
    assert b"/Subject" in written[".pdf"].read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_any_encoding_of_stdout(encoding: str) -> None:
    names = ["table", "json", "markdown", "csv"]
    run = subprocess.run(
        [sys.executable, "-c", SHOW, *names],
        env={**os.environ, "PYTHONIOENCODING": encoding, "PYTHONPATH": "."},
        capture_output=True,
        cwd=HERE.parent,
    )
    assert run.returncode == 0, run.stderr.decode()
    _, *parts = re.split(r"(?m)^---- (\w+)\n", run.stdout.decode(encoding))
    texts = dict(zip(parts[::2], parts[1::2]))
    assert list(texts) == names
    assert all(texts.values())
    assert all("\x1b" not in text for name, text in texts.items() if name != "csv")
    end = texts["json"].index("\n}\n") + 3
    assert Result.from_json(texts["json"][:end]) == cases.metrics()


@pytest.mark.slow
@pytest.mark.regression("5 seconds")
def test_two_runs_differ_in_their_time_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folders = [tmp_path / name for name in ("one", "two")]
    shown = []
    for folder in folders:
        folder.mkdir()
        run = CommandRun(format="table", json=False, output=[folder / f"a{s}" for s in SUFFIXES], quiet=True)
        run.started -= 1000.0 * folders.index(folder)
        assert run.finish(cases.metrics()) == 0
        shown.append(capsys.readouterr().out)
    assert shown[0] == shown[1]
    for suffix in SUFFIXES:
        one, two = ((folder / f"a{suffix}").read_bytes() for folder in folders)
        if suffix == ".json":
            one_json, two_json = json.loads(one), json.loads(two)
            for data in (one_json, two_json):
                assert data["provenance"].pop("started")
                assert data["provenance"].pop("seconds") >= 0
            assert one_json == two_json
        elif suffix == ".html":  # a page says when, as the JSON does
            one, two = (re.sub(rb"(<dt>(?:started|seconds)<dd>)[^<]*", rb"\1", page) for page in (one, two))
            assert one == two
        else:
            assert one == two, suffix


def test_a_result_drawn_from_its_json_is_the_same(tmp_path: Path) -> None:
    for result in (cases.everything(), cases.gate(), cases.scale(), *cases.odd().values()):
        again = Result.from_json(result.to_json().encode("utf-8", "backslashreplace"))
        for name in ("table", "markdown", "csv"):
            assert render.text(again, name) == render.text(result, name)


@pytest.mark.parametrize("format", ["table", "json", "markdown", "csv"])
def test_every_format_is_another_text(format: str, capsys: pytest.CaptureFixture[str]) -> None:
    starts = {"table": "calib metrics", "json": "{\n", "markdown": "## calib metrics", "csv": "name,scope,value"}
    CommandRun(format=format, json=False, output=(), quiet=True).finish(cases.metrics())
    assert capsys.readouterr().out.startswith(starts[format])
    CommandRun(format=format, json=True, output=(), quiet=True).finish(cases.metrics())
    assert capsys.readouterr().out.startswith("{\n")


def test_formats_and_suffixes_are_checked_first(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="unknown format 'tabel'") as error:
        render.known_format("tabel")
    assert error.value.fix == "did you mean 'table'?"
    with pytest.raises(UsageError, match="format 'png' does not go to stdout"):
        render.known_format("png")
    with pytest.raises(UsageError, match="cannot tell the format"):
        render.known_output(tmp_path / "a.docx")
    with pytest.raises(UsageError, match="no folder"):
        render.known_output(tmp_path / "missing" / "a.png")


def tables() -> dict[str, Result]:
    """What lists names, with one table and with several; and what has facts alone."""
    named = {name: catalogue.listing(name) for name in ("metrics", "formats", "ece", "csv")}
    return {"overview": catalogue.overview(), **named, "facts": Result(command="inspect", facts={"kind": "a", "n": 3})}


@pytest.mark.parametrize("case", tables())
@pytest.mark.parametrize("name", render.NAMES)
def test_what_has_no_numbers_is_there_in_every_format_or_refused(name: str, case: str) -> None:
    result = tables()[case]
    if not render.to_stdout(name) or name == "html":  # pictures; of pages see test_page.py
        return
    if getattr(render.module(name), "NUMBERS", False):
        if result.tables:
            with pytest.raises(
                UsageError, match=f"format '{name}' holds numbers and verdicts, and calib list has none"
            ):
                render.show(result, name)
        return
    text = render.text(result, name)
    cells = [str(cell) for one in result.tables for row in [one.columns, *one.rows] for cell in row]
    if name == "csv":
        read = list(csv.reader(io.StringIO(text, newline="")))
        sizes = [(len(one.rows), len(one.columns)) for one in result.tables]
        assert len(read) == 1 + (
            len(result.facts) if not sizes else sizes[0][0] if len(sizes) == 1 else sum(r * c for r, c in sizes)
        )
        assert len({len(row) for row in read}) == 1
        assert {*cells} <= {cell for row in read for cell in row}
        return
    flat = re.sub(r"[\W_]", "", text)
    for cell in cells or ["kind", "a", "n", "3"]:
        written = (
            latex.text(cell)
            if name == "latex"
            else json.dumps(cell, ensure_ascii=False)[1:-1]
            if name == "json"
            else cell
        )
        assert re.sub(r"[\W_]", "", written) in flat, cell


@pytest.mark.parametrize("case", headline_cases.situations())
@pytest.mark.parametrize("name", ["table", "json", "markdown", "csv", "latex", "html"])
def test_every_number_of_every_command_is_there_in_every_format(name: str, case: str) -> None:
    result = headline_cases.situations()[case]
    flat = re.sub(r"\W", "", re.sub(r"<[^>]*>", "", render.text(result, name)))
    for estimate in result.estimates:
        assert re.sub(r"\W", "", estimate.name) in flat
