"""The pictures of docs/figures.md, made by the commands that stand under them.

    python docs/figures.py            # writes docs/images/
    python docs/figures.py --check    # compares instead

The commands run in a folder of their own, in the order of the page. Of what they write, the pictures that the page
shows are kept, with a palette of 64 colours, which makes them a third as large; their metadata stay.
"""

from __future__ import annotations

import io
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image
from PIL.PngImagePlugin import PngInfo

HERE = Path(__file__).parent
ROOT = HERE.parent
PAGE = HERE / "figures.md"
DIFFERENCE = 3.0  # mean of the grey values, of 255, between two processors' drawings of one figure


def made(folder: Path) -> dict[str, Path]:
    """The pictures of the page by their links, after its commands have run in `folder`."""
    text = PAGE.read_text(encoding="utf-8")
    (folder / "images").mkdir()
    (folder / "sample_data").symlink_to(ROOT / "sample_data")
    shutil.copytree(HERE / "studies" / "posts", folder / "posts")
    for name, body in re.findall(r'```\w+ title="([\w.]+)"\n(.*?)```', text, re.S):
        (folder / name).write_text(body, encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    for line in "".join(re.findall(r"```sh\n(.*?)```", text, re.S)).splitlines():
        name, *words = shlex.split(line)
        argv = [sys.executable, *(["-m", "calibcli", *words, "-q"] if name == "calib" else words)]
        done = subprocess.run(argv, cwd=folder, env=environment, capture_output=True, text=True, check=False)
        if done.returncode not in (0, 1, 3):  # a gate may fail
            sys.exit(f"{line}\n{done.stderr}")
    return {link: folder / link for link in re.findall(r"!\[[^\]]*\]\(([^)]+)\)", text)}


def small(path: Path) -> bytes:
    """A picture with a palette and its metadata."""
    with Image.open(path) as picture:
        kept = PngInfo()
        for key, value in picture.text.items():  # type: ignore[attr-defined]
            kept.add_text(key, value)
        file = io.BytesIO()
        picture.convert("RGB").quantize(64, dither=Image.Dither.NONE).save(file, "PNG", pnginfo=kept, optimize=True)
    return file.getvalue()


def differs(path: Path, other: Path) -> str:
    """How the picture that was drawn differs from the one that is kept; "" if it does not."""
    with Image.open(path) as a, Image.open(other) as b:
        if a.size != b.size:
            return f"{a.size} pixels, {b.size} before"
        greys = [np.asarray(one.convert("RGB").convert("L"), float) for one in (a, b)]
    far = float(np.abs(greys[0] - greys[1]).mean())
    return f"grey values differ by {far:.1f}" if far > DIFFERENCE else ""


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        pictures = made(Path(name))
        for link, path in pictures.items():
            kept = HERE / link
            if "--check" not in sys.argv:
                kept.parent.mkdir(parents=True, exist_ok=True)
                kept.write_bytes(small(path))
            elif difference := differs(path, kept):
                sys.exit(f"{link}: {difference}; run `python docs/figures.py`")


if __name__ == "__main__":
    main()
