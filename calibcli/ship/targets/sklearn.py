"""A calibrator as an estimator of scikit-learn."""

from __future__ import annotations

from calibcli.ship.target import TARGETS, Job, Shipped


@TARGETS.add(suffixes=(".pkl", ".skops"), data="either")
def sklearn(job: Job) -> Shipped:
    """A fitted `calibcli.Calibrator`, pickled or by skops: of scores, or with --model around a classifier in a file.

    It is a classifier, so it ends a Pipeline. A pickle is code: --model CLASSIFIER.pkl needs --trust, and so does
    `calib verify` of one; a `.skops` file of estimators of scikit-learn does not. Ours: read back, then compared in
    float64.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     fit = calibcli.fit_scaler(logits, labels)
    ...     found = calibcli.export(fit, "sklearn", save=f"{folder}/calibrator.pkl", data=logits)
    >>> found.facts["limit"], found.facts["predicted classes changed"]
    (1e-09, 0)

    Raises:
        UsageError: skops is not installed, where the suffix asks for it.
    """
    from calibcli.ship.estimator_files import ship

    return ship(job)
