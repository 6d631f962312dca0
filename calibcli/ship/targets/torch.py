"""A calibrator, or a model with it, as a program that torch loads: `.pt2` and TorchScript."""

from __future__ import annotations

from calibcli.ship.target import TARGETS, Job, Shipped


@TARGETS.add(suffixes=(".pt2",), data="either")
def pt2(job: Job) -> Shipped:
    """A `torch.export` program of any batch size: scores to probabilities; with --model, inputs to log-probabilities.

    Ours: the map traced and compared in eager torch after it was read back.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     fit = calibcli.fit_scaler(logits, labels, "vector")
    ...     found = calibcli.export(fit, "pt2", save=f"{folder}/calibrator.pt2", data=logits)
    >>> found.facts["limit"]
    1e-06
    """
    from calibcli.ship.torch_files import ship

    return ship(job, "pt2")


@TARGETS.add(suffixes=(".pt", ".pth"), data="either")
def torchscript(job: Job) -> Shipped:
    """A traced TorchScript module of any batch size, for programs that still load one (libtorch before 2.6).

    Ours: the map traced and compared after it was read back.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     fit = calibcli.fit_scaler(logits, labels, "isotonic")
    ...     found = calibcli.export(fit, "torchscript", save=f"{folder}/calibrator.pt", data=logits)
    >>> found.facts["arithmetic"]
    'float64'
    """
    from calibcli.ship.torch_files import ship

    return ship(job, "torchscript")
