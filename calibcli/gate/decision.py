"""What a threshold decides about rows that it was not found on: kept in the facts of a result of `calib threshold`."""

from __future__ import annotations

import dataclasses
import hashlib
import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from calibcli.core.errors import InputError, UsageError, did_you_mean
from calibcli.core.number_format import exact
from calibcli.core.options import Alpha, Share
from calibcli.core.result import Result
from calibcli.core.statistics import DOUBLE
from calibcli.core.validation import read
from calibcli.gate.config import Condition, Gate
from calibcli.gate.sources import BY_CLASS
from calibcli.metrics.report import class_names
from calibcli.scores.files.source import Source
from calibcli.scores.likelihood import log_softmax
from calibcli.scores.predictions import Floats, Ints, Predictions

FACT = "decision"
ACCEPT = "accept"  # column that `calib apply --threshold` writes
MOST_MARKS, FEWEST_MARKS, SAME = 1000, 20, 0.99  # marks that are kept; those that tell; share of rows that were there
ROUNDED = 1000  # one row in so many may be decided otherwise once its score was rounded to be written
ACCURACY, SHARE = "high_confidence_accuracy", "high_confidence_share"


@dataclass(frozen=True, kw_only=True)
class Decision:
    """Which rows are accepted.

    Attributes:
        of: what is promised of accepted rows: a largest `risk`, a smallest `precision` or a largest `fpr`.
        limit: that number.  alpha: chance that the promise is broken.
        name: the class whose probability is compared with the threshold; "" for the confidence.
        by: column whose values have thresholds of their own.
        tau: the threshold by value of the column, under "" that of all rows; None accepts nothing.
        share: by the same, the share of rows below which fewer are accepted than when it was found.
        calibrator: digest of the file of the map that the scores were passed through, or "".
        rows: digests of the files that it was found on.  marks: of its rows, see `marks`.
    """

    of: str
    limit: Share
    alpha: Alpha
    name: str = ""
    by: str = ""
    tau: Mapping[str, Share | None]
    share: Mapping[str, Share] = field(default_factory=dict)
    calibrator: str = ""
    rows: Sequence[str] = ()
    marks: Sequence[str] = ()

    def scores(self, rows: Predictions) -> tuple[Floats, Ints]:
        """Return (N,) what is compared with the threshold, and the predicted class.

        Raises:
            InputError: a class is missing.
        """
        names = class_names(rows)
        if self.name and self.name not in names:
            raise InputError(f"{rows.source} has no class '{self.name}'", did_you_mean(self.name, names))
        score, top = np.empty(rows.n), np.empty(rows.n, np.int64)
        for start, block in rows.blocks():
            p, part = np.exp(log_softmax(block)), slice(start, start + len(block))  # (rows, K)
            top[part] = p.argmax(axis=1)
            score[part] = p[:, 1] if rows.top_only else p[:, names.index(self.name)] if self.name else p.max(axis=1)
        return score, top

    def accepts(self, rows: Predictions) -> npt.NDArray[np.bool_]:
        """Return (N,) whether each row is accepted; one of a slice without a threshold is not.

        Raises:
            InputError: a class or column is missing.
        """
        if self.by and self.by not in (BY_CLASS, *rows.slices):
            raise InputError(f"{rows.source} has no column '{self.by}', which thresholds depend on", "add it")
        (score, top), names = self.scores(rows), class_names(rows)
        tau = {value: math.inf if tau is None else tau * (1 - DOUBLE) for value, tau in self.tau.items()}
        if not self.by:
            return score >= tau[""]
        if self.by == BY_CLASS:
            values = np.array(names)[top if rows.predicted is None else rows.predicted]
        else:
            values = rows.slices[self.by]
        return score >= np.array([tau.get(str(value), math.inf) for value in values.tolist()])

    def refuse_own(self, files: Sequence[Mapping[str, Any]], rows: Predictions) -> None:
        """Refuse to judge the threshold on the rows that it was found on, in their file or in another one.

        Rows are told by marks of their score and label: `marks`. Where scores are few, other rows have the same marks,
        so that there must be nearly as many of them as there were.

        Raises:
            InputError: they are those rows.
        """
        own = next((file["path"] for file in files if file.get("sha256") in self.rows), "")
        if not own and self.marks and rows.n and rows.record.labelled:
            here, last = marks(self.scores(rows)[0], rows.labels), self.marks[-1]
            here = [mark for mark in here if mark <= last]
            shared = len({*here} & {*self.marks})
            many = len({*np.round(self.scores(rows)[0], 4).tolist()}) > rows.n / 2 or len(here) > len(self.marks) / 2
            own = rows.source if many and len(here) >= FEWEST_MARKS and shared >= SAME * len(here) else ""
        if own:
            raise InputError(f"the threshold was found on {own}, whose rows vouch for it too well", "pass other rows")

    @property
    def flags(self) -> str:
        """The options of `calib threshold` that find it again on other rows."""
        promised = {
            "risk": "--max-risk ",
            "precision": f"--min-precision {shlex.quote(self.name)}=",
            "fpr": "--max-fpr ",
        }
        flags = promised[self.of] + exact(self.limit)
        return f"{flags} --alpha {exact(self.alpha)}" + f" --by {shlex.quote(self.by)}" * bool(self.by)

    @property
    def evidence(self) -> list[str]:
        """Columns that show whether scores went through the map of the threshold."""
        return [ACCEPT] if self.calibrator else []

    def refuse_unmapped(self, rows: Predictions, path: str | None) -> None:
        """Refuse scores that may not have gone through the map of the threshold. A column `accept` that is what the
        threshold decides by these scores shows that they did.

        Args:
            path: the file of this threshold.

        Raises:
            InputError: there is no such column, or it says otherwise.
        """
        if not self.calibrator:
            return
        written = rows.slices.get(ACCEPT)
        fix = f"calib apply MAP {rows.source} --save mapped.npz --threshold {path} writes what to pass instead"
        if written is None:
            problem = (
                f"the threshold is of scores that went through a map, and nothing shows that those of {rows.source} did"
            )
            raise InputError(problem, fix)
        accepted = np.isin(np.char.lower(np.asarray(written).astype(str)), ["true", "1"])
        other = int((accepted != self.accepts(rows)).sum())
        if other > 1 + rows.n // ROUNDED:
            problem = (
                f"by these scores the threshold decides {other:,} of {rows.n:,} rows otherwise than '{ACCEPT}' says"
            )
            raise InputError(f"{problem}: they did not go through its map, or it is another threshold", fix)

    def gates(self, others: Sequence[Gate]) -> list[Gate]:
        """Return rules on other rows: the promise, on the accuracy of accepted rows, and one on their share.

        A threshold of all rows is also the tau of the `others` on these metrics that have none, which go before.

        Raises:
            UsageError: no metric measures what is promised.
        """
        if self.of == "fpr":
            fix = "find the threshold again on the new rows: calib threshold FILE --max-fpr LIMIT"
            raise UsageError("a rate of false positives is no metric that a rule can be on", fix)
        gates, accuracy = list[Gate](), self.limit if self.of == "precision" else round(1 - self.limit, 12)
        for value, tau in self.tau.items():
            if tau is None:
                continue
            options = f"tau={exact(tau)}" + ",of=positive" * bool(self.name)
            by = str(Condition(self.by, "=", value)) if self.by else ""
            for name, least in ((ACCURACY, accuracy), (SHARE, self.share.get(value, 0.0))):
                own = [gate for gate in others if gate.metric == name and not self.by]
                mine = [Gate(metric=name, min=least, by=by)] if least > 0 else []
                gates += [dataclasses.replace(gate, metric=f"{name}:{options}") for gate in own or mine]
        return [*(gate for gate in others if self.by or gate.metric not in (ACCURACY, SHARE)), *gates]


def marks(score: Floats, labels: Any) -> list[str]:
    """Return the smallest marks of rows, in order: a hash of the score to four digits, the label, and which of the rows
    with both it is. So the marks of a part of the rows are mostly among those of the whole.

    Args:
        score: (N,) in [0, 1].  labels: (N,) codes.
    """
    keys = np.round(score, 4) + 2.0 * np.asarray(labels[:], np.float64)  # one number for score and label
    values, member = np.unique(np.round(keys, 4), return_inverse=True)
    order = np.argsort(member, kind="stable")
    first = np.searchsorted(member[order], np.arange(len(values)))
    which = np.empty(len(keys), np.int64)
    which[order] = np.arange(len(keys)) - first[member[order]]
    texts = (f"{key:.4f} {i}" for key, i in zip(keys.tolist(), which.tolist(), strict=True))
    return sorted(hashlib.blake2b(text.encode(), digest_size=4).hexdigest() for text in texts)[:MOST_MARKS]


def load(path: str | Path) -> tuple[Decision, dict[str, str]]:
    """Read a threshold from a result of `calib threshold`; also return path and sha256 of the file.

    Raises:
        InputError: the file cannot be read, or holds none.
    """
    source, fix = Source(path), "pass a file of calib threshold --save"
    result = Result.from_json(source.read(), str(path))
    if result.command != "threshold":
        raise InputError(f"{path} is a result of calib {result.command}, not a threshold", fix)
    decision: Decision = read(result.facts.get(FACT), Decision, str(path), fix, FACT)
    return decision, source.entry()
