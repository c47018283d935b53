"""For methods that make the network's gradient themselves, out of several."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from domainwise.algorithms.base import Algorithm


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
