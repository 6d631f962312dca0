"""One run of `calib check`: what was asked for, merged with the configuration, read and judged."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from calibcli.errors import UsageError
from calibcli.files import reading as note_inputs
from calibcli.gate import check, config, input_files
from calibcli.gate.config import Config, Gate
from calibcli.gate.request import Request
from calibcli.gate.sources import Scores
from calibcli.numerics import effective_rows
from calibcli.predictions import Progress
from calibcli.result import Result

FROM_FILE = ("group", "weights", "ids", "scores", "labels", "kind", "classes")
"""What the configuration may say of how files are read, where the request is silent."""


def asked(request: Request) -> Config:
    """The configuration with the request over it.

    Raises:
        UsageError: either of them is wrong, or no input is named.
    """
    by = request.reading.get("by")
    found = config.load(request.config, rules=False).over(
        eval=str(request.input) if isinstance(request.input, str | Path) else None,
        slices=tuple(by) if by else None,
        **{name: getattr(request, name) for name in ("fitted_on", "alpha", "bins", "bounds", "seed")},
    )
    if not found.eval and request.input is None:
        raise UsageError("no input", 'name a file with scores, or set eval = "FILE" under [data] of calib.toml')
    return dataclasses.replace(found, gates=tuple(_gates(request, found)))


def _gates(request: Request, found: Config) -> list[Gate]:
    """Gates of the command line; those of the file when it has none."""
    rules = [("max", text) for text in request.max] + [("min", text) for text in request.min]
    gates = [config.limit_rule(text, side, scope=request.scope) for side, text in rules]
    by = tuple(request.reading.get("by") or ())
    gates += [dataclasses.replace(gate, by=name) for name in by for gate in gates]
    if by and not gates:
        raise UsageError("--by without --max or --min", 'name a rule, or write by = "..." in the gates of the file')
    if request.margin and not request.baseline:
        raise UsageError("--margin without --baseline", "add --baseline result.json")
    gates += [config.limit_rule(text, "margin", baseline=request.baseline) for text in request.margin]
    if not gates and request.baseline and any(g.baseline for g in found.gates):
        gates = [dataclasses.replace(g, baseline=request.baseline) if g.baseline else g for g in found.gates]
    elif request.baseline and not request.margin:
        gates.append(Gate(metric="temperature_gain", baseline=request.baseline, margin=0.0))
    asked_for = {"min_n": request.min_n, "on_inconclusive": request.on_inconclusive}
    changed: dict[str, Any] = {key: value for key, value in asked_for.items() if value is not None}
    return [dataclasses.replace(gate, **changed) for gate in (gates or found.gates)]


def run(
    request: Request, progress: Progress | None = None, settings: Config | None = None, diagram: bool = False
) -> Result:
    """Read the input and judge every gate. The provenance holds path and sha256 of each file, as it was read.

    Args:
        settings: of `asked(request)`, where the caller has them already.  diagram: of scores, with the reliability
            diagram in `plots`.
    """
    settings = settings or asked(request)
    note_inputs(*settings.named())
    how = reading(request.reading, settings)
    source = input_files.open_source(request.input, settings, how)
    if not isinstance(source, Scores):
        _refuse_settings_of_scores(request)
    baselines = input_files.Baselines(source, how)
    result = check.check(source, settings, baselines, progress)
    if diagram:
        result = dataclasses.replace(result, plots=check.rules_plot(result.checks))
    facts: dict[str, Any] = {"config": ", ".join(settings.sources), "alpha": settings.alpha}
    notes, files = list[str](), [*source.files]
    if isinstance(source, Scores):
        if diagram:
            result = dataclasses.replace(result, plots=[*result.plots, *source.diagram()])
        p = source.predictions
        notes += p.notes
        facts |= {"n": p.n, **p.problem}
        if p.weights is not None and p.weight_kind == "sampling":
            facts["n_eff"] = round(effective_rows(p.weights), 1)
        if p.groups is not None:
            facts["groups"] = len(set(p.groups.tolist()))
        if settings.fitted_on:
            overlap, read = input_files.check_overlap(settings.fitted_on, p, how)
            notes += [overlap] if overlap else []
            files += read
    if request.keep_rows:
        if baselines.own is None:
            raise UsageError("--keep-rows needs scores, this input is a result", "pass the scores file")
        facts["rows"] = baselines.own.pack()
    provenance = {"inputs": [*files, *baselines.files, *settings.files], "seed": settings.seed}
    return dataclasses.replace(result, notes=[*result.notes, *notes], facts=facts, provenance=provenance)


def _refuse_settings_of_scores(request: Request) -> None:
    """A stored result is as it was computed: what would compute or read it otherwise is refused, not ignored.

    Raises:
        UsageError: such an option was given.
    """
    given = {"bins": request.bins, "bounds": request.bounds, "fitted_on": request.fitted_on}
    given |= {key: value for key, value in request.reading.items() if key != "by"}
    for key, value in given.items():
        if value is not None and not (isinstance(value, bool | tuple | str) and not value):
            problem = f"--{key.replace('_', '-')} has no effect on a stored result"
            raise UsageError(problem, "leave it out, or pass the scores")


def reading(options: Mapping[str, Any], settings: Config) -> dict[str, Any]:
    """Options of `inputs.scores.recorded.read`: the command line's, else the configuration's."""
    found = {key: value for key, value in options.items() if key not in ("by", "multilabel")}
    if options.get("multilabel"):
        raise UsageError("a gate takes one label per row", "check every label of a multi-label problem on its own")
    for key in FROM_FILE:
        value = getattr(settings, key)
        if value and not found.get(key):
            found[key] = list(value) if isinstance(value, tuple) else value
    if settings.weight_kind and found.get("weight_kind", "sampling") == "sampling":
        found["weight_kind"] = settings.weight_kind
    return found
