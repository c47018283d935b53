"""Runs that fine-tune a part of a network: they resume to the bit, load, and predict; and mixed precision."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_runs import DATA, DATASETS, find_differences, interrupted_run, read_outcome, tiny_config, tiny_run
from torch import Tensor, nn

from domainwise.algorithms import ALGORITHMS, ERM, Algorithm
from domainwise.algorithms.sharpness import Sharpness
from domainwise.errors import DomainwiseError
from domainwise.networks import small_cnn
from domainwise.storage.run_folder import RunFolder
from domainwise.training import RunConfig, load_algorithm, load_model
from domainwise.training.trainer import Trainer, _average_measurements

VIT: dict[str, Any] = {"network": "timm:test_vit", "weights": "none", "steps": 3, "dataset_options": DATA}


def test_default_settings_do_not_change_the_name_of_a_folder() -> None:
    new = ("freeze", "layer_decay", "lora", "lora_targets", "compile", "lr_warmup")
    config = RunConfig()
    identity = config.identity()
    assert all(name in identity for name in new)
    assert "gradient_checkpointing" not in identity
    names = {RunConfig(**{name: value}).folder() for name, value in (("freeze", ("all",)), ("layer_decay", 0.5))}
    assert len({*names, config.folder(), RunConfig(lora=4).folder(), RunConfig(lr_warmup=5).folder()}) == 5
    # What version 0.3 called it.
    assert RunConfig(seeding="domainbed").folder() == Path("runs/silhouettes-mat-trial0-2603b38f")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lora": 4, "freeze": ("all",)}, "--lora and --freeze cannot be used together"),
        ({"lora_targets": ("blocks",)}, "--lora-target needs --lora"),
        ({"layer_decay": 1.5}, "layer_decay must be a number of at least 0 and below 1, got 1.5"),
        ({"lora": 0}, "lora must be an integer of at least 1, got 0"),
        (
            {"compile": True, "gradient_checkpointing": True},
            "--compile and --gradient-checkpointing cannot be used together",
        ),
    ],
)
def test_settings_that_cannot_be_used(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(DomainwiseError, match=message):
        RunConfig(**settings)


def test_one_pattern_may_be_given_as_a_string() -> None:
    assert RunConfig(freeze="all").freeze == ("all",)


def test_a_run_with_adapters_resumes_to_the_bit_and_loads(tmp_path: Path) -> None:
    pytest.importorskip("peft")
    settings = {**VIT, "lora": 2, "layer_decay": 0.8, "average": "ema", "lr_schedule": "cosine"}
    counts: list[tuple[int, int]] = []
    trainer = Trainer(
        tiny_config(tmp_path / "whole", **settings), on_network=lambda *each: counts.append(each), datasets=DATASETS
    )
    whole = trainer.fit()
    assert counts[0][1] < 0.2 * counts[0][0]
    assert interrupted_run(tmp_path / "stopped", **settings) >= 1
    outcomes = [read_outcome(tmp_path / name) for name in ("whole", "stopped")]
    assert not find_differences(*outcomes)
    model = load_model(tmp_path / "whole", "last")
    weights = RunFolder(whole.folder).read_weights("last")
    assert any("lora_A" in name for name in weights)
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())
    assert load_algorithm(tmp_path / "whole").optimizer.param_groups[0]["lr"] < whole.config.hparams["lr"]


@pytest.mark.parametrize("name", ["freeze", "lora_targets"])
def test_a_run_whose_config_has_no_list_of_names_is_an_error(tmp_path: Path, name: str) -> None:
    folder = RunFolder(tiny_run(tmp_path / "run", steps=1).folder)
    config = json.loads((folder.path / "config.json").read_text())
    config["config"][name] = 5
    (folder.path / "config.json").write_text(json.dumps(config))
    with pytest.raises(DomainwiseError, match=f"config.json is damaged.*{name}"):
        load_model(folder.path)


def test_recomputing_activations_is_not_part_of_what_a_run_is(tmp_path: Path) -> None:
    settings = {"network": "shufflenet_v2_x0_5", "weights": "none", "steps": 2, "record_every": 1}
    tiny_run(tmp_path / "plain", **settings, stop_after=1)
    tiny_run(tmp_path / "saving", **settings, gradient_checkpointing=True, stop_after=1)
    tiny_run(tmp_path / "plain", **settings, gradient_checkpointing=True)
    tiny_run(tmp_path / "saving", **settings)
    assert not find_differences(read_outcome(tmp_path / "plain"), read_outcome(tmp_path / "saving"))


def test_half_precision_needs_a_gpu(tmp_path: Path) -> None:
    with pytest.raises(DomainwiseError, match="precision 'fp16' needs a CUDA device, got cpu; use bf16 or fp32"):
        tiny_run(tmp_path / "run", precision="fp16")


def random_batches(seed: int) -> list[tuple[Tensor, Tensor]]:
    draw = torch.Generator().manual_seed(seed)
    return [(torch.rand(6, 3, 12, 12, generator=draw), torch.randint(3, (6,), generator=draw)) for _ in range(3)]


def build(name: str, scaler: torch.amp.GradScaler | None, **hparams: Any) -> Algorithm:
    torch.manual_seed(0)
    algorithm = ALGORITHMS[name](
        small_cnn((3, 12, 12), 3),
        num_domains=3,
        domain_sizes=[9, 9, 9],
        num_steps=9,
        lr=0.01,
        generator=torch.Generator().manual_seed(0),
        **hparams,
    )
    if scaler is not None:
        algorithm.scale_losses_(scaler)
    return algorithm.train()


REFUSED = {"mldg", "andmask", "sandmask", "iga", "ncdg", "sam", "sagm"}


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_scaled_losses_take_the_same_steps_or_are_refused(name: str) -> None:
    """The scale is a power of 2, which cancels exactly."""
    scaler = torch.amp.GradScaler("cpu")
    if name in REFUSED:
        with pytest.raises(DomainwiseError, match="does not support fp16; use bf16 or fp32"):
            build(name, scaler)
        return
    plain, scaled = build(name, None), build(name, scaler)
    for seed in range(3):
        for algorithm in (plain, scaled):
            torch.manual_seed(seed)
            algorithm.update(random_batches(seed))
    expected, state = plain.network.state_dict(), scaled.network.state_dict()
    assert all(torch.equal(value, expected[key]) for key, value in state.items())
    assert scaler.state_dict()["_growth_tracker"] >= 3


def test_a_simultaneous_attack_does_not_contain_the_scale() -> None:
    hparams = {"schedule": "simultaneous", "ascent": "gradient", "step_size": 0.1, "warmup": 0.0}
    # The scale grows after every step.
    scaler = torch.amp.GradScaler("cpu", growth_interval=1)
    plain, scaled = build("uat", None, **hparams), build("uat", scaler, **hparams)
    for seed in range(3):
        for algorithm in (plain, scaled):
            algorithm.update(random_batches(seed))
    assert scaler.get_scale() == 2**19
    expected, state = plain.state_dict(), scaled.state_dict()
    assert not expected["perturbation.deltas"].allclose(torch.zeros(()))
    assert torch.equal(state["perturbation.deltas"], expected["perturbation.deltas"])


def test_steps_that_overflow_are_skipped_and_the_scale_is_resumed() -> None:
    algorithm = build("erm", torch.amp.GradScaler("cpu"))
    algorithm.update(random_batches(0))
    before = copy.deepcopy(algorithm.network.state_dict())
    (x, y), *rest = random_batches(1)
    algorithm.update([(x * torch.inf, y), *rest])
    assert all(torch.equal(value, before[name]) for name, value in algorithm.network.state_dict().items())
    assert algorithm.scaler is not None
    assert algorithm.scaler.get_scale() == 2**15
    again = build("erm", torch.amp.GradScaler("cpu"))
    # The optimizers would share their moments without a copy.
    again.load_state_dict(copy.deepcopy(algorithm.state_dict()))
    assert again.scaler is not None
    assert again.scaler.state_dict() == algorithm.scaler.state_dict()
    for each in (algorithm, again):
        each.update(random_batches(2))
    expected = algorithm.network.state_dict()
    assert not all(torch.equal(value, before[name]) for name, value in expected.items())
    assert all(torch.equal(value, expected[name]) for name, value in again.network.state_dict().items())


def test_own_gradients_are_refused_when_losses_are_scaled() -> None:
    algorithm = build("erm", torch.amp.GradScaler("cpu"))
    with pytest.raises(DomainwiseError, match="ERM computes gradients of its own and does not support fp16"):
        algorithm.apply_gradients_([torch.zeros_like(each) for each in algorithm.network.parameters()])
    flat = ERM(small_cnn((3, 12, 12), 3), num_domains=3, sharpness=Sharpness())
    with pytest.raises(DomainwiseError, match="SAM computes gradients of its own"):
        flat.scale_losses_(torch.amp.GradScaler("cpu"))


class Overflowing(ERM):
    """Images of two updates are infinite, as activations may be in half precision."""

    def update(self, batches: Any) -> Any:
        if self.updates in (1, 2):
            batches = [(x * torch.inf, y) for x, y in batches]
        return super().update(batches)


class ScaledTrainer(Trainer):
    """Scales losses in full precision, because the CPU has no fp16."""

    def _build(self) -> None:
        super()._build()
        self.algorithm.scale_losses_(torch.amp.GradScaler("cpu", init_scale=self.init_scale))

    init_scale = 4.0


def test_a_run_skips_updates_that_overflow_but_not_forever(tmp_path: Path) -> None:
    config = tiny_config(tmp_path / "run", algorithm=Overflowing, record_every=4, steps=8)
    with pytest.raises(DomainwiseError, match="training diverged: the loss is nan at step 1"):
        Trainer(tiny_config(tmp_path / "plain", algorithm=Overflowing), datasets=DATASETS).fit()
    trainer = ScaledTrainer(config, datasets=DATASETS)
    records = trainer.fit().records
    assert all(0 < record["loss"] < 10 for record in records)
    assert trainer.algorithm.scaler is not None
    assert trainer.algorithm.scaler.get_scale() == 1.0
    trainer = ScaledTrainer(tiny_config(tmp_path / "again", algorithm=Overflowing), datasets=DATASETS)
    trainer.init_scale = 1.0
    with pytest.raises(DomainwiseError, match="training diverged: the loss is nan at step 1"):
        trainer.fit()
    with pytest.raises(DomainwiseError, match="no loss since the last record is finite"):
        _average_measurements([{"loss": float("nan")}])


class Undefined(ERM):
    """The loss is finite, but its gradient is not a number."""

    def compute_loss(self, batches: Any) -> Any:
        loss, measurements = super().compute_loss(batches)
        loss.register_hook(lambda gradient: gradient * torch.nan)
        return loss, measurements


def test_a_run_does_not_skip_all_updates(tmp_path: Path) -> None:
    trainer = ScaledTrainer(tiny_config(tmp_path / "run", algorithm=Undefined, steps=40), datasets=DATASETS)
    with pytest.raises(DomainwiseError, match="training diverged: the gradients are not finite at step 26"):
        trainer.fit()


@pytest.mark.slow
def test_a_compiled_run_has_plain_weights(tmp_path: Path) -> None:
    compiled = tiny_run(tmp_path / "compiled", network="mlp", compile=True, steps=4, dropout=0.0)
    plain = tiny_run(tmp_path / "plain", network="mlp", steps=4, dropout=0.0)
    weights, expected = (RunFolder(each.folder).read_weights("last") for each in (compiled, plain))
    assert weights.keys() == expected.keys()
    torch.testing.assert_close(weights, expected, rtol=1e-3, atol=1e-4)
    model = load_model(tmp_path / "compiled")
    assert isinstance(model, nn.Module)
    assert model.featurizer._compiled_call_impl is None  # type: ignore[union-attr]
