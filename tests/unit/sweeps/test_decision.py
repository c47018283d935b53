"""Trials are added where claims are open, until all are decided or the budget is spent."""

from collections.abc import Collection
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from domainwise.errors import DomainwiseError, RunInterrupted
from domainwise.reports import report
from domainwise.selection.verdicts import judge_differences
from domainwise.storage.sweep_folder import SweepFolder
from domainwise.sweeps.decision import (
    Decision,
    parse_budget,
    rank_open_claims,
    run_sweep_until_decided,
)
from domainwise.sweeps.engine import Engine, EngineCallbacks
from domainwise.sweeps.plan import plan_sweep
from domainwise.sweeps.runner import SweepCallbacks, run_sweep
from domainwise.sweeps.spec import SweepSpec
from domainwise.training import train
from easy_images import write_easy_images
from in_process_engine import train_in_process

SETTINGS = {
    "network": "small_cnn",
    "dataset_options": {"image_size": 16},
    "augment": False,
    "steps": 3,
    "batch_size": 8,
}


@pytest.fixture(scope="module")
def equal(tmp_path_factory: pytest.TempPathFactory) -> SweepSpec:
    """Images that three steps are enough for. With radius 0, UAT is ERM to the bit."""
    images = write_easy_images(tmp_path_factory.mktemp("data") / "easy", count=20)
    hparams = {"epsilon": 0.0, "lr": 0.01}
    return SweepSpec((str(images),), ("erm", "uat"), test_domains=("light",), hparams=hparams, settings=SETTINGS)


def decide(folder: Path, spec: SweepSpec, **options: Any) -> Decision:
    return run_sweep_until_decided(spec, folder, engine=train_in_process, placement={"threads": 1}, **options)


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("20min", 1200), ("1h30min", 5400), ("1 h 30 m", 5400), ("0.5h", 1800), (7, 7)]
)
def test_budgets(text: Any, seconds: float) -> None:
    assert parse_budget(text) == seconds


@pytest.mark.parametrize("text", ["", "20", "20 minutes", "h", "1h x", "-5min", "0s", 0, -1.0, "nan min"])
def test_bad_budgets(text: Any) -> None:
    with pytest.raises(DomainwiseError, match="budget"):
        parse_budget(text)


def test_equal_methods_are_decided_after_the_trials_that_a_sign_test_needs(tmp_path: Path, equal: SweepSpec) -> None:
    decision = decide(tmp_path / "sweep", equal)
    judgement = decision.judgements["uat"]
    assert (decision.is_complete, decision.reason) == (True, "all decided")
    assert (judgement.verdict, judgement.trials, judgement.interval) == ("no practical difference", 6, (0.0, 0.0))
    plan = SweepFolder(tmp_path / "sweep").read_plan()
    assert sorted((run.algorithm, run.trial) for run in plan) == [(n, t) for n in ("erm", "uat") for t in range(6)]


def test_it_continues_where_it_stopped_and_reports_are_sequential(tmp_path: Path, equal: SweepSpec) -> None:
    folder = tmp_path / "sweep"
    rounds: list[str] = []
    callbacks = SweepCallbacks(on_note=rounds.append)
    first = decide(folder, equal, max_trials=2, callbacks=callbacks)
    assert (first.is_complete, first.reason) == (False, "undecided after 2 trials")
    assert [text.split(":")[0] for text in rounds] == ["trial 0", "trial 1"]
    assert decide(folder, equal, callbacks=callbacks).is_complete
    assert [text.split(":")[0] for text in rounds] == [f"trial {number}" for number in range(6)]
    table = report([folder], compare_to="erm").tables[-1]
    assert "Trials were added until claims were decided, which the intervals allow for." in table.footnotes
    with pytest.raises(DomainwiseError, match="was started with until_decided True, not False"):
        run_sweep(replace(equal, trials=6), folder, engine=train_in_process)


def test_a_sweep_with_fixed_trials_can_be_continued(tmp_path: Path, equal: SweepSpec) -> None:
    run_sweep(replace(equal, trials=3), tmp_path / "sweep", engine=train_in_process)
    rounds: list[str] = []
    assert decide(tmp_path / "sweep", equal, callbacks=SweepCallbacks(on_note=rounds.append)).is_complete
    assert rounds[0].startswith("trial 3:")


def test_a_budget_that_is_too_small_for_one_run_is_an_error(tmp_path: Path, equal: SweepSpec) -> None:
    spec = replace(equal, settings={**SETTINGS, "steps": 10**7})
    with pytest.raises(DomainwiseError, match=r"the budget is too small: the next run takes about \d+ s"):
        decide(tmp_path / "sweep", spec, budget=60)


def test_when_the_budget_is_over_runs_stop_and_the_next_call_resumes_them(
    tmp_path: Path, equal: SweepSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    from domainwise.sweeps import decision as module

    now = 0.0
    monkeypatch.setattr(module.time, "monotonic", lambda: now)
    runs: list[str] = []

    def engine(configs: Any, callbacks: EngineCallbacks) -> None:
        nonlocal now

        def on_done(index: int, result: Any) -> None:
            nonlocal now
            now += 4.0
            runs.append(result.config.algorithm_name)
            callbacks.on_done(index, result)

        train_in_process(configs, EngineCallbacks(on_done=on_done, should_stop=callbacks.should_stop))

    def run(budget: float) -> Decision:
        return run_sweep_until_decided(equal, tmp_path / "sweep", engine=engine, budget=budget)

    # The first trial fits by the estimate; after its first run the budget is over.
    assert run(budget=3).reason == "the budget is spent"
    assert runs == ["erm"]
    assert run(budget=6).reason == "the budget is spent"
    assert runs == ["erm", "uat", "erm"]


def test_a_trial_counts_only_with_all_its_test_domains(tmp_path: Path) -> None:
    """A budget may end in the middle of a trial; some of its domains must not count as all of them."""
    for place in product(("art", "photo", "sketch"), ("cat", "dog"), range(8)):
        file = tmp_path.joinpath("zoo", *map(str, place)).with_suffix(".png")
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8), (30 * place[2], 99, 99)).save(file)
    settings = {"network": "small_cnn", "dataset_options": {"image_size": 8}, "steps": 1, "batch_size": 4}
    spec = SweepSpec((str(tmp_path / "zoo"),), ("erm", "uat"), hparams={"epsilon": 0.0}, settings=settings)
    folder = SweepFolder(tmp_path / "sweep")
    plan = plan_sweep(spec, folder.path, placement={"threads": 1})
    begun = {run: config for run, config in plan.items() if run.test_domains != ("sketch",)}
    with folder.lock():
        replace(spec, until_decided=True).claim(folder)
        folder.write_plan(begun)
    train_in_process(list(begun.values()), EngineCallbacks())
    assert decide(folder.path, spec, max_trials=1).judgements["uat"].trials == 1
    assert sorted(run.name for run in folder.read_plan()) == sorted(run.name for run in plan)


def test_ctrl_c_is_not_the_end_of_the_budget(tmp_path: Path, equal: SweepSpec) -> None:
    with pytest.raises(RunInterrupted):
        decide(tmp_path / "sweep", equal, callbacks=SweepCallbacks(should_stop=lambda: True))


def fail_vrex(trials: Collection[int]) -> Engine:
    def engine(configs: Any, callbacks: EngineCallbacks) -> None:
        for index, config in enumerate(configs):
            if config.algorithm_name == "vrex" and config.trial_seed in trials:
                callbacks.on_failed(index, "training diverged: the loss is nan")
            else:
                callbacks.on_done(index, train(config))

    return engine


def test_a_failed_run_ends_no_claim_and_is_part_of_its_verdict(tmp_path: Path, equal: SweepSpec) -> None:
    spec = replace(equal, algorithms=("erm", "uat", "vrex"))
    decision = run_sweep_until_decided(spec, tmp_path / "sweep", engine=fail_vrex([1]), max_trials=8)
    assert decision.judgements["uat"].verdict == "no practical difference"
    vrex = decision.judgements["vrex"]
    assert (vrex.verdict, vrex.paired.failed) == ("inconclusive", 1)
    assert vrex.trials > 2
    assert vrex.paired.problems == ("vrex on light in trial 1 failed (training diverged: the loss is nan)",)
    assert decision.reason == "no verdict on vrex, as runs collapsed or failed; the others are decided"


def test_a_method_that_always_fails_is_given_up(tmp_path: Path, equal: SweepSpec) -> None:
    spec = replace(equal, algorithms=("erm", "vrex"))
    decision = run_sweep_until_decided(spec, tmp_path / "sweep", engine=fail_vrex(range(99)))
    assert (decision.judgements["vrex"].trials, decision.judgements["vrex"].paired.failed) == (0, 2)
    assert decision.reason.startswith("no verdict on vrex")


def test_equal_methods_at_chance_level_get_no_verdict(tmp_path: Path, equal: SweepSpec) -> None:
    spec = replace(equal, hparams={"epsilon": 0.0, "lr": 0.0})
    decision = decide(tmp_path / "sweep", spec)
    judgement = decision.judgements["uat"]
    assert (judgement.interval, judgement.verdict) == ((0.0, 0.0), "inconclusive")
    assert judgement.paired.collapse_rate == "6 of 6"
    assert not decision.is_complete


def test_the_most_uncertain_claims_come_first() -> None:
    judgements = judge_differences(
        {
            "decided": [5.0, 5.2, 4.9, 5.1, 5.0, 5.2, 4.9, 5.1],
            "narrow": [1.0, -1.2, 1.4, -0.9, 1.2, -1.1, 0.7, -1.0],
            "wide": [10.0, -12.0, 14.0, -9.0, 12.0, -11.0, 7.0, -10.0],
            "two": [1.0, 3.0],
            "none": [],
        },
        is_sequential=True,
    )
    assert rank_open_claims(judgements) == ["none", "two", "wide", "narrow"]
    assert rank_open_claims(judgements, max_trials=8) == ["none", "two"]


def test_unknown_baseline(tmp_path: Path, equal: SweepSpec) -> None:
    with pytest.raises(DomainwiseError, match="unknown method to compare to 'mat'"):
        decide(tmp_path / "sweep", equal, baseline="mat")
