"""The numbers of rows that `calib plan` states, against simulation.

python benchmarks/gate_plan.py            # some minutes on one core
python benchmarks/gate_plan.py --runs 60  # one minute
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
from _harness import options
from _populations import drawn, ece_bounds, scaled, softmax
from scipy.stats import binom

import calibcli
from calibcli.gate.check import Baselines, check
from calibcli.gate.config import Config, Gate
from calibcli.gate.options import Assumptions
from calibcli.gate.plan import plan
from calibcli.gate.sources import RecordedOutputs
from calibcli.scores.predictions import Predictions


def planned(gate: Gate, assumed: Assumptions) -> float:
    value = plan([gate], assumed).estimates[0].value
    assert value is not None
    return value


def told(shares: list[float], power: float, exactly: str = "") -> str:
    within = "within 10 %" if shares[0] <= power <= shares[2] else "NOT within 10 %"
    return " ".join(f"{s:.3f}" for s in shares) + f"{exactly}; {within}"


def plans(runs: int) -> None:
    """The planned n: the chance of the verdict at .9 n, n and 1.1 n must enclose the stated one."""
    print("Rows that `calib plan` states, and the simulated chance of the verdict at 0.9 n, n, 1.1 n")
    for limit, truth, power in (
        (0.05, 0.0, 0.8),
        (0.03, 0.0, 0.8),
        (0.02, 0.0, 0.9),
        (0.06, 0.03, 0.8),
        (0.03, 0.08, 0.8),
    ):
        stated = planned(Gate(metric="ece", max=limit), Assumptions(truth=truth, power=power))
        rng = np.random.default_rng(0)
        shares = []
        for n in (round(f * stated) for f in (0.9, 1.0, 1.1)):
            reached = 0
            for _ in range(runs):
                confidence = rng.beta(6, 6 * 0.13 / 0.87, n)
                bounds = ece_bounds(confidence, rng.random(n) < confidence - truth)
                reached += bounds.upper <= limit if truth <= limit else bounds.lower > limit
            shares.append(reached / runs)
        verdict = "PASS" if truth <= limit else "FAIL"
        print(
            f"  ece <= {limit}, truth {truth}, {verdict} at {power:.0%}: n = {stated:.0f}; {told(shares, power)}",
            flush=True,
        )
    share_of_accuracy()


def share_of_accuracy(limit: float = 0.9, truth: float = 0.92) -> None:
    """Exactly: the fewest right rows that PASS, and the chance of as many."""
    stated = planned(Gate(metric="accuracy", min=limit), Assumptions(truth=truth))
    shares = []
    for n in (round(f * stated) for f in (0.9, 1.0, 1.1)):
        low, high = 0, n
        while high - low > 1:
            right = (low + high) // 2
            labels = np.arange(n) >= right
            result = calibcli.check([[9.0, 0.0]] * n, labels.astype(int), min={"accuracy": limit}, kind="logits")
            low, high = (low, right) if result.checks[0].outcome == "pass" else (right, high)
        shares.append(float(binom.sf(high - 1, n, truth)))
    print(f"  accuracy >= {limit}, truth {truth}, PASS at 80 %: n = {stated:.0f}; {told(shares, 0.8, ' (exact)')}")


def temperature_off(runs: int) -> None:
    """T off by 1.3 at margin 0: the share of FAIL at the planned n (power 90 %) and at 2,000 rows."""
    print("\nTemperature off by 1.3 against a calibrated baseline, margin 0: share of FAIL")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "base.npz"
        gate = Gate(metric="temperature_gain", baseline=str(path), margin=0.0)
        config = Config(gates=(gate,))
        for accuracy in (0.70, 0.76, 0.82):
            stated = planned(gate, Assumptions(accuracy=accuracy, power=0.9))
            rng = np.random.default_rng(0)
            shares = []
            for n in (500, round(stated), 2000):
                failed = 0
                for _ in range(runs):
                    z = scaled(rng.standard_normal((n, 10)), accuracy)
                    labels = drawn(softmax(z), rng)
                    np.savez(path, logits=z, labels=labels)
                    source = RecordedOutputs(Predictions.of(1.3 * z, labels), config)
                    failed += check(source, config, Baselines(source, {})).checks[0].outcome == "fail"
                shares.append(f"n={n}: {failed / runs:.3f}")
            print(f"  accuracy {accuracy}: planned n = {stated:.0f}; " + ", ".join(shares), flush=True)


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--runs", type=int, default=600)
    runs = parser.parse_args().runs
    plans(runs)
    temperature_off(runs // 2)


if __name__ == "__main__":
    main()
