"""What arrays are called in files, parts of files, and classes by their user."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from calibcli.errors import refusing
from calibcli.files import reading

SCORES = {
    **dict.fromkeys(("logits", "y_logits", "test_logits"), "logits"),
    **dict.fromkeys(("probs", "probabilities", "y_prob", "y_proba"), "probabilities"),
    **dict.fromkeys(("predictions", "preds", "y_pred", "scores", "outputs"), ""),
    **dict.fromkeys(("log_probs", "logprobs", "log_probabilities"), "log_probabilities"),
}
LABELS = ("labels", "label", "y_true", "y", "targets", "target", "label_ids", "ground_truth", "test_y")
WEAK_LABELS = (
    "true_label", "true_labels", "true_class", "truth", "true", "actual", "gold", "gold_label", "answer",
    "correct_answer", "outcome", "gt", "gts", "y_test", "class", "category", "diagnosis",
)  # fmt: skip
"""Labels where nothing else is."""
FOLDED = "folded"  # what logits say of a calibrator that is in the model
PREDICTED = ("predicted", "prediction", "pred", "y_pred", "predicted_class", "predicted_label", "pred_label", "y_hat")
CLASSES = ("classes", "class_names", "label_names", "classnames")
IDS = ("ids", "id", "doc_id")
TEXTS = ("text", "texts", "sentence", "content", "review", "document", "comment", "tweet", "utterance", "headline")
PAIRS = (("premise", "hypothesis"), ("sentence1", "sentence2"), ("sentence_1", "sentence_2"), ("text1", "text2"),
         ("text_a", "text_b"), ("question1", "question2"), ("question", "sentence"), ("question", "passage"),
         ("query", "passage"), ("query", "document"), ("text", "text_pair"))  # fmt: skip
"""What columns of text are called, one or a first and a second."""
TARS = (".tar.gz", ".tgz", ".tar", ".tar.bz2", ".tar.xz")
DOWNLOADED = (*TARS, ".zip", ".mat", "-ubyte", "-ubyte.gz")
"""How files end that may be a published data set: archives, and files that are one, or half of one, alone."""


def class_names(given: str | Sequence[str]) -> list[str]:
    """Class names from a list, from `a,b,c`, or from a file with one per line (or a JSON list).

    Raises:
        InputError: the file cannot be read.
    """
    if not isinstance(given, str):
        return [str(name) for name in given]
    if "," in given or not os.path.isfile(given):
        return [name.strip() for name in given.split(",")]
    reading(given)
    errors = (OSError, ValueError, RecursionError)
    with refusing(errors, lambda e: f"cannot read class names from {given} ({str(e)[:80]})", "write one name per line"):
        text = Path(given).read_text(encoding="utf-8-sig")
        if text.lstrip().startswith("["):
            import json

            return [str(name) for name in json.loads(text)]
    return [line.strip() for line in text.splitlines() if line.strip()]


def parted(name: str) -> tuple[Path, str]:
    """A file and what stands after `#`, "" where that belongs to the file's own name."""
    file, _, part = name.rpartition("#")
    return (Path(file), part) if file and not os.path.exists(name) else (Path(name), "")
