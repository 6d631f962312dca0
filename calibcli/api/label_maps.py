"""The calibrators of labels over a file of independent scores."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from calibcli import headline
from calibcli.api.measuring import is_path
from calibcli.errors import InputError, UsageError
from calibcli.files import atomic, known_suffix, may_write, sha256
from calibcli.inputs.scores import multilabel, recorded
from calibcli.predictions import Predictions, Progress
from calibcli.result import Result
from calibcli.scalers import Scaler, check_classes
from calibcli.scalers.output import array_file, put
from calibcli.scalers.per_label import check_labels, load_labels

SUFFIXES = (".npz", ".npy")


def apply_labels(
    folder: Any, scores: Any, target: str | Path, kind_out: str, dtype: str, progress: Progress | None, how: Any
) -> Result:
    """Write (N, L) calibrated probabilities, or log-odds, of labels, each through its own map.

    Raises:
        InputError: other labels than those of the fit, or inputs that are refused.
        UsageError: a path that cannot be.
    """
    if not (isinstance(folder, str | Path) and is_path(scores)):
        raise UsageError("multilabel is for a folder of calibrators and a file of scores", "pass their paths")
    path = known_suffix(Path(target), SUFFIXES, "scores of labels")
    may_write([path], [folder, *(scores if isinstance(scores, list | tuple) else [scores])])
    made = load_labels(Path(folder))
    parts = multilabel.read(scores, progress=progress, **{**how, "need_labels": False})
    check_labels([*parts], [*made])
    rows = list(parts.values())
    first = rows[0]
    if any(p.n != first.n for p in rows):
        raise InputError("rows were dropped that some labels have", "leave --drop-nonfinite out")
    found = np.stack([_column(s, p, kind_out) for s, p in zip(made.values(), rows, strict=True)], axis=1).astype(dtype)
    beside: dict[str, Any] = {"classes": np.array([*made])}
    if first.facts.get("labelled", True):
        beside["labels"] = np.stack([p.labels for p in rows], axis=1)
    beside |= {name: a for name, a in (("ids", first.ids), ("weights", first.weights)) if a is not None}
    with atomic(path) as temporary, array_file(
        temporary, path.suffix, kind_out, (first.n, len(made)), np.dtype(dtype), beside
    ) as file:  # fmt: skip
        put(file, found, np.dtype(dtype))
    spec = next(iter(made.values())).spec
    files = [{"path": str(one), "sha256": sha256(one)} for one in sorted(Path(folder).glob("*.safetensors"))]
    said = f"{first.n:,} rows of {len(made)} labels, {kind_out}, {dtype}"
    return headline.headed(
        Result(
            command="apply",
            notes=first.notes,
            facts={
                "headline": f"Wrote {said}, by the method {spec} of each label.",
                "method": spec,
                "written": said,
                "n": first.n,
            },
            artefacts={"scores": str(path)},
            provenance={"inputs": [*files, *recorded.provenance(first)]},
        )
    )


def _column(scaler: Scaler, rows: Predictions, kind_out: str) -> Any:
    """(N,) probability or log-odds of a label."""
    check_classes(scaler, rows)
    log_p = scaler.map(rows.logits)
    return np.exp(log_p[:, 1]) if kind_out == "probabilities" else log_p[:, 1] - log_p[:, 0]
