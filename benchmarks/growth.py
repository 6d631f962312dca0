"""How the cost of every command grows with whatever a user can make large, against the limit of each row.

    python benchmarks/growth.py [--only PATTERN ...] [--short] [--rounds 3] [--save] [--before PATH]

A row is a command and one dimension of its input at three sizes. Each measurement is a forked child of a process that
has run the smallest size once, so that imports and caches count for neither time nor memory; what makes the input does
not count either. The seconds are CPU seconds, user and system, with one thread: the least of `--rounds` runs, and of
more where these are short. The exponent is that of the last two sizes: log(time / time) / log(size / size). A row that
breaks its limit is measured twice more before it counts. MB are the peak of the largest size above the warm process.

Exit 1 if an exponent or a peak is above its limit. `--only` takes regular expressions, and --list prints the names of
the rows. `--short` runs each row once at a tenth of its sizes and judges no exponent: it says that everything runs.
--save puts the rows into results/growth.txt and the table of docs/measured/growth.md, beside those that are there.
--before has the folder of another checkout of calib: instead of exponents it prints what the largest size of each row
costs now, as a ratio to what it costs there, by turns; the median over rounds [least, largest].
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import gc
import io
import itertools
import json
import math
import os
import re
import resource
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from _harness import (
    ROOT,
    TWO_ARMS,
    arguments,
    attempt,
    between,
    by_turns,
    child,
    chosen,
    environment,
    head,
    held,
    machine,
    put,
    ratio,
)

Work = list[str] | Callable[[], object]
LINEAR, SORTED = 1.1, 1.15
SLACK = 1e-9
ENOUGH, MANY, LONG = 0.5, 9, 8.0  # seconds of a size in all; the most runs of it; seconds of a run that is not repeated
SHORT = 10
HEAD = head("command: dimension", "beside", "size: CPU seconds", "exponent (limit)", "MB (limit)")


@dataclass(frozen=True)
class Row:
    """A command and a dimension.

    Attributes:
        make: writes the input of a size into a folder, and returns the arguments of the command, or a call.
        sizes: of the dimension.  unit: what they count.  beside: the size of the rest.
        limit: of the exponent.  mb: of the peak.  exits: codes that the command may end with.
    """

    make: Callable[[Path, int], Work]
    sizes: tuple[int, int, int]
    unit: str
    beside: str
    limit: float
    mb: float
    exits: tuple[int, ...]


ROWS: dict[str, Row] = {}


def grows(
    command: str, unit: str, *sizes: int, beside: str = "", limit: float = LINEAR, mb: float = 60, exits: Any = (0,)
) -> Callable[[Callable[[Path, int], Work]], Callable[[Path, int], Work]]:
    """Add a row, as a decorator."""

    def add(make: Callable[[Path, int], Work]) -> Callable[[Path, int], Work]:
        first, second, third = sizes
        ROWS[f"{command}: {unit}"] = Row(make, (first, second, third), unit, beside, limit, mb, exits)
        return make

    return add


# What the inputs are made of.


def drawn(n: int, k: int = 10, seed: int = 0) -> dict[str, Any]:
    """Scores (n, k) of an overconfident model in float32, and labels."""
    import numpy as np

    rng = np.random.default_rng(seed)
    z = rng.standard_normal((n, k), dtype=np.float32)
    y = rng.integers(0, k, n)
    z[np.arange(n), y] += 2
    return {"logits": 1.5 * z, "labels": y}


def saved(path: Path, n: int, k: int = 10, seed: int = 0, **more: Any) -> str:
    import numpy as np

    np.savez(path, **drawn(n, k, seed), **more)
    return str(path)


def listed(arrays: dict[str, Any], **columns: Any) -> tuple[list[str], list[list[str]]]:
    """Head and cells of a table of scores, labels and further columns."""
    z, y = arrays["logits"], arrays["labels"]
    names = [*(f"logit_{i}" for i in range(z.shape[1])), "label", *columns]
    cells = zip(*(map(str, column) for column in (*z.round(5).T, y, *columns.values())), strict=True)
    return names, [list(line) for line in cells]


def csv(path: Path, names: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    path.write_text("\n".join(",".join(line) for line in [names, *lines]) + "\n")
    return str(path)


def values(n: int, count: int, seed: int = 1) -> Any:
    """(n,) numbers below `count`, each of them present."""
    import numpy as np

    return np.random.default_rng(seed).permutation(np.arange(n) % count)


def around(mean: int, count: int) -> list[int]:
    """Different whole numbers whose mean does not depend on how many they are."""
    return [mean + (i + 1) // 2 * (-1) ** i for i in range(count)]


def quiet(arguments: Sequence[str]) -> int:
    """Run a command in this process; returns its exit code."""
    from calibcli.cli.app import main

    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as errors:
        code = int(main(list(arguments)))
    if code not in (0, 1, 3):
        raise RuntimeError(errors.getvalue().strip()[-200:])
    return code


def calibrator(folder: Path, spec: str, k: int = 10) -> str:
    """A calibrator that was fitted on few rows."""
    path = str(folder / "map.safetensors")
    quiet(["scale", saved(folder / "fit.npz", max(1000, 3 * k), k, 5), "--method", spec, "--save", path, "-q"])
    return path


# Measuring: rows.


@grows("metrics", "rows", 100_000, 400_000, 1_600_000, beside="10 classes", limit=SORTED, mb=450)
def _(folder: Path, n: int) -> Work:
    return ["metrics", saved(folder / "a.npz", n)]


@grows("metrics", "classes", 100, 1000, 10_000, beside="2,000 rows", mb=250)
def _(folder: Path, k: int) -> Work:
    return ["metrics", saved(folder / "a.npz", 2000, k)]


@grows("metrics", "classes of a model that errs", 10_000, 30_000, 100_000, beside="50 rows", mb=150)
def _(folder: Path, k: int) -> Work:
    import numpy as np

    rng = np.random.default_rng(0)
    path = folder / "a.npz"
    np.savez(path, logits=rng.standard_normal((50, k), dtype=np.float32), labels=rng.integers(0, k, 50))
    return ["metrics", str(path)]


@grows("metrics", "groups", 20_000, 80_000, 320_000, beside="3 rows a group", limit=SORTED, mb=400)
def _(folder: Path, groups: int) -> Work:
    return ["metrics", saved(folder / "a.npz", 3 * groups, patient=values(3 * groups, groups)), "--group", "patient"]


@grows("metrics", "values of --by", 500, 2000, 10_000, beside="100 to a column, 1,000 rows", mb=400)
def _(folder: Path, count: int) -> Work:
    columns = {f"column{i}": values(1000, 100, i) for i in range(max(1, count // 100))}
    return ["metrics", saved(folder / "a.npz", 1000, **columns), *(f"--by={name}" for name in columns)]


@grows("metrics", "labels of --multilabel", 80, 320, 1280, beside="500 rows", mb=150)
def _(folder: Path, labels: int) -> Work:
    import numpy as np

    rng, path = np.random.default_rng(0), folder / "a.npz"
    p = rng.uniform(0.02, 0.98, (500, labels))
    np.savez(path, probs=p.astype(np.float32), labels=(rng.uniform(size=p.shape) < p).astype(int))
    return ["metrics", str(path), "--multilabel"]


@grows("metrics", "tasks", 12, 50, 200, beside="50 rows a task", mb=150)
def _(folder: Path, tasks: int) -> Work:
    return ["metrics", *(saved(folder / f"task{i}.npz", 50, 4, i) for i in range(tasks)), "--tasks"]


@grows("metrics", "files in a pattern", 600, 2500, 10_000, beside="CSV, 10 rows each", mb=250)
def _(folder: Path, files: int) -> Work:
    names, lines = listed(drawn(10 * files))
    for i in range(files):
        csv(folder / f"part-{i:05}.csv", names, lines[10 * i : 10 * i + 10])
    return ["metrics", str(folder / "part-*.csv")]


@grows("metrics", "rows of CSV", 10_000, 40_000, 160_000, beside="10 classes", mb=250)
def _(folder: Path, n: int) -> Work:
    return ["metrics", csv(folder / "a.csv", *listed(drawn(n)))]


@grows("metrics", "columns of CSV", 100, 400, 1600, beside="1,000 rows", mb=350)
def _(folder: Path, columns: int) -> Work:
    more = {f"column {i}": values(1000, 7, i) for i in range(columns)}
    return ["metrics", csv(folder / "a.csv", *listed(drawn(1000), **more))]


@grows("metrics", "classes of CSV", 50, 200, 800, beside="1,000 rows", mb=150)
def _(folder: Path, k: int) -> Work:
    return ["metrics", csv(folder / "a.csv", *listed(drawn(1000, k)))]


@grows("metrics", "rows of JSON lines", 10_000, 40_000, 160_000, beside="10 classes", mb=350)
def _(folder: Path, n: int) -> Work:
    arrays, path = drawn(n), folder / "a.jsonl"
    pairs = zip(arrays["logits"].round(5).tolist(), arrays["labels"].tolist(), strict=True)
    path.write_text("".join(json.dumps({"logits": z, "label": y}) + "\n" for z, y in pairs))
    return ["metrics", str(path)]


@grows("metrics", "rows of parquet", 100_000, 400_000, 1_600_000, beside="10 classes", limit=SORTED, mb=700)
def _(folder: Path, n: int) -> Work:
    import pyarrow as pa
    from pyarrow import parquet

    arrays, path = drawn(n), str(folder / "a.parquet")
    columns = {f"logit_{i}": arrays["logits"][:, i] for i in range(10)} | {"label": arrays["labels"]}
    parquet.write_table(pa.table(columns), path)
    return ["metrics", path]


@grows("metrics --partial", "files", 50, 200, 800, beside="200 rows each", mb=150)
def _(folder: Path, files: int) -> Work:
    for i in range(files):
        saved(folder / f"part-{i:04}.npz", 200, seed=i)
    return ["metrics", str(folder / "part-*.npz"), "--partial", str(folder / "state.npz")]


@grows("merge", "states", 25, 100, 400, beside="200 rows each", mb=150)
def _(folder: Path, states: int) -> Work:
    import calibcli

    for i in range(states):
        arrays = drawn(200, seed=i)
        calibcli.Accumulator().update(arrays["logits"], arrays["labels"]).save(folder / f"state-{i:03}.npz")
    return ["merge", str(folder / "state-*.npz")]


@grows("inspect", "rows", 100_000, 400_000, 1_600_000, beside="10 classes", limit=SORTED, mb=250)
def _(folder: Path, n: int) -> Work:
    return ["inspect", saved(folder / "a.npz", n)]


@grows("ood", "rows on both sides", 25_000, 100_000, 400_000, beside="10 classes", limit=SORTED, mb=400)
def _(folder: Path, n: int) -> Work:
    import numpy as np

    rng, path = np.random.default_rng(3), folder / "b.npz"
    np.savez(path, logits=1.5 * rng.standard_normal((n, 10), dtype=np.float32))
    return ["ood", saved(folder / "a.npz", n), str(path)]


@grows("threshold", "rows", 25_000, 100_000, 400_000, beside="10 classes", limit=SORTED, mb=400, exits=(0, 1))
def _(folder: Path, n: int) -> Work:
    return ["threshold", saved(folder / "a.npz", n), "--max-risk", "0.3"]


@grows("measure", "rows of arrays", 10_000, 40_000, 160_000, beside="10 classes", mb=80)
def _(folder: Path, n: int) -> Work:
    import calibcli

    arrays = drawn(n)
    return lambda: calibcli.measure(arrays["logits"], arrays["labels"])


# Gates, models side by side, slices, nights.


@grows("check", "rows", 100_000, 400_000, 1_600_000, beside="10 classes", limit=SORTED, mb=450)
def _(folder: Path, n: int) -> Work:
    return ["check", saved(folder / "a.npz", n), "--max", "ece=0.5"]


@grows("init", "rows", 100_000, 400_000, 1_600_000, beside="10 classes", limit=SORTED, mb=450)
def _(folder: Path, n: int) -> Work:
    return ["init", saved(folder / "a.npz", n), "--save", str(folder / "calib.toml"), "--update"]


def _gated(limit: float) -> Callable[[Path, int], Work]:
    def make(folder: Path, count: int) -> Work:
        path = saved(folder / "a.npz", 200 * count, site=values(200 * count, count))
        return ["check", path, f"--max=ece={limit}", "--by", "site"]

    return make


for _limit, _verdicts in ((0.9, "are decided"), (0.14, "are INCONCLUSIVE")):
    grows("check", f"slices that {_verdicts}", 60, 250, 1000, beside="200 rows each", mb=200, exits=(0, 1, 3))(
        _gated(_limit)
    )


@grows("check", "rules of many bin counts", 100, 200, 400, beside="150 bins on average", mb=100, exits=(0, 1, 3))
def _(folder: Path, rules: int) -> Work:
    path = folder / "calib.toml"
    pairs = itertools.product(around(150, rules // 2), (0.9, 0.91))
    gates = (f'[[gate]]\nmetric = "ece:bins={bins}"\nmax = {limit}\n' for bins, limit in pairs)
    path.write_text("\n".join(gates))
    return ["check", saved(folder / "a.npz", 1000), "--config", str(path)]


@grows("check", "bins of a rule", 100, 300, 1000, beside="1,000 rows", mb=200, exits=(0, 1, 3))
def _(folder: Path, bins: int) -> Work:
    return ["check", saved(folder / "a.npz", 1000), "--max", f"ece:bins={bins}=0.9"]


@grows("plan", "rules", 4, 8, 16, beside="7 to 23 bins", mb=60)
def _(folder: Path, rules: int) -> Work:
    # spread over one range whatever their number, as a rule costs more than in proportion to its bins
    spread = (round(6.5 + 17 * (i + 0.5) / rules) for i in range(rules))
    return ["plan", *(f"--max=ece:bins={bins}=0.05" for bins in spread)]


@grows("compare", "models", 4, 16, 64, beside="500 rows", mb=200)
def _(folder: Path, models: int) -> Work:
    import numpy as np

    arrays = drawn(500)
    noise = np.random.default_rng(4).standard_normal((models, 500, 10), dtype=np.float32)
    paths = [str(folder / f"model{i}.npz") for i in range(models)]
    for path, own in zip(paths, noise, strict=True):
        np.savez(path, logits=arrays["logits"] + own / 2, labels=arrays["labels"])
    return ["compare", *paths]


@grows("compare", "rows", 25_000, 100_000, 400_000, beside="2 models, 10 classes", limit=SORTED, mb=350)
def _(folder: Path, n: int) -> Work:
    import numpy as np

    arrays, path = drawn(n), folder / "b.npz"
    np.savez(path, logits=arrays["logits"] * np.float32(0.8), labels=arrays["labels"])
    return ["compare", saved(folder / "a.npz", n), str(path)]


@grows("slices", "columns of 3 values, in pairs", 50, 200, 800, beside="3,000 rows", limit=2.0, mb=200)
def _(folder: Path, columns: int) -> Work:
    return ["slices", saved(folder / "a.npz", 3000, **{f"column{i}": values(3000, 3, i) for i in range(columns)})]


@grows("slices", "columns of numbers, in pairs", 25, 100, 400, beside="3,000 rows", limit=2.0, mb=200)
def _(folder: Path, columns: int) -> Work:
    import numpy as np

    rng = np.random.default_rng(6)
    return ["slices", saved(folder / "a.npz", 3000, **{f"column{i}": rng.normal(size=3000) for i in range(columns)})]


@grows("slices", "rows", 25_000, 100_000, 400_000, beside="10 columns", limit=SORTED, mb=350)
def _(folder: Path, n: int) -> Work:
    return ["slices", saved(folder / "a.npz", n, **{f"column{i}": values(n, 3, i) for i in range(10)})]


@grows("watch", "nights before this one", 20, 200, 2000, beside="200 rows a night", limit=0.12, mb=20)
def _(folder: Path, nights: int) -> Work:
    import calibcli

    dates = [(datetime.date(2015, 1, 1) + datetime.timedelta(days=night)).isoformat() for night in range(nights + 1)]
    watch = calibcli.Watch(folder / "state.json", max={"ece": 0.3}, min={"accuracy": 0.3})
    for night in range(nights):
        arrays = drawn(200, seed=night)
        watch.update(arrays["logits"], arrays["labels"], kind="logits", night=dates[night])
    arrays = drawn(200, seed=nights)

    def night() -> None:
        for _ in range(10):  # of the same state: one alone is too short to time
            shutil.copy(folder / "state.json", folder / "copy.json")
            again = calibcli.Watch(folder / "copy.json")
            again.update(arrays["logits"], arrays["labels"], kind="logits", night=dates[nights])

    return night


# Calibrators.


def _scaled(spec: str) -> Callable[[Path, int], Work]:
    return lambda folder, n: ["scale", saved(folder / "a.npz", n), "--method", spec]


for _spec in ("temperature", "vector", "isotonic", "histogram", "beta"):
    grows("scale --method " + _spec, "rows", 50_000, 200_000, 800_000, beside="10 classes", limit=SORTED, mb=480)(
        _scaled(_spec)
    )
for _spec in ("matrix", "dirichlet", "focal"):
    grows("scale --method " + _spec, "rows", 2000, 8000, 32_000, beside="10 classes", limit=SORTED, mb=120)(
        _scaled(_spec)
    )


def _wide(spec: str) -> Callable[[Path, int], Work]:
    return lambda folder, k: ["scale", saved(folder / "a.npz", 2000, k), "--method", spec]


grows("scale --method temperature", "classes", 30, 100, 300, beside="2,000 rows")(_wide("temperature"))
grows("scale --method isotonic", "classes", 30, 100, 300, beside="2,000 rows", limit=SORTED)(_wide("isotonic"))
grows("scale --method vector", "classes", 100, 300, 1000, beside="2,000 rows", limit=1.3, mb=150)(_wide("vector"))
grows("scale --method matrix", "classes", 25, 50, 100, beside="2,000 rows", limit=2.1, mb=150)(_wide("matrix"))
grows("scale --method dirichlet", "classes", 25, 50, 100, beside="2,000 rows", limit=2.1, mb=150)(_wide("dirichlet"))


@grows("scale --multilabel", "labels", 20, 80, 320, beside="500 rows", mb=80)
def _(folder: Path, labels: int) -> Work:
    return ["scale", *ROWS["metrics: labels of --multilabel"].make(folder, labels)[1:]]  # type: ignore[index]


@grows("apply", "rows", 100_000, 400_000, 1_600_000, beside="10 classes", mb=200)
def _(folder: Path, n: int) -> Work:
    out = ["--save", str(folder / "out.npz"), "-q"]
    return ["apply", calibrator(folder, "temperature"), saved(folder / "a.npz", n), *out]


@grows("export --to json", "classes", 30, 100, 300, mb=80)
def _(folder: Path, k: int) -> Work:
    return ["export", calibrator(folder, "vector", k), "--to", "json", "-o", str(folder / "map.json")]


@grows("export --to card", "rows", 32_000, 128_000, 512_000, beside="10 classes", limit=SORTED, mb=100)
def _(folder: Path, n: int) -> Work:
    data = ["--data", saved(folder / "a.npz", n)]
    return ["export", calibrator(folder, "temperature"), "--to", "card", *data, "-o", str(folder / "card.md")]


@grows("verify", "rows", 25_000, 100_000, 400_000, beside="10 classes", limit=SORTED, mb=150)
def _(folder: Path, n: int) -> Work:
    fitted, deployed = calibrator(folder, "temperature"), str(folder / "map.json")
    quiet(["export", fitted, "--to", "json", "-o", deployed])
    return ["verify", deployed, "--with", fitted, "--data", saved(folder / "a.npz", n)]


# Results on a page.


@grows("report -o page.html", "results", 5, 20, 80, mb=150)
def _(folder: Path, results: int) -> Work:
    paths = [str(folder / f"{i}.json") for i in range(results)]
    for i, path in enumerate(paths):
        quiet(["metrics", saved(folder / "a.npz", 500, seed=i), "-o", path, "-q"])
    return ["report", *paths, "-o", str(folder / "page.html")]


@grows("report -o page.html", "estimates of a result", 100, 400, 1600, mb=150)
def _(folder: Path, count: int) -> Work:
    quiet([*ROWS["metrics: values of --by"].make(folder, count), "-o", str(folder / "a.json"), "-q"])  # type: ignore[misc]
    return ["report", str(folder / "a.json"), "-o", str(folder / "page.html")]


# Networks and experiments.


def _digits() -> str:
    return str(ROOT / "sample_data" / "digits.npz")


def _images(folder: Path, n: int) -> str:
    """Write n images of noise with labels of ten classes; returns the path."""
    import numpy as np

    rng, path = np.random.default_rng(0), folder / "data.npz"
    np.savez(path, x=rng.standard_normal((n, 1, 8, 8), dtype=np.float32), y=rng.integers(0, 10, n))
    return str(path)


def _models(folder: Path) -> list[str]:
    return [str(path) for path in (folder / "fit").rglob("model.safetensors")]


def _fit(folder: Path, arch: str, epochs: int, data: str = "") -> list[str]:
    out = ["--epochs", str(epochs), "--save", str(folder / "fit"), "-q"]
    return ["fit", arch, "--data", data or _digits(), "--loss", "ce", *out]


@grows("fit", "epochs", 2, 8, 32, beside="digits, mlp", mb=80)
def _(folder: Path, epochs: int) -> Work:
    return _fit(folder, "mlp:hidden=64/64", epochs)


@grows("fit", "rows", 10_000, 40_000, 160_000, beside="an epoch of a mlp of 650 parameters", mb=200)
def _(folder: Path, n: int) -> Work:
    return _fit(folder, "mlp:hidden=8", 1, _images(folder, n))


@grows("curvature", "rows", 1000, 4000, 16_000, beside="mlp of 650 parameters", mb=200)
def _(folder: Path, n: int) -> Work:
    quiet(_fit(folder, "mlp:hidden=8", 1))
    return ["curvature", *_models(folder), "--data", _images(folder, n), "-w", "lambda_max", "-w", "trace"]


@grows("curvature", "parameters", 4, 16, 64, beside="1,000 rows, width of two hidden layers / 16", limit=2.1, mb=300)
def _(folder: Path, width: int) -> Work:
    quiet(_fit(folder, f"mlp:hidden={16 * width}/{16 * width}", 1))
    return ["curvature", *_models(folder), "--data", f"{_digits()}#test", "-w", "lambda_max", "-w", "trace"]


@grows("logits", "rows", 80_000, 320_000, 1_280_000, beside="mlp of 650 parameters", mb=200)
def _(folder: Path, n: int) -> Work:
    quiet(_fit(folder, "mlp:hidden=8", 1))
    return ["logits", *_models(folder), "--data", _images(folder, n), "--save", str(folder / "out.npz"), "-q"]


@grows("study --report-only", "seeds", 10, 40, 160, beside="2 arms", mb=150)
def _(folder: Path, seeds: int) -> Work:
    """The runs of the first seed are copied to the others, which costs a report the same."""
    from calibcli.lab.study import parsing, runs

    recipe, save = folder / "recipe.toml", folder / "study"
    recipe.write_text(TWO_ARMS.format(name="seeds", hidden=8, epochs=1, seeds=1))
    quiet(["study", str(recipe), "--save", str(save), "-q"])
    first = runs.runs(parsing.parse(recipe.read_text(), str(recipe)))
    for run in first:
        for seed in range(1, seeds):
            other = save / runs.StudyRun(run.arm, run.arch, seed).folder
            shutil.copytree(save / run.folder, other)
            record = json.loads((other / "run.json").read_text())
            record["is"]["seed"] = seed
            (other / "run.json").write_text(json.dumps(record))
    recipe.write_text(TWO_ARMS.format(name="seeds", hidden=8, epochs=1, seeds=seeds))
    return ["study", str(recipe), "--save", str(save), "--report-only", "-q"]


# Measuring a row.


def resident(key: str = "VmRSS") -> float:
    """Memory of this process in MB: now, or with `VmHWM` the most since `watermark`."""
    found = re.search(rf"{key}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) / 1024


def watermark() -> None:
    """Let the peak of this process begin anew."""
    from calibcli.core.memory import trim

    trim()
    Path("/proc/self/clear_refs").write_text("5")


def spent() -> float:
    """CPU seconds, user and system, of this process and of children that ended."""
    own, others = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return own.ru_utime + own.ru_stime + others.ru_utime + others.ru_stime


def once(make: Callable[[Path, int], Work], size: int, exits: Sequence[int]) -> tuple[float, float]:
    """CPU seconds and MB above the start of one run."""
    with tempfile.TemporaryDirectory() as folder:
        work = make(Path(folder), size)
        gc.collect()
        gc.freeze()
        watermark()
        start, before = spent(), resident()
        if callable(work):
            work()
        elif (code := quiet(work)) not in exits:
            raise RuntimeError(f"exit {code}: {' '.join(work)[:100]}")
        return spent() - start, resident("VmHWM") - before


def forked(work: Callable[[], tuple[float, float]]) -> tuple[float, float]:
    """What a call returns in a forked child.

    Raises:
        RuntimeError: it failed.
    """
    read, write = os.pipe()
    if not (child := os.fork()):
        os.close(read)
        try:
            answer = json.dumps(work())
        except BaseException as error:
            answer = json.dumps(f"{type(error).__name__}: {error}"[:300])
        os.write(write, answer.encode())
        os._exit(0)
    os.close(write)
    with open(read) as pipe:
        answer = json.loads(pipe.read() or '"it was killed"')
    os.waitpid(child, 0)
    if isinstance(answer, str):
        raise RuntimeError(answer)
    return answer[0], answer[1]


def measured(name: str, sizes: Sequence[int], rounds: int) -> dict[str, list[float]]:
    """Least seconds and least MB of each size, by turns, from one warm process."""
    one = ROWS[name]
    once(one.make, sizes[0], one.exits)
    gc.collect()
    gc.freeze()
    found: list[list[tuple[float, float]]] = [[] for _ in sizes]
    for turn in range(MANY if rounds > 1 else 1):
        for size, runs in zip(sizes, found, strict=True):
            total = sum(spent for spent, _ in runs)
            if turn == 0 or (total < LONG and (turn < rounds or total < ENOUGH)):
                runs.append(forked(functools.partial(once, one.make, size, one.exits)))
    best = [[min(column) for column in zip(*runs, strict=True)] for runs in found]
    return {"seconds": [b[0] for b in best], "mb": [b[1] for b in best]}


def exponent(sizes: Sequence[int], times: Sequence[float]) -> float:
    return math.log(max(times[-1], SLACK) / max(times[-2], SLACK)) / math.log(sizes[-1] / sizes[-2])


def judged(name: str, rounds: int, short: bool) -> tuple[list[str], bool]:
    """The cells of a row, and whether it keeps its limits; one that does not is measured twice more."""
    one = ROWS[name]
    sizes = [max(2, size // SHORT) for size in one.sizes] if short else list(one.sizes)
    best: dict[str, list[float]] = {}
    for _ in range(1 if short else 3):
        found = attempt(measured, name, sizes, 1 if short else rounds)
        if isinstance(found, str):
            return [name, one.beside, found, "", ""], found == "not installed"
        best = {key: list(map(min, best.get(key, of), of)) for key, of in found.items()}
        power, peak = exponent(sizes, best["seconds"]), best["mb"][-1]
        holds = short or (power <= one.limit and peak <= one.mb)
        if holds:
            break
    cost = ", ".join(f"{size:,}: {time:.3g}" for size, time in zip(sizes, best["seconds"], strict=True))
    mark = "" if holds else " **breaks**"
    return [name, one.beside, cost, f"{power:.2f} ({one.limit:g})", f"{peak:.0f} ({one.mb:g})" + mark], holds


def compared(name: str, before: str, rounds: int) -> str:
    """The seconds of the largest size in two checkouts, each in processes of its own, by turns, and their ratio."""
    small, _, large = ROWS[name].sizes

    def clock(root: Path | str) -> float:
        return float(child(measured, name, [small, large], 1, env=environment(root))["seconds"][1])

    times = by_turns({"now": ROOT, "before": before}, rounds, clock)
    costs = ", ".join(f"{who} {min(values):.3g} s" for who, values in times.items())
    return f"{name}, {large:,}: {costs}; now costs {ratio(times['now'], times['before'], 2)} of before"


def main() -> int:
    given = arguments(__doc__, only=[str], short=False, rounds=3, list=False, save=False, before=str)
    if given.before:
        print(machine(), flush=True)
        for name in chosen(ROWS, given):
            print(compared(name, given.before, given.rounds), flush=True)
        return 0
    return held(ROWS, given, HEAD, lambda name: judged(name, given.rounds, given.short), keep)


def keep(line: str, where: str) -> None:
    """Put a row into the table of results/growth.txt and of the docs, in the place of an earlier one of its name."""
    table = put("growth", HEAD, ROWS, line, where)
    page = ROOT / "docs" / "measured" / "growth.md"
    between(page, "<!-- growth -->", "<!-- /growth -->", lambda old: f"\n{table}\n")


if __name__ == "__main__":
    sys.exit(main())
