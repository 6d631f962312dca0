"""A calibrator as nodes of an ONNX graph, made with `onnx.helper` alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partialmethod
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from calibcli.scalers.program import Operations

PREFIX = "calib/"
OLDEST = 11  # opset: earlier ones have other Clip, Gather and ReduceSum


def _operator(kind: str, swapped: bool = False) -> Callable[[Value, Value | float], Value]:
    return lambda a, b: a.o.node(kind, b, a) if swapped else a.o.node(kind, a, b)


@dataclass(frozen=True)
class Value:
    """A named value of the graph."""

    o: GraphOps
    name: str

    __add__, __sub__, __mul__ = _operator("Add"), _operator("Sub"), _operator("Mul")
    __radd__, __rsub__, __rmul__ = _operator("Add"), _operator("Sub", True), _operator("Mul")
    __truediv__, __rtruediv__, __matmul__ = _operator("Div"), _operator("Div", True), _operator("MatMul")
    __lt__, __gt__ = _operator("Less"), _operator("Greater")

    def __le__(self, other: Value | float) -> Value:
        return self.o.node("Not", self > other)


class GraphOps(Operations):
    """The operations as nodes of a graph.

    Args:
        classes: K.
        dtype: that the program works in, float32 or float64.
        eps: rounding of what comes out.
        opset: of the model.
        logits: whether scores known up to a constant may come out.
    """

    def __init__(self, classes: int, dtype: Any, eps: float, opset: int, logits: bool = False) -> None:
        self.classes, self.dtype, self.eps, self.opset = classes, np.dtype(dtype), eps, opset
        self.logits = logits
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self._known: dict[tuple[Any, ...], Value] = {}

    def node(self, kind: str, *inputs: Value | float, name: str = "", **attributes: Any) -> Value:
        out = Value(self, name or f"{PREFIX}{kind}_{len(self.nodes)}")
        values = [v if isinstance(v, Value) else self.const(v) for v in inputs]
        made = helper.make_node(kind, [v.name for v in values], [out.name], name=f"{PREFIX}{kind}_{len(self.nodes)}n")
        made.attribute.extend(helper.make_attribute(key, value) for key, value in attributes.items())
        self.nodes.append(made)
        return out

    def const(self, array: Any, whole: bool = False) -> Value:
        held: NDArray[Any] = np.asarray(array, np.int64 if whole else self.dtype)
        key = (held.dtype.str, held.shape, held.tobytes())
        if key not in self._known:
            self._known[key] = Value(self, f"{PREFIX}c{len(self.constants)}")
            self.constants.append(numpy_helper.from_array(held, self._known[key].name))
        return self._known[key]

    exp, log, abs = partialmethod(node, "Exp"), partialmethod(node, "Log"), partialmethod(node, "Abs")
    least, most = partialmethod(node, "Min"), partialmethod(node, "Max")
    where, same = partialmethod(node, "Where"), partialmethod(node, "Equal")
    argmax = partialmethod(node, "ArgMax", axis=-1, keepdims=1)
    take = partialmethod(node, "Gather", axis=0)
    join = partialmethod(node, "Concat", axis=-1)

    def along(self, kind: str, axis: int, since: int, x: Value, **more: Any) -> Value:
        """An operation whose axes became an input with opset `since`."""
        if self.opset >= since:
            return self.node(kind, x, self.const([axis], whole=True), **more)
        return self.node(kind, x, axes=[axis], **more)

    max = partialmethod(along, "ReduceMax", -1, 18, keepdims=1)
    min = partialmethod(along, "ReduceMin", -1, 18, keepdims=1)
    sum = partialmethod(along, "ReduceSum", -1, 13, keepdims=1)
    deep, flat = partialmethod(along, "Unsqueeze", 2, 13), partialmethod(along, "Squeeze", 2, 13)

    def log1p(self, x: Value) -> Any:
        """ln(1 + x), with what rounding took from 1 + x put back (Kahan)."""
        u = x + 1.0
        return self.log(u) - ((u - 1.0) - x) / self.most(u, 1e-30)

    def normalised(self, z: Value) -> Any:
        return z if self.logits else self.log_softmax(z)

    def number(self, condition: Value) -> Value:
        return self.cast(condition, helper.np_dtype_to_tensor_dtype(self.dtype))

    def index(self, x: Value) -> Value:
        return self.cast(x, TensorProto.INT64)

    def column(self, x: Value, k: int) -> Value:
        return self.node("Gather", x, self.const([k], whole=True), axis=-1)

    def cast(self, x: Value, kind: int, name: str = "") -> Value:
        return self.node("Cast", x, name=name, to=kind)


def standalone(o: GraphOps, columns: tuple[int, int], kind: int, out: Value, about: Sequence[tuple[str, str]]) -> Any:
    """The model `scores (rows, columns) -> probabilities (rows, K)` of these nodes."""
    graph = helper.make_graph(
        o.nodes,
        "calib",
        [helper.make_tensor_value_info("scores", kind, ["rows", columns[0]])],
        [helper.make_tensor_value_info(out.name, kind, ["rows", columns[1]])],
        o.constants,
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", o.opset)], producer_name="calibcli")
    made.ir_version = 8  # what runtimes of 2022 read
    helper.set_model_props(made, dict(about))
    onnx.checker.check_model(made)
    return made
