"""Input formats whose reader needs PyTorch; each is a file as in `inputs/files/formats`."""
