"""An ordinary LightningModule, loops written by hand, and `Trainer.fit` on a few images.

Only imported by tests that run: importing Lightning takes seconds.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning.pytorch as lightning
import torch
from lightning.pytorch.plugins.precision import MixedPrecision, Precision
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from domainwise import LowRankPerturbation, MultiplePerturbation, Perturbation
from domainwise.integrations.lightning import AdversarialTraining as AdversarialTraining

SHAPE = (3, 6, 6)


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 2))


class Classifier(lightning.LightningModule):
    """An ordinary module, with an optimizer over all its parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.network = network()
        self.validated: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.network(x)
        return logits

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch[0], batch[1]
        return F.cross_entropy(self(x), y)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.validated.append(batch[0])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1, weight_decay=0.1)


class OnePass(Classifier):
    """The perturbation as a part of the module, moved by the backward pass that trains."""

    def __init__(self, perturbation: Perturbation) -> None:
        super().__init__()
        self.perturbation = perturbation

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x, y, domain = batch
        return F.cross_entropy(self(self.perturbation(x, domain)), y)

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        self.perturbation.ascend_()


def dataset() -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    x = torch.rand(24, *SHAPE, generator=generator)
    return TensorDataset(x, torch.arange(24) % 2, torch.arange(24) // 2 % 3)


def fit(folder: Path, module: Classifier, *callbacks: Any, batch_size: int = 6, **settings: Any) -> Any:
    settings = {"max_epochs": 2, "enable_checkpointing": False, **settings}
    trainer = lightning.Trainer(
        default_root_dir=folder,
        accelerator="cpu",
        logger=False,
        callbacks=list(callbacks),
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        **{name: value for name, value in settings.items() if name not in ("ckpt_path", "collate_fn")},
    )
    collate_fn = settings.get("collate_fn")
    loader = DataLoader(dataset(), batch_size=batch_size, collate_fn=collate_fn)
    trainer.fit(module, loader, DataLoader(dataset(), batch_size=24), ckpt_path=settings.get("ckpt_path"))
    return trainer


def perturb(kind: type[Perturbation] = MultiplePerturbation) -> Any:
    settings = {"rank": 2} if kind is LowRankPerturbation else {}
    generator = torch.Generator().manual_seed(7)
    return kind(SHAPE, num_domains=3, epsilon=1.0, generator=generator, **settings)


def train_by_hand(perturbation: Perturbation, update: Callable[..., None], epochs: int = 2) -> nn.Module:
    model = network().train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.1)
    for _ in range(epochs):
        for x, y, domain in DataLoader(dataset(), batch_size=6):
            update(model, optimizer, perturbation, x, y, domain)
    return model


def two_passes(model: nn.Module, optimizer: Any, perturbation: Perturbation, x: Tensor, y: Tensor, domain: Any) -> None:
    x = perturbation.attack(x, domain, lambda x: F.cross_entropy(model(x), y, reduction="none"))
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
    optimizer.step()


def one_pass(model: nn.Module, optimizer: Any, perturbation: Perturbation, x: Tensor, y: Tensor, domain: Any) -> None:
    optimizer.zero_grad()
    F.cross_entropy(model(perturbation(x, domain)), y).backward()
    perturbation.ascend_()
    optimizer.step()


def assert_same(first: nn.Module, second: nn.Module) -> None:
    one, other = first.state_dict(), second.state_dict()
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        if isinstance(tensor, Tensor):
            assert torch.equal(tensor, other[name]), name


class HalfPrecision(Precision):
    """Autocast to float16: unlike bfloat16, it needs no special instructions on a CPU."""

    def forward_context(self) -> Any:
        return torch.autocast("cpu", torch.float16)

    train_step_context = forward_context


class ScaledPrecision(MixedPrecision):
    """Full precision with a scaled loss."""

    def __init__(self, scaler: torch.amp.GradScaler) -> None:
        super().__init__("16-mixed", "cpu", scaler)

    def autocast_context_manager(self) -> Any:
        return torch.autocast("cpu", enabled=False)
