"""`--to onnx`: write the calibrator alone or inside a network, and compare in ONNX Runtime."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from onnx import TensorProto, helper
from torch import Tensor

from calibcli.calibrators import Scaler, same_order
from calibcli.core.errors import InputError, UsageError
from calibcli.core.files import atomic
from calibcli.networks import checkpoint, dataset, inference
from calibcli.networks.dataset import Dataset
from calibcli.networks.deploy import _onnx_graph as onnx_graph
from calibcli.networks.deploy import _onnx_run as onnx_run
from calibcli.networks.deploy._onnx_graph import KINDS, OLDEST, PREFIX, GraphOps, Place, Value
from calibcli.networks.deploy._onnx_run import weights_beside
from calibcli.scores.likelihood import log_softmax
from calibcli.scores.predictions import logits_of, two_columns
from calibcli.ship import target
from calibcli.ship.target import ExportRequest, Shipped, softmax, stamp

Array = NDArray[Any]
OPSET = 17
BATCH = 256  # rows, unless the network fixes their number
HALF = "end the network with a Cast to float32, export the calibrator alone (leave --model out), or pass --tolerance"


def write(job: ExportRequest, output: str) -> Shipped:
    """Write the calibrator, alone or inside the network of `job.model`.

    Raises:
        UsageError: the network has no such output, or several.
        InputError: the network cannot take a calibrator, or the file that was written differs.
    """
    if job.model is None:
        return target.exact_enough(job.scaler, lambda wide: _alone(job, wide))
    with contextlib.ExitStack() as stack:
        beside = stack.enter_context(weights_beside(job.model, job.path))
        return target.exact_enough(job.scaler, lambda wide: _inside(job, output, wide, beside))


def _alone(job: ExportRequest, wide: bool) -> Shipped:
    fed, scaler = job.fed("float32"), job.scaler
    o = GraphOps(target.classes(scaler), np.float64 if wide else np.float32, float(np.finfo(np.float32).eps), OPSET)
    x = Value(o, "scores")
    probabilities = o.exp(target.log_probabilities(o, scaler, o.cast(x, TensorProto.DOUBLE) if wide else x))
    out = o.cast(probabilities, TensorProto.FLOAT, "probabilities")
    metadata = {**stamp(job), onnx_run.TAKES: "scores"}
    model = onnx_graph.standalone(o, (scaler.columns, scaler.k), TensorProto.FLOAT, out, list(metadata.items()))
    with atomic(job.path) as temporary:
        temporary.write_bytes(model.SerializeToString())
        running = onnx_run.session(temporary)
        [p] = onnx_run.run(running, iter([({"scores": fed}, len(fed))]), ["probabilities"])
        [single] = onnx_run.run(running, iter([({"scores": fed[:1]}, 1)]), ["probabilities"])
        if len(single) != 1:
            raise InputError("the model does not take one row", "report it with the calibrator")
        compared = target.of_scores(scaler, fed, p, "float32", job.tolerance)
        compared.require(job.path.name)
    facts = {"takes": "scores", "arithmetic": "float64" if wide else "float32", "nodes": len(o.nodes)}
    return Shipped(files=[job.path], compared=compared, facts=facts)


def _inside(job: ExportRequest, output: str, wide: bool, beside: list[str]) -> Shipped:
    assert job.model is not None
    path, model = job.model, onnx_run.read(job.model)
    name, place = onnx_graph.find(model, output, path.name)
    rows, opset = _rows(job), next((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), 0)
    if 0 < opset < OLDEST:
        fix = "convert it with onnx.version_converter.convert_version(model, 17)"
        raise InputError(f"{path.name} is of opset {opset}, a calibrator needs {OLDEST}", fix)
    if not opset:  # the model only has operators of ai.onnx.ml
        model.opset_import.append(helper.make_opsetid("", OPSET))
    if any(p.key == "calib.calibrator" for p in model.metadata_props):
        raise InputError(f"{path.name} holds a calibrator already", "export the network again, without it")
    with atomic(job.path) as temporary:  # beside its weights
        raw = _raw(model, place, temporary, rows, job.scaler, job.kind)
        scaler = _given(job.scaler, raw.shape[1], place.scores)
        expected = scaler.map(_as_logits(raw, place, scaler))
        told = _predictions(model, name, onnx_run.session(temporary), rows, raw)
        _put(model, place, scaler, wide, opset or OPSET, name)
        remarks = [] if keeps_class(scaler) else [_follow(model, name, one, place) for one in told]
        metadata = {p.key: p.value for p in model.metadata_props}
        helper.set_model_props(model, {**metadata, **stamp(job), onnx_run.OUTPUT: name, onnx_run.GIVES: _gives(place)})
        temporary.write_bytes(model.SerializeToString())
        running = onnx_run.session(temporary)
        [out] = onnx_run.run(running, _feeds(running, rows), [name])
        dtype, p = KINDS[place.kind], _probabilities(out, place, scaler)
        keeps = raw if scaler.preserves_accuracy and scaler.columns > 1 else None
        cost = functools.partial(_rounding, raw, expected, place, scaler)
        compared = target.compare(expected, p, dtype, job.tolerance, keeps, cost)
        compared.require(job.path.name, HALF if dtype == "float16" else "")
    placed = f"before {place.before}" if place.before else f"behind {place.scores}"
    arithmetic = "float64" if wide else "float32"
    facts = {"takes": "inputs", "output": name, "placed": placed, "arithmetic": arithmetic}
    notes = [f"weights are stored beside the model: {', '.join(beside)}"] if beside else []
    notes += remarks
    inputs = [{"path": rows.source, "sha256": rows.sha256}] if rows.sha256 else []
    return Shipped(files=[job.path], compared=compared, facts=facts, notes=[*rows.notes, *notes], inputs=inputs)


def _rows(job: ExportRequest) -> Dataset:
    if job.data is None:
        raise UsageError("a network is compared on rows of inputs, and none were named", "pass --data digits.npz#test")
    assert job.model is not None
    return opened(job.model, job)


def opened(network: Path, job: ExportRequest) -> Dataset:
    """Load the rows of --data, prepared as the folder of the network says, if it says so."""
    graph = onnx_run.read(network).graph
    taken = {i.name for i in graph.input} - {i.name for i in graph.initializer}
    preparation, classes, preprocess = checkpoint.beside(network, taken)
    same_order(job.scaler, classes or (), str(network))
    return dataset.in_order(
        dataset.load(job.data, **{"preparation": preparation, **preprocess, **job.reading}), classes
    )


def _feeds(running: Any, rows: Dataset) -> Iterator[tuple[Any, int]]:
    """Yield batches of inputs with the number of rows that count.

    The first row comes alone, so that a network that only works with one batch size fails. If the network declares a
    batch size, batches have that size, and the last one is padded with copies of its last row.
    """
    fixed = onnx_run.batch(running)
    starts = range(0, len(rows), fixed) if fixed else (0, *range(1, len(rows), BATCH))
    for start in starts:
        stop = min(start + (fixed or (BATCH if start else 1)), len(rows))
        given = onnx_run.named_inputs(running, rows.batch(slice(start, stop))[0])
        missing = (fixed or 0) - (stop - start)
        if missing > 0:
            given = {name: np.concatenate([x, *[x[-1:]] * missing]) for name, x in given.items()}
        yield given, stop - start


def _raw(model: Any, place: Place, temporary: Path, rows: Dataset, scaler: Scaler, kind: str | None) -> Array:
    """Run a copy of the network that has the value at the place as an output; see `_scores`."""
    graph = type(model)()
    graph.CopyFrom(model)
    if place.tensor not in {o.name for o in graph.graph.output}:
        graph.graph.output.append(helper.make_empty_tensor_value_info(place.tensor))
    temporary.write_bytes(graph.SerializeToString())
    return _scores(onnx_run.session(temporary), place, rows, scaler, kind)


def _scores(running: Any, place: Place, rows: Dataset, scaler: Scaler, kind: str | None) -> Array:
    """Return the output `place.tensor`, (n, columns) float64, and store its type and kind in the place.

    Raises:
        InputError: as `inference.check`, or the output is no table of floats.
    """
    [raw] = onnx_run.run(running, _feeds(running, rows), [place.tensor])
    if raw.ndim == 1:
        place.flat, raw = True, raw[:, None]
    if raw.ndim != 2:
        problem = f"'{place.tensor}' has shape {raw.shape}, not (rows, classes)"
        raise InputError(problem, "choose one: --to onnx:output=NAME")
    place.kind = next((kind for kind, name in KINDS.items() if np.dtype(name) == raw.dtype), 0)
    if not place.kind:
        raise InputError(f"'{place.tensor}' holds {raw.dtype}, not floats", "choose one: --to onnx:output=NAME")
    steady(running, place.tensor, rows)
    if kind is not None and place.scores != "logits":
        place.scores = kind
    one_label = raw.shape[1] == 1 or np.allclose(raw.sum(axis=1), 1, atol=1e-3)
    if kind is None and place.scores != "logits" and not one_label and (problem := inference.unit_interval(raw)):
        raise InputError(problem, inference.NO_LOGITS)
    if not place.scores:
        place.scores = _held(raw)
        if place.scores == "probabilities" and raw.shape[1] == 1 and scaler.kind == "logits":  # or narrow logits
            problem = f"every value of '{place.tensor}' lies in [0, 1] as a probability does, and no Sigmoid gives them"
            fix = "fit the calibrator on what this network gives, not on logits, or end it with a Sigmoid"
            raise InputError(f"{problem}; the calibrator was fitted on logits", fix)
    return raw.astype(np.float64)


def steady(running: Any, name: str, rows: Dataset) -> None:
    """Refuse a graph whose output `name` is random or depends on the other rows of a batch; see `inference.check`.

    Where its batch size is fixed, a batch is filled with copies of its last row.
    """
    fixed = onnx_run.batch(running)

    def outputs_of(index: Sequence[int]) -> Tensor:
        given = onnx_run.named_inputs(running, rows.batch(np.array(index))[0])
        if missing := max(0, (fixed or 0) - len(index)):
            given = {key: np.concatenate([x, *[x[-1:]] * missing]) for key, x in given.items()}
        [out] = onnx_run.run(running, iter([(given, len(index))]), [name])
        return torch.as_tensor(out.reshape(len(out), -1))

    together = outputs_of(range(min(fixed or inference.FIRST, len(rows))))
    off, why = inference.unsteady(outputs_of, together)
    if why == inference.RANDOM or (why and off > inference.QUANTISED):
        raise InputError(why, inference.STILL if why == inference.RANDOM else inference.ROWS)


def _gives(place: Place) -> str:
    """Return the kind of the scores that the output holds: logits or probabilities."""
    return "probabilities" if place.before == "Softmax" else place.scores


def _held(raw: Array) -> str:
    inside = bool((raw >= 0).all() and (raw <= 1 + 1e-4).all())
    return "probabilities" if inside and (raw.shape[1] == 1 or np.allclose(raw.sum(axis=1), 1, atol=1e-3)) else "logits"


def _given(scaler: Scaler, columns: int, kind: str) -> Scaler:
    """Return the scaler adapted to the kind and columns of the network's scores.

    Raises:
        InputError: the network has another number of classes.
    """
    if columns not in (scaler.k, 1 if scaler.k == 2 else scaler.k):
        problem = f"the network gives {columns} columns, the calibrator was fitted on {scaler.k} classes"
        raise InputError(problem, "fit a calibrator on outputs of this network")
    if columns == 2 and scaler.columns == 1 and kind == "logits":
        problem = "the calibrator was fitted on one column, the network gives two"
        raise InputError(problem, "fit it on both columns")
    return dataclasses.replace(scaler, metadata={**scaler.metadata, "kind": kind, "columns": columns})


def _as_logits(raw: Array, place: Place, scaler: Scaler) -> Array:
    """Convert the scores at the place to logits or log-probabilities (n, K)."""
    if scaler.columns == 1:
        return logits_of(raw[:, :1], scaler.kind)
    return logits_of(raw, "logits" if place.scores == "logits" else "probabilities")


@dataclasses.dataclass(frozen=True)
class Predicted:
    """An output of a graph that is the predicted class, as converters of scikit-learn write it.

    Attributes:
        output: its name.  kind: type of its elements.  column: whether it is (n, 1).
        classes: what it says for each class, () if that is not known of all.
    """

    output: str
    kind: int
    column: bool
    classes: tuple[Any, ...]


NAMED = (TensorProto.INT64, TensorProto.INT32, TensorProto.STRING)
AGREE = 0.999  # share of rows, for scores that are rounded


def keeps_class(scaler: Scaler) -> bool:
    """Whether a map leaves the predicted class of a network as it is."""
    return scaler.preserves_accuracy and scaler.columns > 1


def _predictions(model: Any, name: str, running: Any, rows: Dataset, scores: Array) -> list[Predicted]:
    """Find the outputs that are the class of the largest score.

    Args:
        name: of the output of scores.  running: a session of the graph.  scores: (n, columns), of the rows.
    """
    graph, predicted = model.graph, list[Predicted]()
    k = max(2, scores.shape[1])
    half = 0.5 if scores.min() >= 0 else 0
    class_scores = scores if scores.shape[1] > 1 else np.concatenate([2 * half - scores, scores], axis=1)
    ends = np.sort(class_scores, axis=1)
    apart = ends[:, -1] - ends[:, -2] > 1e-5  # equal scores may fall either way
    top = class_scores.argmax(axis=1)[apart]
    listed = [a for node in graph.node for a in node.attribute if a.name.startswith("classlabels_")]
    for o in graph.output:
        if o.name == name or o.type.WhichOneof("value") != "tensor_type" or o.type.tensor_type.elem_type not in NAMED:
            continue
        [values] = onnx_run.run(running, _feeds(running, rows), [o.name])
        if values.size != len(scores) or not apart.any():
            continue
        flat = values.reshape(-1)[apart]
        votes = {c: Counter(flat[top == c].tolist()).most_common(1)[0] for c in np.unique(top).tolist()}
        if sum(times for _, times in votes.values()) < AGREE * len(flat) or len({v for v, _ in votes.values()}) < len(
            votes
        ):
            continue
        names = next((tuple(a.ints) or tuple(s.decode() for s in a.strings) for a in listed
                      if len(a.ints or a.strings) == k), ())  # fmt: skip
        if any(names and names[c] != value for c, (value, _) in votes.items()) or not names:
            names = tuple(votes[c][0] for c in range(k)) if len(votes) == k else ()
        predicted.append(Predicted(o.name, o.type.tensor_type.elem_type, values.ndim == 2, names))
    return predicted


def _follow(model: Any, name: str, predicted: Predicted, place: Place) -> str:
    """Let a predicted class follow the calibrated scores, or take it out of the graph; return a note."""
    graph, old = model.graph, f"{PREFIX}{predicted.output}_before"
    for node in graph.node:
        for names in (node.input, node.output):
            for i, value_name in enumerate(names):
                if value_name == predicted.output:
                    names[i] = old
    if not predicted.classes or place.flat:
        kept = [o for o in graph.output if o.name != predicted.output]
        del graph.output[:]
        graph.output.extend(kept)
        return f"the output '{predicted.output}' was left out: it is the class before calibration, which may be another"
    stem = f"{PREFIX}{predicted.output}"
    values = [v.encode() if isinstance(v, str) else v for v in predicted.classes]
    graph.initializer.append(helper.make_tensor(f"{stem}_classes", predicted.kind, [len(values)], values))
    nodes = [
        helper.make_node("Cast", [name], [f"{stem}_scores"], to=TensorProto.FLOAT),
        helper.make_node("ArgMax", [f"{stem}_scores"], [f"{stem}_top"], axis=1, keepdims=int(predicted.column)),
        helper.make_node("Gather", [f"{stem}_classes", f"{stem}_top"], [predicted.output], axis=0),
    ]
    graph.node.extend(nodes)
    return f"the output '{predicted.output}' was made the class of the largest calibrated score"


def contradictions(path: Path, rows: Dataset, output: str = "") -> list[str]:
    """List the outputs of a network that are a class, and another one than the largest of its scores."""
    model = onnx_run.read(path)
    name, _ = onnx_graph.find(model, output, path.name)
    running = onnx_run.session(path)
    [scores] = onnx_run.run(running, _feeds(running, rows), [name])
    scores = scores if scores.ndim > 1 else scores[:, None]
    classes = [o.name for o in model.graph.output if o.name != name
               and o.type.WhichOneof("value") == "tensor_type" and o.type.tensor_type.elem_type in NAMED]  # fmt: skip
    told = {one.output for one in _predictions(model, name, running, rows, scores)}
    return [one for one in classes if one not in told]


def _put(model: Any, place: Place, scaler: Scaler, wide: bool, opset: int, name: str) -> None:
    """Insert the calibrator into the graph; its output takes over the name of the value at the place."""
    graph = model.graph
    fresh = f"{PREFIX}before"
    kind = place.kind
    stays = scaler.choice.name == "temperature" and place.scores == "logits"  # z / T, as a fold would give it
    o = GraphOps(scaler.k, np.float64 if wide else np.float32, float(np.finfo(KINDS[kind]).eps), opset, stays)
    working = TensorProto.DOUBLE if wide else TensorProto.FLOAT
    x = Value(o, fresh if not place.before else place.tensor)
    x = o.along("Unsqueeze", 1, 13, x) if place.flat else x
    z = o.cast(x, working) if kind != working else x
    z = target.mapped(o, scaler, z)
    z = o.exp(z) if place.scores == "probabilities" else z
    if scaler.columns == 1:
        z = o.column(z, 1) if place.scores == "probabilities" else o.column(z, 1) - o.column(z, 0)
    z = o.along("Squeeze", 1, 13, z) if place.flat else z
    out = o.cast(z, kind, place.tensor if not place.before else f"{PREFIX}after")
    nodes = list(graph.node)
    if place.before:
        ends = (i for i, node in enumerate(nodes) if node.op_type in onnx_graph.ENDS and place.tensor in node.input)
        index = next(i for i in ends if onnx_graph.leads(nodes, nodes[i], name))
        nodes[index].input[0] = out.name
        nodes[index:index] = o.nodes
    else:
        for node in nodes:
            for names in (node.input, node.output):
                for i, value_name in enumerate(names):
                    if value_name == place.tensor:
                        names[i] = fresh
        nodes += o.nodes
    del graph.node[:]
    graph.node.extend(nodes)
    graph.initializer.extend(o.constants)


def _probabilities(out: Array, place: Place, scaler: Scaler) -> Array:
    out = np.asarray(out, np.float64)
    out = out[:, None] if out.ndim == 1 else out
    if scaler.columns == 1:
        p = out if place.scores == "probabilities" else 1 / (1 + np.exp(-out))
        return np.concatenate([1 - p, p], axis=1)
    return out if _gives(place) == "probabilities" else softmax(out)


def _rounding(raw: Array, expected: Array, place: Place, scaler: Scaler) -> float | None:
    """Estimate the cost of half precision: rounding of the scores before, which a runtime may keep wider, and after.

    None for a network in float32 or wider.
    """
    if KINDS[place.kind] != "float16":
        return None
    exact, generator = np.exp(expected), np.random.default_rng(0)
    unit = np.spacing(np.abs(raw).astype(np.float16)).astype(np.float64)
    before = 0.0
    for _ in range(target.DRAWS):
        z = raw + unit * (generator.random(raw.shape) - 0.5)
        moved = scaler.map(_as_logits(np.clip(z, 0, 1) if place.scores == "probabilities" else z, place, scaler))
        before = max(before, float(np.abs(np.exp(moved) - exact).max()))

    def half(x: Array) -> Array:
        with np.errstate(over="ignore"):
            return x.astype(np.float16).astype(np.float64)

    if place.scores == "probabilities":
        return before + float(np.abs(half(exact) - exact).max())
    plain = scaler.choice.name == "temperature" and scaler.columns > 1
    p = softmax(half(raw * float(scaler.parameters["beta"]) if plain else expected))
    return before + float(np.abs((half(p) if place.before == "Softmax" else p) - exact).max())


def before(
    network: Path, rows: Dataset, scaler: Scaler, output: str, kind: str | None = None
) -> tuple[Array, Callable[[], float | None]]:
    """Return the log-probabilities (n, K) of a network before its calibrator, and a function for the cost of float16.

    Raises:
        InputError: as `ship`.
    """
    model = onnx_run.read(network)
    place = onnx_graph.find(model, output, network.name)[1]
    if place.before:  # a copy of the graph gives it out
        with tempfile.TemporaryDirectory() as name, weights_beside(network, Path(name) / network.name):
            raw = _raw(model, place, Path(name) / network.name, rows, scaler, kind)
    else:
        raw = _scores(onnx_run.session(network), place, rows, scaler, kind)
    given = _given(scaler, raw.shape[1], place.scores)
    logits = _as_logits(raw, place, given)

    return log_softmax(logits), lambda: _rounding(raw, given.map(logits), place, given)


def outputs(path: Path, rows: Dataset, output: str = "") -> Array:
    """Compute the probabilities (n, K) of a network."""
    model = onnx_run.read(path)
    name, place = onnx_graph.find(model, output, path.name)
    running = onnx_run.session(path)
    [out] = onnx_run.run(running, _feeds(running, rows), [name])
    steady(running, name, rows)
    out = np.asarray(out if out.ndim > 1 else out[:, None], np.float64)
    kind = onnx_run.said(path).get(onnx_run.GIVES) or _gives(place) or _held(out)
    if out.shape[1] == 1:
        return np.exp(log_softmax(two_columns(out[:, 0], "probabilities" if kind == "probabilities" else "logits")))
    return out if kind == "probabilities" else softmax(out)
