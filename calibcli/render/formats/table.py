"""The table format: the sentence, verdicts, estimates with their intervals, tables, diagrams in plain Unicode.

A screen gets the few numbers that decide first, each question in one table (all of them with `-v`, or where they were
named), in colour (not with NO_COLOR) and fitted to the width of a terminal, plain and as wide as it needs anywhere
else; its notes are on stderr. A file has everything, and the notes.

Ours: the choice and the order of its parts.

>>> print(render(result).splitlines()[-1])
accuracy  0.911  [0.891, 0.928]  Clopper-Pearson interval
"""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Callable, Sequence
from typing import Literal

from calibcli.plots import Plot
from calibcli.render import beside, sheet, stream
from calibcli.render.drawing import BINS, diagrams
from calibcli.render.sheet import Detail, Sheet
from calibcli.result import Result

SUFFIXES = (".txt",)
WIDTH = 80  # of a diagram where there is no terminal to ask
STYLES = {"title": "bold", "head": "bold", "code": "", "faint": "dim", "": ""}
STYLES |= {"good": "black on green", "bad": "bold bright_white on red", "warn": "black on yellow"}
"""With a ground of their own: as letters, green, yellow and cyan are pale on white, red is dark on black."""
ROWS = 60  # of a table beside the estimates on a terminal
LINES, LEAST_ROWS = 40, 3  # of a first screen; of a table of it
FEW_BINS, FEWER_BINS = (
    10,
    (8, 5),
)  # where few numbers are shown, of two diagrams or in little room; where that is too long
GAIN = "temperature_gain"
FEW = {"accuracy", "error", "nll", "ece", GAIN, "temperature", "gamma"}
EVENT = {"auc", "brier", "cox_slope", "cox_intercept", "observed_expected"}
CONFIDENCE = {"brier_top", "confidence_gap", "auc"}
CURVATURE = {"lambda_max", "lambda_min", "trace", "negative_fraction", "grad_norm"}
PARTS = ("murphy", "errors", "layers", "fit")  # tables of what the few numbers are made of
PICTURES = ("density", "difference_nll")  # the one that is shown, where there are several
WORK = ("convergence", "layers", "share")  # pictures of how a number was found
SHORT = ("metrics", "merge", "scale", "compare", "curvature", "fit")  # commands that find more than the few
FIRST = (*SHORT, "check", "ood")  # commands whose first screen has a length
HIDDEN = {
    "metrics": {"level", "why"},
    "merge": {"level", "why"},
    "inspect": {"used by"},
    "study": {"study", "command", "cost", "spent", "cite", "recipe sha256"},
    "scale": {"n", "classes", "kind", "event", "full passes", "keeps predicted classes", "recommended"}
    | {"lambda", "mu", "largest other weight", "norm of other weights"},
    "compare": {"alpha", "comparisons"},
    "curvature": {"model", "data", "container", "tensors", "memory plan", "krylov basis", "ranks"},
    "fit": {"processes"},
    "logits": {"container"},
    "apply": {"written", "n", "classes"},
}


def render(result: Result, encoding: str = "utf-8") -> str:
    """Plain text of everything; every line as long as it needs to be."""
    blocks = [*_opening(result, _facts(sheet.facts(result)))]
    blocks += [stream.text(s, encoding) for s in sheet.sheets(result)]
    blocks += diagrams(result, WIDTH, encoding)
    if result.notes:
        blocks.append([f"note: {stream.clean(note)}" for note in result.notes])
    return _joined([*blocks, *_closing(result)], encoding)


def show(result: Result, detail: Detail = "few") -> None:
    """Print to stdout: with rich on a terminal, plain elsewhere."""
    encoding = stream.encoding()
    if not sys.stdout.isatty() or os.environ.get("TERM") == "dumb":
        stream.put(plain(result, detail, encoding))
        return
    _rich(result, detail, encoding)


def plain(result: Result, detail: Detail = "few", encoding: str = "utf-8") -> str:
    """What a screen shows, without colour and as wide as it needs."""
    blocks = _opening(result, _flowing(facts(result, detail), WIDTH, detail))
    blocks += [stream.text(s, encoding) for s in tables(result, detail)]
    drawn = dataclasses.replace(result, plots=plots(result, detail))
    blocks += diagrams(drawn, WIDTH, encoding, _bins(result, detail, WIDTH))
    return _joined([*blocks, *_closing(result)], encoding)


def _opening(result: Result, facts: list[str]) -> list[list[str]]:
    said = wrapped_sentence(result, WIDTH)
    return [[heading(result), *said], facts] if said else [[heading(result), *facts]]


def _closing(result: Result) -> list[list[str]]:
    saved = [_saved(role, path) for role, path in result.artefacts.items()]
    return [saved, [sheet.verdict(result)[0]] if result.checks else []]


def _joined(blocks: list[list[str]], encoding: str) -> str:
    kept = ["\n".join(stream.fold(line, encoding).rstrip() for line in block) for block in blocks if block]
    return "\n\n".join(kept) + "\n"


def heading(result: Result) -> str:
    return stream.clean(sheet.heading(result))


def wrapped_sentence(result: Result, width: int) -> list[str]:
    """What the result opens with, in lines that end between words."""
    return stream.prose(stream.clean(sheet.headline(result)), width)


def _facts(facts: Sequence[tuple[str, str]]) -> list[str]:
    """On one line where they fit, else one on each."""
    facts = [(stream.clean(key), stream.clean(value)) for key, value in facts]
    line = " · ".join(f"{key}: {value}" for key, value in facts)
    if stream.width(line) <= WIDTH:
        return [line] if facts else []
    longest = max(stream.width(key) for key, _ in facts)
    return [f"  {key}{' ' * (longest - stream.width(key))}  {value}" for key, value in facts]


def _flowing(facts: Sequence[tuple[str, str]], width: int, detail: Detail) -> list[str]:
    """Several to a line, broken between them; one on each where all are asked for."""
    if detail == "all":
        return _facts(facts)
    found: list[str] = []
    for key, value in facts:
        said = f"{stream.clean(key)}: {stream.clean(value)}"
        if found and stream.width(found[-1]) + 3 + stream.width(said) <= width:
            found[-1] += " · " + said
        else:
            found.append(said)
    return found


def _saved(role: str, path: str) -> str:
    return stream.clean(f"saved: {path} ({role})")


def _rich(result: Result, detail: Detail, encoding: str) -> None:
    import shutil

    from rich.console import Console
    from rich.text import Text

    width = max(40, shutil.get_terminal_size().columns)
    colour: Literal["auto"] | None = None if os.environ.get("NO_COLOR") else "auto"
    console = Console(highlight=False, emoji=False, markup=False, width=width, color_system=colour)

    def say(line: str, style: str = "") -> None:
        console.print(Text(stream.fold(line, encoding), style=style))

    say(heading(result), "dim")
    for opening in (said_first := wrapped_sentence(result, width)):
        say(opening, "bold")
    if said_first:
        console.print()
    for fact in _known(result, detail, width):
        say(fact, "dim")
    made, blocks = _in_room(result, detail, width, encoding)
    for s, more in made:
        console.print()
        for line in stream.lines(s, encoding, width):
            pieces = Text.assemble(*((piece, STYLES[style]) for piece, style in line))
            pieces.rstrip()
            console.print(pieces, soft_wrap=True)
        if more:
            say(f"… {more} more row{'s' * (more > 1)} (all of them with -v, --format json or -o)", "dim")
    for block in blocks:
        console.print()
        for diagram in block:
            console.print(Text(diagram.rstrip()), soft_wrap=True)
    if result.artefacts:
        console.print()
    for role, path in result.artefacts.items():
        say(_saved(role, path), "dim")
    said, tone = sheet.verdict(result)
    if said:
        console.print()
        say(said, STYLES[tone])


def _in_room(
    result: Result, detail: Detail, width: int, encoding: str
) -> tuple[list[tuple[Sheet, int]], list[list[str]]]:
    """The tables, each with the number of rows that are left out, and the pictures.

    A first screen has `LINES`: bins become fewer, then the picture is left out, then rows of the longest table.
    """
    drawn = dataclasses.replace(result, plots=plots(result, detail))
    usual = _bins(result, detail, width)

    def pictures(most: int) -> list[list[str]]:
        return diagrams(drawn, min(100, width), encoding, most)

    made = [_clipped(s) for s in tables(result, detail)]
    if detail != "few" or result.command not in FIRST:
        return made, pictures(usual)
    said, closing = wrapped_sentence(result, width), len(result.artefacts)
    room = LINES - len(stream.prose(heading(result), width)) - len(said) - bool(said)
    room -= len(_known(result, detail, width))
    room -= closing + bool(closing) + 2 * bool(result.checks)
    lengths = [_length(*one, encoding, width) for one in made]
    blocks: list[list[str]] = []
    for most in (usual, *(m for m in FEWER_BINS if m < usual), 0):
        blocks = pictures(most) if most else [["(the picture with -v or -o FILE.png)"]] * bool(drawn.plots)
        if sum(lengths) + sum(1 + len(block) for block in blocks) <= room:
            return made, blocks
    room -= sum(1 + len(block) for block in blocks)
    while sum(lengths) > room and max((len(s.rows) for s, _ in made), default=0) > LEAST_ROWS:
        i = max(range(len(made)), key=lambda i: len(made[i][0].rows))
        made[i] = _without_one(*made[i])
        lengths[i] = _length(*made[i], encoding, width)
    return made, blocks


def _known(result: Result, detail: Detail, width: int) -> list[str]:
    return [line for one in _flowing(facts(result, detail), width, detail) for line in stream.prose(one, width)]


def _clipped(s: Sheet) -> tuple[Sheet, int]:
    more = 0 if s.tones or any(c.code for c in s.columns) else max(0, len(s.rows) - ROWS)
    return dataclasses.replace(s, rows=s.rows[: len(s.rows) - more]), more


def _length(s: Sheet, more: int, encoding: str, width: int) -> int:
    """Lines, with the empty one before."""
    return 1 + len(stream.lines(s, encoding, width)) + bool(more)


def _without_one(s: Sheet, more: int) -> tuple[Sheet, int]:
    """Without the row that says least: the last that passes, else that did not run, else that is undecided."""
    tones = s.tones or [""] * len(s.rows)
    order = {"good": 0, "": 1, "warn": 3, "bad": 4}
    at = min(reversed(range(len(s.rows))), key=lambda i: 2 if s.rows[i][0].startswith("NOT RUN") else order[tones[i]])
    kept = [i for i in range(len(s.rows)) if i != at]

    def moved(marks: frozenset[int]) -> frozenset[int]:
        return frozenset(new for new, old in enumerate(kept) if old in marks)

    rows, left = [s.rows[i] for i in kept], [s.tones[i] for i in kept] if s.tones else ()
    return dataclasses.replace(s, rows=rows, tones=left, breaks=moved(s.breaks), musts=moved(s.musts)), more + 1


def _bins(result: Result, detail: Detail, width: int) -> int:
    return BINS if detail == "all" else FEW_BINS if result.command == "scale" or width < WIDTH else 15


def tables(result: Result, detail: Detail) -> list[Sheet]:
    """The tables of a screen."""
    if detail == "all":
        return [dataclasses.replace(s, musts=frozenset(range(len(s.rows)))) for s in sheet.sheets(result, "full")]
    few = _few(result) if detail == "few" else _asked(result)
    made: Callable[[Result], list[Sheet]] = beside.OWN.get(result.command, lambda one: sheet.sheets(one, "why"))
    sizes = {f"n = {result.facts.get(key)}" for key in ("n", "rows")}  # which the facts say
    return [dataclasses.replace(one, title="") if one.title in sizes else one for one in made(few)]


def facts(result: Result, detail: Detail) -> list[tuple[str, str]]:
    """The settings that a reader of the few numbers wants to see."""
    hidden = set() if detail == "all" else HIDDEN.get(result.command, set())
    return [
        (key, value)
        for key, value in sheet.facts(result)
        if key not in hidden and not (hidden and key.endswith(" status") and value == "ok")
    ]


def notes(result: Result, detail: Detail) -> Sequence[str]:
    """Without those of numbers that are not shown."""
    if detail != "few":
        return result.notes
    hidden = {e.name for e in result.estimates} - {e.name for e in _few(result).estimates}
    return [note for note in result.notes if not hidden & {part.strip() for part in note.split(":")[:2]}]


def plots(result: Result, detail: Detail) -> Sequence[Plot]:
    """One picture where there are several: the first, or what came of it; none of a study, beside its claims."""
    if detail != "all" and result.command == "study":
        return []
    if detail == "all" or result.command not in SHORT:
        return result.plots
    panels = [p for p in result.plots if not p.under and not p.name.startswith(WORK)]
    chosen = [p for p in panels if p.name.endswith("_after") or p.name in PICTURES]
    first = next(iter([*chosen, *panels]), None)
    return [p for p in result.plots if first is not None and first.name in (p.name, p.under)]


def _asked(result: Result) -> Result:
    """Every number, without the tables of what they are made of that say more of their finding than of them."""
    if result.command not in SHORT:
        return result
    tables = [t for t in result.tables if not t.name.startswith(PARTS[1:])]
    return dataclasses.replace(result, tables=tables)


def _few(result: Result) -> Result:
    """Without the numbers, of what has at least one of the few, that are not among them; nor tables of their parts."""
    wanted = set(CURVATURE) if result.command == "curvature" else set(FEW)
    wanted |= EVENT if result.facts.get("classes") == 2 else set()
    wanted |= CONFIDENCE if result.facts.get("kind") == "confidence" else set()
    if result.checks or result.command not in SHORT:
        return result
    kept = [e for e in result.estimates if e.name.partition(":")[0] in wanted or e.scope.endswith(beside.DIFFERENCE)]
    if result.command == "compare":
        kept = [e for e in kept if e.name.partition(":")[0] != GAIN]
    if result.command == "scale":
        ranked = any(t.name == "ranking" for t in result.tables)
        kept = [e for e in result.estimates if (e in kept or not e.scope) and not (ranked and e.name == GAIN)]
        result = beside.ranked(result)
    if result.command in ("metrics", "merge") and any(not e.scope for e in kept):
        kept = [e for e in kept if not e.scope or e.name.partition(":")[0] == "ece"]
    if not kept:
        return result
    tables = [t for t in result.tables if not t.name.startswith(PARTS)]
    return dataclasses.replace(result, estimates=kept, tables=tables)
