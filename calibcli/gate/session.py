"""One run of `calib check`: what was asked for, merged with the configuration, read and judged."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from calibcli.errors import UsageError
from calibcli.gate import check, config, reading
from calibcli.gate.config import Config, Gate
from calibcli.gate.sources import Scores
from calibcli.gate.stored import Results
from calibcli.inputs.scores import logits
from calibcli.numerics import effective_rows
from calibcli.result import Result


@dataclass(frozen=True, kw_only=True)
class Request:
    """What the command line asks for; None and "" leave the choice to the configuration file."""

    input: str | Path | None = None
    reading: Mapping[str, Any] = field(default_factory=dict)
    max: Sequence[str] = ()
    min: Sequence[str] = ()
    baseline: str = ""
    margin: Sequence[str] = ()
    of: str = ""
    min_n: int | None = None
    on_inconclusive: str | None = None
    alpha: float | None = None
    bins: int | None = None
    bounds: str | None = None
    config: Path | None = None
    fit: str | None = None
    keep_rows: bool = False
    seed: int | None = None


def settings(request: Request) -> Config:
    """The configuration with the command line over it.

    Raises:
        UsageError: either of them is wrong, or no input is named.
    """
    if request.alpha is not None:
        config.alpha(request.alpha, "--alpha")
    if request.on_inconclusive not in (None, "fail", "warn"):
        raise UsageError(f"--on-inconclusive {request.on_inconclusive}", "pass fail or warn")
    if request.bounds not in (None, "score", "sharp"):
        raise UsageError(f"--bounds {request.bounds}", "pass score or sharp")
    found = config.load(request.config)
    how = request.reading
    found = found.over(
        eval=None if request.input is None else str(request.input),
        fit=request.fit,
        slices=tuple(how["by"]) if how.get("by") else None,
        alpha=request.alpha,
        bins=request.bins,
        bounds=request.bounds,
        seed=request.seed,
        **{key: how[key] for key in ("group", "weights", "ids", "scores", "labels", "kind", "event") if how.get(key)},
    )
    if not found.eval:
        raise UsageError("no input", 'name a file with scores, or set eval = "FILE" under [data] of calib.toml')
    return dataclasses.replace(found, gates=tuple(_gates(request, found)))


def _gates(request: Request, found: Config) -> list[Gate]:
    """Gates of the command line; those of the file when it has none."""
    keys: dict[str, Any] = {"of": request.of}
    gates = [config.limit_rule(text, "max", **keys) for text in request.max]
    gates += [config.limit_rule(text, "min", **keys) for text in request.min]
    by = tuple(request.reading.get("by") or ())
    gates += [
        dataclasses.replace(gate, by=name) for name in by for gate in gates[: len(request.max) + len(request.min)]
    ]
    if by and not gates:
        raise UsageError("--by without --max or --min", 'name a rule, or write by = "..." in the gates of the file')
    if request.margin and not request.baseline:
        raise UsageError("--margin without --baseline", "add --baseline result.json")
    gates += [config.limit_rule(text, "margin", baseline=request.baseline) for text in request.margin]
    if not gates and request.baseline and any(g.baseline for g in found.gates):
        gates = [dataclasses.replace(g, baseline=request.baseline) if g.baseline else g for g in found.gates]
    elif request.baseline and not request.margin:
        gates.append(Gate(metric="recal_gain", baseline=request.baseline, margin=0.0))
    changed: dict[str, Any] = {"min_n": request.min_n, "on_inconclusive": request.on_inconclusive}
    changed = {key: value for key, value in changed.items() if value is not None}
    return [dataclasses.replace(gate, **changed) for gate in (gates or found.gates)]


def run(
    request: Request, settings: Config, progress: reading.Progress | None = None
) -> tuple[Result, list[dict[str, Any]]]:
    """Read the input and judge every gate; also path and sha256 of each file behind the result, as it was read."""
    how = _reading(request.reading, settings)
    source = reading.read_source(settings.eval, settings, how)
    if not isinstance(source, Scores):
        _refuse_settings_of_scores(request)
    baselines = reading.Baselines(source, how)
    result = check.check(source, settings, baselines, progress)
    notes: list[str] = []
    facts: dict[str, Any] = {"config": ", ".join(settings.sources), "alpha": settings.alpha}
    files: list[dict[str, Any]] = []
    if isinstance(source, Results):
        files += source.files
    else:
        p = source.predictions
        files += logits.provenance(p)
        notes += p.notes
        facts |= {"n": p.n, "classes": p.k, **p.event_fact, "kind": p.kind}
        if p.weights is not None and p.weight_kind == "sampling":
            facts["n_eff"] = round(effective_rows(p.weights), 1)
        if p.groups is not None:
            facts["groups"] = len(set(p.groups.tolist()))
        if settings.fit:
            overlap, read = reading.check_overlap(settings.fit, p, how)
            notes += [overlap] if overlap else []
            files += read
    if request.keep_rows:
        rows = baselines.rows()
        if rows is None:
            raise UsageError("--keep-rows needs scores, this input is a result", "pass the scores file")
        facts["rows"] = rows.pack()
    files += [*baselines.files, *map(dict, settings.files)]
    return dataclasses.replace(result, notes=[*result.notes, *notes], facts=facts), files


def _refuse_settings_of_scores(request: Request) -> None:
    """A stored result is as it was computed: what would compute or read it otherwise is refused, not ignored.

    Raises:
        UsageError: such an option was given.
    """
    given = {"bins": request.bins, "bounds": request.bounds, "fit": request.fit}
    given |= {key: value for key, value in request.reading.items() if key != "by" and value != DEFAULTS.get(key)}
    for key, value in given.items():
        if value not in (None, False, (), ""):
            raise UsageError(
                f"--{key.replace('_', '-')} has no effect on a stored result", "leave it out, or pass the scores"
            )


DEFAULTS = {"weight_kind": "sampling"}


def named(settings: Config) -> list[str]:
    """Every file that a check may read, there or not."""
    paths = [settings.eval, settings.fit, *(g.baseline for g in settings.gates), *settings.sources]
    if os.path.isfile(settings.labels):  # not the name of an array
        paths.append(settings.labels)
    return list(filter(None, dict.fromkeys(paths)))


def _reading(options: Mapping[str, Any], settings: Config) -> dict[str, Any]:
    """Options of `inputs.scores.logits.read`: the command line's, else the configuration's."""
    found = {key: value for key, value in options.items() if key not in ("by", "multilabel")}
    if options.get("multilabel"):
        raise UsageError("a gate takes one label per row", "check every label of a multi-label problem on its own")
    for key in ("group", "weights", "ids", "scores", "labels", "kind", "classes", "event"):
        value = getattr(settings, key)
        if value and not found.get(key):
            found[key] = list(value) if isinstance(value, tuple) else value
    if settings.weight_kind and found.get("weight_kind", "sampling") == "sampling":
        found["weight_kind"] = settings.weight_kind
    return found
