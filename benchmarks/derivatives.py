"""Time that our own derivatives save: steps of a trace penalty with them, and with PyTorch's alone.

    python benchmarks/derivatives.py [--rounds 5] [--only NETWORK]

`jets` (the Hessian's trace carried forward with the values) against three reverse passes through norms whose third
derivatives are mended; `twice` (convolution and batch norm made for second derivatives) against PyTorch's, for the
Gauss-Newton trace. In every round both sides take the same step in turn; a ratio is the median over rounds, its range
the smallest and largest. CPU seconds of one thread. What saves less than 1.3 times on all of these has no place in
`calibcli/networks/derivatives/`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from unittest import mock

import torch
from _harness import arguments, by_turns, machine, ratio
from torch import Tensor, nn
from torch.nn import functional as F

from calibcli.networks import checkpoint, losses
from calibcli.networks.derivatives import normalisation
from calibcli.networks.losses import penalties

CASES = {
    "perceptron 784-256-256, 128 rows": ("mlp:inputs=784,hidden=256/256", (784,), 128),
    "ResNet-20, 16 rows": ("resnet", (3, 32, 32), 16),
    "ResNet-20, 128 rows": ("resnet", (3, 32, 32), 128),
    "cnn, 128 rows": ("cnn", (3, 32, 32), 128),
    "ViT 64 x 2, 16 rows": ("vit:dim=64,depth=2,heads=2", (3, 32, 32), 16),
}


class Case:
    """One network and batch, with a penalised step."""

    def __init__(self, arch: str, shape: tuple[int, ...], rows: int) -> None:
        torch.manual_seed(0)
        self.model = checkpoint.build(arch).train()
        self.x, self.y = torch.randn(rows, *shape), torch.arange(rows) % 10

    def step(self, spec: str) -> None:
        """Gradients of the objective with everything that a training step uses."""
        objective, generator = losses.objective(spec), torch.Generator().manual_seed(0)
        self.model.zero_grad()
        with objective.around(self.model, 0, generator):
            z = self.model(self.x)
        objective(losses.Batch(self.model, z, self.y, 0, generator)).backward()

    def without_jets(self) -> None:
        """The Hessian's trace by three reverse passes, norms mended."""
        mended = {name: getattr(normalisation, name) for name in ("batch_norm", "layer_norm")}
        with (
            mock.patch.multiple(F, **mended),
            mock.patch.object(penalties, "wrong_thrice", return_value=""),
            plain(penalties, "Jets"),
        ):
            self.step("ce+trace:weight=0.01")

    def without_twice(self) -> None:
        """The Gauss-Newton trace by PyTorch's second derivatives."""
        with plain(penalties, "Twice"):
            self.step("ce+trace:weight=0.01,kind=ggn")


@contextlib.contextmanager
def plain(module: object, name: str) -> Iterator[None]:
    """`module.name` replaced by a context that does nothing."""

    class Nothing(contextlib.nullcontext):  # type: ignore[type-arg]
        def __init__(self, parameters: list[nn.Parameter] = [], directions: list[list[Tensor]] = []) -> None:  # noqa: B006
            super().__init__(self)
            self.directions = directions

        def of(self, z: Tensor) -> None:
            return None

    with mock.patch.object(module, name, Nothing):
        yield


def saved(without: Callable[[], None], with_: Callable[[], None], rounds: int) -> str:
    for work in (without, with_):  # the first call of each is no measure
        work()
    times = by_turns({"without": without, "with": with_}, rounds)
    return ratio(times["without"], times["with"], 2)


if __name__ == "__main__":
    given = arguments(__doc__, rounds=5, only="")
    torch.set_num_threads(1)
    print(machine("torch"))
    print("saved by            jets, Hessian's trace     twice, Gauss-Newton trace")
    for name, case in CASES.items():
        if given.only in name:
            one = Case(*case)
            jets = saved(one.without_jets, lambda one=one: one.step("ce+trace:weight=0.01"), given.rounds)
            twice = saved(one.without_twice, lambda one=one: one.step("ce+trace:weight=0.01,kind=ggn"), given.rounds)
            print(f"{name:34} {jets:24} {twice}", flush=True)
