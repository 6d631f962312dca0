"""The same answers after a change of the house: 60 commands, their JSON before and after.

    python benchmarks/corpus.py write FOLDER            # runs the commands of this checkout, one JSON file each
    python benchmarks/corpus.py compare BEFORE AFTER    # exit 1 and the first differences that are not intended

Equal is equal to 1e-10, of curvature, whose products are in float32, to 1e-5. Files are generated from a seed in a
folder of the run, beside `sample_data/` of the checkout. What was changed on purpose since 8b753a1 is listed in
`INTENDED`; times, the version, the command line, paths of the checkout and salts are left out.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parent.parent
TOLERANCE, SINGLE = 1e-10, 1e-5
LEFT_OUT = {
    "schema",
    "started",
    "seconds",
    "train_seconds",
    "version",
    "argv",
    "salt",
    "sha256",
    "rows",
    "path",
    "data",
}
INTENDED = (
    # numbers
    ("", r"(ece \S+ (minus|-) \S+\.(low|high|how)|(plots\.difference_\w*ece|tables\.differences\.p)\b.*)",
     "joint interval of paired binned errors"),
    ("", r"\.(smece|ece_l2|ece2_debiased)\b.*\.(low|null|null_high)|difference_ece2_debiased\b.*",
     "roots to 1e-10, where a bisection had stopped"),
    ("", r"classwise_ece\b.*\.worst_class", "of classes that are alike but for rounding the first"),
    ("compare", r"ece2_debiased [^.]*\.high", "roots to 1e-10, where a bisection had stopped"),
    ("", r"temperature_gain.*\.(low|high)", "bounds of temperature_gain hold near 0"),
    ("--weight-kind count", r"estimates\.(nll|nll_wrong|cox_\w+)\.(low|high|se|how)|\.fewest_rows|notes\[0\]",
     "counts are repeated rows"),
    ("scale", r"(nll_difference method=\w+|focal_gain)(\.\w+)?|tables\.ranking\b.*|notes\[1\]",
     "isotonic curves run over log-odds, more methods are ranked, Student's t for focal_gain"),
    ("scale", r"plots\.nll_over_t\..*", "the figure of the NLL in float32"),
    ("curvature", r".*(negative_fraction.*(_|\.)(low|high)|plots\.density.*)",
     "few Lanczos steps widen density's interval"),
    ("curvature", r".*(estimates\.trace|(plots|tables)\.layers|tables\.errors).*",
     "pairs of traces drawn by chances in single precision"),
    ("curvature", r".*(residual|convergence|k=\d\.how).*", "rounding errors themselves"),
    # what is drawn and said
    ("", r"plots\.(reliability|class_|label_)\w*\.(curves|title)\b.*|per_class\.(dsc|mcb)",
     "reliability diagrams are isotonic regressions, with what chance allows them"),
    ("", r"facts\.headline|plots\.[^.]*\.about|provenance\.split",
     "a sentence, and what figures and folds are of"),
    ("", r"\.(auc|aurc|corp_\w+|cox_\w+|failure_auroc|observed_expected|plots\.\w+)( [^.]*)?",
     "metrics of discrimination, recalibration and decomposition"),
    ("fit", r"(nll|ece)( \S+)? after minus before|entropy_wrong", "differences, entropy of wrong rows"),
    ("check", r"\.message|\.plots", "words of an undecided verdict; a figure where one is written"),
    ("plan", r"\.how|power\.curves\[3\]\.label", "80 %, with its space"),
    ("curvature", r"notes\[1\]", "seeds of subsets have a name of their own"),
)  # fmt: skip
"""Command, place and reason of what changed on purpose."""
FOLDER = re.compile(re.escape(tempfile.gettempdir()) + r"/tmp\w+/")

COMMANDS = """
metrics test.npz
metrics test.npz -m all
metrics test.npz -m all --level 0.9 --seed 3
metrics test.npz -m ece:bins=30 -m adaece:method=split -m smece:sigma=0.1 -m classwise_ece:norm=l2
metrics test.npz --per-class --top-k 3
metrics test.npz --bins 10 --edges left
metrics hundred.npz
metrics hundred.npz -m all --weights w
metrics two.csv
metrics two.csv -m all --by site
metrics two.npz -m all
metrics grouped.npz -m all --group patient
metrics weighted.npz -m all --weights w --weight-kind count
metrics probabilities.csv
metrics rows.jsonl -m nll -m ece
metrics multi.npz --multilabel
metrics saturated.npz -m all
metrics few.npz
metrics tied.npz -m adaece -m ece2_debiased
scale validation.npz --test test.npz
scale validation.npz --test test.npz --method focal-temperature
scale test.npz --method all
scale two.npz --method platt --method beta --method isotonic
scale two.csv --folds 3
scale grouped.npz --group patient
scale weighted.npz --weights w
scale saturated.npz --method temperature --method vector
scale hundred.npz --method bcts --method isotonic-top --method histogram
scale validation.npz --test test.npz --method temperature --save t.safetensors
scale validation.npz --test test.npz --method matrix --save m.safetensors
apply t.safetensors test.npz --save calibrated.npz
apply m.safetensors test.npz --save matrix.npz
metrics calibrated.npz
check test.npz --max ece=0.05 --min accuracy=0.85
check calibrated.npz --max ece=0.05 --min accuracy=0.85 --bounds sharp
check calibrated.npz --max nll=0.4 --max brier=0.2 --max smece=0.05 --max adaece=0.05 --max temperature_gain=0.02
check two.csv --max ece=0.1 --by site --min-n 50
check grouped.npz --group patient --max ece=0.2 --min accuracy=0.3
check weighted.npz --weights w --max ece=0.1
check test.npz --keep-rows --max ece=0.2 -o base.json
check calibrated.npz --baseline base.json --margin nll=0.01 --margin accuracy=0.01
check scaled.json --max ece=0.05 --scope after
compare test.npz calibrated.npz
compare two.npz two_other.npz -m nll -m ece -m accuracy
compare first.json second.json
plan --max ece=0.02
plan --min accuracy=0.85 --max ece=0.05 --from test.npz
plan --margin temperature_gain=0 --logit-factor 1.3
curvature model.pt
curvature model.pt -w lambda_max -w trace:probes=8 --loss focal:gamma=2
curvature model.pt -w top:k=3 -w lambda_min -w density:steps=20 -w grad_norm --dtype float64
curvature model.safetensors -w trace_ggn:exact -w trace:exact --subset 200
logits model.pt --save logits.npz
fit model.pt --init fresh --epochs 2 --loss ce --loss focal:gamma=3 --save fit --threads 1
fit model.pt --init fresh --epochs 1 --loss ce+mmce:weight=1 --loss brier --threads 1
fit model.pt --init fresh --epochs 1 --loss ce+trace:weight=0.01,kind=ggn --batch-size 200 --threads 1
inspect test.npz
inspect model.pt
inspect two.csv
inspect t.safetensors
"""


def files(folder: Path) -> None:
    """The generated inputs."""
    for name in ("test.npz", "validation.npz", "model.pt", "model.safetensors", "digits.npz"):
        (folder / name).write_bytes((ROOT / "sample_data" / name).read_bytes())
    rng = np.random.default_rng(0)

    def scores(n: int, k: int, scale: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
        z = rng.standard_normal((n, k)) * 2
        noise = rng.gumbel(size=(n, k))
        return (scale * z).astype(np.float32), (z + noise).argmax(axis=1)

    def save(name: str, z: np.ndarray, y: np.ndarray, **more: np.ndarray) -> None:
        np.savez(folder / name, logits=z, labels=y, **more)

    z, y = scores(2000, 100, 1.5)
    save("hundred.npz", z, y, w=rng.random(2000) + 0.5)
    z, y = scores(900, 2, 1.4)
    save("two.npz", z, y)
    save("two_other.npz", (z * 0.6).astype(np.float32), y)
    p = 1 / (1 + np.exp(z[:, 0] - z[:, 1]))
    site = rng.choice(["north", "south", "west"], 900)
    lines = [f"{i},{label},{prob:.9g},{where}" for i, (label, prob, where) in enumerate(zip(y, p, site, strict=True))]
    (folder / "two.csv").write_text("id,label,proba,site\n" + "\n".join(lines) + "\n")
    z, y = scores(1200, 5, 1.3)
    save("grouped.npz", z, y, patient=np.sort(rng.integers(0, 80, 1200)))
    save("weighted.npz", z, y, w=rng.integers(1, 6, 1200).astype(float))
    e = np.exp(z - z.max(axis=1, keepdims=True))
    e /= e.sum(axis=1, keepdims=True)
    rows = [",".join(f"{v:.9g}" for v in row) + f",{label}" for row, label in zip(e, y, strict=True)]
    (folder / "probabilities.csv").write_text("p0,p1,p2,p3,p4,label\n" + "\n".join(rows) + "\n")
    text = [json.dumps({"logits": row.tolist(), "label": int(label)}) for row, label in zip(z, y, strict=True)]
    (folder / "rows.jsonl").write_text("\n".join(text) + "\n")
    np.savez(folder / "multi.npz", logits=z[:, :3], labels=(rng.random((1200, 3)) < 1 / (1 + np.exp(-z[:, :3]))) * 1)
    z, y = scores(1500, 10, 8.0)
    save("saturated.npz", z, y)
    z, y = scores(40, 3)
    save("few.npz", z, y)
    z, y = scores(800, 4)
    save("tied.npz", np.round(z * 2) / 2, y)


def write(target: Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    commands = [line for line in COMMANDS.strip().splitlines() if line]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        files(folder)
        for before in ("metrics test.npz -o first.json", "metrics two.npz -m nll -o second.json"):
            run(before, folder, environment)
        run("scale validation.npz --test test.npz -o scaled.json", folder, environment)
        for number, command in enumerate(commands):
            done = run(command, folder, environment)
            text = done.stdout if done.stdout.startswith("{") else json.dumps({"error": done.stderr})
            body = {"command": command, "code": done.returncode, "result": json.loads(text)}
            (target / f"{number:02d}.json").write_text(json.dumps(body, indent=1))
            print(f"{number:02d} {done.returncode} {command}", flush=True)


def run(command: str, folder: Path, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "calibcli", *command.split(), "--json", "-q"]
    return subprocess.run(argv, cwd=folder, env=environment, capture_output=True, encoding="utf-8", check=False)


def compare(before: Path, after: Path) -> int:
    """The number of files that differ in what was not intended."""
    differ, intended = 0, Counter[str]()
    for path in sorted(before.glob("*.json")):
        old, new = json.loads(path.read_text()), json.loads((after / path.name).read_text())
        tolerance = SINGLE if new["command"].startswith("curvature") else TOLERANCE
        found, reasons = [], set()
        for where, line in differences(old, new, "", tolerance):
            why = next(
                (why for of, at, why in INTENDED if re.search(of, new["command"]) and re.search(at + "$", where)), ""
            )
            reasons.add(why)
            found += [] if why else [f"{where} {line}"]
        intended.update(reasons - {""})
        differ += bool(found)
        for line in found[:5]:
            print(f"{path.name} {old['command']}: {line}")
    for why, count in intended.most_common():
        print(f"intended, in {count} commands: {why}")
    print(f"{differ} of {len(list(before.glob('*.json')))} commands differ otherwise")
    return differ


def differences(old: Any, new: Any, where: str, tolerance: float) -> Iterator[tuple[str, str]]:
    """Place and text of each."""
    if isinstance(old, dict) and isinstance(new, dict):
        old, new = _by_column(old), _by_column(new)
        for key in [*old, *(k for k in new if k not in old)]:
            if key in LEFT_OUT:
                continue
            if key not in old or key not in new:
                yield f"{where}.{key}", f"is only {'after' if key in new else 'before'}"
            else:
                yield from differences(old[key], new[key], f"{where}.{key}", tolerance)
    elif isinstance(old, list) and isinstance(new, list) and old and new and all(map(_named, [*old, *new])):
        yield from differences(*({_named(one): one for one in side} for side in (old, new)), where, tolerance)
    elif isinstance(old, list) and isinstance(new, list):
        if len(old) != len(new):
            yield where, f"has {len(old)} items before, {len(new)} after"
        for i, (a, b) in enumerate(zip(old, new, strict=False)):
            yield from differences(a, b, f"{where}[{i}]", tolerance)
    elif isinstance(old, float | int) and isinstance(new, float | int) and not isinstance(old, bool):
        if not math.isclose(old, new, rel_tol=tolerance, abs_tol=tolerance):
            yield where, f"{old!r} before, {new!r} after"
    elif isinstance(old, str) and isinstance(new, str):
        if FOLDER.sub("", old) != FOLDER.sub("", new):
            yield where, f"{old[:80]!r} before, {new[:80]!r} after"
    elif old != new:
        yield where, f"{str(old)[:80]!r} before, {str(new)[:80]!r} after"


def _by_column(value: dict[str, Any]) -> dict[str, Any]:
    """A table by its columns, whose order says nothing; anything else as it is."""
    if not {"columns", "rows"} <= value.keys():
        return value
    cells = zip(*value["rows"], strict=True) if value["rows"] else ([] for _ in value["columns"])
    return {"title": value["title"], **dict(zip(value["columns"], map(list, cells), strict=True))}


def _named(one: Any) -> str:
    """What tells an estimate, a check, a table or a plot from others of its list, whose order says nothing."""
    return " ".join(filter(None, map(one.get, ("name", "rule", "scope")))) if isinstance(one, dict) else ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("write", "compare"))
    parser.add_argument("folders", nargs="+", type=Path)
    given = parser.parse_args()
    if given.what == "write":
        write(given.folders[0])
        return 0
    return int(compare(*given.folders) > 0)


if __name__ == "__main__":
    sys.exit(main())
