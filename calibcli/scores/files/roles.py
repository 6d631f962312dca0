"""Recognise the role of arrays and columns by their names: one table for score files and data sets alike.

A name counts in any case, with `-` for `_`. `Role` has the names that say so (`names`), those that say so where nothing
else does (`weak`), and what it may hold (`dtypes`).
"""

from __future__ import annotations

import re

from calibcli.scores.files.arrays import Role

# ── recorded outputs ──
SCORES = Role(
    (
        *("logits", "y_logits", "test_logits"),
        *("probs", "probabilities", "y_prob", "y_proba"),
        *("predictions", "preds", "y_pred", "scores", "outputs"),
        *("log_probs", "logprobs", "log_probabilities"),
    ),
    ("logit", "prob", "proba", "probability", "score", "log_odds", "p", "p_hat", "phat", "posterior", "softmax",
     "y_score", "y_scores"),
)  # fmt: skip
"""Of every class (N, K), or of class 1 of two (N,)."""
ONE_SCORE = Role(("logit", "prob", "proba", "probability", "score", "log_odds"), dtypes="fUO")
"""One column that is as surely the scores as `SCORES` are."""
CLASS_CALLS = ("predictions", "preds", "y_pred", "outputs")
"""Scores where they have two dimensions; in one, they are predicted classes."""
SCORE_KINDS = {
    **dict.fromkeys(("logits", "y_logits", "test_logits", "logit", "log_odds"), "logits"),
    **dict.fromkeys(("probs", "probabilities", "y_prob", "y_proba", "prob", "proba", "probability"), "probabilities"),
    **dict.fromkeys(("p", "p_hat", "phat", "posterior", "softmax"), "probabilities"),
    **dict.fromkeys(("log_probs", "logprobs", "log_probabilities"), "log_probabilities"),
}
"""The kind of scores that a name claims; the other names of scores claim none."""
LABELS = Role(
    ("labels", "label", "y_true", "y", "targets", "target", "label_ids", "ground_truth", "test_y"),
    (
        "true_label", "true_labels", "true_class", "truth", "true", "actual", "gold", "gold_label", "answer",
        "correct_answer", "outcome", "gt", "gts", "y_test", "class", "category", "diagnosis",
    ),
)  # fmt: skip
"""The class that was observed: its number or name, or one-hot rows."""
PREDICTED = Role(
    (
        "predicted",
        "prediction",
        "pred",
        "y_pred",
        "predicted_class",
        "predicted_label",
        "pred_label",
        "y_hat",
        "yhat",
        "predict",
        "prediction_label",
        "scored_labels",
        "scored labels",
        "predictedlabel",
    )
)
"""The class that was predicted."""
CONFIDENCE = Role(
    ("confidence", "confidences", "max_prob", "max_probs", "top1", "top_prob", "conf", "pred_prob", "msp",
     "pred_confidence", "top_confidence", "max_confidence", "prediction_score")
)  # fmt: skip
"""Probability of the class that was predicted."""
CORRECT = Role(("correct", "is_correct", "was_correct", "right", "is_right", "hit", "correctness", "acc", "accuracy"))
"""Whether the prediction was right."""
LOSS = Role(("nll", "loss"))
"""What a row cost."""
CLASSES = Role(("classes", "class_names", "label_names", "classnames"), dtypes="iuUSO")
"""Names of the classes, one each."""
IDS = Role(("ids", "id", "doc_id", "request_id"), ("index",), dtypes="iuUSO")
"""What names a row. `index` may be a feature or a count as well: ids of data sets alone."""
NAME_WORDS = {"id", "ids", "idx", "index", "uid", "uuid", "guid", "key", "hash", "filename", "path", "url"}
"""The last word of a name of a column that may name its rows: `rowIndex`, `request_id`."""
SAMPLES = {
    *("row", "rownames", "sample", "example", "item", "instance", "question", "prompt", "text", "sentence", "image"),
    *("img", "file", "document", "doc", "case"),
}
"""What a row may be of: such a column may name it."""
TOGETHER = {
    *("patient", "subject", "user", "person", "speaker", "customer", "client", "household", "family", "group"),
    *("class", "label", "category", "fold", "site", "hospital", "batch", "session", "run", "model", "epoch"),
}
"""What samples have in common: an id of these words names no sample."""
ROW_NUMBERS = Role(("", "index", "unnamed:_0", "unnamed: 0", "row"))
"""What programs that write tables put before the first column."""
RECORDED = (SCORES, LABELS, PREDICTED, CONFIDENCE, CORRECT, LOSS, CLASSES)
"""What recorded outputs consist of, beside ids; other columns are properties of their rows, to slice by."""


PREDICTION_WORDS = {"pred", "preds", "predicted", "prediction", "predictions", "yhat", "guess", "assigned", "accept"}
TRUTH_WORDS = {"true", "truth", "actual", "gold", "label", "labels", "observed", "target", "outcome", "expected"}
SCORE_WORDS = {"prob", "probs", "proba", "probability", "probabilities", "score", "scores", "confidence", "risk"}
ERROR_WORDS = {"error", "errors", "wrong", "incorrect", "mistake", "miss"}
"""Words in names of columns that say which predictions were not right."""


def says(name: str, words: set[str]) -> bool:
    """Return whether one of the words is in the name of a column: `pred` in `Top 1 Pred-Class` and `predClass`."""
    parts = re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)
    return not words.isdisjoint(part.lower() for part in parts)


def names_rows(name: str) -> bool:
    """Return whether a column of this name may say which sample a row is of; what it holds must show that it does."""
    words = [word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+", name)]
    named = bool(words) and (words[-1] in NAME_WORDS or (len(words) == 1 and words[0] in SAMPLES))
    return named and not TOGETHER.intersection(words)


FOLDED = "folded"  # what logits say of a calibrator that is in the model

# ── columns of scores, one per class ──
PREFIXES = {
    **dict.fromkeys(("logit", "logits"), "logits"),
    **dict.fromkeys(("prob", "probs", "proba", "p"), "probabilities"),
    **dict.fromkeys(("log_prob", "log_probs", "logprob"), "log_probabilities"),
    **dict.fromkeys(("score", "scores"), ""),
}
"""Words before the number of a class, and the kind of scores that they claim."""
PREFIXED = re.compile(r"^(logit|prob|proba|log_prob|score)_(.+)$")  # several columns that begin alike
OF_CLASS = re.compile(r"^(p|prob|proba|probs|probability|logit|score|log_odds)(?:_(?=.)|(?=\d+$))(.+)$", re.IGNORECASE)
NO_CLASS = ("max", "top", "top1", "value", "val", "values", "hat", "pred", "predicted", "correct", "conf", "confidence")
"""What stands behind such a word and is no class: `prob_max`."""
ABOUT_SCORES = {"class", "cls", "pred", "pr", "softmax", *PREFIXES}
"""Words of which one stands beside the number of a score column: `x0` may be anything."""
OUTCOMES = (("false", "true"), ("no", "yes"), ("negative", "positive"), ("n", "y"), ("f", "t"))
"""Names of two classes whose order is plain."""
RIGHT_WORDS = {"1", "1.0", "true", "t", "yes", "y", "correct", "right", "c", "pass", "passed"}
WRONG_WORDS = {"0", "0.0", "false", "f", "no", "n", "incorrect", "wrong", "i", "fail", "failed"}
"""Cells of a column that says whether each prediction was right."""

# ── data sets ──
INPUTS = Role(("images", "x", "inputs", "data", "features", "pixel_values", "tokens"))
TOKENS = ("input_ids", "attention_mask", "token_type_ids", "position_ids")
TEXTS = Role(
    ("text", "texts", "sentence", "content", "review", "document", "comment", "tweet", "utterance", "headline")
)
PAIRS = (("premise", "hypothesis"), ("sentence1", "sentence2"), ("sentence_1", "sentence_2"), ("text1", "text2"),
         ("text_a", "text_b"), ("question1", "question2"), ("question", "sentence"), ("question", "passage"),
         ("query", "passage"), ("query", "document"), ("text", "text_pair"))  # fmt: skip
"""A first and a second text."""
TABLE_LABELS = (*LABELS.names, "class")
"""Labels in a table of features or texts, where the other weak names may be features."""
SPLITS = {
    "train": ("train", "training", "tr"),
    "validation": ("validation", "val", "valid", "dev"),
    "test": ("test", "te", "eval"),
}
"""Words for the parts of a data set, in names of arrays, files and folders."""
