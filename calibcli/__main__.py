"""`calib`, and `python -m calibcli`, which torchrun starts."""

import sys

from calibcli.cli.process import surroundings


def main() -> int:
    """Run `calib` with the arguments of this process; the exit code."""
    with surroundings():
        from calibcli.cli.app import main as run

        return run()


if __name__ == "__main__":
    sys.exit(main())
