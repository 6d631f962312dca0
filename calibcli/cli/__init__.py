"""The `calib` command line: one file per command, without any logic of its own."""

import pkgutil

OTHERS = ("app", "limits", "mistakes", "run", "typed", "version")  # files that are not commands
COMMANDS = sorted(m.name for m in pkgutil.iter_modules(__path__) if m.name not in OTHERS)
