"""A race stops draws by their holdouts alone, resumes to the bit, and ends as its simulation on a full search says."""

import json
from collections.abc import Iterator, Mapping, Sequence
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
from domainwise.sweeps.race import Race, count_raced_steps, plan_races, plan_rungs, simulate_race
from domainwise.sweeps.runner import SweepCallbacks, SweepOutcome, run_sweep
from domainwise.sweeps.spec import SweepSpec
from domainwise.training import RunConfig, train
from easy_images import write_easy_images

SETTINGS = {
    "steps": 30,
    "record_every": 3,
    "batch_size": 8,
    "network": "small_cnn",
    "augment": False,
    "dataset_options": {"image_size": 16},
}
# Two learning rates that learn something, and two that do not.
GRID = {"lr": (0.01, 1e-7, 0.003, 1e-8)}
PLACEMENT = {"device": "cpu", "threads": 1}


@pytest.fixture(scope="module", autouse=True)
def images(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("images")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DOMAINWISE_CACHE", str(folder / "cache"))
        yield write_easy_images(folder / "colors")


def make_spec(images: Path, **changes: Any) -> SweepSpec:
    spec = SweepSpec((str(images),), ("uat",), test_domains=("light",), grid=GRID, search="race", settings=SETTINGS)
    return replace(spec, **changes)


@pytest.mark.parametrize(
    ("records", "expected"),
    [
        (range(30, 301, 30), [60, 90, 120, 150, 180, 210, 240, 270]),
        ([*range(31, 300, 30), 300], [61, 91, 121, 151, 181, 211, 241, 271]),
        (range(1, 301), [60, 90, 120, 150, 180, 210, 240, 270]),
        ([75, 150, 225, 300], [75, 150, 225]),
        ([101, 201, 300], [101, 201]),
        ([150, 300], [150]),
        ([1, 300], []),  # after one update there is nothing to see
        ([300], []),
    ],
)
def test_draws_are_compared_at_the_first_record_after_each_tenth(records: Sequence[int], expected: list[int]) -> None:
    assert list(plan_rungs(records)) == expected


def make_race(
    folder: Path,
    draws: Sequence[Sequence[float]],
    *,
    hparams: Sequence[dict[str, Any]] = (),
    rules: tuple[str, ...] = ("training_domain",),
    test: Sequence[float] = (),
    attacked: Sequence[float] = (),
    holdout: int = 100,
) -> Race:
    """Return a race of uat with the holdout accuracies of each draw after updates 2, 4, 6, ... of 10.

    Args:
        holdout: number of holdout images per training domain.
    """
    runs = {}
    for draw, holdouts in enumerate(draws):
        values = {"epsilon": 0.1, "warmup": 0.0, **(hparams[draw] if hparams else {"lr": 10.0**-draw})}
        run = PlannedRun(folder / str(draw), str(draw), "toy", "uat", ("c",), 0, draw)
        runs[run] = RunConfig("silhouettes", "uat", hparams=values, steps=10, record_every=2)
        run.folder.mkdir(parents=True)
        records = []
        for number, value in enumerate(holdouts):
            parts = {"holdout": value} | ({"attacked": attacked[draw]} if attacked else {})
            accuracy = {"a": parts, "b": parts}
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
    return Race(runs, (4, 6, 8), rules)


def find_losers(race: Race, rung: int = 4) -> dict[int, str]:
    return {run.draw: reason for run, reason in race.find_losers(rung, list(race.runs)).items()}


def test_draws_are_compared_by_their_best_record_up_to_the_rung(tmp_path: Path) -> None:
    # Draw 1 is the best later, and draw 2 was better before. The standard error of 80 % is 2.9 points.
    race = make_race(tmp_path, [(0.5, 0.7, 0.7), (0.5, 0.6, 0.9), (0.8, 0.4, 0.4), (0.1, 0.2, 0.3)])
    assert find_losers(race) == {
        1: "after 4 of 10 steps: holdout 60.0, clearly behind 80.0",
        3: "after 4 of 10 steps: holdout 20.0, clearly behind 80.0",
    }


@pytest.mark.parametrize(("holdout", "expected"), [(100, set()), (400, {3}), (4000, {0, 2, 3})])
def test_only_what_is_clearly_behind_is_stopped(tmp_path: Path, holdout: int, expected: set[int]) -> None:
    # With 100 images per domain the standard error of a difference is 4.9 points, with 400 2.4, with 4000 0.8.
    holdouts = [(0.5, 0.55), (0.5, 0.6), (0.5, 0.53), (0.5, 0.5)]
    assert set(find_losers(make_race(tmp_path, holdouts, holdout=holdout))) == expected


def test_before_anything_is_learned_nothing_is_stopped(tmp_path: Path) -> None:
    holdouts = [(0.49, 0.51), (0.51, 0.5), (0.52, 0.48), (0.5, 0.5)]
    assert find_losers(make_race(tmp_path, holdouts, holdout=400)) == {}


def test_the_test_domain_does_not_matter(tmp_path: Path) -> None:
    holdouts = [(0.5, 0.7), (0.5, 0.6), (0.8, 0.4), (0.1, 0.2)]
    one = make_race(tmp_path / "one", holdouts, test=(0.1, 0.9, 0.2, 0.95))
    other = make_race(tmp_path / "other", holdouts, test=(0.9, 0.1, 0.8, 0.0))
    assert find_losers(one) == find_losers(other)
    assert set(find_losers(one)) == {1, 3}


def test_no_draw_is_stopped_without_holdouts(tmp_path: Path) -> None:
    race = make_race(tmp_path, [(0.5, 0.9), (0.5, 0.1)])
    assert set(find_losers(race)) == {1}
    for run in race.runs:
        folder = RunFolder(run.folder)
        records = folder.read_records()
        for record in records:
            record["accuracy"] |= {"a": {}, "b": {}}
        folder.write_records(records)
    assert find_losers(race) == {}


def test_with_several_rules_a_draw_is_stopped_if_it_is_behind_by_all(tmp_path: Path) -> None:
    holdouts = [(0.5, 0.9), (0.5, 0.5), (0.5, 0.5)]
    rules = ("training_domain", "attacked_holdout")
    race = make_race(tmp_path, holdouts, rules=rules, attacked=(0.4, 0.8, 0.3))
    assert find_losers(race) == {2: "after 4 of 10 steps: holdout 50.0, clearly behind 90.0"}
    assert set(find_losers(replace(race, rules=("attacked_holdout",)))) == {0, 2}


def test_radii_are_kept_or_stopped_together_before_the_warmup_is_over(tmp_path: Path) -> None:
    hparams = [{"lr": lr, "epsilon": radius, "warmup": 0.6} for lr in (0.1, 0.01) for radius in (0.5, 2.0, 8.0)]
    holdouts = [(0.5, 0.9, 0.9), (0.5, 0.5, 0.9), (0.4, 0.4, 0.4), (0.5, 0.5, 0.5), (0.5, 0.55, 0.9), (0.5, 0.55, 0.9)]
    race = make_race(tmp_path, holdouts, hparams=hparams)
    assert set(find_losers(race)) == {3, 4, 5}  # the learning rate of the best draw survives with all its radii
    survivors = [run for run in race.runs if run.draw < 3]
    assert {run.draw for run in race.find_losers(6, survivors)} == {2}


def test_expected_steps(tmp_path: Path) -> None:
    race = make_race(tmp_path / "draws", [(0.5,)] * 8)
    assert race.expected_steps == [10] * 2 + [6] * 2 + [4] * 4
    # Draws that differ only in the radius are not stopped before the warm-up is over.
    radii = [{"epsilon": radius, "warmup": 0.6} for radius in (0.1, 0.2, 0.4, 0.8)]
    assert make_race(tmp_path / "radii", [(0.5,)] * 4, hparams=radii).expected_steps == [10, 8, 6, 6]
    assert replace(race, rungs=()).expected_steps == [10] * 8


def run(spec: SweepSpec, folder: Path, **callbacks: Any) -> tuple[SweepOutcome, list[str]]:
    engine = InlineEngine()
    outcome = run_sweep(spec, folder, engine=engine, placement=PLACEMENT, callbacks=SweepCallbacks(**callbacks))
    return outcome, engine.names


@pytest.fixture(scope="module")
def full(images: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The full search."""
    folder = tmp_path_factory.mktemp("full") / "sweep"
    assert run(make_spec(images, search="random"), folder)[0] == SweepOutcome(done=4, failed=0)
    return folder


@pytest.fixture(scope="module")
def race(images: Path, full: Path) -> Race:
    (race,) = plan_races(plan_sweep(make_spec(images), full, placement=PLACEMENT), ("training_domain",))
    return race


@pytest.fixture(scope="module")
def simulated(race: Race) -> dict[str, str]:
    """The draws that a race would have stopped, with the reasons."""
    stopped = {run.name: reason for run, reason in simulate_race(race).items()}
    assert {name.split("-")[3] for name in stopped} >= {"draw1", "draw3"}
    assert len(stopped) < 4
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


def outcome_of(stopped: Mapping[str, str]) -> SweepOutcome:
    return SweepOutcome(done=4 - len(stopped), failed=0, stopped=len(stopped))


def test_a_race_ends_as_its_simulation_and_survivors_are_equal_to_the_byte(
    tmp_path: Path, images: Path, full: Path, race: Race, simulated: dict[str, str]
) -> None:
    folder, spec = tmp_path / "sweep", make_spec(images)
    statuses: dict[str, list[str]] = {}
    outcome, _ = run(spec, folder, on_status=lambda run, status: statuses.setdefault(run.name, []).append(status.state))
    assert outcome == outcome_of(simulated)
    assert read_stops(folder) == simulated
    check_runs(folder, full)
    assert [each[-1] for each in statuses.values()].count("stopped") == len(simulated)
    assert all(each.count("done") + each.count("stopped") == 1 for each in statuses.values())
    spent = sum(status.step for status in SweepFolder(folder).read_statuses().values())
    assert spent == count_raced_steps(race) < 4 * 30
    assert run(spec, folder) == (outcome, [])
    runs = read_runs([folder])
    assert runs.frame["run"].n_unique() == outcome.done
    assert runs.notes == ()  # stopped runs are not missing


@pytest.mark.parametrize("count", [10, 40])
def test_an_interrupted_race_resumes_and_ends_the_same(
    tmp_path: Path, images: Path, full: Path, simulated: dict[str, str], count: int
) -> None:
    folder, seen = tmp_path / "sweep", 0

    def count_steps(planned: PlannedRun, status: RunStatus) -> None:
        nonlocal seen
        seen += status.state == "running"

    with pytest.raises(RunInterrupted, match="0 of 4 runs are done"):
        run(make_spec(images), folder, on_status=count_steps, should_stop=lambda: seen >= count)
    assert run(make_spec(images), folder)[0] == outcome_of(simulated)
    assert read_stops(folder) == simulated
    check_runs(folder, full)


def test_a_race_killed_while_it_writes_its_decisions_decides_the_same(
    tmp_path: Path, images: Path, full: Path, simulated: dict[str, str]
) -> None:
    class Killed(BaseException):
        pass

    def kill(planned: PlannedRun, status: RunStatus) -> None:
        if status.state == "stopped":
            raise Killed

    folder = tmp_path / "sweep"
    with pytest.raises(Killed):
        run(make_spec(images), folder, on_status=kill)
    assert len(read_stops(folder)) == 1
    assert run(make_spec(images), folder)[0] == outcome_of(simulated)
    assert read_stops(folder) == simulated
    check_runs(folder, full)


def test_failed_runs_are_out_of_the_race(tmp_path: Path, images: Path, simulated: dict[str, str]) -> None:
    folder, spec = tmp_path / "sweep", make_spec(images)
    leader = next(run for run in plan_sweep(spec, folder) if run.name not in simulated)
    leader.folder.mkdir(parents=True)
    (leader.folder / "notes.txt").touch()
    outcome, _ = run(spec, folder)
    assert outcome.failed == 1
    assert outcome.done >= 1  # someone else has become the leader
    assert leader.name not in read_stops(folder)


def test_more_trials_and_methods_are_races_of_their_own(tmp_path: Path, images: Path) -> None:
    folder, spec = tmp_path / "sweep", make_spec(images, algorithms=("erm",))
    run(spec, folder)
    before = read_stops(folder)
    assert before
    _, names = run(replace(spec, algorithms=("erm", "uat"), trials=2), folder)
    after = read_stops(folder)
    assert before.items() <= after.items()
    assert {name.split("-")[1] + name.split("-")[4] for name in after} == {
        "ermtrial0",
        "ermtrial1",
        "uattrial0",
        "uattrial1",
    }
    assert not any("-erm-" in name and "trial0" in name for name in names)


def test_the_last_draw_is_trained_to_the_end_without_a_pause_and_recommended(tmp_path: Path, images: Path) -> None:
    spec, races = make_spec(images, grid={"lr": (0.01, 1e-8)}), []
    outcome, names = run(spec, tmp_path / "sweep", on_race=races.extend)
    assert outcome == SweepOutcome(done=1, failed=0, stopped=1)
    statuses = {planned.draw: status for planned, status in SweepFolder(tmp_path / "sweep").read_statuses().items()}
    assert statuses[0].state == "done"
    pauses = sum(rung <= statuses[1].step for rung in races[0].rungs)
    assert pauses < len(races[0].rungs)
    assert sum("draw0" in name for name in names) == pauses + 1
    (recommendation,) = recommend(tmp_path / "sweep")
    assert recommendation.recommended.values == {"lr": 0.01}


def test_too_few_records_for_a_race(tmp_path: Path, images: Path) -> None:
    spec = make_spec(images, settings={**SETTINGS, "record_every": 30})
    races: list[Race] = []
    assert run(spec, tmp_path / "sweep", on_race=races.extend)[0] == SweepOutcome(done=4, failed=0)
    assert [race.describe() for race in races] == [
        "no race for uat on colors: no record between 20% and the end of the 30 steps"
    ]


def test_a_paused_run_resumes_to_the_byte(tmp_path: Path, images: Path) -> None:
    paused, full = (
        RunConfig(
            images, "mat", test_domains=("light",), hparams_seed=3, **SETTINGS, **PLACEMENT, output=tmp_path / name
        )
        for name in ("paused", "full")
    )
    for step in (4, 8, 8, 29):  # 8 is not a record
        result = train(replace(paused, stop_after=step))
        assert not RunFolder(result.folder).is_done
        assert result.last["step"] < step
    assert train(paused).last["step"] == 29
    train(full)
    assert read_comparable(tmp_path / "paused") == read_comparable(tmp_path / "full")
    for file in ("best.safetensors", "last.safetensors"):
        assert (tmp_path / "paused" / file).read_bytes() == (tmp_path / "full" / file).read_bytes()


def test_expected_configs_of_what_is_left(tmp_path: Path, images: Path) -> None:
    spec = make_spec(images, algorithms=("erm",))
    plan = plan_sweep(spec, tmp_path)
    (race,) = plan_races(plan, spec.selection)
    first, third = race.rungs[0], race.rungs[2]
    assert race.expected_steps == [30, third, first, first]
    assert [config.stop_after for config in race.expect_configs([])] == [30, third, first, first]
    done, other, *_ = plan
    RunFolder(done.folder).path.mkdir(parents=True)
    RunFolder(done.folder).write_done()
    left = race.expect_configs([done, other])
    assert [config.stop_after for config in left] == [third, first]
