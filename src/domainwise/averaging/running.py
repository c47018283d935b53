"""Averages of the weights along one training run: SMA (Arpit et al. 2021) and EMA.

Both are thin over `torch.optim.swa_utils.AveragedModel`. Parameters and batch-norm statistics are averaged alike, so
frozen statistics stay what they are and live ones fit the averaged weights; integer buffers are copied.
"""

from collections.abc import Callable
from itertools import compress

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

# Returns the holdout loss of the network that is being trained.
MeasureLoss = Callable[[], float]


class WeightAverage(AveragedModel):
    """A running average of a network's weights. Call `update_` after every optimizer step and evaluate the average.

    The average is a module of its own, in eval mode: `average(x)`, or `average.averaged_network()`.

    Args:
        network: The network to average. It is copied, and the copy takes no gradients.
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__(network, use_buffers=True)
        self.module.requires_grad_(False).eval()

    def update_(self, network: nn.Module, measure_loss: MeasureLoss | None = None) -> None:
        """Take in the network's weights after an optimizer step.

        Args:
            measure_loss: Returns the loss on held-out data; only SWAD calls it.
        """
        self.update_parameters(network)

    def averaged_network(self) -> nn.Module:
        """Return the network with the averaged weights; it changes with the next update."""
        module: nn.Module = self.module
        return module

    def train(self, mode: bool = True) -> "WeightAverage":
        """Stay in eval mode: the average is never trained."""
        return super().train(False)

    def new_weight(self, count: int) -> float:
        """Return the weight of the new weights in the average after `count` earlier ones."""
        return 1 / (count + 1)

    @torch.no_grad()
    def update_parameters(self, model: nn.Module) -> None:
        """Replace torch's own, which copies the count to the device at every update and waits for it."""
        averages, values = ([*each.parameters(), *each.buffers()] for each in (self.module, model))
        values = [value.to(average.device) for average, value in zip(averages, values, strict=True)]
        count = int(self.n_averaged)
        is_moving = [count > 0 and each.is_floating_point() for each in averages]
        is_copied = [not each for each in is_moving]
        if any(is_moving):
            moving = list(compress(averages, is_moving))
            torch._foreach_lerp_(moving, list(compress(values, is_moving)), self.new_weight(count))
        if any(is_copied):
            torch._foreach_copy_(list(compress(averages, is_copied)), list(compress(values, is_copied)))
        self.n_averaged += 1

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "WeightAverage":
        """Move the network; counts stay on the CPU, where they can be read without waiting for a device."""
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name, count in self._buffers.items():
            self._buffers[name] = None if count is None else count.cpu()
        return self


class SMA(WeightAverage):
    """Simple moving average: the mean of the weights after every update from `start - 1` on (EoA's rule).

    Before that, the average is the network itself. With `start` 1, the initial weights count as well.

    Args:
        start: Update, counted from 1, at which averaging starts.
    """

    updates: Tensor

    def __init__(self, network: nn.Module, *, start: int = 100) -> None:
        if start < 1:
            raise ValueError(f"start must be at least 1, got {start}")
        super().__init__(network)
        self.start = start
        self.register_buffer("updates", torch.tensor(0))
        self.n_averaged.fill_(1)  # the initial weights, unless an update before `start` replaces them

    def update_(self, network: nn.Module, measure_loss: MeasureLoss | None = None) -> None:
        self.updates += 1
        if self.updates < self.start:
            self.n_averaged.zero_()  # an average of nothing copies what it is given
        self.update_parameters(network)


class EMA(WeightAverage):
    """Exponential moving average: each update replaces the share `1 - decay` of the average.

    The decay grows as (1 + t) / (10 + t), t counting updates, until it reaches `decay`; otherwise the first weights
    would dominate a short run.

    Args:
        decay: Share of the average that an update keeps.
    """

    def __init__(self, network: nn.Module, *, decay: float = 0.999) -> None:
        if not 0 <= decay < 1:
            raise ValueError(f"decay must be at least 0 and below 1, got {decay}")
        super().__init__(network)
        self.decay = decay

    def new_weight(self, count: int) -> float:
        return 1 - min(self.decay, (1 + count) / (10 + count))
