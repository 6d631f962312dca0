"""Every public thing and every registry entry says shapes, units, errors and its source; their examples are true."""

from __future__ import annotations

import ast
import doctest
import inspect
import re
import sys
import textwrap
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import calibcli
from calibcli.api import catalogue
from calibcli.calibrators import Fit, Scaler
from calibcli.lab.training.options import Setup
from calibcli.networks.curvature.matrix import CurvatureOperator
from calibcli.scores.from_arrays import How

ROOT = Path(__file__).parent.parent
ENTRIES = {
    f"{where} {entry.name}": (where, entry) for where, one in catalogue.REGISTRIES.items() for entry in one.registry
}
FUNCTIONS = {name: getattr(calibcli, name) for name in calibcli.__all__ if inspect.isroutine(getattr(calibcli, name))}
HINTS = {
    name: {key: str(kind) for key, kind in function.__annotations__.items()} for name, function in FUNCTIONS.items()
}
TAKES_ARRAYS = re.compile(r"Array|Scores|Tensor")
OF_ARRAYS = [
    "curvature",
    "hessian",
    *(name for name, hints in HINTS.items() if TAKES_ARRAYS.search(" ".join(hints.values()))),
]
GIVES_NUMBERS = [name for name, hints in HINTS.items() if re.search(r"Result|Fit|Loss|Predictions", hints["return"])]
CLASSES = {name: getattr(calibcli, name) for name in calibcli.__all__ if inspect.isclass(getattr(calibcli, name))}
CLASSES |= {"Fit": Fit, "Scaler": Scaler, "CurvatureOperator": CurvatureOperator}
ARRAYS = re.compile(r"\((?:N|n|K|k)\b[^)]*\)")
SOURCE = re.compile(r"[A-Z]\w(?:[^.]|al\.)*?\b(?:1[89]|20)\d\d\b|\bOurs: ")
ELSEWHERE = {*How.__annotations__, *inspect.signature(Setup).parameters}


def methods() -> Iterator[tuple[str, Any]]:
    """Public functions of the classes, their own or inherited from calib; a call is one too."""
    for name, cls in CLASSES.items():
        for key, found in inspect.getmembers_static(cls):
            function = found.__func__ if isinstance(found, classmethod | staticmethod) else found
            ours = str(getattr(function, "__module__", "")).startswith("calibcli.")
            if inspect.isfunction(function) and ours and (not key.startswith("_") or key == "__call__"):
                yield f"{name}.{key}", function


METHODS = dict(methods())
FORMATS = {f"formats {one.way} {one.name}": one for one in catalogue.formats()}
EXAMPLES: dict[str, Any] = {
    **{name: entry.target for name, (_, entry) in ENTRIES.items()},
    **{name: one.module for name, one in FORMATS.items()},
    **FUNCTIONS,
    **CLASSES,
    **METHODS,
}


@cache
def shared() -> dict[str, Any]:
    """What the examples of registry entries stand on, as `calib list` says."""
    with np.load(ROOT / "sample_data" / "test.npz") as file:
        arrays = {name: file[name] for name in ("logits", "labels")}
    result = calibcli.measure(*arrays.values(), "accuracy")
    return {"calibcli": calibcli, "model": "sample_data/model.pt", "result": result, **arrays}


def doc(target: Any) -> str:
    """Its own docstring, not that of a class it comes from."""
    return inspect.cleandoc(target.__doc__ or "")


def raised(target: Any) -> set[str]:
    """Exceptions that its own `raise` statements name and that it does not catch itself."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(target))))
    names = (n.exc.func if isinstance(n.exc, ast.Call) else n.exc for n in ast.walk(tree) if isinstance(n, ast.Raise))
    caught = {
        n.id
        for h in ast.walk(tree)
        if isinstance(h, ast.ExceptHandler) and h.type
        for n in ast.walk(h.type)
        if isinstance(n, ast.Name)
    }
    found = {n.id for n in names if isinstance(n, ast.Name) and n.id[0].isupper()}
    return found - caught.difference({"UsageError", "InputError"}) - {"NotImplementedError"}


def says_what_it_raises(target: Any) -> bool:
    _, _, section = doc(target).partition("Raises:")
    return all(re.search(rf"\b{name}:", section) for name in raised(target))


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.extra if name.endswith((" parquet", " arrow")) else pytest.mark.docs)
        for name in EXAMPLES
    ],
)
def test_the_example_is_true(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    target = EXAMPLES[name]
    if name.endswith((" parquet", " arrow")):
        pytest.importorskip("pyarrow")
    module = target if inspect.ismodule(target) else sys.modules[inspect.unwrap(target).__module__]
    names = {**vars(module), **shared(), "folder": tmp_path}
    example = doctest.DocTestParser().get_doctest(doc(target), names, name, None, None)
    assert any(one.want for one in example.examples), "no example that shows what comes out"
    found = doctest.DocTestRunner().run(example)
    assert found.failed == 0, capsys.readouterr().out


@pytest.mark.parametrize("name", ENTRIES)
def test_an_entry_says_its_source_unit_and_errors(name: str) -> None:
    _, entry = ENTRIES[name]
    prose = "\n".join(line for line in entry.about.splitlines() if line not in catalogue.example(entry.about))
    assert SOURCE.search(prose), "neither author and year nor `Ours: ...`"
    assert says_what_it_raises(entry.target)
    if getattr(entry.traits, "unit", "") == "nats":
        assert re.search(r"\bnats\b|\bNLL\b", prose, re.I)
    if name.startswith("quantities"):
        assert "nits of the loss" in prose


@pytest.mark.parametrize("name", FORMATS)
def test_a_format_says_its_source_and_errors(name: str) -> None:
    one = FORMATS[name]
    prose = "\n".join(line for line in one.about.splitlines() if line not in catalogue.example(one.about))
    assert SOURCE.search(prose), "neither author and year nor `Ours: ...`"
    for function in ("read", "columns", "render"):
        if target := getattr(one.module, function, None):
            assert doc(target), function
            assert says_what_it_raises(target), function
    tables = {table.name: table for table in catalogue.listing(one.name).tables}
    [where] = [table for table in tables if table.startswith(name.replace(" ", "_")) and table.endswith("_example")]
    assert str(tables[where].rows[0][0]).startswith(">>> ")


@pytest.mark.parametrize("name", ENTRIES)
def test_the_list_shows_what_goes_in_and_out(name: str) -> None:
    where, entry = ENTRIES[name]
    tables = {table.name: table for table in catalogue.listing(entry.name).tables}
    (takes, gives), *_ = tables[f"{where}_{entry.name}_use"].rows
    assert takes
    assert gives
    if where not in ("optimizers", "schedules"):
        assert ARRAYS.search(f"{takes} {gives}")
        assert re.search(r"float|integers|int64", str(takes))
    assert getattr(entry.traits, "unit", "") in str(gives)
    assert str(tables[f"{where}_{entry.name}_example"].rows[0][0]).startswith(">>> ")
    assert not any(">>>" in str(line) for (line,) in tables[f"{where}_{entry.name}"].rows)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_says_its_arguments_and_errors(name: str) -> None:
    function = FUNCTIONS[name]
    text = doc(function)
    assert "Raises:" in text
    assert says_what_it_raises(function)
    before = text.partition("Raises:")[0]
    for parameter in set(inspect.signature(function).parameters) - ELSEWHERE:
        assert re.search(rf"\b{parameter}\b", before), parameter


@pytest.mark.parametrize("name", OF_ARRAYS)
def test_a_function_of_arrays_says_their_shapes_and_types(name: str) -> None:
    text = doc(FUNCTIONS[name])
    assert ARRAYS.search(text) or "as for `measure`" in text
    assert re.search(r"float|integers|dtype|as\s+for `measure`", text)


@pytest.mark.parametrize("name", [*FUNCTIONS, "Accumulator", "Calibrator", "Watch"])
def test_what_works_something_out_says_its_source(name: str) -> None:
    """Or the registry whose entries do."""
    text = doc(EXAMPLES[name])
    assert SOURCE.search(text) or re.search(r"`calib list \w+`", text)


@pytest.mark.parametrize("name", GIVES_NUMBERS)
def test_a_function_that_gives_numbers_says_their_unit(name: str) -> None:
    assert re.search(r"\bnats\b|probabilit|\bunits?\b", doc(FUNCTIONS[name]))


@pytest.mark.parametrize("name", METHODS)
def test_a_method_says_its_shapes_and_errors(name: str) -> None:
    method = METHODS[name]
    assert says_what_it_raises(method)
    hints = " ".join(map(str, method.__annotations__.values()))
    if re.search(r"Array|Ints|Floats", hints):
        assert re.search(r"\([nN]\b|indices|rows", doc(method))


def test_the_page_of_python_names_every_public_name() -> None:
    page = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
    assert set(re.findall(r"(?m)^### `calibcli\.(\w+)", page)) == set(calibcli.__all__)


@pytest.mark.docs
def test_the_examples_of_the_page_of_python_are_true(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    page = (ROOT / "docs" / "python.md").read_text(encoding="utf-8").replace("```", "")
    example = doctest.DocTestParser().get_doctest(page, {}, "python.md", None, None)
    assert len(example.examples) > len(calibcli.__all__)
    assert doctest.DocTestRunner().run(example).failed == 0, capsys.readouterr().out
