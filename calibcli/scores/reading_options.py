"""How recorded outputs, a checkpoint and its data set are read, as options. Light: no NumPy, no torch."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from calibcli.core.errors import UsageError
from calibcli.core.options import CUT, Cut, Label, Part, Seed, Shift, option
from calibcli.core.options import Rows as Count

DATA = "Data set: arrays (file.npz#test), image folder, CSV, parquet, or module:function."
CAUSES = ("answers", "classes", "labels")
"""Why a row cannot be measured: no answer (failed, no confidence), a class that the model does not know, no label."""
IGNORED = -100
"""The label of a position that is not counted, as PyTorch's cross-entropy has it."""
ROW_OF_POSITION = "row_of_position"
"""The array that says which sequence or picture a position lies in, as `calib logits` writes it."""
FATES = ("drop", "wrong", "refuse")
MODEL = "Checkpoint: .safetensors, .pt, .pth, .ckpt, .onnx, a Hugging Face or timm folder, shards, ..."


@dataclass(frozen=True, kw_only=True)
class Reading:
    """How recorded outputs are read; see `recorded_outputs.read`.

    Each field is an option of commands, except for the last five: `numbers` keeps the numbers of `by` columns, which
    otherwise become texts; without `need_labels` rows may have no labels; without `hashed` files get no digest; with
    `judged` what is left out is kept aside for a gate, which counts it at its best and at its worst; `skipped` is a
    column that is as if it were not there.
    """

    PANEL: ClassVar[str] = "How the file is read"
    OFTEN: ClassVar[tuple[str, ...]] = ("scores", "labels", "classes", "event", "kind", "by")  # what --help shows of it

    scores: str | None = option(None, "Array, column or group of columns with the scores.", metavar="KEY")
    labels: str | None = option(None, "Array with the labels, or a file with the labels.", metavar="KEY|FILE")
    classes: str | Sequence[str] | None = option(
        None, "Class names, in the order of the scores.", metavar="A,B,..|FILE", kind=str
    )
    event: str | None = option(None, "Positive class of two (default: the second).", metavar="NAME")
    kind: str | None = option(None, "Kind of scores: logits, probabilities or log_probabilities (default: recognised).")
    confidence: str | None = option(None, "Column with the confidence, if there are no other scores.", metavar="KEY")
    correct: str | None = option(
        None, "Column that says whether the prediction was correct: 1 or 0, yes or no.", metavar="KEY"
    )
    predicted: str | None = option(
        None, "Column with the predicted class beside a confidence: right is where it equals the label.", metavar="KEY"
    )
    confidence_scale: Literal["1", "10", "100", "percent"] | None = option(
        None, "Scale of the confidences: out of 1, 10 or 100, or percent."
    )
    out_of: str | None = option(
        None,
        "Scale of the scores: divide each row by its sum, or all by a number: sum, percent or 100.",
        metavar="sum|N",
    )
    label_base: Label | None = option(None, "Label of the first class: 0 or 1 (labels 1..K).")
    ignore_label: Label | None = option(None, "Drop rows with this label, e.g. -100.")
    class_axis: Literal["1", "last"] | None = option(
        None, "Of scores (N, T, C) or (N, C, H, W), the axis of the classes, where the labels do not tell: 1 or last."
    )
    shift: Shift | None = option(
        None, "The label of a position is the one this many further on: 1 for a model that predicts the next token."
    )
    drop_nonfinite: bool = option(False, "Drop (and count) rows with NaN or infinite scores.")
    clip: Cut | bool | None = option(
        None,
        "Raise smaller probabilities to this value, for a finite NLL; of rounded scores half their step, such as "
        "0.0005 (without a value: 1e-15). A fitted map keeps it.",
        metavar="[VALUE]",
        kind=Cut,
        alone=CUT,
    )
    multilabel: bool = option(False, "Multi-label targets of shape (N, L), 0 or 1; each label is a binary problem.")
    weights: str | None = option(None, "Array with sample weights.", metavar="KEY")
    weight_kind: str | None = option(
        None, "Kind of weights: sampling (inverse probability; default) or count (frequency)."
    )
    ids: str | None = option(None, "Array with a unique name for each row.", metavar="KEY")
    group: str | None = option(
        None, "Array with the group of each row, such as a patient; rows of one group are dependent.", metavar="KEY"
    )
    by: Sequence[str] = option(
        (),
        "Also report each slice: the rows of each value of this array. Repeatable.",
        metavar="KEY",
        kind=tuple[str, ...],
    )
    no_header: bool = option(False, "The text table has no header row; its columns are called 0, 1, ...")
    shards: bool = option(False, "The files are parts of one data set.")
    tasks: bool = option(
        False, "The files are tasks of one evaluation: report each task, all rows, and the mean over tasks."
    )
    lm_norm: Literal["sum", "char", "byte", "pmi"] | None = option(
        None,
        "Normalisation of lm-eval log-likelihoods: sum (default), per character, per byte, or minus the "
        "log-likelihood without the question (pmi).",
    )
    choices: str | Sequence[str] | None = option(
        None, "Answers whose token log-probabilities are read as scores.", metavar="A,B,..|FILE", kind=str
    )
    unlisted: Literal["bound", "drop"] | None = option(
        None,
        "For answers missing from a token's alternatives: bound uses the smallest log-probability listed, drop leaves "
        "the row out. Needed if more than 1 % of the rows lack an answer.",
    )
    answer_token: Literal["first", "last"] | None = option(
        None, "Of several tokens of an answer that name a choice, the one whose probabilities are read."
    )
    missing: str | None = option(
        None,
        "Samples without an answer, rows of an unknown class, or without a label: drop leaves them out, wrong counts "
        "the first two as wrong; or by cause: answers=wrong,labels=drop.",
        metavar="drop|wrong|refuse|CAUSE=..",
    )
    numbers: bool = False
    need_labels: bool = True
    hashed: bool = True
    judged: bool = False
    skipped: str | None = None

    def __post_init__(self) -> None:
        if isinstance(self.clip, bool):
            object.__setattr__(self, "clip", CUT if self.clip else None)
        fates_of(self.missing)

    def fate(self, cause: str) -> str:
        """Return what becomes of the rows of a cause: `drop`, `wrong` or `refuse`; "" where they are left out until
        somebody decides.
        """
        undecided = cause == "answers" or self.judged or (self.multilabel and cause == "labels")
        return fates_of(self.missing).get(cause, "" if undecided else "refuse")

    @property
    def stated(self) -> dict[str, str | int | float | bool]:
        """The options that say how to read the file and are not left at their default, with their values."""
        apart = ("numbers", "need_labels", "hashed", "judged", "skipped", "by", "shards", "tasks")
        named = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name not in apart}
        defaults = {f.name: f.default for f in dataclasses.fields(self)}
        given = {name: value for name, value in named.items() if value is not None and value != defaults[name]}
        plain = (str, int, float, bool)
        return {n: v if isinstance(v, plain) else ",".join(map(str, v)) for n, v in given.items()}

    def whole(self, command: str) -> Reading:
        """Return this reading, for a command that takes all rows of one problem together.

        Raises:
            UsageError: `by` or `multilabel`, which split them.
        """
        if self.multilabel:
            raise UsageError(f"{command} takes one label per row", "pass one label at a time as a binary problem")
        if self.by:
            raise UsageError(f"{command} takes all rows together, --by splits them", "write a file for each slice")
        return self


def fates_of(missing: str | None) -> dict[str, str]:
    """Return what `--missing` says of each cause.

    >>> fates_of("answers=wrong,labels=drop")
    {'answers': 'wrong', 'labels': 'drop'}

    Raises:
        UsageError: it says something else.
    """
    if missing in FATES:
        return {cause: missing for cause in CAUSES if (cause, missing) != ("labels", "wrong")}
    fates: dict[str, str] = {}
    for part in (missing or "").split(",") if missing else ():
        cause, _, fate = (text.strip() for text in part.partition("="))
        if cause not in CAUSES or fate not in FATES or cause in fates:
            problem = f"--missing {missing}: {part.strip() or 'nothing'!r} is no choice"
            raise UsageError(
                problem, "write drop, wrong or refuse, or by cause: answers=wrong,classes=drop,labels=drop"
            )
        if (cause, fate) == ("labels", "wrong"):
            problem = "--missing labels=wrong: a row without a label is neither right nor wrong"
            raise UsageError(problem, "leave such rows out: labels=drop")
        fates[cause] = fate
    return fates


@dataclass(frozen=True)
class ReaderOptions:
    """Options that the readers of files need to know.

    Attributes:
        no_header: the first row of a text table is one of its rows.
        lm_norm: how log-likelihoods are made comparable, "" for the default.  choices: what the model chose from.
        unlisted: treatment of rows with a choice that is not listed, `bound` or `drop`; "" if the user did not choose.
        answer_token: of several tokens that name a choice, `first` or `last`; "" if the user did not choose.
    """

    lm_norm: str = ""
    choices: tuple[str, ...] = ()
    unlisted: str = ""
    no_header: bool = False
    answer_token: str = ""


@dataclass(frozen=True, kw_only=True)
class NetworkOptions:
    """Options of `checkpoint.load`."""

    arch: str | None = option(
        None,
        "Architecture: resnet:depth=20 (calib list architectures), timm:NAME, torchvision:NAME or module:factory; of an"
        " adapter, the folder of its model.",
    )
    arch_file: str | None = option(None, "Architecture from your own file: net.py:factory.")
    trust: bool = option(False, "Allow files that hold code (pickles, TorchScript, .pt2).")


@dataclass(frozen=True, kw_only=True)
class OutputOptions:
    """What a network gives; see `inference.check`."""

    kind: Literal["logits"] | None = option(
        None, "Kind of the outputs, if all lie in [0, 1]: logits (without it they are refused as probabilities)."
    )


@dataclass(frozen=True, kw_only=True)
class PositionOptions:
    """Labels of every position, (N, T) or (N, H, W), of a network's data set."""

    shift: Shift | None = option(
        None, "The label of a position is the one this many further on (default: 1 for a causal language model, or 0)."
    )
    ignore_label: Label | None = option(None, "Label of positions that are not counted, beside -100, e.g. 255.")
    class_axis: Literal["1", "last"] | None = option(
        None, "Axis of the classes of outputs (n, T, C) or (n, C, H, W), where shapes do not tell: 1 or last."
    )
    position_share: Part | None = option(
        None, "Write this share of the positions, drawn at random with --split-seed, such as 0.01."
    )


@dataclass(frozen=True, kw_only=True)
class DatasetOptions:
    """Options of `dataset.load`."""

    mean: str | None = option(None, "Mean of each channel, for inputs scaled to [0, 1], such as 0.49,0.48,0.45.")
    std: str | None = option(None, "Standard deviation of each channel, such as 0.2,0.2,0.2.")
    size: str | None = option(
        None, "Image size: 224 (resize the shorter side and crop the centre), 256/224, 224x192 or none."
    )
    resize: str | None = option(
        None, "Resize images to 256 (shorter side), 224x192 or none; replaces the model's own resizing."
    )
    crop: str | None = option(None, "Centre crop after resizing: 224, 224x192 or none.")
    interpolation: str | None = option(
        None, "Interpolation used to resize: bilinear, bicubic, nearest, lanczos, box or hamming."
    )
    layout: str | None = option(None, "Order of the axes of the images: NHWC, NCHW or flat.")
    inputs: str | None = option(
        None, "Array with the inputs; several, separated by commas, are passed to the model by name.", metavar="KEY"
    )
    labels: str | None = option(
        None, "Array or column with the labels; for a .npy, a file with the labels.", metavar="KEY|FILE"
    )
    subset: Count | None = option(None, "Use only this many rows, drawn at random with --split-seed.")
    split_seed: Seed | None = option(
        None, "Seed that decides which rows are used and held out (default: 0, or that of the saved split)."
    )
