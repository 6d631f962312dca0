"""Make every file of sample_data/ again: `python sample_data/make.py`, or `--check` to compare and write nothing.

Needs scikit-learn (it carries the digits). Training runs in float64 on one thread: rounding that differs between
machines then stays far below what is stored. `--check` wants identical bytes, or else all numbers within 1e-5.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_digits

from calibcli.networks import checkpoint

HERE = Path(__file__).parent
ARCHITECTURE = "mlp:inputs=64,hidden=64/64,classes=10"
SPLITS = {"train": slice(0, 200), "validation": slice(200, 800), "test": slice(800, 1797)}
SQUARE = {"train": 1000, "validation": 1000, "test": 4000}
STEPS, RATE, SEED = 600, 0.2, 0  # long after the training error is zero: this is what makes it overconfident
CLASSES = [str(digit) for digit in range(10)]


def make(folder: Path) -> None:
    """Write all files into `folder`."""
    torch.set_num_threads(1)
    digits = load_digits()
    order = np.random.default_rng(SEED).permutation(len(digits.target))
    images, labels = digits.images[order].astype(np.uint8), digits.target[order].astype(np.int64)
    splits = {name: (images[rows], labels[rows]) for name, rows in SPLITS.items()}
    arrays = {f"{name}_{what}": a for name, pair in splits.items() for what, a in zip(("images", "labels"), pair)}
    np.savez(folder / "digits.npz", **arrays, classes=np.array(CLASSES))

    np.savez(folder / "square.npz", **square(), classes=np.array(["left", "right"]))

    model = train(*splits["train"])
    for name in ("validation", "test"):
        x, y = splits[name]
        with torch.no_grad():
            logits = model(inputs(x)).numpy().astype(np.float32)
        ink = np.where(x.sum(axis=(1, 2)) > np.median(images.sum(axis=(1, 2))), "heavy", "light")
        ids = np.array([f"digit-{row:04d}" for row in order[SPLITS[name]]])
        np.savez(folder / f"{name}.npz", logits=logits, labels=y, ids=ids, ink=ink, classes=np.array(CLASSES))
    metadata = {
        "architecture": ARCHITECTURE,
        "preprocess": {"layout": "flat", "scale": 1 / 16, "mean": [], "std": []},
        "classes": CLASSES,
        "data": {name: f"digits.npz#{name}" for name in SPLITS},
        "training": {"loss": "ce", "optimizer": "sgd", "lr": RATE, "momentum": 0.9, "steps": STEPS, "seed": SEED},
    }
    for name in ("model.safetensors", "model.pt"):
        checkpoint.save(folder / name, model.float(), metadata)


def square() -> dict[str, np.ndarray]:
    """Four round clusters on the corners of a square, a class on either side, and a tenth of the labels flipped."""
    rng, found = np.random.default_rng(SEED), {}
    for name, n in SQUARE.items():
        corner = rng.integers(0, 2, (n, 2))
        found[f"{name}_inputs"] = (2 * corner - 1 + 0.3 * rng.standard_normal((n, 2))).astype(np.float32)
        found[f"{name}_labels"] = (corner[:, 0] ^ (rng.random(n) < 0.1)).astype(np.uint8)
    return found


def inputs(images: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(images.reshape(len(images), -1) / 16.0)


def train(images: np.ndarray, labels: np.ndarray) -> torch.nn.Module:
    """Full-batch gradient descent with momentum on few rows, without any regularisation."""
    torch.manual_seed(SEED)
    model = checkpoint.build(ARCHITECTURE).double().train()
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.9)
    x, y = inputs(images), torch.from_numpy(labels)
    for _ in range(STEPS):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    return model.eval()


def arrays_of(path: Path) -> dict[str, np.ndarray]:
    """Everything numeric or textual in a file, by name."""
    if path.suffix == ".npz":
        with np.load(path) as data:
            return {name: data[name] for name in data.files}
    loaded = checkpoint.load(path)
    state = {name: value.numpy() for name, value in loaded.model.state_dict().items()}
    return {**state, "metadata": np.array(str(loaded.metadata))}


def same(old: Path, new: Path) -> bool:
    if not old.exists():
        return False
    if old.read_bytes() == new.read_bytes():
        return True
    a, b = arrays_of(old), arrays_of(new)
    return a.keys() == b.keys() and all(
        np.array_equal(a[k], b[k]) if a[k].dtype.kind not in "f" else np.allclose(a[k], b[k], rtol=1e-5, atol=1e-5)
        for k in a
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare with what is there and write nothing")
    if not parser.parse_args().check:
        make(HERE)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        make(Path(folder))
        made = sorted(Path(folder).iterdir())
        wrong = [new.name for new in made if not same(HERE / new.name, new)]
        exact = sum((HERE / new.name).exists() and (HERE / new.name).read_bytes() == new.read_bytes() for new in made)
    print(f"{len(made)} files, {exact} identical" + (f"; DIFFERENT: {', '.join(wrong)}" if wrong else ""))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
