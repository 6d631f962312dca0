"""A run that dies without warning in the middle of a step."""

from __future__ import annotations

from typing import Any

from calibcli.lab.training._loop import Trainer


class Crash(Exception):
    pass


class Crashing(Trainer):
    """Dies without warning in the middle of a step."""

    after = 0

    def _record(self, *args: Any) -> None:
        super()._record(*args)
        type(self).after -= 1
        if type(self).after < 0:
            raise Crash
