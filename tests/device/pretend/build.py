"""Builds the library of the pretended devices from the C++ beside this file, once for each torch version and source."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
from pathlib import Path

HERE = Path(__file__).parent
CACHE = HERE.parents[2] / "build" / "pretend"


def torch_folder() -> Path:
    """Where torch is installed; it is not imported."""
    spec = importlib.util.find_spec("torch")
    assert spec is not None, "torch is not installed"
    assert spec.origin is not None
    return Path(spec.origin).parent


def version() -> str:
    """Of torch, with its build: `2.13.0+cpu`."""
    return re.search(r"__version__ = '([^']+)'", (torch_folder() / "version.py").read_text())[1]  # type: ignore[index]


def has_cuda() -> bool:
    """Whether this is a build of torch for CUDA."""
    return re.search(r"^cuda\b[^=]*= '", (torch_folder() / "version.py").read_text(), re.M) is not None


def compiler() -> str | None:
    """The C++ compiler: $CXX, g++ or clang++; None where there is none."""
    return next(filter(None, map(shutil.which, (os.environ.get("CXX", ""), "g++", "clang++"))), None)


def library() -> Path:
    """The built library; about a minute on one core where it is not there yet.

    Raises:
        RuntimeError: the compiler fails, or there is none.
    """
    sources = sorted([*HERE.glob("*.h"), *HERE.glob("*.cpp")])
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:12]
    target = CACHE / f"torch-{version()}-{digest}.so"
    if target.exists():
        return target
    found = compiler()
    if found is None:
        raise RuntimeError("there is no C++ compiler: install g++ or set CXX")
    CACHE.mkdir(parents=True, exist_ok=True)
    torch, partial = torch_folder(), target.with_suffix(f".{os.getpid()}")
    command = [found, "-std=c++20", "-O1", "-g0", "-fPIC", "-shared", "-o", str(partial), str(HERE / "pretend.cpp")]
    command += [f"-I{torch}/include", f"-I{torch}/include/torch/csrc/api/include"]
    command += [f"-L{torch}/lib", "-ltorch_cpu", "-lc10", f"-Wl,-rpath,{torch}/lib"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}\n{done.stderr[-4000:]}")
    partial.replace(target)
    return target
