"""Read recorded outputs: open files, recognise scores and labels, check them in one pass, return `Predictions`."""

from __future__ import annotations

import dataclasses
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from calibcli.core import extensions
from calibcli.core.errors import InputError, NoRows, UsageError, did_you_mean
from calibcli.core.files import reading as reading_from
from calibcli.core.options import check_options, exclusive
from calibcli.scores import (
    _column_evidence as column_evidence,
)
from calibcli.scores import _masks as masks_of
from calibcli.scores import (
    _per_row as per_row,
)
from calibcli.scores import (
    _positive_class as positive_class,
)
from calibcli.scores import (
    _row_order as row_order,
)
from calibcli.scores import (
    array_names,
    confidence,
    left_out,
    other_files,
    positions,
    repeated_samples,
    tasks,
)
from calibcli.scores._per_row import LabelCodes, as_names, labels_of, read_labels, without_zero_weights
from calibcli.scores._positive_class import BinaryReading, read_binary, swap_classes
from calibcli.scores._score_kind import KeptRows, Nonfinite, Outcome, Scan, decide_kind, evidence
from calibcli.scores.array_names import kind_option
from calibcli.scores.files import locations, nested
from calibcli.scores.files.arrays import FileContents, blocks, class_names, joined, load_any, read_all, texts_of
from calibcli.scores.files.roles import CLASSES, CONFIDENCE, LABELS, ONE_SCORE, SCORES
from calibcli.scores.files.source import FORMATS, Digests, Source, by_suffix, fingerprint, suffixes
from calibcli.scores.files.text_tables import NoHeader
from calibcli.scores.input_mistakes import RepeatedRows, TiedScores, scan
from calibcli.scores.predictions import Array, Ints, Kind, LeftOut, Named, PickedScores, Predictions, Progress
from calibcli.scores.reading_options import ReaderOptions, Reading, fates_of
from calibcli.scores.reading_record import Ground, ReadingRecord

MEANS_MORE = frozenset("*?[:")  # characters of a path that may be a pattern or an address
Paths = str | Path | Sequence[str | Path]
FEW = 64  # files that are read at once at first
RARER = 0.2  # the first class than its scores say, where these are ranked: they are not of the first class
LARGEST = 1e75  # largest score: its fourth power, which fits of the temperature sum, is still a number


def read(path: Paths, *, progress: Progress | None = None, **how: Any) -> Predictions:
    """Read recorded outputs.

    >>> rows = calibcli.read("sample_data/test.npz", by=["ink"])
    >>> rows.n, rows.k, sorted(set(rows.slices["ink"].tolist()))
    (997, 10, ['heavy', 'light'])

    Args:
        path: a file (`calib list formats`; `-` is stdin), several that are parts of one data set (`shards=True`) or
            tasks of one evaluation (`tasks=True`), or what stands for parts: a pattern, a folder, an address (`s3://`).
        how: what follows.  scores, labels: names of the arrays; `labels` may be a file of its own.
        classes: names of the classes in the order of the score columns, as a list, `a,b,c`, or a file.
        event: of two classes, the one that is measured; of one column, the class that it is the probability of.
        out_of: what the scores are shares of, where it is not 1: `sum` of each row, `percent`, or a number.
        kind: `logits`, `probabilities` or `log_probabilities`, where recognition would be wrong.
        confidence, correct: names of two arrays, how sure each prediction was and whether it was right, where that is
            all there is.  predicted: instead of `correct`, the predicted class, which is right where it equals the
            label.  confidence_scale: what a confidence is out of, `1`, `10`, `100` or `percent`.
        label_base: what the first class is called.  ignore_label: rows with this label are dropped.
        class_axis: `1` or `last`, of scores of positions (N, T, C) or (N, C, H, W) where labels do not tell.
        shift: the label of a position is the one so many further on, 1 for a model of the next token.
        drop_nonfinite: drop rows with NaN or infinite scores.  clip: what smaller probabilities are raised to
            (True: 1e-15), for a finite NLL; half the step of rounded ones.
        weights, ids, group, by: names of further arrays (N,).  weight_kind: `sampling` or `count`.
        missing: what becomes of samples without an answer, of rows of an unknown class, and without a label: `drop`,
            `wrong` or `refuse`, or by cause `answers=wrong,classes=drop,labels=drop`.
        answer_token: of several tokens of a chat that name a choice, `first` or `last`.
        lm_norm: of log-likelihoods: `sum`, `char`, `byte` or `pmi`.  choices: what a chat chose from, as for `classes`.
        unlisted: `bound` or `drop`, what becomes of rows of a chat in which a choice is not among the alternatives.
        need_labels: whether labels must be there and right; else, where they are not, a note says so, all labels are 0
            and `record.labelled` is False.
        progress: called with (fraction, text).

    Returns:
        Predictions whose scores are read from the file in blocks. Probabilities become their logarithms there.

    Raises:
        InputError: the file, or what is in it, is refused (exit 4).
        UsageError: an option has a value that cannot be.
    """
    reading = reading_of(how)
    if reading.multilabel:
        raise UsageError("--multilabel gives one data set per label", "call multilabel.read")
    sources = open_all(path, reading)
    return predictions(load_all(sources, reading, progress), sources, reading, progress)


def provenance(rows: Predictions) -> list[dict[str, Any]]:
    """Return path and sha256 of each file that was read, and with the first what it was taken for, for a result."""
    files = [dict(file) for file in rows.record.files]
    if files:
        files[0]["read"] = rows.described
    return files


def reading_of(how: Mapping[str, Any]) -> Reading:
    """Return the options as a `Reading`.

    Raises:
        UsageError: there is no such option.
    """
    options = {f.name for f in dataclasses.fields(Reading)}
    for name in how:
        if name not in options:
            raise UsageError(f"unknown option '{name}' of reading", did_you_mean(name, options))
    return Reading(**({**how, "by": (how["by"],)} if isinstance(how.get("by"), str) else how))


def open_all(path: Paths, reading: Reading) -> list[Source]:
    """Open the files: those named, the parts in a folder that `save_to_disk` wrote, or the tasks in a folder.

    The parts of one data set know their folder.

    Raises:
        InputError: several files without `shards` or `tasks`; else as `saved_parts` and `tasks_in`.
    """
    check_options(reading)
    paths = [path] if isinstance(path, str | Path) else list(path)
    if not paths:
        raise UsageError("no input file", "name a file with scores and labels, or - for stdin")
    exclusive("parts of one data set, or tasks of one evaluation", shards=reading.shards, tasks=reading.tasks)
    if len(paths) > 1 and not (reading.shards or reading.tasks):
        problem = f"{len(paths)} files: parts of one data set, several models, or tasks of one evaluation?"
        shown = " ".join(str(p) for p in paths[:3])
        raise InputError(problem, f"parts: --shards; tasks: --tasks; models: calib compare {shown}")
    folders = [str(path) if is_saved_dataset(path) else "" for path in paths]
    files = [(file, folder) for path, folder in zip(paths, folders) for file in files_of(path, reading)]
    locations.allow_open(len(files))
    options, opened = reader_options(reading), []
    for file, folder in files:
        opened.append(Source(file, options=options))
        opened[-1].folder = folder
    return opened


def load_all(sources: Sequence[Source], reading: Reading, progress: Progress | None = None) -> list[FileContents]:
    """Read files as `load` does; of one data set those at once that are alike (`FileContents.read_alike`).

    Raises:
        InputError: as `load`, of the first file that has a mistake.
    """
    contents: list[FileContents] = []
    ready: list[FileContents] = []  # of the next files, the last first
    ahead = FEW  # files to read at once: fewer where one of them needed a reader of its own
    for i, source in enumerate(extensions.with_progress(sources, lambda source: f"reading {source.name}", progress)):
        try:
            contents.append(load(source, ready.pop() if ready else None, reading))
        except NoRows as error:
            raise NoRows(error.problem, f"leave {source.name} out" if len(sources) > 1 else error.fix) from None
        if (read_alike := contents[-1].read_alike) is not None and not reading.tasks:
            ready = read_alike(sources[i + 1 : i + 1 + ahead])[::-1]
            ahead = 2 * ahead if ready else max(1, ahead // 2)
    return contents


def load(source: Source, contents: FileContents | None = None, reading: Reading = confidence.AS_IS) -> FileContents:
    """Read the arrays of a file as `load_any` does, and refuse files that hold no recorded outputs.

    Args:
        contents: what was read of the file, if it was.  reading: names columns, and what is as if it were not there.

    Raises:
        InputError: it is something else of calib's or of a model's; or it has no use for what was asked.
    """
    try:
        contents = contents or load_any(source)
        contents = nested.opened(contents, source.name)
        if reading.skipped:
            array_names.column(contents, reading.skipped, "--judge", source.name)
            others = {name: array for name, array in contents.arrays.items() if name != reading.skipped}
            contents = dataclasses.replace(contents, arrays=others)
        if source.options != ReaderOptions():
            refuse_unused_options(contents, source)
        if other_files.STATE in contents.arrays:
            other_files.refuse_other_file(other_files.PARTIAL, source)
        recognized = array_names.candidates(contents) or contents.lacking or confidence.columns(contents)
        asked = (reading.scores, reading.confidence, reading.correct, reading.predicted)
        sure = any(name in contents.arrays and (name in asked or name in CONFIDENCE) for name in contents.arrays)
        if recognized or sure or array_names.score_columns([contents]):
            return contents
    except InputError as error:
        other_files.refuse_other_file(other_files.before_reading(source), source)
        if isinstance(error, NoHeader) and error.contents is not None:
            raise InputError(error.problem, array_names.without_header(error.contents)) from None
        raise
    other = other_files.before_reading(source) or other_files.after_reading(contents, source)
    other_files.refuse_other_file(other, source)
    return contents


def _task(contents: FileContents, source: Source) -> str:
    """Return the task that a file names, or "" where that is merely the name of the file."""
    return contents.task if contents.task and contents.task != source.stem else ""


def predictions(
    contents: Sequence[FileContents], sources: Sequence[Source], reading: Reading, progress: Progress | None = None
) -> Predictions:
    """Check the arrays of all files together as one data set; with `tasks`, check each task by itself."""
    check_options(reading)
    if reading.tasks:
        per_task = dataclasses.replace(
            reading, tasks=False, by=tuple(name for name in reading.by if name != tasks.TASK)
        )
        files = tasks.files_of(contents, sources)
        names = tasks.names_of([c[0].task or Path(s[0].folder or s[0].stem).name for c, s in files])
        parts = [predictions(*each, per_task, progress) for each in files]
        parts = left_out.alike(parts) if "wrong" in fates_of(reading.missing).values() else parts
        return tasks.join_tasks(parts, names)
    if len(contents) > 1 and not reading.shards:
        tasks.refuse_several(_task(c, s) for c, s in zip(contents, sources))
    names = [s.name for s in sources]
    sure = bool(reading.kind or reading.confidence or reading.correct or reading.predicted)
    contents = array_names.grouped(contents, reading.scores, names, reading.labels, sure)
    first = contents[0]
    alone = (
        reading.confidence
        or reading.correct
        or reading.predicted
        or not (reading.scores or array_names.candidates(first))
    )
    if alone and (columns := confidence.columns(first, reading, sources[0].name)):
        rows = confidence.predictions(contents, sources, reading, columns)
    else:
        rows = _one_dataset(contents, sources, reading, progress)
    return without_zero_weights(rows) if reading.weights and reading.need_labels else rows


@np.errstate(all="ignore")  # numbers that are not finite are counted, and refused or noted
def _one_dataset(
    contents: Sequence[FileContents], sources: Sequence[Source], reading: Reading, progress: Progress | None
) -> Predictions:
    """Return one data set, from one file or from its parts."""
    first, where = contents[0], sources[0].name if len(sources) == 1 else f"{len(sources)} shards"
    name = array_names.pick_scores(first, reading.scores, sources[0].name)
    raw, ragged = _joined_scores(contents, sources, reading)
    notes = [note for c in contents for note in c.notes]
    label_name, raw_labels, label_file = label_array(contents, sources, reading, name, notes)
    if raw_labels is None and reading.need_labels:
        problem = f"no labels in {where}: it holds {array_names.describe(first)}"
        raise InputError(
            problem, array_names.no_labels(first, name, array_names.two_dimensional(raw, name, where, None, True))
        )
    asked = reading
    contents, raw, raw_labels, reading = positions.flattened(contents, raw, raw_labels, name, reading, notes)
    first, count = contents[0], None
    if raw_labels is not None and reading.need_labels:  # (1, N) is a row of labels
        count = raw_labels.shape[raw_labels.shape[0] == 1 and raw_labels.shape[1:] == raw.shape[:1]]
    raw = array_names.two_dimensional(raw, name, where, count, bool(kind_option(reading.kind)))
    out_of = reading.out_of or ("percent" if "%" in name and array_names.is_percent(raw) else "")
    if out_of:
        raw = array_names.shares_out_of(raw, out_of, name)
        notes += [] if reading.out_of else [f"'{name}' is a percentage by its name: divided by 100"]
    scores = array_names.in_memory(raw)
    n, width, k = *scores.shape, max(scores.shape[1], 2)
    if not (out_of or reading.kind):
        array_names.refuse_lost_class(first, name, scores, where)
    if width > 2 and first.table:
        array_names.refuse_one_of_one_hot(first, name, label_name, where)
    array_names.refuse_verdicts(name, label_name, where, width, bool(reading.scores and reading.event))
    classes, confirmed = classes_of(first, reading, name, k)
    odd = {} if count is None or raw_labels is None else per_row.without_class(raw_labels, scores, classes, reading)
    aside = {cause: rows for cause, rows in odd.items() if reading.fate(cause) != "refuse"}
    every, kept = scores, np.delete(np.arange(n), np.concatenate([*aside.values()])) if aside else None
    if kept is not None and raw_labels is not None:
        if not len(kept):
            raise InputError(f"no row of {where} has a label that is one of the classes", "are these its labels?")
        scores, raw_labels = array_names.in_memory(PickedScores(scores, kept)), PickedScores(raw_labels, kept)
    with Digests([*sources, *label_file], reading.hashed) as digests:
        binary, labels = _classes_and_labels(reading, name, scores, classes, raw_labels, label_name, notes)
        rows, scanned, kind = _check_rows(scores, labels, first, name, reading, ragged, notes, progress)
        ignored = 0 if labels is None or labels.dropped is None else int(labels.dropped.sum())
        dropped = {"nonfinite": scores.shape[0] - ignored - rows.scores.shape[0]}
        dropped["ignored"] = ignored if reading is asked else 0  # positions that nobody counts are none of the rows
        if kept is not None:
            rows = dataclasses.replace(rows, keep=kept if rows.keep is None else kept[rows.keep])
        clip = _smallest(reading, kind, k, notes)
        if scanned.forced is None and width == 1:
            event = binary.classes[1] if binary.classes else ""
            positive_class.refuse_confidence(scanned, rows, kind, first, name, label_name, event)
        unrelated = ""
        if labels is not None and reading.need_labels:
            unrelated = row_order.unrelated(scanned, rows, kind, name, label_name)
            notes[:0] = [unrelated] if unrelated else []
        notes += _sorted_in_each_row(rows, kind, confirmed)
        sure = (confirmed and not (labels and labels.names)) or not reading.need_labels
        outcome = Outcome(scanned, kind, binary.classes, bool(reading.weights), clip, sure)
        notes += scanned.verdicts(outcome)
        if not reading.labels and scanned[TiedScores].all_right(outcome):
            array_names.refuse_predictions(first, label_name, where)
        others, causes = _usable(aside, every, scanned, reading, where)
        keep = rows.keep if kept is None else np.append(np.asarray(rows.keep), others)
        further, names_of = per_row.per_row_fields(contents, sources, reading, n, keep, name, label_name, notes)
        taken = [name, label_name, reading.weights or "", reading.group or contents[0].groups]
        named = repeated_samples.columns(contents, reading, n, rows.keep, taken)
        unused = array_names.unused(first, n, [name, *taken, *names_of.values(), *reading.by], reading)
        rivals = array_names.rivals_of(first, name)
        files = digests.files()
    base = reading.label_base or 0
    numbers = range(base, base + k)[:: -1 if binary.turned else 1]
    values = [*(binary.classes or ())] if labels is not None and labels.names else [*numbers]  # in the file, by code
    varied = ragged and scanned.nonfinite.masked.count > 0
    guess_nll, guess_accuracy = scanned.nonfinite.guess(k) if varied else (0.0, 0.0)
    samples = sum((Counter(c.left_out) for c in contents), Counter[str]())
    lost = LeftOut(lost=samples.pop("answers", 0))
    read = Predictions(
        scores=array_names.as_scores(rows.scores, kind, clip, scanned.ends),
        labels=np.zeros(rows.scores.shape[0], np.int64) if rows.codes is None else rows.codes,
        kind=kind,
        source=where,
        classes=binary.classes,
        notes=notes,
        sha256=fingerprint(files[: None if len(sources) > 1 else 1]),
        record=ReadingRecord(
            format=first.format,
            files=files,
            task=_task(first, sources[0]),
            evaluation=dict(first.facts),
            scores=name,
            labels=label_name,
            columns=width,
            dtype=str(scores.dtype),
            kind=kind,
            recognised=scanned.kind or "",
            why="given by --kind" if scanned.forced else evidence(scanned, kind),
            clip=clip,
            mask=scanned.masks.depth if scanned.masks and scanned.masks.found else 0.0,
            folded=array_names.folded_calibrator(first),
            labelled=labels is not None,
            unrelated=bool(unrelated),
            label_values=None if labels is None else values,
            class_rows={} if labels is None else {str(c): count for c, count in labels.counts.items()},
            repeated_rows=scanned[RepeatedRows].count,
            copies=scanned[RepeatedRows].copies(scanned.n),
            left_out={cause: count for cause, count in (samples | Counter(dropped)).items() if count},
            choices_vary=varied,
            guess_nll=guess_nll,
            guess_accuracy=guess_accuracy,
            members=first.members.get(name, ()),
            grounds=_grounds(first, reading, name, label_name, bool(scanned.forced), confirmed, binary.classes),
            assumed=_assumed(reading, width, confirmed, binary.classes, labels is not None),
            stated=asked.stated if first.format != "arrays" else {},
            unused=unused,
            rivals=[column for family, *_ in rivals for column in family],
            ids=names_of.get("ids", ""),
            group=names_of["group"],
            weights=names_of["weights"],
        ),
        **left_out.split_fields(further, slice(rows.scores.shape[0])),
    )
    beside = None
    if len(others):
        fields = left_out.split_fields(further, slice(rows.scores.shape[0], None))
        beside = _kept_aside(read, PickedScores(every, others), scanned, clip, fields)
    if binary.first:
        read, beside = swap_classes(read), None if beside is None else swap_classes(beside)
    read = read if labels is None else repeated_samples.seen(read, named, reading.ids, contents[0].ids)
    return left_out.decided(read, beside, causes, lost, reading)


def _sorted_in_each_row(rows: KeptRows, kind: Kind, confirmed: bool) -> list[str]:
    """Return a note where the scores of every row fall from the first column to the last.

    Raises:
        InputError: nobody said in which order the classes are, and the first is much rarer than its scores say.
    """
    if rows.scores.shape[1] < 3:
        return []
    head = np.asarray(rows.scores.read(0, column_evidence.ROWS))  # (rows, K)
    if not column_evidence.ranked(head):
        return []
    fall = "the scores of every row fall from the first column to the last: the largest of each row, sorted?"
    stated, seen = head[:, 0].mean(), head[:, 0].mean() if rows.codes is None else (rows.codes[: len(head)] == 0).mean()
    if kind == "probabilities" and not confirmed and stated - seen > RARER:
        problem = f"{fall} The first class has {stated:.0%} by the scores, {seen:.0%} seen"
        raise InputError(problem, f"{array_names.EVERY_CLASS}; if they are, name the classes: --classes KEY")
    return [fall]


def _kept_aside(read: Predictions, scores: Named, scanned: Scan, clip: float, fields: Mapping[str, Any]) -> Predictions:
    """Return rows (n, K) that are left out, in the form of those that are read.

    Args:
        fields: of these rows, such as ids and weights.
    """
    masked = masks_of.left_out(scores, scanned.masks) if scanned.masks and scanned.masks.found else scores
    n = scores.shape[0]
    return dataclasses.replace(
        read, scores=array_names.as_scores(masked, read.kind, clip), labels=np.zeros(n, np.int64), **fields
    )


def _usable(
    aside: Mapping[str, Ints], scores: Named, scanned: Scan, reading: Reading, where: str
) -> tuple[Ints, Array]:
    """Return the rows that are kept aside, in the order of the file, and why, without those that are not finite.

    Raises:
        InputError: some are not finite, and nobody said that such rows are dropped.
    """
    rows = np.concatenate([*aside.values(), np.empty(0, np.int64)]).astype(np.int64)
    causes = np.repeat([*aside, ""], [*map(len, aside.values()), 0])
    order = np.argsort(rows)
    rows, causes = rows[order], causes[order]
    spots, picked = Nonfinite(len(rows)), PickedScores(scores, rows)
    masks = [spots.usable(np.asarray(block, np.float64), start) for start, block in blocks(picked)]
    usable = np.concatenate([*masks, np.zeros(0, bool)])
    if spots.count and not reading.drop_nonfinite:
        problem = f"{spots.count:,} rows of {where} without a label hold NaN or infinite scores"
        raise InputError(problem, "--drop-nonfinite drops them")
    return rows[usable], causes[usable]


def _grounds(
    contents: FileContents,
    reading: Reading,
    name: str,
    label_name: str,
    kind_stated: bool,
    classes_stated: bool,
    classes: Sequence[str] | None,
) -> dict[str, Ground]:
    """Return how it is known what the parts of the input are."""
    own_name = contents.scores == name and name not in contents.members
    by_name = array_names.declared_kind(contents, name) or own_name or name in (*SCORES.all, *ONE_SCORE.all)
    by_label: Ground = "named" if label_name in LABELS.all or contents.labels == label_name else "seen"
    return {
        "scores": "stated" if reading.scores else "named" if by_name else "seen",
        "labels": "stated" if reading.labels else by_label,
        "classes": "stated" if classes_stated else "named" if classes else "assumed",
        "kind": "stated" if kind_stated else "seen",
    }


def _assumed(
    reading: Reading, width: int, classes_stated: bool, classes: Sequence[str] | None, labelled: bool
) -> list[str]:
    """Return what is taken for granted where nothing says otherwise: keys of `reading_record.ASSUMED`."""
    of_two = width <= 2 and not reading.event
    assumed = {
        "classes": classes is None and width > 2 and labelled,
        "event": of_two
        and width == 2
        and classes is not None
        and not (classes_stated or positive_class.plain_order(classes)),
        "class 1": of_two and width == 1 and classes is None,
    }
    return [name for name, is_assumed in assumed.items() if is_assumed]


def _classes_and_labels(
    reading: Reading,
    name: str,
    scores: Named,
    classes: list[str] | None,
    raw_labels: Named | None,
    label_name: str,
    notes: list[str],
) -> tuple[BinaryReading, LabelCodes | None]:
    """Return the classes that the columns stand for and the codes of the labels; add notes.

    Raises:
        InputError: the labels cannot be read, where they are needed; else they are left out.
    """
    binary, width = None, scores.shape[1]
    try:
        if width > 2 and not reading.event:
            binary = BinaryReading(classes, as_names(raw_labels, label_name, classes))
        else:
            binary = read_binary(reading, name, width, classes, raw_labels, label_name)
            if width == 2 and classes is None and binary.classes and not reading.event:
                first_name, second_name = binary.classes
                notes.append(f"the score columns are taken to be {first_name} and {second_name}, in this order")
        return binary, None if binary.labels is None else read_labels(
            binary.labels, label_name, scores, binary.classes, reading
        )
    except InputError as error:
        if reading.need_labels:
            raise
        notes.append(f"labels are not used: {error.problem}")
        return binary or read_binary(reading, name, width, classes, None, ""), None


def _check_rows(
    scores: Named,
    labels: LabelCodes | None,
    contents: FileContents,
    name: str,
    reading: Reading,
    ragged: bool,
    notes: list[str],
    progress: Progress | None,
) -> tuple[KeptRows, Scan, Kind]:
    """Check all rows in one pass. Returns the rows that are kept, the scan, and the kind of scores."""
    rows = KeptRows(scores, None if labels is None else labels.codes)
    if labels is not None:
        notes += labels.notes
        rows = rows if labels.dropped is None else rows.without(np.flatnonzero(labels.dropped))
    decimals, drop = contents.decimals.get(name), reading.drop_nonfinite
    forced, declared = kind_option(reading.kind), array_names.declared_kind(contents, name)
    scanned = scan(rows.scores, rows.codes, decimals=decimals, collect=drop, forced=forced, progress=progress)
    score_masks = masks_of.find(rows.scores, rows.codes) if scanned.high - scanned.low >= masks_of.LEAST else None
    if score_masks is not None and score_masks.found:  # from here on they are -inf for everybody
        rows = dataclasses.replace(rows, scores=masks_of.left_out(rows.scores, score_masks))
        scanned = scan(rows.scores, rows.codes, decimals=decimals, collect=drop, forced=forced, progress=progress)
    scanned.masks = score_masks
    half, bad = scores.dtype.itemsize <= 2, scanned.nonfinite
    masks = ragged or forced is not None or (score_masks is not None and score_masks.found)
    if drop and not scanned.finite:
        raise InputError(f"all {scanned.n:,} rows hold NaN or infinite scores", "save the scores again, as float32")
    if bad.count and not drop:
        bad.refuse(masks, half)
    kind = decide_kind(scanned, declared, name, contents.members.get(name, ()))
    masks = masks or kind == "log_probabilities"
    if drop:
        index: Ints = np.concatenate([*bad.bad, np.empty(0, np.int64)])
        if bad.masked.count and not masks:
            masked = [np.isneginf(block).any(axis=1) for _, block in blocks(rows.scores)]
            index = np.union1d(index, np.flatnonzero(np.concatenate(masked)))
        if 0 < len(index) < scanned.n:
            rows = rows.without(index)
            notes.append(f"{len(index):,} of {scanned.n:,} rows with NaN or infinite scores dropped")
            bad = Nonfinite(scanned.n)
    bad.refuse(masks, half)
    if scanned.finite and max(-scanned.low, scanned.high) > LARGEST:
        problem = f"scores from {scanned.low:.3g} to {scanned.high:.3g} cannot be logits: their powers overflow"
        fix = "find out where they come from: was the array never filled, or read with another dtype?"
        raise InputError(problem, fix)
    empty = scanned.unit.empty
    if kind == "probabilities" and empty.count:
        problem = f"{empty.count:,} rows give every class probability 0, first row {empty.first}"
        raise InputError(problem, "leave these rows out, or save the logits")
    return rows, scanned, kind


def _smallest(reading: Reading, kind: Kind, k: int, notes: list[str]) -> float:
    """Return the probability that smaller ones are raised to, or 0; logits have none, which a note says.

    Raises:
        UsageError: it is that of a guess, or larger.
    """
    if not reading.clip:
        return 0.0
    if kind == "logits":
        notes.append("--clip raises probabilities, and these are logits: it changes nothing")
        return 0.0
    if reading.clip * k >= 1:
        problem = f"--clip {float(reading.clip):g} is not below 1/{k}, what a guess among {k} classes gives each"
        raise UsageError(problem, "pass a smaller value, such as half the step that the scores are rounded to")
    return float(reading.clip)


def _joined_scores(contents: Sequence[FileContents], sources: Sequence[Source], reading: Reading) -> tuple[Named, bool]:
    parts, ragged, class_order = (
        [],
        False,
        list[str](),
    )  # class_order: names of the classes, of the first file that has some
    for c, source in zip(contents, sources):
        here = array_names.pick_scores(c, reading.scores, source.name)
        part = c.arrays[here]
        part_classes = classes_of(c, Reading(), here, part.shape[-1] if len(part.shape) == 2 else 2)[0] or []
        class_order = class_order or part_classes
        ragged |= here in c.ragged
        parts.append(
            part
            if ragged or part_classes in ([], class_order)
            else array_names.in_order(part, part_classes, class_order, source.name)
        )
    odd = next((i for i, p in enumerate(parts) if p.shape[1:] != parts[0].shape[1:]), 0)
    if odd and not ragged:
        problem = f"{sources[odd].name} has scores {tuple(parts[odd].shape)}, {sources[0].name} {tuple(parts[0].shape)}"
        raise InputError(problem, "shards must have the same classes")
    return joined(parts, fill=-np.inf if ragged else None), ragged


def label_array(
    contents: Sequence[FileContents], sources: Sequence[Source], reading: Reading, score_name: str, notes: list[str]
) -> tuple[str, Named | None, list[Source]]:
    """Return name and array of all labels (None when there are none), and the files that hold only them; adds to
    `notes`.
    """
    wanted = reading.labels
    label_file = wanted if wanted and wanted not in contents[0].arrays else ""
    if not wanted and len(sources) == 1 and contents[0].format == "npy":
        label_file = str(Path(sources[0].path).with_suffix(".labels.npy"))
    if label_file and os.path.isfile(label_file):
        source = Source(label_file)
        return wanted or source.name, labels_of(source, contents, reading, notes), [source]
    picked = [(array_names.pick_labels(c, wanted, score_name, s.name), c, s) for c, s in zip(contents, sources)]
    absent = [s.name for name, _, s in picked if name is None]
    if absent and len(absent) < len(picked):
        raise InputError(f"{absent[0]} has no labels, other shards have", "give every shard its labels")
    parts = [c.arrays[name] for name, c, _ in picked if name is not None]
    if not parts:
        return "", None, []
    return (name := str(picked[0][0])), per_row.of_all_files(parts, name, contents, sources, score_name), []


def classes_of(contents: FileContents, reading: Reading, scores: str, k: int) -> tuple[list[str] | None, bool]:
    """Return the names of the classes, and whether the user gave them."""
    given = reading.classes
    if given is not None:
        names = class_names(given)
    elif scores in contents.classes:
        names = list(contents.classes[scores])
    elif key := CLASSES.first(contents.arrays, (k,)):
        names = [str(t) for t in texts_of(read_all(contents.arrays[key]))]
    else:
        return None, False
    if len(names) != k:
        raise InputError(f"{len(names)} class names for {k} score columns", "name every column once, in order")
    if len(set(names)) < k:
        raise InputError("two classes have the same name", "name every class differently")
    return names, given is not None


# Which files a path stands for.


def reader_options(reading: Reading) -> ReaderOptions:
    """Return the options that the readers of files need to know.

    Raises:
        UsageError: choices that are too few or the same.
    """
    choices = tuple(class_names(reading.choices)) if reading.choices else ()
    if choices and (len(set(choices)) < max(len(choices), 2) or not all(choices)):
        raise UsageError(f"--choices {','.join(choices)[:40]}", "name two or more different ones: --choices A,B,C,D")
    told = reading.answer_token or ""
    return ReaderOptions(reading.lm_norm or "", choices, reading.unlisted or "", reading.no_header, told)


def refuse_unused_options(contents: FileContents, source: Source) -> None:
    """Refuse options for evaluations if the file is not an evaluation, or not one of that kind.

    Raises:
        InputError: --lm-norm, --choices or --unlisted would have no effect.
    """
    if source.options.no_header and contents.format not in ("csv", "tsv"):
        raise InputError(f"--no-header is for text tables; {source.name} is read as {contents.format}", "leave it out")
    for name in ("lm_norm", "choices", "unlisted", "answer_token"):
        if getattr(source.options, name) and name not in contents.used and not contents.lacking:
            flag = f"--{name.replace('_', '-')}"
            scores = "log-likelihoods of lm-eval or LightEval" if name == "lm_norm" else "log-probabilities of tokens"
            raise InputError(f"{flag} is for {scores}; {source.name} is read as {contents.format}", "leave it out")


def files_of(path: str | Path, reading: Reading) -> list[str | Path]:
    """Return the files that a path stands for: itself, the matches of a pattern, or what is in a folder or at an
    address.

    Raises:
        InputError: there are none; else as `saved_parts` and `tasks_in`.
    """
    if os.path.isfile(path):
        return [path]
    if os.path.isdir(path):
        reading_from(path)
    if is_saved_dataset(path):
        return [*saved_parts(Path(path))]
    if os.path.isdir(path) and reading.tasks:
        return [*tasks_in(Path(path))]
    if os.path.isdir(path) or MEANS_MORE & set(str(path)):
        return locations.expand(path, [suffix for name in FORMATS for suffix in suffixes(name)])
    return [path]


def is_saved_dataset(path: str | Path) -> bool:
    """Return whether this is a folder that `save_to_disk` wrote."""
    return any(os.path.isfile(os.path.join(path, name)) for name in (locations.STATE, locations.PARTS))


def tasks_in(folder: Path) -> list[Path]:
    """Return the files that a harness wrote to a folder, one for each task.

    Raises:
        InputError: none, or two runs of one task.
    """
    from calibcli.scores.files.evals.lm_eval import task_of

    names = sorted(p for p in folder.iterdir() if p.is_file() and not p.name.startswith((".", "results")))
    files = [path for path in names if by_suffix(locations.suffix(path.name))]
    if not files:
        raise InputError(f"no evaluations in {folder}", "name the files, or the folder that they lie in")
    runs = Counter(task_of(p.name) for p in files)
    twice = next((task for task, count in runs.items() if count > 1), None)
    if twice is not None:
        problem = f"{folder} holds {runs[twice]} runs of the task {twice}"
        raise InputError(problem, "name the files, one of each task")
    return files


def saved_parts(folder: Path) -> list[Path]:
    """Return the files of a folder that `save_to_disk` wrote.

    Raises:
        InputError: a folder with several splits, or of another kind.
    """
    if (folder / locations.PARTS).is_file():
        splits = sorted(p.parent.name for p in folder.glob(f"*/{locations.STATE}"))
        fix = f"choose one: {folder / (splits or ['test'])[0]}"
        raise InputError(f"{folder} holds several splits: {', '.join(splits)}", fix)
    return locations.parts_of_saved(folder)
