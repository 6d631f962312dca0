"""Whatever a test writes as JSON is held against the schema file of results."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest
import schema

from calibcli.core.result import Result

VALID = jsonschema.Draft202012Validator(schema.schema())


@pytest.fixture(autouse=True, scope="session")
def every_result_keeps_to_the_schema() -> Iterator[None]:
    """Whatever a test writes as JSON is held against the schema file; long series of numbers by their ends."""
    to_json = Result.to_json

    def checked(self: Result) -> str:
        text = to_json(self)
        VALID.validate(_short(json.loads(text)))
        return text

    Result.to_json = checked  # type: ignore[method-assign]
    yield
    Result.to_json = to_json  # type: ignore[method-assign]


def _short(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _short(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_short(item) for item in (value if len(value) < 40 else value[:10] + value[-10:])]
    return value
