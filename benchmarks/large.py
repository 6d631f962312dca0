"""λmax of a transformer with random weights that does not fit many times into memory: the plan, time and peak.

    python benchmarks/large.py                     100 M parameters, 16 rows of 32 tokens, tolerance 5 %
    python benchmarks/large.py --width 256         6 M parameters

No graph is kept beyond one micro-batch, the Krylov basis is float32 and bounded (thick restarts); both are printed.
"""

from __future__ import annotations

import time

import torch
from _harness import options, peak
from torch import Tensor, nn

from calibcli.networks.curvature import measure


class Transformer(nn.Module):
    def __init__(self, width: int, depth: int, words: int = 1000) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 8, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True)
            for _ in range(depth)
        )
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x).mean(1))


if __name__ == "__main__":
    parser = options(__doc__)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--depth", type=int, default=8)
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--tol", type=float, default=0.05)
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = Transformer(args.width, args.depth)
    size = sum(p.numel() for p in model.parameters())
    tokens, labels = torch.randint(0, 1000, (args.rows, 32)), torch.randint(0, 10, (args.rows,))
    before, start = peak() / 1024, time.process_time()
    result = measure(model, (tokens, labels), f"lambda_max:tol={args.tol}", memory="low")
    found = result.estimates[0]
    print(f"{size / 1e6:.1f} M parameters ({size * 4 / 2**30:.2f} GiB), {args.rows} rows of 32 tokens")
    print(f"plan: {result.facts['memory_plan']}; Krylov basis {result.facts['krylov_basis']}")
    print(f"λmax {found.value:.5g}, residual {found.detail['residual']:.2g}: {found.how}")
    seconds, most = time.process_time() - start, peak() / 1024
    print(f"{seconds:.0f} CPU s, peak {most:.2f} GiB (model and imports before: {before:.2f})")
    for note in result.notes:
        print(f"note: {note}")
