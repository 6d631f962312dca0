"""Derivatives that PyTorch lacks, has wrong, or computes slowly; for curvature penalties and curvature estimates.

- `normalisation`: norms whose third derivatives are right (PyTorch's are not, see there), and batch norm along a curve;
  the other files build on it.
- `double_backward`: 2-d convolution and batch norm for losses that hold a first derivative (Gauss-Newton penalty): 1.3
  to 1.8 times faster on convolutional networks, no faster elsewhere.
- `jets`, `rules`: the first and second derivative along a curve, carried forward with the values (Hessian penalty): 1.5
  to 4.4 times faster than three reverse passes. `rules` lists the operations, and what qualifies one. `jets.Bend` has
  v'(H - G)v from the adjoints of one pass (probes of the trace).

The figures are those of `benchmarks/derivatives.py`; what saves less than 1.3 times on every network has no place here.
"""
