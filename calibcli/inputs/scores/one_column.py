"""One score for each row: of a class, or of whichever class was predicted, as pipelines write it?"""

from __future__ import annotations

import math

import numpy as np

from calibcli.errors import InputError
from calibcli.inputs.files.arrays import Contents, texts_of, whole
from calibcli.inputs.files.roles import PREDICTED
from calibcli.inputs.scores.mistakes import ranked
from calibcli.inputs.scores.scan import KeptRows, Scan
from calibcli.predictions import Array, Kind

FEWEST, MOST = 20, 100_000  # rows that are looked at
SAME_RANKS = 0.9  # AUC of a score for its own prediction is 1, of a confidence about 1/2
RANK_Z, GAP_Z = 1.5, 4.0


def refuse_top(found: Scan, rows: KeptRows, kind: Kind, contents: Contents, name: str, labels: str, event: str) -> None:
    """Refuse P of the predicted class as that of one class. Ours: none is below 1/2, and they do not rank the rows.

    A score above 1/2 in every row may be either. Of the predicted class it is no larger where the event is predicted
    than where it is not; without predictions, the event is no more frequent where it is larger, and rarer than it says.

    Args:
        name, labels: of the arrays.  event: what the class of the scores is called, "" where labels are numbers.

    Raises:
        InputError: they are of the predicted class.
    """
    if found.k != 1 or kind != "probabilities" or found.low < 0.5 or found.high == found.low or found.finite < FEWEST:
        return
    p = np.asarray(rows.scores.read(0, MOST)[:, 0], np.float64)
    beside = next((c for c, a in contents.arrays.items() if c in PREDICTED and c not in (name, labels)), None)
    predicted = None if beside is None else _is_event(contents, beside, rows, event)
    if predicted is not None and len(predicted) == len(p) and 0 < predicted.sum() < len(p):
        top, why = ranked(p, predicted)[0] < SAME_RANKS, f"and is as large where '{beside}' is another class"
    elif rows.codes is not None:
        y = np.asarray(rows.codes[: len(p)], np.int64)
        z, gap = ranked(p, y)[1], float(np.mean(p - y))
        top = z < RANK_Z and gap > GAP_Z * math.sqrt(float(np.mean(p * (1 - p))) / len(p))
        why = f"and its mean {p.mean():.3f} is far from the share of that class, {y.mean():.3f}"
    else:
        return
    if top:
        file = contents.format != "arrays"
        way = f"--confidence {name}, beside the columns predicted and label" if file else "calibcli.from_confidence"
        raise InputError(
            f"'{name}' is never below 0.5 {why}: is it the probability of the predicted class?",
            f"then {way}; if it is of {event or 'class 1'} in every row: --kind probabilities",
        )


def _is_event(contents: Contents, column: str, rows: KeptRows, event: str) -> Array | None:
    """Whether each of the rows that are kept is predicted as the event."""
    array = contents.arrays[column]
    if array.shape[1:] not in ((), (1,)):
        return None
    values = whole(array).reshape(-1)
    values = values if rows.keep is None or len(values) <= rows.keep.max(initial=0) else values[rows.keep]
    texts = np.char.strip(texts_of(values[:MOST]))
    return np.isin(texts, [event] if event else ["1", "1.0", "True", "true"])
