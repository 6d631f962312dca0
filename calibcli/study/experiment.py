"""A study as it is written: TOML with the names of `calib fit`'s options, arms that override them, seeds and claims."""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

from calibcli.errors import UsageError, did_you_mean
from calibcli.files import atomic
from calibcli.study.redraws import NAMES
from calibcli.training.recipe import Recipe
from calibcli.training.setup import Training

SCHEMA = 1
FILE = "study.toml"  # in the folder of a study
SIZES = ("small", "medium", "paper")
DIGITS = "digits"  # the data of the package
OPTIONS = {f.name for f in dataclasses.fields(Training)}
CURVATURE = ("lambda_max", "trace")
KINDS = {
    "less": {"metric", "a", "b"},
    "preserved": {"metric", "a", "b", "margin"},
    "decreasing": {"metric", "along"},
    "interior_minimum": {"metric", "along"},
    "slope": {"metric", "against", "sign", "along"},
    "close_to": {"metric", "a", "low", "high"},
}
"""What a claim may be, and the keys of each."""


@dataclass(frozen=True)
class Arm:
    """A loss with options of its own; `at` holds its place on each axis that it was written with."""

    name: str
    loss: str
    options: Mapping[str, Any] = field(default_factory=dict)
    at: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Claim:
    """A sentence and how it is judged: `kind` is one of `KINDS`, `keys` its settings.

    With the premise `overfit` it is judged only where cross-entropy overfits.
    """

    id: str
    text: str
    kind: str
    keys: Mapping[str, Any]
    premise: str = ""


@dataclass(frozen=True)
class Study:
    """Everything that decides what a study computes.

    Attributes:
        train, validation, test: rows, as `calib fit` takes them.
        arch: networks.  seeds: how many.  options: of `calib fit`, for every arm.
        metrics: of test rows, before and `after` a temperature fitted on the validation rows.
        curvature: quantities, of validation rows.  losses: of which, `ce` and `train` (each arm's own).
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
    claims: tuple[Claim, ...]
    size: str = ""

    @property
    def measured(self) -> list[str]:
        """Names of everything that a claim may be about."""
        found = [*self.metrics, *(f"{name} after" for name in self.metrics), "temperature", "train_nll"]
        return found + [f"{what} of {loss}" for what in self.curvature for loss in self.losses]


def built_in() -> list[str]:
    """Names of the studies that come along."""
    folder = resources.files("calibcli.study").joinpath("builtin")
    return sorted(file.name.removesuffix(".toml") for file in folder.iterdir() if file.name.endswith(".toml"))


def text_of(name: str) -> tuple[str, str]:
    """The TOML of a built-in study or of a file, and where it is from.

    Raises:
        UsageError: neither.
    """
    if name in built_in():
        return resources.files("calibcli.study").joinpath("builtin", f"{name}.toml").read_text("utf-8"), name
    path = Path(name)
    if path.suffix != ".toml" or not path.is_file():
        raise UsageError(f"no study is called '{name}'", did_you_mean(name, built_in()) + ", or pass a .toml file")
    try:
        return path.read_text("utf-8"), str(path)
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}", "pass a TOML file") from None


def keep(study: Study, save: Path) -> None:
    """Write the recipe into the folder of the study, so that the folder alone is enough to go on.

    Raises:
        UsageError: the folder holds another study.
    """
    path = save / FILE
    save.mkdir(parents=True, exist_ok=True)
    if path.is_file():
        held = parse(path.read_text("utf-8"), str(path))
        differing = [
            f.name
            for f in dataclasses.fields(Study)
            if f.name not in ("seeds", "claims", "size") and getattr(held, f.name) != getattr(study, f.name)
        ]
        if differing:
            raise UsageError(f"{path} is of another study: {', '.join(differing)} differ", "pass another --save folder")
    with atomic(path) as temporary:
        temporary.write_text(written(study), "utf-8")


def written(study: Study) -> str:
    """A study as TOML, every arm by itself."""
    tables: list[tuple[str, Mapping[str, Any]]] = [
        ("[study]", {"name": study.name, "question": study.question, "paper": study.paper}),
        ("[data]", {"train": study.train, "validation": study.validation, "test": study.test}),
        ("[axes]", {"arch": study.arch, "seeds": study.seeds}),
        ("[train]", study.options),
        ("[measure]", {"metrics": study.metrics, "curvature": study.curvature, "losses": study.losses}),
    ]
    tables += [("[[arm]]", {"name": a.name, "loss": a.loss, "at": a.at, **a.options}) for a in study.arms]
    tables += [("[[claim]]", {"id": c.id, "text": c.text, "premise": c.premise, c.kind: c.keys}) for c in study.claims]
    return f"schema = {SCHEMA}\n" + "".join(
        f"\n{head}\n" + "".join(f"{key} = {_toml(value)}\n" for key, value in table.items()) for head, table in tables
    )


def _toml(value: Any) -> str:
    """A value as TOML; JSON's texts, numbers and lists are TOML's."""
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{key} = {_toml(v)}" for key, v in value.items()) + " }"
    return json.dumps(list(value) if isinstance(value, tuple) else value)


def parse(text: str, source: str, size: str = "", data: str = "", seeds: int = 0) -> Study:
    """A study of its TOML.

    Args:
        size: which of the tables `[size.NAME]` replaces keys.  data: rows in place of those written, `PATH`, whose
            parts are `PATH#train` and so on.  seeds: in place of those written.

    Raises:
        UsageError: not TOML, a key that is not known, an arm or a claim that cannot be.
    """
    try:
        raw = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{source} is not TOML ({error})", "correct that line") from None
    where = _Where(source, text)
    sections = ("schema", "study", "data", "axes", "train", "arm", "measure", "claim", "size")
    where.known(raw, sections, "the study")
    if raw.get("schema", SCHEMA) != SCHEMA:
        raise UsageError(
            f"{source} has schema {raw['schema']}, this version reads {SCHEMA}", f"write schema = {SCHEMA}"
        )
    sizes = raw.pop("size", {})
    where.known(sizes, SIZES, "[size]")
    if size and size not in sizes:
        raise UsageError(f"{source} has no size '{size}'", f"pass one of {', '.join(sizes) or 'none'}")
    raw = _merged(raw, sizes.get(size, {}))
    about = where.table(raw, "study", ("name", "question", "paper"))
    rows = where.table(raw, "data", ("train", "validation", "test"))
    axes = where.table(raw, "axes", ("arch", "seeds"))
    measure = where.table(raw, "measure", ("metrics", "curvature", "losses"))
    options = _options(where.table(raw, "train", OPTIONS), where, "[train]")
    if data:
        rows = {part: f"{data}#{part}" for part in ("train", "validation", "test")}
    missing = [part for part in ("train", "validation", "test") if not rows.get(part)]
    if missing:
        raise UsageError(f"{source} names no {' and no '.join(missing)} rows", "pass --data PATH, or --size small")
    study = Study(
        name=str(about.get("name", Path(source).stem)),
        question=str(about.get("question", "")),
        paper=str(about.get("paper", "")),
        **{part: str(rows[part]) for part in ("train", "validation", "test")},
        arch=tuple(axes.get("arch", ())),
        seeds=seeds or int(axes.get("seeds", 5)),
        options=options,
        arms=tuple(arm for table in raw.get("arm", ()) for arm in _arms(table, where)),
        metrics=tuple(measure.get("metrics", ("error", "nll", "ece"))),
        curvature=tuple(measure.get("curvature", ())),
        losses=tuple(measure.get("losses", ("ce",))),
        claims=tuple(_claim(table, where) for table in raw.get("claim", ())),
        size=size,
    )
    _check(study, where)
    return study


@dataclass(frozen=True)
class _Where:
    """The file and its text, for messages that name the line."""

    source: str
    text: str

    def known(self, table: Any, keys: Sequence[str] | set[str], place: str) -> Mapping[str, Any]:
        if not isinstance(table, Mapping):
            raise UsageError(f"{self.source}: {place} is not a table", "write it as KEY = VALUE lines")
        for key in table:
            if key not in keys and key.replace("-", "_") not in keys:
                raise UsageError(f"{self.at(key)}: {place} has no key '{key}'", did_you_mean(key, sorted(keys)))
        return {key.replace("-", "_"): value for key, value in table.items()}

    def table(self, raw: Mapping[str, Any], name: str, keys: Sequence[str] | set[str]) -> dict[str, Any]:
        return dict(self.known(raw.get(name, {}), keys, f"[{name}]"))

    def at(self, word: str) -> str:
        """`FILE:LINE` of the first line that begins with a word."""
        lines = enumerate(self.text.splitlines(), 1)
        found = next((n for n, line in lines if re.match(rf"\s*\[*\"?{re.escape(word)}\b", line)), None)
        return f"{self.source}:{found}" if found else self.source


def _merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`over` on top of `base`, table by table; a list replaces a list."""
    both = {k: _merged(base[k], v) if isinstance(v, Mapping) and k in base else v for k, v in over.items()}
    return {**base, **both}


def _options(table: Mapping[str, Any], where: _Where, place: str) -> dict[str, Any]:
    found: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in table.items()}
    try:
        Recipe(**found)
    except (UsageError, TypeError) as error:
        problem = error.problem if isinstance(error, UsageError) else str(error)
        raise UsageError(f"{where.source}: {place}: {problem}", getattr(error, "fix", "")) from None
    return found


def _arms(table: Any, where: _Where) -> list[Arm]:
    """One arm, or one for each value of the lists that its `{name}`s stand for."""
    if not isinstance(table, Mapping) or not {"name", "loss"} <= table.keys():
        raise UsageError(f"{where.at('arm')}: an arm needs a name and a loss", 'write name = "CE" and loss = "ce"')
    holes = set(re.findall(r"{(\w+)}", f"{table['name']} {table['loss']}"))
    for hole in sorted(holes):
        if not isinstance(table.get(hole), list):
            raise UsageError(
                f"{where.at('name')}: arm '{table['name']}' has no values for {{{hole}}}", f"write {hole} = [1, 2, 3]"
            )
    where.known({k: v for k, v in table.items() if k not in holes}, {"name", "loss", "at", *OPTIONS}, "[[arm]]")
    options = {k.replace("-", "_"): v for k, v in table.items() if k not in {"name", "loss", "at", *holes}}
    arms = []
    for values in itertools.product(*(table[hole] for hole in sorted(holes))):
        at = dict(zip(sorted(holes), values, strict=True))
        filled = {key: str(table[key]).format(**{k: f"{v:g}" for k, v in at.items()}) for key in ("name", "loss")}
        at |= table.get("at", {})
        arms.append(Arm(**filled, options=_options({**options}, where, f"arm {filled['name']}"), at=at))
    return arms


def _claim(table: Any, where: _Where) -> Claim:
    kinds = [kind for kind in KINDS if isinstance(table, Mapping) and kind in table]
    if not isinstance(table, Mapping) or len(kinds) != 1 or not {"id", "text"} <= table.keys():
        raise UsageError(
            f"{where.at('claim')}: a claim needs id, text and one of {', '.join(KINDS)}",
            'write less = { metric = "ece", a = "FL-3", b = "CE" }',
        )
    where.known(table, {"id", "text", "premise", *kinds}, f"claim {table['id']}")
    if table.get("premise", "") not in ("", "overfit"):
        raise UsageError(f"{where.at('premise')}: no premise '{table['premise']}'", 'write premise = "overfit"')
    keys = where.known(table[kinds[0]], KINDS[kinds[0]], f"claim {table['id']}")
    lacking = KINDS[kinds[0]] - keys.keys() - {"margin", "sign"}
    if lacking:
        raise UsageError(f"{where.source}: claim {table['id']} lacks {', '.join(sorted(lacking))}", "write it")
    return Claim(str(table["id"]), str(table["text"]), kinds[0], dict(keys), str(table.get("premise", "")))


def _check(study: Study, where: _Where) -> None:
    """What must hold between the tables; told before anything is trained."""
    names = [arm.name for arm in study.arms]
    for twice in sorted({name for name in names if names.count(name) > 1}):
        raise UsageError(f"{where.source}: two arms are called '{twice}'", "give each a name of its own")
    for what, found, known in (
        ("metric", study.metrics, NAMES),
        ("quantity", study.curvature, CURVATURE),
        ("loss of a curvature", study.losses, ("ce", "train")),
    ):
        for name in found:
            if name not in known:
                raise UsageError(f"{where.source}: a study has no {what} '{name}'", did_you_mean(name, [*known]))
    if not (names and study.arch and study.seeds > 0):
        lacking = "arms" if not names else "networks" if not study.arch else "seeds"
        raise UsageError(f"{where.source} has no {lacking}", "write [[arm]], [axes] arch = [...] and seeds = 5")
    for arm in study.arms:
        _options({**study.options, **arm.options}, where, f"arm {arm.name}")
        Recipe(loss=arm.loss)
    for claim in study.claims:
        for key in {"metric", "against"} & claim.keys.keys():
            asked = str(claim.keys[key])
            if asked not in study.measured:
                fix = did_you_mean(asked, study.measured)
                raise UsageError(f"{where.source}: claim {claim.id}: '{asked}' is not measured", fix)
        for key in ("a", "b"):
            if key in claim.keys and claim.keys[key] not in names:
                fix = did_you_mean(str(claim.keys[key]), names)
                raise UsageError(f"{where.source}: claim {claim.id}: no arm '{claim.keys[key]}'", fix)
        along = claim.keys.get("along")
        if along is not None and sum(along in arm.at for arm in study.arms) < 2:
            raise UsageError(
                f"{where.source}: claim {claim.id}: no arms lie along '{along}'",
                f'write an arm as name = "A-{{{along}}}" with {along} = [1, 2, 3]',
            )
