"""Options shared by commands, each spelled once: same word, same meaning everywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

Format = Annotated[str, typer.Option("--format", help="What stdout gets: table, json, markdown, csv, ...")]
Json = Annotated[bool, typer.Option("--json", help="Short for --format json.")]
Output = Annotated[
    Optional[list[Path]],  # noqa: UP045 (typer reads Optional on every version we support)
    typer.Option("--output", "-o", help="Also write the result here; the suffix decides the format. Repeatable."),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress and no notes on stderr.")]
Seed = Annotated[int, typer.Option("--seed", help="Seed of everything random.")]
Threads = Annotated[int, typer.Option("--threads", min=0, help="Worker threads; 0 uses every core.")]
Device = Annotated[str, typer.Option("--device", help="auto, cpu, cuda or cuda:N.")]
Dtype = Annotated[str, typer.Option("--dtype", help="float32 or float64.")]
BatchSize = Annotated[int, typer.Option("--batch-size", min=1, help="Rows per forward pass.")]
Trust = Annotated[bool, typer.Option("--trust", help="Allow files that hold code (pickles, TorchScript, .pt2).")]
