"""Containers of weights: from a path to tensors, an ONNX graph or, when trusted, a network; recognised by content."""

from __future__ import annotations

import contextlib
import copy
import json
import logging
import pickle
import sys
import warnings
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from torch.fx import GraphModule
from torch.utils._pytree import tree_map

from calibcli.core.errors import InputError, check_path, refusing
from calibcli.core.files import reading, refuse_pointer
from calibcli.core.number_format import first_few
from calibcli.networks.checkpoint import _safe_unpickler as safe_unpickler
from calibcli.networks.checkpoint import factory, weights
from calibcli.scores.files import pickles
from calibcli.scores.files.formats import safetensors
from calibcli.scores.files.pickles import is_pickle
from calibcli.scores.files.source import Source
from calibcli.scores.other_files import UNREADABLE, note_checksums, pickled_globals, torch_program

# ONNX graphs, run by onnxruntime. They are safe to load: their operators can only compute.

KINDS = {"float": np.float32, "float16": np.float16, "double": np.float64, "uint8": np.uint8, "int8": np.int8,
         "int32": np.int32, "int64": np.int64, "bool": np.bool_}  # fmt: skip


class Graph(nn.Module):
    """An ONNX graph as a module without parameters: takes one input by position or several by name, returns logits.

    Attributes:
        taken: types and shapes of its inputs by name; a length that varies is a name or None.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        fix = "pip install onnx onnxruntime"
        with refusing(ImportError, f"{path} is an ONNX graph, and onnxruntime is not installed", fix):
            import onnxruntime  # noqa: F401

            from calibcli.networks import _onnx_runtime as onnx_runtime
        self.path = path
        self.errors, self.run = (*onnx_runtime.FAILURES, RuntimeError, ValueError), onnx_runtime.run
        with refusing(self.errors, lambda e: f"{path} is not a readable ONNX graph ({_said(e)})", "export it again"):
            self.session = onnx_runtime.session(path, torch.get_num_threads())
        self.taken = {one.name: (_kind(one.type), tuple(one.shape)) for one in self.session.get_inputs()}
        self.output = self._logits()
        integers = [o.name for o in self.session.get_outputs() if _kind(o.type) in ("int64", "int32") and o.shape]
        self.predicted = integers[0] if len(integers) == 1 else ""
        """The output that may be the class which the graph itself predicts; "" if no single one can be."""
        self.looked = np.zeros(2, int)  # rows where that class is one of the scores, and where it is the largest score

    def _logits(self) -> str:
        """Return the name of the output with the logits: `logits`, else the only table of real numbers.

        Raises:
            InputError: there is none, or there are several.
        """
        floats = [o for o in self.session.get_outputs() if _kind(o.type) in ("float", "float16", "double")]
        named = [one.name for one in floats if one.name.lower() == "logits"]
        tables = named or [one.name for one in floats if len(one.shape) in (0, 2)]
        if len(tables) == 1:
            return str(tables[0])
        listed = ", ".join(f"{o.name} {o.type}" for o in self.session.get_outputs())[:200]
        problem = f"{self.path} has {'no output' if not tables else 'several outputs'} of numbers (rows, classes)"
        fix = "export it with one output named logits"
        if "seq(map" in listed:
            fix = "export it with skl2onnx's options={'zipmap': False, 'raw_scores': True}, for logits in a table"
        raise InputError(f"{problem}: {listed}", fix)

    def __deepcopy__(self, memo: dict[int, Any]) -> Graph:
        return self  # it has no state that changes

    def forward(self, *args: Tensor, **named: Tensor) -> Tensor:
        if args and len(self.taken) > 1:
            problem = f"{self.path} takes {', '.join(self.taken)}, and the rows have one input without a name"
            raise InputError(problem, f"name them: --inputs {','.join(self.taken)}")
        given = dict(zip(self.taken, args)) if args else {k: t for k, t in named.items() if k in self.taken}
        missing = [name for name in self.taken if name not in given]
        if missing:
            problem = f"{self.path} takes '{missing[0]}', which the rows do not have"
            raise InputError(problem, "pass a data set with arrays of the names " + ", ".join(self.taken))
        rows = {shape[0] for _, shape in self.taken.values() if shape and isinstance(shape[0], int)}
        most = min(rows) if rows else None
        logits = in_pieces(self._run, [], given, most or 1, most)
        return logits if isinstance(logits, Tensor) else torch.as_tensor(logits)

    def _run(self, **given: Tensor) -> Tensor:
        feed: dict[str, Any] = {
            name: t.detach().cpu().numpy().astype(KINDS[self.taken[name][0]]) for name, t in given.items()
        }
        wanted = "; ".join(f"{name} {_shape(shape)}" for name, (_, shape) in self.taken.items())
        fix = f"it takes {wanted}: pass such rows, of pictures with --resize and --crop"
        with refusing(self.errors, lambda e: f"{self.path} does not take these rows ({_said(e)})", fix):
            logits, *predicted = self.run(self.session, [self.output, *filter(None, [self.predicted])], feed)
        if predicted:
            self._look(logits, predicted[0])
        return torch.from_numpy(logits if logits.dtype != np.float16 else logits.astype(np.float32))

    def _look(self, scores: NDArray[Any], predicted: NDArray[Any]) -> None:
        """Compare the class that the graph predicts with the largest of its scores, in the first rows that it sees.

        Args:
            scores: (n,) or (n, K).  predicted: (n,) or (n, 1), the class, counted from 0, if it is one at all.

        Raises:
            InputError: it is mostly another one: the scores may have the opposite sign, or stand in another order.
        """
        predicted = predicted.reshape(-1)
        columns = scores.reshape(len(scores), -1)
        k = max(2, columns.shape[1])
        if self.looked[0] >= LOOKED or len(predicted) != len(columns):
            return
        top = columns.argmax(1) if columns.shape[1] > 1 else (columns[:, 0] > 0).astype(int)
        if predicted.min(initial=0) < 0 or predicted.max(initial=0) >= k:  # no class of these scores, such as a cluster
            self.predicted = ""
            return
        self.looked += len(top), (top == predicted).sum()
        seen, agreed = self.looked.tolist()
        if seen >= FEWEST and agreed < seen / 2:
            problem = f"{self.path} contradicts itself: its output '{self.predicted}' is the class of its largest score"
            fix = (
                "convert the model again so that larger scores mean its class, such as with the probabilities as output"
            )
            raise InputError(f"{problem} in {agreed} of {seen} rows", fix)


LOOKED, FEWEST = 1000, 16  # rows in which the predicted class is compared with the scores, and before it says something


def _kind(text: str) -> str:
    """Return `float` for `tensor(float)`; "" for anything but a tensor of numbers."""
    kind = text.removeprefix("tensor(").removesuffix(")")
    return kind if kind in KINDS else ""


def _shape(shape: Sequence[Any]) -> str:
    sizes = ("N" if i == 0 and not isinstance(n, int) else str(n or "?") for i, n in enumerate(shape))
    return f"({', '.join(sizes)})"


def _said(error: BaseException) -> str:
    """Return the first line of an error of onnxruntime, without its number and source location."""
    text = str(error).strip().partition("\n")[0]
    return text.rpartition("] : ")[2][:200].rpartition(" : ")[2] or text[:200]


def description(path: Path) -> dict[str, Any]:
    """Describe the inputs and outputs of a graph, for `inspect`."""
    graph = Graph(path)
    inputs = [f"{name} {kind} {_shape(shape)}" for name, (kind, shape) in graph.taken.items()]
    outputs = [f"{o.name} {_kind(o.type) or o.type} {_shape(o.shape)}" for o in graph.session.get_outputs()]
    return {"inputs": ", ".join(inputs), "outputs": ", ".join(outputs), "logits": graph.output}


# Containers that hold code. They are refused, and nothing of them is run, unless the user trusts the file.

FAILURES = (*UNREADABLE, ImportError, zipfile.BadZipFile)


def untrusted(path: Path, content: str) -> InputError:
    """Return the error for a file that holds code."""
    fix = "save its state dict (torch.save(model.state_dict(), ...)) and pass --arch, or pass --trust if you trust it"
    return InputError(f"{path} holds {content}; nothing was executed", fix)


def unpickle(path: Path) -> Any:
    """Load a trusted pickle.

    Raises:
        InputError: it cannot be loaded.
    """
    fix = "run with PYTHONPATH=FOLDER of the module that it names, or read its weights alone: --arch without --trust"
    with refusing(FAILURES, lambda e: f"{path} cannot be unpickled ({e})", fix):
        return torch.load(path, map_location="cpu", weights_only=False)


@contextlib.contextmanager
def _readable(path: Path, kind: str, trust: bool, code: str) -> Iterator[None]:
    """Refuse a file that is damaged or not trusted; hide warnings, such as that TorchScript is deprecated."""
    if not trust:
        raise untrusted(path, code)
    failing = refusing(FAILURES, lambda error: f"{path} is not a readable {kind} file ({error})", "save it again")
    logger = logging.getLogger("torch.export")  # which prints the traceback of an error that is also raised
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        with failing, warnings.catch_warnings(action="ignore"):
            yield
    finally:
        logger.setLevel(level)


def torchscript(path: Path, trust: bool) -> nn.Module:
    """Load a TorchScript module.

    Raises:
        InputError: not trusted, or damaged.
    """
    with _readable(path, "TorchScript", trust, "a TorchScript program, which is code"):
        module = torch.jit.load(str(path), map_location="cpu")  # type: ignore[no-untyped-call]
    object.__setattr__(module, "__class__", Scripted)
    return cast(nn.Module, module)


class Scripted(torch.jit.RecursiveScriptModule):  # type: ignore[name-defined,misc]
    """A TorchScript module whose deep copies have leaf parameters; torch's own have an autograd history."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Scripted:
        with torch.no_grad():
            duplicate = super().__deepcopy__(memo)
        for mine, copied in zip(self.parameters(), duplicate.parameters()):
            copied.requires_grad_(mine.requires_grad)
        object.__setattr__(duplicate, "__class__", Scripted)
        return cast(Scripted, duplicate)


def exported(path: Path, trust: bool) -> nn.Module:
    """Load a `torch.export` program as a module that takes any number of rows.

    Raises:
        InputError: not trusted, or damaged.
    """
    with _readable(path, "torch.export", trust, "a torch.export program, inside which torch unpickles"):
        return Exported(*_plain(torch.export.load(str(path))))


def _plain(program: torch.export.ExportedProgram) -> tuple[GraphModule, int, int]:
    """Return the program's graph, and the fewest and most rows that it takes.

    Assertions about dtypes, which `Module.to` leaves in the exported code, are removed: they would refuse another
    precision.
    """
    module = program.module()
    for node in list(module.graph.nodes):
        if node.target is torch.ops.aten._assert_tensor_metadata.default:
            module.graph.erase_node(node)
    module.recompile()
    fewest, most = 1, sys.maxsize
    users = set(program.graph_signature.user_inputs)
    for node in program.graph.nodes:
        value = node.meta.get("val")
        if node.op == "placeholder" and node.name in users and isinstance(value, Tensor) and value.ndim:
            rows = value.shape[0]
            if isinstance(rows, int):
                return module, rows, rows
            limits = program.range_constraints.get(rows.node.expr)
            if limits is not None:
                fewest = max(fewest, int(limits.lower))
                most = min(most, int(limits.upper)) if limits.upper < sys.maxsize else most
    return module, fewest, most


class Exported(nn.Module):
    """A `torch.export` graph as an ordinary module that takes any number of rows; `train` and `eval` have no effect.

    A graph with a fixed or bounded batch size gets the rows in pieces. The last piece is padded with copies of its last
    row, whose outputs are dropped.
    """

    def __init__(self, graph: GraphModule, fewest: int, most: int) -> None:
        super().__init__()
        self.__dict__["graph"] = graph  # not a child: the names of its layers stay as they were
        self._modules, self._parameters, self._buffers = graph._modules, graph._parameters, graph._buffers
        self.fewest, self.most = fewest, most
        for module in self.modules():
            module.training = False

    def __deepcopy__(self, memo: dict[int, Any]) -> Exported:
        return Exported(copy.deepcopy(self.__dict__["graph"], memo), self.fewest, self.most)

    def train(self, mode: bool = True) -> Exported:
        return self

    def forward(self, *args: Tensor, **named: Tensor) -> Any:
        most = None if self.most == sys.maxsize else self.most
        return in_pieces(self.__dict__["graph"], args, named, self.fewest, most)


def in_pieces(
    call: Callable[..., Any], args: Sequence[Tensor], named: Mapping[str, Tensor], fewest: int, most: int | None
) -> Any:
    """Run `call` on at most `most` rows at a time; pad the last piece to `fewest` rows and drop the padded outputs."""
    tensors = [*args, *named.values()]
    rows = len(tensors[0])
    pieces = []
    for start in range(0, rows, most or rows):
        piece = [t[start : start + (most or rows)] for t in tensors]
        real = len(piece[0])
        if real < fewest:
            piece = [torch.cat([t, t[-1:].expand(fewest - real, *t.shape[1:])]) for t in piece]
        out = call(*piece[: len(args)], **dict(zip(named, piece[len(args) :])))
        pieces.append(tree_map(lambda t, real=real: t[:real], out))
    return pieces[0] if len(pieces) == 1 else tree_map(lambda *parts: torch.cat(parts), *pieces)


# Read any container: its content decides what it is, not its suffix.


@dataclass
class CheckpointContents:
    """The contents of a container.

    Attributes:
        container: its kind, in words.  tensors: an object tree with the weights.
        modules: the networks in the container, by their entries.  metadata: our metadata, checked.
        refusal: the error to raise if the weights alone do not suffice, because an untrusted file holds objects.
    """

    container: str
    tensors: Any = None
    metadata: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    modules: dict[str, nn.Module] = field(default_factory=dict)
    refusal: InputError | None = None


DATA = {".npz", ".npy", ".csv", ".tsv", ".parquet", ".arrow", ".json", ".jsonl", ".zip", ".gz", ".tgz", ".tar", ".mat"}
"""Suffixes of what is a data set rather than a checkpoint."""


def read(path: Path, *, trust: bool) -> CheckpointContents:
    """Read a checkpoint file or folder.

    Raises:
        InputError: not there, not a checkpoint, damaged, or holding code while `trust` is false (nothing is executed).
    """
    reading(path)
    folder = path if path.is_dir() else path.parent
    if path.suffix == ".distcp" or (path == folder and (path / ".metadata").exists() and [*path.glob("*.distcp")]):
        fix = (
            f"write one file of it: python -m torch.distributed.checkpoint.format_utils dcp_to_torch {folder} model.pt"
        )
        raise InputError(f"{path} is a distributed checkpoint, or part of one (DCP), of several files", fix)
    if path.is_dir():
        return _folder(path)
    if path.exists() and not path.is_file():
        problem = f"{path} is a pipe or a device, and a checkpoint is read in more than one pass"
        raise InputError(problem, "write it to a file first")
    with refusing(OSError, lambda e: f"cannot read {path} ({e.strerror})", check_path(path)), path.open("rb") as file:
        start = file.read(64)
    refuse_pointer(start, path)
    head = start[:16]
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
    raise _not_one(path, "is not a checkpoint in a known format")


def damaged(path: Path, state: str) -> contextlib.AbstractContextManager[None]:
    """Turn the errors of reading a file, inside the block, into one that says it is `what`."""
    errors = (SafetensorError, zipfile.BadZipFile, *UNREADABLE)
    return refusing(errors, lambda error: f"{path} is {state} ({error})", "save or fetch it again")


def _folder(path: Path) -> CheckpointContents:
    for name in ("model.safetensors.index.json", "pytorch_model.bin.index.json"):
        if (path / name).is_file():
            return _shards(path / name)
    files = sorted(path.glob("*.safetensors")) or sorted(path.glob("pytorch_model.bin"))
    files = [file for file in files if file.name == "model.safetensors"] or files
    if len(files) == 1:
        return read(files[0], trust=False)
    if len(files) > 1:
        raise InputError(f"folder {path} holds {len(files)} checkpoints", f"pass one of them, such as {files[0]}")
    raise _not_one(path, "holds no checkpoint")


def _shards(index: Path) -> CheckpointContents:
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
    return CheckpointContents(f"sharded pt ({len(paths)} files)", tensors)


def _safetensors(paths: list[Path], container: str) -> CheckpointContents:
    tensors: dict[str, Tensor] = {}
    info: dict[str, str] = {}
    for path in paths:
        with damaged(path, "not a readable safetensors file"), safe_open(path, framework="pt") as file:
            info.update(file.metadata() or {})
            tensors.update({key: file.get_tensor(key) for key in file.keys()})  # noqa: SIM118 (not a mapping)
    metadata = factory.parse(info[factory.KEY], str(paths[0])) if factory.KEY in info else {}
    return CheckpointContents(container, tensors, metadata=metadata)


def _not_one(path: Path, problem: str) -> InputError:
    """Refuse what is no checkpoint; what may be a data set with the line that passes it as one."""
    fix = "pass .safetensors, .pt, .pth or .ckpt"
    if (path / "config.json").is_file():  # of a model whose weights are not there
        fix = "pass the checkpoint file itself"
    elif path.is_dir() or path.suffix.lower() in DATA:
        fix = f"pass the model first, a checkpoint (calib fit also takes mlp:hidden=64), and data as --data {path}"
    return InputError(f"{path} {problem}", fix)


def _zip(path: Path, trust: bool) -> CheckpointContents:
    with damaged(path, "a damaged zip file"), zipfile.ZipFile(path) as file:
        names = file.namelist()
    if kind := torch_program(names):
        load = torchscript if kind == "TorchScript" else exported
        return _whole(kind, load(path, trust))
    if any(name.partition("/")[2] == "data.pkl" or name == "data.pkl" for name in names):
        return _pickle(path, "pt", trust)
    if any(name.endswith(".npy") for name in names):
        raise _not_one(path, "holds arrays, not a checkpoint")
    raise _not_one(path, "is a zip file but not a PyTorch checkpoint")


def _pickle(path: Path, container: str, trust: bool) -> CheckpointContents:
    source = Source(path)
    note_checksums(source)
    source.sha256()
    names = set() if trust else pickled_globals(source)
    if not pickles.only_tensors(names):
        return _inert(path, container, names)
    try:
        with warnings.catch_warnings(action="ignore"):  # about the pickle protocols of damaged files
            tree = torch.load(path, map_location="cpu", weights_only=True)
    except UNREADABLE as error:
        if trust:
            tree = unpickle(path)
        elif isinstance(error, pickle.UnpicklingError):
            return _inert(path, container, names)
        else:
            message = str(error).partition("\n")[0][:200]
            problem = f"{path} is damaged ({type(error).__name__}: {message})"
            raise InputError(problem, "save or fetch it again") from None
    kind = "pickled module" if (modules := weights.modules(tree)) else "state dict"
    return CheckpointContents(f"{container} {kind}", tree, _own(tree, path), modules=modules)


def _whole(kind: str, module: nn.Module) -> CheckpointContents:
    """Return the contents of a container that is one network."""
    return CheckpointContents(kind, module, modules={"": module})


def _inert(path: Path, container: str, names: set[str]) -> CheckpointContents:
    """Read only the tensors of a pickle that also holds other objects."""
    strange = sorted(name.removeprefix(pickles.STACKED) for name in names if not pickles.only_tensors({name}))
    listed = f" ({first_few(strange, 3)})" if strange else ""
    refusal = untrusted(path, f"pickled Python objects{listed}")
    try:
        tree, unknown = safe_unpickler.read(path)
        weights.tables(tree, str(path))
    except (safe_unpickler.Hostile, InputError, StopIteration, MemoryError, *UNREADABLE):
        raise refusal from None
    shown = ": " * bool(unknown) + first_few(unknown, 3)
    note = f"only tensors were read; other objects in the file were left out, not executed{shown}"
    return CheckpointContents(f"{container} state dict", tree, _own(tree, path), [note], refusal=refusal)


def _own(tree: Any, path: Path) -> dict[str, Any]:
    return factory.parse(tree[factory.KEY], str(path)) if isinstance(tree, Mapping) and factory.KEY in tree else {}
