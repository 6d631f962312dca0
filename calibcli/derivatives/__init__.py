"""Derivatives that PyTorch has not, has wrong, or has slowly; for curvature penalties and curvature estimates."""
