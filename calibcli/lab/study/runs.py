"""The runs of a study, in an order of which any beginning is balanced; each is claimed by one worker and kept."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from calibcli.core.errors import InputError, UsageError, printable
from calibcli.core.files import atomic, guarding, samples, sha256
from calibcli.lab.study.experiment import TRAIN, Arm, Study
from calibcli.lab.training.fit import run_all
from calibcli.lab.training.options import Setup
from calibcli.networks import device as devices
from calibcli.networks.curvature import curvature
from calibcli.networks.dataset import synthetic
from calibcli.networks.user_code import NAMES_CODE

DATA = ("digits", "square")  # that travel with the package
DRAWN = {"drawn-posts": lambda folder: synthetic.newsgroups(folder, posts=200), "drawn-trees": synthetic.sentiment}
"""Small corpora of texts in the layout of 20 Newsgroups and of the Stanford Treebank, drawn into a study's folder."""
FORMAT = 1  # of a run: a change of it trains again
BEAT, STALE = 10.0, 60.0  # seconds between signs of life of a worker, and without one until its run is free
POLL = 0.5
Progress = Callable[[float, str], None]


@dataclass(frozen=True)
class StudyRun:
    """One training: an arm, a network, a seed."""

    arm: Arm
    arch: str
    seed: int

    @property
    def folder(self) -> Path:
        return Path("runs") / _slug(self.arm.name) / _slug(self.arch) / f"seed-{self.seed}"

    @property
    def words(self) -> str:
        return f"{self.arm.name}, {self.arch}, seed {self.seed}"


def runs(study: Study) -> list[StudyRun]:
    """All arms on all networks with seed 0, then with seed 1, and so on: a study that was stopped is balanced."""
    return [StudyRun(arm, arch, seed) for seed in range(study.seeds) for arch in study.arch for arm in study.arms]


def rows(study: Study, part: str, save: Path) -> str:
    """The rows of a part as `calib fit` takes them."""
    named: str = getattr(study, part)
    name = named.partition("#")[0]
    found = sample(name) if name in DATA else drawn(name, save) if name in DRAWN else name
    return f"{found}{named.removeprefix(name)}"


def sample(name: str) -> Path:
    """A file of the sample data.

    Raises:
        InputError: the package was installed without.
    """
    path = samples() / f"{name}.npz"
    if not path.is_file():
        raise InputError("the sample data are not installed", "pass --data PATH")
    return path


def drawn(name: str, save: Path) -> Path:
    """The small corpus of a study, in place at once, so that no other worker reads a part of it."""
    folder = save / name
    if not folder.is_dir():
        with tempfile.TemporaryDirectory(dir=save) as aside:
            whole = DRAWN[name](Path(aside) / name)
            with contextlib.suppress(OSError):  # another worker was first
                whole.rename(folder)
    return folder


def content(study: Study, run: StudyRun) -> dict[str, Any]:
    """Everything that decides what a run computes, as JSON has it."""
    found = {
        "format": FORMAT,
        **{part: _identity(getattr(study, part)) for part in ("train", "validation", "test")},
        **({"split": study.split} if study.split else {}),
        **({"embeddings": _identity(study.embeddings)} if study.embeddings else {}),
        "arch": run.arch,
        "seed": run.seed,
        "loss": run.arm.loss,
        "options": {**study.options, **run.arm.options},
        "curvature": [study.curvature, study.losses],
    }
    plain: dict[str, Any] = json.loads(json.dumps(found))
    return plain


def places(device: str, jobs: int) -> list[str]:
    """Where each of several workers runs: one GPU after the other, unless one is named.

    Raises:
        UsageError: no such device on this machine.
    """
    found = devices.pick(device)
    if found.type == "cpu" or ":" in device:
        return [str(found)] * jobs
    return [f"cuda:{number % devices.count()}" for number in range(jobs)]


def work(study: Study, save: Path, progress: Progress, until: float | None = None, wait: bool = True) -> None:
    """Do what no other worker does until nothing is left, or the time `until` (of `time.monotonic`) has come.

    Args:
        wait: for what others have begun, which is done here should they die.

    Raises:
        UsageError, InputError: what every run would be refused for.
    """
    todo = [(run, content(study, run)) for run in runs(study)]
    while left := [(run, what) for run, what in todo if not done(save, run, what)]:
        mine = False
        for run, what in left:
            if until is not None and time.monotonic() > until:
                return
            with claimed(save / run.folder) as free:
                if free and not done(save, run, what):
                    mine = True
                    _one(study, run, what, save, _within(progress, len(todo) - len(left), len(todo), run.words))
                    break
        if not (mine or wait):
            return
        if not mine:
            time.sleep(POLL)  # the rest is with others


def done(save: Path, run: StudyRun, what: Mapping[str, Any]) -> bool:
    """Whether a run is finished, be it with weights or as diverged.

    Raises:
        UsageError: the folder holds the run of another study.
    """
    found = record(save, run)
    if found and found.get("is") != what:
        raise UsageError(
            f"{save / run.folder} holds another run: {_differing(found.get('is'), what)}",
            "pass another --save folder, or remove that one",
        )
    return bool(found)


def record(save: Path, run: StudyRun) -> dict[str, Any]:
    """What is known of a finished run; empty before."""
    try:
        found = json.loads((save / run.folder / "run.json").read_text("utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise InputError(f"{save / run.folder / 'run.json'} cannot be read: {error}", "remove that folder") from None
    return found if isinstance(found, dict) else {}


def logged(save: Path, run: StudyRun) -> list[dict[str, Any]]:
    """The log of a finished run, a line for each epoch."""
    text = (save / run.folder / "log.jsonl").read_text("utf-8")
    return [json.loads(line) for line in text.splitlines()]


@contextlib.contextmanager
def claimed(folder: Path) -> Iterator[bool]:
    """Whether this worker has the folder for itself: by a file that only one can make, touched while it works.

    A worker that died (its process is gone, or on another machine it gave no sign for a minute) loses its claim. One
    whose process lives on this machine keeps it, however long it slept.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lock = folder / "run.lock"
    own = json.dumps(
        {"host": socket.gethostname(), "pid": os.getpid(), "born": _born(os.getpid()), "token": secrets.token_hex(8)}
    )
    if not _make(lock, own) and not (_taken_away(lock, _dead(lock)) and _make(lock, own)):
        yield False
        return
    over = threading.Event()

    def beat() -> None:
        while not over.wait(BEAT):
            with contextlib.suppress(OSError, ValueError):
                if lock.read_text("utf-8") == own:
                    os.utime(lock)

    threading.Thread(target=beat, daemon=True).start()
    try:
        yield True
    finally:
        over.set()
        _taken_away(lock, own)


def _one(study: Study, run: StudyRun, what: Mapping[str, Any], save: Path, progress: Progress) -> None:
    """Train a run, or go on with it, and measure its curvature."""
    folder = save / run.folder
    found: dict[str, Any] = {"is": what}
    begun = time.monotonic()
    try:
        setup = Setup(
            run.arch,
            rows(study, "train", save),
            validation=rows(study, "validation", save) or None,
            split=study.split or None,  # type: ignore[arg-type]  # checked there
            test=rows(study, "test", save),
            embeddings=study.embeddings or None,
            missing_classes=bool(study.masked),
            device=study.device,
            threads=study.threads,
            loss=run.arm.loss,
            seed=run.seed,
            save=folder,
            resume=(folder / "state.pt").exists(),
            overwrite=not (folder / "state.pt").exists(),
            progress=progress,
            **{**study.options, **run.arm.options},
        )
        with guarding():
            result = run_all(setup)
        told = result.facts["runs"][0]
        found |= {"status": "finished", **{name: told[name] for name in TRAIN}}
        for loss in study.losses if study.curvature else ():
            about = run.arm.loss.partition("+")[0] if loss == "train" else loss
            around = curvature(
                folder / "model.safetensors",
                rows(study, "validation", save) or rows(study, "test", save),
                *study.curvature,
                loss=about,
                arch=run.arch if NAMES_CODE.fullmatch(run.arch.partition(",")[0]) else None,
                seed=run.seed,
                device=study.device,
            )
            found |= {f"{what} of {loss}": around[what].value for what in study.curvature}
    except InputError as error:
        if not error.problem.startswith(("the loss became", "the validation logits", "out of memory")):
            raise
        found |= {"status": "diverged", "why": error.problem}
    found["seconds"] = round(time.monotonic() - begun, 2)  # of the process that ended it
    with atomic(folder / "run.json") as temporary:
        temporary.write_text(json.dumps(found, indent=1, sort_keys=True, default=str) + "\n", "utf-8")
    (folder / "state.pt").unlink(missing_ok=True)


def _make(lock: Path, own: str) -> bool:
    try:
        handle = os.open(lock, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
    except FileExistsError:
        return False
    with os.fdopen(handle, "w") as file:
        file.write(own)
    return True


def _born(pid: int) -> str:
    """When a process of this machine began, in ticks since it was started; "" where the system does not say."""
    try:
        return Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()[19]
    except (OSError, ValueError, IndexError):
        return ""


def _dead(lock: Path) -> str | None:
    """What a worker wrote that is gone, or None."""
    try:
        age, text = time.time() - lock.stat().st_mtime, lock.read_text("utf-8")
        owner = json.loads(text)
    except (OSError, ValueError):
        return None
    if owner.get("host") == socket.gethostname() and isinstance(owner.get("pid"), int):
        try:
            os.kill(owner["pid"], 0)
        except ProcessLookupError:
            return text
        except PermissionError:
            pass
        born = owner.get("born")
        return text if born and _born(owner["pid"]) not in (born, "") else None  # another process has that number now
    return text if age > STALE else None


def _taken_away(lock: Path, dead: str | None) -> bool:
    """Whether it was the file with the text `dead` that was moved; a live one's, made since, is put back."""
    if dead is None:
        return False
    with contextlib.suppress(OSError, ValueError):
        if lock.read_text("utf-8") != dead:
            return False
    aside = lock.with_name(f"{lock.name}.{socket.gethostname()}.{os.getpid()}")
    try:
        lock.rename(aside)
    except FileNotFoundError:
        return True
    ours = aside.read_text("utf-8") == dead
    if not ours:
        with contextlib.suppress(FileExistsError):
            os.link(aside, lock)
    aside.unlink()
    return ours


def _identity(named: str) -> dict[str, str]:
    name, _, part = named.partition("#")
    path = sample(name) if name in DATA else Path(name)
    return {"sha256": sha256(path) if path.is_file() else name, "part": part}


def _differing(found: Any, what: Mapping[str, Any]) -> str:
    """Every key that differs, with both values."""
    found = found if isinstance(found, dict) else {}
    pairs = [(name, found.get(name), what[name]) for name in what if found.get(name) != what[name]]
    return "; ".join(f"{name} {printable(str(a), 80)} there, {printable(str(b), 80)} here" for name, a, b in pairs)


def _within(progress: Progress, number: int, count: int, words: str) -> Progress:
    return lambda fraction, text: progress((number + fraction) / count, f"{number + 1} of {count}: {words}, {text}")


def _slug(name: str) -> str:
    kept = "".join(c if c.isalnum() or c in "-_.=" else "-" for c in name)
    if kept == name and len(name) <= 200 and name.strip("."):
        return name
    return f"{kept[:60]}-{hashlib.sha256(name.encode()).hexdigest()[:6]}"
