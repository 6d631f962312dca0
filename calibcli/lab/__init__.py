"""Experiments: training, and studies of many runs with a verdict on each claim."""
