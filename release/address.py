"""The address of the repository: it stands in pyproject.toml, and everything else takes it from there.

python release/address.py                     write it wherever the address stands (README, docs, examples, ...)
python release/address.py OWNER/NAME          set it first, in pyproject.toml
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
METADATA = re.compile(r'^Repository = "https://github\.com/([\w.-]+/[\w.-]+)"$', re.M)
LINK = re.compile(
    r"(!?)\[((?:[^\[\]]|!\[[^\]]*\]\([^)]*\))*)\]\((?!https?://|#|mailto:)([^)\s]+)((?:\s+\"[^\"]*\")?)\)"
)


def address(root: Path = ROOT) -> str:
    """Return `OWNER/NAME` of pyproject.toml."""
    found = METADATA.search((root / "pyproject.toml").read_text(encoding="utf-8"))
    assert found is not None
    return found[1]


def readme(root: Path = ROOT) -> str:
    """Return README.md with absolute links, as the page of a package index needs them."""
    page = f"https://github.com/{address(root)}/blob/main/"
    picture = f"https://raw.githubusercontent.com/{address(root)}/main/"
    text = (root / "README.md").read_text(encoding="utf-8")
    return LINK.sub(lambda m: f"{m[1]}[{m[2]}]({picture if m[1] else page}{m[3]}{m[4]})", text)


def places(root: Path = ROOT) -> list[Path]:
    """List the files that show the address to a user."""
    return [
        root / name
        for name in (
            "README.md",
            "CITATION.cff",
            "SECURITY.md",
            "mkdocs.yml",
            "action.yml",
            ".pre-commit-hooks.yaml",
            "pyproject.toml",
        )
    ] + [
        path
        for folder in ("docs", "examples", ".github")
        for path in sorted((root / folder).rglob("*"))
        if path.suffix in (".md", ".yml", ".toml")
    ]


def main(argv: list[str]) -> int:
    old = address()
    new = argv[0] if argv else old
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", new):
        sys.exit(f"error: '{new}' is no OWNER/NAME")
    for path in places():
        text = path.read_text(encoding="utf-8")
        changed = text.replace(old, new)
        if changed != text:
            path.write_text(changed, encoding="utf-8")
            print(path.relative_to(ROOT))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
