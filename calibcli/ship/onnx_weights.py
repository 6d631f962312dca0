"""Weights that lie in files beside an ONNX model."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from onnx import AttributeProto

from calibcli.errors import InputError, UsageError, WriteError
from calibcli.files import claim, no_room, reading, written
from calibcli.ship import onnx_run


@contextlib.contextmanager
def weights_beside(model: Path, path: Path) -> Iterator[list[str]]:
    """Weights in files beside the model, brought beside what is written: linked where that can be, else copied.

    Raises:
        InputError: they lie elsewhere, or are not there.
        UsageError: another file has that name.
    """
    names = sorted(_external(onnx_run.read(model).graph))
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
                    raise UsageError(
                        f"{to} would be replaced by the weights of {model.name}", "write into an empty folder"
                    )
                continue
            claim(to, folder=True)
            to.parent.mkdir(parents=True, exist_ok=True)
            brought.append(to)
            _bring(source, to)
            written(to)  # a link has the identity of the input
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
    """Names of the files with weights, of sub-graphs too."""
    held = [*graph.initializer, *(s.values for s in graph.sparse_initializer)]
    found = set[str]()
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == AttributeProto.GRAPH:
                found |= _external(attribute.g)
            held += [attribute.t] if attribute.type == AttributeProto.TENSOR else []
    return found | {e.value for t in held for e in t.external_data if e.key == "location"}
