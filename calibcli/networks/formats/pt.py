"""PyTorch files with tensors: loaded with `weights_only=True` unless trusted, so that nothing in them can run.

What `torch.save` writes (Paszke et al. 2019): a zip archive of tensors' bytes and a pickle that names them.

>>> import torch
>>> torch.save({"logits": torch.tensor([[2.0, 0.0], [0.0, 1.0]]), "labels": torch.tensor([0, 1])}, folder / "scores.pt")
>>> calibcli.read(folder / "scores.pt").labels.tolist()
[0, 1]
"""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from calibcli.core.errors import InputError, refusing
from calibcli.scores.files import pickles
from calibcli.scores.files.arrays import FileContents, Memory, known_shape
from calibcli.scores.files.formats.numpy import MEMBERS
from calibcli.scores.files.source import Source, refuse_large
from calibcli.scores.other_files import SUFFIXES, UNREADABLE, note_checksums, pickled_globals
from calibcli.scores.predictions import Named

if TYPE_CHECKING:
    import torch

__all__ = ["SUFFIXES", "read", "signature"]

BY_SUFFIX = True  # the content does not identify it: any zip archive or pickle, and old tar files
PIECEWISE = "save it as .safetensors or .npy: these are read piece by piece"


def signature(head: bytes, size: int) -> bool:
    """Whether the file is a zip archive."""
    return head.startswith(b"PK")


def read(source: Source) -> FileContents:
    """Read tensors: of a dictionary by name, a single one under the name of the file, of a list as item0, item1, ...

    Raises:
        InputError: it is damaged, larger than memory, or holds anything but tensors and plain values.
    """
    import torch

    fix = "save tensors alone: torch.save({'logits': logits, 'labels': labels}, path)"
    fix += "" if source.trust is None else ", or pass --trust if you trust the file"
    code = InputError(f"{source.name} holds pickled Python objects, which are code; it was not loaded", fix)
    size = note_checksums(source)
    refuse_large(size, f"{source.name} takes {size / 1e9:.3g} GB when loaded", PIECEWISE)  # torch decompresses it
    if not source.trust and not pickles.only_tensors(pickled_globals(source)):
        raise code
    try:
        with source.reader() as file, warnings.catch_warnings(action="ignore"):
            tree = torch.load(file, map_location="cpu", weights_only=not source.trust)
    except UNREADABLE as error:
        if isinstance(error, pickle.UnpicklingError):
            raise code from None
        problem = f"{source.name} is damaged ({str(error).partition(chr(10))[0][:100]})"
        raise InputError(problem, "save it again") from None
    tree = getattr(tree, "tensors", tree)  # a TensorDataset, when trusted
    if isinstance(tree, torch.Tensor):
        return FileContents("pt", {source.stem: _array(tree, source.stem, source)}, scores=source.stem)
    if isinstance(tree, list | tuple):
        tree = {f"item{i}": value for i, value in enumerate(tree)}
    if not isinstance(tree, Mapping):
        raise InputError(f"{source.name} holds a {type(tree).__name__}", "save a dictionary of tensors")
    arrays: dict[str, Named] = {}
    for name, value in _flat(tree, source):
        if isinstance(value, torch.Tensor):
            arrays[name] = _array(value, name, source)
        elif isinstance(value, list) and value and all(isinstance(v, str) for v in value):
            arrays[name] = Memory(np.array(value, dtype=object))
    metadata = {str(k): v for k, v in tree.items() if isinstance(v, str)}
    return FileContents("pt", arrays, metadata=metadata)


def _flat(tree: Mapping[Any, Any], source: Source) -> list[tuple[str, Any]]:
    """List the entries by name; tensors of nested dictionaries, as in a checkpoint, are named OUTER.INNER."""
    import torch

    entries: list[tuple[str, Any]] = []
    for name, value in tree.items():
        inner = value.items() if isinstance(value, Mapping) else ()
        entries += [(f"{name}.{k}", v) for k, v in inner if isinstance(v, torch.Tensor)]
        if not isinstance(value, Mapping):
            entries.append((str(name), value))
        if len(entries) > MEMBERS:
            raise InputError(f"{source.name} holds over {MEMBERS:,} entries", "save the scores and labels alone")
    if len({name for name, _ in entries}) < len(entries):
        raise InputError(f"{source.name} holds two entries of one name", "name every tensor differently, as text")
    return entries


def _array(tensor: torch.Tensor, name: str, source: Source) -> Named:
    import torch

    if tensor.is_sparse or tensor.is_quantized or tensor.is_complex() or tensor.layout != torch.strided:
        raise InputError(f"tensor '{name}' in {source.name} is not a plain array", "save it dense, as float32")
    size = tensor.numel() * max(tensor.element_size(), 4)
    refuse_large(size, f"tensor '{name}' in {source.name} has shape {tuple(tensor.shape)}", PIECEWISE)
    if tensor.dtype in (torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2):
        tensor = tensor.float()
    known_shape(tensor.shape, name, source.name)
    errors = (RuntimeError, TypeError, ValueError)
    with refusing(errors, lambda e: f"tensor '{name}' in {source.name}: {str(e)[:80]}", "save it as float32"):
        return Memory(tensor.detach().contiguous().numpy())
