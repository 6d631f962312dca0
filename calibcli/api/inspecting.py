"""Say what a file would be read as, from Python."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Unpack

from calibcli import headline
from calibcli.api.measuring import spread
from calibcli.errors import check_keywords
from calibcli.inputs import models_and_folders
from calibcli.inputs.scores import recognise
from calibcli.inputs.scores.from_arrays import How
from calibcli.predictions import Progress
from calibcli.result import Result

__all__ = ["inspect"]


@spread
def inspect(
    path: str | Path | Sequence[str | Path],
    /,
    *,
    labels: str | None = None,
    progress: Progress | None = None,
    **how: Unpack[How],
) -> Result:
    """Say what a file would be read as, and why; refuses what `read` refuses.

    Says whether scores are logits or probabilities, and what tells. A model, a data set, a calibrator or a result is
    named, with the command that takes it. Ours: what is looked for, and in which order.

    >>> import numpy as np
    >>> np.savez(folder / "test.npz", logits=logits, labels=labels)
    >>> found = inspect(folder / "test.npz")
    >>> found.facts["kind"], found.facts["rows"]
    ('logits', 997)

    Args:
        path: file or folder, or the files of one data set.
        labels: the name of their array, or a file of them.  how: as for `read`.
        progress: called with (fraction, text).

    Raises:
        InputError: a file that is refused.  UsageError: an option that cannot be.  TypeError: an unknown keyword.
    """
    check_keywords(how, How.__annotations__, "inspect")
    files = [path] if isinstance(path, str | Path) else list(path)
    reading: dict[str, Any] = {**how, **({} if labels is None else {"labels": labels})}
    found = models_and_folders.of(Path(files[0])) if len(files) == 1 and not reading else None
    if found is None:
        result, inputs = recognise.inspect(files, reading, progress)
        found = dataclasses.replace(result, provenance={"inputs": inputs})
    return headline.headed(found)
