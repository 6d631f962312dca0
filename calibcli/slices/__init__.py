"""Where a model fails: rules on the metadata, searched on one half of the rows and confirmed on the other. No torch."""
