"""What a `Result` says of finished runs: calibration before and after temperature, the log as figures."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from calibcli import metrics, scalers
from calibcli.columns import columns
from calibcli.metrics import first_screen
from calibcli.metrics.paired import differences
from calibcli.plots import Curve, Plot, first_alone
from calibcli.predictions import Predictions
from calibcli.result import CHANGE, Estimate, Result, Screen, Table
from calibcli.training.looks import CONFIDENCES, NORMS
from calibcli.training.one_model import Fitted

METRICS = ("accuracy", "nll", "ece", "adaece")


def result(runs: Sequence[Fitted], *, seed: int = 0, split_seed: int = 0) -> Result:
    """Estimates of every run, a table that compares them, and the figures of their logs."""
    several = len(runs) > 1
    estimates: list[Estimate] = []
    rows: list[list[Any]] = []
    for run in runs:
        prefix = f"{run.recipe.loss} " if several else ""
        found = calibration(run, prefix, seed, split_seed)
        estimates += found
        rows += table_rows(run, found, prefix)
    columns = ["loss", "", "error", "NLL", "ECE", "AdaECE", "T"]
    title = "before and after temperature, on " + ("test rows" if runs[0].test is not None else "validation rows")
    return Result(
        command="fit",
        estimates=first_screen.tiered(
            estimates, lambda e: e.scope.endswith(CHANGE) or first_screen.decides(e.name, {})
        ),
        tables=[Table(name="fit", columns=columns, rows=rows, title=title, tier="all")] if several and rows else [],
        plots=first_alone(plots(runs)),
        notes=list(dict.fromkeys(note for run in runs for note in run.notes)),
        facts={"runs": [facts(run) for run in runs]},
        artefacts={
            (f"{run.recipe.loss} {role}" if several else role): path for run in runs for role, path in run.files.items()
        },
        screen=Screen(pairs="change", hidden=("processes",), one_page=True),
    )


def calibration(run: Fitted, prefix: str, seed: int, split_seed: int) -> list[Estimate]:
    """Error, NLL, ECE and AdaECE before and after a temperature that was fitted on other rows."""
    judged = run.test or run.validation
    if judged is None:
        run.notes.append("nothing is measured: there are no validation and no test rows")
        return []
    if run.validation is None:
        run.notes.append("no temperature is fitted: there are no validation rows")
        return estimates(judged, f"{prefix}before", seed)
    fitted = scalers.fit("temperature", run.validation, seed=seed, report=False)
    if run.test is not None:
        after = scalers.apply(fitted.scaler, run.test)
    else:
        after = scalers.cross_fit("temperature", run.validation, seed=seed, split_seed=split_seed)
    run.notes += fitted.notes
    (t,) = (dataclasses.replace(e, scope=prefix.strip()) for e in fitted.estimates if e.name == "temperature")
    samples = (metrics.Sample.of(columns(rows, class_bins=())) for rows in (judged, after))
    changed = (e for e in differences(*samples, level=0.95) if e.name in METRICS[1:])
    moved = [dataclasses.replace(e, scope=f"{prefix}{e.scope}") for e in changed]
    return [t, *estimates(judged, f"{prefix}before", seed), *estimates(after, f"{prefix}after", seed), *moved]


def estimates(predictions: Predictions, scope: str, seed: int) -> list[Estimate]:
    """Error and calibration of predictions, each with its interval."""
    accuracy, *others = metrics.measure(predictions, METRICS, seed=seed)
    return [dataclasses.replace(e, scope=scope) for e in (error_of(accuracy), *others)]


def error_of(accuracy: Estimate) -> Estimate:
    """The share of wrong rows, with the interval of the share of right ones turned round."""
    value, low, high = (None if v is None else 1 - v for v in (accuracy.value, accuracy.high, accuracy.low))
    return dataclasses.replace(accuracy, name="error", value=value, low=low, high=high, better="lower")


def table_rows(run: Fitted, found: Sequence[Estimate], prefix: str) -> list[list[Any]]:
    """Two rows of the comparison: before and after."""
    if not found:
        return []
    by = {(e.name, e.scope): e for e in found}
    t = by.get(("temperature", prefix.strip()))
    rows = []
    for when in ("before", "after") if t else ("before",):
        cells = [text(by[name, prefix + when]) for name in ("error", *METRICS[1:])]
        rows.append([run.recipe.loss, when, *cells, text(t) if t and when == "after" else "1"])
    return rows


def text(estimate: Estimate) -> str:
    """`0.0412 [0.031, 0.052]`, with as many digits as say something."""
    if estimate.value is None:
        return "-"
    if estimate.low is None or estimate.high is None:
        return f"{estimate.value:.4f}"
    return f"{estimate.value:.4f} [{estimate.low:.3f}, {estimate.high:.3f}]"


def facts(run: Fitted) -> dict[str, Any]:
    last = dict(run.history[-1]) if run.history else {}
    last.pop("snapshot", None)
    snapshots = [{"epoch": r["epoch"], **r["snapshot"]} for r in run.history if "snapshot" in r]
    return {
        "loss": run.recipe.loss,
        "recipe": run.recipe.as_dict(),
        "epochs": len(run.history),
        "steps": run.steps,
        "kept_epoch": run.best_epoch,
        "continued_at_step": run.continued,
        "train_seconds": round(run.seconds, 3),
        "train_nll": run.train["nll"],
        "train_error": run.train["error"],
        "train_confidence_gap": run.train["confidence_gap"],
        "last_epoch": last,
        **({"snapshots": snapshots} if snapshots else {}),
    }


PANELS = (
    (
        "nll",
        "NLL",
        {"nll": "validation", "train_loss": "training loss", "train_nll": "training rows", "test_nll": "test rows"},
    ),
    ("nll_split", "NLL of right and wrong rows", {"nll_correct": "right", "nll_wrong": "wrong"}),
    (
        "calibration",
        "calibration error",
        {"ece": "ECE", "adaece": "AdaECE", "train_ece": "ECE, training", "test_ece": "ECE, test"},
    ),
    ("temperature", "best temperature", {"temperature": "best temperature"}),
    ("confidence", "entropy and probability of the label", {"entropy": "entropy", "p_true": "probability"}),
    ("norms", "norms of the last layer", {"last_weight_norm": "weights", "last_gradient_norm": "gradient"}),
    ("curvature", "curvature of cross-entropy", {"lambda_max": "λmax", "trace": "trace"}),
)
COMPARED = {
    "nll": "NLL",
    "train_loss": "training loss",
    "error": "error",
    "ece": "ECE",
    "temperature": "best temperature",
    "nll_wrong": "NLL of wrong rows",
    "entropy": "entropy",
    "train_nll": "NLL of training rows",
    "train_error": "error of training rows",
    "test_nll": "NLL of test rows",
    "test_error": "error of test rows",
    "test_ece": "ECE of test rows",
    "last_weight_norm": "weight norm of the last layer",
    "trace": "trace of the curvature of cross-entropy",
}


def plots(runs: Sequence[Fitted]) -> list[Plot]:
    """The logs over epochs, on validation rows: of one run its quantities in pairs, of several one panel each."""
    if len(runs) > 1:
        panels = [
            _panel(key, title, [(run, key, run.recipe.loss, run.recipe.loss) for run in runs])
            for key, title in COMPARED.items()
        ]
    else:
        panels = [
            _panel(name, title, [(runs[0], key, label, key) for key, label in keys.items()])
            for name, title, keys in PANELS
        ]
    return [panel for panel in [*panels, *_snapshots(runs)] if panel.curves]


def _snapshots(runs: Sequence[Fitted]) -> Iterator[Plot]:
    """Histograms at each snapshot: confidences of wrong rows, and norms of the rows' gradients of the last layer."""
    low, high, bins = NORMS
    found = [(run, r["epoch"], r["snapshot"]) for run in runs for r in run.history if "snapshot" in r]
    several = len(runs) > 1
    for epoch in sorted({epoch for _, epoch, _ in found}):
        wrong, norms = [], []
        for run, at, shown in found:
            counts, loss = shown["wrong_confidence"], run.recipe.loss
            roles = ["test"] if several and "test" in counts else list(counts)[: 1 if several else None]
            for role in roles if at == epoch else ():
                edges = [i / CONFIDENCES for i in range(CONFIDENCES + 1)]
                label = loss if several else role
                wrong.append(Curve(label=label, kind="steps", x=edges, y=counts[role], role=label))
            if at == epoch and shown["gradient_norms"]:
                edges = [low + i * (high - low) / bins for i in range(bins + 1)]
                norms.append(Curve(label=loss, kind="steps", x=edges, y=shown["gradient_norms"], role=loss))
        for name, axis, curves in (("wrong", "confidence", wrong), ("gradients", "log10 of the norm", norms)):
            yield Plot(
                name=f"{name}_{epoch}",
                title=f"epoch {epoch}",
                xlabel=axis,
                ylabel="rows",
                curves=curves,
                group={"wrong": "Wrong rows", "gradients": "Gradients of the last layer, training rows"}[name],
            )


def _panel(name: str, title: str, series: Sequence[tuple[Fitted, str, str, str]]) -> Plot:
    """A panel of (run, key of its log, label, role)."""
    curves = []
    for run, key, label, role in series:
        points = [(r["epoch"], r[key]) for r in run.history if r.get(key) is not None]
        if points:
            x, y = zip(*points)
            curves.append(Curve(label=label, kind="line", x=x, y=y, role=role))
    return Plot(
        name=name, title=title, xlabel="epoch", ylabel=title, curves=curves, group="Log of training, on validation rows"
    )
