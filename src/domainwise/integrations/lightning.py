"""Adversarial training in Lightning: a callback that replaces the images of every training batch."""

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.nn import functional as F

from domainwise.errors import suggest_install
from domainwise.integrations import check_perturbation
from domainwise.perturbations import Perturbation

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
except ImportError:
    try:
        from pytorch_lightning import Callback, LightningModule, Trainer  # type: ignore[assignment]
    except ImportError as error:
        raise ImportError(f"Lightning is not installed; {suggest_install('lightning')}") from error


class AdversarialTraining(Callback):
    """Attacks each training batch before `training_step` sees it.

    A batch is a list or a dict, as the default collate function makes them, with the domain index of each sample:
    `[images, labels, domain]`. Validation and test batches are left alone. The perturbation is saved in Lightning's
    checkpoints and restored with them.

    Args:
        perturbation: A perturbation with one domain per training domain.
        steps: Number of ascent steps per batch.
        image, label, domain: Position or key of the images, labels and domains in a batch. `domain=None` if there is
            only one.
        loss_fn: Maps the module, a perturbed batch of images and the batch to one loss per sample, (b,). By default,
            the cross-entropy of `module(images)`.
    """

    def __init__(
        self,
        perturbation: Perturbation,
        *,
        steps: int = 1,
        image: int | str = 0,
        label: int | str = 1,
        domain: int | str | None = 2,
        loss_fn: Callable[[LightningModule, Tensor, Any], Tensor] | None = None,
    ) -> None:
        check_perturbation(perturbation)
        self.perturbation = perturbation
        self.steps = steps
        self.image = image
        self.label = label
        self.domain = domain
        self.loss_fn = loss_fn or self._cross_entropy

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.perturbation.to(pl_module.device)

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        if not isinstance(batch, (list, dict)):
            raise TypeError(
                f"AdversarialTraining replaces the images of a batch, which must be a list or a dict, got "
                f"{type(batch).__name__}; change the collate function"
            )
        domain = None if self.domain is None else self._pick(batch, self.domain, "domain")
        # The loss under the precision of training, e.g. autocast.
        with trainer.precision_plugin.train_step_context():
            batch[self.image] = self.perturbation.attack(  # type: ignore[index]
                self._pick(batch, self.image, "image"),
                domain,
                lambda x: self.loss_fn(pl_module, x, batch),
                self.steps,
            )

    def state_dict(self) -> dict[str, Any]:
        return self.perturbation.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.perturbation.load_state_dict(state_dict)

    def _cross_entropy(self, module: LightningModule, x: Tensor, batch: Any) -> Tensor:
        logits = module(x)
        if not isinstance(logits, Tensor):
            raise TypeError(
                f"AdversarialTraining needs the logits of module(images), got {type(logits).__name__}; pass "
                "loss_fn=lambda module, x, batch: ..., with one loss per sample"
            )
        return F.cross_entropy(logits, self._pick(batch, self.label, "label"), reduction="none")

    def _pick(self, batch: Any, key: int | str, name: str) -> Tensor:
        try:
            part: Tensor = batch[key]
        except (IndexError, KeyError, TypeError):
            parts = sorted(map(str, batch)) if isinstance(batch, dict) else f"{len(batch)} parts"
            raise ValueError(
                f"AdversarialTraining({name}={key!r}) found no such part in the batch, which has {parts}; every sample "
                "needs its image, label and domain index"
            ) from None
        return part
