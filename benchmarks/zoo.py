"""`calib curvature` of every family of classifiers of three libraries, against double backwards by hand.

    python benchmarks/zoo.py                     all, an hour or two on one core
    python benchmarks/zoo.py torchvision.swin 'transformers.*' --budget 3   some, as globs
    python benchmarks/zoo.py --save verdicts.jsonl --table                  the verdicts so far, and nothing else

Networks are drawn with random weights, as small as they can be configured. The logits that `calib logits` writes, three
rows at a time, are held against a forward pass in float64; the default run, in float64 and float32, on a block of
parameters against the block's dense Hessian; and one product and λmax of all parameters against a double backward in
float64. Prints one line for each; exit 1 if one is neither equal to it nor refused by name. Each is measured in a
process of its own, of --limit CPU seconds. A library that is not installed is skipped. `narrow` are networks in half
precision, or with adapters on an int8 base; `sharded` are shared by two processes, and measured from gradients alone:
their logits, λmax and trace count.

--budget seconds for a dense Hessian, and again for λmax of all; --most parameters of a dense Hessian; --quick: default
runs in float32 alone, λmax of all in float64 alone. What the file of --save holds already is not measured again.
"""

from __future__ import annotations

import contextlib
import fnmatch
import importlib
import io
import multiprocessing
import queue
import resource
import sys
import traceback
import warnings
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

import _zoo_models
import _zoo_plain
import _zoo_recent
import _zoo_sharded
import _zoo_written
import torch
from _harness import append, arguments, head, lines, row
from _zoo_truth import Verdict, judge

LIBRARIES: dict[str, Any] = {
    "plain": _zoo_plain.plain,
    "written": _zoo_written.written,
    "recent": _zoo_recent.recent,
    "narrow": _zoo_sharded.narrow,
    "sharded": _zoo_sharded.sharded,
    "torchvision": _zoo_models.torchvision,
    "transformers": _zoo_models.transformers,
    "timm": _zoo_models.timm,
}


def makers() -> dict[str, _zoo_models.Maker]:
    """Every network by `library.family`."""
    sys.path.append(str(Path(__file__).parent.parent / "tests"))
    importlib.import_module("zoos")  # torchvision can be imported beside a CPU torch
    found = {}
    for library, entries in LIBRARIES.items():
        try:
            found.update({f"{library}.{name}": make for name, make in entries().items()})
        except ModuleNotFoundError as error:
            if error.name != library:
                raise
            print(f"{library} is not installed: skipped", file=sys.stderr)
    return found


def one(make: _zoo_models.Maker, how: tuple[float, int, bool]) -> Verdict:
    """The verdict on a network; what it raises is one too."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            made = make()
            return made if isinstance(made, Verdict) else judge(*made, *how)
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(last.filename).name}:{last.lineno}"
        return Verdict("crash", f"{type(error).__name__}: {str(error).splitlines()[:1]} at {where}")


def apart(make: _zoo_models.Maker, how: tuple[float, int, bool], limit: float) -> Verdict:
    """The same, in a process that ends with it or at a limit in CPU seconds: others may be at work."""
    context = multiprocessing.get_context("fork")
    results: Any = context.Queue()

    def work() -> None:
        resource.setrlimit(resource.RLIMIT_CPU, (int(limit), int(limit)))
        results.put(one(make, how))

    process = context.Process(target=work, daemon=True)
    process.start()
    try:
        while True:
            alive = process.is_alive()
            with contextlib.suppress(queue.Empty):
                return results.get(timeout=1)
            if not alive:
                return Verdict("crash", f"no verdict in {limit:g} s" if process.exitcode == -9 else "the process died")
    finally:
        process.kill()
        process.join()


def saved(path: Path | None) -> dict[str, Verdict]:
    """Verdicts by name, the last of each."""
    return {one.pop("name"): Verdict(**one) for one in lines([path] if path else [])}


def line(name: str, v: Verdict) -> str:
    """A row of the table."""
    errors = " ".join(f"{e:.0e}" for e in (*v.logits.values(), *v.product.values(), *v.largest.values()))
    said = v.text.replace("\n  fix: ", "; fix: ") if v.text else ""
    return f"{name:28s} {v.how:8s} {v.parameters:>10,} {v.block:>6,}  {errors:41s} {v.seconds:5.0f}  {said}"


def table(verdicts: dict[str, Verdict]) -> str:
    """Markdown: the verdict in a sentence; how many of each library run, agree and are refused, and which."""
    count = Counter(verdict.how for verdict in verdicts.values())
    equal, refused = count["equal"], count["refused"]
    rows = [
        f"Of {len(verdicts)} networks {equal} are equal to the dense Hessian, {refused} are refused with a message "
        f"that names the cause, and {len(verdicts) - equal - refused} are neither, which would be a wrong number or a "
        "crash.\n",
        head("library", "measured", "equal to the dense Hessian", "refused by name", "neither"),
    ]
    for library in dict.fromkeys(name.partition(".")[0] for name in verdicts):
        of: dict[str, list[str]] = {}
        for name, verdict in verdicts.items():
            if name.startswith(f"{library}."):
                of.setdefault(verdict.how, []).append(name.partition(".")[2])
        sides = [of.get("equal", []), of.get("refused", []), of.get("differs", []) + of.get("crash", [])]
        cells = [f"{len(side)}: {', '.join(sorted(side))}" if side else "none" for side in sides]
        rows.append(row(library, sum(map(len, sides)), *cells))
    return "\n".join(rows)


def main() -> int:
    given = arguments(__doc__, "names", budget=10.0, most=1500, quick=False, limit=1200.0, save=Path, table=False)
    if given.table:
        print(table(saved(given.save)))
        return 0
    known, done = makers(), saved(given.save)
    names = list(dict.fromkeys(n for glob in given.names or ["*"] for n in known if fnmatch.fnmatch(n, glob)))
    names = [n for n in names if n in given.names or not n.endswith("-wide")]
    print(f"{'network':28s} {'verdict':8s} {'parameters':>10s} {'block':>6s}  {'relative errors':41s} CPU s")
    print(f"{'':56s}logits 64 32, product 64 32, λmax 64 32", flush=True)
    count: Counter[str] = Counter()
    for name in (n for n in names if n not in done):
        verdict = apart(known[name], (given.budget, given.most, given.quick), given.limit)
        count[verdict.how] += 1
        print(line(name, verdict), flush=True)
        append(given.save, {"name": name, **asdict(verdict)})
    print(", ".join(f"{n} {how}" for how, n in count.most_common()))
    return int(count["differs"] + count["crash"] > 0)


if __name__ == "__main__":
    sys.exit(main())
