"""Every file format of the two registries against another program: what it wrote is read, what is written it reads."""

from __future__ import annotations

import csv
import difflib
import inspect
import json
import re
import tomllib
import xml.etree.ElementTree as tree
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import get_type_hints

import numpy as np
import pytest
import render_cases
import safetensors.numpy
from evals_written import Question, eval_log, inspect_samples

import calibcli
from calibcli import render
from calibcli.core.result import Result
from calibcli.scores.files import source
from calibcli.scores.files.arrays import FileContents

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


# What a format module has goes by its names, so that one that is spelled in another way would be passed over.

READS = {"read": ["source", "grouped"], "signature": ["head", "size"], "guess": ["head"]}
WRITES = {
    "render": ["result", "style"],
    "figures": ["result", "style"],
    "show": ["result", "detail"],
    "notes": ["result", "detail"],
}
NAMES = {
    **{"SUFFIXES": tuple, "BY_SUFFIX": bool, "TO_STDOUT": bool, "NEEDS": tuple, "REPORT": str},
    **{"OF_CHECKS": bool, "FIGURES": bool, "NUMBERS": bool, "LISTS_OF": tuple},
}
"""The names that the docstrings of `scores/files/source.py` and `render/__init__.py` give to format modules."""


def test_the_names_of_format_modules_are_those_that_are_documented() -> None:
    said = f"{source.__doc__}{render.__doc__}"
    named = set(re.findall(r"^    ([A-Z_]+) = ", said, re.M)) | set(re.findall(r"^    ([a-z]+)\(", said, re.M))
    assert named == {*NAMES, *READS, *WRITES} - {"render"}  # of which a sentence tells
    assert "`render(result) -> str | bytes`" in said


def held(module: ModuleType, functions: dict[str, list[str]]) -> None:
    """Hold a module to the names: those that it has are as they must be, and no other is nearly one of them."""
    for name, value in vars(module).items():
        if name in functions:
            parameters = [*inspect.signature(value).parameters.values()]
            given = [one.name for one in parameters if one.default is one.empty]
            expected = functions[name]
            assert given == expected[: len(given)], f"{module.__name__}.{name}"
            more = [one.name for one in parameters if one.name in expected]
            assert more == expected[: len(more)], f"{module.__name__}.{name}"
        elif name in NAMES:
            assert type(value) is NAMES[name], f"{module.__name__}.{name}"
        elif not name.startswith("_") and getattr(value, "__module__", module.__name__) == module.__name__:
            known = functions if callable(value) else NAMES
            assert not difflib.get_close_matches(name, known, 1, 0.8), f"{module.__name__}.{name}"
    suffixes = getattr(module, "SUFFIXES", ())
    assert all(re.fullmatch(r"\.[a-z0-9]+", suffix) for suffix in suffixes), module.__name__


@pytest.mark.parametrize("name", source.FORMATS)
def test_an_input_format_has_what_the_recipe_asks_for(name: str) -> None:
    module = source.module(name)
    held(module, READS)
    assert module.SUFFIXES
    assert hasattr(module, "signature") or hasattr(module, "guess") or module.BY_SUFFIX
    hints = get_type_hints(module.read)
    assert (hints["source"], hints["return"]) == (source.Source, FileContents)
    assert hints.get("grouped", bool) is bool
    for way in ("signature", "guess"):
        if hasattr(module, way):
            assert get_type_hints(getattr(module, way))["return"] is bool


@pytest.mark.parametrize("name", render.NAMES)
def test_an_output_format_has_what_the_recipe_asks_for(name: str) -> None:
    module = render.module(name)
    held(module, WRITES)
    hints = get_type_hints(module.render)
    assert hints["result"] is Result
    assert hints["return"] in (str, bytes)
    assert render.to_stdout(name) or render.suffixes(name)  # it goes somewhere
    drawn = "style" in inspect.signature(module.render).parameters
    assert drawn == hasattr(module, "figures")
    assert drawn or not hasattr(module, "FIGURES")
    assert hints["return"] is str or not render.to_stdout(name)
