"""ONNX graphs, run by onnxruntime: a network of declared operators, which can compute and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from calibcli.errors import InputError, refusing
from calibcli.inputs.checkpoint.trusted import in_pieces

KINDS = {"float": np.float32, "float16": np.float16, "double": np.float64, "uint8": np.uint8, "int8": np.int8,
         "int32": np.int32, "int64": np.int64, "bool": np.bool_}  # fmt: skip


class Graph(nn.Module):
    """An ONNX graph as a module: one input by position or several by name, logits out. It has no parameters.

    Attributes:
        taken: types and shapes of its inputs by name; a length that varies is a name or None.
        opset: of its operators, where the file says.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        fix = "pip install 'calibcli[onnx]'"
        with refusing(ImportError, f"{path} is an ONNX graph, and onnxruntime is not installed", fix):
            import onnxruntime  # noqa: F401

            from calibcli.inputs import onnx_runtime
        self.path = path
        self.errors = (*onnx_runtime.FAILURES, RuntimeError, ValueError)
        with refusing(self.errors, lambda e: f"{path} is not a readable ONNX graph ({_said(e)})", "export it again"):
            self.session = onnx_runtime.session(path, torch.get_num_threads())
        self.taken = {one.name: (_kind(one.type), tuple(one.shape)) for one in self.session.get_inputs()}
        self.output = self._logits()

    def _logits(self) -> str:
        """The name of the output that holds them: `logits`, else the only one of real numbers by row.

        Raises:
            InputError: none, or several.
        """
        found = [o for o in self.session.get_outputs() if _kind(o.type) in ("float", "float16", "double")]
        named = [one.name for one in found if one.name.lower() == "logits"]
        tables = named or [one.name for one in found if len(one.shape) in (0, 2)]
        if len(tables) == 1:
            return str(tables[0])
        held = ", ".join(f"{o.name} {o.type}" for o in self.session.get_outputs())[:200]
        problem = f"{self.path} has {'no output' if not tables else 'several outputs'} of numbers (rows, classes)"
        raise InputError(f"{problem}: {held}", "export it with one output named logits")

    def __deepcopy__(self, memo: dict[int, Any]) -> Graph:
        return self  # nothing in it changes

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
        made = in_pieces(self._run, [], given, most or 1, most)
        return made if isinstance(made, Tensor) else torch.as_tensor(made)

    def _run(self, **given: Tensor) -> Tensor:
        feed: dict[str, Any] = {
            name: t.detach().cpu().numpy().astype(KINDS[self.taken[name][0]]) for name, t in given.items()
        }
        wanted = "; ".join(f"{name} {_shape(shape)}" for name, (_, shape) in self.taken.items())
        fix = f"it takes {wanted}: pass such rows, of pictures with --resize and --crop"
        with refusing(self.errors, lambda e: f"{self.path} does not take these rows ({_said(e)})", fix):
            found = self.session.run([self.output], feed)[0]
        return torch.from_numpy(found if found.dtype != np.float16 else found.astype(np.float32))


def _kind(text: str) -> str:
    """`float` of `tensor(float)`; "" of what is no tensor of numbers."""
    kind = text.removeprefix("tensor(").removesuffix(")")
    return kind if kind in KINDS else ""


def _shape(shape: Sequence[Any]) -> str:
    sizes = ("N" if i == 0 and not isinstance(n, int) else str(n or "?") for i, n in enumerate(shape))
    return f"({', '.join(sizes)})"


def _said(error: BaseException) -> str:
    """The first line of what onnxruntime says, without its number and place in the source."""
    text = str(error).strip().partition("\n")[0]
    return text.rpartition("] : ")[2][:200].rpartition(" : ")[2] or text[:200]


def description(path: Path) -> dict[str, Any]:
    """Inputs and outputs of a graph, for `inspect`."""
    made = Graph(path)
    inputs = [f"{name} {kind} {_shape(shape)}" for name, (kind, shape) in made.taken.items()]
    outputs = [f"{o.name} {_kind(o.type) or o.type} {_shape(o.shape)}" for o in made.session.get_outputs()]
    return {"inputs": ", ".join(inputs), "outputs": ", ".join(outputs), "logits": made.output}
