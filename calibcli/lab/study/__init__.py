"""Experiments: a recipe of arms, seeds and claims, its runs, and a verdict on each claim."""
