"""Every method in every target: max|dp| against the calibrator in float64, or the refusal and what it names instead.

    python benchmarks/ship.py                  pairs of digits (100 classes), and two groups of them
    python benchmarks/ship.py --data FILE|DIR  recorded scores of 100 classes, and two groups of them
    python benchmarks/ship.py --classes 3,10   other numbers of groups
    python benchmarks/ship.py --only onnx      one target
    python benchmarks/ship.py --methods platt  one method

Each method is fitted on one half of the rows and exported with 1,000 of the other, fifty of them with a class of
probability zero where they are not a network's. Networks (`checkpoint`, `inside`) get these logits by a linear layer of
weights at random, stored in float32, float16 and bfloat16. In brackets, where rounding alone costs more than 1e-6: the
limit, and the predicted classes that changed. What is beyond its limit is not written, which maps with steps in half
precision may be; elsewhere the script fails. Targets whose package is not installed are left out.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import _harness  # before NumPy, which it holds to one thread
import numpy as np
from _harness import ROOT, head, installed, row

import calibcli
from calibcli.calibrators import SCALERS, Scaler
from calibcli.core.errors import CalibError
from calibcli.scores.likelihood import log_softmax
from calibcli.scores.predictions import Predictions

ROWS, SAMPLES = 1000, ROOT / "sample_data"
OPTIONS = {"matrix": ":lam=100,mu=100", "dirichlet": ":lam=100,mu=100"}  # chosen here: their search takes minutes
VARIANTS = ["histogram:of=top", "focal_temperature:order=phi-T", "top_label:by=isotonic"]
HALF = ("float16", "bfloat16")
LEAD = """Does a calibrator that `calib export` writes give the probabilities that it gives in Python? Each method
(line) is written to each target (column) and run there. A cell has the largest difference of a probability from the
calibrator in float64, over 1,000 rows. In brackets, where rounding alone makes more than 1e-6 unavoidable: the limit,
which is the largest difference that rounding may cause, and the number of rows whose predicted class changed.
*refused*: this target cannot hold the method. *beyond*: the difference is above the limit. Of both no file is
written, and the message says what to use instead."""


def recorded(place: str | None) -> tuple[Any, Any, str]:
    """Logits of 100 classes, labels, and where they come from."""
    if place is not None:
        files = sorted(Path(place).glob("*.npz")) if os.path.isdir(place) else [Path(place)]
        for file in files:
            try:
                rows = calibcli.read(file)
            except CalibError:  # images, curves
                continue
            if rows.k == 100:
                order = np.random.default_rng(0).permutation(rows.n)
                return log_softmax(rows.logits[order].astype(float)), rows.labels[order], file.name
        raise SystemExit(f"no scores of 100 classes in {place}")
    with np.load(SAMPLES / "test.npz") as held:
        z, y = log_softmax(held["logits"].astype(float)), held["labels"]
    rng = np.random.default_rng(0)
    i, j = rng.integers(0, len(z), (2, 4 * ROWS))
    return (z[i][:, :, None] + z[j][:, None, :]).reshape(4 * ROWS, 100), 10 * y[i] + y[j], "pairs of test.npz"


def grouped(z: Any, y: Any, k: int) -> tuple[Any, Any]:
    """The same rows of k classes, each a range of the hundred."""
    if k == z.shape[1]:
        return z, y
    ranges = np.array_split(np.arange(z.shape[1]), k)
    which = np.repeat(np.arange(k), [len(one) for one in ranges])
    return np.stack([np.logaddexp.reduce(z[:, one], axis=1) for one in ranges], axis=1), which[y]


def turn(k: int) -> Any:
    """A rotation of the logits."""
    return np.linalg.qr(np.random.default_rng(1).standard_normal((k, k)))[0]


def network(folder: Path, k: int, z: Any, dtype: str) -> Path:
    """A checkpoint of one layer that gives these logits; its inputs are in rows.npz."""
    import torch
    from safetensors.torch import save_file

    kept = {"1.weight": torch.from_numpy(turn(k)), "1.bias": torch.zeros(k)}
    (folder / "net.py").write_text(
        f"from torch import nn\ndef make():\n    return nn.Sequential(nn.Flatten(), nn.Linear({k}, {k}))\n"
    )
    save_file({name: t.to(getattr(torch, dtype)) for name, t in kept.items()}, folder / f"{dtype}.safetensors")
    np.savez(folder / "rows.npz", x=(z @ turn(k)).astype(np.float32), labels=np.arange(len(z)) % k)
    return folder / f"{dtype}.safetensors"


def graph(folder: Path, k: int, end: str, kind: str) -> Path:
    """The same layer in ONNX, with nothing or a Softmax behind it."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    form = {"float32": TensorProto.FLOAT, "float16": TensorProto.FLOAT16}[kind]
    nodes = [helper.make_node("MatMul", ["x", "w"], ["z"])]
    nodes += [helper.make_node(end, ["z"], ["p"], axis=1)] if end else []
    x, out = (helper.make_tensor_value_info(name, form, ["n", k]) for name in ("x", "p" if end else "z"))
    made = helper.make_graph(nodes, "net", [x], [out], [numpy_helper.from_array(turn(k).T.astype(kind), "w")])
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    path = folder / f"{end or 'logits'}-{kind}.onnx"
    onnx.save(model, str(path))
    return path


def targets(folder: Path, z: Any, y: Any, only: str) -> dict[str, Callable[[Scaler, int], Any]]:
    """What exports a calibrator into each column of the table."""
    k = z.shape[1]
    cut = z.astype(np.float32)
    cut[np.arange(50), (y[:50] + 1) % k] = -np.inf
    rows, wide = Predictions.of(cut, y), z - z.mean(axis=1, keepdims=True)
    made: dict[str, Callable[[Scaler, int], Any]] = {}

    def alone(target: str, suffix: str) -> Callable[[Scaler, int], Any]:
        return lambda one, i: calibcli.export(one, target, data=rows, save=folder / f"{i}{target}{suffix}")

    def inside(target: str, suffix: str, model: Path, **how: Any) -> Callable[[Scaler, int], Any]:
        name, how = f"{target}{model.stem}{suffix}", {"model": model, "data": folder / "rows.npz", **how}
        return lambda one, i: calibcli.export(one, target, save=folder / f"{i}{name}", **how)

    for dtype in ("float32", *HALF):
        model = network(folder, k, wide, dtype)
        made[f"checkpoint {dtype}"] = inside("checkpoint", ".safetensors", model, arch_file=f"{folder}/net.py:make")
    if installed("onnx", "onnxruntime"):
        made["onnx"] = alone("onnx", ".onnx")
        for end, kind in (("", "float32"), ("Softmax", "float32"), ("", "float16"), ("Softmax", "float16")):
            made[f"onnx inside, {end or 'logits'} {kind}"] = inside("onnx", ".onnx", graph(folder, k, end, kind))
    made |= {"pt2": alone("pt2", ".pt2"), "torchscript": alone("torchscript", ".pt")}
    made |= {"json, py, js, c": alone("json", ".json"), "sklearn pkl": alone("sklearn", ".pkl")}
    if installed("skops"):
        made["sklearn skops"] = alone("sklearn", ".skops")
    made["vllm"] = alone("vllm", ".json")
    return {name: write for name, write in made.items() if name.startswith(only)}


def cell(write: Callable[[Scaler, int], Any], one: Scaler, i: int) -> tuple[str, str]:
    """What the table says, and what a refusal names instead."""
    try:
        found = write(one, i)
    except CalibError as error:
        if far := re.search(r"max\|dp\| = (\S+)", error.problem):
            return f"beyond ({far[1]})", error.fix
        return "refused", error.fix
    said = f"{found['max_dp'].value:.1e}" if found["max_dp"].value else "0"
    if "rounding alone costs" in found.facts:
        said += f" ({found.facts['limit']:.1e}, {found.facts['predicted classes changed']})"
    elif one.preserves_accuracy and found.facts["predicted classes changed"]:
        said += f" ({found.facts['predicted classes changed']} CHANGED)"
    return said, ""


def table(name: str, z: Any, y: Any, only: str, methods: str) -> int:
    """One table; the number of cells that are beyond their limit."""
    half = len(z) // 2
    rows = Predictions.of(z[half:][: 4 * ROWS], y[half:][: 4 * ROWS])
    specs = [spec for spec in [e.name + OPTIONS.get(e.name, "") for e in SCALERS] + VARIANTS if methods in spec]
    fits = {spec: calibcli.fit_scaler(rows, spec=spec).scaler for spec in specs}
    with tempfile.TemporaryDirectory() as folder:
        columns = targets(Path(folder), z[:ROWS], y[:ROWS], only)
        print(f"\n{name}\n\n{head('method', *columns)}")
        instead, bad, where = Counter[tuple[str, str]](), 0, dict[tuple[str, str], list[str]]()
        far = {False: 0.0, True: 0.0}  # without and with numbers of 16 bits
        for i, (spec, one) in enumerate(fits.items()):
            cells = {column: cell(write, one, i) for column, write in columns.items()}
            bad += sum("CHANGED" in said or ("beyond" in said and "16" not in c) for c, (said, _) in cells.items())
            for c, (said, fix) in cells.items():
                if fix:
                    instead[why := (said.partition(" ")[0], fix)] += 1
                    where.setdefault(why, []).append(c)
                else:
                    far["16" in c] = max(far["16" in c], float(said.split()[0]))
            print(row(f"`{spec}`", *(said for said, _ in cells.values())), flush=True)
    print(f"\nLargest difference: {far[False]:.1e}; with numbers of 16 bits {far[True]:.1e}.")
    for (said, fix), count in instead.most_common():
        print(f"\n{count} {said} ({'; '.join(c for c in columns if c in where[said, fix])}): {fix}")
    return bad


def main() -> int:
    given = _harness.arguments(__doc__, data=str, classes="2,100", only="", methods="")
    start, bad = time.monotonic(), 0
    z, y, where = recorded(given.data)
    print(LEAD)
    for k in map(int, given.classes.split(",")):
        of = "" if k == z.shape[1] else f", in {k} groups"
        bad += table(f"{k} classes ({where}{of})", *grouped(z, y, k), given.only, given.methods)
    print(f"\n{bad} wrong: beyond the limit where no number has 16 bits, or another class where the method keeps it.")
    print(f"{time.monotonic() - start:.0f} s")
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
