"""Runs that meet: two in one folder, pipes as checkpoints, damaged programs, graphs without an end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import calibcli
from calibcli.cli.app import main
from calibcli.core.errors import InputError, UsageError

torch.set_num_threads(1)
DATA = (torch.randn(60, 4, generator=torch.Generator().manual_seed(0)), torch.arange(60) % 2)


@pytest.mark.regression
def test_a_second_run_into_one_folder_is_refused_and_the_first_is_whole(tmp_path: Path) -> None:
    seen: list[str] = []

    def again(fraction: float, text: str) -> None:
        if not seen:
            for overwrite in (False, True):
                with pytest.raises(UsageError, match="another run writes into"):
                    calibcli.train("linear", DATA, save=tmp_path / "run", epochs=1, device="cpu", overwrite=overwrite)
                seen.append("refused")

    options = {"validation": DATA, "epochs": 2, "device": "cpu"}
    calibcli.train("linear", DATA, save=tmp_path / "run", progress=again, **options)
    assert len(seen) == 2
    assert (tmp_path / "run" / "model.safetensors").is_file()
    assert not list((tmp_path / "run").glob(".*"))
    calibcli.train("linear", DATA, save=tmp_path / "run", overwrite=True, **options)


@pytest.mark.regression
def test_fit_says_first_that_nothing_will_be_kept(tmp_path: Path) -> None:
    said: list[str] = []
    options = {"validation": DATA, "epochs": 1, "device": "cpu"}
    calibcli.train("linear", DATA, note=said.append, progress=lambda *_: said.append("began"), **options)
    assert "nothing will be kept" in said[0]
    said.clear()
    calibcli.train(nn.Linear(4, 2), DATA, note=said.append, **options)  # which is trained in place
    calibcli.train("linear", DATA, note=said.append, save=tmp_path / "run", **options)
    assert not any("kept" in text for text in said)


@pytest.mark.regression
@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes by name")
@pytest.mark.parametrize("name", ["model.pt", "model.safetensors", "model.onnx", "model"])
def test_a_pipe_is_refused_at_once(name: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / name)
    with pytest.raises(InputError, match="is a pipe"):
        calibcli.logits(tmp_path / name, DATA, save=tmp_path / "z.npz", device="cpu")
    with pytest.raises(InputError, match="is a pipe"):
        calibcli.curvature(tmp_path / name, DATA, device="cpu")


@pytest.mark.regression
@pytest.mark.parametrize("share", [0.2, 0.5, 0.9, 0.99])
@pytest.mark.parametrize("command", ["verify", "logits", "curvature"])
def test_a_damaged_program_is_an_input_error(
    command: str, share: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    model = nn.Sequential(nn.Linear(3, 3), nn.Softmax(1))
    rows = ({0: torch.export.Dim("rows", min=1)},)
    torch.export.save(torch.export.export(model, (torch.randn(4, 3),), dynamic_shapes=rows), "whole.pt2")
    whole = Path("whole.pt2").read_bytes()
    Path("cut.pt2").write_bytes(whole[: int(len(whole) * share)])
    z = np.random.default_rng(0).standard_normal((90, 3)).astype(np.float32)
    np.savez("z.npz", logits=z, labels=np.arange(90) % 3)
    np.savez("rows.npz", x=z, y=np.arange(90) % 3)
    calibcli.save_scaler(calibcli.fit_scaler(z, np.arange(90) % 3), "t.safetensors")
    capfd.readouterr()
    argv = {
        "verify": ["verify", "cut.pt2", "--with", "t.safetensors", "--data", "z.npz", "--trust"],
        "logits": ["logits", "cut.pt2", "--data", "rows.npz", "--save", "o.npz", "--trust"],
        "curvature": ["curvature", "cut.pt2", "--data", "rows.npz", "--trust"],
    }[command]
    assert main(argv) == 4
    error = capfd.readouterr().err
    assert "cut.pt2" in error
    assert "Traceback" not in error
    assert "torch/export" not in error


ENDLESS = """
import onnx, numpy as np
from onnx import TensorProto as T, helper as h
body = h.make_graph(
    [h.make_node("Identity", ["go"], ["on"]), h.make_node("Add", ["v", "one"], ["w"])], "body",
    [h.make_tensor_value_info("i", T.INT64, []), h.make_tensor_value_info("go", T.BOOL, []),
     h.make_tensor_value_info("v", T.FLOAT, ["n", 3])],
    [h.make_tensor_value_info("on", T.BOOL, []), h.make_tensor_value_info("w", T.FLOAT, ["n", 3])],
    [onnx.numpy_helper.from_array(np.float32(1), "one")])
graph = h.make_graph([h.make_node("Loop", ["", "true", "x"], ["z"], body=body)], "g",
    [h.make_tensor_value_info("x", T.FLOAT, ["n", 3])], [h.make_tensor_value_info("z", T.FLOAT, ["n", 3])],
    [onnx.numpy_helper.from_array(np.array(True), "true")])
onnx.save(h.make_model(graph, opset_imports=[h.make_opsetid("", 17)], ir_version=8), "endless.onnx")
np.savez("rows.npz", x=np.zeros((9, 3), np.float32), y=np.arange(9) % 3)
"""


@pytest.mark.extra
@pytest.mark.regression
def test_a_graph_without_an_end_is_interrupted(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", ENDLESS], cwd=tmp_path, check=True)
    argv = ["-m", "calibcli", "logits", "endless.onnx", "--data", "rows.npz", "--save", "z.npz"]
    paths = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(
            filter(None, [str(Path(__file__).parent.parent), os.environ.get("PYTHONPATH", "")])
        ),
    }
    run = subprocess.Popen(
        [sys.executable, *argv],
        cwd=tmp_path,
        env=paths,
        stderr=subprocess.PIPE,
        text=True,
        # as at a terminal, also where a script in the background runs the tests: there SIGINT is ignored
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    time.sleep(25)
    assert run.poll() is None
    run.send_signal(2)
    assert run.wait(120) == 130
    assert not (tmp_path / "z.npz").exists()


@pytest.mark.extra
@pytest.mark.regression
def test_a_graph_has_ended_when_its_interrupt_is_raised() -> None:
    """`Thread.join` of Python 3.11 may take a thread for ended when it is interrupted: the graph ran on to the exit."""
    from calibcli.networks import _onnx_runtime

    ended = list[int]()

    class Endless:
        def run(self, wanted: object, feed: object, options: Any) -> None:
            while not options.terminate:
                time.sleep(0.001)
            time.sleep(0.02)
            ended.append(1)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        for times in range(1, 31):
            signal.setitimer(signal.ITIMER_REAL, 0.01 + 0.003 * times)
            with pytest.raises(KeyboardInterrupt):
                _onnx_runtime.run(Endless(), ["z"], {})
            assert len(ended) == times
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.extra
@pytest.mark.regression
@pytest.mark.parametrize("turned", [False, True], ids=["key first", "value first"])
@pytest.mark.parametrize("length", [5, 127, 128, 200, 250])
def test_the_files_of_weights_of_a_graph_are_found_by_any_name(length: int, turned: bool, tmp_path: Path) -> None:
    from calibcli.networks._onnx_runtime import weights_beside

    name = "w" * length
    value = b"\x12" + (bytes([length]) if length < 128 else bytes([length & 127 | 128, length >> 7])) + name.encode()
    key = b"\n\x08location"
    entry = value + key if turned else key + value
    (tmp_path / "m.onnx").write_bytes(b"\x08\x08head" + entry + b"tail\x00")
    assert tmp_path / name in weights_beside(tmp_path / "m.onnx")
