"""The networks of the papers: λmax at full width, trace at reduced width, `export`; each in a process of its own.

    python benchmarks/papers_networks.py [--only NAME ...] [--budget 600]

λmax of cross-entropy around drawn weights on 8 drawn rows at full width (residual at most 5 %); Hutchinson's trace on
the same rows at the width that is named; a checkpoint with a temperature in its last layer, written by `export` once
it agreed with the calibrator on these rows. One thread. What takes more CPU seconds than the budget is said to.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

import calibcli
from calibcli.architectures import build
from calibcli.errors import CalibError
from calibcli.inputs import checkpoint

ROWS = 8
NETWORKS = {  # full width, reduced width
    "text_cnn": ("text_cnn", "text_cnn:filters=16"),
    "tree_lstm": ("tree_lstm", "tree_lstm:dim=16"),
    "mobilenet": ("mobilenet", "mobilenet:width=0.25"),
    "vgg": ("vgg", "vgg:width=0.125"),
    "densenet": ("densenet", "densenet:width=0.25"),
    "resnet50": ("resnet50:init=default", "resnet50:init=default,width=0.125"),
    "resnet50-tiny": ("resnet50:stem=tiny,classes=200", "resnet50:stem=tiny,classes=200,width=0.125"),
    "wide_resnet": ("wide_resnet:depth=26,block=post", "wide_resnet:depth=26,block=post,widen=1"),
    "resnet110": ("resnet50:blocks=3/4/26/3,init=default", "resnet50:blocks=3/4/26/3,init=default,width=0.125"),
}


def rows(name: str) -> tuple[Tensor, Tensor]:
    """Drawn inputs in the shape of the paper's, and labels."""
    generator = torch.Generator().manual_seed(1)
    labels = torch.arange(ROWS) % 3
    if name == "text_cnn":
        return torch.randint(1, 20_000, (ROWS, 1000), generator=generator), labels
    if name == "tree_lstm":  # 20 words, joined from the left
        words = torch.randint(1, 25_000, (ROWS, 20), generator=generator)
        return torch.tensor([[w, *(n for v in rest for n in (v, -1))] for w, *rest in words.tolist()]), labels
    side = 64 if name.endswith("tiny") else 32
    return torch.randn(ROWS, 3, side, side, generator=generator), labels


def parameters(spec: str) -> int:
    with torch.device("meta"):
        return sum(p.numel() for p in build(spec).parameters())


def drawn(spec: str, name: str) -> nn.Module:
    """With batch norm's statistics of these rows: with the first ones deep networks say the same to every row."""
    torch.manual_seed(0)
    model = build(spec)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = 1.0
    with torch.no_grad():
        model(rows(name)[0])
    return model.eval()


def measured(spec: str, name: str, quantity: str) -> tuple[float, float, float]:
    """The value, how well it is known on these rows in percent, CPU seconds."""
    model = drawn(spec, name)
    begun = time.process_time()
    found = calibcli.curvature(model, rows(name), quantity, train_loss="none", device="cpu").estimates[0]
    assert found.value is not None, found.reason
    error = abs(float(found.detail.get("residual", found.detail.get("estimator_se"))) / found.value)  # 0: exact
    return found.value, 100 * error, time.process_time() - begun


def exported(spec: str, name: str) -> str:
    """What a checkpoint with a temperature of 2 says beside the calibrator, at full width."""
    model, (inputs, labels) = drawn(spec, name), rows(name)
    with torch.no_grad():
        logits = model(inputs).double()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        checkpoint.save(folder / "model.safetensors", model, {"architecture": spec})
        key = "inputs" if inputs.is_floating_point() else "tokens"
        np.savez(folder / "rows.npz", **{key: inputs.numpy(), "labels": labels.numpy()})
        scaler = calibcli.fit_scaler(logits.numpy(), labels.numpy(), "temperature")
        try:
            calibcli.export(
                scaler, "checkpoint", save=folder / "out.safetensors", model=folder / "model.safetensors",
                data=str(folder / "rows.npz"),
            )  # fmt: skip
        except CalibError as error:
            return f"refused: {error.problem}"
        return "agrees"


def told(spec: str, name: str, quantity: str) -> str:
    """A value with its error on these rows and its CPU seconds, as two cells; or why there is none."""
    try:
        value, error, seconds = measured(spec, name, quantity)
    except CalibError as problem:
        return f"refused: {problem.problem} | "
    return f"{value:.4g} ± {error:.2g} % | {seconds:.0f}"


def one(name: str) -> None:
    full, reduced = NETWORKS[name]
    sharpest = told(full, name, "lambda_max:tol=0.05")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    cells = [f"`{full}`", f"{parameters(full):,}", sharpest, f"{peak:.1f}", told(reduced, name, "trace")]
    print(f"| {' | '.join([*cells, f'`{reduced}`', exported(full, name)])} |")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument("--budget", type=int, default=600)
    parser.add_argument("--inner", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.inner:
        resource.setrlimit(resource.RLIMIT_CPU, (args.budget, args.budget))
        one(args.only[0])
        raise SystemExit
    heads = "network | parameters | λmax of 8 rows, residual | CPU s | peak GiB | trace | CPU s | at width | export"
    print(f"| {heads} |\n{'|---' * 9}|", flush=True)
    for each in args.only:
        line = [sys.executable, __file__, "--inner", "--only", each, "--budget", str(args.budget)]
        done = subprocess.run(line, capture_output=True, text=True, check=False)
        if done.returncode and done.stderr:
            raise SystemExit(done.stderr)
        late = f"| `{NETWORKS[each][0]}` | {parameters(NETWORKS[each][0]):,} | not in {args.budget} CPU s |||||||\n"
        print(late if done.returncode else done.stdout, end="", flush=True)
