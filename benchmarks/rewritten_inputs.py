"""Inputs that are written to while they are read: what comes out, by format and by command.

    python benchmarks/rewritten_inputs.py                  300 moments each; --moments N, --seed S
    python benchmarks/rewritten_inputs.py csv merge        some of the formats and commands

A file of one model is written over with that of another before a random one of the reads of the command, in six ways by
turns: in place; from a random byte on; in place, with its old time set again; cut off; grown; by a new file of that
name. What comes out counts as `before` or `after` if numbers and digest are those of one of the files whole, as
`refused`, and else as `wrong`. Exit 1 if anything is.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import io
import itertools
import json
import os
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import calibcli
from calibcli.cli.app import main

N, K = 3_000, 3
FORMATS = (
    "npz",
    "packed.npz",
    "npy",
    "csv",
    "tsv",
    "csv.gz",
    "jsonl",
    "json",
    "safetensors",
    "pt",
    "parquet",
    "feather",
)
COMMANDS = ("metrics", "scale", "check", "merge", "watch", "logits")
WAYS = ("in place", "from a byte on", "old time", "cut off", "grown", "new file")


def rows(model: int, n: int = N) -> tuple[np.ndarray, np.ndarray]:
    """Scores (n, K) of a model, and labels (n,)."""
    rng = np.random.default_rng(model)
    z = rng.normal(size=(n, K)).round(4)
    y = np.array([rng.choice(K, p=p) for p in np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)])
    return z, y


def written(form: str, z: np.ndarray, y: np.ndarray) -> bytes:
    """The bytes of a file in a format; numbers take the same room in text, so that files differ in nothing else."""
    names = [*(f"logit_{k}" for k in range(K)), "label"]
    buffer, delimiter = io.BytesIO(), "\t" if form == "tsv" else ","
    if form in ("npz", "packed.npz"):
        (np.savez if form == "npz" else np.savez_compressed)(buffer, logits=z, labels=y)
    elif form == "npy":
        np.save(buffer, z)
    elif form in ("csv", "tsv", "csv.gz"):
        lines = [delimiter.join([*(f"{v:+.4f}" for v in row), str(label)]) for row, label in zip(z, y, strict=True)]
        text = "\n".join([delimiter.join(names), *lines, ""]).encode()
        if form == "csv.gz":
            import gzip

            text = gzip.compress(text, mtime=0)
        buffer.write(text)
    elif form == "jsonl":
        pairs = zip(z.tolist(), y.tolist(), strict=True)
        buffer.write("".join(json.dumps({"logits": row, "label": label}) + "\n" for row, label in pairs).encode())
    elif form == "json":
        buffer.write(json.dumps({"columns": names, "data": np.column_stack([z, y]).tolist()}).encode())
    elif form == "safetensors":
        from safetensors.numpy import save

        buffer.write(save({"logits": z, "labels": y}))
    elif form == "pt":
        import torch

        torch.save({"logits": torch.from_numpy(z), "labels": torch.from_numpy(y)}, buffer)
    else:
        import pyarrow
        from pyarrow import feather, parquet

        table = pyarrow.table({**{f"logit_{k}": z[:, k] for k in range(K)}, "label": y})
        (parquet.write_table if form == "parquet" else feather.write_feather)(table, buffer)
    return buffer.getvalue()


def state(z: np.ndarray, y: np.ndarray) -> bytes:
    """The state of a part, for `calib merge`."""
    calibcli.Accumulator().update(z, y).save("kept.npz")
    return Path("kept.npz").read_bytes()


def inputs_of_network(model: int, n: int) -> bytes:
    """Inputs and labels for `calib logits`."""
    z, y = rows(model, n)
    buffer = io.BytesIO()
    np.savez(buffer, inputs=z.astype(np.float32), labels=y)
    return buffer.getvalue()


def command(name: str, file: str) -> list[str]:
    """The command line of a format or command."""
    lines = {
        "scale": ["scale", file, "--method", "temperature"],
        "check": ["check", file, "--max", "ece=0.5"],
        "merge": ["merge", file],
        "watch": ["watch", "state.json", file, "--max", "ece=0.5"],
        "logits": [
            "logits",
            "model.pt",
            "--arch",
            f"mlp:inputs={K},hidden=8,classes={K}",
            "--data",
            file,
            "--save",
            "out.npz",
        ],
    }
    labels = ["--labels", "labels.npy"] if name == "npy" else []
    return lines.get(name, ["metrics", file, *labels])


def run(argv: list[str]) -> tuple[int, Any, str]:
    """Run a command; return its exit code, its numbers, and the digest that it gives the file."""
    for left in ("state.json", "out.npz"):
        Path(left).unlink(missing_ok=True)
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(said := io.StringIO()):
        code = main([*argv, "--format", "json", "-q"])
    if code == 70:
        print(said.getvalue(), file=sys.stderr)
    try:
        result = json.loads(out.getvalue())
    except ValueError:
        return code, None, ""
    numbers: Any = [(e["name"], e["value"]) for e in result["estimates"]]
    if argv[0] == "logits":
        with np.load("out.npz") as saved:
            numbers = hashlib.sha256(saved["logits"].tobytes()).hexdigest()
    if argv[0] == "watch":
        return code, numbers, str(json.loads(Path("state.json").read_text())["batches"][0])
    files = {file["path"]: file.get("sha256", "") for file in result["provenance"]["inputs"]}
    return code, numbers, next((digest for path, digest in files.items() if path.startswith("rows.")), "")


class Reads:
    """Counts the reads of a command, and calls `write` before one of them."""

    def __init__(self) -> None:
        self.count, self.at, self.write = itertools.count(), -1, lambda: None
        for name in ("pread", "preadv"):
            setattr(os, name, functools.partial(self.read, getattr(os, name)))

    def read(self, plain: Callable[..., Any], *args: Any) -> Any:
        """Read as `plain` does."""
        if next(self.count) == self.at:
            self.write()
        return plain(*args)

    def begin(self, at: int, write: Callable[[], None]) -> None:
        """Count from 0 again."""
        self.count, self.at, self.write = itertools.count(), at, write


def write(way: str, file: str, data: bytes, start: int) -> None:
    """Write over a file in one of `WAYS`."""
    status = os.stat(file)
    if way == "new file":
        Path("new").write_bytes(data)
        os.replace("new", file)
        return
    start = start if way == "from a byte on" else 0
    with open(file, "r+b") as stream:
        stream.seek(start)
        stream.write(data[start:])
        stream.truncate()
    if way == "old time":
        os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))


def measured(name: str, moments: int, seed: int, reads: Reads) -> Counter[str]:
    """Count what comes out of a format or a command."""
    form = name if name in FORMATS else "npz"
    file, make = f"rows.{form}", contents(name, form)
    argv, known = command(name, file), {}
    np.save("labels.npy", rows(0)[1])
    files = {(model, n): make(model, n) for model, n in ((0, N), (1, N), (1, N // 2))}
    if name == "npy":  # its labels lie in a file that stays
        del files[1, N // 2]
    for key, data in files.items():
        Path(file).write_bytes(data)
        reads.begin(-1, lambda: None)
        code, numbers, digest = run(argv)
        assert numbers is not None, (name, code)
        assert name == "watch" or digest == hashlib.sha256(data).hexdigest(), name  # a state has one of its rows
        known[key] = (numbers, digest)
    total, counts, draw = next(reads.count), Counter[str](), random.Random(seed)
    for i in range(moments):
        way = WAYS[i % len(WAYS)]
        first, last = (0, N), (1, N // 2 if way == "cut off" and name != "npy" else N)
        if way == "grown" and name != "npy":
            first, last = (1, N // 2), (0, N)
        Path(file).unlink()
        Path(file).write_bytes(files[first])
        start = draw.randrange(len(files[first]))
        reads.begin(draw.randrange(total + 1), functools.partial(write, way, file, files[last], start))
        code, numbers, digest = run(argv)
        if code in (2, 4, 70):
            counts["refused" if code == 4 else f"exit {code}"] += 1
        else:
            found = (numbers, digest)
            if found == known[first]:
                counts["before"] += 1
            else:  # it was written before it was opened: what lies there now, which may be a part of each
                reads.begin(-1, lambda: None)
                counts["after" if found == run(argv)[1:] else "wrong"] += 1
    return counts


def contents(name: str, form: str) -> Callable[[int, int], bytes]:
    """Return a function of model and rows that makes the bytes of the file that a command reads."""
    if name == "merge":
        return lambda model, n: state(*rows(model, n))
    if name == "logits":
        return inputs_of_network
    return lambda model, n: written(form, *rows(model, n))


def everything(names: list[str], moments: int, seed: int) -> int:
    """Print a line for each format and command."""
    bad, reads = 0, Reads()
    print(f"{'':12}{'before':>8}{'after':>8}{'refused':>9}{'wrong':>7}   seed {seed}, {moments} moments each")
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        with contextlib.suppress(ImportError):
            import torch

            from calibcli.networks.checkpoint.factory import build

            torch.manual_seed(0)
            torch.save(build(f"mlp:inputs={K},hidden=8,classes={K}").state_dict(), "model.pt")
        for name in names:
            try:
                counts = measured(name, moments, seed, reads)
            except ImportError as error:
                print(f"{name:12}{error.name} is not installed")
                continue
            others = "".join(f"   {key}: {count}" for key, count in counts.items() if key.startswith("exit"))
            shown = [counts[key] for key in ("before", "after", "refused", "wrong")]
            print(f"{name:12}{shown[0]:8}{shown[1]:8}{shown[2]:9}{shown[3]:7}{others}", flush=True)
            bad += counts["wrong"] + counts["exit 70"]
    return int(bad > 0)


if __name__ == "__main__":
    import argparse

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", choices=[*FORMATS, *COMMANDS, []], default=[])
    parser.add_argument("--moments", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    sys.exit(everything(given.names or [*FORMATS, *COMMANDS], given.moments, given.seed))
