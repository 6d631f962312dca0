"""The parts of a study: arms with the options of `calib fit`, seeds, measured numbers, and claims."""

from __future__ import annotations

import csv
import dataclasses
import json
import re
import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, Literal, get_type_hints

from calibcli.core.errors import InputError, UsageError, did_you_mean, printable
from calibcli.core.files import reading
from calibcli.core.options import Rows, Seeds, values
from calibcli.core.registries import Entry
from calibcli.core.result import Screen
from calibcli.core.validation import read
from calibcli.lab.study.claims import (
    KINDS,
    ClaimedArms,
    ClaimTraits,
    ClaimVerdict,
    Factor,
    Margin,
    Misses,
    Percent,
    Share,
    at_moment,
)
from calibcli.lab.training.options import Training
from calibcli.networks.curvature import QUANTITIES

SCREEN = Screen(pairs="claims", hidden=("study", "command", "cost", "spent", "cite", "recipe_sha256"))
"""A screen shows the claims, and what decides each."""

SIZES = ("small", "medium", "paper")
CURVATURE = tuple(entry.name for entry in QUANTITIES if entry.traits.by_row)
"""Quantities of `calib curvature` whose error over rows a verdict can count."""
ALONG = ("lambda_max", "trace")
"""Quantities of the log of a run, of cross-entropy on all validation rows; they are measured at its moments."""
OF_TRAINING = ("train_loss", "last_weight_norm")
LOGGED = (
    *("nll", "nll_correct", "nll_wrong", "entropy", "p_true", "error", "ece", "adaece", "margin_tail", "temperature"),
    *(*OF_TRAINING, *ALONG),
)
"""Numbers of the log of a run: of the validation rows, but for those of the training and of the last layer."""
POINTS = 100  # of the curve of a log, at most
TRAIN = ("train_nll", "train_confidence_gap")
"""Numbers that are measured on the training rows, at the end."""
UNRENORMALISED = " unrenormalised"


@dataclass(frozen=True)
class Arm:
    """A loss with options of its own; `at` holds its place on each axis that it was written with.

    An arm that changes the networks of another one, its `source`, by a `change` is not trained. It has the loss and the
    options of the source.
    """

    name: str
    loss: str
    options: Mapping[str, Any] = field(default_factory=dict)
    at: Mapping[str, float] = field(default_factory=dict)
    source: str = ""
    change: str = ""

    @property
    def made(self) -> str:
        """How it is made, in words."""
        return f"{self.change} of {self.source}" if self.source else self.loss


@dataclass(frozen=True)
class PrintedNumbers:
    """The paper's own numbers of an arm on one network and data set, by metric, in the units of the metrics.

    Attributes:
        data: name of a published data set, as its reader has it, or the path that the recipe names.
        rows: test rows of that data set, which tell it from a part of it; 0 for any number.
    """

    arm: str
    network: str
    data: str
    numbers: Mapping[str, float]
    rows: int = 0


@dataclass(frozen=True)
class StudyClaim:
    """A sentence and how it is judged: `kind` is in the registry `KINDS`, `keys` its settings.

    With the premise `overfit` it is judged only where cross-entropy overfits.
    """

    id: str
    text: str
    kind: str
    keys: Mapping[str, Any]
    premise: str = ""

    @property
    def entry(self) -> Entry[ClaimTraits]:
        """What is known of its kind."""
        return KINDS.entries[self.kind]

    def judged(self, arms: ClaimedArms) -> ClaimVerdict:
        """Judge it on these arms."""
        verdict: ClaimVerdict = self.entry.target(arms, **self.keys)
        return verdict

    @property
    def numbers(self) -> tuple[str, ...]:
        """The measured numbers that are compared."""
        if moments := self.entry.traits.moments:
            names = [str(self.keys[key]) for key in ("metric", "against") if key in self.keys]
            return tuple(at_moment(name, self.keys[key]) for name in names for key in moments)
        return tuple(str(self.keys[key]) for key in ("metric", "than") if key in self.keys)

    def printed(self, arms: Mapping[str, Mapping[str, float]]) -> float | None:
        """Return the paper's own difference, or number, from its numbers of the arms on the same network and rows."""
        named = [(key, name) for key, name in zip("ab", (self.numbers[0], self.numbers[-1])) if key in self.keys]
        numbers = [arms.get(str(self.keys[key]), {}).get(name) for key, name in named]
        present = [value for value in numbers if value is not None]
        if not present or len(present) < len(numbers) or self.entry.traits.moments:
            return None
        return present[0] - sum(present[1:])

    @property
    def along(self) -> str:
        """Its axis, or ""."""
        return str(self.keys.get("along", ""))

    @property
    def against(self) -> str:
        """The number on the horizontal axis of its figure, or what else it has for an axis."""
        return str(self.keys.get("against", self.along))


@dataclass(frozen=True)
class Study:
    """Everything that decides what a study computes.

    Attributes:
        train, validation, test: rows, as `calib fit` takes them.  split: how validation rows are held out of the
            training rows where none are named, or "".  embeddings: vectors of words, or "".  masked: a class of the
            training rows that is never an answer, or "".
        arch: networks.  seeds: how many.  options: of `calib fit`, for every arm.  device, threads: where it runs.
        metrics: of test rows, before and `after` a temperature fitted on the validation rows.
        scalers: further ones than the temperature.
        curvature: quantities, of the validation rows that are named, else of the test rows.  losses: of which, `ce`
            and `train` (each arm's own).
        log: numbers of the validation rows at `moments`, percent of the epochs.
        computes: what is computed without any training, in place of arms.
        printed: the paper's own numbers, of its networks that are here.
        bibtex, cost, differs: of the report: the paper, what the size costs, how it differs from the paper.
    """

    name: str
    question: str
    paper: str
    train: str
    validation: str
    test: str
    arch: tuple[str, ...]
    seeds: int
    options: Mapping[str, Any]
    arms: tuple[Arm, ...]
    metrics: tuple[str, ...]
    curvature: tuple[str, ...]
    losses: tuple[str, ...]
    claims: tuple[StudyClaim, ...]
    size: str = ""
    split: str = ""
    embeddings: str = ""
    masked: str = ""
    device: str = "auto"
    threads: int = 0
    scalers: tuple[str, ...] = ()
    log: tuple[str, ...] = ()
    moments: tuple[int, ...] = ()
    computes: str = ""
    printed: tuple[PrintedNumbers, ...] = ()
    bibtex: str = ""
    cost: str = ""
    differs: tuple[str, ...] = ()

    def paper_numbers(self, network: str, data: str, rows: int) -> dict[str, Mapping[str, float]]:
        """Return the paper's own numbers by arm, of this network and these test rows: nothing where it has none."""
        here = (data, self.test.partition("#")[0])
        return {
            one.arm: one.numbers
            for one in self.printed
            if one.network == network and one.data in here and one.rows in (0, rows)
        }

    @property
    def readings(self) -> tuple[str, ...]:
        """Suffixes of the names of metrics: where a class is never an answer, confidence is read in two ways."""
        return ("", UNRENORMALISED) if self.masked else ("",)

    @property
    def temperatures(self) -> tuple[str, ...]:
        """Further ways to choose a temperature, whose T is a number of a run: `temperature after SCALER`."""
        return tuple(scaler for scaler in self.scalers if scaler.partition(":")[0] == "temperature")

    @property
    def measured(self) -> list[str]:
        """Names of everything that a claim may be about."""
        maps = ["", " after", *(f" after {scaler}" for scaler in self.scalers)]
        names = [f"{name}{suffix}{of}" for of in self.readings for suffix in maps for name in self.metrics]
        names += [
            f"temperature{suffix}{of}"
            for of in self.readings
            for suffix in ("", *map(" after {}".format, self.temperatures))
        ]
        names += TRAIN
        return names + self.logged + [f"{what} of {loss}" for what in self.curvature for loss in self.losses]

    @property
    def logged(self) -> list[str]:
        """Names of the numbers of the log at each moment, which only arms that are trained have."""
        return [at_moment(name, moment) for name in self.log for moment in self.moments]

    def ordered(self, axis: str) -> list[Arm]:
        """Return the arms on an axis, in its order."""
        return sorted((arm for arm in self.arms if axis in arm.at), key=lambda arm: arm.at[axis])

    @property
    def levels(self) -> dict[str, list[str]]:
        """Names of the arms on each axis that arms are written with, in its order."""
        return {axis: [arm.name for arm in self.ordered(axis)] for arm in self.arms for axis in arm.at}

    def is_measured(self, axis: str) -> bool:
        """Whether an axis is a measured number, and none that arms are written with."""
        return axis in self.measured and not self.ordered(axis)

    def asked(self, claim: StudyClaim) -> list[Arm]:
        """Return the arms that a claim is about: those it names, those on its axes, or all trained ones."""
        if claim.entry.traits.every_arm or self.is_measured(claim.along):
            return [arm for arm in self.arms if not arm.source]
        if named := [str(claim.keys[key]) for key in ("a", "b") if key in claim.keys]:  # which may be one arm twice
            return [arm for name in named for arm in self.arms if arm.name == name]
        axes = [claim.along] if claim.along else claim.keys["causes"]
        return list({arm.name: arm for axis in axes for arm in self.ordered(str(axis))}.values())

    def scoped(self, name: str, arch: str) -> str:
        """Add the network to a name, where there are several."""
        return f"{name}, {arch}" if len(self.arch) > 1 else name


def built_in() -> list[str]:
    """Return the names of the built-in studies."""
    return sorted(file.name.removesuffix(".toml") for file in _folder().iterdir() if file.name.endswith(".toml"))


def _folder() -> Traversable:
    return resources.files("calibcli.lab.study").joinpath("builtin")


def text_of(name: str) -> tuple[str, str]:
    """Return the TOML of a built-in study or of a file, and its name or path.

    Raises:
        UsageError: it is neither.
    """
    if name in built_in():
        return _folder().joinpath(f"{name}.toml").read_text("utf-8"), name
    path = Path(name)
    if path.suffix != ".toml" or not path.is_file():
        refuse_weights(name)
        raise UsageError(f"no study is called '{name}'", did_you_mean(name, built_in()) + ", or pass a .toml file")
    reading(path)
    try:
        return path.read_text("utf-8"), str(path)
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}", "pass a TOML file") from None


def differences(
    there: Mapping[str, Any], here: Mapping[str, Any], names: Iterable[str], told: Callable[[Any], str] = str
) -> str:
    """Say in what a folder differs from what is asked: `lr 0.1 there, 0.2 here; ...`, "" if in nothing."""
    return "; ".join(
        f"{name} {printable(told(there.get(name)), 80)} there, {printable(told(here.get(name)), 80)} here"
        for name in names
        if there.get(name) != here.get(name)
    )


def refuse_weights(name: str) -> None:
    """Refuse a checkpoint in the place of a study or of a network.

    Raises:
        UsageError: it is a file of weights.
    """
    if Path(name).suffix in (".pt", ".pth", ".ckpt", ".safetensors") and Path(name).is_file():
        problem = f"{name} is a checkpoint, and a study trains every network from fresh weights"
        fix = f"pass --arch with an architecture; or train on from it: calib fit {shlex.quote(name)} --data DATA"
        raise UsageError(problem, fix)


def table_of(name: str) -> list[PrintedNumbers]:
    """Return the numbers of a paper from a table that comes along, one row for each arm on a network and data set.

    Its columns are data, rows (of the test set), network, arm, reading ("unrenormalised" where confidence is read so)
    and metrics.

    Raises:
        UsageError: no such table.
    """
    file = _folder().joinpath(name)
    tables = [one.name for one in _folder().iterdir() if one.name.endswith(".csv")]
    if name not in tables:
        raise UsageError(f"no table of printed numbers is called '{name}'", did_you_mean(name, tables))
    beside = ("data", "rows", "network", "arm", "reading")
    return [
        PrintedNumbers(
            row["arm"],
            row["network"],
            row["data"],
            {f"{k} {row['reading']}".strip(): float(v) for k, v in row.items() if v and k not in beside},
            int(row["rows"]),
        )
        for row in csv.DictReader(file.read_text("utf-8").splitlines())
    ]


Names = list[str]
SHARE = re.compile(r"(?=.*[1-9])[0-9]{1,3}(\.[0-9]+)?%")
FILLED = ("name", "id", "drawn")  # not blank, as every one of `Names`
VALUES: dict[str, tuple[Any, str]] = {
    **dict.fromkeys(("name", "id"), (str, '"a name"')),
    **dict.fromkeys(("question", "paper", "bibtex", "cost", "computes", "text"), (str, '"words"')),
    **{key: (str, '"rows.npz#' + key + '"') for key in ("train", "validation", "test")},
    **dict.fromkeys(("embeddings", "masked", "loss"), (str, '"..."')),
    "split": (Literal["", "stratified", "mukhoti"], '"stratified" or "mukhoti"'),
    "differs": (Names, '["what differs from the paper"]'),
    "arch": (Names, '["resnet:depth=20"]'),
    "seeds": (Seeds, "5"),
    "metrics": (Names, '["error", "ece"]'),
    "scalers": (Names, '["focal-temperature"]'),
    "curvature": (Names, '["lambda_max", "trace after"]'),
    "losses": (Names, '["ce", "train"]'),
    "log": (Names, '["nll_wrong"]'),
    "moments": (list[Percent], "[10, 100], percent of the epochs"),
    "at": (Mapping[str, float], "{ gamma = 0 }"),
    "from": (str, '"CE"'),
    "change": (str, '"rescale:by=4"'),
    "printed": (str, '"mukhoti2020.csv", or [[printed]] tables'),
    "numbers": (Mapping[str, float], "{ ece = 0.0435 }"),
    "rows": (Rows, "10000, the rows of the test set"),
    **dict.fromkeys(("arm", "network", "data"), (str, '"a name"')),
    **dict.fromkeys(("metric", "than", "against"), (str, '"ece"')),
    "on": (str, '"temperature"'),
    "beside": (Names, '["error"]'),
    **dict.fromkeys(("a", "b", "base"), (str, '"CE"')),
    "causes": (Names, '["gamma", "weight"], axes of arms'),
    "drawn": (str, '"what the arms were drawn from, and how"'),
    "within": (Share, "0.15, a share of the base arm's"),
    "factor": (Factor, "2.0"),
    "miss": (Misses, "1, standard errors of an arm"),
    "along": (str, '"gamma"'),
    "margin": (Margin, '0.005, or a share such as "20%"'),
    **dict.fromkeys(("low", "high"), (float, "1.0")),
    **dict.fromkeys(("first", "last"), (Percent, "10, percent of the epochs")),
    "sign": (Literal["+", "-"], '"+" or "-"'),
    "own": (bool, "true"),
    "side": (Literal["same", "above", "below"], '"same", "above" or "below"'),
}
EXAMPLES = {"clip_norm": 1.0, "patience": 5, "augment": "flip", "freeze": ["layer1.*"]}
"""Examples for the options of training that are left out by default."""


def _options() -> dict[str, tuple[Any, str]]:
    """Return kind and example of each option of training, as `VALUES` has them."""
    kinds, options = get_type_hints(Training, include_extras=True), {}
    for f in dataclasses.fields(Training):
        # `values` says in words what a kind may be, as "a whole number from 1" or "a number above 0 or none"
        example, words = json.dumps(EXAMPLES.get(f.name, f.default)), values(kinds[f.name]).removesuffix(" or none")
        options[f.name] = (
            kinds[f.name],
            f"{example}, {words}" if words.startswith(("a whole", "a number")) else example,
        )
    return options


VALUES |= _options()


def wanted(key: str, value: Any) -> str:
    """Say what to write in place of a value that its key does not take; "" where the value is right."""
    kind, example = VALUES.get(key, (Any, ""))
    try:
        read(value, kind, "", "")
    except InputError:
        return f"write {key} = {example}"
    names = value if kind is Names else [value] if key in FILLED else []
    if kind is Margin and isinstance(value, str) and not SHARE.fullmatch(value):
        return f"write {key} = {example}"
    return "" if all(map(str.strip, names)) else f"write {key} = {example}"
