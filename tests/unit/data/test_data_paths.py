"""Folders for datasets and decoded images: arguments, environment variables and defaults."""

import sys
from pathlib import Path

import pytest

from domainwise.data.paths import cache_folder, data_folder, dataset_folder
from domainwise.errors import DomainwiseError


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DOMAINWISE_DATA", "DOMAINWISE_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.mark.skipif(sys.platform != "linux", reason="platformdirs knows the folder of each system")
def test_default_is_the_users_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Data of earlier versions is there."""
    assert data_folder() == tmp_path / ".cache" / "domainwise" / "data"
    assert cache_folder() == tmp_path / ".cache" / "domainwise" / "images"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "set"))
    assert data_folder() == tmp_path / "set" / "domainwise" / "data"
    assert cache_folder() == tmp_path / "set" / "domainwise" / "images"


def test_environment_variables_override_the_default_unless_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    default = data_folder(), cache_folder()
    monkeypatch.setenv("DOMAINWISE_DATA", "~/sets")
    monkeypatch.setenv("DOMAINWISE_CACHE", "~/kept")
    assert (data_folder(), cache_folder()) == (tmp_path / "sets", tmp_path / "kept")
    assert data_folder("~/given") == tmp_path / "given"
    monkeypatch.setenv("DOMAINWISE_DATA", "")
    monkeypatch.setenv("DOMAINWISE_CACHE", "")
    assert (data_folder(), cache_folder()) == default


def test_existing_dataset_is_its_folder(tmp_path: Path) -> None:
    (tmp_path / "PACS").mkdir()
    assert dataset_folder("pacs", "PACS", tmp_path) == tmp_path / "PACS"


def test_missing_dataset_raises_with_the_command_and_the_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOMAINWISE_DATA", str(tmp_path))
    (tmp_path / "PACS").touch()
    with pytest.raises(DomainwiseError) as error:
        dataset_folder("pacs", "PACS")
    assert str(error.value) == (
        f"dataset pacs not found at {tmp_path / 'PACS'}: run `domainwise data prepare pacs`, or set --data-dir or "
        "$DOMAINWISE_DATA to the folder that contains PACS"
    )


@pytest.mark.parametrize("variable", ["DOMAINWISE_DATA", "DOMAINWISE_CACHE"])
def test_home_of_an_unknown_user_raises(monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    monkeypatch.setenv(variable, "~nobody-here/sets")
    with pytest.raises(DomainwiseError) as error:
        data_folder() if variable == "DOMAINWISE_DATA" else cache_folder()
    assert str(error.value) == (
        "~nobody-here/sets starts with ~nobody-here, but there is no such user; give the full path"
    )
