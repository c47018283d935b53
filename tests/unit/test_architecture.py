"""Imports point one way, and training never reaches up to what shows its outcome."""

import ast
from pathlib import Path

import domainwise

ROOT = Path(domainwise.__file__).parent
# Each part may import itself and what stands before it.
LAYERS = (
    "lazy",
    "perturbations",
    "averaging",
    "escaping",
    "errors",
    "plugins",
    "seeds",
    "hparams",
    "networks",
    "storage",
    "integrations",
    "figures",
    "selection",
    "data",
    "algorithms",
    "fake_device",
    "testing",
    "scaffold",
    "training",
    "sweeps",
    "explain",
    "reports",
    "theory",
    "reproduction",
    "cli",
)
TREES = {
    path.relative_to(ROOT): ast.parse(path.read_text())
    for path in sorted(ROOT.rglob("*.py"))
    if path.parent != ROOT or path.stem in LAYERS
}


def imported_parts(tree: ast.Module) -> set[str]:
    """The parts of domainwise that a file imports."""
    parts = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{'.' * node.level}{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        parts |= {name.split(".")[1] for name in names if name.startswith(("domainwise.", "."))}
    return parts


def test_imports_point_one_way() -> None:
    for path, tree in TREES.items():
        allowed = LAYERS[: LAYERS.index(path.parts[0].removesuffix(".py")) + 1]
        assert imported_parts(tree) <= set(allowed), f"{path} imports what stands above it, or relatively"


def test_every_part_has_its_place() -> None:
    there = {p.stem for p in ROOT.iterdir() if not p.name.startswith("__") and (p.is_dir() or p.suffix == ".py")}
    assert there == set(LAYERS)


def test_no_file_takes_a_device_for_granted() -> None:
    for path, tree in TREES.items():
        calls = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]
        assert not any(isinstance(call, ast.Attribute) and call.attr == "cuda" for call in calls), path
