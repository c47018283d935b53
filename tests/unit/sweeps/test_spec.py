"""A spec is validated, written as TOML, and compared with that of an existing folder."""

import os
from pathlib import Path
from typing import Any

import pytest

from domainwise.errors import DomainwiseError
from domainwise.storage.sweep_folder import SweepFolder
from domainwise.sweeps.spec import SweepSpec


def make_spec(**changes: Any) -> SweepSpec:
    values: dict[str, Any] = {"datasets": ("pacs",), "algorithms": ("erm", "mat"), "draws": 2, "trials": 2}
    return SweepSpec(**{**values, **changes})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"draws": 0}, "draws must be at least 1, got 0"),
        ({"trials": -1}, "trials must be at least 1, got -1"),
        ({"algorithms": ()}, "no algorithms given; a sweep needs at least one"),
        ({"algorithms": ("erm", "erm")}, "duplicate entries in algorithms: erm, erm"),
        ({"selection": ("training_domains",)}, "did you mean 'training_domain'"),
        ({"settings": {"stepz": 3}}, "did you mean 'steps'"),
        ({"settings": {"device": "cpu"}}, "unknown sweep setting 'device'"),
        (
            {"grid": {"epsilon": (0.1, 0.5)}},
            "draws and a grid cannot be used together: every point of the grid is one draw",
        ),
        ({"draws": 1, "grid": {"epsilon": ()}}, "the grid has no values for epsilon"),
        ({"draws": 1, "grid": {"epsilon": (0.5, 0.50)}}, "duplicate values in the grid for epsilon: 0.5, 0.5"),
        (
            {"draws": 1, "grid": {"epsilon": (0.1, 0.5)}, "hparams": {"epsilon": 1.0}},
            r"epsilon is both fixed \(1.0\) and in the grid \(0.1, 0.5\)",
        ),
        ({"search": "racing"}, "unknown search 'racing'; did you mean 'race'"),
        ({"search": "race", "draws": 1}, "a race needs at least 2 draws or a grid"),
        ({"search": "race", "selection": ("leave_one_out",)}, "draws cannot race for selection leave_one_out"),
        ({"search": "race", "selection": ("test_domain",)}, "draws cannot race for selection test_domain"),
    ],
)
def test_invalid_specs(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(DomainwiseError, match=message):
        make_spec(**changes)


def test_toml_round_trip(tmp_path: Path) -> None:
    spec = make_spec(
        settings={
            "steps": 300,
            "augment": "strong",
            "weights": 'a "b" \\ c\td\né',
            "network": None,
            "dataset_options": {"shifts": (0, 8.5), "path": Path("some/where")},
        },
        hparams={"epsilon": 1e-7, "loss_cap": 2.0},
    )
    folder = SweepFolder(tmp_path)
    folder.write_spec(spec.as_plain())
    stored = folder.read_spec()
    assert stored == spec.as_plain()
    assert stored["settings"] == {
        "seeding": "common",
        "steps": 300,
        "augment": "strong",
        "weights": 'a "b" \\ c\td\né',
        "dataset_options": {"shifts": [0, 8.5], "path": os.path.join("some", "where")},
    }
    assert stored["hparams"] == {"epsilon": 1e-7, "loss_cap": 2.0}
    assert (stored["draws"], stored["algorithms"]) == (2, ["erm", "mat"])


@pytest.mark.parametrize(
    "extension",
    [
        {},
        {"draws": 5},
        {"trials": 3},
        {"algorithms": ("ldat", "mat", "erm")},
        {"datasets": ("pacs", "vlcs")},
        {"selection": ("training_domain", "leave_one_out")},
    ],
)
def test_a_folder_accepts_an_extension_of_its_sweep(tmp_path: Path, extension: dict[str, Any]) -> None:
    folder = SweepFolder(tmp_path)
    make_spec().claim(folder)
    make_spec(**extension).claim(folder)
    assert folder.read_spec() == make_spec(**extension).as_plain()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"draws": 1}, "was started with draws 2, not 1"),
        ({"algorithms": ("erm",)}, "was started with algorithms erm mat, not erm"),
        ({"settings": {"steps": 3}}, "was started with steps none, not 3"),
        ({"space": "paper"}, "was started with space domainbed, not paper"),
        ({"hparams": {"epsilon": 1.0}}, "was started with hparams"),
        ({"test_domains": ("photo",)}, "was started with test_domains none, not photo"),
    ],
)
def test_a_folder_refuses_a_different_sweep_and_stays_unchanged(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    folder = SweepFolder(tmp_path)
    make_spec().claim(folder)
    before = folder.spec_file.read_bytes()
    with pytest.raises(DomainwiseError, match=message):
        make_spec(**changes).claim(folder)
    assert folder.spec_file.read_bytes() == before


GRID = {"epsilon": (0.1, "2/255 rms"), "count": (3, 5)}


def test_a_grid_in_toml(tmp_path: Path) -> None:
    folder = SweepFolder(tmp_path)
    make_spec(draws=1, grid=GRID).claim(folder)
    assert folder.read_spec()["grid"] == {"epsilon": [0.1, "2/255 rms"], "count": [3, 5]}
    make_spec(draws=1, grid=GRID).claim(folder)
    # The runs are numbered by their point: more values of the first name come last.
    make_spec(draws=1, grid={**GRID, "epsilon": (*GRID["epsilon"], 8.0)}).claim(folder)


@pytest.mark.parametrize(
    "grid",
    [
        {},
        {"epsilon": (0.1,), "count": (3, 5)},
        {"epsilon": ("2/255 rms", 0.1), "count": (3, 5)},
        {**GRID, "count": (3, 5, 7)},
        {"epsilon": GRID["epsilon"]},
        {**GRID, "lr": (0.1,)},
    ],
)
def test_a_folder_refuses_a_grid_that_would_renumber_its_runs(tmp_path: Path, grid: dict[str, Any]) -> None:
    folder = SweepFolder(tmp_path)
    make_spec(draws=1, grid=GRID).claim(folder)
    with pytest.raises(DomainwiseError, match=r"was started with grid epsilon=0\.1,2/255 rms count=3,5, not "):
        make_spec(draws=1, grid=grid).claim(folder)


def test_a_sweep_without_a_grid_does_not_store_one(tmp_path: Path) -> None:
    folder = SweepFolder(tmp_path)
    make_spec(draws=1).claim(folder)
    assert "grid" not in folder.read_spec()
    with pytest.raises(DomainwiseError, match=r"was started with grid none, not epsilon=0\.1,2/255 rms count=3,5"):
        make_spec(draws=1, grid=GRID).claim(folder)


def test_a_search_is_stored_only_if_it_is_a_race(tmp_path: Path) -> None:
    for name in ("random", "race"):
        (tmp_path / name).mkdir()
    make_spec().claim(SweepFolder(tmp_path / "random"))
    assert "search" not in SweepFolder(tmp_path / "random").read_spec()
    with pytest.raises(DomainwiseError, match="was started with search random, not race"):
        make_spec(search="race").claim(SweepFolder(tmp_path / "random"))
    make_spec(search="race").claim(SweepFolder(tmp_path / "race"))
    assert SweepFolder(tmp_path / "race").read_spec()["search"] == "race"
    with pytest.raises(DomainwiseError, match="was started with search race, not random"):
        make_spec().claim(SweepFolder(tmp_path / "race"))


@pytest.mark.parametrize(
    "extension", [{"trials": 3}, {"algorithms": ("erm", "mat", "uat")}, {"datasets": ("pacs", "vlcs")}]
)
def test_a_race_takes_more_trials_methods_and_datasets(tmp_path: Path, extension: dict[str, Any]) -> None:
    make_spec(search="race").claim(SweepFolder(tmp_path))
    make_spec(search="race", **extension).claim(SweepFolder(tmp_path))


@pytest.mark.parametrize(
    ("extension", "message"),
    [
        ({"draws": 3}, "was started with draws 2, not 3, and a race takes no other draws later"),
        (
            {"selection": ("training_domain", "one_standard_error")},
            "and a race takes no other selection later",
        ),
    ],
)
def test_a_race_takes_no_more_draws(tmp_path: Path, extension: dict[str, Any], message: str) -> None:
    make_spec(search="race").claim(SweepFolder(tmp_path))
    with pytest.raises(DomainwiseError, match=message):
        make_spec(search="race", **extension).claim(SweepFolder(tmp_path))


def test_a_race_takes_no_more_points_of_its_grid(tmp_path: Path) -> None:
    make_spec(search="race", draws=1, grid=GRID).claim(SweepFolder(tmp_path))
    with pytest.raises(DomainwiseError, match="was started with grid"):
        make_spec(search="race", draws=1, grid={**GRID, "epsilon": (*GRID["epsilon"], 8.0)}).claim(
            SweepFolder(tmp_path)
        )


def test_attacked_holdout_measures_what_it_selects_by() -> None:
    assert "attack_radius" not in make_spec().settings
    assert make_spec(selection=("attacked_holdout",)).settings["attack_radius"] == "2/255 rms"
    own = make_spec(selection=("attacked_holdout",), settings={"attack_radius": 0.5, "steps": 3})
    assert own.settings == {"attack_radius": 0.5, "steps": 3, "seeding": "common"}


def test_a_damaged_spec_is_an_error(tmp_path: Path) -> None:
    folder = SweepFolder(tmp_path)
    folder.spec_file.write_text("datasets = [")
    with pytest.raises(DomainwiseError, match=r"sweep\.toml is damaged: .*; restore it"):
        make_spec().claim(folder)
