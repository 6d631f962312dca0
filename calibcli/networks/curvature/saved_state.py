"""The saved state of a run of `calib curvature`, from which one that was killed goes on and ends with the same bytes.

A run consists of pieces of work: Krylov products, passes over the rows, the probes of a cell of rows, norms of pairs.
Each is kept under a name of its own when it is done. A run that goes on takes the same steps again, and reads a piece
that is known instead of computing it. So whatever is decided on the way (whether a number has converged, how many
probes it takes) follows anew from the same numbers, and need not be saved.

    pieces.bin    one piece after the other: a line of JSON with its name, dtypes and shapes, then the bytes
    state.json    what the run is of, its plan, and how many bytes of pieces.bin count; it is replaced as a whole
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, BinaryIO, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from calibcli import __version__
from calibcli.core import validation
from calibcli.core.errors import CalibError, InputError, UsageError, first_line, refusing
from calibcli.core.files import alone, atomic, refuse_input
from calibcli.core.options import Range
from calibcli.networks import device as devices
from calibcli.networks.curvature import sharded
from calibcli.networks.curvature.loss import LogitLoss
from calibcli.networks.curvature.problem import CurvatureProblem
from calibcli.networks.dataset import Dataset

FILE, PIECES, LOCK = "state.json", "pieces.bin", ".calib-curvature.lock"
SCHEMA = 1
EVERY = 60.0  # seconds between two states
FIRST = 64  # rows whose inputs are hashed, as a whole data set may be too large for it
SAME_CODE = 1e-3  # relative difference of outputs up to which the code of model and loss is taken to be the same
DTYPES = {str(dtype)[6:]: dtype for dtype in (torch.float32, torch.float64, torch.int64)}
DAMAGED = (OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError)
T = TypeVar("T")


class Pieces:
    """Pieces of work that are done, by name. Without a state to save none are kept.

    Args:
        state: where they are kept.  name: what the names of all of these begin with.
    """

    def __init__(self, state: State | None = None, name: str = "") -> None:
        self.state, self.name = state, name

    def part(self, name: str) -> Pieces:
        """Return the pieces whose names begin with this one as well."""
        return Pieces(self.state, f"{self.name}{name} | ")

    def recall(self, name: str) -> list[Tensor] | None:
        """Return a piece, on the CPU; None if it is not known."""
        return self.state.read(self.name + name) if self.state else None

    def keep(self, name: str, tensors: Sequence[Tensor]) -> None:
        """Keep a piece that is done."""
        if self.state:
            self.state.write(self.name + name, tensors)

    def once(self, name: str, work: Callable[[], Sequence[Tensor]], carrier: object = None) -> list[Tensor]:
        """Return a piece, and do its work where it is not known.

        Args:
            name: of the piece.  work: makes it.
            carrier: an object whose numbers `CARRIED` the work changes: they are kept with the piece.
        """
        carried: Sequence[str] = getattr(carrier, "CARRIED", ())
        if (known := self.recall(name)) is not None:
            for attribute, number in zip(carried, known.pop().tolist() if carried else ()):
                setattr(carrier, attribute, type(getattr(carrier, attribute))(number))  # some are whole
            return known
        found = list(work())
        numbers = [torch.tensor([getattr(carrier, a) for a in carried], dtype=torch.float64)] if carried else []
        self.keep(name, [*found, *numbers])
        return found

    def once_made(self, kind: type[T], name: str, work: Callable[[], T], carrier: object = None) -> T:
        """Do the same for work that makes a dataclass whose fields are numbers and tensors with axes."""

        def tensors() -> list[Tensor]:
            values = vars(work()).values()
            return [v if isinstance(v, Tensor) else torch.from_numpy(np.asarray(v)) for v in values]

        return kind(*(t.item() if t.ndim == 0 else t for t in self.once(name, tensors, carrier)))


@dataclass
class Plan:
    """The options of the memory plan, and what came of them (see `MemoryPlan` and `CurvatureProblem`)."""

    memory: str
    batch_size: int
    micro: Annotated[int, Range(1, 4096)]
    rows: Annotated[int, Range(1, 4096)]
    keep: bool
    maps: bool | None


@dataclass
class Saved:
    """The content of state.json."""

    schema: int
    command: str
    identity: dict[str, Any]
    threads: Annotated[int, Range(1, 4096)]
    plan: Plan | None
    size: Annotated[int, Range(0, 1 << 60)]
    finished: bool


class State:
    """The state of one run in a folder.

    Args:
        folder: that holds it, or will.
        identity: what the result depends on, by name; each a number, a text, or a dict of them.
        memory, batch_size: the options of the memory plan.
        note: is told in words what was found.
    """

    def __init__(
        self,
        folder: Path,
        identity: Mapping[str, Any],
        note: Callable[[str], None],
        *,
        memory: str = "auto",
        batch_size: int = 0,
    ) -> None:
        self.folder, self.identity, self.note = folder, json.loads(json.dumps(identity)), note
        self.asked = memory, batch_size
        self.problem: CurvatureProblem | None = None  # once its plan is chosen
        self.plan: Plan | None = None
        self.threads = torch.get_num_threads()
        self.finished = False
        self.index: dict[str, tuple[int, list[tuple[str, list[int]]]]] = {}  # place, and dtypes and shapes
        self.size, self.saved_at, self.failed = 0, time.monotonic(), False
        self.file: BinaryIO

    @contextlib.contextmanager
    def opened(self) -> Iterator[State]:
        """Hold the folder, with the threads of the saved run; the state is saved at the end, whatever ends it.

        Raises:
            UsageError: the folder cannot be written, is in use, or belongs to something else.
            InputError: its files are damaged.
        """
        if devices.world() > 1:
            raise UsageError(f"--save-state is for one process, not {devices.world()}", "leave --save-state out")
        made, threads = not self.folder.exists(), torch.get_num_threads()
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            problem = f"cannot make the folder {self.folder} ({error.strerror})"
            raise UsageError(problem, "name another --save-state folder") from None
        try:
            with alone(self.folder / LOCK, "--save-state"):
                self._read()
                refuse_input(self.folder / PIECES)
                torch.set_num_threads(self.threads)
                self._write()
                with open(self.folder / PIECES, "r+b" if self.size else "w+b", buffering=0) as self.file:
                    try:
                        yield self
                    finally:
                        self.save()
                        if not self.size:  # nothing was done: other options may be tried
                            for path in (self.folder / PIECES, self.folder / FILE):
                                path.unlink(missing_ok=True)
        finally:
            torch.set_num_threads(threads)
            if made:
                with contextlib.suppress(OSError):  # it is not empty
                    self.folder.rmdir()

    @property
    def pieces(self) -> Pieces:
        """All pieces."""
        return Pieces(self)

    def go_on(self, problem: CurvatureProblem, losses: Sequence[LogitLoss]) -> None:
        """Take the saved memory plan, unless another was asked for, and refuse a model or loss whose code has changed.

        Raises:
            UsageError: what they give for the first rows is not what the saved run had.
        """
        self.problem = problem
        if (plan := self.plan) and (plan.memory, plan.batch_size) == self.asked:
            layout = replace(problem.layout, micro=plan.micro)
            problem.plan, problem.maps = replace(problem.plan, layout=layout, rows=plan.rows, keep=plan.keep), plan.maps
        elif plan:
            self.note("the memory plan is another one than before: numbers agree to rounding, not to the last bit")
        with torch.no_grad():
            z, labels = problem.logits(range(min(4, problem.layout.n)))
            here = [z.cpu(), *(loss(z, labels).double().cpu() for loss in losses)]
        for then, now in zip(self.pieces.once("outputs and losses of the first rows", lambda: here), here):
            if then.shape != now.shape or not torch.allclose(then, now, SAME_CODE, SAME_CODE * float(now.abs().max())):
                raise self._of_another("other code: the outputs of the model or the loss differ on the first rows")

    def read(self, name: str) -> list[Tensor] | None:
        """Return a piece, or None."""
        if name not in self.index:
            return None
        place, parts = self.index[name]
        self.file.seek(place)
        out = []
        for dtype, shape in parts:
            count = int(np.prod(shape))
            content = bytearray(count * DTYPES[dtype].itemsize)
            filled, view = 0, memoryview(content)
            while filled < len(content):  # one call reads at most 2 GiB
                filled += self.file.readinto(view[filled:]) or self._cut_off()  # type: ignore[attr-defined]
            out.append(
                torch.frombuffer(content, dtype=DTYPES[dtype]).view(shape)
                if count
                else torch.zeros(shape, dtype=DTYPES[dtype])
            )
        return out

    def write(self, name: str, tensors: Sequence[Tensor]) -> None:
        """Append a piece; save, where that is due. A run goes on without, where there is no room."""
        parts = [(str(tensor.dtype)[6:], list(tensor.shape)) for tensor in tensors]
        head = json.dumps([name, parts]).encode() + b"\n"
        with self._tolerant():
            self.file.seek(self.size)  # what follows is of a piece that was not finished
            for remaining in (memoryview(head), *map(_bytes, tensors)):
                while remaining:
                    remaining = remaining[self.file.write(remaining) :]
            place, self.size = self.size + len(head), self.file.tell()
            self.index[name] = place, parts
        if time.monotonic() - self.saved_at >= EVERY:
            self.save()

    def save(self) -> None:
        """Let all pieces so far count."""
        self.saved_at = time.monotonic()
        with self._tolerant():
            os.fsync(self.file.fileno())
            self._write()

    def _write(self) -> None:
        if self.problem is not None:
            plan, maps = self.problem.plan, self.problem.maps
            self.plan = Plan(*self.asked, plan.layout.micro, plan.rows, plan.keep, maps)
        saved = Saved(SCHEMA, "curvature", self.identity, self.threads, self.plan, self.size, self.finished)
        with atomic(self.folder / FILE) as temporary, open(temporary, "w") as file:
            json.dump(dataclasses.asdict(saved), file, indent=1)
            file.flush()
            os.fsync(file.fileno())

    @contextlib.contextmanager
    def _tolerant(self) -> Iterator[None]:
        """Go on where a state cannot be written: hours of work are worth more. The last one stays."""
        try:
            yield
        except (OSError, CalibError) as error:
            reason = error.problem if isinstance(error, CalibError) else error.strerror
            if not self.failed:
                self.note(f"the state in {self.folder} is not saved any more ({reason}); the run goes on")
            self.failed = True

    def _read(self) -> None:
        path, ours = self.folder / FILE, {LOCK}  # pieces come after it
        if not path.exists():
            foreign = [
                p.name for p in self.folder.iterdir() if p.name not in ours and not p.name.startswith(f".{FILE}")
            ]
            if foreign:
                problem = f"{self.folder} holds '{min(foreign)}', and no state of calib curvature"
                raise UsageError(problem, f"name a folder of its own: --save-state {self.folder / 'state'}")
            return
        fix = f"name another folder: {self._other}"
        with refusing(DAMAGED, lambda e: f"{path} is no state of calib curvature ({first_line(e)})", fix):
            content = json.loads(path.read_text())
        if not isinstance(content, dict) or (content.get("command"), content.get("schema")) != ("curvature", SCHEMA):
            raise InputError(f"{path} is no state of calib curvature that this version reads", fix)
        saved: Saved = validation.read(content, Saved, str(path), fix)
        if not saved.size:
            return
        if (versions := saved.identity.get("versions")) != self.identity["versions"]:
            of = " and ".join(f"{name} {version}" for name, version in dict(versions or {}).items())
            problem = f"{self.folder} holds the state of a run with {of or 'unknown versions'}"
            raise UsageError(problem, f"install these again, or begin another: {self._other}")
        if differing := differences(saved.identity, self.identity):
            raise self._of_another("; ".join(differing))
        with refusing(DAMAGED, lambda e: f"{self.folder / PIECES} is damaged ({first_line(e)})", fix):
            self._index(saved.size)
        self.plan, self.threads, self.size = saved.plan, saved.threads, saved.size
        if saved.finished:
            self.note(f"the run in {self.folder} had finished: its numbers are given again")
            return
        products = sum("| product " in name for name in self.index)
        others = f"{len(self.index) - products} other pieces of work are known"
        self.note(f"resumed at product {products + 1}: {products} and {others}, from {self.folder}")

    def _index(self, size: int) -> None:
        """Find the pieces in the bytes that count."""
        with open(self.folder / PIECES, "rb") as file:
            if file.seek(0, os.SEEK_END) < size:
                raise ValueError(f"{size} bytes should be there")
            place = 0
            while place < size:
                file.seek(place)
                name, parts = json.loads(file.readline(1 << 20))
                known = [(str(dtype), [int(axis) for axis in shape]) for dtype, shape in parts]
                self.index[str(name)] = file.tell(), known
                place = file.tell() + sum(DTYPES[dtype].itemsize * int(np.prod(shape)) for dtype, shape in known)
            if place != size:
                raise ValueError("a piece is cut off")

    def _cut_off(self) -> int:
        raise InputError(f"{self.folder / PIECES} is cut off", f"name another folder: {self._other}")

    @property
    def _other(self) -> str:
        return f"--save-state {self.folder.with_name(self.folder.name + '-2')}"

    def _of_another(self, differing: str) -> UsageError:
        problem = f"{self.folder} holds the state of another run ({differing})"
        return UsageError(problem, f"pass what that run was given, or begin another: {self._other}")


def _bytes(tensor: Tensor) -> memoryview:
    return memoryview(sharded.local(tensor).detach().cpu().contiguous().view(-1).view(torch.uint8).numpy())  # type: ignore[arg-type]


def differences(stored: Mapping[str, Any], current: Mapping[str, Any]) -> list[str]:
    """List what differs in two identities, in words: `seed: 0, not 1`."""
    found = []
    for name, one in current.items():
        other = stored.get(name)
        if isinstance(one, dict):
            found += differences(other if isinstance(other, dict) else {}, one)
        elif one != other:
            found.append(f"other {name}" if name in ("weights", "rows") else f"{name}: {other}, not {one}")
    return found


def identity(model: nn.Module, data: Dataset, options: Mapping[str, Any]) -> dict[str, Any]:
    """Say what a result depends on: weights and rows (as hashes), options, versions."""
    weights, rows = hashlib.sha256(), hashlib.sha256(repr((data.sha256, sorted(data.inputs))).encode())
    for name, tensor in model.state_dict().items():
        if not isinstance(tensor, Tensor):  # what a module keeps beside its tensors
            continue
        weights.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        weights.update(_bytes(tensor))
    for array in (data.rows, data.labels):
        rows.update(np.ascontiguousarray(array, np.int64).tobytes())
    inputs = data.batch(np.arange(min(FIRST, len(data))))[0]
    for tensor in inputs.values() if isinstance(inputs, dict) else [inputs]:
        rows.update(_bytes(tensor))
    versions = {"calib": __version__, "torch": torch.__version__}
    return {"weights": weights.hexdigest(), "rows": rows.hexdigest(), "options": dict(options), "versions": versions}
