"""One file per target; each writes what it compared, and nothing else."""
