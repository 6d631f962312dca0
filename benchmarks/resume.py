"""Runs of `calib curvature --save-state` that are killed at random moments: what they end with, lose and cost.

    python benchmarks/resume.py [--kills 20] [--seed 0] [--every 1]

Five networks take turns: λmax, trace, density, top and the values per layer, on one CPU thread. Each is measured in a
process of its own: plain; with a state; and with a state and SIGKILL at random moments, until one comes to its end.
A moment is uniform in the time that a whole run takes. It prints

- whether every JSON result that was resumed has the bytes of the plain one (but for the time that it was made at),
- the seconds of work that a kill lost: those since the last saved state,
- the CPU time with a state over that without, and that of a finished state that is asked again.

States are saved every `--every` seconds here, as runs are short. The command does so every 60, after the piece of work
that is on: what a kill loses there is at most 60 seconds and one piece, such as a product.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import _harness

NETWORKS = ("relu", "gelu", "resnet", "attention", "gru")
ASKED = ("lambda_max", "top:k=3", "trace", "density:steps=30")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--every", type=float, default=1.0, help="seconds between two states")
    parser.add_argument("--networks", nargs="*", default=NETWORKS, choices=NETWORKS)
    parser.add_argument("--worker", nargs=4, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        work(*args.worker)
        return
    print(json.dumps(compare(args.kills, args.seed, args.every, args.networks), indent=1))


def compare(kills: int, seed: int, every: float, networks: list[str] | tuple[str, ...] = NETWORKS) -> dict[str, object]:
    """Kill runs of each network so often in all, and compare."""
    moments, lost, ratios, again, same = random.Random(seed), [], [], [], 0
    with tempfile.TemporaryDirectory() as folder:
        for number, name in enumerate(networks):
            at = Path(folder) / name
            at.mkdir()
            plain, seconds, cpu = run(name, at / "plain.json", None, every)
            kept, _, with_state = run(name, at / "kept.json", at / "finished", every)
            answer, _, once_more = run(name, at / "again.json", at / "finished", every)
            assert kept == answer == plain, f"{name}: a state changes the result"
            ratios.append(with_state / cpu)
            again.append(once_more / cpu)
            share = kills // len(networks) + (number < kills % len(networks))
            while share:
                shutil.rmtree(at / "state", ignore_errors=True)
                killed, result = 0, None
                while result is None:
                    wait = moments.uniform(0, seconds) if killed < share else None
                    result, loss = killed_run(name, at / "killed.json", at / "state", every, wait)
                    killed += result is None
                    lost += [loss] if result is None else []
                share -= killed
                same += killed * (result == plain)
            print(f"{name}: {seconds:.0f} s a run, CPU {ratios[-1]:.3f} with a state", file=sys.stderr)
    return {
        "kills": len(lost),
        "same_bytes": same,
        "seconds_lost": [round(statistics.median(lost), 2), round(max(lost), 2)],
        "cpu_with_state": [round(ratio, 3) for ratio in ratios],
        "cpu_of_finished": [round(ratio, 3) for ratio in again],
        "machine": _harness.machine(),
    }


def started(name: str, out: Path, state: Path | None, every: float) -> subprocess.Popen[bytes]:
    command = [sys.executable, __file__, "--worker", name, str(out), str(state or ""), str(every)]
    return subprocess.Popen(command, stderr=subprocess.DEVNULL)


def run(name: str, out: Path, state: Path | None, every: float) -> tuple[str, float, float]:
    """Run to the end: the result, seconds, CPU seconds of the work (without imports)."""
    assert started(name, out, state, every).wait() == 0
    result, seconds, cpu = json.loads(out.read_text())
    return result, seconds, cpu


def killed_run(name: str, out: Path, state: Path, every: float, wait: float | None) -> tuple[str | None, float]:
    """Run, and kill after so many seconds of work: the result, or None and the seconds of work that are lost."""
    out.unlink(missing_ok=True)
    ready = out.with_suffix(".ready")
    ready.unlink(missing_ok=True)
    process = started(name, out, state, every)
    while wait is not None and not ready.exists() and process.poll() is None:
        time.sleep(0.05)
    began = time.time()
    try:
        process.wait(wait)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        saved = state / "state.json"
        return None, time.time() - max(began, saved.stat().st_mtime if saved.exists() else began)
    return json.loads(out.read_text())[0], 0.0


def work(name: str, out: str, state: str, every: str) -> None:
    """Measure one network, in a process of its own."""
    import torch

    import calibcli
    from calibcli.networks.curvature import saved_state

    torch.set_num_threads(1)
    saved_state.EVERY = float(every)
    model, inputs, labels = network(name)
    Path(out).with_suffix(".ready").touch()
    began, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF)
    result = calibcli.curvature(model, (inputs, labels), *ASKED, device="cpu", save_state=state or None)
    after = resource.getrusage(resource.RUSAGE_SELF)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    Path(out).write_text(json.dumps([result.to_json(), time.perf_counter() - began, cpu]))


def network(name: str):
    """Make a small network of the kind, with rows: ReLU, GELU, a residual network with batch norm, attention, a GRU."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    labels = torch.randint(0, 5, (600,))
    if name in ("relu", "gelu"):
        act = nn.ReLU if name == "relu" else nn.GELU
        layers = [nn.Linear(40, 200), act(), nn.Linear(200, 200), act(), nn.Linear(200, 5)]
        return nn.Sequential(*layers), torch.randn(300, 40), labels[:300]
    if name == "resnet":

        class Block(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.conv, self.norm = nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8)

            def forward(self, x):
                return x + torch.relu(self.norm(self.conv(x)))

        head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5)]
        return nn.Sequential(nn.Conv2d(3, 8, 3), Block(), Block(), *head), torch.randn(300, 3, 14, 14), labels[:300]
    if name == "attention":

        class Encoder(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.words = nn.Embedding(30, 16)
                self.layer = nn.TransformerEncoderLayer(16, 2, 32, 0.0, "gelu", batch_first=True)
                self.head = nn.Linear(16, 5)

            def forward(self, tokens):
                return self.head(self.layer(self.words(tokens)).mean(1))

        return Encoder(), torch.randint(0, 30, (200, 8)), labels[:200]

    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gru, self.head = nn.GRU(8, 16, batch_first=True), nn.Linear(16, 5)

        def forward(self, x):
            return self.head(self.gru(x)[0][:, -1])

    return Recurrent(), torch.randn(200, 6, 8), labels[:200]


if __name__ == "__main__":
    main()
