"""What a threshold decides about rows that it was not found on: kept in the facts of a result of `calib threshold`."""

from __future__ import annotations

import dataclasses
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
from calibcli.scores.input_mistakes import hash_rows
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
    marks: Sequence[int] = ()

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
        return self._reach(rows, *self.scores(rows))

    def _reach(self, rows: Predictions, score: Floats, top: Ints) -> npt.NDArray[np.bool_]:
        if self.by and self.by not in (BY_CLASS, *rows.slices):
            raise InputError(f"{rows.source} has no column '{self.by}', which thresholds depend on", "add it")
        tau = {value: math.inf if tau is None else tau * (1 - DOUBLE) for value, tau in self.tau.items()}
        if not self.by:
            return score >= tau[""]
        if self.by == BY_CLASS:
            values = np.array(class_names(rows))[top if rows.predicted is None else rows.predicted]
        else:
            values = rows.slices[self.by]
        return score >= np.array([tau.get(str(value), math.inf) for value in values.tolist()])

    def refuse_rows(self, files: Sequence[Mapping[str, Any]], rows: Predictions, path: str | None) -> None:
        """Refuse to judge the threshold on the rows that it was found on, in their file or in another one, and on
        scores that may not have gone through its map.

        Args:
            files: of the rows, each with its sha256.  path: the file of this threshold.

        Raises:
            InputError: they are such rows.
        """
        own = next((file["path"] for file in files if file.get("sha256") in self.rows), "")
        score, top = self.scores(rows)
        if not own and rows.record.labelled and self._found_on(score, rows.labels):
            own = rows.source
        if own:
            raise InputError(f"the threshold was found on {own}, whose rows vouch for it too well", "pass other rows")
        if self.calibrator:
            self._refuse_unmapped(rows, self._reach(rows, score, top), path)

    def _found_on(self, score: Floats, labels: Any) -> bool:
        """Return whether rows are those that the threshold was found on, or a part of them, by the marks of their
        scores (N,) and labels. Where scores are few, other rows have the same marks: then there must be half as many
        as there were.
        """
        here = [mark for mark in marks(score, labels) if self.marks and mark <= self.marks[-1]]
        many_scores = len(np.unique(np.round(score, 4))) > len(score) / 2
        tell = len(here) >= FEWEST_MARKS and (many_scores or len(here) > len(self.marks) / 2)
        return tell and len({*here} & {*self.marks}) >= SAME * len(here)

    def _refuse_unmapped(self, rows: Predictions, accepted: npt.NDArray[np.bool_], path: str | None) -> None:
        """Refuse scores that may not have gone through the map of the threshold. A column `accept` that is what the
        threshold decides by these scores, `accepted` (N,), shows that they did.
        """
        written = rows.slices.get(ACCEPT)
        fix = f"calib apply MAP {rows.source} --save mapped.npz --threshold {path} writes what to pass instead"
        if written is None:
            problem = (
                f"the threshold is of scores that went through a map, and nothing shows that those of {rows.source} did"
            )
            raise InputError(problem, fix)
        other = int((accepted != np.isin(np.char.lower(np.asarray(written).astype(str)), ["true", "1"])).sum())
        if other > 1 + rows.n // ROUNDED:
            problem = (
                f"by these scores the threshold decides {other:,} of {rows.n:,} rows otherwise than '{ACCEPT}' says"
            )
            raise InputError(f"{problem}: they did not go through its map, or it is another threshold", fix)

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


def marks(score: Floats, labels: Any) -> list[int]:
    """Return the smallest marks of rows, in order: a hash of the score to four digits, the label, and which of the rows
    with both it is. So the marks of a part of the rows are mostly among those of the whole.

    Args:
        score: (N,) in [0, 1].  labels: (N,) codes.
    """
    rounded, codes = np.round(score, 4), np.asarray(labels[:])
    order = np.lexsort((codes, rounded))
    change = np.append(True, (np.diff(rounded[order]) != 0) | (np.diff(codes[order]) != 0))[: len(order)]
    places = np.arange(len(order))
    number = places - np.maximum.accumulate(np.where(change, places, 0))  # of each row among those like it, in order
    hashes = hash_rows(np.stack([rounded[order], codes[order], number])) >> np.uint64(32)
    smallest: list[int] = np.sort(hashes)[:MOST_MARKS].tolist()
    return smallest


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
