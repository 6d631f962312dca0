"""Read and measure, from Python, all rows at once or in parts that are merged."""

from __future__ import annotations

import dataclasses
import inspect
import io
import os
import zipfile
import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar, Unpack, cast

import numpy as np
import numpy.typing as npt

from calibcli import headlines
from calibcli.core import extensions
from calibcli.core.errors import InputError, UsageError, check_keywords
from calibcli.core.files import atomic, guarding, known_suffix, reading
from calibcli.core.number_format import count_text
from calibcli.core.options import Drawn, exclusive
from calibcli.core.python_errors import in_python
from calibcli.core.result import Result
from calibcli.metrics.partial_states import MetricState, arrays_of, state_of
from calibcli.metrics.registry import METRICS, choose, needed_class_bins
from calibcli.scores import recorded_outputs, tasks
from calibcli.scores.files.arrays import load_any, read_all
from calibcli.scores.files.source import Source
from calibcli.scores.from_arrays import OF_FILES, How, checked, of_labels
from calibcli.scores.from_arrays import of_arrays as from_arrays
from calibcli.scores.from_arrays import of_confidence as from_confidence
from calibcli.scores.predictions import Predictions, Progress
from calibcli.scores.reading_options import Reading
from calibcli.scores.recorded_outputs import read

if TYPE_CHECKING:
    from calibcli.metrics.report import ReportOptions

__all__ = ["Accumulator", "from_arrays", "from_confidence", "measure", "read"]

Scores = Predictions | str | Path | Sequence[str | Path] | npt.ArrayLike
"""The scores that the functions of this package take: predictions, their file or files, or an array."""
F = TypeVar("F", bound=Callable[..., Any])


def spread(function: F, but: Collection[str] = ()) -> F:
    """Show the keywords of `How`, except `but`, instead of `**how` in `help`, editors and errors.

    Nothing else changes: the function gets the arguments as they are.
    """
    signature = inspect.signature(function)
    keyword = inspect.Parameter.KEYWORD_ONLY
    free = {name: kind for name, kind in How.__annotations__.items() if name not in {*signature.parameters, *but}}
    more = [inspect.Parameter(name, keyword, default=None, annotation=kind) for name, kind in free.items()]
    kept = [p for p in signature.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
    function.__signature__ = signature.replace(parameters=[*kept, *more])  # type: ignore[attr-defined]
    return function


from_arrays = spread(from_arrays, OF_FILES)


def is_path(scores: object) -> bool:
    """Whether this names a file, or several."""
    several = isinstance(scores, list | tuple) and bool(scores) and isinstance(scores[0], Path)
    return several or isinstance(scores, str | Path)


def given(
    function: Callable[..., Any],
    scores: Scores,
    labels: Any = None,
    how: How | None = None,
    progress: Progress | None = None,
    need_labels: bool = True,
    whole: bool = False,
    hashed: bool = True,
) -> Predictions:
    """Read what a function with `spread` keywords was given: predictions, a file, or arrays.

    Args:
        whole: the function takes all rows of one problem together.  hashed: compute the sha256 of files.

    Raises:
        InputError: a file or arrays are refused.
        UsageError: `by` or `multilabel` split the rows, and the function takes them as a whole.
        TypeError: labels are missing or superfluous, or a keyword is unknown.
    """
    how = how or {}
    name = function.__name__
    if how:
        check_keywords(how, inspect.signature(function).parameters, name)
    if whole:
        Reading(**cast(dict[str, Any], how)).whole(name)
    if isinstance(scores, Predictions):
        if labels is not None or how:
            raise TypeError(f"{name}(predictions) takes neither labels nor options of arrays: these are read already")
        return scores
    if is_path(scores):
        path = cast("str | Path | Sequence[str | Path]", scores)
        return read(path, progress=progress, need_labels=need_labels, hashed=hashed, labels=labels, **how)
    if labels is None and need_labels:
        raise TypeError(f"labels are missing: {name}(scores, labels)")
    return checked(cast(npt.ArrayLike, scores), labels, how, judged=name == "check")


def of_each_label(
    scores: Scores, labels: Any, how: How, progress: Progress | None = None, hashed: bool = True
) -> dict[str, Predictions]:
    """Read the predictions of each label of a multi-label problem, from a file or arrays (N, L).

    Raises:
        InputError: as `multilabel.read` and `of_labels`.
    """
    from calibcli.scores import from_arrays as multilabel  # here, as most rows have one label

    named: dict[str, Any] = {**how, "labels": labels}
    if is_path(scores):
        return multilabel.read(scores, progress=progress, hashed=hashed, **named)  # type: ignore[arg-type]
    return of_labels(scores, **{name: value for name, value in named.items() if name != "multilabel"})  # type: ignore[arg-type]


@spread
def measure(
    scores: Scores,
    /,
    labels: npt.ArrayLike | None = None,
    *specs: str,
    bins: int | None = None,
    edges: Literal["right", "left", "torchmetrics"] | None = None,
    level: float = 0.95,
    per_class: bool = False,
    top_k: int = 0,
    diagram: bool = False,
    curve: Drawn = "corp",
    judge: str | None = None,
    seed: int = 0,
    threads: int = 1,
    progress: Progress | None = None,
    **how: Unpack[How],
) -> Result:
    """Measure metrics with their uncertainty: the default set, or those named by their spec (in any spelling).

    >>> found = measure([[2.0, 0.0], [0.0, 1.0], [3.0, 0.0]], [0, 1, 1], "accuracy", "ece:bins=10")
    >>> round(found["accuracy"].value, 4), found["ece:bins=10"].n
    (0.6667, 3)

    Args:
        scores: (N, K) logits or probabilities, of float16 to float64, with `labels` (N,); or `Predictions`, or a file.
        labels: (N,) integers; for a file, the name of their array; for predictions, the first spec.
        specs: metric specs such as `ece:bins=30`; each says its source (`calib list metrics`).
        bins, edges: of metrics whose spec does not set them.  level: confidence level of the intervals.
        per_class: also report each class.  top_k: also report top-k calibration, for 2 up to this k.
        diagram: add the curve to the reliability diagram in `plots`; without it, the default set only has the
            accuracy per bin, and named specs have no diagram.
        curve: of the picture: the isotonic regression, accuracy per bin, or the smooth curve.
        judge: of a file, the column with verdicts of a judge on all rows, of which people labelled some at random.
        seed: of simulations.  threads: workers; 0 uses all cores.  progress: called with (fraction, text).
        how: see `from_arrays`, and for a file `read`; `by` also measures each slice.

    Returns:
        The estimates by spec; probabilities between 0 and 1, log losses in nats.

    Raises:
        InputError: arrays or a file are refused.  UsageError: a metric or option is unknown.
        TypeError: a keyword is unknown, or a spec is not a string.
    """
    from calibcli.metrics import report as reports  # here, as other functions start without it

    if isinstance(scores, Predictions) and isinstance(labels, str):
        specs, labels = (labels, *specs), None
    for spec in specs:
        if not isinstance(spec, str):
            raise TypeError(f"a metric is a text, not {type(spec).__name__}: measure(scores, labels, 'ece', 'nll')")
    options = reports.ReportOptions(
        specs=specs or None,
        bins=bins,
        edges=edges,
        level=level,
        per_class=per_class,
        top_k=top_k,
        diagram=diagram,
        curve=curve,
        seed=seed,
        threads=threads or None,
    )
    return measured(scores, labels, options, progress, how, judge=judge)


def measured(
    scores: Scores,
    labels: npt.ArrayLike | None,
    options: ReportOptions,
    progress: Progress | None,
    how: How,
    hashed: bool = True,
    judge: str | None = None,
) -> Result:
    """Measure as `measure` does, with options that are already checked.

    Raises:
        UsageError: `judge` with scores that are no file.
    """
    from calibcli.metrics import report as reports

    if judge:
        from calibcli.metrics import judged  # here, as few need it

        if not is_path(scores):
            raise UsageError(
                "judge= names a column, and these scores are no file", "save them with labels and verdicts"
            )
        rows = judged.read(scores, judge, how, cast("str | None", labels), progress=progress, hashed=hashed)
        result, first = judged.report(rows, options), rows.labelled
    elif how.get("multilabel") and not isinstance(scores, Predictions):
        parts = of_each_label(scores, labels, how, progress, hashed)
        result, first = reports.report_multilabel(parts, options, progress), next(iter(parts.values()))
    else:
        first = given(measure, scores, labels, how, progress, hashed=hashed)
        result = reports.report(first, options, progress)
    inputs = recorded_outputs.provenance(first)
    return headlines.headed(result, provenance={"inputs": inputs, "seed": options.seed})


# Metrics of rows that are never in one place: each part is measured where it is, and its state is merged.

SUFFIXES = (".npz",)
SOME, WORTH = 1 << 16, 0.85  # an array is compressed if this many of its bytes shrink to less than this fraction
# keywords of reading that hold for all parts
READING = ("kind", "classes", "event", "label_base", "ignore_label", "drop_nonfinite", "clip")


@dataclass(frozen=True)
class SeenIds:
    """Ids of rows that were added.

    Attributes:
        hashes: sorted arrays, of which each has at most half as many numbers as the one before.
        repeated: rows that were left out since their id was added before.
    """

    hashes: tuple[npt.NDArray[np.uint64], ...] = ()
    repeated: int = 0

    @property
    def note(self) -> str:
        """What a user should be told."""
        return f"{count_text(self.repeated, 'row')} with an id that was added before left out"

    def first_of(self, rows: Predictions, named: bool) -> tuple[Predictions, SeenIds, int]:
        """Return the rows whose id is new, the ids with theirs, and how many rows are left out.

        Args:
            named: whether an id names the same row everywhere, as one that was asked for; a file may number its rows.
        """
        if rows.ids is None or not (named or rows.record.format == "arrays"):
            return rows, self, 0
        from calibcli.gate.baseline import hashes as hashes_of

        every = hashes_of(np.asarray(rows.ids), "")
        first = np.zeros(rows.n, bool)
        first[np.unique(every, return_index=True)[1]] = True
        for seen in self.hashes:
            position = np.searchsorted(seen, every)
            first &= seen[np.minimum(position, len(seen) - 1)] != every
        left = rows.n - int(first.sum())
        return rows.take(first) if left else rows, self.with_hashes(every[first]), left

    def with_hashes(self, *more: npt.NDArray[np.uint64]) -> SeenIds:
        """Return these ids and others."""
        arrays = [*self.hashes]
        for hashes in filter(len, more):
            arrays.append(np.sort(hashes))
            while len(arrays) > 1 and 2 * len(arrays[-1]) > len(arrays[-2]):
                arrays[-2:] = [np.sort(np.concatenate(arrays[-2:]))]
        return dataclasses.replace(self, hashes=tuple(arrays))


def _refuse_probabilities(rows: Predictions) -> None:
    """Refuse probabilities that are read as logits because the rows before them were logits.

    A few rows of logits may pass for probabilities: one column in [0, 1], or rows of zeros and a one.

    Raises:
        InputError: they can only be probabilities.
    """
    from calibcli.calibrators.calibrator import FEW

    if rows.record.recognised != "probabilities":
        return
    if rows.n >= FEW or (rows.record.columns > 1 and bool(((rows.logits > 0) & (rows.logits < 1)).any())):
        problem = "these rows are probabilities, those before them logits"
        raise InputError(
            problem, "pass np.log of them, which is logits too; if they are logits as they are: --kind logits"
        )


class Accumulator:
    """Metrics of any number of rows, added part by part in any number of processes.

    Its size does not grow with the rows. Means, proper scores and binned errors are those of all rows together,
    however these are split; other numbers come with the most that they may be off by (`detail["cell_error"]`).
    Accumulators are pickled to be sent, and merged in any order; groups and weights cannot be merged. Ours: rows are
    kept as sums over cells of confidence.

    >>> parts = [calibcli.Accumulator().update(logits[i::3], labels[i::3]) for i in range(3)]
    >>> found = parts[0].merge(*parts[1:]).result()
    >>> round(found["ece"].value, 12) == round(calibcli.measure(logits, labels)["ece"].value, 12)
    True

    Args:
        specs: metric specs such as `ece:bins=30`; none: the default set.
        threads: workers of the pass over the scores; 0 uses every core.
        how: `kind`, `classes`, `event`, `label_base`, `ignore_label`, `drop_nonfinite`, `clip` as in `from_arrays`.
            What small parts would leave open, such as what they hold, is better said here.

    Raises:
        TypeError: an unknown keyword.
    """

    def __init__(self, *specs: str, threads: int = 1, **how: Any) -> None:
        check_keywords(how, READING, "Accumulator")
        self.specs, self.threads = specs, threads
        self._how: dict[str, Any] = how
        self._state: MetricState | None = None
        self._tasks: set[str] = set()
        self._ids = SeenIds()

    def __repr__(self) -> str:
        return f"Accumulator({', '.join(map(repr, self.specs))}): {self.rows:,} rows"

    @property
    def rows(self) -> int:
        """Number of rows that were added."""
        return self._state.rows if self._state else 0

    @in_python
    @spread
    def update(
        self,
        scores: Scores,
        /,
        labels: npt.ArrayLike | None = None,
        *,
        part: str = "",
        progress: Progress | None = None,
        **how: Any,
    ) -> Self:
        """Add the rows of a part.

        >>> calibcli.Accumulator().update(logits[:500], labels[:500]).update(logits[500:], labels[500:]).rows
        997

        Args:
            scores: (n, K) logits or probabilities with `labels` (n,), arrays or torch tensors on any device; or
                `Predictions`, or a file; a folder or a pattern stands for its files.
            part: a name by which the same rows are known again. Without one, 100 or more rows are known by what is in
                them: rows that were added before, here or in what is merged, are refused.
            progress: called with (fraction, text).
            how: of a file, as `read`. With `ids`, each id counts once: rows whose id was added here before, such as
                those with which a sampler fills its last batch, are left out with a note (an id takes 8 bytes). Of
                accumulators that are merged, equal ids are noted, and a gate is NOT RUN if they are many.

        Raises:
            InputError: arrays or a file that are refused; rows that were added before, or of another problem; groups
                or weights. Nothing is added then.
            TypeError: labels that are missing or too many, or a list of files.
        """
        if isinstance(scores, list | tuple) and is_path(scores):
            raise TypeError("update takes one file: one after the other is how several are added")
        if is_path(scores) and len(files := recorded_outputs.files_of(str(scores), Reading())) > 1:
            several = Accumulator(*self.specs, threads=self.threads, **self._how)
            several._ids = self._ids
            for file in extensions.with_progress(files, report=progress):
                several.update(file, labels, part=f"{part} {file}" if part else "", **how)
            return self.merge(several)
        # a few rows of logits may all lie in [0, 1] and look like probabilities
        kind = self._state.problem.kind if self._state and self._state.problem else ""
        preset = {"kind": "logits"} if kind == "logits" and not is_path(scores) else {}
        ready = isinstance(scores, Predictions)
        if ready and labels is not None:
            raise TypeError("update(predictions) takes no labels: they are there already")
        options = cast(How, {} if ready else {**preset, **self._how, **how})
        rows = given(Accumulator.update, scores, labels, options, progress)
        if preset and not ready and "kind" not in {**self._how, **how}:
            _refuse_probabilities(rows)
        rows, ids, again = self._ids.first_of(rows, options.get("ids") is not None)
        if not rows.n:
            self._leave_out(again)
            return self
        tasks_seen = {*self._tasks, rows.record.task}
        if not how.get("shards"):
            tasks.refuse_several(tasks_seen)
        state = self._state
        if state is None:
            asked = choose([*(self.specs or ["default"])], rows.k, rows.top_only)
            usual = [] if rows.top_only else choose([e.name for e in METRICS if e.traits.class_bins], rows.k)
            state = MetricState(needed_class_bins([*usual, *asked], rows.k))
        state.update(rows, part, self.threads or None, progress, sure_ids=options.get("ids") is not None)
        self._state, self._tasks, self._ids = state, tasks_seen, ids
        self._leave_out(again)
        return self

    def _leave_out(self, rows: int) -> None:
        """Note how many rows were left out since their id was added before."""
        if self._state is not None and rows:
            self._state.notes.pop(self._ids.note, None)
            self._ids = dataclasses.replace(self._ids, repeated=self._ids.repeated + rows)
            self._state.notes[self._ids.note] = None

    def merge(self, *others: Accumulator) -> Self:
        """Add the rows of others, which are left as they are.

        >>> a, b = (calibcli.Accumulator().update(logits[i::2], labels[i::2]) for i in range(2))
        >>> a.merge(b).rows
        997

        Raises:
            InputError: a part that is there already, another problem, or other class tables. What came before it in
                `others` has been added.
        """
        for other in others:
            if other._state is not None:
                if self._state is None:
                    self._state = MetricState(other._state.class_bins)
                    self.specs, self._how = self.specs or other.specs, self._how or other._how
                self._state.merge(other._state)
                self._ids = self._ids.with_hashes(*other._ids.hashes)
                if other._ids.repeated:
                    self._state.notes.pop(other._ids.note, None)
                    self._leave_out(other._ids.repeated)
        return self

    def result(
        self,
        *specs: str,
        bins: int | None = None,
        edges: Literal["right", "left", "torchmetrics"] | None = None,
        level: float = 0.95,
        per_class: bool = False,
        diagram: bool = False,
        seed: int = 0,
    ) -> Result:
        """Compute the metrics of all rows that were added; arguments as for `measure`.

        >>> calibcli.Accumulator("accuracy").update(logits, labels).result()["accuracy"].n
        997

        Raises:
            UsageError: nothing was added; an unknown metric, or one whose sums by class were not kept: those of the
                specs that the accumulator was made with are.
        """
        from calibcli.metrics import report as reports

        options = reports.ReportOptions(
            specs=specs or self.specs or None,
            bins=bins,
            edges=edges,
            level=level,
            per_class=per_class,
            diagram=diagram,
            seed=seed,
        )
        state = self._begun()
        columns, rows = state.measured()
        measured = reports.of_columns(rows, columns, options, reports.chosen(rows, options))
        inputs = [dataclasses.asdict(file) for file in state.files]
        texts, many = state.repeated()
        facts = {**measured.facts, **({"repeated": texts[0]} if many else {})}
        return dataclasses.replace(measured, facts=facts, provenance={"inputs": inputs, "seed": seed})

    def save(self, path: str | Path) -> None:
        """Write the accumulator to a .npz, whole or not at all.

        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     calibcli.Accumulator().update(logits, labels).save(f"{folder}/state.npz")
        ...     calibcli.Accumulator.load(f"{folder}/state.npz").rows
        997

        Raises:
            UsageError: nothing was added, or the file cannot be written.
        """
        state = self._begun()
        arrays: dict[str, Any] = arrays_of(state)
        with guarding():
            reading(*(file.path for file in state.files if file.sha256 and os.path.isfile(file.path)))
            with atomic(known_suffix(Path(path), SUFFIXES, "a state")) as temporary:
                _write(temporary, arrays)

    def _begun(self) -> MetricState:
        if self._state is None:
            raise UsageError("no rows were added", "update it with scores and labels first")
        return self._state

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a file written by `save` or `calib metrics --partial`.

        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     calibcli.Accumulator().update(logits, labels).save(f"{folder}/state.npz")
        ...     round(calibcli.Accumulator.load(f"{folder}/state.npz").result("ece")["ece"].value, 4)
        0.0646

        Raises:
            InputError: the file is missing, or is not one that this version wrote.
        """
        return cls._of(Source(path))

    @classmethod
    def _of(cls, source: Source) -> Self:
        """Read an open file as `load` does."""
        arrays = {name: read_all(array) for name, array in load_any(source).arrays.items() if array.shape}
        accumulator = cls()
        accumulator._state = state_of(arrays, source.name)
        return accumulator


def _write(path: Any, arrays: Mapping[str, Any]) -> None:
    """Write a .npz whose arrays are compressed only if that makes them clearly smaller (scores rarely are)."""
    with zipfile.ZipFile(path, "w") as file:
        for name, array in arrays.items():
            data = io.BytesIO()
            np.lib.format.write_array(data, np.asanyarray(array), allow_pickle=False)
            middle = data.getbuffer()[data.tell() // 2 :][:SOME]
            worth = len(zlib.compress(middle)) < WORTH * len(middle)
            member = zipfile.ZipInfo(f"{name}.npy")
            member.compress_type = zipfile.ZIP_DEFLATED if worth else zipfile.ZIP_STORED
            with file.open(member, "w", force_zip64=True) as out:
                out.write(data.getbuffer())


def partly(
    paths: Sequence[str | Path],
    *specs: str,
    save: Path,
    reading: Mapping[str, Any],
    threads: int = 1,
    progress: Progress | None = None,
    **how: Any,
) -> Result:
    """Measure files one after the other, each a part, and write their state, for `calib metrics --partial`.

    Raises:
        InputError, UsageError: as `Accumulator`.
    """
    known_suffix(save, SUFFIXES, "a state")
    accumulator = Accumulator(*specs, threads=threads)
    asked = {key: value for key, value in reading.items() if key != "tasks"}
    exclusive("a state of all rows, or numbers of each task", partial=True, tasks=bool(reading.get("tasks")))
    for path in extensions.with_progress(paths, report=progress):
        accumulator.update(str(path), **asked)
    result = accumulator.result(*specs, diagram=True, **how)
    accumulator.save(save)
    kept = f"{save.name} keeps what calib merge needs of {count_text(accumulator.rows, 'row')}."
    headline = f"{headlines.of(result)} {kept}".strip()
    return dataclasses.replace(result, facts={**result.facts, "headline": headline})


def merged(
    paths: Sequence[str | Path],
    *specs: str,
    save: Path | None = None,
    progress: Progress | None = None,
    **how: Any,
) -> Result:
    """Merge states and measure all their rows, for `calib merge`.

    Raises:
        InputError, UsageError: as `Accumulator`.
    """
    if save is not None:
        known_suffix(save, SUFFIXES, "a state")
    accumulator = Accumulator()
    files = [file for path in paths for file in recorded_outputs.files_of(path, Reading())]
    inputs = []
    for path in extensions.with_progress(files, report=progress):
        other = Accumulator._of(source := Source(path))
        inputs.append(source.entry())  # of the bytes that were read
        assert other._state is not None
        if accumulator._state is None:
            accumulator.merge(other)
        else:
            accumulator._state.merge(other._state, str(path))
    result = accumulator.result(*specs, diagram=True, **how)
    if save is not None:
        accumulator.save(save)
    count = f"{count_text(len(files), 'state file')}, {count_text(accumulator.rows, 'row')}"
    headline = f"{headlines.of(result)} Merged from {count}.".strip()
    return dataclasses.replace(
        result,
        command="merge",
        screen=dataclasses.replace(result.screen, badge=""),
        facts={**result.facts, "headline": headline},
        provenance={**result.provenance, "inputs": inputs, "parts": result.provenance["inputs"]},
    )
