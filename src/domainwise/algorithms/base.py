"""What every method is: a network, its hyperparameters, and an update from one batch a domain."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.optim import Adam, Optimizer

from domainwise.algorithms.batches import Batches
from domainwise.algorithms.features import two_parts
from domainwise.hparams import Hparams as CommonHparams
from domainwise.perturbations.averaging import average_gradients_


class Algorithm(nn.Module, ABC):
    """A way to train `network`. Its `state_dict` is complete: saved, loaded and gone on with, nothing changes.

    Args:
        network: images in [0, 1] to logits.
        num_domains: how many training domains there are.
        input_shape: of one image; taken from the network where it has one.
        domain_sizes: how many images each training domain has, for methods that enlarge it.
        augment: a batch of images to another view of them, for methods that compare two.
        generator: of all random draws that are not the network's own.
        hparams: values for fields of the method's `Hparams`.
    """

    Hparams: ClassVar[type[CommonHparams]] = CommonHparams
    # Who published the method, and the fewest training domains that give it something to work with.
    source: ClassVar[str] = ""
    min_domains: ClassVar[int] = 1
    # Whether it looks between the network's featurizer and its classifier.
    needs_features: ClassVar[bool] = False
    # Whether updates from equal shares of every domain's batch, averaged, are the update from the whole, but for its
    # random draws. Methods that compare a batch's images do so within a share. It may depend on the hyperparameters.
    is_exact_in_shares: bool = False

    def __init__(
        self,
        network: nn.Module,
        *,
        num_domains: int,
        input_shape: Sequence[int] | None = None,
        domain_sizes: Sequence[int] | None = None,
        augment: Callable[[Tensor], Tensor] | None = None,
        generator: torch.Generator | None = None,
        **hparams: Any,
    ) -> None:
        super().__init__()
        if num_domains < self.min_domains:
            name, least = type(self).__name__, self.min_domains
            raise ValueError(f"{name} compares domains: it needs at least {least} to train on, not {num_domains}")
        self.network = two_parts(network, type(self).__name__) if self.needs_features else network
        self.num_domains = num_domains
        self.domain_sizes = domain_sizes
        self.augment = augment
        self.generator = generator
        self.hparams = self.Hparams.of(**hparams)
        shape = input_shape if input_shape is not None else getattr(network, "input_shape", None)
        self.input_shape = None if shape is None else tuple(shape)
        self.updates = 0  # counted by methods that follow a schedule
        self.optimizer: Optimizer = self.adam(network.parameters())

    @abstractmethod
    def update(self, batches: Batches) -> dict[str, float]:
        """One update from a list with one (x, y) a domain; what it measured, as plain floats.

        `loss` is the cross-entropy trained on, so that methods can be compared; their own terms stand beside it.
        """

    @torch.no_grad()
    def predict(self, x: Tensor) -> Tensor:
        """Logits (b, num_classes), computed in eval mode."""
        with evaluating(self):
            logits: Tensor = self.network(x)
            return logits

    def describe(self) -> dict[str, Any]:
        """What a record should say about the method's own state, ready for JSON."""
        return {}

    def adam(self, parameters: Iterable[nn.Parameter], **settings: Any) -> Adam:
        """The optimizer of every method; `settings` take the place of the common ones."""
        common = {"lr": self.hparams.lr, "weight_decay": self.hparams.weight_decay, "fused": True}
        return Adam(parameters, **{**common, **settings})

    def descend_(self, loss: Tensor, *optimizers: Optimizer) -> None:
        """One step of each optimizer, by default the network's, down the loss."""
        chosen = optimizers or (self.optimizer,)
        for optimizer in chosen:
            optimizer.zero_grad()
        loss.backward()
        for optimizer in chosen:
            self.step_(optimizer)

    def step_(self, optimizer: Optimizer) -> None:
        """The one place where gradients, whatever they were made of, become a step; averaged over ranks, if several."""
        average_gradients_(parameter for group in optimizer.param_groups for parameter in group["params"])
        optimizer.step()

    def get_extra_state(self) -> dict[str, Any]:
        return {
            "optimizers": {name: optimizer.state_dict() for name, optimizer in self._optimizers().items()},
            "generator": None if self.generator is None else self.generator.get_state(),
            "updates": self.updates,
        }

    def set_extra_state(self, state: dict[str, Any]) -> None:
        for name, optimizer in self._optimizers().items():
            optimizer.load_state_dict(state["optimizers"][name])
        if self.generator is not None and state["generator"] is not None:
            self.generator.set_state(state["generator"].cpu())
        self.updates = state["updates"]

    def _optimizers(self) -> dict[str, Optimizer]:
        """Every optimizer that an attribute holds, so that none can be left out of the state."""
        return {name: value for name, value in vars(self).items() if isinstance(value, Optimizer)}


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Eval mode inside. A user may have frozen some layers in it, so each gets back its own mode."""
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, was_training in modes:
            part.training = was_training
