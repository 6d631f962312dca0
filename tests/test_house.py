"""Imports point one way, in no circle; heavy libraries load only where they are used."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import house
import pytest

ROOT = Path(__file__).parent.parent / "calibcli"
# left may not import right; packages in one group may not import each other
ORDER = [
    ("core",),
    ("scores",),
    ("metrics",),
    ("calibrators", "gate", "headlines"),
    ("render", "watch", "slices", "ship"),
    ("networks",),
    ("lab",),
    ("api",),
    ("cli", "extending"),
]
LEVEL = {package: level for level, packages in enumerate(ORDER) for package in packages}
HEAVY = {
    "torch": ("networks", "lab/training", "api/networks"),
    "rich": ("render/formats/table", "render/terminal"),
    "matplotlib": ("render/figure",),
    "jinja2": ("render/page",),
    "typer": ("cli",),
}
NUMPY_ALONE = tuple(package for packages in ORDER[: ORDER.index(("networks",))] for package in packages)
"""What needs no PyTorch: nothing in it imports torch, or a file that does, directly or through others."""
FILES = sorted(p for p in ROOT.rglob("*.py") if p.parent != ROOT or p.stem not in ("__init__", "__main__"))


def package(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


@cache
def imports(path: Path, top_level_only: bool = False) -> frozenset[str]:
    tree = house.tree(path)
    nodes = tree.body if top_level_only else ast.walk(tree)
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: write imports in full"
            found |= {f"{node.module}.{alias.name}" for alias in node.names} | {str(node.module)}
    return frozenset(found)


@pytest.mark.parametrize("here", sorted({package(path) for path in FILES}))
def test_imports_point_one_way(here: str) -> None:
    for path in (path for path in FILES if package(path) == here):
        for name in imports(path):
            if name.startswith("calibcli."):
                there = name.split(".")[1]
                if there != here and there in LEVEL:
                    assert LEVEL[there] < LEVEL[here], f"{path.relative_to(ROOT)} imports {there}"


def test_heavy_libraries_stay_in_their_packages() -> None:
    for path in FILES:
        for name in imports(path):
            library = name.split(".")[0]
            if library in HEAVY and not inside(path, HEAVY[library]):
                pytest.fail(f"{path.relative_to(ROOT)} imports {name}")


def inside(path: Path, places: tuple[str, ...]) -> bool:
    where = path.relative_to(ROOT).with_suffix("").as_posix()
    return any(where == place or where.startswith(place + "/") for place in places)


def test_what_needs_no_torch_imports_none_of_it() -> None:
    """Also inside functions, and through other files; what users pass as tensors is registered from above."""
    needs = {
        name
        for name, path in house.MODULES.items()
        if any(used.split(".")[0] in ("torch", "torchvision") or used == "safetensors.torch" for used in imports(path))
    }
    used_by = {name: house.imports(path) for name, path in house.MODULES.items()}
    while more := {name for name, used in used_by.items() if used & needs} - needs:
        needs |= more
    assert {name for name in needs if inside(house.MODULES[name], NUMPY_ALONE)} == set()


def test_every_room_has_its_place() -> None:
    assert {package(path) for path in FILES} == LEVEL.keys()


def test_a_private_module_is_imported_within_its_package_alone() -> None:
    for path in FILES:
        for name in house.imports(path):
            parent, private, _ = name.partition("._")
            assert not private or f"{house.module(path)}.".startswith(f"{parent}."), (
                f"{path.relative_to(ROOT)} imports {name}"
            )


def test_no_circle_of_files() -> None:
    assert house.circles() == []


def test_class_names_are_unique() -> None:
    """Roles in a registry have functions, so that no two classes need one name."""
    assert house.classes_defined_twice() == {}
