"""The calibration section of a model card."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from calibcli.calibrators import apply
from calibcli.core.errors import UsageError
from calibcli.core.files import atomic
from calibcli.core.result import Estimate
from calibcli.metrics import report
from calibcli.ship.target import TARGETS, ExportRequest, Shipped, about

ASSUMED = "image-classification"
METRICS = ("ece", "nll", "brier", "accuracy")


@TARGETS.add(suffixes=(".md",), data="scores")
def card(request: ExportRequest, *, name: str = "", task: str = "", dataset: str = "") -> Shipped:
    """A `model-index` block and a "Calibration" section for a Hugging Face model card, from labelled rows.

    Every number has its interval and n; the ECE also has the level below which a calibrated model stays. T is given.
    `name` of the model, `task` and `dataset` go into the index (Mitchell et al. 2019). A task that is not stated is
    `image-classification`, and a note says so.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     fit = calibcli.fit_scaler(logits, labels)
    ...     rows = calibcli.from_arrays(logits, labels)
    ...     found = calibcli.export(fit, "card:name=digits", save=f"{folder}/card.md", data=rows)
    ...     print(open(f"{folder}/card.md").read().splitlines()[2])
    - name: "digits"
    """
    rows = request.labelled
    after = report.report(apply(request.scaler, rows), report.ReportOptions(specs=METRICS, diagram=False))
    before = report.report(rows, report.ReportOptions(specs=METRICS, diagram=False))
    stamp, dataset_name = about(request), dataset or _plain(Path(rows.source).name)
    results = []
    for e in after.estimates:  # Hugging Face keeps further fields only in `args`
        args = {"n": e.n, "ci95": [e.low, e.high], "null95": e.null_high, "temperature": stamp.get("temperature")}
        present = {key: value for key, value in args.items() if value not in (None, [None, None])}
        results.append({"type": e.name, "name": e.name, "value": e.value, "args": present})
    index = [
        "---",
        "model-index:",
        f"- name: {json.dumps(name or request.path.stem)}",
        "  results:",
        f"  - task: {{type: {json.dumps(task or ASSUMED)}}}",
        f"    dataset: {json.dumps({'name': dataset_name, 'type': dataset_name})}",
        "    metrics:",
        *(f"    - {json.dumps(entry)}" for entry in results),
        "---",
        "",
    ]
    t = f" with T = {stamp['temperature']:.4g}" if "temperature" in stamp else ""
    lines = [
        "## Calibration",
        "",
        f"Calibrated by {request.scaler.choice.name.replace('_', ' ')}{t}, fitted on {stamp['rows']:,} rows "
        f"({stamp['date']}, calibcli {stamp['version']}). Measured on {rows.n:,} rows of {dataset_name}; "
        "intervals at 95 %.",
        "",
        "| metric | before | calibrated | interval | a calibrated model stays below |",
        "|---|---|---|---|---|",
        *(_row(b, a) for b, a in zip(before.estimates, after.estimates, strict=True)),
        "",
    ]
    with atomic(request.path) as temporary:
        temporary.write_text("\n".join([*index, *lines]), encoding="utf-8")
    assumed = f"the card says task: {ASSUMED}; if it is another, state it: card:task=text-classification"
    notes = [*rows.notes, *([] if task else [assumed])]
    return Shipped(files=[request.path], compared=None, notes=notes, facts={"rows": rows.n})


def _row(before: Estimate, after: Estimate) -> str:
    if after.value is None or before.value is None:
        raise UsageError(f"{after.name} has no value ({after.reason})", "pass more labelled rows")
    ends = f"{_number(after.low)} to {_number(after.high)}"
    null = "" if after.null_high is None else _number(after.null_high)
    return f"| {after.name} | {before.value:.4f} | {after.value:.4f} | {ends} | {null} |"


def _number(value: float | None) -> str:
    return "?" if value is None or not np.isfinite(value) else f"{value:.4f}"


def _plain(text: str) -> str:
    """Return a file name without characters of markup."""
    return "".join(c if c.isalnum() or c in "._-/ #" else "?" for c in text)
