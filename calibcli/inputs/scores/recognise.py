"""What a file would be read as, and why, as a Result: recorded outputs in full, anything else by name."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from calibcli import scalers
from calibcli.inputs.files.arrays import Contents, distinct
from calibcli.inputs.files.source import Source, load_any
from calibcli.inputs.opening import Reading
from calibcli.inputs.scores import confidence, opened, other_files, recorded, score_columns
from calibcli.inputs.scores.keys import candidates, pick_scores, shape_text
from calibcli.predictions import Predictions, Progress, words
from calibcli.result import Estimate, Result, Screen, Table
from calibcli.scalers import fitting, parameters

SHOWN = 20  # classes listed in the table
USED = "metrics, scale, apply, check, compare, plan, slices, watch, ood"  # commands that take labelled rows
SCREEN = Screen(hidden=("used_by",))  # the sentence says it


def inspect(
    paths: Sequence[str | Path], reading: Mapping[str, Any], progress: Progress | None = None
) -> tuple[Result, list[dict[str, Any]]]:
    """Read the files as every command would, and say what was found; also path and sha256 of each.

    Raises:
        InputError, UsageError: as `recorded.read` and `multilabel.read`.
    """
    how = {name: value for name, value in reading.items() if name != "multilabel"}
    single: str | Path | Sequence[str | Path] = paths[0] if len(paths) == 1 else paths
    wanted = Reading(**{**how, "need_labels": False})
    sources = recorded.open_all(single, wanted)
    contents = []
    for source in sources:
        other = other_files.before_reading(source)
        if other is None:
            contents.append(score_columns.grouped(load_any(source), wanted.scores, source.name))
            opened.unused(contents[-1], source)
            scored = candidates(contents[-1]) or wanted.scores
            known = scored or contents[-1].lacking or confidence.columns(contents[-1], wanted, source.name)
            other = None if known else other_files.after_reading(contents[-1], source)
        if other is not None and other.what == other_files.CALIBRATOR:
            return _calibrator(source), [source.entry()]
        if other is not None:
            facts = {"what": other.what, "used_by": other.commands, **other.facts}
            return Result(command="inspect", facts=facts, screen=SCREEN), [source.entry()]
    labelled = not scored and confidence.columns(contents[0], wanted, sources[0].name) is not None
    if not labelled:
        name = pick_scores(contents[0], wanted.scores, sources[0].name)
        labelled = recorded.label_array(contents, sources, wanted, name, [])[1] is not None
    wanted = dataclasses.replace(wanted, need_labels=labelled)
    if reading.get("multilabel"):
        from calibcli.inputs.scores.multilabel import split

        labels = split(contents, sources, wanted, progress)
        found = next(iter(labels.values()))
        result = outputs(found, contents[0])
        rows: list[list[Any]] = [[name, int(p.labels.sum()), p.n] for name, p in labels.items()]
        table = Table(name="labels", columns=["label", "positive", "rows"], rows=rows, title="Labels, each binary")
        facts = {**result.facts, "labels": len(labels), "classes": list(labels)}
        result = dataclasses.replace(result, tables=[result.tables[0], table], facts=facts)
    else:
        found = recorded.predictions(contents, sources, wanted, progress)
        result = outputs(found, contents[0])
    return result, recorded.provenance(found)


def _calibrator(source: Source) -> Result:
    """What a calibrator does, its parameters, and where it was fitted.

    Raises:
        InputError: it is damaged.
    """
    scaler = scalers.load(source.path)
    about, tables = parameters.shown(scaler.parameters, scaler.classes, scaler.k)
    fit = scaler.metadata
    facts = {
        "what": other_files.CALIBRATOR,
        "spec": scaler.spec,
        "takes": f"{words(scaler.kind)} ({'n' if scaler.columns == 1 else f'n, {scaler.columns}'})",
        "classes": list(scaler.classes) if scaler.classes else scaler.k,
        "keeps predicted classes": scaler.preserves_accuracy,
        **about,
        "fitted on": f"{fit.get('n', '?')} rows of {fit.get('source') or '?'}",
        "sha256": fit.get("sha256"),
        "version": fit.get("version"),
        "used_by": "apply (first argument)",
    }
    found = ({key: e[key] for key in fitting.KEPT if key in e} for e in fit.get("estimates", ()))
    estimates = [Estimate(**e) for e in found]
    return Result(command="inspect", estimates=estimates, tables=tables, facts=facts, screen=SCREEN)


def outputs(found: Predictions, contents: Contents) -> Result:
    """The Result for recorded outputs."""
    facts = found.facts
    roles = {facts["labels"]: "labels", facts["scores"]: f"scores: {facts['kind']}"}
    rows = [(name, shape_text(array), roles.get(name, "")) for name, array in contents.arrays.items()]
    tables = [Table(name="arrays", columns=["array", "shape and type", "read as"], rows=rows, title="In the file")]
    notes = list(found.notes)
    if facts["labelled"]:
        tables.append(_classes(found))
    else:
        notes.append("no labels found: metrics need them, apply does not (--labels KEY or FILE)")
    return Result(
        command="inspect",
        tables=tables,
        notes=notes,
        facts={
            "what": "recorded outputs",
            "format": facts["format"],
            "rows": found.n,
            **({"tasks": len(facts["tasks"])} if "tasks" in facts else {}),
            **found.problem,
            "why": facts["why"],
            **facts.get("evaluation", {}),
            "class_names": list(found.classes) if found.classes else None,
            "ids": None if found.ids is None else distinct(found.ids),
            "repeated_rows": facts["repeated_rows"],
            "used_by": USED if facts["labelled"] else f"apply, ood; with --labels FILE also {USED}",
        },
        screen=SCREEN,
    )


def _classes(found: Predictions) -> Table:
    counts = {int(c): rows for c, rows in found.facts["class_rows"].items()}
    order = sorted(counts, key=lambda c: -counts[c])
    total = sum(counts.values())
    names: Sequence[str | None] = found.classes or [None] * found.k
    rows = [[c, names[c], counts[c], counts[c] / total] for c in sorted(order[:SHOWN])]
    absent = found.k - len(counts)
    title = f"Labels: {total:,} rows, {len(counts)} of {found.k} classes present"
    title += f", the {SHOWN} most frequent" if len(order) > SHOWN else ""
    return Table(
        name="labels",
        columns=["class", "name", "rows", "share"],
        rows=rows,
        title=title + (f" ({absent} absent)" if absent else ""),
    )
