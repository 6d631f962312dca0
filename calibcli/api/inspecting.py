"""Inspect a file, from Python: what it would be read as, and why."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Unpack

from calibcli import calibrators, headlines
from calibcli.api.measuring import spread
from calibcli.calibrators import fitting, store
from calibcli.core.errors import InputError, check_keywords, refusing
from calibcli.core.result import Estimate, Result, Screen, Table
from calibcli.networks.user_code import FAILURES
from calibcli.scores import array_names, confidence, other_files, recorded_outputs
from calibcli.scores.array_names import candidates, pick_scores, shape_text
from calibcli.scores.files import locations
from calibcli.scores.files.arrays import DOWNLOADED, FileContents, distinct, split_part
from calibcli.scores.files.formats import safetensors
from calibcli.scores.files.source import Source, load_any
from calibcli.scores.from_arrays import How
from calibcli.scores.predictions import Predictions, Progress, kind_words
from calibcli.scores.reading_options import Reading

# What a file would be read as, and why, as a Result: recorded outputs in full, anything else by name.

SHOWN = 20  # classes listed in the table
USED = "metrics, scale, apply, check, compare, plan, slices, watch, ood"  # commands that take labelled rows
SCREEN = Screen(hidden=("used_by",))  # the sentence says it


def inspect_outputs(
    paths: Sequence[str | Path], reading: Mapping[str, Any], progress: Progress | None = None
) -> tuple[Result, list[dict[str, Any]]]:
    """Read the files as every command would, and say what was found; also path and sha256 of each.

    Raises:
        InputError, UsageError: as `recorded.read` and `multilabel.read`.
    """
    how = {name: value for name, value in reading.items() if name != "multilabel"}
    single: str | Path | Sequence[str | Path] = paths[0] if len(paths) == 1 else paths
    wanted = Reading(**{**how, "need_labels": False})
    sources = recorded_outputs.open_all(single, wanted)
    contents = []
    for source in sources:
        other = other_files.before_reading(source)
        if other is None:
            contents.append(array_names.grouped(load_any(source), wanted.scores, source.name))
            recorded_outputs.refuse_unused_options(contents[-1], source)
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
        labelled = recorded_outputs.label_array(contents, sources, wanted, name, [])[1] is not None
    wanted = dataclasses.replace(wanted, need_labels=labelled)
    if reading.get("multilabel"):
        from calibcli.scores.from_arrays import split

        labels = split(contents, sources, wanted, progress)
        found = next(iter(labels.values()))
        result = outputs(found, contents[0])
        rows: list[list[Any]] = [[name, int(p.labels.sum()), p.n] for name, p in labels.items()]
        table = Table(name="labels", columns=["label", "positive", "rows"], rows=rows, title="Labels, each binary")
        facts = {**result.facts, "labels": len(labels), "classes": list(labels)}
        result = dataclasses.replace(result, tables=[result.tables[0], table], facts=facts)
    else:
        found = recorded_outputs.predictions(contents, sources, wanted, progress)
        result = outputs(found, contents[0])
    return result, recorded_outputs.provenance(found)


def _calibrator(source: Source) -> Result:
    """What a calibrator does, its parameters, and where it was fitted.

    Raises:
        InputError: it is damaged.
    """
    scaler = calibrators.load(source.path)
    about, tables = store.shown(scaler.parameters, scaler.classes, scaler.k)
    fit = scaler.metadata
    facts = {
        "what": other_files.CALIBRATOR,
        "spec": scaler.spec,
        "takes": f"{kind_words(scaler.kind)} ({'n' if scaler.columns == 1 else f'n, {scaler.columns}'})",
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


def outputs(found: Predictions, contents: FileContents) -> Result:
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


# Models and data sets that consist of more than one file, lie in an archive or are graphs, as `inspect` names them:
# nothing is loaded that a description does not need, and nothing is run.


def of(given: Path) -> Result | None:
    """What a folder, a published data set (or a split: `folder#test`), a graph, an adapter, or a file of weights beside
    its `config.json` is; None of what else `inspect` knows.

    Raises:
        InputError: a folder of neither a model nor a data set, or one whose description is damaged.
    """
    path, split = split_part(str(given))
    inside = os.path.isdir(path)
    beside = (path if inside else path.parent) / "config.json"
    model = beside.is_file() and (inside or path.name.startswith(("model.", "pytorch_")))
    if inside and (path / locations.STATE).is_file():
        return None  # recorded outputs, or rows: what lies in its tables tells
    if (inside and not model) or path.name.lower().endswith(DOWNLOADED):
        from calibcli.networks.dataset import downloads

        held = not inside or any(part.suffix in (".safetensors", ".bin") for part in path.iterdir())
        if downloads.of(path) or not held:
            facts, notes, sha256 = _data(path, split)
            used_by = f"curvature, logits, fit (as --data {given.name})"
            return _told(given, sha256, "a data set", used_by, facts, notes)
    weights = path.name.startswith("adapter_model.")
    if split or not (model or weights or path.suffix == ".onnx" or inside):
        return None
    from calibcli.networks.checkpoint.loading import adapter, fingerprint, members

    if folder := adapter(path):
        return _adapter(path, folder)
    if not (model or path.suffix == ".onnx"):
        return None  # weights that do not say what they are of
    home, sha256 = beside.parent, fingerprint(path)
    problem = f"{beside} is not understood"
    with refusing(FAILURES, lambda error: f"{problem} ({type(error).__name__}: {str(error)[:80]})", "check it"):
        about, notes = _folder(home) if beside.is_file() else ({}, [])
    if path.suffix == ".onnx":
        from calibcli.networks.checkpoint import containers

        facts = containers.description(path)
        facts |= {key: about[key] for key in ("classes", "called", "class_names", "pictures", "texts") if key in about}
        return _told(path, sha256, "an ONNX graph", "logits", facts, notes)
    facts = {**about, **_weights([file for file in members(path) if file.suffix != ".json"])}
    used_by = "none: its outputs are no logits of classes" if notes else "logits, curvature, fit"
    return _told(path, sha256, facts.pop("what"), used_by, facts, notes)


def _told(path: Path, sha256: str, what: str, used_by: str, facts: dict[str, Any], notes: list[str]) -> Result:
    inputs = [{"path": str(path), "sha256": sha256}]
    facts = {"what": what, "used_by": used_by, **facts}
    hidden = Screen(hidden=("used_by",))  # the sentence says it
    return Result(command="inspect", facts=facts, notes=notes, provenance={"inputs": inputs}, screen=hidden)


def _adapter(path: Path, folder: Path) -> Result:
    """What peft saves of a model that was tuned: a change to the weights of another."""
    from calibcli.networks.checkpoint import processor
    from calibcli.networks.checkpoint.loading import MERGE, fingerprint, members

    about = processor.read_json(folder / "adapter_config.json")
    facts = {
        "changes": about.get("base_model_name_or_path"),
        "kind": about.get("peft_type"),
        **_weights(members(folder)),
    }
    used_by = "none: it changes a model that lies elsewhere"
    return _told(path, fingerprint(folder), "an adapter of peft", used_by, facts, [MERGE])


def _folder(home: Path) -> tuple[dict[str, Any], list[str]]:
    """What `config.json` and its neighbours say of a model."""
    from calibcli.networks.checkpoint import huggingface, processor

    timm = processor.timm_config(home)
    if timm:
        names = timm.get("label_names") or timm.get("pretrained_cfg", {}).get("label_names")
        about: dict[str, Any] = {"what": "a timm model", "architecture": f"timm:{timm['architecture']}"}
        classes = _class_names(list(map(str, names or ())) or None, timm.get("num_classes"))
        return {**about, **classes, "pictures": _pictures(home)}, []
    config = processor.read_json(home / "config.json")
    names = config.get("id2label")
    head = next(iter(config.get("architectures") or [""]))
    about = {"what": "a Hugging Face model", "architecture": head or config.get("model_type")}
    notes = []
    if not str(head).endswith(huggingface.HEADS):
        notes.append(f"'{head or 'a model without a head'}' is no classifier: calib does not load it")
    if config.get("problem_type") in ("multi_label_classification", "regression"):
        notes.append(
            f"problem_type {config['problem_type']}: its outputs are no logits of classes that exclude each other"
        )
    labels = [str(names[key]) for key in sorted(names, key=int)] if isinstance(names, dict) and names else None
    named = labels and not all(label == f"LABEL_{i}" for i, label in enumerate(labels))
    number = len(labels or ()) or config.get("num_labels", 2)
    found: dict[str, Any] = {**about, **_class_names(labels if named else None, number)}
    if processor.description(home):
        found["pictures"] = _pictures(home)
    tokenizer = processor.read_json(home / "tokenizer_config.json")
    if tokenizer or any((home / name).is_file() for name in huggingface.TOKENIZERS):
        longest = tokenizer.get("model_max_length")
        limit = f", at most {int(longest)} tokens" if isinstance(longest, int | float) and longest < 1 << 20 else ""
        found["texts"] = f"{tokenizer.get('tokenizer_class') or 'a tokenizer'}{limit}"
    return found, notes


def _class_names(names: list[str] | None, number: Any) -> dict[str, Any]:
    """How many, and what they are called, for people as far as a line goes."""
    if not names:
        return {"classes": number}
    shown = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
    return {"classes": len(names), "called": shown, "class_names": names}


def _pictures(home: Path) -> str:
    """How pictures are prepared, in words."""
    from calibcli.networks.checkpoint import processor

    try:
        found = processor.of_folder(home)
    except InputError as error:
        return error.problem
    return processor.steps(found)


def _weights(files: list[Path]) -> dict[str, Any]:
    """Files of weights, and of safetensors the number of tensors and parameters and their types."""
    facts: dict[str, Any] = {"files": ", ".join(file.name for file in files)}
    tensors = [about for file in files if file.suffix == ".safetensors" for about in safetensors.described(file)]
    if tensors:
        kinds = sorted({safetensors.FLOATS.get(about["dtype"], about["dtype"]) for about in tensors})
        facts |= {"tensors": len(tensors), "parameters": sum(math.prod(about["shape"]) for about in tensors)}
        facts["stored as"] = ", ".join(kinds)
    return facts


def _data(path: Path, split: str) -> tuple[dict[str, Any], list[str], str]:
    """Splits of a folder of tables or of a published data set, and of the one that is asked for, else of the last, its
    rows; of pictures in folders, what lies there.
    """
    from calibcli.networks import dataset
    from calibcli.networks.dataset import loading
    from calibcli.networks.dataset.loading import pictures

    if tables := loading.names(path):
        return {"splits": ", ".join(tables)}, [], ""
    if splits := dataset.splits(path):
        shown = split or splits[-1]
        found = dataset.load(f"{path}#{shown}")
        facts = {"rows": len(found), **_class_names(found.classes, int(found.labels.max()) + 1)}
        facts |= {name or "inputs": shape_text(array) for name, array in found.inputs.items()}
        return {"splits": ", ".join(splits), "split": shown, **facts}, found.notes, found.sha256
    read = pictures(path, split)
    height, width = next(iter(read.inputs.values())).shape[1:3]
    facts = {"rows": len(read.labels), **_class_names(read.classes, None), "first picture": f"{width}x{height}"}
    return facts, read.notes, read.sha256


# Say what a file would be read as, from Python.


__all__ = ["inspect"]


@spread
def inspect(
    path: str | Path | Sequence[str | Path],
    /,
    *,
    labels: str | None = None,
    progress: Progress | None = None,
    **how: Unpack[How],
) -> Result:
    """Say what a file would be read as, and why; refuses what `read` refuses.

    Says whether scores are logits or probabilities, and what tells. A model, a data set, a calibrator or a result is
    named, with the command that takes it. Ours: what is looked for, and in which order.

    >>> import numpy as np
    >>> np.savez(folder / "test.npz", logits=logits, labels=labels)
    >>> found = inspect(folder / "test.npz")
    >>> found.facts["kind"], found.facts["rows"]
    ('logits', 997)

    Args:
        path: file or folder, or the files of one data set.
        labels: the name of their array, or a file of them.  how: as for `read`.
        progress: called with (fraction, text).

    Raises:
        InputError: a file that is refused.  UsageError: an option that cannot be.  TypeError: an unknown keyword.
    """
    check_keywords(how, How.__annotations__, "inspect")
    files = [path] if isinstance(path, str | Path) else list(path)
    reading: dict[str, Any] = {**how, **({} if labels is None else {"labels": labels})}
    found = of(Path(files[0])) if len(files) == 1 and not reading else None
    if found is None:
        result, inputs = inspect_outputs(files, reading, progress)
        found = dataclasses.replace(result, provenance={"inputs": inputs})
    return headlines.headed(found)
