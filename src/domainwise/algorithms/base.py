"""What every method is: a network, its hyperparameters, and an update from one batch a domain."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from domainwise.hparams import Hparams as CommonHparams

Batches = Sequence[tuple[Tensor, Tensor]]


class Algorithm(nn.Module, ABC):
    """A way to train `network`. Its `state_dict` is complete: saved, loaded and gone on with, nothing changes.

    Args:
        network: images in [0, 1] to logits.
        num_domains: how many training domains there are.
        input_shape: of one image; taken from the network where it has one.
        generator: of all random draws that are not the network's own.
        hparams: values for fields of the method's `Hparams`.
    """

    Hparams: ClassVar[type[CommonHparams]] = CommonHparams

    def __init__(
        self,
        network: nn.Module,
        *,
        num_domains: int,
        input_shape: Sequence[int] | None = None,
        generator: torch.Generator | None = None,
        **hparams: Any,
    ) -> None:
        super().__init__()
        self.network = network
        self.num_domains = num_domains
        self.generator = generator
        self.hparams = self.Hparams.of(**hparams)
        shape = input_shape if input_shape is not None else getattr(network, "input_shape", None)
        self.input_shape = None if shape is None else tuple(shape)
        self.optimizer = torch.optim.Adam(
            network.parameters(), lr=self.hparams.lr, weight_decay=self.hparams.weight_decay, fused=True
        )

    @abstractmethod
    def update(self, batches: Batches) -> dict[str, float]:
        """One update from a list with one (x, y) a domain; what it measured, as plain floats."""

    @torch.no_grad()
    def predict(self, x: Tensor) -> Tensor:
        """Logits (b, num_classes), computed in eval mode."""
        # A user may have frozen some layers in eval mode, so each gets back its own.
        modes = [(module, module.training) for module in self.modules()]
        self.eval()
        try:
            logits: Tensor = self.network(x)
            return logits
        finally:
            for module, was_training in modes:
                module.training = was_training

    def describe(self) -> dict[str, Any]:
        """What a record should say about the method's own state, ready for JSON."""
        return {}

    def descend_(self, loss: Tensor) -> None:
        """The one place where a loss becomes a step of the network."""
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()

    def get_extra_state(self) -> dict[str, Any]:
        return {"optimizer": self.optimizer.state_dict()}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        self.optimizer.load_state_dict(state["optimizer"])


def joined(batches: Batches, num_domains: int) -> tuple[Tensor, Tensor, Tensor]:
    """All domains' images, labels and domain indices as one batch."""
    if len(batches) != num_domains:
        raise ValueError(f"update() needs one (x, y) a domain: {num_domains}, not {len(batches)}")
    if not any(len(y) for _, y in batches):
        raise ValueError("update() needs at least one sample")
    x = torch.cat([x for x, _ in batches])
    y = torch.cat([y for _, y in batches])
    sizes = torch.tensor([len(labels) for _, labels in batches])
    domain = torch.arange(num_domains).repeat_interleave(sizes)
    return x, y, domain.to(x.device)
