"""JSON: the Result itself."""

from calibcli.result import Result

SUFFIXES = (".json",)
REPORT = "result.json"


def render(result: Result) -> str:
    return result.to_json()
