"""The documents: links and anchors lead somewhere, command lines are those that calib takes, Python compiles."""

from __future__ import annotations

import csv
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import numpy as np
import prose
import pytest

from calibcli.api import catalogue
from calibcli.cli import COMMANDS
from calibcli.cli.typed import build_command
from calibcli.core.errors import UsageError
from calibcli.core.options import normal
from calibcli.core.result import Result
from calibcli.lab.study import experiment
from calibcli.networks.losses import objective

pytestmark = pytest.mark.docs
ROOT = Path(__file__).parent.parent
PAGES = sorted(
    [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("sample_data/*.md"), *ROOT.glob("benchmarks/*.md")]
)
NO_COMMANDS = ("CONTRIBUTING.md", "RESULTS.md")  # of what is not there yet; tables of times
OTHERS = [ROOT / "sample_data" / "demo.sh", *sorted(ROOT.glob("examples/ci/*.yml"))]
SPECS = {"--metric": "metrics", "--method": "methods", "--quantity": "quantities", "--to": "targets"}
named = pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))


def anchors(path: Path) -> set[str]:
    """Of the headings of a page, as GitHub makes them, and those that it sets itself."""
    text = re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.S)
    heads = (re.sub(r"[^\w\- ]", "", head.lower()) for head in re.findall(r"(?m)^#+ +(.+?) *$", text))
    return {head.replace(" ", "-") for head in heads} | {*re.findall(r'<a id="([^"]+)">', text)}


@named
def test_links_and_anchors(page: Path) -> None:
    for target in re.findall(r'\]\(([^)\s]+)(?: "[^"]*")?\)', page.read_text(encoding="utf-8")):
        if not target.startswith(("http:", "https:", "mailto:", "reference/")):  # the last are made
            file, _, anchor = target.partition("#")
            there = page.parent / file if file else page
            assert there.exists(), target
            assert not anchor or anchor in anchors(there), target


@named
def test_python_blocks_compile(page: Path) -> None:
    for code in re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.S):
        text = code if not code[0].isspace() else "{" + code + "}"  # entries of a table
        compile(text, page.name, "exec")


def lines(text: str) -> Iterator[str]:
    """Every `calib ...` of a text: a line of a block, or between backticks."""
    text = text.replace("\\\n", " ")
    for line in re.findall(r"(?m)^\s*(?:[-\w]+: )?(?:\$ )?(calib [^\n]+)$", text):
        yield re.sub(r"\s+#\s.*|\s[|>&].*|\s?;.*", "", line)
    for line in re.findall(r"(?<!`)`(calib [^`\n]+)`(?!`)", text):
        yield line


def all_lines() -> list[Any]:
    found: dict[str, str] = {}
    for path in (path for path in [*PAGES, *OTHERS] if path.name not in NO_COMMANDS):
        for line in lines(path.read_text(encoding="utf-8")):
            found.setdefault(line, str(path.relative_to(ROOT)))
    return [pytest.param(line, id=f"{where}: {line}") for line, where in found.items()]


@cache
def command(name: str) -> Any:
    return build_command(name)


@pytest.mark.parametrize("line", all_lines())
def test_command_lines(line: str) -> None:
    """The command is there, so are its options, and what a spec names."""
    _, name, *argv = shlex.split(line.replace("[", "").replace("]", ""))
    if name.startswith("--") or not name.islower():
        return
    assert name in COMMANDS
    found = command(name)
    argv = [word for word in argv if word not in ("--help", "...")]
    context = found.context_class(found, info_name=name)
    values, _, _ = found.make_parser(context).parse_args(args=argv)
    long = {parameter.name: parameter.opts[0] for parameter in found.params}
    for key, given in values.items():
        for spec in given if isinstance(given, list) else [given]:
            if not isinstance(spec, str) or spec.isupper() or spec in ("all", "default"):
                continue
            if long[key] in SPECS:
                catalogue.REGISTRIES[SPECS[long[key]]].registry.choose(spec)
            elif long[key] == "--loss" and normal(spec.partition(":")[0]):
                objective(spec)


@pytest.mark.parametrize("page", [page for page in PAGES if page.name != "CHANGELOG.md"], ids=lambda page: page.name)
def test_specs_between_backticks(page: Path) -> None:
    """A spec of an entry that there is has options that this entry, of one registry or another, takes."""
    for spec in re.findall(r"`([a-z_0-9]+:[a-z_]+=[^`|\s]*)`", page.read_text(encoding="utf-8")):
        registries = [one.registry for one in catalogue.REGISTRIES.values() if spec.partition(":")[0] in one.registry]
        assert not registries or any(taken(registry, spec) for registry in registries), spec


def taken(registry: Any, spec: str) -> bool:
    try:
        registry.choose(spec)
    except UsageError:
        return False
    return True


@named
def test_numbers_that_a_page_explains_are_in_its_tables(page: Path) -> None:
    """*name value [low, high]* in a sentence is a row of what a command printed."""
    text = page.read_text(encoding="utf-8")
    for name, value, bounds in re.findall(r"\*([a-z_]+) ([\d.]+) (\[[\d., -]+\])\*", text):
        assert re.search(rf"(?m)^ *{name} +{re.escape(value)} +{re.escape(bounds)}", text), (name, value, bounds)


def test_the_table_of_coverage_is_of_metrics_that_there_are() -> None:
    text = (ROOT / "docs" / "measured" / "coverage.md").read_text(encoding="utf-8")
    table = text[text.index("<!-- coverage -->") : text.index("<!-- /coverage -->")]
    names = re.findall(r"(?m)^\| `([^`]+)`", table)
    assert len(names) > 10
    for name in names:
        catalogue.REGISTRIES["metrics"].registry.choose(name)


def test_promises_are_those_of_the_table_of_claims() -> None:
    """`python docs/promises.py` writes the page."""
    promises = module("promises")
    assert promises.PAGE.read_text(encoding="utf-8") == promises.page()


PATHS = {  # readers, and the pages that the first pages send them to
    "student": ("learn-calibration",),
    "clinician or data scientist": ("my-csv", "my-risk-model"),
    "ML engineer": ("my-hugging-face-model", "my-scikit-learn-model"),
    "evaluator": ("my-language-model",),
    "CI engineer": ("gate-a-release",),
    "operations": ("every-night",),
    "researcher": ("is-my-curvature-high",),
}
SCREENS, LINES = 5, 40  # of a path, of a screen
LONG = 250  # lines of a page that is read; those that are looked up are longer
LOOKED_UP = {"papers.md", "python.md", "CHANGELOG.md", "CONTRIBUTING.md", "RESULTS.md"}


@pytest.mark.parametrize("name", [name for pages in PATHS.values() for name in pages])
def test_a_path_has_few_screens_and_says_what_comes_next(name: str) -> None:
    """A screen is a block of commands and what they print; a block that only makes the reader's files is none."""
    page = (ROOT / "docs" / "how-to" / f"{name}.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```console\n(.*?)```", page, re.S)
    screens = [block for block in blocks if "$ calib" in block]
    assert 0 < len(screens) <= SCREENS
    assert [block for block in screens if len(block.splitlines()) > LINES] == []
    assert "\n## Next\n" in page
    for first in (ROOT / "README.md", ROOT / "docs" / "index.md"):
        assert f"how-to/{name}.md" in first.read_text(encoding="utf-8"), first.name


@named
def test_a_page_that_is_read_is_not_long(page: Path) -> None:
    if page.name not in LOOKED_UP and page.parent.name not in ("measured", "studies"):
        assert len(page.read_text(encoding="utf-8").splitlines()) <= LONG


def test_the_figures_are_what_the_commands_under_them_draw() -> None:
    """`python docs/figures.py` draws them again."""
    script = [sys.executable, str(ROOT / "docs" / "figures.py"), "--check"]
    done = subprocess.run(script, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_every_figure_of_the_page_has_a_command_under_it() -> None:
    """A command writes to the file or the folder of the picture, and no picture is kept that the page does not show."""
    page = (ROOT / "docs" / "figures.md").read_text(encoding="utf-8")
    shown = re.findall(r"!\[[^\]]*\]\((images/[^)]+)\)", page)
    assert len(shown) > 20
    for link in shown:
        assert re.search(rf"-o (?:{re.escape(link)}|{re.escape(link.rpartition('/')[0])}/)(?:\s|$)", page), link
    assert {str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs" / "images").rglob("*.png")} == set(shown)


def test_the_table_beside_other_tools_is_the_output_of_its_script() -> None:
    page = (ROOT / "docs" / "beside.md").read_text(encoding="utf-8")
    table = page[page.index("<!-- beside -->\n") + 16 : page.index("<!-- /beside -->")]
    printed = (ROOT / "benchmarks" / "results" / "beside.txt").read_text(encoding="utf-8")
    assert len(table.splitlines()) > 20
    assert printed.endswith(table)


def test_words_are_in_the_order_of_the_alphabet() -> None:
    """In each group, after the first words, which are in the order in which one reads them; and each stands once."""
    _, first, *groups = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8").split("\n## ")
    words = [[word.lower() for word in re.findall(r"(?m)^\*\*([^*]+?)[.,]?\*\*", one)] for one in (first, *groups)]
    every = [word for one in words for word in one]
    assert len(words[0]) == 10
    assert len(every) > 30
    assert len(every) == len(set(every))
    assert words[1:] == [sorted(one) for one in words[1:]]


def test_there_are_command_lines() -> None:
    assert len(all_lines()) > 40


# Sentences that state a result of a study link to its claim, with the verdict that they state as the title of the link:
# `[lower](studies/NAME.md#claim-ID "holds")`.

STATED = re.compile(
    r"\b(?:hold|holds|reversed|undecided|decided|shown|other way round|costs? no|best calibrated"
    r"|(?:lower|higher|larger|smaller|worse|better|more|less) (?:[\w*]+ ){0,6}(?:than|with))\b"
)
OF_A_PAPER = re.compile(r"Mukhoti|Kimura|Komisarenko|[Tt]hey (?:say|prove|find)|the paper's|\bis not so\b")
CLAIM = re.compile(r'\]\((?:([^)#\s]*)\.md)?#claim-([\w-]+) "([a-z ]+)(?:, (?:older )?recipe \w+)?"\)')
RESULTS = [ROOT / "docs" / "study-results.md", *sorted(ROOT.glob("docs/studies/*.md"))]


def sentences(page: Path) -> Iterator[str]:
    """Of the words of a page, without its tables, blocks and headings."""
    text = page.read_text(encoding="utf-8").partition("<!-- study -->")[0]
    text = re.sub(r"(?ms)^```.*?^```|^(?:#|!|\||    ).*?$", "", text)
    for paragraph in re.split(r"\n\s*\n", text):
        yield from re.split(r"(?<=[.!?*])\s+(?=[*A-Zγλ\"`\[])", " ".join(paragraph.split()))


@named
def test_a_sentence_that_states_a_result_stands_on_a_claim(page: Path) -> None:
    """Its verdict is that of the claim in docs/studies/NAME.json."""
    for sentence in sentences(page):
        stated = CLAIM.findall(sentence)
        of_studies = page in RESULTS or (page.name == "README.md" and "studies" in sentence)
        assert stated or not of_studies or not STATED.search(sentence) or OF_A_PAPER.search(sentence), sentence
        assert len(stated) == len(re.findall(r"\]\([^)]*#claim-", sentence)), f"a link has no verdict: {sentence}"
        for target, claim, verdict in stated:
            name = target.rpartition("/")[2] or page.stem
            result = Result.from_json((ROOT / "docs" / "studies" / f"{name}.json").read_bytes())
            verdicts = {one.scope or str(n): one.message.partition(":")[0] for n, one in enumerate(result.checks, 1)}
            assert claim in verdicts, f"{name} has no claim {claim}: {sentence}"
            assert verdict == verdicts[claim], f"claim {claim} of {name} is {verdicts[claim]}: {sentence}"


# A verdict is by a recipe. Links to claims of another page name it, `"holds, recipe 93ce989d"`. Where the package has
# another recipe today they say `older recipe`, and so does what a reader sees: the sentences beside, and the report.


@cache
def module(name: str) -> Any:
    """A script of docs/ as a module."""
    made = spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    assert made
    assert made.loader
    script = sys.modules[name] = module_from_spec(made)
    made.loader.exec_module(script)
    return script


def studies() -> Any:
    """The module docs/studies.py."""
    return module("studies")


@cache
def is_older(name: str) -> bool:
    return studies().OLDER in studies().recipe(studies().result(name))


@named
def test_verdicts_carry_the_digests_of_their_recipes(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    if "#claim-" in text:
        assert studies().linked(text) == text, "run `python docs/studies.py`"


@named
def test_a_page_says_where_a_verdict_is_by_an_older_recipe(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    report = page.with_suffix(".json")
    if page.parent.name == "studies" and report.is_file():
        older = is_older(page.stem)
        assert studies().of_recipe(studies().result(page.stem)) in text, "run `python docs/studies.py`"
        assert (f"**{studies().OLDER}**, see below" in text) == older
        return
    for part in re.split(r"\n\s*\n|\n(?=\|)", text):  # paragraphs, and rows of tables
        named_here = set(re.findall(r"studies/([\w-]+)\.md(?:#claim-[^)]*)?\)", part))
        seen = re.sub(r'"[^"]*"', "", part)
        stated = CLAIM.search(part) or "#claim-" in part or (page.name == "study.md" and part.startswith("| `"))
        if stated and named_here:
            assert ("older recipe" in " ".join(seen.split())) == any(map(is_older, named_here)), part


def test_a_recipe_that_changes_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """By one number, by the words of one claim, and by a claim that is asked no more."""
    module, name = studies(), "step-size"
    found = module.result(name)
    assert (is_older(name), module.otherwise(found)) == (False, [])
    then = experiment.text_of(name)
    for old, new, differing in (
        ("margin = 0.005", "margin = 0.006", []),
        ("has a lower ECE with the mean", "has another ECE with the mean", ["CE", "FL-3"]),
        ('id = "sum"', 'id = "total"', ["sum"]),
    ):
        assert old in then[0]
        monkeypatch.setattr(module, "text_of", lambda _, old=old, new=new: (then[0].replace(old, new), then[1]))
        assert module.OLDER in module.of_recipe(found)
        assert module.otherwise(found) == differing
        assert f'"holds, older recipe {found.facts["recipe_sha256"][:8]}"' in module.linked(
            '[so](studies/step-size.md#claim-sum "holds")'
        )


# Numbers in sentences and tables about studies are those of a result, or of a saved output of benchmarks.


@pytest.mark.parametrize("page", RESULTS, ids=lambda page: page.name)
def test_numbers_in_the_prose_of_studies_are_those_of_their_results(page: Path) -> None:
    assert prose.wrong(page.read_text(encoding="utf-8"), page.stem if page.with_suffix(".json").is_file() else "") == []


IN_TABLES = {
    "curvature-cause": "From the runs.\n\n| a | b |\n|---|---|\n| One cause. | Without γ p = 7e-10, decay {}. |",
    "sentiment-full-width": "| | cross-entropy |\n|---|---|\n| error | {} ± .007 |",
    "curvature-drawn": "| cause | for a unit of ln T |\n|---|---|\n| γ | {} ± .021 |",
}
SIMULATED = "In percent of simulated studies.\n\n| | `one_curve` |\n|---|---|\n| .006 for one cause, the batch | {} |"


@pytest.mark.parametrize(
    ("study", "right", "false", "text"),
    [
        ("curvature-cause", "none", "31", "Of a curve with a bend, ten seeds refute it in {} of 60 simulated studies."),
        (
            "curvature-cause",
            "15",
            "16",
            'The slopes [differ](#claim-alike "reversed") in {} of the 21 pairs of causes.',
        ),
        ("curvature-cause", ".036", ".032", 'The gaps of smoothing lie {} ± .012 [below](#claim-curve "reversed").'),
        ("curvature-cause", "-.0073", "+.0073", "For each unit of the trace, weight decay changes the gap by {}."),
        ("curvature-cause-medium", ".20", ".13", "SAM of radius .2 and a batch of 12 have gaps of .067 and {}."),
        (
            "curvature-cause-medium",
            "8",
            "9",
            "With 15 arms and three seeds a true curve is lost in {} of 600 simulations.",
        ),
        ("sharpness-along-training-medium", ".93", ".66", "With permuted labels of cross-entropy the tail is {}."),
        ("sharpness-along-training-medium", ".66", ".93", "With permuted labels of cross-entropy the ECE is {}."),
        ("sentiment-full-width", "nine", "fifteen", "Of the 18 printed cells {} lie within the intervals."),
        ("curvature-cause", ".0002", ".52", IN_TABLES["curvature-cause"]),
        ("sentiment-full-width", ".203", ".133", IN_TABLES["sentiment-full-width"]),
        ("curvature-drawn", "+.143", "-.143", IN_TABLES["curvature-drawn"]),
        ("curvature-drawn", "88", "87", SIMULATED),
    ],
)
def test_a_false_number_is_found(study: str, right: str, false: str, text: str) -> None:
    assert prose.wrong(text.format(right), study) == []
    assert [number for number, _ in prose.wrong(text.format(false), study)]


# Tables of docs/measured that are simulated: each line is one of the saved output, or counts those of a kind.


def test_the_tables_of_depends_are_the_saved_output() -> None:
    page = (ROOT / "docs" / "measured" / "study-drawn.md").read_text(encoding="utf-8").split("## Medium size")
    saved = (ROOT / "benchmarks" / "results" / "drawn.txt").read_text(encoding="utf-8").split("curvature-drawn-medium")
    for one, other in zip(page, saved, strict=True):
        shown, printed = (re.findall(r"(?m)^\| .* \| 300 \| .*$", text) for text in (one, other))
        assert len(shown) > 10
        assert sorted(shown) == sorted(printed)


KINDS = {
    "15 arms: c/x": "c/x|saturating|U|flat",
    "15 arms: a step": "step of 1 SE",
    "9 or 10 arms": "[^,]+, (9|10) arms",
    "12 arms": "[^,]+, 12 arms",
    "20 arms": "[^,]+, 20 arms",
    "correlation of rows 0:": "[^,]+, rows 0",
    "correlation of rows .5:": r"[^,]+, rows \.5",
    "correlation of rows .9:": r"[^,]+, rows \.9",
    "correlation of rows 0 or .9": "saturating, .* arms, rows .*",
    "judged from moments": "[^,]+, moments",
    "effects on x and y": ".* linked .*",
    "seeds of the arms": ".* seeds of a cause .*",
    "*holds*": ".* by the margin.*",
}
"""Lines of a table of docs/measured/study-curves.md, and those of the saved output that they count."""
WORDS = {"γ": "gamma", "learning rate": "lr", "nothing off, but `alike` is asked": "c/x, a straight line"}


def test_the_tables_of_one_curve_are_the_saved_output() -> None:
    page = (ROOT / "docs" / "measured" / "study-curves.md").read_text(encoding="utf-8")
    saved = (ROOT / "benchmarks" / "results" / "claims_curves.txt").read_text(encoding="utf-8")
    lines = {label: cells.split(" | ") for label, cells in re.findall(r"(?m)^\| (.*?) \| 300 \| (.*) \|$", saved)}
    shown = [line.split(" | ") for line in re.findall(r"(?m)^\| (.*\d.*) \|$", page) if " seeds: " not in line]
    shown = [line for line in shown if " SE, " not in line[0]]  # of the test below
    assert len(shown) == len(KINDS) + 11
    for label, *cells in shown:
        if kind := next((of for start, of in KINDS.items() if label.startswith(start)), None):
            found = [
                line[1:]
                for one, line in lines.items()
                if re.fullmatch(kind, one.partition(": ")[2]) and "of" in line[1]
            ]
            counts = [[int(cell.partition(" of 60")[0]) for cell in column] for column in zip(*found, strict=True)]
            wanted = [f"{60 * len(found):,}", *(f"{sum(one)} ({max(one)} of 60)" for one in counts)]
        else:
            for ours, theirs in {**WORDS, ": nothing off": ": c/x, nothing off"}.items():
                label = label.replace(ours, theirs)
            wanted = lines[label]
        assert cells == wanted, label


@pytest.mark.parametrize(("name", "kind", "many"), [("claims_sharp", "", 10), ("claims_allowed", ", allowed", 4)])
def test_the_tables_of_curves_that_are_missed_are_the_saved_output(name: str, kind: str, many: int) -> None:
    """The least and the largest percentage of the lines of a size, a miss and numbers of arms; bold where one is."""
    page = (ROOT / "docs" / "measured" / "study-curves.md").read_text(encoding="utf-8")
    saved = (ROOT / "benchmarks" / "results" / f"{name}.txt").read_text(encoding="utf-8")
    line = r"(?m)^\| (\w+): .*, (\d+) arms, off by ([\d.]+) SE \| 300 \| .*? \| .*? \| (.*) \|$"
    found = [(of, miss, int(arms), cells.split(" | ")) for of, arms, miss, cells in re.findall(line, saved)]
    told = re.findall(rf"(?m)^\| (digits|medium), ([\d.]+) SE, ([\d or,]+) arms{kind} \| (.*) \|$", page)
    assert len(told) == many
    for of, miss, arms, cells in told:
        numbers = {int(one) for one in re.findall(r"\d+", arms)}
        chosen = [line[3] for line in found if line[:2] == (of, miss) and line[2] in numbers]
        for cell, column in zip(cells.split(" | "), zip(*chosen, strict=True), strict=True):
            shares = [float(re.findall(r"\d+", one)[0]) / 3 for one in column]
            ends = " to ".join(dict.fromkeys(f"{end(shares):.0f}" for end in (min, max)))
            assert cell == (f"**{ends}**" if any("*" in one for one in column) else ends), (of, miss, arms)


def test_the_printed_cells_are_counted() -> None:
    """Against the table of the paper and a result, read without the package."""
    page = (ROOT / "docs" / "papers.md").read_text(encoding="utf-8")
    four = r"(\d+) \| (\d+) \| (\d+) \| (\d+) \| [a-z]"
    told = re.findall(rf"(?m)^\| (\S+) \| (CIFAR\S+|20 News\w+|Stanf.*?) \| {four}", page)
    with (ROOT / "calibcli" / "lab" / "study" / "builtin" / "mukhoti2020.csv").open(encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    cell = [key for key in lines[0] if re.match("error|nll|ece|adaece|mce|high_", key)]
    wanted: dict[tuple[str, str], int] = {}
    for line in lines:
        of = (line["network"], line["data"])
        wanted[of] = wanted.get(of, 0) + sum(bool(line[key]) for key in cell)
    assert {(network, data): int(count) for network, data, count, *_ in told} == wanted
    assert all(int(count) == sum(map(int, parts)) for *_, count, a, b, c in told for parts in [(a, b, c)])
    estimates = json.loads((ROOT / "docs" / "studies" / "text.json").read_bytes())["estimates"]
    ours = {(one["scope"], one["name"]): one["value"] for one in estimates}
    theirs = {line["arm"]: line for line in lines if line["network"] == "text_cnn"}
    pairs = [
        (float(line[key]) - float(theirs["CE"][key]), ours[arm, key] - ours["CE", key])
        for arm, line in theirs.items()
        for key in cell
        if arm != "CE" and line[key] and theirs["CE"][key] and ours.get((arm, key)) is not None
    ]
    same = sum(np.sign(a) == np.sign(b) for a, b in pairs)
    assert f"20 Newsgroups | {len(pairs)} | {same} | {len(pairs) - same} |" in page
    within = []
    for one in json.loads((ROOT / "docs" / "studies" / "sentiment-full-width.json").read_bytes())["estimates"]:
        line = next(line for line in lines if (line["network"], line["arm"]) == ("tree_lstm", one["scope"]))
        name, _, read_otherwise = one["name"].partition(" unrenormalised")  # as the paper reads the Treebank
        if one["name"] != name and not read_otherwise and name in cell and line[name]:
            within.append(one["low"] <= float(line[name]) <= one["high"])
    assert f"Treebank | {len(within)} | {sum(within)} | {len(within) - sum(within)} |" in page


def test_the_table_of_studies_counts_their_verdicts() -> None:
    text = (ROOT / "docs" / "study.md").read_text(encoding="utf-8")
    said = re.findall(r"\[([^\]]*\d[^\]]*)\]\(studies/([\w-]+)\.md\)", text)
    assert len(said) >= 14
    for words, name in said:
        result = Result.from_json((ROOT / "docs" / "studies" / f"{name}.json").read_bytes())
        verdicts = [check.message.partition(":")[0] for check in result.checks]
        for count, of, word in re.findall(r"(\d+)(?: of (\d+))?(?: claims)? ?(holds?|reversed|undecided)?", words):
            word = "holds" if word in ("hold", "") else word
            assert verdicts.count(word) == int(count), (name, words)
            assert not of or len(verdicts) == int(of), (name, words)
