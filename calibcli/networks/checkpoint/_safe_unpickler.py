"""Read the tensors of a pickle without building its other objects; `containers` does so where PyTorch refuses a file.

Training scripts store their arguments, configurations and NumPy scalars beside the weights, and `weights_only=True`
refuses such files. Here every name that a pickle imports becomes an empty placeholder. Nothing is imported, and only
the functions that rebuild plain tensors are called. A file that names functions of the standard library, as attacks do,
is refused all the same.
"""

from __future__ import annotations

import pickle
import sys
import zipfile
from _compat_pickle import IMPORT_MAPPING, NAME_MAPPING
from collections import OrderedDict
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any, ClassVar

import torch
from torch import Tensor

MODULES = 100_000  # submodules of a network, at most
LEGACY_MAGIC = 0x1950A86A20F9469CFC6C
STORAGES = {
    "FloatStorage": torch.float32, "DoubleStorage": torch.float64, "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16, "LongStorage": torch.int64, "IntStorage": torch.int32,
    "ShortStorage": torch.int16, "CharStorage": torch.int8, "ByteStorage": torch.uint8, "BoolStorage": torch.bool,
    "UntypedStorage": torch.uint8,
}  # fmt: skip
BUILTINS = {"set", "frozenset", "dict", "list", "tuple", "bytearray", "slice", "complex", "range", "object", "int",
            "float", "str", "bool", "bytes"}  # fmt: skip
DATA_CLASSES = {
    "argparse.Namespace", "collections.defaultdict", "collections.deque", "collections.Counter", "_codecs.encode",
    "pathlib.PosixPath", "pathlib.WindowsPath", "pathlib.Path", "pathlib._local.PosixPath", "types.SimpleNamespace",
    "datetime.datetime", "datetime.date", "datetime.timedelta", "decimal.Decimal", "uuid.UUID", "enum.Enum",
    *(f"builtins.{name}" for name in BUILTINS),
}  # fmt: skip


class Hostile(Exception):
    """The pickle names something other than data."""


class Placeholder:
    """Stands for an object that is not built, and keeps its state."""

    state: Mapping[str, Any] = MappingProxyType({})

    def __init__(self, *args: Any) -> None:
        pass

    def take(self, *args: Any) -> None:
        """Drop the items that lists, sets and dicts are filled with."""

    append = extend = add = __setitem__ = take


def read(path: Path) -> tuple[Any, list[str]]:
    """Read the object tree of a .pt file in the old or the new format, and the names that were not built.

    Modules become their state dicts, other unknown objects become placeholders.

    Raises:
        Hostile: the pickle names something of the standard library that is not a data class.
        pickle.UnpicklingError, RuntimeError, ValueError, LookupError, TypeError, ...: damaged.
    """
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            name = next(name for name in archive.namelist() if name.endswith("data.pkl"))
            root = name.removesuffix("data.pkl")
            if f"{root}byteorder" in archive.namelist() and archive.read(f"{root}byteorder") != b"little":
                raise ValueError("big-endian file")
            with archive.open(name) as file:
                reader = Reader(file, partial(_member, archive, f"{root}data/"))
                tree = reader.load()
    else:
        with path.open("rb") as file:
            reader, tree = _legacy(file, path.stat().st_size)
    return _plain(tree), sorted(reader.unknown)


def _member(archive: zipfile.ZipFile, folder: str, key: str, length: int) -> bytearray:
    info = archive.getinfo(folder + key)
    if info.compress_type != zipfile.ZIP_STORED or info.file_size < length:  # torch never compresses
        raise ValueError("a storage is cut short")
    return bytearray(archive.read(info))


def _legacy(file: IO[bytes], size: int) -> tuple[Reader, Any]:
    """Read the format before torch 1.6: magic, version, system, the tree, the keys of storages, then their bytes."""
    storages: dict[str, bytearray] = {}

    def storage(key: str, length: int) -> bytearray:
        if length > size:
            raise ValueError("a storage is longer than the file")
        return storages.setdefault(key, bytearray(length))

    if Reader(file, storage).load() != LEGACY_MAGIC:
        raise pickle.UnpicklingError("not a torch file")
    for _ in range(2):
        Reader(file, storage).load()
    reader = Reader(file, storage)
    tree = reader.load()
    for key in Reader(file, storage).load():
        file.read(8)
        if file.readinto(storages[key]) != len(storages[key]):  # type: ignore[attr-defined]
            raise EOFError("cut short")
    return reader, tree


class Reader(pickle._Unpickler):  # the one written in Python, whose steps can be overridden
    """An unpickler that imports nothing and only calls placeholders and functions of this file."""

    dispatch: ClassVar[dict[int, Callable[[Any], None]]] = {**pickle._Unpickler.dispatch}

    def __init__(self, file: IO[bytes], storage: Callable[[str, int], bytearray]) -> None:
        super().__init__(file)
        self.storage = storage
        self.unknown: set[str] = set()
        self.held: dict[Any, bytearray] = {}

    def find_class(self, module: str, name: str) -> Any:
        module, name = NAME_MAPPING.get((module, name), (IMPORT_MAPPING.get(module, module), name))  # Python 2's names
        full = f"{module}.{name}"
        if full == "collections.OrderedDict":
            return OrderedDict
        if module in ("torch", "torch.storage") and name in STORAGES:
            return STORAGES[name]
        if module == "torch._utils" and name in REBUILD:
            return REBUILD[name]
        if module.partition(".")[0] in (*sys.stdlib_module_names, "nt") and full not in DATA_CLASSES:
            raise Hostile(full)
        if full not in DATA_CLASSES:
            self.unknown.add(full)
        return type("Placeholder", (Placeholder,), {})

    def persistent_load(self, pid: Any) -> Any:
        if pid[0] == "module":  # a class with its source code, in the old format
            return pid[1]
        kind, dtype, key, _, length, *view = pid
        if kind != "storage" or not isinstance(dtype, torch.dtype) or (view and view[0] is not None):
            raise pickle.UnpicklingError("an unknown kind of storage")
        if key not in self.held:
            self.held[key] = self.storage(str(key), int(length) * dtype.itemsize)
        return self.held[key], dtype

    def load_reduce(self) -> None:
        args = self.stack.pop()  # type: ignore[attr-defined]
        function = self.stack[-1]  # type: ignore[attr-defined]
        if not _ours(function):
            raise pickle.UnpicklingError("a call of something that is not ours")
        self.stack[-1] = function(*args)  # type: ignore[attr-defined]

    def load_build(self) -> None:
        state = self.stack.pop()  # type: ignore[attr-defined]
        target = self.stack[-1]  # type: ignore[attr-defined]
        if isinstance(target, Placeholder) and isinstance(state, Mapping):
            target.state = state

    dispatch[pickle.REDUCE[0]] = load_reduce
    dispatch[pickle.BUILD[0]] = load_build


def _ours(function: Any) -> bool:
    allowed = function is OrderedDict or (isinstance(function, type) and issubclass(function, Placeholder))
    return allowed or any(function is f for f in REBUILD.values())


def _tensor(storage: tuple[bytearray, torch.dtype], offset: int, size: Any, stride: Any, *unused: Any) -> Tensor:
    data, dtype = storage
    whole = torch.frombuffer(data, dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)
    return torch.empty(0, dtype=dtype).set_(whole.untyped_storage(), offset, tuple(size), tuple(stride))


def _parameter(data: Tensor, *unused: Any) -> Tensor:
    return data


REBUILD: dict[str, Callable[..., Tensor]] = {
    "_rebuild_tensor": _tensor,
    "_rebuild_tensor_v2": _tensor,
    "_rebuild_parameter": _parameter,
    "_rebuild_parameter_with_state": _parameter,
}


def _plain(tree: Any, depth: int = 0, done: dict[tuple[int, int], Any] | None = None) -> Any:
    """Replace modules by their state dicts, at the top and in dicts up to three levels deep. `done` avoids doing shared
    objects twice."""
    done = {} if done is None else done
    key = id(tree), depth
    if key in done:
        return done[key]
    if isinstance(tree, Placeholder) and "_modules" in tree.state:
        done[key] = dict(_module_state(tree, "", [MODULES]))
    elif isinstance(tree, Mapping) and depth < 3:
        done[key] = {name: _plain(value, depth + 1, done) for name, value in tree.items()}
    return done.get(key, tree)


def _module_state(module: Placeholder, prefix: str, left: list[int], depth: int = 0) -> list[tuple[str, Tensor]]:
    left[0] -= 1
    if depth > 100 or left[0] < 0:
        raise ValueError("modules nested too deeply")
    tensors = {**_mapping(module, "_parameters"), **_mapping(module, "_buffers")}
    state = [(f"{prefix}{name}", value) for name, value in tensors.items() if isinstance(value, Tensor)]
    for name, child in _mapping(module, "_modules").items():
        if isinstance(child, Placeholder):
            state += _module_state(child, f"{prefix}{name}.", left, depth + 1)
    return state


def _mapping(module: Placeholder, name: str) -> Mapping[Any, Any]:
    value = module.state.get(name)
    return value if isinstance(value, Mapping) else {}
