"""calib: measure, fix and gate the calibration of classifiers, and the curvature of their loss."""

__version__ = "0.1.0"
