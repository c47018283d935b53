"""A study of one's own images: what it compares, what it recommends, and what it does with difficult data."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from domainwise import DomainwiseError, RunConfig, train
from domainwise.errors import RunInterrupted
from domainwise.reproduction import ReproductionCallbacks
from domainwise.reproduction.method_study import Study, check_data, list_rows, rank_by_promise, recommend_method, study
from domainwise.selection.verdicts import Judgement, PairedTrials, judge_differences
from domainwise.storage.sweep_folder import SweepFolder
from domainwise.training.prediction import predict_images
from domainwise.training.registry import build_dataset
from in_process_engine import train_in_process

SETTINGS: dict[str, Any] = {"network": "small_cnn", "image_size": 16, "batch_size": 4, "steps": 2, "device": "cpu"}


def make_folder(root: Path, domains: dict[str, dict[str, int]]) -> Path:
    """Write noisy images whose brightness is their class."""
    random = np.random.default_rng(0)
    for domain, classes in domains.items():
        for level, (name, count) in enumerate(classes.items()):
            (root / domain / name).mkdir(parents=True)
            for number in range(count):
                pixels = random.integers(0, 100, (16, 16, 3)) + 100 * level
                Image.fromarray(pixels.astype(np.uint8)).save(root / domain / name / f"{number}.png")
    return root


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    classes = {"cat": 12, "dog": 12}
    return make_folder(tmp_path_factory.mktemp("data") / "pets", dict.fromkeys(("home", "park", "zoo"), classes))


def run_study(folder: Path, output: Path, max_trials: int = 1, **options: Any) -> Study:
    settings = {**SETTINGS, "budget": "10min", **options}
    return study(folder, output, max_trials=max_trials, workers=1, engine=train_in_process, **settings)


def test_it_ends_with_advice_a_page_and_commands_that_work(photos: Path, tmp_path: Path) -> None:
    notes: list[str] = []
    result = run_study(photos, tmp_path / "out", callbacks=ReproductionCallbacks(on_note=notes.append))
    assert result.recommended in {row.name for row in list_rows(build_dataset(photos, {}, seed=0))}
    assert [file.name for file in result.files] == ["study.md", "study.png", "study.html"]
    page = (tmp_path / "out" / "study.html").read_text()
    assert "Which method to use for pets?" in page
    assert "How far apart the domains are" in page
    assert {each.trials for each in result.judgements.values()} == {1}
    assert notes[-1] == "undecided after 1 trial"
    # The command trains on all domains and its model predicts.
    words = result.commands[0].split()
    assert [words[place + 1] for place, word in enumerate(words) if word == "--train-domain"] == ["home", "park", "zoo"]
    assert "--steps" not in words
    assert "The final model is trained for 5001 steps. Methods were compared after 2" in page
    config = RunConfig(
        photos,
        "erm",
        network="small_cnn",
        dataset_options={"image_size": 16},
        batch_size=4,
        steps=2,
        train_domains=("home", "park", "zoo"),
        output=tmp_path / "final",
    )
    assert train(config).last["test_domains"] == []
    (prediction,) = predict_images(tmp_path / "final", [photos / "zoo" / "cat" / "0.png"])
    assert set(prediction.probabilities) == {"cat", "dog"}


@pytest.mark.slow
def test_a_second_call_continues_and_keeps_the_settings(photos: Path, tmp_path: Path) -> None:
    first = run_study(photos, tmp_path / "out", steps=2)
    shift = (tmp_path / "out" / "shift.json").stat().st_mtime_ns
    second = run_study(photos, tmp_path / "out", max_trials=2, steps=None)
    assert (tmp_path / "out" / "shift.json").stat().st_mtime_ns == shift
    assert second.shift == first.shift
    assert {each.trials for each in second.judgements.values()} == {2}
    with pytest.raises(DomainwiseError, match="has steps 2, not 3; choose another --output"):
        run_study(photos, tmp_path / "out", steps=3)
    with pytest.raises(DomainwiseError, match="has network small_cnn, not resnet18"):
        run_study(photos, tmp_path / "out", network="resnet18")
    with pytest.raises(DomainwiseError, match="has network small_cnn, not default"):
        run_study(photos, tmp_path / "out", network=None)
    for damaged in ("{}", '{"left_out": 3}', "[1]", "[" * 9999):
        (tmp_path / "out" / "shift.json").write_text(damaged)
        with pytest.raises(DomainwiseError, match=r"shift\.json is damaged: .*; restore it, or delete it"):
            run_study(photos, tmp_path / "out")
    (tmp_path / "out" / "study.json").write_text("{")
    with pytest.raises(DomainwiseError, match=r"study\.json is damaged: "):
        run_study(photos, tmp_path / "out")


def test_a_single_domain_cannot_be_compared_on(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "one", {"home": {"cat": 10, "dog": 10}})
    output = tmp_path / "my pets"
    result = run_study(folder, output)
    assert result.recommended == "erm"
    assert "with a single domain, none can be held out" in result.advice
    assert "--train-domain home" in result.commands[0]
    assert "--augment" in result.commands[0]
    assert result.commands[1] == f"domainwise predict '{output}/final' IMAGES"


def test_two_domains_leave_out_methods_that_need_two_to_train_on(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "two", {name: {"cat": 10, "dog": 10} for name in ("home", "park")})
    names = [row.name for row in list_rows(build_dataset(folder, {"image_size": 16}, seed=0))]
    assert "coral" not in names
    assert "erm, not augmented" in names
    assert len(names) == 8


@pytest.mark.filterwarnings("ignore:domain 'park'")
def test_missing_classes_are_noted(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "some", {"home": {"cat": 10, "dog": 10}, "park": {"cat": 10}})
    assert check_data(build_dataset(folder, {"image_size": 16}, seed=0)) == ["domain 'park' has no images of dog"]


def test_no_holdout_is_an_error(tmp_path: Path) -> None:
    domains = {"home": {"cat": 10, "dog": 10}, "park": {"cat": 2, "dog": 2}, "zoo": {"cat": 10, "dog": 10}}
    few = make_folder(tmp_path / "few", domains)
    with pytest.raises(DomainwiseError, match="domain 'park' has only 4 images, too few for a holdout"):
        run_study(few, tmp_path / "out")


def test_an_attempt_that_ends_before_any_run_binds_nothing(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("domainwise.sweeps.time_estimate.MAX_SECONDS", 0.0)

    def fail_shift(error: Exception) -> ReproductionCallbacks:
        def on_data(task: str, done: int, total: int) -> None:
            if task == "computing features":
                raise error

        return ReproductionCallbacks(on_data=on_data)

    with pytest.raises(DomainwiseError, match="the budget is too small: the next run takes about"):
        run_study(photos, tmp_path, budget=60, steps=10**7, callbacks=fail_shift(DomainwiseError("no weights")))
    with pytest.raises(RunInterrupted):
        run_study(photos, tmp_path, steps=3, batch_size=2, callbacks=fail_shift(RunInterrupted()))
    begun = tmp_path / "runs" / "erm" / "run"
    begun.mkdir(parents=True)
    (begun / "config.json").touch()
    with pytest.raises(DomainwiseError, match="has steps 10000000, not 3; choose another --output"):
        run_study(photos, tmp_path, steps=3)
    with pytest.raises(DomainwiseError, match="has batch_size 4, not default; choose another --output"):
        run_study(photos, tmp_path, steps=None, batch_size=None)


def test_a_study_does_not_share_its_folder(photos: Path, tmp_path: Path) -> None:
    """Neither with a sweep, whose selection would count its runs, nor with a process that is about to begin."""
    folder = SweepFolder(tmp_path / "sweep")
    with folder.lock():
        with pytest.raises(DomainwiseError, match=r"a sweep is already running in .*sweep: process \d+ on "):
            run_study(photos, folder.path)
        folder.write_plan([])
    with pytest.raises(DomainwiseError, match=r"sweep contains a sweep; choose another --output"):
        run_study(photos, folder.path)


def judge(**differences: list[float]) -> dict[str, Judgement]:
    return judge_differences(differences, is_sequential=True)


def test_methods_that_fall_behind_get_no_more_trials() -> None:
    judgements = judge(a=[3.0, 3.5], b=[-1.0, -2.0], c=[1.0, 2.0], d=[-3.0, -4.0])
    assert rank_by_promise(judgements) == ["a", "c"]
    judgements = judge(a=[3.0, 3.5, 1.0, 0.0], b=[-1.0, -2.0], c=[1.0, 2.0, 0.5, 1.0], d=[-3.0, -4.0])
    assert rank_by_promise(judgements) == ["a"]
    assert rank_by_promise(judge(a=[3.0], b=[], c=[1.0], d=[])) == ["b", "d", "a", "c"]


def test_the_best_method_that_is_shown_to_be_better_is_recommended() -> None:
    steady = [2.0, 2.2, 1.9, 2.1, 2.0, 2.1, 1.9, 2.2]
    name, advice = recommend_method(judge(uat=steady, mat=[value + 1 for value in steady], ldat=[9.0, -9.0]))
    assert name == "mat"
    assert advice.startswith("Use mat: +3.0 points (")


def test_otherwise_erm_is_recommended() -> None:
    equal = [0.1, -0.1, 0.0, 0.1, -0.1, 0.0, 0.1, -0.1, 0.0, 0.1]
    assert recommend_method(judge(uat=equal)) == ("erm", "Use plain ERM: no method is better by more than the margin.")
    name, advice = recommend_method(judge(uat=[5.0, -4.0, 3.0], mat=equal))
    assert name == "erm"
    assert "The best candidate is uat, +1.3 points (too few trials) over 3 trials; at least 113 trials would" in advice
    assert recommend_method(judge(uat=[]))[0] == "erm"


def test_advice_names_the_runs_that_collapsed() -> None:
    problem = "uat on day in trial 1 is at chance level"
    judgements = judge_differences({"uat": PairedTrials([5.0, 6.0, 5.0], collapsed=1, problems=(problem,))})
    name, advice = recommend_method(judgements)
    assert name == "erm"
    assert f"runs are at chance level or failed in 1 of 3 trials: {problem}. Rerun" in advice
