"""Calibrators in networks: targets that write a checkpoint or a graph, and the proof of what runs there."""
