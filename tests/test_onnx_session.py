"""ONNX graphs as models: logits as NumPy computes them, and graphs and rows that do not fit each other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from calibcli.cli.app import main
from calibcli.core.errors import Exit, InputError
from calibcli.networks import checkpoint

RNG = np.random.default_rng(0)
W = RNG.normal(size=(12, 3)).astype(np.float32)
X = RNG.normal(size=(10, 3, 2, 2)).astype(np.float32)
Y = [0, 1, 2, 0, 1, 2, 0, 1, 2, 2]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    np.savez("d.npz", x=X, y=Y)


def graph(name: str, nodes: list[Any], inputs: Any, outputs: Any, weights: dict[str, Any], **how: Any) -> None:
    """Write a graph; inputs and outputs are (name, type, shape)."""
    import onnx
    from onnx import helper

    values = [[helper.make_tensor_value_info(*one) for one in side] for side in (inputs, outputs)]
    held = [onnx.numpy_helper.from_array(value, key) for key, value in weights.items()]
    made = helper.make_graph([helper.make_node(*node[:3], **node[3]) for node in nodes], "g", *values, held)
    opset = helper.make_opsetid("", 17)
    onnx.save(helper.make_model(made, opset_imports=[opset], ir_version=8), name, **how)


LINEAR = [("Flatten", ["x"], ["f"], {}), ("MatMul", ["f", "w"], ["logits"], {})]


def linear(name: str = "m.onnx", rows: Any = "n", kind: int = 1, **how: Any) -> None:
    types = {1: np.float32, 10: np.float16, 11: np.float64}
    sides = [("x", kind, [rows, 3, 2, 2])], [("logits", kind, [rows, 3])]
    graph(name, LINEAR, *sides, {"w": W.astype(types[kind])}, **how)


def run(*args: str) -> Any:
    assert main(["logits", *args, "--save", "o.npz", "-q"]) == Exit.OK
    with np.load("o.npz") as file:
        return file["logits"]


@pytest.mark.extra
@pytest.mark.parametrize("rows", ["n", 1, 4, 64])
@pytest.mark.parametrize(("kind", "close"), [(1, 1e-5), (10, 2e-2), (11, 1e-5)])
def test_any_number_of_rows_in_any_precision(rows: Any, kind: int, close: float) -> None:
    linear(rows=rows, kind=kind)
    for size in ("256", "3"):
        np.testing.assert_allclose(
            run("m.onnx", "--data", "d.npz", "--batch-size", size), X.reshape(10, 12) @ W, atol=close
        )


@pytest.mark.extra
def test_inputs_by_name_and_outputs_beside_the_logits() -> None:
    table = RNG.normal(size=(9, 3)).astype(np.float32)
    nodes = [
        ("Gather", ["table", "input_ids"], ["rows"], {}),
        ("Cast", ["attention_mask"], ["m"], {"to": 1}),
        ("Unsqueeze", ["m", "last"], ["m3"], {}),
        ("Mul", ["rows", "m3"], ["kept"], {}),
        ("ReduceSum", ["kept", "first"], ["logits"], {"keepdims": 0}),
    ]
    inputs = [(name, 7, ["n", "t"]) for name in ("input_ids", "attention_mask")]
    outputs = [("kept", 1, ["n", "t", 3]), ("logits", 1, ["n", 3])]
    graph("m.onnx", nodes, inputs, outputs, {"table": table, "last": np.array([2]), "first": np.array([1])})
    ids, mask = RNG.integers(0, 9, (10, 5)), (np.arange(5) < RNG.integers(1, 6, 10)[:, None]).astype(int)
    np.savez("t.npz", input_ids=ids, attention_mask=mask, token_type_ids=ids, labels=Y)
    wanted = (table[ids] * mask[:, :, None]).sum(1)
    np.testing.assert_allclose(run("m.onnx", "--data", "t.npz"), wanted, atol=1e-5)
    np.savez("t.npz", input_ids=ids, labels=Y)
    with pytest.raises(InputError, match="takes 'attention_mask', which the rows do not have"):
        run_raw("m.onnx", "t.npz")
    with pytest.raises(InputError, match="takes input_ids, attention_mask, and the rows have one input without a name"):
        run_raw("m.onnx", "d.npz")
    np.savez("t.npz", input_ids=np.full((10, 5), 99), attention_mask=mask, labels=Y)
    with pytest.raises(InputError, match="does not take these rows"):
        run_raw("m.onnx", "t.npz")


def run_raw(model: str, data: str) -> None:
    from calibcli.networks import inference

    loaded = checkpoint.load(model)
    inference.check(loaded.open_data(data), loaded.model)


@pytest.mark.extra
def test_what_does_not_fit_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    linear()
    np.savez("large.npz", x=np.zeros((10, 3, 5, 5), np.float32), y=Y)
    with pytest.raises(InputError, match="Got invalid dimensions") as caught:
        run_raw("m.onnx", "large.npz")
    assert "x (N, 3, 2, 2)" in caught.value.fix
    np.savez("bytes.npz", x=RNG.integers(0, 256, (10, 7, 5, 3)).astype(np.uint8), y=Y)
    assert run("m.onnx", "--data", "bytes.npz", "--resize", "2x2", "--mean", "0.5", "--std", "0.5").shape == (10, 3)
    Path("junk.onnx").write_bytes(b"\x08\x07junk")
    with pytest.raises(InputError, match="not a readable ONNX graph"):
        checkpoint.load("junk.onnx")
    graph("two.onnx", LINEAR, [("x", 1, ["n", 3, 2, 2])], [("f", 1, ["n", 12]), ("logits", 1, ["n", 3])], {"w": W})
    assert checkpoint.load("two.onnx").container == "ONNX graph"
    nodes = [LINEAR[0], ("MatMul", ["f", "w"], ["a"], {}), ("Neg", ["a"], ["b"], {})]
    graph("odd.onnx", nodes, [("x", 1, ["n", 3, 2, 2])], [("a", 1, ["n", 3]), ("b", 1, ["n", 3])], {"w": W})
    with pytest.raises(InputError, match="several outputs of numbers") as caught:
        checkpoint.load("odd.onnx")
    assert "named logits" in caught.value.fix
    from skl2onnx import to_onnx
    from sklearn.linear_model import LogisticRegression

    flat = X.reshape(10, 12)
    classifier = LogisticRegression().fit(flat, Y)
    Path("maps.onnx").write_bytes(to_onnx(classifier, flat).SerializeToString())
    with pytest.raises(InputError, match="no output of numbers") as caught:
        checkpoint.load("maps.onnx")
    options = {"zipmap": False, "raw_scores": True}
    assert str(options) in caught.value.fix
    Path("raw.onnx").write_bytes(to_onnx(classifier, flat, options={id(classifier): options}).SerializeToString())
    np.savez("flat.npz", x=flat, y=Y)
    np.testing.assert_allclose(run("raw.onnx", "--data", "flat.npz"), classifier.decision_function(flat), atol=1e-5)
    nodes = [*LINEAR[:1], ("MatMul", ["f", "w"], ["a"], {}), ("Softmax", ["a"], ["b"], {})]
    graph("p.onnx", nodes, [("x", 1, ["n", 3, 2, 2])], [("b", 1, ["n", 3])], {"w": W})
    with pytest.raises(InputError, match="outputs are probabilities"):
        run_raw("p.onnx", "d.npz")
    for command in ("curvature", "fit"):
        assert main([command, "m.onnx", "--data", "d.npz"]) == Exit.REFUSED
        assert "has no gradients" in capsys.readouterr().err


@pytest.mark.extra
def test_weights_beside_the_graph_and_nowhere_else() -> None:
    import onnx

    linear(save_as_external_data=True, location="m.onnx.data", size_threshold=0)
    np.testing.assert_allclose(run("m.onnx", "--data", "d.npz"), X.reshape(10, 12) @ W, atol=1e-5)
    before = checkpoint.load("m.onnx").sha256
    data = bytearray(Path("m.onnx.data").read_bytes())
    data[0] ^= 1
    Path("m.onnx.data").write_bytes(bytes(data))
    assert checkpoint.load("m.onnx").sha256 != before
    made = onnx.load("m.onnx", load_external_data=False)
    for entry in made.graph.initializer[0].external_data:
        entry.value = "../secret" if entry.key == "location" else entry.value
    Path("../secret").write_bytes(W.tobytes())
    Path("m.onnx").write_bytes(made.SerializeToString())
    with pytest.raises(InputError, match="not a readable ONNX graph"):
        checkpoint.load("m.onnx")


@pytest.mark.extra
def test_inspect(capsys: pytest.CaptureFixture[str]) -> None:
    linear()
    assert main(["inspect", "m.onnx", "--json"]) == Exit.OK
    facts = json.loads(capsys.readouterr().out)["facts"]
    assert (facts["what"], facts["inputs"], facts["used_by"]) == ("an ONNX graph", "x float (N, 3, 2, 2)", "logits")


@pytest.mark.extra
def test_a_graph_in_a_folder_of_transformers() -> None:
    """As exporters write it: `config.json`, the image processor and the tokenizer lie beside it and are obeyed."""
    import transformers

    image = pytest.importorskip("PIL.Image")
    graph("m.onnx", LINEAR, [("x", 1, ["n", 3, 2, 2])], [("logits", 1, ["n", 3])], {"w": W})
    names = {0: "cat", 1: "ant", 2: "bee"}
    config = transformers.ViTConfig(id2label=names, label2id={v: k for k, v in names.items()})
    config.architectures = ["ViTForImageClassification"]
    config.save_pretrained(".")
    processor = transformers.ViTImageProcessor(size={"height": 2, "width": 2})
    processor.save_pretrained(".")
    pictures = []
    for name in ("ant", "bee", "cat"):
        Path("pics", name).mkdir(parents=True)
        pictures.append(image.fromarray(RNG.integers(0, 256, (9, 8, 3)).astype(np.uint8)))
        pictures[-1].save(f"pics/{name}/0.png")
    rows = np.asarray(processor(images=pictures, return_tensors="pt")["pixel_values"])
    np.testing.assert_allclose(run("m.onnx", "--data", "pics"), rows.reshape(3, 12) @ W, atol=1e-5)
    with np.load("o.npz") as file:
        assert file["labels"].tolist() == [1, 2, 0]


def test_without_onnxruntime(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "onnxruntime", None)
    Path("m.onnx").write_bytes(b"\x08\x07")
    with pytest.raises(InputError, match="onnxruntime is not installed") as caught:
        checkpoint.load("m.onnx")
    assert "pip install onnx onnxruntime" in caught.value.fix


@pytest.mark.extra
@pytest.mark.regression
@pytest.mark.parametrize("columns", [1, 2, 3])
def test_scores_that_contradict_the_class_of_the_graph_are_refused(columns: int) -> None:
    """As converters write decision values of the opposite sign, or of pairs of classes, beside the predicted class."""
    x = np.random.default_rng(1).normal(size=(40, 12)).astype(np.float32)
    np.savez("forty.npz", x=x, y=np.arange(40) % max(2, columns))
    w, kind = W[:, :columns], 7

    def with_class(sign: float, shift: int) -> None:
        score = [("MatMul", ["x", "w"], ["logits"], {}), ("Mul", ["logits", "sign"], ["turned"], {})]
        if columns == 1:
            told = [("Greater", ["turned", "zero"], ["above"], {}), ("Cast", ["above"], ["top"], {"to": kind})]
        else:
            told = [("ArgMax", ["turned"], ["top"], {"axis": 1, "keepdims": 0})]
        held = {
            "w": w,
            "sign": np.array([sign], np.float32),
            "zero": np.zeros(1, np.float32),
            "shift": np.array([shift]),
        }
        nodes = [*score, *told, ("Add", ["top", "shift"], ["label"], {})]
        shape = ["n", 1] if columns == 1 else ["n"]
        graph("c.onnx", nodes, [("x", 1, ["n", 12])], [("label", kind, shape), ("logits", 1, ["n", columns])], held)

    with_class(1, 0)
    np.testing.assert_allclose(run("c.onnx", "--data", "forty.npz")[:, -1], (x @ w)[:, -1], atol=1e-5)
    with_class(-1, 0)
    with pytest.raises(InputError, match="contradicts itself: its output 'label' is the class of its largest score in"):
        run_raw("c.onnx", "forty.npz")
    with_class(-1, 7)  # numbers that are no class of these scores say nothing about them
    run_raw("c.onnx", "forty.npz")
