"""The memory plan of `calib curvature` against what a run takes at its peak.

    python benchmarks/memory.py                        four models, λmax to 10 %, certified
    python benchmarks/memory.py --only resnet50        one of them
    python benchmarks/memory.py --told 200 --what trace    with so many MiB said to be free: within it, or refused

The plan is counted from what the result states: graphs of the first derivative, as many as are kept, each with the
gradient and its negative (`MemoryPlan.graphs`), and as much again as one for the second backward pass; the copy of the
model; 32 bytes per parameter (`engine.WORKING`); the vectors of the Krylov basis that were made, and what is remembered
of the product of each or, of a model too large for that, the Ritz vectors of a certificate, for which kept graphs make
room; the outputs of all rows. The peak is that of resident memory (VmHWM, set back once everything was imported and the
model made) over what was resident then.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from _curvature_hard import case
from _harness import arguments, attempt, head, machine, row

MODELS = ("mlp", "resnet50", "parameters-25M", "words-50000")


def reset_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def resident(field: str) -> float:
    """`VmHWM` or `VmRSS` in MiB."""
    text = Path("/proc/self/status").read_text()
    return int(re.search(rf"{field}:\s+(\d+)", text)[1]) / 1024  # type: ignore[index]


def network(name: str) -> Any:
    import torch
    from torch import nn

    torch.manual_seed(0)
    if name == "mlp":
        x = torch.randn(4096, 784)
        layers = nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)
        return nn.Sequential(*layers), x, torch.arange(len(x)) % 10
    if name == "resnet50":
        from calibcli.networks.architectures import build

        return build("resnet50"), torch.randn(16, 3, 32, 32), torch.arange(16) % 10
    return case(name)


def worker(name: str, memory: str, what: str, told: float) -> dict[str, Any]:
    import torch

    from calibcli.core.errors import InputError
    from calibcli.core.memory import limit_memory, trim
    from calibcli.networks.curvature import engine, measure, problem, spectrum

    torch.set_num_threads(1)
    measure(
        torch.nn.Linear(3, 2), (torch.randn(8, 3), torch.arange(8) % 2), "lambda_max"
    )  # what is imported at first use
    seen: dict[str, Any] = {}
    plain = spectrum.Lanczos.extend

    def extend(self: Any) -> None:
        plain(self)
        seen.update(run=self)

    spectrum.Lanczos.extend = extend  # type: ignore[method-assign]
    choose = problem.CurvatureProblem.choose_plan

    def chosen(self: Any, by_group: bool = True) -> None:
        choose(self, by_group)
        seen.update(problem=self, checked=resident("VmHWM"))

    problem.CurvatureProblem.choose_plan = chosen  # type: ignore[method-assign]
    model, x, y = network(name)
    model.eval()
    trim()
    reset_peak()
    before = resident("VmRSS")
    if told:
        limit_memory(int((before + told) * 2**20))
    try:
        found = measure(model, (x, y), what, memory=memory)  # type: ignore[arg-type]
    except InputError as error:
        return {"peak": resident("VmHWM") - before, "refused": error.problem}
    p, run, basis = seen["problem"], seen.get("run"), 0
    second = p.graph_bytes * min(p.layout.micro, p.layout.n)  # what the second backward pass of a micro-batch holds
    graphs = p.plan.graphs(p.graph_bytes, p.size * p.dtype.itemsize) + second
    if run:
        vector, m = p.size * run.storage.itemsize, len(run.basis)
        if isinstance(run.operator, spectrum.Record):
            beside = m * spectrum.remembered_bytes(p.size, run.storage)
        else:  # kept graphs make room for a certificate's Ritz vectors, but of a small model, where that is little
            beside = max(0, min(m, 1 + max(1, engine.NEAR // vector)) * vector - (graphs - second))
        basis = m * vector + beside
    copies = sum(t.numel() * t.element_size() for t in (*p.model.parameters(), *p.model.buffers()))
    return {
        "parts": [v / 2**20 for v in (graphs, basis, copies, p.size * engine.WORKING, p.outputs_bytes)],
        "peak": resident("VmHWM") - before,
        "checked": seen["checked"] - before,
        "plan": found.facts["memory_plan"],
    }


def main() -> None:
    given = arguments(__doc__, only="", what="lambda_max:tol=0.1", told=0.0, memory=["auto", "low"])
    print(machine("torch"), "", sep="\n")
    print(head("", "graphs", "basis", "model", "vectors", "outputs", "plan, MiB", "peak", "peak / plan", "self-test"))
    for name in MODELS:
        if given.only in name:
            for memory in given.memory:
                e = attempt(worker, name, memory, given.what, given.told)
                if isinstance(e, str):
                    print(row(f"{name}, {memory}", e), flush=True)
                    continue
                if "refused" in e:
                    print(row(f"{name}, {memory}", f"peak {e['peak']:.0f}", f"refused: {e['refused']}"), flush=True)
                    continue
                plan = sum(e["parts"])
                parts = [f"{part:.0f}" for part in e["parts"]]
                ratio = f"{e['peak'] / plan:.2f}"
                print(row(f"{name}, {memory}", *parts, f"{plan:.0f}", f"{e['peak']:.0f}", ratio, f"{e['checked']:.0f}"))
                print(f"    {e['plan']}", flush=True)


if __name__ == "__main__":
    main()
