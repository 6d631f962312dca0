"""Recorded outputs: which arrays are scores and labels, checked in one pass."""
