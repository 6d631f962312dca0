"""Cases of `curvature.py` where a plain double backward, kept and called by hand, is hard to beat.

A model of 25 million parameters with 16 rows (a product costs what its weights cost), and a decoder with 50,000 words,
whose arrays are rows × words. Beside them λmax of transformers with random weights, one of which does not fit many
times into memory: no graph is kept beyond one micro-batch, the Krylov basis is float32 and bounded (thick restarts).
Each tool runs in a process of its own.
"""

from __future__ import annotations

import sys
import time
from importlib import import_module
from typing import Any

import torch
from _harness import attempt, installed, peak
from torch import Tensor, nn

CASES = ("parameters-25M", "words-50000")
LARGE = {"parameters-6M": 256, "parameters-100M": 1024}
"""Width of those that run only when they are named."""
LOSS = nn.functional.cross_entropy
WORDS = 50_000


class Encoder(nn.Module):
    """Of tokens: logits of the mean over positions, or of the last one."""

    def __init__(
        self,
        width: int,
        depth: int,
        words: int,
        classes: int,
        *,
        heads: int = 4,
        place: bool = True,
        last: bool = False,
    ) -> None:
        super().__init__()
        self.embed, self.last = nn.Embedding(words, width), last
        self.place = nn.Parameter(0.1 * torch.randn(64, width)) if place else None
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(width, heads, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True)
            for _ in range(depth)
        )
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        if self.place is not None:
            x = x + self.place[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        x = self.norm(x)
        return self.head(x[:, -1] if self.last else x.mean(1))


def case(name: str) -> tuple[nn.Module, Tensor, Tensor]:
    torch.manual_seed(0)
    if name in LARGE:
        model = Encoder(LARGE[name], 8, 1000, 10, heads=8, place=False)
        return model, torch.randint(0, 1000, (16, 32)), torch.randint(0, 10, (16,))
    if name == "parameters-25M":
        return Encoder(576, 6, 1000, 10), torch.randint(0, 1000, (16, 32)), torch.randint(0, 10, (16,))
    x, y = torch.randint(0, WORDS, (64, 16)), torch.randint(0, WORDS, (64,))
    return Encoder(32, 2, WORDS, WORDS, last=True), x, y


def plain(model: nn.Module, x: Tensor, y: Tensor) -> dict[str, Any]:
    parameters = list(model.parameters())
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        gradient = torch.autograd.grad(LOSS(model(x), y), parameters, create_graph=True)
        v, each = [torch.randn_like(p) for p in parameters], []
        for _ in range(4):
            start = time.process_time()
            torch.autograd.grad(gradient, parameters, v, retain_graph=True)
            each.append(time.process_time() - start)
    return {"each": sorted(each[1:])[1]}


def ours(model: nn.Module, x: Tensor, y: Tensor, what: str, memory: Any = "auto") -> dict[str, Any]:
    import calibcli.networks.curvature as hessian
    from calibcli.networks.curvature import engine, spectrum

    spent: dict[str, list[float]] = {"check": [], "extend": [], "certify": []}

    def timed(owner: Any, name: str) -> None:
        function = getattr(owner, name)

        def measured(*args: Any, **kwargs: Any) -> Any:
            start = time.process_time()
            found = function(*args, **kwargs)
            spent[name].append(time.process_time() - start)
            return found

        setattr(owner, name, measured)

    for owner, name in ((hessian, "check"), (spectrum.Lanczos, "extend"), (engine, "certify")):
        timed(owner, name)
    found = hessian.measure(model, (x, y), what, memory=memory)
    e, steps = found.estimates[0], sorted(spent["extend"][1:])
    return {
        "value": e.value,
        "how": e.how,
        "products": len(steps) + 1 if steps else 0,
        "each": steps[len(steps) // 2] if steps else 0.0,
        "check": sum(spent["check"]),
        "certificate": sum(spent["certify"]),
        "plan": f"{found.facts['memory_plan']}; basis {found.facts.get('krylov_basis', '')}",
    }


def pyhessian(model: nn.Module, x: Tensor, y: Tensor, tol: float) -> dict[str, Any]:
    import_module("pyhessian")
    module: Any = sys.modules["pyhessian.hessian"]  # the package's name is the class
    count, product = [0], module.hessian_vector_product

    def counted(*args: Any) -> Any:
        count[0] += 1
        return product(*args)

    module.hessian_vector_product = counted
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        values = module.hessian(model, LOSS, cuda=False, data=(x, y)).eigenvalues(tol=tol, maxIter=200)[0]
    return {"value": float(values[0]), "products": count[0]}


def worker(tool: str, name: str) -> dict[str, Any]:
    torch.set_num_threads(1)
    torch.backends.mha.set_fastpath_enabled(False)
    model, x, y = case(name)
    model.eval()
    tol = 0.05 if name in LARGE else 0.03 if name == "parameters-25M" else 1e-3
    import_module("torch.fx.experimental.symbolic_shapes")  # autograd imports it at first use: half a second
    if tool.startswith("calib"):
        import_module("calibcli.networks.curvature")
    before, start = peak(), time.process_time()
    if tool == "plain":
        found = plain(model, x, y)
    elif tool == "PyHessian":
        found = pyhessian(model, x, y, tol)
    else:
        what = "trace_ggn" if tool == "calib, trace_ggn" else f"lambda_max:tol={tol}"
        found = ours(model, x, y, what, "low" if name in LARGE else "auto")
    size = sum(p.numel() for p in model.parameters()) / 1e6
    return found | {"seconds": time.process_time() - start, "peak": peak() - before, "before": before, "size": size}


def compare(name: str) -> None:
    if name in LARGE:
        e: Any = attempt(worker, "calib", name)
        if isinstance(e, str):
            return print(f"{name}: {e}")
        print(f"{name}: {e['size']:.1f} M parameters, 16 rows of 32 tokens\n   plan: {e['plan']}")
        print(f"   λmax {e['value']:.5g}: {e['how']}; {e['seconds']:.0f} CPU s", end="")
        print(f", peak {(e['peak'] + e['before']) / 1024:.2f} GiB (model and imports before: {e['before'] / 1024:.2f})")
        return None
    print(f"{name}, beside a plain product with its graph kept")
    hand: Any = attempt(worker, "plain", name)
    one = hand["each"]
    print(f"   plain: {one:.2f} s a product, peak {hand['peak']:.0f} MB")
    tools = ["calib", *(["PyHessian"] if installed("pyhessian") else [])]
    for tool in [*tools, *(["calib, trace_ggn"] if name == "words-50000" else [])]:
        e = attempt(worker, tool, name)
        if isinstance(e, str):
            print(f"   {tool}: {e}")
            continue
        text = f"   {tool}: {e['value']:.6g}, {e['products']} products, {e['seconds'] / one:.1f} plain products in all"
        if "each" in e and e["products"]:
            text += f", {e['each'] / one:.2f} each, certificate {e['certificate'] / one:.1f}"
        text += f", self-test {e['check'] / one:.2f}" if "check" in e else ""
        print(f"{text}, peak {e['peak']:.0f} MB")
        if "plan" in e:
            print(f"      {e['how']}; {e['plan']}", flush=True)
    return None
