"""Cases of `curvature.py` where a plain double backward, kept and called by hand, is hard to beat.

One row that dominates (few products suffice for every tool); one row thirty times as large as the others (λ1 >> λ2); a
model of 25 million parameters with 16 rows (a product costs what its weights cost); a decoder with 50,000 words, whose
arrays are rows × words. Each tool runs in a process of its own.
"""

from __future__ import annotations

import json
import sys
import time
from importlib import import_module
from typing import Any

import torch
from _harness import child, installed, peak
from torch import Tensor, nn

CASES = ("one-row", "outlier", "parameters-25M", "words-50000")
LOSS = nn.functional.cross_entropy
WORDS = 50_000
LARGE = 10_000_000  # parameters from which λmax is looked for to 3 % only


class Encoder(nn.Module):
    """Of tokens: logits of the mean over positions, or of the last one."""

    def __init__(self, width: int, depth: int, words: int, classes: int, *, last: bool = False) -> None:
        super().__init__()
        self.embed, self.last = nn.Embedding(words, width), last
        self.place = nn.Parameter(0.1 * torch.randn(64, width))
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 4, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True)
            for _ in range(depth)
        )
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens) + self.place[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x[:, -1] if self.last else x.mean(1)))


def case(name: str) -> tuple[nn.Module, Tensor, Tensor]:
    torch.manual_seed(0)
    if name == "parameters-25M":
        return Encoder(576, 6, 1000, 10), torch.randint(0, 1000, (16, 32)), torch.randint(0, 10, (16,))
    if name == "words-50000":
        x, y = torch.randint(0, WORDS, (64, 16)), torch.randint(0, WORDS, (64,))
        return Encoder(32, 2, WORDS, WORDS, last=True), x, y
    if name == "outlier":
        x = torch.randn(256, 784) * torch.ones(256, 1).index_fill(0, torch.tensor([0]), 30.0)
        return nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 2)), x, torch.arange(256) % 2
    x = torch.randint(0, 8, (256, 16))
    y = (x[:, ::2].sum(1) > x[:, 1::2].sum(1)).long()
    model = Encoder(32, 2, 8, 2)
    # row 0 is met with both labels, so that it stays between the classes when the others are learnt
    both, labels = (
        torch.cat([x, x[:1].expand(7, -1)]),
        torch.cat([y, (y[:1] + 1) % 2, y[:1].repeat(3), 1 - y[:1].repeat(3)]),
    )
    optimizer = torch.optim.Adam(model.parameters(), 2e-3)
    for step in range(2000):
        part = torch.randperm(len(both))[:64]
        optimizer.zero_grad()
        LOSS(model(both[part]), labels[part]).backward()
        optimizer.step()
        if step % 20 == 19 and held(model, x) > 0.8:
            break
    return model, x, y


def held(model: nn.Module, x: Tensor) -> float:
    """The largest share of a row in Σ p (1 - p), to which its Gauss-Newton matrix is proportional."""
    with torch.no_grad():
        p = model(x).double().softmax(1)[:, 0]
    mass = p * (1 - p)
    return float(mass.max() / mass.sum())


def plain(model: nn.Module, x: Tensor, y: Tensor) -> dict[str, Any]:
    parameters = list(model.parameters())
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        gradient = torch.autograd.grad(LOSS(model(x), y), parameters, create_graph=True)
        v = [torch.randn_like(p) for p in parameters]
        each = []
        for _ in range(4):
            start = time.process_time()
            product = torch.autograd.grad(gradient, parameters, v, retain_graph=True)
            each.append(time.process_time() - start)
            del product
    return {"each": sorted(each[1:])[1]}


def ours(model: nn.Module, x: Tensor, y: Tensor, what: str) -> dict[str, Any]:
    import calibcli.networks.curvature as hessian
    from calibcli.networks.curvature import engine, spectrum

    spent: dict[str, list[float]] = {}

    def timed(owner: Any, name: str) -> None:
        function = getattr(owner, name)

        def measured(*args: Any, **kwargs: Any) -> Any:
            start = time.process_time()
            found = function(*args, **kwargs)
            spent.setdefault(name, []).append(time.process_time() - start)
            return found

        setattr(owner, name, measured)

    for owner, name in ((hessian, "check"), (spectrum.Lanczos, "extend"), (engine, "certify")):
        timed(owner, name)
    found = hessian.measure(model, (x, y), what)
    e, steps = found.estimates[0], sorted(spent.get("extend", [0.0])[1:])
    return {
        "value": e.value,
        "how": e.how,
        "products": len(steps) + 1 if steps else 0,
        "each": steps[len(steps) // 2] if steps else 0.0,
        "check": sum(spent["check"]),
        "certificate": sum(spent.get("certify", [])),
        "plan": f"{found.facts['memory_plan']}; basis {found.facts.get('krylov_basis', '')}",
    }


def pyhessian(model: nn.Module, x: Tensor, y: Tensor) -> dict[str, Any]:
    import_module("pyhessian")
    module: Any = sys.modules["pyhessian.hessian"]  # the package's name is the class
    count, product = [0], module.hessian_vector_product

    def counted(*args: Any) -> Any:
        count[0] += 1
        return product(*args)

    module.hessian_vector_product = counted
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        value = module.hessian(model, LOSS, cuda=False, data=(x, y)).eigenvalues(tol=tolerance(model), maxIter=200)[0][
            0
        ]
    return {"value": float(value), "products": count[0]}


def tolerance(model: nn.Module) -> float:
    return 0.03 if sum(p.numel() for p in model.parameters()) > LARGE else 1e-3


def worker(tool: str, name: str) -> None:
    torch.set_num_threads(1)
    torch.backends.mha.set_fastpath_enabled(False)
    model, x, y = case(name)
    model.eval()
    import_module("torch.fx.experimental.symbolic_shapes")  # autograd imports it at first use: half a second
    if tool.startswith("calib"):
        import_module("calibcli.networks.curvature")
    before, start = peak(), time.process_time()
    if tool == "plain":
        found = plain(model, x, y)
    elif tool == "PyHessian":
        found = pyhessian(model, x, y)
    else:
        found = ours(model, x, y, "trace_ggn" if tool == "calib, trace_ggn" else f"lambda_max:tol={tolerance(model)}")
    found |= {"seconds": time.process_time() - start, "peak": peak() - before}
    print(json.dumps(found | {"held": held(model, x) if name == "one-row" else 0.0}))


def start(tool: str, name: str) -> dict[str, Any] | None:
    try:
        return child(__file__, tool, name)  # type: ignore[no-any-return]
    except RuntimeError as error:
        print(f"   {tool}: failed ({error})")
        return None


def compare(name: str) -> None:
    print(f"{name}, beside a plain product with its graph kept")
    hand = start("plain", name)
    if hand is None:
        return
    one = hand["each"]
    print(f"   plain: {one:.2f} s a product, peak {hand['peak']:.0f} MB")
    tools = ["calib", *(["PyHessian"] if installed("pyhessian") else [])]
    for tool in [*tools, *(["calib, trace_ggn"] if name == "words-50000" else [])]:
        if (e := start(tool, name)) is None:
            continue
        text = f"   {tool}: {e['value']:.6g}, {e['products']} products, {e['seconds'] / one:.1f} plain products in all"
        if "each" in e and e["products"]:
            text += f", {e['each'] / one:.2f} each, certificate {e['certificate'] / one:.1f}"
        text += f", self-test {e['check'] / one:.2f}" if "check" in e else ""
        print(f"{text}, peak {e['peak']:.0f} MB" + (f"; one row holds {e['held']:.0%}" if e["held"] else ""))
        if "plan" in e:
            print(f"      {e['how']}; {e['plan']}", flush=True)


if __name__ == "__main__":
    worker(*sys.argv[1:])
