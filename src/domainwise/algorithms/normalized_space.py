"""Where the released code's AT and UAT live: images normalized with ImageNet's statistics."""

from collections.abc import Callable

import torch
from torch import Tensor

Model = Callable[[Tensor], Tensor]


class NormalizedSpace:
    """Between images in [0, 1] and normalized ones; three channels only, as in the released code.

    A radius means something else here: .1 is about .023 in pixels.
    """

    mean = (0.485, 0.456, 0.406)
    std = (0.229, 0.224, 0.225)

    def __init__(self, input_shape: tuple[int, ...]) -> None:
        if len(input_shape) != 3 or input_shape[0] != 3:
            raise ValueError(f"space='normalized' is for images of three channels, not of shape {input_shape}")

    def bounds(self) -> tuple[Tensor, Tensor]:
        return self.enter(torch.zeros(3, 1, 1)), self.enter(torch.ones(3, 1, 1))

    def enter(self, x: Tensor) -> Tensor:
        mean, std = self._statistics(x)
        return (x - mean) / std

    def behind(self, model: Model) -> Model:
        """The model as a function of normalized images."""

        def on_normalized(x: Tensor) -> Tensor:
            mean, std = self._statistics(x)
            return model(x * std + mean)

        return on_normalized

    def _statistics(self, x: Tensor) -> tuple[Tensor, Tensor]:
        mean, std = (torch.tensor(values, dtype=x.dtype, device=x.device) for values in (self.mean, self.std))
        return mean.reshape(-1, 1, 1), std.reshape(-1, 1, 1)
