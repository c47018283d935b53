"""Methods of every structure train, resume and are loaded from their run folder.

That every method's own state is complete is proven in contract/test_state.py, and what one domain is for it in
contract/test_errors.py.
"""

from pathlib import Path
from typing import Any

import pytest
import torch

from domainwise import RunConfig, load_algorithm, load_model, train
from domainwise.algorithms import ALGORITHMS
from domainwise.storage.run_folder import RunFolder
from domainwise.training import RunInterrupted

# Within seven steps: a jump of the penalty that resets the optimizer, turns of two networks with an optimizer each,
# rounds that keep images and a copy of the network, copies that follow one domain after the other, an average of the
# weights, and a perturbation.
HPARAMS: dict[str, dict[str, Any]] = {
    "irm": {"anneal_steps": 4},
    "dann": {"discriminator_steps": 2},
    "gut": {"round_every": 3, "pool": 24},
    "fish": {},
    "ermplusplus": {},
    "mat": {},
}


def config(name: str, folder: Path) -> RunConfig:
    return RunConfig(
        algorithm=name,
        hparams=HPARAMS[name],
        dataset_options={"train_count": 60, "test_count": 20, "shifts": (0, 8)},
        steps=7,
        record_every=3,
        batch_size=8,
        dropout=0.1,
        threads=1,
        device="cpu",
        output=folder,
    )


@pytest.mark.parametrize("name", HPARAMS)
def test_a_resumed_run_equals_an_uninterrupted_one(name: str, tmp_path: Path) -> None:
    uninterrupted = train(config(name, tmp_path / "uninterrupted"))
    steps: list[int] = []
    with pytest.raises(RunInterrupted):
        train(
            config(name, tmp_path / "resumed"),
            on_step=lambda step, loss: steps.append(step),
            should_stop=lambda: len(steps) == 5,
        )
    resumed = train(config(name, tmp_path / "resumed"))
    for one, other in zip(uninterrupted.records, resumed.records, strict=True):
        assert one.pop("seconds_per_step") > 0
        assert other.pop("seconds_per_step") > 0
        assert one == other
    ours, theirs = (RunFolder(tmp_path / run).read_weights("last") for run in ("uninterrupted", "resumed"))
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[key], theirs[key]) for key in ours)

    # Records contain the method's own terms next to the loss.
    terms = {"irm": "penalty", "dann": "discriminator_loss", "gut": "pool"}
    if name in terms:
        assert terms[name] in uninterrupted.last["terms"]

    x = torch.rand(6, 3, 32, 32)
    with torch.no_grad():
        logits = load_model(tmp_path / "uninterrupted", "last")(x)
    assert logits.shape == (6, 2)
    if "average" not in ALGORITHMS[name].run_defaults:  # the algorithm has the weights that are trained
        torch.testing.assert_close(logits, load_algorithm(tmp_path / "resumed").predict(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["mat", "vrex"])
def test_one_training_domain_is_enough_or_one_line_of_error(name: str, tmp_path: Path, domainwise: Any) -> None:
    outcome = domainwise(
        *("train", "--algorithm", name, "--train-domain", "style_0", "--steps", "2", "--batch-size", "8"),
        *("--dataset-option", "train_count=60", "--dataset-option", "test_count=20", "--threads", "1"),
        *("--device", "cpu", "-o", tmp_path / "run"),
    )
    if ALGORITHMS[name].min_domains == 1:
        assert outcome.code == 0, outcome.err
    else:
        assert outcome.code == 2
        assert outcome.err.startswith(f"error: {ALGORITHMS[name].__name__} compares domains and needs at least 2")
        assert outcome.err.count("\n") == 1
