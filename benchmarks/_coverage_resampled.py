"""Coverage of the trace where one row dominates, over many more runs than `curvature_coverage.py` has time for.

The probes of a cell are drawn from 12,000 quadratic forms of its dense H - G, centred at its trace, instead of being
computed afresh. Pilot, allocation, exact cells and interval are the package's. Tr(G) is taken as known.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from calibcli.core.statistics import student_quantile
from calibcli.networks.curvature import Tensors
from calibcli.networks.curvature import trace as traces
from calibcli.networks.curvature.engine import SHARE, Engine, Shared
from calibcli.networks.curvature.problem import CurvatureProblem
from calibcli.networks.losses import CrossEntropy

FORMS, AT_ONCE = 12_000, 2_000
LEVEL, MOST = 0.95, 1024


@dataclass
class Cells:
    """What a run needs of a network: forms (cells, FORMS), traces (cells,), and its engine."""

    forms: Tensor
    true: Tensor
    engine: Engine
    rows: int

    @property
    def n(self) -> int:
        return self.engine.problem.layout.n

    @classmethod
    def of(cls, model: nn.Module, x: Tensor, y: Tensor) -> Cells:
        cpu = torch.device("cpu")
        problem = CurvatureProblem(model, Tensors(x, y), device=cpu, dtype=torch.float64, batch_size=256)
        problem.classes = model(x[:1]).shape[1]
        engine, rows = Engine(Shared(problem, 0, LEVEL, None), CrossEntropy()), traces.coarse(len(x))
        on = torch.cat([torch.full((size,), bool(bends)) for size, bends in zip(problem.sizes, engine.has_curvature)])
        forms, true = [], []
        for start in range(0, len(x), rows):
            h = dense(problem, engine, range(start, min(start + rows, len(x))), on)
            stream = torch.Generator().manual_seed(start)
            drawn = []
            for _ in range(FORMS // AT_ONCE):
                v = (torch.randint(0, 2, (AT_ONCE, len(h)), generator=stream) * 2 - 1).float()
                drawn.append(((v @ h) * v).double().sum(1))
            found = torch.cat(drawn)
            true.append(h.diagonal().double().sum())
            forms.append(found - found.mean() + true[-1])
        return cls(torch.stack(forms), torch.stack(true), engine, rows)

    def draw(self, count: Tensor, stream: torch.Generator) -> traces.Probes:
        """So many (cells,) probes; a cell of none is known."""
        found = torch.zeros(len(count), 3, dtype=torch.float64)
        for cell, number in enumerate(count.tolist()):
            at = torch.randint(FORMS, (number,), generator=stream)
            f = self.forms[cell, at] if number else self.true[cell][None]
            found[cell] = torch.stack([torch.tensor(float(len(f)), dtype=f.dtype), f.sum(), f.square().sum()])
        return traces.Probes(found, torch.zeros(len(count), 0, 3, dtype=torch.float64), self.rows)


def dense(problem: CurvatureProblem, engine: Engine, rows: range, on: Tensor) -> Tensor:
    """(elements, elements) of H - G of these rows, in the tensors whose logits bend."""
    gradients = problem.gradients(rows, engine.rest)
    live, out = [g for g in gradients if g.requires_grad], []
    for part in on.nonzero()[:, 0].split(64):
        unit = torch.zeros(len(part), problem.size, dtype=torch.float64)
        unit[torch.arange(len(part)), part] = 1
        along = [v for v, g in zip(problem.pieces(unit), gradients) if g.requires_grad]
        found = torch.autograd.grad(
            live, problem.tensors, along, retain_graph=True, is_grads_batched=True, allow_unused=True
        )
        kept = [f.flatten(1) if f is not None else unit.new_zeros(len(part), s) for f, s in zip(found, problem.sizes)]
        out.append(torch.cat(kept, 1)[:, on].float())
    return torch.cat(out)


def resampled(name: str, model: nn.Module, x: Tensor, y: Tensor, runs: int) -> None:
    cells, stream = Cells.of(model, x, y), torch.Generator().manual_seed(0)
    g = cells.engine.ggn(1e-3)
    assert g is not None
    n, steepness = cells.n, cells.engine.steepness
    elements = int(torch.tensor(cells.engine.problem.sizes)[cells.engine.has_curvature].sum())
    heavy = int(cells.forms.var(1).argmax())
    for precision in (0.05, None):
        hits, known, errors = [], [], []
        for _ in range(runs):
            pilot = cells.draw(torch.full((len(cells.true),), traces.pilot(n)), stream)
            size = abs(g.value + traces.summarise(pilot, n).value)
            layout = cells.engine.problem.layout
            sampling = traces.sampling_error(g.rows, *traces.by_group(pilot, layout), layout)
            wish = precision * size if precision else max(SHARE * sampling, 1e-3 * size)
            count = traces.allocate(pilot, steepness, wish, MOST, cells.rows, LEVEL, elements)
            mean = traces.summarise(cells.draw(count, stream), n, steepness)
            error = mean.value - float(cells.true.sum()) / n
            hits.append(abs(error) <= student_quantile(0.5 + LEVEL / 2, mean.dof) * mean.se + 1e-12)
            known.append(int(count[heavy]) == 0)
            errors.append(error / max(mean.se, 1e-300))
        share = sum(hits) / runs
        far = math.sqrt(sum(e * e for e in errors) / runs)
        print(
            f"   {name}, trace{f':precision={precision}' if precision else ''}: {runs} runs resampled cover"
            f" {100 * share:.1f} % (± {196 * math.sqrt(share * (1 - share) / runs):.1f}), errors {far:.2f} standard"
            f" errors in root mean square; the heaviest cell taken exactly in {100 * sum(known) / runs:.0f} %",
            flush=True,
        )
