"""Evaluations of language models, by the layout that each harness writes: scores of the choices, row by row."""
