"""The options that say how a checkpoint and its data set are loaded, given to a command by a decorator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from calibcli.cli import options as opt
from calibcli.cli.reading import gives

ROWS: dict[str, tuple[Any, Any]] = {
    "mean": (opt.Mean, None),
    "std": (opt.Std, None),
    "size": (opt.Size, None),
    "layout": (opt.Layout, None),
    "inputs_key": (opt.InputsKey, None),
    "labels_key": (opt.LabelsKey, None),
    "label_column": (opt.LabelColumn, None),
    "subset": (opt.Subset, None),
}
MODEL: dict[str, tuple[Any, Any]] = {
    "arch": (opt.Arch, None),
    "arch_file": (opt.ArchFile, None),
    "trust": (opt.Trust, False),
}


def loads(command: Callable[..., int]) -> Callable[..., int]:
    """Give a command these options.

    The command has the parameters `network: dict[str, Any]`, meant for `checkpoint.load`, and `rows: dict[str, Any]`,
    which go on, with `trust` and a seed, to the data set.
    """
    return gives(gives(command, "network", MODEL), "rows", ROWS)
