"""Write a calibrator as nodes of an ONNX graph, and find its place in the graph of a network."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partialmethod
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from calibcli.calibrators.program import Operations
from calibcli.core.errors import InputError, UsageError

PREFIX = "calib/"
OLDEST = 11  # opset; in earlier ones Clip, Gather and ReduceSum differ


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
    """The operations of a calibrator as nodes of a graph.

    Args:
        classes: K.
        dtype: of the computation, float32 or float64.
        eps: rounding unit of the output.
        opset: of the model.
        logits: whether the output may be logits, which are known up to a constant.
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
        node = helper.make_node(kind, [v.name for v in values], [out.name], name=f"{PREFIX}{kind}_{len(self.nodes)}n")
        node.attribute.extend(helper.make_attribute(key, value) for key, value in attributes.items())
        self.nodes.append(node)
        return out

    def const(self, array: Any, whole: bool = False) -> Value:
        values: NDArray[Any] = np.asarray(array, np.int64 if whole else self.dtype)
        key = (values.dtype.str, values.shape, values.tobytes())
        if key not in self._known:
            self._known[key] = Value(self, f"{PREFIX}c{len(self.constants)}")
            self.constants.append(numpy_helper.from_array(values, self._known[key].name))
        return self._known[key]

    exp, log, abs = partialmethod(node, "Exp"), partialmethod(node, "Log"), partialmethod(node, "Abs")
    least, most = partialmethod(node, "Min"), partialmethod(node, "Max")
    where, same = partialmethod(node, "Where"), partialmethod(node, "Equal")
    argmax = partialmethod(node, "ArgMax", axis=-1, keepdims=1)
    take = partialmethod(node, "Gather", axis=0)
    join = partialmethod(node, "Concat", axis=-1)

    def along(self, kind: str, axis: int, since: int, x: Value, **more: Any) -> Value:
        """Add an operation whose axes became an input with opset `since`."""
        if self.opset >= since:
            return self.node(kind, x, self.const([axis], whole=True), **more)
        return self.node(kind, x, axes=[axis], **more)

    max = partialmethod(along, "ReduceMax", -1, 18, keepdims=1)
    min = partialmethod(along, "ReduceMin", -1, 18, keepdims=1)
    sum = partialmethod(along, "ReduceSum", -1, 13, keepdims=1)
    deep, flat = partialmethod(along, "Unsqueeze", 2, 13), partialmethod(along, "Squeeze", 2, 13)

    def log1p(self, x: Value) -> Any:
        """ln(1 + x), corrected for the rounding of 1 + x (Kahan)."""
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


def standalone(
    o: GraphOps, columns: tuple[int, int], kind: int, out: Value, metadata: Sequence[tuple[str, str]]
) -> Any:
    """Build the model `scores (rows, columns) -> probabilities (rows, K)` of these nodes."""
    graph = helper.make_graph(
        o.nodes,
        "calib",
        [helper.make_tensor_value_info("scores", kind, ["rows", columns[0]])],
        [helper.make_tensor_value_info(out.name, kind, ["rows", columns[1]])],
        o.constants,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", o.opset)], producer_name="calibcli")
    model.ir_version = 8  # read by runtimes since 2022
    helper.set_model_props(model, dict(metadata))
    onnx.checker.check_model(model)
    return model


# Find the place of a calibrator in the graph of a network.

ENDS = ("Softmax", "LogSoftmax")
THROUGH = ("Identity", "Cast")
NOT_SCORES = {
    "ZipMap": "convert the model with options={'zipmap': False}",
    "ArgMax": "export the model without the ArgMax that it ends in",
    "TopK": "export the model without the TopK that it ends in",
}
KINDS: dict[int, str] = {TensorProto.FLOAT: "float32", TensorProto.DOUBLE: "float64", TensorProto.FLOAT16: "float16"}


@dataclass
class Place:
    """The place of a calibrator: the name of a tensor, of type `kind`.

    Attributes:
        scores: what the tensor holds, logits or probabilities.  before: the Softmax that follows, "" for none.
        flat: whether the tensor is (n,), one score for each row.
    """

    tensor: str
    kind: int
    scores: str
    before: str
    flat: bool = False


def find(model: Any, output: str, path: str) -> tuple[str, Place]:
    """Find the output of a network, and the place for a calibrator.

    Raises:
        UsageError: there is no such output, or several are possible.
        InputError: the output is not scores, or its last node discards them.
    """
    graph = model.graph
    producers = {name: node for node in graph.node for name in node.output}
    kinds = {o.name: o.type.tensor_type.elem_type for o in graph.output if o.type.WhichOneof("value") == "tensor_type"}
    floats = {name: kind for name, kind in kinds.items() if kind in KINDS}
    brief = [name for name, kind in kinds.items() if kind == TensorProto.BFLOAT16 and name == (output or name)]
    if brief and not (floats.keys() & {output} or (floats and not output)):
        problem = f"output '{brief[0]}' of {path} is bfloat16, which ONNX Runtime does not hand out on a CPU"
        raise InputError(problem, "end the model with a Cast to float32")
    for o in graph.output:
        kind = producers[o.name].op_type if o.name in producers else ""
        if kind in NOT_SCORES and (o.name == output or not output) and (o.name == output or not floats):
            raise InputError(f"output '{o.name}' of {path} comes from {kind}, which leaves no scores", NOT_SCORES[kind])
    if output and output not in floats:
        raise UsageError(f"{path} has no output '{output}' of floats", f"it has: {', '.join(floats) or 'none'}")
    if not floats:
        listed = ", ".join(kinds) or "none"
        problem = f"{path} has no output of floats (outputs: {listed})"
        raise InputError(problem, "end it with a Cast or DequantizeLinear")
    if len(floats) != 1 and not output:
        names = ", ".join(floats)
        raise UsageError(f"{path} has {len(floats)} outputs of floats ({names})", "choose one: --to onnx:output=NAME")
    name = output or next(iter(floats))
    value, kind = name, floats[name]
    while value in producers and producers[value].op_type in THROUGH:
        value = producers[value].input[0]
    end = producers[value].op_type if value in producers else ""
    if end in NOT_SCORES:
        raise InputError(f"output '{name}' of {path} comes from {end}, which leaves no scores", NOT_SCORES[end])
    if end not in ENDS:
        return name, Place(name, kind, "probabilities" if end == "Sigmoid" else "", "")
    node = producers[value]
    axis = next((a.i for a in node.attribute if a.name == "axis"), -1)
    if axis not in (-1, 1):
        raise InputError(f"{end} of {path} is over axis {axis}, not over classes", "export the model with logits")
    return name, Place(node.input[0], 0, "logits", end)


def leads(nodes: list[Any], end: Any, name: str) -> bool:
    """Whether the output `name` comes from this Softmax."""
    producers = {out: node for node in nodes for out in node.output}
    while name in producers and producers[name].op_type in THROUGH:
        name = producers[name].input[0]
    return name in end.output
