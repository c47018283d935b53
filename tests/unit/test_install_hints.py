"""How to install what is missing: by the requirements of the extras, and never from an index without domainwise."""

import importlib.metadata
import re
import shlex
import tomllib
from pathlib import Path

import pytest

from domainwise.errors import suggest_install

ROOT = Path(__file__).parents[2]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


@pytest.mark.parametrize("extra", sorted(EXTRAS.keys() - {"all"}))
def test_the_packages_of_an_extra_are_named(extra: str) -> None:
    hint, command = suggest_install(extra).split(": ")
    assert hint == "install it with"
    assert shlex.split(command)[:2] == ["pip", "install"]
    assert set(shlex.split(command)[2:]) == set(EXTRAS[extra])


def test_a_checkout_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str) -> list[str]:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "requires", fail)
    assert suggest_install("lora") == "install the packages of the extra 'lora' in pyproject.toml"


def test_nothing_installs_domainwise_from_an_index_that_does_not_have_it() -> None:
    """Until there is a release: then the card of a model and the docs may say so."""
    files = [each for kind in ("src/**/*.py", "docs/**/*.md", "docs/**/*.ipynb", "*.md") for each in ROOT.glob(kind)]
    assert len(files) > 100
    told = [str(each) for each in files if re.search(r"pip install ['\"]?domainwise\b(?!-)", each.read_text())]
    assert told == []
