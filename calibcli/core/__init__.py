"""What every package uses: errors, options, registries, results, numbers as text, files and statistics. No torch."""
