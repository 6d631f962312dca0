"""What curvature of large networks would take on a GPU: kernels counted on a pretended one, the rest arithmetic.

    python benchmarks/device_arithmetic.py [resnet18] [vit_s16] [resnet50 ...]  (torchvision for the residual networks)
                                           [--pixels 64]
    python benchmarks/device_arithmetic.py fit                                  launches of a step of training

Nothing here has run on a GPU. For two rows of 224 x 224 the pretended device of tests/device counts launches and
`FlopCounterMode` the operations of products; both are carried over to 256 rows in micro-batches that memory takes. A
kernel takes what the host needs to launch it or what its operations take at half the peak, whichever is more in sum.
With `--pixels 64` operations and graphs are those of smaller pictures times the ratio of the areas: exact for
convolutions, a tenth too few for attention. Memory's bandwidth, occupancy and cuDNN's choices are not in it. Other
tools are one plain product (a double backward whose graph is kept) times the products that they need, and for a density
what PyHessian launches to keep vectors orthogonal, where it is installed; ours are counted quantity by quantity.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
LAUNCH = 6e-6  # seconds that the host takes for a launch, a usual figure
PEAK = {"float32": 67e12, "TF32": 495e12}  # an H200's dense peaks, operations a second
REACHED = 0.5
MEMORY = 139 << 30  # bytes of an H200, of which a micro-batch's graph may take a quarter and all graphs .4
ROWS, FEW = 256, 2
TEST = 3  # plain products of four rows, by kernels, that self-test and plan take (benchmarks/device.py)
STEPS = 80  # Lanczos steps of a density
ENDS = 15 + 57  # products of other tools for the top 5 and for λmin, at least (benchmarks/curvature.py)
CERTIFICATES = 6  # of the top 5 and λmin


class Needs(NamedTuple):
    """Products for λmax to 1e-3: ours before the certificate and without one, and PyHessian's; for 1 % of the trace
    Hutchinson's probes, and ours of H - G. Those of a ResNet-20 and a ViT on a CPU (benchmarks/RESULTS.md)."""

    certified: int
    estimate: int
    theirs: int
    hutchinson: int
    probes: int


NEEDS = {"resnet": Needs(8, 6, 16, 3230, 0), "vit": Needs(7, 6, 15, 1482, 57)}


class Work(NamedTuple):
    """Launches, and operations of products."""

    kernels: int
    operations: float

    def seconds(self, speed: str, times: float = 1.0, rows: float = 1.0) -> float:
        """Of `times` as many launches and `times * rows` as many operations."""
        return times * max(self.kernels * LAUNCH, rows * self.operations / (REACHED * PEAK[speed]))


def counted(work: Callable[[], Any]) -> Work:
    import pretend
    from torch.utils.flop_counter import FlopCounterMode

    pretend.reset()
    with FlopCounterMode(display=False) as counter:
        work()
    return Work(pretend.kernels(), counter.get_total_flops())


def network(name: str, pixels: int) -> Any:
    if name == "vit_s16":
        from calibcli.architectures import build

        return build(f"vit:classes=1000,image={pixels},patch=16,dim=384,depth=12,heads=6")
    sys.path.append(str(ROOT / "tests"))
    import zoos  # noqa: F401  torchvision beside a CPU torch
    from torchvision import models

    return getattr(models, name)()


def plain(model: Any, x: Any, y: Any) -> Work:
    """A double backward of all rows, its graph kept."""
    import torch

    weights = list(model.parameters())
    gradients = torch.autograd.grad(torch.nn.functional.cross_entropy(model(x), y), weights, create_graph=True)
    v = [torch.ones_like(w) for w in weights]
    return counted(lambda: torch.autograd.grad(gradients, weights, v, retain_graph=True))


def orthogonal(model: Any) -> tuple[int, int]:
    """Launches by which PyHessian normalises a vector, and makes it orthogonal to one other; 0 where it is missing."""
    try:
        from pyhessian.utils import orthnormal
    except ImportError:
        return 0, 0
    import torch

    one, other = ([torch.ones_like(w) for w in model.parameters()] for _ in range(2))
    alone = counted(lambda: orthnormal(one, [])).kernels
    return alone, counted(lambda: orthnormal(one, [other])).kernels - alone


def measured(name: str, pixels: int) -> tuple[dict[str, Work], Any, tuple[int, int]]:
    """The counts for FEW rows of 224 x 224, the problem, and what `orthogonal` says."""
    import pretend
    import torch

    from calibcli.hessian import Tensors
    from calibcli.hessian.engine import Engine, Shared
    from calibcli.hessian.problem import Problem
    from calibcli.hessian.selftest import check
    from calibcli.hessian.settings import second_order
    from calibcli.losses import CrossEntropy

    torch.manual_seed(0)
    cuda, out = torch.device("cuda", 0), {}
    model = network(name, pixels).to(cuda).eval()
    x, y = torch.randn(FEW, 3, pixels, pixels).to(cuda), torch.arange(FEW).to(cuda)
    with second_order(cuda):
        out["plain"], peer = plain(model, x, y), orthogonal(model)
        problem = Problem(model, Tensors(x, y), device=cuda, dtype=torch.float32)
        check(problem, CrossEntropy())
        engine = Engine(Shared(problem, 0, 0.95, None), CrossEntropy())
        engine.krylov.extend()  # its graph is kept
        out["step"] = counted(engine.krylov.extend)
        ones = torch.ones(problem.size, device=cuda)
        out["product"] = counted(lambda: engine.hessian.matvec(ones))
        out["trial"], out["certificate"] = (counted(lambda: list(engine.hessian.by_group(ones))) for _ in range(2))
        engine.hessian.drop()
        cotangents = torch.ones(FEW, problem.classes, device=cuda)
        engine.shared.norms  # noqa: B018
        out["pairs"] = counted(lambda: engine.shared.norms(torch.arange(FEW), cotangents))
        if bool(engine.has_curvature.any()):
            engine.prober.forward  # noqa: B018
            engine.probe(0, 1, 0.0)
            pretend.reset()
            engine.probe(0, 1, 0.0)  # FlopCounterMode's hooks fail in it: a form takes no more than a product
            out["probe"] = Work(pretend.kernels(), out["product"].operations)
    larger = (224 / pixels) ** 2
    problem.graph_bytes = int(problem.graph_bytes * larger)
    return {key: Work(work.kernels, work.operations * larger) for key, work in out.items()}, problem, peer


def said(name: str, found: dict[str, Work], problem: Any, peer: tuple[int, int]) -> str:
    """The lines of a network."""
    needs = next(v for key, v in NEEDS.items() if name.startswith(key))
    graph, micro = problem.graph_bytes, 1
    while micro < ROWS and 2 * micro * graph <= MEMORY // 4:
        micro *= 2
    batches, scale, every = ROWS // micro, micro / FEW, ROWS * graph
    held = every if every <= 0.4 * MEMORY else micro * graph
    lines = [
        f"{name}: {found['plain'].operations / FEW / 1e9:.0f} GFLOP a row and product, {graph >> 20} MiB of graph a"
        f" row, {batches} micro-batches of {micro} rows",
        f"   launches: plain product {found['plain'].kernels:,}, ours {found['product'].kernels:,} a micro-batch"
        f" ({found['product'].kernels / found['plain'].kernels:.2f}), certificate {found['trial'].kernels:,} (a second"
        f" one {found['certificate'].kernels:,}), pairs {found['pairs'].kernels:,}",
        f"   memory: graphs {held / 2**30:.0f} GiB, a plain product {every / 2**30:.0f}; a Krylov vector"
        f" {4 * problem.size / 2**30:.2f}, in either",
    ]
    vectors = (STEPS * peer[0] + STEPS * (STEPS - 1) // 2 * peer[1]) * LAUNCH  # a wait between it and each product
    for speed in PEAK:
        one, kept = (
            found["plain"].seconds(speed, 1, ROWS / FEW),
            found["product"].seconds(speed, batches, scale),
        )
        step = kept + (found["step"].kernels - found["product"].kernels) * LAUNCH
        second = found["certificate"].seconds("float32", batches, scale)
        by_group = found["trial"].seconds("float32", 1, scale) + second * (batches - 1) / batches
        test = TEST * found["plain"].seconds(speed, 1, 4 / FEW)
        largest = test + needs.certified * step + by_group, needs.theirs * one
        estimate = test + needs.estimate * step
        traced = 3 * found["pairs"].seconds("float32", batches, scale), needs.hutchinson * one
        if "probe" in found:
            traced = traced[0] + needs.probes * found["probe"].seconds("float32", batches, scale), traced[1]
        density = test + STEPS * step, STEPS * one + vectors
        whole = density[0] + by_group + (CERTIFICATES - 1) * second + traced[0]
        theirs = largest[1] + ENDS * one + traced[1] + density[1]
        lines += [
            f"   {speed:8}: product {kept * 1e3:.0f} ms, plain {one * 1e3:.0f} ({one / kept:.2f}); λmax"
            f" {largest[0]:.1f} s certified, {estimate:.1f} not, PyHessian {largest[1]:.1f}"
            f" ({largest[1] / largest[0]:.1f}, {largest[1] / estimate:.1f})",
            f"{'':13}trace to 1 % {traced[0]:.2f} s, Hutchinson {traced[1]:.0f} ({traced[1] / traced[0]:,.0f}); density"
            f" {density[0]:.1f} s, PyHessian {density[1]:.1f} ({density[1] / density[0]:.1f}), {vectors:.1f} of it"
            f" launches for vectors; everything {whole:.1f} s, others {theirs:.0f} ({theirs / whole:.1f})",
        ]
    return "\n".join(lines)


def fit() -> None:
    """Launches and waits of a step of training, ours and a plain loop's: of an epoch of 40 steps less one of 8."""
    import pretend
    import torch
    from fit import Case

    from calibcli.architectures import build

    cuda = torch.device("cuda", 0)
    for arch in ("resnet:depth=20,classes=10", "vit:classes=10,image=32,patch=4,dim=32,depth=6,heads=2"):
        each: dict[str, list[float]] = {}
        for kind in ("plain", "ce"):
            counts = []
            for steps in (8, 40):
                case, model = Case(arch, (3, 32, 32), 4 * steps, 4, cuda), build(arch).to(cuda)
                with tempfile.TemporaryDirectory() as folder:
                    plain = kind == "plain"
                    work = case._plain(model, 1) if plain else case._trainer(model, kind, Path(folder), 1)
                    launches = counted(work).kernels
                counts.append((launches, pretend.syncs()))
            each[kind] = [(b - a) / 32 for a, b in zip(*counts)]
        theirs, (ours, waits) = each["plain"][0], each["ce"]
        print(
            f"fit, {arch.partition(':')[0]}: launches a step {ours:.1f}, a plain loop's {theirs:.1f}"
            f" ({theirs / ours:.2f}); waits a step {waits:.2f}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=["vit_s16", "resnet18", "resnet50", "fit"])
    parser.add_argument("--pixels", type=int, default=224, help="of smaller pictures, whose operations are scaled")
    given = parser.parse_args()
    sys.path.insert(0, str(ROOT / "tests" / "device"))
    import pretend

    pretend.load()
    print(
        f"Arithmetic for {ROWS} rows of 224 x 224 on an H200, from launches counted on a pretended device; no GPU ran."
    )
    for name in given.names:
        if name == "fit":
            fit()
        else:
            print(said(name, *measured(name, given.pixels)), flush=True)


if __name__ == "__main__":
    main()
