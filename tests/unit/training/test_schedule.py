"""Learning-rate schedules: their rules, what they do to the optimizers, and runs that a plateau ends early."""

import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_runs import DATASETS, find_differences, interrupted_run, read_outcome, tiny_config, tiny_run

from domainwise.algorithms import IRM, Algorithm
from domainwise.errors import DomainwiseError
from domainwise.networks import small_cnn
from domainwise.selection import read_runs
from domainwise.storage.run_folder import RunFolder
from domainwise.training import train
from domainwise.training.loading import make_refit_config
from domainwise.training.schedule import PlateauSchedule, read_factors
from domainwise.training.trainer import Trainer

RISING: dict[str, Any] = {"lr_schedule": "plateau", "hparams": {"lr": 1.0}, "record_every": 1, "steps": 12}


def factors_by_hand(losses: list[float]) -> list[float]:
    """Divide by 10 after two losses in a row that are not lower by a ten-thousandth; the third time, end."""
    best, bad, reductions = float("inf"), 0, 0
    factors = []
    for loss in losses:
        if loss < best * (1 - 1e-4):
            best, bad = loss, 0
        else:
            bad += 1
        if bad == 2:
            reductions, bad = reductions + 1, 0
        factors.append(10.0**-reductions if reductions < 3 else 0.0)
    return factors


def test_the_factor_follows_the_rule() -> None:
    draw = random.Random(0)
    ends = 0
    for _ in range(50):
        losses = [2 / (1 + 0.2 * index) + draw.choice([0, 0, 0.3, 1]) * draw.random() for index in range(20)]
        schedule = PlateauSchedule()
        factors = []
        for index, loss in enumerate(losses):
            if index == 7:  # a new one continues from the state
                state = schedule.state_dict()
                schedule = PlateauSchedule()
                schedule.load_state_dict(state)
            schedule.step(loss)
            factors.append(schedule.factor)
        assert factors == pytest.approx(factors_by_hand(losses))
        ends += factors[-1] == 0
    assert 5 < ends < 45


def test_by_hand() -> None:
    schedule = PlateauSchedule()
    factors = []
    for loss in (1.0, 1.1, 0.9, 0.95, 0.9, 0.8, 0.8, 0.8, 0.7, 0.7, 0.71, 0.1):
        schedule.step(loss)
        factors.append(schedule.factor)
    assert factors == pytest.approx([1, 1, 1, 1, 0.1, 0.1, 0.1, 0.01, 0.01, 0.01, 0, 0])


def test_a_run_that_reaches_a_plateau_ends_early(tmp_path: Path, domainwise: Callable[..., Any]) -> None:
    rates: list[float] = []
    trainer = Trainer(
        tiny_config(tmp_path / "run", **RISING),
        on_step=lambda step, loss: rates.append(trainer.algorithm.optimizer.param_groups[0]["lr"]),
        datasets=DATASETS,
    )
    result = trainer.fit()
    losses = [record["holdout_loss"] for record in result.records]
    factors = [record["lr_factor"] for record in result.records]
    assert factors == pytest.approx(factors_by_hand(losses))
    assert factors[-1] == 0
    # The factor of a record holds for the updates after it; the first record follows the second update.
    assert rates == pytest.approx([1, 1, *factors[:-1]])
    last = result.last["step"]
    assert last == len(rates) - 1 < 11
    folder = RunFolder(result.folder)
    assert folder.done_file.read_text() == str(last)
    assert folder.find_last_step(12) == last
    # It is complete: nothing is trained again, and reports count it.
    assert tiny_run(tmp_path / "run", **RISING).records == result.records
    runs = read_runs([tmp_path])
    assert (len(runs.frame["step"].unique()), runs.notes) == (len(result.records), ())
    outcome = domainwise("report", tmp_path)
    assert outcome.code == 0, outcome.err
    assert "erm" in outcome.out
    folder.done_file.write_text("")
    with pytest.raises(DomainwiseError, match="does not reach its last step, 11"):
        tiny_run(tmp_path / "run", **RISING)


def test_a_run_that_was_killed_before_it_was_marked_as_done_ends_there(tmp_path: Path) -> None:
    result = tiny_run(tmp_path / "run", **RISING)
    done = RunFolder(result.folder).done_file
    content = done.read_text()
    done.unlink()
    steps: list[int] = []
    again = train(
        tiny_config(tmp_path / "run", **RISING), on_step=lambda step, loss: steps.append(step), datasets=DATASETS
    )
    assert (again.records, steps, done.read_text()) == (result.records, [], content)


def test_a_warm_up_is_waited_for(tmp_path: Path) -> None:
    hparams = {"head_steps": 4, "head_lr": 3.0, "lr": 0.0}
    result = tiny_run(tmp_path / "run", **{**RISING, "algorithm": "ermplusplus", "hparams": hparams, "steps": 9})
    losses = [record["holdout_loss"] for record in result.records]
    # The head is trained in updates 0 to 4, whose records are those of steps 1 to 4; the loss did not only fall.
    assert sorted(losses[:4], reverse=True) != losses[:4]
    factors = [record["lr_factor"] for record in result.records]
    assert factors[:3] == [1, 1, 1]
    assert factors[3:] == pytest.approx(factors_by_hand(losses[3:]))


def test_every_optimizer_is_scaled_from_its_own_rate(tmp_path: Path) -> None:
    trainer = Trainer(tiny_config(tmp_path / "run", algorithm="dann", steps=1), datasets=DATASETS)
    trainer.fit()
    algorithm: Algorithm = trainer.algorithm
    groups = [group for optimizer in algorithm.optimizers().values() for group in optimizer.param_groups]
    before = [group["lr"] for group in groups]
    assert len(groups) > 1
    for factor in (0.1, 0.01):
        algorithm.lr_factor = factor
        for optimizer in algorithm.optimizers().values():
            algorithm.step_(optimizer)
        assert [group["lr"] for group in groups] == pytest.approx([factor * rate for rate in before])


def test_an_optimizer_that_is_rebuilt_is_scaled_from_its_first_step_on() -> None:
    torch.manual_seed(0)
    algorithm = IRM(small_cnn((3, 8, 8), 2), num_domains=1, lr=0.5, anneal_steps=1)
    batches = [(torch.rand(4, 3, 8, 8), torch.tensor([0, 1, 0, 1]))]
    algorithm.update(batches)
    algorithm.lr_factor = 0.1
    before = [parameter.detach().clone() for parameter in algorithm.network.parameters()]
    algorithm.update(batches)
    moves = [
        (new.detach() - old).abs().max().item() for new, old in zip(algorithm.network.parameters(), before, strict=True)
    ]
    # The first step of an Adam is as long as its learning rate, component by component.
    assert max(moves) == pytest.approx(0.05, rel=1e-3)


def test_read_factors_skips_runs_with_a_constant_rate() -> None:
    assert read_factors([{"step": 2}, {"step": 4, "lr_factor": 0.1}]) == {4: 0.1}


def cosine_by_hand(step: int, steps: int, warmup: int) -> float:
    if step < warmup:
        return (step + 1) / warmup
    return 0.5 * (1 + math.cos(math.pi * (step - warmup) / (steps - warmup)))


@pytest.mark.parametrize("schedule", ["constant", "cosine"])
def test_warm_up_and_cosine_follow_their_formula(tmp_path: Path, schedule: str) -> None:
    rates: list[float] = []
    trainer = Trainer(
        tiny_config(tmp_path / "run", lr_schedule=schedule, lr_warmup=3),
        on_step=lambda step, loss: rates.append(trainer.algorithm.optimizer.param_groups[0]["lr"]),
        datasets=DATASETS,
    )
    result = trainer.fit()
    lr = result.config.hparams["lr"]
    factors = [cosine_by_hand(step, 7, 3) if schedule == "cosine" or step < 3 else 1.0 for step in range(8)]
    assert rates == pytest.approx([lr * factor for factor in factors[:7]])
    # A record has the factor of the update after it; after the last, the cosine has reached 0.
    expected = {record["step"]: factors[record["step"] + 1] for record in result.records}
    recorded = {record["step"]: record["lr_factor"] for record in result.records}
    assert recorded == pytest.approx(expected)


@pytest.mark.parametrize("schedule", ["constant", "cosine", "plateau"])
def test_an_interrupted_schedule_ends_the_same(tmp_path: Path, schedule: str) -> None:
    settings = {"lr_schedule": schedule, "lr_warmup": 4, "steps": 9, "hparams": {"lr": 0.01}}
    tiny_run(tmp_path / "whole", **settings)
    assert interrupted_run(tmp_path / "stopped", **settings) > 2
    whole, stopped = (read_outcome(tmp_path / name) for name in ("whole", "stopped"))
    assert not find_differences(whole, stopped)


def test_the_plateau_waits_for_the_warm_up(tmp_path: Path) -> None:
    result = tiny_run(tmp_path / "run", **{**RISING, "lr_warmup": 5})
    losses = [record["holdout_loss"] for record in result.records]
    factors = [record["lr_factor"] for record in result.records]
    steps = [record["step"] for record in result.records]
    early = sum(step + 1 < 5 for step in steps)
    assert early >= 2
    assert factors[:early] == pytest.approx([(step + 2) / 5 for step in steps[:early]])
    assert factors[early:] == pytest.approx(factors_by_hand(losses[early:]))


def test_a_rate_that_rose_to_its_full_height_stays_there(tmp_path: Path) -> None:
    """Records of the warm-up have its factors, and none follows before the next update."""
    rates: list[float] = []
    trainer = Trainer(
        tiny_config(tmp_path / "run", lr_warmup=4, steps=8, record_every=3),
        on_step=lambda step, loss: rates.append(trainer.algorithm.optimizer.param_groups[0]["lr"]),
        datasets=DATASETS,
    )
    lr = trainer.fit().config.hparams["lr"]
    assert rates == pytest.approx([lr * factor for factor in (0.25, 0.5, 0.75, 1, 1, 1, 1, 1)])


def test_a_refit_repeats_the_cosine(tmp_path: Path) -> None:
    first = tiny_run(tmp_path / "run", lr_schedule="cosine", lr_warmup=2)
    rates: list[float] = []
    trainer = Trainer(
        make_refit_config(first.folder, tmp_path / "again"),
        on_step=lambda step, loss: rates.append(trainer.algorithm.optimizer.param_groups[0]["lr"]),
        datasets=DATASETS,
    )
    second = trainer.fit()
    lr = first.config.hparams["lr"]
    assert rates == pytest.approx([lr * cosine_by_hand(step, 7, 2) for step in range(7)])
    assert [each["lr_factor"] for each in second.records] == [each["lr_factor"] for each in first.records]


def test_a_warm_up_as_long_as_the_run_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DomainwiseError, match="lr_warmup must be below the number of steps, 7, got 7"):
        tiny_run(tmp_path / "run", lr_warmup=7)
