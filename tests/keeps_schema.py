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
    """Whatever a test writes as JSON is held against the schema file."""
    to_json = Result.to_json

    def checked(self: Result) -> str:
        text = to_json(self)
        VALID.validate(_short(json.loads(text)))
        return text

    Result.to_json = checked  # type: ignore[method-assign]
    yield
    Result.to_json = to_json  # type: ignore[method-assign]


def _short(value: Any) -> Any:
    """One item for each shape in a list: the schema asks nothing of the items of a list but their types."""
    if isinstance(value, dict):
        return {key: _short(item) for key, item in value.items()}
    if isinstance(value, list):
        return list({_shape(item): item for item in map(_short, value)}.values())
    return value


def _shape(value: Any) -> Any:
    """The types of a scalar or a list; an object is like no other."""
    if isinstance(value, list):
        return tuple(map(_shape, value))
    return id(value) if isinstance(value, dict) else type(value)
