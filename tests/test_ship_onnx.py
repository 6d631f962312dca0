"""A calibrator put into an ONNX network: run by ONNX Runtime it gives the calibrator's probabilities, or is refused."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import calibcli
from calibcli.calibrators import Scaler
from calibcli.cli.app import main
from calibcli.core.errors import CalibError, InputError, UsageError
from calibcli.ship.target import rounded_up

pytestmark = pytest.mark.extra
if not (importlib.util.find_spec("onnx") and importlib.util.find_spec("onnxruntime")):
    pytest.skip("for the job of extras, which has onnx and onnxruntime", allow_module_level=True)

import onnx  # noqa: E402
import onnxruntime  # noqa: E402
from onnx import TensorProto, helper, numpy_helper  # noqa: E402

INPUTS, N = 12, 300
FLOAT, HALF, DOUBLE, BRIEF = TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE, TensorProto.BFLOAT16
NUMPY = {FLOAT: np.float32, HALF: np.float16, DOUBLE: np.float64}


def rows(folder: Path, k: int) -> tuple[Path, np.ndarray]:
    rng = np.random.default_rng(1)
    x = rng.standard_normal((N, INPUTS)).astype(np.float32)
    np.savez(folder / "rows.npz", x=x, labels=rng.integers(0, k, N))
    return folder / "rows.npz", x


def weights(k: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(2)
    return rng.standard_normal((INPUTS, k)) * 1.5, rng.standard_normal(k)


def network(
    folder: Path,
    k: int,
    end: tuple[str, ...] = (),
    kind: int = FLOAT,
    opset: int = 17,
    extra: tuple[str, ...] = (),
    batch: Any = "rows",
    external: bool = False,
    name: str = "net",
) -> Path:
    """x W + b, then the nodes of `end`, and another output behind those of `extra`."""
    w, b = (a.astype(NUMPY[kind]) for a in weights(k))
    names = ["z", *(f"t{i}" for i in range(len(end)))]
    nodes = [helper.make_node("MatMul", ["x", "w"], ["xw"]), helper.make_node("Add", ["xw", "b"], ["z"])]
    out = kind
    for i, op in enumerate(end):
        attributes: dict[str, Any] = {"axis": 1} if "ax" in op and op != "TopK" else {}
        if op.startswith("Cast"):
            out = {"Cast": DOUBLE, "CastHalf": HALF, "CastBrief": BRIEF}[op]
            attributes = {"to": out}
        if op == "ArgMax":
            out = TensorProto.INT64
        inputs = [names[i], *(["one"] if op == "TopK" else [])]
        outputs = [names[i + 1], *(["places"] if op == "TopK" else [])]
        nodes.append(helper.make_node(op.removesuffix("Half").removesuffix("Brief"), inputs, outputs, **attributes))
    outputs = [helper.make_tensor_value_info(names[-1], out, [batch, None])]
    for op in extra:
        nodes.append(helper.make_node(op, ["z"], [f"also_{op}"], **({"axis": 1} if op == "ArgMax" else {})))
        outputs.append(
            helper.make_tensor_value_info(f"also_{op}", TensorProto.INT64 if op == "ArgMax" else kind, [batch, None])
        )
    constants = [numpy_helper.from_array(w, "w"), numpy_helper.from_array(b, "b")]
    constants += [numpy_helper.from_array(np.array([1]), "one")] if "TopK" in end else []
    x = helper.make_tensor_value_info("x", kind, [batch, INPUTS])
    graph = helper.make_graph(nodes, "net", [x], outputs, constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    model.ir_version = 8
    path = folder / f"{name}.onnx"
    options = {"save_as_external_data": True, "location": f"{name}.bin", "size_threshold": 0} if external else {}
    onnx.save(model, str(path), **options)
    return path


def scaler(spec: str, k: int) -> Scaler:
    z = np.random.default_rng(5).standard_normal((400, k)) * 5
    y = (z / 2.5 + np.random.default_rng(6).gumbel(size=z.shape)).argmax(1)
    return calibcli.fit_scaler(z, y, spec).scaler


def ran(path: Path, x: np.ndarray, name: str | None = None) -> np.ndarray:
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    kind = {"tensor(float)": np.float32, "tensor(float16)": np.float16, "tensor(double)": np.float64}
    found = session.run([name] if name else None, {"x": x.astype(kind[session.get_inputs()[0].type])})[0]
    return np.asarray(found, np.float64)


def softmax(z: np.ndarray) -> np.ndarray:
    e = np.exp(z - z.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


ENDS: dict[tuple[str, ...], str] = {
    (): "logits",
    ("Identity",): "logits",
    ("Softmax",): "probabilities",
    ("LogSoftmax",): "logits",
    ("Softmax", "Identity"): "probabilities",
    ("Softmax", "Cast"): "probabilities",
    ("Identity", "LogSoftmax", "Identity"): "logits",
}
SPECS = ["temperature", "vector", "isotonic", "isotonic_top", "focal", "histogram", "platt", "beta", "bcts"]


@pytest.mark.parametrize("end", ENDS, ids="-".join)
@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("k", [2, 10])
def test_behind_logits_and_before_softmax(k: int, spec: str, end: tuple[str, ...], tmp_path: Path) -> None:
    data, x = rows(tmp_path, k)
    model, one, made = network(tmp_path, k, end), scaler(spec, k), tmp_path / "made.onnx"
    found = calibcli.export(one, "onnx", model=model, data=data, save=made)
    assert found["max_dp"].value <= 1e-6
    z = ran(network(tmp_path, k, name="raw"), x)
    out = ran(made, x)
    p = out if ENDS[end] == "probabilities" else softmax(out)
    assert np.abs(p - np.exp(one.map(z))).max() <= 1e-6
    before, after = onnx.load(model).graph, onnx.load(made).graph
    assert [o.name for o in after.output] == [o.name for o in before.output]
    for n in (1, 7):  # any batch size
        assert np.abs(ran(made, x[:n]) - out[:n]).max() <= 1e-6


def test_a_temperature_is_exact_against_division(tmp_path: Path) -> None:
    data, x = rows(tmp_path, 10)
    one, made = Scaler("temperature", 10, {"beta": np.array(0.25)}), tmp_path / "made.onnx"
    calibcli.export(one, "onnx", model=network(tmp_path, 10), data=data, save=made)
    assert np.array_equal(ran(made, x), ran(tmp_path / "net.onnx", x) / 4)
    said = {p.key: p.value for p in onnx.load(made).metadata_props}
    assert float(said["calib.temperature"]) == 4
    with pytest.raises(InputError, match="holds a calibrator already"):
        calibcli.export(one, "onnx", model=made, data=data, save=tmp_path / "again.onnx")


@pytest.mark.parametrize("opset", [12, 17])
@pytest.mark.parametrize("end", [(), ("Sigmoid",), ("Squeeze",), ("Squeeze", "Sigmoid")], ids="-".join)
@pytest.mark.parametrize("spec", ["temperature", "platt", "isotonic", "top_label"])
def test_two_classes_in_one_column_or_in_none(spec: str, end: tuple[str, ...], opset: int, tmp_path: Path) -> None:
    """(n, 1) and (n,) stay what they are, with or without a Sigmoid behind."""
    x = np.random.default_rng(0).standard_normal((N, INPUTS)).astype(np.float32)
    w = weights(1)[0].astype(np.float32)
    nodes, last = [helper.make_node("MatMul", ["x", "w"], ["z"])], "z"
    for op in end:
        given = {"axes": [1]} if op == "Squeeze" and opset < 13 else {}
        inputs = [last, "one"] if op == "Squeeze" and opset >= 13 else [last]
        nodes.append(helper.make_node(op, inputs, [f"after {op}"], **given))
        last = f"after {op}"
    flat = "Squeeze" in end
    value = helper.make_tensor_value_info
    outputs = [value(last, FLOAT, ["rows"] if flat else ["rows", 1])]
    constants = [numpy_helper.from_array(w, "w"), numpy_helper.from_array(np.array([1]), "one")]
    graph = helper.make_graph(nodes, "net", [value("x", FLOAT, ["rows", INPUTS])], outputs, constants)
    model, made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)]), tmp_path / "made.onnx"
    model.ir_version = 8
    onnx.save(model, str(tmp_path / "net.onnx"))
    before = ran(tmp_path / "net.onnx", x)
    kind = "probabilities" if "Sigmoid" in end else "logits"
    odds = (x @ w)[:, 0]
    y = (np.random.default_rng(1).uniform(size=N) < 1 / (1 + np.exp(-odds / 2))).astype(int)
    fit = calibcli.fit_scaler(before, y, spec, kind=kind)
    np.savez(tmp_path / "rows.npz", x=x, labels=y)
    given = {"data": tmp_path / "rows.npz"}
    calibcli.export(fit, "onnx", model=tmp_path / "net.onnx", save=made, **given)
    out = ran(made, x)
    assert out.shape == before.shape == ((N,) if flat else (N, 1))
    p = out if kind == "probabilities" else 1 / (1 + np.exp(-out))
    assert np.abs(p.ravel() - fit.predict_proba(before)[:, 1]).max() <= 1e-6
    assert np.abs(ran(made, x[:1]) - out[:1]).max() <= 1e-6
    assert calibcli.verify(made, fit, before=tmp_path / "net.onnx", **given).verdict == "pass"


def test_one_column_between_0_and_1_that_no_sigmoid_gives(tmp_path: Path) -> None:
    """Probabilities, or narrow logits: of a calibrator of logits nothing says which."""
    data, _ = rows(tmp_path, 2)
    path = network(tmp_path, 1, name="narrow")
    model = onnx.load(str(path))
    for one, factor in zip(model.graph.initializer, (0.01, 0.0), strict=True):
        one.CopyFrom(numpy_helper.from_array(factor * numpy_helper.to_array(one) + (0 if factor else 0.5), one.name))
    onnx.save(model, str(path))
    rng = np.random.default_rng(5)
    p, y = rng.uniform(0, 1, 500), rng.integers(0, 2, 500)
    given: dict[str, Any] = {"model": path, "data": data, "save": tmp_path / "m.onnx"}
    with pytest.raises(InputError, match="no Sigmoid gives them; the calibrator was fitted on logits"):
        calibcli.export(calibcli.fit_scaler(np.log(p / (1 - p)), y, "platt", kind="logits"), "onnx", **given)
    assert not (tmp_path / "m.onnx").exists()
    calibcli.export(calibcli.fit_scaler(p, y, "platt", kind="probabilities"), "onnx", **given)


@pytest.mark.parametrize("opset", [11, 12, 13, 18, 21])
@pytest.mark.parametrize("spec", ["isotonic", "platt", "vector", "focal_temperature", "isotonic_top"])
def test_opsets(spec: str, opset: int, tmp_path: Path) -> None:
    data, _ = rows(tmp_path, 5)
    made = tmp_path / "made.onnx"
    model = network(tmp_path, 5, ("Softmax",), opset=opset)
    found = calibcli.export(scaler(spec, 5), "onnx", model=model, data=data, save=made)
    assert found["max_dp"].value <= 1e-6


def test_an_opset_that_is_too_old(tmp_path: Path) -> None:
    data, _ = rows(tmp_path, 5)
    with pytest.raises(InputError, match="opset 9") as refused:
        calibcli.export(
            scaler("vector", 5), "onnx", model=network(tmp_path, 5, opset=9), data=data, save=tmp_path / "made.onnx"
        )
    assert "version_converter" in refused.value.fix


@pytest.mark.parametrize("end", [(), ("Softmax",), ("Softmax", "CastHalf")], ids="-".join)
@pytest.mark.parametrize("spec", ["temperature", "vector", "isotonic"])
def test_half_precision(spec: str, end: tuple[str, ...], tmp_path: Path) -> None:
    data, x = rows(tmp_path, 10)
    made, one = tmp_path / "made.onnx", scaler(spec, 10)
    found = calibcli.export(one, "onnx", model=network(tmp_path, 10, end, HALF), data=data, save=made)
    assert found["max_dp"].value <= found.facts["limit"] == rounded_up(2 * found.facts["rounding alone costs"]) <= 5e-2
    z = ran(network(tmp_path, 10, kind=HALF, name="raw"), x)
    out = ran(made, x)
    assert np.abs((out if end else softmax(out)) - np.exp(one.map(z))).max() <= found.facts["limit"]
    before = network(tmp_path, 10, end, HALF)
    again = calibcli.verify(made, one, data, before=before)
    assert again.verdict == "pass"
    assert again.facts["rounding alone costs"] == found.facts["rounding alone costs"]
    other = calibcli.verify(made, scaler("platt", 10), data, before=before)
    assert other.verdict == "fail"


def test_double(tmp_path: Path) -> None:
    data, _ = rows(tmp_path, 10)
    model = network(tmp_path, 10, kind=DOUBLE)
    found = calibcli.export(scaler("matrix:lam=1,mu=1", 10), "onnx", model=model, data=data, save=tmp_path / "m.onnx")
    assert found["max_dp"].value <= found.facts["limit"] == 1e-9


@pytest.mark.parametrize(
    ("end", "said"), [(("ArgMax",), "ArgMax"), (("Softmax", "TopK"), "TopK")], ids=["ArgMax", "TopK"]
)
def test_ends_that_lose_the_scores(end: tuple[str, ...], said: str, tmp_path: Path) -> None:
    data, _ = rows(tmp_path, 5)
    with pytest.raises(InputError, match=f"comes from {said}, which leaves no scores"):
        calibcli.export(
            scaler("vector", 5), "onnx", model=network(tmp_path, 5, end), data=data, save=tmp_path / "made.onnx"
        )
    assert not (tmp_path / "made.onnx").exists()


def test_bfloat16_outputs_are_refused_by_name(tmp_path: Path) -> None:
    data, _ = rows(tmp_path, 5)
    for end in (("CastBrief",), ("Softmax", "CastBrief")):
        model, one = network(tmp_path, 5, end), scaler("vector", 5)
        with pytest.raises(InputError, match=r"output 't\d' of net.onnx is bfloat16") as refused:
            calibcli.export(one, "onnx", model=model, data=data, save=tmp_path / "made.onnx")
        assert "Cast to float32" in refused.value.fix
    assert not (tmp_path / "made.onnx").exists()


def test_several_outputs(tmp_path: Path) -> None:
    data, x = rows(tmp_path, 5)
    given: dict[str, Any] = {"data": data, "save": tmp_path / "made.onnx"}
    one = scaler("vector", 5)
    model = network(tmp_path, 5, ("Softmax",), extra=("ArgMax", "Relu"))
    with pytest.raises(UsageError, match=r"2 outputs of floats \(t0, also_Relu\)") as refused:
        calibcli.export(one, "onnx", model=model, **given)
    assert "to='onnx:output=NAME'" in refused.value.fix
    with pytest.raises(UsageError, match="has no output 'nope'"):
        calibcli.export(one, "onnx:output=nope", model=model, **given)
    calibcli.export(one, "onnx:output=t0", model=model, **given)
    raw = ran(network(tmp_path, 5, name="raw"), x)
    assert np.abs(ran(tmp_path / "made.onnx", x, "t0") - np.exp(one.map(raw))).max() <= 1e-6
    assert np.array_equal(ran(tmp_path / "made.onnx", x, "also_Relu"), np.maximum(raw, 0))  # the others stay
    predicted = ran(tmp_path / "made.onnx", x, "t0").argmax(1)
    assert np.array_equal(ran(tmp_path / "made.onnx", x, "also_ArgMax")[:, 0], predicted)  # the class of these scores
    assert (
        calibcli.verify(tmp_path / "made.onnx", one, data, before=model).verdict == "pass"
    )  # of the output that it is on


def test_weights_beside_the_model(tmp_path: Path) -> None:
    """They are not read into memory, follow into another folder, and replace nothing there."""
    data, x = rows(tmp_path, 5)
    model, one = network(tmp_path, 5, external=True), scaler("temperature", 5)
    z = ran(model, x)
    other = tmp_path / "other"
    other.mkdir()
    for folder in (tmp_path, other):
        calibcli.export(one, "onnx", model=model, data=data, save=folder / "made.onnx")
        assert np.abs(softmax(ran(folder / "made.onnx", x)) - np.exp(one.map(z))).max() <= 1e-6
        assert (folder / "made.onnx").stat().st_size < 4000
    assert sorted(p.name for p in other.iterdir()) == ["made.onnx", "net.bin"]
    third = tmp_path / "third"
    third.mkdir()
    (third / "net.bin").write_bytes(b"mine")
    with pytest.raises(UsageError, match="would be replaced"):
        calibcli.export(one, "onnx", model=model, data=data, save=third / "made.onnx")
    assert (third / "net.bin").read_bytes() == b"mine"
    assert not (third / "made.onnx").exists()
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(CalibError):  # beyond its limit: the weights that were brought go as well
        calibcli.export(scaler("vector", 5), "onnx", model=model, data=data, save=empty / "made.onnx", tolerance=1e-15)
    assert not list(empty.iterdir())
    (tmp_path / "net.bin").unlink()
    with pytest.raises(InputError, match=r"net\.bin, the weights of net\.onnx, are not there"):
        calibcli.export(one, "onnx", model=model, data=data, save=other / "again.onnx")


@pytest.mark.slow
def test_two_gigabytes_beside_the_model_stay_on_disk(tmp_path: Path) -> None:
    """A sparse file of 2.4 GB: linked, not copied; only ONNX Runtime reads it."""
    data, x = rows(tmp_path, 5)
    path, size = network(tmp_path, 5), 2_400_000_000
    model = onnx.load(str(path))
    table = TensorProto(name="table", data_type=FLOAT, dims=[size // 20, 5], data_location=TensorProto.EXTERNAL)
    for key, value in (("location", "table.bin"), ("offset", "0"), ("length", str(size))):
        table.external_data.add(key=key, value=value)
    model.graph.initializer.append(table)
    model.graph.initializer.append(numpy_helper.from_array(np.array([7]), "at"))
    model.graph.node[-1].output[0] = "inner"
    model.graph.node.append(helper.make_node("Gather", ["table", "at"], ["row"], axis=0))
    model.graph.node.append(helper.make_node("Add", ["inner", "row"], ["z"]))
    path.write_bytes(model.SerializeToString())
    with (tmp_path / "table.bin").open("wb") as file:
        file.truncate(size)
    other = tmp_path / "other"
    other.mkdir()
    one = scaler("vector", 5)
    calibcli.export(one, "onnx", model=path, data=data, save=other / "made.onnx")
    assert (other / "table.bin").stat().st_size == size
    assert (other / "table.bin").samefile(tmp_path / "table.bin")
    assert (other / "made.onnx").stat().st_size < 4000
    assert np.abs(softmax(ran(other / "made.onnx", x)) - np.exp(one.map(ran(path, x)))).max() <= 1e-6


def test_weights_outside_the_folder_are_refused(tmp_path: Path) -> None:
    data, _ = rows(tmp_path, 5)
    path = network(tmp_path, 5, external=True)
    model = onnx.load(str(path), load_external_data=False)
    for t in model.graph.initializer:
        for e in t.external_data:
            e.value = "../../etc/passwd" if e.key == "location" else e.value
    path.write_bytes(model.SerializeToString())
    with pytest.raises(InputError, match="outside its folder"):
        calibcli.export(scaler("temperature", 5), "onnx", model=path, data=data, save=tmp_path / "made.onnx")


def test_damaged_files(tmp_path: Path) -> None:
    data, _ = rows(tmp_path, 5)
    path = network(tmp_path, 5)
    whole = path.read_bytes()
    for cut in (0, 1, 40, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:cut])
        with pytest.raises(InputError):
            calibcli.export(scaler("temperature", 5), "onnx", model=path, data=data, save=tmp_path / "made.onnx")
        assert not (tmp_path / "made.onnx").exists()
    path.write_bytes(b"not a model\n" * 30)
    with pytest.raises(InputError):
        calibcli.export(scaler("temperature", 5), "onnx", model=path, data=data, save=tmp_path / "made.onnx")


@pytest.mark.parametrize("batch", [1, 7])
@pytest.mark.parametrize("end", [(), ("Softmax",)], ids="-".join)
def test_a_batch_size_that_is_written_in(batch: int, end: tuple[str, ...], tmp_path: Path) -> None:
    data, x = rows(tmp_path, 5)
    one, model = scaler("isotonic", 5), network(tmp_path, 5, end, batch=batch)
    found = calibcli.export(one, "onnx", model=model, data=data, save=tmp_path / "m.onnx")
    assert found["max_dp"].n == len(x)
    raw = ran(network(tmp_path, 5, name="raw"), x[:batch])
    out = ran(tmp_path / "m.onnx", x[:batch])
    assert np.abs((out if end else softmax(out)) - np.exp(one.map(raw))).max() <= 1e-6
    assert calibcli.verify(tmp_path / "m.onnx", one, data, before=model).verdict == "pass"


def test_names_with_newlines(tmp_path: Path) -> None:
    data, x = rows(tmp_path, 3)
    path = network(tmp_path, 3)
    model = onnx.load(str(path))
    model.graph.output[0].name = model.graph.node[-1].output[0] = "a\nb c"
    onnx.save(model, str(path))
    one = scaler("vector", 3)
    calibcli.export(one, "onnx", model=path, data=data, save=tmp_path / "made.onnx")
    assert np.abs(softmax(ran(tmp_path / "made.onnx", x)) - np.exp(one.map(ran(path, x)))).max() <= 1e-6


@pytest.mark.parametrize("method", ["platt", "isotonic", "temperature"])
@pytest.mark.parametrize("base", ["logistic", "pipeline", "svc", "binary logistic", "binary svc"])
def test_scikit_learn_models(base: str, method: str, tmp_path: Path) -> None:
    """Where the usual converter of a calibrated classifier is off by .086 to 1, or fails."""
    pytest.importorskip("skl2onnx")
    from skl2onnx import convert_sklearn
    from skl2onnx.common.data_types import FloatTensorType
    from sklearn.datasets import load_digits
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler
    from sklearn.svm import LinearSVC

    x, y = load_digits(return_X_y=True)
    x, y = x.astype(np.float32), (y == 3).astype(int) if "binary" in base else y
    made = {
        "logistic": LogisticRegression(max_iter=200),
        "pipeline": make_pipeline(StandardScaler(), LogisticRegression(max_iter=200)),
        "svc": LinearSVC(max_iter=300),
    }[base.removeprefix("binary ")].fit(x[:800], y[:800])
    path = tmp_path / "base.onnx"
    kinds = [("x", FloatTensorType([None, 64]))]
    path.write_bytes(
        convert_sklearn(
            made,
            initial_types=kinds,
            options={id(made): {"zipmap": False}} if "svc" not in base else {},
            target_opset=17,
        ).SerializeToString()
    )
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    name = session.get_outputs()[1].name
    scores = [session.run([name], {"x": x[part]})[0] for part in (slice(800, 1300), slice(1300, None))]
    kind = "logits" if "svc" in base else "probabilities"
    fit = calibcli.fit_scaler(scores[0], y[800:1300], method, kind=kind)
    np.savez(tmp_path / "rows.npz", x=x[1300:], labels=y[1300:])
    out = tmp_path / "made.onnx"
    found = calibcli.export(fit, f"onnx:output={name}", model=path, data=tmp_path / "rows.npz", save=out)
    assert found["max_dp"].value <= 1e-6
    got = ran_x(out, x[1300:], name)
    p = got if kind == "probabilities" else softmax(got if got.shape[1] > 1 else np.concatenate([0 * got, got], 1))
    assert np.abs(p - fit.predict_proba(scores[1])).max() <= (1e-6 if kind == "logits" else 5e-6)


def ran_x(path: Path, x: np.ndarray, name: str) -> np.ndarray:
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return np.asarray(session.run([name], {"x": x})[0], np.float64)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, _ = rows(tmp_path, 3)
    path = network(tmp_path, 3)
    calibcli.save_scaler(scaler("platt", 3), tmp_path / "c.safetensors")
    argv = ["export", str(tmp_path / "c.safetensors"), "--to", "onnx", "--model", str(path), "--data", str(data)]
    assert main([*argv, "-o", str(tmp_path / "made.onnx"), "--json"]) == 0
    assert '"max_dp"' in capsys.readouterr().out
    assert main([*argv, "-o", str(tmp_path / "b.onnx"), "--tolerance", "1e-15", "-q"]) == 4
    assert "max|dp| = " in capsys.readouterr().err
    assert not (tmp_path / "b.onnx").exists()
