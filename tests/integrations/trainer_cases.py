"""A Trainer with the mixin, a small model and images for it. Only imported by tests that run: it takes seconds."""

from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn

from domainwise import MultiplePerturbation
from domainwise.integrations.transformers import AdversarialTrainingMixin

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
