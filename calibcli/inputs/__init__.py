"""What comes in from files: logits, checkpoints and data sets."""
