"""Imports go down: from each room of the package to rooms before it in `ROOMS`, and in no circle of files."""

import ast
import sys
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "soft_vit"

ROOMS = ("version", "text_tables", "ops", "layers", "functional", "weights", "models", "hf", "__init__", "data")
ROOMS += ("resume", "probe", "linearise", "registry")
ROOMS += ("engine", "dense", "predict", "export", "cli")
"""Folders and root files of the package; soft_vit/__init__.py registers the models."""
OUTSIDE = ("tools", "benchmarks", "studies", "docs", "tests", "configs")
"""Folders of the repository; the package imports none, and each only those before it."""
THIRD_PARTY = {
    "ops": {"torch", "triton"},
    "layers": {"torch", "timm"},
    "weights": {"torch", "timm", "numpy", "safetensors", "filelock", "gdown", "yaml", "tqdm", "huggingface_hub"},
    "models": {"torch", "timm"},
    "resume": {"torch", "numpy"},
    "data": {"torch", "numpy", "PIL", "tqdm", "faster_coco_eval", "safetensors", "tifffile"},
}

MODULES = sorted(path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py"))


def room_of(module: str) -> str:
    return module.partition("/")[0].removesuffix(".py")


@cache
def imported_names(path: Path) -> frozenset[str]:
    """Return the absolute dotted names that a file imports: at its top, in functions and for type checkers alone."""
    names = set()
    package = path.relative_to(ROOT).parts[:-1]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            start = ".".join([*base, *([node.module] if node.module else [])])
            names |= {f"{start}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Call) and "import_module" in (
            getattr(node.func, "attr", ""),
            getattr(node.func, "id", ""),
        ):
            names |= {node.args[0].value} if isinstance(node.args[0], ast.Constant) else set()
    return frozenset(names)


def file_of(name: str) -> str:
    """Return the file of the package that holds a dotted name: a module, or the one that the name is taken from."""
    parts = name.split(".")[1:]
    while True:
        path = "/".join(parts)
        for candidate in (f"{path}.py", f"{path}/__init__.py" if path else "__init__.py"):
            if candidate in MODULES:
                return candidate
        parts.pop()


def imported_files(module: str) -> set[str]:
    """Return the files of the package that a file imports."""
    return {file_of(name) for name in imported_names(PACKAGE / module) if name.partition(".")[0] == "soft_vit"}


def test_imports_go_down():
    for module in MODULES:
        room, roots = room_of(module), {name.partition(".")[0] for name in imported_names(PACKAGE / module)}
        up = {file for file in imported_files(module) if ROOMS.index(room_of(file)) > ROOMS.index(room)}
        assert not up | roots.intersection(OUTSIDE), module
        assert room not in THIRD_PARTY or roots - sys.stdlib_module_names <= THIRD_PARTY[room] | {"soft_vit"}, module
    for index, folder in enumerate(OUTSIDE[:4]):
        for path in (ROOT / folder).rglob("*.py"):
            roots = {name.partition(".")[0] for name in imported_names(path)}
            assert roots.isdisjoint(OUTSIDE[index + 1 :]), path


def test_no_circle_of_files():
    graph = {module: imported_files(module) for module in MODULES}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" imports ".join(reversed(error.args[1])))
