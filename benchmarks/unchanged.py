"""Whether a change of the code has changed an answer: every metric to the last bit, and what ninety commands print.

    python benchmarks/unchanged.py record before.json     # on the code before
    python benchmarks/unchanged.py compare before.json    # on the code after; exit 1 if an answer differs

Estimates: every metric, with 2 and 5 classes, on rows that are plain, weighted, counted, grouped, or weighted and
grouped; all fields of each. A metric is measured by itself, so that it cannot lean on what another one has computed.
Commands: each runs in this process, on small files made from a fixed seed; their output, messages and exit code count.
Dates, times and seconds are left out.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import itertools
import json
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import calibcli
from calibcli.cli.app import main as calib
from calibcli.core.errors import CalibError
from calibcli.metrics.registry import METRICS

SAMPLES = Path(__file__).parent.parent / "sample_data"
N = 400

VOLATILE = re.compile(
    r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)?(Z|\+\d\d:\d\d)?"  # dates
    r"|\b\d+(\.\d+)?(e-?\d+)? ?(s|ms|seconds?|minutes?|MB|GB|rows/s)\b"  # times and memory
    r'|"(\w*seconds|started|checksum|peak_memory|time|sha256)": ?("[^"]*"|[-\d.e]+)'
    r'|(time|timestamp)="[^"]*"|<metadata>.*?</metadata>|\b[0-9a-f]{12,64}\b',
    re.DOTALL,
)

COMMANDS = """
metrics two.npz
metrics five.npz
metrics five.csv
metrics two.csv --format markdown
metrics five.npz --json
metrics five.npz --format csv
metrics five.npz --format junit
metrics five.npz --format openmetrics
metrics five.npz --by site
metrics two.csv --by site --json
metrics five.npz --per-class
metrics two.npz --event 0
metrics two.npz --weights weight
metrics two.npz --weights weight --group group --by site
metrics five.npz --group group --json
metrics five.npz -m ece:bins=30 -m nll -m brier
metrics five.npz -m all
metrics two.npz -m all --json
metrics five.npz --metric accuracy --level 0.9
metrics nothing.npz
metrics five.npz -m eec
metrics five.npz --metrics nll
metrics labels.npz --multilabel
metrics five.npz -o five.html
metrics five.npz -o five.svg -q -o written.json
metrics five.npz --partial five_part.npz
merge five_part.npz
merge five_part.npz five_part.npz
scale five.npz
scale two.npz --json
scale five.npz --method focal_temperature --save focal.safetensors
scale five.npz --method vector
scale five.npz --method matrix
scale two.npz --method platt --save platt.safetensors
scale two.npz --method isotonic --save isotonic.safetensors
scale two.npz --method beta
scale five.npz --save map.safetensors
scale five.npz --test other.npz
scale five.npz --method tempreature
apply map.safetensors more.npz --save calibrated.npz
metrics calibrated.npz
apply map.safetensors two.npz --save wrong.npz
check five.npz --max ece=0.2
check five.npz --max ece=0.0001
check five.npz --max ece=0.05 --max nll=1 --json
check two.npz --max ece=0.1 --min accuracy=0.5 --format junit
check two.npz --max ece=0.1 --format github
check five.npz --max ece=0.1 --format markdown
check five.npz --max ece=0.1 --format badge
check five.npz --max ece=0.1 --by site
check five.npz --baseline more.npz --margin ece=0.05
check five.npz --baseline five.npz --margin nll=0.01
check five.npz
check five.npz --max ece
check five.npz --max ece=high
compare five.npz more.npz
compare five.npz more.npz --json
compare five.npz two.npz
compare --help
plan --max ece=0.05 --accuracy 0.8 --n-classes 5
plan --from five.npz --max ece=0.2
plan --margin nll=0.05 --from five.npz --json
slices five.npz
slices two.npz --by site
slices five.npz --json
ood five.npz other.npz
ood five.npz other.npz --json
watch night.json five.npz --max ece=0.2
watch night.json other.npz --max ece=0.2
inspect five.npz
inspect two.csv
inspect map.safetensors
inspect model.pt
inspect five.npz --json
list
list metrics
list methods
list losses --json
list ece
list nothing
export map.safetensors --to json --save exported.json
export platt.safetensors --to torchscript --save exported.pt
export map.safetensors --to card --save card.md --data more.npz
verify exported.json --with map.safetensors --data five.npz
curvature model.pt -w lambda_max --subset 64
curvature model.pt -w trace --subset 64 --json
curvature model.pt -w grad_norm --loss focal:gamma=2 --subset 64
curvature model.pt --quantity nothing
logits model.pt --data digits.npz#test --save logits.npz
metrics logits.npz -m ece
fit mlp:hidden=8 --data digits.npz --epochs 1 --save run
fit mlp:hidden=8 --data digits.npz --loss focal:gamma=2 --epochs 1 --json
report written.json
study --help
--version
metrics --help
help scale
completion bash
""".strip().splitlines()


def scores(k: int, seed: int) -> tuple[Any, Any]:
    """Return logits (N, K) of an overconfident model and labels (N,)."""
    rng = np.random.default_rng([seed, k])
    truth = rng.normal(size=(N, k))
    p = np.exp(truth) / np.exp(truth).sum(1, keepdims=True)
    labels = (p.cumsum(1) < rng.random((N, 1))).sum(1)
    return 1.5 * truth + 0.3 * rng.normal(size=(N, k)), labels


def draws() -> dict[str, dict[str, Any]]:
    """Return the keyword arguments of each way in which rows can be drawn."""
    rng = np.random.default_rng(7)
    weights, counts = rng.gamma(2, 0.5, N) + 0.1, rng.integers(1, 5, N)
    groups = rng.integers(0, 40, N)
    return {
        "plain": {},
        "weighted": {"weights": weights},
        "counted": {"weights": counts, "weight_kind": "count"},
        "grouped": {"group": groups},
        "weighted and grouped": {"weights": weights, "group": groups},
    }


def estimates() -> dict[str, Any]:
    """Measure every metric by itself, on each kind of rows; an error counts as an answer."""
    answers: dict[str, Any] = {}
    for k, metric, (drawn, given) in itertools.product((2, 5), METRICS.entries, draws().items()):
        z, y = scores(k, 1)
        try:
            found: Any = calibcli.measure(z, y, metric, **given)
            answer = [fields(e) for e in found.estimates]
        except CalibError as error:
            answer = [str(error)]
        answers[f"{metric}, {k} classes, {drawn}"] = answer
    return answers


def fields(estimate: Any) -> dict[str, Any]:
    """Return the fields of an estimate with numbers written to the last bit."""
    return {
        name: value.hex()
        if isinstance(value, float)
        else repr(value)
        if not isinstance(value, dict)
        else {key: v.hex() if isinstance(v, float) else repr(v) for key, v in value.items()}
        for name, value in vars(estimate).items()
        if name != "where"  # the parts of `scope`, which is compared
    }


def files() -> None:
    """Write the files of the commands into the current folder."""
    rng = np.random.default_rng(3)
    for name, k, seed in (("two", 2, 1), ("five", 5, 1), ("more", 5, 1), ("other", 5, 4)):
        z, y = scores(k, seed)
        z = 0.8 * z if name == "more" else z
        about = {"site": np.array(["east", "west"])[rng.integers(0, 2, N)], "group": rng.integers(0, 40, N)}
        np.savez(f"{name}.npz", logits=z, labels=y, weight=rng.gamma(2, 0.5, N) + 0.1, **about)
        p = np.exp(z) / np.exp(z).sum(1, keepdims=True)
        rows = [",".join([*(f"p_{c}" for c in range(k)), "label", "site"])]
        rows += [",".join([*(f"{v:.9f}" for v in row), str(c), s]) for row, c, s in zip(p, y, about["site"])]
        Path(f"{name}.csv").write_text("\n".join(rows) + "\n")
    z, y = scores(3, 2)
    p = 1 / (1 + np.exp(-z))
    np.savez("labels.npz", probs=p, labels=(p > rng.random((N, 3))).astype(int))
    for name in ("model.pt", "digits.npz"):
        Path(name).write_bytes((SAMPLES / name).read_bytes())


def commands() -> dict[str, Any]:
    """Run every command of the list, in an empty folder."""
    answers: dict[str, Any] = {}
    with in_empty_folder():
        files()
        for number, line in enumerate(COMMANDS, 1):
            out, err = io.StringIO(), io.StringIO()
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                code = calib(line.split())
            answers[f"{number}: calib {line}"] = [code, *(plain(text.getvalue()) for text in (out, err))]
        for path in sorted(Path().rglob("*.json")):
            answers[f"written: {path}"] = plain(path.read_text())
    return answers


@contextlib.contextmanager
def in_empty_folder() -> Iterator[None]:
    before = os.getcwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            yield
        finally:
            os.chdir(before)


def plain(text: str) -> str:
    """Take out of a text what differs from run to run."""
    return VOLATILE.sub("~", re.sub(r"/tmp/tmp\w+", "FOLDER", text))


def differences(before: dict[str, Any], after: dict[str, Any]) -> Iterator[str]:
    """Describe each answer that is not what it was, with its first difference."""
    for name in [*before, *(name for name in after if name not in before)]:
        if name not in after or name not in before:
            yield f"{name}: {'no longer' if name in before else 'not before'}"
        elif before[name] != after[name]:
            lines = [
                json.dumps(answers[name], indent=0).replace("\\n", "\n").split("\n") for answers in (before, after)
            ]
            was, now = next((a, b) for a, b in itertools.zip_longest(*lines, fillvalue="(nothing)") if a != b)
            yield f"{name}\n    was: {was[:300]}\n    now: {now[:300]}"


def main() -> int:
    """Record the answers of this code, or compare them with recorded ones."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=("record", "compare"))
    parser.add_argument("file", type=Path)
    given = parser.parse_args()
    os.environ.update(COLUMNS="100", NO_COLOR="1", OMP_NUM_THREADS="1")
    answers = {"estimates": estimates(), "commands": commands()}
    count = f"{sum(map(len, answers['estimates'].values()))} estimates, {len(COMMANDS)} commands"
    if given.task == "record":
        given.file.write_text(json.dumps(answers, indent=1))
        print(f"recorded: {count}")
        return 0
    before = json.loads(given.file.read_text())
    found = [text for kind, now in answers.items() for text in differences(before[kind], now)]
    print(*found, f"{count}: {len(found)} answers differ", sep="\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
