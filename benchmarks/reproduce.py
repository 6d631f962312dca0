"""Train with the losses of a paper on real images, several seeds, and say which of its orderings hold.

    python benchmarks/reproduce.py --data DIR                     a short run for one CPU core (about 6 minutes)
    python benchmarks/reproduce.py --data DIR --full --device cuda    ResNet-20, 350 epochs, every loss of the shelf

DIR holds `cifar10_train_5000.npz` and `cifar10_test_1000.npz` (`images` (N, 32, 32, 3) uint8, `labels`): any images of
that form will do. Half of the training rows (--full: 4 of 5) are trained on, the others choose the temperature, and the
test rows judge. Runs are kept in --out and not repeated. The paper is Mukhoti et al. (2020): larger networks, 45,000
images.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path

import numpy as np
import torch

from calibcli import scalers
from calibcli.inputs import checkpoint, dataset
from calibcli.inputs.dataset import Dataset
from calibcli.metrics import measure
from calibcli.predictions import Predictions
from calibcli.training.data import Parts, standardised
from calibcli.training.one_model import Start, fit
from calibcli.training.recipe import Recipe
from calibcli.training.setup import Kept
from calibcli.training.split import Split

SHORT = ["ce", "brier", "mmce", "focal:gamma=3", "FLA-53"]
FULL = [
    *SHORT,
    *("label_smoothing", "focal:gamma=1", "focal:gamma=2", "FLS-531", "FLS-532", "FLA-532", "dual_focal:gamma=5"),
    "ce+trace:weight=0.01",
]
COLUMNS = ("error", "NLL", "NLL post", "ECE", "ECE post", "AdaECE", "AdaECE post", "MCE", "MCE post", "T", "train NLL")
# what the paper's tables show: (column, loss, loss), the first below the second
CLAIMS = [
    ("ECE", "focal:gamma=3", "ce"),
    ("ECE", "FLA-53", "ce"),
    ("ECE", "FLA-53", "brier"),
    ("ECE", "FLA-53", "mmce"),
    ("AdaECE", "FLA-53", "ce"),
    ("NLL", "focal:gamma=3", "ce"),
    ("NLL", "FLA-53", "ce"),
    ("T", "focal:gamma=3", "ce"),
    ("ECE post", "FLA-53", "ce"),
    ("ECE post", "focal:gamma=3", "ce"),
    ("NLL post", "FLA-53", "ce"),
    ("error", "FLA-53", "ce"),
]
Numbers = dict[str, float]


def halved(images: np.ndarray) -> np.ndarray:
    """Means of 2x2 pixels, as bytes."""
    n, h, w, c = images.shape
    return images.reshape(n, h // 2, 2, w // 2, 2, c).mean((2, 4)).round().astype(np.uint8)


def rows(folder: Path, out: Path, small: bool) -> Parts:
    """The data, halved in size for the short run."""
    opened: list[Dataset] = []
    for name in ("cifar10_train_5000", "cifar10_test_1000"):
        path = out / f"{name}.npz"
        if not path.exists():  # its bytes name the data, and runs that are continued compare them
            with np.load(folder / f"{name}.npz") as found:
                images, labels = found["images"], found["labels"]
            np.savez(path, images=halved(images) if small else images, labels=labels)
        opened.append(dataset.load(path))
    kept, held = Split("stratified", 0, 0.5 if small else 0.2)(opened[0].labels)
    train = standardised(opened[0].select(kept))
    options = {"mean": train.preprocess.mean, "std": train.preprocess.std}
    whole, test = (dataset.load(d.source, **options) for d in opened)
    return Parts(whole.select(kept), whole.select(held), test, 10)


def one(loss: str, seed: int, parts: Parts, args: argparse.Namespace, out: Path) -> Numbers:
    """Train, or read what an earlier call trained, and measure."""
    torch.manual_seed(seed)
    model = checkpoint.build(args.arch)
    recipe = Recipe(
        loss=loss,
        epochs=args.epochs,
        batch_size=args.batch,
        lr=args.lr,
        optimizer=f"sgd:weight_decay={args.weight_decay}",
        schedule=args.schedule,
        augment=args.augment,
        seed=seed,
    )
    folder = out / f"{loss.replace(':', '-').replace('+', '-')}-{seed}"
    folder.mkdir(exist_ok=True)
    fitted = fit(Start(model, args.arch, True), recipe, parts, Kept(resume=True), folder=folder, device=args.device)
    assert fitted.validation is not None
    assert fitted.test is not None
    scaler = scalers.fit("temperature", fitted.validation, report=False)
    t = scaler.estimates[0].value or 1.0
    after = scalers.apply(scaler.scaler, fitted.test)
    found = {"T": t, "train NLL": fitted.train["nll"]}
    for predictions, suffix in ((fitted.test, ""), (after, " post")):
        found |= {name + suffix: value for name, value in numbers(predictions).items()}
    return found


def numbers(predictions: Predictions) -> Numbers:
    values = {e.name: e.value or 0.0 for e in measure(predictions, ["accuracy", "nll", "ece", "adaece", "mce"])}
    named = {"NLL": "nll", "ECE": "ece", "AdaECE": "adaece", "MCE": "mce"}
    return {"error": 1 - values["accuracy"], **{column: values[name] for column, name in named.items()}}


def percent(column: str) -> float:
    return 1.0 if column.startswith("NLL") or column in ("T", "train NLL") else 100.0


def report(found: dict[str, list[Numbers]]) -> None:
    count = min(map(len, found.values()))
    print(f"Mean over {count} seeds ± their standard deviation; errors in percent; one temperature per run, by NLL.\n")
    print("| loss | " + " | ".join(COLUMNS) + " |")
    print("|---|" + "---|" * len(COLUMNS))
    for loss, runs in found.items():
        cells = []
        for column in COLUMNS:
            values = [percent(column) * run[column] for run in runs]
            spread = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
            cells.append(f"{statistics.mean(values):.2f}{spread}")
        print(f"| {loss} | " + " | ".join(cells) + " |")
    overfit = [r["train NLL"] < 0.05 and r["T"] > 1.3 for r in found["ce"]]
    if all(overfit):
        print("\nCross-entropy overfits in every run (training NLL < .05, T > 1.3), as the paper's networks do.")
    else:
        print(f"\nNOT REPRODUCED: cross-entropy overfits in {sum(overfit)} of {len(overfit)} runs only.")
    if count < 2:
        return
    print("\nThe paper's orderings: difference of the first and the second, mean over seeds with its 95 % t-interval.")
    print("It holds the spread of training, not of the 1,000 test rows, which all runs share.\n")
    print("| the paper has | difference | here |")
    print("|---|---|---|")
    quantile = {2: 12.71, 3: 4.303, 4: 3.182, 5: 2.776}.get(count, 2.5)
    for column, first, second in CLAIMS:
        if first in found and second in found:
            differences = [percent(column) * (a[column] - b[column]) for a, b in zip(found[first], found[second])]
            mean = statistics.mean(differences)
            half = quantile * statistics.stdev(differences) / len(differences) ** 0.5
            verdict = "holds" if mean + half < 0 else "reversed" if mean - half > 0 else "not decided"
            print(f"| {column}: {first} < {second} | {mean:.2f} [{mean - half:.2f}, {mean + half:.2f}] | {verdict} |")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder with the images; nothing is done without")
    parser.add_argument("--out", type=Path, default=Path("out/reproduce"))
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--losses", nargs="*")
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2])
    parser.add_argument("--device", type=torch.device, default=torch.device("cpu"))
    parser.add_argument("--arch")
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--batch", type=int)
    parser.add_argument("--lr", type=float)
    parser.add_argument("--weight-decay", type=float)
    parser.add_argument("--augment")
    parser.add_argument("--schedule")
    args = parser.parse_args()
    if args.data is None or not (args.data / "cifar10_train_5000.npz").exists():
        print("skipped: pass --data DIR with cifar10_train_5000.npz and cifar10_test_1000.npz")
        return 0
    torch.set_num_threads(1)
    short = {"arch": "cnn:widths=32/64/128", "epochs": 24, "batch": 32, "lr": 0.05, "weight_decay": 1e-4}
    short |= {"augment": "", "schedule": "step:at=0.75/0.9"}
    full = {"arch": "resnet:depth=20", "epochs": 350, "batch": 128, "lr": 0.1, "weight_decay": 5e-4, "schedule": "step"}
    for name, value in {**short, **(full if args.full else {})}.items():
        if getattr(args, name) is None:
            setattr(args, name, value)
    args.out.mkdir(parents=True, exist_ok=True)
    parts = rows(args.data, args.out, small=not args.full)
    losses = args.losses or (FULL if args.full else SHORT)
    found = {loss: [one(loss, seed, parts, args, args.out) for seed in args.seeds] for loss in losses}
    size = "x".join(map(str, parts.train.shape[1:]))
    print(f"{args.arch}, {args.epochs} epochs, batch {args.batch}, SGD {args.lr:g}/momentum .9/weight decay ", end="")
    print(
        f"{args.weight_decay:g}, schedule {args.schedule}, augmentation: {args.augment or 'none'}; {size} images: ",
        end="",
    )
    print(", ".join(f"{len(data):,} {role}" for role, data in parts.items()) + "\n")
    report(found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
