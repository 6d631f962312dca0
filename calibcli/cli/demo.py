"""`calib demo`: a tour on sample data that come with the package."""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from calibcli.cli.run import takes
from calibcli.core.errors import Exit, UsageError
from calibcli.core.files import atomic, samples
from calibcli.core.options import option

PANEL = "Look up"
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
ANOTHER = "name another folder: --save DIR"
NEEDS_TORCH = ("curvature", "fit")


@takes
def command(
    *,
    save: Path = option(Path("calib-demo"), "Folder for the sample data and the results.", writes="folder"),
) -> int:
    """Take a tour: measure, fix, gate, curvature, training.

    Example: calib demo --save tour

    Every command is printed before it runs, so that it can be run again with other options. What an earlier demo wrote
    is written again; a folder of anything else is refused.
    """
    data = save / "sample_data"
    try:
        missing = _missing(save, data)
        data.mkdir(parents=True, exist_ok=True)
        for name in missing:
            with atomic(data / name) as temporary:
                shutil.copyfile(samples() / name, temporary)
    except OSError as error:
        raise UsageError(f"cannot fill {data} ({error.strerror})", ANOTHER) from None
    for line in TOUR.strip().splitlines():
        if code := _step([part.format(data, save) for part in line.split()]):
            return code
    print(f"\nfiles and pictures: {save}")
    return int(Exit.OK)


def _missing(save: Path, data: Path) -> list[str]:
    """Return the sample data that a folder lacks.

    Raises:
        UsageError: it holds something that no demo wrote: other data of these names, links, or files without the data.
    """
    results = [Path(part.format(data, save)) for part in TOUR.split() if part.startswith("{1}")]
    foreign = next((path for path in (data, *results) if path.is_symlink()), None)
    missing = []
    for name in SAMPLES:
        path = data / name
        if not os.path.lexists(path):
            missing.append(name)
        elif path.is_symlink() or not path.is_file() or path.read_bytes() != (samples() / name).read_bytes():
            foreign = foreign or path
    if foreign is not None:
        raise UsageError(f"{foreign} was not written by a demo, which would write over it", ANOTHER)
    if save.exists() and not (save.is_dir() and (not missing or {*os.listdir(save)} <= {data.name})):
        raise UsageError(f"{save} exists and is not the folder of a demo", ANOTHER)
    return missing


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
