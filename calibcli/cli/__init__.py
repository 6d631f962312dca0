"""The command line: a thin adapter to the library. One file per command; `app.main` owns exit codes."""

import pkgutil

OTHERS = ("app", "limits", "mistakes", "run", "typed", "version")  # files that are not commands
COMMANDS = sorted(m.name for m in pkgutil.iter_modules(__path__) if m.name not in OTHERS)
