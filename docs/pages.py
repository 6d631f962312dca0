"""The pages of the site in build/docs/: those of docs/ and of the top folder, and what the code says of itself.

    python docs/pages.py && mkdocs build      # `make docs`

What makes HTML of them sees plain Markdown, so that it may be replaced.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
import shutil
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import calibcli
from calibcli.api import catalogue
from calibcli.cli import COMMANDS
from calibcli.cli.run import Option
from calibcli.core.options import Range

ROOT = Path(__file__).parent.parent
BUILT = ROOT / "build" / "docs"
OUTSIDE = ("CHANGELOG.md", "CONTRIBUTING.md", "benchmarks/RESULTS.md")
CODE = re.compile(r"(?<!`)`[^`\n]+`(?!`)")
LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(([^)\s#]*)(#[^)\s]*)?\)")


def main() -> None:
    shutil.rmtree(BUILT, ignore_errors=True)
    shutil.copytree(ROOT / "docs", BUILT, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    shutil.copytree(ROOT / "benchmarks" / "results", BUILT / "benchmarks" / "results")
    made = {
        "reference/commands.md": "# Commands\n\n" + "\n".join(map(command, COMMANDS)),
        "reference/registries.md": "# Registries\n\n" + "\n".join(map(registry, catalogue.REGISTRIES)),
        "reference/python.md": "# Python, every argument\n\n" + "\n".join(map(function, sorted(calibcli.__all__))),
    }
    for path in OUTSIDE:
        made[path] = (ROOT / path).read_text(encoding="utf-8")
    for path, text in made.items():
        (BUILT / path).parent.mkdir(exist_ok=True)
        (BUILT / path).write_text(text, encoding="utf-8")
    results = (ROOT / "benchmarks" / "results").glob("*.md")
    for path in [*(ROOT / "docs").rglob("*.md"), *(ROOT / path for path in OUTSIDE), *results]:
        there = BUILT / _in_site(path)
        there.write_text(linked(path, there.read_text(encoding="utf-8")), encoding="utf-8")
    for there in BUILT.rglob("*.md"):
        there.write_text(CODE.sub(pipes, there.read_text(encoding="utf-8")), encoding="utf-8")


def pipes(code: re.Match[str]) -> str:
    """Code between backticks as the site shows it: in tables a pipe in code needs a backslash on a forge, and has one
    too many here.
    """
    return code[0].replace("\\|", "|")


def linked(path: Path, text: str) -> str:
    """A page with its links as the site has them; a link to a file that is not a page of the site is its text alone."""

    def link(match: re.Match[str]) -> str:
        words, target, anchor = match[1], match[2], match[3] or ""
        if not target or ":" in target:
            return match[0]
        site = _in_site((path.parent / target).resolve())
        if not (BUILT / site).is_file():
            return words
        up = "../" * _in_site(path).as_posix().count("/")
        return f"[{words}]({up}{site.as_posix()}{anchor})"

    return LINK.sub(link, text)


def command(name: str) -> str:
    """Its docstring, and a table for each group of its options."""
    made = importlib.import_module(f"calibcli.cli.{name}").command
    groups: dict[str, list[str]] = {}
    for one in made.options.values():
        flags = f"`{one.name.upper()}`" if one.argument else ", ".join(f"`{flag}`" for flag in one.flags)
        cells = [flags, _takes(one), _value(one.default, one.flag), prose(one.help)]
        groups.setdefault(one.panel or "Arguments and options", []).append(f"| {' | '.join(cells)} |\n")
    head = "| option | takes | default | |\n|---|---|---|---|\n"
    tables = [f"**{group}**\n\n{head}{''.join(rows)}" for group, rows in groups.items()]
    about = inspect.cleandoc(made.function.__doc__ or "")
    example = re.sub(r"(?m)^Example: (.*)$", r"    \1", prose(about))
    return f"## calib {name}\n\n{example}\n\n" + "\n".join(tables)


def _takes(one: Option) -> str:
    """What an option takes: its choices, its range, or a word for it."""
    if one.flag:
        return ""
    if get_origin(one.kind) is Literal:
        return ", ".join(f"`{word}`" for word in get_args(one.kind))
    kind, *more = get_args(one.kind) if get_origin(one.kind) is Annotated else (one.kind,)
    within = next((str(word) for word in more if isinstance(word, Range)), "")
    words = {int: "integer", float: "number"}.get(kind, "")
    metavar = str(one.settings.get("metavar") or "")
    return f"`{metavar}`" if metavar else f"{words} {within}".strip() or ("path" if kind is Path else "text")


def _value(default: Any, flag: bool) -> str:
    """A default as it is written on a command line; "" where there is none."""
    if default is dataclasses.MISSING:
        return "required"
    return "" if flag or default is None or default in ((), "", False) else f"`{default}`"


def registry(name: str) -> str:
    text = f"## {name.capitalize()}\n\n"
    for found in catalogue.tables(name):
        rows = [
            [f"`{one}`", prose(str(what)), f"`{prose(str(options))}`" if options else ""]
            for one, what, options in found.rows
        ]
        lines = [found.columns, ["---"] * len(found.columns), *rows]
        text += f"\n{found.title.capitalize()}:\n\n" if found.title else ""
        text += "".join(f"| {' | '.join(line)} |\n" for line in lines)
    return text


def function(name: str) -> str:
    """Signature and docstring: examples as blocks, arguments as lists."""
    made = getattr(calibcli, name)
    if not callable(made):
        return ""
    lines: list[str] = []
    for line in inspect.cleandoc(made.__doc__ or "").splitlines():
        section, item = re.fullmatch(r"([A-Z][a-z]+):", line), re.match(r" {4}(?! )([\w, .*]+): (.*)", line)
        if section:
            lines += [f"**{section[1]}**", ""]
        elif item:
            lines.append(f"- `{item[1]}`: {item[2]}")
        else:
            lines.append(line[4:] if line.startswith("        ") else line)
    text = re.sub(r"(?ms)^>>> .*?(?=\n\n|\Z)", r"```pycon\n\g<0>\n```", "\n".join(lines))
    arguments = ", ".join(str(one).partition(":")[0].partition(" =")[0] + _default(one) for one in _parameters(made))
    return f"## {name}\n\n```python\ncalibcli.{name}({arguments})\n```\n\n{text}\n"


def _parameters(made: Any) -> list[inspect.Parameter]:
    found = inspect.signature(made).parameters.values()
    return [
        one for one in found if not (one.kind is one.KEYWORD_ONLY and one.default is None and one.name == "progress")
    ]


def _default(one: inspect.Parameter) -> str:
    return "" if one.default is one.empty else f"={one.default!r}"


def prose(text: str) -> str:
    return re.sub(r"(?<!\\)\|", r"\\|", text)


def _in_site(path: Path) -> Path:
    path = path.relative_to(ROOT) if path.is_relative_to(ROOT) else Path("elsewhere")
    return path.relative_to("docs") if path.parts[:1] == ("docs",) else path


if __name__ == "__main__":
    main()
