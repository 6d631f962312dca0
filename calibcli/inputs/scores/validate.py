"""What a scan of the scores means: the kind of scores, and the mistakes that people make."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from calibcli.errors import InputError
from calibcli.inputs.scores.fingerprints import overlap as overlap
from calibcli.inputs.scores.fingerprints import refuse_overlap as refuse_overlap
from calibcli.inputs.scores.fingerprints import row_hashes as row_hashes
from calibcli.inputs.scores.scan import UNIT_HIGH, UNIT_LOW, Scan
from calibcli.predictions import Ints, Kind

NAMES = {"logits": "logits", "probabilities": "probabilities", "log_probabilities": "log-probabilities"}
ORDER_P = 1e-6
BACKWARDS_Z = 3.09  # one in a thousand


def decide_kind(found: Scan, declared: str, forced: Kind | None, name: str) -> Kind:
    """The kind of scores, from all rows; a name that says otherwise is an error, `forced` overrides.

    Raises:
        InputError: the rows fit no kind, or not the one that the name claims.
    """
    kind = found.kind
    if forced:
        high, low = (1e-3, -math.inf) if forced == "log_probabilities" else (UNIT_HIGH, UNIT_LOW)
        if forced != "logits" and (found.high > high or found.low < low):
            raise InputError(
                f"--kind {forced}, but scores of '{name}' run from {found.low:.4g} to {found.high:.4g}",
                "leave --kind out, or pass --kind logits",
            )
        return forced
    if found.k == 1 and declared == "logits":
        return "logits"
    if kind is None:
        raise InputError(
            f"'{name}' lies in [0, 1] but rows do not sum to 1: row {found.first_off} sums to "
            f"{found.first_off_sum:.4g} ({found.off:,} of {found.finite:,} rows)",
            "probabilities of independent labels: --multilabel; logits that happen to lie there: --kind logits",
        )
    if declared and declared != kind and (declared, kind) != ("logits", "log_probabilities"):
        raise InputError(
            f"the name '{name}' says {NAMES[declared]} but the rows are {NAMES[kind]} ({evidence(found, kind)})",
            f"pass --kind {kind} if that is what they are, or save what the name says",
        )
    return kind


def evidence(found: Scan, kind: Kind) -> str:
    """The numbers behind the decision."""
    if found.k == 1:
        return f"one column in [{found.low:.4g}, {found.high:.4g}]"
    if kind == "probabilities":
        others = found.off + found.outside
        rows = "all rows" if others == 0 else f"all but {others:,} of {found.finite:,} rows"
        return (
            f"{rows} lie in [0, 1] and sum to 1 within {found.sum_tolerance:.2g} (largest deviation "
            f"{found.worst_sum:.2g})"
        )
    if kind == "log_probabilities":
        return f"no score above 0 and |logsumexp| <= {found.log_tolerance:.0e} in every row"
    inside = found.low >= UNIT_LOW and found.high <= UNIT_HIGH
    return f"scores run from {found.low:.4g} to {found.high:.4g}" + ("" if inside else ", beyond [0, 1]")


def refuse_nonfinite(found: Scan, kind: Kind, masks: bool, half: bool) -> None:
    """NaN and infinite scores. -inf is probability 0 where `masks` or the scores are log-probabilities.

    Raises:
        InputError: there are rows that cannot be used.
    """
    if found.nan:
        raise InputError(
            f"{found.nan:,} of {found.n:,} rows hold NaN, first row {found.first_nan}",
            "--drop-nonfinite drops and counts them; better find where they come from",
        )
    if found.infinite or (found.masked and not masks and kind != "log_probabilities"):
        rows = found.infinite + (0 if masks or kind == "log_probabilities" else found.masked)
        first = min(r for r in (found.first_infinite, found.first_masked) if r >= 0)
        why = "float16 overflows at 65504: save float32" if half else "did float16 overflow at 65504? save float32"
        raise InputError(
            f"{rows:,} of {found.n:,} rows hold infinite scores, first row {first}",
            f"{why}; --drop-nonfinite drops the rows; classes masked by -inf: --kind logits",
        )


def refuse_empty(found: Scan, kind: Kind) -> None:
    """Rows that give every class probability 0.

    Raises:
        InputError: there are some.
    """
    if kind == "probabilities" and found.empty and found.k > 1:
        raise InputError(
            f"{found.empty:,} rows give every class probability 0, first row {found.first_empty}",
            "leave these rows out, or save the logits",
        )


def refuse_double_softmax(found: Scan, kind: Kind, forced: bool) -> str:
    """A note, or for 10 classes and more an error, when every p is where softmax of probabilities puts it.

    Softmax of numbers in [0, 1] gives e^a / sum e^b, which lies in [1 / (e + K - 1), e / (e + K - 1)].

    Raises:
        InputError: K >= 10 and the kind was not given.
    """
    if kind != "probabilities" or found.k < 2 or not found.squashed or found.spread < 1e-6:
        return ""
    low, high = 1 / (np.e + found.k - 1), np.e / (np.e + found.k - 1)
    text = f"every probability lies in [{low:.3g}, {high:.3g}], where softmax of probabilities puts it"
    if found.k < 10 or forced:
        return f"{text}: was softmax applied twice?"
    raise InputError(
        f"{text} (here {found.low:.3g} to {found.high:.3g}): softmax was applied twice",
        "save the logits; if the model really is this unsure: --kind probabilities",
    )


def class_order(predicted: Ints, labels: Ints, k: int) -> tuple[dict[int, int], float, float] | None:
    """A renaming of the classes, found on the even rows, that raises accuracy on the odd rows at p < 1e-6.

    Args:
        predicted, labels: (N,) int64 in [0, k).

    Returns:
        (moved classes: predicted -> label, accuracy as it is, accuracy after) on the odd rows, or None. Only whole
        cycles count in which most classes are each other's most frequent partner, so that a model that merely
        prefers a class is not taken for a mislabelled one. The test is exact (sign test on the rows that differ).
    """
    if k < 3 or len(predicted) < 20:
        return None
    p, y = predicted[::2], labels[::2]
    pairs, counts = np.unique(p * k + y, return_counts=True)
    rows, columns = np.divmod(pairs, k)
    best_row, best_column = np.zeros(k, np.int64), np.zeros(k, np.int64)
    np.maximum.at(best_row, rows, counts)
    np.maximum.at(best_column, columns, counts)
    mutual = {(int(r), int(c)) for r, c, m in zip(rows, columns, counts) if m == best_row[r] == best_column[c]}
    if all(r == c for r, c in mutual):
        return None
    image: dict[int, int] = {}
    taken: set[int] = set()
    for i in np.argsort(-counts, kind="stable"):
        r, c = int(rows[i]), int(columns[i])
        if r not in image and c not in taken:
            image[r] = c
            taken.add(c)
    rest = [c for c in range(k) if c not in taken]
    for r in range(k):
        if r not in image:
            image[r] = r if r in rest else rest[0]
            rest.remove(image[r])
    moved = _sound_cycles(image, mutual)
    if not moved:
        return None
    table = np.arange(k)
    table[list(moved)] = list(moved.values())
    p, y = predicted[1::2], labels[1::2]
    plain, renamed = p == y, table[p] == y
    gained, lost = int((renamed & ~plain).sum()), int((plain & ~renamed).sum())
    if gained <= lost:
        return None
    from scipy.special import bdtrc

    if bdtrc(gained - 1, gained + lost, 0.5) >= ORDER_P:
        return None
    return moved, float(plain.mean()), float(renamed.mean())


def _sound_cycles(image: dict[int, int], mutual: set[tuple[int, int]]) -> dict[int, int]:
    moved: dict[int, int] = {}
    seen: set[int] = set()
    for first in image:
        cycle = []
        at = first
        while at not in seen:
            seen.add(at)
            cycle.append(at)
            at = image[at]
        if len(cycle) > 1 and sum((r, image[r]) in mutual for r in cycle) > len(cycle) / 2:
            moved.update({r: image[r] for r in cycle})
    return moved


def refuse_class_order(predicted: Ints, labels: Ints, k: int, classes: Sequence[str] | None, confirmed: bool) -> str:
    """A note when the order was confirmed by `--classes`, else an error, when `class_order` finds one.

    Raises:
        InputError: the classes of scores and labels are in different orders.
    """
    found = class_order(predicted, labels, k)
    if found is None:
        return ""
    moved, plain, renamed = found
    name = (lambda i: str(classes[i])) if classes else str
    shown = ", ".join(f"{name(r)} -> {name(c)}" for r, c in sorted(moved.items())[:4])
    text = (
        f"scores and labels seem to order the classes differently: score column -> label {shown}"
        f"{', ...' if len(moved) > 4 else ''} would raise accuracy from {plain:.3f} to {renamed:.3f} "
        f"on rows that were not used to find it (p < 1e-6)"
    )
    if confirmed:
        return text
    if all(c == (r + 1) % k for r, c in moved.items()) and not (labels == 0).any():
        raise InputError(text, "no label is 0: --label-base 1, if the first class is called 1")
    raise InputError(
        text, "give scores and labels the same order; if it is right with labels as numbers: --classes NAMES"
    )


def ties(found: Scan, kind: Kind, weighted: bool) -> list[str]:
    """A note on rows with several largest scores: which accuracy they have is a matter of the rule, here the first."""
    n, tied, tied_right, right = found.finite, found.tied, found.tied_right, found.right
    if found.k == 1 and found.margins:
        score, label = np.concatenate(found.margins), np.concatenate(found.compared)
        half = {"logits": 0.0, "log_probabilities": math.log(0.5)}.get(kind, 0.5)
        n, tied = len(score), int((score == half).sum())
        tied_right, right = tied, int(((score > half) == (label == 1)).sum()) - int((label[score == half] == 0).sum())
    if not tied:
        return []
    low, high = right / n, (right + tied_right) / n
    return [
        f"{tied:,} of {n:,} rows have several largest scores: the first class counts as predicted, by other rules "
        f"accuracy is {low:.4g} to {high:.4g}" + (" (unweighted)" if weighted else "")
    ]


def reversed_classes(found: Scan, names: Sequence[str]) -> list[str]:
    """A note where two classes make sense the other way round: AUC < 1/2 beyond chance (Mann & Whitney 1947)."""
    if not found.margins:
        return []
    score, label = np.concatenate(found.margins), np.concatenate(found.compared)
    n, ones = len(label), int(label.sum())
    if ones in (0, n):
        return []
    _, place, count = np.unique(score, return_inverse=True, return_counts=True)
    rank = np.cumsum(count) - (count - 1) / 2
    auc = (float(rank[place][label == 1].sum()) - ones * (ones + 1) / 2) / (ones * (n - ones))
    spread = n + 1 - float((count.astype(np.float64) ** 3 - count).sum()) / (n * (n - 1))
    if spread <= 0 or (0.5 - auc) / math.sqrt(spread / (12 * ones * (n - ones))) < BACKWARDS_Z:
        return []
    return [
        f"scores of {names[1]} are lower where the label is {names[1]} (AUC {auc:.3f}, below 0.5 beyond chance): the "
        f"classes may be in the wrong order (--classes in the order of the scores, or --event); reversed: {1 - auc:.3f}"
    ]
