"""Which array is the scores and which the labels: known names, one candidate each, else an error that names them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path

from calibcli.errors import InputError, did_you_mean
from calibcli.inputs.files.arrays import Contents, Named
from calibcli.inputs.files.names import LABELS, SCORES
from calibcli.spec import normal

SINGLE = ("logit", "prob", "proba", "probability", "score", "log_odds")  # one column of a table
SINGLE_KINDS = {"logit": "logits", "log_odds": "logits", "score": ""}
OF_CLASS = re.compile(r"^(p|prob|proba|probs|probability|logit|score|log_odds)(?:_(?=.)|(?=\d+$))(.+)$", re.IGNORECASE)
NO_CLASS = ("max", "top", "top1", "value", "val", "values", "hat", "pred", "predicted", "correct", "conf", "confidence")
CLASS_CALLS = ("predictions", "preds", "y_pred", "outputs")  # scores only when there are two dimensions
EVERY_CLASS = "save the scores of every class as an array (N, K): logits or probabilities"
VERDICTS = ("correct", "is_correct", "was_correct", "right", "is_right", "hit", "correctness", "acc", "accuracy")
TOP_ONLY = ("confidence", "confidences", "max_prob", "max_probs", "top1", "top_prob", "conf", "pred_prob", "msp",
            "pred_confidence", "top_confidence", "max_confidence")  # fmt: skip


def pick_scores(contents: Contents, wanted: str | None, where: str) -> str:
    """Name of the array with the scores.

    Raises:
        InputError: none, more than one, or no array of the wanted name.
    """
    if wanted:
        return named(contents, wanted, "--scores", where)
    if contents.scores:
        return contents.scores
    found = candidates(contents)
    if len(found) > 1:
        raise InputError(f"{_list(found)} in {where} could each be the scores", f"choose one, e.g. --scores {found[0]}")
    if found:
        return found[0]
    top = [name for name in contents.arrays if normal(name) in TOP_ONLY]
    if top:
        verdict = [name for name in contents.arrays if normal(name) in VERDICTS]
        with_it = f" and whether it was right ('{verdict[0]}')" if verdict else ""
        raise InputError(f"{where} holds only the score of the top class ('{top[0]}'){with_it}", EVERY_CLASS)
    raise InputError(
        f"no scores in {where}: it holds {describe(contents)}",
        "choose them with --scores KEY, or name them logits or probs",
    )


def refuse_verdicts(scores: str, labels: str, where: str) -> None:
    """Refuse one score per row whose name says that it is the top class's, or labels that say whether that was right.

    Read as P(class 1) and its label they would give other numbers: where the top class is wrong, accuracy and
    confidence are those of the other event.

    Raises:
        InputError: the names say so.
    """
    name = Path(labels).stem if labels else ""
    if normal(scores) in TOP_ONLY:
        problem = f"'{scores}' in {where} is the confidence in the predicted class, not the probability of class 1"
    elif normal(name) in VERDICTS:
        problem = f"labels '{labels}' say whether a prediction was right, not which class was observed"
    else:
        return
    raise InputError(problem, f"{EVERY_CLASS}; if it is P(class 1) with labels 0 and 1: call them prob and label")


def candidates(contents: Contents) -> list[str]:
    """Names of the arrays that could be the scores; if there are none, columns named after a class: `p_malignant`."""
    if contents.scores:
        return [contents.scores]
    found = [name for name, array in contents.arrays.items() if name in contents.kinds or _may_score(name, array)]
    return found or [name for name, a in contents.arrays.items() if carried(name) and a.shape[1:] == () and _scalars(a)]


def carried(name: str) -> str:
    """The class that the name of a column of scores carries: `malignant` of `p_malignant`, `1` of `prob_1`; else ""."""
    found = OF_CLASS.match(name)
    return "" if found is None or normal(found[2]) in NO_CLASS else found[2]


def pick_labels(contents: Contents, wanted: str | None, scores: str, where: str) -> str | None:
    """Name of the array with the labels, or None when there is none.

    Raises:
        InputError: more than one, or no array of the wanted name.
    """
    if wanted:
        return named(contents, wanted, "--labels", where)
    if contents.labels:
        return contents.labels
    found = [name for name, a in contents.arrays.items() if normal(name) in LABELS and name != scores and a.shape]
    if len(found) > 1:
        raise InputError(f"{_list(found)} in {where} could each be the labels", f"choose one, e.g. --labels {found[0]}")
    return found[0] if found else None


def named(contents: Contents, name: str, option: str, where: str) -> str:
    """`name` as it is spelled in the file.

    Raises:
        InputError: the file has no such array.
    """
    if name in contents.arrays:
        return name
    for known in contents.arrays:
        if normal(known) == normal(name):
            return known
    known_names = list(contents.arrays)
    raise InputError(
        f"{option} {name}: no such array in {where}, it holds {describe(contents)}",
        did_you_mean(name, known_names[:20]),
    )


def first_of(contents: Contents, names: Iterable[str], fits: Callable[[Named], bool]) -> str | None:
    """The first array with one of these names that fits."""
    for name, array in contents.arrays.items():
        if normal(name) in names and fits(array):
            return name
    return None


def declared_kind(contents: Contents, name: str) -> str:
    """The kind of scores that the name itself claims, or ''."""
    if name in contents.kinds:
        return contents.kinds[name]
    key = normal(name)
    if key not in SCORES and key not in SINGLE and carried(name):
        key = str(OF_CLASS.match(name)[1]).lower()  # type: ignore[index]
        return "probabilities" if key.startswith("p") else SINGLE_KINDS.get(key, "")
    return SCORES.get(key, SINGLE_KINDS.get(key, "probabilities" if key in SINGLE else ""))


def describe(contents: Contents, limit: int = 8) -> str:
    """`logits (1000, 10) float32, labels (1000,) int64`."""
    shown = [f"{name} {shape_text(array)}" for name, array in contents.arrays.items()]
    more = f" and {len(shown) - limit} more" if len(shown) > limit else ""
    return ", ".join(shown[:limit]) + more if shown else "nothing"


def shape_text(array: Named) -> str:
    kind = {"O": "text", "U": "text", "S": "text"}.get(array.dtype.kind, str(array.dtype))
    return f"{tuple(array.shape)} {kind}"


def _may_score(name: str, array: Named) -> bool:
    key = normal(name)
    dims = len(array.shape)
    if dims == 0 or (key not in SCORES and not (key in SINGLE and dims == 1)):
        return False
    if dims == 1 and key in CLASS_CALLS:
        return False
    return _scalars(array) if dims == 1 else array.dtype.kind in "biufUSO"


def _scalars(array: Named) -> bool:
    """Whether a column may be scores: fractions, or text that is to be read as such."""
    return bool(array.shape) and array.dtype.kind in "fUO"


def _list(names: list[str]) -> str:
    quoted = [f"'{n}'" for n in names[:4]]
    return ", ".join(quoted[:-1]) + " and " + quoted[-1]
