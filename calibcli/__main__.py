"""`calib`, and `python -m calibcli`, which torchrun starts."""

import sys

from calibcli.cli.app import main

__all__ = ["main"]

if __name__ == "__main__":
    sys.exit(main())
