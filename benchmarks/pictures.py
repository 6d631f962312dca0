"""Pictures of a folder: how often each is decoded, and CPU seconds beside PyHessian with a DataLoader of two workers.

    python benchmarks/pictures.py                   96 JPEGs of 500x375 to 224, and 5,000 of 64x48 to 32
    python benchmarks/pictures.py --only 96 --quick one set, without PyHessian

A small convolutional network with 3 classes, --memory low, so that every product reads all rows. Passes are decoded
pictures over pictures. CPU seconds are of all threads and of the workers of the DataLoader, after everything was
imported. `each time` is calib without keeping them, as it was before. PyHessian is run to the same quantity by its own
rule (tolerance 1e-3; the density of 40 steps); its peak is that of its largest process.
"""

from __future__ import annotations

import itertools
import resource
import tempfile
import time
from pathlib import Path
from typing import Any

from _harness import arguments, attempt, installed, machine, peak, row

SETS = {"96": (96, (500, 375), 224), "5000": (5000, (64, 48), 32)}
"""Number of pictures, their size, and the size that the network takes."""
TASKS = ("lambda_max", "density:steps=40", "trace", "fit")
EPOCHS = 3


def make(root: Path, count: int, size: tuple[int, int]) -> None:
    import numpy as np
    from PIL import Image

    rng = np.random.default_rng(0)
    for i in range(count):
        folder = root / "abc"[i % 3]
        folder.mkdir(exist_ok=True)
        coarse = Image.fromarray(rng.integers(0, 256, (12, 16, 3)).astype(np.uint8))
        coarse.resize(size, Image.Resampling.BICUBIC).save(folder / f"{i}.jpg", quality=90)


def network() -> Any:
    import torch
    from torch import nn

    torch.set_num_threads(1)
    torch.manual_seed(0)
    first = nn.Conv2d(3, 8, 5, 4), nn.ReLU(), nn.Conv2d(8, 16, 3, 2), nn.ReLU()
    return nn.Sequential(*first, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(64, 3))


def spent() -> float:
    """CPU seconds of this process and of the workers that have ended."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def ours(root: str, task: str, size: int, once: bool) -> dict[str, Any]:
    import calibcli
    from calibcli.networks import curvature, dataset
    from calibcli.networks.dataset import _folder

    model, count, plain = network(), itertools.count(), _folder.opened
    _folder.opened = lambda path: (next(count), plain(path))[1]
    held: list[Any] = []
    keeping = dataset.decoded_once

    def kept(data: Any) -> Any:
        held.append(keeping(data) if once else data)
        return held[-1]

    curvature.decoded_once = dataset.decoded_once = kept
    calibcli.curvature(model, root, "grad_norm", size=str(size), subset=8)  # imports
    next(count)
    before, start, decoded, value = peak(), spent(), next(count), 0.0
    if task == "fit":
        with tempfile.TemporaryDirectory() as folder:
            found = calibcli.train(model, root, epochs=EPOCHS, size=str(size), save=Path(folder, "run"), device="cpu")
    else:
        found = calibcli.curvature(model, root, task, size=str(size), memory="low", device="cpu")
    value = found.estimates[0].value
    arrays = [a for data in held[1:] for a in data.inputs.values() if isinstance(a, dataset.decoded.Decoded)]
    return {
        "value": value,
        "passes": (next(count) - decoded - 1) / len(held[1].rows),
        "seconds": spent() - start,
        "peak": peak() - before,
        "held": sum(len(a.used) * a.row_bytes for a in arrays) / 2**20,
    }


class Files:
    """What people write for PyHessian: a map-style data set that decodes a picture when its row is asked for."""

    def __init__(self, root: str, size: int) -> None:
        self.paths, self.size = sorted(Path(root).glob("*/*.jpg")), size

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, row: int) -> Any:
        import numpy as np
        import torch
        from PIL import Image

        from calibcli.networks.dataset.rows import Resize

        with Image.open(self.paths[row]) as picture:
            small = Resize((self.size,), (self.size, self.size))(np.asarray(picture.convert("RGB")))
        return torch.from_numpy(small).permute(2, 0, 1).float() / 255, "abc".index(self.paths[row].parent.name)


def pyhessian(root: str, task: str, size: int) -> dict[str, Any]:
    import torch
    from pyhessian import hessian

    def eig(matrix: Any, eigenvectors: bool) -> Any:  # left torch after PyHessian 0.1
        values, vectors = torch.linalg.eigh(matrix)
        return torch.stack([values, torch.zeros_like(values)], 1), vectors

    torch.eig = eig
    model, data = network().eval(), Files(root, size)
    loader = torch.utils.data.DataLoader(data, 32, num_workers=2)
    passes = [0]
    plain = torch.utils.data.DataLoader.__iter__

    def counted(self: Any) -> Any:
        passes[0] += 1
        return plain(self)

    torch.utils.data.DataLoader.__iter__ = counted
    before, start = peak(), spent()
    h = hessian(model, torch.nn.functional.cross_entropy, dataloader=loader, cuda=False)
    if task == "lambda_max":
        value = float(h.eigenvalues(tol=1e-3, maxIter=100)[0][0])
    elif task == "trace":
        value = float(sum(found := h.trace(tol=1e-2)) / len(found))
    else:
        value = float(len(h.density(iter=40, n_v=1)))
    workers = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    return {
        "value": value,
        "passes": passes[0],
        "seconds": spent() - start,
        "peak": max(peak() - before, workers - before),
        "held": 0,
    }


def main() -> None:
    given = arguments(__doc__, only="", quick=False, tasks=[*TASKS])
    print(machine("torch", "PIL"), flush=True)
    for name, (count, size, to) in SETS.items():
        if given.only and given.only != name:
            continue
        with tempfile.TemporaryDirectory() as folder:
            make(Path(folder), count, size)
            shown = "x".join(map(str, size))
            print(f"\n{count} JPEGs of {shown} to {to}\n", flush=True)
            print(row("", "passes", "CPU s", "peak MB", "MiB kept", "value"), "|---" * 6 + "|", sep="\n")
            for task in given.tasks:
                works: dict[str, Any] = {"calib": (ours, True), "calib, each time": (ours, False)}
                if task != "fit" and installed("pyhessian") and not given.quick:
                    works["PyHessian, DataLoader of two workers"] = (pyhessian,)
                for tool, (work, *more) in works.items():
                    e = attempt(work, folder, task, to, *more)
                    if isinstance(e, str):
                        print(row(f"{task}, {tool}", e), flush=True)
                        continue
                    numbers = f"{e['passes']:.2f}", f"{e['seconds']:.1f}", f"{e['peak']:.0f}", f"{e['held']:.0f}"
                    none = e["value"] is None or (task.startswith("density") and tool.startswith("Py"))
                    value = "" if none else f"{e['value']:.6g}"
                    print(row(f"{task}, {tool}", *numbers, value), flush=True)


if __name__ == "__main__":
    main()
