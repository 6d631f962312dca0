"""Results of many situations, with numbers by hand: what `tests/golden/headlines.txt` has the sentences of."""

from __future__ import annotations

from typing import Any

from calibcli.core.result import Check, Estimate, Outcome, Result, Table
from calibcli.gate import judging

LEVELS: dict[str, Any] = {"level": 0.9, "sided": "each"}


def number(
    name: str, value: float | None, low: float | None = None, high: float | None = None, **more: Any
) -> Estimate:
    level = {} if low is None and high is None else {"level": 0.95}
    return Estimate(name=name, value=value, low=low, high=high, **{**level, **more})


def ece(value: float, low: float, high: float, null: float, scope: str = "", n: int = 997) -> Estimate:
    return number("ece", value, low, high, **LEVELS, null=null / 2, null_high=null, n=n, scope=scope, better="lower")


def gap(value: float, low: float, high: float, scope: str = "") -> Estimate:
    return number("confidence_gap", value, low, high, better="zero", scope=scope)


def gain(value: float, low: float, high: float) -> Estimate:
    return number("temperature_gain", value, low, high, unit="nats", better="lower", null=0.0)


def metrics(*estimates: Estimate, **facts: Any) -> Result:
    return Result(command="metrics", estimates=estimates, facts={"n": 997, "classes": 10, "kind": "logits", **facts})


def scale(*estimates: Estimate, keeps: bool = True, **facts: Any) -> Result:
    facts = {"method": "temperature", "keeps predicted classes": keeps, **facts}
    return Result(command="scale", estimates=estimates, facts=facts)


def change(name: str, before: float, after: float, low: float, high: float) -> list[Estimate]:
    unit = {"unit": "nats"} if name == "nll" else {}
    better = {"better": "higher" if name == "accuracy" else "lower"}
    ends = [number(name, v, v * 0.9, v * 1.1, scope=s, **unit) for v, s in ((before, "before"), (after, "after"))]
    moved = number(name, after - before, low, high, scope="after minus before", **unit, **better)
    return [*ends, moved]


def t(value: float, low: float, high: float, scope: str = "") -> Estimate:
    return number("temperature", value, low, high, scope=scope)


def rule(outcome: Outcome, e: Estimate | None, limit: float, message: str = "", **more: Any) -> Check:
    return Check(rule=f"ece <= {limit:g}", outcome=outcome, estimate=e, limit=limit, message=message, **more)


def check(*checks: Check) -> Result:
    return Result(command="check", checks=checks, estimates=[c.estimate for c in checks if c.estimate is not None])


def compare(*rows: tuple[Estimate, str]) -> Result:
    cells = [[e.name, e.scope, None, None, verdict] for e, verdict in rows]
    table = Table(name="differences", columns=["metric", "difference", "p", "p (Holm)", "verdict"], rows=cells)
    return Result(command="compare", estimates=[e for e, _ in rows], tables=[table], facts={"comparisons": 8})


def differs(name: str, value: float, low: float | None, high: float | None, scope: str = "new - old") -> Estimate:
    unit = {"unit": "nats"} if name == "nll" else {}
    return number(name, value, low, high, scope=scope, better="higher" if name == "accuracy" else "lower", **unit)


def eigenvalue(
    value: float, low: float, high: float, scope: str = "", name: str = "lambda_max", **more: Any
) -> Estimate:
    detail = {"estimator_low": value - 0.01, "estimator_high": value + 0.01, "sampling_se": (high - low) / 4}
    return number(name, value, low, high, scope=scope, detail=detail, **more)


def curvature(*estimates: Estimate, losses: tuple[str, ...] = ("ce",), **facts: Any) -> Result:
    return Result(command="curvature", estimates=estimates, facts={"losses": list(losses), **facts})


def fit(losses: tuple[str, ...], *estimates: Estimate) -> Result:
    return Result(command="fit", estimates=estimates, facts={"runs": [{"loss": loss} for loss in losses]})


def trained(nll: float, scope: str, half: float = 0.02) -> list[Estimate]:
    found = [number("error", 0.12, 0.10, 0.14), number("nll", nll, nll - half, nll + half, unit="nats")]
    found.append(ece(nll / 10, nll / 20, nll / 5, 0.02))
    return [Estimate(**{**vars(e), "scope": scope}) for e in found]


def _metrics() -> dict[str, Result]:
    over = (ece(0.0646, 0.0459, 0.0801, 0.0142), gap(0.0646, 0.0466, 0.0826))
    fine = (ece(0.0213, 0.0, 0.0312, 0.0347), gap(0.0036, -0.0154, 0.0227))
    event = {"classes": 2, "event": "y = cat"}
    low, none = gain(-0.0002, -0.0002, 0.0021), gap(0.01, -0.004, 0.024)
    sites = [ece(0.20, 0.16, 0.24, 0.05, "site=A"), gap(0.2, 0.16, 0.24, "site=A")]
    sites += [ece(0.03, 0.0, 0.06, 0.05, "site=B"), gap(0.0, -0.02, 0.02, "site=B")]
    labels = [ece(0.1, 0.06, 0.14, 0.02, "label=cat"), ece(0.02, 0, 0.05, 0.04, "label=dog")]
    mean = number("ece", 0.065, None, None, scope="mean of tasks")
    return {
        "overconfident": metrics(*over, gain(0.198, 0.115, 0.451)),
        "underconfident": metrics(ece(0.315, 0.289, 0.336, 0.035), gap(-0.315, -0.335, -0.295), gain(0.32, 0.29, 0.35)),
        "good": metrics(*fine, low),
        "tiny n": metrics(ece(0.19, 0.0, 0.528, 0.207, n=12), gap(0.15, -0.29, 0.60), gain(-0.04, -0.04, 4.2), n=12),
        "one row": metrics(ece(0.3, 0.0, 1.0, 0.7, n=1), n=1),
        "undecided": metrics(ece(0.030, 0.0, 0.055, 0.024), none, low),
        "bounds above zero within chance": metrics(ece(0.0263, 0.0010, 0.04, 0.0306), none, low),
        "gap within chance of ece": metrics(ece(0.0263, 0.0, 0.04, 0.0306), gap(-0.02, -0.037, -0.003), low),
        "no gain though overconfident": metrics(*over, gain(0.001, 0.0, 0.009)),
        "saturated": metrics(
            number("nll", 107.7, 80.4, 154.4, unit="nats"), *over, gain(107.2, 75.9, 154.0), classes=5
        ),
        "reversed labels": metrics(
            number("accuracy", 0.02, 0.01, 0.04), ece(0.955, 0.944, 0.964, 0.0142), gap(0.955, 0.946, 0.964)
        ),
        "two classes, too high": metrics(
            ece(0.09, 0.06, 0.12, 0.02), gap(0.07, 0.04, 0.10), gain(0.04, 0.02, 0.08), **event
        ),
        "two classes, too extreme": metrics(
            ece(0.0438, 0.0166, 0.0554, 0.0184),
            none,
            number("cox_slope", 0.5, 0.4, 0.6),
            gain(0.04, 0.02, 0.08),
            **event,
        ),
        "slope alone, within chance": metrics(
            ece(0.0263, 0.0, 0.04, 0.0306), none, number("cox_slope", 1.4, 1.1, 1.8), low, **event
        ),
        "gain alone, within chance": metrics(ece(0.0263, 0.0, 0.04, 0.0306), none, gain(0.02, 0.004, 0.05)),
        "another level": metrics(Estimate(**{**vars(over[1]), "level": 0.99})),
        "two classes in plain words": metrics(
            ece(0.09, 0.06, 0.12, 0.02),
            gap(0.07, 0.04, 0.10),
            number("confidence_gap:of=top", 0.098, 0.078, 0.119),
            number("accuracy", 0.652, 0.63, 0.67),
            gain(0.04, 0.02, 0.08),
            **{**event, "share of the event": 0.334},
        ),
        "two classes, nothing shown": metrics(
            ece(0.0263, 0.0, 0.04, 0.0306),
            gap(-0.003, -0.02, 0.015),
            number("confidence_gap:of=top", 0.001, -0.017, 0.019),
            number("accuracy", 0.75, 0.73, 0.77),
            **{**event, "share of the event": 0.428},
        ),
        "two classes by one measure": metrics(
            ece(0.0263, 0.0, 0.04, 0.0306), gap(-0.02, -0.03, -0.01), **{**event, "share of the event": 0.428}
        ),
        "confidences alone": metrics(*over, kind="confidence", event="the prediction is right", classes=None),
        "slices": metrics(*over, *sites),
        "slices, none shown": metrics(*fine, *sites[2:]),
        "multilabel": metrics(*labels, classes=None, labels=2),
        "tasks": metrics(*over, ece(0.1, 0.06, 0.14, 0.02, "task=a"), ece(0.03, 0, 0.06, 0.04, "task=b"), mean),
        "nll alone": metrics(number("nll", 0.464, 0.34, 0.829, unit="nats")),
        "gap alone": metrics(over[1]),
        "ece without bounds": metrics(number("ece", 0.03, null=0.01, null_high=0.02, reason="no bound")),
        "ece without a value": metrics(number("ece", None, reason="no rows")),
    }


def _scale() -> dict[str, Result]:
    better = [*change("nll", 0.464, 0.268, -0.541, -0.048), *change("ece", 0.0646, 0.0263, -0.0896, -0.0207)]
    flat = [*change("nll", 0.979, 0.980, -0.0198, 0.0211), *change("ece", 0.0213, 0.0194, -0.0161, 0.0173)]
    worse = [*change("nll", 0.50, 0.60, 0.05, 0.15), *change("ece", 0.02, 0.018, -0.01, 0.006)]
    moved = change("accuracy", 0.911, 0.905, -0.012, 0.0005)
    return {
        "scaled": scale(t(3.26, 2.91, 3.65), *better, *change("brier", 0.149, 0.13, -0.0342, -0.0028)),
        "scaled, no gain": scale(t(1.011, 0.968, 1.056), *flat),
        "scaled, worse": scale(*worse, *moved, keeps=False, method="isotonic"),
        "scaled, ranked": scale(t(3.26, 2.91, 3.65), *better, recommended="temperature"),
        "scaled, none recommended": scale(t(1.0, 0.9, 1.1), *flat, recommended="none"),
        "scaled confidences": scale(t(2.0, 1.8, 2.2), *change("brier_top", 0.2, 0.18, -0.03, -0.01)),
    }


def _gates() -> dict[str, Result]:
    low, mid, high = ece(0.01, 0.0, 0.02, 0.02), ece(0.06, 0.0459, 0.08, 0.02), ece(0.3, 0.25, 0.35, 0.02)
    passed = rule("pass", low, 0.05)
    short = "the limit lies between the bounds; about 3602 rows would decide"
    open_ = rule("inconclusive", mid, 0.05, short, n_needed=3602)
    failed = rule("fail", high, 0.05, "surely above the limit", scope="site=A")
    none = rule("not_run", None, 0.05, "12 rows, fewer than min_n = 200")
    coarse = Estimate(**{**vars(mid), "how": "one-sided score bounds, each 95 %"})
    rows = [
        number("n", 4622, scope="ece <= 0.02", how="PASS with a chance of 80%; x", detail={"truth": 0.0}, unit="rows")
    ]
    rows += [number("n", 1566, scope="accuracy >= 0.85", how="PASS with a chance of 80%; x", unit="rows")]
    never = number("n", None, scope="ece <= 0", how="PASS with a chance of 80%; x", reason="more than 10⁹ rows")
    return {
        "PASS": check(passed),
        "PASS of three": check(passed, rule("pass", low, 0.04), rule("pass", low, 0.03)),
        "FAIL": check(passed, failed, open_),
        "INCONCLUSIVE": check(passed, open_),
        "INCONCLUSIVE, coarse bounds": check(rule("inconclusive", coarse, 0.05, short, n_needed=3602)),
        "INCONCLUSIVE, only warns": check(passed, rule("inconclusive", mid, 0.05, short, n_needed=3602, fatal=False)),
        "INCONCLUSIVE, too close": check(rule("inconclusive", mid, 0.06, judging.too_close(997))),
        "NOT RUN": check(none),
        "no gate": check(Check(rule="(none)", outcome="not_run", message="no gate is configured")),
        "planned": Result(command="plan", estimates=rows, facts={"min_n": 200}),
        "planned from a pilot": Result(
            command="plan",
            estimates=[
                number("n", 3652, scope="ece <= 0.05", how="FAIL with a chance of 80 %; x", detail={"truth": 0.06341})
            ],
        ),
        "planned, never": Result(command="plan", estimates=[never, rows[1]], facts={"min_n": 200}),
    }


def _models() -> dict[str, Result]:
    nll, near = differs("nll", -0.494, -0.585, -0.419), differs("ece", 0.003, -0.003, 0.016)
    lost, flat = differs("accuracy", -0.03, -0.05, -0.01), differs("nll", 0.0171, -0.0373, 0.0714)
    focal = ("ce", "focal:gamma=3")
    beside = "loss=focal:gamma=3"
    both = ("ce", "brier")
    runs = [t(1.3, 0.9, 2.0, "ce"), *trained(0.30, "ce before"), *trained(0.28, "ce after")]
    other = [t(0.8, 0.6, 1.0, "brier"), *trained(0.35, "brier before"), *trained(0.29, "brier after")]
    apart = [t(0.8, 0.6, 1.0, "brier"), *trained(0.5, "brier before"), *trained(0.4, "brier after")]
    one = [t(1.3, 1.1, 1.6), *trained(0.30, "before"), *trained(0.28, "after")]
    one.append(number("nll", -0.02, -0.03, -0.01, unit="nats", better="lower", scope="after minus before"))
    return {
        "better": compare((nll, "new is better"), (near, "not shown")),
        "mixed": compare((nll, "new is better"), (lost, "new is worse"), (near, "not shown")),
        "compared, nothing shown": compare((flat, "not shown"), (near, "not shown")),
        "a gain is neither better nor worse": compare(
            (differs("temperature_gain", -0.122, -0.247, -0.063), "new is better"), (lost, "new is worse")
        ),
        "shown alone, not among many": compare((differs("nll", -0.0210, -0.0405, -0.0015), "not shown")),
        "curvature": curvature(eigenvalue(15.7, 9.8, 24.5), eigenvalue(73.0, 60.4, 88.3, name="trace")),
        "two losses, open": curvature(eigenvalue(15.7, 9.8, 24.5), eigenvalue(18.4, 10, 32, beside), losses=focal),
        "two losses, apart": curvature(eigenvalue(15.7, 9.8, 24.5), eigenvalue(2.1, 1.5, 3.0, beside), losses=focal),
        "saddle": curvature(eigenvalue(15.7, 9.8, 24.5), eigenvalue(-0.19, -0.25, -0.1, name="lambda_min")),
        "interrupted": curvature(eigenvalue(15.7, 9.8, 24.5, reason="not converged"), interrupted="KeyboardInterrupt"),
        "trained": fit(("ce",), *one),
        "trained, no difference": fit(both, *runs, *other),
        "trained, apart": fit(both, *runs, *apart),
        "trained, nothing measured": fit(("ce",)),
    }


def _files() -> dict[str, Result]:
    outputs = {"what": "recorded outputs", "rows": 997, "kind": "logits", "classes": 10, "used_by": "metrics, scale"}
    labelled = [Table(name="labels", columns=["class"], rows=[[0]])]
    calibrator = {"what": "a calibrator", "spec": "temperature", "used_by": "apply (first argument)"}
    applied = {"written": "997 rows of 10 probabilities, float32", "method": "vector", "n": 997}
    unlabelled = {**outputs, "used_by": "apply, ood; with --labels FILE also metrics, scale"}
    return {
        "outputs": Result(command="inspect", facts=outputs, tables=labelled),
        "outputs without labels": Result(command="inspect", facts=unlabelled),
        "calibrator": Result(command="inspect", facts=calibrator, estimates=[t(3.26, 2.91, 3.65)]),
        "applied": Result(command="apply", facts={**applied, "predicted classes changed": 12}),
        "applied, kept": Result(command="apply", facts={**applied, "predicted classes changed": 0}),
        "logits": Result(
            command="logits",
            facts={"rows": 997, "classes": 10},
            estimates=[number("accuracy", 0.911, 0.891, 0.928)],
            artefacts={"logits": "out/test.npz"},
        ),
    }


def situations() -> dict[str, Result]:
    """By name."""
    return {**_metrics(), **_scale(), **_gates(), **_models(), **_files()}
