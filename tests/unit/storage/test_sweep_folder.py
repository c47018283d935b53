"""Which folders a sweep, study or reproduction has for itself."""

from pathlib import Path

import pytest

from domainwise.errors import DomainwiseError
from domainwise.storage.sweep_folder import PlannedRun, SweepFolder, check_new_run


def plan_run(folder: Path) -> PlannedRun:
    return PlannedRun(folder, folder.name, "toy", "erm", ("art",), 0, 0)


@pytest.fixture
def study(tmp_path: Path) -> Path:
    """The folder of a study or reproduction, which has its runs in `runs`."""
    with SweepFolder(tmp_path / "study").lock():
        pass
    return tmp_path / "study"


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    folder = SweepFolder(tmp_path / "sweep")
    with folder.lock():
        folder.write_plan([plan_run(folder.path / "planned")])
    return folder.path


@pytest.mark.parametrize("place", ["study/runs", "study/runs/erm", "sweep/below", "sweep/runs"])
def test_no_sweep_starts_among_the_runs_of_another(place: str, study: Path, sweep: Path, tmp_path: Path) -> None:
    owner = tmp_path / place.split("/")[0]
    with (
        pytest.raises(DomainwiseError, match=f"{place} is among the runs of {owner}; choose another --output"),
        SweepFolder(tmp_path / place).lock(),
    ):
        pass
    assert not (tmp_path / place).exists()


@pytest.mark.parametrize("place", ["study", "study/final", "sweep", "sweep-best", "runs/other"])
def test_a_sweep_resumes_or_is_next_to_others(place: str, study: Path, sweep: Path, tmp_path: Path) -> None:
    with SweepFolder(tmp_path / place).lock():
        assert (tmp_path / place).is_dir()


@pytest.mark.parametrize("place", ["study/runs", "study/runs/erm/run", "sweep/other", "sweep/planned/below"])
def test_a_new_run_among_those_of_a_sweep_must_be_planned(place: str, study: Path, sweep: Path, tmp_path: Path) -> None:
    with pytest.raises(DomainwiseError, match=r"is among the runs of .*, which has not planned it; choose"):
        check_new_run(tmp_path / place)


def test_planned_and_started_runs_and_those_elsewhere_are_no_new_ones(study: Path, sweep: Path) -> None:
    started = study / "runs" / "erm" / "run"
    started.mkdir(parents=True)
    (started / "config.json").touch()
    for folder in (started, study / "final", sweep / "planned", sweep.with_name("run")):
        check_new_run(folder)
