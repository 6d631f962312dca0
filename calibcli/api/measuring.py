"""Read and measure, from Python; and what every function of this room may be given for scores."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Unpack, cast

import numpy.typing as npt

from calibcli import headline
from calibcli.errors import check_keywords
from calibcli.inputs.opening import Reading
from calibcli.inputs.scores import recorded
from calibcli.inputs.scores.from_arrays import OF_FILES, How, checked, of_labels
from calibcli.inputs.scores.from_arrays import of_arrays as from_arrays
from calibcli.inputs.scores.from_arrays import of_confidence as from_confidence
from calibcli.inputs.scores.recorded import read
from calibcli.predictions import Predictions, Progress
from calibcli.result import Result
from calibcli.spec import Drawn

if TYPE_CHECKING:
    from calibcli.metrics.report import Options

__all__ = ["from_arrays", "from_confidence", "measure", "read"]

Scores = Predictions | str | Path | Sequence[str | Path] | npt.ArrayLike
"""What Python may be asked about: predictions, the file or files of them, or an array."""
F = TypeVar("F", bound=Callable[..., Any])


def spread(function: F, but: Collection[str] = ()) -> F:
    """Show the keywords of `How`, `but` for some, in place of `**how`, to `help`, editors and errors."""
    own = inspect.signature(function)
    keyword = inspect.Parameter.KEYWORD_ONLY
    free = {name: kind for name, kind in How.__annotations__.items() if name not in {*own.parameters, *but}}
    more = [inspect.Parameter(name, keyword, default=None, annotation=kind) for name, kind in free.items()]
    kept = [p for p in own.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
    function.__signature__ = own.replace(parameters=[*kept, *more])  # type: ignore[attr-defined]
    return function


from_arrays = spread(from_arrays, OF_FILES)


def is_path(scores: object) -> bool:
    """Whether this names a file, or several."""
    several = isinstance(scores, list | tuple) and bool(scores) and isinstance(scores[0], Path)
    return several or isinstance(scores, str | Path)


def given(
    function: Callable[..., Any],
    scores: Scores,
    labels: Any = None,
    how: How | None = None,
    progress: Progress | None = None,
    need_labels: bool = True,
    whole: bool = False,
    hashed: bool = True,
) -> Predictions:
    """Predictions of what a function, which has `spread` keywords, was given: themselves, a file, or arrays.

    Args:
        whole: the function takes the rows of one problem together.  hashed: take the digests of files.

    Raises:
        InputError: a file or arrays that are refused.
        UsageError: rows that `by` or `multilabel` split, where they are taken as a whole.
        TypeError: labels that are missing or too many, or an unknown keyword.
    """
    how = how or {}
    name = function.__name__
    if how:
        check_keywords(how, inspect.signature(function).parameters, name)
    if whole:
        Reading(**cast(dict[str, Any], how)).whole(name)
    if isinstance(scores, Predictions):
        if labels is not None or how:
            raise TypeError(f"{name}(predictions) takes neither labels nor options of arrays: these are read already")
        return scores
    if is_path(scores):
        path = cast("str | Path | Sequence[str | Path]", scores)
        return read(path, progress=progress, need_labels=need_labels, hashed=hashed, labels=labels, **how)
    if labels is None and need_labels:
        raise TypeError(f"labels are missing: {name}(scores, labels)")
    return checked(cast(npt.ArrayLike, scores), labels, how)


def of_each_label(
    scores: Scores, labels: Any, how: How, progress: Progress | None = None, hashed: bool = True
) -> dict[str, Predictions]:
    """Predictions of each label of a multi-label problem, of a file or of arrays (N, L).

    Raises:
        InputError: as `multilabel.read` and `of_labels`.
    """
    from calibcli.inputs.scores import multilabel  # here, as most rows have one label

    named: dict[str, Any] = {**how, "labels": labels}
    if is_path(scores):
        return multilabel.read(scores, progress=progress, hashed=hashed, **named)  # type: ignore[arg-type]
    return of_labels(scores, **{name: value for name, value in named.items() if name != "multilabel"})  # type: ignore[arg-type]


@spread
def measure(
    scores: Scores,
    /,
    labels: npt.ArrayLike | None = None,
    *specs: str,
    bins: int | None = None,
    edges: Literal["right", "left", "torchmetrics"] | None = None,
    level: float = 0.95,
    per_class: bool = False,
    top_k: int = 0,
    diagram: bool = False,
    curve: Drawn = "corp",
    seed: int = 0,
    threads: int = 1,
    progress: Progress | None = None,
    **how: Unpack[How],
) -> Result:
    """Metrics with their uncertainty, by spec (any spelling of it): the default set, or those named.

    >>> found = measure([[2.0, 0.0], [0.0, 1.0], [3.0, 0.0]], [0, 1, 1], "accuracy", "ece:bins=10")
    >>> round(found["accuracy"].value, 4), found["ece:bins=10"].n
    (0.6667, 3)

    Args:
        scores: (N, K) logits or probabilities, of float16 to float64, with `labels` (N,); or `Predictions`, or a file.
        labels: (N,) integers; of a file, the name of their array. Of predictions, the first spec.
        specs: metric specs such as `ece:bins=30`; each says its source (`calib list metrics`).
        bins, edges: of metrics whose spec does not say.  level: confidence level of the intervals.
        per_class: a table of each class.  top_k: also for the top 2, ..., k classes together.
        diagram: give the reliability diagram in `plots` its curve; without, the default set has accuracy per bin
            alone and named specs have no diagram.
        curve: what its picture draws: the isotonic regression, accuracy per bin, or the smooth curve.
        seed: of what is simulated.  threads: workers; 0 uses every core.  progress: called with (fraction, text).
        how: see `from_arrays`, and of a file `read`; `by` measures each part beside the whole.

    Returns:
        The estimates by spec; probabilities between 0 and 1, log losses in nats.

    Raises:
        InputError: arrays or a file that are refused.  UsageError: an unknown metric or option.
        TypeError: an unknown keyword, or specs that are not texts.
    """
    from calibcli.metrics import report as reports  # here, as other functions start without it

    if isinstance(scores, Predictions) and isinstance(labels, str):
        specs, labels = (labels, *specs), None
    for spec in specs:
        if not isinstance(spec, str):
            raise TypeError(f"a metric is a text, not {type(spec).__name__}: measure(scores, labels, 'ece', 'nll')")
    options = reports.Options(
        specs=specs or None,
        bins=bins,
        edges=edges,
        level=level,
        per_class=per_class,
        top_k=top_k,
        diagram=diagram,
        curve=curve,
        seed=seed,
        threads=threads or None,
    )
    return measured(scores, labels, options, progress, how)


def measured(
    scores: Scores,
    labels: npt.ArrayLike | None,
    options: Options,
    progress: Progress | None,
    how: How,
    hashed: bool = True,
) -> Result:
    """As `measure`, by options that are checked; `how` may name what the keywords of `spread` do."""
    from calibcli.metrics import report as reports

    if how.get("multilabel") and not isinstance(scores, Predictions):
        parts = of_each_label(scores, labels, how, progress, hashed)
        result, first = reports.report_multilabel(parts, options, progress), next(iter(parts.values()))
    else:
        first = given(measure, scores, labels, how, progress, hashed=hashed)
        result = reports.report(first, options, progress)
    said = headline.headed(result)
    return dataclasses.replace(said, provenance={"inputs": recorded.provenance(first), "seed": options.seed})
