"""λmax of calib, of a bare Lanczos with a kept graph and of the other tools, by turns in one process.

    python benchmarks/curvature_turns.py                   digits, bert (has transformers), vit, 50,000 words, 25M
    python benchmarks/curvature_turns.py --data DIR        and the trained ResNet-20 of `curvature.py`, 64 and 256 rows
    python benchmarks/curvature_turns.py --only digits     one case, or a part of its name

The bare run keeps the graph of the gradient of all rows, orthogonalises each vector against all others twice in
float64, and stops where the Ritz residual is within the tolerance: no self-test, no plan, no certificate, no error over
rows. A *bare product* is one more backward pass through that graph, median of five. `of bare products` is the seconds
over the number of products that the tool made, times a bare product. The other tools stop by their own rule, tightened
until their true error is within the tolerance too, or they are said not to reach it. CPU seconds of one thread, median
of the rounds.
"""

from __future__ import annotations

import importlib
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import _curvature_hard
import curvature
import torch
from _harness import ROOT, arguments, attempt, head, installed, machine, row
from torch import Tensor, nn

CASES = {  # tolerance, rounds
    "digits": (1e-3, 5),
    "bert": (1e-3, 3),
    "resnet20-64": (1e-3, 3),
    "resnet20-256": (1e-3, 1),
    "vit-32": (1e-3, 3),
    "words-50000": (1e-3, 3),
    "parameters-25M": (3e-2, 1),
}
EFFORTS = {
    "PyHessian, in memory": (1e-3, 1e-4, 1e-5),
    "eigenthings, Lanczos": range(0, 12, 2),
    "curvlinops": (1e-3, 1e-5),
}


def problem(name: str, data: str) -> tuple[nn.Module, Tensor, Tensor]:
    if name == "digits":
        from calibcli.networks import checkpoint

        loaded = checkpoint.load(str(ROOT / "sample_data/model.pt"))
        rows = loaded.open_data(str(ROOT / "sample_data/digits.npz#test"))
        x, y = rows.batch(slice(0, 960))  # hessian-eigenthings weighs a shorter last batch like the others
        return loaded.model, x, y  # type: ignore[return-value]
    if name == "bert":
        sys.path.append(str(ROOT / "tests"))
        importlib.import_module("zoos")  # torchvision, which transformers asks for, can be imported beside a CPU torch
        from transformers import BertConfig, BertForSequenceClassification

        torch.manual_seed(0)
        sizes = {"hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 128}
        config = BertConfig(vocab_size=500, max_position_embeddings=64, num_labels=4, **sizes)
        x = torch.randint(0, 500, (64, 16))
        return Tokens(BertForSequenceClassification(config)), x, torch.randint(0, 4, (64,))
    if name in _curvature_hard.CASES:
        return _curvature_hard.case(name)
    kind, rows = name.split("-")
    return curvature.network(kind, int(rows), data, curvature.CACHE.name)


class Tokens(nn.Module):
    """A model of transformers that takes tokens by position and gives logits alone."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor) -> Tensor:
        return self.model(input_ids=tokens).logits  # type: ignore[no-any-return]


def kept_graph(model: nn.Module, x: Tensor, y: Tensor) -> tuple[Callable[[Tensor], Tensor], int]:
    parameters = list(model.parameters())
    gradient = torch.autograd.grad(curvature.LOSS(model(x), y), parameters, create_graph=True, materialize_grads=True)
    live = [g for g in gradient if g.requires_grad]

    def product(v: Tensor) -> Tensor:
        pieces = [p.view_as(t) for p, t in zip(v.split([t.numel() for t in parameters]), parameters)]
        along = [p for p, g in zip(pieces, gradient) if g.requires_grad]
        found = torch.autograd.grad(live, parameters, along, retain_graph=True, materialize_grads=True)
        return torch.cat([f.reshape(-1) for f in found])

    return product, sum(p.numel() for p in parameters)


def bare(model: nn.Module, x: Tensor, y: Tensor, tol: float) -> tuple[float, int]:
    product, size = kept_graph(model, x, y)
    torch.manual_seed(1)
    v = torch.randn(size, dtype=torch.float64)
    basis, alphas, betas = [v / v.norm()], list[float](), list[float]()
    while True:
        w = product(basis[-1].float()).double()
        alphas.append(float(w @ basis[-1]))
        for _ in "12":
            for u in basis:
                w -= (w @ u) * u
        betas.append(float(w.norm()))
        t = torch.diag(torch.tensor(alphas, dtype=torch.float64))
        beside = torch.tensor(betas[:-1], dtype=torch.float64)
        values, vectors = torch.linalg.eigh(t + torch.diag(beside, 1) + torch.diag(beside, -1))
        if betas[-1] * abs(float(vectors[-1, -1])) <= tol * abs(float(values[-1])) or len(alphas) == 200:
            return float(values[-1]), len(alphas)
        basis.append(w / betas[-1])


def calib(model: nn.Module, x: Tensor, y: Tensor, spec: str) -> tuple[float, int]:
    from calibcli.networks.curvature import measure

    e = measure(model, (x, y), spec).estimates[0]
    assert e.value is not None
    return e.value, int(e.detail["products"])


def other(tool: str, model: nn.Module, x: Tensor, y: Tensor, effort: float) -> tuple[float, int]:
    matvec, size, solve, _ = curvature.OPERATORS[tool](model, x, y)
    if tool == "curvlinops":
        import numpy as np
        from scipy.sparse.linalg import LinearOperator, eigsh

        count = [0]

        def counted(v: Any) -> Any:
            count[0] += 1
            return matvec(torch.from_numpy(np.asarray(v, np.float32)).reshape(-1)).detach().numpy()

        found = eigsh(LinearOperator((size, size), counted, dtype=np.float32), 1, which="LA", tol=effort)  # type: ignore[arg-type]
        return float(found[0][0]), count[0]
    value, products, _ = solve(effort)
    return value, products


def worker(name: str, data: str, rounds: int) -> dict[str, Any]:
    torch.set_num_threads(1)
    torch.backends.mha.set_fastpath_enabled(False)
    model, x, y = problem(name, data)
    model.eval()
    tol = CASES[name][0]
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        calib(model, x[:4], y[:4], "lambda_max:tol=0.5")  # what is imported at first use
        truth, steps = calib(model, x, y, f"lambda_max:tol={tol / 10 if tol < 1e-2 else tol}")
        product, size = kept_graph(model, x, y)
        v, each = torch.randn(size), []
        for _ in range(5):
            start = time.process_time()
            product(v)
            each.append(time.process_time() - start)
        del product
        works: dict[str, Callable[[], tuple[float, int]]] = {
            "bare Lanczos": lambda: bare(model, x, y, tol),
            "calib, certified": lambda: calib(model, x, y, f"lambda_max:tol={tol}"),
            "calib, bound=estimate": lambda: calib(model, x, y, f"lambda_max:tol={tol},bound=estimate"),
        }
        missed = []
        for tool, efforts in EFFORTS.items():
            if not installed(curvature.PEERS[tool]):
                continue
            try:
                for effort in efforts:
                    effort += steps - 3 if "Lanczos" in tool else 0
                    value, _ = other(tool, model, x, y, effort)
                    if abs(value / truth - 1) <= tol:
                        works[tool] = lambda tool=tool, effort=effort: other(tool, model, x, y, effort)  # type: ignore[misc]
                        break
                else:
                    missed.append(f"{tool}: λ = {value:.6g}")
            except Exception as error:
                missed.append(f"{tool}: {type(error).__name__} {str(error)[:60]}")
        found: dict[str, list[Any]] = {work: [] for work in works}
        for _ in range(rounds):
            for work, run in works.items():
                start = time.process_time()
                value, products = run()
                found[work].append((time.process_time() - start, value, products))
    return {"truth": truth, "each": sorted(each)[2], "size": size, "found": found, "missed": missed}


def compare(name: str, data: str, rounds: int) -> None:
    e = attempt(worker, name, data, rounds)
    if isinstance(e, str):
        return print(f"\n{name}: {e}", flush=True)
    print(f"\n{name}: {e['size']:,} parameters, a bare product {e['each']:.3g} CPU s, λmax {e['truth']:.6g}\n")
    print(head("", "CPU s", "products", "of bare products", "of the bare run", "true error"))
    took = {work: statistics.median(seconds for seconds, *_ in runs) for work, runs in e["found"].items()}
    for work, runs in e["found"].items():
        _, value, products = runs[0]
        ratios = f"{took[work] / (products * e['each']):.2f}", f"{took[work] / took['bare Lanczos']:.2f}"
        print(row(work, f"{took[work]:.3g}", products, *ratios, f"{abs(value / e['truth'] - 1):.1e}"))
    if peers := [tool for tool in EFFORTS if tool in took]:
        best = min(peers, key=lambda tool: took[tool])
        ours = ", ".join(f"{work} {took[work] / took[best]:.2f}" for work in took if work.startswith("calib"))
        print(f"\nof the time of the fastest other tool within the tolerance, {best}: {ours}")
    print(*(f"not within the tolerance: {one}" for one in e["missed"]), sep="\n", flush=True)


if __name__ == "__main__":
    given = arguments(__doc__, data="", only="", rounds=0)
    print(machine("torch"))
    for name, (_, rounds) in CASES.items():
        if given.only in name and name.startswith("resnet20") and not given.data:
            print(f"\n{name}: pass --data DIR, see curvature.py")
        elif given.only in name:
            compare(name, given.data and str(Path(given.data).resolve()), given.rounds or rounds)
