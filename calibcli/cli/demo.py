"""`calib demo`: a tour on sample data that come with the package."""

from __future__ import annotations

import importlib.util
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from calibcli.cli.run import takes
from calibcli.core.errors import Exit, UsageError
from calibcli.core.files import samples
from calibcli.core.options import option

PANEL = "Inspect"
SAMPLES = ("digits.npz", "model.safetensors", "model.pt", "validation.npz", "test.npz", "calib.toml")
TOUR = """
metrics {0}/test.npz -o {1}/reliability.png -o {1}/reliability.svg -o {1}/metrics.json
scale {0}/validation.npz --test {0}/test.npz --method temperature --save {1}/temperature.safetensors
scale {0}/validation.npz --test {0}/test.npz --method focal-temperature --save {1}/focal.safetensors -o {1}/ridge.png
apply {1}/focal.safetensors {0}/test.npz --save {1}/calibrated.npz
check {1}/calibrated.npz --max ece=0.06 --min accuracy=0.85
curvature {0}/model.pt -w lambda_max -w trace -o {1}/curvature.png
fit {0}/model.pt --init fresh --save {1}/fit --overwrite -o {1}/fit.png --loss ce --loss focal:gamma=3 \
--loss ce+trace:weight=0.002 --epochs 40 --batch-size 20 --lr 0.1 --threads 1
"""
NEEDS_TORCH = ("curvature", "fit")


@takes
def command(
    *,
    save: Path = option(Path("calib-demo"), "Folder for the sample data and the results.", writes="folder"),
) -> int:
    """Measure, fix, gate, compute the curvature and train, on handwritten digits: a minute or two.

    Example: calib demo --save tour

    Every command is printed before it runs, so that it can be run again with other options.
    """
    data = save / "sample_data"
    if save.exists() and not (save.is_dir() and (data.is_dir() or not any(save.iterdir()))):
        raise UsageError(f"{save} exists and is not the folder of a demo", "name another folder: --save DIR")
    try:
        data.mkdir(parents=True, exist_ok=True)
        for name in SAMPLES:
            shutil.copyfile(samples() / name, data / name)
    except OSError as error:
        raise UsageError(f"cannot fill {data} ({error.strerror})", "name another folder: --save DIR") from None
    for line in TOUR.strip().splitlines():
        if code := _step([part.format(data, save) for part in line.split()]):
            return code
    print(f"\nfiles and pictures: {save}")
    return int(Exit.OK)


def _step(arguments: list[str]) -> int:
    """Print a command, run it in its own process, and return its exit code; 0 if the tour goes on."""
    if arguments[0] in NEEDS_TORCH and importlib.util.find_spec("torch") is None:
        print(f"\n(calib {arguments[0]} needs torch, which is not installed: left out)")
        return 0
    if importlib.util.find_spec("matplotlib") is None:
        pictures = [i for i, part in enumerate(arguments) if part.endswith((".png", ".svg"))]
        arguments = [part for i, part in enumerate(arguments) if i not in pictures and i + 1 not in pictures]
    bold, plain = ("\033[1m", "\033[0m") if sys.stdout.isatty() else ("", "")
    print(f"\n{bold}$ calib {shlex.join(arguments)}{plain}", flush=True)
    code = subprocess.run([sys.executable, "-P", "-m", "calibcli", *arguments], check=False).returncode
    if arguments[0] == "check" and code in (Exit.FAIL, Exit.INCONCLUSIVE):
        print(f"(exit code {code}: a gate that does not pass is not an error of the demo)")
        return 0
    return code
