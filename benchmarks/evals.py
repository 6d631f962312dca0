"""Evaluations of language models: the harness's verdict on each row, and the one calib reads from its file.

    python benchmarks/evals.py             files that the installed harnesses write here (lm_eval, inspect_ai)
    python benchmarks/evals.py PATH        every file of a folder
    python benchmarks/evals.py --keep DIR  write them there first

Prints a table: rows, accuracy by the harness, accuracy by calib, rows that differ; or why calib refuses the file. The
verdicts are read from the files by code of its own. Exit 1 where a row differs.
"""

from __future__ import annotations

import json
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import _evals_written
import numpy as np
from _harness import arguments

import calibcli
from calibcli.core.errors import CalibError

CHOICES = {"chat": "A,B,C,D", "batch": "A,B,C,D"}


NORMS = {None: "acc", "char": "acc_norm", "byte": "acc_bytes", "pmi": "acc_mutual_info"}


def verdicts(path: Path, norm: str | None) -> list[float] | None:
    """The harness's own, row by row; None where the file has none."""
    if path.suffix == ".jsonl":
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        return [float(row[NORMS[norm]]) for row in rows] if NORMS[norm] in rows[0] else None
    if path.suffix == ".parquet":
        from pyarrow import parquet

        return [float(row["metric"]["acc"]) for row in parquet.read_table(path).to_pylist()]
    found = []
    if path.suffix == ".eval":
        found = samples(path)
    elif path.suffix == ".json":
        found = json.loads(path.read_text()).get("samples", [])
    return [float(s["scores"]["choice"]["value"] == "C") for s in found if "choice" in s.get("scores", {})]


def samples(path: Path) -> list[dict[str, Any]]:
    """Of a log of Inspect, in the order of their ids."""
    import zipfile_zstd  # noqa: F401  (lets zipfile read Zstandard)

    with zipfile.ZipFile(path) as archive:
        found = [json.loads(archive.read(name)) for name in archive.namelist() if name.startswith("samples/")]
    return sorted(found, key=lambda s: (len(str(s["id"])), str(s["id"]), s["epoch"]))


def row(path: Path, norm: str | None = None) -> tuple[list[str], int]:
    """A line of the table, and rows that differ."""
    name = path.name + (f" --lm-norm {norm}" if norm else "")
    choices = next((found for word, found in CHOICES.items() if word in path.name), None)
    how = {key: value for key, value in (("lm_norm", norm), ("choices", choices)) if value}
    try:
        read = calibcli.read(path, **how)
    except CalibError as error:
        return [name, "", "", "", f"refused: {error.problem.replace(str(path), 'it')}; {error.fix}"], 0
    right = (read.logits.argmax(axis=1) == read.labels).astype(float)
    try:
        said = verdicts(path, norm)
    except ImportError as error:
        return [name, str(read.n), "", f"{right.mean():.4f}", f"its verdicts need {error.name}"], 0
    if not said:
        return [name, str(read.n), "", f"{right.mean():.4f}", f"{read.facts['format']}; no verdicts in it"], 0
    differ = int((np.array(said) != right).sum()) if len(said) == read.n else read.n
    return [name, str(read.n), f"{np.mean(said):.4f}", f"{right.mean():.4f}", f"{differ} rows differ"], differ


def main() -> int:
    given = arguments(__doc__, "path", keep=Path)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path([given.keep or scratch, *given.path][-1])
        if not given.path:
            folder.mkdir(exist_ok=True)
            print("\n".join(_evals_written.write(folder)))
        lines, wrong = [["file", "rows", "harness", "calib", "what"]], 0
        for path in sorted(p for p in folder.iterdir() if p.is_file() or (p / "state.json").exists()):
            for norm in NORMS if path.name.startswith(("lm_eval", "samples")) else (None,):
                line, differ = row(path, norm)
                if norm is None or not line[-1].startswith(("refused", "jsonl")):
                    lines.append(line)
                    wrong += differ
    widths = [max(len(line[i]) for line in lines) for i in range(4)]
    for line in lines:
        print("  ".join([*(cell.ljust(width) for cell, width in zip(line[:4], widths)), line[4]]))
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
