"""`domainwise new-method`: what it writes and prints, and the names it refuses. tests/system runs what it writes."""

import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from domainwise import DomainwiseError
from domainwise.scaffold import write_method

Cli = Callable[..., Any]


def test_it_prints_what_to_do_next(domainwise: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    outcome = domainwise("new-method", "my_idea")
    assert (outcome.code, outcome.err) == (0, "")
    assert "domainwise train --algorithm my_idea:MyIdea" in outcome.out
    assert {file.name for file in tmp_path.iterdir()} == {"my_idea.py", "test_my_idea.py", "my_idea.md"}


def test_a_package_registers_the_name_of_the_records(domainwise: Cli, tmp_path: Path) -> None:
    outcome = domainwise("new-method", "my_idea", "--package", "-o", tmp_path / "idea", "--group", "optimization")
    assert f"  cd {tmp_path / 'idea'}\n  pip install --editable .\n" in outcome.out
    assert "--algorithm myidea " in outcome.out
    project = tomllib.loads((tmp_path / "idea" / "pyproject.toml").read_text())
    assert project["project"]["entry-points"]["domainwise.algorithms"] == {"myidea": "my_idea:MyIdea"}
    assert project["tool"]["setuptools"]["py-modules"] == ["my_idea"]
    assert 'group = "optimization"' in (tmp_path / "idea" / "my_idea.py").read_text()


def test_nothing_is_overwritten_unless_forced(domainwise: Cli, tmp_path: Path) -> None:
    (tmp_path / "test_idea.py").write_text("years of work")
    outcome = domainwise("new-method", "idea", "-o", tmp_path)
    assert (outcome.code, outcome.err.count("\n")) == (2, 1)
    assert (
        f"{tmp_path / 'test_idea.py'} exists; choose another name or folder, or replace it with --force" in outcome.err
    )
    assert [file.name for file in tmp_path.iterdir()] == ["test_idea.py"]
    assert domainwise("new-method", "idea", "-o", tmp_path, "--force", "-q").out == ""
    assert "check_algorithm" in (tmp_path / "test_idea.py").read_text()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("my-idea", "must be lower-case letters, digits and underscores, such as my_method, got 'my-idea'"),
        ("MyIdea", "must be lower-case letters"),
        ("2nd", "must be lower-case letters"),
        ("_idea", "must be lower-case letters"),
        ("", "must be lower-case letters"),
        ("idée", "must be lower-case letters"),
        ("../idea", "must be lower-case letters"),
        ("lambda", "'lambda' is a Python keyword"),
        ("mat", "'mat' is a built-in method"),
        ("group_dro", "'groupdro' is a built-in method"),
        ("random", "'random' is the name of another Python module"),
        ("torch", "'torch' is the name of another Python module"),
        ("domainwise", "'domainwise' is the name of another Python module"),
    ],
)
def test_names_that_cannot_be_used(name: str, message: str, domainwise: Cli, tmp_path: Path) -> None:
    outcome = domainwise("new-method", "-o", tmp_path / "new", "--", name)
    assert (outcome.code, outcome.err.count("\n")) == (2, 1)
    assert message in outcome.err
    assert not (tmp_path / "new").exists()


def test_an_unknown_group_suggests_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(DomainwiseError, match=r"unknown group 'aligment'; did you mean 'alignment'\?"):
        write_method("idea", tmp_path, group="aligment")
