"""Imports point one way, and training never reaches up to what shows its outcome."""

import ast
from pathlib import Path

import pytest

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
FILES = sorted(path for path in ROOT.rglob("*.py") if path.parent != ROOT or path.stem in LAYERS)


def imported_parts(path: Path) -> set[str]:
    """The parts of domainwise that a file imports."""
    parts = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        parts |= {name.split(".")[1] for name in names if name.startswith("domainwise.")}
    return parts


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_one_way(path: Path) -> None:
    part = path.relative_to(ROOT).parts[0].removesuffix(".py")
    allowed = set(LAYERS[: LAYERS.index(part) + 1])
    assert imported_parts(path) <= allowed


def test_every_part_has_its_place() -> None:
    there = {p.stem for p in ROOT.iterdir() if not p.name.startswith("__") and (p.is_dir() or p.suffix == ".py")}
    assert there == set(LAYERS)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_file_takes_a_device_for_granted(path: Path) -> None:
    calls = [node.func for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
    assert not [call for call in calls if isinstance(call, ast.Attribute) and call.attr == "cuda"]
