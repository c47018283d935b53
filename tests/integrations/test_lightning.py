"""The Lightning callback in real `Trainer.fit` calls, against a loop written by hand."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from domainwise import LowRankPerturbation, MultiplePerturbation, Perturbation, UniversalPerturbation

lightning = pytest.importorskip("lightning.pytorch", reason="lightning is not installed")
from domainwise.integrations.lightning import AdversarialTraining  # noqa: E402

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


@pytest.mark.parametrize("kind", [MultiplePerturbation, LowRankPerturbation, UniversalPerturbation])
def test_the_callback_trains_as_a_loop_written_by_hand(kind: type[Perturbation], tmp_path: Path) -> None:
    module, callback = Classifier(), AdversarialTraining(perturb(kind))
    fit(tmp_path, module, callback)
    expected = perturb(kind)
    assert_same(module.network, train_by_hand(expected, two_passes))
    assert_same(callback.perturbation, expected)
    assert callback.perturbation.updates == 8
    # Validation images are not attacked.
    assert all(torch.equal(x, dataset().tensors[0]) for x in module.validated)


@pytest.mark.parametrize("kind", [LowRankPerturbation, UniversalPerturbation])
def test_a_perturbation_in_the_module_is_not_moved_by_the_optimizer(kind: type[Perturbation], tmp_path: Path) -> None:
    module, expected = OnePass(perturb(kind)), perturb(kind)
    assert any(each is part for each in module.parameters() for part in module.perturbation.parameters())
    fit(tmp_path, module)
    assert_same(module.network, train_by_hand(expected, one_pass))
    assert_same(module.perturbation, expected)


def test_it_resumes_exactly_from_a_checkpoint(tmp_path: Path) -> None:
    whole, at_once = Classifier(), AdversarialTraining(perturb())
    fit(tmp_path, whole, at_once)
    first = AdversarialTraining(perturb())
    half = fit(tmp_path, Classifier(), first, max_epochs=1)
    half.save_checkpoint(tmp_path / "half.ckpt")
    # Another start, which the checkpoint replaces.
    resumed, callback = Classifier(), AdversarialTraining(MultiplePerturbation(SHAPE, num_domains=3, epsilon=1.0))
    fit(tmp_path, resumed, callback, ckpt_path=tmp_path / "half.ckpt")
    assert_same(resumed.network, whole.network)
    assert_same(callback.perturbation, at_once.perturbation)
    assert callback.perturbation.updates == at_once.perturbation.updates == 8


def test_gradient_accumulation_and_autocast(tmp_path: Path) -> None:
    seen: list[torch.dtype] = []

    def losses(module: Any, x: Tensor, batch: Any) -> Tensor:
        logits = module(x)
        seen.append(logits.dtype)
        return F.cross_entropy(logits.float(), batch[1], reduction="none")

    callback = AdversarialTraining(perturb(), loss_fn=losses)
    before = copy.deepcopy(callback.perturbation)
    # On the CPU, float16 needs no special instructions, unlike bfloat16.
    fit(tmp_path, Classifier(), callback, plugins=[half_precision()], accumulate_grad_batches=2)
    assert seen == [torch.float16] * 8
    assert not torch.equal(callback.perturbation.deltas, before.deltas)


def half_precision() -> Any:
    from lightning.pytorch.plugins.precision import Precision

    class HalfPrecision(Precision):
        def forward_context(self) -> Any:
            return torch.autocast("cpu", torch.float16)

        train_step_context = forward_context

    return HalfPrecision()


def test_a_dict_as_batch_and_one_domain(tmp_path: Path) -> None:
    class FromDict(Classifier):
        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            return F.cross_entropy(self(batch["pixels"]), batch["class"])

        def validation_step(self, batch: Any, batch_idx: int) -> None: ...

    def collate(samples: Any) -> dict[str, Tensor]:
        x, y, _ = torch.utils.data.default_collate(samples)
        return {"pixels": x, "class": y}

    perturbation = UniversalPerturbation(SHAPE, epsilon=1.0)
    callback = AdversarialTraining(perturbation, image="pixels", label="class", domain=None, steps=2)
    fit(tmp_path, FromDict(), callback, collate_fn=collate)
    assert perturbation.updates == 8


@pytest.mark.parametrize(
    ("collate", "error", "message"),
    [
        (lambda samples: tuple(torch.utils.data.default_collate(samples)), TypeError, "list or a dict, got tuple"),
        (lambda samples: torch.utils.data.default_collate(samples)[:2], ValueError, r"domain=2\) found no such part"),
        (lambda samples: dict(enumerate(samples)), ValueError, "every sample needs its image, label and domain index"),
    ],
)
def test_error_for_a_batch_without_domains(
    collate: Callable[..., Any], error: type[Exception], message: str, tmp_path: Path
) -> None:
    callback = AdversarialTraining(perturb(), domain=2 if "domain=2" in message or error is TypeError else "domain")
    with pytest.raises(error, match=message):
        fit(tmp_path, Classifier(), callback, collate_fn=collate)
