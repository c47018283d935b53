"""The mixin in real runs of the Hugging Face Trainer."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from domainwise import MultiplePerturbation, UniversalPerturbation

transformers = pytest.importorskip("transformers", reason="transformers is not installed")
from domainwise.integrations.transformers import AdversarialTrainingMixin  # noqa: E402

SHAPE = (3, 8, 8)
MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.3, 0.4)


class MATTrainer(AdversarialTrainingMixin, transformers.Trainer):
    """What the docs tell to write, besides a record of what the model is trained on."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.trained: list[Tensor] = []
        handle = self.model.register_forward_pre_hook(self._record, with_kwargs=True)
        self.stop_recording = handle.remove

    def _record(self, model: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
        assert "domain" not in kwargs
        if model.training and "labels" in kwargs:
            self.trained.append(kwargs["pixel_values"].detach())


class Samples(torch.utils.data.Dataset):  # type: ignore[type-arg]
    """Images normalized as an image processor does, with labels and domains."""

    def __init__(self, with_domain: bool = True, with_label: bool = True) -> None:
        generator = torch.Generator().manual_seed(1)
        self.images = torch.rand(24, *SHAPE, generator=generator)
        self.with_domain, self.with_label = with_domain, with_label

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> dict[str, Any]:
        mean, std = (torch.tensor(values).reshape(3, 1, 1) for values in (MEAN, STD))
        sample: dict[str, Any] = {"pixel_values": (self.images[index] - mean) / std}
        if self.with_label:
            sample["labels"] = index % 2
        if self.with_domain:
            sample["domain"] = index // 2 % 3
        return sample


def model() -> Any:
    torch.manual_seed(0)
    config = transformers.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 8], depths=[1, 1], layer_type="basic", num_labels=2
    )
    return transformers.ResNetForImageClassification(config)


def arguments(folder: Path, **settings: Any) -> Any:
    return transformers.TrainingArguments(
        output_dir=str(folder),
        use_cpu=True,
        per_device_train_batch_size=6,
        report_to=[],
        disable_tqdm=True,
        logging_strategy="no",
        remove_unused_columns=False,
        dataloader_pin_memory=False,
        **{"max_steps": 8, "save_steps": 4, "learning_rate": 1e-2, **settings},
    )


def perturb(epsilon: float = 1.0, seed: int = 7) -> MultiplePerturbation:
    generator = torch.Generator().manual_seed(seed)
    return MultiplePerturbation(SHAPE, num_domains=3, epsilon=epsilon, mean=MEAN, std=STD, generator=generator)


def train(folder: Path, perturbation: Any = None, resume: Any = None, **settings: Any) -> MATTrainer:
    trainer = MATTrainer(
        model=model(),
        args=arguments(folder, **settings),
        train_dataset=Samples(),
        perturbation=perturb() if perturbation is None else perturbation,
    )
    trainer.train(resume_from_checkpoint=resume)
    return trainer


def weights(trainer: Any) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in trainer.model.state_dict().items()}


def test_the_model_is_trained_on_perturbed_images_inside_the_ball(tmp_path: Path) -> None:
    trainer = train(tmp_path, perturb(epsilon=0.5))
    assert trainer.perturbation.updates == len(trainer.trained) == 8
    clean = Samples().images
    std = torch.tensor(STD).reshape(3, 1, 1)
    for batch in trainer.trained:
        images = batch * std + torch.tensor(MEAN).reshape(3, 1, 1)
        norms = (images[:, None] - clean).flatten(2).norm(dim=2)
        # Each differs from the nearest clean image by at most the radius, in pixels, and is itself an image.
        assert (norms.amin(1) <= 0.5 + 1e-5).all()
        assert norms.amin(1).max() > 0.1
        assert images.min() > -1e-5
        assert images.max() < 1 + 1e-5


def test_the_attack_raises_the_loss_of_the_model(tmp_path: Path) -> None:
    trainer = train(tmp_path, max_steps=4)
    batch = torch.utils.data.default_collate([Samples()[index] for index in range(24)])
    network = trainer.model.eval()

    def losses(x: Tensor) -> Tensor:
        return F.cross_entropy(network(pixel_values=x).logits, batch["labels"], reduction="none")

    attacked = trainer.perturbation.attack(batch["pixel_values"], batch["domain"], losses)
    assert losses(attacked).mean() > losses(batch["pixel_values"]).mean() + 0.01


def test_with_radius_zero_it_is_the_ordinary_trainer(tmp_path: Path) -> None:
    ordinary = transformers.Trainer(
        model=model(), args=arguments(tmp_path / "ordinary"), train_dataset=Samples(with_domain=False)
    )
    ordinary.train()
    # Without statistics, adding nothing leaves the bits alone; normalized images leave [0, 1].
    zero = UniversalPerturbation(SHAPE, num_domains=3, epsilon=0, bounds=None)
    expected = weights(ordinary)
    for name, tensor in weights(train(tmp_path / "zero", zero)).items():
        assert torch.equal(tensor, expected[name])
    assert any(not torch.equal(tensor, expected[name]) for name, tensor in weights(train(tmp_path / "mat")).items())


@pytest.mark.parametrize("resume", [True, "checkpoint-4"])
def test_it_resumes_exactly_from_a_checkpoint(resume: Any, tmp_path: Path) -> None:
    folder = tmp_path / "half"
    train(folder, max_steps=4, lr_scheduler_type="constant")
    whole = train(tmp_path / "whole", lr_scheduler_type="constant")
    if isinstance(resume, str):
        resume = str(folder / resume)
    # Another start, which the checkpoint replaces.
    resumed = train(folder, perturb(seed=8), resume=resume, lr_scheduler_type="constant")
    assert len(resumed.trained) == 4
    assert torch.equal(resumed.perturbation.deltas, whole.perturbation.deltas)
    assert resumed.perturbation.updates == 8
    for name, tensor in weights(resumed).items():
        assert torch.equal(tensor, weights(whole)[name])


@pytest.mark.parametrize("with_domain", [False, True])
@pytest.mark.parametrize("with_label", [False, True])
def test_evaluation_and_prediction_attack_nothing(with_domain: bool, with_label: bool, tmp_path: Path) -> None:
    trainer = train(tmp_path, max_steps=1)
    updates = trainer.perturbation.updates
    prediction = trainer.predict(Samples(with_domain=with_domain, with_label=with_label))
    pixels = torch.stack([Samples()[index]["pixel_values"] for index in range(24)])
    with torch.no_grad():
        expected = trainer.model.eval()(pixel_values=pixels).logits
    torch.testing.assert_close(torch.as_tensor(prediction.predictions), expected)
    assert trainer.perturbation.updates == updates


def test_gradient_accumulation(tmp_path: Path) -> None:
    trainer = train(tmp_path, max_steps=2, gradient_accumulation_steps=2)
    assert trainer.perturbation.updates == 4


def test_error_for_training_data_without_domains(tmp_path: Path) -> None:
    trainer = MATTrainer(
        model=model(), args=arguments(tmp_path), train_dataset=Samples(with_domain=False), perturbation=perturb()
    )
    with pytest.raises(ValueError, match=r"no 'domain', only .*remove_unused_columns=False"):
        trainer.train()
