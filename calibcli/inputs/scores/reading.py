"""How recorded outputs are to be read: the options, in one place."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, get_args

from calibcli.errors import UsageError, did_you_mean
from calibcli.predictions import Kind
from calibcli.spec import Label, Range, normal

LABELS: Range = get_args(Label)[1]
KINDS: tuple[Kind, ...] = ("logits", "probabilities", "log_probabilities")


@dataclass(frozen=True, kw_only=True)
class Reading:
    """How to read; each field is an option of the command line. See `logits.read`."""

    scores: str | None = None
    labels: str | None = None
    classes: str | Sequence[str] | None = None
    event: str | None = None
    kind: str | None = None
    label_base: int | None = None
    ignore_label: int | None = None
    drop_nonfinite: bool = False
    clip: bool = False
    weights: str | None = None
    weight_kind: str = "sampling"
    ids: str | None = None
    group: str | None = None
    by: Sequence[str] = ()
    shards: bool = False
    need_labels: bool = True

    def __post_init__(self) -> None:
        for option, value in (("--label-base", self.label_base), ("--ignore-label", self.ignore_label)):
            if value is not None and value not in LABELS:
                raise UsageError(f"{option} is beyond any label", f"pass a whole number {LABELS}")


def changed(reading: Reading, **fields: Any) -> Reading:
    """The same reading with other fields."""
    return dataclasses.replace(reading, **fields)


def kind_option(kind: str | None) -> Kind | None:
    """The kind that `--kind` names; None: recognise it.

    Raises:
        UsageError: no such kind.
    """
    if kind is None or normal(kind) == "auto":
        return None
    for known in KINDS:
        if normal(kind) in (known, {"probabilities": "probs", "log_probabilities": "log_probs"}.get(known)):
            return known
    raise UsageError(f"--kind {kind} is not a kind of scores", did_you_mean(normal(kind), KINDS))
