"""Files of any format as named arrays, read piece by piece."""
