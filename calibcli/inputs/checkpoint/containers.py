"""Containers: from a path to tensors (or, when trusted, to a whole network), recognised by content, not by suffix."""

from __future__ import annotations

import contextlib
import json
import pickle
import warnings
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from calibcli.errors import InputError, check_path, refusing
from calibcli.files import reading
from calibcli.inputs.checkpoint import metadata as meta
from calibcli.inputs.checkpoint import prefixes, safe_unpickler, trusted
from calibcli.inputs.checkpoint.onnx_session import Graph
from calibcli.inputs.files import pickles
from calibcli.inputs.files.formats import safetensors
from calibcli.inputs.files.pickles import is_pickle
from calibcli.inputs.files.pytorch_archive import UNREADABLE, named, note_checksums, program
from calibcli.inputs.files.source import Source


@dataclass
class Contents:
    """What a container held.

    Attributes:
        container: its kind, in words.  tensors: an object tree with the weights.
        modules: networks that the container holds, by their entries.  metadata: our metadata, checked.
        refusal: why the network itself is not taken, where a file holds one and is not trusted.
    """

    container: str
    tensors: Any = None
    metadata: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    modules: dict[str, nn.Module] = field(default_factory=dict)
    refusal: InputError | None = None


def read(path: Path, *, trust: bool) -> Contents:
    """The contents of a checkpoint file or folder.

    Raises:
        InputError: not there, not a checkpoint, damaged, or holding code while `trust` is false (nothing is executed).
    """
    reading(path)
    if path.is_dir():
        return _folder(path)
    with refusing(OSError, lambda e: f"cannot read {path} ({e.strerror})", check_path(path)), path.open("rb") as file:
        head = file.read(16)
    if path.name.endswith(".index.json"):
        return _shards(path)
    if path.suffix == ".safetensors" or safetensors.signature(head, path.stat().st_size):
        return _safetensors([path], "safetensors")
    if head[:2] == b"PK":
        return _zip(path, trust)
    if is_pickle(head):
        return _pickle(path, "legacy pt", trust)
    if path.suffix == ".onnx":
        return _whole("ONNX graph", Graph(path))
    if head[:4] == b"\x89HDF" or head[:4] == b"GGUF" or path.suffix in (".h5", ".keras", ".tflite"):
        raise InputError(f"{path} is not a PyTorch checkpoint", "export its state dict to .safetensors")
    raise InputError(f"{path} is not a checkpoint in a known format", "pass .safetensors, .pt, .pth or .ckpt")


def damaged(path: Path, what: str) -> contextlib.AbstractContextManager[None]:
    """Refuse a file that cannot be read inside the block as `what`."""
    errors = (SafetensorError, zipfile.BadZipFile, *UNREADABLE)
    return refusing(errors, lambda error: f"{path} is {what} ({error})", "save or fetch it again")


def _folder(path: Path) -> Contents:
    for name in ("model.safetensors.index.json", "pytorch_model.bin.index.json"):
        if (path / name).is_file():
            return _shards(path / name)
    files = sorted(path.glob("*.safetensors")) or sorted(path.glob("pytorch_model.bin"))
    files = [file for file in files if file.name == "model.safetensors"] or files
    if len(files) == 1:
        return read(files[0], trust=False)
    if len(files) > 1:
        raise InputError(f"folder {path} holds {len(files)} checkpoints", f"pass one of them, such as {files[0]}")
    raise InputError(f"folder {path} holds no checkpoint", "pass the checkpoint file itself")


def _shards(index: Path) -> Contents:
    fix = "pass the .index.json that names the shards"
    with refusing(UNREADABLE, f"{index} is not an index of shards", fix):
        names = sorted(set(json.loads(index.read_text())["weight_map"].values()))
    for name in names:
        if not isinstance(name, str) or Path(name).name != name:
            raise InputError(f"{index} names the shard '{name}' outside its folder", "keep the shards beside the index")
        if not (index.parent / name).is_file():
            raise InputError(f"shard {name} of {index} is missing", "put all shards beside the index")
    paths = [index.parent / name for name in names]
    reading(*paths)
    if all(path.suffix == ".safetensors" for path in paths):
        return _safetensors(paths, f"sharded safetensors ({len(paths)} files)")
    tensors: dict[str, Any] = {}
    for path in paths:
        tensors.update(_pickle(path, "pt", trust=False).tensors)
    return Contents(f"sharded pt ({len(paths)} files)", tensors)


def _safetensors(paths: list[Path], container: str) -> Contents:
    tensors: dict[str, Tensor] = {}
    info: dict[str, str] = {}
    for path in paths:
        with damaged(path, "not a readable safetensors file"), safe_open(path, framework="pt") as file:
            info.update(file.metadata() or {})
            tensors.update({key: file.get_tensor(key) for key in file.keys()})  # noqa: SIM118 (not a mapping)
    found = meta.parse(info[meta.KEY], str(paths[0])) if meta.KEY in info else {}
    return Contents(container, tensors, metadata=found)


def _zip(path: Path, trust: bool) -> Contents:
    with damaged(path, "a damaged zip file"), zipfile.ZipFile(path) as file:
        names = file.namelist()
    if kind := program(names):
        load = trusted.torchscript if kind == "TorchScript" else trusted.exported
        return _whole(kind, load(path, trust))
    if any(name.partition("/")[2] == "data.pkl" or name == "data.pkl" for name in names):
        return _pickle(path, "pt", trust)
    if any(name.endswith(".npy") for name in names):
        raise InputError(f"{path} holds arrays, not a checkpoint", "pass it with --data, and the model first")
    raise InputError(f"{path} is a zip file but not a PyTorch checkpoint", "pass .safetensors, .pt, .pth or .ckpt")


def _pickle(path: Path, container: str, trust: bool) -> Contents:
    source = Source(path)
    note_checksums(source)
    source.sha256()
    names = set() if trust else named(source)
    if not pickles.plain(names):
        return _inert(path, container, names)
    try:
        with warnings.catch_warnings(action="ignore"):  # about the pickle protocols of damaged files
            tree = torch.load(path, map_location="cpu", weights_only=True)
    except UNREADABLE as error:
        if trust:
            tree = trusted.unpickle(path)
        elif isinstance(error, pickle.UnpicklingError):
            return _inert(path, container, names)
        else:
            said = str(error).partition("\n")[0][:200]
            problem = f"{path} is damaged ({type(error).__name__}: {said})"
            raise InputError(problem, "save or fetch it again") from None
    kind = "pickled module" if (modules := prefixes.modules(tree)) else "state dict"
    return Contents(f"{container} {kind}", tree, _own(tree, path), modules=modules)


def _whole(kind: str, module: nn.Module) -> Contents:
    """A container of one network."""
    return Contents(kind, module, modules={"": module})


def _inert(path: Path, container: str, names: set[str]) -> Contents:
    """The tensors of a pickle that holds other objects too; those are not built."""
    strange = sorted(name.removeprefix(pickles.STACKED) for name in names if not pickles.plain({name}))
    listed = f" ({', '.join(strange[:3])}{', ...' if len(strange) > 3 else ''})" if strange else ""
    refusal = trusted.refusal(path, f"pickled Python objects{listed}")
    try:
        tree, unknown = safe_unpickler.read(path)
        prefixes.tables(tree, str(path))
    except (safe_unpickler.Hostile, InputError, StopIteration, MemoryError, *UNREADABLE):
        raise refusal from None
    shown = ": " * bool(unknown) + ", ".join(unknown[:3]) + (", ..." if len(unknown) > 3 else "")
    note = f"only tensors were read; other objects in the file were left out, not executed{shown}"
    return Contents(f"{container} state dict", tree, _own(tree, path), [note], refusal=refusal)


def _own(tree: Any, path: Path) -> dict[str, Any]:
    return meta.parse(tree[meta.KEY], str(path)) if isinstance(tree, Mapping) and meta.KEY in tree else {}
