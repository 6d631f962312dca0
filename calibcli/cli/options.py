"""Options shared by commands, each spelled once: same word, same meaning everywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Optional, get_args

import typer

from calibcli import spec


def number(kind: Any, *names: str, **about: Any) -> Any:
    """An option that holds a number of this annotated type; outside its `Range` it is refused as in a spec."""
    whole = int in get_args(kind)

    def parse(text: Any) -> Any:
        return spec.convert(str(text).strip(), kind, f"{names[0]} ")

    return typer.Option(*names, parser=parse, **{"metavar": "INTEGER" if whole else "FLOAT", **about})


Format = Annotated[str, typer.Option("--format", help="What stdout gets: table, json, markdown, csv, ...")]
Json = Annotated[bool, typer.Option("--json", help="Short for --format json.")]
Output = Annotated[
    Optional[list[Path]],  # noqa: UP045 (typer reads Optional on every version we support)
    typer.Option("--output", "-o", help="Also write the result here; the suffix decides the format. Repeatable."),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress and no notes on stderr.")]
Seed = Annotated[int, number(spec.Seed, "--seed", help="Seed of everything random.")]
Threads = Annotated[int, number(spec.OrNone, "--threads", help="Worker threads; 0 uses every core.")]
Device = Annotated[str, typer.Option("--device", help="auto, cpu, cuda or cuda:N.")]
Dtype = Annotated[str, typer.Option("--dtype", help="float32 or float64.")]
BatchSize = Annotated[int, number(spec.Rows, "--batch-size", help="Rows per forward pass.")]
Trust = Annotated[bool, typer.Option("--trust", help="Allow files that hold code (pickles, TorchScript, .pt2).")]
Arch = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option("--arch", help="Architecture: resnet:depth=20, torchvision.NAME:key=value, or module:factory."),
]
ArchFile = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option("--arch-file", help="Architecture from your own file: net.py:factory."),
]
Data = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option("--data", help="Data set: arrays (file.npz#test), image folder, CSV, or module:function."),
]
Mean = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option("--mean", help="Per-channel mean of the inputs scaled to [0, 1], such as 0.49,0.48,0.45."),
]
Std = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option("--std", help="Per-channel standard deviation, such as 0.2,0.2,0.2."),
]
Size = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option("--size", help="Pictures to that size: 224 (shorter side, then the middle), 256/224, 224x192, none."),
]
Layout = Annotated[Optional[str], typer.Option("--layout", help="NHWC, NCHW or flat.")]  # noqa: UP045
InputsKey = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option("--inputs-key", help="Name of the input array; several, by comma, are passed to the model by name."),
]
LabelsKey = Annotated[Optional[str], typer.Option("--labels-key", help="Name of the label array.")]  # noqa: UP045
LabelColumn = Annotated[Optional[str], typer.Option("--label-column", help="Label column of a CSV.")]  # noqa: UP045
Subset = Annotated[
    Optional[int],  # noqa: UP045
    number(spec.Rows, "--subset", help="Use that many rows, drawn with --seed."),
]
Max = Annotated[
    Optional[list[str]],  # noqa: UP045
    typer.Option("--max", metavar="METRIC=NUMBER", help="Largest value allowed. Repeatable."),
]
Min = Annotated[
    Optional[list[str]],  # noqa: UP045
    typer.Option("--min", metavar="METRIC=NUMBER", help="Smallest value allowed. Repeatable."),
]
