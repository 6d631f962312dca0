"""Traits: a mistyped one is refused where it is written, and a metric is the same number whatever else is asked."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from calibcli.core.registries import Registry, Traits
from calibcli.metrics import METRICS, choose, columns_of
from calibcli.metrics.registry import MetricTraits, Sample, estimates
from calibcli.scores.predictions import Predictions

ROOT = Path(__file__).parent.parent
REGISTRIES = {
    name: importlib.import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))
    for path in sorted((ROOT / "calibcli").rglob("*.py"))
    for name in re.findall(r"^(\w+) = Registry\(", path.read_text(encoding="utf-8"), re.MULTILINE)
}
"""The module of every registry, by the name of the registry."""


def registry(name: str) -> Registry[..., Any]:
    found: Registry[..., Any] = getattr(REGISTRIES[name], name)
    return found


def some_traits(name: str) -> dict[str, Any]:
    """Traits that an entry of the registry has, as `add` takes them."""
    traits = next(iter(registry(name))).traits
    return {one.name: getattr(traits, one.name) for one in dataclasses.fields(traits)}


def test_every_registry_is_tested() -> None:
    assert len(REGISTRIES) >= 12
    assert {"METRICS", "SCALERS", "LOSSES", "ARCHITECTURES", "QUANTITIES", "TARGETS", "KINDS"} <= REGISTRIES.keys()


@pytest.mark.parametrize("name", REGISTRIES)
def test_a_mistyped_trait_is_refused_where_it_is_written(name: str) -> None:
    """Before the entry is defined, so that a module with it is not imported."""
    known = some_traits(name)
    registry(name).add("something", **known)
    with pytest.raises(TypeError, match="unexpected keyword argument 'beter'"):
        registry(name).add("something", **known, beter="lower")
    with pytest.raises(TypeError, match="positional argument"):
        registry(name).add("something", "lower", **known)
    assert "something" not in registry(name)


@pytest.mark.parametrize("name", REGISTRIES)
def test_a_word_that_a_trait_may_not_have_is_refused(name: str) -> None:
    known = some_traits(name)
    kind = type(next(iter(registry(name))).traits)
    for trait, annotation in inspect.get_annotations(kind).items():
        if annotation.startswith(("Literal[", "tuple[ColumnName")):
            for word in ("lowr", ("lowr",), "nll" * (trait == "reads") or 1):
                with pytest.raises(TypeError, match=f"{trait}="):
                    registry(name).add("something", **{**known, trait: word})


def test_a_trait_that_an_entry_needs_is_asked_for() -> None:
    for name, needed in (("METRICS", "values"), ("SCALERS", "form"), ("TARGETS", "data"), ("QUANTITIES", "order")):
        known = some_traits(name)
        del known[needed]
        with pytest.raises(TypeError, match=f"missing .*'{needed}'"):
            registry(name).add("something", **known)


def test_every_trait_says_what_it_means() -> None:
    for kind in (Traits, *Traits.__subclasses__()):
        if not kind.__module__.startswith("calibcli."):
            continue  # of a test
        [definition] = ast.parse(inspect.cleandoc(inspect.getsource(kind))).body
        assert isinstance(definition, ast.ClassDef)
        for one, below in zip(definition.body, definition.body[1:], strict=False):
            if isinstance(one, ast.AnnAssign):
                said = isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)
                assert said, f"{kind.__name__}.{ast.unparse(one.target)}"


@pytest.mark.slow
def test_mypy_refuses_a_mistyped_trait_of_every_registry(tmp_path: Path) -> None:
    """With all registries in one file, as a run without a cache takes most of a minute."""
    pytest.importorskip("mypy")
    needed = {
        "METRICS": "values=Range(0, 1), ",
        "SCALERS": "map=print, form={}, ",
        "TARGETS": 'suffixes=(), data="scores", ',
        "QUANTITIES": "order=1, ",
    }
    lines = ["from calibcli.core.options import Range"]
    lines += [f"from {module.__name__} import {name}" for name, module in REGISTRIES.items()]
    right = [f"{name}.add({needed.get(name, '')}papers=True)" for name in REGISTRIES]
    wrong = [f'{name}.add({needed.get(name, "")}beter="lower")' for name in REGISTRIES]
    wrong += [
        'METRICS.add(values=Range(0, 1), better="lowr")',
        'METRICS.add(better="lower")',
        'METRICS.add(values=Range(0, 1), reads=("nl",))',
        'METRICS.entries["ece"].traits.beter',
        'METRICS.choose("ece").traits.beter',
        'TARGETS.add(suffixes=(), data="inputs and scores")',
        'QUANTITIES.add(order="first")',
        "KINDS.add(moments=True)",
    ]
    file = tmp_path / "entries_of_a_package.py"
    file.write_text("\n".join([*lines, *right, *wrong]) + "\n")
    command = [sys.executable, "-m", "mypy", "--config-file", str(ROOT / "pyproject.toml"), "--no-error-summary"]
    done = subprocess.run([*command, str(file)], cwd=ROOT, capture_output=True, encoding="utf-8", check=False)
    said = dict(re.findall(rf"^.*{file.name}:(\d+): error: (.*)$", done.stdout, re.MULTILINE))
    start = len(lines) + len(right) + 1
    assert said.keys() == {str(start + i) for i in range(len(wrong))}, done.stdout + done.stderr
    for i, name in enumerate(REGISTRIES):
        assert said[str(start + i)].startswith('Unexpected keyword argument "beter"'), name


N = 200


def drawn(k: int, how: str) -> Predictions:
    rng = np.random.default_rng(k)
    z = 2 * rng.normal(size=(N, k))
    y = np.where(rng.random(N) < 0.7, z.argmax(1), rng.integers(0, k, N))
    given: dict[str, Any] = {
        "plain": {},
        "weighted": {"weights": rng.gamma(2, 0.5, N) + 0.1},
        "counted": {"weights": rng.integers(1, 5, N).astype(float), "weight_kind": "count"},
        "grouped": {"groups": rng.integers(0, 40, N)},
    }[how]
    return dataclasses.replace(Predictions.of(z, y), **given)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("how", ["plain", "weighted", "counted", "grouped"])
@pytest.mark.parametrize("k", [2, 5])
def test_a_metric_is_the_same_number_alone_and_beside_all_others(k: int, how: str) -> None:
    """And of the columns that its traits say it reads, so that none of them is missing there."""
    rows = drawn(k, how)
    every = choose(["all"], k)
    whole = columns_of(rows, every)
    beside = estimates(Sample.of(whole, rows), every)
    assert len(every) > 30
    for choice, wanted in zip(every, beside, strict=True):
        alone = columns_of(rows, [choice])
        bare = dataclasses.replace(alone, numbers={name: alone.numbers[name] for name in choice.traits.reads})
        for table in (alone, bare):
            [found] = estimates(Sample.of(table, rows), [choice])
            assert repr(found) == repr(wanted)


def test_a_column_that_was_not_computed_raises() -> None:
    """What a metric reads without saying so is no number alone, and none beside others that read it."""

    def careless(sample: Sample) -> Any:
        return sample.columns.brier.mean()

    rows = drawn(5, "plain")
    choice = dataclasses.replace(
        METRICS.choose("ece"), entry=dataclasses.replace(METRICS.entries["ece"], target=careless), options={}
    )
    with pytest.raises(LookupError, match="column brier was not computed: the traits of the metric must say that it"):
        choice(Sample.of(columns_of(rows, [choice])))


def test_what_is_no_metric_says_nothing() -> None:
    from calibcli.metrics.registry import NO_TRAITS, traits

    assert traits("lambda_max") is NO_TRAITS == MetricTraits(values=NO_TRAITS.values)
    assert traits("ece:bins=30") is METRICS.entries["ece"].traits
