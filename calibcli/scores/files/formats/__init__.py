"""Input formats: each is one file, found by its name; see `calibcli.scores.files.source`."""
