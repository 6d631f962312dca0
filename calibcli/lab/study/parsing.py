"""Read and write the recipe of a study: TOML with the names of `calib fit`'s options; errors name the line."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from calibcli.calibrators.calibrator import SCALERS as METHODS
from calibcli.core.errors import UsageError, did_you_mean, printable
from calibcli.core.files import atomic
from calibcli.core.validation import toml
from calibcli.lab.study import _readings as readings
from calibcli.lab.study.analytic import COMPUTED
from calibcli.lab.study.claims import KINDS
from calibcli.lab.study.experiment import (
    CURVATURE,
    LOGGED,
    Arm,
    PrintedNumbers,
    Study,
    StudyClaim,
    differences,
    refuse_weights,
    table_of,
    wanted,
)
from calibcli.lab.training.options import Training
from calibcli.lab.training.recipes import CHANGES, Recipe, own_loss
from calibcli.networks import losses
from calibcli.networks.checkpoint import factory
from calibcli.networks.user_code import NAMES_CODE

SCHEMA = 1
MOST_ARMS = 1_000  # arms that one table may stand for
PARTS = ("train", "validation", "test")
BESIDE = ("split", "embeddings", "masked")  # of [data], apart from the rows
DEFAULTS = {"metrics": ("error", "nll", "ece"), "losses": ("ce",)}
FILE = "study.toml"  # in the folder of a study
OPTIONS = {f.name for f in dataclasses.fields(Training)}
MACHINE = {"device": str, "threads": int}  # of [train] too, but no part of the identity of a run
ABOUT = ("name", "question", "paper", "bibtex", "cost", "differs", "computes", "size")
MEASURE = ("metrics", "scalers", "curvature", "losses", "log", "moments")
FREE = (
    *("seeds", "claims", "size", "device", "threads", "question", "paper", "bibtex", "cost", "differs"),
    *("metrics", "scalers", "log", "moments", "masked", "printed"),  # of the files of a run
)
"""Fields that may change in the folder of a study, since its runs stay the same."""


def keep(study: Study, save: Path) -> None:
    """Write the recipe into the folder of the study, so that the folder alone is enough to go on.

    Raises:
        UsageError: the folder holds another study, or files that belong to no study.
    """
    path = save / FILE
    save.mkdir(parents=True, exist_ok=True)
    # A process that began at the same time may have written only the temporary file of the recipe.
    others = sorted(entry.name for entry in save.iterdir() if not entry.name.startswith(f".{FILE}."))
    if others and not path.is_file():
        problem = f"{printable(str(save))} holds {printable(others[0])}, and no {FILE}: it is not the folder of a study"
        raise UsageError(problem, "pass another --save folder, a new or an empty one")
    if path.is_file():
        kept, _ = _read(path.read_text("utf-8"), str(path))  # compared, so that none of its code has to run
        there, here = _identity(kept), _identity(study)
        names = [name for name in {**there, **here} if name in there or not name.startswith("arm ")]  # may be added
        if differing := differences(there, here, names, lambda one: "none" if one is None else _toml(one)):
            raise UsageError(f"{path} belongs to another study: {differing}", "pass another --save folder")
    with atomic(path) as temporary:
        temporary.write_text(written(study), "utf-8")


def _identity(study: Study) -> dict[str, Any]:
    """Return all that the runs of a study hang on by name: options and arms one by one."""
    fields = [f.name for f in dataclasses.fields(Study) if f.name not in (*FREE, "options", "arms")]
    arms = {f"arm {arm.name}": {k: v for k, v in _arm(arm).items() if v != {} and k != "name"} for arm in study.arms}
    return {**{name: getattr(study, name) for name in fields}, **study.options, **arms}


def written(study: Study) -> str:
    """Write a study as TOML, every arm by itself."""
    tables: list[tuple[str, Mapping[str, Any]]] = [
        ("[study]", {name: getattr(study, name) for name in ABOUT}),
        ("[data]", {name: getattr(study, name) for name in (*PARTS, *BESIDE)}),
        ("[axes]", {"arch": study.arch, "seeds": study.seeds}),
        ("[train]", {**study.options, **{name: getattr(study, name) for name in MACHINE}}),
        ("[measure]", {name: getattr(study, name) for name in MEASURE}),
    ]
    tables += [("[[arm]]", _arm(a)) for a in study.arms]
    tables += [("[[printed]]", {k: v for k, v in vars(one).items() if v}) for one in study.printed]
    tables += [("[[claim]]", {"id": c.id, "text": c.text, "premise": c.premise, c.kind: c.keys}) for c in study.claims]
    return f"schema = {SCHEMA}\n" + "".join(
        f"\n{head}\n" + "".join(f"{key} = {_toml(value)}\n" for key, value in table.items()) for head, table in tables
    )


def _arm(arm: Arm) -> dict[str, Any]:
    if arm.source:  # whose loss and options it has
        return {"name": arm.name, "from": arm.source, "change": arm.change, "at": arm.at}
    return {"name": arm.name, "loss": arm.loss, "at": arm.at, **arm.options}


def _toml(value: Any) -> str:
    """Write a value as TOML; JSON's texts, numbers and lists are TOML's."""
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{json.dumps(key)} = {_toml(v)}" for key, v in value.items()) + " }"
    return json.dumps(list(value) if isinstance(value, tuple) else value, default=str)  # dates and times as texts


def parse(
    text: str,
    source: str,
    size: str = "",
    data: str = "",
    seeds: int = 0,
    trust: bool = False,
    arch: Sequence[str] = (),
) -> Study:
    """Read and check a study from TOML, and load the code that it names.

    Args:
        size: which of the tables `[size.NAME]` replaces keys; none does where there is no `small`.  data: rows in place
            of those written, `PATH`, whose parts are `PATH#train` and so on.  seeds, arch: in place of those written.
            trust: whether code that it names may run.

    Raises:
        UsageError: not TOML, an unknown key, an arm or a claim that is not possible, or code that may not run.
    """
    study, where = _read(text, source, size, data, seeds, arch)
    code = named_code(study)
    if code and not trust:
        raise UsageError(f"{where.source} names code to run: {', '.join(code)}", "read that code, and pass --trust")
    for arm in study.arms:
        if arm.loss in code:
            own_loss(arm.loss)
    _check(study, where)
    return study


def _read(
    text: str, source: str, size: str = "", data: str = "", seeds: int = 0, arch: Sequence[str] = ()
) -> tuple[Study, _Where]:
    """Read a study as `parse` does, without looking up or running anything that it names."""
    raw = toml(text, source)
    where = _Where(source, text)
    sections = ("schema", "study", "data", "axes", "train", "arm", "printed", "measure", "claim", "size")
    where.known(raw, sections, "the study", values=False)
    if raw.get("schema", SCHEMA) != SCHEMA:
        raise UsageError(
            f"{source} has schema {raw['schema']}, this version reads {SCHEMA}", f"write schema = {SCHEMA}"
        )
    # each [size.NAME] has keys that replace those of the file; "small" may be asked of any study, and does nothing
    # where there is none
    sizes = raw.pop("size", {})
    for name, table in where.known(
        sizes, set(sizes) if isinstance(sizes, Mapping) else (), "[size]", values=False
    ).items():
        where.known(table, sections, f"[size.{name}]", values=False)
    if size not in ("", "small", *sizes):
        fix = f"pass one of {', '.join(sizes)}" if sizes else "leave --size out"
        raise UsageError(f"{source} has no size '{size}'", fix)
    raw = _merged(raw, sizes.get(size, {}))
    study_table = where.table(raw, "study", (*ABOUT, "printed"))
    rows = where.table(raw, "data", (*PARTS, *BESIDE))
    axes = where.table(raw, "axes", ("arch", "seeds"))
    measure = where.table(raw, "measure", MEASURE)
    data_options = {name: str(rows.pop(name, "")) for name in BESIDE}
    split, train = data_options["split"], where.table(raw, "train", {*OPTIONS, *MACHINE})
    machine = {name: train.pop(name) for name in MACHINE if name in train}
    for name, value in machine.items():
        if type(value) is not MACHINE[name]:
            raise UsageError(f"{where.at(name)}: {name} = {value!r}", 'write device = "cuda" or threads = 1')
    options = _options(train, where, "[train]")
    asked = [part for part in PARTS if not (split and part == "validation")]
    if data:  # a recipe may name its parts as "#SPLIT"; `data` is put before it, or before the usual name
        of_data = {part: name for part, name in rows.items() if str(name).startswith("#")}
        rows = {part: data + of_data.get(part, f"#{part}") for part in asked}
    missing = [part for part in asked if not rows.get(part) or str(rows[part]).startswith("#")]
    if missing and not study_table.get("computes"):
        raise UsageError(f"{source} names no {' and no '.join(missing)} rows", "pass --data PATH, or fill in [data]")
    fields: dict[str, Any] = {part: str(rows.get(part, "")) for part in PARTS}
    fields |= {name: tuple(measure.get(name, DEFAULTS.get(name, ()))) for name in MEASURE}
    fields |= data_options | {
        name: str(study_table.get(name, "")) for name in ("question", "paper", "computes", "bibtex", "cost")
    }
    study = Study(
        name=str(study_table.get("name", Path(source).stem)),
        arch=tuple(arch or axes.get("arch", ())),
        seeds=seeds or int(axes.get("seeds", 5)),
        options=options,
        arms=tuple(_sourced([arm for table in where.tables(raw, "arm") for arm in _arms(table, where)], where)),
        claims=tuple(_claim(table, where) for table in where.tables(raw, "claim")),
        size=size if size in sizes else str(study_table.get("size", "")),
        **machine,
        **fields,
        differs=tuple(study_table.get("differs", ())),
    )
    # a paper's own numbers: tables of the file, and those of the CSV file that [study] printed = NAME names
    named = [_printed(table, study, where) for table in where.tables(raw, "printed")]
    of_table = table_of(study_table["printed"]) if study_table.get("printed") else []
    return dataclasses.replace(study, printed=tuple(_here([*named, *of_table], study))), where


def named_code(study: Study) -> list[str]:
    """Return every `module:factory` among its networks, rows and losses."""
    heads = [name.partition(",")[0] for name in (*study.arch, *(getattr(study, part) for part in PARTS))]
    code = [head.partition("#")[0] for head in heads if NAMES_CODE.fullmatch(head.partition("#")[0])]
    return code + [arm.loss for arm in study.arms if NAMES_CODE.fullmatch(arm.loss.partition("+")[0].strip())]


@dataclass(frozen=True)
class _Where:
    """The file and its text, for messages that name the line."""

    source: str
    text: str

    def known(
        self, table: Any, keys: Sequence[str] | set[str], place: str, *, values: bool = True
    ) -> Mapping[str, Any]:
        if not isinstance(table, Mapping):
            raise UsageError(f"{self.source}: {place} is not a table", "write it as KEY = VALUE lines")
        for key, value in table.items():
            if key not in keys and key.replace("-", "_") not in keys:
                raise UsageError(f"{self.at(key)}: {place} has no key '{key}'", did_you_mean(key, sorted(keys)))
            if values:
                self.value(key, value, place)
        return {key.replace("-", "_"): value for key, value in table.items()}

    def value(self, key: str, value: Any, place: str) -> None:
        """Refuse a value that is not what its key may be."""
        if fix := wanted(key.replace("-", "_"), value):
            raise UsageError(f"{self.at(key, value)}: {key} = {printable(_toml(value), 40)} in {place}", fix)

    def table(self, raw: Mapping[str, Any], name: str, keys: Sequence[str] | set[str]) -> dict[str, Any]:
        return dict(self.known(raw.get(name, {}), keys, f"[{name}]"))

    def tables(self, raw: Mapping[str, Any], name: str) -> list[Any]:
        """Return the tables `[[name]]`; what is written in another way is refused."""
        value = raw.get(name, [])
        if not isinstance(value, list):
            raise UsageError(f"{self.at(name)}: {name} = {printable(_toml(value), 40)}", f"write [[{name}]] tables")
        return value

    def among(self, name: str, allowed: Iterable[str], problem: str, place: str = "") -> None:
        """Refuse a name that is not known."""
        if name not in (names := [*allowed]):
            raise UsageError(f"{place or self.source}: {problem}", did_you_mean(name, names))

    def at(self, word: str, value: Any = None) -> str:
        """Return `FILE:LINE` of the first line that begins with a word, or of the one with this value."""
        lines = enumerate(self.text.splitlines(), 1)
        matches = [(n, line) for n, line in lines if re.match(rf"\s*\[*\"?{re.escape(word)}\b", line)]
        exact = [n for n, line in matches if value is not None and _toml(value) in line]
        return f"{self.source}:{(exact or [matches[0][0]])[0]}" if matches else self.source


def _merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Merge `over` into `base`, table by table; a list replaces a list."""
    merged = {k: _merged(base[k], v) if isinstance(v, Mapping) and k in base else v for k, v in over.items()}
    return {**base, **merged}


def _options(table: Mapping[str, Any], where: _Where, place: str) -> dict[str, Any]:
    for key, value in table.items():
        where.value(key, value, place)
    options: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in table.items()}
    refused = _refused(frozenset(options.items()))
    if refused is not None:
        raise UsageError(f"{where.source}: {place}: {refused[0]}", refused[1])
    return options


@functools.cache
def _refused(options: frozenset[tuple[str, Any]]) -> tuple[str, str] | None:
    """Return the problem of options and its fix, or None; cached, as the arms of a study share most options."""
    try:
        Recipe(**dict(options))
    except UsageError as error:
        return error.problem, error.fix
    return None


def _arms(table: Any, where: _Where) -> list[Arm]:
    """Read one arm, or one for each value of the lists that its `{name}`s stand for.

    A hole `{name}` in a text of the arm needs a list of that name beside it. The values that an arm was filled with are
    its place on axes of these names (`at`), if they are numbers; and its options, if options have these names.
    """
    # studies that were begun when arms held their own `printed` numbers, now in [[printed]], can be continued
    if Path(where.source).name == FILE and isinstance(table, Mapping):
        table = {key: value for key, value in table.items() if key != "printed"}
    needed = {"name", "from", "change"} if isinstance(table, Mapping) and "from" in table else {"name", "loss"}
    if not isinstance(table, Mapping) or not needed <= table.keys():
        problem = f"{where.at('arm')}: an arm needs a name and a loss, or from and change"
        raise UsageError(problem, 'write name = "CE" and loss = "ce"')
    texts = {key: value for key, value in table.items() if isinstance(value, str)}
    holes = {hole for text in texts.values() for hole in re.findall(r"{(\w+)}", text)}
    for hole in sorted(holes):
        values = table.get(hole)
        if not isinstance(values, list) or not all(isinstance(v, int | float | str) for v in values) or not values:
            raise UsageError(
                f"{where.at('name', table['name'])}: arm '{table['name']}' has no values for {{{hole}}}",
                f"write {hole} = [1, 2, 3]",
            )
    count = math.prod(len(table[hole]) for hole in holes)
    if count > MOST_ARMS:
        problem = f"{where.at('name', table['name'])}: '{table['name']}' stands for {count} arms"
        raise UsageError(problem, f"write fewer values: at most {MOST_ARMS} arms")
    arms = []
    for values in itertools.product(*(table[hole] for hole in sorted(holes))):
        value_of = dict(zip(sorted(holes), values, strict=True))
        words = {k: f"{v:.15g}" if isinstance(v, int | float) else str(v) for k, v in value_of.items()}
        filled = {key: re.sub(r"{(\w+)}", lambda m: words[m[1]], text) for key, text in texts.items()}  # noqa: B023
        written = {k: v for k, v in {**table, **filled}.items() if k not in holes}
        entries = where.known(written, {"at", *needed, *(() if "from" in needed else OPTIONS)}, "[[arm]]")
        options = {k: v for k, v in entries.items() if k not in ("at", *needed)}
        options |= {k: v for k, v in value_of.items() if k in OPTIONS}
        arm_options = _options(options, where, f"arm {filled['name']}")
        positions = {k: v for k, v in value_of.items() if isinstance(v, int | float)} | table.get("at", {})
        source, change = filled.get("from", ""), filled.get("change", "")
        arms.append(Arm(filled["name"], filled.get("loss", ""), arm_options, positions, source, change))
    return arms


def _sourced(arms: Sequence[Arm], where: _Where) -> Iterator[Arm]:
    """Yield the arms; one that changes another has its loss and its options.

    Raises:
        UsageError: it changes no arm that is trained.
    """
    trained = {arm.name: arm for arm in arms if not arm.source}
    for arm in arms:
        if arm.source:
            problem = f"arm '{arm.name}' changes '{arm.source}', which is no arm that is trained"
            where.among(arm.source, trained, problem, where.at("from", arm.source))
            arm = dataclasses.replace(arm, loss=trained[arm.source].loss, options=trained[arm.source].options)
        yield arm


def _printed(table: Any, study: Study, where: _Where) -> PrintedNumbers:
    """Read the paper's own numbers of an arm on a network and a data set."""
    needed = {"arm", "network", "data", "numbers"}
    read = where.known(table, needed | {"rows"}, "[[printed]]")
    if lacking := needed - read.keys():
        raise UsageError(f"{where.at('printed')}: [[printed]] lacks {', '.join(sorted(lacking))}", "write it")
    row = PrintedNumbers(**read)
    where.among(row.arm, [arm.name for arm in study.arms], f"no arm '{row.arm}'", where.at("arm", row.arm))
    for name in row.numbers:
        where.among(name, study.measured, f"'{name}' is printed, and is not measured", where.at("numbers"))
    return row


def _here(numbers: Sequence[PrintedNumbers], study: Study) -> Iterator[PrintedNumbers]:
    """Yield the numbers whose arm, network and metrics are in the study, under its own name of the network."""
    # the specs of one network in whatever spelling have one canonical form, which `check` returns
    networks = {factory.check(arch): arch for arch in study.arch} if numbers else {}
    names, measured = {arm.name for arm in study.arms}, set(study.measured)
    for row in numbers:
        kept = {name: value for name, value in row.numbers.items() if name in measured}
        with contextlib.suppress(UsageError):  # a paper's network that calib does not build
            if row.arm in names and (network := networks.get(factory.check(row.network))) and kept:
                yield dataclasses.replace(row, network=network, numbers=kept)


def _claim(table: Any, where: _Where) -> StudyClaim:
    kinds = [kind for kind in KINDS.entries if isinstance(table, Mapping) and kind in table]
    if not isinstance(table, Mapping) or len(kinds) != 1 or not {"id", "text"} <= table.keys():
        raise UsageError(
            f"{where.at('claim')}: a claim needs id, text and one of {', '.join(KINDS.entries)}",
            'write less = { metric = "ece", a = "FL-3", b = "CE" }',
        )
    where.known(table, {"id", "text", "premise", *kinds}, f"claim {table['id']}")
    if table.get("premise", "") not in ("", "overfit"):
        raise UsageError(f"{where.at('premise')}: no premise '{table['premise']}'", 'write premise = "overfit"')
    options = KINDS.entries[kinds[0]].options
    keys = where.known(table[kinds[0]], {*options}, f"claim {table['id']}")
    if lacking := [key for key, option in options.items() if option.default is option.empty and key not in keys]:
        raise UsageError(f"{where.source}: claim {table['id']} lacks {', '.join(sorted(lacking))}", "write it")
    return StudyClaim(str(table["id"]), str(table["text"]), kinds[0], dict(keys), str(table.get("premise", "")))


def _measurable() -> dict[str, tuple[str, ...]]:
    """Return the names that each list of [measure] may have; scalers are specs, and moments numbers."""
    return {"metrics": tuple(readings.names()), "curvature": CURVATURE, "losses": ("ce", "train"), "log": LOGGED}


def _measuring(asked: str, study: Study) -> str:
    """Return the lines of a recipe by which a number would be measured, the fewest; "" where none would."""
    every: dict[str, tuple[Any, ...]] = {
        **_measurable(),
        "scalers": tuple(entry.name for entry in METHODS),
        "moments": tuple(int(moment) for moment in re.findall(r" at (100|[1-9]\d?)%$", asked)),
    }
    extra = {key: [value for value in values if value not in getattr(study, key)] for key, values in every.items()}

    def measures(extra: Mapping[str, Sequence[Any]]) -> bool:
        wider: Any = {key: (*getattr(study, key), *values) for key, values in extra.items()}
        return asked in dataclasses.replace(study, **wider).measured

    if not measures(extra):
        return ""
    for key, values in extra.items():
        for value in values:
            fewer = {**extra, key: [one for one in extra[key] if one != value]}
            extra = fewer if measures(fewer) else extra
    lines = [f"{key} = {_toml([*getattr(study, key), *values])}" for key, values in extra.items() if values]
    return f"write {' and '.join(lines)} in [measure]"


def _check(study: Study, where: _Where) -> None:
    """Check what must hold between the tables, before anything is trained."""
    if study.computes:
        if study.computes not in COMPUTED:
            problem = f"{where.source}: nothing is computed by the name '{study.computes}'"
            raise UsageError(problem, did_you_mean(study.computes, COMPUTED))
        return
    names = [arm.name for arm in study.arms]
    for kind, called in (("arms", names), ("claims", [claim.id for claim in study.claims])):
        for twice in sorted({name for name in called if called.count(name) > 1}):
            raise UsageError(f"{where.source}: two {kind} are called '{twice}'", "give each a name of its own")
    kinds = {"metrics": "metric", "curvature": "quantity", "losses": "loss of a curvature", "log": "number of the log"}
    for key, allowed in _measurable().items():
        for name in getattr(study, key):
            where.among(name, allowed, f"a study has no {kinds[key]} '{name}'")
    if not (names and study.arch and study.seeds > 0):
        lacking = "arms" if not names else "networks" if not study.arch else "seeds"
        raise UsageError(f"{where.source} has no {lacking}", "write [[arm]], [axes] arch = [...] and seeds = 5")
    for arm in study.arms:
        if arm.source:
            CHANGES.choose(arm.change)
        _options({**study.options, **arm.options}, where, f"arm {arm.name}")
        losses.objective(arm.loss)
    for arch in study.arch:
        refuse_weights(arch)
        factory.check(arch)
    for scaler in study.scalers:
        METHODS.choose(scaler)
    several = sum(not claim.entry.traits.exact for claim in study.claims) * len(study.arch) > 1
    for claim in study.claims:
        along_log = bool(claim.entry.traits.moments)  # whose numbers have the moments in their names
        others = [claim.keys[key] for key in ("against", "on") if key in claim.keys and not along_log]
        for asked in (*claim.numbers, *others, *claim.keys.get("beside", ())):
            if asked not in study.measured:
                fix = _measuring(asked, study) or did_you_mean(asked, study.measured)
                raise UsageError(f"{where.source}: claim {claim.id}: '{asked}' is not measured", fix)
            for arm in study.asked(claim):
                if arm.source and asked in study.logged:
                    problem = f"{where.source}: claim {claim.id}: arm {arm.name} is not trained, and has no log"
                    raise UsageError(problem, f"ask it of {arm.source}, or of a metric")
        if "low" in claim.keys and claim.keys["low"] >= claim.keys["high"]:
            raise UsageError(f"{where.source}: claim {claim.id}: low is not below high", "correct it")
        for key in ("a", "b", "base"):
            if key in claim.keys:
                where.among(str(claim.keys[key]), names, f"claim {claim.id}: no arm '{claim.keys[key]}'")
        if claim.entry.traits.every_arm:
            _least_arms(study.asked(claim), claim, several, where)
        elif claim.along:
            # its axis is a measured number, if its kind allows that, or one that arms are written with (`at`)
            measured_axis = claim.entry.traits.measured_axis and study.is_measured(claim.along)
            _least_arms(study.asked(claim) if measured_axis else study.ordered(claim.along), claim, several, where)
        if "causes" in claim.keys:
            _causes(study, claim, where)


def _least_arms(arms: Sequence[Arm], claim: StudyClaim, several: bool, where: _Where) -> None:
    """Refuse a claim about fewer arms than its kind needs.

    Where arms are a random sample (`drawn` says of what), the claim is about all that might have been drawn, and its
    smallest p-value depends on their number alone: several claims share α, so that each needs an arm more.
    """
    least = claim.entry.traits.fewest
    if claim.keys.get("drawn"):
        least = claim.entry.traits.fewest_drawn + several
    if len(arms) < least:
        many = f"fewer than {least} arms" if arms else "no arms"
        they, axis = (f"lie along '{claim.along}'", claim.along) if claim.along else ("are trained", "lr")
        fix = f'write an arm as name = "A-{{{axis}}}" with {axis} = [1, 2, 3]'
        raise UsageError(f"{where.source}: claim {claim.id}: {many} {they}", fix)


def _causes(study: Study, claim: StudyClaim, where: _Where) -> None:
    """Refuse causes that are no axes of their own, each with the base arm and a dose, or whose arms are too few."""
    causes, base = [str(cause) for cause in claim.keys["causes"]], str(claim.keys.get("base", ""))
    problem = "" if len(set(causes)) == len(causes) > 1 else "it takes two causes or more, each once"
    seen: dict[str, str] = {}
    for cause in causes:
        names = [arm.name for arm in study.ordered(cause)]
        if (base and base not in names) or len(names) < 2:
            lacking = f"'{base}' and a dose of '{cause}'" if base else "two arms"
            problem = problem or f"{lacking} are to lie along '{cause}'"
        for name in names:
            if seen.setdefault(name, cause) != cause and name != base:
                problem = problem or f"'{name}' belongs to two causes, {seen[name]} and {cause}"
    if len(seen) < claim.entry.traits.fewest:
        problem = problem or f"{claim.kind} takes {claim.entry.traits.fewest} arms or more, and causes have {len(seen)}"
    if problem:
        at_base = f"at = {{ {' = 0, '.join(causes)} = 0 }} in the arm '{base}', and " if base else ""
        fix = f"write {at_base}one axis in each {'other ' * bool(base)}arm"
        raise UsageError(f"{where.source}: claim {claim.id}: {problem}", fix)
