"""Curvature against PyHessian, hessian-eigenthings and curvlinops at equal accuracy: CPU seconds, true errors, memory.

    python benchmarks/curvature.py                      an MLP and a ViT on random data
    python benchmarks/curvature.py --data DIR           and on CIFAR-10: an MLP and a ViT trained here, and a trained
                                                        ResNet-20 on 256 and 1,000 images (cifar10_resnet20.safetensors,
                                                        cifar10_train_5000.npz and cifar10_test_1000.npz in DIR)

Every run is a process of its own with one thread. These are run: λmax, our trace, the densities of PyHessian and calib,
everything at once with calib, and 4 Hutchinson probes of each tool. λmax is at equal accuracy: the other tools stop
by their own rule with tolerance 1e-3, tightened until the true error is within 1e-3 too (hessian-eigenthings' Lanczos
is given steps until it calls itself converged); the time is that of the last run alone. The true λmax is ours, whose
error residual²/gap is two orders smaller. These are count × cost: Hutchinson to 1 %, or to the error of calib's trace
(probes from the spread of one), densities of the other tools, and the top 5 and λmin of the others at the products that
our Lanczos run needs for each alone, though theirs need more. The perceptrons have ReLU, the ViTs GELU. --only takes a
part of a case's name, such as mlp-2000 or resnet20-256; cases beside a plain double backward are in
`_curvature_hard.py`, and `--only 100M` is one of them.
"""

from __future__ import annotations

import math
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from importlib import import_module
from pathlib import Path
from typing import Any

import _curvature_hard
import torch
from _harness import arguments, attempt, installed, peak
from torch import Tensor, nn

PEERS = {
    "PyHessian, in memory": "pyhessian",
    "PyHessian, loader": "pyhessian",
    "eigenthings, Lanczos": "hessian_eigenthings",
    "curvlinops": "curvlinops",
}
CACHE = tempfile.TemporaryDirectory()
LOSS = nn.functional.cross_entropy
BATCH = 64  # at most; it divides the rows, as hessian-eigenthings weighs a shorter last batch like the others
TRAINED = {"mlp-cifar": ("mlp:inputs=3072,hidden=256/256", 10), "vit-cifar": ("vit:dim=96,depth=4,heads=4", 30)}
"""Architecture and epochs of 40 batches of 125 of 5,000 CIFAR-10 images."""
STEPS = 80  # of a density
SHORT = 20  # of one that tells what a product costs, where the whole is not run
ENDS = 15 + 57  # products for the top 5 and for λmin, where they are not run: those of a ResNet-20
PROBES = 4  # of each tool; their spread is pooled, the quadratic forms being the same


def network(name: str, rows: int, data: str, cache: str) -> tuple[nn.Module, Tensor, Tensor]:
    from calibcli.networks.architectures import ARCHITECTURES

    torch.manual_seed(0)
    if name == "resnet20":
        from safetensors.torch import load_file

        model = ARCHITECTURES.choose("resnet:depth=20")()
        found = load_file(f"{data}/cifar10_resnet20.safetensors")
        model.load_state_dict({k: v for k, v in found.items() if k in model.state_dict()}, strict=False)
        return model.eval(), *images(f"{data}/cifar10_test_1000.npz", rows)
    if name.endswith("-cifar"):
        model = ARCHITECTURES.choose(TRAINED[name][0])()
        x, y = images(f"{data}/cifar10_train_5000.npz", 5000)
        x = x.flatten(1) if name.startswith("mlp") else x
        kept = Path(cache, f"{name}.pt")
        if kept.exists():
            model.load_state_dict(torch.load(kept, weights_only=True))
        else:
            epochs = range(TRAINED[name][1])
            train(model, x, y, (part for _ in epochs for part in torch.randperm(len(x)).view(-1, 40).T))
            torch.save(model.state_dict(), kept)
        return model.eval(), x[:rows], y[:rows]
    if name == "vit":
        model = ARCHITECTURES.choose("vit")()
        x = torch.randn(rows, 3, 32, 32) + torch.randn(rows, 3, 1, 1)
    else:
        model = ARCHITECTURES.choose("mlp:inputs=784,hidden=256/256")()
        x = torch.randn(rows, 784)
    y = (x.flatten(1) @ torch.randn(x[0].numel(), 10)).argmax(1)  # labels that can be learnt, and are
    steps = range(60 if name == "vit" else 100)
    train(model, x, y, (torch.arange(64 * step, 64 * step + 64) % rows for step in steps))
    return model.eval(), x, y


def images(file: str, rows: int) -> tuple[Tensor, Tensor]:
    import numpy as np

    found = np.load(file)
    x = torch.from_numpy(found["images"][:rows]).permute(0, 3, 1, 2).float() / 255
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    labels = torch.from_numpy(found["labels"][:rows]).long()
    return (x - mean.view(3, 1, 1)) / std.view(3, 1, 1), labels


def train(model: nn.Module, x: Tensor, y: Tensor, parts: Iterable[Tensor]) -> None:
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    for part in parts:
        optimizer.zero_grad()
        LOSS(model(x[part]), y[part]).backward()
        optimizer.step()


def ours(task: str, model: nn.Module, x: Tensor, y: Tensor, memory: str) -> dict[str, Any]:
    from calibcli.networks.curvature import measure

    one = {
        "lambda": "lambda_max",
        "estimate": "lambda_max:bound=estimate",
        "trace": "trace:precision=0.01",
        "density": f"density:steps={STEPS}",
        "short": f"density:steps={SHORT}",
        "top": "top:k=5",
        "min": "lambda_min",
    }
    names = ("lambda", "top", "min", "trace", "density") if task == "all" else (task,)
    specs = [one[name] for name in names]
    e = measure(model, (x, y), *specs, memory=memory).estimates[0]  # type: ignore[arg-type]
    return {"value": e.value, "products": e.detail.get("products"), "error": e.detail.get("estimator_se"), "how": e.how}


def peer(tool: str, task: str, model: nn.Module, x: Tensor, y: Tensor, effort: float) -> dict[str, Any]:
    matvec, size, solve, setup = OPERATORS[tool](model, x, y)
    if task == "lambda":
        value, products, converged = solve(effort)
        return {"value": value, "products": products, "converged": converged}
    if task == "density":
        pyhessian_density(model, x, y)
        return {}
    forms = []
    start = time.process_time()
    for _ in range(PROBES):
        v = torch.randint(0, 2, (size,)).float() * 2 - 1
        forms.append(float(torch.dot(v, matvec(v))))
    spread = torch.tensor(forms)
    return {
        "each": (time.process_time() - start) / PROBES,
        "value": float(spread.mean()),
        "sd": float(spread.std()),
        "setup": setup,
    }


Operator = tuple[Callable[[Tensor], Tensor], int, Any, float]
"""Product, its size, how λmax is looked for, and the seconds of setting it up."""


def batches(x: Tensor, y: Tensor) -> list[tuple[Tensor, Tensor]]:
    size = max(size for size in range(1, BATCH + 1) if len(x) % size == 0)
    return list(zip(x.split(size), y.split(size)))


def pyhessian(model: nn.Module, x: Tensor, y: Tensor, loader: bool) -> Operator:
    from pyhessian import hessian
    from pyhessian.utils import hessian_vector_product

    start = time.process_time()
    kind: dict[str, Any] = {"dataloader": batches(x, y)} if loader else {"data": (x, y)}
    h = hessian(model, LOSS, cuda=False, **kind)
    shapes = [p.shape for p in h.params]
    sizes = [s.numel() for s in shapes]
    count = [0]

    def matvec(v: Tensor) -> Tensor:
        count[0] += 1
        pieces = [p.view(s) for p, s in zip(v.split(sizes), shapes)]
        out = h.dataloader_hv_product(pieces)[1] if loader else hessian_vector_product(h.gradsH, h.params, pieces)
        return torch.cat([o.reshape(-1) for o in out])

    def solve(tol: float) -> tuple[float, int, bool]:
        owner = h if loader else sys.modules["pyhessian.hessian"]
        name = "dataloader_hv_product" if loader else "hessian_vector_product"
        plain = getattr(owner, name)

        def counted(*args: Any) -> Any:
            count[0] += 1
            return plain(*args)

        setattr(owner, name, counted)
        return float(h.eigenvalues(tol=tol, maxIter=1000)[0][0]), count[0], True

    return matvec, sum(sizes), solve, time.process_time() - start


def pyhessian_density(model: nn.Module, x: Tensor, y: Tensor) -> None:
    from pyhessian import hessian

    def eig(matrix: Tensor, eigenvectors: bool) -> tuple[Tensor, Tensor]:  # left torch after PyHessian 0.1
        values, vectors = torch.linalg.eigh(matrix)
        return torch.stack([values, torch.zeros_like(values)], 1), vectors

    torch.eig = eig
    hessian(model, LOSS, cuda=False, data=(x, y)).density(iter=STEPS, n_v=1)


def eigenthings(model: nn.Module, x: Tensor, y: Tensor) -> Operator:
    import hessian_eigenthings as he

    operator = he.HessianOperator(model, batches(x, y), lambda m, batch: LOSS(m(batch[0]), batch[1]))

    def solve(effort: float) -> tuple[float, int, bool]:
        steps = int(effort)
        found = he.lanczos(operator, k=1, max_iter=steps, tol=1e-3, which="LA", seed=0)
        return float(found.eigenvalues[0]), steps, bool(found.converged[0])

    return operator.matvec, operator.size, solve, 0.0


def curvlinops(model: nn.Module, x: Tensor, y: Tensor) -> Operator:
    import curvlinops as co

    start = time.process_time()
    params = [p for p in model.parameters() if p.requires_grad]
    h = co.HessianLinearOperator(model, nn.CrossEntropyLoss(), params, batches(x, y))
    return (lambda v: h @ v), h.shape[0], None, time.process_time() - start


OPERATORS: dict[str, Callable[[nn.Module, Tensor, Tensor], Operator]] = {
    "PyHessian, in memory": lambda m, x, y: pyhessian(m, x, y, False),
    "PyHessian, loader": lambda m, x, y: pyhessian(m, x, y, True),
    "eigenthings, Lanczos": eigenthings,
    "curvlinops": curvlinops,
}
SOLVERS = [tool for tool in OPERATORS if tool != "curvlinops"]  # whose ARPACK is far behind


def worker(tool: str, task: str, name: str, rows: int, data: str, cache: str, effort: float) -> dict[str, Any]:
    torch.set_num_threads(1)
    model, x, y = network(name, rows, data, cache)
    import_module("calibcli.networks.curvature" if tool.startswith("calib") else PEERS[tool])
    import_module("torch.fx.experimental.symbolic_shapes")  # autograd imports it at first use: half a second
    before, start, found = peak(), time.process_time(), {}
    if task == "training":
        optimizer = torch.optim.SGD(model.train().parameters(), 0.0, momentum=0.9)
        LOSS(model(x), y).backward()
        optimizer.step()
    elif tool.startswith("calib"):
        found = ours(task, model, x, y, "low" if "low" in tool else "auto")
    else:
        found = peer(tool, task, model, x, y, effort)
    return found | {"seconds": time.process_time() - start, "peak": peak() - before}


def start(tool: str, task: str, name: str, rows: int, data: str, effort: float = 0.0) -> dict[str, Any] | None:
    found = attempt(worker, tool, task, name, rows, data and str(Path(data).resolve()), CACHE.name, effort)
    if isinstance(found, str):
        print(f"   {tool}, {task}: {found}")
        return None
    return found


def equally_accurate(tool: str, name: str, rows: int, data: str, truth: float, steps: int) -> dict[str, Any] | None:
    """The tool's first run that it calls converged and whose λmax is within 1e-3 of the truth, or its last."""
    efforts = range(steps - 2, steps + 6) if tool == "eigenthings, Lanczos" else (1e-3, 4e-4, 1.6e-4, 6e-5, 2e-5, 1e-6)
    found = None
    for effort in efforts:
        found = start(tool, "lambda", name, rows, data, effort)
        if found is None or (found["converged"] and abs(found["value"] / truth - 1) <= 1e-3):
            break
    return found


def compare(name: str, rows: int, data: str, by_count: bool) -> None:
    print(f"\n{name}, {rows} rows", flush=True)
    peers = [p for p, module in PEERS.items() if installed(module)]
    lead = {t: start("calib", t, name, rows, data) for t in ("lambda", "estimate")}
    top = lead["lambda"]
    truth, steps = top["value"], top["products"]
    runs = {p: equally_accurate(p, name, rows, data, truth, steps) for p in peers if p in SOLVERS}
    solved = {p: s for p, s in runs.items() if s}
    print("   (a) λmax to 1e-3                  CPU s  products   true error   peak MB")
    shown = {"calib, certified": top, "calib, bound=estimate": lead["estimate"], **solved}
    for label, s in shown.items():
        error = abs(s["value"] / truth - 1)
        print(f"       {label:24} {s['seconds']:10.1f} {s['products']!s:>9} {error:12.1e} {s['peak']:9.0f}")
    if solved:
        best = min(s["seconds"] for s in solved.values())
        ratios = best / top["seconds"], best / lead["estimate"]["seconds"]
        print(f"       fastest peer / calib: {ratios[0]:.2f} certified, {ratios[1]:.2f} with bound=estimate")
    step = start("calib", "training", name, min(rows, 128), data)
    low = start("calib low", "estimate", name, rows, data)
    print(f"       peak MB: memory=low {low['peak']:.0f}, a training step of {min(rows, 128)} rows {step['peak']:.0f}")
    trace = start("calib", "trace", name, rows, data)
    dense = start("calib", "short" if by_count else "density", name, rows, data)
    product = dense["seconds"] / (SHORT if by_count else STEPS)
    ends = ENDS if by_count else sum(start("calib", t, name, rows, data)["products"] - 1 for t in ("top", "min"))
    print(f"   (b) trace: {trace['value']:.5g} ± {trace['error']:.2g} in {trace['seconds']:.2f} s: {trace['how']}")
    probed = {p: e for p in peers if (e := start(p, "probes", name, rows, data))}
    if not probed:
        return
    sd = (sum(e["sd"] ** 2 for e in probed.values()) / len(probed)) ** 0.5
    accuracy = max(0.01 * abs(trace["value"]), trace["error"])  # calib may stop at 1,024 probes, or miss a little
    probes = math.ceil((sd / accuracy) ** 2)
    share = accuracy / abs(trace["value"])
    print(
        f"       Hutchinson: one probe spreads by {sd:.3g}: {probes} for {share:.2g}; calib {product:.2f} s a product"
    )
    density = STEPS * product
    run = None if by_count or "PyHessian, in memory" not in probed else start(peers[0], "density", name, rows, data)
    totals = {}
    for p, e in probed.items():
        cost = e["setup"] + probes * e["each"]
        drawn = run["seconds"] if run and p == peers[0] else e["setup"] + STEPS * e["each"]
        totals[p] = e["setup"] + e["each"] * (solved.get(p, top)["products"] + ends + probes) + drawn
        print(
            f"       {p:24} {e['each']:6.2f} s a product: trace {cost:6.1f} s, {cost / trace['seconds']:.0f} × calib; "
            f"(c) density {drawn:.0f} s, {drawn / density:.2f} × calib{' (run)' if run and p == peers[0] else ''}; "
            f"peak {e['peak']:.0f} MB"
        )
    every = None if by_count else start("calib", "all", name, rows, data)
    mine, theirs = every["seconds"] if every else STEPS * product + trace["seconds"], min(totals.values())
    print(
        f"   (d) everything: calib {mine:.1f} s{'' if every else ' (by count)'}, fastest peer {theirs:.1f} s by count, "
        f"{theirs / mine:.1f} ×",
        flush=True,
    )


if __name__ == "__main__":
    given = arguments(__doc__, data="", only="")
    cases = [("mlp", 2000, False), ("vit", 32, False)]
    if given.data and Path(given.data, "cifar10_resnet20.safetensors").exists():
        cases += [("mlp-cifar", 2000, False), ("vit-cifar", 128, True)]
        cases += [("resnet20", 256, False), ("resnet20", 1000, True)]  # the last takes long
    else:
        print("no --data with cifar10_resnet20.safetensors: CIFAR-10 is skipped")
    for name, rows, by_count in cases:
        if given.only in f"{name}-{rows}":
            compare(name, rows, given.data, by_count)
    for name in (*_curvature_hard.CASES, *(_curvature_hard.LARGE if given.only else ())):
        if given.only in name:
            _curvature_hard.compare(name)
