"""How recorded outputs, a checkpoint and its data set are read, as options. Light: no NumPy, no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from calibcli.core.errors import UsageError
from calibcli.core.options import Label, Seed, option
from calibcli.core.options import Rows as Count

DATA = "Data set: arrays (file.npz#test), image folder, CSV, parquet, or module:function."
MODEL = "Checkpoint: .safetensors, .pt, .pth, .ckpt, .onnx, a Hugging Face or timm folder, shards, ..."


@dataclass(frozen=True, kw_only=True)
class Reading:
    """How recorded outputs are read; see `recorded_outputs.read`.

    Each field is an option of commands, except for the last three: `numbers` keeps the numbers of `by` columns, which
    otherwise become texts; without `need_labels` rows may have no labels; without `hashed` files get no digest.
    """

    PANEL: ClassVar[str] = "How the file is read"
    OFTEN: ClassVar[tuple[str, ...]] = ("scores", "labels", "classes", "event", "kind", "by")  # what --help shows of it

    scores: str | None = option(None, "Array or column group with the scores.", metavar="KEY")
    labels: str | None = option(None, "Array with the labels, or a file of them.", metavar="KEY|FILE")
    classes: str | Sequence[str] | None = option(
        None, "Class names, in the order of the scores.", metavar="A,B,..|FILE", kind=str
    )
    event: str | None = option(None, "Positive class of two (default: the second).", metavar="NAME")
    kind: str | None = option(None, "Kind of scores: logits, probabilities or log_probabilities (default: recognised).")
    confidence: str | None = option(None, "Column with the confidence, if there are no other scores.", metavar="KEY")
    correct: str | None = option(
        None, "Column that says whether the prediction was right: 1 or 0, yes or no.", metavar="KEY"
    )
    confidence_scale: Literal["1", "10", "100", "percent"] | None = option(
        None, "Scale of the confidences: 1, 10, 100 or percent."
    )
    label_base: Label | None = option(None, "Label of the first class (1: labels are 1..K).")
    ignore_label: Label | None = option(None, "Drop rows with this label, e.g. -100.")
    drop_nonfinite: bool = option(False, "Drop (and count) rows with NaN or infinite scores.")
    clip: bool = option(False, "Raise smaller probabilities to 1e-15, so that the NLL is finite.")
    multilabel: bool = option(False, "Targets are (N, L) zeros and ones: measure every label as a binary problem.")
    weights: str | None = option(None, "Array with sample weights.", metavar="KEY")
    weight_kind: str = option("sampling", "sampling (inverse probability) or count (frequency).")
    ids: str | None = option(None, "Array with the names of the rows.", metavar="KEY")
    group: str | None = option(None, "Array that says which rows belong together.", metavar="KEY")
    by: Sequence[str] = option(
        (), "Also measure the rows of each value of this array. Repeatable.", metavar="KEY", kind=tuple[str, ...]
    )
    no_header: bool = option(False, "A text table without a header row: columns are called 0, 1, ...")
    shards: bool = option(False, "The files are parts of one data set.")
    tasks: bool = option(False, "The files are tasks of one evaluation: show each, all together, and their mean.")
    lm_norm: Literal["sum", "char", "byte", "pmi"] | None = option(
        None,
        "How log-likelihoods of lm-eval are compared: sum (default), per character, per byte, or pmi: minus those "
        "without the question.",
    )
    choices: str | Sequence[str] | None = option(
        None, "Answers whose log-probabilities are read from the tokens.", metavar="A,B,..|FILE", kind=str
    )
    unlisted: Literal["bound", "drop"] | None = option(
        None,
        "What to do with a choice that is not among a token's alternatives: bound gives it the smallest listed "
        "log-probability, drop leaves out its row. Needed where this affects more than 1 % of the rows.",
    )
    numbers: bool = False
    need_labels: bool = True
    hashed: bool = True

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


@dataclass(frozen=True)
class ReaderOptions:
    """Options that the readers of files need to know.

    Attributes:
        no_header: the first row of a text table is one of its rows.
        lm_norm: how log-likelihoods are made comparable, "" for the default.  choices: what the model chose from.
        unlisted: what becomes of rows with a choice that is not listed, `bound` or `drop`; "" where nothing was said.
    """

    lm_norm: str = ""
    choices: tuple[str, ...] = ()
    unlisted: str = ""
    no_header: bool = False


@dataclass(frozen=True, kw_only=True)
class NetworkOptions:
    """Options of `checkpoint.load`."""

    arch: str | None = option(
        None, "Architecture: resnet:depth=20 (calib list architectures), timm:NAME, torchvision:NAME or module:factory."
    )
    arch_file: str | None = option(None, "Architecture from your own file: net.py:factory.")
    trust: bool = option(False, "Allow files that hold code (pickles, TorchScript, .pt2).")


@dataclass(frozen=True, kw_only=True)
class DatasetOptions:
    """Options of `dataset.load`."""

    mean: str | None = option(None, "Per-channel mean of the inputs scaled to [0, 1], such as 0.49,0.48,0.45.")
    std: str | None = option(None, "Per-channel standard deviation, such as 0.2,0.2,0.2.")
    size: str | None = option(
        None, "Size of the pictures: 224 (shorter side, then center crop), 256/224, 224x192 or none."
    )
    resize: str | None = option(
        None, "Resize pictures to 256 (shorter side), 224x192 or none, whatever the model asks for."
    )
    crop: str | None = option(None, "Center crop after resizing: 224, 224x192 or none.")
    interpolation: str | None = option(
        None, "Interpolation for resizing: bilinear, bicubic, nearest, lanczos, box or hamming."
    )
    layout: str | None = option(None, "Layout of the inputs: NHWC, NCHW or flat.")
    inputs: str | None = option(
        None, "Array with the inputs; several, separated by commas, are passed to the model by name.", metavar="KEY"
    )
    labels: str | None = option(None, "Array or column with the labels; of a .npy, a file of them.", metavar="KEY|FILE")
    subset: Count | None = option(None, "Number of rows to use, drawn at random with --split-seed.")
    split_seed: Seed | None = option(
        None, "Seed for which rows are used and held out, separate from --seed (default: 0, or that of the split)."
    )
