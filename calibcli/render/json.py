"""JSON: the Result itself."""

from calibcli.result import Result


def render(result: Result) -> str:
    return result.to_json()
