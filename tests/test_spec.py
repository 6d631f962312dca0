"""The spec grammar: canonical names, typed options, and errors that say what would work."""

from __future__ import annotations

import importlib
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import pytest

from calibcli.core.errors import UsageError
from calibcli.core.options import Range
from calibcli.core.registries import Registry, Traits
from calibcli.metrics import METRICS


@dataclass(frozen=True, kw_only=True)
class ThingTraits(Traits):
    better: Literal["lower", "higher"] = "higher"


registry = Registry("thing", ThingTraits)


@registry.add(better="lower")
def some_thing(
    data: list[float],
    *,
    bins: int = 15,
    edges: Literal["right", "left"] = "right",
    gammas: tuple[float, ...] = (5.0, 3.0),
    tau: float | None = None,
    flag: bool = False,
) -> float:
    """A thing."""
    return bins * len(data)


@pytest.mark.parametrize(
    ("spec", "canonical"),
    [
        ("some-thing", "some_thing"),
        ("some_thing:bins=15", "some_thing"),
        ("some_thing:edges=LEFT,bins=30", "some_thing:bins=30,edges=left"),
        ("some_thing:gammas=1/2.5", "some_thing:gammas=1/2.5"),
        ("some_thing:tau=0.5", "some_thing:tau=0.5"),
        ("some_thing:tau=none,flag=yes", "some_thing:flag=true"),
    ],
)
def test_canonical(spec: str, canonical: str) -> None:
    choice = registry.choose(spec)
    assert choice.spec == canonical
    assert registry.choose(choice.spec) == choice


def test_choice_calls_with_its_options_and_carries_traits() -> None:
    choice = registry.choose("some_thing:bins=3")
    assert choice([1.0, 2.0]) == 6
    assert choice.traits.better == "lower"


def test_a_flag_needs_no_value() -> None:
    assert registry.choose("some_thing:flag").options["flag"] is True
    assert registry.choose("some_thing:flag=false").options["flag"] is False


@pytest.mark.parametrize(
    ("spec", "problem", "fix"),
    [
        ("sme_thing", "unknown thing 'sme_thing'", "did you mean 'some_thing'?"),
        ("some_thing:bin=3", "thing 'some_thing' has no option 'bin'", "did you mean 'bins'?"),
        ("some_thing:bins", "option 'bins' of 'some_thing' has no value", "write some_thing:bins=VALUE"),
        ("some_thing:bins=x", "some_thing:bins=x is not a whole number", "pass a whole number"),
        ("some_thing:edges=top", "some_thing:edges=top is not a choice", "choose from: right, left"),
        ("some_thing:flag=maybe", "some_thing:flag=maybe is not true or false", "write some_thing:flag=true"),
    ],
)
def test_errors_name_the_fix(spec: str, problem: str, fix: str) -> None:
    with pytest.raises(UsageError) as caught:
        registry.choose(spec)
    assert (caught.value.problem, caught.value.fix) == (problem, fix)


def test_a_range_is_part_of_the_signature() -> None:
    ranged = Registry("ranged", Traits)

    @ranged.add()
    def thing(
        *,
        bins: Annotated[int, Range(1, 100)] = 15,
        tau: Annotated[float, Range(0, open_low=True)] | None = None,
        widths: Annotated[tuple[int, ...], Range(1)] = (1,),
    ) -> None:
        """A thing."""

    assert ranged.choose("thing:bins=100,tau=0.5,widths=1/2").spec == "thing:bins=100,tau=0.5,widths=1/2"
    assert ranged.choose("thing:tau=none").spec == "thing"
    for spec, fix in [
        ("thing:bins=0", "pass a whole number from 1 to 100"),
        ("thing:bins=1_0", "pass a whole number from 1 to 100"),
        ("thing:bins=" + "9" * 5000, "pass a whole number from 1 to 100"),
        ("thing:tau=0", "pass a number more than 0"),
        ("thing:tau=nan", "pass a number more than 0"),
        ("thing:tau=inf", "pass a number more than 0"),
        ("thing:widths=3/0", "pass a whole number at least 1"),
    ]:
        with pytest.raises(UsageError) as caught:
            ranged.choose(spec)
        assert caught.value.fix == fix, spec


def test_a_registry_finds_the_files_of_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new file is an entry, with no edit elsewhere; nothing is imported before entries are asked for."""
    folder = tmp_path / "things_of_a_registry"
    folder.mkdir()
    (folder / "__init__.py").write_text(
        "from calibcli.core.registries import Registry, Traits\nTHINGS = Registry('thing', Traits, package=__name__)\n"
    )
    for name in ("one", "two"):
        (folder / f"{name}.py").write_text(
            f"from things_of_a_registry import THINGS\n\n\n@THINGS.add()\ndef {name}():\n    return '{name}'\n"
        )
    monkeypatch.syspath_prepend(str(tmp_path))
    things = importlib.import_module("things_of_a_registry").THINGS
    assert "things_of_a_registry.one" not in sys.modules
    assert list(things.entries) == ["one", "two"]
    assert things.choose("two")() == "two"


def test_a_registry_lists_what_is_used_most_first_and_the_rest_by_name() -> None:
    from calibcli.metrics import DEFAULT, METRICS, choose

    names = list(METRICS.entries)
    assert names[: len(DEFAULT)] == list(DEFAULT)
    assert names[len(DEFAULT) :] == sorted(set(names) - set(DEFAULT))
    assert [choice.name for choice in choose(["all"], 2)] == names
    assert [choice.name for choice in choose(["all"], 10)] == [
        name for name in names if not METRICS.entries[name].traits.two_classes
    ]


@pytest.mark.parametrize("room", ["metrics", "calibrators", "networks.losses", "networks.architectures"])
def test_every_entry_of_a_room_is_found(room: str) -> None:
    """As many entries as the files of the room put in its registries."""
    module = importlib.import_module(f"calibcli.{room}")
    registries = {id(s): s for s in vars(module).values() if isinstance(s, Registry)}.values()
    put = re.compile(
        r"^@(?:METRICS|SCALERS|LOSSES|PENALTIES|ARCHITECTURES)\.add\(|^@(?:_error|distance|share_of_rows)\(",
        re.MULTILINE,
    )
    files = Path(module.__path__[0]).glob("*.py")
    assert sum(len(s.entries) for s in registries) == sum(len(put.findall(f.read_text())) for f in files)


@pytest.mark.regression
@pytest.mark.parametrize(
    ("name", "fix"),
    [("ace", "did you mean 'adaece'?"), ("O:E", "did you mean 'observed_expected'?"),
     ("auprc", "is not measured here"), ("balanced_accuracy", "is not measured here"), ("f1", "is not measured here")],
)  # fmt: skip
def test_no_hint_leads_to_another_number(name: str, fix: str) -> None:
    with pytest.raises(UsageError) as error:
        METRICS.choose(name)
    assert fix in error.value.fix
