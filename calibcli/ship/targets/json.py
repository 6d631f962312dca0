"""The calibrator as JSON, and as functions without dependencies in Python, JavaScript and C."""

from __future__ import annotations

import contextlib
import json as texts
from pathlib import Path

from calibcli.calibrators.store import as_json, from_json
from calibcli.core.errors import UsageError
from calibcli.core.files import atomic
from calibcli.ship import _source_code as source_code
from calibcli.ship._source_code import LANGUAGES
from calibcli.ship.target import TARGETS, ExportRequest, Shipped, of_scores

NEEDED = {".js": "node", ".c": "a C compiler (cc)"}


@TARGETS.add(suffixes=(".json",), data="scores")
def json(request: ExportRequest) -> Shipped:
    """The parameters as JSON, with a function in Python, JavaScript and C beside the file, which needs no library.

    The function takes the scores of one row and returns its K probabilities, in float64. JavaScript is written where
    `node` can run it, C where `cc` can compile it. Ours: the maps in a dozen lines, exact to 1e-9 on real rows.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     fit = calibcli.fit_scaler(logits, labels)
    ...     found = calibcli.export(fit, "json", save=f"{folder}/calibrator.json", data=logits)
    >>> found.facts["limit"], found.facts["predicted classes changed"]
    (1e-09, 0)

    Raises:
        UsageError: it would replace a file beside it that calib did not write.
    """
    programs = {suffix: source_code.program(request.scaler, suffix) for suffix in LANGUAGES}
    fed = request.fed("float64")
    texts_by_path = {request.path: texts.dumps(as_json(request.scaler), indent=1, allow_nan=False) + "\n"}
    reread = from_json(texts_by_path[request.path], request.path.name)
    worst, notes = of_scores(request.scaler, fed, reread.predict_proba(fed), "float64", request.tolerance), list[str]()
    for suffix, text in programs.items():
        path = request.path.with_suffix(suffix)
        probabilities = source_code.run(text, suffix, fed, request.scaler.k)
        if probabilities is None:
            notes.append(f"{path.name} is not written: {NEEDED[suffix]} is not installed, so it cannot be compared")
            continue
        comparison = of_scores(request.scaler, fed, probabilities, "float64", request.tolerance)
        comparison.require(path.name, "pass --tolerance, or --to onnx")
        texts_by_path[path], worst = text, max(worst, comparison, key=lambda c: c.most)
    worst.require(request.path.name)
    for path in texts_by_path:
        if path != request.path and path.exists() and not _ours(path):
            problem = f"{path} would be replaced by a program beside {request.path.name}, and calib did not write it"
            raise UsageError(problem, "name another file to write, or move that one")
    with contextlib.ExitStack() as stack:
        for path, text in texts_by_path.items():
            stack.enter_context(atomic(path)).write_text(text, encoding="utf-8")
    return Shipped(files=list(texts_by_path), compared=worst, notes=notes)


def _ours(path: Path) -> bool:
    """Return whether an earlier export wrote a program; its first line says so."""
    with contextlib.suppress(OSError), path.open("rb") as file:
        return source_code.MARK.encode() in file.readline(1000)
    return False
