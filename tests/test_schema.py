"""The schema file of results says what the code does; `schema.py` holds every result of a test against it."""

from __future__ import annotations

import json

import jsonschema
import pytest
import schema

from calibcli.core.result import Estimate, Result


def test_the_file_is_that_of_the_dataclasses() -> None:
    assert schema.FILE.read_text(encoding="utf-8") == schema.text(), "run `python tests/schema.py`"


def test_it_is_a_schema_and_travels_in_the_package() -> None:
    from importlib import resources

    found = json.loads(resources.files("calibcli").joinpath(f"schema/{schema.FILE.name}").read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator.check_schema(found)


@pytest.mark.parametrize("field", ["value", "sided", "n"])
def test_a_wrong_field_does_not_validate(field: str) -> None:
    data = json.loads(Result(command="metrics", estimates=[Estimate(name="ece", value=0.1)]).to_json())
    jsonschema.validate(data, schema.schema())
    data["estimates"][0][field] = "wrong"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(data, schema.schema())
