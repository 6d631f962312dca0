"""PyTorch files with tensors: loaded with `weights_only=True`, so that nothing in them can run. Imports torch."""

from __future__ import annotations

import pickle
import struct
import zipfile
from collections.abc import Mapping

import numpy as np
import torch

from calibcli.errors import InputError
from calibcli.inputs.arrays import Contents, Memory, Named
from calibcli.inputs.source import Source, memory_limit

UNREADABLE = (
    *(pickle.UnpicklingError, RuntimeError, EOFError, ValueError, LookupError, AttributeError, TypeError, OSError),
    *(AssertionError, NotImplementedError, RecursionError, ArithmeticError, MemoryError, struct.error),
)


def read_pt(source: Source) -> Contents:
    """Tensors of a dictionary by name, a single tensor by the name of the file, those of a list as item0, item1, ...

    Raises:
        InputError: damaged, larger than memory, or holding anything but tensors and plain values.
    """
    _bounded(source)
    try:
        with source.reader() as file:
            tree = torch.load(file, map_location="cpu", weights_only=True)
    except UNREADABLE as error:
        if isinstance(error, pickle.UnpicklingError):
            raise InputError(
                f"{source.name} holds pickled Python objects, which are code; it was not loaded",
                "save tensors alone: torch.save({'logits': logits, 'labels': labels}, path)",
            ) from None
        raise InputError(
            f"{source.name} is damaged ({str(error).partition(chr(10))[0][:100]})", "save it again"
        ) from None
    if isinstance(tree, torch.Tensor):
        return Contents("pt", {source.stem: _array(tree, source.stem, source)}, scores=source.stem)
    if isinstance(tree, list | tuple):
        tree = {f"item{i}": value for i, value in enumerate(tree)}
    if not isinstance(tree, Mapping):
        raise InputError(f"{source.name} holds a {type(tree).__name__}", "save a dictionary of tensors")
    arrays: dict[str, Named] = {}
    for name, value in tree.items():
        if isinstance(value, Mapping):  # a checkpoint: named for what it is by whoever asks
            inner = {f"{name}.{k}": v for k, v in value.items() if isinstance(v, torch.Tensor)}
            arrays.update({k: _array(v, k, source) for k, v in inner.items()})
        elif isinstance(value, torch.Tensor):
            arrays[str(name)] = _array(value, str(name), source)
        elif isinstance(value, list) and value and all(isinstance(v, str) for v in value):
            arrays[str(name)] = Memory(np.array(value, dtype=object))
    metadata = {str(k): v for k, v in tree.items() if isinstance(v, str)}
    return Contents("pt", arrays, metadata=metadata)


def _array(tensor: torch.Tensor, name: str, source: Source) -> Named:
    limit = memory_limit()
    if tensor.is_sparse or tensor.is_quantized or tensor.is_complex() or tensor.layout != torch.strided:
        raise InputError(f"tensor '{name}' in {source.name} is not a plain array", "save it dense, as float32")
    if tensor.numel() * max(tensor.element_size(), 4) > limit:
        raise InputError(
            f"tensor '{name}' in {source.name} has shape {tuple(tensor.shape)}, more than the {limit / 1e9:.3g} GB "
            f"allowed here",
            "save it as .safetensors or .npy: these are read piece by piece",
        )
    if tensor.dtype in (torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2):
        tensor = tensor.float()
    try:
        return Memory(tensor.detach().contiguous().numpy())
    except (RuntimeError, TypeError) as error:
        raise InputError(f"tensor '{name}' in {source.name}: {str(error)[:80]}", "save it as float32") from None


def _bounded(source: Source) -> None:
    """Refuse what would take more memory than there is, before torch decompresses it."""
    limit = memory_limit()
    size = source.size
    if source.pread(2, 0) == b"PK":
        try:
            with zipfile.ZipFile(source.reader()) as archive:
                size = sum(member.file_size for member in archive.infolist())
        except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as error:
            raise InputError(f"{source.name} is damaged ({str(error)[:80]})", "save it again") from None
    if size > limit:
        raise InputError(
            f"{source.name} takes {size / 1e9:.3g} GB when loaded, more than the {limit / 1e9:.3g} GB allowed here",
            "save it as .safetensors or .npy: these are read piece by piece",
        )
