"""Every numeric option of every registry has a range, and nothing outside it gets past the spec."""

from __future__ import annotations

import math
import types
from collections.abc import Iterator
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import numpy as np
import pytest

from calibcli import calibrators, from_arrays, metrics
from calibcli.calibrators import SCALERS
from calibcli.core.errors import Exit, UsageError
from calibcli.core.options import Range, within
from calibcli.core.registries import Choice, Entry, Registry
from calibcli.lab.training.recipes import AUGMENTATIONS, CHANGES, OPTIMIZERS, SCHEDULES
from calibcli.metrics import METRICS
from calibcli.networks.architectures import ARCHITECTURES
from calibcli.networks.curvature.quantities import QUANTITIES
from calibcli.networks.losses import LOSSES, PENALTIES
from calibcli.ship import TARGETS

REGISTRIES = (
    METRICS,
    SCALERS,
    LOSSES,
    PENALTIES,
    QUANTITIES,
    ARCHITECTURES,
    OPTIMIZERS,
    SCHEDULES,
    AUGMENTATIONS,
    CHANGES,
    TARGETS,
)


def parts(kind: Any) -> Iterator[Any]:
    """The annotation itself, or the members of a union."""
    if get_origin(kind) in (Union, types.UnionType):
        for arg in get_args(kind):
            yield from parts(arg)
    else:
        yield kind


def holds_numbers(kind: Any) -> bool:
    if get_origin(kind) is Literal:
        return False
    return kind in (int, float) or any(holds_numbers(arg) for arg in get_args(kind))


def range_of(kind: Any) -> Range | None:
    return (
        next((a for a in get_args(kind)[1:] if isinstance(a, Range)), None) if get_origin(kind) is Annotated else None
    )


def numeric() -> Iterator[tuple[Registry, Entry, str, Any]]:
    for registry in REGISTRIES:
        for entry in registry:
            for key, parameter in entry.options.items():
                for kind in parts(parameter.annotation):
                    if holds_numbers(kind):
                        yield registry, entry, key, kind


NUMERIC = [pytest.param(*case, id=f"{case[0].kind}-{case[1].name}-{case[2]}") for case in numeric()]


def test_every_registry_is_walked() -> None:
    assert len(NUMERIC) > 70
    without = {TARGETS}  # its options are names
    assert {case.values[0] for case in NUMERIC} == set(REGISTRIES) - without


@pytest.mark.parametrize(("registry", "entry", "key", "kind"), NUMERIC)
def test_every_numeric_option_has_a_range(registry: Registry, entry: Entry, key: str, kind: Any) -> None:
    bounds = range_of(kind)
    assert bounds is not None, f"{registry.kind} {entry.name}:{key} takes any number"
    assert math.isfinite(bounds.low)
    assert math.isfinite(bounds.high)
    default = entry.options[key].default
    if default is not entry.options[key].empty:
        within(default, entry.options[key].annotation, "")


@pytest.mark.regression("4 option-ranges")
@pytest.mark.parametrize(("registry", "entry", "key", "kind"), NUMERIC)
def test_outside_its_range_an_option_is_refused_by_name(registry: Registry, entry: Entry, key: str, kind: Any) -> None:
    bounds = range_of(kind)
    assert bounds is not None
    whole = int in (get_args(kind)[0], *get_args(get_args(kind)[0]))
    low, high = (
        (int(bounds.low), int(bounds.high))
        if whole
        else (math.nextafter(bounds.low, -math.inf), math.nextafter(bounds.high, math.inf))
    )
    below, above = (low - 1, high + 1) if whole else (low, high)
    texts = [str(below), str(above), "nan", "inf", "-inf", "1_0", "9" * 401, "9" * 5000, "1e309", "0x1", ""]
    if bounds.open_low:
        texts.append(str(bounds.low))
    if bounds.open_high:
        texts.append(str(bounds.high))
    if get_origin(get_args(kind)[0]) is tuple:
        texts += ["/" + str(bounds.high), str(bounds.high) + "/" + str(above)]
    others = ",".join(f"{k}={_valid(p)}" for k, p in entry.options.items() if p.default is p.empty and k != key)
    optional = type(None) in get_args(entry.options[key].annotation)
    for text in texts:
        if text == "" and optional:
            continue
        with pytest.raises(UsageError) as caught:
            registry.choose(f"{entry.name}:{key}={text}" + ("," + others if others else ""))
        assert caught.value.code == Exit.USAGE
        assert f"{entry.name}:{key}=" in caught.value.problem
        assert len(caught.value.problem) < 200
        if "auto" not in str(entry.options[key].annotation) or text == str(above):
            assert str(bounds) in caught.value.fix, (text, caught.value.fix)


def _valid(parameter: Any) -> str:
    bounds = range_of(next((k for k in parts(parameter.annotation) if holds_numbers(k)), None))
    if bounds is None:
        assert parameter.annotation is bool
        return "true"
    return f"{bounds.high:.0f}"


def test_values_that_the_program_fills_in_obey_the_range_too() -> None:
    with pytest.raises(UsageError, match="ece:bins=0 is out of range"):
        METRICS.choose("ece", bins=0)
    with pytest.raises(UsageError, match="out of range"):
        METRICS.choose("ece", bins=10**401)


@pytest.mark.regression("3.5")
@pytest.mark.parametrize(
    "spec", ["ece:bins=15,bins=1", "ece:bins=15,BINS=15", "smece:variant=exact,of=top,variant=exact"]
)
def test_an_option_twice_is_refused(spec: str) -> None:
    with pytest.raises(UsageError, match="is there twice"):
        METRICS.choose(spec)


@pytest.mark.regression("1.19")
def test_an_unknown_scaler_is_answered_in_the_words_of_the_docs() -> None:
    with pytest.raises(UsageError) as caught:
        SCALERS.choose("xyz")
    assert "focal-temperature" in caught.value.fix
    assert "_" not in caught.value.fix
    with pytest.raises(UsageError, match="isotonic_tip") as caught:
        SCALERS.choose("isotonic_tip")
    assert caught.value.fix == "did you mean 'isotonic-top'?"
    with pytest.raises(UsageError) as caught:
        LOSSES.choose("label_smooth")
    assert caught.value.fix == "did you mean 'label_smoothing'?"


def ends(registry: Registry) -> list[Any]:
    cases = []
    for entry in registry:
        for key, parameter in entry.options.items():
            for kind in parts(parameter.annotation):
                bounds = range_of(kind)
                if bounds is not None:
                    low = math.nextafter(bounds.low, 1) if bounds.open_low else bounds.low
                    high = math.nextafter(bounds.high, 0) if bounds.open_high else bounds.high
                    cases += [pytest.param(f"{entry.name}:{key}={end:.17g}") for end in (low, high)]
    return cases


@pytest.fixture(scope="module")
def three_classes() -> Any:
    rng = np.random.default_rng(3)
    logits = rng.normal(0, 2, (120, 3))
    labels = np.array([rng.choice(3, p=p) for p in np.exp(logits) / np.exp(logits).sum(1, keepdims=True)])
    return from_arrays(logits, labels)


@pytest.fixture(scope="module")
def two_classes() -> Any:
    rng = np.random.default_rng(4)
    p = rng.uniform(0.02, 0.98, 120)
    return from_arrays(p, (rng.random(120) < p).astype(int))


@pytest.mark.regression("4 smece-sigma")
@pytest.mark.parametrize("spec", ends(METRICS))
@pytest.mark.one_in(5)
def test_a_metric_works_at_the_ends_of_its_ranges(spec: str, three_classes: Any, two_classes: Any) -> None:
    of_two = METRICS.choose(spec).traits.two_classes
    [found] = metrics.measure(two_classes if of_two else three_classes, [spec])
    assert found.value is None or math.isfinite(found.value)
    assert found.value is not None or found.reason


@pytest.mark.parametrize("spec", ends(SCALERS))
def test_a_scaler_works_at_the_ends_of_its_ranges(spec: str, three_classes: Any) -> None:
    fit = calibrators.fit(spec, three_classes)
    p = np.exp(fit.scaler(three_classes.logits))
    assert np.allclose(p.sum(1), 1) or fit.scaler.choice.options.get("of") == "top"


def test_a_choice_is_what_the_spec_says() -> None:
    choice = METRICS.choose("ece:bins=1000")
    assert isinstance(choice, Choice)
    assert choice.options["bins"] == 1_000
