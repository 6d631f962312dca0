"""What comes in: `files` < `scores`, `dataset` < `checkpoint` < `inference`; each imports those before it alone."""
