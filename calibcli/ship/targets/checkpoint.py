"""A calibrator folded into a checkpoint."""

from __future__ import annotations

from calibcli.ship.target import TARGETS, Job, Shipped


@TARGETS.add(suffixes=(), data="inputs")
def checkpoint(job: Job) -> Shipped:
    """The same checkpoint with the calibrator folded into its last linear layer: W' = A W, b' = A b + c.

    For maps that are linear in the logits: `temperature` (A = I / T), `vector`, `matrix` and `bcts` (A = V (I - 11'/K),
    as rows are centred), `platt` and `beta` with a = b of two classes (Guo et al. 2017). It is folded in float64, then
    cast to the type of the layer; the file says what was folded, and from which rows.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     fit = calibcli.fit_scaler(logits, labels)
    ...     found = calibcli.export(fit, "checkpoint", model=model, save=f"{folder}/model.pt")
    >>> found.facts["head"], found.facts["predicted classes changed"]
    ('linear', 0)
    """
    from calibcli.ship import checkpoint_files

    return checkpoint_files.ship(job)
