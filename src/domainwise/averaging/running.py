"""Averages of the weights along one training run: SMA (Arpit et al. 2021) and EMA.

Both are thin over `torch.optim.swa_utils.AveragedModel`. Parameters and batch-norm statistics are averaged alike, so
frozen statistics stay what they are and live ones fit the averaged weights; integer buffers are copied.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

# Returns the holdout loss of the network that is being trained.
MeasureLoss = Callable[[], float]
Tensors = tuple[Tensor, ...] | list[Tensor]


class WeightAverage(AveragedModel):
    """A running average of a network's weights. Call `update_` after every optimizer step and evaluate the average.

    The average is a module of its own, in eval mode: `average(x)`, or `average.averaged_network()`.

    Args:
        network: The network to average. It is copied, and the copy takes no gradients.
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__(network, multi_avg_fn=self._average, use_buffers=True)
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
    def _average(self, averages: Tensors, values: Tensors, count: Tensor | int) -> None:
        if averages[0].is_floating_point():
            torch._foreach_lerp_(averages, values, self.new_weight(int(count)))
        else:
            torch._foreach_copy_(averages, values)


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
