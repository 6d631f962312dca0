"""The same rows and the same checkpoint in calib and in other tools: do the numbers agree, and what stands beside them?

    python benchmarks/beside.py FOLDER      # FOLDER/NAME/bin/python: an environment of its own for each tool

Each tool runs by the shortest program that its documentation suggests, in its own process, on the sample data (997
rows, ten classes; the temperature is fitted on 600 others), on 3,000 drawn rows of two classes, and on the sample's
network. An environment that is missing is left out, by name. Prints a row for each number: theirs, ours, and the
difference.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from _harness import ROOT, arguments, machine

HEAD = """
import json, sys
import numpy as np
rows = np.load(sys.argv[1])
z, labels, z_fit, labels_fit, p, y = (rows[k] for k in ("z", "labels", "z_fit", "labels_fit", "p", "y"))
q = np.exp(z - z.max(1, keepdims=True)); q /= q.sum(1, keepdims=True)
q_fit = np.exp(z_fit - z_fit.max(1, keepdims=True)); q_fit /= q_fit.sum(1, keepdims=True)
found = {}
"""
NETWORK = """
import torch
net = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 64), torch.nn.ReLU(),
                          torch.nn.Linear(64, 10))
net.load_state_dict({k: torch.tensor(rows[f"net.{k}"]) for k in net.state_dict()})
x, t = torch.tensor(rows["x"]), torch.tensor(labels)
loss = torch.nn.CrossEntropyLoss()
"""
PROGRAMS = {
    "torchmetrics": """
import torch
from torchmetrics.classification import BinaryCalibrationError, MulticlassCalibrationError
rows_of_torch = torch.tensor(q), torch.tensor(labels)
found["ece:edges=torchmetrics"] = float(MulticlassCalibrationError(10, n_bins=15)(*rows_of_torch))
found["mce:edges=torchmetrics"] = float(MulticlassCalibrationError(10, 15, "max")(*rows_of_torch))
found["two classes: ece:edges=torchmetrics"] = float(BinaryCalibrationError(15)(torch.tensor(p), torch.tensor(y)))
""",
    "scikit-learn": """
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.calibration import CalibratedClassifierCV
from sklearn.frozen import FrozenEstimator
from sklearn.metrics import brier_score_loss, log_loss, roc_auc_score
found["nll"] = log_loss(labels, q)
found["two classes: brier"] = brier_score_loss(y, p)
found["two classes: auc"] = roc_auc_score(y, p)
class Scores(ClassifierMixin, BaseEstimator):
    def fit(self, x, y): self.classes_ = np.unique(y); return self
    def decision_function(self, x): return x
    def predict_proba(self, x): return np.exp(x) / np.exp(x).sum(1, keepdims=True)
    def predict(self, x): return self.classes_[x.argmax(1)]
model = FrozenEstimator(Scores().fit(z_fit, labels_fit))
map = CalibratedClassifierCV(model, method="temperature").fit(z_fit, labels_fit)
found["temperature"] = 1 / float(map.calibrated_classifiers_[0].calibrators[0].beta_)
""",
    "netcal": """
from netcal.metrics import ECE, MCE
from netcal.scaling import TemperatureScaling
found["ece"] = ECE(15).measure(q, labels)
found["mce"] = MCE(15).measure(q, labels)
found["two classes: ece"] = ECE(15).measure(p, y)
map = TemperatureScaling(); map.fit(q_fit, labels_fit)
found["temperature"] = 1 / float(np.ravel(map.temperature)[0])
""",
    "relplot": """
import relplot
found["smece:variant=relplot"] = float(relplot.smECE(q.max(1), (q.argmax(1) == labels).astype(float)))
found["two classes: smece:variant=relplot"] = float(relplot.smECE(p, y.astype(float)))
""",
    "mapie": """
from mapie.metrics.calibration import expected_calibration_error, spiegelhalter_p_value
found["two classes: ece:bins=14"] = float(expected_calibration_error(y, p, num_bins=15))  # it counts edges
found["two classes: ece"] = float(expected_calibration_error(y, p, num_bins=16))
found["two classes: spiegelhalter p-value"] = float(spiegelhalter_p_value(y, p))
""",
    "probmetrics": """
from probmetrics.calibrators import get_calibrator
map = get_calibrator("temp-scaling")
map.fit(q_fit, labels_fit)
after = np.asarray(map.predict_proba(q))
found["NLL after a temperature"] = float(-np.log(after[np.arange(len(labels)), labels]).mean())
""",
    "betacal": """
from betacal import BetaCalibration
map = BetaCalibration("abm"); map.fit(p[:1500].reshape(-1, 1), y[:1500])
after = map.predict(p[1500:].reshape(-1, 1))
found["two classes: NLL after beta"] = float(-np.where(y[1500:] == 1, np.log(after), np.log(1 - after)).mean())
""",
    "lm-eval": """
from lm_eval.api.metrics import brier_score, mean, mean_stderr
right = [int(one) for one in q.argmax(1) == labels]
found["accuracy"] = mean(right)
found["± of the accuracy"] = mean_stderr(right)
found["brier"] = float(brier_score([(int(label), row.tolist()) for label, row in zip(labels, q)]))
""",
    "pyhessian": NETWORK
    + """
from pyhessian import hessian
torch.manual_seed(0)
h = hessian(net, loss, data=(x, t), cuda=False)
found["lambda_max"] = float(h.eigenvalues(maxIter=1000, tol=1e-6)[0][0])
traces = h.trace(maxIter=100, tol=0)
found["trace"] = float(np.mean(traces))
spread = np.std(traces, ddof=1) / len(traces) ** 0.5
found["± of the trace (computed from the probes that it returns)"] = float(spread)
""",
    "hessian-eigenthings": NETWORK
    + """
from hessian_eigenthings import HessianOperator, hutch_plus_plus, lanczos, supervised_loss
h = HessianOperator(net, [(x, t)], supervised_loss(loss))
found["lambda_max"] = float(lanczos(h, k=1, max_iter=60).eigenvalues[0])
trace = hutch_plus_plus(h, num_matvecs=300, seed=0)
found["trace"] = float(trace.estimate)
found["± of the trace"] = float(trace.stderr)
""",
    "curvlinops": NETWORK
    + """
from curvlinops import HessianLinearOperator, hutchpp_trace
from scipy.sparse.linalg import eigsh
torch.manual_seed(0)
h = HessianLinearOperator(net, loss, list(net.parameters()), [(x, t)])
found["lambda_max"] = float(eigsh(h.to_scipy(), k=1, which="LA", tol=1e-6, return_eigenvectors=False)[0])
found["trace"] = float(hutchpp_trace(h, num_matvecs=300))
""",
}


def rows(path: Path) -> dict[str, Any]:
    """Write the rows that all tools read, and return them."""
    from calibcli.networks import checkpoint

    with np.load(ROOT / "sample_data" / "test.npz") as test, np.load(ROOT / "sample_data" / "validation.npz") as fit:
        data = {"z": test["logits"], "labels": test["labels"], "z_fit": fit["logits"], "labels_fit": fit["labels"]}
    data = {key: value.astype("int64" if "labels" in key else "float64") for key, value in data.items()}
    rng = np.random.default_rng(0)
    log_odds = rng.normal(-1, 1.5, 3000)
    data["p"] = 1 / (1 + np.exp(-1.6 * log_odds))
    data["y"] = (rng.random(3000) < 1 / (1 + np.exp(-log_odds))).astype("int64")
    loaded = checkpoint.load(ROOT / "sample_data" / "model.pt")
    opened = loaded.open_data(None, "test", "validation")
    inputs, _ = opened.batch(list(range(len(data["labels"]))))
    data["x"] = inputs.reshape(len(inputs), -1).numpy()
    weights = [value.numpy() for value in loaded.model.state_dict().values()]
    names = [f"net.{layer}.{what}" for layer in (0, 2, 4) for what in ("weight", "bias")]
    data |= dict(zip(names, weights, strict=True))
    np.savez(path, **data)
    return data


def ours(name: str, data: dict[str, Any]) -> str:
    """What calib says of a number: with its interval and the level of a calibrated model, where it has them."""
    import calibcli

    def text(found: Any) -> str:
        bounds = (
            "" if found.low is None else f" [{found.low:.4g}, {'∞' if found.high is None else f'{found.high:.4g}'}]"
        )
        return f"{found.value:.6g}{bounds}" + (
            "" if found.null_high is None else f" (calibrated: ≤ {found.null_high:.2g})"
        )

    two = name.startswith("two classes: ")
    spec = name.removeprefix("two classes: ")
    z, labels = (data["p"], data["y"]) if two else (data["z"], data["labels"])
    if spec in ("lambda_max", "trace"):
        return text(calibcli.curvature(ROOT / "sample_data" / "model.pt", None, spec)[spec])
    if spec == "temperature":
        return text(calibcli.scale(data["z_fit"], data["labels_fit"], "temperature")["temperature"])
    if spec == "NLL after a temperature":
        map = calibcli.fit_scaler(data["z_fit"], data["labels_fit"], "temperature")
        return text(calibcli.measure(map.predict_proba(z), labels, "nll")["nll"])
    if spec == "NLL after beta":
        map = calibcli.fit_scaler(z[:1500], labels[:1500], "beta")
        return text(calibcli.measure(map.predict_proba(z[1500:])[:, 1], labels[1500:], "nll")["nll"])
    if spec == "spiegelhalter p-value":
        from scipy.stats import norm

        statistic = calibcli.measure(z, labels, "spiegelhalter_z")["spiegelhalter_z"].value
        return f"{2 * norm.sf(abs(statistic)):.6g} (from spiegelhalter_z)"
    return text(calibcli.measure(z, labels, spec)[spec])


def main() -> None:
    asked = arguments(__doc__, "folder")
    print(machine(), flush=True)
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "rows.npz"
        data = rows(path)
        print("| tool | number | theirs | calib | relative difference |\n|---|---|---|---|---|")
        for tool, program in PROGRAMS.items():
            python = Path(asked.folder[0]) / tool / "bin" / "python"
            if not python.exists():
                print(f"| {tool} | no environment | | | |")
                continue
            argv = [str(python), "-c", HEAD + program + "\nprint(json.dumps(found))", str(path)]
            done = subprocess.run(argv, capture_output=True, text=True, check=False)
            if done.returncode:
                print(f"| {tool} | {done.stderr.strip().splitlines()[-1]} | | | |")
                continue
            for number, value in json.loads(done.stdout.splitlines()[-1]).items():
                if number.startswith("±"):
                    print(f"| {tool} | {number} | {value:.6g} | | |")
                    continue
                said = ours(number, data)
                own = float(said.split()[0])
                print(f"| {tool} | `{number}` | {value:.6g} | {said} | {abs(value / own - 1):.1e} |", flush=True)


if __name__ == "__main__":
    sys.exit(main())
