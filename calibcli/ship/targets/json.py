"""The calibrator as JSON, and as functions that need nothing."""

from __future__ import annotations

import contextlib
import json as texts
from pathlib import Path

from calibcli.core.errors import UsageError
from calibcli.core.files import atomic
from calibcli.ship import source_code
from calibcli.ship.json_calibrator import described, scaler_of
from calibcli.ship.source_code import LANGUAGES
from calibcli.ship.target import TARGETS, ExportRequest, Shipped, of_scores

NEEDED = {".js": "node", ".c": "a C compiler (cc)"}


@TARGETS.add(suffixes=(".json",), data="scores")
def json(job: ExportRequest) -> Shipped:
    """Its parameters as JSON, and beside it a function without dependencies in Python, JavaScript and C.

    The function takes the scores of one row and gives its K probabilities, in float64. JavaScript is written where
    `node` is there to run it, C where `cc` is. Ours: the maps in a dozen lines, held to 1e-9 on real rows.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     fit = calibcli.fit_scaler(logits, labels)
    ...     found = calibcli.export(fit, "json", save=f"{folder}/calibrator.json", data=logits)
    >>> found.facts["limit"], found.facts["predicted classes changed"]
    (1e-09, 0)

    Raises:
        UsageError: a file beside it that calib did not write would be replaced.
    """
    programs = {suffix: source_code.lines(job.scaler, suffix) for suffix in LANGUAGES}
    fed = job.fed("float64")
    made = {job.path: texts.dumps(described(job.scaler), indent=1, allow_nan=False) + "\n"}
    again = scaler_of(made[job.path], job.path.name)
    worst, notes = of_scores(job.scaler, fed, again.predict_proba(fed), "float64", job.tolerance), list[str]()
    for suffix, text in programs.items():
        path = job.path.with_suffix(suffix)
        found = source_code.run(text, suffix, fed, job.scaler.k)
        if found is None:
            notes.append(f"{path.name} is not written: {NEEDED[suffix]} is not installed, so nothing compared it")
            continue
        one = of_scores(job.scaler, fed, found, "float64", job.tolerance)
        one.require(path.name, "pass --tolerance, or --to onnx")
        made[path], worst = text, max(worst, one, key=lambda c: c.most)
    worst.require(job.path.name)
    for path in made:
        if path != job.path and path.exists() and not _ours(path):
            problem = f"{path} would be replaced by a program beside {job.path.name}, and calib did not write it"
            raise UsageError(problem, "name another file to write, or move that one")
    with contextlib.ExitStack() as stack:
        for path, text in made.items():
            stack.enter_context(atomic(path)).write_text(text, encoding="utf-8")
    return Shipped(files=list(made), compared=worst, notes=notes)


def _ours(path: Path) -> bool:
    """Whether a program was written by an earlier export: its first line says so."""
    with contextlib.suppress(OSError), path.open("rb") as file:
        return source_code.MARK.encode() in file.readline(1000)
    return False
