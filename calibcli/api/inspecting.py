"""Inspect a file, from Python: how it would be read, and why."""

from __future__ import annotations

import dataclasses
import math
import os
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Unpack

from calibcli import calibrators, headlines
from calibcli.api.measuring import spread
from calibcli.calibrators import fitting, store
from calibcli.core.errors import InputError, check_keywords, refusing
from calibcli.core.files import unchanged
from calibcli.core.number_format import first_few
from calibcli.core.result import Estimate, Result, Screen, Table
from calibcli.networks.user_code import FAILURES
from calibcli.scores import array_names, confidence, other_files, recorded_outputs
from calibcli.scores.array_names import candidates, pick_scores, shape_text
from calibcli.scores.files import locations, pickles
from calibcli.scores.files.arrays import DOWNLOADED, FileContents, distinct, load_any, split_part
from calibcli.scores.files.formats import safetensors
from calibcli.scores.files.source import Source
from calibcli.scores.from_arrays import How
from calibcli.scores.predictions import Predictions, Progress, kind_words
from calibcli.scores.reading_options import Reading

__all__ = ["inspect"]

SHOWN = 20  # classes listed in the table
USED = "metrics, scale, apply, check, compare, plan, slices, threshold, watch, ood"  # commands that take labelled rows
SCREEN = Screen(hidden=("used_by",))  # the headline has it


def inspect_outputs(
    paths: Sequence[str | Path], reading: Mapping[str, Any], progress: Progress | None = None
) -> tuple[Result, list[dict[str, Any]]]:
    """Read the files as every command would and describe them; also return path and sha256 of each.

    Raises:
        InputError, UsageError: as `recorded.read` and `multilabel.read`.
    """
    options = {name: value for name, value in reading.items() if name != "multilabel"}
    single: str | Path | Sequence[str | Path] = paths[0] if len(paths) == 1 else paths
    wanted = Reading(**{**options, "need_labels": False})
    sources = recorded_outputs.open_all(single, wanted)
    contents = []
    for source in sources:
        other = other_files.before_reading(source)
        if other is None:
            contents.append(load_any(source))
            recorded_outputs.refuse_unused_options(contents[-1], source)
            scored = candidates(contents[-1]) or wanted.scores or array_names.score_columns(contents[-1:])
            recognised = scored or contents[-1].lacking or confidence.columns(contents[-1], wanted, source.name)
            other = None if recognised else other_files.after_reading(contents[-1], source)
        if other is not None and other.what == other_files.CALIBRATOR:
            return _calibrator(source), [source.entry()]
        if other is not None:
            facts = {"what": other.what, "used_by": other.commands, **other.facts}
            return Result(command="inspect", facts=facts, screen=SCREEN), [source.entry()]
    contents = array_names.grouped(contents, wanted.scores, [source.name for source in sources], wanted.labels)
    labelled = not scored and confidence.columns(contents[0], wanted, sources[0].name) is not None
    if not labelled:
        name = pick_scores(contents[0], wanted.scores, sources[0].name)
        labelled = recorded_outputs.label_array(contents, sources, wanted, name, [])[1] is not None
    wanted = dataclasses.replace(wanted, need_labels=labelled)
    if reading.get("multilabel"):
        from calibcli.scores.from_arrays import split

        labels = split(contents, sources, wanted, progress)
        predictions = next(iter(labels.values()))
        result = outputs(predictions, contents[0])
        rows: list[list[Any]] = [[name, int(p.labels.sum()), p.n] for name, p in labels.items()]
        table = Table(name="labels", columns=["label", "positive", "rows"], rows=rows, title="Labels, each binary")
        facts = {**result.facts, "labels": len(labels), "classes": list(labels)}
        result = dataclasses.replace(result, tables=[result.tables[0], table], facts=facts)
    else:
        predictions = recorded_outputs.predictions(contents, sources, wanted, progress)
        result = outputs(predictions, contents[0])
    return result, recorded_outputs.provenance(predictions)


def _calibrator(source: Source) -> Result:
    """Describe a calibrator: what it does, its parameters, and where it was fitted.

    Raises:
        InputError: the file is damaged.
    """
    scaler = calibrators.load(source.path)
    shown, tables = store.shown(scaler.parameters, scaler.classes, scaler.k)
    fit = scaler.metadata
    facts = {
        "what": other_files.CALIBRATOR,
        "spec": scaler.spec,
        "takes": f"{kind_words(scaler.kind)} ({'n' if scaler.columns == 1 else f'n, {scaler.columns}'})",
        "classes": list(scaler.classes) if scaler.classes else scaler.k,
        "keeps predicted classes": scaler.preserves_accuracy,
        **shown,
        "fitted on": f"{fit.get('n', '?')} rows of {fit.get('source') or '?'}",
        "sha256": fit.get("sha256"),
        "version": fit.get("version"),
        "used_by": "apply (first argument)",
    }
    kept = ({key: e[key] for key in fitting.KEPT if key in e} for e in fit.get("estimates", ()))
    estimates = [Estimate(**e) for e in kept]
    return Result(command="inspect", estimates=estimates, tables=tables, facts=facts, screen=SCREEN)


def outputs(predictions: Predictions, contents: FileContents) -> Result:
    """Describe recorded outputs."""
    record = predictions.record
    roles = {record.labels: "labels", record.scores: f"scores: {record.kind}"}
    rows = [(name, shape_text(array), roles.get(name, "")) for name, array in contents.arrays.items()]
    tables = [Table(name="arrays", columns=["array", "shape and type", "read as"], rows=rows, title="In the file")]
    notes = list(predictions.notes)
    if record.labelled:
        tables.append(_classes(predictions))
    else:
        notes.append("no labels found: metrics need them, apply does not (--labels KEY or FILE)")
    return Result(
        command="inspect",
        tables=tables,
        notes=notes,
        facts={
            "what": "recorded outputs",
            "format": record.format,
            "rows": predictions.n,
            **({"tasks": len(record.tasks)} if record.tasks else {}),
            **predictions.problem.facts,
            "why": record.why,
            **record.evaluation,
            "class_names": list(predictions.classes) if predictions.classes else None,
            "ids": None if predictions.ids is None else distinct(predictions.ids),
            "repeated_rows": record.repeated_rows,
            "used_by": USED if record.labelled else f"apply, ood; with --labels FILE also {USED}",
        },
        screen=SCREEN,
    )


def _classes(predictions: Predictions) -> Table:
    counts = {int(c): rows for c, rows in predictions.record.class_rows.items()}
    order = sorted(counts, key=lambda c: -counts[c])
    total = sum(counts.values())
    names: Sequence[str | None] = predictions.classes or [None] * predictions.k
    rows = [[c, names[c], counts[c], counts[c] / total] for c in sorted(order[:SHOWN])]
    absent = predictions.k - len(counts)
    title = f"Labels: {total:,} rows, {len(counts)} of {predictions.k} classes present"
    title += f", the {SHOWN} most frequent" if len(order) > SHOWN else ""
    return Table(
        name="labels",
        columns=["class", "name", "rows", "share"],
        rows=rows,
        title=title + (f" ({absent} absent)" if absent else ""),
    )


# Models and data sets in folders and archives, and graphs. They are recognised without running anything, and only what
# a description needs is loaded.


def of(given: Path) -> Result | None:
    """Describe a folder, a published data set (or a split: `folder#test`), a graph, an adapter, or a file of weights
    beside its `config.json`; None for anything else.

    Raises:
        InputError: a folder holds neither a model nor a data set, or its description is damaged.
    """
    path, split = split_part(str(given))
    inside = os.path.isdir(path)
    beside = (path if inside else path.parent) / "config.json"
    model = beside.is_file() and (inside or path.name.startswith(("model.", "pytorch_")))
    if inside and (path / locations.STATE).is_file():
        return None  # recorded outputs or a data set: its tables decide
    if not inside and not model and (result := _among_objects(path)) is not None:
        return result
    if (inside and not model) or (path.name.lower().endswith(DOWNLOADED) and not _of_torch(path)):
        from calibcli.networks.dataset import downloads

        weights = any(part.suffix in (".safetensors", ".bin") for part in path.iterdir()) if inside else False
        if downloads.of(path) or (inside and not weights):
            facts, notes, sha256 = _data(path, split)
            used_by = f"curvature, logits, fit (as --data {given.name})"
            return _described(given, sha256, "a data set", used_by, facts, notes)
    weights = path.name.startswith("adapter_model.")
    if split or not (model or weights or path.suffix == ".onnx" or inside):
        return None
    from calibcli.networks.checkpoint import adapters
    from calibcli.networks.checkpoint.loading import fingerprint, members

    if folder := adapters.folder_of(path):
        return _adapter(path, folder)
    if not (model or path.suffix == ".onnx"):
        return None  # weights without a description of their model
    home, sha256 = beside.parent, fingerprint(path)
    problem = f"{beside} is not understood"
    with refusing(FAILURES, lambda error: f"{problem} ({type(error).__name__}: {str(error)[:80]})", "check it"):
        description, notes = _folder(home) if beside.is_file() else ({}, [])
    if path.suffix == ".onnx":
        from calibcli.networks.checkpoint import containers

        facts = containers.description(path)
        shown = ("classes", "called", "class_names", "pictures", "texts")
        facts |= {key: description[key] for key in shown if key in description}
        return _described(path, sha256, "an ONNX graph", "logits", facts, notes)
    facts = {**description, **_weights([file for file in members(path) if file.suffix != ".json"])}
    used_by = "none: its outputs are not logits of classes" if notes else "logits, curvature, fit"
    return _described(path, sha256, facts.pop("what"), used_by, facts, notes)


def _of_torch(path: Path) -> bool:
    """Whether torch.save wrote a file, whatever its name says (`model.pth.tar` is no archive)."""
    try:
        with path.open("rb") as file:
            head = file.read(16)
        if head[:2] == b"PK":
            with zipfile.ZipFile(path) as archive:
                return any(name.endswith("data.pkl") for name in archive.namelist())
    except (OSError, zipfile.BadZipFile):
        return False
    return pickles.is_pickle(head)


def _among_objects(path: Path) -> Result | None:
    """Describe weights in a pickle that holds other objects too, such as a NumPy number; None for any other file.

    Nothing is executed: the weights are read as `calib logits` reads them.
    """
    if not path.is_file() or not _of_torch(path):
        return None
    source = Source(path)
    try:
        names = other_files.pickled_globals(source)
    except InputError:  # damaged: whoever reads it says so
        return None
    if pickles.only_tensors(names) or any(name.startswith("torch.nn.modules.") for name in names):
        return None
    from calibcli.networks.checkpoint import containers, weights

    try:
        contents = containers.read(path, trust=False)
        tensors = weights.main(weights.tables(contents.tensors, str(path)))
    except InputError:  # no weights by name
        return None
    if not any(name.endswith(other_files.WEIGHTS) for name in tensors):
        return None
    facts = {"tensors": len(tensors), "parameters": sum(tensor.numel() for tensor in tensors.values())}
    return _described(path, source.sha256(), "a checkpoint", "curvature, logits, fit", facts, contents.notes)


def _described(path: Path, sha256: str, kind: str, used_by: str, facts: dict[str, Any], notes: list[str]) -> Result:
    inputs = [{"path": str(path), "sha256": sha256}]
    facts = {"what": kind, "used_by": used_by, **facts}
    return Result(command="inspect", facts=facts, notes=notes, provenance={"inputs": inputs}, screen=SCREEN)


def _adapter(path: Path, folder: Path) -> Result:
    """Describe an adapter, which peft saves: a change to the weights of another model."""
    from calibcli.networks.checkpoint import processor
    from calibcli.networks.checkpoint.adapters import MERGE
    from calibcli.networks.checkpoint.loading import fingerprint, members

    config = processor.read_json(folder / "adapter_config.json")
    facts = {
        "changes": config.get("base_model_name_or_path"),
        "kind": config.get("peft_type"),
        **_weights(members(folder)),
    }
    used_by = "logits, curvature, fit"
    beside = "it is added by peft to the folder of its model (--arch FOLDER, if that lies elsewhere than it says)"
    return _described(path, fingerprint(folder), "an adapter of peft", used_by, facts, [f"{beside}; or {MERGE}"])


def _folder(home: Path) -> tuple[dict[str, Any], list[str]]:
    """Describe a model by its `config.json` and the files beside it; also return notes."""
    from calibcli.networks.checkpoint import huggingface, processor

    timm = processor.timm_config(home)
    if timm:
        names = timm.get("label_names") or timm.get("pretrained_cfg", {}).get("label_names")
        model: dict[str, Any] = {"what": "a timm model", "architecture": f"timm:{timm['architecture']}"}
        classes = _class_names(list(map(str, names or ())) or None, timm.get("num_classes"))
        return {**model, **classes, "pictures": _pictures(home)}, []
    config = processor.read_json(home / "config.json")
    names = config.get("id2label")
    head = next(iter(config.get("architectures") or [""]))
    model = {"what": "a Hugging Face model", "architecture": head or config.get("model_type")}
    notes = []
    if not str(head).endswith(huggingface.HEADS):
        notes.append(f"'{head or 'a model without a head'}' is no classifier: calib does not load it")
    if config.get("problem_type") in ("multi_label_classification", "regression"):
        notes.append(f"problem_type {config['problem_type']}: its outputs are not logits of mutually exclusive classes")
    labels = [str(names[key]) for key in sorted(names, key=int)] if isinstance(names, dict) and names else None
    named = labels and not all(label == f"LABEL_{i}" for i, label in enumerate(labels))
    number = len(labels or ()) or config.get("num_labels", 2)
    facts: dict[str, Any] = {**model, **_class_names(labels if named else None, number)}
    if processor.description(home):
        facts["pictures"] = _pictures(home)
    tokenizer = processor.read_json(home / "tokenizer_config.json")
    if tokenizer or any((home / name).is_file() for name in huggingface.TOKENIZERS):
        longest = tokenizer.get("model_max_length")
        limit = f", at most {int(longest)} tokens" if isinstance(longest, int | float) and longest < 1 << 20 else ""
        facts["texts"] = f"{tokenizer.get('tokenizer_class') or 'a tokenizer'}{limit}"
    return facts, notes


def _class_names(names: list[str] | None, number: Any) -> dict[str, Any]:
    """Return the number of classes and their names, those shown to people limited to one line."""
    if not names:
        return {"classes": number}
    return {"classes": len(names), "called": first_few(names, 8), "class_names": names}


def _pictures(home: Path) -> str:
    """Describe in words how pictures are prepared."""
    from calibcli.networks.checkpoint import processor

    try:
        preprocess = processor.of_folder(home)
    except InputError as error:
        return error.problem
    return processor.steps(preprocess)


def _weights(files: list[Path]) -> dict[str, Any]:
    """Describe files of weights; for safetensors also the numbers of tensors and parameters and their types."""
    facts: dict[str, Any] = {"files": ", ".join(file.name for file in files)}
    tensors = [tensor for file in files if file.suffix == ".safetensors" for tensor in safetensors.described(file)]
    if tensors:
        kinds = sorted({safetensors.FLOATS.get(tensor["dtype"], tensor["dtype"]) for tensor in tensors})
        facts |= {"tensors": len(tensors), "parameters": sum(math.prod(tensor["shape"]) for tensor in tensors)}
        facts["stored as"] = ", ".join(kinds)
    return facts


def _data(path: Path, split: str) -> tuple[dict[str, Any], list[str], str]:
    """Describe a data set: the splits of a folder of tables or of a published data set, with the rows of the requested
    split, else of the last; or an image folder. Also return notes and the sha256.
    """
    from calibcli.networks import dataset
    from calibcli.networks.dataset import loading
    from calibcli.networks.dataset.loading import pictures

    if tables := loading.names(path):
        return {"splits": ", ".join(tables)}, [], ""
    if splits := dataset.splits(path):
        shown = split or splits[-1]
        rows = dataset.load(f"{path}#{shown}")
        facts = {"rows": len(rows), **_class_names(rows.classes, int(rows.labels.max()) + 1)}
        facts |= {name or "inputs": shape_text(array) for name, array in rows.inputs.items()}
        return {"splits": ", ".join(splits), "split": shown, **facts}, rows.notes, rows.sha256
    read = pictures(path, split)
    height, width = next(iter(read.inputs.values())).shape[1:3]
    facts = {"rows": len(read.labels), **_class_names(read.classes, None), "first picture": f"{width}x{height}"}
    return facts, read.notes, read.sha256


@spread
def inspect(
    path: str | Path | Sequence[str | Path],
    /,
    *,
    labels: str | None = None,
    progress: Progress | None = None,
    **how: Unpack[How],
) -> Result:
    """Describe how a file would be read, and why; refuses what `read` refuses.

    The result says whether scores are logits or probabilities, and by which evidence. A model, a data set, a calibrator
    or a result is recognised, and the command that takes it is named. Ours: what is looked for, and in which order.

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
    with unchanged(*(file for file in files if os.path.isfile(file))):
        description = of(Path(files[0])) if len(files) == 1 and not reading else None
        if description is None:
            result, inputs = inspect_outputs(files, reading, progress)
            description = dataclasses.replace(result, provenance={"inputs": inputs})
    return headlines.headed(description)
