"""Input formats: each is one file, found by its name; see `calibcli.inputs.files.source`."""
