"""Links between logits and probabilities: log-softmax, the focal calibration map, the NLL in β = 1/T (NumPy only)."""

from calibcli.scores.likelihood.fit_temperature import BetaFit, cross_fit_beta, fit_beta, nll_rows, spread
from calibcli.scores.likelihood.focal_map import log_both, log_phi, log_softmax

__all__ = ["BetaFit", "cross_fit_beta", "fit_beta", "log_both", "log_phi", "log_softmax", "nll_rows", "spread"]
