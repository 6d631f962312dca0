"""`python -m calibcli`; what torchrun starts."""

import sys

from calibcli.cli.app import main

if __name__ == "__main__":
    sys.exit(main())
