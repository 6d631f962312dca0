"""Numbers in the words about studies, against the results that they are of.

A number is right if one of a result rounds to it, and if what that one is of is named around it: a link to its claim,
its metric (the nearest that is named), its arms with their doses. What a sentence does not name, its paragraph may.
Numbers of simulations are those of the saved outputs of benchmarks.
"""

from __future__ import annotations

import csv
import itertools
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from calibcli.lab.study.experiment import text_of

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "docs" / "studies"
DIGITS = r"(?:\d[\d,]*)?\.?\d+(?:e[-+]?\d+)?"
NUMBER = re.compile(rf"(?<![\w.#/-])[-+]?{DIGITS}(?![\w/]|\.\d)")
OF = re.compile(
    rf"[-+]?{DIGITS}(?: ± {DIGITS})? (?:%|points |more |less )?(?:(?:in|of|for) )?(?:the )?(?:confidence )?"
)
WORDS = ["none", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"]
COUNTS = {word: n + (n > 0) for n, word in enumerate(WORDS)} | {"thirteen": 13, "fourteen": 14, "fifteen": 15}
OF_RESULTS = "pairs|cells|checks|claims|causes|networks"
COUNTED = rf"(?= (?:of (?:the )?(?:\w+ ){{0,2}}|\w+ )?(?:{OF_RESULTS})| of (?:the )?\d| lie)"
SPELLED = re.compile(rf"(?i)\b({'|'.join(COUNTS)})\b{COUNTED}")
LINKED = re.compile(r"\]\((?:[^)#\s]*?([\w-]+)\.md)?#claim-([\w-]+)[^)]*\)")
LEFT_OUT = (
    r"`[^`]*`|\b(?:19|20)\d\d\b|\b(?:Tables?|Figures?|Sections?|ResNet-|degrees?|up to) ?\d+(?: (?:to|and) \d+)?\b"
)

METRICS = {
    "ece": "(?<!Ada)ECE|calibrat",
    "nll": "NLL|nats",
    "train_nll": r"NLL (?:of|on) (?:the|its|their) training rows|training NLL|training rows(?: by heart \(NLL)?",
    "error": r"\b[Ee]rr(?:or|s)?\b|accura",
    "confidence_gap": r"\bgaps?\b|\bconfidence\b",
    "train_confidence_gap": "training rows",
    "temperature": r"[Tt]emperature|\bT\b",
    "lambda_max": "λmax",
    "trace": r"\btraces?\b",
    "fisher_rao": "Fisher-Rao(?: norm)?",
    "margin_tail": r"\btail\b",
    "entropy": r"(?<!-)\b[Ee]ntropy\b|nats",
    "last_weight_norm": r"\bnorms?\b|weights",
    "nll_wrong": "NLL|mistakes",
    "mce": r"\bMCE",
    "adaece": "AdaECE",
    "high_confidence_share": r"\bsure|often",
    "high_confidence_accuracy": r"\bright\b",
}
ARMS = {
    "CE": r"[Cc]ross-entropy|\bCE\b|plain|γ = 0",
    "FL": r"γ|[Ff]ocal loss|\bFL\b",
    "FLA-53": "FLA-53",
    "FLSD-53": "FLSD-53",
    "SAM": "SAM|radius",
    "smoothing": "smooth",
    "decay": "decay",
    "trace": r"penal|\bweight\b",
    "batch": "[Bb]atch",
    "lr": "[Ll]earning rate",
    "permuted": "permut|other labels",
    "rescaled": r"\blayer",
    "scaled": "logits",
    "sum": "the sum|clipped sum",
    "entropy": "bonus",
    "Brier": "Brier",
    "MMCE": "MMCE",
}
CAUSES = {
    "gamma": "FL",
    "rho": "SAM",
    "weight": "trace",
    "batch_size": "batch",
    "bonus": "entropy",
    "label": "smoothing",
}
BASE = frozenset(["CE", "mean"])
ITS = re.compile(r"\b(?:[Ii]ts?|[Tt]heir|[Tt]hey|[Tt]hese|[Bb]oth|That|there)\b")  # of what the last sentence names
AGAINST = re.compile(r"\b(?:from|against|between|without|neither|[Tt]wice)\b")  # what is not named, the base
CHANGED = {"permuted", "rescaled", "scaled"}
DOSE = r"(?:\b(?:of|and|than|SAM|batch|both|radius)|=|-) ?{}(?!\d|\.\d)"
DOSED = re.compile(r"(?:γ =|radius|[Bb]atch(?: of)?|smoothing(?: of)?|decay of|bonus\W+of|[Ll]earning rate of) $")
KINDS = {
    "after": "[Tt]emperature",
    "log": r"epochs|\bgoes\b|rises|falls|steps|moment",
    "power": "could have found|would be sure",
    "more": r"\b(?:more|less|larger|smaller|higher|lower|difference|within)\b",
    "interval": "anything|before the correction|may as well|inside of the interval",
    "paper": r"\bpaper|printed|[Tt]heir|[Tt]hey|Mukhoti",
    "over networks": r"Spearman|correlation|\brange\b|spread",
}
"""What is said where a number of a kind is."""
GONE = (
    r"\bp = |without (?:the|decay)|correlation between|correlated|row does|rows do to|these do to|It is \.|make [\d,]+,"
    "|old test"
)
"""Of sentences with numbers that no saved output has: they were printed from runs that are gone."""


@dataclass(frozen=True)
class Fact:
    """A number of a result: how it is written, and what has to be named around it."""

    value: float
    role: str = ""  # ± or [ before it; "=" exactly as it is, "recipe" as well, but no share or count; "dose" of an arm
    metrics: frozenset[str] = frozenset()
    arms: frozenset[str] = frozenset()
    claim: str = ""
    kind: str = ""


def role_at(text: str, at: int) -> str:
    before = text[:at].rstrip()
    return "±" if before.endswith("±") else "[" if re.search(r"\[[-\d., ]*$", before) else ""


def parsed(cell: object) -> Iterator[tuple[float, str]]:
    for found in re.finditer(f"(?<![A-Za-z])[-+]?{DIGITS}", str(cell)):
        yield float(found[0].replace(",", "")), role_at(str(cell), found.start())


def first(name: str) -> frozenset[str]:
    return frozenset(name.split()[:1])


def bounds(one: dict[str, Any] | None) -> list[tuple[float, str]]:
    of = ((one[key], role) for key, role in (("value", ""), ("low", "["), ("high", "["))) if one else ()
    return [(value, role) for value, role in of if value is not None]


@cache
def result(name: str) -> Any:
    return json.loads((FOLDER / f"{name}.json").read_bytes())


def means(name: str) -> dict[tuple[str, str], float]:
    return {(one["scope"], one["name"]): one["value"] for one in result(name)["estimates"] if one["value"] is not None}


@cache
def facts(name: str) -> tuple[Fact, ...]:
    found = [*of_arms(name), *of_claims(name), *of_tables(name), *counts(name), *over_networks(name), *of_paper(name)]
    said = [text_of(result(name)["facts"]["study"])[0], *(result(name)["facts"].get(key) for key in ("rows", "cost"))]
    return tuple(dict.fromkeys([*found, *(Fact(value, "recipe") for one in said for value, _ in parsed(one))]))


def of_arms(name: str) -> Iterator[Fact]:
    ours = means(name)
    yield Fact(0, "dose")
    for one in result(name)["estimates"]:
        metric, of = one["name"], (first(one["name"]), frozenset([one["scope"]]), "")
        kind = "after" if " after" in metric else "log" if " at " in metric else ""
        yield from (Fact(value, role, *of, kind) for value, role in bounds(one))
        yield from (Fact(value, "", *of, "interval") for value, role in bounds(one) if role and not kind)
        if {("CE", metric), (one["scope"], metric)} <= ours.keys() and not kind:
            yield Fact(one["value"] - ours["CE", metric], "", *of, "more")
        yield from (Fact(float(number), "dose") for number in [dose(one["scope"])] if number)


def of_claims(name: str) -> Iterator[Fact]:
    tables = [one for one in result(name)["tables"] if one["name"] == "claims"]
    rows = {row[0]: dict(zip(one["columns"], row, strict=True)) for one in tables for row in one["rows"]}
    for n, one in enumerate(result(name)["checks"], 1):
        row = rows.get(one["scope"] or str(n), {})
        claim = f"{name}#{one['scope'] or n}" if result(name)["estimates"] else ""  # none of what is computed
        power = list(parsed(row.get("could have shown", "")))
        said = parsed(f"{one['message']} p {row.get('p (Holm)', '')}")
        yield from (Fact(value, role, claim=claim) for value, role in [*bounds(one["estimate"]), *said, *power])
        yield from (Fact(value, "", claim=claim, kind="interval") for value, role in bounds(one["estimate"]) if role)
        arms = frozenset([one["scope"]] if family(one["scope"]) and one["scope"] not in METRICS else ())
        metrics = first(one["estimate"]["name"]) if one["estimate"] else frozenset[str]()
        yield from (Fact(value, "", metrics, arms, "", "power") for value, _ in power)
        yield from (Fact(value, "=") for value, _ in parsed(one["rule"]))


def of_tables(name: str) -> Iterator[Fact]:
    """Standard deviations of arms, slopes of causes, and all other numbers."""
    for table in result(name)["tables"]:
        for row, (column, cell) in itertools.product(table["rows"], enumerate(table["columns"])):
            numbers = list(parsed(row[column]))
            if table["name"].startswith("arms "):
                spread = [value for value, role in numbers if role == "±"]
                yield from (Fact(value, "±", first(cell), frozenset([row[0]])) for value in spread)
            elif table["name"] == "causes":
                y, x = (first(one) for one in row[0].split(" against "))
                of = (frozenset[str](), frozenset[str](), x, y, x | y)[column]
                yield from (Fact(value, role, of, frozenset([row[1]])) for value, role in numbers)
            elif table["name"] != "claims":
                about = "recipe" if table["name"] in ("differs", "checks") else ""
                yield from (Fact(value, about or role) for value, role in numbers)
                yield from (Fact(value, "dose") for value, _ in numbers if cell == "gamma")


def counts(name: str) -> Iterator[Fact]:
    """How many claims, verdicts, checks, causes and networks there are, and printed cells within our intervals."""
    tables, inside = {one["name"]: one["rows"] for one in result(name)["tables"]}, []
    words = [one["message"].partition(":")[0] for one in result(name)["checks"]]
    for title in (one for one in tables if one.startswith("printed ")):
        for cell, printed in zip(tables[title][0][2:], tables[title][1][2:], strict=True):
            low, high = [number for number, role in parsed(cell) if role == "["]
            inside += [(title, low <= value <= high) for value, _ in itertools.islice(parsed(printed), 1)]
    causes = {row[1] for row in tables.get("causes", ())}
    trained = {arm for arm, _ in means(name) if not family(arm) & CHANGED}
    many = [
        *map(len, (words, causes, trained, inside, tables.get("checks", ()))),
        result(name)["facts"].get("seeds", 0),
    ]
    many += [*map(words.count, words), *map([ok for _, ok in inside].count, (0, 1))]
    return (Fact(one, "=") for one in [*many, *(inside.count((title, True)) for title in tables)])


def over_networks(name: str) -> Iterator[Fact]:
    """Rank correlations with the gap, its range and its spread, and the lines through the networks of each cause."""
    ours = means(name)
    arms = [arm for arm, metric in ours if metric == "confidence_gap" and not family(arm) & CHANGED]
    gap = np.array([ours[arm, "confidence_gap"] for arm in arms])
    if not name.startswith("curvature-") or not arms:
        return
    yield from (Fact(value, "", kind="over networks") for value in (np.ptp(gap), gap.std()))
    for metric in ("temperature", "trace of ce", "trace after of ce", "fisher_rao of ce"):
        if (arms[0], metric) in ours:
            x = np.array([ours[arm, metric] for arm in arms])
            yield Fact(stats.spearmanr(x, gap)[0], "", first(metric), kind="over networks")
            if len(arms) == 60:  # those that are drawn
                yield Fact((gap - np.polyval(np.polyfit(np.log(x), gap, 4), np.log(x))).std(), kind="over networks")
                for cause in {min(family(arm)) for arm in arms}:
                    own = [cause in family(arm) for arm in arms]
                    line = stats.linregress(np.log(x[own]), gap[own])
                    of = (line.slope, ""), (line.stderr * stats.t.ppf(0.975, sum(own) - 2), "±"), (sum(own), "=")
                    yield from (Fact(value, role, first(metric), frozenset([cause])) for value, role in of)


def of_paper(name: str) -> Iterator[Fact]:
    network = {"text": "text_cnn", "sentiment": "tree_lstm"}.get(name.split("-")[0], "resnet50:init=default")
    with (ROOT / "calibcli" / "lab" / "study" / "builtin" / "mukhoti2020.csv").open(encoding="utf-8") as file:
        ours = [one for one in csv.DictReader(file) if one["network"] == network and one["data"] != "CIFAR-100"]
        for line in ours:
            for key in [key for key, cell in line.items() if cell and key.split()[0] in METRICS]:
                yield Fact(float(line[key]), "", first(key), frozenset([line["arm"]]), "", "paper")


@cache
def known() -> tuple[Fact, ...]:
    """Rows of the digits, and of the script of the images of 16 x 16, the tenth held out; bins; levels; margins."""
    with np.load(ROOT / "sample_data" / "digits.npz") as digits:
        rows = [len(digits[name]) for name in digits.files if name.endswith("_labels")]
    page = (ROOT / "docs" / "study.md").read_text(encoding="utf-8")
    made = page[page.index("## CIFAR-10 at 16 x 16") : page.index("## The statistics")]
    of = (value for value, _ in parsed(made))
    return (*(Fact(value, "recipe") for value in {*rows, 5000 / 10, 15, *of}), Fact(95, "="), Fact(20, "="))


@cache
def family(arm: str) -> frozenset[str]:
    """Words of ARMS for an arm or a cause."""
    words = [CAUSES.get(word, word) for word in (arm, *re.split("[ ,]+", arm), arm.split("-")[0])]
    return frozenset(words) & {*ARMS, *BASE}


@cache
def dose(arm: str) -> str:
    found = re.search(r"[- ]0?(\.?\d[\d.]*)(?: mean| sum)?$", arm.split(",")[0])
    return found[1] if found and not arm.startswith(("FLA", "FLS")) else ""


def said(words: dict[str, str], text: str) -> frozenset[str]:
    return frozenset(one for one, which in words.items() if re.search(which, text))


def nearest(text: str, at: int) -> frozenset[str]:
    """The metric that a number is *of* or *for*; else those that are named nearest before it, or else after it."""
    text = re.sub(r"[Aa]fter (?:\w+ ){1,2}temperature", lambda one: "_" * len(one[0]), text)
    found = [(match.start(), match.end(), one) for one, of in METRICS.items() for match in re.finditer(of, text)]
    before = max((end for _, end, _ in found if end <= at), default=0)
    after = min((start for start, _, _ in found if start >= at), default=0)
    follows = after and OF.fullmatch(text[at:after])
    return frozenset(one for start, end, one in found if (start == after if follows or not before else end == before))


def stands(fact: Fact, sentence: str, at: int, context: str, claims: set[str], arms: set[str]) -> bool:
    """Whether what a number is of is named around its place; of an arm the dose, too, if any of its kind is."""
    if fact.claim and fact.claim not in claims:
        return False
    if fact.kind and not re.search(KINDS[fact.kind], f"{sentence} {context}"):
        return False
    if fact.metrics and not fact.metrics & (nearest(sentence, at) or said(METRICS, context) or fact.metrics):
        return False
    near = next((text for text in (sentence, context) if said(ARMS, text)), "")
    if not near or re.search(r"\b(?:others|these)\b", sentence):
        return True
    told = said(ARMS, near) | (BASE if AGAINST.search(sentence) else frozenset(["mean"]))
    for arm in fact.arms:
        alike = [
            dose(one)
            for one in arms
            if family(one) == family(arm) and re.search(DOSE.format(re.escape(dose(one))), near)
        ]
        if not family(arm) <= told or (dose(arm) and alike and dose(arm) not in alike):
            return False
    return True


ROLES = {"": ("", "=", "recipe"), "%": ("", "="), "count": ("", "=")}
"""The roles of numbers that one in a sentence may state, by what stands beside it; else, its own."""


def role_in(words: str, at: int, end: int) -> str:
    """As `role_at`, or what its neighbours make of it."""
    if re.match(COUNTED, words[end:]) or re.search(r"\d of (?:the )?$", words[:at]):
        return "count"
    share = re.match(rf"(?: (?:and|to|against) {DIGITS})? %", words[end:]) or words[at:end] == words  # a cell
    return role_at(words, at) or ("dose" if DOSED.search(words[:at]) else "%" if share else "")


def fits(number: str, fact: Fact, role: str, scales: tuple[int, ...]) -> bool:
    text, exact = number.replace(",", ""), role == "count" or fact.role in ("=", "recipe", "dose")
    if fact.role not in ROLES.get(role, (role,)) or (exact and (text[0] in "+-" or re.search(r"\..*0$", text))):
        return False
    mantissa, _, power = text.partition("e")
    half = 1e-9 if exact else 0.5 * 10.0 ** (int(power or 0) - len(mantissa.partition(".")[2])) * (1 + 1e-9)
    sides = (fact.value,) if text[0] in "+-" else (fact.value, -fact.value)
    return any(abs(scale * side - float(text)) <= half for side in sides for scale in ((1,) if exact else scales))


TOPICS = {
    "errors off a curve": ("claims_curves", "(gamma|lr) off by 8"),
    r"flat and then|\bbend\b": ("claims_curves", "bend"),
    "arms of one cause": ("claims_curves", "seeds of a cause"),
    "published arms": ("claims_curves", "as published"),
    "true curve|curves that are true": ("claims_curves", "c/x|saturating|U|flat|step of 1"),
    "standard errors of an arm": ("claims_curves", "(gamma|lr) off by [24] SE"),
    "best polynomial misses by one": ("claims_sharp", "off by 1 SE"),
    "slopes (?:apart )?that differ": ("claims_measured", "alike: .* times the slope"),
    "trace (?:alone )?decides": ("drawn", "trace alone"),
    "T alone decides": ("drawn", "^T alone"),
    "standard deviation of ln T|effect of T": ("drawn", "SD of ln T"),
    "standard deviation of ln error": ("drawn", "SD of the error"),
    "for one cause, the batch": ("drawn", "cause, batch"),
    "for one cause, label": ("drawn", "cause, smoothing"),
}
"""What is said about simulations: the file of benchmarks/results, and lines of its tables."""
NAMED = {r"(\d+) arms (?:of|and)": "arms", r"(\d+)fold": "times"}
COLUMNS = {"= `depends`: T": "T given", "= `depends`: error": "error", "= `one_curve`": "one curve"}


@cache
def output(name: str) -> tuple[tuple[str, str, dict[str, str]], ...]:
    """Lines of the tables of a saved output: size, label and cells; arms are 15 if a line does not say."""
    found, head, size = [], [""], "digits"
    for line in (ROOT / "benchmarks" / "results" / f"{name}.txt").read_text(encoding="utf-8").splitlines():
        label, *cells = re.split(r" *\| +", line.strip("| "))
        if not line.startswith("|"):
            head = [""]
            size = ("medium" if "medium" in line else "digits") if line else size
        elif len(head) == 1:
            head = cells
        elif cells:
            at, _, of = label.rpartition(": ") if label.startswith(("digits", "medium")) else (size, "", label)
            if name == "claims_sharp":  # counts of studies, in bold if surely above 6 %
                cells = [re.sub(r"^\**(\d+)\**$", r"\1 of 300", cell) for cell in cells]
            found.append((at, of if "," in of else f"{of}, 15 arms", dict(zip(head, cells, strict=True))))
    return tuple(found)


def simulated(words: str, context: str, own: str) -> Iterator[Fact]:
    """Numbers that a sentence about simulations may state: of lines, seeds and arms that it names, and sums of them."""
    topics = (of for text in (words, context) for which, of in TOPICS.items() if re.search(which, text))
    file, topic = next(topics, ("drawn", "^$"))
    words = re.sub(rf"\b({'|'.join(COUNTS)})(?=\b|fold)", lambda one: str(COUNTS[one[0]]), words)
    words = words.replace("these arms", "15 arms")
    named = [
        rf"\b({'|'.join(re.findall(which, words))}) {noun}" for which, noun in NAMED.items() if re.search(which, words)
    ]
    named += [re.escape(row[0]) for row in [re.match(r"\.\d+", context)] if row]  # the head of a line
    asked = tuple(f"{one} seeds" for one in re.findall(r"(\d+) seeds", words))
    asked = asked or tuple(column for which, column in COLUMNS.items() if which in context) or ("",)
    lines = [one for one in output(file) if all(re.search(which, one[1]) for which in [topic, *named])]
    yield from (Fact(value, "=") for _, label, _ in lines for value in [6, 60, *(value for value, _ in parsed(label))])
    for size in ("medium" if own.endswith("medium") and file != "claims_measured" else "digits", ""):
        of = [one for at, _, cells in lines if at.startswith(size) for one in cells.items()]
        cells = [cell for column, cell in of if column.startswith(asked)]
        pairs = [tuple(map(float, one)) for cell in cells for one in re.findall(r"(\d+) of (\d+)", cell)]
        yield from (Fact(sum(one), "=") for one in zip(*pairs, strict=True))
        if size:
            yield from (Fact(100 * a / b) for a, b in pairs)
            yield from (Fact(value) for cell in cells for value, _ in parsed(cell.split(", ")[-1]))


def paragraphs(text: str) -> Iterator[tuple[str, list[str], str]]:
    """What stands around sentences, and they; the cells of a table are sentences, with what is said before it."""
    heading = before = ""
    text = re.sub(r"(?ms)^```.*?^```|^(?:!|    ).*?$", "", text.partition("<!-- study -->")[0])
    for part in map(str.strip, re.split(r"\n\s*\n", text)):
        if part.startswith("|"):
            head, _, *rows = ([cell.strip() for cell in line[1:-1].split("|")] for line in part.splitlines())
            for row, (column, cell) in itertools.product(rows, enumerate(head)):
                yield f"{row[0]}, {head[0]} = {cell}", split(row[column] if column else ""), before
        elif part.startswith("#"):
            heading = part
        else:
            before = " ".join(part.split())
            yield f"{before} {heading}", split(before), ""


def split(text: str) -> list[str]:
    return re.split(r"(?<=[.!?])\s+(?=[*A-Zγλ\"\[(])", text)


def plain(text: str) -> str:
    text = re.sub(LEFT_OUT, "", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text))
    return SPELLED.sub(lambda one: str(COUNTS[one[0].lower()]), text)


def wrong(text: str, own: str = "") -> list[tuple[str, str]]:
    """The numbers of a page about studies, or of the study `own`, that no result has, with their sentences."""
    found = []
    for context, sentences, before in paragraphs(text):
        whole = " ".join([context, *sentences])
        linked = map("".join, re.findall(r"([\w-]+)\.md(?:#[^)]*)?\)|`([\w-]+)`", whole))
        names = {own, f"{own}-medium" if "medium size" in whole else own, *linked}
        every = [*known(), *(one for name in names if (FOLDER / f"{name}.json").is_file() for one in facts(name))]
        arms, last = {arm for fact in every for arm in fact.arms if dose(arm)}, ""
        for sentence in sentences:
            words = plain(sentence)
            its, last = f"{last} " if ITS.search(words) else "", words
            claims = {f"{of or own}#{claim}" for of, claim in LINKED.findall(sentence) or LINKED.findall(context)}
            scales = (1, 100) if re.search(r"%|\bpoints?\b|percent", f"{words} {context} {before}") else (1,)
            of_runs = not re.search("simulat|seeds find|errors off a curve", f"{words} {before}")
            here = every if of_runs else list(simulated(re.sub(r"\]\([^)]*\)", "]", sentence), context, own))
            for one in NUMBER.finditer(words) if not re.search(GONE, sentence) else ():
                around = (its + words, len(its) + one.start(), plain(context), claims, arms)
                allowed = (fact for fact in here if fits(one[0], fact, role_in(words, *one.span()), scales))
                if not any(not of_runs or stands(fact, *around) for fact in allowed):
                    found.append((one[0], sentence))
            if "ithout" in sentence and before:  # what refutes without a cause
                listed = re.findall(rf"(?:p =|decay|smoothing|SAM|penalty|rate|batch) ({DIGITS})", sentence)
                found += [(one, sentence) for one in listed if float(one) >= 0.05]
    return found
