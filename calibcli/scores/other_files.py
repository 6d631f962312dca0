"""Recognise files that hold something other than recorded outputs, and name the commands that take them."""

from __future__ import annotations

import contextlib
import math
import os
import pickle
import struct
import zipfile
import zlib
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from calibcli.core.errors import InputError, check_path, refusing
from calibcli.core.options import normal
from calibcli.scores.files import pickles
from calibcli.scores.files.arrays import EncodedPictures, FileContents
from calibcli.scores.files.formats.numpy import DAMAGED, distinct_members, stored_part
from calibcli.scores.files.roles import PAIRS, TABLE_LABELS, TEXTS
from calibcli.scores.files.source import Source
from calibcli.scores.files.text_tables import parsed

# What a PyTorch file shows without PyTorch.

SUFFIXES = (".pt", ".pth")
UNREADABLE = (
    *(pickle.UnpicklingError, RuntimeError, EOFError, ValueError, LookupError, AttributeError, TypeError, OSError),
    *(AssertionError, NotImplementedError, RecursionError, ArithmeticError, MemoryError, struct.error),
)


def torch_program(names: Collection[str]) -> str:
    """Return which program of torch a zip archive with these members is: TorchScript, torch.export, or ""."""
    tails = {name.partition("/")[2] for name in names} | set(names)
    if "constants.pkl" in tails or any(tail.startswith("code/") for tail in tails):
        return "TorchScript"
    exported = tails & {"archive_format", "serialized_exported_program.json"}
    return "torch.export" if exported or any(t.startswith("models/") and not t.endswith(".npy") for t in tails) else ""


def note_checksums(source: Source) -> int:
    """Note the checksums that `source.sha256()` is to compare, as torch does not; return the size of the file when
    unpacked.

    Raises:
        InputError: damaged, or two members have one name.
    """
    if source.pread(min(2, source.size), 0) != b"PK":
        return source.size
    with _zip(source) as archive:
        members = archive.infolist()
        distinct_members(members, source)
        for member in members:
            if member.compress_type == zipfile.ZIP_STORED and member.CRC:  # torch can be told to write none
                stored_part(source, member, member.filename)
        return sum(member.file_size for member in members)


def pickled_globals(source: Source) -> set[str]:
    """Return the globals that the pickle in a .pt file names, after checking how much work it asks for.

    Raises:
        InputError: too much, or the file is damaged.
    """
    if source.pread(min(2, source.size), 0) != b"PK":
        return pickles.names(source.reader(), source.name)
    names: set[str] = set()
    with _zip(source) as archive:
        for member in (m for m in archive.infolist() if m.filename.endswith(".pkl")):
            with archive.open(member) as file:
                if not member.CRC:
                    file._expected_crc = None  # type: ignore[attr-defined]
                names |= pickles.names(file, source.name)
    return names


@contextlib.contextmanager
def _zip(source: Source) -> Iterator[zipfile.ZipFile]:
    errors = (*UNREADABLE, zipfile.BadZipFile, zlib.error)
    damaged = refusing(errors, lambda error: f"{source.name} is damaged ({str(error)[:80]})", "save it again")
    with damaged, zipfile.ZipFile(source.reader()) as archive:
        yield archive


CALIBRATOR = "a calibrator of calib scale"
STATE = "calib_state"  # array of a state
RESULT = 64 << 20  # bytes; longer files are not parsed to see whether they are a result
WEIGHTS = (".weight", ".bias", ".running_mean")
ONE_LAYER = {"weight", "bias"}  # names of its tensors, which are no column of weights where nothing lies beside them


@dataclass(frozen=True)
class Foreign:
    """A file that is not recorded outputs: its kind, the commands that take it, and facts from the file."""

    what: str
    commands: str
    facts: dict[str, Any] = field(default_factory=dict)


PARTIAL = Foreign("a state of calib metrics --partial", "merge")
"""Its arrays would pass for recorded outputs, so that it is refused by its name."""


def refuse_other_file(other: Foreign | None, source: Source) -> None:
    """Refuse a file that was recognised as something else than recorded outputs.

    Raises:
        InputError: the file is something else than recorded outputs.
    """
    if other is not None:
        raise InputError(f"{source.name} is {other.what}, not recorded outputs", f"it goes to: {other.commands}")


def is_result(path: str | os.PathLike[str]) -> bool:
    """Return whether a file is a result of calib, by its keys: evaluations of others are .json files, too.

    Raises:
        InputError: it cannot be read.
    """
    if not os.path.isfile(path) or os.path.getsize(path) > RESULT:
        return False
    cannot = refusing(OSError, lambda error: f"cannot read {path} ({error.strerror})", check_path(path))
    with cannot, open(path, "rb") as file:
        text = file.read(512)
        if text.lstrip()[:1] != b"{":
            return False
        text += file.read()
    begun = text.split(None, 2)[1:2] == [b'"command":']  # that of a result which was cut off is said of a result
    return begun or (b'"command"' in text and b'"schema"' in text and _result(text) is not None)


def before_reading(source: Source) -> Foreign | None:
    """Recognise results of calib, programs of PyTorch and configurations by their bytes, without a reader."""
    head = source.pread(min(source.size, 512), 0)
    pickled = pickles.is_pickle(head)
    if head.lstrip()[:1] == b"{" and source.size <= RESULT:
        return _result(source.pread(source.size, 0))
    if head.startswith(b"PK\x03\x04"):
        try:
            with zipfile.ZipFile(source.reader()) as archive:
                names = archive.namelist()
        except DAMAGED:
            return None
        if kind := torch_program(names):
            return Foreign(f"a {kind} program", "curvature, logits (with --trust: it is code)")
        pickled = any(name.endswith("data.pkl") for name in names)
    if pickled and (network := _pickled(source)) is not None:
        return network
    if Path(source.path).suffix == ".toml":
        return Foreign("a configuration", "check (as --config)")
    return None


def _pickled(source: Source) -> Foreign | None:
    """Recognise a network, or weights under a name that recorded outputs do not have, by what the pickle names."""
    try:
        names = {name.removeprefix(pickles.STACKED) for name in pickled_globals(source)}
    except InputError:  # damaged: whoever reads it says so
        return None
    if any(name.startswith("torch.nn.modules.") for name in names):
        commands = "curvature, logits, fit (its weights with --arch; with --trust its code too)"
        return Foreign("a pickled network", commands)
    if Path(source.path).suffix not in SUFFIXES and any(name.endswith("Storage") for name in names):
        return Foreign("a checkpoint", "curvature, logits, fit")
    return None


def after_reading(contents: FileContents, source: Source) -> Foreign | None:
    """Recognise calibrators, checkpoints and data sets by the names and metadata of their arrays."""
    metadata = _object(contents.metadata.get("calib", ""))
    if metadata.get("what") == "calibrator":
        return Foreign(CALIBRATOR, "apply (first argument)")
    weights = [name for name in contents.arrays if name.endswith(WEIGHTS)]
    # a file that calib wrote says what it is, and one that says so wrongly is no layer either
    one_layer = not metadata and {*contents.arrays} == ONE_LAYER and len(contents.arrays["weight"].shape) > 1
    if "architecture" in metadata or weights or one_layer:
        count = sum(math.prod(array.shape) for array in contents.arrays.values())
        facts = {"tensors": len(contents.arrays), "parameters": count}
        facts |= {key: metadata[key] for key in ("architecture", "preprocess", "classes", "data") if key in metadata}
        return Foreign("a checkpoint", "curvature, logits, fit", facts)
    rows, shapes = _rows(contents), {name: list(array.shape) for name, array in contents.arrays.items()}
    if not contents.scores and (rows or any(len(shape) >= 3 for shape in shapes.values())):
        used_by = f"curvature, logits, fit (as --data {Path(source.path).name})"
        return Foreign("a data set", used_by, rows or {"arrays": shapes})
    return None


def _rows(contents: FileContents) -> dict[str, Any]:
    """Return the columns of pictures, or of texts beside labels, of a table; {} if it has neither."""
    shape = next((array.shape for array in contents.arrays.values()), ())
    size = {"rows": shape[0]} if shape else {}
    pictures = [name for name, array in contents.arrays.items() if isinstance(array, EncodedPictures)]
    if pictures:
        return {**size, "pictures": ", ".join(pictures)}
    labels = [name for name in contents.arrays if normal(name) in TABLE_LABELS]
    text_names = {*TEXTS.names, *(name for pair in PAIRS for name in pair)}
    texts = [name for name, array in contents.arrays.items() if normal(name) in text_names and array.dtype.kind == "O"]
    return {**size, "texts": ", ".join(texts), "labels": ", ".join(labels)} if labels and texts else {}


def _result(text: bytes) -> Foreign | None:
    members = _object(text)
    if "command" not in members or "schema" not in members:
        return None
    command = str(members["command"])
    facts = {"command": command, "schema": members["schema"]}
    if isinstance(members.get("estimates"), list):
        facts["estimates"] = len(members["estimates"])
    return Foreign(f"a result of calib {command}", "check, compare", facts)


def _object(text: str | bytes) -> dict[str, Any]:
    value = parsed(text)
    return value if isinstance(value, dict) else {}
