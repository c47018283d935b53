"""Where a perturbation lives: pixel space with bounds, whatever the inputs have been normalized with."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

Bound = float | Tensor


class ImageSpace(nn.Module):
    """Between the inputs given and the images they stand for.

    Args:
        bounds: images are clipped to these, numbers or tensors that broadcast to one image; None: not at all.
        mean, std: a number a channel that the inputs were normalized with; None: the inputs are images.
    """

    low: Bound
    high: Bound
    mean: Tensor
    std: Tensor

    def __init__(
        self,
        bounds: tuple[Bound, Bound] | None = (0.0, 1.0),
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
    ) -> None:
        super().__init__()
        if (mean is None) != (std is None):
            raise ValueError("give mean and std together, or neither")
        self.is_bounded = bounds is not None
        self.is_normalized = mean is not None
        # Numbers stay numbers, which are much faster to clip to; but both bounds must be of one kind.
        have_tensor = any(isinstance(bound, Tensor) for bound in bounds or ())
        for name, bound in zip(("low", "high"), bounds or (), strict=False):
            if have_tensor:
                self.register_buffer(name, torch.as_tensor(bound, dtype=torch.get_default_dtype()), persistent=False)
            else:
                setattr(self, name, bound)
        for name, values in (("mean", mean), ("std", std)):
            if values is not None:
                self.register_buffer(name, torch.tensor(list(values)).reshape(-1, 1, 1), persistent=False)

    def image(self, x: Tensor) -> Tensor:
        return x * self.std + self.mean if self.is_normalized else x

    def clip(self, image: Tensor) -> Tensor:
        if not self.is_bounded:
            return image
        clipped: Tensor = torch.clamp(image, self.low, self.high)  # type: ignore[arg-type]
        return clipped

    def input(self, image: Tensor) -> Tensor:
        return (image - self.mean) / self.std if self.is_normalized else image
