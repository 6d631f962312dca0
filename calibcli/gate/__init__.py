"""The release gate: rules, the claims that n rows support about them, and verdicts. No torch."""
