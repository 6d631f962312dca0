"""Training with losses that calibrate: recipes, the loop, and what a run leaves behind."""
