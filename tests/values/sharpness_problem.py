"""SAM's and SAGM's steps written out, with an Adam in plain arithmetic."""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from domainwise.networks import Network

LR, WEIGHT_DECAY = 0.01, 0.1


class WrittenOutAdam:
    """Adam with weight decay added to the gradient, one parameter at a time."""

    def __init__(self, parameters: Iterable[Tensor], lr: float = LR) -> None:
        self.parameters, self.lr, self.count = list(parameters), lr, 0
        self.first = [torch.zeros_like(each) for each in self.parameters]
        self.second = [torch.zeros_like(each) for each in self.parameters]

    @torch.no_grad()
    def step(self, gradients: Iterable[Tensor]) -> None:
        self.count += 1
        for index, (parameter, gradient) in enumerate(zip(self.parameters, gradients, strict=True)):
            gradient = gradient + WEIGHT_DECAY * parameter
            self.first[index] = 0.9 * self.first[index] + 0.1 * gradient
            self.second[index] = 0.999 * self.second[index] + 0.001 * gradient**2
            mean = self.first[index] / (1 - 0.9**self.count)
            size = (self.second[index] / (1 - 0.999**self.count)).sqrt()
            parameter -= self.lr * mean / (size + 1e-8)


def sharp_step(
    network: nn.Module,
    adam: WrittenOutAdam,
    compute_loss: Callable[[], Tensor],
    radius: float,
    alpha: float | None = None,
    before_second: Callable[[], None] = lambda: None,
) -> float:
    """Take a step of SAM, or of SAGM if `alpha` is given; return the loss at the original weights."""
    parameters = list(network.parameters())
    loss = compute_loss()
    here = torch.autograd.grad(loss, parameters)
    length = sum((gradient**2).sum() for gradient in here).sqrt()
    offsets = [(radius / length - (alpha or 0.0)) * gradient for gradient in here]
    originals = [parameter.detach().clone() for parameter in parameters]
    before_second()
    with torch.no_grad():
        for parameter, offset in zip(parameters, offsets, strict=True):
            parameter += offset
    there = torch.autograd.grad(compute_loss(), parameters)
    with torch.no_grad():
        for parameter, original in zip(parameters, originals, strict=True):
            parameter.copy_(original)
    adam.step(there if alpha is None else [(one + two) / 2 for one, two in zip(here, there, strict=True)])
    return loss.item()


def largest_difference(first: nn.Module, second: nn.Module) -> float:
    """Return the largest difference between the weights of two networks."""
    pairs = zip(first.parameters(), second.parameters(), strict=True)
    return max((one - two).abs().max().item() for one, two in pairs)


def hidden_network(*, with_batch_norm: bool = False, dropout: float = 0.0) -> Network:
    """Build a network with a hidden layer, so that the loss is not convex in the weights."""
    torch.manual_seed(0)
    layers: list[nn.Module] = [nn.Flatten(), nn.Linear(48, 6)]
    if with_batch_norm:
        layers.append(nn.BatchNorm1d(6))
    return Network(
        nn.Sequential(*layers, nn.Tanh(), nn.Dropout(dropout)), nn.Linear(6, 3), input_shape=(3, 4, 4), num_features=6
    )
