"""Networks, which need PyTorch: checkpoints, data sets, architectures, losses, and curvature."""
