"""Where data and decoded images are looked for, on every system."""

import sys
from pathlib import Path

import pytest

from domainwise.data.paths import cache_folder, data_folder, dataset_folder
from domainwise.errors import DomainwiseError


@pytest.fixture(autouse=True)
def nothing_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DOMAINWISE_DATA", "DOMAINWISE_CACHE", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.mark.parametrize(
    ("platform", "below"),
    [("linux", ".cache"), ("darwin", "Library/Caches"), ("win32", "AppData/Local")],
)
def test_without_a_word_data_lies_under_the_users_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, platform: str, below: str
) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    assert data_folder() == tmp_path / below / "domainwise" / "data"
    assert cache_folder() == tmp_path / below / "domainwise" / "images"


@pytest.mark.parametrize(("platform", "variable"), [("linux", "XDG_CACHE_HOME"), ("win32", "LOCALAPPDATA")])
def test_the_systems_own_variable_is_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, platform: str, variable: str
) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setenv(variable, str(tmp_path / "set"))
    assert data_folder() == tmp_path / "set" / "domainwise" / "data"
    assert cache_folder() == tmp_path / "set" / "domainwise" / "images"


def test_our_variables_go_before_that_and_an_empty_one_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("DOMAINWISE_DATA", "~/sets")
    monkeypatch.setenv("DOMAINWISE_CACHE", "~/kept")
    assert data_folder() == tmp_path / "sets"
    assert cache_folder() == tmp_path / "kept"
    assert data_folder("~/given") == tmp_path / "given"
    monkeypatch.setenv("DOMAINWISE_DATA", "")
    monkeypatch.setenv("DOMAINWISE_CACHE", "")
    assert data_folder() == tmp_path / ".cache" / "domainwise" / "data"
    assert cache_folder() == tmp_path / ".cache" / "domainwise" / "images"


def test_a_dataset_that_is_there_is_its_folder(tmp_path: Path) -> None:
    (tmp_path / "PACS").mkdir()
    assert dataset_folder("pacs", "PACS", tmp_path) == tmp_path / "PACS"


def test_a_dataset_that_is_not_there_names_the_command_and_the_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOMAINWISE_DATA", str(tmp_path))
    (tmp_path / "PACS").touch()
    with pytest.raises(DomainwiseError) as error:
        dataset_folder("pacs", "PACS")
    assert str(error.value).startswith(
        f"dataset pacs is not at {tmp_path / 'PACS'}: run `domainwise data prepare pacs`"
    )
    assert str(error.value).endswith("--data-dir or $DOMAINWISE_DATA")
