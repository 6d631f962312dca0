"""Input formats whose reader needs PyTorch; each is a file as in `scores/files/formats`."""
