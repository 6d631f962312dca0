"""What arrays are called in files."""

from __future__ import annotations

SCORES = {
    "logits": "logits",
    "y_logits": "logits",
    "test_logits": "logits",
    "predictions": "",
    "preds": "",
    "y_pred": "",
    "probs": "probabilities",
    "probabilities": "probabilities",
    "y_prob": "probabilities",
    "y_proba": "probabilities",
    "scores": "",
    "log_probs": "log_probabilities",
    "outputs": "",
}
LABELS = ("labels", "label", "y_true", "y", "targets", "target", "label_ids", "ground_truth", "test_y")
CLASSES = ("classes", "class_names", "label_names", "classnames")
IDS = ("ids", "id", "doc_id")
