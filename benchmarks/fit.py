"""Cost of `calib fit` against a plain PyTorch loop, and of losses and trace penalties.

    python benchmarks/fit.py [--device cuda] [--batch 128] [--rounds 7]

ResNet-20 on random 32x32 images (time does not depend on what they show) and the perceptron of the sample digits. In
every round each kind runs the same steps in turn, so that a slow moment of the machine hits all of them; a ratio is the
median over rounds of the round's ratio, and its interval the smallest and largest of them (for 7 rounds: 98 % for the
median). CPU seconds of one thread; on CUDA, synchronised wall seconds.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from _harness import arguments, by_turns, child, head, machine, ratio, row, seconds
from torch.nn import functional as F

from calibcli.lab.training._loop import Trainer
from calibcli.lab.training.batches import Loader
from calibcli.lab.training.recipes import Recipe
from calibcli.networks import checkpoint

KINDS = {
    "plain": "a plain PyTorch loop, cross-entropy",
    "ce": "calib fit, cross-entropy",
    "focal:gamma=3": "calib fit, focal",
    "fla-53": "calib fit, focal per sample",
    "ce+trace:weight=0.01": "trace penalty, Hessian",
    "ce+trace:weight=0.01,kind=ggn": "trace penalty, Gauss-Newton",
}
LIGHT = [k for k in KINDS if "trace" not in k]


class Case:
    """A network, its rows, and one epoch of each kind."""

    def __init__(self, arch: str, shape: tuple[int, ...], rows: int, batch: int, device: torch.device) -> None:
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(rows, *shape, generator=generator).to(device)
        y = torch.randint(10, (rows,), generator=generator).to(device)
        self.loader, self.arch, self.batch, self.device = Loader.holding(x, y), arch, batch, device

    def seconds(self, kind: str, folder: Path, epochs: int = 1) -> float:
        """Of the steps of `epochs` epochs."""
        torch.manual_seed(0)
        model = checkpoint.build(self.arch).to(self.device)
        work = self._plain(model, epochs) if kind == "plain" else self._trainer(model, kind, folder, epochs)
        if self.device.type == "cpu":
            return seconds(work)
        torch.cuda.synchronize()
        start = time.perf_counter()
        work()
        torch.cuda.synchronize()
        return time.perf_counter() - start

    def _plain(self, model: torch.nn.Module, epochs: int) -> Callable[[], object]:
        optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9, weight_decay=5e-4)
        x, y, _ = self.loader.kept, self.loader.labels, model.train()

        def work() -> None:
            for _ in range(epochs):
                for rows in torch.randperm(len(y)).to(self.device).split(self.batch):
                    optimizer.zero_grad()
                    F.cross_entropy(model(x[rows]), y[rows]).backward()
                    optimizer.step()

        return work

    def _trainer(self, model: torch.nn.Module, kind: str, folder: Path, epochs: int) -> Callable[[], object]:
        recipe = Recipe(loss=kind, epochs=epochs, batch_size=self.batch, lr=0.01)
        return Trainer(model, recipe, self.loader, folder=folder, save_every=10**9).run


def table(times: dict[str, list[float]], steps: int, bases: list[str]) -> None:
    print(head("kind", "ms per step", *(f"ratio to {base}" for base in bases)))
    for kind, values in times.items():
        ms = f"{1000 * statistics.median(values) / steps:.2f}"
        print(row(KINDS[kind], ms, *(ratio(values, times[base]) for base in bases)))


def memory(kind: str, batch: int, device: str) -> float:
    """Peak memory of two steps in MB, nan where the system does not tell."""
    torch.set_num_threads(1)
    case = Case("resnet:depth=20", (3, 32, 32), 2 * batch, batch, torch.device(device))
    high = Path("/proc/self/clear_refs")  # writing 5 sets the peak of resident memory back to what there is
    if high.exists():
        high.write_text("5")
    before = resident()
    with tempfile.TemporaryDirectory() as folder:
        case.seconds(kind, Path(folder))
    return torch.cuda.max_memory_allocated() / 2**20 if device != "cpu" else resident() - before


def resident() -> float:
    """Peak resident memory in MB."""
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.exists() else []
    return next((float(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM")), float("nan"))


def main(device: str, batch: int, rounds: int, folder: Path) -> None:
    torch.set_num_threads(1)
    on = torch.device(device)
    one, two = (Case("resnet:depth=20", (3, 32, 32), n * batch, batch, on) for n in (1, 2))
    one.seconds("ce", folder)

    def step(kind: str) -> float:  # of two steps where they are light
        return two.seconds(kind, folder) / 2 if kind in LIGHT else one.seconds(kind, folder)

    times = by_turns({kind: kind for kind in KINDS}, rounds, step)
    print(f"{machine('torch')}\nResNet-20, batch {batch}, {rounds} rounds, {device}\n")
    table(times, 1, ["plain", "ce"])
    tenth = [(9 * p + h) / 10 for p, h in zip(times["ce"], times["ce+trace:weight=0.01"])]
    print(f"\nTrace penalty, Hessian, every=10: {ratio(tenth, times['plain'])} of a plain step on average")
    print("(from the steps above: nine without the penalty and one with it)")
    print(f"\nPeak memory of a step at batch {batch}, MB over the loaded process:\n")
    for kind in KINDS:
        print(f"- {KINDS[kind]}: {child(memory, kind, batch, device):.0f}")
    small, epochs = Case("mlp:inputs=64,hidden=64/64", (64,), 400, 128, on), 40
    small.seconds("ce", folder, epochs)
    times = by_turns({kind: kind for kind in LIGHT}, rounds, lambda kind: small.seconds(kind, folder, epochs))
    print(f"\nPerceptron 64-64-64-10, 400 rows, batch 128, {epochs} epochs (each logs and saves its state):\n")
    table(times, 4 * epochs, ["plain", "ce"])


if __name__ == "__main__":
    given = arguments(__doc__, device="cpu", batch=128, rounds=7)
    with tempfile.TemporaryDirectory() as name:
        main(given.device, given.batch, given.rounds, Path(name))
