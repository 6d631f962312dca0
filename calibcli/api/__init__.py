"""The commands as functions of arrays, tensors, models or files: what `import calibcli` offers."""
