"""A product `h @ v` of `calibcli.hessian` against one of curvlinops' HessianLinearOperator: CPU seconds, and agreement.

    python benchmarks/hessian_operator.py [--rounds 5] [--only mlp]

The same network, rows, loss and vectors on both sides, in float32 and one thread; curvlinops gets the rows in batches
of at most 256, as calib does. By turns in one process: every round runs each side once on the same new vector; a ratio
is the median over rounds, with the least and the largest. `low` is calib with memory="low", which keeps no graphs
between products, as curvlinops keeps none; a block has four columns. Errors are relative to a product in float64, the
largest over rounds; `float64 apart` is how far the two tools' products in float64 are from each other.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch
from _harness import arguments, by_turns, head, installed, machine, ratio, row, seconds
from torch import Tensor, nn

import calibcli
from calibcli.networks import checkpoint

CASES = {
    "mlp 784-256-256, 1,000 rows": ("mlp:inputs=784,hidden=256/256", (784,), 1000),
    "cnn, 100 rows": ("cnn", (3, 32, 32), 100),
    "ResNet-20, 32 rows": ("resnet:depth=20", (3, 32, 32), 32),
}
BATCH = 256
COLUMNS = 4


def peer(model: nn.Module, x: Tensor, y: Tensor) -> Any:
    """curvlinops' operator of the mean cross-entropy, in eval mode, on the same batches."""
    co = import_module("curvlinops")
    batches = list(zip(x.split(BATCH), y.split(BATCH)))
    return co.HessianLinearOperator(model, nn.CrossEntropyLoss(), list(model.parameters()), batches)


def off(product: Tensor, true: Tensor) -> float:
    return float((product.double() - true).norm() / true.norm())


def compare(name: str, rounds: int) -> str:
    arch, shape, rows = CASES[name]
    torch.manual_seed(0)
    model = checkpoint.build(arch)
    x, y = torch.randn(rows, *shape), torch.randint(0, 10, (rows,))
    with torch.no_grad():
        for _ in range(3):
            model.train()(x)  # running statistics that are not trivial
    model.eval()
    makers: dict[str, Callable[[], Any]] = {
        "curvlinops": lambda: peer(model, x, y),
        "calib": lambda: calibcli.hessian(model, (x, y), device="cpu"),
        "low": lambda: calibcli.hessian(model, (x, y), device="cpu", memory="low"),
    }
    built: dict[str, Any] = {}
    building = {key: seconds(lambda key=key, make=make: built.__setitem__(key, make())) for key, make in makers.items()}
    wide = calibcli.hessian(model, (x.double(), y), device="cpu", dtype="float64")
    theirs = peer(model.double(), x.double(), y)
    size = wide.shape[0]
    vectors, blocks = torch.randn(rounds + 1, size), torch.randn(rounds + 1, size, COLUMNS)
    errors: dict[str, list[float]] = {
        key: [off(wide @ v.double(), theirs @ v.double()) for v in vectors[:1]] for key in ["float64"]
    }
    model.float()
    times: dict[str, list[float]] = {}
    for i in range(rounds + 1):  # the first round makes graphs, and is no measure
        products: dict[str, Tensor] = {}

        def work(key: str, v: Tensor, products: dict[str, Tensor] = products) -> Callable[[], None]:
            return lambda: products.__setitem__(key, built[key] @ v)

        works = {key: work(key, vectors[i]) for key in built}
        taken = by_turns(works, 1)
        true = wide @ vectors[i].double()
        for key, product in products.items():
            errors.setdefault(key, []).append(off(product, true))
        blocked = by_turns({f"{key}, block": work(key, blocks[i]) for key in ("curvlinops", "calib")}, 1)
        for key, (spent,) in (taken | blocked).items() if i else ():
            times.setdefault(key, []).append(spent)
    base = times["curvlinops"]
    cells = [ratio(base, times["calib"], 2), ratio(base, times["low"], 2)]
    cells += [ratio(times["curvlinops, block"], times["calib, block"], 2)]
    cells += [f"{max(errors[key]):.0e}" for key in ("calib", "curvlinops", "float64")]
    cells += [f"{1e3 * statistics.median(times['calib']):.0f} ms", f"{building['calib'] / statistics.median(base):.1f}"]
    cells += [f"{building['curvlinops'] / statistics.median(base):.1f}"]
    return row(name, *cells)


if __name__ == "__main__":
    given = arguments(__doc__, rounds=5, only="")
    torch.set_num_threads(1)
    print(machine("torch", "curvlinops"))
    if not installed("curvlinops"):
        raise SystemExit("curvlinops is not installed (pip install --no-deps curvlinops-for-pytorch)")
    names = ["times as fast", "low", "block", "error of calib", "of curvlinops", "float64 apart"]
    print(head("network", *names, "a product", "calib built in products of curvlinops", "curvlinops built in"))
    for case in CASES:
        if given.only in case:
            print(compare(case, given.rounds), flush=True)
