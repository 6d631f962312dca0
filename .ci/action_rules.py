"""Put the rules of another commit in place of the checkout's: its calib.toml, pyproject.toml and baselines.

A file that only the checkout has is removed, and one that neither commit has is left as it is. Where the other commit has
no rules at all, as before the first ones are merged, the checkout keeps its own. Run with `python -P`, so
that no file of the working folder is imported: `python -P action_rules.py REF [OPTIONS of calib check]`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

from calibcli.core.errors import CalibError
from calibcli.gate.config import load

# Windows would run a git.exe of the working folder, so the folders of PATH are searched here.
PROGRAM = "git.exe" if os.name == "nt" else "git"
RULES = ("--max", "--min", "--margin", "--threshold")
GIT = next((path for folder in os.get_exec_path() if os.path.isfile(path := os.path.join(folder, PROGRAM))), "")


def git(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([GIT, "--literal-pathspecs", *words], stdout=subprocess.PIPE, text=True, check=False)


def refuse(problem: str) -> NoReturn:
    print(f"::error title=calib::config-ref: {problem}")
    sys.exit(2)


def put(path: str) -> None:
    """Give a file, and what it links to, the content that it has in the fetched commit."""
    listings = git("ls-tree", "FETCH_HEAD", "--", path), git("ls-files", "--", path)
    if any(listing.returncode for listing in listings):
        refuse(f"{path} is no file of this repository")
    tracked = any(listing.stdout for listing in listings)
    if tracked and git("restore", "--source=FETCH_HEAD", "--worktree", "--", path).returncode:
        refuse(f"{path} cannot be written")
    if os.path.islink(path):
        put(os.path.join(os.path.dirname(path), os.readlink(path)))
    elif os.path.realpath(path) != os.path.abspath(os.path.join(os.path.realpath("."), path)):
        refuse(f"{path} lies in a folder that is a link; name the folder itself")


def values(words: list[str], option: str) -> list[str]:
    """What the words give to an option, as `--option VALUE` or `--option=VALUE`."""
    apart = [value for word, value in zip(words, words[1:]) if word == option]
    return apart + [word.removeprefix(f"{option}=") for word in words if word.startswith(f"{option}=")]


def main(ref: str, words: list[str]) -> None:
    if not GIT:
        refuse("git is not installed")
    shallow = git("rev-parse", "--is-shallow-repository").stdout.strip() == "true"
    if git("fetch", "--quiet", *["--depth=1"] * shallow, "--", "origin", ref).returncode:
        refuse(f"{ref} cannot be fetched from origin")
    configs = values(words, "--config")
    places = configs or ["calib.toml", "pyproject.toml"]
    for path in places:
        put(path)
    there = any(os.path.lexists(path) for path in configs or ["calib.toml"])
    try:
        gates = load(Path(configs[-1]) if configs else None).gates if there or not configs else ()
    except CalibError:
        return  # the check refuses it in the same words
    if not (there or gates or any(values(words, option) for option in RULES)):
        brought = [path for path in places if git("ls-files", "--", path).stdout]
        if brought and not git("restore", "--worktree", "--", *brought).returncode:
            own = "this commit brings the first, and is judged by its own rules and baselines"
            print(f"::warning title=calib::config-ref: {ref} has no rules; {own}")
        return
    for path in dict.fromkeys([*values(words, "--baseline"), *(gate.baseline for gate in gates if gate.baseline)]):
        put(path)


main(sys.argv[1], sys.argv[2:])
