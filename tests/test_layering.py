"""Imports go one way: ops, layers, models, engine, {publishing, dense, prediction, export}, analysis, tools.

weights goes into models and what follows, data into engine and what follows, gym into analysis.
"""

import ast
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "soft_vit"

MAY_IMPORT = {
    "ops": {"ops"},
    "layers": {"ops", "layers"},
    "weights": {"weights"},
    "models": {"ops", "layers", "weights", "models"},
    "data": {"data"},
    "gym": {"ops", "layers", "weights", "models", "gym"},
    "engine": {"ops", "layers", "weights", "models", "data", "engine"},
    "dense": {"ops", "layers", "weights", "models", "data", "engine", "dense"},
    "prediction": {"ops", "layers", "weights", "models", "data", "engine", "dense", "prediction"},
    "publishing": {"ops", "layers", "weights", "models", "data", "engine", "publishing"},
    "export": {"ops", "layers", "weights", "models", "data", "engine", "dense", "prediction", "export"},
    "analysis": {"ops", "layers", "weights", "models", "data", "engine", "dense", "prediction", "export", "analysis"}
    | {"gym"},
}
# The registry stands at the top because MMEngine looks for it there.
LAYER_OF_FILE = {"registry.py": "engine"}
THIRD_PARTY = {
    "ops": {"torch", "triton"},
    "layers": {"torch", "timm"},
    "weights": {"torch", "timm", "safetensors", "filelock", "gdown", "yaml"},
    "models": {"torch", "timm"},
    "data": {"torch", "numpy", "PIL", "tqdm", "faster_coco_eval"},
}

MODULES = sorted(path for path in PACKAGE.rglob("*.py") if path.parent != PACKAGE or path.name in LAYER_OF_FILE)


def layer_of(path: Path) -> str:
    return LAYER_OF_FILE.get(path.name) if path.parent == PACKAGE else path.relative_to(PACKAGE).parts[0]


def imported_modules(path: Path) -> set[str]:
    """Absolute dotted names of all that a file imports, wherever in it the import stands."""
    names = set()
    package = ["soft_vit", *path.relative_to(PACKAGE).parts[:-1]]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            names |= {module} | {f"{module}.{alias.name}" for alias in node.names}
    return names


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_arrows_go_one_way(path):
    layer = layer_of(path)
    used = {name.split(".")[1] for name in imported_modules(path) if name.startswith("soft_vit.")}
    layers = {LAYER_OF_FILE.get(f"{name}.py", name) for name in used - {"version", "cli", "text_tables"}}
    assert layers <= MAY_IMPORT[layer]
    if layer in THIRD_PARTY:
        roots = {name.split(".")[0] for name in imported_modules(path)} - {"soft_vit"}
        assert roots - set(sys.stdlib_module_names) <= THIRD_PARTY[layer]


def test_tools_register_nothing():
    """A file that runs as a program and is imported as well would register its classes twice."""
    for path in (ROOT / "tools").glob("*.py"):
        classes = [node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ClassDef)]
        assert not classes, path.name
