"""What every room uses: errors, options, shelves, results, numbers as text, files and statistics. No torch."""
