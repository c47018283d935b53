"""What an update is given, one batch a domain, and ways to see it: as one batch, and domain by domain again."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn
from torch.optim import Adam, Optimizer

from domainwise.hparams import Hparams as CommonHparams
from domainwise.networks import Network
from domainwise.perturbations.distributed import average_gradients_

# One (x, y) for every training domain, in order; a domain may have no samples.
Batches = Sequence[tuple[Tensor, Tensor]]


def present(batches: Batches, num_domains: int) -> list[tuple[Tensor, Tensor]]:
    """The batches that hold samples, once it is sure that there is one for every domain."""
    if len(batches) != num_domains:
        raise ValueError(f"update() needs one (x, y) a domain: {num_domains}, not {len(batches)}")
    there = [(x, y) for x, y in batches if len(y)]
    if not there:
        raise ValueError("update() needs at least one sample")
    return there


def joined(batches: Batches, num_domains: int) -> tuple[Tensor, Tensor, Tensor]:
    """All domains' images, labels and domain indices as one batch."""
    present(batches, num_domains)
    x = torch.cat([x for x, _ in batches])
    y = torch.cat([y for _, y in batches])
    sizes = torch.tensor([len(labels) for _, labels in batches])
    domain = torch.arange(num_domains).repeat_interleave(sizes)
    return x, y, domain.to(x.device)


def by_domain(values: Tensor, batches: Batches) -> list[Tensor]:
    """What was computed for the joined batch, (b, ...), as one tensor for each domain that has samples."""
    return [part for part in values.split([len(y) for _, y in batches]) if len(part)]


def mean_of_each(values: Tensor, batches: Batches) -> Tensor:
    """The mean over each domain's samples, (domains that have some, ...)."""
    return torch.stack([part.mean(0) for part in by_domain(values, batches)])


def domains_there(batches: Batches, device: torch.device) -> Tensor:
    """The indices of the domains that have samples, in the order of `by_domain`."""
    return torch.tensor([index for index, (_, y) in enumerate(batches) if len(y)], device=device)


def two_parts(network: nn.Module, method: str) -> Network:
    """The network, if it has a featurizer and a classifier to look between."""
    for part in ("featurizer", "classifier", "num_features"):
        if not hasattr(network, part):
            raise ValueError(
                f"{method} works on features: its network needs a {part}, as domainwise.networks.Network has"
            )
    return cast(Network, network)


def new_head(network: Network, method: str, num_features: int) -> nn.Linear:
    """A fresh classifier of `num_features` features into the classes that the network's own tells apart."""
    if not isinstance(network.classifier, nn.Linear):
        kind = type(network.classifier).__name__
        raise ValueError(f"{method} adds a linear classifier to a network whose own is one, not {kind}")
    return nn.Linear(num_features, network.classifier.out_features, **like(network))


def like(network: nn.Module) -> dict[str, Any]:
    """Device and dtype of the network, for tensors that meet its outputs."""
    parameter = next(network.parameters())
    return {"device": parameter.device, "dtype": parameter.dtype}


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


def trained(network: nn.Module) -> dict[str, Tensor]:
    """The parameters that training moves, by name."""
    return {name: parameter for name, parameter in network.named_parameters() if parameter.requires_grad}


def gradients_of(loss: Tensor, parameters: Iterable[Tensor]) -> list[Tensor]:
    """The gradient by each parameter, zero where the loss does not depend on it."""
    return list(torch.autograd.grad(loss, list(parameters), materialize_grads=True))


def step_along_(algorithm: Algorithm, gradients: Iterable[Tensor]) -> None:
    """One step of the network's optimizer with these gradients of what it trains."""
    for parameter, gradient in zip(trained(algorithm.network).values(), gradients, strict=True):
        parameter.grad = gradient
    algorithm.step_(algorithm.optimizer)
