"""Files that are something else than recorded outputs: named, with the commands that take them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from calibcli.errors import InputError
from calibcli.inputs.files.arrays import Contents, Encoded
from calibcli.inputs.files.roles import PAIRS, TABLE_LABELS, TEXTS
from calibcli.inputs.files.source import Source
from calibcli.inputs.files.text import parsed
from calibcli.spec import normal

CALIBRATOR = "a calibrator of calib scale"
STATE = "calib_state"  # array of a state
RESULT = 64 << 20  # longest result that is looked into
WEIGHTS = (".weight", ".bias", ".running_mean")


@dataclass(frozen=True)
class Foreign:
    """What a file is, which commands take it, and what it says about itself."""

    what: str
    commands: str
    facts: dict[str, Any] = field(default_factory=dict)


PARTIAL = Foreign("a state of calib metrics --partial", "merge")
"""What parts of the rows left behind, which holds scores as well."""


def refuse(found: Foreign | None, source: Source) -> None:
    """Raises:
    InputError: the file is something else than recorded outputs.
    """
    if found is not None:
        raise InputError(f"{source.name} is {found.what}, not recorded outputs", f"it goes to: {found.commands}")


def before_reading(source: Source) -> Foreign | None:
    """What the bytes tell without a reader: results of calib, programs of PyTorch, configuration."""
    from calibcli.inputs.files import pickles

    head = source.pread(min(source.size, 512), 0)
    pickled = pickles.is_pickle(head)
    if head.lstrip()[:1] == b"{" and source.size <= RESULT:
        return _result(source.pread(source.size, 0))
    if head.startswith(b"PK\x03\x04"):
        import zipfile

        from calibcli.inputs.files.formats.numpy import DAMAGED
        from calibcli.inputs.files.pytorch_archive import program

        try:
            with zipfile.ZipFile(source.reader()) as archive:
                names = archive.namelist()
        except DAMAGED:
            return None
        if kind := program(names):
            return Foreign(f"a {kind} program", "curvature, logits (with --trust: it is code)")
        pickled = any(name.endswith("data.pkl") for name in names)
    if pickled and (found := _pickled(source)) is not None:
        return found
    if Path(source.path).suffix == ".toml":
        return Foreign("a configuration", "check (as --config)")
    return None


def _pickled(source: Source) -> Foreign | None:
    """A network, or weights under a name that recorded outputs do not have, by what the pickle names."""
    from calibcli.inputs.files import pickles, pytorch_archive

    try:
        names = {name.removeprefix(pickles.STACKED) for name in pytorch_archive.named(source)}
    except InputError:  # damaged: whoever reads it says so
        return None
    if any(name.startswith("torch.nn.modules.") for name in names):
        return Foreign(
            "a pickled network", "curvature, logits, fit (its weights with --arch; with --trust its code too)"
        )
    if Path(source.path).suffix not in pytorch_archive.SUFFIXES and any(name.endswith("Storage") for name in names):
        return Foreign("a checkpoint", "curvature, logits, fit")
    return None


def after_reading(contents: Contents, source: Source) -> Foreign | None:
    """What the names and metadata of the arrays tell: calibrators, checkpoints, data sets."""
    about = _object(contents.metadata.get("calib", ""))
    if about.get("what") == "calibrator":
        return Foreign(CALIBRATOR, "apply (first argument)")
    weights = [name for name in contents.arrays if name.endswith(WEIGHTS)]
    if "architecture" in about or weights:
        count = sum(math.prod(array.shape) for array in contents.arrays.values())
        facts = {"tensors": len(contents.arrays), "parameters": count}
        facts |= {key: about[key] for key in ("architecture", "preprocess", "classes", "data") if key in about}
        return Foreign("a checkpoint", "curvature, logits, fit", facts)
    rows, shapes = _rows(contents), {name: list(array.shape) for name, array in contents.arrays.items()}
    if not contents.scores and (rows or any(len(shape) >= 3 for shape in shapes.values())):
        used_by = f"curvature, logits, fit (as --data {Path(source.path).name})"
        return Foreign("a data set", used_by, rows or {"arrays": shapes})
    return None


def _rows(contents: Contents) -> dict[str, Any]:
    """Columns of pictures, or of texts beside labels, of a table; {} where it has neither."""
    shape = next((array.shape for array in contents.arrays.values()), ())
    size = {"rows": shape[0]} if shape else {}
    pictures = [name for name, array in contents.arrays.items() if isinstance(array, Encoded)]
    if pictures:
        return {**size, "pictures": ", ".join(pictures)}
    labels = [name for name in contents.arrays if normal(name) in TABLE_LABELS]
    known = {*TEXTS.names, *(name for pair in PAIRS for name in pair)}
    texts = [name for name, array in contents.arrays.items() if normal(name) in known and array.dtype.kind == "O"]
    return {**size, "texts": ", ".join(texts), "labels": ", ".join(labels)} if labels and texts else {}


def _result(text: bytes) -> Foreign | None:
    about = _object(text)
    if "command" not in about or "schema" not in about:
        return None
    command = str(about["command"])
    facts = {"command": command, "schema": about["schema"]}
    if isinstance(about.get("estimates"), list):
        facts["estimates"] = len(about["estimates"])
    return Foreign(f"a result of calib {command}", "check, compare", facts)


def _object(text: str | bytes) -> dict[str, Any]:
    found = parsed(text)
    return found if isinstance(found, dict) else {}
