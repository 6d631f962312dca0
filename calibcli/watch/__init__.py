"""An anytime-valid gate: evidence that grows row by row, and may be looked at every night."""
