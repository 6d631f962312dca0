"""Read, run and describe ONNX files, and copy the weights that are stored beside a graph."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import AttributeProto

from calibcli.core.errors import InputError, UsageError, WriteError, check_path, refusing
from calibcli.core.files import claim, no_room, reading, written
from calibcli.networks import _onnx_runtime as onnx_runtime
from calibcli.networks._onnx_runtime import FAILURES

Array = NDArray[Any]
TAKES, OUTPUT, GIVES = "calib.takes", "calib.output", "calib.gives"  # keys of the metadata of an exported file


def read(path: Path) -> Any:
    """Read the graph of a file, without the weights that are stored beside it.

    Raises:
        InputError: the file does not exist, or is damaged.
    """
    from google.protobuf.message import DecodeError

    fix = "export or fetch it again"
    reading(path)
    if not path.is_file():
        raise InputError(f"cannot read {path} (no such file)", check_path(path))
    with (
        refusing(OSError, lambda e: f"cannot read {path} ({e.strerror or e})", check_path(path)),
        refusing((DecodeError, ValueError), lambda e: f"{path} is not a whole ONNX file ({str(e)[:100]})", fix),
    ):
        model = onnx.load(str(path), load_external_data=False)
    if not model.graph.node or not model.graph.output:
        raise InputError(f"{path} is not a whole ONNX file (it has no nodes)", fix)
    return model


def session(path: Path) -> Any:
    """Open a model, ready to run on the CPU.

    Raises:
        InputError: ONNX Runtime does not run it.
    """
    with refusing(FAILURES, lambda e: f"ONNX Runtime does not run {path.name} ({str(e)[:200]})", "check the model"):
        return onnx_runtime.session(path)


def batch(running: Any) -> int:
    """Return the batch size that the model declares; 0 for any."""
    return max((i.shape[0] for i in running.get_inputs() if i.shape and isinstance(i.shape[0], int)), default=0)


def run(running: Any, feeds: Iterator[tuple[Mapping[str, Array], int]], wanted: list[str]) -> list[Array]:
    """Run all batches and return the outputs `wanted`, of the rows that count.

    Raises:
        InputError: the rows do not fit the model.
    """
    outputs: list[list[Array]] = []
    failures, fix = (*FAILURES, ValueError), "check --data and --layout"
    with refusing(failures, lambda e: f"the rows do not fit the model ({str(e)[:200]})", fix):
        for feed, rows in feeds:
            outputs.append([np.atleast_1d(out)[:rows] for out in onnx_runtime.run(running, wanted, feed)])
    return [np.concatenate(parts) for parts in zip(*outputs, strict=True)]


def named_inputs(running: Any, inputs: Any) -> dict[str, Array]:
    """Convert a batch of a data set to the model's inputs, by name, in the types that it declares.

    Raises:
        InputError: the model has other inputs.
    """
    types = {i.name: i.type for i in running.get_inputs()}
    given = {name: np.asarray(t) for name, t in inputs.items()} if isinstance(inputs, Mapping) else None
    if given is None:
        if len(types) != 1:
            problem = f"the model takes {', '.join(types)}, the data set has one input"
            raise InputError(problem, "name them: --inputs A,B")
        given = {next(iter(types)): np.asarray(inputs)}
    missing = [name for name in types if name not in given]
    if missing:
        problem = f"the model takes '{missing[0]}', the data set holds {', '.join(given)}"
        raise InputError(problem, "name them: --inputs A,B")
    return {name: np.asarray(given[name], NUMPY.get(kind, given[name].dtype)) for name, kind in types.items()}


NUMPY: dict[str, Any] = {
    "tensor(float)": np.float32,
    "tensor(double)": np.float64,
    "tensor(float16)": np.float16,
    "tensor(int64)": np.int64,
    "tensor(int32)": np.int32,
    "tensor(bool)": np.bool_,
}


def said(path: Path) -> dict[str, str]:
    """Read the metadata of a file."""
    return {p.key: p.value for p in read(path).metadata_props}


def probabilities(path: Path, fed: Array) -> Array:
    """Compute the probabilities (n, K) of a calibrator that `calib export --to onnx` wrote alone.

    Raises:
        InputError: the file is a network.
    """
    if said(path).get(TAKES) != "scores":
        raise InputError(f"{path} is a network, which takes inputs", "pass --before MODEL and the inputs as --data")
    [p] = run(session(path), iter([({"scores": fed}, len(fed))]), ["probabilities"])
    return np.asarray(p, np.float64)


# Weights in files beside an ONNX model.


@contextlib.contextmanager
def weights_beside(model: Path, path: Path) -> Iterator[list[str]]:
    """Link, or else copy, the files of weights beside `model` to the folder of `path`; remove them again on an error.

    Raises:
        InputError: the weights are outside the folder of the model, or missing.
        UsageError: another file has that name.
    """
    names = sorted(_external(read(model).graph))
    brought = list[Path]()
    try:
        for name in names:
            source, to = model.parent / name, path.parent / name
            reading(source)
            if os.path.isabs(name) or ".." in Path(name).parts:
                raise InputError(f"{model.name} names the weights '{name}' outside its folder", "keep them beside it")
            if not source.is_file():
                raise InputError(f"{name}, the weights of {model.name}, are not there", "put them beside the model")
            if to.exists():
                if not os.path.samefile(source, to):
                    problem = f"{to} would be replaced by the weights of {model.name}"
                    raise UsageError(problem, "write into an empty folder")
                continue
            claim(to, folder=True)  # refuses an output that was read from, as every file that is written
            to.parent.mkdir(parents=True, exist_ok=True)
            brought.append(to)
            _bring(source, to)
            written(to)  # a link is the same file as the input: without this, reading the export would be refused
        yield names
    except BaseException:
        for to in brought:
            to.unlink(missing_ok=True)
        raise


def _bring(source: Path, to: Path) -> None:
    with contextlib.suppress(OSError):
        os.link(source, to)
        return
    try:
        shutil.copyfile(source, to)
    except OSError as error:
        raise WriteError(f"cannot write {to} ({no_room(error) or error.strerror})", "free some space") from None


def _external(graph: Any) -> set[str]:
    """List the names of the files with weights, including those of sub-graphs."""
    tensors = [*graph.initializer, *(s.values for s in graph.sparse_initializer)]
    names = set[str]()
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == AttributeProto.GRAPH:
                names |= _external(attribute.g)
            tensors += [attribute.t] if attribute.type == AttributeProto.TENSOR else []
    return names | {e.value for t in tensors for e in t.external_data if e.key == "location"}
