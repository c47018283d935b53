"""Wheel and sdist are complete: what is built from the sdist works without the checkout."""

import email
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FIXTURES = ROOT / "tests" / "fixtures" / "schema_1"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel that is built from the sdist."""
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    outcome = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
    assert len(list(folder.glob("*.tar.gz"))) == 1
    (path,) = folder.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def site(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the package installed from the wheel."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--quiet", "--target", folder, wheel]
    subprocess.run(list(map(str, command)), check=True, timeout=240)
    return folder


def run(site: Path, folder: Path, *words: object) -> str:
    environment = {**os.environ, "PYTHONPATH": str(site), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", "import domainwise.cli; domainwise.cli.main()", *map(str, words)]
    outcome = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=240)
    assert outcome.returncode == 0, outcome.stderr
    return outcome.stdout


def test_the_wheel_contains_every_file_of_the_package(wheel: Path) -> None:
    source = ROOT / "src"
    expected = {
        str(path.relative_to(source))
        for path in (source / "domainwise").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert names == expected
    assert "domainwise/py.typed" in names


def test_the_metadata_is_complete(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = email.message_from_bytes(archive.read(name))
    assert metadata["Requires-Python"] == ">=3.11"
    versions = [line.rpartition(" ")[2] for line in metadata.get_all("Classifier") if "Python :: 3." in line]
    assert versions == ["3.11", "3.12", "3.13", "3.14"]
    extras = set(metadata.get_all("Provides-Extra"))
    assert {"timm", "ray", "lightning", "transformers", "onnx", "hub", "wandb", "mlflow", "tensorboard"} <= extras
    # The library and its reports; everything else is an extra.
    needed = [line for line in metadata.get_all("Requires-Dist") if "extra ==" not in line]
    core = {re.split(r"[^\w-]", line)[0] for line in needed}
    assert core.isdisjoint({"timm", "ray", "lightning", "transformers", "onnx", "huggingface-hub"})
    assert {"torch", "polars", "jinja2"} <= core


@pytest.mark.slow
def test_the_demo_runs_outside_the_checkout(site: Path, tmp_path: Path) -> None:
    run(site, tmp_path, "demo", "--algorithm", "mat", "--radius", "0.5", "--steps", "2", "--no-pictures")
    assert (tmp_path / "runs" / "demo" / "demo.html").exists()


def test_it_runs_outside_the_checkout(site: Path, tmp_path: Path) -> None:
    where = "import domainwise, sys; print(domainwise.__file__)"
    environment = {**os.environ, "PYTHONPATH": str(site)}
    outcome = subprocess.run(
        [sys.executable, "-c", where], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert Path(outcome.stdout.strip()).is_relative_to(site)
    assert "Table 2" in run(site, tmp_path, "reproduce", "--list")
    run(site, tmp_path, "report", FIXTURES / "sweep", "-o", "page.html")
    assert "</html>" in (tmp_path / "page.html").read_text()
