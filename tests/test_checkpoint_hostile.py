"""Files that try to run code when they are read: never executed, said so, exit 4. The marker file must not appear."""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import pickle
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from calibcli.core.errors import InputError
from calibcli.networks import checkpoint, dataset

torch.set_num_threads(1)
SPEC = "mlp:inputs=4,hidden=3,classes=2"


class Bomb:
    """Writes the marker file when unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        return Path.touch, (self.marker,)


@pytest.fixture
def marker(tmp_path: Path) -> Path:
    """A path that a bomb would create; that bombs work at all is shown here."""
    path = tmp_path / "marker"
    pickle.loads(pickle.dumps(Bomb(path)))
    assert path.exists()
    path.unlink()
    return path


def blob(marker: Path, **options: Any) -> bytes:
    stream = io.BytesIO()
    torch.save({"weight": Bomb(marker)}, stream, **options)
    return stream.getvalue()


def exported(path: Path) -> None:
    torch.export.save(torch.export.export(nn.Linear(4, 2), (torch.randn(3, 4),)), path)


def replaced(path: Path, marker: Path, *patterns: str) -> None:
    """The same archive with hostile pickles in place of the members whose names hold one of `patterns`."""
    old = path.with_suffix(".old")
    shutil.move(path, old)
    with zipfile.ZipFile(old) as source, zipfile.ZipFile(path, "w") as target:
        hits = [name for name in source.namelist() if any(p in name for p in patterns)]
        assert hits
        for name in source.namelist():
            target.writestr(name, blob(marker) if name in hits else source.read(name))


def hostile(kind: str, folder: Path, marker: Path) -> Path:
    path = folder / {"pt2 weights": "m.pt2", "pt2 inputs": "m.pt2", "old pt2": "m.pt2", "bin shard": "x.bin"}.get(
        kind, "m.pt"
    )
    if kind == "zip":
        path.write_bytes(blob(marker))
    elif kind == "legacy":
        path.write_bytes(blob(marker, _use_new_zipfile_serialization=False))
    elif kind == "bare":
        path.write_bytes(pickle.dumps(Bomb(marker)))
    elif kind == "protocol 0":
        path.write_bytes(pickle.dumps(Bomb(marker), protocol=0))
    elif kind == "in a state dict":
        torch.save({"state_dict": nn.Linear(4, 2).state_dict(), "extra": Bomb(marker)}, path)
    elif kind == "pt2 weights":
        exported(path)
        replaced(path, marker, "data/weights/weight_", "serialized_state_dict")
    elif kind == "pt2 inputs":
        exported(path)
        replaced(path, marker, "sample_inputs", "serialized_example_inputs")  # the latter up to torch 2.7
    elif kind == "old pt2":
        with zipfile.ZipFile(path, "w") as file:
            file.writestr("version", "8.1")
            file.writestr("serialized_exported_program.json", "{}")
            file.writestr("serialized_state_dict.json", blob(marker))
    elif kind == "bin shard":
        path.write_bytes(blob(marker))
        path = folder / "pytorch_model.bin.index.json"
        path.write_text('{"weight_map": {"weight": "x.bin"}}')
    elif kind == "zip of TorchScript":
        with zipfile.ZipFile(path, "w") as file:
            file.writestr("m/constants.pkl", pickle.dumps(Bomb(marker)))
            file.writestr("m/data.pkl", pickle.dumps(Bomb(marker)))
    return path


KINDS = [
    "zip", "legacy", "bare", "protocol 0", "in a state dict", "pt2 weights", "pt2 inputs", "old pt2", "bin shard",
    "zip of TorchScript",
]  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("arch", [None, SPEC])
@pytest.mark.parametrize("kind", KINDS)
def test_hostile_checkpoints_are_not_executed(kind: str, arch: str | None, tmp_path: Path, marker: Path) -> None:
    path = hostile(kind, tmp_path, marker)
    with pytest.raises(InputError) as caught:
        checkpoint.load(path, arch=arch)
    assert not marker.exists()
    if kind != "protocol 0":
        assert "nothing was executed" in caught.value.problem
    if kind in ("zip", "legacy", "in a state dict"):
        assert "pathlib.Path.touch" in caught.value.problem or "posixpath" in caught.value.problem.lower()


class Call:
    """Calls anything when unpickled."""

    def __init__(self, function: Any, *args: Any) -> None:
        self.call = function, args

    def __reduce__(self) -> Any:
        return self.call


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize(
    "call",
    [
        (eval, "open('{}', 'w')"),
        (exec, "open('{}', 'w')"),
        (os.system, "touch {}"),
        (getattr, Path("{}"), "touch"),
        (torch.load, "{}"),
        (np.savetxt, "{}", 3),
        (torch.save, 3, "{}"),
        (subprocess.run, ["touch", "{}"]),
        (importlib.import_module, "antigravity"),
    ],
)
def test_nothing_beside_good_weights_is_called(
    call: tuple[Any, ...], zipped: bool, tmp_path: Path, marker: Path
) -> None:
    """With the architecture named, tensors load where the rest is harmless to leave out; nothing ever runs."""
    torch.manual_seed(0)
    state = checkpoint.build(SPEC).state_dict()
    function, *args = call
    args = [str(a).format(marker) if isinstance(a, str | Path) else a for a in args]
    args = [[b.format(marker) for b in a] if isinstance(a, list) else a for a in args]
    tree = {"state_dict": state, "extra": [Call(function, *args)]}
    torch.save(tree, tmp_path / "m.pt", _use_new_zipfile_serialization=zipped)
    home = function.__module__.partition(".")[0]
    if home in sys.stdlib_module_names:
        with pytest.raises(InputError, match="nothing was executed"):
            checkpoint.load(tmp_path / "m.pt", arch=SPEC)
    else:
        assert "not executed" in checkpoint.load(tmp_path / "m.pt", arch=SPEC).notes[0]
    assert not marker.exists()
    assert "antigravity" not in sys.modules


@pytest.mark.parametrize("seed", range(60))
def test_mutated_pickles_never_run_and_never_crash(seed: int, tmp_path: Path, marker: Path) -> None:
    """Random bytes changed in a file with a bomb in it: an error of ours or tensors, nothing else."""
    rng = np.random.default_rng(seed)
    state = checkpoint.build(SPEC).state_dict()
    path = tmp_path / "m.pt"
    torch.save({"model": state, "x": Bomb(marker)}, path, _use_new_zipfile_serialization=False)
    data = bytearray(path.read_bytes())
    for _ in range(1 + seed % 8):
        data[rng.integers(0, len(data))] = rng.integers(0, 256)
    path.write_bytes(data)
    with contextlib.suppress(InputError):
        checkpoint.load(path, arch=SPEC)
    assert not marker.exists()


@pytest.mark.parametrize("name", ["d.npy", "d.npz", "packed.npz", "d.pt", "legacy.pt"])
def test_hostile_data_is_not_executed(name: str, tmp_path: Path, marker: Path) -> None:
    bombs = np.array([Bomb(marker), Bomb(marker)], dtype=object)
    path = tmp_path / name
    if name == "d.npy":
        np.save(path, bombs)
    elif name.endswith(".npz"):
        write = np.savez if name == "d.npz" else np.savez_compressed
        write(path, x=bombs, y=np.arange(2))
    else:
        path.write_bytes(blob(marker, _use_new_zipfile_serialization=name == "d.pt"))
    with pytest.raises(InputError):
        dataset.load(path)
    assert not marker.exists()


@pytest.mark.slow
def test_the_command_says_so_and_exits_4(tmp_path: Path, marker: Path) -> None:
    path = hostile("zip", tmp_path, marker)
    command = [sys.executable, "-m", "calibcli", "logits", str(path), "--data", "d.npz", "--save", f"{tmp_path}/o.npz"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (4, "")
    assert "nothing was executed" in done.stderr
    assert "Traceback" not in done.stderr
    assert not marker.exists()
