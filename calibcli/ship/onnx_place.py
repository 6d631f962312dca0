"""Where in an ONNX graph a calibrator goes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from onnx import TensorProto

from calibcli.errors import InputError, UsageError

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
    """Where a calibrator goes: on the tensor `at` of type `kind`.

    Attributes:
        held: what the tensor holds, logits or probabilities.  before: the Softmax that follows, "" for none.
        flat: whether it is (n,), one score for each row.
    """

    at: str
    kind: int
    held: str
    before: str
    flat: bool = False


def find(model: Any, output: str, path: str) -> tuple[str, Place]:
    """The output, and the place for a calibrator.

    Raises:
        UsageError: no such output, or several that may be meant.
        InputError: it is no scores, or what it ends in loses them.
    """
    graph = model.graph
    made = {name: node for node in graph.node for name in node.output}
    kinds = {o.name: o.type.tensor_type.elem_type for o in graph.output if o.type.WhichOneof("value") == "tensor_type"}
    floats = {name: kind for name, kind in kinds.items() if kind in KINDS}
    brief = [name for name, kind in kinds.items() if kind == TensorProto.BFLOAT16 and name == (output or name)]
    if brief and not (floats.keys() & {output} or (floats and not output)):
        problem = f"output '{brief[0]}' of {path} is bfloat16, which ONNX Runtime does not hand out on a CPU"
        raise InputError(problem, "end the model with a Cast to float32")
    for o in graph.output:
        kind = made[o.name].op_type if o.name in made else ""
        if kind in NOT_SCORES and (o.name == output or not output) and (o.name == output or not floats):
            raise InputError(f"output '{o.name}' of {path} comes from {kind}, which leaves no scores", NOT_SCORES[kind])
    if output and output not in floats:
        raise UsageError(f"{path} has no output '{output}' of floats", f"it has: {', '.join(floats) or 'none'}")
    if not floats:
        held = ", ".join(kinds) or "none"
        raise InputError(f"{path} has no output of floats (outputs: {held})", "end it with a Cast or DequantizeLinear")
    if len(floats) != 1 and not output:
        names = ", ".join(floats)
        raise UsageError(f"{path} has {len(floats)} outputs of floats ({names})", "choose one: --to onnx:output=NAME")
    name = output or next(iter(floats))
    at, kind = name, floats[name]
    while at in made and made[at].op_type in THROUGH:
        at = made[at].input[0]
    end = made[at].op_type if at in made else ""
    if end in NOT_SCORES:
        raise InputError(f"output '{name}' of {path} comes from {end}, which leaves no scores", NOT_SCORES[end])
    if end not in ENDS:
        return name, Place(name, kind, "probabilities" if end == "Sigmoid" else "", "")
    node = made[at]
    axis = next((a.i for a in node.attribute if a.name == "axis"), -1)
    if axis not in (-1, 1):
        raise InputError(f"{end} of {path} is over axis {axis}, not over classes", "export the model with logits")
    return name, Place(node.input[0], 0, "logits", end)


def leads(nodes: list[Any], end: Any, name: str) -> bool:
    """Whether the output comes from this Softmax."""
    made = {out: node for node in nodes for out in node.output}
    while name in made and made[name].op_type in THROUGH:
        name = made[name].input[0]
    return name in end.output
