"""The options that say how recorded outputs are read: spelled once, given to a command by a decorator."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional, get_type_hints

import typer

from calibcli import spec
from calibcli.cli.options import number
from calibcli.errors import UsageError

if TYPE_CHECKING:
    from calibcli.cli.run import Run
    from calibcli.predictions import Predictions


PANEL = "How the file is read"


def _reading(*names: str, **about: Any) -> Any:
    return typer.Option(*names, rich_help_panel=PANEL, **about)


Text = Optional[str]  # noqa: UP045
Texts = Optional[list[str]]  # noqa: UP045
Number = Optional[int]  # noqa: UP045
READING: dict[str, tuple[Any, Any]] = {
    "scores": (
        Annotated[Text, _reading("--scores", metavar="KEY", help="Array or column group with the scores.")],
        None,
    ),
    "labels": (
        Annotated[Text, _reading("--labels", metavar="KEY|FILE", help="Array with the labels, or a file of them.")],
        None,
    ),
    "classes": (
        Annotated[Text, _reading("--classes", metavar="A,B,..|FILE", help="Class names, in the order of the scores.")],
        None,
    ),
    "event": (
        Annotated[
            Text, _reading("--event", metavar="NAME", help="Of two classes, the one that is measured [the second].")
        ],
        None,
    ),
    "kind": (
        Annotated[Text, _reading("--kind", help="logits, probabilities or log_probabilities; recognised if left out.")],
        None,
    ),
    "label_base": (
        Annotated[
            Number,
            number(
                spec.Label,
                "--label-base",
                rich_help_panel=PANEL,
                help="What the first class is called (1: labels 1..K).",
            ),
        ],
        None,
    ),
    "ignore_label": (
        Annotated[
            Number,
            number(spec.Label, "--ignore-label", rich_help_panel=PANEL, help="Drop rows with this label, e.g. -100."),
        ],
        None,
    ),
    "drop_nonfinite": (
        Annotated[bool, _reading("--drop-nonfinite", help="Drop (and count) rows with NaN or infinite scores.")],
        False,
    ),
    "clip": (Annotated[bool, _reading("--clip", help="Raise probabilities to 1e-15: the NLL is finite.")], False),
    "multilabel": (
        Annotated[bool, _reading("--multilabel", help="Targets (N, L) of 0 and 1: every label is binary.")],
        False,
    ),
    "weights": (Annotated[Text, _reading("--weights", metavar="KEY", help="Array with sample weights.")], None),
    "weight_kind": (
        Annotated[str, _reading("--weight-kind", help="sampling (inverse probability) or count (frequency).")],
        "sampling",
    ),
    "ids": (Annotated[Text, _reading("--ids", metavar="KEY", help="Array with the names of the rows.")], None),
    "group": (
        Annotated[Text, _reading("--group", metavar="KEY", help="Array telling which rows belong together.")],
        None,
    ),
    "by": (
        Annotated[Texts, _reading("--by", metavar="KEY", help="Also per value of this array. Repeatable.")],
        None,
    ),
    "shards": (Annotated[bool, _reading("--shards", help="Several files are parts of one data set.")], False),
}


def reads(command: Callable[..., int]) -> Callable[..., int]:
    """Give a command the options that say how recorded outputs are read.

    The command has a parameter `reading: dict[str, Any]`, which receives them all; it is meant for
    `reading.read(run, path, reading)`. Keyword-only parameters after it keep their place in the help.
    """

    @functools.wraps(command)
    def listed(**given: Any) -> int:
        given["reading"]["by"] = tuple(given["reading"]["by"] or ())
        return command(**given)

    return gives(listed, "reading", READING)


def gives(command: Callable[..., int], into: str, options: Mapping[str, tuple[Any, Any]]) -> Callable[..., int]:
    """Give a command options, each a type and a default, which its parameter `into` receives as a dict."""
    hints = get_type_hints(command, include_extras=True)
    own = [p.replace(annotation=hints[p.name]) for p in inspect.signature(command).parameters.values()]
    added = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
        for name, (kind, default) in options.items()
    ]

    @functools.wraps(command)
    def wrapper(**given: Any) -> int:
        given[into] = {name: given.pop(name) for name in options}
        return command(**given)

    parameters = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own if p.name != into] + added
    wrapper.__signature__ = inspect.Signature(parameters, return_annotation=int)  # type: ignore[attr-defined]
    wrapper.__annotations__ = {p.name: p.annotation for p in parameters} | {"return": int}
    return wrapper


def named(reading: Mapping[str, Any]) -> list[str]:
    """Files that these options may name, beside those that hold the scores."""
    return [reading[key] for key in ("labels", "classes") if reading.get(key) and os.path.isfile(reading[key])]


def no_parts(reading: Mapping[str, Any], command: str) -> dict[str, Any]:
    """The options of `inputs.scores.logits.read` for a command that takes the rows of one problem as a whole.

    Raises:
        UsageError: --by or --multilabel, which split them.
    """
    if reading["multilabel"]:
        raise UsageError(f"{command} takes one label per row", "pass one label at a time as a binary problem")
    if reading["by"]:
        raise UsageError(f"{command} takes all rows together, --by splits them", "write a file for each slice")
    return {key: value for key, value in reading.items() if key not in ("by", "multilabel")}


def read(run: Run, path: str | Path | Sequence[str | Path], reading: Mapping[str, Any], **more: Any) -> Predictions:
    """`inputs.scores.logits.read` with these options, a progress bar, and the input noted in the provenance of `run`.

    Args:
        more: further arguments, e.g. `need_labels=False`.

    Raises:
        InputError, UsageError: as `inputs.scores.logits.read`.
    """
    from calibcli.inputs.scores import logits

    found = logits.read(path, progress=run.progress("reading"), **{**reading, **more})
    run.inputs.extend(logits.provenance(found))
    return found


def read_multilabel(
    run: Run, path: str | Path | Sequence[str | Path], reading: Mapping[str, Any], **more: Any
) -> dict[str, Predictions]:
    """As `read`, for `--multilabel`: one binary data set per label, by its name."""
    from calibcli.inputs.scores import logits

    how = {name: value for name, value in {**reading, **more}.items() if name != "multilabel"}
    found = logits.read_multilabel(path, progress=run.progress("reading"), **how)
    run.inputs.extend(logits.provenance(next(iter(found.values()))))
    return found
