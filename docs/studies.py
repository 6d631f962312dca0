"""The tables of docs/studies/NAME.md from NAME.json beside it, and those of docs/papers.md from all of them.

    python docs/studies.py           # both, and the digests in links to claims
    python docs/studies.py papers    # docs/papers.md alone

NAME.json is the result.json of `calib study NAME --save DIR`; the words around the tables are written by hand. A
sentence that states a result links to its claim, `[lower](#claim-ID "holds")`. From another page the link also names
the recipe, `[lower](studies/NAME.md#claim-ID "holds, recipe 93ce989d")`, and whether that of the package has changed
since, `"holds, older recipe 93ce989d"`. Tests compare all of it with the result and the package. tests/prose.py
compares the numbers in the words, which it knows by what is named around them: a new wording may need a line there.
"""

from __future__ import annotations

import dataclasses
import functools
import re
import shlex
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from calibcli.core.result import Cell, Check, Estimate, Result, Table
from calibcli.lab.study import parsing
from calibcli.lab.study.experiment import PrintedNumbers, Study, built_in, table_of, text_of
from calibcli.lab.study.report import digest

HERE = Path(__file__).parent / "studies"
PAPERS = HERE.parent / "papers.md"
MARKS = re.compile(r"(<!-- study -->\n).*(<!-- /study -->)", re.S)
CELLS = re.compile(r"(<!-- results -->\n).*(<!-- /results -->)", re.S)
LEFT_OUT = ("p (Holm)", "ece2_debiased", "error after", "error unrenormalised", "error after unrenormalised")
NAMES = {
    "error": "Error (Tables 3 and 9)",
    "nll": "NLL (Tables 10 and 11)",
    "ece": "ECE (Tables 1, 4 and 7)",
    "adaece": "AdaECE (Tables 2, 5 and 8)",
    "mce": "MCE (Tables 12 and 13)",
    "high_confidence_share": "Rows with a confidence of .99 or more (Table 6)",
    "high_confidence_accuracy": "Accuracy on these rows (Table 6)",
}
"""Metrics of the tables of Mukhoti et al. (2020), and their numbers there."""
ARCHIVES = {
    "CIFAR-10": "cifar-10-",
    "CIFAR-100": "cifar-100-",
    "20 Newsgroups": "20_newsgroups",
    "Stanford Sentiment Treebank": "trainDevTestTrees_PTB",
}
"""How the files of the data sets begin."""
AUTHORS = ("Mukhoti et al.", "Komisarenko and Kull", "Kimura and Naganuma", "Morosini et al.", "Tan et al.")


LINK = re.compile(r'\]\(([^)#\s]*?([\w-]+)\.md)#claim-([\w-]+) "(?:[^"]*)"\)')
OLDER = "older recipe"


@functools.cache
def result(name: str) -> Result:
    """The published result of a study, `curvature-cause-medium`."""
    return Result.from_json((HERE / f"{name}.json").read_bytes())


def today(found: Result) -> Study:
    """The recipe of the package as the command of a result asks for it."""
    name, *words = shlex.split(str(found.facts["command"]))[2:]
    options = list(zip(words[::2], words[1::2], strict=True))
    given = dict(options)
    arch = [value for key, value in options if key == "--arch"]
    seeds = int(given.get("--seeds", 0))
    return parsing.parse(*text_of(name), given.get("--size", ""), given.get("--data", ""), seeds, arch=arch)


def recipe(found: Result) -> str:
    """Its recipe by the first digits of the digest, and whether it is an older one; "" of what is computed."""
    sha256 = str(found.facts.get("recipe_sha256", ""))
    return f"{'' if sha256 == digest(today(found)) else 'older '}recipe {sha256[:8]}" if sha256 else ""


def otherwise(found: Result) -> list[str]:
    """The claims that today's recipe asks otherwise, or no more, or without a verdict (the slope of a ladder)."""
    asked = {claim.id: claim for claim in today(found).claims}

    def same(name: str, check: Check) -> bool:
        claim, kind = asked.get(name), check.estimate.how.partition(":")[0] if check.estimate else ""
        ladder = claim and claim.kind == "slope" and not claim.keys.get("drawn") and word(check) != "no verdict"
        return bool(claim and claim.text == check.rule and kind in ("", claim.kind) and not ladder)

    return [name for name, check in claims(found).items() if not same(name, check)]


def of_recipe(found: Result) -> str:
    """The line of a page that says by which recipe its verdicts are, and what has changed since."""
    sha256 = str(found.facts.get("recipe_sha256", ""))
    line = f"Recipe: sha256 `{sha256}`."
    if OLDER not in recipe(found):
        return line
    line += f" It is an **{OLDER}** than that of the package, `{digest(today(found))}`. "
    if not (differing := otherwise(found)):
        return line + "Today's asks all these claims in the same words."
    return line + f"Today's asks otherwise, no more, or without a verdict: {', '.join(differing)}."


def linked(text: str) -> str:
    """A page whose links to claims of other pages have the verdict and its recipe as their titles."""

    def link(match: re.Match[str]) -> str:
        found = result(match[2])
        check = next(check for name, check in claims(found).items() if anchor(name) == match[3])
        return f']({match[1]}#claim-{match[3]} "{", ".join(filter(None, (word(check), recipe(found))))}")'

    return LINK.sub(link, text)


def tables(result: Result) -> str:
    """Its sentence, its claims, its arms, what differs from the paper, and how to do it again."""
    facts = result.facts
    shown = result.tables if result.tables[0].name == "claims" else [_of_checks(result), *result.tables]
    older = [f"These verdicts are by an **{OLDER}**, see below."] if OLDER in recipe(result) else []
    parts = [f"**{facts['headline']}**", *older] + [markdown(_anchored(table)) for table in shown]
    again = [
        f"    {facts['command']} --save out/{facts['study']}",
        of_recipe(result),
    ]
    if "spent" in facts:
        again[-1] += f" Spent here, with other processes at work: {60 * facts['spent']['hours']:.0f} minutes."
    cite = f"```bibtex\n{facts['cite']}\n```"
    return "\n\n".join([*parts, *again, cite]) + "\n"


def claims(result: Result) -> dict[str, Check]:
    """The checks of a study by the id of their claim; those that are computed without training have numbers."""
    return {check.scope or str(number): check for number, check in enumerate(result.checks, 1)}


def word(check: Check) -> str:
    """Holds, reversed, undecided, not comparable or no verdict."""
    return check.message.partition(":")[0]


def _of_checks(result: Result) -> Table:
    rows: list[list[Cell]] = [[name, one.rule, word(one)] for name, one in claims(result).items()]
    return Table(name="claims", columns=["claim", "text", "verdict"], rows=rows, title="Claims")


def _anchored(table: Table) -> Table:
    """Claims with a place that a sentence can link to."""
    if table.name != "claims":
        return table
    rows = [[f'<a id="claim-{anchor(str(name))}"></a>{name}', *others] for name, *others in table.rows]
    return dataclasses.replace(table, rows=rows)


def anchor(name: str) -> str:
    """The id of a claim as a part of a link; of several networks they follow it."""
    return re.sub(r"[^\w-]+", "-", name).strip("-")


def shown(name: str) -> bool:
    """Whether a page has the column: not numbers of the log, and of the ways to choose a temperature the ECE alone."""
    return not name.endswith("%") and (" after temperature:" not in name or name.startswith("ece "))


def markdown(table: Table) -> str:
    """A table with its title."""
    kept = [i for i, name in enumerate(table.columns) if name not in LEFT_OUT and shown(name)]
    lines = [table.columns, ["---"] * len(table.columns), *table.rows]
    text = "\n".join("| " + " | ".join(str(line[i]) for i in kept) + " |" for line in lines)
    return f"{table.title or table.name}:\n\n{text}"


def written(page: Path) -> str:
    """A page with its tables as they are in its JSON."""
    result = Result.from_json(page.with_suffix(".json").read_bytes())
    return MARKS.sub(lambda m: f"{m[1]}{tables(result)}{m[2]}", page.read_text(encoding="utf-8"))


# docs/papers.md: every printed cell and every claim that has been run at any size, ours beside it.


@dataclasses.dataclass(frozen=True)
class Published:
    """A study whose result is in docs/studies/."""

    name: str
    result: Result
    paper: Study

    @property
    def network(self) -> str:
        """Of its first table of arms."""
        return next((t.name.removeprefix("arms ") for t in self.result.tables if t.name.startswith("arms ")), "")

    @property
    def size(self) -> str:
        """Seeds and test rows."""
        rows = self.result.facts.get("rows")
        return f"{self.result.facts.get('seeds')} seeds" + (f" x {rows:,} rows" if rows else "")

    @property
    def head(self) -> str:
        """What a column of its numbers is of."""
        return f"[ours]({self._page}): {self.network}, {self._rows}, {self.size}"

    @property
    def differs(self) -> str:
        """What differs from the paper, in short, with a link to all of it."""
        if not self.network:
            return "computed"
        return f"{self.network}, {self._rows}; [all](studies/{self.name}.md)"

    def value(self, arm: str, name: str) -> float | None:
        """The number of an arm; None where it was not measured."""
        return next((e.value for e in self.result.estimates if e.name == name and e.scope == arm), None)

    def has(self, arm: str, name: str) -> bool:
        """Whether it has a number of this arm and metric."""
        return self.value(arm, name) is not None

    def sign(self, arm: str, name: str) -> int:
        """The sign of the difference of an arm from cross-entropy: 1, 0 or -1."""
        return sign_of((self.value(arm, name) or 0.0) - (self.value("CE", name) or 0.0))

    def full(self, row: PrintedNumbers, data: str) -> bool:
        """Whether it was run at the size of the paper, on its network, data and test rows."""
        return self.result.facts.get("size") == "paper" and self.of_paper(row, data)

    def of_paper(self, row: PrintedNumbers, data: str) -> bool:
        """Whether it has the network, data and test rows of a printed row, if not all of its training."""
        facts = self.result.facts
        here = f"--data {ARCHIVES[data]}" in facts["command"]
        return here and (self.network, facts.get("rows")) == (row.network, row.rows)

    def within(self, row: PrintedNumbers, name: str) -> bool:
        """Whether the interval of its number has the printed one inside."""
        one = next(e for e in self.result.estimates if e.name == name and e.scope == row.arm)
        return one.low is not None and one.high is not None and one.low <= row.numbers[name] <= one.high

    @property
    def _page(self) -> str:
        return f"studies/{self.name}.md"

    @property
    def _rows(self) -> str:
        for table in (t for t in self.result.tables if t.name == "differs"):
            for what, *_, here in table.rows:
                if what == "training rows":
                    return str(here).removesuffix("#train")
        return "the rows of the paper"


def published() -> list[Published]:
    """All of docs/studies/, each with the recipe of the paper's size."""
    found = []
    for path in sorted(HERE.glob("*.json")):
        result = Result.from_json(path.read_bytes())
        name = str(result.facts["study"])
        if name in built_in():
            found.append(Published(path.stem, result, parsing.parse(*text_of(name), "paper", "DATA")))
    return found


def counts(studies: list[Published]) -> Iterator[str]:
    """Tables of how many printed cells were run, have the printed sign, and have the printed number in their interval.

    A cell is a number of a loss on a network and data set; temperatures are no cells of their own, and are counted by
    themselves. It is run in full if a study of the paper's size has its network and test rows, and otherwise if one has
    its loss and its metric. Its sign is that of the difference from cross-entropy.
    """
    table = table_of("mukhoti2020.csv")
    groups = dict.fromkeys((row.network, row.data) for row in table)
    ours = [one for one in studies if one.paper.printed]
    rows: list[list[Cell]] = []
    for network, data in groups:
        printed = [(row, name) for row in table if (row.network, row.data) == (network, data) for name in cells_of(row)]
        of_network = [one for one in ours if one.paper.arch[0] == network]
        full = sum(any(one.full(row, data) and one.has(row.arm, name) for one in ours) for row, name in printed)
        smaller = sum(any(one.has(row.arm, name) for one in of_network) for row, name in printed) - full
        asks = max(of_network or ours, key=lambda one: len(one.paper.arms)).paper
        words = [asks.name, asks.cost] if of_network else [f"{asks.name}, `--arch`", "as many runs, see above"]
        rows.append([network, data, len(printed), full, smaller, len(printed) - full - smaller, *words])
    total = [sum(int(str(row[i])) for row in rows) for i in range(2, 6)]
    heads = [
        "network",
        "data",
        "printed cells",
        "run in full",
        "at a smaller size, or trained otherwise",
        "not run",
        "recipe",
        "cost in full",
    ]
    rows.append(["all", "", *total, "", ""])
    yield markdown(
        Table(name="counts", columns=heads, rows=rows, title="Printed cells of Mukhoti et al. that were run")
    )
    signs: list[list[Cell]] = []
    intervals: list[list[Cell]] = []
    for one in ours:
        for data in (data for network, data in groups if network == one.paper.arch[0]):
            printed_rows = [row for row in table if (row.network, row.data) == (one.paper.arch[0], data)]
            base = next(row for row in printed_rows if row.arm == "CE")
            link = f"[{one.name}](studies/{one.name}.md)"
            signs.append([link, data])
            if one.of_paper(base, data):
                intervals.append([link, data])
            for names_of in (cells_of, temperatures_of):
                measured = [(row, name) for row in printed_rows for name in names_of(row) if one.has(row.arm, name)]
                pairs = [(row, name) for row, name in measured if row.arm != "CE" and name in base.numbers]
                same = sum(
                    sign_of(row.numbers[name] - base.numbers[name]) == one.sign(row.arm, name) for row, name in pairs
                )
                signs[-1] += [len(pairs), same, len(pairs) - same]
                if one.of_paper(base, data):
                    within = sum(one.within(row, name) for row, name in measured)
                    intervals[-1] += [len(measured), within, len(measured) - within]
    heads = ["ours", "printed, of"]
    by_sign = ["cells beside that of CE", "the sign that is printed", "another sign"]
    by_sign += ["temperatures beside that of CE", "the printed sign of these", "another sign of these"]
    yield markdown(
        Table(
            name="signs",
            columns=[*heads, *by_sign],
            rows=signs,
            title="Cells at a smaller size, or trained otherwise, by the sign of their difference from cross-entropy",
        )
    )
    by_interval = ["cells", "printed within our 95 % interval", "outside"]
    by_interval += ["temperatures", "of these within", "of these outside"]
    yield markdown(
        Table(
            name="intervals",
            columns=[*heads, *by_interval],
            rows=intervals,
            title="Cells of the paper's network and test rows, by our interval",
        )
    )


def sign_of(difference: float) -> int:
    """1, 0 or -1."""
    return (difference > 0) - (difference < 0)


def cells_of(row: PrintedNumbers) -> list[str]:
    """The numbers of a printed row that are cells: not the temperatures, which stand in brackets beside others."""
    return [name for name in row.numbers if not name.startswith("temperature")]


def temperatures_of(row: PrintedNumbers) -> list[str]:
    """The best temperatures of a printed row, those in brackets."""
    return [name for name in row.numbers if name.startswith("temperature")]


def cells(studies: list[Published]) -> Iterator[str]:
    """A table for each metric that the paper prints, of each of its networks that a recipe has."""
    for network in dict.fromkeys(one.paper.arch[0] for one in studies if one.paper.printed):
        ours = [one for one in studies if one.paper.printed and one.paper.arch[0] == network]
        table = [row for row in table_of("mukhoti2020.csv") if row.network == network]
        data = list(dict.fromkeys(row.data for row in table))
        for metric, title in NAMES.items():
            names = [n for n in dict.fromkeys(n for row in table for n in row.numbers) if n.split()[0] == metric]
            theirs = {(row.arm, row.data): [_number(row.numbers, name) for name in names] for row in table}
            rows: list[list[Cell]] = [
                [
                    arm,
                    *(" → ".join(filter(None, theirs[arm, of])) for of in data),
                    *(" → ".join(filter(None, (_measured(one.result, n, arm) for n in names))) for one in ours),
                ]
                for arm in dict.fromkeys(row.arm for row in table)
                if any(any(theirs[arm, of]) for of in data)
            ]
            if any(any(row[1 + len(data) :]) for row in rows):
                heads = ["loss", *(f"printed: {network}, {of}" for of in data), *(one.head for one in ours)]
                said = f"{title}, {' and '.join(data)}; in percent"
                yield markdown(Table(name="cells", columns=heads, rows=rows, title=said))


def _number(numbers: Mapping[str, float], name: str) -> str:
    """A printed number, with the temperature that it is measured after in brackets."""
    if name not in numbers:
        return ""
    first, _, way = name.partition(" ")
    temperature = numbers.get(f"temperature {way}") if way.startswith("after") and "ece" in first else None
    return f"{100 * numbers[name]:.2f}" + ("" if temperature is None else f" ({temperature:g})")


def _measured(result: Result, name: str, arm: str) -> str:
    """A measured number with its interval."""
    one: Estimate | None = next((e for e in result.estimates if e.name == name and e.scope == arm), None)
    if one is None or one.value is None:
        return ""
    text = f"{100 * one.value:.2f}"
    return text if one.low is None or one.high is None else f"{text} [{100 * one.low:.2f}, {100 * one.high:.2f}]"


def verdicts(studies: list[Published]) -> Iterator[str]:
    """A table of claims for each paper."""
    for author in AUTHORS:
        rows: list[list[Cell]] = []
        for one in (one for one in studies if re.findall("|".join(AUTHORS), one.paper.paper)[0] == author):
            for name, check in claims(one.result).items():
                value = check.estimate
                number = f"{value.value:.4g}" if value and value.value is not None else ""
                number += f" [{value.low:.4g}, {value.high:.4g}]" if value and value.low is not None else ""
                link = f"[{word(check)}](studies/{one.name}.md#claim-{anchor(name)})"
                by = recipe(one.result)
                by += (
                    "; today's asks otherwise, or gives no verdict"
                    if OLDER in by and name in otherwise(one.result)
                    else ""
                )
                rows.append([check.rule, link, by, number, one.size if one.network else "", one.differs])
        heads = ["claim", "verdict", "by", "ours", "of", "what differs"]
        yield markdown(Table(name="claims", columns=heads, rows=rows, title=f"Claims about {author}"))


def papers() -> str:
    """docs/papers.md with its tables as the results of the studies have them."""
    studies = published()
    text = "\n\n".join([*counts(studies), *cells(studies), *verdicts(studies)]) + "\n"
    return CELLS.sub(lambda m: f"{m[1]}{text}{m[2]}", PAPERS.read_text(encoding="utf-8"))


if __name__ == "__main__":
    for path in sorted(HERE.glob("*.md")) if sys.argv[1:] != ["papers"] else ():
        path.write_text(written(path), encoding="utf-8")
    PAPERS.write_text(papers(), encoding="utf-8")
    for path in () if sys.argv[1:] == ["papers"] else (HERE.parent.parent / "README.md", *HERE.parent.rglob("*.md")):
        path.write_text(linked(path.read_text(encoding="utf-8")), encoding="utf-8")
