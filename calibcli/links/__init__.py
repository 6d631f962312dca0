"""Links between logits and probabilities: log-softmax, the focal calibration map, the NLL in β = 1/T (NumPy only)."""

from calibcli.links.beta import BetaFit, cross_fit_beta, fit_beta, nll_rows
from calibcli.links.focal import log_phi, log_phi_inverse, log_softmax, true_class_log_odds

__all__ = [
    "BetaFit",
    "cross_fit_beta",
    "fit_beta",
    "log_phi",
    "log_phi_inverse",
    "log_softmax",
    "nll_rows",
    "true_class_log_odds",
]
