"""One file per target. Each writes only what it has compared."""
