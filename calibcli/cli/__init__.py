"""The command line: a thin skin on the library. One file per command; `app.main` owns exit codes."""
