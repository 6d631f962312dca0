"""The JSON schema of a result, from the dataclasses that it is made of.

`python tests/schema.py` writes `calibcli/schema/result-N.json`; a test compares, so that the two cannot part.
As a plugin of pytest it holds whatever a test writes as JSON against the schema.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
import types
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import jsonschema
import pytest

from calibcli.core.figure_data import SAVED_IF, Curve, Plot
from calibcli.core.result import SCHEMA, Check, Estimate, Result, Table
from calibcli.core.scope import Scope

PARTS = (Estimate, Scope, Curve, Plot, Table, Check)
PLAIN = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null"}
FILE = Path(__file__).parent.parent / "calibcli" / "schema" / f"result-{SCHEMA}.json"


def schema() -> dict[str, Any]:
    """Draft 2020-12."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "What a calib command found",
        **_object(Result),
        "$defs": {part.__name__: _object(part) for part in PARTS},
    }


def text() -> str:
    return json.dumps(schema(), indent=2, ensure_ascii=False) + "\n"


def _object(cls: Any) -> dict[str, Any]:
    hints, about = get_type_hints(cls), _about(cls)
    properties = {}
    for field in _saved(cls):
        properties[field.name] = _kind(hints[field.name])
        if field.name in about:
            properties[field.name]["description"] = about[field.name]
    if cls is Result:
        properties["schema"] = {"const": SCHEMA}
        about_it = "SHA-256 of all else, in one spelling; a file that something else has changed is refused."
        properties["checksum"] = {"type": "string", "description": about_it}
    return {
        "type": "object",
        "description": (inspect.getdoc(cls) or "").split("\n\n")[0].replace("\n", " "),
        "properties": properties,
        "required": [f.name for f in _saved(cls) if SAVED_IF not in f.metadata],
    }


def _saved(cls: Any) -> list[dataclasses.Field[Any]]:
    """The fields that files have."""
    return [field for field in dataclasses.fields(cls) if "screen" not in field.metadata]


def _kind(hint: Any) -> dict[str, Any]:
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        kinds = [_kind(a) for a in args]
        if all(set(k) == {"type"} for k in kinds):
            return {"type": [k["type"] for k in kinds]}
        return {"anyOf": kinds}
    if origin is Literal:
        return {"enum": list(args)}
    if origin is Sequence:
        return {"type": "array", "items": _kind(args[0])}
    if origin is Mapping:
        return {"type": "object"} | ({} if args[1] is Any else {"additionalProperties": _kind(args[1])})
    if hint in PARTS:
        return {"$ref": f"#/$defs/{hint.__name__}"}
    return {"type": PLAIN[hint]}


def _about(cls: Any) -> dict[str, str]:
    """Attributes of the docstring: `name: text`, several to a line where they are short."""
    found: dict[str, str] = {}
    names = {f.name for f in _saved(cls)}
    body = (inspect.getdoc(cls) or "").partition("Attributes:\n")[2]
    for part in re.split(r"\n(?= {4}\S)|  (?=\w+: )", "\n" + body):
        head, colon, rest = part.strip().partition(":")
        for name in head.split(", ") if colon else ():
            if name in names:
                found[name] = " ".join(rest.split())
    return found


@pytest.fixture(autouse=True, scope="session")
def every_result_keeps_to_the_schema() -> Iterator[None]:
    """Whatever a test writes as JSON is held against the schema file."""
    to_json, valid = Result.to_json, jsonschema.Draft202012Validator(schema())

    def checked(self: Result) -> str:
        text = to_json(self)
        valid.validate(_short(json.loads(text)))
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


if __name__ == "__main__":
    FILE.parent.mkdir(exist_ok=True)
    FILE.write_text(text(), encoding="utf-8")
