"""A calibrator as nodes of an ONNX graph, made with `onnx.helper` alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

PREFIX = "calib/"
OLDEST = 11  # opset: earlier ones have other Clip, Gather and ReduceSum


@dataclass(frozen=True)
class Value:
    """A named value of the graph."""

    o: GraphOps
    name: str

    def __add__(self, other: Value) -> Value:
        return self.o.node("Add", self, other)

    def __sub__(self, other: Value) -> Value:
        return self.o.node("Sub", self, other)

    def __mul__(self, other: Value) -> Value:
        return self.o.node("Mul", self, other)

    def __truediv__(self, other: Value) -> Value:
        return self.o.node("Div", self, other)

    def __matmul__(self, other: Value) -> Value:
        return self.o.node("MatMul", self, other)

    def __lt__(self, other: Value) -> Value:
        return self.o.node("Less", self, other)

    def __gt__(self, other: Value) -> Value:
        return self.o.node("Greater", self, other)

    def __le__(self, other: Value) -> Value:
        return self.o.node("Not", self > other)


class GraphOps:
    """Operations that put a node on the graph each.

    Args:
        classes: K.
        dtype: that the program works in, float32 or float64.
        eps: rounding of what comes out.
        opset: of the model.
    """

    def __init__(self, classes: int, dtype: Any, eps: float, opset: int) -> None:
        self.classes, self.dtype, self.eps, self.opset = classes, np.dtype(dtype), eps, opset
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self._known: dict[tuple[Any, ...], Value] = {}

    def node(self, kind: str, *inputs: Value, name: str = "", **attributes: Any) -> Value:
        out = Value(self, name or f"{PREFIX}{kind}_{len(self.nodes)}")
        made = helper.make_node(kind, [v.name for v in inputs], [out.name], name=f"{PREFIX}{kind}_{len(self.nodes)}n")
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

    def exp(self, x: Value) -> Value:
        return self.node("Exp", x)

    def log(self, x: Value) -> Value:
        return self.node("Log", x)

    def abs(self, x: Value) -> Value:
        return self.node("Abs", x)

    def least(self, x: Value, y: Value) -> Value:
        return self.node("Min", x, y)

    def most(self, x: Value, y: Value) -> Value:
        return self.node("Max", x, y)

    def where(self, condition: Value, x: Value, y: Value) -> Value:
        return self.node("Where", condition, x, y)

    def max(self, x: Value) -> Value:
        return self._over_classes("ReduceMax", x, 18)

    def sum(self, x: Value) -> Value:
        return self._over_classes("ReduceSum", x, 13)

    def _over_classes(self, kind: str, x: Value, since: int) -> Value:
        """A reduction; its axes became an input with opset `since`."""
        if self.opset >= since:
            return self.node(kind, x, self.const([-1], whole=True), keepdims=1)
        return self.node(kind, x, axes=[-1], keepdims=1)

    def argmax(self, x: Value) -> Value:
        return self.node("ArgMax", x, axis=-1, keepdims=1)

    def same(self, i: Value, j: Value) -> Value:
        return self.node("Equal", i, j)

    def number(self, condition: Value) -> Value:
        return self.cast(condition, helper.np_dtype_to_tensor_dtype(self.dtype))

    def index(self, x: Value) -> Value:
        return self.cast(x, TensorProto.INT64)

    def take(self, table: Value, index: Value) -> Value:
        return self.node("Gather", table, index, axis=0)

    def column(self, x: Value, k: int) -> Value:
        return self.node("Gather", x, self.const([k], whole=True), axis=-1)

    def deep(self, x: Value) -> Value:
        return self.axis("Unsqueeze", x, 2)

    def flat(self, x: Value) -> Value:
        return self.axis("Squeeze", x, 2)

    def axis(self, kind: str, x: Value, at: int) -> Value:
        """`Unsqueeze` or `Squeeze` of one axis, which became an input with opset 13."""
        if self.opset >= 13:
            return self.node(kind, x, self.const([at], whole=True))
        return self.node(kind, x, axes=[at])

    def join(self, *columns: Value) -> Value:
        return self.node("Concat", *columns, axis=-1)

    def cast(self, x: Value, kind: int, name: str = "") -> Value:
        return self.node("Cast", x, name=name, to=kind)


def standalone(o: GraphOps, columns: int, kind: int, out: Value, about: Sequence[tuple[str, str]]) -> Any:
    """The model `scores (rows, columns) -> probabilities (rows, K)` of these nodes."""
    graph = helper.make_graph(
        o.nodes,
        "calib",
        [helper.make_tensor_value_info("scores", kind, ["rows", columns])],
        [helper.make_tensor_value_info(out.name, kind, ["rows", o.classes])],
        o.constants,
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", o.opset)], producer_name="calibcli")
    made.ir_version = 8  # what runtimes of 2022 read
    helper.set_model_props(made, dict(about))
    onnx.checker.check_model(made)
    return made
