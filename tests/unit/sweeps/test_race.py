"""A race stops draws by their holdouts alone, resumes to the bit, and ends as its simulation on a full search says."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from inline_engine import InlineEngine

from domainwise.errors import RunInterrupted
from domainwise.selection import read_runs, recommend
from domainwise.storage.run_folder import SCHEMA, RunFolder, RunStatus
from domainwise.storage.sweep_folder import PlannedRun, SweepFolder
from domainwise.sweeps.plan import plan_sweep
from domainwise.sweeps.race import MAX_SHARE, Race, Rung, plan_races, plan_rungs, simulate_race
from domainwise.sweeps.runner import SweepCallbacks, SweepOutcome, run_sweep
from domainwise.sweeps.spec import SweepSpec
from domainwise.training import RunConfig, train

OPTIONS = {"train_count": 40, "test_count": 20, "image_size": 16, "shifts": (0.0,)}
SETTINGS = {"steps": 30, "record_every": 3, "batch_size": 4, "dataset_options": OPTIONS}
FULL = SweepSpec(("silhouettes",), ("uat",), draws=8, settings=SETTINGS)
RACE = replace(FULL, search="race")
PLACEMENT = {"device": "cpu", "threads": 1}


def count_steps(rungs: Sequence[Rung], steps: int, draws: int) -> int:
    total, before, left = 0, 0, draws
    for rung in (*rungs, Rung(steps, 0)):
        total, before, left = total + left * (rung.step - before), rung.step, rung.keep
    return total


@pytest.mark.parametrize(
    ("records", "draws", "expected"),
    [
        (range(60, 301, 60), 8, [(60, 4), (120, 2)]),
        (range(60, 301, 60), 20, [(60, 10), (120, 5)]),
        ([1, 21, 41, 61, 81, 101, 121, 141, 300], 8, [(61, 4), (101, 2)]),  # 61 and 121 would be over the share
        (range(60, 301, 60), 3, [(60, 2), (120, 1)]),
        (range(60, 301, 60), 2, [(60, 1)]),
        ([75, 150, 225, 300], 8, [(75, 2)]),
        ([101, 201, 300], 8, [(101, 1)]),
        ([1, 300], 8, []),  # after one update there is nothing to see
        ([150, 300], 8, []),
        ([300], 8, []),
        (range(60, 301, 60), 1, []),
    ],
)
def test_rungs_are_records_near_a_fifth_and_two_fifths_of_the_steps(
    records: Sequence[int], draws: int, expected: list[tuple[int, int]]
) -> None:
    assert [(rung.step, rung.keep) for rung in plan_rungs(records, draws)] == expected


def test_a_race_of_eight_or_more_draws_keeps_to_its_share() -> None:
    for every in (1, 7, 20, 30, 60, 100):
        records = [*range(every + 1, 300, every), 300]
        for draws in range(8, 41):
            rungs = plan_rungs(records, draws)
            assert rungs
            assert count_steps(rungs, 300, draws) <= MAX_SHARE * 300 * draws


def make_race(
    folder: Path,
    draws: Sequence[Sequence[float]],
    *,
    hparams: Sequence[dict[str, Any]] = (),
    rungs: Sequence[Rung] = (Rung(4, 2),),
    rules: tuple[str, ...] = ("training_domain",),
    test: Sequence[float] = (),
    holdout: int = 100,
) -> Race:
    """Return a race of uat with the holdout accuracies of each draw after updates 2, 4, 6, ... of 10."""
    runs = {}
    for draw, holdouts in enumerate(draws):
        values = {"epsilon": 0.1, "warmup": 0.0, **(hparams[draw] if hparams else {"lr": 10.0**-draw})}
        run = PlannedRun(folder / str(draw), str(draw), "toy", "uat", ("c",), 0, draw)
        runs[run] = RunConfig("silhouettes", "uat", hparams=values, steps=10, record_every=2)
        run.folder.mkdir(parents=True)
        records = []
        for number, value in enumerate(holdouts):
            accuracy = {"a": {"holdout": value}, "b": {"holdout": value}}
            tested = test[draw] if test else 0.5
            records.append(
                {
                    "schema": SCHEMA,
                    "step": 2 * number + 1,
                    "dataset": "toy",
                    "algorithm": "uat",
                    "trial_seed": 0,
                    "hparams_seed": draw,
                    "train_domains": ["a", "b"],
                    "validation_domains": [],
                    "test_domains": ["c"],
                    "hparams": values,
                    "accuracy": {**accuracy, "c": {"main": tested, "holdout": tested}},
                }
            )
        run_folder = RunFolder(run.folder)
        run_folder.write_records(records)
        content = {"config": {"steps": 10}, "data": {"domain_sizes": [4 * holdout] * 2}}
        run_folder.config_file.write_text(json.dumps(content))
    return Race(runs, tuple(rungs), rules)


def find_losers(race: Race, rung: int = 0) -> dict[int, str]:
    return {run.draw: reason for run, reason in race.find_losers(race.rungs[rung], list(race.runs)).items()}


def test_draws_are_ranked_by_their_best_record_up_to_the_rung(tmp_path: Path) -> None:
    # Draw 1 is the best later, and draw 2 was better before.
    race = make_race(tmp_path, [(0.5, 0.7, 0.7), (0.5, 0.6, 0.9), (0.8, 0.4, 0.4), (0.1, 0.2, 0.3)])
    assert find_losers(race) == {
        1: "after 4 of 10 steps: holdout 60.0, survivors from 70.0",
        3: "after 4 of 10 steps: holdout 20.0, survivors from 70.0",
    }


def test_the_test_domain_does_not_matter(tmp_path: Path) -> None:
    holdouts = [(0.5, 0.7), (0.5, 0.6), (0.8, 0.4), (0.1, 0.2)]
    one = make_race(tmp_path / "one", holdouts, test=(0.1, 0.9, 0.2, 0.95))
    other = make_race(tmp_path / "other", holdouts, test=(0.9, 0.1, 0.8, 0.0))
    assert find_losers(one) == find_losers(other)
    assert set(find_losers(one)) == {1, 3}


def test_ties_go_to_the_larger_draw_as_in_selection(tmp_path: Path) -> None:
    assert set(find_losers(make_race(tmp_path, [(0.5, 0.5)] * 4))) == {0, 1}


def test_no_draw_is_stopped_without_holdouts(tmp_path: Path) -> None:
    race = make_race(tmp_path, [(0.5, 0.5)] * 4)
    for run in race.runs:
        folder = RunFolder(run.folder)
        records = folder.read_records()
        for record in records:
            record["accuracy"] |= {"a": {}, "b": {}}
        folder.write_records(records)
    assert find_losers(race) == {}


RADII = [{"epsilon": radius, "warmup": 0.0} for radius in (0.1, 0.5, 2.0, 8.0)]


@pytest.mark.parametrize(
    ("holdout", "stopped"),
    [
        (100, {0, 1}),  # the standard error is 2 points: the largest radius is within it
        (10000, {2, 3}),  # it is 0.2 points: every difference counts
    ],
)
def test_one_standard_error_keeps_the_best_and_the_largest_radius_close_to_it(
    tmp_path: Path, holdout: int, stopped: set[int]
) -> None:
    holdouts = [(0.5, 0.895), (0.5, 0.894), (0.5, 0.9), (0.5, 0.885)]
    if holdout > 100:
        holdouts = [(0.5, 0.9), (0.5, 0.8999), (0.5, 0.89), (0.5, 0.885)]
    rules = ("training_domain", "one_standard_error")
    assert set(find_losers(make_race(tmp_path, holdouts, hparams=RADII, rules=rules, holdout=holdout))) == stopped


def test_training_domain_alone_prefers_the_higher_holdout_to_the_larger_radius(tmp_path: Path) -> None:
    holdouts = [(0.5, 0.895), (0.5, 0.894), (0.5, 0.9), (0.5, 0.885)]
    assert set(find_losers(make_race(tmp_path, holdouts, hparams=RADII))) == {1, 3}


def test_radii_are_kept_or_stopped_together_before_the_warmup_is_over(tmp_path: Path) -> None:
    hparams = [{"lr": lr, "epsilon": radius, "warmup": 0.6} for lr in (0.1, 0.01) for radius in (0.5, 2.0, 8.0)]
    holdouts = [(0.5, 0.6, 0.6), (0.5, 0.5, 0.7), (0.4, 0.4, 0.3), (0.5, 0.5, 0.5), (0.5, 0.55, 0.9), (0.5, 0.55, 0.9)]
    rungs = (Rung(4, 2, is_warmup=True), Rung(6, 2))
    race = make_race(tmp_path, holdouts, hparams=hparams, rungs=rungs)
    first = find_losers(race)
    assert set(first) == {3, 4, 5}  # the learning rate of the best draw survives with all its radii
    survivors = [run for run in race.runs if run.draw not in first]
    assert {run.draw for run in race.find_losers(race.rungs[1], survivors)} == {2}


@pytest.mark.parametrize(
    ("grid", "warmup", "expected"),
    [
        # Only the radius differs: nothing is stopped before the record at which the warm-up is over.
        ({"epsilon": (0.1, 0.2, 0.4, 0.8)}, 0.5, [(7, 2, True), (10, 1, True), (16, 1, False)]),
        ({"epsilon": (0.1, 0.2, 0.4, 0.8)}, 0.3, [(7, 2, True), (10, 1, False)]),
        ({"epsilon": (0.1, 0.2, 0.4, 0.8)}, 0.0, [(7, 2, False), (10, 1, False)]),
        ({"lr": (0.1, 0.2, 0.4, 0.8)}, 0.5, [(7, 2, False), (10, 1, False)]),
    ],
)
def test_rungs_of_a_race_of_radii(
    tmp_path: Path, grid: dict[str, tuple[float, ...]], warmup: float, expected: list[tuple[int, int, bool]]
) -> None:
    settings = {**SETTINGS, "record_every": 3}
    spec = replace(RACE, algorithms=("uat",), draws=1, grid=grid, hparams={"warmup": warmup}, settings=settings)
    (race,) = plan_races(plan_sweep(spec, tmp_path), spec.selection)
    assert [(rung.step, rung.keep, rung.is_warmup) for rung in race.rungs] == expected


def run(spec: SweepSpec, folder: Path, **callbacks: Any) -> tuple[SweepOutcome, list[str]]:
    engine = InlineEngine()
    outcome = run_sweep(spec, folder, engine=engine, placement=PLACEMENT, callbacks=SweepCallbacks(**callbacks))
    return outcome, engine.names


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The full search."""
    folder = tmp_path_factory.mktemp("full") / "sweep"
    assert run(FULL, folder)[0] == SweepOutcome(done=8, failed=0)
    return folder


@pytest.fixture(scope="module")
def simulated(full: Path) -> dict[str, str]:
    """The draws that a race would have stopped, with the reasons."""
    races = plan_races(plan_sweep(FULL, full, placement=PLACEMENT), FULL.selection)
    stopped = {run.name: reason for race in races for run, reason in simulate_race(race).items()}
    assert len(stopped) == 6
    return stopped


def read_stops(folder: Path) -> dict[str, str]:
    statuses = SweepFolder(folder).read_statuses()
    return {run.name: status.reason for run, status in statuses.items() if status.state == "stopped"}


def read_comparable(folder: Path) -> list[dict[str, Any]]:
    return [{**record, "seconds_per_step": 0} for record in RunFolder(folder).read_records()]


def check_runs(raced: Path, full: Path) -> None:
    """Survivors are the runs of the full search to the byte, stopped runs the beginning of them."""
    for planned, status in SweepFolder(raced).read_statuses().items():
        records = read_comparable(full / planned.name)
        if status.state == "stopped":
            records = [record for record in records if record["step"] < status.step]
            assert records[-1]["step"] == status.step - 1
        else:
            assert status == RunStatus("done", 30)
            for file in ("best.safetensors", "last.safetensors"):
                assert (planned.folder / file).read_bytes() == (full / planned.name / file).read_bytes()
        assert read_comparable(planned.folder) == records


def test_a_race_ends_as_its_simulation_and_survivors_are_equal_to_the_byte(
    tmp_path: Path, full: Path, simulated: dict[str, str]
) -> None:
    folder = tmp_path / "sweep"
    races: list[Race] = []
    statuses: dict[str, list[str]] = {}
    outcome, names = run(
        RACE,
        folder,
        on_race=races.extend,
        on_status=lambda run, status: statuses.setdefault(run.name, []).append(status.state),
    )
    assert outcome == SweepOutcome(done=2, failed=0, stopped=6)
    assert read_stops(folder) == simulated
    check_runs(folder, full)
    assert len(names) == 8 + 4 + 2
    assert [each[-1] for each in statuses.values()].count("stopped") == 6
    assert all(each.count("done") + each.count("stopped") == 1 for each in statuses.values())
    spent = sum(status.step for status in SweepFolder(folder).read_statuses().values())
    assert spent == sum(steps for race in races for steps in race.expected_steps) <= MAX_SHARE * 8 * 30
    assert run(RACE, folder) == (outcome, [])
    runs = read_runs([folder])
    assert runs.frame["run"].n_unique() == 2
    assert runs.notes == ()  # stopped runs are not missing


@pytest.mark.parametrize("count", [10, 60, 80])
def test_an_interrupted_race_resumes_and_ends_the_same(
    tmp_path: Path, full: Path, simulated: dict[str, str], count: int
) -> None:
    folder, seen = tmp_path / "sweep", 0

    def count_steps(planned: PlannedRun, status: RunStatus) -> None:
        nonlocal seen
        seen += status.state == "running"

    with pytest.raises(RunInterrupted, match="0 of 8 runs are done"):
        run(RACE, folder, on_status=count_steps, should_stop=lambda: seen >= count)
    assert run(RACE, folder)[0] == SweepOutcome(done=2, failed=0, stopped=6)
    assert read_stops(folder) == simulated
    check_runs(folder, full)


def test_a_race_killed_while_it_writes_its_decisions_decides_the_same(
    tmp_path: Path, full: Path, simulated: dict[str, str]
) -> None:
    class Killed(BaseException):
        pass

    stops = 0

    def kill(planned: PlannedRun, status: RunStatus) -> None:
        nonlocal stops
        stops += status.state == "stopped"
        if stops == 3:
            raise Killed

    folder = tmp_path / "sweep"
    with pytest.raises(Killed):
        run(RACE, folder, on_status=kill)
    assert len(read_stops(folder)) == 3
    assert run(RACE, folder)[0] == SweepOutcome(done=2, failed=0, stopped=6)
    assert read_stops(folder) == simulated
    check_runs(folder, full)


def test_failed_runs_are_out_of_the_race(tmp_path: Path, simulated: dict[str, str]) -> None:
    survivor = next(run for run in plan_sweep(RACE, tmp_path / "sweep") if run.name not in simulated)
    survivor.folder.mkdir(parents=True)
    (survivor.folder / "notes.txt").touch()
    assert run(RACE, tmp_path / "sweep")[0] == SweepOutcome(done=2, failed=1, stopped=5)
    assert survivor.name not in read_stops(tmp_path / "sweep")


def test_more_trials_and_methods_are_races_of_their_own(tmp_path: Path) -> None:
    folder = tmp_path / "sweep"
    spec = replace(RACE, algorithms=("erm",), draws=4)
    run(spec, folder)
    before = read_stops(folder)
    assert len(before) == 3
    outcome, names = run(replace(spec, algorithms=("erm", "mat"), trials=2), folder)
    assert outcome == SweepOutcome(done=4, failed=0, stopped=12)
    assert before.items() <= read_stops(folder).items()
    assert not any("-erm-" in name and "trial0" in name for name in names)


def test_the_last_point_of_a_raced_grid_is_recommended(tmp_path: Path) -> None:
    grid = {"epsilon": (0.1, 0.5, 2.0)}
    spec = replace(RACE, algorithms=("erm", "uat"), draws=1, grid=grid, hparams={"warmup": 0.0})
    # ERM has no radius, hence one draw and no race.
    assert run(spec, tmp_path / "sweep")[0] == SweepOutcome(done=2, failed=0, stopped=2)
    (recommendation,) = recommend(tmp_path / "sweep")
    assert recommendation.algorithm == "uat"
    (survivor,) = (
        planned.draw
        for planned, status in SweepFolder(tmp_path / "sweep").read_statuses().items()
        if planned.algorithm == "uat" and status.state == "done"
    )
    assert recommendation.recommended.values == {"epsilon": grid["epsilon"][survivor]}


def test_too_few_records_for_a_race(tmp_path: Path) -> None:
    spec = replace(RACE, algorithms=("erm",), draws=2, settings={**SETTINGS, "record_every": 30})
    races: list[Race] = []
    assert run(spec, tmp_path / "sweep", on_race=races.extend)[0] == SweepOutcome(done=2, failed=0)
    assert [race.describe() for race in races] == [
        "no race for erm on silhouettes: no record between 10% and about a third of the 30 steps"
    ]


def test_a_paused_run_resumes_to_the_byte(tmp_path: Path) -> None:
    config = RunConfig(
        "silhouettes", "mat", hparams_seed=3, **SETTINGS, device="cpu", threads=1, output=tmp_path / "paused"
    )
    for step in (4, 8, 8, 29):  # 8 is not a record
        result = train(replace(config, stop_after=step))
        assert not RunFolder(result.folder).is_done
        assert result.last["step"] < step
    assert train(config).last["step"] == 29
    train(replace(config, output=tmp_path / "full"))
    assert read_comparable(tmp_path / "paused") == read_comparable(tmp_path / "full")
    for file in ("best.safetensors", "last.safetensors"):
        assert (tmp_path / "paused" / file).read_bytes() == (tmp_path / "full" / file).read_bytes()


def test_expected_configs_of_what_is_left(tmp_path: Path) -> None:
    spec = replace(RACE, algorithms=("erm",))
    plan = plan_sweep(spec, tmp_path)
    (race,) = plan_races(plan, spec.selection)
    first, second = (rung.step for rung in race.rungs)
    assert [config.stop_after for config in race.expect_configs([])] == [30] * 2 + [second] * 2 + [first] * 4
    done, *others = plan
    RunFolder(done.folder).path.mkdir(parents=True)
    RunFolder(done.folder).write_done()
    left = race.expect_configs([done, *others[:4]])
    assert [config.stop_after for config in left] == [30, second, second]
