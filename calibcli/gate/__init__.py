"""The release gate: rules (`config`), bounds (`sources`), verdicts, paired rows (`baseline`), comparisons and plans."""
