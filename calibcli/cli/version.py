"""`calib --version`: the version, and how calib is installed."""

from __future__ import annotations

import sys

from calibcli import __version__
from calibcli.core.errors import Exit


def show() -> int:
    """Print the version, and how calib is installed where two ways get in each other's way."""
    from importlib.metadata import PackageNotFoundError, distribution

    print(f"calib {__version__}")
    try:
        distribution("calibcli-core")
        apart = any(one.startswith("calibcli-core") for one in distribution("calibcli").requires or ())
    except PackageNotFoundError:  # the usual case: one of them
        return int(Exit.OK)
    if not apart:
        note = "calibcli of a clone and calibcli-core are both installed, and hold the same files"
        print(f"note: {note}; leave one: pip uninstall calibcli calibcli-core, then install it again", file=sys.stderr)
    return int(Exit.OK)
