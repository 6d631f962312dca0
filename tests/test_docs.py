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


# Numbers in sentences about studies are those of a result, rounded as they are printed.

NUMBER = re.compile(r"(?<![\w.#/-])-?(?:\d[\d,]*)?\.?\d+(?![\w/]|\.\d)")
TIMES = re.compile(r"([\d.]+)(?: to ([\d.]+))? times (?:the|as many) rows")
POWER = re.compile(r"(\w+) seeds find (?:straight )?(slopes that differ .*?)(?:,|$)")
SPELLED = {"three": 3, "five": 5, "ten": 10}


def numbers(text: str) -> set[float]:
    return {
        float(one.replace(",", "")) for one in re.findall(r"(?<![\w.])(?:\d[\d,]*)?\.?\d+(?:e[-+]?\d+)?(?!\w)", text)
    }


SPOKEN = {
    "ece": "ECE|calibrat",
    "nll": "NLL",
    "train_nll": "NLL|training rows",
    "error": "[Ee]rr|accura",
    "confidence_gap": r"\bgap\b|confiden",
    "train_confidence_gap": "training rows",
    "temperature": "[Tt]emperature",
    "lambda_max": "λmax",
}
"""What a paragraph about a metric says; another metric is called by its name, without what stands between its words."""


@cache
def measured(name: str) -> dict[str, set[float]]:
    """Of a result, by metric: the means and intervals of arms. Under "": claims, facts, and tables of other things."""
    parts = json.loads((ROOT / "docs" / "studies" / f"{name}.json").read_bytes())
    tables = [one for one in parts["tables"] if not one["name"].startswith("arms ")]
    kept = [tables, [one["name"] for one in parts["tables"]], parts["checks"], parts["facts"], parts.get("notes")]
    found = {"": numbers(json.dumps(kept, ensure_ascii=False))}
    for one in parts.get("estimates", []):
        of = [one.get(key) for key in ("value", "low", "high")]
        found.setdefault(one["name"].split()[0], set()).update(abs(value) for value in of if value is not None)
        found[""] |= numbers(str(one["scope"]))
    for table in (one for one in parts["tables"] if one["name"].startswith("arms ")):  # means ± SD
        for metric, cells in zip(table["columns"][1:], list(zip(*table["rows"], strict=True))[1:], strict=True):
            found.setdefault(metric.split()[0], set()).update(*(numbers(str(cell)) for cell in cells))
    return found


def about(name: str, paragraph: str) -> set[float]:
    """The numbers of a result that a paragraph may state: those of the metrics that it speaks of."""
    found = measured(name)
    said = {one for one in found if re.search(SPOKEN.get(one, "|".join(one.split("_"))), paragraph, re.IGNORECASE)}
    return set().union(*(found[one] for one in {"", *said}))


@cache
def known() -> set[float]:
    """Rows of the digits, and of the script that makes the images of 16 x 16, with the tenth that is held out; bins."""
    with np.load(ROOT / "sample_data" / "digits.npz") as digits:
        rows = {float(len(digits[name])) for name in digits.files if name.endswith("_labels")}
    page = (ROOT / "docs" / "study.md").read_text(encoding="utf-8")
    made = page[page.index("## CIFAR-10 at 16 x 16") : page.index("## The statistics")]
    return {*rows, *numbers(made), 5000 / 10, 15}


@cache
def printed() -> set[float]:
    return numbers((ROOT / "calibcli" / "lab" / "study" / "builtin" / "mukhoti2020.csv").read_text(encoding="utf-8"))


def rounds_to(number: str, allowed: set[float], scales: tuple[int, ...]) -> bool:
    """Whether a number is one of those allowed, to its digits."""
    text = number.replace(",", "").lstrip("-")
    half = 0.5 * 10.0 ** -len(text.partition(".")[2]) * (1 + 1e-9)
    return any(abs(scale * one - float(text)) <= half for one in allowed for scale in scales)


@pytest.mark.parametrize("page", RESULTS, ids=lambda page: page.name)
def test_numbers_in_the_prose_of_studies_are_those_of_their_results(page: Path) -> None:
    whole = page.read_text(encoding="utf-8").partition("<!-- study -->")[0]
    own = {page.stem} if page.with_suffix(".json").is_file() else set()
    for paragraph in re.split(r"\n\s*\n", re.sub(r"(?ms)^```.*?^```|^(?:#|!|\||    ).*?$", "", whole)):
        linked = set(re.findall(r"([\w-]+)\.md(?:#claim-[^)]*)?\)", paragraph))
        names = own | {name for name in linked if (ROOT / "docs" / "studies" / f"{name}.json").is_file()}
        words = re.sub(r"`[^`]*`", "", re.sub(r"\]\([^)]*\)", "]", " ".join(paragraph.split())))
        for sentence in re.split(r"(?<=[.!?])\s+(?=[*A-Zγλ\"\[(])", words):
            allowed = set().union(known(), *(about(name, words) for name in names))
            allowed |= printed() if OF_A_PAPER.search(sentence) or "the paper" in sentence else set()
            allowed |= numbers(sentence) if "simulations" in sentence else set()  # the test below
            scales = (1, 100) if re.search(r"%|\bpoints?\b", sentence) else (1,)
            for number in NUMBER.findall(sentence):
                assert rounds_to(number, allowed, scales), (number, sentence)
            for many in filter(None, (one for match in TIMES.findall(sentence) for one in match)):
                said = re.findall(r"([\d.]+) times the rows", str([studies().result(name).tables for name in names]))
                assert rounds_to(many, set(map(float, said)), (1,)), (many, sentence)


def test_the_power_that_a_page_states_is_the_measured_one() -> None:
    table = (ROOT / "docs" / "measured" / "study-measured.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"(?m)^\| alike: .*?(\d+) times.*? \| 1,000 \| (.*?) \|$", table))
    found = []
    for page in sorted(ROOT.glob("docs/studies/*.md")):
        for seeds, said in POWER.findall(" ".join(page.read_text(encoding="utf-8").split())):
            for fold, percent in re.findall(r"(\w+)fold in (\d+) %", said):
                column = (3, 5, 10, 20).index(SPELLED[seeds])
                assert rows[str(SPELLED[fold])].split(" | ")[column] == percent, (page.name, seeds, fold)
                found.append(percent)
    assert found


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
