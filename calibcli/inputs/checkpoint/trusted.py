"""Containers that hold code: refused unless the user trusts the file. Nothing here runs before that is checked."""

from __future__ import annotations

import contextlib
import copy
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.fx import GraphModule
from torch.utils._pytree import tree_map

from calibcli.errors import InputError, refusing
from calibcli.inputs.files.pytorch_archive import UNREADABLE

FAILURES = (*UNREADABLE, ImportError)


def refusal(path: Path, what: str) -> InputError:
    """The error for a file that holds code."""
    return InputError(
        f"{path} holds {what}; nothing was executed",
        "save its state dict (torch.save(model.state_dict(), ...)) and pass --arch, or pass --trust if you trust it",
    )


def unpickle(path: Path) -> Any:
    """A trusted pickle.

    Raises:
        InputError: it cannot be loaded.
    """
    fix = "run with PYTHONPATH=FOLDER of the module that it names, or read its weights alone: --arch without --trust"
    with refusing(FAILURES, lambda e: f"{path} cannot be unpickled ({e})", fix):
        return torch.load(path, map_location="cpu", weights_only=False)


@contextlib.contextmanager
def _readable(path: Path, what: str, trust: bool, code: str) -> Iterator[None]:
    """Refuse a file that is damaged or not trusted; warnings, such as that TorchScript is deprecated, are left out."""
    if not trust:
        raise refusal(path, code)
    said = refusing(FAILURES, lambda error: f"{path} is not a readable {what} file ({error})", "save it again")
    with said, warnings.catch_warnings(action="ignore"):
        yield


def torchscript(path: Path, trust: bool) -> nn.Module:
    """A TorchScript module.

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
            made = super().__deepcopy__(memo)
        for mine, copied in zip(self.parameters(), made.parameters()):
            copied.requires_grad_(mine.requires_grad)
        object.__setattr__(made, "__class__", Scripted)
        return cast(Scripted, made)


def exported(path: Path, trust: bool) -> nn.Module:
    """A `torch.export` program as a module that takes any number of rows.

    Raises:
        InputError: not trusted, or damaged.
    """
    with _readable(path, "torch.export", trust, "a torch.export program, inside which torch unpickles"):
        return Exported(*_plain(torch.export.load(str(path))))


def _plain(program: torch.export.ExportedProgram) -> tuple[GraphModule, int, int]:
    """The program's graph, and the fewest and most rows that it takes.

    Assertions about dtypes, which `Module.to` in the exported code leaves behind, would refuse another precision.
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
    """A `torch.export` graph as an ordinary module: any number of rows, train and eval without effect.

    A graph of a fixed or bounded batch size gets the rows in pieces, the last one filled up with copies of its last
    row; what comes out for the copies is dropped.
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
    """`call` on so many rows at a time, the last piece filled up with copies, whose outputs are dropped."""
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
