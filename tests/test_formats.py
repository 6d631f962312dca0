"""Every file format of the two registries against another program: what it wrote is read, what is written it reads."""

from __future__ import annotations

import csv
import json
import re
import tomllib
import xml.etree.ElementTree as tree
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import render_cases
import safetensors.numpy
from evals_written import Question, eval_log, inspect_samples

import calibcli
from calibcli import render
from calibcli.scores.files import source

VALUE = 0.06112345  # of `ece` in render_cases


def text_table(path: Path, logits: np.ndarray, labels: np.ndarray, delimiter: str = ",") -> None:
    """As a spreadsheet writes one."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file, delimiter=delimiter)
        writer.writerow(["label", *(f"logit_{k}" for k in range(logits.shape[1]))])
        writer.writerows([y, *map(repr, map(float, z))] for z, y in zip(logits, labels, strict=True))


def lines(path: Path, logits: np.ndarray, labels: np.ndarray) -> None:
    rows = zip(logits.tolist(), labels.tolist(), strict=True)
    path.write_text("".join(json.dumps({"logits": z, "label": y}) + "\n" for z, y in rows))


def parquet(path: Path, logits: np.ndarray, labels: np.ndarray) -> None:
    arrow = pytest.importorskip("pyarrow")
    columns = {"label": labels, **{f"logit_{k}": logits[:, k] for k in range(logits.shape[1])}}
    pytest.importorskip("pyarrow.parquet").write_table(arrow.table(columns), path)


def feather(path: Path, logits: np.ndarray, labels: np.ndarray) -> None:
    arrow = pytest.importorskip("pyarrow")
    columns = {"label": labels, **{f"logit_{k}": logits[:, k] for k in range(logits.shape[1])}}
    pytest.importorskip("pyarrow.feather").write_feather(arrow.table(columns), path.with_suffix(".feather"))
    path.with_suffix(".feather").replace(path)


def log_of_inspect(path: Path, logits: np.ndarray, labels: np.ndarray) -> None:
    """Of scores that are log-probabilities of letters, up to a constant in each row."""
    asked = [Question((5 * z).tolist(), list("xyz"), int(y)) for z, y in zip(logits, labels, strict=True)]
    samples = inspect_samples(asked)
    for sample in samples:  # as many letters as scores, in the order of the rows
        sample["scores"] = {}
    path.write_bytes(eval_log(samples))


def split(path: Path, logits: np.ndarray, labels: np.ndarray) -> None:
    """As pandas writes a frame with orient="split"."""
    rows = [[*z, y] for z, y in zip(logits.tolist(), labels.tolist(), strict=True)]
    path.write_text(json.dumps({"columns": ["logit_0", "logit_1", "logit_2", "label"], "data": rows}))


def torch_file(path: Path, logits: np.ndarray, labels: np.ndarray) -> None:
    import torch

    torch.save({"logits": torch.from_numpy(logits), "labels": torch.from_numpy(labels)}, path)


# format: how another program writes logits (N, 3), with all their digits, and labels (N,) to a file of it
READ: dict[str, Callable[[Path, np.ndarray, np.ndarray], None]] = {
    "arrow": feather,
    "eval": log_of_inspect,
    "json": split,
    "csv": text_table,
    "tsv": lambda path, z, y: text_table(path, z, y, "\t"),
    "jsonl": lines,
    "numpy": lambda path, z, y: np.savez(path, logits=z, labels=y),
    "parquet": parquet,
    "pt": torch_file,
    "safetensors": lambda path, z, y: safetensors.numpy.save_file({"logits": z, "labels": y}, path),
}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.extra if n in ("arrow", "parquet") else ()) for n in READ]
)
def test_what_others_write_is_read(tmp_path: Path, name: str) -> None:
    rng = np.random.default_rng(0)
    z, y = rng.normal(size=(50, 3)), np.arange(50) % 3
    path = tmp_path / f"scores{source.suffixes(name)[0]}"
    READ[name](path, z, y)
    found = calibcli.read(path)
    np.testing.assert_array_equal(found.labels, y)
    same = (lambda a: a - a[:, :1]) if name == "eval" else (lambda a: a)
    np.testing.assert_allclose(same(found.logits), same(z), rtol=1e-15, atol=1e-12 if name == "eval" else 0)


def test_every_input_format_has_another_program() -> None:
    assert set(READ) == set(source.FORMATS), "write one in READ: CONTRIBUTING, An input format"


def number(pattern: str) -> Callable[[bytes], float]:
    """The number that a pattern finds in text."""
    return lambda content: float(re.search(pattern, content.decode())[1])  # type: ignore[index]


def of_csv(content: bytes) -> float:
    return next(float(row["value"]) for row in csv.DictReader(content.decode().splitlines()) if row["name"] == "ece")


def of_json(content: bytes) -> float:
    return next(e["value"] for e in json.loads(content)["estimates"] if e["name"] == "ece")  # type: ignore[no-any-return]


# format: the value of `ece` as another program reads it from the file, or that it opens (a picture, a list of checks)
WRITTEN: dict[str, Callable[[bytes], float | None]] = {
    "csv": of_csv,
    "json": of_json,
    "table": number(r"(?m)^\W*ece +([\d.]+)"),
    "markdown": number(r"(?m)^\| `ece` \| ([\d.]+)"),
    "latex": number(r"(?m)^ece & ([\d.]+)"),
    "openmetrics": number(r'(?m)^calib_estimate\{[^}]*"ece"[^}]*\} ([\d.e-]+)'),
    "github": lambda content: None,
    "toml": lambda content: next(g["limit"] for g in tomllib.loads(content.decode())["gate"] if g["metric"] == "ece"),
    "badge": number(r'"message": "ece ([\d.]+)"'),
    "junit": lambda content: tree.fromstring(content) and None,
    "html": number(r"<th scope=row>ece<td>([\d.]+)"),
    "svg": lambda content: tree.fromstring(content) and None,
    "png": lambda content: None if content.startswith(b"\x89PNG\r\n") else 0.0,
    "pdf": lambda content: None if content.startswith(b"%PDF-") else 0.0,
}


@pytest.mark.parametrize("name", WRITTEN)
@pytest.mark.one_in(5)
def test_what_is_written_others_read(name: str) -> None:
    written = render.module(name).render(render_cases.metrics())
    found = WRITTEN[name](written if isinstance(written, bytes) else written.encode())
    if found is not None:
        assert found == pytest.approx(VALUE, rel=1e-3)


def test_every_output_format_has_another_program() -> None:
    assert set(WRITTEN) == set(render.NAMES), "read one in WRITTEN: CONTRIBUTING, An output format"
