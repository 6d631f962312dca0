"""The fixture `calib_check` of pytest: a gate as an assertion. pytest finds it where calib is installed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from calibcli.core.result import Result


@pytest.fixture
def calib_check() -> Callable[..., Result]:
    """`calibcli.check`, which fails the test unless every gate passes or warns, and says what was found.

    An input that is refused, or a wrong request, is an error of the test. Returns the result.
    """

    def judge(*scores: Any, **rules: Any) -> Result:
        from calibcli import render
        from calibcli.api.gating import check

        __tracebackhide__ = True
        result = check(*scores, **rules)
        if result.exit_code:
            pytest.fail(render.text(result, "table"), pytrace=False)
        return result

    return judge
