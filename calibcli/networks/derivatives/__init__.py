"""Derivatives that PyTorch has not, has wrong, or has slowly; for curvature penalties and curvature estimates.

- `normalisation`: those whose third derivatives are right (PyTorch's are not, see there), and batch norm along a curve;
  the rest stands on it.
- `twice`: 2-d convolution and batch norm for losses that hold a first derivative (Gauss-Newton penalty): 1.3 to 1.8
  times less on convolutional networks, nothing elsewhere.
- `jets`, `rules`: a curve's first and second derivative carried forward with the values
  (Hessian penalty): 1.5 to 4.4 times less than three reverse passes. `rules` lists the operations and what admits one.
- `bends`: v'(H - G)v from adjoints of one pass (probes of the trace).

The figures are those of `benchmarks/derivatives.py`; what saves less than 1.3 times on every network has no place here.
"""
