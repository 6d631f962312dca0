"""Models and data sets that consist of more than one file, lie in an archive or are graphs, as `inspect` names them:
nothing is loaded that a description does not need, and nothing is run."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

from calibcli.errors import InputError, refusing
from calibcli.inputs.code import FAILURES
from calibcli.inputs.files import places
from calibcli.inputs.files.formats import safetensors
from calibcli.inputs.files.names import DOWNLOADED, parted
from calibcli.inputs.scores.keys import shape_text
from calibcli.result import Result, Screen


def of(given: Path) -> Result | None:
    """What a folder, a published data set (or a split: `folder#test`), a graph, an adapter, or a file of weights beside
    its `config.json` is; None of what else `inspect` knows.

    Raises:
        InputError: a folder of neither a model nor a data set, or one whose description is damaged.
    """
    path, split = parted(str(given))
    inside = os.path.isdir(path)
    beside = (path if inside else path.parent) / "config.json"
    model = beside.is_file() and (inside or path.name.startswith(("model.", "pytorch_")))
    if inside and (path / places.STATE).is_file():
        return None  # recorded outputs, or rows: what lies in its tables tells
    if (inside and not model) or path.name.lower().endswith(DOWNLOADED):
        from calibcli.inputs.dataset import downloads

        held = not inside or any(part.suffix in (".safetensors", ".bin") for part in path.iterdir())
        if downloads.of(path) or not held:
            facts, notes, sha256 = _data(path, split)
            used_by = f"curvature, logits, fit (as --data {given.name})"
            return _told(given, sha256, "a data set", used_by, facts, notes)
    weights = path.name.startswith("adapter_model.")
    if split or not (model or weights or path.suffix == ".onnx" or inside):
        return None
    from calibcli.inputs.checkpoint.load import adapter, fingerprint, members

    if folder := adapter(path):
        return _adapter(path, folder)
    if not (model or path.suffix == ".onnx"):
        return None  # weights that do not say what they are of
    home, sha256 = beside.parent, fingerprint(path)
    problem = f"{beside} is not understood"
    with refusing(FAILURES, lambda error: f"{problem} ({type(error).__name__}: {str(error)[:80]})", "check it"):
        about, notes = _folder(home) if beside.is_file() else ({}, [])
    if path.suffix == ".onnx":
        from calibcli.inputs.checkpoint import onnx_session

        facts = onnx_session.description(path)
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
    from calibcli.inputs.checkpoint import processor
    from calibcli.inputs.checkpoint.load import MERGE, fingerprint, members

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
    from calibcli.inputs.checkpoint import huggingface, processor

    timm = processor.timm_config(home)
    if timm:
        names = timm.get("label_names") or timm.get("pretrained_cfg", {}).get("label_names")
        about: dict[str, Any] = {"what": "a timm model", "architecture": f"timm:{timm['architecture']}"}
        classes = _classes(list(map(str, names or ())) or None, timm.get("num_classes"))
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
    found: dict[str, Any] = {**about, **_classes(labels if named else None, number)}
    if processor.description(home):
        found["pictures"] = _pictures(home)
    tokenizer = processor.read_json(home / "tokenizer_config.json")
    if tokenizer or any((home / name).is_file() for name in huggingface.TOKENIZERS):
        longest = tokenizer.get("model_max_length")
        limit = f", at most {int(longest)} tokens" if isinstance(longest, int | float) and longest < 1 << 20 else ""
        found["texts"] = f"{tokenizer.get('tokenizer_class') or 'a tokenizer'}{limit}"
    return found, notes


def _classes(names: list[str] | None, number: Any) -> dict[str, Any]:
    """How many, and what they are called, for people as far as a line goes."""
    if not names:
        return {"classes": number}
    shown = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
    return {"classes": len(names), "called": shown, "class_names": names}


def _pictures(home: Path) -> str:
    """How pictures are prepared, in words."""
    from calibcli.inputs.checkpoint import processor

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
    from calibcli.inputs import dataset
    from calibcli.inputs.dataset import saved
    from calibcli.inputs.dataset.load import pictures

    if tables := saved.names(path):
        return {"splits": ", ".join(tables)}, [], ""
    if splits := dataset.splits(path):
        shown = split or splits[-1]
        found = dataset.load(f"{path}#{shown}")
        facts = {"rows": len(found), **_classes(found.classes, int(found.labels.max()) + 1)}
        facts |= {name or "inputs": shape_text(array) for name, array in found.inputs.items()}
        return {"splits": ", ".join(splits), "split": shown, **facts}, found.notes, found.sha256
    read = pictures(path, split)
    height, width = next(iter(read.inputs.values())).shape[1:3]
    facts = {"rows": len(read.labels), **_classes(read.classes, None), "first picture": f"{width}x{height}"}
    return facts, read.notes, read.sha256
