"""The runs of a study, each claimed by one worker and kept; any beginning of their order is balanced."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
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

import numpy as np

from calibcli.core.errors import InputError, UsageError
from calibcli.core.files import atomic, guarding, samples, sha256
from calibcli.core.result import Result
from calibcli.lab.study.experiment import ALONG, POINTS, TRAIN, Arm, Study, differences
from calibcli.lab.training.batches import STANDARDISED, Parts
from calibcli.lab.training.fit import begin, changed, run_all
from calibcli.lab.training.options import Setup, Training
from calibcli.lab.training.recipes import CHANGES, relabelled
from calibcli.networks import curvature, inference
from calibcli.networks import device as devices
from calibcli.networks.dataset import synthetic
from calibcli.networks.user_code import NAMES_CODE

DATA = ("digits", "square")  # data sets that the package has
DRAWN = {"drawn-posts": lambda folder: synthetic.newsgroups(folder, posts=200), "drawn-trees": synthetic.sentiment}
"""Small corpora of texts in the layout of 20 Newsgroups and of the Stanford Treebank, drawn into a study's folder."""
ROWS = "rows.npz"
"""In the folder of a run: the terms (N,) of the rows that each number of curvature is the mean of."""
WEIGHTS = "model.safetensors"  # in the folder of a run, too
DIVERGED = ("the loss became", "the validation logits", "out of memory")  # beginnings of what ends a run, and no study
FORMAT = 1  # of a run: where it changes, runs are trained again
BEAT, STALE = 10.0, 60.0  # seconds between signs of life of a worker, and without one until its run is free
POLL = 0.5  # seconds between looks at the runs of other workers
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

    @property
    def source(self) -> StudyRun | None:
        """The run whose network this one changes; None where it trains one."""
        arm = self.arm
        return StudyRun(Arm(arm.source, arm.loss, arm.options), self.arch, self.seed) if arm.source else None


def runs(study: Study) -> list[StudyRun]:
    """List all arms on all networks with seed 0, then with seed 1, and so on: a stopped study is balanced."""
    return [StudyRun(arm, arch, seed) for seed in range(study.seeds) for arch in study.arch for arm in study.arms]


def rows(study: Study, part: str, save: Path) -> str:
    """Return the rows of a part as `calib fit` takes them."""
    named: str = getattr(study, part)
    name = named.partition("#")[0]
    path = sample(name) if name in DATA else drawn(name, save) if name in DRAWN else name
    return f"{path}{named.removeprefix(name)}"


def sample(name: str) -> Path:
    """Return the path of a file of the sample data.

    Raises:
        InputError: the package was installed without.
    """
    path = samples() / f"{name}.npz"
    if not path.is_file():
        raise InputError("the sample data are not installed", "pass --data PATH")
    return path


def drawn(name: str, save: Path) -> Path:
    """Draw the small corpus of a study; it is moved in place at once, so that no other worker reads a part of it."""
    folder = save / name
    if not folder.is_dir():
        with tempfile.TemporaryDirectory(dir=save) as aside:
            whole = DRAWN[name](Path(aside) / name)
            with contextlib.suppress(OSError):  # another worker was first
                whole.rename(folder)
    return folder


def content(study: Study, run: StudyRun) -> dict[str, Any]:
    """Return everything that decides the result of a run, as JSON data."""
    fields = {
        "format": FORMAT,
        **{part: _identity(getattr(study, part)) for part in ("train", "validation", "test")},
        **({"split": study.split} if study.split else {}),
        **({"embeddings": _identity(study.embeddings)} if study.embeddings else {}),
        "arch": run.arch,
        "seed": run.seed,
        "loss": run.arm.loss,
        **({"change": CHANGES.choose(run.arm.change).spec} if run.arm.change else {}),
        "options": {**study.options, **run.arm.options},
        "curvature": [study.curvature, study.losses],
        **{name: value for name, value in spacing(study, run).items() if name.startswith("curvature")},
    }
    plain: dict[str, Any] = json.loads(json.dumps(fields))
    return plain


def places(device: str, jobs: int) -> list[str]:
    """Assign a device to each of several workers: one GPU after the other, unless one is named.

    Raises:
        UsageError: no such device on this machine.
    """
    chosen = devices.pick(device)
    if chosen.type == "cpu" or ":" in device:
        return [str(chosen)] * jobs
    return [f"cuda:{number % devices.count()}" for number in range(jobs)]


def work(study: Study, save: Path, progress: Progress, until: float | None = None, wait: bool = True) -> None:
    """Train the runs that no other worker trains, until none is left or the time `until` (of `time.monotonic`).

    Args:
        wait: whether to wait for runs that others have begun, which are trained here should the others die.

    Raises:
        UsageError, InputError: a mistake that every run has.
    """
    todo = [(run, content(study, run)) for run in runs(study)]
    while left := [(run, fields) for run, fields in todo if not done(save, run, fields)]:
        trained = False
        for run, fields in left:
            if run.source and not record(save, run.source):
                continue  # it is made of that one
            if until is not None and time.monotonic() > until:
                return
            with claimed(save / run.folder) as free:
                if free and not done(save, run, fields):
                    trained = True
                    _train(study, run, fields, save, _within(progress, len(todo) - len(left), len(todo), run.words))
                    break
        if not (trained or wait):
            return
        if not trained:
            time.sleep(POLL)  # other workers have the remaining runs


def done(save: Path, run: StudyRun, fields: Mapping[str, Any]) -> bool:
    """Whether a run is finished, with weights or as diverged.

    Raises:
        UsageError: the folder holds the run of another study.
    """
    saved = record(save, run)
    if saved and (there := saved.get("is")) != fields:
        there = there if isinstance(there, dict) else {}
        problem = f"{save / run.folder} holds another run: {differences(there, fields, fields)}"
        raise UsageError(problem, "pass another --save folder, or remove that one")
    return bool(saved)


def record(save: Path, run: StudyRun) -> dict[str, Any]:
    """Read the record of a finished run; it is empty before."""
    try:
        saved = json.loads((save / run.folder / "run.json").read_text("utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise InputError(f"{save / run.folder / 'run.json'} cannot be read: {error}", "remove that folder") from None
    return saved if isinstance(saved, dict) else {}


def test_rows(saved: Mapping[str, Any]) -> tuple[str, int]:
    """Return the name of the published data set of a run and its number of test rows; "" and 0 if not recorded."""
    rows = saved.get("rows")
    count = rows.get("test") if isinstance(rows, dict) else None
    return str(saved.get("data", "")), count if isinstance(count, int) else 0


def judged(folder: Path) -> list[Path]:
    """List the files of a run that a report reads beside its record: no weights."""
    return sorted([*folder.glob("*.npz"), *folder.glob("log.jsonl")])


def verified(study: Study, save: Path) -> tuple[int, int]:
    """Compare the files of all finished runs with the digests in their records; return how many have them, and not.

    Raises:
        InputError: a file was changed or is missing.
    """
    counts = {True: 0, False: 0}
    for run in runs(study):
        if saved := record(save, run):
            digests = saved.get("sha256")
            counts[isinstance(digests, dict)] += 1
            for name, digest in digests.items() if isinstance(digests, dict) else ():
                path = save / run.folder / Path(name).name
                actual = sha256(path) if path.is_file() else ""
                if actual != digest:
                    problem = f"{path} {'was changed after its run was finished' if actual else 'is missing'}"
                    fix = "restore the file, or remove its folder and train that run again"
                    raise InputError(f"{problem}: {run.words} cannot be judged", fix)
    return counts[True], counts[False]


def logged(save: Path, run: StudyRun) -> list[dict[str, Any]]:
    """Read the log of a finished run, a line for each epoch.

    Raises:
        InputError: it cannot be read, or is empty.
    """
    path = save / run.folder / "log.jsonl"
    try:
        lines: list[dict[str, Any]] = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read: {error}", "remove that folder, and train it again") from None
    if not lines:
        raise InputError(f"{path} is empty", "remove that folder, and train it again")
    return lines


@contextlib.contextmanager
def claimed(folder: Path) -> Iterator[bool]:
    """Claim a folder for this worker; yields whether it got it.

    The claim is a file that only one worker can make, and that is touched while the worker runs. A worker that died
    (its process is gone, or on another machine it gave no sign for a minute) loses its claim. One whose process lives
    on this machine keeps it, however long it slept.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lock = folder / "run.lock"
    owner = json.dumps(
        {"host": socket.gethostname(), "pid": os.getpid(), "born": _born(os.getpid()), "token": secrets.token_hex(8)}
    )
    if not _make(lock, owner) and not (_taken_away(lock, _dead(lock)) and _make(lock, owner)):
        yield False
        return
    over = threading.Event()

    def beat() -> None:
        while not over.wait(BEAT):
            with contextlib.suppress(OSError, ValueError):
                if lock.read_text("utf-8") == owner:
                    os.utime(lock)

    threading.Thread(target=beat, daemon=True).start()
    try:
        yield True
    finally:
        over.set()
        _taken_away(lock, owner)


def spacing(study: Study, run: StudyRun) -> dict[str, int]:
    """Return the epochs between two evaluations of a run, and between two measurements of curvature where it logs one.

    Every moment of the log has both. There are no more of the first than the figure of the log shows, or else one after
    every epoch where a run may stop at any of them.
    """
    options: dict[str, Any] = {"epochs": Training.epochs, **study.options, **run.arm.options}
    epochs = options["epochs"]
    between = math.gcd(*(-(-moment * epochs // 100) for moment in study.moments)) or 1
    most = 1 if {"keep", "patience", "stop_nll"} & {*options} else max(1, epochs // POINTS)
    every = max(n for n in range(1, most + 1) if between % n == 0)
    curved = {"curvature_every": between, "curvature_rows": 0} if {*ALONG} & {*study.log} else {}
    return {"log_every": every, **curved}


def setup_of(study: Study, run: StudyRun, root: Path, **more: Any) -> Setup:
    """Return the options of `calib fit` that make a run; those in `more` say where and how it is kept."""
    return Setup(
        run.arch,
        rows(study, "train", root),
        validation=rows(study, "validation", root) or None,
        split=study.split or None,  # type: ignore[arg-type]  # checked there
        test=rows(study, "test", root),
        embeddings=study.embeddings or None,
        missing_classes=bool(study.masked),
        device=study.device,
        threads=study.threads,
        loss=run.arm.loss,
        seed=run.seed,
        **{**study.options, **run.arm.options, **spacing(study, run), **more},
    )


def opened(study: Study, save: Path) -> Parts:
    """Open the rows and build the networks of a study as its runs do, without training.

    Raises:
        UsageError, InputError: as a run would.
    """
    of_networks = {run.arch: run for run in reversed(runs(study))}
    with guarding():
        return [begin(setup_of(study, run, save))[1] for run in of_networks.values()][-1]


def _made(study: Study, run: StudyRun, save: Path, progress: Progress) -> dict[str, Any]:
    """Train a network, or go on with it, or change that of another run; return what the record says of it.

    Raises:
        InputError: the other network is not there, or cannot be changed so; and as `run_all`.
    """
    folder = save / run.folder
    resume = (folder / "state.pt").exists()
    setup = setup_of(study, run, save, save=folder, resume=resume, overwrite=not resume, progress=progress)
    weights = save / run.source.folder / WEIGHTS if run.source else None
    if weights and not weights.is_file():
        fix = "restore the file, or remove its folder and train that run again"
        raise InputError(f"{weights} is missing: {run.words} is made of it", fix)
    with guarding():
        notes: list[str] = []
        if weights:
            facts: Mapping[str, Any] = changed(setup, weights, run.arm.change)
        else:
            result = run_all(setup)
            facts, notes = result.facts, [note for note in result.notes if note == STANDARDISED]
    numbers = {name: facts["runs"][0][name] for name in TRAIN}
    return {**numbers, "data": facts.get("data", ""), "rows": facts["rows"], "notes": notes}


def _curvature(study: Study, run: StudyRun, save: Path, loss: str, terms: dict[str, Any]) -> Result:
    """Measure the curvature of a run on validation rows, or on test rows where there are none."""
    arch = run.arch if NAMES_CODE.fullmatch(run.arch.partition(",")[0]) else None
    named = rows(study, "validation", save) or rows(study, "test", save)
    weights: dict[str, Any] = {"arch": arch, "arch_file": None, "trust": False, "kind": None}
    network, data = curvature.opened(save / run.folder / WEIGHTS, named, **weights)
    data = relabelled(data, run.arm.change) if run.arm.change else data
    options: dict[str, Any] = {
        "seed": run.seed,
        "device": devices.pick(study.device),
        "dtype": devices.dtype("float32"),
    }
    asked, forward = study.curvature, inference.logits
    return curvature.measure(network.model, data, *asked, loss=loss, forward=forward, **options, terms=terms)


def _train(study: Study, run: StudyRun, fields: Mapping[str, Any], save: Path, progress: Progress) -> None:
    """Make the network of a run, and measure its curvature."""
    folder = save / run.folder
    outcome: dict[str, Any] = {"is": fields}
    begun = time.monotonic()
    try:
        if run.source and "why" in (other := record(save, run.source)):
            raise InputError(str(other["why"]), "train the network that is changed in another way")
        outcome |= {"status": "finished", **_made(study, run, save, progress)}
        of_rows: dict[str, Any] = {}
        for loss in study.losses if study.curvature else ():
            loss_spec = run.arm.loss.partition("+")[0] if loss == "train" else loss
            terms: dict[str, Any] = {}
            around = _curvature(study, run, save, loss_spec, terms)
            outcome |= {f"{quantity} of {loss}": around[quantity].value for quantity in study.curvature}
            of_rows |= {f"{quantity} of {loss}": of_quantity for quantity, of_quantity in terms.items()}
        if of_rows:
            with atomic(folder / ROWS) as temporary, temporary.open("wb") as file:
                np.savez(file, **of_rows)
    except InputError as error:
        if not error.problem.startswith(DIVERGED):
            raise
        outcome |= {"status": "diverged", "why": error.problem}
    outcome["seconds"] = round(time.monotonic() - begun, 2)  # of the process that ended it
    outcome["sha256"] = {path.name: sha256(path) for path in judged(folder)}
    with atomic(folder / "run.json") as temporary:
        temporary.write_text(json.dumps(outcome, indent=1, sort_keys=True, default=str) + "\n", "utf-8")
    (folder / "state.pt").unlink(missing_ok=True)


def _make(lock: Path, owner: str) -> bool:
    try:
        handle = os.open(lock, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
    except FileExistsError:
        return False
    with os.fdopen(handle, "w") as file:
        file.write(owner)
    return True


def _born(pid: int) -> str:
    """Return when a process of this machine began, in ticks since the machine did; "" where it is not known."""
    try:
        return Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()[19]
    except (OSError, ValueError, IndexError):
        return ""


def _dead(lock: Path) -> str | None:
    """Return the text of a lock whose worker is gone, or None."""
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
    """Remove the lock with the text `dead`, and return whether it was that one.

    A lock that another worker made in the meantime is put back.
    """
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


def _within(progress: Progress, number: int, count: int, words: str) -> Progress:
    return lambda fraction, text: progress((number + fraction) / count, f"{number + 1} of {count}: {words}, {text}")


def _slug(name: str) -> str:
    kept = "".join(c if c.isalnum() or c in "-_.=" else "-" for c in name)
    if kept == name and len(name) <= 200 and name.strip("."):
        return name
    return f"{kept[:60]}-{hashlib.sha256(name.encode()).hexdigest()[:6]}"
